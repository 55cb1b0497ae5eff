//! An address with its network, as `10.9.0.2/24`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// A host's address, and how many bits of it name its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    ip: IpAddr,
    bits: u8,
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || format!("{text} is no address with its network, as 10.9.0.2/24");
        let (ip, bits) = text.split_once('/').ok_or_else(form)?;
        let (ip, bits): (IpAddr, u8) = (ip.parse().map_err(|_| form())?, bits.parse().map_err(|_| form())?);
        let bits_max = if ip.is_ipv4() { 32 } else { 128 };
        if bits == 0 || bits > bits_max {
            return Err(format!("a network of this family has 1 to {bits_max} bits"));
        }
        let is_one_hosts = match ip {
            IpAddr::V4(ip) => !matches!(ip.octets()[0], 0 | 127 | 224..),
            IpAddr::V6(ip) => {
                !ip.is_multicast()
                    && !ip.is_unspecified()
                    && !ip.is_loopback()
                    && ip.to_ipv4_mapped().is_none()
            }
        };
        if !is_one_hosts {
            return Err(format!("{ip} cannot be a program's address in a network"));
        }
        Ok(Self { ip, bits })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_one_host_with_a_network_are_taken() {
        for text in ["10.9.0.2/24", "fd00::2/64"] {
            assert_eq!(
                text.parse::<Address>().map(|it| it.to_string()),
                Ok(text.to_owned())
            );
        }
        for text in [
            "10.9.0.2",
            "10.9.0.2/33",
            "10.9.0.2/0",
            "127.0.0.1/8",
            "0.0.0.0/8",
            "::1/64",
            "a/24",
            "::ffff:10.9.0.2/120",
        ] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}

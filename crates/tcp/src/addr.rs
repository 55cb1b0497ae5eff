//! Addresses of links, hosts and ends of connections.

use core::fmt;

/// The address of a network card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Every card of a link.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// The group address of an IPv6 group (RFC 2464 §7).
    pub const fn of_group(group: Ip) -> Self {
        let [a, b, c, d] = group.octets4();
        Self([0x33, 0x33, a, b, c, d])
    }

    /// Whether more than one card listens to it.
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 == 1
    }
}

/// An IPv4 or IPv6 address, as two numbers of 64 bits. IPv4 is kept as `::ffff:a.b.c.d` (RFC 4291 §2.5.5.2), which no frame may carry.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ip([u64; 2]);

impl Ip {
    /// Every address of a host.
    pub const ANY: Self = Self([0, 0]);
    const V4: u64 = 0xffff << 32;

    const fn of(word: u128) -> Self {
        Self([(word >> 64) as u64, word as u64])
    }

    const fn word(self) -> u128 {
        (self.0[0] as u128) << 64 | self.0[1] as u128
    }

    /// An IPv4 address.
    pub const fn v4(octets: [u8; 4]) -> Self {
        Self([0, Self::V4 | u32::from_be_bytes(octets) as u64])
    }

    /// The IPv4 address that is this number in network order.
    #[inline]
    pub const fn of_v4(number: u32) -> Self {
        Self([0, Self::V4 | number as u64])
    }

    /// An IPv6 address.
    pub const fn v6(octets: [u8; 16]) -> Self {
        Self::of(u128::from_be_bytes(octets))
    }

    /// Whether it is IPv4.
    #[inline]
    pub const fn is_v4(self) -> bool {
        self.0[0] == 0 && self.0[1] >> 32 == 0xffff
    }

    /// Its bytes as IPv6; an IPv4 address is the last four.
    pub const fn octets(self) -> [u8; 16] {
        self.word().to_be_bytes()
    }

    /// Its bytes as IPv4.
    #[inline]
    pub const fn octets4(self) -> [u8; 4] {
        (self.0[1] as u32).to_be_bytes()
    }

    /// An IPv4 address as a number in network order.
    #[inline]
    pub const fn number4(self) -> u32 {
        self.0[1] as u32
    }

    /// Its two halves.
    #[inline]
    pub const fn halves(self) -> [u64; 2] {
        self.0
    }

    /// Whether one host, and no more, can have it.
    pub fn is_unicast(self) -> bool {
        match self.is_v4() {
            true => !matches!(self.octets4()[0], 0 | 127 | 224..),
            false => self.word() > 1 && self.octets()[0] != 0xff,
        }
    }

    /// The group that asks for this address (RFC 4291 §2.7.1).
    pub const fn solicited(self) -> Self {
        Self([
            0xff02_0000_0000_0000,
            0x0000_0001_ff00_0000 | (self.0[1] & 0xff_ffff),
        ])
    }

    /// Whether the first `bits` bits are those of `other`. An IPv4 address counts its own 32 bits.
    pub const fn is_within(self, other: Self, bits: u8) -> bool {
        let bits = if other.is_v4() {
            bits as u32 + 96
        } else {
            bits as u32
        };
        bits == 0 || (self.word() ^ other.word()) >> (128 - bits) == 0
    }
}

impl fmt::Debug for Ip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_v4() {
            true => core::net::Ipv4Addr::from(self.octets4()).fmt(f),
            false => core::net::Ipv6Addr::from(self.octets()).fmt(f),
        }
    }
}

/// One end of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// The host.
    pub ip: Ip,
    /// The port.
    pub port: u16,
}

/// The two ends of a connection, as this host sees them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tuple {
    /// This host's end.
    pub local: Endpoint,
    /// The peer's end.
    pub remote: Endpoint,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_count_the_bits_of_their_family() {
        let net = Ip::v4([10, 1, 0, 0]);
        assert!(Ip::v4([10, 1, 2, 3]).is_within(net, 16));
        assert!(!Ip::v4([10, 2, 2, 3]).is_within(net, 16));
        assert!(Ip::v4([10, 2, 2, 3]).is_within(net, 8));
        assert!(!Ip::v6([0x20; 16]).is_within(net, 0));
        assert!(Ip::v6([0x20; 16]).is_within(Ip::ANY, 0));
    }

    #[test]
    fn groups_are_those_of_the_rfcs() {
        let mut octets = [0; 16];
        octets[..2].copy_from_slice(&[0xfe, 0x80]);
        octets[13..].copy_from_slice(&[0x28, 0x9c, 0x5a]);
        let group = Ip::v6(octets).solicited();
        assert_eq!(format!("{group:?}"), "ff02::1:ff28:9c5a");
        assert_eq!(Mac::of_group(group), Mac([0x33, 0x33, 0xff, 0x28, 0x9c, 0x5a]));
        assert!(!group.is_unicast());
        assert!(!Ip::v4([255; 4]).is_unicast());
        assert!(Ip::v6(octets).is_unicast());
    }
}

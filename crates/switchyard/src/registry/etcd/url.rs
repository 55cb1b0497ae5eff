//! `etcd://HOST:PORT[,HOST:PORT…][/PREFIX]`: where a registry in etcd is.

use std::fmt;
use std::str::FromStr;

/// Begins the text of an address.
pub const SCHEME: &str = "etcd://";
/// Keys begin with it if the address does not say.
const PREFIX: &str = "switchyard";
/// Members that an address names at most. Larger clusters of etcd only get slower.
const ENDPOINTS_MAX: usize = 9;
/// Bytes of a prefix at most.
const PREFIX_BYTES_MAX: usize = 200;

/// Where a registry in etcd is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdUrl {
    /// Clients reach the members here: `HOST:PORT`.
    pub endpoints: Vec<String>,
    /// Keys begin with a slash and this.
    pub prefix: String,
}

impl EtcdUrl {
    /// The key that has the records.
    pub fn key(&self) -> String {
        format!("/{}/registry", self.prefix)
    }
}

impl fmt::Display for EtcdUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.endpoints.join(","), self.prefix)
    }
}

impl FromStr for EtcdUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let example = "write for example etcd://10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379/switchyard";
        let rest = text
            .strip_prefix(SCHEME)
            .ok_or_else(|| format!("`{text}` does not begin with {SCHEME}: {example}"))?;
        let (hosts, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = match prefix.trim_end_matches('/') {
            "" => PREFIX,
            prefix => prefix,
        };
        if hosts.contains('@') {
            return Err(format!(
                "`{text}` has a user: Switchyard uses an etcd without authentication; {example}"
            ));
        }
        let endpoints: Vec<String> = hosts.split(',').map(str::to_owned).collect();
        if let Some(wrong) = endpoints.iter().find(|endpoint| !is_endpoint(endpoint)) {
            return Err(format!(
                "`{wrong}` is not HOST:PORT of a member of etcd: {example}"
            ));
        }
        if endpoints.len() > ENDPOINTS_MAX {
            return Err(format!(
                "{} members are too many: name {ENDPOINTS_MAX} or fewer",
                endpoints.len()
            ));
        }
        if !is_prefix(prefix) {
            return Err(format!(
                "`{prefix}` is no prefix of keys: use letters, digits, `-`, `_`, `.` and single slashes, at most \
                 {PREFIX_BYTES_MAX} bytes"
            ));
        }
        Ok(Self {
            endpoints,
            prefix: prefix.to_owned(),
        })
    }
}

fn is_endpoint(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    let host_is_valid = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            !host.is_empty()
                && host
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "-._".contains(c))
        }
    };
    host_is_valid && port.parse::<u16>().is_ok_and(|port| port > 0)
}

fn is_prefix(text: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty()
            && part
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "-._".contains(c))
    };
    text.len() <= PREFIX_BYTES_MAX && text.split('/').all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<EtcdUrl, String> {
        text.parse()
    }

    #[test]
    fn members_and_a_prefix_are_read_and_shown_again() {
        let url = parse("etcd://10.0.0.1:2379,etcd-2.local:2379,[::1]:2380/racks/a").unwrap();
        assert_eq!(
            url.endpoints,
            ["10.0.0.1:2379", "etcd-2.local:2379", "[::1]:2380"]
        );
        assert_eq!(url.key(), "/racks/a/registry");
        assert_eq!(parse(&url.to_string()).unwrap(), url);
        for text in ["etcd://a:1", "etcd://a:1/", "etcd://a:1/switchyard/"] {
            assert_eq!(parse(text).unwrap().key(), "/switchyard/registry", "{text}");
        }
    }

    #[test]
    fn what_is_no_address_of_etcd_is_refused_with_an_example() {
        for text in [
            "http://a:1",
            "etcd://",
            "etcd://a",
            "etcd://a:0",
            "etcd://a:99999",
            "etcd://:1",
            "etcd://a:1,",
            "etcd://a:1,b",
            "etcd://user:word@a:1",
            "etcd://::1:5",
            "etcd://[a]:5",
            "etcd://http://a:1",
        ] {
            assert!(
                parse(text).unwrap_err().contains("etcd://10.0.0.1:2379"),
                "{text}"
            );
        }
        let many = ["a:1"; ENDPOINTS_MAX + 1].join(",");
        for text in [
            format!("etcd://{many}"),
            "etcd://a:1/a//b".into(),
            "etcd://a:1/a b".into(),
        ] {
            assert!(parse(&text).is_err(), "{text}");
        }
    }
}

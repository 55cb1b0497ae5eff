//! `etcd://HOST:PORT[,HOST:PORT…][/PREFIX][?user=NAME&password-file=FILE]`: where a registry in etcd is. With TLS it is
//! `etcds://…[?ca=FILE&cert=FILE&key=FILE]`. Secrets are in files, as everybody on a machine sees what a command is started with.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Begins the text of an address.
pub const SCHEME: &str = "etcd://";
/// The same, of an etcd that is asked with TLS.
pub const TLS_SCHEME: &str = "etcds://";
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
    /// The members are asked with TLS.
    pub tls: Option<Tls>,
    /// The user at an etcd with authentication.
    pub user: Option<User>,
}

/// Files in PEM format. They are read again after a connection has failed, so that they may be renewed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// Certificates of the authorities that may have issued the members' certificates; those that browsers know, if unset.
    pub ca: Option<PathBuf>,
    /// The client's certificate, with its chain, and its key.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// A user of etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Its name.
    pub name: String,
    /// The password is the first line of this file.
    pub password_file: PathBuf,
}

impl EtcdUrl {
    /// True if a text is meant to be such an address.
    pub fn is_named(text: &str) -> bool {
        text.starts_with(SCHEME) || text.starts_with(TLS_SCHEME)
    }

    /// The key that has the records.
    pub fn key(&self) -> String {
        format!("/{}/registry", self.prefix)
    }
}

impl fmt::Display for EtcdUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls.is_some() { TLS_SCHEME } else { SCHEME };
        write!(f, "{scheme}{}/{}", self.endpoints.join(","), self.prefix)
    }
}

impl FromStr for EtcdUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let example = "write for example etcd://10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379/switchyard";
        let (rest, has_tls) = match (text.strip_prefix(SCHEME), text.strip_prefix(TLS_SCHEME)) {
            (Some(rest), _) => (rest, false),
            (None, Some(rest)) => (rest, true),
            (None, None) => {
                return Err(format!(
                    "`{text}` does not begin with {SCHEME} or {TLS_SCHEME}: {example}"
                ));
            }
        };
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        let options = UrlOptions::parse(options, has_tls)?;
        let (hosts, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = match prefix.trim_end_matches('/') {
            "" => PREFIX,
            prefix => prefix,
        };
        if hosts.contains('@') {
            return Err(format!(
                "`{text}` has a user before `@`: write it behind the prefix, as ?user=NAME&password-file=FILE; {example}"
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
            tls: options.tls,
            user: options.user,
        })
    }
}

/// What is behind the question mark.
struct UrlOptions {
    tls: Option<Tls>,
    user: Option<User>,
}

impl UrlOptions {
    /// A value goes to the next `&`, and is taken as it is.
    fn parse(text: &str, has_tls: bool) -> Result<Self, String> {
        const KEYS: [&str; 5] = ["ca", "cert", "key", "user", "password-file"];
        let mut values: [Option<&str>; KEYS.len()] = [None; KEYS.len()];
        for item in text.split('&').filter(|item| !item.is_empty()) {
            let (key, value) = item.split_once('=').unwrap_or((item, ""));
            let place = KEYS.iter().position(|known| *known == key);
            let place = place.filter(|_| !value.is_empty()).ok_or_else(|| {
                format!(
                    "`{item}` is no option of an etcd: write {}, each with =VALUE",
                    KEYS.join(", ")
                )
            })?;
            if values[place].replace(value).is_some() {
                return Err(format!("`{key}` is there twice: write it once"));
            }
        }
        let [ca, cert, key, user, password] = values;
        if !has_tls && (ca.is_some() || cert.is_some() || key.is_some()) {
            return Err(format!(
                "ca, cert and key are for an etcd with TLS: write {TLS_SCHEME}"
            ));
        }
        let client = match (cert, key) {
            (Some(cert), Some(key)) => Some((cert.into(), key.into())),
            (None, None) => None,
            _ => {
                return Err("a client's certificate needs its key: write both cert=FILE and key=FILE".into());
            }
        };
        let user = match (user, password) {
            (Some(name), Some(file)) => Some(User {
                name: name.to_owned(),
                password_file: file.into(),
            }),
            (None, None) => None,
            _ => return Err("a user needs a password: write both user=NAME and password-file=FILE".into()),
        };
        let ca = ca.map(PathBuf::from);
        Ok(Self {
            tls: has_tls.then_some(Tls { ca, client }),
            user,
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
    fn certificates_and_a_user_are_named_behind_the_prefix() {
        let url =
            parse("etcds://a:1,b:2/x?ca=/tls/ca.pem&cert=c&key=k&user=rack&password-file=/p=1").unwrap();
        assert_eq!(url.to_string(), "etcds://a:1,b:2/x", "no file is shown");
        let tls = Tls {
            ca: Some("/tls/ca.pem".into()),
            client: Some(("c".into(), "k".into())),
        };
        assert_eq!(url.tls, Some(tls));
        let user = User {
            name: "rack".into(),
            password_file: "/p=1".into(),
        };
        assert_eq!(url.user, Some(user));
        assert_eq!(parse("etcds://a:1").unwrap().tls, Some(Tls::default()));
        assert_eq!(parse("etcd://a:1?user=u&password-file=p").unwrap().tls, None);
        for (text, remedy) in [
            ("etcd://a:1?ca=x", "etcds://"),
            ("etcds://a:1?cert=x", "both cert=FILE and key=FILE"),
            ("etcds://a:1?user=x", "both user=NAME and password-file=FILE"),
            ("etcds://a:1?ca=", "no option"),
            ("etcds://a:1/x?password=x", "password-file"),
            ("etcds://a:1?ca=x&ca=y", "once"),
        ] {
            let refusal = parse(text).unwrap_err();
            assert!(refusal.contains(remedy), "{text}: {refusal}");
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

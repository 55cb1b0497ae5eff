//! Control addresses as commands take them: one gateway's, or those of several, with commas between.

/// Checks what `--control` names, and returns it as it was written.
pub fn check(text: &str) -> Result<String, String> {
    match text.split(',').find(|address| base_of(address).is_none()) {
        None => Ok(text.to_owned()),
        Some(address) => Err(format!(
            "`{address}` is no control address: write http://HOST:PORT, for example http://127.0.0.1:9180; of several \
             gateways, all of them with commas between"
        )),
    }
}

/// The beginnings of the URLs at these addresses; one that is none stays as it is.
pub fn bases(text: &str) -> Vec<String> {
    let bases = text.split(',');
    bases
        .map(|address| base_of(address).unwrap_or_else(|| address.to_owned()))
        .collect()
}

/// `http://HOST:PORT` of an address, with or without the scheme.
fn base_of(address: &str) -> Option<String> {
    let address = address.trim();
    let authority = match address.split_once("://") {
        Some((scheme, rest)) => scheme.eq_ignore_ascii_case("http").then_some(rest)?,
        None => address,
    };
    let authority = authority.trim_end_matches('/');
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']')?;
            host.parse::<std::net::Ipv6Addr>().ok()?;
            (host, port.strip_prefix(':'))
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let is_host = !host.is_empty() && (authority.starts_with('[') || host.chars().all(is_name));
    let is_port = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0));
    (is_host && is_port).then(|| format!("http://{authority}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_address_is_refused_with_an_example() {
        for text in [
            "",
            "http://",
            "http://:9180",
            "http://127.0.0.1:99999",
            "http://127.0.0.1:0",
            "127.0.0.1:x",
            "https://10.0.0.1:9180",
            "http://10.0.0.1:9180/v1",
            "http://a b:9180",
            "http://[::1:9180",
            "http://10.0.0.1:9180,",
        ] {
            let refusal = check(text).unwrap_err();
            assert!(refusal.contains("no control address"), "{text}: {refusal}");
        }
    }

    #[test]
    fn addresses_are_those_of_one_gateway_or_of_several() {
        for (text, expected) in [
            ("http://127.0.0.1:9180/", vec!["http://127.0.0.1:9180"]),
            ("gw-1.rack:9180", vec!["http://gw-1.rack:9180"]),
            (
                "http://[::1]:9180,10.0.0.2:9180",
                vec!["http://[::1]:9180", "http://10.0.0.2:9180"],
            ),
        ] {
            assert_eq!(check(text).as_deref(), Ok(text));
            assert_eq!(bases(text), expected, "{text}");
        }
    }
}

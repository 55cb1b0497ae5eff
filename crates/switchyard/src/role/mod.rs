//! The roles that a process takes in a rack: a whole rack (`switchyard up`), or one part (`tor`, `node`, `gateway`), so
//! that a rack can span machines.

pub mod gateway;
pub mod node;
pub mod tor;
pub mod up;

use crate::config::Config;
use crate::control::server::{self, Server};
use crate::failure::Failure;
use crate::launch::Says;
use crate::operator::{About, At, Part};
use anyhow::bail;
use base::Addr;
use rack::uplink::TORS_MAX;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::PathBuf;
use std::sync::Arc;

/// The only host of a process.
const FIRST: At = At { core: 0, host: 0 };

/// An address as other hosts reach it: a real IP and port.
fn reachable(flag: &str, address: SocketAddrV4) -> anyhow::Result<Addr> {
    if *address.ip() == Ipv4Addr::UNSPECIFIED || address.port() == 0 {
        bail!(Failure::Usage(format!(
            "--{flag} {address}: other parts must reach this address: name this machine's own IPv4 address and a port"
        )));
    }
    Ok(Addr::new(address.ip().octets(), address.port()))
}

/// The addresses of a rack's ToRs, the preferred one first.
fn tors(addresses: &[SocketAddrV4]) -> anyhow::Result<Vec<Addr>> {
    let mut tors = Vec::new();
    for &address in addresses {
        let tor = reachable("tor", address)?;
        if tors.contains(&tor) {
            bail!(Failure::Usage(format!(
                "--tor {address} is named twice: name each ToR once"
            )));
        }
        tors.push(tor);
    }
    if tors.len() > TORS_MAX {
        bail!(Failure::Usage(format!(
            "--tor is named {} times: a rack has one ToR or two",
            tors.len()
        )));
    }
    Ok(tors)
}

/// Description of a process.
fn about(role: &'static str, dir: Option<PathBuf>, config: &Config) -> About {
    About {
        role,
        dir,
        timing: config.timing.name.clone(),
        replicas: config.replicas,
        durability: config.durability,
        isolation: config.isolation,
        heal: config.heal,
        levels: config.levels,
    }
}

/// Control server of a part, if it is to have one.
fn serve_control(control: Option<SocketAddr>, part: &Arc<Part>) -> anyhow::Result<Option<Server>> {
    control
        .map(|address| Server::start(server::bind(address)?, Arc::clone(part)))
        .transpose()
}

/// Tells that a part without volumes is ready.
fn ready(part: &str, address: Addr, server: Option<&Server>, says: &Says) {
    let control = server.map(|server| format!("http://{}", server.address()));
    if says.json {
        let metrics = control.as_ref().map(|control| format!("{control}/metrics"));
        let line = serde_json::json!({
            "part": part, "address": address.to_string(), "control": control, "metrics": metrics,
            "pid": std::process::id(),
        });
        println!("{line}");
    } else {
        println!(
            "{part} ready at {address}/udp{}",
            control.map(|url| format!(", control {url}")).unwrap_or_default()
        );
    }
    crate::out::flush();
}

#[cfg(test)]
mod tests {
    use super::{reachable, tors};

    #[test]
    fn a_rack_has_one_tor_or_two() {
        let addresses = |ends: &[u8]| -> Vec<std::net::SocketAddrV4> {
            ends.iter()
                .map(|end| format!("10.0.0.{end}:8888").parse().unwrap())
                .collect()
        };
        for (ends, count) in [
            (&[1][..], Some(1)),
            (&[2, 1], Some(2)),
            (&[1, 1], None),
            (&[1, 2, 3], None),
        ] {
            assert_eq!(
                tors(&addresses(ends)).ok().map(|tors| tors.len()),
                count,
                "{ends:?}"
            );
        }
        assert_eq!(tors(&addresses(&[2, 1])).unwrap()[0].to_string(), "10.0.0.2:8888");
    }

    #[test]
    fn an_address_that_others_cannot_reach_is_refused() {
        assert!(reachable("listen", "0.0.0.0:8888".parse().unwrap()).is_err());
        assert!(reachable("listen", "10.0.0.1:8888".parse().unwrap()).is_ok());
    }
}

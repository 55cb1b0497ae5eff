//! `switchyard tcp status`: the ports of a hub, as the hub tells them.

use crate::failure::Failure;
use anyhow::Context;
use nic::hub::{HubStatus, PortCounters, PortStatus};
use nic::shared::{AttachError, status};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Frames and bytes that went by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Traffic {
    frames_in: u64,
    bytes_in: u64,
    frames_out: u64,
    bytes_out: u64,
    dropped: u64,
    forged: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Port {
    name: String,
    pid: u32,
    uid: u32,
    mac: String,
    queues: usize,
    /// Ports to which it has got a link, past the hub.
    direct: usize,
    #[serde(flatten)]
    traffic: Traffic,
}

/// A hub, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    pid: u32,
    ports_max: usize,
    mtu: u16,
    uplink: Option<Traffic>,
    ports: Vec<Port>,
}

impl From<PortCounters> for Traffic {
    fn from(counters: PortCounters) -> Self {
        Self {
            frames_in: counters.frames_in,
            bytes_in: counters.bytes_in,
            frames_out: counters.frames_out,
            bytes_out: counters.bytes_out,
            dropped: counters.dropped,
            forged: counters.forged,
        }
    }
}

impl From<&PortStatus> for Port {
    fn from(port: &PortStatus) -> Self {
        let mac: Vec<_> = port.mac.0.iter().map(|byte| format!("{byte:02x}")).collect();
        Self {
            name: port.name.clone(),
            pid: port.pid,
            uid: port.uid,
            mac: mac.join(":"),
            queues: port.queues,
            direct: port.introduced,
            traffic: port.counters.into(),
        }
    }
}

impl From<&HubStatus> for Status {
    fn from(hub: &HubStatus) -> Self {
        Self {
            pid: std::process::id(),
            ports_max: hub.ports_max,
            mtu: hub.mtu,
            uplink: hub.uplink.map(Traffic::from),
            ports: hub.ports.iter().map(Port::from).collect(),
        }
    }
}

/// Prints it.
pub fn run(socket: &Path, json: bool) -> anyhow::Result<()> {
    let text = status(socket).map_err(|error| match error {
        AttachError::NoHub(_) => Failure::NoHub {
            path: socket.display().to_string(),
            option: "--socket",
        }
        .into(),
        error => anyhow::Error::from(error),
    })?;
    let status: Status = serde_json::from_str(&text).context("the hub answers in another version")?;
    if json {
        println!("{}", serde_json::to_string_pretty(&status)?);
        return Ok(());
    }
    println!(
        "hub at {}, pid {}, {} of {} ports, MTU {}",
        socket.display(),
        status.pid,
        status.ports.len(),
        status.ports_max,
        status.mtu
    );
    println!(
        "{:<20} {:>8} {:<17} {:>6} {:>6} {:>11} {:>11} {:>9} {:>9}",
        "port", "pid", "address", "queues", "direct", "frames in", "out", "dropped", "forged"
    );
    if let Some(uplink) = &status.uplink {
        print_line("(uplink)", ["", "", "", ""], uplink);
    }
    for port in &status.ports {
        let [pid, queues, direct] = [
            port.pid.to_string(),
            port.queues.to_string(),
            port.direct.to_string(),
        ];
        print_line(&port.name, [&pid, &port.mac, &queues, &direct], &port.traffic);
    }
    Ok(())
}

fn print_line(name: &str, [pid, mac, queues, direct]: [&str; 4], traffic: &Traffic) {
    println!(
        "{name:<20} {pid:>8} {mac:<17} {queues:>6} {direct:>6} {:>11} {:>11} {:>9} {:>9}",
        traffic.frames_in, traffic.frames_out, traffic.dropped, traffic.forged
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use tcp::addr::Mac;

    #[test]
    fn a_status_is_read_as_it_was_told() {
        let hub = HubStatus {
            ports_max: 4,
            mtu: 1500,
            uplink: Some(PortCounters::default()),
            ports: vec![PortStatus {
                name: "redis".to_owned(),
                pid: 7,
                uid: 1000,
                mac: Mac([2, 0, 0, 0, 0, 0x1f]),
                queues: 1,
                introduced: 2,
                counters: PortCounters {
                    frames_in: 3,
                    ..PortCounters::default()
                },
            }],
        };
        let status = Status::from(&hub);
        let text = serde_json::to_string(&status).unwrap();
        assert_eq!(serde_json::from_str::<Status>(&text).unwrap(), status);
        assert!(text.contains("02:00:00:00:00:1f"), "{text}");
    }
}

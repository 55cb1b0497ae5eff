//! `switchyard tcp serve`: the hub.

use super::status::Status;
use crate::failure::{Failure, within};
use crate::launch;
use anyhow::Context;
use clap::Args;
use nic::hub::{Hub, HubOptions};
use nic::{Frames, packet, tap};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A signal ends the sleep; one that comes just before it is seen after so long.
const REST: Duration = Duration::from_millis(250);
/// Turns with frames between two looks whether a signal has come.
const LOOK_EVERY: u32 = 1024;

/// `switchyard tcp serve`.
#[derive(Args)]
pub struct ServeArgs {
    /// Interface of the kernel behind which other hosts are (AF_PACKET; needs CAP_NET_RAW)
    #[arg(long, value_name = "IFACE", conflicts_with = "tap")]
    uplink: Option<String>,
    /// TAP device to make, at which this host's kernel is reached (needs CAP_NET_ADMIN)
    #[arg(long, value_name = "NAME")]
    tap: Option<String>,
    /// Ports at a time; each has half a MiB of memory for each of its queues
    #[arg(long, value_name = "N", default_value_t = 64)]
    ports: usize,
    /// Bytes of the longest packet, if there is no uplink
    #[arg(long, value_name = "BYTES", default_value_t = 1500)]
    mtu: u16,
    /// Carry all frames in this process: ports get no links to each other
    #[arg(long)]
    no_direct: bool,
}

/// Runs it.
pub fn run(args: &ServeArgs, socket: &Path, json: bool) -> anyhow::Result<()> {
    within("--ports", args.ports, 1..=1024)?;
    within("--mtu", args.mtu, 576..=9000)?;
    // Each port has a doorbell for each queue and its memory.
    launch::allow_files(64 + args.ports as u64 * (nic::shared::QUEUES_MAX as u64 + 1));
    let options = HubOptions {
        ports_max: args.ports,
        mtu: args.mtu,
        seed: os::seed(),
        introduces: !args.no_direct,
    };
    if let Some(directory) = socket.parent() {
        std::fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    }
    let uplink = uplink(args)?;
    let hub = Hub::open(socket, uplink, options).map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            let text = format!("a hub serves at {} already", socket.display());
            anyhow::Error::from(Failure::InUse(text))
        }
        _ => anyhow::Error::from(error).context(format!("cannot listen at {}", socket.display())),
    })?;
    let stops = Arc::new(AtomicBool::new(false));
    launch::set_at_stop(&stops);
    if json {
        println!(
            "{}",
            serde_json::json!({"socket": socket, "pid": std::process::id()})
        );
    } else {
        println!("hub at {}", socket.display());
    }
    crate::out::flush();
    serve(hub, &stops)
}

fn uplink(args: &ServeArgs) -> anyhow::Result<Option<Box<dyn Frames>>> {
    if let Some(name) = &args.uplink {
        let queues = packet::open(name, 1).with_context(|| format!("cannot open interface {name}"))?;
        return Ok(first(queues));
    }
    let Some(name) = &args.tap else {
        return Ok(None);
    };
    let queues = tap::open(name, 1).with_context(|| format!("cannot make TAP device {name}"))?;
    Ok(first(queues))
}

fn first<F: Frames + 'static>(queues: Vec<F>) -> Option<Box<dyn Frames>> {
    let first = queues.into_iter().next()?;
    Some(Box::new(first))
}

fn serve(mut hub: Hub, stops: &AtomicBool) -> anyhow::Result<()> {
    let tell = |status: &nic::hub::HubStatus| {
        serde_json::to_string(&Status::from(status)).expect("a status is JSON")
    };
    let mut turns = 0u32;
    loop {
        let count = hub.turn(&tell).context("the uplink does nothing more")?;
        turns = turns.wrapping_add(1);
        if (count == 0 || turns.is_multiple_of(LOOK_EVERY)) && stops.load(Ordering::Relaxed) {
            return Ok(());
        }
        if count == 0 {
            hub.rest(REST);
        }
    }
}

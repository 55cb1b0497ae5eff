//! What `up`, `node`, `tor` and `gateway` share: building hosts, waiting for volumes, telling what recovery found,
//! and running until a signal.

use crate::control::api;
use crate::control::server::Server;
use crate::failure::Failure;
use crate::plane::Plane;
use crate::size::Size;
use anyhow::{Context, bail};
use host::{Node, NodeConfig};
use runtime::{CoreConfig, CoreHandle, HostSpec, MediaFile, StartError};
use std::io::Write;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// A rack that is still opening volumes says so this often.
const STILL_EVERY: Duration = Duration::from_secs(5);

/// How much is told: with `--json`, standard output carries one line for scripts, and notes go to standard error.
#[derive(Clone, Copy, Debug)]
pub struct Says {
    /// One JSON line when ready instead of text.
    pub json: bool,
}

impl Says {
    /// Progress, for a person.
    pub fn note(&self, text: &str) {
        eprintln!("switchyard: {text}");
    }
}

/// SIGINT, SIGTERM and SIGHUP, one message each.
pub fn signals() -> anyhow::Result<Receiver<()>> {
    let (sender, receiver) = channel();
    ctrlc::set_handler(move || {
        let _ = sender.send(());
    })
    .context("signals cannot be handled")?;
    Ok(receiver)
}

/// A node on a formatted medium.
pub fn node_spec(config: NodeConfig, medium: MediaFile) -> HostSpec {
    HostSpec {
        bind: runtime::socket_addr(config.addr),
        medium: Some(medium),
        build: Box::new(move |site| {
            let medium = site.medium.expect("the node was given its medium");
            let node = Node::open(site.now, config, site.pool.clone(), medium)?;
            Ok(Box::new(node))
        }),
        nbd: Vec::new(),
    }
}

/// Starts a core; errors name the host and what to do.
pub fn start_core(config: CoreConfig, specs: Vec<HostSpec>, names: &[String]) -> anyhow::Result<CoreHandle> {
    runtime::start_core(config, specs).map_err(|error| match error {
        StartError::Build { host, source } => {
            let name = &names[host];
            anyhow::anyhow!(
                "{name} cannot start: {source}. `switchyard verify` on its medium tells what is damaged; to start \
                 without that medium's copies, move it away"
            )
        }
        StartError::Bind { address, source } if source.kind() == std::io::ErrorKind::AddrInUse => {
            let text = format!("{address}/udp is in use: stop what uses it, or choose other ports with --rack-port or --listen");
            Failure::InUse(text).into()
        }
        StartError::Listen { address, source } if source.kind() == std::io::ErrorKind::AddrInUse => {
            Failure::InUse(format!("{address}/tcp is in use: stop what uses it, or choose another with --nbd")).into()
        }
        error => error.into(),
    })
}

/// Tells what the recovery of the nodes here found, if anything.
pub fn print_recovery(plane: &Plane, says: &Says) -> anyhow::Result<()> {
    for id in plane.local_nodes() {
        let reports = plane.node(id, |node, _| node.recovery_reports().to_vec())?;
        for (vssd, report) in reports.into_iter().flatten() {
            let mut found = Vec::new();
            if report.torn > 0 {
                found.push(format!("{} unfinished writes dropped", report.torn));
            }
            if report.fell_back {
                found.push("an older checkpoint used".to_owned());
            }
            if report.bits_corrected > 0 {
                found.push(format!(
                    "{} flipped bits of metadata corrected",
                    report.bits_corrected
                ));
            }
            if !report.damaged.is_empty() {
                found.push(format!(
                    "{} pages damaged, read from other copies",
                    report.damaged.len()
                ));
            }
            if !found.is_empty() {
                says.note(&format!("node {}, vSSD {}: {}", id.0, vssd.0, found.join(", ")));
            }
        }
    }
    Ok(())
}

/// Waits until every volume is ready or failed; failed ones are told. A signal ends the wait.
pub fn await_volumes(plane: &Plane, says: &Says, signals: &Receiver<()>) -> anyhow::Result<Vec<api::Volume>> {
    let mut still = Instant::now() + STILL_EVERY;
    loop {
        let volumes = plane.settle()?;
        let opening = volumes.iter().filter(|volume| volume.state == "opening").count();
        if opening == 0 {
            for problem in volumes.iter().filter_map(|volume| volume.problem.as_ref()) {
                says.note(problem);
            }
            return Ok(volumes);
        }
        if Instant::now() >= still {
            says.note(&format!("{opening} volumes wait for their nodes"));
            still = Instant::now() + STILL_EVERY;
        }
        match signals.recv_timeout(Duration::from_millis(5)) {
            Ok(()) => bail!("stopped before every volume was ready"),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => bail!("signals are no longer handled"),
        }
        if !plane.is_running() {
            bail!("a core has died of a bug: its message is above");
        }
    }
}

/// One JSON line for scripts.
pub fn print_ready_json(volumes: &[api::Volume], control: &str) {
    let volumes: Vec<_> = volumes
        .iter()
        .map(|volume| {
            serde_json::json!({
                "name": volume.name, "uri": volume.uri, "size_bytes": volume.size_bytes, "state": volume.state,
            })
        })
        .collect();
    let line = serde_json::json!({
        "volumes": volumes, "control": control, "metrics": format!("{control}/metrics"), "pid": std::process::id(),
    });
    println!("{line}");
    let _ = std::io::stdout().flush();
}

/// Where volumes are, for a person.
pub fn print_volumes(volumes: &[api::Volume]) {
    for volume in volumes {
        println!(
            "volume {}  {}  {}  {}",
            volume.name,
            volume.uri,
            Size(volume.size_bytes),
            volume.state
        );
    }
}

/// Serves until a signal, then stops cleanly.
pub fn serve(
    plane: Arc<Plane>,
    server: impl Into<Option<Server>>,
    signals: &Receiver<()>,
    says: &Says,
) -> anyhow::Result<()> {
    let server = server.into();
    loop {
        match signals.recv_timeout(Duration::from_secs(1)) {
            Ok(()) => break,
            Err(RecvTimeoutError::Timeout) if plane.is_running() => {}
            Err(RecvTimeoutError::Timeout) => bail!("a core has died of a bug: its message is above"),
            Err(RecvTimeoutError::Disconnected) => bail!("signals are no longer handled"),
        }
    }
    says.note("stopping");
    drop(server);
    // A request of the control server may still hold the plane for a moment.
    let until = Instant::now() + Duration::from_secs(2);
    let mut plane = plane;
    let plane = loop {
        match Arc::try_unwrap(plane) {
            Ok(plane) => break plane,
            Err(shared) if Instant::now() < until => {
                plane = shared;
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(_) => bail!("a control request did not end; what was flushed is durable"),
        }
    };
    if !plane.stop()? {
        says.note("some caches were not written back in time; what was flushed is durable");
    }
    Ok(())
}

//! The common part of `up`, `node`, `tor` and `gateway`: building hosts, waiting for volumes, telling what recovery found,
//! and running until a signal.

use crate::control::api;
use crate::control::server::Server;
use crate::datadir;
use crate::events;
use crate::failure::Failure;
use crate::operator::Part;
use crate::size::Size;
use anyhow::{Context, bail};
use host::{Node, NodeConfig};
use runtime::{CoreConfig, CoreHandle, HostSpec, Medium, StartError};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Between two looks whether every core is alive.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// A rack that is still opening volumes says so this often.
const STILL_EVERY: Duration = Duration::from_secs(5);
/// A start no longer waits for volumes whose nodes are silent for so long.
const NODES_LATE_AFTER: Duration = Duration::from_secs(15);

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

/// SIGINT and SIGTERM, and SIGHUP of a process that was started at a terminal, which is gone then. Others have nothing to read anew, and
/// go on.
///
/// Until [`serving`](Signals::serving) there is nothing to write back, and each step of a start (formatting, a new
/// volume's record) survives being cut: a signal ends the process at once, however long the step would take. From then
/// on signals are messages, so that the stop is a clean one.
#[derive(Debug)]
pub struct Signals {
    serves: Arc<AtomicBool>,
    received: Receiver<()>,
}

/// Lets this process have `wanted` open files, or as many as it may; tells how many it may have then.
pub fn allow_files(wanted: u64) -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let (soft, hard) = (
        limit.current.unwrap_or(u64::MAX),
        limit.maximum.unwrap_or(u64::MAX),
    );
    if soft >= wanted {
        return soft;
    }
    let raised = Rlimit {
        current: Some(wanted.min(hard)),
        ..limit
    };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => wanted.min(hard),
        Err(_) => soft,
    }
}

/// Open files of a medium: two ways to it.
pub const FILES_OF_MEDIUM: u64 = 2;

/// Open files of a core: its ring, its poller, its mailbox, and the spare.
pub const FILES_OF_CORE: u64 = 8;

/// Connections of clients for each of those cores that have them, as far as this process may have open files for them beside `others`.
pub fn connections(wanted: u16, others: u64, cores: u64, says: &Says) -> anyhow::Result<u16> {
    const FILES_OF_PROCESS: u64 = 64;
    let others = FILES_OF_PROCESS + FILES_OF_CORE * cores + others;
    let allowed = allow_files(others + cores * u64::from(wanted));
    let room = allowed.saturating_sub(others) / cores;
    let connections = wanted.min(u16::try_from(room).unwrap_or(wanted));
    if connections == 0 {
        bail!(
            "this process may have {allowed} open files, and needs {}: raise `ulimit -n`",
            others + cores
        );
    }
    if connections < wanted {
        says.note(&format!(
            "--connections is {connections}, not {wanted}: this process may have {allowed} open files. Raise `ulimit -Hn` \
             for more"
        ));
    }
    Ok(connections)
}

/// Handles signals from now on.
pub fn signals() -> anyhow::Result<Signals> {
    let (sender, received) = channel();
    let serves = Arc::new(AtomicBool::new(false));
    let shared = Arc::clone(&serves);
    let mut caught =
        signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot handle signals")?;
    let has_terminal = std::io::stderr().is_terminal();
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            for signal in caught.forever() {
                if signal != SIGHUP || has_terminal {
                    on_signal(&shared, &sender);
                }
            }
        })?;
    Ok(Signals { serves, received })
}

/// SIGINT, SIGTERM and SIGHUP set a flag from now on, and do nothing else.
pub fn set_at_stop(flag: &Arc<AtomicBool>) {
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // These can be caught.
        let _ = signal_hook::flag::register(signal, Arc::clone(flag));
    }
}

/// Runs on the thread that signals wake.
fn on_signal(serves: &AtomicBool, sender: &Sender<()>) {
    if !serves.load(Ordering::SeqCst) {
        eprintln!("switchyard: stopped before it was ready: the next start completes what this one began");
        std::process::exit(i32::from(crate::failure::FAILED));
    }
    // Nobody listens when the process is ending anyway.
    let _ = sender.send(());
}

impl Signals {
    /// Data may be written from now on.
    pub fn serving(&self) {
        self.serves.store(true, Ordering::SeqCst);
    }

    /// True when a signal came within this time.
    pub fn wait(&self, within: Duration) -> anyhow::Result<bool> {
        match self.received.recv_timeout(within) {
            Ok(()) => Ok(true),
            Err(RecvTimeoutError::Timeout) => Ok(false),
            Err(RecvTimeoutError::Disconnected) => bail!("the handler of signals has ended"),
        }
    }
}

/// A node on a formatted medium.
pub fn node_spec(config: NodeConfig, medium: Medium) -> HostSpec {
    HostSpec {
        bind: Some(runtime::socket_addr(config.addr)),
        medium: Some(medium),
        build: Box::new(move |site| {
            let medium = site.medium.expect("the node was given its medium");
            let boot_min = datadir::seconds();
            let config = NodeConfig { boot_min, ..config };
            let node = Node::open(site.now, config, site.pool.clone(), medium)?;
            Ok(Box::new(node))
        }),
        listen: Vec::new(),
    }
}

/// Starts a core; errors name the host and what to do.
pub fn start_core(config: CoreConfig, specs: Vec<HostSpec>, names: &[String]) -> anyhow::Result<CoreHandle> {
    let config = CoreConfig {
        events: Some(events::teller()),
        ..config
    };
    runtime::start_core(config, specs).map_err(|error| match error {
        StartError::Build { host, source } => {
            let name = &names[host];
            // Another node's medium is sound.
            let is_other = matches!(
                source.downcast_ref(),
                Some(host::node::StartError::OtherNode(_))
            );
            let remedy = match is_other {
                true => "",
                false => {
                    ". `switchyard verify` on its medium shows the damage; to start without that medium's copies, move it away"
                }
            };
            anyhow::anyhow!("{name} cannot start: {source}{remedy}")
        }
        StartError::Bind { address, source } if source.kind() == std::io::ErrorKind::AddrInUse => {
            let text = format!(
                "{address}/udp is in use: stop its user, or choose other ports with --rack-port or --listen"
            );
            Failure::InUse(text).into()
        }
        StartError::Listen { address, source } if source.kind() == std::io::ErrorKind::AddrInUse => {
            Failure::InUse(format!(
                "{address}/tcp is in use: stop its user, or choose another address with --nbd or --nvme"
            ))
            .into()
        }
        error => error.into(),
    })
}

/// Tells what the recovery of the nodes here found, if anything.
pub fn print_recovery(part: &Part, says: &Says) -> anyhow::Result<()> {
    for id in part.local_nodes() {
        let reports = part.node(id, |node, _| node.recovery_reports().to_vec())?;
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

/// Waits until every volume is ready, or says why it is not, but not for ever: one whose nodes stay away keeps the others from no client.
/// Those that are neither are told. `None`: a signal ended the wait.
pub fn await_volumes(
    part: &Part,
    says: &Says,
    signals: &Signals,
) -> anyhow::Result<Option<Vec<api::Volume>>> {
    let give_up = Instant::now() + NODES_LATE_AFTER;
    let mut still = Instant::now() + STILL_EVERY;
    loop {
        let volumes = part.volumes()?.what;
        let opening: Vec<_> = volumes
            .iter()
            .filter(|volume| volume.state == "opening" && volume.problem.is_none())
            .collect();
        let now = Instant::now();
        if opening.is_empty() || now >= give_up {
            for problem in volumes.iter().filter_map(|volume| volume.problem.as_ref()) {
                says.note(problem);
            }
            for volume in opening {
                says.note(&format!(
                    "volume `{}` is not served: its nodes do not answer, and it opens when they do",
                    volume.name
                ));
            }
            return Ok(Some(volumes));
        }
        if now >= still {
            says.note(&format!("{} volumes wait for their nodes", opening.len()));
            still = now + STILL_EVERY;
        }
        if signals.wait(Duration::from_millis(5))? {
            return Ok(None);
        }
        if !part.is_running() {
            bail!("a core stopped because of a bug: see its message above");
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
                "uuid": volume.uuid, "nqn": volume.nqn,
            })
        })
        .collect();
    let line = serde_json::json!({
        "volumes": volumes, "control": control, "metrics": format!("{control}/metrics"), "pid": std::process::id(),
    });
    println!("{line}");
    crate::out::flush();
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
        if let Some(nqn) = &volume.nqn {
            println!("volume {}  {nqn}", volume.name);
        }
    }
}

/// Serves until a signal, then stops cleanly.
pub fn serve(
    part: Arc<Part>,
    server: impl Into<Option<Server>>,
    signals: &Signals,
    says: &Says,
) -> anyhow::Result<()> {
    while !signals.wait(LOOK_EVERY)? {
        if !part.is_running() {
            bail!("a core stopped because of a bug: see its message above");
        }
    }
    stop(part, server, says)
}

/// Stops cleanly before every volume was ready, which is a failed start.
pub fn stop_early(part: Arc<Part>, server: Server, says: &Says) -> anyhow::Result<()> {
    stop(part, server, says)?;
    bail!("stopped before every volume was ready")
}

/// Ends the control server, then the rack.
fn stop(part: Arc<Part>, server: impl Into<Option<Server>>, says: &Says) -> anyhow::Result<()> {
    says.note("stopping");
    let mut clean = part.stop_serving()?;
    drop(server.into());
    // A request of the control server may still hold it for a moment.
    let until = Instant::now() + Duration::from_secs(2);
    let mut part = part;
    let part = loop {
        match Arc::try_unwrap(part) {
            Ok(part) => break part,
            Err(shared) if Instant::now() < until => {
                part = shared;
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(_) => bail!("a control request did not end; flushed data are durable"),
        }
    };
    clean &= part.stop()?;
    if !clean {
        says.note("some caches were not written back in time; what was flushed is durable");
    }
    Ok(())
}

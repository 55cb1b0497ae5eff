//! Starting a core, and what other threads may do with a running one: call into its hosts, read its counters, stop
//! it. All of this is the control edge: it may wait and allocate.

use crate::core::{Command, Core, Share, Sibling};
use crate::counters::{Counters, Stats};
use crate::homes::Homes;
use crate::local::{LocalVolume, numbered};
use crate::nvme::NvmeTarget;
use crate::poller::Wake;
use crate::spans::{SpanRow, Table};
use crate::switch::configuration;
use crate::udp::kernel_drops;
use crate::{BoxError, CoreConfig, HostSpec, RackHost, cpu};
use base::Instant;
use std::io;
use std::mem::take;
use std::net::{SocketAddr, SocketAddrV4, UdpSocket};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::thread::{Builder, JoinHandle};
use thiserror::Error;

/// Why a core did not start. Nothing of it is left behind.
#[derive(Debug, Error)]
pub enum StartError {
    /// The thread cannot be made.
    #[error("no thread for the core: {0}")]
    Thread(#[source] io::Error),
    /// The thread cannot be pinned.
    #[error("processor {cpu} cannot be used: {source}")]
    Pin {
        /// The processor asked for.
        cpu: usize,
        /// The system's reason.
        source: io::Error,
    },
    /// The system refuses epoll or an eventfd.
    #[error("the core's event sources cannot be set up: {0}")]
    Poller(#[source] io::Error),
    /// The system refuses io_uring: too old (before 5.6), disabled by sysctl, or by a container's seccomp profile.
    #[error("io_uring is not available (kernel.io_uring_disabled, or a container's seccomp profile?): {0}")]
    Ring(#[source] io::Error),
    /// The pool cannot even give every socket its receive buffers.
    #[error("a pool of {pool_pages} pages is too small: {needed_pages} are needed for the sockets alone")]
    PoolTooSmall {
        /// As configured.
        pool_pages: usize,
        /// The least that would do.
        needed_pages: usize,
    },
    /// A host's UDP address cannot be bound.
    #[error("{address}/udp cannot be bound: {source}")]
    Bind {
        /// The address.
        address: SocketAddrV4,
        /// The system's reason.
        source: io::Error,
    },
    /// A host's NBD address cannot be listened on.
    #[error("{address}/tcp cannot be listened on: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
    /// A host could not be built.
    #[error("host {host} cannot start: {source}")]
    Build {
        /// Its place in the list.
        host: usize,
        /// Its reason.
        source: BoxError,
    },
    /// Only one core can drive a disk.
    #[error("a vSSD is served by one core, and {cores} were asked for")]
    SeveralCores {
        /// The cores asked for.
        cores: usize,
    },
    /// Building a host panicked: a bug. The message is on standard error.
    #[error("a host panicked while it was built")]
    Panicked,
}

/// The core has stopped, or has died of a bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the core has stopped")]
pub struct Stopped;

/// What a started core reports.
#[derive(Default)]
pub(crate) struct Started {
    pub addresses: Vec<Option<SocketAddrV4>>,
    pub nbd: Vec<Vec<SocketAddr>>,
    pub nvme: Vec<Option<SocketAddr>>,
    pub sockets: Vec<UdpSocket>,
    pub target_nbd: Vec<SocketAddr>,
    pub target_nvme: Vec<SocketAddr>,
}

/// A running core. Dropping the handle stops it.
#[derive(Debug)]
pub struct CoreHandle {
    commands: Sender<Command>,
    wake: Arc<Wake>,
    counters: Arc<Counters>,
    spans: Option<Arc<Table>>,
    thread: Option<JoinHandle<()>>,
    addresses: Vec<Option<SocketAddrV4>>,
    nbd: Vec<Vec<SocketAddr>>,
    nvme: Vec<Option<SocketAddr>>,
    sockets: Vec<UdpSocket>,
    target_nbd: Vec<SocketAddr>,
    target_nvme: Vec<SocketAddr>,
}

/// Where a core's commands come from.
struct Line {
    commands: Sender<Command>,
    receiver: Receiver<Command>,
    wake: Arc<Wake>,
}

impl Line {
    fn new() -> Result<Self, StartError> {
        let (commands, receiver) = channel();
        let wake = Arc::new(Wake::new().map_err(StartError::Poller)?);
        Ok(Self {
            commands,
            receiver,
            wake,
        })
    }
}

/// Volumes, and where clients reach them.
#[derive(Debug)]
pub struct TargetSpec {
    /// The volumes; their numbers are their places.
    pub volumes: Vec<LocalVolume>,
    /// Where NBD clients connect; port 0 takes any free one.
    pub nbd: Vec<SocketAddr>,
    /// Where NVMe/TCP hosts connect, and what they find there.
    pub nvme: Vec<SocketAddr>,
    /// The subsystems, whose volumes are those above.
    pub subsystems: Arc<NvmeTarget>,
}

/// Starts a target: volumes served by one core per configuration, the first of which listens. Connections move between
/// the cores as the policy says. Disks among the volumes are the core's hosts, in
/// their order; there is one core then.
///
/// # Panics
/// If there is no configuration, or the cores differ in what a session relies on: a connection that moves finds the same.
pub fn start_target(configs: Vec<CoreConfig>, spec: TargetSpec) -> Result<Vec<CoreHandle>, StartError> {
    assert!(!configs.is_empty(), "a target has a core");
    let sizes = |config: &CoreConfig| (config.pool_pages, config.requests_max, config.connections_max);
    let alike = configs.iter().all(|config| sizes(config) == sizes(&configs[0]));
    assert!(alike, "the cores of a target are alike");
    let TargetSpec {
        volumes,
        mut nbd,
        mut nvme,
        subsystems,
    } = spec;
    let (volumes, disks) = numbered(volumes);
    if !disks.is_empty() && configs.len() > 1 {
        return Err(StartError::SeveralCores { cores: configs.len() });
    }
    let mut disks = Some(disks);
    let lines: Vec<Line> = configs.iter().map(|_| Line::new()).collect::<Result<_, _>>()?;
    let siblings: Vec<Sibling> = lines
        .iter()
        .map(|line| Sibling {
            commands: line.commands.clone(),
            wake: Arc::clone(&line.wake),
        })
        .collect();
    let policy = configuration(&configs[0]);
    let loads = Arc::new(blockswitch::Loads::new(configs.len(), &policy));
    let homes = Arc::new(Homes::new(&policy, configs.len(), configs[0].connections_max));
    configs
        .into_iter()
        .zip(lines)
        .enumerate()
        .map(|(core, (config, line))| {
            let share = Share {
                core,
                loads: Arc::clone(&loads),
                homes: Arc::clone(&homes),
                volumes: Arc::clone(&volumes),
                nbd: take(&mut nbd),
                nvme: Arc::clone(&subsystems),
                nvme_listen: take(&mut nvme),
                siblings: siblings.clone(),
            };
            start(config, disks.take().unwrap_or_default(), Some(share), line)
        })
        .collect()
}

/// Starts a core on a thread of its own; returns when every host is bound and built.
pub fn start_core(config: CoreConfig, hosts: Vec<HostSpec>) -> Result<CoreHandle, StartError> {
    start(config, hosts, None, Line::new()?)
}

fn start(
    config: CoreConfig,
    hosts: Vec<HostSpec>,
    target: Option<Share>,
    line: Line,
) -> Result<CoreHandle, StartError> {
    let Line {
        commands,
        receiver,
        wake,
    } = line;
    let counters = Arc::new(Counters::default());
    let spans = config.spans.then(|| Arc::new(Table::new()));
    let (report, started) = sync_channel(1);
    let name = config
        .cpu
        .map_or("switchyard".into(), |cpu| format!("switchyard-{cpu}"));
    let thread = Builder::new()
        .name(name)
        .spawn({
            let (wake, counters, spans) = (Arc::clone(&wake), Arc::clone(&counters), spans.clone());
            move || {
                let pinned = match config.cpu {
                    Some(cpu) => cpu::pin(cpu).map_err(|source| StartError::Pin { cpu, source }),
                    None => Ok(()),
                };
                match pinned
                    .and_then(|()| Core::new(config, hosts, target, receiver, wake, (counters, spans)))
                {
                    Ok((mut core, started)) => {
                        // A caller that is gone has dropped the handle: the loop finds the command channel closed.
                        let _ = report.send(Ok(started));
                        core.run();
                    }
                    Err(error) => {
                        let _ = report.send(Err(error));
                    }
                }
            }
        })
        .map_err(StartError::Thread)?;
    let (thread, started) = await_start(thread, &started)?;
    let Started {
        addresses,
        nbd,
        nvme,
        sockets,
        target_nbd,
        target_nvme,
    } = started;
    Ok(CoreHandle {
        commands,
        wake,
        counters,
        spans,
        thread: Some(thread),
        addresses,
        nbd,
        nvme,
        sockets,
        target_nbd,
        target_nvme,
    })
}

/// What the core on `thread` reports; a thread without one is gone on return.
fn await_start(
    thread: JoinHandle<()>,
    started: &Receiver<Result<Started, StartError>>,
) -> Result<(JoinHandle<()>, Started), StartError> {
    let error = match started.recv() {
        Ok(Ok(started)) => return Ok((thread, started)),
        Ok(Err(error)) => error,
        Err(_) => StartError::Panicked,
    };
    let _ = thread.join();
    Err(error)
}

impl CoreHandle {
    /// Where host `host` receives rack packets, with the real port.
    ///
    /// # Panics
    /// If it has no socket.
    pub fn address(&self, host: usize) -> SocketAddrV4 {
        self.addresses[host].expect("the host was given a socket")
    }

    /// Where host `host` takes NBD clients, in the order of [`HostSpec::nbd`], with the real ports.
    pub fn nbd_addresses(&self, host: usize) -> &[SocketAddr] {
        &self.nbd[host]
    }

    /// Where host `host` takes NVMe/TCP hosts, with the real port.
    pub fn nvme_address(&self, host: usize) -> Option<SocketAddr> {
        self.nvme[host]
    }

    /// Where this core takes NBD clients of its target, with the real ports; none with all but the first.
    pub fn target_nbd_addresses(&self) -> &[SocketAddr] {
        &self.target_nbd
    }

    /// Where this core takes NVMe/TCP hosts of its target, as above.
    pub fn target_nvme_addresses(&self) -> &[SocketAddr] {
        &self.target_nvme
    }

    /// Hosts of the core.
    pub fn host_count(&self) -> usize {
        self.addresses.len()
    }

    /// Runs `f` on the core, between events, with host `host` and the time; then the host's outputs are carried out
    /// and its result is returned. Waits for it: do not call from the core itself.
    ///
    /// # Panics
    /// If there is no such host.
    pub fn call<R: Send + 'static>(
        &self,
        host: usize,
        f: impl FnOnce(&mut dyn RackHost, Instant) -> R + Send + 'static,
    ) -> Result<R, Stopped> {
        assert!(host < self.addresses.len(), "the core has this host");
        let (answer, result) = sync_channel(1);
        let job = Box::new(move |host: &mut dyn RackHost, now: Instant| {
            // Who called waits below; if it died meanwhile, nobody misses the result.
            let _ = answer.send(f(host, now));
        });
        self.commands
            .send(Command::Call { host, job })
            .map_err(|_| Stopped)?;
        self.wake.wake();
        result.recv().map_err(|_| Stopped)
    }

    /// Asks the core of a target to hand all its connections to core `to` of the same target, as application steering
    /// does: each goes when its requests under way are answered, and stays if that takes too long or `to` has no room.
    /// Nothing happens if there is no such core. The policy may bring them back.
    pub fn move_connections(&self, to: usize) -> Result<(), Stopped> {
        self.commands.send(Command::MoveAll { to }).map_err(|_| Stopped)?;
        self.wake.wake();
        Ok(())
    }

    /// The core's counters now.
    pub fn stats(&self) -> Stats {
        let mut stats = self.counters.read();
        stats.packets_dropped_kernel = self.sockets.iter().map(kernel_drops).sum();
        stats
    }

    /// Where the requests of clients spent their time, with [`CoreConfig::spans`]; else nothing.
    pub fn spans(&self) -> Vec<SpanRow> {
        self.spans.as_ref().map_or(Vec::new(), |table| table.read())
    }

    /// False when the core has died of a bug.
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Stops the core: it takes no more connections and requests, answers those it has (for at most
    /// [`CoreConfig::drain`]), waits for the media and ends. `Err` when it had died of a bug.
    pub fn stop(mut self) -> Result<(), Stopped> {
        self.end()
    }

    fn end(&mut self) -> Result<(), Stopped> {
        let Some(thread) = self.thread.take() else {
            return Ok(());
        };
        let _ = self.commands.send(Command::Stop);
        self.wake.wake();
        thread.join().map_err(|_| Stopped)
    }
}

impl Drop for CoreHandle {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

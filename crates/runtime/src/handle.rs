//! Starting a core, and what other threads may do with a running one: call into its hosts, read its counters, stop
//! it. All of this is the control edge: it may wait and allocate.

use crate::command::Command;
use crate::config::CoreConfig;
use crate::counters::{Counters, Stats};
use crate::cpu;
use crate::hosts::{HostSpec, RackHost};
use crate::local::{LocalVolume, numbered};
use crate::mailbox::{Address, Mailbox};
use crate::reactor::{Reactor, Share};
use crate::spans::{SpanRow, Table};
use crate::start::{Listening, StartError, Started};
use crate::stream::{Listen, protocols};
use crate::sync::mpsc::{Receiver, sync_channel};
use crate::sync::{Arc, Mutex};
use crate::udp::kernel_drops;
use base::Instant;
use host::target::Homes;
use std::mem::take;
use std::net::{SocketAddr, SocketAddrV4, UdpSocket};
use std::thread::{Builder, JoinHandle};
use thiserror::Error;

/// The core has stopped, or has died of a bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the core has stopped")]
pub struct Stopped;

/// A running core. Dropping the handle stops it.
#[derive(Debug)]
pub struct CoreHandle {
    commands: Address<Command>,
    counters: Arc<Counters>,
    spans: Option<Arc<Table>>,
    thread: Option<JoinHandle<()>>,
    addresses: Vec<Option<SocketAddrV4>>,
    listening: Vec<Listening>,
    sockets: Vec<UdpSocket>,
    target_listening: Listening,
}

/// Where a core's commands come from, and where they go.
type Line = (Mailbox<Command>, Address<Command>);

fn line() -> Result<Line, StartError> {
    Mailbox::new().map_err(StartError::Poller)
}

/// Volumes, and where clients reach them.
#[derive(Debug)]
pub struct TargetSpec {
    /// The volumes; their numbers are their places.
    pub volumes: Vec<LocalVolume>,
    /// Where clients connect, and what they speak.
    pub listen: Vec<Listen>,
}

/// Starts a target: volumes served by one core per configuration, the first of which listens. Connections move between
/// the cores as the policy says. Disks among the volumes are the core's hosts, in
/// their order; there is one core then.
///
/// # Panics
/// If there is no configuration, or the cores differ in what a session relies on: a connection that moves finds the same.
pub fn start_target(configs: Vec<CoreConfig>, spec: TargetSpec) -> Result<Vec<CoreHandle>, StartError> {
    assert!(!configs.is_empty(), "a target has a core");
    let alike = configs.iter().all(|config| config.target == configs[0].target);
    assert!(alike, "the cores of a target are alike");
    let TargetSpec { volumes, mut listen } = spec;
    let protocols = protocols(&listen);
    let (volumes, disks) = numbered(volumes);
    if !disks.is_empty() && configs.len() > 1 {
        return Err(StartError::SeveralCores { cores: configs.len() });
    }
    let mut disks = Some(disks);
    let lines: Vec<Line> = configs.iter().map(|_| line()).collect::<Result<_, _>>()?;
    let siblings: Vec<Address<Command>> = lines.iter().map(|(_, address)| address.clone()).collect();
    let target = &configs[0].target;
    let homes = Homes::new(target, configs.len());
    let loads = homes.loads();
    let homes = Arc::new(Mutex::new(homes));
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
                protocols: protocols.clone(),
                listen: take(&mut listen),
                siblings: siblings.clone(),
            };
            start(config, disks.take().unwrap_or_default(), Some(share), line)
        })
        .collect()
}

/// Starts a core on a thread of its own; returns when every host is bound and built.
pub fn start_core(config: CoreConfig, hosts: Vec<HostSpec>) -> Result<CoreHandle, StartError> {
    start(config, hosts, None, line()?)
}

fn start(
    config: CoreConfig,
    hosts: Vec<HostSpec>,
    target: Option<Share>,
    (mailbox, commands): Line,
) -> Result<CoreHandle, StartError> {
    let counters = Arc::new(Counters::default());
    let spans = config.spans.then(|| Arc::new(Table::new()));
    let (report, started) = sync_channel(1);
    let name = config
        .cpu
        .map_or("switchyard".into(), |cpu| format!("switchyard-{cpu}"));
    let thread = Builder::new()
        .name(name)
        .spawn({
            let (counters, spans) = (Arc::clone(&counters), spans.clone());
            move || {
                let pinned = match config.cpu {
                    Some(cpu) => cpu::pin(cpu).map_err(|source| StartError::Pin { cpu, source }),
                    None => Ok(()),
                };
                match pinned.and_then(|()| Reactor::new(config, hosts, target, mailbox, (counters, spans))) {
                    Ok((mut reactor, started)) => {
                        // A caller that is gone has dropped the handle: the loop finds the command channel closed.
                        let _ = report.send(Ok(started));
                        reactor.run();
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
        listening,
        sockets,
        target_listening,
    } = started;
    Ok(CoreHandle {
        commands,
        counters,
        spans,
        thread: Some(thread),
        addresses,
        listening,
        sockets,
        target_listening,
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

fn addresses(listening: &Listening, protocol: &str) -> Vec<SocketAddr> {
    let found = listening.iter().filter(|(name, _)| *name == protocol);
    found.map(|&(_, address)| address).collect()
}

impl CoreHandle {
    /// Where host `host` receives rack packets, with the real port.
    ///
    /// # Panics
    /// If it has no socket.
    pub fn address(&self, host: usize) -> SocketAddrV4 {
        self.addresses[host].expect("the host was given a socket")
    }

    /// Where host `host` takes clients of the protocol of this name, in the order of [`HostSpec::listen`], with the real
    /// ports.
    pub fn listening(&self, host: usize, protocol: &str) -> Vec<SocketAddr> {
        addresses(&self.listening[host], protocol)
    }

    /// Where this core takes clients of its target, as above; nowhere with all cores but the first.
    pub fn target_listening(&self, protocol: &str) -> Vec<SocketAddr> {
        addresses(&self.target_listening, protocol)
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
            .tell(Command::Call { host, job })
            .map_err(|_| Stopped)?;
        result.recv().map_err(|_| Stopped)
    }

    /// Asks the core of a target to hand all its connections to core `to` of the same target, as application steering
    /// does: each goes when its requests under way are answered, and stays if that takes too long or `to` has no room.
    /// Nothing happens if there is no such core. The policy may bring them back.
    pub fn move_connections(&self, to: usize) -> Result<(), Stopped> {
        self.commands.tell(Command::MoveAll { to }).map_err(|_| Stopped)
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
        let _ = self.commands.tell(Command::Stop);
        thread.join().map_err(|_| Stopped)
    }
}

impl Drop for CoreHandle {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

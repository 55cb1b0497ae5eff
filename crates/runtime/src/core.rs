//! The loop of one core. See the crate's documentation for its order.
//!
//! Invariants:
//! - A host's outputs are drained after each of its inputs, before anything else is handed to any host.
//! - The loop sleeps only when nothing is left to do: no completion untaken, no packet collected, no connection that
//!   could go on.
//! - One turn serves at most one batch of each source.

use crate::clock::now;
use crate::counters::Counters;
use crate::frontend::Frontend;
use crate::handle::{StartError, Started};
use crate::media::MediaFile;
use crate::poller::{Interest, Poller, Ready, Wake};
use crate::ring::MediaQueue;
use crate::spin::Spin;
use crate::udp::{self, BATCH, Refused, UdpPort};
use crate::{CoreConfig, HostSpec, RackHost, Site};
use base::{Duration, Instant, Medium, Pool, limits::SECTOR_BYTES};
use host::{Input, Output};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};

/// A closure for one host.
pub(crate) type Job = Box<dyn FnOnce(&mut dyn RackHost, Instant) + Send>;

/// What other threads tell a core.
pub(crate) enum Command {
    Call { host: usize, job: Job },
    Stop,
}

/// Kinds of sources; the upper half of a token.
const WAKE: u64 = 0;
const RING: u64 = 1;
const DATAGRAMS: u64 = 2;
const LISTENER: u64 = 3;
const CONNECTION: u64 = 4;

/// The token of the `index`-th source of a kind.
const fn token(kind: u64, index: usize) -> u64 {
    kind << 32 | index as u64
}

/// The token of a listener.
pub(crate) const fn listener_token(index: usize) -> u64 {
    token(LISTENER, index)
}

/// The token of a connection.
pub(crate) const fn connection_token(index: usize) -> u64 {
    token(CONNECTION, index)
}

/// How soon the loop tries again what the kernel had no memory for.
const HELD_UP: Duration = Duration::from_millis(1);
/// The timer's slack of the thread: the default of 50 µs would delay every deadline.
const TIMER_SLACK_NANOS: libc::c_ulong = 1_000;

/// A host with what it owns.
struct Cell {
    host: Box<dyn RackHost>,
    udp: UdpPort,
    medium: Option<MediaFile>,
    /// The host's deadline after its last outputs were drained.
    deadline: Option<Instant>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    /// No new work; ends at the given time at the latest.
    Draining(Instant),
    Stopped,
}

pub(crate) struct Core {
    // Declared first to be dropped first: it waits for the kernel to be done with pages and files.
    media: MediaQueue,
    frontend: Frontend,
    cells: Vec<Cell>,
    poller: Poller,
    wake: Arc<Wake>,
    commands: Receiver<Command>,
    counters: Arc<Counters>,
    spin: Spin,
    phase: Phase,
    drain: Duration,
    pool: Pool,
}

impl Core {
    /// Binds and builds everything, on the core's own thread.
    pub fn new(
        config: CoreConfig,
        hosts: Vec<HostSpec>,
        commands: Receiver<Command>,
        wake: Arc<Wake>,
        counters: Arc<Counters>,
    ) -> Result<(Self, Started), StartError> {
        let needed_pages = hosts.len() * BATCH + 1;
        if config.pool_pages < needed_pages {
            return Err(StartError::PoolTooSmall {
                pool_pages: config.pool_pages,
                needed_pages,
            });
        }
        // SAFETY: no pointers. A kernel that refuses leaves the default slack.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, TIMER_SLACK_NANOS) };
        let pool = Pool::new(config.pool_pages, SECTOR_BYTES);
        let files = hosts
            .iter()
            .any(|spec| spec.medium.as_ref().is_some_and(|medium| medium.fd().is_some()));
        let media = MediaQueue::new(&pool, files).map_err(StartError::Ring)?;
        let poller = Poller::new().map_err(StartError::Poller)?;
        let watch = |fd, token| poller.add(fd, token, Interest::READ).map_err(StartError::Poller);
        watch(wake.fd(), token(WAKE, 0))?;
        if let Some(fd) = media.fd() {
            watch(fd, token(RING, 0))?;
        }
        let mut frontend = Frontend::new(&config, pool.clone());
        let mut started = Started {
            addresses: Vec::new(),
            nbd: Vec::new(),
            sockets: Vec::new(),
        };
        let mut cells = Vec::new();
        for (index, spec) in hosts.into_iter().enumerate() {
            let listening = spec
                .nbd
                .iter()
                .map(|&address| {
                    frontend
                        .listen(index, address, &poller)
                        .map_err(|source| StartError::Listen { address, source })
                })
                .collect::<Result<_, _>>()?;
            let cell = Cell::new(index, spec, &pool)?;
            watch(cell.udp.fd(), token(DATAGRAMS, index))?;
            started.addresses.push(cell.udp.address());
            started.nbd.push(listening);
            started
                .sockets
                .push(cell.udp.duplicate().map_err(StartError::Poller)?);
            cells.push(cell);
        }
        let mut core = Self {
            media,
            frontend,
            cells,
            poller,
            wake,
            commands,
            counters,
            spin: Spin::new(config.spin, now()),
            phase: Phase::Running,
            drain: config.drain,
            pool,
        };
        for index in 0..core.cells.len() {
            core.carry_out(index);
        }
        core.flush();
        Ok((core, started))
    }

    /// Turns until it is told to stop.
    pub fn run(&mut self) {
        while self.phase != Phase::Stopped {
            self.turn();
        }
    }

    fn turn(&mut self) {
        let timeout = self.timeout(now());
        let sleeps = timeout.is_none_or(|timeout| !timeout.is_zero());
        let counter = if sleeps {
            &self.counters.sleeps
        } else {
            &self.counters.polls
        };
        counter.bump();
        self.counters.syscalls.bump();
        let ready = self.poller.wait(timeout);
        let mut worked = false;
        for index in 0..ready {
            worked |= self.serve(self.poller.ready(index));
        }
        self.media.reap(&self.counters);
        worked |= self.take_done();
        self.tick();
        worked |= self.settle();
        self.flush();
        if worked {
            self.spin.worked(now());
        }
        if let Phase::Draining(until) = self.phase {
            self.drained(until);
        }
    }

    /// How long the loop may wait; zero when something is left to do.
    fn timeout(&mut self, now: Instant) -> Option<Duration> {
        if self.media.done_count() > 0 || self.frontend.has_work(&self.pool) || self.spin.polls(now) {
            return Some(Duration::ZERO);
        }
        let hosts = self.cells.iter().filter_map(|cell| cell.deadline).min();
        let held_up = self.media.is_held_up().then(|| now + HELD_UP);
        let until = if let Phase::Draining(until) = self.phase {
            Some(until)
        } else {
            None
        };
        let deadline = [hosts, held_up, until].into_iter().flatten().min()?;
        Some(deadline.since(now))
    }

    /// Serves one ready source; true if it brought work.
    fn serve(&mut self, ready: Ready) -> bool {
        let index = (ready.token & u64::from(u32::MAX)) as usize;
        match ready.token >> 32 {
            WAKE => self.obey(),
            // Reaped in every turn anyway.
            RING => false,
            DATAGRAMS => self.receive(index),
            LISTENER => {
                let cells = &self.cells;
                self.frontend.accept(index, &self.poller, &self.counters, |host| {
                    cells[host].host.exports()
                })
            }
            CONNECTION => self.frontend.ready(index, ready, &self.counters),
            kind => unreachable!("no source of kind {kind} is registered"),
        }
    }

    /// Hands one input to a host and carries out what it asks for.
    fn hand(&mut self, index: usize, input: Input) {
        self.cells[index].host.handle(now(), input);
        self.carry_out(index);
    }

    fn carry_out(&mut self, index: usize) {
        let cell = &mut self.cells[index];
        while let Some(output) = cell.host.poll() {
            match output {
                Output::Send { to, packet } => cell.udp.push(to, packet, &self.counters),
                Output::Media(operation) => {
                    let medium = cell
                        .medium
                        .as_mut()
                        .expect("a host without a medium asks nothing of it");
                    self.media.submit(index, medium, operation, &self.counters);
                }
                Output::Reply(reply) => self.frontend.reply(reply, &self.counters),
            }
        }
        cell.deadline = cell.host.deadline();
    }

    fn receive(&mut self, index: usize) -> bool {
        let count = self.cells[index].udp.receive(&self.pool, &self.counters);
        for datagram in 0..count {
            match self.cells[index].udp.take(datagram) {
                Ok(packet) => {
                    self.counters.packets_in.bump();
                    self.hand(index, Input::Packet(packet));
                }
                Err(Refused::Malformed(reason)) => self.counters.malformed.bump(reason),
                Err(Refused::NoPage) => self.counters.packets_dropped_pool.bump(),
            }
        }
        count > 0
    }

    /// Hands the media's completions to their hosts: those that are there now, not those that these cause.
    fn take_done(&mut self) -> bool {
        let count = self.media.done_count();
        for _ in 0..count {
            let (index, done) = self.media.next_done().expect("just counted");
            self.hand(index, Input::Media(done));
        }
        count > 0
    }

    /// Ticks every host whose deadline has come. Not work that keeps the core polling: a deadline says itself when
    /// the next one is.
    fn tick(&mut self) {
        let Some(earliest) = self.cells.iter().filter_map(|cell| cell.deadline).min() else {
            return;
        };
        let now = now();
        if now < earliest {
            return;
        }
        for index in 0..self.cells.len() {
            if self.cells[index].deadline.is_some_and(|deadline| deadline <= now) {
                self.counters.ticks.bump();
                self.cells[index].host.tick(now);
                self.carry_out(index);
            }
        }
    }

    /// Lets every connection go on that something happened to.
    fn settle(&mut self) -> bool {
        let mut worked = false;
        while let Some(slot) = self.frontend.next_touched() {
            while let Some((index, request)) = self.frontend.next_request(slot, &self.counters) {
                worked = true;
                self.hand(index, Input::Request(request));
            }
            self.frontend.transmit(slot, &self.poller, &self.counters);
        }
        worked
    }

    /// Hands everything collected to the kernel.
    fn flush(&mut self) {
        for cell in &mut self.cells {
            cell.udp.flush(&self.counters);
        }
        self.media.push(&self.counters);
    }

    /// Does what other threads have asked for.
    fn obey(&mut self) -> bool {
        self.wake.clear();
        loop {
            match self.commands.try_recv() {
                Ok(Command::Call { host, job }) => {
                    self.counters.calls.bump();
                    job(&mut *self.cells[host].host, now());
                    self.carry_out(host);
                }
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => {
                    if self.phase == Phase::Running {
                        self.phase = Phase::Draining(now() + self.drain);
                        self.frontend.stop_taking(&self.poller);
                    }
                    return true;
                }
                Err(TryRecvError::Empty) => return true,
            }
        }
    }

    /// Ends the core when every request is answered, or when it has waited long enough.
    fn drained(&mut self, until: Instant) {
        if self.frontend.is_drained() || now() >= until {
            self.phase = Phase::Stopped;
        }
    }
}

impl Cell {
    fn new(index: usize, spec: HostSpec, pool: &Pool) -> Result<Self, StartError> {
        let HostSpec {
            bind,
            mut medium,
            build,
            nbd: _,
        } = spec;
        let udp = UdpPort::bind(bind, pool).map_err(|source| StartError::Bind {
            address: bind,
            source,
        })?;
        let host = build(Site {
            pool,
            medium: medium.as_mut().map(|medium| medium as &mut dyn Medium),
            address: udp::addr(udp.address()),
            now: now(),
        })
        .map_err(|source| StartError::Build { host: index, source })?;
        Ok(Self {
            host,
            udp,
            medium,
            deadline: None,
        })
    }
}

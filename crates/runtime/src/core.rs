//! The loop of one core. See the crate's documentation for its order.
//!
//! Invariants:
//! - A host's outputs are drained after each of its inputs, before anything else is handed to any host.
//! - The loop sleeps only when nothing is left to do: no completion untaken, no packet collected, no connection that
//!   could go on.
//! - One turn serves at most one batch of each source.
//! - Where the policy prioritises, the loop looks for latency-bound work between any two slices of bulk work.

mod moving;

use crate::counters::Counters;
use crate::events::Teller;
use crate::frontend::{Client, Frontend, Line, Speaks};
use crate::handle::{StartError, Started};
use crate::homes::{Homes, Order};
use crate::local::{Local, Volume};
use crate::nvme::NvmeTarget;
use crate::poller::{Interest, Poller, Ready, Wake};
use crate::ring::MediaQueue;
use crate::spans::{Span, Spans, Table};
use crate::spin::Spin;
use crate::switch::{Switch, configuration};
use crate::udp::{self, BATCH, Refused, UdpPort};
use crate::{CoreConfig, HostSpec, NOBODY, RackHost, Site};
use base::event::Source;
use base::{Addr, BlockRequest, Device, Duration, Instant, Pool, limits::SECTOR_BYTES};
use blockswitch::{Class, Loads};
use host::{Input, Output};
use moving::{Arrival, Steering};
use os::MediaFile;
use os::now;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use wire::nvme::Access;

/// A closure for one host.
pub(crate) type Job = Box<dyn FnOnce(&mut dyn RackHost, Instant) + Send>;

/// What other threads tell a core.
pub(crate) enum Command {
    Call {
        host: usize,
        job: Job,
    },
    /// A client that another core of the target has accepted.
    Adopt(Client),
    /// A connection of this core is to move.
    Move(Order),
    /// All connections of this core are to move to another.
    MoveAll {
        to: usize,
    },
    /// A connection that moves here.
    Arrive(Box<Arrival>),
    Stop,
}

/// Who executes the requests of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// A host of this core.
    Host(usize),
    /// The target's volumes.
    Local,
}

/// Kinds of sources; the upper half of a token.
const WAKE: u64 = 0;
const RING: u64 = 1;
const DATAGRAMS: u64 = 2;
const LISTENER: u64 = 3;
const CONNECTION: u64 = 4;
const LOCAL_RING: u64 = 5;

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

/// Requests of a bulk connection that make it worth while to read its next ones later, several at once.
const ENOUGH_REQUESTS: u32 = 4;
/// Hosts that stop are given this long to write back what they hold.
const SETTLE_MAX: Duration = Duration::from_secs(30);

/// Requests of one turn of a connection that asks much at a time, where turns are shared.
const TURN_REQUESTS_MAX: usize = 16;
/// The same while there are clients that ask little at a time: about as much work as one of their requests is.
const TURN_REQUESTS_BESIDE_SPARSE: usize = 4;
/// How long after their last request they are still there.
const SPARSE_LINGER: Duration = Duration::from_millis(1);
/// Turns in a row for which the kernel is not asked who is ready, since the guess was right.
const GUESSES_MAX: u32 = 3;
/// What a bulk request costs besides its bytes, in bytes: about a microsecond.
const REQUEST_BYTES: usize = 4 << 10;
/// What an answer takes besides its data, about.
const ANSWER_BYTES: usize = 64;
/// Answers are collected up to this, and then sent by one call.
const SEND_BYTES_MAX: usize = 256 << 10;

/// A core of the same target.
#[derive(Clone)]
pub(crate) struct Sibling {
    pub commands: Sender<Command>,
    pub wake: Arc<Wake>,
}

/// One core's share of a target.
pub(crate) struct Share {
    /// Which core of the target it is, and the load and the connections of all of them.
    pub core: usize,
    pub loads: Arc<Loads>,
    pub homes: Arc<Homes>,
    pub volumes: Arc<[Volume]>,
    /// Where NBD clients connect: with one core only, which shares them out.
    pub nbd: Vec<SocketAddr>,
    pub nvme: Arc<NvmeTarget>,
    /// As [`Share::nbd`].
    pub nvme_listen: Vec<SocketAddr>,
    /// All cores, this one included.
    pub siblings: Vec<Sibling>,
}

/// A host with what it owns.
struct Cell {
    host: Box<dyn RackHost>,
    source: Source,
    /// Of the rack's hosts.
    udp: Option<UdpPort>,
    medium: Option<MediaFile>,
    /// The host's deadline after its last outputs were drained.
    deadline: Option<Instant>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    /// No new work; ends at the given time at the latest.
    Draining(Instant),
    /// The clients are gone; hosts write back what they hold, until the given time at the latest.
    Settling(Instant),
    Stopped,
}

pub(crate) struct Core {
    // Declared first to be dropped first: it waits for the kernel to be done with pages and files.
    media: MediaQueue,
    local: Option<Local>,
    frontend: Frontend,
    switch: Switch,
    /// Where requests spend their time, if that is wanted.
    spans: Option<Spans>,
    cells: Vec<Cell>,
    poller: Poller,
    wake: Arc<Wake>,
    commands: Receiver<Command>,
    counters: Arc<Counters>,
    spin: Spin,
    /// All cores of the target, to share clients with.
    siblings: Vec<Sibling>,
    steering: Option<Steering>,
    next_core: usize,
    nvme: Vec<Arc<NvmeTarget>>,
    /// The targets' generations, together, that the sessions have been told of.
    nvme_seen: u64,
    /// When a client that asks little at a time was last here.
    sparse_at: Instant,
    /// Who it was, and how many guesses in a row that it would ask next were right.
    sparse_slot: Option<usize>,
    guesses: u32,
    phase: Phase,
    drain: Duration,
    pool: Pool,
    events: Option<Teller>,
}

impl Core {
    /// Binds and builds everything, on the core's own thread.
    pub fn new(
        config: CoreConfig,
        hosts: Vec<HostSpec>,
        target: Option<Share>,
        commands: Receiver<Command>,
        wake: Arc<Wake>,
        (counters, spans): (Arc<Counters>, Option<Arc<Table>>),
    ) -> Result<(Self, Started), StartError> {
        let sockets = hosts.iter().filter(|spec| spec.bind.is_some()).count();
        let needed_pages = sockets * BATCH + 1;
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
        let watch = |fd, kind| poller.add(fd, token(kind, 0), Interest::Read);
        watch(wake.fd(), WAKE).map_err(StartError::Poller)?;
        if let Some(fd) = media.fd() {
            watch(fd, RING).map_err(StartError::Poller)?;
        }
        let loads = || Arc::new(Loads::new(1, &configuration(&config)));
        let (place, loads) = target
            .as_ref()
            .map_or_else(|| (0, loads()), |share| (share.core, Arc::clone(&share.loads)));
        let mut core = Self {
            media,
            local: None,
            frontend: Frontend::new(&config, pool.clone()),
            switch: Switch::new(&config, loads, place),
            spans: spans.map(|table| Spans::new(table, config.connections_max)),
            siblings: Vec::new(),
            steering: None,
            next_core: 0,
            nvme: Vec::new(),
            nvme_seen: 0,
            sparse_at: Instant::ZERO,
            sparse_slot: None,
            guesses: 0,
            cells: Vec::new(),
            poller,
            wake,
            commands,
            counters,
            spin: Spin::new(config.spin, now()),
            phase: Phase::Running,
            drain: config.drain,
            pool,
            events: config.events,
        };
        let mut started = Started::default();
        if let Some(share) = target {
            core.join(share, &mut started)?;
        }
        for spec in hosts {
            core.add(spec, &mut started)?;
        }
        (0..core.cells.len()).for_each(|index| core.carry_out(index));
        core.flush();
        Ok((core, started))
    }

    fn watch(&self, fd: RawFd, token: u64) -> Result<(), StartError> {
        self.poller
            .add(fd, token, Interest::Read)
            .map_err(StartError::Poller)
    }

    fn listen(
        &mut self,
        endpoint: Endpoint,
        speaks: Speaks,
        addresses: &[SocketAddr],
    ) -> Result<Vec<SocketAddr>, StartError> {
        let listening = addresses.iter().map(|&address| {
            self.frontend
                .listen(endpoint, speaks.clone(), address, &self.poller)
                .map_err(|source| StartError::Listen { address, source })
        });
        listening.collect()
    }

    /// Offers an NVMe target's subsystems.
    fn offer(
        &mut self,
        endpoint: Endpoint,
        target: Arc<NvmeTarget>,
        addresses: &[SocketAddr],
    ) -> Result<Vec<SocketAddr>, StartError> {
        target.add_core(Arc::clone(&self.wake));
        self.nvme.push(Arc::clone(&target));
        self.listen(endpoint, Speaks::Nvme(target), addresses)
    }

    /// Becomes one of a target's cores.
    fn join(&mut self, share: Share, started: &mut Started) -> Result<(), StartError> {
        let volumes = Local::new(share.volumes, &self.pool).map_err(StartError::Ring)?;
        if let Some(fd) = volumes.fd() {
            self.watch(fd, token(LOCAL_RING, 0))?;
        }
        self.local = Some(volumes);
        self.siblings = share.siblings;
        self.frontend.join(Arc::clone(&share.homes), share.core);
        self.steering = Some(Steering::new(share.homes, share.core));
        let nbd = Speaks::Nbd(Some(Arc::clone(&share.nvme)));
        started.target_nbd = self.listen(Endpoint::Local, nbd, &share.nbd)?;
        started.target_nvme = self.offer(Endpoint::Local, share.nvme, &share.nvme_listen)?;
        Ok(())
    }

    /// Adds a host.
    fn add(&mut self, spec: HostSpec, started: &mut Started) -> Result<(), StartError> {
        let index = self.cells.len();
        let endpoint = Endpoint::Host(index);
        // A rack's volumes cannot be reserved.
        started
            .nbd
            .push(self.listen(endpoint, Speaks::Nbd(None), &spec.nbd)?);
        let nvme = match &spec.nvme {
            None => None,
            Some((address, target)) => self
                .offer(endpoint, Arc::clone(target), &[*address])?
                .first()
                .copied(),
        };
        started.nvme.push(nvme);
        let cell = Cell::new(index, spec, &self.pool)?;
        started.addresses.push(cell.udp.as_ref().map(UdpPort::address));
        if let Some(udp) = &cell.udp {
            self.watch(udp.fd(), token(DATAGRAMS, index))?;
            started.sockets.push(udp.duplicate().map_err(StartError::Poller)?);
        }
        self.cells.push(cell);
        Ok(())
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
        if sleeps {
            let held = self.pool.capacity() - self.pool.available();
            self.counters.pages_held.set(held as u64);
        }
        let counter = if sleeps {
            &self.counters.sleeps
        } else {
            &self.counters.polls
        };
        counter.bump();
        let mut worked = self.guess() || self.look(timeout);
        self.media.reap(&self.counters);
        worked |= self.take_done();
        self.tick();
        worked |= self.attend();
        self.steer();
        self.flush();
        if worked {
            self.spin.worked(now());
        }
        match self.phase {
            Phase::Draining(until) => self.drained(until),
            Phase::Settling(until) => self.settled(until),
            Phase::Running | Phase::Stopped => {}
        }
    }

    /// Between two slices of bulk work, reads from the client that asked for little last, which as a rule is the next one
    /// to ask; true if it was. The kernel then need not be asked who else is ready, which costs as much as a small read.
    fn guess(&mut self) -> bool {
        let may = self.guesses < GUESSES_MAX && !self.switch.is_empty() && self.switch.slices();
        let slot = self.sparse_slot.take().filter(|_| may);
        let is_right = slot.is_some_and(|slot| {
            self.frontend.expect(slot);
            self.take_in(Line::Sparse, usize::MAX).0
        });
        self.guesses = if is_right { self.guesses + 1 } else { 0 };
        is_right
    }

    /// Waits for sources and serves them; true if they brought work.
    fn look(&mut self, timeout: Option<Duration>) -> bool {
        self.counters.syscalls.bump();
        let ready = self.poller.wait(timeout);
        let mut worked = false;
        for index in 0..ready {
            worked |= self.serve(self.poller.ready(index));
        }
        worked
    }

    /// How long the loop may wait; zero when something is left to do.
    fn timeout(&mut self, now: Instant) -> Option<Duration> {
        let batched = self.switch.deadline().is_some();
        let busy =
            self.media.done_count() > 0 || !self.switch.is_empty() && !batched || self.frontend.has_work();
        if busy || self.spin.polls(now) {
            return Some(Duration::ZERO);
        }
        let hosts = self.cells.iter().filter_map(|cell| cell.deadline).min();
        let (batch, sessions) = (self.switch.deadline(), self.frontend.deadline());
        let rest = self.frontend.rest_deadline();
        let is_held_up = self.media.is_held_up() || self.local.as_ref().is_some_and(Local::is_held_up);
        let held_up = is_held_up.then(|| now + HELD_UP);
        let until = match self.phase {
            Phase::Draining(until) | Phase::Settling(until) => Some(until),
            Phase::Running | Phase::Stopped => None,
        };
        let deadline = [hosts, batch, sessions, rest, held_up, until]
            .into_iter()
            .flatten()
            .min()?;
        Some(deadline.since(now))
    }

    /// Serves one ready source; true if it brought work.
    fn serve(&mut self, ready: Ready) -> bool {
        let index = (ready.token & u64::from(u32::MAX)) as usize;
        match ready.token >> 32 {
            WAKE => self.obey(),
            // Reaped in every turn anyway.
            RING | LOCAL_RING => false,
            DATAGRAMS => self.receive(index),
            LISTENER => {
                self.accept(index);
                true
            }
            CONNECTION => {
                self.frontend.note(index, ready);
                false
            }
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
                Output::Send { to, packet } => {
                    let udp = cell.udp.as_mut().expect("a host without a socket sends nothing");
                    udp.push(to, packet, &self.counters);
                }
                Output::Media(operation) => {
                    let medium = cell
                        .medium
                        .as_mut()
                        .expect("a host without a medium asks nothing of it");
                    self.media.submit(index, medium, operation, &self.counters);
                }
                Output::Reply(reply) if reply.client == NOBODY => {}
                Output::Reply(mut reply) => {
                    let span = self.switch.finish(&mut reply);
                    let slot = self.frontend.reply(reply, &self.counters);
                    note_answer(&mut self.spans, span, slot, &self.frontend);
                }
                Output::Event(kind) => {
                    if let Some(events) = &self.events {
                        events.tell(cell.source, kind);
                    }
                }
            }
        }
        cell.deadline = cell.host.deadline();
    }

    fn receive(&mut self, index: usize) -> bool {
        const WATCHED: &str = "a socket that is watched is there";
        let udp = self.cells[index].udp.as_mut().expect(WATCHED);
        let count = udp.receive(&self.pool, &self.counters);
        for datagram in 0..count {
            let udp = self.cells[index].udp.as_mut().expect(WATCHED);
            match udp.take(datagram) {
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
        if let Some(local) = &mut self.local {
            local.reap(&self.counters);
        }
        self.take_local() | (count > 0)
    }

    /// Ticks every host whose deadline has come. Not work that keeps the core polling: a deadline says itself when
    /// the next one is.
    fn tick(&mut self) {
        self.tick_sessions();
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

    /// Sessions are ticked when one is due, and all when their target has changed.
    fn tick_sessions(&mut self) {
        let generation = self.nvme.iter().map(|target| target.generation()).sum();
        let is_due = || self.frontend.deadline().is_some_and(|at| at <= now());
        if generation != self.nvme_seen || is_due() {
            self.nvme_seen = generation;
            self.frontend.tick(now());
        }
    }

    /// Takes the clients that wait at a listener, and shares them out among the cores of the target.
    fn accept(&mut self, index: usize) {
        while let Some(client) = self.frontend.accept(index, &self.counters) {
            match self
                .next_place(client.endpoint)
                .map(|place| &self.siblings[place])
            {
                None => self.open(client),
                Some(sibling) => {
                    // A core that has died of a bug takes nobody; the client sees its connection closed.
                    let _ = sibling.commands.send(Command::Adopt(client));
                    sibling.wake.wake();
                }
            }
        }
    }

    fn open(&mut self, client: Client) {
        let exports = match (client.endpoint, &self.local) {
            (Endpoint::Host(index), _) => self.cells[index].host.exports(),
            (Endpoint::Local, Some(local)) => local.exports(),
            (Endpoint::Local, None) => unreachable!("only a core of a target serves its volumes"),
        };
        match self.frontend.open(client, exports, &self.poller) {
            Ok(()) => self.counters.clients_accepted.bump(),
            Err(_) => self.counters.clients_refused.bump(),
        }
    }

    /// Lets connections go on that can, in the order of the policy, until one slice of bulk work is done.
    fn attend(&mut self) -> bool {
        let one_if = |bounded: bool| if bounded { 1 } else { usize::MAX };
        let (sparse, _) = self.take_in(Line::Sparse, usize::MAX);
        let (latency, _) = self.take_in(Line::Latency, one_if(self.switch.slices()));
        let (bulk, sent) = self.take_in(Line::Throughput, one_if(self.switch.prioritises()));
        sparse | latency | bulk | self.execute(sent)
    }

    /// Reads from the connections of a line, at most `count`, and queues their requests; true if there was something,
    /// and how much of what they had to send is sent.
    fn take_in(&mut self, line: Line, count: usize) -> (bool, usize) {
        let (mut worked, mut sent) = (false, 0);
        let waiting = self.frontend.waiting(line);
        if waiting == 0 {
            return (false, 0);
        }
        let mut at = now();
        let is_bulk = line == Line::Throughput;
        let requests_max = if line == Line::Latency && self.switch.slices() {
            let is_shared = at.since(self.sparse_at) < SPARSE_LINGER;
            [TURN_REQUESTS_MAX, TURN_REQUESTS_BESIDE_SPARSE][usize::from(is_shared)]
        } else {
            usize::MAX
        };
        // Who can go on after its turn stands in line again, for the next round.
        for _ in 0..count.min(waiting) {
            let Some(slot) = self.frontend.next_ready(line) else {
                break;
            };
            if is_bulk && self.switch.waiting_of(slot) >= ENOUGH_REQUESTS && self.frontend.pass(slot) {
                continue;
            }
            let reads = self.frontend.read(at, slot, &self.counters);
            let mut requests = 0;
            while requests < requests_max
                && let Some((origin, request)) = self.frontend.next_request(at, slot, &self.counters)
            {
                requests += 1;
                let wanted = self.spans.is_some();
                let span = wanted.then(|| Span::new(request.op, request.length, at, now()));
                let host_nqn = self.frontend.host_nqn(slot);
                if self.switch.push(at, origin, host_nqn, request, span) == Class::Throughput {
                    self.counters.requests_bulk.bump();
                }
            }
            worked |= reads || requests > 0;
            if line == Line::Sparse && requests > 0 {
                (self.sparse_at, self.sparse_slot) = (at, Some(slot));
            }
            // A turn that was cut short says nothing of how few there were.
            let told = if requests == requests_max {
                usize::MAX
            } else {
                requests
            };
            self.frontend.note_turn(slot, reads, told);
            self.frontend.set_class(slot, self.switch.class_of(slot));
            // What waits is sent with its slices.
            let waits = self.switch.waiting_of(slot) > 0;
            sent += self.send(slot, if waits { 0 } else { self.switch.slice_bytes() });
            at = self.spend(
                if is_bulk {
                    Class::Throughput
                } else {
                    Class::Latency
                },
                at,
            );
        }
        (worked, sent)
    }

    /// The time since `since` was spent on a class; the time now.
    fn spend(&self, class: Class, since: Instant) -> Instant {
        let now = now();
        self.switch.spend(class, now.nanos_since(since));
        now
    }

    fn send(&mut self, slot: usize, bytes_min: usize) -> usize {
        let sent = self.frontend.send(slot, bytes_min, &self.poller, &self.counters);
        if let Some(spans) = &mut self.spans {
            spans.sent(now, slot, sent);
        }
        sent.unwrap_or_else(|| {
            let (client, dropped) = self.switch.close(slot);
            self.frontend.settle(client, dropped);
            0
        })
    }

    /// Executes what the switch says: everything that goes before bulk work, and one slice of that. Answers of one
    /// connection that follow each other are sent together. `bulk` bytes of the slice are done already.
    fn execute(&mut self, mut bulk: usize) -> bool {
        let mut worked = false;
        let (slice_bytes, prioritises) = (self.switch.slice_bytes(), self.switch.prioritises());
        let (mut last, mut unsent) = (None, 0);
        let mut at = now();
        while let Some(step) = self.switch.pop(at, slice_bytes.saturating_sub(bulk).max(1)) {
            worked = true;
            if let Some((slot, class)) =
                last.filter(|&(slot, _)| slot != step.slot || unsent >= SEND_BYTES_MAX)
            {
                self.send(slot, unsent);
                unsent = 0;
                at = self.spend(class, at);
            }
            let begins = step.request.is_some();
            self.frontend.collect(step.slot);
            if let Some((endpoint, request)) = step.request {
                self.begin(endpoint, request);
            }
            at = self.spend(step.class, at);
            last = Some((step.slot, step.class));
            unsent += step.bytes + ANSWER_BYTES;
            if prioritises && step.class == Class::Throughput {
                bulk += step.bytes + if begins { REQUEST_BYTES } else { 0 };
                if bulk >= slice_bytes {
                    break;
                }
            }
        }
        if let Some((slot, class)) = last {
            self.send(slot, unsent);
            self.spend(class, at);
        }
        worked
    }

    fn begin(&mut self, endpoint: Endpoint, request: BlockRequest) {
        match endpoint {
            Endpoint::Host(index) => self.hand(index, Input::Request(request)),
            Endpoint::Local => {
                let local = self
                    .local
                    .as_mut()
                    .expect("only a core of a target has such requests");
                match local.host_of(&request) {
                    Some(index) => self.hand(index, Input::Request(request)),
                    None => {
                        local.submit(request, &self.counters);
                        self.take_local();
                    }
                }
            }
        }
    }

    /// Hands the answers of the target's volumes to their connections.
    fn take_local(&mut self) -> bool {
        let mut any = false;
        while let Some(mut reply) = self.local.as_mut().and_then(Local::next_done) {
            any = true;
            let span = self.switch.finish(&mut reply);
            let slot = self.frontend.reply(reply, &self.counters);
            note_answer(&mut self.spans, span, slot, &self.frontend);
        }
        any
    }

    /// Hands everything collected to the kernel.
    fn flush(&mut self) {
        for udp in self.cells.iter_mut().filter_map(|cell| cell.udp.as_mut()) {
            udp.flush(&self.counters);
        }
        self.media.push(&self.counters);
        if let Some(local) = &mut self.local {
            local.push(&self.counters);
        }
    }

    /// Does what other threads have asked for.
    fn obey(&mut self) -> bool {
        self.wake.clear();
        let mut stops = false;
        loop {
            match self.commands.try_recv() {
                Ok(Command::Call { host, job }) => {
                    self.counters.calls.bump();
                    job(&mut *self.cells[host].host, now());
                    self.carry_out(host);
                }
                Ok(Command::Adopt(client)) => {
                    if self.phase == Phase::Running {
                        self.open(client);
                    }
                }
                Ok(Command::Arrive(arrival)) => self.arrive(*arrival),
                Ok(Command::Move(order)) if self.phase == Phase::Running => self.set_out(order),
                Ok(Command::MoveAll { to }) if self.phase == Phase::Running => self.set_out_all(to),
                Ok(Command::Move(_) | Command::MoveAll { .. }) => {}
                Ok(Command::Stop) => {
                    self.stop_arrivals();
                    stops = true;
                }
                Err(TryRecvError::Disconnected) => {
                    stops = true;
                    break;
                }
                Err(TryRecvError::Empty) => break,
            }
        }
        if stops && self.phase == Phase::Running {
            self.phase = Phase::Draining(now() + self.drain);
            self.frontend.stop_taking(&self.poller);
        }
        true
    }

    /// Goes on to the hosts when every request is answered, or when it has waited long enough.
    fn drained(&mut self, until: Instant) {
        if self.frontend.is_drained() || now() >= until {
            let until = now() + SETTLE_MAX;
            self.phase = Phase::Settling(until);
            self.settled(until);
        }
    }

    /// Ends the core when every host has stopped, or when it has waited long enough.
    fn settled(&mut self, until: Instant) {
        let mut quiet = true;
        for index in 0..self.cells.len() {
            quiet &= self.cells[index].host.stop(now());
            self.carry_out(index);
        }
        self.flush();
        if quiet || now() >= until {
            self.phase = Phase::Stopped;
        }
    }
}

/// An answer waits to be sent by the connection in `slot`.
fn note_answer(spans: &mut Option<Spans>, span: Option<Span>, slot: Option<usize>, frontend: &Frontend) {
    if let (Some(spans), Some(span), Some(slot)) = (spans, span, slot) {
        spans.answered(now(), slot, span, frontend.pending_bytes(slot));
    }
}

impl Cell {
    fn new(index: usize, spec: HostSpec, pool: &Pool) -> Result<Self, StartError> {
        let HostSpec {
            bind,
            mut medium,
            build,
            nbd: _,
            nvme: _,
        } = spec;
        let udp = bind
            .map(|address| {
                UdpPort::bind(address, pool).map_err(|source| StartError::Bind { address, source })
            })
            .transpose()?;
        let host = build(Site {
            pool,
            medium: medium.as_mut().map(|medium| medium as &mut dyn Device),
            address: udp
                .as_ref()
                .map_or(Addr::default(), |udp| udp::addr(udp.address())),
            now: now(),
        })
        .map_err(|source| StartError::Build { host: index, source })?;
        Ok(Self {
            source: host.source(),
            host,
            udp,
            medium,
            deadline: None,
        })
    }
}

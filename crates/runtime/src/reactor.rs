//! The thread of one core: it does what [`host::target::Dispatcher`] says with sockets, rings and hosts. See the crate's
//! documentation for its order.
//!
//! Invariants:
//! - A host's outputs are drained after each of its inputs, before anything else is handed to any host.
//! - The thread sleeps only when nothing is left to do: no completion untaken, no packet collected, no connection that
//!   could go on.
//! - One look serves at most one batch of each source.

use crate::command::{Arrival, Command};
use crate::config::CoreConfig;
use crate::counters::Counters;
use crate::events::Teller;
use crate::frontend::{Client, Endpoint, Frontend, Traveller};
use crate::hosts::{HostSpec, RackHost, Site};
use crate::local::{Local, Volume, need_ring};
use crate::mailbox::{Address, Mailbox};
use crate::medium::{Media, Medium};
use crate::nvme::Offers;
use crate::poller::{Interest, Poller, Ready, connection_slot};
use crate::spans::{Span, Spans, Table};
use crate::start::{Listening, StartError, Started};
use crate::steering::{Clients, Here, Steering};
use crate::stream::{Listen, protocols};
use crate::sync::mpsc::TryRecvError;
use crate::sync::{Arc, Mutex};
use crate::udp::{self, BATCH, Refused, UdpPort};
use base::event::{Kind, Refusal, Source};
use base::time::earliest;
use base::{Addr, BlockReply, BlockRequest, Device, Duration, Instant, Pool, limits::SECTOR_BYTES};
use blockswitch::{Class, Loads};
use host::target::{Act, Ask, ClassRules, Dispatcher, Homes, Standing, Step, Wait};
use host::{Input, NOBODY, Output};
use os::now;
use std::io::{self, ErrorKind};
use std::mem::{replace, take};
use std::os::fd::RawFd;
use wire::Protocol;

/// What may wake the core, beside its connections. A source's token is its place in the list.
#[derive(Clone, Copy)]
enum Watched {
    /// Other threads.
    Wake,
    /// Completions, which are reaped in every turn anyway.
    Ring,
    /// Rack packets for a host.
    Datagrams(usize),
    /// Clients that connect.
    Listener(usize),
}

/// How soon the loop tries again what the kernel had no memory for.
const HELD_UP: Duration = Duration::from_millis(1);
/// The timer's slack of the thread: the default of 50 µs would delay every deadline.
const TIMER_SLACK_NANOS: libc::c_ulong = 1_000;

/// Hosts that stop are given this long to write back what they hold.
const SETTLE_MAX: Duration = Duration::from_secs(30);

/// One core's share of a target.
pub(crate) struct Share {
    /// Which core of the target it is, and the load and the connections of all of them.
    pub core: usize,
    pub loads: Arc<Loads>,
    pub homes: Arc<Mutex<Homes>>,
    pub volumes: Arc<[Volume]>,
    /// Where clients connect: with one core only, which shares them out.
    pub listen: Vec<Listen>,
    /// Protocols of the target's clients, on all cores.
    pub protocols: Vec<Arc<dyn Protocol>>,
    /// All cores, this one included.
    pub siblings: Vec<Address<Command>>,
}

/// A host with what it owns.
struct Cell {
    host: Box<dyn RackHost>,
    source: Source,
    /// Of the rack's hosts.
    udp: Option<UdpPort>,
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

/// A request between the dispatcher and its answer.
struct Pending {
    /// The session's own tag.
    tag: u64,
    /// Until its turn comes.
    waits: Option<(Endpoint, BlockRequest)>,
    /// When it passed what, if that is wanted.
    span: Option<Span>,
}

pub(crate) struct Reactor {
    // Declared first to be dropped first: it waits for the kernel to be done with pages and files.
    media: Media,
    local: Option<Local>,
    frontend: Frontend,
    dispatcher: Dispatcher,
    /// By the dispatcher's tags.
    pending: Vec<Option<Pending>>,
    classes: ClassRules,
    /// Where requests spend their time, if that is wanted.
    spans: Option<Spans>,
    cells: Vec<Cell>,
    poller: Poller,
    sources: Vec<Watched>,
    mailbox: Mailbox<Command>,
    counters: Arc<Counters>,
    steering: Option<Steering>,
    offers: Offers,
    phase: Phase,
    drain: Duration,
    pool: Pool,
    events: Option<Teller>,
}

impl Reactor {
    /// Binds and builds everything, on the core's own thread.
    pub fn new(
        config: CoreConfig,
        hosts: Vec<HostSpec>,
        target: Option<Share>,
        mailbox: Mailbox<Command>,
        (counters, spans): (Arc<Counters>, Option<Arc<Table>>),
    ) -> Result<(Self, Started), StartError> {
        let sockets = hosts.iter().filter(|spec| spec.bind.is_some()).count();
        let needed_pages = sockets * BATCH + 1;
        let pool_pages = config.target.pool_pages;
        if pool_pages < needed_pages {
            return Err(StartError::PoolTooSmall {
                pool_pages,
                needed_pages,
            });
        }
        // SAFETY: no pointers. A kernel that refuses leaves the default slack.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, TIMER_SLACK_NANOS) };
        let pool = Pool::new(pool_pages, SECTOR_BYTES);
        let needs_ring = |spec: &HostSpec| spec.medium.as_ref().is_some_and(Medium::needs_ring);
        let files =
            hosts.iter().any(needs_ring) || target.as_ref().is_some_and(|share| need_ring(&share.volumes));
        let media = Media::new(&pool, files, config.media_limit).map_err(StartError::Ring)?;
        let poller = Poller::new().map_err(StartError::Poller)?;
        let (place, cores, loads) = match &target {
            Some(share) => (share.core, share.siblings.len(), Arc::clone(&share.loads)),
            None => (0, 1, Arc::new(Loads::new(1, &config.target.switch))),
        };
        let requests_max = config.target.connections_max * config.target.session_requests_max();
        let mut core = Self {
            media,
            local: None,
            frontend: Frontend::new(&config.target, pool.clone(), cores),
            dispatcher: Dispatcher::new(now(), &config.target, loads, place),
            pending: Vec::with_capacity(requests_max),
            classes: config.classes,
            spans: spans.map(|table| Spans::new(table, config.target.connections_max)),
            cells: Vec::new(),
            poller,
            sources: Vec::new(),
            mailbox,
            counters,
            steering: None,
            offers: Offers::default(),
            phase: Phase::Running,
            drain: config.drain,
            pool,
            events: config.events,
        };
        core.watch(core.mailbox.wake().fd(), Watched::Wake)?;
        if let Some(fd) = core.media.fd() {
            core.watch(fd, Watched::Ring)?;
        }
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

    fn watch(&mut self, fd: RawFd, source: Watched) -> Result<(), StartError> {
        let token = self.sources.len() as u64;
        self.sources.push(source);
        self.poller
            .add(fd, token, Interest::Read)
            .map_err(StartError::Poller)
    }

    /// Takes clients of `endpoint`; returns where exactly.
    fn listen(&mut self, endpoint: Endpoint, listen: Vec<Listen>) -> Result<Listening, StartError> {
        let listening = listen.into_iter().map(|listen| {
            let (address, token) = (listen.door.address(), self.sources.len() as u64);
            let name = listen.protocol.name();
            let (bound, listener) = self
                .frontend
                .listen(endpoint, listen, (&self.poller, token))
                .map_err(|source| StartError::Listen { address, source })?;
            self.sources.push(Watched::Listener(listener));
            Ok((name, bound))
        });
        listening.collect()
    }

    /// Has the sessions of these protocols told of changes.
    fn offer(&mut self, protocols: Vec<Arc<dyn Protocol>>) {
        for protocol in protocols {
            self.offers.add(protocol, Arc::clone(self.mailbox.wake()));
        }
    }

    /// Becomes one of a target's cores.
    fn join(&mut self, share: Share, started: &mut Started) -> Result<(), StartError> {
        self.local = Some(Local::new(share.volumes, &self.media));
        let steering = Steering::new(share.homes, share.core, share.siblings);
        self.dispatcher.join(steering.interval());
        self.steering = Some(steering);
        self.offer(share.protocols);
        started.target_listening = self.listen(Endpoint::Local, share.listen)?;
        Ok(())
    }

    /// Adds a host.
    fn add(&mut self, mut spec: HostSpec, started: &mut Started) -> Result<(), StartError> {
        let index = self.cells.len();
        let listen = take(&mut spec.listen);
        self.offer(protocols(&listen));
        let listening = self.listen(Endpoint::Host(index), listen)?;
        started.listening.push(listening);
        let (cell, medium) = Cell::new(index, spec, &self.pool)?;
        self.media.attach(medium.as_ref());
        started.addresses.push(cell.udp.as_ref().map(UdpPort::address));
        if let Some(udp) = &cell.udp {
            self.watch(udp.fd(), Watched::Datagrams(index))?;
            started.sockets.push(udp.duplicate().map_err(StartError::Poller)?);
        }
        self.cells.push(cell);
        Ok(())
    }

    /// Turns until it is told to stop.
    pub fn run(&mut self) {
        while self.phase != Phase::Stopped {
            let now = now();
            match self.dispatcher.next(now) {
                Act::Look { asks } => self.look(now, asks),
                Act::TakeIn {
                    slot,
                    requests_max,
                    expects,
                } => self.take_in(now, slot, requests_max, expects),
                Act::Send { slot, bytes_min } => self.send(slot, bytes_min),
                Act::Work(step) => self.work(now, step),
            }
        }
    }

    /// Ends a turn, and takes in what came for the next one.
    fn look(&mut self, now: Instant, asks: bool) {
        self.steer(now);
        self.cut_idle(now);
        self.flush();
        match self.phase {
            Phase::Draining(until) => self.drained(until),
            Phase::Settling(until) => self.settled(until),
            Phase::Running | Phase::Stopped => {}
        }
        let (mut worked, mut now) = (false, now);
        if asks && self.phase != Phase::Stopped {
            let timeout = self.timeout(now);
            worked = self.ask(timeout);
            now = os::now();
        }
        self.media.reap(now, &self.counters);
        worked |= self.take_done(now);
        self.tick(now);
        if worked {
            self.dispatcher.found_work();
        }
    }

    /// Asks who is ready, for as long as the loop may wait, and serves them; true if they brought work.
    fn ask(&mut self, timeout: Option<Duration>) -> bool {
        let sleeps = timeout.is_none_or(|timeout| !timeout.is_zero());
        if sleeps {
            self.counters.pages_held.set(self.pool.used() as u64);
            self.counters.sleeps.bump();
        } else {
            self.counters.polls.bump();
        }
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
        let is_busy = self.media.done_count() > 0;
        let connections = match self.dispatcher.wait(now, self.pool.available(), is_busy) {
            Wait::No | Wait::Poll(_) => return Some(Duration::ZERO),
            Wait::Sleep(until) => until,
        };
        let hosts = self.cells.iter().filter_map(|cell| cell.deadline).min();
        let is_held_up = self.media.is_held_up();
        let held_up = is_held_up.then(|| now + HELD_UP);
        let until = match self.phase {
            Phase::Draining(until) | Phase::Settling(until) => Some(until),
            Phase::Running | Phase::Stopped => None,
        };
        let (media, local) = (
            self.media.deadline(),
            self.local.as_ref().and_then(Local::deadline),
        );
        let deadline = [
            connections,
            hosts,
            media,
            local,
            self.frontend.deadline(),
            held_up,
            until,
        ]
        .into_iter()
        .fold(None, earliest)?;
        Some(deadline.since(now))
    }

    /// Serves one ready source; true if it brought work.
    fn serve(&mut self, ready: Ready) -> bool {
        if let Some(slot) = connection_slot(ready.token) {
            self.frontend.note(slot, ready);
            self.stand(slot);
            return false;
        }
        match self.sources[ready.token as usize] {
            Watched::Wake => self.obey(),
            Watched::Ring => false,
            Watched::Datagrams(index) => self.receive(index),
            Watched::Listener(index) => {
                self.accept(index);
                true
            }
        }
    }

    /// Tells the dispatcher how a connection stands.
    fn stand(&mut self, slot: usize) {
        self.dispatcher.stand(slot, self.frontend.standing(slot));
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
                    self.media.submit(now(), index, operation, &self.counters);
                }
                Output::Reply(reply) if reply.client == NOBODY => {}
                Output::Reply(reply) => {
                    let clients = (&mut self.frontend, &mut self.dispatcher, &mut self.spans);
                    answer(reply, &mut self.pending, clients, &self.counters);
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
            match udp.take(datagram, &self.counters) {
                Ok(Some(packet)) => {
                    self.counters.packets_in.bump();
                    self.hand(index, Input::Packet(packet));
                }
                Ok(None) => {}
                Err(Refused::Malformed(reason)) => self.counters.malformed.bump(reason),
                Err(Refused::NoPage) => self.counters.packets_dropped_pool.bump(),
            }
        }
        count > 0
    }

    /// Hands the media's completions to their hosts: those that are there now, not those that these cause.
    fn take_done(&mut self, now: Instant) -> bool {
        let count = self.media.done_count();
        for _ in 0..count {
            let (index, done) = self.media.next_done().expect("just counted");
            self.hand(index, Input::Media(done));
        }
        let core = self.number();
        if let Some(local) = &mut self.local {
            local.collect(now, &self.counters, |kind| {
                Self::tell(self.events.as_ref(), core, kind);
            });
        }
        self.take_local() | (count > 0)
    }

    /// Ticks every host whose deadline has come. Not work that keeps the core polling: a deadline says itself when
    /// the next one is.
    fn tick(&mut self, now: Instant) {
        self.tick_sessions(now);
        for index in 0..self.cells.len() {
            if self.cells[index].deadline.is_some_and(|deadline| deadline <= now) {
                self.counters.ticks.bump();
                self.cells[index].host.tick(now);
                self.carry_out(index);
            }
        }
    }

    /// Sessions are ticked when one is due, and all when their target has changed.
    fn tick_sessions(&mut self, now: Instant) {
        let is_due = self.frontend.deadline().is_some_and(|at| at <= now);
        if self.offers.have_changed() || is_due {
            self.frontend.tick(now);
            for slot in self.frontend.open_slots() {
                self.stand(slot);
            }
        }
    }

    /// Takes a batch of the clients that wait at a listener, and shares them out among the cores of the target. The next look
    /// hears of those that still wait.
    fn accept(&mut self, index: usize) {
        let (core, mut left) = (self.number(), BATCH);
        while let Some(client) = self.frontend.accept(index, &mut left, &self.counters, |kind| {
            Self::tell(self.events.as_ref(), core, kind);
        }) {
            let sibling = match &self.steering {
                Some(steering) if client.origin.endpoint == Endpoint::Local => steering.next_place(),
                _ => None,
            };
            match sibling {
                None => self.open(client),
                // A core that has died of a bug takes nobody; the client sees its connection closed.
                Some(sibling) => drop(sibling.tell(Command::Adopt(client))),
            }
        }
    }

    /// The number of this core among those of its target.
    fn number(&self) -> usize {
        self.steering.as_ref().map_or(0, |steering| steering.core)
    }

    /// Tells of what happens to a client.
    #[cold]
    fn tell(events: Option<&Teller>, core: usize, kind: Kind) {
        if let Some(events) = events {
            events.tell(Source::Core(core as u16), kind);
        }
    }

    fn open(&mut self, client: Client) {
        let (peer, protocol) = (client.peer, client.protocol.name());
        let core = self.number();
        let exports = match (client.origin.endpoint, &self.local) {
            (Endpoint::Host(index), _) => self.cells[index].host.exports(),
            (Endpoint::Local, Some(local)) => local.exports(),
            (Endpoint::Local, None) => unreachable!("only a core of a target serves its volumes"),
        };
        let steering = self
            .steering
            .as_ref()
            .filter(|_| client.origin.endpoint == Endpoint::Local);
        let app = match steering.map(Steering::enter) {
            Some(None) => {
                let (client, why) = (peer, Refusal::Limit);
                Self::tell(self.events.as_ref(), core, Kind::ClientRefused { client, why });
                return self.counters.clients_refused.bump();
            }
            app => app.flatten(),
        };
        match self.frontend.open(now(), client, exports, &self.poller) {
            Ok((slot, number)) => {
                self.counters.clients_accepted.bump();
                let client = peer;
                Self::tell(
                    self.events.as_ref(),
                    core,
                    Kind::ClientConnected { client, protocol },
                );
                self.dispatcher.open(slot, number, app);
                // The server speaks first.
                self.stand(slot);
            }
            Err(error) => {
                self.counters.clients_refused.bump();
                let (client, why) = (peer, refusal(&error));
                Self::tell(self.events.as_ref(), core, Kind::ClientRefused { client, why });
                if let (Some(steering), Some(app)) = (steering, app) {
                    steering.leave(app);
                }
            }
        }
    }

    /// Reads from a connection, and queues its requests.
    fn take_in(&mut self, now: Instant, slot: usize, requests_max: usize, expects: bool) {
        self.frontend.set_share(slot, self.dispatcher.share_of(slot));
        let reads = self.frontend.read(now, slot, expects, &self.counters);
        let mut requests = 0;
        while requests < requests_max
            && let Some((origin, asks)) = self.frontend.asks(now, slot)
        {
            while requests < requests_max
                && let Some(mut request) = asks.requests.pop_front()
            {
                requests += 1;
                let span = self
                    .spans
                    .is_some()
                    .then(|| Span::new(request.op, request.range.length() as u32, now, os::now()));
                let hint = || self.classes.hint(asks.host_name, origin.port, request.volume);
                let (tag, class) = self.dispatcher.arrive(now, slot, Ask::of(&request), hint);
                if class == Class::Throughput {
                    self.counters.requests_bulk.bump();
                }
                request.bulk = class == Class::Throughput;
                let session_tag = replace(&mut request.tag, u64::from(tag));
                let pending = Pending {
                    tag: session_tag,
                    waits: Some((origin.endpoint, request)),
                    span,
                };
                match self.pending.get_mut(tag as usize) {
                    Some(place) => *place = Some(pending),
                    None => self.pending.push(Some(pending)),
                }
            }
        }
        self.counters.requests.add(requests as u64);
        self.dispatcher.taken(slot, reads, self.frontend.standing(slot));
    }

    fn send(&mut self, slot: usize, bytes_min: usize) {
        let (sent, was_blocked) = self.frontend.send(slot, bytes_min, &self.counters);
        let standing = self.frontend.standing(slot);
        if let Some(spans) = &mut self.spans {
            spans.sent(now, slot, (!standing.is_over).then_some(sent));
        }
        if standing.is_over {
            return self.close(slot);
        }
        let pages_free = self.pool.available();
        self.dispatcher
            .sent(slot, sent, was_blocked, standing, pages_free);
    }

    /// Cuts off clients that keep memory for which others wait.
    fn cut_idle(&mut self, now: Instant) {
        while let Some(slot) = self.dispatcher.next_idle(now) {
            let (client, held) = self.frontend.cut(slot);
            Self::tell(
                self.events.as_ref(),
                self.number(),
                Kind::ClientCut { client, held },
            );
            self.counters.clients_cut.bump();
            self.stand(slot);
        }
    }

    fn close(&mut self, slot: usize) {
        if let (Some(steering), Some(app)) = (&self.steering, self.dispatcher.app(slot)) {
            steering.leave(app);
        }
        let (client, endpoint) = self.frontend.close(slot, &self.poller, &self.counters);
        let mut dropped = 0;
        self.dispatcher.close(slot, |tag| {
            self.pending[tag as usize] = None;
            dropped += 1;
        });
        self.frontend.settle(client, dropped);
        if let Endpoint::Host(index) = endpoint {
            self.hand(index, Input::ClientGone(client));
        }
    }

    /// Does a slice: what begins is executed, what was answered before is sent when the dispatcher says so.
    fn work(&mut self, now: Instant, step: Step) {
        if !step.begins {
            return;
        }
        let pending = self.pending[step.tag as usize]
            .as_mut()
            .expect("a request that waits is known");
        if let Some(span) = &mut pending.span {
            span.begin(now);
        }
        let (endpoint, request) = pending.waits.take().expect("a request begins once");
        let index = match endpoint {
            Endpoint::Host(index) => index,
            Endpoint::Local => {
                let local = self
                    .local
                    .as_mut()
                    .expect("only a core of a target has such requests");
                match local.host_of(&request) {
                    Some(index) => index,
                    None => {
                        if let Some(reply) = local.submit(now, request, &self.counters) {
                            self.answer(reply);
                        }
                        return;
                    }
                }
            }
        };
        self.hand(index, Input::Request(request));
    }

    /// Hands the answers of the target's volumes to their connections.
    fn take_local(&mut self) -> bool {
        let mut any = false;
        while let Some(reply) = self.local.as_mut().and_then(Local::next_done) {
            any = true;
            self.answer(reply);
        }
        any
    }

    fn answer(&mut self, reply: BlockReply) {
        let clients = (&mut self.frontend, &mut self.dispatcher, &mut self.spans);
        answer(reply, &mut self.pending, clients, &self.counters);
    }

    /// Hands everything collected to the kernel.
    fn flush(&mut self) {
        for cell in &mut self.cells {
            let Some(udp) = &mut cell.udp else { continue };
            udp.flush(&self.counters);
            if let (Some(kind), Some(events)) = (udp.next_event(), &self.events) {
                events.tell(cell.source, kind);
            }
        }
        self.media.push(&self.counters);
    }

    /// Does what other threads have asked for.
    fn obey(&mut self) -> bool {
        self.mailbox.open();
        let mut stops = false;
        loop {
            match self.mailbox.next() {
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
                Ok(Command::Move(order)) => {
                    self.move_clients(|steering, here| steering.set_out(now(), order, here));
                }
                Ok(Command::MoveAll { to }) => {
                    self.move_clients(|steering, here| steering.set_out_all(now(), to, here));
                }
                Ok(Command::Stop) => {
                    if let Some(steering) = &self.steering {
                        steering.close();
                    }
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
            self.here().1.stay();
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

/// Application steering.
impl Reactor {
    /// Once in a turn: moves connections as the policy says, and those that are at rest.
    fn steer(&mut self, now: Instant) {
        self.move_clients(|steering, here| steering.steer(now, here));
    }

    /// Lets connections set out, unless the core stops. A session that was told to stop refuses everything: it would do so
    /// elsewhere too.
    fn move_clients(&mut self, f: impl FnOnce(&mut Steering, &mut Here<'_, Sockets<'_>>)) {
        if self.phase == Phase::Running
            && let (Some(steering), mut here) = self.here()
        {
            f(steering, &mut here);
        }
    }

    /// A connection has come from another core.
    fn arrive(&mut self, arrival: Arrival) {
        let to = self.number();
        Self::tell(self.events.as_ref(), to, Kind::ClientMoved { to: to as u16 });
        let (steering, mut here) = self.here();
        let steering = steering.expect("only a target's connections move");
        steering.arrive(arrival, &mut here);
    }

    fn here(&mut self) -> (Option<&mut Steering>, Here<'_, Sockets<'_>>) {
        let here = Here {
            dispatcher: &mut self.dispatcher,
            clients: Sockets {
                frontend: &mut self.frontend,
                poller: &self.poller,
                counters: &self.counters,
            },
            counters: &self.counters,
        };
        (self.steering.as_mut(), here)
    }
}

/// The connections of a core.
struct Sockets<'a> {
    frontend: &'a mut Frontend,
    poller: &'a Poller,
    counters: &'a Counters,
}

impl Clients for Sockets<'_> {
    fn pause(&mut self, slot: usize) {
        self.frontend.pause(slot);
    }

    fn resume(&mut self, slot: usize) {
        self.frontend.resume(slot);
    }

    fn is_at_rest(&self, slot: usize) -> bool {
        self.frontend.is_at_rest(slot)
    }

    fn take(&mut self, slot: usize) -> Traveller {
        self.frontend.take(slot, self.poller)
    }

    fn adopt(&mut self, traveller: Traveller) -> io::Result<(usize, u32)> {
        self.frontend.adopt(now(), traveller, self.poller, self.counters)
    }

    fn standing(&self, slot: usize) -> Standing {
        self.frontend.standing(slot)
    }
}

/// Hands an answer to the connection that asked, if it is still there.
fn answer(
    mut reply: BlockReply,
    pending: &mut [Option<Pending>],
    (frontend, dispatcher, spans): (&mut Frontend, &mut Dispatcher, &mut Option<Spans>),
    counters: &Counters,
) {
    let tag = reply.tag as u32;
    let Pending { tag: own, span, .. } = pending[tag as usize].take().expect("a request ends once");
    reply.tag = own;
    dispatcher.answered(tag);
    let client = reply.client;
    let Some(slot) = frontend.slot_of(client) else {
        counters.replies_late.bump();
        return frontend.settle(client, 1);
    };
    counters.replies.bump();
    frontend.set_share(slot, dispatcher.share_of(slot));
    frontend.reply(slot, reply);
    if !dispatcher.sends_next(slot) {
        dispatcher.stand(slot, frontend.standing(slot));
    }
    if let (Some(spans), Some(span)) = (spans, span) {
        spans.answered(now(), slot, span, frontend.pending_bytes(slot));
    }
}

/// Why a client cannot be taken.
fn refusal(error: &io::Error) -> Refusal {
    match error.kind() {
        ErrorKind::QuotaExceeded => Refusal::Limit,
        _ => Refusal::Setup,
    }
}

impl Cell {
    fn new(index: usize, spec: HostSpec, pool: &Pool) -> Result<(Self, Option<Medium>), StartError> {
        let HostSpec {
            bind,
            mut medium,
            build,
            listen: _,
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
        let cell = Self {
            source: host.source(),
            host,
            udp,
            deadline: None,
        };
        Ok((cell, medium))
    }
}

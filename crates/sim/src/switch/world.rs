//! The modelled target: each core has the very [`Dispatcher`] that a core of `serve` has, over modelled connections, media
//! and costs. This module decides nothing.
//!
//! A core does one thing at a time, as its dispatcher says, and nothing interrupts the core. The core hears of new bytes
//! when it looks. If the policy steers requests (the published blk-switch), every application has a connection to every
//! core, and the core that works on a request answers it. An application that moves first gets its answers, as with `serve`.

use super::cost;
use super::link::Link;
use crate::queue::Queue;
use base::{Duration, Instant, Rng};
use blockswitch::{AppId, Class, ClassHint, Kind};
use hdrhistogram::Histogram;
use host::target::{
    Act, Ask, Config, Dispatcher, Homes, Passage, READ_BYTES, Relocation, Rested, Standing, Step, Wait,
};
use std::collections::VecDeque;
use std::mem::take;

/// Medium of an application's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// There at once.
    Memory,
    /// After a device's time.
    Ssd,
}

/// One application.
#[derive(Clone, Copy, Debug)]
pub struct AppSpec {
    /// Its role in the figures.
    pub class: Class,
    /// The class that the switch is told.
    pub hint: ClassHint,
    /// Bytes of a request.
    pub bytes: u32,
    /// Requests that it keeps outstanding.
    pub depth: u32,
    /// Share of reads in percent.
    pub read_percent: u64,
    /// Where its data are.
    pub medium: Medium,
    /// Its core at first.
    pub home: usize,
    /// Mean time in ns between the intended starts of two requests of one place in the queue, drawn from an exponential
    /// distribution. Latency counts from the intended start, and a request whose place still waits for an answer starts
    /// late. 0: as soon as the answer is there.
    pub gap_ns: u64,
}

/// A run.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The configuration of its cores.
    pub config: Config,
    /// Cores.
    pub cores: usize,
    /// The link's speed in each direction, in Gbit/s.
    pub gbps: u64,
    /// The applications.
    pub apps: Vec<AppSpec>,
    /// Of everything random.
    pub seed: u64,
    /// Time before anything is measured.
    pub warm: Duration,
    /// Time that is measured.
    pub measured: Duration,
}

/// Measured latencies and bytes.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Latencies at the client by class of the application, in ns.
    pub latency: [Histogram<u64>; 2],
    /// Payload by class, in bytes.
    pub bytes: [u64; 2],
    /// Requests that another core than the home worked on.
    pub steered: u64,
    /// Changes of an application's home.
    pub moves: u64,
    /// Share of the cores' time that was not idle.
    pub busy: f64,
    /// Of the measured part.
    pub seconds: f64,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// The command of a request reaches the host.
    Arrive(u32),
    /// The data of a write have crossed the link.
    Data(u32),
    /// A medium has done a request of a core.
    Done(u32, usize),
    /// A request handed over reaches its core.
    Handed(u32, usize),
    /// A core has done what it was doing.
    Free(usize),
    /// A core that waits looks again.
    Kick(usize),
    /// A segment was sent: 0 from the host, 1 to it.
    Sent(usize),
    /// The answer reaches the client.
    Answer(u32),
}

/// What a core does.
#[derive(Clone, Copy, Debug)]
enum Doing {
    /// It takes in what has come, so many requests of other cores included; at its connections only if it `asks`.
    Look {
        asks: bool,
        handed: usize,
    },
    /// It reads from a connection, and takes so many requests.
    TakeIn {
        slot: usize,
        reads: bool,
        requests: usize,
    },
    Send {
        slot: usize,
        bytes: usize,
    },
    Work(Step),
}

/// A connection of an application to a core: the stream and the session.
#[derive(Debug, Default)]
struct Connection {
    /// Commands that have come and are not read.
    commands: VecDeque<u32>,
    /// Writes whose data are coming, in the order in which they were asked for, with what is not read of them.
    asked: VecDeque<(u32, usize)>,
    /// Data that have come and are not read.
    data_bytes: usize,
    /// The core knows that there is something to read.
    can_read: bool,
    /// Requests that can be taken.
    requests: VecDeque<u32>,
    /// Answers to be sent, with the bytes that are left of each.
    answers: VecDeque<(u32, usize)>,
    answer_bytes: usize,
    in_flight: usize,
    in_flight_bytes: u64,
    /// Data of requests and answers that its client has sent and received.
    moved_bytes: u64,
    /// It is to move, and takes no commands.
    is_paused: bool,
}

impl Connection {
    fn is_at_rest(&self) -> bool {
        self.in_flight == 0 && self.asked.is_empty() && self.requests.is_empty()
    }

    fn standing(&self, request_bytes: u32, room: (usize, u64)) -> Standing {
        let waits = !self.requests.is_empty() && self.room(request_bytes, room) == 0;
        let wanted = self.in_flight_bytes + u64::from(request_bytes);
        Standing {
            can_go_on: !waits && (self.can_read || !self.requests.is_empty()) || self.answer_bytes > 0,
            is_over: false,
            waits,
            share_wanted: if waits && wanted > room.1 { wanted } else { 0 },
            in_flight: self.in_flight,
            in_flight_bytes: self.in_flight_bytes,
            // The model's clients always read, and send what they announced. Their classes are given.
            awaits_client: false,
            has_answers: false,
            is_short: false,
            receives_bulk: false,
            moved_bytes: self.moved_bytes,
        }
    }

    /// How many more requests may be under way, when the session may have so many and so much payload.
    fn room(&self, request_bytes: u32, (requests_max, share_bytes): (usize, u64)) -> usize {
        let bytes = share_bytes.saturating_sub(self.in_flight_bytes) / u64::from(request_bytes.max(1));
        (requests_max - self.in_flight).min(bytes as usize)
    }

    /// Reads what has come, a gulp at most: the commands, and bytes of data.
    fn read(&mut self) -> (Vec<u32>, usize) {
        let commands = if self.is_paused {
            Vec::new()
        } else {
            self.commands.drain(..).collect()
        };
        let bytes = self.data_bytes.min(READ_BYTES);
        self.data_bytes -= bytes;
        self.moved_bytes += bytes as u64;
        let mut left = bytes;
        while let Some((request, missing)) = self.asked.front_mut() {
            let taken = left.min(*missing);
            *missing -= taken;
            left -= taken;
            if *missing > 0 {
                break;
            }
            self.requests.push_back(*request);
            self.asked.pop_front();
        }
        self.can_read = self.data_bytes > 0;
        (commands, bytes)
    }
}

#[derive(Debug)]
struct Core {
    dispatcher: Dispatcher,
    connections: Vec<Connection>,
    /// By the dispatcher's tags.
    tags: Vec<u32>,
    /// Connections to which something has come since the last look.
    news: Vec<usize>,
    /// Requests that media have done, or other cores have handed over, since then.
    done: Vec<u32>,
    handed: Vec<u32>,
    /// What it does, and since when.
    doing: Option<(Doing, Instant)>,
    /// It waits for news, asleep if so.
    waits: Option<bool>,
    kick_at: Option<Instant>,
    last_class: Option<Class>,
    busy_ns: u64,
}

#[derive(Debug)]
struct App {
    spec: AppSpec,
    core: usize,
}

#[derive(Debug)]
struct Request {
    app: usize,
    read: bool,
    /// Its intended start, from which its latency counts.
    due_at: Instant,
    /// The core that took it, and the dispatcher's tag at the core that works on it.
    home: usize,
    tag: u32,
    /// On its way between the two.
    passage: Option<Passage>,
}

/// The target in the middle of a run.
#[derive(Debug)]
pub struct World {
    spec: Spec,
    now: Instant,
    events: Queue<Event>,
    rng: Rng,
    homes: Homes,
    cores: Vec<Core>,
    apps: Vec<App>,
    requests: Vec<Request>,
    /// From the host, and to it.
    links: [Link; 2],
    orders: Vec<Relocation>,
    outcome: Outcome,
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are valid")
}

impl World {
    /// A target whose clients are about to begin.
    pub fn new(spec: Spec) -> Self {
        let mut rng = Rng::new(spec.seed);
        let steers = spec.config.switch.request_steering;
        let mut homes = Homes::new(&spec.config, spec.cores);
        let core = |home| {
            let mut dispatcher = Dispatcher::new(Instant::ZERO, &spec.config, homes.loads(), home);
            dispatcher.join(homes.interval());
            if steers {
                dispatcher.steer_requests(rng.fork());
            }
            Core {
                dispatcher,
                connections: spec.apps.iter().map(|_| Connection::default()).collect(),
                tags: Vec::new(),
                news: Vec::new(),
                done: Vec::new(),
                handed: Vec::new(),
                doing: None,
                waits: Some(true),
                kick_at: None,
                last_class: None,
                busy_ns: 0,
            }
        };
        let mut cores: Vec<Core> = (0..spec.cores).map(core).collect();
        for (slot, app) in spec.apps.iter().enumerate() {
            for (at, core) in cores.iter_mut().enumerate() {
                if at == app.home {
                    let id = homes.join(at).expect("few applications");
                    assert_eq!(id.0 as usize, slot, "applications come in their order");
                    core.dispatcher.open(slot, 0, Some(id));
                } else if steers {
                    core.dispatcher.open(slot, 0, None);
                }
            }
        }
        let app = |spec: &AppSpec| App {
            spec: *spec,
            core: spec.home,
        };
        Self {
            now: Instant::ZERO,
            events: Queue::new(),
            rng,
            homes,
            cores,
            apps: spec.apps.iter().map(app).collect(),
            requests: Vec::new(),
            links: [0, 1].map(|_| Link::new(spec.gbps, spec.apps.len())),
            orders: Vec::new(),
            outcome: Outcome {
                latency: [histogram(), histogram()],
                bytes: [0; 2],
                steered: 0,
                moves: 0,
                busy: 0.0,
                seconds: spec.measured.as_secs_f64(),
            },
            spec,
        }
    }

    /// Runs to the end.
    pub fn run(mut self) -> Outcome {
        for app in 0..self.apps.len() {
            for _ in 0..self.apps[app].spec.depth {
                self.requests.push(Request {
                    app,
                    read: true,
                    due_at: Instant::ZERO,
                    home: 0,
                    tag: 0,
                    passage: None,
                });
                self.issue(self.requests.len() as u32 - 1);
            }
        }
        (0..self.cores.len()).for_each(|at| self.advance(at));
        let warm = Instant::ZERO + self.spec.warm;
        self.until(warm);
        let all_busy_ns = |cores: &[Core]| -> u64 { cores.iter().map(|core| core.busy_ns).sum() };
        let busy_ns = all_busy_ns(&self.cores);
        self.outcome.latency = [histogram(), histogram()];
        self.outcome.bytes = [0; 2];
        (self.outcome.steered, self.outcome.moves) = (0, 0);
        self.until(warm + self.spec.measured);
        let all_ns = self.spec.measured.as_nanos() as u64 * self.cores.len() as u64;
        self.outcome.busy = (all_busy_ns(&self.cores) - busy_ns) as f64 / all_ns as f64;
        self.outcome
    }

    fn until(&mut self, end: Instant) {
        while self.events.next_at().is_some_and(|at| at < end.as_nanos()) {
            let (now, event) = self.events.pop().expect("there is a next event");
            self.now = now;
            self.apply(event);
        }
        self.now = end;
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Arrive(request) => {
                let slot = self.requests[request as usize].app;
                let at = self.apps[slot].core;
                self.cores[at].connections[slot].commands.push_back(request);
                self.tell(at, |core| core.news.push(slot));
            }
            Event::Data(request) => {
                let Request { app: slot, home, .. } = self.requests[request as usize];
                let bytes = self.apps[slot].spec.bytes as usize;
                self.cores[home].connections[slot].data_bytes += bytes;
                self.tell(home, |core| core.news.push(slot));
            }
            Event::Done(request, at) => self.tell(at, |core| core.done.push(request)),
            Event::Handed(request, at) => self.tell(at, |core| core.handed.push(request)),
            Event::Free(at) => self.finish(at),
            Event::Kick(at) => {
                if self.cores[at].kick_at == Some(self.now) && self.cores[at].waits.is_some() {
                    self.look(at);
                }
            }
            Event::Sent(direction) => {
                let (request, next_ns) = self.links[direction].sent();
                self.expect_sent(direction, next_ns);
                if let Some(request) = request {
                    let arrival = [Event::Answer(request), Event::Data(request)][direction];
                    self.after(cost::ONE_WAY_NS, arrival);
                }
            }
            Event::Answer(request) => self.answered(request),
        }
    }

    fn after(&mut self, ns: u64, event: Event) {
        self.events.push(self.now + Duration::from_nanos(ns), event);
    }

    /// Something has come for a core, which begins to look if it waits.
    fn tell(&mut self, at: usize, what: impl FnOnce(&mut Core)) {
        what(&mut self.cores[at]);
        if let Some(is_asleep) = self.cores[at].waits.take() {
            let wake_ns = if is_asleep { cost::WAKE_NS } else { 0 };
            self.begin_look(at, true, cost::LOOK_NS + wake_ns);
        }
    }

    /// A client sends its next request.
    fn issue(&mut self, request: u32) {
        let at = &mut self.requests[request as usize];
        let think_ns = self.rng.below(cost::THINK_NS_MAX + 1);
        let ready_at = self.now + Duration::from_nanos(think_ns);
        at.due_at = match self.apps[at.app].spec.gap_ns {
            0 => ready_at,
            gap_ns => at.due_at + Duration::from_nanos(self.rng.exponential(gap_ns as f64) as u64),
        };
        let think_ns = at.due_at.max(ready_at).nanos_since(self.now);
        at.read = self.rng.below(100) < self.apps[at.app].spec.read_percent;
        self.after(think_ns + cost::ONE_WAY_NS, Event::Arrive(request));
    }

    fn answered(&mut self, request: u32) {
        let Request { app, due_at, .. } = self.requests[request as usize];
        let spec = &self.apps[app].spec;
        let class = spec.class.index();
        let latency_ns = self.now.nanos_since(due_at);
        self.outcome.latency[class].saturating_record(latency_ns);
        self.outcome.bytes[class] += u64::from(spec.bytes);
        self.issue(request);
    }

    fn transmit(&mut self, direction: usize, app: usize, bytes: u32, request: Option<u32>) {
        let next_ns = self.links[direction].push(app, bytes, request);
        self.expect_sent(direction, next_ns);
    }

    fn expect_sent(&mut self, direction: usize, next_ns: Option<u64>) {
        if let Some(ns) = next_ns {
            self.after(ns, Event::Sent(direction));
        }
    }

    /// A core that is free does what its dispatcher says, until that takes time.
    fn advance(&mut self, at: usize) {
        while self.cores[at].doing.is_none() {
            match self.cores[at].dispatcher.next(self.now) {
                Act::Look { asks: true } => return self.look(at),
                Act::Look { asks: false } => self.begin_look(at, false, 0),
                Act::TakeIn {
                    slot,
                    requests_max,
                    expects,
                } => self.take_in(at, slot, requests_max, expects),
                Act::Send { slot, bytes_min } => {
                    let bytes = self.cores[at].connections[slot].answer_bytes.min(bytes_min);
                    let cost_ns = match bytes {
                        0 => 0,
                        bytes => cost::SEND_NS + cost::bytes_ns(bytes),
                    };
                    self.start(at, Doing::Send { slot, bytes }, cost_ns, Some(slot));
                }
                Act::Work(step) => {
                    let cost_ns = if step.begins { cost::WORK_NS } else { 0 };
                    self.start(at, Doing::Work(step), cost_ns, Some(step.slot));
                }
            }
        }
    }

    /// A core is to ask who is ready: at once, or when somebody is.
    fn look(&mut self, at: usize) {
        let now = self.now;
        let core = &mut self.cores[at];
        let has_news = !(core.news.is_empty() && core.done.is_empty() && core.handed.is_empty());
        let pages = self.spec.config.pool_pages;
        let (is_asleep, until) = match core.dispatcher.wait(now, pages, has_news) {
            Wait::No => (false, Some(now)),
            Wait::Poll(until) => (false, Some(until)),
            Wait::Sleep(until) => (true, until),
        };
        core.waits = Some(is_asleep);
        core.kick_at = until;
        match until {
            Some(until) if until <= now => {
                core.waits = None;
                self.begin_look(at, true, cost::LOOK_NS);
            }
            Some(until) => self.events.push(until, Event::Kick(at)),
            None => {}
        }
    }

    fn begin_look(&mut self, at: usize, asks: bool, cost_ns: u64) {
        let handed = self.cores[at].handed.len();
        let cost_ns = cost_ns + handed as u64 * cost::TAKE_NS;
        self.start(at, Doing::Look { asks, handed }, cost_ns, None);
    }

    /// Begins something that takes `cost_ns`, for an application; what takes no time is done at once.
    fn start(&mut self, at: usize, doing: Doing, mut cost_ns: u64, slot: Option<usize>) {
        let core = &mut self.cores[at];
        core.doing = Some((doing, self.now));
        if cost_ns == 0 {
            return self.finish_doing(at);
        }
        if let Some(slot) = slot {
            let class = self.apps[slot].spec.class;
            if core.last_class.replace(class) != Some(class) {
                cost_ns += cost::CHANGE_NS;
            }
        }
        let spread_ns = cost_ns * cost::SPREAD_PERCENT / 100;
        cost_ns = cost_ns - spread_ns + self.rng.below(2 * spread_ns + 1);
        self.after(cost_ns, Event::Free(at));
    }

    fn finish(&mut self, at: usize) {
        self.finish_doing(at);
        self.advance(at);
    }

    fn finish_doing(&mut self, at: usize) {
        let core = &mut self.cores[at];
        let (doing, since) = core.doing.take().expect("a core that becomes free did something");
        core.busy_ns += self.now.nanos_since(since);
        match doing {
            Doing::Look { asks, handed } => self.looked(at, asks, handed),
            Doing::TakeIn {
                slot,
                reads,
                requests,
            } => self.took_in(at, slot, reads, requests),
            Doing::Send { slot, bytes } => self.sent(at, slot, bytes),
            Doing::Work(step) => self.worked(at, step),
        }
    }

    /// How a connection stands now.
    fn standing(&self, at: usize, slot: usize) -> Standing {
        let core = &self.cores[at];
        core.connections[slot].standing(self.apps[slot].spec.bytes, self.room(at, slot))
    }

    /// Requests and payload that a session may have under way.
    fn room(&self, at: usize, slot: usize) -> (usize, u64) {
        let share_bytes = self.cores[at].dispatcher.share_of(slot);
        (self.spec.config.requests_max, share_bytes)
    }

    fn stand(&mut self, at: usize, slot: usize) {
        let standing = self.standing(at, slot);
        self.cores[at].dispatcher.stand(slot, standing);
    }

    /// A core has looked: at its connections only if it asked.
    fn looked(&mut self, at: usize, asks: bool, handed: usize) {
        if asks {
            for slot in take(&mut self.cores[at].news) {
                self.cores[at].connections[slot].can_read = true;
                self.stand(at, slot);
                self.cores[at].dispatcher.found_work();
            }
        }
        let handed: Vec<u32> = self.cores[at].handed.drain(..handed).collect();
        for request in handed {
            let passage = self.requests[request as usize].passage.take();
            let passage = passage.expect("it is between two cores");
            let tag = self.cores[at]
                .dispatcher
                .queue(self.now, self.requests[request as usize].app, passage);
            self.note(at, request, tag);
            self.cores[at].dispatcher.found_work();
        }
        for request in take(&mut self.cores[at].done) {
            self.executed(at, request);
            self.cores[at].dispatcher.found_work();
        }
        self.steer(at);
    }

    /// A core reads from a connection and takes requests.
    fn take_in(&mut self, at: usize, slot: usize, requests_max: usize, expects: bool) {
        let room = self.room(at, slot);
        let bytes = self.apps[slot].spec.bytes;
        let connection = &mut self.cores[at].connections[slot];
        let can_read = connection.can_read || expects;
        let (commands, data_bytes) = if can_read {
            connection.read()
        } else {
            (Vec::new(), 0)
        };
        let reads = data_bytes > 0 || !commands.is_empty();
        for &command in &commands {
            let request = &mut self.requests[command as usize];
            request.home = at;
            let connection = &mut self.cores[at].connections[slot];
            if request.read {
                connection.requests.push_back(command);
            } else {
                // The data are asked for (R2T), and the client's card sends them.
                connection.asked.push_back((command, bytes as usize));
                self.transmit(1, slot, bytes, Some(command));
            }
        }
        let connection = &self.cores[at].connections[slot];
        let requests = connection.requests.len();
        let requests = requests.min(requests_max).min(connection.room(bytes, room));
        let parse_ns = commands.len() as u64 * cost::PARSE_NS;
        let cost_ns = match (can_read, reads) {
            (_, true) => parse_ns + cost::bytes_ns(data_bytes),
            (true, false) => cost::LOOK_NS,
            (false, _) => 0,
        };
        let doing = Doing::TakeIn {
            slot,
            reads,
            requests,
        };
        self.start(at, doing, cost_ns, Some(slot));
    }

    fn took_in(&mut self, at: usize, slot: usize, reads: bool, requests: usize) {
        for _ in 0..requests {
            let AppSpec { bytes, hint, .. } = self.apps[slot].spec;
            let core = &mut self.cores[at];
            let connection = &mut core.connections[slot];
            let request = connection.requests.pop_front().expect("counted when it began");
            connection.in_flight += 1;
            connection.in_flight_bytes += u64::from(bytes);
            let ask = self.ask(request);
            let dispatcher = &mut self.cores[at].dispatcher;
            if !self.spec.config.switch.request_steering {
                let (tag, _) = dispatcher.arrive(self.now, slot, ask, || hint);
                self.note(at, request, tag);
                continue;
            }
            let passage = dispatcher.steer(self.now, slot, ask, || hint);
            let to = passage.core();
            if to == at {
                let tag = dispatcher.queue(self.now, slot, passage);
                self.note(at, request, tag);
                continue;
            }
            self.requests[request as usize].passage = Some(passage);
            self.outcome.steered += 1;
            let connection = &mut self.cores[at].connections[slot];
            connection.in_flight -= 1;
            connection.in_flight_bytes -= u64::from(bytes);
            let connection = &mut self.cores[to].connections[slot];
            connection.in_flight += 1;
            connection.in_flight_bytes += u64::from(bytes);
            self.after(cost::HANDOFF_NS, Event::Handed(request, to));
        }
        let standing = self.standing(at, slot);
        self.cores[at].dispatcher.taken(slot, reads, standing);
    }

    fn ask(&self, request: u32) -> Ask {
        let Request { app, read, .. } = self.requests[request as usize];
        Ask {
            kind: if read { Kind::Read } else { Kind::Write },
            bytes: self.apps[app].spec.bytes,
            urgent: false,
        }
    }

    /// A request waits at a core under the dispatcher's tag.
    fn note(&mut self, at: usize, request: u32, tag: u32) {
        let tags = &mut self.cores[at].tags;
        tags.resize(tags.len().max(tag as usize + 1), 0);
        tags[tag as usize] = request;
        self.requests[request as usize].tag = tag;
    }

    /// A request's turn has come: its medium does it.
    fn worked(&mut self, at: usize, step: Step) {
        if !step.begins {
            return;
        }
        let request = self.cores[at].tags[step.tag as usize];
        let read = self.requests[request as usize].read;
        match (self.apps[step.slot].spec.medium, read) {
            (Medium::Memory, _) => self.executed(at, request),
            (Medium::Ssd, true) => {
                let jitter_ns = self.rng.below(cost::SSD_READ_NS / 5);
                let device_ns = cost::SSD_READ_NS * 9 / 10 + jitter_ns;
                self.after(device_ns, Event::Done(request, at));
            }
            (Medium::Ssd, false) => self.after(cost::SSD_WRITE_NS, Event::Done(request, at)),
        }
    }

    /// A request is executed: its answer is to be sent.
    fn executed(&mut self, at: usize, request: u32) {
        let Request {
            app: slot, read, tag, ..
        } = self.requests[request as usize];
        let payload = if read {
            self.apps[slot].spec.bytes as usize
        } else {
            0
        };
        let core = &mut self.cores[at];
        core.dispatcher.answered(tag);
        let connection = &mut core.connections[slot];
        let bytes = payload + cost::ANSWER_BYTES;
        connection.answers.push_back((request, bytes));
        connection.answer_bytes += bytes;
        if !core.dispatcher.sends_next(slot) {
            self.stand(at, slot);
        }
    }

    fn sent(&mut self, at: usize, slot: usize, bytes: usize) {
        let request_bytes = u64::from(self.apps[slot].spec.bytes);
        let mut left = bytes;
        while left > 0 {
            let connection = &mut self.cores[at].connections[slot];
            let (request, missing) = connection.answers.front_mut().expect("as much as there is");
            let (request, part) = (*request, left.min(*missing));
            *missing -= part;
            let is_last = *missing == 0;
            left -= part;
            connection.answer_bytes -= part;
            connection.moved_bytes += part as u64;
            if is_last {
                connection.answers.pop_front();
                connection.in_flight -= 1;
                connection.in_flight_bytes -= request_bytes;
            }
            self.transmit(0, slot, part as u32, is_last.then_some(request));
        }
        let standing = self.standing(at, slot);
        let pages = self.spec.config.pool_pages;
        self.cores[at]
            .dispatcher
            .sent(slot, bytes, standing.waits, standing, pages);
    }

    /// Once in a turn: says what the connections of a core do, and moves those that are to move.
    fn steer(&mut self, at: usize) {
        let now = self.now;
        if self.cores[at].dispatcher.reports_now(now) {
            let dispatcher = &mut self.cores[at].dispatcher;
            self.homes.balance(now, dispatcher.reports(), &mut self.orders);
            dispatcher.reported(now);
            for Relocation { app, from, to } in self.orders.drain(..) {
                let (slot, core) = (app.0 as usize, &mut self.cores[from]);
                if core.dispatcher.app(slot) == Some(app) && core.dispatcher.set_out(now, slot, to) {
                    core.connections[slot].is_paused = true;
                }
            }
        }
        while self.cores[at].dispatcher.any_departing().is_some() {
            let rests = |slot| {
                let mut connections = self.cores.iter().map(|core| &core.connections[slot]);
                connections.all(Connection::is_at_rest)
            };
            let at_rest: Vec<bool> = (0..self.apps.len()).map(rests).collect();
            let dispatcher = &mut self.cores[at].dispatcher;
            match dispatcher.next_rested(now, |slot| at_rest[slot]) {
                None => break,
                Some(Rested::Leaves { slot, to }) => self.relocate(at, slot, to),
                Some(Rested::Stays { slot }) => self.keep(at, slot),
            }
        }
    }

    /// A connection that was to leave stays.
    fn keep(&mut self, at: usize, slot: usize) {
        let core = &mut self.cores[at];
        core.connections[slot].is_paused = false;
        core.dispatcher.go_on(slot);
        self.homes.stay(self.now, AppId(slot as u32));
    }

    /// A connection at rest moves: what has come and is not read goes along.
    fn relocate(&mut self, at: usize, slot: usize, to: usize) {
        if !self.homes.depart(at, to, || true) {
            return self.keep(at, slot);
        }
        let moving = self.cores[at].dispatcher.take(slot);
        let moved = take(&mut self.cores[at].connections[slot]);
        if self.spec.config.switch.request_steering {
            self.cores[at].dispatcher.open(slot, 0, None);
            self.cores[to].dispatcher.close(slot, |_| {});
        }
        let core = &mut self.cores[to];
        core.dispatcher.put(slot, 0, moving);
        core.connections[slot].commands = moved.commands;
        self.homes.arrive(to, AppId(slot as u32));
        self.apps[slot].core = to;
        self.outcome.moves += 1;
        self.tell(to, |core| core.news.push(slot));
    }
}

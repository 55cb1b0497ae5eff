//! The modelled host: cores, their ingress and egress queues, the applications, and what is measured.
//!
//! A core does one thing at a time and none is interrupted: first what has arrived (commands, completions, requests
//! handed over by other cores), then one slice of its egress queue, and so on. Under a policy that puts L first, all L
//! work comes before any T work, arrived or queued.

use super::cost;
use super::link::Link;
use crate::queue::Queue;
use base::{Duration, Instant, Rng};
use blockswitch::balance::work_of;
use blockswitch::class::ClassConfig;
use blockswitch::policy::Order;
use blockswitch::{
    AppId, AppView, Balancer, Charge, Class, ClassHint, Classifier, Config, CoreSet, Egress, Item, Kind,
    Limits, Loads, Move, Slice, Steering,
};
use hdrhistogram::Histogram;
use std::collections::VecDeque;

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
    /// Mean time in ns between two requests of one place in the queue, drawn from an exponential distribution; the next
    /// waits for the answer to the last all the same. 0: as soon as it is there.
    pub gap_ns: u64,
}

/// A run.
#[derive(Clone, Debug)]
pub struct HostSpec {
    /// The policy.
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
    /// A request's medium, or its data, is ready.
    Ready(u32, usize),
    /// A request handed over reaches its core.
    Handed(u32, usize),
    /// A core has done what it was doing.
    Free(usize),
    /// A core looks at its queue again.
    Kick(usize),
    /// A segment was sent: 0 from the host, 1 to it.
    Sent(usize),
    /// The answer reaches the client.
    Answer(u32),
    /// Application steering.
    Balance,
}

/// Work of a core.
#[derive(Clone, Copy, Debug)]
enum Work {
    Parse(u32),
    Ready(u32),
    Take(u32),
    Slice(Slice),
}

/// What has reached a core and is not done, with the time since when.
///
/// If the policy knows no class, all is done in order of arrival. Where it does, a class has connections of its own,
/// and those of L are read first.
#[derive(Debug, Default)]
struct Ingress {
    queues: [VecDeque<(Instant, Work)>; 2],
}

#[derive(Debug)]
struct Core {
    ingress: Ingress,
    egress: Egress,
    steering: Steering,
    /// Its work, and the time since when.
    doing: Option<(Work, Instant)>,
    idle_since: Instant,
    last_class: Option<Class>,
    kick_at: Option<Instant>,
    busy_ns: u64,
}

#[derive(Debug)]
struct App {
    spec: AppSpec,
    core: usize,
    classifier: Classifier,
    work: u64,
}

#[derive(Debug)]
struct Request {
    app: usize,
    read: bool,
    issued_at: Instant,
    /// When a paced application wanted to send it.
    due_at: Instant,
    class: Class,
    charge: Option<Charge>,
}

/// The host in the middle of a run.
#[derive(Debug)]
pub struct Host {
    spec: HostSpec,
    now: Instant,
    events: Queue<Event>,
    rng: Rng,
    loads: Loads,
    balancer: Balancer,
    cores: Vec<Core>,
    apps: Vec<App>,
    requests: Vec<Request>,
    /// From the host, and to it.
    links: [Link; 2],
    moves: Vec<Move>,
    outcome: Outcome,
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are valid")
}

impl Host {
    /// A host whose clients are about to begin.
    pub fn new(spec: HostSpec) -> Self {
        let mut rng = Rng::new(spec.seed);
        let depth: u32 = spec.apps.iter().map(|app| app.depth).sum();
        let limits = Limits {
            apps: spec.apps.len().max(2) as u32,
            app_requests: depth,
            requests: depth,
        };
        let core = |home| Core {
            ingress: Ingress::default(),
            egress: Egress::new(&spec.config, limits),
            steering: Steering::new(&spec.config, home, spec.cores, rng.fork()),
            doing: None,
            idle_since: Instant::ZERO,
            last_class: None,
            kick_at: None,
            busy_ns: 0,
        };
        let cores = (0..spec.cores).map(core).collect();
        let app = |spec_of: &AppSpec| App {
            spec: *spec_of,
            core: spec_of.home,
            classifier: Classifier::new(ClassConfig::DEFAULT, spec_of.hint, spec.config.promotion),
            work: 0,
        };
        Self {
            now: Instant::ZERO,
            events: Queue::new(),
            rng,
            loads: Loads::new(spec.cores, &spec.config),
            balancer: Balancer::new(&spec.config, spec.cores, limits.apps),
            cores,
            apps: spec.apps.iter().map(app).collect(),
            requests: Vec::new(),
            links: [0, 1].map(|_| Link::new(spec.gbps, spec.apps.len())),
            moves: Vec::new(),
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
                    issued_at: Instant::ZERO,
                    due_at: Instant::ZERO,
                    class: Class::Throughput,
                    charge: None,
                });
                self.issue(self.requests.len() as u32 - 1);
            }
        }
        if self.balancer.deadline().is_some() {
            self.events
                .push(Instant::ZERO + self.spec.config.balance_interval, Event::Balance);
        }
        let warm = Instant::ZERO + self.spec.warm;
        self.until(warm);
        let busy_ns = self.total(|core| core.busy_ns);
        let steered = self.total(|core| core.steering.steered());
        self.outcome.latency = [histogram(), histogram()];
        self.outcome.bytes = [0; 2];
        self.outcome.moves = 0;
        self.until(warm + self.spec.measured);
        let all_ns = self.spec.measured.as_nanos() as u64 * self.cores.len() as u64;
        self.outcome.busy = (self.total(|core| core.busy_ns) - busy_ns) as f64 / all_ns as f64;
        self.outcome.steered = self.total(|core| core.steering.steered()) - steered;
        self.outcome
    }

    fn total(&self, of: impl Fn(&Core) -> u64) -> u64 {
        self.cores.iter().map(of).sum()
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
                let core = self.apps[self.requests[request as usize].app].core;
                self.enter(core, Work::Parse(request));
            }
            Event::Ready(request, core) => self.enter(core, Work::Ready(request)),
            Event::Handed(request, core) => self.enter(core, Work::Take(request)),
            Event::Free(core) => self.finish_work(core),
            Event::Kick(core) => {
                self.cores[core].kick_at = None;
                self.start_work(core);
            }
            Event::Sent(direction) => {
                let (request, next_ns) = self.links[direction].sent();
                self.expect_sent(direction, next_ns);
                if let Some(request) = request {
                    self.delivered(direction, request);
                }
            }
            Event::Answer(request) => self.answered(request),
            Event::Balance => self.balance(),
        }
    }

    fn after(&mut self, ns: u64, event: Event) {
        self.events.push(self.now + Duration::from_nanos(ns), event);
    }

    fn enter(&mut self, core: usize, work: Work) {
        let queue = match self.spec.config.order {
            Order::Fifo | Order::RunToCompletion => Class::Latency,
            _ => self.class_of(&work),
        };
        self.cores[core].ingress.queues[queue.index()].push_back((self.now, work));
        self.start_work(core);
    }

    /// Whose work it is. A command that is not parsed has the class of its connection.
    fn class_of(&self, work: &Work) -> Class {
        match work {
            Work::Parse(request) => {
                let app = self.requests[*request as usize].app;
                self.apps[app].classifier.class()
            }
            Work::Ready(request) | Work::Take(request) => self.requests[*request as usize].class,
            Work::Slice(slice) => slice.class,
        }
    }

    /// What has come and is to be done before anything that is queued to leave: L, and T unless L waits to leave. T
    /// does not wait for that longer than for a slice.
    fn next_arrival(&mut self, at: usize) -> Option<Work> {
        let core = &mut self.cores[at];
        let [latency, throughput] = &mut core.ingress.queues;
        let config = &self.spec.config;
        let waits = core.egress.waiting(Class::Latency) > 0;
        let starving = config.order == Order::Sliced
            && throughput
                .front()
                .is_some_and(|(since, _)| self.now.since(*since) >= config.starvation_delay);
        let completes = config.order == Order::Sliced && waits;
        let next = match (completes, latency.is_empty()) {
            (true, _) if starving => throughput.pop_front(),
            (true, _) => None,
            (false, true) if !waits => throughput.pop_front(),
            (false, _) => latency.pop_front(),
        };
        next.map(|(_, work)| work)
    }

    /// A client sends its next request.
    fn issue(&mut self, request: u32) {
        let at = &mut self.requests[request as usize];
        let mut think_ns = self.rng.below(cost::THINK_NS_MAX + 1);
        if let gap_ns @ 1.. = self.apps[at.app].spec.gap_ns {
            let due = at.due_at + Duration::from_nanos(self.rng.exponential(gap_ns as f64) as u64);
            at.due_at = due;
            think_ns = think_ns.max(due.nanos_since(self.now));
        }
        at.read = self.rng.below(100) < self.apps[at.app].spec.read_percent;
        at.issued_at = self.now + Duration::from_nanos(think_ns);
        self.after(think_ns + cost::ONE_WAY_NS, Event::Arrive(request));
    }

    fn answered(&mut self, request: u32) {
        let Request { app, issued_at, .. } = self.requests[request as usize];
        let spec = &self.apps[app].spec;
        let class = spec.class.index();
        let latency_ns = self.now.nanos_since(issued_at);
        self.outcome.latency[class].saturating_record(latency_ns);
        self.outcome.bytes[class] += u64::from(spec.bytes);
        self.issue(request);
    }

    /// Bytes have crossed the link: an answer leaves for the client, or the data of a write are here.
    fn delivered(&mut self, direction: usize, request: u32) {
        let core = self.apps[self.requests[request as usize].app].core;
        match direction {
            0 => self.after(cost::ONE_WAY_NS, Event::Answer(request)),
            _ => self.after(cost::ONE_WAY_NS, Event::Ready(request, core)),
        }
    }

    fn send(&mut self, direction: usize, app: usize, bytes: u32, request: Option<u32>) {
        let next_ns = self.links[direction].push(app, bytes, request);
        self.expect_sent(direction, next_ns);
    }

    fn expect_sent(&mut self, direction: usize, next_ns: Option<u64>) {
        if let Some(ns) = next_ns {
            self.after(ns, Event::Sent(direction));
        }
    }

    /// The next thing to do, if the core is free.
    fn start_work(&mut self, at: usize) {
        let now = self.now;
        if self.cores[at].doing.is_some() {
            return;
        }
        let arrival = self.next_arrival(at);
        let core = &mut self.cores[at];
        let (work, mut cost_ns) = match arrival {
            Some(work) => {
                let cost_ns = match work {
                    Work::Parse(_) => cost::PARSE_NS,
                    Work::Ready(_) => cost::READY_NS,
                    Work::Take(_) | Work::Slice(_) => cost::TAKE_NS,
                };
                (work, cost_ns)
            }
            None => {
                let Some(slice) = core.egress.pop(now) else {
                    self.sleep(at);
                    return;
                };
                self.loads.set_batch(at, core.egress.batch());
                let cost_ns = cost::SLICE_NS + cost::bytes_ns(slice.bytes);
                (Work::Slice(slice), cost_ns)
            }
        };
        let class = self.class_of(&work);
        let core = &mut self.cores[at];
        if core.last_class.replace(class) != Some(class) {
            cost_ns += cost::change_ns(self.spec.config.order);
        }
        if now.nanos_since(core.idle_since) > cost::SLEEP_AFTER_NS {
            cost_ns += cost::WAKE_NS;
        }
        let spread_ns = cost_ns * cost::SPREAD_PERCENT / 100;
        cost_ns = cost_ns - spread_ns + self.rng.below(2 * spread_ns + 1);
        core.doing = Some((work, now));
        self.after(cost_ns, Event::Free(at));
    }

    /// Nothing to do now; perhaps later, when a doorbell is due.
    fn sleep(&mut self, at: usize) {
        let core = &mut self.cores[at];
        let Some(deadline) = core.egress.deadline() else {
            return;
        };
        if core.kick_at.is_none_or(|at| deadline < at) {
            core.kick_at = Some(deadline);
            self.events.push(deadline, Event::Kick(at));
        }
    }

    fn finish_work(&mut self, at: usize) {
        let core = &mut self.cores[at];
        let (work, since) = core.doing.take().expect("a core that becomes free did something");
        let spent_ns = self.now.nanos_since(since);
        core.busy_ns += spent_ns;
        core.idle_since = self.now;
        let class = match work {
            Work::Parse(request) => {
                self.parsed(at, request);
                self.requests[request as usize].class
            }
            Work::Ready(request) => {
                self.dispatch(at, request);
                self.requests[request as usize].class
            }
            Work::Take(request) => {
                self.queue(at, request);
                self.requests[request as usize].class
            }
            Work::Slice(slice) => {
                self.sliced(slice);
                slice.class
            }
        };
        self.loads.spend(at, class, spent_ns);
        self.start_work(at);
    }

    /// A command is known: its class, and what it waits for.
    fn parsed(&mut self, at: usize, request: u32) {
        let now = self.now;
        let state = &mut self.requests[request as usize];
        let (read, app) = (state.read, state.app);
        let spec = self.apps[app].spec;
        state.class = self.apps[app].classifier.arrive(now, spec.bytes, false);
        match (read, spec.medium) {
            (true, Medium::Memory) => self.dispatch(at, request),
            (true, Medium::Ssd) => {
                let jitter_ns = self.rng.below(cost::SSD_READ_NS / 5);
                let device_ns = cost::SSD_READ_NS * 9 / 10 + jitter_ns;
                self.after(device_ns, Event::Ready(request, at));
            }
            // The data are asked for (R2T), and the client's card sends them.
            (false, _) => self.send(1, app, spec.bytes, Some(request)),
        }
    }

    /// A request can be worked on: by whom?
    fn dispatch(&mut self, at: usize, request: u32) {
        let state = &mut self.requests[request as usize];
        let bytes = self.apps[state.app].spec.bytes;
        let core = self.cores[at]
            .steering
            .steer(self.now, &self.loads, state.class, bytes);
        // An application that has just moved has its new home, although this request came to the old one.
        let home = self.apps[state.app].core;
        state.charge = Some(self.loads.charge(self.now, home, core, state.class, bytes));
        match core == at {
            true => self.queue(at, request),
            false => self.after(cost::HANDOFF_NS, Event::Handed(request, core)),
        }
    }

    fn queue(&mut self, at: usize, request: u32) {
        let state = &self.requests[request as usize];
        let item = Item {
            app: AppId(state.app as u32),
            class: state.class,
            tag: u64::from(request),
            bytes: self.apps[state.app].spec.bytes,
            kind: if state.read { Kind::Read } else { Kind::Write },
        };
        let egress = &mut self.cores[at].egress;
        egress
            .push(self.now, item)
            .expect("limits are all requests there are");
        self.loads.set_batch(at, egress.batch());
        self.start_work(at);
    }

    /// A slice is done; with the last one, the request.
    fn sliced(&mut self, slice: Slice) {
        let request = slice.tag as u32;
        let state = &mut self.requests[request as usize];
        let (app, read) = (state.app, state.read);
        if read {
            self.send(0, app, slice.bytes, slice.last.then_some(request));
        }
        if !slice.last {
            return;
        }
        let state = &mut self.requests[request as usize];
        let bytes = self.apps[app].spec.bytes;
        self.loads
            .release(state.charge.take().expect("charged when dispatched"));
        self.apps[app].classifier.finish(bytes, state.class);
        self.apps[app].work += work_of(bytes);
        if !read {
            let device_ns = match self.apps[app].spec.medium {
                Medium::Memory => 0,
                Medium::Ssd => cost::SSD_WRITE_NS,
            };
            self.after(cost::ONE_WAY_NS + device_ns, Event::Answer(request));
        }
    }

    fn balance(&mut self) {
        let view = |(at, app): (usize, &App)| AppView {
            app: AppId(at as u32),
            class: app.classifier.class(),
            core: app.core,
            allowed: CoreSet::ALL,
            work: app.work,
        };
        let views: Vec<_> = self.apps.iter().enumerate().map(view).collect();
        self.balancer.tick(self.now, &self.loads, &views, &mut self.moves);
        for one in self.moves.drain(..) {
            self.apps[one.app.0 as usize].core = one.to;
            self.outcome.moves += 1;
        }
        self.after(
            self.spec.config.balance_interval.as_nanos() as u64,
            Event::Balance,
        );
    }
}

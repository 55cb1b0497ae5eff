//! The block switch of one core: between the sessions of clients and whoever executes their requests.
//!
//! Every connection is an application of [`blockswitch`]. A request is classified and queued when its session has it,
//! and leaves in slices; from the first slice on it is under way, until its answer takes it off the books. Under way it
//! carries the switch's own tag, and its answer gets the session's back.
//!
//! Invariant: every request that was pushed is finished or, if its connection closed before it began, dropped.

use crate::core::Endpoint;
use crate::frontend::Origin;
use crate::spans::Span;
use crate::{ClassRules, CoreConfig};
use base::{BlockOp, BlockReply, BlockRequest, Instant};
use blockswitch::balance::work_of;
use blockswitch::class::ClassConfig;
use blockswitch::policy::{Balancing, Order};
use blockswitch::{AppId, Charge, Class, Classifier, Config, Egress, Item, Kind, Limits, Loads};
use std::sync::Arc;

/// Work of a core, in the order in which it is to be done.
pub(crate) struct Step {
    /// The connection.
    pub slot: usize,
    /// Bytes of this slice.
    pub bytes: usize,
    pub class: Class,
    /// With a request's first slice.
    pub request: Option<(Endpoint, BlockRequest)>,
}

/// A request, waiting or under way.
struct Work {
    slot: usize,
    client: u32,
    /// The session's own.
    tag: u64,
    bytes: u32,
    class: Class,
    charge: Option<Charge>,
    waiting: Option<(Endpoint, BlockRequest)>,
    /// When it passed what, if that is wanted.
    span: Option<Span>,
}

/// An application.
pub(crate) struct App {
    client: u32,
    classifier: Classifier,
    /// All that was done for it, for application steering.
    work: u64,
}

pub(crate) struct Switch {
    config: Config,
    rules: ClassRules,
    egress: Egress,
    loads: Arc<Loads>,
    core: usize,
    /// By connection.
    apps: Vec<Option<App>>,
    work: Vec<Option<Work>>,
    free: Vec<u32>,
}

impl Switch {
    /// The switch of core `core` of those that share `loads`.
    pub fn new(settings: &CoreConfig, loads: Arc<Loads>, core: usize) -> Self {
        let config = configuration(settings);
        let (connections, requests) = (settings.connections_max, settings.requests_max.max(1));
        let limits = Limits {
            apps: connections as u32,
            // Sessions take no more than this, so nothing is refused: of each class one may be answered and not yet
            // wholly paid for.
            app_requests: requests as u32 + 2,
            requests: (connections * (requests + 2)) as u32,
        };
        Self {
            egress: Egress::new(&config, limits),
            config,
            rules: settings.classes.clone(),
            loads,
            core,
            apps: (0..connections).map(|_| None).collect(),
            work: Vec::new(),
            free: Vec::new(),
        }
    }

    /// True if latency-bound work goes before bulk work that has begun: the loop looks for it between any two slices.
    pub fn prioritises(&self) -> bool {
        matches!(self.config.order, Order::Strict | Order::Sliced)
    }

    /// True if work is done in slices, so that everybody's turn is bounded.
    pub fn slices(&self) -> bool {
        self.config.order == Order::Sliced
    }

    /// Bulk work after which the loop looks for latency-bound work. By request where requests are not cut.
    pub fn slice_bytes(&self) -> usize {
        match self.config.order {
            Order::Sliced => self.config.slice_bytes as usize,
            Order::Strict => 1,
            _ => usize::MAX,
        }
    }

    /// True if no request waits.
    pub fn is_empty(&self) -> bool {
        self.egress.is_empty()
    }

    /// Requests of a connection that wait, those under way in slices included.
    pub fn waiting_of(&self, slot: usize) -> u32 {
        self.egress.waiting_of(AppId(slot as u32))
    }

    /// When a batch that is held back goes.
    pub fn deadline(&self) -> Option<Instant> {
        self.egress.deadline()
    }

    /// The class of a connection's line.
    pub fn class_of(&self, slot: usize) -> Class {
        self.apps[slot]
            .as_ref()
            .map_or(Class::Latency, |app| app.classifier.class())
    }

    /// Queues a request, of a host of this name if it is an NVMe host; says its class.
    pub fn push(
        &mut self,
        now: Instant,
        origin: Origin,
        host_nqn: Option<&str>,
        mut request: BlockRequest,
        span: Option<Span>,
    ) -> Class {
        let Origin { slot, port, endpoint } = origin;
        let hint = || self.rules.hint(host_nqn, port, request.volume);
        let app = match &mut self.apps[slot] {
            Some(app) if app.client == request.client => app,
            app => app.insert(App {
                client: request.client,
                classifier: Classifier::new(ClassConfig::DEFAULT, hint(), self.config.promotion),
                work: 0,
            }),
        };
        let (kind, bytes) = match request.op {
            BlockOp::Read => (Kind::Read, request.length),
            BlockOp::Write => (Kind::Write, request.length),
            BlockOp::Flush | BlockOp::Trim | BlockOp::WriteZeroes => (Kind::Control, 0),
        };
        let urgent = request.fua || request.op == BlockOp::Flush;
        let class = app.classifier.arrive(now, bytes, urgent);
        let charge = self.loads.charge(now, self.core, self.core, class, bytes);
        let index = self.free.pop().unwrap_or_else(|| {
            self.work.push(None);
            self.work.len() as u32 - 1
        });
        let work = Work {
            slot,
            client: request.client,
            tag: request.tag,
            bytes,
            class,
            charge: Some(charge),
            waiting: None,
            span,
        };
        request.tag = u64::from(index);
        self.work[index as usize] = Some(Work {
            waiting: Some((endpoint, request)),
            ..work
        });
        let item = Item {
            app: AppId(slot as u32),
            class,
            tag: u64::from(index),
            bytes,
            kind,
        };
        self.egress
            .push(now, item)
            .expect("sessions keep to the limits that the queue was made for");
        class
    }

    /// What to do next, when `bulk_bytes` are left of the slice of bulk work.
    pub fn pop(&mut self, now: Instant, bulk_bytes: usize) -> Option<Step> {
        let bulk_bytes = u32::try_from(bulk_bytes).unwrap_or(u32::MAX);
        let slice = self.egress.pop_within(now, bulk_bytes)?;
        let mut work = self.work[slice.tag as usize]
            .as_mut()
            .filter(|_| slice.from_byte == 0);
        if let Some(span) = work.as_mut().and_then(|work| work.span.as_mut()) {
            span.begin(now);
        }
        Some(Step {
            slot: slice.app.0 as usize,
            bytes: slice.bytes as usize,
            class: slice.class,
            request: work.and_then(|work| work.waiting.take()),
        })
    }

    /// A request is answered: takes it off the books and gives its answer the session's tag. Returns when it passed what,
    /// if that is wanted.
    pub fn finish(&mut self, reply: &mut BlockReply) -> Option<Span> {
        let work = self.forget(reply.tag);
        reply.tag = work.tag;
        work.span
    }

    fn forget(&mut self, index: u64) -> Work {
        let mut work = self.work[index as usize].take().expect("a request ends once");
        self.free.push(index as u32);
        if let Some(charge) = work.charge.take() {
            self.loads.release(charge);
        }
        // Its connection may have closed, and another have its place.
        if let Some(app) = &mut self.apps[work.slot]
            && app.client == work.client
        {
            app.classifier.finish(work.bytes, work.class);
            app.work += work_of(work.bytes);
        }
        work
    }

    /// The core has worked for a class for `ns`.
    pub fn spend(&self, class: Class, ns: u64) {
        self.loads.spend(self.core, class, ns);
    }

    /// The load of all cores.
    pub fn loads(&self) -> &Loads {
        &self.loads
    }

    /// Class and work of a connection that has asked for something.
    pub fn work_of(&self, slot: usize) -> Option<(Class, u64)> {
        let app = self.apps[slot].as_ref()?;
        Some((app.classifier.class(), app.work))
    }

    /// A connection moves to another core, all its requests answered: what is known of it goes along.
    pub fn take(&mut self, slot: usize) -> Option<App> {
        let app = self.apps[slot].take();
        // Answered, but not wholly paid for.
        while self.egress.cancel(AppId(slot as u32)).is_some() {}
        app
    }

    /// What is known of a connection that has come from another core.
    pub fn put(&mut self, slot: usize, client: u32, app: Option<App>) {
        self.apps[slot] = app.map(|app| App { client, ..app });
    }

    /// A connection has closed: what it has waiting is dropped; its client number, and how much that was. What is under way
    /// ends by itself.
    pub fn close(&mut self, slot: usize) -> (u32, usize) {
        let mut dropped = 0;
        while let Some(index) = self.egress.cancel(AppId(slot as u32)) {
            // A request that was cut has begun and ends with its answer; its number may be another's by now.
            let waits = self.work[index as usize]
                .as_ref()
                .is_some_and(|work| work.slot == slot && work.waiting.is_some());
            if waits {
                self.forget(index);
                dropped += 1;
            }
        }
        // Who has asked for nothing has nothing waiting.
        (self.apps[slot].take().map_or(0, |app| app.client), dropped)
    }
}

/// A core's configuration of the switch. Requests are not steered: the core that executes a request also sends the
/// answer, and only the connection's own core can.
pub(crate) fn configuration(settings: &CoreConfig) -> Config {
    Config {
        slice_bytes: settings.slice_bytes,
        request_steering: Balancing::Off,
        ..Config::of(settings.policy)
    }
}

//! The loop of one core as a state machine. See the module above for the order of a turn.

use super::config::{
    ANSWER_BYTES, Config, ENOUGH_REQUESTS, GUESSES_MAX, REQUEST_BYTES, SPARSE_LINGER,
    TURN_REQUESTS_BESIDE_SPARSE, TURN_REQUESTS_MAX,
};
use super::homes::Report;
use super::lead::Lead;
use super::lines::{Line, Lines, Moving, Rested, Standing};
use super::spin::Spin;
use base::time::earliest;
use base::{BlockOp, BlockRequest, Duration, Instant, Rng, Slab};
use blockswitch::class::ClassConfig;
use blockswitch::{AppId, Charge, Class, ClassHint, Classifier, Egress, Item, Kind, Limits, Loads, Steering};
use std::sync::Arc;

/// What the core does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Take in what came from other sources than connections. If `asks`, ask who is ready, and wait as
    /// [`Dispatcher::wait`] says.
    Look {
        /// The core does not know who is ready.
        asks: bool,
    },
    /// Read once from a connection, at most [`super::READ_BYTES`], and take its requests with [`Dispatcher::arrive`]. Then
    /// say [`Dispatcher::taken`].
    TakeIn {
        /// Which.
        slot: usize,
        /// Take no more requests than this.
        requests_max: usize,
        /// Nobody has said that there is something to read, but there may be.
        expects: bool,
    },
    /// Send at least `bytes_min` bytes of what a connection has to send, and not much more. Then say
    /// [`Dispatcher::sent`].
    Send {
        /// Which.
        slot: usize,
        /// 0 if what waits is sent with its slices.
        bytes_min: usize,
    },
    /// Work on a request.
    Work(Step),
}

/// A slice of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The connection.
    pub slot: usize,
    /// The request. Only valid where the request `begins`: it may have been answered before its later slices.
    pub tag: u32,
    /// Bytes of this slice.
    pub bytes: usize,
    /// Of the request.
    pub class: Class,
    /// The first slice: the request is to be executed. Later slices send what its answer left.
    pub begins: bool,
}

/// How long a core that looks may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all: there is work.
    No,
    /// Until then it asks again and again, without sleeping.
    Poll(Instant),
    /// It sleeps until somebody wakes it, or until then.
    Sleep(Option<Instant>),
}

/// What a request asks for, as far as its order goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// What it does.
    pub kind: Kind,
    /// Its payload.
    pub bytes: u32,
    /// Others wait for it: FLUSH or FUA.
    pub urgent: bool,
}

impl Ask {
    /// Of a block request.
    pub fn of(request: &BlockRequest) -> Self {
        let (kind, bytes) = match request.op {
            BlockOp::Read => (Kind::Read, request.range.length() as u32),
            BlockOp::Write => (Kind::Write, request.range.length() as u32),
            BlockOp::Flush | BlockOp::Trim | BlockOp::WriteZeroes | BlockOp::Status => (Kind::Control, 0),
        };
        Self {
            kind,
            bytes,
            urgent: request.fua || request.op == BlockOp::Flush,
        }
    }
}

/// A request between the core that took it and the core that works on it.
#[derive(Debug)]
pub struct Passage {
    ask: Ask,
    class: Class,
    charge: Charge,
}

impl Passage {
    /// The core that is to [`Dispatcher::queue`] it.
    pub fn core(&self) -> usize {
        self.charge.core()
    }
}

/// A request, waiting or under way.
#[derive(Debug)]
struct Work {
    slot: usize,
    client: u32,
    bytes: u32,
    class: Class,
    charge: Charge,
    has_begun: bool,
}

/// Where the loop is.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// A turn begins.
    Begin,
    /// It reads from connections of which it guesses that they ask.
    Guess { left: usize },
    /// It looks for what has come.
    Look,
    /// It takes in from connections of a line.
    TakeIn { line: Line, left: usize },
    /// It works; so many bytes of the slice of bulk work are done.
    Work { bulk_bytes: usize },
    /// It sends the last answers.
    End,
}

/// One core of a target. See the module above.
#[derive(Debug)]
pub struct Dispatcher {
    config: Config,
    core: usize,
    loads: Arc<Loads>,
    /// Chooses the core of each request; `serve` has none.
    steering: Option<Steering>,
    egress: Egress,
    lines: Lines,
    lead: Lead,
    works: Slab<Work>,
    stage: Stage,
    /// The connection that is told to send next, and how much.
    send_next: Option<(usize, usize)>,
    /// A step before which another connection's answers are sent.
    held: Option<Step>,
    /// The connection that was worked for last, and about how much it has to send.
    last: Option<(usize, Class)>,
    unsent_bytes: usize,
    /// What bulk connections sent while their line was taken in.
    bulk_sent_bytes: usize,
    /// When a client that asks little at a time was last here.
    sparse_at: Instant,
    /// Who it was, and how many guesses in a row that it would ask next were right.
    sparse_slot: Option<usize>,
    /// Which of them asked last, and when that was another than before.
    sparse_last: Option<usize>,
    sparse_changed_at: Option<Instant>,
    expected: Option<usize>,
    guesses: u32,
    is_right: bool,
    /// The turn has found work.
    worked: bool,
    spin: Spin,
    /// When the last act began, and for which class.
    act_at: Instant,
    act_class: Option<Class>,
    /// How often it says what its connections do, and when next; `None` if the policy does not ask.
    report_interval: Option<Duration>,
    report_at: Instant,
}

impl Dispatcher {
    /// The dispatcher of core `core` of those that share `loads`.
    pub fn new(now: Instant, config: &Config, loads: Arc<Loads>, core: usize) -> Self {
        // Sessions take no more than this, so nothing is refused: of each class one may be answered and not yet wholly
        // paid for.
        let app_requests = config.session_requests_max() + 2;
        let requests = config.connections_max * app_requests;
        let limits = Limits {
            apps: config.connections_max as u32,
            app_requests: app_requests as u32,
            requests: requests as u32,
        };
        Self {
            egress: Egress::new(&config.switch, limits),
            lines: Lines::new(config),
            lead: Lead::new(config.switch.starvation_delay),
            works: Slab::with_capacity(requests),
            spin: Spin::new(config.spin, now),
            config: *config,
            core,
            loads,
            steering: None,
            stage: Stage::Begin,
            send_next: None,
            held: None,
            last: None,
            unsent_bytes: 0,
            bulk_sent_bytes: 0,
            sparse_at: Instant::ZERO,
            sparse_slot: None,
            sparse_last: None,
            sparse_changed_at: None,
            expected: None,
            guesses: 0,
            is_right: false,
            worked: false,
            act_at: now,
            act_class: None,
            report_interval: None,
            report_at: Instant::ZERO,
        }
    }

    /// Becomes one of several cores, which say every so often what their connections do ([`super::Homes::interval`]).
    pub fn join(&mut self, report_interval: Option<Duration>) {
        self.report_interval = report_interval;
    }

    /// Lets requests move between cores, if the policy says so. Only the simulator can: its clients have a connection to
    /// every core.
    pub fn steer_requests(&mut self, rng: Rng) {
        let config = &self.config.switch;
        self.steering = Some(Steering::new(config, self.core, self.loads.cores(), rng));
    }

    /// What the core does next. To be asked when it has done what it was told last.
    pub fn next(&mut self, now: Instant) -> Act {
        if let Some(class) = self.act_class.take() {
            let spent_ns = now.nanos_since(self.act_at);
            self.loads.spend(self.core, class, spent_ns);
            self.lead.spent(class, spent_ns, self.bulk_waits());
        }
        self.act_at = now;
        if let Some((slot, bytes_min)) = self.send_next.take() {
            self.act_class = Some(self.class_of_stage());
            return Act::Send { slot, bytes_min };
        }
        loop {
            match self.stage {
                Stage::Begin => self.begin_turn(now),
                Stage::Guess { left: 0 } => {
                    self.guesses = if self.is_right { self.guesses + 1 } else { 0 };
                    self.stage = Stage::Look;
                }
                Stage::Look => {
                    let asks = !core::mem::take(&mut self.is_right);
                    self.expected = None;
                    self.stage = Stage::TakeIn {
                        line: Line::Sparse,
                        left: usize::MAX,
                    };
                    return Act::Look { asks };
                }
                Stage::Guess { left } => {
                    self.stage = Stage::Guess { left: left - 1 };
                    if let Some(act) = self.take_in(now, Line::Sparse) {
                        return act;
                    }
                }
                Stage::TakeIn { line, left } => {
                    // Who can go on after its turn stands in line again, for the next round.
                    let left = match line != Line::Throughput && self.owes_bulk() {
                        true => 0,
                        false => left.min(self.lines.waiting(line)),
                    };
                    if left == 0 {
                        self.stage = if self.is_idle() {
                            Stage::Begin
                        } else {
                            self.after(line)
                        };
                        continue;
                    }
                    self.stage = Stage::TakeIn { line, left: left - 1 };
                    if let Some(act) = self.take_in(now, line) {
                        return act;
                    }
                }
                Stage::Work { bulk_bytes } => {
                    if let Some(act) = self.work(now, bulk_bytes) {
                        return act;
                    }
                }
                Stage::End => {
                    self.stage = Stage::Begin;
                    if let Some(act) = self.send_last() {
                        return act;
                    }
                }
            }
        }
    }

    /// Nobody stands in line, no request waits, and no answer is to be sent.
    fn is_idle(&self) -> bool {
        !self.lines.any() && self.egress.is_empty() && self.held.is_none() && self.last.is_none()
    }

    #[inline]
    fn bulk_waits(&self) -> bool {
        self.lines.waiting(Line::Throughput) > 0 || self.egress.has_throughput()
    }

    /// Bulk work waits, and goes before latency-bound work.
    #[inline]
    fn owes_bulk(&self) -> bool {
        self.lead.is_over() && self.config.slices() && self.bulk_waits()
    }

    /// The core spends its time on this class.
    fn class_of_stage(&self) -> Class {
        match self.stage {
            Stage::TakeIn {
                line: Line::Throughput,
                ..
            } => Class::Throughput,
            _ => Class::Latency,
        }
    }

    fn begin_turn(&mut self, now: Instant) {
        if core::mem::take(&mut self.worked) {
            self.spin.worked(now);
        }
        self.bulk_sent_bytes = 0;
        // Of several that ask little the core would hear the one it guesses, and leave the others waiting.
        let is_alone = self
            .sparse_changed_at
            .is_none_or(|at| now.since(at) >= SPARSE_LINGER);
        let may = is_alone && self.guesses < GUESSES_MAX && !self.egress.is_empty() && self.config.slices();
        let slot = self
            .sparse_slot
            .take()
            .filter(|&slot| may && self.lines.is_sparse(slot));
        let Some(slot) = slot else {
            self.guesses = 0;
            self.stage = Stage::Look;
            return;
        };
        self.expected = Some(slot);
        self.lines.push(slot);
        self.stage = Stage::Guess {
            left: self.lines.waiting(Line::Sparse),
        };
    }

    /// What comes after a line.
    fn after(&self, line: Line) -> Stage {
        let one_if = |bounded: bool| if bounded { 1 } else { usize::MAX };
        match line {
            Line::Sparse => Stage::TakeIn {
                line: Line::Latency,
                left: one_if(self.config.slices()),
            },
            Line::Latency => Stage::TakeIn {
                line: Line::Throughput,
                left: one_if(self.config.prioritises()),
            },
            Line::Throughput => Stage::Work {
                bulk_bytes: self.bulk_sent_bytes,
            },
        }
    }

    fn take_in(&mut self, now: Instant, line: Line) -> Option<Act> {
        let slot = self.lines.next(line)?;
        if line == Line::Throughput && self.waiting_of(slot) >= ENOUGH_REQUESTS && self.lines.pass(slot) {
            return None;
        }
        self.act_class = Some(self.class_of_stage());
        Some(Act::TakeIn {
            slot,
            requests_max: self.requests_max(now, line),
            expects: self.expected == Some(slot),
        })
    }

    fn requests_max(&self, now: Instant, line: Line) -> usize {
        if line != Line::Latency || !self.config.slices() {
            return usize::MAX;
        }
        let is_shared = now.since(self.sparse_at) < SPARSE_LINGER;
        [TURN_REQUESTS_MAX, TURN_REQUESTS_BESIDE_SPARSE][usize::from(is_shared)]
    }

    /// Everything that goes before bulk work, and one slice of that. Answers of one connection that follow each other are
    /// sent together.
    fn work(&mut self, now: Instant, bulk_bytes: usize) -> Option<Act> {
        let slice_bytes = self.config.slice_bytes();
        let step = match self.held.take() {
            Some(step) => step,
            None => {
                let left = slice_bytes.saturating_sub(bulk_bytes).max(1);
                let Some(step) = self.pop(now, left) else {
                    self.stage = Stage::End;
                    return None;
                };
                self.worked = true;
                let is_full = self.unsent_bytes >= self.config.batch_bytes();
                if self.last.is_some_and(|(slot, _)| slot != step.slot || is_full) {
                    self.held = Some(step);
                    return self.send_last();
                }
                step
            }
        };
        self.lines.sending = Some(step.slot);
        self.last = Some((step.slot, step.class));
        self.unsent_bytes += step.bytes + ANSWER_BYTES;
        self.act_class = Some(step.class);
        if self.config.prioritises() && step.class == Class::Throughput {
            let bulk_bytes = bulk_bytes + step.bytes + if step.begins { REQUEST_BYTES } else { 0 };
            self.stage = match bulk_bytes >= slice_bytes {
                true => Stage::End,
                false => Stage::Work { bulk_bytes },
            };
        }
        Some(Act::Work(step))
    }

    fn send_last(&mut self) -> Option<Act> {
        let (slot, class) = self.last.take()?;
        self.act_class = Some(class);
        Some(Act::Send {
            slot,
            bytes_min: core::mem::take(&mut self.unsent_bytes),
        })
    }

    fn pop(&mut self, now: Instant, bulk_bytes: usize) -> Option<Step> {
        let bulk_bytes = u32::try_from(bulk_bytes).unwrap_or(u32::MAX);
        let slice = self.egress.pop_within(now, bulk_bytes, self.owes_bulk());
        self.tell_batch();
        let slice = slice?;
        let begins = slice.from_byte == 0;
        if begins {
            self.works[slice.tag as u32].has_begun = true;
        }
        Some(Step {
            slot: slice.app.0 as usize,
            tag: slice.tag as u32,
            bytes: slice.bytes as usize,
            class: slice.class,
            begins,
        })
    }

    /// How long the core may wait before it asks who is ready, with so many pages of its pool free. The core calls it for
    /// every look that asks.
    pub fn wait(&mut self, now: Instant, pages_free: usize, is_busy: bool) -> Wait {
        self.lines.unblock(now, pages_free);
        let batch = self.egress.deadline();
        if is_busy || self.lines.any() || !self.egress.is_empty() && batch.is_none() {
            return Wait::No;
        }
        match self.spin.polls_until(now) {
            Some(until) => Wait::Poll(batch.map_or(until, |at| at.min(until))),
            None => {
                let moves = earliest(self.lines.rest_deadline(), self.lines.idle_deadline());
                Wait::Sleep(earliest(batch, moves))
            }
        }
    }

    /// The look found work that is not a connection's.
    pub fn found_work(&mut self) {
        self.worked = true;
    }

    /// A new connection.
    ///
    /// # Panics
    /// If its slot has one.
    pub fn open(&mut self, slot: usize, client: u32, app: Option<AppId>) {
        self.lines.open(slot, client, app);
    }

    /// Something happened at a connection, or it was told something: where it stands now.
    pub fn stand(&mut self, slot: usize, standing: Standing) {
        self.lines.stand(self.act_at, slot, standing);
    }

    /// A connection that is to be cut: its client keeps memory that others wait for, and neither sends what it announced nor
    /// reads what it asked for.
    pub fn next_idle(&mut self, now: Instant) -> Option<usize> {
        self.lines.next_idle(now)
    }

    /// A request of the connection that is taken in. Returns its tag.
    pub fn arrive(
        &mut self,
        now: Instant,
        slot: usize,
        ask: Ask,
        hint: impl FnOnce() -> ClassHint,
    ) -> (u32, Class) {
        let class = self.classify(now, slot, ask, hint);
        let charge = self.loads.charge(self.core, self.core, class, ask.bytes);
        let tag = self.queue(now, slot, Passage { ask, class, charge });
        (tag, class)
    }

    /// The same for a core that [steers requests](Self::steer_requests): a core is to queue the request.
    pub fn steer(
        &mut self,
        now: Instant,
        slot: usize,
        ask: Ask,
        hint: impl FnOnce() -> ClassHint,
    ) -> Passage {
        let class = self.classify(now, slot, ask, hint);
        let steering = self.steering.as_mut().expect("a core that steers requests");
        let core = steering.steer(&self.loads, class);
        if core != self.core
            && let Some(connection) = self.lines.get_mut(slot)
        {
            connection.finish(ask.bytes, class);
        }
        let charge = self.loads.charge(self.core, core, class, ask.bytes);
        Passage { ask, class, charge }
    }

    fn classify(&mut self, now: Instant, slot: usize, ask: Ask, hint: impl FnOnce() -> ClassHint) -> Class {
        let connection = self.lines.get_mut(slot).expect("an open connection has requests");
        connection.taken += 1;
        let promotion = self.config.switch.promotion;
        let classifier = connection
            .classifier
            .get_or_insert_with(|| Classifier::new(ClassConfig::DEFAULT, hint(), promotion));
        classifier.arrive(now, ask.bytes, ask.urgent)
    }

    /// Queues a request of a connection. Returns its tag.
    pub fn queue(&mut self, now: Instant, slot: usize, request: Passage) -> u32 {
        let Passage { ask, class, charge } = request;
        let tag = self.works.insert(Work {
            slot,
            client: self.lines.get(slot).map_or(0, |connection| connection.client),
            bytes: ask.bytes,
            class,
            charge,
            has_begun: false,
        });
        let item = Item {
            app: AppId(slot as u32),
            class,
            tag: u64::from(tag),
            bytes: ask.bytes,
            kind: ask.kind,
        };
        self.egress
            .push(now, item)
            .expect("sessions keep to the limits that the queue was made for");
        self.tell_batch();
        tag
    }

    /// Says how many requests wait for the published doorbell, by which the published steering chooses.
    fn tell_batch(&self) {
        if self.steering.is_some() {
            self.loads.set_batch(self.core, self.egress.batch());
        }
    }

    /// The connection was read, and its requests are taken; `reads` if there were bytes.
    pub fn taken(&mut self, slot: usize, reads: bool, standing: Standing) {
        let Some(connection) = self.lines.get(slot) else {
            return;
        };
        let requests = connection.taken;
        let line = match self.stage {
            Stage::TakeIn { line, .. } => line,
            _ => Line::Sparse,
        };
        let has_work = reads || requests > 0;
        self.worked |= has_work;
        if let Stage::Guess { .. } = self.stage {
            self.is_right |= has_work;
        }
        if line == Line::Sparse && requests > 0 {
            (self.sparse_at, self.sparse_slot) = (self.act_at, Some(slot));
            if self.sparse_last.replace(slot).is_some_and(|last| last != slot) {
                self.sparse_changed_at = Some(self.act_at);
            }
        }
        // A turn that was cut short says nothing of how few there were.
        let told = match requests == self.requests_max(self.act_at, line) {
            true => usize::MAX,
            false => requests,
        };
        self.lines.note_turn(self.act_at, slot, reads, told, standing);
        // What waits is sent with its slices.
        let waits = self.waiting_of(slot) > 0;
        self.send_next = Some((slot, if waits { 0 } else { self.config.send_bytes() }));
    }

    /// The connection has sent so many bytes. `was_blocked` if its session was blocked before, with so many pages of the
    /// pool free now.
    pub fn sent(
        &mut self,
        slot: usize,
        bytes: usize,
        was_blocked: bool,
        standing: Standing,
        pages_free: usize,
    ) {
        self.lines.sending = None;
        if let Stage::TakeIn {
            line: Line::Throughput,
            ..
        } = self.stage
        {
            self.bulk_sent_bytes += bytes;
        }
        let has_room = was_blocked && bytes > 0;
        self.lines.sent(self.act_at, slot, standing, has_room, pages_free);
    }

    /// A request is answered.
    pub fn answered(&mut self, tag: u32) {
        let work = self.works.remove(tag);
        self.loads.release(work.charge);
        // Its connection may have closed, and another have its place.
        if let Some(connection) = self.lines.get_mut(work.slot)
            && connection.client == work.client
        {
            connection.finish(work.bytes, work.class);
        }
    }

    /// A connection has closed: its requests that have not begun are `dropped`. What is under way ends by itself.
    pub fn close(&mut self, slot: usize, mut dropped: impl FnMut(u32)) {
        self.lines.sending = None;
        while let Some(tag) = self.egress.cancel(AppId(slot as u32)) {
            // A request that was cut has begun and ends with its answer; its tag may be another's by now.
            let waits = self
                .works
                .get(tag as u32)
                .is_some_and(|work| work.slot == slot && !work.has_begun);
            if waits {
                self.answered(tag as u32);
                dropped(tag as u32);
            }
        }
        self.lines.vacate(slot);
    }

    /// True if a connection's answers are sent next: it needs no turn of its own.
    pub fn sends_next(&self, slot: usize) -> bool {
        self.lines.sending == Some(slot)
    }

    /// Payload that a connection may have under way.
    pub fn share_of(&self, slot: usize) -> u64 {
        self.lines.share_of(self.act_at, slot)
    }

    /// Requests of a connection that wait, those under way in slices included.
    pub fn waiting_of(&self, slot: usize) -> u32 {
        self.egress.waiting_of(AppId(slot as u32))
    }

    /// True if the core is to say what its connections do.
    pub fn reports_now(&self, now: Instant) -> bool {
        self.report_interval.is_some() && now >= self.report_at
    }

    /// What its connections do, for [`super::Homes::balance`].
    pub fn reports(&self) -> impl Iterator<Item = Report> {
        self.lines.all().filter_map(|(_, connection)| {
            Some(Report {
                app: connection.app?,
                class: connection.classifier.as_ref()?.class(),
                work: connection.work,
            })
        })
    }

    /// The core has said it.
    pub fn reported(&mut self, now: Instant) {
        if let Some(interval) = self.report_interval {
            self.report_at = now + interval;
        }
    }

    /// Connections that application steering knows, with their slots.
    pub fn apps(&self) -> impl Iterator<Item = (usize, AppId)> {
        self.lines
            .all()
            .filter_map(|(slot, connection)| Some((slot, connection.app?)))
    }

    /// The application of a connection, if application steering knows it.
    pub fn app(&self, slot: usize) -> Option<AppId> {
        self.lines.get(slot)?.app
    }

    /// A connection is to leave for core `to`: its session takes nothing new. False if it already is.
    pub fn set_out(&mut self, now: Instant, slot: usize, to: usize) -> bool {
        self.lines.set_out(now, slot, to)
    }

    /// The next connection that is at rest or has had its time.
    pub fn next_rested(&mut self, now: Instant, is_at_rest: impl Fn(usize) -> bool) -> Option<Rested> {
        self.lines.next_rested(now, is_at_rest)
    }

    /// A connection that was to leave goes on here.
    pub fn go_on(&mut self, slot: usize) {
        self.lines.go_on(slot);
    }

    /// A connection that was to leave, if there is one.
    pub fn any_departing(&self) -> Option<usize> {
        self.lines.any_departing()
    }

    /// A connection at rest moves to another core: what is known of it goes along.
    ///
    /// # Panics
    /// If there is no such connection.
    pub fn take(&mut self, slot: usize) -> Moving {
        // Answered, but not wholly paid for.
        while self.egress.cancel(AppId(slot as u32)).is_some() {}
        self.lines.vacate(slot).expect("an open connection").1
    }

    /// A connection has come from another core.
    pub fn put(&mut self, slot: usize, client: u32, moving: Moving) {
        self.lines.put(slot, client, moving);
        self.lines.push(slot);
    }
}

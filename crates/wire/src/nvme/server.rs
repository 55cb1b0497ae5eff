//! The calls of a world to a session, and a session on its way to another core.
//!
//! Data that the host was asked for may come behind commands of which nobody knows yet. So a paused session takes
//! commands as long as it waits for such data, and leaves them waiting: they move along.

use core::ops::Range;
use std::sync::Arc;

use base::time::earliest;
use base::{BlockReply, Duration, Instant, Page, Pages, Pool};

use super::limits::SessionLimits;
use super::session::{CLOSE_TIME, CloseReason, Flow, Link, Phase, Queue, Session};
use super::target::{Access, Usage};
use super::work::{Extra, Plan, Stage, Work};
use crate::segment::Outgoing;
use crate::session::{self, Asks, Opening, Protocol, State};

/// A connection that has no queue after this long is closed.
const CONNECT_TIME: Duration = Duration::from_secs(30);
/// Delay before the session tells the target its counts of reads and writes.
const USAGE_TIME: Duration = Duration::from_secs(1);
/// A discovery controller without a keep-alive time ends after this long without a command (Fabrics §5.2).
const DISCOVERY_TIME_MS: u32 = 120_000;

/// Stable name of the protocol.
pub const NAME: &str = "nvme";

/// The NVMe/TCP protocol of a listener.
pub struct Nvme(Arc<dyn Access>);

impl Nvme {
    /// Hosts find the subsystems of `target`, whose volumes are those behind the listener.
    pub fn new(target: Arc<dyn Access>) -> Arc<Self> {
        Arc::new(Self(target))
    }
}

impl Protocol for Nvme {
    fn name(&self) -> &'static str {
        NAME
    }

    fn open(&self, opening: Opening) -> Box<dyn session::Session> {
        let limits = SessionLimits {
            in_flight_max: opening.limits.queue_entries,
            in_flight_bytes_max: opening.limits.bytes_max,
            part_bytes: opening.limits.part_bytes,
            pages_reserve: opening.limits.pages_reserve,
            ..SessionLimits::default()
        };
        let target = Arc::clone(&self.0);
        let session = Session::new(opening.client, opening.pool, limits, target);
        Box::new(session.via(opening.via))
    }

    fn generation(&self) -> u64 {
        self.0.generation()
    }

    fn watch(&self, wake: Box<dyn Fn() + Send + Sync>) {
        self.0.watch(wake);
    }
}

impl Session {
    /// Takes note of the time and of what changed in the target.
    fn moment(&mut self, now: Instant) {
        self.link.now = now;
        self.link.started.get_or_insert(now);
        let generation = self.link.target.generation();
        if self.link.generation == Some(generation) {
            return;
        }
        self.link.generation = Some(generation);
        if matches!(self.link.phase, Phase::Closing(_)) {
            // Nothing is told any more, but others may wait for what is under way.
            self.look_at_fences();
        } else {
            self.renew();
        }
    }

    /// See [`crate::Session::park`].
    pub fn park(mut self) -> Parked {
        assert!(session::Session::is_at_rest(&self), "nothing is under way");
        assert_eq!(self.ledger.bytes, 0, "what waits does not count");
        assert!(
            self.passed == self.link.fence && self.acquires.is_empty(),
            "nothing under way is waited for"
        );
        let waiting = self.waiting.iter().map(|&tag| {
            let mut work = self.ledger.remove(tag);
            work.lengthen();
            (work.plan, work.done_bytes, work.extra)
        });
        Parked {
            waiting: waiting.collect(),
            link: self.link,
        }
    }

    /// See [`crate::Parked::unpark`].
    pub fn unpark(parked: Parked, client: u32, pool: Pool) -> Self {
        let mut session = Self::with(parked.link, client, pool);
        session.blocked = true;
        for (plan, done_bytes, extra) in parked.waiting {
            let work = Work {
                done_bytes,
                ..Work::new(plan, Stage::Waiting, Pages::new(), extra)
            };
            session.waiting.push_back(session.ledger.insert(work));
        }
        session
    }

    /// How long an admin queue lives without a sign from its host.
    fn life(&self) -> Option<Duration> {
        let queue = self
            .link
            .queue
            .as_ref()
            .filter(|queue| queue.connected.qid == 0)?;
        let milliseconds = match queue.view.kato_ms {
            0 if queue.connected.discovery => DISCOVERY_TIME_MS,
            milliseconds => milliseconds,
        };
        (milliseconds > 0).then(|| Duration::from_millis(u64::from(milliseconds)))
    }

    /// Tells the target what was read and written.
    fn report_usage(&mut self) {
        self.link.usage_since = None;
        let usage = core::mem::take(&mut self.link.usage);
        if let Some(queue) = &self.link.queue
            && usage != Usage::default()
        {
            let handle = queue.connected.handle;
            self.link.target.with(&mut |target| target.record(handle, &usage));
        }
    }
}

impl session::Session for Session {
    fn receive(&mut self, now: Instant, bytes: &[u8]) -> usize {
        self.moment(now);
        self.may_go_on = false;
        self.grant();
        let mut taken = 0;
        loop {
            if self.paused && !self.is_receiving() && !matches!(self.link.phase, Phase::Closing(_)) {
                self.blocked = true;
                return taken;
            }
            let (step, flow) = self.step(&bytes[taken..]);
            taken += step;
            self.blocked = flow == Flow::Blocked;
            if flow != Flow::Again {
                return taken;
            }
        }
    }

    fn payload_room(&self, visitor: &mut dyn FnMut(&Page, Range<usize>) -> bool) {
        self.room_for_payload(visitor);
    }

    fn payload_filled(&mut self, bytes: usize) {
        self.fill_payload(bytes);
    }

    fn asks(&mut self) -> Asks<'_> {
        let queue = self.link.queue.as_ref();
        Asks {
            requests: &mut self.ledger.requests,
            host_name: queue.map(|_| self.link.host_nqn.as_str()),
        }
    }

    fn complete(&mut self, reply: BlockReply) {
        self.answered(reply);
    }

    fn transmit(&self, to: &mut Outgoing<'_>) {
        self.output.visit(&mut |segment| to.take(segment));
    }

    fn sent(&mut self, bytes: usize) {
        self.ledger.bytes -= self.output.sent(bytes);
        self.grant();
    }

    fn state(&self) -> State {
        let is_waiting = !self.waiting.is_empty();
        let is_held_up = self.blocked || is_waiting;
        State {
            is_blocked: self.blocked,
            is_waiting,
            is_receiving: self.is_receiving(),
            has_requests: !self.ledger.requests.is_empty() || is_waiting && self.may_go_on,
            is_short: self.short > 0,
            is_over: self.closed().is_some(),
            pending_bytes: self.output.pending_bytes(),
            share_wanted: if is_held_up { self.ledger.share_wanted() } else { 0 },
            in_flight: self.in_flight(),
            in_flight_bytes: self.ledger.bytes,
        }
    }

    fn set_share(&mut self, bytes: u64) {
        self.ledger.share_bytes = bytes;
    }

    /// At once for a session that knows no time yet.
    fn deadline(&self) -> Option<Instant> {
        let Some(started) = self.link.started else {
            return Some(Instant::ZERO);
        };
        let life = match (&self.link.phase, self.life()) {
            (Phase::Closing(_), _) => Some(self.closing_since + CLOSE_TIME),
            (_, Some(life)) => Some(self.link.alive + life),
            (_, None) if self.link.queue.is_none() => Some(started + CONNECT_TIME),
            (_, None) => None,
        };
        earliest(life, self.link.usage_since.map(|since| since + USAGE_TIME))
    }

    /// Timeouts, events that the host is waiting for, a controller that is gone.
    fn tick(&mut self, now: Instant) {
        self.moment(now);
        if matches!(self.link.phase, Phase::Closing(_)) {
            return;
        }
        let started = self.link.started.expect("it was set a moment ago");
        match self.life() {
            Some(life) if now >= self.link.alive + life => self.close(CloseReason::KeepAlive),
            None if self.link.queue.is_none() && now >= started + CONNECT_TIME => {
                self.close(CloseReason::Idle);
            }
            _ => {}
        }
        if self
            .link
            .usage_since
            .is_some_and(|since| now >= since + USAGE_TIME)
        {
            self.report_usage();
        }
    }

    /// Refusals are path errors, which make hosts try another path or come back.
    fn shut_down(&mut self) {
        self.link.stopping = true;
    }

    fn pause(&mut self) {
        self.paused = true;
        self.blocked |= !self.is_receiving();
    }

    fn resume(&mut self) {
        self.paused = false;
    }

    /// Commands may wait, event requests too.
    fn is_at_rest(&self) -> bool {
        let open = !self.is_receiving() && !matches!(self.link.phase, Phase::Closing(_));
        let under_way = self.ledger.len() - self.waiting.len();
        let is_quiet = self.ledger.requests.is_empty() && self.output.pending_bytes() == 0;
        self.paused && open && under_way == 0 && is_quiet
    }

    fn park(self: Box<Self>) -> Box<dyn session::Parked> {
        Box::new((*self).park())
    }

    /// An admin queue takes its controller along, an I/O queue may be connected again.
    fn detach(&mut self) -> Option<Box<dyn session::Late>> {
        self.report_usage();
        if !matches!(self.link.phase, Phase::Closing(_)) {
            self.close(CloseReason::ControllerGone);
        }
        let Queue { connected, .. } = self.link.queue.take()?;
        let asked = self.ledger.iter().filter(|(_, work)| work.stage == Stage::Asked);
        let late = Late {
            attachment: connected.attachment,
            requests: asked.count() - self.ledger.requests.len(),
            target: Arc::clone(&self.link.target),
        };
        let is_awaited = late.attachment > 0 && late.requests > 0;
        self.link.target.with(&mut |target| match connected.qid {
            0 => target.destroy(connected.handle),
            qid => {
                target.leave(connected.handle, connected.resets, qid);
                if !is_awaited {
                    target.release(late.attachment);
                }
            }
        });
        is_awaited.then(|| Box::new(late) as Box<dyn session::Late>)
    }
}

/// A session without requests under way and without its pool: what it knows, and the commands that have no room yet.
pub struct Parked {
    link: Link,
    waiting: Vec<(Plan, u32, Option<Box<Extra>>)>,
}

impl session::Parked for Parked {
    fn unpark(self: Box<Self>, client: u32, pool: Pool) -> Box<dyn session::Session> {
        Box::new(Session::unpark(*self, client, pool))
    }
}

/// Requests of a closed connection that hosts which preempt others wait for.
struct Late {
    attachment: u64,
    requests: usize,
    target: Arc<dyn Access>,
}

impl session::Late for Late {
    fn settle(&mut self, requests: usize) -> bool {
        self.requests -= requests;
        let over = self.requests == 0;
        if over {
            self.target.with(&mut |target| target.release(self.attachment));
        }
        over
    }
}

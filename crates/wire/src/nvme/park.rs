//! A session on its way to another core: paused until nothing of it is under way, and then without pages and pool.
//!
//! Data that the host was asked for may come behind commands of which nobody knows yet. So a paused session takes
//! commands as long as it waits for such data, and leaves them waiting: they move along.

use std::collections::VecDeque;

use base::{Instant, Pages, Pool};

use super::io::{Extra, Plan, Slot, Stage, Work};
use super::output::{Framing, Output};
use super::proto::IC_BYTES;
use super::session::{Phase, Queue, Session};
use super::target::{EVENT_REQUESTS_MAX, Usage};
use super::{SessionLimits, Shape};

/// A session without requests under way and without its pool, which can be sent to another core.
pub struct Parked {
    limits: SessionLimits,
    pool_pages: usize,
    shape: Shape,
    phase: Phase,
    scratch: [u8; IC_BYTES],
    scratch_bytes: usize,
    framing: Option<Framing>,
    queue: Option<Queue>,
    host_nqn: String,
    /// The generation of each slot, and the command that waits in it.
    slots: Vec<(u32, Option<Waiting>)>,
    free: Vec<u32>,
    waiting: VecDeque<u32>,
    stopping: bool,
    event_requests: Vec<u16>,
    generation: Option<u64>,
    fence: u64,
    usage: Usage,
    usage_since: Option<Instant>,
    now: Instant,
    started: Option<Instant>,
    alive: Instant,
}

/// A command that has no room yet.
struct Waiting {
    plan: Plan,
    extra: Option<Box<Extra>>,
}

impl Slot {
    fn park(self) -> (u32, Option<Waiting>) {
        let waiting = self.work.map(|work| Waiting {
            plan: work.plan,
            extra: work.extra,
        });
        (self.generation, waiting)
    }

    fn unpark((generation, waiting): (u32, Option<Waiting>)) -> Self {
        let work = waiting.map(|Waiting { plan, extra }| Work {
            plan,
            stage: Stage::Waiting,
            damaged: false,
            preempted: None,
            filled: 0,
            asked_bytes: 0,
            counted_bytes: 0,
            pages: Pages::new(),
            extra,
        });
        Self { generation, work }
    }
}

impl Session {
    /// Begins no more commands and takes no more bytes, but for data that the host was asked for: the session is blocked
    /// until [`Session::resume`]. Requests under way go on.
    pub fn pause(&mut self) {
        self.paused = true;
        self.blocked |= !self.is_receiving();
    }

    /// Ends a pause. Call [`Session::receive`] with what it has not taken.
    pub fn resume(&mut self) {
        self.paused = false;
    }

    /// True if a paused session has nothing under way and nothing to send. Commands may wait, event requests too.
    pub fn is_at_rest(&self) -> bool {
        let open = !self.is_receiving() && !matches!(self.phase, Phase::Closing(_));
        let under_way = self.slots.len() - self.free.len() - self.waiting.len();
        self.paused && open && under_way == 0 && self.requests.is_empty() && self.pending_bytes() == 0
    }

    /// Takes the session out of its core.
    ///
    /// # Panics
    /// If it is not at rest.
    pub fn park(self) -> Parked {
        assert!(self.is_at_rest(), "nothing is under way");
        assert_eq!(self.bytes_in_flight, 0, "what waits does not count");
        assert!(
            self.passed == self.fence && self.acquires.is_empty(),
            "nothing under way is waited for"
        );
        Parked {
            limits: self.limits,
            pool_pages: self.pool.capacity(),
            shape: self.shape,
            phase: self.phase,
            scratch: self.scratch,
            scratch_bytes: self.scratch_bytes,
            framing: self.framing,
            queue: self.queue,
            host_nqn: self.host_nqn,
            slots: self.slots.into_iter().map(Slot::park).collect(),
            free: self.free,
            waiting: self.waiting,
            stopping: self.stopping,
            event_requests: self.event_requests,
            generation: self.generation,
            fence: self.fence,
            usage: self.usage,
            usage_since: self.usage_since,
            now: self.now,
            started: self.started,
            alive: self.alive,
        }
    }

    /// Goes on with a session on the core of `pool`, under a new client number. It is blocked until it is given what it
    /// had not taken.
    ///
    /// # Panics
    /// If the pool is not as large as the one before: what was announced would not hold.
    pub fn unpark(parked: Parked, client: u32, pool: Pool) -> Self {
        assert_eq!(pool.capacity(), parked.pool_pages, "pools are of one size");
        let entries = parked.limits.in_flight_max;
        Self {
            client,
            pool,
            limits: parked.limits,
            shape: parked.shape,
            phase: parked.phase,
            scratch: parked.scratch,
            scratch_bytes: parked.scratch_bytes,
            framing: parked.framing,
            queue: parked.queue,
            host_nqn: parked.host_nqn,
            slots: parked.slots.into_iter().map(Slot::unpark).collect(),
            free: parked.free,
            waiting: parked.waiting,
            receiving: 0,
            granted: VecDeque::new(),
            asked_bytes: 0,
            bytes_in_flight: 0,
            share_bytes: u64::MAX,
            share_wanted: 0,
            requests: VecDeque::with_capacity(entries),
            output: Output::new(entries + EVENT_REQUESTS_MAX),
            blocked: true,
            paused: false,
            stopping: parked.stopping,
            event_requests: parked.event_requests,
            generation: parked.generation,
            acquires: Vec::new(),
            fence: parked.fence,
            passed: parked.fence,
            usage: parked.usage,
            usage_since: parked.usage_since,
            now: parked.now,
            started: parked.started,
            alive: parked.alive,
            closing_since: Instant::ZERO,
        }
    }
}

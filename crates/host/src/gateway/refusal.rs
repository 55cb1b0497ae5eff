//! Operations that a replica refuses: another replica is asked, and then they are sent ever later.
//!
//! A refusal comes at once, so only its own rule bounds how often a set that refuses is asked. The first time around each replica is asked
//! at once. From then on each refusal doubles the pause of its operation, up to [`PAUSE_MAX`]. An answer tells that its replica serves again:
//! then [`GO_WITH_ANSWER`] operations of its kind end their pauses. So many packets follow an answer, and none follows a refusal.
//!
//! A mutation whose requests have been given up is asked about until its outcome is known, as its page is locked: each
//! [`GIVEN_UP_PAUSE`].

use super::flight::Flight;
use super::operations::{Kind, Operation};
use super::set::sooner;
use base::{Duration, Instant, VssdId};
use smallvec::SmallVec;

/// The first pause. Most replicas that refuse are about to serve.
const PAUSE_MIN: Duration = Duration::from_millis(2);
/// The longest one: a single operation waits so long after its set serves again.
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// The pause doubles so often at most: from the least to more than the most.
const DOUBLINGS_MAX: u32 = 8;
/// The least pause after a failure of the medium, which takes an expulsion to mend.
const LATCHED_PAUSE_MIN: Duration = Duration::from_millis(50);
/// So long after a failure of the medium the replica is expelled, if the others can go on without it (`rack::heal`).
const EXPELLED_WITHIN: Duration = Duration::from_secs(5);
/// A mutation that nobody waits for any more is asked about so often.
const GIVEN_UP_PAUSE: Duration = Duration::from_secs(2);
/// So many operations end their pauses with an answer of their replica: all of 256 after eight times around.
const GO_WITH_ANSWER: usize = 2;

/// The refusals of one operation.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// How many there were.
    pub count: u32,
    /// It was refused, and is not sent before its time.
    pub pauses: bool,
    /// When a replica said first that its medium has failed.
    latched: Option<Instant>,
}

impl Refusals {
    /// How long to wait after the last one of them.
    fn pause(&self) -> Duration {
        let doublings = self.count.saturating_sub(1).min(DOUBLINGS_MAX);
        PAUSE_MIN.saturating_mul(1 << doublings).min(PAUSE_MAX)
    }
}

/// Kinds of operations.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Kinds(u8);

impl Kinds {
    fn bit(kind: &Kind) -> u8 {
        match kind {
            Kind::Read { .. } => 1,
            Kind::ReadForMerge { .. } => 2,
            Kind::Mutate { .. } => 4,
            Kind::Flush { .. } => 8,
        }
    }

    fn insert(&mut self, kind: &Kind) {
        self.0 |= Self::bit(kind);
    }

    fn remove(&mut self, kind: &Kind) {
        self.0 &= !Self::bit(kind);
    }

    fn contains(self, kind: &Kind) -> bool {
        self.0 & Self::bit(kind) != 0
    }
}

impl Operation {
    /// Nobody waits for its end, but what follows it must know it.
    fn is_given_up(&self) -> bool {
        matches!(&self.kind, Kind::Mutate { parts, .. } if parts.is_empty())
    }

    /// True if any replica may answer it. What is to be changed is read where changes are ordered.
    fn turns(&self) -> bool {
        matches!(self.kind, Kind::Read { .. }) && self.damaged == 0
    }

    /// True if it is of the other one's set and kind, and was refused.
    fn is_refused_with(&self, other: &Self) -> bool {
        let is_alike = core::mem::discriminant(&self.kind) == core::mem::discriminant(&other.kind);
        let is_of_set = (self.volume, self.set) == (other.volume, other.set);
        is_alike && is_of_set && self.number != 0 && self.refusals.count > 0
    }

    /// True if it was refused, and need not wait any more where this replica serves.
    fn goes_to(&self, vssd: VssdId) -> bool {
        // Where it was sent after a refusal it may wait for nothing.
        let is_elsewhere = self.vssd != vssd && self.turns();
        is_elsewhere || self.vssd == vssd && self.refusals.pauses && !self.is_given_up()
    }
}

impl Flight {
    /// A replica does not serve: another one is asked, or this one later.
    pub fn refused(&mut self, now: Instant, slot: u32) {
        let operation = &mut self.operations[slot];
        if operation.refusals.pauses {
            // It answers an earlier sending.
            return;
        }
        operation.refusals.count += 1;
        let replicas = &self.volumes[operation.volume].sets[operation.set].replicas;
        let first_time_around = (operation.refusals.count as usize) < replicas.len();
        if !first_time_around || !self.turn_to_heard(now, slot) {
            self.pause(now, slot, Duration::ZERO);
        }
    }

    /// Lets an operation wait after a refusal.
    fn pause(&mut self, now: Instant, slot: u32, least: Duration) {
        let operation = &mut self.operations[slot];
        let pause = match operation.is_given_up() {
            true => GIVEN_UP_PAUSE,
            false => operation.refusals.pause().max(least),
        };
        operation.refusals.pauses = true;
        operation.again_at = now + pause;
        sooner(&mut self.scan_at, operation.again_at);
        let set = &mut self.volumes[operation.volume].sets[operation.set];
        set.refused.insert(&operation.kind);
    }

    /// The pause of an operation is over.
    pub fn end_pause(&mut self, now: Instant, slot: u32) {
        if !self.turn_to_heard(now, slot) {
            self.send_or_ask(now, slot);
        }
    }

    /// A read is sent to the next replica that is not silent. False if there is none.
    fn turn_to_heard(&mut self, now: Instant, slot: u32) -> bool {
        let operation = &self.operations[slot];
        let set = &self.volumes[operation.volume].sets[operation.set];
        self.turn(now, slot, set.next_heard(now, operation.vssd))
    }

    /// A read is sent to the next replica. False if there is none.
    pub fn turn_to_next(&mut self, now: Instant, slot: u32) -> bool {
        let operation = &self.operations[slot];
        let set = &self.volumes[operation.volume].sets[operation.set];
        self.turn(now, slot, set.next_of(operation.vssd))
    }

    fn turn(&mut self, now: Instant, slot: u32, next: VssdId) -> bool {
        let operation = &mut self.operations[slot];
        if !operation.turns() || next == operation.vssd {
            return false;
        }
        operation.pinned = true;
        operation.vssd = next;
        self.send(now, slot);
        true
    }

    /// A replica has answered an operation that has ended: it may answer others that were refused.
    pub fn go_on(&mut self, now: Instant, ended: &Operation, vssd: VssdId) {
        let set = &mut self.volumes[ended.volume].sets[ended.set];
        if !set.refused.contains(&ended.kind) || !set.replicas.contains(&vssd) {
            return;
        }
        let mut going: SmallVec<[u32; GO_WITH_ANSWER]> = SmallVec::new();
        let mut others = self
            .operations
            .iter()
            .filter(|(_, other)| other.is_refused_with(ended));
        let mut is_last = true;
        while let Some((slot, other)) = others.next().filter(|_| going.len() < GO_WITH_ANSWER) {
            is_last = false;
            if other.goes_to(vssd) {
                going.push(slot);
            }
        }
        drop(others);
        if is_last {
            set.refused.remove(&ended.kind);
        }
        for slot in going {
            self.operations[slot].vssd = vssd;
            self.send(now, slot);
        }
    }

    /// True while the replica whose medium has failed may be expelled: the primary is asked again.
    ///
    /// It answers what a number has ended with once for ever. So a mutation that failed with members of before is done with those
    /// of now under another number. Its page is locked all the while: no other change comes between.
    #[cold]
    pub fn awaits_expulsion(&mut self, now: Instant, slot: u32) -> bool {
        let operation = &mut self.operations[slot];
        let since = *operation.refusals.latched.get_or_insert(now);
        let (volume, number) = (operation.volume, operation.set);
        let set = &mut self.volumes[volume].sets[number];
        if matches!(operation.kind, Kind::Mutate { .. }) && operation.epoch != operation.numbered_in {
            set.end_mutation(core::mem::take(&mut operation.number));
            (operation.attempts, operation.refusals) = (0, Refusals::default());
            set.waiting_mutations.push(slot, operation.kind.is_bulk());
            self.launch_waiting(now, volume, number);
            return true;
        }
        if set.is_lone() || now.since(since) >= EXPELLED_WITHIN {
            return false;
        }
        if !operation.refusals.pauses {
            operation.refusals.count += 1;
            self.pause(now, slot, LATCHED_PAUSE_MIN);
        }
        true
    }
}

//! Operations that a replica refuses: another replica is asked, and then they are sent ever later.
//!
//! A refusal comes at once, so only its own rule bounds how often a set that refuses is asked. The first time around each replica is asked
//! at once. From then on each refusal doubles the pause of its operation, up to [`PAUSE_MAX`]. An answer tells that its replica serves again:
//! then [`GO_WITH_ANSWER`] operations of its kind end their pauses. So many packets follow an answer, and none follows a refusal.
//!
//! A mutation whose requests have been given up is asked about until its outcome is known, as its page is locked: each
//! [`GIVEN_UP_PAUSE`].

use base::{Duration, Instant};

/// The first pause. Most replicas that refuse are about to serve.
const PAUSE_MIN: Duration = Duration::from_millis(2);
/// The longest one: a single operation waits so long after its set serves again.
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// The pause doubles so often at most: from the least to more than the most.
const DOUBLINGS_MAX: u32 = 8;
/// The least pause after a failure of the medium, which takes an expulsion to mend.
pub(super) const LATCHED_PAUSE_MIN: Duration = Duration::from_millis(50);
/// So long after a failure of the medium the replica is expelled, if the others can go on without it (`rack::heal`).
pub(super) const EXPELLED_WITHIN: Duration = Duration::from_secs(5);
/// A mutation that nobody waits for any more is asked about so often.
pub(super) const GIVEN_UP_PAUSE: Duration = Duration::from_secs(2);
/// So many operations end their pauses with an answer of their replica: all of 256 after eight times around.
pub(super) const GO_WITH_ANSWER: usize = 2;

/// The refusals of one operation.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// How many there were.
    pub count: u32,
    /// It was refused, and is not sent before its time.
    pub pauses: bool,
    /// When a replica said first that its medium has failed.
    pub latched: Option<Instant>,
}

impl Refusals {
    /// How long to wait after the last one of them.
    pub fn pause(&self) -> Duration {
        let doublings = self.count.saturating_sub(1).min(DOUBLINGS_MAX);
        PAUSE_MIN.saturating_mul(1 << doublings).min(PAUSE_MAX)
    }
}

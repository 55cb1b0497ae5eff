//! A vSSD that knows two ToRs asks one of them alone before it collects. So two replicas of a set never collect by soft request
//! at once (RackBlox §3.5), also while servers disagree about which ToR is there.
//!
//! With each registration a vSSD *promises* one ToR to ask no other, and tells the other ToR that it does not. A ToR holds a promise
//! for [`HOLDS`] from when it got it. It accepts a soft request only while it holds the promises of the vSSD and of all its
//! replicas (`rack::tor`). A vSSD promises another ToR only when [`FREE_AFTER`] has passed since its last promise, and when it does
//! not collect. It asks only within [`HOLDS`] of its last promise.
//!
//! Why this is enough. Suppose ToR X accepted the request of vSSD v at time x. Later, at time y, another ToR Y accepts that of
//! a replica w, while v still collects. Then Y holds a promise of v at y.
//! - Suppose v promised Y *after* it asked X. Then v did not collect at that time, and its last promise to X was older than
//!   `FREE_AFTER`. It had asked X within `HOLDS` of such a promise, so at least [`OLDEST`] earlier. It awaits an answer for a few
//!   milliseconds only (`rack::gc`). So it had begun to collect before it promised Y, and still collects: a contradiction.
//! - Suppose v promised Y *before* it asked X. Then v promised X in between, when `FREE_AFTER` had passed since the promise to Y. Y
//!   got that promise within `OLDEST`, and holds it neither at x nor at y: a contradiction.
//!
//! A vSSD that starts again does not know whom it promised before, and waits for `FREE_AFTER`. Under one ToR the rule is
//! Algorithm 1's. Assumed is that no packet is older than `OLDEST`, and that clocks *run* alike; nothing but the time of some reads
//! depends on it.

use base::{Duration, Instant};
use wire::rack::Code;

/// A ToR holds a promise so long after it got it: servers register once a second.
pub const HOLDS: Duration = Duration::from_millis(2_500);
/// No packet arrives later than this after it was sent.
pub const OLDEST: Duration = Duration::from_millis(1_000);
/// A vSSD may promise another ToR so long after its last promise.
pub const FREE_AFTER: Duration = Duration::from_millis(3_500);

const _: () = assert!(FREE_AFTER.as_millis() == HOLDS.as_millis() + OLDEST.as_millis());

/// A vSSD's promise. ToRs are named by their places in an order that is the same for all servers.
#[derive(Clone, Copy, Debug)]
pub struct Promise {
    /// There is one ToR: nothing is to be promised.
    alone: bool,
    to: Option<usize>,
    /// When it was last promised, or could have been by an earlier start; `None`: never.
    at: Option<Instant>,
}

impl Promise {
    /// Of a vSSD that starts, or that `is_new`, in a rack of so many ToRs.
    pub fn new(now: Instant, is_new: bool, tors: usize) -> Self {
        Self {
            alone: tors == 1,
            to: None,
            at: (!is_new).then_some(now),
        }
    }

    /// The code of a registration that goes to a ToR now, while `wanted` is the ToR that is to decide. `collects`: the vSSD collects
    /// garbage.
    pub fn renew(&mut self, now: Instant, tor: usize, wanted: usize, collects: bool) -> Code {
        if self.alone {
            return Code::SoftOrOk;
        }
        let is_free = self.at.is_none_or(|at| now.since(at) >= FREE_AFTER) && !collects;
        if tor != wanted || self.to != Some(tor) && !is_free {
            return Code::Delay;
        }
        (self.to, self.at) = (Some(tor), Some(now));
        Code::Accept
    }

    /// The ToR to ask before a soft collection, if there is one.
    pub fn asks(&self, now: Instant) -> Option<usize> {
        let holds = self.at.is_some_and(|at| now.since(at) < HOLDS);
        match self.alone {
            true => Some(0),
            false => self.to.filter(|_| holds),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn with_one_tor_it_is_asked_at_once_and_for_ever() {
        let mut promise = Promise::new(at(5), false, 1);
        assert_eq!(promise.asks(at(5)), Some(0));
        assert_eq!(promise.renew(at(5), 0, 0, false), Code::SoftOrOk);
        assert_eq!(promise.asks(at(1_000_000)), Some(0));
    }

    #[test]
    fn a_new_vssd_has_promised_nothing() {
        let mut promise = Promise::new(at(5), true, 2);
        assert_eq!(promise.asks(at(5)), None);
        assert_eq!(promise.renew(at(5), 1, 1, false), Code::Accept);
        assert_eq!(promise.asks(at(5)), Some(1));
    }

    #[test]
    fn a_start_promises_nobody_before_an_earlier_promise_has_lapsed() {
        let mut promise = Promise::new(at(0), false, 2);
        assert_eq!(promise.renew(at(3_499), 0, 0, false), Code::Delay);
        assert_eq!(promise.asks(at(3_499)), None);
        assert_eq!(promise.renew(at(3_500), 0, 0, false), Code::Accept);
        assert_eq!(promise.renew(at(3_500), 1, 0, false), Code::Delay);
        assert_eq!(promise.asks(at(3_500)), Some(0));
    }

    #[test]
    fn another_tor_is_promised_when_the_first_one_holds_nothing_any_more() {
        let mut promise = Promise::new(at(0), false, 2);
        promise.renew(at(4_000), 0, 0, false);
        assert_eq!(
            promise.renew(at(5_000), 0, 0, true),
            Code::Accept,
            "it collects, and goes on"
        );
        assert_eq!(promise.renew(at(6_000), 0, 1, false), Code::Delay);
        assert_eq!(promise.renew(at(6_000), 1, 1, false), Code::Delay);
        assert_eq!(promise.asks(at(7_499)), Some(0));
        assert_eq!(promise.asks(at(7_500)), None, "the ToR may have forgotten it");
        assert_eq!(promise.renew(at(8_499), 1, 1, false), Code::Delay);
        assert_eq!(
            promise.renew(at(8_500), 1, 1, true),
            Code::Delay,
            "it still collects"
        );
        assert_eq!(promise.renew(at(9_000), 1, 1, false), Code::Accept);
        assert_eq!(promise.asks(at(9_000)), Some(1));
    }
}

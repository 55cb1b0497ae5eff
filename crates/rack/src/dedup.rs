//! Duplicate suppression for requests that change state. A requester numbers its requests per vSSD and says in each
//! how far back its oldest unanswered one lies; a server remembers the outcomes from there on, so that a request
//! that arrives twice is executed once, however late the copy.
//!
//! One requester at a time may change a vSSD: the first one of the highest session. All requests of others are refused,
//! however long ago they were sent ([`Dedup::fence`]).
//!
//! Memory is bounded: a window of [`WINDOW`] requests. A restart of the server forgets the window; the membership epoch,
//! which a restart changes, then refuses the old copies.

use base::Addr;
use wire::rack::Code;

/// Requests a requester may have unanswered on one vSSD; it must not send more.
pub const WINDOW: u64 = 1024;

/// Verdict on an arriving request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admit {
    /// Execute it.
    New,
    /// It is being executed: ignore the copy.
    InProgress,
    /// It was executed: answer the same again.
    Done(Code),
    /// It is older than anything its requester waits for, or outside the window.
    Old,
    /// Another requester, or a later start of this one, has the vSSD.
    Superseded,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Unknown,
    InProgress,
    Done(Code),
}

/// The window of one vSSD's requester.
#[derive(Debug)]
pub struct Dedup {
    requester: Option<(Addr, u32)>,
    floor: u64,
    outcomes: Box<[Outcome]>,
}

impl Dedup {
    /// Of a vSSD whose last requester is known to have had this address and session.
    pub fn after(requester: Option<(Addr, u32)>) -> Self {
        Self {
            requester,
            floor: 0,
            outcomes: vec![Outcome::Unknown; WINDOW as usize].into_boxed_slice(),
        }
    }

    /// Decides about request number `request` of `addr`'s incarnation `session`, whose oldest unanswered request is
    /// `floor` (at most `request`).
    pub fn admit(&mut self, addr: Addr, session: u32, request: u64, floor: u64) -> Admit {
        if !self.fence(addr, session) {
            return Admit::Superseded;
        }
        if request < self.floor || request >= floor.max(self.floor) + WINDOW {
            return Admit::Old;
        }
        if floor > self.floor {
            let passed = (floor - self.floor).min(WINDOW);
            for number in floor - passed..floor {
                self.outcomes[(number % WINDOW) as usize] = Outcome::Unknown;
            }
            self.floor = floor;
        }
        let outcome = &mut self.outcomes[(request % WINDOW) as usize];
        match *outcome {
            Outcome::Unknown => {
                *outcome = Outcome::InProgress;
                Admit::New
            }
            Outcome::InProgress => Admit::InProgress,
            Outcome::Done(code) => Admit::Done(code),
        }
    }

    /// A requester says that it has started, or has taken over: what others have sent is not admitted any more. False if
    /// another one has the vSSD.
    pub fn fence(&mut self, addr: Addr, session: u32) -> bool {
        if !self.is_current(addr, session) {
            return false;
        }
        if self.requester != Some((addr, session)) {
            self.requester = Some((addr, session));
            self.floor = 0;
            self.outcomes.fill(Outcome::Unknown);
        }
        true
    }

    /// True if no other requester is known to have the vSSD.
    pub fn is_current(&self, addr: Addr, session: u32) -> bool {
        self.requester
            .is_none_or(|known| session > known.1 || known == (addr, session))
    }

    /// Remembers how a request ended.
    pub fn finish(&mut self, addr: Addr, session: u32, request: u64, code: Code) {
        self.settle(addr, session, request, Outcome::Done(code));
    }

    /// Forgets a request that was not executed after all; a copy of it may be.
    pub fn forget(&mut self, addr: Addr, session: u32, request: u64) {
        self.settle(addr, session, request, Outcome::Unknown);
    }

    fn settle(&mut self, addr: Addr, session: u32, request: u64, outcome: Outcome) {
        let is_remembered = (self.floor..self.floor + WINDOW).contains(&request);
        if is_remembered && self.requester == Some((addr, session)) {
            self.outcomes[(request % WINDOW) as usize] = outcome;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Addr = Addr::new([10, 0, 0, 1], 1);
    const B: Addr = Addr::new([10, 0, 0, 2], 1);

    #[test]
    fn a_request_is_executed_once_and_answered_again() {
        let mut dedup = Dedup::after(None);
        assert_eq!(dedup.admit(A, 1, 5, 5), Admit::New);
        assert_eq!(dedup.admit(A, 1, 5, 5), Admit::InProgress);
        dedup.finish(A, 1, 5, Code::SoftOrOk);
        assert_eq!(dedup.admit(A, 1, 5, 5), Admit::Done(Code::SoftOrOk));
    }

    #[test]
    fn a_copy_from_before_the_floor_is_ignored() {
        let mut dedup = Dedup::after(None);
        assert_eq!(dedup.admit(A, 1, 5, 5), Admit::New);
        dedup.finish(A, 1, 5, Code::SoftOrOk);
        assert_eq!(dedup.admit(A, 1, 6, 6), Admit::New);
        assert_eq!(dedup.admit(A, 1, 5, 5), Admit::Old);
    }

    #[test]
    fn an_earlier_incarnation_is_ignored_and_a_later_one_starts_afresh() {
        let mut dedup = Dedup::after(None);
        assert_eq!(dedup.admit(A, 2, 1, 1), Admit::New);
        assert_eq!(dedup.admit(A, 1, 2, 2), Admit::Superseded);
        assert_eq!(dedup.admit(A, 3, 1, 1), Admit::New);
    }

    #[test]
    fn a_fence_shuts_an_earlier_incarnation_out() {
        let mut dedup = Dedup::after(None);
        assert_eq!(dedup.admit(A, 1, 1, 1), Admit::New);
        assert!(dedup.fence(A, 2));
        assert!(!dedup.is_current(A, 1) && dedup.is_current(A, 2));
        assert_eq!(dedup.admit(A, 1, 2, 2), Admit::Superseded);
    }

    #[test]
    fn one_that_takes_over_shuts_the_others_out_for_good() {
        let mut dedup = Dedup::after(None);
        assert_eq!(dedup.admit(A, 1, 1, 1), Admit::New);
        assert!(dedup.fence(B, 2));
        assert_eq!(dedup.admit(B, 2, 1, 1), Admit::New);
        assert!(!dedup.fence(A, 1), "the first one opens it again");
        assert_eq!(dedup.admit(A, 1, 2, 2), Admit::Superseded);
        let mut restarted = Dedup::after(Some((B, 2)));
        assert_eq!(restarted.admit(A, 1, 2, 2), Admit::Superseded);
        assert_eq!(restarted.admit(B, 2, 2, 2), Admit::New);
    }

    #[test]
    fn of_two_with_the_same_session_the_first_one_has_the_vssd() {
        // bug: a registry that fell back can give one session to two gateways, and both changed the vSSD.
        let mut dedup = Dedup::after(None);
        assert!(dedup.fence(A, 2));
        assert!(!dedup.fence(B, 2));
        assert_eq!(dedup.admit(B, 2, 1, 1), Admit::Superseded);
        assert_eq!(dedup.admit(A, 2, 1, 1), Admit::New);
        let mut restarted = Dedup::after(Some((A, 2)));
        assert!(!restarted.fence(B, 2));
    }

    #[test]
    fn the_window_slides_over_reused_slots() {
        let mut dedup = Dedup::after(None);
        for request in 1..5 * WINDOW {
            assert_eq!(
                dedup.admit(A, 1, request, request.saturating_sub(3).max(1)),
                Admit::New,
                "{request}"
            );
            dedup.finish(A, 1, request, Code::SoftOrOk);
        }
        assert_eq!(dedup.admit(A, 1, 9 * WINDOW, 1), Admit::Old, "beyond the window");
    }
}

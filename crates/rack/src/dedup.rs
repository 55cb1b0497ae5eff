//! Duplicate suppression for requests that change state. A requester numbers its requests per vSSD and says in each
//! how far back its oldest unanswered one lies; a server remembers the outcomes from there on, so that a request
//! that arrives twice is executed once, however late the copy.
//!
//! One requester at a time may change a vSSD: the one with the highest session. Whatever others with a lower one have
//! sent is refused, wherever they are ([`Dedup::fence`]).
//!
//! Memory is bounded: a window of [`WINDOW`] requests for each of at most [`SOURCES_MAX`] requesters. A restart of
//! the server forgets the window; the membership epoch, which a restart changes, then refuses the old copies.

use base::Addr;
use wire::rack::Code;

/// Requests a requester may have unanswered on one vSSD; it must not send more.
pub const WINDOW: u64 = 1024;
/// Requesters remembered for one vSSD; the one heard of longest ago is forgotten for the next.
pub const SOURCES_MAX: usize = 16;

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
    /// A requester with a higher session has taken over.
    Superseded,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Unknown,
    InProgress,
    Done(Code),
}

#[derive(Debug)]
struct Source {
    addr: Addr,
    session: u32,
    floor: u64,
    heard: u64,
    outcomes: Box<[Outcome]>,
}

/// The windows of one vSSD's requesters.
#[derive(Debug, Default)]
pub struct Dedup {
    sources: Vec<Source>,
    clock: u64,
    /// The highest session heard of.
    newest: u32,
}

impl Dedup {
    /// Of a vSSD whose last requester is known to have had this session.
    pub fn after(session: u32) -> Self {
        Self {
            newest: session,
            ..Self::default()
        }
    }

    /// Decides about request number `request` of `addr`'s incarnation `session`, whose oldest unanswered request is
    /// `floor` (at most `request`).
    pub fn admit(&mut self, addr: Addr, session: u32, request: u64, floor: u64) -> Admit {
        if session < self.newest {
            return Admit::Superseded;
        }
        self.newest = session;
        self.clock += 1;
        let clock = self.clock;
        let source = self.source(addr, session);
        source.heard = clock;
        if request < source.floor || request >= floor.max(source.floor) + WINDOW {
            return Admit::Old;
        }
        if floor > source.floor {
            let passed = (floor - source.floor).min(WINDOW);
            for number in floor - passed..floor {
                source.outcomes[(number % WINDOW) as usize] = Outcome::Unknown;
            }
            source.floor = floor;
        }
        let outcome = &mut source.outcomes[(request % WINDOW) as usize];
        match *outcome {
            Outcome::Unknown => {
                *outcome = Outcome::InProgress;
                Admit::New
            }
            Outcome::InProgress => Admit::InProgress,
            Outcome::Done(code) => Admit::Done(code),
        }
    }

    /// A requester says that it has started, or has taken over: requests with a lower session are not admitted any more.
    /// False if it is itself superseded.
    pub fn fence(&mut self, session: u32) -> bool {
        self.newest = self.newest.max(session);
        self.is_current(session)
    }

    /// True if no higher session is known.
    pub fn is_current(&self, session: u32) -> bool {
        session >= self.newest
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
        let known = self
            .sources
            .iter_mut()
            .find(|source| source.addr == addr && source.session == session);
        if let Some(source) = known
            && (source.floor..source.floor + WINDOW).contains(&request)
        {
            source.outcomes[(request % WINDOW) as usize] = outcome;
        }
    }

    fn source(&mut self, addr: Addr, session: u32) -> &mut Source {
        let index = self
            .sources
            .iter()
            .position(|source| source.addr == addr)
            .unwrap_or_else(|| self.admit_source(addr));
        let source = &mut self.sources[index];
        if session > source.session {
            source.session = session;
            source.floor = 0;
            source.outcomes.fill(Outcome::Unknown);
        }
        source
    }

    fn admit_source(&mut self, addr: Addr) -> usize {
        let fresh = Source {
            addr,
            session: 0,
            floor: 0,
            heard: 0,
            outcomes: vec![Outcome::Unknown; WINDOW as usize].into_boxed_slice(),
        };
        if self.sources.len() < SOURCES_MAX {
            self.sources.push(fresh);
            return self.sources.len() - 1;
        }
        let oldest = (0..SOURCES_MAX)
            .min_by_key(|&i| self.sources[i].heard)
            .expect("SOURCES_MAX is not 0");
        self.sources[oldest] = fresh;
        oldest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Addr = Addr::new([10, 0, 0, 1], 1);

    #[test]
    fn a_request_is_executed_once_and_answered_again() {
        let mut dedup = Dedup::default();
        assert_eq!(dedup.admit(A, 1, 5, 5), Admit::New);
        assert_eq!(dedup.admit(A, 1, 5, 5), Admit::InProgress);
        dedup.finish(A, 1, 5, Code::SoftOrOk);
        assert_eq!(dedup.admit(A, 1, 5, 5), Admit::Done(Code::SoftOrOk));
    }

    #[test]
    fn a_copy_from_before_the_floor_is_ignored() {
        let mut dedup = Dedup::default();
        assert_eq!(dedup.admit(A, 1, 5, 5), Admit::New);
        dedup.finish(A, 1, 5, Code::SoftOrOk);
        assert_eq!(dedup.admit(A, 1, 6, 6), Admit::New);
        assert_eq!(dedup.admit(A, 1, 5, 5), Admit::Old);
    }

    #[test]
    fn an_earlier_incarnation_is_ignored_and_a_later_one_starts_afresh() {
        let mut dedup = Dedup::default();
        assert_eq!(dedup.admit(A, 2, 1, 1), Admit::New);
        assert_eq!(dedup.admit(A, 1, 2, 2), Admit::Superseded);
        assert_eq!(dedup.admit(A, 3, 1, 1), Admit::New);
    }

    #[test]
    fn a_fence_shuts_an_earlier_incarnation_out() {
        let mut dedup = Dedup::default();
        assert_eq!(dedup.admit(A, 1, 1, 1), Admit::New);
        assert!(dedup.fence(2));
        assert!(!dedup.is_current(1) && dedup.is_current(2));
        assert_eq!(dedup.admit(A, 1, 2, 2), Admit::Superseded);
    }

    #[test]
    fn one_that_takes_over_shuts_the_others_out_for_good() {
        let b = Addr::new([10, 0, 0, 2], 1);
        let mut dedup = Dedup::default();
        assert_eq!(dedup.admit(A, 1, 1, 1), Admit::New);
        assert!(dedup.fence(2));
        assert_eq!(dedup.admit(b, 2, 1, 1), Admit::New);
        assert!(!dedup.fence(1), "the first one opens it again");
        assert_eq!(dedup.admit(A, 1, 2, 2), Admit::Superseded);
        let mut restarted = Dedup::after(2);
        assert_eq!(restarted.admit(A, 1, 2, 2), Admit::Superseded);
        assert_eq!(restarted.admit(b, 2, 2, 2), Admit::New);
    }

    #[test]
    fn the_window_slides_over_reused_slots() {
        let mut dedup = Dedup::default();
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

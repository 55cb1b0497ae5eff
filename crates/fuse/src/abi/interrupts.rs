//! Which of the requests that wait have a signal.
//!
//! An interrupt comes by another thread than its request, and may come first: the ring's thread has taken the request and
//! not looked at it yet. So an interrupt of an unknown request is kept for a while. Interrupts of requests that were answered
//! already look the same. The newest [`EARLY_MAX`] are kept: a request is looked at long before as many others are interrupted.

use std::collections::{BTreeSet, VecDeque};

/// Interrupts of requests that have not begun to wait. An older one is lost when there are more: its request waits for what it
/// waits for.
const EARLY_MAX: usize = 1024;

/// Requests that wait inside a server, and interrupts that came before them.
#[derive(Debug, Default)]
pub struct Interrupts {
    waiting: BTreeSet<u64>,
    early: VecDeque<u64>,
}

impl Interrupts {
    /// None wait.
    pub fn new() -> Self {
        Self::default()
    }

    /// Request `unique` begins to wait. False if its interrupt is there already: the server answers EINTR.
    pub fn begin(&mut self, unique: u64) -> bool {
        if let Some(at) = self.early.iter().position(|early| *early == unique) {
            self.early.remove(at);
            return false;
        }
        self.waiting.insert(unique);
        true
    }

    /// Request `unique` has a signal. True if it waits: the server ends its wait and answers EINTR.
    pub fn interrupt(&mut self, unique: u64) -> bool {
        let waits = self.waiting.remove(&unique);
        if !waits && !self.early.contains(&unique) {
            if self.early.len() == EARLY_MAX {
                self.early.pop_front();
            }
            self.early.push_back(unique);
        }
        waits
    }

    /// Request `unique` waits no more. False if it was interrupted.
    pub fn end(&mut self, unique: u64) -> bool {
        self.waiting.remove(&unique)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_is_told_once_whether_it_comes_before_the_wait_or_in_it() {
        let mut interrupts = Interrupts::new();
        assert!(interrupts.begin(1));
        assert!(interrupts.interrupt(1));
        assert!(!interrupts.end(1));
        assert!(!interrupts.interrupt(2));
        assert!(!interrupts.begin(2));
        assert!(interrupts.begin(2));
        assert!(interrupts.end(2));
    }

    #[test]
    fn interrupts_of_requests_that_were_answered_do_not_pile_up() {
        let mut interrupts = Interrupts::new();
        for unique in 0..10 * EARLY_MAX as u64 {
            assert!(!interrupts.interrupt(unique));
        }
        assert_eq!(interrupts.early.len(), EARLY_MAX);
        assert!(!interrupts.begin(10 * EARLY_MAX as u64 - 1));
        assert!(interrupts.begin(0));
    }
}

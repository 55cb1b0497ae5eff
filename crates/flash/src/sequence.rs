//! The order of programs.

use std::collections::VecDeque;

/// Numbers programs and knows up to which one all are done.
#[derive(Debug)]
pub(crate) struct Sequence {
    next: u64,
    base: u64,
    done: VecDeque<bool>,
}

impl Sequence {
    pub(crate) fn new(next: u64, capacity: usize) -> Self {
        Self {
            next,
            base: next,
            done: VecDeque::with_capacity(capacity),
        }
    }

    pub(crate) fn begin(&mut self) -> u64 {
        self.done.push_back(false);
        self.next += 1;
        self.next - 1
    }

    pub(crate) fn end(&mut self, sequence: u64) {
        self.done[(sequence - self.base) as usize] = true;
        while self.done.front() == Some(&true) {
            self.done.pop_front();
            self.base += 1;
        }
    }

    /// The newest number handed out, 0 for none.
    pub(crate) fn last(&self) -> u64 {
        self.next - 1
    }

    /// Every program up to this is done.
    pub(crate) fn programmed(&self) -> u64 {
        self.base - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programmed_stops_before_the_oldest_unfinished_program() {
        let mut sequence = Sequence::new(1, 4);
        assert_eq!((sequence.last(), sequence.programmed()), (0, 0));
        let [a, b, c] = core::array::from_fn(|_| sequence.begin());
        sequence.end(b);
        assert_eq!(sequence.programmed(), 0);
        sequence.end(a);
        assert_eq!(sequence.programmed(), 2);
        sequence.end(c);
        assert_eq!(sequence.programmed(), sequence.last());
    }
}

//! A queue of small values, first in, first out. A push and a pop are a few instructions each: the ring has a power of two of
//! places, and its ends are counted without a wrap.

/// Values in the order in which they came.
///
/// ```
/// let mut queue = base::Fifo::with_capacity(2);
/// (1..=5).for_each(|value| queue.push(value));
/// assert_eq!((queue.pop(), queue.pop(), queue.len()), (Some(1), Some(2), 3));
/// ```
#[derive(Clone, Debug)]
pub struct Fifo<T> {
    /// A power of two, at least one.
    places: Box<[T]>,
    pushed: usize,
    popped: usize,
}

impl<T: Copy + Default> Fifo<T> {
    /// An empty queue, which allocates nothing for its first `capacity` values.
    pub fn with_capacity(capacity: usize) -> Self {
        Self {
            places: vec![T::default(); capacity.next_power_of_two()].into(),
            pushed: 0,
            popped: 0,
        }
    }

    /// Adds a value behind the others.
    #[inline(always)]
    pub fn push(&mut self, value: T) {
        if self.len() == self.places.len() {
            self.grow();
        }
        let mask = self.places.len() - 1;
        self.places[self.pushed & mask] = value;
        self.pushed = self.pushed.wrapping_add(1);
    }

    /// Takes the first value.
    #[inline(always)]
    pub fn pop(&mut self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let mask = self.places.len() - 1;
        let value = self.places[self.popped & mask];
        self.popped = self.popped.wrapping_add(1);
        Some(value)
    }

    /// Whether there is no value.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.pushed == self.popped
    }

    /// Number of values.
    #[inline]
    pub fn len(&self) -> usize {
        self.pushed.wrapping_sub(self.popped)
    }

    /// Twice as many places.
    #[cold]
    fn grow(&mut self) {
        let mut larger = Self::with_capacity(2 * self.places.len());
        while let Some(value) = self.pop() {
            larger.push(value);
        }
        *self = larger;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rng;
    use std::collections::VecDeque;

    #[test]
    fn the_queue_does_what_a_deque_does() {
        let mut rng = Rng::new(9);
        for capacity in [0, 1, 3, 8] {
            let (mut queue, mut model) = (Fifo::with_capacity(capacity), VecDeque::new());
            for value in 0..20_000u64 {
                // More come than go at first, then the other way round.
                if rng.chance(if value < 3000 { 0.6 } else { 0.45 }) {
                    queue.push(value);
                    model.push_back(value);
                } else {
                    assert_eq!(queue.pop(), model.pop_front());
                }
                assert_eq!((queue.len(), queue.is_empty()), (model.len(), model.is_empty()));
            }
        }
    }
}

//! One deadline per flow, earliest first: a binary heap that knows where each flow is. Its memory is reserved at start.

use base::Instant;

/// Deadlines of flows, by index.
#[derive(Debug)]
pub struct Timers {
    heap: Vec<(Instant, u32)>,
    /// Where each flow is in the heap; [`ABSENT`] if it is not.
    places: Vec<u32>,
}

const ABSENT: u32 = u32::MAX;

impl Timers {
    /// Of `flows` flows, none of which has a deadline.
    pub fn new(flows: usize) -> Self {
        Self {
            heap: Vec::with_capacity(flows),
            places: vec![ABSENT; flows],
        }
    }

    /// The earliest deadline.
    #[inline]
    pub fn first(&self) -> Option<Instant> {
        self.heap.first().map(|(at, _)| *at)
    }

    /// Sets the deadline of a flow.
    pub fn set(&mut self, flow: u32, at: Instant) {
        let place = match self.places[flow as usize] {
            ABSENT => {
                self.heap.push((at, flow));
                self.heap.len() - 1
            }
            place => {
                self.heap[place as usize].0 = at;
                place as usize
            }
        };
        self.settle(place);
    }

    /// Takes the deadline of a flow away.
    pub fn clear(&mut self, flow: u32) {
        let place = self.places[flow as usize];
        if place == ABSENT {
            return;
        }
        self.places[flow as usize] = ABSENT;
        self.heap.swap_remove(place as usize);
        if (place as usize) < self.heap.len() {
            self.settle(place as usize);
        }
    }

    /// The next flow whose deadline has come; the deadline is gone.
    pub fn expired(&mut self, now: Instant) -> Option<u32> {
        let (at, flow) = *self.heap.first()?;
        if at > now {
            return None;
        }
        self.clear(flow);
        Some(flow)
    }

    /// Moves an entry up or down to where it belongs. Ties go by flow, so that a run does not depend on history.
    fn settle(&mut self, mut place: usize) {
        while place > 0 && self.heap[place] < self.heap[(place - 1) / 2] {
            self.swap(place, (place - 1) / 2);
            place = (place - 1) / 2;
        }
        loop {
            let children = (2 * place + 1)..(2 * place + 3).min(self.heap.len());
            let child = children.min_by_key(|child| self.heap[*child]);
            match child.filter(|child| self.heap[*child] < self.heap[place]) {
                Some(child) => {
                    self.swap(place, child);
                    place = child;
                }
                None => break,
            }
        }
        self.places[self.heap[place].1 as usize] = place as u32;
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        for place in [a, b] {
            self.places[self.heap[place].1 as usize] = place as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Rng;
    use std::collections::BTreeMap;

    #[test]
    fn the_heap_does_what_a_sorted_list_does() {
        let mut rng = Rng::new(3);
        let mut timers = Timers::new(50);
        let mut model = BTreeMap::new();
        for _ in 0..100_000 {
            let flow = rng.below(50) as u32;
            let at = Instant::from_nanos(rng.below(1000));
            match rng.below(4) {
                0 => {
                    timers.clear(flow);
                    model.remove(&flow);
                }
                1 => {
                    let due = model.iter().map(|(flow, at)| (*at, *flow)).min();
                    let due = due.filter(|(due, _)| *due <= at).map(|(_, flow)| flow);
                    assert_eq!(timers.expired(at), due);
                    due.and_then(|flow| model.remove(&flow));
                }
                _ => {
                    timers.set(flow, at);
                    model.insert(flow, at);
                }
            }
            assert_eq!(timers.first(), model.values().min().copied());
        }
    }
}

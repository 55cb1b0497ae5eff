//! Operations that wait for a place in flight on a set.

use std::collections::VecDeque;

/// Places that go to urgent operations in a row while bulk ones wait: these wait long, but not for ever.
const IN_A_ROW_MAX: u32 = 16;

/// Urgent operations go before bulk ones, as at the block switch (blk-switch §3.2). Those of one class keep their order.
#[derive(Debug, Default)]
pub struct Line {
    urgent: VecDeque<u32>,
    bulk: VecDeque<u32>,
    in_a_row: u32,
}

impl Line {
    /// An operation waits.
    pub fn push(&mut self, slot: u32, is_bulk: bool) {
        let line = if is_bulk { &mut self.bulk } else { &mut self.urgent };
        line.push_back(slot);
    }

    /// The next one.
    pub fn pop(&mut self) -> Option<u32> {
        let is_due = self.in_a_row >= IN_A_ROW_MAX || self.urgent.is_empty();
        if is_due && let Some(slot) = self.bulk.pop_front() {
            self.in_a_row = 0;
            return Some(slot);
        }
        let slot = self.urgent.pop_front()?;
        self.in_a_row = if self.bulk.is_empty() {
            0
        } else {
            self.in_a_row + 1
        };
        Some(slot)
    }

    /// An operation waits no more.
    pub fn remove(&mut self, slot: u32) {
        self.urgent.retain(|&waiting| waiting != slot);
        self.bulk.retain(|&waiting| waiting != slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(line: &mut Line) -> Vec<u32> {
        core::iter::from_fn(|| line.pop()).collect()
    }

    #[test]
    fn urgent_operations_go_first_and_each_class_in_its_order() {
        let mut line = Line::default();
        for (slot, is_bulk) in [(1, true), (2, false), (3, true), (4, false)] {
            line.push(slot, is_bulk);
        }
        line.remove(3);
        assert_eq!(drain(&mut line), [2, 4, 1]);
    }

    #[test]
    fn bulk_waits_long_but_not_for_ever() {
        let mut line = Line::default();
        line.push(1000, true);
        line.push(1001, true);
        for slot in 0..2 * IN_A_ROW_MAX {
            line.push(slot, false);
        }
        let order = drain(&mut line);
        let place = |slot| order.iter().position(|&it| it == slot);
        let row = IN_A_ROW_MAX as usize;
        assert_eq!((place(1000), place(1001)), (Some(row), Some(2 * row + 1)));
    }
}

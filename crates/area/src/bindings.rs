//! Calls that the bindings of other languages need beside the structures: tickets as numbers, looks at queues, and the process.

use crate::area::Area;
use crate::error::AreaError;
use crate::fork;
use crate::read::Value;
use crate::structures::{Queue, Tree};
use crate::view::Walk;
use std::ops::{Bound, ControlFlow, Range};
use store::{Ticket, Way};

/// The number of this process among those that its memory was copied from: a forked child has another one than its parent.
pub fn process_generation() -> u32 {
    fork::generation()
}

impl Area {
    /// The newest ticket given out.
    pub fn newest(&self) -> Ticket {
        self.own().lock().engine.newest()
    }

    /// Waits until `ticket` is durable. The ticket was given out: no other ever becomes durable.
    pub fn wait(&self, ticket: Ticket) -> Result<(), AreaError> {
        let shared = self.shared()?;
        shared.wait(shared.lock(), ticket)
    }
}

impl Queue {
    /// The first position that was not acknowledged, and the one that comes next.
    pub fn positions(&self) -> Range<u64> {
        let positions = self.area().own().lock().engine.positions(self.id());
        positions.unwrap_or(0..0)
    }

    /// The entry at a position, handed out or not; `None` if it was acknowledged or is not there yet.
    pub fn read(&self, position: u64) -> Result<Option<Vec<u8>>, AreaError> {
        let reading = self.area().reading()?;
        let value = reading.value(|engine| engine.read(self.id(), position))?;
        Ok(value.map(Value::into_vec))
    }
}

impl Tree {
    /// Keys of a range in order, at most `limit`. Reads no values.
    pub fn keys(
        &self,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        limit: usize,
    ) -> Result<Vec<Box<[u8]>>, AreaError> {
        self.walk_keys(Walk::new(range, Way::Up, limit), limit)
    }

    /// The same in reverse order.
    pub fn keys_rev(
        &self,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        limit: usize,
    ) -> Result<Vec<Box<[u8]>>, AreaError> {
        self.walk_keys(Walk::new(range, Way::Down, limit), limit)
    }

    fn walk_keys(&self, mut walk: Walk, limit: usize) -> Result<Vec<Box<[u8]>>, AreaError> {
        let mut keys = Vec::new();
        while keys.len() < limit && !walk.is_over() {
            walk.part(self.view(), false, &mut |key, _| {
                keys.push(key.into());
                match keys.len() < limit {
                    true => ControlFlow::Continue(()),
                    false => ControlFlow::Break(()),
                }
            })?;
        }
        Ok(keys)
    }
}

//! A unit that knows when it is due without being asked twice: a node with many vSSDs is asked after every input, of
//! which each concerns one of them.

use super::unit::Unit;
use base::Instant;
use core::cell::Cell;
use core::ops::{Deref, DerefMut};

/// A unit and its deadline as of the last time it could change.
pub(super) struct Timed {
    unit: Unit,
    /// `None` if it has to be asked.
    deadline: Cell<Option<Option<Instant>>>,
}

impl Timed {
    pub(super) fn new(unit: Unit) -> Self {
        Self {
            unit,
            deadline: Cell::new(None),
        }
    }

    /// When the unit is to be ticked.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline.get().unwrap_or_else(|| {
            let deadline = self.unit.deadline();
            self.deadline.set(Some(deadline));
            deadline
        })
    }
}

impl Deref for Timed {
    type Target = Unit;

    fn deref(&self) -> &Unit {
        &self.unit
    }
}

impl DerefMut for Timed {
    fn deref_mut(&mut self) -> &mut Unit {
        self.deadline.set(None);
        &mut self.unit
    }
}

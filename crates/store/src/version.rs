//! Versions of keys: which write of a key an entry is, wherever the cleaner has moved it.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU64;

/// Moves of entries that are remembered, at most: 3 MiB.
const MOVES_MAX: usize = 1 << 16;

/// One write of a key: no other write has it, whatever it wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(NonZeroU64);

impl Version {
    /// That of a number, as [`Version::number`] gave it. `None` for 0.
    pub fn new(number: u64) -> Option<Self> {
        NonZeroU64::new(number).map(Self)
    }

    /// Its number, which is not 0.
    pub fn number(self) -> u64 {
        self.0.get()
    }

    fn at(place: u64) -> Self {
        Self::new(place).expect("generations begin with 1")
    }
}

/// Where entries were written first that the cleaner has moved since.
#[derive(Default)]
pub(crate) struct Moves {
    /// Somebody was told a version.
    is_used: bool,
    /// The first place, by the present one.
    first: BTreeMap<u64, u64>,
    /// The present places, the oldest move first.
    order: VecDeque<u64>,
}

impl Moves {
    /// An entry has moved.
    pub(crate) fn note(&mut self, from: u64, to: u64) {
        if !self.is_used {
            return;
        }
        let first = self.first.get(&from).copied().unwrap_or(from);
        self.first.insert(to, first);
        self.order.push_back(to);
        if self.order.len() > MOVES_MAX {
            let oldest = self.order.pop_front().expect("it was just added to");
            self.first.remove(&oldest);
        }
    }

    pub(crate) fn version(&mut self, place: u64) -> Version {
        self.is_used = true;
        Version::at(self.first.get(&place).copied().unwrap_or(place))
    }
}

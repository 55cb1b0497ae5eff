//! The thread that looks after the areas: it makes them larger before they are full, and syncs what nobody waits for.
//!
//! An area grows by zeros that are written to it, which takes seconds. Here nobody waits for that.

use crate::sync::mpsc::{Receiver, RecvTimeoutError};
use area::{Area, AreaError};
use std::time::Duration;

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Looks between two syncs: a second.
const SYNC_LOOKS: u32 = 5;
/// An area grows by so many bytes at a time.
const GROWTH_BYTES_MAX: u64 = 1 << 30;

/// The areas, and what is done for them.
pub struct Keeper {
    /// Of all shards.
    pub areas: Vec<Area>,
    /// As large as each may become.
    pub area_bytes_max: u64,
    /// Changes are to be synced.
    pub syncs: bool,
}

impl Keeper {
    /// Looks after the areas until the channel's other end is gone.
    ///
    /// # Errors
    /// An area has failed. One that cannot grow is told when it is full.
    pub fn run(self, ended: &Receiver<()>) -> Result<(), AreaError> {
        let mut looks = 0_u32;
        let mut may_grow = vec![true; self.areas.len()];
        while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(LOOK_EVERY) {
            looks = looks.wrapping_add(1);
            for (area, may_grow) in self.areas.iter().zip(&mut may_grow) {
                *may_grow = *may_grow && self.grow(area).is_ok();
                if self.syncs && looks.is_multiple_of(SYNC_LOOKS) {
                    area.sync()?;
                }
            }
        }
        Ok(())
    }

    /// An area that is half full becomes twice as large.
    fn grow(&self, area: &Area) -> Result<(), AreaError> {
        let stats = area.stats();
        let bytes = area.layout().capacity_bytes();
        if stats.live_bytes < stats.live_bytes_max / 2 || bytes >= self.area_bytes_max {
            return Ok(());
        }
        let wanted = bytes + bytes.min(GROWTH_BYTES_MAX);
        area.grow(wanted.min(self.area_bytes_max)).map(drop)
    }
}

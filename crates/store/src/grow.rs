//! An area on a medium that has become larger.

use crate::engine::Engine;
use crate::format::Superblock;
use crate::layout::{Layout, SEGMENTS_MAX};
use crate::recover::{OpenError, identify};
use base::Device;

/// Bytes that are zeroed at once.
const ZEROS: usize = 1 << 20;

/// Gives an area all whole segments that its medium has room for; how many it got. Its structures stay as they are. A
/// crash leaves the area with its old size or its new one.
///
/// Of an area that is open, `open` is its engine's layout. The engine writes neither to new segments nor to the superblocks meanwhile,
/// and is told afterwards ([`Engine::grown`]). A growth that failed may have left a superblock of the new size, so the next one counts
/// from what the engine has.
///
/// # Errors
/// The medium has failed, or there is no area.
pub fn grow(medium: &mut dyn Device, open: Option<&Layout>) -> Result<u32, OpenError> {
    let (superblock, _) = identify(medium)?;
    let old = *open.unwrap_or(&superblock.layout);
    let room = medium.capacity_bytes() - old.segment_offset(0);
    let segments = (room / u64::from(old.segment_bytes)).min(u64::from(SEGMENTS_MAX)) as u32;
    if segments <= old.segments {
        return Ok(0);
    }
    let layout = Layout { segments, ..old };
    let zeros = vec![0; ZEROS];
    let mut at = old.capacity_bytes();
    while at < layout.capacity_bytes() {
        let length = (layout.capacity_bytes() - at).min(ZEROS as u64);
        medium.write_at(at, &zeros[..length as usize])?;
        at += length;
    }
    medium.flush()?;
    // Both say it before anything is in the new segments: either of them may be lost.
    for ahead in 1..=2 {
        let superblock = Superblock {
            layout,
            epoch: superblock.epoch + ahead,
            ..superblock
        };
        superblock.write(medium)?;
        medium.flush()?;
    }
    Ok(segments - old.segments)
}

impl Engine {
    /// The area has so many segments more ([`grow`]): they are free. Memory leaves for tables as it did, until the area is opened anew.
    pub fn grown(&mut self, segments: u32) {
        let log = &mut self.log;
        log.layout.segments += segments;
        log.space.grow(segments);
        log.usage.grow(segments);
        self.reclaim();
    }
}

//! An area gets more room while it is in use.

use crate::area::Area;
use crate::backend::Storage;
use crate::error::AreaError;
use crate::sync::PoisonError;
use std::io;
use store::Layout;

impl Area {
    /// Lets the area have `bytes` at least, and all that its file or block device has room for; the bytes that it has now. A file is
    /// extended. A block device, or an area of a catalog, has to have become so large before. Reads and writes go on meanwhile, and
    /// what was refused for want of space is taken afterwards. A crash leaves the area with its old size or its new one.
    ///
    /// # Errors
    /// The medium has no such room, or the area is mapped: that one grows when it is opened.
    pub fn grow(&self, bytes: u64) -> Result<u64, AreaError> {
        let shared = self.shared()?;
        let _one_at_a_time = shared.growing.lock().unwrap_or_else(PoisonError::into_inner);
        let layout = *shared.lock().engine.layout();
        let Storage::Direct(file) = &shared.storage else {
            let why = "an area in mapped memory grows when it is opened from its catalog";
            return Err(AreaError::Grow(io::Error::new(io::ErrorKind::Unsupported, why)));
        };
        let bytes_max = layout.grown_bytes_max();
        if bytes > bytes_max {
            let why = format!("one made for its size has {bytes_max} bytes at most, not {bytes}");
            return Err(AreaError::Grow(io::Error::new(io::ErrorKind::StorageFull, why)));
        }
        let segment_bytes = u64::from(layout.segment_bytes);
        let first = layout.capacity_bytes() - u64::from(layout.segments) * segment_bytes;
        let wanted = Layout {
            segments: u32::try_from(bytes.saturating_sub(first).div_ceil(segment_bytes))
                .unwrap_or(u32::MAX)
                .max(layout.segments),
            ..layout
        };
        let wanted = wanted
            .checked()
            .map_err(|error| AreaError::Create(error.into()))?;
        // The server of a catalog would cut off what was added to its file.
        let extends_to = match self.has_given_size() {
            true => 0,
            false => wanted.capacity_bytes(),
        };
        if file.grow(extends_to).map_err(AreaError::Grow)? < wanted.capacity_bytes() {
            return Err(AreaError::Grow(io::ErrorKind::StorageFull.into()));
        }
        let grown = store::grow(&mut file.clone(), Some(&layout))?;
        shared.grown(grown);
        Ok(layout.capacity_bytes() + u64::from(grown) * segment_bytes)
    }
}

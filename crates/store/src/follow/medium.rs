//! The medium of a follower, and the moments that the follower tells.

use base::{Device, MediaError};

/// The medium of an area that is followed.
pub trait Followed {
    /// It is read, and nothing else.
    fn device(&self) -> &dyn Device;

    /// Fills the bytes from each place, by one submission if that can be.
    ///
    /// # Errors
    /// One of them cannot be read.
    fn read_many(&self, places: &mut [(u64, Vec<u8>)]) -> Result<(), MediaError> {
        let mut all = places.iter_mut();
        all.try_for_each(|(offset, bytes)| self.device().read_at(*offset, bytes))
    }

    /// Makes durable what was read: the owner may not have been told yet that it is.
    ///
    /// # Errors
    /// It may not be durable.
    fn sync(&self) -> Result<(), MediaError>;

    /// Lets the owner go on; `look` looks were in vain so far.
    fn pause(&self, look: u32);
}

/// A state of an area: after a record. Later ones are greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    /// How often the area had been opened.
    pub epoch: u64,
    /// The last record; 0 for none.
    pub record: u64,
}

/// Counters since the beginning, and the present state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FollowStats {
    /// Refreshes that read what was new.
    pub refreshes: u64,
    /// Times that everything was read anew, the first one among them.
    pub rebuilds: u64,
    /// Looks that were in vain, as the area changed meanwhile.
    pub looks: u64,
    /// Memory of the index, estimated.
    pub index_bytes: u64,
    /// Tables beside the log.
    pub tables: u32,
    /// Segments of the log.
    pub segments: u32,
}

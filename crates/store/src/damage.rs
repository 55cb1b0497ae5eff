//! Why what was read is not what was looked for.

use thiserror::Error;

/// Why bytes of the medium are not the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FetchError {
    /// The segment was used anew in between: look the value up again.
    #[error("the value has moved")]
    Moved,
    /// A checksum does not match.
    #[error("the value is damaged on the medium, at byte {offset}")]
    Damaged {
        /// Of the sector, in the area.
        offset: u64,
    },
}

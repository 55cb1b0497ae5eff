//! Why a frame is dropped.

/// Why a frame is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// It ends before its headers or its stated length do.
    #[error("the frame is cut off")]
    Short,
    /// A length or a version contradicts another.
    #[error("a length of the frame is wrong")]
    Length,
    /// A checksum is wrong.
    #[error("a checksum of the frame is wrong")]
    Checksum,
    /// An option's length is wrong.
    #[error("an option of the frame is wrong")]
    Option,
    /// It is none that the stack takes: a fragment, or another protocol.
    #[error("the frame is of no kind that the stack takes")]
    Unsupported,
}

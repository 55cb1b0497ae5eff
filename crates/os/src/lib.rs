//! The clock, entropy and media that the operating system gives to the drivers `runtime` and `area`.
#![warn(clippy::undocumented_unsafe_blocks)]

mod clock;
mod entropy;
mod media;
mod ring;

pub use clock::now;
pub use entropy::seed;
pub use media::{MediaFile, MediaOpenError, MediaWarning, after_last_write, reserve};
pub use ring::Ring;

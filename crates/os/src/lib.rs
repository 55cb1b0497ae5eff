//! The clock, entropy, media, and what threads share, as the operating system gives them to the drivers `runtime` and `area`.
#![warn(clippy::undocumented_unsafe_blocks)]

mod clock;
mod entropy;
mod media;
mod ring;
pub mod sync;

pub use clock::now;
pub use entropy::seed;
pub use media::{
    MediaFile, MediaOpenError, MediaWarning, after_last_write, is_volatile, reserve, reserve_beyond,
};
pub use ring::Ring;

//! The clock, entropy, media, and what threads share, as the operating system gives them to the drivers `runtime` and `area`.
#![warn(clippy::undocumented_unsafe_blocks)]

pub mod bpf;
mod clock;
mod entropy;
mod filesystem;
mod mapped;
mod media;
mod memory;
mod peer;
mod processor;
mod ring;
mod sockmap;
mod streams;
pub mod sync;

pub use clock::{now, since_1970};
pub use entropy::seed;
pub use filesystem::{HANDLE_BYTES, is_kept, open_by_handle, reserve, reserve_beyond};
pub use mapped::{Mapped, NvmTiming, Persist};
pub use media::{MediaFile, MediaOpenError, MediaWarning, after_last_write, is_volatile};
pub use memory::keep_freed;
pub use peer::{PeerIdentity, peer_identity};
pub use processor::processor;
pub use ring::{Buffer, Command, CommandRing, Ring};
pub use sockmap::Sockmap;
pub use streams::Streams;

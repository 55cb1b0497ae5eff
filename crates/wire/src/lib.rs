//! Byte formats and protocol sessions. Each format has its page in `docs/format/`.
//!
//! [`rack`] is RackBlox's packet with Switchyard's extension; [`nbd`] is the Network Block Device protocol;
//! [`nvme`] is NVMe over TCP, both sides.
//! Input from the wire is validated here, once, and what passes is typed.
#![forbid(unsafe_code)]

pub mod nbd;
pub mod nvme;
pub mod rack;
mod segment;

pub use segment::Segment;

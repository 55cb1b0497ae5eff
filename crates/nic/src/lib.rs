//! Ethernet frames in and out, behind one trait ([`Frames`]): one queue, owned by one thread, that never blocks.
//!
//! | back end | the other end | cut by the link | checksums |
//! | --- | --- | --- | --- |
//! | [`shared`] | a process of this host that need not be trusted | need not be | none |
//! | [`tap`] | the kernel | up to 64 KiB | the kernel's |
//! | [`packet`] | what is behind an interface of the kernel | up to 64 KiB | the kernel's |
//! | [`xdp`] | the same, past the kernel's stack | no | the stack's |
//!
//! [`faults`] puts a bad network around any of them, and [`hub`] connects several.
//!
//! The formats are in `docs/format/vnic.md`. `docs/tcp.md` has the cost of each back end.
#![warn(clippy::undocumented_unsafe_blocks)]

mod farewell;
pub mod faults;
mod frames;
pub mod hub;
mod interface;
mod offload;
pub mod packet;
pub mod shared;
pub mod tap;
pub mod xdp;

pub use frames::{
    Checksums, ETHERNET_BYTES, FRAME_BYTES_MAX, Frame, Frames, Limits, LinkError, Sleep, Written,
};

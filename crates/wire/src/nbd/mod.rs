//! The server's side of one NBD connection, without I/O: bytes in, [`BlockRequest`]s out, answers in, bytes out.
//!
//! The subset spoken and the mapping of errors are in `docs/format/nbd.md`; sections cited here are those of the NBD
//! project's "proto.md". The code is in four parts: numbers and layouts ([`proto`]), the handshake, the transmission
//! phase, and the queue of what is to be sent.
//!
//! Invariants:
//! - A request that reaches the gateway is valid: sector-aligned, inside the export, not longer than the maximum that
//!   was announced, and allowed on the export. Everything else is answered here, after its payload is drained.
//! - Requests under way and replies queued are at most [`Limits::requests_max`](crate::Limits::requests_max) together, and their payload
//!   is at most [`Limits::bytes_max`](crate::Limits::bytes_max), whatever the client does and however slowly it reads.
//! - The pages of a write are taken all at once or not at all, so two half-received writes never wait for each other.
//! - Read payload is not copied. Write payload is not either where the world reads it to where
//!   [`Session::payload_room`] shows; what it gives to `receive` is copied once, into pool pages.
//! - The tag of a request is the session's own (slot and generation): clients may repeat a cookie.
//!
//! Assumes a pool of production pages (eight sectors of 512 bytes).

mod guard;
mod handshake;
mod input;
mod output;
pub mod proto;
mod session;
mod transmission;
mod whereabouts;

pub use input::CloseReason;
pub use session::{NAME, Nbd, Parked, Session};
pub use whereabouts::Whereabouts;

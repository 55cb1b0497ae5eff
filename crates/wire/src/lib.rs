//! Byte formats and protocol sessions. Each format has its page in `docs/format/`.
//!
//! [`rack`] is RackBlox's packet with Switchyard's extension, and [`parts`] puts long ones together; [`nbd`] is the Network Block Device protocol;
//! [`nvme`] is NVMe over TCP, both sides. A world drives the sessions of both as [`Session`].
//! Input from the wire is validated here, once, and what passes is typed.
#![forbid(unsafe_code)]

mod ledger;
pub mod nbd;
pub mod nvme;
pub mod parts;
pub mod rack;
mod segment;
mod session;

pub use segment::{Outgoing, Piece};
pub use session::{Asks, Export, Late, Limits, Opening, Parked, Protocol, Session, State};

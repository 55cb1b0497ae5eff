//! NVMe over TCP without I/O: the target's side of a connection ([`Session`]), what the target offers ([`Target`]), and
//! the host's side ([`host::Host`]).
//!
//! The subset spoken and the mapping of errors are in `docs/format/nvme-tcp.md`. Sections cited are those of NVM Express
//! Base 2.0, NVM Command Set 1.0, NVMe over Fabrics 1.1 and NVMe/TCP Transport 1.0.
//!
//! Invariants:
//! - A request that reaches the volume is valid: whole blocks, inside the namespace, not longer than the announced
//!   maximum, allowed on it. Everything else is answered here; the payload that came with it is drained.
//! - Commands under way and responses queued are at most [`SessionLimits::in_flight_max`] together, and their payload is
//!   at most [`SessionLimits::in_flight_bytes_max`], whatever the host does and however slowly it reads.
//! - The pages of a write are taken all at once or not at all. Data is asked for (R2T) only with pages at hand, and so
//!   that one capsule with data still fits: a capsule that waits for room never waits for data behind itself.
//! - Write payload is copied once, from the receive buffer into pool pages; read payload is not copied.
//! - The data path works on a copy of what it needs ([`Target`] is not touched) and does not allocate after start, but
//!   for the lists of pages of requests that touch more than one.
//! - The tag of a request is the session's own (slot and generation): hosts may repeat a command id.
//!
//! Assumes a pool of production pages (eight sectors of 512 bytes), and the same limits for all sessions of a process:
//! a controller announces on its admin queue what holds for its I/O queues.

mod command;
mod control;
mod fabrics;
mod features;
pub mod host;
mod identify;
mod io;
mod limits;
mod logs;
mod notices;
mod output;
pub mod proto;
mod receive;
mod reservation;
mod reserve;
mod reserve_command;
mod server;
mod session;
mod target;
mod work;

pub use limits::{IN_CAPSULE_BYTES_MIN, SessionLimits, TRANSFER_BYTES_MAX};
pub use proto::is_nqn;
pub use reservation::Rights;
pub use server::{NAME, Nvme, Parked};
pub use session::{CloseReason, Session};
pub use target::{
    Access, Address, Allocation, AnaState, ControllerInfo, Family, Subsystem, Target, TargetError,
    TargetOptions, Usage, nqn_of,
};

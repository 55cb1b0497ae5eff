//! NVMe over TCP without I/O: the target's side of a connection ([`Session`]), what the target offers ([`Target`]), and
//! the host's side ([`host::Host`]).
//!
//! The subset spoken and the mapping of errors are in `docs/format/nvme-tcp.md`. Sections cited are those of NVM Express
//! Base 2.0, NVM Command Set 1.0, NVMe over Fabrics 1.1 and NVMe/TCP Transport 1.0.
//!
//! How a world drives a [`Session`], one per TCP connection:
//! 1. give what the socket has to [`Session::receive`] and keep the bytes it does not take;
//! 2. after `receive`, `complete`, `sent` and `tick`, drain [`Session::poll`] and hand the requests to the volume; give
//!    answers to [`Session::complete`];
//! 3. send what [`Session::transmit`] shows and tell [`Session::sent`];
//! 4. while [`Session::is_blocked`], do not read the socket: that is the back-pressure. While it is, call `receive`
//!    again (no new bytes needed) after something was sent, a request was answered, or a pool page came back; while
//!    [`Session::is_waiting`], after a pool page came back;
//! 5. call [`Session::tick`] no later than [`Session::deadline`], and whenever [`Access::generation`] has moved;
//! 6. close the socket when [`Session::closed`] gives a reason, after sending what is left;
//! 7. call [`Session::detach`] when the socket is closed, for whatever reason.
//!
//! A session moves to another core in three steps: [`Session::pause`], [`Session::park`] once [`Session::is_at_rest`],
//! and [`Session::unpark`] there.
//!
//! A world that reads sockets with several buffers at once may put the pages that [`Session::payload_room`] shows in
//! front of its own: the payload of large writes is then not copied at all.
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

mod control;
mod fabrics;
mod features;
pub mod host;
mod identify;
mod io;
mod logs;
mod output;
mod park;
pub mod proto;
mod receive;
mod reservation;
mod reserve;
mod session;
mod target;

use core::cell::RefCell;

use base::limits::PAGE_BYTES;
use thiserror::Error;

pub use crate::segment::Segment;
pub use park::Parked;
pub use reservation::Rights;
pub use reserve::Late;
pub use session::Session;
pub use target::{
    Address, AnaState, ControllerInfo, Family, Subsystem, Target, TargetError, TargetOptions, Usage,
    identity_of,
};

/// Largest transfer announced by default (`MDTS`), in bytes; longer reads and writes are refused.
pub const TRANSFER_BYTES_MAX: u32 = 1 << 20;
/// Data of a capsule that every session takes: what an admin queue has to take (TCP §3.1).
pub const IN_CAPSULE_BYTES_MIN: u32 = 8192;

/// How sessions reach the target. A world with several cores puts a lock there; it is taken for control only.
pub trait Access {
    /// Lets `f` work with the target.
    fn with(&self, f: &mut dyn FnMut(&mut Target));
    /// [`Target::generation`], cheaply: it is asked for on every `receive`.
    fn generation(&self) -> u64;
}

impl Access for RefCell<Target> {
    fn with(&self, f: &mut dyn FnMut(&mut Target)) {
        f(&mut self.borrow_mut());
    }

    fn generation(&self) -> u64 {
        self.borrow().generation()
    }
}

/// Limits of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionLimits {
    /// Entries of a queue, 2 to 65,535: commands that a host may have under way. Hosts are told; one that has more is
    /// cut off. Linux takes no fewer than 32 for its admin queue.
    pub in_flight_max: usize,
    /// Payload bytes of those commands; at the limit reads wait, and data is not asked for. Also bounds the largest
    /// transfer announced.
    pub in_flight_bytes_max: u64,
    /// Data that is asked for at once (R2T), if more than one command's: what lies in the socket for long has left the
    /// processor's caches, and comes before other commands.
    pub asked_bytes_max: u32,
    /// Free pages of the pool that writes leave to others (reads and packets under way).
    pub pages_reserve: usize,
    /// Data that a command capsule may carry, at least [`IN_CAPSULE_BYTES_MIN`], a multiple of 16.
    pub in_capsule_bytes: u32,
    /// The largest transfer, if the other limits admit it.
    pub transfer_bytes_max: u32,
}

impl Default for SessionLimits {
    /// 128 commands (what Linux asks for), 8 MiB, of which 512 KiB are asked for at once, 64 pages left to others.
    fn default() -> Self {
        Self {
            in_flight_max: 128,
            in_flight_bytes_max: 8 << 20,
            asked_bytes_max: 512 << 10,
            pages_reserve: 64,
            in_capsule_bytes: IN_CAPSULE_BYTES_MIN,
            transfer_bytes_max: TRANSFER_BYTES_MAX,
        }
    }
}

/// Announcements of a session, derived from its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    /// `MDTS` in bytes, a power of two and at least a page.
    request_bytes_max: u32,
    in_capsule_bytes: u32,
    /// Entries of a queue (`MQES` + 1, `MAXCMD`).
    entries_max: u16,
}

impl SessionLimits {
    /// Pages of one capsule's data, unaligned: they are left for it when data is asked for.
    fn capsule_pages(&self) -> usize {
        self.in_capsule_bytes as usize / PAGE_BYTES + 1
    }

    /// Payload bytes of one capsule: a compare counts twice, for what it was sent and for what is read.
    fn capsule_bytes(&self) -> u64 {
        2 * u64::from(self.in_capsule_bytes)
    }

    /// # Panics
    /// If the limits do not admit a transfer of one page.
    fn shape(&self, pool_pages: usize) -> Shape {
        assert!((2..=usize::from(u16::MAX)).contains(&self.in_flight_max));
        assert!(self.in_capsule_bytes >= IN_CAPSULE_BYTES_MIN && self.in_capsule_bytes.is_multiple_of(16));
        // An unaligned transfer touches one page more than its length says.
        let pages = pool_pages.saturating_sub(self.pages_reserve + self.capsule_pages() + 1);
        let bytes = self.in_flight_bytes_max.saturating_sub(self.capsule_bytes()) / 2;
        let bytes = (pages as u64 * PAGE_BYTES as u64)
            .min(bytes)
            .min(u64::from(self.transfer_bytes_max));
        assert!(
            bytes >= PAGE_BYTES as u64,
            "the limits admit a transfer of one page"
        );
        Shape {
            request_bytes_max: 1 << bytes.ilog2(),
            in_capsule_bytes: self.in_capsule_bytes,
            entries_max: self.in_flight_max as u16,
        }
    }
}

/// Why a connection is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Error)]
pub enum CloseReason {
    /// The host said good-bye to an I/O queue (Fabrics §3.4).
    #[error("the host disconnected")]
    Disconnected,
    /// The host ended the connection for an error of ours (`H2CTermReq`), with this status.
    #[error("the host terminated the connection with status {0}")]
    Terminated(u16),
    /// The host broke the protocol in a way that ends the connection.
    #[error("{0}")]
    Fatal(proto::Fatal),
    /// More commands than the queue has entries.
    #[error("the host has more commands under way than its queue has entries")]
    QueueOverrun,
    /// No Connect in time.
    #[error("the host did not connect a queue in time")]
    Idle,
    /// No Keep Alive in time.
    #[error("the host did not keep its controller alive")]
    KeepAlive,
    /// The controller is gone: its admin connection ended, or its volume was taken back.
    #[error("the controller is gone")]
    ControllerGone,
    /// The controller was reset; its I/O queues are gone.
    #[error("the controller was reset")]
    ControllerReset,
}

//! The words of every scheduler: requests, room for them, and targets.

use base::Duration;

/// Aims of a scheduler: latency targets (Kyber), or how long a request may wait before the order of pages is left
/// for its sake (Deadline). Coordinated, times count from the key and so include the network's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Targets {
    /// Of reads.
    pub read: Duration,
    /// Of write-backs.
    pub write: Duration,
    /// By end-to-end time.
    pub coordinated: bool,
}

impl Targets {
    const fn us(read: u64, write: u64, coordinated: bool) -> Self {
        Self {
            read: Duration::from_micros(read),
            write: Duration::from_micros(write),
            coordinated,
        }
    }

    /// RackBlox's setting of Deadline (§4.5.1).
    pub const fn deadline(coordinated: bool) -> Self {
        match coordinated {
            false => Self::us(500, 1_750, false),
            true => Self::us(1_500, 2_750, true),
        }
    }

    /// RackBlox's setting of Kyber (§4.1).
    pub const fn kyber(coordinated: bool) -> Self {
        match coordinated {
            false => Self::us(750, 3_000, false),
            true => Self::us(1_750, 4_000, true),
        }
    }
}

/// The action of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Reads a page.
    Read,
    /// Writes a page.
    Write,
    /// Makes a page read as zeros, without a program of its own.
    Zero,
}

/// A request to schedule.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Its kind.
    pub kind: Kind,
    /// Its page.
    pub page: u32,
    /// Time it spent in the network on its way here.
    pub net_ns: u64,
    /// Time its answer will spend there.
    pub predicted_ns: u64,
    /// How the caller names it: unique among reads, and among writes and zeroings.
    pub item: u32,
}

/// Room in the flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// A read.
    pub read: bool,
    /// A write or a zeroing.
    pub write: bool,
}

/// A waiting request; ordered by key, then by arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Waiting {
    /// In ns since the world's epoch; negative when the network took longer than the world is old.
    pub key_ns: i64,
    pub sequence: u64,
    pub item: u32,
    pub kind: Kind,
}

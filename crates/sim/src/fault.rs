//! What happens to hosts, their media and the network of a run.

use base::Duration;

/// Something bad.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// A host loses its volatile state and starts again.
    Crash {
        /// Which.
        host: usize,
        /// For how long it is down, in ns.
        down_ns: u64,
    },
    /// A host is gone for ever.
    Gone {
        /// Which.
        host: usize,
    },
    /// A host loses its medium, too, and starts again with an empty one.
    Blank {
        /// Which.
        host: usize,
        /// For how long it is down, in ns.
        down_ns: u64,
    },
    /// An image is made of what a host's medium holds durably.
    Image {
        /// Which.
        host: usize,
    },
    /// A host goes down, and starts again with the last image of its medium.
    Rollback {
        /// Which.
        host: usize,
        /// For how long it is down, in ns.
        down_ns: u64,
    },
    /// A host goes down, and is started with the medium of another one. It refuses that, and gets its own back.
    Foreign {
        /// Which.
        host: usize,
        /// Whose medium it is.
        of: usize,
        /// For how long it is down before and after, in ns.
        down_ns: u64,
    },
    /// The whole rack loses power.
    PowerLoss {
        /// For how long, in ns.
        down_ns: u64,
    },
    /// A host is cut off.
    Partition {
        /// Which.
        host: usize,
        /// For how long, in ns.
        for_ns: u64,
        /// Packets to it are lost.
        inbound: bool,
        /// Packets from it are lost.
        outbound: bool,
    },
    /// Two hosts hear nothing of each other, though everybody else hears both.
    Cut {
        /// Which.
        pair: [usize; 2],
        /// For how long, in ns.
        for_ns: u64,
    },
    /// As [`Fault::Cut`], but the first hears the second.
    CutOneWay {
        /// Which.
        pair: [usize; 2],
        /// For how long, in ns.
        for_ns: u64,
    },
    /// A host's clock runs at another rate than time.
    ClockRate {
        /// Which: none beside which a control plane runs.
        host: usize,
        /// So much faster, in millionths.
        ppm: i32,
    },
    /// A packet for a host to which so many are under way is lost, until calm.
    FullQueues {
        /// How many.
        packets: u32,
    },
    /// Many packets are lost everywhere.
    Burst {
        /// Share of packets that is lost.
        loss: f64,
        /// For how long, in ns.
        for_ns: u64,
    },
    /// A bit flips on a host's medium.
    Corrupt {
        /// Which.
        host: usize,
    },
    /// A bit flips in what describes the data on a host's medium.
    CorruptMetadata {
        /// Which.
        host: usize,
        /// Where.
        part: Metadata,
    },
    /// A host's next write to its medium fails.
    FailWrite {
        /// Which.
        host: usize,
    },
    /// A host's next flush of its medium fails.
    FailFlush {
        /// Which.
        host: usize,
    },
    /// A host's medium does not answer.
    Hang {
        /// Which.
        host: usize,
        /// For how long, in ns; [`FOR_EVER`]: until the host starts again.
        for_ns: u64,
    },
    /// A host's medium is slow.
    Slow {
        /// Which.
        host: usize,
        /// Each operation takes so many times as long.
        factor: u32,
        /// For how long, in ns.
        for_ns: u64,
    },
}

/// A part of what describes the data on a medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metadata {
    /// One of the two slots of the superblock.
    Superblock,
    /// The checkpoints.
    Checkpoint,
    /// The spare areas of pages.
    Spare,
}

/// The time of a [`Fault::Hang`] that does not end by itself.
pub const FOR_EVER: u64 = u64::MAX;

impl Fault {
    /// True if the host can lose data or refuse writes. A medium that hangs for less than half of `limit` is only slow.
    pub fn fails_medium(&self, limit: Duration) -> bool {
        match *self {
            Self::Corrupt { .. }
            | Self::CorruptMetadata { .. }
            | Self::FailWrite { .. }
            | Self::FailFlush { .. } => true,
            Self::Hang { for_ns, .. } => u128::from(for_ns) * 2 >= limit.as_nanos(),
            _ => false,
        }
    }

    /// The host that does not have its medium any more.
    pub fn takes_medium(&self) -> Option<usize> {
        match *self {
            Self::Gone { host } | Self::Blank { host, .. } | Self::Rollback { host, .. } => Some(host),
            _ => None,
        }
    }
}

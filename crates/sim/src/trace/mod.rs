//! Block traces: five published formats, read line by line, and their replay on a volume.
//!
//! [`line`] turns one line into a [`Record`]; [`TraceReader`] does so for a whole source, of any size, in constant
//! memory; [`Replay`] places the records on a volume as a [`Stream`](crate::workload::stream::Stream). Files, and
//! whether they are compressed, are the caller's matter.

pub mod line;
mod reader;
mod replay;

pub use line::{Clock, LineError};
pub use reader::{Counts, GAP_NS_MAX, TraceError, TraceReader};
pub use replay::{PIECE_BYTES, Replay, ReplayOptions, ReplayStatus, SPAN_NS_MAX};

/// How a trace is written. All fields are decimal numbers unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// MSR Cambridge (FAST'08).
    Msr,
    /// Alibaba Cloud block traces, 2020 (IISWC'20).
    Alibaba,
    /// Tencent CBS (ATC'20).
    Tencent,
    /// Systor'17: virtual desktops.
    Systor,
    /// MQSim (FAST'18) and DiskSim: ASCII.
    Mqsim,
}

impl Format {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Msr, Self::Alibaba, Self::Tencent, Self::Systor, Self::Mqsim];

    /// The name that users write.
    pub fn name(self) -> &'static str {
        match self {
            Self::Msr => "msr",
            Self::Alibaba => "alibaba",
            Self::Tencent => "tencent",
            Self::Systor => "systor",
            Self::Mqsim => "mqsim",
        }
    }

    /// The format of this name.
    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }

    /// Form of a line.
    pub fn form(self) -> &'static str {
        match self {
            Self::Msr => {
                "timestamp (100 ns), hostname, disk, Read|Write, offset (bytes), size (bytes), response time (100 ns)"
            }
            Self::Alibaba => "device, R|W, offset (bytes), length (bytes), timestamp (µs)",
            Self::Tencent => {
                "timestamp (s), offset (512-byte sectors), size (sectors), 0 to read or 1 to write, volume"
            }
            Self::Systor => "timestamp (s), response time, R|W or nothing, LUN, offset (bytes), size (bytes)",
            Self::Mqsim => {
                "time (ns; ms if the first has a decimal point), device, address (512-byte sectors), sectors, 0 to write or \
                 1 to read, separated by blanks"
            }
        }
    }

    /// Its fields.
    pub fn fields(self) -> usize {
        match self {
            Self::Msr => 7,
            Self::Systor => 6,
            Self::Alibaba | Self::Tencent | Self::Mqsim => 5,
        }
    }

    /// Step of its clock in ns, where requests of one step would otherwise all come at once; else 0.
    pub fn tick_ns(self) -> u64 {
        match self {
            Self::Tencent => 1_000_000_000,
            _ => 0,
        }
    }
}

/// One request of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// When it came, in ns since whatever the format counts from.
    pub time_ns: u64,
    /// It wrote; else it read.
    pub write: bool,
    /// First byte.
    pub offset: u64,
    /// Bytes: 1 to [`line::LENGTH_MAX`].
    pub length: u64,
    /// Hash of what names the device.
    pub device: u64,
}

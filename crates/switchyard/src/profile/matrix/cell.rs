//! Cells of the matrix, and their results.

use crate::size::Size;
use serde::{Deserialize, Serialize};

/// Systems on the device: file systems, nothing, and nothing but a target in front of it.
pub const SYSTEMS: [&str; 5] = ["ext4", "xfs", "btrfs", "raw", OWN];
pub const OWN: &str = "switchyard";
/// How a program asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    Direct,
    Uring,
    Buffered,
    Nbd,
}

impl Engine {
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "pread/pwrite, direct",
            Self::Uring => "io_uring, direct",
            Self::Buffered => "pread/pwrite, buffered",
            Self::Nbd => "NBD",
        }
    }
}

/// A cell of the matrix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell {
    pub system: String,
    pub engine: Engine,
    pub is_write: bool,
    /// The file's space was allocated before. Devices have no files.
    pub is_preallocated: bool,
    pub bytes: u64,
}

impl Cell {
    pub fn name(&self) -> String {
        format!(
            "{} {} {} {}{}",
            self.system,
            self.engine.name(),
            if self.is_write { "write" } else { "read" },
            Size(self.bytes),
            if self.is_preallocated {
                ", preallocated"
            } else {
                ""
            }
        )
    }
}

/// Identity of a cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    pub cell: Cell,
    /// Requests.
    pub requests: u64,
    /// Mean time of a request as the program sees it, its share of the final sync included, µs.
    pub mean_us: f64,
    /// Layers of that, µs.
    pub layers: Vec<(String, f64)>,
    /// Share of the time in which the device had nothing of it.
    pub software_share: f64,
    /// Share of the measured time that was the probes' and is taken out.
    pub probes_share: f64,
    /// Bios a request.
    pub bios: f64,
    /// Splits and merges a request.
    pub splits: f64,
    pub merges: f64,
    /// Events lost.
    pub lost: u64,
}

/// Everything measured so far.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Found {
    pub kernel: String,
    /// On what.
    pub ground: String,
    /// How long it took, s.
    pub seconds: f64,
    pub outcomes: Vec<Outcome>,
    /// Cells that could not be measured, and why.
    pub refused: Vec<(Cell, String)>,
}

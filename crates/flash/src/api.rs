//! The words a node and a vSSD exchange: configuration, requests, events, statistics.

use crate::geometry::{Geometry, Isolation};
use crate::layout::Share;
use crate::superblock::VssdEntry;
use crate::timing::Timing;
use base::{Lpn, MediaOp, Page, Version, VssdId};
use thiserror::Error;

/// How garbage collection shares the flash with users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GcMode {
    /// Holds the channel for a whole victim ("an SSD channel cannot issue new I/O during GC", RackBlox §2.2).
    Blocking,
    /// At most `step_pages` relocations are under way; users' operations queue among them.
    Preemptible {
        /// Relocations in flight; at least 1.
        step_pages: u32,
    },
    /// Costs no modelled time: the ideal to compare with.
    Free,
}

/// Parameters of a [`crate::Vssd`].
#[derive(Clone, Debug)]
pub struct VssdConfig {
    /// Unique in the rack.
    pub id: VssdId,
    /// Unique on the SSD, never reused.
    pub instance: u32,
    /// Of the whole SSD.
    pub geometry: Geometry,
    /// Bytes of a page: the pool's and the medium's.
    pub page_bytes: usize,
    /// The channels this vSSD owns, bit i for channel i.
    pub channels: u64,
    /// Whether others share them.
    pub isolation: Isolation,
    /// Pages users see.
    pub logical_pages: u32,
    /// How long flash operations take.
    pub timing: Timing,
    /// How garbage collection shares the flash.
    pub gc: GcMode,
    /// Relocations in flight in the modes other than [`GcMode::Preemptible`].
    pub gc_window: u32,
    /// Relocated pages go to blocks of their own, which separates cold from hot data; else users and collection
    /// share the open blocks.
    pub gc_frontier_separate: bool,
    /// Erase-count lead over the mean below which no cold block is moved for wear's sake.
    pub wear_gap_max: u32,
    /// Programs between two checkpoints; `u64::MAX` for none but those that recovery and trims need.
    pub checkpoint_every_programs: u64,
    /// Requests for which memory is reserved at start. More are served, but may allocate.
    pub queue_depth: u32,
}

impl VssdConfig {
    /// Its share of the medium.
    pub(crate) fn share(&self) -> Share {
        Share::new(&self.geometry, self.page_bytes, self.channels, self.isolation)
    }

    /// Defaults: no timing, preemptible collection in steps of 4 pages, separate frontiers, a checkpoint each
    /// time as many pages were programmed as the vSSD has (but at least 4096), 1024 requests.
    pub fn new(entry: &VssdEntry, geometry: &Geometry, page_bytes: usize) -> Self {
        Self {
            id: entry.id,
            instance: entry.instance,
            geometry: *geometry,
            page_bytes,
            channels: entry.channels,
            isolation: entry.isolation,
            logical_pages: entry.logical_pages,
            timing: Timing::none(),
            gc: GcMode::Preemptible { step_pages: 4 },
            gc_window: 8,
            gc_frontier_separate: true,
            wear_gap_max: 32,
            checkpoint_every_programs: u64::from(entry.logical_pages).max(4096),
            queue_depth: 1024,
        }
    }

    /// Operations for which memory is reserved, of a vSSD that may have blocks of `units` units.
    pub(crate) fn operations(&self, units: u32) -> usize {
        self.queue_depth as usize + 3 * units as usize + 64
    }
}

/// Requests of a node to a vSSD. The tag is echoed in [`Event::Done`].
#[derive(Debug)]
pub enum Request {
    /// Read one page.
    Read {
        /// Echoed.
        tag: u64,
        /// Which page.
        lpn: Lpn,
    },
    /// Write one page. Done when programmed; durable after a later flush.
    Write {
        /// Echoed.
        tag: u64,
        /// Which page.
        lpn: Lpn,
        /// Supersedes lower versions; equal rewrites; lower than the current one is done without effect.
        version: Version,
        /// CRC32C of the page.
        crc: u32,
        /// The data; nobody changes it afterwards.
        page: Page,
    },
    /// Make one page read as zeros; its version is kept. Durable after a later flush.
    Zero {
        /// Echoed.
        tag: u64,
        /// Which page.
        lpn: Lpn,
        /// As for a write.
        version: Version,
    },
    /// Make everything that was done before this was submitted durable.
    Flush {
        /// Echoed.
        tag: u64,
    },
}

/// News of a vSSD to its node.
#[derive(Debug)]
pub enum Event {
    /// Do this on the medium and answer with [`crate::Vssd::media_done`]. Ids are below 2⁴⁸.
    Media(MediaOp),
    /// A request ended.
    Done {
        /// Of the request.
        tag: u64,
        /// How.
        result: Result<Data, VssdError>,
    },
    /// The page that [`crate::Vssd::check`] asked for was read. If it is damaged, a new checkpoint replaces what it was part of.
    Checked {
        /// The byte of the medium where the damage is.
        damaged: Option<u64>,
    },
    /// The collection that [`crate::Vssd::start_gc`] began reached its aim, or there is nothing to gain.
    GcDone,
    /// Collecting because no free block was left, whoever forbade it.
    GcForced,
    /// Of a software-isolated vSSD: writes wait for a block. Answer with [`crate::Vssd::accept`], with none if nobody lends.
    Borrow,
    /// Of a software-isolated vSSD: it has borrowed blocks that it does not need any more. Take them with
    /// [`crate::Vssd::take_returns`] and give them to their owners.
    Return,
}

/// Result of a request.
#[derive(Debug)]
pub enum Data {
    /// Of a write, zero, flush or checkpoint.
    None,
    /// A read of a page that was zeroed or never written.
    Zero {
        /// Of the zero, [`Version::NONE`] if never written.
        version: Version,
    },
    /// A read of a page whose checksum matched.
    Page {
        /// The data.
        page: Page,
        /// CRC32C of the data.
        crc: u32,
        /// Of the write.
        version: Version,
    },
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Error)]
pub enum VssdError {
    /// Not a page of this vSSD.
    #[error("the page is outside the vSSD")]
    OutOfRange,
    /// The medium returned an error or other data. The version stays, and the page may be rewritten.
    #[error("the page is damaged on the medium")]
    Damaged,
    /// No free block, and nothing to gain by collecting.
    #[error("no free flash is left")]
    NoSpace,
    /// A write or flush of the medium failed; writes and flushes are refused until the vSSD is recovered.
    #[error("the medium failed; writes are refused")]
    Latched,
}

/// Counters since start, and the present state.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct VssdStats {
    /// Pages programmed for users.
    pub user_programs: u64,
    /// Pages programmed by garbage collection.
    pub gc_programs: u64,
    /// Pages programmed to log trims.
    pub record_programs: u64,
    /// Blocks erased.
    pub erases: u64,
    /// Pages read for users.
    pub reads: u64,
    /// Media flushes.
    pub flushes: u64,
    /// Checkpoints completed.
    pub checkpoints: u64,
    /// Mean erase count.
    pub erase_count_mean: f64,
    /// Blocks it has: its own, without those lent, with those borrowed.
    pub blocks: u32,
    /// Blocks ready to be programmed.
    pub free_blocks: u32,
    /// Blocks borrowed since start.
    pub blocks_borrowed: u64,
    /// Blocks of others that it has.
    pub borrowed_blocks: u32,
    /// Own blocks that others have.
    pub lent_blocks: u32,
    /// Logical pages with data.
    pub live_pages: u32,
    /// Logical pages found damaged and not rewritten since.
    pub damaged_pages: u32,
}

impl VssdStats {
    /// Pages programmed per page a user wrote; 1 before the first write.
    pub fn write_amplification(&self) -> f64 {
        if self.user_programs == 0 {
            return 1.0;
        }
        let programs = self.user_programs + self.gc_programs + self.record_programs;
        programs as f64 / self.user_programs as f64
    }
}

/// Findings of recovery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Number of the checkpoint it started from; 0 for none.
    pub checkpoint: u32,
    /// The newest checkpoint was damaged and its predecessor was used.
    pub fell_back: bool,
    /// Out-of-band entries newer than the checkpoint.
    pub entries_replayed: u64,
    /// Entries of programs that were cut before they were durable: treated as never written.
    pub torn: u64,
    /// Single flipped bits of metadata that were corrected.
    pub bits_corrected: u64,
    /// Pages whose newest durable data does not match its checksum: corruption. Reads report them as damaged.
    pub damaged: Vec<Lpn>,
}

/// Why a vSSD cannot be recovered without risk of returning stale data. Rebuild it from its replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RecoverError {
    /// The medium reported an error.
    #[error("the medium reported an error at byte {offset}")]
    Media {
        /// Byte offset on the medium.
        offset: u64,
    },
    /// A checkpoint that was durable is gone, and so is its predecessor.
    #[error("checkpoint {number} and its predecessor are damaged")]
    CheckpointLost {
        /// The newest checkpoint that was durable.
        number: u32,
    },
    /// An out-of-band entry that was durable is destroyed beyond correction: whose data it described is unknown.
    #[error("out-of-band metadata at byte {offset} is damaged")]
    EntryLost {
        /// Byte offset of the entry on the medium.
        offset: u64,
    },
    /// Two vSSDs of a channel group have live data in one block.
    #[error("the block whose metadata is at byte {offset} belongs to two vSSDs")]
    OwnedTwice {
        /// Byte offset of the block's first entry on the medium.
        offset: u64,
    },
    /// A durable trim record is destroyed beyond correction.
    #[error("the trim record at byte {offset} is damaged")]
    RecordLost {
        /// Byte offset of the record on the medium.
        offset: u64,
    },
}

impl RecoverError {
    /// The byte of the medium where it shows; 0 if it is a checkpoint as a whole.
    pub fn offset(&self) -> u64 {
        match *self {
            Self::Media { offset }
            | Self::EntryLost { offset }
            | Self::OwnedTwice { offset }
            | Self::RecordLost { offset } => offset,
            Self::CheckpointLost { .. } => 0,
        }
    }
}

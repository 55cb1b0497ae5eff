//! What an area may take: the options of its user, how much of maps and trees stays in memory, and what stays free so that the rest can
//! leave.

use crate::entry::Kind;
use crate::layout::Layout;
use crate::table::levels::RUNS_MAX;
use crate::table::page::page_bytes;

/// How an engine behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Writes under way at once, 1 to 32. With one, what comes meanwhile shares the next record.
    pub writes_in_flight_max: usize,
    /// Memory that the index may take, estimated; operations that would add to it beyond are refused.
    pub index_bytes_max: u64,
    /// Maps and trees leave memory when they have so many bytes of entries, or take so much of memory. Never more than a
    /// part of the area, nor than a quarter of `index_bytes_max`; never in an area that cannot hold more. `u64::MAX`: never at all.
    pub spill_bytes: u64,
}

impl Options {
    /// Bytes of maps and trees that stay in memory.
    pub(crate) fn spill_bytes(&self) -> u64 {
        match self.spill_bytes {
            u64::MAX => u64::MAX,
            bytes => bytes.min(self.index_bytes_max / 4),
        }
    }
}

/// Snapshots may keep memory of a part of what the index may take.
const SNAPSHOTS_SHARE: u64 = 2;

impl Options {
    /// Memory that snapshots may keep alone.
    pub(crate) fn snapshot_bytes_max(&self) -> u64 {
        self.index_bytes_max / SNAPSHOTS_SHARE
    }
}

impl Default for Options {
    /// One write under way, 1 GiB of index, of which 64 MiB for maps and trees. On a virtual disk whose cache has to be flushed, eight writers are a tenth
    /// faster with one than with two: flushes wait for each other, and records are larger.
    fn default() -> Self {
        Self {
            writes_in_flight_max: 1,
            index_bytes_max: 1 << 30,
            spill_bytes: 64 << 20,
        }
    }
}

/// Memory becomes tables when it has so much of the area: beyond, the log would hold what tables could.
const AREA_SHARE: u64 = 32;
/// Segments that only merges may take. A merge of level 0 frees the first table of each run when it has written about as much, and
/// its share of level 1.
pub(crate) const MERGE_SEGMENTS: u32 = 2 * RUNS_MAX as u32 + 2;
/// Tables that a merge makes at most before it tells of them.
pub(crate) const MERGED_MAX: u32 = 4;
/// Segments with which a part of memory can leave at least.
pub(crate) const FLUSH_SEGMENTS_MIN: u32 = 2;
/// Pages of a table that may stay empty: they are kept for what comes behind the leaves.
const PAGES_KEPT: u64 = 14;
/// Tables that memory becomes at a time, at most.
const RUN_TABLES_MAX: u64 = 16;
/// An area with fewer segments has no room for tables beside its log: what jobs keep free would be a quarter of it.
const SEGMENTS_MIN: u32 = 96;

/// When maps and trees leave memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Bytes of entries, or of memory for them; beyond, they leave. `None` if everything that the area can hold may stay.
    pub spill_bytes: Option<u64>,
    /// Segments that users leave free for jobs, and those that changes leave free which give room.
    pub working: u32,
    pub kept: u32,
    /// Tables that memory becomes at a time, about.
    pub run_tables: u64,
}

impl Limits {
    /// Keys that memory has when it leaves, about: most are longer than the shortest. None without tables.
    pub(crate) fn keys(&self) -> u64 {
        self.spill_bytes
            .map_or(0, |bytes| bytes / (2 * index_bytes_of_entry()))
    }

    /// True if memory has the values of maps and trees, too: they are to leave soon, and reads need no block of the log till then.
    pub(crate) fn holds_values(&self) -> bool {
        self.spill_bytes.is_some()
    }

    /// Of an area whose user wants to have `spill_bytes` of maps and trees in memory at most.
    pub(crate) fn new(layout: &Layout, spill_bytes: u64) -> Self {
        let share = u64::from(layout.segments) * layout.segment_payload_bytes() / AREA_SHARE;
        let stays = layout.segments < SEGMENTS_MIN || layout.live_bytes_max() <= spill_bytes;
        let bytes = spill_bytes
            .min(share)
            .min(RUN_TABLES_MAX * layout.segment_payload_bytes());
        let run_tables = bytes.div_ceil(layout.segment_payload_bytes());
        let most = behind(bytes);
        // A flush of what they have done can still go, and takes less.
        let kept = MERGE_SEGMENTS + FLUSH_SEGMENTS_MIN;
        let working = table_count(layout, most, entries_in(most)) + kept;
        match stays {
            true => Self {
                spill_bytes: None,
                working: 0,
                kept: 0,
                run_tables: 0,
            },
            false => Self {
                spill_bytes: Some(bytes),
                working,
                kept,
                run_tables,
            },
        }
    }
}

/// So much may be in memory when it has grown to `bytes` and a job is under way: beyond, submitters wait.
pub(crate) fn behind(bytes: u64) -> u64 {
    bytes + bytes / 2
}

/// Entries of maps and trees that take so many bytes of memory, at most.
pub(crate) fn entries_in(index_bytes: u64) -> u64 {
    index_bytes / index_bytes_of_entry()
}

fn index_bytes_of_entry() -> u64 {
    crate::index::index_bytes(Kind::Map, 0)
}

/// Tables that so many bytes of entries become, at most.
pub(crate) fn table_count(layout: &Layout, live_bytes: u64, entries: u64) -> u32 {
    // Entries are as long as in the log, but for the version, a place, and the structure. What stays empty in pages, filters and
    // pages above take a quarter, and each table keeps some pages of room for these.
    let bytes = live_bytes + entries * 24;
    let kept = PAGES_KEPT * u64::from(page_bytes(layout));
    let usable = layout.segment_payload_bytes().saturating_sub(kept).max(kept);
    (bytes + bytes / 4).div_ceil(usable) as u32 + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::RECORD_HEADER_BYTES;
    use crate::table::levels::List;

    /// Bug: an area took no more than about 40,000 tables, which are 640 GB, as a list of more did not fit into a record. Fix: larger areas
    /// get larger segments and records.
    #[test]
    fn a_list_has_room_for_as_many_tables_as_there_are_segments() {
        // Each structure's description takes about so much.
        let described = 512 * 100;
        for shift in 33..=45 {
            for capacity in [1 << shift, (1 << shift) - 12_345, 3 << (shift - 1)] {
                let layout = Layout::for_capacity(capacity, 4096).expect("large enough");
                let record_bytes = layout.stream_of(layout.record_bytes_max) - RECORD_HEADER_BYTES;
                let tables = List::tables_max(record_bytes as usize, described);
                let all = capacity <= 1 << 45;
                assert!(
                    !all || tables >= layout.segments,
                    "{capacity}: {tables} {layout:?}"
                );
                assert!(
                    capacity > 1 << 39 || layout.record_bytes_max <= 1 << 20,
                    "{layout:?}"
                );
            }
        }
        let largest = Layout::for_capacity(16 << 40, 4096).expect("large enough");
        assert_eq!(
            (largest.segment_bytes, largest.record_bytes_max),
            (64 << 20, 8 << 20)
        );
    }
}

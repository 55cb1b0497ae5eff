//! Reading the log: the records of one segment.

use crate::draft::gather;
use crate::entry::{ENTRY_HEADER_BYTES, Entry};
use crate::format::{PartHeader, RECORD_HEADER_BYTES, RecordHeader, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::index::Location;
use crate::layout::{Layout, SECTOR_HEADER_BYTES};
use crate::sector::{self, Role, State};
use crate::table;
use base::{Device, MediaError};

/// Content of the place where a record should begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// A whole record, up to `end`.
    Record { header: RecordHeader, end: u32 },
    /// Nothing was written here.
    End,
    /// Some of its sectors were not written.
    Torn,
    /// The sector at this byte of the segment is what no cut leaves.
    Damaged(u32),
}

/// Content of the first sector of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Head {
    Blank,
    Segment(SegmentHeader),
    /// Of a checkpoint.
    Part(PartHeader),
    Table(table::Header),
    Damaged,
}

/// A record that may be damaged, or the place of one.
pub(crate) struct Piece {
    pub slot: u32,
    pub generation: u64,
    /// Of its first sector, in the segment.
    pub at: u32,
    pub end: u32,
    /// `None` for a damaged block in which a record may have begun.
    pub header: Option<RecordHeader>,
    pub has_damage: bool,
    /// Some sectors were never written.
    pub has_gap: bool,
}

impl Piece {
    /// The record at byte `at` of a segment, or a damaged block there; `None` if nothing was written.
    pub(crate) fn at(segment: &Segment<'_>, at: u32) -> Option<Self> {
        let layout = segment.layout;
        let mut piece = Self {
            slot: segment.slot,
            generation: segment.generation,
            at,
            end: at + layout.block_bytes,
            header: None,
            has_damage: true,
            has_gap: false,
        };
        match segment.judge(at, Role::Record) {
            State::Old => return None,
            State::Damaged => return Some(piece),
            State::New => {}
        }
        let header = segment.header_at(at);
        let room = layout.stream_of(layout.segment_bytes - at);
        let stream = header.length.saturating_add(RECORD_HEADER_BYTES).min(room);
        piece.end = (at + layout.extent_of(stream)).min(layout.segment_bytes);
        let inner = (at + layout.sector_bytes..piece.end).step_by(layout.sector_bytes as usize);
        let states: Vec<State> = inner.map(|at| segment.judge(at, Role::Inner)).collect();
        piece.header = Some(header);
        piece.has_damage = states.contains(&State::Damaged);
        piece.has_gap = states.contains(&State::Old);
        Some(piece)
    }
}

/// Judges the first sector of a slot.
pub(crate) fn head(layout: &Layout, slot: u32, sector: &[u8]) -> Head {
    if sector::is_blank(sector) {
        return Head::Blank;
    }
    let number = layout.sector_number(slot, 0);
    let header = &sector[SECTOR_HEADER_BYTES as usize..][..SEGMENT_HEADER_BYTES];
    if let (Some(tag), Some(header)) = (
        sector::tag_of(sector, Role::Segment, number),
        SegmentHeader::parse(header),
    ) && header.generation as u32 == tag
    {
        return Head::Segment(header);
    }
    let part = PartHeader::parse(&sector[SECTOR_HEADER_BYTES as usize..]);
    match (sector::tag_of(sector, Role::Checkpoint, number), part) {
        (Some(tag), Some(part)) if part.generation as u32 == tag => Head::Part(part),
        _ => table::reader::header_of(layout, slot, sector).map_or(Head::Damaged, Head::Table),
    }
}

/// Reads the first bytes of a segment.
pub(crate) fn read_segment(
    medium: &dyn Device,
    layout: &Layout,
    slot: u32,
    length: u32,
) -> Result<Vec<u8>, MediaError> {
    let mut bytes = vec![0; length as usize];
    medium.read_at(layout.segment_offset(slot), &mut bytes)?;
    Ok(bytes)
}

/// The bytes of a segment.
pub(crate) struct Segment<'a> {
    pub layout: &'a Layout,
    pub slot: u32,
    pub generation: u64,
    pub bytes: &'a [u8],
}

impl Segment<'_> {
    pub(crate) fn judge(&self, at: u32, role: Role) -> State {
        let sector = &self.bytes[at as usize..][..self.layout.sector_bytes as usize];
        let number = self.layout.sector_number(self.slot, at);
        let tag = self.generation as u32;
        if role == Role::Record && self.layout.atomic_bytes < self.layout.sector_bytes {
            return sector::judge_first(sector, tag, number);
        }
        sector::judge(sector, role, tag, number)
    }

    pub(crate) fn header_at(&self, at: u32) -> RecordHeader {
        let payload = &self.bytes[(at + SECTOR_HEADER_BYTES) as usize..];
        RecordHeader::parse(&payload[..RECORD_HEADER_BYTES as usize])
    }

    /// The padding behind the segment's header is what was written.
    pub(crate) fn padding(&self) -> Next {
        self.inner(self.layout.sector_bytes, self.layout.block_bytes)
            .unwrap_or(Next::End)
    }

    /// The first of the sectors in a range that is not new: damaged ones before torn ones.
    fn inner(&self, from: u32, to: u32) -> Option<Next> {
        let mut torn = None;
        for at in (from..to).step_by(self.layout.sector_bytes as usize) {
            match self.judge(at, Role::Inner) {
                State::New => {}
                State::Old => torn = Some(Next::Torn),
                State::Damaged => return Some(Next::Damaged(at)),
            }
        }
        torn
    }

    /// Content at byte `at`, where a record should begin.
    pub(crate) fn next(&self, at: u32) -> Next {
        if at >= self.layout.segment_bytes {
            return Next::End;
        }
        match self.judge(at, Role::Record) {
            State::Old => return Next::End,
            State::Damaged => return Next::Damaged(at),
            State::New => {}
        }
        let header = self.header_at(at);
        let room = self.layout.stream_of(self.layout.segment_bytes - at);
        let stream = header.length.saturating_add(RECORD_HEADER_BYTES);
        let end = at + self.layout.extent_of(stream.min(room));
        if stream > room || end > self.layout.segment_bytes {
            return Next::Damaged(at);
        }
        self.inner(at + self.layout.sector_bytes, end)
            .unwrap_or(Next::Record { header, end })
    }

    /// Calls `f` with the entries of the record at `at`. False if they make no sense.
    pub(crate) fn entries(
        &self,
        at: u32,
        header: &RecordHeader,
        mut f: impl FnMut(&Entry<'_>, Location),
    ) -> bool {
        let first = self.layout.stream_of(at) + RECORD_HEADER_BYTES;
        let whole = Location {
            slot: self.slot,
            at: first,
            length: header.length,
        };
        let bytes = gather(self.layout, self.bytes, 0, whole);
        let mut done = 0;
        while done < bytes.len() {
            let Some(entry) = Entry::parse(&bytes[done..]) else {
                return false;
            };
            done += entry.bytes();
            let location = Location::of(&entry, self.slot, first + (done - entry.value.len()) as u32);
            f(&entry, location);
        }
        true
    }

    /// Calls `f` with the entries of a record, as far as they can be told apart: entry, where its value is, and whether its value is
    /// damaged. False if the keys of some are not known.
    pub(crate) fn readable_entries(
        &self,
        piece: &Piece,
        mut f: impl FnMut(&Entry<'_>, Location, bool),
    ) -> bool {
        let layout = self.layout;
        let Some(header) = piece.header else {
            return false;
        };
        let first = layout.stream_of(piece.at) + RECORD_HEADER_BYTES;
        let last = layout.stream_of(piece.end);
        let whole = Location {
            slot: self.slot,
            at: first,
            length: header.length.min(last - first),
        };
        let bytes = gather(layout, self.bytes, 0, whole);
        let sectors = (piece.at + layout.sector_bytes..piece.end).step_by(layout.sector_bytes as usize);
        let bad = sectors.filter(|&at| self.judge(at, Role::Inner) != State::New);
        let bad: Vec<(usize, usize)> = bad
            .map(|at| {
                let start = (layout.stream_of(at) - first) as usize;
                (start, start + layout.payload_bytes() as usize)
            })
            .collect();
        let is_bad = |from: usize, to: usize| bad.iter().any(|&(start, end)| from < end && start < to);
        let (mut done, mut is_named) = (0, true);
        while done < bytes.len() {
            let from = done;
            if is_bad(from, from + ENTRY_HEADER_BYTES) {
                return false;
            }
            let Some(entry) = Entry::parse(&bytes[from..]) else {
                return false;
            };
            done += entry.bytes();
            let value = done - entry.value.len();
            if is_bad(from + ENTRY_HEADER_BYTES, value) {
                is_named = false;
                continue;
            }
            let location = Location::of(&entry, self.slot, first + value as u32);
            f(&entry, location, is_bad(value, done));
        }
        is_named
    }

    /// The highest record number that a record anywhere from `at` on calls durable.
    pub(crate) fn durable_beyond(&self, at: u32) -> u64 {
        let sectors = (at..self.layout.segment_bytes).step_by(self.layout.block_bytes as usize);
        let records = sectors.filter(|&at| self.judge(at, Role::Record) == State::New);
        records.map(|at| self.header_at(at).durable).max().unwrap_or(0)
    }

    /// Sectors from `at` on that are not old: what a cut left, to be erased.
    pub(crate) fn leftovers(&self, at: u32) -> Vec<u32> {
        let sectors = (at..self.layout.segment_bytes).step_by(self.layout.sector_bytes as usize);
        sectors
            .filter(|&at| self.judge(at, Role::Inner) != State::Old)
            .collect()
    }
}

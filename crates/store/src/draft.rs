//! A record while it is written down, and when it is sealed.

use crate::buffer::Buffer;
use crate::entry::{ENTRY_HEADER_BYTES, Entry, EntryKind, StructureId};
use crate::format::{RECORD_HEADER_BYTES, RecordHeader, SegmentHeader};
use crate::index::{Key, Location, Slot, Usage};
use crate::layout::{Layout, SECTOR_HEADER_BYTES};
use crate::sector::{self, Role};

/// The change in the index when an entry's record is durable.
#[derive(Debug)]
pub(crate) enum Effect {
    /// It is applied. Until then the usage is counted as expected.
    Apply(EntryKind, Usage),
    /// The entry that was at this place is here now.
    Move(Location),
}

/// An entry that waits for its record.
#[derive(Debug)]
pub(crate) struct Pending {
    pub effect: Effect,
    pub structure: StructureId,
    pub key: Key,
    pub slot: Slot,
}

/// A record that takes entries.
pub(crate) struct Draft {
    layout: Layout,
    buffer: Buffer,
    pub slot: u32,
    pub generation: u64,
    pub number: u64,
    /// The segment's header, if the record is its first: both are one write.
    segment: Option<SegmentHeader>,
    /// Start of the record in the segment, in bytes.
    start: u32,
    /// The next byte of the segment's payload, and where the record must end.
    cursor: u32,
    limit: u32,
    pub pending: Vec<Pending>,
}

/// Place of a draft.
pub(crate) struct Place {
    pub slot: u32,
    pub generation: u64,
    pub number: u64,
    pub segment: Option<SegmentHeader>,
    pub start: u32,
}

impl Draft {
    pub(crate) fn new(layout: Layout, buffer: Buffer, place: Place) -> Self {
        let first = layout.stream_of(place.start);
        let bytes = layout.record_bytes_max.min(layout.segment_bytes - place.start);
        Self {
            layout,
            buffer,
            slot: place.slot,
            generation: place.generation,
            number: place.number,
            segment: place.segment,
            start: place.start,
            cursor: first + RECORD_HEADER_BYTES,
            limit: first + layout.stream_of(bytes),
            pending: Vec::new(),
        }
    }

    /// Bytes of entries that still fit.
    pub(crate) fn room(&self) -> usize {
        (self.limit - self.cursor) as usize
    }

    /// Where in the segment the record's write begins.
    fn write_start(&self) -> u32 {
        if self.segment.is_some() { 0 } else { self.start }
    }

    /// Writes an entry down; where its value is.
    pub(crate) fn push(&mut self, entry: &Entry<'_>) -> Location {
        assert!(entry.bytes() <= self.room(), "room was made before");
        self.put(&entry.header());
        self.put(entry.key);
        let location = Location::of(entry, self.slot, self.cursor);
        self.put(entry.value);
        debug_assert_eq!(entry.header().len(), ENTRY_HEADER_BYTES);
        location
    }

    fn put(&mut self, bytes: &[u8]) {
        let (start, at) = (self.write_start(), self.cursor);
        scatter(&self.layout, self.buffer.bytes_mut(), start, at, bytes);
        self.cursor += bytes.len() as u32;
    }

    /// Completes the record's bytes. `tail` and `durable` are as of now.
    pub(crate) fn seal(mut self, durable: u64, tail: u64, epoch: u64) -> Sealed {
        let layout = self.layout;
        let (write_start, first) = (self.write_start(), layout.stream_of(self.start));
        let extent = layout.extent_of(self.cursor - first);
        let header = RecordHeader {
            number: self.number,
            durable,
            tail,
            epoch: epoch as u32,
            length: self.cursor - first - RECORD_HEADER_BYTES,
        };
        let end = self.start + extent;
        let bytes = &mut self.buffer.bytes_mut()[..(end - write_start) as usize];
        blank(&layout, bytes, write_start, self.cursor);
        scatter(&layout, bytes, write_start, first, &header.emit());
        if let Some(segment) = &self.segment {
            bytes[..self.start as usize].fill(0);
            segment.emit(&mut bytes[SECTOR_HEADER_BYTES as usize..]);
        }
        let tag = self.generation as u32;
        for (index, part) in bytes.chunks_mut(layout.sector_bytes as usize).enumerate() {
            let within = write_start + index as u32 * layout.sector_bytes;
            let role = match within {
                0 => Role::Segment,
                _ if within == self.start => Role::Record,
                _ => Role::Inner,
            };
            sector::seal(part, role, tag, layout.sector_number(self.slot, within));
        }
        Sealed {
            slot: self.slot,
            start: write_start,
            end,
            number: self.number,
            tail,
            buffer: self.buffer,
            pending: self.pending,
        }
    }

    /// Bytes of a value that is in this draft.
    pub(crate) fn read(&self, location: Location) -> Option<Vec<u8>> {
        let inside = location.slot == self.slot && location.at >= self.layout.stream_of(self.start);
        inside.then(|| gather(&self.layout, self.buffer.bytes(), self.write_start(), location))
    }
}

/// A record whose bytes are complete.
pub(crate) struct Sealed {
    pub slot: u32,
    /// In the segment, in bytes.
    pub start: u32,
    pub end: u32,
    pub number: u64,
    pub tail: u64,
    pub buffer: Buffer,
    pub pending: Vec<Pending>,
}

/// Bytes of a value that is in the write from `start` to `end` of `slot`.
pub(crate) fn read_written(
    layout: &Layout,
    (slot, start, end): (u32, u32, u32),
    bytes: &[u8],
    location: Location,
) -> Option<Vec<u8>> {
    let range = layout.stream_of(start)..layout.stream_of(end);
    let inside = location.slot == slot && range.contains(&location.at);
    inside.then(|| gather(layout, bytes, start, location))
}

/// Calls `f` with the pieces of sectors that hold `length` payload bytes from `at` on, as offsets from `start`.
fn pieces(layout: &Layout, start: u32, at: u32, length: usize, mut f: impl FnMut(usize, usize)) {
    let payload = layout.payload_bytes();
    let (mut at, mut left) = (at, length);
    while left > 0 {
        let within = at % payload;
        let count = left.min((payload - within) as usize);
        let offset = at / payload * layout.sector_bytes + SECTOR_HEADER_BYTES + within - start;
        f(offset as usize, count);
        at += count as u32;
        left -= count;
    }
}

/// Puts `source` at byte `at` of the segment's payload, where `bytes` begin `start` bytes into the segment.
fn scatter(layout: &Layout, bytes: &mut [u8], start: u32, at: u32, source: &[u8]) {
    let mut done = 0;
    pieces(layout, start, at, source.len(), |offset, count| {
        bytes[offset..offset + count].copy_from_slice(&source[done..done + count]);
        done += count;
    });
}

/// Zeroes the payload from byte `at` on.
fn blank(layout: &Layout, bytes: &mut [u8], start: u32, at: u32) {
    let end = layout.stream_of(start + bytes.len() as u32);
    pieces(layout, start, at, (end - at) as usize, |offset, count| {
        bytes[offset..offset + count].fill(0);
    });
}

/// The payload of a location, where `bytes` begin `start` bytes into the segment.
pub(crate) fn gather(layout: &Layout, bytes: &[u8], start: u32, location: Location) -> Vec<u8> {
    let mut data = Vec::with_capacity(location.length as usize);
    pieces(
        layout,
        start,
        location.at,
        location.length as usize,
        |offset, count| {
            data.extend_from_slice(&bytes[offset..offset + count]);
        },
    );
    data
}

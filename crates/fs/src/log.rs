//! The operation log: frames of records in a ring (docs/format/fs.md, "Operation log").
//!
//! A [`Writer`] gathers records in a frame and gives it out as a write. While writes are under way, what comes goes to the next frame:
//! group commit that waits for nobody. Writes may end in any order. A frame is durable when all frames up to it are. After a failed write
//! the writer takes nothing more.
//!
//! A [`Reader`] gives the frames from a position on, and how they end: at the end of the log, or at damage. It takes no byte on trust.
//!
//! Neither does I/O of its own beside reads of a [`Device`]. A ring has one writer in its life: its nonce is of this writer alone.

use crate::format::{BLOCK_BYTES, Place, put_u32, put_u64, u32_at, u64_at};
use crate::op::{Malformed, Op};
use crate::value::Run;
use base::{Device, MediaError};
use std::collections::VecDeque;
use thiserror::Error;

/// Bytes of a frame in front of its records.
pub const FRAME_HEADER_BYTES: usize = 40;
/// Bytes of a frame, at most. A reader takes nothing longer for a frame.
pub const FRAME_BYTES_MAX: u32 = 1 << 20;
/// Frames fit a ring so many times, at least, so that skipping its end costs little.
pub const FRAMES_OF_RING_MIN: u64 = 4;
/// Blocks of a device, at most, so that bytes of it have a number.
const BLOCKS_MAX: u64 = 1 << 48;
/// Bytes that a search for frames reads at once: a multiple of each sector.
const SEARCH_BYTES: u64 = 1 << 16;
/// Buffers that wait for the next frame, at most; more are freed.
const SPARE_MAX: usize = 8;

/// The place of a log on device 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ring {
    nonce: u64,
    sector: u32,
    /// Where each extent begins and ends in the ring, and its first byte on the device.
    extents: Vec<(u64, u64, u64)>,
}

impl Ring {
    /// Of extents on device 0. Frames begin at multiples of `sector` bytes.
    ///
    /// Nothing if this cannot be a log: it has no extents, one is empty or elsewhere, or a sector is no part of a block.
    pub fn new(nonce: u64, sector: u32, extents: &[Run]) -> Option<Self> {
        let is_sector = sector.is_power_of_two() && (64..=BLOCK_BYTES as u32).contains(&sector);
        let mut end = 0u64;
        let mut found = Vec::with_capacity(extents.len());
        for &Run { place, blocks } in extents {
            let last = place.number().checked_add(blocks)?;
            let is_sound = place == Place::new(0, place.number()) && blocks > 0 && last < BLOCKS_MAX;
            let start = end;
            end = end
                .checked_add(blocks.checked_mul(BLOCK_BYTES as u64)?)
                .filter(|_| is_sound)?;
            found.push((start, end, place.offset()));
        }
        (is_sector && end > 0).then_some(Self {
            nonce,
            sector,
            extents: found,
        })
    }

    /// Its bytes.
    pub fn bytes(&self) -> u64 {
        self.extents.last().expect("a ring has extents").1
    }

    /// Frames begin at multiples of so many bytes.
    pub fn sector(&self) -> u32 {
        self.sector
    }

    /// Bytes of a frame of its writer, at most.
    pub fn frame_bytes_max(&self) -> u32 {
        let bytes = (self.bytes() / FRAMES_OF_RING_MIN).min(u64::from(FRAME_BYTES_MAX));
        bytes as u32 / self.sector * self.sector
    }

    /// Bytes to the ring's end from a position on.
    fn rest(&self, position: u64) -> u64 {
        self.bytes() - position % self.bytes()
    }

    /// With the padding.
    fn padded(&self, bytes: u64) -> u64 {
        bytes.next_multiple_of(u64::from(self.sector))
    }

    /// Where a range of the ring is on the device: first byte, and bytes. It does not wrap.
    fn pieces(&self, position: u64, bytes: u64) -> impl Iterator<Item = (u64, usize)> + '_ {
        let from = position % self.bytes();
        let to = from + bytes;
        assert!(to <= self.bytes(), "a frame does not wrap");
        let inside = self
            .extents
            .iter()
            .filter(move |&&(start, end, _)| start < to && from < end);
        inside.map(move |&(start, end, at)| {
            let first = from.max(start);
            (at + first - start, (to.min(end) - first) as usize)
        })
    }

    fn read(&self, medium: &impl Device, position: u64, bytes: &mut [u8]) -> Result<(), MediaError> {
        let mut rest = bytes;
        for (offset, length) in self.pieces(position, rest.len() as u64) {
            let (piece, behind) = rest.split_at_mut(length);
            medium.read_at(offset, piece)?;
            rest = behind;
        }
        Ok(())
    }
}

/// What a writer may use.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes of a frame: at most [`FRAME_BYTES_MAX`], and a fourth of the ring.
    pub frame_bytes_max: u32,
    /// Writes under way: at least one.
    pub writes_in_flight_max: usize,
}

/// The frame of a record, counted from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Why records are refused. Nothing of them was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AddError {
    /// Nothing can be durable any more.
    #[error("a write of the log failed: the log takes nothing more, digest it and begin another one")]
    Latched,
    /// The frame that is gathered has no room for them.
    #[error(
        "the next frame is full: make the writes that the log has, and try again after the next one ends"
    )]
    Busy,
    /// The ring has no room.
    #[error("the log is full: {bytes} bytes are needed, {free} are free; digest, and try again")]
    Full {
        /// That they need, with what is skipped.
        bytes: u64,
        /// That are free.
        free: u64,
    },
    /// No frame has room for them.
    #[error("a call of {bytes} bytes exceeds a frame's {bytes_max}: divide it, or put its data in blocks")]
    TooLong {
        /// Of the records.
        bytes: u64,
        /// What fits.
        bytes_max: u64,
    },
}

/// A frame to be written: the whole of it is durable before [`Writer::written`] is told of success.
#[derive(Debug)]
pub struct Write {
    ticket: Ticket,
    pieces: Vec<(u64, usize)>,
    bytes: Vec<u8>,
}

impl Write {
    /// Where on device 0, and the bytes: whole sectors. There is more than one if the frame lies in several extents.
    pub fn pieces(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let mut rest = &self.bytes[..];
        self.pieces.iter().map(move |&(offset, length)| {
            let (piece, behind) = rest.split_at(length);
            rest = behind;
            (offset, piece)
        })
    }

    /// The frame.
    pub fn ticket(&self) -> Ticket {
        self.ticket
    }
}

/// Memory of a write that has ended, for the next ones: of its bytes, and of its places.
type Spare = (Vec<u8>, Vec<(u64, usize)>);

#[derive(Debug)]
struct Flying {
    end: u64,
    has_records: bool,
    is_done: bool,
}

/// Writes a log.
#[derive(Debug)]
pub struct Writer {
    ring: Ring,
    options: Options,
    /// The frame that is gathered, from its header on. Empty if there is none.
    draft: Vec<u8>,
    draft_records: u32,
    /// Behind the last frame that was given out.
    end: u64,
    /// Behind the last durable frame.
    durable: u64,
    /// Positions below are needed no more.
    consumed: u64,
    flying: VecDeque<Flying>,
    /// The last frame that was given out.
    last: u64,
    /// A durable frame with records is called durable by no later frame.
    is_uncalled: bool,
    is_latched: bool,
    spare: Vec<Spare>,
}

impl Writer {
    /// For a ring of which no position from `start` on was ever written with this nonce. `start` is 0, or where a former writer's log ended.
    ///
    /// # Panics
    /// If the options do not fit the ring.
    pub fn new(ring: Ring, start: u64, options: Options) -> Self {
        let bytes_max = u64::from(options.frame_bytes_max);
        assert!(options.writes_in_flight_max > 0, "a log has a write under way");
        assert!(
            ring.padded(bytes_max) * FRAMES_OF_RING_MIN <= ring.bytes()
                && options.frame_bytes_max <= FRAME_BYTES_MAX
                && options.frame_bytes_max as usize > FRAME_HEADER_BYTES,
            "frames of {bytes_max} bytes do not fit a log of {} bytes",
            ring.bytes()
        );
        assert_eq!(
            start % u64::from(ring.sector),
            0,
            "a log ends where a sector does"
        );
        Self {
            ring,
            options,
            draft: Vec::with_capacity(options.frame_bytes_max as usize),
            draft_records: 0,
            end: start,
            durable: start,
            consumed: start,
            flying: VecDeque::with_capacity(options.writes_in_flight_max),
            last: 0,
            is_uncalled: false,
            is_latched: false,
            spare: Vec::new(),
        }
    }

    /// Takes the records of one call, which are in one frame: after a cut all of them count, or none. The call is durable when
    /// [`Self::durable`] has reached the ticket.
    ///
    /// # Panics
    /// If an operation breaks the limits of records ([`Op::check`]).
    pub fn add(&mut self, call: &[Op<'_>]) -> Result<Ticket, AddError> {
        if self.is_latched {
            return Err(AddError::Latched);
        }
        let bytes: u64 = call.iter().map(|op| op.record_bytes() as u64).sum();
        let bytes_max = u64::from(self.options.frame_bytes_max) - FRAME_HEADER_BYTES as u64;
        if bytes > bytes_max {
            return Err(AddError::TooLong { bytes, bytes_max });
        }
        let before = self.draft.len().max(FRAME_HEADER_BYTES) as u64;
        if before + bytes > u64::from(self.options.frame_bytes_max) {
            return Err(AddError::Busy);
        }
        let ((_, taken), free) = (self.place(before + bytes), self.free());
        if taken > free {
            return Err(AddError::Full { bytes: taken, free });
        }
        if self.draft.is_empty() {
            self.draft.resize(FRAME_HEADER_BYTES, 0);
        }
        call.iter().for_each(|op| op.emit(&mut self.draft));
        self.draft_records += call.len() as u32;
        Ok(Ticket(self.last + 1))
    }

    /// Bytes that may be written before a digest has to free some.
    pub fn free(&self) -> u64 {
        self.consumed + self.ring.bytes() - self.end
    }

    /// Where a frame of so many bytes goes, and what it takes of the ring with what is skipped in front of it.
    fn place(&self, bytes: u64) -> (u64, u64) {
        let (padded, rest) = (self.ring.padded(bytes), self.ring.rest(self.end));
        let skipped = if padded > rest { rest } else { 0 };
        (self.end + skipped, skipped + padded)
    }

    /// The next write, if records wait and a write may begin.
    pub fn next_write(&mut self) -> Option<Write> {
        let may = !self.is_latched && self.flying.len() < self.options.writes_in_flight_max;
        (may && self.draft_records > 0).then(|| self.seal())
    }

    /// True if the last frame is durable, and no later one says so: [`Self::mark`] should, as soon as the writer has nothing to do.
    pub fn wants_mark(&self) -> bool {
        let is_idle = self.flying.is_empty() && self.draft_records == 0 && !self.is_latched;
        is_idle && self.is_uncalled
    }

    /// A frame without records, by which readers know that those before it were durable. Nothing if none is wanted, or there is no room.
    pub fn mark(&mut self) -> Option<Write> {
        let (_, bytes) = self.place(FRAME_HEADER_BYTES as u64);
        if !self.wants_mark() || bytes > self.free() {
            return None;
        }
        self.draft.resize(FRAME_HEADER_BYTES, 0);
        Some(self.seal())
    }

    fn seal(&mut self) -> Write {
        let length = self.draft.len() as u64;
        let (position, taken) = self.place(length);
        assert!(
            taken <= self.free(),
            "records are taken if there is room for them"
        );
        let (spare, mut pieces) = self.spare.pop().unwrap_or_default();
        let mut bytes = core::mem::replace(&mut self.draft, spare);
        let header = Header {
            bytes: length as u32,
            nonce: self.ring.nonce,
            position,
            durable: self.durable,
            records: self.draft_records,
            skipped: (position - self.end) as u32,
        };
        header.emit(&mut bytes);
        bytes.resize(self.ring.padded(length) as usize, 0);
        pieces.extend(self.ring.pieces(position, bytes.len() as u64));
        self.end += taken;
        self.last += 1;
        self.flying.push_back(Flying {
            end: self.end,
            has_records: self.draft_records > 0,
            is_done: false,
        });
        self.draft_records = 0;
        Write {
            ticket: Ticket(self.last),
            pieces,
            bytes,
        }
    }

    /// A write has ended. After a failure the log takes nothing more, and what was under way may be durable or not.
    ///
    /// # Panics
    /// If it is another log's write.
    pub fn written(&mut self, write: Write, result: Result<(), MediaError>) {
        let first = self.last + 1 - self.flying.len() as u64;
        let index = write.ticket.0.checked_sub(first).expect("the write is under way");
        self.is_latched |= result.is_err();
        let flying = &mut self.flying[index as usize];
        assert!(!flying.is_done, "a write ends once");
        flying.is_done = result.is_ok();
        while !self.is_latched && self.flying.front().is_some_and(|flying| flying.is_done) {
            let flying = self.flying.pop_front().expect("there is one");
            self.durable = flying.end;
            self.is_uncalled = flying.has_records;
        }
        if self.spare.len() < SPARE_MAX {
            let (mut bytes, mut pieces) = (write.bytes, write.pieces);
            bytes.clear();
            pieces.clear();
            self.spare.push((bytes, pieces));
        }
    }

    /// The last frame that is durable with all before it.
    pub fn durable(&self) -> Ticket {
        Ticket(self.last - self.flying.len() as u64)
    }

    /// Behind this frame: a digest may take positions below.
    pub fn durable_position(&self) -> u64 {
        self.durable
    }

    /// Positions below are needed no more: both roots have them in their trees.
    ///
    /// # Panics
    /// If they are not durable.
    pub fn consumed(&mut self, position: u64) {
        assert!(position <= self.durable, "only durable frames are digested");
        self.consumed = self.consumed.max(position);
    }

    /// True after a failed write.
    pub fn is_latched(&self) -> bool {
        self.is_latched
    }
}

/// The fields in front of a frame's records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    bytes: u32,
    nonce: u64,
    position: u64,
    durable: u64,
    records: u32,
    skipped: u32,
}

impl Header {
    /// Puts it in front of the records, with the CRC of all.
    fn emit(&self, frame: &mut [u8]) {
        put_u32(frame, 4, self.bytes);
        put_u64(frame, 8, self.nonce);
        put_u64(frame, 16, self.position);
        put_u64(frame, 24, self.durable);
        put_u32(frame, 32, self.records);
        put_u32(frame, 36, self.skipped);
        put_u32(frame, 0, crc32c::crc32c(&frame[4..]));
    }

    /// Without the CRC.
    fn parse(bytes: &[u8]) -> Self {
        Self {
            bytes: u32_at(bytes, 4),
            nonce: u64_at(bytes, 8),
            position: u64_at(bytes, 16),
            durable: u64_at(bytes, 24),
            records: u32_at(bytes, 32),
            skipped: u32_at(bytes, 36),
        }
    }
}

/// A frame that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its first byte.
    pub position: u64,
    /// Behind it, with the padding: `digested` when its records are in the tree.
    pub end: u64,
    records: u32,
    bytes: Vec<u8>,
}

impl Frame {
    /// The operations of its records, in order. After a record that is malformed there is nothing.
    pub fn ops(&self) -> impl Iterator<Item = Result<Op<'_>, Malformed>> {
        let mut rest = &self.bytes[..];
        let mut left = self.records;
        core::iter::from_fn(move || {
            if left == 0 {
                let is_over = core::mem::take(&mut rest).is_empty();
                return (!is_over).then_some(Err(Malformed::Length));
            }
            left -= 1;
            let parsed = Op::parse(rest);
            match parsed {
                Ok((_, length)) => rest = &rest[length..],
                Err(_) => (rest, left) = (&[], 0),
            }
            Some(parsed.map(|(op, _)| op))
        })
    }
}

/// What comes next in a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// A frame.
    Frame(Frame),
    /// Nothing: no later frame was called durable.
    End,
    /// A frame is damaged that was durable once, and nothing behind it counts.
    Damaged,
}

/// Reads a log.
#[derive(Debug)]
pub struct Reader<'a, D> {
    ring: &'a Ring,
    medium: &'a D,
    at: u64,
    /// No position from here on can have been written.
    limit: u64,
}

impl<'a, D: Device> Reader<'a, D> {
    /// From `digested` on. Nothing if that cannot be the end of a frame.
    pub fn new(ring: &'a Ring, medium: &'a D, digested: u64) -> Option<Self> {
        let limit = digested.checked_add(ring.bytes())?;
        let is_sound = digested.is_multiple_of(u64::from(ring.sector));
        is_sound.then_some(Self {
            ring,
            medium,
            at: digested,
            limit,
        })
    }

    /// Behind the last frame that was read: a position of the log's end, or of its damage.
    pub fn position(&self) -> u64 {
        self.at
    }

    /// The next frame, the end, or damage. A failed read is no damage: try again.
    pub fn next_frame(&mut self) -> Result<Next, MediaError> {
        let mut budget = u64::MAX;
        let skipped = self.ring.rest(self.at);
        for skipped in [0, skipped] {
            let found = self.frame_at(self.at + skipped, &mut budget)?;
            if let Some((header, bytes)) = found.filter(|(header, _)| u64::from(header.skipped) == skipped) {
                self.at = header.position + self.ring.padded(u64::from(header.bytes));
                let frame = Frame {
                    position: header.position,
                    end: self.at,
                    records: header.records,
                    bytes,
                };
                return Ok(Next::Frame(frame));
            }
        }
        match self.was_durable()? {
            true => Ok(Next::Damaged),
            false => Ok(Next::End),
        }
    }

    /// Whether a frame further on says that the one here was durable. It may be anywhere, as nothing tells where the frame here ends.
    fn was_durable(&self) -> Result<bool, MediaError> {
        // A cut leaves few false frames. Somebody who makes them up gets no more of our time than this.
        let mut budget = 4 * self.ring.bytes();
        let sector = u64::from(self.ring.sector);
        let mut bytes = vec![0; SEARCH_BYTES as usize];
        let mut read = 0..0;
        let mut at = self.at + sector;
        while at < self.limit && budget > 0 {
            if !read.contains(&at) {
                read = at..at + SEARCH_BYTES.min(self.ring.rest(at)).min(self.limit - at);
                self.ring
                    .read(self.medium, at, &mut bytes[..(read.end - at) as usize])?;
            }
            let header = Header::parse(&bytes[(at - read.start) as usize..]);
            let found = match self.is_ours(&header, at) {
                true => self.frame_at(at, &mut budget)?,
                false => None,
            };
            match found {
                Some((header, _)) if header.durable > self.at => return Ok(true),
                Some((header, _)) => at += self.ring.padded(u64::from(header.bytes)),
                None => at += sector,
            }
        }
        Ok(budget == 0)
    }

    /// Whether a header is one of this log, at a position.
    fn is_ours(&self, header: &Header, position: u64) -> bool {
        let padded = self.ring.padded(u64::from(header.bytes));
        let is_ours = header.nonce == self.ring.nonce && header.position == position;
        is_ours
            && (FRAME_HEADER_BYTES as u32..=FRAME_BYTES_MAX).contains(&header.bytes)
            && padded <= self.ring.rest(position)
            && padded <= self.limit - position
    }

    /// The whole frame at a position: its header, and its records. `budget` is of bytes whose CRC is computed in vain.
    fn frame_at(&self, position: u64, budget: &mut u64) -> Result<Option<(Header, Vec<u8>)>, MediaError> {
        let mut bytes = [0; FRAME_HEADER_BYTES];
        if position >= self.limit {
            return Ok(None);
        }
        self.ring.read(self.medium, position, &mut bytes)?;
        let header = Header::parse(&bytes);
        if !self.is_ours(&header, position) {
            return Ok(None);
        }
        let mut frame = vec![0; header.bytes as usize];
        self.ring.read(self.medium, position, &mut frame)?;
        // What was read first may have been another writer's, so the header is taken from what was checked.
        if u32_at(&frame, 0) != crc32c::crc32c(&frame[4..]) || Header::parse(&frame) != header {
            *budget = budget.saturating_sub(u64::from(header.bytes));
            return Ok(None);
        }
        frame.drain(..FRAME_HEADER_BYTES);
        Ok(Some((header, frame)))
    }
}

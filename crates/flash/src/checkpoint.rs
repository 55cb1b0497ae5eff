//! Fuzzy checkpoints: the map and the erase counts, written page by page while everything goes on.
//!
//! Checkpoint n goes to slot n mod 2. Its pieces are written first, a few at a time; then a flush round makes durable
//! every program that a piece may name; then the header, and another round. Only then does it count: entries of
//! programs up to `covered` (the newest when it began) are not needed any more, nor are trims that two checkpoints
//! cover.

use crate::api::{Data, Event, VssdError};
use crate::blocks::State;
use crate::bulk::read_pages;
use crate::flush::Stage;
use crate::layout::{BLOCK_BYTES, MAPPED_BYTES, PIECE_HEADER_BYTES, Share, put_u32, put_u64, u32_at, u64_at};
use crate::mapping::Mapped;
use crate::ops::{Op, OpKind};
use crate::vssd::Vssd;
use base::{Device, Instant, MediaError, MediaOp, Version};

const MAGIC: u32 = u32::from_le_bytes(*b"SWCK");
const CRC_AT: usize = PIECE_HEADER_BYTES - 4;
/// Pieces in flight: enough to keep a device busy, few enough not to crowd users out.
const PIECES_IN_FLIGHT: u32 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    /// Pieces are being written.
    Pieces,
    /// Programs that the pieces name are being made durable.
    Settling,
    /// The header is being written.
    Header,
    /// The header is being made durable.
    Sealing,
}

/// State of checkpointing.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    /// One is due for a reason other than the number of programs.
    pub(crate) wanted: bool,
    phase: Phase,
    next_tags: Vec<u64>,
    tags: Vec<u64>,
    /// The newest durable one, 0 for none.
    pub(crate) number: u32,
    /// Programs it covers.
    pub(crate) covered: u64,
    /// Trims it covers.
    trims_covered: u64,
    /// The newest program and trim when the present one began.
    start: u64,
    trims_start: u64,
    /// Blocks that were open then, and how far they were filled.
    start_fill: Vec<(u32, u32)>,
    next_piece: u32,
    in_flight: u32,
    /// The newest program that a piece may name.
    need: u64,
    pub(crate) programs: u64,
    /// The next one is numbered one higher, so that it replaces the damaged slot.
    skip: bool,
}

impl Checkpoints {
    pub(crate) fn new(units: u32) -> Self {
        Self {
            wanted: false,
            phase: Phase::Idle,
            next_tags: Vec::new(),
            tags: Vec::new(),
            number: 0,
            covered: 0,
            trims_covered: 0,
            start: 0,
            trims_start: 0,
            start_fill: Vec::with_capacity(2 * units as usize),
            next_piece: 0,
            in_flight: 0,
            need: 0,
            programs: 0,
            skip: false,
        }
    }

    /// Goes on after a recovery: `number` is the newest that was durable; `fell_back` when it is damaged.
    pub(crate) fn resume(&mut self, number: u32, covered: u64, fell_back: bool) {
        self.number = number;
        self.covered = covered;
        self.skip = fell_back;
    }
}

/// Whose checkpoint it is, and which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) instance: u32,
    pub(crate) number: u32,
}

/// A checkpoint's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CheckpointHeader {
    pub(crate) stamp: Stamp,
    /// Programs up to this need no entry any more.
    pub(crate) covered: u64,
    /// The same of the checkpoint before: records of trims up to this are dead.
    pub(crate) covered_before: u64,
    /// Programs up to this were durable when the header was written.
    pub(crate) durable: u64,
    pub(crate) logical_pages: u32,
    pub(crate) blocks: u32,
}

fn seal(bytes: &mut [u8], stamp: Stamp, index: u32, count: u32) {
    put_u32(bytes, 0, MAGIC);
    put_u32(bytes, 4, stamp.instance);
    put_u32(bytes, 8, stamp.number);
    put_u32(bytes, 12, index);
    put_u32(bytes, 16, count);
    put_u32(bytes, CRC_AT, piece_crc(bytes));
}

fn piece_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&bytes[..CRC_AT]), &bytes[PIECE_HEADER_BYTES..])
}

/// The stamp, index and item count of an intact piece.
fn unseal(bytes: &[u8]) -> Option<(Stamp, u32, u32)> {
    if u32_at(bytes, 0) != MAGIC || u32_at(bytes, CRC_AT) != piece_crc(bytes) {
        return None;
    }
    let stamp = Stamp {
        instance: u32_at(bytes, 4),
        number: u32_at(bytes, 8),
    };
    Some((stamp, u32_at(bytes, 12), u32_at(bytes, 16)))
}

impl CheckpointHeader {
    fn emit(&self, bytes: &mut [u8]) {
        put_u64(bytes, 32, self.covered);
        put_u64(bytes, 40, self.durable);
        put_u32(bytes, 48, self.logical_pages);
        put_u32(bytes, 52, self.blocks);
        put_u64(bytes, 56, self.covered_before);
        seal(bytes, self.stamp, 0, 0);
    }

    /// Reads the header of a slot; `None` when it is not a header of this instance.
    pub(crate) fn read(
        medium: &dyn Device,
        share: &Share,
        slot: u32,
        instance: u32,
    ) -> Result<Option<Self>, MediaError> {
        let mut bytes = vec![0; share.page_bytes()];
        medium.read_at(share.piece_offset(slot, 0), &mut bytes)?;
        let Some((stamp, 0, _)) = unseal(&bytes) else {
            return Ok(None);
        };
        let header = Self {
            stamp,
            covered: u64_at(&bytes, 32),
            durable: u64_at(&bytes, 40),
            logical_pages: u32_at(&bytes, 48),
            blocks: u32_at(&bytes, 52),
            covered_before: u64_at(&bytes, 56),
        };
        Ok((stamp.instance == instance && stamp.number % 2 == slot).then_some(header))
    }
}

/// A checkpoint in memory.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) header: CheckpointHeader,
    pub(crate) pages: Vec<Mapped>,
    /// Per block: erase count, and pages of it that programs up to `covered` filled.
    pub(crate) blocks: Vec<(u32, u32)>,
}

impl Loaded {
    /// Reads a whole slot; `None` when any part is not intact.
    pub(crate) fn read(
        medium: &dyn Device,
        share: &Share,
        slot: u32,
        instance: u32,
        logical_pages: u32,
    ) -> Result<Option<Self>, MediaError> {
        let Some(header) = CheckpointHeader::read(medium, share, slot, instance)? else {
            return Ok(None);
        };
        if header.logical_pages != logical_pages || header.blocks != share.blocks() {
            return Ok(None);
        }
        let (map_pieces, block_pieces) = share.pieces(logical_pages);
        let mut loaded = Self {
            header,
            pages: Vec::new(),
            blocks: Vec::new(),
        };
        loaded.pages.reserve(logical_pages as usize);
        let wanted: Vec<(u64, u32)> = (1..=map_pieces + block_pieces)
            .map(|index| (share.piece_offset(slot, index), index))
            .collect();
        let mut read = Ok(());
        let mut intact = true;
        read_pages(medium, share.page_bytes(), &wanted, |&index, bytes| match bytes {
            Ok(bytes) => intact = intact && loaded.take_piece(bytes, index, index <= map_pieces),
            Err(error) => read = Err(error),
        });
        read?;
        if !intact {
            return Ok(None);
        }
        let whole =
            loaded.pages.len() == logical_pages as usize && loaded.blocks.len() == share.blocks() as usize;
        Ok(whole.then_some(loaded))
    }

    /// Adds a piece's items; false when it is not the intact piece `index` of this checkpoint.
    fn take_piece(&mut self, bytes: &[u8], index: u32, is_map: bool) -> bool {
        let Some((stamp, found, count)) = unseal(bytes) else {
            return false;
        };
        if stamp != self.header.stamp || found != index {
            return false;
        }
        let items = &bytes[PIECE_HEADER_BYTES..];
        if is_map {
            let mapped = items.chunks_exact(MAPPED_BYTES).take(count as usize);
            self.pages.extend(mapped.map(|at| Mapped {
                version: Version(u64_at(at, 0)),
                ppn: u32_at(at, 8),
                crc: u32_at(at, 12),
            }));
        } else {
            let pairs = items.chunks_exact(BLOCK_BYTES).take(count as usize);
            self.blocks.extend(pairs.map(|at| (u32_at(at, 0), u32_at(at, 4))));
        }
        true
    }
}

impl Vssd {
    /// Begins a checkpoint, for a clean shutdown: flush first, so that no trim is left to log. [`Event::Done`] with the
    /// tag follows when it is durable.
    pub fn checkpoint(&mut self, now: Instant, tag: u64) {
        self.advance(now);
        if self.latched {
            self.done(tag, Err(VssdError::Latched));
            return;
        }
        self.checkpoints.next_tags.push(tag);
        self.pump();
    }

    /// Carries checkpointing on.
    pub(crate) fn step_checkpoint(&mut self) {
        if self.latched {
            return;
        }
        match self.checkpoints.phase {
            Phase::Idle => {
                let due = self.checkpoints.programs >= self.config.checkpoint_every_programs;
                if due || self.checkpoints.wanted || !self.checkpoints.next_tags.is_empty() {
                    self.begin_checkpoint();
                }
            }
            Phase::Pieces => self.write_pieces(),
            Phase::Settling => self.settle_checkpoint(),
            Phase::Header => {}
            Phase::Sealing => {
                if self.rounds.stage == Stage::Idle {
                    self.rounds.internal = true;
                }
            }
        }
    }

    #[cold]
    fn begin_checkpoint(&mut self) {
        let c = &mut self.checkpoints;
        let (last, accepted) = (self.sequence.last(), self.trims.accepted);
        let fresh = c.number > 0 && c.covered == last && c.trims_covered == accepted;
        if fresh && !c.wanted {
            for tag in c.next_tags.drain(..) {
                self.events.push_back(Event::Done {
                    tag,
                    result: Ok(Data::None),
                });
            }
            c.programs = 0;
            return;
        }
        c.phase = Phase::Pieces;
        c.wanted = false;
        c.tags.append(&mut c.next_tags);
        c.start = last;
        c.trims_start = accepted;
        c.next_piece = 1;
        c.programs = 0;
        c.start_fill.clear();
        let open = self
            .blocks
            .open_blocks()
            .map(|id| (id, self.blocks.get(id).filled));
        c.start_fill.extend(open);
        self.write_pieces();
    }

    #[cold]
    fn write_pieces(&mut self) {
        let (map_pieces, block_pieces) = self.share.pieces(self.mapping.len());
        while self.checkpoints.in_flight < PIECES_IN_FLIGHT
            && self.checkpoints.next_piece <= map_pieces + block_pieces
        {
            let index = self.checkpoints.next_piece;
            let Some(page) = self.pool.alloc_zeroed() else {
                self.starved = true;
                return;
            };
            page.with_mut(|bytes| {
                let count = if index <= map_pieces {
                    self.emit_map(&mut bytes[PIECE_HEADER_BYTES..], index - 1)
                } else {
                    self.emit_blocks(&mut bytes[PIECE_HEADER_BYTES..], index - 1 - map_pieces)
                };
                seal(bytes, self.stamp(), index, count);
            });
            self.checkpoints.next_piece += 1;
            self.checkpoints.in_flight += 1;
            let op = self.ops.insert(Op::new(OpKind::Piece));
            let offset = self.share.piece_offset(self.stamp().number % 2, index);
            self.media(MediaOp::write(u64::from(op), offset, page));
        }
        if self.checkpoints.in_flight == 0 && self.checkpoints.next_piece > map_pieces + block_pieces {
            self.checkpoints.phase = Phase::Settling;
            self.checkpoints.need = self.sequence.last();
            self.settle_checkpoint();
        }
    }

    /// The checkpoint being written.
    fn stamp(&self) -> Stamp {
        let number = self.checkpoints.number + 1 + u32::from(self.checkpoints.skip);
        Stamp {
            instance: self.config.instance,
            number,
        }
    }

    fn emit_map(&self, items: &mut [u8], piece: u32) -> u32 {
        let pages = self.mapping.from(piece * self.share.mapped_per_piece());
        let mut count = 0;
        for (at, mapped) in items.chunks_exact_mut(MAPPED_BYTES).zip(pages) {
            put_u64(at, 0, mapped.version.0);
            put_u32(at, 8, mapped.ppn);
            put_u32(at, 12, mapped.crc);
            count += 1;
        }
        count
    }

    fn emit_blocks(&self, items: &mut [u8], piece: u32) -> u32 {
        let first = piece * self.share.blocks_per_piece();
        let mut count = 0;
        for (at, id) in items
            .chunks_exact_mut(BLOCK_BYTES)
            .zip(first..self.blocks.count())
        {
            put_u32(at, 0, self.blocks.get(id).erases);
            put_u32(at, 4, self.fill_at_start(id));
            count += 1;
        }
        count
    }

    /// Pages of a block that programs up to `start` filled; one that is free, or another's, counts as full of what is
    /// dead.
    fn fill_at_start(&self, id: u32) -> u32 {
        let block = self.blocks.get(id);
        if matches!(block.state, State::Free | State::Foreign) {
            return self.share.pages_per_block();
        }
        if block.first_sequence > self.checkpoints.start {
            return 0;
        }
        let open = self.checkpoints.start_fill.iter().find(|(open, _)| *open == id);
        open.map_or(block.filled, |(_, fill)| *fill)
    }

    #[cold]
    fn settle_checkpoint(&mut self) {
        if self.sequence.programmed() >= self.checkpoints.need && self.rounds.stage == Stage::Idle {
            self.rounds.internal = true;
        }
    }

    /// True when a round that starts now makes the pieces, or the header, durable.
    pub(crate) fn checkpoint_waits(&self) -> bool {
        matches!(self.checkpoints.phase, Phase::Settling | Phase::Sealing)
    }

    /// A flush round is done that began while the checkpoint waited for one.
    pub(crate) fn checkpoint_round_done(&mut self, durable: u64) {
        match self.checkpoints.phase {
            Phase::Settling if durable >= self.checkpoints.need => self.write_header(durable),
            Phase::Sealing => self.checkpoint_done(),
            _ => {}
        }
    }

    #[cold]
    fn write_header(&mut self, durable: u64) {
        let Some(page) = self.pool.alloc_zeroed() else {
            // Settling goes on: the next round tries again.
            self.starved = true;
            return;
        };
        let header = CheckpointHeader {
            stamp: self.stamp(),
            covered: self.checkpoints.start,
            covered_before: self.checkpoints.covered,
            durable,
            logical_pages: self.mapping.len(),
            blocks: self.blocks.count(),
        };
        page.with_mut(|bytes| header.emit(bytes));
        self.checkpoints.phase = Phase::Header;
        let op = self.ops.insert(Op::new(OpKind::Header));
        let offset = self.share.piece_offset(header.stamp.number % 2, 0);
        self.media(MediaOp::write(u64::from(op), offset, page));
    }

    pub(crate) fn piece_written(&mut self) {
        self.checkpoints.in_flight -= 1;
    }

    pub(crate) fn header_written(&mut self) {
        self.checkpoints.phase = Phase::Sealing;
    }

    fn checkpoint_done(&mut self) {
        let number = self.stamp().number;
        let c = &mut self.checkpoints;
        let (covered_twice, trims_twice) = (c.covered, c.trims_covered);
        c.phase = Phase::Idle;
        c.number = number;
        c.skip = false;
        c.covered = c.start;
        c.trims_covered = c.trims_start;
        let trims_once = c.trims_start;
        self.counters.checkpoints += 1;
        self.settled = true;
        self.claimed = self.flushed;
        let mut tags = core::mem::take(&mut self.checkpoints.tags);
        for tag in tags.drain(..) {
            self.done(tag, Ok(Data::None));
        }
        self.checkpoints.tags = tags;
        self.retire_trims(covered_twice, trims_twice, trims_once);
        if self.records_crowded() {
            // Another checkpoint covers them twice.
            self.checkpoints.wanted = true;
        }
    }

    /// Refuses every checkpoint that waits.
    pub(crate) fn refuse_checkpoints(&mut self) {
        let mut tags = core::mem::take(&mut self.checkpoints.tags);
        tags.append(&mut self.checkpoints.next_tags);
        for tag in tags {
            self.events.push_back(Event::Done {
                tag,
                result: Err(VssdError::Latched),
            });
        }
    }
}

//! Fuzzy checkpoints: the map and the erase counts, written page by page while everything goes on.
//!
//! Checkpoint n goes to slot n mod 2. Its pieces are written first, a few at a time; then a flush round makes durable
//! every program that a piece may name; then the header, and another round. Only then does it count: entries of
//! programs up to `covered` (the newest when it began) are not needed any more, nor are trims that two checkpoints
//! cover.

use crate::api::{Data, VssdError};
use crate::blocks::State;
use crate::bulk::read_pages;
use crate::layout::{BLOCK_BYTES, MAPPED_BYTES, PIECE_HEADER_BYTES, Share, put_u32, put_u64, u32_at, u64_at};
use crate::mapping::Mapped;
use crate::ops::{OpKind, Ops};
use crate::pages::Pages;
use crate::trim::Trims;
use base::{Device, MediaError, Version};

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
    wanted: bool,
    phase: Phase,
    next_tags: Vec<u64>,
    tags: Vec<u64>,
    /// Programs that the newest durable one covers.
    covered: u64,
    /// Trims that it covers.
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
    /// The next one is due when so many programs are behind this.
    counted_from: u64,
    /// The next one is numbered one higher, so that it replaces the damaged slot.
    skip: bool,
    /// Checkpoints completed.
    count: u64,
    /// The checkpoint that each slot is known to hold whole.
    slots: [Option<u32>; 2],
}

impl Checkpoints {
    /// `last` is the newest program so far.
    pub(crate) fn new(units: u32, last: u64) -> Self {
        Self {
            wanted: false,
            phase: Phase::Idle,
            next_tags: Vec::new(),
            tags: Vec::new(),
            covered: 0,
            trims_covered: 0,
            start: 0,
            trims_start: 0,
            start_fill: Vec::with_capacity(2 * units as usize),
            next_piece: 0,
            in_flight: 0,
            need: 0,
            counted_from: last,
            skip: false,
            count: 0,
            slots: [None; 2],
        }
    }

    /// Goes on after a recovery: `covered` by the newest, which was durable and is number `newest`, and is damaged if it `fell_back`.
    pub(crate) fn resume(&mut self, newest: u32, covered: u64, fell_back: bool) {
        self.covered = covered;
        self.skip = fell_back;
        if newest > 0 && !fell_back {
            self.slots[newest as usize % 2] = Some(newest);
        }
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

/// Which page of which checkpoint it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) instance: u32,
    pub(crate) number: u32,
    pub(crate) index: u32,
}

impl Piece {
    /// What a page is, if it is intact.
    pub(crate) fn of(bytes: &[u8]) -> Option<Self> {
        let (Stamp { instance, number }, index, _) = unseal(bytes)?;
        Some(Self {
            instance,
            number,
            index,
        })
    }
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

impl Checkpoints {
    /// Begins a checkpoint. [`crate::Event::Done`] with the tag follows when it is durable.
    pub(crate) fn submit(&mut self, tag: u64) {
        self.next_tags.push(tag);
    }

    /// Asks for a checkpoint that no user asked for.
    pub(crate) fn want(&mut self) {
        self.wanted = true;
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// Asks for a checkpoint if the newest one does not cover everything.
    pub(crate) fn want_fresh(&mut self, pages: &Pages, trims: &Trims) {
        let is_empty = pages.checkpoint() == 0 && pages.sequence.last() == 0 && trims.accepted() == 0;
        self.wanted |= !is_empty && !self.is_fresh(pages, trims);
    }

    fn is_fresh(&self, pages: &Pages, trims: &Trims) -> bool {
        let is_covered = self.covered == pages.sequence.last() && self.trims_covered == trims.accepted();
        pages.checkpoint() > 0 && is_covered
    }

    /// True while none is being written, or wanted.
    pub(crate) fn is_idle(&self) -> bool {
        self.phase == Phase::Idle && !self.wanted
    }

    /// The checkpoint that a slot is known to hold.
    pub(crate) fn in_slot(&self, slot: u32) -> Option<u32> {
        self.slots[slot as usize]
    }

    /// What a slot holds is damaged: the next checkpoint takes its place. Where that was the newest one, the other slot holds the only one
    /// that is left, and keeps it meanwhile.
    pub(crate) fn replace(&mut self, slot: u32, newest: u32) {
        let number = self.slots[slot as usize].take();
        self.skip |= self.phase == Phase::Idle && number == Some(newest);
        self.wanted = true;
    }

    /// Checkpoints completed.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Carries checkpointing on. True if it wants a flush round.
    pub(crate) fn step(&mut self, pages: &mut Pages, trims: &Trims) -> bool {
        if pages.ops.latched() {
            return false;
        }
        match self.phase {
            Phase::Idle => {
                let programs = pages.sequence.last() - self.counted_from;
                let due = programs >= pages.config.checkpoint_every_programs;
                if due || self.wanted || !self.next_tags.is_empty() {
                    self.begin(pages, trims);
                }
            }
            Phase::Pieces => self.write_pieces(pages),
            Phase::Settling | Phase::Header | Phase::Sealing => {}
        }
        match self.phase {
            Phase::Settling => pages.sequence.programmed() >= self.need,
            Phase::Sealing => true,
            Phase::Idle | Phase::Pieces | Phase::Header => false,
        }
    }

    #[cold]
    fn begin(&mut self, pages: &mut Pages, trims: &Trims) {
        let (last, accepted) = (pages.sequence.last(), trims.accepted());
        self.counted_from = last;
        if self.is_fresh(pages, trims) && !self.wanted {
            for tag in self.next_tags.drain(..) {
                pages.ops.done(tag, Ok(Data::None));
            }
            return;
        }
        self.phase = Phase::Pieces;
        self.wanted = false;
        self.slots[self.stamp(pages).number as usize % 2] = None;
        self.tags.append(&mut self.next_tags);
        self.start = last;
        self.trims_start = accepted;
        self.next_piece = 1;
        self.start_fill.clear();
        let blocks = &pages.blocks;
        let open = blocks.open_blocks().map(|id| (id, blocks.get(id).filled));
        self.start_fill.extend(open);
        self.write_pieces(pages);
    }

    #[cold]
    fn write_pieces(&mut self, pages: &mut Pages) {
        let (map_pieces, block_pieces) = pages.share.pieces(pages.mapping.len());
        let stamp = self.stamp(pages);
        while self.in_flight < PIECES_IN_FLIGHT && self.next_piece <= map_pieces + block_pieces {
            let index = self.next_piece;
            let Some(page) = pages.ops.own_page_zeroed() else {
                return;
            };
            page.with_mut(|bytes| {
                let items = &mut bytes[PIECE_HEADER_BYTES..];
                let count = if index <= map_pieces {
                    emit_map(pages, items, index - 1)
                } else {
                    self.emit_blocks(pages, items, index - 1 - map_pieces)
                };
                seal(bytes, stamp, index, count);
            });
            self.next_piece += 1;
            self.in_flight += 1;
            let offset = pages.share.piece_offset(stamp.number % 2, index);
            pages.write(OpKind::Piece, offset, page);
        }
        if self.in_flight == 0 && self.next_piece > map_pieces + block_pieces {
            self.phase = Phase::Settling;
            self.need = pages.sequence.last();
        }
    }

    /// The checkpoint being written.
    fn stamp(&self, pages: &Pages) -> Stamp {
        Stamp {
            instance: pages.config.instance,
            number: pages.checkpoint() + 1 + u32::from(self.skip),
        }
    }

    fn emit_blocks(&self, pages: &Pages, items: &mut [u8], piece: u32) -> u32 {
        let first = piece * pages.share.blocks_per_piece();
        let mut count = 0;
        for (at, id) in items
            .chunks_exact_mut(BLOCK_BYTES)
            .zip(first..pages.blocks.count())
        {
            put_u32(at, 0, pages.blocks.get(id).erases);
            put_u32(at, 4, self.fill_at_start(pages, id));
            count += 1;
        }
        count
    }

    /// Pages of a block that programs up to `start` filled; one that is free, or another's, counts as full of what is
    /// dead.
    fn fill_at_start(&self, pages: &Pages, id: u32) -> u32 {
        let block = pages.blocks.get(id);
        if matches!(block.state, State::Free | State::Foreign) {
            return pages.share.pages_per_block();
        }
        if block.first_sequence > self.start {
            return 0;
        }
        let open = self.start_fill.iter().find(|(open, _)| *open == id);
        open.map_or(block.filled, |(_, fill)| *fill)
    }

    /// True when a round that starts now makes the pieces, or the header, durable.
    pub(crate) fn wait_for_round(&self) -> bool {
        matches!(self.phase, Phase::Settling | Phase::Sealing)
    }

    /// A flush round is done that began while the checkpoint waited for one.
    pub(crate) fn round_done(&mut self, pages: &mut Pages, trims: &mut Trims, durable: u64) {
        match self.phase {
            Phase::Settling if durable >= self.need => self.write_header(pages, durable),
            Phase::Sealing => self.done(pages, trims),
            _ => {}
        }
    }

    #[cold]
    fn write_header(&mut self, pages: &mut Pages, durable: u64) {
        let Some(page) = pages.ops.own_page_zeroed() else {
            // Settling goes on: the next round tries again.
            return;
        };
        let header = CheckpointHeader {
            stamp: self.stamp(pages),
            covered: self.start,
            covered_before: self.covered,
            durable,
            logical_pages: pages.mapping.len(),
            blocks: pages.blocks.count(),
        };
        page.with_mut(|bytes| header.emit(bytes));
        self.phase = Phase::Header;
        let offset = pages.share.piece_offset(header.stamp.number % 2, 0);
        pages.write(OpKind::Header, offset, page);
    }

    /// The medium has a piece.
    pub(crate) fn piece_written(&mut self) {
        self.in_flight -= 1;
    }

    /// The medium has the header.
    pub(crate) fn header_written(&mut self) {
        self.phase = Phase::Sealing;
    }

    fn done(&mut self, pages: &mut Pages, trims: &mut Trims) {
        let number = self.stamp(pages).number;
        let (covered_twice, trims_twice) = (self.covered, self.trims_covered);
        self.phase = Phase::Idle;
        self.slots[number as usize % 2] = Some(number);
        // The other slot holds one that entries do not refer to any more: only a second new one makes two of use.
        self.wanted |= core::mem::take(&mut self.skip);
        self.covered = self.start;
        self.trims_covered = self.trims_start;
        self.count += 1;
        pages.checkpoint_done(number);
        for tag in self.tags.drain(..) {
            pages.ops.done(tag, Ok(Data::None));
        }
        trims.retire(pages, covered_twice, trims_twice, self.trims_start);
        // Another checkpoint covers them twice.
        self.wanted |= trims.is_crowded(&pages.share);
    }

    /// Refuses every checkpoint that waits.
    pub(crate) fn refuse(&mut self, ops: &mut Ops) {
        for tag in self.tags.drain(..).chain(self.next_tags.drain(..)) {
            ops.done(tag, Err(VssdError::Latched));
        }
    }
}

fn emit_map(pages: &Pages, items: &mut [u8], piece: u32) -> u32 {
    let mapped = pages.mapping.from(piece * pages.share.mapped_per_piece());
    let mut count = 0;
    for (at, mapped) in items.chunks_exact_mut(MAPPED_BYTES).zip(mapped) {
        put_u64(at, 0, mapped.version.0);
        put_u32(at, 8, mapped.ppn);
        put_u32(at, 12, mapped.crc);
        count += 1;
    }
    count
}

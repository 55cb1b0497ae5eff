//! Garbage collection: one victim at a time, in bounded steps.
//!
//! A victim's live pages are read, checked, and programmed elsewhere; then the block waits at the erase barrier until
//! everything that left it is durable. Collection asks for a flush itself when what it needs waits there.
//! A page whose checksum does not match is moved as it is, with the checksum it should have, so that it stays
//! recognisable as damaged.

use crate::api::{Event, GcMode};
use crate::blocks::Stream;
use crate::geometry::RESERVE_BLOCKS;
use crate::mapping::{NONE, RECORD};
use crate::nand::NandKind;
use crate::oob::Kind;
use crate::ops::{Op, OpKind};
use crate::pages::Pages;
use crate::trim::{Trims, correct};
use base::Version;

/// Free blocks above the reserve that forced collection aims at, at most one per unit.
const FORCED_BLOCKS_MAX: u32 = 8;
/// Blocks' worth of room that collection leaves while what it moved is not durable.
const KEPT_BLOCKS: u32 = 2;

/// The block being emptied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Victim {
    block: u32,
    /// Next page to look at.
    next: u32,
    /// Relocations in flight.
    in_flight: u32,
    /// The timing model holds its channel for us.
    held: bool,
    /// There is no room for its pages; it is given back.
    stuck: bool,
    /// The timing model erases it.
    erasing: bool,
}

/// Need of a collection that cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Nothing, or the end of something in flight.
    Nothing,
    /// A flush: it frees blocks.
    Flush,
    /// A checkpoint: it makes records of trims dead.
    Checkpoint,
    /// More free blocks than there are to gain: it ended without having reached its aim.
    Space,
}

/// State of the collection.
#[derive(Debug, Default)]
pub(crate) struct Collection {
    active: bool,
    /// The node asked and wants to hear of the end.
    requested: bool,
    forced: bool,
    target_free: u32,
    victim: Option<Victim>,
    /// Pages moved.
    moved: u64,
}

impl Collection {
    /// Begins collecting until the share of free blocks is `until_free_ratio`.
    pub(crate) fn start(&mut self, pages: &mut Pages, until_free_ratio: f64) {
        let blocks = f64::from(pages.blocks.owned() - pages.blocks.borrowed());
        let target = (until_free_ratio * blocks).ceil() as u32;
        self.target_free = self.target_free.max(target);
        self.requested = true;
        self.active = true;
        pages.call_in_borrowed();
    }

    /// True while it is asked or forced to collect.
    pub(crate) fn is_active(&self) -> bool {
        self.active
    }

    /// True while a block is being emptied.
    pub(crate) fn has_victim(&self) -> bool {
        self.victim.is_some()
    }

    /// Pages moved.
    pub(crate) fn moved(&self) -> u64 {
        self.moved
    }

    /// Users found no free block.
    #[cold]
    pub(crate) fn force(&mut self, pages: &mut Pages) {
        let target = RESERVE_BLOCKS + pages.share.units().clamp(1, FORCED_BLOCKS_MAX);
        self.target_free = self.target_free.max(target);
        let begins = !core::mem::replace(&mut self.active, true);
        if !self.forced {
            self.forced = true;
            pages.ops.event(Event::GcForced);
        }
        if begins {
            pages.call_in_borrowed();
        }
    }

    /// Carries the collection on as far as it goes without waiting.
    pub(crate) fn step(&mut self, pages: &mut Pages, trims: &Trims) -> Need {
        while !pages.ops.latched() {
            if self.victim.is_some() {
                if !self.step_victim(pages, trims) {
                    return Need::Nothing;
                }
                continue;
            }
            if !self.active {
                return Need::Nothing;
            }
            let (free, target) = (pages.blocks.free_at_home(), self.target_free);
            let owes = pages.blocks.returning && pages.blocks.borrowed_in_use() > 0;
            if free >= target && !owes {
                self.end(pages);
                return Need::Nothing;
            }
            if !pages.settled() {
                // Repeated crashes must not use the reserve up: first make durable what the last life moved.
                return Need::Nothing;
            }
            let waiting = pages.blocks.waiting_count();
            let reached = free + waiting >= target;
            if reached && !owes {
                return Need::Flush;
            }
            // What was moved and not flushed may be half there after a crash, and its room lost. Keep some: a crash
            // must leave enough to empty the next victim.
            let kept = if waiting == 0 {
                0
            } else {
                KEPT_BLOCKS * pages.share.pages_per_block()
            };
            let room = pages.blocks.room_for_moves().saturating_sub(kept);
            if owes && let Some(block) = pages.blocks.take_borrowed_victim(room_to_return(pages, room)) {
                self.begin_victim(pages, block);
                continue;
            }
            if reached && waiting > 0 {
                // What is borrowed waits for the same.
                return Need::Flush;
            }
            match pages.blocks.take_victim(room) {
                Some(block) => self.begin_victim(pages, block),
                None if waiting > 0 => return Need::Flush,
                // A closed block is a candidate only when its programs are done.
                None if pages.sequence.programmed() < pages.sequence.last() => return Need::Nothing,
                // Two checkpoints at most, and records are dead pages to gain.
                None if trims.has_records() => return Need::Checkpoint,
                // What was lent is on its way back.
                None if pages.blocks.lent() > 0 => return Need::Nothing,
                None => {
                    self.end(pages);
                    return Need::Space;
                }
            }
        }
        Need::Nothing
    }

    fn end(&mut self, pages: &mut Pages) {
        self.active = false;
        self.forced = false;
        self.target_free = 0;
        pages.blocks.returning = false;
        if core::mem::take(&mut self.requested) {
            pages.ops.event(Event::GcDone);
        }
    }

    fn begin_victim(&mut self, pages: &mut Pages, block: u32) {
        self.victim = Some(Victim {
            block,
            next: 0,
            in_flight: 0,
            held: pages.ops.hold(pages.blocks.channel_of_block(block)),
            stuck: false,
            erasing: false,
        });
    }

    /// Issues relocations, or ends the victim; false when it has to wait.
    fn step_victim(&mut self, pages: &mut Pages, trims: &Trims) -> bool {
        let victim = self.victim.as_mut().expect("called with a victim");
        if victim.erasing {
            return false;
        }
        let (window, per_block) = (window(pages), pages.share.pages_per_block());
        while victim.next < per_block && victim.in_flight < window && !victim.stuck {
            let ppn = victim.block * per_block + victim.next;
            if pages.mapping.owner(ppn) != NONE {
                let op = Op {
                    ppn,
                    ..Op::new(OpKind::MoveRead)
                };
                if !pages.read(op, true) {
                    break;
                }
                victim.in_flight += 1;
            }
            victim.next += 1;
        }
        if victim.in_flight > 0 || (victim.next < per_block && !victim.stuck) {
            return false;
        }
        self.emptied(pages, trims);
        true
    }

    /// Nothing of the victim is in flight any more: let the timing model erase it.
    fn emptied(&mut self, pages: &mut Pages, trims: &Trims) {
        let victim = self.victim.as_mut().expect("what is emptied is a victim");
        let block = victim.block;
        if pages.blocks.get(block).live > 0 {
            pages.blocks.give_back(block);
            return self.leave_victim(pages);
        }
        if !pages.ops.times_collection() {
            return self.erased(pages, trims);
        }
        victim.erasing = true;
        let op = pages.ops.insert(Op::new(OpKind::Erase));
        let first = block * pages.share.pages_per_block();
        pages.ops.model(op, NandKind::Erase, first, true);
    }

    /// The victim is erased.
    pub(crate) fn erased(&mut self, pages: &mut Pages, trims: &Trims) {
        let victim = self.victim.expect("an erase has a victim");
        pages.blocks.emptied(victim.block);
        self.leave_victim(pages);
        pages.release_blocks(trims.durable());
    }

    fn leave_victim(&mut self, pages: &mut Pages) {
        if let Some(victim) = self.victim.take()
            && victim.held
        {
            pages.ops.release(pages.blocks.channel_of_block(victim.block));
        }
    }

    /// A live page was read: program it elsewhere if it is still live. [`Need::Checkpoint`] if only that frees its block.
    pub(crate) fn move_read(&mut self, pages: &mut Pages, trims: &mut Trims, id: u32) -> Need {
        let (from, failed) = (pages.ops[id].ppn, pages.ops[id].failed);
        let owner = pages.mapping.owner(from);
        if owner == NONE || pages.ops.latched() {
            pages.ops.remove(id);
            self.move_ended();
            return Need::Nothing;
        }
        let page = pages.ops[id].page.as_ref().expect("a read returns its page");
        if failed {
            page.with_mut(|bytes| bytes.fill(0));
        }
        let crc = page.crc();
        if owner == RECORD {
            // What was logged, perhaps after correcting one bit.
            let expected = trims.record_mut(from).crc;
            if crc != expected && !page.with_mut(|bytes| correct(bytes, expected)) {
                // A moved record must be whole. Checkpoints make this one superfluous; the block waits for that.
                self.move_stuck(pages, id);
                return Need::Checkpoint;
            }
        }
        let victim = self.victim.expect("a relocation has a victim");
        let channel = pages.blocks.channel_of_block(victim.block);
        let Some(to) = pages.blocks.allocate(Stream::Collection { channel }) else {
            self.move_stuck(pages, id);
            return Need::Nothing;
        };
        if owner == RECORD {
            move_record(pages, trims, id, to);
        } else {
            move_data(pages, id, owner, to, crc);
        }
        self.moved += 1;
        Need::Nothing
    }

    fn move_stuck(&mut self, pages: &mut Pages, id: u32) {
        pages.ops.remove(id);
        let victim = self.victim.as_mut();
        victim.expect("a relocation has a victim").stuck = true;
        self.move_ended();
    }

    /// A relocation ended, with or without a program.
    pub(crate) fn move_ended(&mut self) {
        if let Some(victim) = self.victim.as_mut() {
            victim.in_flight -= 1;
        }
    }

    /// The medium failed: stop, and let users read.
    #[cold]
    pub(crate) fn abandon(&mut self, pages: &mut Pages) {
        if let Some(victim) = self.victim.as_mut()
            && core::mem::take(&mut victim.held)
        {
            pages.ops.release(pages.blocks.channel_of_block(victim.block));
        }
        if self.active {
            self.end(pages);
        }
    }
}

fn window(pages: &Pages) -> u32 {
    match pages.config.gc {
        GcMode::Preemptible { step_pages } => step_pages.max(1),
        GcMode::Blocking | GcMode::Free => pages.config.gc_window.max(1),
    }
}

/// Of `room` pages for relocations, what borrowed blocks may use: so much must stay that a victim of its own
/// can still be emptied.
fn room_to_return(pages: &Pages, room: u32) -> u32 {
    room.saturating_sub(RESERVE_BLOCKS * pages.share.pages_per_block())
}

fn move_record(pages: &mut Pages, trims: &mut Trims, id: u32, to: u32) {
    let from = pages.ops[id].ppn;
    let record = trims.record_mut(from);
    let op = &mut pages.ops[id];
    op.kind = OpKind::MoveRecord;
    op.version = Version(record.id);
    op.lpn = record.trims;
    op.crc = record.crc;
    record.ppn = to;
    record.sequence = pages.program(id, Kind::Record, to, true);
    pages.mapping.set_record(from, false);
    pages.blocks.kill(from, record.sequence, 0);
}

fn move_data(pages: &mut Pages, id: u32, lpn: u32, to: u32, crc: u32) {
    let mapped = pages.mapping.get(lpn);
    if crc != mapped.crc {
        pages.mapping.set_damaged(lpn, true);
    }
    // Reads go to the copy in memory until it is programmed, unless a newer write is.
    if crc == mapped.crc && pages.mapping.buffered(lpn).is_none() {
        pages.mapping.set_buffered(lpn, Some(id));
    }
    let op = &mut pages.ops[id];
    op.kind = OpKind::MoveWrite;
    op.lpn = lpn;
    op.version = mapped.version;
    op.crc = mapped.crc;
    pages.program(id, Kind::Moved, to, true);
}

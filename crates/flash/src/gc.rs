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
use crate::recover::correct;
use crate::trim::Record;
use crate::vssd::Vssd;
use base::{Instant, MediaOp, Version};

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

/// State of the collection.
#[derive(Debug, Default)]
pub(crate) struct Collection {
    pub(crate) active: bool,
    /// The node asked and wants to hear of the end.
    requested: bool,
    forced: bool,
    target_free: u32,
    victim: Option<Victim>,
    pub(crate) wants_flush: bool,
    /// Collection ended without having reached its aim: nothing is to be gained.
    pub(crate) dead_end: bool,
}

impl Vssd {
    /// Begins collecting until the share of free blocks is `until_free_ratio`. [`Event::GcDone`] follows, once, when
    /// the share is reached or nothing more can be gained. A higher aim replaces a lower one.
    pub fn start_gc(&mut self, now: Instant, until_free_ratio: f64) {
        assert!(
            (0.0..=1.0).contains(&until_free_ratio),
            "a ratio is between 0 and 1"
        );
        self.advance(now);
        let blocks = f64::from(self.blocks.owned() - self.blocks.borrowed());
        let target = (until_free_ratio * blocks).ceil() as u32;
        self.collection.target_free = self.collection.target_free.max(target);
        self.collection.requested = true;
        self.collection.active = true;
        self.call_in_borrowed();
        self.pump();
    }

    /// True while collecting; false once the medium has failed.
    pub fn gc_active(&self) -> bool {
        !self.latched && (self.collection.active || self.collection.victim.is_some())
    }

    /// Users found no free block.
    #[cold]
    pub(crate) fn force_collection(&mut self) {
        let target = RESERVE_BLOCKS + self.share.units().clamp(1, FORCED_BLOCKS_MAX);
        let collection = &mut self.collection;
        collection.target_free = collection.target_free.max(target);
        let begins = !core::mem::replace(&mut collection.active, true);
        if !collection.forced {
            collection.forced = true;
            self.events.push_back(Event::GcForced);
        }
        if begins {
            self.call_in_borrowed();
        }
    }

    fn window(&self) -> u32 {
        match self.config.gc {
            GcMode::Preemptible { step_pages } => step_pages.max(1),
            GcMode::Blocking | GcMode::Free => self.config.gc_window.max(1),
        }
    }

    /// Carries the collection on as far as it goes without waiting.
    pub(crate) fn step_collection(&mut self) {
        self.collection.wants_flush = false;
        while !self.latched {
            if self.collection.victim.is_some() {
                if !self.step_victim() {
                    return;
                }
                continue;
            }
            if !self.collection.active {
                return;
            }
            let (free, target) = (self.blocks.free_at_home(), self.collection.target_free);
            let owes = self.blocks.returning && self.blocks.borrowed_in_use() > 0;
            if free >= target && !owes {
                return self.end_collection(false);
            }
            if !self.settled {
                // Repeated crashes must not use the reserve up: first make durable what the last life moved.
                return;
            }
            let reached = free + self.blocks.waiting.len() as u32 >= target;
            if reached && !owes {
                self.collection.wants_flush = true;
                return;
            }
            // What was moved and not flushed may be half there after a crash, and its room lost. Keep some: a crash
            // must leave enough to empty the next victim.
            let kept = if self.blocks.waiting.is_empty() {
                0
            } else {
                KEPT_BLOCKS * self.share.pages_per_block()
            };
            let room = self.blocks.room_for_moves().saturating_sub(kept);
            if owes && let Some(block) = self.blocks.take_borrowed_victim(self.room_to_return(room)) {
                self.begin_victim(block);
                continue;
            }
            if reached && !self.blocks.waiting.is_empty() {
                // What is borrowed waits for the same.
                self.collection.wants_flush = true;
                return;
            }
            match self.blocks.take_victim(room) {
                Some(block) => self.begin_victim(block),
                None if !self.blocks.waiting.is_empty() => {
                    self.collection.wants_flush = true;
                    return;
                }
                // A closed block is a candidate only when its programs are done.
                None if self.sequence.programmed() < self.sequence.last() => return,
                None if !self.trims.records.is_empty() => {
                    // Two checkpoints at most, and records are dead pages to gain.
                    self.checkpoints.wanted = true;
                    return;
                }
                // What was lent is on its way back.
                None if self.blocks.lent() > 0 => return,
                None => return self.end_collection(true),
            }
        }
    }

    fn end_collection(&mut self, dead_end: bool) {
        self.collection.active = false;
        self.collection.forced = false;
        self.collection.target_free = 0;
        self.collection.dead_end = dead_end;
        self.blocks.returning = false;
        if core::mem::take(&mut self.collection.requested) {
            self.events.push_back(Event::GcDone);
        }
    }

    fn begin_victim(&mut self, block: u32) {
        let held = self.timed && self.config.gc == GcMode::Blocking;
        if held {
            self.nand.hold(self.blocks.channel_of_block(block));
        }
        self.collection.victim = Some(Victim {
            block,
            next: 0,
            in_flight: 0,
            held,
            stuck: false,
            erasing: false,
        });
    }

    /// Issues relocations, or ends the victim; false when it has to wait.
    fn step_victim(&mut self) -> bool {
        let mut victim = self.collection.victim.expect("called with a victim");
        if victim.erasing {
            return false;
        }
        let (window, per_block) = (self.window(), self.share.pages_per_block());
        while victim.next < per_block && victim.in_flight < window && !victim.stuck {
            let ppn = victim.block * per_block + victim.next;
            if self.mapping.owner(ppn) != NONE {
                let Some(page) = self.pool.alloc() else {
                    self.starved = true;
                    break;
                };
                let op = self.ops.insert(Op {
                    ppn,
                    ..Op::new(OpKind::MoveRead)
                });
                self.model(op, NandKind::Read, ppn, true);
                self.media(MediaOp::read(u64::from(op), self.share.data_offset(ppn), page));
                victim.in_flight += 1;
            }
            victim.next += 1;
        }
        self.collection.victim = Some(victim);
        if victim.in_flight > 0 || (victim.next < per_block && !victim.stuck) {
            return false;
        }
        self.emptied(victim);
        true
    }

    /// Nothing of the victim is in flight any more: let the timing model erase it.
    fn emptied(&mut self, victim: Victim) {
        if self.blocks.get(victim.block).live > 0 {
            self.blocks.give_back(victim.block);
            self.leave_victim(victim);
            return;
        }
        if !self.timed || self.config.gc == GcMode::Free {
            return self.end_victim(victim);
        }
        let op = self.ops.insert(Op::new(OpKind::Erase));
        self.model(
            op,
            NandKind::Erase,
            victim.block * self.share.pages_per_block(),
            true,
        );
        self.collection.victim = Some(Victim {
            erasing: true,
            ..victim
        });
    }

    /// The timing model erased the victim.
    pub(crate) fn erased(&mut self) {
        let victim = self.collection.victim.expect("an erase has a victim");
        self.end_victim(victim);
    }

    fn end_victim(&mut self, victim: Victim) {
        self.blocks.emptied(victim.block);
        self.leave_victim(victim);
        self.release_blocks();
    }

    fn leave_victim(&mut self, victim: Victim) {
        self.collection.victim = None;
        if victim.held {
            self.nand
                .release(self.now.as_nanos(), self.blocks.channel_of_block(victim.block));
        }
    }

    /// A live page was read: program it elsewhere if it is still live.
    pub(crate) fn move_read(&mut self, id: u32) {
        let (from, failed) = (self.ops[id].ppn, self.ops[id].failed);
        let owner = self.mapping.owner(from);
        if owner == NONE || self.latched {
            self.ops.remove(id);
            return self.move_ended();
        }
        let page = self.ops[id].page.as_ref().expect("a read returns its page");
        if failed {
            page.with_mut(|bytes| bytes.fill(0));
        }
        let crc = page.crc();
        if owner == RECORD && !self.record_intact(id, from, crc) {
            // A moved record must be whole. Checkpoints make this one superfluous; the block waits for that.
            self.checkpoints.wanted = true;
            return self.move_stuck(id);
        }
        let victim = self.collection.victim.expect("a relocation has a victim");
        let channel = self.blocks.channel_of_block(victim.block);
        let Some(to) = self.blocks.allocate(Stream::Collection { channel }) else {
            return self.move_stuck(id);
        };
        if owner == RECORD {
            self.move_record(id, from, to);
        } else {
            self.move_data(id, owner, to, crc);
        }
        self.counters.gc_programs += 1;
    }

    fn move_stuck(&mut self, id: u32) {
        self.ops.remove(id);
        let victim = self.collection.victim.as_mut();
        victim.expect("a relocation has a victim").stuck = true;
        self.move_ended();
    }

    /// True when the record just read is what was logged, perhaps after correcting one bit.
    fn record_intact(&self, id: u32, from: u32, crc: u32) -> bool {
        let expected = self.trims.records[self.record_at(from)].crc;
        let page = self.ops[id].page.as_ref().expect("a read returns its page");
        crc == expected || page.with_mut(|bytes| correct(bytes, expected))
    }

    fn move_record(&mut self, id: u32, from: u32, to: u32) {
        let index = self.record_at(from);
        let record = self.trims.records[index];
        let op = &mut self.ops[id];
        op.kind = OpKind::MoveRecord;
        op.version = Version(record.id);
        op.lpn = record.trims;
        op.crc = record.crc;
        let sequence = self.program(id, Kind::Record, to, true);
        self.mapping.set_record(from, false);
        self.blocks.kill(from, sequence, 0);
        self.trims.records[index] = Record {
            ppn: to,
            sequence,
            ..record
        };
    }

    fn move_data(&mut self, id: u32, lpn: u32, to: u32, crc: u32) {
        let mapped = self.mapping.get(lpn);
        if crc != mapped.crc {
            self.mapping.set_damaged(lpn, true);
        }
        // Reads go to the copy in memory until it is programmed, unless a newer write is.
        if crc == mapped.crc && self.mapping.buffered(lpn).is_none() {
            self.mapping.set_buffered(lpn, Some(id));
        }
        let op = &mut self.ops[id];
        op.kind = OpKind::MoveWrite;
        op.lpn = lpn;
        op.version = mapped.version;
        op.crc = mapped.crc;
        self.program(id, Kind::Moved, to, true);
    }

    /// A relocation ended, with or without a program.
    pub(crate) fn move_ended(&mut self) {
        if let Some(victim) = self.collection.victim.as_mut() {
            victim.in_flight -= 1;
        }
    }

    /// The medium failed: stop, and let users read.
    #[cold]
    pub(crate) fn abandon_collection(&mut self) {
        if let Some(victim) = self.collection.victim.as_mut()
            && core::mem::take(&mut victim.held)
        {
            let channel = self.blocks.channel_of_block(victim.block);
            self.nand.release(self.now.as_nanos(), channel);
        }
        if self.collection.active {
            self.end_collection(false);
        }
    }
}

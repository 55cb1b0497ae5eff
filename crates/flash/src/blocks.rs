//! Erase blocks: their state, where the next page goes, and which block to collect.
//!
//! A block is Free → Open → Closed → Collecting → Waiting → Free. It waits until everything that left it is durable
//! (the erase barrier). Closed blocks without programs in flight stand in a list per number of live pages, oldest
//! first, so that the greedy victim is found in constant amortised time. Free blocks are taken least-worn first.
//!
//! Of a channel group every member numbers all blocks, and those that it has not are Foreign to it. A block changes
//! hands only from Free to Foreign at one and from Foreign to Free at the other.

use crate::geometry::RESERVE_BLOCKS;
use crate::mapping::NONE;
use core::ops::{Range, RangeInclusive};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// One victim in this many may be chosen for wear's sake.
const WEAR_EVERY: u64 = 64;
/// Blocks looked at for that.
const WEAR_WINDOW: u32 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Free,
    Open,
    Closed,
    Collecting,
    Waiting,
    /// Another member of the channel group has it.
    Foreign,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    pub(crate) state: State,
    /// Erases so far: the generation of what is programmed in it.
    pub(crate) erases: u32,
    /// Pages that are the newest of their logical page, or live trim records.
    pub(crate) live: u32,
    /// Pages handed out.
    pub(crate) filled: u32,
    /// Programs in flight.
    pub(crate) pending: u32,
    /// Sequence of its first program.
    pub(crate) first_sequence: u64,
    /// Erased only when every program up to this is durable.
    pub(crate) barrier: u64,
    /// Erased only when every trim up to this is durable.
    pub(crate) trim_barrier: u64,
    /// Buffer that collects its out-of-band entries, [`NONE`] between two pages of them.
    pub(crate) buffer: u32,
    prev: u32,
    next: u32,
}

impl Block {
    const NEW: Self = Self {
        state: State::Free,
        erases: 0,
        live: 0,
        filled: 0,
        pending: 0,
        first_sequence: 0,
        barrier: 0,
        trim_barrier: 0,
        buffer: NONE,
        prev: NONE,
        next: NONE,
    };
}

/// A free block that changes hands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loan {
    /// Its number in the group.
    pub(crate) block: u32,
    /// Its erase count.
    pub(crate) erases: u32,
}

#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
}

/// Purpose of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    User,
    /// Garbage collection of that channel, and trim records.
    Collection {
        channel: u32,
    },
}

/// All blocks of a vSSD.
#[derive(Debug)]
pub(crate) struct Blocks {
    blocks: Vec<Block>,
    pages_per_block: u32,
    blocks_per_unit: u32,
    /// The units whose blocks are this vSSD's own.
    home: Range<u32>,
    channels: u32,
    separate: bool,
    wear_gap_max: u32,
    /// Per unit: free blocks, least worn first.
    free: Vec<BinaryHeap<Reverse<(u32, u32)>>>,
    /// Per unit: open block of users; shared with collection when the frontiers are not separate.
    open_user: Vec<u32>,
    /// Per unit: open block of collection.
    open_moved: Vec<u32>,
    next_user: u32,
    next_moved: u32,
    /// Blocks of others, and of these the free and the open ones.
    borrowed: Vec<u32>,
    borrowed_free: Vec<u32>,
    borrowed_open: Vec<u32>,
    next_borrowed: usize,
    /// Own blocks that others have.
    lent: u32,
    /// Borrowed blocks go back: none is opened any more.
    pub(crate) returning: bool,
    /// Per number of live pages: closed blocks.
    buckets: Vec<List>,
    /// No bucket below this has a block.
    lowest: u32,
    counts: [u32; 6],
    erases_total: u64,
    victims: u64,
    wear_cursor: u32,
    waiting: Vec<u32>,
}

impl Blocks {
    pub(crate) fn new(
        units: u32,
        home: Range<u32>,
        channels: u32,
        blocks_per_unit: u32,
        pages_per_block: u32,
        separate: bool,
        wear_gap_max: u32,
    ) -> Self {
        let count = units * blocks_per_unit;
        let free = (0..units)
            .map(|_| BinaryHeap::with_capacity(blocks_per_unit as usize))
            .collect();
        Self {
            blocks: vec![Block::NEW; count as usize],
            pages_per_block,
            blocks_per_unit,
            next_user: home.start,
            home,
            channels,
            separate,
            wear_gap_max,
            free,
            open_user: vec![NONE; units as usize],
            open_moved: vec![NONE; units as usize],
            next_moved: 0,
            borrowed: Vec::new(),
            borrowed_free: Vec::new(),
            borrowed_open: Vec::new(),
            next_borrowed: 0,
            lent: 0,
            returning: false,
            buckets: vec![
                List {
                    head: NONE,
                    tail: NONE
                };
                pages_per_block as usize + 1
            ],
            lowest: 0,
            counts: [0; 6],
            erases_total: 0,
            victims: 0,
            wear_cursor: 0,
            waiting: Vec::with_capacity(count as usize),
        }
    }

    /// Puts every block where its state says. Blocks are set up with [`Blocks::get_mut`] before.
    pub(crate) fn start(&mut self) {
        self.counts = [0; 6];
        for id in 0..self.blocks.len() as u32 {
            let block = self.blocks[id as usize];
            self.counts[block.state as usize] += 1;
            match (block.state, self.is_home(id)) {
                (State::Foreign, is_home) => {
                    self.lent += u32::from(is_home);
                    continue;
                }
                (_, true) => {}
                (State::Free, false) => unreachable!("free blocks are at home when a vSSD starts"),
                (_, false) => self.borrowed.push(id),
            }
            self.erases_total += u64::from(block.erases);
            match block.state {
                State::Free => {
                    self.free[(id / self.blocks_per_unit) as usize].push(Reverse((block.erases, id)))
                }
                State::Closed => self.link(id),
                State::Waiting => self.waiting.push(id),
                State::Open | State::Collecting | State::Foreign => {}
            }
        }
    }

    /// True for a block of this vSSD's own units.
    pub(crate) fn is_home(&self, id: u32) -> bool {
        self.home.contains(&(id / self.blocks_per_unit))
    }

    /// Makes a partly programmed block a frontier of its unit; false when both are taken.
    pub(crate) fn adopt(&mut self, id: u32, user: bool) -> bool {
        if !self.is_home(id) {
            self.borrowed_open.push(id);
            self.blocks[id as usize].state = State::Open;
            return true;
        }
        let unit = (id / self.blocks_per_unit) as usize;
        let mut candidates = [&mut self.open_user[unit], &mut self.open_moved[unit]];
        if !user && self.separate {
            candidates.swap(0, 1);
        }
        let usable = if self.separate { 2 } else { 1 };
        for slot in candidates.into_iter().take(usable) {
            if *slot == NONE {
                *slot = id;
                self.blocks[id as usize].state = State::Open;
                return true;
            }
        }
        false
    }

    pub(crate) fn get(&self, id: u32) -> &Block {
        &self.blocks[id as usize]
    }

    pub(crate) fn get_mut(&mut self, id: u32) -> &mut Block {
        &mut self.blocks[id as usize]
    }

    pub(crate) fn count(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// Blocks that no other member of the group has.
    pub(crate) fn owned(&self) -> u32 {
        self.count() - self.counts[State::Foreign as usize]
    }

    pub(crate) fn free_count(&self) -> u32 {
        self.counts[State::Free as usize]
    }

    /// Free blocks of its own units.
    pub(crate) fn free_at_home(&self) -> u32 {
        self.free_count() - self.borrowed_free.len() as u32
    }

    /// The lowest and the highest number of erases of the blocks that no other member of the group has.
    pub(crate) fn erases(&self) -> RangeInclusive<u32> {
        let home = self.home.start * self.blocks_per_unit..self.home.end * self.blocks_per_unit;
        let present = home.chain(self.borrowed.iter().copied());
        let present = present
            .map(|id| self.get(id))
            .filter(|block| block.state != State::Foreign);
        let (mut lowest, mut highest) = (u32::MAX, 0);
        for block in present {
            (lowest, highest) = (lowest.min(block.erases), highest.max(block.erases));
        }
        lowest.min(highest)..=highest
    }

    /// Blocks that are being filled.
    pub(crate) fn open_blocks(&self) -> impl Iterator<Item = u32> {
        self.open_at_home().chain(self.borrowed_open.iter().copied())
    }

    fn open_at_home(&self) -> impl Iterator<Item = u32> {
        self.open_user
            .iter()
            .chain(&self.open_moved)
            .copied()
            .filter(|id| *id != NONE)
    }

    pub(crate) fn erases_mean(&self) -> f64 {
        self.erases_total as f64 / f64::from(self.owned().max(1))
    }

    pub(crate) fn unit_of_block(&self, id: u32) -> u32 {
        id / self.blocks_per_unit
    }

    pub(crate) fn channel_of_block(&self, id: u32) -> u32 {
        self.unit_of_block(id) % self.channels
    }

    pub(crate) fn block_of(&self, ppn: u32) -> u32 {
        ppn / self.pages_per_block
    }

    fn set_state(&mut self, id: u32, state: State) {
        let block = &mut self.blocks[id as usize];
        self.counts[block.state as usize] -= 1;
        self.counts[state as usize] += 1;
        block.state = state;
        debug_assert_eq!(
            self.counts.iter().sum::<u32>(),
            self.count(),
            "blocks are conserved"
        );
    }

    fn open(&mut self, unit: u32) -> Option<u32> {
        let Reverse((_, id)) = self.free[unit as usize].pop()?;
        self.make_open(id);
        Some(id)
    }

    fn make_open(&mut self, id: u32) {
        assert_eq!(
            self.blocks[id as usize].state,
            State::Free,
            "a block of the free heap is free"
        );
        self.set_state(id, State::Open);
        let block = &mut self.blocks[id as usize];
        block.filled = 0;
        block.first_sequence = 0;
        block.barrier = 0;
        block.trim_barrier = 0;
    }

    /// Takes the next page of an open block and closes the block when that was its last.
    fn take(&mut self, id: u32) -> (u32, bool) {
        let block = &mut self.blocks[id as usize];
        let ppn = id * self.pages_per_block + block.filled;
        block.filled += 1;
        block.pending += 1;
        let full = block.filled == self.pages_per_block;
        if full {
            self.set_state(id, State::Closed);
        }
        (ppn, full)
    }

    /// The next page of a stream; `None` when there is none for it now.
    pub(crate) fn allocate(&mut self, stream: Stream) -> Option<u32> {
        match stream {
            Stream::User => self.allocate_user(),
            Stream::Collection { channel } => self.allocate_moved(channel),
        }
    }

    fn allocate_user(&mut self) -> Option<u32> {
        let free = self.free_at_home();
        if !self.separate && free < RESERVE_BLOCKS {
            return self.allocate_borrowed();
        }
        for _ in self.home.clone() {
            let unit = self.next_user;
            self.next_user = if unit + 1 == self.home.end {
                self.home.start
            } else {
                unit + 1
            };
            let mut id = self.open_user[unit as usize];
            if id == NONE && free > RESERVE_BLOCKS {
                id = self.open(unit).unwrap_or(NONE);
            }
            if id == NONE {
                continue;
            }
            let (ppn, full) = self.take(id);
            self.open_user[unit as usize] = if full { NONE } else { id };
            return Some(ppn);
        }
        self.allocate_borrowed()
    }

    /// The next page of borrowed blocks, taken in turn from as many as there are channels.
    fn allocate_borrowed(&mut self) -> Option<u32> {
        if self.returning {
            return None;
        }
        if self.borrowed_open.len() < self.channels as usize
            && let Some(id) = self.borrowed_free.pop()
        {
            self.make_open(id);
            self.borrowed_open.push(id);
        }
        if self.borrowed_open.is_empty() {
            return None;
        }
        self.next_borrowed = (self.next_borrowed + 1) % self.borrowed_open.len();
        let (ppn, full) = self.take(self.borrowed_open[self.next_borrowed]);
        if full {
            self.borrowed_open.swap_remove(self.next_borrowed);
        }
        Some(ppn)
    }

    fn allocate_moved(&mut self, channel: u32) -> Option<u32> {
        // Own channel first, so that the others stay free of this work; then anywhere.
        let per_channel = (self.home.end - self.home.start) / self.channels;
        for step in 0..per_channel {
            let row = (self.next_moved.wrapping_add(step)) % per_channel;
            let unit = self.home.start + channel + self.channels * row;
            if let Some(ppn) = self.take_moved(unit) {
                self.next_moved = self.next_moved.wrapping_add(step + 1);
                return Some(ppn);
            }
        }
        if let Some(ppn) = self.home.clone().find_map(|unit| self.take_moved(unit)) {
            return Some(ppn);
        }
        // The last resort: room of users' own blocks.
        let unit = self
            .home
            .clone()
            .find(|unit| self.open_user[*unit as usize] != NONE)?;
        let (ppn, full) = self.take(self.open_user[unit as usize]);
        if full {
            self.open_user[unit as usize] = NONE;
        }
        Some(ppn)
    }

    fn take_moved(&mut self, unit: u32) -> Option<u32> {
        let frontier = if self.separate {
            &self.open_moved
        } else {
            &self.open_user
        };
        let mut id = frontier[unit as usize];
        if id == NONE {
            id = self.open(unit)?;
        }
        let (ppn, full) = self.take(id);
        let frontier = if self.separate {
            &mut self.open_moved
        } else {
            &mut self.open_user
        };
        frontier[unit as usize] = if full { NONE } else { id };
        Some(ppn)
    }

    /// Pages collection can still program without erasing anything.
    pub(crate) fn room_for_moves(&self) -> u32 {
        let room = |id| self.pages_per_block - self.blocks[id as usize].filled;
        self.open_at_home().map(room).sum::<u32>() + self.free_at_home() * self.pages_per_block
    }

    /// A program of the block ended.
    pub(crate) fn programmed(&mut self, id: u32) {
        let block = &mut self.blocks[id as usize];
        block.pending -= 1;
        if block.pending == 0 && block.state == State::Closed {
            self.link(id);
        }
    }

    fn listed(&self, id: u32) -> bool {
        let block = &self.blocks[id as usize];
        block.state == State::Closed && block.pending == 0
    }

    pub(crate) fn revive(&mut self, ppn: u32) {
        let id = self.block_of(ppn);
        assert!(
            !self.listed(id),
            "a page becomes live while its block is being programmed"
        );
        self.blocks[id as usize].live += 1;
    }

    /// A page of the block is dead once program `barrier` and trim `trim_barrier` are durable.
    pub(crate) fn kill(&mut self, ppn: u32, barrier: u64, trim_barrier: u64) {
        let id = self.block_of(ppn);
        let listed = self.listed(id);
        if listed {
            self.unlink(id);
        }
        let block = &mut self.blocks[id as usize];
        assert!(block.live > 0, "a live page is in a block with live pages");
        block.live -= 1;
        block.barrier = block.barrier.max(barrier);
        block.trim_barrier = block.trim_barrier.max(trim_barrier);
        if listed {
            self.link(id);
        }
    }

    fn link(&mut self, id: u32) {
        let live = self.blocks[id as usize].live;
        let list = &mut self.buckets[live as usize];
        let tail = list.tail;
        list.tail = id;
        if tail == NONE {
            list.head = id;
        } else {
            self.blocks[tail as usize].next = id;
        }
        let block = &mut self.blocks[id as usize];
        block.prev = tail;
        block.next = NONE;
        self.lowest = self.lowest.min(live);
    }

    fn unlink(&mut self, id: u32) {
        let Block { live, prev, next, .. } = self.blocks[id as usize];
        let list = &mut self.buckets[live as usize];
        if prev == NONE {
            list.head = next;
        } else {
            self.blocks[prev as usize].next = next;
        }
        if next == NONE {
            list.tail = prev;
        } else {
            self.blocks[next as usize].prev = prev;
        }
    }

    /// The block with the fewest live pages, the oldest of those.
    fn greedy(&mut self) -> Option<u32> {
        while self.buckets.get(self.lowest as usize)?.head == NONE {
            self.lowest += 1;
        }
        Some(self.buckets[self.lowest as usize].head)
    }

    /// A little-worn block with cold data, looked for now and then in a bounded window: static wear levelling.
    fn cold(&mut self) -> Option<u32> {
        if !self.victims.is_multiple_of(WEAR_EVERY) {
            return None;
        }
        let mean = self.erases_mean();
        for _ in 0..WEAR_WINDOW.min(self.count()) {
            let id = self.wear_cursor;
            self.wear_cursor = (id + 1) % self.count();
            if self.listed(id) && f64::from(self.blocks[id as usize].erases + self.wear_gap_max) < mean {
                return Some(id);
            }
        }
        None
    }

    /// Takes a victim with at most `room` live pages and something to gain.
    pub(crate) fn take_victim(&mut self, room: u32) -> Option<u32> {
        self.victims += 1;
        let id = match self.cold() {
            Some(id) if self.blocks[id as usize].live <= room => id,
            _ => {
                let id = self.greedy()?;
                let live = self.blocks[id as usize].live;
                if live == self.pages_per_block || live > room {
                    return None;
                }
                id
            }
        };
        self.unlink(id);
        self.set_state(id, State::Collecting);
        Some(id)
    }

    /// Gives a victim back that could not be emptied.
    pub(crate) fn give_back(&mut self, id: u32) {
        self.set_state(id, State::Closed);
        self.link(id);
    }

    /// A victim is empty.
    pub(crate) fn emptied(&mut self, id: u32) {
        assert_eq!(
            self.blocks[id as usize].live, 0,
            "an emptied block has no live page"
        );
        self.set_state(id, State::Waiting);
        self.waiting.push(id);
    }

    /// Frees the blocks whose barriers are durable; returns how many.
    pub(crate) fn release(&mut self, durable: u64, trims_durable: u64) -> u32 {
        let mut released = 0;
        let mut index = 0;
        while index < self.waiting.len() {
            let id = self.waiting[index];
            let block = &mut self.blocks[id as usize];
            if block.barrier > durable || block.trim_barrier > trims_durable {
                index += 1;
                continue;
            }
            self.waiting.swap_remove(index);
            block.erases += 1;
            let erases = block.erases;
            self.erases_total += 1;
            self.set_state(id, State::Free);
            if self.is_home(id) {
                self.free[(id / self.blocks_per_unit) as usize].push(Reverse((erases, id)));
            } else {
                self.borrowed_free.push(id);
            }
            released += 1;
        }
        released
    }

    /// Blocks that wait at the erase barrier.
    pub(crate) fn waiting_count(&self) -> u32 {
        self.waiting.len() as u32
    }

    /// True when a flush could free a waiting block: the programs it waits for are programmed, and its trims are logged
    /// or can be.
    pub(crate) fn release_possible(&self, programmed: u64, trims_loggable: u64) -> bool {
        self.waiting
            .iter()
            .map(|&id| &self.blocks[id as usize])
            .any(|block| block.barrier <= programmed && block.trim_barrier <= trims_loggable)
    }

    /// Blocks of others that it has.
    pub(crate) fn borrowed(&self) -> u32 {
        self.borrowed.len() as u32
    }

    /// Own blocks that others have.
    pub(crate) fn lent(&self) -> u32 {
        self.lent
    }

    /// Gives up own free blocks, of the units that have most: at most `count`, and so that `keep` stay.
    pub(crate) fn lend(&mut self, count: u32, keep: u32) -> Vec<Loan> {
        let count = count.min(self.free_at_home().saturating_sub(keep));
        let mut loans = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let richest = self
                .home
                .clone()
                .max_by_key(|unit| self.free[*unit as usize].len());
            let unit = richest.expect("a vSSD has units");
            let Some(Reverse((erases, block))) = self.free[unit as usize].pop() else {
                break;
            };
            self.hand_over(block);
            self.lent += 1;
            loans.push(Loan { block, erases });
        }
        loans
    }

    fn hand_over(&mut self, id: u32) {
        self.erases_total -= u64::from(self.blocks[id as usize].erases);
        self.set_state(id, State::Foreign);
    }

    /// Takes over a block that another member gave up: borrowed, or lent before.
    pub(crate) fn accept(&mut self, loan: Loan) {
        let Loan { block: id, erases } = loan;
        assert_eq!(
            self.blocks[id as usize].state,
            State::Foreign,
            "a block has one owner"
        );
        self.set_state(id, State::Free);
        self.blocks[id as usize].erases = erases;
        self.erases_total += u64::from(erases);
        if self.is_home(id) {
            self.lent = self.lent.saturating_sub(1);
            self.free[(id / self.blocks_per_unit) as usize].push(Reverse((erases, id)));
        } else {
            self.borrowed.push(id);
            self.borrowed_free.push(id);
        }
    }

    /// True when a borrowed block is free to go back.
    pub(crate) fn has_returns(&self) -> bool {
        !self.borrowed_free.is_empty()
    }

    /// Gives up the borrowed blocks that are free.
    pub(crate) fn take_returns(&mut self) -> Vec<Loan> {
        let free = core::mem::take(&mut self.borrowed_free);
        let returned = free.into_iter().map(|block| {
            self.borrowed.retain(|id| *id != block);
            self.hand_over(block);
            let erases = self.blocks[block as usize].erases;
            Loan { block, erases }
        });
        returned.collect()
    }

    /// Borrowed blocks that are not free yet.
    pub(crate) fn borrowed_in_use(&self) -> u32 {
        (self.borrowed.len() - self.borrowed_free.len()) as u32
    }

    /// All borrowed blocks as they will be when they are erased: of a vSSD that is gone.
    pub(crate) fn surrender(&self) -> Vec<Loan> {
        let erased = |&block: &u32| {
            let Block { state, erases, .. } = self.blocks[block as usize];
            let erases = erases + u32::from(state != State::Free);
            Loan { block, erases }
        };
        self.borrowed.iter().map(erased).collect()
    }

    /// Lent blocks do not come back.
    pub(crate) fn write_off(&mut self) {
        self.lent = 0;
    }

    /// Closes the borrowed blocks that are being filled; returns them.
    pub(crate) fn close_borrowed(&mut self) -> Vec<u32> {
        let closed = core::mem::take(&mut self.borrowed_open);
        for &id in &closed {
            self.set_state(id, State::Closed);
            if self.blocks[id as usize].pending == 0 {
                self.link(id);
            }
        }
        closed
    }

    /// The borrowed block with the fewest live pages, if these fit `room`.
    pub(crate) fn take_borrowed_victim(&mut self, room: u32) -> Option<u32> {
        let live = |id: &u32| self.blocks[*id as usize].live;
        let candidates = self.borrowed.iter().copied().filter(|id| self.listed(*id));
        let id = candidates.filter(|id| live(id) <= room).min_by_key(live)?;
        self.unlink(id);
        self.set_state(id, State::Collecting);
        Some(id)
    }
}

//! Erase blocks: their state, where the next page goes, and which block to collect.
//!
//! A block is Free → Open → Closed → Collecting → Waiting → Free. It waits until everything that left it is durable
//! (the erase barrier). Closed blocks without programs in flight stand in a list per number of live pages, oldest
//! first, so that the greedy victim is found in constant amortised time. Free blocks are taken least-worn first.

use crate::geometry::RESERVE_BLOCKS;
use crate::mapping::NONE;
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

#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
}

/// Who asks for a page.
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
    units: u32,
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
    /// Per number of live pages: closed blocks.
    buckets: Vec<List>,
    /// No bucket below this has a block.
    lowest: u32,
    counts: [u32; 5],
    erases_total: u64,
    victims: u64,
    wear_cursor: u32,
    pub(crate) waiting: Vec<u32>,
}

impl Blocks {
    pub(crate) fn new(
        units: u32,
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
            units,
            channels,
            separate,
            wear_gap_max,
            free,
            open_user: vec![NONE; units as usize],
            open_moved: vec![NONE; units as usize],
            next_user: 0,
            next_moved: 0,
            buckets: vec![
                List {
                    head: NONE,
                    tail: NONE
                };
                pages_per_block as usize + 1
            ],
            lowest: 0,
            counts: [0; 5],
            erases_total: 0,
            victims: 0,
            wear_cursor: 0,
            waiting: Vec::with_capacity(count as usize),
        }
    }

    /// Puts every block where its state says. Blocks are set up with [`Blocks::get_mut`] before.
    pub(crate) fn start(&mut self) {
        self.counts = [0; 5];
        for id in 0..self.blocks.len() as u32 {
            let block = self.blocks[id as usize];
            self.counts[block.state as usize] += 1;
            self.erases_total += u64::from(block.erases);
            match block.state {
                State::Free => {
                    self.free[(id / self.blocks_per_unit) as usize].push(Reverse((block.erases, id)))
                }
                State::Closed => self.link(id),
                State::Waiting => self.waiting.push(id),
                State::Open | State::Collecting => {}
            }
        }
    }

    /// Makes a partly programmed block a frontier of its unit; false when both are taken.
    pub(crate) fn adopt(&mut self, id: u32, user: bool) -> bool {
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

    pub(crate) fn free_count(&self) -> u32 {
        self.counts[State::Free as usize]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Block> {
        self.blocks.iter()
    }

    /// Blocks that are being filled.
    pub(crate) fn open_blocks(&self) -> impl Iterator<Item = u32> {
        self.open_user
            .iter()
            .chain(&self.open_moved)
            .copied()
            .filter(|id| *id != NONE)
    }

    pub(crate) fn erases_mean(&self) -> f64 {
        self.erases_total as f64 / f64::from(self.count())
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
        Some(id)
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
        let free = self.free_count();
        if !self.separate && free < RESERVE_BLOCKS {
            return None;
        }
        for _ in 0..self.units {
            let unit = self.next_user;
            self.next_user = if unit + 1 == self.units { 0 } else { unit + 1 };
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
        None
    }

    fn allocate_moved(&mut self, channel: u32) -> Option<u32> {
        // Own channel first, so that the others stay free of this work; then anywhere.
        let per_channel = self.units / self.channels;
        for step in 0..per_channel {
            let unit = channel + self.channels * ((self.next_moved + step) % per_channel);
            if let Some(ppn) = self.take_moved(unit) {
                self.next_moved = self.next_moved.wrapping_add(step + 1);
                return Some(ppn);
            }
        }
        if let Some(ppn) = (0..self.units).find_map(|unit| self.take_moved(unit)) {
            return Some(ppn);
        }
        // The last resort: room of users' own blocks.
        let unit = (0..self.units).find(|unit| self.open_user[*unit as usize] != NONE)?;
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
        self.open_blocks().map(room).sum::<u32>() + self.free_count() * self.pages_per_block
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
            self.free[(id / self.blocks_per_unit) as usize].push(Reverse((erases, id)));
            released += 1;
        }
        released
    }

    /// True when a flush could free a waiting block: what it waits for among programs is programmed.
    pub(crate) fn release_possible(&self, programmed: u64) -> bool {
        self.waiting
            .iter()
            .any(|&id| self.blocks[id as usize].barrier <= programmed)
    }
}

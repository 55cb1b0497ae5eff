//! The operations in flight, and what the vSSD says to its node.
//!
//! The key of an operation is its id at the medium and at the timing model. [`Ops`] owns the way to both, the pool's
//! pages, and the events that the node has not fetched.

use crate::api::{Data, Event, GcMode, VssdConfig, VssdError};
use crate::bus::Model;
use crate::layout::Share;
use crate::mapping::NONE;
use crate::nand::NandKind;
use base::{Duration, Instant, MediaDone, MediaOp, Page, Pool, Reserve, Slab, Version};
use core::ops::{Index, IndexMut};
use std::collections::VecDeque;

/// When to look again for a page after the pool was empty. Ends of other operations are looked at anyway.
const STARVED_RETRY: Duration = Duration::from_micros(100);

/// Pages that a vSSD keeps back for metadata and moves. A few suffice: each comes back as soon as the medium has it.
const RESERVE_PAGES: usize = 16;

/// Purpose of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpKind {
    /// A user's read.
    Read,
    /// A user's write.
    Write,
    /// Collection reads a live page; then the same operation becomes `MoveWrite`.
    MoveRead,
    /// Collection programs it elsewhere.
    MoveWrite,
    /// A page of trim records.
    Record,
    /// Collection programs a page of trim records elsewhere.
    MoveRecord,
    /// A page of out-of-band entries; `lpn` is the buffer.
    Oob,
    /// A page of a checkpoint.
    Piece,
    /// A checkpoint's header.
    Header,
    /// A page of a checkpoint is read to see whether it is intact: `ppn` is its index, `lpn` the checkpoint's number.
    Check,
    /// A media flush.
    Flush,
    /// The timing model's erase.
    Erase,
}

/// One operation. It ends when neither the medium nor the timing model is still at it.
#[derive(Debug)]
pub(crate) struct Op {
    pub(crate) kind: OpKind,
    pub(crate) tag: u64,
    pub(crate) lpn: u32,
    pub(crate) ppn: u32,
    pub(crate) version: Version,
    pub(crate) crc: u32,
    pub(crate) sequence: u64,
    pub(crate) page: Option<Page>,
    /// The medium is at it.
    pub(crate) media: bool,
    /// The timing model is at it.
    pub(crate) model: bool,
    /// The medium refused.
    pub(crate) failed: bool,
}

impl Op {
    pub(crate) fn new(kind: OpKind) -> Self {
        Self {
            kind,
            tag: 0,
            lpn: NONE,
            ppn: NONE,
            version: Version::NONE,
            crc: 0,
            sequence: 0,
            page: None,
            media: false,
            model: false,
            failed: false,
        }
    }
}

/// The operations in flight, by key.
#[derive(Debug)]
pub(crate) struct Ops {
    slab: Slab<Op>,
    events: VecDeque<Event>,
    pool: Pool,
    /// Of the pool, what the vSSD's own work goes on with when others hold the rest.
    reserve: Reserve,
    nand: Model,
    now: Instant,
    /// Operations take modelled time.
    timed: bool,
    gc: GcMode,
    pages_per_block: u32,
    blocks_per_unit: u32,
    /// The pool was empty when something needed a page.
    starved: bool,
    latched: bool,
}

impl Ops {
    pub(crate) fn new(config: &VssdConfig, share: &Share, pool: Pool, nand: Model) -> Self {
        let capacity = config.operations(share.units());
        Self {
            slab: Slab::with_capacity(capacity),
            events: VecDeque::with_capacity(2 * capacity),
            reserve: pool.reserve(RESERVE_PAGES),
            pool,
            nand,
            now: Instant::ZERO,
            timed: !config.timing.is_none(),
            gc: config.gc,
            pages_per_block: share.pages_per_block(),
            blocks_per_unit: share.blocks_per_unit(),
            starved: false,
            latched: false,
        }
    }

    pub(crate) fn insert(&mut self, op: Op) -> u32 {
        self.slab.insert(op)
    }

    pub(crate) fn remove(&mut self, id: u32) -> Op {
        self.slab.remove(id)
    }

    fn see(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    /// A page for a client's data. Without one the vSSD is starved and asks to be ticked.
    pub(crate) fn page(&mut self) -> Option<Page> {
        let page = self.pool.alloc();
        self.starved |= page.is_none();
        page
    }

    /// As [`Ops::page`], for metadata and for what collection moves: by these the pages come back that others hold.
    pub(crate) fn own_page(&mut self) -> Option<Page> {
        let page = self.reserve.alloc();
        self.starved |= page.is_none();
        page
    }

    /// As [`Ops::own_page`], of zeros.
    pub(crate) fn own_page_zeroed(&mut self) -> Option<Page> {
        let page = self.reserve.alloc_zeroed();
        self.starved |= page.is_none();
        page
    }

    /// True if the pool has a page now.
    pub(crate) fn has_page(&mut self) -> bool {
        let available = self.pool.available() > 0;
        self.starved |= !available;
        available
    }

    /// Everything that waits for a page is tried again.
    pub(crate) fn retry(&mut self) {
        self.starved = false;
    }

    pub(crate) fn event(&mut self, event: Event) {
        self.events.push_back(event);
    }

    pub(crate) fn has_event(&self) -> bool {
        !self.events.is_empty()
    }

    pub(crate) fn poll(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    pub(crate) fn done(&mut self, tag: u64, result: Result<Data, VssdError>) {
        self.event(Event::Done { tag, result });
    }

    /// The medium failed: nothing is written any more. False if it was known.
    pub(crate) fn latch(&mut self) -> bool {
        !core::mem::replace(&mut self.latched, true)
    }

    pub(crate) fn latched(&self) -> bool {
        self.latched
    }

    /// Gives an operation to the medium.
    pub(crate) fn media(&mut self, op: MediaOp) {
        self.slab[op.id as u32].media = true;
        self.event(Event::Media(op));
    }

    /// True if collection takes modelled time.
    pub(crate) fn times_collection(&self) -> bool {
        self.timed && self.gc != GcMode::Free
    }

    /// Gives an operation on `ppn` to the timing model.
    pub(crate) fn model(&mut self, op: u32, kind: NandKind, ppn: u32, collection: bool) {
        if !self.timed || (collection && self.gc == GcMode::Free) {
            return;
        }
        self.slab[op].model = true;
        let unit = ppn / self.pages_per_block / self.blocks_per_unit;
        let page = ppn % self.pages_per_block;
        self.nand
            .submit(self.now.as_nanos(), op, kind, unit, page, collection);
    }

    /// Keeps users off a channel if collection blocks them. True if it does.
    pub(crate) fn hold(&mut self, channel: u32) -> bool {
        let holds = self.timed && self.gc == GcMode::Blocking;
        if holds {
            self.nand.hold(channel);
        }
        holds
    }

    /// Lets users on again.
    pub(crate) fn release(&mut self, channel: u32) {
        self.nand.release(self.now.as_nanos(), channel);
    }

    /// The medium is done with an operation: its key, if the timing model is, too.
    ///
    /// # Panics
    /// If the medium was not asked.
    pub(crate) fn media_done(&mut self, mut done: MediaDone) -> Option<u32> {
        let id = u32::try_from(done.id).expect("an id of this vSSD");
        let op = &mut self.slab[id];
        assert!(op.media, "the medium was asked");
        op.media = false;
        op.failed = done.result.is_err();
        if matches!(op.kind, OpKind::Read | OpKind::MoveRead | OpKind::Check) {
            op.page = done.pages.pop();
        }
        (!op.model).then_some(id)
    }

    /// Plays the timing model until it is done with an operation with which the medium is done, too: its key. `None` if
    /// there is none before `now`.
    pub(crate) fn advance(&mut self, now: Instant) -> Option<u32> {
        while let Some((id, at)) = self.nand.advance(now.as_nanos()) {
            self.see(Instant::from_nanos(at));
            let op = &mut self.slab[id];
            op.model = false;
            if !op.media {
                return Some(id);
            }
        }
        self.see(now);
        None
    }

    /// When the vSSD wants to be ticked, if at all.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let model = self.nand.next_ns().map(Instant::from_nanos);
        let retry = self.starved.then(|| self.now + STARVED_RETRY);
        base::time::earliest(model, retry)
    }

    pub(crate) fn busy_until(&self) -> Instant {
        Instant::from_nanos(self.nand.busy_until_ns()).max(self.now)
    }
}

impl Index<u32> for Ops {
    type Output = Op;

    fn index(&self, id: u32) -> &Op {
        &self.slab[id]
    }
}

impl IndexMut<u32> for Ops {
    fn index_mut(&mut self, id: u32) -> &mut Op {
        &mut self.slab[id]
    }
}

//! Durability: flush rounds.
//!
//! A round serves all flushes that wait: log the pending trims, write the entries that no write carries, then one media
//! flush. Rounds do not overlap, so flushes that arrive meanwhile share the next (group commit), and a lone one
//! starts at once.

use crate::api::{Data, VssdError};
use crate::checkpoint::Checkpoints;
use crate::ops::{Op, OpKind, Ops};
use crate::pages::Pages;
use crate::trim::{Logged, Trims};
use base::MediaOp;

/// Progress of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Idle,
    Writing,
    Flushing,
}

/// The flush rounds.
#[derive(Debug)]
pub(crate) struct Rounds {
    stage: Stage,
    /// Flushes that wait for the next round.
    next: Vec<u64>,
    /// Flushes that the present round serves.
    current: Vec<u64>,
    /// Collection or a checkpoint wants a round.
    internal: bool,
    target: u64,
    trims: u64,
    durable: u64,
    /// The round began after a checkpoint's pieces, or its header, were written.
    for_checkpoint: bool,
    /// Media flushes done.
    count: u64,
}

impl Rounds {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            stage: Stage::Idle,
            next: Vec::with_capacity(capacity),
            current: Vec::with_capacity(capacity),
            internal: false,
            target: 0,
            trims: 0,
            durable: 0,
            for_checkpoint: false,
            count: 0,
        }
    }

    /// Media flushes done.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.stage == Stage::Idle
    }

    /// True while a round waits for what it writes.
    pub(crate) fn is_writing(&self) -> bool {
        self.stage == Stage::Writing
    }

    /// Asks for a round that no user asked for.
    pub(crate) fn want(&mut self) {
        self.internal = true;
    }

    /// A user's flush.
    pub(crate) fn submit(&mut self, pages: &mut Pages, trims: &Trims, tag: u64) {
        if pages.ops.latched() {
            return pages.ops.done(tag, Err(VssdError::Latched));
        }
        if pages.sequence.last() == pages.flushed() && trims.accepted() == trims.durable() {
            return pages.ops.done(tag, Ok(Data::None));
        }
        self.next.push(tag);
    }

    /// Starts a round if one is wanted, and carries the present one on.
    pub(crate) fn step(&mut self, pages: &mut Pages, trims: &mut Trims, checkpoints: &mut Checkpoints) {
        if pages.ops.latched() {
            return;
        }
        if self.is_idle() && (self.internal || !self.next.is_empty()) {
            self.start(pages, trims, checkpoints);
        }
        if self.is_writing() && pages.entries.round_is_written() && !trims.is_logging() {
            self.stage = Stage::Flushing;
            self.durable = self.target.min(pages.sequence.programmed());
            let op = pages.ops.insert(Op::new(OpKind::Flush));
            pages.ops.media(MediaOp::flush(u64::from(op)));
        }
    }

    fn start(&mut self, pages: &mut Pages, trims: &mut Trims, checkpoints: &mut Checkpoints) {
        match trims.log(pages) {
            Logged::All => core::mem::swap(&mut self.next, &mut self.current),
            Logged::NoPage => return,
            Logged::NoRoom => {
                // Only a checkpoint can make the trims durable now; its own rounds go on without users.
                checkpoints.want();
                if !self.internal {
                    return;
                }
            }
        }
        self.stage = Stage::Writing;
        self.internal = false;
        self.for_checkpoint = checkpoints.wait_for_round();
        self.target = pages.sequence.last();
        self.trims = trims.logged();
        pages.entries.begin_round(&mut pages.ops);
    }

    /// The media flush of the round is done.
    pub(crate) fn done(&mut self, pages: &mut Pages, trims: &mut Trims, checkpoints: &mut Checkpoints) {
        self.stage = Stage::Idle;
        self.count += 1;
        pages.flush_done(self.durable);
        trims.flush_done(self.trims);
        for tag in self.current.drain(..) {
            pages.ops.done(tag, Ok(Data::None));
        }
        if core::mem::take(&mut self.for_checkpoint) {
            checkpoints.round_done(pages, trims, self.durable);
        }
        pages.release_blocks(trims.durable());
    }

    /// Refuses every flush that waits.
    pub(crate) fn refuse(&mut self, ops: &mut Ops) {
        for tag in self.current.drain(..).chain(self.next.drain(..)) {
            ops.done(tag, Err(VssdError::Latched));
        }
    }
}

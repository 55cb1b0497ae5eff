//! The clean stop of a unit: everything is written back and flushed, and a checkpoint is last.

use super::{TAG_STOP_CHECKPOINT, TAG_STOP_FLUSH, Unit};
use crate::Output;
use base::Instant;
use flash::{Data, Request, VssdError};
use std::collections::VecDeque;

/// How far a clean stop is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// Not asked for.
    No,
    /// The cache is written back, and collection finishes what it began.
    WriteBack,
    /// The last flush is in the flash.
    Flush,
    /// The checkpoint is in the flash.
    Checkpoint,
    /// It is durable: a start finds nothing to replay.
    Done,
}

impl Unit {
    /// True when a clean stop is complete: nothing is in flight, and a checkpoint of everything is durable. A latched
    /// vSSD can do no more and counts as quiet when nothing is in flight.
    pub fn is_quiet(&self) -> bool {
        let busy = self.in_flight > 0 || self.flush_in_flight;
        !busy && (self.latched || self.stop == Stop::Done && self.is_written_back())
    }

    /// True when nothing is left to write back, nor on its way to the medium.
    fn is_written_back(&self) -> bool {
        let waits = !self.backlog.is_empty() || !self.jobs_waiting.is_empty() || !self.jobs_ready.is_empty();
        let in_flight = self.writes_out > 0 || self.flush_in_flight;
        self.cache.is_empty() && !waits && !in_flight && !self.flash.gc_active()
    }

    /// Carries a clean stop on. What arrives after its checkpoint starts it again.
    pub(super) fn step_stop(&mut self, now: Instant) -> bool {
        if self.latched || !matches!(self.stop, Stop::WriteBack | Stop::Done) {
            return false;
        }
        match (self.stop, self.is_written_back()) {
            (Stop::WriteBack, true) => {
                self.stop = Stop::Flush;
                self.flash.submit(now, Request::Flush { tag: TAG_STOP_FLUSH });
                true
            }
            (Stop::Done, false) => {
                self.stop = Stop::WriteBack;
                true
            }
            _ => false,
        }
    }

    /// The flush or the checkpoint of a clean stop is done.
    pub(super) fn stop_done(
        &mut self,
        now: Instant,
        result: Result<Data, VssdError>,
        out: &mut VecDeque<Output>,
    ) {
        if result.is_err() {
            return self.latch(out);
        }
        self.stop = match self.stop {
            Stop::Flush => {
                self.flash.checkpoint(now, TAG_STOP_CHECKPOINT);
                Stop::Checkpoint
            }
            Stop::Checkpoint => Stop::Done,
            stop => unreachable!("only a clean stop waits: {stop:?}"),
        };
    }

    /// Stops cleanly: writes everything back, flushes, and ends with a checkpoint, so that the next start finds no
    /// unflushed tail. [`is_quiet`](Unit::is_quiet) tells when it is done. Reads and flushes are still
    /// served, and writes are not taken any more.
    pub fn drain(&mut self, now: Instant, out: &mut VecDeque<Output>) {
        if self.stop == Stop::No {
            self.stop = Stop::WriteBack;
        }
        self.pump(now, out);
    }
}

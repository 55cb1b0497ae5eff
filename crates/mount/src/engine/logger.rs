//! The log is written: by threads of its own, or by the caller where the medium makes nobody wait.

use super::failure::Mode;
use super::shared::Shared;
use super::state::{LOOK_AGAIN, Locked, State};
use fs::log::Write;
use os::sync::MutexGuard;
use std::time::Duration;

/// A log that has been quiet for so long gets a mark: see docs/format/fs.md, "The last frame".
const QUIET: Duration = Duration::from_millis(200);
/// In mode `ordered` records are gathered for so long if nobody waits for them.
const GATHER: Duration = Duration::from_millis(1);

impl Shared {
    /// A thread of the log.
    pub(super) fn write_in_turn(&self) {
        let mut quiet = Duration::ZERO;
        let mut state = self.locked.lock();
        loop {
            if self.may_gather(&state) {
                state = Locked::sleep(&self.locked.records, state, GATHER);
            }
            if let Some((write, flush)) = state.next_write() {
                quiet = Duration::ZERO;
                state = self.write(state, write, flush);
                continue;
            }
            if state.is_stopping {
                return;
            }
            if quiet >= QUIET
                && let Some(mark) = state.writer.mark()
            {
                state = self.write(state, mark, 0);
                continue;
            }
            state = Locked::sleep(&self.locked.records, state, LOOK_AGAIN);
            quiet += LOOK_AGAIN;
        }
    }

    fn may_gather(&self, state: &State) -> bool {
        self.options.mode == Mode::Ordered && !state.is_waited_for() && !state.is_stopping
    }

    /// Writes all records that wait, if a write may begin.
    pub(super) fn write_here<'s>(&'s self, mut state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        while let Some((write, flush)) = state.next_write() {
            state = self.write(state, write, flush);
        }
        state
    }

    /// Writes all records that there are, and waits until they are durable or never will be.
    pub(super) fn write_all<'s>(&'s self, state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        let newest = state.newest;
        let mut state = self.write_here(state);
        while !state.is_durable(newest) && !state.writer.is_latched() {
            self.locked.records.notify_one();
            state = Locked::sleep(&self.locked.room, state, LOOK_AGAIN);
        }
        state
    }

    /// Writes a frame, without the lock, and tells those who wait for it.
    pub(super) fn write<'s>(
        &'s self,
        state: MutexGuard<'s, State>,
        write: Write,
        flush: u8,
    ) -> MutexGuard<'s, State> {
        drop(state);
        // Data are durable before the record that speaks of them.
        let mut devices = (0..8).filter(|device| flush & 1 << device != 0);
        let flushed = devices.try_for_each(|device| self.disks.flush_device(device));
        let result = flushed.and_then(|()| self.disks.write_durable(write.pieces()));
        let mut state = self.locked.lock();
        let told = state.written(write, result);
        let wants_digest = state.wants_digest();
        drop(state);
        told.tell();
        self.locked.room.notify_all();
        if wants_digest {
            self.locked.digest.notify_one();
        }
        self.locked.lock()
    }
}

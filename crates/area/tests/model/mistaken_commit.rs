//! A commit whose guard is marked beside the hold. A guard that was served leaves its mark behind, and the threads of the
//! next hold sleep without a limit.

#[path = "../../src/commit.rs"]
mod shipped;

use base::Instant;

pub const RECORDS: usize = shipped::RECORDS;

pub enum Turn {
    Write,
    Sleep(Option<u64>),
}

#[derive(Default)]
pub struct GroupCommit {
    shipped: shipped::GroupCommit,
    is_guarded: bool,
}

impl GroupCommit {
    pub fn arrive(&mut self, record: u64) {
        self.shipped.arrive(record);
    }

    pub fn serve(&mut self, record: u64) -> u32 {
        self.shipped.serve(record)
    }

    pub fn first_awaited(&self, from: u64) -> Option<u64> {
        self.shipped.first_awaited(from)
    }

    pub fn ended(&mut self, now: Instant, took_ns: u64, served: u32) {
        self.shipped.ended(now, took_ns, served);
    }

    pub fn turn(&mut self, has_write: bool, now: impl FnOnce() -> Instant) -> Turn {
        match self.shipped.turn(has_write, now) {
            shipped::Turn::Write => Turn::Write,
            shipped::Turn::Sleep(limit_ns) => {
                let is_guard = limit_ns.is_some() && !self.is_guarded;
                self.is_guarded |= is_guard;
                Turn::Sleep(limit_ns.filter(|_| is_guard))
            }
        }
    }

    pub fn unguard(&mut self) {
        self.shipped.unguard();
        self.is_guarded = false;
    }
}

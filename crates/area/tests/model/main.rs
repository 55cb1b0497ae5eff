//! Model checks of the synchronisation by hand: `shuttle` runs the sources as they ship under many schedules, and stops
//! where every thread sleeps.
//!
//! A tree is one set of sources: `shipped` is what ships, the others replace one file by a mistaken one. All of them take
//! locks, atomics, futexes and the time from `super::sync`, and here that is `crates/os/tests/model/sync.rs`. Mistakes
//! that need no other source are a [`sync::Fault`]. Every mistake has a test that the checker finds it.

#![allow(
    clippy::duplicate_mod,
    reason = "each tree has the shipped files that it does not replace"
)]

#[path = "../../../os/tests/model/check.rs"]
mod check;
#[macro_use]
mod scenarios;
mod early_look;
mod shipped;
mod stale_guard;
#[path = "../../../os/tests/model/sync.rs"]
mod sync;

use base::{Device, MediaError};
use check::{SCHEDULES, check, finds};
use std::io;
use std::sync::OnceLock;
use store::{Durability, Engine, Job, JobError, Kind, Layout, Left, Op, Options, StructureId};
use sync::Fault;

/// Segments of 1 KiB and records of 256 bytes: a few appends fill a record, and some dozens the area.
const LAYOUT: Layout = Layout {
    sector_bytes: 64,
    block_bytes: 64,
    segment_bytes: 1024,
    segments: 16,
    atomic_bytes: 64,
    record_bytes_max: 256,
};

/// The medium of an area with one log, of which all but `free` segments are in use and nothing is live.
fn image(free: u32) -> &'static (Vec<u8>, StructureId) {
    static IMAGES: [OnceLock<(Vec<u8>, StructureId)>; 2] = [const { OnceLock::new() }; 2];
    IMAGES[usize::from(free < ROOMY)].get_or_init(|| {
        let mut medium = vec![0; LAYOUT.capacity_bytes() as usize];
        store::create(&mut medium, LAYOUT, [7; 16]).expect("it has room");
        let (mut engine, _) = Engine::open(&mut medium, Options::default()).expect("it was just made");
        let (log, _) = engine
            .create("log", Kind::Log, Durability::Sync)
            .expect("a short name");
        loop {
            while let Some(write) = engine.next_write() {
                medium.write_at(write.offset(), write.bytes()).expect("inside");
                engine.written(write, Ok(()));
            }
            if engine.stats().free_segments <= free {
                break;
            }
            let data = &[1; 150];
            let receipt = engine
                .submit(&[Op::Append { log, data }])
                .expect("one record waits");
            let floor = receipt.positions[0] + 1;
            engine.submit(&[Op::Trim { log, floor }]).expect("one more");
        }
        (medium, log)
    })
}

/// The medium of an area with one map, whose keys leave memory soon.
fn spilled() -> &'static (Vec<u8>, StructureId) {
    static IMAGE: OnceLock<(Vec<u8>, StructureId)> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let layout = Layout {
            segment_bytes: 4096,
            segments: 96,
            ..LAYOUT
        };
        let mut medium = vec![0; layout.capacity_bytes() as usize];
        store::create(&mut medium, layout, [8; 16]).expect("it has room");
        let (mut engine, _) = Engine::open(&mut medium, spilling()).expect("it was just made");
        let (map, _) = engine
            .create("map", Kind::Map, Durability::Sync)
            .expect("a short name");
        while let Some(write) = engine.next_write() {
            medium.write_at(write.offset(), write.bytes()).expect("inside");
            engine.written(write, Ok(()));
        }
        (medium, map)
    })
}

/// Four entries leave at a time. A list of the tables has to fit into a record of 256 bytes, which six tables fill.
fn spilling() -> Options {
    Options {
        spill_bytes: 600,
        ..Options::default()
    }
}

/// What the threads of a check do.
#[derive(Clone, Copy)]
struct Load {
    threads: usize,
    /// Appends of a thread,
    rounds: usize,
    /// each of so many bytes.
    bytes: usize,
    /// Each is waited for, and not only the last.
    waits: bool,
    in_flight: usize,
    /// Segments that are free at the start: with few the cleaner has work.
    free_segments: u32,
    /// Writes after which the medium fails.
    fails_after: Option<usize>,
}

impl Load {
    /// Threads that come back together: their next write is held.
    const TOGETHER: Self = Self {
        threads: 3,
        rounds: 3,
        bytes: 20,
        waits: true,
        in_flight: 1,
        free_segments: ROOMY,
        fails_after: None,
    };
    /// More records than may wait, so that submitters have to.
    const CROWDED: Self = Self {
        threads: 3,
        rounds: 4,
        bytes: 150,
        waits: false,
        ..Self::TOGETHER
    };
    /// An area that is cleaned meanwhile.
    const FULL: Self = Self {
        threads: 2,
        rounds: 8,
        free_segments: SCARCE,
        ..Self::CROWDED
    };
}

const ROOMY: u32 = LAYOUT.segments - 1;
const SCARCE: u32 = 4;

fn options(in_flight: usize) -> Options {
    Options {
        writes_in_flight_max: in_flight,
        ..Options::default()
    }
}

/// A medium whose writes take long enough to be worth holding.
pub(crate) struct Memory {
    /// The bytes, and the writes that are left before it fails.
    state: std::sync::Mutex<(Vec<u8>, Option<usize>)>,
}

impl Memory {
    fn new(bytes: Vec<u8>, fails_after: Option<usize>) -> Self {
        Self {
            state: std::sync::Mutex::new((bytes, fails_after)),
        }
    }

    pub(crate) fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        shuttle::thread::yield_now();
        let state = self.state.lock().expect("no panic");
        bytes.copy_from_slice(&state.0[offset as usize..][..bytes.len()]);
        Ok(())
    }

    pub(crate) fn work(&self, job: &mut Job, left: Left<'_>) -> Result<(), JobError> {
        shuttle::thread::yield_now();
        let mut medium = self;
        job.run_telling(&mut medium, left)
    }

    pub(crate) fn is_followed(&self) -> bool {
        false
    }

    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        sync::pass(100_000);
        shuttle::thread::yield_now();
        let mut state = self.state.lock().expect("no panic");
        if let Some(left) = &mut state.1 {
            *left = left.checked_sub(1).ok_or(io::ErrorKind::Other)?;
        }
        state.0[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        drop(state);
        shuttle::thread::yield_now();
        Ok(())
    }
}

/// As a job uses it.
impl Device for &Memory {
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), MediaError> {
        self.read(offset, bytes).map_err(|_| MediaError::Io)
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), MediaError> {
        self.write(offset, bytes).map_err(|_| MediaError::Io)
    }

    fn flush(&mut self) -> Result<(), MediaError> {
        Ok(())
    }

    fn capacity_bytes(&self) -> u64 {
        self.state.lock().expect("no panic").0.len() as u64
    }
}

#[test]
fn every_writer_that_waits_returns() {
    check(None, SCHEDULES, || shipped::writers(Load::TOGETHER));
    let in_flight = 2;
    check(None, SCHEDULES, move || {
        shipped::writers(Load {
            in_flight,
            ..Load::TOGETHER
        });
    });
}

#[test]
fn submitters_that_find_no_room_get_some() {
    check(None, SCHEDULES, || shipped::writers(Load::CROWDED));
}

#[test]
fn an_area_that_is_cleaned_serves_its_writers() {
    check(None, SCHEDULES, || shipped::writers(Load::FULL));
}

#[test]
fn writers_go_on_while_memory_leaves_for_tables() {
    check(None, SCHEDULES / 2, || shipped::spillers(None));
}

#[test]
fn a_table_that_cannot_be_written_reaches_every_waiter() {
    for writes in [1, 4, 6, 9] {
        check(None, SCHEDULES / 8, move || shipped::spillers(Some(writes)));
    }
}

#[test]
fn a_thread_of_tables_that_is_not_called_is_found() {
    finds(Some(Fault::NotifiesNone), || shipped::spillers(None));
}

#[test]
fn a_write_that_fails_reaches_every_waiter() {
    for (load, in_flight) in [(Load::TOGETHER, 1), (Load::CROWDED, 1), (Load::FULL, 1)] {
        check(None, SCHEDULES / 2, move || {
            shipped::writers(Load {
                in_flight,
                fails_after: Some(2),
                ..load
            });
        });
    }
}

/// bug: threads whose record was under way when a later one failed slept for ever. cause: a failure served all records that
/// share a bell with a failed one, and so forgot who waits for the earlier one. fix: it serves the records that there are.
#[test]
fn a_write_that_ends_after_a_later_one_failed_reaches_its_waiters() {
    let (threads, in_flight) = (4, 3);
    check(None, SCHEDULES, move || {
        shipped::writers(Load {
            threads,
            in_flight,
            fails_after: Some(2),
            ..Load::TOGETHER
        });
    });
}

/// The defect of `bench store` with eight threads: one of them slept for ever.
#[test]
fn a_guard_whose_mark_outlives_it_is_found() {
    finds(None, || stale_guard::writers(Load::TOGETHER));
}

#[test]
fn a_bell_that_looks_for_sleepers_too_early_is_found() {
    finds(None, || early_look::writers(Load::TOGETHER));
}

#[test]
fn a_guard_that_sleeps_without_a_limit_is_found() {
    finds(Some(Fault::HasNoLimit), || shipped::writers(Load::TOGETHER));
}

#[test]
fn a_next_writer_who_is_not_woken_is_found() {
    finds(Some(Fault::WakesNone), || shipped::writers(Load::TOGETHER));
}

#[test]
fn served_threads_of_which_one_is_woken_are_found() {
    finds(Some(Fault::WakesOne), || shipped::writers(Load::TOGETHER));
}

#[test]
fn a_sleeper_that_does_not_look_again_is_found() {
    finds(Some(Fault::LooksLate), || shipped::writers(Load::TOGETHER));
}

#[test]
fn an_own_thread_that_is_not_called_is_found() {
    finds(Some(Fault::NotifiesNone), || shipped::writers(Load::CROWDED));
}

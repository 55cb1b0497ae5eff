//! A thread that panics at its work for an area: the shipped sources, with a medium that panics.
#![allow(clippy::disallowed_methods, reason = "the area's threads are the test's own")]

mod backend {
    pub(crate) use crate::Brittle as Storage;
}
mod error {
    pub(crate) use area::AreaError;
}
use os::sync;
#[path = "../src/bell.rs"]
mod bell;
#[path = "../src/commit.rs"]
mod commit;
#[allow(dead_code, reason = "no test reads values")]
#[path = "../src/shared.rs"]
mod shared;

use area::AreaError;
use base::Device;
use shared::Shared;
use std::io;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;
use store::{Durability, Engine, Kind, Layout, Op, Options, StructureId, SubmitError};

/// Far longer than any step of a test takes; a thread that sleeps for ever is told by it.
const PATIENCE: Duration = Duration::from_secs(20);
const LAYOUT: Layout = Layout {
    sector_bytes: 64,
    block_bytes: 64,
    segment_bytes: 1024,
    segments: 16,
    atomic_bytes: 64,
    record_bytes_max: 256,
};

/// A medium that panics when it is used; first it waits until it may.
pub(crate) struct Brittle {
    breaks: Mutex<Receiver<()>>,
}

impl Brittle {
    fn break_down(&self) -> ! {
        let breaks = self.breaks.lock().expect("one thread breaks");
        let _ = breaks.recv();
        drop(breaks);
        panic!("as the test wants it");
    }

    pub(crate) fn read(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
        self.break_down();
    }

    pub(crate) fn work(&self, _: &mut store::Job, _: store::Left<'_>) -> Result<(), store::JobError> {
        self.break_down();
    }

    pub(crate) fn is_followed(&self) -> bool {
        false
    }

    pub(crate) fn write(&self, _: u64, _: &[u8]) -> io::Result<()> {
        self.break_down();
    }
}

/// An engine with a log.
fn engine() -> (Engine, StructureId) {
    let mut medium = vec![0; LAYOUT.capacity_bytes() as usize];
    store::create(&mut medium, LAYOUT, [7; 16]).expect("it has room");
    let one_write = Options {
        writes_in_flight_max: 1,
        ..Options::default()
    };
    let (mut engine, _) = Engine::open(&mut medium, one_write).expect("it was just made");
    let (log, _) = engine
        .create("log", Kind::Log, Durability::Sync)
        .expect("a short name");
    while let Some(write) = engine.next_write() {
        medium.write_at(write.offset(), write.bytes()).expect("inside");
        engine.written(write, Ok(()));
    }
    (engine, log)
}

fn append(shared: &Shared, log: StructureId) -> Result<(), AreaError> {
    let ops = [Op::Append { log, data: &[1; 150] }];
    let (receipt, guard) = shared.submit(|engine| engine.submit(&ops))?;
    shared.wait(guard, receipt.ticket)
}

fn until(mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        thread::yield_now();
    }
}

/// Bug: after a panic of the area's own thread, or of a writer, everybody who waited for its write slept for ever, and so did
/// whoever submitted after. Cause: a write that nobody ends keeps its record, and all after it, under way. Fix: a thread that
/// unwinds latches the engine and serves all who wait.
#[test]
fn a_panic_at_a_write_is_told_to_all_who_wait_and_to_all_who_come() {
    for own_thread_writes in [true, false] {
        let (engine, log) = engine();
        let (breaks, may_break) = channel();
        let storage = Brittle {
            breaks: Mutex::new(may_break),
        };
        let first = engine.newest().0 + 1;
        let shared: &'static Shared = Box::leak(Box::new(Shared::new(storage, engine)));
        let own = thread::spawn(move || shared.run());
        let writer = if own_thread_writes {
            let ops = [Op::Append { log, data: &[1; 150] }];
            let (receipt, guard) = shared.submit(|engine| engine.submit(&ops)).expect("it has room");
            shared.start(guard, receipt.ticket);
            None
        } else {
            Some(thread::spawn(move || append(shared, log)))
        };
        // The thread that is to panic has the only write.
        until(|| {
            let guard = shared.lock();
            guard.engine.newest().0 >= first && !guard.engine.has_write()
        });
        let (answer, answers) = channel();
        for _ in 0..3 {
            let answer = answer.clone();
            thread::spawn(move || answer.send(append(shared, log)));
        }
        // All of them wait for a write that cannot end before this.
        until(|| shared.lock().engine.newest().0 >= first + 3);
        drop(breaks);
        for _ in 0..3 {
            let told = answers.recv_timeout(PATIENCE).expect("nobody sleeps for ever");
            assert!(matches!(told, Err(AreaError::Panicked)), "{told:?}");
        }
        let told = append(shared, log);
        assert!(matches!(told, Err(AreaError::Panicked)), "{told:?}");
        shared.close();
        let ended = own.join();
        match writer {
            Some(writer) => drop(writer.join().expect_err("it panicked")),
            None => drop(ended.expect_err("it panicked")),
        }
        let refused = shared.lock().engine.submit(&[]);
        assert!(matches!(refused, Err(SubmitError::Latched)), "{refused:?}");
    }
}

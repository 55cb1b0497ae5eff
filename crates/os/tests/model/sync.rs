//! What the checked sources take from `os::sync` and `base::sync`, played by the checker, with faults that a test may ask
//! for. Each crate with model checks includes this file (docs/concurrency.md).
#![allow(dead_code, unused_imports, reason = "each crate uses a part")]

#[path = "mpsc.rs"]
pub mod mpsc;

use base::Instant;
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync;
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::LockResult;

pub use shuttle::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
pub use shuttle::sync::{Mutex, MutexGuard};
pub use shuttle::thread;
pub use std::sync::{Arc, PoisonError};

/// A seeded mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A futex wakes nobody where it is to wake one: the thread that is to make the next write.
    WakesNone,
    /// A futex wakes one where it is to wake all.
    WakesOne,
    /// A futex sleeps although its word has changed.
    LooksLate,
    /// A futex sleeps for ever where it was given a limit.
    HasNoLimit,
    /// A condition wakes nobody.
    NotifiesNone,
    /// A core is not woken.
    WakesNoCore,
    /// An addition is a load and a store, and another's may be lost between the two.
    AddsInTwoSteps,
}

thread_local! {
    /// Of this thread's checks.
    pub static FAULT: Cell<Option<Fault>> = const { Cell::new(None) };
    static NOW_NS: Cell<u64> = const { Cell::new(0) };
}

/// Looks at which a sleep with a limit may end.
const LOOKS_MAX: u32 = 4;

fn has(fault: Fault) -> bool {
    FAULT.get() == Some(fault)
}

/// Time passes where something takes time ([`pass`]), and a little with each look.
pub fn now() -> Instant {
    pass(1000);
    Instant::from_nanos(NOW_NS.get())
}

/// Lets time pass.
pub fn pass(ns: u64) {
    NOW_NS.set(NOW_NS.get() + ns);
}

#[derive(Debug, Default)]
pub struct AtomicU64(sync::atomic::AtomicU64);

impl AtomicU64 {
    pub const fn new(value: u64) -> Self {
        Self(sync::atomic::AtomicU64::new(value))
    }

    pub fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }

    pub fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, order);
    }

    pub fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.0.swap(value, order)
    }

    pub fn fetch_add(&self, count: u64, order: Ordering) -> u64 {
        if has(Fault::AddsInTwoSteps) {
            let before = self.0.load(Ordering::SeqCst);
            self.0.store(before.wrapping_add(count), Ordering::SeqCst);
            return before;
        }
        self.0.fetch_add(count, order)
    }

    pub fn fetch_sub(&self, count: u64, order: Ordering) -> u64 {
        self.fetch_add(count.wrapping_neg(), order)
    }
}

pub struct Condvar(sync::Condvar);

impl Condvar {
    pub const fn new() -> Self {
        Self(sync::Condvar::new())
    }

    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        self.0.wait(guard)
    }

    /// Nobody waits for the limit: a thread that only its limit would wake is found.
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        limit: std::time::Duration,
    ) -> LockResult<(MutexGuard<'a, T>, sync::WaitTimeoutResult)> {
        self.0.wait_timeout(guard, limit)
    }

    pub fn notify_one(&self) {
        if !has(Fault::NotifiesNone) {
            self.0.notify_one();
        }
    }
}

/// The kernel's futex: the comparison and the place in the queue are one step.
#[derive(Debug)]
pub struct Futex {
    word: sync::atomic::AtomicU32,
    queue: sync::Mutex<Queue>,
    woken: sync::Condvar,
}

#[derive(Debug)]
struct Queue {
    next: u64,
    sleepers: VecDeque<u64>,
}

impl Futex {
    pub const fn new() -> Self {
        Self {
            word: sync::atomic::AtomicU32::new(0),
            queue: sync::Mutex::new(Queue {
                next: 0,
                sleepers: VecDeque::new(),
            }),
            woken: sync::Condvar::new(),
        }
    }

    pub fn load(&self) -> u32 {
        self.word.load(Ordering::Acquire)
    }

    pub fn change(&self) {
        self.word.fetch_add(1, Ordering::SeqCst);
    }

    pub fn wait(&self, value: u32, limit_ns: Option<u64>) {
        let mut queue = self.queue.lock().expect("no panic");
        if self.word.load(Ordering::SeqCst) != value && !has(Fault::LooksLate) {
            return;
        }
        let place = queue.next;
        queue.next += 1;
        queue.sleepers.push_back(place);
        let Some(limit_ns) = limit_ns.filter(|_| !has(Fault::HasNoLimit)) else {
            while queue.sleepers.contains(&place) {
                queue = self.woken.wait(queue).expect("no panic");
            }
            return;
        };
        for _ in 0..thread_rng().gen_range(0..LOOKS_MAX) {
            drop(queue);
            thread::yield_now();
            queue = self.queue.lock().expect("no panic");
            if !queue.sleepers.contains(&place) {
                return;
            }
        }
        queue.sleepers.retain(|sleeper| *sleeper != place);
        pass(limit_ns);
    }

    pub fn wake(&self, count: u32) {
        let count = match count {
            1 if has(Fault::WakesNone) => 0,
            2.. if has(Fault::WakesOne) => 1,
            count => count,
        };
        let mut queue = self.queue.lock().expect("no panic");
        for _ in 0..count.min(queue.sleepers.len() as u32) {
            let chosen = thread_rng().gen_range(0..queue.sleepers.len());
            queue.sleepers.remove(chosen);
        }
        self.woken.notify_all();
    }
}

/// An eventfd, and the wait of the thread that watches it.
#[derive(Debug)]
pub struct Wake {
    is_awake: sync::Mutex<bool>,
    woken: sync::Condvar,
}

impl Wake {
    pub fn new() -> std::io::Result<Self> {
        Ok(Self {
            is_awake: sync::Mutex::new(false),
            woken: sync::Condvar::new(),
        })
    }

    pub fn wake(&self) {
        if !has(Fault::WakesNoCore) {
            *self.is_awake.lock().expect("no panic") = true;
            self.woken.notify_one();
        }
    }

    pub fn clear(&self) {
        *self.is_awake.lock().expect("no panic") = false;
    }

    /// What the core's poller does: returns at once after a wake that was not cleared.
    pub fn wait(&self) {
        let mut is_awake = self.is_awake.lock().expect("no panic");
        while !*is_awake {
            is_awake = self.woken.wait(is_awake).expect("no panic");
        }
    }
}

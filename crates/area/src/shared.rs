//! Many threads, one engine: a thread that waits for a record writes the record, if no other thread does.
//!
//! A thread that submits takes the next write, if there is room for one, makes it, and returns with no other thread
//! involved. While writes are under way, other threads add to the next record and sleep. The thread that ends a write
//! wakes the threads whose records are durable, all by one system call. They return without taking the lock.
//! [`GroupCommit`] decides if the next write begins at once.
//!
//! # Who wakes whom
//!
//! Invariant: while a record is wanted and there is room for a write, some thread will make the write. It is awake, or
//! guards a hold ([`GroupCommit`]) and sleeps with a limit. All facts below change under the lock; bells are rung after it.
//!
//! - A thread in [`Shared::wait`] sleeps without a limit in two cases. First, there is no write to make now: a writer is
//!   awake, has this record or fills the room for writes, and will call [`Shared::publish`]. Second, the next write is
//!   held: the hold has a guard.
//! - `publish` serves every record that ended, and rings the bell of each record that was waited for, for all. The count
//!   of a record's threads and its end are one locked step, so no thread can wait for a record that ended.
//! - `publish` also sees to the next write: it rings for one thread of the first record that is waited for, or calls the
//!   area's own thread if there is none. This thread makes the write, guards the hold, or finds that another thread has
//!   taken the write; then the other thread publishes. It can find its own record ended only if another thread published
//!   since, and that publisher has seen to the write after.
//! - Records share bells ([`RECORDS`] of them). A ring for one may wake a thread whose record, 64 earlier, has ended. The
//!   ring for all of that earlier record is then still to come, and wakes the thread that was meant.
//! - A thread on its way to sleep has read the bell under the lock, so a ring since then keeps it from sleeping.
//! - A submitter that finds the engine busy sleeps on `any`. `is_crowded` is set in the locked step that found it busy.
//!   The engine is busy while writes are under way, each of which ends in `publish`, or while the cleaner frees segments.
//!   The area's own thread was called in the same step: it cleans, and rings `any` when it has no more to clean.
//! - The area's own thread sleeps on `background`, under the lock, unless `is_called`. It leaves only after the last owner
//!   has left, so nobody can wait for it.
//! - The thread of the tables sleeps on `jobs`, under the lock, unless `are_jobs_called`. A job can begin only after a write has
//!   ended, the cleaner has made a step, or a submitter found the engine busy or was refused: each of them calls it. A submitter that waits for
//!   a job is woken by the end of the record that lists its tables, or by the failure that [`Shared::run_jobs`] publishes.
//! - A thread that panics at a write, or as the area's own, latches the engine and serves everybody ([`Alarm`]).
//! - A thread that leaves has no write under way, and its rings are done. It guards no hold: its record was served, and
//!   [`GroupCommit::serve`] ends the hold with it.

use super::backend::Storage;
use super::bell::Bell;
use super::commit::{GroupCommit, RECORDS, Turn};
use super::error::AreaError;
use super::sync::{AtomicBool, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, PoisonError, now};
use base::MediaError;
use smallvec::SmallVec;
use std::{io, mem};
use store::{CleanStep, Engine, SnapshotId, SubmitError, Ticket, Write};

/// The cleaner reads a segment in pieces of so many bytes, a multiple of any block. A whole segment of 4 MiB kept a
/// virtual disk busy for 4 ms.
const CLEAN_READ_BYTES: usize = 128 << 10;
/// The longest time between two looks of a thread that waits for the tables.
const SETTLE_LOOK_NS: u64 = 10_000_000;
/// Wakes everybody.
const ALL: u32 = i32::MAX as u32;

pub(super) struct Shared {
    pub storage: Storage,
    /// A thread that makes the area larger has it, before the lock.
    pub growing: Mutex<()>,
    state: Mutex<State>,
    /// The area's own thread sleeps here.
    background: Condvar,
    /// The thread of the tables sleeps here.
    jobs: Condvar,
    /// The engine's, for those who do not hold the lock: the last durable record, and the first that failed.
    durable: AtomicU64,
    failed: AtomicU64,
    /// A thread left its work undone. Set before `failed`, under the lock.
    is_abandoned: AtomicBool,
    /// Rung when a record has ended, by its number.
    records: [Bell; RECORDS],
    /// Rung when any has, for submitters that the engine was too busy for.
    any: Bell,
}

pub(super) struct State {
    pub engine: Engine,
    commit: GroupCommit,
    /// Submitters that wait for any completion.
    is_crowded: bool,
    /// The area's thread has something to do: clean, or write what was submitted and is awaited by nobody.
    is_called: bool,
    /// The thread of the tables has something to do, or may have.
    are_jobs_called: bool,
    is_closing: bool,
    /// [`Engine::segments_taken`] when followers were looked for.
    looked: u64,
}

/// The lock.
pub(super) type Guard<'a> = MutexGuard<'a, State>;

impl Shared {
    pub(super) fn new(storage: Storage, engine: Engine) -> Self {
        let durable = AtomicU64::new(engine.durable().0);
        let state = State {
            engine,
            commit: GroupCommit::default(),
            is_crowded: false,
            is_called: false,
            are_jobs_called: false,
            is_closing: false,
            looked: 0,
        };
        Self {
            storage,
            growing: Mutex::new(()),
            state: Mutex::new(state),
            background: Condvar::new(),
            jobs: Condvar::new(),
            durable,
            failed: AtomicU64::new(u64::MAX),
            is_abandoned: AtomicBool::new(false),
            records: [const { Bell::new() }; RECORDS],
            any: Bell::new(),
        }
    }

    /// The engine. A panic elsewhere leaves it latched at worst: its steps are whole.
    pub(super) fn lock(&self) -> Guard<'_> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Submits by `f`, waiting while the engine is busy.
    pub(super) fn submit<R>(
        &self,
        mut f: impl FnMut(&mut Engine) -> Result<R, SubmitError>,
    ) -> Result<(R, Guard<'_>), AreaError> {
        let mut guard = self.lock();
        loop {
            match f(&mut guard.engine) {
                Ok(result) => return Ok((result, guard)),
                Err(SubmitError::Busy) => {}
                Err(SubmitError::Latched) if self.is_abandoned() => return Err(AreaError::Panicked),
                Err(error) => {
                    // A refusal for want of room may have what could not be read tried again.
                    if guard.engine.wants_cleaning() {
                        self.call(&mut guard);
                    }
                    self.call_jobs(&mut guard);
                    return Err(error.into());
                }
            }
            self.call(&mut guard);
            self.call_jobs(&mut guard);
            if let Some(write) = guard.engine.next_write() {
                self.write(guard, write);
            } else {
                self.await_any(guard, None);
            }
            guard = self.lock();
        }
    }

    /// The outcome of `ticket`, if it is known without the lock.
    fn outcome(&self, ticket: Ticket) -> Option<Result<(), AreaError>> {
        if self.durable.load(Ordering::Acquire) >= ticket.0 {
            return Some(Ok(()));
        }
        let has_failed = self.failed.load(Ordering::Acquire) <= ticket.0;
        has_failed.then(|| match self.is_abandoned() {
            true => Err(AreaError::Panicked),
            false => Err(AreaError::Failed),
        })
    }

    fn is_abandoned(&self) -> bool {
        // Whoever asks has read `failed`, or holds the lock: both come after.
        self.is_abandoned.load(Ordering::Relaxed)
    }

    /// Waits until `ticket` is durable, writing what there is to write.
    pub(super) fn wait<'a>(&'a self, mut guard: Guard<'a>, ticket: Ticket) -> Result<(), AreaError> {
        guard.engine.want(ticket);
        if let Some(result) = self.outcome(ticket) {
            return result;
        }
        guard.commit.arrive(ticket.0);
        let bell = &self.records[ticket.0 as usize % RECORDS];
        loop {
            let State { engine, commit, .. } = &mut *guard;
            let turn = commit.turn(engine.has_write(), now);
            match turn {
                Turn::Write => {
                    let write = engine.next_write().expect("it has a write");
                    self.write(guard, write);
                }
                Turn::Sleep(limit_ns) => {
                    let rung = bell.read();
                    drop(guard);
                    bell.sleep(rung, limit_ns);
                }
            }
            if let Some(result) = self.outcome(ticket) {
                return result;
            }
            guard = self.lock();
            // The record may have ended, and the bell been rung, since.
            if let Some(result) = self.outcome(ticket) {
                return result;
            }
            if let Turn::Sleep(Some(_)) = turn {
                guard.commit.unguard();
            }
        }
    }

    /// Somebody should write what was just submitted; the caller does not wait.
    pub(super) fn start(&self, mut guard: Guard<'_>, ticket: Ticket) {
        guard.engine.want(ticket);
        self.call(&mut guard);
    }

    fn write(&self, guard: Guard<'_>, write: Write) {
        self.carry_out(guard, write, true);
    }

    /// Makes a write, of a record or of a checkpoint, and wakes those who waited for it.
    fn carry_out(&self, guard: Guard<'_>, write: Write, is_record: bool) {
        drop(guard);
        let alarm = Alarm(self);
        let began = now();
        let result = self.storage.write(write.offset(), write.bytes());
        let now = now();
        let took_ns = now.as_nanos() - began.as_nanos();
        let mut guard = self.lock();
        let before = guard.engine.durable().0;
        guard.engine.written(write, result.map_err(|_| MediaError::Io));
        self.look_for_followers(&mut guard);
        let rings = self.publish(&mut guard, before, |commit, served| {
            if is_record {
                commit.ended(now, took_ns, served);
            }
        });
        if guard.engine.wants_cleaning() {
            self.call(&mut guard);
        }
        self.call_jobs(&mut guard);
        drop(guard);
        mem::forget(alarm);
        for (bell, count) in rings {
            bell.ring(count);
        }
    }

    /// Looks for followers once for each segment.
    fn look_for_followers(&self, guard: &mut Guard<'_>) {
        let taken = guard.engine.segments_taken();
        if guard.looked != taken {
            guard.looked = taken;
            guard.engine.set_followed(self.storage.is_followed());
        }
    }

    /// Tells what has become durable, or failed, since `before`: the bells to be rung, and for how many.
    fn publish(
        &self,
        guard: &mut Guard<'_>,
        before: u64,
        ended: impl FnOnce(&mut GroupCommit, u32),
    ) -> SmallVec<[(&Bell, u32); 4]> {
        let State { engine, commit, .. } = &mut **guard;
        let mut rings = SmallVec::new();
        let mut served = 0;
        let mut serve = |commit: &mut GroupCommit, record: u64| {
            let count = commit.serve(record);
            if count > 0 {
                rings.push((&self.records[record as usize % RECORDS], ALL));
            }
            served += count;
        };
        let durable = engine.durable().0;
        (before + 1..=durable).for_each(|record| serve(commit, record));
        self.durable.store(durable, Ordering::Release);
        if let Some(failed) = engine.failed() {
            self.failed.store(failed.0, Ordering::Release);
            // No further: records share bells, and an earlier one may be under way still.
            (failed.0..=engine.newest().0).for_each(|record| serve(commit, record));
        }
        ended(commit, served);
        if guard.is_crowded {
            guard.is_crowded = false;
            rings.push((&self.any, ALL));
        }
        // The last to wake: those who have been served may add to the write that it makes.
        if let Some(next) = guard.engine.next_ticket() {
            match guard.commit.first_awaited(next.0) {
                Some(record) => rings.push((&self.records[record as usize % RECORDS], 1)),
                None => self.call(guard),
            }
        }
        rings
    }

    /// Nobody reads the snapshot any more: what it kept is free.
    pub(super) fn end_snapshot(&self, id: SnapshotId) {
        let mut guard = self.lock();
        guard.engine.end_snapshot(id);
        let trash = guard.engine.take_trash();
        self.has_room(guard);
        drop(trash);
    }

    /// The area has so many segments more.
    pub(super) fn grown(&self, segments: u32) {
        let mut guard = self.lock();
        guard.engine.grown(segments);
        self.has_room(guard);
    }

    /// There may be room for those who wait.
    fn has_room(&self, mut guard: Guard<'_>) {
        let is_crowded = mem::take(&mut guard.is_crowded);
        self.call(&mut guard);
        self.call_jobs(&mut guard);
        drop(guard);
        if is_crowded {
            self.any.ring(ALL);
        }
    }

    /// A range has begun: it may have been one too many for the tables as they are.
    pub(super) fn scanned(&self, guard: &mut Guard<'_>) {
        if guard.engine.is_merge_asked_for() {
            self.call_jobs(guard);
        }
    }

    /// The thread of the tables should look for work, if there may be some.
    fn call_jobs(&self, guard: &mut Guard<'_>) {
        if guard.engine.wants_job() && !guard.are_jobs_called {
            guard.are_jobs_called = true;
            self.jobs.notify_one();
        }
    }

    fn call(&self, guard: &mut Guard<'_>) {
        if !guard.is_called {
            guard.is_called = true;
            self.background.notify_one();
        }
    }

    /// The area's own thread: cleans, and writes what nobody waits for. Ends when the area is closed.
    pub(super) fn run(&self) {
        let alarm = Alarm(self);
        let mut is_cleaning = false;
        let mut guard = self.lock();
        loop {
            guard.is_called = false;
            let step = guard.engine.clean_step();
            if matches!(step, CleanStep::Idle) {
                // A job may have waited for cleaning to come to rest.
                self.call_jobs(&mut guard);
            }
            let was_cleaning = mem::replace(&mut is_cleaning, !matches!(step, CleanStep::Idle));
            if was_cleaning && !is_cleaning && guard.is_crowded {
                // What they wait for may not come.
                guard.is_crowded = false;
                self.any.ring(ALL);
            }
            if let CleanStep::Read { offset, length } = step {
                drop(guard);
                let mut bytes = vec![0; length];
                let result = self.read_slowly(offset, &mut bytes);
                guard = self.lock();
                guard.engine.clean_read(bytes, result.map_err(|_| MediaError::Io));
            } else if let CleanStep::Write(write) = step {
                self.carry_out(guard, write, false);
                guard = self.lock();
            } else if let Some(write) = guard.engine.next_write() {
                self.write(guard, write);
                guard = self.lock();
            } else if guard.is_closing {
                return mem::forget(alarm);
            } else if guard.engine.has_trash() {
                let trash = guard.engine.take_trash();
                drop(guard);
                drop(trash);
                guard = self.lock();
            } else if !guard.is_called {
                let woken = self.background.wait(guard);
                guard = woken.unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// The thread of the tables: does one job after the other, without the lock. Ends when the area is closed. `left` is told of
    /// what leaves memory ([`store::Job::run_telling`]).
    pub(super) fn run_jobs(&self, mut left: impl FnMut(&[u8], Option<&[u8]>)) {
        let alarm = Alarm(self);
        let mut guard = self.lock();
        while !guard.is_closing {
            guard.are_jobs_called = false;
            if let Some(mut job) = guard.engine.take_job() {
                drop(guard);
                let result = self.storage.work(&mut job, &mut left);
                guard = self.lock();
                let before = guard.engine.durable().0;
                guard.engine.end_job(job, result);
                // A record that lists the tables is to be written; a failure is to be told.
                let rings = self.publish(&mut guard, before, |_, _| {});
                self.call(&mut guard);
                let trash = guard.engine.take_trash();
                drop(guard);
                for (bell, count) in rings {
                    bell.ring(count);
                }
                drop(trash);
                guard = self.lock();
                continue;
            }
            // What has just been frozen may have to be written first.
            self.call(&mut guard);
            if !guard.are_jobs_called && !guard.is_closing {
                let woken = self.jobs.wait(guard);
                guard = woken.unwrap_or_else(PoisonError::into_inner);
            }
        }
        mem::forget(alarm);
    }

    /// Waits until no work on tables is under way or to be done.
    pub(super) fn settle(&self) -> Result<(), AreaError> {
        loop {
            let mut guard = self.lock();
            if guard.engine.is_latched() {
                return Err(AreaError::Failed);
            }
            if guard.engine.are_tables_settled() {
                return Ok(());
            }
            self.call_jobs(&mut guard);
            // Not everything that a job waits for rings.
            self.await_any(guard, Some(SETTLE_LOOK_NS));
        }
    }

    /// Waits for any completion, for so long at most.
    pub(super) fn await_any(&self, mut guard: Guard<'_>, limit_ns: Option<u64>) {
        guard.is_crowded = true;
        let rung = self.any.read();
        drop(guard);
        self.any.sleep(rung, limit_ns);
    }

    /// Reads a segment to be cleaned in pieces, so that a write has to wait for one at most.
    fn read_slowly(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let mut pieces = bytes.chunks_mut(CLEAN_READ_BYTES).enumerate();
        pieces.try_for_each(|(index, piece)| {
            let within = (index * CLEAN_READ_BYTES) as u64;
            self.storage.read(offset + within, piece)
        })
    }

    /// Lets the area's thread end.
    pub(super) fn close(&self) {
        let mut guard = self.lock();
        guard.is_closing = true;
        self.background.notify_one();
        self.jobs.notify_one();
    }
}

/// Dropped while its thread panics, because others would wait for ever for the work of the thread. A thread that ends its
/// work forgets the alarm.
struct Alarm<'a>(&'a Shared);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        let shared = self.0;
        let mut guard = shared.lock();
        let before = guard.engine.durable().0;
        guard.engine.latch();
        shared.is_abandoned.store(true, Ordering::Relaxed);
        let rings = shared.publish(&mut guard, before, |_, _| {});
        drop(guard);
        for (bell, count) in rings {
            bell.ring(count);
        }
    }
}

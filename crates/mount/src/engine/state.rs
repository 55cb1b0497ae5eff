//! What the threads of an engine share under one lock: the client with what it has not digested, the log's writer, and those who wait.

use super::due::DIGEST_PERCENT;
use super::failure::Failure;
use super::sharing::Sharing;
use super::touches::Touches;
use fs::client::Client;
use fs::log::{Ticket, Write, Writer};
use fs::tree::Tree;
use os::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::collections::BTreeMap;
use std::time::Duration;

/// Called when a frame is durable, or never will be; by any thread, without locks.
pub type Done = Box<dyn FnOnce(Result<(), Failure>) + Send>;

/// A wait ends after this long at the latest, and looks again. So no thread relies on being woken.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(100);

pub(crate) struct State {
    pub client: Client,
    /// The tree as of the newest root: readers wait for no digest.
    pub reader: Tree,
    pub writer: Writer,
    pub ring_bytes: u64,
    /// Why nothing can change any more.
    pub failure: Option<Failure>,
    /// The frame of the newest call.
    pub newest: Ticket,
    /// Devices with data of `Place` that were not flushed: a bit for each.
    pub unflushed: u8,
    /// What was read and written, for the policy of tiers.
    pub touches: Touches,
    waiting: BTreeMap<Ticket, Vec<Done>>,
    /// Roots that were written.
    pub commits: u64,
    /// Calls that found no room since the last digest.
    pub stalled: u64,
    /// Digests that were for such calls.
    pub relieved: u64,
    /// Free blocks of each device, as of the newest root.
    pub free: Vec<u64>,
    /// A digest is to be done, however little there is.
    pub digest_wanted: bool,
    /// So many blocks are to be granted, at least.
    pub blocks_wanted: u64,
    /// There were no more when they were asked for. The next commit may free some.
    pub are_blocks_denied: bool,
    pub is_stopping: bool,
    /// Other processes.
    pub sharing: Sharing,
    /// Blocks of all devices.
    pub blocks: u64,
}

impl State {
    pub fn new(client: Client, reader: Tree, writer: Writer, (ring_bytes, sharing): (u64, Sharing)) -> Self {
        Self {
            client,
            reader,
            writer,
            ring_bytes,
            failure: None,
            newest: Ticket(0),
            unflushed: 0,
            touches: Touches::default(),
            waiting: BTreeMap::new(),
            commits: 0,
            stalled: 0,
            relieved: 0,
            free: Vec::new(),
            digest_wanted: false,
            blocks_wanted: 0,
            are_blocks_denied: false,
            is_stopping: false,
            sharing,
            blocks: 0,
        }
    }

    /// Bytes of the log that are not free.
    pub fn used(&self) -> u64 {
        self.ring_bytes - self.writer.free()
    }

    /// Whether the log is to be digested.
    pub fn wants_digest(&self) -> bool {
        let is_full = self.stalled > 0 || self.used() * 100 >= self.ring_bytes * DIGEST_PERCENT;
        self.failure.is_none() && (self.digest_wanted || is_full || self.sharing.wants_round)
    }

    /// Calls `done` when a frame is durable.
    pub fn wait_for(&mut self, ticket: Ticket, done: Done) {
        self.waiting.entry(ticket).or_default().push(done);
    }

    /// Whether a frame is durable.
    pub fn is_durable(&self, ticket: Ticket) -> bool {
        self.writer.durable() >= ticket
    }

    /// Whether somebody waits for a frame.
    pub fn is_waited_for(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Takes the next frame to be written, and the devices that are to be flushed before.
    pub fn next_write(&mut self) -> Option<(Write, u8)> {
        let write = self.writer.next_write()?;
        Some((write, std::mem::take(&mut self.unflushed)))
    }

    /// A frame was written, or could not be. Those who are to be told, and what.
    pub fn written(&mut self, write: Write, result: Result<(), base::MediaError>) -> Told {
        self.writer.written(write, result);
        if self.writer.is_latched() {
            self.failure.get_or_insert(Failure::Log);
        }
        self.told()
    }

    /// Those who wait for what is durable; all of them, if nothing will be any more.
    pub fn told(&mut self) -> Told {
        let durable = self.writer.durable();
        let later = self.waiting.split_off(&Ticket(durable.0 + 1));
        let ready = std::mem::replace(&mut self.waiting, later);
        let failed = match self.writer.is_latched() {
            true => std::mem::take(&mut self.waiting),
            false => BTreeMap::new(),
        };
        Told {
            ready: ready.into_values().flatten().collect(),
            failed: failed.into_values().flatten().collect(),
        }
    }
}

/// Those who waited, to be told without a lock.
#[derive(Default)]
pub(crate) struct Told {
    ready: Vec<Done>,
    failed: Vec<Done>,
}

impl Told {
    pub fn tell(self) {
        self.ready.into_iter().for_each(|done| done(Ok(())));
        self.failed.into_iter().for_each(|done| done(Err(Failure::Log)));
    }
}

/// The state under its lock, and what its threads sleep on. Each sleep has a limit.
pub(crate) struct Locked {
    state: Mutex<State>,
    /// The log's threads: records wait.
    pub records: Condvar,
    /// The digest's thread.
    pub digest: Condvar,
    /// The thread that moves data between tiers: it is to stop.
    pub tiers: Condvar,
    /// Calls for which the log had no room, or no blocks were granted.
    pub room: Condvar,
    /// The thread that asks for leases: one of them is to be asked for.
    pub leases: Condvar,
}

impl Locked {
    pub fn new(state: State) -> Self {
        Self {
            state: Mutex::new(state),
            records: Condvar::new(),
            digest: Condvar::new(),
            tiers: Condvar::new(),
            room: Condvar::new(),
            leases: Condvar::new(),
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        // A thread that panicked has left the engine's state as the step before had it, or its failure is noted by its guard.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps on one of the conditions, at most for a limit.
    pub fn sleep<'g>(
        condition: &Condvar,
        guard: MutexGuard<'g, State>,
        limit: Duration,
    ) -> MutexGuard<'g, State> {
        match condition.wait_timeout(guard, limit) {
            Ok((guard, _)) => guard,
            Err(poisoned) => poisoned.into_inner().0,
        }
    }
}

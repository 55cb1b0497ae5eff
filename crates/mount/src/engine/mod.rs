//! A file system that one client uses: its media, its log, its digest, its reads. It knows nothing of FUSE.
//!
//! # The order of things
//! A call takes the lock of the state, reads what it needs, and logs its operations ([`Turn::log`]): from then on all calls see them. They
//! are durable when the log's frame is ([`Engine::when_durable`]). A digest brings frames into the tree, and then lets the overlay drop
//! them, in one step under the lock: a reader sees either.
//!
//! # Threads
//! The log's threads write frames, several at once. Where the medium is memory, the caller writes the frame itself. The digest's thread has
//! the tree that changes; readers have one of their own, which follows the newest root. So nobody waits for a digest, unless the log is
//! full. Where devices are of several tiers, a thread moves data between them. The lock of the migrator is taken before that of the keeper, and this one
//! before that of the state, never the other way round.
//!
//! # Failures
//! After a failed write of the log, or a failed digest, nothing changes any more ([`Failure`]). Reads go on.

mod digester;
mod due;
mod failure;
mod gate;
mod hearing;
mod held;
mod log;
mod logger;
mod logs;
mod migrator;
mod own;
mod patience;
mod placing;
mod processes;
mod recover;
mod reserve;
mod room;
mod round;
mod shared;
mod sharing;
mod state;
mod tiering;
mod touches;
mod turn;
mod waiting;
mod worker;
mod write;

pub use digester::Counts;
pub use failure::{Failure, Mode, Options};

pub use held::{Cache, Pins, Resume, Wants};
pub use patience::Patience;
pub use processes::ShareError;
pub use recover::{LOG_BYTES_MIN, LogState, OpenError, Recovery, examine_logs};
pub use sharing::{Link, Peer};
pub use state::Done;
pub use tiering::{Migration, TierStatus, tier_name};
pub use turn::Turn;
pub use write::{Write, Wrote};

use crate::media::Disks;
use digester::Keeper;
use fs::client::{Client, Failure as ClientFailure, Options as ClientOptions};
use fs::format::BLOCK_BYTES;
use fs::log::{Options as LogOptions, Ticket, Writer};
use fs::media::Volume;
use fs::tree::Tree;
use gate::Gate;
use os::sync::{Arc, Mutex, PoisonError, thread};
use placing::Placing;
use shared::{Shared, SharedOptions};
use sharing::Sharing;
use state::{LOOK_AGAIN, Locked, State};
use std::collections::BTreeMap;
use tiering::Migrator;
use turn::Wanted;

/// Threads that write the log where the caller does not: while one writes, the other takes what came meanwhile.
const LOG_THREADS: usize = 2;
/// Writes of a log under way, where callers write.
const WRITES_MAX: usize = 16;
/// Bytes of data that a record has, at most: what is longer goes to blocks, and is written once.
const RECORD_BYTES_MAX: u32 = 32 << 10;

/// A file system that is open.
pub struct Engine {
    shared: Arc<Shared>,
    threads: Mutex<Vec<thread::JoinHandle<()>>>,
}

impl Engine {
    /// Opens a file system: brings into the tree what its logs have, and begins a new log.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(disks: Disks, options: &Options) -> Result<(Self, Recovery), OpenError> {
        let opened = recover::open(&disks, options)?;
        let is_immediate = disks.is_immediate(0);
        let mode = options.mode.unwrap_or(match disks.is_mapped(0) {
            true => Mode::Sync,
            false => Mode::Ordered,
        });
        let writer_options = LogOptions {
            frame_bytes_max: opened.ring.frame_bytes_max(),
            writes_in_flight_max: if is_immediate { WRITES_MAX } else { LOG_THREADS },
        };
        let start = opened.record.digested;
        let writer = Writer::new(opened.ring.clone(), start, writer_options);
        let reader = Tree::open(&disks, &opened.volume, options.cache_bytes)?;
        let client_options = ClientOptions {
            checks_permissions: options.checks_permissions,
            record_bytes_max: (writer_options.frame_bytes_max / 4).min(RECORD_BYTES_MAX),
            ..ClientOptions::default()
        };
        let mut client = Client::new(opened.volume.mark, client_options);
        client.grant_inodes(opened.tree.next_inode()..u64::MAX);
        let sharing = Sharing::new(opened.volume.mark);
        let mut state = State::new(client, reader, writer, (opened.ring.bytes(), sharing));
        state.blocks = opened.volume.devices.iter().map(|device| device.blocks).sum();
        let gate = Arc::new(Gate::default());
        let mut keeper = Keeper {
            tree: opened.tree,
            grants: opened.grants,
            log: (opened.log, opened.record.nonce),
            ring: opened.ring,
            digested: start,
            frame: Ticket(0),
            roots: [start; 2],
            disks: disks.clone(),
            gate: Arc::clone(&gate),
            placing: Placing::of(&opened.volume),
            counts: Counts::default(),
            logs: BTreeMap::new(),
            log_bytes: 0,
            next_numbers: 0,
        };
        keeper.tell_room(&mut state);
        keeper.grant_blocks(&mut state);
        let migrator = Migrator::of(&opened.volume);
        let tiers = opened.volume.devices.iter().map(|device| device.tier);
        state.touches.tiers = tiers.collect();
        let shared = Arc::new(Shared {
            options: SharedOptions {
                mode,
                migrates_every: options.migrates_every,
                tell: Arc::clone(&options.tell),
            },
            disks,
            volume: opened.volume,
            is_immediate,
            locked: Locked::new(state),
            gate,
            keeper: Mutex::new(keeper),
            migrator: migrator.map(Mutex::new),
            migration: Mutex::default(),
        });
        Ok((Self::start(shared), opened.recovery))
    }

    fn start(shared: Arc<Shared>) -> Self {
        let count = if shared.is_immediate { 1 } else { LOG_THREADS };
        let threads = Mutex::new(Vec::new());
        let engine = Self { shared, threads };
        for _ in 0..count {
            engine.spawn("fs-log", Shared::write_in_turn);
        }
        engine.spawn("fs-digest", Shared::digest_in_turn);
        if engine.shared.migrator.is_some() {
            engine.spawn("fs-tiers", Shared::migrate_in_turn);
        }
        engine
    }

    fn spawn(&self, name: &str, run: fn(&Shared)) {
        let shared = Arc::clone(&self.shared);
        let thread = thread::Builder::new().name(name.into());
        let thread = thread
            .spawn(move || run(&shared))
            .expect("the system has room for a thread");
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.push(thread);
    }

    /// When calls return.
    pub fn mode(&self) -> Mode {
        self.shared.options.mode
    }

    /// The file system's devices.
    pub fn volume(&self) -> &Volume {
        &self.shared.volume
    }

    /// A call's time under the lock. It does no more than it needs to.
    pub fn turn<R>(&self, call: impl FnOnce(&mut Turn<'_>) -> R) -> R {
        let mut state = self.shared.locked.lock();
        let mut turn = Turn {
            state: &mut state,
            disks: &self.shared.disks,
            wanted: Wanted::default(),
        };
        let result = call(&mut turn);
        let wanted = turn.wanted;
        drop(state);
        if wanted.digest {
            self.shared.locked.digest.notify_one();
        }
        result
    }

    /// Calls `done` when a frame is durable, or when it cannot be any more: at once, or in a thread of the log.
    pub fn when_durable(&self, ticket: Ticket, done: Done) {
        let shared = &*self.shared;
        let mut state = shared.locked.lock();
        if shared.is_immediate && !state.is_durable(ticket) {
            state = shared.write_here(state);
        }
        let answer = match (state.is_durable(ticket), state.writer.is_latched()) {
            (true, _) => Ok(()),
            (false, true) => Err(Failure::Log),
            (false, false) => {
                state.wait_for(ticket, done);
                drop(state);
                shared.locked.records.notify_one();
                return;
            }
        };
        drop(state);
        done(answer);
    }

    /// The log's threads write what there is, and nobody waits for it.
    pub fn write_behind(&self) {
        self.shared.locked.records.notify_one();
    }

    /// Waits a short time for room in the log. Digests since the opening that were for calls without room.
    pub fn wait_for_room(&self) -> u64 {
        let shared = &*self.shared;
        let state = shared.locked.lock();
        shared.locked.records.notify_one();
        shared.locked.digest.notify_one();
        Locked::sleep(&shared.locked.room, state, LOOK_AGAIN).relieved
    }

    /// Waits until all calls up to now are durable.
    ///
    /// # Errors
    /// They cannot be any more.
    pub fn sync(&self) -> Result<(), Failure> {
        let shared = &*self.shared;
        let newest = shared.locked.lock().newest;
        let state = shared.write_all(shared.locked.lock());
        match state.is_durable(newest) {
            true => Ok(()),
            false => Err(Failure::Log),
        }
    }

    /// Reads a file. How many bytes there were.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn read(&self, (inode, offset): (u64, u64), bytes: &mut [u8]) -> Result<usize, Failure> {
        let found = self.find((inode, offset, bytes.len()), |_| Ok(()))?;
        self.read_found(found, bytes)
    }

    /// Finds out where bytes of a file are, if the call `may` read it. No block is used anew until they are [read](Self::read_found).
    ///
    /// # Errors
    /// [`Failure`].
    pub fn find(
        &self,
        (inode, offset, length): (u64, u64, usize),
        may: impl FnOnce(&mut Turn<'_>) -> Result<(), Failure>,
    ) -> Result<Found<'_>, Failure> {
        self.turn(|turn| {
            may(turn)?;
            let pieces = turn.read(|client, below| {
                let found = client.overlay().pieces(below, (inode, offset), length);
                found.map_err(ClientFailure::from)
            })?;
            turn.state.touches.read((inode, offset), &pieces);
            Ok(Found(pieces, self.shared.gate.enter()))
        })
    }

    /// Reads what was found. How many bytes there were.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn read_found(&self, Found(pieces, reading): Found<'_>, bytes: &mut [u8]) -> Result<usize, Failure> {
        let read = pieces.read(&self.shared.disks, bytes);
        drop(reading);
        match read.map_err(ClientFailure::from) {
            Ok(()) => Ok(pieces.bytes()),
            Err(ClientFailure::Posix(errno)) => Err(errno.into()),
            Err(_) => Err(Failure::Read),
        }
    }

    /// Brings all that is durable into the tree.
    pub fn digest(&self) {
        self.shared.digest_once();
    }

    /// Moves data between tiers, as far as the policy wants that now. Nothing if all devices are of one tier.
    pub fn migrate(&self) {
        self.shared.migrate_once();
    }

    /// What the engine has to tell.
    pub fn status(&self) -> Status {
        let keeper = self.shared.keeper();
        let devices = (0..keeper.tree.devices() as u8).map(|device| {
            let blocks = self.shared.volume.devices[usize::from(device)].blocks;
            (
                blocks * BLOCK_BYTES as u64,
                keeper.tree.free(device) * BLOCK_BYTES as u64,
            )
        });
        let devices = devices.collect();
        let counts = keeper.counts.clone();
        drop(keeper);
        let state = self.shared.locked.lock();
        Status {
            mode: self.mode(),
            devices,
            log_bytes: state.ring_bytes,
            log_used_bytes: state.used(),
            frames: state.newest.0,
            digest: counts,
            migration: self
                .shared
                .migrator
                .is_some()
                .then(|| self.shared.migration().clone()),
            failure: state.failure.clone(),
        }
    }

    /// Ends: writes what there is, digests it, and leaves a log that has nothing.
    ///
    /// # Errors
    /// Something failed before, or now.
    pub fn close(&self) -> Result<(), Failure> {
        self.close_logs();
        let synced = self.sync();
        self.stop();
        if synced.is_ok() {
            // The second commit gives both roots all that the log has.
            self.shared.digest_once();
            self.shared.digest_once();
        }
        let state = self.shared.locked.lock();
        match &state.failure {
            Some(failure) => Err(failure.clone()),
            None => synced,
        }
    }

    /// Closes the logs of all processes, and waits until they are in the tree.
    fn close_logs(&self) {
        let shared = &*self.shared;
        if !shared.locked.lock().close_logs(&shared.disks) {
            return;
        }
        loop {
            shared.digest_once();
            let state = shared.locked.lock();
            if state.sharing.count() == 0 || state.failure.is_some() {
                return;
            }
        }
    }

    fn stop(&self) {
        self.shared.locked.lock().is_stopping = true;
        self.shared.locked.records.notify_all();
        self.shared.locked.digest.notify_all();
        self.shared.locked.tiers.notify_all();
        self.shared.locked.leases.notify_all();
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // A panic was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl Drop for Engine {
    /// As after a kill: what was acknowledged is in the log.
    fn drop(&mut self) {
        self.stop();
    }
}

/// Where bytes of a file are, that are to be read.
pub struct Found<'e>(fs::pieces::Pieces, os::sync::RwLockReadGuard<'e, ()>);

/// What an engine has to tell.
#[derive(Clone, Debug)]
pub struct Status {
    /// When calls return.
    pub mode: Mode,
    /// Bytes of each device, and free ones.
    pub devices: Vec<(u64, u64)>,
    /// Bytes of the log.
    pub log_bytes: u64,
    /// Bytes of it that cannot be written now.
    pub log_used_bytes: u64,
    /// Frames of the log.
    pub frames: u64,
    /// What digests have done.
    pub digest: Counts,
    /// What has moved between tiers; none if all devices are of one.
    pub migration: Option<Migration>,
    /// Why nothing changes any more.
    pub failure: Option<Failure>,
}

/// Makes a file system.
///
/// # Errors
/// A device is too small, or failed.
pub fn make(disks: &Disks, make: &fs::make::Make) -> Result<Volume, fs::media::Error> {
    make.make(&mut disks.clone())
}

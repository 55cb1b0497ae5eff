//! Processes that share the engine's files: they come, say something, and go.

use super::digester::Keeper;
use super::hearing::{Content, Joining, Reading};
use super::held::{Cache, Own, Pins, Resume, Wants};
use super::logs::NUMBERS_OWN;
use super::recover::{LOG_BYTES_MIN, OpenError};
use super::room::budget_of;
use super::shared::Shared;
use super::sharing::{Link, Peer};
use super::state::{LOOK_AGAIN, Locked};
use super::{Engine, Mode};
use crate::media::Disks;
use fs::digest::DigestError;
use fs::errno::Errno;
use fs::lease::{Client, Input};
use fs::protocol::{Answer, Closed, Request, Welcome};
use os::sync::Arc;
use std::time::Duration;
use thiserror::Error as ErrorOf;

/// Commits after which what a process reads is read with the lock, so that it comes to an end.
const READS_MAX: usize = 4;
/// Bytes of a process's log, at most, if nothing is said.
const LOG_BYTES_MAX: u64 = 16 << 20;
/// Parts of device 0 that a process's log is, if nothing is said.
const LOG_PARTS: u64 = 64;

/// Why files are not shared with processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ErrorOf)]
pub enum ShareError {
    /// Device 0 cannot have windows.
    #[error("processes have logs of their own only if the first device is mem: or nvm: on a file")]
    NoWindows,
    /// Calls are not durable when they return.
    #[error("processes have logs of their own only in mode sync")]
    Ordered,
}

impl Engine {
    /// From now on so many processes may have logs of their own. The engine's own client may be used beside them only after [`Self::share_own`].
    ///
    /// # Errors
    /// [`ShareError`].
    pub fn share(&self, processes: u64, log_bytes: Option<u64>) -> Result<(), ShareError> {
        if *self.shared.disks.beside() == crate::window::Beside::Nowhere {
            return Err(ShareError::NoWindows);
        }
        if self.mode() != Mode::Sync {
            return Err(ShareError::Ordered);
        }
        let mut keeper = self.shared.keeper();
        let first = fs::media::Media::capacity_bytes(&self.shared.disks, 0);
        let default = (first / LOG_PARTS).min(LOG_BYTES_MAX);
        keeper.log_bytes = log_bytes.unwrap_or(default).max(LOG_BYTES_MIN);
        keeper.next_numbers = keeper.tree.next_inode().saturating_add(NUMBERS_OWN);
        self.shared.locked.lock().sharing.slots = processes;
        drop(keeper);
        self.spawn("fs-leases", Shared::give_in_turn);
        Ok(())
    }

    /// The engine's own client is one of those that share files: calls ask for leases ([`Turn::may`](super::Turn::may)), and `cache` gives up what
    /// others ask for. It is called after [`Self::share`], and before the first process comes.
    pub fn share_own(&self, cache: Arc<dyn Cache>) {
        let keeper = self.shared.keeper();
        let client = Client(keeper.log.0);
        let mut state = self.shared.locked.lock();
        state.client.limit_inodes(keeper.next_numbers);
        state.sharing.own = Some(Own::new(client, cache));
    }

    /// Goes on with a call when it may use what it wants.
    pub fn wait_for_leases(&self, wants: Wants, resume: Resume) {
        let shared = &*self.shared;
        let mut state = shared.locked.lock();
        state.wait_for_leases(&shared.disks, wants, resume);
        shared.woken(state.sharing.wants_round);
    }

    /// A call has ended that had leases for its time.
    pub fn unpin(&self, pins: &Pins) {
        if pins.is_empty() {
            return;
        }
        let shared = &*self.shared;
        let mut state = shared.locked.lock();
        state.unpin(&shared.disks, pins);
        shared.woken(state.sharing.wants_round);
    }

    /// The cache of the own client's caller has dropped what it had of an inode: the numbers are those of [`Cache::let_go`].
    pub fn dropped(&self, inode: u64, number: u64) {
        let shared = &*self.shared;
        let mut state = shared.locked.lock();
        while !state.is_durable(state.newest) && !state.writer.is_latched() {
            state = shared.write_all(state);
        }
        match state.writer.is_latched() {
            true => state.abandon_logs(),
            false => state.dropped(&shared.disks, inode, number),
        }
        shared.woken(state.sharing.wants_round);
    }

    /// Calls of the own client that wait for leases.
    pub fn waiting(&self) -> usize {
        let state = self.shared.locked.lock();
        state.sharing.own.as_ref().map_or(0, Own::waiting)
    }

    /// Drops all calls that wait for leases.
    pub fn drop_waiting(&self) {
        self.shared.locked.lock().drop_waiting();
    }

    /// A process gets a log, and the answer with its window. `link` has that answer to send first.
    ///
    /// # Errors
    /// There is no room for it.
    pub fn join(
        &self,
        peer: Peer,
        welcome: impl FnOnce(&[u8], &std::fs::File) -> Arc<dyn Link>,
    ) -> Result<u64, Closed> {
        let shared = &*self.shared;
        let mut keeper = shared.keeper();
        let joined = shared.join(&mut keeper, peer, welcome);
        let mut state = shared.locked.lock();
        if state.sharing.count() == 0 {
            state.end_sharing();
        }
        joined
    }

    /// What a process says.
    pub fn hear(&self, log: u64, request: Request) {
        let shared = &*self.shared;
        let mut state = shared.locked.lock();
        let reading = state.hear(&shared.disks, log, request);
        let wants_digest = state.sharing.wants_round;
        drop(state);
        if let Some(reading) = reading {
            shared.read_for(log, &reading);
        }
        shared.woken(wants_digest);
    }

    /// Whether a process may open an inode for what `mask` says ([`READ`](fs::client::access::READ), [`WRITE`](fs::client::access::WRITE)).
    ///
    /// # Errors
    /// It has not come to it, or may not.
    pub fn may_open(&self, log: u64, inode: u64, mask: u32) -> Result<(), Errno> {
        self.shared.locked.lock().may_open(log, inode, mask)
    }

    /// A process is gone.
    pub fn gone(&self, log: u64) {
        let shared = &*self.shared;
        shared.locked.lock().news(&shared.disks, Input::Gone(Client(log)));
        shared.woken(true);
    }

    /// Processes that have logs.
    pub fn processes(&self) -> usize {
        self.shared.locked.lock().sharing.count()
    }
}

impl Shared {
    fn join(
        &self,
        keeper: &mut Keeper,
        peer: Peer,
        welcome: impl FnOnce(&[u8], &std::fs::File) -> Arc<dyn Link>,
    ) -> Result<u64, Closed> {
        self.locked.lock().may_join()?;
        // The digest has all that others have promised, and the log takes no more than a process may.
        let round = self.digest_logs(keeper).and_then(|mut round| {
            // Whoever waits for this round may wait for the own log.
            let end = self.locked.lock().writer.durable_position();
            keeper.digest(&self.locked, end)?;
            self.delete_idle(keeper, &mut round)?;
            self.end_round(keeper, &round)?;
            self.begin_sharing(keeper)
        });
        round.map_err(|error| self.failed(&error))?;
        let growth = keeper.shares().part(&self.locked.lock()).growth;
        let bytes = keeper.log_bytes;
        if bytes / fs::format::BLOCK_BYTES as u64 > growth {
            return Err(Closed::Full);
        }
        let log = keeper.make_log(&self.locked, &peer, bytes);
        let log = log.map_err(|error| match error {
            OpenError::NoRoom(_) => Closed::Full,
            _ => Closed::Unable,
        })?;
        let made = &keeper.logs[&log];
        let timing = self.disks.timing();
        let answer = Answer::Welcome(Welcome {
            mark: self.volume.mark,
            log,
            nonce: made.nonce,
            ring_bytes: made.ring_bytes(),
            sector: self.disks.log_sector(),
            numbers: made.numbers.clone(),
            latency_ns: timing.map_or(0, |timing| timing.latency_ns),
            bandwidth: timing.map_or(0, |timing| timing.bandwidth),
        });
        let joining = Joining {
            log,
            peer,
            link: welcome(&answer.emit(), made.window.file()),
            window: made.window.clone(),
            ring_bytes: made.ring_bytes(),
            numbers: made.numbers.clone(),
        };
        let budget = budget_of(made.part, keeper.budget());
        self.locked.lock().join(&self.disks, joining, budget);
        Ok(log)
    }

    /// The first process comes: the own client is one of several from now on. What it has promised of the whole room is in the tree then.
    fn begin_sharing(&self, keeper: &mut Keeper) -> Result<(), DigestError> {
        let mut state = self.locked.lock();
        let Some(cache) = state.sharing.own.as_ref().map(|own| Arc::clone(&own.cache)) else {
            return Ok(());
        };
        if state.is_shared() {
            return Ok(());
        }
        state.begin_sharing(keeper.next_numbers.max(keeper.tree.next_inode()));
        keeper.tell_room(&mut state);
        let state = self.write_all(state);
        let end = state.writer.durable_position();
        drop(state);
        cache.forget_names();
        keeper.digest(&self.locked, end)
    }

    /// The thread that asks for leases in time.
    fn give_in_turn(&self) {
        let mut state = self.locked.lock();
        while !state.is_stopping {
            let now = os::now();
            let due = state.sharing.deadline();
            if due.is_some_and(|due| due <= now) {
                state.tick(&self.disks);
                if state.sharing.wants_round {
                    self.locked.digest.notify_one();
                }
                continue;
            }
            let wait = due.map(|due| Duration::from_nanos(due.as_nanos() - now.as_nanos()));
            let wait = wait.unwrap_or(LOOK_AGAIN).min(LOOK_AGAIN);
            state = Locked::sleep(&self.locked.leases, state, wait);
        }
    }

    fn woken(&self, wants_digest: bool) {
        self.locked.leases.notify_one();
        if wants_digest {
            self.locked.digest.notify_one();
        }
    }

    fn failed(&self, error: &DigestError) -> Closed {
        self.fail_digest(error);
        Closed::Unable
    }

    /// Reads blocks for a process. They are sent as of the newest root: what was read of an older one is read again.
    fn read_for(&self, log: u64, reading: &Reading) {
        for tries in 0.. {
            let mut state = self.locked.lock();
            let found = state.find_blocks(&self.disks, log, reading);
            let commits = state.commits;
            let content = match found {
                Ok(Content::Pieces(pieces, length)) => (pieces, length),
                Ok(Content::Whole(data)) => return state.tell_blocks(log, reading.request, Ok(data)),
                Err(errno) => return state.tell_blocks(log, reading.request, Err(errno)),
            };
            if tries == READS_MAX {
                let data = read_all(&self.disks, &content);
                return state.tell_blocks(log, reading.request, data);
            }
            let gate = self.gate.enter();
            drop(state);
            let data = read_all(&self.disks, &content);
            drop(gate);
            let mut state = self.locked.lock();
            if state.commits == commits {
                return state.tell_blocks(log, reading.request, data);
            }
        }
    }
}

fn read_all(disks: &Disks, (pieces, length): &(fs::pieces::Pieces, usize)) -> Result<Vec<u8>, Errno> {
    let mut data = vec![0; *length];
    pieces.read(disks, &mut data).map_err(|_| Errno::Io)?;
    Ok(data)
}

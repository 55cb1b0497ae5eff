//! Processes that share the engine's files: they come, say something, and go.

use super::hearing::{Content, Joining, Reading};
use super::logs::NUMBERS_OWN;
use super::recover::{LOG_BYTES_MIN, OpenError};
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
    /// From now on so many processes may have logs of their own. The engine's own client may not be used any more.
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
        shared.locked.lock().may_join()?;
        // The digest has all that others have promised, and the log takes no more than a process may.
        let round = shared.digest_logs(&mut keeper).and_then(|round| {
            keeper.commit(&shared.locked)?;
            shared.end_round(&mut keeper, &round)
        });
        round.map_err(|error| shared.failed(&error))?;
        let budget = keeper.budget();
        let growth = shared.locked.lock().sharing.share(budget).growth;
        let bytes = keeper.log_bytes;
        if bytes / fs::format::BLOCK_BYTES as u64 > growth {
            return Err(Closed::Full);
        }
        let log = keeper.make_log(&shared.locked, &peer, bytes);
        let log = log.map_err(|error| match error {
            OpenError::NoRoom(_) => Closed::Full,
            _ => Closed::Unable,
        })?;
        let made = &keeper.logs[&log];
        let timing = shared.disks.timing();
        let answer = Answer::Welcome(Welcome {
            mark: shared.volume.mark,
            log,
            nonce: made.nonce,
            ring_bytes: made.ring_bytes(),
            sector: shared.disks.log_sector(),
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
        let budget = keeper.budget();
        shared.locked.lock().join(&shared.disks, joining, budget);
        Ok(log)
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

//! The digest's thread.

use super::due::IDLE;
use super::shared::Shared;
use super::state::{LOOK_AGAIN, Locked};
use fs::digest::DigestError;
use fs::log::Ticket;
use std::time::Duration;

impl Shared {
    /// The digest's thread.
    pub(super) fn digest_in_turn(&self) {
        let mut quiet = (Ticket(0), Duration::ZERO);
        loop {
            let mut state = self.locked.lock();
            while !state.wants_digest() && !state.is_stopping && state.blocks_wanted == 0 {
                let newest = state.newest;
                state = Locked::sleep(&self.locked.digest, state, LOOK_AGAIN);
                quiet = match quiet.0 == newest {
                    true => (newest, quiet.1 + LOOK_AGAIN),
                    false => (newest, Duration::ZERO),
                };
                if quiet.1 >= IDLE && !state.client.overlay().is_empty() {
                    state.digest_wanted = true;
                    quiet.1 = Duration::ZERO;
                }
                state.sharing.look(LOOK_AGAIN);
            }
            if state.is_stopping {
                return;
            }
            let wants = state.wants_digest();
            drop(state);
            if wants {
                self.digest_once();
            } else {
                self.keeper().grant_if_wanted(&self.locked);
            }
        }
    }

    /// Digests what is durable now.
    pub(super) fn digest_once(&self) {
        let mut state = self.locked.lock();
        let is_stalled = state.stalled > 0;
        if is_stalled {
            // The calls that wait need the room of all others.
            state = self.write_all(state);
        }
        (state.stalled, state.digest_wanted) = (0, false);
        drop(state);
        let mut keeper = self.keeper();
        let round = self.digest_logs(&mut keeper);
        let mut result = round.and_then(|mut round| {
            let end = self.locked.lock().writer.durable_position();
            keeper.digest(&self.locked, end)?;
            self.delete_idle(&mut keeper, &mut round)?;
            self.end_round(&mut keeper, &round)
        });
        if is_stalled && result.is_ok() {
            // What the first commit has freed may be used after the second one.
            let freed = keeper.commit(&self.locked);
            let freed = freed.and_then(|()| keeper.take_back_blocks(&self.locked));
            result = freed.map_err(DigestError::from);
            self.locked.lock().relieved += 1;
            self.locked.room.notify_all();
        }
        drop(keeper);
        if let Err(error) = result {
            self.fail_digest(&error);
        }
    }
}

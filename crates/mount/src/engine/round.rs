//! A round of digests: the logs of all processes, and what ends with it.

use super::digester::Keeper;
use super::failure::Failure;
use super::shared::Shared;
use super::sharing::Round;
use fs::digest::DigestError;
use fs::lease::{Client, Input};

impl Shared {
    /// Digests what all processes have logged. What a root lacks then goes with the next commit.
    pub(super) fn digest_logs(&self, keeper: &mut Keeper) -> Result<Round, DigestError> {
        let round = self.locked.lock().sharing.round();
        for (log, end, heard) in &round.logs {
            match keeper.digest_log(&self.locked, *log, *end)? {
                true => keeper.heard(*log, *heard),
                false => {
                    let mut state = self.locked.lock();
                    state.news(&self.disks, Input::Short(Client(*log)));
                }
            }
        }
        for (log, end) in &round.closing {
            keeper.digest_log(&self.locked, *log, *end)?;
            keeper.drop_log(*log)?;
        }
        Ok(round)
    }

    /// Deletes what nobody has open any more. All logs that say so are digested.
    pub(super) fn delete_idle(&self, keeper: &mut Keeper, round: &mut Round) -> Result<(), DigestError> {
        let mut idle = std::mem::take(&mut round.idle).into_iter();
        for inode in idle.by_ref() {
            round.wants_one = true;
            if !keeper.delete_idle(&self.locked, inode)? {
                // Processes have reserved the room that it takes: later.
                self.locked.lock().sharing.idle.extend(idle.chain([inode]));
                return Ok(());
            }
        }
        Ok(())
    }

    /// A root has what a round has done: the other one is to have it, if somebody waits.
    pub(super) fn end_round(&self, keeper: &mut Keeper, round: &Round) -> Result<(), DigestError> {
        if round.wants_both || round.wants_one {
            keeper.commit(&self.locked)?;
        }
        for (log, _) in &round.closing {
            self.disks.beside().remove(*log);
            self.locked.lock().forget_log(&self.disks, *log);
        }
        Ok(())
    }

    /// A digest has failed.
    pub(super) fn fail_digest(&self, error: &DigestError) {
        let mut state = self.locked.lock();
        state.failure.get_or_insert(Failure::Digest);
        state.abandon_logs();
        drop(state);
        self.locked.room.notify_all();
        (self.options.tell)(&format!("the digest failed, and files can be read only: {error}"));
    }
}

//! The digest: what the log has goes into the tree, and the log gets its room back.

use super::gate::Gate;
use super::log::Log;
use super::placing::Placing;
use super::recover::{Leasing, digest_frames, read_frames};
use super::room::{Shares, budget_of, reserve};
use super::state::{Locked, State};
use crate::media::{Disks, First};
use fs::client::Budget;
use fs::digest::DigestError;
use fs::grants::{Grants, Reason};
use fs::log::{Frame, Reader, Ring, Ticket};
use fs::media::Error;
use fs::tree::Tree;
use os::sync::Arc;
use std::collections::BTreeMap;

/// Blocks that the client has for large data, at most. It gets more when half of them are gone.
pub(crate) const BLOCKS_KEPT: u64 = 8192;
/// Parts of a device's free blocks that are kept so, at most.
const KEPT_PARTS: u64 = 16;
/// Pieces in which blocks are granted at once, at most.
const PIECES_MAX: usize = 64;

/// The tree that changes, and what the log has given it.
pub(crate) struct Keeper {
    pub tree: Tree,
    pub grants: Grants,
    pub ring: Ring,
    /// The log's number and nonce.
    pub log: (u64, u64),
    /// The tree has positions below, and frames up to this one.
    pub digested: u64,
    pub frame: Ticket,
    /// What each of the two roots has, the older one first.
    pub roots: [u64; 2],
    pub disks: Disks,
    pub gate: Arc<Gate>,
    pub placing: Placing,
    pub counts: Counts,
    /// The logs of other processes.
    pub logs: BTreeMap<u64, Log>,
    /// Bytes of a new one.
    pub log_bytes: u64,
    /// The numbers of its new inodes begin here.
    pub next_numbers: u64,
}

/// What digests have done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Roots that were written.
    pub commits: u64,
    /// Operations that the log had.
    pub read: u64,
    /// Operations that went into the tree.
    pub applied: u64,
    /// Operations that the tree refused: there are none, unless there is a defect.
    pub refused: u64,
    /// Why the first of them was refused.
    pub first_refused: Option<(u64, Reason)>,
    /// Operations in logs of other processes that were refused: these lie.
    pub refused_of_others: u64,
}

impl Keeper {
    /// Digests all frames up to a position.
    pub fn digest(&mut self, locked: &Locked, end: u64) -> Result<(), DigestError> {
        while self.digested < end {
            let medium = First(self.disks.clone());
            let ring = self.ring.clone();
            let mut reader = Reader::new(&ring, &medium, self.digested).expect("it is the end of a frame");
            let (frames, rest) = read_frames(&mut reader, end).map_err(failed)?;
            if rest.is_some() {
                // It was durable.
                return Err(failed(base::MediaError::Io));
            }
            self.digest_all(locked, &frames)?;
            self.grant_if_wanted(locked);
        }
        self.commit(locked)?;
        if self.placing.is_first_fast() {
            // Little is promised now: more of the fastest device can be granted than later.
            let mut state = locked.lock();
            self.grant_blocks(&mut state);
        }
        Ok(())
    }

    pub fn grant_if_wanted(&mut self, locked: &Locked) {
        let mut state = locked.lock();
        if state.blocks_wanted > 0 {
            self.grant_blocks(&mut state);
            locked.room.notify_all();
        }
    }

    fn digest_all(&mut self, locked: &Locked, frames: &[Frame]) -> Result<(), DigestError> {
        let mut rest = frames;
        let mut tries = 0;
        while !rest.is_empty() {
            let counts = &mut self.counts;
            let tell = |report: &fs::digest::Report| {
                counts.read += report.read as u64;
                counts.applied += report.applied as u64;
                counts.refused += report.refused.len() as u64;
                let first = report.refused.first().map(|first| (first.inode, first.reason));
                counts.first_refused = counts.first_refused.or(first);
            };
            self.gate.pass();
            locked.lock().sharing.refresh_own(&mut self.grants);
            let placing = &mut self.placing;
            let order = |tree: &Tree, frames: &[Frame]| placing.order(tree, frames);
            let parts = (&mut self.tree, &mut self.disks);
            let done = digest_frames(
                parts,
                self.log,
                &mut self.digested,
                (rest, &mut self.grants, Leasing::All),
                (order, tell),
            )?;
            self.frame.0 += done as u64;
            rest = &rest[done..];
            if rest.is_empty() {
                break;
            }
            // What was deleted can be used two commits later.
            tries = if done == 0 { tries + 1 } else { 0 };
            if tries > 2 {
                return Err(Error::Full(0).into());
            }
            self.commit(locked)?;
        }
        Ok(())
    }

    /// The room of the tree.
    pub fn budget(&self) -> Budget {
        self.placing.budget(&self.tree)
    }

    pub fn shares(&self) -> Shares<'_> {
        Shares {
            tree: &self.tree,
            placing: &self.placing,
            logs: &self.logs,
        }
    }

    /// Tells the client what room there is.
    pub fn tell_room(&mut self, state: &mut State) {
        let budget = match self.logs.is_empty() && !state.is_shared() {
            true => self.budget(),
            false => budget_of(self.shares().part(state), self.budget()),
        };
        self.placing.divide(&self.tree, budget, &mut state.client);
        state.free = (0..self.tree.devices() as u8)
            .map(|device| self.tree.free(device))
            .collect();
    }

    /// Grants blocks for large data, as far as nothing was promised of them.
    pub fn grant_blocks(&mut self, state: &mut State) {
        // A digest may have taken back what a reader has begun to read.
        self.gate.pass();
        let wanted = std::mem::take(&mut state.blocks_wanted);
        let mut near = None;
        for (device, limit) in self
            .placing
            .for_grants(&self.tree, state.client.blocks_unpromised().0)
        {
            let (mut limit, mut kept) = (limit, 0);
            for _ in 0..PIECES_MAX {
                let left = state.client.blocks_left();
                kept = BLOCKS_KEPT.min(self.tree.free(device) / KEPT_PARTS).max(wanted);
                let (first, others) = state.client.blocks_unpromised();
                let unpromised = if device == 0 { first } else { others };
                let count = kept.saturating_sub(left).min(unpromised).min(limit);
                if count == 0 {
                    break;
                }
                let Ok(run) = self.tree.reserve(&self.disks, device, count, near) else {
                    break;
                };
                self.tell_room(state);
                near = Some(run.end());
                limit -= run.blocks;
                self.grants.grant(run);
                state.client.grant_blocks(run);
            }
            // Slower devices get data when this one has none left for them.
            if kept > 0 && state.client.blocks_left() >= kept {
                break;
            }
        }
        state.are_blocks_denied = state.client.blocks_left() < wanted;
    }

    /// Takes back what the client has for large data: calls found no room.
    pub fn take_back_blocks(&mut self, locked: &Locked) -> Result<(), Error> {
        let mut state = locked.lock();
        for run in state.client.return_blocks() {
            if self.grants.take(run) {
                self.tree.give_back(&self.disks, run)?;
            }
        }
        self.tell_room(&mut state);
        drop(state);
        locked.room.notify_all();
        Ok(())
    }

    /// Makes the changes of the tree durable, and lets readers and the log's writer know.
    pub fn commit(&mut self, locked: &Locked) -> Result<(), Error> {
        if !self.logs.is_empty() {
            let part = self.shares().part(&locked.lock());
            let key = self.budget().key;
            reserve((&mut self.tree, &self.disks), &mut self.logs, (part, key))?;
        }
        let plan = self.tree.plan(&self.disks)?;
        if let Err(error) = plan.carry_out(&mut self.disks) {
            self.tree.fail();
            let place = fs::format::Place::new(0, 2);
            return Err(Error::Media { place, error });
        }
        // What is let go now was read as of the root before the last one.
        self.gate.pass();
        self.tree.finish();
        self.counts.commits += 1;
        let consumed = self.roots[1];
        self.roots = [consumed, self.digested];
        let budget = self.budget();
        let logs = self.logs.iter_mut().map(|(number, log)| {
            log.roots = [log.roots[1], log.digested];
            let refused = std::mem::take(&mut log.refused);
            (*number, log.roots, refused, budget_of(log.part, budget))
        });
        let logs: Vec<_> = logs.collect();
        let mut state = locked.lock();
        state.commits += 1;
        state.reader.follow(&plan);
        state.client.digested(self.frame);
        state.writer.consumed(consumed);
        state.are_blocks_denied = false;
        self.tell_room(&mut state);
        if !logs.is_empty() || state.is_shared() {
            state.committed(&self.disks, (self.roots[0], &logs));
        }
        drop(state);
        locked.room.notify_all();
        locked.leases.notify_one();
        Ok(())
    }
}

fn failed(error: base::MediaError) -> DigestError {
    let place = fs::format::Place::new(0, 0);
    Error::Media { place, error }.into()
}

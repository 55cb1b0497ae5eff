//! Data move between tiers, by a thread of its own: `fs::tier` decides, `fs::migrate` moves, this drives both.
//!
//! A move takes the keeper twice, for a short time: to reserve blocks, and to change the tree and commit. It copies without any lock. So
//! calls go on, and digests do, too. The lock of the state is taken to swap what was noted, and to withhold room.
//!
//! # Room
//! What a move takes was promised to nobody: while the keeper is held, the room is withheld from the budget of calls
//! ([`Placing`](super::placing::Placing)), and then reserved. Of what is left on device 0 a move takes a half at most, for the tree.

use super::digester::Keeper;
use super::failure::Failure;
use super::shared::Shared;
use super::state::Locked;
use super::tiering::{ALL, Migrator, Round, tier_name};
use fs::format::{BLOCK_BYTES, Key, Kind, Tier};
use fs::media::Error;
use fs::migrate::{Damaged, Move, Moved, Target};
use fs::tier::{Batch, Options, Order};
use os::sync::{MutexGuard, PoisonError};
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Units get colder after so many looks, also if no tier is too full.
const LOOKS_OF_ROUND: u32 = 60;
/// Blocks of one move, which is one commit: 64 MiB. What a stop of the engine waits for.
const MOVE_BLOCKS: u64 = 1 << 14;
/// Damaged units that are remembered, so that they are told once. Others are tried and told again.
const DAMAGED_MAX: usize = 4096;

impl Shared {
    /// The thread that moves data.
    pub(super) fn migrate_in_turn(&self) {
        let Some(every) = self.options.migrates_every else {
            return;
        };
        loop {
            let state = self.locked.lock();
            if state.is_stopping {
                return;
            }
            let state = Locked::sleep(&self.locked.tiers, state, every);
            let is_over = state.is_stopping;
            let may_move = state.failure.is_none();
            drop(state);
            if is_over {
                return;
            }
            // No data move while programs have logs ([`plan`](Self::plan)): then nothing is looked at, either.
            if may_move && self.keeper().logs.is_empty() {
                self.migrate_once();
            }
        }
    }

    /// Looks at what was touched, and moves what the policy wants moved.
    pub(super) fn migrate_once(&self) {
        let Some(migrator) = &self.migrator else {
            return;
        };
        let mut migrator = migrator.lock().unwrap_or_else(PoisonError::into_inner);
        let migrator = &mut *migrator;
        let mut state = self.locked.lock();
        let (pinned, newest) = (state.touches.take(&mut migrator.notes), state.newest);
        drop(state);
        migrator.see_touches(pinned, newest);
        if self.migration().is_stopped {
            return;
        }
        let before = self.migration().moves;
        if let Err(error) = self.migrate(migrator) {
            self.cannot_migrate(error);
            return;
        }
        let has_moved = self.migration().moves > before;
        let mut keeper = self.keeper();
        // What has moved away is free after a second root without it.
        let done = if has_moved {
            keeper.commit(&self.locked)
        } else {
            Ok(())
        };
        let tiers = migrator.see_usage(&keeper.tree);
        drop(keeper);
        self.migration().tiers = tiers;
        if let Err(error) = done {
            self.cannot_migrate(error);
        }
    }

    fn cannot_migrate(&self, error: Error) {
        // Unless a change was begun, all is as it was: files go on, and their data stay.
        if self.keeper().tree.refuses().is_none() {
            self.migration().is_stopped = true;
            self.forget_withheld();
            (self.options.tell)(&format!(
                "data do not move between tiers until the next mount: {error}"
            ));
            return;
        }
        let mut state = self.locked.lock();
        let is_first = state.failure.is_none();
        state.failure.get_or_insert(Failure::Digest);
        drop(state);
        self.locked.room.notify_all();
        if is_first {
            (self.options.tell)(&format!(
                "data could not be moved between tiers, and files can be read only: {error}"
            ));
        }
    }

    fn is_stopping(&self) -> bool {
        self.locked.lock().is_stopping
    }

    fn migrate(&self, migrator: &mut Migrator) -> Result<(), Error> {
        let tiers = migrator.see_usage(&self.keeper().tree);
        self.migration().tiers = tiers;
        self.pin(migrator)?;
        self.move_all(migrator, true)?;
        migrator.looks += 1;
        // Each round takes what the one before has left: warmer units.
        while (!migrator.has_looked || migrator.policy.wants_round()) && !self.is_stopping() {
            let before = self.migration().moves;
            let batches = self.round(migrator)?;
            (migrator.has_looked, migrator.looks) = (true, 0);
            let tiers = migrator.see_usage(&self.keeper().tree);
            self.migration().tiers = tiers;
            // What is ordered and cannot be moved now may be moved after more commits.
            if batches > 0 && self.migration().moves == before {
                break;
            }
        }
        if migrator.looks >= LOOKS_OF_ROUND {
            migrator.looks = 0;
            migrator.policy.end_of_round();
        }
        Ok(())
    }

    /// Looks at the pinned files whose data may be elsewhere, as soon as the tree has these.
    fn pin(&self, migrator: &mut Migrator) -> Result<(), Error> {
        let digested = self.keeper().frame;
        let ready = migrator.to_pin.iter().filter(|(_, frame)| **frame <= digested);
        let ready: Vec<u64> = ready.map(|(inode, _)| *inode).collect();
        for inode in ready {
            migrator.to_pin.remove(&inode);
            let mut round = Round {
                next: Some(Key::new(inode, Kind::Inode, 0)),
                pin: (inode, None),
                found: None,
                pins: BTreeMap::new(),
            };
            while round.next.is_some_and(|key| key.inode == inode) && !self.is_stopping() {
                migrator.step(&mut self.keeper(), &mut round)?;
            }
        }
        Ok(())
    }

    /// Shows the policy all files, and moves what it orders.
    /// How many batches it was.
    fn round(&self, migrator: &mut Migrator) -> Result<u64, Error> {
        let mut round = Round {
            next: Some(Key::new(1, Kind::Inode, 0)),
            pin: (0, None),
            found: None,
            pins: BTreeMap::new(),
        };
        let mut batches = 0;
        while round.next.is_some() {
            if self.is_stopping() {
                return Ok(batches);
            }
            migrator.step(&mut self.keeper(), &mut round)?;
            batches += self.move_all(migrator, false)?;
        }
        // What was pinned meanwhile has been noted, and comes with the next look.
        let unseen = migrator
            .pins
            .iter()
            .filter(|(inode, _)| migrator.to_pin.contains_key(inode));
        round.pins.extend(unseen);
        migrator.pins = round.pins;
        batches += self.move_all(migrator, true)?;
        migrator.policy.end_of_round();
        Ok(batches)
    }

    /// Moves all that is ordered. What is less than a unit waits for more, unless this is the last.
    fn move_all(&self, migrator: &mut Migrator, is_last: bool) -> Result<u64, Error> {
        let mut batches = 0;
        while let Some(batch) = migrator.policy.next_batch(is_last) {
            self.migration().waiting_blocks += batch.blocks();
            let done = self.move_batch(migrator, &batch);
            self.migration().waiting_blocks -= batch.blocks();
            migrator.policy.done(&batch);
            let tiers = migrator.see_usage(&self.keeper().tree);
            self.migration().tiers = tiers;
            done?;
            batches += 1;
        }
        Ok(batches)
    }

    fn move_batch(&self, migrator: &mut Migrator, batch: &Batch) -> Result<(), Error> {
        for from in ALL {
            let orders = batch.orders.iter().filter(|order| order.from == from);
            let mut rest: Vec<&Order> = orders.collect();
            while !rest.is_empty() {
                let mut blocks = 0;
                let fits = rest.iter().take_while(|order| {
                    blocks += order.count;
                    blocks <= MOVE_BLOCKS
                });
                let count = fits.count().max(1);
                let ranges: Vec<_> = rest
                    .drain(..count)
                    .map(|order| (order.inode, order.blocks.clone()))
                    .collect();
                if self.is_stopping() || migrator.failed == Some(batch.to) {
                    return Ok(());
                }
                self.move_some(migrator, (from, batch.to), &ranges)?;
            }
        }
        Ok(())
    }

    /// One move: reserve, copy, verify, change the tree, commit.
    fn move_some(
        &self,
        migrator: &mut Migrator,
        (from, to): (Tier, Tier),
        ranges: &[(u64, Range<u64>)],
    ) -> Result<(), Error> {
        let began = Instant::now();
        let devices = migrator.devices_of(from);
        let planned = {
            let mut keeper = self.keeper();
            let to = migrator
                .devices_of(to)
                .into_iter()
                .max_by_key(|device| keeper.tree.free(*device));
            let to = to.expect("an order is to a tier that there is");
            let planned = self.plan(&mut keeper, (&devices, ranges), to);
            keeper.tell_room(&mut self.locked.lock());
            planned?
        };
        let Some(mut planned) = planned else {
            self.forget_withheld();
            return Ok(());
        };
        let copied = planned.copy(&mut self.disks.clone());
        let mut keeper = self.keeper();
        if let Err(error) = copied {
            let given_up = planned.give_up(&mut keeper.tree, &self.disks);
            drop(keeper);
            self.forget_withheld();
            self.cannot_write(migrator, to, error);
            return given_up;
        }
        let mut disks = self.disks.clone();
        let moved = planned.finish(&mut keeper.tree, &mut disks)?;
        keeper.placing.withhold(0, 0);
        keeper.commit(&self.locked)?;
        drop(keeper);
        self.note(migrator, (from, to), (&moved, began.elapsed()));
        Ok(())
    }

    /// Withholds room, and reserves it. None if there is nothing to move, or no room.
    fn plan(
        &self,
        keeper: &mut MutexGuard<'_, Keeper>,
        (from, ranges): (&[u8], &[(u64, Range<u64>)]),
        device: u8,
    ) -> Result<Option<Move>, Error> {
        // Their shares of the room were told to them.
        if !keeper.logs.is_empty() {
            return Ok(None);
        }
        let mut state = self.locked.lock();
        let (first, others) = state.client.blocks_unpromised();
        let of_tree = first / 2;
        let of_data = if device == 0 { first / 4 } else { others };
        let taken_first = of_tree / if device == 0 { 2 } else { 1 };
        match device {
            0 => keeper.placing.withhold(taken_first + of_data, 0),
            _ => keeper.placing.withhold(taken_first, of_data),
        }
        let key = state.client.budget().key.max(1);
        keeper.tell_room(&mut state);
        drop(state);
        // A digest may have taken back what a reader has begun to read.
        keeper.gate.pass();
        let target = Target {
            device,
            run_blocks_min: match self.volume.devices[usize::from(device)].tier {
                Tier::Disk => Options::default().unit_blocks,
                Tier::Memory | Tier::Flash => 1,
            },
            blocks_max: of_data,
        };
        let keeper = &mut **keeper;
        let planned = Move::plan(&mut keeper.tree, &keeper.disks, (from, ranges), target)?;
        // What is reserved needs to be withheld no more.
        keeper.placing.withhold(taken_first, 0);
        let Some(mut planned) = planned else {
            return Ok(None);
        };
        planned.limit_keys(&mut keeper.tree, &keeper.disks, taken_first / key)?;
        Ok(Some(planned).filter(|planned| planned.blocks() > 0))
    }

    fn forget_withheld(&self) {
        let mut keeper = self.keeper();
        keeper.placing.withhold(0, 0);
        keeper.tell_room(&mut self.locked.lock());
    }

    /// The device does not take what is to go there: nothing more goes there.
    fn cannot_write(&self, migrator: &mut Migrator, to: Tier, error: Error) {
        migrator.failed = Some(to);
        self.migration().failed = Some(to);
        (self.options.tell)(&format!("no more data move to {}: {error}", tier_name(to)));
    }

    fn note(&self, migrator: &mut Migrator, (from, to): (Tier, Tier), (moved, time): (&Moved, Duration)) {
        let mut migration = self.migration();
        migration.moves += u64::from(moved.blocks > 0);
        migration.time += time;
        migration.dropped_blocks += moved.dropped;
        match to > from {
            true => migration.down_blocks += moved.blocks,
            false => migration.up_blocks += moved.blocks,
        }
        let mut told = Vec::new();
        for damaged in &moved.damaged {
            let unit = (damaged.inode, damaged.block / Options::default().unit_blocks);
            if migrator.damaged.len() >= DAMAGED_MAX || migrator.damaged.insert(unit) {
                migration.damaged_blocks += 1;
                told.push(*damaged);
            }
        }
        drop(migration);
        for Damaged { inode, block, place } in told {
            (self.options.tell)(&format!(
                "a damaged block stays on {}: block {block} of inode {inode}, at {place}, of {} bytes",
                tier_name(from),
                BLOCK_BYTES
            ));
        }
    }
}

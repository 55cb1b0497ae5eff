//! Machines of vSSDs with a history.
//!
//! The members of a channel group are recovered together. A block belongs to the member of its entries of the newest
//! generation if anything in the block is still of use, else to its home.

use crate::api::{RecoverError, RecoveryReport, VssdConfig};
use crate::blocks::State;
use crate::bus::Model;
use crate::geometry::Isolation;
use crate::group::ChannelGroup;
use crate::layout::{ENTRY_BYTES, Share};
use crate::mapping::NONE;
use crate::oob::{Decoded, Entry};
use crate::pages::Pages;
use crate::recover::{Of, Recovered, Scanned, load};
use crate::trim::Trims;
use crate::vssd::Vssd;
use base::{Device, Pool, VssdId};

/// The vSSDs of a group that was recovered, in the order of their configurations.
pub type Members = Vec<(Vssd, RecoveryReport)>;

impl Vssd {
    /// The machine of an entry with a history: the newest checkpoint, and what was programmed after it. Media operations
    /// may follow at once: poll.
    ///
    /// # Errors
    /// The medium fails, or metadata is damaged so that stale data might be returned.
    pub fn recover(
        config: VssdConfig,
        pool: Pool,
        medium: &dyn Device,
    ) -> Result<(Vssd, RecoveryReport), RecoverError> {
        let model = Model::own(&config);
        let share = config.share();
        let state = load(medium, &[of(&config, &share)]).pop().expect("of one vSSD")?;
        build(config, pool, medium, model, state, |_| Fate::Own)
    }

    /// As [`Vssd::recover`], for all software-isolated vSSDs of one channel group.
    ///
    /// # Errors
    /// The vSSD that cannot be recovered. The others cannot be without it, as it may have blocks of theirs.
    ///
    /// # Panics
    /// If there is none, or they are not of one group.
    pub fn recover_group(
        configs: Vec<VssdConfig>,
        pool: &Pool,
        medium: &dyn Device,
    ) -> Result<(ChannelGroup, Members), (VssdId, RecoverError)> {
        let of_one_group =
            |c: &VssdConfig| c.channels == configs[0].channels && c.isolation != Isolation::Hardware;
        assert!(
            configs.iter().all(of_one_group),
            "a group has one set of channels"
        );
        recover_group(configs, pool, medium)
    }
}

fn of<'a>(config: &VssdConfig, share: &'a Share) -> Of<'a> {
    Of {
        share,
        instance: config.instance,
        logical_pages: config.logical_pages,
    }
}

/// Whose a block of a group is.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// This vSSD's, as its own state says.
    Own,
    /// This vSSD's, free, erased so often.
    Free { erases: u32 },
    /// Another's, erased so often.
    Foreign { erases: u32 },
}

/// Reads the states of all members of a channel group, decides whose each block is, and makes the machines.
///
/// # Errors
/// Names the member that cannot be recovered; the others cannot be without it, as it may have their blocks.
fn recover_group(
    configs: Vec<VssdConfig>,
    pool: &Pool,
    medium: &dyn Device,
) -> Result<(ChannelGroup, Members), (VssdId, RecoverError)> {
    let group = ChannelGroup::new(&configs[0]);
    let shares: Vec<Share> = configs.iter().map(VssdConfig::share).collect();
    let all: Vec<Of<'_>> = configs
        .iter()
        .zip(&shares)
        .map(|(config, share)| of(config, share))
        .collect();
    let mut states = Vec::with_capacity(configs.len());
    for (config, state) in configs.iter().zip(load(medium, &all)) {
        states.push(state.map_err(|error| (config.id, error))?);
    }
    let owners = owners(&configs[0], &mut states).map_err(|error| (configs[0].id, error))?;
    let mut members = Vec::with_capacity(configs.len());
    for (member, (config, state)) in configs.into_iter().zip(states).enumerate() {
        let share = &shares[member];
        let is_home = |block: u32| {
            let row = block / share.blocks_per_unit() / share.channels();
            share.rows().contains(&row)
        };
        let fate = |block: u32| match owners[block as usize] {
            (Some(owner), _) if owner == member => Fate::Own,
            (None, erases) if is_home(block) => Fate::Free { erases },
            (_, erases) => Fate::Foreign { erases },
        };
        let id = config.id;
        let built = build(config, pool.clone(), medium, group.model(), state, fate);
        members.push(built.map_err(|error| (id, error))?);
    }
    Ok((group, members))
}

/// Per block of a group: the member for which it is still of use, if any, and its erase count.
fn owners(config: &VssdConfig, states: &mut [Recovered]) -> Result<Vec<(Option<usize>, u32)>, RecoverError> {
    let share = config.share();
    let per_block = share.pages_per_block();
    for state in states.iter_mut() {
        let data = state
            .pages
            .iter()
            .map(|mapped| mapped.ppn)
            .filter(|ppn| *ppn != NONE);
        for ppn in data.chain(state.records.iter().map(|record| record.ppn)) {
            state.blocks[(ppn / per_block) as usize].live += 1;
        }
    }
    let decide = |block: u32| {
        let scanned = || states.iter().map(|state| &state.blocks[block as usize]);
        let mut live = scanned().enumerate().filter(|(_, s)| s.live > 0);
        let owner = live.next();
        if live.next().is_some() {
            return Err(RecoverError::OwnedTwice {
                offset: share.oob_offset(block, 0),
            });
        }
        let of_use = |s: &Scanned| (s.replayed || s.referenced) && !s.theirs;
        let owner = owner.or_else(|| scanned().enumerate().find(|(_, s)| of_use(s)));
        if let Some((member, s)) = owner {
            return Ok((Some(member), s.generation));
        }
        let generation = scanned()
            .map(|s| s.generation)
            .max()
            .expect("a group has members");
        let erased_since = scanned().any(|s| s.filled > 0);
        Ok((None, generation + u32::from(erased_since)))
    };
    (0..share.blocks()).map(decide).collect()
}

/// Makes the machine of a state.
fn build(
    config: VssdConfig,
    pool: Pool,
    medium: &dyn Device,
    model: Model,
    state: Recovered,
    fate: impl Fn(u32) -> Fate,
) -> Result<(Vssd, RecoveryReport), RecoverError> {
    let mut pages = Pages::new(config, pool, model, state.last.max(state.durable) + 1);
    let fell_back = state.report.fell_back;
    let settled = state.last <= state.covered && !fell_back;
    let unsettled = (!settled).then_some(state.durable);
    pages.resume(state.salt, state.checkpoint_claimed, unsettled);
    for (lpn, mapped) in state.pages.iter().enumerate() {
        pages.mapping.set(lpn as u32, *mapped);
        if mapped.ppn != NONE {
            let block = pages.blocks.block_of(mapped.ppn);
            pages.blocks.get_mut(block).live += 1;
        }
    }
    for lpn in &state.report.damaged {
        pages.mapping.set_damaged(lpn.0, true);
    }
    for record in &state.records {
        pages.mapping.set_record(record.ppn, true);
        let block = pages.blocks.block_of(record.ppn);
        pages.blocks.get_mut(block).live += 1;
    }
    for (id, scanned) in (0u32..).zip(&state.blocks) {
        let block = pages.blocks.get_mut(id);
        match fate(id) {
            Fate::Own => place(&mut pages, medium, id, scanned)?,
            Fate::Free { erases } => (block.state, block.erases) = (State::Free, erases),
            Fate::Foreign { erases } => (block.state, block.erases) = (State::Foreign, erases),
        }
    }
    pages.blocks.start();
    let vssd = Vssd::resume(pages, Trims::of(state.records), state.covered, fell_back);
    Ok((vssd, state.report))
}

/// Decides what a block is now.
fn place(pages: &mut Pages, medium: &dyn Device, id: u32, scanned: &Scanned) -> Result<(), RecoverError> {
    let last = pages.sequence.last();
    let per_block = pages.share.pages_per_block();
    let block = pages.blocks.get_mut(id);
    block.erases = scanned.generation;
    block.filled = scanned.filled;
    block.first_sequence = scanned.first_sequence;
    if block.live == 0 {
        if scanned.replayed || scanned.referenced {
            // What replaced its pages may not be durable yet.
            block.state = State::Waiting;
            block.barrier = last;
        } else {
            block.state = State::Free;
            block.erases += u32::from(scanned.filled > 0);
        }
        return Ok(());
    }
    // Dead pages of it may have been replaced by programs that are not durable yet.
    block.barrier = last;
    block.state = State::Closed;
    if scanned.filled < per_block && pages.blocks.adopt(id, scanned.last_is_user) {
        resume_entries(pages, medium, id, scanned)?;
    }
    Ok(())
}

/// Loads the partly filled page of entries of a block that is filled on.
fn resume_entries(
    pages: &mut Pages,
    medium: &dyn Device,
    id: u32,
    scanned: &Scanned,
) -> Result<(), RecoverError> {
    let per_page = pages.share.entries_per_page();
    let used = scanned.filled % per_page;
    if used == 0 {
        return Ok(());
    }
    let offset = pages.share.oob_offset(id, scanned.filled / per_page);
    let buffer = pages.entries.open(offset, pages.share.page_bytes());
    let instance = pages.config.instance;
    let bytes = pages.entries.bytes_mut(buffer);
    medium
        .read_at(offset, bytes)
        .map_err(|_| RecoverError::Media { offset })?;
    for (index, at) in bytes.chunks_exact_mut(ENTRY_BYTES).enumerate() {
        let keep = match Entry::decode(at) {
            Decoded::Valid(e) | Decoded::Corrected(e) => {
                e.instance == instance && e.generation == scanned.generation && (index as u32) < used
            }
            Decoded::Empty | Decoded::Damaged => false,
        };
        if !keep {
            at.fill(0);
        }
    }
    pages.blocks.get_mut(id).buffer = buffer;
    Ok(())
}

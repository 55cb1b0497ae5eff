//! Recovery: the newest checkpoint, then everything programmed after it.
//!
//! Of each logical page the highest (version, sequence) wins. A program after the highest sequence that any entry claims
//! durable may have been cut: its data is checked, and if it does not match it is as if never written. Up to that
//! sequence a mismatch is corruption: the page stays mapped and reads report it damaged.
//!
//! Programs that the newest checkpoint covers need no entry. Those that were cut are covered by the first checkpoint
//! after the recovery, and until then nothing newer claims to be durable, so that they are never mistaken for
//! corruption later.

use crate::api::{RecoverError, RecoveryReport};
use crate::bulk::{WINDOW_BYTES, read_pages};
use crate::checkpoint::{CheckpointHeader, Loaded, Stamp};
use crate::layout::{ENTRY_BYTES, Share};
use crate::mapping::{Mapped, NONE};
use crate::oob::{Decoded, Entry, Kind};
use crate::trim::{Record, correct, parse_record};
use base::{Device, Lpn, Version};

/// Something a logical page may be.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    lpn: u32,
    version: Version,
    sequence: u64,
    /// [`NONE`] for a trim.
    ppn: u32,
    crc: u32,
}

/// A block, by its entries.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scanned {
    pub(crate) generation: u32,
    /// Pages up to the last entry of the generation.
    pub(crate) filled: u32,
    pub(crate) first_sequence: u64,
    pub(crate) last_is_user: bool,
    /// It holds programs that the checkpoint does not cover.
    pub(crate) replayed: bool,
    /// The checkpoint maps a page to it.
    pub(crate) referenced: bool,
    /// The entries of its newest generation are another member's.
    pub(crate) theirs: bool,
    /// Pages of it that are live.
    pub(crate) live: u32,
}

/// A finding of use to the offline check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    /// One bit of the entry was wrong.
    Corrected { ppn: u32 },
    /// The entry is destroyed, but a checkpoint covers what it said.
    Superfluous { ppn: u32 },
    /// The newest durable data of a page is not what was written.
    Damaged { lpn: u32, ppn: u32 },
}

/// A vSSD, by its medium.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub(crate) pages: Vec<Mapped>,
    pub(crate) findings: Vec<Finding>,
    pub(crate) report: RecoveryReport,
    pub(crate) blocks: Vec<Scanned>,
    pub(crate) records: Vec<Record>,
    /// The newest program seen.
    pub(crate) last: u64,
    /// The highest sequence claimed durable.
    pub(crate) durable: u64,
    /// The checkpoint started from: its programs, and the newest one that entries claim durable.
    pub(crate) covered: u64,
    pub(crate) checkpoint_claimed: u32,
    /// Sum over everything in the out-of-band area: differs from the former life's if that left anything there.
    pub(crate) salt: u32,
}

struct Loader<'a> {
    medium: &'a dyn Device,
    share: &'a Share,
    instance: u32,
    /// All members of its channel group.
    group: &'a [u32],
    /// Erase count and fill per block according to the checkpoint.
    known: Vec<(u32, u32)>,
    /// Records up to this are dead.
    records_floor: u64,
    candidates: Vec<Candidate>,
    record_entries: Vec<Entry>,
    /// Destroyed entries: the page, and the sequence of the next entry of its block.
    suspects: Vec<(u32, Option<u64>)>,
    state: Recovered,
}

/// A vSSD of which the state is read.
pub(crate) struct Of<'a> {
    pub(crate) share: &'a Share,
    pub(crate) instance: u32,
    pub(crate) logical_pages: u32,
}

/// Reads the states of all members of a channel group, or of a vSSD that has channels of its own; changes nothing. What they
/// share of the out-of-band area is read once.
pub(crate) fn load(medium: &dyn Device, members: &[Of<'_>]) -> Vec<Result<Recovered, RecoverError>> {
    let instances: Vec<u32> = members.iter().map(|member| member.instance).collect();
    let mut loaders: Vec<_> = members
        .iter()
        .map(|member| Loader::new(medium, member, &instances))
        .collect();
    let of_use: Vec<&mut Loader<'_>> = loaders.iter_mut().flatten().collect();
    if let Err(error) = scan(medium, of_use) {
        return members.iter().map(|_| Err(error)).collect();
    }
    loaders
        .into_iter()
        .map(|loader| loader.and_then(Loader::judge))
        .collect()
}

/// Entries of a block.
struct BlockEntries {
    block: u32,
    /// By page.
    decoded: Vec<Decoded>,
    /// Whose entries there are at their places, each with its newest generation.
    generations: Vec<(u32, u32)>,
    /// Whose entries there are, wherever they belong.
    instances: Vec<u32>,
    has_damage: bool,
}

impl BlockEntries {
    /// Of the bytes of a block's out-of-band pages.
    fn read(block: u32, bytes: &mut [u8], share: &Share) -> Self {
        let (per_page, per_block) = (share.entries_per_page(), share.pages_per_block());
        let mut entries = Self {
            block,
            decoded: Vec::with_capacity(per_block as usize),
            generations: Vec::new(),
            instances: Vec::new(),
            has_damage: false,
        };
        for (index, bytes) in (0u32..).zip(bytes.chunks_exact_mut(share.page_bytes())) {
            let count = per_page.min(per_block - index * per_page) as usize;
            for at in bytes.chunks_exact_mut(ENTRY_BYTES).take(count) {
                entries.add(block * per_block, Entry::decode(at));
            }
        }
        entries
    }

    fn add(&mut self, first: u32, decoded: Decoded) {
        let ppn = first + self.decoded.len() as u32;
        self.decoded.push(decoded);
        match decoded {
            Decoded::Valid(e) | Decoded::Corrected(e) => {
                if !self.instances.contains(&e.instance) {
                    self.instances.push(e.instance);
                }
                if e.ppn != ppn {
                    return;
                }
                match self.generations.iter_mut().find(|known| known.0 == e.instance) {
                    Some(known) => known.1 = known.1.max(e.generation),
                    None => self.generations.push((e.instance, e.generation)),
                }
            }
            Decoded::Damaged => self.has_damage = true,
            Decoded::Empty => {}
        }
    }

    /// As a member sees it, without the entries of others.
    fn of(&self, instance: u32) -> Vec<Decoded> {
        if !self.has_damage && !self.instances.contains(&instance) {
            return Vec::new();
        }
        let first = self.block * self.decoded.len() as u32;
        let seen = |(ppn, decoded): (u32, &Decoded)| match *decoded {
            Decoded::Valid(e) | Decoded::Corrected(e) if e.instance != instance => Decoded::Empty,
            Decoded::Valid(e) | Decoded::Corrected(e) if e.ppn != ppn => Decoded::Damaged,
            other => other,
        };
        (first..).zip(&self.decoded).map(seen).collect()
    }
}

/// Reads the whole out-of-band area, neighbouring blocks together.
fn scan(medium: &dyn Device, mut loaders: Vec<&mut Loader<'_>>) -> Result<(), RecoverError> {
    let Some(share) = loaders.first().map(|loader| loader.share) else {
        return Ok(());
    };
    let block_bytes = share.oob_pages_per_block() as usize * share.page_bytes();
    let together = (WINDOW_BYTES / block_bytes).max(1) as u32;
    let mut bytes = vec![0; together as usize * block_bytes];
    let (mut block, mut sum) = (0, 0);
    while block < share.blocks() {
        let run = share.oob_run(block, together);
        let bytes = &mut bytes[..run as usize * block_bytes];
        let offset = share.oob_offset(block, 0);
        if medium.read_at(offset, bytes).is_err() {
            read_singly(medium, share.page_bytes(), offset, bytes)?;
        }
        sum = crc32c::crc32c_append(sum, bytes);
        for of_block in bytes.chunks_exact_mut(block_bytes) {
            let entries = BlockEntries::read(block, of_block, share);
            loaders.iter_mut().for_each(|loader| loader.take_block(&entries));
            block += 1;
        }
    }
    for loader in loaders {
        loader.state.salt = crc32c::crc32c_append(loader.instance, &sum.to_le_bytes());
    }
    Ok(())
}

/// Reads page by page, to name the one that cannot be read.
fn read_singly(
    medium: &dyn Device,
    page_bytes: usize,
    start: u64,
    bytes: &mut [u8],
) -> Result<(), RecoverError> {
    for (index, page) in bytes.chunks_exact_mut(page_bytes).enumerate() {
        let offset = start + (index * page_bytes) as u64;
        medium
            .read_at(offset, page)
            .map_err(|_| RecoverError::Media { offset })?;
    }
    Ok(())
}

impl<'a> Loader<'a> {
    fn new(medium: &'a dyn Device, of: &Of<'a>, group: &'a [u32]) -> Result<Self, RecoverError> {
        let &Of {
            share,
            instance,
            logical_pages,
        } = of;
        let read = |slot| {
            let offset = share.piece_offset(slot, 0);
            Loaded::read(medium, share, slot, instance, logical_pages)
                .map_err(|_| RecoverError::Media { offset })
        };
        let (a, b) = (read(0)?, read(1)?);
        let number = |loaded: &Option<Loaded>| loaded.as_ref().map_or(0, |l| l.header.stamp.number);
        let best = if number(&a) >= number(&b) { a } else { b };
        let best = best.unwrap_or_else(|| Loaded {
            header: CheckpointHeader {
                stamp: Stamp { instance, number: 0 },
                covered: 0,
                covered_before: 0,
                durable: 0,
                logical_pages,
                blocks: share.blocks(),
            },
            pages: vec![Mapped::EMPTY; logical_pages as usize],
            blocks: vec![(0, 0); share.blocks() as usize],
        });
        let mut blocks = vec![Scanned::default(); share.blocks() as usize];
        for mapped in best.pages.iter().filter(|mapped| mapped.ppn != NONE) {
            // A checkpoint with an intact checksum names pages of this vSSD only.
            blocks[(mapped.ppn / share.pages_per_block()) as usize].referenced = true;
        }
        let header = best.header;
        Ok(Self {
            medium,
            share,
            instance,
            group,
            known: best.blocks,
            records_floor: header.covered_before,
            candidates: Vec::new(),
            record_entries: Vec::new(),
            suspects: Vec::new(),
            state: Recovered {
                pages: best.pages,
                findings: Vec::new(),
                report: RecoveryReport {
                    checkpoint: header.stamp.number,
                    ..RecoveryReport::default()
                },
                blocks,
                records: Vec::new(),
                last: header.durable.max(header.covered),
                durable: header.durable.max(header.covered),
                covered: header.covered,
                checkpoint_claimed: 0,
                salt: instance,
            },
        })
    }

    /// What the newest checkpoint and the entries say.
    fn judge(mut self) -> Result<Recovered, RecoverError> {
        let state = &mut self.state;
        let (claimed, used) = (state.checkpoint_claimed, state.report.checkpoint);
        if claimed > used + 1 {
            return Err(RecoverError::CheckpointLost { number: claimed });
        }
        state.report.fell_back = claimed > used;
        state.checkpoint_claimed = claimed.max(used);
        self.read_records()?;
        let programmed = self.programmed();
        self.choose();
        self.check_destroyed_entries()?;
        self.check_programmed_anew(&programmed)?;
        Ok(self.state)
    }

    fn take_block(&mut self, entries: &BlockEntries) {
        let block = entries.block;
        let is_theirs = |of: &&(u32, u32)| of.0 != self.instance && self.group.contains(&of.0);
        let theirs = entries.generations.iter().filter(is_theirs).map(|of| of.1).max();
        let decoded = entries.of(self.instance);
        let first = block * self.share.pages_per_block();
        let (erases, fill) = self.known[block as usize];
        let mut entries = Vec::new();
        for (page, decoded) in decoded.iter().enumerate() {
            match *decoded {
                Decoded::Valid(entry) => entries.push((page as u32, entry)),
                Decoded::Corrected(entry) => {
                    entries.push((page as u32, entry));
                    self.state.report.bits_corrected += 1;
                    self.state.findings.push(Finding::Corrected {
                        ppn: first + page as u32,
                    });
                }
                Decoded::Empty | Decoded::Damaged => {}
            }
        }
        let s = &mut self.state;
        let generation = entries.iter().map(|(_, e)| e.generation).fold(erases, u32::max);
        let generation = theirs.map_or(generation, |theirs| theirs.max(generation));
        for (_, entry) in &entries {
            s.last = s.last.max(entry.sequence);
            s.durable = s.durable.max(entry.durable);
            s.checkpoint_claimed = s.checkpoint_claimed.max(entry.checkpoint);
        }
        entries.retain(|(_, e)| e.generation == generation);
        let newest = entries.iter().filter(|(_, e)| e.sequence > s.covered);
        // Where programs that the checkpoint does not cover begin. Before its fill: the block was erased since.
        let replayed_from = newest.map(|(page, _)| *page).min();
        for page in (0..decoded.len() as u32).filter(|p| decoded[*p as usize] == Decoded::Damaged) {
            let is_theirs = entries.is_empty() && theirs == Some(generation);
            let covered = page < fill && replayed_from.is_none_or(|from| from >= fill);
            if covered || is_theirs {
                s.findings.push(Finding::Superfluous { ppn: first + page });
                continue;
            }
            let later = entries
                .iter()
                .filter(|(p, e)| *p > page && e.sequence > s.covered);
            let later = later.map(|(_, e)| e.sequence).min();
            self.suspects.push((first + page, later));
        }
        let scanned = &mut s.blocks[block as usize];
        scanned.generation = generation;
        scanned.filled = entries.last().map_or(0, |(page, _)| page + 1);
        scanned.first_sequence = entries.iter().map(|(_, e)| e.sequence).min().unwrap_or(0);
        scanned.last_is_user = entries.last().is_some_and(|(_, e)| e.kind == Kind::User);
        scanned.replayed = replayed_from.is_some();
        scanned.theirs = theirs == Some(generation);
        for (_, entry) in entries {
            self.take_entry(&entry);
        }
    }

    fn take_entry(&mut self, entry: &Entry) {
        if entry.kind == Kind::Record {
            if entry.sequence > self.records_floor {
                self.record_entries.push(*entry);
            }
        } else if entry.sequence > self.state.covered && (entry.lpn as usize) < self.state.pages.len() {
            self.state.report.entries_replayed += 1;
            self.candidates.push(Candidate {
                lpn: entry.lpn,
                version: entry.version,
                sequence: entry.sequence,
                ppn: entry.ppn,
                crc: entry.data_crc,
            });
        }
    }

    /// Destroyed entries that no checkpoint covers: torn ones are forgotten, others are a loss that cannot be named.
    ///
    /// If sectors hold whole entries, nothing tears one. Otherwise (the simulator's small pages) an entry is lost if the
    /// block is in use and a later entry of the block was durable, because pages of a block are programmed in order. In a
    /// block without live pages the entry may be a torn one of the next use, before the entries of the last.
    fn check_destroyed_entries(&mut self) -> Result<(), RecoverError> {
        let per_block = self.share.pages_per_block();
        let mut used = vec![false; self.share.blocks() as usize];
        for mapped in self.state.pages.iter().filter(|mapped| mapped.ppn != NONE) {
            used[(mapped.ppn / per_block) as usize] = true;
        }
        for (ppn, later) in core::mem::take(&mut self.suspects) {
            let durable = later.is_some_and(|sequence| sequence <= self.state.durable);
            if !self.share.entries_tear() || (durable && used[(ppn / per_block) as usize]) {
                return Err(RecoverError::EntryLost {
                    offset: self.share.entry_offset(ppn),
                });
            }
            self.state.report.torn += 1;
        }
        Ok(())
    }

    /// A page is programmed anew, by this vSSD or another of its group, only when whatever replaced what was there is
    /// durable. If that is still the newest of a logical page, the entry of its successor is lost.
    fn check_programmed_anew(&self, programmed: &[(u32, u32)]) -> Result<(), RecoverError> {
        let per_block = self.share.pages_per_block();
        for (lpn, mapped) in (0u32..).zip(&self.state.pages) {
            if mapped.ppn == NONE {
                continue;
            }
            let block = &self.state.blocks[(mapped.ppn / per_block) as usize];
            let at = programmed.partition_point(|(ppn, _)| *ppn < mapped.ppn);
            let by = programmed.get(at).filter(|(ppn, _)| *ppn == mapped.ppn);
            if block.theirs || by.is_some_and(|(_, by)| *by != lpn) {
                return Err(RecoverError::EntryLost {
                    offset: self.share.entry_offset(mapped.ppn),
                });
            }
        }
        Ok(())
    }

    /// True when the data at `ppn` matches.
    fn intact(&self, ppn: u32, crc: u32, bytes: &mut [u8]) -> bool {
        let read = self.medium.read_at(self.share.data_offset(ppn), bytes);
        read.is_ok() && crc32c::crc32c(bytes) == crc
    }

    fn read_records(&mut self) -> Result<(), RecoverError> {
        let mut bytes = vec![0; self.share.page_bytes()];
        let mut lost: Vec<Entry> = Vec::new();
        for entry in core::mem::take(&mut self.record_entries) {
            let record = Record {
                id: entry.version.0,
                ppn: entry.ppn,
                sequence: entry.sequence,
                trims: entry.lpn,
                crc: entry.data_crc,
            };
            let intact = self.intact(entry.ppn, entry.data_crc, &mut bytes);
            if entry.sequence <= self.state.covered {
                // Kept in case the newest checkpoint is lost; of no use if its block was programmed anew.
                if intact {
                    self.state.records.push(record);
                }
                continue;
            }
            self.state.report.entries_replayed += 1;
            if !intact && !correct(&mut bytes, entry.data_crc) {
                lost.push(entry);
                continue;
            }
            self.state.report.bits_corrected += u64::from(!intact);
            self.state.records.push(record);
            let in_range = self.state.pages.len();
            let trims = parse_record(&bytes, entry.lpn).filter(|(lpn, _)| (*lpn as usize) < in_range);
            self.candidates.extend(trims.map(|(lpn, version)| Candidate {
                lpn,
                version,
                sequence: entry.sequence,
                ppn: NONE,
                crc: 0,
            }));
        }
        for entry in lost {
            // The block of a record that was moved may have been programmed anew.
            let moved = self
                .state
                .records
                .iter()
                .any(|record| record.id == entry.version.0);
            if entry.sequence <= self.state.durable && !moved {
                return Err(RecoverError::RecordLost {
                    offset: self.share.data_offset(entry.ppn),
                });
            }
            self.state.report.torn += u64::from(!moved);
        }
        // Of a record and its copies one is enough.
        let records = &mut self.state.records;
        records.sort_unstable_by_key(|record| (record.id, core::cmp::Reverse(record.sequence)));
        records.dedup_by_key(|record| record.id);
        Ok(())
    }

    /// True when the candidate's data must be looked at.
    fn is_in_question(&self, c: &Candidate) -> bool {
        c.ppn != NONE && (c.sequence > self.state.durable || self.state.report.fell_back)
    }

    /// Whether the data of the best candidate of each page is intact, if it is in question: usually no other one is
    /// needed, and these can be read in the order of the medium. Candidates are sorted by page, the best first.
    fn check_likely(&self, candidates: &[Candidate]) -> Vec<Option<bool>> {
        let mut verdicts = vec![None; candidates.len()];
        let mut wanted = Vec::new();
        let mut page = None;
        for (index, c) in candidates.iter().enumerate() {
            let is_best = page.replace(c.lpn) != Some(c.lpn);
            let is_newer = c.version >= self.state.pages[c.lpn as usize].version;
            if is_best && is_newer && self.is_in_question(c) {
                wanted.push((self.share.data_offset(c.ppn), index));
            }
        }
        wanted.sort_unstable();
        read_pages(self.medium, self.share.page_bytes(), &wanted, |&index, bytes| {
            verdicts[index] = Some(bytes.is_ok_and(|bytes| crc32c::crc32c(bytes) == candidates[index].crc));
        });
        verdicts
    }

    /// Physical pages that were programmed since the checkpoint, ascending, and the logical pages there; records are of
    /// none.
    fn programmed(&self) -> Vec<(u32, u32)> {
        let data = self.candidates.iter().filter(|c| c.ppn != NONE);
        let data = data.map(|c| (c.ppn, c.lpn));
        let newer = |record: &&Record| record.sequence > self.state.covered;
        let records = self.state.records.iter().filter(newer);
        let mut all: Vec<(u32, u32)> = data.chain(records.map(|r| (r.ppn, NONE))).collect();
        all.sort_unstable();
        all
    }

    /// Decides what each logical page is.
    fn choose(&mut self) {
        let mut bytes = vec![0; self.share.page_bytes()];
        let mut candidates = core::mem::take(&mut self.candidates);
        if self.state.report.fell_back {
            // Every page is in question, also those that only the older checkpoint names.
            for (lpn, mapped) in self.state.pages.iter().enumerate().filter(|(_, m)| m.ppn != NONE) {
                candidates.push(Candidate {
                    lpn: lpn as u32,
                    version: mapped.version,
                    sequence: self.state.covered,
                    ppn: mapped.ppn,
                    crc: mapped.crc,
                });
            }
        }
        candidates.sort_unstable_by_key(|c| (c.lpn, core::cmp::Reverse((c.version, c.sequence))));
        let verdicts = self.check_likely(&candidates);
        let mut settled = None;
        for (c, verdict) in candidates.into_iter().zip(verdicts) {
            let present = self.state.pages[c.lpn as usize];
            if settled == Some(c.lpn) || c.version < present.version {
                continue;
            }
            let unsure = c.sequence > self.state.durable;
            if self.is_in_question(&c) && !verdict.unwrap_or_else(|| self.intact(c.ppn, c.crc, &mut bytes)) {
                if unsure {
                    self.state.report.torn += 1;
                    continue;
                }
                self.state.report.damaged.push(Lpn(c.lpn));
                self.state.findings.push(Finding::Damaged {
                    lpn: c.lpn,
                    ppn: c.ppn,
                });
            }
            settled = Some(c.lpn);
            self.state.pages[c.lpn as usize] = Mapped {
                version: c.version,
                ppn: c.ppn,
                crc: c.crc,
            };
        }
    }
}

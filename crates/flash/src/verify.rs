//! Offline verification: superblocks, checkpoints, out-of-band entries, and the data of every live page.

use crate::api::RecoverError;
use crate::bulk::read_pages;
use crate::checkpoint::Loaded;
use crate::layout::{Layout, Share};
use crate::mapping::{Mapped, NONE};
use crate::recover::{self, Finding, Of, Recovered};
use crate::ssd::{OpenError, SLOTS, Ssd};
use crate::superblock::{Slot, VssdEntry, read_slot};
use base::{Device, Lpn, VssdId};

/// How far a verification is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Pages checked.
    pub done: u64,
    /// Pages to check: the logical pages of all vSSDs.
    pub total: u64,
}

/// Place of a problem.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Where {
    /// Which vSSD, if it belongs to one.
    pub vssd: Option<VssdId>,
    /// Which logical page, if known.
    pub lpn: Option<Lpn>,
    /// Which physical page of the SSD, if it is one.
    pub ppn: Option<u32>,
    /// Byte offset on the medium.
    pub offset: u64,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What is wrong.
    pub what: &'static str,
    /// Where.
    pub place: Where,
    /// What to do about it.
    pub remedy: &'static str,
}

/// Result of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// vSSDs checked.
    pub vssds: u32,
    /// Live pages whose data was checked.
    pub live_pages: u64,
    /// The problems; empty for a clean medium.
    pub problems: Vec<Problem>,
}

/// Pages between two reports of progress.
const PROGRESS_EVERY: u64 = 4096;

/// Checks superblocks, checkpoints, out-of-band entries and the data of every live page; changes nothing.
///
/// # Errors
/// There is no valid superblock of that page size, or it cannot be read. Everything else is a [`Problem`].
pub fn verify(
    medium: &dyn Device,
    page_bytes: usize,
    progress: &mut dyn FnMut(Progress),
) -> Result<VerifyReport, OpenError> {
    let (ssd, _) = Ssd::load(medium, page_bytes)?;
    let mut report = VerifyReport::default();
    for slot in 0..SLOTS {
        if !matches!(read_slot(medium, slot)?, Slot::Valid(_)) {
            report.problems.push(Problem {
                what: "a superblock slot is damaged",
                place: Where {
                    offset: Layout::super_offset(slot),
                    ..Where::default()
                },
                remedy: "start the node: it rewrites the slot from the other one",
            });
        }
    }
    let mut state = Progress {
        done: 0,
        total: ssd.vssds().iter().map(|v| u64::from(v.logical_pages)).sum(),
    };
    let mut left: Vec<&VssdEntry> = ssd.vssds().iter().collect();
    while let Some(&first) = left.first() {
        let (group, rest) = left
            .into_iter()
            .partition::<Vec<_>, _>(|entry| *entry == first || entry.shares_with(first));
        left = rest;
        let share_of =
            |entry: &&VssdEntry| Share::new(ssd.geometry(), page_bytes, entry.channels, entry.isolation);
        let shares: Vec<Share> = group.iter().map(share_of).collect();
        let members: Vec<Of<'_>> = group
            .iter()
            .zip(&shares)
            .map(|(entry, share)| Of {
                share,
                instance: entry.instance,
                logical_pages: entry.logical_pages,
            })
            .collect();
        let loaded = recover::load(medium, &members);
        for ((entry, share), loaded) in group.into_iter().zip(&shares).zip(loaded) {
            let mut check = Check {
                medium,
                share,
                entry,
                report: &mut report,
            };
            check.run(loaded, &mut state, progress);
        }
    }
    Ok(report)
}

struct Check<'a> {
    medium: &'a dyn Device,
    share: &'a Share,
    entry: &'a VssdEntry,
    report: &'a mut VerifyReport,
}

impl Check<'_> {
    fn run(
        &mut self,
        loaded: Result<Recovered, RecoverError>,
        state: &mut Progress,
        progress: &mut dyn FnMut(Progress),
    ) {
        self.report.vssds += 1;
        match loaded {
            Ok(recovered) => {
                if recovered.report.fell_back {
                    self.checkpoint_damaged(recovered.report.checkpoint + 1);
                } else {
                    self.check_older_checkpoint(recovered.report.checkpoint);
                }
                for finding in &recovered.findings {
                    self.finding(*finding);
                }
                let known = &recovered.report.damaged;
                self.check_data(&recovered.pages, known, state, progress);
            }
            Err(error) => {
                state.done += u64::from(self.entry.logical_pages);
                self.lost(error);
            }
        }
        progress(*state);
    }

    fn problem(&mut self, what: &'static str, place: Where, remedy: &'static str) {
        let place = Where {
            vssd: Some(self.entry.id),
            ..place
        };
        self.report.problems.push(Problem { what, place, remedy });
    }

    fn checkpoint_damaged(&mut self, number: u32) {
        let offset = self.share.piece_offset(number % 2, 0);
        let place = Where {
            offset,
            ..Where::default()
        };
        self.problem(
            "the newest checkpoint is damaged; its predecessor is used",
            place,
            "start the node: it writes a new checkpoint",
        );
    }

    /// The predecessor may be half overwritten by a checkpoint that a crash cut: only an unreadable slot is a problem.
    fn check_older_checkpoint(&mut self, number: u32) {
        let slot = (number + 1) % 2;
        let (instance, logical) = (self.entry.instance, self.entry.logical_pages);
        if Loaded::read(self.medium, self.share, slot, instance, logical).is_err() {
            let place = Where {
                offset: self.share.piece_offset(slot, 0),
                ..Where::default()
            };
            self.problem("a checkpoint slot cannot be read", place, "replace the medium");
        }
    }

    fn finding(&mut self, finding: Finding) {
        let at = |ppn| Where {
            ppn: Some(self.share.global_page(ppn)),
            offset: self.share.entry_offset(ppn),
            ..Where::default()
        };
        match finding {
            Finding::Corrected { ppn } => {
                let place = at(ppn);
                self.problem(
                    "one bit of an out-of-band entry is wrong and correctable",
                    place,
                    "none needed",
                );
            }
            Finding::Superfluous { ppn } => {
                let place = at(ppn);
                self.problem(
                    "an out-of-band entry is destroyed; a checkpoint covers it",
                    place,
                    "none needed",
                );
            }
            Finding::Damaged { lpn, ppn } => self.page_damaged(lpn, ppn),
        }
    }

    fn page_damaged(&mut self, lpn: u32, ppn: u32) {
        let place = Where {
            lpn: Some(Lpn(lpn)),
            ppn: Some(self.share.global_page(ppn)),
            offset: self.share.data_offset(ppn),
            ..Where::default()
        };
        self.problem(
            "a page's data does not match its checksum",
            place,
            "rewrite the page, or let a replica repair it",
        );
    }

    fn lost(&mut self, error: RecoverError) {
        let (what, offset) = match error {
            RecoverError::Media { offset } => ("the medium cannot be read", offset),
            RecoverError::CheckpointLost { number } => (
                "both checkpoints are damaged",
                self.share.piece_offset(number % 2, 0),
            ),
            RecoverError::EntryLost { offset } => ("an out-of-band entry is destroyed", offset),
            RecoverError::OwnedTwice { offset } => ("a block belongs to two vSSDs", offset),
            RecoverError::RecordLost { offset } => ("a trim record is destroyed", offset),
        };
        let place = Where {
            offset,
            ..Where::default()
        };
        self.problem(what, place, "delete the vSSD and rebuild it from its replicas");
    }

    fn check_data(
        &mut self,
        pages: &[Mapped],
        known: &[Lpn],
        state: &mut Progress,
        progress: &mut dyn FnMut(Progress),
    ) {
        let mut live: Vec<(u64, u32)> = (0u32..)
            .zip(pages)
            .filter(|(_, mapped)| mapped.ppn != NONE)
            .map(|(lpn, mapped)| (self.share.data_offset(mapped.ppn), lpn))
            .collect();
        // In the order of the medium, so that neighbours are read together.
        live.sort_unstable();
        self.report.live_pages += live.len() as u64;
        state.done += (pages.len() - live.len()) as u64;
        let mut damaged = Vec::new();
        read_pages(self.medium, self.share.page_bytes(), &live, |&lpn, bytes| {
            state.done += 1;
            if state.done.is_multiple_of(PROGRESS_EVERY) {
                progress(*state);
            }
            let crc = pages[lpn as usize].crc;
            if !bytes.is_ok_and(|bytes| crc32c::crc32c(bytes) == crc) && !known.contains(&Lpn(lpn)) {
                damaged.push(lpn);
            }
        });
        damaged.sort_unstable();
        for lpn in damaged {
            self.page_damaged(lpn, pages[lpn as usize].ppn);
        }
    }
}

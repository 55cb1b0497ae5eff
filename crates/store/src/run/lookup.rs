//! Finding a key in runs, page by page.

use super::page::{Page, take_varint};
use super::{Address, Run, RunKey, Spot, filter};
use crate::fetch::FetchError;
use crate::layout::{Layout, SECTOR_HEADER_BYTES};
use crate::sector::{self, Role, State};
use std::sync::Arc;

/// A page to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageRef {
    layout: Layout,
    slot: u32,
    generation: u64,
    at: u32,
    length: u32,
}

impl PageRef {
    fn new(layout: Layout, run: &Run, address: Address) -> Option<Self> {
        let &(slot, generation) = run.parts.get(address.part as usize)?;
        let at = address.block.checked_mul(layout.block_bytes)?;
        let length = address.blocks.checked_mul(layout.block_bytes)?;
        let fits = length > 0 && at.checked_add(length)? <= layout.segment_bytes;
        fits.then_some(Self {
            layout,
            slot,
            generation,
            at,
            length,
        })
    }

    /// Where to read, in bytes of the area.
    pub(crate) fn offset(&self) -> u64 {
        self.layout.segment_offset(self.slot) + u64::from(self.at)
    }

    /// How much to read: whole blocks.
    pub(crate) fn length(&self) -> usize {
        self.length as usize
    }

    /// The page's content, from the bytes read.
    pub(crate) fn extract(&self, bytes: &[u8]) -> Result<Vec<u8>, FetchError> {
        let sector_bytes = self.layout.sector_bytes as usize;
        let mut payload = Vec::with_capacity(self.layout.stream_of(self.length) as usize);
        for (index, sector) in bytes.chunks(sector_bytes).enumerate() {
            let within = self.at + (index * sector_bytes) as u32;
            let number = self.layout.sector_number(self.slot, within);
            match sector::judge(sector, Role::Checkpoint, self.generation as u32, number) {
                State::New => payload.extend(&sector[SECTOR_HEADER_BYTES as usize..]),
                State::Old if !sector::is_blank(sector) => return Err(FetchError::Moved),
                _ => {
                    let offset = number * u64::from(self.layout.sector_bytes);
                    return Err(FetchError::Damaged { offset });
                }
            }
        }
        Ok(payload)
    }
}

/// The next need of a lookup, or its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// This page: call again with its content.
    Read(PageRef),
    Found(Spot),
    Absent,
    /// A page makes no sense: the one at this byte of the area.
    Damaged {
        offset: u64,
    },
}

/// The lookup of a key in runs, the newest first.
pub(crate) struct Lookup {
    layout: Layout,
    runs: Vec<Arc<Run>>,
    key: RunKey,
    hash: u32,
    /// The page that was asked for.
    at: Option<PageRef>,
}

impl Lookup {
    /// In `runs`, of which the last is asked first.
    pub(crate) fn new(layout: Layout, runs: Vec<Arc<Run>>, key: RunKey) -> Self {
        let hash = filter::hash(&key.0);
        Self {
            layout,
            runs,
            key,
            hash,
            at: None,
        }
    }

    /// Goes on with the content of the page that was asked for; with `None` at the start.
    pub(crate) fn step(&mut self, content: Option<&[u8]>) -> Step {
        if let (Some(at), Some(content)) = (self.at, content) {
            match self.look(content) {
                Some(Some(step)) => return step,
                // Not in this run.
                Some(None) => drop(self.runs.pop()),
                None => return Step::Damaged { offset: at.offset() },
            }
        }
        while let Some(run) = self.runs.last() {
            if let Some(root) = run.root {
                return self.read(root).unwrap_or(Step::Damaged { offset: 0 });
            }
            self.runs.pop();
        }
        Step::Absent
    }

    fn read(&mut self, address: Address) -> Option<Step> {
        self.at = PageRef::new(self.layout, self.runs.last()?, address);
        self.at.map(Step::Read)
    }

    /// Looks into a page. `Some(None)` if the run does not have the key, `None` if the page makes no sense.
    fn look(&mut self, content: &[u8]) -> Option<Option<Step>> {
        let page = Page::parse(content)?;
        if page.level == 0 {
            let base = self.runs.last()?.base;
            return Some(match page.get(&self.key.0)? {
                Some(value) => Some(Step::Found(Spot::parse(value, base)?)),
                None => None,
            });
        }
        let Some(mut value) = page.floor(&self.key.0)? else {
            return Some(None);
        };
        let mut word = || u32::try_from(take_varint(&mut value)?).ok();
        let address = Address {
            part: word()?,
            block: word()?,
            blocks: word()?,
        };
        if page.level == 1 && !filter::may_have(value, self.hash) {
            return Some(None);
        }
        self.read(address).map(Some)
    }
}

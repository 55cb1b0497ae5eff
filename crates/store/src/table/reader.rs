//! Reading a table: page by page for lookups, and in long pieces for jobs.

use super::filter;
use super::page::{self, Extent, Held, Kind, Page};
use super::{Header, Meta, Place, Way};
use crate::damage::FetchError;
use crate::layout::{Layout, SECTOR_HEADER_BYTES};
use crate::sector::{self, Role};
use base::{Device, MediaError};
use bytes::Bytes;
use core::ops::Deref;
use std::sync::Arc;

/// Bytes of leaves that a stream reads at once.
const STREAM_BYTES: u32 = 256 << 10;

/// Leaves that are read at once for a range, at most: 64 KiB.
const AHEAD_MAX: usize = 16;

/// A page to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageAt {
    layout: Layout,
    place: Place,
    extent: Extent,
}

impl PageAt {
    /// Where to read, in bytes of the area: a multiple of the block.
    pub fn offset(&self) -> u64 {
        let layout = &self.layout;
        layout.segment_offset(self.place.slot) + u64::from(self.extent.block) * u64::from(layout.block_bytes)
    }

    /// How much to read: whole blocks.
    pub fn length(&self) -> usize {
        (self.extent.blocks * self.layout.block_bytes) as usize
    }

    /// What the page is called in a cache: the generation of its segment, which no other segment has had or will have, and
    /// its first block in there.
    pub fn name(&self) -> (u64, u32) {
        (self.place.generation, self.extent.block)
    }

    /// Bytes of the page in one piece.
    pub fn page_bytes(&self) -> usize {
        self.layout.stream_of(self.length() as u32) as usize
    }

    /// Fills `page`, of [`PageAt::page_bytes`], from the bytes that were read. It stays right: its segment keeps it for as long as
    /// anybody can ask.
    ///
    /// # Errors
    /// A checksum does not match.
    pub fn extract(&self, bytes: &[u8], page: &mut [u8]) -> Result<(), FetchError> {
        let mut rest = page;
        self.each_sector(bytes, |payload| {
            let (now, later) = core::mem::take(&mut rest).split_at_mut(payload.len());
            now.copy_from_slice(payload);
            rest = later;
        })
    }

    fn extract_to(&self, bytes: &[u8], page: &mut Vec<u8>) -> Result<(), FetchError> {
        self.each_sector(bytes, |payload| page.extend(payload))
    }

    fn each_sector<'a>(&self, bytes: &'a [u8], mut f: impl FnMut(&'a [u8])) -> Result<(), FetchError> {
        let layout = &self.layout;
        let first = self.offset() / u64::from(layout.sector_bytes);
        let sectors = bytes.chunks_exact(layout.sector_bytes as usize);
        for (number, sector) in (first..).zip(sectors) {
            let role = if number == first {
                Role::Page
            } else {
                Role::Checkpoint
            };
            if sector::tag_of(sector, role, number) != Some(self.place.generation as u32) {
                let offset = number * u64::from(layout.sector_bytes);
                return Err(FetchError::Damaged { offset });
            }
            f(&sector[SECTOR_HEADER_BYTES as usize..]);
        }
        Ok(())
    }
}

/// Whoever reads pages of tables: through a cache, if he has one.
pub trait Pages {
    /// A page in one piece. Cursors keep pages as [`Bytes`].
    type Page: Deref<Target = [u8]> + Into<Bytes>;
    /// Why a page cannot be had.
    type Error: From<FetchError>;

    /// The page, as [`PageAt::extract`] gives it.
    ///
    /// # Errors
    /// It cannot be read, or is damaged.
    fn page(&mut self, at: &PageAt) -> Result<Self::Page, Self::Error>;

    /// These pages are asked for next: whoever can should read what he lacks of them at once. Errors show when they are asked for.
    fn ahead(&mut self, wanted: &[PageAt]) {
        let _ = wanted;
    }
}

/// Reads every page from the medium.
pub struct Uncached<'a>(pub &'a dyn Device);

impl Pages for Uncached<'_> {
    type Page = Bytes;
    type Error = ReadError;

    fn page(&mut self, at: &PageAt) -> Result<Bytes, ReadError> {
        let mut bytes = vec![0; at.length()];
        self.0.read_at(at.offset(), &mut bytes)?;
        let mut page = Vec::with_capacity(at.page_bytes());
        at.extract_to(&bytes, &mut page)?;
        Ok(page.into())
    }
}

/// Why a page of the medium cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The medium.
    #[error(transparent)]
    Medium(#[from] MediaError),
    /// A checksum does not match.
    #[error(transparent)]
    Fetch(#[from] FetchError),
}

/// A table that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Table {
    layout: Layout,
    pub place: Place,
    pub meta: Meta,
}

impl Table {
    pub(crate) fn new(layout: Layout, place: Place, meta: Meta) -> Self {
        Self { layout, place, meta }
    }

    /// A table that does not tell what is in it: all that can be read of its segment.
    pub(crate) fn without_meta(layout: Layout, place: Place) -> Self {
        let leaves_end = layout.segment_bytes / layout.block_bytes;
        let meta = Meta {
            leaves_end,
            ..Meta::default()
        };
        Self::new(layout, place, meta)
    }

    /// Reads what a table says of itself; `header` is that of its segment.
    pub(crate) fn open(
        medium: &dyn Device,
        layout: Layout,
        slot: u32,
        header: &Header,
    ) -> Result<Self, ReadError> {
        let place = Place {
            slot,
            generation: header.generation,
        };
        let damaged = FetchError::Damaged {
            offset: layout.segment_offset(slot),
        };
        let mut table = Self::new(layout, place, Meta::default());
        let at = table.page_at(header.meta).ok_or(damaged)?;
        let bytes = Uncached(medium).page(&at)?;
        let meta = Page::parse(&bytes).filter(|page| page.kind == Kind::Meta);
        let meta = meta.and_then(|page| Meta::parse(page.content())).ok_or(damaged)?;
        table.meta = Meta {
            blocks: header.meta.block + header.meta.blocks,
            ..meta
        };
        let Meta {
            leaves_end,
            filter,
            root,
            ..
        } = table.meta;
        let filter = Extent {
            block: filter.block,
            blocks: filter
                .blocks
                .checked_mul(filter::page_blocks(&layout))
                .ok_or(damaged)?,
        };
        let leaves = Extent {
            block: 1,
            blocks: leaves_end.saturating_sub(1),
        };
        // Everything lies within the segment; pages are checked when they are read.
        match [leaves, filter, root]
            .into_iter()
            .all(|extent| table.page_at(extent).is_some())
        {
            true => Ok(table),
            false => Err(damaged.into()),
        }
    }

    /// Where it begins in the area.
    pub(crate) fn offset(&self) -> u64 {
        self.layout.segment_offset(self.place.slot)
    }

    /// Bytes of the segment that it takes.
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.meta.blocks) * u64::from(self.layout.block_bytes)
    }

    /// Reads all of it as a merge does, and checks the sectors of the other pages.
    pub(crate) fn look(self: &Arc<Self>, medium: &dyn Device) -> Result<(), ReadError> {
        let mut stream = self.stream();
        while stream.fill(medium)? {
            stream.skip_page();
        }
        let layout = &self.layout;
        let first = self.meta.leaves_end * layout.block_bytes;
        let length = (self.bytes() as u32).saturating_sub(first);
        let start = layout.segment_offset(self.place.slot) + u64::from(first);
        let mut bytes = vec![0; length as usize];
        medium.read_at(start, &mut bytes)?;
        let sector_bytes = layout.sector_bytes as usize;
        for (sector, at) in bytes.chunks(sector_bytes).zip((first..).step_by(sector_bytes)) {
            let tag = sector::any_tag_of(sector, layout.sector_number(self.place.slot, at));
            if tag != Some(self.place.generation as u32) {
                let offset = layout.segment_offset(self.place.slot) + u64::from(at);
                return Err(FetchError::Damaged { offset }.into());
            }
        }
        Ok(())
    }

    /// A page of it; `None` if there can be none.
    pub(crate) fn page_at(&self, extent: Extent) -> Option<PageAt> {
        let end = extent
            .block
            .checked_add(extent.blocks)?
            .checked_mul(self.layout.block_bytes)?;
        let fits = extent.block > 0 && extent.blocks > 0 && end <= self.layout.segment_bytes;
        fits.then_some(PageAt {
            layout: self.layout,
            place: self.place,
            extent,
        })
    }

    fn damaged(&self, block: u32) -> FetchError {
        let within = u64::from(block) * u64::from(self.layout.block_bytes);
        FetchError::Damaged {
            offset: self.layout.segment_offset(self.place.slot) + within,
        }
    }

    fn read<P: Pages>(&self, pages: &mut P, extent: Extent) -> Result<P::Page, P::Error> {
        let at = self.page_at(extent).ok_or_else(|| self.damaged(extent.block))?;
        pages.page(&at)
    }

    /// False if the table does not have a key of this hash.
    fn may_have<P: Pages>(&self, pages: &mut P, hash: u64) -> Result<bool, P::Error> {
        let Extent { block, blocks } = self.meta.filter;
        let each = filter::page_blocks(&self.layout);
        let extent = Extent {
            block: block + filter::page_of(hash, blocks) * each,
            blocks: each,
        };
        let bytes = self.read(pages, extent)?;
        let page = Page::parse(&bytes).ok_or_else(|| self.damaged(extent.block))?;
        Ok(filter::may_have(page.content(), hash))
    }

    /// The entry of a key.
    pub(crate) fn get<P: Pages>(
        &self,
        pages: &mut P,
        key: &[u8],
        hash: u64,
    ) -> Result<Option<Piece<P::Page>>, P::Error> {
        let is_outside = *key < *self.meta.first || *key > *self.meta.last;
        if is_outside || !self.may_have(pages, hash)? {
            return Ok(None);
        }
        let mut extent = self.meta.root;
        loop {
            let bytes = self.read(pages, extent)?;
            let damaged = self.damaged(extent.block);
            let page = Page::parse(&bytes).ok_or(damaged)?;
            match page.kind {
                Kind::Inner => extent = lower(page.below(key), extent).ok_or(damaged)?,
                Kind::Leaf => {
                    let (rank, is_there) = page.rank(key).ok_or(damaged)?;
                    return match is_there {
                        true => Ok(Some(Piece::new(bytes, rank).ok_or(damaged)?)),
                        false => Ok(None),
                    };
                }
                _ => return Err(damaged.into()),
            }
        }
    }

    /// Pages with so many entries, about, that begin anywhere in a page.
    pub(crate) fn pages_of(&self, entries: usize) -> usize {
        let bytes = u64::from(self.meta.leaves_end) * u64::from(self.layout.block_bytes);
        let each = bytes / self.meta.entries.max(1);
        let pages = (entries as u64).saturating_mul(each) / u64::from(page::page_bytes(&self.layout));
        pages.min(AHEAD_MAX as u64) as usize + 2
    }

    /// The pages above the leaf that may have `from`, and its place.
    fn path<P: Pages>(&self, pages: &mut P, from: &[u8], way: Way) -> Result<(Vec<Step>, Extent), P::Error> {
        let mut above = Vec::new();
        let mut extent = self.meta.root;
        // Leaves come before all other pages.
        while extent.block >= self.meta.leaves_end {
            let page: Bytes = self.read(pages, extent)?.into();
            let damaged = self.damaged(extent.block);
            let parsed = Page::parse(&page).filter(|page| page.kind == Kind::Inner);
            let (rank, is_there) = parsed.and_then(|page| page.rank(from)).ok_or(damaged)?;
            let index = if is_there { rank } else { rank.saturating_sub(1) };
            let mut step = Step {
                page,
                at: extent,
                next: match way {
                    Way::Up => index,
                    Way::Down => index + 1,
                },
            };
            extent = step.down(way).ok_or(damaged)?;
            above.push(step);
        }
        Ok((above, extent))
    }

    /// The entries from a key on, in order, read in long pieces.
    pub(crate) fn stream_from(
        self: &Arc<Self>,
        medium: &dyn Device,
        from: &[u8],
    ) -> Result<Stream, ReadError> {
        let mut stream = self.stream();
        let mut pages = Uncached(medium);
        let mut extent = self.meta.root;
        loop {
            let page = self.read(&mut pages, extent)?;
            let damaged = self.damaged(extent.block);
            let page = Page::parse(&page).ok_or(damaged)?;
            if page.kind == Kind::Leaf {
                break;
            }
            extent = lower(page.below(from), extent).ok_or(damaged)?;
        }
        stream.end = extent.block * self.layout.block_bytes;
        while stream.fill(medium)? && stream.entry().is_some_and(|(key, _)| key < from) {
            stream.advance();
        }
        Ok(stream)
    }

    /// All entries, in order, read in long pieces.
    pub(crate) fn stream(self: &Arc<Self>) -> Stream {
        Stream {
            table: Arc::clone(self),
            bytes: Vec::new(),
            start: self.layout.block_bytes,
            page: Vec::new(),
            at: self.layout.block_bytes,
            end: self.layout.block_bytes,
            index: 0,
        }
    }
}

/// The page below: pages come before those above them, so that the way down has an end.
fn lower(child: Option<Extent>, above: Extent) -> Option<Extent> {
    child.filter(|child| child.block < above.block)
}

/// A page on the way to a leaf, and which of its entries comes next.
struct Step {
    page: Bytes,
    at: Extent,
    /// As [`Way::take`] has it.
    next: usize,
}

impl Step {
    /// The page below the next entry.
    fn down(&mut self, way: Way) -> Option<Extent> {
        let page = Page::parse(&self.page)?;
        let index = way.take(&mut self.next, page.count)?;
        lower(Some(page.inner(index)?.1), self.at)
    }

    /// The pages below the entries that come next.
    fn ahead(&self, way: Way) -> impl Iterator<Item = Extent> {
        let page = Page::parse(&self.page);
        let count = page.map_or(0, |page| page.count);
        let mut next = self.next;
        let indices = core::iter::from_fn(move || way.take(&mut next, count));
        indices.filter_map(move |index| Some(page?.inner(index)?.1))
    }
}

/// An entry in its page, which it keeps.
pub struct Piece<B> {
    page: B,
    value: Option<(usize, usize)>,
    version: u64,
}

impl<B: Deref<Target = [u8]>> Piece<B> {
    fn new(page: B, index: usize) -> Option<Self> {
        let (_, held) = Page::parse(&page)?.leaf(index)?;
        let base = page.as_ptr() as usize;
        let range = |bytes: &[u8]| {
            let start = bytes.as_ptr() as usize - base;
            (start, start + bytes.len())
        };
        let (value, version) = (held.value.map(range), held.version);
        Some(Self { page, value, version })
    }

    /// The value, in one piece; `None` if the key was removed.
    pub fn value(&self) -> Option<&[u8]> {
        self.value.map(|(start, end)| &self.page[start..end])
    }

    /// Where the entry was in the order of the log.
    pub fn version(&self) -> u64 {
        self.version
    }
}

/// Goes through the entries of a table from a key on, in either order.
pub(crate) struct Cursor {
    table: Arc<Table>,
    way: Way,
    above: Vec<Step>,
    /// The leaf to be read next.
    below: Option<Extent>,
    /// Its beginning; `None` when it has begun.
    from: Option<Aim>,
    /// Leaves that are read at once, and how many of them are still to come.
    ahead: usize,
    coming: usize,
    /// The present leaf, its next entry as [`Way::take`] has it, and the present one.
    leaf: Bytes,
    next: usize,
    key: (u32, u32),
    value: Option<(u32, u32)>,
}

/// The beginning of a cursor: the first entry that is not before this key.
#[derive(Clone, Debug)]
pub(crate) struct Aim {
    pub key: Box<[u8]>,
    /// False: an entry of this very key comes before, too.
    pub is_included: bool,
}

impl Aim {
    pub(crate) fn at(key: &[u8]) -> Self {
        Self {
            key: key.into(),
            is_included: true,
        }
    }
}

impl Cursor {
    /// Finds the leaf that may have the key. [`Cursor::advance`] leads to the first entry.
    pub(crate) fn aim<P: Pages>(
        table: &Arc<Table>,
        pages: &mut P,
        (from, way): (Aim, Way),
        ahead: usize,
    ) -> Result<Self, P::Error> {
        let (above, leaf) = table.path(pages, &from.key, way)?;
        Ok(Self {
            table: Arc::clone(table),
            way,
            above,
            below: Some(leaf),
            from: Some(from),
            ahead,
            coming: 0,
            leaf: Bytes::new(),
            next: 0,
            key: (0, 0),
            value: None,
        })
    }

    /// Leaves that are read at once.
    pub(crate) fn ahead(&self) -> usize {
        self.ahead
    }

    /// The leaves that it reads next.
    pub(crate) fn wanted(&self) -> impl Iterator<Item = PageAt> {
        let behind = self.above.last().map(|step| step.ahead(self.way));
        let behind = behind.into_iter().flatten();
        let leaves = self.below.into_iter().chain(behind).take(self.ahead);
        leaves.filter_map(|extent| self.table.page_at(extent))
    }

    /// The present key, with its structure before it.
    pub(crate) fn key(&self) -> &[u8] {
        &self.leaf[self.key.0 as usize..self.key.1 as usize]
    }

    /// The present value; `None` if the key was removed.
    pub(crate) fn value(&self) -> Option<&[u8]> {
        self.value
            .map(|(start, end)| &self.leaf[start as usize..end as usize])
    }

    /// Goes to the next entry, or to the first; false at the end.
    pub(crate) fn advance<P: Pages>(&mut self, pages: &mut P) -> Result<bool, P::Error> {
        loop {
            let page = Page::parse(&self.leaf);
            let found = page.and_then(|page| {
                let index = self.way.take(&mut self.next, page.count)?;
                Some(page.leaf(index))
            });
            if let Some(entry) = found {
                let (key, held) = entry.ok_or(self.table.damaged(0))?;
                let base = self.leaf.as_ptr() as usize;
                let range = |bytes: &[u8]| {
                    let start = (bytes.as_ptr() as usize - base) as u32;
                    (start, start + bytes.len() as u32)
                };
                (self.key, self.value) = (range(key), held.value.map(range));
                return Ok(true);
            }
            let Some(extent) = self.descend(pages)? else {
                return Ok(false);
            };
            self.load(pages, extent)?;
        }
    }

    /// The next leaf.
    fn descend<P: Pages>(&mut self, pages: &mut P) -> Result<Option<Extent>, P::Error> {
        if let Some(leaf) = self.below.take() {
            // Whoever aimed has had it read.
            self.coming = self.ahead.saturating_sub(1);
            return Ok(Some(leaf));
        }
        loop {
            let Some(step) = self.above.last_mut() else {
                return Ok(None);
            };
            let damaged = self.table.damaged(0);
            let count = Page::parse(&step.page).ok_or(damaged)?.count;
            if step.next == self.way.end(count) {
                self.above.pop();
                self.coming = 0;
                continue;
            }
            let extent = step.down(self.way).ok_or(damaged)?;
            if extent.block < self.table.meta.leaves_end {
                match self.coming.checked_sub(1) {
                    Some(coming) => self.coming = coming,
                    None => self.read_ahead(pages, extent),
                }
                return Ok(Some(extent));
            }
            let page: Bytes = self.table.read(pages, extent)?.into();
            let count = Page::parse(&page).ok_or(damaged)?.count;
            self.above.push(Step {
                page,
                at: extent,
                next: self.way.start(count),
            });
        }
    }

    fn read_ahead<P: Pages>(&mut self, pages: &mut P, extent: Extent) {
        self.ahead = (2 * self.ahead).clamp(2, AHEAD_MAX);
        let behind = self.above.last().map(|step| step.ahead(self.way));
        let behind = behind.into_iter().flatten();
        let leaves = core::iter::once(extent).chain(behind).take(self.ahead);
        let wanted: Vec<PageAt> = leaves.filter_map(|extent| self.table.page_at(extent)).collect();
        self.coming = wanted.len().saturating_sub(1);
        pages.ahead(&wanted);
    }

    fn load<P: Pages>(&mut self, pages: &mut P, extent: Extent) -> Result<(), P::Error> {
        self.leaf = self.table.read(pages, extent)?.into();
        let damaged = self.table.damaged(extent.block);
        let page = Page::parse(&self.leaf).filter(|page| page.kind == Kind::Leaf);
        let page = page.ok_or(damaged)?;
        self.next = self.way.start(page.count);
        if let Some(from) = self.from.take() {
            let (rank, is_there) = page.rank(&from.key).ok_or(damaged)?;
            // Going up, it passes an entry of this key if that is left out; going down, if it is not.
            let passes = is_there && (from.is_included == (self.way == Way::Down));
            self.next = rank + usize::from(passes);
        }
        Ok(())
    }
}

/// Goes through all entries of a table, in pieces of many pages.
pub(crate) struct Stream {
    table: Arc<Table>,
    /// Bytes of the segment from `start` on.
    bytes: Vec<u8>,
    start: u32,
    /// The present page, where it begins and ends, and its next entry.
    page: Vec<u8>,
    at: u32,
    end: u32,
    index: usize,
}

impl Stream {
    /// Sees to it that there is a present entry. False at the end.
    pub(crate) fn fill(&mut self, medium: &dyn Device) -> Result<bool, ReadError> {
        let layout = self.table.layout;
        let leaves_end = self.table.meta.leaves_end.saturating_mul(layout.block_bytes);
        while Page::parse(&self.page).is_none_or(|page| self.index >= page.count) {
            if self.end >= leaves_end {
                return Ok(false);
            }
            (self.at, self.index) = (self.end, 0);
            self.page.clear();
            self.load(medium, leaves_end)?;
        }
        Ok(true)
    }

    /// Reads the page at `at`, which ends at `end` then.
    fn load(&mut self, medium: &dyn Device, leaves_end: u32) -> Result<(), ReadError> {
        let layout = self.table.layout;
        let block = self.at / layout.block_bytes;
        let damaged = self.table.damaged(block);
        self.need(medium, 1, leaves_end)?;
        let within = (self.at - self.start) as usize + SECTOR_HEADER_BYTES as usize;
        let blocks = page::blocks_of(&layout, &self.bytes[within..][..layout.payload_bytes() as usize]);
        let blocks = blocks.filter(|blocks| self.at + blocks * layout.block_bytes <= leaves_end);
        let blocks = blocks.ok_or(damaged)?;
        self.need(medium, blocks, leaves_end)?;
        let at = self.table.page_at(Extent { block, blocks }).ok_or(damaged)?;
        let within = (self.at - self.start) as usize;
        at.extract_to(&self.bytes[within..][..at.length()], &mut self.page)?;
        let is_leaf = Page::parse(&self.page).is_some_and(|page| page.kind == Kind::Leaf);
        if !is_leaf {
            self.page.clear();
            return Err(damaged.into());
        }
        self.end = self.at + at.length() as u32;
        Ok(())
    }

    /// Reads on, if the buffer does not have so many blocks from `at` on.
    fn need(&mut self, medium: &dyn Device, blocks: u32, leaves_end: u32) -> Result<(), MediaError> {
        let layout = self.table.layout;
        let wanted = blocks * layout.block_bytes;
        if self.at >= self.start && self.at + wanted <= self.start + self.bytes.len() as u32 {
            return Ok(());
        }
        let count = wanted.max(STREAM_BYTES.next_multiple_of(layout.block_bytes));
        self.bytes.resize(count.min(leaves_end - self.at) as usize, 0);
        self.start = self.at;
        let offset = layout.segment_offset(self.table.place.slot) + u64::from(self.at);
        let read = medium.read_at(offset, &mut self.bytes);
        if read.is_err() {
            self.bytes.clear();
        }
        read
    }

    /// The present entry, after [`Stream::fill`] said that there is one.
    pub(crate) fn entry(&self) -> Option<(&[u8], Held<'_>)> {
        Page::parse(&self.page)?.leaf(self.index)
    }

    /// Goes on to the next entry.
    pub(crate) fn advance(&mut self) {
        self.index += 1;
    }

    /// Goes on behind the present page.
    fn skip_page(&mut self) {
        self.index = usize::MAX;
    }

    /// The place of the present page in the area.
    pub(crate) fn offset(&self) -> u64 {
        self.table.layout.segment_offset(self.table.place.slot) + u64::from(self.at)
    }

    /// Goes on behind a page that could not be read: at the next block in which a leaf begins. For repairs.
    pub(crate) fn skip_damage(&mut self, medium: &dyn Device) {
        let layout = self.table.layout;
        let leaves_end = self.table.meta.leaves_end * layout.block_bytes;
        self.page.clear();
        let (mut at, block) = (self.at + layout.block_bytes, layout.block_bytes);
        while at < leaves_end {
            (self.at, self.index) = (at, 0);
            if self.load(medium, leaves_end).is_ok() {
                return;
            }
            self.page.clear();
            at += block;
        }
        self.end = leaves_end;
    }
}

/// Checks a table whole: each page, the order of its keys, that each key is found from the topmost page, and the counts.
pub(crate) fn verify(table: &Arc<Table>, medium: &dyn Device) -> Result<(), ReadError> {
    let damaged = table.damaged(0);
    let mut stream = table.stream();
    let mut pages = Uncached(medium);
    let mut last: Option<Vec<u8>> = None;
    let mut entries = 0;
    while stream.fill(medium)? {
        let wrong = FetchError::Damaged {
            offset: stream.offset(),
        };
        let (key, held) = stream.entry().ok_or(wrong)?;
        let is_first = last.is_none();
        let is_next =
            last.as_ref().is_none_or(|last| **last < *key) && (!is_first || *key == *table.meta.first);
        // The way from the root is that of the page: it need not be gone for each of its entries.
        if stream.index == 0 {
            let found = table.get(&mut pages, key, filter::hash(key))?;
            let is_same =
                found.is_some_and(|piece| piece.version == held.version && piece.value() == held.value);
            if !is_same {
                return Err(wrong.into());
            }
        } else if !table.may_have(&mut pages, filter::hash(key))? {
            return Err(wrong.into());
        }
        if !is_next {
            return Err(wrong.into());
        }
        last = Some(key.to_vec());
        entries += 1;
        stream.advance();
    }
    let is_whole = last.as_deref() == Some(&*table.meta.last) && entries == table.meta.entries;
    if is_whole { Ok(()) } else { Err(damaged.into()) }
}

/// The header of a table in the first sector of its segment, if the sector is intact.
pub(crate) fn header_of(layout: &Layout, slot: u32, sector: &[u8]) -> Option<Header> {
    let number = layout.sector_number(slot, 0);
    let tag = sector::tag_of(sector, Role::Checkpoint, number)?;
    let header = Header::parse(&sector[SECTOR_HEADER_BYTES as usize..])?;
    (header.generation as u32 == tag).then_some(header)
}

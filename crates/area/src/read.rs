//! Reading values: looked up under the lock, then read without it, by pages through the cache.
//!
//! All pages that a call lacks go to the medium in one submission. A segment may be used anew between the look and the
//! read. Then its tags show that, and the value is looked up again. A page in the cache is never of the wrong generation, as
//! the generation is a part of its name.

use crate::cache::{Blank, Cache, Page, PageKey};
use crate::error::AreaError;
use crate::shared::Shared;
use smallvec::SmallVec;
use std::io;
use std::ops::{Deref, Range};
use std::sync::Arc;
use store::{
    Engine, Fetch, FetchError, Found, Layout, PageView, Pages, Piece, Search, StructureId, SubmitError,
};

/// Lookups of a value that moves while it is read.
const READS_MAX: u32 = 64;
/// Bytes of a page, unless blocks are larger, or segments are no multiple. A smaller read takes no less time on any device.
const PAGE_BYTES: u32 = 4096;
/// Values whose blocks are more than this together are read by more than one submission.
const AHEAD_BYTES_MAX: usize = 1 << 20;

/// The place of a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageAt {
    pub key: PageKey,
    /// In bytes of the area.
    pub offset: u64,
}

/// A page that is here, for a while or for good.
#[derive(Clone)]
pub(crate) struct ReadPage {
    pub page: Page,
    /// The page never changes: it was kept, or is now.
    pub is_final: bool,
}

impl ReadPage {
    fn view(&self) -> PageView<'_> {
        PageView {
            bytes: &self.page,
            is_final: self.is_final,
        }
    }
}

/// Bytes of a page of this area's cache.
pub(crate) fn page_bytes(layout: &Layout) -> u32 {
    let page = layout.block_bytes.max(PAGE_BYTES);
    match layout.segment_bytes.is_multiple_of(page) && page.is_multiple_of(layout.block_bytes) {
        true => page,
        false => layout.block_bytes,
    }
}

/// A value. It lies in the cache if it was stored in one piece: it is not copied then, and its page stays in memory as long as
/// it is held.
pub struct Value(Bytes);

enum Bytes {
    Own(Vec<u8>),
    Memory(Arc<[u8]>),
    Page(Page, Range<usize>),
    Piece(Piece<Page>),
}

impl Value {
    fn of_memory(bytes: Arc<[u8]>) -> Self {
        Self(Bytes::Memory(bytes))
    }

    /// A copy, or the value itself if it has its own memory.
    pub fn into_vec(self) -> Vec<u8> {
        match self.0 {
            Bytes::Own(bytes) => bytes,
            Bytes::Memory(bytes) => bytes.to_vec(),
            Bytes::Page(page, range) => page[range].to_vec(),
            Bytes::Piece(piece) => piece.value().unwrap_or_default().to_vec(),
        }
    }
}

impl Deref for Value {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Bytes::Own(bytes) => bytes,
            Bytes::Memory(bytes) => bytes,
            Bytes::Page(page, range) => &page[range.clone()],
            Bytes::Piece(piece) => piece.value().unwrap_or_default(),
        }
    }
}

impl std::fmt::Debug for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (**self).fmt(f)
    }
}

impl From<Piece<Page>> for Value {
    fn from(piece: Piece<Page>) -> Self {
        Self(Bytes::Piece(piece))
    }
}

/// A reader's view of the area: its engine, medium and cache.
#[derive(Clone, Copy)]
pub(crate) struct Reading<'a> {
    pub shared: &'a Shared,
    pub cache: &'a Cache,
    /// Bytes of a page of the log.
    pub page_bytes: u32,
}

/// Pages of tables, each through the cache.
impl Pages for Reading<'_> {
    type Page = Page;
    type Error = AreaError;

    fn page(&mut self, at: &store::PageAt) -> Result<Page, AreaError> {
        match self.cached(at) {
            Some(page) => Ok(page),
            None => self.page_of_table(at),
        }
    }
}

/// The same for a range, whose pages are read several at a time. They wait for it here, so that the cache takes them for what is asked
/// for once.
pub(crate) struct Ahead<'a> {
    reading: Reading<'a>,
    waiting: Vec<(PageKey, Page)>,
}

impl Ahead<'_> {
    pub(crate) fn shared(&self) -> &Shared {
        self.reading.shared
    }
}

impl Pages for Ahead<'_> {
    type Page = Page;
    type Error = AreaError;

    fn page(&mut self, at: &store::PageAt) -> Result<Page, AreaError> {
        let key = key_of(at);
        match self.waiting.iter().position(|(waiting, _)| *waiting == key) {
            Some(nth) => Ok(self.waiting.swap_remove(nth).1),
            None => self.reading.page(at),
        }
    }

    fn ahead(&mut self, wanted: &[store::PageAt]) {
        if self.reading.cache.is_there() {
            self.reading.read_ahead(wanted, &mut self.waiting);
        }
    }
}

/// The name of a page of a table.
pub(crate) fn key_of(at: &store::PageAt) -> PageKey {
    let (generation, index) = at.name();
    PageKey { generation, index }
}

/// The same for a lookup, which says whether a page had to be read for it.
struct Lookup<'a> {
    reading: Reading<'a>,
    has_read: bool,
}

impl Pages for Lookup<'_> {
    type Page = Page;
    type Error = AreaError;

    fn page(&mut self, at: &store::PageAt) -> Result<Page, AreaError> {
        if let Some(page) = self.reading.cached(at) {
            return Ok(page);
        }
        self.has_read = true;
        self.reading.page_of_table(at)
    }
}

/// The outcome of a lookup.
enum Place {
    Here(Option<Value>),
    Medium(Found),
    Tables(Search),
}

/// Passes on what a lookup in a structure has found. To find nothing is an error if the structure was dropped.
///
/// # Errors
/// [`SubmitError::NoStructure`].
#[inline]
pub(crate) fn found<T>(
    engine: &Engine,
    structure: StructureId,
    found: Option<T>,
) -> Result<Option<T>, AreaError> {
    match found {
        None if !engine.has(structure) => Err(SubmitError::NoStructure.into()),
        found => Ok(found),
    }
}

/// A value that is still to be read.
struct Missing {
    /// Its place among those asked for.
    place: usize,
    /// The place, if it was found damaged the last time: a segment that is written anew at this moment looks so once.
    damage: Option<Found>,
}

impl<'a> Reading<'a> {
    fn cached(&self, at: &store::PageAt) -> Option<Page> {
        self.cache.get(key_of(at))
    }

    /// A page of a table, from the medium.
    fn page_of_table(&self, at: &store::PageAt) -> Result<Page, AreaError> {
        let mut blank = Blank::new(at.length());
        self.shared
            .storage
            .read_all(std::iter::once((at.offset(), &mut *blank)))
            .map_err(|source| AreaError::Read(source.kind()))?;
        self.keep(at, &blank).map_err(AreaError::from)
    }

    /// The page, which the cache keeps from now on, from the bytes that were read.
    fn keep(&self, at: &store::PageAt, bytes: &[u8]) -> Result<Page, FetchError> {
        let key = key_of(at);
        let mut draft = self.cache.draft(key, at.page_bytes());
        at.extract(bytes, &mut draft)?;
        let page = draft.finish();
        self.cache.keep(key, &page);
        Ok(page)
    }

    /// The same reader for a range.
    pub(crate) fn ahead(self) -> Ahead<'a> {
        Ahead {
            reading: self,
            waiting: Vec::new(),
        }
    }

    /// Takes some pages from the cache, and reads those that it lacks, neighbours together, by one submission. A page that cannot be
    /// read is left out: its error shows when it is asked for.
    fn read_ahead(&self, wanted: &[store::PageAt], found: &mut Vec<(PageKey, Page)>) {
        let mut missing: SmallVec<[&store::PageAt; 16]> = SmallVec::new();
        for at in wanted {
            match self.cached(at) {
                Some(page) => found.push((key_of(at), page)),
                None => missing.push(at),
            }
        }
        if missing.is_empty() {
            return;
        }
        missing.sort_unstable_by_key(|at| at.offset());
        let end = |at: &store::PageAt| at.offset() + at.length() as u64;
        let neighbours: SmallVec<[&[&store::PageAt]; 8]> =
            missing.chunk_by(|a, b| end(a) == b.offset()).collect();
        let bytes = |some: &[&store::PageAt]| some.iter().map(|at| at.length()).sum();
        let mut blanks: SmallVec<[Blank; 8]> =
            neighbours.iter().map(|some| Blank::new(bytes(some))).collect();
        let places = neighbours.iter().map(|some| some[0].offset());
        let reads = places.zip(blanks.iter_mut().map(|blank| &mut **blank));
        if self.shared.storage.read_all(reads).is_err() {
            return;
        }
        for (some, blank) in neighbours.iter().zip(&blanks) {
            let mut rest = &blank[..];
            for at in *some {
                let (bytes, later) = rest.split_at(at.length());
                rest = later;
                if let Ok(page) = self.keep(at, bytes) {
                    found.push((key_of(at), page));
                }
            }
        }
    }

    /// The value that tables have.
    fn search(&self, search: &Search) -> Result<Option<Value>, AreaError> {
        // Rows are of the present.
        if search.is_past() {
            return Ok(search.run(&mut { *self })?.map(Value::from));
        }
        if let Some(row) = self.cache.row(search.key()) {
            let (page, range) = row.into_value();
            return Ok(Some(Value(Bytes::Page(page, range))));
        }
        let mut lookup = Lookup {
            reading: *self,
            has_read: false,
        };
        let piece = search.run(&mut lookup)?;
        if let Some(value) = piece.as_ref().and_then(Piece::value)
            && !lookup.has_read
        {
            // No newer entry of the key can leave memory meanwhile.
            let guard = self.shared.lock();
            if guard.engine.freezes() == search.freezes() {
                self.cache.keep_row(search.key(), value);
            }
        }
        Ok(piece.map(Value::from))
    }

    /// The pages, in the order of `wanted`: from the cache, or from the medium by one submission. `is_final` says whether a page
    /// that was read is intact and can never change: then it is kept.
    pub(crate) fn pages(
        &self,
        wanted: &[PageAt],
        is_final: impl Fn(usize, &[u8]) -> bool,
    ) -> io::Result<SmallVec<[ReadPage; 2]>> {
        let kept = |at: &PageAt| {
            let page = self.cache.get(at.key)?;
            Some(ReadPage { page, is_final: true })
        };
        let mut pages: SmallVec<[Option<ReadPage>; 2]> = wanted.iter().map(kept).collect();
        let mut missing: SmallVec<[usize; 8]> =
            (0..wanted.len()).filter(|&nth| pages[nth].is_none()).collect();
        if !missing.is_empty() {
            // Those of one page come together, in the order of the medium.
            missing.sort_unstable_by_key(|&nth| wanted[nth].key);
            let mut firsts = missing.clone();
            firsts.dedup_by_key(|nth| wanted[*nth].key);
            let blank = |_| Blank::new(self.page_bytes as usize);
            let mut blanks: SmallVec<[_; 8]> = firsts.iter().map(blank).collect();
            let places = firsts.iter().map(|&nth| wanted[nth].offset);
            self.shared
                .storage
                .read_all(places.zip(blanks.iter_mut().map(|blank| &mut **blank)))?;
            let mut read = firsts.iter().zip(blanks).map(|(&nth, blank)| {
                let mut draft = self.cache.draft(wanted[nth].key, blank.len());
                draft.copy_from_slice(&blank);
                let page = draft.finish();
                let is_final = is_final(nth, &page);
                if is_final {
                    self.cache.keep(wanted[nth].key, &page);
                }
                (wanted[nth].key, ReadPage { page, is_final })
            });
            let mut last = read.next();
            for nth in missing {
                while last.as_ref().is_some_and(|(key, _)| *key != wanted[nth].key) {
                    last = read.next();
                }
                pages[nth] = last.as_ref().map(|(_, page)| page.clone());
            }
        }
        let all = pages.into_iter();
        Ok(all.map(|page| page.expect("kept, or read above")).collect())
    }

    /// The value that `find` finds, read from the medium if need be.
    pub(crate) fn value(
        &self,
        mut find: impl FnMut(&Engine) -> Result<Option<Fetch>, AreaError>,
    ) -> Result<Option<Value>, AreaError> {
        let first = find(&self.shared.lock().engine)?;
        // What most reads find needs none of the lists below.
        match &first {
            None => return Ok(None),
            Some(Fetch::Read(found)) => {
                let value = match self.cache.is_there() {
                    true => self.kept(found),
                    // Whatever is wrong is looked at again below.
                    false => self.blocks_of(found)?.ok(),
                };
                if value.is_some() {
                    return Ok(value);
                }
            }
            Some(Fetch::Search(search)) => {
                return self.search(search);
            }
            Some(Fetch::Ready(bytes)) => return Ok(Some(Value::of_memory(Arc::clone(bytes)))),
            Some(Fetch::Lost) => {}
        }
        let mut first = Some(first);
        let mut values = self.values(1, |engine, _| first.take().map_or_else(|| find(engine), Ok))?;
        Ok(values.pop().expect("one was asked for"))
    }

    /// The value, from its own blocks and no others.
    fn blocks_of(&self, found: &Found) -> Result<Result<Value, FetchError>, AreaError> {
        let mut bytes = vec![0; found.length()];
        let read = self.shared.storage.read(found.offset(), &mut bytes);
        read.map_err(|source| AreaError::Read(source.kind()))?;
        Ok(found.extract(&bytes).map(|value| Value(Bytes::Own(value))))
    }

    /// The value, if it lies in one page that is in the cache.
    fn kept(&self, found: &Found) -> Option<Value> {
        let page_bytes = self.page_bytes;
        let pages = found.pages(page_bytes);
        if pages.len() != 1 {
            return None;
        }
        let key = PageKey {
            generation: found.generation(),
            index: pages.start,
        };
        let page = self.cache.get(key)?;
        value_of(found, page_bytes, &[ReadPage { page, is_final: true }]).ok()
    }

    /// `count` values, of which `find` finds each: all lookups under one lock, and all reads in one submission.
    pub(crate) fn values(
        &self,
        count: usize,
        mut find: impl FnMut(&Engine, usize) -> Result<Option<Fetch>, AreaError>,
    ) -> Result<SmallVec<[Option<Value>; 1]>, AreaError> {
        let mut values: SmallVec<[Option<Value>; 1]> = (0..count).map(|_| None).collect();
        let start = |place| Missing { place, damage: None };
        let mut missing: SmallVec<[Missing; 1]> = (0..count).map(start).collect();
        for _ in 0..READS_MAX {
            let found = self.look_up(&missing, &mut find)?;
            let mut left: SmallVec<[Missing; 1]> = SmallVec::new();
            let mut to_read: SmallVec<[(Missing, Found); 1]> = SmallVec::new();
            for (one, found) in missing.into_iter().zip(found) {
                match found {
                    Place::Here(value) => values[one.place] = value,
                    Place::Medium(found) if !self.cache.is_there() => match self.blocks_of(&found)? {
                        Ok(value) => values[one.place] = Some(value),
                        Err(_) => to_read.push((one, found)),
                    },
                    Place::Medium(found) => to_read.push((one, found)),
                    Place::Tables(search) => {
                        values[one.place] = self.search(&search)?;
                    }
                }
            }
            self.read(to_read, &mut values, &mut left)?;
            if left.is_empty() {
                return Ok(values);
            }
            missing = left;
        }
        Err(AreaError::Read(io::ErrorKind::TimedOut))
    }

    fn look_up(
        &self,
        missing: &[Missing],
        find: &mut impl FnMut(&Engine, usize) -> Result<Option<Fetch>, AreaError>,
    ) -> Result<SmallVec<[Place; 1]>, AreaError> {
        let guard = self.shared.lock();
        let look = |one: &Missing| match find(&guard.engine, one.place)? {
            None => Ok(Place::Here(None)),
            Some(Fetch::Ready(bytes)) => Ok(Place::Here(Some(Value::of_memory(bytes)))),
            Some(Fetch::Lost) => Err(AreaError::Lost),
            Some(Fetch::Read(found)) => Ok(Place::Medium(found)),
            Some(Fetch::Search(search)) => Ok(Place::Tables(search)),
        };
        missing.iter().map(look).collect()
    }

    /// Reads what was found, in as many submissions as [`AHEAD_BYTES_MAX`] asks for. Values that have moved are `left`.
    fn read(
        &self,
        found: SmallVec<[(Missing, Found); 1]>,
        values: &mut [Option<Value>],
        left: &mut SmallVec<[Missing; 1]>,
    ) -> Result<(), AreaError> {
        let mut rest = &found[..];
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = rest.iter().take_while(|(_, found)| {
                bytes += found.length();
                bytes <= AHEAD_BYTES_MAX
            });
            let (now, later) = rest.split_at(fits.count().max(1));
            self.read_some(now, values, left)?;
            rest = later;
        }
        Ok(())
    }

    fn read_some(
        &self,
        found: &[(Missing, Found)],
        values: &mut [Option<Value>],
        left: &mut SmallVec<[Missing; 1]>,
    ) -> Result<(), AreaError> {
        let page_bytes = self.page_bytes;
        let mut wanted: SmallVec<[(PageAt, Found); 2]> = SmallVec::new();
        for (_, found) in found {
            let at = |index| PageAt {
                key: PageKey {
                    generation: found.generation(),
                    index,
                },
                offset: found.page_offset(page_bytes, index),
            };
            wanted.extend(found.pages(page_bytes).map(|index| (at(index), *found)));
        }
        let places: SmallVec<[PageAt; 2]> = wanted.iter().map(|(at, _)| *at).collect();
        let is_final = |nth: usize, bytes: &[u8]| {
            let (at, found) = &wanted[nth];
            found.is_final(page_bytes, at.key.index, bytes)
        };
        let pages = self
            .pages(&places, is_final)
            .map_err(|source| AreaError::Read(source.kind()))?;
        let mut rest = &pages[..];
        for (one, found) in found {
            let (pages, later) = rest.split_at(found.pages(page_bytes).len());
            rest = later;
            match value_of(found, page_bytes, pages) {
                Ok(value) => values[one.place] = Some(value),
                Err(FetchError::Damaged { offset }) if one.damage == Some(*found) => {
                    return Err(AreaError::Damaged { offset });
                }
                Err(error) => left.push(Missing {
                    place: one.place,
                    damage: matches!(error, FetchError::Damaged { .. }).then_some(*found),
                }),
            }
        }
        Ok(())
    }
}

fn value_of(found: &Found, page_bytes: u32, pages: &[ReadPage]) -> Result<Value, FetchError> {
    if let ([ReadPage { page, is_final: true }], Some(range)) = (pages, found.in_one_piece(page_bytes)) {
        return Ok(Value(Bytes::Page(page.clone(), range)));
    }
    let bytes = found.extract_paged(page_bytes, |nth| pages[nth].view())?;
    Ok(Value(Bytes::Own(bytes)))
}

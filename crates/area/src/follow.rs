//! Following an area that another process has open and writes: read-only, and without disturbing it.
//!
//! [`store::Follower`] decides what is shown. This is its medium, which reads several places by one submission, and what a program asks
//! it for. Nobody waits for a refresh but who asked for it.
//!
//! A value may be gone when it is read, as the owner has used its segment anew. A *steady* follower says so
//! ([`AreaError::SnapshotGone`]), and so shows one moment, whole, until it is refreshed. Any other one refreshes by itself, and looks
//! again: all that a call returns is of one moment, at least as new as that of the call before.

use crate::backend::Storage;
use crate::cache::{Blank, Cache, CacheStats, Page};
use crate::catalog::{CatalogClient, ClientError, OpenedArea};
use crate::error::AreaError;
use crate::read::key_of;
use crate::sync::{Arc, Mutex, PoisonError, RwLock};
use crate::view::Entry;
use base::{Device, MediaError};
use os::{MediaFile, MediaOpenError};
use std::fs::File;
use std::io;
use std::ops::{Bound, ControlFlow, Range, RangeBounds};
use std::path::Path;
use std::time::Duration;
use store::{
    Durability, Fetch, FetchError, FollowError, FollowStats, Followed, Found, Kind, Moment, OpenError,
    OwnedValue, PageAt, Pages, RangeEnd, StructureId, Way,
};

/// Refreshes for one call, before it is told that the area changes too fast.
const REFRESHES_MAX: u32 = 64;
/// Looks at damage that may be a write under way.
const DAMAGE_LOOKS: u32 = 5;
/// The first pause between two looks, and how many times it is doubled.
const PAUSE: Duration = Duration::from_micros(50);
const PAUSE_DOUBLED_MAX: u32 = 8;
/// Offsets and lengths that every device with direct I/O takes.
const BLOCK_BYTES: u64 = 4096;
/// Entries of a range that are looked up at once.
const STEP: usize = 256;

/// How an area is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FollowOptions {
    /// All reads between two refreshes show one moment, or fail with [`AreaError::SnapshotGone`].
    pub is_steady: bool,
    /// Flush the medium before a record is shown that its owner may not know to be durable. Without it, what was shown may be gone after
    /// a power cut.
    pub flushes: bool,
    /// Memory that the cache of tables may take; 0 for none.
    pub cache_bytes_max: u64,
}

impl Default for FollowOptions {
    /// Everything that is shown is durable. A moment that is gone makes way for a later one. The cache has 32 MiB.
    fn default() -> Self {
        Self {
            is_steady: false,
            flushes: true,
            cache_bytes_max: 32 << 20,
        }
    }
}

/// An area of another process, as of a moment; clones are the same follower.
#[derive(Clone)]
pub struct Follower(Arc<Inner>);

struct Inner {
    medium: FollowedFile,
    state: RwLock<store::Follower>,
    /// One refresh at a time.
    refreshing: Mutex<()>,
    cache: Cache,
    options: FollowOptions,
}

/// The file or device of an area that is followed. It is only read.
pub struct FollowedFile {
    storage: Storage,
    flushes: bool,
}

impl FollowedFile {
    /// Opens it, whoever has it. With `flushes`, [`Followed::sync`] flushes it.
    ///
    /// # Errors
    /// It is not there, or may not be read.
    pub fn open(path: &Path, flushes: bool) -> Result<Self, MediaOpenError> {
        let file = MediaFile::open_to_follow(path)?;
        Ok(Self::of(file, flushes))
    }

    fn of(file: MediaFile, flushes: bool) -> Self {
        Self {
            storage: Storage::Direct(file),
            flushes,
        }
    }
}

impl Device for FollowedFile {
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), MediaError> {
        (&self.storage).read_at(offset, bytes)
    }

    fn write_at(&mut self, _: u64, _: &[u8]) -> Result<(), MediaError> {
        unreachable!("a follower writes nothing")
    }

    fn flush(&mut self) -> Result<(), MediaError> {
        unreachable!("a follower writes nothing")
    }

    fn capacity_bytes(&self) -> u64 {
        (&self.storage).capacity_bytes()
    }
}

impl Followed for FollowedFile {
    fn device(&self) -> &dyn Device {
        self
    }

    fn read_many(&self, places: &mut [(u64, Vec<u8>)]) -> Result<(), MediaError> {
        let fits = |(offset, bytes): &(u64, Vec<u8>)| {
            let end = offset + (bytes.len() as u64).next_multiple_of(BLOCK_BYTES);
            offset.is_multiple_of(BLOCK_BYTES) && end <= self.capacity_bytes()
        };
        if !places.iter().all(fits) {
            let mut all = places.iter_mut();
            return all.try_for_each(|(offset, bytes)| self.read_at(*offset, bytes));
        }
        let blank =
            |(_, bytes): &(u64, Vec<u8>)| Blank::new(bytes.len().next_multiple_of(BLOCK_BYTES as usize));
        let mut blanks: Vec<Blank> = places.iter().map(blank).collect();
        let offsets = places.iter().map(|(offset, _)| *offset);
        let all = offsets.zip(blanks.iter_mut().map(|blank| &mut **blank));
        self.storage.read_all(all).map_err(|_| MediaError::Io)?;
        for ((_, bytes), blank) in places.iter_mut().zip(&blanks) {
            let length = bytes.len();
            bytes.copy_from_slice(&blank[..length]);
        }
        Ok(())
    }

    fn sync(&self) -> Result<(), MediaError> {
        match &self.storage {
            Storage::Direct(file) if self.flushes => file.as_file().sync_data().map_err(|_| MediaError::Io),
            _ => Ok(()),
        }
    }

    fn pause(&self, look: u32) {
        pause(look);
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "the owner is at a write; it waits 13 ms at most"
)]
fn pause(look: u32) {
    std::thread::sleep(PAUSE * 2_u32.pow(look.min(PAUSE_DOUBLED_MAX)));
}

/// Why a read has no result yet.
enum Trouble {
    /// The moment is gone.
    Gone,
    Failed(AreaError),
}

impl From<AreaError> for Trouble {
    fn from(error: AreaError) -> Self {
        Self::Failed(error)
    }
}

impl From<FetchError> for Trouble {
    fn from(error: FetchError) -> Self {
        match error {
            FetchError::Moved => Self::Gone,
            FetchError::Damaged { offset } => Self::Failed(AreaError::Damaged { offset }),
        }
    }
}

/// Pages of tables, through the cache.
struct Reader<'a> {
    inner: &'a Inner,
}

impl Pages for Reader<'_> {
    type Page = Page;
    type Error = Trouble;

    fn page(&mut self, at: &PageAt) -> Result<Page, Trouble> {
        let key = key_of(at);
        if let Some(page) = self.inner.cache.get(key) {
            return Ok(page);
        }
        let mut blank = Blank::new(at.length());
        let page = self.inner.look(at.offset(), &mut blank, |bytes| {
            let mut draft = self.inner.cache.draft(key, at.page_bytes());
            at.extract(bytes, &mut draft)?;
            Ok(draft.finish())
        })?;
        self.inner.cache.keep(key, &page);
        Ok(page)
    }
}

impl Inner {
    fn state<R>(&self, f: impl FnOnce(&store::Follower) -> R) -> R {
        f(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn refresh(&self) -> Result<Moment, AreaError> {
        let _guard = self.refreshing.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let later = match self.state(|state| state.find(&self.medium)) {
                Err(FollowError::Open(OpenError::TooSmall { .. })) if self.has_grown()? => continue,
                later => later?,
            };
            let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
            if state.adopt(later) {
                return Ok(state.moment());
            }
        }
    }

    /// True if the file is larger than it was: its new size counts from now on.
    fn has_grown(&self) -> Result<bool, AreaError> {
        let Storage::Direct(file) = &self.medium.storage else {
            return Ok(false);
        };
        let before = file.capacity_bytes();
        Ok(file.grow(0)? > before)
    }

    /// Reads a place until it is what was looked for, is gone, or stays damaged.
    fn look<R>(
        &self,
        offset: u64,
        bytes: &mut [u8],
        extract: impl Fn(&[u8]) -> Result<R, FetchError>,
    ) -> Result<R, Trouble> {
        let mut looks = 0;
        loop {
            let read = std::iter::once((offset, &mut *bytes));
            let read = self.medium.storage.read_all(read);
            read.map_err(|source| AreaError::Read(source.kind()))?;
            match extract(bytes) {
                Ok(found) => return Ok(found),
                Err(FetchError::Moved) => return Err(Trouble::Gone),
                Err(FetchError::Damaged { offset }) => {
                    let why = self.state(|state| state.explain(&self.medium, offset));
                    match why.map_err(|_| AreaError::Read(io::ErrorKind::Other))? {
                        FetchError::Damaged { .. } if looks < DAMAGE_LOOKS => pause(looks),
                        why => return Err(why.into()),
                    }
                }
            }
            looks += 1;
        }
    }

    /// Does `f`, and does it again at a later moment if the moment is gone.
    fn at_a_moment<R>(
        &self,
        mut f: impl FnMut(&mut Reader<'_>) -> Result<R, Trouble>,
    ) -> Result<R, AreaError> {
        for _ in 0..REFRESHES_MAX {
            match f(&mut Reader { inner: self }) {
                Ok(found) => return Ok(found),
                Err(Trouble::Failed(error)) => return Err(error),
                Err(Trouble::Gone) if self.options.is_steady => return Err(AreaError::SnapshotGone),
                Err(Trouble::Gone) => drop(self.refresh()?),
            }
        }
        Err(FollowError::TooFast.into())
    }
}

impl Reader<'_> {
    /// The values of what was looked up: those of the log by one submission.
    fn values(&mut self, found: Vec<Option<Fetch>>) -> Result<Vec<Option<Vec<u8>>>, Trouble> {
        let of_log = |fetch: &Option<Fetch>| match fetch {
            Some(Fetch::Read(found)) => Some(*found),
            _ => None,
        };
        let places: Vec<Found> = found.iter().filter_map(of_log).collect();
        let mut blanks: Vec<Blank> = places.iter().map(|found| Blank::new(found.length())).collect();
        let all = places.iter().map(Found::offset);
        let all = all.zip(blanks.iter_mut().map(|blank| &mut **blank));
        let read = self.inner.medium.storage.read_all(all);
        read.map_err(|source| AreaError::Read(source.kind()))?;
        let mut read = places.iter().zip(&mut blanks);
        let value = |fetch: Option<Fetch>| {
            Ok(match fetch {
                None => None,
                Some(Fetch::Ready(bytes)) => Some(bytes.to_vec()),
                Some(Fetch::Lost) => return Err(AreaError::Lost.into()),
                Some(Fetch::Search(search)) => {
                    let piece = search.run(self)?;
                    piece.and_then(|piece| piece.value().map(<[u8]>::to_vec))
                }
                Some(Fetch::Read(_)) => {
                    let (place, blank) = read.next().expect("each has its place");
                    match place.extract(blank) {
                        Ok(value) => Some(value),
                        Err(_) => Some(
                            self.inner
                                .look(place.offset(), blank, |bytes| place.extract(bytes))?,
                        ),
                    }
                }
            })
        };
        found.into_iter().map(value).collect()
    }
}

impl Follower {
    /// Follows the area in the file or block device at `path`, whoever has it.
    ///
    /// # Errors
    /// There is none, it is damaged, or it changes faster than it can be read.
    pub fn open(path: &Path, options: FollowOptions) -> Result<Self, AreaError> {
        Self::follow(MediaFile::open_to_follow(path)?, options)
    }

    /// Follows the area in a file or block device that somebody has opened, for reading at least.
    ///
    /// # Errors
    /// As of [`Follower::open`].
    pub fn from_file(file: File, options: FollowOptions) -> Result<Self, AreaError> {
        Self::follow(MediaFile::from_file(file)?, options)
    }

    /// Follows the area that a catalog calls `name`: one that may be read, or an export. An export that its owner serves elsewhere is
    /// [`ClientError::Elsewhere`].
    ///
    /// # Errors
    /// The catalog refuses; or as of [`Follower::open`].
    pub fn open_in_catalog(
        catalog: &CatalogClient,
        name: &str,
        options: FollowOptions,
    ) -> Result<Self, AreaError> {
        match catalog.open(name, false)? {
            OpenedArea::Elsewhere(path) => Err(ClientError::Elsewhere(path).into()),
            OpenedArea::Area { file, .. } => Self::from_file(file, options),
        }
    }

    fn follow(file: MediaFile, options: FollowOptions) -> Result<Self, AreaError> {
        if options.is_steady {
            // Without such locks moments stay for a shorter time.
            let _ = file.note_follower();
        }
        let follower = Self(Arc::new(Inner {
            medium: FollowedFile::of(file, options.flushes),
            state: RwLock::default(),
            refreshing: Mutex::new(()),
            cache: Cache::new(options.cache_bytes_max),
            options,
        }));
        follower.refresh()?;
        Ok(follower)
    }

    /// Shows what is durable now, and what comes until the call returns: the moment.
    ///
    /// # Errors
    /// The area is damaged, or changes faster than it can be read. It shows the moment before.
    pub fn refresh(&self) -> Result<Moment, AreaError> {
        self.0.refresh()
    }

    /// The moment that it shows.
    pub fn moment(&self) -> Moment {
        self.0.state(store::Follower::moment)
    }

    /// True if all reads between two refreshes show one moment, or fail.
    pub fn is_steady(&self) -> bool {
        self.0.options.is_steady
    }

    /// Which area it is.
    pub fn uuid(&self) -> [u8; 16] {
        self.0.state(store::Follower::uuid)
    }

    /// Counters and state.
    pub fn stats(&self) -> FollowStats {
        self.0.state(store::Follower::stats)
    }

    /// Counts and memory of the cache.
    pub fn cache_stats(&self) -> CacheStats {
        self.0.cache.stats()
    }

    /// Name, number, kind, durability and entries of all structures.
    pub fn structures(&self) -> Vec<(String, StructureId, Kind, Durability, u64)> {
        self.0.state(|state| {
            let all = state.structures();
            all.map(|(name, id, kind, durability, entries)| (name.to_owned(), id, kind, durability, entries))
                .collect()
        })
    }

    /// The structure called `name`, and its kind.
    pub fn structure(&self, name: &str) -> Option<(StructureId, Kind)> {
        self.0.state(|state| state.lookup(name))
    }

    /// How many entries a structure has; an estimate if a map or tree has left its owner's memory.
    pub fn len(&self, structure: StructureId) -> u64 {
        self.0.state(|state| state.len(structure))
    }

    /// The value of a key of a map or tree.
    ///
    /// # Errors
    /// It is damaged, or cannot be read; or [`AreaError::SnapshotGone`].
    pub fn get(&self, map: StructureId, key: &[u8]) -> Result<Option<Vec<u8>>, AreaError> {
        Ok(self.get_many(map, &[key])?.pop().flatten())
    }

    /// The values of some keys, in their order, of one moment.
    ///
    /// # Errors
    /// As of [`Follower::get`].
    pub fn get_many(&self, map: StructureId, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, AreaError> {
        self.0.at_a_moment(|reader| {
            let look = |state: &store::Follower| keys.iter().map(|key| state.get(map, key)).collect();
            let found = reader.inner.state(look);
            reader.values(found)
        })
    }

    /// The first position of a log or queue, and the one that comes next; nothing of what has none.
    pub fn positions(&self, structure: StructureId) -> Range<u64> {
        self.0.state(|state| state.positions(structure)).unwrap_or(0..0)
    }

    /// The entry at a position of a log or queue; `None` if it was trimmed or acknowledged, or is not there yet.
    ///
    /// # Errors
    /// As of [`Follower::get`].
    pub fn read(&self, structure: StructureId, position: u64) -> Result<Option<Vec<u8>>, AreaError> {
        let mut values = self.read_many(structure, position..position.saturating_add(1))?;
        Ok(values.pop().flatten())
    }

    /// The entries at some positions, in their order, of one moment.
    ///
    /// # Errors
    /// As of [`Follower::get`].
    pub fn read_many(
        &self,
        structure: StructureId,
        positions: Range<u64>,
    ) -> Result<Vec<Option<Vec<u8>>>, AreaError> {
        self.0.at_a_moment(|reader| {
            let all = positions.clone();
            let look = |state: &store::Follower| all.map(|it| state.read(structure, it)).collect();
            let found = reader.inner.state(look);
            reader.values(found)
        })
    }

    /// The keys of a map or tree, in order, of one moment.
    ///
    /// # Errors
    /// As of [`Follower::get`].
    pub fn keys(&self, map: StructureId) -> Result<Vec<Box<[u8]>>, AreaError> {
        self.0.at_a_moment(|reader| {
            let part = reader.inner.state(|state| state.keys(map));
            let mut keys = Vec::new();
            part.visit(reader, |key, _| {
                keys.push(key.into());
                ControlFlow::Continue(())
            })?;
            Ok(keys)
        })
    }

    /// Keys of a range of a tree and their values, in order. Of a steady follower all of it is of one moment; else a later part may be of
    /// a later one.
    pub fn range<'a>(
        &'a self,
        tree: StructureId,
        range: impl RangeBounds<[u8]>,
    ) -> impl Iterator<Item = Result<Entry, AreaError>> + 'a {
        self.entries(tree, range, Way::Up)
    }

    /// The same in reverse order.
    pub fn range_rev<'a>(
        &'a self,
        tree: StructureId,
        range: impl RangeBounds<[u8]>,
    ) -> impl Iterator<Item = Result<Entry, AreaError>> + 'a {
        self.entries(tree, range, Way::Down)
    }

    /// The entries of a range in either order.
    pub(crate) fn entries<'a>(
        &'a self,
        tree: StructureId,
        range: impl RangeBounds<[u8]>,
        way: Way,
    ) -> impl Iterator<Item = Result<Entry, AreaError>> + 'a {
        let owned = |bound: Bound<&[u8]>| bound.map(<[u8]>::to_vec);
        let mut left = Some((owned(range.start_bound()), owned(range.end_bound())));
        let began = self.moment();
        let mut ready = Vec::new().into_iter();
        std::iter::from_fn(move || {
            loop {
                if let Some(entry) = ready.next() {
                    return Some(Ok(entry));
                }
                let bounds = left.take()?;
                if self.0.options.is_steady && self.moment() != began {
                    return Some(Err(AreaError::SnapshotGone));
                }
                match self.part(tree, &bounds, way) {
                    Ok((found, last)) => {
                        ready = found.into_iter();
                        left = last.map(Bound::Excluded).map(|last| match way {
                            Way::Up => (last, bounds.1),
                            Way::Down => (bounds.0, last),
                        });
                    }
                    Err(error) => return Some(Err(error)),
                }
            }
        })
    }

    /// Some entries of a range, of one moment, and behind which key it goes on.
    fn part(&self, tree: StructureId, (from, to): &Bounds, way: Way) -> Result<RangeStep, AreaError> {
        self.0.at_a_moment(|reader| {
            let bounds = (from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice));
            let part = reader
                .inner
                .state(|state| state.range(way, tree, bounds, STEP, None));
            let mut found: Vec<(Box<[u8]>, OwnedValue)> = Vec::new();
            let end = part.visit(reader, |key, value| {
                found.push((key.into(), value.to_owned()));
                match found.len() < STEP {
                    true => ControlFlow::Continue(()),
                    false => ControlFlow::Break(()),
                }
            })?;
            let next = match end {
                RangeEnd::Over => None,
                RangeEnd::Stopped => found.last().map(|(key, _)| key.to_vec()),
                RangeEnd::More { after, .. } => Some(after.into_vec()),
            };
            let fetches = found.iter().map(|(_, value)| match value {
                OwnedValue::Memory(fetch) => Some(fetch.clone()),
                OwnedValue::Table(_) => None,
            });
            let values = reader.values(fetches.collect())?;
            let entries = found
                .into_iter()
                .zip(values)
                .map(|((key, held), value)| match held {
                    OwnedValue::Table(value) => (key, value),
                    OwnedValue::Memory(_) => (key, value.unwrap_or_default()),
                });
            Ok((entries.collect(), next))
        })
    }
}

type Bounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// Entries of a range, and behind which key it goes on.
type RangeStep = (Vec<Entry>, Option<Vec<u8>>);

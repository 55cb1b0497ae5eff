//! Opening an area, and what is done to it as a whole.

use crate::awake;
use crate::backend::{self, NvmTiming, Storage, WriteCache};
use crate::cache::{Cache, CacheStats};
use crate::catalog::{CatalogClient, ClientError, OpenedArea};
use crate::error::AreaError;
use crate::fork;
use crate::own;
use crate::read::{self, Reading};
use crate::shared::{Guard, Shared};
use crate::sync::Arc;
use base::{Device, Rate};
use os::{MediaFile, MediaOpenError, MediaWarning, after_last_write};
use std::fmt;
use std::fs::File;
use std::mem;
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::thread::JoinHandle;
use store::catalog::protocol::{Code, NewArea, OWN, Request};
use store::{
    Durability, Engine, Kind, Layout, LayoutError, Older, Op, OpenError, Options, Receipt, RecoveryReport,
    Stats, StructureId, SubmitError, Ticket,
};

/// Looks of a full area for segments of tables that others read; reads take less than this many pauses.
const LOOKS_MAX: u32 = 64;
const LOOK_NS: u64 = 1_000_000;
/// Bytes that a cut leaves old or new on mapped memory.
const ATOMIC_BYTES: u32 = 8;
/// Blocks of areas in memory: a cache line is less than a sector.
const MEMORY_BLOCK_BYTES: u32 = 512;

/// Memory of the cache, unless it is chosen: as much as nobody misses.
const CACHE_BYTES: u64 = 32 << 20;

/// How an area is opened, and made if it is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AreaOptions {
    /// Size of a new area; 0 to refuse to make one.
    pub create_bytes: u64,
    /// Map the file instead of writing it: for persistent memory (DAX). Elsewhere it is slower than not to.
    pub is_mapped: bool,
    /// Writes under way at once.
    pub writes_in_flight_max: usize,
    /// Memory that the index may take.
    pub index_bytes_max: u64,
    /// Maps and trees leave memory for tables when they have so many bytes ([`Options::spill_bytes`]).
    pub spill_bytes: u64,
    /// Memory that the cache of what was read may take; 0 for none. It is taken as pages are read.
    pub cache_bytes_max: u64,
}

impl AreaOptions {
    /// A new area has `create_bytes`; the engine's defaults for the rest.
    pub fn new(create_bytes: u64) -> Self {
        let options = Options::default();
        Self {
            create_bytes,
            is_mapped: false,
            writes_in_flight_max: options.writes_in_flight_max,
            index_bytes_max: options.index_bytes_max,
            spill_bytes: options.spill_bytes,
            cache_bytes_max: CACHE_BYTES,
        }
    }

    /// The same within so much memory. Half of it is for the cache of what was read. Maps and trees leave for tables when they have an
    /// eighth; while they leave, their keys and values are there twice. The rest is for positions.
    pub fn with_memory(self, bytes: u64) -> Self {
        Self {
            index_bytes_max: bytes / 2,
            spill_bytes: bytes / 8,
            cache_bytes_max: bytes / 2,
            ..self
        }
    }

    fn engine(&self) -> Options {
        Options {
            writes_in_flight_max: self.writes_in_flight_max,
            index_bytes_max: self.index_bytes_max,
            spill_bytes: self.spill_bytes,
        }
    }
}

/// A storage area of this process; clones are the same area. It is closed when the last clone, and the last structure
/// of it, is gone.
#[derive(Clone)]
pub struct Area(Arc<Owner>);

/// Ends the area's thread.
struct Owner {
    shared: Arc<Shared>,
    cache: Arc<Cache>,
    /// Bytes of a page of the log.
    page_bytes: u32,
    /// The area's own, and the one of its tables.
    threads: [Option<JoinHandle<()>>; 2],
    report: RecoveryReport,
    details: Details,
    /// The process that opened it.
    generation: u32,
}

/// About the medium.
struct Details {
    warning: Option<MediaWarning>,
    write_cache: WriteCache,
    descriptor: Option<RawFd>,
    /// Somebody else decides on the file's size.
    has_given_size: bool,
}

impl Drop for Owner {
    fn drop(&mut self) {
        if !fork::is_present(self.generation) {
            self.leave_to_parent();
            return;
        }
        // What lazy structures were told last. A failure shows at the next opening.
        let guard = self.shared.lock();
        let newest = guard.engine.newest();
        let _ = self.shared.wait(guard, newest);
        self.shared.close();
        for thread in self.threads.iter_mut().filter_map(Option::take) {
            // Its panic was reported by itself.
            let _ = thread.join();
        }
    }
}

impl Owner {
    /// In a forked child: nothing of the parent is touched. The threads are not here, and their memory stays as it is.
    fn leave_to_parent(&mut self) {
        mem::forget(mem::take(&mut self.threads));
        mem::forget(Arc::clone(&self.shared));
        if let Some(fd) = self.details.descriptor {
            // SAFETY: the child's copy, which nothing uses any more: the area, and with it the medium, is never dropped here.
            unsafe { libc::close(fd) };
        }
    }
}

/// An operation that was submitted.
#[derive(Clone)]
pub struct Pending {
    area: Area,
    ticket: Ticket,
}

impl Area {
    /// Opens the area in a file or block device, which belongs to this process from now on. A missing file, or one of zeros,
    /// becomes an area of `create_bytes`. A block device does not: [`Area::format`] makes an area on one.
    pub fn open(path: &Path, options: &AreaOptions) -> Result<Self, AreaError> {
        let create_bytes = options.create_bytes;
        let is_wanted = create_bytes > 0;
        let create = || {
            may_be_made(create_bytes)?;
            Ok::<_, AreaError>(MediaFile::open(path, create_bytes, true)?)
        };
        let (medium, is_new) = match MediaFile::open(path, 0, false) {
            Err(MediaOpenError::Missing(_)) if is_wanted => (create()?, true),
            Ok(medium) if is_wanted && is_empty(&medium)? => {
                drop(medium);
                (create()?, false)
            }
            other => (other?, false),
        };
        if is_wanted && is_blank(&medium)? {
            if medium.is_device()? {
                return Err(AreaError::NotFormatted(path.to_owned()));
            }
            make(&medium, path, options).inspect_err(|_| {
                if is_new {
                    // What it fails with is less to the point than why there is no area.
                    let _ = std::fs::remove_file(path);
                }
            })?;
        }
        Self::open_medium(medium, options)
    }

    /// Makes the block device, or file, at `path` an area of `create_bytes`, or of all of it if that is 0. Only one that holds
    /// nothing: [`os::MediaFile::find_data`].
    pub fn format(path: &Path, options: &AreaOptions) -> Result<(), AreaError> {
        let medium = MediaFile::open(path, 0, false)?;
        make(&medium, path, options)
    }

    /// Opens the area that a catalog calls `name`, in all of its space: NAME is an area of this user, UID/NAME one of another user, and
    /// a name that is neither is an export. One that the catalog does not have becomes one of
    /// `create_bytes`, with mode 0600. An area that its owner serves elsewhere is [`ClientError::Elsewhere`].
    pub fn open_in_catalog(
        catalog: &CatalogClient,
        name: &str,
        options: &AreaOptions,
    ) -> Result<Self, AreaError> {
        let is_refused =
            |error: &ClientError, why| matches!(error, ClientError::Refused { code, .. } if *code == why);
        let open = || {
            after_last_write(
                || catalog.open(name, true),
                |error| is_refused(error, Code::InUse),
            )
        };
        let opened = match open() {
            // Nobody makes an area for another user in passing.
            Err(error)
                if is_refused(&error, Code::Unknown) && options.create_bytes > 0 && !name.contains('/') =>
            {
                catalog.change(&Request::Create(NewArea {
                    name: name.to_owned(),
                    bytes: options.create_bytes,
                    owner: OWN,
                    group: OWN,
                    mode: 0o600,
                    rate: Rate::UNLIMITED,
                }))?;
                open()?
            }
            other => other?,
        };
        let (file, is_mapped) = match opened {
            OpenedArea::Elsewhere(path) => return Err(ClientError::Elsewhere(path).into()),
            OpenedArea::Area { file, is_mapped, .. } => (file, is_mapped),
        };
        let mut medium = MediaFile::from_file(file)?;
        let options = AreaOptions {
            create_bytes: medium.capacity_bytes(),
            is_mapped: options.is_mapped || is_mapped,
            ..*options
        };
        match is_blank(&medium)? {
            true => make(&medium, Path::new(name), &options)?,
            false => drop(store::grow(&mut medium, None)?),
        }
        Self::open_sized(medium, &options, true)
    }

    /// Opens the area in a file or block device that somebody has opened, for this process alone.
    pub fn from_file(file: File, options: &AreaOptions) -> Result<Self, AreaError> {
        Self::open_medium(MediaFile::from_file(file)?, options)
    }

    fn open_medium(medium: MediaFile, options: &AreaOptions) -> Result<Self, AreaError> {
        Self::open_sized(medium, options, false)
    }

    fn open_sized(medium: MediaFile, options: &AreaOptions, has_given_size: bool) -> Result<Self, AreaError> {
        // Out of the way of the program's descriptors; the lock goes with it.
        let file = own::duplicate(medium.as_file().as_raw_fd())?;
        let mut medium = MediaFile::from_file(file.into())?;
        if medium.warning() == Some(MediaWarning::Buffered) {
            read_from_medium(medium.as_file())?;
        }
        let (engine, report) = Engine::open(&mut medium, options.engine())?;
        let warning = medium.warning();
        let capacity = medium.capacity_bytes();
        let write_cache = backend::write_cache(medium.as_file());
        let descriptor = Some(medium.as_file().as_raw_fd());
        let storage = if options.is_mapped {
            Storage::Mapped(os::Mapped::file(medium, capacity, None)?)
        } else {
            Storage::Direct(medium)
        };
        // What is mapped is in memory already.
        let cache_bytes = if options.is_mapped {
            0
        } else {
            options.cache_bytes_max
        };
        let details = Details {
            warning,
            write_cache,
            descriptor,
            has_given_size,
        };
        Self::start(storage, engine, report, details, cache_bytes)
    }

    /// An area in memory, for tests: it ends with the process. With `timing` a durable write takes the time of NVM.
    pub fn memory(options: &AreaOptions, timing: Option<NvmTiming>) -> Result<Self, AreaError> {
        let storage = Storage::Mapped(os::Mapped::memory(options.create_bytes, timing)?);
        let mut medium = &storage;
        create(&mut medium, options.create_bytes, MEMORY_BLOCK_BYTES, true)?;
        let (engine, report) = Engine::open(&mut medium, options.engine())?;
        let details = Details {
            warning: None,
            write_cache: WriteCache::Unknown,
            descriptor: None,
            has_given_size: false,
        };
        Self::start(storage, engine, report, details, 0)
    }

    fn start(
        storage: Storage,
        engine: Engine,
        report: RecoveryReport,
        details: Details,
        cache_bytes: u64,
    ) -> Result<Self, AreaError> {
        let cache = Arc::new(Cache::new(cache_bytes));
        let page_bytes = read::page_bytes(engine.layout());
        let has_jobs = engine.may_spill();
        let shared = Arc::new(Shared::new(storage, engine));
        let runner = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("area".into()).spawn(move || {
            awake::never();
            runner.run();
        })?;
        let (runner, rows) = (Arc::clone(&shared), Arc::clone(&cache));
        let jobs = has_jobs.then(|| {
            std::thread::Builder::new().name("tables".into()).spawn(move || {
                awake::never();
                runner.run_jobs(|key, value| rows.renew(key, value));
            })
        });
        Ok(Self(Arc::new(Owner {
            shared,
            cache,
            page_bytes,
            threads: [Some(thread), jobs.transpose()?],
            report,
            details,
            generation: fork::generation(),
        })))
    }

    /// The part that the area's threads share.
    ///
    /// # Errors
    /// In a forked child.
    pub(crate) fn shared(&self) -> Result<&Shared, AreaError> {
        match fork::is_present(self.0.generation) {
            true => Ok(&self.0.shared),
            false => Err(AreaError::Forked),
        }
    }

    /// The same for those who read.
    pub(crate) fn reading(&self) -> Result<Reading<'_>, AreaError> {
        let shared = self.shared()?;
        let cache = &self.0.cache;
        let page_bytes = self.0.page_bytes;
        Ok(Reading {
            shared,
            cache,
            page_bytes,
        })
    }

    /// The same, for looks that cannot fail: in a forked child they panic, as nobody there ends what other threads began.
    pub(crate) fn own(&self) -> &Shared {
        self.shared()
            .expect("a forked child asks its parent's area nothing")
    }

    /// Refuses in a forked child, where the area is of no use: every change and every read fails, and other questions panic.
    ///
    /// # Errors
    /// [`AreaError::Forked`], and no other.
    pub fn check(&self) -> Result<(), AreaError> {
        self.shared().map(|_| ())
    }

    /// The findings of opening.
    pub fn report(&self) -> RecoveryReport {
        self.0.report
    }

    /// A warning about the medium for users.
    pub fn warning(&self) -> Option<MediaWarning> {
        self.0.details.warning
    }

    /// The way the device below treats writes.
    pub fn write_cache(&self) -> WriteCache {
        self.0.details.write_cache
    }

    /// True if the file must not be extended: its size is that of a catalog.
    pub(crate) fn has_given_size(&self) -> bool {
        self.0.details.has_given_size
    }

    /// The medium's descriptor, by which this process has it for itself; a forked child should close it.
    pub fn descriptor(&self) -> Option<RawFd> {
        self.0.details.descriptor
    }

    /// Bytes that a batch takes at most.
    pub fn batch_bytes_max(&self) -> usize {
        self.own().lock().engine.batch_bytes_max()
    }

    /// Sizes of the area as it is now.
    pub fn layout(&self) -> Layout {
        *self.own().lock().engine.layout()
    }

    /// Counters and state.
    pub fn stats(&self) -> Stats {
        self.own().lock().engine.stats()
    }

    /// Counts and memory of the cache of what was read.
    pub fn cache_stats(&self) -> CacheStats {
        self.0.cache.stats()
    }

    /// Makes a structure with a durability of its own, or finds it with the one that it has. Opening it by
    /// [`Area::log`] and the like finds it too.
    pub fn create(&self, name: &str, kind: Kind, durability: Durability) -> Result<StructureId, AreaError> {
        let shared = self.shared()?;
        let ((id, ticket), guard) = shared.submit(|engine| engine.create(name, kind, durability))?;
        shared.wait(guard, ticket)?;
        Ok(id)
    }

    /// Drops a structure with all that is in it, durably.
    pub fn drop_structure(&self, id: StructureId) -> Result<(), AreaError> {
        let shared = self.shared()?;
        let (ticket, guard) = shared.submit(|engine| engine.drop_structure(id))?;
        shared.wait(guard, ticket)
    }

    /// Name, number, kind, durability and entries of all structures.
    pub fn structures(&self) -> Vec<(String, StructureId, Kind, Durability, u64)> {
        let guard = self.own().lock();
        let all = guard.engine.structures();
        all.map(|(name, id, kind, durability, entries)| (name.to_owned(), id, kind, durability, entries))
            .collect()
    }

    /// Everything up to this ticket is durable: the watermark.
    pub fn durable(&self) -> Ticket {
        self.own().lock().engine.durable()
    }

    /// Makes everything durable that was submitted so far, by anybody.
    pub fn sync(&self) -> Result<(), AreaError> {
        let shared = self.shared()?;
        let guard = shared.lock();
        let newest = guard.engine.newest();
        shared.wait(guard, newest)
    }

    /// Waits until no map or tree has to leave memory, and no table has to be merged. A program that measures reads after a load
    /// calls it. While others write it may take long.
    ///
    /// # Errors
    /// The area has failed.
    pub fn settle(&self) -> Result<(), AreaError> {
        self.shared()?.settle()
    }

    /// Has the engine take a batch in by `f`. An area without room asks its tables what the values replace.
    pub(crate) fn take_in<'a, R>(
        &self,
        shared: &'a Shared,
        ops: &[Op<'_>],
        mut f: impl FnMut(&mut Engine, Option<&Older>) -> Result<R, SubmitError>,
    ) -> Result<(R, Guard<'a>), AreaError> {
        let taken = shared.submit(|engine| f(engine, None));
        match taken {
            Err(AreaError::Refused(SubmitError::NoSpace)) => self.take_in_over(shared, ops, f),
            taken => taken,
        }
    }

    #[cold]
    fn take_in_over<'a, R>(
        &self,
        shared: &'a Shared,
        ops: &[Op<'_>],
        mut f: impl FnMut(&mut Engine, Option<&Older>) -> Result<R, SubmitError>,
    ) -> Result<(R, Guard<'a>), AreaError> {
        let mut looks = 0;
        loop {
            let Some(mut older) = shared.lock().engine.older(ops) else {
                return Err(SubmitError::NoSpace.into());
            };
            older.look_up(&mut self.reading()?)?;
            let taken = shared.submit(|engine| f(engine, Some(&older)));
            let Err(AreaError::Refused(SubmitError::NoSpace)) = taken else {
                return taken;
            };
            let guard = shared.lock();
            // If more has left memory since, there is another look; also if others still read tables that merges have replaced.
            if older.freezes() == guard.engine.freezes() {
                if looks == LOOKS_MAX || !guard.engine.has_retired() {
                    return taken;
                }
                looks += 1;
                shared.await_any(guard, Some(LOOK_NS));
            }
        }
    }

    /// Carries a batch out. All of it is durable on return, unless every structure in it is lazy.
    pub fn commit(&self, ops: &[Op<'_>]) -> Result<Receipt, AreaError> {
        let shared = self.shared()?;
        let (receipt, guard) = self.take_in(shared, ops, |engine, older| engine.submit_over(ops, older))?;
        if guard.engine.is_wanted(receipt.ticket) {
            shared.wait(guard, receipt.ticket)?;
        }
        Ok(receipt)
    }

    /// Hands a batch of operations on lazy structures over; durable when somebody syncs.
    pub fn enter(&self, ops: &[Op<'_>]) -> Result<Receipt, AreaError> {
        let (receipt, _guard) = self.take_in(self.shared()?, ops, |engine, older| {
            engine.submit_over(ops, older)
        })?;
        Ok(receipt)
    }

    /// Hands a batch over and returns; it becomes durable without anybody waiting for it, unless it is lazy.
    pub fn submit(&self, ops: &[Op<'_>]) -> Result<(Receipt, Pending), AreaError> {
        let shared = self.shared()?;
        let (receipt, guard) = self.take_in(shared, ops, |engine, older| engine.submit_over(ops, older))?;
        let ticket = receipt.ticket;
        if guard.engine.is_wanted(ticket) {
            shared.start(guard, ticket);
        }
        let area = self.clone();
        Ok((receipt, Pending { area, ticket }))
    }
}

impl Pending {
    pub(crate) fn new(area: Area, ticket: Ticket) -> Self {
        Self { area, ticket }
    }

    /// The record that it waits for: compare with [`Area::durable`].
    pub fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// True when it is durable already.
    pub fn is_durable(&self) -> bool {
        self.area.durable() >= self.ticket
    }

    /// Waits until it is durable.
    pub fn wait(self) -> Result<(), AreaError> {
        let shared = self.area.shared()?;
        shared.wait(shared.lock(), self.ticket)
    }
}

impl fmt::Debug for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stats = self.check().ok().map(|()| self.stats());
        f.debug_struct("Area").field("stats", &stats).finish()
    }
}

/// Drops the file's pages. After a write that failed the kernel calls pages clean that are not on the medium.
fn read_from_medium(file: &File) -> std::io::Result<()> {
    file.sync_all()?;
    // SAFETY: no memory is involved. What cannot go is being written, or read by somebody else.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    Ok(())
}

/// Refuses a size that makes no area, before anything is done for one.
fn may_be_made(bytes: u64) -> Result<(), AreaError> {
    let layout = Layout::for_capacity(bytes, MEMORY_BLOCK_BYTES);
    layout.map(drop).map_err(|error| AreaError::Create(error.into()))
}

/// True for a file without any byte: nobody's data are in it.
fn is_empty(medium: &MediaFile) -> std::io::Result<bool> {
    let data = medium.as_file().metadata()?;
    Ok(data.is_file() && data.len() == 0)
}

/// True if the place of the superblocks holds zeros: no area. Somebody's data may be behind.
fn is_blank(medium: &dyn Device) -> Result<bool, OpenError> {
    if medium.capacity_bytes() < 2 * store::SUPERBLOCK_BYTES {
        return Ok(false);
    }
    let mut bytes = vec![0; 2 * store::SUPERBLOCK_BYTES as usize];
    medium.read_at(0, &mut bytes)?;
    Ok(bytes.iter().all(|&byte| byte == 0))
}

/// Makes an area on a medium, unless that would destroy something.
fn make(medium: &MediaFile, path: &Path, options: &AreaOptions) -> Result<(), AreaError> {
    if let Some(offset) = medium.find_data()? {
        let path = path.to_owned();
        return Err(AreaError::HoldsData { path, offset });
    }
    let block_bytes = backend::physical_block_bytes(medium.as_file());
    let capacity = match options.create_bytes {
        0 => medium.capacity_bytes(),
        bytes => medium.capacity_bytes().min(bytes),
    };
    create(&mut medium.clone(), capacity, block_bytes, options.is_mapped)
}

fn create(
    medium: &mut dyn Device,
    capacity_bytes: u64,
    block_bytes: u32,
    is_mapped: bool,
) -> Result<(), AreaError> {
    let make = |error: LayoutError| AreaError::Create(error.into());
    let mut layout = Layout::for_capacity(capacity_bytes, block_bytes).map_err(make)?;
    if is_mapped {
        layout.atomic_bytes = ATOMIC_BYTES;
    }
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&os::seed().to_le_bytes());
    uuid[8..].copy_from_slice(&os::seed().to_le_bytes());
    store::create(medium, layout, uuid).map_err(|error| AreaError::Create(error.into()))
}

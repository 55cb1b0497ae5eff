//! Files and block devices as media: how they are opened, and [`Device`] on them, for formatting, recovery and
//! verification. The data path has their descriptors, and a [`Ring`](crate::Ring).
//!
//! A file is opened with O_DIRECT, so that a page travels between the pool and the device without passing through
//! the page cache, and a write that is done has reached the device (its volatile cache is emptied by a flush). Where
//! the file system refuses O_DIRECT the medium is buffered, and says so ([`MediaFile::warning`]).
//!
//! A medium has one owner: an exclusive `flock` is held as long as it is open, and block devices are opened with
//! O_EXCL, which a mounted or otherwise claimed device refuses. Readers share a medium that nobody owns. Both belong to the open file, which a write that the kernel
//! still makes for a killed program keeps open: a new owner waits for it.
//!
//! All paths see the same bytes. [`Device`] goes through an aligned bounce buffer, because O_DIRECT asks for aligned
//! memory, offsets and lengths.

use crate::clock::now;
use crate::filesystem::{is_kept, reserve};
use crate::sync::{AtomicU64, Ordering};
use base::limits::{PAGE_BYTES, SECTOR_BYTES};
use base::{Device, Duration, Extent, MediaError};
use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{io, mem};
use thiserror::Error;

/// Alignment of offsets, lengths and memory on the cold path: what every O_DIRECT device takes.
const BLOCK_BYTES: usize = PAGE_BYTES;
/// Bytes that the cold path moves by one system call.
const BOUNCE_BLOCKS: usize = 256;

/// Bytes at the beginning and end of a block device where signatures are: ZFS has the largest labels, 512 KiB at each end.
const EDGE_BYTES: u64 = 1 << 20;

/// The byte whose lock tells of followers: beyond any file.
const FOLLOWER_BYTE: i64 = 1 << 62;

/// How long a medium that is in use is waited for: the last write of a program that was killed may be under way, and keeps it open.
const LAST_WRITE: Duration = Duration::from_secs(1);
/// How often it is tried meanwhile.
const LOOK_EVERY: std::time::Duration = std::time::Duration::from_millis(2);

/// Opens by `open`, again and again while somebody may only seem to have it.
#[allow(clippy::disallowed_methods, reason = "it waits, for a second at most")]
pub fn after_last_write<T, E>(
    open: impl Fn() -> Result<T, E>,
    is_taken: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let began = now();
    loop {
        match open() {
            Err(error) if is_taken(&error) && now().since(began) < LAST_WRITE => {
                std::thread::sleep(LOOK_EVERY);
            }
            other => return other,
        }
    }
}

/// Why a medium cannot be opened.
#[derive(Debug, Error)]
pub enum MediaOpenError {
    /// There is no such file, and it was not to be created.
    #[error("{}: no such file", .0.display())]
    Missing(PathBuf),
    /// Somebody else has it open.
    #[error("{}: in use by another process or another host of this one", .0.display())]
    InUse(PathBuf),
    /// It is neither a regular file nor a block device.
    #[error("{}: neither a file nor a block device", .0.display())]
    Kind(PathBuf),
    /// It is smaller than asked for and must not or cannot grow.
    #[error("{}: {have_bytes} bytes, but {need_bytes} are needed", .path.display())]
    TooSmall {
        /// The medium.
        path: PathBuf,
        /// Its size.
        have_bytes: u64,
        /// The size asked for.
        need_bytes: u64,
    },
    /// The file system has no room for the file.
    #[error("{}: the file system has no room for {need_bytes} bytes", .path.display())]
    NoSpace {
        /// The medium.
        path: PathBuf,
        /// The size asked for.
        need_bytes: u64,
    },
    /// The operating system refuses.
    #[error("{}: {source}", .path.display())]
    Os {
        /// The medium.
        path: PathBuf,
        /// Its reason.
        source: io::Error,
    },
}

/// A warning for users about a medium that works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MediaWarning {
    /// Every page passes through the kernel's page cache: slower, and the cache's memory is used twice.
    #[error("the file system refuses O_DIRECT: data passes through the page cache")]
    Buffered,
    /// The file lives in memory: it does not survive a power cut.
    #[error("the file system keeps its files in memory: data does not survive a power cut")]
    Volatile,
}

/// A file or block device, taken for this process alone. Clones are the same open file.
#[derive(Clone, Debug)]
pub struct MediaFile {
    opened: Arc<Opened>,
    rest_bytes: u64,
    warning: Option<MediaWarning>,
}

/// Rights to a medium, and what may be done to its file to have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Read,
    /// While its owner writes.
    Follow,
    Write,
    Create,
    /// As `Create`, of a regular file under this name itself: no link is followed.
    CreateHere,
}

#[derive(Debug)]
struct Opened {
    /// By O_DIRECT, where the file system takes it; holds the lock.
    direct: File,
    /// The same file through the page cache, if it could be opened by its name.
    cached: Option<File>,
    /// Offsets and lengths of O_DIRECT are multiples of this.
    align: u64,
    capacity_bytes: AtomicU64,
}

impl Opened {
    fn new(direct: File, capacity_bytes: u64) -> Self {
        Self {
            align: direct_align(&direct),
            direct,
            cached: None,
            capacity_bytes: AtomicU64::new(capacity_bytes),
        }
    }
}

impl MediaFile {
    /// Opens the file or block device at `path` and takes it for this process alone.
    ///
    /// `bytes` is the capacity wanted, 0 for all there is; either way it is rounded down to whole pages. A missing
    /// file is created, and a shorter one extended, only with `create`; their space is reserved, so that a full file
    /// system shows now and not as a failed write later.
    pub fn open(path: &Path, bytes: u64, create: bool) -> Result<Self, MediaOpenError> {
        Self::open_as(path, bytes, if create { Mode::Create } else { Mode::Write })
    }

    /// Opens the file or block device at `path` to read it, together with other readers. It may be immutable, mounted, or
    /// on a read-only file system.
    pub fn open_to_read(path: &Path) -> Result<Self, MediaOpenError> {
        Self::open_as(path, 0, Mode::Read)
    }

    /// Opens the file or block device at `path` to read it while its owner writes it. Nothing is locked, and nobody is kept out.
    pub fn open_to_follow(path: &Path) -> Result<Self, MediaOpenError> {
        Self::open_as(path, 0, Mode::Follow)
    }

    /// The same as [`MediaFile::open`] with `create`, of a regular file that is under this name itself. A link is refused: a
    /// program with more rights than the directory's owner would write somewhere else.
    pub fn open_here(path: &Path, bytes: u64) -> Result<Self, MediaOpenError> {
        match path.symlink_metadata() {
            Ok(data) if !data.is_file() => Err(MediaOpenError::Kind(path.into())),
            _ => Self::open_as(path, bytes, Mode::CreateHere),
        }
    }

    fn open_as(path: &Path, bytes: u64, mode: Mode) -> Result<Self, MediaOpenError> {
        let create = matches!(mode, Mode::Create | Mode::CreateHere);
        let os = |source| MediaOpenError::Os {
            path: path.into(),
            source,
        };
        let (is_device, is_new) = match path.metadata() {
            Ok(data) if data.file_type().is_block_device() => (true, false),
            Ok(data) if data.is_file() => (false, false),
            Ok(_) => return Err(MediaOpenError::Kind(path.into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound && create => (false, true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(MediaOpenError::Missing(path.into()));
            }
            Err(error) => return Err(os(error)),
        };
        let is_taken = |error: &MediaOpenError| matches!(error, MediaOpenError::InUse(_));
        let (file, direct) = after_last_write(|| open_locked(path, mode, is_device), is_taken)?;
        let have_bytes = size_of_file(&file).map_err(os)?;
        let need_bytes = bytes / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        if have_bytes < need_bytes {
            if is_device || !create {
                let path = path.into();
                return Err(MediaOpenError::TooSmall {
                    path,
                    have_bytes,
                    need_bytes,
                });
            }
            let reserved = reserve(&file, need_bytes);
            let reserved = reserved.inspect_err(|_| {
                if is_new && have_bytes == 0 {
                    // What it fails with is less to the point than why there is no room.
                    let _ = std::fs::remove_file(path);
                }
            });
            reserved.map_err(|error| match error.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                    MediaOpenError::NoSpace {
                        path: path.into(),
                        need_bytes,
                    }
                }
                _ => os(error),
            })?;
            file.sync_all().map_err(os)?;
            sync_directory(path).map_err(os)?;
        }
        let warning = if !is_device && !is_kept(file.as_raw_fd()) {
            Some(MediaWarning::Volatile)
        } else {
            (!direct).then_some(MediaWarning::Buffered)
        };
        let capacity_bytes = if need_bytes > 0 {
            need_bytes
        } else {
            have_bytes / BLOCK_BYTES as u64 * BLOCK_BYTES as u64
        };
        Ok(Self {
            opened: Arc::new(Opened::new(file, capacity_bytes)),
            rest_bytes: 0,
            warning,
        })
    }

    /// The same file with a second way to it, through the page cache, which takes what O_DIRECT does not: parts of the
    /// device's blocks.
    ///
    /// # Errors
    /// When it cannot be opened a second time.
    pub fn with_cache(mut self, path: &Path) -> Result<Self, MediaOpenError> {
        let opened = Arc::get_mut(&mut self.opened).expect("nobody shares it yet");
        let cached = OpenOptions::new()
            .read(true)
            .write(is_writable(&opened.direct))
            .open(path);
        opened.cached = Some(cached.map_err(|source| MediaOpenError::Os {
            path: path.into(),
            source,
        })?);
        Ok(self)
    }

    /// All whole sectors of the file, not only its whole pages: what lies behind those passes through the page cache.
    ///
    /// # Errors
    /// When the file does not tell its size.
    ///
    /// # Panics
    /// If the file has no cache ([`MediaFile::with_cache`]).
    pub fn with_tail(mut self) -> io::Result<Self> {
        assert!(self.opened.cached.is_some(), "O_DIRECT does not take a tail");
        let bytes = size_of_file(&self.opened.direct)?;
        self.rest_bytes = bytes % SECTOR_BYTES as u64;
        let opened = Arc::get_mut(&mut self.opened).expect("nobody shares it yet");
        opened.capacity_bytes = AtomicU64::new(bytes - self.rest_bytes);
        Ok(self)
    }

    /// Extends a file to `bytes`, and reserves their space; a block device only tells whether it has so many. All clones have the
    /// capacity that there is now, in whole pages.
    ///
    /// # Errors
    /// There is no room for it. A medium that has shrunk keeps its capacity.
    pub fn grow(&self, bytes: u64) -> io::Result<u64> {
        let (file, page) = (self.as_file(), BLOCK_BYTES as u64);
        if size_of_file(file)? < bytes && !self.is_device()? {
            reserve(file, bytes.next_multiple_of(page))?;
            file.sync_all()?;
        }
        let has = size_of_file(file)? / page * page;
        if has < bytes {
            return Err(io::ErrorKind::StorageFull.into());
        }
        // Whoever uses what is new there is told of it by other means, which order the two.
        self.opened.capacity_bytes.fetch_max(has, Ordering::Relaxed);
        Ok(has)
    }

    /// Bytes behind the last whole sector of a medium with its tail.
    pub fn rest_bytes(&self) -> u64 {
        self.rest_bytes
    }

    /// A file or block device that somebody opened, and keeps others from.
    pub fn from_file(file: File) -> io::Result<Self> {
        let is_device = file.metadata()?.file_type().is_block_device();
        let warning = if !is_device && !is_kept(file.as_raw_fd()) {
            Some(MediaWarning::Volatile)
        } else {
            (flags(&file) & libc::O_DIRECT == 0).then_some(MediaWarning::Buffered)
        };
        let capacity_bytes = size_of_file(&file)? / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        Ok(Self {
            warning,
            ..Self::of_capacity(file, capacity_bytes)
        })
    }

    /// A file whose size says nothing.
    pub fn of_capacity(file: File, capacity_bytes: u64) -> Self {
        Self {
            opened: Arc::new(Opened::new(file, capacity_bytes)),
            rest_bytes: 0,
            warning: None,
        }
    }

    /// Tells the owner that this opening reads what is there at a moment: for as long as the opening lasts, however its process ends.
    ///
    /// # Errors
    /// The file system has no such locks.
    pub fn note_follower(&self) -> io::Result<()> {
        follower_lock(self.as_file(), libc::F_OFD_SETLK, libc::F_RDLCK).map(drop)
    }

    /// True if another opening has told so. Costs a system call.
    pub fn has_follower(&self) -> bool {
        let found = follower_lock(self.as_file(), libc::F_OFD_GETLK, libc::F_WRLCK);
        found.is_ok_and(|kind| kind != libc::F_UNLCK)
    }

    /// A warning for users about this medium.
    pub fn warning(&self) -> Option<MediaWarning> {
        self.warning
    }

    /// The file.
    pub fn as_file(&self) -> &File {
        &self.opened.direct
    }

    /// Fills `bytes` from `offset`; both are whole blocks of the device.
    ///
    /// # Errors
    /// Of the read, or when the file ends before.
    pub fn read_blocks(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        BOUNCE.with_borrow_mut(|bounce| {
            let blocks = bounce.bytes(bytes.len());
            self.as_file().read_exact_at(blocks, offset)?;
            bytes.copy_from_slice(blocks);
            Ok(())
        })
    }

    /// The first byte that is not zero, where somebody's data would be: anywhere in a file, and in the first and last MiB of a
    /// block device. File systems, volume managers, RAIDs and partition tables have their signatures there. `None` if the
    /// medium is nobody's.
    ///
    /// # Errors
    /// Of a read: nobody knows what is there then.
    pub fn find_data(&self) -> io::Result<Option<u64>> {
        let size = size_of_file(self.as_file())?;
        if self.is_device()? {
            let tail = size.saturating_sub(EDGE_BYTES) / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
            let head = find_nonzero(self.as_file(), 0, EDGE_BYTES.min(size))?;
            return match head {
                None => find_nonzero(self.as_file(), tail.max(EDGE_BYTES.min(size)), size),
                found => Ok(found),
            };
        }
        let mut at = 0;
        while at < size {
            let data = match seek(self.as_file(), at, libc::SEEK_DATA) {
                Ok(data) => data / BLOCK_BYTES as u64 * BLOCK_BYTES as u64,
                Err(error) if error.raw_os_error() == Some(libc::ENXIO) => return Ok(None),
                // It knows no holes.
                Err(_) => at,
            };
            let end = seek(self.as_file(), data, libc::SEEK_HOLE)
                .unwrap_or(size)
                .min(size);
            let found = find_nonzero(self.as_file(), data, end)?;
            if found.is_some() {
                return Ok(found);
            }
            at = end.max(data + 1).next_multiple_of(BLOCK_BYTES as u64);
        }
        Ok(None)
    }

    /// True for a block device.
    ///
    /// # Errors
    /// When the system does not tell.
    pub fn is_device(&self) -> io::Result<bool> {
        Ok(self.as_file().metadata()?.file_type().is_block_device())
    }

    /// The descriptor for a transfer: by O_DIRECT, unless it is of parts of the device's blocks.
    pub fn descriptor(&self, offset: u64, length: u32) -> RawFd {
        self.file_for(offset, u64::from(length)).as_raw_fd()
    }

    fn file_for(&self, offset: u64, length: u64) -> &File {
        let Opened {
            direct,
            cached,
            align,
            ..
        } = &*self.opened;
        let is_aligned = offset.is_multiple_of(*align) && length.is_multiple_of(*align);
        let cached = cached.as_ref().filter(|_| !is_aligned);
        cached.unwrap_or(direct)
    }

    fn check(&self, offset: u64, bytes: usize) -> Result<(), MediaError> {
        match offset.checked_add(bytes as u64) {
            Some(end) if end <= self.capacity_bytes() => Ok(()),
            _ => Err(MediaError::OutOfRange),
        }
    }
}

impl Device for MediaFile {
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), MediaError> {
        self.check(offset, bytes.len())?;
        BOUNCE.with_borrow_mut(|bounce| {
            for part in parts(offset, bytes.len(), self.capacity_bytes()) {
                let blocks = bounce.bytes(part.block_bytes);
                self.file_for(part.block_offset, part.block_bytes as u64)
                    .read_exact_at(blocks, part.block_offset)
                    .map_err(|_| MediaError::Io)?;
                bytes[part.within.clone()].copy_from_slice(&blocks[part.skip_bytes..][..part.within.len()]);
            }
            Ok(())
        })
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), MediaError> {
        self.check(offset, bytes.len())?;
        BOUNCE.with_borrow_mut(|bounce| {
            for part in parts(offset, bytes.len(), self.capacity_bytes()) {
                let blocks = bounce.bytes(part.block_bytes);
                let file = self.file_for(part.block_offset, part.block_bytes as u64);
                if part.within.len() != part.block_bytes {
                    file.read_exact_at(blocks, part.block_offset)
                        .map_err(|_| MediaError::Io)?;
                }
                blocks[part.skip_bytes..][..part.within.len()].copy_from_slice(&bytes[part.within.clone()]);
                file.write_all_at(blocks, part.block_offset)
                    .map_err(|_| MediaError::Io)?;
            }
            Ok(())
        })
    }

    fn flush(&mut self) -> Result<(), MediaError> {
        self.as_file().sync_data().map_err(|_| MediaError::Io)
    }

    /// Whole blocks by one system call with `RWF_DSYNC`: the kernel sets FUA, or flushes the device's cache behind them.
    fn write_through(&mut self, offset: u64, bytes: &[u8]) -> Result<(), MediaError> {
        let block = BLOCK_BYTES as u64;
        if !offset.is_multiple_of(block) || !bytes.len().is_multiple_of(BLOCK_BYTES) {
            self.write_at(offset, bytes)?;
            return self.flush();
        }
        self.check(offset, bytes.len())?;
        BOUNCE.with_borrow_mut(|bounce| {
            for part in parts(offset, bytes.len(), self.capacity_bytes()) {
                let blocks = bounce.bytes(part.block_bytes);
                blocks.copy_from_slice(&bytes[part.within.clone()]);
                write_durable(self.as_file(), part.block_offset, blocks).map_err(|_| MediaError::Io)?;
            }
            Ok(())
        })
    }

    fn capacity_bytes(&self) -> u64 {
        self.opened.capacity_bytes.load(Ordering::Relaxed)
    }

    /// The blocks that the file system has given the file; all of a block device.
    fn data_bytes(&self) -> u64 {
        const ST_BLOCK_BYTES: u64 = 512;
        match self.as_file().metadata() {
            Ok(found) if found.is_file() => (found.blocks() * ST_BLOCK_BYTES).min(self.capacity_bytes()),
            _ => self.capacity_bytes(),
        }
    }

    /// By `SEEK_DATA` and `SEEK_HOLE` (lseek(2)). A file system that knows no holes, and a block device, have only data.
    fn extent_at(&self, offset: u64, length: u64) -> Extent {
        let file = self.as_file();
        find_extent(offset, length, |from, whence| seek(file, from, whence))
    }
}

/// Writes all bytes, which are durable on return.
fn write_durable(file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        let rest = &bytes[done..];
        let iovec = libc::iovec {
            iov_base: rest.as_ptr().cast_mut().cast(),
            iov_len: rest.len(),
        };
        let at = (offset + done as u64) as libc::off_t;
        // SAFETY: the kernel only reads the bytes, which are borrowed until it is done.
        let written = unsafe { libc::pwritev2(file.as_raw_fd(), &iovec, 1, at, libc::RWF_DSYNC) };
        match usize::try_from(written) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => done += written,
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
    Ok(())
}

/// The extent at `offset` by the answers of `seek`. Others may change the file between two answers.
fn find_extent(offset: u64, length: u64, seek: impl Fn(u64, i32) -> io::Result<u64>) -> Extent {
    let sector = SECTOR_BYTES as u64;
    let data = match seek(offset, libc::SEEK_DATA) {
        Ok(data) => data,
        // None from here to the end of the file. Somebody may have cut the file short: what is missing cannot be read.
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => {
            seek(0, libc::SEEK_END).unwrap_or_default()
        }
        Err(_) => return Extent::data(length),
    };
    let hole_bytes = (data / sector * sector).saturating_sub(offset);
    if hole_bytes > 0 {
        return Extent::hole(hole_bytes.min(length));
    }
    match seek(data, libc::SEEK_HOLE) {
        // The data may have been trimmed meanwhile.
        Ok(hole) => Extent::data((hole.next_multiple_of(sector).max(offset + sector) - offset).min(length)),
        Err(_) => Extent::data(length),
    }
}

/// The first byte from `start`, a whole block, to `end` that is not zero.
fn find_nonzero(file: &File, start: u64, end: u64) -> io::Result<Option<u64>> {
    BOUNCE.with_borrow_mut(|bounce| {
        let bytes = bounce.bytes(BOUNCE_BLOCKS * BLOCK_BYTES);
        let mut at = start;
        while at < end {
            // The end may be within a block: less is read then.
            let blocks = (end - at)
                .next_multiple_of(BLOCK_BYTES as u64)
                .min(bytes.len() as u64);
            let count = file.read_at(&mut bytes[..blocks as usize], at)?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if let Some(index) = bytes[..count].iter().position(|&byte| byte != 0) {
                return Ok(Some(at + index as u64));
            }
            at += count as u64;
        }
        Ok(None)
    })
}

/// Finds where the next data or hole of a file begins, from `offset` on. The file's position moves; no transfer uses it.
fn seek(file: &File, offset: u64, whence: i32) -> io::Result<u64> {
    let offset = i64::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: no pointers.
    let found = unsafe { libc::lseek(file.as_raw_fd(), offset, whence) };
    u64::try_from(found).map_err(|_| io::Error::last_os_error())
}

/// One step of a cold-path transfer: whole blocks of the medium, and which bytes of the caller they cover.
struct Part {
    block_offset: u64,
    block_bytes: usize,
    skip_bytes: usize,
    within: std::ops::Range<usize>,
}

/// Splits `length` bytes from `offset` into parts that fit the bounce buffer and never leave the medium.
fn parts(offset: u64, length: usize, capacity: u64) -> impl Iterator<Item = Part> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == length {
            return None;
        }
        let at = offset + done as u64;
        let skip_bytes = (at % BLOCK_BYTES as u64) as usize;
        let count = (length - done).min(BOUNCE_BLOCKS * BLOCK_BYTES - skip_bytes);
        let block_offset = at - skip_bytes as u64;
        let left = usize::try_from(capacity - block_offset).unwrap_or(usize::MAX);
        let part = Part {
            block_offset,
            block_bytes: (skip_bytes + count).next_multiple_of(BLOCK_BYTES).min(left),
            skip_bytes,
            within: done..done + count,
        };
        done += count;
        Some(part)
    })
}

thread_local! {
    static BOUNCE: RefCell<Bounce> = const { RefCell::new(Bounce(Vec::new())) };
}

/// Aligned memory for the cold path of a thread, as much as it needed at most.
struct Bounce(Vec<AlignedBlock>);

#[derive(Clone, Copy, Debug)]
#[repr(C, align(4096))]
struct AlignedBlock([u8; BLOCK_BYTES]);

impl Bounce {
    fn bytes(&mut self, count: usize) -> &mut [u8] {
        if count > self.0.len() * BLOCK_BYTES {
            self.0
                .resize(count.div_ceil(BLOCK_BYTES), AlignedBlock([0; BLOCK_BYTES]));
        }
        // SAFETY: the blocks are contiguous plain bytes without padding (size equals alignment), borrowed for the
        // life of the result, and `count` is inside them.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), count) }
    }
}

/// Sets or looks at the lock of followers (fcntl(2)); the kind that was found. It is of a byte that no file has, so it keeps nobody from
/// anything, and it belongs to the opening.
fn follower_lock(file: &File, command: i32, kind: i32) -> io::Result<i32> {
    // SAFETY: zeros are a valid `flock`.
    let mut lock: libc::flock = unsafe { mem::zeroed() };
    lock.l_type = kind as i16;
    lock.l_whence = libc::SEEK_SET as i16;
    (lock.l_start, lock.l_len) = (FOLLOWER_BYTE, 1);
    // By its number: in a program under `switchyard run` the C library's function is that of the preload library, and calls us.
    // SAFETY: the kernel reads and fills the lock, which lives through the call.
    match unsafe { libc::syscall(libc::SYS_fcntl, file.as_raw_fd(), command, &raw mut lock) } {
        0 => Ok(i32::from(lock.l_type)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Opens and locks; the flag says whether O_DIRECT was taken.
fn open_locked(path: &Path, mode: Mode, is_device: bool) -> Result<(File, bool), MediaOpenError> {
    let os = |source| MediaOpenError::Os {
        path: path.into(),
        source,
    };
    let (exclusive, lock) = match mode {
        Mode::Read | Mode::Follow => (0, libc::LOCK_SH),
        Mode::CreateHere => (libc::O_NOFOLLOW, libc::LOCK_EX),
        Mode::Write | Mode::Create if is_device => (libc::O_EXCL, libc::LOCK_EX),
        Mode::Write | Mode::Create => (0, libc::LOCK_EX),
    };
    let open = |flags| {
        OpenOptions::new()
            .read(true)
            .write(!matches!(mode, Mode::Read | Mode::Follow))
            .create(matches!(mode, Mode::Create | Mode::CreateHere) && !is_device)
            .mode(0o600)
            .truncate(false)
            .custom_flags(flags | exclusive)
            .open(path)
    };
    let (file, direct) = match open(libc::O_DIRECT) {
        Ok(file) => (file, true),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => (open(0).map_err(os)?, false),
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
            return Err(MediaOpenError::InUse(path.into()));
        }
        Err(error) => return Err(os(error)),
    };
    if mode == Mode::Follow {
        return Ok((file, direct));
    }
    // SAFETY: no pointers.
    match unsafe { libc::flock(file.as_raw_fd(), lock | libc::LOCK_NB) } {
        0 => Ok((file, direct)),
        _ => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::WouldBlock => Err(MediaOpenError::InUse(path.into())),
            error => Err(os(error)),
        },
    }
}

/// Alignment that O_DIRECT asks for; a page where the kernel (before 6.1) does not tell.
fn direct_align(file: &File) -> u64 {
    const STATX_DIOALIGN: u32 = 0x2000;
    // SAFETY: a `statx` of zeros is valid, and valid for writes; the path is an empty string.
    let (result, stat) = unsafe {
        let mut stat: libc::statx = mem::zeroed();
        let result = libc::statx(
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            STATX_DIOALIGN,
            &mut stat,
        );
        (result, stat)
    };
    let told = result == 0 && stat.stx_mask & STATX_DIOALIGN != 0 && stat.stx_dio_offset_align > 0;
    if told {
        u64::from(stat.stx_dio_offset_align)
    } else {
        PAGE_BYTES as u64
    }
}

/// Flags that a file was opened with.
fn flags(file: &File) -> i32 {
    // SAFETY: no pointers.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) }
}

fn is_writable(file: &File) -> bool {
    flags(file) & libc::O_ACCMODE != libc::O_RDONLY
}

/// Bytes of a file or block device: where its end is.
fn size_of_file(mut file: &File) -> io::Result<u64> {
    use std::io::Seek;
    file.seek(io::SeekFrom::End(0))
}

/// Makes the directory entry of a new file durable.
fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(parent_of(path))?.sync_all()
}

fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// True if the file at `path` is in memory, or would be if it were made there: a power cut takes it. False for block devices, whose
/// names are in memory, and if nobody can tell.
pub fn is_volatile(path: &Path) -> bool {
    let look = |path: &Path| {
        OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_PATH)
            .open(path)
    };
    let found = look(path).or_else(|_| look(parent_of(path)));
    found.is_ok_and(|file| {
        let is_device = file.metadata().is_ok_and(|it| it.file_type().is_block_device());
        !is_device && !is_kept(file.as_raw_fd())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path_in(directory: &tempfile::TempDir) -> PathBuf {
        directory.path().join("medium")
    }

    #[test]
    fn unaligned_bytes_are_read_back_and_their_neighbours_stay() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let file = MediaFile::open(&path_in(&directory), 4 << 20, true).expect("a new file");
        {
            let mut medium = file;
            let all: Vec<u8> = (0..4 << 20)
                .map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
                .collect();
            medium.write_at(0, &all).expect("inside");
            for (offset, length) in [
                (0, 1),
                (4095, 2),
                (100, 3 << 20),
                (4096, 4096),
                ((4 << 20) - 1, 1),
                (7, 0),
            ] {
                let mut read = vec![0; length];
                medium.read_at(offset as u64, &mut read).expect("inside");
                assert_eq!(read, all[offset..offset + length]);
                let changed: Vec<u8> = read.iter().map(|byte| byte ^ 0xff).collect();
                medium.write_at(offset as u64, &changed).expect("inside");
                let mut whole = vec![0; all.len()];
                medium.read_at(0, &mut whole).expect("inside");
                assert_eq!(whole[..offset], all[..offset]);
                assert_eq!(whole[offset..offset + length], changed);
                assert_eq!(whole[offset + length..], all[offset + length..]);
                medium.write_at(offset as u64, &read).expect("inside");
            }
            medium.flush().expect("a healthy medium");
            assert_eq!(
                medium.write_at((4 << 20) - 1, &[0; 2]),
                Err(MediaError::OutOfRange)
            );
            assert_eq!(medium.read_at(u64::MAX, &mut [0; 2]), Err(MediaError::OutOfRange));
        }
    }

    #[test]
    fn a_file_is_a_medium() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut file = MediaFile::open(&path_in(&directory), 1 << 18, true).expect("a new file");
        base::device::suite::device(&mut file);
    }

    /// Bug: eight KiB of zeros made a medium nobody's, and btrfs, ZFS and others begin so.
    #[test]
    fn a_file_is_nobodys_only_if_all_its_bytes_are_zero() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = path_in(&directory);
        let bytes = (40u64 << 20) + 100;
        for at in [0, 4095, 65_536, 30 << 20, bytes - 1] {
            let file = File::create(&path).expect("a new file");
            file.set_len(bytes).expect("a sparse file");
            let find = || MediaFile::open(&path, 0, false).expect("a file").find_data();
            assert_eq!(find().expect("readable"), None);
            file.write_all_at(&[0; 100], at / 2).expect("a file");
            assert_eq!(find().expect("readable"), None, "zeros are nobody's");
            file.write_all_at(&[7], at).expect("a file");
            assert_eq!(find().expect("readable"), Some(at));
        }
    }

    #[test]
    fn a_new_file_is_its_users_alone() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = path_in(&directory);
        drop(MediaFile::open(&path, 1 << 20, true).expect("a new file"));
        let mode = path.metadata().expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn holes_of_a_file_are_told_and_written_sectors_are_data() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = path_in(&directory);
        let bytes = (1u64 << 20) + 512;
        File::create(&path)
            .and_then(|file| file.set_len(bytes))
            .expect("a new file");
        let file = MediaFile::open(&path, 0, false).and_then(|file| file.with_cache(&path));
        let mut file = file.expect("a file").with_tail().expect("a size");
        assert_eq!(file.extent_at(512, bytes - 512), Extent::hole(bytes - 512));
        assert_eq!(file.data_bytes(), 0);
        file.write_at(256 << 10, &[0; 64 << 10]).expect("inside");
        assert_eq!(file.extent_at(0, bytes), Extent::hole(256 << 10));
        assert!(
            (64 << 10..256 << 10).contains(&file.data_bytes()),
            "{}",
            file.data_bytes()
        );
        assert_eq!(
            file.extent_at(256 << 10, bytes - (256 << 10)),
            Extent::data(64 << 10)
        );
        assert_eq!(file.extent_at((256 << 10) + 512, 1024), Extent::data(1024));
        assert_eq!(file.extent_at(320 << 10, 4096), Extent::hole(4096));
        file.write_at(bytes - 512, &[1; 512]).expect("inside");
        let rest = bytes - (320 << 10);
        assert_eq!(
            file.extent_at(320 << 10, rest),
            Extent::hole((1 << 20) - (320 << 10))
        );
        assert_eq!(file.extent_at(1 << 20, 512), Extent::data(512));
    }

    // Bug: a trim and a status of one block at once ended the core. Cause: `SEEK_DATA` still found data, `SEEK_HOLE` found
    // the hole at the same place, and the extent between them was empty. Fix: an extent is at least a sector.
    #[test]
    fn data_that_are_trimmed_between_two_looks_are_a_sector() {
        let extent = find_extent(4096, 8192, |from, _| Ok(from));
        assert_eq!(extent, Extent::data(512));
    }

    // Bug: what somebody had cut off a file was told as zeros, so copies of the volume lost it silently. Cause: without
    // data up to the end of the file the whole range was a hole. Fix: the hole ends with the file.
    #[test]
    fn what_a_file_has_lost_is_no_hole() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = path_in(&directory);
        File::create(&path)
            .and_then(|file| file.set_len(1 << 20))
            .expect("a new file");
        let file = MediaFile::open(&path, 0, false).expect("a file");
        let other = OpenOptions::new().write(true).open(&path).expect("a file");
        other.set_len((64 << 10) + 100).expect("a shorter file");
        assert_eq!(file.extent_at(0, 1 << 20), Extent::hole(64 << 10));
        assert_eq!(file.extent_at(64 << 10, 4096), Extent::data(4096));
        assert_eq!(file.extent_at(128 << 10, 4096), Extent::data(4096));
    }

    /// A pipe has no holes to look for.
    #[test]
    fn a_medium_that_knows_no_holes_is_all_data() {
        let (reader, _writer) = io::pipe().expect("a pipe");
        let file = File::from(std::os::fd::OwnedFd::from(reader));
        let file = MediaFile::of_capacity(file, 1 << 16);
        assert_eq!(file.extent_at(512, 4096), Extent::data(4096));
    }

    #[test]
    fn a_file_with_a_tail_is_a_medium_to_its_last_sector() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = path_in(&directory);
        let bytes = (1 << 18) + 3 * 512 + 100;
        std::fs::write(&path, vec![7; bytes]).expect("a new file");
        let file = MediaFile::open(&path, 0, false).expect("a file");
        assert_eq!(file.capacity_bytes(), 1 << 18);
        let mut file = file
            .with_cache(&path)
            .and_then(|file| file.with_tail().map_err(|_| MediaOpenError::Kind(path.clone())))
            .expect("a file");
        assert_eq!(file.capacity_bytes(), (1 << 18) + 3 * 512);
        base::device::suite::device(&mut file);
        file.write_at((1 << 18) + 1000, &[9; 536]).expect("inside");
        let mut read = [0; 600];
        file.read_at((1 << 18) + 936, &mut read).expect("inside");
        assert_eq!((read[64], read[599]), (9, 9));
        assert!(file.write_at((1 << 18) + 1536, &[9; 1]).is_err());
        let held = std::fs::read(&path).expect("the file is there");
        assert_eq!((held.len(), &held[bytes - 100..]), (bytes, &[7; 100][..]));
    }

    #[test]
    fn readers_share_a_file_that_nobody_writes() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = path_in(&directory);
        let owner = MediaFile::open(&path, 1 << 16, true).expect("a new file");
        assert!(matches!(
            MediaFile::open_to_read(&path),
            Err(MediaOpenError::InUse(_))
        ));
        drop(owner);
        let open = || MediaFile::open_to_read(&path).and_then(|file| file.with_cache(&path));
        let (mut first, second) = (open().expect("readable"), open().expect("readable"));
        second.read_at(5, &mut [0; 9]).expect("inside");
        assert_eq!(first.write_at(0, &[0; 512]), Err(MediaError::Io));
        assert!(matches!(
            MediaFile::open(&path, 0, false),
            Err(MediaOpenError::InUse(_))
        ));
    }

    #[test]
    fn a_second_opener_is_refused_until_the_first_is_gone() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = path_in(&directory);
        let first = MediaFile::open(&path, 1 << 20, true).expect("a new file");
        assert!(matches!(
            MediaFile::open(&path, 0, false),
            Err(MediaOpenError::InUse(_))
        ));
        drop(first);
        let second = MediaFile::open(&path, 0, false).expect("free again");
        assert_eq!(second.capacity_bytes(), 1 << 20);
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_reason() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = path_in(&directory);
        assert!(matches!(
            MediaFile::open(&path, 1 << 20, false),
            Err(MediaOpenError::Missing(_))
        ));
        drop(MediaFile::open(&path, 1 << 20, true).expect("a new file"));
        let have_bytes = 1 << 20;
        match MediaFile::open(&path, 2 << 20, false) {
            Err(MediaOpenError::TooSmall {
                have_bytes: have,
                need_bytes,
                ..
            }) => {
                assert_eq!((have, need_bytes), (have_bytes, 2 << 20));
            }
            other => panic!("{other:?}"),
        }
        let error = MediaFile::open(&path, 1 << 60, true).expect_err("no disk is that large");
        assert!(matches!(error, MediaOpenError::NoSpace { .. }), "{error}");
        // Bug: an empty file stayed where none had been.
        let new = directory.path().join("new");
        let error = MediaFile::open(&new, 1 << 60, true).expect_err("no disk is that large");
        assert!(matches!(error, MediaOpenError::NoSpace { .. }), "{error}");
        assert!(!new.exists());
        assert!(matches!(
            MediaFile::open(directory.path(), 0, false),
            Err(MediaOpenError::Kind(_))
        ));
    }

    #[test]
    fn a_file_in_memory_warns() {
        let Ok(directory) = tempfile::tempdir_in("/dev/shm") else {
            return;
        };
        let medium = MediaFile::open(&path_in(&directory), 1 << 20, true).expect("a new file");
        if !is_kept(File::open(path_in(&directory)).expect("it exists").as_raw_fd()) {
            assert_eq!(medium.warning(), Some(MediaWarning::Volatile));
            assert!(is_volatile(&path_in(&directory)));
            assert!(is_volatile(&directory.path().join("missing")));
        }
        assert!(!is_volatile(Path::new("/proc/self/exe")));
    }
}

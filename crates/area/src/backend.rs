//! The medium of an area: a file or block device by direct I/O, mapped memory, or memory that takes the time of NVM.
//!
//! A write is durable when it returns. On files that is `RWF_DSYNC`, by which the kernel sets FUA, or flushes the
//! device's cache after the write if it has one and no FUA.

use crate::awake;
use crate::burst::Wanted;
use base::limits::PAGE_BYTES;
use base::{Device, MediaError};
use os::{MediaFile, now};
use smallvec::SmallVec;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::{hint, io, ptr};
use store::{Job, JobError, Left};

/// The medium of an area, used by many threads at once.
pub(super) enum Storage {
    /// A file or block device that was opened with O_DIRECT, or without where the file system refuses it.
    Direct(MediaFile),
    Mapped(Mapped),
}

impl Storage {
    /// Reads whole blocks of the area.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        match self {
            Self::Direct(file) => file.read_blocks(offset, bytes),
            Self::Mapped(mapped) => mapped.read(offset, bytes),
        }
    }

    /// Reads whole blocks of the area into aligned memory, all by one submission where the kernel has rings.
    pub fn read_all<'a>(&self, all: impl Iterator<Item = (u64, &'a mut [u8])>) -> io::Result<()> {
        match self {
            Self::Direct(file) => {
                let file = file.as_file();
                let wanted = all.map(|(offset, bytes)| Wanted::new(offset, bytes));
                let mut wanted: SmallVec<[_; 8]> = wanted.collect();
                awake::read(file.as_fd(), &mut wanted, |offset, bytes| {
                    file.read_at(bytes, offset)
                })
            }
            Self::Mapped(mapped) => {
                let mut all = all;
                all.try_for_each(|(offset, bytes)| mapped.read(offset, bytes))
            }
        }
    }

    /// True if a follower in another process keeps to a moment.
    pub fn is_followed(&self) -> bool {
        match self {
            Self::Direct(file) => file.has_follower(),
            Self::Mapped(_) => false,
        }
    }

    /// Does a job on tables.
    pub fn work(&self, job: &mut Job, left: Left<'_>) -> Result<(), JobError> {
        let mut medium = self;
        job.run_telling(&mut medium, left)
    }

    /// Writes whole blocks of the area, durable on return.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Direct(file) => write_direct(file.as_file(), offset, bytes),
            Self::Mapped(mapped) => mapped.write(offset, bytes),
        }
    }
}

/// As formatting and recovery use it: any bytes, not durable before a flush.
impl Device for &Storage {
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), MediaError> {
        match self {
            Storage::Direct(file) => file.read_at(offset, bytes),
            Storage::Mapped(mapped) => mapped.read(offset, bytes).map_err(|_| MediaError::OutOfRange),
        }
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), MediaError> {
        match self {
            Storage::Direct(file) => file.clone().write_at(offset, bytes),
            Storage::Mapped(mapped) => mapped.fill(offset, bytes).map_err(|_| MediaError::OutOfRange),
        }
    }

    fn flush(&mut self) -> Result<(), MediaError> {
        match self {
            Storage::Direct(file) => file.clone().flush(),
            Storage::Mapped(_) => Ok(()),
        }
    }

    fn capacity_bytes(&self) -> u64 {
        match self {
            Storage::Direct(file) => file.capacity_bytes(),
            Storage::Mapped(mapped) => mapped.bytes as u64,
        }
    }

    /// A cut leaves eight aligned bytes of mapped memory old or new.
    fn atomic_bytes(&self) -> u32 {
        match self {
            Storage::Direct(file) => file.atomic_bytes(),
            Storage::Mapped(_) => 8,
        }
    }
}

/// The way a device treats writes before they are on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteCache {
    /// A write that is done is durable.
    None,
    /// A cache that a write may bypass (FUA): a durable write is one request.
    Fua,
    /// A cache that has to be flushed: a durable write is two requests, one after the other.
    Flushed,
    /// Not known: the medium is no block device, and lies on none.
    Unknown,
}

fn write_direct(file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        let (at, rest) = (offset + done as u64, &bytes[done..]);
        match awake::write(file.as_fd(), at, rest, || write_asleep(file, at, rest)) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => done += written,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn write_asleep(file: &File, offset: u64, bytes: &[u8]) -> io::Result<usize> {
    let iovec = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let at = offset as libc::off_t;
    // SAFETY: the kernel only reads the bytes, which are borrowed until it is done.
    let written = unsafe { libc::pwritev2(file.as_raw_fd(), &iovec, 1, at, libc::RWF_DSYNC) };
    usize::try_from(written).map_err(|_| io::Error::last_os_error())
}

/// The block device that a file lies on, or is, as sysfs describes it: its queue's attribute `name`.
fn queue_attribute(file: &File, name: &str) -> Option<String> {
    let data = file.metadata().ok()?;
    let device = if data.file_type().is_block_device() {
        data.rdev()
    } else {
        data.dev()
    };
    let (major, minor) = (libc::major(device), libc::minor(device));
    let device = format!("/sys/dev/block/{major}:{minor}");
    // A partition has no queue of its own.
    ["queue", "../queue"]
        .into_iter()
        .find_map(|queue| std::fs::read_to_string(format!("{device}/{queue}/{name}")).ok())
        .map(|text| text.trim().to_owned())
}

/// Bytes that the device below writes as a whole: smaller writes would make it read first.
pub(super) fn physical_block_bytes(file: &File) -> u32 {
    let bytes = queue_attribute(file, "physical_block_size").and_then(|text| text.parse().ok());
    let fits = |bytes: &u32| bytes.is_power_of_two() && (512..=1 << 16).contains(bytes);
    bytes.filter(fits).unwrap_or(PAGE_BYTES as u32)
}

/// Whether the device below has a volatile write cache.
pub(super) fn write_cache(file: &File) -> WriteCache {
    match queue_attribute(file, "write_cache").as_deref() {
        Some("write through") => WriteCache::None,
        Some(_) if queue_attribute(file, "fua").as_deref() == Some("1") => WriteCache::Fua,
        Some(_) => WriteCache::Flushed,
        None => WriteCache::Unknown,
    }
}

/// Time that emulated NVM takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvmTiming {
    /// Of every durable write, in ns: the and Strata's NVDIMM has 500 for 1 KiB.
    pub latency_ns: u64,
    /// Bytes a second.
    pub bandwidth: u64,
}

/// How stores become durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Persist {
    /// They do not: memory.
    Never,
    /// When their cache lines are written back: persistent memory mapped with MAP_SYNC.
    CacheLines,
    /// When the kernel has written their pages.
    Msync,
}

/// A mapping that is the medium. A cut leaves eight aligned bytes of it old or new.
pub(super) struct Mapped {
    base: *mut u8,
    bytes: usize,
    persist: Persist,
    timing: Option<NvmTiming>,
    /// Keeps the lock.
    _file: Option<MediaFile>,
}

// SAFETY: the mapping is reached by copies through raw pointers only; who reads bytes that another thread writes finds a
// checksum that does not match, and looks again.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Memory of zeros.
    pub(super) fn memory(bytes: u64, timing: Option<NvmTiming>) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let base = map(bytes, flags, -1)?;
        Ok(Self {
            base,
            bytes: bytes as usize,
            persist: Persist::Never,
            timing,
            _file: None,
        })
    }

    /// A file: on persistent memory (DAX) its cache lines are flushed, elsewhere its pages.
    pub(super) fn file(file: MediaFile, bytes: u64) -> io::Result<Self> {
        let fd = file.as_file().as_raw_fd();
        let synchronous = map(bytes, libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC, fd);
        let (base, persist) = match synchronous {
            Ok(base) if cfg!(target_arch = "x86_64") => (base, Persist::CacheLines),
            Ok(base) => (base, Persist::Msync),
            Err(_) => (map(bytes, libc::MAP_SHARED, fd)?, Persist::Msync),
        };
        Ok(Self {
            base,
            bytes: bytes as usize,
            persist,
            timing: None,
            _file: Some(file),
        })
    }

    fn place(&self, offset: u64, length: usize) -> io::Result<*mut u8> {
        let end = usize::try_from(offset).ok().and_then(|at| at.checked_add(length));
        match end {
            // SAFETY: inside the mapping.
            Some(end) if end <= self.bytes => Ok(unsafe { self.base.add(offset as usize) }),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    fn store(&self, at: *mut u8, bytes: &[u8]) -> io::Result<()> {
        // SAFETY: the caller's range is inside the mapping.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len()) };
        match self.persist {
            Persist::Never => Ok(()),
            Persist::CacheLines => {
                flush_lines(at, bytes.len());
                Ok(())
            }
            Persist::Msync => {
                let start = at as usize / PAGE_BYTES * PAGE_BYTES;
                let length = at as usize + bytes.len() - start;
                // SAFETY: pages of the mapping.
                match unsafe { libc::msync(start as *mut libc::c_void, length, libc::MS_SYNC) } {
                    0 => Ok(()),
                    _ => Err(io::Error::last_os_error()),
                }
            }
        }
    }

    /// Stores bytes that need not survive yet.
    fn fill(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let at = self.place(offset, bytes.len())?;
        self.store(at, bytes)
    }
}

impl Mapped {
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let at = self.place(offset, bytes.len())?;
        // SAFETY: inside the mapping.
        unsafe { ptr::copy_nonoverlapping(at, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    /// The first eight bytes are zeroed first and written last (docs/format/store.md).
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let began = self.timing.map(|_| now());
        let at = self.place(offset, bytes.len())?;
        let (first, rest) = bytes.split_at(8);
        self.store(at, &[0; 8])?;
        // SAFETY: inside the mapping, as the whole range is.
        self.store(unsafe { at.add(8) }, rest)?;
        self.store(at, first)?;
        if let (Some(began), Some(timing)) = (began, self.timing) {
            let transfer_ns = bytes.len() as u64 * 1_000_000_000 / timing.bandwidth.max(1);
            let end = began.as_nanos() + timing.latency_ns + transfer_ns;
            while now().as_nanos() < end {
                hint::spin_loop();
            }
        }
        Ok(())
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping made at the start, which nobody else has.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}

fn map(bytes: u64, flags: libc::c_int, fd: libc::c_int) -> io::Result<*mut u8> {
    let length = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping; nothing is replaced.
    let base = unsafe { libc::mmap(ptr::null_mut(), length, protection, flags, fd, 0) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(base.cast())
}

/// Writes the cache lines of a range back and waits until they are.
#[cfg(target_arch = "x86_64")]
fn flush_lines(at: *mut u8, length: usize) {
    const LINE_BYTES: usize = 64;
    let first = at as usize / LINE_BYTES * LINE_BYTES;
    for line in (first..at as usize + length).step_by(LINE_BYTES) {
        // SAFETY: lines of the mapping; every x86-64 has CLFLUSH.
        unsafe { core::arch::x86_64::_mm_clflush(line as *const u8) };
    }
    // SAFETY: every x86-64 has SFENCE.
    unsafe { core::arch::x86_64::_mm_sfence() };
}

/// Not reached: such mappings are flushed by the kernel.
#[cfg(not(target_arch = "x86_64"))]
fn flush_lines(_at: *mut u8, _length: usize) {}

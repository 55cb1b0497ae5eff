//! The medium of an area: a file or block device by direct I/O, mapped memory, or memory that takes the time of NVM.
//!
//! A write is durable when it returns. On files that is `RWF_DSYNC`, by which the kernel sets FUA, or flushes the
//! device's cache after the write if it has one and no FUA.

use crate::awake;
use crate::burst::Wanted;
use base::limits::PAGE_BYTES;
use base::{Device, MediaError};
pub use os::NvmTiming;
use os::{Mapped, MediaFile};
use smallvec::SmallVec;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
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
            Self::Mapped(mapped) => write_mapped(mapped, offset, bytes),
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
            Storage::Mapped(mapped) => mapped.store(offset, bytes).map_err(|_| MediaError::OutOfRange),
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
            Storage::Mapped(mapped) => mapped.bytes(),
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

/// Writes whole blocks of mapped memory, durable on return. The first eight bytes are zeroed first and written last
/// (docs/format/store.md).
fn write_mapped(mapped: &Mapped, offset: u64, bytes: &[u8]) -> io::Result<()> {
    let began = mapped.begin();
    let (first, rest) = bytes.split_at(8);
    mapped.store(offset, &[0; 8])?;
    mapped.store(offset + 8, rest)?;
    mapped.store(offset, first)?;
    mapped.pace(began, bytes.len());
    Ok(())
}

//! Memory as a medium: persistent memory that is mapped, a file that is mapped, or memory alone. It may take the time of NVM.
//!
//! A store is durable when it returns, as far as the medium is. A power cut leaves eight aligned bytes old or new.

use crate::clock::now;
use crate::filesystem::is_kept;
use crate::media::MediaFile;
use base::limits::PAGE_BYTES;
use base::sync::AtomicU64;
use base::{Device, Instant};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::{hint, io, ptr};

/// Time that emulated NVM takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvmTiming {
    /// Of every durable write, in ns: Strata's NVDIMM has 500 for 1 KiB.
    pub latency_ns: u64,
    /// Bytes a second.
    pub bandwidth: u64,
}

/// How stores become durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persist {
    /// They do not: memory. A file in memory outlives its program, and no power cut.
    Never,
    /// When their cache lines are written back: persistent memory mapped with MAP_SYNC.
    CacheLines,
    /// When the kernel has written their pages.
    Msync,
}

/// A mapping that is a medium.
#[derive(Debug)]
pub struct Mapped {
    base: *mut u8,
    bytes: usize,
    persist: Persist,
    timing: Option<NvmTiming>,
    /// Keeps the lock.
    _file: Option<MediaFile>,
}

// SAFETY: the mapping is reached by copies through raw pointers only; a reader of bytes that another thread writes finds a
// checksum that does not match, and looks again.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Memory of zeros.
    ///
    /// # Errors
    /// There is not so much.
    pub fn memory(bytes: u64, timing: Option<NvmTiming>) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        Ok(Self {
            base: map(bytes, flags, -1)?,
            bytes: bytes as usize,
            persist: Persist::Never,
            timing,
            _file: None,
        })
    }

    /// A file: on persistent memory (DAX) its cache lines are flushed, elsewhere its pages.
    ///
    /// # Errors
    /// It cannot be mapped.
    pub fn file(file: MediaFile, bytes: u64, timing: Option<NvmTiming>) -> io::Result<Self> {
        let fd = file.as_file().as_raw_fd();
        let synchronous = map(bytes, libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC, fd);
        let (base, persist) = match synchronous {
            Ok(base) if cfg!(target_arch = "x86_64") => (base, Persist::CacheLines),
            Ok(base) => (base, Persist::Msync),
            Err(_) if !file.is_device()? && !is_kept(fd) => {
                (map(bytes, libc::MAP_SHARED, fd)?, Persist::Never)
            }
            Err(_) => (map(bytes, libc::MAP_SHARED, fd)?, Persist::Msync),
        };
        Ok(Self {
            base,
            bytes: bytes as usize,
            persist,
            timing,
            _file: Some(file),
        })
    }

    /// A file that others have mapped, too, or memory that has a descriptor.
    ///
    /// # Errors
    /// It cannot be mapped.
    pub fn shared(file: &File, bytes: u64, timing: Option<NvmTiming>) -> io::Result<Self> {
        let fd = file.as_raw_fd();
        let synchronous = map(bytes, libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC, fd);
        let (base, persist) = match synchronous {
            Ok(base) if cfg!(target_arch = "x86_64") => (base, Persist::CacheLines),
            Ok(base) => (base, Persist::Msync),
            Err(_) if !is_kept(fd) => (map(bytes, libc::MAP_SHARED, fd)?, Persist::Never),
            Err(_) => (map(bytes, libc::MAP_SHARED, fd)?, Persist::Msync),
        };
        Ok(Self {
            base,
            bytes: bytes as usize,
            persist,
            timing,
            _file: None,
        })
    }

    /// A word that others may read and change.
    ///
    /// # Panics
    /// If it is outside, or not aligned.
    pub fn word(&self, offset: u64) -> &AtomicU64 {
        let at = self
            .place(offset, 8)
            .expect("the word is inside")
            .cast::<AtomicU64>();
        assert!(at.is_aligned(), "the word is aligned");
        // SAFETY: inside the mapping, which lives as long as the reference, and aligned.
        unsafe { &*at }
    }

    /// All of a file.
    ///
    /// # Errors
    /// It cannot be mapped.
    pub fn whole(file: MediaFile, timing: Option<NvmTiming>) -> io::Result<Self> {
        let bytes = file.capacity_bytes();
        Self::file(file, bytes, timing)
    }

    /// Bytes of the medium.
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// How stores become durable.
    pub fn persist(&self) -> Persist {
        self.persist
    }

    fn place(&self, offset: u64, length: usize) -> io::Result<*mut u8> {
        let end = usize::try_from(offset).ok().and_then(|at| at.checked_add(length));
        match end {
            // SAFETY: inside the mapping.
            Some(end) if end <= self.bytes => Ok(unsafe { self.base.add(offset as usize) }),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    /// Fills `bytes` from `offset`.
    ///
    /// # Errors
    /// It is outside.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let at = self.place(offset, bytes.len())?;
        // SAFETY: inside the mapping.
        unsafe { ptr::copy_nonoverlapping(at, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    /// Stores bytes, as durable on return as the medium makes them. Takes no emulated time: see [`Mapped::pace`].
    ///
    /// # Errors
    /// They are outside, or the kernel could not write their pages.
    pub fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let at = self.place(offset, bytes.len())?;
        // SAFETY: the range is inside the mapping.
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

    /// When a durable write begins, if it is to take the time of NVM.
    pub fn begin(&self) -> Option<Instant> {
        self.timing.map(|_| now())
    }

    /// Waits until emulated NVM has written so many bytes since `began`.
    pub fn pace(&self, began: Option<Instant>, bytes: usize) {
        let (Some(began), Some(timing)) = (began, self.timing) else {
            return;
        };
        let transfer_ns = bytes as u64 * 1_000_000_000 / timing.bandwidth.max(1);
        let end = began.as_nanos() + timing.latency_ns + transfer_ns;
        while now().as_nanos() < end {
            hint::spin_loop();
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_back_and_outside_is_refused() {
        let memory = Mapped::memory(1 << 16, None).expect("there is memory");
        memory.store(100, b"hello").expect("inside");
        let mut bytes = [0; 7];
        memory.read(99, &mut bytes).expect("inside");
        assert_eq!(&bytes, b"\0hello\0");
        assert!(memory.store((1 << 16) - 1, b"ab").is_err());
        assert!(memory.read(u64::MAX, &mut bytes).is_err());
    }

    #[test]
    fn a_mapped_file_outlives_its_mapping() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("nvm");
        let file = MediaFile::open(&path, 1 << 16, true).expect("a new file");
        let mapped = Mapped::whole(file, None).expect("it can be mapped");
        mapped.store(5000, b"kept").expect("inside");
        drop(mapped);
        let file = MediaFile::open(&path, 0, false).expect("nobody has it");
        let mut bytes = [0; 4];
        file.read_at(5000, &mut bytes).expect("inside");
        assert_eq!(&bytes, b"kept");
    }

    #[test]
    fn emulated_nvm_takes_its_time() {
        let timing = NvmTiming {
            latency_ns: 200_000,
            bandwidth: 1_000_000_000,
        };
        let memory = Mapped::memory(1 << 20, Some(timing)).expect("there is memory");
        let began = memory.begin();
        memory.store(0, &[1; 100_000]).expect("inside");
        memory.pace(began, 100_000);
        let took = now().as_nanos() - began.expect("it is timed").as_nanos();
        assert!(took >= 300_000, "{took} ns");
    }
}

//! Memory of two processes that do not trust each other.
//!
//! The descriptor is sealed: nobody can make the memory shorter, so no access faults. The other process may change any byte at
//! any time. Bytes are copied before anybody looks at them, and words are read once.

use os::sync::AtomicU64;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::{io, ptr};

/// Seals that both ends rely on.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// A mapping of sealed memory.
#[derive(Debug)]
pub struct Memory {
    base: *mut u8,
    bytes: usize,
    /// The maker's, for the other end.
    fd: Option<OwnedFd>,
}

// SAFETY: the mapping is reached through atomics and by copies through raw pointers only.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// New memory of zeros.
    ///
    /// # Errors
    /// There is not so much, or no descriptor left.
    pub fn new(bytes: usize) -> io::Result<Self> {
        let fd = Self::sealed(bytes)?;
        let mut memory = Self::map(&fd, bytes)?;
        memory.fd = Some(fd);
        Ok(memory)
    }

    /// The same, which this process does not map.
    ///
    /// # Errors
    /// As [`Memory::new`].
    pub fn sealed(bytes: usize) -> io::Result<OwnedFd> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("switchyard-vnic", flags)?;
        rustix::fs::ftruncate(&fd, bytes as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SEALS)?;
        Ok(fd)
    }

    /// Memory that another process has made, which must be sealed and have exactly this length.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] if it is anything else.
    pub fn open(fd: OwnedFd, bytes: usize) -> io::Result<Self> {
        let seals = rustix::fs::fcntl_get_seals(&fd)?;
        let length = rustix::fs::fstat(&fd)?.st_size;
        if !seals.contains(SEALS) || usize::try_from(length).ok() != Some(bytes) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Self::map(&fd, bytes)
    }

    fn map(fd: &OwnedFd, bytes: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping; nothing is replaced.
        let base = unsafe { rustix::mm::mmap(ptr::null_mut(), bytes, protection, MapFlags::SHARED, fd, 0) }?;
        let base = base.cast();
        let fd = None;
        Ok(Self { base, bytes, fd })
    }

    /// The descriptor, for the other process.
    ///
    /// # Panics
    /// If another process has made the memory.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("the maker has it").as_fd()
    }

    /// A word that the other process may change.
    ///
    /// # Panics
    /// If it is outside, or not aligned.
    #[inline]
    pub fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.bytes, "the word is inside");
        // SAFETY: inside the mapping, which lives as long as the reference, and aligned.
        unsafe { &*self.base.add(at).cast::<AtomicU64>() }
    }

    /// Copies `bytes` to `at`.
    ///
    /// # Panics
    /// If they do not fit.
    #[inline]
    pub fn write(&self, at: usize, bytes: &[u8]) {
        assert!(
            at <= self.bytes && bytes.len() <= self.bytes - at,
            "they are inside"
        );
        // SAFETY: inside the mapping, which nobody has a reference into but to words.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.add(at), bytes.len()) };
    }

    /// Copies from `at` into `bytes`.
    ///
    /// # Panics
    /// If there are not so many.
    #[inline]
    pub fn read(&self, at: usize, bytes: &mut [u8]) {
        assert!(
            at <= self.bytes && bytes.len() <= self.bytes - at,
            "they are inside"
        );
        // SAFETY: inside the mapping. If the other process writes meanwhile, the copy is some bytes, which is all that it is
        // taken for.
        unsafe { ptr::copy_nonoverlapping(self.base.add(at), bytes.as_mut_ptr(), bytes.len()) };
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping made at the start, into which no reference is left.
        let result = unsafe { rustix::mm::munmap(self.base.cast(), self.bytes) };
        debug_assert!(result.is_ok(), "it was mapped");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_mapping_writes_the_other_reads() {
        let one = Memory::new(1 << 16).expect("there is memory");
        let other = Memory::open(one.fd().try_clone_to_owned().expect("a descriptor"), 1 << 16);
        let other = other.expect("it is sealed");
        one.write(100, b"hello");
        let mut bytes = [0; 7];
        other.read(99, &mut bytes);
        assert_eq!(&bytes, b"\0hello\0");
    }

    #[test]
    fn memory_that_can_shrink_or_has_another_length_is_refused() {
        let fd = rustix::fs::memfd_create("loose", MemfdFlags::ALLOW_SEALING).expect("a descriptor");
        rustix::fs::ftruncate(&fd, 1 << 16).expect("room");
        let kind = |fd, bytes| Memory::open(fd, bytes).expect_err("refused").kind();
        assert_eq!(kind(fd, 1 << 16), io::ErrorKind::InvalidData);
        let sealed = Memory::new(1 << 16).expect("there is memory");
        let fd = sealed.fd().try_clone_to_owned().expect("a descriptor");
        assert_eq!(kind(fd, 1 << 17), io::ErrorKind::InvalidData);
        assert!(
            rustix::fs::ftruncate(sealed.fd(), 0).is_err(),
            "nobody can cut it"
        );
    }
}

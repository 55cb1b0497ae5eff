//! The four rings that an AF_XDP socket shares with the kernel (Documentation/networking/af_xdp.rst).

use os::sync::{AtomicU32, Ordering};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::xdp::XdpRingOffset;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::{io, ptr};

/// The kernel wants to be told when there is something in the ring (`XDP_RING_NEED_WAKEUP`).
const NEED_WAKEUP: u32 = 1;

/// A ring of entries `T`, of which this end is the producer or the consumer.
#[derive(Debug)]
pub struct Ring<T> {
    base: *mut u8,
    bytes: usize,
    offset: XdpRingOffset,
    entries: u32,
    /// Entries that this end has taken or put, beyond those the kernel knows of.
    own: u32,
    /// Entries that the kernel has put or taken, as far as is known.
    other: u32,
    kind: PhantomData<T>,
}

// SAFETY: the mapping belongs to the ring; the kernel's side is reached by atomics.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T: Copy> Ring<T> {
    /// Maps a socket's ring.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn map(socket: BorrowedFd<'_>, page: u64, offset: XdpRingOffset, entries: u32) -> io::Result<Self> {
        assert!(entries.is_power_of_two(), "the kernel takes no other");
        let bytes = offset.desc as usize + entries as usize * size_of::<T>();
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping; nothing is replaced.
        let base = unsafe { rustix::mm::mmap(ptr::null_mut(), bytes, protection, flags, socket, page) }?;
        Ok(Self {
            base: base.cast(),
            bytes,
            offset,
            entries,
            own: 0,
            other: 0,
            kind: PhantomData,
        })
    }

    fn word(&self, at: u64) -> &AtomicU32 {
        // SAFETY: the kernel has told where its words are in the mapping, which lives as long as the reference.
        unsafe { &*self.base.add(at as usize).cast::<AtomicU32>() }
    }

    fn entry(&self, number: u32) -> *mut T {
        let index = (number & (self.entries - 1)) as usize;
        // SAFETY: the mapping has so many entries.
        unsafe { self.base.add(self.offset.desc as usize).cast::<T>().add(index) }
    }

    /// Takes the next entry that the kernel has put.
    #[inline]
    pub fn take(&mut self) -> Option<T> {
        if self.own == self.other {
            // Acquire: the entries were written before.
            self.other = self.word(self.offset.producer).load(Ordering::Acquire);
            if self.own == self.other {
                return None;
            }
        }
        // SAFETY: an entry of the mapping, which the kernel leaves alone until it is given back.
        let entry = unsafe { self.entry(self.own).read_volatile() };
        self.own = self.own.wrapping_add(1);
        Some(entry)
    }

    /// Gives the room of taken entries back.
    #[inline]
    pub fn give_back(&mut self) {
        // Release: the entries were read before.
        self.word(self.offset.consumer).store(self.own, Ordering::Release);
    }

    /// Puts an entry; the kernel sees it after [`Ring::publish`]. False if there is no room.
    #[inline]
    pub fn put(&mut self, entry: T) -> bool {
        if self.own.wrapping_sub(self.other) >= self.entries {
            self.other = self.word(self.offset.consumer).load(Ordering::Acquire);
            if self.own.wrapping_sub(self.other) >= self.entries {
                return false;
            }
        }
        // SAFETY: an entry of the mapping, which the kernel does not look at before it is published.
        unsafe { self.entry(self.own).write_volatile(entry) };
        self.own = self.own.wrapping_add(1);
        true
    }

    /// Shows the kernel what was put.
    #[inline]
    pub fn publish(&mut self) {
        // Release: the entries were written before.
        self.word(self.offset.producer).store(self.own, Ordering::Release);
    }

    /// Whether the kernel has taken everything that was put.
    #[inline]
    pub fn is_taken(&self) -> bool {
        self.word(self.offset.consumer).load(Ordering::Acquire) == self.own
    }

    /// Whether the kernel wants to be told.
    #[inline]
    pub fn needs_wakeup(&self) -> bool {
        let flags = self.offset.flags.expect("kernels since 5.4 have it");
        self.word(flags).load(Ordering::Relaxed) & NEED_WAKEUP != 0
    }

    /// Whether the kernel has put something that was not taken.
    pub fn has_more(&self) -> bool {
        self.own != self.word(self.offset.producer).load(Ordering::Acquire)
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping made at the start, into which no reference is left.
        let result = unsafe { rustix::mm::munmap(self.base.cast(), self.bytes) };
        debug_assert!(result.is_ok(), "it was mapped");
    }
}

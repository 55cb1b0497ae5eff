//! The one io_uring of this project: a core's queue to its files is on it, and so is a thread's durable write.
//!
//! A ring takes entries, hands them to the kernel, and gives their ends back. It knows nothing of what they mean.

use io_uring::{IoUring, opcode, squeue, types};
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::{io, time};

/// Largest single buffer that the kernel registers (io_uring_register(2)).
const REGISTERED_BYTES_MAX: usize = 1 << 30;

/// Submission and completion queue of one thread.
pub struct Ring {
    ring: IoUring,
    /// Entries in the submission queue that the kernel does not have yet.
    unsubmitted: usize,
    /// Memory that the kernel knows.
    registered: Range<usize>,
}

impl Ring {
    /// A ring of `entries`, whose completions interrupt nobody: they run when the thread enters the kernel (Linux 5.19).
    ///
    /// # Errors
    /// Where the kernel has no rings, or forbids them.
    pub fn new(entries: u32) -> io::Result<Self> {
        let cooperative = IoUring::builder().setup_coop_taskrun().build(entries);
        let ring = cooperative.or_else(|_| IoUring::new(entries))?;
        Ok(Self {
            ring,
            unsubmitted: 0,
            registered: 0..0,
        })
    }

    /// The same ring under a descriptor from `descriptors`, out of the way of those that a program expects to get.
    ///
    /// # Errors
    /// When none of them is free.
    pub fn moved_to(self, descriptors: Range<RawFd>) -> io::Result<Self> {
        // SAFETY: no memory is involved.
        let high = unsafe { libc::fcntl(self.fd(), libc::F_DUPFD_CLOEXEC, descriptors.start) };
        if high < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor of this ring, which nobody else has.
        let ring = unsafe { IoUring::from_fd(high, self.ring.params().clone()) };
        let moved = ring.map(|ring| Self {
            ring,
            unsubmitted: 0,
            registered: 0..0,
        });
        match descriptors.contains(&high) {
            true => moved,
            false => Err(io::ErrorKind::QuotaExceeded.into()),
        }
    }

    /// The descriptor, which becomes readable when an entry has ended.
    pub fn fd(&self) -> RawFd {
        self.ring.as_raw_fd()
    }

    /// Tells the kernel of memory, so that it need not look up the pages of each entry. Nothing where the limit on
    /// locked memory (RLIMIT_MEMLOCK) forbids it.
    ///
    /// # Safety
    /// The memory outlives the ring's entries.
    pub unsafe fn register(&mut self, base: *mut u8, bytes: usize) {
        let buffer = |start: usize| libc::iovec {
            iov_base: base.wrapping_add(start).cast(),
            iov_len: (bytes - start).min(REGISTERED_BYTES_MAX),
        };
        let buffers: Vec<_> = (0..bytes).step_by(REGISTERED_BYTES_MAX).map(buffer).collect();
        // SAFETY: by this function's contract.
        let told = !buffers.is_empty() && unsafe { self.ring.submitter().register_buffers(&buffers) }.is_ok();
        if told {
            self.registered = base as usize..base as usize + bytes;
        }
    }

    /// The registered buffer that holds a page at `at`.
    pub fn buffer_of(&self, at: *const u8) -> Option<u16> {
        let is_known = self.registered.contains(&(at as usize));
        is_known.then(|| ((at as usize - self.registered.start) / REGISTERED_BYTES_MAX) as u16)
    }

    /// Queues an entry.
    ///
    /// # Safety
    /// What the entry points at stays until its end was given back, or for ever.
    ///
    /// # Panics
    /// When the ring is full.
    pub unsafe fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: by this function's contract.
        unsafe { self.ring.submission().push(entry) }.expect("no more entries than the ring has");
        self.unsubmitted += 1;
    }

    /// Queues a read of `file` from `offset` on. Its end has `number`, and the count of bytes that were read.
    ///
    /// # Safety
    /// File and bytes stay until its end was given back, and nobody else uses the bytes.
    ///
    /// # Panics
    /// When the ring is full.
    pub unsafe fn push_read(&mut self, file: RawFd, offset: u64, bytes: &mut [u8], number: u64) {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let read = opcode::Read::new(types::Fd(file), bytes.as_mut_ptr(), length).offset(offset);
        // SAFETY: by this function's contract.
        unsafe { self.push(&read.build().user_data(number)) };
    }

    /// Hands what is queued to the kernel by one system call; how many entries it took.
    ///
    /// # Errors
    /// Of io_uring_enter(2).
    pub fn submit(&mut self) -> io::Result<usize> {
        let taken = self.ring.submit()?;
        self.unsubmitted -= taken;
        Ok(taken)
    }

    /// Entries that the kernel does not have yet.
    pub fn unsubmitted(&self) -> usize {
        self.unsubmitted
    }

    /// True if [`Ring::next_end`] has something. No system call.
    pub fn has_ended(&mut self) -> bool {
        !self.ring.completion().is_empty()
    }

    /// The number and the result of an entry that has ended. No system call.
    pub fn next_end(&mut self) -> Option<(u64, i32)> {
        let entry = self.ring.completion().next()?;
        Some((entry.user_data(), entry.result()))
    }

    /// Submits, and sleeps until something has ended, or for `timeout`.
    ///
    /// # Errors
    /// Of io_uring_enter(2), and when the time is over.
    pub fn wait(&mut self, timeout: Option<time::Duration>) -> io::Result<()> {
        let taken = match timeout {
            None => self.ring.submit_and_wait(1)?,
            Some(timeout) => {
                let span = types::Timespec::from(timeout);
                let args = types::SubmitArgs::new().timespec(&span);
                self.ring.submitter().submit_with_args(1, &args)?
            }
        };
        self.unsubmitted -= taken.min(self.unsubmitted);
        Ok(())
    }

    /// Submits, and sleeps until `count` entries have ended whose ends were not given back yet.
    ///
    /// # Errors
    /// Of io_uring_enter(2): fewer may have ended.
    pub fn wait_for(&mut self, count: usize) -> io::Result<()> {
        let taken = self.ring.submit_and_wait(count)?;
        self.unsubmitted -= taken.min(self.unsubmitted);
        Ok(())
    }

    /// Never closes the ring: the kernel has something of it for ever, or its descriptor is another file's by now.
    pub fn leak(self) {
        std::mem::forget(self);
    }
}

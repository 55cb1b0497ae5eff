//! The one io_uring of this project: a core's queue to its files is on it, and so is a thread's durable write.
//!
//! A ring takes entries, hands them to the kernel, and gives their ends back. It knows nothing of what they mean.

use io_uring::{IoUring, opcode, squeue, types};
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::{io, time};

/// Memory is registered in parts of this size, each when it is first used: the kernel keeps what is registered in memory.
const PART_BYTES: usize = 2 << 20;
/// Buffers that a ring can have (io_uring_register(2)). Parts of more memory are larger.
const PARTS_MAX: usize = 1 << 14;

/// Submission and completion queue of one thread. Its entries have 64 bytes, those of a [`CommandRing`] 128.
pub struct Ring<E: squeue::EntryMarker = squeue::Entry> {
    ring: IoUring<E>,
    /// Entries in the submission queue that the kernel does not have yet.
    unsubmitted: usize,
    known: Option<Known>,
}

/// A ring for commands to drivers, whose entries have room for 80 bytes of a command.
pub type CommandRing = Ring<squeue::Entry128>;

/// A command to a driver (`IORING_OP_URING_CMD`).
pub struct Command {
    /// The driver's number of it.
    pub operation: u32,
    /// The driver's own bytes.
    pub bytes: [u8; 80],
    /// Where the list of its buffers is, and how many it has: `addr` and `len` of the entry. Null and 0 if it has none.
    pub buffers: (*const Buffer, u32),
}

/// Memory of a command (readv(2)).
pub use libc::iovec as Buffer;

/// Where `len` is in an entry of the submission queue (io_uring_enter(2)); the crate's builder of commands leaves it out.
const ENTRY_LEN_AT: usize = 24;

/// Memory of which the kernel knows the parts that were used.
struct Known {
    memory: Range<usize>,
    part_bytes: usize,
    parts: Vec<Part>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Unused,
    Registered,
    /// The limit on locked memory (RLIMIT_MEMLOCK) forbids it.
    Refused,
}

impl CommandRing {
    /// A ring of `entries` for commands, which only the calling thread uses. What a driver has to do in this thread it does
    /// when the thread waits, if it `is_deferred` (`IORING_SETUP_DEFER_TASKRUN`, Linux 6.1), or else when the thread enters the kernel.
    ///
    /// If the thread is killed, what is deferred is done when the ring's last file is closed. A thread of the same process has that file. So do not
    /// defer if another thread of the process may wait in the kernel for what the driver has to do.
    ///
    /// # Errors
    /// Where the kernel has no such rings, or forbids them.
    pub fn for_commands(entries: u32, is_deferred: bool) -> io::Result<Self> {
        let mut builder = IoUring::<squeue::Entry128>::builder();
        let builder = builder.setup_single_issuer();
        let ring = match is_deferred {
            true => builder.setup_defer_taskrun(),
            false => builder.setup_coop_taskrun(),
        };
        Ok(Self::of_one_thread(ring.build(entries)?))
    }

    /// Queues a command to the driver of `file`. Its end has `number`, and the driver's result.
    ///
    /// # Safety
    /// File, list and buffers stay until the command's end was given back, and nobody else uses the buffers.
    ///
    /// # Panics
    /// When the ring is full.
    pub unsafe fn push_command(&mut self, file: RawFd, command: &Command, number: u64) {
        let (buffers, count) = command.buffers;
        let mut entry = opcode::UringCmd80::new(types::Fd(file), command.operation)
            .cmd(command.bytes)
            .addr(Some(buffers as u64))
            .build()
            .user_data(number);
        // SAFETY: an entry is `repr(C)` and has 128 bytes, of which those of `len` are a number of 32 bits.
        unsafe {
            let len = (&raw mut entry).cast::<u8>().add(ENTRY_LEN_AT).cast::<u32>();
            len.write_unaligned(count);
        }
        // SAFETY: by this function's contract.
        unsafe { self.push(&entry) };
    }

    /// Queues a watch of `file`: when it can be read, an end has `number`.
    ///
    /// # Panics
    /// When the ring is full.
    pub fn push_watch(&mut self, file: RawFd, number: u64) {
        let poll = opcode::PollAdd::new(types::Fd(file), libc::POLLIN as u32);
        // SAFETY: no memory is involved, and the ring keeps a file that it watches.
        unsafe { self.push(&poll.build().user_data(number).into()) };
    }
}

impl Ring {
    /// A ring of `entries`, whose completions interrupt nobody: they run when the thread enters the kernel (Linux 5.19).
    ///
    /// # Errors
    /// Where the kernel has no rings, or forbids them.
    pub fn new(entries: u32) -> io::Result<Self> {
        let cooperative = IoUring::builder().setup_coop_taskrun().build(entries);
        let ring = cooperative.or_else(|_| IoUring::new(entries))?;
        Ok(Self::of(ring))
    }

    /// A ring of `entries` for sockets, with four ends for each entry, which only the calling thread uses: what arrives is taken
    /// when the thread waits (`IORING_SETUP_DEFER_TASKRUN`, Linux 6.1).
    ///
    /// # Errors
    /// Where the kernel has no such rings, or forbids them.
    pub fn for_sockets(entries: u32) -> io::Result<Self> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_cqsize(4 * entries)
            .build(entries)?;
        Ok(Self::of_one_thread(ring))
    }

    /// Registers a ring of buffers (io_uring_register_buf_ring(3)) as a group, from which receives take theirs.
    ///
    /// # Safety
    /// The memory outlives this ring, is aligned to a page, and has so many entries.
    ///
    /// # Errors
    /// Of io_uring_register(2).
    pub unsafe fn register_group(&mut self, at: *mut u8, entries: u16, group: u16) -> io::Result<()> {
        let submitter = self.ring.submitter();
        // SAFETY: by this function's contract.
        unsafe { submitter.register_buf_ring_with_flags(at as u64, entries, group, 0) }
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
            known: None,
        });
        match descriptors.contains(&high) {
            true => moved,
            false => Err(io::ErrorKind::QuotaExceeded.into()),
        }
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
}

impl<E: squeue::EntryMarker> Ring<E> {
    fn of(ring: IoUring<E>) -> Self {
        Self {
            ring,
            unsubmitted: 0,
            known: None,
        }
    }

    /// A ring that only the calling thread uses.
    fn of_one_thread(ring: IoUring<E>) -> Self {
        // It saves the look-up of the descriptor; the kernel has few places for it.
        let _ = ring.submitter().register_ring_fd();
        Self::of(ring)
    }

    /// The descriptor, which becomes readable when an entry has ended.
    pub fn fd(&self) -> RawFd {
        self.ring.as_raw_fd()
    }

    /// Lets the kernel know memory by and by, so that it need not look up the pages of each entry.
    ///
    /// # Safety
    /// The memory outlives the ring's entries.
    pub unsafe fn register(&mut self, base: *mut u8, bytes: usize) {
        let part_bytes = PART_BYTES.max(bytes.div_ceil(PARTS_MAX).next_power_of_two());
        let count = bytes.div_ceil(part_bytes);
        // Linux 5.19; before, the kernel looks the pages up.
        let is_possible = count > 0
            && self
                .ring
                .submitter()
                .register_buffers_sparse(count as u32)
                .is_ok();
        self.known = is_possible.then(|| Known {
            memory: base as usize..base as usize + bytes,
            part_bytes,
            parts: vec![Part::Unused; count],
        });
    }

    /// The registered buffer that holds a page at `at`.
    pub fn buffer_of(&mut self, at: *const u8) -> Option<u16> {
        let is_known = |known: &&mut Known| known.memory.contains(&(at as usize));
        let known = self.known.as_mut().filter(is_known)?;
        let index = (at as usize - known.memory.start) / known.part_bytes;
        let part = &mut known.parts[index];
        if *part == Part::Unused {
            let start = known.memory.start + index * known.part_bytes;
            let buffer = libc::iovec {
                iov_base: start as *mut libc::c_void,
                iov_len: known.part_bytes.min(known.memory.end - start),
            };
            // SAFETY: by the contract of `register`.
            let told = unsafe {
                let submitter = self.ring.submitter();
                submitter.register_buffers_update(index as u32, &[buffer], None)
            };
            *part = if told.is_ok() {
                Part::Registered
            } else {
                Part::Refused
            };
        }
        (*part == Part::Registered).then_some(index as u16)
    }

    /// Queues an entry.
    ///
    /// # Safety
    /// What the entry points at stays until its end was given back, or for ever.
    ///
    /// # Panics
    /// When the ring is full.
    pub unsafe fn push(&mut self, entry: &E) {
        // SAFETY: by this function's contract.
        unsafe { self.ring.submission().push(entry) }.expect("no more entries than the ring has");
        self.unsubmitted += 1;
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

    /// The answer of [`Ring::next_end`], and the flags. No system call.
    pub fn next_end_and_flags(&mut self) -> Option<(u64, i32, u32)> {
        let entry = self.ring.completion().next()?;
        Some((entry.user_data(), entry.result(), entry.flags()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_registered_memory_has_a_buffer() {
        // A kernel without rings has nothing to test.
        let Ok(mut ring) = Ring::new(2) else { return };
        let memory = vec![0u8; 2 * PART_BYTES + 4096];
        let end = PART_BYTES + 4096;
        assert_eq!(ring.buffer_of(memory.as_ptr()), None);
        // SAFETY: the ring has no entries.
        unsafe { ring.register(memory.as_ptr().cast_mut(), end) };
        for (at, expected) in [
            (0, Some(0)),
            (PART_BYTES - 1, Some(0)),
            (PART_BYTES, Some(1)),
            (end, None),
        ] {
            let buffer = ring.buffer_of(memory[at..].as_ptr());
            // Where the limit on locked memory forbids it there is none.
            assert!(buffer == expected || buffer.is_none(), "{at}: {buffer:?}");
        }
    }
}

//! A volume on a file or block device: one ring per core, one request of the ring per step of a client's request.
//!
//! Data goes by O_DIRECT between the device and pool pages. A part of the device's own block cannot go that way: such
//! requests go through the page cache, whose lock makes the read-modify-write whole, by a second descriptor of the same
//! file; a flush covers both ways.
//!
//! Steps: a write with FUA carries RWF_DSYNC; trims and zeroes are `fallocate`, and zeroes that the file system cannot
//! do so are written; what must be durable and has no flag for it is followed by a flush.

use crate::counters::Counters;
use crate::ring::submit;
use base::limits::{PAGE_BYTES, REQUEST_BYTES_MAX};
use base::{BlockError, BlockOp, BlockReply, BlockRequest, Device, Page, Pages, Pool};
use io_uring::{IoUring, opcode, squeue, types};
use os::{MediaFile, MediaOpenError, MediaWarning};
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::{io, mem};

/// Requests in flight in one ring at most; further ones wait.
const DEPTH: u32 = 256;
/// Pages of the largest request: an unaligned one touches one more than its length says.
const PAGES_MAX: usize = REQUEST_BYTES_MAX as usize / PAGE_BYTES + 1;
/// Buffers of one vectored request (UIO_MAXIOV); the rest of a longer one follows.
const IOVECS_MAX: usize = 1024;
/// Written-through data and metadata, as fdatasync would (preadv2(2)).
const RWF_DSYNC: i32 = 0x2;

/// The file of a volume, shared by the cores.
#[derive(Debug)]
pub(super) struct FileStore {
    /// By O_DIRECT, where the file system takes it; holds the lock.
    direct: File,
    warning: Option<MediaWarning>,
    /// The same file, through the page cache.
    cached: File,
    /// Offsets and lengths of O_DIRECT are multiples of this.
    align: u64,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// A write or flush has failed.
    latched: AtomicBool,
}

impl FileStore {
    /// Opens the file; also tells its size in bytes.
    pub fn open(path: &Path, bytes: u64, create: bool) -> Result<(Self, u64), MediaOpenError> {
        let medium = MediaFile::open(path, bytes, create)?;
        let os = |source| MediaOpenError::Os {
            path: path.into(),
            source,
        };
        let cached = OpenOptions::new().read(true).write(true).open(path).map_err(os)?;
        let (size_bytes, warning) = (medium.capacity_bytes(), medium.warning());
        let direct = medium.into_file().expect("what was opened is a file");
        let store = Self {
            align: direct_align(direct.as_raw_fd()),
            direct,
            warning,
            cached,
            shared: Arc::default(),
        };
        Ok((store, size_bytes))
    }

    pub fn warning(&self) -> Option<MediaWarning> {
        self.warning
    }

    /// The descriptor for a transfer.
    fn descriptor(&self, offset: u64, length: u32) -> RawFd {
        if offset.is_multiple_of(self.align) && u64::from(length).is_multiple_of(self.align) {
            self.direct.as_raw_fd()
        } else {
            self.cached.as_raw_fd()
        }
    }
}

/// Alignment that O_DIRECT asks for; a page where the kernel (before 6.1) does not tell.
fn direct_align(fd: RawFd) -> u64 {
    const STATX_DIOALIGN: u32 = 0x2000;
    // SAFETY: a `statx` of zeros is valid, and valid for writes; the path is an empty string.
    let (result, stat) = unsafe {
        let mut stat: libc::statx = mem::zeroed();
        let result = libc::statx(fd, c"".as_ptr(), libc::AT_EMPTY_PATH, STATX_DIOALIGN, &mut stat);
        (result, stat)
    };
    let told = result == 0 && stat.stx_mask & STATX_DIOALIGN != 0 && stat.stx_dio_offset_align > 0;
    if told {
        u64::from(stat.stx_dio_offset_align)
    } else {
        PAGE_BYTES as u64
    }
}

/// What a request in flight does now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Data of the request from its `moved`-th byte on.
    Move,
    /// `fallocate` of its range.
    Allocate,
    /// Zeros over its range, as `fallocate` could not.
    WriteZeros,
    Sync,
}

struct Slot {
    request: BlockRequest,
    shared: Arc<Shared>,
    fd: RawFd,
    sync_fd: RawFd,
    step: Step,
    moved: u64,
    pages: Pages,
    iovecs: Vec<libc::iovec>,
}

/// One core's requests to files.
pub(super) struct FileRing {
    ring: IoUring,
    pool: Pool,
    zero: Page,
    slots: Vec<Option<Box<Slot>>>,
    free: Vec<u32>,
    /// Slots to use again.
    #[expect(
        clippy::vec_box,
        reason = "a slot stays where it is while the kernel has its iovecs"
    )]
    spare: Vec<Box<Slot>>,
    /// Requests that wait for a slot or for pages.
    waiting: VecDeque<Box<Slot>>,
    unsubmitted: usize,
    short_of_pages: bool,
}

impl FileRing {
    pub fn new(pool: Pool) -> io::Result<Self> {
        let ring = IoUring::builder()
            .setup_coop_taskrun()
            .setup_single_issuer()
            .build(DEPTH)
            .or_else(|_| IoUring::new(DEPTH))?;
        let zero = pool.alloc_zeroed().ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            ring,
            zero,
            pool,
            slots: (0..DEPTH).map(|_| None).collect(),
            free: (0..DEPTH).rev().collect(),
            spare: Vec::with_capacity(DEPTH as usize),
            waiting: VecDeque::with_capacity(1024),
            unsubmitted: 0,
            short_of_pages: false,
        })
    }

    pub fn fd(&self) -> RawFd {
        self.ring.as_raw_fd()
    }

    pub fn is_held_up(&self) -> bool {
        self.unsubmitted > 0 || self.short_of_pages
    }

    /// Takes a request that is inside the file.
    pub fn submit(
        &mut self,
        mut request: BlockRequest,
        file: &FileStore,
        done: &mut VecDeque<BlockReply>,
        counters: &Counters,
    ) {
        let changes = request.op != BlockOp::Read;
        if changes && file.shared.latched.load(Relaxed) {
            return done.push_back(super::answer(&request, Err(BlockError::Io)));
        }
        if request.op != BlockOp::Flush && request.length == 0 {
            return done.push_back(super::answer(&request, Ok(Pages::new())));
        }
        let pages = mem::take(&mut request.pages);
        assert!(pages.len() <= PAGES_MAX, "requests are bounded where they enter");
        let step = match request.op {
            BlockOp::Read | BlockOp::Write => Step::Move,
            BlockOp::Trim | BlockOp::WriteZeroes => Step::Allocate,
            BlockOp::Flush => Step::Sync,
        };
        match request.op {
            BlockOp::Read => counters.media_reads.bump(),
            BlockOp::Flush => counters.media_flushes.bump(),
            _ => counters.media_writes.bump(),
        }
        let (fd, sync_fd) = (
            file.descriptor(request.offset, request.length),
            file.cached.as_raw_fd(),
        );
        let shared = Arc::clone(&file.shared);
        let slot = match self.spare.pop() {
            Some(mut slot) => {
                (slot.request, slot.shared, slot.fd, slot.sync_fd) = (request, shared, fd, sync_fd);
                (slot.step, slot.moved, slot.pages) = (step, 0, pages);
                slot
            }
            None => Box::new(Slot {
                request,
                shared,
                fd,
                sync_fd,
                step,
                moved: 0,
                pages,
                iovecs: Vec::new(),
            }),
        };
        self.waiting.push_back(slot);
    }

    /// Starts what waits, as far as there are slots and pages, and hands it to the kernel.
    pub fn push(&mut self, counters: &Counters) {
        self.short_of_pages = false;
        while let (Some(slot), true) = (self.waiting.front_mut(), !self.free.is_empty()) {
            if slot.request.op == BlockOp::Read && slot.pages.is_empty() {
                let count = super::touched(&slot.request).count();
                if self.pool.available() < count {
                    // What is in flight gives some back; else a later turn tries again.
                    self.short_of_pages = true;
                    break;
                }
                slot.pages = (0..count).map_while(|_| self.pool.alloc()).collect();
            }
            let slot = self.waiting.pop_front().expect("just seen");
            self.start(slot);
        }
        submit(&self.ring, &mut self.unsubmitted, counters);
    }

    fn start(&mut self, mut slot: Box<Slot>) {
        let index = self.free.pop().expect("a slot was free");
        let entry = slot.entry(&self.zero).user_data(u64::from(index));
        // SAFETY: the slot, which stays boxed in its place until the completion, holds the pages and iovecs that the
        // entry points at, the ring the page of zeros, and dropping the ring waits for completions. Pages read into are
        // fresh, and pages written are not changed while the slot holds a handle.
        unsafe { self.ring.submission().push(&entry) }.expect("as many entries as slots");
        self.unsubmitted += 1;
        self.slots[index as usize] = Some(slot);
    }

    /// Collects completions; what has further steps goes on.
    pub fn reap(&mut self, done: &mut VecDeque<BlockReply>, counters: &Counters) {
        loop {
            let Some(entry) = self.ring.completion().next() else {
                return;
            };
            let index = entry.user_data() as u32;
            let mut slot = self.slots[index as usize]
                .take()
                .expect("a completion has its slot");
            self.free.push(index);
            match slot.advance(entry.result()) {
                // It was first in line before: it goes first again.
                None => self.waiting.push_front(slot),
                Some(result) => {
                    if result.is_err() {
                        counters.media_errors.bump();
                    }
                    let pages = mem::take(&mut slot.pages);
                    let result = result.map(|()| match slot.request.op {
                        BlockOp::Read => pages,
                        _ => Pages::new(),
                    });
                    done.push_back(super::answer(&slot.request, result));
                    slot.iovecs.clear();
                    self.spare.push(slot);
                }
            }
        }
    }
}

impl Slot {
    /// The kernel's form of the present step.
    fn entry(&mut self, zero: &Page) -> squeue::Entry {
        let (offset, length) = (self.request.offset, u64::from(self.request.length));
        match self.step {
            Step::Sync => opcode::Fsync::new(types::Fd(self.sync_fd))
                .flags(types::FsyncFlags::DATASYNC)
                .build(),
            Step::Allocate => opcode::Fallocate::new(types::Fd(self.fd), length)
                .offset(offset)
                .mode(match self.request.op {
                    BlockOp::Trim => libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                    _ => libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE,
                })
                .build(),
            Step::WriteZeros => {
                self.iovecs.clear();
                let mut left = (length - self.moved) as usize;
                while left > 0 && self.iovecs.len() < IOVECS_MAX {
                    let part = left.min(PAGE_BYTES);
                    self.iovecs.push(super::iovec(zero, 0, part));
                    left -= part;
                }
                self.vectored(false)
            }
            Step::Move => {
                self.iovecs.clear();
                let mut skip = self.moved as usize;
                for ((_, first, end), page) in super::touched(&self.request).zip(&self.pages) {
                    let skipped = skip.min(end - first);
                    skip -= skipped;
                    if first + skipped < end && self.iovecs.len() < IOVECS_MAX {
                        self.iovecs.push(super::iovec(page, first + skipped, end));
                    }
                }
                self.vectored(self.request.op == BlockOp::Read)
            }
        }
    }

    fn vectored(&self, reads: bool) -> squeue::Entry {
        let offset = self.request.offset + self.moved;
        let (iovecs, count, fd) = (self.iovecs.as_ptr(), self.iovecs.len() as u32, types::Fd(self.fd));
        if reads {
            return opcode::Readv::new(fd, iovecs, count).offset(offset).build();
        }
        let flags = if self.request.fua { RWF_DSYNC } else { 0 };
        opcode::Writev::new(fd, iovecs, count)
            .offset(offset)
            .rw_flags(flags)
            .build()
    }

    /// Takes a step's result; `None` if there is another step.
    fn advance(&mut self, result: i32) -> Option<Result<(), BlockError>> {
        if matches!(-result, libc::EINTR | libc::EAGAIN) {
            return None;
        }
        let length = u64::from(self.request.length);
        match self.step {
            // Also for a trim: what it forgets reads as zeros.
            Step::Allocate if -result == libc::EOPNOTSUPP => {
                self.step = Step::WriteZeros;
                return None;
            }
            _ if result < 0 => return Some(Err(self.failed(-result))),
            Step::Move | Step::WriteZeros => {
                self.moved += result as u64;
                if result == 0 {
                    // The file is shorter than when it was opened.
                    return Some(Err(self.failed(libc::EIO)));
                }
                if self.moved < length {
                    return None;
                }
            }
            Step::Allocate if self.request.fua => {
                self.step = Step::Sync;
                return None;
            }
            Step::Allocate | Step::Sync => {}
        }
        Some(Ok(()))
    }

    fn failed(&self, errno: i32) -> BlockError {
        match (self.request.op, errno) {
            (BlockOp::Read, _) => BlockError::Io,
            (BlockOp::Flush, _) => {
                self.shared.latched.store(true, Relaxed);
                BlockError::Io
            }
            // Nothing was taken, so nothing is lost.
            (_, libc::ENOSPC | libc::EDQUOT) => BlockError::NoSpace,
            _ => {
                self.shared.latched.store(true, Relaxed);
                BlockError::Io
            }
        }
    }
}

impl Drop for FileRing {
    /// Waits for everything in flight: the kernel must not write into memory that is given back.
    fn drop(&mut self) {
        while self.slots.iter().any(Option::is_some) {
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    eprintln!("waiting for the media failed: {error}");
                    std::process::abort();
                }
            }
            while let Some(entry) = self.ring.completion().next() {
                self.slots[entry.user_data() as usize] = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Local, LocalVolume, numbered};
    use super::*;
    use base::VolumeId;
    use base::limits::SECTOR_BYTES;

    fn request(op: BlockOp, offset: u64, length: u32, pages: Pages) -> BlockRequest {
        BlockRequest {
            client: 1,
            tag: offset,
            volume: VolumeId(0),
            op,
            offset,
            length,
            fua: offset.is_multiple_of(3),
            pages,
        }
    }

    fn run(local: &mut Local, request: BlockRequest) -> Pages {
        let counters = Counters::default();
        local.submit(request, &counters);
        loop {
            local.push(&counters);
            local.reap(&counters);
            if let Some(reply) = local.next_done() {
                return reply.result.expect("a sound medium");
            }
        }
    }

    /// Writes, trims and zeroes at any sector agree with a model, on a file and in memory.
    #[test]
    fn any_range_of_sectors_is_written_zeroed_and_read_back() {
        const BYTES: usize = 64 * PAGE_BYTES;
        let directory = tempfile::tempdir().expect("a temporary directory");
        let file =
            LocalVolume::file("f", &directory.path().join("v"), BYTES as u64, true).expect("a new file");
        let memory = LocalVolume::memory("m", BYTES as u64).expect("memory");
        for volume in [file, memory] {
            let pool = Pool::new(256, SECTOR_BYTES);
            let mut local = Local::new(numbered(vec![volume]).0, &pool).expect("a ring");
            let mut model = vec![0u8; BYTES];
            let mut random = base::Rng::new(7);
            for round in 1..400u32 {
                let first = random.below(BYTES as u64 / 512) as usize * 512;
                let length = (random.between(1, 40) as usize * 512).min(BYTES - first);
                let op = match random.below(4) {
                    0 => BlockOp::Trim,
                    1 => BlockOp::WriteZeroes,
                    _ => BlockOp::Write,
                };
                let mut asked = request(op, first as u64, length as u32, Pages::new());
                let fill = if op == BlockOp::Write { round as u8 | 1 } else { 0 };
                if op == BlockOp::Write {
                    asked.pages = super::super::touched(&asked)
                        .map(|_| {
                            let page = pool.alloc().expect("a page");
                            page.with_mut(|bytes| bytes.fill(fill));
                            page
                        })
                        .collect();
                }
                run(&mut local, asked);
                model[first..first + length].fill(fill);
            }
            run(&mut local, request(BlockOp::Flush, 0, 0, Pages::new()));
            let pages = run(
                &mut local,
                request(BlockOp::Read, 512, BYTES as u32 - 512, Pages::new()),
            );
            for (index, page) in pages.iter().enumerate() {
                let skip = if index == 0 { 512 } else { 0 };
                page.with(|bytes| {
                    let expected = &model[index * PAGE_BYTES..][..PAGE_BYTES];
                    assert!(bytes[skip..] == expected[skip..], "page {index}");
                });
            }
        }
    }
}

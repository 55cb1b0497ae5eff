//! The hot path to media: one io_uring per core for the files of all its hosts; memory media are served inline.
//!
//! Operations are queued by [`MediaQueue::submit`] and handed to the kernel by [`MediaQueue::push`], once per turn of
//! the loop. Adjacent operations of the same kind on adjacent pages become one vectored request: an append-only log
//! writes long runs. At most [`MediaQueue::DEPTH`] requests are in flight, the others wait in the queue in order of
//! arrival; nothing is refused for lack of room.
//!
//! Invariants:
//! - Every operation is answered exactly once.
//! - The pages and iovecs of a request stay where they are until its completion: slots live in a boxed slice and hold
//!   the pages, and dropping the queue waits for everything in flight.
//! - A request of several pages that fails or is short is repeated page by page, so that one damaged page does not
//!   condemn its neighbours. Repeating is safe: writes go to the same place with the same bytes.
//! - Operations are not ordered among themselves. A flush covers what was *done* when it was issued, which is just
//!   what fdatasync promises.

use crate::counters::Counters;
use base::{Device, MediaDone, MediaError, MediaKind, MediaOp, Page, Pool};
use io_uring::{IoUring, opcode, squeue, types};
use os::MediaFile;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};
use std::{io, ptr};

/// Pages of one vectored request: 128 KiB, where devices reach their bandwidth.
const MERGE_PAGES_MAX: usize = 32;
/// Largest single buffer that the kernel registers (io_uring_register(2)).
const REGISTERED_BYTES_MAX: usize = 1 << 30;

/// An operation that waits for a slot.
struct Waiting {
    host: usize,
    fd: RawFd,
    kind: MediaKind,
    id: u64,
    offset: u64,
    page: Option<Page>,
    /// Was part of a failed request: goes alone.
    alone: bool,
}

/// A request in flight, or room for one.
struct Slot {
    host: usize,
    fd: RawFd,
    kind: MediaKind,
    offset: u64,
    operations: Vec<(u64, Option<Page>)>,
    iovecs: [libc::iovec; MERGE_PAGES_MAX],
}

/// The media of one core's hosts.
pub(crate) struct MediaQueue {
    ring: Option<Ring>,
    waiting: VecDeque<Waiting>,
    /// Operations done, by host: taken by the loop.
    done: VecDeque<(usize, MediaDone)>,
    page_bytes: usize,
}

struct Ring {
    ring: IoUring,
    slots: Box<[Slot]>,
    free: Vec<u32>,
    /// Requests in the submission queue that the kernel does not have yet.
    unsubmitted: usize,
    /// Start of the registered pool, if it could be registered.
    registered: Option<*const u8>,
}

impl MediaQueue {
    /// Requests in flight at most.
    pub const DEPTH: usize = 256;

    /// A queue for media in memory and, with `files`, for files. Reserves everything now.
    pub fn new(pool: &Pool, files: bool) -> io::Result<Self> {
        let ring = if files { Some(Ring::new(pool)?) } else { None };
        // One operation per page of the pool, and as many flushes as anybody could mean.
        let capacity = pool.capacity() + 1024;
        Ok(Self {
            ring,
            waiting: VecDeque::with_capacity(if files { capacity } else { 0 }),
            done: VecDeque::with_capacity(capacity),
            page_bytes: pool.page_bytes(),
        })
    }

    /// The descriptor that becomes readable when a request is done.
    pub fn fd(&self) -> Option<RawFd> {
        self.ring.as_ref().map(|ring| ring.ring.as_raw_fd())
    }

    /// Takes one operation of host `host` on its medium.
    pub fn submit(&mut self, host: usize, medium: &mut MediaFile, operation: MediaOp, counters: &Counters) {
        match operation.kind {
            MediaKind::Read => counters.media_reads.bump(),
            MediaKind::Write => counters.media_writes.bump(),
            MediaKind::Flush => counters.media_flushes.bump(),
            kind => unreachable!("hosts do not ask for {kind:?}"),
        }
        let MediaOp { id, kind, offset, .. } = operation;
        let page = operation.pages.into_iter().next();
        let page_bytes = self.page_bytes as u64;
        assert!(offset.is_multiple_of(page_bytes), "media offsets are whole pages");
        let end = offset.checked_add(page_bytes);
        if kind != MediaKind::Flush && end.is_none_or(|end| end > medium.capacity_bytes()) {
            counters.media_errors.bump();
            self.done
                .push_back((host, done(id, kind, page, Err(MediaError::OutOfRange))));
            return;
        }
        match medium.fd() {
            Some(fd) => {
                self.waiting.push_back(Waiting {
                    host,
                    fd,
                    kind,
                    id,
                    offset,
                    page,
                    alone: false,
                });
            }
            None => {
                let result = match (kind, &page) {
                    (MediaKind::Read, Some(page)) => page.with_mut(|bytes| medium.read_at(offset, bytes)),
                    (MediaKind::Write, Some(page)) => page.with(|bytes| medium.write_at(offset, bytes)),
                    _ => medium.flush(),
                };
                self.done.push_back((host, done(id, kind, page, result)));
            }
        }
    }

    /// Hands what waits to the kernel, as far as slots are free.
    pub fn push(&mut self, counters: &Counters) {
        let Some(ring) = &mut self.ring else { return };
        while !self.waiting.is_empty() && ring.start(&mut self.waiting, self.page_bytes, counters) {}
        submit(&ring.ring, &mut ring.unsubmitted, counters);
    }

    /// Collects what the kernel is done with. No system call.
    pub fn reap(&mut self, counters: &Counters) {
        if let Some(ring) = &mut self.ring {
            ring.reap(&mut self.waiting, &mut self.done, self.page_bytes, counters);
        }
    }

    /// The next operation that is done, with its host.
    pub fn next_done(&mut self) -> Option<(usize, MediaDone)> {
        self.done.pop_front()
    }

    /// How many operations are done and not yet taken.
    pub fn done_count(&self) -> usize {
        self.done.len()
    }

    /// True when the kernel could not take requests: [`MediaQueue::push`] must be called again soon.
    pub fn is_held_up(&self) -> bool {
        self.ring.as_ref().is_some_and(|ring| ring.unsubmitted > 0)
    }

    /// True when no operation is waiting or in flight.
    #[cfg(test)]
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.ring.as_ref().is_none_or(|ring| ring.in_flight() == 0)
    }
}

impl Ring {
    fn new(pool: &Pool) -> io::Result<Self> {
        let entries = MediaQueue::DEPTH as u32;
        // Completions need not interrupt the loop: it enters the kernel often enough to run them (Linux 5.19, 6.0).
        let ring = IoUring::builder()
            .setup_coop_taskrun()
            .setup_single_issuer()
            .build(entries)
            .or_else(|_| IoUring::new(entries))?;
        let registered = register(&ring, pool);
        let slot = |_| Slot {
            host: 0,
            fd: -1,
            kind: MediaKind::Flush,
            offset: 0,
            operations: Vec::with_capacity(MERGE_PAGES_MAX),
            iovecs: [libc::iovec {
                iov_base: ptr::null_mut(),
                iov_len: 0,
            }; MERGE_PAGES_MAX],
        };
        Ok(Self {
            ring,
            slots: (0..entries).map(slot).collect(),
            free: (0..entries).rev().collect(),
            unsubmitted: 0,
            registered,
        })
    }

    fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Moves the first waiting operation, and those adjacent to it, into a slot and queues its request. False when
    /// no slot is free.
    fn start(&mut self, waiting: &mut VecDeque<Waiting>, page_bytes: usize, counters: &Counters) -> bool {
        let Some(index) = self.free.pop() else {
            return false;
        };
        let slot = &mut self.slots[index as usize];
        let first = waiting.pop_front().expect("the caller has seen one");
        let mut mergeable = !first.alone && first.kind != MediaKind::Flush;
        slot.host = first.host;
        slot.fd = first.fd;
        slot.kind = first.kind;
        slot.offset = first.offset;
        slot.operations.push((first.id, first.page));
        while mergeable && slot.operations.len() < MERGE_PAGES_MAX {
            let end = slot.offset + (slot.operations.len() * page_bytes) as u64;
            mergeable = waiting.front().is_some_and(|next| {
                next.kind == slot.kind && next.fd == slot.fd && next.offset == end && !next.alone
            });
            if mergeable {
                let next = waiting.pop_front().expect("just seen");
                slot.operations.push((next.id, next.page));
            }
        }
        let entry = slot.entry(self.registered).user_data(u64::from(index));
        // SAFETY: the slot holds the pages and iovecs that the entry points at until its completion, and dropping
        // the ring waits for completions. Pages being read into are unshared; pages being written are not changed
        // while shared (`Page::with_mut` refuses), and the operation's own handle stays in the slot.
        unsafe { self.ring.submission().push(&entry) }.expect("as many entries as slots");
        self.unsubmitted += 1;
        counters.media_submissions.bump();
        true
    }

    fn reap(
        &mut self,
        waiting: &mut VecDeque<Waiting>,
        done: &mut VecDeque<(usize, MediaDone)>,
        page_bytes: usize,
        counters: &Counters,
    ) {
        for entry in self.ring.completion() {
            let index = entry.user_data() as u32;
            let slot = &mut self.slots[index as usize];
            slot.finish(entry.result(), waiting, done, page_bytes, counters);
            self.free.push(index);
        }
    }
}

/// Hands queued requests to the kernel, and counts them off `unsubmitted`. Where it is short of memory for requests, some
/// stay: the next turn tries again.
pub(crate) fn submit(ring: &IoUring, unsubmitted: &mut usize, counters: &Counters) {
    while *unsubmitted > 0 {
        counters.syscalls.bump();
        match ring.submit() {
            Ok(count) => *unsubmitted -= count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM)
                ) =>
            {
                return;
            }
            Err(error) => panic!("io_uring refuses its own arguments: {error}"),
        }
    }
}

impl Slot {
    /// The kernel's form of the request.
    fn entry(&mut self, registered: Option<*const u8>) -> squeue::Entry {
        let fd = types::Fd(self.fd);
        if self.kind == MediaKind::Flush {
            return opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build();
        }
        if let [only] = &self.operations[..] {
            let page = page_of(only);
            let (bytes, length) = (page.as_ptr(), page.len() as u32);
            let buffer =
                registered.map(|base| ((bytes as usize - base as usize) / REGISTERED_BYTES_MAX) as u16);
            return match (self.kind, buffer) {
                (MediaKind::Read, Some(buffer)) => opcode::ReadFixed::new(fd, bytes, length, buffer)
                    .offset(self.offset)
                    .build(),
                (MediaKind::Read, None) => opcode::Read::new(fd, bytes, length).offset(self.offset).build(),
                (_, Some(buffer)) => opcode::WriteFixed::new(fd, bytes, length, buffer)
                    .offset(self.offset)
                    .build(),
                (_, None) => opcode::Write::new(fd, bytes, length).offset(self.offset).build(),
            };
        }
        for (iovec, operation) in self.iovecs.iter_mut().zip(&self.operations) {
            let page = page_of(operation);
            *iovec = libc::iovec {
                iov_base: page.as_ptr().cast(),
                iov_len: page.len(),
            };
        }
        let (iovecs, count) = (self.iovecs.as_ptr(), self.operations.len() as u32);
        match self.kind {
            MediaKind::Read => opcode::Readv::new(fd, iovecs, count).offset(self.offset).build(),
            _ => opcode::Writev::new(fd, iovecs, count).offset(self.offset).build(),
        }
    }

    /// Answers the slot's operations, or puts them back to be tried alone.
    fn finish(
        &mut self,
        result: i32,
        waiting: &mut VecDeque<Waiting>,
        done: &mut VecDeque<(usize, MediaDone)>,
        page_bytes: usize,
        counters: &Counters,
    ) {
        let Slot {
            host,
            fd,
            kind,
            offset,
            ..
        } = *self;
        let again = matches!(-result, libc::EINTR | libc::EAGAIN);
        let single = self.operations.len() == 1;
        let whole_pages = if result > 0 {
            result as usize / page_bytes
        } else {
            0
        };
        for (index, (id, page)) in self.operations.drain(..).enumerate() {
            let is_done = if kind == MediaKind::Flush {
                result == 0
            } else {
                index < whole_pages
            };
            if !is_done && (again || !single) {
                let offset = offset + (index * page_bytes) as u64;
                waiting.push_back(Waiting {
                    host,
                    fd,
                    kind,
                    id,
                    offset,
                    page,
                    alone: true,
                });
                continue;
            }
            if !is_done {
                counters.media_errors.bump();
            }
            let result = if is_done { Ok(()) } else { Err(MediaError::Io) };
            done.push_back((host, self::done(id, kind, page, result)));
        }
    }
}

fn done(id: u64, kind: MediaKind, page: Option<Page>, result: Result<(), MediaError>) -> MediaDone {
    MediaDone {
        id,
        kind,
        pages: page.into_iter().collect(),
        result,
    }
}

fn page_of((_, page): &(u64, Option<Page>)) -> &Page {
    page.as_ref().expect("reads and writes have a page")
}

/// Registers the pool's memory, so that the kernel need not look up its pages for each request. `None` where the
/// limit on locked memory (RLIMIT_MEMLOCK) forbids it: requests then carry addresses.
fn register(ring: &IoUring, pool: &Pool) -> Option<*const u8> {
    let (base, bytes) = pool.region();
    let buffers: Vec<libc::iovec> = (0..bytes)
        .step_by(REGISTERED_BYTES_MAX)
        .map(|start| libc::iovec {
            iov_base: base.wrapping_add(start).cast(),
            iov_len: (bytes - start).min(REGISTERED_BYTES_MAX),
        })
        .collect();
    if buffers.is_empty() {
        return None;
    }
    // SAFETY: the buffers are the pool's memory, which lives as long as any handle to it; the kernel keeps its own
    // hold on the memory, and requests name pages that are held.
    unsafe { ring.submitter().register_buffers(&buffers) }
        .ok()
        .map(|()| base.cast_const())
}

impl Drop for MediaQueue {
    /// Waits for everything in flight: the kernel must not write into memory that is given back.
    fn drop(&mut self) {
        let Some(ring) = &mut self.ring else { return };
        while ring.in_flight() > 0 {
            match ring.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    // Unwinding would free memory the kernel still writes to.
                    eprintln!("waiting for the media failed: {error}");
                    std::process::abort();
                }
            }
            for entry in ring.ring.completion() {
                let index = entry.user_data() as u32;
                ring.slots[index as usize].operations.clear();
                ring.free.push(index);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::limits::{PAGE_BYTES, SECTOR_BYTES};

    const PAGES: u64 = 600;

    fn write(id: u64, pool: &Pool) -> MediaOp {
        let page = pool.alloc().expect("a page is left");
        page.with_mut(|bytes| bytes.fill(id as u8 ^ 0x5a));
        MediaOp::write(id, id * PAGE_BYTES as u64, page)
    }

    fn read(id: u64, pool: &Pool) -> MediaOp {
        let page = pool.alloc_zeroed().expect("a page is left");
        MediaOp::read(id, id * PAGE_BYTES as u64, page)
    }

    fn collect(queue: &mut MediaQueue, count: usize, counters: &Counters) -> Vec<MediaDone> {
        let mut done = Vec::new();
        while done.len() < count {
            queue.push(counters);
            queue.reap(counters);
            while let Some((host, one)) = queue.next_done() {
                assert_eq!(host, 3);
                done.push(one);
            }
        }
        assert!(queue.is_idle());
        done.sort_by_key(|done| done.id);
        done
    }

    fn media() -> (tempfile::TempDir, [MediaFile; 2]) {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let bytes = PAGES * PAGE_BYTES as u64;
        let file = MediaFile::open(&directory.path().join("medium"), bytes, true).expect("a new file");
        (directory, [file, MediaFile::memory(bytes)])
    }

    #[test]
    fn what_the_ring_writes_the_cold_path_reads_and_the_other_way_round() {
        let (_directory, media) = media();
        for mut medium in media {
            let pool = Pool::new(PAGES as usize + 1, SECTOR_BYTES);
            let counters = Counters::default();
            let mut queue = MediaQueue::new(&pool, true).expect("io_uring");
            for id in 0..PAGES {
                queue.submit(3, &mut medium, write(id, &pool), &counters);
            }
            let done = collect(&mut queue, PAGES as usize, &counters);
            assert!(
                done.iter()
                    .enumerate()
                    .all(|(i, done)| done.id == i as u64 && done.result.is_ok())
            );
            drop(done);
            assert_eq!(pool.available(), pool.capacity());
            queue.submit(3, &mut medium, MediaOp::flush(9), &counters);
            assert_eq!(collect(&mut queue, 1, &counters)[0].result, Ok(()));
            let mut bytes = [0; PAGE_BYTES];
            for id in 0..PAGES {
                medium
                    .read_at(id * PAGE_BYTES as u64, &mut bytes)
                    .expect("inside");
                assert!(bytes.iter().all(|&byte| byte == id as u8 ^ 0x5a), "page {id}");
                medium
                    .write_at(id * PAGE_BYTES as u64, &[id as u8 ^ 0xa5; PAGE_BYTES])
                    .expect("inside");
            }
            for id in (0..PAGES).rev() {
                queue.submit(3, &mut medium, read(id, &pool), &counters);
            }
            for done in collect(&mut queue, PAGES as usize, &counters) {
                done.pages[0].with(|bytes| assert!(bytes.iter().all(|&byte| byte == done.id as u8 ^ 0xa5)));
            }
        }
    }

    #[test]
    fn adjacent_writes_become_one_request() {
        let (_directory, [mut file, _]) = media();
        let pool = Pool::new(64, SECTOR_BYTES);
        let counters = Counters::default();
        let mut queue = MediaQueue::new(&pool, true).expect("io_uring");
        for id in 0..64 {
            queue.submit(3, &mut file, write(id, &pool), &counters);
        }
        collect(&mut queue, 64, &counters);
        assert_eq!(counters.media_submissions.read(), 64 / MERGE_PAGES_MAX as u64);
    }

    #[test]
    fn outside_the_medium_is_refused() {
        let (_directory, media) = media();
        for mut medium in media {
            let pool = Pool::new(4, SECTOR_BYTES);
            let counters = Counters::default();
            let mut queue = MediaQueue::new(&pool, true).expect("io_uring");
            queue.submit(3, &mut medium, write(PAGES, &pool), &counters);
            let done = collect(&mut queue, 1, &counters);
            assert_eq!(done[0].result, Err(MediaError::OutOfRange));
            assert!(!done[0].pages.is_empty());
        }
    }

    #[test]
    fn one_bad_page_does_not_condemn_its_neighbours() {
        // The file is cut behind the medium's back: the second half of a merged read is past its end.
        let (directory, [mut file, _]) = media();
        let counters = Counters::default();
        let pool = Pool::new(64, SECTOR_BYTES);
        let mut queue = MediaQueue::new(&pool, true).expect("io_uring");
        let path = directory.path().join("medium");
        let other = std::fs::OpenOptions::new()
            .write(true)
            .open(path)
            .expect("it exists");
        other.set_len(8 * PAGE_BYTES as u64).expect("shrinks");
        for id in 0..16 {
            queue.submit(3, &mut file, read(id, &pool), &counters);
        }
        for done in collect(&mut queue, 16, &counters) {
            assert_eq!(done.result.is_ok(), done.id < 8, "page {}", done.id);
        }
        assert_eq!(counters.media_errors.read(), 8);
    }

    #[test]
    fn dropping_the_queue_gives_back_every_page() {
        let (_directory, [mut file, _]) = media();
        let pool = Pool::new(400, SECTOR_BYTES);
        let counters = Counters::default();
        let mut queue = MediaQueue::new(&pool, true).expect("io_uring");
        for id in (0..400).rev() {
            queue.submit(3, &mut file, write(id, &pool), &counters);
        }
        queue.push(&counters);
        drop(queue);
        assert_eq!(pool.available(), 400);
    }
}

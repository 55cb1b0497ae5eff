//! What a host's or a volume's bytes are on, and how a core reaches it.
//!
//! A [`Medium`] is opened once, formatted and recovered through [`Device`], and shared by the cores that serve it. Each
//! core has a [`CoreQueue`] to it. To a file the queue is a stack of the wrappers of [`base::device`] over the core's
//! ring. Memory answers at once and needs none.

mod memory;

pub use memory::Memory;

use crate::counters::Counters;
use crate::queue::{Files, Port};
use crate::sync::{Arc, AtomicBool};
use base::device::{Deadline, Device, Latch, pass_on};
use base::limits::PAGE_BYTES;
use base::time::earliest;
use base::{Duration, Instant, MediaDone, MediaError, MediaKind, MediaOp, Pool, Queue};
use memory::MemoryQueue;
use os::{MediaFile, MediaOpenError, MediaWarning};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::path::Path;
use std::rc::Rc;

/// A medium that is open.
#[derive(Clone, Debug)]
pub enum Medium {
    /// Zeros at first. It ends with the process.
    Memory(Memory),
    /// A file or a block device.
    File(MediaFile),
}

/// How an image is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageOpen {
    /// To read it, together with other readers. It may be immutable, or mounted.
    ToRead,
    /// For this process alone.
    Existing,
    /// For this process alone. A missing image is created, and a shorter one extended.
    Create {
        /// Its size, in whole pages.
        bytes: u64,
    },
}

impl Medium {
    /// Memory of `bytes` zeros, rounded down to whole pages.
    ///
    /// # Errors
    /// When the system has no such memory.
    pub fn memory(bytes: u64) -> io::Result<Self> {
        Memory::new(bytes).map(Self::Memory)
    }

    /// A file or block device, as [`MediaFile::open`] opens it.
    ///
    /// # Errors
    /// When it cannot be opened, or is too small.
    pub fn open(path: &Path, bytes: u64, create: bool) -> Result<Self, MediaOpenError> {
        MediaFile::open(path, bytes, create)?
            .with_cache(path)
            .map(Self::File)
    }

    /// A file or block device as an image: all its whole sectors.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open_image(path: &Path, open: ImageOpen) -> Result<Self, MediaOpenError> {
        let file = match open {
            ImageOpen::ToRead => MediaFile::open_to_read(path)?,
            ImageOpen::Existing => MediaFile::open(path, 0, false)?,
            ImageOpen::Create { bytes } => MediaFile::open(path, bytes, true)?,
        };
        let file = file.with_cache(path)?.with_tail();
        let path = path.into();
        file.map(Self::File)
            .map_err(|source| MediaOpenError::Os { path, source })
    }

    /// True if a core reaches it through its ring.
    pub(crate) fn needs_ring(&self) -> bool {
        matches!(self, Self::File(_))
    }

    /// What a user should know about it.
    pub fn warning(&self) -> Option<MediaWarning> {
        match self {
            Self::Memory(_) => None,
            Self::File(file) => file.warning(),
        }
    }
}

impl From<MediaFile> for Medium {
    fn from(file: MediaFile) -> Self {
        Self::File(file)
    }
}

impl Device for Medium {
    pass_on!(device Self::Memory(inner) => inner, Self::File(inner) => inner);
}

/// The media of one core.
pub(crate) struct Media {
    files: Option<Rc<RefCell<Files>>>,
    /// An operation that takes longer is given up.
    limit: Duration,
    /// Of the core's hosts, by their number.
    hosts: Vec<Option<HostQueue>>,
    /// Operations of hosts that have ended, with the host.
    done: VecDeque<(usize, MediaDone)>,
}

impl Media {
    /// Reserves a ring if there will be files.
    pub fn new(pool: &Pool, has_files: bool, limit: Duration) -> io::Result<Self> {
        let files = has_files.then(|| Files::new(pool)).transpose()?;
        Ok(Self {
            files: files.map(|files| Rc::new(RefCell::new(files))),
            limit,
            hosts: Vec::new(),
            done: VecDeque::with_capacity(pool.capacity() + 1024),
        })
    }

    fn watched(&self, file: &MediaFile) -> Deadline<Port> {
        let files = self.files.as_ref().expect("a core with files has a ring");
        Deadline::new(Port::new(files, file.clone()), self.limit)
    }

    /// Adds the next host with its medium. A host latches by itself.
    pub fn attach(&mut self, medium: Option<&Medium>) {
        let queue = medium.map(|medium| match medium {
            Medium::Memory(memory) => HostQueue::Memory(MemoryQueue::new(memory)),
            Medium::File(file) => HostQueue::File(self.watched(file)),
        });
        self.hosts.push(queue);
    }

    /// A queue to a volume's medium. All cores share its latch.
    pub fn volume(&self, medium: &Medium, latch: &Arc<AtomicBool>) -> VolumeQueue {
        match medium {
            Medium::Memory(memory) => VolumeQueue::Memory(MemoryQueue::new(memory)),
            Medium::File(file) => VolumeQueue::File(Latch::new(self.watched(file), Arc::clone(latch))),
        }
    }

    /// The descriptor that becomes readable when something has ended.
    pub fn fd(&self) -> Option<RawFd> {
        self.files.as_ref().map(|files| files.borrow().fd())
    }

    /// Takes an operation of a host.
    pub fn submit(&mut self, now: Instant, host: usize, op: MediaOp, counters: &Counters) {
        count(&op, counters);
        let queue = self.hosts[host].as_mut();
        let queue = queue.expect("a host without a medium asks nothing of it");
        queue.submit(now, op);
        collect(queue, now, host, &mut self.done, counters);
    }

    /// Hands what waits to the kernel.
    pub fn push(&self, counters: &Counters) {
        if let Some(files) = &self.files {
            files.borrow_mut().push(counters);
        }
    }

    /// Collects what the kernel is done with, and what is overdue. No system call.
    pub fn reap(&mut self, now: Instant, counters: &Counters) {
        let Some(files) = &self.files else { return };
        files.borrow_mut().reap();
        for (host, queue) in self.hosts.iter_mut().enumerate() {
            if let Some(queue) = queue {
                collect(queue, now, host, &mut self.done, counters);
            }
        }
    }

    /// Operations of hosts that have ended and are not taken.
    pub fn done_count(&self) -> usize {
        self.done.len()
    }

    /// The next operation of a host that has ended.
    pub fn next_done(&mut self) -> Option<(usize, MediaDone)> {
        self.done.pop_front()
    }

    /// True when [`Media::push`] must be called again soon: the kernel or the pool was short of memory.
    pub fn is_held_up(&self) -> bool {
        self.files
            .as_ref()
            .is_some_and(|files| files.borrow().is_held_up())
    }

    /// When something is overdue next.
    pub fn deadline(&self) -> Option<Instant> {
        let queues = self.hosts.iter().flatten();
        queues.map(Queue::deadline).fold(None, earliest)
    }
}

fn collect(
    queue: &mut HostQueue,
    now: Instant,
    host: usize,
    done: &mut VecDeque<(usize, MediaDone)>,
    counters: &Counters,
) {
    while let Some(ended) = queue.poll(now) {
        count_end(&ended, counters);
        done.push_back((host, ended));
    }
}

/// Counts an operation that is submitted.
pub(crate) fn count(op: &MediaOp, counters: &Counters) {
    let pages = u64::from(op.length).div_ceil(PAGE_BYTES as u64);
    match op.kind {
        MediaKind::Read => counters.media_reads.add(pages),
        MediaKind::Flush => counters.media_flushes.bump(),
        _ => counters.media_writes.add(pages),
    }
}

/// Counts an operation that has ended.
pub(crate) fn count_end(done: &MediaDone, counters: &Counters) {
    match done.result {
        Ok(()) => {}
        Err(error) => {
            counters.media_errors.bump();
            if error == MediaError::TimedOut {
                counters.media_timeouts.bump();
            }
        }
    }
}

/// A core's queue to a medium; `F` is its stack to a file.
pub(crate) enum CoreQueue<F> {
    Memory(MemoryQueue),
    File(F),
}

/// Of a host, which latches by itself.
pub(crate) type HostQueue = CoreQueue<Deadline<Port>>;
/// Of a volume, which all cores latch together.
pub(crate) type VolumeQueue = CoreQueue<Latch<Deadline<Port>>>;

impl<F> CoreQueue<F> {
    /// Carries an operation out if the medium answers at once. Otherwise returns it, to be submitted.
    #[inline]
    pub fn execute(&mut self, op: MediaOp) -> Result<MediaDone, MediaOp> {
        match self {
            Self::Memory(memory) => Ok(memory.execute(op)),
            Self::File(_) => Err(op),
        }
    }
}

impl<F: Queue> Queue for CoreQueue<F> {
    pass_on!(queue Self::Memory(inner) => inner, Self::File(inner) => inner);
}

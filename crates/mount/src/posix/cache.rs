//! The kernel's cache of the files, where programs have logs of their own beside the mount (`engine::own`): threads tell the kernel what to drop.
//!
//! A notification of data waits for pages that calls under way have locked, and for dirty pages to be written. So it is sent by a thread that does
//! nothing else, and there are as many of these as wait at once.

use super::kernel::Kernel;
use crate::engine::{Cache, Engine};
use fuse::abi::Notification;
use os::sync::{Arc, AtomicBool, Condvar, Mutex, MutexGuard, OnceLock, Ordering, PoisonError, thread};
use std::collections::VecDeque;
use std::sync::Weak;
use std::time::Duration;

/// Threads that wait for the kernel at once, at most. Calls that these wait for are let through after a while, so the others come to their turn.
const THREADS_MAX: usize = 64;
/// A thread looks again after this long at the latest.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// What a thread tells the kernel.
enum Job {
    /// To drop what it has of an inode, the number of the drop, and whether pages are to go, too.
    Inode(u64, u64, bool),
    /// To drop pages: of an inode, from an offset on, so many bytes. Then the flag is set.
    Pages(u64, (i64, i64), Arc<AtomicBool>),
}

#[derive(Default)]
struct Jobs {
    queue: VecDeque<Job>,
    threads: Vec<thread::JoinHandle<()>>,
    idle: usize,
    is_closed: bool,
}

/// The kernel's cache. Clones are the same.
#[derive(Clone)]
pub(crate) struct KernelCache(Arc<Shared>);

struct Shared {
    kernel: Kernel,
    engine: OnceLock<Weak<Engine>>,
    /// The kernel drops all names at once if it is told to.
    has_epochs: AtomicBool,
    jobs: Mutex<Jobs>,
    comes: Condvar,
}

impl KernelCache {
    pub fn new(kernel: Kernel) -> Self {
        Self(Arc::new(Shared {
            kernel,
            engine: OnceLock::new(),
            has_epochs: AtomicBool::new(false),
            jobs: Mutex::default(),
            comes: Condvar::new(),
        }))
    }

    /// The session has started: the kernel can be told.
    pub fn start(&self, engine: &Arc<Engine>) {
        let _ = self.0.engine.set(Arc::downgrade(engine));
        let has_epochs = self.0.kernel.try_notify(&Notification::IncEpoch);
        // It stands for itself.
        self.0.has_epochs.store(has_epochs, Ordering::Relaxed);
    }

    /// Tells the kernel to drop pages of a file. A flag that is set when it has done so.
    pub fn drop_pages(&self, inode: u64, range: (i64, i64)) -> Arc<AtomicBool> {
        let flag = Arc::new(AtomicBool::new(false));
        self.push(Job::Pages(inode, range, Arc::clone(&flag)));
        flag
    }

    fn push(&self, job: Job) {
        let mut jobs = self.0.jobs();
        if jobs.is_closed {
            return;
        }
        jobs.queue.push_back(job);
        if jobs.idle < jobs.queue.len() && jobs.threads.len() < THREADS_MAX {
            let shared = Arc::clone(&self.0);
            let builder = thread::Builder::new().name("fs-kernel".into());
            // Without a thread the others do it, later.
            if let Ok(thread) = builder.spawn(move || shared.run()) {
                jobs.threads.push(thread);
            }
        }
        drop(jobs);
        self.0.comes.notify_one();
    }

    /// Ends. The session is over, so nothing waits for the kernel.
    pub fn stop(&self) {
        let mut jobs = self.0.jobs();
        jobs.is_closed = true;
        let threads = std::mem::take(&mut jobs.threads);
        drop(jobs);
        self.0.comes.notify_all();
        for thread in threads {
            // A panic was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl Cache for KernelCache {
    fn forget_names(&self) {
        self.0.kernel.try_notify(&Notification::IncEpoch);
    }

    fn may_keep_names(&self) -> bool {
        self.0.has_epochs.load(Ordering::Relaxed)
    }

    fn let_go(&self, inode: u64, number: u64, has_pages: bool) {
        self.push(Job::Inode(inode, number, has_pages));
    }
}

impl Shared {
    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        while let Some(job) = self.next() {
            let (inode, offset, bytes) = match &job {
                Job::Inode(inode, _, true) => (*inode, 0, 0),
                Job::Inode(inode, _, false) => (*inode, -1, 0),
                Job::Pages(inode, (offset, bytes), _) => (*inode, *offset, *bytes),
            };
            self.kernel
                .notify(&Notification::InvalInode { inode, offset, bytes });
            match job {
                Job::Inode(inode, number, _) => {
                    let engine = self.engine.get().and_then(Weak::upgrade);
                    if let Some(engine) = engine {
                        engine.dropped(inode, number);
                    }
                }
                Job::Pages(_, _, flag) => flag.store(true, Ordering::Release),
            }
        }
    }

    /// The next job; none at the end.
    fn next(&self) -> Option<Job> {
        let mut jobs = self.jobs();
        loop {
            if let Some(job) = jobs.queue.pop_front() {
                return Some(job);
            }
            if jobs.is_closed {
                return None;
            }
            jobs.idle += 1;
            jobs = match self.comes.wait_timeout(jobs, LOOK_AGAIN) {
                Ok((jobs, _)) => jobs,
                Err(poisoned) => poisoned.into_inner().0,
            };
            jobs.idle -= 1;
        }
    }
}

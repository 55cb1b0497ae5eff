//! What one thread hands to another: bytes in a lane, and a bell that wakes a sleeper.
//!
//! A lane has one writer and one reader. Each of them has a buffer, and a third lies between the two. The writer changes its full buffer for the
//! empty one that lies there, or adds to what the reader has not taken. The reader changes its empty buffer for the full one.
//! So nothing is allocated once the buffers are large enough, a lane is never full, and the lock is held for an exchange.
//! Who limits how much lies there is the writer: a connection has a limited number of requests under way.
//!
//! # Why no message is lost
//! A writer leaves its bytes first, and rings then. A reader says first that it sleeps, and looks at its lanes then. All four
//! steps are in one order for both (`SeqCst`). If the look comes after the bytes, it finds them, and there is no sleep. Otherwise
//! the ring comes after the reader has said that it sleeps: the bell finds that, and wakes it.

use super::sync::{AtomicBool, Mutex, Ordering, PoisonError, Wake};
use std::io;
use std::mem::swap;

/// Bytes from one thread to another.
#[derive(Debug)]
pub struct Lane {
    has_some: AtomicBool,
    bytes: Mutex<Vec<u8>>,
}

impl Default for Lane {
    fn default() -> Self {
        Self::new()
    }
}

impl Lane {
    /// An empty lane.
    pub fn new() -> Self {
        Self {
            has_some: AtomicBool::new(false),
            bytes: Mutex::new(Vec::new()),
        }
    }

    /// The writer leaves what it has. It gets an empty buffer. Then it rings the reader's bell.
    pub fn put(&self, own: &mut Vec<u8>) {
        let mut there = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        match there.is_empty() {
            true => swap(&mut *there, own),
            false => there.append(own),
        }
        self.has_some.store(true, Ordering::SeqCst);
    }

    /// True if there is something to take.
    pub fn has_some(&self) -> bool {
        self.has_some.load(Ordering::SeqCst)
    }

    /// The reader takes all that is there, for an empty buffer.
    pub fn take(&self, own: &mut Vec<u8>) {
        let mut there = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock: bytes that come later set it again.
        self.has_some.store(false, Ordering::SeqCst);
        swap(&mut *there, own);
    }
}

/// Wakes the thread of a shard, if it sleeps.
#[derive(Debug)]
pub struct Bell {
    sleeps: AtomicBool,
    wake: Wake,
}

impl Bell {
    /// The bell of a thread that is awake.
    ///
    /// # Errors
    /// When the system has no descriptor left.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            sleeps: AtomicBool::new(false),
            wake: Wake::new()?,
        })
    }

    /// There is news for the thread.
    pub fn ring(&self) {
        if self.sleeps.swap(false, Ordering::SeqCst) {
            self.wake.wake();
        }
    }

    /// The thread is going to sleep. It looks for news after this, and sleeps only if there is none.
    pub fn doze(&self) {
        self.sleeps.store(true, Ordering::SeqCst);
    }

    /// The thread is awake.
    pub fn rise(&self) {
        self.sleeps.store(false, Ordering::SeqCst);
    }

    /// What the thread sleeps on, among others. It clears the wake when that has ended its sleep.
    pub fn wake(&self) -> &Wake {
        &self.wake
    }
}

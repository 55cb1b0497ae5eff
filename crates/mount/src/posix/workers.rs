//! Threads for calls that wait: for room in the log, or for a device. The transport's own threads never wait for either.

use crate::engine::Pins;
use fuse::transport::Call;
use os::sync::{Arc, Condvar, Mutex, PoisonError, thread};
use std::collections::VecDeque;
use std::time::Duration;

/// Threads: as many calls wait for devices at once.
const WORKERS: usize = 4;
/// A worker looks again after this long at the latest.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Calls for workers, in their order. Clones are the same queue.
#[derive(Clone, Default)]
pub(crate) struct Queue(Arc<Waiting>);

#[derive(Default)]
struct Waiting {
    calls: Mutex<Calls>,
    comes: Condvar,
}

#[derive(Default)]
struct Calls {
    queue: VecDeque<(Call, Pins)>,
    is_closed: bool,
}

impl Queue {
    /// Gives a call to a worker, with leases that it has for its time. After the end the call is dropped, and so answered with EIO.
    pub fn serve(&self, call: Call, pins: Pins) {
        let mut calls = self.0.calls.lock().unwrap_or_else(PoisonError::into_inner);
        if calls.is_closed {
            drop(calls);
            return drop(call);
        }
        calls.queue.push_back((call, pins));
        drop(calls);
        self.0.comes.notify_one();
    }

    /// The next call; none at the end.
    fn next(&self) -> Option<(Call, Pins)> {
        let mut calls = self.0.calls.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(next) = calls.queue.pop_front() {
                return Some(next);
            }
            if calls.is_closed {
                return None;
            }
            calls = match self.0.comes.wait_timeout(calls, LOOK_AGAIN) {
                Ok((calls, _)) => calls,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }

    fn close(&self) {
        self.0
            .calls
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_closed = true;
        self.0.comes.notify_all();
    }
}

/// Threads that serve the calls of a queue. They end when this is dropped, after the calls that wait.
pub(crate) struct Workers {
    queue: Queue,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Workers {
    pub fn start(queue: Queue, serve: impl Fn(Call, Pins) + Send + Sync + 'static) -> Self {
        let serve = Arc::new(serve);
        let spawn = |number| {
            let (serve, queue) = (Arc::clone(&serve), queue.clone());
            let run = move || {
                while let Some((call, pins)) = queue.next() {
                    serve(call, pins);
                }
            };
            let thread = thread::Builder::new().name(format!("fs-worker-{number}"));
            thread.spawn(run).expect("the system has room for a thread")
        };
        let threads = (0..WORKERS).map(spawn).collect();
        Self { queue, threads }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.queue.close();
        for thread in self.threads.drain(..) {
            // A panic was reported when it happened.
            let _ = thread.join();
        }
    }
}

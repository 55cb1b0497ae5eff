//! Threads for calls that wait: for room in the log, or for a device. The transport's own threads never wait for either.

use fuse::transport::Call;
use os::sync::{Arc, Mutex, PoisonError, mpsc, thread};

/// Threads: as many calls wait for devices at once.
const WORKERS: usize = 4;

/// Threads that serve calls in turn.
pub(crate) struct Workers {
    /// None when they are to end.
    queue: Option<mpsc::Sender<Call>>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Workers {
    pub fn start(serve: impl Fn(Call) + Send + Sync + 'static) -> Self {
        let (queue, calls) = mpsc::channel::<Call>();
        let (serve, calls) = (Arc::new(serve), Arc::new(Mutex::new(calls)));
        let spawn = |number| {
            let (serve, calls) = (Arc::clone(&serve), Arc::clone(&calls));
            let run = move || {
                // A call comes, or the queue is dropped: then all of them end.
                let next = || calls.lock().unwrap_or_else(PoisonError::into_inner).recv();
                while let Ok(call) = next() {
                    serve(call);
                }
            };
            let thread = thread::Builder::new().name(format!("fs-worker-{number}"));
            thread.spawn(run).expect("the system has room for a thread")
        };
        Self {
            queue: Some(queue),
            threads: (0..WORKERS).map(spawn).collect(),
        }
    }

    /// Gives a call to a thread. After the end it is answered with EIO.
    pub fn serve(&self, call: Call) {
        if let Some(queue) = &self.queue {
            // What cannot be sent is dropped, and a call that is dropped is answered.
            let _ = queue.send(call);
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.queue = None;
        for thread in self.threads.drain(..) {
            // A panic was reported when it happened.
            let _ = thread.join();
        }
    }
}

//! Channels as the standard library's: the checker's own keep messages that nobody will take, and with them what waits for
//! an answer to them.

use shuttle::sync::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
pub use std::sync::mpsc::{RecvError, SendError, TryRecvError, TrySendError};

struct State<T> {
    queue: VecDeque<T>,
    senders: usize,
    has_receiver: bool,
    room: usize,
}

struct Channel<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

pub struct Sender<T>(Arc<Channel<T>>);
pub type SyncSender<T> = Sender<T>;
pub struct Receiver<T>(Arc<Channel<T>>);

pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    sync_channel(usize::MAX)
}

pub fn sync_channel<T>(room: usize) -> (SyncSender<T>, Receiver<T>) {
    let state = State {
        queue: VecDeque::new(),
        senders: 1,
        has_receiver: true,
        room,
    };
    let channel = Arc::new(Channel {
        state: Mutex::new(state),
        changed: Condvar::new(),
    });
    (Sender(Arc::clone(&channel)), Receiver(channel))
}

impl<T> Sender<T> {
    pub fn send(&self, message: T) -> Result<(), SendError<T>> {
        let mut state = self.0.state.lock().expect("no panic");
        while state.has_receiver && state.queue.len() >= state.room {
            state = self.0.changed.wait(state).expect("no panic");
        }
        if !state.has_receiver {
            return Err(SendError(message));
        }
        state.queue.push_back(message);
        self.0.changed.notify_all();
        Ok(())
    }

    pub fn try_send(&self, message: T) -> Result<(), TrySendError<T>> {
        let mut state = self.0.state.lock().expect("no panic");
        if !state.has_receiver {
            return Err(TrySendError::Disconnected(message));
        }
        if state.queue.len() >= state.room {
            return Err(TrySendError::Full(message));
        }
        state.queue.push_back(message);
        self.0.changed.notify_all();
        Ok(())
    }
}

impl<T> Receiver<T> {
    pub fn recv(&self) -> Result<T, RecvError> {
        let mut state = self.0.state.lock().expect("no panic");
        loop {
            if let Some(message) = state.queue.pop_front() {
                self.0.changed.notify_all();
                return Ok(message);
            }
            if state.senders == 0 {
                return Err(RecvError);
            }
            state = self.0.changed.wait(state).expect("no panic");
        }
    }

    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        let mut state = self.0.state.lock().expect("no panic");
        match state.queue.pop_front() {
            Some(message) => {
                self.0.changed.notify_all();
                Ok(message)
            }
            None if state.senders == 0 => Err(TryRecvError::Disconnected),
            None => Err(TryRecvError::Empty),
        }
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.state.lock().expect("no panic").senders += 1;
        Self(Arc::clone(&self.0))
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.0.state.lock().expect("no panic").senders -= 1;
            self.0.changed.notify_all();
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let mut state = self.0.state.lock().expect("no panic");
            state.has_receiver = false;
            let left = std::mem::take(&mut state.queue);
            drop(state);
            self.0.changed.notify_all();
            drop(left);
        }
    }
}

impl<T> std::fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}

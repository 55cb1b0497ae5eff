//! Requests that come from elsewhere than a [`Mix`](super::Mix): an application's model or a trace.

use base::Rng;
use core::fmt::Debug;

/// One request of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// When it is due, in ns from the start of the load.
    pub due_ns: u64,
    /// It writes; else it reads.
    pub write: bool,
    /// Its first block of 512 bytes.
    pub block: u64,
    /// Its blocks, at least one, all of them within the volume.
    pub blocks: u64,
}

/// An open loop of requests. It has been told of the volume when it was made.
pub trait Stream: Debug {
    /// The next request, due no earlier than the one before it; `None` ends the load.
    fn next(&mut self, rng: &mut Rng) -> Option<Request>;
}

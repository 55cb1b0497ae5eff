//! Requests from the kernel to a server, and replies back: over io_uring, or over `/dev/fuse`.
//!
//! A [`Session`] serves one connection. It hands each request as a [`Call`] to the server's handler, in one of its threads.
//! The handler answers at once, or gives the call to another thread and returns: a slow request keeps no other one waiting. A
//! call answers from any thread.
//!
//! Over io_uring a request that is not answered keeps one of its queue's entries ([`Config::entries`]). When all are taken,
//! further requests of this processor wait in the kernel. So a server whose requests wait for each other (SETLKW waits for
//! another's unlock) bounds how many wait, to fewer than the entries of a queue.

mod answered;
mod call;
mod channel;
mod classic;
mod end;
mod init;
mod region;
mod ring;
mod start;
/// What threads share; the model check puts the checker's own in its place.
use os::sync;

pub use call::Call;
pub use end::End;
pub use init::{Agreement, MINOR_MIN, Wishes};
pub use start::{Choice, Config, Fallback, Notifier, Session, StartError, Stopper, Transport};

//! A file system's server in user space: the kernel's FUSE protocol over io_uring, and over `/dev/fuse` where the kernel has
//! nothing better.
//!
//! [`mount::mount`] mounts and gives the connection. [`transport::Session::start`] serves the connection: each request comes to a
//! handler as a [`transport::Call`]. A call has its [`abi::Operation`], and takes the [`abi::Reply`] at once or later, from
//! any thread.
//!
//! ```no_run
//! use fuse::abi::{Errno, Operation, Reply};
//! use fuse::mount::{MountOptions, mount};
//! use fuse::transport::{Config, Session};
//!
//! let (mount, device) = mount("/mnt/x".as_ref(), &MountOptions::default())?;
//! let session = Session::start(device, &Config::default(), |call| match call.operation() {
//!     Operation::Statfs => call.reply(&Reply::Statfs(Default::default())),
//!     _ => call.fail(Errno::NOSYS),
//! })?;
//! if let Some(fallback) = session.fallback() {
//!     eprintln!("{fallback}");
//! }
//! # std::thread::park();
//! drop(mount);
//! session.join();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Why two transports of our own
//! No library here speaks FUSE over io_uring, so the decoder of requests is our own anyway. The classic half of a library would
//! be a second decoder of the same protocol, beside which its reads and writes are a hundred lines (`transport/classic.rs`). With
//! one decoder both transports give the same calls to the same handler. `/dev/fuse` is read with the ring, too: INIT,
//! FORGET, INTERRUPT and notifications come and go there.
//!
//! # What it costs
//! The ring's thread of a processor serves the callers of that processor: a request takes two switches between them, and wakes
//! no other processor. `examples/round_trip.rs` measures it; figures are in `docs/performance.md`.
#![warn(clippy::undocumented_unsafe_blocks)]

pub mod abi;
pub mod mount;
pub mod transport;

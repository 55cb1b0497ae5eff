//! The world of real hardware: sockets, io_uring, affinity. The same hosts that the simulator proves run here.
//!
//! One thread per core ([`start_core`]) owns everything that its hosts use: a page pool, a UDP socket per host, one
//! io_uring for their media, their NBD connections. Nothing of it is shared, so the data path takes no lock, and
//! hosts on one core talk through the loopback like hosts on two machines. The cores of a target ([`start_target`]) hand
//! connections to each other, whole.
//!
//! ```text
//!  wait ─► datagrams ─► media done ─► deadlines ─► connections ─► send, submit ─► wait …
//!          └── each hands its inputs to hosts and carries their outputs out ──┘
//! ```
//!
//! # Waiting
//! Every source is in one epoll instance: UDP and TCP sockets, the ring's descriptor, and an eventfd for calls of
//! other threads. A turn of the loop asks epoll what is ready (one system call for any number of hosts) and serves
//! a batch of each. Waiting in epoll rather than in io_uring keeps datagram batches in `recvmmsg`, which fills 64
//! pages with one call, and needs nothing newer than Linux 5.11. After work the core polls for a while before it
//! sleeps ([`host::target::Config::spin`]); an idle core sleeps until a deadline.
//!
//! # Assumptions
//! Linux on a 64-bit machine. Hosts are deterministic [`base::Machine`]s that never block. A panic in a host is a
//! bug: its core stops, calls to it return [`Stopped`], and the process decides what to do.
//!
//! This is the only crate of the data path with `unsafe` code: system calls whose buffers the kernel fills. Each use
//! says why it holds.
#![warn(clippy::undocumented_unsafe_blocks)]

mod command;
mod config;
mod counters;
pub mod cpu;
mod events;
mod frontend;
mod handle;
mod hosts;
mod local;
mod mailbox;
mod medium;
mod nvme;
mod paths;
mod poller;
mod queue;
mod reactor;
mod spans;
mod start;
mod steering;
mod stream;
mod udp;

use os::sync;

pub use config::CoreConfig;
pub use counters::{MalformedStats, Stats};
pub use events::{Teller, Told};
pub use handle::{CoreHandle, Stopped, TargetSpec, start_core, start_target};
pub use host::NOBODY;
pub use hosts::{BoxError, Build, HostSpec, RackHost, Site};
pub use local::LocalVolume;
pub use medium::{ImageOpen, Medium, Memory};
pub use nvme::{Away, NbdOthers, NvmeTarget, nvme_address};
pub use os::{MediaFile, MediaOpenError, MediaWarning, now, seed};
pub use spans::{SPAN_LAYERS, SpanRow, SpanTimes};
pub use start::StartError;
pub use stream::{Door, Listen, Listener, Stream};
pub use udp::socket_addr;

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
//! sleeps ([`CoreConfig::spin`], module `spin`); an idle core sleeps until a deadline.
//!
//! # Assumptions
//! Linux on a 64-bit machine. Hosts are deterministic [`base::Machine`]s that never block. A panic in a host is a
//! bug: its core stops, calls to it return [`Stopped`], and the process decides what to do.
//!
//! This is the only crate of the data path with `unsafe` code: system calls whose buffers the kernel fills. Each use
//! says why it holds.
#![warn(clippy::undocumented_unsafe_blocks)]

mod core;
mod counters;
pub mod cpu;
mod events;
mod frontend;
mod handle;
mod homes;
mod hosts;
mod local;
mod nvme;
mod poller;
mod ring;
mod spans;
mod spin;
mod switch;
mod udp;

pub use counters::{MalformedStats, Stats};
pub use events::{Teller, Told};
pub use handle::{CoreHandle, StartError, Stopped, TargetSpec, start_core, start_target};
pub use host::NOBODY;
pub use local::LocalVolume;
pub use nvme::{NvmeTarget, nvme_address};
pub use os::{MediaFile, MediaOpenError, MediaWarning, now, seed};
pub use spans::{SPAN_LAYERS, SpanRow, SpanTimes};
pub use udp::socket_addr;

use base::event::Source;
use base::{Addr, Device, Duration, Instant, Machine, Pool, VolumeId};
use blockswitch::{Class, ClassHint, Policy};
use std::any::Any;
use std::net::{SocketAddr, SocketAddrV4};
use std::sync::Arc;
use wire::nbd::Export;

/// Why a host could not be built; shown to the user as it is.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A host the runtime can drive.
pub trait RackHost: Machine<Input = host::Input, Output = host::Output> + 'static {
    /// Whose events these are. Asked once.
    fn source(&self) -> Source {
        Source::Core(0)
    }

    /// What NBD clients can attach to. Asked once per connection.
    fn exports(&self) -> Vec<Export> {
        Vec::new()
    }

    /// Ends cleanly: asked again and again when the core stops and its clients are answered, until it is true, which it
    /// is at once for hosts that whoever runs them has stopped before.
    fn stop(&mut self, _now: Instant) -> bool {
        true
    }

    /// The host itself, for [`CoreHandle::call`] to reach what is particular to it.
    fn as_any_mut(&mut self) -> &mut dyn Any;
}

/// How a core is set up.
#[derive(Clone, Debug)]
pub struct CoreConfig {
    /// Processor to pin the thread to; `None` leaves it to the scheduler.
    pub cpu: Option<usize>,
    /// Pages of 4 KiB of the core's pool, shared by its hosts, all reserved at start. When none is left, connections
    /// are not read and arriving pages are dropped, until some are returned. Every host's socket holds 64 of them.
    pub pool_pages: usize,
    /// How long the core polls at most after work before it sleeps; zero never polls.
    pub spin: Duration,
    /// NBD connections of all hosts of the core; one more is closed at once.
    pub connections_max: usize,
    /// NBD requests in flight per connection; a client that sends more is not read until some are answered.
    pub requests_max: usize,
    /// How long a stopping core waits for answers to the requests it has taken.
    pub drain: Duration,
    /// In which order requests of clients are served.
    pub policy: Policy,
    /// Bulk work, in bytes, after which a core looks for latency-bound work, where the policy cuts bulk requests. Less
    /// shortens the wait of the latter; every look costs what a few KiB of bulk cost, and a latency-bound client that is
    /// answered sooner asks sooner again, on the processor that bulk then has not.
    pub slice_bytes: u32,
    /// Classes of clients that are given and not learned.
    pub classes: ClassRules,
    /// Count where requests spend their time: some clock reads and a megabyte for the core.
    pub spans: bool,
    /// Where the core and its hosts tell of events; `None` drops them.
    pub events: Option<Teller>,
}

/// Classes that an operator gives to clients. Of several that match a request the first in this order counts, the most
/// specific: a host is one machine, a volume has several hosts, a port several volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassRules {
    /// By the name (NQN) with which an NVMe host connects.
    pub hosts: Vec<(String, Class)>,
    /// By volume.
    pub volumes: Vec<(VolumeId, Class)>,
    /// By the port where clients connect.
    pub ports: Vec<(u16, Class)>,
}

impl ClassRules {
    fn hint(&self, host_nqn: Option<&str>, port: u16, volume: VolumeId) -> ClassHint {
        let by_host = host_nqn.and_then(|nqn| self.hosts.iter().find(|(of, _)| of == nqn));
        let by_volume = || {
            self.volumes
                .iter()
                .find(|(of, _)| *of == volume)
                .map(|rule| rule.1)
        };
        let by_port = || self.ports.iter().find(|(of, _)| *of == port).map(|rule| rule.1);
        by_host
            .map(|rule| rule.1)
            .or_else(by_volume)
            .or_else(by_port)
            .map_or(ClassHint::Auto, ClassHint::Fixed)
    }
}

impl Default for CoreConfig {
    /// Not pinned, 256 MiB, polling for 50 µs, 256 connections of 128 requests, 2 s to drain, slices of 352 KiB.
    fn default() -> Self {
        Self {
            cpu: None,
            pool_pages: 65_536,
            spin: Duration::from_micros(50),
            connections_max: 256,
            requests_max: 128,
            drain: Duration::from_secs(2),
            policy: Policy::default(),
            slice_bytes: 352 << 10,
            classes: ClassRules::default(),
            spans: false,
            events: None,
        }
    }
}

/// What a host is given when it is built, on its core's thread.
pub struct Site<'a> {
    /// The core's pages.
    pub pool: &'a Pool,
    /// The host's medium, for formatting and recovery; later the host reaches it through its outputs only.
    pub medium: Option<&'a mut dyn Device>,
    /// Where the host's socket is bound, with the real port; all zeros without a socket.
    pub address: Addr,
    /// Now.
    pub now: Instant,
}

/// Builds a host on its core's thread (pages cannot leave it).
pub type Build = Box<dyn FnOnce(Site<'_>) -> Result<Box<dyn RackHost>, BoxError> + Send>;

/// One host of a core.
pub struct HostSpec {
    /// Where rack packets arrive (UDP); port 0 takes any free one. `None` for a host that sends and takes none.
    pub bind: Option<SocketAddrV4>,
    /// The host's medium; a host without one must not ask for media operations.
    pub medium: Option<MediaFile>,
    /// Makes the host.
    pub build: Build,
    /// Where NBD clients connect (TCP); port 0 takes any free one.
    pub nbd: Vec<SocketAddr>,
    /// Where NVMe/TCP hosts connect, and the subsystems that they find there, whose volumes are the host's.
    pub nvme: Option<(SocketAddr, Arc<NvmeTarget>)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_rules_the_most_specific_counts() {
        let rules = ClassRules {
            hosts: vec![("nqn.a".into(), Class::Throughput)],
            volumes: vec![(VolumeId(1), Class::Latency)],
            ports: vec![(4420, Class::Throughput)],
        };
        let (latency, throughput) = (Class::Latency, Class::Throughput);
        for (host_nqn, port, volume, expected) in [
            (Some("nqn.a"), 1, 1, ClassHint::Fixed(throughput)),
            (Some("nqn.ab"), 4420, 1, ClassHint::Fixed(latency)),
            (None, 4420, 1, ClassHint::Fixed(latency)),
            (None, 4420, 2, ClassHint::Fixed(throughput)),
            (Some("nqn.b"), 1, 2, ClassHint::Auto),
        ] {
            assert_eq!(rules.hint(host_nqn, port, VolumeId(volume)), expected);
        }
    }
}

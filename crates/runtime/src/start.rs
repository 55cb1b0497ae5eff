//! What comes of starting a core.

use crate::hosts::BoxError;
use std::io;
use std::net::{SocketAddr, SocketAddrV4, UdpSocket};
use thiserror::Error;

/// Why a core did not start. Nothing of it is left behind.
#[derive(Debug, Error)]
pub enum StartError {
    /// The thread cannot be made.
    #[error("no thread for the core: {0}")]
    Thread(#[source] io::Error),
    /// The thread cannot be pinned.
    #[error("processor {cpu} cannot be used: {source}")]
    Pin {
        /// The processor asked for.
        cpu: usize,
        /// The system's reason.
        source: io::Error,
    },
    /// The system refuses epoll or an eventfd.
    #[error("the core's event sources cannot be set up: {0}")]
    Poller(#[source] io::Error),
    /// The system refuses io_uring: too old (before 5.6), disabled by sysctl, or by a container's seccomp profile.
    #[error("io_uring is not available (kernel.io_uring_disabled, or a container's seccomp profile?): {0}")]
    Ring(#[source] io::Error),
    /// The pool cannot even give every socket its receive buffers.
    #[error("a pool of {pool_pages} pages is too small: {needed_pages} are needed for the sockets alone")]
    PoolTooSmall {
        /// As configured.
        pool_pages: usize,
        /// The least that would do.
        needed_pages: usize,
    },
    /// A host's UDP address cannot be bound.
    #[error("{address}/udp cannot be bound: {source}")]
    Bind {
        /// The address.
        address: SocketAddrV4,
        /// The system's reason.
        source: io::Error,
    },
    /// An address of clients cannot be listened on.
    #[error("{address}/tcp cannot be listened on: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
    /// A host could not be built.
    #[error("host {host} cannot start: {source}")]
    Build {
        /// Its place in the list.
        host: usize,
        /// Its reason.
        source: BoxError,
    },
    /// Only one core can drive a disk.
    #[error("a vSSD is served by one core, and {cores} were asked for")]
    SeveralCores {
        /// The cores asked for.
        cores: usize,
    },
    /// Building a host panicked: a bug. The message is on standard error.
    #[error("a host panicked while it was built")]
    Panicked,
}

/// Where clients connect, and the name of what they speak.
pub(crate) type Listening = Vec<(&'static str, SocketAddr)>;

/// What a started core reports.
#[derive(Default)]
pub(crate) struct Started {
    pub addresses: Vec<Option<SocketAddrV4>>,
    pub listening: Vec<Listening>,
    pub sockets: Vec<UdpSocket>,
    pub target_listening: Listening,
}

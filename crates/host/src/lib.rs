//! One machine, composed of pure policy: a node, a ToR, a gateway or a central controller of a rack, or a disk of its
//! own.
//!
//! The worlds (`sim`, `runtime`) drive hosts through [`Input`] and [`Output`] only.
#![forbid(unsafe_code)]

mod buffered;
pub mod controller;
pub mod disk;
pub mod gateway;
pub mod node;
pub mod operator;
pub mod target;
pub mod tor;

pub use controller::{Central, Controller, ControllerConfig};
pub use disk::{Disk, DiskConfig, DiskEntry, DiskError};
pub use gateway::{Gateway, GatewayConfig};
pub use node::{Node, NodeConfig};
pub use tor::{Egress, Tor, TorConfig};

use base::event::Kind;
use base::{Addr, BlockReply, BlockRequest, MediaDone, MediaOp};
use wire::rack::Packet;

/// The client of requests that no client has made: no connection has this number, and a world drops their answers.
pub const NOBODY: u32 = u32::MAX;

/// What a world tells a host.
#[derive(Debug)]
pub enum Input {
    /// A packet that arrived; its header is valid, its payload's checksum is not yet checked.
    Packet(Packet),
    /// The host's medium is done with an operation.
    Media(MediaDone),
    /// A client's request (gateways and disks only), validated by the frontend.
    Request(BlockRequest),
    /// A client is gone (gateways and disks only). Answers to it may still come, to nobody.
    ClientGone(u32),
}

/// What a host asks of its world.
#[derive(Debug)]
pub enum Output {
    /// Send the packet to the next hop.
    Send {
        /// The next hop: the ToR, or where the ToR sends it.
        to: Addr,
        /// What to send.
        packet: Packet,
    },
    /// Do this on the host's medium (nodes and disks only).
    Media(MediaOp),
    /// Answer a client (gateways and disks only).
    Reply(BlockReply),
    /// Tell whoever watches. The world keeps it ([`base::event::Events`]).
    Event(Kind),
}

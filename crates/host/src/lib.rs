//! One machine of the rack, composed of pure policy: a [`Host`] is a node, a ToR or a gateway.
//!
//! The worlds (`sim`, `runtime`) drive hosts through [`Input`] and [`Output`] only.
#![forbid(unsafe_code)]

pub mod gateway;
pub mod node;
pub mod tor;

pub use gateway::{Gateway, GatewayConfig};
pub use node::{Node, NodeConfig};
pub use tor::{Tor, TorConfig};

use base::{Addr, BlockReply, BlockRequest, MediaDone, MediaOp};
use wire::rack::Packet;

/// What a world tells a host.
#[derive(Debug)]
pub enum Input {
    /// A packet that arrived; its header is valid, its payload's checksum is not yet checked.
    Packet(Packet),
    /// The host's medium is done with an operation.
    Media(MediaDone),
    /// A client's request (gateways only), validated by the frontend.
    Request(BlockRequest),
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
    /// Do this on the host's medium (nodes only).
    Media(MediaOp),
    /// Answer a client (gateways only).
    Reply(BlockReply),
}

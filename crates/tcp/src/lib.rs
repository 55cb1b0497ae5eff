//! TCP as a service, pure (TAS, EuroSys'19): the stack of one core, without clock, socket, thread or payload of its own.
//!
//! A frame's way in:
//!
//! 1. [`frame::parse`] reads its headers where they lie.
//! 2. [`table::Table::find`] looks its flow up.
//! 3. [`fast::receive`] takes the common case: two cache lines of state ([`flow::Flow`]) and no more. It answers where the
//!    payload belongs in the receive ring, and what there is to do.
//! 4. [`slow::Slow`] takes the rest: handshakes, closing, strange segments, ARP and neighbour discovery, ICMP errors.
//!
//! A frame's way out: [`fast::transmit`] plans the next segment of a flow that is ready, [`frame::emit`] writes it.
//! [`slow::Slow`] looks at flows that wait for their peer once per round trip: congestion control ([`congestion`]),
//! retransmission, probes. So the fast path sets no timer.
//!
//! [`stack::Stack`] puts these together. Its owner has the rings ([`stack::Buffers`]) and carries frames and events:
//! `sockets` does so in a program's thread. Flows move between the stacks of a host ([`stack::Stack::export`]), and
//! [`scale::cores`] says how many of these there should be.
//!
//! Not here: SACK (losses beyond one gap are sent again from the gap on), IP fragments and extension headers, TCP Fast Open,
//! and black-hole detection for paths whose routers send no ICMP errors. The wire formats are in `docs/format/tcp.md`.
#![forbid(unsafe_code)]

pub mod addr;
pub mod api;
pub mod cold;
pub mod config;
pub mod congestion;
pub mod fast;
pub mod flow;
pub mod frame;
pub mod paths;
pub mod rto;
pub mod scale;
pub mod seq;
pub mod siphash;
pub mod slow;
pub mod stack;
pub mod table;
pub mod timers;

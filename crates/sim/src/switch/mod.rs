//! One target with modelled cores, for the host block switch: the very same `host::target` that `serve` runs, with the same
//! configuration, in virtual time.
//!
//! Applications are closed loops: L ones 4 KiB and one request at a time, T ones of any size and depth. A request reaches
//! its application's home core, which reads it in its connection's turn, queues it, and works on it when its turn comes;
//! the answer leaves over a link that all share. [`world`] has the connections and media, [`link`] the network, [`cost`]
//! what everything costs, [`figures`] the experiments.
//!
//! Policies differ in `host::target::Config` only. What is not modelled: processors of the clients, caches, interrupts,
//! packet loss.

pub mod cost;
pub mod figures;
pub mod link;
pub mod world;

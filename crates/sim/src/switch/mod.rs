//! One target host with modelled cores, for the host block switch: the very same `blockswitch` code that the runtime
//! has, in virtual time.
//!
//! Applications are closed loops. L applications ask 4 KiB, one request at a time; T applications have any size and depth.
//! A request reaches its application's home core and is parsed there. It waits for its medium (or, a write, for its data),
//! is steered, and waits in the egress queue of the core that will do it. The core works on it slice by slice. Its answer
//! leaves over a link that all share. [`host`] is the machine, [`link`] the network, [`cost`] what everything costs, [`figures`] the
//! experiments.
//!
//! Policies differ in `blockswitch::Config`, and in two things that are part of the systems: in what order a core takes
//! in what has arrived, and what it costs to turn from one class to the other. Sizes, depths and all other costs are the
//! same for every one. The model leaves out processors of the clients, caches, interrupts and packet loss.

pub mod cost;
pub mod figures;
pub mod host;
pub mod link;

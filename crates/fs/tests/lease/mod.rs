//! Processes with leases.

pub mod call;
pub mod world;

//! A virtual NIC in memory that two processes of one host share.

mod doorbell;
mod lane;
mod memory;
mod vnic;

pub use vnic::{QUEUES_MAX, Shape, Vnic, pair};

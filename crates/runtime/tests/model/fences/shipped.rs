//! The sources as they ship.

#[allow(dead_code, reason = "no check gives an address")]
#[path = "../../../src/nvme.rs"]
mod nvme;

scenario!();

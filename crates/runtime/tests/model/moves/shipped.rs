//! The sources as they ship.

files!();
#[allow(dead_code, reason = "no host is called")]
#[path = "../../../src/command.rs"]
mod command;
#[allow(dead_code, reason = "no check reads all counters")]
#[path = "../../../src/counters.rs"]
mod counters;
#[path = "../../../src/mailbox.rs"]
mod mailbox;
#[allow(dead_code, reason = "clients come to the core that they ask")]
#[path = "../../../src/steering.rs"]
mod steering;

scenario!();

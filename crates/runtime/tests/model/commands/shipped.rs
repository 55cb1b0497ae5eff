//! The sources as they ship.

use crate::sync;
#[path = "../../../src/mailbox.rs"]
mod mailbox;

scenario!();

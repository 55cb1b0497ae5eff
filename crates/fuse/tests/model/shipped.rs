//! The source as it ships.

use crate::sync;
#[path = "../../src/transport/answered.rs"]
mod answered;

crate::scenario!();

//! The latch of a medium, and what its file takes from its crate.

pub(crate) use crate::sync;
pub(crate) use base::device::pass_on;
pub(crate) use base::{Device, MediaDone, MediaError, MediaOp, Queue};

#[path = "../../../../base/src/device/latch.rs"]
#[allow(dead_code, unused_imports, reason = "checks use queues")]
pub(crate) mod latch;

//! The latch of a medium, and what its file takes from its crate.

pub(crate) use crate::sync;
pub(crate) use base::{Device, MediaDone, MediaError, MediaOp, Queue};

macro_rules! pass_on {
    () => {
        fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), MediaError> {
            self.inner.read_at(offset, bytes)
        }
        fn capacity_bytes(&self) -> u64 {
            self.inner.capacity_bytes()
        }
    };
}
pub(crate) use pass_on;

#[path = "../../../../base/src/device/latch.rs"]
#[allow(dead_code, unused_imports, reason = "checks use queues")]
pub(crate) mod latch;

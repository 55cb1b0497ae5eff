//! The running cores of a process, and where hosts are on them.

use base::Instant;
use runtime::{CoreHandle, Stopped};
use std::sync::Arc;

/// Place of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// Index of its core.
    pub core: usize,
    /// Its place on the core.
    pub host: usize,
}

/// The running cores of a process.
#[derive(Clone, Debug)]
pub struct Cores(pub(super) Arc<Vec<CoreHandle>>);

impl Cores {
    /// Calls into a host.
    pub fn call<H: 'static, R: Send + 'static>(
        &self,
        at: At,
        f: impl FnOnce(&mut H, Instant) -> R + Send + 'static,
    ) -> Result<R, Stopped> {
        self.0[at.core].call(at.host, move |host, now| {
            let host = host.as_any_mut().downcast_mut::<H>();
            f(
                host.expect("a place names a host of the kind it was recorded with"),
                now,
            )
        })
    }
}

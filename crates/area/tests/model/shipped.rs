//! The sources as they ship.

mod backend {
    pub(crate) use crate::Memory as Storage;
}
mod error {
    pub(crate) use area::AreaError;
}
use crate::sync;
#[path = "../../src/bell.rs"]
mod bell;
#[path = "../../src/commit.rs"]
mod commit;
#[allow(dead_code, reason = "no check reads values")]
#[path = "../../src/shared.rs"]
mod shared;

scenarios!();

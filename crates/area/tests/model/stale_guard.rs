//! The hold of a commit as it once was: its guard is marked beside the hold, and the mark outlives the guard.

mod backend {
    pub(crate) use crate::Memory as Storage;
}
mod error {
    pub(crate) use area::AreaError;
}
use crate::sync;
#[path = "../../src/bell.rs"]
mod bell;
#[path = "mistaken_commit.rs"]
mod commit;
#[allow(dead_code, reason = "no check reads values")]
#[path = "../../src/shared.rs"]
mod shared;

scenarios!();

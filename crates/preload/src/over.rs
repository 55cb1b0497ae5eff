//! The end of following: of a program that cannot be followed any more everything is given up, and stays so.

use crate::tell::tell;
use area::files::Journal;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

static IS_OVER: AtomicBool = AtomicBool::new(false);

/// True if nothing more is followed.
pub(crate) fn is_over() -> bool {
    IS_OVER.load(Ordering::Relaxed)
}

/// Gives everything up. The user hears of it if something was followed.
pub(crate) fn end(journal: Option<&Journal>, why: &str) -> io::Result<()> {
    if IS_OVER.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    let given_up = journal.map_or(Ok(()), Journal::give_up_all);
    if journal.is_some() {
        tell!("switchyard run: {why}: its syncs go to the file system from now on");
    }
    given_up
}

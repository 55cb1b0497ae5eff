//! Filters of system calls (seccomp(2)). They have those that the program knows of, and not the library's.

use crate::numbers::let_go;
use crate::over::end;
use crate::state::{IS_SEALED, inside, is_own_memory, is_sealed, present};
use crate::{answer, fs, real, tree};
use libc::{c_int, c_ulong};
use std::io;
use std::sync::atomic::Ordering;

/// The program is about to filter its system calls.
pub(crate) fn before_filter() -> io::Result<()> {
    if is_sealed() || !is_own_memory() {
        return Ok(());
    }
    fs::end();
    let why = "the program filters its system calls (seccomp)";
    let Some(journal) = present() else {
        // What another process follows is given up while this one may still ask for it.
        end(None, why)?;
        return tree::leave_all();
    };
    inside(|| end(Some(journal), why).and_then(|()| let_go(journal)))?;
    IS_SEALED.store(true, Ordering::Relaxed);
    Ok(())
}

/// The C library's is variadic: four words.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn prctl(
    option: c_int,
    a: c_ulong,
    b: c_ulong,
    c: c_ulong,
    d: c_ulong,
) -> c_int {
    // Without a filter the call only asks whether there are any.
    let sets = option == libc::PR_SET_SECCOMP && (a == c_ulong::from(libc::SECCOMP_MODE_STRICT) || b != 0);
    let prepared = if sets { before_filter() } else { Ok(()) };
    // SAFETY: the caller's arguments.
    answer(prepared.map(|()| unsafe { real::prctl(option, a, b, c, d) }))
}

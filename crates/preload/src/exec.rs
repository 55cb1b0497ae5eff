//! Other programs in the place of this one: they may not have the library, and they may have the descriptors. So the area has nothing of
//! any file before.

use crate::{answer, fs, inside, net, present, real, tree};
use libc::{c_char, c_int, c_void};

/// A failure is kept in the area, and `switchyard run` settles it at the end.
fn settle() {
    fs::before_exec();
    net::before_program();
    if let Some(journal) = present() {
        let _ = inside(|| journal.settle_all());
    }
    tree::starts();
}

macro_rules! replaces {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> c_int {
            settle();
            // SAFETY: the caller's arguments.
            unsafe { real::$name($($argument),*) }
        }
    )*};
}

replaces! {
    execve(path: *const c_char, values: *const *const c_char, environment: *const *const c_char);
    execv(path: *const c_char, values: *const *const c_char);
    execvp(path: *const c_char, values: *const *const c_char);
    execvpe(path: *const c_char, values: *const *const c_char, environment: *const *const c_char);
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fexecve(
    fd: c_int,
    values: *const *const c_char,
    environment: *const *const c_char,
) -> c_int {
    settle();
    // SAFETY: the caller's arguments.
    answer(fs::leave(fd).map(|()| unsafe { real::fexecve(fd, values, environment) }))
}

/// Before a variadic one: the C library goes on with its arguments.
pub(crate) fn before(function: *mut c_void) -> *mut c_void {
    settle();
    function
}

//! What the kernel must have the files for.

use super::answers::answer;
use super::live::{close, live};
use super::served::call;
use super::table::{has_any, is_known};
use crate::real;
use crate::state::inside;
use libc::{c_int, c_long};
use std::io;

/// The system call by which threads wait and wake (`futex`). It has no descriptor, and the session's own thread makes it, which must not wait for itself.
#[cfg(target_arch = "x86_64")]
const WAIT: c_long = 202;
#[cfg(not(target_arch = "x86_64"))]
const WAIT: c_long = 98;

/// The kernel gets the file of a descriptor, if it is served.
///
/// # Errors
/// The mount cannot be asked for it.
pub(crate) fn leave(fd: c_int) -> io::Result<()> {
    if !is_known(fd) {
        return Ok(());
    }
    let Some(live) = live() else {
        return Ok(());
    };
    inside(|| {
        live.table
            .get(fd)
            .map_or(Ok(()), |opened| opened.leave(&live.table))
    })
}

/// A child will have the descriptors, and share their offsets.
pub(crate) fn before_children() {
    if let Some(live) = live().filter(|_| has_any()) {
        inside(|| live.table.leave_all(|_| true));
    }
}

/// Before a variadic function that makes a child: the C library goes on with its arguments.
pub(crate) fn before_child_by(function: *mut libc::c_void) -> *mut libc::c_void {
    before_children();
    function
}

/// Another program will have the descriptors that are not closed.
pub(crate) fn before_exec() {
    let is_kept = |fd| {
        // SAFETY: no memory is involved.
        let flags = unsafe { real::fcntl(fd, libc::F_GETFD, 0) };
        flags >= 0 && flags & libc::FD_CLOEXEC == 0
    };
    if let Some(live) = live().filter(|_| has_any()) {
        inside(|| live.table.leave_all(is_kept));
    }
}

/// The kernel has all from now on, as what the program is about to do cannot be followed.
pub(crate) fn end() {
    close(true);
}

/// The kernel has all that is open, and the process begins anew: it is about to be another user, or to have other limits.
pub(crate) fn restart() {
    close(false);
}

/// Asked for the size of its terminal or the like, a file says that it is none. The kernel gets it for other requests.
pub(crate) fn ioctl(fd: c_int, request: libc::c_ulong) -> Option<c_int> {
    if !is_known(fd) {
        return None;
    }
    let done = match request {
        libc::TCGETS | libc::TIOCGWINSZ => call(fd, |_, _| Ok(())).map(|_| libc::ENOTTY),
        _ => leave(fd).err().map(|_| libc::EIO),
    };
    done.map(|code| answer(Err(code)))
}

/// A system call by its number: the kernel has what it may be about before. Any of its words may be a descriptor.
pub(crate) fn before_syscall(number: c_long, words: [c_long; 6]) -> io::Result<()> {
    match number {
        WAIT | libc::SYS_gettid | libc::SYS_getrandom | libc::SYS_sched_yield => Ok(()),
        libc::SYS_clone | libc::SYS_clone3 => {
            before_children();
            Ok(())
        }
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork | libc::SYS_vfork => {
            before_children();
            Ok(())
        }
        libc::SYS_execveat => {
            before_exec();
            Ok(())
        }
        libc::SYS_setuid
        | libc::SYS_setgid
        | libc::SYS_setreuid
        | libc::SYS_setregid
        | libc::SYS_setresuid
        | libc::SYS_setresgid
        | libc::SYS_setfsuid
        | libc::SYS_setfsgid
        | libc::SYS_setgroups
        | libc::SYS_capset
        | libc::SYS_umask
        | libc::SYS_prlimit64
        | libc::SYS_chdir
        | libc::SYS_fchdir
        | libc::SYS_chroot
        | libc::SYS_pivot_root
        | libc::SYS_unshare
        | libc::SYS_setns => {
            end();
            Ok(())
        }
        _ if has_any() => words
            .into_iter()
            .filter_map(|word| c_int::try_from(word).ok())
            .try_for_each(leave),
        _ => Ok(()),
    }
}

//! What the kernel must have the files for.

use super::answers::answer;
use super::children;
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

/// Before vfork: the C library goes on.
pub(crate) fn before_vfork_by(function: *mut libc::c_void) -> *mut libc::c_void {
    before_children();
    children::before_vfork();
    function
}

/// Before a variadic function that makes a child: the C library goes on with its arguments.
pub(crate) fn before_child_by(function: *mut libc::c_void) -> *mut libc::c_void {
    before_children();
    children::before_unseen();
    function
}

/// Before a child by a system call.
pub(crate) fn before_unseen_children() {
    before_children();
    children::before_unseen();
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
            before_unseen_children();
            Ok(())
        }
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork | libc::SYS_vfork => {
            before_unseen_children();
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
        _ if has_any() => descriptors(number, words).try_for_each(leave),
        _ => Ok(()),
    }
}

/// The words of a system call that may be descriptors. A call that has fewer words than there are registers leaves in the others whatever was there.
fn descriptors(number: c_long, words: [c_long; 6]) -> impl Iterator<Item = c_int> {
    let places = places_of(number).unwrap_or(&[0, 1, 2, 3, 4, 5]);
    let words = places.iter().map(move |place| words[*place]);
    words.filter_map(|word| c_int::try_from(word).ok())
}

/// Which words of a system call are descriptors, of calls that programs make themselves; none if all of them may be.
fn places_of(number: c_long) -> Option<&'static [usize]> {
    Some(match number {
        libc::SYS_read
        | libc::SYS_write
        | libc::SYS_close
        | libc::SYS_fstat
        | libc::SYS_lseek
        | libc::SYS_ioctl
        | libc::SYS_pread64
        | libc::SYS_pwrite64
        | libc::SYS_readv
        | libc::SYS_writev
        | libc::SYS_preadv
        | libc::SYS_pwritev
        | libc::SYS_preadv2
        | libc::SYS_pwritev2
        | libc::SYS_fsync
        | libc::SYS_fdatasync
        | libc::SYS_syncfs
        | libc::SYS_sync_file_range
        | libc::SYS_ftruncate
        | libc::SYS_fallocate
        | libc::SYS_fadvise64
        | libc::SYS_readahead
        | libc::SYS_fcntl
        | libc::SYS_flock
        | libc::SYS_fchmod
        | libc::SYS_fchown
        | libc::SYS_fstatfs
        | libc::SYS_getdents64
        | libc::SYS_fgetxattr
        | libc::SYS_fsetxattr
        | libc::SYS_flistxattr
        | libc::SYS_fremovexattr
        | libc::SYS_dup
        | libc::SYS_openat
        | libc::SYS_openat2
        | libc::SYS_mkdirat
        | libc::SYS_mknodat
        | libc::SYS_unlinkat
        | libc::SYS_newfstatat
        | libc::SYS_statx
        | libc::SYS_faccessat
        | libc::SYS_faccessat2
        | libc::SYS_readlinkat
        | libc::SYS_fchmodat
        | libc::SYS_fchownat
        | libc::SYS_utimensat => &[0],
        libc::SYS_symlinkat => &[1],
        libc::SYS_sendfile | libc::SYS_dup3 | libc::SYS_tee => &[0, 1],
        libc::SYS_linkat
        | libc::SYS_renameat
        | libc::SYS_renameat2
        | libc::SYS_copy_file_range
        | libc::SYS_splice => &[0, 2],
        libc::SYS_mmap => &[4],
        libc::SYS_munmap
        | libc::SYS_mprotect
        | libc::SYS_madvise
        | libc::SYS_clock_gettime
        | libc::SYS_clock_nanosleep
        | libc::SYS_nanosleep
        | libc::SYS_getpid
        | libc::SYS_getrusage
        | libc::SYS_sched_getaffinity
        | libc::SYS_rt_sigprocmask => &[],
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bug: what a short system call had left in the other registers was taken for descriptors, and their files became the kernel's.
    #[test]
    fn only_the_words_of_a_system_call_are_descriptors() {
        let of = |number, words| descriptors(number, words).collect::<Vec<_>>();
        assert_eq!(of(libc::SYS_syncfs, [7, 4, 5, 6, 4, 5]), [7]);
        assert_eq!(of(libc::SYS_copy_file_range, [7, 4, 8, 5, 6, 0]), [7, 8]);
        assert_eq!(of(libc::SYS_mmap, [0, 4, 5, 6, 9, 0]), [9]);
        assert_eq!(of(libc::SYS_getpid, [4; 6]), []);
        // Of others nothing is known.
        assert_eq!(of(libc::SYS_epoll_ctl, [4, 1, 5, 1 << 40, 0, 0]), [4, 1, 5, 0, 0]);
    }
}

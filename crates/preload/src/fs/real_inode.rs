//! What the kernel has.

use libc::c_int;

/// Device and inode of a descriptor, or of the working directory, as the kernel has them.
pub(crate) fn inode_of(fd: c_int) -> Option<(u64, u64)> {
    let (path, flags) = match fd {
        libc::AT_FDCWD => (c".", 0),
        _ => (c"", libc::AT_EMPTY_PATH),
    };
    // SAFETY: zeros are a valid `stat`, which the call fills; the path ends with a zero.
    unsafe {
        let mut found: libc::stat = std::mem::zeroed();
        let result = crate::real::fstatat(fd, path.as_ptr(), &mut found, flags);
        (result == 0).then_some((found.st_dev, found.st_ino))
    }
}

//! Ending a connection by force: its requests fail from then on, also those that wait in the kernel.

use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::io;
use std::path::Path;

/// Where Linux shows connections, if that file system is mounted (Linux' `fuse/fuse.rst`).
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// Ends the connection of a mount, of whatever process. The mount stays at its place, unless nobody uses it, and calls on it fail. A mount without a number
/// is ended by its place, which takes root.
///
/// # Errors
/// There is no such mount, or the caller may not.
pub fn abort(connection: Option<u32>, place: &Path) -> io::Result<()> {
    if let Some(number) = connection
        && std::fs::write(format!("{CONNECTIONS}/{number}/abort"), "1").is_ok()
    {
        return Ok(());
    }
    match rustix::mount::unmount(place, UnmountFlags::FORCE | UnmountFlags::NOFOLLOW) {
        // The connection has ended before somebody was found who uses the mount.
        Ok(()) | Err(Errno::BUSY) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

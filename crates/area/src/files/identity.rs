//! Which file a descriptor or path leads to, and whether the kernel still has its pages.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use store::files::{Description, Identity};

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A file as the file system has it.
pub(super) struct Found {
    pub identity: Identity,
    pub owner: [u32; 3],
    pub size: u64,
    pub is_regular: bool,
}

/// Name and size of the descriptor's file; `None` unless it is a regular file with a name.
pub(super) fn describe(file: impl AsFd) -> io::Result<Option<(Description, u64)>> {
    let fd = file.as_fd().as_raw_fd();
    let found = statx(fd, c"", libc::AT_EMPTY_PATH)?;
    if !found.is_regular {
        return Ok(None);
    }
    let path = std::fs::read_link(format!("/proc/self/fd/{fd}"))?;
    let description = Description {
        path: path.as_os_str().as_bytes().to_vec(),
        identity: found.identity,
        owner: found.owner,
        is_fresh: false,
        is_removed: false,
    };
    Ok(Some((description, found.size)))
}

/// The file at a path, without following a link; `None` if there is none.
pub(super) fn look_up(path: &Path) -> io::Result<Option<Found>> {
    let text = CString::new(path.as_os_str().as_bytes())?;
    match statx(libc::AT_FDCWD, &text, libc::AT_SYMLINK_NOFOLLOW) {
        Ok(found) => Ok(Some(found)),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Bytes of the descriptor's file. Its times are not asked for: Linux gives a change after that a time of its own (multigrain
/// timestamps), and every file that changes next the same one, so that each inode is written anew. Where an area lies on ext4
/// without a journal that is one more write to the device with each sync.
pub(super) fn size(file: impl AsFd) -> io::Result<u64> {
    let data = ask(
        file.as_fd().as_raw_fd(),
        c"",
        libc::AT_EMPTY_PATH,
        libc::STATX_SIZE,
    )?;
    Ok(data.stx_size)
}

/// Names that the descriptor's file has.
pub(super) fn links(file: impl AsFd) -> io::Result<u32> {
    let data = ask(
        file.as_fd().as_raw_fd(),
        c"",
        libc::AT_EMPTY_PATH,
        libc::STATX_NLINK,
    )?;
    Ok(data.stx_nlink)
}

fn ask(fd: libc::c_int, path: &CStr, flags: libc::c_int, mask: libc::c_uint) -> io::Result<libc::statx> {
    // SAFETY: zeros are a valid `statx`.
    let mut data: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends with a zero; the kernel fills `data`.
    match unsafe { libc::statx(fd, path.as_ptr(), flags, mask, &mut data) } {
        0 => Ok(data),
        _ => Err(io::Error::last_os_error()),
    }
}

fn statx(fd: libc::c_int, path: &CStr, flags: libc::c_int) -> io::Result<Found> {
    // The unique number is Linux 6.8's; before, a number may be given to another mount after an unmount, which writes everything
    // back.
    let mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME | libc::STATX_MNT_ID | libc::STATX_MNT_ID_UNIQUE;
    let data = ask(fd, path, flags, mask)?;
    let boot = std::fs::read(BOOT_ID)?;
    let mount = data.stx_mnt_id.to_le_bytes();
    let device = [data.stx_dev_major, data.stx_dev_minor]
        .map(u32::to_le_bytes)
        .concat();
    let born = data.stx_btime;
    let has_birth = data.stx_mask & libc::STATX_BTIME != 0;
    Ok(Found {
        identity: Identity {
            inode: data.stx_ino,
            born_ns: if has_birth {
                born.tv_sec as u64 * 1_000_000_000 + u64::from(born.tv_nsec)
            } else {
                0
            },
            cache: hash(&[&boot, &mount, &device]),
        },
        owner: [u32::from(data.stx_mode), data.stx_uid, data.stx_gid],
        size: data.stx_size,
        is_regular: u32::from(data.stx_mode) & libc::S_IFMT == libc::S_IFREG,
    })
}

/// FNV-1a.
fn hash(parts: &[&[u8]]) -> u64 {
    let bytes = parts.iter().flat_map(|part| part.iter());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

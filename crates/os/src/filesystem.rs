//! What the file system of a file does with it: whether a crash of the machine leaves it, and where its blocks are.

use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::{io, mem};

/// FS_NOCOW_FL of linux/fs.h.
const NOCOW: libc::c_int = 0x0080_0000;

/// Bytes of a handle of [`open_by_handle`].
pub const HANDLE_BYTES: usize = 12;

/// File systems that keep nothing over a crash of the machine, by statfs(2).
const VOLATILE: [libc::c_long; 14] = [
    libc::TMPFS_MAGIC,
    libc::PROC_SUPER_MAGIC,
    libc::SYSFS_MAGIC,
    libc::CGROUP_SUPER_MAGIC,
    libc::CGROUP2_SUPER_MAGIC,
    libc::DEBUGFS_MAGIC,
    libc::TRACEFS_MAGIC,
    libc::SECURITYFS_MAGIC,
    libc::HUGETLBFS_MAGIC,
    libc::BPF_FS_MAGIC,
    libc::SELINUX_MAGIC,
    // binfmt_misc, configfs and ramfs, which libc does not name.
    0x4249_4e4d,
    0x6265_6570,
    0x8584_58f6,
];

/// True if the descriptor's file system keeps files over a crash of the machine. It allocates nothing.
pub fn is_kept(fd: RawFd) -> bool {
    !kind(fd).is_some_and(|it| VOLATILE.contains(&it))
}

/// Opens an inode of a mount by the handle that its file system gives out (open_by_handle_at(2)). `mount` is any descriptor of
/// the mount.
///
/// # Errors
/// The caller is not root, or there is no such inode.
pub fn open_by_handle(
    mount: BorrowedFd<'_>,
    (kind, handle): (i32, [u8; HANDLE_BYTES]),
    flags: i32,
) -> io::Result<OwnedFd> {
    /// `struct file_handle`, with its bytes.
    #[repr(C)]
    struct Handle {
        bytes: u32,
        kind: i32,
        handle: [u8; HANDLE_BYTES],
    }
    let mut of = Handle {
        bytes: HANDLE_BYTES as u32,
        kind,
        handle,
    };
    let (fd, of) = (mount.as_raw_fd(), (&raw mut of).cast::<libc::file_handle>());
    // SAFETY: the handle has as many bytes as it says.
    let opened = unsafe { libc::open_by_handle_at(fd, of, flags | libc::O_CLOEXEC) };
    match opened {
        // SAFETY: the kernel has just given it.
        0.. => Ok(unsafe { OwnedFd::from_raw_fd(opened) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The kind of the descriptor's file system, if it can be told.
fn kind(fd: RawFd) -> Option<libc::c_long> {
    // SAFETY: zeros are a valid `statfs`, which the kernel fills.
    let (result, found) = unsafe {
        let mut found: libc::statfs = mem::zeroed();
        (libc::fstatfs(fd, &mut found), found)
    };
    (result == 0).then_some(found.f_type)
}

/// Extends `file` to `bytes` and reserves their space, if the file system can. One that has no such space is not filled
/// up to find out, and a file that could not be extended has its former length.
pub fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    reserve_as(file, bytes, true)
}

/// As [`reserve`], but the file keeps its length: nobody sees yet what it will be.
pub fn reserve_beyond(file: &File, bytes: u64) -> io::Result<()> {
    reserve_as(file, bytes, false)
}

fn reserve_as(file: &File, bytes: u64, extends: bool) -> io::Result<()> {
    let data = file.metadata()?;
    if bytes.saturating_sub(data.blocks() * 512) > free_bytes(file)? {
        return Err(io::ErrorKind::StorageFull.into());
    }
    if data.len() == 0 {
        overwrite_in_place(file);
    }
    allocate(file, bytes, extends).inspect_err(|_| {
        // What this fails with is less to the point than what came before.
        let _ = file.set_len(data.len());
    })
}

/// Bytes that the file's file system has left for us.
fn free_bytes(file: &File) -> io::Result<u64> {
    // SAFETY: a `statvfs` of zeros is valid, and valid for writes.
    let (result, stat) = unsafe {
        let mut stat: libc::statvfs = mem::zeroed();
        (libc::fstatvfs(file.as_raw_fd(), &mut stat), stat)
    };
    match result {
        0 => Ok(stat.f_bavail.saturating_mul(stat.f_frsize)),
        _ => Err(io::Error::last_os_error()),
    }
}

fn allocate(file: &File, bytes: u64, extends: bool) -> io::Result<()> {
    let length = libc::off64_t::try_from(bytes).map_err(|_| io::ErrorKind::FileTooLarge)?;
    let mode = if extends { 0 } else { libc::FALLOC_FL_KEEP_SIZE };
    loop {
        // SAFETY: no pointers.
        if unsafe { libc::fallocate64(file.as_raw_fd(), mode, 0, length) } == 0 {
            return Ok(());
        }
        match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => {}
            error if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                return if extends { file.set_len(bytes) } else { Ok(()) };
            }
            error => return Err(error),
        }
    }
}

/// A new file of btrfs is overwritten in place from now on. Each overwrite would take new blocks else, which a full file system
/// does not have, and direct writes would go through the page cache for its checksums. Media have checksums of their own.
fn overwrite_in_place(file: &File) {
    if kind(file.as_raw_fd()) != Some(libc::BTRFS_SUPER_MAGIC) {
        return;
    }
    let mut flags: libc::c_int = 0;
    // SAFETY: both move an int, whatever their numbers say. A file without the flag works, too.
    unsafe {
        if libc::ioctl(file.as_raw_fd(), libc::FS_IOC_GETFLAGS, &mut flags) == 0 {
            flags |= NOCOW;
            libc::ioctl(file.as_raw_fd(), libc::FS_IOC_SETFLAGS, &flags);
        }
    }
}

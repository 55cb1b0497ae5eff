//! Which file a descriptor, path or handle leads to, and whether the kernel still has its pages.

use super::root;
use crate::own;
use crate::sync::{AtomicU64, Ordering};
use rustix::fs::{AtFlags, readlinkat, statat};
use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use store::files::{Description, Identity, NO_UUID, Place};

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A file as the file system has it.
pub(super) struct Found {
    pub identity: Identity,
    pub owner: [u32; 3],
    pub size: u64,
    pub is_regular: bool,
    /// Names that it has.
    pub links: u32,
    /// When it changed last (ctime), in ns since 1970; 0 if that was not asked for.
    pub changed_ns: u64,
    /// Hash of the boot and the mount that it was found by.
    mount: u64,
}

/// The machine's clock, from which file systems take their times: ns since 1970.
pub(super) fn clock_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel fills `time`; this clock is there.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn ns(time: libc::statx_timestamp) -> u64 {
    time.tv_sec as u64 * 1_000_000_000 + u64::from(time.tv_nsec)
}

/// Name and size of the descriptor's file; `None` unless it is a regular file with a name that can be told.
pub(super) fn describe(file: impl AsFd) -> io::Result<Option<(Description, u64)>> {
    let fd = file.as_fd().as_raw_fd();
    let found = statx(fd, c"", libc::AT_EMPTY_PATH, 0)?;
    if !found.is_regular || found.links == 0 {
        return Ok(None);
    }
    let Ok(path) = own::link(fd) else {
        // Without a path nobody could find it again.
        return Ok(None);
    };
    let place = place(&path, fd);
    let path = root::whole(&path);
    let description = Description {
        path: path.as_os_str().as_bytes().to_vec(),
        handle: handle(fd, c"", libc::AT_EMPTY_PATH),
        identity: found.identity,
        place,
        since_ns: 0,
        owner: found.owner,
        is_fresh: false,
        is_removed: false,
    };
    Ok(Some((description, found.size)))
}

/// The mount of the file at `path`, which the descriptor `fd` is of: the highest directory above the file that is on the mount of the
/// lowest. Only directories are compared, as an overlay has files of several devices. `None` if this process may not look.
fn place(path: &Path, fd: libc::c_int) -> Option<Place> {
    let look_up = |path: &Path| {
        let text = CString::new(path.as_os_str().as_bytes()).ok()?;
        let found = statx(libc::AT_FDCWD, &text, libc::AT_SYMLINK_NOFOLLOW, 0).ok()?;
        Some(found)
    };
    let mut above = path.ancestors().skip(1);
    let mut mount = above.next()?;
    let mut root = look_up(mount)?;
    for directory in above {
        match look_up(directory) {
            Some(found) if found.mount == root.mount => (mount, root) = (directory, found),
            _ => break,
        }
    }
    let mount = root::whole(mount);
    Some(Place {
        mount_bytes: u16::try_from(mount.as_os_str().len()).ok()?,
        inode: root.identity.inode,
        born_ns: root.identity.born_ns,
        uuid: uuid(fd),
    })
}

/// The mount of a file that is described with this path now.
pub(super) fn place_of(file: impl AsFd) -> Option<Place> {
    let fd = file.as_fd().as_raw_fd();
    place(&own::link(fd).ok()?, fd)
}

/// UUID of a descriptor's file system (FS_IOC_GETFSUUID of linux/fs.h, Linux 6.9); [`NO_UUID`] if it does not tell.
fn uuid(fd: libc::c_int) -> [u8; 16] {
    const GET_UUID: libc::c_ulong = 0x8011_1500;
    // Bytes of the UUID, and the UUID.
    let mut answer = [0_u8; 17];
    // SAFETY: the kernel fills `answer`, which has the size that the request's number says.
    let result = unsafe { libc::ioctl(fd, GET_UUID as _, answer.as_mut_ptr()) };
    match (result, answer) {
        (0, [16, uuid @ ..]) => uuid,
        _ => NO_UUID,
    }
}

/// True if the described file's system is mounted where it was. `nearest` is the lowest directory of the file's path that is there.
pub(super) fn is_mounted(description: &Description, nearest: Option<&Found>) -> io::Result<bool> {
    let Some(place) = description.place else {
        return Ok(true);
    };
    let Some(mount) = mount_of(description) else {
        return Ok(false);
    };
    let Some(root) = look_up(&mount)? else {
        return Ok(false);
    };
    let present = Place {
        inode: root.identity.inode,
        born_ns: root.identity.born_ns,
        uuid: File::open(&mount).map_or(NO_UUID, |it| uuid(it.as_raw_fd())),
        ..place
    };
    // Another mount may hide that part of the file system now.
    let is_same_mount = nearest.is_some_and(|it| it.mount == root.mount);
    Ok(is_same_mount && place.is_same(&present))
}

/// The directory on which a described file's system was mounted.
pub(super) fn mount_of(description: &Description) -> Option<PathBuf> {
    let mount = description.place?.mount(&description.path)?;
    Some(PathBuf::from(OsStr::from_bytes(mount)))
}

/// The name that a descriptor's file has now.
pub(super) enum Name {
    Path(PathBuf),
    /// It was removed.
    None,
    /// It has one, but not that by which it was opened.
    Unknown,
}

pub(super) fn name(file: impl AsFd) -> Name {
    let fd = file.as_fd();
    match (links(fd), own::link(fd.as_raw_fd())) {
        (Ok(0), _) => Name::None,
        (Ok(_), Ok(path)) if path.is_absolute() && !path.as_os_str().as_bytes().ends_with(b" (deleted)") => {
            Name::Path(path)
        }
        _ => Name::Unknown,
    }
}

/// The file at a path, without following a link; `None` if there is none.
pub(super) fn look_up(path: &Path) -> io::Result<Option<Found>> {
    let text = CString::new(path.as_os_str().as_bytes())?;
    match statx(
        libc::AT_FDCWD,
        &text,
        libc::AT_SYMLINK_NOFOLLOW,
        libc::STATX_CTIME,
    ) {
        Ok(found) => Ok(Some(found)),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The file of a descriptor.
pub(super) fn look_at(file: impl AsFd) -> io::Result<Found> {
    statx(
        file.as_fd().as_raw_fd(),
        c"",
        libc::AT_EMPTY_PATH,
        libc::STATX_CTIME,
    )
}

/// A `file_handle` with room for the longest one (MAX_HANDLE_SZ).
#[repr(C)]
struct Handle {
    bytes: libc::c_uint,
    kind: libc::c_int,
    data: [u8; HANDLE_BYTES_MAX],
}

const HANDLE_BYTES_MAX: usize = 128;

/// The handle of a file, as [`Description`] has it; the arguments are those of name_to_handle_at(2).
fn handle(fd: libc::c_int, path: &CStr, flags: libc::c_int) -> Vec<u8> {
    let mut handle = Handle {
        bytes: HANDLE_BYTES_MAX as libc::c_uint,
        kind: 0,
        data: [0; HANDLE_BYTES_MAX],
    };
    let mut mount = 0;
    // SAFETY: the kernel fills as much of `handle` as that says it has room for.
    let result = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            fd,
            path.as_ptr(),
            &raw mut handle,
            &raw mut mount,
            flags,
        )
    };
    match handle.data.get(..handle.bytes as usize) {
        Some(data) if result == 0 => [&handle.kind.to_le_bytes(), data].concat(),
        _ => Vec::new(),
    }
}

/// The file of a handle, for writing, in the file system of `directory`.
///
/// # Errors
/// ESTALE if it is gone; EPERM if we may not use handles (root may); EINVAL without one.
pub(super) fn open_handle(directory: &File, handle: &[u8]) -> io::Result<File> {
    let (kind, bytes) = handle.split_first_chunk().ok_or(io::ErrorKind::InvalidInput)?;
    let mut handle = Handle {
        bytes: bytes.len() as libc::c_uint,
        kind: i32::from_le_bytes(*kind),
        data: [0; HANDLE_BYTES_MAX],
    };
    let data = handle
        .data
        .get_mut(..bytes.len())
        .ok_or(io::ErrorKind::InvalidInput)?;
    data.copy_from_slice(bytes);
    let flags = libc::O_RDWR | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    // SAFETY: the kernel reads as much of `handle` as that says it has.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_open_by_handle_at,
            directory.as_raw_fd(),
            &raw mut handle,
            flags,
        )
    };
    match fd {
        // SAFETY: new, and nobody else's.
        0.. => Ok(unsafe { File::from_raw_fd(fd as libc::c_int) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A sync looks at these.
pub(super) struct Status {
    pub size: u64,
    /// Names that the file has.
    pub links: u32,
    /// As of [`Found::owner`].
    pub owner: [u32; 3],
}

/// The status of the descriptor's file. Its times are not asked for: Linux gives a change after that a time of its own (multigrain
/// timestamps), and every file that changes next the same one, so that each inode is written anew. Where an area lies on ext4
/// without a journal that is one more write to the device with each sync.
pub(super) fn status(file: impl AsFd) -> io::Result<Status> {
    let rights = libc::STATX_TYPE | libc::STATX_MODE | libc::STATX_UID | libc::STATX_GID;
    let mask = libc::STATX_SIZE | libc::STATX_NLINK | rights;
    let data = ask(file.as_fd().as_raw_fd(), c"", libc::AT_EMPTY_PATH, mask)?;
    Ok(Status {
        size: data.stx_size,
        links: data.stx_nlink,
        owner: owner(&data),
    })
}

/// Bytes of the descriptor's file.
pub(super) fn size(file: impl AsFd) -> io::Result<u64> {
    Ok(status(file)?.size)
}

/// Mode, user and group.
fn owner(data: &libc::statx) -> [u32; 3] {
    [u32::from(data.stx_mode), data.stx_uid, data.stx_gid]
}

/// When the descriptor's file changed last (ctime, ns since 1970); 0 if nobody tells. The next change gets a time of its own: as of
/// [`status`].
pub(super) fn changed_ns(file: impl AsFd) -> u64 {
    let found = ask(
        file.as_fd().as_raw_fd(),
        c"",
        libc::AT_EMPTY_PATH,
        libc::STATX_CTIME,
    );
    found.map_or(0, |it| ns(it.stx_ctime))
}

/// The inode of the descriptor's file.
pub(super) fn inode(file: impl AsFd) -> io::Result<u64> {
    let fd = file.as_fd().as_raw_fd();
    Ok(ask(fd, c"", libc::AT_EMPTY_PATH, libc::STATX_INO)?.stx_ino)
}

/// Names that the descriptor's file has.
pub(super) fn links(file: impl AsFd) -> io::Result<u32> {
    Ok(status(file)?.links)
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

/// `times` says which times to ask for: none of a followed file while its program runs.
fn statx(fd: libc::c_int, path: &CStr, flags: libc::c_int, times: libc::c_uint) -> io::Result<Found> {
    // The unique number is Linux 6.8's; before, a number may be given to another mount after an unmount, which writes everything
    // back.
    let mount = libc::STATX_MNT_ID | libc::STATX_MNT_ID_UNIQUE;
    let file = libc::STATX_TYPE | libc::STATX_MODE | libc::STATX_NLINK | libc::STATX_UID | libc::STATX_GID;
    let place = libc::STATX_INO | libc::STATX_SIZE | libc::STATX_BTIME;
    let data = ask(fd, path, flags, file | place | mount | times)?;
    let boot = boot()?;
    let device = [data.stx_dev_major, data.stx_dev_minor];
    let numbers = device.map(u32::to_le_bytes).concat();
    let mount = hash(boot, &[&data.stx_mnt_id.to_le_bytes(), &numbers]);
    let has_birth = data.stx_mask & libc::STATX_BTIME != 0;
    Ok(Found {
        identity: Identity {
            inode: data.stx_ino,
            born_ns: match has_birth {
                true => ns(data.stx_btime),
                false => generation(fd, path, flags),
            },
            cache: mounting(device).map_or(mount, |it| {
                hash(boot, &[b"mounting", &it.to_le_bytes(), &numbers])
            }),
            device: hash(boot, &[&numbers]),
        },
        owner: owner(&data),
        size: data.stx_size,
        is_regular: u32::from(data.stx_mode) & libc::S_IFMT == libc::S_IFREG,
        links: data.stx_nlink,
        changed_ns: if times != 0 { ns(data.stx_ctime) } else { 0 },
        mount,
    })
}

/// Number of the time that the device's file system is mounted: the inode of its directory in sysfs, which is made anew each time. All mounts
/// of the file system have this one number, in all namespaces, and one page cache. `None` if it has no such directory.
fn mounting([major, minor]: [u32; 2]) -> Option<u64> {
    // Systems that are on no device alone, as btrfs, have this number.
    if major == 0 {
        return None;
    }
    let sys = own::sys()?;
    let link = readlinkat(sys, format!("dev/block/{major}:{minor}"), Vec::new()).ok()?;
    let name = link.to_str().ok()?.rsplit('/').next()?;
    let look = |kind| statat(sys, format!("fs/{kind}/{name}"), AtFlags::empty()).ok();
    Some(["ext4", "xfs", "f2fs"].into_iter().find_map(look)?.st_ino)
}

/// A number that tells a file from others that had its inode before, if its file system tells no births. It is a hash of the file's handle,
/// which has the inode's generation. As a time it is in the first second of 1970, before every change of a file. 0 without a handle.
fn generation(fd: libc::c_int, path: &CStr, flags: libc::c_int) -> u64 {
    // By default name_to_handle_at follows no link, and statx does.
    let follows = flags & (libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH) == 0;
    let flags = flags & libc::AT_EMPTY_PATH | if follows { libc::AT_SYMLINK_FOLLOW } else { 0 };
    match handle(fd, path, flags) {
        handle if handle.is_empty() => 0,
        handle => hash(HASH_BASIS, &[&handle]) % 999_999_999 + 1,
    }
}

/// [`hash`] of the boot. It is read once, as another root may lack it.
fn boot() -> io::Result<u64> {
    static BOOT: AtomicU64 = AtomicU64::new(0);
    let known = BOOT.load(Ordering::Relaxed);
    if known != 0 {
        return Ok(known);
    }
    let hash = hash(HASH_BASIS, &[&std::fs::read(BOOT_ID)?]);
    BOOT.store(hash, Ordering::Relaxed);
    Ok(hash)
}

/// Reads what another root may lack.
pub fn prepare() {
    let _ = (own::proc(), own::sys(), boot());
}

/// FNV-1a.
const HASH_BASIS: u64 = 0xcbf2_9ce4_8422_2325;

fn hash(begun: u64, parts: &[&[u8]]) -> u64 {
    let bytes = parts.iter().flat_map(|part| part.iter());
    bytes.fold(begun, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

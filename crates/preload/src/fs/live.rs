//! The process's session with the daemon: begun when the process first changes something below the mount point, or has looked often.

use super::real_inode::inode_of;
use super::table::{self, Opened, Table};
use super::{children, usual};
use crate::forks::Gate;
use crate::state::{IS_INSIDE, inside, inside_unmasked, is_sealed};
use crate::{signals, tell};
use area::own;
use libc::c_int;
use libfs::{ConnectError, FileSystem};
use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::{io, mem, ptr};

/// A process that looks so often gets a session. One that looks less is better served by what the kernel has in memory.
const LOOKS_MAX: u32 = 64;
/// Nobody has looked where the working directory is.
pub(crate) const UNKNOWN: u64 = u64::MAX;

/// Held while a number is made for something served, and over a fork.
pub(crate) static NUMBERS: Gate = Gate::new();

/// Where the files are, as `switchyard run --fs` says it.
pub(crate) struct Mount {
    /// Absolute, without links, and without a slash at the end.
    pub point: Vec<u8>,
    /// `st_dev`.
    pub device: u64,
    control: PathBuf,
}

impl Mount {
    fn read() -> Option<Self> {
        let point = std::env::var_os("SWITCHYARD_FS")
            .filter(|_| !usual::is_go())?
            .into_vec();
        let control = std::env::var_os("SWITCHYARD_FS_CONTROL")?.into();
        let device = std::env::var("SWITCHYARD_FS_DEVICE").ok()?.parse().ok()?;
        (point.len() > 1 && point[0] == b'/').then_some(Self {
            point,
            device,
            control,
        })
    }
}

/// A session. It is never taken apart, as other threads may be in it.
pub(crate) struct Live {
    pub files: FileSystem,
    pub mount: &'static Mount,
    pub table: Table,
    /// The mount's number in statx(2).
    pub mount_id: u64,
    /// The working directory, if it is below the mount point: 0 if it is not, and [`UNKNOWN`].
    pub directory: AtomicU64,
    /// Real and effective user and group are the same.
    pub is_plain_user: bool,
    /// No handler of the program runs in a thread that is in the library, whatever is blocked.
    pub are_handlers_replaced: bool,
    pid: u32,
}

static MOUNT: OnceLock<Option<Mount>> = OnceLock::new();
static LIVE: AtomicPtr<Live> = AtomicPtr::new(ptr::null_mut());
static LOOKS: AtomicU32 = AtomicU32::new(0);
/// Nothing is served any more in this process.
static IS_OVER: AtomicBool = AtomicBool::new(false);

fn mount() -> Option<&'static Mount> {
    MOUNT.get_or_init(|| inside(Mount::read)).as_ref()
}

/// The mount, if calls of this thread may be served.
pub(crate) fn is_served() -> Option<&'static Mount> {
    if IS_OVER.load(Ordering::Relaxed) || IS_INSIDE.get() || is_sealed() {
        return None;
    }
    mount()
}

/// True in a program of `run --fs`, whether it is served or not.
pub(crate) fn is_run() -> bool {
    mount().is_some()
}

/// True in a program of `run --fs` that is served.
pub(crate) fn is_on() -> bool {
    is_served().is_some()
}

/// When a program starts: where lines to the user go.
extern "C" fn at_start() {
    if mount().is_some() {
        tell::begin();
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = at_start;

/// The session, if this process has one. A child of vfork has its parent's memory, and none.
pub(crate) fn live() -> Option<&'static Live> {
    let live = LIVE.load(Ordering::Acquire);
    if live.is_null() || IS_INSIDE.get() || is_sealed() {
        return None;
    }
    // SAFETY: it is never taken apart.
    let live = unsafe { &*live };
    children::is_process(live.pid).then_some(live)
}

/// True if this process has one.
pub(crate) fn has_session() -> bool {
    let live = LIVE.load(Ordering::Acquire);
    // SAFETY: it is never taken apart.
    !live.is_null() && children::is_process(unsafe { (*live).pid })
}

/// The session for a call, which `changes` something or looks. It is begun if it is time, after `watch`.
pub(crate) fn wanted(changes: bool, watch: impl FnOnce()) -> Option<&'static Live> {
    is_served()?;
    if !LIVE.load(Ordering::Acquire).is_null() {
        return live();
    }
    if !changes && LOOKS.fetch_add(1, Ordering::Relaxed) < LOOKS_MAX {
        return None;
    }
    watch();
    inside(|| NUMBERS.without(begin));
    live()
}

fn begin() {
    let is_needed = LIVE.load(Ordering::Acquire).is_null() && !IS_OVER.load(Ordering::Relaxed);
    let Some(mount) = mount().filter(|_| is_needed) else {
        return;
    };
    match Live::begin(mount) {
        Ok(Some(live)) => LIVE.store(Box::into_raw(Box::new(live)), Ordering::Release),
        Ok(None) => IS_OVER.store(true, Ordering::Relaxed),
        Err(error) => {
            IS_OVER.store(true, Ordering::Relaxed);
            // The socket's mode says who may connect, and the daemon how many: others use the mount.
            let is_usual = match &error {
                ConnectError::Socket(error) => error.kind() == io::ErrorKind::PermissionDenied,
                ConnectError::Closed(_) => true,
                ConnectError::Malformed => false,
            };
            if !is_usual {
                tell::tell!("switchyard run: {error}: this program's calls go to the mount");
            }
        }
    }
}

impl Live {
    /// Makes a call of the session's.
    pub fn inside<R>(&self, make: impl FnOnce() -> R) -> R {
        match self.are_handlers_replaced {
            true => inside_unmasked(make),
            false => inside(make),
        }
    }

    /// Calls from a directory that the kernel has opened are served, if it is this one.
    pub fn note_directory(&self, inode: u64, fd: c_int) {
        if inode_of(fd) == Some((self.mount.device, inode)) {
            let opened = Opened::real_directory(inode);
            let _ = self.table.adopt(&NUMBERS, &opened, || fd);
        }
    }

    /// None if the kernel is to serve this process.
    fn begin(mount: &'static Mount) -> Result<Option<Self>, ConnectError> {
        let Some(umask) = usual::umask() else {
            return Ok(None);
        };
        let point = CString::new(mount.point.clone()).map_err(io::Error::from)?;
        let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
        // SAFETY: the path ends with a zero.
        let anchor = owned(unsafe { libc::open(point.as_ptr(), flags) })?;
        let found = stat_of(anchor.as_raw_fd())?;
        if found.0 != mount.device {
            return Ok(None);
        }
        let anchor = own::keep(&anchor)?;
        let files = FileSystem::over(own::keep(&FileSystem::dial(&mount.control)?)?)?;
        files.set_mounted();
        files.set_umask(umask);
        // SAFETY: no memory is involved.
        let (users, groups) = unsafe {
            (
                (libc::getuid(), libc::geteuid()),
                (libc::getgid(), libc::getegid()),
            )
        };
        Ok(Some(Self {
            table: Table::new(files.clone(), mount.device, anchor),
            files,
            mount,
            mount_id: found.1,
            directory: AtomicU64::new(UNKNOWN),
            is_plain_user: users.0 == users.1 && groups.0 == groups.1,
            are_handlers_replaced: signals::are_replaced(),
            pid: std::process::id(),
        }))
    }

    /// The daemon has closed the session, or is gone: true if so. The user hears of it once.
    pub fn is_lost(&self) -> bool {
        if !self.files.is_closed() {
            return false;
        }
        if !IS_OVER.swap(true, Ordering::Relaxed) {
            tell::tell!(
                "switchyard run: the daemon has ended this program's log, or is gone: its calls go to the mount"
            );
        }
        true
    }
}

fn owned(fd: c_int) -> io::Result<OwnedFd> {
    match fd {
        // SAFETY: new, and nobody else's.
        0.. => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Device, and the mount's number.
fn stat_of(fd: c_int) -> io::Result<(u64, u64)> {
    // SAFETY: zeros are a valid `statx`, which the call fills.
    unsafe {
        let mut found: libc::statx = mem::zeroed();
        let mask = libc::STATX_BASIC_STATS | libc::STATX_MNT_ID;
        match libc::statx(fd, c"".as_ptr(), libc::AT_EMPTY_PATH, mask, &mut found) {
            0 => Ok((
                libc::makedev(found.stx_dev_major, found.stx_dev_minor),
                found.stx_mnt_id,
            )),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// In a forked child: it has no session yet.
pub(crate) fn forget() {
    if !LIVE.swap(ptr::null_mut(), Ordering::Relaxed).is_null() {
        table::forget_all();
        LOOKS.store(0, Ordering::Relaxed);
    }
}

/// Nothing is served any more, for good or until the next call.
pub(crate) fn close(is_for_good: bool) {
    if is_for_good {
        IS_OVER.store(true, Ordering::Relaxed);
    }
    let Some(live) = live() else {
        return;
    };
    inside(|| {
        NUMBERS.without(|| {
            live.table.leave_all(|_| true);
            LIVE.store(ptr::null_mut(), Ordering::Release);
            table::forget_all();
            live.files.close();
        });
    });
}

//! Our descriptors of a followed file, and syncs by them.

use super::{identity, root};
use crate::own::{self, Own};
use crate::sync::{Arc, Mutex};
use rustix::fs::{Mode, OFlags};
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::path::{Path, PathBuf};

/// A followed file, as long as the area or the program has something of it.
pub(super) struct Opened {
    /// Held while the file changes, from before the change until it is logged, and while the file system makes it durable for good.
    /// Of several files it is taken in the order of their numbers.
    pub changing: Mutex<()>,
    own: Own,
    /// A duplicate keeps what belongs to the program's opening, as its flock(2): it must not outlive that.
    pub is_duplicate: bool,
}

impl Opened {
    /// Opens the descriptor's file once more, for reading if that is allowed: a program cannot be started while somebody has its file
    /// open for writing. If it cannot be opened, a duplicate has to do.
    pub fn new(fd: RawFd) -> io::Result<Self> {
        let open = |access| own::reopen(fd, access | OFlags::NONBLOCK);
        let own = open(OFlags::RDONLY).or_else(|_| open(OFlags::WRONLY));
        let is_duplicate = own.is_err();
        let own = match own {
            Ok(own) => own,
            Err(_) => Own::new(own::duplicate(fd)?),
        };
        Ok(Self {
            changing: Mutex::new(()),
            own,
            is_duplicate,
        })
    }
}

impl AsFd for Opened {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.own.as_fd()
    }
}

/// Another descriptor of the file for writing, without flags.
pub(super) fn open_plain(fd: RawFd) -> Option<Own> {
    own::reopen(fd, OFlags::WRONLY).ok()
}

pub(super) fn sync_file(file: impl AsFd) -> io::Result<()> {
    Ok(rustix::fs::fsync(file)?)
}

/// Syncs the directory. If this process may not open it, or does not find it, the whole file system is synced: that of `file`, which
/// was in the directory.
pub(super) fn sync_directory(path: &Path, file: Option<BorrowedFd<'_>>) -> io::Result<()> {
    match File::open(path) {
        Ok(directory) => return directory.sync_all(),
        // It was removed with all that was in it.
        Err(error)
            if error.kind() == io::ErrorKind::NotFound
                && !root::is_another()
                && file.is_none_or(|file| identity::links(file).unwrap_or(1) == 0) =>
        {
            return Ok(());
        }
        Err(_) => {}
    }
    match file {
        Some(file) => rustix::fs::syncfs(file)?,
        None => rustix::fs::sync(),
    }
    Ok(())
}

/// A descriptor of the directory; `None` if this process may not read it.
pub(super) fn open_directory(path: &Path) -> Option<Arc<Own>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let low = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    let own = own::duplicate(low.as_raw_fd()).ok()?;
    Some(Arc::new(Own::new(own)))
}

/// Work of the file system that makes a file durable: its own sync, and that of the directory of its name.
pub(super) struct Syncing {
    pub file: Option<Arc<Opened>>,
    /// Its path, and our descriptor if there is one.
    pub directory: Option<(PathBuf, Option<Arc<Own>>)>,
}

impl Syncing {
    /// When the file had changed last before (ctime); 0: nobody knows.
    pub fn run(&self) -> io::Result<u64> {
        let file = self.file.as_deref();
        let since_ns = file.map_or(0, identity::changed_ns);
        file.map_or(Ok(()), sync_file)?;
        match &self.directory {
            Some((_, Some(own))) => sync_file(&**own)?,
            Some((path, None)) => sync_directory(path, file.map(AsFd::as_fd))?,
            None => {}
        }
        Ok(since_ns)
    }
}

/// A directory of this age is durable: file systems write new ones back within seconds, or minutes if they are told so.
const OLD_NS: u64 = 3600 * 1_000_000_000;

/// Makes the directories above a new file durable that may not be: else a crash takes the file away with them. Those in `durable`
/// (device's hash and inode) are.
pub(super) fn keep_directories(
    path: &Path,
    file: BorrowedFd<'_>,
    durable: &mut BTreeSet<(u64, u64)>,
) -> io::Result<()> {
    let now = identity::clock_ns();
    for directory in path.ancestors().skip(1) {
        let Ok(Some(found)) = identity::look_up(directory) else {
            return Ok(rustix::fs::syncfs(file)?);
        };
        let (born_ns, key) = (
            found.identity.born_ns,
            (found.identity.cache, found.identity.inode),
        );
        let is_old = born_ns != 0 && born_ns.saturating_add(OLD_NS) < now;
        let Some(parent) = directory.parent().filter(|_| !is_old && !durable.contains(&key)) else {
            return Ok(());
        };
        sync_directory(parent, Some(file))?;
        durable.insert(key);
    }
    Ok(())
}

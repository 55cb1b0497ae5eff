//! Whose rights recovery has. An area says which files to write, and whoever may write the area may say anything. So root brings a user's
//! area back with that user's rights.

use crate::area::Area;
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::os::unix::fs::MetadataExt;

/// This thread has another user's rights on files until this is dropped.
pub(super) struct Rights {
    groups: Vec<libc::gid_t>,
    group: libc::gid_t,
    /// The other user.
    pub user: libc::uid_t,
}

impl Rights {
    /// Takes the rights of the area's owner, if this is root and that is somebody else.
    ///
    /// # Errors
    /// The area cannot be looked at, or the system refuses.
    pub fn of(area: &Area) -> io::Result<Option<Self>> {
        // SAFETY: it takes nothing.
        let (Some(fd), 0) = (area.descriptor(), unsafe { libc::geteuid() }) else {
            return Ok(None);
        };
        // SAFETY: the area has the descriptor during the call, and it is not closed here.
        let file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
        let found = file.metadata()?;
        if found.uid() == 0 || !found.is_file() {
            return Ok(None);
        }
        let rights = Self {
            groups: groups()?,
            // SAFETY: it takes nothing.
            group: unsafe { libc::getegid() },
            user: found.uid(),
        };
        take(&[found.gid()], found.gid(), found.uid())?;
        Ok(Some(rights))
    }
}

impl Drop for Rights {
    fn drop(&mut self) {
        // A thread that cannot get its own rights back must not go on with another's.
        take(&self.groups, self.group, 0).expect("root gets its rights back");
    }
}

/// Groups that this process has beside its own.
fn groups() -> io::Result<Vec<libc::gid_t>> {
    // SAFETY: nothing is written without room.
    let count = unsafe { libc::getgroups(0, std::ptr::null_mut()) };
    let mut groups = vec![0; usize::try_from(count).map_err(|_| io::Error::last_os_error())?];
    // SAFETY: room for so many.
    let count = unsafe { libc::getgroups(groups.len() as libc::c_int, groups.as_mut_ptr()) };
    groups.truncate(usize::try_from(count).map_err(|_| io::Error::last_os_error())?);
    Ok(groups)
}

/// The rights on files of this thread alone: the C library's `setgroups` would change all threads'.
fn take(groups: &[libc::gid_t], group: libc::gid_t, user: libc::uid_t) -> io::Result<()> {
    let set_user = || {
        // SAFETY: no memory is involved. The second call tells what the first one has done.
        let is_set = unsafe {
            libc::setfsgid(group);
            libc::setfsuid(user);
            libc::setfsuid(libc::uid_t::MAX) as libc::uid_t == user
        };
        is_set.then_some(()).ok_or(io::ErrorKind::PermissionDenied)
    };
    // SAFETY: so many groups are there.
    let set_groups = || match unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    set_groups()?;
    Ok(set_user()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::area::AreaOptions;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown};

    /// Bug: an area of a user, recovered by root, made files of root with any mode, and changed any file. Fix: recovery has the rights of
    /// the area's owner.
    #[test]
    fn root_recovers_a_users_area_with_the_users_rights() {
        // SAFETY: it takes nothing.
        if unsafe { libc::geteuid() } != 0 {
            return;
        }
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("area");
        let private = directory.path().join("private");
        fs::write(&private, b"root's").expect("a file");
        fs::set_permissions(&private, fs::Permissions::from_mode(0o600)).expect("ours");
        let area = Area::open(&path, &AreaOptions::new(16 << 20)).expect("a new area");
        assert!(Rights::of(&area).expect("looked at").is_none(), "it is root's");
        chown(&path, Some(65534), Some(65534)).expect("root may");
        let before = groups().expect("told");
        let rights = Rights::of(&area).expect("root may").expect("it is another's");
        assert!(fs::read(&private).is_err());
        assert!(File::create(directory.path().join("new")).is_err());
        drop(rights);
        assert_eq!(fs::read(&private).expect("root again"), b"root's");
        assert_eq!(groups().expect("told"), before);
    }
}

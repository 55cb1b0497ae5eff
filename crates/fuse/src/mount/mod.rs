//! Mounting and unmounting: by mount(2) as root, else by `fusermount3` of libfuse, which is set-user-ID root.

mod abort;
mod error;
mod helper;
mod table;

pub use abort::abort;
pub use error::{MountError, UnmountError};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// How a file system is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// What `df` shows as the file system: no comma and no control character.
    pub source: String,
    /// The type is `fuse.SUBTYPE`: letters, digits and `-` only.
    pub subtype: String,
    /// Other users than the one who mounts may use it. By `fusermount3` only with `user_allow_other` in `/etc/fuse.conf`.
    pub allow_other: bool,
    /// The kernel checks permissions by the attributes that it is told.
    pub default_permissions: bool,
    /// No changes.
    pub read_only: bool,
    /// Set-user-ID bits and devices count for nothing. `fusermount3` always does this.
    pub no_suid_no_dev: bool,
    /// The largest READ in bytes; `None`: as large as the largest write.
    pub read_bytes_max: Option<u32>,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            source: "switchyard".into(),
            subtype: "switchyard".into(),
            allow_other: false,
            default_permissions: true,
            read_only: false,
            no_suid_no_dev: true,
            read_bytes_max: None,
        }
    }
}

/// A mount. It is unmounted when this is dropped: lazily if programs still use it.
///
/// Drop the mount before its session, and not in a thread of the session's handler: unmounting waits for requests.
#[derive(Debug)]
pub struct Mount {
    place: PathBuf,
    /// What the table of mounts says of it: another mount at the same place is not ours. `None` without `/proc`.
    entry: Option<table::Entry>,
    by_helper: bool,
    is_unmounted: bool,
}

/// Mounts on `place`, a directory. The descriptor is the connection, for [`Session::start`](crate::transport::Session::start);
/// calls on the mount wait until it is served.
///
/// # Errors
/// [`MountError`].
pub fn mount(place: &Path, options: &MountOptions) -> Result<(Mount, OwnedFd), MountError> {
    options.check()?;
    let kind = kind_of(place)?;
    // The table of mounts has absolute paths without links.
    let place = &place.canonicalize().map_err(|source| MountError::Place {
        place: place.into(),
        source,
    })?;
    let (device, by_helper) = match rustix::process::geteuid().is_root() {
        true => (mount_as_root(place, options, kind)?, false),
        false => (helper::mount(place, &options.for_helper())?, true),
    };
    let mount = Mount {
        entry: table::entry_of(place),
        place: place.clone(),
        by_helper,
        is_unmounted: false,
    };
    Ok((mount, device))
}

/// The kind of file of a mount point, as in `st_mode`.
fn kind_of(place: &Path) -> Result<u32, MountError> {
    // The kernel may have attributes of a mount whose server is gone: it is to ask.
    let flags = AtFlags::STATX_FORCE_SYNC;
    match rustix::fs::statx(CWD, place, flags, StatxFlags::TYPE) {
        Ok(stat) => Ok(u32::from(stat.stx_mode) & 0o170_000),
        // What a mount without a server answers.
        Err(Errno::NOTCONN | Errno::CONNABORTED) => Err(MountError::Dead { place: place.into() }),
        Err(errno) => Err(MountError::Place {
            place: place.into(),
            source: errno.into(),
        }),
    }
}

fn mount_as_root(place: &Path, options: &MountOptions, kind: u32) -> Result<OwnedFd, MountError> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let device = rustix::fs::open("/dev/fuse", flags, Mode::empty())
        .map_err(|errno| MountError::Device(errno.into()))?;
    let data = options.for_kernel(device.as_raw_fd(), kind);
    let data = CString::new(data).expect("options were checked for control characters");
    let fs_type = format!("fuse.{}", options.subtype);
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::NOSUID | MountFlags::NODEV, options.no_suid_no_dev);
    flags.set(MountFlags::RDONLY, options.read_only);
    let mounted = rustix::mount::mount(&*options.source, place, &*fs_type, flags, &*data);
    mounted.map_err(|errno| MountError::Refused {
        place: place.into(),
        source: errno.into(),
    })?;
    Ok(device)
}

impl MountOptions {
    fn check(&self) -> Result<(), MountError> {
        let is_plain = |c: char| c != ',' && c != '\\' && !c.is_control();
        if self.source.is_empty() || !self.source.chars().all(is_plain) {
            return Err(MountError::Option("source"));
        }
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if self.subtype.is_empty() || !self.subtype.chars().all(is_word) {
            return Err(MountError::Option("subtype"));
        }
        Ok(())
    }

    /// Options that kernel and helper share.
    fn common(&self) -> String {
        let mut text = String::new();
        if self.allow_other {
            text.push_str(",allow_other");
        }
        if self.default_permissions {
            text.push_str(",default_permissions");
        }
        if let Some(bytes) = self.read_bytes_max {
            text.push_str(&format!(",max_read={bytes}"));
        }
        text
    }

    /// The data of mount(2) (mount.fuse3(8)).
    fn for_kernel(&self, device: i32, kind: u32) -> String {
        let user = rustix::process::getuid().as_raw();
        let group = rustix::process::getgid().as_raw();
        let common = self.common();
        format!("fd={device},rootmode={kind:o},user_id={user},group_id={group}{common}")
    }

    /// `-o` of `fusermount3`.
    fn for_helper(&self) -> String {
        let access = if self.read_only { "ro" } else { "rw" };
        let (source, subtype, common) = (&self.source, &self.subtype, self.common());
        format!("{access},nosuid,nodev,fsname={source},subtype={subtype}{common}")
    }
}

impl Mount {
    /// Where it is.
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// The number of its connection, for [`abort`]; none without `/proc`.
    pub fn connection(&self) -> Option<u32> {
        self.entry.as_ref().and_then(table::Entry::connection)
    }

    /// Whether it is there: somebody else may have unmounted it.
    pub fn is_there(&self) -> bool {
        !self.is_unmounted && (self.entry.is_none() || table::entry_of(&self.place) == self.entry)
    }

    /// Unmounts. If somebody else has, that is as good. After an error the mount is still there.
    ///
    /// # Errors
    /// [`UnmountError`].
    pub fn unmount(&mut self) -> Result<(), UnmountError> {
        self.try_unmount(false)
    }

    /// Takes the mount away from its place. Programs that use it may go on, and the session is over when the last has ended.
    ///
    /// # Errors
    /// [`UnmountError::Refused`].
    pub fn unmount_lazily(&mut self) -> Result<(), UnmountError> {
        self.try_unmount(true)
    }

    fn try_unmount(&mut self, is_lazy: bool) -> Result<(), UnmountError> {
        if !self.is_there() {
            return Ok(());
        }
        if self.by_helper {
            helper::unmount(&self.place, is_lazy)?;
        } else {
            let mut flags = UnmountFlags::NOFOLLOW;
            flags.set(UnmountFlags::DETACH, is_lazy);
            match rustix::mount::unmount(&self.place, flags) {
                Ok(()) => {}
                Err(Errno::BUSY) => return Err(UnmountError::Busy(self.place.clone())),
                Err(errno) => return Err(UnmountError::Refused(self.place.clone(), errno.into())),
            }
        }
        self.is_unmounted = true;
        Ok(())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.try_unmount(false).is_err() {
            // What is left then is for the operator: nobody can be told here.
            let _ = self.try_unmount(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_written_as_the_kernel_and_the_helper_read_them() {
        let options = MountOptions {
            source: "a b".into(),
            allow_other: true,
            read_only: true,
            read_bytes_max: Some(4096),
            ..MountOptions::default()
        };
        let kernel = options.for_kernel(7, 0o040_000);
        assert!(kernel.starts_with("fd=7,rootmode=40000,user_id="), "{kernel}");
        assert!(
            kernel.ends_with(",allow_other,default_permissions,max_read=4096"),
            "{kernel}"
        );
        assert_eq!(
            options.for_helper(),
            "ro,nosuid,nodev,fsname=a b,subtype=switchyard,allow_other,default_permissions,max_read=4096"
        );
    }

    #[test]
    fn options_that_would_become_others_are_refused() {
        for (source, subtype) in [
            ("a,allow_other", "s"),
            ("", "s"),
            ("a\n", "s"),
            ("a\\", "s"),
            ("a", "s,dev"),
            ("a", ""),
            ("a", "s/x"),
        ] {
            let options = MountOptions {
                source: source.into(),
                subtype: subtype.into(),
                ..MountOptions::default()
            };
            assert!(
                matches!(options.check(), Err(MountError::Option(_))),
                "{source:?} {subtype:?}"
            );
        }
    }

    #[test]
    fn errors_name_the_place_and_the_remedy() {
        let missing = mount(Path::new("/nonexistent/place"), &MountOptions::default());
        let text = missing.expect_err("there is no such directory").to_string();
        assert!(
            text.contains("/nonexistent/place") && text.contains("directory that exists"),
            "{text}"
        );
        let dead = MountError::Dead {
            place: "/mnt/x".into(),
        };
        assert!(dead.to_string().ends_with("`umount -l /mnt/x`"), "{dead}");
        let busy = UnmountError::Busy("/mnt/x".into());
        assert!(busy.to_string().contains("`fuser -m /mnt/x`"), "{busy}");
    }
}

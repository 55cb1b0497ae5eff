//! A directory that nothing leaves: files in it are made by the names of their paths, one after the other, and no link is
//! followed. Paths of areas come from whoever wrote the area.

use rustix::fs::{AtFlags, Mode, OFlags, mkdirat, openat, unlinkat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path};

/// Rights of a new directory and file: those of their owner.
const DIRECTORY: Mode = Mode::RWXU;
const FILE: Mode = Mode::RUSR.union(Mode::WUSR);

/// The directory.
pub(crate) struct Beneath(OwnedFd);

impl Beneath {
    /// Opens the directory, which is made if it is missing.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(path)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open(path, flags, Mode::empty())?))
    }

    /// Makes a new file at `path` below the directory, with the directories on its way. A file that has this name
    /// loses it; other names of that file keep what they had.
    ///
    /// # Errors
    /// When the path leaves the directory, or a link or a file is on its way.
    pub(crate) fn create(&self, path: &Path) -> io::Result<File> {
        let (directory, name) = self.walk(path)?;
        remove(&directory, name)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&directory, name, flags, FILE)?.into())
    }

    /// Removes the file at `path` below the directory, if there is one.
    ///
    /// # Errors
    /// As of [`Beneath::create`].
    pub(crate) fn remove(&self, path: &Path) -> io::Result<()> {
        let (directory, name) = self.walk(path)?;
        remove(&directory, name)
    }

    /// The directory of a path, which is made if it is missing, and the name in it.
    fn walk<'a>(&self, path: &'a Path) -> io::Result<(OwnedFd, &'a OsStr)> {
        let mut names = Vec::new();
        for component in path.components() {
            match component {
                Component::Normal(name) => names.push(name),
                Component::RootDir | Component::CurDir => {}
                Component::ParentDir | Component::Prefix(_) => return Err(leaves()),
            }
        }
        let name = names.pop().ok_or_else(leaves)?;
        let mut directory = self.0.try_clone()?;
        for name in names {
            match mkdirat(&directory, name, DIRECTORY) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            directory = openat(&directory, name, flags, Mode::empty())?;
        }
        Ok((directory, name))
    }
}

fn remove(directory: &OwnedFd, name: &OsStr) -> io::Result<()> {
    match unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn leaves() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the path leads out of the directory")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_path_stays_in_the_directory() {
        let outside = tempfile::tempdir().expect("a temporary directory");
        let inside = outside.path().join("inside");
        let beneath = Beneath::open(&inside).expect("a new directory");
        let mut file = beneath.create(Path::new("/a/./b/c")).expect("it is inside");
        file.write_all(b"c").expect("room");
        let mode = inside
            .join("a/b/c")
            .metadata()
            .expect("it is there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        for path in ["../victim", "a/../../victim", "/..", "/", ""] {
            assert!(beneath.create(Path::new(path)).is_err(), "{path}");
        }
        fs::write(outside.path().join("victim"), "kept").expect("room");
        symlink(outside.path(), inside.join("link")).expect("a link");
        assert!(beneath.create(Path::new("link/victim")).is_err());
        symlink(outside.path().join("victim"), inside.join("a/victim")).expect("a link");
        fs::hard_link(outside.path().join("victim"), inside.join("a/other")).expect("a link");
        for name in ["a/victim", "a/other"] {
            let mut file = beneath
                .create(Path::new(name))
                .expect("the link itself is replaced");
            file.write_all(b"new").expect("room");
        }
        let victim = fs::read(outside.path().join("victim")).expect("it is there");
        assert_eq!(victim, b"kept");
    }
}

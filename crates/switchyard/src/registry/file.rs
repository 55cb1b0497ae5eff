//! The embedded registry: one file, replaced as a whole.
//!
//! Invariant: the file is always a whole one, old or new (temporary file, fsync, rename, fsync of the directory). It
//! assumes that rename is atomic and that `registry.lock` keeps other processes out while one changes it: gateways may
//! share a registry.

use super::format::{emit, parse};
use crate::datadir::write_durably;
use rack::registry::{Registry, RegistryError, Snapshot};
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// The file's name in a rack's directory.
pub const FILE_NAME: &str = "registry.json";

/// A registry in a file.
#[derive(Debug)]
pub struct FileRegistry {
    path: PathBuf,
}

impl FileRegistry {
    /// The registry of a rack's directory; an empty one is made if there is none. One of an earlier program, without the
    /// rack's id, gets it.
    pub fn open(dir: &Path) -> Result<Self, RegistryError> {
        let registry = Self {
            path: dir.join(FILE_NAME),
        };
        let _lock = registry.lock()?;
        let stored = match registry.path.exists() {
            true => registry.load()?,
            false => Snapshot::default(),
        };
        if stored.rack.is_nil() {
            registry.replace(&Snapshot {
                rack: Uuid::new_v4(),
                ..stored
            })?;
        }
        Ok(registry)
    }

    /// Puts records in the place of those that this directory has, damaged ones too.
    pub fn restore<E: From<RegistryError>>(
        dir: &Path,
        next: impl FnOnce(Option<Snapshot>) -> Result<Snapshot, E>,
    ) -> Result<(), E> {
        let registry = Self {
            path: dir.join(FILE_NAME),
        };
        let _lock = registry.lock()?;
        let snapshot = next(registry.load().ok())?;
        Ok(registry.replace(&snapshot)?)
    }

    fn replace(&self, snapshot: &Snapshot) -> Result<(), RegistryError> {
        write_durably(&self.path, &emit(snapshot)).map_err(|error| self.fail_io(&error))
    }

    /// Keeps other processes from storing until the file is closed.
    fn lock(&self) -> Result<File, RegistryError> {
        let path = self.path.with_extension("lock");
        let mut options = File::options();
        let file = options.write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|error| self.fail_io(&error))?;
        file.lock().map_err(|error| self.fail_io(&error))?;
        Ok(file)
    }

    fn fail_io(&self, error: &std::io::Error) -> RegistryError {
        let dir = self.path.parent().unwrap_or(Path::new("."));
        let dir = dir.display();
        let remedy = match error.kind() {
            ErrorKind::NotFound => format!(
                "bring {dir} back, or restore the registry from a backup with `switchyard registry restore`"
            ),
            ErrorKind::PermissionDenied => format!("let the gateway's user read and write in {dir}"),
            ErrorKind::ReadOnlyFilesystem => {
                format!(
                    "the file system of {dir} is read-only: see the kernel's log, and mount it for writing again"
                )
            }
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => format!("free some space in {dir}"),
            _ => format!("see to the device of {dir}, or restore the registry elsewhere from a backup"),
        };
        self.fail(format!("{error}; {remedy}"))
    }

    fn fail(&self, why: impl std::fmt::Display) -> RegistryError {
        RegistryError::Unavailable(format!("{}: {why}", self.path.display()))
    }
}

impl Registry for FileRegistry {
    fn load(&self) -> Result<Snapshot, RegistryError> {
        let bytes = std::fs::read(&self.path).map_err(|error| self.fail_io(&error))?;
        parse(&bytes).map_err(|error| self.fail(error))
    }

    fn store(&mut self, snapshot: &Snapshot) -> Result<(), RegistryError> {
        let _lock = self.lock()?;
        let stored = self.load()?;
        if stored.epoch != snapshot.epoch {
            return Err(RegistryError::Conflict);
        }
        let next = Snapshot {
            epoch: snapshot.epoch + 1,
            ..snapshot.clone()
        };
        self.replace(&next)
    }
}

#[cfg(test)]
mod tests {
    use super::super::format::sample;
    use super::super::memory::MemoryRegistry;
    use super::*;

    #[test]
    fn a_store_on_an_old_epoch_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = FileRegistry::open(dir.path()).unwrap();
        for registry in [&mut { file } as &mut dyn Registry, &mut MemoryRegistry::new()] {
            let mut first = registry.load().unwrap();
            let second = first.clone();
            first.next_volume = 7;
            registry.store(&first).unwrap();
            assert_eq!(registry.load().unwrap().next_volume, 7);
            assert_eq!(registry.load().unwrap().epoch, second.epoch + 1);
            assert!(matches!(registry.store(&second), Err(RegistryError::Conflict)));
        }
    }

    #[test]
    fn a_rack_gets_an_id_of_its_own_and_keeps_it() {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let rack_of = |dir: &Path| FileRegistry::open(dir).unwrap().load().unwrap().rack;
        // As an earlier program left it.
        std::fs::write(dirs[1].path().join(FILE_NAME), emit(&sample())).unwrap();
        let [first, second] = dirs.each_ref().map(|dir| rack_of(dir.path()));
        let memory = MemoryRegistry::new().load().unwrap().rack;
        assert!([first, second, memory].iter().all(|rack| !rack.is_nil()));
        assert!(first != second && second != memory && memory != first);
        assert_eq!(rack_of(dirs[1].path()), second);
        let kept = FileRegistry::open(dirs[1].path()).unwrap().load().unwrap();
        assert_eq!(
            Snapshot {
                rack: Uuid::nil(),
                ..kept
            },
            sample()
        );
    }

    #[test]
    fn a_registry_survives_reopening() {
        let dir = tempfile::tempdir().unwrap();
        let mut registry = FileRegistry::open(dir.path()).unwrap();
        registry.store(&Snapshot { epoch: 0, ..sample() }).unwrap();
        drop(registry);
        assert_eq!(
            FileRegistry::open(dir.path()).unwrap().load().unwrap().next_vssd,
            9
        );
        std::fs::write(dir.path().join(FILE_NAME), b"junk\n").unwrap();
        assert!(FileRegistry::open(dir.path()).is_err());
    }

    #[test]
    fn a_registry_that_is_gone_is_named_with_a_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let registry = FileRegistry::open(dir.path()).unwrap();
        std::fs::remove_file(dir.path().join(FILE_NAME)).unwrap();
        let why = registry.load().unwrap_err().to_string();
        let path = dir.path().display().to_string();
        assert!(why.contains(&path) && why.contains("registry restore"), "{why}");
    }
}

//! The embedded registry: one JSON file, replaced as a whole. Layout: `docs/format/registry.md`.
//!
//! Invariants: the file is always a whole one, old or new (temporary file, fsync, rename, fsync of the directory); a
//! file whose checksum does not match is refused, never repaired silently. It assumes that rename is atomic and that
//! `registry.lock` keeps other processes out while one changes it: gateways may share a registry.

use crate::datadir::write_durably;
use rack::registry::{Registry, RegistryError, Snapshot};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use thiserror::Error;
use uuid::Uuid;

/// The file's name in a rack's directory.
pub const FILE_NAME: &str = "registry.json";
/// First word of the file.
const MAGIC: &str = "switchyard-registry";
/// Version of the layout.
const FORMAT_VERSION: &str = "1";

/// Why a registry file is refused.
#[derive(Debug, Error)]
pub enum FileError {
    /// The first line is not a registry's.
    #[error("the file is not a registry: its first line is another")]
    NotARegistry,
    /// A version that this program does not know.
    #[error(
        "the registry has format version {0}, and this program knows {FORMAT_VERSION}: use a newer program"
    )]
    Version(String),
    /// The checksum does not match.
    #[error("the file is damaged, because its checksum does not match: restore it from a backup")]
    Checksum,
    /// The checksum matches but the records make no sense.
    #[error("the records are malformed: {0}")]
    Records(#[from] serde_json::Error),
}

/// The bytes of a registry file.
pub fn emit(snapshot: &Snapshot) -> Vec<u8> {
    let mut body = serde_json::to_vec_pretty(snapshot).expect("plain records serialize");
    body.push(b'\n');
    let crc = crc32c::crc32c(&body);
    let mut bytes = format!("{MAGIC} {FORMAT_VERSION} crc32c={crc:08x}\n").into_bytes();
    bytes.extend_from_slice(&body);
    bytes
}

/// Reads the bytes of a registry file.
pub fn parse(bytes: &[u8]) -> Result<Snapshot, FileError> {
    let end = bytes
        .iter()
        .position(|&b| b == b'\n')
        .ok_or(FileError::NotARegistry)?;
    let line = std::str::from_utf8(&bytes[..end]).map_err(|_| FileError::NotARegistry)?;
    let mut words = line.split(' ');
    if words.next() != Some(MAGIC) {
        return Err(FileError::NotARegistry);
    }
    match words.next() {
        Some(FORMAT_VERSION) => {}
        Some(other) => return Err(FileError::Version(other.to_owned())),
        None => return Err(FileError::NotARegistry),
    }
    let stated = words
        .next()
        .and_then(|word| word.strip_prefix("crc32c="))
        .and_then(|hex| u32::from_str_radix(hex, 16).ok())
        .ok_or(FileError::NotARegistry)?;
    let body = &bytes[end + 1..];
    if crc32c::crc32c(body) != stated {
        return Err(FileError::Checksum);
    }
    Ok(serde_json::from_slice(body)?)
}

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

    fn replace(&self, snapshot: &Snapshot) -> Result<(), RegistryError> {
        write_durably(&self.path, &emit(snapshot)).map_err(|error| self.fail(error))
    }

    /// Keeps other processes from storing until the file is closed.
    fn lock(&self) -> Result<File, RegistryError> {
        let path = self.path.with_extension("lock");
        let mut options = File::options();
        let file = options.write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|error| self.fail(error))?;
        file.lock().map_err(|error| self.fail(error))?;
        Ok(file)
    }

    fn fail(&self, why: impl std::fmt::Display) -> RegistryError {
        RegistryError::Unavailable(format!("{}: {why}", self.path.display()))
    }
}

impl Registry for FileRegistry {
    fn load(&self) -> Result<Snapshot, RegistryError> {
        let bytes = std::fs::read(&self.path).map_err(|error| self.fail(error))?;
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

/// A registry that ends with the process, for racks whose media do so too.
#[derive(Debug)]
pub struct MemoryRegistry(Mutex<Snapshot>);

impl MemoryRegistry {
    /// Of a new rack.
    pub fn new() -> Self {
        Self(Mutex::new(Snapshot {
            rack: Uuid::new_v4(),
            ..Snapshot::default()
        }))
    }
}

impl Registry for MemoryRegistry {
    fn load(&self) -> Result<Snapshot, RegistryError> {
        Ok(self.0.lock().expect("nobody panics with it").clone())
    }

    fn store(&mut self, snapshot: &Snapshot) -> Result<(), RegistryError> {
        let mine = self.0.get_mut().expect("nobody panics with it");
        if mine.epoch != snapshot.epoch {
            return Err(RegistryError::Conflict);
        }
        *mine = snapshot.clone();
        mine.epoch += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rack::registry::NodeRecord;

    fn sample() -> Snapshot {
        Snapshot {
            epoch: 3,
            next_vssd: 9,
            nodes: vec![NodeRecord {
                id: 1,
                addr: "127.0.0.1:8890".into(),
            }],
            ..Snapshot::default()
        }
    }

    #[test]
    fn records_survive_the_file_and_every_flipped_bit_is_refused() {
        let bytes = emit(&sample());
        assert_eq!(parse(&bytes).unwrap(), sample());
        for place in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[place] ^= 1 << bit;
                // A letter case of the checksum's own hexadecimal digits may change: the same number.
                if let Ok(read) = parse(&damaged) {
                    assert_eq!(read, sample(), "byte {place} bit {bit}");
                }
            }
        }
        assert!(parse(&bytes[..bytes.len() - 1]).is_err(), "a cut file is refused");
        assert!(parse(b"").is_err() && parse(b"{}\n").is_err());
        assert!(matches!(
            parse(b"switchyard-registry 2 crc32c=0\n"),
            Err(FileError::Version(_))
        ));
    }

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
}

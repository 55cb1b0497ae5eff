//! The directory of a store: which areas it has, and for how many shards (docs/format/kv.md).
//!
//! A start with another number of shards copies all keys into new areas, of the next generation. The file `kv.json` names the
//! generation that counts, and is replaced by a rename. So a crash leaves the old areas or the new ones; the others go at the next start.

use crate::store::{Durability, LoadError, Store};
use area::AreaError;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// The file that names the areas.
const MANIFEST: &str = "kv.json";
const LOCK: &str = "kv.lock";
const FORMAT: u32 = 1;
/// Shards at most.
pub const SHARDS_MAX: usize = 256;

/// What the file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    format: u32,
    generation: u64,
    shards: usize,
    seed: u64,
}

/// Why a directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// Another server has it.
    #[error("{} is in use by another server", .0.display())]
    InUse(PathBuf),
    /// A file of it.
    #[error("{}: {source}", .path.display())]
    File {
        /// Its name.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The manifest is none of ours.
    #[error("{} is not readable: {why}. Its areas are as they were", .path.display())]
    Manifest {
        /// Its name.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// An area of it.
    #[error("{}: {source}", .path.display())]
    Area {
        /// Its name.
        path: PathBuf,
        /// Why.
        source: LoadError,
    },
}

/// Sizes of areas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AreaSizes {
    /// Of a new one.
    pub first: u64,
    /// As large as it may become.
    pub most: u64,
}

/// A directory in use.
pub struct Directory {
    /// Held as long as it is in use.
    _lock: File,
    /// Of the keys' hashes.
    pub seed: u64,
    /// The areas, by shard.
    pub stores: Vec<Store>,
    /// The keys were copied from so many shards.
    pub steered_from: Option<usize>,
}

fn at(path: &Path) -> impl Fn(io::Error) -> PlaceError + '_ {
    |source| PlaceError::File {
        path: path.to_owned(),
        source,
    }
}

fn area_path(dir: &Path, generation: u64, shard: usize) -> PathBuf {
    dir.join(format!("kv-{generation}-{shard}.area"))
}

/// Opens the directory, and makes it if it is not there.
///
/// # Errors
/// Another process has it, or what it holds cannot be used.
pub fn open(
    dir: &Path,
    shards: usize,
    sizes: AreaSizes,
    durability: Durability,
) -> Result<Directory, PlaceError> {
    fs::create_dir_all(dir).map_err(at(dir))?;
    let lock_path = dir.join(LOCK);
    let lock = File::create(&lock_path).map_err(at(&lock_path))?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(error) if io::Error::from(error).kind() == ErrorKind::WouldBlock => {
            return Err(PlaceError::InUse(dir.to_owned()));
        }
        Err(error) => return Err(at(&lock_path)(error.into())),
    }
    let before = read(dir)?;
    let manifest = before.unwrap_or_else(|| Manifest {
        format: FORMAT,
        generation: 0,
        shards,
        seed: os::seed(),
    });
    remove_others(dir, manifest.generation)?;
    let open = |manifest: &Manifest| -> Result<Vec<Store>, PlaceError> {
        let open = |shard| {
            let path = area_path(dir, manifest.generation, shard);
            Store::open(&path, sizes.first, sizes.most, durability)
                .map_err(|source| of_area(dir, manifest.generation, shard)(source.into()))
        };
        (0..manifest.shards).map(open).collect()
    };
    let stores = open(&manifest)?;
    if before.is_none() {
        write(dir, &manifest)?;
    }
    if manifest.shards == shards {
        return Ok(Directory {
            _lock: lock,
            seed: manifest.seed,
            stores,
            steered_from: None,
        });
    }
    let next = Manifest {
        generation: manifest.generation + 1,
        shards,
        ..manifest
    };
    let mut new = open(&next)?;
    steer(dir, &manifest, stores, &mut new)?;
    write(dir, &next)?;
    remove_others(dir, next.generation)?;
    Ok(Directory {
        _lock: lock,
        seed: next.seed,
        stores: new,
        steered_from: Some(manifest.shards),
    })
}

fn of_area(dir: &Path, generation: u64, shard: usize) -> impl Fn(LoadError) -> PlaceError {
    let path = area_path(dir, generation, shard);
    move |source| PlaceError::Area {
        path: path.clone(),
        source,
    }
}

/// Copies all keys to the shards that have them now.
fn steer(dir: &Path, from: &Manifest, old: Vec<Store>, new: &mut [Store]) -> Result<(), PlaceError> {
    let shards = new.len();
    for (shard, store) in old.into_iter().enumerate() {
        let mut failed: Option<AreaError> = None;
        let copied = store.each(|key, value, ends_ms| {
            if failed.is_none() {
                let to = kv::shard_of(kv::hash(from.seed, key), shards);
                failed = new[to].copy_in(key, value, ends_ms).err();
            }
        });
        copied.map_err(of_area(dir, from.generation, shard))?;
        if let Some(error) = failed {
            return Err(of_area(dir, from.generation + 1, shard)(error.into()));
        }
    }
    for (shard, store) in new.iter().enumerate() {
        let synced = store.area().sync();
        synced.map_err(|error| of_area(dir, from.generation + 1, shard)(error.into()))?;
    }
    Ok(())
}

fn read(dir: &Path) -> Result<Option<Manifest>, PlaceError> {
    let path = dir.join(MANIFEST);
    let text = match fs::read(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        text => text.map_err(at(&path))?,
    };
    let bad = |why: String| PlaceError::Manifest {
        path: path.clone(),
        why,
    };
    let manifest: Manifest = serde_json::from_slice(&text).map_err(|error| bad(error.to_string()))?;
    if manifest.format != FORMAT {
        return Err(bad(format!("format {} is not known", manifest.format)));
    }
    if !(1..=SHARDS_MAX).contains(&manifest.shards) {
        return Err(bad(format!("{} shards cannot be", manifest.shards)));
    }
    Ok(Some(manifest))
}

/// Writes the manifest whole or not at all.
fn write(dir: &Path, manifest: &Manifest) -> Result<(), PlaceError> {
    let path = dir.join(MANIFEST);
    let new = dir.join("kv.json.new");
    let write = || -> io::Result<()> {
        let mut file = File::create(&new)?;
        file.write_all(&serde_json::to_vec(manifest)?)?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        File::open(dir)?.sync_all()
    };
    write().map_err(at(&path))
}

/// Removes areas of other generations: a change of shards that was cut short, or was done.
fn remove_others(dir: &Path, generation: u64) -> Result<(), PlaceError> {
    for entry in fs::read_dir(dir).map_err(at(dir))? {
        let path = entry.map_err(at(dir))?.path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let numbers = name
            .strip_prefix("kv-")
            .and_then(|rest| rest.strip_suffix(".area"));
        let of = numbers.and_then(|numbers| numbers.split_once('-')?.0.parse::<u64>().ok());
        if of.is_some_and(|of| of != generation) {
            fs::remove_file(&path).map_err(at(&path))?;
        }
    }
    Ok(())
}

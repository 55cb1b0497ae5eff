//! After a crash: what the area has of files is brought back to them, or to copies (docs/format/files.md, "Recovery").

use super::error::FilesError;
use super::identity::look_up;
use crate::area::{Area, AreaOptions};
use crate::error::AreaError;
use crate::structures::Log;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use store::files::{self, Description, Fate, FileId, Present};
use store::{Durability, Kind, Op, StructureId};

/// Recovered changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Files that were complete: the kernel still had all of their pages.
    pub complete: usize,
    /// Files that were removed again.
    pub removed: usize,
    /// Files whose changes were made again.
    pub replayed: usize,
    /// Bytes of these changes.
    pub bytes: u64,
}

/// The structures of an area that are about files.
pub(super) fn structures(area: &Area) -> Result<(StructureId, Log), AreaError> {
    let map = area.create(files::FILES_NAME, Kind::Map, Durability::Lazy)?;
    area.create(files::WRITES_NAME, Kind::Log, Durability::Lazy)?;
    Ok((map, area.log(files::WRITES_NAME)?))
}

fn path_of(description: &Description) -> &Path {
    Path::new(OsStr::from_bytes(&description.path))
}

fn at<T>(path: &Path, result: io::Result<T>) -> Result<T, FilesError> {
    result.map_err(|source| FilesError::File {
        path: path.to_owned(),
        source,
    })
}

fn fate(description: &Description) -> Result<Fate, FilesError> {
    let path = path_of(description);
    let found = at(path, look_up(path))?;
    let (present, cache) = match found {
        Some(found) if found.is_regular => (Present::File(found.identity), Some(found.identity.cache)),
        Some(found) => (Present::Other, Some(found.identity.cache)),
        None => {
            let parent = path.parent().unwrap_or(path);
            let parent = at(parent, look_up(parent))?;
            (Present::Nothing, parent.map(|parent| parent.identity.cache))
        }
    };
    Ok(description.fate(present, cache))
}

/// The area's changes of files.
fn described(area: &Area) -> Result<Vec<(FileId, Description)>, FilesError> {
    let map = area.map(files::FILES_NAME)?;
    let mut all = Vec::new();
    for key in map.keys() {
        let value = map.get(&key)?.unwrap_or_default();
        let parsed = FileId::parse(&key).zip(Description::parse(&value));
        all.push(parsed.ok_or(files::Malformed(0))?);
    }
    // Of two files that had one path, the later one counts last.
    all.sort_by_key(|(id, _)| *id);
    Ok(all)
}

/// A file that changes are made to.
struct Target {
    path: PathBuf,
    file: File,
}

/// Makes all changes of the log to those of the files that are in `targets`, in order; the bytes.
fn replay(writes: &Log, targets: &mut BTreeMap<FileId, Target>) -> Result<u64, FilesError> {
    let mut bytes = 0;
    let read = |position| Ok(writes.read(position)?);
    files::replay(writes.positions(), read, |id, offset, data, size| {
        let Some(target) = targets.get(&id) else {
            return Ok(());
        };
        bytes += data.len() as u64;
        let write = || {
            target.file.write_all_at(data, offset)?;
            // What is beyond was never synced, or is taken away: zeros if the file grows again.
            target.file.set_len(size)
        };
        at(&target.path, write())
    })?;
    for target in targets.values() {
        let sync = target.file.sync_all().and_then(|()| sync_parent(&target.path));
        at(&target.path, sync)?;
    }
    Ok(bytes)
}

fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

fn open_target(path: &Path, is_rewritten: bool) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create(is_rewritten)
        .truncate(is_rewritten)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
}

/// Brings everything back to the files themselves. Nothing is changed if a file is refused.
pub(super) fn in_place(area: &Area, map: StructureId, writes: &Log) -> Result<Recovered, FilesError> {
    let all = described(area)?;
    let mut fates = Vec::with_capacity(all.len());
    for (id, description) in &all {
        let fate = fate(description)?;
        if let Fate::Refuse(why) = fate {
            let path = path_of(description).display();
            return Err(FilesError::Refused(format!("{path} {why}")));
        }
        fates.push((*id, description, fate));
    }
    let mut recovered = Recovered::default();
    let mut targets = BTreeMap::new();
    for (id, description, fate) in fates {
        let path = path_of(description);
        match fate {
            Fate::Complete => {
                at(path, File::open(path).and_then(|file| file.sync_all()))?;
                at(path, sync_parent(path))?;
                recovered.complete += 1;
            }
            Fate::Remove => {
                at(path, fs::remove_file(path).and_then(|()| sync_parent(path)))?;
                recovered.removed += 1;
            }
            Fate::Replay | Fate::Rewrite => {
                let is_rewritten = matches!(fate, Fate::Rewrite);
                let file = at(path, open_target(path, is_rewritten))?;
                if is_rewritten {
                    let [mode, user, group] = description.owner;
                    at(path, file.set_permissions(Permissions::from_mode(mode & 0o7777)))?;
                    // Only root may give files away; to others they belong already.
                    let _ = chown(path, Some(user), Some(group));
                }
                let path = path.to_owned();
                targets.insert(id, Target { path, file });
                recovered.replayed += 1;
            }
            Fate::Gone | Fate::Refuse(_) => {}
        }
    }
    recovered.bytes = replay(writes, &mut targets)?;
    let keys: Vec<_> = all.iter().map(|(id, _)| id.key()).collect();
    let mut ops: Vec<_> = keys.iter().map(|key| Op::Remove { map, key }).collect();
    ops.push(Op::Trim {
        log: writes.id(),
        floor: writes.positions().end,
    });
    for ops in ops.chunks(1000) {
        area.enter(ops)?;
    }
    area.sync()?;
    Ok(recovered)
}

/// Brings what the area at `path` has of files back to them. A missing area is made, unless `create_bytes` is 0.
pub fn restore(path: &Path, create_bytes: u64) -> Result<Recovered, FilesError> {
    let area = Area::open(path, &AreaOptions::new(create_bytes))?;
    let (map, writes) = structures(&area)?;
    in_place(&area, map, &writes)
}

/// Writes copies of the files that the area at `path` has something of below `directory`, each at its whole path, as they were
/// acknowledged. Neither the files nor what the area has of them changes. The copies' paths.
pub fn export(path: &Path, directory: &Path) -> Result<Vec<PathBuf>, FilesError> {
    let area = Area::open(path, &AreaOptions::new(0))?;
    let (_, writes) = structures(&area)?;
    let mut targets = BTreeMap::new();
    let mut copies = Vec::new();
    for (id, description) in described(&area)? {
        let original = path_of(&description);
        let copy = directory.join(original.strip_prefix("/").unwrap_or(original));
        let fate = fate(&description)?;
        if description.is_removed || matches!(fate, Fate::Gone | Fate::Remove) {
            continue;
        }
        let parent = copy.parent().unwrap_or(directory);
        at(parent, fs::create_dir_all(parent))?;
        let is_rewritten = match fate {
            Fate::Complete | Fate::Replay => {
                at(&copy, fs::copy(original, &copy))?;
                false
            }
            // What is at its path, if anything, is something else.
            _ => true,
        };
        if !matches!(fate, Fate::Complete) {
            let file = at(&copy, open_target(&copy, is_rewritten))?;
            let path = copy.clone();
            targets.insert(id, Target { path, file });
        }
        copies.push(copy);
    }
    replay(&writes, &mut targets)?;
    Ok(copies)
}

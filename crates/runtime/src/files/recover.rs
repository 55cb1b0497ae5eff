//! After a crash: what the area has of files is brought back to them, or to copies (docs/format/files.md, "Recovery").

use super::identity::{Found, look_up};
use super::{FilesError, structures};
use crate::area::{Area, AreaOptions, Log, Op, StructureId};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use store::files::{Change, Description, FileId};

/// What was brought back.
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

/// What is to become of a file.
enum Fate {
    /// It has everything; to be synced, if it is still there.
    Complete,
    /// It is gone, and should be.
    Gone,
    /// It should be.
    Remove,
    /// Its changes are made to what is there.
    Replay,
    /// Its changes are all that is in it.
    Rewrite,
    /// What is at its path is not what it was.
    Refuse(&'static str),
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
    let wanted = description.identity;
    let cache = match &found {
        Some(found) => Some(found.identity.cache),
        None => {
            let parent = path.parent().unwrap_or(path);
            at(parent, look_up(parent))?.map(|parent| parent.identity.cache)
        }
    };
    let is_same = |found: &Found| {
        found.is_regular && (found.identity.inode, found.identity.born_ns) == (wanted.inode, wanted.born_ns)
    };
    Ok(match found {
        _ if cache == Some(wanted.cache) => match found {
            Some(found) if is_same(&found) => Fate::Complete,
            _ => Fate::Gone,
        },
        Some(found) if is_same(&found) => match (description.is_removed, description.is_fresh) {
            (true, _) => Fate::Remove,
            (_, true) => Fate::Rewrite,
            _ => Fate::Replay,
        },
        _ if description.is_removed => Fate::Gone,
        Some(found) if !found.is_regular => Fate::Refuse("is no regular file any more"),
        Some(found) if description.is_fresh && found.identity.born_ns < wanted.born_ns => Fate::Rewrite,
        Some(_) => Fate::Refuse("is another file than the one that the area has changes of"),
        None if description.is_fresh => Fate::Rewrite,
        None => Fate::Refuse("is missing, and the area has only its last changes"),
    })
}

/// What the area has of files.
fn described(area: &Area) -> Result<Vec<(FileId, Description)>, FilesError> {
    let map = area.map(store::files::FILES_NAME)?;
    let mut all = Vec::new();
    for key in map.keys() {
        let value = map.get(&key)?.unwrap_or_default();
        let parsed = FileId::parse(&key).zip(Description::parse(&value));
        all.push(parsed.ok_or(FilesError::Malformed(0))?);
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
    let positions = writes.positions();
    let mut position = positions.start;
    let mut bytes = 0;
    while position < positions.end {
        let malformed = FilesError::Malformed(position);
        let entry = writes.read(position)?;
        let change = entry.as_deref().and_then(Change::parse).ok_or(malformed)?;
        let pieces = u64::from(change.pieces.unwrap_or(0));
        let data = position + 1..position + 1 + pieces;
        position = data.end;
        let Some(target) = targets.get_mut(&change.file) else {
            continue;
        };
        let mut offset = change.offset;
        for position in data {
            let piece = writes.read(position)?.ok_or(FilesError::Malformed(position))?;
            at(&target.path, target.file.write_all_at(&piece, offset))?;
            offset += piece.len() as u64;
        }
        bytes += offset - change.offset;
        // What is beyond was never synced, or is taken away: zeros if the file grows again.
        at(&target.path, target.file.set_len(change.size))?;
    }
    for target in targets.values() {
        let finish = || {
            target.file.sync_all()?;
            sync_parent(&target.path)
        };
        at(&target.path, finish())?;
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

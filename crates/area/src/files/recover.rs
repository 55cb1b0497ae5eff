//! After a crash: what the area has of files is brought back to them, or to copies (docs/format/files.md, "Recovery").

use super::error::FilesError;
use super::identity::{Found, Name, is_mounted, look_at, look_up, mount_of, name, open_handle};
use super::lease::Lease;
use super::opened::sync_directory;
use super::rights::Rights;
use super::shared::OPS_MAX;
use crate::area::{Area, AreaOptions};
use crate::error::AreaError;
use crate::structures::Log;
use os::MediaFile;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read};
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{
    DirBuilderExt, DirEntryExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown,
};
use std::path::{Path, PathBuf};
use store::files::{self, Claim, Description, Evidence, Fate, FileId, NO_CACHE, NO_UUID, Present};
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

pub(super) fn path_of(description: &Description) -> &Path {
    Path::new(OsStr::from_bytes(&description.path))
}

pub(super) fn at<T>(path: &Path, result: io::Result<T>) -> Result<T, FilesError> {
    result.map_err(|source| FilesError::File {
        path: path.to_owned(),
        source,
    })
}

/// A described file as it is now.
pub(super) struct Subject {
    pub id: FileId,
    pub description: Description,
    pub fate: Fate,
    /// Its path now.
    pub path: PathBuf,
    /// It is open if it has another name than the area knows.
    pub file: Option<File>,
}

pub(super) fn judge(id: FileId, description: Description, claim: Claim) -> Result<Subject, FilesError> {
    let path = path_of(&description).to_owned();
    // A crash may have taken the directory, too.
    let mut directory = None;
    for above in path.ancestors().skip(1) {
        directory = at(above, look_up(above))?;
        if directory.is_some() {
            break;
        }
    }
    let is_it = |found: &Found| found.is_regular && found.identity.is_same_file(&description.identity);
    let at_path = at(&path, look_up(&path))?;
    let elsewhere = match &at_path {
        Some(found) if is_it(found) => None,
        _ if description.is_removed => None,
        _ => find(&path, &description, is_it),
    };
    let (path, file, found) = match elsewhere {
        Some((path, file, found)) => (path, Some(file), Some(found)),
        None => (path, None, at_path),
    };
    let evidence = Evidence {
        present: match &found {
            None => Present::Nothing,
            Some(found) if found.is_regular => Present::File(found.identity),
            Some(_) => Present::Other,
        },
        cache: found.as_ref().or(directory.as_ref()).map(|it| it.identity.cache),
        is_mounted: at(
            path_of(&description),
            is_mounted(&description, directory.as_ref()),
        )?,
        changed_ns: found.map_or(0, |it| it.changed_ns),
        directory_changed_ns: directory.map_or(u64::MAX, |it| it.changed_ns),
    };
    Ok(Subject {
        fate: description.fate(&evidence, claim),
        id,
        description,
        path,
        file,
    })
}

/// The file that had the name `path`, under another one: by its handle, or by a look at all names if we may not use that.
fn find(
    path: &Path,
    description: &Description,
    is_it: impl Fn(&Found) -> bool,
) -> Option<(PathBuf, File, Found)> {
    let mut above = path.ancestors().skip(1);
    let (nearest, directory) = above.find_map(|it| Some((it, File::open(it).ok()?)))?;
    match open_handle(&directory, &description.handle) {
        Ok(file) => {
            let found = look_at(&file)
                .ok()
                .filter(|found| found.links > 0 && is_it(found))?;
            let path = match name(&file) {
                Name::Path(path) => path,
                _ => path.to_owned(),
            };
            Some((path, file, found))
        }
        // It is gone.
        Err(error) if error.raw_os_error() == Some(libc::ESTALE) => None,
        Err(_) => {
            let mount = mount_of(description).unwrap_or_else(|| nearest.to_owned());
            let path = search(nearest, &mount, description.identity.inode)?;
            let file = open_target(&path).ok()?;
            let found = look_at(&file).ok().filter(is_it)?;
            Some((path, file, found))
        }
    }
}

/// A name of the inode: in `nearest` or below, or else anywhere on its mount, as far as we may look.
fn search(nearest: &Path, mount: &Path, inode: u64) -> Option<PathBuf> {
    let device = fs::metadata(nearest).ok()?.dev();
    [nearest, mount].into_iter().find_map(|top| {
        let mut directories = vec![top.to_owned()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
                if !entry.file_type().is_ok_and(|it| it.is_dir()) {
                    if entry.ino() == inode {
                        return Some(entry.path());
                    }
                } else if entry.metadata().is_ok_and(|it| it.dev() == device) {
                    directories.push(entry.path());
                }
            }
        }
        None
    })
}

/// The files that the area describes, and its claim to change them.
fn described(area: &Area) -> Result<(Vec<(FileId, Description)>, Claim), FilesError> {
    let map = area.map(files::FILES_NAME)?;
    let keys = map.keys()?;
    let all: Vec<&[u8]> = keys.iter().map(|key| &**key).collect();
    parse(&keys, map.get_many(&all)?)
}

/// The files that the entries of the map describe, and the claim among them.
pub(super) fn parse(
    keys: &[Box<[u8]>],
    values: Vec<Option<Vec<u8>>>,
) -> Result<(Vec<(FileId, Description)>, Claim), FilesError> {
    let mut all = Vec::new();
    // Version 1 has no claim: no file whose page cache is gone is proved to be the program's.
    let mut claim = Claim::default();
    for (key, value) in keys.iter().zip(values) {
        let value = value.unwrap_or_default();
        let id = FileId::parse(key).ok_or(files::Malformed(0))?;
        if id == Claim::PLACE {
            claim = Claim::parse(&value).ok_or(files::Malformed(0))?;
        } else {
            all.push((id, Description::parse(&value).ok_or(files::Malformed(0))?));
        }
    }
    // Of two files that had one path, the later one counts last.
    all.sort_by_key(|(id, _)| *id);
    Ok((all, claim))
}

pub(super) fn subjects(area: &Area) -> Result<(Vec<Subject>, Claim), FilesError> {
    let (all, claim) = described(area)?;
    let all = all
        .into_iter()
        .map(|(id, description)| judge(id, description, claim));
    Ok((all.collect::<Result<_, _>>()?, claim))
}

/// A file that changes are made to.
pub(super) struct Target {
    pub path: PathBuf,
    pub file: File,
}

/// Makes all changes of the log, which has these `positions`, to those of the files that are in `targets`, in order, `hold`ing them
/// each time; the bytes.
pub(super) fn replay(
    positions: Range<u64>,
    mut read: impl FnMut(u64) -> Result<Option<Vec<u8>>, AreaError>,
    targets: &mut BTreeMap<FileId, Target>,
    mut hold: impl FnMut() -> Result<(), AreaError>,
) -> Result<u64, FilesError> {
    let mut bytes = 0;
    files::replay(
        positions,
        |it| Ok(read(it)?),
        |id, offset, data, size| {
            let Some(target) = targets.get(&id) else {
                return Ok(());
            };
            bytes += data.len() as u64;
            hold()?;
            let write = || {
                target.file.write_all_at(data, offset)?;
                // What is beyond was never synced, or is taken away: zeros if the file grows again.
                target.file.set_len(size)
            };
            at(&target.path, write())
        },
    )?;
    for target in targets.values() {
        let sync = target.file.sync_all().and_then(|()| sync_parent(&target.path));
        at(&target.path, sync)?;
    }
    Ok(bytes)
}

fn sync_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |parent| {
        sync_directory(parent, File::open(path).ok().as_ref().map(AsFd::as_fd))
    })
}

fn open_target(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
}

/// A new file, in the place of one that should have been removed before.
fn create_target(path: &Path, owner: Option<[u32; 3]>) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    if let Some(parent) = path.parent() {
        create_directories(parent, owner)?;
    }
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    if let Some([mode, user, group]) = owner {
        // Only root may give files away; to others they belong already.
        let _ = chown(path, Some(user), Some(group));
        file.set_permissions(Permissions::from_mode(mode & 0o7777))?;
    }
    Ok(file)
}

/// Makes the directories that a crash has taken, durably. Nobody knows their modes: who may read the file finds it.
fn create_directories(path: &Path, owner: Option<[u32; 3]>) -> io::Result<()> {
    if look_up(path)?.is_some() {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        create_directories(parent, owner)?;
    }
    let [mode, user, group] = owner.unwrap_or([0o600, 0, 0]);
    let finds = (mode & 0o444) >> 2;
    DirBuilder::new()
        .mode(0o700 | mode & 0o044 | finds & 0o011)
        .create(path)?;
    if owner.is_some() {
        let _ = chown(path, Some(user), Some(group));
    }
    sync_parent(path)
}

/// The error of a file whose file system is not where it was.
fn away(description: &Description) -> FilesError {
    let mount = mount_of(description).unwrap_or_default();
    let uuid = description.place.map_or(NO_UUID, |it| it.uuid);
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    FilesError::Away {
        path: path_of(description).to_owned(),
        system: match uuid {
            NO_UUID => "the file system".into(),
            _ => format!("the file system UUID={}", parts.join("-")),
        },
        mount,
    }
}

/// Refuses if there is a file that recovery cannot prove to be the program's.
fn refuse(subjects: &[Subject], writes: &Log) -> Result<(), FilesError> {
    let read = |position| Ok::<_, FilesError>(writes.read(position)?);
    let least = if subjects.iter().any(|it| it.fate == Fate::Replay) {
        files::least_sizes(writes.positions()?, read)?
    } else {
        BTreeMap::new()
    };
    for subject in subjects {
        if subject.fate == Fate::Away {
            return Err(away(&subject.description));
        }
        let why = match subject.fate {
            Fate::Refuse(why) => Some(why),
            Fate::Replay => {
                let found = at(&subject.path, look_up(&subject.path))?;
                let found = match &subject.file {
                    Some(file) => Some(at(&subject.path, look_at(file))?),
                    None => found,
                };
                let size = found.map_or(0, |it| it.size);
                let is_cut = least.get(&subject.id).is_some_and(|&least| size < least);
                is_cut.then_some("is shorter than its program left it")
            }
            _ => None,
        };
        if let Some(why) = why {
            let path = path_of(&subject.description).display();
            return Err(FilesError::Refused(format!("{path} {why}")));
        }
    }
    Ok(())
}

/// Finds the files that have all that the log leaves of them, though their page cache is another one: their system was unmounted in order.
/// They may have more, which came later and stays.
fn complete(subjects: &mut [Subject], writes: &Log) -> Result<(), FilesError> {
    let read = |position| Ok::<_, FilesError>(writes.read(position)?);
    let mut present: BTreeMap<FileId, File> = subjects
        .iter()
        .filter(|it| matches!(it.fate, Fate::Replay | Fate::Rewrite))
        .filter_map(|it| Some((it.id, open_same(it)?)))
        .collect();
    if present.is_empty() {
        return Ok(());
    }
    let outcomes = files::outcomes(writes.positions()?, read)?;
    let all = subjects.iter().filter(|it| it.description.is_fresh);
    let fresh: BTreeSet<FileId> = all.map(|it| it.id).collect();
    let has_room = |id: &FileId, file: &File| {
        let size = file.metadata().map_or(0, |it| it.len());
        let outcome = outcomes.get(id);
        outcome.is_none_or(|it| it.may_be_complete(fresh.contains(id), size))
    };
    present.retain(|id, file| has_room(id, file));
    let mut nth = 0;
    let mut found = Vec::new();
    files::replay(writes.positions()?, read, |id, offset, data, _| {
        let outcome = outcomes.get(&id).zip(present.get(&id));
        let is_there = outcome.is_none_or(|(outcome, file)| {
            let mut parts = outcome.last_of(nth, offset..offset + data.len() as u64);
            parts.all(|part| {
                found.resize((part.end - part.start) as usize, 0);
                let wanted = &data[(part.start - offset) as usize..(part.end - offset) as usize];
                file.read_exact_at(&mut found, part.start).is_ok() && found == wanted
            })
        });
        if !is_there {
            present.remove(&id);
        }
        nth += 1;
        Ok::<_, FilesError>(())
    })?;
    for subject in subjects.iter_mut().filter(|it| present.contains_key(&it.id)) {
        subject.fate = Fate::Complete;
    }
    Ok(())
}

/// The described file as it is now, for reading; `None` if another one is there, or none.
fn open_same(subject: &Subject) -> Option<File> {
    let same = |file: &File| {
        look_at(file).is_ok_and(|it| it.is_regular && it.identity.is_same_file(&subject.description.identity))
    };
    let options = || {
        OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(&subject.path)
            .ok()
    };
    options().filter(same)
}

/// The target of a file whose changes are made again; `description` says what it is from now on, if it is made anew.
fn target(subject: &mut Subject, area: &Area, map: StructureId) -> Result<File, FilesError> {
    let path = &subject.path;
    let present = match subject.file.take() {
        Some(file) => Some(file),
        None if at(path, look_up(path))?
            .is_some_and(|it| it.identity.is_same_file(&subject.description.identity)) =>
        {
            Some(at(path, open_target(path))?)
        }
        None => None,
    };
    let Some(file) = present else {
        // Whatever is there from now on, and unchanged after the claim, is older, or of this recovery.
        subject.description.identity.born_ns = u64::MAX;
        let (key, data) = (subject.id.key(), subject.description.emit());
        area.enter(&[Op::Put {
            map,
            key: &key,
            data: &data,
        }])?;
        area.sync()?;
        return at(path, create_target(path, Some(subject.description.owner)));
    };
    if subject.fate == Fate::Rewrite {
        at(path, file.set_len(0))?;
    }
    Ok(file)
}

/// The kernel may have given up pages that it could not write, and called them clean: the next recovery makes the log's changes again.
fn distrust(area: &Area, map: StructureId, subject: &mut Subject) -> Result<(), AreaError> {
    subject.description.identity.cache = NO_CACHE;
    let (key, data) = (subject.id.key(), subject.description.emit());
    area.enter(&[Op::Put {
        map,
        key: &key,
        data: &data,
    }])?;
    area.sync()
}

/// Brings everything back to the files themselves, with the rights of the area's owner. Nothing is changed if a file is refused.
pub(super) fn in_place(area: &Area, map: StructureId, writes: &Log) -> Result<Recovered, FilesError> {
    let rights = Rights::of(area).map_err(AreaError::from)?;
    bring_back(area, map, writes).map_err(|error| match (&rights, error) {
        (Some(Rights { user, .. }), FilesError::File { path, source })
            if source.kind() == io::ErrorKind::PermissionDenied =>
        {
            FilesError::Forbidden { path, user: *user }
        }
        (None, FilesError::File { path, source }) if source.raw_os_error() == Some(libc::EPERM) => {
            FilesError::Sealed(path)
        }
        (_, error) => error,
    })
}

fn bring_back(area: &Area, map: StructureId, writes: &Log) -> Result<Recovered, FilesError> {
    let (mut all, claim) = subjects(area)?;
    refuse(&all, writes)?;
    complete(&mut all, writes)?;
    let mut lease = Lease::new(map, claim);
    let mut recovered = Recovered::default();
    let mut targets = BTreeMap::new();
    for subject in &mut all {
        let path = subject.path.clone();
        match subject.fate {
            Fate::Complete => {
                let file = match subject.file.take() {
                    Some(file) => file,
                    None => at(&path, File::open(&path))?,
                };
                let synced = file.sync_all().and_then(|()| sync_parent(&path));
                if synced.is_err() {
                    distrust(area, map, subject)?;
                }
                at(&path, synced)?;
                recovered.complete += 1;
            }
            Fate::Remove => {
                lease.hold(area)?;
                at(&path, fs::remove_file(&path).and_then(|()| sync_parent(&path)))?;
                recovered.removed += 1;
            }
            Fate::Replay | Fate::Rewrite => {
                lease.hold(area)?;
                let file = target(subject, area, map)?;
                targets.insert(subject.id, Target { path, file });
                recovered.replayed += 1;
            }
            // It may have another name where nobody looks.
            Fate::Gone if !subject.description.is_removed => {
                let mut above = path.ancestors().skip(1);
                let nearest = above.find_map(|it| File::open(it).ok());
                match nearest {
                    Some(nearest) => at(&path, rustix::fs::syncfs(nearest).map_err(io::Error::from))?,
                    None => rustix::fs::sync(),
                }
            }
            Fate::Gone | Fate::Refuse(_) | Fate::Away => {}
        }
    }
    let read = |position| writes.read(position);
    recovered.bytes = replay(writes.positions()?, read, &mut targets, || lease.hold(area))?;
    let mut keys: Vec<_> = all.iter().map(|it| it.id.key()).collect();
    keys.push(Claim::PLACE.key());
    let mut ops: Vec<_> = keys.iter().map(|key| Op::Remove { map, key }).collect();
    ops.push(Op::Trim {
        log: writes.id(),
        floor: writes.positions()?.end,
    });
    for ops in ops.chunks(OPS_MAX) {
        area.enter(ops)?;
    }
    area.sync()?;
    Ok(recovered)
}

/// Brings what the area at `path` has of files back to them. A missing area is made, unless `create_bytes` is 0.
pub fn restore(path: &Path, create_bytes: u64) -> Result<Recovered, FilesError> {
    if create_bytes == 0 && is_unfinished(path) {
        return Ok(Recovered::default());
    }
    let area = Area::open(path, &AreaOptions::new(create_bytes))?;
    let (map, writes) = structures(&area)?;
    in_place(&area, map, &writes)
}

/// True if the file was to become an area, and the machine stopped before it was one: it has nothing but zeros, as its superblocks come
/// last. Nobody was told that anything is in it. With a size it is made anew.
pub(super) fn is_unfinished(path: &Path) -> bool {
    let look = || -> io::Result<bool> {
        let file = File::open(path)?;
        let data = file.metadata()?;
        let head_bytes = 2 * store::SUPERBLOCK_BYTES;
        if !data.is_file() || (1..head_bytes).contains(&data.len()) {
            return Ok(false);
        }
        let mut head = Vec::new();
        (&file).take(head_bytes).read_to_end(&mut head)?;
        Ok(head.iter().all(|&byte| byte == 0) && MediaFile::from_file(file)?.find_data()?.is_none())
    };
    look().unwrap_or(false)
}

/// Forgets what the area at `path` has of a file; the file stays as it is. True if the area had something of it.
pub fn forget(path: &Path, file: &Path) -> Result<bool, FilesError> {
    let area = Area::open(path, &AreaOptions::new(0))?;
    let (map, _) = structures(&area)?;
    let (all, _) = described(&area)?;
    let its = all.iter().filter(|(_, description)| path_of(description) == file);
    let keys: Vec<_> = its.map(|(id, _)| id.key()).collect();
    let ops: Vec<_> = keys.iter().map(|key| Op::Remove { map, key }).collect();
    for ops in ops.chunks(OPS_MAX) {
        area.enter(ops)?;
    }
    area.sync()?;
    Ok(!keys.is_empty())
}

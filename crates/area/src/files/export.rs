//! Copies of the files that an area has something of, as they were acknowledged.
//!
//! # While the program runs
//! The program's files change while they are copied, and the area's log has the changes. So the copies are made first, and then the
//! changes of a later moment's log are made to them: the copies are what a crash of the machine at that moment could have left. This
//! needs a log that goes back to when the copying began, and no file that the copying has missed. If a checkpoint of the program comes in
//! between, the copying begins anew. Of a fresh file the log has all, and nothing is copied.

use super::error::FilesError;
use super::identity::{look_at, look_up};
use super::recover::{
    Subject, Target, at, is_unfinished, judge, parse, path_of, replay, structures, subjects,
};
use crate::area::{Area, AreaOptions};
use crate::beneath::Beneath;
use crate::error::AreaError;
use crate::follow::{FollowOptions, Follower};
use os::MediaOpenError;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use store::StructureId;
use store::files::{self, Claim, Description, Fate, FileId};

/// Times that files are copied, before it is told that they change too fast.
const ATTEMPTS: u32 = 16;
/// Entries of the log that are read at once.
const STEP: u64 = 64;

/// Writes copies of the files that the area at `path` has something of below `directory`, each at its whole path, as they were
/// acknowledged. If a program has the area, they are of one moment. Neither the files nor what the area has of them changes. The copies'
/// paths.
///
/// # Errors
/// [`FilesError::Original`], if `directory` leads to the files themselves; [`FilesError::Changing`], if the program writes faster than
/// its files can be copied.
pub fn export(path: &Path, directory: &Path) -> Result<Vec<PathBuf>, FilesError> {
    if is_unfinished(path) {
        return Ok(Vec::new());
    }
    let area = match Area::open(path, &AreaOptions::new(0)) {
        Err(AreaError::Media(MediaOpenError::InUse(_))) => None,
        area => Some(area?),
    };
    let beneath = at(directory, Beneath::open(directory))?;
    let copies = Copies { directory, beneath };
    match area {
        Some(area) => copies.of_area(&area),
        None => copies.of_program(path),
    }
}

/// The place of the copies.
struct Copies<'a> {
    directory: &'a Path,
    beneath: Beneath,
}

/// A name, by the device and inode of its directory.
type Name<'a> = (u64, u64, &'a OsStr);

/// The name that a path is; `None` without its directory.
fn name_of(path: &Path) -> Option<Name<'_>> {
    let directory = fs::metadata(path.parent()?).ok()?;
    Some((directory.dev(), directory.ino(), path.file_name()?))
}

impl Copies<'_> {
    /// Refuses if a copy would take the place of a file that is to be copied.
    fn keep_originals<'a>(
        &self,
        all: impl Iterator<Item = &'a Description> + Clone,
    ) -> Result<(), FilesError> {
        let originals: BTreeSet<_> = all.clone().filter_map(|it| name_of(path_of(it))).collect();
        for description in all {
            let copy = self.directory.join(below_root(description));
            if name_of(&copy).is_some_and(|it| originals.contains(&it)) {
                return Err(FilesError::Original(copy));
            }
        }
        Ok(())
    }

    /// A new file for the copy.
    fn create(&self, description: &Description) -> Result<Target, FilesError> {
        let original = below_root(description);
        let path = self.directory.join(original);
        let file = at(&path, self.beneath.create(original))?;
        Ok(Target { path, file })
    }

    /// Copies of what an area has that nobody uses.
    fn of_area(&self, area: &Area) -> Result<Vec<PathBuf>, FilesError> {
        let (_, writes) = structures(area)?;
        let mut targets = BTreeMap::new();
        let mut copies = Vec::new();
        let subjects = subjects(area)?.0;
        self.keep_originals(subjects.iter().map(|it| &it.description))?;
        for subject in subjects {
            let Subject {
                description, fate, ..
            } = &subject;
            if description.is_removed || matches!(fate, Fate::Gone | Fate::Remove) {
                continue;
            }
            let is_its_own = at(&subject.path, look_up(&subject.path))?
                .is_some_and(|it| it.identity.is_same_file(&description.identity));
            // Of a fresh file the log has all, and of another one what the file has besides.
            let is_copied = match fate {
                Fate::Complete | Fate::Replay => true,
                _ => is_its_own && !description.is_fresh,
            };
            let mut target = self.create(description)?;
            if is_copied {
                let mut original = at(&subject.path, File::open(&subject.path))?;
                at(&target.path, copy_content(&mut original, &mut target.file))?;
            }
            copies.push(target.path.clone());
            if !matches!(fate, Fate::Complete) {
                targets.insert(subject.id, target);
            }
        }
        replay(writes.positions()?, |it| writes.read(it), &mut targets, || Ok(()))?;
        Ok(copies)
    }

    /// Copies of what the area of a running program has.
    fn of_program(&self, path: &Path) -> Result<Vec<PathBuf>, FilesError> {
        let options = FollowOptions {
            is_steady: true,
            ..FollowOptions::default()
        };
        let follower = Follower::open(path, options)?;
        for _ in 0..ATTEMPTS {
            match self.attempt(&follower) {
                Err(FilesError::Area(AreaError::SnapshotGone)) | Ok(None) => {}
                Err(error) => return Err(error),
                Ok(Some(copies)) => return Ok(copies),
            }
        }
        Err(FilesError::Changing)
    }

    /// `None` if the copies lack something.
    fn attempt(&self, follower: &Follower) -> Result<Option<Vec<PathBuf>>, FilesError> {
        follower.refresh()?;
        let began = Moment::of(follower)?;
        self.keep_originals(began.described.iter().map(|(_, it)| it))?;
        let mut targets = BTreeMap::new();
        for (id, description) in &began.described {
            if !description.is_fresh
                && let Some(target) = self.copy(*id, description)?
            {
                targets.insert(*id, target);
            }
        }
        follower.refresh()?;
        let moment = Moment::of(follower)?;
        self.keep_originals(moment.described.iter().map(|(_, it)| it))?;
        let copied = |id| targets.contains_key(&id);
        let is_whole = moment.positions.start <= began.positions.end
            && moment.described.iter().all(|(id, it)| it.is_fresh || copied(*id));
        let is_kept = |id| is_whole && moment.described.iter().any(|(it, _)| *it == id);
        let gone: Vec<FileId> = targets.keys().copied().filter(|id| !is_kept(*id)).collect();
        for target in gone.iter().filter_map(|id| targets.remove(id)) {
            let original = target.path.strip_prefix(self.directory);
            let original = original.expect("it was made there");
            at(&target.path, self.beneath.remove(original))?;
        }
        if !is_whole {
            return Ok(None);
        }
        for (id, description) in moment.described.iter().filter(|(_, it)| it.is_fresh) {
            targets.insert(*id, self.create(description)?);
        }
        let mut ahead = VecDeque::new();
        let end = moment.positions.end;
        let read = |position: u64| {
            if ahead.is_empty() {
                let step = position..end.min(position + STEP);
                ahead = follower.read_many(moment.writes, step)?.into();
            }
            Ok(ahead.pop_front().flatten())
        };
        replay(moment.positions.clone(), read, &mut targets, || Ok(()))?;
        Ok(Some(targets.into_values().map(|it| it.path).collect()))
    }

    /// A copy of what a file is now. `None` if it is not where it should be: it is just being moved.
    fn copy(&self, id: FileId, description: &Description) -> Result<Option<Target>, FilesError> {
        let subject = judge(id, description.clone(), Claim::default())?;
        let found = match subject.file {
            Some(file) => Ok(file),
            None => File::open(&subject.path),
        };
        let mut file = match found {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            found => at(&subject.path, found)?,
        };
        let is_it = at(&subject.path, look_at(&file))?
            .identity
            .is_same_file(&description.identity);
        if !is_it {
            return Ok(None);
        }
        let mut target = self.create(description)?;
        at(&target.path, copy_content(&mut file, &mut target.file))?;
        Ok(Some(target))
    }
}

/// Files and changes that an area which is followed has at a moment.
struct Moment {
    /// Files that are there.
    described: Vec<(FileId, Description)>,
    writes: StructureId,
    /// Of the log of changes.
    positions: Range<u64>,
}

impl Moment {
    fn of(follower: &Follower) -> Result<Self, FilesError> {
        let mut moment = Self {
            described: Vec::new(),
            writes: StructureId(0),
            positions: 0..0,
        };
        // Its program makes both before it follows a file.
        let find = |name| follower.structure(name).map(|(id, _)| id);
        if let (Some(map), Some(writes)) = (find(files::FILES_NAME), find(files::WRITES_NAME)) {
            let keys = follower.keys(map)?;
            let all: Vec<&[u8]> = keys.iter().map(|key| &**key).collect();
            let (mut described, _) = parse(&keys, follower.get_many(map, &all)?)?;
            described.retain(|(_, it)| !it.is_removed);
            moment = Self {
                described,
                writes,
                positions: follower.positions(writes),
            };
        }
        Ok(moment)
    }
}

/// The path of the original without its first slash.
fn below_root(description: &Description) -> &Path {
    let path = path_of(description);
    path.strip_prefix("/").unwrap_or(path)
}

/// Copies a file's bytes, and its rights after them.
fn copy_content(from: &mut File, to: &mut File) -> io::Result<()> {
    io::copy(from, to)?;
    let mode = from.metadata()?.permissions().mode();
    to.set_permissions(Permissions::from_mode(mode & 0o777))
}

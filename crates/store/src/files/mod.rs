//! Files of unmodified programs: which of their changes the log has, and what a sync of one takes (docs/format/files.md).
//!
//! [`Files`] decides and does no I/O. The owner of the descriptors (`area::files`) makes a change, logs the entries that
//! [`Files`] names, and carries out syncs and checkpoints. An area holds [`Description`]s and [`Change`]s.
//!
//! # Invariants
//! - A file that is not behind is what the file system has durably and the log's changes after that, or ends in them.
//! - A number of the log is never used for two files. A file gets another one when the log forgets what it has of it, so that older
//!   changes are nobody's.
//! - The program changes a described file only while the area holds a [`Claim`] durably.

mod place;
mod recovery;

pub use place::{NO_UUID, Place};
pub use recovery::{Evidence, Fate, Malformed, Outcome, Present, least_sizes, outcomes, replay};

use crate::format::{u32_at, u64_at};
use place::PLACE_BYTES;
use std::collections::BTreeMap;

/// Name of the map of descriptions.
pub const FILES_NAME: &str = "files";
/// Name of the log of changes.
pub const WRITES_NAME: &str = "writes";
/// Bytes of a change's entry.
pub const CHANGE_BYTES: usize = 32;
const DESCRIPTION_BYTES: usize = 40;
/// The page cache of a file that could not be synced: no boot and mount have it.
pub const NO_CACHE: u64 = 0;
const FRESH: u8 = 1;
const REMOVED: u8 = 2;
const PLACED: u8 = 4;
const DATED: u8 = 8;
const DATE_BYTES: usize = 8;

/// Number of a file, and of what the area has of it; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileId(pub u64);

impl FileId {
    /// Its key in the map.
    pub fn key(self) -> [u8; 8] {
        self.0.to_le_bytes()
    }

    /// The number that a key is.
    pub fn parse(key: &[u8]) -> Option<Self> {
        Some(Self(u64::from_le_bytes(key.try_into().ok()?)))
    }
}

/// Until when the files of an area may change by its own program. A file that changed later has *moved on*: recovery leaves
/// it alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claim {
    /// By the machine's clock, in ns since 1970.
    pub until_ns: u64,
}

impl Claim {
    /// Its place in the map of descriptions: a number that no file gets.
    pub const PLACE: FileId = FileId(0);

    /// Its value in the map.
    pub fn emit(self) -> [u8; 8] {
        self.until_ns.to_le_bytes()
    }

    /// The claim that a value is; `None` if it is none.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let until_ns = u64::from_le_bytes(bytes.try_into().ok()?);
        Some(Self { until_ns })
    }
}

/// Which file a path led to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Its inode.
    pub inode: u64,
    /// When that was made, in ns. If the file system does not tell, a number below 10⁹ that tells the inode's files apart; 0 without that.
    pub born_ns: u64,
    /// Hash of the boot and the time that the file system was mounted: as long as it is the same, so is the page cache.
    pub cache: u64,
    /// Hash of the boot and the device: it tells files of one program apart, and is not kept. 0 in what was read.
    pub device: u64,
}

impl Identity {
    /// True if both are the same file, whichever page cache it is in.
    pub fn is_same_file(&self, other: &Self) -> bool {
        (self.inode, self.born_ns) == (other.inode, other.born_ns)
    }

    /// True if both are the same file at one time, by whichever mount.
    fn is_same_now(&self, other: &Self) -> bool {
        self.is_same_file(other) && self.device == other.device
    }
}

/// A file as the area describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description {
    /// Absolute.
    pub path: Vec<u8>,
    /// The handle by which its file system finds it under any name: the type (i32) and the bytes of open_by_handle_at(2). Empty
    /// if the file system gives none. At most 255 bytes.
    pub handle: Vec<u8>,
    /// Which it is.
    pub identity: Identity,
    /// The mount that it was on; `None` in areas of before version 3, and where nobody can tell.
    pub place: Option<Place>,
    /// What the file system has durably changed not before (ctime, ns since 1970): the file, or the directory of a fresh one. 0 if nobody
    /// knows. A file system that is older was brought back from a backup.
    pub since_ns: u64,
    /// Mode, user and group, to make it again.
    pub owner: [u32; 3],
    /// The log has all that it holds.
    pub is_fresh: bool,
    /// It was removed, or is about to be; or it was given up: the file system alone has it.
    pub is_removed: bool,
}

impl Description {
    /// Its value in the map.
    pub fn emit(&self) -> Vec<u8> {
        let mut bytes = vec![0; DESCRIPTION_BYTES];
        bytes[0] = if self.is_fresh { FRESH } else { 0 } | if self.is_removed { REMOVED } else { 0 };
        if let Some(place) = &self.place {
            bytes[0] |= PLACED;
            bytes[2..4].copy_from_slice(&place.mount_bytes.to_le_bytes());
            bytes.extend_from_slice(&place.emit());
        }
        if self.since_ns != 0 {
            bytes[0] |= DATED;
            bytes.extend_from_slice(&self.since_ns.to_le_bytes());
        }
        bytes[1] = u8::try_from(self.handle.len()).expect("handles are that short");
        for (index, part) in self.owner.iter().enumerate() {
            bytes[4 + 4 * index..][..4].copy_from_slice(&part.to_le_bytes());
        }
        let Identity {
            inode,
            born_ns,
            cache,
            device: _,
        } = self.identity;
        for (index, part) in [inode, born_ns, cache].iter().enumerate() {
            bytes[16 + 8 * index..][..8].copy_from_slice(&part.to_le_bytes());
        }
        bytes.extend_from_slice(&self.handle);
        bytes.extend_from_slice(&self.path);
        bytes
    }

    /// The description that a value is; `None` if it is none.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (fixed, mut rest) = bytes.split_at_checked(DESCRIPTION_BYTES)?;
        let mut place = None;
        if fixed[0] & PLACED != 0 {
            let mount_bytes = u16::from_le_bytes([fixed[2], fixed[3]]);
            let (part, others) = rest.split_first_chunk::<PLACE_BYTES>()?;
            place = Some(Place::parse(mount_bytes, part));
            rest = others;
        }
        let mut since_ns = 0;
        if fixed[0] & DATED != 0 {
            let (part, others) = rest.split_first_chunk::<DATE_BYTES>()?;
            since_ns = u64::from_le_bytes(*part);
            rest = others;
        }
        let (handle, path) = rest.split_at_checked(usize::from(fixed[1]))?;
        let is_short = |it: Place| usize::from(it.mount_bytes) > path.len();
        let is_sound = fixed[0] & !(FRESH | REMOVED | PLACED | DATED) == 0
            && path.first() == Some(&b'/')
            && !place.is_some_and(is_short);
        is_sound.then(|| Self {
            path: path.to_vec(),
            handle: handle.to_vec(),
            identity: Identity {
                inode: u64_at(fixed, 16),
                born_ns: u64_at(fixed, 24),
                cache: u64_at(fixed, 32),
                device: 0,
            },
            place,
            since_ns,
            owner: [u32_at(fixed, 4), u32_at(fixed, 8), u32_at(fixed, 12)],
            is_fresh: fixed[0] & FRESH != 0,
            is_removed: fixed[0] & REMOVED != 0,
        })
    }
}

/// An entry of the log of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Whose.
    pub file: FileId,
    /// Entries of data that follow; `None` for a resize, which has none.
    pub pieces: Option<u32>,
    /// Destination of the data.
    pub offset: u64,
    /// Bytes of the whole file afterwards.
    pub size: u64,
}

impl Change {
    /// Its entry.
    pub fn emit(&self) -> [u8; CHANGE_BYTES] {
        let mut bytes = [0; CHANGE_BYTES];
        bytes[0] = if self.pieces.is_some() { 1 } else { 2 };
        bytes[4..8].copy_from_slice(&self.pieces.unwrap_or(0).to_le_bytes());
        for (index, part) in [self.file.0, self.offset, self.size].iter().enumerate() {
            bytes[8 + 8 * index..][..8].copy_from_slice(&part.to_le_bytes());
        }
        bytes
    }

    /// The change that an entry is; `None` if it is none.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; CHANGE_BYTES] = bytes.try_into().ok()?;
        let pieces = u32_at(bytes, 4);
        Some(Self {
            file: FileId(u64_at(bytes, 8)),
            pieces: match (bytes[0], pieces) {
                (1, 1..) => Some(pieces),
                (2, 0) => None,
                _ => return None,
            },
            offset: u64_at(bytes, 16),
            size: u64_at(bytes, 24),
        })
    }
}

/// Limits of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLimits {
    /// Bytes that a file may change without a sync before the log stops following it: a sync of so much costs the file
    /// system little more than the log.
    pub unsynced_bytes_max: u64,
    /// Bytes of the log at which a checkpoint is due.
    pub checkpoint_bytes: u64,
}

/// Work that makes a file durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncBy {
    /// The area: the log has everything.
    Log,
    /// The file system, and then the area forgets the file ([`Files::settle`]): it is behind.
    Settle,
    /// The file system: it was removed or given up.
    FileSystem,
}

/// A checkpoint under way.
#[derive(Debug)]
pub struct Round {
    number: u64,
    /// Files to sync, and whether their directory is, too.
    pub files: Vec<(FileId, bool)>,
}

/// Changes of a checkpoint in the map of descriptions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// This is the file's description now.
    Put(FileId, Vec<u8>),
    /// The area needs nothing of the file any more.
    Forget(FileId),
}

struct File {
    /// What the log and the map call it.
    number: FileId,
    description: Description,
    size: u64,
    /// Descriptors of the program.
    opens: u32,
    /// The map has it.
    is_described: bool,
    /// Its directory was synced since it was opened first.
    is_named: bool,
    /// Names it had at its last sync, or when it was opened first.
    links: u32,
    /// The map has an old path of it.
    has_moved: bool,
    /// Checkpoints that had begun at its last change that was logged, and at the last that was not.
    logged: Option<u64>,
    missed: Option<u64>,
    /// Checkpoints that had begun when it was removed.
    removed: Option<u64>,
    unsynced_bytes: u64,
    /// A change was logged after the last sync.
    has_news: bool,
}

/// The files of one program.
pub struct Files {
    files: BTreeMap<FileId, File>,
    limits: FileLimits,
    next: u64,
    rounds: u64,
    logged_bytes: u64,
}

impl Files {
    /// No files; `next` is the first number that was never used.
    pub fn new(limits: FileLimits, next: FileId) -> Self {
        Self {
            files: BTreeMap::new(),
            limits,
            next: next.0,
            rounds: 0,
            logged_bytes: 0,
        }
    }

    /// A descriptor for the file was opened, with `size` bytes in it; true if the file was not known.
    pub fn open(&mut self, description: Description, size: u64) -> (FileId, bool) {
        let mut all = self.files.iter_mut();
        // One that was removed keeps its inode while it is open.
        let known = all.find(|(_, it)| {
            it.description.identity.is_same_now(&description.identity)
                && (it.opens > 0 || !it.description.is_removed)
        });
        if let Some((&id, file)) = known {
            file.opens += 1;
            return (id, false);
        }
        let id = FileId(self.next);
        self.next += 1;
        let file = File {
            number: id,
            description: Description {
                is_fresh: size == 0,
                is_removed: false,
                ..description
            },
            size,
            opens: 1,
            is_described: false,
            is_named: false,
            links: 1,
            has_moved: false,
            logged: None,
            missed: (size > 0).then_some(self.rounds),
            removed: None,
            unsynced_bytes: 0,
            has_news: false,
        };
        self.files.insert(id, file);
        (id, true)
    }

    /// Another descriptor of an open file.
    pub fn duplicate(&mut self, id: FileId) {
        self.file(id).opens += 1;
    }

    /// A descriptor was closed; true if nothing is known of the file any more.
    pub fn close(&mut self, id: FileId) -> bool {
        let file = self.file(id);
        file.opens -= 1;
        let is_done = file.opens == 0 && !file.is_described;
        if is_done {
            self.files.remove(&id);
        }
        is_done
    }

    /// What the map calls the file.
    pub fn number(&self, id: FileId) -> FileId {
        self.files[&id].number
    }

    fn file(&mut self, id: FileId) -> &mut File {
        self.files.get_mut(&id).expect("numbers come from open")
    }

    /// The file's path.
    pub fn path(&self, id: FileId) -> &[u8] {
        &self.files[&id].description.path
    }

    /// The files at `path`, and below it.
    pub fn at<'a>(&'a self, path: &'a [u8]) -> impl Iterator<Item = FileId> + 'a {
        let is_there = |it: &File| {
            let below = it.description.path.strip_prefix(path);
            !it.description.is_removed && below.is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
        };
        self.files
            .iter()
            .filter(move |(_, it)| is_there(it))
            .map(|(&id, _)| id)
    }

    /// Files that were removed from `path`, and that the map describes as removed.
    pub fn removed_at<'a>(&'a self, path: &'a [u8]) -> impl Iterator<Item = FileId> + 'a {
        let was_there =
            move |it: &File| it.description.is_removed && it.is_described && it.description.path == path;
        let all = self.files.iter().filter(move |(_, it)| was_there(it));
        all.map(|(&id, _)| id)
    }

    /// `count` bytes at `offset` were written: the change to log with so many pieces, after the description if there is one. `None`
    /// if the log does not follow the file now. A write that begins beyond the file's end is not logged: what is before it is
    /// a hole, or somebody else's.
    pub fn write(
        &mut self,
        id: FileId,
        offset: u64,
        count: u64,
        pieces: u32,
    ) -> Option<(Option<Vec<u8>>, Change)> {
        let end = offset + count;
        let before = self.files[&id].size;
        if offset > before {
            self.missed(id);
        }
        let size = before.max(end);
        self.change(id, size, count, Some(pieces), offset)
    }

    /// The file has `size` bytes now: the change to log, as [`Files::write`].
    pub fn resize(&mut self, id: FileId, size: u64) -> Option<(Option<Vec<u8>>, Change)> {
        self.change(id, size, 0, None, 0)
    }

    fn change(
        &mut self,
        id: FileId,
        size: u64,
        count: u64,
        pieces: Option<u32>,
        offset: u64,
    ) -> Option<(Option<Vec<u8>>, Change)> {
        let (rounds, unsynced_bytes_max) = (self.rounds, self.limits.unsynced_bytes_max);
        let file = self.file(id);
        file.size = size;
        file.unsynced_bytes += count;
        if file.description.is_removed {
            return None;
        }
        if file.missed.is_some() || file.unsynced_bytes > unsynced_bytes_max {
            file.missed = Some(rounds);
            return None;
        }
        let change = Change {
            file: file.number,
            pieces,
            offset,
            size,
        };
        let description = (!file.is_described).then(|| file.description.emit());
        Some((description, change))
    }

    /// The change that was asked for is in the log, of which it takes `bytes`.
    pub fn logged(&mut self, id: FileId, bytes: u64) {
        let rounds = self.rounds;
        let file = self.file(id);
        file.is_described = true;
        file.logged = Some(rounds);
        file.has_news = true;
        self.logged_bytes += bytes;
    }

    /// The change is not in the log: the area was full, or it cannot be followed.
    pub fn missed(&mut self, id: FileId) {
        let rounds = self.rounds;
        self.file(id).missed = Some(rounds);
    }

    /// True if the file has this size: nobody else writes it.
    pub fn has_size(&self, id: FileId, size: u64) -> bool {
        self.files[&id].size == size
    }

    /// The file has this size, and the log does not know how that came.
    pub fn surprise(&mut self, id: FileId, size: u64) {
        self.missed(id);
        self.file(id).size = size;
    }

    /// The file has so many names when it is synced. The log knows one of them, so the file system has to sync a file that has others, or
    /// had others at its last sync.
    pub fn has_links(&mut self, id: FileId, links: u32) {
        let file = self.file(id);
        if core::mem::replace(&mut file.links, links) != links || links > 1 {
            self.missed(id);
        }
    }

    /// The file has this mode, user and group when it is synced. The log has none of them, so the file system has to sync a change.
    pub fn has_owner(&mut self, id: FileId, owner: [u32; 3]) {
        let described = &mut self.file(id).description.owner;
        if core::mem::replace(described, owner) != owner {
            self.missed(id);
        }
    }

    /// True if the log has changes of the file and will not have its next one.
    pub fn is_falling_behind(&self, id: FileId) -> bool {
        let file = &self.files[&id];
        let is_much = file.unsynced_bytes > self.limits.unsynced_bytes_max;
        file.is_described && !file.description.is_removed && (is_much || file.missed.is_some())
    }

    /// A change to log before a sync, though nothing changed: so that a new file without data is there afterwards.
    pub fn announce(&mut self, id: FileId) -> Option<(Option<Vec<u8>>, Change)> {
        let file = &self.files[&id];
        let is_unknown = file.description.is_fresh && !file.is_described;
        is_unknown
            .then(|| self.resize(id, self.files[&id].size))
            .flatten()
    }

    /// Work that makes all writes to the file up to now durable, for one who `has_written` since its own last sync. A sync
    /// without anything new is for changes that the log did not see.
    pub fn sync(&mut self, id: FileId, has_written: bool) -> SyncBy {
        let rounds = self.rounds;
        let file = self.file(id);
        let has_news = core::mem::take(&mut file.has_news);
        if !(has_news || has_written) {
            file.missed = Some(rounds);
        }
        if file.description.is_removed {
            return SyncBy::FileSystem;
        }
        if file.missed.is_some() {
            return SyncBy::Settle;
        }
        file.unsynced_bytes = 0;
        SyncBy::Log
    }

    /// The file is about to be removed, or given up: what the map must say of it before, if it has it. A checkpoint may have
    /// forgotten the file, as one that nobody has open.
    pub fn remove(&mut self, id: FileId) -> Option<Vec<u8>> {
        let rounds = self.rounds;
        let file = self.files.get_mut(&id)?;
        file.description.is_removed = true;
        file.removed = Some(rounds);
        file.is_described.then(|| file.description.emit())
    }

    /// The removal failed: the file is behind, as the log has given it up.
    pub fn restore(&mut self, id: FileId) {
        let rounds = self.rounds;
        if let Some(file) = self.files.get_mut(&id) {
            file.missed = Some(rounds);
            file.description.is_removed = false;
            file.removed = None;
        }
    }

    /// The file, or a directory above it, moved from `from` to `to`. Only after [`Files::settle`], with no change since.
    pub fn renamed(&mut self, id: FileId, from: &[u8], to: &[u8]) {
        let file = self.file(id);
        assert!(!file.is_described, "the map says where the file was");
        let rest = &file.description.path[from.len()..];
        file.description.path = [to, rest].concat();
        let place = file.description.place;
        file.description.place = place.and_then(|it| it.renamed(from, to));
    }

    /// The file's path is this one now, by somebody else's doing, and `place` tells its mount. The next [`Files::end_checkpoint`]
    /// puts both in the map.
    pub fn moved(&mut self, id: FileId, path: &[u8], place: impl FnOnce() -> Option<Place>) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        if file.description.path != path {
            file.description.path = path.to_vec();
            file.description.place = place();
            file.has_moved = true;
            if file.description.is_fresh {
                file.description.since_ns = 0;
            }
        }
    }

    /// Somebody else has taken the file's last name: it is the file system's alone.
    pub fn vanished(&mut self, id: FileId) {
        let rounds = self.rounds;
        if let Some(file) = self.files.get_mut(&id) {
            file.has_moved |= !file.description.is_removed;
            file.description.is_removed = true;
            file.removed.get_or_insert(rounds);
        }
    }

    /// Work by which the file system has all of the file: to sync it, and its directory, too, if true. `None` if there is nothing to
    /// do.
    pub fn unsettled(&self, id: FileId) -> Option<bool> {
        let file = self.files.get(&id)?;
        let needs = file.is_described || file.missed.is_some();
        needs.then_some(!file.is_named || file.has_moved || file.description.is_removed)
    }

    /// The file, which had last changed at `since_ns`, was synced as [`Files::unsettled`] says, and has not changed since: the number that
    /// the map has to forget, durably. What the log has of the file is nobody's then.
    pub fn settle(&mut self, id: FileId, since_ns: u64) -> Option<FileId> {
        let next = FileId(self.next);
        let file = self.files.get_mut(&id)?;
        file.description.since_ns = since_ns;
        (file.missed, file.logged, file.unsynced_bytes) = (None, None, 0);
        (file.is_named, file.has_moved, file.description.is_fresh) = (true, false, false);
        let forgotten = core::mem::take(&mut file.is_described).then_some(file.number);
        if forgotten.is_some() {
            file.number = next;
            self.next += 1;
        }
        if self.files[&id].opens == 0 {
            self.files.remove(&id);
        }
        forgotten
    }

    /// The file could not be synced, and the kernel may have given up its pages: its description from now on, by which recovery makes
    /// the log's changes again. `None` if the log has none.
    pub fn distrust(&self, id: FileId) -> Option<(FileId, Vec<u8>)> {
        let file = self.files.get(&id)?;
        let mut description = file.description.clone();
        description.identity.cache = NO_CACHE;
        file.is_described.then(|| (file.number, description.emit()))
    }

    /// The file that the map calls so.
    pub fn numbered(&self, number: FileId) -> Option<FileId> {
        let mut all = self.files.iter();
        all.find_map(|(&id, it)| (it.number == number).then_some(id))
    }

    /// True if the file was removed, or given up.
    pub fn is_removed(&self, id: FileId) -> bool {
        self.files.get(&id).is_none_or(|it| it.description.is_removed)
    }

    /// Files that nobody has open, and of which the area has something.
    pub fn closed(&self) -> usize {
        self.files.values().filter(|it| it.opens == 0).count()
    }

    /// Changes that are in the log, or missing there, since the last checkpoint: it grows with each.
    pub fn logged_bytes(&self) -> u64 {
        self.logged_bytes
    }

    /// True if a checkpoint has something to do.
    pub fn is_unsettled(&self) -> bool {
        self.files.values().any(|it| it.is_described)
    }

    /// True if the log should be shortened.
    pub fn is_checkpoint_due(&self) -> bool {
        self.logged_bytes >= self.limits.checkpoint_bytes
    }

    /// Begins a checkpoint: the files to sync. The log is trimmed to its present end when [`Files::end_checkpoint`] says so.
    pub fn begin_checkpoint(&mut self) -> Round {
        self.rounds += 1;
        self.logged_bytes = 0;
        let needed = |it: &&File| it.is_described || it.missed.is_some();
        let all = self.files.iter().filter(|(_, it)| needed(it));
        let files = all.map(|(&id, it)| (id, !it.is_named || it.description.is_removed));
        Round {
            number: self.rounds,
            files: files.collect(),
        }
    }

    /// The directory of a fresh file, which had last changed at `since_ns`, is durable with what it had then: the description from now on.
    pub fn dated(&mut self, id: FileId, since_ns: u64) -> Option<(FileId, Vec<u8>)> {
        let file = self.files.get_mut(&id).filter(|it| it.description.is_fresh)?;
        file.description.since_ns = since_ns;
        file.is_described.then(|| (file.number, file.description.emit()))
    }

    /// Fresh files of which no date is known.
    pub fn undated(&self) -> impl Iterator<Item = FileId> + '_ {
        let is_undated =
            |it: &File| it.description.is_fresh && it.description.since_ns == 0 && it.is_described;
        let all = self.files.iter().filter(move |(_, it)| is_undated(it));
        all.map(|(&id, _)| id)
    }

    /// All files of the checkpoint are durable, as they were last changed at these times (0: nobody knows): what changes in the map, in one
    /// batch with the log's trim.
    pub fn end_checkpoint(&mut self, round: &Round, since_ns: &BTreeMap<FileId, u64>) -> Vec<Settled> {
        let mut settled = Vec::new();
        let before = |at: Option<u64>| at.is_some_and(|at| at < round.number);
        for &(id, _) in &round.files {
            let Some(file) = self.files.get_mut(&id) else {
                continue;
            };
            if file.removed.is_some() && !before(file.removed) {
                // Its directory was not synced after the removal: the next checkpoint's.
                continue;
            }
            if before(file.missed) {
                file.missed = None;
                file.unsynced_bytes = 0;
            }
            if before(file.logged) {
                file.logged = None;
            }
            file.is_named = true;
            file.description.is_fresh = false;
            file.has_moved = false;
            file.description.since_ns = since_ns.get(&id).copied().unwrap_or(0);
            match (file.logged.is_some(), file.is_described) {
                (true, _) => settled.push(Settled::Put(file.number, file.description.emit())),
                (false, false) => {}
                (false, true) => {
                    settled.push(Settled::Forget(file.number));
                    file.is_described = false;
                }
            }
            if file.opens == 0 && !file.is_described {
                self.files.remove(&id);
            }
        }
        settled
    }

    /// A file with this inode, if there is one, in whichever file system.
    pub fn has_inode(&self, inode: u64) -> bool {
        self.files
            .values()
            .any(|it| it.description.identity.inode == inode)
    }

    /// The file that is this one.
    pub fn find(&self, identity: &Identity) -> Option<FileId> {
        let is_it = |it: &File| it.description.identity.is_same_now(identity) && !it.description.is_removed;
        let mut all = self.files.iter();
        all.find_map(|(&id, it)| is_it(it).then_some(id))
    }

    /// All files.
    pub fn all(&self) -> impl Iterator<Item = FileId> + '_ {
        self.files.keys().copied()
    }

    /// Descriptors that are open for a file; none if it is not known.
    pub fn opens(&self, id: FileId) -> Option<u32> {
        self.files.get(&id).map(|file| file.opens)
    }
}

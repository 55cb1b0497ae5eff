//! Opening: what logs have goes into the tree, orphans are deleted, and one log is given a new nonce (docs/format/fs.md, "After a cut",
//! "One writer").

use super::failure::Options;
use super::sharing::permitted;
use crate::media::{Disks, First};
use crate::window::{Window, ring_bytes, ring_in_window};
use fs::client::{Caller, Client as Calls, Options as CallOptions};
use fs::digest::{Batch, DigestError, delete_orphan, digest};
use fs::edit::Room;
use fs::format::{BLOCK_BYTES, Key, Kind};
use fs::grants::{Grants, Rights};
use fs::lease::MOVES;
use fs::log::{Frame, Next, Reader, Ring};
use fs::media::{Error, Media, Volume};
use fs::op::Action;
use fs::overlay::Below;
use fs::tree::{Tree, View};
use fs::value::{LogRecord, Part, Run};
use thiserror::Error as ErrorOf;

/// Frames that are digested at once have so many bytes, about.
const BATCH_BYTES: u64 = 4 << 20;
/// Bytes of a log that is not told its size, at most: more costs time after a cut.
const LOG_BYTES_MAX: u64 = 64 << 20;
/// Bytes of a log, at least: room for four frames of the smallest size that is useful.
pub const LOG_BYTES_MIN: u64 = 128 << 10;

/// Why a file system does not open.
#[derive(Debug, ErrorOf)]
pub enum OpenError {
    /// The devices are not those of a file system, are damaged, or fail.
    #[error("{0}")]
    Tree(#[from] Error),
    /// A log cannot be where the tree says that it is.
    #[error("log {0} makes no sense: run `switchyard fs check`")]
    Log(u64),
    /// A frame is damaged that was durable once: calls behind it were acknowledged, and are lost.
    #[error(
        "log {log} is damaged at position {position}: acknowledged calls behind it are lost; run `switchyard fs check`, and mount \
         with --despite-damage to go on without them"
    )]
    Damaged {
        /// The log.
        log: u64,
        /// Where its readable part ends.
        position: u64,
    },
    /// The bytes of a process's log are in a window, which cannot be had.
    #[error(
        "the window of log {log} cannot be had ({why}): acknowledged calls of its process are lost; put the file back, or mount with \
         --despite-damage to go on without them"
    )]
    Window {
        /// The log.
        log: u64,
        /// Why.
        why: std::io::ErrorKind,
    },
    /// There is no room for a log.
    #[error("device 0 has no room for a log of {0} bytes: give a smaller log")]
    NoRoom(u64),
}

impl From<DigestError> for OpenError {
    fn from(error: DigestError) -> Self {
        match error {
            DigestError::Tree(error) => Self::Tree(error),
            DigestError::NoLog(log) => Self::Log(log),
            DigestError::Position { .. } => unreachable!("a log is read from where the tree has digested it"),
        }
    }
}

/// What an opening has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Frames that were not in the tree.
    pub frames: u64,
    /// Calls of them, about: their operations.
    pub operations: u64,
    /// Operations that could not be done.
    pub refused: u64,
    /// Files without a name that were open, deleted.
    pub orphans: u64,
    /// Logs with damage, and where.
    pub damaged: Vec<(u64, u64)>,
}

/// What an opening gives.
pub(crate) struct Opened {
    pub volume: Volume,
    pub tree: Tree,
    pub grants: Grants,
    pub log: u64,
    pub record: LogRecord,
    pub ring: Ring,
    pub recovery: Recovery,
}

/// Whose leases a batch is digested with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leasing {
    /// The one client of a file system has a lease of everything.
    All,
    /// Those that were given.
    Given,
    /// After a crash nobody remembers: what the user may do by permissions.
    Permitted,
}

/// The ring of a log on device 0.
pub(crate) fn ring_of(number: u64, record: &LogRecord) -> Result<Ring, OpenError> {
    Ring::new(record.nonce, u32::from(record.sector), &record.extents).ok_or(OpenError::Log(number))
}

/// Opens a file system, so that a new writer may write to its log.
pub(crate) fn open(disks: &Disks, options: &Options) -> Result<Opened, OpenError> {
    let volume = Volume::read(disks)?;
    let mut tree = Tree::open(disks, &volume, options.cache_bytes)?;
    if let Some(error) = tree.refuses() {
        return Err(error.into());
    }
    let mut opening = Opening {
        disks: disks.clone(),
        tree: &mut tree,
        grants: grants_of_all(),
        recovery: Recovery::default(),
    };
    let logs = logs_of(opening.tree, disks)?;
    // What any record names is nobody's new block, from the first digest on.
    let mut ended = Vec::new();
    let mut rest = Vec::new();
    for (number, record) in logs {
        match bytes_of(disks, number, &record) {
            Ok(bytes) => rest.push((number, record, bytes)),
            Err(OpenError::Window { .. }) if options.despite_damage => {
                opening.recovery.damaged.push((number, record.digested));
                ended.push((number, record));
            }
            Err(error) => return Err(error),
        }
    }
    for (number, record, bytes) in &rest {
        // A process that lives on acknowledges nothing from now on.
        if let Bytes::Window(_, window) = bytes {
            window.close();
        } else {
            read_log(bytes, (*number, record), |frames| opening.claim(frames))?;
        }
    }
    for (number, record, bytes) in rest {
        ended.push((number, opening.apply((number, &bytes), record, options)?));
    }
    opening.delete_orphans()?;
    let (log, record) = opening.give_log(ended, options)?;
    let Opening { grants, recovery, .. } = opening;
    // Both roots are to have the log before its first frame is written.
    for _ in 0..2 {
        tree.commit(&mut disks.clone())?;
    }
    disks.beside().sweep();
    Ok(Opened {
        ring: ring_of(log, &record)?,
        volume,
        tree,
        grants,
        log,
        record,
        recovery,
    })
}

/// The file system's only client may do everything.
fn grants_of_all() -> Grants {
    let mut grants = Grants::default();
    grants.inodes = 0..u64::MAX;
    grants
}

/// A log of a file system that is not open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogState {
    /// Its number.
    pub number: u64,
    /// Operations that are not in the tree.
    pub operations: u64,
    /// A frame is damaged that was durable once.
    pub is_damaged: bool,
    /// Where its readable part ends.
    pub position: u64,
}

/// What the logs of a file system have that is not in its tree. Nothing is changed.
///
/// # Errors
/// The devices are not those of a file system, or cannot be read.
pub fn examine_logs(disks: &Disks) -> Result<Vec<LogState>, OpenError> {
    let volume = Volume::read(disks)?;
    let mut tree = Tree::open(disks, &volume, BATCH_BYTES as usize)?;
    let mut found = Vec::new();
    for (number, record) in logs_of(&mut tree, disks)? {
        let mut operations = 0;
        let read = bytes_of(disks, number, &record).and_then(|bytes| {
            read_log(&bytes, (number, &record), |frames| {
                operations += frames.iter().flat_map(Frame::ops).count() as u64;
            })
        });
        let (is_damaged, position) = match read {
            Ok((end, position)) => (end == Next::Damaged && record.window.is_none(), position),
            Err(OpenError::Window { .. }) => (true, record.digested),
            Err(error) => return Err(error),
        };
        found.push(LogState {
            number,
            operations,
            is_damaged,
            position,
        });
    }
    Ok(found)
}

/// Where the bytes of a log are.
enum Bytes {
    Device(Ring, First),
    Window(Ring, Window),
}

impl Bytes {
    fn ring(&self) -> &Ring {
        match self {
            Self::Device(ring, _) | Self::Window(ring, _) => ring,
        }
    }
}

impl base::Device for Bytes {
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), base::MediaError> {
        match self {
            Self::Device(_, first) => first.read_at(offset, bytes),
            Self::Window(_, window) => window.read_at(offset, bytes),
        }
    }

    fn write_at(&mut self, _: u64, _: &[u8]) -> Result<(), base::MediaError> {
        unreachable!("logs are only read here")
    }

    fn flush(&mut self) -> Result<(), base::MediaError> {
        unreachable!("logs are only read here")
    }

    fn capacity_bytes(&self) -> u64 {
        match self {
            Self::Device(_, first) => first.capacity_bytes(),
            Self::Window(_, window) => window.capacity_bytes(),
        }
    }
}

/// The bytes of a log.
fn bytes_of(disks: &Disks, number: u64, record: &LogRecord) -> Result<Bytes, OpenError> {
    if record.window.is_none() {
        return Ok(Bytes::Device(ring_of(number, record)?, First(disks.clone())));
    }
    let ring = ring_in_window(record.nonce, u32::from(record.sector), ring_bytes(record));
    let window = disks.beside().find(number).map_err(|source| OpenError::Window {
        log: number,
        why: source.kind(),
    })?;
    Ok(Bytes::Window(ring.ok_or(OpenError::Log(number))?, window))
}

/// Gives all frames of a log that the tree lacks, some at a time. How the log ends, and where.
fn read_log(
    bytes: &Bytes,
    (number, record): (u64, &LogRecord),
    mut each: impl FnMut(&[Frame]),
) -> Result<(Next, u64), OpenError> {
    let mut reader = Reader::new(bytes.ring(), bytes, record.digested).ok_or(OpenError::Log(number))?;
    loop {
        let (frames, end) = read_frames(&mut reader, u64::MAX).map_err(|error| Error::Media {
            place: record.extents[0].place,
            error,
        })?;
        each(&frames);
        if let Some(end) = end {
            return Ok((end, reader.position()));
        }
    }
}

fn logs_of(tree: &mut Tree, disks: &Disks) -> Result<Vec<(u64, LogRecord)>, OpenError> {
    let keys = Key::new(0, Kind::Log, 0)..=Key::new(0, Kind::Log, u64::MAX);
    let mut range = tree.range(View::Pending, keys);
    let mut logs = Vec::new();
    while let Some((key, value)) = range.next(tree, disks)? {
        let record = LogRecord::parse(&value).map_err(|_| OpenError::Log(key.number))?;
        logs.push((key.number, record));
    }
    Ok(logs)
}

struct Opening<'t> {
    disks: Disks,
    tree: &'t mut Tree,
    grants: Grants,
    recovery: Recovery,
}

impl Opening<'_> {
    /// Digests what a log has. Its record then.
    fn apply(
        &mut self,
        (number, bytes): (u64, &Bytes),
        mut record: LogRecord,
        options: &Options,
    ) -> Result<LogRecord, OpenError> {
        let mut reader = Reader::new(bytes.ring(), bytes, record.digested).ok_or(OpenError::Log(number))?;
        // A process may write to its window what it likes, and keeps nobody from the files by that.
        let is_own = record.window.is_none();
        let mut grants = match &record.window {
            None => std::mem::take(&mut self.grants),
            Some(window) => {
                let mut grants = Grants::default();
                grants.uid = record.uid;
                (grants.gids, grants.inodes) = (window.gids.clone(), window.numbers.clone());
                grants
            }
        };
        let leasing = if is_own { Leasing::All } else { Leasing::Permitted };
        // The rest of the room is other logs'.
        let mut reserved = record.window.as_ref().and_then(|window| window.reserved);
        loop {
            let (frames, end) = match read_frames(&mut reader, u64::MAX) {
                Err(_) if !is_own => (Vec::new(), Some(Next::Damaged)),
                read => read.map_err(|error| Error::Media {
                    place: record.extents[0].place,
                    error,
                })?,
            };
            if end == Some(Next::Damaged) && !is_own {
                self.recovery.damaged.push((number, reader.position()));
            } else if end == Some(Next::Damaged) {
                let position = reader.position();
                if !options.despite_damage {
                    return Err(OpenError::Damaged {
                        log: number,
                        position,
                    });
                }
                self.recovery.damaged.push((number, position));
            }
            self.recovery.frames += frames.len() as u64;
            let log = (number, record.nonce);
            let of = (&frames[..], &mut grants, leasing);
            self.digest(log, (&mut record.digested, &mut reserved), of)?;
            if end.is_some() {
                if is_own {
                    self.grants = grants;
                }
                return Ok(record);
            }
        }
    }

    fn digest(
        &mut self,
        log: (u64, u64),
        (digested, reserved): (&mut u64, &mut Option<Part>),
        (frames, grants, leasing): (&[Frame], &mut Grants, Leasing),
    ) -> Result<(), OpenError> {
        let mut rest = frames;
        let mut is_retried = false;
        loop {
            let recovery = &mut self.recovery;
            let tell = |found: &fs::digest::Report| {
                recovery.operations += found.read as u64;
                recovery.refused += found.refused.len() as u64;
            };
            let parts = (&mut *self.tree, &mut self.disks);
            let order = |tree: &Tree, _: &[Frame]| devices_for_data(tree);
            let before = (parts.0.room(), parts.0.room_of_others());
            parts.0.keep_back(*reserved);
            let done = digest_frames(parts, log, digested, (rest, grants, leasing), (order, tell));
            self.tree.keep_back(None);
            let done = done?;
            *reserved = reserved.map(|part| {
                part.less(
                    before.0.saturating_sub(self.tree.room()),
                    before.1.saturating_sub(self.tree.room_of_others()),
                )
            });
            rest = &rest[done..];
            if rest.is_empty() {
                return Ok(());
            }
            if done == 0 && is_retried {
                return Err(Error::Full(0).into());
            }
            is_retried = done == 0;
            // Two commits later what was deleted can be used.
            for _ in 0..2 {
                self.tree.commit(&mut self.disks)?;
            }
        }
    }

    /// Takes the blocks that records name and that are free: they were granted to the log.
    fn claim(&mut self, frames: &[Frame]) {
        for op in frames.iter().flat_map(Frame::ops).flatten() {
            if let Action::Place { place, sums, .. } = &op.action {
                let run = Run {
                    place: *place,
                    blocks: sums.len() as u64,
                };
                if self.tree.claim(&self.disks, run).is_ok() {
                    self.grants.grant(run);
                }
            }
        }
    }

    fn delete_orphans(&mut self) -> Result<(), OpenError> {
        let mut is_retried = false;
        loop {
            match delete_orphan(self.tree, &mut self.disks) {
                Ok(None) => return Ok(()),
                Ok(Some(_)) => {
                    is_retried = false;
                    self.recovery.orphans += 1;
                }
                Err(Error::Full(_)) if !is_retried => {
                    is_retried = true;
                    for _ in 0..2 {
                        self.tree.commit(&mut self.disks)?;
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Gives the first log that fits a new nonce, or makes one. Others go.
    fn give_log(
        &mut self,
        logs: Vec<(u64, LogRecord)>,
        options: &Options,
    ) -> Result<(u64, LogRecord), OpenError> {
        let sector = self.disks.log_sector();
        let bytes = options
            .log_bytes
            .unwrap_or_else(|| default_log_bytes(&self.disks))
            .max(LOG_BYTES_MIN);
        let mut given = None;
        for (number, record) in logs {
            let has: u64 = record.extents.iter().map(|run| run.blocks).sum();
            let is_own = record.window.is_none();
            if given.is_none() && is_own && has == bytes.div_ceil(BLOCK_BYTES as u64) {
                given = Some((number, record));
                continue;
            }
            for run in record.extents {
                self.tree.release(&self.disks, run)?;
            }
            self.tree.remove(&self.disks, Key::new(0, Kind::Log, number))?;
        }
        let (number, mut record) = match given {
            Some(given) => given,
            None => {
                let number = self.tree.take_log();
                let extents = new_ring(self.tree, &self.disks, bytes, LogRecord::EXTENTS_MAX)?;
                let record = LogRecord {
                    extents,
                    ..LogRecord::default()
                };
                (number, record)
            }
        };
        record.nonce = os::seed();
        record.sector = sector as u16;
        record.digested = record.digested.next_multiple_of(u64::from(sector));
        let key = Key::new(0, Kind::Log, number);
        self.tree
            .insert(&self.disks, key, &record.emit(), Room::Reserve)?;
        Ok((number, record))
    }
}

/// Room for a log's ring on device 0.
pub(crate) fn new_ring(
    tree: &mut Tree,
    disks: &Disks,
    bytes: u64,
    extents_max: usize,
) -> Result<Vec<Run>, OpenError> {
    let mut extents: Vec<Run> = Vec::new();
    let mut left = bytes.div_ceil(BLOCK_BYTES as u64);
    while left > 0 {
        let near = extents.last().map(|run| run.end());
        match tree.reserve(disks, 0, left, near) {
            Ok(run) if extents.len() < extents_max => {
                tree.keep(disks, run)?;
                left -= run.blocks;
                extents.push(run);
            }
            Ok(run) => {
                tree.give_back(disks, run)?;
                break;
            }
            Err(Error::Full(_)) => break,
            Err(error) => return Err(error.into()),
        }
    }
    if left > 0 {
        for run in extents {
            tree.release(disks, run)?;
        }
        return Err(OpenError::NoRoom(bytes));
    }
    Ok(extents)
}

/// Bytes of a log that is not told its size: an eighth of device 0.
fn default_log_bytes(disks: &Disks) -> u64 {
    let bytes = Media::capacity_bytes(disks, 0) / 8 / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
    bytes.min(LOG_BYTES_MAX)
}

/// Frames up to a position, or of about [`BATCH_BYTES`]; and how the log ends, if it ends there.
pub(crate) fn read_frames<D: base::Device>(
    reader: &mut Reader<'_, D>,
    end: u64,
) -> Result<(Vec<Frame>, Option<Next>), base::MediaError> {
    let start = reader.position();
    let mut frames = Vec::new();
    while reader.position() < end && reader.position() - start < BATCH_BYTES {
        match reader.next_frame()? {
            Next::Frame(frame) => frames.push(frame),
            next => return Ok((frames, Some(next))),
        }
    }
    Ok((frames, None))
}

/// Digests frames that begin at `digested`, and moves it on. How many of them: if not all, the tree's reserve is used up, and two commits
/// later it goes on.
pub(crate) fn digest_frames(
    (tree, disks): (&mut Tree, &mut Disks),
    (log, nonce): (u64, u64),
    digested: &mut u64,
    (frames, grants, leasing): (&[Frame], &mut Grants, Leasing),
    (mut order, mut tell): (
        impl FnMut(&Tree, &[Frame]) -> Vec<u8>,
        impl FnMut(&fs::digest::Report),
    ),
) -> Result<usize, DigestError> {
    let mut done = 0;
    while done < frames.len() {
        let rest = &frames[done..];
        // With little room, deletions of one commit are to be few.
        let bytes = rest.last().map_or(0, |frame| frame.end) - *digested;
        let is_roomy = tree.room() > tree.reserve_blocks() + 2 * bytes / BLOCK_BYTES as u64 + 1024;
        let part = &rest[..if is_roomy { rest.len() } else { 1 }];
        match leasing {
            Leasing::All => lease(part, grants),
            Leasing::Given => {}
            Leasing::Permitted => permit((tree, disks), part, grants)?,
        }
        let batch = Batch::new((log, nonce, *digested), part);
        let devices = order(tree, part);
        match digest(tree, disks, batch, (grants, &devices)) {
            Ok(report) => tell(&report),
            Err(DigestError::Tree(Error::Full(_))) => break,
            Err(error) => return Err(error),
        }
        *digested = part.last().map_or(*digested, |frame| frame.end);
        done += part.len();
    }
    if leasing != Leasing::Given {
        grants.leases.clear();
    }
    Ok(done)
}

/// Devices in the order in which data of records go to them: device 0 is the last one, as only it has room for the tree.
pub(crate) fn devices_for_data(tree: &Tree) -> Vec<u8> {
    (1..tree.devices() as u8).chain([0]).collect()
}

/// The one client of a file system has a lease of everything.
fn lease(frames: &[Frame], grants: &mut Grants) {
    for op in frames.iter().flat_map(Frame::ops).flatten() {
        for inode in op.changed().into_iter().flatten() {
            grants.leases.entry(inode).or_insert(Rights::ALL);
        }
    }
}

/// What a user may change of the inodes that records name: by permissions, as nobody remembers leases.
fn permit(
    (tree, disks): (&mut Tree, &Disks),
    frames: &[Frame],
    grants: &mut Grants,
) -> Result<(), DigestError> {
    let calls = Calls::new(tree.mark(), CallOptions::default());
    let (uid, gids) = (grants.uid, grants.gids.clone());
    let caller = Caller {
        uid,
        gid: gids.first().copied().unwrap_or(u32::MAX),
        groups: Some(&gids),
        ..Caller::default()
    };
    for op in frames.iter().flat_map(Frame::ops).flatten() {
        for inode in op.changed().into_iter().flatten().filter(|inode| *inode != MOVES) {
            if grants.leases.contains_key(&inode) {
                continue;
            }
            let mut below = Below::new(tree, disks, View::Pending);
            if let Some((_, _, rights)) = permitted(&calls, &mut below, &caller, inode)? {
                grants.leases.insert(inode, rights);
            }
        }
    }
    Ok(())
}

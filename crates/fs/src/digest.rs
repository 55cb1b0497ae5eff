//! The digest: operations of a log go into the tree (Strata §3.3), each batch once, and no more than the log may do.
//!
//! A [`Batch`] is what a log has from the position that the tree knows on. [`digest`] notes the batch's end in the tree, and applies what
//! [`coalesce`] keeps of it. Nothing is durable before [`Tree::commit`], and then all of it is, with the position: so a batch is in the tree
//! once, whenever a cut comes. Several logs may be digested before a commit.
//!
//! The log is not trusted. Each operation is checked against [`Grants`] and against the files. One that does not pass is [`Refused`], and the
//! others go on. So a log that lies harms what its process may change anyway.
//!
//! The giver of grants sees to it that there is room for what processes write: an operation that finds none is refused. If the tree has
//! little room beside its reserve, digest a frame at a time: deletions of one commit take no more than [`Tree::deleting`] blocks.

use crate::coalesce::coalesce;
use crate::edit::Room;
use crate::errno::Errno;
use crate::format::{Key, Kind};
use crate::grants::{CAPABILITY, Fault, Grants, Reason, Rights};
use crate::inode::{Inode, TYPE_DIRECTORY, TYPE_FILE, TYPE_LINK, TYPE_MASK, Time};
use crate::log::Frame;
use crate::media::{Error, Media};
use crate::names::{Dirent, kind_of};
use crate::node::VALUE_BYTES_MAX;
use crate::op::{Action, Changes, Entry, Fate, Op, TARGET_BYTES_MAX, Target, check_space};
use crate::patch::Patch;
use crate::tree::Tree;
use crate::value::LogRecord;
use crate::work::{Slot, Work};
use std::collections::BTreeMap;
use thiserror::Error as ErrorOf;

/// Links of an inode, at most: `XFS_MAXLINK` of Linux.
const LINKS_MAX: u32 = i32::MAX as u32;
/// Directories above one another, at most, so that damage does not lead in a circle.
const DEPTH_MAX: usize = 1 << 16;
/// Bytes of data that are gathered before they go to blocks.
const PATCH_BYTES_MAX: usize = 16 << 20;

/// The operations of a log between two positions.
#[derive(Clone, Debug, Default)]
pub struct Batch<'a> {
    /// The log's number.
    log: u64,
    /// The nonce of its frames.
    nonce: u64,
    /// The batch begins here: the tree has what is below.
    start: u64,
    /// The batch ends here: behind its last frame.
    end: u64,
    /// Operations of its records.
    ops: Vec<Op<'a>>,
    /// Records that make no sense.
    refused: Vec<Refused>,
}

impl<'a> Batch<'a> {
    /// Of frames that follow each other from `start` on.
    pub fn new((log, nonce, start): (u64, u64, u64), frames: &'a [Frame]) -> Self {
        let mut batch = Self {
            log,
            nonce,
            start,
            end: frames.last().map_or(start, |frame| frame.end),
            ..Self::default()
        };
        for op in frames.iter().flat_map(Frame::ops) {
            match op {
                Ok(op) => batch.ops.push(op),
                Err(why) => batch.refused.push(Refused {
                    inode: 0,
                    reason: why.into(),
                }),
            }
        }
        batch
    }
}

/// An operation that was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The inode that it is about; 0 if it is not known.
    pub inode: u64,
    /// Why.
    pub reason: Reason,
}

/// The result of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Operations that the batch had.
    pub read: usize,
    /// Those that were left of them, and done.
    pub applied: usize,
    /// Those that were not done.
    pub refused: Vec<Refused>,
}

/// Why a batch is not digested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ErrorOf)]
pub enum DigestError {
    /// The tree has no such log, or one of another nonce. Nothing was changed.
    #[error("the tree has no log {0} with this nonce: read the logs that it has")]
    NoLog(u64),
    /// The batch does not begin where the last one ended. Nothing was changed.
    #[error("the log is in the tree up to {digested}, and the batch begins at {start}: read it from there")]
    Position {
        /// What the tree has.
        digested: u64,
        /// What the batch has.
        start: u64,
    },
    /// The tree has no room for the position, or a medium failed or is damaged.
    #[error("{0}")]
    Tree(#[from] Error),
}

/// Applies a batch to the tree. It is durable, and the log's position with it, when the tree is committed. Data of records go to
/// `devices`: to the first of them that has room.
///
/// `grants` follow: blocks that are now in files, or free, go out of them, inodes that were created come in.
///
/// # Errors
/// The batch is not the log's next one, or the reserve of the tree is used up ([`Error::Full`]: commit, and try again): nothing was changed.
/// Or the media fail: the tree takes no more changes, and is to be opened again.
pub fn digest(
    tree: &mut Tree,
    media: &mut dyn Media,
    batch: Batch<'_>,
    (grants, devices): (&mut Grants, &[u8]),
) -> Result<Report, DigestError> {
    tree.admit_changes()?;
    let key = Key::new(0, Kind::Log, batch.log);
    let value = tree.get(media, crate::tree::View::Pending, key)?;
    let record = value.and_then(|value| LogRecord::parse(&value).ok());
    let known = record.filter(|record| record.nonce == batch.nonce);
    let mut record = known.ok_or(DigestError::NoLog(batch.log))?;
    if record.digested != batch.start || batch.end < batch.start {
        let (digested, start) = (record.digested, batch.start);
        return Err(DigestError::Position { digested, start });
    }
    record.digested = batch.end;
    tree.insert(media, key, &record.emit(), Room::Reserve)?;
    let mut digest = Digest {
        work: Work::new(tree, media),
        grants,
        devices,
        log: batch.log,
        report: Report {
            read: batch.ops.len(),
            refused: batch.refused,
            ..Report::default()
        },
    };
    match digest.run(batch.ops) {
        Ok(()) => Ok(digest.report),
        Err(error) => {
            // What the batch has changed up to here is a part of it, and is never to be committed.
            digest.work.tree.fail();
            Err(error.into())
        }
    }
}

/// Deletes an inode without names that nobody has open: after a cut, each that the tree notes. One of them, if there is one; the caller
/// commits and goes on until there is none.
///
/// # Errors
/// The reserve of the tree is used up ([`Error::Full`]: commit, and try again), and nothing was changed; or the media fail.
pub fn delete_orphan(tree: &mut Tree, media: &mut dyn Media) -> Result<Option<u64>, Error> {
    tree.admit_changes()?;
    let keys = Key::new(0, Kind::Orphan, 0)..=Key::new(0, Kind::Orphan, u64::MAX);
    let mut orphans = tree.range(crate::tree::View::Pending, keys);
    let Some((key, _)) = orphans.next(tree, media)? else {
        return Ok(None);
    };
    delete_orphan_of(tree, media, key.number)?;
    Ok(Some(key.number))
}

/// Deletes an inode that has no names, and that nobody has open: if it is an orphan.
///
/// # Errors
/// As of [`delete_orphan`].
pub fn delete_orphan_of(tree: &mut Tree, media: &mut dyn Media, inode: u64) -> Result<(), Error> {
    tree.admit_changes()?;
    let key = Key::new(0, Kind::Orphan, inode);
    if tree.get(media, crate::tree::View::Pending, key)?.is_none() {
        return Ok(());
    }
    let mut work = Work::new(tree, media);
    work.admit(Room::Reserve).map_err(|_| Error::Full(0))?;
    work.remove(key)?;
    work.delete(inode)
}

struct Digest<'d> {
    work: Work<'d>,
    grants: &'d mut Grants,
    devices: &'d [u8],
    log: u64,
    report: Report,
}

fn is_of_content(action: &Action<'_>) -> bool {
    let (write, place) = (
        matches!(action, Action::Write { .. }),
        matches!(action, Action::Place { .. }),
    );
    write || place || matches!(action, Action::Truncate { .. } | Action::Allocate { .. })
}

fn bytes_of(op: &Op<'_>) -> usize {
    match &op.action {
        Action::Write { data, .. } => data.len(),
        _ => 0,
    }
}

/// The first operations that are on one file's content.
fn content_of<'o, 'a>(ops: &'o [Op<'a>]) -> &'o [Op<'a>] {
    let Some(first) = ops.first() else {
        return &[];
    };
    let goes_on = |op: &&Op<'_>| op.inode == first.inode && is_of_content(&op.action);
    &ops[..ops.iter().take_while(goes_on).count()]
}

/// Inodes that are created, and of which nothing else changes names or the time of a change: where their content comes, which may as well follow their
/// creation. So the tree gets such an inode once. Names come before content (`coalesce`).
fn with_their_creation(ops: &[Op<'_>]) -> BTreeMap<u64, Option<usize>> {
    let mut created: BTreeMap<u64, Option<usize>> = BTreeMap::new();
    for (at, op) in ops.iter().enumerate() {
        match &op.action {
            Action::Create { .. } => drop(created.insert(op.inode, None)),
            action if is_of_content(action) => {
                if let Some(content) = created.get_mut(&op.inode) {
                    content.get_or_insert(at);
                }
            }
            Action::Rename { target, .. } => {
                created.remove(&op.inode);
                if let Target::Replaced { inode, .. } | Target::Exchanged { inode } = target {
                    created.remove(inode);
                }
            }
            Action::Attribute { .. } | Action::Set(_) => {}
            _ => drop(created.remove(&op.inode)),
        }
    }
    created.retain(|_, content| content.is_some());
    created
}

impl Digest<'_> {
    fn run(&mut self, ops: Vec<Op<'_>>) -> Result<(), Error> {
        let coalesced = coalesce(ops);
        let ops = &coalesced.ops[..];
        let mut early = with_their_creation(ops);
        let mut at = 0;
        while let Some(first) = ops.get(at) {
            let rest = &ops[at..];
            let count = if is_of_content(&first.action) {
                let content = content_of(rest);
                if !early.contains_key(&first.inode) {
                    self.change_all_content(content)?;
                }
                content.len()
            } else if matches!(first.action, Action::Attribute { .. }) {
                let goes_on =
                    |op: &&Op<'_>| op.inode == first.inode && matches!(op.action, Action::Attribute { .. });
                let count = rest.iter().take_while(goes_on).count();
                self.change_attributes(&rest[..count])?;
                count
            } else {
                let result = self.apply(first);
                self.note(first.inode, result)?;
                let content = match &first.action {
                    Action::Create { .. } => early.get_mut(&first.inode).and_then(Option::take),
                    _ => None,
                };
                if let Some(content) = content {
                    self.change_all_content(content_of(&ops[content..]))?;
                }
                1
            };
            at += count;
        }
        self.work.write_inodes()?;
        for run in coalesced.unused {
            if self.grants.take(run) {
                self.work.tree.retire(self.work.media, run)?;
            }
        }
        Ok(())
    }

    /// Changes of one file's content, so many at once as memory is to have.
    fn change_all_content(&mut self, mut ops: &[Op<'_>]) -> Result<(), Error> {
        while !ops.is_empty() {
            let mut bytes = 0;
            let fits = |op: &&Op<'_>| {
                bytes += bytes_of(op);
                bytes <= PATCH_BYTES_MAX
            };
            let count = ops.iter().take_while(fits).count().max(1);
            self.change_content(&ops[..count])?;
            ops = &ops[count..];
        }
        Ok(())
    }

    /// Counts an operation, or notes why it was refused.
    fn note(&mut self, inode: u64, result: Result<(), Fault>) -> Result<(), Error> {
        match result {
            Ok(()) => self.report.applied += 1,
            Err(Fault::Refused(reason)) => self.report.refused.push(Refused { inode, reason }),
            Err(Fault::Failed(error)) => return Err(error),
        }
        Ok(())
    }

    fn apply(&mut self, op: &Op<'_>) -> Result<(), Fault> {
        let (number, time) = (op.inode, op.time);
        match &op.action {
            Action::Create { .. } => self.create(op),
            Action::Link { entry } => self.link(number, entry, time),
            Action::Unlink {
                entry,
                is_directory,
                fate,
            } => self.unlink(number, entry, (*is_directory, *fate), time),
            Action::Rename { from, to, target } => self.rename(number, (from, to), *target, time),
            Action::Set(changes) => self.set(number, changes, time),
            Action::Release => self.release(number),
            Action::Attribute { .. }
            | Action::Truncate { .. }
            | Action::Write { .. }
            | Action::Place { .. }
            | Action::Allocate { .. } => {
                unreachable!("changes of content and of attributes are applied together")
            }
        }
    }

    /// Writes an inode that was changed.
    fn put(&mut self, number: u64, mut inode: Inode) -> Result<(), Error> {
        inode.changes += 1;
        inode.log = self.log;
        self.work.put_inode(number, inode)
    }

    /// Changes of one file's content: all that are not refused become one change of its extents.
    fn change_content(&mut self, ops: &[Op<'_>]) -> Result<(), Error> {
        let Some(first) = ops.first() else {
            return Ok(());
        };
        let mut inode = match self.file(first.inode) {
            Ok(inode) => inode,
            Err(fault) => {
                let Fault::Refused(reason) = fault else {
                    return self.note(first.inode, Err(fault));
                };
                return ops
                    .iter()
                    .try_for_each(|op| self.note(op.inode, Err(reason_for(op, reason).into())));
            }
        };
        let mut patch = Patch::new(first.inode, inode.size, inode.blocks);
        let (mut noted, mut time) = (0, None);
        for op in ops {
            match patch.add(&mut self.work, &op.action, self.grants) {
                Ok(()) => (noted, time) = (noted + 1, Some(op.time)),
                Err(fault) => self.note(op.inode, Err(fault))?,
            }
        }
        let Some(time) = time else {
            patch.abandon(self.grants);
            return Ok(());
        };
        match patch.flush(&mut self.work, self.devices, self.grants) {
            Ok(patched) => {
                inode.size = patched.size;
                inode.blocks = (inode.blocks + patched.added).saturating_sub(patched.removed);
                inode.mode = self.grants.mode_after_write(inode.mode);
                (inode.mtime, inode.ctime) = (time, time);
                self.report.applied += noted;
                if !self.grants.is_root() {
                    self.work.drop_attribute(first.inode, CAPABILITY)?;
                }
                self.put(first.inode, inode)
            }
            Err(Fault::Failed(error)) => Err(error),
            Err(Fault::Refused(reason)) => {
                (0..noted).try_for_each(|_| self.note(first.inode, Err(reason.into())))
            }
        }
    }

    /// A file whose content may be changed.
    fn file(&mut self, number: u64) -> Result<Inode, Fault> {
        self.grants.admit_data(number)?;
        let inode = self.work.inode(number)?;
        match inode.mode & TYPE_MASK {
            TYPE_FILE => Ok(inode),
            TYPE_DIRECTORY => Err(Errno::IsDirectory.into()),
            _ => Err(Errno::Invalid.into()),
        }
    }

    fn directory(&mut self, number: u64) -> Result<Inode, Fault> {
        let inode = self.work.inode(number)?;
        match inode.is_directory() {
            true => Ok(inode),
            false => Err(Errno::NotDirectory.into()),
        }
    }

    /// A directory whose entries may be changed.
    fn open_directory(&mut self, number: u64) -> Result<Inode, Fault> {
        self.grants.admit_names(number)?;
        let directory = self.directory(number)?;
        match directory.links {
            0 => Err(Errno::NoEntry.into()),
            _ => Ok(directory),
        }
    }

    /// The same, and what a name of it leads to.
    fn find(&mut self, entry: &Entry<'_>) -> Result<(Inode, Option<u64>), Fault> {
        let directory = self.open_directory(entry.parent)?;
        Ok((directory, self.work.lookup(entry.parent, &entry.name)?))
    }

    /// A directory for one more name, and where that is to be.
    fn find_free(&mut self, entry: &Entry<'_>) -> Result<(Inode, Slot), Fault> {
        let directory = self.open_directory(entry.parent)?;
        match self.work.slot(entry.parent, &entry.name)? {
            Some(slot) => Ok((directory, slot)),
            None => Err(Errno::Exists.into()),
        }
    }

    fn create(&mut self, op: &Op<'_>) -> Result<(), Fault> {
        let (
            Action::Create {
                entry,
                mode,
                uid,
                gid,
                target,
                ..
            },
            Some(inode),
        ) = (&op.action, op.action.created(op.time))
        else {
            unreachable!("the caller passes one")
        };
        let (number, time) = (op.inode, op.time);
        self.work.admit(Room::Normal)?;
        let is_nameless = entry.name.is_empty();
        let (directory, slot) = match is_nameless {
            true => (self.open_directory(entry.parent)?, None),
            false => {
                let (directory, slot) = self.find_free(entry)?;
                (directory, Some(slot))
            }
        };
        self.grants
            .admit_create((number, *mode, inode.device), (*uid, *gid), &directory)?;
        let is_directory = mode & TYPE_MASK == TYPE_DIRECTORY;
        has_link(&directory, is_directory)?;
        if self.work.find(number)?.is_some() {
            return Err(Errno::Stale.into());
        }
        let blocks = self.put_target(number, mode & TYPE_MASK == TYPE_LINK, target)?;
        self.put(number, Inode { blocks, ..inode })?;
        self.work.tree.raise_next_inode(number + 1);
        self.grants.leases.insert(number, Rights::ALL);
        match slot {
            None => self.work.put(Key::new(0, Kind::Orphan, number), &[])?,
            Some(slot) => self.enter((entry, directory, slot), (number, *mode), time)?,
        }
        Ok(())
    }

    /// Notes the target of a symbolic link: in the tree, or in blocks if it is long. How many these are.
    fn put_target(&mut self, number: u64, is_link: bool, target: &[u8]) -> Result<u64, Fault> {
        if !is_link {
            return Ok(0);
        }
        if target.len() <= VALUE_BYTES_MAX {
            self.work.put(Key::new(number, Kind::Target, 0), target)?;
            return Ok(0);
        }
        const { assert!(TARGET_BYTES_MAX < crate::format::BLOCK_BYTES) };
        let write = Action::Write {
            offset: 0,
            data: target.into(),
        };
        let mut patch = Patch::new(number, 0, 0);
        patch.add(&mut self.work, &write, self.grants)?;
        Ok(patch.flush(&mut self.work, self.devices, self.grants)?.added)
    }

    fn link(&mut self, number: u64, entry: &Entry<'_>, time: Time) -> Result<(), Fault> {
        self.work.admit(Room::Normal)?;
        self.grants.admit_change(number)?;
        let mut inode = self.work.inode(number)?;
        let (directory, slot) = self.find_free(entry)?;
        match inode.is_directory() {
            true => return Err(Errno::NotPermitted.into()),
            false => has_link(&inode, true)?,
        }
        if inode.links == 0 {
            self.work.remove(Key::new(0, Kind::Orphan, number))?;
        }
        inode.links += 1;
        inode.ctime = time;
        self.put(number, inode)?;
        self.enter((entry, directory, slot), (number, inode.mode), time)?;
        Ok(())
    }

    fn unlink(
        &mut self,
        number: u64,
        entry: &Entry<'_>,
        (is_directory, fate): (bool, Fate),
        time: Time,
    ) -> Result<(), Fault> {
        self.work.admit(Room::Reserve)?;
        let (directory, found) = self.find(entry)?;
        let found = found.ok_or(Errno::NoEntry)?;
        let inode = self.work.inode(found)?;
        match (inode.is_directory(), is_directory) {
            (true, false) => return Err(Errno::IsDirectory.into()),
            (false, true) => return Err(Errno::NotDirectory.into()),
            _ => {}
        }
        self.may_lose(&directory, (found, &inode), fate)?;
        if found != number {
            return Err(Errno::Stale.into());
        }
        self.leave((entry, directory), &inode, time)?;
        self.lose(number, inode, (fate, time))?;
        Ok(())
    }

    /// Whether an inode may lose a name, and becomes what the operation says.
    fn may_lose(
        &mut self,
        directory: &Inode,
        (number, inode): (u64, &Inode),
        fate: Fate,
    ) -> Result<(), Fault> {
        self.grants.admit_change(number)?;
        self.grants.admit_leave(directory, inode)?;
        if inode.is_directory() && inode.entries > 0 {
            return Err(Errno::NotEmpty.into());
        }
        let is_last = inode.is_directory() || inode.links <= 1;
        match is_last == (fate != Fate::Named) {
            true => Ok(()),
            false => Err(Errno::Stale.into()),
        }
    }

    /// `renameat2`, in the order in which Linux checks: `do_renameat2`, `vfs_rename`.
    fn rename(
        &mut self,
        number: u64,
        (from, to): (&Entry<'_>, &Entry<'_>),
        target: Target,
        time: Time,
    ) -> Result<(), Fault> {
        self.work.admit(Room::Normal)?;
        let (from_directory, source) = self.find(from)?;
        let (to_directory, found) = self.find(to)?;
        let source = source.ok_or(Errno::NoEntry)?;
        let said = match target {
            Target::Free if found.is_some() => return Err(Errno::Exists.into()),
            Target::Exchanged { .. } if found.is_none() => return Err(Errno::NoEntry.into()),
            Target::Free => None,
            Target::Replaced { inode, .. } | Target::Exchanged { inode } => Some(inode),
        };
        if source != number || found != said || found == Some(source) {
            return Err(Errno::Stale.into());
        }
        let is_exchange = matches!(target, Target::Exchanged { .. });
        let inode = self.work.inode(source)?;
        let other = match found {
            Some(found) => Some((found, self.work.inode(found)?)),
            None => None,
        };
        if inode.is_directory() && self.is_inside(to.parent, source)? {
            return Err(Errno::Invalid.into());
        }
        if let Some((found, other)) = &other
            && other.is_directory()
            && self.is_inside(from.parent, *found)?
        {
            return Err(if is_exchange {
                Errno::Invalid
            } else {
                Errno::NotEmpty
            }
            .into());
        }
        self.grants.admit_change(source)?;
        self.grants.admit_leave(&from_directory, &inode)?;
        self.may_rename(
            &inode,
            other.as_ref(),
            (&from_directory, &to_directory),
            (from, to, target),
        )?;
        self.make_rename((source, inode), other, (from, to), target, time)?;
        Ok(())
    }

    /// Whether types, links and room let a rename pass.
    fn may_rename(
        &mut self,
        inode: &Inode,
        other: Option<&(u64, Inode)>,
        (from_directory, to_directory): (&Inode, &Inode),
        (from, to, target): (&Entry<'_>, &Entry<'_>, Target),
    ) -> Result<(), Fault> {
        let is_exchange = matches!(target, Target::Exchanged { .. });
        let (is_directory, was_directory) = (
            inode.is_directory(),
            other.is_some_and(|(_, other)| other.is_directory()),
        );
        match (is_directory, was_directory) {
            (true, false) if other.is_some() && !is_exchange => return Err(Errno::NotDirectory.into()),
            (false, true) if !is_exchange => return Err(Errno::IsDirectory.into()),
            _ => {}
        }
        if from.parent != to.parent {
            has_link(to_directory, is_directory && !was_directory)?;
            has_link(from_directory, is_exchange && !is_directory && was_directory)?;
        }
        match (other, target) {
            (Some((found, other)), Target::Replaced { fate, .. }) => {
                self.may_lose(to_directory, (*found, other), fate)?;
            }
            (Some((found, other)), _) => {
                self.grants.admit_change(*found)?;
                self.grants.admit_leave(to_directory, other)?;
            }
            (None, _) => {}
        }
        // What leaves makes no room for names of another hash.
        if other.is_none() {
            self.work.slot(to.parent, &to.name)?;
        }
        Ok(())
    }

    fn make_rename(
        &mut self,
        (source, mut inode): (u64, Inode),
        other: Option<(u64, Inode)>,
        (from, to): (&Entry<'_>, &Entry<'_>),
        target: Target,
        time: Time,
    ) -> Result<(), Fault> {
        if let Some((_, other)) = &other {
            let directory = self.work.inode(to.parent)?;
            self.leave((to, directory), other, time)?;
        }
        let directory = self.work.inode(from.parent)?;
        self.leave((from, directory), &inode, time)?;
        let directory = self.work.inode(to.parent)?;
        let slot = self.work.free_slot(to.parent, &to.name)?;
        self.enter((to, directory, slot), (source, inode.mode), time)?;
        if let Some((number, mut other)) = other {
            match target {
                Target::Replaced { fate, .. } => self.lose(number, other, (fate, time))?,
                _ => {
                    let directory = self.work.inode(from.parent)?;
                    let slot = self.work.free_slot(from.parent, &from.name)?;
                    self.enter((from, directory, slot), (number, other.mode), time)?;
                    other.ctime = time;
                    other.parent = if other.is_directory() { from.parent } else { 0 };
                    self.put(number, other)?;
                }
            }
        }
        inode.ctime = time;
        inode.parent = if inode.is_directory() { to.parent } else { 0 };
        self.put(source, inode)?;
        Ok(())
    }

    /// Whether a directory is another inode, or somewhere in it.
    fn is_inside(&mut self, mut directory: u64, inode: u64) -> Result<bool, Fault> {
        for _ in 0..DEPTH_MAX {
            if directory == inode {
                return Ok(true);
            }
            let parent = match self.work.find(directory)? {
                Some(found) if found.is_directory() => found.parent,
                _ => return Ok(false),
            };
            if parent == directory || parent == 0 {
                return Ok(false);
            }
            directory = parent;
        }
        Err(Errno::Invalid.into())
    }

    /// An inode gets a name.
    fn enter(
        &mut self,
        (entry, mut directory, slot): (&Entry<'_>, Inode, Slot),
        (inode, mode): (u64, u32),
        time: Time,
    ) -> Result<(), Error> {
        let kind = kind_of(mode);
        let name = &entry.name;
        self.work.add_entry(slot, &Dirent { inode, kind, name })?;
        directory.entries += 1;
        directory.links += u32::from(mode & TYPE_MASK == TYPE_DIRECTORY);
        (directory.mtime, directory.ctime) = (time, time);
        self.put(entry.parent, directory)
    }

    /// A name goes.
    fn leave(
        &mut self,
        (entry, mut directory): (&Entry<'_>, Inode),
        inode: &Inode,
        time: Time,
    ) -> Result<(), Error> {
        self.work.remove_entry(entry.parent, &entry.name)?;
        directory.entries = directory.entries.saturating_sub(1);
        directory.links = directory.links.saturating_sub(u32::from(inode.is_directory()));
        (directory.mtime, directory.ctime) = (time, time);
        self.put(entry.parent, directory)
    }

    /// An inode has lost a name.
    fn lose(&mut self, number: u64, mut inode: Inode, (fate, time): (Fate, Time)) -> Result<(), Error> {
        if fate == Fate::Deleted && !self.grants.open_elsewhere.contains(&number) {
            return self.delete(number);
        }
        inode.ctime = time;
        inode.links = if inode.is_directory() { 0 } else { inode.links - 1 };
        inode.parent = 0;
        if inode.links == 0 {
            self.work.put(Key::new(0, Kind::Orphan, number), &[])?;
        }
        self.put(number, inode)
    }

    fn delete(&mut self, number: u64) -> Result<(), Error> {
        self.grants.leases.remove(&number);
        self.work.delete(number)
    }

    fn release(&mut self, number: u64) -> Result<(), Fault> {
        self.work.admit(Room::Reserve)?;
        self.grants.admit_change(number)?;
        let inode = self.work.inode(number)?;
        if inode.links > 0 || self.grants.open_elsewhere.contains(&number) {
            return Err(Errno::Stale.into());
        }
        self.work.remove(Key::new(0, Kind::Orphan, number))?;
        Ok(self.delete(number)?)
    }

    /// Changes of one inode's attributes. Names of one hash share a value of the tree, which has room for what is left at the end, and
    /// perhaps not on the way there: the order is that of names. So those go first that leave room.
    fn change_attributes(&mut self, ops: &[Op<'_>]) -> Result<(), Error> {
        let is_set = |op: &Op<'_>| matches!(op.action, Action::Attribute { value: Some(_), .. });
        // What is set and removed at once may have been there or not: see `coalesce`. A change of data may have taken the capabilities.
        let is_twice = |at: usize| at > 0 && name_of(&ops[at - 1]) == name_of(&ops[at]);
        let is_dropped = |at: usize| !is_set(&ops[at]) && (is_twice(at) || name_of(&ops[at]) == CAPABILITY);
        let (dropped, mut waiting): (Vec<_>, Vec<_>) = (0..ops.len())
            .filter(|at| *at + 1 == ops.len() || !is_twice(*at + 1))
            .partition(|at| is_dropped(*at));
        for at in dropped {
            let result = self.drop_attribute(&ops[at]);
            self.note(ops[at].inode, result)?;
        }
        loop {
            let before = waiting.len();
            let mut refused = Vec::new();
            for at in waiting {
                let op = &ops[at];
                let Action::Attribute { name, value } = &op.action else {
                    unreachable!("the caller passes attributes")
                };
                match self.attribute(op.inode, (name, value.as_deref()), op.time) {
                    Err(Fault::Refused(Reason::Posix(Errno::NoSpace))) => refused.push(at),
                    result => self.note(op.inode, result)?,
                }
            }
            if refused.len() == before || refused.is_empty() {
                let mut refused = refused.into_iter();
                return refused.try_for_each(|at| self.note(ops[at].inode, Err(Errno::NoSpace.into())));
            }
            waiting = refused;
        }
    }

    /// Takes an attribute away that may not be there.
    fn drop_attribute(&mut self, op: &Op<'_>) -> Result<(), Fault> {
        self.work.admit(Room::Reserve)?;
        self.grants.admit_attribute(op.inode, (name_of(op), false))?;
        let mut inode = self.work.inode(op.inode)?;
        self.work.drop_attribute(op.inode, name_of(op))?;
        inode.ctime = op.time;
        Ok(self.put(op.inode, inode)?)
    }

    fn attribute(
        &mut self,
        number: u64,
        (name, value): (&[u8], Option<&[u8]>),
        time: Time,
    ) -> Result<(), Fault> {
        let room = if value.is_some() {
            Room::Normal
        } else {
            Room::Reserve
        };
        self.work.admit(room)?;
        self.grants.admit_attribute(number, (name, value.is_some()))?;
        let mut inode = self.work.inode(number)?;
        let is_plain = matches!(inode.mode & TYPE_MASK, TYPE_FILE | TYPE_DIRECTORY);
        if name.starts_with(b"user.") && !is_plain {
            return Err(Errno::NotPermitted.into());
        }
        check_space(name)?;
        self.work.set_attribute(number, name, value)?;
        inode.ctime = time;
        Ok(self.put(number, inode)?)
    }

    fn set(&mut self, number: u64, changes: &Changes, time: Time) -> Result<(), Fault> {
        self.work.admit(Room::Reserve)?;
        let mut inode = self.work.inode(number)?;
        self.grants.admit_set(number, &inode, changes)?;
        if changes.mode.is_some() && inode.mode & TYPE_MASK == TYPE_LINK {
            return Err(Errno::NotSupported.into());
        }
        changes.apply(&mut inode, time);
        Ok(self.put(number, inode)?)
    }
}

/// The attribute that an operation is about.
fn name_of<'a>(op: &'a Op<'_>) -> &'a [u8] {
    match &op.action {
        Action::Attribute { name, .. } => name,
        _ => &[],
    }
}

/// Refuses one more link if there are as many as there can be.
fn has_link(inode: &Inode, is_needed: bool) -> Result<(), Errno> {
    match !is_needed || inode.links < LINKS_MAX {
        true => Ok(()),
        false => Err(Errno::TooManyLinks),
    }
}

/// Why an action on what is no file is refused: `fallocate` calls it a device without blocks.
fn reason_for(op: &Op<'_>, reason: Reason) -> Reason {
    match (&op.action, reason) {
        (Action::Allocate { .. }, Reason::Posix(Errno::Invalid)) => Errno::NoDevice.into(),
        (_, reason) => reason,
    }
}

//! A digest makes a batch of operations shorter (Strata §3.3). It keeps the last update of each inode and the last bytes of overwritten
//! data. It keeps nothing of an inode that was created and deleted in the batch.
//!
//! The kept operations do the same to every state as the whole batch, if the batch succeeds there. The digest does not need to know the
//! state. Names change first, in the order of the batch. Changes of inodes and data follow, when all that stays has its names.
//!
//! A directory that was made and removed in the batch is kept if anything was in it that stays: a rename would otherwise have no place to
//! go to in between.

use crate::extents::merge;
use crate::inode::{TYPE_DIRECTORY, TYPE_MASK, Time};
use crate::op::{Action, Bytes, Changes, Entry, Fate, Op, Target};
use crate::value::Run;
use std::collections::BTreeMap;

/// What is left of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coalesced<'a> {
    /// The operations that are kept.
    pub ops: Vec<Op<'a>>,
    /// Blocks that the batch has written and nothing refers to: they are free.
    pub unused: Vec<Run>,
}

/// Times of an inode, as far as the batch sets them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Times {
    atime: Option<Time>,
    mtime: Option<Time>,
    ctime: Option<Time>,
}

impl Times {
    fn born(time: Time) -> Self {
        Self {
            atime: Some(time),
            mtime: Some(time),
            ctime: Some(time),
        }
    }

    fn content(&mut self, time: Time) {
        (self.mtime, self.ctime) = (Some(time), Some(time));
    }

    fn set(&mut self, changes: &Changes, time: Time) {
        self.atime = changes.atime.or(self.atime);
        self.mtime = changes.mtime.or(self.mtime);
        if !changes.keeps_ctime {
            self.ctime = Some(time);
        }
    }
}

/// Attributes that the batch changes: whether the first change shows that it was there, and the last value.
type Attributes<'a> = BTreeMap<Bytes<'a>, (bool, Option<Bytes<'a>>)>;

/// An inode from its creation to its deletion: its number may come again.
#[derive(Debug, Default)]
struct Life<'a> {
    inode: u64,
    is_born: bool,
    is_directory: bool,
    is_dead: bool,
    /// It stays, or something that stays was in it.
    is_kept: bool,
    /// Directories that it was moved to.
    homes: Vec<usize>,
    /// As the batch leaves them, and as what is kept does.
    wanted: Times,
    kept: Times,
    set: Changes,
    attributes: Attributes<'a>,
    data: Vec<Action<'a>>,
}

/// The lives that an operation is about.
#[derive(Clone, Copy, Debug, Default)]
struct Subjects {
    inode: usize,
    /// The directories that it changes.
    parents: [Option<usize>; 2],
    other: Option<usize>,
}

#[derive(Debug, Default)]
struct Lives<'a> {
    lives: Vec<Life<'a>>,
    now: BTreeMap<u64, usize>,
}

/// What a digest keeps of a batch.
pub fn coalesce(batch: Vec<Op<'_>>) -> Coalesced<'_> {
    let mut lives = Lives::default();
    let subjects: Vec<_> = batch.iter().map(|op| lives.follow(op)).collect();
    lives.keep();
    let mut out = Coalesced::default();
    for (op, subjects) in batch.into_iter().zip(subjects) {
        if let Some(op) = lives.take(op, subjects, &mut out.unused) {
            out.ops.push(op);
        }
    }
    for life in lives.lives.into_iter().filter(|life| !life.is_dead) {
        life.finish(&mut out);
    }
    out
}

impl<'a> Lives<'a> {
    /// The present life of an inode.
    fn of(&mut self, inode: u64) -> usize {
        let next = self.lives.len();
        let life = *self.now.entry(inode).or_insert(next);
        if life == next {
            self.lives.push(Life {
                inode,
                ..Life::default()
            });
        }
        life
    }

    fn dies(&mut self, life: usize) {
        self.lives[life].is_dead = true;
        self.now.remove(&self.lives[life].inode);
    }

    /// Notes what an operation means for lives.
    fn follow(&mut self, op: &Op<'a>) -> Subjects {
        if let Action::Create { mode, .. } = &op.action {
            self.now.remove(&op.inode);
            let life = self.of(op.inode);
            self.lives[life].is_born = true;
            self.lives[life].is_directory = mode & TYPE_MASK == TYPE_DIRECTORY;
        }
        let mut subjects = Subjects {
            inode: self.of(op.inode),
            ..Subjects::default()
        };
        match &op.action {
            // It changes no directory, but takes its group from one.
            Action::Create { entry, .. } if entry.name.is_empty() => {
                let home = self.of(entry.parent);
                self.lives[subjects.inode].homes.push(home);
            }
            Action::Create { entry, .. } | Action::Link { entry } | Action::Unlink { entry, .. } => {
                subjects.parents[0] = Some(self.of(entry.parent));
            }
            Action::Rename { from, to, target } => {
                subjects.parents = [Some(self.of(from.parent)), Some(self.of(to.parent))];
                subjects.other = match target {
                    Target::Free => None,
                    Target::Replaced { inode, .. } | Target::Exchanged { inode } => Some(self.of(*inode)),
                };
            }
            _ => {}
        }
        self.touch(op, subjects, |life| &mut life.wanted);
        self.settle(op, subjects);
        subjects
    }

    /// Where an operation moves lives to, and which end.
    fn settle(&mut self, op: &Op<'a>, subjects: Subjects) {
        let home = |parent: Option<usize>| parent.expect("an entry has a directory");
        let Subjects {
            inode,
            parents,
            other,
        } = subjects;
        match &op.action {
            Action::Create { .. } | Action::Link { .. } => self.lives[inode].homes.extend(parents[0]),
            Action::Unlink {
                fate: Fate::Deleted, ..
            }
            | Action::Release => self.dies(inode),
            Action::Rename { target, .. } => {
                self.lives[inode].homes.push(home(parents[1]));
                match (target, other) {
                    (Target::Exchanged { .. }, Some(other)) => self.lives[other].homes.push(home(parents[0])),
                    (
                        Target::Replaced {
                            fate: Fate::Deleted, ..
                        },
                        Some(other),
                    ) => self.dies(other),
                    _ => {}
                }
            }
            _ => {}
        }
    }

    /// The times that an operation sets.
    fn touch(
        &mut self,
        op: &Op<'a>,
        subjects: Subjects,
        times: for<'t> fn(&'t mut Life<'a>) -> &'t mut Times,
    ) {
        let time = op.time;
        let own = times(&mut self.lives[subjects.inode]);
        match &op.action {
            Action::Create { .. } => *own = Times::born(time),
            Action::Set(changes) => own.set(changes, time),
            Action::Link { .. }
            | Action::Unlink { .. }
            | Action::Rename { .. }
            | Action::Attribute { .. } => {
                own.ctime = Some(time);
            }
            Action::Release => {}
            _ => own.content(time),
        }
        if let Some(other) = subjects.other {
            times(&mut self.lives[other]).ctime = Some(time);
        }
        for parent in subjects.parents.into_iter().flatten() {
            times(&mut self.lives[parent]).content(time);
        }
    }

    /// Decides which lives leave something: all but those that began and ended in the batch, and had nothing in them that stays.
    fn keep(&mut self) {
        let stays = |life: &Life<'_>| !(life.is_born && life.is_dead);
        let mut ahead: Vec<_> = (0..self.lives.len())
            .filter(|life| stays(&self.lives[*life]))
            .collect();
        while let Some(life) = ahead.pop() {
            if !core::mem::replace(&mut self.lives[life].is_kept, true) {
                ahead.extend(&self.lives[life].homes);
            }
        }
    }

    /// What stays of an operation in its place. What inodes and files are is noted for the end.
    fn take(&mut self, op: Op<'a>, subjects: Subjects, unused: &mut Vec<Run>) -> Option<Op<'a>> {
        let is_kept = self.lives[subjects.inode].is_kept;
        let names_other = matches!(op.action, Action::Rename { .. });
        let Op { inode, time, action } = op;
        let (inode, action) = match action {
            Action::Rename { from, to, target } => self.take_rename(inode, (from, to), target, subjects)?,
            Action::Create { .. } | Action::Link { .. } | Action::Unlink { .. } | Action::Release => {
                (inode, is_kept.then_some(action)?)
            }
            action => {
                let life = &mut self.lives[subjects.inode];
                match (life.is_dead, action) {
                    (true, Action::Place { place, sums, .. }) => unused.push(Run {
                        place,
                        blocks: sums.len() as u64,
                    }),
                    (true, _) => {}
                    (false, action) => life.note(action),
                }
                return None;
            }
        };
        let op = Op { inode, time, action };
        let subjects = match names_other {
            true => self.renamed(&op, subjects),
            false => subjects,
        };
        self.touch(&op, subjects, |life| &mut life.kept);
        Some(op)
    }

    /// What stays of a rename if one of the two inodes leaves nothing, or none does.
    fn take_rename(
        &self,
        inode: u64,
        (from, to): (Entry<'a>, Entry<'a>),
        target: Target,
        subjects: Subjects,
    ) -> Option<(u64, Action<'a>)> {
        let source = &self.lives[subjects.inode];
        let is_kept = subjects.other.is_some_and(|other| self.lives[other].is_kept);
        match (source.is_kept, target) {
            (true, _) => {
                let target = if is_kept { target } else { Target::Free };
                Some((inode, Action::Rename { from, to, target }))
            }
            (false, Target::Replaced { inode, fate }) if is_kept => Some((
                inode,
                Action::Unlink {
                    entry: to,
                    is_directory: source.is_directory,
                    fate,
                },
            )),
            (false, Target::Exchanged { inode }) if is_kept => Some((
                inode,
                Action::Rename {
                    from: to,
                    to: from,
                    target: Target::Free,
                },
            )),
            (false, _) => None,
        }
    }

    /// The subjects of what became of a rename.
    fn renamed(&self, op: &Op<'a>, subjects: Subjects) -> Subjects {
        let [from, to] = subjects.parents;
        let is_source = self.lives[subjects.inode].is_kept;
        let other = subjects.other.filter(|other| self.lives[*other].is_kept);
        match (&op.action, is_source) {
            (_, true) => Subjects { other, ..subjects },
            (Action::Rename { .. }, false) => Subjects {
                inode: other.expect("it stays"),
                parents: [to, from],
                other: None,
            },
            (_, false) => Subjects {
                inode: other.expect("it stays"),
                parents: [to, None],
                other: None,
            },
        }
    }
}

impl<'a> Life<'a> {
    /// Notes a change of what it is.
    fn note(&mut self, action: Action<'a>) {
        match action {
            Action::Set(changes) => {
                self.set.mode = changes.mode.or(self.set.mode);
                self.set.uid = changes.uid.or(self.set.uid);
                self.set.gid = changes.gid.or(self.set.gid);
                self.set.flags = changes.flags.or(self.set.flags);
                self.set.tier = changes.tier.or(self.set.tier);
            }
            Action::Attribute { name, value } => {
                let was_there = value.is_none();
                self.attributes.entry(name).or_insert((was_there, None)).1 = value;
            }
            action => self.data.push(action),
        }
    }

    /// Appends what it is at the end: data, attributes, and then what both do not say of its times.
    fn finish(mut self, out: &mut Coalesced<'a>) {
        let (inode, wanted) = (self.inode, self.wanted);
        let data = core::mem::take(&mut self.data);
        if let Some(time) = wanted.mtime.filter(|_| !data.is_empty()) {
            for action in merge(data, &mut out.unused) {
                out.ops.push(Op { inode, time, action });
                self.kept.content(time);
            }
        }
        let changed = wanted.ctime.unwrap_or_default();
        for (name, (was_there, value)) in core::mem::take(&mut self.attributes) {
            let mut push = |value| {
                let action = Action::Attribute {
                    name: name.clone(),
                    value,
                };
                out.ops.push(Op {
                    inode,
                    time: changed,
                    action,
                });
                self.kept.ctime = wanted.ctime;
            };
            match value {
                Some(value) => push(Some(value)),
                None if was_there => push(None),
                None if self.is_born => {}
                // Whether it was there before, nobody knows here.
                None => [Some(Bytes::Borrowed(&[][..])), None].into_iter().for_each(push),
            }
        }
        let mut set = self.set;
        set.atime = wanted.atime.filter(|_| wanted.atime != self.kept.atime);
        set.mtime = wanted.mtime.filter(|_| wanted.mtime != self.kept.mtime);
        let is_read = Changes { atime: None, ..set } == Changes::default() && wanted.ctime == self.kept.ctime;
        set.keeps_ctime = is_read;
        if !is_read || set.atime.is_some() {
            let time = wanted.ctime.or(set.atime).unwrap_or_default();
            out.ops.push(Op {
                inode,
                time,
                action: Action::Set(set),
            });
        }
    }
}

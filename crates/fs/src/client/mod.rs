//! Calls of POSIX as a file system's server, or a library in a process, gets them: by inode and name. A [`Client`] turns them into what is
//! read of the [`Overlay`], and into operations for the log.
//!
//! A changing call is atomic. It looks at everything first, gives its operations to the log in one frame ([`Call::sink`]), and then to
//! the overlay. If it is refused, nothing has changed. A call that was acknowledged is never refused by the digest: what the digest
//! would refuse is refused here, room included (`budget`).
//!
//! One client has one log. Whoever has the client calls it from one thread at a time, and sees to it that the client has the leases of
//! what it changes. It keeps no paths and no descriptors, but counts who refers to an inode, so that one without a name is
//! deleted by the last one that lets go ([`Client::hold`], [`Client::forget`]).

pub mod access;
pub mod acl;
pub mod budget;
mod content;
mod data;
mod names;
mod pin;
mod read;
mod set;

pub use access::Caller;
pub use budget::Budget;
pub use data::{Plan, Where, Written};
pub use names::{Made, New, Rename};
pub use read::{Listing, Statfs};
pub use set::{Stamp, Wanted, XattrMode};

use crate::errno::Errno;
use crate::format::{ROOT_INODE, hash_of};
use crate::inode::{Inode, Time};
use crate::known::Known;
use crate::log::{AddError, Ticket};
use crate::media::Error;
use crate::op::{Action, Entry, Fate, NAME_BYTES_MAX, Op};
use crate::overlay::{Below, Overlay, ReadError};
use crate::value::Run;
use access::{APPEND_ONLY, EXECUTE, IMMUTABLE, STICKY, WRITE};
use acl::Acl;
use budget::{Cost, Ledger, NoRoom};
use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Takes the records of one call: [`Writer::add`](crate::log::Writer::add).
pub type Sink<'s> = dyn FnMut(&[Op<'_>]) -> Result<Ticket, AddError> + 's;

/// What a changing call is made with.
pub struct Call<'c, 't> {
    /// Who makes it.
    pub caller: Caller<'c>,
    /// Now.
    pub now: Time,
    /// The tree. It has all that was [digested](Client::digested).
    pub below: &'c mut Below<'t>,
    /// The log.
    pub sink: &'c mut Sink<'c>,
}

/// Why a call is not done. Nothing has changed, but by [`Failure::Broken`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The answer.
    #[error("{0}")]
    Posix(#[from] Errno),
    /// The frame that is gathered is full.
    #[error("the next frame is full: make the writes that the log has, and try again")]
    Busy,
    /// The log or the devices may have room then.
    #[error("there is no room yet: digest all of the log, commit twice, set the budget, and try again")]
    Digest,
    /// No number is left for a new inode.
    #[error("no inode number is left: grant some, and try again")]
    Inodes,
    /// Blocks for large data are missing: so many are needed.
    #[error("{0} granted blocks are needed: grant some, and try again, or write less at once")]
    Blocks(u64),
    /// The log takes nothing more.
    #[error("a write of the log failed: digest it and begin another one")]
    Latched,
    /// The frames of the log are too short for the call.
    #[error("the call exceeds a frame of the log: give the log longer frames")]
    TooLong,
    /// Blocks were written in vain, as the file has changed meanwhile.
    #[error("the file has changed since the write was planned: give the plan back, and plan it again")]
    Changed,
    /// The tree cannot be read.
    #[error("{0}")]
    Tree(#[from] Error),
    /// A call was logged, and what it was about could not be read then: what the client sees is not what the log has.
    #[error("the client and its log are not at one: digest the log, and begin with a new client")]
    Broken,
}

impl Failure {
    /// What a caller is told if nothing is tried again.
    pub fn errno(self) -> Errno {
        match self {
            Self::Posix(errno) => errno,
            Self::Busy | Self::Digest | Self::Inodes | Self::Blocks(_) | Self::Changed => Errno::NoSpace,
            Self::Latched | Self::TooLong | Self::Tree(_) | Self::Broken => Errno::Io,
        }
    }
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Posix(errno) => Self::Posix(errno),
            ReadError::Tree(error) => Self::Tree(error),
        }
    }
}

/// How a client decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// It looks at permissions. Not if the kernel has: `default_permissions` of FUSE. What belongs to the result of a call, such as
    /// bits of modes, the client decides in any case.
    pub checks_permissions: bool,
    /// Links of an inode, at most.
    pub links_max: u32,
    /// Bytes of data that a record has, at most; what is longer goes to granted blocks. A frame is to have room for them twice.
    pub record_bytes_max: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            checks_permissions: true,
            links_max: i32::MAX as u32,
            record_bytes_max: 1 << 14,
        }
    }
}

/// The calls of a log.
#[derive(Debug)]
pub struct Client {
    mark: u64,
    options: Options,
    overlay: Overlay,
    ledger: Ledger,
    /// How many refer to an inode.
    held: BTreeMap<u64, u64>,
    /// Inodes without a name and without anybody who refers to them.
    lost: BTreeSet<u64>,
    /// Inodes that were made without a name, and may get one.
    nameless: BTreeSet<u64>,
    numbers: Range<u64>,
    blocks: VecDeque<Run>,
    /// An inode that is known to have no capabilities: most writes go where the last one went.
    plain: Option<u64>,
    /// The frame and file of the last call, if it changed nothing but content.
    last: Option<(Ticket, u64)>,
    is_broken: bool,
}

impl Client {
    /// Of a file system with this mark. It needs numbers and a budget before it makes anything.
    pub fn new(mark: u64, options: Options) -> Self {
        Self {
            mark,
            options,
            overlay: Overlay::new(mark),
            ledger: Ledger::default(),
            held: BTreeMap::new(),
            lost: BTreeSet::new(),
            nameless: BTreeSet::new(),
            numbers: 0..0,
            blocks: VecDeque::new(),
            plain: None,
            last: None,
            is_broken: false,
        }
    }

    /// Gives numbers for new inodes. What is left of the former ones is given up.
    pub fn grant_inodes(&mut self, numbers: Range<u64>) {
        self.numbers = numbers;
    }

    /// Takes numbers from one on away: others have them.
    pub fn limit_inodes(&mut self, end: u64) {
        self.numbers.end = self.numbers.end.min(end).max(self.numbers.start);
    }

    /// Numbers that are left.
    pub fn inodes_left(&self) -> u64 {
        self.numbers.end - self.numbers.start
    }

    /// Gives blocks for large data, which the digest's grants are to have, too.
    pub fn grant_blocks(&mut self, run: Run) {
        self.blocks.push_back(run);
    }

    /// Takes back the blocks that no plan has. The digest's grants and the tree are to have them back, too.
    pub fn return_blocks(&mut self) -> Vec<Run> {
        self.blocks.drain(..).collect()
    }

    /// Blocks that are left.
    pub fn blocks_left(&self) -> u64 {
        self.blocks.iter().map(|run| run.blocks).sum()
    }

    /// Blocks that are promised to nobody: of device 0, and of all others that data of records go to. No more may be reserved for large data.
    /// Set the budget then.
    pub fn blocks_unpromised(&self) -> (u64, u64) {
        (self.ledger.first_left(), self.ledger.data_left())
    }

    /// Blocks that calls were promised whose frames are not in the tree: of device 0, and of all others.
    pub fn blocks_promised(&self) -> (u64, u64) {
        self.ledger.promised()
    }

    /// Says what room there is: after each digest, each commit and each reservation of blocks.
    pub fn set_budget(&mut self, budget: Budget) {
        self.ledger.set(budget);
    }

    /// The room that the client reckons with.
    pub fn budget(&self) -> Budget {
        self.ledger.budget()
    }

    /// The tree that is read from now on has all frames up to a ticket. Set the budget, too.
    pub fn digested(&mut self, ticket: Ticket) {
        self.overlay.digested(ticket.0);
        self.ledger.digested(ticket.0);
    }

    /// The same, where the tree is what the process knows of it: what the overlay lets go is known then.
    pub fn digested_to(&mut self, ticket: Ticket, known: &mut Known) {
        self.overlay.digested_to(ticket.0, |gone| known.digested(gone));
        self.ledger.digested(ticket.0);
    }

    /// Frames up to one are in the tree: what they promised is free. [`Self::digested_to`] may follow in parts.
    pub fn freed_to(&mut self, ticket: Ticket) {
        self.ledger.digested(ticket.0);
    }

    /// Whether half of the budget is promised: a digest that begins now ends before calls wait for it.
    pub fn is_half_promised(&self) -> bool {
        self.ledger.is_half_promised()
    }

    /// Another process may change an inode from now on.
    pub fn let_go(&mut self, inode: u64) {
        self.plain.take_if(|plain| *plain == inode);
    }

    /// Whether somebody of this process refers to an inode.
    pub fn holds(&self, inode: u64) -> bool {
        self.held.contains_key(&inode)
    }

    /// What the client sees above the tree.
    pub fn overlay(&self) -> &Overlay {
        &self.overlay
    }

    /// One more, or `count`, refer to an inode: it is open, or the kernel knows its number.
    pub fn hold(&mut self, inode: u64, count: u64) {
        *self.held.entry(inode).or_default() += count;
        self.lost.remove(&inode);
    }

    /// As many refer to it no more. If nobody does and it has no name, [`Self::release_lost`] deletes it.
    ///
    /// # Errors
    /// The tree cannot be read; the inode is then an orphan until the file system is opened anew.
    pub fn forget(&mut self, below: &mut Below<'_>, inode: u64, count: u64) -> Result<(), Failure> {
        let Some(held) = self.held.get_mut(&inode) else {
            return Ok(());
        };
        *held = held.saturating_sub(count);
        if *held > 0 {
            return Ok(());
        }
        self.held.remove(&inode);
        self.nameless.remove(&inode);
        let found = self.overlay.inode(below, inode)?;
        if inode != ROOT_INODE && found.is_some_and(|inode| inode.links == 0) {
            self.lost.insert(inode);
        }
        Ok(())
    }

    /// Whether [`Self::release_lost`] has something to do.
    pub fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Somebody else sees to an inode that [`Self::release_lost`] would delete. True if it would.
    pub fn take_lost(&mut self, inode: u64) -> bool {
        self.lost.remove(&inode)
    }

    /// Deletes inodes that have neither a name nor anybody who refers to them. Call it after [`Self::forget`], until it gives nothing.
    ///
    /// # Errors
    /// The log or the devices have no room yet.
    pub fn release_lost(&mut self, call: &mut Call<'_, '_>) -> Result<Option<Ticket>, Failure> {
        let Some(inode) = self.lost.first().copied() else {
            return Ok(None);
        };
        let ticket = self.commit(call, &[self.op(call, inode, Action::Release)])?;
        self.lost.remove(&inode);
        Ok(Some(ticket))
    }

    /// Whether the caller may do with an inode what `mask` says: `access`.
    ///
    /// # Errors
    /// [`Errno::Access`] if not; or [`Errno::NotPermitted`] if nobody may write it.
    pub fn access(
        &self,
        below: &mut Below<'_>,
        caller: &Caller<'_>,
        (number, mask): (u64, u32),
    ) -> Result<(), Failure> {
        let inode = self.known(below, number)?;
        self.may_access(below, caller, (number, &inode), mask)
    }

    fn may_access(
        &self,
        below: &mut Below<'_>,
        caller: &Caller<'_>,
        (number, inode): (u64, &Inode),
        mask: u32,
    ) -> Result<(), Failure> {
        if mask & WRITE != 0 && inode.flags & IMMUTABLE != 0 {
            return Err(Errno::NotPermitted.into());
        }
        let acl = match caller.needs_list(inode) {
            true => self.acl(below, number, acl::ACCESS)?,
            false => None,
        };
        match caller.may(inode, acl.as_ref(), mask) {
            true => Ok(()),
            false => Err(Errno::Access.into()),
        }
    }

    /// The same, if permissions are looked at.
    fn check(&self, call: &mut Call<'_, '_>, inode: (u64, &Inode), mask: u32) -> Result<(), Failure> {
        match self.options.checks_permissions {
            true => self.may_access(call.below, &call.caller, inode, mask),
            false => Ok(()),
        }
    }

    /// Whether the caller owns an inode, if permissions are looked at.
    fn check_owner(&self, call: &Call<'_, '_>, inode: &Inode) -> Result<(), Failure> {
        match self.options.checks_permissions && !call.caller.owns(inode) {
            true => Err(Errno::NotPermitted.into()),
            false => Ok(()),
        }
    }

    fn acl(&self, below: &mut Below<'_>, inode: u64, name: &[u8]) -> Result<Option<Acl>, Failure> {
        let value = self.overlay.attribute(below, inode, name)?;
        Ok(value.and_then(|value| Acl::parse(&value)))
    }

    fn known(&self, below: &mut Below<'_>, inode: u64) -> Result<Inode, Failure> {
        Ok(self.overlay.inode(below, inode)?.ok_or(Errno::NoEntry)?)
    }

    fn directory(&self, below: &mut Below<'_>, inode: u64) -> Result<Inode, Failure> {
        let found = self.known(below, inode)?;
        match found.is_directory() {
            true => Ok(found),
            false => Err(Errno::NotDirectory.into()),
        }
    }

    /// A directory that is changed, and what a name of it leads to.
    fn find(
        &self,
        call: &mut Call<'_, '_>,
        parent: u64,
        name: &[u8],
    ) -> Result<(Inode, Option<u64>), Failure> {
        let directory = self.directory(call.below, parent)?;
        self.check(call, (parent, &directory), EXECUTE)?;
        if name.is_empty() || directory.links == 0 {
            return Err(Errno::NoEntry.into());
        }
        if name.len() > NAME_BYTES_MAX {
            return Err(Errno::NameTooLong.into());
        }
        if !crate::op::is_name(name) {
            return Err(Errno::Invalid.into());
        }
        Ok((directory, self.overlay.lookup(call.below, parent, name)?))
    }

    /// `may_create` of Linux.
    fn may_create(&self, call: &mut Call<'_, '_>, (number, directory): (u64, &Inode)) -> Result<(), Failure> {
        if directory.flags & IMMUTABLE != 0 {
            return Err(Errno::NotPermitted.into());
        }
        self.check(call, (number, directory), WRITE | EXECUTE)
    }

    /// `may_delete` of Linux, but for the types.
    fn may_delete(
        &self,
        call: &mut Call<'_, '_>,
        (number, directory): (u64, &Inode),
        inode: &Inode,
    ) -> Result<(), Failure> {
        self.may_create(call, (number, directory))?;
        let is_free = directory.mode & STICKY == 0
            || call.caller.uid == directory.uid
            || call.caller.owns(inode)
            || !self.options.checks_permissions;
        let is_fixed = directory.flags & APPEND_ONLY != 0 || inode.flags & (APPEND_ONLY | IMMUTABLE) != 0;
        match is_free && !is_fixed {
            true => Ok(()),
            false => Err(Errno::NotPermitted.into()),
        }
    }

    /// What becomes of an inode that loses a name now.
    fn fate(&self, number: u64, inode: &Inode) -> Fate {
        match inode.is_directory() || inode.links <= 1 {
            false => Fate::Named,
            true if self.held.contains_key(&number) => Fate::Orphaned,
            true => Fate::Deleted,
        }
    }

    fn op<'a>(&self, call: &Call<'_, '_>, inode: u64, action: Action<'a>) -> Op<'a> {
        let time = call.now;
        Op { inode, time, action }
    }

    /// Whether names of one hash have room for another one.
    fn has_room(&self, below: &mut Below<'_>, entry: &Entry<'_>) -> Result<(), Failure> {
        let hash = hash_of(&entry.name, self.mark);
        match self
            .overlay
            .has_entry_room(below, (entry.parent, hash), entry.name.len())?
        {
            true => Ok(()),
            false => Err(Errno::NoSpace.into()),
        }
    }

    /// What changes the content of the file that the call before has changed in the same frame promises its keys no second time: a digest
    /// changes a file's content once for all of a frame.
    fn less_again(&mut self, ticket: Ticket, ops: &[Op<'_>], cost: Cost) -> Cost {
        let is_content = |op: &Op<'_>| matches!(op.action, Action::Write { .. } | Action::Place { .. });
        let file = match ops {
            [first, rest @ ..] if is_content(first) => rest
                .iter()
                .all(|op| is_content(op) && op.inode == first.inode)
                .then_some((ticket, first.inode)),
            _ => None,
        };
        let is_again = file.is_some() && self.last == file;
        self.last = file;
        match is_again {
            true => Cost { keys: 0, ..cost },
            false => cost,
        }
    }

    /// Logs operations that were found to be right, and takes them over.
    fn commit(&mut self, call: &mut Call<'_, '_>, ops: &[Op<'_>]) -> Result<Ticket, Failure> {
        let cost = ops.iter().map(|op| Cost::of(op, (0, 0)));
        let cost = cost.fold(Cost::default(), Cost::and);
        self.commit_at(call, ops, cost)
    }

    /// The same with a cost that the caller knows better.
    fn commit_at(&mut self, call: &mut Call<'_, '_>, ops: &[Op<'_>], cost: Cost) -> Result<Ticket, Failure> {
        if self.is_broken {
            return Err(Failure::Broken);
        }
        self.ledger.admit(cost).map_err(|room| match room {
            NoRoom::Yet => Failure::Digest,
            NoRoom::Ever => Errno::NoSpace.into(),
        })?;
        if call.below.may_miss() {
            ops.iter().try_for_each(|op| self.overlay.probe(call.below, op))?;
        }
        let ticket = (call.sink)(ops).map_err(|error| match error {
            AddError::Latched => Failure::Latched,
            AddError::Busy => Failure::Busy,
            AddError::Full { .. } => Failure::Digest,
            AddError::TooLong { .. } => Failure::TooLong,
        })?;
        call.below.changed();
        let cost = self.less_again(ticket, ops, cost);
        self.ledger.promise(ticket.0, cost);
        for op in ops {
            if self.overlay.apply(call.below, op, ticket.0).is_err() {
                self.is_broken = true;
                return Err(Failure::Broken);
            }
        }
        Ok(ticket)
    }
}

//! A POSIX file system as a state in memory: the reference that the overlay, the digest and the crash tests are compared with.
//!
//! [`Files::apply`] does what an operation says, or refuses it with the error of Linux and changes nothing. It takes operations that were
//! resolved: inodes for paths. If they say something of the files that is not so, they are [`Errno::Stale`]. Permissions are for
//! whoever makes operations.
//!
//! A directory has two links and one for each directory in it, as `stat` shows on most file systems of Linux.

use crate::content::Content;
pub use crate::errno::Errno;
use crate::format::{BLOCK_BYTES, Block, Place, ROOT_INODE};
use crate::inode::{TYPE_DIRECTORY, TYPE_FILE, TYPE_LINK, TYPE_MASK, Time};
use crate::op::{
    ATTRIBUTE_BYTES_MAX, Action, Allocation, Changes, Entry, Fate, NAME_BYTES_MAX, OFFSET_MAX, Op,
    TARGET_BYTES_MAX, Target,
};
use std::collections::BTreeMap;

/// What files can be, at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Links of an inode.
    pub links_max: u32,
    /// Bytes of a file.
    pub size_max: u64,
}

impl Default for Limits {
    /// Of the format: `XFS_MAXLINK` of Linux, and `loff_t`.
    fn default() -> Self {
        Self {
            links_max: i32::MAX as u32,
            size_max: OFFSET_MAX,
        }
    }
}

/// What only inodes of a type have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// A regular file's content.
    File(Content),
    /// A directory.
    Directory {
        /// The directory that it is in: itself for the root, 0 if it is removed.
        parent: u64,
        /// The inode of each name.
        entries: BTreeMap<Vec<u8>, u64>,
    },
    /// A symbolic link's target.
    Link(Vec<u8>),
    /// A device, a pipe, or a socket.
    Special,
}

/// A file, directory or the like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    /// Type and permissions.
    pub mode: u32,
    /// Its names. None: it is open, and deleted when it is released.
    pub links: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Of a special file.
    pub device: u32,
    /// Bytes, of a file or a target.
    pub size: u64,
    /// As of `chattr`.
    pub flags: u64,
    /// The tier that it is pinned to.
    pub tier: u8,
    /// When it was read.
    pub atime: Time,
    /// When its content changed.
    pub mtime: Time,
    /// When anything of it changed.
    pub ctime: Time,
    /// When it was made.
    pub btime: Time,
    /// Extended attributes.
    pub attributes: BTreeMap<Vec<u8>, Vec<u8>>,
    /// What only its type has.
    pub body: Body,
}

impl Inode {
    fn new(mode: u32, (uid, gid): (u32, u32), time: Time, body: Body) -> Self {
        Self {
            mode,
            links: 1 + u32::from(matches!(body, Body::Directory { .. })),
            uid,
            gid,
            device: 0,
            size: 0,
            flags: 0,
            tier: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            attributes: BTreeMap::new(),
            body,
        }
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        matches!(self.body, Body::Directory { .. })
    }

    fn changed(&mut self, time: Time) {
        (self.mtime, self.ctime) = (time, time);
    }

    fn file(&mut self, otherwise: Errno) -> Result<(&mut Content, &mut u64), Errno> {
        match &mut self.body {
            Body::File(content) => Ok((content, &mut self.size)),
            Body::Directory { .. } => Err(Errno::IsDirectory),
            _ => Err(otherwise),
        }
    }

    fn attribute(&mut self, name: &[u8], value: Option<&[u8]>) -> Result<(), Errno> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(Errno::Range);
        }
        if value.is_some_and(|value| value.len() > 1 << 16) {
            return Err(Errno::TooBig);
        }
        let is_plain = matches!(self.body, Body::File(_) | Body::Directory { .. });
        if name.starts_with(b"user.") && !is_plain {
            return Err(Errno::NotPermitted);
        }
        crate::op::check_space(name)?;
        match value {
            Some(value) if name.len() + value.len() > ATTRIBUTE_BYTES_MAX => Err(Errno::NoSpace),
            Some(value) => {
                self.attributes.insert(name.to_vec(), value.to_vec());
                Ok(())
            }
            None => self.attributes.remove(name).map(drop).ok_or(Errno::NoData),
        }
    }
}

/// What is at a block of a place, for operations whose data are there already.
pub type Blocks<'a> = &'a dyn Fn(Place) -> Box<Block>;

/// All files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    limits: Limits,
    inodes: BTreeMap<u64, Inode>,
}

impl Files {
    /// Nothing but a root directory.
    pub fn new(limits: Limits, mode: u32, ids: (u32, u32), time: Time) -> Self {
        let body = Body::Directory {
            parent: ROOT_INODE,
            entries: BTreeMap::new(),
        };
        let root = Inode::new(TYPE_DIRECTORY | mode, ids, time, body);
        Self {
            limits,
            inodes: BTreeMap::from([(ROOT_INODE, root)]),
        }
    }

    /// An inode.
    pub fn inode(&self, inode: u64) -> Option<&Inode> {
        self.inodes.get(&inode)
    }

    /// All inodes.
    pub fn inodes(&self) -> impl Iterator<Item = (u64, &Inode)> {
        self.inodes.iter().map(|(number, inode)| (*number, inode))
    }

    /// The inode of a name.
    pub fn lookup(&self, parent: u64, name: &[u8]) -> Result<u64, Errno> {
        let (_, entries) = self.directory(parent)?;
        entries.get(name).copied().ok_or(Errno::NoEntry)
    }

    /// What of a file is at an offset: as many bytes as asked for, unless it ends before.
    pub fn read(&self, inode: u64, offset: u64, bytes: usize) -> Result<Vec<u8>, Errno> {
        let inode = self.inode(inode).ok_or(Errno::NoEntry)?;
        let Body::File(content) = &inode.body else {
            return Err(if inode.is_directory() {
                Errno::IsDirectory
            } else {
                Errno::Invalid
            });
        };
        let mut found = vec![0; inode.size.saturating_sub(offset).min(bytes as u64) as usize];
        content.read(offset, &mut found);
        Ok(found)
    }

    /// The value of an attribute, for a buffer of so many bytes. For one of none the value counts as short enough: `getxattr` tells its
    /// length then.
    pub fn attribute(&self, inode: u64, name: &[u8], capacity: usize) -> Result<&[u8], Errno> {
        let inode = self.inode(inode).ok_or(Errno::NoEntry)?;
        let value = inode.attributes.get(name).ok_or(Errno::NoData)?;
        match capacity == 0 || value.len() <= capacity {
            true => Ok(value),
            false => Err(Errno::Range),
        }
    }

    /// What becomes of an inode that loses a name now.
    pub fn fate(&self, inode: u64, is_open: bool) -> Fate {
        let is_last = self
            .inode(inode)
            .is_none_or(|inode| inode.is_directory() || inode.links <= 1);
        match (is_last, is_open) {
            (false, _) => Fate::Named,
            (true, true) => Fate::Orphaned,
            (true, false) => Fate::Deleted,
        }
    }

    /// Does what an operation says. If it is refused, nothing has changed.
    pub fn apply(&mut self, op: &Op<'_>, blocks: Blocks<'_>) -> Result<(), Errno> {
        let (number, time) = (op.inode, op.time);
        match &op.action {
            Action::Create {
                entry,
                mode,
                uid,
                gid,
                device,
                target,
            } => {
                let mut inode = Inode::new(*mode, (*uid, *gid), time, body_of(*mode, entry, target)?);
                (inode.device, inode.size) = (*device, target.len() as u64);
                return self.create(number, entry, inode);
            }
            Action::Link { entry } => return self.link(number, entry, time),
            Action::Unlink {
                entry,
                is_directory,
                fate,
            } => {
                return self.unlink(number, entry, (*is_directory, *fate), time);
            }
            Action::Rename { from, to, target } => return self.rename(number, (from, to), *target, time),
            Action::Release => return self.release(number),
            _ => {}
        }
        let size_max = self.limits.size_max;
        let inode = self.inodes.get_mut(&number).ok_or(Errno::NoEntry)?;
        match &op.action {
            Action::Set(changes) => set(inode, changes, time),
            Action::Attribute { name, value } => {
                inode.attribute(name, value.as_deref())?;
                inode.ctime = time;
                Ok(())
            }
            action => {
                change_data(inode, action, size_max, blocks)?;
                inode.changed(time);
                Ok(())
            }
        }
    }

    fn directory(&self, inode: u64) -> Result<(u64, &BTreeMap<Vec<u8>, u64>), Errno> {
        match &self.inode(inode).ok_or(Errno::NoEntry)?.body {
            Body::Directory { parent, entries } => Ok((*parent, entries)),
            _ => Err(Errno::NotDirectory),
        }
    }

    /// What a name of a directory leads to, if the directory can have it.
    fn find(&self, entry: &Entry<'_>) -> Result<Option<u64>, Errno> {
        let (_, entries) = self.directory(entry.parent)?;
        if entry.name.is_empty() || self.inodes[&entry.parent].links == 0 {
            return Err(Errno::NoEntry);
        }
        if entry.name.len() > NAME_BYTES_MAX {
            return Err(Errno::NameTooLong);
        }
        match crate::op::is_name(&entry.name) {
            true => Ok(entries.get(&*entry.name).copied()),
            false => Err(Errno::Invalid),
        }
    }

    fn find_free(&self, entry: &Entry<'_>) -> Result<(), Errno> {
        match self.find(entry)? {
            Some(_) => Err(Errno::Exists),
            None => Ok(()),
        }
    }

    /// Refuses one more directory in a directory that has as many as it can have.
    fn has_link(&self, inode: u64) -> Result<(), Errno> {
        match self.inodes[&inode].links < self.limits.links_max {
            true => Ok(()),
            false => Err(Errno::TooManyLinks),
        }
    }

    fn create(&mut self, number: u64, entry: &Entry<'_>, mut inode: Inode) -> Result<(), Errno> {
        let is_nameless = entry.name.is_empty() && matches!(inode.body, Body::File(_));
        match is_nameless {
            true => self.directory(entry.parent).map(|_| ())?,
            false => self.find_free(entry)?,
        }
        if inode.is_directory() {
            self.has_link(entry.parent)?;
        }
        if number == 0 || self.inodes.contains_key(&number) {
            return Err(Errno::Stale);
        }
        let time = inode.ctime;
        if is_nameless {
            inode.links = 0;
        }
        self.inodes.insert(number, inode);
        if !is_nameless {
            self.enter(entry, number, time);
        }
        Ok(())
    }

    fn link(&mut self, number: u64, entry: &Entry<'_>, time: Time) -> Result<(), Errno> {
        let inode = self.inode(number).ok_or(Errno::NoEntry)?;
        self.find_free(entry)?;
        match inode.is_directory() {
            true => return Err(Errno::NotPermitted),
            false => self.has_link(number)?,
        }
        self.enter(entry, number, time);
        let inode = self.at(number);
        inode.links += 1;
        inode.ctime = time;
        Ok(())
    }

    fn unlink(
        &mut self,
        number: u64,
        entry: &Entry<'_>,
        (is_directory, fate): (bool, Fate),
        time: Time,
    ) -> Result<(), Errno> {
        let found = self.find(entry)?.ok_or(Errno::NoEntry)?;
        match (self.inodes[&found].is_directory(), is_directory) {
            (true, false) => return Err(Errno::IsDirectory),
            (false, true) => return Err(Errno::NotDirectory),
            _ => {}
        }
        self.may_lose(found, fate)?;
        if found != number {
            return Err(Errno::Stale);
        }
        self.leave(entry, number, time);
        self.lose(number, fate, time);
        Ok(())
    }

    /// `renameat2`, in the order in which Linux checks: `do_renameat2`, `vfs_rename`.
    fn rename(
        &mut self,
        number: u64,
        names: (&Entry<'_>, &Entry<'_>),
        target: Target,
        time: Time,
    ) -> Result<(), Errno> {
        let (from, to) = names;
        self.directory(from.parent)?;
        self.directory(to.parent)?;
        let source = self.find(from)?.ok_or(Errno::NoEntry)?;
        let found = self.find(to)?;
        let is_exchange = matches!(target, Target::Exchanged { .. });
        match (found, target) {
            (Some(_), Target::Free) => return Err(Errno::Exists),
            (None, Target::Exchanged { .. }) => return Err(Errno::NoEntry),
            _ => {}
        }
        if self.is_inside(to.parent, source) {
            return Err(Errno::Invalid);
        }
        if found.is_some_and(|found| self.is_inside(from.parent, found)) {
            return Err(if is_exchange {
                Errno::Invalid
            } else {
                Errno::NotEmpty
            });
        }
        if found == Some(source) {
            return Ok(());
        }
        self.may_rename(source, names, found, is_exchange)?;
        let said = match target {
            Target::Free => None,
            Target::Replaced { inode, .. } | Target::Exchanged { inode } => Some(inode),
        };
        if let (Some(found), Target::Replaced { fate, .. }) = (found, target) {
            self.may_lose(found, fate)?;
        }
        if source != number || found != said {
            return Err(Errno::Stale);
        }
        if let Some(found) = found {
            self.leave(to, found, time);
        }
        self.leave(from, source, time);
        self.enter(to, source, time);
        match (found, target) {
            (Some(found), Target::Replaced { fate, .. }) => self.lose(found, fate, time),
            (Some(found), _) => self.enter(from, found, time),
            _ => {}
        }
        for inode in [Some(source), found.filter(|_| is_exchange)]
            .into_iter()
            .flatten()
        {
            self.at(inode).ctime = time;
        }
        Ok(())
    }

    /// Whether types and links let a rename pass.
    fn may_rename(
        &self,
        source: u64,
        (from, to): (&Entry<'_>, &Entry<'_>),
        found: Option<u64>,
        is_exchange: bool,
    ) -> Result<(), Errno> {
        let is_directory = self.inodes[&source].is_directory();
        let was_directory = found.is_some_and(|found| self.inodes[&found].is_directory());
        match (is_directory, was_directory) {
            (true, false) if found.is_some() && !is_exchange => return Err(Errno::NotDirectory),
            (false, true) if !is_exchange => return Err(Errno::IsDirectory),
            _ => {}
        }
        if from.parent != to.parent && is_directory && !was_directory {
            self.has_link(to.parent)?;
        }
        if from.parent != to.parent && is_exchange && !is_directory && was_directory {
            self.has_link(from.parent)?;
        }
        Ok(())
    }

    /// Whether a directory is another inode, or somewhere in it.
    fn is_inside(&self, mut directory: u64, inode: u64) -> bool {
        loop {
            match self.directory(directory) {
                _ if directory == inode => return true,
                Ok((parent, _)) if parent != directory && parent != 0 => directory = parent,
                _ => return false,
            }
        }
    }

    /// Whether an inode may lose a name, and becomes what the operation says.
    fn may_lose(&self, inode: u64, fate: Fate) -> Result<(), Errno> {
        if self
            .directory(inode)
            .is_ok_and(|(_, entries)| !entries.is_empty())
        {
            return Err(Errno::NotEmpty);
        }
        match self.fate(inode, fate == Fate::Orphaned) == fate {
            true => Ok(()),
            false => Err(Errno::Stale),
        }
    }

    fn at(&mut self, inode: u64) -> &mut Inode {
        self.inodes.get_mut(&inode).expect("it was found before")
    }

    fn entries(&mut self, parent: u64) -> &mut BTreeMap<Vec<u8>, u64> {
        match &mut self.at(parent).body {
            Body::Directory { entries, .. } => entries,
            _ => unreachable!("it was a directory before"),
        }
    }

    /// An inode gets a name.
    fn enter(&mut self, entry: &Entry<'_>, number: u64, time: Time) {
        self.entries(entry.parent).insert(entry.name.to_vec(), number);
        let is_directory = self.inodes[&number].is_directory();
        let directory = self.at(entry.parent);
        directory.changed(time);
        directory.links += u32::from(is_directory);
        if let Body::Directory { parent, .. } = &mut self.at(number).body {
            *parent = entry.parent;
        }
    }

    /// A name goes.
    fn leave(&mut self, entry: &Entry<'_>, number: u64, time: Time) {
        self.entries(entry.parent).remove(&*entry.name);
        let is_directory = self.inodes[&number].is_directory();
        let directory = self.at(entry.parent);
        directory.changed(time);
        directory.links -= u32::from(is_directory);
    }

    /// An inode has lost a name.
    fn lose(&mut self, number: u64, fate: Fate, time: Time) {
        let inode = self.at(number);
        inode.ctime = time;
        inode.links = if inode.is_directory() { 0 } else { inode.links - 1 };
        if let Body::Directory { parent, .. } = &mut inode.body {
            *parent = 0;
        }
        if fate == Fate::Deleted {
            self.inodes.remove(&number);
        }
    }

    fn release(&mut self, number: u64) -> Result<(), Errno> {
        match self.inode(number).ok_or(Errno::NoEntry)?.links {
            0 => {
                self.inodes.remove(&number);
                Ok(())
            }
            _ => Err(Errno::Stale),
        }
    }
}

fn body_of(mode: u32, entry: &Entry<'_>, target: &[u8]) -> Result<Body, Errno> {
    match mode & TYPE_MASK {
        TYPE_LINK if target.is_empty() => Err(Errno::NoEntry),
        TYPE_LINK if target.len() > TARGET_BYTES_MAX => Err(Errno::NameTooLong),
        TYPE_LINK => Ok(Body::Link(target.to_vec())),
        _ if !target.is_empty() => Err(Errno::Invalid),
        TYPE_FILE => Ok(Body::File(Content::default())),
        TYPE_DIRECTORY => Ok(Body::Directory {
            parent: entry.parent,
            entries: BTreeMap::new(),
        }),
        _ => Ok(Body::Special),
    }
}

fn set(inode: &mut Inode, changes: &Changes, time: Time) -> Result<(), Errno> {
    if changes.mode.is_some() && matches!(inode.body, Body::Link(_)) {
        return Err(Errno::NotSupported);
    }
    if let Some(mode) = changes.mode {
        inode.mode = inode.mode & TYPE_MASK | mode;
    }
    inode.uid = changes.uid.unwrap_or(inode.uid);
    inode.gid = changes.gid.unwrap_or(inode.gid);
    inode.atime = changes.atime.unwrap_or(inode.atime);
    inode.mtime = changes.mtime.unwrap_or(inode.mtime);
    inode.flags = changes.flags.unwrap_or(inode.flags);
    inode.tier = changes.tier.unwrap_or(inode.tier);
    if !changes.keeps_ctime {
        inode.ctime = time;
    }
    Ok(())
}

fn change_data(
    inode: &mut Inode,
    action: &Action<'_>,
    size_max: u64,
    blocks: Blocks<'_>,
) -> Result<(), Errno> {
    let end_of = |offset: u64, bytes: u64| match offset.checked_add(bytes) {
        _ if bytes == 0 => Err(Errno::Invalid),
        Some(end) if end <= size_max => Ok(end),
        _ => Err(Errno::FileTooBig),
    };
    match action {
        Action::Truncate { size: new } => {
            let (content, size) = inode.file(Errno::Invalid)?;
            if *new > size_max {
                return Err(Errno::FileTooBig);
            }
            content.punch(*new..u64::MAX);
            *size = *new;
        }
        Action::Write { offset, data } => {
            let (content, size) = inode.file(Errno::Invalid)?;
            let end = end_of(*offset, data.len() as u64)?;
            content.write(*offset, data);
            *size = end.max(*size);
        }
        Action::Place {
            offset,
            bytes,
            place,
            sums,
        } => {
            let (content, size) = inode.file(Errno::Invalid)?;
            let end = end_of(*offset, u64::from(*bytes))?;
            let is_whole = end.is_multiple_of(BLOCK_BYTES as u64) || end >= *size;
            if !offset.is_multiple_of(BLOCK_BYTES as u64) || !is_whole {
                return Err(Errno::Invalid);
            }
            let data = read_blocks(*place, sums, *bytes, blocks)?;
            content.write(*offset, &data);
            *size = end.max(*size);
        }
        Action::Allocate {
            offset,
            bytes,
            what,
            keeps_size,
        } => {
            let (content, size) = inode.file(Errno::NoDevice)?;
            let end = end_of(*offset, *bytes)?;
            match what {
                Allocation::Hole if !keeps_size => return Err(Errno::NotSupported),
                Allocation::Reserve => content.reserve(*offset..end),
                Allocation::Hole => content.punch(*offset..end),
                Allocation::Zeros => content.zeros(*offset..end),
            }
            if !keeps_size {
                *size = end.max(*size);
            }
        }
        _ => unreachable!("all others were applied before"),
    }
    Ok(())
}

/// The data of blocks that follow each other, checked.
fn read_blocks(place: Place, sums: &[u32], bytes: u32, blocks: Blocks<'_>) -> Result<Vec<u8>, Errno> {
    let mut data = Vec::with_capacity(sums.len() * BLOCK_BYTES);
    for (index, sum) in sums.iter().enumerate() {
        let block = blocks(place.plus(index as u64));
        if crc32c::crc32c(&block[..]) != *sum {
            return Err(Errno::Io);
        }
        data.extend_from_slice(&block[..]);
    }
    let rest = data.get(bytes as usize..).ok_or(Errno::Invalid)?;
    match rest.len() < BLOCK_BYTES && rest.iter().all(|byte| *byte == 0) {
        true => Ok(data),
        false => Err(Errno::Invalid),
    }
}

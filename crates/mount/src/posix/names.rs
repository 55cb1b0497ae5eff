//! Names: lookups, listings, and changes of directories.

use super::attr::{Valid, entry_out, errno_of, negative_entry};
use super::server::{Changed, Server, Way, caller_of};
use crate::engine::{Failure, Turn};
use fs::client::{Listing, Made, New, Rename};
use fs::errno::Errno as FsErrno;
use fs::inode::{TYPE_DIRECTORY, TYPE_LINK};
use fs::lease::{MOVES, Mode};
use fuse::abi::{Directory, EntryOut, InHeader, OpenOut, Operation, Reply};
use fuse::transport::Call;

/// Entries of a listing that are looked at under one lock.
const ENTRIES: usize = 256;
/// `RENAME_NOREPLACE`, `RENAME_EXCHANGE` (renameat2(2)).
const NO_REPLACE: u32 = 1;
const EXCHANGE: u32 = 2;
/// `O_EXCL` of `O_TMPFILE`: it never gets a name.
const O_EXCL: u32 = 0o200;

impl Server {
    pub(crate) fn look_up(&self, call: Call, way: Way<'_>) {
        let Operation::Lookup { name } = call.operation() else {
            unreachable!("the caller looked at it");
        };
        let header = *call.header();
        let found = self.engine.turn(|turn| {
            way.may_read(turn, header.nodeid)?;
            let caller = caller_of(&header, 0);
            let found = turn.call(caller, |client, call| match name {
                // A handle of a file that the kernel had forgotten (`EXPORT_SUPPORT`): it need not be a directory.
                b"." => Ok((header.nodeid, client.stat(call.below, header.nodeid)?)),
                _ => client.lookup(call, (header.nodeid, name)),
            });
            let (number, inode) = match found {
                Err(Failure::Posix(FsErrno::NoEntry)) => {
                    return Ok(negative_entry(Valid::of(turn, header.nodeid, true)));
                }
                found => found?,
            };
            way.may(
                turn,
                &[(header.nodeid, Mode::Shared), (number, Mode::Shared)],
                false,
            )?;
            let is_known = turn.holds(number);
            let entry = entry_out(number, &inode, Valid::of(turn, header.nodeid, is_known));
            turn.hold(number, 1);
            Ok(entry)
        });
        match found {
            Ok(entry) => call.reply(&Reply::Entry(entry)),
            Err(Failure::Leases(wants)) => self.park(call, wants),
            Err(failure) => call.fail(errno_of(&failure)),
        }
    }

    pub(crate) fn read_link(&self, call: Call, way: Way<'_>) {
        let inode = call.header().nodeid;
        let target = self.engine.turn(|turn| {
            way.may_read(turn, inode)?;
            turn.read(|client, below| client.readlink(below, inode))
        });
        match target {
            Err(Failure::Leases(wants)) => self.park(call, wants),
            Ok(target) => call.reply(&Reply::Data(&target)),
            Err(failure) => call.fail(errno_of(&failure)),
        }
    }

    /// READDIR, and READDIRPLUS with the attributes of each entry, which then counts as looked up.
    pub(crate) fn list(&self, call: Call, way: Way<'_>, is_plus: bool) {
        let argument = match call.operation() {
            Operation::Readdir(argument) | Operation::Readdirplus(argument) => argument,
            _ => unreachable!("the caller looked at it"),
        };
        let parent = call.header().nodeid;
        // The call may be needed again, and its place has no room for both then.
        let mut listed = vec![0; argument.size as usize];
        let filled = self.engine.turn(|turn| {
            way.may_read(turn, parent)?;
            turn.listed(parent);
            let mut directory = Directory::new(&mut listed);
            match is_plus {
                true => fill_plus(turn, (parent, argument.offset), &mut directory)?,
                false => fill(turn, (parent, argument.offset), &mut directory)?,
            }
            Ok(directory.bytes())
        });
        match filled {
            Ok(bytes) => call.reply(&Reply::Data(&listed[..bytes])),
            Err(Failure::Leases(wants)) => self.park(call, wants),
            Err(failure) => call.fail(errno_of(&failure)),
        }
    }

    pub(crate) fn change_names(
        turn: &mut Turn<'_>,
        (header, way): (&InHeader, Way<'_>),
        operation: Operation<'_>,
    ) -> Result<Changed, Failure> {
        let parent = header.nodeid;
        match operation {
            Operation::Tmpfile(_) => way.may_read(turn, parent)?,
            _ => way.may_change(turn, parent)?,
        }
        let make = |turn: &mut Turn<'_>, name: &[u8], new: New<'_>, umask: u32| {
            let caller = caller_of(header, umask);
            let made = turn.call(caller, |client, call| client.create(call, (parent, name), new))?;
            Ok(entry_of(turn, parent, &made))
        };
        let (device, target) = (0, &b""[..]);
        match operation {
            Operation::Mknod { argument, name } => {
                let (mode, device) = (argument.mode, argument.rdev);
                let new = New { mode, device, target };
                make(turn, name, new, argument.umask)
            }
            Operation::Mkdir { argument, name } => {
                let mode = TYPE_DIRECTORY | argument.mode & 0o7777;
                let new = New { mode, device, target };
                make(turn, name, new, argument.umask)
            }
            Operation::Symlink { name, target } => {
                let mode = TYPE_LINK | 0o777;
                let new = New { mode, device, target };
                make(turn, name, new, 0)
            }
            Operation::Tmpfile(argument) => {
                let caller = caller_of(header, argument.umask);
                let is_linkable = argument.flags & O_EXCL == 0;
                // The creation holds it once: that is the kernel's lookup.
                let made = turn.call(caller, |client, call| {
                    client.create_nameless(call, parent, (argument.mode, is_linkable))
                })?;
                let entry = entry_out(made.number, &made.inode, Valid::of(turn, parent, false));
                Ok((Reply::Created(entry, OpenOut::default()), made.ticket))
            }
            operation => Self::move_names(turn, (header, way), operation),
        }
    }

    fn move_names(
        turn: &mut Turn<'_>,
        (header, way): (&InHeader, Way<'_>),
        operation: Operation<'_>,
    ) -> Result<Changed, Failure> {
        let (parent, caller) = (header.nodeid, caller_of(header, 0));
        match operation {
            Operation::Link { argument, name } => {
                let number = argument.oldnodeid;
                way.may(
                    turn,
                    &[(parent, Mode::Exclusive), (number, Mode::Exclusive)],
                    false,
                )?;
                let ticket = turn.call(caller, |client, call| client.link(call, number, (parent, name)))?;
                let inode = turn.read(|client, below| client.stat(below, number))?;
                turn.hold(number, 1);
                let valid = Valid::of(turn, parent, false);
                Ok((Reply::Entry(entry_out(number, &inode, valid)), Some(ticket)))
            }
            Operation::Unlink { name } => {
                may_take(turn, way, &[(parent, name)])?;
                let ticket = turn.call(caller, |client, call| client.unlink(call, (parent, name), false))?;
                Ok((Reply::Empty, Some(ticket)))
            }
            Operation::Rmdir { name } => {
                may_take(turn, way, &[(parent, name)])?;
                let ticket = turn.call(caller, |client, call| client.unlink(call, (parent, name), true))?;
                Ok((Reply::Empty, Some(ticket)))
            }
            Operation::Rename {
                argument,
                name,
                new_name,
            } => {
                if argument.flags & !(NO_REPLACE | EXCHANGE) != 0 {
                    return Err(FsErrno::Invalid.into());
                }
                let how = Rename {
                    keeps_target: argument.flags & NO_REPLACE != 0,
                    exchanges: argument.flags & EXCHANGE != 0,
                };
                let (from, to) = ((parent, name), (argument.newdir, new_name));
                may_take(turn, way, &[from, to])?;
                let ticket = turn.call(caller, |client, call| client.rename(call, from, to, how))?;
                Ok((Reply::Empty, ticket))
            }
            _ => Err(FsErrno::NotSupported.into()),
        }
    }
}

/// Whether a call may take away what names lead to, or move it.
fn may_take(turn: &mut Turn<'_>, way: Way<'_>, names: &[(u64, &[u8])]) -> Result<(), Failure> {
    if !turn.is_shared() {
        return Ok(());
    }
    let mut wants: Vec<(u64, Mode)> = names
        .iter()
        .map(|(parent, _)| (*parent, Mode::Exclusive))
        .collect();
    way.may(turn, &wants, false)?;
    let mut found = Vec::new();
    for (parent, name) in names {
        // What is not there is for the call itself to say.
        let there = turn.read(|client, below| Ok(client.overlay().lookup(below, *parent, name)?))?;
        found.extend(there);
    }
    wants.extend(found.iter().map(|inode| (*inode, Mode::Exclusive)));
    way.may(turn, &wants, false)?;
    let is_moved = matches!(names, [(from, _), (to, _)] if from != to);
    for inode in found.into_iter().filter(|_| is_moved) {
        let is_directory = turn.read(|client, below| Ok(client.stat(below, inode)?.is_directory()))?;
        if is_directory {
            wants.push((MOVES, Mode::Exclusive));
            return way.may(turn, &wants, false);
        }
    }
    Ok(())
}

/// The answer to a creation, which the kernel has looked up with it.
fn entry_of(turn: &mut Turn<'_>, parent: u64, made: &Made) -> Changed {
    turn.hold(made.number, 1);
    let valid = Valid::of(turn, parent, false);
    (
        Reply::Entry(entry_out(made.number, &made.inode, valid)),
        made.ticket,
    )
}

fn fill(turn: &mut Turn<'_>, place: (u64, u64), directory: &mut Directory<'_>) -> Result<(), Failure> {
    each_entry(turn, place, |_, entry| {
        Ok(directory.push(entry.inode, entry.cookie, u32::from(entry.kind), &entry.name))
    })
}

fn fill_plus(turn: &mut Turn<'_>, place: (u64, u64), directory: &mut Directory<'_>) -> Result<(), Failure> {
    each_entry(turn, place, |turn, entry| {
        let is_dots = entry.name == b"." || entry.name == b"..";
        let out = match is_dots {
            // No lookup counts.
            true => dots(entry.inode),
            // Nor does one where the leases of all entries would be asked for: the kernel looks them up.
            false if turn.is_shared() => dots(entry.inode),
            false => {
                let inode = turn.read(|client, below| client.stat(below, entry.inode))?;
                entry_out(entry.inode, &inode, Valid::of(turn, place.0, true))
            }
        };
        let is_taken = directory.push_plus(&out, entry.cookie, u32::from(entry.kind), &entry.name);
        if is_taken && out.nodeid != 0 {
            turn.hold(entry.inode, 1);
        }
        Ok(is_taken)
    })
}

/// Gives the entries of a directory behind an offset, until one is not taken.
fn each_entry(
    turn: &mut Turn<'_>,
    (parent, offset): (u64, u64),
    mut take: impl FnMut(&mut Turn<'_>, &Listing) -> Result<bool, Failure>,
) -> Result<(), Failure> {
    let mut cookie = offset;
    loop {
        let entries = turn.read(|client, below| client.list(below, (parent, cookie), ENTRIES))?;
        for entry in &entries {
            if !take(turn, entry)? {
                return Ok(());
            }
            cookie = entry.cookie;
        }
        if entries.len() < ENTRIES {
            return Ok(());
        }
    }
}

fn dots(inode: u64) -> EntryOut {
    let mut out = EntryOut::default();
    out.attr.ino = inode;
    out
}

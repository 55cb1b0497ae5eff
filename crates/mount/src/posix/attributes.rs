//! What an inode is: attributes, extended attributes, flags; and what the file system is.

use super::attr::{VALID_S, Valid, attr_out, errno_of, statx_out};
use super::pin::{self, TIER};
use super::server::{Changed, Server, Way, caller_of};
use super::status::{CONTROL, STATUS, json};
use crate::engine::{Failure, Turn};
use fs::client::{Stamp, Statfs, Wanted, XattrMode};
use fs::errno::Errno as FsErrno;
use fs::format::{BLOCK_BYTES, ROOT_INODE};
use fs::inode::{Inode, Time};
use fs::op::NAME_BYTES_MAX;
use fuse::abi::{Errno, InHeader, Kstatfs, Operation, Reply, SetattrIn, SetxattrIn, fattr, setxattr};
use fuse::transport::Call;
use std::os::unix::ffi::OsStrExt;

/// `XATTR_CREATE` and `XATTR_REPLACE` (setxattr(2)).
const XATTR_CREATE: u32 = 1;
const XATTR_REPLACE: u32 = 2;
/// `FS_IOC_GETFLAGS` and `FS_IOC_SETFLAGS` (ioctl_iflags(2)), of which the kernel sends four bytes.
const GET_FLAGS: u32 = 0x8008_6601;
const SET_FLAGS: u32 = 0x4008_6602;

impl Server {
    pub(crate) fn attributes(&self, call: Call, way: Way<'_>) {
        let number = call.header().nodeid;
        match self.engine.turn(|turn| stat(turn, way, number)) {
            Ok(inode) => call.reply(&Reply::Attr(attr_out(number, &inode, VALID_S))),
            Err(Failure::Leases(wants)) => self.park(call, wants),
            Err(failure) => call.fail(errno_of(&failure)),
        }
    }

    /// STATX: attributes, with the time of birth among them.
    pub(crate) fn all_attributes(&self, call: Call, way: Way<'_>) {
        let number = call.header().nodeid;
        match self.engine.turn(|turn| stat(turn, way, number)) {
            Err(Failure::Leases(wants)) => self.park(call, wants),
            Ok(inode) => call.reply(&Reply::Statx(statx_out(number, &inode))),
            Err(failure) => call.fail(errno_of(&failure)),
        }
    }

    pub(crate) fn set_attributes(
        turn: &mut Turn<'_>,
        header: &InHeader,
        argument: &SetattrIn,
    ) -> Result<Changed, Failure> {
        let number = header.nodeid;
        let has = |bit: u32| argument.valid & bit != 0;
        let stamp = |at: u32, now: u32, seconds: u64, ns: u32| {
            let time = Time {
                seconds: seconds as i64,
                ns,
            };
            match (has(now), has(at)) {
                (true, _) => Some(Stamp::Now),
                (false, true) => Some(Stamp::At(time)),
                (false, false) => None,
            }
        };
        let wanted = Wanted {
            mode: has(fattr::MODE).then_some(argument.mode & 0o7777),
            uid: has(fattr::UID).then_some(argument.uid),
            gid: has(fattr::GID).then_some(argument.gid),
            size: has(fattr::SIZE).then_some(argument.size),
            atime: stamp(fattr::ATIME, fattr::ATIME_NOW, argument.atime, argument.atimensec),
            mtime: stamp(fattr::MTIME, fattr::MTIME_NOW, argument.mtime, argument.mtimensec),
            is_open: has(fattr::FH),
            takes_set_id: has(fattr::KILL_SUIDGID),
        };
        let ticket = turn.call(caller_of(header, 0), |client, call| {
            client.set(call, number, &wanted)
        })?;
        let inode = turn.read(|client, below| client.stat(below, number))?;
        let valid = Valid::of_change(turn);
        Ok((Reply::Attr(attr_out(number, &inode, valid)), ticket))
    }

    pub(crate) fn attribute(&self, call: Call, way: Way<'_>) {
        let Operation::Getxattr { argument, name } = call.operation() else {
            unreachable!("the caller looked at it");
        };
        let header = *call.header();
        let value = match (header.nodeid, name) {
            (ROOT_INODE, name) if name == STATUS.as_bytes() => Ok(self.status().into_bytes()),
            (ROOT_INODE, name) if name == CONTROL.as_bytes() => match &self.control {
                Some(path) => Ok(path.as_os_str().as_bytes().to_vec()),
                None => Err(FsErrno::NoData.into()),
            },
            (number, name) if name == TIER.as_bytes() => self.engine.turn(|turn| {
                way.may_read(turn, number)?;
                pin::value(turn, number)
            }),
            (number, name) => self.engine.turn(|turn| {
                way.may_read(turn, number)?;
                turn.call(caller_of(&header, 0), |client, call| {
                    client.attribute(call, number, name)
                })
            }),
        };
        self.answer_bytes(call, value, argument.size);
    }

    fn status(&self) -> String {
        let processes = self.engine.processes();
        let control = self.control.as_deref().map(|path| (path, processes));
        json(&self.engine.status(), self.transport.transport(), control)
    }

    pub(crate) fn attribute_names(&self, call: Call, way: Way<'_>) {
        let Operation::Listxattr(argument) = call.operation() else {
            unreachable!("the caller looked at it");
        };
        let header = *call.header();
        let names = self.engine.turn(|turn| {
            way.may_read(turn, header.nodeid)?;
            turn.call(caller_of(&header, 0), |client, call| {
                client.attributes(call, header.nodeid)
            })
        });
        let joined = names.map(|names| {
            let ended = names.into_iter().flat_map(|name| name.into_iter().chain([0]));
            ended.collect::<Vec<u8>>()
        });
        self.answer_bytes(call, joined, argument.size);
    }

    pub(crate) fn set_attribute(
        turn: &mut Turn<'_>,
        header: &InHeader,
        (name, value): (&[u8], &[u8]),
        argument: &SetxattrIn,
    ) -> Result<Changed, Failure> {
        let mode = match argument.flags {
            0 => XattrMode::Any,
            XATTR_CREATE => XattrMode::Create,
            XATTR_REPLACE => XattrMode::Replace,
            _ => return Err(FsErrno::Invalid.into()),
        };
        if name == TIER.as_bytes() {
            return pin::pin(turn, header, value, mode);
        }
        let takes_set_gid = argument.setxattr_flags & setxattr::ACL_KILL_SGID != 0;
        let ticket = turn.call(caller_of(header, 0), |client, call| {
            client.set_attribute(call, (header.nodeid, name), value, (mode, takes_set_gid))
        })?;
        Ok((Reply::Empty, ticket))
    }

    pub(crate) fn remove_attribute(
        turn: &mut Turn<'_>,
        header: &InHeader,
        name: &[u8],
    ) -> Result<Changed, Failure> {
        if name == TIER.as_bytes() {
            return pin::unpin(turn, header);
        }
        let ticket = turn.call(caller_of(header, 0), |client, call| {
            client.remove_attribute(call, (header.nodeid, name))
        })?;
        Ok((Reply::Empty, ticket))
    }

    /// IOCTL: the flags of `chattr`.
    pub(crate) fn control(&self, call: Call, way: Way<'_>) {
        let Operation::Ioctl { argument, data } = call.operation() else {
            unreachable!("the caller looked at it");
        };
        let header = *call.header();
        match argument.cmd {
            GET_FLAGS => match self.engine.turn(|turn| stat(turn, way, header.nodeid)) {
                Err(Failure::Leases(wants)) => self.park(call, wants),
                Ok(inode) => call.reply(&Reply::Ioctl(0, &(inode.flags as u32).to_ne_bytes())),
                Err(failure) => call.fail(errno_of(&failure)),
            },
            SET_FLAGS => {
                let Some(flags) = data.first_chunk::<4>().map(|flags| u32::from_ne_bytes(*flags)) else {
                    return call.fail(Errno::INVAL);
                };
                self.change_by(call, way, move |turn, _, way| {
                    way.may_change(turn, header.nodeid)?;
                    let caller = caller_of(&header, 0);
                    let ticket = turn.call(caller, |client, call| {
                        client.set_flags(call, header.nodeid, u64::from(flags))
                    })?;
                    Ok((Reply::Ioctl(0, &[]), Some(ticket)))
                });
            }
            _ => call.fail(Errno::NOTTY),
        }
    }

    pub(crate) fn room(&self, call: Call) {
        let (room, free) = self.engine.turn(|turn| {
            let room: Result<Statfs, Failure> = turn.read(|client, below| Ok(client.statfs(below)));
            (room, turn.free_blocks())
        });
        let room = match room {
            Ok(room) => room,
            Err(failure) => return call.fail(errno_of(&failure)),
        };
        call.reply(&Reply::Statfs(Kstatfs {
            blocks: room.blocks,
            bfree: free,
            bavail: room.available.min(free),
            // Inodes have no room of their own.
            files: 0,
            ffree: 0,
            bsize: BLOCK_BYTES as u32,
            namelen: NAME_BYTES_MAX as u32,
            frsize: BLOCK_BYTES as u32,
            ..Kstatfs::default()
        }));
    }

    /// Answers with a value, or with its size if the caller has no room for any.
    fn answer_bytes(&self, call: Call, value: Result<Vec<u8>, Failure>, size: u32) {
        match value {
            Ok(value) if size == 0 => call.reply(&Reply::Size(value.len() as u32)),
            Ok(value) if value.len() > size as usize => call.fail(Errno::RANGE),
            Ok(value) => call.reply(&Reply::Data(&value)),
            Err(Failure::Leases(wants)) => self.park(call, wants),
            Err(failure) => call.fail(errno_of(&failure)),
        }
    }
}

/// What an inode is.
fn stat(turn: &mut Turn<'_>, way: Way<'_>, number: u64) -> Result<Inode, Failure> {
    way.may_read(turn, number)?;
    turn.read(|client, below| client.stat(below, number))
}

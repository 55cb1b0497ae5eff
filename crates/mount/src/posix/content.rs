//! What files hold: reads, writes, allocations.

use super::attr::errno_of;
use super::server::{Changed, Place, Server, caller_of};
use crate::engine::{Failure, Patience, Turn, Write};
use fs::client::{Caller, Where};
use fs::errno::Errno as FsErrno;
use fs::op::Allocation;
use fuse::abi::{Errno, FallocateIn, InHeader, Operation, Reply, write};
use fuse::transport::Call;

/// A write that is longer may be for a device.
const SMALL_BYTES: usize = 32 << 10;
/// `FALLOC_FL_KEEP_SIZE`, `FALLOC_FL_PUNCH_HOLE`, `FALLOC_FL_ZERO_RANGE` (fallocate(2)).
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 0x10;
/// `SEEK_DATA` and `SEEK_HOLE` (lseek(2)).
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

impl Server {
    pub(crate) fn read(&self, call: Call) {
        let Operation::Read(argument) = call.operation() else {
            unreachable!("the caller looked at it");
        };
        let inode = call.header().nodeid;
        call.reply_with(argument.size as usize, |place| {
            let read = self.engine.read((inode, argument.offset), place);
            read.map_err(|failure| errno_of(&failure))
        });
        // When it was read counts for no more than that.
        let _: Result<_, Failure> = self
            .engine
            .turn(|turn| turn.call(Caller::default(), |client, call| client.accessed(call, inode)));
    }

    pub(crate) fn seek(&self, call: Call) {
        let Operation::Lseek(argument) = call.operation() else {
            unreachable!("the caller looked at it");
        };
        let wants_data = match argument.whence {
            SEEK_DATA => true,
            SEEK_HOLE => false,
            _ => return call.fail(Errno::INVAL),
        };
        let inode = call.header().nodeid;
        let found = self
            .engine
            .turn(|turn| turn.read(|client, below| client.seek(below, (inode, argument.offset), wants_data)));
        match found {
            Ok(offset) => call.reply(&Reply::Offset(offset)),
            Err(failure) => call.fail(errno_of(&failure)),
        }
    }

    pub(crate) fn write(&self, call: Call, place: Place) {
        let mut patience = Patience::default();
        loop {
            let Operation::Write { argument, data } = call.operation() else {
                unreachable!("the caller looked at it");
            };
            if place == Place::Transport && self.is_slow && data.len() > SMALL_BYTES {
                return self.queue.serve(call);
            }
            let request = Write {
                caller: caller_of(call.header(), 0),
                inode: call.header().nodeid,
                at: Where::At(argument.offset),
                data,
                takes_set_id: argument.write_flags & write::KILL_SUIDGID != 0,
            };
            match self.engine.write(&request) {
                Ok((bytes, ticket)) => return self.answer(call, (Reply::Written(bytes as u32), ticket)),
                Err(failure) if place == Place::Transport && Patience::may_wait(&failure) => {
                    return self.queue.serve(call);
                }
                Err(failure) => {
                    if let Err(failure) = patience.wait(&self.engine, failure) {
                        return call.fail(errno_of(&failure));
                    }
                }
            }
        }
    }

    pub(crate) fn allocate(
        turn: &mut Turn<'_>,
        header: &InHeader,
        argument: &FallocateIn,
    ) -> Result<Changed, Failure> {
        let keeps_size = argument.mode & KEEP_SIZE != 0;
        let what = match argument.mode & !KEEP_SIZE {
            0 => Allocation::Reserve,
            PUNCH_HOLE => Allocation::Hole,
            ZERO_RANGE => Allocation::Zeros,
            _ => return Err(FsErrno::NotSupported.into()),
        };
        let range = (argument.offset, argument.length);
        // The kernel does not say whether the caller keeps set-ID bits: they go, as for all but root.
        let takes_set_id = header.uid != 0;
        let ticket = turn.call(caller_of(header, 0), |client, call| {
            client.allocate(call, (header.nodeid, range), (what, keeps_size), takes_set_id)
        })?;
        Ok((Reply::Empty, Some(ticket)))
    }
}

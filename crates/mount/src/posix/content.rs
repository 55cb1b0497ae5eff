//! What files hold: reads, writes, allocations.

use super::attr::errno_of;
use super::server::{Place, Server, Way, caller_of};
use crate::engine::{Failure, Patience, Pins, Turn, Write};
use fs::client::{Caller, Where};
use fs::errno::Errno as FsErrno;
use fs::lease::Mode;
use fs::log::Ticket;
use fs::op::Allocation;
use fuse::abi::{Errno, FallocateIn, InHeader, Operation, Reply, write};
use fuse::transport::Call;
use os::sync::{Ordering, thread};
use std::time::{Duration, Instant};

/// A write that is longer may be for a device.
const SMALL_BYTES: usize = 32 << 10;
/// What FALLOCATE does in one call of the file system; if there is no room for that, as little as this.
const PART_BYTES_MAX: u64 = 64 << 20;
const PART_BYTES_MIN: u64 = 128 << 10;
/// `FALLOC_FL_KEEP_SIZE`, `FALLOC_FL_PUNCH_HOLE`, `FALLOC_FL_ZERO_RANGE` (fallocate(2)).
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 0x10;
/// `O_APPEND` (open(2)), as WRITE tells it.
const O_APPEND: u32 = 0o2000;
/// The kernel has so long to drop pages that hold data of another place, before the write is answered.
const DROP_WITHIN: Duration = Duration::from_millis(1);
/// `SEEK_DATA` and `SEEK_HOLE` (lseek(2)).
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

impl Server {
    /// READ. The kernel may have the file mapped, and write to its pages without a word: so it gets pages of what it alone has.
    pub(crate) fn read(&self, call: Call, way: Way<'_>) {
        let Operation::Read(argument) = call.operation() else {
            unreachable!("the caller looked at it");
        };
        let inode = call.header().nodeid;
        let may = |turn: &mut Turn<'_>| way.may(turn, &[(inode, Mode::Exclusive)], true);
        let found = self
            .engine
            .find((inode, argument.offset, argument.size as usize), may);
        let found = match found {
            Err(Failure::Leases(wants)) => return self.park(call, wants),
            found => found,
        };
        call.reply_with(argument.size as usize, |place| {
            let read = found.and_then(|found| self.engine.read_found(found, place));
            read.map_err(|failure| errno_of(&failure))
        });
        if !self.keeps_atime {
            return;
        }
        // When it was read counts for no more than that.
        let _: Result<_, Failure> = self.engine.turn(|turn| {
            may(turn)?;
            turn.call(Caller::default(), |client, call| client.accessed(call, inode))
        });
    }

    pub(crate) fn seek(&self, call: Call, way: Way<'_>) {
        let Operation::Lseek(argument) = call.operation() else {
            unreachable!("the caller looked at it");
        };
        let wants_data = match argument.whence {
            SEEK_DATA => true,
            SEEK_HOLE => false,
            _ => return call.fail(Errno::INVAL),
        };
        let inode = call.header().nodeid;
        let found = self.engine.turn(|turn| {
            way.may_read(turn, inode)?;
            turn.read(|client, below| client.seek(below, (inode, argument.offset), wants_data))
        });
        match found {
            Err(Failure::Leases(wants)) => self.park(call, wants),
            Ok(offset) => call.reply(&Reply::Offset(offset)),
            Err(failure) => call.fail(errno_of(&failure)),
        }
    }

    pub(crate) fn write(&self, call: Call, way: Way<'_>) {
        let mut patience = Patience::default();
        loop {
            let Operation::Write { argument, data } = call.operation() else {
                unreachable!("the caller looked at it");
            };
            if way.place == Place::Transport && self.is_slow && data.len() > SMALL_BYTES {
                return self.queue.serve(call, Pins::new());
            }
            let is_write_back = argument.write_flags & write::CACHE != 0;
            let request = Write {
                caller: caller_of(call.header(), 0),
                inode: call.header().nodeid,
                at: Where::At(argument.offset),
                data,
                takes_set_id: argument.write_flags & write::KILL_SUIDGID != 0,
                appends: argument.flags & O_APPEND != 0 && !is_write_back,
                is_write_back,
                pins: way.pins,
            };
            match self.engine.write(&request) {
                Ok(wrote) => {
                    if wrote.took_set_id {
                        self.attributes_changed(request.inode);
                    }
                    let (inode, bytes) = (request.inode, wrote.bytes);
                    if wrote.offset.is_some_and(|at| at != argument.offset) {
                        self.misplaced(way, (inode, argument.offset, bytes));
                    }
                    return self.answer(call, (Reply::Written(bytes as u32), wrote.ticket));
                }
                Err(Failure::Leases(wants)) => return self.park(call, wants),
                Err(failure) if way.place == Place::Transport && Patience::may_wait(&failure) => {
                    return self.queue.serve(call, Pins::new());
                }
                Err(failure) => {
                    if let Err(failure) = patience.wait(&self.engine, failure) {
                        return call.fail(errno_of(&failure));
                    }
                }
            }
        }
    }

    /// Data were written behind the end of a file, which others have moved: the kernel has them in pages where they are not. A page that is
    /// locked for this call is not taken for whole afterwards, so it need not go before the answer.
    fn misplaced(&self, way: Way<'_>, (inode, offset, bytes): (u64, u64, usize)) {
        let range = (offset as i64, bytes as i64);
        let is_dropped = self.cache.drop_pages(inode, range);
        let began = Instant::now();
        while way.place == Place::Worker && began.elapsed() < DROP_WITHIN {
            if is_dropped.load(Ordering::Acquire) {
                return;
            }
            thread::yield_now();
        }
    }

    /// FALLOCATE, part by part: other calls are served in between, and the metadata of a large range find their room by and by.
    pub(crate) fn allocate(&self, call: Call, way: Way<'_>) {
        let Operation::Fallocate(argument) = call.operation() else {
            unreachable!("the caller looked at it");
        };
        let end = argument.offset.saturating_add(argument.length);
        let (mut at, mut part_bytes) = (argument.offset, PART_BYTES_MAX);
        let (mut patience, mut last) = (Patience::default(), None);
        while at < end {
            let to = end.min((at / part_bytes + 1) * part_bytes);
            let part = FallocateIn {
                offset: at,
                length: to - at,
                ..argument
            };
            let allocated = self.engine.turn(|turn| {
                way.may(turn, &[(call.header().nodeid, Mode::Exclusive)], true)?;
                allocate_part(turn, call.header(), &part)
            });
            match allocated {
                Ok((ticket, took_set_id)) => {
                    if took_set_id {
                        self.attributes_changed(call.header().nodeid);
                    }
                    (at, last, patience) = (to, Some(ticket), Patience::default());
                }
                // From the beginning: what is there stays.
                Err(Failure::Leases(wants)) => return self.park(call, wants),
                Err(failure) if way.place == Place::Transport && Patience::may_wait(&failure) => {
                    return self.queue.serve(call, Pins::new());
                }
                Err(failure) => match patience.wait(&self.engine, failure) {
                    Ok(()) => {}
                    Err(Failure::Posix(FsErrno::NoSpace)) if part_bytes > PART_BYTES_MIN => {
                        (part_bytes, patience) = (part_bytes / 8, Patience::default());
                    }
                    Err(failure) => {
                        // Parts may be there.
                        self.attributes_changed(call.header().nodeid);
                        return call.fail(errno_of(&failure));
                    }
                },
            }
        }
        self.answer(call, (Reply::Empty, last));
    }
}

/// When a part is durable, and whether it took set-ID bits.
fn allocate_part(
    turn: &mut Turn<'_>,
    header: &InHeader,
    part: &FallocateIn,
) -> Result<(Ticket, bool), Failure> {
    let keeps_size = part.mode & KEEP_SIZE != 0;
    let what = match part.mode & !KEEP_SIZE {
        0 => Allocation::Reserve,
        PUNCH_HOLE => Allocation::Hole,
        ZERO_RANGE => Allocation::Zeros,
        _ => return Err(FsErrno::NotSupported.into()),
    };
    let range = (part.offset, part.length);
    // The kernel does not say whether the caller keeps set-ID bits: they go, as for all but root.
    let takes_set_id = header.uid != 0;
    turn.call(caller_of(header, 0), |client, call| {
        client.allocate(call, (header.nodeid, range), (what, keeps_size), takes_set_id)
    })
}

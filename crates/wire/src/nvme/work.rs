//! Commands under way: what each is to do, how far it is, and its data.

use base::{BlockOp, Pages, SectorRange};

use super::proto::{Sqe, Status, sgl};
use crate::segment::copy_in;

/// How far a command is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It waits for room.
    Waiting,
    /// It has room, and its data is to be asked for.
    Granted,
    /// Its data is on the way.
    Receiving,
    /// The volume was asked.
    Asked,
    /// It waits for a fence.
    Fenced,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write,
    Compare,
    Flush,
    Trim,
    WriteZeroes,
    /// Dataset Management: ranges to forget, one after the other.
    Dataset,
    /// A command of the control path that comes with data.
    Control,
}

/// A checked command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub cid: u16,
    pub nsid: u32,
    /// First block of what the volume was asked about last, for the error log; 0 where there is no range.
    pub lba: u64,
    pub kind: Kind,
    pub fua: bool,
    /// Bytes of data that the host sends.
    pub data_bytes: u32,
    /// The command's range; of trims and zeroes, the part that the volume has not been asked about; of reads and writes in
    /// parts, the part under way.
    pub range: SectorRange,
}

/// A command under way.
#[derive(Debug)]
pub(super) struct Work {
    pub plan: Plan,
    /// Of a read or a write in parts: the bytes before the part under way, and what is behind that part.
    pub done_bytes: u32,
    pub rest: SectorRange,
    pub stage: Stage,
    /// A data digest did not match.
    pub damaged: bool,
    /// The first fence set up since it came, if its host was preempted with abort: it asks the volume for nothing more.
    pub preempted: Option<u64>,
    /// Bytes of data that have come.
    pub filled: u32,
    /// Bytes of these that the host was asked for; a capsule brings its own.
    pub asked_bytes: u32,
    /// Bytes that count against the session's limit.
    pub counted_bytes: u32,
    /// Destination of the data of writes and compares.
    pub pages: Pages,
    pub extra: Option<Box<Extra>>,
}

/// Fields that only commands of the control path and Dataset Management need.
#[derive(Debug)]
pub(super) struct Extra {
    pub sqe: Sqe,
    pub data: Vec<u8>,
    /// Ranges not asked about yet, last first.
    pub ranges: Vec<SectorRange>,
}

impl Plan {
    /// A command that needs nothing yet.
    pub fn new(sqe: &Sqe, kind: Kind) -> Self {
        Self {
            cid: sqe.cid(),
            nsid: sqe.nsid(),
            lba: 0,
            kind,
            fua: false,
            data_bytes: 0,
            range: SectorRange::EMPTY,
        }
    }

    /// Memory that counts while it is under way: whole pages, since a page holds one command's data. A compare holds what it
    /// was sent and what is read. Data sent with a command of the control path count as well, though not in pages.
    pub const fn payload_bytes(&self) -> u32 {
        match self.kind {
            Kind::Read | Kind::Write => self.range.footprint_bytes() as u32,
            Kind::Compare => 2 * self.range.footprint_bytes() as u32,
            Kind::Control | Kind::Dataset => self.data_bytes,
            Kind::Flush | Kind::Trim | Kind::WriteZeroes => 0,
        }
    }

    pub const fn takes_pages(&self) -> bool {
        matches!(self.kind, Kind::Write | Kind::Compare)
    }

    pub const fn op(&self) -> BlockOp {
        match self.kind {
            Kind::Read | Kind::Compare => BlockOp::Read,
            Kind::Write => BlockOp::Write,
            Kind::Flush => BlockOp::Flush,
            Kind::Trim | Kind::Dataset => BlockOp::Trim,
            Kind::WriteZeroes => BlockOp::WriteZeroes,
            Kind::Control => panic!("a control command is no block request"),
        }
    }
}

impl Work {
    pub fn new(plan: Plan, stage: Stage, pages: Pages, extra: Option<Box<Extra>>) -> Self {
        Self {
            plan,
            done_bytes: 0,
            rest: SectorRange::EMPTY,
            stage,
            damaged: false,
            preempted: None,
            filled: 0,
            asked_bytes: 0,
            counted_bytes: match stage {
                Stage::Waiting => 0,
                _ => plan.payload_bytes(),
            },
            pages,
            extra,
        }
    }

    /// Cuts a read or a write to a part with a footprint of so many bytes at most, a multiple of a page; false if that makes it
    /// no shorter.
    pub fn shorten(&mut self, bytes: u64) -> bool {
        let Plan { kind, range, .. } = &mut self.plan;
        if !matches!(kind, Kind::Read | Kind::Write) || range.footprint_bytes() <= bytes {
            return false;
        }
        assert!(self.rest.is_empty(), "a part is cut off from the whole rest");
        let part = range.take_front(bytes);
        self.rest = core::mem::replace(range, part);
        if *kind == Kind::Write {
            self.plan.data_bytes = part.length() as u32;
        }
        true
    }

    /// Undoes [`Work::shorten`] for a part that has not begun.
    pub fn lengthen(&mut self) {
        if self.rest.is_empty() {
            return;
        }
        self.plan.range = self
            .plan
            .range
            .joined(core::mem::replace(&mut self.rest, SectorRange::EMPTY));
        if self.plan.kind == Kind::Write {
            self.plan.data_bytes = self.plan.range.length() as u32;
        }
    }

    /// The part under way is done: what is behind it waits for room.
    pub fn go_on(&mut self) {
        self.done_bytes += self.plan.range.length() as u32;
        self.plan.range = core::mem::replace(&mut self.rest, SectorRange::EMPTY);
        if self.plan.kind == Kind::Write {
            self.plan.data_bytes = self.plan.range.length() as u32;
        }
        (self.filled, self.asked_bytes, self.counted_bytes) = (0, 0, 0);
        self.stage = Stage::Waiting;
    }

    /// Puts data in its place.
    pub fn fill(&mut self, from: &[u8]) {
        match &mut self.extra {
            Some(extra) => {
                let left = self.plan.data_bytes - self.filled;
                extra.data.reserve_exact(left as usize);
                extra.data.extend_from_slice(from);
            }
            None => copy_in(
                &mut self.pages,
                self.plan.range.skip() + self.filled as usize,
                from,
            ),
        }
        self.filled += from.len() as u32;
    }
}

/// The data pointer (Base §4.1.2, TCP §3.4): data of a read goes in data PDUs; data of a write comes in the capsule, from
/// its start on, or in data PDUs. `data_bytes` is what the host is to send, `length` what it is to get if it `reads`.
pub(super) fn check_pointer(
    sqe: &Sqe,
    data_bytes: u32,
    reads: bool,
    capsule_bytes: u32,
    length: u64,
) -> Result<(), Status> {
    let pointer = sqe.sgl();
    if data_bytes == 0 && !reads {
        return if capsule_bytes == 0 {
            Ok(())
        } else {
            Err(Status::SGL_LENGTH.dnr())
        };
    }
    let expected = if reads { length } else { u64::from(data_bytes) };
    match pointer.kind {
        sgl::TRANSPORT if capsule_bytes == 0 => {}
        sgl::IN_CAPSULE if !reads && pointer.address == 0 => {
            if capsule_bytes != pointer.length {
                return Err(Status::SGL_LENGTH.dnr());
            }
        }
        sgl::IN_CAPSULE if !reads => return Err(Status::SGL_OFFSET.dnr()),
        sgl::TRANSPORT => return Err(Status::SGL_LENGTH.dnr()),
        _ => return Err(Status::SGL_TYPE.dnr()),
    }
    if u64::from(pointer.length) != expected {
        return Err(Status::SGL_LENGTH.dnr());
    }
    Ok(())
}

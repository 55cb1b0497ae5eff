//! Calls that change data. Small data are in the record of the write. Large data go once to the media: a [`Plan`] says to which granted
//! blocks, and when they are durable there, [`Client::place`] logs where they are.

use super::access::{APPEND_ONLY, IMMUTABLE, READ, WRITE};
use super::{Call, Client, Failure};
use crate::errno::Errno;
use crate::format::{BLOCK_BYTES, Block};
use crate::inode::{Inode, TYPE_DIRECTORY, TYPE_FILE, TYPE_LINK, TYPE_MASK};
use crate::log::Ticket;
use crate::op::{Action, Allocation, OFFSET_MAX, blocks_of};
use crate::value::Run;
use core::ops::Range;
use std::borrow::Cow;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Bytes of a planned write, at most; a longer one is done in part. Its checksums are a fourth of a frame of 64 KiB.
const PLAN_BYTES_MAX: u64 = 16 << 20;

/// Where a write begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Where {
    /// At an offset.
    At(u64),
    /// At the end of the file: `O_APPEND`.
    End,
}

/// What a write has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Where it began.
    pub offset: u64,
    /// Its bytes: fewer than asked for if they are too many for a record, or for a file.
    pub bytes: usize,
    /// When it is durable; none if it was of no bytes.
    pub ticket: Option<Ticket>,
    /// It took set-ID bits: the mode is another one.
    pub took_set_id: bool,
}

/// How a large write is to be made. The blocks are taken out of the client's, until [`Client::abandon`] gives them back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    inode: u64,
    at: Where,
    offset: u64,
    bytes: usize,
    /// Bytes in front of the blocks, which go into the record.
    head: usize,
    /// Bytes in the blocks.
    body: usize,
    runs: Vec<Run>,
}

impl Plan {
    /// Bytes of the data that are written; the others are for the next call.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The blocks, and which bytes of the data go to each run of them. The last block may have fewer: the rest of it is zeros. They are to be
    /// durable before [`Client::place`].
    pub fn runs(&self) -> impl Iterator<Item = (Run, Range<usize>)> + '_ {
        let (mut at, end) = (self.head, self.head + self.body);
        self.runs.iter().map(move |run| {
            let start = at;
            at = end.min(at + run.blocks as usize * BLOCK_BYTES);
            (*run, start..at)
        })
    }

    /// The checksum of each block. `data` are those of the whole write.
    pub fn sums(&self, data: &[u8]) -> Vec<u32> {
        let body = &data[self.head..self.head + self.body];
        let (whole, rest) = body.as_chunks::<BLOCK_BYTES>();
        let mut sums: Vec<u32> = whole.iter().map(|block| crc32c::crc32c(block)).collect();
        if !rest.is_empty() {
            let mut block: Block = [0; BLOCK_BYTES];
            block[..rest.len()].copy_from_slice(rest);
            sums.push(crc32c::crc32c(&block));
        }
        sums
    }
}

impl Client {
    /// `open`: whether the caller may, and `O_TRUNC`. `mask` is of [`READ`] and [`WRITE`]. The inode is then [held](Client::hold).
    ///
    /// # Errors
    /// As of Linux: `may_open`.
    pub fn open(
        &mut self,
        call: &mut Call<'_, '_>,
        number: u64,
        mask: u32,
        (truncates, appends): (bool, bool),
    ) -> Result<Option<Ticket>, Failure> {
        let inode = self.known(call.below, number)?;
        let writes = mask & WRITE != 0 || truncates;
        match inode.mode & TYPE_MASK {
            TYPE_LINK => return Err(Errno::Loop.into()),
            TYPE_DIRECTORY if writes => return Err(Errno::IsDirectory.into()),
            _ => {}
        }
        let needs = mask & (READ | WRITE) | if truncates { WRITE } else { 0 };
        self.check(call, (number, &inode), needs)?;
        let is_fixed = inode.flags & IMMUTABLE != 0 && writes;
        let is_appended = inode.flags & APPEND_ONLY != 0 && writes && (truncates || !appends);
        if is_fixed || is_appended {
            return Err(Errno::NotPermitted.into());
        }
        let mut ticket = None;
        if truncates && inode.mode & TYPE_MASK == TYPE_FILE {
            let mut ops = vec![self.op(call, number, Action::Truncate { size: 0 })];
            let takes = self.options.checks_permissions;
            self.add_privileges(call, (number, &inode), takes, &mut ops)?;
            ticket = Some(self.commit_data(call, (number, &inode), &ops)?);
        }
        self.hold(number, 1);
        Ok(ticket)
    }

    /// A file that is written, and where: the offset, and how many bytes it may take.
    fn writable(
        &self,
        call: &mut Call<'_, '_>,
        number: u64,
        at: Where,
        bytes: usize,
    ) -> Result<(Inode, u64, usize), Failure> {
        let inode = self.known(call.below, number)?;
        match inode.mode & TYPE_MASK {
            TYPE_FILE => {}
            TYPE_DIRECTORY => return Err(Errno::IsDirectory.into()),
            _ => return Err(Errno::Invalid.into()),
        }
        if inode.flags & IMMUTABLE != 0 {
            return Err(Errno::NotPermitted.into());
        }
        let offset = match at {
            Where::At(offset) => offset,
            Where::End => inode.size,
        };
        if inode.flags & APPEND_ONLY != 0 && offset < inode.size {
            return Err(Errno::NotPermitted.into());
        }
        let left = OFFSET_MAX.saturating_sub(offset);
        match left {
            0 if bytes > 0 => Err(Errno::FileTooBig.into()),
            _ => Ok((inode, offset, left.min(bytes as u64) as usize)),
        }
    }

    /// Writes data that go into the record: as many as one may have. `takes_set_id` is what FUSE says (`FUSE_WRITE_KILL_SUIDGID`).
    ///
    /// # Errors
    /// It is no file, or too long.
    pub fn write(
        &mut self,
        call: &mut Call<'_, '_>,
        (number, at): (u64, Where),
        data: &[u8],
        takes_set_id: bool,
    ) -> Result<Written, Failure> {
        let (inode, offset, bytes) = self.writable(call, number, at, data.len())?;
        let bytes = bytes.min(self.options.record_bytes_max as usize);
        let mut written = Written {
            offset,
            bytes,
            ticket: None,
            took_set_id: false,
        };
        if bytes == 0 {
            return Ok(written);
        }
        let data = Cow::Borrowed(&data[..bytes]);
        let mut ops = Vec::with_capacity(3);
        written.took_set_id = self.add_privileges(call, (number, &inode), takes_set_id, &mut ops)?;
        ops.push(self.op(call, number, Action::Write { offset, data }));
        written.ticket = Some(self.commit(call, &ops)?);
        Ok(written)
    }

    /// Plans a large write. None if it is small, and for [`Client::write`].
    ///
    /// # Errors
    /// As of [`Client::write`], or [`Failure::Blocks`].
    pub fn plan(
        &mut self,
        call: &mut Call<'_, '_>,
        (number, at): (u64, Where),
        bytes: usize,
    ) -> Result<Option<Plan>, Failure> {
        let (inode, offset, bytes) = self.writable(call, number, at, bytes)?;
        let bytes = bytes.min(PLAN_BYTES_MAX as usize);
        if bytes <= self.options.record_bytes_max as usize {
            return Ok(None);
        }
        let end = offset + bytes as u64;
        let head = offset.next_multiple_of(BLOCK) - offset;
        // A block that ends where the file does is whole.
        let tail = if end >= inode.size { 0 } else { end % BLOCK };
        let Some(body) = (bytes as u64).checked_sub(head + tail).filter(|body| *body > 0) else {
            return Ok(None);
        };
        let runs = self.take_blocks(blocks_of(body))?;
        Ok(Some(Plan {
            inode: number,
            at,
            offset,
            bytes,
            head: head as usize,
            body: body as usize,
            runs,
        }))
    }

    fn take_blocks(&mut self, wanted: u64) -> Result<Vec<Run>, Failure> {
        if self.blocks_left() < wanted {
            return Err(Failure::Blocks(wanted));
        }
        let (mut runs, mut left) = (Vec::new(), wanted);
        while left > 0 {
            let run = self.blocks.front_mut().expect("there are as many");
            let taken = Run {
                place: run.place,
                blocks: run.blocks.min(left),
            };
            run.place = run.place.plus(taken.blocks);
            run.blocks -= taken.blocks;
            left -= taken.blocks;
            runs.push(taken);
            if run.blocks == 0 {
                self.blocks.pop_front();
            }
        }
        Ok(runs)
    }

    /// Gives the blocks of a plan back.
    pub fn abandon(&mut self, plan: Plan) {
        for run in plan.runs.into_iter().rev() {
            self.blocks.push_front(run);
        }
    }

    /// Logs a write whose data are in the blocks of its plan, durably. `sums` are [`Plan::sums`]. After an error the plan is still to be
    /// carried out, or [given back](Client::abandon).
    ///
    /// # Errors
    /// [`Failure::Changed`] if the file's end is where it was not, and others as of [`Client::write`].
    pub fn place(
        &mut self,
        call: &mut Call<'_, '_>,
        plan: &Plan,
        (data, sums): (&[u8], &[u32]),
        takes_set_id: bool,
    ) -> Result<Written, Failure> {
        let (inode, offset, bytes) = self.writable(call, plan.inode, plan.at, plan.bytes)?;
        let end = plan.offset + (plan.head + plan.body) as u64;
        let is_whole = end.is_multiple_of(BLOCK) || end >= inode.size;
        if offset != plan.offset || bytes != plan.bytes || !is_whole {
            return Err(Failure::Changed);
        }
        let mut ops = Vec::with_capacity(plan.runs.len() + 4);
        let took_set_id = self.add_privileges(call, (plan.inode, &inode), takes_set_id, &mut ops)?;
        let mut left = sums;
        let write = |from: usize, to: usize| Action::Write {
            offset: plan.offset + from as u64,
            data: Cow::Borrowed(&data[from..to]),
        };
        if plan.head > 0 {
            ops.push(self.op(call, plan.inode, write(0, plan.head)));
        }
        for (run, range) in plan.runs() {
            let (sums, rest) = left.split_at(run.blocks as usize);
            left = rest;
            let action = Action::Place {
                offset: plan.offset + range.start as u64,
                bytes: range.len() as u32,
                place: run.place,
                sums: Cow::Borrowed(sums),
            };
            ops.push(self.op(call, plan.inode, action));
        }
        if plan.head + plan.body < plan.bytes {
            ops.push(self.op(call, plan.inode, write(plan.head + plan.body, plan.bytes)));
        }
        let ticket = Some(self.commit(call, &ops)?);
        Ok(Written {
            offset,
            bytes,
            ticket,
            took_set_id,
        })
    }

    /// `fallocate`. A hole keeps the size. When it is durable, and whether it took set-ID bits.
    ///
    /// # Errors
    /// As of Linux: `vfs_fallocate`.
    pub fn allocate(
        &mut self,
        call: &mut Call<'_, '_>,
        (number, range): (u64, (u64, u64)),
        (what, keeps_size): (Allocation, bool),
        takes_set_id: bool,
    ) -> Result<(Ticket, bool), Failure> {
        let (offset, bytes) = range;
        let inode = self.known(call.below, number)?;
        if bytes == 0 {
            return Err(Errno::Invalid.into());
        }
        let is_plain = what == Allocation::Reserve;
        let is_fixed = inode.flags & IMMUTABLE != 0 || (inode.flags & APPEND_ONLY != 0 && !is_plain);
        if is_fixed {
            return Err(Errno::NotPermitted.into());
        }
        if what == Allocation::Hole && !keeps_size {
            return Err(Errno::NotSupported.into());
        }
        match inode.mode & TYPE_MASK {
            TYPE_FILE => {}
            TYPE_DIRECTORY => return Err(Errno::IsDirectory.into()),
            _ => return Err(Errno::NoDevice.into()),
        }
        if offset.checked_add(bytes).is_none_or(|end| end > OFFSET_MAX) {
            return Err(Errno::FileTooBig.into());
        }
        let action = Action::Allocate {
            offset,
            bytes,
            what,
            keeps_size,
        };
        let mut ops = vec![self.op(call, number, action)];
        let took_set_id = self.add_privileges(call, (number, &inode), takes_set_id, &mut ops)?;
        Ok((self.commit_data(call, (number, &inode), &ops)?, took_set_id))
    }
}

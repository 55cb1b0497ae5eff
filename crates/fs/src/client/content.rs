//! What calls that change a file's content have in common: set-ID bits and capabilities go, and room for blocks is promised.

use super::budget::Cost;
use super::{Call, Client, Failure};
use crate::format::BLOCK_BYTES;
use crate::grants::CAPABILITY;
use crate::inode::{Inode, TYPE_MASK};
use crate::log::Ticket;
use crate::op::{Action, Allocation, Changes, Op, blocks_of};

const BLOCK: u64 = BLOCK_BYTES as u64;

impl Client {
    /// What takes a file's capabilities away, if it has such.
    pub(super) fn without_capability(
        &mut self,
        call: &mut Call<'_, '_>,
        number: u64,
    ) -> Result<Option<Op<'static>>, Failure> {
        if self.plain == Some(number) {
            return Ok(None);
        }
        if self.overlay.attribute(call.below, number, CAPABILITY)?.is_none() {
            self.plain = Some(number);
            return Ok(None);
        }
        let name = CAPABILITY.into();
        Ok(Some(self.op(
            call,
            number,
            Action::Attribute { name, value: None },
        )))
    }

    /// Adds what takes set-ID bits and capabilities of a file whose content changes. True if there were such bits.
    pub(super) fn add_privileges(
        &mut self,
        call: &mut Call<'_, '_>,
        (number, inode): (u64, &Inode),
        takes_set_id: bool,
        ops: &mut Vec<Op<'_>>,
    ) -> Result<bool, Failure> {
        let is_by_client = self.options.checks_permissions && !call.caller.is_root();
        let takes = (takes_set_id && !self.options.checks_permissions) || is_by_client;
        let mode = call.caller.without_set_id(inode);
        let takes = takes && mode != inode.mode & !TYPE_MASK;
        if takes {
            let changes = Changes {
                mode: Some(mode),
                ..Changes::default()
            };
            ops.push(self.op(call, number, Action::Set(changes)));
        }
        ops.extend(self.without_capability(call, number)?);
        Ok(takes)
    }

    /// Logs changes of an inode, data among them.
    pub(super) fn commit_data(
        &mut self,
        call: &mut Call<'_, '_>,
        (number, inode): (u64, &Inode),
        ops: &[Op<'_>],
    ) -> Result<Ticket, Failure> {
        let mut cost = Cost::default();
        for op in ops {
            let one = match op.action {
                // A block is rewritten only if the file has one where its new end is.
                Action::Truncate { size } if size / BLOCK >= blocks_of(inode.size) => {
                    let size = size / BLOCK * BLOCK;
                    Cost::of(&self.op(call, number, Action::Truncate { size }), (0, 0))
                }
                Action::Allocate {
                    offset,
                    bytes,
                    what: Allocation::Reserve,
                    ..
                } => {
                    let blocks = offset / BLOCK..blocks_of(offset + bytes);
                    let there = self.overlay.blocks(call.below, number, blocks.clone())?;
                    let count: u64 = there.iter().map(|range| range.end - range.start).sum();
                    let gaps = there.len() as u64 + 1;
                    Cost::of(op, (gaps, blocks.end - blocks.start - count))
                }
                _ => Cost::of(op, (0, 0)),
            };
            cost = cost.and(one);
        }
        self.commit_at(call, ops, cost)
    }
}

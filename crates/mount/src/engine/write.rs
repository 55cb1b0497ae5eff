//! Writes. Small data go into the log with their record. Large data go to granted blocks first, without the lock, and once.

use super::failure::Failure;
use super::held::{Pins, Wants};
use super::{Engine, Patience, RECORD_BYTES_MAX, Turn};
use fs::client::{Caller, Plan, Where, Written};
use fs::format::{BLOCK_BYTES, Block};
use fs::lease::Mode;
use fs::log::Ticket;

/// A write of a file.
#[derive(Clone, Copy, Debug)]
pub struct Write<'w> {
    /// Who writes.
    pub caller: Caller<'w>,
    /// The file.
    pub inode: u64,
    /// From where on.
    pub at: Where,
    /// What.
    pub data: &'w [u8],
    /// Set-ID bits go (`FUSE_WRITE_KILL_SUIDGID`).
    pub takes_set_id: bool,
    /// It is written behind the file's end, whatever the offset, where others may have made the file longer than the caller knows: those that have
    /// logs, or had.
    pub appends: bool,
    /// It comes from a cache that gives up the file, perhaps.
    pub is_write_back: bool,
    /// Leases that the call has for its time.
    pub pins: &'w [(u64, Mode)],
}

/// What a write has done, in one call or several.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wrote {
    /// Where it begins.
    pub offset: Option<u64>,
    /// Bytes.
    pub bytes: usize,
    /// When they are durable.
    pub ticket: Option<Ticket>,
    /// Set-ID bits went.
    pub took_set_id: bool,
}

/// The next step of a write.
enum Step {
    Done(Written),
    Planned(Plan),
}

impl Write<'_> {
    fn wants(&self) -> Wants {
        Wants {
            leases: vec![(self.inode, Mode::Exclusive)],
            is_cached: true,
        }
    }
}

impl Turn<'_> {
    fn may_write(&mut self, write: &Write<'_>) -> Result<(), Failure> {
        match !self.is_shared() || (write.is_write_back && self.may_write_back(write.inode)) {
            true => Ok(()),
            false => self.may(write.pins, &write.wants()),
        }
    }

    /// Leases for the time of a write; none if nobody else has any.
    fn pin_for(&mut self, write: &Write<'_>) -> Result<Pins, Failure> {
        self.may_write(write)?;
        Ok(self.state.pin(write.wants().leases))
    }
}

impl Engine {
    /// Writes all data, in several calls if they are many.
    ///
    /// # Errors
    /// [`Failure`], if nothing was written. [`Failure::Busy`] and [`Failure::Stalled`] may come after a part of them: then the whole is to be written again.
    pub fn write(&self, write: &Write<'_>) -> Result<Wrote, Failure> {
        if write.data.len() <= RECORD_BYTES_MAX as usize {
            return self.write_parts(write);
        }
        // It takes several turns, and the lease is to stay.
        let pins = self.turn(|turn| turn.pin_for(write))?;
        let written = self.write_parts(&Write {
            pins: if pins.is_empty() { write.pins } else { &pins },
            ..*write
        });
        self.unpin(&pins);
        written
    }

    fn write_parts(&self, write: &Write<'_>) -> Result<Wrote, Failure> {
        let mut done = Wrote::default();
        let mut may_plan = true;
        while done.bytes < write.data.len() {
            let at = match write.at {
                Where::At(offset) => Where::At(offset + done.bytes as u64),
                Where::End => Where::End,
            };
            let part = Write {
                at,
                data: &write.data[done.bytes..],
                ..*write
            };
            match self.write_part(&part, may_plan) {
                Ok(written) => {
                    done.offset.get_or_insert(written.offset);
                    done.bytes += written.bytes;
                    done.ticket = written.ticket.or(done.ticket);
                    done.took_set_id |= written.took_set_id;
                    if written.bytes == 0 {
                        break;
                    }
                }
                // No room in one piece: the log takes data as long as the tree has room for them.
                Err(Failure::NoBlocks) if may_plan => may_plan = false,
                Err(failure) if Patience::may_wait(&failure) => return Err(failure),
                Err(_) if done.bytes > 0 => break,
                Err(failure) => return Err(failure),
            }
        }
        Ok(done)
    }

    fn write_part(&self, write: &Write<'_>, may_plan: bool) -> Result<Written, Failure> {
        let (inode, takes) = (write.inode, write.takes_set_id);
        let step = self.turn(|turn| {
            turn.may_write(write)?;
            let at = match write.appends && turn.may_be_shared() {
                true => Where::End,
                false => write.at,
            };
            let step = turn.call(write.caller, |client, call| {
                if may_plan && let Some(plan) = client.plan(call, (inode, at), write.data.len())? {
                    return Ok(Step::Planned(plan));
                }
                let written = client.write(call, (inode, at), write.data, takes)?;
                Ok(Step::Done(written))
            })?;
            if let Where::At(offset) = at {
                turn.state.touches.written(inode, offset);
            }
            Ok::<_, Failure>(step)
        })?;
        match step {
            Step::Done(written) => Ok(written),
            Step::Planned(plan) => self.place(write, plan),
        }
    }

    /// Writes data to the blocks of a plan, and logs where they are.
    fn place(&self, write: &Write<'_>, plan: Plan) -> Result<Written, Failure> {
        let sums = plan.sums(write.data);
        let mut devices = 0u8;
        let mut is_failed = false;
        for (run, range) in plan.runs() {
            devices |= 1 << run.place.device();
            let (whole, rest) = write.data[range].as_chunks::<BLOCK_BYTES>();
            let disks = &self.shared.disks;
            is_failed |= disks.write_blocks(run.place, whole.as_flattened()).is_err();
            if !rest.is_empty() {
                let mut block: Block = [0; BLOCK_BYTES];
                block[..rest.len()].copy_from_slice(rest);
                let place = run.place.plus(whole.len() as u64);
                is_failed |= disks.write_blocks(place, &block).is_err();
            }
        }
        let (mut result, mut plan) = (Err(Failure::Read), Some(plan));
        if !is_failed {
            result = self.turn(|turn| {
                turn.state.unflushed |= devices;
                let plan = plan.as_ref().expect("it was not given back");
                turn.call(write.caller, |client, call| {
                    client.place(call, plan, (write.data, &sums), write.takes_set_id)
                })
            });
        }
        if result.is_err() {
            self.turn(|turn| {
                turn.state
                    .client
                    .abandon(plan.take().expect("it is given back once"))
            });
        }
        if self.turn(|turn| turn.is_short_of_blocks()) {
            self.shared.locked.digest.notify_one();
        }
        result
    }
}

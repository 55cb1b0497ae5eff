//! Commands from their acceptance to the volume: room for their data, data that hosts are asked for, and refusals.

use base::{BlockOp, BlockRequest, Pages};

use super::output::Reply;
use super::proto::{BLOCK_SHIFT, DataHeader, Sqe, Status, sgl};
use super::session::{Flow, Incoming, Phase, Session};
use super::target::View;
use super::work::{Extra, Kind, Plan, Stage, Work};

/// Unsent answers beyond which the host has to read before it may ask on: a host cannot make the target keep a
/// thousand log pages.
pub(super) const CONTROL_BYTES_MAX: usize = 64 << 10;

impl Session {
    /// Answers a command that is not carried out, and drains its data.
    pub(super) fn refuse(&mut self, cid: u16, status: Status, capsule_bytes: u32) -> Flow {
        self.advance();
        self.answer(cid, status, 0);
        self.skip(capsule_bytes);
        Flow::Again
    }

    /// Drains the data of a capsule.
    pub(super) fn skip(&mut self, capsule_bytes: u32) {
        if capsule_bytes > 0 {
            let left = capsule_bytes + self.framing().data_digest_bytes() as u32;
            self.link.phase = Phase::Skip { left };
        }
    }

    /// One more entry of the submission queue is taken.
    pub(super) fn advance(&mut self) {
        if let Some(queue) = &mut self.link.queue {
            queue.head += 1;
            if queue.head == queue.connected.entries {
                queue.head = 0;
            }
        }
    }

    /// The queue's state and the form of a command are such that it may be looked at.
    pub(super) fn judge_form(&self, sqe: &Sqe) -> Result<&View, Status> {
        let view = self.view();
        if self.link.stopping {
            return Err(Status::PATH);
        }
        if !view.ready {
            return Err(Status::SEQUENCE.dnr());
        }
        if sqe.flags() & (sgl::FUSE_MASK | sgl::PSDT_MASK) != sgl::PSDT {
            return Err(Status::INVALID_FIELD.dnr());
        }
        Ok(view)
    }

    /// Takes a valid command; one with data in its capsule only if there is room for that.
    pub(super) fn accept(&mut self, plan: Plan, capsule_bytes: u32, sqe: &Sqe) -> Flow {
        if capsule_bytes > 0 {
            // What comes before data that was asked for has to be taken, or that would never come. If nothing else is under
            // way, a larger share may never come: the smallest reserve is two pages, and a capsule's data may touch three.
            let is_exempt = self.receiving > 0 || self.ledger.bytes == 0;
            let Some(pages) = self.room(&plan, self.link.limits.pages_reserve, 0, is_exempt) else {
                return Flow::Blocked;
            };
            self.advance();
            self.receiving += 1;
            let tag = self.occupy(plan, Stage::Receiving, pages, sqe);
            self.await_data(tag, capsule_bytes);
            return Flow::Again;
        }
        self.advance();
        // What takes no room of the pool, and does not overtake what waits for room.
        if !self.paused
            && plan.data_bytes == 0
            && (plan.kind != Kind::Read || self.waiting.is_empty())
            && let Some(pages) = self.room(&plan, 0, 0, false)
        {
            let tag = self.occupy(plan, Stage::Asked, pages, sqe);
            self.ask(tag);
            return Flow::Again;
        }
        let tag = self.occupy(plan, Stage::Waiting, Pages::new(), sqe);
        self.waiting.push_back(tag);
        self.grant();
        Flow::Again
    }

    /// The pages of a command, none for most, if its payload fits.
    fn room(
        &mut self,
        plan: &Plan,
        pages_reserve: usize,
        bytes_reserve: u64,
        is_exempt: bool,
    ) -> Option<Pages> {
        let bytes_max = self.link.limits.in_flight_bytes_max.saturating_sub(bytes_reserve);
        if !self
            .ledger
            .admits(u64::from(plan.payload_bytes()), bytes_max, is_exempt)
        {
            return None;
        }
        if plan.takes_pages() {
            return self.ledger.take_pages(plan.range, pages_reserve);
        }
        Some(Pages::new())
    }

    /// Gives a command its tag; from here on it is under way.
    fn occupy(&mut self, plan: Plan, stage: Stage, pages: Pages, sqe: &Sqe) -> u64 {
        let extra = match plan.kind {
            Kind::Control | Kind::Dataset => Some(Box::new(Extra {
                sqe: *sqe,
                data: Vec::new(),
                ranges: Vec::new(),
            })),
            _ => None,
        };
        let work = Work::new(plan, stage, pages, extra);
        self.ledger.bytes += u64::from(work.counted_bytes);
        self.ledger.insert(work)
    }

    /// Lets commands that wait go on, in order, as far as there is room. Reads and writes that are beyond the connection's
    /// share go on in parts.
    pub(super) fn grant(&mut self) {
        while !self.paused
            && let Some(&tag) = self.waiting.front()
        {
            if !self.grant_front(tag) {
                let part_bytes = self.link.limits.part_bytes;
                let is_over = self.ledger.share_wanted() > 0;
                if !is_over || !self.ledger.work(tag).shorten(part_bytes) {
                    break;
                }
                self.short += 1;
                if !self.grant_front(tag) {
                    break;
                }
            }
        }
        self.ask_for_data();
    }

    /// The first command that waits goes on, if there is room.
    fn grant_front(&mut self, tag: u64) -> bool {
        let plan = self.ledger.work(tag).plan;
        // Data that is asked for comes behind whatever the host sends until then: capsules with data have to
        // find room meanwhile, or both would wait for ever.
        let (pages_reserve, bytes_reserve) = if plan.data_bytes > 0 {
            let pages = self.link.limits.pages_reserve + self.link.limits.capsule_pages();
            (pages, self.link.limits.capsule_bytes())
        } else {
            (0, 0)
        };
        let Some(pages) = self.room(&plan, pages_reserve, bytes_reserve, false) else {
            return false;
        };
        self.waiting.pop_front();
        self.ledger.bytes += u64::from(plan.payload_bytes());
        let work = self.ledger.work(tag);
        work.pages = pages;
        work.counted_bytes = plan.payload_bytes();
        if plan.data_bytes == 0 {
            work.stage = Stage::Asked;
            self.ask(tag);
            return true;
        }
        work.stage = Stage::Granted;
        self.receiving += 1;
        self.granted.push_back(tag);
        true
    }

    /// Asks the host for data of commands that have room, in order, as much as is to be on its way at once.
    pub(super) fn ask_for_data(&mut self) {
        while let Some(&tag) = self.granted.front() {
            let work = self.ledger.work(tag);
            let plan = work.plan;
            let asked = self.asked_bytes + plan.data_bytes;
            if self.asked_bytes > 0 && asked > self.link.limits.asked_bytes_max {
                return;
            }
            work.stage = Stage::Receiving;
            work.asked_bytes = plan.data_bytes;
            let offset = work.done_bytes;
            self.asked_bytes = asked;
            self.granted.pop_front();
            let header = DataHeader {
                cid: plan.cid,
                tag: tag as u16,
                offset,
                length: plan.data_bytes,
            };
            self.output.push(Reply::ready(self.framing(), &header));
        }
    }

    /// The next bytes are data of this command.
    pub(super) fn await_data(&mut self, tag: u64, bytes: u32) {
        self.link.phase = Phase::Data(Incoming {
            tag,
            left: bytes,
            crc: 0,
            digest: [0; 4],
            digest_bytes: 0,
        });
    }

    /// Queues the next part of a command for the volume. Trims and zeroes may be longer than volumes take: they are
    /// asked for part by part, each ending on a multiple of the largest request.
    pub(super) fn ask(&mut self, tag: u64) {
        let volume = self.view().namespace.expect("the command was judged").volume;
        let client = self.ledger.client;
        let work = self.ledger.work(tag);
        let plan = &mut work.plan;
        let (op, fua) = (plan.op(), plan.fua);
        plan.lba = plan.range.offset() >> BLOCK_SHIFT;
        let range = match op {
            BlockOp::Trim | BlockOp::WriteZeroes => plan.range.take_part(),
            _ => plan.range,
        };
        let pages = match op {
            BlockOp::Write => core::mem::take(&mut work.pages),
            _ => Pages::new(),
        };
        self.ledger.requests.push_back(BlockRequest {
            client,
            tag,
            volume,
            op,
            range,
            fua,
            bulk: false,
            pages,
        });
    }

    /// A command that was accepted ends with an error.
    pub(super) fn fail(&mut self, plan: &Plan, status: Status) {
        self.log_error((plan.cid, plan.nsid, plan.lba), status);
        self.answer(plan.cid, status, 0);
    }
}

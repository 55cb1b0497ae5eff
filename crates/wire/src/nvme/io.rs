//! I/O commands (NVM §3.2): their checks, their payload, and their answers.

use base::limits::{PAGE_BYTES, REQUEST_BYTES_MAX};
use base::{BlockError, BlockOp, BlockReply, BlockRequest, Pages};

use super::identify::NSID;
use super::output::Reply;
use super::proto::{
    BLOCK_SHIFT, DSM_RANGE_BYTES, DSM_RANGES_MAX, DataHeader, NSID_ALL, Sqe, Status, fabrics, io, sgl,
    u32_at, u64_at,
};
use super::session::{Flow, Incoming, Phase, Session};
use super::target::{Namespace, View};
use super::{Access, CloseReason, reserve};

/// A place for one command under way.
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// Counts the commands that were here, so that no tag is used twice in a row.
    pub generation: u32,
    pub work: Option<Work>,
}

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
    /// First byte that the volume has not been asked about; for reads, writes and compares the first of the range.
    pub offset: u64,
    /// Bytes from there on; long trims and zeroes shrink part by part.
    pub length: u64,
}

/// A command under way.
#[derive(Debug)]
pub(super) struct Work {
    pub plan: Plan,
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
    pub ranges: Vec<(u64, u64)>,
}

impl View {
    /// The namespace of a command, if that `is_named` and this path leads to it.
    pub(super) fn addressed(&self, is_named: bool) -> Result<&Namespace, Status> {
        let namespace = self.namespace.as_ref().filter(|_| is_named);
        let namespace = namespace.ok_or(Status::INVALID_NAMESPACE.dnr())?;
        namespace.ana_state.refusal().map_or(Ok(namespace), Err)
    }
}

impl Plan {
    /// A command that needs nothing yet.
    pub(super) fn new(sqe: &Sqe, kind: Kind) -> Self {
        Self {
            cid: sqe.cid(),
            nsid: sqe.nsid(),
            lba: 0,
            kind,
            fua: false,
            data_bytes: 0,
            offset: 0,
            length: 0,
        }
    }

    /// Payload bytes that count while it is under way: a compare holds what it was sent and what is read.
    const fn payload_bytes(&self) -> u32 {
        match self.kind {
            Kind::Read | Kind::Write => self.length as u32,
            Kind::Compare => 2 * self.length as u32,
            _ => 0,
        }
    }

    const fn takes_pages(&self) -> bool {
        matches!(self.kind, Kind::Write | Kind::Compare)
    }

    const fn op(&self) -> BlockOp {
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
    /// Puts data in its place.
    pub(super) fn fill(&mut self, mut from: &[u8]) {
        if let Some(extra) = &mut self.extra {
            extra.data.extend_from_slice(from);
            self.filled += from.len() as u32;
            return;
        }
        let skip = (self.plan.offset % PAGE_BYTES as u64) as usize;
        while !from.is_empty() {
            let at = skip + self.filled as usize;
            let place = at % PAGE_BYTES;
            let count = from.len().min(PAGE_BYTES - place);
            let (head, rest) = from.split_at(count);
            self.pages[at / PAGE_BYTES].with_mut(|page| page[place..place + count].copy_from_slice(head));
            self.filled += count as u32;
            from = rest;
        }
    }
}

impl Session {
    /// A command of an I/O queue, with so many bytes of data in its capsule.
    pub(super) fn io_command(&mut self, sqe: &Sqe, capsule_bytes: u32, target: &dyn Access) -> Flow {
        let refused = if sqe.opcode() == fabrics::OPCODE {
            match judge_io_fabrics(sqe, capsule_bytes) {
                Ok(()) => {
                    self.advance();
                    self.answer(sqe.cid(), Status::SUCCESS, 0);
                    self.close(CloseReason::Disconnected);
                    return Flow::Again;
                }
                Err(status) => status,
            }
        } else if reserve::is_command(sqe.opcode()) {
            return self.reservation_command(sqe, capsule_bytes, target);
        } else {
            match self.judge(sqe, capsule_bytes) {
                Ok(plan) => return self.accept(plan, capsule_bytes, sqe),
                Err(status) => status,
            }
        };
        let lba = if has_range(sqe) { sqe.qword(10) } else { 0 };
        self.log_error((sqe.cid(), sqe.nsid(), lba), refused, target);
        self.refuse(sqe.cid(), refused, capsule_bytes)
    }

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
            self.phase = Phase::Skip { left };
        }
    }

    /// One more entry of the submission queue is taken.
    pub(super) fn advance(&mut self) {
        if let Some(queue) = &mut self.queue {
            queue.head += 1;
            if queue.head == queue.connected.entries {
                queue.head = 0;
            }
        }
    }

    /// The queue's state and the form of a command are such that it may be looked at.
    pub(super) fn judge_form(&self, sqe: &Sqe) -> Result<&View, Status> {
        let view = &self.queue.as_ref().expect("commands come after Connect").view;
        if self.stopping {
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

    /// A checked command, or the exact status for it. In this order: the queue's state, the form of the command,
    /// the namespace and the path to it, reservations, permission, range, length, data pointer.
    fn judge(&self, sqe: &Sqe, capsule_bytes: u32) -> Result<Plan, Status> {
        let view = self.judge_form(sqe)?;
        let kind = match sqe.opcode() {
            io::READ => Kind::Read,
            io::WRITE => Kind::Write,
            io::FLUSH => Kind::Flush,
            io::COMPARE => Kind::Compare,
            io::WRITE_ZEROES if sqe.dword(12) & io::DEALLOCATE != 0 => Kind::Trim,
            io::WRITE_ZEROES => Kind::WriteZeroes,
            io::DATASET => Kind::Dataset,
            _ => return Err(Status::INVALID_OPCODE.dnr()),
        };
        let nsid = sqe.nsid();
        let namespace = view.addressed(nsid == NSID || nsid == NSID_ALL && kind == Kind::Flush)?;
        let reads = matches!(kind, Kind::Read | Kind::Compare);
        let rights = namespace.rights;
        if !(if reads { rights.reads } else { rights.writes }) {
            return Err(Status::RESERVATION_CONFLICT.dnr());
        }
        let changes = !matches!(kind, Kind::Read | Kind::Compare | Kind::Flush);
        if changes && namespace.read_only {
            return Err(Status::WRITE_PROTECTED.dnr());
        }
        let mut plan = Plan::new(sqe, kind);
        plan.fua = changes && (view.write_through || sqe.dword(12) & io::FUA != 0 && kind != Kind::Dataset);
        match kind {
            Kind::Flush => {}
            Kind::Dataset => plan.data_bytes = dataset_bytes(sqe)?,
            _ => self.judge_range(sqe, namespace, &mut plan)?,
        }
        check_pointer(
            sqe,
            plan.data_bytes,
            kind == Kind::Read,
            capsule_bytes,
            plan.length,
        )?;
        Ok(plan)
    }

    /// Range and length of a command that has them (NVM §3.2.4 and others, dwords 10 to 12).
    fn judge_range(&self, sqe: &Sqe, namespace: &Namespace, plan: &mut Plan) -> Result<(), Status> {
        let (first, control) = (sqe.qword(10), sqe.dword(12));
        let blocks = u64::from(control & 0xffff) + 1;
        if control & io::DIRECTIVE_TYPE != 0 {
            return Err(Status::INVALID_FIELD.dnr());
        }
        (plan.offset, plan.length) = range(first, blocks, namespace).ok_or(Status::LBA_RANGE.dnr())?;
        if matches!(plan.kind, Kind::Read | Kind::Write | Kind::Compare) {
            if plan.length > u64::from(self.shape.request_bytes_max) {
                return Err(Status::INVALID_FIELD.dnr());
            }
            if plan.kind != Kind::Read {
                plan.data_bytes = plan.length as u32;
            }
        }
        Ok(())
    }

    /// Takes a valid command; one with data in its capsule only if there is room for that.
    pub(super) fn accept(&mut self, plan: Plan, capsule_bytes: u32, sqe: &Sqe) -> Flow {
        if capsule_bytes > 0 {
            let Some(pages) = self.room(&plan, self.limits.pages_reserve, 0) else {
                return Flow::Blocked;
            };
            self.advance();
            self.receiving += 1;
            let tag = self.occupy(plan, Stage::Receiving, pages, sqe);
            self.await_data(tag as u32, capsule_bytes);
            return Flow::Again;
        }
        self.advance();
        // What takes no room of the pool, and does not overtake what waits for room.
        if !self.paused
            && plan.data_bytes == 0
            && (plan.kind != Kind::Read || self.waiting.is_empty())
            && let Some(pages) = self.room(&plan, 0, 0)
        {
            let tag = self.occupy(plan, Stage::Asked, pages, sqe);
            self.ask(tag);
            return Flow::Again;
        }
        let tag = self.occupy(plan, Stage::Waiting, Pages::new(), sqe);
        self.waiting.push_back(tag as u32);
        self.grant();
        Flow::Again
    }

    /// The pages of a command, none for most, if its payload fits.
    fn room(&mut self, plan: &Plan, pages_reserve: usize, bytes_reserve: u64) -> Option<Pages> {
        let limit = self.limits.in_flight_bytes_max.saturating_sub(bytes_reserve);
        let wanted = self.bytes_in_flight + u64::from(plan.payload_bytes());
        // What has no payload needs no share, and says nothing of what waits for it.
        if plan.payload_bytes() > 0 {
            // What comes before data that was asked for has to be taken, or that would never come.
            let is_over = self.receiving == 0 && wanted > self.share_bytes;
            self.share_wanted = if is_over { wanted } else { 0 };
            if is_over {
                return None;
            }
        }
        if wanted > limit {
            return None;
        }
        if plan.takes_pages() {
            return self.take_pages(plan.offset, plan.length as u32, pages_reserve);
        }
        Some(Pages::new())
    }

    /// Gives a command its slot; from here on it is under way.
    fn occupy(&mut self, plan: Plan, stage: Stage, pages: Pages, sqe: &Sqe) -> u64 {
        let index = self
            .free
            .pop()
            .expect("commands under way are counted before one is taken");
        let counted_bytes = match stage {
            Stage::Waiting => 0,
            _ => plan.payload_bytes(),
        };
        self.bytes_in_flight += u64::from(counted_bytes);
        let extra = match plan.kind {
            Kind::Control | Kind::Dataset => Some(Box::new(Extra {
                sqe: *sqe,
                data: Vec::with_capacity(plan.data_bytes as usize),
                ranges: Vec::new(),
            })),
            _ => None,
        };
        let slot = &mut self.slots[index as usize];
        slot.work = Some(Work {
            plan,
            stage,
            damaged: false,
            preempted: None,
            filled: 0,
            asked_bytes: 0,
            counted_bytes,
            pages,
            extra,
        });
        u64::from(slot.generation) << 32 | u64::from(index)
    }

    /// Lets commands that wait go on, in order, as far as there is room.
    pub(super) fn grant(&mut self) {
        while !self.paused
            && let Some(&index) = self.waiting.front()
        {
            let slot = &self.slots[index as usize];
            let tag = u64::from(slot.generation) << 32 | u64::from(index);
            let plan = slot
                .work
                .as_ref()
                .expect("a command that waits is under way")
                .plan;
            // Data that is asked for comes behind whatever the host sends until then: capsules with data have to
            // find room meanwhile, or both would wait for ever.
            let (pages_reserve, bytes_reserve) = if plan.data_bytes > 0 {
                let pages = self.limits.pages_reserve + self.limits.capsule_pages();
                (pages, self.limits.capsule_bytes())
            } else {
                (0, 0)
            };
            let Some(pages) = self.room(&plan, pages_reserve, bytes_reserve) else {
                break;
            };
            self.waiting.pop_front();
            self.bytes_in_flight += u64::from(plan.payload_bytes());
            let work = self.work_mut(tag);
            work.pages = pages;
            work.counted_bytes = plan.payload_bytes();
            if plan.data_bytes == 0 {
                work.stage = Stage::Asked;
                self.ask(tag);
                continue;
            }
            work.stage = Stage::Granted;
            self.receiving += 1;
            self.granted.push_back(index);
        }
        self.ask_for_data();
    }

    /// Asks the host for data of commands that have room, in order, as much as is to be on its way at once.
    fn ask_for_data(&mut self) {
        while let Some(&index) = self.granted.front() {
            let work = self.slots[index as usize].work.as_mut();
            let work = work.expect("a command that has room is under way");
            let plan = work.plan;
            let asked = self.asked_bytes + plan.data_bytes;
            if self.asked_bytes > 0 && asked > self.limits.asked_bytes_max {
                return;
            }
            work.stage = Stage::Receiving;
            work.asked_bytes = plan.data_bytes;
            self.asked_bytes = asked;
            self.granted.pop_front();
            let header = DataHeader {
                cid: plan.cid,
                tag: index as u16,
                offset: 0,
                length: plan.data_bytes,
            };
            self.output.push(Reply::ready(self.framing(), &header));
        }
    }

    /// The next bytes are data of the command in this slot.
    pub(super) fn await_data(&mut self, slot: u32, bytes: u32) {
        self.phase = Phase::Data(Incoming {
            slot,
            left: bytes,
            crc: 0,
            digest: [0; 4],
            digest_bytes: 0,
        });
    }

    /// The data of a PDU is there, as it was sent or not.
    pub(super) fn data_arrived(&mut self, index: u32, sound: bool, target: &dyn Access) {
        let generation = self.slots[index as usize].generation;
        let tag = u64::from(generation) << 32 | u64::from(index);
        let work = self.work_mut(tag);
        work.damaged |= !sound;
        if work.filled < work.plan.data_bytes {
            return;
        }
        let (damaged, preempted, plan) = (work.damaged, work.preempted, work.plan);
        work.stage = Stage::Asked;
        self.asked_bytes -= work.asked_bytes;
        self.receiving -= 1;
        self.ask_for_data();
        if damaged {
            // The command may be sent again (TCP §3.3.2).
            self.vacate(tag);
            return self.fail(&plan, Status::TRANSPORT, target);
        }
        if preempted.is_some() {
            self.vacate(tag);
            return self.fail(&plan, Status::PREEMPTED.dnr(), target);
        }
        match plan.kind {
            Kind::Control => self.control_arrived(tag, target),
            Kind::Dataset => self.dataset_arrived(tag, target),
            _ => self.ask(tag),
        }
    }

    /// The ranges of Dataset Management are there. Only "deallocate" is more than advice (NVM §3.2.3).
    fn dataset_arrived(&mut self, tag: u64, target: &dyn Access) {
        let view = &self.queue.as_ref().expect("commands come after Connect").view;
        let namespace = view.namespace;
        let work = self.work_mut(tag);
        let extra = work.extra.as_mut().expect("its ranges are there");
        let count = (extra.sqe.dword(10) as usize & 0xff) + 1;
        let mut valid = true;
        for bytes in extra.data.chunks_exact(DSM_RANGE_BYTES).take(count).rev() {
            let (blocks, first) = (u64::from(u32_at(bytes, 4)), u64_at(bytes, 8));
            match namespace.and_then(|namespace| range(first, blocks, &namespace)) {
                Some((_, 0)) => {}
                Some(range) => extra.ranges.push(range),
                None => valid = false,
            }
        }
        extra.data = Vec::new();
        if extra.sqe.dword(11) & io::DSM_DEALLOCATE == 0 {
            extra.ranges.clear();
        }
        let plan = work.plan;
        let next = extra.ranges.pop().filter(|_| valid);
        match next {
            Some(next) => {
                (work.plan.offset, work.plan.length) = next;
                self.ask(tag);
            }
            None => {
                self.vacate(tag);
                if valid {
                    self.answer(plan.cid, Status::SUCCESS, 0);
                } else {
                    self.fail(&plan, Status::LBA_RANGE.dnr(), target);
                }
            }
        }
    }

    /// Queues the next part of a command for the volume. Trims and zeroes may be longer than volumes take: they are
    /// asked for part by part, each ending on a multiple of the largest request.
    fn ask(&mut self, tag: u64) {
        let view = &self.queue.as_ref().expect("commands come after Connect").view;
        let volume = view.namespace.expect("the command was judged").volume;
        let client = self.client;
        let work = self.work_mut(tag);
        let plan = &mut work.plan;
        let (op, offset, fua) = (plan.op(), plan.offset, plan.fua);
        plan.lba = offset >> BLOCK_SHIFT;
        let length = match op {
            BlockOp::Trim | BlockOp::WriteZeroes => {
                let part_max = u64::from(REQUEST_BYTES_MAX) - offset % u64::from(REQUEST_BYTES_MAX);
                let part = plan.length.min(part_max);
                plan.offset += part;
                plan.length -= part;
                part as u32
            }
            _ => plan.length as u32,
        };
        let pages = match op {
            BlockOp::Write => core::mem::take(&mut work.pages),
            _ => Pages::new(),
        };
        self.requests.push_back(BlockRequest {
            client,
            tag,
            volume,
            op,
            offset,
            length,
            fua,
            pages,
        });
    }

    /// A command that was accepted ends with an error.
    pub(super) fn fail(&mut self, plan: &Plan, status: Status, target: &dyn Access) {
        self.log_error((plan.cid, plan.nsid, plan.lba), status, target);
        self.answer(plan.cid, status, 0);
    }

    /// The volume's answer to a request of this session.
    ///
    /// # Panics
    /// If the tag is not one of a request under way, or a read's pages are not those of its range.
    pub fn complete(&mut self, reply: BlockReply, target: &dyn Access) {
        assert_eq!(reply.client, self.client, "a reply goes to its own connection");
        let tag = reply.tag;
        if self.is_cut() {
            self.vacate(tag);
            return self.pass_fences(target);
        }
        if reply.result.is_ok() && self.goes_on(tag) {
            if self.work_mut(tag).preempted.is_none() {
                return self.ask(tag);
            }
            let plan = self.vacate(tag);
            self.fail(&plan, Status::PREEMPTED.dnr(), target);
            return self.pass_fences(target);
        }
        let work = self.work_mut(tag);
        let sent = core::mem::take(&mut work.pages);
        if reply.result.is_ok() && work.plan.kind == Kind::Read {
            // It counts until it is sent.
            work.counted_bytes = 0;
        }
        let plan = self.vacate(tag);
        self.usage_since.get_or_insert(self.now);
        match (plan.kind, reply.result) {
            (Kind::Read, Ok(pages)) => {
                self.usage.reads += 1;
                self.usage.read_bytes += plan.length;
                let cqe = self.cqe(plan.cid, Status::SUCCESS, 0);
                let (framing, sq_flow) = (self.framing(), self.sq_flow());
                let reply = Reply::pages(framing, plan.offset, plan.length as u32, pages, &cqe, sq_flow);
                self.output.push(reply);
            }
            (Kind::Compare, Ok(pages)) => {
                self.usage.reads += 1;
                self.usage.read_bytes += plan.length;
                if same(&plan, &sent, &pages) {
                    self.answer(plan.cid, Status::SUCCESS, 0);
                } else {
                    self.fail(&plan, Status::COMPARE_FAILURE.dnr(), target);
                }
            }
            (kind, Ok(_)) => {
                if kind == Kind::Write {
                    self.usage.writes += 1;
                    self.usage.written_bytes += plan.length;
                }
                self.answer(plan.cid, Status::SUCCESS, 0);
            }
            (kind, Err(error)) => {
                self.usage.media_errors += u64::from(error == BlockError::Io);
                self.fail(&plan, status_of(error, kind), target);
            }
        }
        self.pass_fences(target);
        self.grant();
    }

    /// True if there is more of the command to ask for.
    fn goes_on(&mut self, tag: u64) -> bool {
        let work = self.work_mut(tag);
        match work.plan.kind {
            Kind::Trim | Kind::WriteZeroes => work.plan.length > 0,
            Kind::Dataset if work.plan.length > 0 => true,
            Kind::Dataset => {
                let extra = work.extra.as_mut().expect("its ranges are there");
                let next = extra.ranges.pop();
                if let Some(next) = next {
                    (work.plan.offset, work.plan.length) = next;
                }
                next.is_some()
            }
            _ => false,
        }
    }
}

/// Fabrics commands that an I/O queue takes: Disconnect (Fabrics §3.4).
fn judge_io_fabrics(sqe: &Sqe, capsule_bytes: u32) -> Result<(), Status> {
    match sqe.fabrics_type() {
        fabrics::DISCONNECT if sqe.dword(10) as u16 == 0 && capsule_bytes == 0 => Ok(()),
        fabrics::DISCONNECT => Err(Status::CONNECT_FORMAT.dnr()),
        fabrics::CONNECT => Err(Status::SEQUENCE.dnr()),
        _ => Err(Status::INVALID_OPCODE.dnr()),
    }
}

/// True for commands that name their first block.
fn has_range(sqe: &Sqe) -> bool {
    matches!(
        sqe.opcode(),
        io::READ | io::WRITE | io::COMPARE | io::WRITE_ZEROES
    )
}

/// Data of Dataset Management (NVM §3.2.3): hosts may send more than there are ranges, Linux always does.
fn dataset_bytes(sqe: &Sqe) -> Result<u32, Status> {
    let needed = ((sqe.dword(10) & 0xff) + 1) * DSM_RANGE_BYTES as u32;
    let length = sqe.sgl().length;
    if length < needed || length > (DSM_RANGES_MAX * DSM_RANGE_BYTES) as u32 {
        return Err(Status::SGL_LENGTH.dnr());
    }
    Ok(length)
}

/// Offset and length in bytes of a range of blocks, if it lies inside the namespace.
fn range(first: u64, blocks: u64, namespace: &Namespace) -> Option<(u64, u64)> {
    let end = first.checked_add(blocks)?;
    let inside = end <= namespace.size_bytes >> BLOCK_SHIFT;
    inside.then_some((first << BLOCK_SHIFT, blocks << BLOCK_SHIFT))
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

/// True if what was read is what the host sent.
fn same(plan: &Plan, sent: &Pages, read: &Pages) -> bool {
    let mut at = (plan.offset % PAGE_BYTES as u64) as usize;
    let mut left = plan.length as usize;
    assert_eq!(sent.len(), read.len(), "both are on the page grid");
    sent.iter().zip(read).all(|(sent, read)| {
        let count = left.min(PAGE_BYTES - at);
        let equal = sent.with(|sent| read.with(|read| sent[at..at + count] == read[at..at + count]));
        left -= count;
        at = 0;
        equal
    })
}

/// The status of a volume's error. "Do not retry" is set wherever a second try would hide the first: a flush that failed
/// for writes that were lost succeeds the next time.
fn status_of(error: BlockError, kind: Kind) -> Status {
    match error {
        BlockError::Invalid => Status::INVALID_FIELD.dnr(),
        BlockError::NoVolume => Status::INVALID_NAMESPACE.dnr(),
        BlockError::ReadOnly => Status::WRITE_PROTECTED.dnr(),
        BlockError::Reserved => Status::RESERVATION_CONFLICT.dnr(),
        BlockError::NoSpace => Status::CAPACITY.dnr(),
        BlockError::Io if matches!(kind, Kind::Read | Kind::Compare) => Status::READ_ERROR.dnr(),
        BlockError::Io => Status::WRITE_FAULT.dnr(),
        BlockError::Shutdown => Status::PATH,
        BlockError::Elsewhere => Status::ANA_INACCESSIBLE,
    }
}

//! I/O commands (NVM §3.2): their checks, their payload, and their answers.

use base::limits::PAGE_BYTES;
use base::{BadRange, BlockError, BlockReply, Pages, SectorRange};

use super::output::Reply;
use super::proto::{
    BLOCK_SHIFT, DSM_RANGE_BYTES, DSM_RANGES_MAX, NSID, NSID_ALL, Sqe, Status, fabrics, io, u32_at, u64_at,
};
use super::reserve_command::is_reservation;
use super::session::{CloseReason, Flow, Session};
use super::target::Namespace;
use super::work::{Kind, Plan, check_pointer};

impl Session {
    /// A command of an I/O queue, with so many bytes of data in its capsule.
    pub(super) fn io_command(&mut self, sqe: &Sqe, capsule_bytes: u32) -> Flow {
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
        } else if is_reservation(sqe.opcode()) {
            return self.reservation_command(sqe, capsule_bytes);
        } else {
            match self.judge(sqe, capsule_bytes) {
                Ok(plan) => return self.accept(plan, capsule_bytes, sqe),
                Err(status) => status,
            }
        };
        let lba = if has_range(sqe) { sqe.qword(10) } else { 0 };
        self.log_error((sqe.cid(), sqe.nsid(), lba), refused);
        self.refuse(sqe.cid(), refused, capsule_bytes)
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
            plan.range.length(),
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
        plan.range = range(first, blocks, namespace).map_err(|_| Status::LBA_RANGE.dnr())?;
        if matches!(plan.kind, Kind::Read | Kind::Write | Kind::Compare) {
            if plan.range.length() > u64::from(self.link.shape.request_bytes_max) {
                return Err(Status::INVALID_FIELD.dnr());
            }
            if plan.kind != Kind::Read {
                plan.data_bytes = plan.range.length() as u32;
            }
        }
        Ok(())
    }

    /// The ranges of Dataset Management are there. Only "deallocate" is more than advice (NVM §3.2.3).
    pub(super) fn dataset_arrived(&mut self, tag: u64) {
        let namespace = self.view().namespace;
        let work = self.ledger.work(tag);
        let extra = work.extra.as_mut().expect("its ranges are there");
        let count = (extra.sqe.dword(10) as usize & 0xff) + 1;
        let mut valid = true;
        for bytes in extra.data.chunks_exact(DSM_RANGE_BYTES).take(count).rev() {
            let (blocks, first) = (u64::from(u32_at(bytes, 4)), u64_at(bytes, 8));
            match namespace.map(|namespace| range(first, blocks, &namespace)) {
                Some(Ok(range)) => extra.ranges.push(range),
                Some(Err(BadRange::Unaligned)) => {}
                None | Some(Err(BadRange::Outside)) => valid = false,
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
                work.plan.range = next;
                self.ask(tag);
            }
            None => {
                self.vacate(tag);
                if valid {
                    self.answer(plan.cid, Status::SUCCESS, 0);
                } else {
                    self.fail(&plan, Status::LBA_RANGE.dnr());
                }
            }
        }
    }

    /// The volume's answer to a request.
    pub(super) fn answered(&mut self, reply: BlockReply) {
        assert_eq!(
            reply.client, self.ledger.client,
            "a reply goes to its own connection"
        );
        let tag = reply.tag;
        if self.is_cut() {
            self.vacate(tag);
            return self.pass_fences();
        }
        if reply.result.is_ok() && self.goes_on(tag) {
            if self.ledger.work(tag).preempted.is_none() {
                return self.ask(tag);
            }
            let plan = self.vacate(tag);
            self.fail(&plan, Status::PREEMPTED.dnr());
            return self.pass_fences();
        }
        let reply = match self.take_part(tag, reply) {
            Some(reply) => reply,
            None => return,
        };
        let work = self.ledger.work(tag);
        let sent = core::mem::take(&mut work.pages);
        if reply.result.is_ok() && work.plan.kind == Kind::Read {
            // It counts until it is sent.
            work.counted_bytes = 0;
        }
        let done_bytes = work.done_bytes;
        let plan = self.vacate(tag);
        self.link.usage_since.get_or_insert(self.link.now);
        match (plan.kind, reply.result) {
            (Kind::Read, Ok(pages)) => {
                self.link.usage.reads += 1;
                self.link.usage.read_bytes += plan.range.length();
                let cqe = self.cqe(plan.cid, Status::SUCCESS, 0);
                let (framing, sq_flow) = (self.framing(), self.sq_flow());
                let place = (plan.range, done_bytes);
                let reply = Reply::pages(framing, place, pages, &cqe, Some(sq_flow));
                self.output.push(reply);
            }
            (Kind::Compare, Ok(pages)) => {
                self.link.usage.reads += 1;
                self.link.usage.read_bytes += plan.range.length();
                if same(&plan, &sent, &pages) {
                    self.answer(plan.cid, Status::SUCCESS, 0);
                } else {
                    self.fail(&plan, Status::COMPARE_FAILURE.dnr());
                }
            }
            (kind, Ok(_)) => {
                if kind == Kind::Write {
                    self.link.usage.writes += 1;
                    self.link.usage.written_bytes += plan.range.length();
                }
                self.answer(plan.cid, Status::SUCCESS, 0);
            }
            (kind, Err(error)) => {
                self.link.usage.media_errors += u64::from(error == BlockError::Io);
                self.fail(&plan, status_of(error, kind));
            }
        }
        self.pass_fences();
        self.grant();
    }

    /// Takes the answer to a part of a read or a write. Returns the answer if the command ends with it.
    fn take_part(&mut self, tag: u64, reply: BlockReply) -> Option<BlockReply> {
        let work = self.ledger.work(tag);
        let (plan, done_bytes, counted_bytes) = (work.plan, work.done_bytes, work.counted_bytes);
        if reply.result.is_err() || work.rest.is_empty() {
            return Some(reply);
        }
        if work.preempted.is_some() {
            self.vacate(tag);
            self.fail(&plan, Status::PREEMPTED.dnr());
            self.pass_fences();
            return None;
        }
        work.go_on();
        self.short -= 1;
        match reply.result {
            Ok(pages) if plan.kind == Kind::Read => {
                // It counts until it is sent.
                self.link.usage.read_bytes += plan.range.length();
                let cqe = self.cqe(plan.cid, Status::SUCCESS, 0);
                let place = (plan.range, done_bytes);
                let reply = Reply::pages(self.framing(), place, pages, &cqe, None);
                self.output.push(reply);
            }
            _ => {
                self.link.usage.written_bytes += plan.range.length();
                self.ledger.bytes -= u64::from(counted_bytes);
            }
        }
        self.waiting.push_front(tag);
        self.pass_fences();
        self.grant();
        self.may_go_on = true;
        None
    }

    /// True if there is more of the command to ask for.
    fn goes_on(&mut self, tag: u64) -> bool {
        let work = self.ledger.work(tag);
        match work.plan.kind {
            Kind::Trim | Kind::WriteZeroes => !work.plan.range.is_empty(),
            Kind::Dataset if !work.plan.range.is_empty() => true,
            Kind::Dataset => {
                let extra = work.extra.as_mut().expect("its ranges are there");
                let next = extra.ranges.pop();
                if let Some(next) = next {
                    work.plan.range = next;
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

/// A range of blocks of the namespace. Only an empty one can be unaligned.
fn range(first: u64, blocks: u64, namespace: &Namespace) -> Result<SectorRange, BadRange> {
    let offset = first.checked_mul(1 << BLOCK_SHIFT).ok_or(BadRange::Outside)?;
    SectorRange::new(offset, blocks << BLOCK_SHIFT, namespace.size_bytes)
}

/// True if what was read is what the host sent.
fn same(plan: &Plan, sent: &Pages, read: &Pages) -> bool {
    let mut at = plan.range.skip();
    let mut left = plan.range.length() as usize;
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

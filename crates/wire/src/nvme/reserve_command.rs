//! Reservation commands of an I/O queue (Base §7.2 to §7.5), and the fences that it waits for and passes.

use super::command::CONTROL_BYTES_MAX;
use super::output::Reply;
use super::proto::{NSID, Sqe, Status, io};
use super::session::{Flow, Session};
use super::work::{Kind, Plan, Stage, check_pointer};

/// Bytes of the data of Register and Acquire: two keys, the host's own first; Release needs the first one (Base §7.2 to §7.4).
const KEYS_BYTES: u32 = 16;
/// Flag of Report: the extended form (`EDS`).
const EXTENDED: u32 = 1;

/// True for the four commands.
pub(super) const fn is_reservation(opcode: u8) -> bool {
    matches!(
        opcode,
        io::RESERVATION_REGISTER | io::RESERVATION_REPORT | io::RESERVATION_ACQUIRE | io::RESERVATION_RELEASE
    )
}

impl Session {
    /// A reservation command of an I/O queue, with so many bytes of data in its capsule.
    pub(super) fn reservation_command(&mut self, sqe: &Sqe, capsule_bytes: u32) -> Flow {
        // As on the control path: a host cannot make the target keep a thousand reports.
        if self.output.owned_bytes() > CONTROL_BYTES_MAX {
            return Flow::Blocked;
        }
        match self.judge_reservation(sqe, capsule_bytes) {
            Ok(plan) if plan.data_bytes > 0 => self.accept(plan, capsule_bytes, sqe),
            Ok(plan) => {
                self.advance();
                self.report(&plan, sqe);
                Flow::Again
            }
            Err(status) => {
                self.log_error((sqe.cid(), sqe.nsid(), 0), status);
                self.refuse(sqe.cid(), status, capsule_bytes)
            }
        }
    }

    fn judge_reservation(&self, sqe: &Sqe, capsule_bytes: u32) -> Result<Plan, Status> {
        let view = self.judge_form(sqe)?;
        if !view.namespace.is_some_and(|namespace| namespace.reservable) {
            return Err(Status::INVALID_OPCODE.dnr());
        }
        view.addressed(sqe.nsid() == NSID)?;
        let mut plan = Plan::new(sqe, Kind::Control);
        let needed = match sqe.opcode() {
            io::RESERVATION_REGISTER | io::RESERVATION_ACQUIRE => KEYS_BYTES,
            io::RESERVATION_RELEASE => KEYS_BYTES / 2,
            _ => {
                let bytes = 4 * (u64::from(sqe.dword(10)) + 1);
                // Over fabrics host identifiers have 128 bits, which the short form does not carry.
                if sqe.dword(11) & EXTENDED == 0 {
                    return Err(Status::HOST_ID_FORMAT.dnr());
                }
                if bytes > u64::from(self.request_bytes_max()) {
                    return Err(Status::INVALID_FIELD.dnr());
                }
                check_pointer(sqe, 0, true, capsule_bytes, bytes)?;
                return Ok(plan);
            }
        };
        // Linux always sends two keys.
        let length = sqe.sgl().length;
        if !(needed..=KEYS_BYTES).contains(&length) {
            return Err(Status::SGL_LENGTH.dnr());
        }
        plan.data_bytes = length;
        check_pointer(sqe, length, false, capsule_bytes, 0)?;
        Ok(plan)
    }

    fn report(&mut self, plan: &Plan, sqe: &Sqe) {
        let handle = self.connected().handle;
        let length = sqe.sgl().length;
        let mut report = Err(Status::INTERNAL);
        self.link
            .target
            .with(&mut |target| report = target.report_reservations(handle, length as usize));
        match report {
            Ok(data) => {
                let cqe = self.cqe(plan.cid, Status::SUCCESS, 0);
                let reply = Reply::bytes(self.framing(), data, length, &cqe, self.sq_flow());
                self.output.push(reply);
            }
            Err(status) => self.fail(plan, status),
        }
    }

    /// The data of Reservation Register, Acquire or Release is there.
    pub(super) fn reservation_arrived(&mut self, tag: u64) {
        let handle = self.connected().handle;
        let work = self.ledger.work(tag);
        let plan = work.plan;
        let extra = work.extra.take().expect("a control command has its data");
        let mut result = Err(Status::INTERNAL);
        self.link
            .target
            .with(&mut |target| result = target.reserve(handle, &extra.sqe, &extra.data));
        match result {
            Ok(Some(fence)) => {
                self.ledger.work(tag).stage = Stage::Fenced;
                self.acquires.push((tag, fence));
            }
            Ok(None) => {
                self.vacate(tag);
                self.answer(plan.cid, Status::SUCCESS, 0);
            }
            Err(status) => {
                self.vacate(tag);
                self.fail(&plan, status);
            }
        }
    }

    /// Looks at the fences: those for this queue, and those that commands of this queue wait for.
    pub(super) fn look_at_fences(&mut self) {
        let attachment = self
            .link
            .queue
            .as_ref()
            .map_or(0, |queue| queue.connected.attachment);
        if attachment == 0 {
            return;
        }
        let mut fence = 0;
        let mut over = Vec::new();
        self.link.target.with(&mut |target| {
            fence = target.fence_of(attachment);
            over.extend(self.acquires.extract_if(.., |(_, fence)| target.is_over(fence)));
        });
        for (tag, _) in over {
            let plan = self.vacate(tag);
            self.answer(plan.cid, Status::SUCCESS, 0);
        }
        if fence > self.link.fence {
            if self.passed == self.link.fence {
                // Fences between the two are not for this queue.
                self.passed = fence - 1;
            }
            self.link.fence = fence;
            self.abort_all();
        }
        self.pass_fences();
    }

    /// The host was preempted: ends what the volume was not asked for, and notes what it was asked for.
    fn abort_all(&mut self) {
        self.acquires.clear();
        for index in 0..self.ledger.bound() {
            let Some((tag, _)) = self.ledger.at(index) else {
                continue;
            };
            let work = self.ledger.work(tag);
            match work.stage {
                // The rest of its data has to come; the volume is not asked any more.
                Stage::Asked | Stage::Receiving => {
                    work.preempted.get_or_insert(self.link.fence);
                    continue;
                }
                Stage::Granted => self.receiving -= 1,
                Stage::Waiting | Stage::Fenced => {}
            }
            self.waiting.retain(|&other| other != tag);
            self.granted.retain(|&other| other != tag);
            let plan = self.vacate(tag);
            self.fail(&plan, Status::PREEMPTED.dnr());
        }
    }

    /// Passes the fences before which everything that was under way is answered. Later commands are not waited for:
    /// hosts that preempt this one again and again would keep the first of them waiting.
    pub(super) fn pass_fences(&mut self) {
        if self.passed == self.link.fence {
            return;
        }
        let asked = self.ledger.iter().filter(|(_, work)| work.stage == Stage::Asked);
        let next = asked.filter_map(|(_, work)| work.preempted).min();
        let newest = next.map_or(self.link.fence, |next| next - 1);
        if let Some(queue) = &self.link.queue
            && newest > self.passed
        {
            self.passed = newest;
            let attachment = queue.connected.attachment;
            self.link
                .target
                .with(&mut |target| target.pass(attachment, newest));
        }
    }
}

//! Reservations between their rules (`reservation`) and the sessions: the commands (Base §7.2 to §7.5), who is told what
//! they did, and what "preempt and abort" waits for.
//!
//! Rights are in the sessions' [`View`](super::target::View)s, so that a command is checked without the target when it is
//! taken, and never again: a later reservation does not touch it (Base §8.19).
//!
//! "Preempt and abort" is answered when nothing of those that it preempted can reach the volume any more, on whatever core
//! they are. It sets up a *fence*, which waits for the *attached* I/O queues of their hosts. A session that sees one ends
//! what it has not asked the volume for, waits for the answers to the rest, and passes; so does one that is closing. A
//! queue whose connection is closed stays attached until what it had asked for is answered ([`Late`]).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use base::VolumeId;

use super::Access;
use super::control::CONTROL_BYTES_MAX;
use super::identify::NSID;
use super::io::{Kind, Plan, Stage, check_pointer};
use super::output::Reply;
use super::proto::{Sqe, Status, event, io, put, u64_at};
use super::reservation::{Effect, HostId, Notice, Refusal, Registration, Reservations, Rights, Type};
use super::session::{Flow, Session};
use super::target::{Handle, Target};

/// Notices kept for a controller; of more only the number is known (Base §5.16.1, log page 80h).
const NOTICES_MAX: usize = 64;
/// Bytes of the notification log page.
const NOTICE_BYTES: usize = 64;
/// The host identifier of a host that has none (Base §5.27.1.25).
const NO_HOST: HostId = [0; 16];
/// Bytes of the data of Register and Acquire: two keys, the host's own first; Release needs the first one (Base §7.2 to §7.4).
const KEYS_BYTES: u32 = 16;
/// Flags of the commands: "ignore existing key" (`IEKEY`), the extended report (`EDS`).
const IGNORE_KEY: u32 = 1 << 3;
const EXTENDED: u32 = 1;

/// The notification log of a controller.
#[derive(Debug, Default)]
pub(super) struct Notices {
    /// Each with its number.
    queue: VecDeque<(u64, Notice)>,
    /// The last number given.
    count: u64,
}

impl Notices {
    fn add(&mut self, notice: Notice) {
        self.count = self.count.checked_add(1).unwrap_or(1);
        let is_full = self.queue.len() == NOTICES_MAX;
        match self.queue.back_mut() {
            Some((count, _)) if is_full => *count = self.count,
            _ => self.queue.push_back((self.count, notice)),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub fn drop_first(&mut self) {
        self.queue.pop_front();
    }

    /// The log page of the oldest one; zeros if there is none.
    pub fn page(&self) -> Vec<u8> {
        let mut page = vec![0; NOTICE_BYTES];
        if let Some(&(count, notice)) = self.queue.front() {
            put(&mut page, 0, &count.to_le_bytes());
            page[8] = notice as u8;
            page[9] = (self.queue.len() - 1) as u8;
            put(&mut page, 12, &NSID.to_le_bytes());
        }
        page
    }
}

const _: () = assert!(NOTICES_MAX <= 256, "those behind the first fit a byte");

/// An I/O queue of a volume that may be reserved.
#[derive(Debug)]
pub(super) struct Attached {
    nqn: String,
    host: HostId,
    /// The newest fence set up for it, and the newest one that it has passed.
    fence: u64,
    passed: u64,
}

/// Fence that the command of a preempting host waits for. The command has it, so that it ends with its connection.
#[derive(Debug)]
pub(super) struct Fence {
    id: u64,
    /// Attached queues that have not passed.
    waits: Vec<u64>,
}

/// Requests of a closed connection that the volume has not answered yet: [`Late::settle`] them.
#[derive(Debug)]
pub struct Late {
    pub(super) attachment: u64,
    pub(super) requests: usize,
}

impl Late {
    /// So many of the requests are answered, or were dropped and never will be; true if these were the last.
    pub fn settle(&mut self, requests: usize, target: &dyn Access) -> bool {
        self.requests -= requests;
        let over = self.requests == 0;
        if over {
            target.with(&mut |target| target.release(self.attachment));
        }
        over
    }
}

impl Target {
    /// Rights of a host to a subsystem's namespace; `None` for a client without identifier.
    pub(super) fn rights(&self, nqn: &str, host: Option<&HostId>) -> Rights {
        let reservations = self.reservations.get(nqn);
        reservations.map_or(Rights::ALL, |reservations| reservations.rights(host))
    }

    /// What a client may do with a volume that comes to it without a host identifier, as those of NBD do: it is no
    /// registrant.
    pub fn rights_of_others(&self, volume: VolumeId) -> Rights {
        let subsystem = self
            .subsystems
            .values()
            .find(|subsystem| subsystem.volume == volume);
        subsystem.map_or(Rights::ALL, |subsystem| self.rights(&subsystem.nqn, None))
    }

    /// Reservation Register, Acquire or Release; the fence that the answer has to wait for, if there is one.
    pub(super) fn reserve(
        &mut self,
        handle: Handle,
        sqe: &Sqe,
        data: &[u8],
    ) -> Result<Option<Fence>, Status> {
        let controller = self.held(handle).ok_or(Status::INTERNAL)?;
        let (nqn, host) = (controller.nqn.clone(), controller.host_id);
        if host == NO_HOST {
            return Err(Status::NO_HOST_ID.dnr());
        }
        let rules = self.reservations.entry(nqn.clone()).or_default();
        let was_held = rules.is_held();
        let effect = change(rules, &host, sqe, data).map_err(|refusal| match refusal {
            Refusal::Conflict => Status::RESERVATION_CONFLICT.dnr(),
            Refusal::Invalid => Status::INVALID_FIELD.dnr(),
            Refusal::Full => Status::INTERNAL.dnr(),
        })?;
        let changed = was_held || rules.is_held();
        self.tell(&nqn, &effect);
        let aborts = sqe.opcode() == io::RESERVATION_ACQUIRE && sqe.dword(10) & 7 == 2;
        let fence = if aborts {
            self.set_fence(&nqn, &effect.preempted)
        } else {
            None
        };
        // Where there is no reservation, rights do not depend on who is registered.
        if changed || fence.is_some() || !effect.notices.is_empty() {
            self.touch();
        }
        Ok(fence)
    }

    /// Reservation Report, `bytes` of it.
    pub(super) fn report_reservations(&self, handle: Handle, bytes: usize) -> Result<Vec<u8>, Status> {
        let controller = self.held(handle).ok_or(Status::INTERNAL)?;
        let others = self.controllers.iter();
        let others = others.filter(|(_, other)| other.nqn == controller.nqn);
        let ids: BTreeMap<&HostId, u16> = others.map(|(&id, other)| (&other.host_id, id)).collect();
        let of_host = |host: &HostId| ids.get(host).copied();
        Ok(match self.reservations.get(&controller.nqn) {
            Some(rules) => rules.report(bytes, &of_host),
            None => Reservations::default().report(bytes, &of_host),
        })
    }

    /// Puts notices into the logs of their hosts' controllers.
    fn tell(&mut self, nqn: &str, effect: &Effect) {
        let mask = self.reservations.get(nqn).map_or(0, |rules| rules.mask);
        let notices = effect.notices.iter();
        let unmasked = notices.filter(|(_, notice)| mask >> (*notice as u32) & 1 == 0);
        // A command has one notice for a host at most.
        let notices: BTreeMap<&HostId, Notice> = unmasked.map(|(host, notice)| (host, *notice)).collect();
        for controller in self.controllers.values_mut().filter(|other| other.nqn == nqn) {
            if let Some(&notice) = notices.get(&controller.host_id) {
                controller.notices.add(notice);
                controller.pending |= event::MASK_RESERVATION;
            }
        }
    }

    /// Notes an I/O queue, from its Connect on.
    pub(super) fn attach(&mut self, nqn: &str, host: HostId) -> u64 {
        self.attached_total += 1;
        let attached = Attached {
            nqn: nqn.to_string(),
            host,
            fence: 0,
            passed: 0,
        };
        self.attached.insert(self.attached_total, attached);
        self.attached_total
    }

    /// An attached queue has nothing under way and never will have.
    pub(super) fn release(&mut self, attachment: u64) {
        let attached = self.attached.remove(&attachment);
        if attached.is_some_and(|attached| attached.passed < attached.fence) {
            self.touch();
        }
    }

    /// The newest fence for an attached queue, 0 if there was none.
    pub(super) fn fence_of(&self, attachment: u64) -> u64 {
        let attached = self.attached.get(&attachment);
        attached.map_or(0, |attached| attached.fence)
    }

    /// A fence for the queues of these hosts; `None` if they have none.
    fn set_fence(&mut self, nqn: &str, hosts: &[HostId]) -> Option<Fence> {
        let hosts: BTreeSet<&HostId> = hosts.iter().collect();
        let id = self.fences_total + 1;
        let mut waits = Vec::new();
        for (&attachment, attached) in &mut self.attached {
            if attached.nqn == nqn && hosts.contains(&attached.host) {
                attached.fence = id;
                waits.push(attachment);
            }
        }
        if waits.is_empty() {
            return None;
        }
        self.fences_total = id;
        Some(Fence { id, waits })
    }

    /// An attached queue has nothing under way that came before this fence, or an older one.
    fn pass(&mut self, attachment: u64, newest: u64) {
        if let Some(attached) = self.attached.get_mut(&attachment) {
            attached.passed = newest;
            self.touch();
        }
    }

    /// True if every queue has passed the fence, or is gone.
    fn is_over(&self, fence: &mut Fence) -> bool {
        let stays = |attached: &Attached| attached.passed < fence.id;
        fence
            .waits
            .retain(|attachment| self.attached.get(attachment).is_some_and(stays));
        fence.waits.is_empty()
    }
}

/// Effect of a command on a namespace's reservations, by its fields (Base §7.2 to §7.4).
fn change(rules: &mut Reservations, host: &HostId, sqe: &Sqe, data: &[u8]) -> Result<Effect, Refusal> {
    let dw10 = sqe.dword(10);
    let (action, ignores_key) = (dw10 & 7, dw10 & IGNORE_KEY != 0);
    let kind = Type::from_u8((dw10 >> 8) as u8);
    let key = u64_at(data, 0);
    match (sqe.opcode(), action) {
        (io::RESERVATION_REGISTER, 0..=2) => {
            // CPTPL: "persist" is not offered, 1 is reserved.
            if dw10 & 1 << 30 != 0 {
                return Err(Refusal::Invalid);
            }
            let new = u64_at(data, 8);
            let registration = match action {
                0 => Registration::Register { new },
                1 => Registration::Unregister,
                _ => Registration::Replace { new },
            };
            rules.register(host, (!ignores_key).then_some(key), registration)
        }
        _ if ignores_key => Err(Refusal::Invalid),
        (io::RESERVATION_ACQUIRE, 0) => rules.acquire(host, key, kind.ok_or(Refusal::Invalid)?),
        (io::RESERVATION_ACQUIRE, 1 | 2) => {
            let kind = kind.ok_or(Refusal::Invalid)?;
            rules.preempt(host, key, u64_at(data, 8), kind)
        }
        (io::RESERVATION_RELEASE, 0) => rules.release(host, key, kind),
        (io::RESERVATION_RELEASE, 1) => rules.clear(host, key),
        _ => Err(Refusal::Invalid),
    }
}

/// True for the four commands.
pub(super) const fn is_command(opcode: u8) -> bool {
    matches!(
        opcode,
        io::RESERVATION_REGISTER | io::RESERVATION_REPORT | io::RESERVATION_ACQUIRE | io::RESERVATION_RELEASE
    )
}

impl Session {
    /// A reservation command of an I/O queue, with so many bytes of data in its capsule.
    pub(super) fn reservation_command(&mut self, sqe: &Sqe, capsule_bytes: u32, target: &dyn Access) -> Flow {
        // As on the control path: a host cannot make the target keep a thousand reports.
        if self.output.owned_bytes() > CONTROL_BYTES_MAX {
            return Flow::Blocked;
        }
        match self.judge_reservation(sqe, capsule_bytes) {
            Ok(plan) if plan.data_bytes > 0 => self.accept(plan, capsule_bytes, sqe),
            Ok(plan) => {
                self.advance();
                self.report(&plan, sqe, target);
                Flow::Again
            }
            Err(status) => {
                self.log_error((sqe.cid(), sqe.nsid(), 0), status, target);
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

    fn report(&mut self, plan: &Plan, sqe: &Sqe, target: &dyn Access) {
        let handle = self.connected().handle;
        let length = sqe.sgl().length;
        let mut report = Err(Status::INTERNAL);
        target.with(&mut |target| report = target.report_reservations(handle, length as usize));
        match report {
            Ok(data) => {
                let cqe = self.cqe(plan.cid, Status::SUCCESS, 0);
                let reply = Reply::bytes(self.framing(), data, length, &cqe, self.sq_flow());
                self.output.push(reply);
            }
            Err(status) => self.fail(plan, status, target),
        }
    }

    /// The data of Reservation Register, Acquire or Release is there.
    pub(super) fn reservation_arrived(&mut self, tag: u64, target: &dyn Access) {
        let handle = self.connected().handle;
        let work = self.work_mut(tag);
        let plan = work.plan;
        let extra = work.extra.take().expect("a control command has its data");
        let mut result = Err(Status::INTERNAL);
        target.with(&mut |target| result = target.reserve(handle, &extra.sqe, &extra.data));
        match result {
            Ok(Some(fence)) => {
                self.work_mut(tag).stage = Stage::Fenced;
                self.acquires.push((tag, fence));
            }
            Ok(None) => {
                self.vacate(tag);
                self.answer(plan.cid, Status::SUCCESS, 0);
            }
            Err(status) => {
                self.vacate(tag);
                self.fail(&plan, status, target);
            }
        }
    }

    /// Looks at the fences: those for this queue, and those that commands of this queue wait for.
    pub(super) fn look_at_fences(&mut self, target: &dyn Access) {
        let attachment = self.queue.as_ref().map_or(0, |queue| queue.connected.attachment);
        if attachment == 0 {
            return;
        }
        let mut fence = 0;
        let mut over = Vec::new();
        target.with(&mut |target| {
            fence = target.fence_of(attachment);
            over.extend(self.acquires.extract_if(.., |(_, fence)| target.is_over(fence)));
        });
        for (tag, _) in over {
            let plan = self.vacate(tag);
            self.answer(plan.cid, Status::SUCCESS, 0);
        }
        if fence > self.fence {
            if self.passed == self.fence {
                // Fences between the two are not for this queue.
                self.passed = fence - 1;
            }
            self.fence = fence;
            self.abort_all(target);
        }
        self.pass_fences(target);
    }

    /// The host was preempted: ends what the volume was not asked for, and notes what it was asked for.
    fn abort_all(&mut self, target: &dyn Access) {
        self.acquires.clear();
        for index in 0..self.slots.len() as u32 {
            let slot = &mut self.slots[index as usize];
            let tag = u64::from(slot.generation) << 32 | u64::from(index);
            let Some(work) = &mut slot.work else {
                continue;
            };
            match work.stage {
                // The rest of its data has to come; the volume is not asked any more.
                Stage::Asked | Stage::Receiving => {
                    work.preempted.get_or_insert(self.fence);
                    continue;
                }
                Stage::Granted => self.receiving -= 1,
                Stage::Waiting | Stage::Fenced => {}
            }
            self.waiting.retain(|&other| other != index);
            self.granted.retain(|&other| other != index);
            let plan = self.vacate(tag);
            self.fail(&plan, Status::PREEMPTED.dnr(), target);
        }
    }

    /// Passes the fences before which everything that was under way is answered. What came later is not waited for: hosts
    /// that preempt this one again and again would keep the first of them waiting.
    pub(super) fn pass_fences(&mut self, target: &dyn Access) {
        if self.passed == self.fence {
            return;
        }
        let works = self.slots.iter().filter_map(|slot| slot.work.as_ref());
        let asked = works.filter(|work| work.stage == Stage::Asked);
        let next = asked.filter_map(|work| work.preempted).min();
        let newest = next.map_or(self.fence, |next| next - 1);
        if let Some(queue) = &self.queue
            && newest > self.passed
        {
            self.passed = newest;
            let attachment = queue.connected.attachment;
            target.with(&mut |target| target.pass(attachment, newest));
        }
    }
}

//! Reservations between their rules (`reservation`) and the sessions: the commands (Base §7.2 to §7.5), who is told what
//! they did, and what "preempt and abort" waits for.
//!
//! Rights are in the sessions' [`View`](super::target::View)s, so that a command is checked without the target when it is
//! taken, and never again: a later reservation does not touch it (Base §8.19).
//!
//! "Preempt and abort" is answered when nothing of those that it preempted can reach the volume any more, on whatever core
//! they are. It sets up a *fence*, which waits for the *attached* I/O queues of their hosts. A session that sees one ends
//! what it has not asked the volume for, waits for the answers to the rest, and passes; so does one that is closing. A
//! queue whose connection is closed stays attached until what it had asked for is answered ([`Late`](crate::Late)).

use std::collections::{BTreeMap, BTreeSet};

use super::proto::{Sqe, Status, event, io, u64_at};
use super::reservation::{Effect, HostId, Notice, Refusal, Registration, Reservations, Type};
use super::target::{Attached, Handle, Target};

/// The host identifier of a host that has none (Base §5.27.1.25).
const NO_HOST: HostId = [0; 16];
/// Flag of the commands: "ignore existing key" (`IEKEY`).
const IGNORE_KEY: u32 = 1 << 3;

/// Fence that the command of a preempting host waits for. The command has it, so that it ends with its connection.
#[derive(Debug)]
pub(super) struct Fence {
    id: u64,
    /// Attached queues that have not passed.
    waits: Vec<u64>,
}

impl Target {
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
    pub(super) fn pass(&mut self, attachment: u64, newest: u64) {
        if let Some(attached) = self.attached.get_mut(&attachment) {
            attached.passed = newest;
            self.touch();
        }
    }

    /// True if every queue has passed the fence, or is gone.
    pub(super) fn is_over(&self, fence: &mut Fence) -> bool {
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

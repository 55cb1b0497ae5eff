//! Rights to a namespace that hosts reserve (Base §8.19): its registrants, its reservation, and what the
//! commands make of both. Where they come from, and who is told, is in `reserve`.
//!
//! Invariants:
//! - A reservation of one holder is held by a registrant; one of all registrants has at least one.
//! - A refused command changes nothing.
//! - Nothing is kept beyond the process: Persist Through Power Loss is not offered.

use std::collections::BTreeMap;

use base::BlockOp;

use super::proto::put;

/// Hosts are told apart by their identifier (Base §5.27.1.25), whatever controllers they have.
pub(super) type HostId = [u8; 16];

/// Registrants of a namespace at most: what the report's 16 bits can count (Base §7.5).
const REGISTRANTS_MAX: usize = u16::MAX as usize;
/// Bytes of the report's header and of each registrant, in their extended form (Base §7.5).
const REPORT_HEADER_BYTES: usize = 64;
const REPORT_ENTRY_BYTES: usize = 64;
/// The controller id of a registrant that has no controller (Base 2.1 §7.8).
const CNTLID_NONE: u16 = 0xfffd;
/// `RESCAP`: every type, and "ignore existing key" as since 1.3; not Persist Through Power Loss (NVM §4.1.5.1).
pub(super) const CAPABILITIES: u8 = 0xfe;

/// Types of reservations (`RTYPE`, Base §7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Type {
    WriteExclusive = 1,
    ExclusiveAccess = 2,
    WriteExclusiveRegistrants = 3,
    ExclusiveAccessRegistrants = 4,
    WriteExclusiveAll = 5,
    ExclusiveAccessAll = 6,
}

impl Type {
    pub const fn from_u8(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::WriteExclusive,
            2 => Self::ExclusiveAccess,
            3 => Self::WriteExclusiveRegistrants,
            4 => Self::ExclusiveAccessRegistrants,
            5 => Self::WriteExclusiveAll,
            6 => Self::ExclusiveAccessAll,
            _ => return None,
        })
    }

    /// Others may not even read.
    const fn excludes_reads(self) -> bool {
        matches!(
            self,
            Self::ExclusiveAccess | Self::ExclusiveAccessRegistrants | Self::ExclusiveAccessAll
        )
    }

    /// The holder alone has rights; registrants are as others.
    const fn is_holders_alone(self) -> bool {
        matches!(self, Self::WriteExclusive | Self::ExclusiveAccess)
    }

    /// Every registrant is a holder.
    const fn is_all(self) -> bool {
        matches!(self, Self::WriteExclusiveAll | Self::ExclusiveAccessAll)
    }
}

/// Rights of a host (Base §8.19.1). Flush counts as a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    /// Read and compare.
    pub reads: bool,
    /// Change data, and flush.
    pub writes: bool,
}

impl Rights {
    /// Everything: there is no reservation, or it is the host's own.
    pub const ALL: Self = Self {
        reads: true,
        writes: true,
    };

    /// True if the host may have this done.
    pub fn admit(self, op: BlockOp) -> bool {
        match op {
            BlockOp::Read | BlockOp::Status => self.reads,
            _ => self.writes,
        }
    }
}

/// Notices to a host that did not ask (Base §8.19.2): numbers of the notification log's types, and of the bits of the
/// mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Notice {
    RegistrationPreempted = 1,
    ReservationReleased = 2,
    ReservationPreempted = 3,
}

/// Why a command is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Reservation Conflict.
    Conflict,
    /// Invalid Field in Command.
    Invalid,
    /// There are as many registrants as there may be.
    Full,
}

/// Effects of a command on other hosts than its sender.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Effect {
    pub notices: Vec<(HostId, Notice)>,
    /// Those whose registration was preempted, and with it a reservation that they held.
    pub preempted: Vec<HostId>,
}

/// How a registration changes (`RREGA`, Base §7.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Registration {
    Register { new: u64 },
    Unregister,
    Replace { new: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    kind: Type,
    /// The host that acquired it; without meaning for reservations of all registrants.
    by: HostId,
}

/// A namespace's registrants and its reservation.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    /// Counts successful changes, modulo 2^32 (`GEN`).
    generation: u32,
    /// The key of each.
    registrants: BTreeMap<HostId, u64>,
    held: Option<Held>,
    /// Notices that nobody is told of, as the feature has them: bits by the number of a [`Notice`].
    pub mask: u32,
}

impl Reservations {
    /// Rights of a host; `None` for a client that has no identifier.
    pub fn rights(&self, host: Option<&HostId>) -> Rights {
        let Some(held) = &self.held else {
            return Rights::ALL;
        };
        let is_registrant = host.is_some_and(|host| self.registrants.contains_key(host));
        if is_registrant && (!held.kind.is_holders_alone() || host == Some(&held.by)) {
            return Rights::ALL;
        }
        Rights {
            reads: !held.kind.excludes_reads(),
            writes: false,
        }
    }

    /// True if there is a reservation.
    pub fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// Reservation Register. `current` is the key that the host says it has, `None` if that is not to be looked at.
    pub fn register(
        &mut self,
        host: &HostId,
        current: Option<u64>,
        registration: Registration,
    ) -> Result<Effect, Refusal> {
        let key = self.registrants.get(host).copied();
        let is_right = current.is_none_or(|current| key == Some(current));
        let mut effect = Effect::default();
        match registration {
            Registration::Register { new } if key.is_some_and(|key| key != new) => {
                return Err(Refusal::Conflict);
            }
            Registration::Unregister | Registration::Replace { .. } if !is_right => {
                return Err(Refusal::Conflict);
            }
            // Only Replace makes a registrant of who is none.
            Registration::Unregister if key.is_none() => return Err(Refusal::Conflict),
            Registration::Register { new } | Registration::Replace { new } => {
                if key.is_none() && self.registrants.len() == REGISTRANTS_MAX {
                    return Err(Refusal::Full);
                }
                self.registrants.insert(*host, new);
            }
            Registration::Unregister => effect = self.unregister(host),
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(effect)
    }

    /// The host is no registrant any more, and holds nothing (Base §8.19.4).
    fn unregister(&mut self, host: &HostId) -> Effect {
        self.registrants.remove(host);
        let mut effect = Effect::default();
        let Some(held) = self.held else {
            return effect;
        };
        let released = if held.kind.is_all() {
            self.registrants.is_empty()
        } else {
            held.by == *host
        };
        if released {
            self.held = None;
            if !held.kind.is_holders_alone() {
                self.tell_others(host, Notice::ReservationReleased, &mut effect);
            }
        }
        effect
    }

    /// Reservation Acquire, action "acquire" (Base §8.19.5).
    pub fn acquire(&mut self, host: &HostId, current: u64, kind: Type) -> Result<Effect, Refusal> {
        self.check(host, current)?;
        match self.held {
            Some(held) if held.kind != kind || !kind.is_all() && held.by != *host => Err(Refusal::Conflict),
            Some(_) => Ok(Effect::default()),
            None => {
                self.held = Some(Held { kind, by: *host });
                Ok(Effect::default())
            }
        }
    }

    /// Reservation Acquire, actions "preempt" and "preempt and abort" (Base §8.19.7): those with the key `victim` are no
    /// registrants any more; if the holder has it, or is all and it is 0, the reservation is the host's now.
    pub fn preempt(
        &mut self,
        host: &HostId,
        current: u64,
        victim: u64,
        kind: Type,
    ) -> Result<Effect, Refusal> {
        self.check(host, current)?;
        let takes = match self.held {
            Some(held) if held.kind.is_all() => victim == 0,
            Some(held) if self.registrants.get(&held.by) == Some(&victim) => true,
            Some(_) if victim == 0 => return Err(Refusal::Invalid),
            _ => false,
        };
        let everybody = takes && self.held.is_some_and(|held| held.kind.is_all());
        let keyed = self
            .registrants
            .iter()
            .filter(|&(_, &key)| everybody || key == victim);
        // Who takes the reservation stays, whatever its key.
        let gone: Vec<HostId> = keyed
            .map(|(&id, _)| id)
            .filter(|id| !takes || id != host)
            .collect();
        if gone.is_empty() && !takes {
            return Err(Refusal::Conflict);
        }
        let mut effect = Effect::default();
        for id in gone {
            self.registrants.remove(&id);
            if id != *host {
                effect.notices.push((id, Notice::RegistrationPreempted));
                effect.preempted.push(id);
            }
        }
        let before = self.held;
        if takes {
            self.held = Some(Held { kind, by: *host });
            if before.is_some_and(|before| before.kind != kind) {
                self.tell_others(host, Notice::ReservationReleased, &mut effect);
            }
        } else if self.registrants.is_empty() {
            self.held = None;
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(effect)
    }

    /// Reservation Release, action "release", of a reservation of type `kind` (Base §8.19.6).
    pub fn release(&mut self, host: &HostId, current: u64, kind: Option<Type>) -> Result<Effect, Refusal> {
        self.check(host, current)?;
        let mut effect = Effect::default();
        let own = self.held.filter(|held| held.kind.is_all() || held.by == *host);
        let Some(held) = own else {
            return Ok(effect);
        };
        if kind != Some(held.kind) {
            return Err(Refusal::Invalid);
        }
        self.held = None;
        if !held.kind.is_holders_alone() {
            self.tell_others(host, Notice::ReservationReleased, &mut effect);
        }
        Ok(effect)
    }

    /// Reservation Release, action "clear": there is neither reservation nor registrant any more (Base §8.19.8).
    pub fn clear(&mut self, host: &HostId, current: u64) -> Result<Effect, Refusal> {
        self.check(host, current)?;
        let mut effect = Effect::default();
        self.tell_others(host, Notice::ReservationPreempted, &mut effect);
        self.held = None;
        self.registrants.clear();
        self.generation = self.generation.wrapping_add(1);
        Ok(effect)
    }

    /// The host is a registrant with this key.
    fn check(&self, host: &HostId, current: u64) -> Result<(), Refusal> {
        if self.registrants.get(host) == Some(&current) {
            Ok(())
        } else {
            Err(Refusal::Conflict)
        }
    }

    fn tell_others(&self, host: &HostId, notice: Notice, effect: &mut Effect) {
        let others = self.registrants.keys().filter(|&other| other != host);
        effect.notices.extend(others.map(|&other| (other, notice)));
    }

    /// The extended Reservation Status (Base §7.5), cut off at `bytes_max`. `controller` says a controller of a host.
    pub fn report(&self, bytes_max: usize, controller: &dyn Fn(&HostId) -> Option<u16>) -> Vec<u8> {
        let mut report = vec![0; REPORT_HEADER_BYTES];
        put(&mut report, 0, &self.generation.to_le_bytes());
        report[4] = self.held.map_or(0, |held| held.kind as u8);
        put(&mut report, 5, &(self.registrants.len() as u16).to_le_bytes());
        for (host, key) in &self.registrants {
            if report.len() >= bytes_max {
                break;
            }
            let holds = self
                .held
                .is_some_and(|held| held.kind.is_all() || held.by == *host);
            let mut entry = [0; REPORT_ENTRY_BYTES];
            put(
                &mut entry,
                0,
                &controller(host).unwrap_or(CNTLID_NONE).to_le_bytes(),
            );
            entry[2] = u8::from(holds);
            put(&mut entry, 8, &key.to_le_bytes());
            put(&mut entry, 16, host);
            report.extend(entry);
        }
        report.truncate(bytes_max);
        report
    }
}

#[cfg(test)]
mod tests {
    use super::Notice::*;
    use super::Type::*;
    use super::*;

    const A: HostId = [0xa; 16];
    const B: HostId = [0xb; 16];
    const C: HostId = [0xc; 16];
    /// Keys of A and B; C registers with B's.
    const KEY_A: u64 = 0xaaaa;
    const KEY_B: u64 = 0xbbbb;
    const TYPES: [Type; 6] = [
        WriteExclusive,
        ExclusiveAccess,
        WriteExclusiveRegistrants,
        ExclusiveAccessRegistrants,
        WriteExclusiveAll,
        ExclusiveAccessAll,
    ];

    fn register(rules: &mut Reservations, host: HostId, new: u64) {
        let done = rules.register(&host, None, Registration::Register { new });
        assert_eq!(done, Ok(Effect::default()));
    }

    /// A and B are registered, C is not.
    fn two() -> Reservations {
        let mut rules = Reservations::default();
        register(&mut rules, A, KEY_A);
        register(&mut rules, B, KEY_B);
        rules
    }

    /// A holds, B is registered, C is not.
    fn held(kind: Type) -> Reservations {
        let mut rules = two();
        assert_eq!(rules.acquire(&A, KEY_A, kind), Ok(Effect::default()));
        rules
    }

    fn told(notices: &[(HostId, Notice)]) -> Effect {
        Effect {
            notices: notices.to_vec(),
            preempted: Vec::new(),
        }
    }

    fn preempted(notices: &[(HostId, Notice)], preempted: &[HostId]) -> Effect {
        Effect {
            preempted: preempted.to_vec(),
            ..told(notices)
        }
    }

    /// Type, generation, and each registrant with whether it holds the reservation.
    fn reported(rules: &Reservations) -> (u8, u32, Vec<(u8, bool)>) {
        let report = rules.report(usize::MAX, &|_| Some(1));
        let entries = report[64..].chunks(64).map(|entry| (entry[16], entry[2] == 1));
        let generation = u32::from_le_bytes(*report.first_chunk().expect("a header"));
        let entries: Vec<_> = entries.collect();
        assert_eq!(
            usize::from(u16::from_le_bytes([report[5], report[6]])),
            entries.len()
        );
        (report[4], generation, entries)
    }

    /// Base §8.19.1, the figures "command behavior in the presence of a reservation": reads and writes of the holder, of
    /// a registrant, of others.
    #[test]
    fn rights_are_those_of_the_table() {
        const Y: bool = true;
        const N: bool = false;
        let table = [
            (WriteExclusive, [(Y, Y), (Y, N), (Y, N)]),
            (ExclusiveAccess, [(Y, Y), (N, N), (N, N)]),
            (WriteExclusiveRegistrants, [(Y, Y), (Y, Y), (Y, N)]),
            (ExclusiveAccessRegistrants, [(Y, Y), (Y, Y), (N, N)]),
            (WriteExclusiveAll, [(Y, Y), (Y, Y), (Y, N)]),
            (ExclusiveAccessAll, [(Y, Y), (Y, Y), (N, N)]),
        ];
        for (kind, rows) in table {
            let rules = held(kind);
            for (host, (reads, writes)) in [A, B, C].iter().zip(rows) {
                assert_eq!(
                    rules.rights(Some(host)),
                    Rights { reads, writes },
                    "{kind:?} {host:?}"
                );
            }
            assert_eq!(rules.rights(None), rules.rights(Some(&C)), "no id, no rights");
        }
        for host in [Some(&A), Some(&C), None] {
            assert_eq!(two().rights(host), Rights::ALL, "registrants alone bar nobody");
        }
    }

    /// The same figures, the group of the reservation commands.
    #[test]
    fn reservation_commands_are_those_of_the_table() {
        for kind in TYPES {
            for other in TYPES {
                let again = held(kind).acquire(&A, KEY_A, other);
                assert_eq!(again.is_ok(), kind == other, "a holder gets the same again only");
                let registrant = held(kind).acquire(&B, KEY_B, other);
                let may = kind == other && kind.is_all();
                assert_eq!(
                    registrant.is_ok(),
                    may,
                    "{kind:?} {other:?}: of all, each registrant is a holder"
                );
                assert_eq!(held(kind).acquire(&C, 0, other), Err(Refusal::Conflict));
            }
            let victim = if kind.is_all() { 0 } else { KEY_A };
            assert!(held(kind).preempt(&B, KEY_B, victim, kind).is_ok());
            assert_eq!(held(kind).preempt(&C, 0, victim, kind), Err(Refusal::Conflict));
            assert!(held(kind).release(&B, KEY_B, Some(kind)).is_ok());
            assert_eq!(held(kind).release(&C, 0, Some(kind)), Err(Refusal::Conflict));
            assert!(held(kind).clear(&B, KEY_B).is_ok());
            assert_eq!(held(kind).clear(&C, 0), Err(Refusal::Conflict));
            let new = Registration::Register { new: 7 };
            assert!(held(kind).register(&C, None, new).is_ok(), "anybody registers");
            // Each needs its own key.
            assert_eq!(held(kind).acquire(&A, KEY_B, kind), Err(Refusal::Conflict));
            assert_eq!(held(kind).preempt(&B, KEY_A, KEY_A, kind), Err(Refusal::Conflict));
            assert_eq!(held(kind).release(&A, KEY_B, Some(kind)), Err(Refusal::Conflict));
            assert_eq!(held(kind).clear(&A, KEY_B), Err(Refusal::Conflict));
        }
    }

    #[test]
    fn keys_are_registered_replaced_and_checked() {
        let mut rules = two();
        let mut run = |host: &HostId, current, what| rules.register(host, current, what).map(|_| ());
        let (register, replace) = (
            |new| Registration::Register { new },
            |new| Registration::Replace { new },
        );
        let gone = Registration::Unregister;
        assert_eq!(run(&A, None, register(KEY_A)), Ok(()), "the same key again");
        assert_eq!(run(&A, None, register(1)), Err(Refusal::Conflict));
        assert_eq!(run(&A, Some(1), replace(2)), Err(Refusal::Conflict));
        assert_eq!(run(&A, Some(KEY_A), replace(2)), Ok(()));
        assert_eq!(run(&A, None, replace(3)), Ok(()), "whatever the key was");
        assert_eq!(run(&C, Some(0), replace(4)), Err(Refusal::Conflict));
        assert_eq!(run(&C, None, replace(4)), Ok(()), "even if there was none");
        assert_eq!(run(&A, Some(2), gone), Err(Refusal::Conflict));
        assert_eq!(run(&A, Some(3), gone), Ok(()));
        assert_eq!(run(&A, Some(3), gone), Err(Refusal::Conflict), "no registrant");
        assert_eq!(run(&A, None, gone), Err(Refusal::Conflict), "whatever its key");
        assert_eq!(run(&C, None, gone), Ok(()));
        assert_eq!(reported(&rules), (0, 8, vec![(0xb, false)]));
    }

    #[test]
    fn who_unregisters_holds_nothing_any_more() {
        for kind in TYPES {
            let mut rules = held(kind);
            let effect = rules.register(&A, Some(KEY_A), Registration::Unregister);
            let released = matches!(kind, WriteExclusiveRegistrants | ExclusiveAccessRegistrants);
            let told = told(if released {
                &[(B, ReservationReleased)]
            } else {
                &[]
            });
            assert_eq!(effect, Ok(told), "{kind:?}");
            assert_eq!(rules.is_held(), kind.is_all(), "B holds what all hold");
            rules
                .register(&B, Some(KEY_B), Registration::Unregister)
                .expect("a registrant");
            assert!(!rules.is_held(), "{kind:?}: nobody is left");
        }
    }

    #[test]
    fn a_reservation_is_released_by_a_holder_who_knows_its_type() {
        for kind in TYPES {
            let mut rules = held(kind);
            for other in TYPES
                .into_iter()
                .filter(|&other| other != kind)
                .map(Some)
                .chain([None])
            {
                assert_eq!(rules.release(&A, KEY_A, other), Err(Refusal::Invalid));
            }
            if !kind.is_all() {
                // Whatever type it says: it has no effect.
                assert_eq!(rules.release(&B, KEY_B, None), Ok(Effect::default()));
            }
            assert!(rules.is_held());
            let silent = matches!(kind, WriteExclusive | ExclusiveAccess);
            let told = told(if silent { &[] } else { &[(B, ReservationReleased)] });
            assert_eq!(rules.release(&A, KEY_A, Some(kind)), Ok(told), "{kind:?}");
            assert_eq!(rules.rights(None), Rights::ALL);
            assert_eq!(
                rules.release(&A, KEY_A, None),
                Ok(Effect::default()),
                "there is none"
            );
            assert_eq!(reported(&rules), (0, 2, vec![(0xa, false), (0xb, false)]));
        }
    }

    #[test]
    fn clearing_leaves_nothing_and_tells_everybody_else() {
        for kind in TYPES {
            let mut rules = held(kind);
            assert_eq!(rules.clear(&B, KEY_B), Ok(told(&[(A, ReservationPreempted)])));
            assert_eq!(reported(&rules), (0, 3, vec![]));
        }
    }

    /// Every type before, every type after.
    #[test]
    fn preempting_the_holder_takes_the_reservation_at_once() {
        for before in TYPES {
            for after in TYPES {
                let mut rules = held(before);
                register(&mut rules, C, KEY_B);
                let victim = if before.is_all() { 0 } else { KEY_A };
                let effect = rules.preempt(&B, KEY_B, victim, after);
                let mut notices = vec![(A, RegistrationPreempted)];
                let mut gone = vec![A];
                if before.is_all() {
                    notices.push((C, RegistrationPreempted));
                    gone.push(C);
                } else if before != after {
                    notices.push((C, ReservationReleased));
                }
                assert_eq!(effect, Ok(preempted(&notices, &gone)), "{before:?} {after:?}");
                let mut left = vec![(0xb, true)];
                if !before.is_all() {
                    left.push((0xc, after.is_all()));
                }
                assert_eq!(reported(&rules), (after as u8, 4, left));
            }
        }
    }

    #[test]
    fn a_holder_preempts_itself_to_change_the_type() {
        for before in TYPES.into_iter().filter(|kind| !kind.is_all()) {
            for after in TYPES {
                let mut rules = held(before);
                let changed = before != after;
                let told = told(if changed { &[(B, ReservationReleased)] } else { &[] });
                assert_eq!(rules.preempt(&A, KEY_A, KEY_A, after), Ok(told));
                let left = vec![(0xa, true), (0xb, after.is_all())];
                assert_eq!(reported(&rules), (after as u8, 3, left));
            }
        }
    }

    #[test]
    fn preempting_others_than_the_holder_leaves_the_reservation() {
        for kind in TYPES {
            let mut rules = held(kind);
            register(&mut rules, C, KEY_B);
            let both = [(B, RegistrationPreempted), (C, RegistrationPreempted)];
            let effect = rules.preempt(&A, KEY_A, KEY_B, ExclusiveAccess);
            assert_eq!(effect, Ok(preempted(&both, &[B, C])), "{kind:?}");
            assert_eq!(reported(&rules), (kind as u8, 4, vec![(0xa, true)]));
            let nobody = rules.preempt(&A, KEY_A, KEY_B, kind);
            assert_eq!(nobody, Err(Refusal::Conflict), "nobody has the key");
            assert_eq!(reported(&rules).1, 4, "what is refused is not counted");
        }
    }

    #[test]
    fn who_preempts_its_own_key_goes_too_unless_it_takes_the_reservation() {
        for kind in TYPES {
            let mut rules = held(kind);
            register(&mut rules, C, KEY_B);
            let effect = rules.preempt(&B, KEY_B, KEY_B, kind);
            let told = preempted(&[(C, RegistrationPreempted)], &[C]);
            assert_eq!(effect, Ok(told), "nobody tells a host what it did itself");
            assert_eq!(reported(&rules), (kind as u8, 4, vec![(0xa, true)]));
        }
        let mut rules = Reservations::default();
        register(&mut rules, A, KEY_A);
        rules.acquire(&A, KEY_A, WriteExclusiveAll).expect("a registrant");
        rules
            .preempt(&A, KEY_A, KEY_A, WriteExclusiveAll)
            .expect("a registrant");
        assert_eq!(reported(&rules), (0, 2, vec![]), "the last holder is gone");
    }

    #[test]
    fn without_a_reservation_preempting_only_unregisters() {
        let mut rules = two();
        let effect = rules.preempt(&A, KEY_A, KEY_B, WriteExclusive);
        assert_eq!(effect, Ok(preempted(&[(B, RegistrationPreempted)], &[B])));
        assert_eq!(reported(&rules), (0, 3, vec![(0xa, false)]));
        assert_eq!(
            rules.preempt(&A, KEY_A, 0, WriteExclusive),
            Err(Refusal::Conflict)
        );
    }

    #[test]
    fn no_key_preempts_nobody_where_one_host_holds() {
        for kind in TYPES.into_iter().filter(|kind| !kind.is_all()) {
            assert_eq!(held(kind).preempt(&B, KEY_B, 0, kind), Err(Refusal::Invalid));
            // Unless it is the holder's.
            let mut rules = Reservations::default();
            register(&mut rules, A, 0);
            register(&mut rules, B, KEY_B);
            rules.acquire(&A, 0, kind).expect("a registrant");
            assert!(rules.preempt(&B, KEY_B, 0, kind).is_ok());
            assert_eq!(reported(&rules).2, vec![(0xb, true)]);
        }
    }

    #[test]
    fn a_report_is_cut_off_and_says_which_controller() {
        let rules = held(WriteExclusive);
        let whole = rules.report(usize::MAX, &|host| (*host == A).then_some(0x102));
        assert_eq!(whole.len(), 3 * 64);
        assert_eq!(
            whole[..10],
            [2, 0, 0, 0, 1, 2, 0, 0, 0, 0],
            "2 changes, type 1, 2 registrants, no PTPL"
        );
        assert_eq!(whole[64..67], [2, 1, 1]);
        assert_eq!(whole[72..80], KEY_A.to_le_bytes());
        assert_eq!(whole[80..96], A);
        assert_eq!(whole[128..131], [0xfd, 0xff, 0], "B has no controller");
        for bytes_max in 4..200 {
            let report = rules.report(bytes_max, &|host| (*host == A).then_some(0x102));
            assert_eq!(report, whole[..bytes_max.min(192)]);
        }
    }

    #[test]
    fn registrants_are_bounded() {
        let mut rules = Reservations::default();
        let host = |number: usize| u128::to_le_bytes(number as u128 + 1);
        for number in 0..REGISTRANTS_MAX {
            register(&mut rules, host(number), 1);
        }
        let one_more = rules.register(&A, None, Registration::Register { new: 1 });
        assert_eq!(one_more, Err(Refusal::Full));
        assert!(
            rules
                .register(&host(0), Some(1), Registration::Replace { new: 2 })
                .is_ok()
        );
    }
}

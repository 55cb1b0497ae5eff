//! Reservations of one namespace (Base §8.19): which hosts are registered, who holds the namespace, what each may do, and
//! who is told of a change. A pure state machine; no session speaks it yet, so Identify does not offer it.
//!
//! A host is known by its 128-bit id, whatever number of controllers it has. Nothing persists through a power loss.
//!
//! Invariants:
//! - A reservation has a holder: a registered host, or, of the types for all registrants, every registered host.
//! - A command that is refused changes nothing.
//! - At most [`REGISTRANTS_MAX`] hosts are registered.

use std::collections::{BTreeMap, VecDeque};

use super::proto::{Status, put, u64_at};

/// Hosts that may be registered; one more is refused with "internal error", as there is no status for it.
pub const REGISTRANTS_MAX: usize = 1024;
/// Notifications kept per controller; the oldest go first, which the count in the log page shows.
pub const NOTICES_MAX: usize = 64;
/// Bytes of the data of Register and Acquire, and of Release (Base §7.2 to §7.4).
pub const KEYS_BYTES: usize = 16;
/// See [`KEYS_BYTES`].
pub const KEY_BYTES: usize = 8;
/// Bytes of the extended report's header, and of each registrant in it (Base §7.5).
const REPORT_BYTES: usize = 64;
/// Bytes of the notification log page (Base §5.16.1.24).
pub const NOTICE_PAGE_BYTES: usize = 64;
/// "Ignore existing key" in dword 10.
const IGNORE_KEY: u32 = 1 << 3;

/// A host's 128-bit id, as Connect gives it.
pub type HostId = [u8; 16];

/// What a reservation forbids to whom (`RTYPE`; Base §8.19.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// Only the holder changes.
    WriteExclusive = 1,
    /// Only the holder reads and changes.
    ExclusiveAccess = 2,
    /// Only registered hosts change; one holds.
    WriteExclusiveRegistrants = 3,
    /// Only registered hosts read and change; one holds.
    ExclusiveAccessRegistrants = 4,
    /// Only registered hosts change; all of them hold.
    WriteExclusiveAll = 5,
    /// Only registered hosts read and change; all of them hold.
    ExclusiveAccessAll = 6,
}

impl Kind {
    /// Every type.
    pub const ALL: [Self; 6] = [
        Self::WriteExclusive,
        Self::ExclusiveAccess,
        Self::WriteExclusiveRegistrants,
        Self::ExclusiveAccessRegistrants,
        Self::WriteExclusiveAll,
        Self::ExclusiveAccessAll,
    ];

    fn of(dw10: u32) -> Option<Self> {
        let number = (dw10 >> 8) as u8;
        Self::ALL.into_iter().find(|&kind| kind as u8 == number)
    }

    /// Every registered host holds it.
    const fn all_hold(self) -> bool {
        matches!(self, Self::WriteExclusiveAll | Self::ExclusiveAccessAll)
    }

    /// Hosts that do not hold it may not even read.
    const fn forbids_reads(self) -> bool {
        matches!(
            self,
            Self::ExclusiveAccess | Self::ExclusiveAccessRegistrants | Self::ExclusiveAccessAll
        )
    }

    /// Registered hosts may do what the holder may, so that its end concerns them.
    const fn serves_registrants(self) -> bool {
        !matches!(self, Self::WriteExclusive | Self::ExclusiveAccess)
    }
}

/// A reservation command whose form is right. A key of `None` is not compared ("ignore existing key").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Register with a key.
    Register {
        /// The host's key from now on.
        key: u64,
    },
    /// Take the registration back.
    Unregister {
        /// The host's key.
        current: Option<u64>,
    },
    /// Change the key.
    Replace {
        /// The host's key so far.
        current: Option<u64>,
        /// The host's key from now on.
        key: u64,
    },
    /// Take the reservation, if nobody has it.
    Acquire {
        /// The host's key.
        current: u64,
        /// The type wanted.
        kind: Kind,
    },
    /// Remove other registrations, and the reservation with its holder's.
    Preempt {
        /// The host's key.
        current: u64,
        /// Whose registrations go: those with this key.
        key: u64,
        /// The type wanted, if the reservation goes.
        kind: Kind,
        /// What the hosts that go have under way is to be aborted.
        abort: bool,
    },
    /// Give the reservation up.
    Release {
        /// The host's key.
        current: u64,
        /// Its type.
        kind: Option<Kind>,
    },
    /// Remove the reservation and all registrations.
    Clear {
        /// The host's key.
        current: u64,
    },
}

impl Command {
    /// Reservation Register (Base §7.3) from dword 10 and its data.
    ///
    /// # Errors
    /// An unknown action, persistence through power loss, or data of another length.
    pub fn register(dw10: u32, data: &[u8]) -> Result<Self, Status> {
        let (current, key) = keys(data)?;
        let current = (dw10 & IGNORE_KEY == 0).then_some(current);
        // CPTPL: no change, or "releases on power loss" which is so anyway; the others cannot be done.
        if !matches!(dw10 >> 30, 0b00 | 0b10) {
            return Err(Status::INVALID_FIELD.dnr());
        }
        match dw10 & 7 {
            0 => Ok(Self::Register { key }),
            1 => Ok(Self::Unregister { current }),
            2 => Ok(Self::Replace { current, key }),
            _ => Err(Status::INVALID_FIELD.dnr()),
        }
    }

    /// Reservation Acquire (Base §7.2) from dword 10 and its data.
    ///
    /// # Errors
    /// An unknown action or type, "ignore existing key", or data of another length.
    pub fn acquire(dw10: u32, data: &[u8]) -> Result<Self, Status> {
        let (current, key) = keys(data)?;
        let kind = Kind::of(dw10).filter(|_| dw10 & IGNORE_KEY == 0);
        match (dw10 & 7, kind) {
            (0, Some(kind)) => Ok(Self::Acquire { current, kind }),
            (action @ (1 | 2), Some(kind)) => Ok(Self::Preempt {
                current,
                key,
                kind,
                abort: action == 2,
            }),
            _ => Err(Status::INVALID_FIELD.dnr()),
        }
    }

    /// Reservation Release (Base §7.4) from dword 10 and its data.
    ///
    /// # Errors
    /// An unknown action, "ignore existing key", or data of another length.
    pub fn release(dw10: u32, data: &[u8]) -> Result<Self, Status> {
        if data.len() != KEY_BYTES {
            return Err(Status::SGL_LENGTH.dnr());
        }
        let current = u64_at(data, 0);
        match dw10 & (IGNORE_KEY | 7) {
            0 => Ok(Self::Release {
                current,
                kind: Kind::of(dw10),
            }),
            1 => Ok(Self::Clear { current }),
            _ => Err(Status::INVALID_FIELD.dnr()),
        }
    }
}

fn keys(data: &[u8]) -> Result<(u64, u64), Status> {
    if data.len() != KEYS_BYTES {
        return Err(Status::SGL_LENGTH.dnr());
    }
    Ok((u64_at(data, 0), u64_at(data, 8)))
}

/// What a host is told (Base §5.16.1.24).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Notice {
    /// Its registration was removed by another host.
    RegistrationPreempted = 1,
    /// The reservation is gone, or has another type.
    ReservationReleased = 2,
    /// The reservation and its registration were cleared by another host.
    ReservationPreempted = 3,
}

/// What a command did besides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effect {
    /// Whom to tell what: every controller of the host.
    pub notices: Vec<(HostId, Notice)>,
    /// Whose commands are to be aborted before the command is answered.
    pub aborted: Vec<HostId>,
}

/// What a host may do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Everything.
    Full,
    /// Commands that change data, or flush, are answered with "reservation conflict".
    ReadOnly,
    /// Reads and compares too.
    Nothing,
}

/// Registrations and the reservation of one namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reservations {
    generation: u32,
    /// Hosts with their keys.
    registrants: BTreeMap<HostId, u64>,
    /// The reservation, and who holds it unless all do.
    held: Option<(Kind, Option<HostId>)>,
}

impl Reservations {
    /// Nobody is registered.
    pub const fn new() -> Self {
        Self {
            generation: 0,
            registrants: BTreeMap::new(),
            held: None,
        }
    }

    /// The reservation's type.
    pub fn kind(&self) -> Option<Kind> {
        self.held.map(|(kind, _)| kind)
    }

    /// True if the host holds the reservation.
    pub fn holds(&self, host: &HostId) -> bool {
        match self.held {
            None => false,
            Some((_, Some(holder))) => holder == *host,
            Some((_, None)) => self.registrants.contains_key(host),
        }
    }

    /// What a host may do (Base §8.19.1, "Command Behavior in the Presence of a Reservation").
    pub fn access(&self, host: &HostId) -> Access {
        let Some(kind) = self.kind() else {
            return Access::Full;
        };
        let shares = kind.serves_registrants() && self.registrants.contains_key(host);
        match kind.forbids_reads() {
            _ if shares || self.holds(host) => Access::Full,
            true => Access::Nothing,
            false => Access::ReadOnly,
        }
    }

    /// Carries out a command of a host.
    ///
    /// # Errors
    /// "Reservation conflict" if the host, its key or the reservation does not allow it; "invalid field" for a type that
    /// is not the reservation's, or no key to preempt.
    pub fn carry_out(&mut self, host: HostId, command: Command) -> Result<Effect, Status> {
        let mut effect = Effect::default();
        match command {
            Command::Register { key } => self.register(host, key)?,
            Command::Unregister { current } => {
                self.check(&host, current)?;
                self.unregister(host, &mut effect);
            }
            Command::Replace { current, key } => {
                self.check(&host, current)?;
                self.registrants.insert(host, key);
            }
            Command::Acquire { current, kind } => {
                self.check(&host, Some(current))?;
                return self.acquire(host, kind).map(|()| effect);
            }
            Command::Preempt {
                current,
                key,
                kind,
                abort,
            } => {
                self.check(&host, Some(current))?;
                self.preempt(host, key, kind, &mut effect)?;
                if abort {
                    let gone = effect.notices.iter();
                    let gone = gone.filter(|(_, notice)| *notice == Notice::RegistrationPreempted);
                    effect.aborted = gone.map(|(host, _)| *host).collect();
                }
            }
            Command::Release { current, kind } => {
                self.check(&host, Some(current))?;
                return self.release(host, kind, &mut effect).map(|()| effect);
            }
            Command::Clear { current } => {
                self.check(&host, Some(current))?;
                self.held = None;
                self.tell_others(&host, Notice::ReservationPreempted, &mut effect);
                self.registrants.clear();
            }
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(effect)
    }

    /// The host is registered, with this key if one is given.
    fn check(&self, host: &HostId, key: Option<u64>) -> Result<(), Status> {
        match self.registrants.get(host) {
            Some(have) if key.is_none_or(|key| key == *have) => Ok(()),
            _ => Err(Status::RESERVATION_CONFLICT.dnr()),
        }
    }

    fn register(&mut self, host: HostId, key: u64) -> Result<(), Status> {
        match self.registrants.get(&host) {
            Some(have) if *have == key => Ok(()),
            Some(_) => Err(Status::RESERVATION_CONFLICT.dnr()),
            None if self.registrants.len() == REGISTRANTS_MAX => Err(Status::INTERNAL),
            None => {
                self.registrants.insert(host, key);
                Ok(())
            }
        }
    }

    /// Takes a host off the books; the reservation goes with its only holder.
    fn unregister(&mut self, host: HostId, effect: &mut Effect) {
        self.registrants.remove(&host);
        let Some((kind, holder)) = self.held else {
            return;
        };
        let ends = match holder {
            Some(holder) => holder == host,
            None => self.registrants.is_empty(),
        };
        if ends {
            self.held = None;
            if kind.serves_registrants() {
                self.tell_others(&host, Notice::ReservationReleased, effect);
            }
        }
    }

    fn acquire(&mut self, host: HostId, kind: Kind) -> Result<(), Status> {
        match self.held {
            None => {
                self.hold(host, kind);
                Ok(())
            }
            Some((held, _)) if held == kind && self.holds(&host) => Ok(()),
            Some(_) => Err(Status::RESERVATION_CONFLICT.dnr()),
        }
    }

    fn hold(&mut self, host: HostId, kind: Kind) {
        self.held = Some((kind, (!kind.all_hold()).then_some(host)));
    }

    /// Preempt (Base §8.19.7).
    fn preempt(&mut self, host: HostId, key: u64, kind: Kind, effect: &mut Effect) -> Result<(), Status> {
        let takes_over = match self.held {
            None => false,
            Some((_, None)) => key == 0,
            Some((_, Some(holder))) => self.registrants.get(&holder) == Some(&key),
        };
        if let Some((held, holder)) = self.held.filter(|_| takes_over) {
            let all = holder.is_none();
            self.hold(host, kind);
            self.remove(|other, have| *other != host && (all || have == key), effect);
            if held != kind {
                self.tell_others(&host, Notice::ReservationReleased, effect);
            }
            return Ok(());
        }
        if key == 0 && self.held.is_some() {
            return Err(Status::INVALID_FIELD.dnr());
        }
        if !self.registrants.values().any(|have| *have == key) {
            return Err(Status::RESERVATION_CONFLICT.dnr());
        }
        // Also its own registration, of which it need not be told.
        self.remove(|_, have| have == key, effect);
        effect.notices.retain(|(other, _)| *other != host);
        if self.registrants.is_empty() {
            self.held = None;
        }
        Ok(())
    }

    /// Removes registrations, and tells their hosts.
    fn remove(&mut self, goes: impl Fn(&HostId, u64) -> bool, effect: &mut Effect) {
        self.registrants.retain(|host, key| {
            let goes = goes(host, *key);
            if goes {
                effect.notices.push((*host, Notice::RegistrationPreempted));
            }
            !goes
        });
    }

    fn release(&mut self, host: HostId, kind: Option<Kind>, effect: &mut Effect) -> Result<(), Status> {
        let Some((held, _)) = self.held.filter(|_| self.holds(&host)) else {
            // Who does not hold it has nothing to release, which is no mistake.
            return Ok(());
        };
        if kind != Some(held) {
            return Err(Status::INVALID_FIELD.dnr());
        }
        self.held = None;
        if held.serves_registrants() {
            self.tell_others(&host, Notice::ReservationReleased, effect);
        }
        Ok(())
    }

    fn tell_others(&self, host: &HostId, notice: Notice, effect: &mut Effect) {
        let others = self.registrants.keys().filter(|other| *other != host);
        effect.notices.extend(others.map(|other| (*other, notice)));
    }

    /// The data of Reservation Report (Base §7.5), extended as 128-bit host ids demand: one entry for each registered host,
    /// under the controller id that `controller_of` gives, 0xffff for a host that has none now.
    pub fn report(&self, controller_of: impl Fn(&HostId) -> u16) -> Vec<u8> {
        let mut page = vec![0; REPORT_BYTES * (1 + self.registrants.len())];
        put(&mut page, 0, &self.generation.to_le_bytes());
        page[4] = self.kind().map_or(0, |kind| kind as u8);
        put(&mut page, 5, &(self.registrants.len() as u16).to_le_bytes());
        let entries = page.chunks_exact_mut(REPORT_BYTES).skip(1);
        for ((host, key), entry) in self.registrants.iter().zip(entries) {
            put(entry, 0, &controller_of(host).to_le_bytes());
            entry[2] = u8::from(self.holds(host));
            put(entry, 8, &key.to_le_bytes());
            put(entry, 16, host);
        }
        page
    }
}

/// Notifications of one controller that its host has not read (Base §5.16.1.24).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NoticeLog {
    waiting: VecDeque<(u64, Notice)>,
    /// Notifications so far.
    count: u64,
    /// Bits of the notices that are not wanted (feature 0x82): bit 1 to bit 3, as the notices are numbered.
    mask: u32,
}

impl NoticeLog {
    /// Sets which notices are not wanted.
    pub fn set_mask(&mut self, mask: u32) {
        self.mask = mask;
    }

    /// Which notices are not wanted.
    pub fn mask(&self) -> u32 {
        self.mask
    }

    /// Notes a notice; true if the host is to be told that there is something to read.
    pub fn push(&mut self, notice: Notice) -> bool {
        if self.mask >> notice as u32 & 1 != 0 {
            return false;
        }
        // Zero is an empty page's, so the count goes on behind it with one.
        self.count = self.count.checked_add(1).unwrap_or(1);
        if self.waiting.len() == NOTICES_MAX {
            self.waiting.pop_front();
        }
        self.waiting.push_back((self.count, notice));
        true
    }

    /// The log page: the oldest notification, which is then forgotten unless it is to be `retained`, and how many follow.
    pub fn page(&mut self, nsid: u32, retained: bool) -> [u8; NOTICE_PAGE_BYTES] {
        let mut page = [0; NOTICE_PAGE_BYTES];
        let Some(&(count, notice)) = self.waiting.front() else {
            return page;
        };
        put(&mut page, 0, &count.to_le_bytes());
        page[8] = notice as u8;
        page[9] = (self.waiting.len() - 1).min(255) as u8;
        put(&mut page, 12, &nsid.to_le_bytes());
        if !retained {
            self.waiting.pop_front();
        }
        page
    }
}

#[cfg(test)]
#[path = "reservation_tests.rs"]
mod tests;

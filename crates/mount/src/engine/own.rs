//! The engine's own client as one of the processes: what it may use while others have logs, and how it gives that back. All of this is under the
//! lock of the state.
//!
//! As long as no process has a log, the own client has everything, and nothing is asked or noted. From the first process on it *holds* all inodes that
//! there are, as a process holds the numbers of its new inodes, until somebody asks for one ([`fs::lease::Input::Numbers`]).
//!
//! # How a lease is given back
//! The own client's caller may have a cache of its own: the kernel. A lease that is asked back is *leaving*. The cache drops what it has of the inode
//! ([`Cache::let_go`]), which may take calls of the very inode: the kernel writes dirty pages, and waits for pages that a call under way has locked. So a
//! call that comes meanwhile is held, and if the drop does not end soon, the calls that are held are let through under the lease that leaves.
//! What these bring into the cache is dropped, too: before they are let through, one more drop begins, and only the newest drop counts. When it has
//! ended, all that was logged is made durable, and the lease is given back.
//!
//! No drop waits for a call that waits for a lease: a call that may lock pages of a file needs the lease of this file alone, and is held with the lease
//! that leaves, whether it came before or since. A file of which others may read has no pages in the cache: of it only attributes are dropped, for which
//! nobody waits.

use super::failure::Failure;
use super::state::State;
use crate::media::Disks;
use base::{Instant, Machine};
use fs::format::ROOT_INODE;
use fs::grants::Rights;
use fs::lease::{Client, Given, Input, Leases, Mode};
use os::sync::Arc;
use std::collections::{BTreeMap, BTreeSet};

/// Calls that are held are let through if a drop takes longer.
const DROP_SOON: base::Duration = base::Duration::from_micros(300);
/// A drop that begins has so long before what was held is let through.
const DROP_BEGINS: base::Duration = base::Duration::from_micros(100);

/// What the caller of the engine's own client keeps of files, such as the kernel of a mount.
pub trait Cache: Send + Sync {
    /// The first process has a log from now on: names that were told before count no more.
    fn begin(&self);
    /// Whether names can be dropped by [`Self::begin`]. If not, none are to be kept.
    fn may_keep_names(&self) -> bool;
    /// What is kept of an inode is to go: its attributes, and if it `has_pages` its content, too. When it has gone, [`Engine::dropped`](super::Engine::dropped) is told the same numbers. This does not wait.
    fn let_go(&self, inode: u64, number: u64, has_pages: bool);
}

/// Leases that a call of the own client has for its time.
pub type Pins = Vec<(u64, Mode)>;
/// Goes on with a call that has waited, when it has these leases, or is to look again. It neither waits nor takes the lock of the state.
pub type Resume = Box<dyn FnOnce(Pins) + Send>;

/// What a call needs of leases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wants {
    /// Inodes, and what of.
    pub leases: Vec<(u64, Mode)>,
    /// The caller's cache may wait for the call when it drops the first of them.
    pub is_cached: bool,
}

impl Wants {
    /// Whether the cache may wait for the call when it drops an inode.
    fn locks(&self, inode: u64) -> bool {
        self.is_cached && self.leases.iter().any(|(of, _)| *of == inode)
    }
}

/// A lease that is used, and how often.
#[derive(Default)]
struct Pin {
    count: u32,
    /// It was asked back, and whether a shared one may stay.
    recalled: Option<bool>,
    /// Calls that came since.
    held: Vec<(Wants, Resume)>,
}

/// A lease on its way back.
struct Leaving {
    keeps_shared: bool,
    /// The cache may have what the inode holds, and not only what it is.
    has_pages: bool,
    is_exclusive: bool,
    /// The newest drop, and when it began.
    number: u64,
    began: Instant,
    /// Calls that came since, and whether the cache may wait for them.
    held: Vec<(Wants, Resume)>,
    /// Calls that came before: they are let through at a time.
    through: Vec<(Wants, Resume)>,
}

impl Leaving {
    /// When calls are let through, if there `are_asked` some beside those that are held.
    fn deadline(&self, are_asked: bool) -> Option<Instant> {
        let is_cached = |(wants, _): &(Wants, Resume)| wants.is_cached;
        match self.through.is_empty() {
            // No drop waits for calls, and they may not have their way under a shared lease.
            _ if !self.is_exclusive => None,
            false => Some(self.began + DROP_BEGINS),
            true if are_asked || self.held.iter().any(is_cached) => Some(self.began + DROP_SOON),
            true => None,
        }
    }
}

/// The own client while others may have logs.
pub(crate) struct Own {
    pub client: Client,
    pub cache: Arc<dyn Cache>,
    /// Others have logs.
    pub is_shared: bool,
    pins: BTreeMap<u64, Pin>,
    leaving: BTreeMap<u64, Leaving>,
    asked: BTreeMap<u64, (Wants, Resume)>,
    /// Directories whose entries the cache may have.
    listed: BTreeSet<u64>,
    next_number: u64,
}

impl Own {
    pub fn new(client: Client, cache: Arc<dyn Cache>) -> Self {
        Self {
            client,
            cache,
            is_shared: false,
            pins: BTreeMap::new(),
            leaving: BTreeMap::new(),
            asked: BTreeMap::new(),
            listed: BTreeSet::new(),
            next_number: 0,
        }
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// Whether a new call may use an inode so.
    fn may(&self, leases: &Leases, (inode, mode): (u64, Mode)) -> bool {
        let is_there = leases.mode(self.client, inode).is_some_and(|has| has >= mode);
        let is_recalled = self.pins.get(&inode).is_some_and(|pin| pin.recalled.is_some());
        let is_leaving = self
            .leaving
            .get(&inode)
            .is_some_and(|leaving| mode == Mode::Exclusive || !leaving.keeps_shared);
        is_there && !is_recalled && !is_leaving
    }

    fn pin(&mut self, leases: &[(u64, Mode)]) {
        for (inode, _) in leases {
            self.pins.entry(*inode).or_default().count += 1;
        }
    }

    pub fn deadline(&self) -> Option<Instant> {
        let deadline = |(inode, leaving): (&u64, &Leaving)| leaving.deadline(self.has_asked(*inode));
        self.leaving.iter().filter_map(deadline).min()
    }

    /// Calls that wait.
    pub fn waiting(&self) -> usize {
        let leaving = self.leaving.values();
        let pinned = self.pins.values().map(|pin| pin.held.len());
        let leaving = leaving.map(|it| it.held.len() + it.through.len());
        self.asked.len() + pinned.chain(leaving).sum::<usize>()
    }

    /// Whether calls have asked for a lease of an inode that may keep the cache waiting.
    fn has_asked(&self, inode: u64) -> bool {
        self.asked.values().any(|(wants, _)| wants.locks(inode))
    }

    /// Takes these calls.
    fn take_asked(&mut self, inode: u64) -> Vec<(Wants, Resume)> {
        let asked = self.asked.iter().filter(|(_, (wants, _))| wants.locks(inode));
        let asked: Vec<u64> = asked.map(|(request, _)| *request).collect();
        asked
            .into_iter()
            .filter_map(|request| self.asked.remove(&request))
            .collect()
    }

    /// A request is granted.
    pub fn granted(&mut self, request: u64) {
        if let Some((wants, resume)) = self.asked.remove(&request) {
            self.pin(&wants.leases);
            resume(wants.leases);
        }
    }

    /// All calls that wait look again.
    fn release(&mut self) -> impl Iterator<Item = Resume> + use<> {
        self.listed.clear();
        let pinned = std::mem::take(&mut self.pins).into_values();
        let leaving = std::mem::take(&mut self.leaving).into_values();
        let held = leaving.flat_map(|it| it.through.into_iter().chain(it.held));
        let held = held.chain(pinned.flat_map(|pin| pin.held));
        let asked = std::mem::take(&mut self.asked).into_values();
        held.chain(asked).map(|(_, resume)| resume)
    }
}

impl State {
    /// The own client, if others have logs.
    fn own(&mut self) -> Option<&mut Own> {
        self.sharing.own.as_mut().filter(|own| own.is_shared)
    }

    /// Whether others have logs that the own client does not know of by itself.
    pub fn is_shared(&self) -> bool {
        self.sharing.own.as_ref().is_some_and(|own| own.is_shared)
    }

    /// From now on others have logs. The own client has all inodes below a number.
    pub fn begin_sharing(&mut self, below: u64) {
        let Some(own) = &mut self.sharing.own else {
            return;
        };
        own.is_shared = true;
        let client = own.client;
        self.sharing.renew();
        let leases = &mut self.sharing.leases;
        leases.handle(os::now(), Input::Join(client));
        leases.handle(os::now(), Input::Numbers(client, 1..below));
    }

    /// Nobody else has a log any more: the own client has everything.
    pub fn end_sharing(&mut self) {
        let Some(own) = &mut self.sharing.own else {
            return;
        };
        own.is_shared = false;
        let waiting = own.release();
        self.sharing.renew();
        waiting.for_each(|resume| resume(Pins::new()));
    }

    /// Nobody goes on with calls that wait.
    pub fn drop_waiting(&mut self) {
        if let Some(own) = &mut self.sharing.own {
            drop(own.release());
        }
    }

    /// Whether a call may use inodes, with the leases that it has for its time.
    pub fn may(&mut self, pins: &[(u64, Mode)], wants: &Wants) -> Result<(), Failure> {
        let sharing = &self.sharing;
        let Some(own) = sharing.own.as_ref().filter(|own| own.is_shared) else {
            return Ok(());
        };
        let is_pinned = |(inode, mode): (u64, Mode)| {
            let mut same = pins.iter().filter(|(pinned, _)| *pinned == inode);
            same.any(|(_, pinned)| *pinned >= mode)
        };
        let mut all = wants.leases.iter();
        match all.all(|want| is_pinned(*want) || own.may(&sharing.leases, *want)) {
            true => Ok(()),
            false => Err(Failure::Leases(wants.clone())),
        }
    }

    /// Leases that the own client has stay until they are [unpinned](Self::unpin). Nothing if nobody else has any.
    pub fn pin(&mut self, leases: Pins) -> Pins {
        match self.own() {
            Some(own) => {
                own.pin(&leases);
                leases
            }
            None => Pins::new(),
        }
    }

    /// The cache is told entries of a directory.
    pub fn listed(&mut self, inode: u64) {
        if let Some(own) = self.own() {
            own.listed.insert(inode);
        }
    }

    /// Whether the cache may write back what it has of an inode: as long as the lease is there.
    pub fn may_write_back(&self, inode: u64) -> bool {
        let sharing = &self.sharing;
        let own = sharing.own.as_ref().filter(|own| own.is_shared);
        own.is_none_or(|own| sharing.leases.mode(own.client, inode) == Some(Mode::Exclusive))
    }

    /// A call has not what it wants: it goes on when it does.
    pub fn wait_for_leases(&mut self, disks: &Disks, wants: Wants, resume: Resume) {
        let has_all = self.may(&[], &wants).is_ok();
        let Some(own) = self.own().filter(|_| !has_all) else {
            // Things have changed meanwhile.
            return resume(Pins::new());
        };
        let leaves = |(inode, _): &(u64, Mode)| own.leaving.contains_key(inode);
        if let Some((inode, _)) = wants.leases.iter().copied().find(leaves) {
            let leaving = own.leaving.get_mut(&inode).expect("it was found");
            leaving.held.push((wants, resume));
            return;
        }
        let is_recalled =
            |(inode, _): &(u64, Mode)| own.pins.get(inode).is_some_and(|pin| pin.recalled.is_some());
        if let Some((inode, _)) = wants.leases.iter().copied().find(is_recalled) {
            own.pins.entry(inode).or_default().held.push((wants, resume));
            return;
        }
        let request = own.number();
        let (client, leases) = (own.client, wants.leases.clone());
        own.asked.insert(request, (wants, resume));
        let wants = leases;
        self.news(
            disks,
            Input::Ask {
                client,
                request,
                wants,
            },
        );
    }

    /// A call has ended that had leases for its time.
    pub fn unpin(&mut self, disks: &Disks, pins: &[(u64, Mode)]) {
        for (inode, _) in pins {
            let Some(own) = self.own() else {
                return;
            };
            let Some(pin) = own.pins.get_mut(inode) else {
                continue;
            };
            pin.count -= 1;
            if pin.count > 0 {
                continue;
            }
            let Pin { recalled, held, .. } = own.pins.remove(inode).unwrap_or_default();
            match own.leaving.get_mut(inode) {
                Some(leaving) => {
                    // It was let through: the drop that counts may have ended meanwhile.
                    leaving.held.extend(held);
                    self.drop_again(*inode);
                }
                None => {
                    if let Some(may_share) = recalled {
                        self.leave(*inode, may_share, held);
                        self.drain(disks);
                    }
                }
            }
        }
    }

    fn drop_again(&mut self, inode: u64) {
        let Some(own) = self.own() else {
            return;
        };
        let number = own.number();
        if let Some(leaving) = own.leaving.get_mut(&inode) {
            (leaving.number, leaving.began) = (number, os::now());
            own.cache.let_go(inode, number, leaving.has_pages);
        }
    }

    /// A lease is asked back.
    pub fn recall(&mut self, inode: u64, may_share: bool) {
        let Some(own) = self.own() else {
            return;
        };
        if let Some(leaving) = own.leaving.get_mut(&inode) {
            leaving.keeps_shared &= may_share;
            return;
        }
        if let Some(pin) = own.pins.get_mut(&inode) {
            pin.recalled = Some(may_share && pin.recalled.unwrap_or(true));
            return;
        }
        self.leave(inode, may_share, Vec::new());
    }

    /// A lease goes back, when the cache has nothing of it.
    fn leave(&mut self, inode: u64, keeps_shared: bool, held: Vec<(Wants, Resume)>) {
        // The kernel knows the root without having looked it up.
        let is_known = inode == ROOT_INODE || self.client.holds(inode);
        let is_cached = is_known || !self.is_durable(self.newest);
        let leases = &self.sharing.leases;
        let Some(own) = self.sharing.own.as_mut().filter(|own| own.is_shared) else {
            return;
        };
        if !is_cached {
            self.give(inode, keeps_shared);
            return held.into_iter().for_each(|(_, resume)| resume(Pins::new()));
        }
        let is_exclusive = leases.mode(own.client, inode) == Some(Mode::Exclusive);
        let has_pages = is_exclusive || own.listed.contains(&inode);
        if !keeps_shared {
            own.listed.remove(&inode);
        }
        let number = own.number();
        let leaving = Leaving {
            keeps_shared,
            number,
            began: os::now(),
            has_pages,
            is_exclusive,
            held,
            through: Vec::new(),
        };
        own.leaving.insert(inode, leaving);
        own.cache.let_go(inode, number, has_pages);
    }

    /// Gives a lease back. What was logged is durable.
    fn give(&mut self, inode: u64, keeps_shared: bool) {
        let is_open = self.client.holds(inode);
        let position = self.writer.durable_position();
        self.client.let_go(inode);
        let Some(own) = self.own() else {
            return;
        };
        let given = Given {
            inode,
            keeps_shared,
            position,
            is_open,
            // Grants are taken note of when they are made.
            grant: u64::MAX,
        };
        let input = Input::Give(own.client, given);
        self.sharing.leases.handle(os::now(), input);
    }

    /// The cache has dropped what it had of an inode, and all that was logged before is durable. False if it is to be told again.
    pub fn dropped(&mut self, disks: &Disks, inode: u64, number: u64) {
        let Some(own) = self.own() else {
            return;
        };
        let is_newest = own.leaving.get(&inode).is_some_and(|it| it.number == number);
        if !is_newest || own.pins.contains_key(&inode) {
            return;
        }
        let leaving = own.leaving.remove(&inode).expect("it was looked at");
        self.give(inode, leaving.keeps_shared);
        for (_, resume) in leaving.through.into_iter().chain(leaving.held) {
            resume(Pins::new());
        }
        self.drain(disks);
    }

    /// Time has passed: drops that wait for calls get them.
    pub fn let_through(&mut self) {
        let now = os::now();
        let Some(own) = self.own() else {
            return;
        };
        let is_due = |(inode, leaving): &(&u64, &Leaving)| {
            let due = leaving.deadline(own.has_asked(**inode));
            due.is_some_and(|due| due <= now)
        };
        let due: Vec<u64> = own
            .leaving
            .iter()
            .filter(is_due)
            .map(|(inode, _)| *inode)
            .collect();
        for inode in due {
            let asked = own.take_asked(inode);
            let leaving = own.leaving.get_mut(&inode).expect("it was found");
            leaving.held.extend(asked);
            if leaving.through.is_empty() {
                // A drop that begins now has all that these calls have brought.
                let (through, held) = std::mem::take(&mut leaving.held)
                    .into_iter()
                    .partition(|(wants, _)| wants.is_cached);
                (leaving.through, leaving.held) = (through, held);
                let number = own.next_number + 1;
                (leaving.number, leaving.began) = (number, now);
                own.next_number = number;
                own.cache.let_go(inode, number, leaving.has_pages);
                continue;
            }
            for (wants, resume) in std::mem::take(&mut leaving.through) {
                let pins = wants.leases;
                let pin = own.pins.entry(inode).or_default();
                pin.count += 1;
                resume(pins);
            }
        }
    }

    /// Admits what the own client was granted.
    pub fn admit_own(&mut self, inodes: &[u64]) {
        let Some(own) = self.own() else {
            return;
        };
        let client = own.client;
        for inode in inodes {
            let input = Input::Admit(client, *inode, Rights::ALL);
            self.sharing.leases.handle(os::now(), input);
        }
    }

    /// The caller has no use for an inode any more, while others have logs. If it has no name, the digest deletes it when nobody has it open.
    pub fn shut(&mut self, disks: &Disks, inode: u64) {
        let is_lost = self.client.take_lost(inode);
        let Some(own) = self.sharing.own.as_ref().filter(|own| own.is_shared) else {
            return;
        };
        let client = own.client;
        let is_used = own.pins.contains_key(&inode) || own.leaving.contains_key(&inode);
        match self.sharing.leases.mode(client, inode) {
            None => self.news(disks, Input::Shut(client, inode)),
            Some(_) if is_lost && !is_used => {
                // As if it had been given back before.
                let given = Given {
                    inode,
                    keeps_shared: false,
                    position: self.writer.durable_position(),
                    is_open: true,
                    grant: u64::MAX,
                };
                self.sharing.leases.handle(os::now(), Input::Give(client, given));
                self.news(disks, Input::Shut(client, inode));
            }
            Some(_) => {}
        }
    }
}

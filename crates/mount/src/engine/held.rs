//! What the engine's own client has of leases, and who waits: see `own`.

use base::Instant;
use fs::lease::{Client, Leases, Mode};
use os::sync::Arc;
use std::collections::{BTreeMap, BTreeSet};

/// Calls that are held are let through if a drop takes longer.
const DROP_SOON: base::Duration = base::Duration::from_micros(300);
/// A drop that begins has so long before what was held is let through.
const DROP_BEGINS: base::Duration = base::Duration::from_micros(100);

/// What the caller of the engine's own client keeps of files, such as the kernel of a mount.
pub trait Cache: Send + Sync {
    /// All names that were told before count no more, nor do those in answers to what was asked before. This does not wait.
    fn forget_names(&self);
    /// Whether names can be dropped by [`Self::forget_names`]. If not, none are to be kept.
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
    pub(super) fn locks(&self, inode: u64) -> bool {
        self.is_cached && self.leases.iter().any(|(of, _)| *of == inode)
    }
}

/// A lease that is used, and how often.
#[derive(Default)]
pub(super) struct Pin {
    pub(super) count: u32,
    /// It was asked back, and whether a shared one may stay.
    pub(super) recalled: Option<bool>,
    /// Calls that came since.
    pub(super) held: Vec<(Wants, Resume)>,
}

/// A lease on its way back.
pub(super) struct Leaving {
    pub(super) keeps_shared: bool,
    /// The cache may have what the inode holds, and not only what it is.
    pub(super) has_pages: bool,
    pub(super) is_exclusive: bool,
    /// The newest drop, and when it began.
    pub(super) number: u64,
    pub(super) began: Instant,
    /// Calls that came since, and whether the cache may wait for them.
    pub(super) held: Vec<(Wants, Resume)>,
    /// Calls that came before: they are let through at a time.
    pub(super) through: Vec<(Wants, Resume)>,
}

impl Leaving {
    /// When calls are let through, if there `are_asked` some beside those that are held.
    pub(super) fn deadline(&self, are_asked: bool) -> Option<Instant> {
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
    pub(super) pins: BTreeMap<u64, Pin>,
    pub(super) leaving: BTreeMap<u64, Leaving>,
    pub(super) asked: BTreeMap<u64, (Wants, Resume)>,
    /// Directories whose entries the cache may have.
    pub(super) listed: BTreeSet<u64>,
    /// Directories of which the cache may have names since the last were forgotten.
    pub(super) named: BTreeSet<u64>,
    pub(super) next_number: u64,
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
            named: BTreeSet::new(),
            next_number: 0,
        }
    }

    pub(super) fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// Whether a new call may use an inode so.
    pub(super) fn may(&self, leases: &Leases, (inode, mode): (u64, Mode)) -> bool {
        let is_there = leases.mode(self.client, inode).is_some_and(|has| has >= mode);
        let is_recalled = self.pins.get(&inode).is_some_and(|pin| pin.recalled.is_some());
        let is_leaving = self
            .leaving
            .get(&inode)
            .is_some_and(|leaving| mode == Mode::Exclusive || !leaving.keeps_shared);
        is_there && !is_recalled && !is_leaving
    }

    pub(super) fn pin(&mut self, leases: &[(u64, Mode)]) {
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
    pub(super) fn has_asked(&self, inode: u64) -> bool {
        self.asked.values().any(|(wants, _)| wants.locks(inode))
    }

    /// Takes these calls.
    pub(super) fn take_asked(&mut self, inode: u64) -> Vec<(Wants, Resume)> {
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
    pub(super) fn release(&mut self) -> impl Iterator<Item = Resume> + use<> {
        self.listed.clear();
        self.named.clear();
        let pinned = std::mem::take(&mut self.pins).into_values();
        let leaving = std::mem::take(&mut self.leaving).into_values();
        let held = leaving.flat_map(|it| it.through.into_iter().chain(it.held));
        let held = held.chain(pinned.flat_map(|pin| pin.held));
        let asked = std::mem::take(&mut self.asked).into_values();
        held.chain(asked).map(|(_, resume)| resume)
    }
}

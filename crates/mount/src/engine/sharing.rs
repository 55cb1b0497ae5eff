//! Processes that share the file system: their leases, and what they may read. The machine is [`fs::lease`]; all of this is under the lock of the
//! state.
//!
//! A process may read an inode if it has a lease of it, and has come to it by
//! directories that its user may search. What its user might do when it first asked it may do as long as it lives, as a process
//! that has a file open.

use super::due::{DIGEST_PERCENT, IDLE};
use super::held::Own;
use crate::window::Window;
use base::{Instant, Machine};
use fs::client::access::{APPEND_ONLY, EXECUTE, IMMUTABLE, READ, WRITE};
use fs::client::{Caller, Client as Calls, Failure as CallFailure, Options as CallOptions};
use fs::grants::{Grants, Rights};
use fs::inode::Inode;
use fs::lease::{Client, Leases, Options, Output, Why};
use fs::media::Error;
use fs::overlay::Below;
use os::sync::Arc;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Duration;

/// A lease stays with its holder for so long at least: about twice what a hand-over costs where the first device is memory.
const HOLD: base::Duration = base::Duration::from_micros(200);

/// Whose process it is, as the kernel says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// The process.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Its groups: the first is that of new files.
    pub gids: Vec<u32>,
}

impl Peer {
    pub(super) fn caller(&self) -> Caller<'_> {
        Caller {
            pid: self.pid,
            uid: self.uid,
            gid: self.gids.first().copied().unwrap_or(u32::MAX),
            groups: Some(&self.gids),
            umask: 0,
        }
    }
}

/// The way to a process. No call waits.
pub trait Link: Send + Sync {
    /// Sends a packet, in the order of the calls.
    fn send(&self, packet: Vec<u8>);
    /// Nothing more will be sent, and nothing that comes is heard.
    fn cut(&self);
    /// Whether the process has said something that the engine has not heard yet.
    fn is_unheard(&self) -> bool;
}

/// A process with a log.
pub(crate) struct Session {
    pub peer: Peer,
    pub link: Arc<dyn Link>,
    pub window: Window,
    pub ring_bytes: u64,
    pub numbers: Range<u64>,
    /// Inodes that it has come to, and what it might do with each: [`READ`], [`WRITE`], [`EXECUTE`].
    pub seen: BTreeMap<u64, u32>,
    /// What it is to be told, in order, once what it has told itself is in both roots.
    pub waiting: VecDeque<Output>,
    /// The position that it has told.
    pub told: u64,
    pub tree: u64,
    pub both: u64,
    /// Its log ended there when it was looked at last, and since when.
    pub quiet: (u64, Duration),
    pub closing: Option<Why>,
}

impl Session {
    /// Whether the process has come to an inode.
    pub fn knows(&self, inode: u64) -> bool {
        self.numbers.contains(&inode) || self.seen.contains_key(&inode)
    }
}

/// Inodes that nobody has open are deleted together. From so many on nobody waits for more.
pub(super) const IDLE_MAX: usize = 1024;

/// All processes.
pub(crate) struct Sharing {
    pub leases: Leases,
    /// The engine's own client, if it is used beside others.
    pub own: Option<Own>,
    /// Reads the tree.
    pub calls: Calls,
    pub sessions: BTreeMap<u64, Session>,
    pub idle: BTreeSet<u64>,
    /// Processes that there may be. 0: files are not shared.
    pub slots: u64,
    /// Logs are to be digested.
    pub wants_round: bool,
    /// Somebody waits for both roots.
    pub wants_both: bool,
    pub is_ending: bool,
}

/// What a round of digests has to do.
#[derive(Default)]
pub(crate) struct Round {
    /// Logs, up to where, and which part of the room their processes have heard of.
    pub logs: Vec<(u64, u64, u64)>,
    /// Logs that end, and up to where.
    pub closing: Vec<(u64, u64)>,
    pub idle: Vec<u64>,
    pub wants_both: bool,
    /// Something has changed after the first commit.
    pub wants_one: bool,
}

impl Sharing {
    pub fn new(mark: u64) -> Self {
        Self {
            leases: leases(None),
            own: None,
            calls: Calls::new(mark, CallOptions::default()),
            sessions: BTreeMap::new(),
            idle: BTreeSet::new(),
            slots: 0,
            wants_round: false,
            wants_both: false,
            is_ending: false,
        }
    }

    /// Nobody has leases any more.
    pub fn renew(&mut self) {
        self.leases = leases(self.own.as_ref().map(|own| own.client));
    }

    pub fn refresh(&mut self, client: Client, grants: &mut Grants) {
        self.leases.refresh(client, grants);
    }

    /// What the own log may do: everything, but for what others have open.
    pub fn refresh_own(&mut self, grants: &mut Grants) {
        match self.own.as_ref().filter(|own| own.is_shared) {
            Some(own) => self.leases.refresh(own.client, grants),
            None => grants.open_elsewhere.clear(),
        }
    }

    pub fn deadline(&self) -> Option<Instant> {
        let own = self.own.as_ref().and_then(Own::deadline);
        self.leases.deadline().into_iter().chain(own).min()
    }

    pub fn count(&self) -> usize {
        self.sessions.len()
    }

    /// Whether one more process may come.
    pub fn has_room(&self) -> bool {
        (self.sessions.len() as u64) < self.slots && !self.is_ending
    }

    /// What is to be digested now.
    pub fn round(&mut self) -> Round {
        let mut round = Round {
            wants_both: std::mem::take(&mut self.wants_both),
            idle: std::mem::take(&mut self.idle).into_iter().collect(),
            ..Round::default()
        };
        self.wants_round = false;
        for (log, session) in &self.sessions {
            // First what it has heard: what it promised before is below the end then.
            let heard = session.window.heard();
            let end = session.window.durable().max(session.told);
            // What it says may be a lie: nothing beyond the ring can have been written.
            let end = end.min(session.both.saturating_add(session.ring_bytes));
            match session.closing {
                // Its window was closed before: a call that the process acknowledges has told its position before that.
                Some(_) => round.closing.push((*log, end)),
                None => round.logs.push((*log, end, heard)),
            }
        }
        round.wants_both |= !round.closing.is_empty();
        round
    }

    /// Looks at logs whose processes say nothing: some time has passed.
    pub fn look(&mut self, passed: Duration) {
        self.wants_round |= !self.idle.is_empty();
        for session in self.sessions.values_mut() {
            let end = session.window.durable();
            let (before, since) = session.quiet;
            let since = if before == end {
                since + passed
            } else {
                Duration::ZERO
            };
            session.quiet = (end, since);
            let used = end.saturating_sub(session.tree);
            let is_due = used.saturating_mul(100) >= session.ring_bytes * DIGEST_PERCENT || since >= IDLE;
            self.wants_round |= used > 0 && is_due;
        }
    }
}

fn leases(own: Option<Client>) -> Leases {
    Leases::new(Options {
        hold: HOLD,
        own,
        ..Options::default()
    })
}

/// What a user may do with an inode: bits, and what a log of the user may change of it. Nothing if there is no such inode.
pub(crate) fn permitted(
    calls: &Calls,
    below: &mut Below<'_>,
    caller: &Caller<'_>,
    number: u64,
) -> Result<Option<(Inode, u32, Rights)>, Error> {
    let inode = match calls.stat(below, number) {
        Ok(inode) => inode,
        Err(CallFailure::Tree(error)) => return Err(error),
        Err(_) => return Ok(None),
    };
    let mut mask = 0;
    for bit in [READ, WRITE, EXECUTE] {
        match calls.access(below, caller, (number, bit)) {
            Ok(()) => mask |= bit,
            Err(CallFailure::Tree(error)) => return Err(error),
            Err(_) => {}
        }
    }
    // The digest cannot tell an append from another write.
    let is_free = caller.is_root() || inode.flags & (IMMUTABLE | APPEND_ONLY) == 0;
    Ok(Some((inode, mask, rights(mask, caller.owns(&inode), is_free))))
}

/// An owner could give itself the rights to content at any time.
pub(crate) fn rights(mask: u32, owns: bool, is_free: bool) -> Rights {
    Rights {
        data: is_free && (owns || mask & WRITE != 0),
        names: is_free && (owns || mask & (WRITE | EXECUTE) == WRITE | EXECUTE),
        owner: is_free && owns,
    }
}

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
use super::held::{Leaving, Own, Pins, Resume, Wants};
use super::state::State;
use base::Machine;
use fs::format::ROOT_INODE;
use fs::grants::Rights;
use fs::lease::{Given, Input, Mode};

impl State {
    /// The own client, if others have logs.
    pub(super) fn own(&mut self) -> Option<&mut Own> {
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

    pub(super) fn drop_again(&mut self, inode: u64) {
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
    pub(super) fn leave(&mut self, inode: u64, keeps_shared: bool, held: Vec<(Wants, Resume)>) {
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
    pub(super) fn give(&mut self, inode: u64, keeps_shared: bool) {
        let is_open = self.client.holds(inode);
        let position = self.writer.durable_position();
        self.client.let_go(inode);
        let Some(own) = self.own() else {
            return;
        };
        if !keeps_shared && own.named.contains(&inode) {
            own.named.clear();
            own.cache.forget_names();
        }
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
}

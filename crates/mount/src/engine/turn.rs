//! A call's time under the lock of the state.

use super::digester::BLOCKS_KEPT;
use super::failure::Failure;
use super::held::Wants;
use super::state::State;
use crate::media::Disks;
use fs::client::{Call, Caller, Client, Failure as ClientFailure};
use fs::format::Tier;
use fs::lease::Mode;
use fs::log::Ticket;
use fs::op::Op;
use fs::overlay::Below;
use fs::tree::View;

/// Inodes without a name that are released at once, at most: others wait for the lock, too.
const RELEASED_MAX: usize = 64;

/// What a call found missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(super) digest: bool,
}

/// A call's time under the lock.
pub struct Turn<'t> {
    pub(super) state: &'t mut State,
    pub(super) disks: &'t Disks,
    /// What the call found missing.
    pub(super) wanted: Wanted,
}

impl Turn<'_> {
    /// A call of the client. If it changes something, all see it from now on.
    ///
    /// # Errors
    /// [`Failure`]; then nothing has changed.
    pub fn call<R>(
        &mut self,
        caller: Caller<'_>,
        call: impl FnOnce(&mut Client, &mut Call<'_, '_>) -> Result<R, ClientFailure>,
    ) -> Result<R, Failure> {
        let failure = self.state.failure.clone();
        let State {
            client,
            reader,
            writer,
            newest,
            ..
        } = &mut *self.state;
        let mut below = Below::new(reader, self.disks, View::Pending);
        let mut sink = |ops: &[Op<'_>]| {
            if failure.is_some() {
                return Err(fs::log::AddError::Latched);
            }
            writer.add(ops).inspect(|ticket| *newest = *ticket)
        };
        let mut context = Call {
            caller,
            now: os::since_1970().into(),
            below: &mut below,
            sink: &mut sink,
        };
        let result = call(client, &mut context);
        match (result, failure) {
            // Nothing is digested any more: who waited for room would wait for ever.
            (
                Err(
                    ClientFailure::Latched
                    | ClientFailure::Busy
                    | ClientFailure::Changed
                    | ClientFailure::Digest
                    | ClientFailure::Inodes
                    | ClientFailure::Blocks(_),
                ),
                Some(failure),
            ) => Err(failure),
            (result, _) => result.map_err(|error| self.failed(error)),
        }
    }

    fn failed(&mut self, failure: ClientFailure) -> Failure {
        match failure {
            ClientFailure::Posix(errno) => Failure::Posix(errno),
            ClientFailure::Busy | ClientFailure::Changed => Failure::Busy,
            ClientFailure::Digest | ClientFailure::Inodes => {
                self.state.stalled += 1;
                self.wanted.digest = true;
                Failure::Stalled
            }
            ClientFailure::Blocks(_) if self.state.are_blocks_denied => Failure::NoBlocks,
            ClientFailure::Blocks(wanted) => {
                self.state.blocks_wanted = self.state.blocks_wanted.max(wanted);
                self.wanted.digest = true;
                Failure::Busy
            }
            ClientFailure::TooLong => Failure::TooLong,
            ClientFailure::Latched => Failure::Log,
            ClientFailure::Tree(_) => Failure::Read,
            ClientFailure::Broken => {
                self.state.failure.get_or_insert(Failure::Read);
                Failure::Read
            }
        }
    }

    /// Whether a call may use inodes, with the leases that it has for its time. Always, as long as nobody else has a log.
    ///
    /// # Errors
    /// [`Failure::Leases`].
    pub fn may(&mut self, pins: &[(u64, Mode)], wants: &Wants) -> Result<(), Failure> {
        self.state.may(pins, wants)
    }

    /// Whether the caller's cache may write back what it has of a file, though its lease may be leaving.
    pub fn may_write_back(&self, inode: u64) -> bool {
        self.state.may_write_back(inode)
    }

    /// The caller's cache is told entries of a directory.
    pub fn listed(&mut self, inode: u64) {
        self.state.listed(inode);
    }

    /// Whether others may have logs at some time.
    pub fn may_be_shared(&self) -> bool {
        self.state.sharing.own.is_some()
    }

    /// Whether others have logs.
    pub fn is_shared(&self) -> bool {
        self.state.is_shared()
    }

    /// Whether the caller's cache may keep names of a directory, which it is told now: if others have logs, as long as it has the lease.
    pub fn may_keep_names(&mut self, directory: u64) -> bool {
        let sharing = &mut self.state.sharing;
        let Some(own) = &mut sharing.own else {
            return true;
        };
        if !own.cache.may_keep_names() {
            return false;
        }
        let has_lease = own.is_shared && sharing.leases.mode(own.client, directory).is_some();
        if has_lease {
            own.named.insert(directory);
        }
        !own.is_shared || has_lease
    }

    /// Whether somebody refers to an inode.
    pub fn holds(&self, inode: u64) -> bool {
        self.state.client.holds(inode)
    }

    /// Reads.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn read<R>(
        &mut self,
        read: impl FnOnce(&Client, &mut Below<'_>) -> Result<R, ClientFailure>,
    ) -> Result<R, Failure> {
        let mut below = Below::new(&mut self.state.reader, self.disks, View::Pending);
        let result = read(&self.state.client, &mut below);
        result.map_err(|error| self.failed(error))
    }

    /// So many more refer to an inode.
    pub fn hold(&mut self, inode: u64, count: u64) {
        self.state.client.hold(inode, count);
    }

    /// So many refer to an inode no more.
    ///
    /// # Errors
    /// The tree cannot be read.
    pub fn forget(&mut self, inode: u64, count: u64) -> Result<(), Failure> {
        let State { client, reader, .. } = &mut *self.state;
        let mut below = Below::new(reader, self.disks, View::Pending);
        let result = client.forget(&mut below, inode, count);
        if self.state.is_shared() && !self.state.client.holds(inode) {
            self.state.shut(self.disks, inode);
        }
        result.map_err(|error| self.failed(error))
    }

    /// Deletes some of the inodes that nobody refers to and that have no name. True if there were any.
    ///
    /// # Errors
    /// The log has no room: later.
    pub fn release_lost(&mut self) -> Result<bool, Failure> {
        let mut released = 0;
        while released < RELEASED_MAX && self.state.client.has_lost() {
            let ticket = self.call(Caller::default(), |client, call| client.release_lost(call))?;
            released += usize::from(ticket.is_some());
        }
        Ok(released > 0)
    }

    /// Whether the file system has devices of a tier.
    pub fn has_tier(&self, tier: Tier) -> bool {
        self.state.touches.tiers.contains(&tier)
    }

    /// A file is pinned to a tier from now on, or to none: its data are to move there.
    pub fn pinned(&mut self, inode: u64, tier: Option<Tier>) {
        self.state.touches.pinned(inode, tier);
    }

    /// The frame of the newest call.
    pub fn newest(&self) -> Ticket {
        self.state.newest
    }

    /// True if it is time to grant blocks: half of what is kept is gone.
    pub(super) fn is_short_of_blocks(&mut self) -> bool {
        let is_short = self.state.client.blocks_left() < BLOCKS_KEPT / 2 && !self.state.are_blocks_denied;
        if is_short {
            self.state.blocks_wanted = self.state.blocks_wanted.max(1);
        }
        is_short
    }

    /// Blocks of all devices that are free.
    pub fn free_blocks(&self) -> u64 {
        self.state.free.iter().sum()
    }
}

//! The tier that a file is pinned to: `tier` says what that means.

use super::{Call, Client, Failure};
use crate::errno::Errno;
use crate::format::Tier;
use crate::inode::{TYPE_FILE, TYPE_MASK};
use crate::log::Ticket;
use crate::op::{Action, Changes};

impl Client {
    /// Pins a regular file to a tier, or to none.
    ///
    /// # Errors
    /// It is no regular file, or the caller is not its owner.
    pub fn pin(
        &mut self,
        call: &mut Call<'_, '_>,
        number: u64,
        tier: Option<Tier>,
    ) -> Result<Ticket, Failure> {
        let inode = self.known(call.below, number)?;
        if inode.mode & TYPE_MASK != TYPE_FILE {
            return Err(Errno::NotPermitted.into());
        }
        self.check_owner(call, &inode)?;
        let changes = Changes {
            tier: Some(tier.map_or(0, |tier| tier as u8)),
            ..Changes::default()
        };
        self.commit(call, &[self.op(call, number, Action::Set(changes))])
    }
}

//! The tier that a file is pinned to, as an extended attribute ([`TIER`]): `nvm`, `ssd` or `hdd`. It is kept with the inode, and not listed.

use super::server::{Changed, caller_of};
use crate::engine::{Failure, Turn, tier_name};
use fs::client::XattrMode;
use fs::errno::Errno;
use fs::format::Tier;
use fuse::abi::{InHeader, Reply};

/// The attribute.
pub const TIER: &str = "user.switchyard.tier";

const ALL: [Tier; 3] = [Tier::Memory, Tier::Flash, Tier::Disk];

/// The tier that a file is pinned to.
pub(super) fn pin_of(turn: &mut Turn<'_>, number: u64) -> Result<Option<Tier>, Failure> {
    let inode = turn.read(|client, below| client.stat(below, number))?;
    Ok(Tier::from_u8(inode.tier))
}

/// The value of the attribute.
pub(super) fn value(turn: &mut Turn<'_>, number: u64) -> Result<Vec<u8>, Failure> {
    let pin = pin_of(turn, number)?.ok_or(Errno::NoData)?;
    Ok(tier_name(pin).into())
}

/// Pins a file.
pub(super) fn pin(
    turn: &mut Turn<'_>,
    header: &InHeader,
    value: &[u8],
    mode: XattrMode,
) -> Result<Changed, Failure> {
    let tier = ALL.into_iter().find(|tier| tier_name(*tier).as_bytes() == value);
    let tier = tier.ok_or(Errno::Invalid)?;
    if !turn.has_tier(tier) {
        return Err(Errno::NotSupported.into());
    }
    match (mode, pin_of(turn, header.nodeid)?) {
        (XattrMode::Create, Some(_)) => return Err(Errno::Exists.into()),
        (XattrMode::Replace, None) => return Err(Errno::NoData.into()),
        _ => {}
    }
    set(turn, header, Some(tier))
}

/// Pins it no more.
pub(super) fn unpin(turn: &mut Turn<'_>, header: &InHeader) -> Result<Changed, Failure> {
    pin_of(turn, header.nodeid)?.ok_or(Errno::NoData)?;
    set(turn, header, None)
}

fn set(turn: &mut Turn<'_>, header: &InHeader, tier: Option<Tier>) -> Result<Changed, Failure> {
    let number = header.nodeid;
    let ticket = turn.call(caller_of(header, 0), |client, call| {
        client.pin(call, number, tier)
    })?;
    turn.pinned(number, tier);
    Ok((Reply::Empty, Some(ticket)))
}

//! Linux' TCP whose messages the kernel hands to the other end's socket at once, past its TCP: sockmap redirection (eBPF).

use super::ends::Ends;
use super::linux::{self, Place};
use os::Sockmap;

/// Both ends, and the map that they are in.
struct Redirected {
    ends: Box<dyn Ends>,
    _map: Sockmap,
}

/// TCP at a place.
pub fn open(count: usize, place: Place<'_>, polls: bool) -> anyhow::Result<Box<dyn Ends>> {
    let map = Sockmap::new(2 * count as u32)?;
    let ends = linux::connections(count, place)?;
    ends.iter().flatten().try_for_each(|socket| map.put(socket))?;
    let ends = ends.map(|sockets| sockets.into_iter().map(Into::into).collect());
    Ok(Box::new(Redirected {
        ends: linux::make(ends, polls)?,
        _map: map,
    }))
}

impl Ends for Redirected {
    fn turn(&mut self) -> anyhow::Result<()> {
        self.ends.turn()
    }
}

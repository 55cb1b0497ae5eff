//! Which node can have one copy more of a replica set, and which of them has most room.

use crate::control::NodeStatus;
use crate::registry::{ReplicaRecord, SetRecord, Snapshot};
use uuid::Uuid;

/// A node, as one that is to have copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Site {
    /// Its number.
    pub node: u8,
    /// Channels that software-isolated vSSDs share there.
    pub channels: u32,
    /// Channels that no vSSD has.
    pub free_channels: u32,
    /// Pages that a vSSD may expose for each of its channels.
    pub pages_per_channel: u32,
    /// Pages that a software-isolated vSSD may expose for each of its rows.
    pub pages_per_row: u32,
    /// Neighbouring rows of units that are free.
    pub free_rows: u32,
    /// It has vSSDs of another rack: nothing is placed beside them.
    pub is_foreign: bool,
    /// It answers, and nothing speaks against it.
    pub is_open: bool,
}

impl Site {
    /// A node with this answer, of this rack.
    pub fn new(node: u8, status: &NodeStatus, rack: Uuid, is_open: bool) -> Self {
        Self {
            node,
            channels: status.shared_channels(),
            free_channels: status.free_channels,
            pages_per_channel: status.pages_per_channel,
            pages_per_row: status.pages_per_row,
            free_rows: status.free_rows,
            is_foreign: !rack.is_nil() && status.racks.iter().any(|other| *other != rack),
            is_open,
        }
    }
}

/// The room of a rack's nodes.
#[derive(Clone, Debug, Default)]
pub struct Rooms(Vec<Site>);

/// Channels, or rows of units, that each vSSD of a set takes.
pub(crate) fn taken(set: &SetRecord) -> u32 {
    if set.rows > 0 { set.rows } else { set.channels }
}

/// The vSSDs that the records name: members, those that join, and those that a volume grows by. A node that does not have one yet will need
/// room for it.
fn promised(records: &Snapshot) -> impl Iterator<Item = (&SetRecord, ReplicaRecord)> {
    let growing = records.growing.iter().flat_map(|growth| &growth.sets);
    let sets = records.volumes.iter().flat_map(|volume| &volume.sets);
    sets.chain(growing).flat_map(|set| {
        let joining = set.joining.iter().map(|new| ReplicaRecord {
            vssd: new.vssd,
            node: new.node,
        });
        let members = set.replicas.iter().copied();
        members.chain(joining).map(move |replica| (set, replica))
    })
}

impl Rooms {
    /// The room of these nodes.
    pub fn new(sites: impl IntoIterator<Item = Site>) -> Self {
        Self(sites.into_iter().collect())
    }

    fn site(&self, node: u8) -> Option<&Site> {
        self.0.iter().find(|site| site.node == node)
    }

    /// True if a node answers, and nothing speaks against it.
    pub fn is_open(&self, node: u8) -> bool {
        self.site(node).is_some_and(|site| site.is_open)
    }

    /// Channels or rows that are free for vSSDs as this set's.
    pub fn free(&self, set: &SetRecord, node: u8) -> u32 {
        self.site(node).map_or(0, |site| free(site, set))
    }

    /// True if a node can have a copy of the set, and is not being drained.
    pub fn fits(&self, records: &Snapshot, set: &SetRecord, node: u8) -> bool {
        let Some(site) = self.site(node) else { return false };
        let has_room = match set.rows {
            0 => {
                let pages = u64::from(site.pages_per_channel) * u64::from(set.channels);
                pages >= u64::from(set.pages)
            }
            _ => site.channels == set.channels,
        };
        has_room
            && free(site, set) >= taken(set)
            && site.is_open
            && !site.is_foreign
            && !records.goes(node)
            && !set.vssds().any(|(_, other)| other.0 == node)
    }

    /// The node with most room that can have a copy of the set; of equals the first.
    pub fn best(&self, records: &Snapshot, set: &SetRecord) -> Option<u8> {
        let fits = self.0.iter().filter(|site| self.fits(records, set, site.node));
        let best = fits.rev().max_by_key(|site| free(site, set));
        best.map(|site| site.node)
    }

    /// A node is given a vSSD of this set, of which it does not know yet.
    pub fn give(&mut self, set: &SetRecord, node: u8) {
        if let Some(site) = self.0.iter_mut().find(|site| site.node == node) {
            let taken = taken(set);
            match set.rows {
                0 => site.free_channels = site.free_channels.saturating_sub(taken),
                // The first row decides how many channels each row has.
                _ if set.channels != site.channels => site.free_rows = 0,
                _ => site.free_rows = site.free_rows.saturating_sub(taken),
            }
        }
    }

    /// Nodes are given what the records promise and `has` does not find there.
    pub fn give_promised(&mut self, records: &Snapshot, has: impl Fn(&ReplicaRecord) -> bool) {
        for (set, replica) in promised(records).filter(|(_, replica)| !has(replica)) {
            self.give(set, replica.node);
        }
    }

    /// The nodes.
    pub fn sites(&self) -> impl Iterator<Item = &Site> {
        self.0.iter()
    }
}

fn free(site: &Site, set: &SetRecord) -> u32 {
    match set.rows {
        0 => site.free_channels,
        _ => site.free_rows,
    }
}

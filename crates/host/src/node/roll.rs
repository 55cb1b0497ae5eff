//! A node's vSSDs as records that fit packets: of many a record tells some, and from which number on the next one goes.

use super::superblock::Changes;
use super::unit::Unit;
use base::{Instant, NodeId, VssdId};
use flash::{Isolation, Ssd, VssdEntry};
use rack::control::{Copying, NodeStatus, Roll, RollPart};
use rack::inventory::{Inventory, Listed};
use wire::rack::PAYLOAD_BYTES_MAX;

/// vSSDs of which a node tells how far their copies are: more than join at a time.
const COPYING_MAX: usize = 16;

/// vSSDs that take copies of what others have.
pub(super) fn copying<'u>(now: Instant, units: impl Iterator<Item = &'u Unit>) -> Vec<Copying> {
    let copying = units.filter_map(|unit| unit.copying(now));
    copying.take(COPYING_MAX).collect()
}

/// The vSSDs of the node. All have failed if the superblock is latched. The medium has a deleted vSSD until the deletion is durable, so the
/// vSSD is told until then: nobody asks again for the deletion of what is not there.
pub(super) fn of<'u>(
    now: Instant,
    units: impl Iterator<Item = &'u Unit>,
    ssd: &Ssd,
    unreadable: &[VssdId],
    changes: &Changes,
) -> Roll {
    let kept = |vssd: &VssdId| ssd.vssds().iter().all(|entry| entry.id != *vssd);
    let here = ssd.vssds().iter().map(|entry| entry.id);
    let mut roll = Roll {
        here: here
            .chain(changes.deleting().filter(kept))
            .map(|vssd| vssd.0)
            .collect(),
        failed: unreadable.iter().map(|vssd| vssd.0).collect(),
        ..Roll::default()
    };
    for unit in units {
        let vssd = unit.identity().vssd.0;
        if unit.is_latched() || changes.is_latched() {
            roll.failed.push(vssd);
        } else if !unit.is_serving() {
            roll.joining.push(vssd);
            let generation = unit.identity().config.membership.generation;
            roll.generations.push((vssd, generation));
        }
        roll.unheard
            .extend(unit.leases().unheard(now).map(|peer| (vssd, peer.0)));
    }
    roll
}

/// The vSSDs that the superblock has from this number on.
pub(super) fn inventory(node: NodeId, ssd: &Ssd, unreadable: &[VssdId], from: u32) -> Inventory {
    let mut entries: Vec<&VssdEntry> = ssd.vssds().iter().filter(|entry| entry.id.0 >= from).collect();
    entries.sort_unstable_by_key(|entry| entry.id.0);
    let listed = entries.into_iter().map(|entry| Listed {
        vssd: entry.id,
        pages: entry.logical_pages,
        channels: entry.channels.count_ones() as u16,
        rows: match entry.isolation {
            Isolation::Hardware => 0,
            Isolation::Software { count, .. } => count as u16,
        },
        is_unreadable: unreadable.contains(&entry.id),
        config: entry.config.clone(),
    });
    Inventory::fitting(node, ssd.boot(), listed)
}

/// The record that tells of vSSDs from this number on.
pub(super) fn emit(mut status: NodeStatus, from: u32) -> Vec<u8> {
    let json = |status: &NodeStatus| serde_json::to_vec(status).expect("plain numbers serialize");
    if from == 0 {
        let record = json(&status);
        if record.len() <= PAYLOAD_BYTES_MAX {
            return record;
        }
    }
    let roll = status.roll.take().unwrap_or_default();
    let mut here = roll.here.clone();
    here.retain(|&vssd| vssd >= from);
    here.sort_unstable();
    let mut count = here.len();
    loop {
        status.roll_part = Some(part(&roll, &here, from, count));
        let record = json(&status);
        if record.len() <= PAYLOAD_BYTES_MAX || count == 0 {
            return record;
        }
        count -= count.div_ceil(4);
    }
}

/// The part that tells of the first `count` vSSDs of these, which begin at `from` and ascend.
fn part(roll: &Roll, here: &[u32], from: u32, count: usize) -> RollPart {
    let told = &here[..count];
    let is_told = |vssd: u32| told.binary_search(&vssd).is_ok();
    let only = |vssds: &[u32]| vssds.iter().copied().filter(|vssd| is_told(*vssd)).collect();
    let pairs = |pairs: &[(u32, u32)]| pairs.iter().copied().filter(|(vssd, _)| is_told(*vssd)).collect();
    RollPart {
        roll: Roll {
            here: told.to_vec(),
            joining: only(&roll.joining),
            generations: pairs(&roll.generations),
            failed: only(&roll.failed),
            unheard: pairs(&roll.unheard),
        },
        from,
        next: here.get(count).copied().unwrap_or(0),
    }
}

//! A node's vSSDs as records that fit packets: of many a record tells some, and from which number on the next one goes.

use base::{NodeId, VssdId};
use flash::{Isolation, Ssd, VssdEntry};
use rack::control::{NodeStatus, Roll, RollPart};
use rack::inventory::{Inventory, Listed};
use wire::rack::PAYLOAD_BYTES_MAX;

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

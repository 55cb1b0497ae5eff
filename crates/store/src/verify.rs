//! Offline: check an area, list what is in its log, read all of its values.

use crate::entry::{Entry, EntryKind, StructureId};
use crate::fetch::Found;
use crate::layout::SECTOR_HEADER_BYTES;
use crate::recover::{OpenError, Survey, check, survey, table_error};
use crate::replay::Replayed;
use crate::salvage::{EntryKey, LostPages};
use crate::table::levels::View;
use crate::table::merged::{Gap, Merged};
use crate::table::page::{Extent, blocks_of};
use crate::table::reader::{self, Pages, Uncached};
use crate::table::{Meta, structure_of};
use base::Device;
use std::collections::BTreeMap;

/// Findings in a sound area.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Of the area.
    pub uuid: [u8; 16],
    /// How often it was opened.
    pub epoch: u64,
    /// Segments of the log, and of the area.
    pub segments: (u32, u32),
    /// Bytes of the area; its medium may have more.
    pub area_bytes: u64,
    /// Records of the log.
    pub records: u64,
    /// Their entries.
    pub entries: u64,
    /// Bytes of live entries.
    pub live_bytes: u64,
    /// A write was cut at the end of the log; opening erases it.
    pub is_torn: bool,
    /// Superblocks that are damaged; opening writes them anew.
    pub superblocks_damaged: u32,
    /// Damaged headers of segments that the log does not need; opening erases them.
    pub headers_damaged: u32,
    /// Tables beside the log.
    pub tables: u32,
    /// Bytes of them.
    pub table_bytes: u64,
    /// Name, kind and entries of each structure: of a map or tree with tables an estimate, see [`crate::Engine::len`].
    pub structures: Vec<(String, crate::Kind, u64)>,
}

/// Checks everything that opening would rely on, and changes nothing.
pub fn verify(medium: &dyn Device) -> Result<VerifyReport, OpenError> {
    let survey = survey(medium)?;
    survey.checkpoint(medium)?;
    let levels = survey.levels(medium)?;
    for (_, view) in levels.all() {
        reader::verify(&view.table, medium).map_err(table_error)?;
    }
    if let (false, Some((_, view))) = (levels.are_apart(), levels.all().next()) {
        let offset = view.table.offset();
        return Err(OpenError::TableDamaged { offset });
    }
    let mut replayed = Replayed::new(&survey.superblock, levels.flushed, levels.count() > 0);
    let records = survey.replay(medium, None, |record, entry, location| {
        replayed.take(record, entry, location)
    })?;
    check(&replayed)?;
    let entries = |id| replayed.structures[&id].len() + levels.entries_of(id);
    let all = replayed.structures.iter();
    Ok(VerifyReport {
        uuid: survey.superblock.uuid,
        epoch: survey.superblock.epoch,
        segments: (survey.chain.len() as u32, survey.superblock.layout.segments),
        area_bytes: survey.superblock.layout.capacity_bytes(),
        records,
        entries: replayed.entries,
        live_bytes: replayed.usage.all.live,
        is_torn: survey.is_torn,
        superblocks_damaged: survey.superblocks_damaged,
        headers_damaged: survey.damaged.len() as u32,
        tables: levels.count(),
        table_bytes: levels.all().map(|(_, view)| view.table.bytes()).sum(),
        structures: all
            .map(|(&id, it)| (it.name.to_string(), it.kind, entries(id)))
            .collect(),
    })
}

/// An entry of the log, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DumpEntry {
    /// Number of its record.
    pub record: u64,
    /// Its action, by the names of docs/format/store.md.
    pub kind: &'static str,
    /// Its structure.
    pub structure: StructureId,
    /// Key, or position (u64, little-endian).
    pub key: Vec<u8>,
    /// Value.
    pub value: Vec<u8>,
}

/// Calls `f` with every entry of the log, in order, dead ones included. Changes nothing.
pub fn dump(medium: &dyn Device, mut f: impl FnMut(DumpEntry)) -> Result<(), OpenError> {
    let survey = survey(medium)?;
    survey.replay(medium, None, |record, entry: &Entry<'_>, _| {
        f(DumpEntry {
            record,
            kind: match entry.kind {
                EntryKind::Describe => "describe",
                EntryKind::Drop => "drop",
                EntryKind::Append => "append",
                EntryKind::Trim => "trim",
                EntryKind::Push => "push",
                EntryKind::Acknowledge => "acknowledge",
                EntryKind::Put => "put",
                EntryKind::Remove => "remove",
                EntryKind::Lost => "lost",
                EntryKind::Tables => "tables",
            },
            structure: entry.structure,
            key: entry.key.to_vec(),
            value: entry.value.to_vec(),
        });
        true
    })?;
    Ok(())
}

/// The content of an area as a program would find it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Examination {
    /// Opening needs a checkpoint: the log before it is damaged.
    pub needs_checkpoint: bool,
    /// Entries that are there.
    pub entries: u64,
    /// Structure and key of each entry whose value cannot be read.
    pub unreadable: Vec<(String, EntryKey)>,
    /// Pages of tables that cannot be read. Reading keys of them fails, or those above in memory and newer tables are found.
    pub pages_unreadable: Vec<LostPages>,
}

/// Opens the area without a change, and reads every value.
///
/// # Errors
/// Those of [`crate::Engine::open`].
pub fn examine(medium: &dyn Device) -> Result<Examination, OpenError> {
    let survey = survey(medium)?;
    let (replayed, _, checkpoint) = survey.structures(medium)?;
    let generations: BTreeMap<u32, u64> = survey
        .chain
        .iter()
        .map(|(used, _)| (used.slot, used.generation))
        .collect();
    let mut found = Examination {
        needs_checkpoint: checkpoint.is_some() && verify(medium).is_err(),
        ..Examination::default()
    };
    for structure in replayed.structures.values() {
        structure.each(|key, location| {
            if location.is_removed() {
                return;
            }
            found.entries += 1;
            let is_readable = !location.is_lost()
                && (location.length == 0 || {
                    let generation = generations.get(&location.slot).copied().unwrap_or(0);
                    let it = Found::new(survey.superblock.layout, location, generation);
                    let mut bytes = vec![0; it.length()];
                    medium.read_at(it.offset(), &mut bytes).is_ok() && it.extract(&bytes).is_ok()
                });
            if !is_readable {
                found
                    .unreadable
                    .push((structure.name.to_string(), EntryKey::from(&key)));
            }
        });
    }
    let levels = survey.levels(medium)?;
    let mut merged = Merged::lenient(levels.all().map(|(_, view)| view));
    while merged.next(medium).map_err(table_error)? {
        let (key, held) = merged.entry().map_err(table_error)?;
        let structure = structure_of(key).and_then(|id| replayed.structures.get(&id));
        let is_hidden = structure.is_none_or(|it| it.entry_of(&key[4..]).is_some());
        found.entries += u64::from(held.value.is_some() && !is_hidden);
    }
    let mut gaps = merged.gaps();
    gaps.extend(
        levels
            .all()
            .filter_map(|(_, view)| damaged_way(view, &survey, medium)),
    );
    let lost = gaps.iter().map(|gap| LostPages::new(gap, &replayed.structures));
    found.pages_unreadable = lost.collect();
    Ok(found)
}

/// A damaged page of a table's filter, or above its leaves: whoever looks a key up may need it. Only a range of all keys can be told.
fn damaged_way(view: &View, survey: &Survey, medium: &dyn Device) -> Option<Gap> {
    let layout = &survey.superblock.layout;
    let Meta {
        leaves_end, blocks, ..
    } = view.table.meta;
    let mut block = leaves_end;
    while block < blocks {
        let mut extent = Extent { block, blocks: 1 };
        let at = view.table.page_at(extent)?;
        let mut bytes = vec![0; at.length()];
        let length = medium.read_at(at.offset(), &mut bytes).ok().and_then(|()| {
            let payload = bytes.get(SECTOR_HEADER_BYTES as usize..layout.sector_bytes as usize)?;
            blocks_of(layout, payload)
        });
        extent.blocks = length.unwrap_or(0);
        let page = view.table.page_at(extent);
        if page.is_none_or(|page| Uncached(medium).page(&page).is_err()) {
            return Some(Gap {
                offset: at.offset(),
                from: view.first().to_vec(),
                to: view.last().to_vec(),
            });
        }
        block += extent.blocks;
    }
    None
}

//! Offline: check an area, list what is in its log, cut off what is damaged.

use crate::entry::{Entry, EntryKind, StructureId};
use crate::layout::{Layout, SECTOR_HEADER_BYTES};
use crate::recover::{OpenError, check, identify, survey};
use crate::replay::Replayed;
use crate::scan::{self, Head, Next, Segment, read_segment};
use base::Device;

/// Findings in a sound area.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Of the area.
    pub uuid: [u8; 16],
    /// How often it was opened.
    pub epoch: u64,
    /// Segments of the log, and of the area.
    pub segments: (u32, u32),
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
    /// Name, kind and entries of each structure.
    pub structures: Vec<(String, crate::Kind, u64)>,
}

/// Checks everything that opening would rely on, and changes nothing.
pub fn verify(medium: &dyn Device) -> Result<VerifyReport, OpenError> {
    let survey = survey(medium)?;
    let mut replayed = Replayed::new(&survey.superblock);
    let records = survey.replay(medium, None, |_, entry, location| replayed.take(entry, location))?;
    check(&replayed)?;
    let all = replayed.structures.values();
    Ok(VerifyReport {
        uuid: survey.superblock.uuid,
        epoch: survey.superblock.epoch,
        segments: (survey.chain.len() as u32, survey.superblock.layout.segments),
        records,
        entries: replayed.entries,
        live_bytes: replayed.usage.all.live,
        is_torn: survey.is_torn,
        superblocks_damaged: survey.superblocks_damaged,
        headers_damaged: survey.damaged.len() as u32,
        structures: all.map(|it| (it.name.to_string(), it.kind, it.len())).collect(),
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
            },
            structure: entry.structure,
            key: entry.key.to_vec(),
            value: entry.value.to_vec(),
        });
        true
    })?;
    Ok(())
}

/// Cuts the log off where it is damaged: the damaged record and everything after it are gone. Returns how many segments
/// were given up wholly. Does nothing to a sound area. Keeps the log before the damage, unless that part is of no use without
/// the part behind ([`OpenError::SegmentMissing`] stays).
pub fn repair(medium: &mut dyn Device) -> Result<u32, OpenError> {
    let mut given_up = 0;
    loop {
        let offset = match verify(medium) {
            Ok(_) => return Ok(given_up),
            Err(
                OpenError::Damaged { offset }
                | OpenError::RecordLost { offset, .. }
                | OpenError::SegmentHeader { offset },
            ) => offset,
            Err(error) => return Err(error),
        };
        let (superblock, _) = identify(medium)?;
        let layout = superblock.layout;
        forget_checkpoints(medium, &layout)?;
        let slot_of = |offset: u64| (offset - layout.segment_offset(0)) / u64::from(layout.segment_bytes);
        let slot = slot_of(offset) as u32;
        let start = layout.segment_offset(slot);
        let sector = read_segment(medium, &layout, slot, layout.sector_bytes)?;
        let Head::Segment(header) = scan::head(&layout, slot, &sector) else {
            given_up += 1;
            wipe(medium, start, layout.segment_bytes, layout.sector_bytes)?;
            continue;
        };
        // Later segments go first: a crash in between leaves the damage to be found again.
        for later in 0..layout.segments {
            let sector = read_segment(medium, &layout, later, layout.sector_bytes)?;
            if let Head::Segment(found) = scan::head(&layout, later, &sector)
                && found.generation > header.generation
            {
                given_up += 1;
                let at = layout.segment_offset(later);
                wipe(medium, at, layout.segment_bytes, layout.sector_bytes)?;
            }
        }
        let bytes = read_segment(medium, &layout, slot, layout.segment_bytes)?;
        let segment = Segment {
            layout: &layout,
            slot,
            generation: header.generation,
            bytes: &bytes,
        };
        let mut at = layout.block_bytes;
        while let Next::Record { end, .. } = segment.next(at) {
            if start + u64::from(end) > offset {
                break;
            }
            at = end;
        }
        wipe(
            medium,
            start + u64::from(at),
            layout.segment_bytes - at,
            layout.sector_bytes,
        )?;
    }
}

/// Entries that were cut off must not come back from a checkpoint once the log is as long again.
fn forget_checkpoints(medium: &mut dyn Device, layout: &Layout) -> Result<(), OpenError> {
    for slot in 0..layout.segments {
        let sector = read_segment(medium, layout, slot, layout.sector_bytes)?;
        if let Head::Part(_) = scan::head(layout, slot, &sector) {
            let offset = layout.segment_offset(slot);
            wipe(medium, offset, layout.block_bytes, layout.sector_bytes)?;
        }
    }
    Ok(())
}

/// Erases the sectors of a range, the first one last, so that a crash in between changes nothing that was judged.
fn wipe(medium: &mut dyn Device, offset: u64, bytes: u32, sector_bytes: u32) -> Result<(), OpenError> {
    for at in (0..bytes).step_by(sector_bytes as usize).rev() {
        if at == 0 {
            medium.flush()?;
        }
        medium.write_at(offset + u64::from(at), &[0; SECTOR_HEADER_BYTES as usize])?;
    }
    medium.flush()?;
    Ok(())
}

//! The superblock's bytes: a header, the table of vSSDs, and where on the medium the two slots with these are.
//!
//! A slot has [`SUPER_BYTES`] at the front of the medium. An SSD that can have more vSSDs than these hold was formatted with
//! an *extension* of each slot behind its data. The header says how long the extensions are: a medium of an earlier version
//! has none, and keeps its layout. A slot is checksummed as a whole, wherever its bytes lie.

use crate::geometry::{Geometry, Isolation};
use crate::layout::{Layout, SUPER_BYTES, put_u32, put_u64, u32_at, u64_at};
use base::{Device, MediaError, VssdId};

const MAGIC: &[u8; 8] = b"SWYDSSD1";
/// The version that is written. Version 2 had software-isolated vSSDs, version 1 had none; neither had extensions, nor owners that
/// write identities into the config.
const FORMAT_VERSION: u32 = 3;
/// The oldest version that is read.
const FORMAT_VERSION_MIN: u32 = 1;
/// The first version with extensions.
const FORMAT_VERSION_EXTENDED: u32 = 3;
const HEADER_BYTES: usize = 128;
const ENTRY_BYTES: usize = 288;
const CONFIG_AT: usize = 32;
const HEADER_CRC_AT: usize = HEADER_BYTES - 4;
const TABLE_CRC_AT: usize = 72;
const EXTENSION_AT: usize = 76;
/// An extension is a multiple of the largest page.
const EXTENSION_STEP: usize = 4096;
/// Longest config blob.
pub(crate) const CONFIG_BYTES_MAX: usize = ENTRY_BYTES - CONFIG_AT;
/// Entries of any SSD: a change writes the whole table into both slots, 1.2 MB each with so many.
const ENTRIES_MAX: usize = 4096;

/// One vSSD of the superblock's table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VssdEntry {
    /// Unique in the rack.
    pub id: VssdId,
    /// Unique on this SSD and never reused, so that a deleted vSSD's remains are not taken for a new one's.
    pub instance: u32,
    /// Channels, bit i for channel i.
    pub channels: u64,
    /// Whether others share them.
    pub isolation: Isolation,
    /// Pages users see.
    pub logical_pages: u32,
    /// The owner's opaque bytes, at most 256.
    pub config: Vec<u8>,
}

impl VssdEntry {
    /// True when both are software-isolated vSSDs of one channel group.
    pub fn shares_with(&self, other: &Self) -> bool {
        let shared = |entry: &Self| entry.isolation != Isolation::Hardware;
        shared(self) && shared(other) && self.channels == other.channels
    }

    fn emit(&self, at: &mut [u8]) {
        put_u32(at, 0, self.id.0);
        put_u32(at, 4, self.instance);
        put_u64(at, 8, self.channels);
        put_u32(at, 16, self.logical_pages);
        put_u32(at, 20, self.config.len() as u32);
        if let Isolation::Software { first, count } = self.isolation {
            put_u32(at, 24, first);
            put_u32(at, 28, count);
        }
        at[CONFIG_AT..][..self.config.len()].copy_from_slice(&self.config);
    }

    fn parse(at: &[u8], geometry: &Geometry) -> Option<Self> {
        let length = u32_at(at, 20) as usize;
        let isolation = match u32_at(at, 28) {
            0 => Isolation::Hardware,
            count => Isolation::Software {
                first: u32_at(at, 24),
                count,
            },
        };
        let rows = geometry.units_per_channel();
        if let Isolation::Software { first, count } = isolation
            && first.checked_add(count).is_none_or(|end| end > rows)
        {
            return None;
        }
        let channels = u64_at(at, 8);
        let is_there = channels != 0 && channels & !geometry.channel_bits() == 0;
        is_there.then_some(Self {
            id: VssdId(u32_at(at, 0)),
            instance: u32_at(at, 4),
            channels,
            isolation,
            logical_pages: u32_at(at, 16),
            config: at.get(CONFIG_AT..CONFIG_AT.checked_add(length)?)?.to_vec(),
        })
    }
}

/// Content of a superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) geometry: Geometry,
    pub(crate) page_bytes: usize,
    pub(crate) uuid: [u8; 16],
    pub(crate) boot: u32,
    pub(crate) generation: u64,
    pub(crate) next_instance: u32,
    /// Bytes that each slot has behind the data.
    pub(crate) extension_bytes: u64,
    pub(crate) vssds: Vec<VssdEntry>,
}

/// Content of a superblock slot.
#[derive(Debug)]
pub(crate) enum Slot {
    /// All zeros.
    Empty,
    /// Neither zeros nor a superblock.
    Damaged,
    /// A superblock of a format version that only a newer program knows.
    Newer(u32),
    /// A superblock.
    Valid(Box<Superblock>),
}

/// vSSDs that the units of this geometry suffice for, and a table can have.
fn entries_max(geometry: &Geometry) -> usize {
    let units = u64::from(geometry.channels) * u64::from(geometry.units_per_channel());
    units.min(ENTRIES_MAX as u64) as usize
}

/// Bytes that each slot of an SSD of this geometry gets behind the data when it is formatted.
pub(crate) fn extension_bytes(geometry: &Geometry) -> u64 {
    let bytes = HEADER_BYTES + entries_max(geometry) * ENTRY_BYTES;
    bytes.saturating_sub(SUPER_BYTES).next_multiple_of(EXTENSION_STEP) as u64
}

impl Superblock {
    /// vSSDs that it can have: no more than the units suffice for, and the slots have room for.
    pub(crate) fn capacity(&self) -> usize {
        let room = SUPER_BYTES - HEADER_BYTES + self.extension_bytes as usize;
        entries_max(&self.geometry).min(room / ENTRY_BYTES)
    }

    /// Bytes of the medium that are used.
    pub(crate) fn total_bytes(&self) -> u64 {
        Layout::new(&self.geometry, self.page_bytes).total_bytes() + 2 * self.extension_bytes
    }

    /// Pages of a slot with so many vSSDs.
    pub(crate) fn page_count(&self, vssds: usize) -> usize {
        (HEADER_BYTES + vssds * ENTRY_BYTES).div_ceil(self.page_bytes)
    }

    /// Where byte `at` of a slot lies.
    fn offset(&self, slot: u32, at: usize) -> u64 {
        match at.checked_sub(SUPER_BYTES) {
            None => Layout::super_offset(slot) + at as u64,
            Some(within) => {
                let data_end = Layout::new(&self.geometry, self.page_bytes).total_bytes();
                data_end + u64::from(slot) * self.extension_bytes + within as u64
            }
        }
    }

    /// The pages of a slot and where they lie, the header's page last.
    pub(crate) fn pages(&self, slot: u32) -> Vec<(u64, Vec<u8>)> {
        let bytes = self.emit();
        let pages = bytes.chunks(self.page_bytes).enumerate();
        let mut pages: Vec<_> = pages
            .map(|(i, page)| (self.offset(slot, i * self.page_bytes), page.to_vec()))
            .collect();
        pages.rotate_left(1);
        pages
    }

    /// The bytes of a slot, in whole pages.
    fn emit(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.page_count(self.vssds.len()) * self.page_bytes];
        let (header, table) = bytes.split_at_mut(HEADER_BYTES);
        for (entry, at) in self.vssds.iter().zip(table.chunks_exact_mut(ENTRY_BYTES)) {
            entry.emit(at);
        }
        header[..8].copy_from_slice(MAGIC);
        put_u32(header, 8, FORMAT_VERSION);
        put_u32(header, 12, self.page_bytes as u32);
        header[16..32].copy_from_slice(&self.uuid);
        let g = &self.geometry;
        let shape = [
            g.channels,
            g.chips_per_channel,
            g.planes_per_chip,
            g.blocks_per_plane,
            g.pages_per_block,
        ];
        for (i, dimension) in shape.into_iter().enumerate() {
            put_u32(header, 32 + 4 * i, dimension);
        }
        put_u32(header, 52, self.boot);
        put_u64(header, 56, self.generation);
        put_u32(header, 64, self.next_instance);
        put_u32(header, 68, self.vssds.len() as u32);
        let table_crc = crc32c::crc32c(&table[..self.vssds.len() * ENTRY_BYTES]);
        put_u32(header, TABLE_CRC_AT, table_crc);
        put_u64(header, EXTENSION_AT, self.extension_bytes);
        let crc = crc32c::crc32c(&header[..HEADER_CRC_AT]);
        put_u32(header, HEADER_CRC_AT, crc);
        bytes
    }

    /// The header without the table, and how many entries that has; `None` if it is none of a version that is known here.
    fn parse_header(header: &[u8]) -> Option<(Self, usize)> {
        let version = u32_at(header, 8);
        if !(FORMAT_VERSION_MIN..=FORMAT_VERSION).contains(&version) {
            return None;
        }
        let geometry = Geometry {
            channels: u32_at(header, 32),
            chips_per_channel: u32_at(header, 36),
            planes_per_chip: u32_at(header, 40),
            blocks_per_plane: u32_at(header, 44),
            pages_per_block: u32_at(header, 48),
        };
        geometry.validate().ok()?;
        let page_bytes = u32_at(header, 12) as usize;
        if !is_page_size(page_bytes) {
            return None;
        }
        let extension_bytes = match version {
            FORMAT_VERSION_EXTENDED.. => u64_at(header, EXTENSION_AT),
            _ => 0,
        };
        if extension_bytes > self::extension_bytes(&geometry) {
            return None;
        }
        let superblock = Self {
            geometry,
            page_bytes,
            uuid: header[16..32].try_into().expect("sixteen bytes"),
            boot: u32_at(header, 52),
            generation: u64_at(header, 56),
            next_instance: u32_at(header, 64),
            extension_bytes,
            vssds: Vec::new(),
        };
        let count = u32_at(header, 68) as usize;
        (count <= superblock.capacity()).then_some((superblock, count))
    }

    fn parse_table(&mut self, table: &[u8]) -> Option<()> {
        let entries = table.chunks_exact(ENTRY_BYTES);
        let entry = |at| VssdEntry::parse(at, &self.geometry);
        self.vssds = entries.map(entry).collect::<Option<_>>()?;
        Some(())
    }
}

/// True for a size of pages that media are formatted with.
pub(crate) fn is_page_size(page_bytes: usize) -> bool {
    page_bytes.is_power_of_two() && (128..=4096).contains(&page_bytes)
}

/// Reads one superblock slot.
pub(crate) fn read_slot(medium: &dyn Device, slot: u32) -> Result<Slot, MediaError> {
    if medium.capacity_bytes() < 2 * SUPER_BYTES as u64 {
        return Ok(Slot::Damaged);
    }
    let mut bytes = vec![0; SUPER_BYTES];
    medium.read_at(Layout::super_offset(slot), &mut bytes)?;
    let header = &bytes[..HEADER_BYTES];
    if &header[..8] != MAGIC || crc32c::crc32c(&header[..HEADER_CRC_AT]) != u32_at(header, HEADER_CRC_AT) {
        let is_empty = bytes.iter().all(|&byte| byte == 0);
        return Ok(if is_empty { Slot::Empty } else { Slot::Damaged });
    }
    if u32_at(header, 8) > FORMAT_VERSION {
        return Ok(Slot::Newer(u32_at(header, 8)));
    }
    let table_crc = u32_at(header, TABLE_CRC_AT);
    let Some((mut superblock, count)) = Superblock::parse_header(header) else {
        return Ok(Slot::Damaged);
    };
    let end = HEADER_BYTES + count * ENTRY_BYTES;
    if end > SUPER_BYTES {
        if medium.capacity_bytes() < superblock.total_bytes() {
            return Ok(Slot::Damaged);
        }
        bytes.resize(end.next_multiple_of(superblock.page_bytes), 0);
        medium.read_at(superblock.offset(slot, SUPER_BYTES), &mut bytes[SUPER_BYTES..])?;
    }
    let table = &bytes[HEADER_BYTES..end];
    let is_whole = crc32c::crc32c(table) == table_crc && superblock.parse_table(table).is_some();
    Ok(if is_whole {
        Slot::Valid(Box::new(superblock))
    } else {
        Slot::Damaged
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Rng;

    fn geometry(channels: u32, chips_per_channel: u32) -> Geometry {
        Geometry {
            channels,
            chips_per_channel,
            planes_per_chip: 1,
            blocks_per_plane: 12,
            pages_per_block: 4,
        }
    }

    /// A superblock with as many vSSDs as the seed says, up to the most.
    fn random(rng: &mut Rng) -> Superblock {
        let geometry = geometry(rng.between(1, 64) as u32, rng.between(1, 40) as u32);
        let rows = geometry.units_per_channel();
        let mut superblock = Superblock {
            geometry,
            page_bytes: 128 << rng.below(6),
            uuid: core::array::from_fn(|_| rng.next_u64() as u8),
            boot: rng.next_u64() as u32,
            generation: rng.next_u64(),
            next_instance: rng.next_u64() as u32,
            extension_bytes: extension_bytes(&geometry),
            vssds: Vec::new(),
        };
        let count = match rng.below(3) {
            0 => superblock.capacity() as u64,
            1 => rng.below(2),
            _ => rng.below(superblock.capacity() as u64 + 1),
        };
        let entry = |_| {
            let first = rng.below(u64::from(rows)) as u32;
            let count = rng.between(1, u64::from(rows - first)) as u32;
            let shares = rng.chance(0.5);
            let length = rng.below(CONFIG_BYTES_MAX as u64 + 1);
            VssdEntry {
                id: VssdId(rng.next_u64() as u32),
                instance: rng.next_u64() as u32,
                channels: 1 << rng.below(u64::from(geometry.channels)),
                isolation: match shares {
                    true => Isolation::Software { first, count },
                    false => Isolation::Hardware,
                },
                logical_pages: rng.next_u64() as u32,
                config: (0..length).map(|_| rng.next_u64() as u8).collect(),
            }
        };
        superblock.vssds = (0..count).map(entry).collect();
        superblock
    }

    fn write(superblock: &Superblock, slot: u32, medium: &mut Vec<u8>) {
        for (offset, page) in superblock.pages(slot) {
            medium.write_at(offset, &page).expect("in range");
        }
    }

    #[test]
    fn what_is_written_is_read_with_any_shape_and_number_of_vssds() {
        for seed in 0..60 {
            let mut rng = Rng::new(seed);
            let superblock = random(&mut rng);
            let mut medium = vec![0; superblock.total_bytes() as usize];
            let other = Superblock {
                generation: 7,
                vssds: superblock.vssds[..superblock.vssds.len() / 2].to_vec(),
                ..superblock.clone()
            };
            for (slot, written) in [(0, &superblock), (1, &other)] {
                write(written, slot, &mut medium);
            }
            for (slot, written) in [(0, &superblock), (1, &other)] {
                let Slot::Valid(read) = read_slot(&medium, slot).expect("in range") else {
                    panic!("seed {seed}: slot {slot} is not valid");
                };
                assert_eq!(*read, *written, "seed {seed}: slot {slot}");
            }
        }
    }

    #[test]
    fn bytes_that_are_not_what_was_written_are_never_a_superblock() {
        for seed in 0..20 {
            let mut rng = Rng::new(seed);
            let superblock = random(&mut rng);
            let mut medium = vec![0; superblock.total_bytes() as usize];
            write(&superblock, 0, &mut medium);
            let used = HEADER_BYTES + superblock.vssds.len() * ENTRY_BYTES;
            for _ in 0..50 {
                let at = superblock.offset(0, rng.below(used as u64) as usize) as usize;
                let bit = 1 << rng.below(8);
                medium[at] ^= bit;
                let read = read_slot(&medium, 0).expect("in range");
                assert!(matches!(read, Slot::Damaged), "seed {seed}: byte {at}");
                medium[at] ^= bit;
            }
        }
    }

    #[test]
    fn a_table_has_room_for_what_the_units_suffice_for() {
        let capacity = |channels, chips| {
            let geometry = geometry(channels, chips);
            let superblock = Superblock {
                geometry,
                page_bytes: 4096,
                uuid: [0; 16],
                boot: 0,
                generation: 0,
                next_instance: 1,
                extension_bytes: extension_bytes(&geometry),
                vssds: Vec::new(),
            };
            (superblock.capacity(), superblock.extension_bytes)
        };
        assert_eq!(capacity(16, 1), (16, 0));
        assert_eq!(capacity(35, 2), (70, 0));
        assert_eq!(capacity(36, 2), (72, 4 << 10));
        assert_eq!(capacity(16, 64), (1024, 272 << 10));
        assert_eq!(capacity(64, 1000).0, ENTRIES_MAX);
    }
}

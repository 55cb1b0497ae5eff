//! The table's bytes (docs/format/areas.md).

use super::{
    AreaId, AreaState, CATALOG_AREAS_MAX, CATALOG_NAME_BYTES_MAX, Catalog, CatalogArea, Export, Extent,
    PATH_BYTES_MAX, Rate, Readers, SLOT_BYTES, TABLE_BYTES, UNIT_BYTES, catalog_name_is_valid, mode_is_valid,
};
use crate::format::{u32_at, u64_at};
use base::{Device, MediaError};
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;

const MAGIC: &[u8; 8] = b"SWYPOOL1";
/// Names of all areas and exports differ.
const VERSION_UNIQUE: u32 = 1;
/// Names of one owner's areas differ, and those of all exports. Written only where names are not unique, as programs of version 1 refuse it.
const VERSION: u32 = 2;
const HEADER_BYTES: usize = 64;
const AREA_BYTES: usize = 56;
const EXPORT_BYTES: usize = 20;
const RATE_BYTES: usize = 24;
const PLACED: u32 = 1;
/// Writes are of whole blocks.
const BLOCK_BYTES: usize = 4096;

const _: () = assert!(
    CATALOG_AREAS_MAX
        * (AREA_BYTES + EXPORT_BYTES + RATE_BYTES + 2 * CATALOG_NAME_BYTES_MAX + PATH_BYTES_MAX)
        + HEADER_BYTES
        <= SLOT_BYTES as usize,
    "as many as there may be fit a slot"
);

/// Why there is no table to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CatalogError {
    /// The medium reported an error.
    #[error(transparent)]
    Medium(#[from] MediaError),
    /// Neither slot is a table.
    #[error("this is no catalog of areas")]
    NotACatalog,
    /// Written by another version.
    #[error("the catalog has format version {0}, which this version does not know")]
    OtherVersion(u32),
    /// Neither slot is whole.
    #[error("both copies of the catalog's table are damaged")]
    Damaged,
    /// The table contradicts itself, though its checksum is right.
    #[error("the catalog's table is sound, but makes no sense: {0}")]
    Senseless(&'static str),
}

enum Slot {
    Valid(Catalog),
    OtherVersion(u32),
    Foreign,
    Damaged,
    Senseless(&'static str),
}

impl Catalog {
    /// Writes an empty table. Earlier content is lost. Durable on return.
    pub fn format(&mut self, medium: &mut dyn Device) -> Result<(), MediaError> {
        self.save(medium)
    }

    /// Writes the table as its next generation. Durable on return; after a failure it may be the old or the new one, and
    /// nothing must be written until it is loaded anew.
    pub fn save(&mut self, medium: &mut dyn Device) -> Result<(), MediaError> {
        self.generation += 1;
        let bytes = self.emit();
        for slot in [SLOT_BYTES, 0] {
            medium.write_at(slot, &bytes)?;
            medium.flush()?;
        }
        Ok(())
    }

    /// Reads the table, and makes both slots the same if they are not. The number is that of slots that were damaged or older.
    pub fn load(medium: &mut dyn Device) -> Result<(Self, u32), CatalogError> {
        let (catalog, behind) = Self::judge(medium)?;
        let bytes = catalog.emit();
        for slot in &behind {
            medium.write_at(*slot, &bytes)?;
            medium.flush()?;
        }
        Ok((catalog, behind.len() as u32))
    }

    /// As [`load`](Catalog::load), and changes nothing.
    pub fn read(medium: &dyn Device) -> Result<(Self, u32), CatalogError> {
        let (catalog, behind) = Self::judge(medium)?;
        Ok((catalog, behind.len() as u32))
    }

    /// The table, and the slots that do not hold it.
    fn judge(medium: &dyn Device) -> Result<(Self, Vec<u64>), CatalogError> {
        if medium.capacity_bytes() < TABLE_BYTES {
            return Err(CatalogError::NotACatalog);
        }
        let slots = [read_slot(medium, 0)?, read_slot(medium, SLOT_BYTES)?];
        for slot in &slots {
            match slot {
                Slot::OtherVersion(version) => return Err(CatalogError::OtherVersion(*version)),
                Slot::Senseless(why) => return Err(CatalogError::Senseless(why)),
                _ => {}
            }
        }
        match slots {
            [Slot::Valid(first), Slot::Valid(second)] if first.generation == second.generation => {
                match first == second {
                    true => Ok((first, Vec::new())),
                    false => Err(CatalogError::Senseless("two tables of one generation")),
                }
            }
            // Slot B is written first.
            [Slot::Valid(first), Slot::Valid(second)] if first.generation + 1 == second.generation => {
                Ok((second, vec![0]))
            }
            [Slot::Valid(_), Slot::Valid(_)] => Err(CatalogError::Senseless(
                "generations that do not follow each other",
            )),
            [Slot::Valid(catalog), _] => Ok((catalog, vec![SLOT_BYTES])),
            [_, Slot::Valid(catalog)] => Ok((catalog, vec![0])),
            [Slot::Foreign, Slot::Foreign] => Err(CatalogError::NotACatalog),
            _ => Err(CatalogError::Damaged),
        }
    }

    fn emit(&self) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES];
        for (id, area) in &self.areas {
            emit_area(&mut bytes, *id, area);
            if area.rate.is_limited() {
                emit_rate(&mut bytes, *id, area.rate);
            }
        }
        for (name, export) in &self.exports {
            emit_export(&mut bytes, name, export);
        }
        let records = (bytes.len() - HEADER_BYTES) as u32;
        bytes[..8].copy_from_slice(MAGIC);
        let version = if self.has_unique_names() {
            VERSION_UNIQUE
        } else {
            VERSION
        };
        bytes[8..12].copy_from_slice(&version.to_le_bytes());
        bytes[12..16].copy_from_slice(&(u32::from(self.is_placed) * PLACED).to_le_bytes());
        bytes[16..32].copy_from_slice(&self.uuid);
        bytes[32..40].copy_from_slice(&self.generation.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.end.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.next.to_le_bytes());
        bytes[56..60].copy_from_slice(&records.to_le_bytes());
        let crc = checksum(&bytes);
        bytes[60..64].copy_from_slice(&crc.to_le_bytes());
        bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
        bytes
    }

    fn parse(header: &[u8], mut records: &[u8]) -> Result<Self, &'static str> {
        let mut catalog = Self {
            uuid: header[16..32].try_into().expect("sixteen bytes"),
            generation: u64_at(header, 32),
            is_placed: u32_at(header, 12) & PLACED != 0,
            end: u64_at(header, 40),
            next: u64_at(header, 48),
            areas: BTreeMap::new(),
            exports: BTreeMap::new(),
        };
        if u32_at(header, 12) & !PLACED != 0 || !catalog.end.is_multiple_of(UNIT_BYTES) {
            return Err("flags or end");
        }
        while let Some(&kind) = records.first() {
            records = match kind {
                1 => catalog.parse_area(records),
                2 => catalog.parse_export(records),
                3 => catalog.parse_rate(records),
                _ => None,
            }
            .ok_or("a record")?;
        }
        catalog.check()?;
        if u32_at(header, 8) == VERSION_UNIQUE && !catalog.has_unique_names() {
            return Err("a name of two areas");
        }
        Ok(catalog)
    }

    /// True if no two areas or exports have one name.
    fn has_unique_names(&self) -> bool {
        let present = self
            .areas
            .values()
            .filter(|area| area.state != AreaState::Leaving);
        let mut names = present
            .map(|area| area.name.as_str())
            .chain(self.exports.keys().map(String::as_str));
        let mut known = BTreeSet::new();
        names.all(|name| known.insert(name))
    }

    /// Takes one area; what follows it, or `None` if it is none.
    fn parse_area<'a>(&mut self, records: &'a [u8]) -> Option<&'a [u8]> {
        let (fixed, rest) = records.split_at_checked(AREA_BYTES)?;
        let (name, rest) = rest.split_at_checked(usize::from(u16_at(fixed, 12)))?;
        let extent_at = |at| Extent {
            offset: u64_at(fixed, at),
            bytes: u64_at(fixed, at + 8),
        };
        let to = extent_at(40);
        let state = match fixed[1] {
            1 => AreaState::Making,
            2 => AreaState::Ready,
            3 => AreaState::Growing(to),
            4 => AreaState::Leaving,
            _ => return None,
        };
        let area = CatalogArea {
            name: std::str::from_utf8(name).ok()?.to_owned(),
            owner: u32_at(fixed, 4),
            group: u32_at(fixed, 8),
            mode: u16_at(fixed, 2),
            state,
            extent: extent_at(24),
            rate: Rate::UNLIMITED,
        };
        let is_known = self.areas.insert(AreaId(u64_at(fixed, 16)), area).is_some();
        (!is_known && (fixed[1] == 3 || to == Extent::default())).then_some(rest)
    }

    /// Takes the rate of an area that came before.
    fn parse_rate<'a>(&mut self, records: &'a [u8]) -> Option<&'a [u8]> {
        let (fixed, rest) = records.split_at_checked(RATE_BYTES)?;
        let rate = Rate {
            operations: u32_at(fixed, 4),
            bytes: u64_at(fixed, 16),
        };
        let area = self.areas.get_mut(&AreaId(u64_at(fixed, 8)))?;
        let is_new = rate.is_limited() && !area.rate.is_limited();
        area.rate = rate;
        is_new.then_some(rest)
    }

    fn parse_export<'a>(&mut self, records: &'a [u8]) -> Option<&'a [u8]> {
        let (fixed, rest) = records.split_at_checked(EXPORT_BYTES)?;
        let (name, rest) = rest.split_at_checked(usize::from(u16_at(fixed, 16)))?;
        let (path, rest) = rest.split_at_checked(usize::from(u16_at(fixed, 2)))?;
        let who = u32_at(fixed, 4);
        let readers = match fixed[1] {
            0 => Readers::All,
            1 => Readers::User(who),
            2 => Readers::Group(who),
            _ => return None,
        };
        let export = Export {
            area: AreaId(u64_at(fixed, 8)),
            readers,
            path: std::str::from_utf8(path).ok()?.to_owned(),
        };
        let name = std::str::from_utf8(name).ok()?.to_owned();
        self.exports.insert(name, export).is_none().then_some(rest)
    }

    /// Whether it makes sense: what holds of every table that was written.
    fn check(&self) -> Result<(), &'static str> {
        let mut names = BTreeSet::new();
        let mut used: Vec<(Extent, AreaId)> = Vec::new();
        for (id, area) in self.areas() {
            let is_named = catalog_name_is_valid(&area.name)
                && (area.state == AreaState::Leaving || names.insert((area.owner, area.name.as_str())));
            if id.0 == 0 || id.0 >= self.next || !is_named || !mode_is_valid(area.mode) {
                return Err("an area's number, name or mode");
            }
            let to = match area.state {
                AreaState::Growing(to) if to.offset != area.extent.offset => [Some(area.extent), Some(to)],
                AreaState::Growing(to) if to.bytes > area.extent.bytes => [Some(to), None],
                AreaState::Growing(_) => return Err("an area that grows to less"),
                _ => [Some(area.extent), None],
            };
            used.extend(to.into_iter().flatten().map(|extent| (extent, id)));
        }
        if !used.iter().all(|(extent, _)| self.fits(extent)) {
            return Err("an area's place");
        }
        used.sort_unstable_by_key(|(extent, _)| extent.offset);
        if self.is_placed && used.windows(2).any(|pair| pair[0].0.end() > pair[1].0.offset) {
            return Err("areas that overlap");
        }
        for (name, export) in self.exports() {
            let is_sound = catalog_name_is_valid(name) && export.path.len() <= PATH_BYTES_MAX;
            let of = self.areas.get(&export.area);
            let is_owners =
                |area: &CatalogArea| area.state != AreaState::Leaving && !names.contains(&(area.owner, name));
            if !is_sound || !of.is_some_and(is_owners) {
                return Err("an export");
            }
        }
        Ok(())
    }

    fn fits(&self, extent: &Extent) -> bool {
        let end = extent.offset.checked_add(extent.bytes);
        let is_whole = extent.bytes > 0 && (extent.bytes | extent.offset).is_multiple_of(UNIT_BYTES);
        let begins = match self.is_placed {
            true => extent.offset >= TABLE_BYTES,
            false => extent.offset == 0,
        };
        is_whole && begins && end.is_some_and(|end| end <= self.end)
    }
}

fn emit_area(bytes: &mut Vec<u8>, id: AreaId, area: &CatalogArea) {
    let (state, to) = match area.state {
        AreaState::Making => (1, Extent::default()),
        AreaState::Ready => (2, Extent::default()),
        AreaState::Growing(to) => (3, to),
        AreaState::Leaving => (4, Extent::default()),
    };
    bytes.extend([1, state]);
    bytes.extend(area.mode.to_le_bytes());
    bytes.extend(area.owner.to_le_bytes());
    bytes.extend(area.group.to_le_bytes());
    bytes.extend((area.name.len() as u16).to_le_bytes());
    bytes.extend([0, 0]);
    for word in [id.0, area.extent.offset, area.extent.bytes, to.offset, to.bytes] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(area.name.as_bytes());
}

fn emit_rate(bytes: &mut Vec<u8>, id: AreaId, rate: Rate) {
    bytes.extend([3, 0, 0, 0]);
    bytes.extend(rate.operations.to_le_bytes());
    bytes.extend(id.0.to_le_bytes());
    bytes.extend(rate.bytes.to_le_bytes());
}

fn emit_export(bytes: &mut Vec<u8>, name: &str, export: &Export) {
    let (readers, who) = match export.readers {
        Readers::All => (0, 0),
        Readers::User(user) => (1, user),
        Readers::Group(group) => (2, group),
    };
    bytes.extend([2, readers]);
    bytes.extend((export.path.len() as u16).to_le_bytes());
    bytes.extend(who.to_le_bytes());
    bytes.extend(export.area.0.to_le_bytes());
    bytes.extend((name.len() as u16).to_le_bytes());
    bytes.extend([0, 0]);
    bytes.extend(name.as_bytes());
    bytes.extend(export.path.as_bytes());
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

/// Of a header, without its checksum, and the records behind it.
fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&bytes[..60]), &bytes[HEADER_BYTES..])
}

fn read_slot(medium: &dyn Device, at: u64) -> Result<Slot, MediaError> {
    let mut header = [0; HEADER_BYTES];
    medium.read_at(at, &mut header)?;
    if &header[..8] != MAGIC {
        return Ok(Slot::Foreign);
    }
    let length = u32_at(&header, 56) as usize;
    if length > SLOT_BYTES as usize - HEADER_BYTES {
        return Ok(Slot::Damaged);
    }
    let mut bytes = vec![0; HEADER_BYTES + length];
    medium.read_at(at, &mut bytes)?;
    if u32_at(&bytes, 60) != checksum(&bytes) {
        return Ok(Slot::Damaged);
    }
    if ![VERSION_UNIQUE, VERSION].contains(&u32_at(&bytes, 8)) {
        return Ok(Slot::OtherVersion(u32_at(&bytes, 8)));
    }
    Ok(
        match Catalog::parse(&bytes[..HEADER_BYTES], &bytes[HEADER_BYTES..]) {
            Ok(catalog) => Slot::Valid(catalog),
            Err(why) => Slot::Senseless(why),
        },
    )
}

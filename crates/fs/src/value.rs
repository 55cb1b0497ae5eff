//! Values of the tree that own blocks: zones, logs and extents (docs/format/fs.md, "Keys").

use crate::format::{Damage, Place, Pointer, put_u16, put_u32, put_u64, u16_at, u32_at, u64_at};
use core::ops::Range;

/// Blocks one behind the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Run {
    /// The first.
    pub place: Place,
    /// How many.
    pub blocks: u64,
}

impl Run {
    /// One block.
    pub const fn one(place: Place) -> Self {
        Self { place, blocks: 1 }
    }

    /// The place behind it.
    pub const fn end(self) -> Place {
        self.place.plus(self.blocks)
    }
}

/// A zone that has used blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZoneRecord {
    /// Its bitmap.
    pub bitmap: Pointer,
    /// Its used blocks.
    pub used: u32,
}

impl ZoneRecord {
    /// Bytes of the value.
    pub const BYTES: usize = 20;

    /// As the tree has it.
    pub fn emit(&self) -> [u8; Self::BYTES] {
        let mut value = [0; Self::BYTES];
        put_u64(&mut value, 0, self.bitmap.place.raw());
        put_u64(&mut value, 8, self.bitmap.generation);
        put_u32(&mut value, 16, self.used);
        value
    }

    /// Reads what [`emit`](Self::emit) wrote.
    pub fn parse(value: &[u8]) -> Result<Self, Damage> {
        let value: &[u8; Self::BYTES] = value.try_into().map_err(|_| Damage::Content)?;
        Ok(Self {
            bitmap: Pointer {
                place: Place::from_raw(u64_at(value, 0)),
                generation: u64_at(value, 8),
            },
            used: u32_at(value, 16),
        })
    }
}

/// An operation log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogRecord {
    /// The user that it belongs to.
    pub uid: u32,
    /// What its frames carry.
    pub nonce: u64,
    /// Positions below are in the tree.
    pub digested: u64,
    /// Its frames begin at multiples of so many bytes.
    pub sector: u16,
    /// Its blocks.
    pub extents: Vec<Run>,
    /// Of a log whose bytes are in a window beside device 0, and not in its blocks.
    pub window: Option<Windowed>,
}

/// What the tree knows of the process that has a windowed log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Windowed {
    /// Its numbers for new inodes.
    pub numbers: Range<u64>,
    /// Its groups, the first one that of new files.
    pub gids: Vec<u32>,
    /// Room that is reserved for what its log has and the tree has not. None in file systems of before that.
    pub reserved: Option<Part>,
}

impl Windowed {
    /// Groups, at most.
    pub const GIDS_MAX: usize = 64;
    /// Extents of the log, at most.
    pub const EXTENTS_MAX: usize = 40;
    const HEAD_BYTES: usize = 16;
}

/// A part of the room, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Part {
    /// Of device 0, for what lets files grow.
    pub growth: u64,
    /// Of device 0, for what only deletes.
    pub deletion: u64,
    /// Of all other devices.
    pub data: u64,
}

impl Part {
    const BYTES: usize = 24;

    /// The larger one of each.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            growth: self.growth.max(other.growth),
            deletion: self.deletion.max(other.deletion),
            data: self.data.max(other.data),
        }
    }

    /// The part without so many blocks of device 0, and of others.
    #[must_use]
    pub fn less(self, first: u64, others: u64) -> Self {
        Self {
            growth: self.growth.saturating_sub(first),
            deletion: self.deletion.saturating_sub(first),
            data: self.data.saturating_sub(others),
        }
    }

    fn emit(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        put_u64(&mut bytes, 0, self.growth);
        put_u64(&mut bytes, 8, self.deletion);
        put_u64(&mut bytes, 16, self.data);
        bytes
    }
}

/// Places of a log's bytes, as its record says: its blocks, a window, or a window with room reserved for it.
const IN_BLOCKS: u32 = 0;
const IN_WINDOW: u32 = 1;
const RESERVED: u32 = 2;

impl LogRecord {
    /// Extents, at most: what a value has room for.
    pub const EXTENTS_MAX: usize = 62;
    const HEAD_BYTES: usize = 32;

    /// As the tree has it. It has at most [`EXTENTS_MAX`](Self::EXTENTS_MAX) extents.
    pub fn emit(&self) -> Vec<u8> {
        assert!(
            self.extents.len() <= Self::EXTENTS_MAX,
            "a log has at most 62 extents"
        );
        let mut value = vec![0; Self::HEAD_BYTES + 16 * self.extents.len()];
        put_u32(&mut value, 0, self.uid);
        let kind = match &self.window {
            None => IN_BLOCKS,
            Some(window) if window.reserved.is_none() => IN_WINDOW,
            Some(_) => RESERVED,
        };
        put_u32(&mut value, 4, kind);
        put_u64(&mut value, 8, self.nonce);
        put_u64(&mut value, 16, self.digested);
        put_u16(&mut value, 24, self.extents.len() as u16);
        put_u16(&mut value, 26, self.sector);
        for (at, run) in (Self::HEAD_BYTES..).step_by(16).zip(&self.extents) {
            put_u64(&mut value, at, run.place.raw());
            put_u64(&mut value, at + 8, run.blocks);
        }
        if let Some(window) = &self.window {
            assert!(
                window.gids.len() <= Windowed::GIDS_MAX && self.extents.len() <= Windowed::EXTENTS_MAX,
                "a windowed log has at most 40 extents and 64 groups"
            );
            value.extend(window.numbers.start.to_le_bytes());
            value.extend(window.numbers.end.to_le_bytes());
            value.extend(window.reserved.map(Part::emit).into_iter().flatten());
            window.gids.iter().for_each(|gid| value.extend(gid.to_le_bytes()));
        }
        value
    }

    /// Reads what [`emit`](Self::emit) wrote.
    pub fn parse(value: &[u8]) -> Result<Self, Damage> {
        let (head, rest) = value.split_at_checked(Self::HEAD_BYTES).ok_or(Damage::Content)?;
        let count = usize::from(u16_at(head, 24));
        let (extents, rest) = rest.split_at_checked(16 * count).ok_or(Damage::Content)?;
        let (extents, _) = extents.as_chunks::<16>();
        let run = |extent: &[u8; 16]| Run {
            place: Place::from_raw(u64_at(extent, 0)),
            blocks: u64_at(extent, 8),
        };
        let window = match u32_at(head, 4) {
            IN_BLOCKS if rest.is_empty() => None,
            kind @ (IN_WINDOW | RESERVED) if count <= Windowed::EXTENTS_MAX => {
                Some(Windowed::parse(rest, kind == RESERVED)?)
            }
            _ => return Err(Damage::Content),
        };
        Ok(Self {
            uid: u32_at(head, 0),
            nonce: u64_at(head, 8),
            digested: u64_at(head, 16),
            sector: u16_at(head, 26),
            extents: extents.iter().map(run).collect(),
            window,
        })
    }
}

impl Windowed {
    fn parse(bytes: &[u8], is_reserved: bool) -> Result<Self, Damage> {
        let (head, rest) = bytes.split_at_checked(Self::HEAD_BYTES).ok_or(Damage::Content)?;
        let bytes = if is_reserved { Part::BYTES } else { 0 };
        let (part, rest) = rest.split_at_checked(bytes).ok_or(Damage::Content)?;
        let (gids, rest) = rest.as_chunks::<4>();
        let numbers = u64_at(head, 0)..u64_at(head, 8);
        match rest.is_empty() && gids.len() <= Self::GIDS_MAX && numbers.start <= numbers.end {
            true => Ok(Self {
                numbers,
                gids: gids.iter().map(|gid| u32::from_le_bytes(*gid)).collect(),
                reserved: is_reserved.then(|| Part {
                    growth: u64_at(part, 0),
                    deletion: u64_at(part, 8),
                    data: u64_at(part, 16),
                }),
            }),
            false => Err(Damage::Content),
        }
    }
}

/// Blocks of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtentRecord {
    /// Where they are.
    pub run: Run,
    /// The checksum of each; nothing if they are not written, and read as zeros.
    pub crcs: Vec<u32>,
}

impl ExtentRecord {
    /// Blocks, at most.
    pub const BLOCKS_MAX: u64 = 128;
    const HEAD_BYTES: usize = 12;
    const UNWRITTEN: u16 = 1;

    /// True if the blocks have never been written.
    pub fn is_unwritten(&self) -> bool {
        self.crcs.is_empty()
    }

    /// As the tree has it.
    pub fn emit(&self) -> Vec<u8> {
        assert!(
            (1..=Self::BLOCKS_MAX).contains(&self.run.blocks),
            "an extent has 1 to 128 blocks"
        );
        let is_whole = self.is_unwritten() || self.crcs.len() as u64 == self.run.blocks;
        assert!(is_whole, "each block has its checksum, or none has");
        let mut value = vec![0; Self::HEAD_BYTES + 4 * self.crcs.len()];
        put_u64(&mut value, 0, self.run.place.raw());
        put_u16(&mut value, 8, self.run.blocks as u16);
        put_u16(&mut value, 10, u16::from(self.is_unwritten()) * Self::UNWRITTEN);
        for (at, crc) in (Self::HEAD_BYTES..).step_by(4).zip(&self.crcs) {
            put_u32(&mut value, at, *crc);
        }
        value
    }

    /// Reads what [`emit`](Self::emit) wrote.
    pub fn parse(value: &[u8]) -> Result<Self, Damage> {
        let (head, crcs) = value.split_at_checked(Self::HEAD_BYTES).ok_or(Damage::Content)?;
        let (crcs, rest) = crcs.as_chunks::<4>();
        let blocks = u64::from(u16_at(head, 8));
        let count = match u16_at(head, 10) {
            0 => blocks,
            Self::UNWRITTEN => 0,
            _ => return Err(Damage::Content),
        };
        if !rest.is_empty() || crcs.len() as u64 != count || !(1..=Self::BLOCKS_MAX).contains(&blocks) {
            return Err(Damage::Content);
        }
        Ok(Self {
            run: Run {
                place: Place::from_raw(u64_at(head, 0)),
                blocks,
            },
            crcs: crcs.iter().map(|crc| u32::from_le_bytes(*crc)).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Rng;

    const RUN: Run = Run {
        place: Place::new(1, 77),
        blocks: 3,
    };

    #[test]
    fn values_are_read_as_they_were_written() {
        let zone = ZoneRecord {
            bitmap: Pointer {
                place: Place::new(0, 9),
                generation: 4,
            },
            used: 12,
        };
        assert_eq!(ZoneRecord::parse(&zone.emit()), Ok(zone));
        let part = Part {
            growth: 7,
            deletion: 8,
            data: 9,
        };
        for (count, reserved) in [
            (0, None),
            (1, None),
            (1, Some(part)),
            (LogRecord::EXTENTS_MAX, None),
        ] {
            let log = LogRecord {
                uid: 1000,
                nonce: 5,
                digested: 6,
                sector: 512,
                extents: vec![RUN; count],
                window: (count == 1).then(|| Windowed {
                    numbers: 4..9,
                    gids: vec![100, 7],
                    reserved,
                }),
            };
            let value = log.emit();
            assert!(value.len() <= crate::node::VALUE_BYTES_MAX);
            assert_eq!(LogRecord::parse(&value), Ok(log));
        }
        let longest = LogRecord {
            extents: vec![RUN; Windowed::EXTENTS_MAX],
            window: Some(Windowed {
                numbers: 4..9,
                gids: vec![1; Windowed::GIDS_MAX],
                reserved: Some(part),
            }),
            ..LogRecord::default()
        };
        assert!(longest.emit().len() <= crate::node::VALUE_BYTES_MAX);
        for crcs in [Vec::new(), vec![7, 8, 9]] {
            let extent = ExtentRecord { run: RUN, crcs };
            assert_eq!(ExtentRecord::parse(&extent.emit()), Ok(extent));
        }
    }

    #[test]
    fn no_bytes_make_parsing_panic() {
        let mut rng = Rng::new(1);
        for _ in 0..20_000 {
            let mut value = vec![0; rng.below(80) as usize];
            for byte in &mut value {
                *byte = if rng.chance(0.5) { 0 } else { rng.below(6) as u8 };
            }
            if let Ok(extent) = ExtentRecord::parse(&value) {
                assert_eq!(extent.emit(), value);
            }
            if let Ok(log) = LogRecord::parse(&value) {
                assert_eq!(log.emit().len(), value.len());
            }
            assert_eq!(ZoneRecord::parse(&value).is_ok(), value.len() == 20);
        }
    }
}

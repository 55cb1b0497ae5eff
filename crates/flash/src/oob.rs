//! Out-of-band entries: what each programmed page is. The bytes are in `docs/format/flash.md`.
//!
//! An entry's CRC32C (Hamming distance at least 6 at this length) also serves to correct one flipped bit: trying each
//! bit finds the only one that makes the checksum right.
//!
//! If a sector is smaller than an entry, a cut write leaves a part of an entry. A later cut write of the same place could
//! complete the entry if the two differed only in the other part. So a stream masks the bytes, and differs from life to
//! life of the vSSD: no sector of one life fits an entry of another.

use crate::layout::{ENTRY_BYTES, put_u32, put_u64, u32_at, u64_at};
use base::Version;

const MAGIC: u32 = u32::from_le_bytes(*b"SWOB");
const SALT_AT: usize = ENTRY_BYTES - 8;
const CRC_AT: usize = ENTRY_BYTES - 4;

/// Masks, or unmasks, the bytes before the salt: word i with the i-th output of SplitMix64 from the salt.
fn mask(bytes: &mut [u8], salt: u32) {
    let mut state = u64::from(salt);
    for word in bytes[..SALT_AT].chunks_exact_mut(8) {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let masked = u64_at(word, 0) ^ z ^ (z >> 31);
        put_u64(word, 0, masked);
    }
}

/// Content of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Data a user wrote.
    User,
    /// Data moved by garbage collection.
    Moved,
    /// Trim records; `lpn` counts them.
    Record,
}

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) kind: Kind,
    /// Logical page, or the number of trims in a record page.
    pub(crate) lpn: u32,
    pub(crate) instance: u32,
    /// Of the page; of a record, the sequence of its first program.
    pub(crate) version: Version,
    /// Order of programs in this vSSD, from 1, without gaps.
    pub(crate) sequence: u64,
    /// Every program up to this sequence was known durable when the entry was made.
    pub(crate) durable: u64,
    /// Erase count of the block when it was programmed.
    pub(crate) generation: u32,
    /// CRC32C of the page.
    pub(crate) data_crc: u32,
    /// The newest checkpoint known durable when the entry was made.
    pub(crate) checkpoint: u32,
    /// Of the life of the vSSD that wrote it.
    pub(crate) salt: u32,
    /// The page itself, to notice an entry that was written to a wrong place.
    pub(crate) ppn: u32,
}

/// Meaning of 64 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decoded {
    /// All zeros: never written.
    Empty,
    /// Intact.
    Valid(Entry),
    /// One bit was flipped and is corrected.
    Corrected(Entry),
    /// Something else.
    Damaged,
}

impl Entry {
    pub(crate) fn emit(&self, bytes: &mut [u8]) {
        assert_eq!(bytes.len(), ENTRY_BYTES);
        bytes.fill(0);
        put_u32(bytes, 0, MAGIC);
        let kind = match self.kind {
            Kind::User => 1,
            Kind::Moved => 2,
            Kind::Record => 3,
        };
        put_u32(bytes, 4, kind);
        put_u32(bytes, 8, self.lpn);
        put_u32(bytes, 12, self.instance);
        put_u64(bytes, 16, self.version.0);
        put_u64(bytes, 24, self.sequence);
        put_u64(bytes, 32, self.durable);
        put_u32(bytes, 40, self.generation);
        put_u32(bytes, 44, self.data_crc);
        put_u32(bytes, 48, self.checkpoint);
        put_u32(bytes, 52, self.ppn);
        mask(bytes, self.salt);
        put_u32(bytes, SALT_AT, self.salt);
        let crc = crc32c::crc32c(&bytes[..CRC_AT]);
        put_u32(bytes, CRC_AT, crc);
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        if crc32c::crc32c(&bytes[..CRC_AT]) != u32_at(bytes, CRC_AT) {
            return None;
        }
        let mut bytes: [u8; ENTRY_BYTES] = bytes.try_into().expect("an entry's bytes");
        let salt = u32_at(&bytes, SALT_AT);
        mask(&mut bytes, salt);
        let bytes = &bytes;
        if u32_at(bytes, 0) != MAGIC {
            return None;
        }
        let kind = match u32_at(bytes, 4) {
            1 => Kind::User,
            2 => Kind::Moved,
            3 => Kind::Record,
            _ => return None,
        };
        Some(Self {
            kind,
            lpn: u32_at(bytes, 8),
            instance: u32_at(bytes, 12),
            version: Version(u64_at(bytes, 16)),
            sequence: u64_at(bytes, 24),
            durable: u64_at(bytes, 32),
            generation: u32_at(bytes, 40),
            data_crc: u32_at(bytes, 44),
            checkpoint: u32_at(bytes, 48),
            ppn: u32_at(bytes, 52),
            salt,
        })
    }

    /// Reads an entry, correcting one flipped bit in `bytes` itself.
    pub(crate) fn decode(bytes: &mut [u8]) -> Decoded {
        if let Some(entry) = Self::parse(bytes) {
            return Decoded::Valid(entry);
        }
        if bytes.iter().all(|&b| b == 0) {
            return Decoded::Empty;
        }
        for bit in 0..ENTRY_BYTES * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            if let Some(entry) = Self::parse(bytes) {
                return Decoded::Corrected(entry);
            }
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        Decoded::Damaged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        Entry {
            kind: Kind::Moved,
            lpn: 1,
            instance: 2,
            version: Version(3),
            sequence: 4,
            durable: 5,
            generation: 6,
            data_crc: 7,
            checkpoint: 8,
            ppn: 9,
            salt: 10,
        }
    }

    #[test]
    fn one_flipped_bit_is_corrected_and_two_are_not_taken_for_an_entry() {
        let mut good = [0; ENTRY_BYTES];
        assert_eq!(Entry::decode(&mut good), Decoded::Empty);
        entry().emit(&mut good);
        assert_eq!(Entry::decode(&mut good.clone()), Decoded::Valid(entry()));
        for first in 0..ENTRY_BYTES * 8 {
            let mut bytes = good;
            bytes[first / 8] ^= 1 << (first % 8);
            assert_eq!(Entry::decode(&mut bytes), Decoded::Corrected(entry()));
            assert_eq!(bytes, good);
            let second = (first * 7 + 100) % (ENTRY_BYTES * 8);
            if second != first {
                bytes[first / 8] ^= 1 << (first % 8);
                bytes[second / 8] ^= 1 << (second % 8);
                assert_eq!(Entry::decode(&mut bytes), Decoded::Damaged);
            }
        }
    }
}

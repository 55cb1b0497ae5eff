//! Which keys a table may have: a Bloom filter in blocks of 64 bytes, so that a lookup touches one page of it, and one line of
//! the cache.

use super::page::{PAGE_HEADER_BYTES, payload_bytes};
use crate::entry::StructureId;
use crate::layout::Layout;

/// Bytes of a block: all bits of a key are in one.
const BLOCK_BYTES: usize = 64;
/// Bits for each key, and how many of them a key sets: of absent keys, one in 70 is taken for a present one.
const BITS: usize = 10;
const PROBES: u32 = 6;

/// The hash of a key of a table.
pub(crate) fn hash(key: &[u8]) -> u64 {
    // The checksum has 32 bits; the multiplication spreads them.
    spread(crc32c::crc32c(key))
}

/// The hash of a structure's key in tables.
pub(crate) fn hash_of(structure: StructureId, key: &[u8]) -> u64 {
    let prefix = crc32c::crc32c(&structure.0.to_be_bytes());
    spread(crc32c::crc32c_append(prefix, key))
}

fn spread(checksum: u32) -> u64 {
    u64::from(checksum).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Which keys memory may have: most lookups of keys in tables end here. In no area without tables: there it knows nothing.
pub(crate) struct Present(Vec<u8>);

impl Present {
    /// For so many keys, about.
    pub(crate) fn new(keys: u64) -> Self {
        Self(vec![0; (keys as usize * BITS / 8).next_multiple_of(BLOCK_BYTES)])
    }

    /// The same, empty.
    pub(crate) fn fresh(&self) -> Self {
        Self(vec![0; self.0.len()])
    }

    /// True in areas without tables.
    pub(crate) fn knows_nothing(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn add(&mut self, hash: u64) {
        if !self.knows_nothing() {
            set(&mut self.0, hash);
        }
    }

    /// Adds a key of a structure.
    pub(crate) fn add_key(&mut self, structure: StructureId, key: &[u8]) {
        if !self.knows_nothing() {
            self.add(hash_of(structure, key));
        }
    }

    /// Adds all keys of another one of the same length.
    pub(crate) fn add_all(&mut self, other: &Self) {
        self.0
            .iter_mut()
            .zip(&other.0)
            .for_each(|(own, other)| *own |= other);
    }

    /// False if no key of this hash is there.
    pub(crate) fn may_have(&self, hash: u64) -> bool {
        may_have(&self.0, hash)
    }
}

/// Blocks that a page of a filter holds.
fn blocks_of_page(layout: &Layout) -> usize {
    ((payload_bytes(layout) - PAGE_HEADER_BYTES) / BLOCK_BYTES).max(1)
}

/// Bytes of content of a page of a filter.
fn content_bytes(layout: &Layout) -> usize {
    blocks_of_page(layout) * BLOCK_BYTES
}

/// Blocks of the medium that a page of a filter takes.
pub(crate) fn page_blocks(layout: &Layout) -> u32 {
    layout.extent_of((PAGE_HEADER_BYTES + content_bytes(layout)) as u32) / layout.block_bytes
}

/// Pages of the filter of so many keys.
pub(crate) fn pages(layout: &Layout, keys: usize) -> u32 {
    (keys * BITS).div_ceil(8 * content_bytes(layout)).max(1) as u32
}

/// Which of the filter's pages has the bits of a key.
pub(crate) fn page_of(hash: u64, pages: u32) -> u32 {
    (((hash >> 32) * u64::from(pages)) >> 32) as u32
}

/// The contents of the pages of a filter for the keys of these hashes.
pub(crate) fn build(layout: &Layout, hashes: &[u64]) -> Vec<Vec<u8>> {
    let count = pages(layout, hashes.len());
    let mut all = vec![vec![0; content_bytes(layout)]; count as usize];
    for &hash in hashes {
        set(&mut all[page_of(hash, count) as usize], hash);
    }
    all
}

/// Adds a key.
fn set(content: &mut [u8], hash: u64) {
    let block = block_of(hash, content.len());
    for bit in bits(hash) {
        content[block + bit / 8] |= 1 << (bit % 8);
    }
}

/// False if no key of this hash is there. A page that makes no sense knows nothing.
pub(crate) fn may_have(content: &[u8], hash: u64) -> bool {
    if content.len() < BLOCK_BYTES {
        return true;
    }
    let block = block_of(hash, content.len());
    bits(hash).all(|bit| content[block + bit / 8] & (1 << (bit % 8)) != 0)
}

/// Where in the page the block of a hash begins.
fn block_of(hash: u64, bytes: usize) -> usize {
    let blocks = (bytes / BLOCK_BYTES) as u64;
    // Other bits than those that chose the page.
    let mixed = (hash ^ (hash >> 29)).wrapping_mul(0xd6e8_feb8_6659_fd93) >> 32;
    ((mixed * blocks) >> 32) as usize * BLOCK_BYTES
}

/// The bits of a key in its block.
fn bits(hash: u64) -> impl Iterator<Item = usize> {
    let mixed = (hash ^ (hash >> 31)).wrapping_mul(0xa53a_5635_151b_0c6f);
    (0..PROBES).map(move |probe| (mixed >> (10 * probe) & 511) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_hashes_as_it_does_in_tables() {
        let id = StructureId(77);
        assert_eq!(hash_of(id, b"key"), hash(&super::super::table_key(id, b"key")));
    }

    #[test]
    fn what_was_added_is_present() {
        let mut some = Present::new(1000);
        let mut others = some.fresh();
        (0..500).for_each(|nth| some.add(hash_of(StructureId(1), &u32::to_be_bytes(nth))));
        (0..500).for_each(|nth| others.add(hash_of(StructureId(2), &u32::to_be_bytes(nth))));
        let has = |it: &Present, id| {
            let all = (0..500).filter(|nth| it.may_have(hash_of(StructureId(id), &u32::to_be_bytes(*nth))));
            all.count()
        };
        assert_eq!(has(&some, 1), 500);
        assert!(has(&some, 2) < 50);
        some.add_all(&others);
        assert_eq!((has(&some, 1), has(&some, 2)), (500, 500));
        let mut none = Present::new(0);
        none.add(7);
        assert!(none.may_have(8), "it knows nothing");
    }

    #[test]
    fn every_key_is_found_and_one_absent_key_in_forty_at_most() {
        let layout = Layout::for_capacity(1 << 30, 4096).expect("large enough");
        let key = |index: u32| hash(&index.to_be_bytes());
        let hashes: Vec<u64> = (0..50_000).map(key).collect();
        let filter = build(&layout, &hashes);
        let may = |hash| may_have(&filter[page_of(hash, filter.len() as u32) as usize], hash);
        assert!(hashes.iter().all(|&hash| may(hash)));
        let mistaken = (1 << 30..).take(100_000).map(key).filter(|&hash| may(hash));
        let mistaken = mistaken.count();
        assert!(mistaken < 2500, "{mistaken} of 100,000");
        assert!(may_have(&[], 7), "no filter");
    }
}

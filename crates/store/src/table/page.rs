//! Pages: whole blocks of a table's segment, with entries in order (docs/format/store.md, "Tables").
//!
//! On the medium a page lies in sectors that check themselves, as everything does. In memory it is the payload of these sectors, in
//! one piece.

use crate::format::{u32_at, u64_at};
use crate::layout::{Layout, SECTOR_HEADER_BYTES};
use core::cmp::Ordering;

/// Bytes of a page before the places of its entries.
pub(crate) const PAGE_HEADER_BYTES: usize = 8;
/// Bytes of an entry of a leaf before its key.
pub(crate) const LEAF_ENTRY_BYTES: usize = 16;
/// Bytes of an entry of a page above before its key.
const INNER_ENTRY_BYTES: usize = 12;
/// Of the length of a value: the key was removed.
const REMOVED: u32 = 1 << 31;
/// Bytes of the place of an entry.
const PLACE_BYTES: usize = 4;

/// A page is longer than the usual one while more than one part in so many of it would be empty,
const WASTED_SHARE: usize = 8;
/// but not longer than so many of them.
const PAGES_MAX: usize = 8;

/// What a page has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Leaf = 0,
    Inner = 1,
    Filter = 2,
    Meta = 3,
}

impl Kind {
    fn from_u8(byte: u8) -> Option<Self> {
        [Self::Leaf, Self::Inner, Self::Filter, Self::Meta]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }
}

/// Bytes of a page on the medium that is not made longer by one entry: 4 KiB, and less in tiny areas.
pub(crate) fn page_bytes(layout: &Layout) -> u32 {
    let wished = (layout.segment_bytes / 64).clamp(128, 4096);
    wished.next_multiple_of(layout.block_bytes)
}

/// The payload of such a page.
pub(crate) fn payload_bytes(layout: &Layout) -> usize {
    layout.stream_of(page_bytes(layout)) as usize
}

/// Place of a page in its segment, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extent {
    pub block: u32,
    pub blocks: u32,
}

/// A value of a leaf, or the removal of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held<'a> {
    /// Place of the entry in the log's order.
    pub version: u64,
    /// `None` for a removed key.
    pub value: Option<&'a [u8]>,
}

/// A page while entries are added to it.
pub(crate) struct Draft {
    kind: Kind,
    places: Vec<u32>,
    bytes: Vec<u8>,
}

impl Draft {
    pub(crate) fn new(kind: Kind) -> Self {
        Self {
            kind,
            places: Vec::new(),
            bytes: Vec::new(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Bytes of the page, with an entry more of so many bytes beside its header.
    pub(crate) fn bytes_with(&self, content: usize) -> usize {
        self.used() + PLACE_BYTES + LEAF_ENTRY_BYTES + content
    }

    fn used(&self) -> usize {
        PAGE_HEADER_BYTES + PLACE_BYTES * self.places.len() + self.bytes.len()
    }

    /// True if an entry of so many bytes belongs into this page, and not into the next one. A page takes as few blocks as fill it
    /// well, because what stays empty in its last one is lost.
    pub(crate) fn has_room(&self, layout: &Layout, content: usize) -> bool {
        let with = self.bytes_with(content);
        let target = payload_bytes(layout);
        // A page above has two entries at least: else it would lead nowhere.
        let least = usize::from(self.kind == Kind::Inner);
        if self.places.len() <= least || with <= target {
            return true;
        }
        let used = self.used();
        let whole = layout.stream_of(layout.extent_of(used as u32)) as usize;
        let wasted = whole.max(target) - used;
        with <= whole || (wasted * WASTED_SHARE > whole && whole < PAGES_MAX * target)
    }

    pub(crate) fn push_leaf(&mut self, key: &[u8], held: Held<'_>) {
        let length = held.value.map_or(REMOVED, |value| value.len() as u32);
        self.place();
        self.bytes.extend((key.len() as u32).to_le_bytes());
        self.bytes.extend(length.to_le_bytes());
        self.bytes.extend(held.version.to_le_bytes());
        self.bytes.extend(key);
        self.bytes.extend(held.value.unwrap_or_default());
    }

    pub(crate) fn push_inner(&mut self, key: &[u8], child: Extent) {
        self.place();
        self.bytes.extend((key.len() as u32).to_le_bytes());
        self.bytes.extend(child.block.to_le_bytes());
        self.bytes.extend(child.blocks.to_le_bytes());
        self.bytes.extend(key);
    }

    /// Content of a page without entries.
    pub(crate) fn set(&mut self, bytes: &[u8]) {
        self.bytes.clear();
        self.bytes.extend(bytes);
    }

    fn place(&mut self) {
        self.places.push(self.bytes.len() as u32);
    }

    /// Appends the page to `out` as it lies on the medium, in sectors that are not sealed yet. How many blocks; the draft is
    /// empty again.
    pub(crate) fn finish(&mut self, layout: &Layout, out: &mut Vec<u8>) -> u32 {
        let used = self.used();
        let mut payload = Vec::with_capacity(used);
        payload.extend([self.kind as u8, 0]);
        payload.extend((self.places.len() as u16).to_le_bytes());
        payload.extend((used as u32).to_le_bytes());
        for place in &self.places {
            payload.extend(place.to_le_bytes());
        }
        payload.extend(&self.bytes);
        let extent = layout.extent_of(used as u32);
        let end = out.len() + extent as usize;
        for part in payload.chunks(layout.payload_bytes() as usize) {
            out.extend([0; SECTOR_HEADER_BYTES as usize]);
            out.extend(part);
        }
        out.resize(end, 0);
        self.places.clear();
        self.bytes.clear();
        extent / layout.block_bytes
    }
}

/// Blocks of the page whose payload begins so; `None` where there can be none.
pub(crate) fn blocks_of(layout: &Layout, payload: &[u8]) -> Option<u32> {
    let used = u32_at(payload.get(..PAGE_HEADER_BYTES)?, 4);
    let is_page = used as usize >= PAGE_HEADER_BYTES && used < layout.stream_of(layout.segment_bytes);
    is_page.then(|| layout.extent_of(used) / layout.block_bytes)
}

/// The payload of an intact page. `None` from its functions says that it makes no sense, though its checksums fit.
#[derive(Clone, Copy)]
pub(crate) struct Page<'a> {
    pub kind: Kind,
    pub count: usize,
    places: &'a [u8],
    bytes: &'a [u8],
}

impl<'a> Page<'a> {
    pub(crate) fn parse(page: &'a [u8]) -> Option<Self> {
        let header = page.get(..PAGE_HEADER_BYTES)?;
        let kind = Kind::from_u8(header[0])?;
        let count = usize::from(u16::from_le_bytes([header[2], header[3]]));
        let used = page.get(PAGE_HEADER_BYTES..u32_at(header, 4) as usize)?;
        let (places, bytes) = used.split_at_checked(PLACE_BYTES * count)?;
        Some(Self {
            kind,
            count,
            places,
            bytes,
        })
    }

    /// Content of a page without entries.
    pub(crate) fn content(&self) -> &'a [u8] {
        self.bytes
    }

    fn entry(&self, index: usize) -> Option<&'a [u8]> {
        let start = PLACE_BYTES.checked_mul(index)?;
        let place = self.places.get(start..start.checked_add(PLACE_BYTES)?)?;
        self.bytes.get(u32_at(place, 0) as usize..)
    }

    /// Key of an entry, after a header of so many bytes.
    fn key_at(&self, index: usize) -> Option<&'a [u8]> {
        let entry = self.entry(index)?;
        let header = match self.kind {
            Kind::Leaf => LEAF_ENTRY_BYTES,
            _ => INNER_ENTRY_BYTES,
        };
        let length = u32_at(entry.get(..4)?, 0) as usize;
        entry.get(header..header.checked_add(length)?)
    }

    /// An entry of a leaf.
    pub(crate) fn leaf(&self, index: usize) -> Option<(&'a [u8], Held<'a>)> {
        let key = self.key_at(index)?;
        let entry = self.entry(index)?;
        let length = u32_at(entry.get(..LEAF_ENTRY_BYTES)?, 4);
        let start = LEAF_ENTRY_BYTES + key.len();
        let value = match length {
            REMOVED => None,
            _ => Some(entry.get(start..start.checked_add(length as usize)?)?),
        };
        let version = u64_at(entry, 8);
        Some((key, Held { version, value }))
    }

    /// An entry of a page above: its key, and the page below.
    pub(crate) fn inner(&self, index: usize) -> Option<(&'a [u8], Extent)> {
        let entry = self.entry(index)?.get(..INNER_ENTRY_BYTES)?;
        let child = Extent {
            block: u32_at(entry, 4),
            blocks: u32_at(entry, 8),
        };
        Some((self.key_at(index)?, child))
    }

    /// How many entries have keys below `key`, and whether the next one has it.
    pub(crate) fn rank(&self, key: &[u8]) -> Option<(usize, bool)> {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = (low + high) / 2;
            match self.key_at(middle)?.cmp(key) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return Some((middle, true)),
                Ordering::Greater => high = middle,
            }
        }
        Some((low, false))
    }

    /// The page below that may have `key`: the last one whose key is not above it.
    pub(crate) fn below(&self, key: &[u8]) -> Option<Extent> {
        let (rank, is_there) = self.rank(key)?;
        let index = if is_there { rank } else { rank.saturating_sub(1) };
        Some(self.inner(index)?.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout() -> Layout {
        Layout::for_capacity(8 << 20, 4096).expect("large enough")
    }

    /// The payload of what a draft becomes.
    fn finish(draft: &mut Draft) -> Vec<u8> {
        let mut bytes = Vec::new();
        let blocks = draft.finish(&layout(), &mut bytes);
        let sectors = bytes.chunks(layout().sector_bytes as usize);
        let payload: Vec<u8> = sectors.flat_map(|sector| sector[8..].to_vec()).collect();
        assert_eq!(blocks_of(&layout(), &payload), Some(blocks));
        payload
    }

    fn key(index: u32) -> Vec<u8> {
        format!("key-{:05}", 2 * index).into_bytes()
    }

    fn leaf(count: u32) -> Vec<u8> {
        let mut draft = Draft::new(Kind::Leaf);
        for index in 0..count {
            let bytes = index.to_le_bytes();
            let value = (index % 3 > 0).then_some(&bytes[..]);
            let version = u64::from(index);
            draft.push_leaf(&key(index), Held { version, value });
        }
        finish(&mut draft)
    }

    #[test]
    fn a_leaf_finds_each_key_and_no_other() {
        for count in [0, 1, 15, 100] {
            let bytes = leaf(count);
            let page = Page::parse(&bytes).expect("as written");
            for index in 0..count {
                assert_eq!(page.rank(&key(index)), Some((index as usize, true)));
                let (found, held) = page.leaf(index as usize).expect("sound");
                let value = index.to_le_bytes();
                assert_eq!(found, key(index));
                assert_eq!(held.value, (index % 3 > 0).then_some(&value[..]));
                assert_eq!(held.version, u64::from(index));
                let mut between = key(index);
                between.push(0);
                assert_eq!(page.rank(&between), Some((index as usize + 1, false)));
            }
            assert_eq!(page.rank(b"a"), Some((0, false)));
        }
    }

    #[test]
    fn a_page_above_leads_to_the_last_child_that_is_not_above_the_key() {
        let mut draft = Draft::new(Kind::Inner);
        let child = |block| Extent { block, blocks: 1 };
        (1..40).for_each(|index| draft.push_inner(&key(index), child(index)));
        let bytes = finish(&mut draft);
        let page = Page::parse(&bytes).expect("as written");
        assert_eq!(page.below(&key(0)), Some(child(1)), "below the first");
        assert_eq!(page.below(&key(7)), Some(child(7)));
        let mut between = key(7);
        between.push(0);
        assert_eq!(page.below(&between), Some(child(7)));
        assert_eq!(page.below(b"z"), Some(child(39)));
    }

    #[test]
    fn what_makes_no_sense_never_panics() {
        let bytes = leaf(40);
        for bit in 0..8 * 1500 {
            let mut wrong = bytes.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            if let Some(page) = Page::parse(&wrong) {
                let _ = (page.rank(&key(17)), page.leaf(page.count), page.below(&key(3)));
                assert!(
                    (0..page.count)
                        .filter(|&index| page.leaf(index).is_some())
                        .count()
                        <= page.count
                );
            }
        }
    }
}

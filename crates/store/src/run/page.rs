//! A page of a run: keys in order, each with a value (docs/format/store.md, "Runs").
//!
//! A key is written as what it does not share with the key before. Each [`RESTART`]th key is whole, and the page ends with the
//! places of the whole keys, so a search halves them.

use crate::format::u32_at;
use crate::layout::Layout;
use core::cmp::Ordering;

/// Bytes before the entries.
pub(crate) const PAGE_HEADER_BYTES: usize = 12;
/// Entries from one whole key to the next.
const RESTART: usize = 16;
/// The level of a manifest, which is no page of keys.
pub(crate) const MANIFEST: u8 = 0xff;

/// A page while it is written.
#[derive(Default)]
pub(crate) struct Draft {
    bytes: Vec<u8>,
    restarts: Vec<u32>,
    first: Vec<u8>,
    last: Vec<u8>,
    pub entries: usize,
}

impl Draft {
    /// Bytes of the page with one more entry, at most.
    pub(crate) fn bytes_with(&self, key: &[u8], value: &[u8]) -> usize {
        let restarts = self.restarts.len() + 1;
        PAGE_HEADER_BYTES + self.bytes.len() + 15 + key.len() + value.len() + 4 * restarts
    }

    /// Adds an entry. Its key is above all that are there.
    pub(crate) fn push(&mut self, key: &[u8], value: &[u8]) {
        debug_assert!(self.entries == 0 || *key > *self.last, "a run is in order");
        let shared = match self.entries.is_multiple_of(RESTART) {
            true => {
                self.restarts.push(self.bytes.len() as u32);
                0
            }
            false => key.iter().zip(&self.last).take_while(|(a, b)| a == b).count(),
        };
        for length in [shared, key.len() - shared, value.len()] {
            put_varint(&mut self.bytes, length as u64);
        }
        self.bytes.extend(&key[shared..]);
        self.bytes.extend(value);
        if self.entries == 0 {
            self.first = key.to_vec();
        }
        self.last.truncate(shared);
        self.last.extend(&key[shared..]);
        self.entries += 1;
    }

    /// The first key, and the payload of whole blocks.
    pub(crate) fn finish(self, layout: &Layout, level: u8) -> (Vec<u8>, Vec<u8>) {
        let payload = emit(layout, level, &self.restarts, &self.bytes);
        (self.first, payload)
    }
}

/// The payload of whole blocks with `bytes`.
pub(crate) fn emit(layout: &Layout, level: u8, restarts: &[u32], bytes: &[u8]) -> Vec<u8> {
    let size = PAGE_HEADER_BYTES + bytes.len() + 4 * restarts.len();
    let whole = layout.stream_of(layout.extent_of(size as u32)) as usize;
    let mut payload = Vec::with_capacity(whole);
    payload.extend([level, 0]);
    payload.extend((restarts.len() as u16).to_le_bytes());
    payload.extend((bytes.len() as u32).to_le_bytes());
    payload.extend((layout.extent_of(size as u32) / layout.block_bytes).to_le_bytes());
    payload.extend(bytes);
    restarts.iter().for_each(|at| payload.extend(at.to_le_bytes()));
    payload.resize(whole, 0);
    payload
}

/// Blocks of the page whose first sector has this payload.
pub(crate) fn blocks_of(payload: &[u8]) -> u32 {
    u32_at(payload, 8)
}

/// A page that was read. `None` from any of its functions says that it makes no sense, though its checksums fit.
#[derive(Clone, Copy)]
pub(crate) struct Page<'a> {
    pub level: u8,
    bytes: &'a [u8],
    restarts: &'a [u8],
}

impl<'a> Page<'a> {
    pub(crate) fn parse(payload: &'a [u8]) -> Option<Self> {
        let (header, rest) = payload.split_at_checked(PAGE_HEADER_BYTES)?;
        let restarts = 4 * usize::from(u16::from_le_bytes([header[2], header[3]]));
        let (bytes, rest) = rest.split_at_checked(u32_at(header, 4) as usize)?;
        Some(Self {
            level: header[0],
            bytes,
            restarts: rest.get(..restarts)?,
        })
    }

    /// The content of a page without keys.
    pub(crate) fn content(&self) -> &'a [u8] {
        self.bytes
    }

    /// A cursor before the first entry.
    pub(crate) fn cursor(&self) -> Cursor<'a> {
        self.cursor_at(0)
    }

    fn cursor_at(&self, at: usize) -> Cursor<'a> {
        Cursor {
            rest: self.bytes.get(at..).unwrap_or(&[]),
            key: Vec::new(),
        }
    }

    /// A cursor before an entry whose key is not above `key`, if there is one, and near it.
    fn near(&self, key: &[u8]) -> Option<Cursor<'a>> {
        let (mut low, mut high) = (0, self.restarts.len() / 4);
        while high - low > 1 {
            let middle = (low + high) / 2;
            let mut cursor = self.cursor_at(u32_at(self.restarts, 4 * middle) as usize);
            let (found, _) = cursor.next()??;
            match found > key {
                true => high = middle,
                false => low = middle,
            }
        }
        let at = self.restarts.get(4 * low..).filter(|rest| !rest.is_empty());
        Some(self.cursor_at(at.map_or(0, |at| u32_at(at, 0) as usize)))
    }

    /// The value of `key`.
    pub(crate) fn get(&self, key: &[u8]) -> Option<Option<&'a [u8]>> {
        let mut cursor = self.near(key)?;
        while let Some((found, value)) = cursor.next()? {
            match found.cmp(key) {
                Ordering::Less => {}
                Ordering::Equal => return Some(Some(value)),
                Ordering::Greater => break,
            }
        }
        Some(None)
    }

    /// The value of the last key that is not above `key`.
    pub(crate) fn floor(&self, key: &[u8]) -> Option<Option<&'a [u8]>> {
        let mut cursor = self.near(key)?;
        let mut last = None;
        while let Some((found, value)) = cursor.next()? {
            if found > key {
                break;
            }
            last = Some(value);
        }
        Some(last)
    }
}

/// Goes through the entries of a page.
pub(crate) struct Cursor<'a> {
    rest: &'a [u8],
    key: Vec<u8>,
}

impl<'a> Cursor<'a> {
    /// The next entry: `Some(None)` behind the last, `None` if the page makes no sense.
    pub(crate) fn next(&mut self) -> Option<Option<(&[u8], &'a [u8])>> {
        if self.rest.is_empty() {
            return Some(None);
        }
        let mut lengths = [0; 3];
        for length in &mut lengths {
            *length = usize::try_from(take_varint(&mut self.rest)?).ok()?;
        }
        let [shared, own, value] = lengths;
        if shared > self.key.len() {
            return None;
        }
        let (own, rest) = self.rest.split_at_checked(own)?;
        let (value, rest) = rest.split_at_checked(value)?;
        self.rest = rest;
        self.key.truncate(shared);
        self.key.extend(own);
        Some(Some((&self.key, value)))
    }
}

/// Seven bits a byte, the lowest first.
pub(crate) fn put_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

pub(crate) fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout() -> Layout {
        Layout::for_capacity(8 << 20, 4096).expect("large enough")
    }

    fn key(index: u32) -> Vec<u8> {
        format!("key-{:05}", 2 * index).into_bytes()
    }

    #[test]
    fn a_page_finds_each_key_and_no_other() {
        for count in [0, 1, 15, 16, 17, 300] {
            let mut draft = Draft::default();
            (0..count).for_each(|index| draft.push(&key(index), &index.to_le_bytes()));
            let (first, payload) = draft.finish(&layout(), 3);
            let page = Page::parse(&payload).expect("as written");
            assert_eq!((page.level, first.is_empty()), (3, count == 0));
            for index in 0..count {
                assert_eq!(page.get(&key(index)), Some(Some(&index.to_le_bytes()[..])));
                let mut between = key(index);
                between.push(0);
                assert_eq!(page.get(&between), Some(None));
                assert_eq!(page.floor(&between), Some(Some(&index.to_le_bytes()[..])));
            }
            assert_eq!(page.get(b"a"), Some(None));
            assert_eq!(page.floor(b"a"), Some(None));
            let mut cursor = page.cursor();
            for index in 0..count {
                let (found, _) = cursor.next().expect("sound").expect("there");
                assert_eq!(found, key(index));
            }
            assert_eq!(cursor.next(), Some(None));
        }
    }

    #[test]
    fn varints_come_back() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX] {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, value);
            assert_eq!(take_varint(&mut &bytes[..]), Some(value));
            assert_eq!(take_varint(&mut &bytes[..bytes.len() - 1]), None);
        }
    }

    #[test]
    fn a_page_that_makes_no_sense_is_refused_and_never_panics() {
        let mut draft = Draft::default();
        (0..40).for_each(|index| draft.push(&key(index), b"value"));
        let (_, payload) = draft.finish(&layout(), 0);
        for at in 0..900 {
            let mut wrong = payload.clone();
            wrong[at] ^= 0x55;
            if let Some(page) = Page::parse(&wrong) {
                let _ = (page.get(&key(17)), page.floor(&key(39)));
                let mut cursor = page.cursor();
                while let Some(Some(_)) = cursor.next() {}
            }
        }
    }
}

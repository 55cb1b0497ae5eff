//! Nodes of the tree as bytes (docs/format/fs.md): entries in the order of their keys, one behind the other.
//!
//! A [`Node`] that was read is checked once ([`Node::check`]); from then on each of its entries is known to lie inside it.
//! Entries are named by their first byte in the block. A node but the root is at least a quarter full: an entry is at most
//! 1043 bytes, so a node that is too full can always be divided into two that are.

use crate::format::{
    BLOCK_BYTES, Block, Damage, KEY_BYTES, Key, Place, Pointer, RESERVED_BLOCKS, put_u16, put_u64, u16_at,
    u64_at,
};
use core::ops::Range;

/// Where the entries begin.
pub const HEAD_BYTES: usize = 40;
/// Bytes for entries.
pub const CAPACITY: usize = BLOCK_BYTES - HEAD_BYTES;
/// Bytes of entries of a node but the root, at least.
pub const FILL_MIN: usize = CAPACITY / 4;
/// Bytes of a value, at most.
pub const VALUE_BYTES_MAX: usize = 1024;
/// Levels, at most: with 31 children a node this is more than there can be places.
pub const LEVELS_MAX: usize = 12;

const LEAF_HEAD_BYTES: usize = KEY_BYTES + 2;
const INNER_BYTES: usize = KEY_BYTES + 16;
const ENTRY_BYTES_MAX: usize = LEAF_HEAD_BYTES + VALUE_BYTES_MAX;

/// A key as it is compared: its 17 bytes as a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Raw {
    head: u128,
    tail: u8,
}

impl Raw {
    /// Lower than each key: the first key of the first inner node of a level.
    pub const LOWEST: Self = Self { head: 0, tail: 0 };

    /// Of a key.
    pub fn of(key: Key) -> Self {
        Self::read(&key.to_bytes(), 0)
    }

    /// The key, if it is one.
    pub fn key(self) -> Option<Key> {
        let mut bytes = [0; KEY_BYTES];
        self.write(&mut bytes, 0);
        Key::from_bytes(&bytes)
    }

    /// The next one.
    pub fn next(self) -> Option<Self> {
        match self.tail.checked_add(1) {
            Some(tail) => Some(Self { tail, ..self }),
            None => self.head.checked_add(1).map(|head| Self { head, tail: 0 }),
        }
    }

    #[inline]
    fn read(bytes: &[u8], at: usize) -> Self {
        let head = bytes[at..at + 16].try_into().expect("sixteen bytes");
        Self {
            head: u128::from_be_bytes(head),
            tail: bytes[at + 16],
        }
    }

    fn write(self, bytes: &mut [u8], at: usize) {
        bytes[at..at + 16].copy_from_slice(&self.head.to_be_bytes());
        bytes[at + 16] = self.tail;
    }
}

/// The bytes of an entry.
pub struct Entry {
    bytes: [u8; ENTRY_BYTES_MAX],
    length: usize,
}

impl Entry {
    /// No entry: an edit that only removes.
    pub const NONE: Self = Self {
        bytes: [0; ENTRY_BYTES_MAX],
        length: 0,
    };

    /// Of a leaf. The value has at most [`VALUE_BYTES_MAX`] bytes.
    pub fn leaf(key: Raw, value: &[u8]) -> Self {
        let mut entry = Self::NONE;
        entry.length = LEAF_HEAD_BYTES + value.len();
        key.write(&mut entry.bytes, 0);
        put_u16(&mut entry.bytes, KEY_BYTES, value.len() as u16);
        entry.bytes[LEAF_HEAD_BYTES..entry.length].copy_from_slice(value);
        entry
    }

    /// Of an inner node.
    pub fn inner(key: Raw, child: Pointer) -> Self {
        let mut entry = Self::NONE;
        entry.length = INNER_BYTES;
        key.write(&mut entry.bytes, 0);
        put_u64(&mut entry.bytes, KEY_BYTES, child.place.raw());
        put_u64(&mut entry.bytes, KEY_BYTES + 8, child.generation);
        entry
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Entries that go, and one that comes in their place.
pub struct Edit {
    /// Where the first one is that goes, or before which the new one comes.
    pub at: usize,
    /// Bytes of those that go.
    pub bytes: usize,
    /// How many go.
    pub count: usize,
    /// What comes.
    pub entry: Entry,
}

impl Edit {
    /// What the node has more or less of, in entries.
    fn count_of(&self, count: usize) -> usize {
        count - self.count + usize::from(self.entry.length > 0)
    }
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node(Block);

impl Node {
    /// Without entries.
    pub fn empty(level: u8) -> Self {
        let mut node = Self([0; BLOCK_BYTES]);
        node.0[32] = level;
        put_u16(&mut node.0, 36, HEAD_BYTES as u16);
        node
    }

    /// Its bytes.
    pub fn block(&self) -> &Block {
        &self.0
    }

    /// Its bytes, to read it from a medium, or to seal it.
    pub fn block_mut(&mut self) -> &mut Block {
        &mut self.0
    }

    /// Checks what was read: nothing of a node is used before.
    pub fn check(&self, level: u8) -> Result<(), Damage> {
        let end = usize::from(u16_at(&self.0, 36));
        let is_sound = self.0[32] == level
            && [33, 38, 39].iter().all(|&at| self.0[at] == 0)
            && (HEAD_BYTES..=BLOCK_BYTES).contains(&end)
            && self.0[end..].iter().all(|&byte| byte == 0);
        let found = match (is_sound, level) {
            (false, _) => None,
            (true, 0) => self.check_leaf(end),
            (true, _) => self.check_inner(end),
        };
        match found {
            Some(count) if count == self.count() && count > 0 => Ok(()),
            _ => Err(Damage::Content),
        }
    }

    /// Counts the entries, if all make sense.
    fn check_leaf(&self, end: usize) -> Option<usize> {
        let (mut at, mut count, mut last) = (HEAD_BYTES, 0, None);
        while at < end {
            let head = self.0[..end].get(at..at + LEAF_HEAD_BYTES)?;
            let (key, length) = (Raw::read(head, 0), usize::from(u16_at(head, KEY_BYTES)));
            key.key()?;
            at += LEAF_HEAD_BYTES + length;
            if last >= Some(key) || length > VALUE_BYTES_MAX || at > end {
                return None;
            }
            (last, count) = (Some(key), count + 1);
        }
        Some(count)
    }

    fn check_inner(&self, end: usize) -> Option<usize> {
        let (entries, rest) = self.0[HEAD_BYTES..end].as_chunks::<INNER_BYTES>();
        let mut last = None;
        for entry in entries {
            let key = Raw::read(entry, 0);
            let place = Place::from_raw(u64_at(entry, KEY_BYTES));
            if last >= Some(key) || place.device() != 0 || place.number() < RESERVED_BLOCKS {
                return None;
            }
            last = Some(key);
        }
        rest.is_empty().then_some(entries.len())
    }

    /// 0 for a leaf.
    pub fn level(&self) -> u8 {
        self.0[32]
    }

    /// Its entries.
    pub fn count(&self) -> usize {
        usize::from(u16_at(&self.0, 34))
    }

    /// Behind the last entry.
    pub fn end(&self) -> usize {
        usize::from(u16_at(&self.0, 36))
    }

    /// Bytes of its entries.
    pub fn bytes(&self) -> usize {
        self.end() - HEAD_BYTES
    }

    /// The key of an entry.
    #[inline]
    pub fn key_at(&self, at: usize) -> Raw {
        Raw::read(&self.0, at)
    }

    /// The entry behind one.
    #[inline]
    pub fn next(&self, at: usize) -> usize {
        at + entry_bytes(&self.0, at, self.level())
    }

    /// Where the value of an entry of a leaf is.
    #[inline]
    pub fn value_at(&self, at: usize) -> Range<usize> {
        let from = at + LEAF_HEAD_BYTES;
        from..from + usize::from(u16_at(&self.0, at + KEY_BYTES))
    }

    /// The first entry of a leaf whose key is not below this one; [`end`](Node::end) if there is none. True if it is this key.
    pub fn find(&self, key: Raw) -> (usize, bool) {
        let (mut at, end) = (HEAD_BYTES, self.end());
        while at < end {
            let here = self.key_at(at);
            if here >= key {
                return (at, here == key);
            }
            at += LEAF_HEAD_BYTES + usize::from(u16_at(&self.0, at + KEY_BYTES));
        }
        (end, false)
    }

    /// Bytes and number of the entries of a leaf from `at` on whose keys are not above `last`.
    pub fn until(&self, at: usize, last: Raw) -> (usize, usize) {
        let (mut to, mut count) = (at, 0);
        while to < self.end() && self.key_at(to) <= last {
            (to, count) = (self.next(to), count + 1);
        }
        (to - at, count)
    }

    /// The child of an inner node that has a key.
    pub fn child_of(&self, key: Raw) -> usize {
        let (mut low, mut high) = (0, self.count());
        while high - low > 1 {
            let middle = low.midpoint(high);
            match self.key_at(Self::inner_at(middle)) <= key {
                true => low = middle,
                false => high = middle,
            }
        }
        low
    }

    /// Where an entry of an inner node is.
    pub fn inner_at(index: usize) -> usize {
        HEAD_BYTES + index * INNER_BYTES
    }

    /// The lowest key that a child may have, if there is such a child.
    pub fn lowest_of(&self, index: usize) -> Option<Raw> {
        (index < self.count()).then(|| self.key_at(Self::inner_at(index)))
    }

    /// A child of an inner node.
    pub fn child(&self, index: usize) -> Pointer {
        let at = Self::inner_at(index) + KEY_BYTES;
        Pointer {
            place: Place::from_raw(u64_at(&self.0, at)),
            generation: u64_at(&self.0, at + 8),
        }
    }

    /// Says where a child is now.
    pub fn set_child(&mut self, index: usize, child: Pointer) {
        let at = Self::inner_at(index) + KEY_BYTES;
        put_u64(&mut self.0, at, child.place.raw());
        put_u64(&mut self.0, at + 8, child.generation);
    }

    /// Says which keys a child has now.
    pub fn set_lowest(&mut self, index: usize, key: Raw) {
        key.write(&mut self.0, Self::inner_at(index));
    }

    /// The edit that takes a child out.
    pub fn without(index: usize) -> Edit {
        Edit {
            at: Self::inner_at(index),
            bytes: INNER_BYTES,
            count: 1,
            entry: Entry::NONE,
        }
    }

    /// Overwrites a value by one of the same length.
    pub fn overwrite(&mut self, at: usize, value: &[u8]) {
        let range = self.value_at(at);
        self.0[range].copy_from_slice(value);
    }

    /// Bytes of its entries after an edit: more than [`CAPACITY`] do not fit.
    pub fn bytes_with(&self, edit: &Edit) -> usize {
        self.bytes() - edit.bytes + edit.entry.length
    }

    /// Makes an edit that fits.
    pub fn apply(&mut self, edit: &Edit) {
        let (end, entry) = (self.end(), edit.entry.bytes());
        let to = edit.at + entry.len();
        self.0.copy_within(edit.at + edit.bytes..end, to);
        self.0[edit.at..to].copy_from_slice(entry);
        let new_end = end - edit.bytes + entry.len();
        if new_end < end {
            self.0[new_end..end].fill(0);
        }
        let count = edit.count_of(self.count());
        put_u16(&mut self.0, 34, count as u16);
        put_u16(&mut self.0, 36, new_end as u16);
    }

    /// Makes an edit that does not fit, and gives the upper part away. If the new entry is the last one, keys are likely to
    /// come in their order, and the upper part is as small as it may be.
    pub fn split(&mut self, edit: &Edit) -> Self {
        let mut all = [0; CAPACITY + ENTRY_BYTES_MAX];
        let length = self.bytes_with(edit);
        let (at, end, entry) = (edit.at - HEAD_BYTES, self.end(), edit.entry.bytes());
        all[..at].copy_from_slice(&self.0[HEAD_BYTES..edit.at]);
        all[at..at + entry.len()].copy_from_slice(entry);
        all[at + entry.len()..length].copy_from_slice(&self.0[edit.at + edit.bytes..end]);
        let count = edit.count_of(self.count());
        let mut right = Self::empty(self.level());
        self.divide(&mut right, &all[..length], count, edit.at == end);
        right
    }

    /// Takes all of the node behind it, if that fits, and says whether it did. If not, both have half of it.
    pub fn join(&mut self, right: &mut Self) -> bool {
        let (bytes, count) = (self.bytes() + right.bytes(), self.count() + right.count());
        let mut all = [0; 2 * CAPACITY];
        all[..self.bytes()].copy_from_slice(&self.0[HEAD_BYTES..self.end()]);
        all[self.bytes()..bytes].copy_from_slice(&right.0[HEAD_BYTES..right.end()]);
        if bytes <= CAPACITY {
            self.fill(&all[..bytes], count);
            return true;
        }
        self.divide(right, &all[..bytes], count, false);
        false
    }

    /// Has the lower part of `count` entries, and `right` the rest: half of them, or as little as it may have.
    fn divide(&mut self, right: &mut Self, all: &[u8], count: usize, is_right_small: bool) {
        let (half, most) = (all.len() / 2, CAPACITY.min(all.len() - FILL_MIN));
        let (mut at, mut left) = (0, 0);
        loop {
            let next = at + entry_bytes(all, at, self.level());
            let is_farther = next.abs_diff(half) > at.abs_diff(half);
            if next > most || (is_farther && !is_right_small) {
                break;
            }
            (at, left) = (next, left + 1);
        }
        self.fill(&all[..at], left);
        right.fill(&all[at..], count - left);
    }

    fn fill(&mut self, entries: &[u8], count: usize) {
        let end = HEAD_BYTES + entries.len();
        self.0[HEAD_BYTES..end].copy_from_slice(entries);
        self.0[end..].fill(0);
        put_u16(&mut self.0, 34, count as u16);
        put_u16(&mut self.0, 36, end as u16);
    }
}

fn entry_bytes(bytes: &[u8], at: usize, level: u8) -> usize {
    match level {
        0 => LEAF_HEAD_BYTES + usize::from(u16_at(bytes, at + KEY_BYTES)),
        _ => INNER_BYTES,
    }
}

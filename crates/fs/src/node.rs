//! Nodes of the tree as bytes (docs/format/fs.md): entries in the order of their keys, one behind the other.
//!
//! A [`Node`] that was read is checked once ([`Node::check`]); from then on each of its entries is known to lie inside it.
//! Entries are named by their index. In memory a node also has a table of where each entry begins, and of the part of its key in which
//! the keys differ: bisection of that part touches few lines of memory, where whole keys would cost one each.
//! A node but the root is at least a quarter full: an entry is at most 1043 bytes, so a node that is too full can always be
//! divided into two that are.

use crate::format::{
    BLOCK_BYTES, Block, Damage, KEY_BYTES, Key, Place, Pointer, RESERVED_BLOCKS, put_u16, put_u64, u16_at,
    u64_at,
};
use core::cmp::Ordering;
use core::ops::Range;

/// Where the entries begin.
const HEAD_BYTES: usize = 40;
/// Bytes for entries.
pub const CAPACITY: usize = BLOCK_BYTES - HEAD_BYTES;
/// Bytes of entries of a node but the root, at least.
pub const FILL_MIN: usize = CAPACITY / 4;
/// Bytes of a value, at most.
pub const VALUE_BYTES_MAX: usize = 1024;
/// Levels, at most: with 31 children a node this is more than there can be places.
pub const LEVELS_MAX: usize = 12;

const LEAF_HEAD_BYTES: usize = KEY_BYTES + 2;
/// Bytes of an entry of an inner node.
pub const INNER_BYTES: usize = KEY_BYTES + 16;
/// Children of a node, at most.
pub const CHILDREN_MAX: u64 = (CAPACITY / INNER_BYTES) as u64;
/// Children of a node that is not on top, at least.
pub const CHILDREN_MIN: u64 = (FILL_MIN / INNER_BYTES) as u64;
const ENTRY_BYTES_MAX: usize = LEAF_HEAD_BYTES + VALUE_BYTES_MAX;
/// Entries of a node, at most: of a leaf without values.
const ENTRIES_MAX: usize = CAPACITY / LEAF_HEAD_BYTES;

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
        let [head @ .., tail]: [u8; KEY_BYTES] = bytes[at..at + KEY_BYTES].try_into().expect("a key");
        Self {
            head: u128::from_be_bytes(head),
            tail,
        }
    }

    fn write(self, bytes: &mut [u8], at: usize) {
        bytes[at..at + 16].copy_from_slice(&self.head.to_be_bytes());
        bytes[at + 16] = self.tail;
    }
}

/// An entry that comes into a node.
#[derive(Clone, Copy, Debug)]
pub enum Entry<'a> {
    /// No entry: an edit that only removes.
    None,
    /// Of a leaf. The value has at most [`VALUE_BYTES_MAX`] bytes.
    Leaf(Raw, &'a [u8]),
    /// Of an inner node.
    Inner(Raw, Pointer),
}

impl Entry<'_> {
    fn bytes(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Leaf(_, value) => LEAF_HEAD_BYTES + value.len(),
            Self::Inner(..) => INNER_BYTES,
        }
    }

    fn key(&self) -> Option<Raw> {
        match self {
            Self::None => None,
            Self::Leaf(key, _) | Self::Inner(key, _) => Some(*key),
        }
    }

    fn count(&self) -> usize {
        usize::from(self.key().is_some())
    }

    /// Writes it to bytes that are as many as it has.
    fn emit(&self, bytes: &mut [u8]) {
        match self {
            Self::None => {}
            Self::Leaf(key, value) => {
                key.write(bytes, 0);
                put_u16(bytes, KEY_BYTES, value.len() as u16);
                bytes[LEAF_HEAD_BYTES..].copy_from_slice(value);
            }
            Self::Inner(key, child) => {
                key.write(bytes, 0);
                put_u64(bytes, KEY_BYTES, child.place.raw());
                put_u64(bytes, KEY_BYTES + 8, child.generation);
            }
        }
    }
}

/// Entries that go, and one that comes in their place.
#[derive(Clone, Copy, Debug)]
pub struct Edit<'a> {
    /// The first entry that goes, or before which the new one comes.
    pub index: usize,
    /// How many go.
    pub count: usize,
    /// What comes.
    pub entry: Entry<'a>,
}

/// Where keys are, and the part of each that tells them apart. The keys of a node begin with the same bits.
#[derive(Clone, Debug)]
#[repr(C)]
struct Table {
    /// As many as the block says.
    count: usize,
    /// How many bits all keys begin with: at most [`Table::BITS`].
    common: u32,
    /// These bits, in front of zeros.
    prefix: u128,
    /// Of each key the 32 bits behind those.
    parts: [u32; ENTRIES_MAX],
    /// Where each entry of a leaf begins. Those of an inner node all have the same length.
    offsets: [u16; ENTRIES_MAX],
}

impl Table {
    /// Bits that keys may have in common.
    const BITS: u32 = 96;

    const fn empty() -> Self {
        Self {
            count: 0,
            common: Self::BITS,
            prefix: 0,
            parts: [0; ENTRIES_MAX],
            offsets: [0; ENTRIES_MAX],
        }
    }

    /// The first bits of a key, in front of zeros.
    fn prefix_of(&self, key: Raw) -> u128 {
        match self.common {
            0 => 0,
            common => key.head & u128::MAX << (u128::BITS - common),
        }
    }

    fn part_of(&self, key: Raw) -> u32 {
        (key.head << self.common >> (u128::BITS - u32::BITS)) as u32
    }
}

/// A node. What a search reads first lies together, in front.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Node {
    table: Table,
    block: Block,
}

impl Node {
    /// Without entries.
    pub fn empty(level: u8) -> Self {
        let mut node = Self {
            block: [0; BLOCK_BYTES],
            table: Table::empty(),
        };
        node.block[32] = level;
        put_u16(&mut node.block, 36, HEAD_BYTES as u16);
        node
    }

    /// Of a block that was read, if it makes sense.
    ///
    /// # Errors
    /// Its content makes no sense. Its seal is for the caller to look at.
    pub fn read(block: &Block, level: u8) -> Result<Self, Damage> {
        let mut node = Self {
            block: *block,
            table: Table::empty(),
        };
        node.check(level)?;
        node.index();
        Ok(node)
    }

    /// Its bytes.
    pub fn block(&self) -> &Block {
        &self.block
    }

    /// Its bytes, to seal it.
    pub fn block_mut(&mut self) -> &mut Block {
        &mut self.block
    }

    /// Makes the table anew.
    fn index(&mut self) {
        let count = self.count();
        self.table.count = count;
        let (mut at, level) = (HEAD_BYTES, self.level());
        for offset in &mut self.table.offsets[..count] {
            *offset = at as u16;
            at += entry_bytes(&self.block, at, level);
        }
        let Some(last) = count.checked_sub(1) else {
            return;
        };
        let (first, last) = (self.key(0), self.key(last));
        self.table.common = (first.head ^ last.head).leading_zeros().min(Table::BITS);
        self.table.prefix = self.table.prefix_of(first);
        for index in 0..count {
            self.table.parts[index] = self.table.part_of(self.key(index));
        }
    }

    /// Nothing of a node that was read is used before.
    fn check(&self, level: u8) -> Result<(), Damage> {
        let end = usize::from(u16_at(&self.block, 36));
        let is_sound = self.block[32] == level
            && [33, 38, 39].iter().all(|&at| self.block[at] == 0)
            && (HEAD_BYTES..=BLOCK_BYTES).contains(&end)
            && self.block[end..].iter().all(|&byte| byte == 0);
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
            let head = self.block[..end].get(at..at + LEAF_HEAD_BYTES)?;
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
        let (entries, rest) = self.block[HEAD_BYTES..end].as_chunks::<INNER_BYTES>();
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
        self.block[32]
    }

    /// Its entries.
    pub fn count(&self) -> usize {
        usize::from(u16_at(&self.block, 34))
    }

    /// Behind the last entry.
    fn end(&self) -> usize {
        usize::from(u16_at(&self.block, 36))
    }

    /// Bytes of its entries.
    pub fn bytes(&self) -> usize {
        self.end() - HEAD_BYTES
    }

    /// Where an entry begins; behind the last one, the end.
    #[inline]
    fn at(&self, index: usize) -> usize {
        match index == self.table.count {
            true => self.end(),
            false => usize::from(self.table.offsets[index]),
        }
    }

    /// Bytes of the entries from one on.
    pub fn bytes_of(&self, from: usize, count: usize) -> usize {
        self.at(from + count) - self.at(from)
    }

    /// The key of an entry.
    #[inline]
    pub fn key(&self, index: usize) -> Raw {
        Raw::read(&self.block, usize::from(self.table.offsets[index]))
    }

    /// Where the value of an entry of a leaf is in the block.
    #[inline]
    pub fn value(&self, index: usize) -> Range<usize> {
        let at = usize::from(self.table.offsets[index]);
        let from = at + LEAF_HEAD_BYTES;
        from..from + usize::from(u16_at(&self.block, at + KEY_BYTES))
    }

    /// The first entry whose key is not below this one; the [`count`](Node::count) if there is none. True if it is this key.
    #[inline]
    pub fn find(&self, key: Raw) -> (usize, bool) {
        let (table, count) = (&self.table, self.table.count);
        match table.prefix_of(key).cmp(&table.prefix) {
            Ordering::Less => return (0, false),
            Ordering::Greater => return (count, false),
            Ordering::Equal => {}
        }
        let (parts, part) = (&table.parts[..count], table.part_of(key));
        let mut index = parts.partition_point(|&other| other < part);
        if parts.get(index) != Some(&part) {
            return (index, false);
        }
        if parts.get(index + 1) == Some(&part) {
            let end = index + parts[index..].partition_point(|&other| other == part);
            let offsets = &table.offsets[index..end];
            index += offsets.partition_point(|&at| Raw::read(&self.block, usize::from(at)) < key);
            return (index, index < count && self.key(index) == key);
        }
        match self.key(index).cmp(&key) {
            Ordering::Less => (index + 1, false),
            found => (index, found == Ordering::Equal),
        }
    }

    /// How many entries of a leaf from `index` on have keys not above `last`.
    pub fn until(&self, index: usize, last: Raw) -> usize {
        let (end, is_found) = self.find(last);
        (end + usize::from(is_found)).saturating_sub(index)
    }

    /// The child of an inner node that has a key.
    #[inline]
    pub fn child_of(&self, key: Raw) -> usize {
        match self.find(key) {
            (index, true) => index,
            (index, false) => index.saturating_sub(1),
        }
    }

    /// The lowest key that a child may have, if there is such a child.
    pub fn lowest_of(&self, index: usize) -> Option<Raw> {
        (index < self.count()).then(|| Raw::read(&self.block, inner_at(index)))
    }

    /// A child of an inner node.
    #[inline]
    pub fn child(&self, index: usize) -> Pointer {
        let at = inner_at(index) + KEY_BYTES;
        Pointer {
            place: Place::from_raw(u64_at(&self.block, at)),
            generation: u64_at(&self.block, at + 8),
        }
    }

    /// Says where a child is now.
    pub fn set_child(&mut self, index: usize, child: Pointer) {
        let at = inner_at(index) + KEY_BYTES;
        put_u64(&mut self.block, at, child.place.raw());
        put_u64(&mut self.block, at + 8, child.generation);
    }

    /// Says which keys a child has now.
    pub fn set_lowest(&mut self, index: usize, key: Raw) {
        key.write(&mut self.block, inner_at(index));
        self.index();
    }

    /// The edit that takes a child out.
    pub fn without(index: usize) -> Edit<'static> {
        Edit {
            index,
            count: 1,
            entry: Entry::None,
        }
    }

    /// Overwrites a value by one of the same length.
    pub fn overwrite(&mut self, index: usize, value: &[u8]) {
        let range = self.value(index);
        self.block[range].copy_from_slice(value);
    }

    /// Bytes of its entries after an edit: more than [`CAPACITY`] do not fit.
    pub fn bytes_with(&self, edit: &Edit<'_>) -> usize {
        self.bytes() - self.bytes_of(edit.index, edit.count) + edit.entry.bytes()
    }

    /// Makes an edit that fits.
    pub fn apply(&mut self, edit: &Edit<'_>) {
        let (from, behind, end) = (self.at(edit.index), self.at(edit.index + edit.count), self.end());
        let to = from + edit.entry.bytes();
        self.block.copy_within(behind..end, to);
        edit.entry.emit(&mut self.block[from..to]);
        let new_end = end - behind + to;
        if new_end < end {
            self.block[new_end..end].fill(0);
        }
        let (old, added) = (self.count(), edit.entry.count());
        let count = old - edit.count + added;
        put_u16(&mut self.block, 34, count as u16);
        put_u16(&mut self.block, 36, new_end as u16);
        let key = edit.entry.key();
        if old == 0 || key.is_some_and(|key| self.table.prefix_of(key) != self.table.prefix) {
            return self.index();
        }
        self.table.count = count;
        let (behind, moved) = (edit.index + edit.count..old, edit.index + added);
        self.table.offsets.copy_within(behind.clone(), moved);
        self.table.parts.copy_within(behind, moved);
        let by = (new_end as u16).wrapping_sub(end as u16);
        for offset in &mut self.table.offsets[moved..count] {
            *offset = offset.wrapping_add(by);
        }
        if let Some(key) = key {
            self.table.offsets[edit.index] = from as u16;
            self.table.parts[edit.index] = self.table.part_of(key);
        }
    }

    /// Makes an edit that does not fit, and gives the upper part away. If the new entry is the last one, keys are likely to
    /// come in their order, and the upper part is as small as it may be.
    pub fn split(&mut self, edit: &Edit<'_>) -> Self {
        let mut all = [0; CAPACITY + ENTRY_BYTES_MAX];
        let length = self.bytes_with(edit);
        let (from, behind, end) = (self.at(edit.index), self.at(edit.index + edit.count), self.end());
        let (at, to) = (from - HEAD_BYTES, from - HEAD_BYTES + edit.entry.bytes());
        all[..at].copy_from_slice(&self.block[HEAD_BYTES..from]);
        edit.entry.emit(&mut all[at..to]);
        all[to..length].copy_from_slice(&self.block[behind..end]);
        let count = self.count() - edit.count + edit.entry.count();
        let mut right = Self::empty(self.level());
        self.divide(&mut right, &all[..length], count, from == end);
        right
    }

    /// Takes all of the node behind it, if that fits, and says whether it did. If not, both have half of it.
    pub fn join(&mut self, right: &mut Self) -> bool {
        let (bytes, count) = (self.bytes() + right.bytes(), self.count() + right.count());
        let mut all = [0; 2 * CAPACITY];
        all[..self.bytes()].copy_from_slice(&self.block[HEAD_BYTES..self.end()]);
        all[self.bytes()..bytes].copy_from_slice(&right.block[HEAD_BYTES..right.end()]);
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
        self.block[HEAD_BYTES..end].copy_from_slice(entries);
        self.block[end..].fill(0);
        put_u16(&mut self.block, 34, count as u16);
        put_u16(&mut self.block, 36, end as u16);
        self.index();
    }
}

/// Where an entry of an inner node is.
fn inner_at(index: usize) -> usize {
    HEAD_BYTES + index * INNER_BYTES
}

fn entry_bytes(bytes: &[u8], at: usize, level: u8) -> usize {
    match level {
        0 => LEAF_HEAD_BYTES + usize::from(u16_at(bytes, at + KEY_BYTES)),
        _ => INNER_BYTES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Kind;
    use base::Rng;

    /// Keys that differ in their first bits, in their last ones, in both, and in none that the table has.
    fn key(rng: &mut Rng, pattern: u64) -> Raw {
        let kind = [Kind::Inode, Kind::Entry, Kind::Extent][rng.below(3) as usize];
        Raw::of(match pattern {
            0 => Key::new(rng.next_u64(), kind, 0),
            1 => Key::new(7, Kind::Extent, rng.below(300)),
            2 => Key::new(rng.below(4), kind, rng.below(60)),
            _ => Key::new(1 << 40, Kind::Entry, rng.below(3) << 60 | rng.below(40)),
        })
    }

    #[test]
    fn a_node_finds_what_a_sorted_list_finds() {
        for seed in 0..400 {
            let mut rng = Rng::new(seed);
            let (mut node, mut model) = (Node::empty(0), Vec::<(Raw, usize)>::new());
            for _ in 0..300 {
                let (key, bytes) = (key(&mut rng, seed % 4), rng.below(60) as usize);
                let found = model.binary_search_by_key(&key, |(key, _)| *key);
                let index = found.unwrap_or_else(|index| index);
                assert_eq!(node.find(key), (index, found.is_ok()));
                assert_eq!(node.until(0, key), index + usize::from(found.is_ok()));
                let (value, is_removed) = (vec![7; bytes], rng.chance(0.3) && found.is_ok());
                let entry = match is_removed {
                    true => Entry::None,
                    false => Entry::Leaf(key, &value),
                };
                let count = usize::from(found.is_ok());
                let edit = Edit { index, count, entry };
                if node.bytes_with(&edit) > CAPACITY {
                    break;
                }
                node.apply(&edit);
                model.splice(index..index + count, (!is_removed).then_some((key, bytes)));
                if !model.is_empty() {
                    let again = Node::read(node.block(), 0).expect("it makes sense");
                    let at = rng.below(model.len() as u64) as usize;
                    assert_eq!((again.key(at), again.value(at)), (node.key(at), node.value(at)));
                    assert_eq!((node.key(at), node.value(at).len()), model[at]);
                }
            }
        }
    }
}

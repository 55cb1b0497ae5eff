//! Entries by key, in the order of their last use.
//!
//! The index is a linear hash table: it grows by one bucket for each new entry, so no insertion pays for the growth of a whole table.
//! It never shrinks. An entry that a bucket loses when the bucket is split is in a later bucket, so a walk through the
//! buckets sees every entry that stays for as long as the walk takes (SCAN).

/// No entry.
const NONE: u32 = u32::MAX;
/// Buckets of an empty table.
const BUCKETS_MIN: usize = 16;
/// What an entry takes beside its bytes: its place in the table, a bucket, and the allocator's.
pub const ENTRY_BYTES: u64 = size_of::<Entry>() as u64 + 4 + 16;

/// The place of an entry, until it is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(u32);

/// A key and its value.
#[derive(Clone, Debug)]
pub struct Entry {
    hash: u64,
    /// The next one of the bucket, or the next vacant place.
    next: u32,
    newer: u32,
    older: u32,
    key_bytes: u32,
    /// Unix time in ms at which it ends; 0: it does not.
    pub expires_ms: u64,
    /// The batch that has its last change.
    pub written: u64,
    /// Other shards have copies of it.
    pub has_copies: bool,
    /// Key and value.
    bytes: Vec<u8>,
}

impl Entry {
    /// Its key.
    pub fn key(&self) -> &[u8] {
        &self.bytes[..self.key_bytes as usize]
    }
    /// The hash of the key.
    pub fn hash(&self) -> u64 {
        self.hash
    }
    /// Its value.
    pub fn value(&self) -> &[u8] {
        &self.bytes[self.key_bytes as usize..]
    }
    /// Memory that it takes.
    pub fn memory(&self) -> u64 {
        ENTRY_BYTES + self.bytes.capacity() as u64
    }
    /// Sets the value. The room of a much longer one is given back.
    pub fn set_value(&mut self, value: &[u8]) {
        self.bytes.truncate(self.key_bytes as usize);
        let wanted = self.bytes.len() + value.len();
        if self.bytes.capacity() < wanted || self.bytes.capacity() > 2 * wanted + 64 {
            let mut bytes = Vec::with_capacity(wanted);
            bytes.extend_from_slice(&self.bytes);
            self.bytes = bytes;
        }
        self.bytes.extend_from_slice(value);
    }
    /// Adds to the value's end.
    pub fn append(&mut self, more: &[u8]) {
        self.bytes.extend_from_slice(more);
    }
}

/// Entries by key.
#[derive(Clone, Debug)]
pub struct Table {
    entries: Vec<Entry>,
    vacant: u32,
    count: usize,
    buckets: Vec<u32>,
    newest: u32,
    oldest: u32,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            vacant: NONE,
            count: 0,
            buckets: vec![NONE; BUCKETS_MIN],
            newest: NONE,
            oldest: NONE,
        }
    }
}

impl Table {
    /// How many entries there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// How many buckets there are: a walk ends there.
    pub fn buckets(&self) -> usize {
        self.buckets.len()
    }

    /// The entry of a key.
    pub fn find(&self, hash: u64, key: &[u8]) -> Option<Place> {
        let mut at = self.buckets[self.bucket(hash)];
        while at != NONE {
            let entry = &self.entries[at as usize];
            if entry.hash == hash && entry.key() == key {
                return Some(Place(at));
            }
            at = entry.next;
        }
        None
    }

    /// An entry.
    pub fn entry(&self, place: Place) -> &Entry {
        &self.entries[place.0 as usize]
    }

    /// An entry, to change.
    pub fn entry_mut(&mut self, place: Place) -> &mut Entry {
        &mut self.entries[place.0 as usize]
    }

    /// Adds the entry of a key that has none; it is the newest.
    pub fn insert(&mut self, hash: u64, key: &[u8], value: &[u8]) -> Place {
        let mut bytes = Vec::with_capacity(key.len() + value.len());
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(value);
        self.split();
        let bucket = self.bucket(hash);
        let entry = Entry {
            hash,
            next: self.buckets[bucket],
            newer: NONE,
            older: NONE,
            key_bytes: key.len() as u32,
            expires_ms: 0,
            written: 0,
            has_copies: false,
            bytes,
        };
        let at = match self.vacant {
            NONE => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
            at => {
                self.vacant = self.entries[at as usize].next;
                self.entries[at as usize] = entry;
                at
            }
        };
        self.buckets[bucket] = at;
        self.count += 1;
        self.link(at);
        Place(at)
    }

    /// Removes an entry.
    pub fn remove(&mut self, place: Place) {
        let at = place.0;
        self.unlink(at);
        let Entry { hash, next, .. } = self.entries[at as usize];
        let bucket = self.bucket(hash);
        if self.buckets[bucket] == at {
            self.buckets[bucket] = next;
        } else {
            let mut before = self.buckets[bucket];
            while self.entries[before as usize].next != at {
                before = self.entries[before as usize].next;
            }
            self.entries[before as usize].next = next;
        }
        let entry = &mut self.entries[at as usize];
        entry.bytes = Vec::new();
        entry.next = self.vacant;
        self.vacant = at;
        self.count -= 1;
    }

    /// Makes an entry the newest.
    pub fn touch(&mut self, place: Place) {
        if self.newest != place.0 {
            self.unlink(place.0);
            self.link(place.0);
        }
    }

    /// The entry that was used longest ago.
    pub fn oldest(&self) -> Option<Place> {
        (self.oldest != NONE).then_some(Place(self.oldest))
    }

    /// The entries of a bucket.
    pub fn of_bucket(&self, bucket: usize) -> impl Iterator<Item = Place> + '_ {
        let mut at = self.buckets[bucket];
        std::iter::from_fn(move || {
            let place = (at != NONE).then_some(Place(at))?;
            at = self.entries[at as usize].next;
            Some(place)
        })
    }

    /// All entries, in no order.
    pub fn all(&self) -> impl Iterator<Item = &Entry> + '_ {
        (0..self.buckets.len())
            .flat_map(|bucket| self.of_bucket(bucket))
            .map(|place| self.entry(place))
    }

    /// Buckets below the largest power of two are split one after the other: those below the rest are split already.
    fn bucket(&self, hash: u64) -> usize {
        let half = 1 << self.buckets.len().ilog2();
        let bucket = hash as usize & (2 * half - 1);
        if bucket < self.buckets.len() {
            bucket
        } else {
            bucket & (half - 1)
        }
    }

    /// Makes a bucket if there are as many entries as buckets.
    fn split(&mut self) {
        if self.count < self.buckets.len() {
            return;
        }
        let new = self.buckets.len();
        let half = 1_usize << new.ilog2();
        let from = new & (half - 1);
        self.buckets.push(NONE);
        let mut at = std::mem::replace(&mut self.buckets[from], NONE);
        while at != NONE {
            let next = self.entries[at as usize].next;
            let bucket = self.bucket(self.entries[at as usize].hash);
            self.entries[at as usize].next = self.buckets[bucket];
            self.buckets[bucket] = at;
            at = next;
        }
    }

    fn link(&mut self, at: u32) {
        let before = self.newest;
        let entry = &mut self.entries[at as usize];
        (entry.newer, entry.older) = (NONE, before);
        match before {
            NONE => self.oldest = at,
            before => self.entries[before as usize].newer = at,
        }
        self.newest = at;
    }

    fn unlink(&mut self, at: u32) {
        let Entry { newer, older, .. } = self.entries[at as usize];
        match newer {
            NONE => self.newest = older,
            newer => self.entries[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.entries[older as usize].newer = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Rng;
    use std::collections::{BTreeMap, BTreeSet};

    fn hash(key: u64) -> u64 {
        crate::hash(7, &key.to_le_bytes())
    }

    #[test]
    fn a_table_has_what_a_map_has_and_forgets_the_oldest_first() {
        let mut rng = Rng::new(3);
        let (mut table, mut model) = (Table::default(), BTreeMap::new());
        let mut order: Vec<u64> = Vec::new();
        for _ in 0..20_000 {
            let key = rng.below(600);
            let bytes = key.to_le_bytes();
            let found = table.find(hash(key), &bytes);
            assert_eq!(
                found.map(|place| table.entry(place).value().to_vec()),
                model.get(&key).cloned()
            );
            order.retain(|other| *other != key);
            match (found, rng.below(3)) {
                (Some(place), 0) => {
                    table.remove(place);
                    model.remove(&key);
                    continue;
                }
                (Some(place), _) => {
                    let value = vec![1; rng.below(200) as usize];
                    table.entry_mut(place).set_value(&value);
                    table.touch(place);
                    model.insert(key, value);
                }
                (None, _) => {
                    let value = rng.below(1000).to_le_bytes().to_vec();
                    table.insert(hash(key), &bytes, &value);
                    model.insert(key, value);
                }
            }
            order.push(key);
            assert_eq!(table.count(), model.len());
        }
        for key in order {
            let oldest = table.oldest().expect("there are as many");
            assert_eq!(table.entry(oldest).key(), key.to_le_bytes());
            table.remove(oldest);
        }
        assert!(table.oldest().is_none() && table.count() == 0);
    }

    #[test]
    fn a_walk_sees_every_entry_that_stays_while_the_table_grows() {
        let mut table = Table::default();
        let insert = |table: &mut Table, key: u64| table.insert(hash(key), &key.to_le_bytes(), b"");
        for key in 0..1000 {
            insert(&mut table, key);
        }
        let (mut seen, mut bucket, mut next) = (BTreeSet::new(), 0, 1000);
        while bucket < table.buckets() {
            seen.extend(
                table
                    .of_bucket(bucket)
                    .map(|place| table.entry(place).key().to_vec()),
            );
            bucket += 1;
            if next < 5000 {
                insert(&mut table, next);
                next += 1;
            }
        }
        assert!((0..1000_u64).all(|key| seen.contains(&key.to_le_bytes()[..])));
    }
}

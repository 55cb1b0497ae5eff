//! A hash map with a fixed hash, so that a run does not depend on the process. It can be iterated only in key
//! order, at a cost, so that no decision can hang on the order of a hash.

#![allow(
    clippy::disallowed_types,
    reason = "the one place that wraps HashMap, with a fixed hash and no free iteration"
)]

use core::hash::{BuildHasherDefault, Hash, Hasher};

/// Multiply-and-fold hash of small keys; not for keys an adversary chooses freely in bulk.
#[derive(Default, Clone, Copy, Debug)]
pub struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }
    fn write_u8(&mut self, v: u8) {
        self.write_u64(u64::from(v));
    }
    fn write_u16(&mut self, v: u16) {
        self.write_u64(u64::from(v));
    }
    fn write_u32(&mut self, v: u32) {
        self.write_u64(u64::from(v));
    }
    fn write_u64(&mut self, v: u64) {
        let wide = u128::from(self.0 ^ v ^ 0x9e37_79b9_7f4a_7c15)
            .wrapping_mul(0xd6e8_feb8_6659_fd93_a5a3_5615_1b0c_6e5d);
        self.0 = (wide >> 64) as u64 ^ wide as u64;
    }
    fn write_usize(&mut self, v: usize) {
        self.write_u64(v as u64);
    }
}

/// A map from small keys to values.
#[derive(Clone, Debug)]
pub struct Map<K, V>(std::collections::HashMap<K, V, BuildHasherDefault<Mix>>);

impl<K, V> Default for Map<K, V> {
    fn default() -> Self {
        Self(Default::default())
    }
}

impl<K: Eq + Hash + Ord + Copy, V> Map<K, V> {
    /// An empty map.
    pub fn new() -> Self {
        Self::default()
    }
    /// An empty map that holds `capacity` entries without growing.
    pub fn with_capacity(capacity: usize) -> Self {
        Self(std::collections::HashMap::with_capacity_and_hasher(
            capacity,
            Default::default(),
        ))
    }
    /// Number of entries.
    pub fn len(&self) -> usize {
        self.0.len()
    }
    /// True when there is no entry.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// The value of `key`.
    pub fn get(&self, key: &K) -> Option<&V> {
        self.0.get(key)
    }
    /// The value of `key`, to change.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.0.get_mut(key)
    }
    /// True when `key` has a value.
    pub fn contains_key(&self, key: &K) -> bool {
        self.0.contains_key(key)
    }
    /// Sets the value of `key`, returning the earlier one.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.0.insert(key, value)
    }
    /// Removes `key`.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        self.0.remove(key)
    }
    /// The value of `key`, made by `make` if missing.
    pub fn or_insert_with(&mut self, key: K, make: impl FnOnce() -> V) -> &mut V {
        self.0.entry(key).or_insert_with(make)
    }
    /// Removes every entry.
    pub fn clear(&mut self) {
        self.0.clear();
    }
    /// The keys in ascending order. Sorts: not for the data path.
    pub fn sorted_keys(&self) -> Vec<K> {
        let mut keys: Vec<K> = self.0.keys().copied().collect();
        keys.sort_unstable();
        keys
    }
}

/// Hash of byte strings that starts from a seed, so that whoever chooses keys cannot choose collisions without it.
#[derive(Clone, Copy, Debug, Default)]
struct Seeded(u64);

impl core::hash::BuildHasher for Seeded {
    type Hasher = Mix;
    fn build_hasher(&self) -> Mix {
        Mix(self.0)
    }
}

/// A map from byte strings to values; like [`Map`] it is iterated in key order only.
#[derive(Clone, Debug)]
pub struct ByteMap<V>(std::collections::HashMap<Box<[u8]>, V, Seeded>);

impl<V> ByteMap<V> {
    /// An empty map that hashes from `seed`.
    pub fn with_seed(seed: u64) -> Self {
        Self(std::collections::HashMap::with_hasher(Seeded(seed)))
    }
    /// Number of entries.
    pub fn len(&self) -> usize {
        self.0.len()
    }
    /// True when there is no entry.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// The value of `key`.
    pub fn get(&self, key: &[u8]) -> Option<&V> {
        self.0.get(key)
    }
    /// The value of `key`, to change.
    pub fn get_mut(&mut self, key: &[u8]) -> Option<&mut V> {
        self.0.get_mut(key)
    }
    /// Sets the value of `key`, returning the earlier one.
    pub fn insert(&mut self, key: Box<[u8]>, value: V) -> Option<V> {
        self.0.insert(key, value)
    }
    /// Removes `key`.
    pub fn remove(&mut self, key: &[u8]) -> Option<V> {
        self.0.remove(key)
    }
    /// The keys in ascending order. Sorts: not for the data path.
    pub fn sorted_keys(&self) -> Vec<&[u8]> {
        let mut keys: Vec<&[u8]> = self.0.keys().map(|key| &**key).collect();
        keys.sort_unstable();
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_map_keeps_keys_that_differ_in_length_only_apart() {
        let mut map = ByteMap::with_seed(3);
        for length in 0..40 {
            assert_eq!(map.insert(vec![0; length].into(), length), None);
        }
        assert_eq!(map.get(&[0; 17]), Some(&17));
        assert_eq!(map.remove(&[0; 17]), Some(17));
        assert_eq!(map.len(), 39);
        assert!(map.sorted_keys().is_sorted());
    }
}

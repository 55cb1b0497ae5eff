//! Values in numbered slots. A slot's number is the value's key until the value is removed; then the slot is used again.
//!
//! The slot freed last is filled first, so that its memory is still in a cache of the processor. Vacant slots are a
//! list through the slots themselves: removing a value never allocates, and inserting one allocates only when all
//! slots ever used are taken and [`Slab::with_capacity`] reserved no more.

use core::ops::{Index, IndexMut};

/// The end of the list of vacant slots, and one more than the largest key.
const END: u32 = u32::MAX;

#[derive(Clone, Debug)]
enum Slot<T> {
    Taken(T),
    /// The vacant slot that is filled after this one.
    Vacant(u32),
}

/// Values by key.
///
/// ```
/// let mut slab = base::Slab::new();
/// let (a, b) = (slab.insert("a"), slab.insert("b"));
/// assert_eq!(slab.remove(a), "a");
/// assert_eq!(slab.insert("c"), a);
/// assert_eq!((slab[b], slab.get(7)), ("b", None));
/// ```
#[derive(Clone, Debug)]
pub struct Slab<T> {
    slots: Vec<Slot<T>>,
    vacant: u32,
    len: u32,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Slab<T> {
    /// An empty slab, which allocates as it grows.
    pub const fn new() -> Self {
        Self {
            slots: Vec::new(),
            vacant: END,
            len: 0,
        }
    }

    /// An empty slab, which allocates nothing for its first `capacity` values.
    pub fn with_capacity(capacity: usize) -> Self {
        Self {
            slots: Vec::with_capacity(capacity),
            ..Self::new()
        }
    }

    /// Keeps a value; returns its key. Keys are below the largest number of values held at once.
    ///
    /// # Panics
    /// At 2^32 − 1 values.
    #[inline]
    pub fn insert(&mut self, value: T) -> u32 {
        let key = self.vacant;
        self.len += 1;
        if let Some(slot) = self.slots.get_mut(key as usize) {
            let Slot::Vacant(next) = *slot else {
                unreachable!("the list of vacant slots names vacant ones");
            };
            self.vacant = next;
            *slot = Slot::Taken(value);
            return key;
        }
        let key = self.slots.len() as u32;
        assert!(key < END, "a slab's keys are 32 bits");
        self.slots.push(Slot::Taken(value));
        key
    }

    /// Takes a value out.
    ///
    /// # Panics
    /// If the key is vacant: a value ends once.
    #[inline]
    pub fn remove(&mut self, key: u32) -> T {
        let slot = &mut self.slots[key as usize];
        let Slot::Taken(value) = core::mem::replace(slot, Slot::Vacant(self.vacant)) else {
            panic!("slot {key} is vacant");
        };
        self.vacant = key;
        self.len -= 1;
        value
    }

    /// The value of a key, if the key is taken.
    #[inline]
    pub fn get(&self, key: u32) -> Option<&T> {
        match self.slots.get(key as usize) {
            Some(Slot::Taken(value)) => Some(value),
            _ => None,
        }
    }

    /// The value of a key, to change, if the key is taken.
    #[inline]
    pub fn get_mut(&mut self, key: u32) -> Option<&mut T> {
        match self.slots.get_mut(key as usize) {
            Some(Slot::Taken(value)) => Some(value),
            _ => None,
        }
    }

    /// Every key is below this: for a walk over the keys while the slab changes.
    pub fn bound(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// True when there is no value.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Keys and values, by key.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> + Clone {
        (0..).zip(&self.slots).filter_map(|(key, slot)| match slot {
            Slot::Taken(value) => Some((key, value)),
            Slot::Vacant(_) => None,
        })
    }

    /// Keys and values, to change, by key.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        (0..).zip(&mut self.slots).filter_map(|(key, slot)| match slot {
            Slot::Taken(value) => Some((key, value)),
            Slot::Vacant(_) => None,
        })
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;

    #[inline]
    fn index(&self, key: u32) -> &T {
        match &self.slots[key as usize] {
            Slot::Taken(value) => value,
            Slot::Vacant(_) => panic!("slot {key} is vacant"),
        }
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, key: u32) -> &mut T {
        match &mut self.slots[key as usize] {
            Slot::Taken(value) => value,
            Slot::Vacant(_) => panic!("slot {key} is vacant"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rng;

    #[test]
    fn a_slab_agrees_with_a_map_and_fills_the_slot_freed_last() {
        let (mut slab, mut model, mut freed) = (Slab::new(), crate::Map::new(), Vec::new());
        let mut rng = Rng::new(7);
        for round in 0..10_000_u64 {
            if model.is_empty() || rng.below(100) < 52 {
                let key = slab.insert(round);
                assert_eq!(freed.pop().unwrap_or(model.len() as u32), key);
                assert_eq!(model.insert(key, round), None);
            } else {
                let keys = model.sorted_keys();
                let key = keys[rng.below(keys.len() as u64) as usize];
                assert_eq!(Some(slab.remove(key)), model.remove(&key));
                assert_eq!(slab.get(key), None);
                freed.push(key);
            }
            assert_eq!(slab.len(), model.len());
            assert_eq!(slab.bound() as usize, model.len() + freed.len());
        }
        let keys: Vec<u32> = slab.iter().map(|(key, _)| key).collect();
        assert_eq!(keys, model.sorted_keys());
        assert!(slab.iter().all(|(key, value)| model.get(&key) == Some(value)));
        assert!(
            slab.iter_mut()
                .all(|(key, value)| model.remove(&key) == Some(*value))
        );
    }

    #[test]
    fn a_slab_with_capacity_does_not_move_its_slots() {
        let mut slab = Slab::with_capacity(8);
        let first = slab.insert(0_u64);
        let address = &raw const slab[first];
        for value in 1..8 {
            slab.insert(value);
        }
        assert_eq!(address, &raw const slab[first]);
    }

    #[test]
    #[should_panic(expected = "slot 0 is vacant")]
    fn a_value_ends_once() {
        let mut slab = Slab::new();
        let key = slab.insert(());
        slab.remove(key);
        slab.remove(key);
    }
}

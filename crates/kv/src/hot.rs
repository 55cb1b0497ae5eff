//! Hot keys: which keys of a shard other shards ask for most, and the copies of others' hot keys.
//!
//! The sketch is Space-Saving (Metwally et al., ICDT 2005) over a sample of the reads that come from other shards. A key whose share of the
//! last window is large enough gets copies.

use base::Map;

/// Keys that the sketch counts. A key of more than 1/32 of the sample is surely among them.
const COUNTED: usize = 32;
/// Sampled reads of a window.
const WINDOW: u32 = 512;
/// One read of so many is looked at.
const SAMPLE: u32 = 4;
/// A key is hot from this part of a window on.
const HOT_SHARE: u32 = 32;
/// Keys of a shard with copies elsewhere.
pub const COPIED_MAX: usize = 32;
/// Bytes of a value that is copied.
pub const COPY_BYTES_MAX: usize = 16 << 10;
/// A copy that was read so often before its key was written is made anew.
pub const READS_TO_RENEW: u64 = 16;

/// A key's count, and how much of it other keys may have left.
#[derive(Clone, Copy, Debug)]
struct Count {
    hash: u64,
    count: u32,
    error: u32,
}

/// The keys that others ask for most.
#[derive(Debug, Default)]
pub struct Sketch {
    counts: Vec<Count>,
    seen: u32,
    sampled: u32,
}

impl Sketch {
    /// A read of another shard. True at the moment at which the key has become hot.
    pub fn note(&mut self, hash: u64) -> bool {
        self.seen = self.seen.wrapping_add(1);
        if !self.seen.is_multiple_of(SAMPLE) {
            return false;
        }
        self.sampled += 1;
        if self.sampled == WINDOW {
            // Half of what was counts on, so a key between two windows is found, too.
            self.sampled = WINDOW / 2;
            self.counts
                .iter_mut()
                .for_each(|it| (it.count, it.error) = (it.count / 2, it.error / 2));
        }
        if let Some(it) = self.counts.iter_mut().find(|it| it.hash == hash) {
            it.count += 1;
            return it.count - it.error == WINDOW / HOT_SHARE;
        }
        if self.counts.len() < COUNTED {
            self.counts.push(Count {
                hash,
                count: 1,
                error: 0,
            });
            return false;
        }
        let least = self.counts.iter_mut().min_by_key(|it| it.count);
        let least = least.expect("it counts some");
        *least = Count {
            hash,
            count: least.count + 1,
            error: least.count,
        };
        false
    }
}

/// A copy of another shard's key.
#[derive(Clone, Debug)]
struct Copy {
    key: Box<[u8]>,
    value: Box<[u8]>,
    reads: u64,
}

/// Copies of other shards' keys.
#[derive(Debug, Default)]
pub struct Copies {
    by_hash: Map<u64, Copy>,
    reads: u64,
}

impl Copies {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.by_hash.len()
    }

    /// Reads that they have answered.
    pub fn reads(&self) -> u64 {
        self.reads
    }

    /// True if the key has one.
    pub fn has(&self, hash: u64, key: &[u8]) -> bool {
        self.by_hash.get(&hash).is_some_and(|copy| *copy.key == *key)
    }

    /// The value of a key that has a copy.
    pub fn read(&mut self, hash: u64, key: &[u8]) -> Option<&[u8]> {
        let copy = self.by_hash.get_mut(&hash).filter(|copy| *copy.key == *key)?;
        copy.reads += 1;
        self.reads += 1;
        Some(&copy.value)
    }

    /// The owner has sent one.
    pub fn insert(&mut self, hash: u64, key: &[u8], value: &[u8]) {
        let copy = Copy {
            key: key.into(),
            value: value.into(),
            reads: 0,
        };
        self.by_hash.insert(hash, copy);
    }

    /// The owner's key changes. Answers how often the copy was read.
    pub fn remove(&mut self, hash: u64) -> u64 {
        self.by_hash.remove(&hash).map_or(0, |copy| copy.reads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_with_a_large_share_is_found_and_an_even_load_has_none() {
        let mut rng = base::Rng::new(1);
        let (mut sketch, mut hot) = (Sketch::default(), Vec::new());
        for _ in 0..100_000 {
            let key = if rng.below(100) < 7 {
                1
            } else {
                2 + rng.below(100_000)
            };
            if sketch.note(key) {
                hot.push(key);
            }
        }
        assert!(!hot.is_empty() && hot.iter().all(|key| *key == 1), "{hot:?}");
        let (mut sketch, mut rng) = (Sketch::default(), base::Rng::new(2));
        assert!((0..100_000).all(|_| !sketch.note(rng.below(100_000))));
    }
}

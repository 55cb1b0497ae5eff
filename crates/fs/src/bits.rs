//! The bits of a zone: one for each block.

use crate::format::{BLOCK_BYTES, Block, SEAL_BYTES};

/// Words of a zone.
pub const WORDS: usize = (BLOCK_BYTES - SEAL_BYTES) / 8;

/// A bit for each block of a zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bits([u64; WORDS]);

impl Bits {
    /// None is set.
    pub const fn none() -> Self {
        Self([0; WORDS])
    }

    /// Reads them from a bitmap.
    pub fn parse(block: &Block) -> Self {
        let (words, _) = block[SEAL_BYTES..].as_chunks::<8>();
        Self(core::array::from_fn(|index| u64::from_le_bytes(words[index])))
    }

    /// Writes them to a bitmap, which is to be sealed.
    pub fn emit(&self, block: &mut Block) {
        let (words, _) = block[SEAL_BYTES..].as_chunks_mut::<8>();
        for (bytes, word) in words.iter_mut().zip(self.0) {
            *bytes = word.to_le_bytes();
        }
    }

    /// How many are set.
    pub fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// Those of both.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        Self(core::array::from_fn(|index| self.0[index] | other.0[index]))
    }

    /// Those that the other has not.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        Self(core::array::from_fn(|index| self.0[index] & !other.0[index]))
    }

    /// One of them.
    pub fn is_set(&self, bit: usize) -> bool {
        self.0[bit / 64] >> (bit % 64) & 1 == 1
    }

    /// Sets or clears those from `from` up to `to`.
    pub fn put(&mut self, from: usize, to: usize, is_set: bool) {
        for (index, mask) in masks(from, to) {
            match is_set {
                true => self.0[index] |= mask,
                false => self.0[index] &= !mask,
            }
        }
    }

    /// True if all from `from` up to `to` are what is said.
    pub fn all(&self, from: usize, to: usize, is_set: bool) -> bool {
        masks(from, to).all(|(index, mask)| self.0[index] & mask == if is_set { mask } else { 0 })
    }

    /// The first from `from` up to `to` that is what is said; `to` if there is none.
    pub fn first(&self, from: usize, to: usize, is_set: bool) -> usize {
        let found = masks(from, to).find_map(|(index, mask)| {
            let word = if is_set { self.0[index] } else { !self.0[index] };
            let found = word & mask;
            (found != 0).then(|| index * 64 + found.trailing_zeros() as usize)
        });
        found.unwrap_or(to)
    }

    /// Runs of those that are what is said, from `from` up to `to`: the first of each, and how many they are.
    pub fn runs(&self, from: usize, to: usize, is_set: bool) -> impl Iterator<Item = (usize, usize)> {
        let mut at = from;
        core::iter::from_fn(move || {
            let first = self.first(at, to, is_set);
            at = self.first(first, to, !is_set);
            (first < to).then_some((first, at - first))
        })
    }
}

impl Bits {
    /// The first of `want` in a row that are clear, from `from` up to `to`. If there are no so many, how many are in a row at most.
    pub fn find_clear(&self, from: usize, to: usize, want: usize) -> Result<usize, usize> {
        // Those that are clear up to here, and the most that were.
        let (mut run, mut most) = (0, 0);
        for index in from / 64..to.div_ceil(64) {
            let (low, high) = (from.saturating_sub(index * 64), (to - index * 64).min(64));
            let mut set = self.0[index];
            if low > 0 {
                set |= !(u64::MAX << low);
            }
            if high < 64 {
                set |= u64::MAX << high;
            }
            let first = set.trailing_zeros() as usize;
            if run + first >= want {
                return Ok(index * 64 - run);
            }
            if set == 0 {
                run += 64;
                continue;
            }
            most = most.max(run + first);
            if set.count_zeros() as usize > most {
                match in_word(!set, want) {
                    Ok(bit) => return Ok(index * 64 + bit),
                    Err(count) => most = most.max(count),
                }
            }
            run = set.leading_zeros() as usize;
        }
        Err(most.max(run))
    }
}

/// The first of `want` bits in a row that are set; or how many are in a row at most.
fn in_word(word: u64, want: usize) -> Result<usize, usize> {
    let (mut rest, mut count) = (word, 0);
    while rest != 0 {
        count += 1;
        if count == want {
            return Ok(rest.trailing_zeros() as usize);
        }
        // Bits at which so many begin, and one more.
        rest &= word >> count;
    }
    Err(count)
}

/// The words that bits from `from` up to `to` are in, each with a mask of these.
fn masks(from: usize, to: usize) -> impl Iterator<Item = (usize, u64)> {
    (from / 64..to.div_ceil(64)).map(move |index| {
        let low = from.saturating_sub(index * 64);
        let high = (to - index * 64).min(64);
        (index, u64::MAX << low & u64::MAX >> (64 - high))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Rng;

    #[test]
    fn bits_do_what_a_list_of_truths_does() {
        let mut rng = Rng::new(5);
        let (mut bits, mut model) = (Bits::none(), vec![false; WORDS * 64]);
        for _ in 0..3000 {
            let from = rng.below(WORDS as u64 * 64) as usize;
            let to = (from + rng.below(600) as usize).min(WORDS * 64);
            let is_set = rng.chance(0.5);
            assert_eq!(
                bits.all(from, to, is_set),
                model[from..to].iter().all(|&bit| bit == is_set)
            );
            let first = model[from..to].iter().position(|&bit| bit == is_set);
            assert_eq!(bits.first(from, to, is_set), first.map_or(to, |at| from + at));
            let want = rng.between(1, 100) as usize;
            let clear: Vec<_> = bits.runs(from, to, false).collect();
            let found = clear.iter().find(|(_, count)| *count >= want).map(|(at, _)| *at);
            let most = clear.iter().map(|(_, count)| *count).max();
            assert_eq!(bits.find_clear(from, to, want), found.ok_or(most.unwrap_or(0)));
            let to = to.min(from + [3, 20, 600][rng.below(3) as usize]);
            bits.put(from, to, is_set);
            model[from..to].fill(is_set);
        }
        assert_eq!(bits.count() as usize, model.iter().filter(|&&bit| bit).count());
        let runs: Vec<_> = bits.runs(0, WORDS * 64, true).collect();
        let again = runs.iter().fold(Bits::none(), |mut again, &(at, count)| {
            again.put(at, at + count, true);
            again
        });
        assert_eq!(again, bits);
        let mut block = [0; BLOCK_BYTES];
        bits.emit(&mut block);
        assert_eq!(Bits::parse(&block), bits);
        assert_eq!(block[SEAL_BYTES] & 1 == 1, bits.is_set(0));
    }
}

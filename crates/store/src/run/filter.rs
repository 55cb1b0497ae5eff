//! Which keys a leaf may have: a Bloom filter, in the page above, so that most lookups of absent keys read no leaf.

/// Bits a key, and those that are set for each: one absent key in a hundred is taken for a present one.
const BITS: usize = 10;
const PROBES: u64 = 7;

/// The hash of a key.
pub(crate) fn hash(key: &[u8]) -> u32 {
    crc32c::crc32c(key)
}

/// A filter of the keys with these hashes.
pub(crate) fn build(hashes: &[u32]) -> Vec<u8> {
    let mut filter = vec![0; (hashes.len() * BITS).div_ceil(8)];
    for &hash in hashes {
        for bit in bits(hash, filter.len()) {
            filter[bit / 8] |= 1 << (bit % 8);
        }
    }
    filter
}

/// False if no key of this hash is there. An empty filter knows nothing.
pub(crate) fn may_have(filter: &[u8], hash: u32) -> bool {
    bits(hash, filter.len()).all(|bit| filter[bit / 8] & (1 << (bit % 8)) != 0)
}

fn bits(hash: u32, bytes: usize) -> impl Iterator<Item = usize> {
    let mixed = u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let (first, step) = (mixed >> 32, (mixed & 0xffff_ffff) | 1);
    let bits = 8 * bytes as u64;
    let probes = if bytes == 0 { 0 } else { PROBES };
    (0..probes).map(move |probe| ((first + probe * step) % bits.max(1)) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_found_and_one_absent_key_in_fifty_at_most() {
        let key = |index: u32| hash(&index.to_be_bytes());
        let mut mistaken = 0;
        for leaf in 0..100 {
            let hashes: Vec<u32> = (0..170).map(|index| key(leaf * 170 + index)).collect();
            let filter = build(&hashes);
            assert!(hashes.iter().all(|&hash| may_have(&filter, hash)));
            let absent = (1 << 30..).take(100).map(key);
            mistaken += absent.filter(|&hash| may_have(&filter, hash)).count();
        }
        assert!(mistaken < 200, "{mistaken} of 10,000");
        assert!(may_have(&[], 7), "no filter");
    }
}

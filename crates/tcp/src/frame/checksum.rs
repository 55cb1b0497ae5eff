//! The Internet checksum (RFC 1071): the ones' complement of the ones' complement sum of 16-bit words.

/// A sum under way. Words are added as they lie in memory, which leaves the sum the same but for the order of its bytes
/// (RFC 1071 §2 B).
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(u64);

impl Sum {
    /// Adds eight bytes.
    #[inline]
    pub fn word(self, word: u64) -> Self {
        let (sum, carry) = self.0.overflowing_add(word);
        Self(sum + u64::from(carry))
    }

    /// Adds bytes that begin at an even offset of what is summed.
    #[inline]
    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self = self.word(u64::from_le_bytes(*word));
        }
        if rest.is_empty() {
            return self;
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.word(u64::from_le_bytes(last))
    }

    /// Adds a 16-bit number that is sent in network order.
    #[inline]
    pub fn number(self, number: u16) -> Self {
        self.word(u64::from(number.swap_bytes()))
    }

    /// The checksum as it is written; 0 for what carries its right checksum.
    #[inline]
    pub fn finish(self) -> [u8; 2] {
        let fold = |sum: u64, bits: u32| (sum & ((1 << bits) - 1)) + (sum >> bits);
        let sum = fold(fold(fold(fold(self.0, 32), 32), 16), 16);
        (!(fold(sum, 16) as u16)).to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 1071 §1, word by word.
    fn plain(bytes: &[u8]) -> [u8; 2] {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        (!(sum as u16)).to_be_bytes()
    }

    #[test]
    fn the_sum_is_that_of_rfc_1071() {
        // The example of RFC 1071 §3: the sum is ddf2.
        let example = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(
            Sum::default().bytes(&example).finish(),
            (!0xddf2u16).to_be_bytes()
        );
        let mut rng = base::Rng::new(1);
        for length in 0..200 {
            let bytes: Vec<u8> = (0..length).map(|_| rng.next_u64() as u8).collect();
            assert_eq!(Sum::default().bytes(&bytes).finish(), plain(&bytes), "{bytes:?}");
            let ones = vec![0xff; length];
            assert_eq!(Sum::default().bytes(&ones).finish(), plain(&ones), "{length}");
        }
    }
}

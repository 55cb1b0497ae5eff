//! Sequence numbers: 32 bits that wrap (RFC 9293 §3.4). Two numbers that are compared are less than 2³¹ apart.

use core::ops::{Add, AddAssign, Sub};

/// The number of a byte of a stream, or of its SYN or FIN.
///
/// It is also the byte's place in a ring: rings have a power of two of bytes, so that byte `n` lies at `n mod length`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Seq(pub u32);

impl Seq {
    /// Bytes from `earlier` to here.
    #[inline]
    pub const fn since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// Signed distance from `other` to here: negative if this number comes first.
    #[inline]
    pub const fn offset_from(self, other: Self) -> i32 {
        self.0.wrapping_sub(other.0) as i32
    }

    /// Whether this number comes before `other`.
    #[inline]
    pub const fn before(self, other: Self) -> bool {
        self.offset_from(other) < 0
    }

    /// The later of two numbers.
    #[inline]
    pub const fn max(self, other: Self) -> Self {
        if self.before(other) { other } else { self }
    }
}

impl Add<u32> for Seq {
    type Output = Self;
    #[inline]
    fn add(self, bytes: u32) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
}

impl AddAssign<u32> for Seq {
    #[inline]
    fn add_assign(&mut self, bytes: u32) {
        *self = *self + bytes;
    }
}

impl Sub<u32> for Seq {
    type Output = Self;
    #[inline]
    fn sub(self, bytes: u32) -> Self {
        Self(self.0.wrapping_sub(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_survives_the_wrap() {
        let last = Seq(u32::MAX);
        assert!(last.before(last + 1));
        assert!(!(last + 1).before(last));
        assert_eq!((last + 5).since(last), 5);
        assert_eq!(last.max(last + 1), Seq(0));
        assert_eq!(last.offset_from(last + 3), -3);
    }
}

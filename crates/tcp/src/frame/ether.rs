//! Ethernet II: 14 bytes before every packet.

use super::malformed::Malformed;
use crate::addr::Mac;

/// Bytes of the header.
pub const BYTES: usize = 14;
/// The type of IPv4.
pub const IPV4: u16 = 0x0800;
/// The type of ARP.
pub const ARP: u16 = 0x0806;
/// The type of IPv6.
pub const IPV6: u16 = 0x86dd;

/// The two cards of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hop {
    /// The sender's.
    pub source: Mac,
    /// The next receiver's.
    pub target: Mac,
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ether {
    /// Where it goes.
    pub target: Mac,
    /// Where it is from.
    pub source: Mac,
    /// What it carries.
    pub kind: u16,
}

impl Ether {
    /// The header and what it carries.
    #[inline]
    pub fn parse(frame: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let (header, packet) = frame.split_first_chunk::<BYTES>().ok_or(Malformed::Short)?;
        let [t0, t1, t2, t3, t4, t5, s0, s1, s2, s3, s4, s5, k0, k1] = *header;
        let ether = Self {
            target: Mac([t0, t1, t2, t3, t4, t5]),
            source: Mac([s0, s1, s2, s3, s4, s5]),
            kind: u16::from_be_bytes([k0, k1]),
        };
        Ok((ether, packet))
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, header: &mut [u8; BYTES]) {
        let (target, rest) = header.split_first_chunk_mut().expect("six bytes of fourteen");
        let (source, kind) = rest.split_first_chunk_mut().expect("six of eight");
        (*target, *source) = (self.target.0, self.source.0);
        *kind.first_chunk_mut().expect("the last two") = self.kind.to_be_bytes();
    }
}

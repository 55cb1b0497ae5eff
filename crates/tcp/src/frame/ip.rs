//! IPv4 (RFC 791) and IPv6 (RFC 8200) headers, without fragments and extension headers.

use super::checksum::Sum;
use super::malformed::Malformed;
use crate::addr::Ip;

/// The number of TCP.
pub const TCP: u8 = 6;
/// The number of ICMPv4.
pub const ICMP: u8 = 1;
/// The number of ICMPv6.
pub const ICMP6: u8 = 58;
/// Bytes of an IPv4 header without options.
pub const BYTES4: usize = 20;
/// Bytes of an IPv6 header.
pub const BYTES6: usize = 40;
/// Hops of what we send (RFC 1700's default).
pub(super) const HOPS: u8 = 64;

/// The two bits of explicit congestion notification (RFC 3168 §5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Ecn {
    /// Routers drop it when they are full.
    #[default]
    Not = 0,
    /// Able, as experiments mark it.
    Able1 = 1,
    /// Able to be marked.
    Able = 2,
    /// A router was congested.
    Congested = 3,
}

impl Ecn {
    #[inline]
    pub(super) const fn of(class: u8) -> Self {
        match class & 3 {
            0 => Self::Not,
            1 => Self::Able1,
            2 => Self::Able,
            _ => Self::Congested,
        }
    }
}

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The sender.
    pub source: Ip,
    /// The receiver.
    pub target: Ip,
    /// What it carries.
    pub protocol: u8,
    /// Hops that are left.
    pub hops: u8,
    /// Congestion on the way.
    pub ecn: Ecn,
    /// Whether there are no options.
    pub plain: bool,
}

impl Header {
    /// The header and what it carries, to the length that it states. The checksum of the IPv4 header is verified if `checks`.
    #[inline]
    pub fn parse4(packet: &[u8], checks: bool) -> Result<(Self, &[u8]), Malformed> {
        let fixed = packet.first_chunk::<BYTES4>().ok_or(Malformed::Short)?;
        let header_bytes = usize::from(fixed[0] & 15) * 4;
        let length = usize::from(u16::from_be_bytes([fixed[2], fixed[3]]));
        if fixed[0] >> 4 != 4 || header_bytes < BYTES4 || length < header_bytes {
            return Err(Malformed::Length);
        }
        let packet = packet.get(..length).ok_or(Malformed::Short)?;
        let (header, payload) = packet.split_at(header_bytes);
        if checks && Sum::default().bytes(header).finish() != [0, 0] {
            return Err(Malformed::Checksum);
        }
        // The flag of more fragments, and the offset of this one (RFC 791 §3.1).
        if u16::from_be_bytes([fixed[6], fixed[7]]) & 0x3fff != 0 {
            return Err(Malformed::Unsupported);
        }
        let header = Self {
            source: Ip::v4([fixed[12], fixed[13], fixed[14], fixed[15]]),
            target: Ip::v4([fixed[16], fixed[17], fixed[18], fixed[19]]),
            protocol: fixed[9],
            hops: fixed[8],
            ecn: Ecn::of(fixed[1]),
            plain: header_bytes == BYTES4,
        };
        Ok((header, payload))
    }

    /// The header and what it carries, to the length that it states.
    #[inline]
    pub fn parse6(packet: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let (header, rest) = packet.split_first_chunk::<BYTES6>().ok_or(Malformed::Short)?;
        if header[0] >> 4 != 6 {
            return Err(Malformed::Length);
        }
        let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
        let payload = rest.get(..length).ok_or(Malformed::Short)?;
        let ip = |at: usize| Ip::v6(core::array::from_fn(|index| header[at + index]));
        let (source, target) = (ip(8), ip(24));
        // A frame with a mapped address would be taken for IPv4.
        if source.is_v4() || target.is_v4() {
            return Err(Malformed::Unsupported);
        }
        let header = Self {
            source,
            target,
            protocol: header[6],
            hops: header[7],
            ecn: Ecn::of(header[1] >> 4),
            plain: true,
        };
        Ok((header, payload))
    }

    /// Bytes of this header.
    #[inline]
    pub const fn bytes(&self) -> usize {
        if self.source.is_v4() { BYTES4 } else { BYTES6 }
    }

    /// A header of ours, whose hops can be changed.
    pub const fn new(source: Ip, target: Ip, protocol: u8) -> Self {
        Self {
            source,
            target,
            protocol,
            hops: HOPS,
            ecn: Ecn::Not,
            plain: true,
        }
    }

    /// Writes the header at the start of `packet`, of which the rest is its payload.
    #[inline]
    pub fn emit(&self, packet: &mut [u8], checks: bool) {
        if self.source.is_v4() {
            let length = packet.len() as u16;
            let header = packet.first_chunk_mut::<BYTES4>().expect("room for the header");
            let [l0, l1] = length.to_be_bytes();
            // Version and length, class, length, no identification, do not fragment.
            header[..8].copy_from_slice(&[0x45, self.ecn as u8, l0, l1, 0, 0, 0x40, 0]);
            header[8..12].copy_from_slice(&[self.hops, self.protocol, 0, 0]);
            header[12..16].copy_from_slice(&self.source.octets4());
            header[16..].copy_from_slice(&self.target.octets4());
            if checks {
                let sum = Sum::default().bytes(header).finish();
                header[10..12].copy_from_slice(&sum);
            }
        } else {
            let [l0, l1] = ((packet.len() - BYTES6) as u16).to_be_bytes();
            let header = packet.first_chunk_mut::<BYTES6>().expect("room for the header");
            let class = (self.ecn as u8) << 4;
            header[..8].copy_from_slice(&[0x60, class, 0, 0, l0, l1, self.protocol, self.hops]);
            header[8..24].copy_from_slice(&self.source.octets());
            header[24..].copy_from_slice(&self.target.octets());
        }
    }

    /// The pseudo header of the payload's checksum (RFC 9293 §3.1, RFC 8200 §8.1).
    #[inline]
    pub fn pseudo(&self, payload_bytes: usize) -> Sum {
        // Halves of addresses are summed as numbers of network order. An IPv4 address has no upper half to sum.
        let half = |sum: Sum, half: u64| sum.word(half.swap_bytes());
        let mut sum = Sum::default();
        for ip in [self.source, self.target] {
            let [upper, lower] = ip.halves();
            sum = match ip.is_v4() {
                true => half(sum, lower & 0xffff_ffff),
                false => half(half(sum, upper), lower),
            };
        }
        sum.number(u16::from(self.protocol)).number(payload_bytes as u16)
    }
}

//! ARP for IPv4 over Ethernet (RFC 826): 28 bytes.

use super::malformed::Malformed;
use crate::addr::{Ip, Mac};

/// Bytes of a packet.
pub const BYTES: usize = 28;
/// Ethernet, IPv4, six and four bytes of address.
const SPACE: [u8; 6] = [0, 1, 8, 0, 6, 4];

/// A question or an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arp {
    /// Whether it is an answer.
    pub is_reply: bool,
    /// The sender's card.
    pub sender_mac: Mac,
    /// The sender's address.
    pub sender: Ip,
    /// The card that is answered.
    pub target_mac: Mac,
    /// The address that is asked for, or answered.
    pub target: Ip,
}

impl Arp {
    /// Reads a packet; Ethernet's padding may follow.
    pub fn parse(packet: &[u8]) -> Result<Self, Malformed> {
        let packet = packet.first_chunk::<BYTES>().ok_or(Malformed::Short)?;
        let mac = |at: usize| Mac(core::array::from_fn(|index| packet[at + index]));
        let ip = |at: usize| Ip::v4(core::array::from_fn(|index| packet[at + index]));
        let is_reply = match packet[6..8] {
            [0, 1] => false,
            [0, 2] => true,
            _ => return Err(Malformed::Unsupported),
        };
        if packet[..6] != SPACE {
            return Err(Malformed::Unsupported);
        }
        Ok(Self {
            is_reply,
            sender_mac: mac(8),
            sender: ip(14),
            target_mac: mac(18),
            target: ip(24),
        })
    }

    /// Writes a packet.
    pub fn emit(&self, packet: &mut [u8; BYTES]) {
        packet[..6].copy_from_slice(&SPACE);
        packet[6..8].copy_from_slice(&[0, 1 + u8::from(self.is_reply)]);
        packet[8..14].copy_from_slice(&self.sender_mac.0);
        packet[14..18].copy_from_slice(&self.sender.octets4());
        packet[18..24].copy_from_slice(&self.target_mac.0);
        packet[24..].copy_from_slice(&self.target.octets4());
    }
}

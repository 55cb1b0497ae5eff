//! ICMP: errors about our segments (RFC 792, 1191, 4443), and IPv6 neighbour discovery (RFC 4861 §4.3, §4.4).

use super::checksum::Sum;
use super::ip::{BYTES4, BYTES6, Header, ICMP6, TCP};
use super::malformed::Malformed;
use crate::addr::{Endpoint, Ip, Mac, Tuple};
use crate::seq::Seq;

/// Bytes of a neighbour solicitation or advertisement with its link-layer option.
pub const NEIGHBOUR_BYTES: usize = 32;
/// Hops of neighbour discovery: a packet that a router has forwarded has fewer (RFC 4861 §7.1.1).
pub const NEIGHBOUR_HOPS: u8 = 255;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Flags of an advertisement: an answer, and to be believed over what was known.
const SOLICITED_OVERRIDE: u8 = 0x60;

/// A question for, or the answer of, a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Whether it is an answer.
    pub is_reply: bool,
    /// The address that is asked for or answered.
    pub target: Ip,
    /// The card of the sender (of a question) or of the target (of an answer), if told.
    pub mac: Option<Mac>,
    /// The sender of the packet; [`Ip::ANY`] if it is about to take an address.
    pub sender: Ip,
}

/// What a router or host says of a segment of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// The connection, as this host sees it.
    pub tuple: Tuple,
    /// The number of the segment.
    pub seq: Seq,
    /// What went wrong.
    pub trouble: Trouble,
}

/// What went wrong with a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It was too long; 0 if the router does not say what would have been right.
    TooBig {
        /// The longest packet.
        mtu: u32,
    },
    /// Nobody can be reached there, perhaps only now (RFC 1122 §4.2.3.9: a soft error).
    Soft,
    /// There is no such port or protocol (RFC 1122 §4.2.3.9: a hard error).
    Hard,
}

/// Reads an ICMPv4 error about a TCP segment.
pub fn parse4(packet: &[u8], checks: bool) -> Result<Report, Malformed> {
    let (header, about) = packet.split_first_chunk::<8>().ok_or(Malformed::Short)?;
    if checks && Sum::default().bytes(packet).finish() != [0, 0] {
        return Err(Malformed::Checksum);
    }
    let trouble = match header[..2] {
        [3, 4] => Trouble::TooBig {
            mtu: u32::from(u16::from_be_bytes([header[6], header[7]])),
        },
        [3, 2 | 3] => Trouble::Hard,
        [3, _] => Trouble::Soft,
        _ => return Err(Malformed::Unsupported),
    };
    // The packet that it is about is cut off, so that its length is not to be believed (RFC 1812 §4.3.2.3).
    let fixed = about.first_chunk::<BYTES4>().ok_or(Malformed::Short)?;
    let header_bytes = usize::from(fixed[0] & 15) * 4;
    if fixed[0] >> 4 != 4 || header_bytes < BYTES4 || fixed[9] != TCP {
        return Err(Malformed::Unsupported);
    }
    let source = Ip::v4([fixed[12], fixed[13], fixed[14], fixed[15]]);
    let target = Ip::v4([fixed[16], fixed[17], fixed[18], fixed[19]]);
    report(source, target, about.get(header_bytes..), trouble)
}

fn report(source: Ip, target: Ip, start: Option<&[u8]>, trouble: Trouble) -> Result<Report, Malformed> {
    let start = start.and_then(|start| start.first_chunk::<8>());
    let [s0, s1, t0, t1, q0, q1, q2, q3] = *start.ok_or(Malformed::Short)?;
    Ok(Report {
        tuple: Tuple {
            local: Endpoint {
                ip: source,
                port: u16::from_be_bytes([s0, s1]),
            },
            remote: Endpoint {
                ip: target,
                port: u16::from_be_bytes([t0, t1]),
            },
        },
        seq: Seq(u32::from_be_bytes([q0, q1, q2, q3])),
        trouble,
    })
}

/// An ICMPv6 packet that we know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Icmp6 {
    /// An error.
    Report(Report),
    /// Neighbour discovery.
    Neighbour(Neighbour),
}

/// Reads an ICMPv6 packet.
pub fn parse6(ip: &Header, packet: &[u8], checks: bool) -> Result<Icmp6, Malformed> {
    let (header, body) = packet.split_first_chunk::<8>().ok_or(Malformed::Short)?;
    if checks && ip.pseudo(packet.len()).bytes(packet).finish() != [0, 0] {
        return Err(Malformed::Checksum);
    }
    let word = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
    match header[..2] {
        [2, _] => error6(body, Trouble::TooBig { mtu: word }),
        [1, 4] => error6(body, Trouble::Hard),
        [1, _] => error6(body, Trouble::Soft),
        [SOLICITATION | ADVERTISEMENT, 0] if ip.hops == NEIGHBOUR_HOPS => {
            neighbour(ip.source, header[0] == ADVERTISEMENT, body)
        }
        _ => Err(Malformed::Unsupported),
    }
}

fn error6(about: &[u8], trouble: Trouble) -> Result<Icmp6, Malformed> {
    let (fixed, rest) = about.split_first_chunk::<BYTES6>().ok_or(Malformed::Short)?;
    let ip = |at: usize| Ip::v6(core::array::from_fn(|index| fixed[at + index]));
    let (source, target) = (ip(8), ip(24));
    if fixed[0] >> 4 != 6 || fixed[6] != TCP || source.is_v4() || target.is_v4() {
        return Err(Malformed::Unsupported);
    }
    report(source, target, Some(rest), trouble).map(Icmp6::Report)
}

fn neighbour(sender: Ip, is_reply: bool, body: &[u8]) -> Result<Icmp6, Malformed> {
    let (target, mut options) = body.split_first_chunk::<16>().ok_or(Malformed::Short)?;
    let target = Ip::v6(*target);
    let wanted = 1 + u8::from(is_reply);
    let mut mac = None;
    while let [kind, words, ..] = *options {
        let length = usize::from(words) * 8;
        // RFC 4861 §4.6: a length of zero makes the packet invalid.
        if length == 0 || length > options.len() {
            return Err(Malformed::Option);
        }
        if kind == wanted && length == 8 {
            mac = Some(Mac(core::array::from_fn(|index| options[2 + index])));
        }
        options = &options[length..];
    }
    if target.is_v4() || !target.is_unicast() {
        return Err(Malformed::Unsupported);
    }
    Ok(Icmp6::Neighbour(Neighbour {
        is_reply,
        target,
        mac,
        sender,
    }))
}

impl Neighbour {
    /// Writes the packet with the sender's card, and its checksum.
    pub fn emit(&self, ip: &Header, mac: Mac, packet: &mut [u8; NEIGHBOUR_BYTES]) {
        assert_eq!(ip.protocol, ICMP6, "neighbour discovery is ICMPv6");
        let (kind, flags) = match self.is_reply {
            true => (ADVERTISEMENT, SOLICITED_OVERRIDE),
            false => (SOLICITATION, 0),
        };
        packet[..8].copy_from_slice(&[kind, 0, 0, 0, flags, 0, 0, 0]);
        packet[8..24].copy_from_slice(&self.target.octets());
        packet[24..26].copy_from_slice(&[1 + u8::from(self.is_reply), 1]);
        packet[26..].copy_from_slice(&mac.0);
        let sum = ip.pseudo(packet.len()).bytes(packet).finish();
        packet[2..4].copy_from_slice(&sum);
    }
}

//! Checksums and the cutting of long segments, which a back end leaves to the kernel and the kernel to a back end. Each tells the
//! other in the header of virtio-net (VIRTIO 1.2 §5.1.6), which TAP and AF_PACKET put before a frame.

use crate::frames::{ETHERNET_BYTES, Frame, Written};
use tcp::frame::checksum::Sum;
use tcp::frame::{Malformed, ether, ip, parse};

/// Bytes of the header, whose numbers are in the machine's order.
pub const HEADER_BYTES: usize = 10;

/// The checksum from `csum_start` on is not made yet.
const NEEDS_CSUM: u8 = 1;
/// The checksum was verified.
const DATA_VALID: u8 = 2;
/// How a frame is to be cut.
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
/// Only the first of the segments has CWR.
const GSO_ECN: u8 = 0x80;

/// The place of a segment's checksum (RFC 9293 §3.1).
const TCP_CHECKSUM_AT: usize = 16;
/// The place of a segment's flags, and the one that says "congestion window reduced".
const TCP_FLAGS_AT: usize = 13;
const TCP_CWR: u8 = 0x80;
/// The places of an IPv4 header's protocol, checksum and addresses (RFC 791 §3.1).
const IPV4_PROTOCOL_AT: usize = 9;
const IPV4_CHECKSUM_AT: usize = 10;
const IPV4_ADDRESSES_AT: usize = 12;
/// The places of an IPv6 header's next header and addresses (RFC 8200 §3).
const IPV6_NEXT_AT: usize = 6;
const IPV6_ADDRESSES_AT: usize = 8;

/// The start of a frame's segment, and the sum of its pseudo header, if it carries TCP.
struct Transport {
    at: usize,
    is_v4: bool,
    pseudo: Sum,
}

fn transport(frame: &[u8]) -> Option<Transport> {
    let packet = frame.get(ETHERNET_BYTES..)?;
    let kind = u16::from_be_bytes([frame[12], frame[13]]);
    let (is_v4, header, protocol, addresses) = match kind {
        ether::IPV4 => {
            let header = usize::from(packet.first()? & 15) * 4;
            (
                true,
                header,
                *packet.get(IPV4_PROTOCOL_AT)?,
                packet.get(IPV4_ADDRESSES_AT..20)?,
            )
        }
        ether::IPV6 => {
            let addresses = packet.get(IPV6_ADDRESSES_AT..ip::BYTES6)?;
            (false, ip::BYTES6, *packet.get(IPV6_NEXT_AT)?, addresses)
        }
        _ => return None,
    };
    let segment = packet.get(header..)?;
    if protocol != ip::TCP || header < 20 || segment.len() < 20 {
        return None;
    }
    let length = u16::try_from(segment.len()).ok()?;
    let pseudo = Sum::default()
        .bytes(addresses)
        .number(u16::from(protocol))
        .number(length);
    let at = ETHERNET_BYTES + header;
    Some(Transport { at, is_v4, pseudo })
}

/// Writes what the kernel wants to find in a frame without checksums, and answers the header that goes before it. The kernel
/// makes the segment's checksum, or the card does.
pub fn prepare(frame: &mut [u8], segment_bytes: u16) -> [u8; HEADER_BYTES] {
    fill_ipv4(frame);
    let mut header = [0; HEADER_BYTES];
    let Some(Transport { at, is_v4, pseudo }) = transport(frame) else {
        return header;
    };
    // The kernel goes on from the sum, not from its complement.
    let sum = pseudo.finish().map(|byte| !byte);
    frame[at + TCP_CHECKSUM_AT..][..2].copy_from_slice(&sum);
    header[0] = NEEDS_CSUM;
    header[6..8].copy_from_slice(&(at as u16).to_ne_bytes());
    header[8..10].copy_from_slice(&(TCP_CHECKSUM_AT as u16).to_ne_bytes());
    if segment_bytes > 0 {
        let is_reduced = frame[at + TCP_FLAGS_AT] & TCP_CWR != 0;
        let kind = if is_v4 { GSO_TCPV4 } else { GSO_TCPV6 };
        header[1] = kind | if is_reduced { GSO_ECN } else { 0 };
        let headers = at + usize::from(frame[at + 12] >> 4) * 4;
        header[2..4].copy_from_slice(&(headers as u16).to_ne_bytes());
        header[4..6].copy_from_slice(&segment_bytes.to_ne_bytes());
    }
    header
}

/// Makes all checksums of a frame, where nobody else does.
pub fn complete(frame: &mut [u8]) {
    fill_ipv4(frame);
    if let Some(Transport { at, pseudo, .. }) = transport(frame) {
        frame[at + TCP_CHECKSUM_AT..][..2].fill(0);
        let sum = pseudo.bytes(&frame[at..]).finish();
        frame[at + TCP_CHECKSUM_AT..][..2].copy_from_slice(&sum);
    }
}

/// Makes the checksum of an IPv4 header.
fn fill_ipv4(frame: &mut [u8]) {
    if frame.len() < ETHERNET_BYTES + 20 || frame[12..14] != ether::IPV4.to_be_bytes() {
        return;
    }
    let packet = &mut frame[ETHERNET_BYTES..];
    let bytes = usize::from(packet[0] & 15) * 4;
    if bytes < 20 || bytes > packet.len() {
        return;
    }
    packet[IPV4_CHECKSUM_AT..][..2].fill(0);
    let sum = Sum::default().bytes(&packet[..bytes]).finish();
    packet[IPV4_CHECKSUM_AT..][..2].copy_from_slice(&sum);
}

/// Whether a frame's checksums are right, as far as nobody has vouched for them. Other mistakes are left to the stack.
fn is_right(header: &[u8; HEADER_BYTES], frame: &[u8]) -> bool {
    if header[0] & (NEEDS_CSUM | DATA_VALID) == 0 {
        return !matches!(parse(frame, true), Err(Malformed::Checksum));
    }
    if frame.len() < ETHERNET_BYTES + 20 || frame[12..14] != ether::IPV4.to_be_bytes() {
        return true;
    }
    let packet = &frame[ETHERNET_BYTES..];
    let bytes = usize::from(packet[0] & 15) * 4;
    bytes > packet.len() || Sum::default().bytes(&packet[..bytes]).finish() == [0, 0]
}

/// Payload of each segment into which a wire has to cut the frame; 0 if the frame fits.
fn segment_bytes(header: &[u8; HEADER_BYTES]) -> u16 {
    match header[1] {
        GSO_NONE => 0,
        _ => u16::from_ne_bytes([header[4], header[5]]),
    }
}

/// Hands on the frame that stands behind its header in a buffer, unless it is damaged.
pub fn hand_on(buffer: &[u8], take: &mut dyn FnMut(Frame<'_>)) {
    if let Some((header, bytes)) = buffer.split_first_chunk()
        && is_right(header, bytes)
    {
        let segment_bytes = segment_bytes(header);
        take(Frame { bytes, segment_bytes });
    }
}

/// Has `fill` write a frame behind the room for its header in `buffer`, and prepares both. Answers the bytes of both.
pub fn write(buffer: &mut [u8], fill: &mut dyn FnMut(&mut [u8]) -> Option<Written>) -> Option<usize> {
    let (head, frame) = buffer.split_at_mut(HEADER_BYTES);
    let written = fill(frame)?;
    head.copy_from_slice(&prepare(&mut frame[..written.bytes], written.segment_bytes));
    Some(HEADER_BYTES + written.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tcp::addr::{Endpoint, Ip, Mac, Tuple};
    use tcp::frame::segment::Segment;
    use tcp::frame::{Flags, Hop, emit, headers_bytes};
    use tcp::seq::Seq;

    fn frame(is_v6: bool, payload: &[u8], checks: bool) -> Vec<u8> {
        let ip = |last| match is_v6 {
            false => Ip::v4([10, 0, 0, last]),
            true => Ip::v6([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]),
        };
        let end = |last| Endpoint {
            ip: ip(last),
            port: 4000,
        };
        let tuple = Tuple {
            local: end(1),
            remote: end(2),
        };
        let segment = Segment {
            window: 100,
            payload_bytes: payload.len() as u32,
            ..Segment::new(tuple, Seq(7), Seq(9), Flags::ACK | Flags::PSH)
        };
        let mut bytes = vec![0; 2000];
        let start = headers_bytes(&segment);
        bytes[start..start + payload.len()].copy_from_slice(payload);
        let hop = Hop {
            source: Mac([2, 0, 0, 0, 0, 1]),
            target: Mac([2, 0, 0, 0, 0, 2]),
        };
        let length = emit(hop, &segment, &mut bytes, checks);
        bytes.truncate(length);
        bytes
    }

    /// Does what the kernel does with a header and its frame.
    fn kernel_completes(header: &[u8; HEADER_BYTES], frame: &mut [u8]) {
        assert_eq!(header[0], NEEDS_CSUM);
        let number = |at: usize| usize::from(u16::from_ne_bytes([header[at], header[at + 1]]));
        let (start, field) = (number(6), number(6) + number(8));
        let sum = Sum::default().bytes(&frame[start..]).finish();
        frame[field..field + 2].copy_from_slice(&sum);
    }

    #[test]
    fn the_kernel_completes_a_prepared_frame_to_what_the_stack_would_have_made() {
        for is_v6 in [false, true] {
            for payload in [&b""[..], b"x", b"hello, world"] {
                let mut bytes = frame(is_v6, payload, false);
                let header = prepare(&mut bytes, 0);
                kernel_completes(&header, &mut bytes);
                assert_eq!(bytes, frame(is_v6, payload, true), "v6: {is_v6}, {payload:?}");
                let mut bytes = frame(is_v6, payload, false);
                complete(&mut bytes);
                assert_eq!(bytes, frame(is_v6, payload, true), "v6: {is_v6}, {payload:?}");
            }
        }
    }

    #[test]
    fn a_long_segment_says_how_it_is_to_be_cut() {
        let mut bytes = frame(false, &[1; 1800], false);
        let header = prepare(&mut bytes, 536);
        assert_eq!(header[1], GSO_TCPV4);
        assert_eq!(u16::from_ne_bytes([header[2], header[3]]), 14 + 20 + 20);
        assert_eq!(segment_bytes(&header), 536);
    }

    #[test]
    fn a_damaged_frame_that_nobody_vouches_for_is_wrong() {
        let good = frame(false, b"hello", true);
        assert!(is_right(&[0; HEADER_BYTES], &good));
        let mut bad = good.clone();
        *bad.last_mut().expect("it has bytes") ^= 1;
        assert!(!is_right(&[0; HEADER_BYTES], &bad));
        let mut vouched = [0; HEADER_BYTES];
        vouched[0] = DATA_VALID;
        assert!(is_right(&vouched, &bad), "the card has looked at the payload");
        let mut bad = good;
        bad[ETHERNET_BYTES + 8] ^= 1;
        assert!(!is_right(&vouched, &bad), "nobody has looked at the header");
    }

    #[test]
    fn any_bytes_can_be_prepared_and_judged() {
        let mut rng = base::Rng::new(3);
        let good = [frame(false, b"hello", true), frame(true, b"hello", true)];
        for round in 0..200_000 {
            let mut bytes = good[round % 2].clone();
            bytes.truncate(rng.between(14, bytes.len() as u64) as usize);
            for _ in 0..rng.below(4) {
                let at = rng.below(bytes.len() as u64) as usize;
                bytes[at] = rng.next_u64() as u8;
            }
            let mut header = [0; HEADER_BYTES];
            header[0] = rng.below(4) as u8;
            is_right(&header, &bytes);
            prepare(&mut bytes, rng.next_u64() as u16);
            complete(&mut bytes);
        }
    }
}

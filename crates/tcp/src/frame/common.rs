//! The frame of the common case: TCP in IPv4, without options but timestamps. It is read and written here with one look at
//! its length and at constant places. Everything else goes the way of the parts ([`super::parse`], [`super::emit`]), which
//! read and write this frame alike; a test compares the two.

use super::checksum::Sum;
use super::ether::{self, Ether, Hop, IPV4};
use super::ip::{BYTES4, Ecn, HOPS, TCP};
use super::segment::{BYTES, Flags, Options, STAMPS_BYTES, STAMPS_START, Segment, Stamps};
use crate::addr::{Endpoint, Ip, Mac};
use crate::seq::Seq;

/// The places of the headers.
const IP_AT: usize = ether::BYTES;
const TCP_AT: usize = IP_AT + BYTES4;
/// Bytes of all headers without options, and with timestamps.
const PLAIN_BYTES: usize = TCP_AT + BYTES;
const STAMPED_BYTES: usize = PLAIN_BYTES + STAMPS_BYTES;
/// Version 4 and a header of five words.
const VERSION: u8 = 0x45;
/// No identification, and "do not fragment".
const WHOLE: [u8; 4] = [0, 0, 0x40, 0];

/// A common frame: its receiver, its segment, and the payload. None if it is another one, or if a checksum is wrong.
#[inline]
pub fn parse(frame: &[u8], checks: bool) -> Option<(Mac, Segment, &[u8])> {
    let head = frame.first_chunk::<PLAIN_BYTES>()?;
    let number = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    let long = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let is_whole = number(IP_AT + 6) & 0x3fff == 0;
    if number(12) != IPV4 || head[IP_AT] != VERSION || head[IP_AT + 9] != TCP || !is_whole {
        return None;
    }
    let packet = frame[IP_AT..].get(..usize::from(number(IP_AT + 2)))?;
    let mut options = Options::default();
    let payload = match head[TCP_AT + 12] >> 4 {
        5 => packet.get(PLAIN_BYTES - IP_AT..)?,
        8 => {
            let (stamped, payload) = packet.split_first_chunk::<{ STAMPED_BYTES - IP_AT }>()?;
            let option = stamped.last_chunk::<STAMPS_BYTES>()?;
            let [o0, o1, o2, o3, v0, v1, v2, v3, e0, e1, e2, e3] = *option;
            if u32::from_be_bytes([o0, o1, o2, o3]) != u32::from_be_bytes(STAMPS_START) {
                return None;
            }
            options.stamps = Some(Stamps {
                value: u32::from_be_bytes([v0, v1, v2, v3]),
                echo: u32::from_be_bytes([e0, e1, e2, e3]),
            });
            payload
        }
        _ => return None,
    };
    if checks && !is_intact(packet) {
        return None;
    }
    let end = |ip_at: usize, port_at: usize| Endpoint {
        ip: Ip::of_v4(long(ip_at)),
        port: number(port_at),
    };
    let segment = Segment {
        source: end(IP_AT + 12, TCP_AT),
        target: end(IP_AT + 16, TCP_AT + 2),
        seq: Seq(long(TCP_AT + 4)),
        ack: Seq(long(TCP_AT + 8)),
        flags: Flags(head[TCP_AT + 13]),
        window: number(TCP_AT + 14),
        ecn: Ecn::of(head[IP_AT + 1]),
        plain: true,
        options,
        payload_bytes: payload.len() as u32,
    };
    let [t0, t1, t2, t3, t4, t5, ..] = *head;
    Some((Mac([t0, t1, t2, t3, t4, t5]), segment, payload))
}

/// Whether both checksums of a packet are right.
#[inline]
fn is_intact(packet: &[u8]) -> bool {
    let Some((header, segment)) = packet.split_first_chunk::<BYTES4>() else {
        return false;
    };
    let sum = pseudo(header).number(segment.len() as u16).bytes(segment);
    Sum::default().bytes(header).finish() == [0, 0] && sum.finish() == [0, 0]
}

/// The addresses and the protocol of a header, of the sum of its segment (RFC 9293 §3.1).
#[inline]
fn pseudo(header: &[u8; BYTES4]) -> Sum {
    let addresses = header.last_chunk::<8>().expect("it has them");
    let sum = Sum::default().word(u64::from_le_bytes(*addresses));
    sum.number(u16::from(TCP))
}

/// Whether [`emit`] writes the headers of a segment.
#[inline]
pub fn is_common(segment: &Segment) -> bool {
    segment.source.ip.is_v4() && segment.options.mss.is_none() && segment.options.scale.is_none()
}

/// Writes the headers of a common segment before its payload, which lies there already. Answers the length of the frame.
///
/// # Panics
/// If it does not fit.
#[inline]
pub fn emit(hop: Hop, segment: &Segment, frame: &mut [u8], checks: bool) -> usize {
    let stamps = segment.options.stamps;
    let header_bytes = if stamps.is_some() {
        STAMPED_BYTES
    } else {
        PLAIN_BYTES
    };
    let bytes = header_bytes + segment.payload_bytes as usize;
    let frame = &mut frame[..bytes];
    let (head, rest) = frame
        .split_first_chunk_mut::<PLAIN_BYTES>()
        .expect("the headers are a part");
    let (ether, packet) = head.split_first_chunk_mut().expect("it is a part");
    let Hop { source, target } = hop;
    Ether {
        target,
        source,
        kind: IPV4,
    }
    .emit(ether);
    let (ip, tcp) = packet.split_first_chunk_mut::<BYTES4>().expect("it is a part");
    let [l0, l1] = ((bytes - IP_AT) as u16).to_be_bytes();
    put(ip, 0, [VERSION, segment.ecn as u8, l0, l1]);
    put(ip, 4, WHOLE);
    put(ip, 8, [HOPS, TCP, 0, 0]);
    put(ip, 12, segment.source.ip.octets4());
    put(ip, 16, segment.target.ip.octets4());
    let tcp = tcp.first_chunk_mut::<BYTES>().expect("it is the rest");
    let [p0, p1] = segment.source.port.to_be_bytes();
    let [q0, q1] = segment.target.port.to_be_bytes();
    put(tcp, 0, [p0, p1, q0, q1]);
    put(tcp, 4, segment.seq.0.to_be_bytes());
    put(tcp, 8, segment.ack.0.to_be_bytes());
    let words = ((header_bytes - TCP_AT) / 4) as u8;
    let [w0, w1] = segment.window.to_be_bytes();
    put(tcp, 12, [words << 4, segment.flags.0, w0, w1]);
    put(tcp, 16, [0; 4]);
    if let Some(stamps) = stamps {
        let option = rest.first_chunk_mut::<STAMPS_BYTES>().expect("it is a part");
        put(option, 0, STAMPS_START);
        put(option, 4, stamps.value.to_be_bytes());
        put(option, 8, stamps.echo.to_be_bytes());
    }
    if checks {
        write_checksums(&mut frame[IP_AT..]);
    }
    bytes
}

/// Writes both checksums of a packet whose checksums are zeros.
#[inline]
fn write_checksums(packet: &mut [u8]) {
    let (header, segment) = packet
        .split_first_chunk_mut::<BYTES4>()
        .expect("the header is a part");
    let sum = pseudo(header).number(segment.len() as u16).bytes(segment);
    put(header, 10, Sum::default().bytes(header).finish());
    let tcp = segment.first_chunk_mut::<BYTES>().expect("the header is a part");
    put(tcp, 16, sum.finish());
}

/// Writes at a constant place: one store.
#[inline(always)]
fn put<const N: usize, const M: usize>(bytes: &mut [u8; N], at: usize, value: [u8; M]) {
    *bytes[at..].first_chunk_mut().expect("the place is inside") = value;
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Rng;

    fn segment(rng: &mut Rng) -> (Segment, Vec<u8>) {
        let end = |rng: &mut Rng| Endpoint {
            ip: Ip::of_v4(rng.next_u64() as u32),
            port: rng.next_u64() as u16,
        };
        let payload: Vec<u8> = (0..rng.below(70)).map(|_| rng.next_u64() as u8).collect();
        let ecn = [Ecn::Not, Ecn::Able1, Ecn::Able, Ecn::Congested];
        let segment = Segment {
            source: end(rng),
            target: end(rng),
            seq: Seq(rng.next_u64() as u32),
            ack: Seq(rng.next_u64() as u32),
            flags: Flags(rng.next_u64() as u8),
            window: rng.next_u64() as u16,
            ecn: ecn[rng.below(4) as usize],
            plain: true,
            options: Options {
                stamps: rng.chance(0.7).then(|| Stamps {
                    value: rng.next_u64() as u32,
                    echo: rng.next_u64() as u32,
                }),
                ..Options::default()
            },
            payload_bytes: payload.len() as u32,
        };
        (segment, payload)
    }

    #[test]
    fn the_common_frame_is_written_as_its_parts_write_it() {
        let mut rng = Rng::new(5);
        let hop = Hop {
            source: Mac([2, 3, 4, 5, 6, 7]),
            target: Mac([8, 9, 10, 11, 12, 13]),
        };
        for _ in 0..20_000 {
            let checks = rng.chance(0.5);
            let (segment, payload) = segment(&mut rng);
            assert!(is_common(&segment));
            let header = segment.ip();
            let start = ether::BYTES + header.bytes() + segment.header_bytes();
            let mut frame = vec![0xaa; start + payload.len()];
            frame[start..].copy_from_slice(&payload);
            let mut parts = frame.clone();
            assert_eq!(emit(hop, &segment, &mut frame, checks), parts.len());
            let (head, packet) = parts.split_first_chunk_mut().expect("it is longer");
            Ether {
                target: hop.target,
                source: hop.source,
                kind: IPV4,
            }
            .emit(head);
            segment.emit(&header, &mut packet[BYTES4..], checks);
            header.emit(packet, checks);
            assert_eq!(frame, parts);
            let (target, read, rest) = parse(&frame, checks).expect("it is common");
            assert_eq!((target, read, rest), (hop.target, segment, &payload[..]));
        }
    }
}

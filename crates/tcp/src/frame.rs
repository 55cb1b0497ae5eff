//! Frames: what arrives is read without a copy, every length is checked, and nothing here panics on what a wire carries.
//! The formats are in `docs/format/tcp.md`.

pub mod arp;
pub mod checksum;
pub mod common;
pub mod ether;
pub mod icmp;
pub mod ip;
mod malformed;
pub mod segment;

use crate::addr::Ip;
use arp::Arp;
use ether::Ether;
use icmp::{Icmp6, Neighbour, Report};
use ip::Header;
use segment::Segment;

pub use ether::Hop;
pub use ip::Ecn;
pub use malformed::Malformed;
pub use segment::{Flags, Options, Stamps};

/// Bytes of the longest headers that we make: Ethernet, IPv6 and a SYN.
pub const HEADERS_BYTES_MAX: usize = ether::BYTES + ip::BYTES6 + segment::BYTES_MAX;

/// What a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet<'a> {
    /// A segment and its payload.
    Tcp(Segment, &'a [u8]),
    /// ARP.
    Arp(Arp),
    /// IPv6 neighbour discovery.
    Neighbour(Neighbour),
    /// An error about a segment of ours.
    Report(Report),
}

/// Reads a frame. Checksums are verified if `checks`.
#[inline]
pub fn parse(frame: &[u8], checks: bool) -> Result<(Ether, Packet<'_>), Malformed> {
    let (ether, packet) = Ether::parse(frame)?;
    let (ip, payload) = match ether.kind {
        ether::IPV4 => Header::parse4(packet, checks)?,
        ether::IPV6 => Header::parse6(packet)?,
        ether::ARP => return Ok((ether, Packet::Arp(Arp::parse(packet)?))),
        _ => return Err(Malformed::Unsupported),
    };
    let packet = match (ip.protocol, ip.source.is_v4()) {
        (ip::TCP, _) => {
            let (segment, payload) = Segment::parse(&ip, payload, checks)?;
            Packet::Tcp(segment, payload)
        }
        (ip::ICMP, true) => Packet::Report(icmp::parse4(payload, checks)?),
        (ip::ICMP6, false) => match icmp::parse6(&ip, payload, checks)? {
            Icmp6::Report(report) => Packet::Report(report),
            Icmp6::Neighbour(neighbour) => Packet::Neighbour(neighbour),
        },
        _ => return Err(Malformed::Unsupported),
    };
    Ok((ether, packet))
}

/// Bytes of the headers before a segment's payload.
#[inline]
pub fn headers_bytes(segment: &Segment) -> usize {
    ether::BYTES + segment.ip().bytes() + segment.header_bytes()
}

/// Writes the headers of a segment before its payload, which lies at [`headers_bytes`] of `frame` already. Answers the
/// length of the frame.
#[inline]
pub fn emit(hop: Hop, segment: &Segment, frame: &mut [u8], checks: bool) -> usize {
    if common::is_common(segment) {
        return common::emit(hop, segment, frame, checks);
    }
    // A copy, so that the common segment need not lie in memory.
    emit_parts(hop, *segment, frame, checks)
}

/// The same, of a frame that is not common.
#[inline(never)]
fn emit_parts(hop: Hop, segment: Segment, frame: &mut [u8], checks: bool) -> usize {
    let header = segment.ip();
    let length = headers_bytes(&segment) + segment.payload_bytes as usize;
    let packet = start(
        hop,
        if header.source.is_v4() {
            ether::IPV4
        } else {
            ether::IPV6
        },
        &mut frame[..length],
    );
    segment.emit(&header, &mut packet[header.bytes()..], checks);
    header.emit(packet, checks);
    length
}

/// Writes an ARP frame and answers its length.
pub fn emit_arp(hop: Hop, arp: &Arp, frame: &mut [u8]) -> usize {
    let packet = start(hop, ether::ARP, frame);
    arp.emit(packet.first_chunk_mut().expect("room for ARP"));
    ether::BYTES + arp::BYTES
}

/// Writes a frame of neighbour discovery from `source` to `target`, and answers its length.
pub fn emit_neighbour(hop: Hop, neighbour: &Neighbour, target: Ip, frame: &mut [u8]) -> usize {
    let mut header = Header::new(neighbour.sender, target, ip::ICMP6);
    header.hops = icmp::NEIGHBOUR_HOPS;
    let length = ether::BYTES + ip::BYTES6 + icmp::NEIGHBOUR_BYTES;
    let packet = start(hop, ether::IPV6, &mut frame[..length]);
    let body = packet[ip::BYTES6..]
        .first_chunk_mut()
        .expect("room for a neighbour");
    neighbour.emit(&header, hop.source, body);
    header.emit(packet, true);
    length
}

/// Writes the Ethernet header and answers what follows it.
#[inline]
fn start(hop: Hop, kind: u16, frame: &mut [u8]) -> &mut [u8] {
    let (head, packet) = frame.split_first_chunk_mut().expect("room for Ethernet");
    let Hop { source, target } = hop;
    Ether { target, source, kind }.emit(head);
    packet
}

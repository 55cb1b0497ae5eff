//! The rack packet: RackBlox's base header (RackBlox §3.3, Figure 6) with Switchyard's extension behind it.
//!
//! Layout: `docs/format/rack-packet.md`. [`Header::emit`] and [`Header::parse`] convert between bytes and
//! [`Header`]; [`Packet`] is a header with its payload by handle.
//!
//! Invariants: a header that parses has a known operation, code and flags, a valid checksum, and a payload length
//! that the operation allows. Checking the payload's own checksum is left to the receiver that uses the payload
//! ([`Packet::payload_is_intact`]), so that the ToR touches headers only.

use base::{Addr, Page, Version, VssdId, limits};
use core::ops::Range;
use thiserror::Error;

/// Bytes of the header on the wire.
pub const HEADER_BYTES: usize = 72;
/// Largest payload: one page.
pub const PAYLOAD_BYTES_MAX: usize = limits::PAGE_BYTES;
/// Format version, in every packet.
pub const FORMAT_VERSION: u8 = 1;
/// Its place, in the headers of all versions.
pub const FORMAT_VERSION_AT: usize = 9;

const HEADER_CRC_AT: usize = HEADER_BYTES - 4;

macro_rules! wire_enum {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $value:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum $name { $($(#[$vmeta])* $variant = $value,)+ }
        impl $name {
            /// Every value.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];
            /// The value of a byte, `None` if it has no meaning.
            pub const fn from_byte(byte: u8) -> Option<Self> {
                match byte { $($value => Some(Self::$variant),)+ _ => None }
            }
        }
    };
}

wire_enum! {
    /// Operation. 1–5 are RackBlox's (Table 1); the rest is Switchyard's.
    Op {
        /// Read one page.
        Read = 1,
        /// Write one page.
        Write = 2,
        /// Set or clear a vSSD's GC state at the ToR (Algorithm 1 line 10).
        GcOp = 3,
        /// Register a vSSD and its replicas at the ToR.
        CreateVssd = 4,
        /// Remove a vSSD from the ToR's tables.
        DelVssd = 5,
        /// Make every write acknowledged so far durable on this replica.
        Flush = 6,
        /// Zero one page.
        Zero = 7,
        /// Gateway to node: how did the write of this number end? It carries no page.
        Ask = 8,
        /// Hermes: a new value for one page.
        Inv = 16,
        /// Hermes: the value is taken.
        Ack = 17,
        /// Hermes: every replica has taken the value.
        Val = 18,
        /// Replica to replica: who I am since my last start; asks for the same.
        Hello = 19,
        /// Replica to replica: versions of a range of pages.
        Digest = 20,
        /// Replica to replica: send me these pages.
        Pull = 21,
        /// Replica to replica: let me read until I ask again (`rack::lease`).
        Lease = 22,
        /// Hermes: the new value is here and waits for room.
        Held = 23,
        /// Gateway to node: open (create if missing) a vSSD.
        Open = 32,
        /// Gateway to node: delete a vSSD and its data.
        Delete = 33,
        /// Gateway to node: report status. To a ToR: are you there?
        Status = 34,
        /// Gateway to a central controller: what its flows used and want; answered by what they may use.
        Demand = 35,
        /// To a node: which vSSDs there are, from this number on. It changes nothing.
        List = 36,
    }
}

wire_enum! {
    /// The code byte: GC kind of a [`Op::GcOp`] (RackBlox §3.7 lists the values 0–5), else the status of a reply.
    Code {
        /// GC: soft request. Status: success.
        SoftOrOk = 0,
        /// GC: regular request, never denied.
        Regular = 1,
        /// GC: background.
        Background = 2,
        /// GC: accepted by the ToR.
        Accept = 3,
        /// GC: delayed by the ToR, the replica is collecting.
        Delay = 4,
        /// GC: finished.
        Finish = 5,
        /// Status: the sender's epoch is not the replica's; the reply's epoch is the right one.
        Stale = 16,
        /// Status: no such vSSD here.
        NoVssd = 17,
        /// Status: outside the vSSD.
        OutOfRange = 18,
        /// Status: the medium is damaged here; another replica may have the page.
        Damaged = 19,
        /// Status: the medium failed or a flush failed; writes are refused until the node is restarted.
        Latched = 20,
        /// Status: no free flash.
        NoSpace = 21,
        /// Status: the request is not understood or contradicts what exists.
        Refused = 22,
        /// Status: not yet; ask again later.
        Busy = 23,
        /// Status: a gateway of a higher session serves the volume.
        Superseded = 24,
        /// Status: the vSSD collects; the replica that the reply's lba names has the page (RackBlox (Software)).
        Elsewhere = 25,
        /// Status: the vSSD belongs to another rack.
        Foreign = 26,
        /// Status: the request that is asked about is not here: send it.
        Absent = 27,
        /// Status: the vSSD is part of another volume or set.
        OtherSet = 28,
        /// Status: the vSSD is of before a membership that all members knew.
        Past = 29,
        /// Status: the vSSD knows a later membership than the request.
        Ahead = 30,
    }
}

/// Flag bits of [`Header::flags`].
pub mod flags {
    /// This is an answer.
    pub const REPLY: u8 = 1;
    /// Durable on every replica before it is acknowledged.
    pub const DURABLE: u8 = 2;
    /// The ToR sent this read to the replica instead (Algorithm 1 lines 7–8).
    pub const REDIRECTED: u8 = 4;
    /// The page is all zeros and is not carried.
    pub const ZERO: u8 = 8;
    /// Do not redirect: the sender chose this replica.
    pub const PINNED: u8 = 16;
    /// Hermes: the value is sent again for a writer that may be gone (replay), or to repair a page.
    pub const REPLAY: u8 = 32;
    /// It goes by the second ToR of its rack: that with the higher address. The answer goes back by the same one.
    pub const SECOND: u8 = 64;
    /// All defined bits.
    pub const ALL: u8 = 127;
}

/// Parts of one packet at most: enough for the smallest MTU that IPv4 hosts have to take, 576 bytes.
pub const PARTS_MAX: u8 = 16;

/// Which part of a packet a datagram carries. The parts are of one length, but for the last, which may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    number: u8,
    further: u8,
}

impl Part {
    /// The packet is in one datagram.
    pub const WHOLE: Self = Self {
        number: 0,
        further: 0,
    };

    /// Part `number` of a packet that has `further` parts beside the first; `None` if it has none such.
    fn new(number: u8, further: u8, length: usize) -> Option<Self> {
        let part = Self { number, further };
        let is_there = number <= further && further < PARTS_MAX && !part.range(length).is_empty();
        (part == Self::WHOLE || is_there).then_some(part)
    }

    /// The parts of a payload of `length` bytes, of which `room` go behind one header.
    pub fn all(length: usize, room: usize) -> impl Iterator<Item = Self> {
        let count = length.div_ceil(room.max(1)).clamp(1, PARTS_MAX.into());
        // Rounded up, fewer parts may do.
        let each = length.div_ceil(count).max(1);
        let further = length.div_ceil(each).max(1) as u8 - 1;
        (0..=further).map(move |number| Self { number, further })
    }

    /// Counted from 0.
    pub fn number(self) -> u8 {
        self.number
    }

    /// Parts beside the first.
    pub fn further(self) -> u8 {
        self.further
    }

    /// The bytes of a payload of `length` bytes that it carries.
    pub fn range(self, length: usize) -> Range<usize> {
        let each = length.div_ceil(usize::from(self.further) + 1);
        let start = (usize::from(self.number) * each).min(length);
        start..(start + each).min(length)
    }
}

/// A rack packet's header, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What to do.
    pub op: Op,
    /// GC kind or status.
    pub code: Code,
    /// Bits of [`flags`].
    pub flags: u8,
    /// The vSSD this is for; on a reply, the one it is from.
    pub vssd: VssdId,
    /// LAT: network latency measured so far, in ns, saturating (RackBlox §3.4, in-band telemetry).
    pub lat_ns: u32,
    /// Payload bytes behind the header.
    pub length: u32,
    /// The requester's number of this request.
    pub request: u64,
    /// First 512-byte logical block, within the vSSD.
    pub lba: u64,
    /// Version of the page (Hermes' timestamp), or 0.
    pub version: Version,
    /// Membership epoch of the replica set, or 0.
    pub epoch: u32,
    /// The requester's incarnation: grows with each start of it. An answer carries that of its request.
    pub session: u32,
    /// `request` less the oldest request that its sender still waits for on this vSSD: older ones are duplicates.
    pub floor: u32,
    /// The sender; the answer goes there.
    pub source: Addr,
    /// The receiver; `Addr::NONE` when the ToR finds it by vSSD.
    pub target: Addr,
    /// CRC32C of the payload, 0 without one.
    pub payload_crc: u32,
}

/// Why bytes are not a rack packet. The receiver counts and drops it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Error)]
pub enum Malformed {
    /// Shorter than a header.
    #[error("shorter than a header")]
    Short,
    /// Another format version.
    #[error("unknown format version")]
    FormatVersion,
    /// The header's checksum does not match.
    #[error("header checksum mismatch")]
    HeaderChecksum,
    /// The payload's checksum does not match.
    #[error("payload checksum mismatch")]
    PayloadChecksum,
    /// Unknown operation, code or flag.
    #[error("unknown operation, code or flag")]
    Unknown,
    /// The stated length is not the payload's, or not one the operation allows.
    #[error("wrong payload length")]
    Length,
}

impl Header {
    /// A header with every optional field zero.
    pub const fn new(op: Op, vssd: VssdId) -> Self {
        Self {
            op,
            code: Code::SoftOrOk,
            flags: 0,
            vssd,
            lat_ns: 0,
            length: 0,
            request: 0,
            lba: 0,
            version: Version::NONE,
            epoch: 0,
            session: 0,
            floor: 0,
            source: Addr::NONE,
            target: Addr::NONE,
            payload_crc: 0,
        }
    }

    /// The header of the answer: same request, addresses turned round, no payload.
    pub const fn reply(&self, code: Code) -> Self {
        Self {
            code,
            flags: self.flags & (flags::REDIRECTED | flags::PINNED | flags::SECOND) | flags::REPLY,
            length: 0,
            floor: 0,
            payload_crc: 0,
            source: self.target,
            target: self.source,
            ..*self
        }
    }

    /// True if all of `bits` are set.
    pub const fn has(&self, bits: u8) -> bool {
        self.flags & bits == bits
    }

    /// True if the payload of this packet is a page of data, false if it is a control record.
    pub const fn carries_page(&self) -> bool {
        match self.op {
            Op::Write => !self.has(flags::REPLY),
            Op::Read => self.has(flags::REPLY),
            Op::Inv => true,
            _ => false,
        }
    }

    /// True if a page must follow: the operation carries one, it is not all zeros, and this is not a failure.
    const fn page_is_due(&self) -> bool {
        let succeeded = matches!(self.code, Code::SoftOrOk) || matches!(self.op, Op::Inv);
        self.carries_page() && succeeded && !self.has(flags::ZERO)
    }

    /// Writes the header of a whole packet, and its checksum.
    pub fn emit(&self, bytes: &mut [u8; HEADER_BYTES]) {
        self.emit_part(Part::WHOLE, bytes);
    }

    /// Writes the header of a part of the packet, and its checksum.
    pub fn emit_part(&self, part: Part, bytes: &mut [u8; HEADER_BYTES]) {
        let length = u16::try_from(self.length).expect("a packet has a page at most");
        bytes[0] = self.op as u8;
        bytes[1..5].copy_from_slice(&self.vssd.0.to_be_bytes());
        bytes[5..9].copy_from_slice(&self.lat_ns.to_be_bytes());
        bytes[FORMAT_VERSION_AT] = FORMAT_VERSION;
        bytes[10] = self.code as u8;
        bytes[11] = self.flags;
        bytes[12] = part.number();
        bytes[13] = part.further();
        bytes[14..16].copy_from_slice(&length.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.request.to_be_bytes());
        bytes[24..32].copy_from_slice(&self.lba.to_be_bytes());
        bytes[32..40].copy_from_slice(&self.version.0.to_be_bytes());
        bytes[40..44].copy_from_slice(&self.epoch.to_be_bytes());
        bytes[44..48].copy_from_slice(&self.session.to_be_bytes());
        bytes[48..52].copy_from_slice(&self.floor.to_be_bytes());
        bytes[52..56].copy_from_slice(&self.source.ip.to_be_bytes());
        bytes[56..58].copy_from_slice(&self.source.port.to_be_bytes());
        bytes[58..60].copy_from_slice(&self.target.port.to_be_bytes());
        bytes[60..64].copy_from_slice(&self.target.ip.to_be_bytes());
        bytes[64..68].copy_from_slice(&self.payload_crc.to_be_bytes());
        let crc = crc32c::crc32c(&bytes[..HEADER_CRC_AT]);
        bytes[HEADER_CRC_AT..].copy_from_slice(&crc.to_be_bytes());
    }

    /// Reads the header of a whole packet from the start of a datagram whose payload is `payload_bytes` long.
    pub fn parse(bytes: &[u8], payload_bytes: usize) -> Result<Self, Malformed> {
        match Self::parse_part(bytes, payload_bytes)? {
            (header, Part::WHOLE) => Ok(header),
            _ => Err(Malformed::Length),
        }
    }

    /// Reads the header of a packet, or of a part of it, from the start of a datagram whose payload is `payload_bytes` long.
    pub fn parse_part(bytes: &[u8], payload_bytes: usize) -> Result<(Self, Part), Malformed> {
        let bytes: &[u8; HEADER_BYTES] = bytes.first_chunk().ok_or(Malformed::Short)?;
        if bytes[FORMAT_VERSION_AT] != FORMAT_VERSION {
            return Err(Malformed::FormatVersion);
        }
        if crc32c::crc32c(&bytes[..HEADER_CRC_AT]) != u32_at(bytes, HEADER_CRC_AT) {
            return Err(Malformed::HeaderChecksum);
        }
        let header = Self {
            op: Op::from_byte(bytes[0]).ok_or(Malformed::Unknown)?,
            code: Code::from_byte(bytes[10]).ok_or(Malformed::Unknown)?,
            flags: bytes[11],
            vssd: VssdId(u32_at(bytes, 1)),
            lat_ns: u32_at(bytes, 5),
            length: u16_at(bytes, 14).into(),
            request: u64_at(bytes, 16),
            lba: u64_at(bytes, 24),
            version: Version(u64_at(bytes, 32)),
            epoch: u32_at(bytes, 40),
            session: u32_at(bytes, 44),
            floor: u32_at(bytes, 48),
            source: Addr {
                ip: u32_at(bytes, 52),
                port: u16_at(bytes, 56),
            },
            target: Addr {
                ip: u32_at(bytes, 60),
                port: u16_at(bytes, 58),
            },
            payload_crc: u32_at(bytes, 64),
        };
        if header.flags & !flags::ALL != 0 {
            return Err(Malformed::Unknown);
        }
        let length = header.length as usize;
        let allowed = if header.carries_page() {
            length
                == if header.page_is_due() {
                    limits::PAGE_BYTES
                } else {
                    0
                }
        } else {
            length <= PAYLOAD_BYTES_MAX
        };
        let part = Part::new(bytes[12], bytes[13], length).ok_or(Malformed::Length)?;
        if part.range(length).len() != payload_bytes || !allowed {
            return Err(Malformed::Length);
        }
        Ok((header, part))
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(*bytes[at..].first_chunk().expect("at is inside the header"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(*bytes[at..].first_chunk().expect("at is inside the header"))
}

/// Content behind a header.
#[derive(Clone, Debug, Default)]
pub enum Payload {
    /// Nothing.
    #[default]
    None,
    /// One page of data.
    Page(Page),
    /// A control record (control path: allocates).
    Record(Box<[u8]>),
}

impl Payload {
    /// The control record, empty if there is none.
    pub fn record(&self) -> &[u8] {
        match self {
            Self::Record(record) => record,
            _ => &[],
        }
    }
}

/// A header and its payload.
#[derive(Clone, Debug)]
pub struct Packet {
    /// The header.
    pub header: Header,
    /// The payload; its length is the header's.
    pub payload: Payload,
}

impl Packet {
    /// A packet without payload.
    pub const fn bare(header: Header) -> Self {
        Self {
            header,
            payload: Payload::None,
        }
    }

    /// A packet with a page whose CRC32C is `crc`, or, without a page, one that says the page is zeros.
    pub fn with_page(mut header: Header, page: Option<Page>, crc: u32) -> Self {
        match page {
            Some(page) => {
                header.length = limits::PAGE_BYTES as u32;
                header.payload_crc = crc;
                Self {
                    header,
                    payload: Payload::Page(page),
                }
            }
            None => {
                header.flags |= flags::ZERO;
                Self {
                    header,
                    payload: Payload::None,
                }
            }
        }
    }

    /// A packet with a control record.
    pub fn with_record(mut header: Header, record: Vec<u8>) -> Self {
        assert!(
            record.len() <= PAYLOAD_BYTES_MAX,
            "a control record fits a packet"
        );
        header.length = record.len() as u32;
        header.payload_crc = crc32c::crc32c(&record);
        Self {
            header,
            payload: Payload::Record(record.into_boxed_slice()),
        }
    }

    /// True if the payload's checksum is the header's.
    pub fn payload_is_intact(&self) -> bool {
        match &self.payload {
            Payload::None => self.header.payload_crc == 0,
            Payload::Page(page) => page.crc() == self.header.payload_crc,
            Payload::Record(record) => crc32c::crc32c(record) == self.header.payload_crc,
        }
    }

    /// The control record, empty if there is none.
    pub fn record(&self) -> &[u8] {
        self.payload.record()
    }

    /// The page, if one is carried.
    pub fn page(&self) -> Option<&Page> {
        match &self.payload {
            Payload::Page(page) => Some(page),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_header() -> impl Strategy<Value = Header> {
        (
            (
                0..Op::ALL.len(),
                0..Code::ALL.len(),
                0..=flags::ALL,
                any::<[u32; 8]>(),
            ),
            (any::<[u64; 3]>(), any::<[u16; 2]>(), 0..=PAYLOAD_BYTES_MAX as u32),
        )
            .prop_map(|((op, code, flags, w), (q, ports, length))| {
                let mut header = Header {
                    op: Op::ALL[op],
                    code: Code::ALL[code],
                    flags,
                    vssd: VssdId(w[0]),
                    lat_ns: w[1],
                    length,
                    request: q[0],
                    lba: q[1],
                    version: Version(q[2]),
                    epoch: w[2],
                    session: w[3],
                    floor: w[4],
                    source: Addr {
                        ip: w[5],
                        port: ports[0],
                    },
                    target: Addr {
                        ip: w[6],
                        port: ports[1],
                    },
                    payload_crc: w[7],
                };
                if header.carries_page() {
                    header.length = if header.page_is_due() {
                        limits::PAGE_BYTES as u32
                    } else {
                        0
                    };
                }
                header
            })
    }

    proptest! {
        #[test]
        fn what_is_emitted_parses_to_the_same(header in any_header()) {
            let mut bytes = [0; HEADER_BYTES];
            header.emit(&mut bytes);
            prop_assert_eq!(Header::parse(&bytes, header.length as usize), Ok(header));
        }

        #[test]
        fn parts_cover_a_payload(length in 0..=PAYLOAD_BYTES_MAX, room in 1..2 * PAYLOAD_BYTES_MAX) {
            let mut end = 0;
            for part in Part::all(length, room) {
                let range = part.range(length);
                prop_assert_eq!(range.start, end);
                prop_assert!(range.len() <= room.max(length.div_ceil(PARTS_MAX.into())));
                end = range.end;
                prop_assert!(!range.is_empty() || part == Part::WHOLE);
            }
            prop_assert_eq!(end, length);
        }

        #[test]
        fn a_part_parses_to_the_same(header in any_header(), room in 300..2 * PAYLOAD_BYTES_MAX) {
            let length = header.length as usize;
            for part in Part::all(length, room) {
                let mut bytes = [0; HEADER_BYTES];
                header.emit_part(part, &mut bytes);
                let parsed = Header::parse_part(&bytes, part.range(length).len());
                prop_assert_eq!(parsed, Ok((header, part)));
            }
        }

        #[test]
        fn any_flipped_bit_is_refused(header in any_header(), bit in 0..HEADER_BYTES * 8) {
            let mut bytes = [0; HEADER_BYTES];
            header.emit(&mut bytes);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Header::parse(&bytes, header.length as usize).is_err());
        }

        #[test]
        fn any_bytes_are_parsed_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let payload = bytes.len().saturating_sub(HEADER_BYTES);
            let _ = Header::parse(&bytes, payload);
        }
    }

    #[test]
    fn the_base_header_is_rackbloxs() {
        // RackBlox Figure 6: OP 1 byte, vSSD_ID 4 bytes, LAT 4 bytes.
        let mut bytes = [0; HEADER_BYTES];
        Header {
            lat_ns: 0x0102_0304,
            ..Header::new(Op::Write, VssdId(0x0a0b_0c0d))
        }
        .emit(&mut bytes);
        assert_eq!(bytes[..9], [2, 0x0a, 0x0b, 0x0c, 0x0d, 1, 2, 3, 4]);
    }
}

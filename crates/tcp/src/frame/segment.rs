//! TCP segments (RFC 9293 §3.1) with the options that we know.

use super::ip::{Ecn, Header, TCP};
use super::malformed::Malformed;
use crate::addr::{Endpoint, Tuple};
use crate::seq::Seq;
use core::ops::{BitOr, BitOrAssign};

/// Bytes of a header without options.
pub const BYTES: usize = 20;
/// Bytes of the longest header that we make: a SYN's, with MSS, timestamps and window scale.
pub const BYTES_MAX: usize = BYTES + 20;
/// Bytes of the timestamp option with its padding.
pub const STAMPS_BYTES: usize = 12;
/// What `NOP NOP timestamps` begins with (RFC 7323 appendix A).
pub(super) const STAMPS_START: [u8; 4] = [1, 1, 8, 10];
/// The largest window scale; a larger one counts as this (RFC 7323 §2.3).
pub const SCALE_MAX: u8 = 14;

/// The control bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u8);

impl Flags {
    /// No more data.
    pub const FIN: Self = Self(1);
    /// Begins a stream.
    pub const SYN: Self = Self(2);
    /// Ends a connection at once.
    pub const RST: Self = Self(4);
    /// To be delivered soon.
    pub const PSH: Self = Self(8);
    /// The acknowledgement counts.
    pub const ACK: Self = Self(16);
    /// The urgent pointer counts; we do not look at it.
    pub const URG: Self = Self(32);
    /// Congestion was seen (RFC 3168 §6.1).
    pub const ECE: Self = Self(64);
    /// The sender has slowed down.
    pub const CWR: Self = Self(128);

    /// Whether any of `flags` is set.
    #[inline]
    pub const fn any(self, flags: Self) -> bool {
        self.0 & flags.0 != 0
    }

    /// Those of them that `on` turns on.
    #[inline]
    pub const fn when(self, on: bool) -> Self {
        if on { self } else { Self(0) }
    }
}

impl BitOr for Flags {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Flags {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

/// The timestamps option.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamps {
    /// The sender's clock.
    pub value: u32,
    /// The last value that the sender has seen.
    pub echo: u32,
}

/// Options that we know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Timestamps.
    pub stamps: Option<Stamps>,
    /// The longest segment that the sender takes; SYN only.
    pub mss: Option<u16>,
    /// The sender's window scale; SYN only.
    pub scale: Option<u8>,
}

/// A segment as it is received or to be sent. Its payload is elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The sender.
    pub source: Endpoint,
    /// The receiver.
    pub target: Endpoint,
    /// The number of the first byte, or of the SYN.
    pub seq: Seq,
    /// The number that the sender waits for.
    pub ack: Seq,
    /// Control bits.
    pub flags: Flags,
    /// The window, not scaled.
    pub window: u16,
    /// Congestion on the way.
    pub ecn: Ecn,
    /// Whether nothing but timestamps is among the options, those of IP included.
    pub plain: bool,
    /// Options.
    pub options: Options,
    /// Bytes of payload.
    pub payload_bytes: u32,
}

impl Segment {
    /// A segment from the receiver of `tuple`'s view, with nothing in it.
    pub fn new(tuple: Tuple, seq: Seq, ack: Seq, flags: Flags) -> Self {
        Self {
            source: tuple.local,
            target: tuple.remote,
            seq,
            ack,
            flags,
            window: 0,
            ecn: Ecn::Not,
            plain: true,
            options: Options::default(),
            payload_bytes: 0,
        }
    }

    /// The connection, as the receiver of this segment sees it.
    #[inline]
    pub fn tuple(&self) -> Tuple {
        Tuple {
            local: self.target,
            remote: self.source,
        }
    }

    /// Sequence numbers that it takes: payload, SYN and FIN.
    #[inline]
    pub fn length(&self) -> u32 {
        self.payload_bytes + u32::from(self.flags.any(Flags::SYN)) + u32::from(self.flags.any(Flags::FIN))
    }

    /// The segment and its payload. The checksum is verified if `checks`.
    #[inline]
    pub fn parse<'a>(ip: &Header, packet: &'a [u8], checks: bool) -> Result<(Self, &'a [u8]), Malformed> {
        let fixed = packet.first_chunk::<BYTES>().ok_or(Malformed::Short)?;
        let header_bytes = usize::from(fixed[12] >> 4) * 4;
        if header_bytes < BYTES || header_bytes > packet.len() {
            return Err(Malformed::Length);
        }
        if checks && ip.pseudo(packet.len()).bytes(packet).finish() != [0, 0] {
            return Err(Malformed::Checksum);
        }
        let (header, payload) = packet.split_at(header_bytes);
        let number = |at: usize| u16::from_be_bytes([fixed[at], fixed[at + 1]]);
        let long = |at: usize| u32::from_be_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]);
        let (options, is_plain) = options(&header[BYTES..])?;
        let segment = Self {
            source: Endpoint {
                ip: ip.source,
                port: number(0),
            },
            target: Endpoint {
                ip: ip.target,
                port: number(2),
            },
            seq: Seq(long(4)),
            ack: Seq(long(8)),
            flags: Flags(fixed[13]),
            window: number(14),
            ecn: ip.ecn,
            plain: is_plain && ip.plain,
            options,
            payload_bytes: payload.len() as u32,
        };
        Ok((segment, payload))
    }

    /// Bytes of the TCP header.
    #[inline]
    pub fn header_bytes(&self) -> usize {
        let syn = 4 * usize::from(self.options.mss.is_some()) + 4 * usize::from(self.options.scale.is_some());
        BYTES + syn + STAMPS_BYTES * usize::from(self.options.stamps.is_some())
    }

    /// The IP header that goes before it.
    #[inline]
    pub fn ip(&self) -> Header {
        let mut header = Header::new(self.source.ip, self.target.ip, TCP);
        header.ecn = self.ecn;
        header
    }

    /// Writes the header at the start of `packet`, whose rest is the payload, and the checksum if `checks`.
    #[inline]
    pub fn emit(&self, ip: &Header, packet: &mut [u8], checks: bool) {
        let header_bytes = self.header_bytes();
        let (fixed, rest) = packet
            .split_first_chunk_mut::<BYTES>()
            .expect("room for the header");
        fixed[..2].copy_from_slice(&self.source.port.to_be_bytes());
        fixed[2..4].copy_from_slice(&self.target.port.to_be_bytes());
        fixed[4..8].copy_from_slice(&self.seq.0.to_be_bytes());
        fixed[8..12].copy_from_slice(&self.ack.0.to_be_bytes());
        fixed[12..14].copy_from_slice(&[(header_bytes as u8 / 4) << 4, self.flags.0]);
        fixed[14..16].copy_from_slice(&self.window.to_be_bytes());
        fixed[16..].fill(0);
        let mut at = 0;
        if let Some(mss) = self.options.mss {
            let [m0, m1] = mss.to_be_bytes();
            rest[..4].copy_from_slice(&[2, 4, m0, m1]);
            at = 4;
        }
        if let Some(stamps) = self.options.stamps {
            let option = rest[at..]
                .first_chunk_mut::<STAMPS_BYTES>()
                .expect("room for options");
            option[..4].copy_from_slice(&STAMPS_START);
            option[4..8].copy_from_slice(&stamps.value.to_be_bytes());
            option[8..].copy_from_slice(&stamps.echo.to_be_bytes());
            at += STAMPS_BYTES;
        }
        if let Some(scale) = self.options.scale {
            rest[at..at + 4].copy_from_slice(&[1, 3, 3, scale]);
        }
        if checks {
            let sum = ip.pseudo(packet.len()).bytes(packet).finish();
            packet[16..18].copy_from_slice(&sum);
        }
    }
}

/// The options, and whether there is nothing but timestamps.
#[inline]
fn options(bytes: &[u8]) -> Result<(Options, bool), Malformed> {
    let mut options = Options::default();
    if bytes.is_empty() {
        return Ok((options, true));
    }
    if let Ok([1, 1, 8, 10, v0, v1, v2, v3, e0, e1, e2, e3]) = <[u8; STAMPS_BYTES]>::try_from(bytes) {
        options.stamps = Some(Stamps {
            value: u32::from_be_bytes([v0, v1, v2, v3]),
            echo: u32::from_be_bytes([e0, e1, e2, e3]),
        });
        return Ok((options, true));
    }
    any_options(bytes)
}

/// Options in any order.
#[cold]
fn any_options(mut bytes: &[u8]) -> Result<(Options, bool), Malformed> {
    let mut options = Options::default();
    let mut is_plain = true;
    while let Some((&kind, rest)) = bytes.split_first() {
        match kind {
            0 => break,
            1 => {
                bytes = rest;
                continue;
            }
            _ => {}
        }
        let length = usize::from(*rest.first().ok_or(Malformed::Option)?);
        if length < 2 || length > bytes.len() {
            return Err(Malformed::Option);
        }
        let (option, after) = bytes.split_at(length);
        match *option {
            [2, 4, m0, m1] => options.mss = Some(u16::from_be_bytes([m0, m1])),
            [3, 3, scale] => options.scale = Some(scale.min(SCALE_MAX)),
            [8, 10, v0, v1, v2, v3, e0, e1, e2, e3] => {
                options.stamps = Some(Stamps {
                    value: u32::from_be_bytes([v0, v1, v2, v3]),
                    echo: u32::from_be_bytes([e0, e1, e2, e3]),
                });
            }
            [2 | 3 | 8, ..] => return Err(Malformed::Option),
            _ => {}
        }
        is_plain &= kind == 8;
        bytes = after;
    }
    Ok((options, is_plain))
}

//! Numbers and byte layouts of the NBD protocol ("proto.md" of the NBD project). All integers are big-endian.
//!
//! Extended headers are those of the document's branch "extension-ext-header". Only what this server says or understands is
//! here; `docs/format/nbd.md` lists the subset.

use base::BlockError;
use thiserror::Error;

/// First eight bytes of the server (proto.md "Newstyle negotiation"): "NBDMAGIC".
pub const HELLO_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Second eight bytes of the server, and the start of every option: "IHAVEOPT".
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Start of every reply to an option (proto.md "Fixed newstyle negotiation").
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Start of every request (proto.md "Request message").
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Start of every request with extended headers (proto.md "Request message").
pub const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
/// Start of a simple reply (proto.md "Simple reply message").
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Start of a structured reply chunk (proto.md "Structured reply chunk message").
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Start of a chunk with extended headers (proto.md "Extended reply chunk message").
pub const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

/// Bytes of the client's handshake flags.
pub const CLIENT_FLAGS_BYTES: usize = 4;
/// Bytes of an option's header: magic, option, length.
pub const OPTION_HEADER_BYTES: usize = 16;
/// Bytes of a request's header: magic, flags, command, cookie, offset, length.
pub const REQUEST_BYTES: usize = 28;
/// Bytes of an extended request's header: as above, with a length of eight bytes.
pub const EXTENDED_REQUEST_BYTES: usize = 32;
/// Bytes of a simple reply without data: magic, error, cookie.
pub const SIMPLE_REPLY_BYTES: usize = 16;
/// Bytes of a chunk's header: magic, flags, type, cookie, length.
pub const CHUNK_BYTES: usize = 20;
/// Bytes of an extended chunk's header: magic, flags, type, cookie, the request's offset, length.
pub const EXTENDED_CHUNK_BYTES: usize = 32;
/// Zeros behind the answer to `NBD_OPT_EXPORT_NAME`, unless both sides agreed on `NO_ZEROES`.
pub const EXPORT_NAME_PADDING_BYTES: usize = 124;
/// Longest string of the protocol (proto.md "Values").
pub const STRING_BYTES_MAX: usize = 4096;

/// Handshake flags, the same bits in both directions (proto.md "Handshake flags", "Client flags").
pub mod handshake_flags {
    /// Fixed newstyle negotiation.
    pub const FIXED_NEWSTYLE: u16 = 1;
    /// No padding behind the answer to `NBD_OPT_EXPORT_NAME`.
    pub const NO_ZEROES: u16 = 2;
    /// Offers of this server.
    pub const ALL: u16 = FIXED_NEWSTYLE | NO_ZEROES;
}

/// Transmission flags (proto.md "Transmission flags").
pub mod transmission_flags {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Writes are refused with EPERM.
    pub const READ_ONLY: u16 = 1 << 1;
    /// `NBD_CMD_FLUSH` is understood.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// `NBD_CMD_FLAG_FUA` is understood.
    pub const SEND_FUA: u16 = 1 << 3;
    /// `NBD_CMD_TRIM` is understood.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// `NBD_CMD_WRITE_ZEROES` is understood.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// `NBD_CMD_FLAG_DF` is understood; set exactly when structured replies or extended headers were agreed.
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush on one connection covers the writes acknowledged on every other.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// `NBD_CMD_FLAG_FAST_ZERO` is understood.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Options (proto.md "Option types").
pub mod option {
    /// Choose an export and start, without a way to say no.
    pub const EXPORT_NAME: u32 = 1;
    /// End the negotiation.
    pub const ABORT: u32 = 2;
    /// Name every export.
    pub const LIST: u32 = 3;
    /// Describe one export.
    pub const INFO: u32 = 6;
    /// Describe one export and start.
    pub const GO: u32 = 7;
    /// Agree on structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// Name the metadata contexts of an export.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Choose the metadata contexts of an export.
    pub const SET_META_CONTEXT: u32 = 10;
    /// Agree on extended headers.
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Replies to options (proto.md "Option reply types").
pub mod option_reply {
    /// Done.
    pub const ACK: u32 = 1;
    /// One export.
    pub const SERVER: u32 = 2;
    /// One piece of information on an export.
    pub const INFO: u32 = 3;
    /// One metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// The option is not known.
    pub const ERR_UNSUP: u32 = (1 << 31) + 1;
    /// The option's data makes no sense.
    pub const ERR_INVALID: u32 = (1 << 31) + 3;
    /// No such export.
    pub const ERR_UNKNOWN: u32 = (1 << 31) + 6;
    /// The server is stopping.
    pub const ERR_SHUTDOWN: u32 = (1 << 31) + 7;
    /// The option's data is too long.
    pub const ERR_TOO_BIG: u32 = (1 << 31) + 9;
    /// Extended headers are agreed on, and stay.
    pub const ERR_EXT_HEADER_REQD: u32 = (1 << 31) + 10;
}

/// Information types of `NBD_OPT_INFO` and `NBD_OPT_GO` (proto.md "NBD_REP_INFO").
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// The export's own name.
    pub const NAME: u16 = 1;
    /// Text for a person.
    pub const DESCRIPTION: u16 = 2;
    /// Minimum, preferred and maximum block.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Requests (proto.md "Request types").
pub mod command {
    /// Read.
    pub const READ: u16 = 0;
    /// Write; the only request followed by data.
    pub const WRITE: u16 = 1;
    /// Finish what is under way and close; not answered.
    pub const DISC: u16 = 2;
    /// Make every acknowledged write durable.
    pub const FLUSH: u16 = 3;
    /// Forget a range.
    pub const TRIM: u16 = 4;
    /// Zero a range.
    pub const WRITE_ZEROES: u16 = 6;
    /// Which parts of a range are allocated.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of a request (proto.md "Command flags").
pub mod command_flags {
    /// Durable before the answer; accepted with every command.
    pub const FUA: u16 = 1 << 0;
    /// Zeroes keep their space.
    pub const NO_HOLE: u16 = 1 << 1;
    /// One content chunk only.
    pub const DF: u16 = 1 << 2;
    /// One extent only.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Fail with ENOTSUP instead of zeroing no faster than a write would.
    pub const FAST_ZERO: u16 = 1 << 4;
    /// The length is that of a payload which follows; extended headers only.
    pub const PAYLOAD_LEN: u16 = 1 << 5;
}

/// Chunk types and the flag of a chunk (proto.md "Structured reply types").
pub mod chunk {
    /// Flag: the last chunk of the reply.
    pub const DONE: u16 = 1;
    /// Nothing but the end of the reply.
    pub const NONE: u16 = 0;
    /// Data at an offset.
    pub const OFFSET_DATA: u16 = 1;
    /// Extents of a metadata context.
    pub const BLOCK_STATUS: u16 = 5;
    /// The same with extended headers: numbers of eight bytes.
    pub const BLOCK_STATUS_EXT: u16 = 6;
    /// The request failed.
    pub const ERROR: u16 = (1 << 15) + 1;
}

/// Flags of an extent in `base:allocation` (proto.md "`base:` metadata context").
pub mod state {
    /// It takes no space.
    pub const HOLE: u32 = 1 << 0;
    /// It reads as zeros.
    pub const ZERO: u32 = 1 << 1;
}

/// Error values of replies (proto.md "Error values").
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Error)]
#[repr(u32)]
pub enum Errno {
    /// EPERM: a change on a read-only export, or a volume that an NVMe host has reserved.
    #[error("the export is read-only, or reserved by an NVMe host")]
    Perm = 1,
    /// EIO: the data could not be read or not be kept.
    #[error("the data could not be read or not be kept")]
    Io = 5,
    /// EINVAL: unknown, unaligned, too long or outside the export.
    #[error("unknown, unaligned, too long or out of range")]
    Inval = 22,
    /// ENOSPC: a write beyond the end, or no free flash.
    #[error("no space: past the end, or the flash is full")]
    NoSpace = 28,
    /// ENOTSUP: the zeroing would not be fast.
    #[error("zeroing this range would not be fast")]
    NotSup = 95,
    /// ESHUTDOWN: the server stops, or the volume is gone.
    #[error("the server is stopping or the volume is gone")]
    Shutdown = 108,
}

impl Errno {
    /// The text of an error chunk.
    pub const fn message(self) -> &'static str {
        match self {
            Self::Perm => "the export is read-only, or reserved by an NVMe host",
            Self::Io => "the data could not be read or not be kept",
            Self::Inval => "unknown, unaligned, too long or out of range",
            Self::NoSpace => "no space: past the end, or the flash is full",
            Self::NotSup => "zeroing this range would not be fast",
            Self::Shutdown => "the server is stopping or the volume is gone",
        }
    }
}

impl From<BlockError> for Errno {
    /// NBD has no ENODEV: a volume that is gone is reported as a server that is leaving, which makes clients hang up.
    fn from(error: BlockError) -> Self {
        match error {
            BlockError::Invalid => Self::Inval,
            BlockError::NoVolume | BlockError::Shutdown | BlockError::Elsewhere => Self::Shutdown,
            BlockError::ReadOnly | BlockError::Reserved => Self::Perm,
            BlockError::NoSpace => Self::NoSpace,
            BlockError::Io => Self::Io,
        }
    }
}

/// A request's header, decoded (proto.md "Request message").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// Bits of [`command_flags`], without [`command_flags::PAYLOAD_LEN`] of an extended request.
    pub flags: u16,
    /// One of [`command`], or unknown.
    pub command: u16,
    /// The client's mark, returned as it is.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes; of a compact request at most `u32::MAX`.
    pub length: u64,
    /// So many bytes of payload follow. A compact write has a payload, and an extended request with
    /// [`command_flags::PAYLOAD_LEN`].
    pub has_payload: bool,
}

impl RequestHeader {
    /// Bytes of a header, `extended` or compact.
    pub const fn bytes(extended: bool) -> usize {
        if extended {
            EXTENDED_REQUEST_BYTES
        } else {
            REQUEST_BYTES
        }
    }

    /// Reads a header from bytes that begin with it, `None` if the magic is wrong.
    ///
    /// # Panics
    /// If there are fewer than [`RequestHeader::bytes`].
    pub fn parse(bytes: &[u8], extended: bool) -> Option<Self> {
        let magic = if extended {
            EXTENDED_REQUEST_MAGIC
        } else {
            REQUEST_MAGIC
        };
        let (flags, command) = (u16_at(bytes, 4), u16_at(bytes, 6));
        let payload_flag = if extended { command_flags::PAYLOAD_LEN } else { 0 };
        (u32_at(bytes, 0) == magic).then(|| Self {
            flags: flags & !payload_flag,
            command,
            cookie: u64_at(bytes, 8),
            offset: u64_at(bytes, 16),
            length: if extended {
                u64_at(bytes, 24)
            } else {
                u64::from(u32_at(bytes, 24))
            },
            has_payload: if extended {
                flags & payload_flag != 0
            } else {
                command == command::WRITE
            },
        })
    }

    /// Appends the header.
    pub fn emit(&self, extended: bool, bytes: &mut Vec<u8>) {
        let (magic, payload_flag) = match (extended, self.has_payload) {
            (false, _) => (REQUEST_MAGIC, 0),
            (true, false) => (EXTENDED_REQUEST_MAGIC, 0),
            (true, true) => (EXTENDED_REQUEST_MAGIC, command_flags::PAYLOAD_LEN),
        };
        bytes.extend(magic.to_be_bytes());
        bytes.extend((self.flags | payload_flag).to_be_bytes());
        bytes.extend(self.command.to_be_bytes());
        bytes.extend(self.cookie.to_be_bytes());
        bytes.extend(self.offset.to_be_bytes());
        if extended {
            bytes.extend(self.length.to_be_bytes());
        } else {
            bytes.extend((self.length as u32).to_be_bytes());
        }
    }

    /// Bytes of payload that follow.
    pub const fn payload_bytes(&self) -> u64 {
        if self.has_payload { self.length } else { 0 }
    }
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(*bytes[at..].first_chunk().expect("at is inside a fixed header"))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(*bytes[at..].first_chunk().expect("at is inside a fixed header"))
}

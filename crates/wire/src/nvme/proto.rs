//! Numbers and byte layouts of NVMe, NVMe over Fabrics and its TCP transport. All integers are little-endian.
//!
//! Sections cited are those of "NVM Express Base 2.0" (Base), "NVM Command Set 1.0" (NVM), "NVMe over Fabrics 1.1"
//! (Fabrics) and "NVMe/TCP Transport 1.0" (TCP). Only what the two sides say or understand is here;
//! `docs/format/nvme-tcp.md` lists the subset.

use thiserror::Error;

/// Bytes of the header that every PDU starts with (TCP §3.6.1): type, flags, header length, data offset, length.
pub const COMMON_BYTES: usize = 8;
/// Bytes of `ICReq` and `ICResp` (TCP §3.6.2.2, §3.6.2.3).
pub const IC_BYTES: usize = 128;
/// Bytes of the header of `H2CTermReq` and `C2HTermReq` (TCP §3.6.2.4, §3.6.2.5).
pub const TERM_BYTES: usize = 24;
/// Longest termination request, with the header that it complains of (TCP §3.6.2.5).
pub const TERM_BYTES_MAX: usize = 152;
/// Bytes of the header of `CapsuleCmd` (TCP §3.6.2.6).
pub const COMMAND_PDU_BYTES: usize = COMMON_BYTES + SQE_BYTES;
/// Bytes of `CapsuleResp` (TCP §3.6.2.7).
pub const RESPONSE_PDU_BYTES: usize = COMMON_BYTES + CQE_BYTES;
/// Bytes of the header of `H2CData` and `C2HData`, and of `R2T` (TCP §3.6.2.8 to §3.6.2.10).
pub const DATA_PDU_BYTES: usize = 24;
/// Bytes of a header or data digest (TCP §3.3.1).
pub const DIGEST_BYTES: usize = 4;
/// Bytes of a submission queue entry (Base §3.3.3.1).
pub const SQE_BYTES: usize = 64;
/// Bytes of a completion queue entry (Base §3.3.3.2).
pub const CQE_BYTES: usize = 16;
/// Bytes of the data of `Connect` (Fabrics §3.3).
pub const CONNECT_DATA_BYTES: usize = 1024;
/// Bytes of a qualified name's field; the name itself has at most 223 (Fabrics §1.6.1).
pub const NQN_BYTES: usize = 256;
/// Longest qualified name (Base §4.5).
pub const NQN_BYTES_MAX: usize = 223;

/// True if `text` has the form of a qualified name (Base §4.5).
pub fn is_nqn(text: &str) -> bool {
    text.len() <= NQN_BYTES_MAX
        && text.starts_with("nqn.")
        && text.bytes().all(|byte| byte.is_ascii_graphic())
}
/// Bytes of the data of Identify (Base §5.17).
pub const IDENTIFY_BYTES: usize = 4096;
/// The smallest `MAXH2CDATA` that may be announced (TCP §3.6.2.3).
pub const H2C_DATA_BYTES_MIN: u32 = 4096;
/// The discovery subsystem's name (Fabrics §5).
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// The controller id that asks for a new controller (Fabrics §3.3).
pub const CNTLID_DYNAMIC: u16 = 0xffff;
/// The largest controller id (Base §3.1.3.2).
pub const CNTLID_MAX: u16 = 0xffef;
/// The only namespace of a subsystem.
pub const NSID: u32 = 1;
/// Every namespace at once (Base §3.2.1).
pub const NSID_ALL: u32 = 0xffff_ffff;
/// NVMe 2.0.0 as the VS property spells it (Base §3.1.3.2).
pub const VERSION: u32 = 0x0002_0000;
/// `log2` of a logical block.
pub const BLOCK_SHIFT: u32 = 9;
/// Most ranges of one Dataset Management command (NVM §3.2.3).
pub const DSM_RANGES_MAX: usize = 256;
/// Bytes of such a range.
pub const DSM_RANGE_BYTES: usize = 16;

/// PDU types (TCP §3.6.1, figure 15).
pub mod pdu {
    /// Initialize connection request.
    pub const IC_REQ: u8 = 0x00;
    /// Initialize connection response.
    pub const IC_RESP: u8 = 0x01;
    /// Host to controller terminate connection request.
    pub const H2C_TERM: u8 = 0x02;
    /// Controller to host terminate connection request.
    pub const C2H_TERM: u8 = 0x03;
    /// Command capsule.
    pub const COMMAND: u8 = 0x04;
    /// Response capsule.
    pub const RESPONSE: u8 = 0x05;
    /// Host to controller data.
    pub const H2C_DATA: u8 = 0x06;
    /// Controller to host data.
    pub const C2H_DATA: u8 = 0x07;
    /// Ready to transfer.
    pub const R2T: u8 = 0x09;
}

/// Flags of a PDU's header (TCP §3.6.1).
pub mod pdu_flag {
    /// A header digest follows the header.
    pub const HEADER_DIGEST: u8 = 1 << 0;
    /// A data digest follows the data.
    pub const DATA_DIGEST: u8 = 1 << 1;
    /// The last data PDU of its kind.
    pub const LAST: u8 = 1 << 2;
    /// The command succeeded, there will be no response capsule (`C2HData`).
    pub const SUCCESS: u8 = 1 << 3;
}

/// Fatal errors, the `FES` field of a termination request (TCP §3.6.2.4, §3.6.2.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Error)]
#[repr(u16)]
pub enum Fatal {
    /// A field of the header has no valid value; where it is.
    #[error("invalid PDU header field")]
    HeaderField = 1,
    /// This PDU does not belong here.
    #[error("PDU sequence error")]
    Sequence = 2,
    /// The header digest is wrong.
    #[error("header digest error")]
    HeaderDigest = 3,
    /// Data outside what was asked for.
    #[error("data transfer out of range")]
    OutOfRange = 4,
    /// More data than allowed, or more R2Ts.
    #[error("data transfer limit exceeded")]
    LimitExceeded = 5,
    /// A parameter that this side does not have.
    #[error("unsupported parameter")]
    Unsupported = 6,
}

impl Fatal {
    /// The error of a number.
    pub const fn from_u16(number: u16) -> Option<Self> {
        Some(match number {
            1 => Self::HeaderField,
            2 => Self::Sequence,
            3 => Self::HeaderDigest,
            4 => Self::OutOfRange,
            5 => Self::LimitExceeded,
            6 => Self::Unsupported,
            _ => return None,
        })
    }
}

/// Admin commands (Base §5, figure 138).
pub mod admin {
    /// Get Log Page.
    pub const GET_LOG_PAGE: u8 = 0x02;
    /// Identify.
    pub const IDENTIFY: u8 = 0x06;
    /// Abort.
    pub const ABORT: u8 = 0x08;
    /// Set Features.
    pub const SET_FEATURES: u8 = 0x09;
    /// Get Features.
    pub const GET_FEATURES: u8 = 0x0a;
    /// Asynchronous Event Request.
    pub const ASYNC_EVENT: u8 = 0x0c;
    /// Keep Alive.
    pub const KEEP_ALIVE: u8 = 0x18;
}

/// I/O commands (NVM §3.2).
pub mod io {
    /// Flush.
    pub const FLUSH: u8 = 0x00;
    /// Write.
    pub const WRITE: u8 = 0x01;
    /// Read.
    pub const READ: u8 = 0x02;
    /// Compare.
    pub const COMPARE: u8 = 0x05;
    /// Write Zeroes.
    pub const WRITE_ZEROES: u8 = 0x08;
    /// Dataset Management.
    pub const DATASET: u8 = 0x09;
    /// Reservation Register.
    pub const RESERVATION_REGISTER: u8 = 0x0d;
    /// Reservation Report.
    pub const RESERVATION_REPORT: u8 = 0x0e;
    /// Reservation Acquire.
    pub const RESERVATION_ACQUIRE: u8 = 0x11;
    /// Reservation Release.
    pub const RESERVATION_RELEASE: u8 = 0x15;
    /// Force unit access, of dword 12.
    pub const FUA: u32 = 1 << 30;
    /// Deallocate, of dword 12 of Write Zeroes.
    pub const DEALLOCATE: u32 = 1 << 25;
    /// Directive type, of dword 12.
    pub const DIRECTIVE_TYPE: u32 = 0xf << 20;
    /// Attribute of Dataset Management, dword 11: deallocate.
    pub const DSM_DEALLOCATE: u32 = 1 << 2;
}

/// Fabrics commands: the opcode and the types (Fabrics §3).
pub mod fabrics {
    /// Opcode of them all.
    pub const OPCODE: u8 = 0x7f;
    /// Property Set.
    pub const PROPERTY_SET: u8 = 0x00;
    /// Connect.
    pub const CONNECT: u8 = 0x01;
    /// Property Get.
    pub const PROPERTY_GET: u8 = 0x04;
    /// Authentication Send.
    pub const AUTH_SEND: u8 = 0x05;
    /// Authentication Receive.
    pub const AUTH_RECEIVE: u8 = 0x06;
    /// Disconnect.
    pub const DISCONNECT: u8 = 0x08;
    /// Attribute of Connect: no submission queue flow control.
    pub const DISABLE_SQ_FLOW: u8 = 1 << 2;
}

/// Controller properties (Base §3.1.3).
pub mod property {
    /// Capabilities, eight bytes.
    pub const CAP: u32 = 0x00;
    /// Version.
    pub const VS: u32 = 0x08;
    /// Configuration.
    pub const CC: u32 = 0x14;
    /// Status.
    pub const CSTS: u32 = 0x1c;
    /// NVM subsystem reset.
    pub const NSSR: u32 = 0x20;
    /// Controller ready timeouts.
    pub const CRTO: u32 = 0x68;
    /// `CC.EN`.
    pub const CC_ENABLE: u32 = 1;
    /// `CC.SHN`.
    pub const CC_SHUTDOWN: u32 = 3 << 14;
    /// `CSTS.RDY`.
    pub const CSTS_READY: u32 = 1;
    /// `CSTS.SHST` is complete.
    pub const CSTS_SHUTDOWN_DONE: u32 = 2 << 2;
}

/// SGL descriptor identifiers: type in the upper half, subtype in the lower (Base §4.1.2, TCP §3.4).
pub mod sgl {
    /// Data block at an offset in the capsule.
    pub const IN_CAPSULE: u8 = 0x01;
    /// Transport data block: the data goes in data PDUs.
    pub const TRANSPORT: u8 = 0x5a;
    /// `PSDT` of a command that uses SGLs, as every one over fabrics does (Base §3.3.3.1).
    pub const PSDT: u8 = 1 << 6;
    /// Mask of `PSDT`.
    pub const PSDT_MASK: u8 = 3 << 6;
    /// Mask of `FUSE`.
    pub const FUSE_MASK: u8 = 3;
}

/// Selector of Identify (Base §5.17, figure 273).
pub mod cns {
    /// A namespace.
    pub const NAMESPACE: u8 = 0x00;
    /// The controller.
    pub const CONTROLLER: u8 = 0x01;
    /// Ids of active namespaces.
    pub const ACTIVE_LIST: u8 = 0x02;
    /// Identification descriptors of a namespace.
    pub const DESCRIPTORS: u8 = 0x03;
    /// A namespace, specific to a command set.
    pub const CSI_NAMESPACE: u8 = 0x05;
    /// The controller, specific to a command set.
    pub const CSI_CONTROLLER: u8 = 0x06;
    /// Ids of active namespaces of a command set.
    pub const CSI_ACTIVE_LIST: u8 = 0x07;
    /// A namespace, independent of its command set.
    pub const INDEPENDENT: u8 = 0x08;
    /// Ids of allocated namespaces.
    pub const ALLOCATED_LIST: u8 = 0x10;
    /// An allocated namespace.
    pub const ALLOCATED: u8 = 0x11;
    /// Controllers that a namespace is attached to.
    pub const ATTACHED_CONTROLLERS: u8 = 0x12;
    /// Controllers of the subsystem.
    pub const CONTROLLER_LIST: u8 = 0x13;
    /// Command sets that the controller has.
    pub const COMMAND_SETS: u8 = 0x1c;
}

/// Features (Base §5.27.1, figure 317).
pub mod feature {
    /// Arbitration.
    pub const ARBITRATION: u8 = 0x01;
    /// Power Management.
    pub const POWER: u8 = 0x02;
    /// Temperature Threshold.
    pub const TEMPERATURE: u8 = 0x04;
    /// Error Recovery.
    pub const ERROR_RECOVERY: u8 = 0x05;
    /// Volatile Write Cache.
    pub const WRITE_CACHE: u8 = 0x06;
    /// Number of Queues.
    pub const QUEUES: u8 = 0x07;
    /// Write Atomicity Normal.
    pub const WRITE_ATOMICITY: u8 = 0x0a;
    /// Asynchronous Event Configuration.
    pub const ASYNC_EVENTS: u8 = 0x0b;
    /// Keep Alive Timer.
    pub const KEEP_ALIVE: u8 = 0x0f;
    /// Host Behavior Support.
    pub const HOST_BEHAVIOR: u8 = 0x16;
    /// Host Identifier.
    pub const HOST_ID: u8 = 0x81;
    /// Reservation Notification Mask.
    pub const RESERVATION_MASK: u8 = 0x82;
    /// Reservation Persistence.
    pub const RESERVATION_PERSISTENCE: u8 = 0x83;
}

/// Log pages (Base §5.16.1, figure 202).
pub mod log {
    /// Which log pages there are.
    pub const SUPPORTED: u8 = 0x00;
    /// Error information.
    pub const ERROR: u8 = 0x01;
    /// SMART and health.
    pub const SMART: u8 = 0x02;
    /// Firmware slots.
    pub const FIRMWARE: u8 = 0x03;
    /// Changed namespaces.
    pub const CHANGED_NAMESPACES: u8 = 0x04;
    /// Commands supported and effects.
    pub const EFFECTS: u8 = 0x05;
    /// Asymmetric namespace access.
    pub const ANA: u8 = 0x0c;
    /// Feature identifiers supported and effects.
    pub const FEATURES: u8 = 0x12;
    /// Management interface commands supported and effects.
    pub const MANAGEMENT: u8 = 0x13;
    /// Discovery (Fabrics §5.3).
    pub const DISCOVERY: u8 = 0x70;
    /// Reservation Notification.
    pub const RESERVATION: u8 = 0x80;
}

/// Asynchronous events (Base §5.2.1) and their bits in the configuration (Base §5.27.1.8).
pub mod event {
    /// Result of "namespace attribute changed": notice, information 0, log page 4.
    pub const NAMESPACE_CHANGED: u32 = 0x02 | (super::log::CHANGED_NAMESPACES as u32) << 16;
    /// Result of "asymmetric namespace access change": notice, information 3, log page 12.
    pub const ANA_CHANGED: u32 = 0x02 | 0x03 << 8 | (super::log::ANA as u32) << 16;
    /// Result of "discovery log page change": notice, information 0xf0, log page 0x70.
    pub const DISCOVERY_CHANGED: u32 = 0x02 | 0xf0 << 8 | (super::log::DISCOVERY as u32) << 16;
    /// Result of "reservation log page available": of the I/O command set, information 0, log page 0x80.
    pub const RESERVATION_NOTICE: u32 = 0x06 | (super::log::RESERVATION as u32) << 16;
    /// Configuration: namespace attribute notices.
    pub const MASK_NAMESPACE: u32 = 1 << 8;
    /// Configuration: asymmetric namespace access notices.
    pub const MASK_ANA: u32 = 1 << 11;
    /// Configuration: discovery log notices.
    pub const MASK_DISCOVERY: u32 = 1 << 31;
    /// Reservation notices have no bit in the configuration, but a feature of their own; this one is reserved there.
    pub(crate) const MASK_RESERVATION: u32 = 1 << 30;
}

/// A completion's status without the phase bit: code, code type, retry delay, more, do not retry (Base §3.3.3.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Status(pub u16);

impl Status {
    /// Success.
    pub const SUCCESS: Self = Self(0);
    /// Invalid Command Opcode.
    pub const INVALID_OPCODE: Self = Self(0x01);
    /// Invalid Field in Command.
    pub const INVALID_FIELD: Self = Self(0x02);
    /// Internal Error.
    pub const INTERNAL: Self = Self(0x06);
    /// Command Abort Requested.
    pub const ABORT_REQUESTED: Self = Self(0x07);
    /// Invalid Namespace or Format.
    pub const INVALID_NAMESPACE: Self = Self(0x0b);
    /// Command Sequence Error.
    pub const SEQUENCE: Self = Self(0x0c);
    /// Data SGL Length Invalid.
    pub const SGL_LENGTH: Self = Self(0x0f);
    /// SGL Descriptor Type Invalid.
    pub const SGL_TYPE: Self = Self(0x11);
    /// SGL Offset Invalid.
    pub const SGL_OFFSET: Self = Self(0x16);
    /// Host Identifier Inconsistent Format.
    pub const HOST_ID_FORMAT: Self = Self(0x18);
    /// Command Aborted due to Preempt and Abort.
    pub const PREEMPTED: Self = Self(0x1b);
    /// Host Identifier Not Initialized.
    pub const NO_HOST_ID: Self = Self(0x27);
    /// Transient Transport Error: a data digest did not match.
    pub const TRANSPORT: Self = Self(0x22);
    /// Namespace is Write Protected.
    pub const WRITE_PROTECTED: Self = Self(0x20);
    /// LBA Out of Range.
    pub const LBA_RANGE: Self = Self(0x80);
    /// Capacity Exceeded.
    pub const CAPACITY: Self = Self(0x81);
    /// Reservation Conflict.
    pub const RESERVATION_CONFLICT: Self = Self(0x83);
    /// Asynchronous Event Request Limit Exceeded.
    pub const ASYNC_LIMIT: Self = Self(0x105);
    /// Invalid Log Page.
    pub const INVALID_LOG_PAGE: Self = Self(0x109);
    /// Feature Identifier Not Saveable.
    pub const NOT_SAVEABLE: Self = Self(0x10d);
    /// Feature Not Changeable.
    pub const NOT_CHANGEABLE: Self = Self(0x10e);
    /// Connect Incompatible Format (Fabrics §3.3).
    pub const CONNECT_FORMAT: Self = Self(0x180);
    /// Connect Controller Busy.
    pub const CONNECT_BUSY: Self = Self(0x181);
    /// Connect Invalid Parameters.
    pub const CONNECT_PARAMETERS: Self = Self(0x182);
    /// Connect Invalid Host.
    pub const CONNECT_HOST: Self = Self(0x184);
    /// Invalid Queue Type: a disconnect of the admin queue.
    pub const INVALID_QUEUE_TYPE: Self = Self(0x185);
    /// Write Fault.
    pub const WRITE_FAULT: Self = Self(0x280);
    /// Unrecovered Read Error.
    pub const READ_ERROR: Self = Self(0x281);
    /// Compare Failure.
    pub const COMPARE_FAILURE: Self = Self(0x285);
    /// Internal Path Error: try another path.
    pub const PATH: Self = Self(0x300);
    /// Asymmetric Access Persistent Loss.
    pub const ANA_LOSS: Self = Self(0x301);
    /// Asymmetric Access Inaccessible.
    pub const ANA_INACCESSIBLE: Self = Self(0x302);
    /// Asymmetric Access Transition.
    pub const ANA_TRANSITION: Self = Self(0x303);
    /// "Do not retry".
    pub const DNR: u16 = 0x4000;

    /// The same with "do not retry".
    pub const fn dnr(self) -> Self {
        Self(self.0 | Self::DNR)
    }

    /// The same without "do not retry" and "more".
    pub const fn code(self) -> Self {
        Self(self.0 & 0x7ff)
    }

    /// True for success.
    pub const fn is_success(self) -> bool {
        self.code().0 == 0
    }
}

/// `u16` at `at`.
pub fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(*bytes[at..].first_chunk().expect("two bytes are there"))
}

/// `u32` at `at`.
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*bytes[at..].first_chunk().expect("four bytes are there"))
}

/// `u64` at `at`.
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*bytes[at..].first_chunk().expect("eight bytes are there"))
}

/// Puts bytes at `at`.
pub fn put(target: &mut [u8], at: usize, bytes: &[u8]) {
    target[at..at + bytes.len()].copy_from_slice(bytes);
}

/// The header that every PDU starts with (TCP §3.6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Common {
    /// Which PDU ([`pdu`]).
    pub kind: u8,
    /// Its flags ([`pdu_flag`]).
    pub flags: u8,
    /// Bytes of the header, without digest (`HLEN`).
    pub header_bytes: u8,
    /// Start of the data (`PDO`), 0 without data.
    pub data_offset: u8,
    /// Bytes of the whole PDU, digests included (`PLEN`).
    pub total_bytes: u32,
}

impl Common {
    /// Reads the first eight bytes. Any value parses; what is allowed depends on who reads.
    pub fn parse(bytes: &[u8]) -> Self {
        Self {
            kind: bytes[0],
            flags: bytes[1],
            header_bytes: bytes[2],
            data_offset: bytes[3],
            total_bytes: u32_at(bytes, 4),
        }
    }

    /// Writes the first eight bytes.
    pub fn emit(&self, target: &mut [u8]) {
        target[0] = self.kind;
        target[1] = self.flags;
        target[2] = self.header_bytes;
        target[3] = self.data_offset;
        put(target, 4, &self.total_bytes.to_le_bytes());
    }
}

/// A submission queue entry (Base §3.3.3.1, figure 87).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Sqe(pub [u8; SQE_BYTES]);

/// An SGL descriptor (Base §4.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sgl {
    /// Address or offset.
    pub address: u64,
    /// Bytes.
    pub length: u32,
    /// Type and subtype ([`sgl`]).
    pub kind: u8,
}

impl core::fmt::Debug for Sqe {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Sqe(opcode {:#x}, cid {})", self.opcode(), self.cid())
    }
}

impl Sqe {
    /// A command without data.
    pub fn new(opcode: u8) -> Self {
        let mut sqe = Self([0; SQE_BYTES]);
        sqe.0[0] = opcode;
        sqe.0[1] = sgl::PSDT;
        sqe.set_sgl(Sgl {
            address: 0,
            length: 0,
            kind: sgl::TRANSPORT,
        });
        sqe
    }

    /// Reads an entry.
    pub fn parse(bytes: &[u8]) -> Self {
        Self(*bytes.first_chunk().expect("an entry is there"))
    }

    /// Opcode (bits 7:0 of dword 0).
    pub const fn opcode(&self) -> u8 {
        self.0[0]
    }

    /// `FUSE` and `PSDT` (bits 15:8 of dword 0).
    pub const fn flags(&self) -> u8 {
        self.0[1]
    }

    /// Command identifier (bits 31:16 of dword 0).
    pub fn cid(&self) -> u16 {
        u16_at(&self.0, 2)
    }

    /// Namespace identifier (dword 1).
    pub fn nsid(&self) -> u32 {
        u32_at(&self.0, 4)
    }

    /// Type of a fabrics command (Fabrics §3: byte 4).
    pub const fn fabrics_type(&self) -> u8 {
        self.0[4]
    }

    /// Data pointer (dwords 6 to 9).
    pub fn sgl(&self) -> Sgl {
        Sgl {
            address: u64_at(&self.0, 24),
            length: u32_at(&self.0, 32),
            kind: self.0[39],
        }
    }

    /// Dword `index`, 0 to 15.
    pub fn dword(&self, index: usize) -> u32 {
        u32_at(&self.0, 4 * index)
    }

    /// Eight bytes at dword `index`.
    pub fn qword(&self, index: usize) -> u64 {
        u64_at(&self.0, 4 * index)
    }

    /// Sets the command identifier.
    pub fn set_cid(&mut self, cid: u16) {
        put(&mut self.0, 2, &cid.to_le_bytes());
    }

    /// Sets dword `index`.
    pub fn set_dword(&mut self, index: usize, value: u32) {
        put(&mut self.0, 4 * index, &value.to_le_bytes());
    }

    /// Sets eight bytes at dword `index`.
    pub fn set_qword(&mut self, index: usize, value: u64) {
        put(&mut self.0, 4 * index, &value.to_le_bytes());
    }

    /// Sets the data pointer.
    pub fn set_sgl(&mut self, sgl: Sgl) {
        put(&mut self.0, 24, &sgl.address.to_le_bytes());
        put(&mut self.0, 32, &sgl.length.to_le_bytes());
        put(&mut self.0, 36, &[0, 0, 0, sgl.kind]);
    }
}

/// A completion queue entry (Base §3.3.3.2, figure 90).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cqe {
    /// Dwords 0 and 1: specific to the command.
    pub result: u64,
    /// Submission queue head, of use with flow control only.
    pub sq_head: u16,
    /// Reserved over fabrics, 0.
    pub sq_id: u16,
    /// Of the command.
    pub cid: u16,
    /// How it went.
    pub status: Status,
}

impl Cqe {
    /// Reads an entry; the phase bit is not used over fabrics.
    pub fn parse(bytes: &[u8]) -> Self {
        Self {
            result: u64_at(bytes, 0),
            sq_head: u16_at(bytes, 8),
            sq_id: u16_at(bytes, 10),
            cid: u16_at(bytes, 12),
            status: Status(u16_at(bytes, 14) >> 1),
        }
    }

    /// Writes the entry.
    pub fn emit(&self, target: &mut [u8]) {
        put(target, 0, &self.result.to_le_bytes());
        put(target, 8, &self.sq_head.to_le_bytes());
        put(target, 10, &self.sq_id.to_le_bytes());
        put(target, 12, &self.cid.to_le_bytes());
        put(target, 14, &(self.status.0 << 1).to_le_bytes());
    }
}

/// The part of `H2CData`, `C2HData` and `R2T` behind the common header; all three have it (TCP §3.6.2.8 to §3.6.2.10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataHeader {
    /// Of the command (`CCCID`).
    pub cid: u16,
    /// The target's own mark (`TTAG`); 0 in `C2HData`.
    pub tag: u16,
    /// First byte within the command's data (`DATAO`, `R2TO`).
    pub offset: u32,
    /// Bytes (`DATAL`, `R2TL`).
    pub length: u32,
}

impl DataHeader {
    /// Reads the header of a whole PDU, common header included.
    pub fn parse(bytes: &[u8]) -> Self {
        Self {
            cid: u16_at(bytes, 8),
            tag: u16_at(bytes, 10),
            offset: u32_at(bytes, 12),
            length: u32_at(bytes, 16),
        }
    }

    /// Writes what is behind the common header.
    pub fn emit(&self, target: &mut [u8]) {
        put(target, 8, &self.cid.to_le_bytes());
        put(target, 10, &self.tag.to_le_bytes());
        put(target, 12, &self.offset.to_le_bytes());
        put(target, 16, &self.length.to_le_bytes());
        put(target, 20, &[0; 4]);
    }
}

/// `ICReq` or `ICResp` behind the common header (TCP §3.6.2.2, §3.6.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Initialize {
    /// Format version (`PFV`), 0.
    pub version: u16,
    /// Alignment of data that the sender receives, in dwords, 0's based (`HPDA`, `CPDA`), at most 31.
    pub alignment: u8,
    /// Header and data digests wanted, or agreed on.
    pub header_digest: bool,
    /// As above.
    pub data_digest: bool,
    /// `MAXR2T` of a request (0's based), `MAXH2CDATA` of a response.
    pub limit: u32,
}

impl Initialize {
    /// Reads a whole PDU.
    pub fn parse(bytes: &[u8]) -> Self {
        Self {
            version: u16_at(bytes, 8),
            alignment: bytes[10],
            header_digest: bytes[11] & 1 != 0,
            data_digest: bytes[11] & 2 != 0,
            limit: u32_at(bytes, 12),
        }
    }

    /// Writes a whole PDU of the given type.
    pub fn emit(&self, kind: u8) -> [u8; IC_BYTES] {
        let mut bytes = [0; IC_BYTES];
        let common = Common {
            kind,
            flags: 0,
            header_bytes: IC_BYTES as u8,
            data_offset: 0,
            total_bytes: IC_BYTES as u32,
        };
        common.emit(&mut bytes);
        put(&mut bytes, 8, &self.version.to_le_bytes());
        bytes[10] = self.alignment;
        bytes[11] = u8::from(self.header_digest) | u8::from(self.data_digest) << 1;
        put(&mut bytes, 12, &self.limit.to_le_bytes());
        bytes
    }
}

/// A termination request behind the common header (TCP §3.6.2.4, §3.6.2.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Termination {
    /// `FES`: the number of a [`Fatal`].
    pub status: u16,
    /// `FEI`: where the error is, or the digest received.
    pub information: u32,
}

impl Termination {
    /// Reads a whole header.
    pub fn parse(bytes: &[u8]) -> Self {
        Self {
            status: u16_at(bytes, 8),
            information: u32_at(bytes, 10),
        }
    }

    /// Writes a PDU of the given type that carries `culprit`, as much of it as fits; returns its length.
    pub fn emit(&self, kind: u8, culprit: &[u8], target: &mut [u8; TERM_BYTES_MAX]) -> usize {
        let carried = culprit.len().min(TERM_BYTES_MAX - TERM_BYTES);
        target.fill(0);
        let common = Common {
            kind,
            flags: 0,
            header_bytes: TERM_BYTES as u8,
            data_offset: 0,
            total_bytes: (TERM_BYTES + carried) as u32,
        };
        common.emit(target);
        put(target, 8, &self.status.to_le_bytes());
        put(target, 10, &self.information.to_le_bytes());
        put(target, TERM_BYTES, &culprit[..carried]);
        TERM_BYTES + carried
    }
}

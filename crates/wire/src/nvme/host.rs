//! The host's side of one connection, without I/O: commands in, bytes out, bytes in, completions out.
//!
//! Meant for tools and tests that need thousands of requests at little cost, not for a production initiator: nothing is
//! sent again, no timer runs, and an error ends the connection.
//!
//! How a world drives a [`Host`]:
//! 1. send what [`Host::outgoing`] shows and tell [`Host::sent`];
//! 2. give what the socket has to [`Host::receive`]; data, and the end of commands, come through the [`Sink`];
//! 3. once [`Host::is_connected`], [`Host::submit`] commands, as long as [`Host::has_room`];
//! 4. close the socket when [`Host::failed`] gives a reason.
//!
//! Invariants:
//! - At most one command per entry of the queue is under way, one entry less with flow control.
//! - Every command that was submitted ends exactly once, unless the connection fails.
//! - Payload is copied once on its way out (from the sink into the outgoing bytes), not on its way in.

use std::collections::VecDeque;
use thiserror::Error;

use super::proto::{
    BLOCK_SHIFT, CNTLID_DYNAMIC, COMMAND_PDU_BYTES, COMMON_BYTES, CONNECT_DATA_BYTES, Common, Cqe,
    DATA_PDU_BYTES, DIGEST_BYTES, DataHeader, H2C_DATA_BYTES_MIN, IC_BYTES, IDENTIFY_BYTES, Initialize,
    NQN_BYTES_MAX, NSID, RESPONSE_PDU_BYTES, SQE_BYTES, Sgl, Sqe, Status, TERM_BYTES, TERM_BYTES_MAX,
    Termination, admin, fabrics, io, pdu, pdu_flag, put, sgl, u16_at, u32_at, u64_at,
};

/// Outgoing bytes that are sent are cut off when there are this many.
const SENT_BYTES_MAX: usize = 1 << 20;

/// Parameters of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostOptions {
    /// The subsystem to connect to.
    pub subsystem_nqn: String,
    /// Our own name.
    pub host_nqn: String,
    /// Our own id.
    pub host_id: [u8; 16],
    /// 0 for an admin queue.
    pub queue_id: u16,
    /// The controller of an I/O queue; [`CNTLID_DYNAMIC`] for an admin queue.
    pub cntlid: u16,
    /// Entries of the queue, at least 2.
    pub entries: u16,
    /// Keep-alive time in milliseconds, 0 for none.
    pub kato_ms: u32,
    /// Ask for header digests.
    pub header_digest: bool,
    /// Ask for data digests.
    pub data_digest: bool,
    /// Alignment of data sent to us, in dwords, 0's based.
    pub alignment: u8,
    /// Submission queue flow control; without it, success may come as a flag of the data.
    pub sq_flow: bool,
    /// Data that may go into a capsule: what Identify says for an I/O queue, 8192 for an admin queue.
    pub in_capsule_bytes: u32,
    /// Writes at least as long leave their data out of [`Host::outgoing`]: the world sends it where [`Host::data_due`]
    /// says, without a copy. Not with data digests.
    pub apart_bytes: Option<u32>,
}

impl HostOptions {
    /// An admin queue of 32 entries, without digests.
    pub fn admin(subsystem_nqn: &str, host_nqn: &str) -> Self {
        Self {
            subsystem_nqn: subsystem_nqn.to_string(),
            host_nqn: host_nqn.to_string(),
            host_id: identity_of(host_nqn.as_bytes()),
            queue_id: 0,
            cntlid: CNTLID_DYNAMIC,
            entries: 32,
            kato_ms: 0,
            header_digest: false,
            data_digest: false,
            alignment: 0,
            sq_flow: true,
            in_capsule_bytes: super::IN_CAPSULE_BYTES_MIN,
            apart_bytes: None,
        }
    }

    /// An I/O queue of a controller that was connected with these options.
    pub fn io(&self, cntlid: u16, queue_id: u16, entries: u16) -> Self {
        Self {
            queue_id,
            cntlid,
            entries,
            kato_ms: 0,
            ..self.clone()
        }
    }
}

/// Where data and completions go, and where data comes from.
pub trait Sink {
    /// Data of a read: `bytes` from `offset` on.
    fn data(&mut self, cid: u16, offset: u32, bytes: &[u8]);
    /// Data of a write is wanted: fill `target` with what is at `offset`.
    fn fill(&mut self, cid: u16, offset: u32, target: &mut [u8]);
    /// A command has ended.
    fn done(&mut self, cid: u16, completion: &Cqe);
}

/// Data of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// None.
    None,
    /// So many bytes from the target.
    In(u32),
    /// So many bytes to the target.
    Out(u32),
}

/// Why a connection failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HostError {
    /// The target broke the framing.
    #[error("the target sent a PDU that does not belong here")]
    Framing,
    /// A digest is wrong.
    #[error("a digest does not match")]
    Digest,
    /// A completion or data for a command that is not under way.
    #[error("the target answered a command that is not under way")]
    Unasked,
    /// The target ended the connection, with this status.
    #[error("the target terminated the connection with status {status}, information {information}")]
    Terminated {
        /// `FES`.
        status: u16,
        /// `FEI`.
        information: u32,
    },
    /// Connect was refused.
    #[error("connect was refused with status {status:?}, result {result:#x}")]
    Refused {
        /// Why.
        status: Status,
        /// Place of the mistake.
        result: u32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Initializing,
    Connecting,
    Connected,
    Failed(HostError),
}

/// A command under way.
#[derive(Clone, Copy, Debug)]
struct Pending {
    data: Data,
    /// Bytes that have come, or were asked for.
    moved: u32,
}

/// Data on its way in.
#[derive(Clone, Copy, Debug)]
struct Incoming {
    cid: u16,
    offset: u32,
    left: u32,
    pad: u32,
    crc: u32,
    /// The success flag was set.
    ends: bool,
    digest: [u8; DIGEST_BYTES],
    digest_bytes: usize,
}

/// Data of a write that the world sends itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataDue {
    /// The write.
    pub cid: u16,
    /// From where on.
    pub offset: u32,
    /// How much.
    pub length: u32,
}

/// One NVMe/TCP connection, host side.
#[derive(Debug)]
pub struct Host {
    options: HostOptions,
    state: State,
    /// `MAXH2CDATA` of the target.
    data_bytes_max: u32,
    cntlid: u16,
    pending: Vec<Option<Pending>>,
    free: Vec<u16>,
    outgoing: Vec<u8>,
    outgoing_sent: usize,
    /// Data left out, and before which byte of `outgoing` it goes.
    apart: VecDeque<(usize, DataDue)>,
    scratch: [u8; TERM_BYTES_MAX],
    scratch_bytes: usize,
    incoming: Option<Incoming>,
}

impl Host {
    /// A connection whose first bytes are ready to be sent.
    ///
    /// # Panics
    /// If a name is longer than the protocol allows, or the queue has fewer than two entries.
    pub fn new(options: HostOptions) -> Self {
        assert!(options.subsystem_nqn.len() <= NQN_BYTES_MAX && options.host_nqn.len() <= NQN_BYTES_MAX);
        assert!(options.entries >= 2);
        assert!(
            options.apart_bytes.is_none() || !options.data_digest,
            "digests need the data"
        );
        let count = options.entries - u16::from(options.sq_flow);
        let request = Initialize {
            version: 0,
            alignment: options.alignment,
            header_digest: options.header_digest,
            data_digest: options.data_digest,
            limit: 0,
        };
        Self {
            outgoing: request.emit(pdu::IC_REQ).to_vec(),
            options,
            state: State::Initializing,
            data_bytes_max: H2C_DATA_BYTES_MIN,
            cntlid: CNTLID_DYNAMIC,
            pending: vec![None; usize::from(count)],
            free: (0..count).rev().collect(),
            outgoing_sent: 0,
            apart: VecDeque::new(),
            scratch: [0; TERM_BYTES_MAX],
            scratch_bytes: 0,
            incoming: None,
        }
    }

    /// True once commands can be submitted.
    pub fn is_connected(&self) -> bool {
        self.state == State::Connected
    }

    /// Why the connection failed, if it did.
    pub fn failed(&self) -> Option<HostError> {
        match self.state {
            State::Failed(error) => Some(error),
            _ => None,
        }
    }

    /// The controller's id, once connected.
    pub fn cntlid(&self) -> u16 {
        self.cntlid
    }

    /// Commands under way.
    pub fn in_flight(&self) -> usize {
        self.pending.len() - self.free.len()
    }

    /// True if one more command can be submitted.
    pub fn has_room(&self) -> bool {
        self.is_connected() && !self.free.is_empty()
    }

    /// Bytes to be sent, up to data that the world sends itself.
    pub fn outgoing(&self) -> &[u8] {
        let end = self.apart.front().map_or(self.outgoing.len(), |(at, _)| *at);
        &self.outgoing[self.outgoing_sent..end]
    }

    /// Data to be sent when [`Host::outgoing`] is empty.
    pub fn data_due(&self) -> Option<DataDue> {
        self.apart.front().map(|(_, due)| *due)
    }

    /// The first `bytes` bytes of [`Host::outgoing`], or of [`Host::data_due`] if there are none, are sent.
    pub fn sent(&mut self, bytes: usize) {
        if self.outgoing().is_empty()
            && let Some((_, due)) = self.apart.front_mut()
        {
            assert!(bytes <= due.length as usize, "no more is sent than there was");
            due.offset += bytes as u32;
            due.length -= bytes as u32;
            if due.length == 0 {
                self.apart.pop_front();
            }
        } else {
            assert!(bytes <= self.outgoing().len(), "no more is sent than there was");
            self.outgoing_sent += bytes;
        }
        if !self.apart.is_empty() {
            return;
        }
        if self.outgoing_sent == self.outgoing.len() {
            self.outgoing.clear();
            self.outgoing_sent = 0;
        } else if self.outgoing_sent >= SENT_BYTES_MAX {
            self.outgoing.drain(..self.outgoing_sent);
            self.outgoing_sent = 0;
        }
    }

    /// Submits a command; its data pointer and command id are set here. Returns the command id, `None` if there is no
    /// room. Data of a write that fits the capsule is asked from the sink at once, otherwise when the target wants it.
    pub fn submit(&mut self, mut sqe: Sqe, data: Data, sink: &mut dyn Sink) -> Option<u16> {
        if !self.is_connected() {
            return None;
        }
        let cid = self.free.pop()?;
        let in_capsule =
            matches!(data, Data::Out(bytes) if bytes <= self.options.in_capsule_bytes && bytes > 0);
        self.pending[usize::from(cid)] = Some(Pending {
            data,
            moved: match data {
                Data::Out(bytes) if in_capsule => bytes,
                _ => 0,
            },
        });
        let length = match data {
            Data::None => 0,
            Data::In(bytes) | Data::Out(bytes) => bytes,
        };
        sqe.set_cid(cid);
        sqe.set_sgl(Sgl {
            address: 0,
            length,
            kind: if in_capsule {
                sgl::IN_CAPSULE
            } else {
                sgl::TRANSPORT
            },
        });
        let carried = if in_capsule { length } else { 0 };
        self.put_command(&sqe, carried);
        if in_capsule {
            self.put_data(cid, 0, length, sink);
        }
        Some(cid)
    }

    /// Consumes bytes from the socket, all of them.
    pub fn receive(&mut self, mut bytes: &[u8], sink: &mut dyn Sink) {
        while !matches!(self.state, State::Failed(_)) {
            if self.incoming.is_some() {
                let taken = self.data(bytes, sink);
                bytes = &bytes[taken..];
                if self.incoming.is_some() {
                    return;
                }
                continue;
            }
            let taken =
                if let Some(whole) = whole_header(self.scratch_bytes, bytes, self.options.header_digest) {
                    self.take_pdu(&bytes[..whole], sink);
                    whole
                } else {
                    let Some((header, count, taken)) = self.gather(bytes) else {
                        return;
                    };
                    self.take_pdu(&header[..count], sink);
                    taken
                };
            bytes = &bytes[taken..];
        }
    }

    fn take_pdu(&mut self, header: &[u8], sink: &mut dyn Sink) {
        if let Err(error) = self.pdu(header, sink) {
            self.state = State::Failed(error);
        }
    }

    /// The next whole header, digest included, from pieces; its length, and how many of `bytes` were needed for it.
    fn gather(&mut self, bytes: &[u8]) -> Option<([u8; TERM_BYTES_MAX], usize, usize)> {
        let mut taken = 0;
        let mut want = COMMON_BYTES;
        loop {
            let step = (bytes.len() - taken).min(want.saturating_sub(self.scratch_bytes));
            self.scratch[self.scratch_bytes..][..step].copy_from_slice(&bytes[taken..taken + step]);
            self.scratch_bytes += step;
            taken += step;
            if self.scratch_bytes < want {
                return None;
            }
            let whole = header_bytes(&self.scratch, self.options.header_digest);
            if want == whole {
                break;
            }
            want = whole;
        }
        self.scratch_bytes = 0;
        Some((self.scratch, want, taken))
    }

    fn pdu(&mut self, header: &[u8], sink: &mut dyn Sink) -> Result<(), HostError> {
        let common = Common::parse(header);
        if common.kind == pdu::C2H_TERM {
            let Termination { status, information } = Termination::parse(header);
            return Err(HostError::Terminated { status, information });
        }
        if common.kind == pdu::IC_RESP {
            return self.initialized(header);
        }
        let expected = match common.kind {
            pdu::RESPONSE => RESPONSE_PDU_BYTES,
            pdu::C2H_DATA | pdu::R2T => DATA_PDU_BYTES,
            _ => return Err(HostError::Framing),
        };
        let digested = common.flags & pdu_flag::HEADER_DIGEST != 0;
        let odd = usize::from(common.header_bytes) != expected || digested != self.options.header_digest;
        if odd || self.state == State::Initializing {
            return Err(HostError::Framing);
        }
        if digested && crc32c::crc32c(&header[..expected]) != u32_at(header, expected) {
            return Err(HostError::Digest);
        }
        match common.kind {
            pdu::RESPONSE => self.completed(&Cqe::parse(&header[COMMON_BYTES..]), sink),
            pdu::R2T => self.ready(&DataHeader::parse(header), sink),
            _ => self.data_header(&common, &DataHeader::parse(header)),
        }
    }

    /// `ICResp`: what was asked for has to be there.
    fn initialized(&mut self, header: &[u8]) -> Result<(), HostError> {
        let response = Initialize::parse(header);
        let agreed = response.header_digest == self.options.header_digest
            && response.data_digest == self.options.data_digest
            && response.version == 0
            && response.alignment == 0;
        let limit = response.limit >= H2C_DATA_BYTES_MIN && response.limit.is_multiple_of(4);
        if self.state != State::Initializing || !agreed || !limit {
            return Err(HostError::Framing);
        }
        self.data_bytes_max = response.limit;
        self.state = State::Connecting;
        let (sqe, data) = self.connect_command();
        self.put_command(&sqe, CONNECT_DATA_BYTES as u32);
        self.outgoing.extend(data);
        if self.options.data_digest {
            self.outgoing.extend(crc32c::crc32c(&data).to_le_bytes());
        }
        Ok(())
    }

    /// Connect and its data (Fabrics §3.3).
    fn connect_command(&self) -> (Sqe, [u8; CONNECT_DATA_BYTES]) {
        let options = &self.options;
        let mut sqe = Sqe::new(fabrics::OPCODE);
        sqe.0[4] = fabrics::CONNECT;
        sqe.set_cid(0);
        put(&mut sqe.0, 42, &options.queue_id.to_le_bytes());
        put(&mut sqe.0, 44, &(options.entries - 1).to_le_bytes());
        sqe.0[46] = if options.sq_flow {
            0
        } else {
            fabrics::DISABLE_SQ_FLOW
        };
        sqe.set_dword(12, options.kato_ms);
        sqe.set_sgl(Sgl {
            address: 0,
            length: CONNECT_DATA_BYTES as u32,
            kind: sgl::IN_CAPSULE,
        });
        let mut data = [0; CONNECT_DATA_BYTES];
        put(&mut data, 0, &options.host_id);
        put(&mut data, 16, &options.cntlid.to_le_bytes());
        put(&mut data, 256, options.subsystem_nqn.as_bytes());
        put(&mut data, 512, options.host_nqn.as_bytes());
        (sqe, data)
    }

    fn completed(&mut self, cqe: &Cqe, sink: &mut dyn Sink) -> Result<(), HostError> {
        if self.state == State::Connecting {
            if !cqe.status.is_success() {
                return Err(HostError::Refused {
                    status: cqe.status,
                    result: cqe.result as u32,
                });
            }
            self.cntlid = cqe.result as u16;
            self.state = State::Connected;
            return Ok(());
        }
        let slot = self.pending.get_mut(usize::from(cqe.cid));
        slot.and_then(Option::take).ok_or(HostError::Unasked)?;
        self.free.push(cqe.cid);
        sink.done(cqe.cid, cqe);
        Ok(())
    }

    /// Data is wanted: it goes in PDUs of at most what the target announced.
    fn ready(&mut self, header: &DataHeader, sink: &mut dyn Sink) -> Result<(), HostError> {
        let slot = self.pending.get_mut(usize::from(header.cid));
        let pending = slot.and_then(Option::as_mut).ok_or(HostError::Unasked)?;
        let Data::Out(total) = pending.data else {
            return Err(HostError::Unasked);
        };
        let fits =
            header.offset == pending.moved && header.length > 0 && header.length <= total - pending.moved;
        if !fits {
            return Err(HostError::Framing);
        }
        pending.moved += header.length;
        let digest = if self.options.header_digest {
            DIGEST_BYTES
        } else {
            0
        };
        let data_digest = if self.options.data_digest { DIGEST_BYTES } else { 0 };
        let mut sent = 0;
        while sent < header.length {
            let length = (header.length - sent).min(self.data_bytes_max);
            let last = sent + length == header.length;
            let mut bytes = [0; DATA_PDU_BYTES];
            let common = Common {
                kind: pdu::H2C_DATA,
                flags: self.flags(true) | if last { pdu_flag::LAST } else { 0 },
                header_bytes: DATA_PDU_BYTES as u8,
                data_offset: (DATA_PDU_BYTES + digest) as u8,
                total_bytes: (DATA_PDU_BYTES + digest + data_digest) as u32 + length,
            };
            common.emit(&mut bytes);
            let part = DataHeader {
                offset: header.offset + sent,
                length,
                ..*header
            };
            part.emit(&mut bytes);
            self.put_header(&bytes);
            self.put_data(header.cid, header.offset + sent, length, sink);
            sent += length;
        }
        Ok(())
    }

    fn data_header(&mut self, common: &Common, header: &DataHeader) -> Result<(), HostError> {
        let slot = self.pending.get_mut(usize::from(header.cid));
        let pending = slot.and_then(Option::as_mut).ok_or(HostError::Unasked)?;
        let Data::In(total) = pending.data else {
            return Err(HostError::Unasked);
        };
        let lead = DATA_PDU_BYTES
            + if self.options.header_digest {
                DIGEST_BYTES
            } else {
                0
            };
        let data_digest = if self.options.data_digest { DIGEST_BYTES } else { 0 };
        let aligned = common
            .data_offset
            .is_multiple_of(4 * (self.options.alignment + 1));
        let place = usize::from(common.data_offset);
        let sized = common.total_bytes as usize == place + header.length as usize + data_digest;
        let digested = (common.flags & pdu_flag::DATA_DIGEST != 0) == self.options.data_digest;
        let fits =
            header.offset == pending.moved && header.length > 0 && header.length <= total - pending.moved;
        if place < lead || !aligned || !sized || !digested || !fits {
            return Err(HostError::Framing);
        }
        pending.moved += header.length;
        let ends = common.flags & pdu_flag::SUCCESS != 0;
        if ends && (common.flags & pdu_flag::LAST == 0 || self.options.sq_flow) {
            return Err(HostError::Framing);
        }
        self.incoming = Some(Incoming {
            cid: header.cid,
            offset: header.offset,
            left: header.length,
            pad: (place - lead) as u32,
            crc: 0,
            ends,
            digest: [0; DIGEST_BYTES],
            digest_bytes: 0,
        });
        Ok(())
    }

    /// Takes padding, data and digest; returns how many bytes. The PDU is over when there is no `incoming` any more.
    fn data(&mut self, bytes: &[u8], sink: &mut dyn Sink) -> usize {
        let checked = self.options.data_digest;
        let incoming = self.incoming.as_mut().expect("data is on its way in");
        let mut taken = bytes.len().min(incoming.pad as usize);
        incoming.pad -= taken as u32;
        let step = (bytes.len() - taken).min(incoming.left as usize);
        if step > 0 {
            let piece = &bytes[taken..taken + step];
            if checked {
                incoming.crc = crc32c::crc32c_append(incoming.crc, piece);
            }
            sink.data(incoming.cid, incoming.offset, piece);
            incoming.offset += step as u32;
            incoming.left -= step as u32;
            taken += step;
        }
        if incoming.pad > 0 || incoming.left > 0 {
            return taken;
        }
        if checked {
            let step = (bytes.len() - taken).min(DIGEST_BYTES - incoming.digest_bytes);
            incoming.digest[incoming.digest_bytes..][..step].copy_from_slice(&bytes[taken..taken + step]);
            incoming.digest_bytes += step;
            taken += step;
            if incoming.digest_bytes < DIGEST_BYTES {
                return taken;
            }
            if u32::from_le_bytes(incoming.digest) != incoming.crc {
                self.state = State::Failed(HostError::Digest);
            }
        }
        let (cid, ends) = (incoming.cid, incoming.ends);
        self.incoming = None;
        if ends && self.state == State::Connected {
            let cqe = Cqe {
                result: 0,
                sq_head: 0,
                sq_id: 0,
                cid,
                status: Status::SUCCESS,
            };
            if let Err(error) = self.completed(&cqe, sink) {
                self.state = State::Failed(error);
            }
        }
        taken
    }

    /// Flags of a PDU that we send.
    fn flags(&self, data: bool) -> u8 {
        let header = if self.options.header_digest {
            pdu_flag::HEADER_DIGEST
        } else {
            0
        };
        let digested = data && self.options.data_digest;
        header | if digested { pdu_flag::DATA_DIGEST } else { 0 }
    }

    /// Queues a command capsule, up to where its data goes.
    fn put_command(&mut self, sqe: &Sqe, carried: u32) {
        let digest = if self.options.header_digest {
            DIGEST_BYTES
        } else {
            0
        };
        let data_digest = if self.options.data_digest && carried > 0 {
            DIGEST_BYTES
        } else {
            0
        };
        let mut bytes = [0; COMMAND_PDU_BYTES];
        let lead = COMMAND_PDU_BYTES + digest;
        let common = Common {
            kind: pdu::COMMAND,
            flags: self.flags(carried > 0),
            header_bytes: COMMAND_PDU_BYTES as u8,
            data_offset: if carried > 0 { lead as u8 } else { 0 },
            total_bytes: (lead + data_digest) as u32 + carried,
        };
        common.emit(&mut bytes);
        bytes[COMMON_BYTES..COMMON_BYTES + SQE_BYTES].copy_from_slice(&sqe.0);
        self.put_header(&bytes);
    }

    fn put_header(&mut self, bytes: &[u8]) {
        self.outgoing.extend_from_slice(bytes);
        if self.options.header_digest {
            self.outgoing.extend(crc32c::crc32c(bytes).to_le_bytes());
        }
    }

    /// Queues data from the sink, and its digest.
    fn put_data(&mut self, cid: u16, offset: u32, length: u32, sink: &mut dyn Sink) {
        let start = self.outgoing.len();
        let total = match self.pending[usize::from(cid)].map(|pending| pending.data) {
            Some(Data::Out(total)) => total,
            _ => length,
        };
        if self.options.apart_bytes.is_some_and(|least| total >= least) {
            let due = DataDue { cid, offset, length };
            return self.apart.push_back((start, due));
        }
        self.outgoing.resize(start + length as usize, 0);
        sink.fill(cid, offset, &mut self.outgoing[start..]);
        if self.options.data_digest {
            let digest = crc32c::crc32c(&self.outgoing[start..]);
            self.outgoing.extend(digest.to_le_bytes());
        }
    }
}

/// Sixteen bytes that depend on all of `seed` and are not zero: FNV-1a from two starting points. Not for secrets.
fn identity_of(seed: &[u8]) -> [u8; 16] {
    let fold = |start: u64| {
        seed.iter().fold(start, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    };
    let mut identity = [0; 16];
    identity[..8].copy_from_slice(&fold(0xcbf2_9ce4_8422_2325).to_be_bytes());
    identity[8..].copy_from_slice(&fold(0x6c62_272e_07bb_0142).to_be_bytes());
    // The marks of a UUID, version 8 (RFC 9562 §5.8), so that the very same bytes serve as UUID and NGUID.
    identity[6] = identity[6] & 0x0f | 0x80;
    identity[8] = identity[8] & 0x3f | 0x80;
    identity
}

/// Bytes of the header, digest included, whose first eight are there; those eight if it is nonsense, which is found out
/// later.
fn header_bytes(bytes: &[u8], digested: bool) -> usize {
    let common = Common::parse(bytes);
    let digest = if digested { DIGEST_BYTES } else { 0 };
    match common.kind {
        pdu::IC_RESP => IC_BYTES,
        pdu::C2H_TERM => (common.total_bytes as usize).clamp(TERM_BYTES, TERM_BYTES_MAX),
        pdu::RESPONSE => RESPONSE_PDU_BYTES + digest,
        pdu::C2H_DATA | pdu::R2T => DATA_PDU_BYTES + digest,
        _ => COMMON_BYTES,
    }
}

/// Bytes of the header that `bytes` start with, if it is all there and nothing of it was gathered before.
fn whole_header(gathered: usize, bytes: &[u8], digested: bool) -> Option<usize> {
    if gathered > 0 || bytes.len() < COMMON_BYTES {
        return None;
    }
    let whole = header_bytes(bytes, digested);
    (bytes.len() >= whole).then_some(whole)
}

/// Limits in Identify Controller (Base §5.17.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The largest transfer in bytes (`MDTS`), `u32::MAX` for any.
    pub transfer_bytes_max: u32,
    /// Data of a capsule of an I/O queue (`IOCCSZ`): for [`HostOptions::in_capsule_bytes`].
    pub in_capsule_bytes: u32,
    /// Entries of a queue (`MAXCMD`).
    pub entries_max: u16,
}

impl Offer {
    /// Reads the data of Identify Controller.
    ///
    /// # Panics
    /// If it is not 4096 bytes.
    pub fn parse(data: &[u8]) -> Self {
        assert_eq!(data.len(), IDENTIFY_BYTES);
        let transfer = match data[77] {
            0 => None,
            shift => 4096u32.checked_shl(u32::from(shift)).filter(|&bytes| bytes > 0),
        };
        Self {
            transfer_bytes_max: transfer.unwrap_or(u32::MAX),
            in_capsule_bytes: u32_at(data, 1792)
                .saturating_mul(16)
                .saturating_sub(SQE_BYTES as u32),
            entries_max: u16_at(data, 514),
        }
    }
}

/// Size in bytes of the namespace that Identify Namespace describes (NVM §4.1.5.1), in the format that is in use.
///
/// # Panics
/// If the data is not 4096 bytes.
pub fn namespace_bytes(data: &[u8]) -> u64 {
    assert_eq!(data.len(), IDENTIFY_BYTES);
    let shift = data[128 + 4 * usize::from(data[26] & 0xf) + 2];
    u64_at(data, 0).checked_shl(u32::from(shift)).unwrap_or(u64::MAX)
}

/// Commands by name; the data that goes with each.
impl Sqe {
    /// A command on namespace 1 with a range in bytes, which are whole blocks.
    fn ranged(opcode: u8, offset: u64, length: u32) -> Self {
        let mut sqe = Self::new(opcode);
        sqe.set_dword(1, NSID);
        sqe.set_qword(10, offset >> BLOCK_SHIFT);
        sqe.set_dword(12, (length >> BLOCK_SHIFT).saturating_sub(1));
        sqe
    }

    /// Read bytes of namespace 1.
    pub fn read(offset: u64, length: u32) -> (Self, Data) {
        (Self::ranged(io::READ, offset, length), Data::In(length))
    }

    /// Write bytes of namespace 1.
    pub fn write(offset: u64, length: u32, fua: bool) -> (Self, Data) {
        let mut sqe = Self::ranged(io::WRITE, offset, length);
        let control = sqe.dword(12) | if fua { io::FUA } else { 0 };
        sqe.set_dword(12, control);
        (sqe, Data::Out(length))
    }

    /// Compare bytes of namespace 1.
    pub fn compare(offset: u64, length: u32) -> (Self, Data) {
        (Self::ranged(io::COMPARE, offset, length), Data::Out(length))
    }

    /// Flush namespace 1.
    pub fn flush() -> (Self, Data) {
        let mut sqe = Self::new(io::FLUSH);
        sqe.set_dword(1, NSID);
        (sqe, Data::None)
    }

    /// Zero bytes of namespace 1, and forget them if `deallocate`.
    pub fn write_zeroes(offset: u64, length: u32, deallocate: bool) -> (Self, Data) {
        let mut sqe = Self::ranged(io::WRITE_ZEROES, offset, length);
        let control = sqe.dword(12) | if deallocate { io::DEALLOCATE } else { 0 };
        sqe.set_dword(12, control);
        (sqe, Data::None)
    }

    /// Forget so many ranges of namespace 1; the ranges are the data.
    pub fn deallocate(ranges: u8) -> (Self, Data) {
        let mut sqe = Self::new(io::DATASET);
        sqe.set_dword(1, NSID);
        sqe.set_dword(10, u32::from(ranges) - 1);
        sqe.set_dword(11, io::DSM_DEALLOCATE);
        (
            sqe,
            Data::Out(u32::from(ranges) * super::proto::DSM_RANGE_BYTES as u32),
        )
    }

    /// Reservation Register, Acquire or Release of namespace 1: `fields` is dword 10 (action, type, flags), the keys are the
    /// data.
    pub fn reservation(opcode: u8, fields: u32) -> (Self, Data) {
        let mut sqe = Self::new(opcode);
        sqe.set_dword(1, NSID);
        sqe.set_dword(10, fields);
        let one_key = opcode == io::RESERVATION_RELEASE;
        (sqe, Data::Out(if one_key { 8 } else { 16 }))
    }

    /// Reservation Report of namespace 1: `length` bytes of the extended form, a multiple of 4.
    pub fn reservation_report(length: u32) -> (Self, Data) {
        let mut sqe = Self::new(io::RESERVATION_REPORT);
        sqe.set_dword(1, NSID);
        sqe.set_dword(10, length / 4 - 1);
        sqe.set_dword(11, 1);
        (sqe, Data::In(length))
    }

    /// Identify.
    pub fn identify(cns: u8, nsid: u32) -> (Self, Data) {
        let mut sqe = Self::new(admin::IDENTIFY);
        sqe.set_dword(1, nsid);
        sqe.set_dword(10, u32::from(cns));
        (sqe, Data::In(IDENTIFY_BYTES as u32))
    }

    /// Get Log Page: `length` bytes, a multiple of 4, from `offset` on.
    pub fn log_page(page: u8, offset: u64, length: u32, retain: bool) -> (Self, Data) {
        let dwords_0 = length / 4 - 1;
        let mut sqe = Self::new(admin::GET_LOG_PAGE);
        sqe.set_dword(1, super::proto::NSID_ALL);
        sqe.set_dword(10, u32::from(page) | u32::from(retain) << 15 | dwords_0 << 16);
        sqe.set_dword(11, dwords_0 >> 16);
        sqe.set_qword(12, offset);
        (sqe, Data::In(length))
    }

    /// Get Features: the current value.
    pub fn get_feature(feature: u8) -> (Self, Data) {
        let mut sqe = Self::new(admin::GET_FEATURES);
        sqe.set_dword(10, u32::from(feature));
        (sqe, Data::None)
    }

    /// Set Features.
    pub fn set_feature(feature: u8, value: u32) -> (Self, Data) {
        let mut sqe = Self::new(admin::SET_FEATURES);
        sqe.set_dword(10, u32::from(feature));
        sqe.set_dword(11, value);
        (sqe, Data::None)
    }

    /// Property Get.
    pub fn get_property(offset: u32) -> (Self, Data) {
        let mut sqe = Self::new(fabrics::OPCODE);
        sqe.0[4] = fabrics::PROPERTY_GET;
        sqe.0[40] = u8::from(offset == super::proto::property::CAP);
        sqe.set_dword(11, offset);
        (sqe, Data::None)
    }

    /// Property Set of four bytes.
    pub fn set_property(offset: u32, value: u32) -> (Self, Data) {
        let mut sqe = Self::new(fabrics::OPCODE);
        sqe.0[4] = fabrics::PROPERTY_SET;
        sqe.set_dword(11, offset);
        sqe.set_dword(12, value);
        (sqe, Data::None)
    }

    /// Disconnect an I/O queue.
    pub fn disconnect() -> (Self, Data) {
        let mut sqe = Self::new(fabrics::OPCODE);
        sqe.0[4] = fabrics::DISCONNECT;
        (sqe, Data::None)
    }
}

//! From bytes to PDUs: framing, digests, and what the transport itself decides (TCP §3.3 to §3.6).
//!
//! A header that lies whole in the bytes at hand is looked at where it is; others are gathered. Whatever breaks the
//! framing ends the connection with `C2HTermReq`: there is no way to find the next PDU.

use core::ops::Range;

use base::Page;

use super::limits::IN_CAPSULE_BYTES_MIN;
use super::output::Framing;
use super::proto::{
    COMMAND_PDU_BYTES, COMMON_BYTES, Common, DATA_PDU_BYTES, DIGEST_BYTES, DataHeader, Fatal, IC_BYTES,
    Initialize, Sqe, Status, TERM_BYTES, TERM_BYTES_MAX, Termination, pdu, pdu_flag, u32_at,
};
use super::session::{CloseReason, Flow, Phase, Session};
use super::work::{Kind, Stage};
use crate::segment::visit_places;

/// Offsets of fields in a PDU's header, for the `FEI` field of a termination request.
const KIND_AT: u32 = 0;
const FLAGS_AT: u32 = 1;
const HEADER_BYTES_AT: u32 = 2;
const DATA_OFFSET_AT: u32 = 3;
const TOTAL_BYTES_AT: u32 = 4;
const VERSION_AT: u32 = 8;
const CID_AT: u32 = 8;
const TAG_AT: u32 = 10;
const ALIGNMENT_AT: u32 = 10;
const DATA_LENGTH_AT: u32 = 16;
/// Largest `HPDA`, 0's based in dwords (TCP §3.6.2.2).
const ALIGNMENT_MAX: u8 = 31;

/// Mistake of a header, and its place.
type Wrong = (Fatal, u32);

impl Session {
    /// One step with the bytes at hand: how many it took and how to go on.
    pub(super) fn step(&mut self, bytes: &[u8]) -> (usize, Flow) {
        match self.link.phase {
            Phase::Header => self.header(bytes),
            Phase::Data(_) => self.data(bytes),
            Phase::Skip { left } => {
                let step = bytes.len().min(left as usize);
                let left = left - step as u32;
                if left > 0 {
                    self.link.phase = Phase::Skip { left };
                    return (step, Flow::Starved);
                }
                self.link.phase = Phase::Header;
                (step, Flow::Again)
            }
            Phase::Closing(_) => (bytes.len(), Flow::Starved),
        }
    }

    /// Looks at a header in place, if it is all there, or gathers it in `scratch`.
    fn header(&mut self, bytes: &[u8]) -> (usize, Flow) {
        if self.link.scratch_bytes == 0 && bytes.len() >= COMMON_BYTES {
            let common = Common::parse(bytes);
            let want = match self.check(&common) {
                Ok(want) => want,
                Err((fatal, information)) => {
                    self.terminate(fatal, information, &bytes[..COMMON_BYTES]);
                    return (COMMON_BYTES, Flow::Again);
                }
            };
            if bytes.len() >= want {
                let flow = self.pdu(&common, &bytes[..want]);
                if flow == Flow::Blocked {
                    self.link.scratch[..want].copy_from_slice(&bytes[..want]);
                    self.link.scratch_bytes = want;
                }
                return (want, flow);
            }
        }
        self.gather(bytes)
    }

    /// Gathers a header piece by piece. One that is blocked stays in `scratch`.
    fn gather(&mut self, bytes: &[u8]) -> (usize, Flow) {
        let mut taken = 0;
        if !self.fill_scratch(bytes, COMMON_BYTES, &mut taken) {
            return (taken, Flow::Starved);
        }
        let common = Common::parse(&self.link.scratch);
        let want = match self.check(&common) {
            Ok(want) => want,
            Err((fatal, information)) => {
                let culprit = self.link.scratch;
                self.terminate(fatal, information, &culprit[..COMMON_BYTES]);
                return (taken, Flow::Again);
            }
        };
        if !self.fill_scratch(&bytes[taken..], want, &mut taken) {
            return (taken, Flow::Starved);
        }
        let header = self.link.scratch;
        let flow = self.pdu(&common, &header[..want]);
        if flow != Flow::Blocked {
            self.link.scratch_bytes = 0;
        }
        (taken, flow)
    }

    /// Takes bytes until there are `want` of them; true when that is so.
    fn fill_scratch(&mut self, bytes: &[u8], want: usize, taken: &mut usize) -> bool {
        let step = bytes.len().min(want.saturating_sub(self.link.scratch_bytes));
        self.link.scratch[self.link.scratch_bytes..][..step].copy_from_slice(&bytes[..step]);
        self.link.scratch_bytes += step;
        *taken += step;
        self.link.scratch_bytes >= want
    }

    /// Checks the common header: the bytes of the whole header, digest included (TCP §3.6.1).
    fn check(&self, common: &Common) -> Result<usize, Wrong> {
        let header_bytes = match (common.kind, self.link.framing) {
            (pdu::COMMAND, Some(_)) => COMMAND_PDU_BYTES,
            (pdu::H2C_DATA, Some(_)) => DATA_PDU_BYTES,
            (pdu::H2C_TERM, _) => TERM_BYTES,
            (pdu::IC_REQ, None) => IC_BYTES,
            (pdu::COMMAND | pdu::H2C_DATA | pdu::IC_REQ, _) => return Err((Fatal::Sequence, KIND_AT)),
            _ => return Err((Fatal::HeaderField, KIND_AT)),
        };
        if usize::from(common.header_bytes) != header_bytes {
            return Err((Fatal::HeaderField, HEADER_BYTES_AT));
        }
        let total = common.total_bytes as usize;
        let framing = match (common.kind, self.link.framing) {
            (pdu::COMMAND | pdu::H2C_DATA, Some(framing)) => framing,
            // These two carry no digests. A termination request may carry the header it complains of.
            (kind, _) => {
                let longest = if kind == pdu::IC_REQ {
                    IC_BYTES
                } else {
                    TERM_BYTES_MAX
                };
                if !(header_bytes..=longest).contains(&total) {
                    return Err((Fatal::HeaderField, TOTAL_BYTES_AT));
                }
                return Ok(header_bytes);
            }
        };
        let want = header_bytes + framing.header_digest_bytes();
        if (common.flags & pdu_flag::HEADER_DIGEST != 0) != framing.header_digest {
            return Err((Fatal::HeaderField, FLAGS_AT));
        }
        if total == want && common.kind == pdu::COMMAND {
            return Ok(want);
        }
        let data_bytes = total.checked_sub(want + framing.data_digest_bytes());
        let data_max = match common.kind {
            pdu::COMMAND => self.capsule_bytes_max(),
            _ => self.link.shape.request_bytes_max,
        };
        match data_bytes {
            None | Some(0) => return Err((Fatal::HeaderField, TOTAL_BYTES_AT)),
            Some(count) if count > data_max as usize => return Err((Fatal::LimitExceeded, TOTAL_BYTES_AT)),
            Some(_) => {}
        }
        if (common.flags & pdu_flag::DATA_DIGEST != 0) != framing.data_digest {
            return Err((Fatal::HeaderField, FLAGS_AT));
        }
        // CPDA is 0: there is no padding.
        if usize::from(common.data_offset) != want {
            return Err((Fatal::HeaderField, DATA_OFFSET_AT));
        }
        Ok(want)
    }

    /// Data that a capsule of this queue may carry: I/O queues are told by Identify, the others have 8 KiB.
    fn capsule_bytes_max(&self) -> u32 {
        match &self.link.queue {
            Some(queue) if queue.connected.qid > 0 => self.link.shape.in_capsule_bytes,
            _ => IN_CAPSULE_BYTES_MIN,
        }
    }

    /// A whole header, digest included.
    fn pdu(&mut self, common: &Common, header: &[u8]) -> Flow {
        let framing = self.link.framing.unwrap_or_default();
        let header_bytes = usize::from(common.header_bytes);
        if header.len() > header_bytes {
            let digest = u32_at(header, header_bytes);
            if crc32c::crc32c(&header[..header_bytes]) != digest {
                self.terminate(Fatal::HeaderDigest, digest, &header[..header_bytes]);
                return Flow::Again;
            }
        }
        match common.kind {
            pdu::COMMAND => {
                let rest = common.total_bytes - header.len() as u32;
                let data_bytes = rest.saturating_sub(framing.data_digest_bytes() as u32);
                self.command(header, data_bytes)
            }
            pdu::H2C_DATA => self.h2c_data(common, header, framing),
            pdu::H2C_TERM => {
                self.close(CloseReason::Terminated(Termination::parse(header).status));
                Flow::Again
            }
            _ => self.initialize(header),
        }
    }

    /// `ICReq` (TCP §3.6.2.2).
    fn initialize(&mut self, header: &[u8]) -> Flow {
        let request = Initialize::parse(header);
        if request.version != 0 {
            self.terminate(Fatal::Unsupported, VERSION_AT, header);
            return Flow::Again;
        }
        if request.alignment > ALIGNMENT_MAX {
            self.terminate(Fatal::HeaderField, ALIGNMENT_AT, header);
            return Flow::Again;
        }
        self.link.framing = Some(Framing {
            header_digest: request.header_digest,
            data_digest: request.data_digest,
            alignment: 4 * (request.alignment + 1),
        });
        let response = Initialize {
            version: 0,
            alignment: 0,
            header_digest: request.header_digest,
            data_digest: request.data_digest,
            limit: self.link.shape.request_bytes_max,
        };
        self.output.put_first(&response.emit(pdu::IC_RESP));
        Flow::Again
    }

    /// A command capsule.
    fn command(&mut self, header: &[u8], data_bytes: u32) -> Flow {
        // A host whose R2Ts and responses are not sent cannot know that it may send more.
        if self.output.len() >= 2 * self.link.limits.in_flight_max {
            return Flow::Blocked;
        }
        if self.in_flight() >= self.link.limits.in_flight_max {
            self.overrun(header);
            return Flow::Again;
        }
        let sqe = Sqe::parse(&header[COMMON_BYTES..]);
        match &self.link.queue {
            Some(queue) if queue.connected.qid > 0 => self.io_command(&sqe, data_bytes),
            _ => self.control_command(&sqe, data_bytes),
        }
    }

    /// Data of a command that it was asked for (TCP §3.6.2.8): in order, inside what was asked for.
    fn h2c_data(&mut self, common: &Common, header: &[u8], framing: Framing) -> Flow {
        let data = DataHeader::parse(header);
        let carried = common.total_bytes - (header.len() + framing.data_digest_bytes()) as u32;
        let found = self.ledger.at(u32::from(data.tag));
        let work = found.filter(|(_, work)| work.stage == Stage::Receiving);
        let found = match work {
            None => Err((Fatal::HeaderField, TAG_AT)),
            Some((_, work)) if work.plan.cid != data.cid => Err((Fatal::HeaderField, CID_AT)),
            Some(_) if data.length != carried => Err((Fatal::HeaderField, DATA_LENGTH_AT)),
            Some((tag, work)) => {
                let left = work.plan.data_bytes - work.filled;
                let last = common.flags & pdu_flag::LAST != 0;
                if data.offset != work.done_bytes + work.filled || data.length > left {
                    Err((Fatal::OutOfRange, 0))
                } else if last != (data.length == left) {
                    Err((Fatal::HeaderField, FLAGS_AT))
                } else {
                    Ok(tag)
                }
            }
        };
        match found {
            Ok(tag) => self.await_data(tag, carried),
            Err((fatal, information)) => self.terminate(fatal, information, header),
        }
        Flow::Again
    }

    /// See [`crate::Session::payload_room`].
    pub(super) fn room_for_payload(&self, visitor: &mut dyn FnMut(&Page, Range<usize>) -> bool) {
        let Phase::Data(incoming) = &self.link.phase else {
            return;
        };
        let work = self.ledger.at(incoming.tag as u32);
        let (_, work) = work.expect("its command is under way");
        // Data of the control path goes elsewhere.
        let left = if work.pages.is_empty() { 0 } else { incoming.left };
        let at = work.plan.range.skip() + work.filled as usize;
        visit_places(&work.pages, at..at + left as usize, visitor);
    }

    /// See [`crate::Session::payload_filled`].
    pub(super) fn fill_payload(&mut self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let checked = self.framing().data_digest;
        let mut crc = match &self.link.phase {
            Phase::Data(incoming) => incoming.crc,
            _ => panic!("there was room for payload"),
        };
        let mut rest = bytes;
        self.room_for_payload(&mut |page, range| {
            let count = rest.min(range.len());
            if checked {
                crc = page.with(|page| crc32c::crc32c_append(crc, &page[range.start..range.start + count]));
            }
            rest -= count;
            rest > 0
        });
        assert_eq!(rest, 0, "no more is filled than there was room for");
        let Phase::Data(incoming) = &mut self.link.phase else {
            panic!("the phase did not change meanwhile");
        };
        incoming.crc = crc;
        incoming.left -= bytes as u32;
        self.ledger.work(incoming.tag).filled += bytes as u32;
    }

    /// Takes data to its command, then its digest.
    fn data(&mut self, bytes: &[u8]) -> (usize, Flow) {
        let checked = self.framing().data_digest;
        let Phase::Data(incoming) = &mut self.link.phase else {
            panic!("data is received in its phase only");
        };
        let mut taken = bytes.len().min(incoming.left as usize);
        if taken > 0 {
            let piece = &bytes[..taken];
            incoming.left -= taken as u32;
            if checked {
                incoming.crc = crc32c::crc32c_append(incoming.crc, piece);
            }
            self.ledger.work(incoming.tag).fill(piece);
        }
        if incoming.left > 0 {
            return (taken, Flow::Starved);
        }
        let mut sound = true;
        if checked {
            let rest = &bytes[taken..];
            let step = rest.len().min(DIGEST_BYTES - incoming.digest_bytes);
            incoming.digest[incoming.digest_bytes..][..step].copy_from_slice(&rest[..step]);
            incoming.digest_bytes += step;
            taken += step;
            if incoming.digest_bytes < DIGEST_BYTES {
                return (taken, Flow::Starved);
            }
            sound = u32::from_le_bytes(incoming.digest) == incoming.crc;
        }
        let tag = incoming.tag;
        self.link.phase = Phase::Header;
        self.data_arrived(tag, sound);
        (taken, Flow::Again)
    }

    /// The data of a PDU is there, as it was sent or not.
    fn data_arrived(&mut self, tag: u64, sound: bool) {
        let work = self.ledger.work(tag);
        work.damaged |= !sound;
        if work.filled < work.plan.data_bytes {
            return;
        }
        let (damaged, preempted, plan) = (work.damaged, work.preempted, work.plan);
        work.stage = Stage::Asked;
        self.asked_bytes -= work.asked_bytes;
        self.receiving -= 1;
        self.ask_for_data();
        if damaged {
            // The command may be sent again (TCP §3.3.2).
            self.vacate(tag);
            return self.fail(&plan, Status::TRANSPORT);
        }
        if preempted.is_some() {
            self.vacate(tag);
            return self.fail(&plan, Status::PREEMPTED.dnr());
        }
        match plan.kind {
            Kind::Control => self.control_arrived(tag),
            Kind::Dataset => self.dataset_arrived(tag),
            _ => self.ask(tag),
        }
    }
}

//! Output of a session: PDUs, each a small head, data by handle, and a small tail.
//!
//! Invariants: no command is taken while the queue is crowded, so its length is bounded, and with a host that keeps to
//! the protocol it never grows after start; the payload of a reply stays in its pages until its last byte is sent.

use std::collections::VecDeque;

use base::limits::PAGE_BYTES;
use base::{Pages, SectorRange};

use super::proto::{
    Common, Cqe, DATA_PDU_BYTES, DIGEST_BYTES, DataHeader, IC_BYTES, RESPONSE_PDU_BYTES, pdu, pdu_flag, put,
};
use crate::segment::Segment;

/// Largest head: that of `C2HData` or a response, with its digest.
const HEAD_BYTES_MAX: usize = 24 + DIGEST_BYTES;
/// Largest tail: the data's digest and a response.
const TAIL_BYTES_MAX: usize = DIGEST_BYTES + RESPONSE_PDU_BYTES + DIGEST_BYTES;
/// Zeros for padding, and for the end of a log page that is shorter than asked for.
static ZEROS: [u8; PAGE_BYTES] = [0; PAGE_BYTES];

/// Agreements of both sides for the PDUs of this direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Framing {
    pub header_digest: bool,
    pub data_digest: bool,
    /// Bytes that the data's place in a PDU is a multiple of, at least 4.
    pub alignment: u8,
}

impl Framing {
    /// Bytes of a header digest, if there is one.
    pub(super) const fn header_digest_bytes(self) -> usize {
        if self.header_digest { DIGEST_BYTES } else { 0 }
    }

    /// Bytes of a data digest, if there is one.
    pub(super) const fn data_digest_bytes(self) -> usize {
        if self.data_digest { DIGEST_BYTES } else { 0 }
    }

    /// Appends the digest of the first `bytes` bytes behind them; returns where it ends.
    pub(super) fn seal(self, header: &mut [u8], bytes: usize) -> usize {
        if !self.header_digest {
            return bytes;
        }
        let digest = crc32c::crc32c(&header[..bytes]);
        put(header, bytes, &digest.to_le_bytes());
        bytes + DIGEST_BYTES
    }
}

/// Data of a reply.
#[derive(Debug)]
enum Body {
    None,
    /// On the page grid, from the reply's `skip` on.
    Pages(Pages),
    /// Bytes of the control path; what is missing of the body's length is zeros.
    Bytes(Box<[u8]>),
}

/// A PDU, or data and the response to it, on its way out.
#[derive(Debug)]
pub(super) struct Reply {
    head: [u8; HEAD_BYTES_MAX],
    head_bytes: u8,
    /// Zeros behind the head.
    pad_bytes: u8,
    tail: [u8; TAIL_BYTES_MAX],
    tail_bytes: u8,
    /// It ends a command.
    ends: bool,
    /// Start of the data in the first page.
    skip: u16,
    body_bytes: u32,
    body: Body,
    /// Payload bytes that stop counting against the session's limit once the reply is sent.
    credit_bytes: u32,
}

impl Reply {
    fn new(ends: bool) -> Self {
        Self {
            head: [0; HEAD_BYTES_MAX],
            head_bytes: 0,
            pad_bytes: 0,
            tail: [0; TAIL_BYTES_MAX],
            tail_bytes: 0,
            ends,
            skip: 0,
            body_bytes: 0,
            body: Body::None,
            credit_bytes: 0,
        }
    }

    /// A response capsule (TCP §3.6.2.7).
    pub(super) fn response(framing: Framing, cqe: &Cqe) -> Self {
        let mut reply = Self::new(true);
        reply.head_bytes = emit_response(framing, cqe, &mut reply.head) as u8;
        reply
    }

    /// Ready to transfer (TCP §3.6.2.10).
    pub(super) fn ready(framing: Framing, header: &DataHeader) -> Self {
        let mut reply = Self::new(false);
        let bytes = DATA_PDU_BYTES + framing.header_digest_bytes();
        let common = Common {
            kind: pdu::R2T,
            flags: if framing.header_digest {
                pdu_flag::HEADER_DIGEST
            } else {
                0
            },
            header_bytes: DATA_PDU_BYTES as u8,
            data_offset: 0,
            total_bytes: bytes as u32,
        };
        common.emit(&mut reply.head);
        header.emit(&mut reply.head);
        reply.head_bytes = framing.seal(&mut reply.head, DATA_PDU_BYTES) as u8;
        reply
    }

    /// Data of a read, the pages of a range and the bytes before it, and the response, unless more data follow:
    /// `sq_flow` is `None` then.
    pub(super) fn pages(
        framing: Framing,
        (range, done_bytes): (SectorRange, u32),
        pages: Pages,
        cqe: &Cqe,
        sq_flow: Option<bool>,
    ) -> Self {
        let mut reply = Self::new(sq_flow.is_some());
        let length = range.length() as u32;
        reply.skip = range.skip() as u16;
        let due = (usize::from(reply.skip) + length as usize).div_ceil(PAGE_BYTES);
        assert_eq!(
            pages.len(),
            due,
            "a read is answered with every page of its range"
        );
        reply.body = Body::Pages(pages);
        reply.credit_bytes = range.footprint_bytes() as u32;
        reply.finish(framing, (done_bytes, length), cqe, sq_flow);
        reply
    }

    /// Data of the control path, followed by zeros up to `length`, and the response to it.
    pub(super) fn bytes(framing: Framing, mut bytes: Vec<u8>, length: u32, cqe: &Cqe, sq_flow: bool) -> Self {
        let mut reply = Self::new(true);
        bytes.truncate(length as usize);
        reply.body = Body::Bytes(bytes.into_boxed_slice());
        reply.finish(framing, (0, length), cqe, Some(sq_flow));
        reply
    }

    /// Puts `C2HData`'s header in front of the body (TCP §3.6.2.9), its digest behind it, and then the response,
    /// unless the success flag stands for it: that takes a queue without flow control, and a plain success. `sq_flow` is
    /// `None` if more data follow.
    fn finish(&mut self, framing: Framing, (offset, length): (u32, u32), cqe: &Cqe, sq_flow: Option<bool>) {
        self.body_bytes = length;
        let is_last = sq_flow.is_some();
        let silent = sq_flow == Some(false) && cqe.status.0 == 0 && cqe.result == 0;
        let head_bytes = DATA_PDU_BYTES + framing.header_digest_bytes();
        let data_offset = head_bytes.next_multiple_of(usize::from(framing.alignment));
        let mut flags = 0;
        for (set, flag) in [
            (is_last, pdu_flag::LAST),
            (silent, pdu_flag::SUCCESS),
            (framing.header_digest, pdu_flag::HEADER_DIGEST),
            (framing.data_digest, pdu_flag::DATA_DIGEST),
        ] {
            flags |= if set { flag } else { 0 };
        }
        let common = Common {
            kind: pdu::C2H_DATA,
            flags,
            header_bytes: DATA_PDU_BYTES as u8,
            data_offset: data_offset as u8,
            total_bytes: data_offset as u32 + length + framing.data_digest_bytes() as u32,
        };
        common.emit(&mut self.head);
        let header = DataHeader {
            cid: cqe.cid,
            tag: 0,
            offset,
            length,
        };
        header.emit(&mut self.head);
        self.head_bytes = framing.seal(&mut self.head, DATA_PDU_BYTES) as u8;
        self.pad_bytes = (data_offset - head_bytes) as u8;
        let mut tail_bytes = 0;
        if framing.data_digest {
            let mut digest = 0;
            self.visit_body(0, &mut |segment| {
                digest = match segment {
                    Segment::Bytes(bytes) => crc32c::crc32c_append(digest, bytes),
                    Segment::Page(page, range) => {
                        page.with(|bytes| crc32c::crc32c_append(digest, &bytes[range.clone()]))
                    }
                };
                true
            });
            put(&mut self.tail, 0, &digest.to_le_bytes());
            tail_bytes = DIGEST_BYTES;
        }
        if is_last && !silent {
            tail_bytes += emit_response(framing, cqe, &mut self.tail[tail_bytes..]);
        }
        self.tail_bytes = tail_bytes as u8;
    }

    fn bytes_in_all(&self) -> usize {
        self.lead_bytes() + self.body_bytes as usize + usize::from(self.tail_bytes)
    }

    fn lead_bytes(&self) -> usize {
        usize::from(self.head_bytes) + usize::from(self.pad_bytes)
    }

    /// Shows what is left behind the first `sent` bytes; false if the visitor has had enough.
    fn visit<'s>(&'s self, sent: usize, visitor: &mut impl FnMut(Segment<'s>) -> bool) -> bool {
        let (head_bytes, lead_bytes) = (usize::from(self.head_bytes), self.lead_bytes());
        if sent < head_bytes && !visitor(Segment::Bytes(&self.head[sent..head_bytes])) {
            return false;
        }
        if sent < lead_bytes && self.pad_bytes > 0 {
            let pad = &ZEROS[..lead_bytes - sent.max(head_bytes)];
            if !visitor(Segment::Bytes(pad)) {
                return false;
            }
        }
        let sent = sent.saturating_sub(lead_bytes);
        if sent < self.body_bytes as usize && !self.visit_body(sent, visitor) {
            return false;
        }
        let tail = &self.tail[sent.saturating_sub(self.body_bytes as usize)..usize::from(self.tail_bytes)];
        tail.is_empty() || visitor(Segment::Bytes(tail))
    }

    /// Shows the body behind its first `sent` bytes; false if the visitor has had enough.
    fn visit_body<'s>(&'s self, sent: usize, visitor: &mut impl FnMut(Segment<'s>) -> bool) -> bool {
        match &self.body {
            Body::None => true,
            Body::Pages(pages) => {
                let mut at = usize::from(self.skip) + sent;
                let end = usize::from(self.skip) + self.body_bytes as usize;
                while at < end {
                    let page = at / PAGE_BYTES;
                    let stop = end.min((page + 1) * PAGE_BYTES);
                    let range = at - page * PAGE_BYTES..stop - page * PAGE_BYTES;
                    if !visitor(Segment::Page(&pages[page], range)) {
                        return false;
                    }
                    at = stop;
                }
                true
            }
            Body::Bytes(bytes) => {
                if sent < bytes.len() && !visitor(Segment::Bytes(&bytes[sent..])) {
                    return false;
                }
                let mut zeros = self.body_bytes as usize - sent.max(bytes.len());
                while zeros > 0 {
                    let step = zeros.min(ZEROS.len());
                    if !visitor(Segment::Bytes(&ZEROS[..step])) {
                        return false;
                    }
                    zeros -= step;
                }
                true
            }
        }
    }

    /// Bytes of the control path that it owns.
    fn control_bytes(&self) -> usize {
        match &self.body {
            Body::Bytes(bytes) => bytes.len(),
            _ => 0,
        }
    }
}

/// Writes a response capsule; returns its length.
fn emit_response(framing: Framing, cqe: &Cqe, target: &mut [u8]) -> usize {
    let common = Common {
        kind: pdu::RESPONSE,
        flags: if framing.header_digest {
            pdu_flag::HEADER_DIGEST
        } else {
            0
        },
        header_bytes: RESPONSE_PDU_BYTES as u8,
        data_offset: 0,
        total_bytes: (RESPONSE_PDU_BYTES + framing.header_digest_bytes()) as u32,
    };
    common.emit(target);
    cqe.emit(&mut target[super::proto::COMMON_BYTES..]);
    framing.seal(target, RESPONSE_PDU_BYTES)
}

/// The queue of what is to be sent.
#[derive(Debug)]
pub(super) struct Output {
    /// `ICResp`, or a termination request; the one before every reply, the other behind them all.
    control: Vec<u8>,
    control_sent: usize,
    /// The control bytes come behind the replies.
    control_last: bool,
    replies: VecDeque<Reply>,
    /// Replies that end a command.
    ends: usize,
    /// Bytes of the front reply that are sent.
    front_sent: usize,
    /// Bytes queued and not sent.
    pending_bytes: u64,
    /// Bytes that replies of the control path own.
    owned_bytes: usize,
}

impl Output {
    /// A queue for `replies_max` PDUs.
    pub(super) fn new(replies_max: usize) -> Self {
        Self {
            control: Vec::with_capacity(IC_BYTES),
            control_sent: 0,
            control_last: false,
            replies: VecDeque::with_capacity(replies_max),
            ends: 0,
            front_sent: 0,
            pending_bytes: 0,
            owned_bytes: 0,
        }
    }

    /// Puts bytes in front of everything: nothing else may be queued.
    pub(super) fn put_first(&mut self, bytes: &[u8]) {
        assert!(self.pending_bytes == 0, "the first bytes come first");
        self.put_control(bytes, false);
    }

    /// Puts bytes behind everything; whatever was queued and not begun is dropped. Returns the payload freed by that.
    pub(super) fn put_last(&mut self, bytes: &[u8]) -> u64 {
        let begun = usize::from(self.front_sent > 0);
        let mut freed = 0;
        while self.replies.len() > begun {
            let reply = self.replies.pop_back().expect("there is more than one");
            self.pending_bytes -= reply.bytes_in_all() as u64;
            freed += self.forget(&reply);
        }
        if self.control_sent == self.control.len() {
            self.control.clear();
            self.control_sent = 0;
        }
        let first = !self.control.is_empty();
        self.put_control(bytes, !first);
        freed
    }

    fn put_control(&mut self, bytes: &[u8], last: bool) {
        self.control.extend_from_slice(bytes);
        self.control_last = last;
        self.pending_bytes += bytes.len() as u64;
    }

    pub(super) fn push(&mut self, reply: Reply) {
        self.pending_bytes += reply.bytes_in_all() as u64;
        self.ends += usize::from(reply.ends);
        self.owned_bytes += reply.control_bytes();
        self.replies.push_back(reply);
    }

    /// Everything queued, R2Ts included.
    pub(super) fn len(&self) -> usize {
        self.replies.len()
    }

    /// Replies queued that end a command.
    pub(super) fn ends(&self) -> usize {
        self.ends
    }

    pub(super) fn pending_bytes(&self) -> u64 {
        self.pending_bytes
    }

    /// Bytes of the control path that wait here.
    pub(super) fn owned_bytes(&self) -> usize {
        self.owned_bytes + self.control.len()
    }

    /// Forgets everything; returns the payload freed.
    pub(super) fn clear(&mut self) -> u64 {
        let mut freed = 0;
        while let Some(reply) = self.replies.pop_front() {
            freed += self.forget(&reply);
        }
        self.control.clear();
        self.control_sent = 0;
        self.front_sent = 0;
        self.pending_bytes = 0;
        freed
    }

    fn forget(&mut self, reply: &Reply) -> u64 {
        self.ends -= usize::from(reply.ends);
        self.owned_bytes -= reply.control_bytes();
        u64::from(reply.credit_bytes)
    }

    pub(super) fn visit<'s>(&'s self, visitor: &mut impl FnMut(Segment<'s>) -> bool) {
        let control = &self.control[self.control_sent..];
        if !control.is_empty() && !self.control_last && !visitor(Segment::Bytes(control)) {
            return;
        }
        let mut sent = self.front_sent;
        for reply in &self.replies {
            if !reply.visit(sent, visitor) {
                return;
            }
            sent = 0;
        }
        if !control.is_empty() && self.control_last {
            visitor(Segment::Bytes(control));
        }
    }

    /// Forgets the first `bytes` bytes; returns the payload bytes whose replies are complete.
    pub(super) fn sent(&mut self, bytes: usize) -> u64 {
        assert!(
            bytes as u64 <= self.pending_bytes,
            "no more is sent than was queued"
        );
        self.pending_bytes -= bytes as u64;
        let mut left = bytes;
        if !self.control_last {
            left -= self.control_was_sent(left);
        }
        let mut freed = 0;
        while left > 0 {
            let Some(front) = self.replies.front() else {
                let step = self.control_was_sent(left);
                assert_eq!(step, left, "pending bytes belong to something");
                break;
            };
            let total = front.bytes_in_all();
            let step = left.min(total - self.front_sent);
            left -= step;
            self.front_sent += step;
            if self.front_sent == total {
                let reply = self.replies.pop_front().expect("it was there");
                freed += self.forget(&reply);
                self.front_sent = 0;
            }
        }
        freed
    }

    fn control_was_sent(&mut self, bytes: usize) -> usize {
        let step = bytes.min(self.control.len() - self.control_sent);
        self.control_sent += step;
        if self.control_sent == self.control.len() {
            self.control.clear();
            self.control_sent = 0;
        }
        step
    }
}

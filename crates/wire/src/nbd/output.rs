//! Output of a session: first the handshake's bytes, then replies, each a small head and pages by handle.
//!
//! Invariants: at most `replies_max` replies are queued (the session counts before it accepts a request), so the
//! queue never grows after start; the payload of a reply stays in its pages until its last byte is sent.

use core::ops::Range;
use std::collections::VecDeque;

use base::extent::EXTENTS_MAX;
use base::limits::PAGE_BYTES;
use base::{Extent, Pages, SectorRange};

use super::input::{Asked, Form};
use super::proto::{self, Errno, HELLO_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, chunk, option_reply, state};
use crate::segment::Segment;

/// Number of the one metadata context in replies.
pub(super) const CONTEXT_ID: u32 = 1;
/// Longest text of an error.
const ERROR_TEXT_BYTES_MAX: usize = 54;
/// Largest head: an error chunk with its text.
const HEAD_BYTES_MAX: usize = proto::EXTENDED_CHUNK_BYTES + 6 + ERROR_TEXT_BYTES_MAX;

/// Bytes of a block status descriptor: length and flags.
const DESCRIPTOR_BYTES: usize = 8;
/// The same of an extended one.
const EXTENDED_DESCRIPTOR_BYTES: usize = 16;
const _: () = assert!(EXTENTS_MAX * EXTENDED_DESCRIPTOR_BYTES <= PAGE_BYTES);

/// The flags of an extent (proto.md "`base:` metadata context").
const fn state_of(extent: Extent) -> u32 {
    if extent.is_hole {
        state::HOLE | state::ZERO
    } else {
        0
    }
}

/// Which part of a read's answer it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub is_first: bool,
    pub is_last: bool,
}

/// A reply on its way out.
pub(super) struct Reply {
    head: [u8; HEAD_BYTES_MAX],
    head_bytes: u8,
    pages: Pages,
    /// Start of the data in the first page.
    skip: u16,
    body_bytes: u32,
    /// Payload bytes that stop counting against the session's limit once the reply is sent.
    credit_bytes: u32,
}

impl Reply {
    fn new() -> Self {
        Self {
            head: [0; HEAD_BYTES_MAX],
            head_bytes: 0,
            pages: Pages::new(),
            skip: 0,
            body_bytes: 0,
            credit_bytes: 0,
        }
    }

    fn put(&mut self, bytes: &[u8]) {
        self.head[usize::from(self.head_bytes)..][..bytes.len()].copy_from_slice(bytes);
        self.head_bytes += bytes.len() as u8;
    }

    /// The head of a chunk with so many bytes of payload.
    fn put_chunk(&mut self, asked: Asked, flags: u16, kind: u16, length: u32) {
        let magic = match asked.form {
            Form::Extended => proto::EXTENDED_REPLY_MAGIC,
            Form::Structured | Form::Simple => proto::STRUCTURED_REPLY_MAGIC,
        };
        self.put(&magic.to_be_bytes());
        self.put(&flags.to_be_bytes());
        self.put(&kind.to_be_bytes());
        self.put(&asked.cookie.to_be_bytes());
        if asked.form == Form::Extended {
            self.put(&asked.offset.to_be_bytes());
            self.put(&[0; 4]);
        }
        self.put(&length.to_be_bytes());
    }

    /// The end of a request without data.
    pub(super) fn done(asked: Asked) -> Self {
        if asked.form != Form::Extended {
            return Self::simple(asked.cookie, 0);
        }
        let mut reply = Self::new();
        reply.put_chunk(asked, chunk::DONE, chunk::NONE, 0);
        reply
    }

    /// A simple reply without data (proto.md "Simple reply message").
    fn simple(cookie: u64, errno: u32) -> Self {
        let mut reply = Self::new();
        reply.put(&proto::SIMPLE_REPLY_MAGIC.to_be_bytes());
        reply.put(&errno.to_be_bytes());
        reply.put(&cookie.to_be_bytes());
        reply
    }

    /// An error. Structured replies have a chunk for a request whose success `has_data`.
    pub(super) fn error(asked: Asked, errno: Errno, has_data: bool) -> Self {
        match asked.form {
            Form::Extended => Self::error_chunk(asked, errno),
            Form::Structured if has_data => Self::error_chunk(asked, errno),
            Form::Structured | Form::Simple => Self::simple(asked.cookie, errno as u32),
        }
    }

    /// An error chunk that ends a reply (proto.md "NBD_REPLY_TYPE_ERROR").
    fn error_chunk(asked: Asked, errno: Errno) -> Self {
        let text = errno.message().as_bytes();
        let mut reply = Self::new();
        reply.put_chunk(asked, chunk::DONE, chunk::ERROR, 6 + text.len() as u32);
        reply.put(&(errno as u32).to_be_bytes());
        reply.put(&(text.len() as u16).to_be_bytes());
        reply.put(text);
        reply
    }

    /// The data of a read: one content chunk, so that "don't fragment" always holds, or a simple reply. `pages` are those
    /// of the range.
    pub(super) fn data(asked: Asked, range: SectorRange, pages: Pages) -> Self {
        let (is_first, is_last) = (true, true);
        Self::part(asked, range, pages, Place { is_first, is_last })
    }

    /// The data of a part of a read. Only the first part of a simple reply has a header.
    pub(super) fn part(asked: Asked, range: SectorRange, pages: Pages, place: Place) -> Self {
        let mut reply = match (asked.form, place.is_first) {
            (Form::Simple, true) => Self::simple(asked.cookie, 0),
            (Form::Simple, false) => Self::new(),
            (Form::Structured | Form::Extended, _) => {
                let mut reply = Self::new();
                let flags = if place.is_last { chunk::DONE } else { 0 };
                reply.put_chunk(asked, flags, chunk::OFFSET_DATA, 8 + range.length() as u32);
                reply.put(&range.offset().to_be_bytes());
                reply
            }
        };
        reply.skip = range.skip() as u16;
        reply.body_bytes = range.length() as u32;
        reply.credit_bytes = range.footprint_bytes() as u32;
        let due = (range.skip() + range.length() as usize).div_ceil(PAGE_BYTES);
        assert_eq!(
            pages.len(),
            due,
            "a read is answered with every page of its range"
        );
        reply.pages = pages;
        reply
    }

    /// A block status (proto.md "NBD_REPLY_TYPE_BLOCK_STATUS" and "..._EXT") from the page with the volume's answer, in which its
    /// descriptors take the place of the extents. If `one` is asked for, only the first is told.
    pub(super) fn extents(asked: Asked, range: SectorRange, pages: Pages, one: bool) -> Self {
        let count_max = if one { 1 } else { EXTENTS_MAX };
        let mut found = [Extent::data(0); EXTENTS_MAX];
        let count = pages[0].with(|bytes| {
            let extents = Extent::read(bytes).take(count_max);
            extents.zip(&mut found).map(|(extent, to)| *to = extent).count()
        });
        let found = &found[..count];
        let told_bytes: u64 = found.iter().map(|extent| extent.length).sum();
        assert!(
            count > 0 && told_bytes <= range.length(),
            "a status tells of the start of its range"
        );
        let mut reply = Self::new();
        if asked.form == Form::Extended {
            reply.body_bytes = (count * EXTENDED_DESCRIPTOR_BYTES) as u32;
            let length = 8 + reply.body_bytes;
            reply.put_chunk(asked, chunk::DONE, chunk::BLOCK_STATUS_EXT, length);
            reply.put(&CONTEXT_ID.to_be_bytes());
            reply.put(&(count as u32).to_be_bytes());
        } else {
            reply.body_bytes = (count * DESCRIPTOR_BYTES) as u32;
            let length = 4 + reply.body_bytes;
            reply.put_chunk(asked, chunk::DONE, chunk::BLOCK_STATUS, length);
            reply.put(&CONTEXT_ID.to_be_bytes());
        }
        pages[0].with_mut(|bytes| {
            let each = reply.body_bytes as usize / count;
            for (extent, to) in found.iter().zip(bytes.chunks_exact_mut(each)) {
                let (length, state) = to.split_at_mut(each / 2);
                if asked.form == Form::Extended {
                    length.copy_from_slice(&extent.length.to_be_bytes());
                    state.copy_from_slice(&u64::from(state_of(*extent)).to_be_bytes());
                } else {
                    length.copy_from_slice(&(extent.length as u32).to_be_bytes());
                    state.copy_from_slice(&state_of(*extent).to_be_bytes());
                }
            }
        });
        reply.credit_bytes = PAGE_BYTES as u32;
        reply.pages = pages;
        reply
    }

    fn bytes(&self) -> usize {
        usize::from(self.head_bytes) + self.body_bytes as usize
    }

    /// Shows what is left behind the first `sent` bytes; false if the visitor has had enough.
    fn visit<'s>(&'s self, sent: usize, visitor: &mut impl FnMut(Segment<'s>) -> bool) -> bool {
        let head_bytes = usize::from(self.head_bytes);
        if sent < head_bytes && !visitor(Segment::Bytes(&self.head[sent..head_bytes])) {
            return false;
        }
        let skip = usize::from(self.skip);
        let mut at = skip + sent.saturating_sub(head_bytes);
        let end = skip + self.body_bytes as usize;
        while at < end {
            let page = at / PAGE_BYTES;
            let stop = end.min((page + 1) * PAGE_BYTES);
            let range = at - page * PAGE_BYTES..stop - page * PAGE_BYTES;
            if !visitor(Segment::Page(&self.pages[page], range)) {
                return false;
            }
            at = stop;
        }
        true
    }
}

/// The queue of what is to be sent.
pub(super) struct Output {
    /// Handshake bytes; empty for good once the transmission phase has started and they are sent.
    control: Vec<u8>,
    control_sent: usize,
    replies: VecDeque<Reply>,
    /// Bytes of the front reply that are sent.
    front_sent: usize,
    /// Bytes queued and not sent.
    pending_bytes: u64,
}

impl Output {
    pub(super) fn new(replies_max: usize) -> Self {
        Self {
            control: Vec::new(),
            control_sent: 0,
            replies: VecDeque::with_capacity(replies_max),
            front_sent: 0,
            pending_bytes: 0,
        }
    }

    pub(super) fn put_control(&mut self, bytes: &[u8]) {
        self.control.extend_from_slice(bytes);
        self.pending_bytes += bytes.len() as u64;
    }

    /// The server's greeting.
    pub(super) fn greet(&mut self) {
        self.put_control(&HELLO_MAGIC.to_be_bytes());
        self.put_control(&OPTION_MAGIC.to_be_bytes());
        self.put_control(&proto::handshake_flags::ALL.to_be_bytes());
    }

    /// A reply to an option (proto.md "Fixed newstyle negotiation").
    pub(super) fn option_reply(&mut self, option: u32, kind: u32, parts: &[&[u8]]) {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        self.put_control(&OPTION_REPLY_MAGIC.to_be_bytes());
        self.put_control(&option.to_be_bytes());
        self.put_control(&kind.to_be_bytes());
        self.put_control(&(length as u32).to_be_bytes());
        for part in parts {
            self.put_control(part);
        }
    }

    pub(super) fn option_error(&mut self, option: u32, kind: u32, message: &str) {
        self.option_reply(option, kind, &[message.as_bytes()]);
    }

    pub(super) fn info_reply(&mut self, option: u32, kind: u16, parts: &[&[u8]]) {
        let kind = kind.to_be_bytes();
        let mut all: [&[u8]; 4] = [&kind, &[], &[], &[]];
        all[1..=parts.len()].copy_from_slice(parts);
        self.option_reply(option, option_reply::INFO, &all);
    }

    pub(super) fn push(&mut self, reply: Reply) {
        assert!(
            self.replies.len() < self.replies.capacity(),
            "replies are counted before requests are taken"
        );
        self.pending_bytes += reply.bytes() as u64;
        self.replies.push_back(reply);
    }

    pub(super) fn replies(&self) -> usize {
        self.replies.len()
    }

    pub(super) fn pending_bytes(&self) -> u64 {
        self.pending_bytes
    }

    pub(super) fn clear(&mut self) {
        self.control = Vec::new();
        self.control_sent = 0;
        self.replies.clear();
        self.front_sent = 0;
        self.pending_bytes = 0;
    }

    pub(super) fn visit<'s>(&'s self, visitor: &mut impl FnMut(Segment<'s>) -> bool) {
        let control = &self.control[self.control_sent..];
        if !control.is_empty() && !visitor(Segment::Bytes(control)) {
            return;
        }
        let mut sent = self.front_sent;
        for reply in &self.replies {
            if !reply.visit(sent, visitor) {
                return;
            }
            sent = 0;
        }
    }

    /// Forgets the first `bytes` bytes; returns the payload bytes whose replies are complete.
    pub(super) fn sent(&mut self, bytes: usize) -> u64 {
        assert!(
            bytes as u64 <= self.pending_bytes,
            "no more is sent than was queued"
        );
        self.pending_bytes -= bytes as u64;
        let Range { start, end } = self.control_sent..self.control.len();
        let mut left = bytes - bytes.min(end - start);
        self.control_sent += bytes - left;
        if self.control_sent == end && end > 0 {
            self.control = Vec::new();
            self.control_sent = 0;
        }
        let mut credit_bytes = 0;
        while left > 0 {
            let front = self.replies.front().expect("pending bytes belong to a reply");
            let step = left.min(front.bytes() - self.front_sent);
            left -= step;
            self.front_sent += step;
            if self.front_sent == front.bytes() {
                credit_bytes += u64::from(front.credit_bytes);
                self.replies.pop_front();
                self.front_sent = 0;
            }
        }
        credit_bytes
    }
}

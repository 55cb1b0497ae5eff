//! Payload in pages and on its way out, piece by piece, without copying.

use core::ops::Range;

use base::Page;
use base::limits::PAGE_BYTES;

/// Bytes to send: either small ones that the session owns, or part of a page.
#[derive(Clone, Debug)]
pub(crate) enum Segment<'a> {
    /// Bytes of a header.
    Bytes(&'a [u8]),
    /// This range of the page's bytes.
    Page(&'a Page, Range<usize>),
}

/// Memory to send from, laid out as `struct iovec`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    base: *const u8,
    length: usize,
}

impl Piece {
    /// No memory.
    pub const EMPTY: Self = Self {
        base: core::ptr::null(),
        length: 0,
    };
}

/// Takes what a session has to send, in order, until it has enough. One struct for all sessions and uses, so that a session
/// shows its segments without a call for each.
pub struct Outgoing<'a> {
    to: To<'a>,
    bytes: usize,
    enough: usize,
}

enum To<'a> {
    Pieces { list: &'a mut [Piece], count: usize },
    Copy(&'a mut Vec<u8>),
}

impl<'a> Outgoing<'a> {
    /// Points `list` at what is to be sent: `enough` bytes and not much more. The pieces hold until the session is used again.
    ///
    /// # Panics
    /// If the list has no place.
    pub fn pieces(list: &'a mut [Piece], enough: usize) -> Self {
        assert!(!list.is_empty(), "a list has places");
        let (to, bytes) = (To::Pieces { list, count: 0 }, 0);
        Self { to, bytes, enough }
    }

    /// Appends what is to be sent to `target`, at most `bytes_max` bytes. A copy: for tools and tests, not for the data path.
    pub fn copy(target: &'a mut Vec<u8>, bytes_max: usize) -> Self {
        let (to, bytes) = (To::Copy(target), 0);
        Self {
            to,
            bytes,
            enough: bytes_max,
        }
    }

    /// Bytes taken.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Pieces that hold these.
    pub fn count(&self) -> usize {
        match &self.to {
            To::Pieces { count, .. } => *count,
            To::Copy(_) => 0,
        }
    }

    /// Takes a segment; true if more is wanted.
    #[inline(always)]
    pub(crate) fn take(&mut self, segment: Segment<'_>) -> bool {
        let To::Pieces { list, count } = &mut self.to else {
            return self.take_copy(segment);
        };
        let (base, length) = match segment {
            Segment::Bytes(bytes) => (bytes.as_ptr(), bytes.len()),
            Segment::Page(page, range) => (page.as_ptr().wrapping_add(range.start).cast_const(), range.len()),
        };
        debug_assert!(length > 0, "a segment has bytes");
        self.bytes += length;
        // The pages of a memory volume follow each other: longer pieces cost the kernel less.
        match list[..*count].last_mut() {
            Some(last) if last.base.wrapping_add(last.length) == base => last.length += length,
            _ => {
                list[*count] = Piece { base, length };
                *count += 1;
            }
        }
        *count < list.len() && self.bytes < self.enough
    }

    #[cold]
    fn take_copy(&mut self, segment: Segment<'_>) -> bool {
        let To::Copy(target) = &mut self.to else {
            unreachable!("pieces are taken otherwise")
        };
        let left = self.enough - self.bytes;
        let mut append = |bytes: &[u8]| {
            let length = bytes.len().min(left);
            target.extend_from_slice(&bytes[..length]);
            length
        };
        self.bytes += match segment {
            Segment::Bytes(bytes) => append(bytes),
            Segment::Page(page, range) => page.with(|bytes| append(&bytes[range])),
        };
        self.bytes < self.enough
    }
}

/// Copies `from` into `pages`, to byte `at` from the start of the first one and on.
pub(crate) fn copy_in(pages: &mut [Page], mut at: usize, mut from: &[u8]) {
    while !from.is_empty() {
        let place = at % PAGE_BYTES;
        let (head, rest) = from.split_at(from.len().min(PAGE_BYTES - place));
        pages[at / PAGE_BYTES].with_mut(|page| page[place..place + head.len()].copy_from_slice(head));
        at += head.len();
        from = rest;
    }
}

/// Shows the bytes `range` of `pages`, counted from the start of the first one, page by page to `visitor` until it returns
/// false.
pub(crate) fn visit_places(
    pages: &[Page],
    range: Range<usize>,
    visitor: &mut dyn FnMut(&Page, Range<usize>) -> bool,
) {
    let mut at = range.start;
    while at < range.end {
        let stop = range.end.min((at / PAGE_BYTES + 1) * PAGE_BYTES);
        let place = at % PAGE_BYTES;
        if !visitor(&pages[at / PAGE_BYTES], place..place + stop - at) {
            return;
        }
        at = stop;
    }
}

//! Output of a protocol session, piece by piece, without copying payload.

use core::ops::Range;

use base::Page;
use base::limits::PAGE_BYTES;

/// Bytes to send: either small ones that the session owns, or part of a page.
#[derive(Clone, Debug)]
pub enum Segment<'a> {
    /// Bytes of a header.
    Bytes(&'a [u8]),
    /// This range of the page's bytes.
    Page(&'a Page, Range<usize>),
}

impl<'a> Segment<'a> {
    /// Bytes of the segment.
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Page(_, range) => range.len(),
        }
    }

    /// Never: a segment has bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the bytes to `target`. A copy: for tools and tests, not for the data path.
    pub fn append_to(&self, target: &mut Vec<u8>) {
        match self {
            Self::Bytes(bytes) => target.extend_from_slice(bytes),
            Self::Page(page, range) => page.with(|bytes| target.extend_from_slice(&bytes[range.clone()])),
        }
    }

    /// The page, if it is one.
    pub fn page(&self) -> Option<&'a Page> {
        match self {
            Self::Bytes(_) => None,
            Self::Page(page, _) => Some(page),
        }
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

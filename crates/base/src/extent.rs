//! Which parts of a range hold data and which are holes: the answer to [`BlockOp::Status`](crate::BlockOp::Status).
//!
//! The extents travel in a page that comes with the request: each is a little-endian word of 8 bytes, its length in bytes
//! with the lowest bit set for a hole. Extents are whole sectors, so that bit is free. They follow each other from the start
//! of the range. A word of 0, or the end of the page, ends them. They may end before the range does.

use crate::block::SectorRange;
use crate::limits::SECTOR_BYTES;
use crate::page::Page;

/// Bytes of an extent in a page.
const WORD_BYTES: usize = 8;
/// Extents that one answer looks for at most: at a file each costs two system calls.
pub const EXTENTS_MAX: usize = 128;
/// Bytes that one answer covers at most (64 GiB): what is known of them page by page is looked at at once.
pub const STATUS_BYTES_MAX: u64 = 64 << 30;

/// A stretch of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes, in whole sectors; never 0.
    pub length: u64,
    /// It takes no space and reads as zeros. Data may be zeros too.
    pub is_hole: bool,
}

impl Extent {
    /// So many bytes that may be anything.
    pub const fn data(length: u64) -> Self {
        let is_hole = false;
        Self { length, is_hole }
    }

    /// So many bytes of zeros that take no space.
    pub const fn hole(length: u64) -> Self {
        let is_hole = true;
        Self { length, is_hole }
    }

    /// The extents in the bytes of a page.
    pub fn read(page: &[u8]) -> impl Iterator<Item = Self> {
        let words = page.chunks_exact(WORD_BYTES);
        let words = words.map(|word| u64::from_le_bytes(word.try_into().expect("chunks of this size")));
        words.take_while(|&word| word != 0).map(|word| Self {
            length: word & !1,
            is_hole: word & 1 != 0,
        })
    }

    /// Fills `page` with the extents of a range. `extent_at` is asked for the extent that begins at an offset and has at
    /// most so many bytes; `None` ends the answer early. Neighbours of one kind become one extent.
    ///
    /// # Panics
    /// If an extent is empty, longer than what was asked for, or not of whole sectors.
    pub fn fill(page: &Page, range: SectorRange, mut extent_at: impl FnMut(u64, u64) -> Option<Self>) {
        let end = range.offset() + range.length().min(STATUS_BYTES_MAX);
        let mut at = range.offset();
        let mut last: Option<Self> = None;
        page.with_mut(|bytes| {
            bytes.fill(0);
            let mut words = bytes.chunks_exact_mut(WORD_BYTES);
            for _ in 0..EXTENTS_MAX {
                if at == end {
                    break;
                }
                let Some(next) = extent_at(at, end - at) else {
                    break;
                };
                let is_whole = next.length.is_multiple_of(SECTOR_BYTES as u64);
                assert!(next.length > 0 && next.length <= end - at && is_whole);
                at += next.length;
                match &mut last {
                    Some(last) if last.is_hole == next.is_hole => last.length += next.length,
                    _ => {
                        let Some(ended) = last.replace(next) else { continue };
                        let Some(word) = words.next() else { return };
                        word.copy_from_slice(&ended.word());
                    }
                }
            }
            if let (Some(last), Some(word)) = (last, words.next()) {
                word.copy_from_slice(&last.word());
            }
        });
    }

    const fn word(self) -> [u8; WORD_BYTES] {
        (self.length | self.is_hole as u64).to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::Pool;

    fn filled(
        length: u64,
        sector_bytes: usize,
        extent_at: impl FnMut(u64, u64) -> Option<Extent>,
    ) -> Vec<Extent> {
        let page = Pool::new(1, sector_bytes).alloc().expect("one page");
        page.with_mut(|bytes| bytes.fill(0xff));
        let range = SectorRange::new(512, length, u64::MAX).expect("whole sectors");
        Extent::fill(&page, range, extent_at);
        page.with(|bytes| Extent::read(bytes).collect())
    }

    #[test]
    fn extents_cover_their_range_and_neighbours_of_one_kind_are_one() {
        let told = filled(5 * 512, 512, |at, left| {
            assert_eq!(left, 6 * 512 - at);
            Some(match at / 512 {
                1 | 2 => Extent::hole(512),
                3 => Extent::data(1024),
                _ => Extent::data(512),
            })
        });
        assert_eq!(told, [Extent::hole(1024), Extent::data(1536)]);
    }

    #[test]
    fn an_answer_ends_with_its_page_its_limits_and_its_source() {
        let alternate = |at: u64, _| {
            Some(match (at / 512) % 2 {
                0 => Extent::hole(512),
                _ => Extent::data(512),
            })
        };
        assert_eq!(filled(1 << 20, 512, alternate).len(), EXTENTS_MAX);
        assert_eq!(
            filled(1 << 20, 16, alternate).len(),
            16,
            "words of a page of 128 bytes"
        );
        let whole = filled(u64::MAX / 1024 * 512, 512, |_, left| Some(Extent::hole(left)));
        assert_eq!(whole, [Extent::hole(STATUS_BYTES_MAX)]);
        let short = filled(4096, 512, |at, _| (at < 1024).then_some(Extent::data(512)));
        assert_eq!(short, [Extent::data(512)]);
    }
}

//! Reading a value by whole pages, which a cache may keep.

use crate::damage::FetchError;
use crate::fetch::Found;
use crate::sector::{self, Role};
use core::ops::Range;

/// A page of a value's segment.
#[derive(Clone, Copy, Debug)]
pub struct PageView<'a> {
    /// All of its bytes.
    pub bytes: &'a [u8],
    /// [`Found::is_final`] has said so, now or when the page was kept.
    pub is_final: bool,
}

impl Found {
    /// Generation of the value's segment: none is ever given out again.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The pages that hold the value, by their index in the segment. `page_bytes` is a multiple of the block that divides the
    /// segment.
    pub fn pages(&self, page_bytes: u32) -> Range<u32> {
        self.start / page_bytes..(self.start + self.length).div_ceil(page_bytes)
    }

    /// Where to read a page, in bytes of the area.
    pub fn page_offset(&self, page_bytes: u32, index: u32) -> u64 {
        self.layout.segment_offset(self.location.slot) + u64::from(index) * u64::from(page_bytes)
    }

    /// True if the page never changes any more while its segment has this generation. Each sector of a segment is written once
    /// in a generation. So a sector that is intact and of this generation has its only content, whether its record is durable yet
    /// or not, and whatever becomes of its neighbours. A page is final if all of its sectors are. Padding is written and sealed
    /// with its record; a page that has sectors behind the last record is not final.
    pub fn is_final(&self, page_bytes: u32, index: u32, bytes: &[u8]) -> bool {
        let (layout, tag) = (&self.layout, self.generation as u32);
        let start = index * page_bytes;
        let mut sectors = bytes.chunks(layout.sector_bytes as usize).zip(0..);
        sectors.all(|(sector, nth)| {
            let number = layout.sector_number(self.location.slot, start + nth * layout.sector_bytes);
            let mut roles = [Role::Inner, Role::Record, Role::Segment].into_iter();
            roles.any(|role| sector::tag_of(sector, role, number) == Some(tag))
        })
    }

    /// The value in its pages, which are all of [`Found::pages`], in order.
    ///
    /// # Errors
    /// As of [`Found::extract`].
    pub fn extract_paged<'a>(
        &self,
        page_bytes: u32,
        page: impl Fn(usize) -> PageView<'a>,
    ) -> Result<Vec<u8>, FetchError> {
        let pages = self.pages(page_bytes);
        let base = pages.start * page_bytes;
        if (0..pages.len()).all(|nth| page(nth).is_final) {
            let mut value = Vec::with_capacity(self.location.length as usize);
            self.pieces(|within, count| {
                let (nth, at) = ((within - base) / page_bytes, (within - base) % page_bytes);
                value.extend_from_slice(&page(nth as usize).bytes[at as usize..][..count]);
            });
            return Ok(value);
        }
        let mut blocks = Vec::with_capacity(pages.len() * page_bytes as usize);
        (0..pages.len()).for_each(|nth| blocks.extend_from_slice(page(nth).bytes));
        let within = (self.start - base) as usize;
        self.extract(&blocks[within..within + self.length as usize])
    }

    /// Where in its only page the value lies in one piece, if it does.
    pub fn in_one_piece(&self, page_bytes: u32) -> Option<Range<usize>> {
        let (mut piece, mut count) = (0..0, 0);
        self.pieces(|within, bytes| {
            let at = (within % page_bytes) as usize;
            piece = at..at + bytes;
            count += 1;
        });
        (count == 1).then_some(piece)
    }

    /// Calls `f` with the pieces of the value: where in the segment, and how many bytes. None crosses a sector, so none crosses a
    /// page.
    fn pieces(&self, mut f: impl FnMut(u32, usize)) {
        let payload = self.layout.payload_bytes();
        let header = self.layout.sector_bytes - payload;
        let (mut at, mut left) = (self.location.at, self.location.length);
        while left > 0 {
            let within = at % payload;
            let count = left.min(payload - within);
            f(
                at / payload * self.layout.sector_bytes + header + within,
                count as usize,
            );
            at += count;
            left -= count;
        }
    }
}

//! Writes to one page, merged: what waits for a page while it is written goes out together, and parts of a page are
//! laid over what it held (read-modify-write).

use base::{Page, Pool, limits::SECTORS_PER_PAGE};

/// A write or zeroing of some sectors of one page.
#[derive(Debug)]
pub struct Part {
    /// The client's request.
    pub request: u32,
    /// The data, on the page's own grid; `None` zeroes.
    pub page: Option<Page>,
    /// First sector.
    pub first: usize,
    /// Sectors.
    pub count: usize,
    /// Durable before it is acknowledged.
    pub durable: bool,
    /// Others go before it.
    pub bulk: bool,
}

impl Part {
    fn is_whole(&self) -> bool {
        self.count == SECTORS_PER_PAGE
    }
}

/// Future content of a page.
#[derive(Debug)]
pub enum Merged {
    /// All zeros.
    Zero,
    /// These bytes.
    Page(Page),
    /// It depends on what the page holds: read it first.
    NeedsRead,
    /// No page of memory is free: try again.
    NoMemory,
}

/// Lays `parts` in order over `old` (`None` if it is not known yet; `Some(None)` if it is all zeros).
pub fn merge(parts: &[Part], old: Option<Option<&Page>>, pool: &Pool) -> Merged {
    let start = parts.iter().rposition(Part::is_whole);
    let (ground, rest) = match (start, old) {
        (Some(index), _) => (parts[index].page.as_ref(), &parts[index + 1..]),
        (None, Some(old)) => (old, parts),
        (None, None) => return Merged::NeedsRead,
    };
    match (ground, rest.is_empty()) {
        (None, true) => return Merged::Zero,
        (Some(page), true) => return Merged::Page(page.clone()),
        _ => {}
    }
    let Some(page) = pool.alloc() else {
        return Merged::NoMemory;
    };
    match ground {
        Some(ground) => page.copy_sectors(ground, 0, SECTORS_PER_PAGE),
        None => page.zero_sectors(0, SECTORS_PER_PAGE),
    }
    for part in rest {
        match &part.page {
            Some(data) => page.copy_sectors(data, part.first, part.count),
            None => page.zero_sectors(part.first, part.count),
        }
    }
    Merged::Page(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(pool: &Pool, byte: u8) -> Page {
        let page = pool.alloc().unwrap();
        page.with_mut(|bytes| bytes.fill(byte));
        page
    }

    fn part(page: Option<Page>, first: usize, count: usize) -> Part {
        Part {
            request: 0,
            page,
            first,
            count,
            durable: false,
            bulk: false,
        }
    }

    fn sectors(merged: Merged) -> Vec<u8> {
        let Merged::Page(page) = merged else {
            panic!("a page is expected")
        };
        page.with(|bytes| bytes.chunks(512).map(|sector| sector[0]).collect())
    }

    #[test]
    fn later_parts_lie_over_earlier_ones() {
        let pool = Pool::new(8, 512);
        let old = filled(&pool, 9);
        let parts = [
            part(Some(filled(&pool, 1)), 0, 4),
            part(Some(filled(&pool, 2)), 3, 2),
            part(None, 7, 1),
        ];
        assert!(matches!(merge(&parts, None, &pool), Merged::NeedsRead));
        assert_eq!(
            sectors(merge(&parts, Some(Some(&old)), &pool)),
            [1, 1, 1, 2, 2, 9, 9, 0]
        );
        assert_eq!(
            sectors(merge(&parts, Some(None), &pool)),
            [1, 1, 1, 2, 2, 0, 0, 0]
        );
    }

    #[test]
    fn a_whole_page_needs_no_read_and_hides_what_came_before() {
        let pool = Pool::new(8, 512);
        let parts = [
            part(Some(filled(&pool, 1)), 0, 1),
            part(Some(filled(&pool, 2)), 0, 8),
        ];
        assert_eq!(sectors(merge(&parts, None, &pool)), [2; 8]);
        let parts = [part(Some(filled(&pool, 1)), 0, 8), part(None, 0, 8)];
        assert!(matches!(merge(&parts, None, &pool), Merged::Zero));
        let parts = [part(None, 0, 8), part(Some(filled(&pool, 3)), 1, 1)];
        assert_eq!(sectors(merge(&parts, None, &pool)), [0, 3, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn without_memory_it_says_so() {
        let pool = Pool::new(1, 512);
        let parts = [part(Some(filled(&pool, 1)), 0, 1)];
        assert!(matches!(merge(&parts, Some(None), &pool), Merged::NoMemory));
    }
}

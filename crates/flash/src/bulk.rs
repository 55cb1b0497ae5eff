//! Cold reads in large pieces: recovery and verification look at many pages, and one system call for each would cost
//! more than the bytes.

use base::{Device, MediaError};

/// Bytes of one read: large enough that the call's cost does not count, small beside a node's memory.
pub(crate) const WINDOW_BYTES: usize = 1 << 20;
/// Bytes between two wanted pages that are read along rather than skipped: about what a call costs in bandwidth.
const GAP_BYTES: u64 = 64 << 10;

/// Reads the pages at the offsets of `wanted`, which do not descend, and hands each to `take` with what was wanted. Neighbours
/// are read together. When that fails each is read by itself, so that only pages that cannot be read are errors.
pub(crate) fn read_pages<T>(
    medium: &dyn Device,
    page_bytes: usize,
    wanted: &[(u64, T)],
    mut take: impl FnMut(&T, Result<&[u8], MediaError>),
) {
    let mut bytes = Vec::new();
    let mut rest = wanted;
    while let Some(&(start, _)) = rest.first() {
        let count = window(page_bytes, rest);
        let (now, later) = rest.split_at(count);
        rest = later;
        let (last, _) = now[count - 1];
        bytes.resize((last - start) as usize + page_bytes, 0);
        let whole = medium.read_at(start, &mut bytes).is_ok();
        for (offset, what) in now {
            let page = &mut bytes[(offset - start) as usize..][..page_bytes];
            let read = if whole {
                Ok(())
            } else {
                medium.read_at(*offset, page)
            };
            take(what, read.map(|()| &*page));
        }
    }
}

/// How many of the first pages are read together.
fn window<T>(page_bytes: usize, wanted: &[(u64, T)]) -> usize {
    let start = wanted[0].0;
    let fits = |pair: &[(u64, T)]| {
        let (before, next) = (pair[0].0, pair[1].0);
        assert!(before <= next, "wanted pages ascend");
        next - before <= page_bytes as u64 + GAP_BYTES
            && next + page_bytes as u64 - start <= WINDOW_BYTES as u64
    };
    1 + wanted.windows(2).take_while(|pair| fits(pair)).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const PAGE: usize = 4096;

    /// Counts reads; those that touch the bad page fail.
    struct Counting {
        reads: Cell<u32>,
        bad: Option<u64>,
    }

    impl Device for Counting {
        fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), MediaError> {
            self.reads.set(self.reads.get() + 1);
            let end = offset + bytes.len() as u64;
            if self.bad.is_some_and(|bad| (offset..end).contains(&bad)) {
                return Err(MediaError::Io);
            }
            for (index, page) in bytes.chunks_mut(PAGE).enumerate() {
                page.fill((offset / PAGE as u64) as u8 + index as u8);
            }
            Ok(())
        }

        fn write_at(&mut self, _: u64, _: &[u8]) -> Result<(), MediaError> {
            unreachable!("only reads")
        }

        fn flush(&mut self) -> Result<(), MediaError> {
            unreachable!("only reads")
        }

        fn capacity_bytes(&self) -> u64 {
            u64::MAX
        }
    }

    fn read(medium: &Counting, pages: impl Iterator<Item = u64>) -> Vec<u64> {
        let wanted: Vec<_> = pages.map(|page| (page * PAGE as u64, page)).collect();
        let mut failed = Vec::new();
        let mut count = 0;
        read_pages(medium, PAGE, &wanted, |page, bytes| {
            count += 1;
            match bytes {
                Ok(bytes) => assert!(bytes.len() == PAGE && bytes.iter().all(|&b| b == *page as u8)),
                Err(_) => failed.push(*page),
            }
        });
        assert_eq!(count, wanted.len());
        failed
    }

    #[test]
    fn neighbours_are_read_together_and_far_pages_are_not() {
        let medium = |bad| Counting {
            reads: Cell::new(0),
            bad,
        };
        let m = medium(None);
        assert_eq!(read(&m, 0..1024), []);
        assert_eq!(m.reads.get(), 4, "4 MiB");
        let m = medium(None);
        assert_eq!(read(&m, (0..100).map(|page| page * 1000)), []);
        assert_eq!(m.reads.get(), 100);
    }

    #[test]
    fn one_bad_page_does_not_take_its_neighbours_along() {
        let m = Counting {
            reads: Cell::new(0),
            bad: Some(7 * PAGE as u64 + 5),
        };
        assert_eq!(read(&m, (0..20).step_by(2)), []);
        assert_eq!(read(&m, 0..20), [7]);
    }
}

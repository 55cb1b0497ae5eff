//! What every medium has to pass: one suite for memory, files, and simulated drives.
//!
//! A medium's tests call [`device`] with a small medium, and [`queue`] with a medium of exactly [`PAGES`] pages. Crashes and failures are not in
//! here: the simulator's checkers and each medium's own tests have them.

use super::{Device, MediaDone, MediaError, MediaKind, MediaOp, Queue};
use crate::limits::SECTORS_PER_PAGE;
use crate::page::{Page, Pages, Pool};
use crate::time::Instant;

/// Pages of a medium to test.
pub const PAGES: u64 = 64;

/// Turns of the caller's loop after which a medium has lost an operation.
const TURNS_MAX: u32 = 10_000_000;

/// Tests the synchronous view.
///
/// # Panics
/// If the medium breaks a promise.
pub fn device(device: &mut dyn Device) {
    let size = device.capacity_bytes();
    let unit = u64::from(device.atomic_bytes());
    assert!(unit.is_power_of_two() && size.is_multiple_of(unit) && size >= 16 * unit);
    for (offset, length) in [(0, size), (unit, 3 * unit), (size - unit, unit), (0, 0)] {
        let bytes: Vec<u8> = (0..length).map(|at| (at * 31 + offset) as u8).collect();
        let mut before = vec![0; size as usize];
        device.read_at(0, &mut before).expect("inside");
        device.write_at(offset, &bytes).expect("inside");
        before[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
        assert!(reads(device, 0, &before), "a write changes its own range alone");
        device.write_through(offset, &bytes).expect("inside");
        assert!(reads(device, offset, &bytes));
    }
    device.discard(unit, 2 * unit).expect("inside");
    assert!(
        reads(device, unit, &vec![0; 2 * unit as usize]),
        "discarded bytes read as zeros"
    );
    assert!(
        !reads(device, 3 * unit, &vec![0; unit as usize]),
        "the next ones stay"
    );
    device.flush().expect("nothing has failed");
    let mut byte = [0; 2];
    assert_eq!(device.read_at(size - 1, &mut byte), Err(MediaError::OutOfRange));
    assert_eq!(device.read_at(u64::MAX, &mut byte), Err(MediaError::OutOfRange));
    assert_eq!(device.write_at(size - 1, &byte), Err(MediaError::OutOfRange));
}

fn reads(device: &dyn Device, offset: u64, expected: &[u8]) -> bool {
    let mut bytes = vec![0; expected.len()];
    device.read_at(offset, &mut bytes).expect("inside");
    bytes == expected
}

/// Tests the data path, on pages of eight sectors of `sector_bytes`. `turn` does what the medium's world does between
/// two polls, and says what time it is.
///
/// # Panics
/// If the medium breaks a promise.
pub fn queue<Q: Queue>(queue: &mut Q, sector_bytes: usize, turn: impl FnMut(&mut Q) -> Instant) {
    let pool = Pool::new(2 * PAGES as usize, sector_bytes);
    let mut bench = Bench {
        queue,
        turn,
        pool: &pool,
        model: Vec::new(),
    };
    bench.model = vec![0; PAGES as usize * pool.page_bytes()];
    bench.run_all((0..PAGES).map(|id| (id, MediaKind::Write)));
    bench.compare();
    bench.run_all((0..PAGES).rev().map(|id| {
        let kinds = [
            MediaKind::WriteThrough,
            MediaKind::Write,
            MediaKind::Discard,
            MediaKind::Zero,
        ];
        (id, kinds[id as usize % kinds.len()])
    }));
    assert_eq!(bench.run(MediaOp::flush(1)).result, Ok(()));
    bench.compare();
    bench.ranges();
    bench.compare();
    bench.refuses_outside();
    assert_eq!(pool.available(), pool.capacity(), "every page comes back");
}

struct Bench<'a, Q, F> {
    queue: &'a mut Q,
    turn: F,
    pool: &'a Pool,
    /// What the medium holds.
    model: Vec<u8>,
}

impl<Q: Queue, F: FnMut(&mut Q) -> Instant> Bench<'_, Q, F> {
    fn page(&self, fill: u8) -> Page {
        let page = self.pool.alloc().expect("the pool has twice the medium's pages");
        page.with_mut(|bytes| {
            let numbered = bytes.iter_mut().enumerate();
            numbered.for_each(|(at, byte)| *byte = fill.wrapping_mul(29) ^ at as u8);
        });
        page
    }

    /// An operation on `count` sectors from `first`, which the model follows.
    fn op(&mut self, id: u64, kind: MediaKind, first: u64, count: u64) -> MediaOp {
        let sector = (self.pool.page_bytes() / SECTORS_PER_PAGE) as u64;
        let mut op = MediaOp::range(id, kind, first * sector, (count * sector) as u32);
        let on_page = SECTORS_PER_PAGE as u64;
        let touched = (first + count).div_ceil(on_page) - first / on_page;
        let has_data = matches!(kind, MediaKind::Write | MediaKind::WriteThrough);
        if has_data || kind == MediaKind::Read {
            op.pages = (0..touched)
                .map(|page| self.page((id + page) as u8))
                .collect::<Pages>();
        }
        let range = op.offset as usize..(op.offset + u64::from(op.length)) as usize;
        if matches!(kind, MediaKind::Discard | MediaKind::Zero) {
            self.model[range].fill(0);
        } else if has_data {
            for (at, page, part) in op.parts() {
                page.with(|bytes| self.model[at as usize..][..part.len()].copy_from_slice(&bytes[part]));
            }
        }
        op
    }

    fn run(&mut self, op: MediaOp) -> MediaDone {
        let now = (self.turn)(self.queue);
        self.queue.submit(now, op);
        self.wait(1).pop().expect("counted")
    }

    /// Waits for `count` operations.
    fn wait(&mut self, count: usize) -> Vec<MediaDone> {
        let mut all = Vec::new();
        for _ in 0..TURNS_MAX {
            let now = (self.turn)(self.queue);
            all.extend(core::iter::from_fn(|| self.queue.poll(now)));
            if all.len() >= count {
                assert_eq!(all.len(), count, "each operation is answered once");
                return all;
            }
        }
        panic!("{} of {count} operations were answered", all.len());
    }

    /// Operations on whole pages, all in flight at once.
    fn run_all(&mut self, ops: impl Iterator<Item = (u64, MediaKind)>) {
        let on_page = SECTORS_PER_PAGE as u64;
        let mut ids = Vec::new();
        for (id, kind) in ops {
            let op = self.op(id, kind, id * on_page, on_page);
            let now = (self.turn)(self.queue);
            self.queue.submit(now, op);
            ids.push((id, kind));
        }
        let mut ended: Vec<_> = self
            .wait(ids.len())
            .iter()
            .map(|done| (done.id, done.kind))
            .collect();
        ids.sort_by_key(|(id, _)| *id);
        ended.sort_by_key(|(id, _)| *id);
        assert_eq!(ended, ids, "each operation is answered with its own number");
    }

    /// Sectors that begin and end inside pages.
    fn ranges(&mut self) {
        for (id, (kind, first, count)) in [
            (MediaKind::Write, 1, 1),
            (MediaKind::WriteThrough, 5, 6),
            (MediaKind::Write, 16, 24),
            (MediaKind::Zero, 3, 15),
            (MediaKind::Discard, 30, 2),
        ]
        .into_iter()
        .enumerate()
        {
            let op = self.op(id as u64, kind, first, count);
            assert_eq!(
                self.run(op).result,
                Ok(()),
                "{kind:?} of {count} sectors from {first}"
            );
        }
        let op = self.op(9, MediaKind::Read, 3, 30);
        let (sector, model) = (self.pool.page_bytes() / SECTORS_PER_PAGE, self.model.clone());
        let done = self.run(op);
        assert_eq!((done.result, done.pages.len()), (Ok(()), 5));
        let read = MediaOp {
            pages: done.pages,
            ..MediaOp::range(0, MediaKind::Read, 3 * sector as u64, 30 * sector as u32)
        };
        for (at, page, part) in read.parts() {
            page.with(|bytes| assert_eq!(bytes[part.clone()], model[at as usize..][..part.len()]));
        }
    }

    /// The medium holds what the model holds.
    fn compare(&mut self) {
        let bytes = self.pool.page_bytes();
        for id in (0..PAGES).rev() {
            let page = self.page(0);
            let done = self.run(MediaOp::read(id, id * bytes as u64, page));
            assert_eq!((done.result, done.pages.len()), (Ok(()), 1));
            done.pages[0]
                .with(|read| assert!(read == &self.model[id as usize * bytes..][..bytes], "page {id}"));
        }
    }

    fn refuses_outside(&mut self) {
        for kind in [MediaKind::Read, MediaKind::Write] {
            let page = self.page(0);
            let end = PAGES * page.len() as u64;
            let done = self.run(MediaOp::page(5, kind, end, page));
            assert_eq!((done.result, done.pages.len()), (Err(MediaError::OutOfRange), 1));
        }
    }
}

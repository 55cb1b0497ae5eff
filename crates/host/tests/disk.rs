//! A disk against a model of what it promised: any order of media operations, power cut at any instant, a clean stop, a
//! medium that fails, and the wait behind collection.

use base::device::execute;
use base::limits::{PAGE_BYTES, SECTOR_BYTES};
use base::{
    BlockOp, BlockReply, BlockRequest, Device, Duration, Extent, Instant, Machine, MediaError, MediaKind,
    MediaOp, Pages, Pool, Rng, SectorRange, VolumeId,
};
use flash::{GcMode, Geometry, Ssd, Timing};
use host::{Disk, DiskConfig, DiskEntry, DiskError, Input, Output};
use std::collections::BTreeMap;

const SECTORS: usize = PAGE_BYTES / SECTOR_BYTES;
const GEOMETRY: Geometry = Geometry {
    channels: 2,
    chips_per_channel: 1,
    planes_per_chip: 1,
    blocks_per_plane: 24,
    pages_per_block: 16,
};

/// What a sector may hold: every value since the start, the last acknowledged, the last that is durable.
#[derive(Clone, Debug)]
struct Sector {
    values: Vec<u64>,
    acknowledged: usize,
    durable: usize,
}

enum Asked {
    Read { first: usize, at_least: Vec<usize> },
    Status { first: usize, at_least: Vec<usize> },
    Change { first: usize, count: usize, fua: bool },
    Flush { durable: Vec<usize> },
}

struct Rig {
    disk: Disk,
    pool: Pool,
    config: DiskConfig,
    durable: Vec<u8>,
    present: Vec<u8>,
    /// Writes done and not flushed: number, offset, bytes.
    log: Vec<(u64, u64, Vec<u8>)>,
    written: u64,
    /// Operations under way; of a flush, how many writes it covers.
    media: Vec<(MediaOp, u64)>,
    fails: bool,
    /// What is read now stays.
    restarting: bool,
    sectors: Vec<Sector>,
    busy: Vec<bool>,
    asked: BTreeMap<u64, Asked>,
    tag: u64,
    now: Instant,
    rng: Rng,
    replies: Vec<BlockReply>,
    /// Most media operations that one call asked for.
    burst: usize,
    /// Extents of the last status, and sectors that were told to be in holes.
    extents: Vec<Extent>,
    hole_sectors: usize,
}

fn start(
    now: Instant,
    config: &DiskConfig,
    pool: &Pool,
    image: &mut Vec<u8>,
    size_bytes: Option<u64>,
) -> Result<Disk, DiskError> {
    let entry = DiskEntry::open(image, size_bytes)?;
    Disk::start(now, &entry, config.clone(), pool.clone(), image)
}

fn fresh(geometry: Geometry) -> Vec<u8> {
    let mut image = vec![0; Ssd::bytes_needed(&geometry, PAGE_BYTES) as usize];
    Ssd::format(&mut image, geometry, PAGE_BYTES, [7; 16]).expect("a good geometry");
    image
}

impl Rig {
    fn new(seed: u64, config: DiskConfig, geometry: Geometry, size_bytes: Option<u64>) -> Self {
        let (mut image, pool, now) = (
            fresh(geometry),
            Pool::new(2048, SECTOR_BYTES),
            Instant::from_nanos(1),
        );
        let disk = start(now, &config, &pool, &mut image, size_bytes).expect("a fresh disk");
        let sectors = disk.flash().logical_pages() as usize * SECTORS;
        let sector = Sector {
            values: vec![0],
            acknowledged: 0,
            durable: 0,
        };
        Self {
            disk,
            pool,
            config,
            present: image.clone(),
            durable: image,
            log: Vec::new(),
            written: 0,
            media: Vec::new(),
            fails: false,
            restarting: false,
            sectors: vec![sector; sectors],
            busy: vec![false; sectors],
            asked: BTreeMap::new(),
            tag: 0,
            now,
            rng: Rng::new(seed),
            replies: Vec::new(),
            burst: 0,
            extents: Vec::new(),
            hole_sectors: 0,
        }
    }

    fn drain(&mut self) {
        let mut burst = 0;
        while let Some(output) = self.disk.poll() {
            match output {
                Output::Media(op) => {
                    burst += 1;
                    self.media.push((op, self.written));
                }
                Output::Reply(reply) => self.replies.push(reply),
                Output::Send { .. } => panic!("a disk has no network"),
                Output::Event(_) => {}
            }
        }
        self.burst = self.burst.max(burst);
        for reply in std::mem::take(&mut self.replies) {
            self.judge(reply);
        }
    }

    fn submit(&mut self, op: BlockOp, first: usize, count: usize, fua: bool) -> u64 {
        self.tag += 1;
        let tag = self.tag;
        let value = if op == BlockOp::Write { tag } else { 0 };
        let range = first..first + count;
        let acknowledged = |sectors: &[Sector]| sectors.iter().map(|sector| sector.acknowledged).collect();
        let asked = match op {
            BlockOp::Read => Asked::Read {
                first,
                at_least: acknowledged(&self.sectors[range]),
            },
            BlockOp::Status => Asked::Status {
                first,
                at_least: acknowledged(&self.sectors[range]),
            },
            BlockOp::Flush => Asked::Flush {
                durable: self.sectors.iter().map(|sector| sector.acknowledged).collect(),
            },
            _ => {
                for at in range {
                    assert!(
                        !std::mem::replace(&mut self.busy[at], true),
                        "changes do not overlap"
                    );
                    self.sectors[at].values.push(value);
                }
                Asked::Change { first, count, fua }
            }
        };
        self.asked.insert(tag, asked);
        let (offset, length) = ((first * SECTOR_BYTES) as u64, (count * SECTOR_BYTES) as u64);
        let range = match op {
            BlockOp::Flush => Ok(SectorRange::EMPTY),
            _ => SectorRange::new(offset, length, u64::MAX),
        };
        let mut request = BlockRequest {
            client: 1,
            tag,
            volume: VolumeId(0),
            op,
            range: range.expect("whole sectors"),
            fua,
            bulk: false,
            pages: Pages::new(),
        };
        if op == BlockOp::Status {
            request.pages = self.pool.alloc().into_iter().collect();
        }
        if op == BlockOp::Write {
            let pages = (first + count).div_ceil(SECTORS) - first / SECTORS;
            let page = || {
                let page = self.pool.alloc().expect("a page");
                page.with_mut(|bytes| {
                    bytes
                        .chunks_mut(8)
                        .for_each(|word| word.copy_from_slice(&value.to_le_bytes()))
                });
                page
            };
            request.pages = (0..pages).map(|_| page()).collect();
        }
        self.disk.handle(self.now, Input::Request(request));
        self.drain();
        tag
    }

    fn judge(&mut self, reply: BlockReply) {
        let asked = self.asked.remove(&reply.tag).expect("a request is answered once");
        match (asked, reply.result) {
            (Asked::Read { first, at_least }, Ok(pages)) => {
                for (at, at_least) in (first..).zip(at_least) {
                    let page = &pages[at / SECTORS - first / SECTORS];
                    let value = page.with(|bytes| {
                        let sector = &bytes[at % SECTORS * SECTOR_BYTES..][..SECTOR_BYTES];
                        assert!(
                            sector.chunks(8).all(|word| word == &sector[..8]),
                            "sector {at} is torn"
                        );
                        u64::from_le_bytes(sector[..8].try_into().expect("eight bytes"))
                    });
                    let sector = &mut self.sectors[at];
                    let allowed = &sector.values[at_least..];
                    assert!(
                        allowed.contains(&value),
                        "sector {at} holds {value}, not one of {allowed:?}"
                    );
                    if self.restarting {
                        sector.values = vec![value];
                        (sector.acknowledged, sector.durable) = (0, 0);
                    }
                }
            }
            (Asked::Status { first, at_least }, Ok(pages)) => {
                self.extents = pages[0].with(|bytes| Extent::read(bytes).collect());
                let told = self.extents.iter().flat_map(|extent| {
                    std::iter::repeat_n(extent.is_hole, extent.length as usize / SECTOR_BYTES)
                });
                assert!(told.clone().count() <= at_least.len() && !self.extents.is_empty());
                for (at, (is_hole, at_least)) in (first..).zip(told.zip(at_least)) {
                    let allowed = &self.sectors[at].values[at_least..];
                    assert!(
                        !is_hole || allowed.contains(&0),
                        "sector {at} in a hole holds one of {allowed:?}"
                    );
                    self.hole_sectors += usize::from(is_hole);
                }
            }
            (Asked::Change { first, count, fua }, result) => {
                for at in first..first + count {
                    self.busy[at] = false;
                    let sector = &mut self.sectors[at];
                    if result.is_ok() {
                        sector.acknowledged = sector.values.len() - 1;
                    }
                    if result.is_ok() && fua {
                        sector.durable = sector.acknowledged;
                    }
                }
                assert!(result.is_ok() || self.fails, "{result:?}");
            }
            (Asked::Flush { durable }, Ok(_)) => {
                for (sector, durable) in self.sectors.iter_mut().zip(durable) {
                    sector.durable = sector.durable.max(durable);
                }
            }
            (_, Err(error)) => assert!(self.fails, "{error}"),
        }
    }

    /// The medium does one operation, any of those under way.
    fn media_step(&mut self) -> bool {
        if self.media.is_empty() {
            return false;
        }
        let index = self.rng.below(self.media.len() as u64) as usize;
        let (op, covers) = self.media.swap_remove(index);
        let done = match op.kind {
            MediaKind::Write | MediaKind::Flush if self.fails => op.done(Err(MediaError::Io)),
            MediaKind::Write => {
                let bytes = op.pages[0].with(<[u8]>::to_vec);
                self.log.push((self.written, op.offset, bytes));
                self.written += 1;
                execute(&mut self.present, op)
            }
            MediaKind::Flush => {
                for (_, offset, bytes) in self.log.extract_if(.., |(number, ..)| *number < covers) {
                    self.durable.write_at(offset, &bytes).expect("inside");
                }
                op.done(Ok(()))
            }
            _ => execute(&mut self.present, op),
        };
        self.disk.handle(self.now, Input::Media(done));
        self.drain();
        true
    }

    /// Lets the disk's next deadline come.
    fn time_step(&mut self) -> bool {
        let Some(deadline) = self.disk.deadline() else {
            return false;
        };
        self.now = self.now.max(deadline);
        self.disk.tick(self.now);
        self.drain();
        true
    }

    /// Until every request is answered.
    fn settle(&mut self) {
        while !self.asked.is_empty() {
            assert!(
                self.media_step() || self.time_step(),
                "requests wait and nothing is to be done"
            );
        }
    }

    /// Power fails: what was not flushed is there, sector by sector, or not. The disk starts again.
    fn crash(&mut self) {
        let mut image = self.durable.clone();
        let under_way = self.media.drain(..).filter_map(|(op, _)| match op.kind {
            MediaKind::Write => Some((0, op.offset, op.pages[0].with(<[u8]>::to_vec))),
            _ => None,
        });
        let lost: Vec<_> = self.log.drain(..).chain(under_way).collect();
        let whole = self.rng.chance(0.3);
        for (_, offset, bytes) in lost {
            for (at, sector) in (offset..).step_by(SECTOR_BYTES).zip(bytes.chunks(SECTOR_BYTES)) {
                if whole || self.rng.chance(0.5) {
                    image.write_at(at, sector).expect("inside");
                }
            }
        }
        self.asked.clear();
        self.busy.fill(false);
        self.restart(image);
    }

    fn restart(&mut self, mut image: Vec<u8>) {
        let entry = DiskEntry::open(&mut image, None).expect("the superblock");
        self.disk =
            Disk::start(self.now, &entry, self.config.clone(), self.pool.clone(), &image).expect("recovery");
        assert!(self.disk.report().damaged.is_empty());
        (self.present, self.durable) = (image.clone(), image);
        self.drain();
        for sector in &mut self.sectors {
            sector.acknowledged = sector.durable;
        }
        self.restarting = true;
        self.read_all();
        self.restarting = false;
    }

    fn read_all(&mut self) {
        for first in (0..self.sectors.len()).step_by(64) {
            self.submit(BlockOp::Read, first, 64.min(self.sectors.len() - first), false);
            self.settle();
        }
    }

    fn random_request(&mut self) {
        let first = self.rng.below(self.sectors.len() as u64) as usize;
        let count = (self.rng.between(1, 40) as usize).min(self.sectors.len() - first);
        let op = match self.rng.below(14) {
            0..=3 => BlockOp::Read,
            4..=8 => BlockOp::Write,
            9 => BlockOp::Trim,
            10 => BlockOp::WriteZeroes,
            11 | 12 => BlockOp::Status,
            _ => BlockOp::Flush,
        };
        let (first, count) = if op == BlockOp::Flush {
            (0, 0)
        } else {
            (first, count)
        };
        let fua = self.rng.chance(0.1);
        let changes = !matches!(op, BlockOp::Read | BlockOp::Flush | BlockOp::Status);
        if !changes || !self.busy[first..first + count].contains(&true) {
            self.submit(op, first, count, fua);
        }
    }

    fn random_step(&mut self) {
        match self.rng.below(10) {
            0..=2 if self.asked.len() < 24 => self.random_request(),
            3 => {
                self.now += Duration::from_millis(self.rng.below(80));
                self.disk.tick(self.now);
                self.drain();
            }
            _ => {
                let _ = self.media_step() || self.time_step();
            }
        }
    }
}

fn config(timing: &str) -> DiskConfig {
    DiskConfig {
        cache_pages: 24,
        ..DiskConfig::new(
            Timing::built_in(timing).expect("it is built in"),
            GEOMETRY.channels,
        )
    }
}

#[test]
fn what_was_flushed_survives_a_power_cut_at_any_instant() {
    for seed in 0..24 {
        let timing = ["none", "p-ssd"][seed as usize % 2];
        let mut rig = Rig::new(seed, config(timing), GEOMETRY, None);
        for _ in 0..8 {
            for _ in 0..rig.rng.between(100, 1500) {
                rig.random_step();
            }
            rig.crash();
        }
        let stats = rig.disk.flash().stats();
        assert_eq!(stats.damaged_pages, 0);
        assert!(rig.hole_sectors > 0);
    }
}

#[test]
fn pages_that_are_not_written_or_trimmed_as_a_whole_are_holes() {
    let mut rig = Rig::new(5, config("none"), GEOMETRY, None);
    let (hole, data) = (
        |sectors: usize| Extent::hole((sectors * SECTOR_BYTES) as u64),
        |sectors: usize| Extent::data((sectors * SECTOR_BYTES) as u64),
    );
    let status = |rig: &mut Rig, first, count| {
        rig.submit(BlockOp::Status, first, count, false);
        rig.settle();
        rig.extents.clone()
    };
    assert_eq!(status(&mut rig, 1, 799), [hole(799)]);
    rig.submit(BlockOp::Write, 83, 10, false);
    rig.settle();
    let written = [hole(80), data(16), hole(704)];
    assert_eq!(status(&mut rig, 0, 800), written, "in the cache");
    rig.submit(BlockOp::Flush, 0, 0, false);
    rig.settle();
    assert_eq!(status(&mut rig, 0, 800), written, "on the medium");
    assert_eq!(status(&mut rig, 79, 3), [hole(1), data(2)]);
    rig.submit(BlockOp::Trim, 84, 12, false);
    rig.settle();
    let trimmed = [hole(80), data(8), hole(712)];
    assert_eq!(status(&mut rig, 0, 800), trimmed, "in the cache");
    rig.submit(BlockOp::Flush, 0, 0, false);
    rig.settle();
    assert_eq!(status(&mut rig, 0, 800), trimmed, "on the medium");
    let image = rig.durable.clone();
    rig.log.clear();
    rig.restart(image);
    assert_eq!(status(&mut rig, 0, 800), trimmed, "after a restart");
}

#[test]
fn a_clean_stop_keeps_everything_and_leaves_nothing_to_replay() {
    for seed in 0..8 {
        let mut rig = Rig::new(seed, config("none"), GEOMETRY, None);
        for _ in 0..2000 {
            rig.random_step();
        }
        rig.settle();
        rig.disk.drain(rig.now);
        rig.drain();
        while !rig.disk.is_quiet() {
            assert!(rig.media_step() || rig.time_step(), "the stop waits for nothing");
        }
        for sector in &mut rig.sectors {
            sector.durable = sector.acknowledged;
        }
        let image = rig.durable.clone();
        rig.log.clear();
        rig.restart(image);
        assert_eq!(
            (rig.disk.report().entries_replayed, rig.disk.report().torn),
            (0, 0)
        );
    }
}

#[test]
fn after_a_failed_medium_changes_and_flushes_fail_and_reads_go_on() {
    let mut rig = Rig::new(1, config("none"), GEOMETRY, None);
    rig.submit(BlockOp::Write, 3, 80, false);
    rig.submit(BlockOp::Flush, 0, 0, false);
    rig.settle();
    rig.fails = true;
    // Parts of pages and more than the cache holds: some wait for what their page holds, some for room.
    for first in (100..1100).step_by(50) {
        rig.submit(BlockOp::Write, first, 45, first % 100 == 0);
    }
    rig.submit(BlockOp::Flush, 0, 0, false);
    rig.settle();
    assert!(rig.disk.flash().latched());
    for op in [BlockOp::Write, BlockOp::Trim, BlockOp::Flush] {
        let count = if op == BlockOp::Flush { 0 } else { 8 };
        let before = rig.sectors[2000].acknowledged;
        rig.submit(op, 2000 * count / 8, count, false);
        rig.settle();
        assert_eq!(rig.sectors[2000].acknowledged, before);
    }
    rig.submit(BlockOp::Read, 0, 1200, false);
    rig.submit(BlockOp::Status, 0, 1200, false);
    rig.settle();
    rig.disk.drain(rig.now);
    rig.drain();
    while rig.media_step() {}
    assert!(
        rig.disk.is_quiet(),
        "a stop does not wait for a medium that failed"
    );
}

#[test]
fn a_disk_keeps_its_size_and_a_node_keeps_its_medium() {
    let mut image = fresh(GEOMETRY);
    let bytes = 300 * PAGE_BYTES as u64;
    assert_eq!(
        DiskEntry::open(&mut image, Some(bytes + 7))
            .expect("it fits")
            .size_bytes(),
        bytes
    );
    assert_eq!(
        DiskEntry::open(&mut image, None)
            .expect("it is there")
            .size_bytes(),
        bytes
    );
    let other = DiskEntry::open(&mut image, Some(2 * bytes));
    assert!(matches!(other, Err(DiskError::Size { have_bytes, .. }) if have_bytes == bytes));
    let too_large = DiskEntry::open(&mut fresh(GEOMETRY), Some(1 << 30));
    assert!(matches!(too_large, Err(DiskError::Create(_))));
    let mut image = fresh(GEOMETRY);
    let mut ssd = Ssd::open(&mut image, PAGE_BYTES, 0).expect("formatted");
    ssd.create(base::VssdId(9), 1, 100, b"replicas".to_vec())
        .expect("it fits");
    ssd.store(&mut image).expect("inside");
    assert!(matches!(DiskEntry::open(&mut image, None), Err(DiskError::Rack)));
}

/// The longest wait of a lone small read while the disk is overwritten at random, and the most operations of one call.
fn longest_wait(gc_mode: GcMode) -> (Duration, usize, u64) {
    let geometry = Geometry {
        pages_per_block: 128,
        ..GEOMETRY
    };
    let config = DiskConfig {
        gc_mode,
        ..config("p-ssd")
    };
    let mut rig = Rig::new(5, config, geometry, None);
    let pages = rig.sectors.len() / SECTORS;
    for first in (0..pages).step_by(8) {
        rig.submit(
            BlockOp::Write,
            first * SECTORS,
            8.min(pages - first) * SECTORS,
            false,
        );
        rig.settle();
    }
    let (mut worst, mut pending) = (Duration::ZERO, None);
    let mut reads = 0;
    while reads < 6000 {
        match pending {
            Some((tag, since)) if !rig.asked.contains_key(&tag) => {
                worst = worst.max(rig.now.since(since));
                reads += 1;
                pending = None;
            }
            Some(_) => {}
            None => {
                let first = rig.rng.below(pages as u64) as usize * SECTORS;
                pending = Some((rig.submit(BlockOp::Read, first, SECTORS, false), rig.now));
            }
        }
        while rig.asked.len() < 9 {
            let first = rig.rng.below(pages as u64) as usize * SECTORS;
            if !rig.busy[first] {
                rig.submit(BlockOp::Write, first, SECTORS, false);
            }
        }
        while rig.media_step() {}
        rig.time_step();
    }
    (worst, rig.burst, rig.disk.flash().stats().erases)
}

#[test]
fn a_small_read_waits_for_a_step_of_collection_and_not_for_a_block() {
    let (stepped, burst, erases) = longest_wait(GcMode::Preemptible { step_pages: 8 });
    let (blocking, ..) = longest_wait(GcMode::Blocking);
    // Behind at most two write-backs a plane and one step, each page read and programmed: 8 × (2.3 + 0.2) ms.
    let bound = Duration::from_millis(25);
    assert!(erases > 50, "{erases} blocks were collected");
    assert!(
        stepped < bound && blocking > bound,
        "{stepped:?}, blocking {blocking:?}"
    );
    assert!(burst <= 64, "{burst} operations at once");
}

#[test]
fn a_long_trim_is_done_in_bounded_steps() {
    let geometry = Geometry {
        blocks_per_plane: 160,
        ..GEOMETRY
    };
    let mut rig = Rig::new(3, DiskConfig::new(Timing::none(), 2), geometry, None);
    let pages = rig.sectors.len() / SECTORS;
    assert!(pages > 8 * host::disk::STEP_PAGES);
    for first in (0..pages).step_by(64) {
        rig.submit(
            BlockOp::Write,
            first * SECTORS,
            64.min(pages - first) * SECTORS,
            false,
        );
        rig.settle();
    }
    let trim = rig.submit(BlockOp::Trim, 0, pages * SECTORS, false);
    let mut calls = 0;
    while rig.asked.contains_key(&trim) {
        assert!(rig.disk.deadline() == Some(rig.now) || !rig.media.is_empty());
        // A read that comes meanwhile is begun in the same call.
        let read = rig.submit(BlockOp::Read, calls * SECTORS, SECTORS, false);
        while rig.asked.contains_key(&read) {
            assert!(rig.media_step(), "it waits for the medium alone");
        }
        rig.time_step();
        calls += 1;
    }
    assert!(calls >= 4, "{calls} calls");
    rig.read_all();
}

// Bug: while long trims of pages that nobody had written were under way, no read was begun, for seconds. Cause: such pages
// need no room, and took all pages that a call begins. Fix: changes, reads and write-backs take turns within a call.
#[test]
fn a_long_trim_of_holes_holds_up_no_read() {
    let geometry = Geometry {
        blocks_per_plane: 160,
        ..GEOMETRY
    };
    let mut rig = Rig::new(3, DiskConfig::new(Timing::none(), 2), geometry, None);
    assert!(rig.sectors.len() / SECTORS > 8 * host::disk::STEP_PAGES);
    let trim = rig.submit(BlockOp::Trim, 0, rig.sectors.len(), false);
    let mut reads = 0;
    while rig.asked.contains_key(&trim) {
        let read = rig.submit(BlockOp::Read, reads * SECTORS, SECTORS, false);
        assert!(!rig.asked.contains_key(&read), "read {reads} waits for the trim");
        rig.time_step();
        reads += 1;
    }
    assert!(reads >= 4, "{reads} reads");
}

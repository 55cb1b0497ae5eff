//! A medium that loses what was not flushed, and a driver that plays a vSSD against a model of what it promised.

use base::device::execute;
use base::{Device, Instant, Lpn, MediaKind, MediaOp, Page, Pool, Rng, Version, VssdId};
use flash::{Data, Event, GcMode, Geometry, RecoverError, Request, Ssd, Timing, Vssd, VssdConfig, VssdError};

/// How many seeds a test tries: `SWITCHYARD_SEEDS` multiplies it.
pub fn seeds(count: u64) -> u64 {
    let factor = std::env::var("SWITCHYARD_SEEDS").map_or(1, |text| text.parse().expect("a number"));
    count * factor
}

pub mod group;

/// Sectors of a page.
pub const SECTORS: usize = 8;

/// A write that a crash may tear.
pub struct Volatile {
    pub offset: u64,
    pub bytes: Vec<u8>,
    done: bool,
}

/// The durable image and some of the rest: each write is there, torn at sectors, or not.
pub fn torn<'a>(durable: &[u8], writes: impl Iterator<Item = (u64, &'a [u8])>, rng: &mut Rng) -> Vec<u8> {
    let mut image = durable.to_vec();
    let style = rng.below(4);
    for (offset, bytes) in writes {
        let sector = bytes.len() / SECTORS;
        let whole = match style {
            0 => Some(true),
            1 => Some(rng.chance(0.5)),
            _ => [Some(true), Some(false), None][rng.below(3) as usize],
        };
        for (i, bytes) in bytes.chunks(sector).enumerate() {
            if whole.unwrap_or_else(|| rng.chance(0.5)) {
                let at = offset + (i * sector) as u64;
                image.write_at(at, bytes).expect("in range");
            }
        }
    }
    image
}

/// A model: the state that survives a crash, the state that reads see, and the states between.
pub struct Disk {
    pub durable: Vec<u8>,
    pub present: Vec<u8>,
    pub log: Vec<Volatile>,
    /// Flushes make nothing durable.
    pub lies: bool,
}

impl Disk {
    pub fn new(image: Vec<u8>) -> Self {
        Self {
            present: image.clone(),
            durable: image,
            log: Vec::new(),
            lies: false,
        }
    }

    /// See [`torn`].
    pub fn crash(&self, rng: &mut Rng) -> Vec<u8> {
        torn(
            &self.durable,
            self.log.iter().map(|write| (write.offset, &write.bytes[..])),
            rng,
        )
    }
}

/// Content that one write put into a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    Nothing,
    Nonce(u64),
}

/// The data owner's view of one logical page.
#[derive(Clone, Debug)]
pub struct Known {
    /// Submitted since the last certainty, the certain one first.
    pub history: Vec<(Version, Content)>,
    /// Index into `history` of the newest that was done.
    pub done: usize,
    /// Index of the newest that a flush promised.
    pub flushed: usize,
}

impl Known {
    pub fn certain(version: Version, content: Content) -> Self {
        Self {
            history: vec![(version, content)],
            done: 0,
            flushed: 0,
        }
    }
}

pub enum Asked {
    Read { lpn: u32, at_least: usize },
    Change { lpn: u32, index: usize },
    Flush { done: Vec<usize> },
    Checkpoint,
}

impl Asked {
    /// Judges an answer by what the owner of the data knows, who knows more from then on.
    pub fn answered(self, result: Result<Data, VssdError>, known: &mut [Known], pool: &Pool) {
        match self {
            Asked::Read { lpn, at_least } => {
                let found = match result.expect("nothing is damaged here") {
                    Data::Page { page, crc, version } => {
                        assert_eq!(page.crc(), crc);
                        (version, content(&page, lpn, pool))
                    }
                    Data::Zero { version } => (version, Content::Nothing),
                    Data::None => panic!("a read returns data"),
                };
                let newer = &known[lpn as usize].history[at_least..];
                assert!(
                    newer.contains(&found),
                    "read of {lpn}: {found:?} not in {newer:?}"
                );
            }
            Asked::Change { lpn, index } => {
                result.expect("there is room");
                let known = &mut known[lpn as usize];
                known.done = known.done.max(index);
            }
            Asked::Flush { done } => {
                result.expect("the medium does not fail");
                for (known, done) in known.iter_mut().zip(done) {
                    known.flushed = known.flushed.max(done);
                }
            }
            Asked::Checkpoint => {
                result.expect("the medium does not fail");
            }
        }
    }
}

pub struct Rig {
    pub vssd: Vssd,
    pub config: VssdConfig,
    pub disk: Disk,
    pub pool: Pool,
    pub now: Instant,
    pub rng: Rng,
    known: Vec<Known>,
    asked: base::Map<u64, Asked>,
    next_tag: u64,
    nonce: u64,
    in_flight: Vec<MediaOp>,
    /// Per write of the log: the flush under way covers it.
    flush_cover: Vec<bool>,
    pub gc_done: u64,
    pub gc_forced: u64,
    pub done: u64,
}

pub fn geometry(channels: u32, chips: u32, blocks: u32, pages: u32) -> Geometry {
    Geometry {
        channels,
        chips_per_channel: chips,
        planes_per_chip: 1,
        blocks_per_plane: blocks,
        pages_per_block: pages,
    }
}

/// A formatted image with one vSSD on all channels, with as many logical pages as fit.
pub fn image(geometry: Geometry, page_bytes: usize) -> (Vec<u8>, VssdConfig) {
    let mut medium = vec![0; Ssd::bytes_needed(&geometry, page_bytes) as usize];
    Ssd::format(&mut medium, geometry, page_bytes, [1; 16]).expect("formats");
    let mut ssd = Ssd::open(&mut medium, page_bytes, 0).expect("opens");
    let pages = geometry.logical_pages_max(geometry.channels);
    let entry = ssd
        .create(VssdId(1), geometry.channels, pages, vec![])
        .expect("fits")
        .clone();
    ssd.store(&mut medium).expect("in range");
    let config = VssdConfig::new(&entry, &geometry, page_bytes);
    (medium, config)
}

pub fn fill(page: &Page, lpn: u32, nonce: u64) {
    page.with_mut(|bytes| {
        let mut rng = Rng::new(nonce ^ u64::from(lpn) << 40);
        for word in bytes.chunks_exact_mut(8) {
            word.copy_from_slice(&rng.next_u64().to_le_bytes());
        }
        bytes[..8].copy_from_slice(&nonce.to_le_bytes());
    });
}

pub fn content(page: &Page, lpn: u32, pool: &Pool) -> Content {
    let nonce = page.with(|bytes| u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")));
    let expected = pool.alloc().expect("a page for the check");
    fill(&expected, lpn, nonce);
    let same = page.with(|found| expected.with(|bytes| bytes == found));
    assert!(same, "a page is whole");
    Content::Nonce(nonce)
}

impl Rig {
    pub fn new(geometry: Geometry, page_bytes: usize, seed: u64, change: impl Fn(&mut VssdConfig)) -> Self {
        let (medium, mut config) = image(geometry, page_bytes);
        change(&mut config);
        let pool = Pool::new(4096, page_bytes / SECTORS);
        let vssd = Vssd::create(config.clone(), pool.clone());
        let pages = config.logical_pages as usize;
        Self {
            vssd,
            config,
            disk: Disk::new(medium),
            pool,
            now: Instant::ZERO,
            rng: Rng::new(seed),
            known: vec![Known::certain(Version::NONE, Content::Nothing); pages],
            asked: base::Map::new(),
            next_tag: 0,
            nonce: 0,
            in_flight: Vec::new(),
            flush_cover: Vec::new(),
            gc_done: 0,
            gc_forced: 0,
            done: 0,
        }
    }

    fn tag(&mut self, asked: Asked) -> u64 {
        self.next_tag += 1;
        self.asked.insert(self.next_tag, asked);
        self.next_tag
    }

    fn next_version(&self, lpn: u32) -> Version {
        let newest = self.known[lpn as usize].history.last().expect("never empty").0;
        assert_eq!(
            self.vssd.version(Lpn(lpn)),
            newest,
            "the newest accepted version is known"
        );
        newest.next(base::NodeId(3), 0)
    }

    fn change(&mut self, lpn: u32, version: Version, content: Content) -> u64 {
        let known = &mut self.known[lpn as usize];
        known.history.push((version, content));
        let index = known.history.len() - 1;
        self.tag(Asked::Change { lpn, index })
    }

    pub fn write(&mut self, lpn: u32) {
        let version = self.next_version(lpn);
        self.nonce += 1;
        let nonce = self.nonce;
        let page = self.pool.alloc().expect("the pool is large");
        fill(&page, lpn, nonce);
        let tag = self.change(lpn, version, Content::Nonce(nonce));
        let crc = page.crc();
        self.vssd.submit(
            self.now,
            Request::Write {
                tag,
                lpn: Lpn(lpn),
                version,
                crc,
                page,
            },
        );
        self.drain();
    }

    pub fn zero(&mut self, lpn: u32) {
        let version = self.next_version(lpn);
        let tag = self.change(lpn, version, Content::Nothing);
        self.vssd.submit(
            self.now,
            Request::Zero {
                tag,
                lpn: Lpn(lpn),
                version,
            },
        );
        self.drain();
    }

    pub fn read(&mut self, lpn: u32) {
        let at_least = self.known[lpn as usize].history.len() - 1;
        let tag = self.tag(Asked::Read { lpn, at_least });
        self.vssd.submit(self.now, Request::Read { tag, lpn: Lpn(lpn) });
        self.drain();
    }

    pub fn flush(&mut self) {
        let done = self.known.iter().map(|known| known.done).collect();
        let tag = self.tag(Asked::Flush { done });
        self.vssd.submit(self.now, Request::Flush { tag });
        self.drain();
    }

    pub fn checkpoint(&mut self) {
        let tag = self.tag(Asked::Checkpoint);
        self.vssd.checkpoint(self.now, tag);
        self.drain();
    }

    pub fn start_gc(&mut self, ratio: f64) {
        self.vssd.start_gc(self.now, ratio);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(event) = self.vssd.poll() {
            match event {
                Event::Media(op) => {
                    if op.kind == MediaKind::Write {
                        let bytes = op.pages[0].with(<[u8]>::to_vec);
                        assert!(
                            !self.disk.log.iter().any(|w| w.offset == op.offset && !w.done),
                            "two writes of one place are not in flight"
                        );
                        self.disk.log.push(Volatile {
                            offset: op.offset,
                            bytes,
                            done: false,
                        });
                    }
                    // A flush covers what is done when it is issued.
                    if op.kind == MediaKind::Flush {
                        self.flush_cover = self.disk.log.iter().map(|w| w.done).collect();
                    }
                    self.in_flight.push(op);
                }
                Event::Done { tag, result } => self.answered(tag, result),
                Event::GcDone => self.gc_done += 1,
                Event::GcForced => self.gc_forced += 1,
                Event::Checked { .. } => unreachable!("nobody asked"),
                Event::Borrow | Event::Return => unreachable!("its channels are its own"),
            }
        }
    }

    fn answered(&mut self, tag: u64, result: Result<Data, VssdError>) {
        self.done += 1;
        let asked = self.asked.remove(&tag).expect("asked once");
        asked.answered(result, &mut self.known, &self.pool);
    }

    /// Lets the medium do one of the operations it has, or time pass; false when there is nothing to do.
    pub fn step(&mut self) -> bool {
        if self.in_flight.is_empty() {
            let Some(deadline) = self.vssd.deadline() else {
                return false;
            };
            self.now = self.now.max(deadline);
            self.vssd.tick(self.now);
            self.drain();
            return true;
        }
        let index = self.rng.below(self.in_flight.len() as u64) as usize;
        let op = self.in_flight.swap_remove(index);
        match op.kind {
            MediaKind::Write => {
                let write = self
                    .disk
                    .log
                    .iter_mut()
                    .find(|w| w.offset == op.offset && !w.done);
                write.expect("it was issued").done = true;
            }
            MediaKind::Flush => self.flush_done(),
            _ => {}
        }
        let done = execute(&mut self.disk.present, op);
        assert_eq!(done.result, Ok(()), "in range");
        self.now += base::Duration::from_micros(self.rng.below(20));
        self.vssd.media_done(self.now, done);
        self.drain();
        true
    }

    fn flush_done(&mut self) {
        let cover = core::mem::take(&mut self.flush_cover);
        let mut keep = Vec::new();
        for (index, write) in core::mem::take(&mut self.disk.log).into_iter().enumerate() {
            if cover.get(index) == Some(&true) && !self.disk.lies {
                self.disk
                    .durable
                    .write_at(write.offset, &write.bytes)
                    .expect("in range");
            } else {
                keep.push(write);
            }
        }
        self.disk.log = keep;
    }

    /// Until nothing is under way.
    pub fn settle(&mut self) {
        let mut steps = 0;
        while self.step() {
            steps += 1;
            assert!(steps < 10_000_000, "it comes to rest: {:?}", self.vssd.stats());
        }
        assert!(
            self.asked.is_empty(),
            "every request is answered: {:?}",
            self.vssd.stats()
        );
    }

    /// Power goes, comes back, and the image is what the medium kept.
    pub fn crash(&mut self) {
        let image = self.disk.crash(&mut self.rng);
        self.restart(image).expect("a crash is recoverable");
    }

    /// Recovers from an image and checks every page against what was promised.
    pub fn restart(&mut self, image: Vec<u8>) -> Result<flash::RecoveryReport, RecoverError> {
        self.disk = Disk {
            lies: self.disk.lies,
            ..Disk::new(image)
        };
        self.in_flight.clear();
        self.asked.clear();
        self.flush_cover.clear();
        let (vssd, report) = Vssd::recover(self.config.clone(), self.pool.clone(), &self.disk.present)?;
        self.vssd = vssd;
        assert!(report.damaged.is_empty(), "a crash damages nothing: {report:?}");
        self.drain();
        for lpn in 0..self.known.len() as u32 {
            self.check_recovered(lpn);
        }
        Ok(report)
    }

    /// Recovers from an image, checks every page as after a restart, and goes on as if that had not been.
    pub fn probe(&mut self, image: Vec<u8>) {
        let known = self.known.clone();
        let recovered = Vssd::recover(self.config.clone(), self.pool.clone(), &image);
        let (vssd, report) = recovered.expect("a crash is recoverable");
        assert!(report.damaged.is_empty(), "a crash damages nothing: {report:?}");
        let vssd = core::mem::replace(&mut self.vssd, vssd);
        let disk = core::mem::replace(&mut self.disk, Disk::new(image));
        let events: Vec<Event> = core::iter::from_fn(|| self.vssd.poll()).collect();
        for lpn in 0..self.known.len() as u32 {
            self.check_recovered(lpn);
        }
        drop(events);
        (self.known, self.vssd, self.disk) = (known, vssd, disk);
    }

    /// Recovers from an image that was tampered with: every page is the newest, or damaged. Returns the number of
    /// damaged ones, `None` when recovery refuses.
    pub fn probe_tampered(&mut self, image: Vec<u8>) -> Option<u32> {
        let recovered = Vssd::recover(self.config.clone(), self.pool.clone(), &image);
        let (vssd, _) = recovered.ok()?;
        let vssd = core::mem::replace(&mut self.vssd, vssd);
        let disk = core::mem::replace(&mut self.disk, Disk::new(image));
        let events: Vec<Event> = core::iter::from_fn(|| self.vssd.poll()).collect();
        let mut damaged = 0;
        for lpn in 0..self.known.len() as u32 {
            let newest = *self.known[lpn as usize].history.last().expect("never empty");
            match self.read_now(lpn) {
                Ok(found) => assert_eq!(found, newest, "page {lpn} is stale or wrong"),
                Err(error) => {
                    assert_eq!(error, VssdError::Damaged);
                    damaged += 1;
                }
            }
        }
        drop(events);
        (self.vssd, self.disk) = (vssd, disk);
        Some(damaged)
    }

    fn check_recovered(&mut self, lpn: u32) {
        let version = self.vssd.version(Lpn(lpn));
        let found = self.read_now(lpn).expect("a crash damages nothing");
        assert_eq!(found.0, version);
        let known = &mut self.known[lpn as usize];
        let allowed = &known.history[known.flushed..];
        assert!(
            allowed.contains(&found),
            "page {lpn}: {found:?} is none of {allowed:?}"
        );
        *known = Known::certain(found.0, found.1);
    }

    fn read_now(&mut self, lpn: u32) -> Result<(Version, Content), VssdError> {
        self.vssd.submit(
            self.now,
            Request::Read {
                tag: u64::MAX,
                lpn: Lpn(lpn),
            },
        );
        let mut found = None;
        while found.is_none() {
            while let Some(event) = self.vssd.poll() {
                match event {
                    Event::Done {
                        tag: u64::MAX,
                        result,
                    } => found = Some(result),
                    Event::Media(op) if op.kind == MediaKind::Read => {
                        let done = execute(&mut self.disk.present, op);
                        self.vssd.media_done(self.now, done);
                    }
                    other => panic!("only reads now: {other:?}"),
                }
            }
            if found.is_none() {
                self.now = self.vssd.deadline().expect("the read is under way");
                self.vssd.tick(self.now);
            }
        }
        Ok(match found.expect("just set")? {
            Data::Page { page, version, .. } => (version, content(&page, lpn, &self.pool)),
            Data::Zero { version } => (version, Content::Nothing),
            Data::None => panic!("a read returns data"),
        })
    }

    /// One random request.
    pub fn random_request(&mut self, zeros: f64) {
        let pages = self.known.len() as u64;
        // Half of the changes go to an eighth of the pages.
        let bound = if self.rng.chance(0.5) {
            pages.div_ceil(8)
        } else {
            pages
        };
        let lpn = self.rng.below(bound) as u32;
        match self.rng.unit() {
            x if x < zeros => self.zero(lpn),
            x if x < 0.75 => self.write(lpn),
            x if x < 0.9 => self.read(lpn),
            x if x < 0.97 => self.flush(),
            x if x < 0.99 => {
                let ratio = 0.05 + self.rng.unit() * 0.3;
                self.start_gc(ratio);
            }
            _ => self.checkpoint(),
        }
    }

    /// Requests and progress, at random.
    pub fn random_run(&mut self, requests: u32, zeros: f64) {
        for _ in 0..requests {
            self.random_request(zeros);
            while self.asked.len() > 16 || self.rng.chance(0.6) {
                if !self.step() {
                    break;
                }
            }
            assert!(
                self.asked.len() < 64,
                "requests are answered: {:?}",
                self.vssd.stats()
            );
        }
    }
}

/// The usual small vSSD: collection never rests.
pub fn tiny(seed: u64) -> Rig {
    let mut rng = Rng::new(seed);
    let mode = [
        GcMode::Blocking,
        GcMode::Preemptible { step_pages: 2 },
        GcMode::Free,
    ][rng.below(3) as usize];
    let profile = ["none", "p-ssd"][rng.below(2) as usize];
    let separate = rng.chance(0.7);
    let every = [50, 300, u64::MAX][rng.below(3) as usize];
    let (channels, chips) = [(1, 1), (1, 2), (2, 1)][rng.below(3) as usize];
    let page_bytes = [128, 128, 512][rng.below(3) as usize];
    let pages = [4, 5, 8][rng.below(3) as usize];
    Rig::new(geometry(channels, chips, 14, pages), page_bytes, seed, |config| {
        config.gc = mode;
        config.timing = Timing::built_in(profile).expect("built in");
        config.gc_frontier_separate = separate;
        config.checkpoint_every_programs = every;
        config.wear_gap_max = 4;
    })
}

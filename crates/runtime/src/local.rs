//! Volumes of one machine: on memory, a file or a block device, served by the cores themselves, or on a software-defined
//! SSD ([`host::Disk`]), which one core drives as one of its hosts.
//!
//! A volume is shared by all cores of a target; each core has a [`Local`] of its own, which executes requests: those to
//! memory at once, those to files through the core's ring. What overlaps in time is not ordered, as block devices have
//! it.
//!
//! Invariants:
//! - Every request is answered exactly once.
//! - After a failed write or flush of a file nothing more is written to it (latched): what the kernel dropped cannot be
//!   told. Reads go on.

use base::device::Silence;
use base::event::Kind;
use base::limits::PAGE_BYTES;
use base::time::earliest;
use base::{
    BlockError, BlockOp, BlockReply, BlockRequest, Device, Extent, Instant, MediaDone, MediaError, MediaKind,
    MediaOp, Pages, Queue, Slab, VolumeId,
};
use std::collections::VecDeque;
use std::path::Path;
use std::{io, mem};
use wire::Export;
use wire::nvme::Allocation;

use crate::counters::Counters;
use crate::medium::{Media, VolumeQueue, count, count_end};
use crate::sync::{Arc, AtomicBool, Ordering::Relaxed};
use crate::{HostSpec, ImageOpen, MediaOpenError, MediaWarning, Medium};
use host::{Disk, DiskConfig, DiskEntry};

/// A volume, before it is served.
#[derive(Debug)]
pub struct LocalVolume {
    export: Export,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Shared(Medium),
    Disk(Box<(Medium, DiskEntry, DiskConfig)>),
}

/// A volume as cores share it.
#[derive(Debug)]
pub(crate) struct Volume {
    export: Export,
    store: Store,
}

#[derive(Debug)]
enum Store {
    /// With what a failed write latches.
    Shared(Medium, Arc<AtomicBool>),
    /// The core's host of this number.
    Host(usize),
}

impl Volume {
    /// Answers a status. Every write that was acknowledged is done at the medium.
    fn extents(&self, request: BlockRequest) -> Pages {
        let Store::Shared(medium, _) = &self.store else {
            unreachable!("a request for a host goes to its host");
        };
        Extent::fill(&request.pages[0], request.range, |offset, length| {
            Some(medium.extent_at(offset, length))
        });
        request.pages
    }
}

impl LocalVolume {
    /// A volume of zeros in memory, rounded down to whole pages. It ends with the process.
    ///
    /// # Errors
    /// When the system has no such memory.
    pub fn memory(name: &str, bytes: u64) -> io::Result<Self> {
        Ok(Self::new(name, "memory", Medium::memory(bytes)?))
    }

    /// A volume on the file or block device at `path`. Clients learn nothing of the path.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn image(name: &str, path: &Path, open: ImageOpen) -> Result<Self, MediaOpenError> {
        let volume = Self::new(name, "image", Medium::open_image(path, open)?);
        Ok(match open {
            ImageOpen::ToRead => volume.read_only(),
            ImageOpen::Existing | ImageOpen::Create { .. } => volume,
        })
    }

    /// A volume on `medium`, all of it.
    pub fn new(name: &str, description: &str, medium: Medium) -> Self {
        Self {
            export: export(name, description, medium.capacity_bytes()),
            source: Source::Shared(medium),
        }
    }

    /// A software-defined SSD: `entry` is what [`DiskEntry::open`] found on `medium`.
    pub fn disk(name: &str, description: &str, medium: Medium, entry: DiskEntry, config: DiskConfig) -> Self {
        Self {
            export: export(name, description, entry.size_bytes()),
            source: Source::Disk(Box::new((medium, entry, config))),
        }
    }

    /// The same volume for clients that must not change it.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.export.read_only = true;
        self
    }

    /// As clients see it.
    pub fn export(&self) -> &Export {
        &self.export
    }

    /// Tells how much of it holds data, at any time.
    pub fn allocation(&self) -> Allocation {
        match &self.source {
            Source::Shared(medium) => {
                let medium = medium.clone();
                Allocation::new(move || medium.data_bytes())
            }
            Source::Disk(disk) => {
                let pages = disk.1.data_pages();
                Allocation::new(move || u64::from(pages.load(Relaxed)) * PAGE_BYTES as u64)
            }
        }
    }

    /// Bytes of an image behind its last whole sector, which nobody is served.
    pub fn rest_bytes(&self) -> u64 {
        match &self.source {
            Source::Shared(Medium::File(file)) => file.rest_bytes(),
            Source::Shared(Medium::Memory(_)) | Source::Disk(_) => 0,
        }
    }

    /// What a user should know about its medium.
    pub fn warning(&self) -> Option<MediaWarning> {
        match &self.source {
            Source::Shared(medium) => medium.warning(),
            Source::Disk(disk) => disk.0.warning(),
        }
    }
}

fn export(name: &str, description: &str, size_bytes: u64) -> Export {
    Export {
        name: name.into(),
        description: description.into(),
        volume: VolumeId(0),
        size_bytes,
        read_only: false,
    }
}

/// Numbers volumes by their place, for [`Local`] to find them; disks become hosts, in their order.
pub(crate) fn numbered(volumes: Vec<LocalVolume>) -> (Arc<[Volume]>, Vec<HostSpec>) {
    let mut hosts = Vec::new();
    let number = |(volume, id): (LocalVolume, u32)| {
        let mut export = volume.export;
        export.volume = VolumeId(id);
        let store = match volume.source {
            Source::Shared(medium) => Store::Shared(medium, Arc::default()),
            Source::Disk(disk) => {
                hosts.push(disk_host(*disk));
                Store::Host(hosts.len() - 1)
            }
        };
        Volume { export, store }
    };
    let volumes = volumes.into_iter().zip(0..).map(number).collect();
    (volumes, hosts)
}

fn disk_host((medium, entry, config): (Medium, DiskEntry, DiskConfig)) -> HostSpec {
    HostSpec {
        bind: None,
        medium: Some(medium),
        build: Box::new(move |site| {
            let medium = site.medium.expect("the disk was given its medium");
            Ok(Box::new(Disk::start(
                site.now,
                &entry,
                config,
                site.pool.clone(),
                medium,
            )?))
        }),
        listen: Vec::new(),
    }
}

/// True if a core that serves these needs a ring.
pub(crate) fn need_ring(volumes: &[Volume]) -> bool {
    let needs_ring =
        |volume: &Volume| matches!(&volume.store, Store::Shared(medium, _) if medium.needs_ring());
    volumes.iter().any(needs_ring)
}

/// A request at a file.
struct Pending {
    client: u32,
    tag: u64,
    /// Its change of the volume is flushed before it is answered.
    flushes: bool,
}

/// The news that a core has told of the medium of a volume.
#[derive(Debug, Default)]
struct News {
    is_latched: bool,
    silence: Silence,
}

impl News {
    /// An operation on `volume` has ended. The first core that learns of a latch tells of the latch.
    #[inline]
    fn hear(&mut self, volume: &Volume, done: &MediaDone, tell: &impl Fn(Kind)) {
        if self.silence.begins(done) {
            let (volume, operation) = (volume.export.volume, done.kind.into());
            tell(Kind::VolumeSilent { volume, operation });
        }
        if let Err(error) = done.result {
            self.hear_failure(volume, done, error, tell);
        }
    }

    #[cold]
    fn hear_failure(&mut self, volume: &Volume, done: &MediaDone, error: MediaError, tell: &impl Fn(Kind)) {
        let Store::Shared(_, latch) = &volume.store else {
            return;
        };
        if latch.load(Relaxed) && !mem::replace(&mut self.is_latched, true) && error != MediaError::Latched {
            let (volume, operation) = (volume.export.volume, done.kind.into());
            tell(Kind::VolumeLatched { volume, operation });
        }
    }
}

/// Executes requests of one core.
pub(crate) struct Local {
    volumes: Arc<[Volume]>,
    /// The media of the volumes, `None` for those of hosts.
    queues: Vec<Option<VolumeQueue>>,
    news: Vec<News>,
    pending: Slab<Pending>,
    done: VecDeque<BlockReply>,
}

impl Local {
    pub fn new(volumes: Arc<[Volume]>, media: &Media) -> Self {
        let queue = |volume: &Volume| match &volume.store {
            Store::Shared(medium, latch) => Some(media.volume(medium, latch)),
            Store::Host(_) => None,
        };
        Self {
            queues: volumes.iter().map(queue).collect(),
            news: volumes.iter().map(|_| News::default()).collect(),
            volumes,
            pending: Slab::with_capacity(1024),
            done: VecDeque::with_capacity(1024),
        }
    }

    /// What clients can attach to.
    pub fn exports(&self) -> Vec<Export> {
        self.volumes.iter().map(|volume| volume.export.clone()).collect()
    }

    /// The host of this core that is to execute a request.
    pub fn host_of(&self, request: &BlockRequest) -> Option<usize> {
        let volume = self.volumes.get(request.volume.0 as usize)?;
        match volume.store {
            Store::Host(index) => Some(index),
            _ => None,
        }
    }

    /// Executes a request and returns its answer, or begins to execute it. A request for a host goes to its host.
    pub fn submit(&mut self, now: Instant, request: BlockRequest, counters: &Counters) -> Option<BlockReply> {
        let (client, tag, index) = (request.client, request.tag, request.volume.0 as usize);
        let reply = |result| Some(BlockReply { client, tag, result });
        let Some(queue) = self.queues.get_mut(index) else {
            return reply(Err(BlockError::NoVolume));
        };
        let queue = queue.as_mut().expect("a request for a host goes to its host");
        if request.op == BlockOp::Status {
            return reply(Ok(self.volumes[index].extents(request)));
        }
        let flushes = request.fua && matches!(request.op, BlockOp::Trim | BlockOp::WriteZeroes);
        let op = operation(request);
        count(&op, counters);
        match queue.execute(op) {
            Ok(done) => reply(result(done)),
            Err(mut op) => {
                op.id = u64::from(self.pending.insert(Pending { client, tag, flushes }));
                queue.submit(now, op);
                None
            }
        }
    }

    /// Takes what the media are done with, before [`Local::next_done`] gives it out.
    pub fn collect(&mut self, now: Instant, counters: &Counters, tell: impl Fn(Kind)) {
        for (index, queue) in self.queues.iter_mut().enumerate() {
            let Some(queue) = queue else { continue };
            while let Some(done) = queue.poll(now) {
                count_end(&done, counters);
                self.news[index].hear(&self.volumes[index], &done, &tell);
                let key = done.id as u32;
                if done.result.is_ok() && mem::take(&mut self.pending[key].flushes) {
                    queue.submit(now, MediaOp::flush(done.id));
                    continue;
                }
                let Pending { client, tag, .. } = self.pending.remove(key);
                let result = result(done);
                self.done.push_back(BlockReply { client, tag, result });
            }
        }
    }

    /// When to [`collect`](Local::collect) although the ring tells of nothing.
    pub fn deadline(&self) -> Option<Instant> {
        let queues = self.queues.iter().flatten();
        queues.map(Queue::deadline).fold(None, earliest)
    }

    /// The next request that is done.
    pub fn next_done(&mut self) -> Option<BlockReply> {
        self.done.pop_front()
    }
}

/// A request as the medium of its volume takes it. A trim or zeroing with FUA is flushed for: it has no such flag.
fn operation(request: BlockRequest) -> MediaOp {
    let kind = match request.op {
        BlockOp::Read => MediaKind::Read,
        BlockOp::Write if request.fua => MediaKind::WriteThrough,
        BlockOp::Write => MediaKind::Write,
        BlockOp::Flush => MediaKind::Flush,
        BlockOp::Trim => MediaKind::Discard,
        BlockOp::WriteZeroes => MediaKind::Zero,
        BlockOp::Status => unreachable!("a status is no operation of the medium's queue"),
    };
    MediaOp {
        id: 0,
        kind,
        offset: request.range.offset(),
        length: request.range.length() as u32,
        pages: request.pages,
    }
}

/// The answer to a request, from the end of its operation.
fn result(done: MediaDone) -> Result<Pages, BlockError> {
    match done.result {
        Ok(()) if done.kind == MediaKind::Read => Ok(done.pages),
        Ok(()) => Ok(Pages::new()),
        Err(MediaError::NoSpace) => Err(BlockError::NoSpace),
        Err(_) => Err(BlockError::Io),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::limits::SECTOR_BYTES;
    use base::{Pool, SectorRange};

    fn request(op: BlockOp, offset: u64, length: u64, pages: Pages) -> BlockRequest {
        let range = SectorRange::new(offset, length, u64::MAX);
        BlockRequest {
            client: 1,
            tag: offset,
            volume: VolumeId(0),
            op,
            range: range.unwrap_or(SectorRange::EMPTY),
            fua: offset.is_multiple_of(3),
            bulk: false,
            pages,
        }
    }

    fn run(media: &mut Media, local: &mut Local, request: BlockRequest) -> Pages {
        let counters = Counters::default();
        let mut reply = local.submit(Instant::ZERO, request, &counters);
        loop {
            if let Some(reply) = reply {
                return reply.result.expect("a sound medium");
            }
            media.push(&counters);
            media.reap(Instant::ZERO, &counters);
            local.collect(Instant::ZERO, &counters, |_| {});
            reply = local.next_done();
        }
    }

    /// Writes, trims and zeroes at any sector agree with a model, on a file and in memory.
    #[test]
    fn any_range_of_sectors_is_written_zeroed_and_read_back() {
        const BYTES: usize = 64 * PAGE_BYTES;
        let directory = tempfile::tempdir().expect("a temporary directory");
        let image = vec![0; BYTES + 5 * SECTOR_BYTES + 99];
        std::fs::write(directory.path().join("v"), image).expect("a new file");
        let file = LocalVolume::image("f", &directory.path().join("v"), ImageOpen::Existing).expect("a file");
        let memory = LocalVolume::memory("m", BYTES as u64).expect("memory");
        for volume in [file, memory] {
            let bytes = volume.export().size_bytes as usize;
            let pool = Pool::new(256, SECTOR_BYTES);
            let mut media = Media::new(&pool, true, base::device::LIMIT).expect("a ring");
            let mut local = Local::new(numbered(vec![volume]).0, &media);
            let mut model = vec![0u8; bytes];
            let mut random = base::Rng::new(7);
            for round in 1..400u32 {
                let first = random.below(bytes as u64 / 512) as usize * 512;
                let length = (random.between(1, 40) as usize * 512).min(bytes - first);
                let op = match random.below(4) {
                    0 => BlockOp::Trim,
                    1 => BlockOp::WriteZeroes,
                    _ => BlockOp::Write,
                };
                let mut asked = request(op, first as u64, length as u64, Pages::new());
                let fill = if op == BlockOp::Write { round as u8 | 1 } else { 0 };
                if op == BlockOp::Write {
                    asked.pages = asked
                        .range
                        .pages()
                        .map(|_| {
                            let page = pool.alloc().expect("a page");
                            page.with_mut(|bytes| bytes.fill(fill));
                            page
                        })
                        .collect();
                }
                run(&mut media, &mut local, asked);
                model[first..first + length].fill(fill);
            }
            run(
                &mut media,
                &mut local,
                request(BlockOp::Flush, 0, 0, Pages::new()),
            );
            let pages = run(
                &mut media,
                &mut local,
                request(BlockOp::Read, 512, bytes as u64 - 512, Pages::new()),
            );
            for (index, page) in pages.iter().enumerate() {
                let skip = if index == 0 { 512 } else { 0 };
                page.with(|bytes| {
                    let expected = &model[index * PAGE_BYTES..];
                    let end = expected.len().min(PAGE_BYTES);
                    assert!(bytes[skip..end] == expected[skip..end], "page {index}");
                });
            }
            let (first, trimmed) = (4 * PAGE_BYTES - 512, 32 * PAGE_BYTES + 1024);
            let trim = request(BlockOp::Trim, first as u64, trimmed as u64, Pages::new());
            run(&mut media, &mut local, trim);
            model[first..first + trimmed].fill(0);
            let page = pool.alloc().expect("a page");
            let status = request(BlockOp::Status, 512, bytes as u64 - 512, Pages::from_buf([page]));
            let pages = run(&mut media, &mut local, status);
            let (mut at, mut hole_bytes) = (512, 0);
            for extent in pages[0].with(|bytes| Extent::read(bytes).collect::<Vec<_>>()) {
                let end = at + extent.length as usize;
                let is_zero = model[at..end].iter().all(|&byte| byte == 0);
                assert!(is_zero || !extent.is_hole, "{extent:?} at {at}");
                hole_bytes += if extent.is_hole { end - at } else { 0 };
                at = end;
            }
            assert_eq!(at, bytes);
            assert!(hole_bytes >= 32 * PAGE_BYTES, "{hole_bytes}");
        }
    }

    /// The end of a pipe takes no write, and answers no read: a medium that fails and hangs.
    #[test]
    fn a_volume_tells_once_that_its_medium_failed_and_once_that_it_does_not_answer() {
        let (reader, _writer) = io::pipe().expect("a pipe");
        let file = std::fs::File::from(std::os::fd::OwnedFd::from(reader));
        let medium = os::MediaFile::of_capacity(file, 1 << 16).into();
        let pool = Pool::new(16, SECTOR_BYTES);
        let mut media = Media::new(&pool, true, base::device::LIMIT).expect("a ring");
        let mut local = Local::new(numbered(vec![LocalVolume::new("p", "a pipe", medium)]).0, &media);
        let (counters, told) = (Counters::default(), std::cell::RefCell::new(Vec::new()));
        let mut ask = |op, at: Instant| {
            let pages = (op == BlockOp::Write).then(|| pool.alloc_zeroed().expect("a page is left"));
            let asked = request(op, 4096, 4096, pages.into_iter().collect());
            let mut reply = local.submit(Instant::ZERO, asked, &counters);
            while reply.is_none() {
                media.push(&counters);
                media.reap(at, &counters);
                local.collect(at, &counters, |kind| told.borrow_mut().push(kind));
                reply = local.next_done();
            }
            reply.expect("the loop ends with one").result
        };
        let late = Instant::ZERO + base::device::LIMIT;
        for op in [BlockOp::Write, BlockOp::Write, BlockOp::Read, BlockOp::Read] {
            let at = if op == BlockOp::Read { late } else { Instant::ZERO };
            assert_eq!(ask(op, at).err(), Some(BlockError::Io), "{op:?}");
        }
        let volume = VolumeId(0);
        let latched = Kind::VolumeLatched {
            volume,
            operation: base::event::MediumOperation::Write,
        };
        let silent = Kind::VolumeSilent {
            volume,
            operation: base::event::MediumOperation::Read,
        };
        assert_eq!(told.into_inner(), [latched, silent]);
    }
}

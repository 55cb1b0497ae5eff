//! Volumes of one machine: on memory, a file or a block device, served by the cores themselves, or on a software-defined
//! SSD ([`host::Disk`]), which one core drives as one of its hosts.
//!
//! A volume is shared by all cores of a target; each core has a [`Local`] of its own, which executes requests: those to
//! memory at once, those to files through a ring. What overlaps in time is not ordered, as block devices have it.
//!
//! Invariants:
//! - Every request is answered exactly once.
//! - After a failed write or flush of a file nothing more is written to it (latched): what the kernel dropped cannot be
//!   told. Reads go on.

mod file;
mod memory;

use base::limits::{PAGE_BYTES, SECTOR_BYTES};
use base::{BlockError, BlockOp, BlockReply, BlockRequest, Page, Pages, Pool, VolumeId};
use file::{FileRing, FileStore};
use memory::Region;
use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::Arc;
use wire::nbd::Export;

use crate::counters::Counters;
use crate::{HostSpec, MediaFile, MediaOpenError};
use host::{Disk, DiskConfig, DiskEntry};

/// A volume, before it is served.
#[derive(Debug)]
pub struct LocalVolume {
    export: Export,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Shared(Store),
    Disk(Box<(MediaFile, DiskEntry, DiskConfig)>),
}

/// A volume as cores share it.
#[derive(Debug)]
pub(crate) struct Volume {
    export: Export,
    store: Store,
}

#[derive(Debug)]
enum Store {
    Memory(Arc<Region>),
    File(FileStore),
    /// The core's host of this number.
    Host(usize),
}

impl LocalVolume {
    /// A volume of zeros in memory, rounded down to whole pages. It ends with the process.
    ///
    /// # Errors
    /// When the system has no such memory.
    pub fn memory(name: &str, bytes: u64) -> io::Result<Self> {
        let region = Region::new(bytes / PAGE_BYTES as u64 * PAGE_BYTES as u64)?;
        let size_bytes = region.len() as u64;
        Ok(Self {
            export: export(name, "memory", size_bytes),
            source: Source::Shared(Store::Memory(Arc::new(region))),
        })
    }

    /// A volume on the file or block device at `path`, taken for this process alone; `bytes` and `create` as in
    /// [`crate::MediaFile::open`].
    ///
    /// # Errors
    /// When it cannot be opened, or is too small.
    pub fn file(name: &str, path: &Path, bytes: u64, create: bool) -> Result<Self, MediaOpenError> {
        let (store, size_bytes) = FileStore::open(path, bytes, create)?;
        Ok(Self {
            export: export(name, &path.display().to_string(), size_bytes),
            source: Source::Shared(Store::File(store)),
        })
    }

    /// A software-defined SSD: `entry` is what [`DiskEntry::open`] found on `medium`.
    pub fn disk(
        name: &str,
        description: &str,
        medium: MediaFile,
        entry: DiskEntry,
        config: DiskConfig,
    ) -> Self {
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

    /// What a user should know about its medium.
    pub fn warning(&self) -> Option<crate::MediaWarning> {
        match &self.source {
            Source::Shared(Store::File(file)) => file.warning(),
            Source::Shared(_) => None,
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
            Source::Shared(store) => store,
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

fn disk_host((medium, entry, config): (MediaFile, DiskEntry, DiskConfig)) -> HostSpec {
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
        nbd: Vec::new(),
        nvme: None,
    }
}

/// Executes requests of one core.
pub(crate) struct Local {
    volumes: Arc<[Volume]>,
    /// Handles to the pages of volumes in memory.
    windows: Vec<Option<Pool>>,
    ring: Option<FileRing>,
    done: VecDeque<BlockReply>,
}

impl Local {
    pub fn new(volumes: Arc<[Volume]>, pool: &Pool) -> io::Result<Self> {
        let window = |volume: &Volume| match &volume.store {
            Store::Memory(region) => Some(Region::window(region)),
            Store::File(_) | Store::Host(_) => None,
        };
        let windows = volumes.iter().map(window).collect();
        let files = volumes
            .iter()
            .any(|volume| matches!(volume.store, Store::File(_)));
        Ok(Self {
            windows,
            ring: if files {
                Some(FileRing::new(pool.clone())?)
            } else {
                None
            },
            volumes,
            done: VecDeque::with_capacity(1024),
        })
    }

    /// What clients can attach to.
    pub fn exports(&self) -> Vec<Export> {
        self.volumes.iter().map(|volume| volume.export.clone()).collect()
    }

    /// The host of this core that is to execute a request.
    pub fn host_of(&self, request: &BlockRequest) -> Option<usize> {
        let volume = self.volumes.get(request.volume.0 as usize)?;
        match volume.store {
            Store::Host(index) => check(request, &volume.export).is_ok().then_some(index),
            _ => None,
        }
    }

    /// Executes a request, or begins to; one for a host is only refused here.
    pub fn submit(&mut self, request: BlockRequest, counters: &Counters) {
        let Some(volume) = self.volumes.get(request.volume.0 as usize) else {
            return self.done.push_back(answer(&request, Err(BlockError::NoVolume)));
        };
        if let Err(error) = check(&request, &volume.export) {
            return self.done.push_back(answer(&request, Err(error)));
        }
        match &volume.store {
            Store::Memory(region) => {
                let window = self.windows[request.volume.0 as usize]
                    .as_ref()
                    .expect("a volume in memory has a window");
                let result = in_memory(&request, region, window, counters);
                self.done.push_back(answer(&request, result));
            }
            Store::File(file) => {
                let ring = self.ring.as_mut().expect("a core with files has a ring");
                ring.submit(request, file, &mut self.done, counters);
            }
            Store::Host(_) => unreachable!("a sound request goes to its host"),
        }
    }

    /// The next request that is done.
    pub fn next_done(&mut self) -> Option<BlockReply> {
        self.done.pop_front()
    }

    /// The descriptor that becomes readable when a request to a file is done.
    pub fn fd(&self) -> Option<RawFd> {
        self.ring.as_ref().map(FileRing::fd)
    }

    /// Hands what waits to the kernel.
    pub fn push(&mut self, counters: &Counters) {
        if let Some(ring) = &mut self.ring {
            ring.push(counters);
        }
    }

    /// Collects what the kernel is done with. No system call.
    pub fn reap(&mut self, counters: &Counters) {
        if let Some(ring) = &mut self.ring {
            ring.reap(&mut self.done, counters);
        }
    }

    /// True when [`Local::push`] must be called again soon: the kernel or the pool was short of memory.
    pub fn is_held_up(&self) -> bool {
        self.ring.as_ref().is_some_and(FileRing::is_held_up)
    }
}

/// The frontends have checked requests already; this is what keeps a mistake there from harming memory.
fn check(request: &BlockRequest, export: &Export) -> Result<(), BlockError> {
    let (offset, length) = (request.offset, u64::from(request.length));
    let sector = SECTOR_BYTES as u64;
    let inside = offset
        .checked_add(length)
        .is_some_and(|end| end <= export.size_bytes);
    if !inside || !offset.is_multiple_of(sector) || !length.is_multiple_of(sector) {
        return Err(BlockError::Invalid);
    }
    let changes = !matches!(request.op, BlockOp::Read | BlockOp::Flush);
    if changes && export.read_only {
        return Err(BlockError::ReadOnly);
    }
    Ok(())
}

fn answer(request: &BlockRequest, result: Result<Pages, BlockError>) -> BlockReply {
    BlockReply {
        client: request.client,
        tag: request.tag,
        result,
    }
}

/// The pages that a request touches, each with the part of it inside the request: page number, first byte, end.
fn touched(request: &BlockRequest) -> impl Iterator<Item = (u64, usize, usize)> + use<> {
    let page = PAGE_BYTES as u64;
    let (start, end) = (request.offset, request.offset + u64::from(request.length));
    (start / page..end.div_ceil(page)).map(move |number| {
        let first = start.max(number * page) - number * page;
        let last = end.min((number + 1) * page) - number * page;
        (number, first as usize, last as usize)
    })
}

fn in_memory(
    request: &BlockRequest,
    region: &Region,
    window: &Pool,
    counters: &Counters,
) -> Result<Pages, BlockError> {
    match request.op {
        BlockOp::Read => {
            let pages: Pages = touched(request)
                .map(|(number, ..)| window.page(number as u32))
                .collect();
            counters.media_reads.add(pages.len() as u64);
            return Ok(pages);
        }
        BlockOp::Write => {
            for ((number, first, end), page) in touched(request).zip(&request.pages) {
                region.write(number as usize * PAGE_BYTES + first, page, first..end);
            }
            counters.media_writes.add(request.pages.len() as u64);
        }
        BlockOp::Trim | BlockOp::WriteZeroes => {
            region.zero(request.offset as usize, request.length as usize);
        }
        BlockOp::Flush => counters.media_flushes.bump(),
    }
    Ok(Pages::new())
}

/// A part of a page as the kernel wants it.
fn iovec(page: &Page, first: usize, end: usize) -> libc::iovec {
    libc::iovec {
        iov_base: page.as_ptr().wrapping_add(first).cast(),
        iov_len: end - first,
    }
}

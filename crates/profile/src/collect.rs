//! Collects events: tracepoints into per-CPU buffers of the kernel, from there decoded and in order of time.
//!
//! Everybody's calls are recorded, and whose they are is told here. The kernel can filter by thread, but to know of each
//! switch whether the next thread is wanted costs more than the few events it saves: 0.3 µs a switch, of which a read
//! that waits for its device needs two.

use crate::event::{BLOCK_EVENTS, CALL_EVENTS, Decoder, Dev, Event, Kind, SOFTWARE_EVENTS, What};
use crate::stacks::online_cpus;
use crate::tracefs::format::PageLayout;
use crate::tracefs::{self, CpuReader, Instance, TraceError, ring};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// System calls that move or sync the data of files (asm/unistd_64.h).
pub mod calls {
    #![allow(missing_docs)]
    pub const READ: &[u32] = &[
        libc::SYS_read as u32,
        libc::SYS_pread64 as u32,
        libc::SYS_readv as u32,
        libc::SYS_preadv as u32,
        libc::SYS_preadv2 as u32,
    ];
    pub const WRITE: &[u32] = &[
        libc::SYS_write as u32,
        libc::SYS_pwrite64 as u32,
        libc::SYS_writev as u32,
        libc::SYS_pwritev as u32,
        libc::SYS_pwritev2 as u32,
    ];
    pub const SYNC: &[u32] = &[
        libc::SYS_fsync as u32,
        libc::SYS_fdatasync as u32,
        libc::SYS_sync_file_range as u32,
        libc::SYS_msync as u32,
        libc::SYS_sync as u32,
        libc::SYS_syncfs as u32,
    ];
    /// Those that submit for others.
    pub const SUBMIT: &[u32] = &[libc::SYS_io_submit as u32, libc::SYS_io_uring_enter as u32];
}

/// An event younger than this may be followed by an older one, which another CPU is just writing down.
const SETTLE_NS: u64 = 1_000_000;
/// Memory of the kernel for each CPU.
const BUFFER_KIB: usize = 24 * 1024;
/// And for all of them: machines with hundreds have less for each.
const BUFFERS_KIB: usize = 1024 * 1024;

/// Cost and losses of a collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Events that were recorded and decoded.
    pub events: u64,
    /// Events that the buffers had no room for.
    pub lost: u64,
    /// Records that were too short for what the kernel says of them.
    pub undecoded: u64,
}

/// Collects until it is dropped.
pub struct Collector {
    layout: PageLayout,
    decoders: BTreeMap<u16, Decoder>,
    /// Readers come first: the instance cannot be removed while one is open.
    readers: Vec<CpuReader>,
    instance: Instance,
    page: Vec<u8>,
    pending: Vec<Event>,
    losses: Losses,
}

impl Collector {
    /// Makes buffers for the events of everybody and of one device or all; nothing is recorded yet.
    pub fn new(device: Option<Dev>) -> Result<Self, TraceError> {
        let root = tracefs::root()?;
        let layout = tracefs::page_layout(&root)?;
        let instance = Instance::create(&root, "events", buffer_kib(online_cpus().len()))?;
        let mut decoders = BTreeMap::new();
        let device = device.map(|dev| format!("dev == {}", dev.0));
        let groups = [
            (CALL_EVENTS, Some(call_filter())),
            (SOFTWARE_EVENTS, None),
            (BLOCK_EVENTS, device),
        ];
        for (events, filter) in groups {
            for (kind, name) in events {
                enable(&root, &instance, &mut decoders, *kind, name, filter.as_deref())?;
            }
        }
        Ok(Self {
            page: vec![0; layout.page_bytes()],
            layout,
            decoders,
            readers: instance.readers()?,
            instance,
            pending: Vec::new(),
            losses: Losses::default(),
        })
    }

    /// Begins to record.
    pub fn start(&self) -> Result<(), TraceError> {
        self.instance.start()
    }

    /// Ends recording. The next [`Collector::poll`] returns the recorded events.
    pub fn stop(&self) -> Result<(), TraceError> {
        self.instance.stop()
    }

    /// Reads what is there, and hands over in order of time what is old enough to be complete, or all of it if
    /// recording has ended (`now_ns` is `u64::MAX`).
    pub fn poll(&mut self, now_ns: u64, mut each: impl FnMut(Event)) -> Result<(), TraceError> {
        let (pending, losses, decoders) = (&mut self.pending, &mut self.losses, &self.decoders);
        for reader in &mut self.readers {
            // Reading is itself recorded: what came after this poll is left to the next, or there would be no end.
            let mut last_ns = 0;
            while last_ns < now_ns && reader.read_page(&mut self.page)? {
                let before = pending.len();
                let summary = ring::parse(&self.layout, &self.page, |time_ns, record| {
                    last_ns = time_ns;
                    let id = record.get(..2).map(|id| u16::from_ne_bytes([id[0], id[1]]));
                    let event = id
                        .and_then(|id| decoders.get(&id))
                        .and_then(|decoder| decoder.decode(time_ns, record));
                    match event {
                        Some(event) => pending.push(event),
                        None => losses.undecoded += 1,
                    }
                })?;
                losses.events += summary.records;
                if summary.lost > 0 && pending.len() > before {
                    pending.insert(before, gap_before(pending[before]));
                }
            }
        }
        // Each CPU's events are in order already, which this sort makes use of.
        pending.sort_by_key(|event| event.time_ns);
        let complete = now_ns.saturating_sub(SETTLE_NS);
        let ready = pending.partition_point(|event| event.time_ns <= complete);
        pending.drain(..ready).for_each(&mut each);
        Ok(())
    }

    /// Collected events and losses.
    pub fn losses(&self) -> Result<Losses, TraceError> {
        Ok(Losses {
            lost: self.instance.lost()?,
            ..self.losses
        })
    }
}

/// What says that events before this one are lost: of one moment it comes first.
fn gap_before(event: Event) -> Event {
    Event {
        thread: 0,
        what: What::Gap,
        ..event
    }
}

/// Memory for each of so many CPUs.
fn buffer_kib(cpus: usize) -> usize {
    BUFFER_KIB.min(BUFFERS_KIB / cpus.max(1))
}

/// The filter for the system calls that are understood.
fn call_filter() -> String {
    let calls = [calls::READ, calls::WRITE, calls::SYNC, calls::SUBMIT].concat();
    let terms: Vec<String> = calls.iter().map(|call| format!("id == {call}")).collect();
    terms.join(" || ")
}

fn enable(
    root: &Path,
    instance: &Instance,
    decoders: &mut BTreeMap<u16, Decoder>,
    kind: Kind,
    name: &str,
    filter: Option<&str>,
) -> Result<(), TraceError> {
    // What a kernel does not have cannot happen there.
    let Some(format) = tracefs::format(root, name)? else {
        return Ok(());
    };
    let decoder = Decoder::new(kind, &format).map_err(|_| TraceError::Description {
        path: PathBuf::from(name),
    })?;
    decoders.insert(format.id, decoder);
    instance.enable(name, filter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_cpus_the_less_memory_has_each() {
        assert_eq!((buffer_kib(0), buffer_kib(2)), (BUFFER_KIB, BUFFER_KIB));
        assert_eq!(buffer_kib(256) * 256, BUFFERS_KIB);
    }
}

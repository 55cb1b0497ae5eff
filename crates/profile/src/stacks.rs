//! Kernel stacks of a program at the ticks of a clock (perf_event_open(2), `PERF_COUNT_SW_CPU_CLOCK`): which functions its
//! processor time goes to. Works where function tracing and probes are locked away, and costs what the clock ticks.
//!
//! Time in which the program waits has no samples: shares are shares of processor time.

use crate::tracefs::TraceError;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Samples a second of processor time: no divisor of the kernel's own ticks.
pub const HERTZ: u64 = 1999;
/// Pages of each CPU's ring, a power of two. Full rings are read every 50 ms, so this is forty times what comes.
const RING_PAGES: usize = 64;
/// Each thread has a ring on each CPU, with a file and 260 KiB of the kernel's memory. For more than so many everybody is
/// sampled, and what is not the program's is thrown away.
const RINGS_MAX: usize = 256;
const PAGE_BYTES: usize = 4096;

// linux/perf_event.h
const PERF_TYPE_SOFTWARE: u64 = 1;
const PERF_COUNT_SW_CPU_CLOCK: u64 = 0;
const PERF_SAMPLE_TID: u64 = 1 << 1;
const PERF_SAMPLE_CALLCHAIN: u64 = 1 << 5;
const PERF_ATTR_SIZE_VER0: u64 = 64;
const DISABLED: u64 = 1;
const INHERIT: u64 = 1 << 1;
const FREQ: u64 = 1 << 10;
const EXCLUDE_CALLCHAIN_USER: u64 = 1 << 22;
const PERF_RECORD_LOST: u32 = 2;
const PERF_RECORD_SAMPLE: u32 = 9;
/// Marks in a call chain, -1 to -4095, are no addresses.
const PERF_CONTEXT_MAX: u64 = -4095_i64 as u64;
const PERF_FLAG_FD_CLOEXEC: u64 = 1 << 3;
const PERF_EVENT_IOC_ENABLE: u64 = 0x2400;
/// In the ring's first page: how far the kernel has written, and how far it has been read.
const DATA_HEAD: usize = 1024;
const DATA_TAIL: usize = 1032;

/// Samples, by stack of names from the outermost function to the innermost. The empty one is the program itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stacks {
    /// Samples of each stack.
    pub counts: BTreeMap<Vec<String>, u64>,
    /// Samples that the rings had no room for.
    pub lost: u64,
}

/// Samples threads, and those that they start, until it is dropped.
pub struct Sampler {
    rings: Vec<Ring>,
    /// Samples of others come, too.
    has_others: bool,
    counts: BTreeMap<Vec<u64>, u64>,
    lost: u64,
}

impl Sampler {
    /// For these threads and those that they start, or for everybody. Nothing is sampled yet.
    pub fn new(threads: Option<&[u32]>) -> Result<Self, TraceError> {
        let cpus = online_cpus();
        let (threads, has_others) = match threads {
            Some(threads) if threads.len() * cpus.len() <= RINGS_MAX.max(cpus.len()) => {
                (threads.iter().map(|thread| *thread as i32).collect(), false)
            }
            threads => (vec![-1], threads.is_some()),
        };
        let mut rings = Vec::new();
        for thread in threads {
            for cpu in &cpus {
                match Ring::open(thread, *cpu) {
                    Ok(ring) => rings.push(ring),
                    // The thread ended meanwhile.
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                    Err(source) => {
                        let path = PathBuf::from("perf_event_open");
                        return Err(match source.kind() {
                            io::ErrorKind::PermissionDenied => TraceError::Denied { path },
                            _ => TraceError::Io { path, source },
                        });
                    }
                }
            }
        }
        Ok(Self {
            rings,
            has_others,
            counts: BTreeMap::new(),
            lost: 0,
        })
    }

    /// Begins.
    pub fn start(&self) {
        for ring in &self.rings {
            // SAFETY: the request has no argument, and the file is an event's.
            unsafe { libc::ioctl(ring.file.as_raw_fd(), PERF_EVENT_IOC_ENABLE as _, 0) };
        }
    }

    /// Takes what is there. `owns` tells whether a thread is one of the program's.
    pub fn poll(&mut self, mut owns: impl FnMut(u32) -> bool) {
        let (counts, lost, has_others) = (&mut self.counts, &mut self.lost, self.has_others);
        for ring in &mut self.rings {
            ring.read(|kind, body| match kind {
                PERF_RECORD_SAMPLE => {
                    if let Some((thread, stack)) = parse_sample(body)
                        && (!has_others || owns(thread))
                    {
                        *counts.entry(stack).or_default() += 1;
                    }
                }
                // u64 id, u64 lost
                PERF_RECORD_LOST => *lost += word(body, 8).unwrap_or(1),
                _ => {}
            });
        }
    }

    /// Samples, with the kernel's names for their addresses.
    pub fn finish(self) -> Stacks {
        let symbols = Symbols::read();
        let mut stacks = Stacks {
            lost: self.lost,
            ..Stacks::default()
        };
        for (addresses, count) in &self.counts {
            let names = addresses.iter().map(|address| symbols.name(*address)).collect();
            *stacks.counts.entry(names).or_default() += count;
        }
        stacks
    }
}

/// The CPUs that are there.
pub fn online_cpus() -> Vec<i32> {
    let text = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let mut cpus = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<i32>(), last.parse::<i32>()) {
            cpus.extend(first..=last);
        }
    }
    cpus
}

fn word(body: &[u8], at: usize) -> Option<u64> {
    let bytes = body.get(at..at + 8)?;
    Some(u64::from_ne_bytes(bytes.try_into().expect("eight bytes")))
}

/// `u32 process, thread; u64 count; u64 addresses[count]`, the innermost first, with marks among them. The thread, and the
/// addresses from the outermost on.
fn parse_sample(body: &[u8]) -> Option<(u32, Vec<u64>)> {
    let thread = u32::from_ne_bytes(body.get(4..8)?.try_into().expect("four bytes"));
    let count = word(body, 8)? as usize;
    let mut stack = Vec::new();
    for index in (0..count).rev() {
        let address = word(body, 16 + index * 8)?;
        if address < PERF_CONTEXT_MAX {
            stack.push(address);
        }
    }
    Some((thread, stack))
}

/// An event of one thread on one CPU, and where the kernel writes it.
struct Ring {
    file: OwnedFd,
    base: NonNull<u8>,
    record: Vec<u8>,
}

impl Ring {
    fn open(thread: i32, cpu: i32) -> io::Result<Self> {
        let inherit = if thread < 0 { 0 } else { INHERIT };
        // struct perf_event_attr, version 0: type and size, config, frequency, what a sample has, format of reads, flags,
        // wake-ups, breakpoint.
        let attributes: [u64; 8] = [
            PERF_TYPE_SOFTWARE | PERF_ATTR_SIZE_VER0 << 32,
            PERF_COUNT_SW_CPU_CLOCK,
            HERTZ,
            PERF_SAMPLE_TID | PERF_SAMPLE_CALLCHAIN,
            0,
            DISABLED | FREQ | EXCLUDE_CALLCHAIN_USER | inherit,
            0,
            0,
        ];
        // SAFETY: the attributes are as long as they say, and live until the call returns.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                attributes.as_ptr(),
                thread,
                cpu,
                -1,
                PERF_FLAG_FD_CLOEXEC,
            )
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just given it to us.
        let file = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        // SAFETY: a new mapping, which nothing of ours lies in.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                (1 + RING_PAGES) * PAGE_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            file,
            base: NonNull::new(base.cast()).expect("mmap gives no null"),
            record: Vec::new(),
        })
    }

    fn position(&self, at: usize) -> &AtomicU64 {
        // SAFETY: within the mapping, aligned, and the kernel reads and writes it atomically (perf_event.h: data_head).
        unsafe { self.base.add(at).cast::<AtomicU64>().as_ref() }
    }

    /// Calls `each` with the kind and body of every record. A record begins with u32 kind, u16 mode, u16 bytes.
    fn read(&mut self, mut each: impl FnMut(u32, &[u8])) {
        let head = self.position(DATA_HEAD).load(Ordering::Acquire);
        let mut tail = self.position(DATA_TAIL).load(Ordering::Relaxed);
        let mut record = core::mem::take(&mut self.record);
        while tail < head {
            self.copy(tail, 8, &mut record);
            let kind = u32::from_ne_bytes(record[..4].try_into().expect("four bytes"));
            let bytes = usize::from(u16::from_ne_bytes(record[6..8].try_into().expect("two bytes")));
            if bytes < 8 {
                break;
            }
            self.copy(tail + 8, bytes - 8, &mut record);
            each(kind, &record);
            tail += bytes as u64;
        }
        self.record = record;
        self.position(DATA_TAIL).store(head, Ordering::Release);
    }

    /// Copies what begins at `from` of the stream, which goes round the ring.
    fn copy(&self, from: u64, bytes: usize, into: &mut Vec<u8>) {
        let ring_bytes = RING_PAGES * PAGE_BYTES;
        into.clear();
        for index in 0..bytes {
            let place = PAGE_BYTES + (from as usize + index) % ring_bytes;
            // SAFETY: within the mapping; the kernel writes only beyond the head, which is beyond this.
            into.push(unsafe { self.base.add(place).read_volatile() });
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: it is our mapping, and no reference into it outlives the ring.
        unsafe { libc::munmap(self.base.as_ptr().cast(), (1 + RING_PAGES) * PAGE_BYTES) };
    }
}

/// The kernel's functions (`/proc/kallsyms`).
#[derive(Default)]
struct Symbols(Vec<(u64, String)>);

impl Symbols {
    fn read() -> Self {
        Self::parse(&fs::read_to_string("/proc/kallsyms").unwrap_or_default())
    }

    /// `address type name [module]`; all addresses are 0 for who may not know them.
    fn parse(text: &str) -> Self {
        let mut symbols: Vec<(u64, String)> = text
            .lines()
            .filter_map(|line| {
                let mut words = line.split_whitespace();
                let address = u64::from_str_radix(words.next()?, 16).ok()?;
                let kind = words.next()?;
                let name = words.next()?;
                (matches!(kind, "t" | "T" | "w" | "W") && address != 0).then(|| (address, name.to_owned()))
            })
            .collect();
        symbols.sort_unstable();
        Self(symbols)
    }

    fn name(&self, address: u64) -> String {
        let after = self.0.partition_point(|(at, _)| *at <= address);
        match after.checked_sub(1) {
            Some(index) => self.0[index].1.clone(),
            None => format!("{address:#x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_the_name_of_the_function_that_they_are_in() {
        let symbols =
            Symbols::parse("ffffffff81000100 T second\nffffffff81000000 t first\nffffffff81000050 D data\n");
        assert_eq!(symbols.name(0xffff_ffff_8100_0000), "first");
        assert_eq!(symbols.name(0xffff_ffff_8100_00ff), "first");
        assert_eq!(symbols.name(0xffff_ffff_8100_0100), "second");
        assert_eq!(symbols.name(0x1000), "0x1000");
        assert_eq!(Symbols::parse("0000000000000000 T hidden").name(0x10), "0x10");
    }

    #[test]
    fn a_chain_is_read_from_the_outermost_function_and_without_its_marks() {
        let words: Vec<u64> = vec![4, -128_i64 as u64, 3, 2, -512_i64 as u64];
        let threads = [100_u32, 101].map(u32::to_ne_bytes).concat();
        let body: Vec<u8> = threads
            .into_iter()
            .chain(words.iter().flat_map(|word| word.to_ne_bytes()))
            .collect();
        assert_eq!(parse_sample(&body), Some((101, vec![2, 3])));
        assert_eq!(parse_sample(&body[..40]), None);
    }
}

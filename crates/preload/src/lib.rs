//! `switchyard run` loads this library into a program (LD_PRELOAD). Its functions replace the C library's that write, sync,
//! name and close files. Chosen files become durable through the program's storage area (docs/format/files.md).
//!
//! | module | functions |
//! | --- | --- |
//! | `open` | open, creat, fopen, and their variants |
//! | `write` | write, pwrite, writev, pwritev, truncation, allocation, mapping |
//! | `sync` | fsync, fdatasync, sync_file_range, sync, syncfs |
//! | `names` | rename, unlink, remove |
//! | `descriptors` | close, dup, fcntl |
//! | `streams`, `hidden` | streams, asynchronous I/O, clones, system calls: the file is given up before |
//! | `rings` | a look for an io_uring of the program, which writes unseen |
//!
//! Everything else goes to the kernel as ever, as the files themselves are what the program believes: reads, locks, stat,
//! directories. A descriptor that is not followed costs one look into a table.
//!
//! A forked child follows nothing: its calls reach the files alone. The area is opened when the first file is to be followed, so
//! that a program that puts itself into the background before that keeps it.
#![warn(clippy::undocumented_unsafe_blocks)]
// Each function's contract is that of the C library's function of its name.
#![allow(clippy::missing_safety_doc, missing_docs)]
// The edge: nothing of the pure crates is here.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

mod descriptors;
mod hidden;
mod names;
mod open;
mod real;
mod rings;
mod streams;
mod sync;
mod write;

use area::NvmTiming;
use area::files::{FileId, Journal, Source};
use libc::{c_int, pid_t};
use std::cell::Cell;
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

/// Descriptors from here on are not followed.
const DESCRIPTORS_MAX: usize = 1 << 16;
/// Strata's NVDIMM: 500 ns, 20 GB/s.
const NVM: NvmTiming = NvmTiming {
    latency_ns: 500,
    bandwidth: 20_000_000_000,
};

/// By descriptor: number of the file × 4, and flags; 0 for those that are not followed.
static FOLLOWED: [AtomicU64; DESCRIPTORS_MAX] = [const { AtomicU64::new(0) }; DESCRIPTORS_MAX];
/// Each write is a sync, too (O_SYNC, O_DSYNC).
const SYNCS: u64 = 1;
/// Writes go to the end (O_APPEND).
const APPENDS: u64 = 2;

/// Nothing is followed any more: a forked child, or the end of the process.
static IS_PASSIVE: AtomicBool = AtomicBool::new(false);
/// The process that opened the area.
static OWNER: AtomicI32 = AtomicI32::new(0);
static SETTINGS: OnceLock<Option<Settings>> = OnceLock::new();
static JOURNAL: OnceLock<Result<Journal, c_int>> = OnceLock::new();

thread_local! {
    /// This thread is in the journal: its own calls are not followed.
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Settings from `switchyard run`, in the environment.
struct Settings {
    source: Source,
    patterns: Vec<CString>,
}

impl Settings {
    fn read() -> Option<Self> {
        let area = std::env::var_os("SWITCHYARD_AREA")?;
        let number = |name: &str| std::env::var(name).ok()?.parse().ok();
        let bytes = number("SWITCHYARD_AREA_BYTES").unwrap_or(0);
        let patterns = std::env::var_os("SWITCHYARD_MATCH")?.into_vec();
        let patterns = patterns.split(|&byte| byte == b'\n');
        // The one place where a descriptor that somebody hands over would come in.
        let source = match area.to_str() {
            Some("nvm") => Source::Nvm(bytes, NVM),
            _ => Source::Path(area.into(), bytes),
        };
        Some(Self {
            source,
            patterns: patterns.filter_map(|it| CString::new(it).ok()).collect(),
        })
    }
}

fn settings() -> Option<&'static Settings> {
    SETTINGS.get_or_init(|| inside(Settings::read)).as_ref()
}

/// Runs `f` with this thread's own calls not followed.
fn inside<R>(f: impl FnOnce() -> R) -> R {
    let before = IS_INSIDE.replace(true);
    let result = f();
    IS_INSIDE.set(before);
    result
}

fn is_passive() -> bool {
    IS_PASSIVE.load(Ordering::Relaxed) || IS_INSIDE.get()
}

/// The journal, which is opened now if it was not; the error number for the program if it cannot be.
fn journal(settings: &Settings) -> Result<&'static Journal, c_int> {
    let open = || match Journal::open(&settings.source) {
        Ok((journal, _)) => {
            OWNER.store(std::process::id() as pid_t, Ordering::Relaxed);
            // SAFETY: the function is there as long as the process.
            unsafe { libc::pthread_atfork(None, None, Some(after_fork)) };
            Ok(journal)
        }
        Err(error) => {
            eprintln!("switchyard run: {error}");
            Err(libc::EBUSY)
        }
    };
    JOURNAL
        .get_or_init(|| inside(open))
        .as_ref()
        .map_err(|&code| code)
}

/// The journal, if a file was followed before, and calls of this thread are. A child of vfork has our memory, and descriptors of
/// its own.
fn present() -> Option<&'static Journal> {
    let journal = JOURNAL.get()?.as_ref().ok()?;
    (!is_passive() && is_owner()).then_some(journal)
}

/// True in the process that opened the area.
fn is_owner() -> bool {
    std::process::id() as pid_t == OWNER.load(Ordering::Relaxed)
}

/// In a child, after fork.
extern "C" fn after_fork() {
    IS_PASSIVE.store(true, Ordering::Relaxed);
    let area = JOURNAL.get().and_then(|it| it.as_ref().ok()?.descriptor());
    if let Some(area) = area {
        // SAFETY: the child's copy, which nothing uses.
        unsafe { libc::syscall(libc::SYS_close, area) };
    }
}

/// A followed descriptor.
#[derive(Clone, Copy)]
struct Followed {
    journal: &'static Journal,
    file: FileId,
    flags: u64,
}

fn place(fd: c_int) -> Option<&'static AtomicU64> {
    FOLLOWED.get(usize::try_from(fd).ok()?)
}

/// The file that the library follows by this descriptor.
fn followed(fd: c_int) -> Option<Followed> {
    let value = place(fd)?.load(Ordering::Relaxed);
    if value == 0 {
        return None;
    }
    Some(Followed {
        journal: present()?,
        file: FileId(value >> 2),
        flags: value & 3,
    })
}

/// The descriptor is not followed any more.
fn unfollow(fd: c_int) {
    if followed(fd).is_none() {
        return;
    }
    let value = place(fd).map_or(0, |place| place.swap(0, Ordering::Relaxed));
    if let Some(journal) = present().filter(|_| value != 0) {
        inside(|| journal.close_file(FileId(value >> 2)));
    }
}

impl Followed {
    fn syncs(&self) -> bool {
        self.flags & SYNCS != 0
    }

    fn sync(&self) -> io::Result<()> {
        inside(|| {
            rings::look(self.journal)?;
            self.journal.sync(self.file)
        })
    }

    /// The file is the file system's alone from now on.
    fn give_up(&self) -> io::Result<()> {
        inside(|| self.journal.give_up(self.file))
    }
}

fn set_errno(code: c_int) {
    // SAFETY: this thread's own place.
    unsafe { *libc::__errno_location() = code };
}

/// The result for the program: what `result` says, or -1 and an error number.
fn answer<T: From<i8>>(result: io::Result<T>) -> T {
    result.unwrap_or_else(|error| {
        set_errno(error.raw_os_error().unwrap_or(libc::EIO));
        T::from(-1)
    })
}

/// When the process ends in an orderly way: nothing stays in the area.
extern "C" fn at_end() {
    if let Some(journal) = present() {
        if let Err(error) = inside(|| journal.close()) {
            eprintln!(
                "switchyard run: the files could not be synced at the end ({error}); the area has what they lack"
            );
        }
        IS_PASSIVE.store(true, Ordering::Relaxed);
    }
}

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_END: extern "C" fn() = at_end;

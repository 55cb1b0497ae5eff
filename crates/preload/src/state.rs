//! The state of the library in its process: settings, the journal, and which descriptors are followed.

use crate::signals::{self, FAULTS};
use crate::{rings, selector};
use area::NvmTiming;
use area::files::{FileId, Journal, Source};
use area::own;
use libc::{c_int, pid_t};
use std::cell::Cell;
use std::ffi::CString;
use std::os::unix::ffi::OsStringExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::{io, mem, ptr, thread};

/// Descriptors from here on are not followed.
pub(crate) const DESCRIPTORS_MAX: usize = 1 << 16;
/// Strata's NVDIMM: 500 ns, 20 GB/s.
pub(crate) const NVM: NvmTiming = NvmTiming {
    latency_ns: 500,
    bandwidth: 20_000_000_000,
};
/// By descriptor: twice the number of the file, and [`SYNCS`]; 0 for those that are not followed.
pub(crate) static FOLLOWED: [AtomicU64; DESCRIPTORS_MAX] = [const { AtomicU64::new(0) }; DESCRIPTORS_MAX];
/// Each write is a sync, too (O_SYNC, O_DSYNC).
pub(crate) const SYNCS: u64 = 1;
/// Nothing is followed any more: a forked child, or the end of the process.
pub(crate) static IS_PASSIVE: AtomicBool = AtomicBool::new(false);
/// The program has a filter of system calls, which may have none but the program's own: we make no other. Nothing is followed any more.
pub(crate) static IS_SEALED: AtomicBool = AtomicBool::new(false);
/// The process that opened the area.
pub(crate) static OWNER: AtomicI32 = AtomicI32::new(0);
pub(crate) static SETTINGS: OnceLock<Option<Settings>> = OnceLock::new();
pub(crate) static JOURNAL: OnceLock<Option<Journal>> = OnceLock::new();

thread_local! {
    /// This thread is in the journal: its own calls are not followed.
    pub(crate) static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Settings from `switchyard run`, in the environment.
pub(crate) struct Settings {
    pub(crate) source: Source,
    pub(crate) patterns: Vec<CString>,
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

    /// True if more than a file's own name decides whether it is followed.
    pub(crate) fn names_directories(&self) -> bool {
        self.patterns
            .iter()
            .any(|pattern| pattern.as_bytes().contains(&b'/'))
    }
}

pub(crate) fn settings() -> Option<&'static Settings> {
    SETTINGS.get_or_init(|| inside(Settings::read)).as_ref()
}

/// Runs `f` with this thread's own calls not followed. No signal's handler runs meanwhile, as it may call us, or leave for good; and the
/// thread is not cancelled, as it would take our locks along.
pub(crate) fn inside<R>(f: impl FnOnce() -> R) -> R {
    if IS_INSIDE.get() || is_sealed() {
        return f();
    }
    let _within = Within::enter(false);
    f()
}

/// The same without a system call, in a process whose handlers wait for the thread by themselves (`signals`).
pub(crate) fn inside_unmasked<R>(f: impl FnOnce() -> R) -> R {
    if IS_INSIDE.get() || is_sealed() {
        return f();
    }
    let _within = Within::enter(true);
    f()
}

struct Within {
    /// What the program has blocked, if all signals are blocked meanwhile.
    signals: Option<libc::sigset_t>,
    cancel: c_int,
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

unsafe extern "C-unwind" {
    /// Ends the thread if it was cancelled. Nobody between the program and this call may have something to drop.
    pub(crate) fn pthread_testcancel();
}

/// `PTHREAD_CANCEL_DISABLE` of pthread.h.
const CANCEL_DISABLE: c_int = 1;
impl Within {
    fn enter(is_unmasked: bool) -> Self {
        let signals = match is_unmasked {
            true => {
                signals::enter();
                None
            }
            false => Some(block_signals()),
        };
        let mut cancel = 0;
        // SAFETY: the call fills the place.
        unsafe { pthread_setcancelstate(CANCEL_DISABLE, &mut cancel) };
        let within = Self { signals, cancel };
        IS_INSIDE.set(true);
        selector::enter();
        within
    }
}

impl Drop for Within {
    fn drop(&mut self) {
        if thread::panicking() {
            // The program cannot go on with what is half done, and has nothing that would catch it.
            std::process::abort();
        }
        IS_INSIDE.set(false);
        selector::leave();
        // SAFETY: what was there before.
        unsafe { pthread_setcancelstate(self.cancel, ptr::null_mut()) };
        match &self.signals {
            // SAFETY: as above.
            Some(signals) => unsafe {
                libc::pthread_sigmask(libc::SIG_SETMASK, signals, ptr::null_mut());
            },
            None => signals::leave(),
        }
    }
}

/// Blocks all signals but faults. What was blocked before.
fn block_signals() -> libc::sigset_t {
    // SAFETY: zeros are valid sets, which the calls fill.
    unsafe {
        let (mut all, mut before) = (mem::zeroed(), mem::zeroed());
        libc::sigfillset(&mut all);
        for fault in FAULTS {
            libc::sigdelset(&mut all, fault);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &all, &mut before);
        before
    }
}

pub(crate) fn is_passive() -> bool {
    IS_PASSIVE.load(Ordering::Relaxed) || IS_INSIDE.get() || is_sealed()
}

pub(crate) fn is_sealed() -> bool {
    IS_SEALED.load(Ordering::Relaxed)
}

/// The journal, if a file was followed before, and calls of this thread are. A child of vfork has our memory, and descriptors of
/// its own.
pub(crate) fn present() -> Option<&'static Journal> {
    let journal = JOURNAL.get()?.as_ref()?;
    (!is_passive() && is_owner()).then_some(journal)
}

/// False in a child of vfork, which has its parent's memory, and descriptors of its own.
pub(crate) fn is_own_memory() -> bool {
    JOURNAL.get().is_none() || IS_PASSIVE.load(Ordering::Relaxed) || is_owner()
}

/// The program is about to close the descriptor, and loses its locks of the file by that.
pub(crate) fn unlocking(fd: c_int) {
    if own::has_locks() && !is_sealed() && is_own_memory() {
        inside(|| own::unlocking(fd));
    }
}

/// True in the process that opened the area.
pub(crate) fn is_owner() -> bool {
    std::process::id() as pid_t == OWNER.load(Ordering::Relaxed)
}

/// A followed descriptor.
#[derive(Clone, Copy)]
pub(crate) struct Followed {
    pub(crate) journal: &'static Journal,
    pub(crate) file: FileId,
    pub(crate) flags: u64,
}

pub(crate) fn place(fd: c_int) -> Option<&'static AtomicU64> {
    FOLLOWED.get(usize::try_from(fd).ok()?)
}

/// The file that the library follows by this descriptor.
pub(crate) fn followed(fd: c_int) -> Option<Followed> {
    let value = place(fd)?.load(Ordering::Relaxed);
    if value == 0 {
        return None;
    }
    Some(Followed {
        journal: present()?,
        file: FileId(value >> 1),
        flags: value & SYNCS,
    })
}

impl Followed {
    pub(crate) fn syncs(&self) -> bool {
        self.flags & SYNCS != 0
    }

    pub(crate) fn sync(&self) -> io::Result<()> {
        inside(|| {
            rings::look(self.journal, self.file)?;
            self.journal.sync(self.file)
        })
    }

    /// The file is the file system's alone from now on.
    pub(crate) fn give_up(&self) -> io::Result<()> {
        inside(|| self.journal.give_up(self.file))
    }
}

pub(crate) fn set_errno(code: c_int) {
    // SAFETY: this thread's own place.
    unsafe { *libc::__errno_location() = code };
}

/// The result for the program: what `result` says, or -1 and an error number.
pub(crate) fn answer<T: From<i8>>(result: io::Result<T>) -> T {
    result.unwrap_or_else(|error| {
        set_errno(error.raw_os_error().unwrap_or(libc::EIO));
        T::from(-1)
    })
}

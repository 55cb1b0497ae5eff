//! Handlers of the program's signals, and threads that are in the library.
//!
//! A thread in the library may hold locks, so no handler of the program runs there: it could call the library, or leave for good. Blocking all signals
//! would cost two system calls each time. So the kernel calls [`arrived`] in the place of each handler (`handlers` sees to it). A signal that comes while its
//! thread is in the library is sent to the thread once more, and stays blocked with all others until the thread has left.

use crate::fs::children;
use crate::real;
use libc::{c_int, c_long, c_void, sighandler_t, siginfo_t, sigset_t, ucontext_t};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering, compiler_fence};
use std::{mem, process, ptr};

/// Signals of Linux are below.
pub(crate) const SIGNALS_END: usize = 65;
/// A fault of the thread itself. Their handlers are the program's, and run at any time.
pub(crate) const FAULTS: [c_int; 7] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGABRT,
    libc::SIGSYS,
];
/// Signals that the C library keeps for its threads.
const KEPT: [c_int; 2] = [32, 33];

/// SIGSYS is the library's own (`trap`).
static IS_TRAPPED: AtomicBool = AtomicBool::new(false);

/// From now on the library has SIGSYS.
#[cfg(target_arch = "x86_64")]
pub(crate) fn trap() {
    IS_TRAPPED.store(true, Ordering::Relaxed);
}

pub(crate) fn is_trapped() -> bool {
    IS_TRAPPED.load(Ordering::Relaxed)
}

/// The process whose handlers are replaced: a child of vfork has its parent's memory, and handlers of its own.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// This process's handlers are replaced from now on: it has just begun, or is a forked child.
pub(crate) extern "C" fn own() {
    OWNER.store(process::id() as i32, Ordering::Relaxed);
}

/// Whether all handlers of this process's program are replaced.
pub(crate) fn are_replaced() -> bool {
    if OWNER.load(Ordering::Relaxed) == 0 {
        own();
    }
    children::is_process(OWNER.load(Ordering::Relaxed) as u32)
}

/// What the program does with a signal.
pub(crate) struct Program {
    handler: AtomicUsize,
    flags: AtomicI32,
    mask: AtomicU64,
}

/// A handler of the program's: its flags, and what is blocked while it runs.
#[derive(Clone, Copy)]
pub(crate) struct Handler {
    pub function: sighandler_t,
    pub flags: c_int,
    pub mask: u64,
}

static PROGRAMS: [Program; SIGNALS_END] = [const {
    Program {
        handler: AtomicUsize::new(libc::SIG_DFL),
        flags: AtomicI32::new(0),
        mask: AtomicU64::new(0),
    }
}; SIGNALS_END];

impl Program {
    /// What was noted last.
    pub fn handler(&self) -> Handler {
        Handler {
            function: self.handler.load(Ordering::Acquire),
            flags: self.flags.load(Ordering::Relaxed),
            mask: self.mask.load(Ordering::Relaxed),
        }
    }

    /// Notes a handler. A signal that comes meanwhile may find one with the flags of the other.
    pub fn note(&self, handler: Handler) {
        self.mask.store(handler.mask, Ordering::Relaxed);
        self.flags.store(handler.flags, Ordering::Relaxed);
        self.handler.store(handler.function, Ordering::Release);
    }
}

/// What the program does with a signal, if there is such a one.
pub(crate) fn program(signal: c_int) -> Option<&'static Program> {
    PROGRAMS.get(usize::try_from(signal).ok()?).filter(|_| signal > 0)
}

thread_local! {
    /// The thread is in the library, with its signals as the program has them.
    static IS_IN: AtomicBool = const { AtomicBool::new(false) };
    /// Some have come since, and all are blocked now.
    static HAVE_COME: AtomicBool = const { AtomicBool::new(false) };
    /// Calls of [`arrived`] that this thread is in.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// What the program has blocked.
    static BLOCKED: Cell<u64> = const { Cell::new(0) };
    /// Handlers have run in this thread, and some of them end calls that wait.
    static HAVE_RUN: Cell<Ran> = const { Cell::new(Ran::None) };
}

/// Handlers that have run in a thread since it was asked last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Ran {
    None,
    /// Calls go on behind them (`SA_RESTART`).
    Restarting,
    /// Calls end with `EINTR`.
    Ending,
}

/// Handlers that have run since this was asked last.
pub(crate) fn take_ran() -> Ran {
    HAVE_RUN.replace(Ran::None)
}

/// Signals wait for the thread to leave the library.
pub(crate) fn have_come() -> bool {
    HAVE_COME.with(|it| it.load(Ordering::Relaxed))
}

/// Blocks all signals but faults. Answers the set that was blocked before.
pub(crate) fn block() -> sigset_t {
    let full = set_of(all());
    // SAFETY: zeros are a valid set, which the call fills.
    unsafe {
        let mut before = mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, &full, &mut before);
        before
    }
}

/// Blocks what was blocked before [`block`].
pub(crate) fn unblock(before: &sigset_t) {
    // SAFETY: the set is there during the call.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, ptr::null_mut()) };
}

fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// All that may be blocked: as the kernel has sets.
fn all() -> u64 {
    let kept = FAULTS.into_iter().chain(KEPT).map(bit);
    !kept.fold(0, |kept, bit| kept | bit)
}

/// A set of the C library's. The kernel's are its first 64 bits.
pub(crate) fn set_of(bits: u64) -> sigset_t {
    // SAFETY: zeros are a valid set, which has 64 bits at least.
    unsafe {
        let mut set: sigset_t = mem::zeroed();
        (&raw mut set).cast::<u64>().write(bits);
        set
    }
}

/// The signals of such a set.
pub(crate) fn bits_of(set: &sigset_t) -> u64 {
    // SAFETY: a set has 64 bits at least.
    unsafe { ptr::from_ref(set).cast::<u64>().read() }
}

/// The thread comes into the library: no handler of the program runs in it from now on.
pub(crate) fn enter() {
    IS_IN.with(|it| it.store(true, Ordering::Relaxed));
    compiler_fence(Ordering::SeqCst);
}

/// The thread leaves the library. What has come meanwhile comes now.
pub(crate) fn leave() {
    compiler_fence(Ordering::SeqCst);
    IS_IN.with(|it| it.store(false, Ordering::Relaxed));
    compiler_fence(Ordering::SeqCst);
    if HAVE_COME.with(|it| it.load(Ordering::Relaxed)) {
        come_again();
    }
}

#[cold]
fn come_again() {
    HAVE_COME.with(|it| it.store(false, Ordering::Relaxed));
    let set = set_of(BLOCKED.get());
    // SAFETY: the set is there during the call.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &set, ptr::null_mut()) };
}

/// A signal for which the program has a handler.
pub(crate) unsafe extern "C-unwind" fn arrived(signal: c_int, about: *mut siginfo_t, context: *mut c_void) {
    let Some(program) = program(signal) else {
        return;
    };
    if IS_IN.with(|it| it.load(Ordering::Relaxed)) {
        // SAFETY: the kernel's.
        unsafe { put_off(program, (signal, about), &mut *context.cast::<ucontext_t>()) };
        return;
    }
    let Handler {
        function: handler,
        flags,
        ..
    } = program.handler();
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        return;
    }
    let ran = match flags & libc::SA_RESTART {
        0 => Ran::Ending,
        _ => Ran::Restarting,
    };
    // SAFETY: a handler of the program's. One that takes fewer arguments does not look at the others.
    unsafe {
        let handler: unsafe extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void) =
            mem::transmute(handler);
        handler(signal, about, context);
    }
    HAVE_RUN.set(HAVE_RUN.get().max(ran));
}

/// The thread goes on in the library with all signals blocked, and gets this one again behind it.
unsafe fn put_off(program: &Program, (signal, about): (c_int, *mut siginfo_t), context: &mut ucontext_t) {
    // Another one that comes before the next line sees a mask that is this handler's, and is overruled below.
    DEPTH.set(DEPTH.get() + 1);
    let full = set_of(all());
    // SAFETY: the kernel's frame, and this thread's own errno.
    unsafe {
        let before = *libc::__errno_location();
        libc::pthread_sigmask(libc::SIG_BLOCK, &full, ptr::null_mut());
        let now = bits_of(&context.uc_sigmask);
        if DEPTH.get() == 1 {
            BLOCKED.set(now);
        }
        HAVE_COME.with(|it| it.store(true, Ordering::Relaxed));
        (&raw mut context.uc_sigmask).cast::<u64>().write(now | all());
        let handler = program.handler();
        if handler.flags & libc::SA_RESETHAND != 0 {
            // The kernel has forgotten it.
            let _ = install(signal, handler);
        }
        send_again(signal, about);
        *libc::__errno_location() = before;
    }
    DEPTH.set(DEPTH.get() - 1);
}

unsafe fn send_again(signal: c_int, about: *mut siginfo_t) {
    // SAFETY: the kernel's description of the signal.
    unsafe {
        let own = real::syscall(libc::SYS_getpid, 0, 0, 0, 0, 0, 0);
        let thread = real::syscall(libc::SYS_gettid, 0, 0, 0, 0, 0, 0);
        let number = c_long::from(signal);
        let sent = real::syscall(
            libc::SYS_rt_tgsigqueueinfo,
            own,
            thread,
            number,
            about as c_long,
            0,
            0,
        );
        if sent < 0 {
            // So many are waiting that the description has no room.
            real::syscall(libc::SYS_tgkill, own, thread, number, 0, 0, 0);
        }
    }
}

/// Has the kernel call [`arrived`] for a signal. What the C library said.
pub(crate) fn install(signal: c_int, handler: Handler) -> c_int {
    // SAFETY: zeros are a valid action, and the function is there as long as the process.
    unsafe {
        let mut ours: libc::sigaction = mem::zeroed();
        ours.sa_sigaction = arrived as *const () as sighandler_t;
        ours.sa_flags = handler.flags | libc::SA_SIGINFO;
        ours.sa_mask = set_of(handler.mask);
        real::sigaction(signal, &ours, ptr::null_mut())
    }
}

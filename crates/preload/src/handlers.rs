//! Functions by which the program says what it does with signals. In a program of `run --fs` the kernel calls [`signals::arrived`] in the place of its handlers.
//!
//! What the kernel hands over of the program's system calls comes by SIGSYS, which is ours (`trap`).

use crate::signals::{self, FAULTS, Handler, SIGNALS_END, bits_of, program, set_of};
use crate::state::is_sealed;
use crate::{fs, net, real, set_errno};
use libc::{c_int, c_long, c_ulong, sigaction as Action, sighandler_t};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{mem, ptr};

const SIG_HOLD: sighandler_t = 2;
/// Signals that end system calls, also if their handlers are set by `signal`: siginterrupt(3).
static INTERRUPTING: AtomicU64 = AtomicU64::new(0);

/// Handlers wait for threads that are in the library.
fn is_run() -> bool {
    fs::is_run() || net::is_run()
}

extern "C" fn at_start() {
    if !is_run() {
        return;
    }
    signals::own();
    // SAFETY: the function is there as long as the process.
    unsafe { libc::pthread_atfork(None, None, Some(signals::own)) };
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = at_start;

fn is_handler(function: sighandler_t) -> bool {
    function != libc::SIG_DFL && function != libc::SIG_IGN
}

/// Signals that the program may have handlers of, and that are no faults.
fn is_replaceable(signal: c_int) -> bool {
    let is_known = usize::try_from(signal).is_ok_and(|signal| (1..SIGNALS_END).contains(&signal));
    let is_kept = matches!(signal, libc::SIGKILL | libc::SIGSTOP | 32 | 33);
    is_known && !is_kept && !FAULTS.contains(&signal)
}

unsafe fn set(signal: c_int, action: *const Action, before: *mut Action) -> c_int {
    // SAFETY: null, or the program's.
    let new = unsafe { action.as_ref() }.map(|new| Handler {
        function: new.sa_sigaction,
        flags: new.sa_flags,
        mask: bits_of(&new.sa_mask),
    });
    if signal == libc::SIGSYS && signals::is_trapped() {
        let was = program(signal).map_or(NONE, |program| program.handler());
        new.inspect(|new| note(signal, *new));
        // SAFETY: the program's place.
        unsafe { tell(before, was) };
        return 0;
    }
    let Some(mut new) = new else {
        // SAFETY: the caller's arguments.
        return unsafe { look(signal, before) };
    };
    if signals::is_trapped() {
        new.mask &= !(1 << (libc::SIGSYS - 1));
    }
    let was = program(signal).map_or(NONE, |program| program.handler());
    let is_replaced = is_replaceable(signal)
        && is_handler(new.function)
        && is_run()
        && !is_sealed()
        && signals::are_replaced();
    if is_replaced {
        note(signal, new);
    }
    // SAFETY: zeros are a valid action, and the program's place.
    unsafe {
        let mut ours: Action = *action;
        ours.sa_mask = set_of(new.mask);
        if is_replaced {
            ours.sa_sigaction = signals::arrived as *const () as sighandler_t;
            ours.sa_flags |= libc::SA_SIGINFO;
        }
        let result = real::sigaction(signal, &ours, before);
        if result == 0 && is_ours(before) {
            tell(before, was);
        }
        result
    }
}

const NONE: Handler = Handler {
    function: libc::SIG_DFL,
    flags: 0,
    mask: 0,
};

fn note(signal: c_int, handler: Handler) {
    if let Some(program) = program(signal) {
        program.note(handler);
    }
}

unsafe fn is_ours(action: *const Action) -> bool {
    // SAFETY: null, or filled by the kernel.
    unsafe { action.as_ref() }
        .is_some_and(|action| action.sa_sigaction == signals::arrived as *const () as sighandler_t)
}

/// What is told of an action is the program's, and not ours.
unsafe fn look(signal: c_int, before: *mut Action) -> c_int {
    // SAFETY: the program's place.
    unsafe {
        let result = real::sigaction(signal, ptr::null(), before);
        if result == 0
            && is_ours(before)
            && let Some(program) = program(signal)
        {
            tell(before, program.handler());
        }
        result
    }
}

unsafe fn tell(before: *mut Action, was: Handler) {
    // SAFETY: null, or the program's place.
    if let Some(before) = unsafe { before.as_mut() } {
        before.sa_sigaction = was.function;
        before.sa_flags = was.flags;
        before.sa_mask = set_of(was.mask);
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sigaction(
    signal: c_int,
    action: *const Action,
    before: *mut Action,
) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe { set(signal, action, before) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __sigaction(
    signal: c_int,
    action: *const Action,
    before: *mut Action,
) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe { set(signal, action, before) }
}

/// Sets a handler, and gives the one that was there.
fn simply(signal: c_int, function: sighandler_t, flags: c_int, is_blocked: bool) -> sighandler_t {
    let own = match usize::try_from(signal) {
        Ok(1..SIGNALS_END) if is_blocked => 1 << (signal - 1),
        _ => 0,
    };
    // SAFETY: zeros are a valid action; the places are there during the call.
    unsafe {
        let (mut new, mut before): (Action, Action) = (mem::zeroed(), mem::zeroed());
        (new.sa_sigaction, new.sa_flags, new.sa_mask) = (function, flags, set_of(own));
        match set(signal, &new, &mut before) {
            0 => before.sa_sigaction,
            _ => libc::SIG_ERR,
        }
    }
}

/// `signal` as BSD has it, which is that of the C library.
fn as_bsd(signal: c_int, function: sighandler_t) -> sighandler_t {
    if function == libc::SIG_ERR || !(1..SIGNALS_END as c_int).contains(&signal) {
        set_errno(libc::EINVAL);
        return libc::SIG_ERR;
    }
    let interrupts = INTERRUPTING.load(Ordering::Relaxed) >> (signal - 1) & 1 == 1;
    let flags = if interrupts { 0 } else { libc::SA_RESTART };
    simply(signal, function, flags, true)
}

/// Functions of one type.
macro_rules! handlers {
    ($($name:ident($signal:ident, $function:ident) = $set:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($signal: c_int, $function: sighandler_t) -> sighandler_t {
            $set
        }
    )*};
}

/// Not in libc's crate: the flag does nothing, and says that `SA_RESTART` is not there.
const SA_INTERRUPT: c_int = 0x2000_0000;
const ONCE: c_int = libc::SA_RESETHAND | libc::SA_NODEFER | SA_INTERRUPT;

handlers! {
    signal(signal, function) = as_bsd(signal, function);
    bsd_signal(signal, function) = as_bsd(signal, function);
    ssignal(signal, function) = as_bsd(signal, function);
    sysv_signal(signal, function) = simply(signal, function, ONCE, false);
    __sysv_signal(signal, function) = simply(signal, function, ONCE, false);
    sigset(signal, function) = as_system_v(signal, function);
}

/// `sigset`: the signal is blocked, or gets a handler and is not.
fn as_system_v(signal: c_int, function: sighandler_t) -> sighandler_t {
    if !(1..SIGNALS_END as c_int).contains(&signal) {
        set_errno(libc::EINVAL);
        return libc::SIG_ERR;
    }
    let own = set_of(1 << (signal - 1));
    // SAFETY: zeros are a valid set and a valid action; the places are there during the calls.
    unsafe {
        let (mut blocked, mut now): (libc::sigset_t, Action) = (mem::zeroed(), mem::zeroed());
        let (how, before) = match function {
            SIG_HOLD if set(signal, ptr::null(), &mut now) == 0 => (libc::SIG_BLOCK, now.sa_sigaction),
            SIG_HOLD => return libc::SIG_ERR,
            function => (libc::SIG_UNBLOCK, simply(signal, function, 0, false)),
        };
        if before == libc::SIG_ERR || real::sigprocmask(how, &own, &mut blocked) < 0 {
            return libc::SIG_ERR;
        }
        match bits_of(&blocked) >> (signal - 1) & 1 {
            1 => SIG_HOLD,
            _ => before,
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn siginterrupt(signal: c_int, interrupts: c_int) -> c_int {
    // SAFETY: zeros are a valid action; the places are there during the calls.
    unsafe {
        let mut action: Action = mem::zeroed();
        if set(signal, ptr::null(), &mut action) != 0 {
            return -1;
        }
        let own = 1 << (signal - 1);
        if interrupts != 0 {
            INTERRUPTING.fetch_or(own, Ordering::Relaxed);
            action.sa_flags &= !libc::SA_RESTART;
        } else {
            INTERRUPTING.fetch_and(!own, Ordering::Relaxed);
            action.sa_flags |= libc::SA_RESTART;
        }
        set(signal, &action, ptr::null_mut())
    }
}

/// An action as the kernel has it.
#[repr(C)]
struct Raw {
    function: usize,
    flags: c_ulong,
    restorer: usize,
    mask: u64,
}

/// rt_sigaction(2): as by the C library, whose way back from handlers is taken. None if the kernel is to make the call as it is.
pub(crate) unsafe fn by_system_call([signal, new, before, bytes, ..]: [c_long; 6]) -> Option<c_long> {
    if bytes != size_of::<u64>() as c_long || !is_run() {
        return None;
    }
    let signal = c_int::try_from(signal).ok()?;
    let (new, before) = (new as *const Raw, before as *mut Raw);
    // SAFETY: null, or the program's; zeros are a valid action.
    unsafe {
        let (mut action, mut was): (Action, Action) = (mem::zeroed(), mem::zeroed());
        if let Some(new) = new.as_ref() {
            (action.sa_sigaction, action.sa_flags) = (new.function, new.flags as c_int);
            action.sa_mask = set_of(new.mask);
        }
        let action = if new.is_null() {
            ptr::null()
        } else {
            &raw const action
        };
        let result = set(signal, action, &mut was);
        if let Some(before) = before.as_mut().filter(|_| result == 0) {
            before.function = was.sa_sigaction;
            before.flags = was.sa_flags as c_ulong;
            before.mask = bits_of(&was.sa_mask);
        }
        Some(c_long::from(result))
    }
}

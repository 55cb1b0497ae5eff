//! System calls that a program of `run --fs` makes itself, past the C library: the kernel hands them to us (its syscall user dispatch), and they are made
//! as those by the C library's `syscall`.
//!
//! All calls are handed over but those of the C library's own code. A thread pays some 10 ns for each that is not, and 1.5 µs for one that is.
//! SIGSYS must reach us at any time: a thread that blocks it is ended by its next such call. So the program blocks it in vain.

use crate::{fs, hidden, real, selector, set_errno, signals};
use libc::{c_int, c_long, c_ulong, c_void, dl_phdr_info, greg_t, pthread_attr_t, pthread_t, sigset_t};
use libc::{sigaction as Action, sighandler_t, siginfo_t, ucontext_t};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{io, mem, ptr};

/// Of prctl(2), linux/prctl.h.
const PR_SET_SYSCALL_USER_DISPATCH: c_int = 59;
const PR_SYS_DISPATCH_ON: c_ulong = 1;
/// `si_code` of what the kernel hands over (asm-generic/siginfo.h).
const SYS_USER_DISPATCH: c_int = 2;
/// Bytes of the instruction `syscall`.
const CALL_BYTES: greg_t = 2;
/// Of a set of signals as the kernel has it, the bit of SIGSYS.
const BIT: u64 = 1 << (libc::SIGSYS - 1);

/// Where the C library's code is. Empty if calls are not handed over.
static CODE: AtomicUsize = AtomicUsize::new(0);
static CODE_BYTES: AtomicUsize = AtomicUsize::new(0);

/// When a program starts.
extern "C" fn at_start() {
    if !fs::is_on() {
        return;
    }
    let Some((begin, bytes)) = code_of_c_library() else {
        return;
    };
    CODE.store(begin, Ordering::Relaxed);
    CODE_BYTES.store(bytes, Ordering::Relaxed);
    signals::trap();
    // SAFETY: zeros are a valid action; the functions are there as long as the process.
    unsafe {
        let mut ours: Action = mem::zeroed();
        ours.sa_sigaction = trapped as *const () as sighandler_t;
        // Handlers of other signals run beside it, and make calls.
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
        if real::sigaction(libc::SIGSYS, &ours, ptr::null_mut()) == 0 {
            libc::pthread_atfork(None, None, Some(begin_here));
            begin_here();
        }
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = at_start;

/// This thread's calls are handed over.
extern "C" fn begin_here() {
    let bytes = CODE_BYTES.load(Ordering::Relaxed);
    if bytes == 0 {
        return;
    }
    let byte = selector::begin() as c_ulong;
    let code = CODE.load(Ordering::Relaxed) as c_ulong;
    // SAFETY: the byte is there as long as the thread.
    let begun = unsafe {
        libc::syscall(
            libc::SYS_prctl,
            PR_SET_SYSCALL_USER_DISPATCH,
            PR_SYS_DISPATCH_ON,
            code,
            bytes,
            byte,
        )
    };
    if begun != 0 {
        selector::end();
    }
}

/// The code that has the C library's functions: all of it, as one of an older version has those of threads elsewhere.
fn code_of_c_library() -> Option<(usize, usize)> {
    let address = |name: &std::ffi::CStr| {
        // SAFETY: the name ends with a zero.
        unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) as usize }
    };
    let mut search = Search {
        holds: [address(c"syscall"), address(c"pthread_create")],
        found: None,
    };
    // SAFETY: the search is there during the call.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    search.found
}

struct Search {
    holds: [usize; 2],
    found: Option<(usize, usize)>,
}

unsafe extern "C" fn look(object: *mut dl_phdr_info, _bytes: usize, search: *mut c_void) -> c_int {
    // SAFETY: the loader's list, and what the caller has given.
    let (search, base, parts) = unsafe {
        let object = &*object;
        let parts = std::slice::from_raw_parts(object.dlpi_phdr, usize::from(object.dlpi_phnum));
        (&mut *search.cast::<Search>(), object.dlpi_addr as usize, parts)
    };
    let code = parts.iter().find_map(|part| {
        let begin = base.wrapping_add(part.p_vaddr as usize);
        let bytes = part.p_memsz as usize;
        let has_all = search.holds.iter().all(|place| place.wrapping_sub(begin) < bytes);
        (part.p_type == libc::PT_LOAD && has_all).then_some((begin, bytes))
    });
    search.found = code;
    c_int::from(code.is_some())
}

/// A call that was handed over.
unsafe extern "C" fn trapped(signal: c_int, about: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's.
    unsafe {
        if (*about).si_code != SYS_USER_DISPATCH {
            others(signal, about, context);
            return;
        }
        let context = &mut *context.cast::<ucontext_t>();
        let before = *libc::__errno_location();
        make(context);
        set_errno(before);
    }
}

/// Makes the call, and gives its result to the program.
unsafe fn make(context: &mut ucontext_t) {
    use libc::{REG_R8, REG_R9, REG_R10, REG_RAX, REG_RDI, REG_RDX, REG_RIP, REG_RSI};
    let registers = &mut context.uc_mcontext.gregs;
    let words = [REG_RDI, REG_RSI, REG_RDX, REG_R10, REG_R8, REG_R9].map(|it| registers[it as usize]);
    let [a, b, c, d, e, f] = words;
    let number = registers[REG_RAX as usize];
    let shares_memory = match number {
        libc::SYS_vfork => true,
        libc::SYS_clone => a & c_long::from(libc::CLONE_VM) != 0,
        // SAFETY: the program's arguments begin with the flags.
        libc::SYS_clone3 => a != 0 && unsafe { *(a as *const u64) } & libc::CLONE_VM as u64 != 0,
        _ => false,
    };
    if shares_memory {
        fs::leave::before_unseen_children();
    }
    // What has to do with the program's own stack, it makes there. The thread's calls are handed over again when it has been in the library.
    if shares_memory || number == libc::SYS_rt_sigreturn || !fs::is_on() {
        if !fs::is_on() {
            selector::end();
        }
        selector::enter();
        registers[REG_RIP as usize] -= CALL_BYTES;
        return;
    }
    let result = match number {
        // SAFETY: the caller's arguments.
        libc::SYS_rt_sigprocmask => unsafe { mask(&mut context.uc_sigmask, a as c_int, (b as _, c as _)) },
        // SAFETY: the caller's arguments.
        _ => match unsafe { hidden::syscall(number, a, b, c, d, e, f) } {
            -1 => -c_long::from(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)),
            result => result,
        },
    };
    context.uc_mcontext.gregs[REG_RAX as usize] = result;
}

/// rt_sigprocmask(2): the mask is that of the program when it goes on.
unsafe fn mask(now: &mut sigset_t, how: c_int, (set, before): (*const u64, *mut u64)) -> c_long {
    // The kernel's set are the first 64 bits of the C library's.
    let now = (&raw mut *now).cast::<u64>();
    // SAFETY: null, or the program's; the kernel's frame has a set.
    unsafe {
        let was = now.read();
        if !set.is_null() {
            let set = set.read_unaligned() & !BIT;
            now.write(match how {
                libc::SIG_BLOCK => was | set,
                libc::SIG_UNBLOCK => was & !set,
                libc::SIG_SETMASK => set,
                _ => return -c_long::from(libc::EINVAL),
            });
        }
        if !before.is_null() {
            before.write_unaligned(was);
        }
    }
    0
}

/// A SIGSYS that has to do with other things: as the program would have it.
unsafe fn others(signal: c_int, about: *mut siginfo_t, context: *mut c_void) {
    let program = signals::program(signal).map(|program| program.handler().function);
    match program.unwrap_or(libc::SIG_DFL) {
        libc::SIG_IGN => {}
        // SAFETY: the process ends by it.
        libc::SIG_DFL => unsafe {
            let mut usual: Action = mem::zeroed();
            usual.sa_sigaction = libc::SIG_DFL;
            real::sigaction(signal, &usual, ptr::null_mut());
            libc::raise(signal);
        },
        // SAFETY: the program's handler. One that takes fewer arguments does not look at the others.
        handler => unsafe {
            let handler: unsafe extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void) =
                mem::transmute(handler);
            handler(signal, about, context);
        },
    }
}

fn is_on() -> bool {
    CODE_BYTES.load(Ordering::Relaxed) > 0
}

/// A set without SIGSYS.
unsafe fn without(set: *const sigset_t) -> Option<sigset_t> {
    // SAFETY: null, or the program's.
    let set = unsafe { set.as_ref() }.filter(|_| is_on())?;
    let mut without = *set;
    // SAFETY: the set is there during the call.
    unsafe { libc::sigdelset(&mut without, libc::SIGSYS) };
    Some(without)
}

macro_rules! masks {
    ($($name:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(how: c_int, set: *const sigset_t, before: *mut sigset_t) -> c_int {
            // SAFETY: the caller's arguments.
            unsafe {
                let without = without(set);
                real::$name(how, without.as_ref().map_or(set, ptr::from_ref), before)
            }
        }
    )*};
}

masks! {
    sigprocmask;
    pthread_sigmask;
}

type Start = extern "C-unwind" fn(*mut c_void) -> *mut c_void;

/// How a thread of the program begins.
struct Begin {
    start: Start,
    argument: *mut c_void,
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pthread_create(
    thread: *mut pthread_t,
    attributes: *const pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe {
        // The library's own threads make calls that are not to be looked at.
        if !is_on() || !fs::is_on() {
            return real::pthread_create(thread, attributes, start as *const c_void, argument);
        }
        let begin = Box::into_raw(Box::new(Begin { start, argument }));
        let result = real::pthread_create(thread, attributes, begin_thread as *const c_void, begin.cast());
        if result != 0 {
            drop(Box::from_raw(begin));
        }
        result
    }
}

/// Nothing is dropped behind the program's function: it may end by `pthread_exit`.
extern "C-unwind" fn begin_thread(begin: *mut c_void) -> *mut c_void {
    // SAFETY: it was made for this thread.
    let Begin { start, argument } = *unsafe { Box::from_raw(begin.cast::<Begin>()) };
    begin_here();
    start(argument)
}

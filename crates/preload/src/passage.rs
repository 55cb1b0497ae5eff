//! Calls that somebody else may notice, or that wait, and of whose arguments nothing needs to be known: what was synced is settled
//! first (`outward`), and then the C library's function is jumped to, with all arguments as they are. So functions of any type
//! can be in the list, and those that return twice or not at all, too.
//!
//! When there is nothing to settle that costs a compare and a jump.

use crate::outward;
use libc::{c_char, c_int, c_long, c_void};
use std::arch::naked_asm;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of the list.
#[repr(C)]
struct Passage {
    /// The C library's, once it was looked up.
    real: AtomicPtr<c_void>,
    name: *const c_char,
    /// It waits; others settle.
    waits: bool,
}

// SAFETY: the name is a literal.
unsafe impl Sync for Passage {}

/// Where to jump to. Called from assembler.
extern "C" fn pass(passage: &Passage) -> *mut c_void {
    if passage.waits {
        outward::before_wait();
    } else {
        outward::settle();
    }
    let known = passage.real.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: the name ends with a zero.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, passage.name) };
    assert!(!found.is_null(), "the C library has what the program has called");
    passage.real.store(found, Ordering::Relaxed);
    found
}

/// Saves everything in which arguments are passed (System V ABI for x86-64, §3.2.3), calls `pass` with r11, and jumps to where it says.
#[unsafe(naked)]
unsafe extern "C" fn slow() {
    naked_asm!(
        "push rbp",
        "mov rbp, rsp",
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "push rax",
        "push r10",
        "sub rsp, 128",
        "movups [rsp], xmm0",
        "movups [rsp + 16], xmm1",
        "movups [rsp + 32], xmm2",
        "movups [rsp + 48], xmm3",
        "movups [rsp + 64], xmm4",
        "movups [rsp + 80], xmm5",
        "movups [rsp + 96], xmm6",
        "movups [rsp + 112], xmm7",
        "mov rdi, r11",
        "call {pass}",
        "mov r11, rax",
        "movups xmm0, [rsp]",
        "movups xmm1, [rsp + 16]",
        "movups xmm2, [rsp + 32]",
        "movups xmm3, [rsp + 48]",
        "movups xmm4, [rsp + 64]",
        "movups xmm5, [rsp + 80]",
        "movups xmm6, [rsp + 96]",
        "movups xmm7, [rsp + 112]",
        "add rsp, 128",
        "pop r10",
        "pop rax",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "pop rbp",
        "jmp r11",
        pass = sym pass,
    )
}

macro_rules! passages {
    ($waits:literal: $($name:ident)*) => {$(
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            static PASSAGE: Passage = Passage {
                real: AtomicPtr::new(ptr::null_mut()),
                name: concat!(stringify!($name), "\0").as_ptr().cast(),
                waits: $waits,
            };
            naked_asm!(
                "cmp byte ptr [rip + {unsettled}], 0",
                "jne 2f",
                "mov r11, [rip + {passage}]",
                "test r11, r11",
                "jz 2f",
                "jmp r11",
                "2:",
                "lea r11, [rip + {passage}]",
                "jmp {slow}",
                unsettled = sym outward::UNSETTLED,
                passage = sym PASSAGE,
                slow = sym slow,
            )
        }
    )*};
}

passages! { true:
    read readv recv recvfrom recvmsg recvmmsg accept accept4
    select pselect ppoll
    nanosleep clock_nanosleep usleep sleep pause sigsuspend sigwait sigwaitinfo sigtimedwait
    wait waitpid wait3 wait4 waitid pthread_join pthread_cond_wait pthread_cond_timedwait sem_wait sem_timedwait
}

// Processes, and the end of this one.
passages! { false:
    vfork clone posix_spawn posix_spawnp system popen execve execv execvp execvpe fexecve execl execlp execle
    _exit _Exit quick_exit abort kill killpg tgkill sigqueue
}

// Other ways out.
passages! { false:
    sendmmsg tee vmsplice process_vm_writev connect bind listen shutdown ioctl msync
    flock lockf lockf64 sem_post mq_send mq_timedsend msgsnd semop semtimedop shmctl eventfd_write
    syslog vsyslog __syslog_chk __vsyslog_chk getaddrinfo
}

// Names, and what is known of files.
passages! { false:
    mkdir mkdirat rmdir link linkat symlink symlinkat mknod mknodat mkfifo mkfifoat
    mkstemp mkstemp64 mkostemp mkostemp64 mkdtemp tmpfile tmpfile64
    chmod fchmod fchmodat chown fchown lchown fchownat utime utimes futimes futimens utimensat
    setxattr lsetxattr fsetxattr removexattr lremovexattr fremovexattr
}

// Streams, which write by the C library's own calls.
passages! { false:
    printf fprintf vprintf vfprintf dprintf vdprintf __printf_chk __fprintf_chk __vprintf_chk __vfprintf_chk
    __dprintf_chk __vdprintf_chk puts fputs fputs_unlocked fputc fputc_unlocked putc putc_unlocked putchar
    putchar_unlocked fwrite fwrite_unlocked fflush fflush_unlocked perror __overflow
    wprintf fwprintf vwprintf vfwprintf fputwc fputws putwc putwchar warn warnx vwarn vwarnx err errx verr verrx error
    error_at_line psignal psiginfo
}

/// System calls that nobody else notices.
fn is_silent(number: c_long) -> bool {
    matches!(
        number,
        libc::SYS_futex
            | libc::SYS_gettid
            | libc::SYS_getpid
            | libc::SYS_getrandom
            | libc::SYS_membarrier
            | libc::SYS_sched_yield
            | libc::SYS_sched_getaffinity
            | libc::SYS_rseq
            | libc::SYS_clock_gettime
            | libc::SYS_statx
            | libc::SYS_getcpu
            | libc::SYS_mincore
    )
}

type SystemCall = unsafe extern "C" fn(c_long, ...) -> c_long;

/// The C library's is variadic: six words.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    static REAL: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let mut real = REAL.load(Ordering::Relaxed);
    if real.is_null() {
        // SAFETY: the name ends with a zero.
        real = unsafe { libc::dlsym(libc::RTLD_NEXT, c"syscall".as_ptr()) };
        REAL.store(real, Ordering::Relaxed);
    }
    if !is_silent(number) && !crate::is_passive() {
        match number {
            // What it does is not seen by us.
            libc::SYS_io_uring_setup => outward::give_up(),
            libc::SYS_close => outward::closes(a as c_int),
            _ => outward::settle(),
        }
    }
    // SAFETY: the C library's function of this name has this type.
    let function: SystemCall = unsafe { std::mem::transmute(real) };
    // SAFETY: the caller's arguments.
    unsafe { function(number, a, b, c, d, e, f) }
}

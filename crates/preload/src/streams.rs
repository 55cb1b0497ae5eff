//! Streams, which write without our knowledge: their file is given up.

use crate::numbers::numbered;
use crate::open::{follow, told};
use crate::paths::{chosen, matched};
use crate::write::give_up;
use crate::{Followed, exec, followed, fs, inside, journal, present, real, set_errno, tree, unfollow};
use area::files::Journal;
use libc::{c_char, c_int, c_void};
use std::ffi::CStr;

/// Streams write without our knowledge: a chosen file that is opened as one is given up as long as it is open.
unsafe fn stream(path: *const c_char, mode: *const c_char, file: *mut libc::FILE) -> *mut libc::FILE {
    if file.is_null() || mode.is_null() {
        return file;
    }
    // SAFETY: the program's mode ends with a zero.
    let mode = unsafe { CStr::from_ptr(mode) }.to_bytes();
    let is_written = mode.iter().any(|byte| b"wa+".contains(byte));
    if !is_written {
        return file;
    }
    // SAFETY: an open stream.
    let fd = unsafe { libc::fileno(file) };
    if tree::is_another() {
        if told(fd, matched(libc::AT_FDCWD, path).is_some()) < 0 {
            // SAFETY: its descriptor is closed, and it has written nothing.
            unsafe { real::fclose(file) };
            set_errno(libc::EIO);
            return std::ptr::null_mut();
        }
        return file;
    }
    let known = || present().filter(|journal| inside(|| journal.find_same(fd)).is_some());
    let journal = match (chosen(libc::AT_FDCWD, path), known()) {
        (_, Some(journal)) => Some(journal),
        (Some(settings), None) => journal(settings),
        (None, None) => return file,
    };
    let Some(journal) = journal else {
        return file;
    };
    let give_up = |journal: &'static Journal| {
        follow(journal, fd, 0)?;
        followed(fd).map_or(Ok(()), |it: Followed| it.give_up().map_err(|_| libc::EIO))
    };
    match give_up(journal) {
        Ok(()) => file,
        Err(code) => {
            unfollow(fd);
            // SAFETY: just opened, and not given out.
            unsafe { real::fclose(file) };
            set_errno(code);
            std::ptr::null_mut()
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fopen(path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    // SAFETY: the caller's arguments.
    unsafe {
        tree::writes();
        stream(
            path,
            mode,
            numbered(std::ptr::null_mut(), || real::fopen(path, mode)),
        )
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fopen64(path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    // SAFETY: the caller's arguments.
    unsafe { fopen(path, mode) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn freopen(
    path: *const c_char,
    mode: *const c_char,
    file: *mut libc::FILE,
) -> *mut libc::FILE {
    // SAFETY: the caller's arguments.
    unsafe {
        unfollow(libc::fileno(file));
        tree::writes();
        stream(path, mode, real::freopen(path, mode, file))
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn freopen64(
    path: *const c_char,
    mode: *const c_char,
    file: *mut libc::FILE,
) -> *mut libc::FILE {
    // SAFETY: the caller's arguments.
    unsafe { freopen(path, mode, file) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE {
    if give_up(fd).is_err() {
        set_errno(libc::EIO);
        return std::ptr::null_mut();
    }
    // SAFETY: the caller's arguments.
    unsafe { real::fdopen(fd, mode) }
}

/// The function to go on with, once the file of `fd` is given up.
fn after_giving_up(fd: c_int, function: *mut c_void) -> *mut c_void {
    match give_up(fd) {
        Ok(()) => function,
        Err(_) => fails as *mut c_void,
    }
}

unsafe extern "C" fn fails() -> c_int {
    set_errno(libc::EIO);
    -1
}

/// A variadic function of the C library: something is done with its first argument, then the function that this names goes on with all
/// arguments as they are.
macro_rules! variadic {
    ($($name:ident by $prepare:ident($first:ident: $type:ty) $how:expr;)*) => {$(
        extern "C" fn $prepare($first: $type) -> *mut c_void {
            $how
        }

        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                "push rbp",
                "mov rbp, rsp",
                "sub rsp, 192",
                "mov [rbp - 8], rdi",
                "mov [rbp - 16], rsi",
                "mov [rbp - 24], rdx",
                "mov [rbp - 32], rcx",
                "mov [rbp - 40], r8",
                "mov [rbp - 48], r9",
                "mov [rbp - 56], rax",
                "movups [rbp - 80], xmm0",
                "movups [rbp - 96], xmm1",
                "movups [rbp - 112], xmm2",
                "movups [rbp - 128], xmm3",
                "movups [rbp - 144], xmm4",
                "movups [rbp - 160], xmm5",
                "movups [rbp - 176], xmm6",
                "movups [rbp - 192], xmm7",
                "call {prepare}",
                "mov r11, rax",
                "mov rdi, [rbp - 8]",
                "mov rsi, [rbp - 16]",
                "mov rdx, [rbp - 24]",
                "mov rcx, [rbp - 32]",
                "mov r8, [rbp - 40]",
                "mov r9, [rbp - 48]",
                "mov rax, [rbp - 56]",
                "movups xmm0, [rbp - 80]",
                "movups xmm1, [rbp - 96]",
                "movups xmm2, [rbp - 112]",
                "movups xmm3, [rbp - 128]",
                "movups xmm4, [rbp - 144]",
                "movups xmm5, [rbp - 160]",
                "movups xmm6, [rbp - 176]",
                "movups xmm7, [rbp - 192]",
                "leave",
                "jmp r11",
                prepare = sym $prepare,
            )
        }

        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                "stp x29, x30, [sp, -224]!",
                "mov x29, sp",
                "stp x0, x1, [sp, 16]",
                "stp x2, x3, [sp, 32]",
                "stp x4, x5, [sp, 48]",
                "stp x6, x7, [sp, 64]",
                "str x8, [sp, 80]",
                "stp q0, q1, [sp, 96]",
                "stp q2, q3, [sp, 128]",
                "stp q4, q5, [sp, 160]",
                "stp q6, q7, [sp, 192]",
                "bl {prepare}",
                "mov x16, x0",
                "ldp x0, x1, [sp, 16]",
                "ldp x2, x3, [sp, 32]",
                "ldp x4, x5, [sp, 48]",
                "ldp x6, x7, [sp, 64]",
                "ldr x8, [sp, 80]",
                "ldp q0, q1, [sp, 96]",
                "ldp q2, q3, [sp, 128]",
                "ldp q4, q5, [sp, 160]",
                "ldp q6, q7, [sp, 192]",
                "ldp x29, x30, [sp], 224",
                "br x16",
                prepare = sym $prepare,
            )
        }
    )*};
}

variadic! {
    dprintf by before_dprintf(fd: c_int) after_giving_up(fd, real::dprintf());
    __dprintf_chk by before_dprintf_chk(fd: c_int) after_giving_up(fd, real::__dprintf_chk());
    vdprintf by before_vdprintf(fd: c_int) after_giving_up(fd, real::vdprintf());
    __vdprintf_chk by before_vdprintf_chk(fd: c_int) after_giving_up(fd, real::__vdprintf_chk());
    execl by before_execl(_path: *const c_char) exec::before(real::execl());
    execle by before_execle(_path: *const c_char) exec::before(real::execle());
    execlp by before_execlp(_path: *const c_char) exec::before(real::execlp());
    vfork by before_vfork(_nothing: c_int) fs::leave::before_vfork_by(real::vfork());
    clone by before_clone(_function: *const c_void) fs::leave::before_child_by(real::clone());
}

//! Small programs and maps of the kernel's virtual machine (bpf(2)), for programs that a library with a compiler would only make
//! larger.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::{io, ptr};

/// Commands of `linux/bpf.h`.
const BPF_MAP_CREATE: libc::c_long = 0;
const BPF_MAP_UPDATE_ELEM: libc::c_long = 2;
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_PROG_ATTACH: libc::c_long = 8;
const BPF_LINK_CREATE: libc::c_long = 28;

/// The map in the place of a constant of two instructions (`BPF_PSEUDO_MAP_FD`).
pub const MAP_FD: u8 = 1;

/// An instruction (`struct bpf_insn`): operation, registers (target, and source above it), offset, constant.
pub const fn step(operation: u8, target: u8, source: u8, offset: i16, constant: i32) -> u64 {
    let [low, high] = offset.to_le_bytes();
    let [a, b, c, d] = constant.to_le_bytes();
    u64::from_le_bytes([operation, source << 4 | target, low, high, a, b, c, d])
}

/// A map of a kind, with keys and values of so many bytes.
///
/// # Errors
/// The kernel refuses it.
pub fn map(kind: u32, key_bytes: u32, value_bytes: u32, entries: u32) -> io::Result<OwnedFd> {
    // union bpf_attr: map_type, key_size, value_size, max_entries.
    bpf(BPF_MAP_CREATE, &mut [kind, key_bytes, value_bytes, entries])
}

/// Puts a descriptor into a map whose keys have `KEY` bytes and whose values have four.
///
/// # Errors
/// The kernel refuses it.
pub fn put<const KEY: usize>(map: BorrowedFd<'_>, key: [u8; KEY], value: BorrowedFd<'_>) -> io::Result<()> {
    #[repr(C)]
    struct Update {
        map_fd: u32,
        _gap: u32,
        key: *const u8,
        value: *const i32,
        flags: u64,
    }
    let value = value.as_raw_fd();
    let mut update = Update {
        map_fd: map.as_raw_fd() as u32,
        _gap: 0,
        key: key.as_ptr(),
        value: &raw const value,
        flags: 0,
    };
    let bytes = size_of::<Update>();
    // SAFETY: the attributes, the key and the value live through the call. The kernel reads as many bytes of them as the map was
    // made with, which the caller says are these.
    let result = unsafe { libc::syscall(libc::SYS_bpf, BPF_MAP_UPDATE_ELEM, &raw mut update, bytes) };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A program of a kind.
///
/// # Errors
/// The kernel refuses it.
pub fn program(kind: u32, steps: &[u64]) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Load {
        kind: u32,
        count: u32,
        steps: *const u64,
        license: *const libc::c_char,
        log_level: u32,
        log_size: u32,
        log: *const u8,
        kernel: u32,
        flags: u32,
    }
    let mut load = Load {
        kind,
        count: steps.len() as u32,
        steps: steps.as_ptr(),
        license: c"Apache-2.0".as_ptr(),
        log_level: 0,
        log_size: 0,
        log: ptr::null(),
        kernel: 0,
        flags: 0,
    };
    // SAFETY: the attributes, the steps and the licence live through the call.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_LOAD, &raw mut load, size_of::<Load>()) };
    owned(fd)
}

/// Puts a program at an interface, until the answer is dropped.
///
/// # Errors
/// The kernel refuses it, or the interface has a program already.
pub fn link(program: BorrowedFd<'_>, interface: u32, kind: u32, flags: u32) -> io::Result<OwnedFd> {
    // union bpf_attr: link_create.prog_fd, target_ifindex, attach_type, flags.
    let mut attributes = [program.as_raw_fd() as u32, interface, kind, flags];
    bpf(BPF_LINK_CREATE, &mut attributes)
}

/// Puts a program at a map of sockets, for as long as there is the map.
///
/// # Errors
/// The kernel refuses it.
pub fn attach(program: BorrowedFd<'_>, map: BorrowedFd<'_>, kind: u32) -> io::Result<()> {
    // union bpf_attr: target_fd, attach_bpf_fd, attach_type, attach_flags.
    let attributes = [map.as_raw_fd() as u32, program.as_raw_fd() as u32, kind, 0];
    let bytes = size_of_val(&attributes);
    // SAFETY: the attributes live through the call; those that are left out are zeros.
    match unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_ATTACH, attributes.as_ptr(), bytes) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A command whose attributes are numbers, and whose answer is a descriptor.
fn bpf(command: libc::c_long, attributes: &mut [u32; 4]) -> io::Result<OwnedFd> {
    let bytes = size_of_val(attributes);
    // SAFETY: the attributes live through the call; those that are left out are zeros.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_mut_ptr(), bytes) };
    owned(fd)
}

fn owned(fd: libc::c_long) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

//! The kernel's side of AF_XDP: a map of sockets, and a program of five steps that hands frames to them (bpf(2)).
//!
//! A library that loads such programs wants a compiler for them; this program needs neither.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::{io, ptr};

/// Commands, types and helpers of `linux/bpf.h`.
const BPF_MAP_CREATE: libc::c_long = 0;
const BPF_MAP_UPDATE_ELEM: libc::c_long = 2;
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_MAP_TYPE_XSKMAP: u32 = 17;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;
const BPF_FUNC_REDIRECT_MAP: i32 = 51;
const XDP_PASS: i32 = 2;
/// The place of the queue in the context (`struct xdp_md`).
const RX_QUEUE_INDEX_AT: i16 = 16;
/// Modes of `linux/if_link.h`.
const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

/// The place at which the kernel calls the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// In the driver if it can, or else behind it.
    #[default]
    Best,
    /// Behind the driver, for any interface.
    Skb,
    /// In the driver.
    Native,
}

/// A program at an interface, until it is dropped.
#[derive(Debug)]
pub struct Attached {
    map: OwnedFd,
    _link: OwnedFd,
    /// Whether the driver calls it.
    pub is_native: bool,
}

/// Hands the frames of an interface's first `queues` queues to the sockets that are put in. Others, and frames of queues without
/// a socket, go to the kernel.
///
/// # Errors
/// The kernel refuses it, or the interface has a program already.
pub fn attach(interface: u32, queues: u32, mode: Mode) -> io::Result<Attached> {
    // union bpf_attr: map_type, key_size, value_size, max_entries.
    let map = bpf(BPF_MAP_CREATE, &mut [BPF_MAP_TYPE_XSKMAP, 4, 4, queues])?;
    let program = load(&map)?;
    let tries: &[u32] = match mode {
        Mode::Best => &[XDP_FLAGS_DRV_MODE, XDP_FLAGS_SKB_MODE],
        Mode::Skb => &[XDP_FLAGS_SKB_MODE],
        Mode::Native => &[XDP_FLAGS_DRV_MODE],
    };
    let mut refused = io::Error::from(io::ErrorKind::Unsupported);
    for flags in tries {
        // union bpf_attr: link_create.prog_fd, target_ifindex, attach_type, flags.
        let mut attributes = [program.as_raw_fd() as u32, interface, BPF_XDP, *flags];
        match bpf(BPF_LINK_CREATE, &mut attributes) {
            Ok(link) => {
                return Ok(Attached {
                    map,
                    _link: link,
                    is_native: *flags == XDP_FLAGS_DRV_MODE,
                });
            }
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

impl Attached {
    /// Hands a queue's frames to a socket.
    ///
    /// # Errors
    /// There is no such queue.
    pub fn put(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        #[repr(C)]
        struct Update {
            map_fd: u32,
            _gap: u32,
            key: *const u32,
            value: *const i32,
            flags: u64,
        }
        let value = socket.as_raw_fd();
        let mut update = Update {
            map_fd: self.map.as_raw_fd() as u32,
            _gap: 0,
            key: &raw const queue,
            value: &raw const value,
            flags: 0,
        };
        let bytes = size_of::<Update>();
        // SAFETY: the attributes, the key and the value live through the call, and have the sizes that the map was made with.
        let result = unsafe { libc::syscall(libc::SYS_bpf, BPF_MAP_UPDATE_ELEM, &raw mut update, bytes) };
        match result {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// An instruction (`struct bpf_insn`): operation, registers (target, and source above it), offset, constant.
const fn step(operation: u8, target: u8, source: u8, offset: i16, constant: i32) -> u64 {
    let [low, high] = offset.to_le_bytes();
    let [a, b, c, d] = constant.to_le_bytes();
    u64::from_le_bytes([operation, source << 4 | target, low, high, a, b, c, d])
}

/// `return bpf_redirect_map(&map, ctx->rx_queue_index, XDP_PASS);`
fn load(map: &OwnedFd) -> io::Result<OwnedFd> {
    const LOAD_WORD: u8 = 0x61;
    const LOAD_MAP: u8 = 0x18;
    const MAP_FD: u8 = 1;
    const MOVE: u8 = 0xb7;
    const CALL: u8 = 0x85;
    const EXIT: u8 = 0x95;
    let steps = [
        step(LOAD_WORD, 2, 1, RX_QUEUE_INDEX_AT, 0),
        step(LOAD_MAP, 1, MAP_FD, 0, map.as_raw_fd()),
        step(0, 0, 0, 0, 0),
        step(MOVE, 3, 0, 0, XDP_PASS),
        step(CALL, 0, 0, 0, BPF_FUNC_REDIRECT_MAP),
        step(EXIT, 0, 0, 0, 0),
    ];
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
        kind: BPF_PROG_TYPE_XDP,
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

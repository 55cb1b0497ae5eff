//! The kernel's side of AF_XDP: a map of sockets, and a program of five steps that hands frames to them (bpf(2)).
//!
//! A library that loads such programs wants a compiler for them; this program needs neither.

use os::bpf::{self, MAP_FD, step};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Types and helpers of `linux/bpf.h`.
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
    let map = bpf::map(BPF_MAP_TYPE_XSKMAP, 4, 4, queues)?;
    let program = bpf::program(BPF_PROG_TYPE_XDP, &steps(&map))?;
    let tries: &[u32] = match mode {
        Mode::Best => &[XDP_FLAGS_DRV_MODE, XDP_FLAGS_SKB_MODE],
        Mode::Skb => &[XDP_FLAGS_SKB_MODE],
        Mode::Native => &[XDP_FLAGS_DRV_MODE],
    };
    let mut refused = io::Error::from(io::ErrorKind::Unsupported);
    for flags in tries {
        match bpf::link(program.as_fd(), interface, BPF_XDP, *flags) {
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
        bpf::put(self.map.as_fd(), queue.to_ne_bytes(), socket)
    }
}

/// `return bpf_redirect_map(&map, ctx->rx_queue_index, XDP_PASS);`
fn steps(map: &OwnedFd) -> [u64; 6] {
    const LOAD_WORD: u8 = 0x61;
    const LOAD_MAP: u8 = 0x18;
    const MOVE: u8 = 0xb7;
    const CALL: u8 = 0x85;
    const EXIT: u8 = 0x95;
    [
        step(LOAD_WORD, 2, 1, RX_QUEUE_INDEX_AT, 0),
        step(LOAD_MAP, 1, MAP_FD, 0, map.as_raw_fd()),
        step(0, 0, 0, 0, 0),
        step(MOVE, 3, 0, 0, XDP_PASS),
        step(CALL, 0, 0, 0, BPF_FUNC_REDIRECT_MAP),
        step(EXIT, 0, 0, 0, 0),
    ]
}

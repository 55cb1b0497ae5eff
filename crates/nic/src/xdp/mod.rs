//! AF_XDP: frames of one hardware queue of an interface, by rings that are shared with the kernel. The kernel's own stack does not
//! see them.
//!
//! Frames are not longer than half a page, so the link cuts no segments. The kernel tells nothing of checksums, so the stack
//! verifies them. The kernel at the other end of a `veth` does not make them, unless `ethtool -K IFACE tx off` tells it to:
//! [`Options::peer_sends_no_checksums`].
//!
//! Behind the driver ([`Mode::Skb`]) the kernel may have joined segments to frames that are longer, and drops them then: `ethtool -K IFACE
//! gro off`, and `gso_max_segs 1` at the other end of a `veth`.

mod program;
mod ring;

use crate::frames::{Checksums, ETHERNET_BYTES, Frame, Frames, Limits, LinkError, Sleep, Written};
use crate::interface::{Interface, is_gone};
use crate::offload;
use os::sync::Arc;
use program::Attached;
use ring::Ring;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING, XDP_UMEM_PGOFF_COMPLETION_RING,
    XDP_UMEM_PGOFF_FILL_RING, XdpDesc, XdpDescOptions, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::{io, ptr, slice};

pub use program::Mode;

/// Chunks of memory for each direction, and entries of the rings that the kernel fills.
const CHUNKS: u32 = 1024;
/// Entries of the rings that the kernel empties. It tells what it has taken only when it looks for more, up to a whole direction's chunks later: by then
/// each of them may have been through the socket, and be put once more.
const ROOM: u32 = 2 * CHUNKS;
/// Bytes of a chunk: the kernel takes 2 KiB to a page.
const CHUNK_BYTES: u32 = 2048;
/// Bytes that the kernel keeps before a frame that has arrived (`XDP_PACKET_HEADROOM`).
const HEADROOM_BYTES: u32 = 256;
/// The longest packet that a chunk takes.
const MTU_MAX: u16 = (CHUNK_BYTES - HEADROOM_BYTES) as u16 - ETHERNET_BYTES as u16;

/// How an interface is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// The place in the kernel from which frames come.
    pub mode: Mode,
    /// The first queue.
    pub queue: u32,
    /// The other end is memory of this host, whose frames arrive whole and without checksums: nobody looks at them. Sent frames have them.
    pub peer_sends_no_checksums: bool,
}

/// The memory of a socket's frames.
#[derive(Debug)]
struct Chunks {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: one socket owns it; the kernel has it by the rules of the rings.
unsafe impl Send for Chunks {}

impl Chunks {
    fn new() -> io::Result<Self> {
        let bytes = 2 * CHUNKS as usize * CHUNK_BYTES as usize;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        // SAFETY: a new mapping; nothing is replaced.
        let base = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), bytes, protection, flags) }?;
        let base = base.cast();
        Ok(Self { base, bytes })
    }

    /// Bytes of the memory, which the kernel has given to this process.
    fn at(&mut self, at: u64, bytes: usize) -> Option<&mut [u8]> {
        let end = usize::try_from(at).ok()?.checked_add(bytes)?;
        if end > self.bytes {
            return None;
        }
        // SAFETY: inside the mapping; the rings say that the kernel does not use the chunk, and the reference is unique.
        Some(unsafe { slice::from_raw_parts_mut(self.base.add(at as usize), bytes) })
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        // SAFETY: the mapping made at the start, into which no reference is left.
        let result = unsafe { rustix::mm::munmap(self.base.cast(), self.bytes) };
        debug_assert!(result.is_ok(), "it was mapped");
    }
}

/// One queue of an interface.
#[derive(Debug)]
pub struct Xdp {
    // Before the memory, which the kernel uses as long as there is the socket.
    socket: OwnedFd,
    fill: Ring<u64>,
    completed: Ring<u64>,
    received: Ring<XdpDesc>,
    sending: Ring<XdpDesc>,
    chunks: Chunks,
    /// Chunks that nobody is sending.
    free: Vec<u64>,
    limits: Limits,
    is_told: bool,
    attached: Arc<Attached>,
}

/// Opens `queues` queues of an interface from the first one on. Needs CAP_NET_ADMIN and CAP_BPF.
///
/// # Errors
/// There is no such interface, its packets are too long, another program has it (also for a moment after that program's end),
/// or the kernel refuses it.
pub fn open(interface: &str, queues: u32, options: Options) -> io::Result<Vec<Xdp>> {
    let interface = Interface::open(interface)?;
    let mtu = interface.mtu()?;
    if mtu > MTU_MAX {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!("the interface's MTU is {mtu}, and AF_XDP takes {MTU_MAX} here"),
        ));
    }
    let limits = Limits {
        mtu,
        segment_bytes_max: 0,
        checksums: if options.peer_sends_no_checksums {
            Checksums::Link
        } else {
            Checksums::Stack
        },
        mac: Some(interface.mac()?),
    };
    let last = options.queue + queues;
    let attached = Arc::new(program::attach(interface.index, last, options.mode)?);
    (options.queue..last)
        .map(|queue| Xdp::open(interface.index, queue, limits, Arc::clone(&attached)))
        .collect()
}

impl Xdp {
    fn open(interface: u32, queue: u32, limits: Limits, attached: Arc<Attached>) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::XDP, SocketType::RAW, flags, None)?;
        let chunks = Chunks::new()?;
        let memory = XdpUmemReg {
            addr: chunks.base as u64,
            len: chunks.bytes as u64,
            chunk_size: CHUNK_BYTES,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        sockopt::set_xdp_umem_reg(&socket, memory)?;
        sockopt::set_xdp_umem_fill_ring_size(&socket, ROOM)?;
        sockopt::set_xdp_umem_completion_ring_size(&socket, CHUNKS)?;
        sockopt::set_xdp_rx_ring_size(&socket, CHUNKS)?;
        sockopt::set_xdp_tx_ring_size(&socket, ROOM)?;
        let places = sockopt::xdp_mmap_offsets(&socket)?;
        let fd = socket.as_fd();
        let mut fill = Ring::map(fd, XDP_UMEM_PGOFF_FILL_RING, places.fr, ROOM)?;
        let completed = Ring::map(fd, XDP_UMEM_PGOFF_COMPLETION_RING, places.cr, CHUNKS)?;
        let received = Ring::map(fd, XDP_PGOFF_RX_RING, places.rx, CHUNKS)?;
        let sending = Ring::map(fd, XDP_PGOFF_TX_RING, places.tx, ROOM)?;
        let place = |index: u32| u64::from(index) * u64::from(CHUNK_BYTES);
        (0..CHUNKS).for_each(|index| assert!(fill.put(place(index)), "the ring has room for all"));
        fill.publish();
        let flags = SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
        rustix::net::bind(&socket, &SocketAddrXdp::new(flags, interface, queue))?;
        attached.put(queue, socket.as_fd())?;
        Ok(Self {
            socket,
            fill,
            completed,
            received,
            sending,
            chunks,
            free: (CHUNKS..2 * CHUNKS).map(place).collect(),
            limits,
            is_told: true,
            attached,
        })
    }

    /// Whether the driver hands the frames over, not the kernel behind it.
    pub fn is_native(&self) -> bool {
        self.attached.is_native
    }

    /// Takes back what was sent.
    fn collect(&mut self) {
        while let Some(place) = self.completed.take() {
            self.free.push(place);
        }
        self.completed.give_back();
    }

    /// Has the kernel look at the ring of frames to be sent.
    fn kick(&mut self) -> Result<(), LinkError> {
        match rustix::net::send(&self.socket, &[], SendFlags::DONTWAIT) {
            Err(error) if is_gone(error) => Err(LinkError::Io(error.into())),
            // The kernel has sent a part, or is at it, or the interface is down for a while: the rest is tried again.
            _ => Ok(()),
        }
    }
}

impl Frames for Xdp {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn receive(&mut self, count_max: usize, take: &mut dyn FnMut(Frame<'_>)) -> Result<usize, LinkError> {
        let mut count = 0;
        while count < count_max {
            let Some(entry) = self.received.take() else {
                break;
            };
            count += 1;
            if let Some(bytes) = self.chunks.at(entry.addr, entry.len as usize) {
                take(Frame {
                    bytes,
                    segment_bytes: 0,
                });
            }
            let place = entry.addr / u64::from(CHUNK_BYTES) * u64::from(CHUNK_BYTES);
            assert!(
                self.fill.put(place),
                "the ring has room for every chunk of this direction"
            );
        }
        if count > 0 {
            self.received.give_back();
            self.fill.publish();
        }
        if self.fill.needs_wakeup() {
            let result = rustix::net::recv(&self.socket, &mut [0u8; 0], RecvFlags::DONTWAIT);
            if let Err(error) = result
                && is_gone(error)
            {
                return Err(LinkError::Io(error.into()));
            }
        }
        Ok(count)
    }

    fn send(&mut self, fill: &mut dyn FnMut(&mut [u8]) -> Option<Written>) -> Result<usize, LinkError> {
        self.collect();
        let mut count = 0;
        while let Some(place) = self.free.pop() {
            let chunk = self.chunks.at(place, CHUNK_BYTES as usize);
            let chunk = chunk.expect("places are inside");
            let Some(written) = fill(chunk) else {
                self.free.push(place);
                break;
            };
            if self.limits.checksums == Checksums::Link {
                offload::complete(&mut chunk[..written.bytes]);
            }
            let entry = XdpDesc {
                addr: place,
                len: written.bytes as u32,
                options: XdpDescOptions::empty(),
            };
            assert!(
                self.sending.put(entry),
                "the ring has room for every chunk of this direction"
            );
            count += 1;
        }
        if count > 0 {
            self.sending.publish();
            self.is_told = false;
        }
        Ok(count)
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        if self.is_told {
            return Ok(());
        }
        if self.sending.needs_wakeup() {
            self.kick()?;
        }
        self.is_told = self.sending.is_taken();
        Ok(())
    }

    fn arm(&mut self) -> Option<Sleep> {
        if self.received.has_more() {
            return None;
        }
        let writable = !self.is_told || self.free.is_empty();
        Some(Sleep {
            writable,
            ..Sleep::default()
        })
    }

    fn disarm(&mut self) {}

    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

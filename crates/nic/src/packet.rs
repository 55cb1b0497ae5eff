//! AF_PACKET: frames of an interface of the kernel, by `recvmmsg` and `sendmmsg`.
//!
//! The kernel sees the same frames. An owner with an IP address of its own uses one that the kernel does not have on the
//! interface, or the kernel answers for it with a reset.

use crate::frames::{Checksums, FRAME_BYTES_MAX, Frame, Frames, Limits, LinkError, Sleep, Written};
use crate::interface::{Interface, is_gone};
use crate::offload::{self, HEADER_BYTES};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::{array, io, mem, ptr};

/// Frames of one system call. The buffers of one direction are 2 MiB then.
const BATCH: usize = 32;
/// Bytes of a buffer.
const BUFFER_BYTES: usize = HEADER_BYTES + FRAME_BYTES_MAX;
/// Bytes that the kernel queues for each direction: a hundred of the longest frames.
const SOCKET_BYTES: libc::c_int = 8 << 20;
/// Spread by a hash of addresses and ports, in a group with a number that nobody else has (packet(7)).
const NEW_GROUP: libc::c_int = (libc::PACKET_FANOUT_HASH | libc::PACKET_FANOUT_FLAG_UNIQUEID) as libc::c_int;

/// One queue of an interface.
#[derive(Debug)]
pub struct Packet {
    socket: OwnedFd,
    limits: Limits,
    incoming: Box<[u8]>,
    outgoing: Box<[u8]>,
    /// Bytes of each frame that was written.
    lengths: [usize; BATCH],
    /// Frames of the batch that were written, and sent.
    written: usize,
    sent: usize,
}

/// Opens an interface with so many queues, among which the kernel spreads flows. Needs CAP_NET_RAW.
///
/// # Errors
/// There is no such interface, or the kernel refuses it.
pub fn open(interface: &str, queues: usize) -> io::Result<Vec<Packet>> {
    let interface = Interface::open(interface)?;
    let limits = Limits {
        mtu: interface.mtu()?,
        segment_bytes_max: u16::MAX - 120,
        checksums: Checksums::Link,
        mac: None,
    };
    let mut group = None;
    let mut all = Vec::new();
    for _ in 0..queues {
        let socket = open_socket(&interface)?;
        if queues > 1 {
            group = Some(join_group(&socket, group)?);
        }
        all.push(Packet {
            socket,
            limits,
            incoming: vec![0; BATCH * BUFFER_BYTES].into(),
            outgoing: vec![0; BATCH * BUFFER_BYTES].into(),
            lengths: [0; BATCH],
            written: 0,
            sent: 0,
        });
    }
    Ok(all)
}

fn open_socket(interface: &Interface) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers. Without a protocol nothing arrives before all is set.
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    set(&socket, libc::SOL_PACKET, libc::PACKET_VNET_HDR, &1)?;
    set(&socket, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1)?;
    // Without CAP_NET_ADMIN the system's limit is what there is.
    for (forced, plain) in [
        (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF),
        (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF),
    ] {
        set(&socket, libc::SOL_SOCKET, forced, &SOCKET_BYTES)
            .or_else(|_| set(&socket, libc::SOL_SOCKET, plain, &SOCKET_BYTES))?;
    }
    // SAFETY: zeros are an address.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = interface.index as i32;
    let bytes = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the address lives through the call, and has so many bytes.
    if unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), bytes) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zeros are a membership.
    let mut membership: libc::packet_mreq = unsafe { mem::zeroed() };
    membership.mr_ifindex = interface.index as i32;
    membership.mr_type = libc::PACKET_MR_PROMISC as u16;
    set(
        &socket,
        libc::SOL_PACKET,
        libc::PACKET_ADD_MEMBERSHIP,
        &membership,
    )?;
    Ok(socket)
}

/// Makes a socket one of a group among which flows are spread. Answers the group.
fn join_group(socket: &OwnedFd, group: Option<libc::c_int>) -> io::Result<libc::c_int> {
    let wanted = match group {
        None => NEW_GROUP << 16,
        Some(group) => group & 0xffff | (libc::PACKET_FANOUT_HASH as libc::c_int) << 16,
    };
    set(socket, libc::SOL_PACKET, libc::PACKET_FANOUT, &wanted)?;
    let mut made: libc::c_int = 0;
    let mut bytes = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel fills at most `bytes` bytes, which `made` has.
    let result = unsafe {
        let made = (&raw mut made).cast();
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_FANOUT,
            made,
            &mut bytes,
        )
    };
    match result {
        0 => Ok(made),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set<T>(socket: &OwnedFd, level: libc::c_int, name: libc::c_int, value: &T) -> io::Result<()> {
    let bytes = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel reads at most `bytes` bytes, which `value` has.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            ptr::from_ref(value).cast(),
            bytes,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Calls `call` with a message for each of `lengths`, whose bytes lie in `buffers`. Answers how many it has taken, and puts the
/// bytes of these into `lengths`.
fn exchange(
    buffers: &mut [u8],
    lengths: &mut [usize],
    call: impl FnOnce(&mut [libc::mmsghdr]) -> libc::c_int,
) -> Result<usize, Errno> {
    let mut parts: [libc::iovec; BATCH] = array::from_fn(|_| libc::iovec {
        iov_base: ptr::null_mut(),
        iov_len: 0,
    });
    // SAFETY: zeros are a message without parts.
    let mut messages: [libc::mmsghdr; BATCH] = unsafe { mem::zeroed() };
    for ((index, buffer), length) in buffers.chunks_mut(BUFFER_BYTES).enumerate().zip(&*lengths) {
        parts[index] = libc::iovec {
            iov_base: buffer.as_mut_ptr().cast(),
            iov_len: *length,
        };
        messages[index].msg_hdr.msg_iov = &raw mut parts[index];
        messages[index].msg_hdr.msg_iovlen = 1;
    }
    let done = call(&mut messages[..lengths.len()]);
    if done < 0 {
        return Err(last_error());
    }
    for (length, message) in lengths.iter_mut().zip(&messages[..done as usize]) {
        *length = message.msg_len as usize;
    }
    Ok(done as usize)
}

fn last_error() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).expect("the kernel has set it")
}

impl Packet {
    /// Sends what was written, as far as there is room.
    fn push(&mut self) -> Result<(), LinkError> {
        while self.sent < self.written {
            let buffers = &mut self.outgoing[self.sent * BUFFER_BYTES..];
            let lengths = &mut self.lengths[self.sent..self.written];
            let fd = self.socket.as_raw_fd();
            // SAFETY: the messages, their parts and their buffers live through the call.
            let sent = exchange(buffers, lengths, |messages| unsafe {
                let count = messages.len() as libc::c_uint;
                libc::sendmmsg(fd, messages.as_mut_ptr(), count, libc::MSG_DONTWAIT)
            });
            match sent {
                Ok(count) => self.sent += count,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) if is_gone(error) => return Err(LinkError::Io(error.into())),
                // A frame that the kernel does not take is lost, as on a wire. It may be another's, and malformed.
                Err(_) => self.sent += 1,
            }
        }
        (self.sent, self.written) = (0, 0);
        Ok(())
    }
}

impl Frames for Packet {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn receive(&mut self, count_max: usize, take: &mut dyn FnMut(Frame<'_>)) -> Result<usize, LinkError> {
        let mut lengths = [BUFFER_BYTES; BATCH];
        let lengths = &mut lengths[..count_max.min(BATCH)];
        let fd = self.socket.as_raw_fd();
        // SAFETY: the messages, their parts and their buffers live through the call.
        let received = exchange(&mut self.incoming, lengths, |messages| unsafe {
            let count = messages.len() as libc::c_uint;
            let none = ptr::null_mut();
            libc::recvmmsg(fd, messages.as_mut_ptr(), count, libc::MSG_DONTWAIT, none)
        });
        let count = match received {
            Ok(count) => count,
            Err(error) if is_gone(error) => return Err(LinkError::Io(error.into())),
            // Nothing is there, or the kernel cannot tell of a frame how it is to be cut, and has dropped it.
            Err(_) => return Ok(0),
        };
        for (buffer, length) in self.incoming.chunks(BUFFER_BYTES).zip(&lengths[..count]) {
            offload::hand_on(&buffer[..*length], take);
        }
        Ok(count)
    }

    fn send(&mut self, fill: &mut dyn FnMut(&mut [u8]) -> Option<Written>) -> Result<usize, LinkError> {
        let mut count = 0;
        loop {
            if self.written == BATCH {
                self.push()?;
                if self.written == BATCH {
                    return Ok(count);
                }
            }
            let buffer = &mut self.outgoing[self.written * BUFFER_BYTES..][..BUFFER_BYTES];
            let Some(bytes) = offload::write(buffer, fill) else {
                return Ok(count);
            };
            self.lengths[self.written] = bytes;
            self.written += 1;
            count += 1;
        }
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        self.push()
    }

    fn arm(&mut self) -> Option<Sleep> {
        Some(Sleep {
            writable: self.sent < self.written,
            ..Sleep::default()
        })
    }

    fn disarm(&mut self) {}

    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

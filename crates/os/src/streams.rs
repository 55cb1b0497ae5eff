//! Connected sockets behind one io_uring of one thread: each has one standing receive (`IORING_RECV_MULTISHOT`) into buffers that
//! all share, and sends go to the kernel together. The fastest way that Linux' own TCP has.

use crate::ring::Ring;
use crate::sync::{Ordering, fence};
use io_uring::types::{BufRingEntry, Fd};
use io_uring::{cqueue, opcode, squeue};
use std::os::fd::{AsRawFd, OwnedFd};
use std::{io, ptr, slice};

/// The group of the buffers.
const GROUP: u16 = 0;
/// The number of an entry whose end nobody needs: an error of it is one of the socket, whose receive ends.
const SEND: u64 = u64::MAX;
/// Buffers; a power of two.
const BUFFERS: u16 = 1024;
const PAGE_BYTES: usize = 4096;

/// Memory of a page's alignment, whose first part is the ring of buffers, and whose rest the buffers.
#[derive(Debug)]
struct Buffers {
    base: *mut u8,
    bytes: usize,
    buffer_bytes: usize,
    /// Buffers that were given to the kernel, modulo 2¹⁶.
    given: u16,
}

// SAFETY: the memory belongs to this value.
unsafe impl Send for Buffers {}

const RING_BYTES: usize = (BUFFERS as usize * size_of::<BufRingEntry>()).next_multiple_of(PAGE_BYTES);

impl Buffers {
    fn new(buffer_bytes: usize) -> io::Result<Self> {
        let bytes = RING_BYTES + usize::from(BUFFERS) * buffer_bytes;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        // SAFETY: a new mapping; nothing is replaced.
        let base = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            base: base.cast(),
            bytes,
            buffer_bytes,
            given: 0,
        })
    }

    fn at(&self, buffer: u16) -> *mut u8 {
        // SAFETY: the mapping has so many buffers behind the ring.
        unsafe {
            self.base
                .add(RING_BYTES + usize::from(buffer % BUFFERS) * self.buffer_bytes)
        }
    }

    /// Gives a buffer to the kernel, which sees it after [`Buffers::publish`].
    fn give(&mut self, buffer: u16) {
        let place = usize::from(self.given % BUFFERS);
        let address = self.at(buffer) as u64;
        // SAFETY: an entry of the mapping that the kernel has taken, or has not seen yet. The tail, which lies in the first entry's
        // last two bytes, stays.
        let entry = unsafe { &mut *self.base.cast::<BufRingEntry>().add(place) };
        entry.set_addr(address);
        entry.set_len(self.buffer_bytes as u32);
        entry.set_bid(buffer);
        self.given = self.given.wrapping_add(1);
    }

    fn publish(&self) {
        // SAFETY: the ring begins here, and zeros are entries.
        let tail = unsafe { BufRingEntry::tail(self.base.cast()) };
        // Release: the entries were written before.
        fence(Ordering::Release);
        // SAFETY: two aligned bytes of the mapping, which the kernel reads and nobody else writes.
        unsafe { tail.cast_mut().write_volatile(self.given) };
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        // SAFETY: the mapping made at the start, into which no reference is left; the kernel's ring is gone (the order of fields).
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}

/// The sockets.
pub struct Streams {
    // Before the memory that the kernel writes to.
    ring: Ring,
    buffers: Buffers,
    sockets: Vec<OwnedFd>,
    /// Bytes that are being sent, by socket.
    outgoing: Vec<Box<[u8]>>,
}

impl Streams {
    /// Sockets whose messages have at most so many bytes.
    ///
    /// # Errors
    /// The kernel has no rings, or forbids them.
    pub fn new(sockets: Vec<OwnedFd>, message_bytes_max: usize) -> io::Result<Self> {
        let entries = (2 * sockets.len() as u32).next_power_of_two().max(64);
        let mut ring = Ring::for_sockets(entries)?;
        let mut buffers = Buffers::new(message_bytes_max)?;
        // SAFETY: the memory lives longer than the ring (the order of fields), is aligned to a page, and has so many entries.
        unsafe { ring.register_group(buffers.base, BUFFERS, GROUP) }?;
        (0..BUFFERS).for_each(|buffer| buffers.give(buffer));
        buffers.publish();
        let outgoing = sockets
            .iter()
            .map(|_| vec![0; message_bytes_max].into())
            .collect();
        let mut streams = Self {
            ring,
            buffers,
            sockets,
            outgoing,
        };
        (0..streams.sockets.len()).for_each(|socket| streams.listen(socket));
        streams.submit()?;
        Ok(streams)
    }

    /// Has a socket receive until its end.
    fn listen(&mut self, socket: usize) {
        let receive = opcode::RecvMulti::new(Fd(self.sockets[socket].as_raw_fd()), GROUP);
        self.push(&receive.build().user_data(socket as u64));
    }

    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: the sockets, the buffers and the bytes live as long as the ring. It has room for a send and a receive of each socket.
        unsafe { self.ring.push(entry) };
    }

    /// Queues a message, which goes with the next [`Streams::submit`] or [`Streams::wait`]. The last one of this socket must have been
    /// answered: its bytes are written over.
    pub fn send(&mut self, socket: usize, bytes: &[u8]) {
        let place = &mut self.outgoing[socket][..bytes.len()];
        place.copy_from_slice(bytes);
        let fd = Fd(self.sockets[socket].as_raw_fd());
        let send = opcode::Send::new(fd, place.as_ptr(), bytes.len() as u32)
            .build()
            .flags(squeue::Flags::SKIP_SUCCESS)
            .user_data(SEND);
        self.push(&send);
    }

    /// Hands what is queued to the kernel.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn submit(&mut self) -> io::Result<()> {
        self.ring.submit().map(|_| ())
    }

    /// Hands what is queued to the kernel, waits for something, and gives what was received to `take`, by socket.
    ///
    /// # Errors
    /// A socket has failed, or the other end has gone.
    pub fn wait(&mut self, mut take: impl FnMut(usize, &[u8])) -> io::Result<()> {
        self.ring.wait(None)?;
        let mut ended = None;
        let mut given = 0;
        while let Some((number, result, flags)) = self.ring.next_end_and_flags() {
            if number == SEND {
                return Err(io::Error::from_raw_os_error(-result));
            }
            let socket = number as usize;
            match result {
                // No buffer was free.
                code if code == -libc::ENOBUFS => {}
                code if code < 0 => return Err(io::Error::from_raw_os_error(-code)),
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => {
                    let buffer = cqueue::buffer_select(flags).expect("a receive takes a buffer");
                    let bytes = (count as usize).min(self.buffers.buffer_bytes);
                    // SAFETY: the kernel has written so many bytes of this buffer, and does not use it before it is given back.
                    take(socket, unsafe {
                        slice::from_raw_parts(self.buffers.at(buffer), bytes)
                    });
                    self.buffers.give(buffer);
                    given += 1;
                }
            }
            if !cqueue::more(flags) {
                ended.get_or_insert_with(Vec::new).push(socket);
            }
        }
        if given > 0 {
            self.buffers.publish();
        }
        ended.into_iter().flatten().for_each(|socket| self.listen(socket));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn messages_go_there_and_back_more_often_than_there_are_buffers() {
        let (one, other) = UnixStream::pair().expect("a pair");
        let [mut one, mut other] = [one, other].map(|socket| {
            Streams::new(vec![socket.into()], 64).expect("the kernel has rings since Linux 6.1")
        });
        for round in 0..3 * u32::from(BUFFERS) {
            one.send(0, &round.to_le_bytes());
            one.submit().expect("it is taken");
            let mut got = Vec::new();
            other
                .wait(|_, bytes| got.extend_from_slice(bytes))
                .expect("it arrives");
            assert_eq!(got, round.to_le_bytes());
            other.send(0, &got);
            other.submit().expect("it is taken");
            one.wait(|_, bytes| assert_eq!(bytes, round.to_le_bytes()))
                .expect("it arrives");
        }
    }
}

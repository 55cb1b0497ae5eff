//! Rack packets over UDP: batches in, batches out, payload straight into and out of pool pages.
//!
//! Receiving: every datagram is scattered over a header buffer and a pool page posted in advance, so a page of data
//! lands where it stays. A page that a packet does not need (no payload, a control record, a malformed datagram) is
//! posted again. If the pool is empty, datagrams are received one at a time into a buffer beside the pool. Datagrams with
//! a page are dropped and counted, and the protocol sends them again. The others still get through, so a node without
//! pages stays controllable.
//!
//! In-band telemetry (RackBlox §3.4): the kernel stamps each datagram when it arrives from the network; what has passed
//! until the host takes it is added to its LAT, at every hop.
//!
//! Sending: packets are collected and handed to the kernel in one call; the collected payloads are held until then.
//! A full send buffer drops the rest of the batch, as a full switch port would. A packet that is longer than its path's datagrams
//! goes in parts, each of which takes a place in the batch. The parts that have come stay in the page of the first of them.
//!
//! Invariants: the iovecs of slot `i` point at `headers[i]` and at the bytes of `pages[i]`, for `i < posted`
//! (receiving) or `i < count` (sending). The boxed arrays never move.

use crate::counters::Counters;
use crate::paths::Paths;
use crate::poller::check;
use base::event::Kind;
use base::{Addr, Page, Pool};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::{io, mem, ptr};
use wire::parts::Assembler;
use wire::rack::{
    FORMAT_VERSION_AT, HEADER_BYTES, Header, Malformed, PARTS_MAX, PAYLOAD_BYTES_MAX, Packet, Part, Payload,
};

/// Packets of one system call. More are left to the next turn, so that other sources get theirs.
pub(crate) const BATCH: usize = 64;
/// Packets of which a socket keeps parts. Each may hold a page.
const PACKETS_IN_PARTS: usize = 64;
/// Addresses that are told of because of the format version of their packets; of any more nothing is told.
const STRANGERS_MAX: usize = 64;
/// Asked for as each socket's receive and send buffer: some thousands of full packets. Without the right to exceed it
/// (CAP_NET_ADMIN), the system's limit (`net.core.rmem_max`, `wmem_max`) holds.
const SOCKET_BUFFER_BYTES: libc::c_int = 32 << 20;

type HeaderBytes = [u8; HEADER_BYTES];

/// One host's socket with its batches.
pub(crate) struct UdpPort {
    socket: UdpSocket,
    address: SocketAddrV4,
    receive: ReceiveBatch,
    send: SendBatch,
}

impl UdpPort {
    /// Binds `bind` (port 0: any) and posts pages of `pool`.
    pub fn bind(bind: SocketAddrV4, pool: &Pool) -> io::Result<Self> {
        let socket = UdpSocket::bind(bind)?;
        socket.set_nonblocking(true)?;
        let fd = socket.as_raw_fd();
        enlarge(fd, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF)?;
        enlarge(fd, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)?;
        set_option(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)?;
        let std::net::SocketAddr::V4(address) = socket.local_addr()? else {
            unreachable!("bound to an IPv4 address");
        };
        Ok(Self {
            socket,
            address,
            receive: ReceiveBatch::new(pool),
            send: SendBatch::new(),
        })
    }

    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Address of the socket, with the real port.
    pub fn address(&self) -> SocketAddrV4 {
        self.address
    }

    /// A second handle to the socket, for reading the kernel's counters from another thread.
    pub fn duplicate(&self) -> io::Result<UdpSocket> {
        self.socket.try_clone()
    }

    /// Receives a batch; returns how many datagrams [`UdpPort::take`] has.
    pub fn receive(&mut self, pool: &Pool, counters: &Counters) -> usize {
        self.receive.receive(&self.socket, pool, counters)
    }

    /// The `index`-th datagram of the last batch as a packet, if it was a whole one or the last part of one. Each may be taken
    /// once.
    pub fn take(&mut self, index: usize, counters: &Counters) -> Result<Option<Packet>, Refused> {
        self.receive.take(index, counters)
    }

    /// Collects a packet; a full batch is sent first.
    pub fn push(&mut self, to: Addr, packet: Packet, counters: &Counters) {
        if self.send.count + usize::from(PARTS_MAX) > BATCH {
            self.flush(counters);
        }
        self.send.push(to, packet);
    }

    /// Events about the paths, and about strangers that send.
    pub fn next_event(&mut self) -> Option<Kind> {
        let told = self.receive.strangers.told.take();
        told.or_else(|| self.send.paths.next_event())
    }

    /// Hands everything collected to the kernel.
    pub fn flush(&mut self, counters: &Counters) {
        if self.send.count > 0 {
            self.send.flush(&self.socket, counters);
        }
    }
}

/// Why a datagram is not handed to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It is not a rack packet.
    Malformed(Malformed),
    /// It carries a page and the pool has none to hold it.
    NoPage,
}

/// Sets a socket buffer's size, beyond the system's limit if we may.
fn enlarge(fd: RawFd, force: libc::c_int, polite: libc::c_int) -> io::Result<()> {
    set_option(fd, libc::SOL_SOCKET, force, SOCKET_BUFFER_BYTES)
        .or_else(|_| set_option(fd, libc::SOL_SOCKET, polite, SOCKET_BUFFER_BYTES))
}

/// Sets an integer socket option.
pub(crate) fn set_option(fd: RawFd, level: i32, name: i32, value: libc::c_int) -> io::Result<()> {
    // SAFETY: `value` is valid for reads of its size.
    let result = unsafe {
        let size = mem::size_of::<libc::c_int>() as libc::socklen_t;
        libc::setsockopt(fd, level, name, ptr::from_ref(&value).cast(), size)
    };
    check(result).map(|_| ())
}

/// Datagrams that the kernel has dropped at `socket` because its receive buffer was full.
pub(crate) fn kernel_drops(socket: &UdpSocket) -> u64 {
    // linux/sock_diag.h: SK_MEMINFO_DROPS is the ninth of the values.
    const DROPS: usize = 8;
    const SO_MEMINFO: libc::c_int = 55;
    let mut values = [0u32; DROPS + 1];
    let mut size = mem::size_of_val(&values) as libc::socklen_t;
    // SAFETY: `values` is valid for writes of `size` bytes. A failure leaves zeros.
    unsafe {
        let place = values.as_mut_ptr().cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_MEMINFO, place, &mut size);
    }
    u64::from(values[DROPS])
}

fn iovec(base: *mut u8, length: usize) -> libc::iovec {
    libc::iovec {
        iov_base: base.cast(),
        iov_len: length,
    }
}

fn message(iovecs: &mut [libc::iovec; 2]) -> libc::mmsghdr {
    // SAFETY: a `mmsghdr` of zeros is valid: no address, no buffers, no control data.
    let mut message: libc::mmsghdr = unsafe { mem::zeroed() };
    message.msg_hdr.msg_iov = iovecs.as_mut_ptr();
    message.msg_hdr.msg_iovlen = iovecs.len();
    message
}

fn empty_iovecs() -> Box<[[libc::iovec; 2]]> {
    vec![[iovec(ptr::null_mut(), 0); 2]; BATCH].into_boxed_slice()
}

/// Room for one control message with a `timespec`, aligned as control messages must be.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct ControlBytes([u8; 64]);

/// When the kernel took a datagram from the network, in ns of the system's clock; `None` if it did not say.
fn arrival_ns(message: &libc::msghdr) -> Option<u64> {
    // SAFETY: after a receive call the header describes control data in a live buffer of `msg_controllen` bytes, which
    // the CMSG functions stay inside. A `timespec` is plain data and may be read unaligned.
    unsafe {
        let control = libc::CMSG_FIRSTHDR(message).as_ref()?;
        if control.cmsg_level != libc::SOL_SOCKET || control.cmsg_type != libc::SCM_TIMESTAMPNS {
            return None;
        }
        let time: libc::timespec = ptr::read_unaligned(libc::CMSG_DATA(control).cast());
        Some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    }
}

/// The system's clock, which the kernel's stamps are of, in ns.
fn system_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is valid for a write.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

struct ReceiveBatch {
    headers: Box<[HeaderBytes]>,
    /// Written by the kernel through the messages.
    #[expect(dead_code, reason = "owned here, reached through the messages")]
    controls: Box<[ControlBytes]>,
    /// Whence each datagram came; written by the kernel through the messages.
    sources: Box<[libc::sockaddr_in]>,
    strangers: Strangers,
    /// When the last batch was received, in ns of the system's clock.
    received_ns: u64,
    pages: Vec<Option<Page>>,
    iovecs: Box<[[libc::iovec; 2]]>,
    messages: Box<[libc::mmsghdr]>,
    /// Slots `0..posted` have a page.
    posted: usize,
    /// Slots `0..received` hold the last batch.
    received: usize,
    /// Where payload goes when no slot has a page.
    overflow: Box<[u8; PAYLOAD_BYTES_MAX]>,
    parts: Assembler,
}

impl ReceiveBatch {
    fn new(pool: &Pool) -> Self {
        assert_eq!(
            pool.page_bytes(),
            PAYLOAD_BYTES_MAX,
            "a page holds a packet's payload"
        );
        let mut headers = vec![[0; HEADER_BYTES]; BATCH].into_boxed_slice();
        let mut iovecs = empty_iovecs();
        for (iovecs, header) in iovecs.iter_mut().zip(&mut headers) {
            iovecs[0] = iovec(header.as_mut_ptr(), HEADER_BYTES);
        }
        let mut controls = vec![ControlBytes([0; 64]); BATCH].into_boxed_slice();
        // SAFETY: a `sockaddr_in` of zeros is valid.
        let nowhere: libc::sockaddr_in = unsafe { mem::zeroed() };
        let mut sources = vec![nowhere; BATCH].into_boxed_slice();
        let mut messages: Box<[_]> = iovecs.iter_mut().map(message).collect();
        for (message, control) in messages.iter_mut().zip(&mut controls) {
            message.msg_hdr.msg_control = ptr::from_mut(control).cast();
        }
        for (message, source) in messages.iter_mut().zip(&mut sources) {
            message.msg_hdr.msg_name = ptr::from_mut(source).cast();
        }
        Self {
            headers,
            controls,
            sources,
            strangers: Strangers::default(),
            received_ns: 0,
            pages: (0..BATCH).map(|_| None).collect(),
            iovecs,
            messages,
            posted: 0,
            received: 0,
            overflow: Box::new([0; PAYLOAD_BYTES_MAX]),
            parts: Assembler::new(PACKETS_IN_PARTS),
        }
    }

    /// Gives every slot a page again, as far as the pool has any; slots with a page come first.
    fn post(&mut self, pool: &Pool) {
        for slot in 0..self.received.min(self.posted) {
            if self.pages[slot].is_none() {
                while self.posted > slot + 1 && self.pages[self.posted - 1].is_none() {
                    self.posted -= 1;
                }
                let page = pool.alloc().or_else(|| {
                    let last = self.posted - 1;
                    (last > slot).then(|| self.pages[last].take()).flatten()
                });
                match page {
                    Some(page) => self.place(slot, page),
                    None => {
                        self.posted = slot;
                        break;
                    }
                }
            }
        }
        while self.posted > 0 && self.pages[self.posted - 1].is_none() {
            self.posted -= 1;
        }
        while self.posted < BATCH {
            let Some(page) = pool.alloc() else { break };
            self.place(self.posted, page);
            self.posted += 1;
        }
    }

    fn place(&mut self, slot: usize, page: Page) {
        self.iovecs[slot][1] = iovec(page.as_ptr(), page.len());
        self.pages[slot] = Some(page);
    }

    fn receive(&mut self, socket: &UdpSocket, pool: &Pool, counters: &Counters) -> usize {
        self.post(pool);
        let mut count = self.posted;
        if count == 0 {
            self.iovecs[0][1] = iovec(self.overflow.as_mut_ptr(), self.overflow.len());
            count = 1;
        }
        for message in &mut self.messages[..count] {
            message.msg_hdr.msg_controllen = mem::size_of::<ControlBytes>();
            message.msg_hdr.msg_namelen = mem::size_of::<libc::sockaddr_in>() as libc::socklen_t;
        }
        counters.syscalls.bump();
        // SAFETY: the first `count` messages point at live addresses, control buffers and iovecs, which point at header buffers of their own and at
        // unshared pages that this batch holds (or at the overflow buffer); nobody else reads or writes them during
        // the call.
        let result = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.messages.as_mut_ptr(),
                count as libc::c_uint,
                libc::MSG_DONTWAIT,
                ptr::null_mut(),
            )
        };
        // EAGAIN and EINTR mean nothing yet; other errors report an earlier packet's fate (ICMP), which the
        // protocol finds out by itself.
        self.received = usize::try_from(result).unwrap_or(0);
        if self.received > 0 {
            self.received_ns = system_ns();
        }
        self.received
    }

    fn take(&mut self, index: usize, counters: &Counters) -> Result<Option<Packet>, Refused> {
        assert!(index < self.received, "the batch has this datagram");
        let message = &self.messages[index];
        if message.msg_hdr.msg_flags & libc::MSG_TRUNC != 0 {
            return Err(Refused::Malformed(Malformed::Length));
        }
        let bytes = message.msg_len as usize;
        let payload_bytes = bytes.saturating_sub(HEADER_BYTES);
        let header = &self.headers[index][..bytes.min(HEADER_BYTES)];
        let (mut header, part) = match Header::parse_part(header, payload_bytes) {
            Ok(parsed) => parsed,
            Err(reason) => {
                if reason == Malformed::FormatVersion {
                    self.strangers
                        .note(&self.sources[index], header[FORMAT_VERSION_AT]);
                }
                return Err(Refused::Malformed(reason));
            }
        };
        let waited_ns =
            arrival_ns(&message.msg_hdr).map_or(0, |arrival| self.received_ns.saturating_sub(arrival));
        header.lat_ns = header
            .lat_ns
            .saturating_add(u32::try_from(waited_ns).unwrap_or(u32::MAX));
        if part != Part::WHOLE {
            return self.put_together(index, header, part, counters);
        }
        let payload = if payload_bytes == 0 {
            Payload::None
        } else if header.carries_page() {
            Payload::Page(self.take_page(index)?)
        } else {
            let mut record = vec![0; payload_bytes].into_boxed_slice();
            self.copy(index, &mut record);
            Payload::Record(record)
        };
        Ok(Some(Packet { header, payload }))
    }

    /// The page that the kernel has filled with the datagram's payload.
    fn take_page(&mut self, index: usize) -> Result<Page, Refused> {
        let is_posted = index < self.posted;
        let page = is_posted.then(|| self.pages[index].take()).flatten();
        page.ok_or(Refused::NoPage)
    }

    /// Copies the start of the datagram's payload.
    fn copy(&self, index: usize, to: &mut [u8]) {
        let length = to.len();
        if index < self.posted {
            let page = self.pages[index].as_ref().expect("each datagram is taken once");
            page.with(|bytes| to.copy_from_slice(&bytes[..length]));
        } else {
            to.copy_from_slice(&self.overflow[..length]);
        }
    }

    /// Takes a part of a packet; the packet, if it was the last one.
    fn put_together(
        &mut self,
        index: usize,
        header: Header,
        part: Part,
        counters: &Counters,
    ) -> Result<Option<Packet>, Refused> {
        let length = header.length as usize;
        let mut chunk = [0; PAYLOAD_BYTES_MAX];
        let chunk = &mut chunk[..part.range(length).len()];
        self.copy(index, chunk);
        if !self.parts.knows(&header) {
            let payload = match header.carries_page() {
                true => Payload::Page(self.take_page(index)?),
                false => Payload::Record(vec![0; length].into()),
            };
            if self.parts.begin(header, payload) {
                counters.packets_incomplete.bump();
            }
        }
        Ok(self.parts.take(&header, part, chunk))
    }
}

/// Addresses whence packets of another format version have come. Each is told once.
#[derive(Default)]
struct Strangers {
    known: Vec<Addr>,
    told: Option<Kind>,
}

impl Strangers {
    #[cold]
    fn note(&mut self, source: &libc::sockaddr_in, version: u8) {
        let from = Addr {
            ip: u32::from_be(source.sin_addr.s_addr),
            port: u16::from_be(source.sin_port),
        };
        if self.known.len() < STRANGERS_MAX && !self.known.contains(&from) {
            self.known.push(from);
            let version = version.into();
            self.told = Some(Kind::PacketForeign { from, version });
        }
    }
}

struct SendBatch {
    headers: Box<[HeaderBytes]>,
    addresses: Box<[libc::sockaddr_in]>,
    iovecs: Box<[[libc::iovec; 2]]>,
    messages: Box<[libc::mmsghdr]>,
    /// Keeps the bytes that the iovecs point at.
    payloads: Vec<Payload>,
    count: usize,
    paths: Paths,
}

impl SendBatch {
    fn new() -> Self {
        // SAFETY: a `sockaddr_in` of zeros is valid.
        let nowhere: libc::sockaddr_in = unsafe { mem::zeroed() };
        let mut headers = vec![[0; HEADER_BYTES]; BATCH].into_boxed_slice();
        let mut addresses = vec![nowhere; BATCH].into_boxed_slice();
        let mut iovecs = empty_iovecs();
        for (iovecs, header) in iovecs.iter_mut().zip(&mut headers) {
            iovecs[0] = iovec(header.as_mut_ptr(), HEADER_BYTES);
        }
        let mut messages: Box<[_]> = iovecs.iter_mut().map(message).collect();
        for (message, address) in messages.iter_mut().zip(&mut addresses) {
            message.msg_hdr.msg_name = ptr::from_mut(address).cast();
            message.msg_hdr.msg_namelen = mem::size_of::<libc::sockaddr_in>() as libc::socklen_t;
        }
        Self {
            headers,
            addresses,
            iovecs,
            messages,
            payloads: Vec::with_capacity(BATCH),
            count: 0,
            paths: Paths::default(),
        }
    }

    /// Its parts find room.
    fn push(&mut self, to: Addr, packet: Packet) {
        let (base, length) = match &packet.payload {
            Payload::None => (ptr::null_mut(), 0),
            Payload::Page(page) => (page.as_ptr(), page.len()),
            Payload::Record(record) => (record.as_ptr().cast_mut(), record.len()),
        };
        assert_eq!(
            packet.header.length as usize, length,
            "a header states its payload's length"
        );
        let address = libc::sockaddr_in {
            sin_family: libc::AF_INET as libc::sa_family_t,
            sin_port: to.port.to_be(),
            sin_addr: libc::in_addr {
                s_addr: to.ip.to_be(),
            },
            sin_zero: [0; 8],
        };
        for part in self.paths.parts(to, length) {
            let (slot, range) = (self.count, part.range(length));
            packet.header.emit_part(part, &mut self.headers[slot]);
            self.addresses[slot] = address;
            self.iovecs[slot][1] = iovec(base.wrapping_add(range.start), range.len());
            self.count += 1;
        }
        self.payloads.push(packet.payload);
    }

    fn flush(&mut self, socket: &UdpSocket, counters: &Counters) {
        let mut first = 0;
        while first < self.count {
            counters.syscalls.bump();
            // SAFETY: messages `first..count` point at live addresses and iovecs; these point at their header
            // buffers and at payloads that `payloads` keeps. A boxed record does not move with its box; a page is
            // not written while a handle to it is shared, and the loop writes nothing during the call. The kernel
            // only reads.
            let result = unsafe {
                libc::sendmmsg(
                    socket.as_raw_fd(),
                    self.messages[first..].as_mut_ptr(),
                    (self.count - first) as libc::c_uint,
                    libc::MSG_DONTWAIT,
                )
            };
            if let Ok(sent) = usize::try_from(result) {
                counters.packets_out.add(sent as u64);
                first += sent;
                continue;
            }
            match io::Error::last_os_error().raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => {
                    counters.packets_dropped_full.add((self.count - first) as u64);
                    break;
                }
                // Only the first packet of the call is to blame: kernel's sendmmsg stops before a failing one.
                _ => {
                    counters.packets_dropped_unsendable.bump();
                    first += 1;
                }
            }
        }
        self.payloads.clear();
        self.count = 0;
    }
}

/// The rack's form of a socket address.
pub(crate) fn addr(address: SocketAddrV4) -> Addr {
    Addr {
        ip: u32::from(*address.ip()),
        port: address.port(),
    }
}

/// The socket's form of a rack address.
pub fn socket_addr(addr: Addr) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::from(addr.ip), addr.port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::VssdId;
    use base::limits::{PAGE_BYTES, SECTOR_BYTES};
    use wire::rack::Op;

    fn pair(pool: &Pool) -> (UdpPort, UdpPort) {
        let any = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);
        (
            UdpPort::bind(any, pool).expect("loopback"),
            UdpPort::bind(any, pool).expect("loopback"),
        )
    }

    fn page_packet(pool: &Pool, mark: u8) -> Packet {
        let page = pool.alloc().expect("a page is left");
        page.with_mut(|bytes| bytes.fill(mark));
        let crc = page.crc();
        Packet::with_page(Header::new(Op::Write, VssdId(u32::from(mark))), Some(page), crc)
    }

    fn record_packet(mark: u8) -> Packet {
        Packet::with_record(Header::new(Op::Status, VssdId(1)), vec![mark; usize::from(mark)])
    }

    #[test]
    fn pages_and_records_survive_the_wire() {
        let pool = Pool::new(300, SECTOR_BYTES);
        let counters = Counters::default();
        let (mut a, mut b) = pair(&pool);
        for mark in 1..=100 {
            a.push(addr(b.address()), page_packet(&pool, mark), &counters);
            a.push(addr(b.address()), record_packet(mark), &counters);
            a.push(
                addr(b.address()),
                Packet::bare(Header::new(Op::Flush, VssdId(9))),
                &counters,
            );
        }
        a.flush(&counters);
        let mut seen = 0;
        loop {
            let count = b.receive(&pool, &counters);
            if count == 0 {
                break;
            }
            for index in 0..count {
                let packet = b
                    .take(index, &counters)
                    .expect("what was sent parses")
                    .expect("it is whole");
                assert!(packet.payload_is_intact());
                let mark = (seen / 3 + 1) as u8;
                match seen % 3 {
                    0 => assert_eq!(packet.header.vssd.0, u32::from(mark)),
                    1 => assert_eq!(packet.record(), vec![mark; usize::from(mark)]),
                    _ => assert_eq!(packet.header.op, Op::Flush),
                }
                seen += 1;
            }
        }
        assert_eq!(seen, 300);
        assert_eq!(counters.packets_out.read(), 300);
    }

    #[test]
    fn a_narrow_path_takes_pages_and_records_in_parts() {
        let pool = Pool::new(300, SECTOR_BYTES);
        let counters = Counters::default();
        let (mut a, mut b) = pair(&pool);
        let to = addr(b.address());
        a.send.paths.narrow(to, 1500);
        for mark in 1..=20 {
            a.push(to, page_packet(&pool, mark), &counters);
            a.push(to, record_packet(mark), &counters);
            let long = vec![mark; PAYLOAD_BYTES_MAX - usize::from(mark)];
            a.push(
                to,
                Packet::with_record(Header::new(Op::Digest, VssdId(2)), long),
                &counters,
            );
        }
        a.flush(&counters);
        assert_eq!(counters.packets_out.read(), 20 * (3 + 1 + 3), "datagrams");
        let mut seen = Vec::new();
        loop {
            let count = b.receive(&pool, &counters);
            if count == 0 {
                break;
            }
            for index in 0..count {
                if let Some(packet) = b.take(index, &counters).expect("what was sent parses") {
                    assert!(packet.payload_is_intact());
                    seen.push(packet.header.op);
                }
            }
        }
        assert_eq!(seen, [Op::Write, Op::Status, Op::Digest].repeat(20));
        assert_eq!(counters.packets_incomplete.read(), 0);
    }

    #[test]
    fn a_packet_in_parts_gets_through_without_a_page_only_if_it_needs_none() {
        let pool = Pool::new(140, SECTOR_BYTES);
        let counters = Counters::default();
        let (mut a, mut b) = pair(&pool);
        let to = addr(b.address());
        a.send.paths.narrow(to, 1500);
        let source = page_packet(&pool, 7);
        let crowd: Vec<Page> = std::iter::from_fn(|| pool.alloc()).collect();
        a.push(to, source.clone(), &counters);
        let long = Packet::with_record(Header::new(Op::Digest, VssdId(2)), vec![3; 3000]);
        a.push(to, long, &counters);
        a.flush(&counters);
        let (mut whole, mut refused) = (Vec::new(), 0);
        for _ in 0..10 {
            for index in 0..b.receive(&pool, &counters) {
                match b.take(index, &counters) {
                    Ok(packet) => whole.extend(packet.map(|packet| packet.header.op)),
                    Err(Refused::NoPage) => refused += 1,
                    Err(Refused::Malformed(reason)) => panic!("{reason}"),
                }
            }
        }
        assert_eq!((whole, refused), (vec![Op::Digest], 3));
        drop((source, crowd));
    }

    #[test]
    fn an_empty_pool_loses_pages_but_not_records_and_recovers() {
        let pool = Pool::new(140, SECTOR_BYTES);
        let counters = Counters::default();
        let (mut a, mut b) = pair(&pool);
        assert_eq!(b.receive(&pool, &counters), 0);
        let crowd: Vec<Page> = std::iter::from_fn(|| pool.alloc()).collect();
        let source = crowd[0].clone();
        source.with(|bytes| assert_eq!(bytes.len(), PAGE_BYTES));
        let mut kept = Vec::new();
        let (mut records, mut lost) = (0, 0);
        for _ in 0..100 {
            let crc = source.crc();
            let header = Header::new(Op::Write, VssdId(1));
            a.push(
                addr(b.address()),
                Packet::with_page(header, Some(source.clone()), crc),
                &counters,
            );
            a.push(addr(b.address()), record_packet(3), &counters);
        }
        a.flush(&counters);
        for _ in 0..400 {
            for index in 0..b.receive(&pool, &counters) {
                match b.take(index, &counters) {
                    Ok(Some(packet)) if packet.page().is_some() => kept.push(packet),
                    Ok(packet) => {
                        assert_eq!(packet.expect("it is whole").record(), [3; 3]);
                        records += 1;
                    }
                    Err(refused) => {
                        assert_eq!(refused, Refused::NoPage);
                        lost += 1;
                    }
                }
            }
        }
        assert_eq!(records, 100, "records need no page");
        assert_eq!(kept.len() + lost, 100);
        assert_eq!(kept.len(), BATCH, "every posted page was used");
        kept.clear();
        a.push(
            addr(b.address()),
            Packet::with_page(Header::new(Op::Write, VssdId(1)), Some(source.clone()), 0),
            &counters,
        );
        a.flush(&counters);
        assert_eq!(b.receive(&pool, &counters), 1);
        assert!(b.take(0, &counters).is_ok());
        drop((source, crowd));
    }

    #[test]
    fn datagrams_that_are_no_packets_are_refused_with_the_reason() {
        let pool = Pool::new(200, SECTOR_BYTES);
        let counters = Counters::default();
        let (a, mut b) = pair(&pool);
        let mut bytes = [0u8; HEADER_BYTES];
        Header::new(Op::Flush, VssdId(1)).emit(&mut bytes);
        let mut long = bytes.to_vec();
        long.resize(HEADER_BYTES + PAYLOAD_BYTES_MAX + 1, 0);
        let mut flipped = bytes;
        flipped[3] ^= 1;
        for datagram in [&bytes[..10], &[], &flipped, &long, &[&bytes[..], &[1]].concat()] {
            a.socket
                .send_to(datagram, b.address())
                .expect("loopback takes it");
        }
        let count = b.receive(&pool, &counters);
        let refused: Vec<_> = (0..count)
            .map(|index| b.take(index, &counters).expect_err("malformed"))
            .collect();
        use Malformed::{HeaderChecksum, Length, Short};
        assert_eq!(
            refused,
            [Short, Short, HeaderChecksum, Length, Length].map(Refused::Malformed)
        );
    }

    #[test]
    fn another_format_version_is_refused_and_told_once_for_each_address() {
        let pool = Pool::new(200, SECTOR_BYTES);
        let counters = Counters::default();
        let (a, mut b) = pair(&pool);
        let (c, _) = pair(&pool);
        let mut bytes = [0u8; HEADER_BYTES];
        Header::new(Op::Flush, VssdId(1)).emit(&mut bytes);
        bytes[FORMAT_VERSION_AT] += 1;
        let version = bytes[FORMAT_VERSION_AT].into();
        let mut told = Vec::new();
        for port in [&a, &a, &c, &a] {
            let sent = port.socket.send_to(&bytes, b.address());
            sent.expect("loopback takes it");
            assert_eq!(b.receive(&pool, &counters), 1);
            let refused = b.take(0, &counters).expect_err("malformed");
            assert_eq!(refused, Refused::Malformed(Malformed::FormatVersion));
            told.extend(b.next_event());
        }
        let foreign = |port: &UdpPort| Kind::PacketForeign {
            from: addr(port.address()),
            version,
        };
        assert_eq!(told, [foreign(&a), foreign(&c)]);
    }

    #[test]
    fn one_bad_address_costs_only_its_own_packet() {
        let pool = Pool::new(200, SECTOR_BYTES);
        let counters = Counters::default();
        let (mut a, mut b) = pair(&pool);
        a.push(addr(b.address()), record_packet(1), &counters);
        a.push(Addr::NONE, record_packet(2), &counters);
        a.push(addr(b.address()), record_packet(3), &counters);
        a.flush(&counters);
        assert_eq!(counters.packets_dropped_unsendable.read(), 1);
        assert_eq!(b.receive(&pool, &counters), 2);
    }
}

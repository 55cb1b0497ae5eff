//! One client's connection: its socket, its session, and what it waits for.
//!
//! The socket is watched edge-triggered, so the connection remembers itself whether it can be read or written: until a
//! read brings less than was asked for, a write takes less than was offered.

use crate::counters::Counters;
use crate::nvme::NvmeTarget;
use base::{BlockError, BlockOp, BlockReply, BlockRequest, Instant, Pool};
use host::target::Standing;
use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::{mem, ptr};
use wire::nbd::{self, Event, Export};
use wire::nvme::{self, Access, Late, Rights, Segment};

/// Segments sent by one call: a megabyte of whole pages (UIO_MAXIOV is four times as many).
pub(super) const SEGMENTS_MAX: usize = 256;

/// A payload with as much to come is large.
const BULK_BYTES: usize = 32 << 10;
/// Read where the header of a large write is expected: headers of both protocols, with some payload behind them.
const HEADER_BYTES_MAX: usize = 512;

/// What a connection speaks.
pub(super) enum Protocol {
    Nbd {
        session: Box<nbd::Session>,
        /// As they were when the connection came.
        exports: Vec<Export>,
        guard: Option<Guard>,
    },
    Nvme {
        session: Box<nvme::Session>,
        target: Arc<NvmeTarget>,
    },
}

/// Keeps an NBD client to what it may do with a volume that NVMe hosts can reserve.
pub(super) struct Guard {
    target: Arc<NvmeTarget>,
    /// The target's generation that `rights` are up to date with.
    generation: Option<u64>,
    rights: Rights,
}

impl Guard {
    pub fn new(target: Arc<NvmeTarget>) -> Self {
        Self {
            target,
            generation: None,
            rights: Rights::ALL,
        }
    }

    /// True if the client may have this request carried out. A connection has one volume.
    fn admits(&mut self, request: &BlockRequest) -> bool {
        let generation = self.target.generation();
        if self.generation != Some(generation) {
            self.generation = Some(generation);
            let rights = &mut self.rights;
            self.target
                .with(&mut |target| *rights = target.rights_of_others(request.volume));
        }
        match request.op {
            BlockOp::Read => self.rights.reads,
            _ => self.rights.writes,
        }
    }
}

macro_rules! session {
    ($protocol:expr, $session:ident => $body:expr) => {
        match $protocol {
            Protocol::Nbd {
                session: $session, ..
            } => $body,
            Protocol::Nvme {
                session: $session, ..
            } => $body,
        }
    };
}

impl Protocol {
    fn receive(&mut self, now: Instant, bytes: &[u8]) -> usize {
        match self {
            Self::Nbd { session, exports, .. } => session.receive(bytes, exports),
            Self::Nvme { session, target } => session.receive(now, bytes, &**target),
        }
    }

    /// Points `iovecs`, all but the last, at where the next bytes go, at most `bytes_max`; returns how many and how much.
    fn payload_room(&self, iovecs: &mut [libc::iovec], bytes_max: usize) -> (usize, usize) {
        let (mut count, mut bytes) = (0, 0);
        let places_max = iovecs.len() - 1;
        session!(self, session => session.payload_room(&mut |page, range| {
            let length = range.len().min(bytes_max - bytes);
            iovecs[count] = libc::iovec {
                iov_base: page.as_ptr().wrapping_add(range.start).cast(),
                iov_len: length,
            };
            count += 1;
            bytes += length;
            count < places_max && bytes < bytes_max
        }));
        (count, bytes)
    }

    fn payload_filled(&mut self, bytes: usize) {
        session!(self, session => session.payload_filled(bytes));
    }

    fn poll(&mut self) -> Option<BlockRequest> {
        match self {
            Self::Nbd { session, guard, .. } => loop {
                let Event::Request(request) = session.poll()? else {
                    unreachable!("sessions answer block-status requests themselves");
                };
                let admits = guard.as_mut().is_none_or(|guard| guard.admits(&request));
                if admits {
                    return Some(request);
                }
                let (client, tag) = (request.client, request.tag);
                drop(request);
                let result = Err(BlockError::Reserved);
                session.complete(BlockReply { client, tag, result });
            },
            Self::Nvme { session, .. } => session.poll(),
        }
    }

    /// An answer may lead to more requests: the next part of one that is longer than volumes take, or one that waited.
    fn has_requests(&self) -> bool {
        session!(self, session => session.has_requests())
    }

    fn is_blocked(&self) -> bool {
        session!(self, session => session.is_blocked())
    }

    /// It could go on if the pool had more pages, though it can be read meanwhile.
    pub fn is_waiting(&self) -> bool {
        match self {
            Self::Nbd { .. } => false,
            Self::Nvme { session, .. } => session.is_waiting(),
        }
    }

    /// When it is to be ticked.
    pub fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Nbd { .. } => None,
            Self::Nvme { session, .. } => session.deadline(),
        }
    }

    pub fn tick(&mut self, now: Instant) {
        match self {
            Self::Nbd { .. } => {}
            Self::Nvme { session, target } => session.tick(now, &**target),
        }
    }

    /// The socket is closed. Requests under way that others wait for have to be settled with the target.
    pub fn detach(&mut self) -> Option<(Late, Arc<NvmeTarget>)> {
        match self {
            Self::Nbd { .. } => None,
            Self::Nvme { session, target } => {
                let late = session.detach(&**target)?;
                Some((late, Arc::clone(target)))
            }
        }
    }

    pub fn pending_bytes(&self) -> u64 {
        session!(self, session => session.pending_bytes())
    }

    /// Payload that the session may have under way from now on.
    pub fn set_share(&mut self, bytes: u64) {
        session!(self, session => session.set_share(bytes));
    }

    /// The share that a request needs which waits for it, or 0.
    pub fn share_wanted(&self) -> u64 {
        session!(self, session => session.share_wanted())
    }

    pub fn in_flight(&self) -> usize {
        session!(self, session => session.in_flight())
    }

    pub fn in_flight_bytes(&self) -> u64 {
        session!(self, session => session.in_flight_bytes())
    }

    pub fn wants_close(&self) -> bool {
        session!(self, session => session.wants_close())
    }

    pub fn shut_down(&mut self) {
        session!(self, session => session.shut_down());
    }

    pub fn pause(&mut self) {
        session!(self, session => session.pause());
    }

    pub fn resume(&mut self) {
        session!(self, session => session.resume());
    }

    fn is_at_rest(&self) -> bool {
        session!(self, session => session.is_at_rest())
    }

    pub fn complete(&mut self, reply: BlockReply) {
        match self {
            Self::Nbd { session, .. } => session.complete(reply),
            Self::Nvme { session, target } => session.complete(reply, &**target),
        }
    }

    fn transmit(&self, show: &mut dyn FnMut(Segment<'_>) -> bool) {
        session!(self, session => session.transmit(show));
    }

    fn sent(&mut self, bytes: usize) {
        session!(self, session => session.sent(bytes));
    }
}

/// Who executes the requests of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// A host of this core.
    Host(usize),
    /// The target's volumes.
    Local,
}

/// A connection between two cores.
pub(crate) struct Traveller {
    /// Where it was.
    endpoint: Endpoint,
    port: u16,
    stream: TcpStream,
    session: Parked,
    held: Vec<u8>,
}

enum Parked {
    Nbd {
        session: Box<nbd::Parked>,
        exports: Vec<Export>,
        guard: Option<Guard>,
    },
    Nvme {
        session: Box<nvme::Parked>,
        target: Arc<NvmeTarget>,
    },
}

pub(super) struct Connection {
    pub endpoint: Endpoint,
    /// Where it came in.
    pub port: u16,
    pub client: u32,
    pub stream: TcpStream,
    pub protocol: Protocol,
    /// Bytes that the session has not taken: it is blocked.
    held: Vec<u8>,
    held_from: usize,
    pub can_read: bool,
    pub can_write: bool,
    /// The peer has gone, and all that it sent is read.
    pub ended: bool,
    /// The peer sends nothing more: the end is there to be read, and no event will tell again.
    pub is_ending: bool,
    /// Nothing can be sent to the peer any more.
    pub is_broken: bool,
    /// Its last read was for the payload of a large write: another one may follow.
    writes_bulk: bool,
}

impl Connection {
    pub fn new(endpoint: Endpoint, client: u32, stream: TcpStream, protocol: Protocol) -> Self {
        Self {
            endpoint,
            port: stream.local_addr().map_or(0, |address| address.port()),
            client,
            stream,
            protocol,
            held: Vec::new(),
            held_from: 0,
            can_read: false,
            can_write: true,
            ended: false,
            is_ending: false,
            is_broken: false,
            writes_bulk: false,
        }
    }

    /// True if the session is blocked, or has not been given all there is.
    pub fn waits_for_room(&self) -> bool {
        self.protocol.is_blocked()
    }

    /// How it stands.
    pub fn standing(&self) -> Standing {
        let (session, waits, is_over) = (&self.protocol, self.waits_for_room(), self.is_over());
        let reads = self.can_read && !waits;
        let sends = self.can_write && session.pending_bytes() > 0;
        Standing {
            can_go_on: reads || sends || is_over || session.has_requests(),
            is_over,
            waits: waits || session.is_waiting(),
            share_wanted: session.share_wanted(),
            in_flight: session.in_flight(),
            in_flight_bytes: session.in_flight_bytes(),
        }
    }

    /// True if it is to be closed. A blocked connection is not read, and would not notice that its peer has gone.
    pub fn is_over(&self) -> bool {
        self.ended || self.is_broken && self.waits_for_room() || self.protocol.wants_close()
    }

    /// Reads once, at most as much as `scratch` holds, and gives it to the session; true if there were bytes. Payload of
    /// a write goes straight into its pages, where the session shows them.
    pub fn read(
        &mut self,
        now: Instant,
        scratch: &mut [u8],
        iovecs: &mut [libc::iovec],
        counters: &Counters,
    ) -> bool {
        assert!(self.held.is_empty(), "a blocked connection is not read");
        let (places, room) = self.protocol.payload_room(iovecs, scratch.len());
        // Behind a large payload, or where one is to be expected, comes a header: what is read with it is copied.
        let is_bulk = room >= BULK_BYTES || self.writes_bulk;
        self.writes_bulk = room >= BULK_BYTES || places > 0 && self.writes_bulk;
        let behind_bytes = if is_bulk {
            HEADER_BYTES_MAX
        } else {
            scratch.len() - room
        };
        let behind = &mut scratch[..behind_bytes];
        iovecs[places] = libc::iovec {
            iov_base: behind.as_mut_ptr().cast(),
            iov_len: behind.len(),
        };
        counters.syscalls.bump();
        // SAFETY: the first iovecs point into pages that the session holds and nobody else does, the last one at
        // `scratch`; all are valid for writes until the call returns.
        let result = unsafe {
            libc::readv(
                self.stream.as_raw_fd(),
                iovecs.as_ptr(),
                places as libc::c_int + 1,
            )
        };
        let count = match usize::try_from(result) {
            Ok(0) => {
                self.ended = true;
                return false;
            }
            Ok(count) => count,
            Err(_) => {
                match io::Error::last_os_error().kind() {
                    ErrorKind::WouldBlock => self.can_read = false,
                    ErrorKind::Interrupted => {}
                    _ => self.ended = true,
                }
                return false;
            }
        };
        self.can_read = count == room + behind_bytes || self.is_ending;
        counters.client_bytes_in.add(count as u64);
        let placed = count.min(room);
        self.protocol.payload_filled(placed);
        let rest = &scratch[..count - placed];
        let taken = self.protocol.receive(now, rest);
        self.held.extend_from_slice(&rest[taken..]);
        self.held_from = 0;
        true
    }

    /// True if the session could do something with what it would be given.
    fn is_hungry(&self) -> bool {
        !self.held.is_empty() || self.protocol.is_blocked() || self.protocol.is_waiting()
    }

    /// Gives the session what it has not taken yet; a blocked one may have room again without new bytes.
    pub fn feed(&mut self, now: Instant) {
        if !self.is_hungry() {
            return;
        }
        self.held_from += self.protocol.receive(now, &self.held[self.held_from..]);
        if self.held_from == self.held.len() {
            self.held.clear();
            self.held_from = 0;
        }
    }

    /// True if a paused connection can be taken to another core.
    pub fn is_at_rest(&self) -> bool {
        self.protocol.is_at_rest() && !self.is_over()
    }

    /// Takes it apart, at rest, for another core.
    pub fn park(self) -> Traveller {
        Traveller {
            endpoint: self.endpoint,
            port: self.port,
            stream: self.stream,
            session: match self.protocol {
                Protocol::Nbd {
                    session,
                    exports,
                    guard,
                } => Parked::Nbd {
                    session: Box::new(session.park()),
                    exports,
                    guard,
                },
                Protocol::Nvme { session, target } => Parked::Nvme {
                    session: Box::new(session.park()),
                    target,
                },
            },
            held: self.held[self.held_from..].to_vec(),
        }
    }

    /// Puts together what came from another core, with its number and the pool of this one.
    pub fn unpark(traveller: Traveller, client: u32, pool: &Pool) -> Self {
        let protocol = match traveller.session {
            Parked::Nbd {
                session,
                exports,
                guard,
            } => Protocol::Nbd {
                session: Box::new(nbd::Session::unpark(*session, client, pool.clone())),
                exports,
                guard,
            },
            Parked::Nvme { session, target } => Protocol::Nvme {
                session: Box::new(nvme::Session::unpark(*session, client, pool.clone())),
                target,
            },
        };
        let mut connection = Self::new(traveller.endpoint, client, traveller.stream, protocol);
        connection.port = traveller.port;
        connection.held = traveller.held;
        connection
    }

    /// The session's next request, if the bytes it has make one.
    pub fn next_request(&mut self) -> Option<BlockRequest> {
        self.protocol.poll()
    }

    /// Sends at least `bytes_min` bytes, if there are so many and the socket takes them, and not much more; returns how
    /// many.
    pub fn send(&mut self, bytes_min: usize, iovecs: &mut [libc::iovec], counters: &Counters) -> usize {
        let mut total = 0;
        while !self.ended && self.can_write && total < bytes_min && self.protocol.pending_bytes() > 0 {
            let (count, bytes) = gather(&self.protocol, iovecs, bytes_min - total);
            // SAFETY: a `msghdr` of zeros is valid; its fields are set below.
            let mut message: libc::msghdr = unsafe { mem::zeroed() };
            message.msg_iov = iovecs.as_mut_ptr();
            message.msg_iovlen = count;
            counters.syscalls.bump();
            // SAFETY: the first `count` iovecs point at the session's heads and at pages that its queue holds;
            // neither changes before `sent`. The kernel only reads.
            let result = unsafe {
                libc::sendmsg(
                    self.stream.as_raw_fd(),
                    &message,
                    libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT,
                )
            };
            let Ok(sent) = usize::try_from(result) else {
                match io::Error::last_os_error().kind() {
                    ErrorKind::Interrupted => continue,
                    ErrorKind::WouldBlock => self.can_write = false,
                    _ => self.ended = true,
                }
                break;
            };
            counters.client_bytes_out.add(sent as u64);
            self.protocol.sent(sent);
            total += sent;
            self.can_write = sent == bytes;
        }
        total
    }
}

/// Room for [`Connection::send`]'s segments.
pub(super) fn iovecs() -> Box<[libc::iovec]> {
    vec![
        libc::iovec {
            iov_base: ptr::null_mut(),
            iov_len: 0
        };
        SEGMENTS_MAX
    ]
    .into()
}

/// Points `iovecs` at what the session has to send, until that is `bytes_min`; returns how many and how many bytes.
fn gather(protocol: &Protocol, iovecs: &mut [libc::iovec], bytes_min: usize) -> (usize, usize) {
    let (mut count, mut bytes) = (0, 0);
    protocol.transmit(&mut |segment| {
        let (base, length) = match segment {
            Segment::Bytes(head) => (head.as_ptr().cast_mut(), head.len()),
            Segment::Page(page, range) => (page.as_ptr().wrapping_add(range.start), range.len()),
        };
        bytes += length;
        // The pages of a memory volume follow each other: longer pieces cost the kernel less.
        match iovecs[..count].last_mut() {
            Some(last) if last.iov_base.wrapping_byte_add(last.iov_len) == base.cast() => {
                last.iov_len += length
            }
            _ => {
                iovecs[count] = libc::iovec {
                    iov_base: base.cast(),
                    iov_len: length,
                };
                count += 1;
            }
        }
        count < iovecs.len() && bytes < bytes_min
    });
    (count, bytes)
}

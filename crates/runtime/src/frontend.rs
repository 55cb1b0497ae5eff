//! NBD over TCP: listeners and connections around [`wire::nbd::Session`].
//!
//! A connection that something happened to (bytes, an answer, room in the socket) is *touched*; the loop settles
//! touched connections once per turn: give the session what was received, hand its requests to the host, send what
//! it has to send, and set what the socket is watched for.
//!
//! Back-pressure: a session that is blocked (its limits, or no free page) leaves bytes in the connection's buffer,
//! and the socket is not read until it goes on, so the client's TCP window closes. It goes on when a reply has been
//! sent or when the pool has more free pages than at the time it stopped. Reads take their pages only when a host
//! answers them, so the payload of all requests under way is bounded too: while it is above the *budget*, half the
//! pool, no connection is given bytes, except for
//! the rest of a write that already has its pages. One gulp may overrun that by one connection's limit, a quarter of the pool.
//!
//! Invariants: a connection whose session is not blocked has an empty buffer; a slot is closed only while it is
//! settled, so no event of the same turn can meet its successor; answers for a closed connection are dropped, told
//! apart by the generation in the client number.

use crate::CoreConfig;
use crate::core::{connection_token, listener_token};
use crate::counters::Counters;
use crate::poller::{Interest, Poller, Ready};
use crate::udp::{BATCH, set_option};
use base::limits::{PAGE_BYTES, REQUEST_BYTES_MAX};
use base::{BlockReply, BlockRequest, Pool};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::{mem, ptr};
use wire::nbd::{Event, Export, Segment, Session, SessionLimits};

/// Bytes read from a socket at once; also what a blocked connection keeps.
const BUFFER_BYTES: usize = 128 << 10;
/// Segments sent at once: about a megabyte of reads.
const SEGMENTS_MAX: usize = 256;
/// Connections taken from one listener per turn.
const ACCEPTS_MAX: usize = 16;
/// A silent peer is asked after this long, and again, whether it is still there.
const KEEPALIVE_SECONDS: libc::c_int = 30;
/// A peer that acknowledges nothing for this long is gone; also one that does not read for so long.
const UNANSWERED_MILLIS_MAX: libc::c_int = 120_000;
/// Bits of a client number that are the slot; the rest is the generation.
const SLOT_BITS: u32 = 16;

struct Listener {
    host: usize,
    socket: TcpListener,
}

struct Connection {
    host: usize,
    client: u32,
    stream: TcpStream,
    session: Session,
    /// As they were when the connection came.
    exports: Vec<Export>,
    buffer: Box<[u8]>,
    /// The bytes of `buffer` that the session has not taken.
    held: std::ops::Range<usize>,
    interest: Interest,
    /// Payload of its requests under way, as counted in the frontend's sum.
    counted_bytes: u64,
    /// It was given nothing because the budget is used up.
    is_held: bool,
    /// The peer has gone.
    ended: bool,
    is_touched: bool,
    is_blocked: bool,
}

/// The NBD side of one core.
pub(crate) struct Frontend {
    listeners: Vec<Listener>,
    slots: Vec<Option<Connection>>,
    generations: Vec<u16>,
    free: Vec<usize>,
    touched: VecDeque<usize>,
    /// Connections that wait for room.
    blocked: Vec<usize>,
    /// Fewest free pages at the time that one of `blocked` stopped.
    blocked_at: usize,
    /// True if one of `blocked` waits for the budget.
    any_held: bool,
    /// Payload of all requests under way, in bytes.
    in_flight_bytes: u64,
    /// Above this, connections are given no bytes.
    budget_bytes: u64,
    iovecs: Box<[libc::iovec]>,
    limits: SessionLimits,
    pool: Pool,
    /// Given up to take, and close, a connection when no descriptor is left: it would otherwise wake the loop
    /// again and again.
    spare: Option<File>,
}

impl Frontend {
    pub fn new(config: &CoreConfig, pool: Pool) -> Self {
        let connections_max = config.connections_max;
        assert!(
            connections_max <= 1 << SLOT_BITS,
            "a client number has room for the slot"
        );
        // A quarter of the pool at most for one client, as far as that is a page.
        let quarter = (pool.capacity() as u64 / 4).max(1) * PAGE_BYTES as u64;
        let limits = SessionLimits {
            in_flight_max: config.requests_max.max(1),
            in_flight_bytes_max: quarter.min(2 * u64::from(REQUEST_BYTES_MAX)),
            pages_reserve: BATCH.min(pool.capacity() / 4),
            host_extents: false,
        };
        Self {
            listeners: Vec::new(),
            slots: (0..connections_max).map(|_| None).collect(),
            generations: vec![0; connections_max],
            free: (0..connections_max).rev().collect(),
            touched: VecDeque::with_capacity(connections_max),
            blocked: Vec::with_capacity(connections_max),
            blocked_at: usize::MAX,
            any_held: false,
            in_flight_bytes: 0,
            budget_bytes: pool.capacity() as u64 / 2 * PAGE_BYTES as u64,
            iovecs: vec![
                libc::iovec {
                    iov_base: ptr::null_mut(),
                    iov_len: 0
                };
                SEGMENTS_MAX
            ]
            .into(),
            limits,
            pool,
            spare: File::open("/dev/null").ok(),
        }
    }

    /// Takes NBD clients of host `host` at `address`; returns where exactly.
    pub fn listen(&mut self, host: usize, address: SocketAddr, poller: &Poller) -> io::Result<SocketAddr> {
        let socket = TcpListener::bind(address)?;
        socket.set_nonblocking(true)?;
        let bound = socket.local_addr()?;
        poller.add(
            socket.as_raw_fd(),
            listener_token(self.listeners.len()),
            Interest::READ,
        )?;
        self.listeners.push(Listener { host, socket });
        Ok(bound)
    }

    /// Takes the connections that wait at a listener. `exports` tells what a host offers.
    pub fn accept(
        &mut self,
        index: usize,
        poller: &Poller,
        counters: &Counters,
        exports: impl Fn(usize) -> Vec<Export>,
    ) -> bool {
        for _ in 0..ACCEPTS_MAX {
            // Told to stop in this very turn.
            let Some(listener) = self.listeners.get(index) else {
                return true;
            };
            counters.syscalls.bump();
            match listener.socket.accept() {
                Ok((stream, peer)) => {
                    let host = listener.host;
                    if self.open(host, stream, peer, exports(host), poller).is_ok() {
                        counters.nbd_accepted.bump();
                    } else {
                        counters.nbd_refused.bump();
                    }
                }
                Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
                    counters.nbd_refused.bump();
                    self.spare = None;
                    let _ = listener.socket.accept();
                    self.spare = File::open("/dev/null").ok();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // Interrupted, or the client has gone already: the next one.
                Err(_) => {}
            }
        }
        true
    }

    /// Sets up a new connection; one that cannot be is closed by dropping it.
    fn open(
        &mut self,
        host: usize,
        stream: TcpStream,
        peer: SocketAddr,
        exports: Vec<Export>,
        poller: &Poller,
    ) -> io::Result<()> {
        let slot = *self.free.last().ok_or(ErrorKind::QuotaExceeded)?;
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        give_up_on_the_dead(stream.as_raw_fd())?;
        if peer.ip().is_loopback() {
            choose_congestion_control(stream.as_raw_fd());
        }
        poller.add(stream.as_raw_fd(), connection_token(slot), Interest::READ)?;
        let client = u32::from(self.generations[slot]) << SLOT_BITS | slot as u32;
        self.slots[slot] = Some(Connection {
            host,
            client,
            stream,
            session: Session::new(client, self.pool.clone(), self.limits),
            exports,
            buffer: vec![0; BUFFER_BYTES].into(),
            held: 0..0,
            interest: Interest::READ,
            counted_bytes: 0,
            is_held: false,
            ended: false,
            is_touched: false,
            is_blocked: false,
        });
        self.free.pop();
        // The server speaks first.
        self.touch(slot);
        Ok(())
    }

    /// Something happened at a connection's socket; true if it brought bytes.
    pub fn ready(&mut self, slot: usize, ready: Ready, counters: &Counters) -> bool {
        let Some(connection) = &mut self.slots[slot] else {
            return false;
        };
        let mut worked = false;
        if ready.read && connection.interest.read {
            worked = connection.read(counters);
        }
        // Without interest in reading, a broken connection would never be noticed by a read.
        connection.ended |= ready.broken && !connection.interest.read;
        self.touch(slot);
        worked
    }

    fn touch(&mut self, slot: usize) {
        if let Some(connection) = &mut self.slots[slot]
            && !connection.is_touched
        {
            connection.is_touched = true;
            self.touched.push_back(slot);
        }
    }

    /// A host's answer. The connection it is for may be gone.
    pub fn reply(&mut self, reply: BlockReply, counters: &Counters) {
        let slot = (reply.client & ((1 << SLOT_BITS) - 1)) as usize;
        match self.slots.get_mut(slot) {
            Some(Some(connection)) if connection.client == reply.client => {
                counters.nbd_replies.bump();
                connection.session.complete(reply);
                self.touch(slot);
            }
            _ => counters.nbd_replies_late.bump(),
        }
    }

    /// True if a connection can go on; touches those that waited for pages when there are more than before.
    pub fn has_work(&mut self, pool: &Pool) -> bool {
        let has_pages = !self.blocked.is_empty() && pool.available() > self.blocked_at;
        let has_budget = self.any_held && self.in_flight_bytes < self.budget_bytes;
        if has_pages || has_budget {
            self.blocked_at = usize::MAX;
            self.any_held = false;
            for index in 0..self.blocked.len() {
                let slot = self.blocked[index];
                if let Some(connection) = &mut self.slots[slot] {
                    connection.is_blocked = false;
                }
                self.touch(slot);
            }
            self.blocked.clear();
        }
        !self.touched.is_empty()
    }

    /// The next connection to settle.
    pub fn next_touched(&mut self) -> Option<usize> {
        let slot = self.touched.pop_front()?;
        if let Some(connection) = &mut self.slots[slot] {
            connection.is_touched = false;
        }
        Some(slot)
    }

    /// The next request of a connection and the host it is for, as far as its bytes and limits go.
    pub fn next_request(&mut self, slot: usize, counters: &Counters) -> Option<(usize, BlockRequest)> {
        let connection = self.slots[slot].as_mut()?;
        let event = connection.session.poll().or_else(|| {
            connection.is_held = self.in_flight_bytes >= self.budget_bytes && connection.may_be_held();
            if !connection.is_held {
                connection.feed();
                recount(&mut self.in_flight_bytes, connection);
            }
            connection.session.poll()
        });
        match event? {
            Event::Request(request) => {
                counters.nbd_requests.bump();
                Some((connection.host, request))
            }
            Event::Status(_) => unreachable!("sessions answer block-status requests themselves"),
        }
    }

    /// Sends what a connection has to send, and closes it if it is over.
    pub fn transmit(&mut self, slot: usize, poller: &Poller, counters: &Counters) {
        let Some(connection) = &mut self.slots[slot] else {
            return;
        };
        let had_room = !connection.session.is_blocked();
        let sent = connection.send(&mut self.iovecs, counters);
        recount(&mut self.in_flight_bytes, connection);
        if connection.ended || connection.session.wants_close() {
            return self.close(slot, poller, counters);
        }
        let is_blocked = connection.session.is_blocked() || connection.is_held;
        self.any_held |= connection.is_held;
        let interest = Interest {
            read: !is_blocked,
            write: connection.session.pending_bytes() > 0,
        };
        if interest != connection.interest {
            connection.interest = interest;
            counters.syscalls.bump();
            let changed = poller.change(connection.stream.as_raw_fd(), connection_token(slot), interest);
            changed.expect("a watched descriptor's interest can be changed");
        }
        if is_blocked {
            self.blocked_at = self.blocked_at.min(self.pool.available());
            if !connection.is_blocked {
                connection.is_blocked = true;
                self.blocked.push(slot);
            }
            if sent && !had_room && !connection.is_held {
                self.touch(slot);
            }
        }
    }

    fn close(&mut self, slot: usize, poller: &Poller, counters: &Counters) {
        let connection = self.slots[slot].take().expect("an open connection is closed");
        if connection.is_blocked {
            self.blocked.retain(|&blocked| blocked != slot);
        }
        poller
            .remove(connection.stream.as_raw_fd())
            .expect("an open connection is watched");
        self.in_flight_bytes -= connection.counted_bytes;
        counters.nbd_closed.bump();
        self.generations[slot] = self.generations[slot].wrapping_add(1);
        self.free.push(slot);
    }

    /// Takes no more connections, and answers new requests with "shutting down".
    pub fn stop_taking(&mut self, poller: &Poller) {
        for listener in self.listeners.drain(..) {
            poller
                .remove(listener.socket.as_raw_fd())
                .expect("a listener is watched");
        }
        for connection in self.slots.iter_mut().flatten() {
            connection.session.shut_down();
        }
    }

    /// True when every request is answered and every answer sent.
    pub fn is_drained(&self) -> bool {
        self.slots
            .iter()
            .flatten()
            .all(|connection| connection.session.in_flight() == 0 && connection.session.pending_bytes() == 0)
    }
}

impl Connection {
    /// Reads once into the empty buffer; true if there were bytes.
    fn read(&mut self, counters: &Counters) -> bool {
        assert!(self.held.is_empty(), "a blocked connection is not read");
        counters.syscalls.bump();
        match self.stream.read(&mut self.buffer) {
            Ok(0) => self.ended = true,
            Ok(count) => {
                counters.nbd_bytes_in.add(count as u64);
                self.held = 0..count;
                return true;
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => self.ended = true,
        }
        false
    }

    /// True if it can wait for the budget: not with a write half received, which holds its share of the budget
    /// until the rest has come.
    fn may_be_held(&self) -> bool {
        self.is_hungry() && !self.session.is_receiving()
    }

    /// True if the session could do something with what it would be given.
    fn is_hungry(&self) -> bool {
        !self.held.is_empty() || self.session.is_blocked()
    }

    /// Gives the session what it has not taken yet; a blocked one may have room again without new bytes.
    fn feed(&mut self) {
        if !self.is_hungry() {
            return;
        }
        let taken = self
            .session
            .receive(&self.buffer[self.held.clone()], &self.exports);
        self.held.start += taken;
    }

    /// Sends as much as the socket takes; true if that was anything.
    fn send(&mut self, iovecs: &mut [libc::iovec], counters: &Counters) -> bool {
        let mut any = false;
        while !self.ended && self.session.pending_bytes() > 0 {
            let (count, bytes) = gather(&self.session, iovecs);
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
                    ErrorKind::WouldBlock => break,
                    _ => self.ended = true,
                }
                break;
            };
            counters.nbd_bytes_out.add(sent as u64);
            self.session.sent(sent);
            any = true;
            if sent < bytes {
                break;
            }
        }
        any
    }
}

/// Brings the sum of payload under way up to date with one connection.
fn recount(sum: &mut u64, connection: &mut Connection) {
    let now = connection.session.in_flight_bytes();
    *sum = *sum - connection.counted_bytes + now;
    connection.counted_bytes = now;
}

/// Points `iovecs` at what the session has to send; returns how many and how many bytes.
fn gather(session: &Session, iovecs: &mut [libc::iovec]) -> (usize, usize) {
    let (mut count, mut bytes) = (0, 0);
    session.transmit(&mut |segment| {
        let (base, length) = match segment {
            Segment::Bytes(head) => (head.as_ptr().cast_mut(), head.len()),
            Segment::Page(page, range) => (page.as_ptr().wrapping_add(range.start), range.len()),
        };
        iovecs[count] = libc::iovec {
            iov_base: base.cast(),
            iov_len: length,
        };
        count += 1;
        bytes += length;
        count < iovecs.len()
    });
    (count, bytes)
}

/// Ends connections whose peer has gone without a word: what they hold would never come back.
fn give_up_on_the_dead(fd: RawFd) -> io::Result<()> {
    set_option(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, KEEPALIVE_SECONDS)?;
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, KEEPALIVE_SECONDS)?;
    set_option(
        fd,
        libc::IPPROTO_TCP,
        libc::TCP_USER_TIMEOUT,
        UNANSWERED_MILLIS_MAX,
    )
}

/// On the loopback there is no path to probe: BBR, where it is the default, costs 20–40 % of the bandwidth there.
/// Reno is in every kernel and open to everybody; a refusal leaves the default.
fn choose_congestion_control(fd: RawFd) {
    let name = b"reno";
    // SAFETY: `name` is valid for reads of its length.
    unsafe {
        let size = name.len() as libc::socklen_t;
        libc::setsockopt(
            fd,
            libc::IPPROTO_TCP,
            libc::TCP_CONGESTION,
            name.as_ptr().cast(),
            size,
        );
    }
}

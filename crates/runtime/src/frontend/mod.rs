//! Clients over TCP: listeners, and connections around their sessions ([`connection`]).
//!
//! A connection that could go on (bytes came, its socket has room, an answer waits to be sent) is *ready* and stands in
//! the line of its class. The loop takes one from a line, lets it read once and send once, and puts it back if it could
//! go on still; so a turn of one connection is bounded, and the lines are served in the order that the policy wants.
//!
//! Back-pressure: a session that is blocked (its limits, its share, or no free page) leaves bytes with the connection, and
//! the socket is not read until it goes on, so the client's TCP window closes. It goes on when a reply has been sent, when
//! the pool has more free pages than at the time it stopped, or when its share has grown. Reads may take their pages only
//! when they are answered, so the payload of all requests under way is bounded too, by half the pool ([`budget`]).
//!
//! Invariants: a connection whose session is not blocked holds no bytes; a slot is closed only while it is attended to,
//! so no event of the same turn can meet its successor; answers for a closed connection are dropped, told apart by the
//! generation in the client number.

mod budget;
mod connection;
mod moving;

use crate::CoreConfig;
use crate::core::{Endpoint, connection_token, listener_token};
use crate::counters::Counters;
use crate::homes::Homes;
use crate::nvme::NvmeTarget;
use crate::poller::{Interest, Poller, Ready};
use crate::udp::{BATCH, set_option};
use base::limits::{PAGE_BYTES, REQUEST_BYTES_MAX};
use base::time::earliest;
use base::{BlockReply, BlockRequest, Instant, Pool};
use blockswitch::{AppId, Class};
use budget::Budget;
pub(crate) use connection::Line;
use connection::{Connection, Guard, Protocol};
pub(crate) use moving::{Rested, Traveller};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use wire::nbd::{self, Export};
use wire::nvme;

/// Bytes read from a socket at once: a slice of bulk writes.
const READ_BYTES: usize = 128 << 10;
/// A silent peer is asked after this long, and again, whether it is still there.
const KEEPALIVE_SECONDS: libc::c_int = 30;
/// A peer that acknowledges nothing for this long is gone; also one that does not read for so long.
const UNANSWERED_MILLIS_MAX: libc::c_int = 120_000;
/// Bits of a client number that are the slot; the rest is the generation.
const SLOT_BITS: u32 = 16;
/// Turns that a connection passes over at most.
const PASSES_MAX: u8 = 3;
/// Requests of a turn up to which a connection asks little at a time.
const SPARSE_REQUESTS: usize = 4;

/// A client that has just come.
#[derive(Debug)]
pub(crate) struct Client {
    pub endpoint: Endpoint,
    pub speaks: Speaks,
    pub stream: TcpStream,
    pub peer: SocketAddr,
}

/// Where a request comes from and whom it is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    pub slot: usize,
    pub port: u16,
    pub endpoint: Endpoint,
}

/// What a listener's clients speak.
#[derive(Clone, Debug)]
pub(crate) enum Speaks {
    /// Volumes of which NVMe hosts can reserve some.
    Nbd(Option<Arc<NvmeTarget>>),
    Nvme(Arc<NvmeTarget>),
}

struct Listener {
    endpoint: Endpoint,
    speaks: Speaks,
    socket: TcpListener,
}

/// The clients' side of one core.
pub(crate) struct Frontend {
    listeners: Vec<Listener>,
    slots: Vec<Option<Connection>>,
    generations: Vec<u16>,
    free: Vec<usize>,
    /// The connection whose answers are sent next, without a turn of its own.
    sent_next: Option<usize>,
    /// Connections that could go on, by [`Line`].
    lines: [VecDeque<usize>; 3],
    /// Connections that wait for room.
    blocked: Vec<usize>,
    /// Fewest free pages at the time that one of `blocked` stopped.
    blocked_at: usize,
    /// Payload of all requests under way.
    budget: Budget,
    /// What was shared of it when those of `blocked` that want more were looked at last.
    shared_at: u64,
    scratch: Box<[u8]>,
    iovecs: Box<[libc::iovec]>,
    limits: nbd::SessionLimits,
    nvme_limits: nvme::SessionLimits,
    /// When a session is to be ticked, at the earliest.
    tick_at: Option<Instant>,
    pool: Pool,
    /// Of a target's connections, and which core this is.
    homes: Option<(Arc<Homes>, usize)>,
    /// Connections that are paused to move to another core.
    departing: Vec<usize>,
    /// Requests under way of connections that are closed, by client number, if hosts that reserve a volume wait for them.
    late: Vec<(u32, nvme::Late, Arc<NvmeTarget>)>,
    /// Given up to take, and close, a connection when no descriptor is left: it would otherwise wake the loop
    /// again and again.
    spare: Option<File>,
}

impl Frontend {
    pub fn new(config: &CoreConfig, pool: Pool) -> Self {
        let connections_max = config.connections_max;
        assert!(
            connections_max < 1 << SLOT_BITS,
            "a client number has room for the slot, and the last one is nobody's"
        );
        // A quarter of the pool at most for one client, as far as that is a page.
        let quarter = (pool.capacity() as u64 / 4).max(1) * PAGE_BYTES as u64;
        let limits = nbd::SessionLimits {
            in_flight_max: config.requests_max.max(1),
            in_flight_bytes_max: quarter.min(2 * u64::from(REQUEST_BYTES_MAX)),
            pages_reserve: BATCH.min(pool.capacity() / 4),
            host_extents: false,
        };
        let nvme_limits = nvme::SessionLimits {
            // Linux asks for an admin queue of 32 entries.
            in_flight_max: config.requests_max.clamp(32, usize::from(u16::MAX)),
            in_flight_bytes_max: limits.in_flight_bytes_max,
            pages_reserve: limits.pages_reserve,
            ..nvme::SessionLimits::default()
        };
        Self {
            listeners: Vec::new(),
            slots: (0..connections_max).map(|_| None).collect(),
            generations: vec![0; connections_max],
            free: (0..connections_max).rev().collect(),
            sent_next: None,
            lines: core::array::from_fn(|_| VecDeque::with_capacity(connections_max)),
            blocked: Vec::with_capacity(connections_max),
            blocked_at: usize::MAX,
            budget: Budget::new(pool.capacity() as u64 / 2 * PAGE_BYTES as u64, connections_max),
            shared_at: 0,
            scratch: vec![0; READ_BYTES].into(),
            iovecs: connection::iovecs(),
            limits,
            nvme_limits,
            tick_at: None,
            pool,
            homes: None,
            departing: Vec::new(),
            late: Vec::new(),
            spare: File::open("/dev/null").ok(),
        }
    }

    /// Becomes core `core` of a target.
    pub fn join(&mut self, homes: Arc<Homes>, core: usize) {
        self.homes = Some((homes, core));
    }

    /// Takes clients of `endpoint` at `address`; returns where exactly.
    pub fn listen(
        &mut self,
        endpoint: Endpoint,
        speaks: Speaks,
        address: SocketAddr,
        poller: &Poller,
    ) -> io::Result<SocketAddr> {
        let socket = TcpListener::bind(address)?;
        socket.set_nonblocking(true)?;
        let bound = socket.local_addr()?;
        poller.add(
            socket.as_raw_fd(),
            listener_token(self.listeners.len()),
            Interest::Read,
        )?;
        self.listeners.push(Listener {
            endpoint,
            speaks,
            socket,
        });
        Ok(bound)
    }

    /// The next connection that waits at a listener, and whom it is for.
    pub fn accept(&mut self, index: usize, counters: &Counters) -> Option<Client> {
        loop {
            // None if told to stop in this very turn.
            let listener = self.listeners.get(index)?;
            counters.syscalls.bump();
            match listener.socket.accept() {
                Ok((stream, peer)) => {
                    return Some(Client {
                        endpoint: listener.endpoint,
                        speaks: listener.speaks.clone(),
                        stream,
                        peer,
                    });
                }
                Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
                    counters.clients_refused.bump();
                    self.spare = None;
                    let _ = listener.socket.accept();
                    self.spare = File::open("/dev/null").ok();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                // Interrupted, or the client has gone already: the next one.
                Err(_) => {}
            }
        }
    }

    /// Sets up a new connection; one that cannot be is closed by dropping it.
    pub fn open(&mut self, client: Client, exports: Vec<Export>, poller: &Poller) -> io::Result<()> {
        let app = match &self.homes {
            Some((homes, core)) if client.endpoint == Endpoint::Local => {
                Some(homes.join(*core).ok_or(ErrorKind::QuotaExceeded)?)
            }
            _ => None,
        };
        let opened = self.set_up(client, exports, app, poller);
        if opened.is_err() {
            self.leave(app);
        }
        opened
    }

    fn set_up(
        &mut self,
        client: Client,
        exports: Vec<Export>,
        app: Option<AppId>,
        poller: &Poller,
    ) -> io::Result<()> {
        let Client {
            endpoint,
            speaks,
            stream,
            peer,
        } = client;
        let slot = *self.free.last().ok_or(ErrorKind::QuotaExceeded)?;
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        give_up_on_the_dead(stream.as_raw_fd())?;
        if peer.ip().is_loopback() {
            choose_congestion_control(stream.as_raw_fd());
        }
        poller.add(stream.as_raw_fd(), connection_token(slot), Interest::Edges)?;
        let client = self.client_number(slot);
        let protocol = match speaks {
            Speaks::Nbd(target) => Protocol::Nbd {
                session: Box::new(nbd::Session::new(client, self.pool.clone(), self.limits)),
                exports,
                guard: target.map(Guard::new),
            },
            Speaks::Nvme(target) => Protocol::Nvme {
                session: Box::new(nvme::Session::new(client, self.pool.clone(), self.nvme_limits)),
                target,
            },
        };
        self.tick_at = earliest(self.tick_at, protocol.deadline());
        let mut connection = Connection::new(endpoint, client, stream, protocol);
        connection.app = app;
        self.slots[slot] = Some(connection);
        self.free.pop();
        // The server speaks first.
        self.stand_in_line(slot);
        Ok(())
    }

    /// The number of the client in a slot, of which there is no other before 2^16 more had the slot.
    fn client_number(&self, slot: usize) -> u32 {
        u32::from(self.generations[slot]) << SLOT_BITS | slot as u32
    }

    /// Something happened at a connection's socket.
    pub fn note(&mut self, slot: usize, ready: Ready) {
        let Some(connection) = &mut self.slots[slot] else {
            return;
        };
        connection.can_read |= ready.read;
        connection.can_write |= ready.write;
        connection.is_ending |= ready.ended;
        connection.is_broken |= ready.broken;
        self.stand_in_line(slot);
    }

    /// A connection may have something to read, though nobody has said so.
    pub fn expect(&mut self, slot: usize) {
        if let Some(connection) = &mut self.slots[slot] {
            connection.can_read = true;
        }
        self.stand_in_line(slot);
    }

    fn stand_in_line(&mut self, slot: usize) {
        if self.slots[slot].as_ref().is_some_and(Connection::has_work) {
            self.push_in_line(slot);
        }
    }

    /// Puts a connection in line for one turn, whether it can go on or not.
    fn push_in_line(&mut self, slot: usize) {
        if let Some(connection) = &mut self.slots[slot]
            && !connection.is_ready
        {
            connection.is_ready = true;
            connection.line = connection.line_of_turn();
            self.lines[connection.line as usize].push_back(slot);
        }
    }

    /// A host's answer, and the slot of the connection that sends it, unless that is gone.
    pub fn reply(&mut self, reply: BlockReply, counters: &Counters) -> Option<usize> {
        let slot = (reply.client & ((1 << SLOT_BITS) - 1)) as usize;
        match self.slots.get_mut(slot) {
            Some(Some(connection)) if connection.client == reply.client => {
                counters.replies.bump();
                allot(&self.budget, connection);
                connection.complete(reply);
                if self.sent_next != Some(slot) {
                    self.stand_in_line(slot);
                }
                Some(slot)
            }
            _ => {
                counters.replies_late.bump();
                self.settle(reply.client, 1);
                None
            }
        }
    }

    /// So many requests of a connection that is closed are answered, or were dropped.
    pub fn settle(&mut self, client: u32, requests: usize) {
        let found = self.late.iter().position(|(other, ..)| *other == client);
        if let Some(at) = found.filter(|_| requests > 0) {
            let (_, late, target) = &mut self.late[at];
            if late.settle(requests, &**target) {
                self.late.swap_remove(at);
            }
        }
    }

    /// Bytes that a connection has to send.
    pub fn pending_bytes(&self, slot: usize) -> u64 {
        let connection = self.slots[slot].as_ref();
        connection.map_or(0, |connection| connection.protocol.pending_bytes())
    }

    /// True if a connection can go on; puts those in line that waited for pages or for their share when there is more
    /// than before.
    pub fn has_work(&mut self) -> bool {
        let has_pages = !self.blocked.is_empty() && self.pool.available() > self.blocked_at;
        if has_pages || self.budget.shared() < self.shared_at {
            self.unblock(has_pages);
        }
        self.lines.iter().any(|line| !line.is_empty())
    }

    /// Puts those in line that were blocked and can go on: those that wait for their share as far as they get it, and
    /// those that wait for pages if there are more.
    fn unblock(&mut self, has_pages: bool) {
        self.shared_at = self.budget.shared();
        if has_pages {
            self.blocked_at = usize::MAX;
        }
        let mut blocked = core::mem::take(&mut self.blocked);
        blocked.retain(|&slot| {
            let Some(connection) = &mut self.slots[slot] else {
                return false;
            };
            connection.is_blocked = match connection.protocol.share_wanted() {
                0 => !has_pages,
                wanted => wanted > self.budget.share_of(connection.counted_bytes),
            };
            let stays = connection.is_blocked;
            if !stays {
                self.push_in_line(slot);
            }
            stays
        });
        self.blocked = blocked;
    }

    /// Connections of a line that could go on.
    pub fn waiting(&self, line: Line) -> usize {
        self.lines[line as usize].len()
    }

    /// The next connection of a line to attend to.
    pub fn next_ready(&mut self, line: Line) -> Option<usize> {
        let slot = self.lines[line as usize].pop_front()?;
        if let Some(connection) = &mut self.slots[slot] {
            connection.is_ready = false;
        }
        Some(slot)
    }

    /// Puts a connection that has work enough waiting back in line, so that more of its requests are read at once; false
    /// if it has passed over [`PASSES_MAX`] turns: among what waits in the socket may be a flush.
    pub fn pass(&mut self, slot: usize) -> bool {
        let Some(connection) = &mut self.slots[slot] else {
            return false;
        };
        let passes = connection.passed < PASSES_MAX && !connection.is_over();
        connection.passed = if passes { connection.passed + 1 } else { 0 };
        if passes {
            self.push_in_line(slot);
        }
        passes
    }

    /// Reads from a connection's socket, if it can be; true if there were bytes.
    pub fn read(&mut self, now: Instant, slot: usize, counters: &Counters) -> bool {
        let Some(connection) = &mut self.slots[slot] else {
            return false;
        };
        if !connection.can_read || connection.waits_for_room() || connection.ended {
            return false;
        }
        allot(&self.budget, connection);
        let worked = connection.read(now, &mut self.scratch, &mut self.iovecs, counters);
        recount(&mut self.budget, connection);
        self.tick_at = earliest(self.tick_at, connection.protocol.deadline());
        worked
    }

    /// The next request of a connection and what it is for, as far as its bytes and limits go.
    pub fn next_request(
        &mut self,
        now: Instant,
        slot: usize,
        counters: &Counters,
    ) -> Option<(Origin, BlockRequest)> {
        let connection = self.slots[slot].as_mut()?;
        let request = connection.next_request().or_else(|| {
            if connection.is_hungry() {
                allot(&self.budget, connection);
                connection.feed(now);
                recount(&mut self.budget, connection);
            }
            connection.next_request()
        })?;
        counters.requests.bump();
        let origin = Origin {
            slot,
            port: connection.port,
            endpoint: connection.endpoint,
        };
        Some((origin, request))
    }

    /// Name of the NVMe host behind a connection, once it has connected.
    pub fn host_nqn(&self, slot: usize) -> Option<&str> {
        match &self.slots[slot].as_ref()?.protocol {
            Protocol::Nbd { .. } => None,
            Protocol::Nvme { session, .. } => session.host_nqn(),
        }
    }

    /// Whoever asks for this sends the connection's answers when it has them all.
    pub fn collect(&mut self, slot: usize) {
        self.sent_next = Some(slot);
    }

    /// Sends at least `bytes_min` bytes of what a connection has to send, and puts it in line again if it could go on;
    /// returns how many, or `None` if it was over and is closed.
    pub fn send(
        &mut self,
        slot: usize,
        bytes_min: usize,
        poller: &Poller,
        counters: &Counters,
    ) -> Option<usize> {
        self.sent_next = None;
        let Some(connection) = &mut self.slots[slot] else {
            return Some(0);
        };
        let was_blocked = connection.is_session_blocked();
        let sent = connection.send(bytes_min, &mut self.iovecs, counters);
        recount(&mut self.budget, connection);
        if connection.is_over() {
            self.close(slot, poller, counters);
            return None;
        }
        let waits = connection.waits_for_room();
        if waits || connection.protocol.is_waiting() {
            if connection.protocol.share_wanted() > 0 {
                self.shared_at = self.shared_at.max(self.budget.shared());
            } else {
                self.blocked_at = self.blocked_at.min(self.pool.available());
            }
            if !connection.is_blocked {
                connection.is_blocked = true;
                self.blocked.push(slot);
            }
            if sent > 0 && was_blocked {
                self.push_in_line(slot);
            }
        }
        self.stand_in_line(slot);
        Some(sent)
    }

    /// When [`Frontend::tick`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        self.tick_at
    }

    /// Lets sessions look at the time, and at what changed in their target.
    pub fn tick(&mut self, now: Instant) {
        self.tick_at = None;
        for slot in 0..self.slots.len() {
            if let Some(connection) = &mut self.slots[slot] {
                connection.protocol.tick(now);
                self.tick_at = earliest(self.tick_at, connection.protocol.deadline());
                self.stand_in_line(slot);
            }
        }
    }

    /// A connection's turn brought so many requests, and bytes if it `reads`.
    pub fn note_turn(&mut self, slot: usize, reads: bool, requests: usize) {
        if let Some(connection) = &mut self.slots[slot] {
            connection.is_sparse = match requests {
                // Bytes that begin nothing: turns are given for requests, not for parts of them.
                0 if reads => connection.is_sparse && connection.protocol.in_flight() > 0,
                0 => connection.is_sparse,
                count => count <= SPARSE_REQUESTS,
            };
        }
    }

    /// Gives a connection another class.
    pub fn set_class(&mut self, slot: usize, class: Class) {
        if let Some(connection) = &mut self.slots[slot]
            && connection.class != class
        {
            let was_ready = connection.is_ready;
            if was_ready {
                self.lines[connection.line as usize].retain(|&other| other != slot);
            }
            (connection.class, connection.is_ready) = (class, false);
            if was_ready {
                self.push_in_line(slot);
            }
        }
    }

    fn close(&mut self, slot: usize, poller: &Poller, counters: &Counters) {
        let mut connection = self.vacate(slot, poller);
        let late = connection.protocol.detach();
        self.late
            .extend(late.map(|(late, target)| (connection.client, late, target)));
        self.leave(connection.app);
        counters.clients_closed.bump();
    }

    /// Takes a connection out of its slot and of all lines.
    fn vacate(&mut self, slot: usize, poller: &Poller) -> Connection {
        let connection = self.slots[slot].take().expect("an open connection");
        if connection.is_blocked {
            self.blocked.retain(|&blocked| blocked != slot);
        }
        if connection.is_ready {
            self.lines[connection.line as usize].retain(|&other| other != slot);
        }
        if connection.departs.is_some() {
            self.departing.retain(|&departing| departing != slot);
        }
        poller
            .remove(connection.stream.as_raw_fd())
            .expect("an open connection is watched");
        self.budget.recount(connection.counted_bytes, 0);
        self.retire(slot);
        connection
    }

    /// A slot is free for another client, who has another number.
    fn retire(&mut self, slot: usize) {
        self.generations[slot] = self.generations[slot].wrapping_add(1);
        self.free.push(slot);
    }

    fn leave(&self, app: Option<AppId>) {
        if let (Some((homes, core)), Some(app)) = (&self.homes, app) {
            homes.leave(*core, app);
        }
    }

    /// Takes no more connections, and answers new requests with "shutting down".
    pub fn stop_taking(&mut self, poller: &Poller) {
        for listener in self.listeners.drain(..) {
            poller
                .remove(listener.socket.as_raw_fd())
                .expect("a listener is watched");
        }
        self.go_on_all();
        for connection in self.slots.iter_mut().flatten() {
            connection.protocol.shut_down();
        }
    }

    /// True when every request is answered and every answer sent.
    pub fn is_drained(&self) -> bool {
        self.slots.iter().flatten().all(|connection| {
            connection.protocol.in_flight() == 0 && connection.protocol.pending_bytes() == 0
        })
    }
}

/// Tells a connection its share of the budget.
fn allot(budget: &Budget, connection: &mut Connection) {
    connection
        .protocol
        .set_share(budget.share_of(connection.counted_bytes));
}

/// Brings the budget up to date with one connection.
fn recount(budget: &mut Budget, connection: &mut Connection) {
    let now = connection.protocol.in_flight_bytes();
    budget.recount(connection.counted_bytes, now);
    connection.counted_bytes = now;
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

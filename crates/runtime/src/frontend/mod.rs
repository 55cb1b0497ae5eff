//! Clients over TCP: listeners, and connections around their sessions ([`connection`]). The frontend does what
//! [`host::target::Dispatcher`] says, and tells it how each connection then stands ([`Frontend::standing`]).
//!
//! Back-pressure: a session that is blocked (its limits, its share, or no free page) leaves bytes with the connection, and
//! the socket is not read until it goes on, so the client's TCP window closes. It goes on when a reply has been sent, when
//! the pool has more free pages than at the time it stopped, or when its share has grown. Reads may take their pages only
//! when they are answered, so the payload of all requests under way is bounded too, by half the pool.
//!
//! A connection that leaves for another core is paused. At rest it holds no page. Then it is taken apart, since pages and
//! pool do not leave their core, and put together on the other one. What it had read and not used goes along.
//!
//! Invariants: a connection whose session is not blocked holds no bytes; a slot is given up only while its connection is
//! attended to, or after the events of its turn are served, so no event of the same turn can meet its successor; answers
//! for a closed connection are dropped, told apart by the generation in the client number.

mod connection;

use crate::counters::Counters;
use crate::nvme::NvmeTarget;
use crate::poller::{Interest, Poller, Ready, connection_token};
use crate::udp::{BATCH, set_option};
use base::event::{self, Kind, Refusal};
use base::limits::{PAGE_BYTES, REQUEST_BYTES_MAX};
use base::time::earliest;
use base::{BlockReply, BlockRequest, Instant, Pool};
use connection::{Connection, Guard, Protocol};
pub(crate) use connection::{Endpoint, Traveller};
use host::target::{Config, READ_BYTES, Standing};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use wire::nbd::{self, Export};
use wire::nvme;

/// A silent peer is asked after this long, and again, whether it is still there.
const KEEPALIVE_SECONDS: libc::c_int = 30;
/// A peer that acknowledges nothing for this long is gone; also one that does not read for so long.
const UNANSWERED_MILLIS_MAX: libc::c_int = 120_000;
/// Bits of a client number that are the slot; the rest is the generation.
const SLOT_BITS: u32 = 16;

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

impl Speaks {
    /// The name of what is spoken.
    pub fn protocol(&self) -> event::Protocol {
        match self {
            Self::Nbd(_) => event::Protocol::Nbd,
            Self::Nvme(_) => event::Protocol::Nvme,
        }
    }
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
    scratch: Box<[u8]>,
    iovecs: Box<[libc::iovec]>,
    limits: nbd::SessionLimits,
    nvme_limits: nvme::SessionLimits,
    /// When a session is to be ticked, at the earliest.
    tick_at: Option<Instant>,
    pool: Pool,
    /// Requests under way of connections that are closed, by client number, if hosts that reserve a volume wait for them.
    late: Vec<(u32, nvme::Late, Arc<NvmeTarget>)>,
    /// Given up to take, and close, a connection when no descriptor is left: it would otherwise wake the loop
    /// again and again.
    spare: Option<File>,
}

impl Frontend {
    pub fn new(config: &Config, pool: Pool) -> Self {
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
            in_flight_max: config.session_requests_max(),
            in_flight_bytes_max: limits.in_flight_bytes_max,
            pages_reserve: limits.pages_reserve,
            ..nvme::SessionLimits::default()
        };
        Self {
            listeners: Vec::new(),
            slots: (0..connections_max).map(|_| None).collect(),
            generations: vec![0; connections_max],
            free: (0..connections_max).rev().collect(),
            scratch: vec![0; READ_BYTES].into(),
            iovecs: connection::iovecs(),
            limits,
            nvme_limits,
            tick_at: None,
            pool,
            late: Vec::new(),
            spare: File::open("/dev/null").ok(),
        }
    }

    /// Takes clients of `endpoint` at `address`, as the source `token` of the poller; returns where exactly, and which
    /// listener it is.
    pub fn listen(
        &mut self,
        (endpoint, speaks): (Endpoint, Speaks),
        address: SocketAddr,
        (poller, token): (&Poller, u64),
    ) -> io::Result<(SocketAddr, usize)> {
        let socket = TcpListener::bind(address)?;
        socket.set_nonblocking(true)?;
        let bound = socket.local_addr()?;
        poller.add(socket.as_raw_fd(), token, Interest::Read)?;
        self.listeners.push(Listener {
            endpoint,
            speaks,
            socket,
        });
        Ok((bound, self.listeners.len() - 1))
    }

    /// The next connection that waits at a listener, and whom it is for.
    pub fn accept(&mut self, index: usize, counters: &Counters, tell: impl Fn(Kind)) -> Option<Client> {
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
                    // The kernel says so also if nobody waits.
                    self.spare = None;
                    let refused = listener.socket.accept().map(|(_, peer)| peer);
                    self.spare = File::open("/dev/null").ok();
                    // Another thread may have taken the spare's place: then clients wait until a file is closed.
                    let client = refused.ok()?.ip();
                    counters.clients_refused.bump();
                    let why = Refusal::Descriptors;
                    tell(Kind::ClientRefused { client, why });
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                // Interrupted, or the client has gone already: the next one.
                Err(_) => {}
            }
        }
    }

    /// Sets up a new connection, and tells its slot and number; one that cannot be set up is closed by dropping it.
    pub fn open(
        &mut self,
        client: Client,
        exports: Vec<Export>,
        poller: &Poller,
    ) -> io::Result<(usize, u32)> {
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
        self.slots[slot] = Some(Connection::new(endpoint, client, stream, protocol));
        self.free.pop();
        Ok((slot, client))
    }

    /// The number of the client in a slot, of which there is no other before 2^16 more had the slot.
    fn client_number(&self, slot: usize) -> u32 {
        u32::from(self.generations[slot]) << SLOT_BITS | slot as u32
    }

    /// Something happened at a connection's socket.
    pub fn note(&mut self, slot: usize, ready: Ready) {
        if let Some(connection) = &mut self.slots[slot] {
            connection.can_read |= ready.read;
            connection.can_write |= ready.write;
            connection.is_ending |= ready.ended;
            connection.is_broken |= ready.broken;
        }
    }

    /// How a connection stands.
    pub fn standing(&self, slot: usize) -> Standing {
        let connection = self.slots[slot].as_ref();
        connection.map_or(Standing::default(), Connection::standing)
    }

    /// All open connections.
    pub fn open_slots(&self) -> impl Iterator<Item = usize> + use<> {
        0..self.slots.len()
    }

    /// Payload that a connection may have under way from now on.
    pub fn set_share(&mut self, slot: usize, bytes: u64) {
        if let Some(connection) = &mut self.slots[slot] {
            connection.protocol.set_share(bytes);
        }
    }

    /// The slot of the client of this number, unless it is gone.
    pub fn slot_of(&self, client: u32) -> Option<usize> {
        let slot = (client & ((1 << SLOT_BITS) - 1)) as usize;
        let connection = self.slots.get(slot)?.as_ref()?;
        (connection.client == client).then_some(slot)
    }

    /// The answer to a request of the connection in `slot`.
    pub fn reply(&mut self, slot: usize, reply: BlockReply) {
        let connection = self.slots[slot].as_mut().expect("an open connection");
        connection.protocol.complete(reply);
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

    /// Reads from a connection's socket, if it can be, or if it `expects` something; true if there were bytes.
    pub fn read(&mut self, now: Instant, slot: usize, expects: bool, counters: &Counters) -> bool {
        let Some(connection) = &mut self.slots[slot] else {
            return false;
        };
        connection.can_read |= expects;
        if !connection.can_read || connection.waits_for_room() || connection.ended {
            return false;
        }
        let worked = connection.read(now, &mut self.scratch, &mut self.iovecs, counters);
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
            connection.feed(now);
            connection.next_request()
        })?;
        counters.requests.bump();
        let origin = Origin {
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

    /// Sends at least `bytes_min` bytes of what a connection has to send; returns how many, and whether its session was
    /// blocked before.
    pub fn send(&mut self, slot: usize, bytes_min: usize, counters: &Counters) -> (usize, bool) {
        let Some(connection) = &mut self.slots[slot] else {
            return (0, false);
        };
        let was_blocked = connection.waits_for_room();
        (
            connection.send(bytes_min, &mut self.iovecs, counters),
            was_blocked,
        )
    }

    /// When [`Frontend::tick`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        self.tick_at
    }

    /// Lets sessions look at the time, and at what changed in their target.
    pub fn tick(&mut self, now: Instant) {
        self.tick_at = None;
        for connection in self.slots.iter_mut().flatten() {
            connection.protocol.tick(now);
            self.tick_at = earliest(self.tick_at, connection.protocol.deadline());
        }
    }

    /// Closes a connection; tells its number.
    pub fn close(&mut self, slot: usize, poller: &Poller, counters: &Counters) -> u32 {
        let mut connection = self.vacate(slot, poller);
        let late = connection.protocol.detach();
        self.late
            .extend(late.map(|(late, target)| (connection.client, late, target)));
        counters.clients_closed.bump();
        connection.client
    }

    /// Takes a connection out of its slot.
    fn vacate(&mut self, slot: usize, poller: &Poller) -> Connection {
        let connection = self.slots[slot].take().expect("an open connection");
        poller
            .remove(connection.stream.as_raw_fd())
            .expect("an open connection is watched");
        self.retire(slot);
        connection
    }

    /// A slot is free for another client, who has another number.
    fn retire(&mut self, slot: usize) {
        self.generations[slot] = self.generations[slot].wrapping_add(1);
        self.free.push(slot);
    }

    /// Pauses a connection that is to leave: its session takes nothing new.
    pub fn pause(&mut self, slot: usize) {
        let connection = self.slots[slot].as_mut().expect("an open connection");
        connection.protocol.pause();
    }

    /// Lets a connection that was paused go on here.
    pub fn resume(&mut self, slot: usize) {
        let connection = self.slots[slot].as_mut().expect("an open connection");
        connection.protocol.resume();
    }

    /// True if a paused connection can be taken to another core.
    pub fn is_at_rest(&self, slot: usize) -> bool {
        self.slots[slot].as_ref().is_some_and(Connection::is_at_rest)
    }

    /// Takes out a connection that is at rest.
    pub fn take(&mut self, slot: usize, poller: &Poller) -> Traveller {
        self.vacate(slot, poller).park()
    }

    /// Takes in a connection from another core, or again from this one; tells its slot and number. One that cannot be
    /// watched is closed.
    pub fn adopt(
        &mut self,
        now: Instant,
        traveller: Traveller,
        poller: &Poller,
        counters: &Counters,
    ) -> io::Result<(usize, u32)> {
        let slot = self.free.pop().expect("its place was reserved");
        let client = self.client_number(slot);
        let mut connection = Connection::unpark(traveller, client, &self.pool);
        // What can be read or written now is told anew, as are ends.
        let fd = connection.stream.as_raw_fd();
        if let Err(error) = poller.add(fd, connection_token(slot), Interest::Edges) {
            connection.protocol.detach();
            self.retire(slot);
            counters.clients_closed.bump();
            return Err(error);
        }
        // The target may have changed on the way.
        connection.protocol.tick(now);
        self.tick_at = earliest(self.tick_at, connection.protocol.deadline());
        self.slots[slot] = Some(connection);
        Ok((slot, client))
    }

    /// Takes no more connections, and answers new requests with "shutting down".
    pub fn stop_taking(&mut self, poller: &Poller) {
        for listener in self.listeners.drain(..) {
            poller
                .remove(listener.socket.as_raw_fd())
                .expect("a listener is watched");
        }
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

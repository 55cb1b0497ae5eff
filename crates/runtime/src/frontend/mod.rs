//! Clients: listeners, and connections around their sessions ([`connection`]). The frontend does what
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
mod place;

use crate::counters::Counters;
use crate::poller::{Interest, Poller, Ready, connection_token};
use crate::stream::{Listen, Listener, Stream};
use crate::udp::BATCH;
use base::event::{Kind, Refusal};
use base::limits::{PAGE_BYTES, REQUEST_BYTES_MAX};
use base::time::earliest;
use base::{BlockReply, Instant, Pool};
use connection::{Connection, SEGMENTS_MAX};
pub(crate) use connection::{Endpoint, Origin, Traveller};
use host::target::{Config, READ_BYTES, Standing};
use place::{Place, Places};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use wire::{Asks, Export, Late, Limits, Opening, Piece, Protocol};

/// Bits of a client number that are the slot; the rest is the generation.
const SLOT_BITS: u32 = 16;

/// A client that has just come.
pub(crate) struct Client {
    pub origin: Origin,
    pub protocol: Arc<dyn Protocol>,
    pub stream: Box<dyn Stream>,
    pub peer: IpAddr,
    pub place: Place,
}

/// A listener, and whom its clients ask, in which protocol.
struct Entry {
    origin: Origin,
    protocol: Arc<dyn Protocol>,
    listener: Box<dyn Listener>,
}

/// The clients' side of one core.
pub(crate) struct Frontend {
    listeners: Vec<Entry>,
    /// The connections of all listeners here.
    places: Places,
    slots: Vec<Option<Connection>>,
    generations: Vec<u16>,
    free: Vec<usize>,
    scratch: Box<[u8]>,
    iovecs: Box<[libc::iovec]>,
    pieces: Box<[Piece]>,
    limits: Limits,
    /// When a session is to be ticked, at the earliest.
    tick_at: Option<Instant>,
    pool: Pool,
    /// Requests under way of connections that are closed, by client number, if hosts that reserve a volume wait for them.
    late: Vec<(u32, Box<dyn Late>)>,
    /// Given up to take, and close, a connection when no descriptor is left: it would otherwise wake the loop
    /// again and again.
    spare: Option<File>,
}

impl Frontend {
    /// Of a core of `cores` among which its listeners' clients are shared out.
    pub fn new(config: &Config, pool: Pool, cores: usize) -> Self {
        let connections_max = config.connections_max;
        assert!(
            connections_max < 1 << SLOT_BITS,
            "a client number has room for the slot, and the last one is nobody's"
        );
        // A quarter of the pool at most for one client, as far as that is a page.
        let quarter = (pool.capacity() as u64 / 4).max(1) * PAGE_BYTES as u64;
        let limits = Limits {
            requests_max: config.requests_max.max(1),
            queue_entries: config.session_requests_max(),
            part_bytes: config.part_bytes(),
            bytes_max: quarter.min(2 * u64::from(REQUEST_BYTES_MAX)),
            pages_reserve: BATCH.min(pool.capacity() / 4),
        };
        Self {
            listeners: Vec::new(),
            places: Places::new(cores * connections_max),
            slots: (0..connections_max).map(|_| None).collect(),
            generations: vec![0; connections_max],
            free: (0..connections_max).rev().collect(),
            scratch: vec![0; READ_BYTES].into(),
            iovecs: connection::iovecs(),
            pieces: vec![Piece::EMPTY; SEGMENTS_MAX].into(),
            limits,
            tick_at: None,
            pool,
            late: Vec::new(),
            spare: File::open("/dev/null").ok(),
        }
    }

    /// Takes clients of `endpoint` as the source `token` of the poller; returns where exactly, and which listener it is.
    pub fn listen(
        &mut self,
        endpoint: Endpoint,
        Listen { door, protocol }: Listen,
        (poller, token): (&Poller, u64),
    ) -> io::Result<(SocketAddr, usize)> {
        let listener = door.open()?;
        let bound = listener.address()?;
        poller.add(listener.fd(), token, Interest::Read)?;
        let number = self.places.listen();
        assert_eq!(number, self.listeners.len(), "listeners are counted alike");
        self.listeners.push(Entry {
            origin: Origin {
                endpoint,
                port: bound.port(),
            },
            protocol,
            listener,
        });
        Ok((bound, self.listeners.len() - 1))
    }

    /// The next connection that waits at a listener, and whom it is for. It and those that are refused count against `left`.
    pub fn accept(
        &mut self,
        index: usize,
        left: &mut usize,
        counters: &Counters,
        tell: impl Fn(Kind),
    ) -> Option<Client> {
        loop {
            *left = left.checked_sub(1)?;
            // None if told to stop in this very turn.
            let entry = self.listeners.get_mut(index)?;
            counters.syscalls.bump();
            match entry.listener.accept() {
                Ok((stream, peer)) => {
                    let Some(place) = self.places.take(index, peer) else {
                        counters.clients_refused.bump();
                        let (client, why) = (peer, Refusal::Share);
                        tell(Kind::ClientRefused { client, why });
                        continue;
                    };
                    return Some(Client {
                        origin: entry.origin,
                        protocol: Arc::clone(&entry.protocol),
                        stream,
                        peer,
                        place,
                    });
                }
                Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
                    // The kernel says so also if nobody waits.
                    self.spare = None;
                    let refused = entry.listener.accept().map(|(_, peer)| peer);
                    self.spare = File::open("/dev/null").ok();
                    // Another thread may have taken the spare's place: then clients wait until a file is closed.
                    let client = refused.ok()?;
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
        now: Instant,
        client: Client,
        exports: Vec<Export>,
        poller: &Poller,
    ) -> io::Result<(usize, u32)> {
        let slot = *self.free.last().ok_or(ErrorKind::QuotaExceeded)?;
        let Client {
            origin,
            protocol,
            mut stream,
            place,
            ..
        } = client;
        stream.set_up()?;
        poller.add(stream.fd(), connection_token(slot), Interest::Edges)?;
        let client = self.client_number(slot);
        let session = protocol.open(Opening {
            client,
            pool: self.pool.clone(),
            limits: self.limits,
            exports,
            via: stream.via(),
            now,
        });
        self.tick_at = earliest(self.tick_at, session.deadline());
        self.slots[slot] = Some(Connection::new(origin, client, stream, session, place));
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
            connection.set_share(bytes);
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
        connection.complete(reply);
    }

    /// So many requests of a connection that is closed are answered, or were dropped.
    pub fn settle(&mut self, client: u32, requests: usize) {
        let found = self.late.iter().position(|(other, _)| *other == client);
        if let Some(at) = found.filter(|_| requests > 0)
            && self.late[at].1.settle(requests)
        {
            self.late.swap_remove(at);
        }
    }

    /// Bytes that a connection has to send.
    pub fn pending_bytes(&self, slot: usize) -> u64 {
        let connection = self.slots[slot].as_ref();
        connection.map_or(0, |connection| connection.pending_bytes())
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
        self.tick_at = earliest(self.tick_at, connection.deadline());
        worked
    }

    /// Requests of a connection, as far as its bytes and limits go, and whom they are for. `None` if there are none.
    pub fn asks(&mut self, now: Instant, slot: usize) -> Option<(Origin, Asks<'_>)> {
        let connection = self.slots[slot].as_mut()?;
        if connection.asks().requests.is_empty() && !connection.feed(now) {
            return None;
        }
        let origin = connection.origin;
        let asks = connection.asks();
        (!asks.requests.is_empty()).then_some((origin, asks))
    }

    /// Sends at least `bytes_min` bytes of what a connection has to send; returns how many, and whether its session was
    /// blocked before.
    pub fn send(&mut self, slot: usize, bytes_min: usize, counters: &Counters) -> (usize, bool) {
        let Some(connection) = &mut self.slots[slot] else {
            return (0, false);
        };
        let was_blocked = connection.waits_for_room();
        (
            connection.send(bytes_min, &mut self.pieces, counters),
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
            connection.tick(now);
            self.tick_at = earliest(self.tick_at, connection.deadline());
        }
    }

    /// Cuts a connection off; tells whose it was, and how much payload it held.
    pub fn cut(&mut self, slot: usize) -> (IpAddr, u64) {
        let connection = self.slots[slot].as_mut().expect("an open connection");
        connection.ended = true;
        (connection.place.client(), connection.standing().in_flight_bytes)
    }

    /// Closes a connection; tells its number, and whom it asked.
    pub fn close(&mut self, slot: usize, poller: &Poller, counters: &Counters) -> (u32, Endpoint) {
        let mut connection = self.vacate(slot, poller);
        let late = connection.detach();
        self.late.extend(late.map(|late| (connection.client, late)));
        counters.clients_closed.bump();
        (connection.client, connection.origin.endpoint)
    }

    /// Takes a connection out of its slot.
    fn vacate(&mut self, slot: usize, poller: &Poller) -> Connection {
        let connection = self.slots[slot].take().expect("an open connection");
        poller
            .remove(connection.stream.fd())
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
        connection.pause();
    }

    /// Lets a connection that was paused go on here.
    pub fn resume(&mut self, slot: usize) {
        let connection = self.slots[slot].as_mut().expect("an open connection");
        connection.resume();
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
        let fd = connection.stream.fd();
        if let Err(error) = poller.add(fd, connection_token(slot), Interest::Edges) {
            connection.detach();
            self.retire(slot);
            counters.clients_closed.bump();
            return Err(error);
        }
        // The target may have changed on the way.
        connection.tick(now);
        self.tick_at = earliest(self.tick_at, connection.deadline());
        self.slots[slot] = Some(connection);
        Ok((slot, client))
    }

    /// Takes no more connections, and answers new requests with "shutting down".
    pub fn stop_taking(&mut self, poller: &Poller) {
        for entry in self.listeners.drain(..) {
            poller.remove(entry.listener.fd()).expect("a listener is watched");
        }
        for connection in self.slots.iter_mut().flatten() {
            connection.shut_down();
        }
    }

    /// True when every request is answered and every answer sent.
    pub fn is_drained(&self) -> bool {
        let mut open = self.slots.iter().flatten();
        open.all(|connection| connection.standing().in_flight == 0 && connection.pending_bytes() == 0)
    }
}

//! One client's connection: its stream, its session, and what it waits for.
//!
//! The stream is watched edge-triggered, so the connection remembers itself whether it can be read or written: until a
//! read brings less than was asked for, a write takes less than was offered.

use super::place::Place;
use crate::counters::Counters;
use crate::stream::Stream;
use base::{BlockReply, Instant, Pool};
use host::target::Standing;
use std::cell::Cell;
use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::{ptr, slice};
use wire::{Asks, Late, Outgoing, Parked, Piece, Session, State};

/// Segments sent by one call: a megabyte of whole pages (UIO_MAXIOV is four times as many).
pub(super) const SEGMENTS_MAX: usize = 256;

/// A payload with as much to come is large.
const BULK_BYTES: usize = 32 << 10;
/// Read where the header of a large write is expected: headers of both protocols, with some payload behind them.
const HEADER_BYTES_MAX: usize = 512;

/// Who executes the requests of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// A host of this core.
    Host(usize),
    /// The target's volumes.
    Local,
}

/// The port where a request came in, and its executor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    pub port: u16,
    pub endpoint: Endpoint,
}

/// A connection between two cores.
pub(crate) struct Traveller {
    /// As on the core that it left.
    origin: Origin,
    stream: Box<dyn Stream>,
    session: Box<dyn Parked>,
    held: Vec<u8>,
    place: Place,
}

pub(super) struct Connection {
    /// The port where it came in, and the executor of its requests.
    pub origin: Origin,
    pub client: u32,
    pub stream: Box<dyn Stream>,
    session: Box<dyn Session>,
    /// Of the session, unless it is stale.
    state: Cell<State>,
    is_stale: Cell<bool>,
    /// As the session was told last.
    share_bytes: Option<u64>,
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
    /// Bytes read and sent.
    moved_bytes: u64,
    /// Held until it ends.
    pub place: Place,
}

impl Connection {
    pub fn new(
        origin: Origin,
        client: u32,
        stream: Box<dyn Stream>,
        session: Box<dyn Session>,
        place: Place,
    ) -> Self {
        Self {
            origin,
            client,
            stream,
            session,
            state: Cell::default(),
            is_stale: Cell::new(true),
            share_bytes: None,
            held: Vec::new(),
            held_from: 0,
            can_read: false,
            can_write: true,
            ended: false,
            is_ending: false,
            is_broken: false,
            writes_bulk: false,
            moved_bytes: 0,
            place,
        }
    }

    /// The session, to change.
    fn session(&mut self) -> &mut dyn Session {
        self.is_stale.set(true);
        &mut *self.session
    }

    /// The session's state. The session is asked once after its last change.
    fn state(&self) -> State {
        if self.is_stale.replace(false) {
            self.state.set(self.session.state());
        }
        self.state.get()
    }

    /// True if the session is blocked, or has not been given all there is.
    pub fn waits_for_room(&self) -> bool {
        self.state().is_blocked
    }

    /// How it stands.
    pub fn standing(&self) -> Standing {
        let (state, is_over) = (self.state(), self.is_over());
        let reads = self.can_read && !state.is_blocked;
        let sends = self.can_write && state.pending_bytes > 0;
        Standing {
            can_go_on: reads || sends || is_over || state.has_requests,
            is_over,
            waits: state.is_blocked || state.is_waiting,
            share_wanted: state.share_wanted,
            is_short: state.is_short,
            in_flight: state.in_flight,
            in_flight_bytes: state.in_flight_bytes,
            awaits_client: state.is_receiving || state.pending_bytes > 0 && !self.can_write,
            has_answers: state.pending_bytes > 0,
            receives_bulk: self.writes_bulk,
            moved_bytes: self.moved_bytes,
        }
    }

    /// True if it is to be closed. A blocked connection is not read, and would not notice that its peer has gone.
    pub fn is_over(&self) -> bool {
        self.ended || self.is_broken && self.waits_for_room() || self.state().is_over
    }

    /// Bytes that wait to be sent.
    pub fn pending_bytes(&self) -> u64 {
        self.state().pending_bytes
    }

    /// Payload that the session may have under way from now on.
    pub fn set_share(&mut self, bytes: u64) {
        // Of no effect on the state before the next bytes.
        if self.share_bytes.replace(bytes) != Some(bytes) {
            self.session.set_share(bytes);
        }
    }

    /// The answer to a request.
    pub fn complete(&mut self, reply: BlockReply) {
        self.session().complete(reply);
    }

    /// When it is to be ticked.
    pub fn deadline(&self) -> Option<Instant> {
        self.session.deadline()
    }

    pub fn tick(&mut self, now: Instant) {
        self.session().tick(now);
    }

    pub fn shut_down(&mut self) {
        self.session().shut_down();
    }

    pub fn pause(&mut self) {
        self.session().pause();
    }

    pub fn resume(&mut self) {
        self.session().resume();
    }

    /// The connection is closed.
    pub fn detach(&mut self) -> Option<Box<dyn Late>> {
        self.session.detach()
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
        let (places, room) = self.payload_room(iovecs, scratch.len());
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
        // SAFETY: an `IoSliceMut` is an `iovec`. The first ones point into pages that the session holds and nobody else
        // does, the last one at `scratch`; all are valid for writes, and nobody looks at them, until the call returns.
        let into =
            unsafe { slice::from_raw_parts_mut(iovecs.as_mut_ptr().cast::<IoSliceMut<'_>>(), places + 1) };
        let count = match self.stream.read(into) {
            Ok(0) => {
                self.ended = true;
                return false;
            }
            Ok(count) => count,
            Err(error) => {
                match error.kind() {
                    ErrorKind::WouldBlock => self.can_read = false,
                    ErrorKind::Interrupted => {}
                    _ => self.ended = true,
                }
                return false;
            }
        };
        self.can_read = count == room + behind_bytes || self.is_ending;
        counters.client_bytes_in.add(count as u64);
        self.moved_bytes += count as u64;
        let placed = count.min(room);
        let rest = &scratch[..count - placed];
        let session = self.session();
        session.payload_filled(placed);
        let taken = session.receive(now, rest);
        self.held.extend_from_slice(&rest[taken..]);
        self.held_from = 0;
        true
    }

    /// Points `iovecs`, all but the last, at where the next bytes go, at most `bytes_max`; returns how many and how much.
    fn payload_room(&self, iovecs: &mut [libc::iovec], bytes_max: usize) -> (usize, usize) {
        let (mut count, mut bytes) = (0, 0);
        let places_max = iovecs.len() - 1;
        self.session.payload_room(&mut |page, range| {
            let length = range.len().min(bytes_max - bytes);
            iovecs[count] = libc::iovec {
                iov_base: page.as_ptr().wrapping_add(range.start).cast(),
                iov_len: length,
            };
            count += 1;
            bytes += length;
            count < places_max && bytes < bytes_max
        });
        (count, bytes)
    }

    /// Gives the session what it has not taken yet, if the session could do something with it: a blocked one may have
    /// room again without new bytes. True if so.
    pub fn feed(&mut self, now: Instant) -> bool {
        let state = self.state();
        if self.held.is_empty() && !state.is_blocked && !state.is_waiting {
            return false;
        }
        self.is_stale.set(true);
        let rest = &self.held[self.held_from..];
        self.held_from += self.session.receive(now, rest);
        if self.held_from == self.held.len() {
            self.held.clear();
            self.held_from = 0;
        }
        true
    }

    /// True if a paused connection can be taken to another core.
    pub fn is_at_rest(&self) -> bool {
        self.session.is_at_rest() && !self.is_over()
    }

    /// Takes it apart, at rest, for another core.
    pub fn park(self) -> Traveller {
        Traveller {
            origin: self.origin,
            stream: self.stream,
            session: self.session.park(),
            held: self.held[self.held_from..].to_vec(),
            place: self.place,
        }
    }

    /// Puts together what came from another core, with its number and the pool of this one.
    pub fn unpark(traveller: Traveller, client: u32, pool: &Pool) -> Self {
        let session = traveller.session.unpark(client, pool.clone());
        Self {
            held: traveller.held,
            ..Self::new(
                traveller.origin,
                client,
                traveller.stream,
                session,
                traveller.place,
            )
        }
    }

    /// Requests of the session for the volumes, as far as its bytes make some.
    pub fn asks(&mut self) -> Asks<'_> {
        self.session().asks()
    }

    /// Sends at least `bytes_min` bytes, if there are so many and the stream takes them, and not much more; returns how
    /// many.
    pub fn send(&mut self, bytes_min: usize, pieces: &mut [Piece], counters: &Counters) -> usize {
        let mut total = 0;
        while !self.ended && self.can_write && total < bytes_min && self.state().pending_bytes > 0 {
            let mut outgoing = Outgoing::pieces(pieces, bytes_min - total);
            self.session.transmit(&mut outgoing);
            let (count, bytes) = (outgoing.count(), outgoing.bytes());
            counters.syscalls.bump();
            // SAFETY: an `IoSlice` is an `iovec`, and so is a `Piece`. The first `count` point at the session's heads and at
            // pages that its queue holds; neither changes before `sent`.
            let from = unsafe { slice::from_raw_parts(pieces.as_ptr().cast::<IoSlice<'_>>(), count) };
            let sent = match self.stream.write(from) {
                Ok(sent) => sent,
                Err(error) => {
                    match error.kind() {
                        ErrorKind::Interrupted => continue,
                        ErrorKind::WouldBlock => self.can_write = false,
                        _ => self.ended = true,
                    }
                    break;
                }
            };
            counters.client_bytes_out.add(sent as u64);
            self.moved_bytes += sent as u64;
            self.session().sent(sent);
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

//! Protocols and sessions: a [`Protocol`] opens a [`Session`] for each connection, and the world carries the bytes.
//!
//! How a world drives a session:
//! 1. give what the connection brought to [`Session::receive`], and keep the bytes that the session does not take;
//! 2. after `receive`, `complete`, `sent` and `tick`, drain [`Session::asks`] and hand the requests to the volumes. Give
//!    answers to [`Session::complete`];
//! 3. send what [`Session::transmit`] shows, and tell [`Session::sent`];
//! 4. look at [`Session::state`] after each of these. While [`State::is_blocked`], do not read the connection: that is the
//!    back-pressure. While [`State::is_blocked`] or [`State::is_waiting`], call `receive` again (no new bytes needed) after
//!    something was sent, a request was answered, or a pool page came back;
//! 5. call [`Session::tick`] no later than [`Session::deadline`], and whenever [`Protocol::generation`] has moved;
//! 6. close the connection when [`State::is_over`], after sending what is left;
//! 7. call [`Session::detach`] when the connection is closed, for whatever reason.
//!
//! A session moves to another core in three steps: [`Session::pause`], [`Session::park`] once [`Session::is_at_rest`],
//! and [`Parked::unpark`] there.
//!
//! A world that reads into several buffers at once may put the pages that [`Session::payload_room`] shows in front of its
//! own: the payload of large writes is then not copied at all.

use core::net::IpAddr;
use core::ops::Range;
use std::collections::VecDeque;

use base::{BlockReply, BlockRequest, Instant, Page, Pool, VolumeId};

use crate::segment::Outgoing;

/// A volume as clients see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Name that clients ask for; the empty name means the first export.
    pub name: String,
    /// Text for a person, may be empty.
    pub description: String,
    /// The volume behind it.
    pub volume: VolumeId,
    /// Size in bytes, a multiple of 512.
    pub size_bytes: u64,
    /// The client may not change the volume.
    pub read_only: bool,
}

/// Limits of one connection, whatever it speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests accepted and not yet completely answered; at the limit the connection is not read.
    pub requests_max: usize,
    /// As many, of a protocol whose clients are told the limit and cut off beyond it.
    pub queue_entries: usize,
    /// Payload bytes of those requests. They also bound the largest request announced.
    pub bytes_max: u64,
    /// A request that is beyond the connection's share is done in parts of so much, where the protocol has a way; a multiple
    /// of a page.
    pub part_bytes: u64,
    /// Free pages of the pool that a write leaves to others (reads and packets under way).
    pub pages_reserve: usize,
}

/// The makings of a session.
#[derive(Debug)]
pub struct Opening {
    /// Given back in every request.
    pub client: u32,
    /// The core's pages.
    pub pool: Pool,
    /// The connection's limits.
    pub limits: Limits,
    /// The volumes behind the listener, as they are now.
    pub exports: Vec<Export>,
    /// The address by which the client came, if the transport has one.
    pub via: Option<IpAddr>,
    /// When the client came.
    pub now: Instant,
}

/// A protocol that clients of a listener speak.
pub trait Protocol: Send + Sync {
    /// The protocol's stable name, as in events.
    fn name(&self) -> &'static str;

    /// The session of a new connection.
    fn open(&self, opening: Opening) -> Box<dyn Session>;

    /// Moves when something changed that sessions have to know: every session is to be ticked then.
    fn generation(&self) -> u64 {
        0
    }

    /// Has `wake` called after each move of the generation, on whatever thread moves it.
    fn watch(&self, _wake: Box<dyn Fn() + Send + Sync>) {}
}

/// How a session stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The last [`Session::receive`] stopped for want of room, or the session is paused.
    pub is_blocked: bool,
    /// Requests that were taken wait for room. The connection may be read meanwhile.
    pub is_waiting: bool,
    /// [`Session::asks`] has something: after bytes came, and after an answer to a part of a long request.
    pub has_requests: bool,
    /// The client has been given room for data that it has not sent yet.
    pub is_receiving: bool,
    /// The connection is to be closed now.
    pub is_over: bool,
    /// Bytes waiting to be sent.
    pub pending_bytes: u64,
    /// The share with which the request would go on that is held up for want of it; 0 if none is.
    pub share_wanted: u64,
    /// A request is done in parts, since there is no share for the whole.
    pub is_short: bool,
    /// Requests accepted and not yet completely answered, queued replies included.
    pub in_flight: usize,
    /// Bytes of the pages that hold the payload of the requests under way and of the reads not yet sent.
    pub in_flight_bytes: u64,
}

/// Requests of a session for the volumes.
#[derive(Debug)]
pub struct Asks<'s> {
    /// In order.
    pub requests: &'s mut VecDeque<BlockRequest>,
    /// Name of the host that asks, once the host has said it.
    pub host_name: Option<&'s str>,
}

/// The server's side of one connection, without I/O.
pub trait Session {
    /// Consumes bytes of the connection and returns how many were taken: fewer than given when the session waits for room.
    /// Call it again with the rest, which may be empty, once there may be room.
    fn receive(&mut self, now: Instant, bytes: &[u8]) -> usize;

    /// Shows where the next bytes of the stream go, in order, to `visitor` until it returns false: places in pages that
    /// nobody else holds. Nothing is shown unless the payload of a write comes next, and nothing beyond that payload.
    fn payload_room(&self, visitor: &mut dyn FnMut(&Page, Range<usize>) -> bool);

    /// The next `bytes` bytes of the stream are where [`Session::payload_room`] said. Call [`Session::receive`] after it,
    /// with what came behind them, or with nothing.
    ///
    /// # Panics
    /// If there was less room.
    fn payload_filled(&mut self, bytes: usize);

    /// The requests for the volumes, which the world takes from the front as soon as it has asked.
    fn asks(&mut self) -> Asks<'_>;

    /// The volume's answer to a request of this session.
    ///
    /// # Panics
    /// If the tag is not one of a request under way, or a read's pages are not those of its range.
    fn complete(&mut self, reply: BlockReply);

    /// Shows what is to be sent, in order, to `visitor` until it returns false. Nothing is forgotten before
    /// [`Session::sent`] says so.
    fn transmit(&self, to: &mut Outgoing<'_>);

    /// The first `bytes` bytes shown by [`Session::transmit`] are sent.
    fn sent(&mut self, bytes: usize);

    /// How the session stands.
    fn state(&self) -> State;

    /// From now on no request goes on that would bring the payload under way above `bytes`: the connection's share of what
    /// its owner has for all. Where that is less than the largest request, such requests may wait for ever.
    fn set_share(&mut self, bytes: u64);

    /// When [`Session::tick`] is due.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// Looks at the time, and at what changed in what the protocol shares. Spurious calls do nothing.
    fn tick(&mut self, _now: Instant) {}

    /// The server stops: requests from now on are refused, those under way are answered.
    fn shut_down(&mut self);

    /// Begins no more requests and takes no more bytes, but for payload that is on its way: the session is blocked until
    /// [`Session::resume`]. Requests under way go on.
    fn pause(&mut self);

    /// Ends a pause. Call [`Session::receive`] with what it has not taken.
    fn resume(&mut self);

    /// True if a paused session has nothing under way and nothing to send.
    fn is_at_rest(&self) -> bool;

    /// Takes the session out of its core.
    ///
    /// # Panics
    /// If it is not at rest.
    fn park(self: Box<Self>) -> Box<dyn Parked>;

    /// The connection is closed. Requests that the volumes have and have not answered are the world's from now on; `None`
    /// if there are none, or nobody waits for them.
    fn detach(&mut self) -> Option<Box<dyn Late>> {
        None
    }
}

/// A session without requests under way and without its pool, which can be sent to another core.
pub trait Parked: Send {
    /// Goes on with the session on the core of `pool`, under a new client number. The session is blocked until it is given
    /// what it had not taken.
    ///
    /// # Panics
    /// If the pool is not as large as the one before: what was announced would not hold.
    fn unpark(self: Box<Self>, client: u32, pool: Pool) -> Box<dyn Session>;
}

/// Requests of a closed connection that the volumes have not answered yet.
pub trait Late {
    /// So many of the requests are answered, or were dropped and never will be; true if these were the last.
    fn settle(&mut self, requests: usize) -> bool;
}

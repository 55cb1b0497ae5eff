//! The server's side of one NBD connection, without I/O: bytes in, [`BlockRequest`]s out, answers in, bytes out.
//!
//! The subset spoken and the mapping of errors are in `docs/format/nbd.md`; sections cited here are those of the NBD
//! project's "proto.md". The code is in four parts: numbers and layouts ([`proto`]), the handshake, the transmission
//! phase, and the queue of what is to be sent.
//!
//! How a world drives a [`Session`]:
//! 1. give what the socket has to [`Session::receive`] and keep the bytes it does not take;
//! 2. drain [`Session::poll`] and hand the requests to the gateway; give answers to [`Session::complete`];
//! 3. send what [`Session::transmit`] shows and tell [`Session::sent`];
//! 4. while [`Session::is_blocked`], call `receive` again (no new bytes needed) after a reply was sent or a pool page
//!    came back, and do not read the socket meanwhile: that is the back-pressure;
//! 5. close the socket when [`Session::closed`] gives a reason, after sending what is left.
//!
//! A session moves to another core in three steps: [`Session::pause`], [`Session::park`] once [`Session::is_at_rest`],
//! and [`Session::unpark`] there.
//!
//! Invariants:
//! - A request that reaches the gateway is valid: sector-aligned, inside the export, not longer than the maximum that
//!   was announced, and allowed on the export. Everything else is answered here, after its payload is drained.
//! - Requests under way and replies queued are at most [`SessionLimits::in_flight_max`] together, and their payload
//!   is at most [`SessionLimits::in_flight_bytes_max`], whatever the client does and however slowly it reads.
//! - The pages of a write are taken all at once or not at all, so two half-received writes never wait for each other.
//! - Read payload is not copied. Write payload is not either where the world reads it to where
//!   [`Session::payload_room`] shows; what it gives to `receive` is copied once, into pool pages.
//! - The tag of a request is the session's own (slot and generation): clients may repeat a cookie.
//!
//! Assumes a pool of production pages (eight sectors of 512 bytes).

mod handshake;
mod output;
mod park;
pub mod proto;
mod transmission;

use std::collections::VecDeque;

use base::limits::{PAGE_BYTES, REQUEST_BYTES_MAX, SECTOR_BYTES};
use base::{BlockRequest, Pool, VolumeId};
use thiserror::Error;

pub use crate::segment::Segment;
use output::Output;
pub use park::Parked;
use transmission::{Slot, WritePayload};

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
    /// Changes are refused with EPERM.
    pub read_only: bool,
}

/// Limits of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionLimits {
    /// Requests accepted and not yet completely answered; at the limit the socket is not read.
    pub in_flight_max: usize,
    /// Payload bytes of those requests; at the limit the socket is not read. Also bounds the largest request announced.
    pub in_flight_bytes_max: u64,
    /// Free pages of the pool that a write leaves to others (reads and packets under way); below, the socket is not
    /// read.
    pub pages_reserve: usize,
    /// The gateway answers block-status requests ([`Event::Status`]); if false the session reports everything as
    /// allocated data itself.
    pub host_extents: bool,
}

impl Default for SessionLimits {
    /// 128 requests (what the kernel's client keeps in flight), twice the largest request, 64 pages left to others.
    fn default() -> Self {
        Self {
            in_flight_max: 128,
            in_flight_bytes_max: 2 * REQUEST_BYTES_MAX as u64,
            pages_reserve: 64,
            host_extents: false,
        }
    }
}

/// Requests of a session to its world.
#[derive(Debug)]
pub enum Event {
    /// Hand this to the gateway; its answer goes to [`Session::complete`].
    Request(BlockRequest),
    /// Find out which parts are allocated; the answer goes to [`Session::complete_status`]. Only with
    /// [`SessionLimits::host_extents`].
    Status(StatusRequest),
}

/// A block-status request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusRequest {
    /// The connection.
    pub client: u32,
    /// The request's mark.
    pub tag: u64,
    /// Which volume.
    pub volume: VolumeId,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u32,
    /// Extents beyond this many are not sent; the answer may cover less than the range.
    pub extents_max: usize,
}

/// A stretch of one state, as `base:allocation` reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes, not 0.
    pub length: u32,
    /// [`Extent::HOLE`] and [`Extent::ZERO`], or 0 for data.
    pub flags: u32,
}

impl Extent {
    /// Not allocated (`NBD_STATE_HOLE`).
    pub const HOLE: u32 = 1;
    /// Reads as zeros (`NBD_STATE_ZERO`).
    pub const ZERO: u32 = 2;
}

/// Why a connection is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Error)]
pub enum CloseReason {
    /// The client ended the negotiation (`NBD_OPT_ABORT`).
    #[error("the client ended the negotiation")]
    Aborted,
    /// The client said good-bye (`NBD_CMD_DISC`).
    #[error("the client disconnected")]
    Disconnected,
    /// Client flags that were not offered.
    #[error("the client set unknown handshake flags")]
    ClientFlags,
    /// An option or a request that does not start with its magic: the stream is out of step.
    #[error("wrong magic number")]
    Magic,
    /// `NBD_OPT_EXPORT_NAME` for an export that does not exist or may not be used now; the option has no other no.
    #[error("the client chose an export that does not exist")]
    UnknownExport,
}

impl CloseReason {
    /// True if what is under way is still answered before closing.
    const fn is_orderly(self) -> bool {
        matches!(self, Self::Aborted | Self::Disconnected)
    }
}

/// Meaning of the client's next bytes.
#[derive(Debug)]
enum Phase {
    ClientFlags,
    OptionHeader,
    OptionData {
        option: u32,
        length: usize,
    },
    /// Data of an option that is too big.
    OptionSkip {
        option: u32,
        left: u32,
    },
    RequestHeader,
    /// Payload of `Session::write`.
    Payload,
    /// Payload of a write that is already refused.
    PayloadSkip {
        cookie: u64,
        errno: proto::Errno,
        left: u32,
    },
    Closing(CloseReason),
}

/// How a step of [`Session::receive`] went on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    /// There may be more to do with the bytes at hand.
    Again,
    /// More bytes are needed.
    Starved,
    /// Room is needed.
    Blocked,
}

/// The export a connection works on.
#[derive(Clone, Copy, Debug)]
struct Opened {
    volume: VolumeId,
    size_bytes: u64,
    read_only: bool,
    /// `base:allocation` was chosen for it.
    status: bool,
}

/// One NBD connection, server side.
pub struct Session {
    client: u32,
    pool: Pool,
    limits: SessionLimits,
    /// Largest request accepted, as announced.
    request_bytes_max: u32,
    phase: Phase,
    /// The fixed-size header being gathered.
    scratch: [u8; proto::REQUEST_BYTES],
    scratch_bytes: usize,
    option_data: Vec<u8>,
    no_zeroes: bool,
    structured: bool,
    /// The volume for which `base:allocation` was chosen last.
    context: Option<VolumeId>,
    opened: Option<Opened>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    bytes_in_flight: u64,
    share_bytes: u64,
    share_wanted: u64,
    /// The write whose payload is being received.
    write: Option<WritePayload>,
    events: VecDeque<Event>,
    output: Output,
    blocked: bool,
    paused: bool,
    stopping: bool,
}

impl Session {
    /// The session of a new connection, with the server's greeting ready to be sent. `client` is given back in every
    /// request. All queues are reserved now.
    ///
    /// # Panics
    /// If the pool's pages are not 4096 bytes, or the limits do not admit a single request of one page.
    pub fn new(client: u32, pool: Pool, limits: SessionLimits) -> Self {
        assert_eq!(pool.page_bytes(), PAGE_BYTES, "NBD carries sectors of 512 bytes");
        assert!(limits.in_flight_max > 0 && u32::try_from(limits.in_flight_max).is_ok());
        let pages = pool.capacity().saturating_sub(limits.pages_reserve) as u64;
        // An unaligned request touches one page more than its length says.
        let pool_bytes = pages.saturating_sub(1) * PAGE_BYTES as u64;
        let bytes = pool_bytes
            .min(limits.in_flight_bytes_max)
            .min(u64::from(REQUEST_BYTES_MAX));
        let request_bytes_max = bytes as u32 / PAGE_BYTES as u32 * PAGE_BYTES as u32;
        assert!(request_bytes_max > 0, "the limits admit a request of one page");
        let mut session = Self {
            client,
            pool,
            limits,
            request_bytes_max,
            phase: Phase::ClientFlags,
            scratch: [0; proto::REQUEST_BYTES],
            scratch_bytes: 0,
            option_data: Vec::new(),
            no_zeroes: false,
            structured: false,
            context: None,
            opened: None,
            slots: (0..limits.in_flight_max).map(|_| Slot::default()).collect(),
            free: (0..limits.in_flight_max as u32).rev().collect(),
            bytes_in_flight: 0,
            share_bytes: u64::MAX,
            share_wanted: 0,
            write: None,
            events: VecDeque::with_capacity(limits.in_flight_max),
            output: Output::new(limits.in_flight_max),
            blocked: false,
            paused: false,
            stopping: false,
        };
        session.greet();
        session
    }

    /// Consumes bytes from the socket and returns how many were taken: fewer than given when the session waits for
    /// room ([`Session::is_blocked`]). Call it again with the rest, which may be empty, once there may be room.
    /// `exports` is looked at during the handshake only.
    pub fn receive(&mut self, bytes: &[u8], exports: &[Export]) -> usize {
        let mut taken = 0;
        loop {
            if self.paused && !matches!(self.phase, Phase::Payload | Phase::Closing(_)) {
                self.blocked = true;
                return taken;
            }
            let (step, flow) = self.step(&bytes[taken..], exports);
            taken += step;
            self.blocked = flow == Flow::Blocked;
            if flow != Flow::Again {
                return taken;
            }
        }
    }

    /// The next thing the client wants, `None` when there is nothing more.
    pub fn poll(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// True if [`Session::poll`] has something: after bytes came, and after an answer to a part of a long request.
    pub fn has_requests(&self) -> bool {
        !self.events.is_empty()
    }

    /// Shows what is to be sent, in order, to `visitor` until it returns false. Nothing is forgotten before
    /// [`Session::sent`] says so.
    pub fn transmit<'s>(&'s self, visitor: &mut dyn FnMut(Segment<'s>) -> bool) {
        self.output.visit(visitor);
    }

    /// The first `bytes` bytes shown by [`Session::transmit`] are sent.
    pub fn sent(&mut self, bytes: usize) {
        self.bytes_in_flight -= self.output.sent(bytes);
    }

    /// Bytes waiting to be sent.
    pub fn pending_bytes(&self) -> u64 {
        self.output.pending_bytes()
    }

    /// True if the last [`Session::receive`] stopped for want of room: a reply has to be sent or a page to come back. Or
    /// because the session is paused.
    pub fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// True while the payload of an accepted write is being received: its pages are taken already, so holding the
    /// client back would only keep them longer.
    pub fn is_receiving(&self) -> bool {
        matches!(self.phase, Phase::Payload)
    }

    /// Requests accepted and not yet completely answered, queued replies included.
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len() + self.output.replies()
    }

    /// Payload bytes of the requests under way and of the reads not yet sent.
    pub fn in_flight_bytes(&self) -> u64 {
        self.bytes_in_flight
    }

    /// From now on no request is taken that would bring the payload under way above `bytes`: the connection's share of
    /// what its owner has for all. Where that is less than the largest request, such requests may wait for ever.
    pub fn set_share(&mut self, bytes: u64) {
        self.share_bytes = bytes;
    }

    /// The share with which the request would be taken that is held up for want of it; 0 if none is.
    pub fn share_wanted(&self) -> u64 {
        if self.blocked { self.share_wanted } else { 0 }
    }

    /// The largest request accepted, in bytes, as announced to the client.
    pub fn request_bytes_max(&self) -> u32 {
        self.request_bytes_max
    }

    /// The volume of the export that the client opened, if it got that far.
    pub fn volume(&self) -> Option<VolumeId> {
        self.opened.map(|opened| opened.volume)
    }

    /// The server stops: options and requests from now on are refused (ESHUTDOWN), those under way are answered.
    pub fn shut_down(&mut self) {
        self.stopping = true;
    }

    /// Why the connection is to be closed now, `None` while it is to stay open. After an orderly end this turns up
    /// when everything under way has been answered and sent.
    pub fn closed(&self) -> Option<CloseReason> {
        match self.phase {
            Phase::Closing(reason) => {
                let done = self.in_flight() == 0 && self.output.pending_bytes() == 0;
                (done || !reason.is_orderly()).then_some(reason)
            }
            _ => None,
        }
    }

    /// True if the connection is to be closed now.
    pub fn wants_close(&self) -> bool {
        self.closed().is_some()
    }

    /// One step with the bytes at hand: how many it took and how to go on.
    fn step(&mut self, bytes: &[u8], exports: &[Export]) -> (usize, Flow) {
        match self.phase {
            Phase::ClientFlags => self.gather(bytes, proto::CLIENT_FLAGS_BYTES, Self::client_flags),
            Phase::OptionHeader => self.gather(bytes, proto::OPTION_HEADER_BYTES, Self::option_header),
            Phase::OptionData { option, length } => self.option_data(bytes, option, length, exports),
            Phase::OptionSkip { option, left } => self.option_skip(bytes, option, left),
            Phase::RequestHeader => self.gather(bytes, proto::REQUEST_BYTES, Self::request),
            Phase::Payload => self.payload(bytes),
            Phase::PayloadSkip { cookie, errno, left } => self.payload_skip(bytes, cookie, errno, left),
            Phase::Closing(_) => (bytes.len(), Flow::Starved),
        }
    }

    /// Gathers a header of `want` bytes in `scratch` and, when it is whole, lets `then` act on it. A blocked header
    /// stays in `scratch`.
    fn gather(&mut self, bytes: &[u8], want: usize, then: fn(&mut Self) -> Flow) -> (usize, Flow) {
        let step = bytes.len().min(want - self.scratch_bytes);
        self.scratch[self.scratch_bytes..][..step].copy_from_slice(&bytes[..step]);
        self.scratch_bytes += step;
        if self.scratch_bytes < want {
            return (step, Flow::Starved);
        }
        let flow = then(self);
        if flow != Flow::Blocked {
            self.scratch_bytes = 0;
        }
        (step, flow)
    }

    /// Ends the conversation. Unless that is orderly, nothing more is sent or asked.
    fn close(&mut self, reason: CloseReason) {
        self.phase = Phase::Closing(reason);
        if !reason.is_orderly() {
            self.events.clear();
            self.output.clear();
        }
    }
}

const _: () = assert!(SECTOR_BYTES.is_power_of_two() && PAGE_BYTES.is_multiple_of(SECTOR_BYTES));

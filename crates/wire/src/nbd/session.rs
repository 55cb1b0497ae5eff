//! One connection: its handshake, then its requests.

use core::ops::Range;
use std::sync::Arc;

use base::{BlockError, BlockReply, BlockRequest, Duration, Instant, Page, Pool, VolumeId};

use super::guard::Guard;
use super::handshake::Handshake;
use super::input::{CloseReason, Flow};
use super::output::Output;
use super::transmission::{Terms, Transmission};
use super::whereabouts::Whereabouts;
use crate::nvme::{Access, Rights};
use crate::segment::Outgoing;
use crate::session::{self, Asks, Opening, Protocol, State};

/// A connection that has opened no export after this long is closed.
const HANDSHAKE_TIME: Duration = Duration::from_secs(30);

/// Stable name of the protocol.
pub const NAME: &str = "nbd";

/// The NBD protocol of a listener.
pub struct Nbd {
    target: Option<Arc<dyn Access>>,
    others: Option<Arc<dyn Whereabouts>>,
}

impl Nbd {
    /// Of volumes that nobody can reserve.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            target: None,
            others: None,
        })
    }

    /// Of volumes that the hosts of an NVMe target can reserve.
    pub fn beside(target: Arc<dyn Access>) -> Arc<Self> {
        Arc::new(Self {
            target: Some(target),
            others: None,
        })
    }

    /// Of volumes that other servers may serve. Nobody can reserve them.
    pub fn among(others: Arc<dyn Whereabouts>) -> Arc<Self> {
        Arc::new(Self {
            target: None,
            others: Some(others),
        })
    }
}

impl Protocol for Nbd {
    fn name(&self) -> &'static str {
        NAME
    }

    fn open(&self, opening: Opening) -> Box<dyn session::Session> {
        let mut session = Session::new(opening);
        session.guard = self.target.as_ref().map(|target| Guard::new(Arc::clone(target)));
        match &self.others {
            Some(others) => Box::new(session.among(Arc::clone(others))),
            None => Box::new(session),
        }
    }

    fn generation(&self) -> u64 {
        self.others.as_ref().map_or(0, |others| others.generation())
    }

    fn watch(&self, wake: Box<dyn Fn() + Send + Sync>) {
        if let Some(others) = &self.others {
            others.watch(wake);
        }
    }
}

/// One NBD connection, server side.
pub struct Session {
    handshake: Handshake,
    transmission: Transmission,
    guard: Option<Guard>,
    output: Output,
    closing: Option<CloseReason>,
    /// The client is to have opened an export by then.
    handshake_until: Instant,
    blocked: bool,
    paused: bool,
}

impl Session {
    /// The session of a new connection, with the server's greeting ready to be sent. All queues are reserved now.
    ///
    /// # Panics
    /// If the pool's pages are not 4096 bytes, or the limits do not admit a single request of one page.
    pub fn new(opening: Opening) -> Self {
        let terms = Terms::new(opening.limits, opening.pool.capacity());
        let handshake = Handshake::new(opening.exports, terms.request_bytes_max);
        let transmission = Transmission::new(terms, opening.client, opening.pool);
        let mut session = Self::with(handshake, transmission, None, opening.now + HANDSHAKE_TIME);
        session.output.greet();
        session
    }

    /// The same, where other servers may serve the volumes.
    pub fn among(mut self, others: Arc<dyn Whereabouts>) -> Self {
        self.handshake.others = Some(others);
        self
    }

    fn with(
        handshake: Handshake,
        transmission: Transmission,
        guard: Option<Guard>,
        handshake_until: Instant,
    ) -> Self {
        Self {
            output: Output::new(transmission.requests_max()),
            handshake,
            transmission,
            guard,
            closing: None,
            handshake_until,
            blocked: false,
            paused: false,
        }
    }

    /// The largest request accepted, in bytes, as announced to the client.
    pub fn request_bytes_max(&self) -> u32 {
        self.transmission.terms.request_bytes_max
    }

    /// The volume of the export that the client opened, if it got that far.
    pub fn volume(&self) -> Option<VolumeId> {
        self.transmission.terms.opened.map(|opened| opened.volume)
    }

    /// Why the connection is to be closed now, `None` while it is to stay open. After an orderly end this turns up
    /// when everything under way has been answered and sent.
    pub fn closed(&self) -> Option<CloseReason> {
        let done = || self.in_flight() == 0 && self.output.pending_bytes() == 0;
        self.closing.filter(|reason| !reason.is_orderly() || done())
    }

    /// See [`crate::Session::park`].
    pub fn park(self) -> Parked {
        assert!(session::Session::is_at_rest(&self), "nothing is under way");
        Parked {
            handshake: self.handshake,
            terms: self.transmission.terms,
            guard: self.guard,
            handshake_until: self.handshake_until,
        }
    }

    /// See [`crate::Parked::unpark`].
    pub fn unpark(parked: Parked, client: u32, pool: Pool) -> Self {
        let transmission = Transmission::new(parked.terms, client, pool);
        Self {
            blocked: true,
            ..Self::with(
                parked.handshake,
                transmission,
                parked.guard,
                parked.handshake_until,
            )
        }
    }

    fn in_flight(&self) -> usize {
        let under_way = self.transmission.ledger.len();
        // A request in parts is one also while none of them is under way.
        let is_parted = under_way == 0 && self.transmission.is_parted();
        under_way + usize::from(is_parted) + self.output.replies()
    }

    /// One step with the bytes at hand: how many it took and how to go on.
    fn step(&mut self, bytes: &[u8]) -> (usize, Flow) {
        if self.closing.is_some() {
            return (bytes.len(), Flow::Starved);
        }
        if self.transmission.terms.opened.is_some() {
            return self.transmission.step(bytes, &mut self.output);
        }
        let done = self.handshake.step(bytes, &mut self.output);
        self.transmission.terms.opened = self.handshake.opened;
        done
    }

    /// Ends the conversation. Unless that is orderly, nothing more is sent or asked.
    fn close(&mut self, reason: CloseReason) {
        self.closing = Some(reason);
        if !reason.is_orderly() {
            self.transmission.ledger.requests.clear();
            self.output.clear();
        }
    }

    /// Answers the requests that a reservation forbids; the others stay in order.
    #[cold]
    fn refuse_reserved(&mut self) {
        for _ in 0..self.transmission.ledger.requests.len() {
            let request = self.transmission.ledger.requests.pop_front();
            let request = request.expect("as many as were counted");
            let guard = self.guard.as_mut();
            if guard.is_none_or(|guard| guard.rights(request.volume).admit(request.op)) {
                self.transmission.ledger.requests.push_back(request);
                continue;
            }
            let BlockRequest {
                client, tag, pages, ..
            } = request;
            drop(pages);
            let result = Err(BlockError::Reserved);
            session::Session::complete(self, BlockReply { client, tag, result });
        }
    }

    /// True while the payload of a write is on its way, or a request is done in parts.
    fn is_busy(&self) -> bool {
        self.transmission.is_receiving() || self.transmission.is_parted()
    }

    fn is_negotiating(&self) -> bool {
        self.transmission.terms.opened.is_none() && self.closing.is_none()
    }

    /// True if the connection ended in disorder: nothing more is sent.
    fn is_cut(&self) -> bool {
        self.closing.is_some_and(|reason| !reason.is_orderly())
    }
}

impl session::Session for Session {
    fn receive(&mut self, _now: Instant, bytes: &[u8]) -> usize {
        let mut taken = 0;
        loop {
            if self.paused && self.closing.is_none() && !self.is_busy() {
                self.blocked = true;
                return taken;
            }
            let (step, flow) = self.step(&bytes[taken..]);
            taken += step;
            self.blocked = matches!(flow, Flow::Blocked);
            match flow {
                Flow::Again => {}
                Flow::Close(reason) => self.close(reason),
                Flow::Starved | Flow::Blocked => return taken,
            }
        }
    }

    fn payload_room(&self, visitor: &mut dyn FnMut(&Page, Range<usize>) -> bool) {
        self.transmission.payload_room(visitor);
    }

    fn payload_filled(&mut self, bytes: usize) {
        self.transmission.payload_filled(bytes);
    }

    fn asks(&mut self) -> Asks<'_> {
        if let Some(guard) = &mut self.guard
            && let Some(request) = self.transmission.ledger.requests.front()
            && guard.rights(request.volume) != Rights::ALL
        {
            self.refuse_reserved();
        }
        Asks {
            requests: &mut self.transmission.ledger.requests,
            host_name: None,
        }
    }

    fn complete(&mut self, reply: BlockReply) {
        let is_cut = self.is_cut();
        let is_elsewhere = reply
            .result
            .as_ref()
            .is_err_and(|&error| error == BlockError::Elsewhere);
        self.transmission.complete(reply, is_cut, &mut self.output);
        if is_elsewhere && self.closing.is_none() {
            self.close(CloseReason::Elsewhere);
        }
    }

    fn transmit(&self, to: &mut Outgoing<'_>) {
        self.output.visit(&mut |segment| to.take(segment));
    }

    fn sent(&mut self, bytes: usize) {
        self.transmission.ledger.bytes -= self.output.sent(bytes);
    }

    fn state(&self) -> State {
        let ledger = &self.transmission.ledger;
        State {
            is_blocked: self.blocked,
            is_waiting: false,
            is_receiving: self.transmission.is_receiving(),
            has_requests: !ledger.requests.is_empty() || self.blocked && self.transmission.may_go_on(),
            is_short: self.transmission.is_short(),
            is_over: self.closed().is_some(),
            pending_bytes: self.output.pending_bytes(),
            share_wanted: if self.blocked { ledger.share_wanted() } else { 0 },
            in_flight: self.in_flight(),
            in_flight_bytes: ledger.bytes,
        }
    }

    fn set_share(&mut self, bytes: u64) {
        self.transmission.ledger.share_bytes = bytes;
    }

    fn deadline(&self) -> Option<Instant> {
        self.is_negotiating().then_some(self.handshake_until)
    }

    fn tick(&mut self, now: Instant) {
        if self.is_negotiating() && now >= self.handshake_until {
            self.close(CloseReason::Idle);
        }
        // A request that is done in parts, or comes in, is refused by the volume, and then the session ends.
        if self.closing.is_none()
            && !self.is_busy()
            && let Some(volume) = self.volume()
            && self.handshake.has_left(volume)
        {
            self.close(CloseReason::Elsewhere);
        }
    }

    fn shut_down(&mut self) {
        self.handshake.stopping = true;
        self.transmission.terms.stopping = true;
    }

    fn pause(&mut self) {
        self.paused = true;
        self.blocked |= !self.is_busy();
    }

    fn resume(&mut self) {
        self.paused = false;
    }

    fn is_at_rest(&self) -> bool {
        let open = self.closing.is_none() && !self.is_busy();
        let is_quiet = self.in_flight() == 0 && self.output.pending_bytes() == 0;
        self.paused && open && is_quiet && self.transmission.ledger.requests.is_empty()
    }

    fn park(self: Box<Self>) -> Box<dyn session::Parked> {
        Box::new((*self).park())
    }
}

/// A session without requests under way and without its pool.
pub struct Parked {
    handshake: Handshake,
    terms: Terms,
    guard: Option<Guard>,
    handshake_until: Instant,
}

impl session::Parked for Parked {
    fn unpark(self: Box<Self>, client: u32, pool: Pool) -> Box<dyn session::Session> {
        Box::new(Session::unpark(*self, client, pool))
    }
}

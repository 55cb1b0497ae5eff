//! One connection, target side: its state, its answers and its end. How bytes become commands is in `receive`, what commands
//! do in `io` and `control`, and what a world does with it in `server`.

use core::net::IpAddr;
use std::collections::VecDeque;
use std::sync::Arc;

use base::{Duration, Instant, Pool, VolumeId};
use thiserror::Error;

use super::fabrics::Connected;
use super::limits::{SessionLimits, Shape};
use super::output::{Framing, Output, Reply};
use super::proto::{
    self, COMMAND_PDU_BYTES, Cqe, DIGEST_BYTES, Fatal, IC_BYTES, Status, TERM_BYTES_MAX, Termination, pdu,
};
use super::reserve::Fence;
use super::target::{Access, EVENT_REQUESTS_MAX, ErrorEntry, Usage, View};
use super::work::{Plan, Stage, Work};
use crate::ledger::Ledger;

/// A connection that is terminated waits this long for its last words to be sent.
pub(super) const CLOSE_TIME: Duration = Duration::from_secs(5);

/// Meaning of the host's next bytes.
#[derive(Debug)]
pub(super) enum Phase {
    Header,
    Data(Incoming),
    /// Data of a command that is already refused, with its digest.
    Skip {
        left: u32,
    },
    Closing(CloseReason),
}

/// Data of one PDU on its way in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Incoming {
    /// The command it belongs to.
    pub tag: u64,
    /// Bytes missing, digest aside.
    pub left: u32,
    /// Of the bytes so far.
    pub crc: u32,
    /// The digest as it comes in.
    pub digest: [u8; DIGEST_BYTES],
    pub digest_bytes: usize,
}

/// How a step of [`Session::receive`] went on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// There may be more to do with the bytes at hand.
    Again,
    /// More bytes are needed.
    Starved,
    /// Room is needed.
    Blocked,
}

/// The queue that a connection is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queue {
    pub connected: Connected,
    pub view: View,
    /// Entries taken, modulo the queue's size (`SQHD`).
    pub head: u16,
}

/// Why a connection is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Error)]
pub enum CloseReason {
    /// The host said good-bye to an I/O queue (Fabrics §3.4).
    #[error("the host disconnected")]
    Disconnected,
    /// The host ended the connection for an error of ours (`H2CTermReq`), with this status.
    #[error("the host terminated the connection with status {0}")]
    Terminated(u16),
    /// The host broke the protocol in a way that ends the connection.
    #[error("{0}")]
    Fatal(proto::Fatal),
    /// More commands than the queue has entries.
    #[error("the host has more commands under way than its queue has entries")]
    QueueOverrun,
    /// No Connect in time.
    #[error("the host did not connect a queue in time")]
    Idle,
    /// No Keep Alive in time.
    #[error("the host did not keep its controller alive")]
    KeepAlive,
    /// The controller is gone: its admin connection ended, or its volume was taken back.
    #[error("the controller is gone")]
    ControllerGone,
    /// The controller was reset; its I/O queues are gone.
    #[error("the controller was reset")]
    ControllerReset,
}

/// Knowledge of a session about its host and its target, which moves along to another core.
pub(super) struct Link {
    pub target: Arc<dyn Access>,
    pub limits: SessionLimits,
    pub shape: Shape,
    pub pool_pages: usize,
    pub phase: Phase,
    /// A header being gathered, or one that waits for room.
    pub scratch: [u8; IC_BYTES],
    pub scratch_bytes: usize,
    /// Set by `ICReq`.
    pub framing: Option<Framing>,
    pub queue: Option<Queue>,
    /// Name of the host, once a queue is connected.
    pub host_nqn: String,
    /// The address by which the host came.
    pub via: Option<IpAddr>,
    pub stopping: bool,
    /// Asynchronous Event Requests.
    pub event_requests: Vec<u16>,
    /// Generation of the target that `queue` is up to date with.
    pub generation: Option<u64>,
    /// The newest fence for this queue that was seen.
    pub fence: u64,
    pub usage: Usage,
    /// Since when `usage` waits to be told.
    pub usage_since: Option<Instant>,
    pub now: Instant,
    pub started: Option<Instant>,
    /// Last sign of life on an admin queue.
    pub alive: Instant,
}

/// One NVMe/TCP connection, target side.
pub struct Session {
    pub(super) link: Link,
    pub(super) ledger: Ledger<Work>,
    /// Tags of commands whose payload does not fit yet, in order.
    pub(super) waiting: VecDeque<u64>,
    /// Commands of which only a part has room.
    pub(super) short: usize,
    /// A part was answered since the last step. There may be nothing to send: if the next part waits, its turn is to tell so.
    pub(super) may_go_on: bool,
    /// Commands that have room and whose data has not come.
    pub(super) receiving: usize,
    /// Tags of those of them whose data is still to be asked for.
    pub(super) granted: VecDeque<u64>,
    /// Data of the others that was asked for.
    pub(super) asked_bytes: u32,
    pub(super) output: Output,
    pub(super) blocked: bool,
    pub(super) paused: bool,
    /// Reservation Acquires that wait for a fence: their tags, and which.
    pub(super) acquires: Vec<(u64, Fence)>,
    /// The newest fence for this queue that was passed.
    pub(super) passed: u64,
    pub(super) closing_since: Instant,
}

impl Session {
    /// The session of a new connection. `client` is given back in every request. All queues are reserved now.
    ///
    /// # Panics
    /// If the pool's pages are not 4096 bytes, or the limits do not admit a transfer of one page.
    pub fn new(client: u32, pool: Pool, limits: SessionLimits, target: Arc<dyn Access>) -> Self {
        let link = Link {
            target,
            limits,
            shape: limits.shape(pool.capacity()),
            pool_pages: pool.capacity(),
            phase: Phase::Header,
            scratch: [0; IC_BYTES],
            scratch_bytes: 0,
            framing: None,
            queue: None,
            host_nqn: String::new(),
            via: None,
            stopping: false,
            event_requests: Vec::with_capacity(EVENT_REQUESTS_MAX),
            generation: None,
            fence: 0,
            usage: Usage::default(),
            usage_since: None,
            now: Instant::ZERO,
            started: None,
            alive: Instant::ZERO,
        };
        Self::with(link, client, pool)
    }

    /// The same session for a host that came by this address. Discovery tells the address instead of a wildcard.
    #[must_use]
    pub fn via(mut self, address: Option<IpAddr>) -> Self {
        self.link.via = address;
        self
    }

    /// A session with nothing under way.
    ///
    /// # Panics
    /// If the pool is not as large as the one before: what was announced would not hold.
    pub(super) fn with(link: Link, client: u32, pool: Pool) -> Self {
        assert_eq!(pool.capacity(), link.pool_pages, "pools are of one size");
        let entries = link.limits.in_flight_max;
        Self {
            ledger: Ledger::new(client, pool, entries),
            waiting: VecDeque::with_capacity(entries),
            short: 0,
            may_go_on: false,
            receiving: 0,
            granted: VecDeque::new(),
            asked_bytes: 0,
            output: Output::new(entries + EVENT_REQUESTS_MAX),
            blocked: false,
            paused: false,
            acquires: Vec::new(),
            passed: link.fence,
            closing_since: Instant::ZERO,
            link,
        }
    }

    /// The largest transfer accepted, in bytes, as announced to the host.
    pub fn request_bytes_max(&self) -> u32 {
        self.link.shape.request_bytes_max
    }

    /// The volume of the namespace, once a queue is connected.
    pub fn volume(&self) -> Option<VolumeId> {
        let view = &self.link.queue.as_ref()?.view;
        view.namespace.map(|namespace| namespace.volume)
    }

    /// The queue id, once a queue is connected; 0 is the admin queue.
    pub fn queue_id(&self) -> Option<u16> {
        self.link.queue.as_ref().map(|queue| queue.connected.qid)
    }

    /// Name of the host, once a queue is connected.
    pub fn host_nqn(&self) -> Option<&str> {
        self.link.queue.as_ref().map(|_| self.link.host_nqn.as_str())
    }

    /// Commands accepted and not yet completely answered, queued responses included; event requests aside, which
    /// may stay for ever.
    pub(super) fn in_flight(&self) -> usize {
        self.ledger.len() + self.output.ends()
    }

    /// True while payload of an accepted write is on its way: its pages are taken already, so holding the host back
    /// would only keep them longer.
    pub fn is_receiving(&self) -> bool {
        self.receiving > 0 || matches!(self.link.phase, Phase::Data(_))
    }

    /// Why the connection is to be closed now, `None` while it is to stay open. After a Disconnect this turns up when
    /// everything under way has been answered and sent, after a termination when that has been sent.
    pub fn closed(&self) -> Option<CloseReason> {
        let Phase::Closing(reason) = self.link.phase else {
            return None;
        };
        let sent = self.output.pending_bytes() == 0;
        let late = self.link.now >= self.closing_since + CLOSE_TIME;
        let now = match reason {
            CloseReason::Disconnected => sent && self.in_flight() == 0 || late,
            CloseReason::Fatal(_) | CloseReason::QueueOverrun => sent || late,
            _ => true,
        };
        now.then_some(reason)
    }

    /// Puts a command that failed into the controller's error log: its id, its namespace, the first block concerned. Hosts
    /// that read the log after the answer find it there.
    pub(super) fn log_error(&self, (cid, nsid, lba): (u16, u32, u64), status: Status) {
        let Some(queue) = &self.link.queue else {
            return;
        };
        let connected = queue.connected;
        self.link.target.with(&mut |target| {
            if let Some(controller) = target.held_mut(connected.handle) {
                let error = ErrorEntry {
                    count: 0,
                    qid: connected.qid,
                    cid,
                    status,
                    nsid,
                    lba,
                };
                controller.log_error(error);
            }
        });
    }

    /// The queue that this connection is.
    fn queue(&self) -> &Queue {
        let queue = self.link.queue.as_ref();
        queue.expect("commands come after Connect")
    }

    pub(super) fn connected(&self) -> &Connected {
        &self.queue().connected
    }

    /// The target as this connection sees it.
    pub(super) fn view(&self) -> &View {
        &self.queue().view
    }

    /// What was agreed on for this direction; nothing is sent before that but `ICResp`.
    pub(super) fn framing(&self) -> Framing {
        self.link.framing.expect("commands come after the handshake")
    }

    /// A completion of this queue.
    pub(super) fn cqe(&self, cid: u16, status: Status, result: u64) -> Cqe {
        let head = self.link.queue.as_ref().filter(|queue| queue.connected.sq_flow);
        Cqe {
            result,
            sq_head: head.map_or(0, |queue| queue.head),
            sq_id: 0,
            cid,
            status,
        }
    }

    /// True if success may be told by a flag of the data.
    pub(super) fn sq_flow(&self) -> bool {
        self.link
            .queue
            .as_ref()
            .is_none_or(|queue| queue.connected.sq_flow)
    }

    /// A response without data.
    pub(super) fn answer(&mut self, cid: u16, status: Status, result: u64) {
        let reply = Reply::response(self.framing(), &self.cqe(cid, status, result));
        self.output.push(reply);
    }

    /// Ends the conversation without another word.
    pub(super) fn close(&mut self, reason: CloseReason) {
        self.link.phase = Phase::Closing(reason);
        self.closing_since = self.link.now;
        if reason != CloseReason::Disconnected {
            self.ledger.bytes -= self.output.clear();
            self.drop_unasked();
        }
    }

    /// Ends the conversation with a termination request that shows what was wrong (TCP §3.5).
    pub(super) fn terminate(&mut self, fatal: Fatal, information: u32, culprit: &[u8]) {
        self.end_with(CloseReason::Fatal(fatal), fatal, information, culprit);
    }

    /// Ends the conversation of a host with too many commands.
    pub(super) fn overrun(&mut self, culprit: &[u8]) {
        self.end_with(CloseReason::QueueOverrun, Fatal::Sequence, 0, culprit);
    }

    fn end_with(&mut self, reason: CloseReason, fatal: Fatal, information: u32, culprit: &[u8]) {
        let mut bytes = [0; TERM_BYTES_MAX];
        let termination = Termination {
            status: fatal as u16,
            information,
        };
        let count = termination.emit(pdu::C2H_TERM, culprit, &mut bytes);
        self.ledger.bytes -= self.output.put_last(&bytes[..count]);
        self.link.phase = Phase::Closing(reason);
        self.closing_since = self.link.now;
        self.drop_unasked();
    }

    /// Gives up what the volume was not asked for yet: requests in the queue, writes half received, commands that
    /// wait.
    fn drop_unasked(&mut self) {
        while let Some(request) = self.ledger.requests.pop_front() {
            self.vacate(request.tag);
        }
        self.waiting.clear();
        self.granted.clear();
        self.acquires.clear();
        (self.receiving, self.asked_bytes) = (0, 0);
        for index in 0..self.ledger.bound() {
            if let Some((tag, work)) = self.ledger.at(index)
                && work.stage != Stage::Asked
            {
                self.vacate(tag);
            }
        }
    }

    /// True if the connection ended in disorder: nothing more is answered.
    pub(super) fn is_cut(&self) -> bool {
        matches!(self.link.phase, Phase::Closing(reason) if reason != CloseReason::Disconnected)
    }

    /// Ends a command: its slot is free, its payload counts no more.
    ///
    /// # Panics
    /// If the tag is not one of a command under way.
    pub(super) fn vacate(&mut self, tag: u64) -> Plan {
        let work = self.ledger.remove(tag);
        self.ledger.bytes -= u64::from(work.counted_bytes);
        self.short -= usize::from(!work.rest.is_empty());
        work.plan
    }
}

const _: () = assert!(
    COMMAND_PDU_BYTES + DIGEST_BYTES <= IC_BYTES,
    "a header fits the scratch"
);

//! One connection, target side: its state, and what a world does with it. How bytes become commands is in `receive`,
//! what commands do in `io` and `control`.

use std::collections::VecDeque;

use base::limits::PAGE_BYTES;
use base::time::earliest;
use base::{BlockRequest, Duration, Instant, Pages, Pool, VolumeId};

use super::fabrics::Connected;
use super::io::{Plan, Slot, Stage, Work};
use super::output::{Framing, Output, Reply};
use super::proto::{
    COMMAND_PDU_BYTES, Cqe, DIGEST_BYTES, Fatal, IC_BYTES, Status, TERM_BYTES_MAX, Termination, pdu,
};
use super::reserve::Fence;
use super::target::{EVENT_REQUESTS_MAX, ErrorEntry, Usage, View};
use super::{Access, CloseReason, Late, Segment, SessionLimits, Shape};

/// A connection that has no queue after this long is closed.
const CONNECT_TIME: Duration = Duration::from_secs(30);
/// A connection that is terminated waits this long for its last words to be sent.
const CLOSE_TIME: Duration = Duration::from_secs(5);
/// Delay before the session tells the target its counts of reads and writes.
const USAGE_TIME: Duration = Duration::from_secs(1);
/// A discovery controller without a keep-alive time ends after this long without a command (Fabrics §5.2).
const DISCOVERY_TIME_MS: u32 = 120_000;

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
    /// The slot of the command it belongs to.
    pub slot: u32,
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

/// One NVMe/TCP connection, target side.
pub struct Session {
    pub(super) client: u32,
    pub(super) pool: Pool,
    pub(super) limits: SessionLimits,
    pub(super) shape: Shape,
    pub(super) phase: Phase,
    /// A header being gathered, or one that waits for room.
    pub(super) scratch: [u8; IC_BYTES],
    pub(super) scratch_bytes: usize,
    /// Set by `ICReq`.
    pub(super) framing: Option<Framing>,
    pub(super) queue: Option<Queue>,
    /// Name of the host, once a queue is connected.
    pub(super) host_nqn: String,
    pub(super) slots: Vec<Slot>,
    pub(super) free: Vec<u32>,
    /// Slots whose payload does not fit yet, in order.
    pub(super) waiting: VecDeque<u32>,
    /// Commands that have room and whose data has not come.
    pub(super) receiving: usize,
    /// Those of them whose data is still to be asked for.
    pub(super) granted: VecDeque<u32>,
    /// Data of the others that was asked for.
    pub(super) asked_bytes: u32,
    pub(super) bytes_in_flight: u64,
    pub(super) share_bytes: u64,
    pub(super) share_wanted: u64,
    pub(super) requests: VecDeque<BlockRequest>,
    pub(super) output: Output,
    pub(super) blocked: bool,
    pub(super) paused: bool,
    pub(super) stopping: bool,
    /// Asynchronous Event Requests.
    pub(super) event_requests: Vec<u16>,
    /// Generation of the target that `queue` is up to date with.
    pub(super) generation: Option<u64>,
    /// Reservation Acquires that wait for a fence: their tags, and which.
    pub(super) acquires: Vec<(u64, Fence)>,
    /// The newest fence for this queue that was seen, and that was passed.
    pub(super) fence: u64,
    pub(super) passed: u64,
    pub(super) usage: Usage,
    /// Since when `usage` waits to be told.
    pub(super) usage_since: Option<Instant>,
    pub(super) now: Instant,
    pub(super) started: Option<Instant>,
    /// Last sign of life on an admin queue.
    pub(super) alive: Instant,
    pub(super) closing_since: Instant,
}

impl Session {
    /// The session of a new connection. `client` is given back in every request. All queues are reserved now.
    ///
    /// # Panics
    /// If the pool's pages are not 4096 bytes, or the limits do not admit a transfer of one page.
    pub fn new(client: u32, pool: Pool, limits: SessionLimits) -> Self {
        assert_eq!(pool.page_bytes(), PAGE_BYTES, "NVMe carries blocks of 512 bytes");
        let shape = limits.shape(pool.capacity());
        let entries = limits.in_flight_max;
        Self {
            client,
            pool,
            limits,
            shape,
            phase: Phase::Header,
            scratch: [0; IC_BYTES],
            scratch_bytes: 0,
            framing: None,
            queue: None,
            host_nqn: String::new(),
            slots: (0..entries).map(|_| Slot::default()).collect(),
            free: (0..entries as u32).rev().collect(),
            waiting: VecDeque::with_capacity(entries),
            receiving: 0,
            granted: VecDeque::new(),
            asked_bytes: 0,
            bytes_in_flight: 0,
            share_bytes: u64::MAX,
            share_wanted: 0,
            requests: VecDeque::with_capacity(entries),
            output: Output::new(entries + EVENT_REQUESTS_MAX),
            blocked: false,
            paused: false,
            stopping: false,
            event_requests: Vec::with_capacity(EVENT_REQUESTS_MAX),
            generation: None,
            acquires: Vec::new(),
            fence: 0,
            passed: 0,
            usage: Usage::default(),
            usage_since: None,
            now: Instant::ZERO,
            started: None,
            alive: Instant::ZERO,
            closing_since: Instant::ZERO,
        }
    }

    /// Consumes bytes from the socket and returns how many were taken: fewer than given when the session waits for
    /// room ([`Session::is_blocked`]). Call it again with the rest, which may be empty, once there may be room.
    pub fn receive(&mut self, now: Instant, bytes: &[u8], target: &dyn Access) -> usize {
        self.moment(now, target);
        self.grant();
        let mut taken = 0;
        loop {
            if self.paused && !self.is_receiving() && !matches!(self.phase, Phase::Closing(_)) {
                self.blocked = true;
                return taken;
            }
            let (step, flow) = self.step(&bytes[taken..], target);
            taken += step;
            self.blocked = flow == Flow::Blocked;
            if flow != Flow::Again {
                return taken;
            }
        }
    }

    /// The next request for the volume, `None` when there is nothing more.
    pub fn poll(&mut self) -> Option<BlockRequest> {
        self.requests.pop_front()
    }

    /// True if [`Session::poll`] has something: after bytes came, and after an answer to a part of a long request.
    pub fn has_requests(&self) -> bool {
        !self.requests.is_empty()
    }

    /// Shows what is to be sent, in order, to `visitor` until it returns false. Nothing is forgotten before
    /// [`Session::sent`] says so.
    pub fn transmit<'s>(&'s self, visitor: &mut dyn FnMut(Segment<'s>) -> bool) {
        self.output.visit(visitor);
    }

    /// The first `bytes` bytes shown by [`Session::transmit`] are sent.
    pub fn sent(&mut self, bytes: usize) {
        self.bytes_in_flight -= self.output.sent(bytes);
        self.grant();
    }

    /// Bytes waiting to be sent.
    pub fn pending_bytes(&self) -> u64 {
        self.output.pending_bytes()
    }

    /// True if the last [`Session::receive`] stopped for want of room, or because the session is paused: the socket is
    /// not to be read.
    pub fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// True if commands that were taken wait for room: pages of the pool, or for others of this connection to end.
    /// The socket may be read meanwhile.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// True while payload of an accepted write is on its way: its pages are taken already, so holding the host back
    /// would only keep them longer.
    pub fn is_receiving(&self) -> bool {
        self.receiving > 0 || matches!(self.phase, Phase::Data(_))
    }

    /// From now on no command is let go on that would bring the payload under way above `bytes`: the connection's share
    /// of what its owner has for all. Where that is less than the largest transfer, such commands may wait for ever.
    pub fn set_share(&mut self, bytes: u64) {
        self.share_bytes = bytes;
    }

    /// The share with which the command would go on that is held up for want of it; 0 if none is.
    pub fn share_wanted(&self) -> u64 {
        if self.blocked || self.is_waiting() {
            self.share_wanted
        } else {
            0
        }
    }

    /// Commands accepted and not yet completely answered, queued responses included; event requests aside, which
    /// may stay for ever.
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len() + self.output.ends()
    }

    /// Payload bytes of the commands under way and of the reads not yet sent.
    pub fn in_flight_bytes(&self) -> u64 {
        self.bytes_in_flight
    }

    /// The largest transfer accepted, in bytes, as announced to the host.
    pub fn request_bytes_max(&self) -> u32 {
        self.shape.request_bytes_max
    }

    /// The volume of the namespace, once a queue is connected.
    pub fn volume(&self) -> Option<VolumeId> {
        let view = &self.queue.as_ref()?.view;
        view.namespace.map(|namespace| namespace.volume)
    }

    /// The queue id, once a queue is connected; 0 is the admin queue.
    pub fn queue_id(&self) -> Option<u16> {
        self.queue.as_ref().map(|queue| queue.connected.qid)
    }

    /// Name of the host, once a queue is connected.
    pub fn host_nqn(&self) -> Option<&str> {
        self.queue.as_ref().map(|_| self.host_nqn.as_str())
    }

    /// The target stops: I/O commands from now on are refused with a path error, which makes hosts try another path
    /// or come back; those under way are answered.
    pub fn shut_down(&mut self) {
        self.stopping = true;
    }

    /// Why the connection is to be closed now, `None` while it is to stay open. After a Disconnect this turns up when
    /// everything under way has been answered and sent, after a termination when that has been sent.
    pub fn closed(&self) -> Option<CloseReason> {
        let Phase::Closing(reason) = self.phase else {
            return None;
        };
        let sent = self.output.pending_bytes() == 0;
        let late = self.now >= self.closing_since + CLOSE_TIME;
        let now = match reason {
            CloseReason::Disconnected => sent && self.in_flight() == 0 || late,
            CloseReason::Fatal(_) | CloseReason::QueueOverrun => sent || late,
            _ => true,
        };
        now.then_some(reason)
    }

    /// True if the connection is to be closed now.
    pub fn wants_close(&self) -> bool {
        self.closed().is_some()
    }

    /// When [`Session::tick`] is due; at once for a session that knows no time yet.
    pub fn deadline(&self) -> Option<Instant> {
        let Some(started) = self.started else {
            return Some(Instant::ZERO);
        };
        let life = match (&self.phase, self.life()) {
            (Phase::Closing(_), _) => Some(self.closing_since + CLOSE_TIME),
            (_, Some(life)) => Some(self.alive + life),
            (_, None) if self.queue.is_none() => Some(started + CONNECT_TIME),
            (_, None) => None,
        };
        earliest(life, self.usage_since.map(|since| since + USAGE_TIME))
    }

    /// Looks at the time, and at what changed in the target: timeouts, events that the host is waiting for, a
    /// controller that is gone. Spurious calls do nothing.
    pub fn tick(&mut self, now: Instant, target: &dyn Access) {
        self.moment(now, target);
        if matches!(self.phase, Phase::Closing(_)) {
            return;
        }
        let started = self.started.expect("it was set a moment ago");
        match self.life() {
            Some(life) if now >= self.alive + life => self.close(CloseReason::KeepAlive),
            None if self.queue.is_none() && now >= started + CONNECT_TIME => self.close(CloseReason::Idle),
            _ => {}
        }
        if self.usage_since.is_some_and(|since| now >= since + USAGE_TIME) {
            self.report_usage(target);
        }
    }

    /// The socket is closed: an admin queue takes its controller along, an I/O queue may be connected again. Requests that
    /// the volume has and has not answered are the world's from now on, which [`Late::settle`]s them; `None` if there are
    /// none, or nobody waits for them.
    pub fn detach(&mut self, target: &dyn Access) -> Option<Late> {
        self.report_usage(target);
        if !matches!(self.phase, Phase::Closing(_)) {
            self.close(CloseReason::ControllerGone);
        }
        let Queue { connected, .. } = self.queue.take()?;
        let works = self.slots.iter().filter_map(|slot| slot.work.as_ref());
        let asked = works.filter(|work| work.stage == Stage::Asked).count();
        let late = Late {
            attachment: connected.attachment,
            requests: asked - self.requests.len(),
        };
        let is_awaited = late.attachment > 0 && late.requests > 0;
        target.with(&mut |target| match connected.qid {
            0 => target.destroy(connected.handle),
            qid => {
                target.leave(connected.handle, connected.resets, qid);
                if !is_awaited {
                    target.release(late.attachment);
                }
            }
        });
        is_awaited.then_some(late)
    }

    /// How long an admin queue lives without a sign from its host.
    fn life(&self) -> Option<Duration> {
        let queue = self.queue.as_ref().filter(|queue| queue.connected.qid == 0)?;
        let milliseconds = match queue.view.kato_ms {
            0 if queue.connected.discovery => DISCOVERY_TIME_MS,
            milliseconds => milliseconds,
        };
        (milliseconds > 0).then(|| Duration::from_millis(u64::from(milliseconds)))
    }

    /// Takes note of the time and of what changed in the target.
    fn moment(&mut self, now: Instant, target: &dyn Access) {
        self.now = now;
        self.started.get_or_insert(now);
        let generation = target.generation();
        if self.generation == Some(generation) {
            return;
        }
        self.generation = Some(generation);
        if matches!(self.phase, Phase::Closing(_)) {
            // Nothing is told any more, but others may wait for what is under way.
            self.look_at_fences(target);
        } else {
            self.renew(target);
        }
    }

    /// Brings what the session knows of its controller up to date, and reports events.
    pub(super) fn renew(&mut self, target: &dyn Access) {
        // First: a fence that is set after this look is not passed, and one that was set before is in the view's rights.
        self.look_at_fences(target);
        let Some(queue) = &mut self.queue else {
            return;
        };
        let connected = queue.connected;
        let mut view = None;
        let mut events = Vec::new();
        let requests = self.event_requests.len();
        target.with(&mut |target| {
            view = target.view(connected.handle);
            while events.len() < requests
                && let Some(event) = target.take_event(connected.handle)
            {
                events.push(event);
            }
        });
        let Some(view) = view else {
            return self.close(CloseReason::ControllerGone);
        };
        if view.resets != connected.resets {
            if connected.qid > 0 {
                return self.close(CloseReason::ControllerReset);
            }
            queue.connected.resets = view.resets;
            self.event_requests.clear();
        }
        queue.view = view;
        for event in events {
            let cid = self.event_requests.remove(0);
            self.answer(cid, Status::SUCCESS, u64::from(event));
        }
    }

    /// Tells the target what was read and written.
    fn report_usage(&mut self, target: &dyn Access) {
        self.usage_since = None;
        let usage = core::mem::take(&mut self.usage);
        if let Some(queue) = &self.queue
            && usage != Usage::default()
        {
            target.with(&mut |target| target.record(queue.connected.handle, &usage));
        }
    }

    /// Puts a command that failed into the controller's error log: its id, its namespace, the first block concerned. Hosts
    /// that read the log after the answer find it there.
    pub(super) fn log_error(&self, (cid, nsid, lba): (u16, u32, u64), status: Status, target: &dyn Access) {
        let Some(queue) = &self.queue else {
            return;
        };
        let connected = queue.connected;
        target.with(&mut |target| {
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
    pub(super) fn connected(&self) -> &Connected {
        let queue = self.queue.as_ref();
        &queue.expect("commands come after Connect").connected
    }

    /// What was agreed on for this direction; nothing is sent before that but `ICResp`.
    pub(super) fn framing(&self) -> Framing {
        self.framing.expect("commands come after the handshake")
    }

    /// A completion of this queue.
    pub(super) fn cqe(&self, cid: u16, status: Status, result: u64) -> Cqe {
        let head = self.queue.as_ref().filter(|queue| queue.connected.sq_flow);
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
        self.queue.as_ref().is_none_or(|queue| queue.connected.sq_flow)
    }

    /// A response without data.
    pub(super) fn answer(&mut self, cid: u16, status: Status, result: u64) {
        let reply = Reply::response(self.framing(), &self.cqe(cid, status, result));
        self.output.push(reply);
    }

    /// Ends the conversation without another word.
    pub(super) fn close(&mut self, reason: CloseReason) {
        self.phase = Phase::Closing(reason);
        self.closing_since = self.now;
        if reason != CloseReason::Disconnected {
            self.bytes_in_flight -= self.output.clear();
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
        self.bytes_in_flight -= self.output.put_last(&bytes[..count]);
        self.phase = Phase::Closing(reason);
        self.closing_since = self.now;
        self.drop_unasked();
    }

    /// Gives up what the volume was not asked for yet: requests in the queue, writes half received, commands that
    /// wait.
    fn drop_unasked(&mut self) {
        while let Some(request) = self.requests.pop_front() {
            self.vacate(request.tag);
        }
        self.waiting.clear();
        self.granted.clear();
        self.acquires.clear();
        (self.receiving, self.asked_bytes) = (0, 0);
        for index in 0..self.slots.len() as u32 {
            let slot = &self.slots[index as usize];
            let held = slot.work.as_ref().is_some_and(|work| work.stage != Stage::Asked);
            if held {
                self.vacate(u64::from(slot.generation) << 32 | u64::from(index));
            }
        }
    }

    /// True if the connection ended in disorder: nothing more is answered.
    pub(super) fn is_cut(&self) -> bool {
        matches!(self.phase, Phase::Closing(reason) if reason != CloseReason::Disconnected)
    }

    /// # Panics
    /// If the tag is not one of a command under way.
    pub(super) fn work_mut(&mut self, tag: u64) -> &mut Work {
        let slot = &mut self.slots[tag as u32 as usize];
        assert_eq!(
            u64::from(slot.generation),
            tag >> 32,
            "a request is answered once"
        );
        slot.work
            .as_mut()
            .expect("a reply belongs to a command under way")
    }

    /// Ends a command: its slot is free, its payload counts no more.
    ///
    /// # Panics
    /// If the tag is not one of a command under way.
    pub(super) fn vacate(&mut self, tag: u64) -> Plan {
        let slot = &mut self.slots[tag as u32 as usize];
        assert_eq!(
            u64::from(slot.generation),
            tag >> 32,
            "a request is answered once"
        );
        let work = slot.work.as_ref().expect("a command under way is ended");
        let plan = work.plan;
        self.bytes_in_flight -= u64::from(work.counted_bytes);
        slot.work = None;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(tag as u32);
        plan
    }

    /// Every page that a range touches, or none.
    pub(super) fn take_pages(&self, offset: u64, length: u32, reserve: usize) -> Option<Pages> {
        let skip = (offset % PAGE_BYTES as u64) as usize;
        let count = (skip + length as usize).div_ceil(PAGE_BYTES);
        if self.pool.available() < count + reserve {
            return None;
        }
        let mut pages = Pages::with_capacity(count);
        pages.extend((0..count).map(|_| self.pool.alloc().expect("enough pages are available")));
        Some(pages)
    }
}

const _: () = assert!(
    COMMAND_PDU_BYTES + DIGEST_BYTES <= IC_BYTES,
    "a header fits the scratch"
);

//! The control path of a session: Connect, and the commands of an admin queue (Base §5, Fabrics §3). It may allocate,
//! within bounds, and it goes to the target for every command.

use core::net::IpAddr;

use super::command::CONTROL_BYTES_MAX;
use super::fabrics::{Connected, Refused};
use super::limits::{IN_CAPSULE_BYTES_MIN, Shape};
use super::output::Reply;
use super::proto::{Sqe, Status, admin, fabrics, sgl};
use super::session::{CloseReason, Flow, Queue, Session};
use super::target::{EVENT_REQUESTS_MAX, Handle, Target, View};
use super::work::{Kind, Plan, check_pointer};

/// Which way a command's data goes: the low two bits of an opcode, or of a fabrics command's type (Base §3.3.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    None,
    ToTarget,
    ToHost,
}

/// How a command of the control path ends.
struct Outcome {
    status: Status,
    result: u64,
    data: Vec<u8>,
}

impl Outcome {
    fn of(result: Result<u64, Status>) -> Self {
        Self::with_data(result.map(|result| (result, Vec::new())))
    }

    fn with_data(result: Result<(u64, Vec<u8>), Status>) -> Self {
        match result {
            Ok((result, data)) => Self {
                status: Status::SUCCESS,
                result,
                data,
            },
            Err(status) => Self {
                status,
                result: 0,
                data: Vec::new(),
            },
        }
    }
}

impl Session {
    /// A command of an admin queue, or of a connection that is no queue yet.
    pub(super) fn control_command(&mut self, sqe: &Sqe, capsule_bytes: u32) -> Flow {
        if self.output.owned_bytes() > CONTROL_BYTES_MAX {
            return Flow::Blocked;
        }
        self.link.alive = self.link.now;
        let direction = match self.judge_control(sqe, capsule_bytes) {
            Ok(direction) => direction,
            Err(status) => {
                self.log_error((sqe.cid(), sqe.nsid(), 0), status);
                return self.refuse(sqe.cid(), status, capsule_bytes);
            }
        };
        if direction == Direction::ToTarget {
            let mut plan = Plan::new(sqe, Kind::Control);
            plan.data_bytes = sqe.sgl().length;
            return self.accept(plan, capsule_bytes, sqe);
        }
        self.advance();
        self.carry_out(sqe, &[]);
        Flow::Again
    }

    /// Checks a command's form: what is known here, when, and where its data is.
    fn judge_control(&self, sqe: &Sqe, capsule_bytes: u32) -> Result<Direction, Status> {
        let is_fabrics = sqe.opcode() == fabrics::OPCODE;
        let bits = if is_fabrics {
            sqe.fabrics_type()
        } else {
            sqe.opcode()
        } & 3;
        match &self.link.queue {
            None if is_fabrics && sqe.fabrics_type() == fabrics::CONNECT => {}
            None => return Err(Status::SEQUENCE.dnr()),
            Some(_) if is_fabrics => judge_fabrics(sqe.fabrics_type())?,
            Some(queue) => judge_admin(sqe.opcode(), queue)?,
        }
        // Byte 1 of a fabrics command is reserved; hosts put the usual bits there.
        let form = sqe.flags() & (sgl::FUSE_MASK | sgl::PSDT_MASK);
        if form & sgl::FUSE_MASK != 0 || !is_fabrics && form != sgl::PSDT {
            return Err(Status::INVALID_FIELD.dnr());
        }
        let length = sqe.sgl().length;
        let direction = match bits {
            1 if length > 0 => Direction::ToTarget,
            2 if length > 0 => Direction::ToHost,
            _ => Direction::None,
        };
        let sent = if direction == Direction::ToTarget {
            length
        } else {
            0
        };
        if sent > IN_CAPSULE_BYTES_MIN {
            return Err(Status::SGL_LENGTH.dnr());
        }
        let reads = direction == Direction::ToHost;
        check_pointer(sqe, sent, reads, capsule_bytes, u64::from(length))?;
        if reads && length > self.link.shape.request_bytes_max {
            return Err(Status::INVALID_FIELD.dnr());
        }
        Ok(direction)
    }

    /// The data of a command has come.
    pub(super) fn control_arrived(&mut self, tag: u64) {
        if self.link.queue.is_some_and(|queue| queue.connected.qid > 0) {
            return self.reservation_arrived(tag);
        }
        let extra = self.ledger.work(tag).extra.take();
        let extra = extra.expect("a control command has its data");
        self.vacate(tag);
        self.carry_out(&extra.sqe, &extra.data);
    }

    /// Carries a well-formed command out and answers it.
    fn carry_out(&mut self, sqe: &Sqe, data: &[u8]) {
        let cid = sqe.cid();
        let Some(queue) = self.link.queue else {
            return self.connect(sqe, data);
        };
        match sqe.opcode() {
            admin::ASYNC_EVENT => return self.request_event(cid),
            admin::KEEP_ALIVE => return self.answer(cid, Status::SUCCESS, 0),
            admin::ABORT => return self.abort(sqe),
            _ => {}
        }
        let (shape, handle, via) = (self.link.shape, queue.connected.handle, self.link.via);
        let mut outcome = Outcome::of(Err(Status::INTERNAL));
        let mut view = None;
        self.link.target.with(&mut |target| {
            outcome = run(target, handle, (sqe, data), &shape, via);
            view = target.view(handle);
        });
        if let Some(view) = view {
            self.take_view(view);
        }
        if !outcome.status.is_success() {
            self.log_error((cid, sqe.nsid(), 0), outcome.status);
            return self.answer(cid, outcome.status, outcome.result);
        }
        let length = sqe.sgl().length;
        if outcome.data.is_empty() && !returns_data(sqe) || length == 0 {
            return self.answer(cid, outcome.status, outcome.result);
        }
        let cqe = self.cqe(cid, outcome.status, outcome.result);
        let reply = Reply::bytes(self.framing(), outcome.data, length, &cqe, self.sq_flow());
        self.output.push(reply);
    }

    /// The target's verdict on the controller after a command; a reset takes the event requests along.
    fn take_view(&mut self, view: View) {
        let Some(queue) = &mut self.link.queue else {
            return;
        };
        queue.view = view;
        if queue.connected.resets != view.resets {
            queue.connected.resets = view.resets;
            self.link.event_requests.clear();
        }
    }

    /// Connect: the connection becomes a queue.
    fn connect(&mut self, sqe: &Sqe, data: &[u8]) {
        let shape = self.link.shape;
        let mut result: Result<(Connected, View), Refused> = Err((Status::CONNECT_BUSY, 0));
        if !self.link.stopping {
            self.link.target.with(&mut |target| {
                result = target.connect(sqe, data, &shape).map(|connected| {
                    let controller = target.held(connected.handle);
                    self.link.host_nqn = controller.map_or_else(String::new, |held| held.host_nqn.clone());
                    let view = target.view(connected.handle).expect("it was connected just now");
                    (connected, view)
                });
            });
        }
        match result {
            Ok((connected, view)) => {
                self.link.queue = Some(Queue {
                    connected,
                    view,
                    head: 0,
                });
                // Connect itself was the first entry.
                self.advance();
                let cntlid = u64::from(connected.handle.cntlid);
                self.answer(sqe.cid(), Status::SUCCESS, cntlid);
            }
            Err((status, result)) => self.answer(sqe.cid(), status, u64::from(result)),
        }
    }

    /// Asynchronous Event Request (Base §5.2): answered when there is something to tell.
    fn request_event(&mut self, cid: u16) {
        if self.link.event_requests.len() == EVENT_REQUESTS_MAX {
            return self.answer(cid, Status::ASYNC_LIMIT.dnr(), 0);
        }
        self.link.event_requests.push(cid);
        self.renew();
    }

    /// Brings what the session knows of its controller up to date, and reports events.
    pub(super) fn renew(&mut self) {
        // First: a fence that is set after this look is not passed, and one that was set before is in the view's rights.
        self.look_at_fences();
        let Some(queue) = &mut self.link.queue else {
            return;
        };
        let connected = queue.connected;
        let mut view = None;
        let mut events = Vec::new();
        let requests = self.link.event_requests.len();
        self.link.target.with(&mut |target| {
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
            self.link.event_requests.clear();
        }
        queue.view = view;
        for event in events {
            let cid = self.link.event_requests.remove(0);
            self.answer(cid, Status::SUCCESS, u64::from(event));
        }
    }

    /// Abort (Base §5.1): event requests can be taken back, others are under way and will end by themselves.
    fn abort(&mut self, sqe: &Sqe) {
        let (sqid, cid) = (sqe.dword(10) as u16, (sqe.dword(10) >> 16) as u16);
        let found = self
            .link
            .event_requests
            .iter()
            .position(|&request| request == cid);
        let aborted = found.filter(|_| sqid == 0);
        if let Some(index) = aborted {
            self.link.event_requests.remove(index);
            self.answer(cid, Status::ABORT_REQUESTED, 0);
        }
        self.answer(sqe.cid(), Status::SUCCESS, u64::from(aborted.is_none()));
    }
}

/// Fabrics commands of an admin queue that is connected.
fn judge_fabrics(kind: u8) -> Result<(), Status> {
    match kind {
        fabrics::PROPERTY_GET | fabrics::PROPERTY_SET => Ok(()),
        fabrics::CONNECT => Err(Status::SEQUENCE.dnr()),
        // An admin queue ends with its connection only (Fabrics §3.4).
        fabrics::DISCONNECT => Err(Status::INVALID_QUEUE_TYPE.dnr()),
        // Connect did not ask for authentication.
        _ => Err(Status::INVALID_OPCODE.dnr()),
    }
}

/// Admin commands, and when they are allowed.
fn judge_admin(opcode: u8, queue: &Queue) -> Result<(), Status> {
    match opcode {
        admin::ABORT if queue.connected.discovery => return Err(Status::INVALID_OPCODE.dnr()),
        admin::GET_LOG_PAGE
        | admin::IDENTIFY
        | admin::ABORT
        | admin::SET_FEATURES
        | admin::GET_FEATURES
        | admin::ASYNC_EVENT
        | admin::KEEP_ALIVE => {}
        _ => return Err(Status::INVALID_OPCODE.dnr()),
    }
    if queue.view.ready {
        Ok(())
    } else {
        Err(Status::SEQUENCE.dnr())
    }
}

/// True for commands whose data follows even if there is none: it is zeros then.
fn returns_data(sqe: &Sqe) -> bool {
    matches!(sqe.opcode(), admin::GET_LOG_PAGE | admin::IDENTIFY)
}

/// Work of the target for a command.
fn run(
    target: &mut Target,
    handle: Handle,
    (sqe, data): (&Sqe, &[u8]),
    shape: &Shape,
    via: Option<IpAddr>,
) -> Outcome {
    match (sqe.opcode(), sqe.fabrics_type()) {
        (fabrics::OPCODE, fabrics::PROPERTY_GET) => Outcome::of(target.property(handle, sqe, shape)),
        (fabrics::OPCODE, _) => Outcome::of(target.set_property(handle, sqe).map(|()| 0)),
        (admin::IDENTIFY, _) => {
            let data = target.identify(handle, sqe, shape);
            Outcome::with_data(data.map(|data| (0, data)))
        }
        (admin::GET_LOG_PAGE, _) => {
            let data = target.log_page(handle, sqe, via);
            Outcome::with_data(data.map(|data| (0, data)))
        }
        (admin::GET_FEATURES, _) => {
            let feature = target.get_feature(handle, sqe);
            Outcome::with_data(feature.map(|(value, data)| (u64::from(value), data)))
        }
        _ => Outcome::of(target.set_feature(handle, sqe, data).map(u64::from)),
    }
}

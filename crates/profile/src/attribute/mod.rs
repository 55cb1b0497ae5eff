//! Attribution: events in order of time come in, operations with their layers come out. Pure: no clock, no file.
//!
//! A bio belongs to the operation in whose thread it was queued: a system call between its entry and its return, an
//! io_uring request from its submission on. From then on it is followed by its sectors, as completions run in anybody's
//! context. What a journal's thread queues belongs to those who wait for a sync of that device; the rest is nobody's, and
//! is told apart as background.

mod device;
mod operation;

pub use operation::{Interface, LAYERS, Layer, Operation};

use crate::collect::calls;
use crate::event::{Action, Comm, Dev, Event, Rw, Span, What};
use device::{Bio, Device};
use operation::{OpId, Passed, divide};
use std::collections::{BTreeMap, VecDeque};

/// Operations open at once. More are events that were lost.
const OPEN_MAX: usize = 1 << 18;

/// A bio's way through the block layer. Times in ns; 0 where the step does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BioPath {
    /// The device.
    pub dev: Dev,
    /// What it did.
    pub action: Action,
    /// Bytes.
    pub bytes: u64,
    /// When it was done, ns.
    pub done_ns: u64,
    /// From its submission to its request (Q2G).
    pub q2g_ns: u64,
    /// From its request to the scheduler (G2I).
    pub g2i_ns: u64,
    /// In the scheduler (I2D).
    pub i2d_ns: u64,
    /// From its submission to the driver (Q2D).
    pub q2d_ns: u64,
    /// Driver and device (D2C).
    pub d2c_ns: u64,
    /// It joined a request that was there already.
    pub merged: bool,
    /// Bios in flight on the device when it was done, itself among them.
    pub depth: u32,
}

/// What comes out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// An operation has ended.
    Operation(Operation),
    /// A bio has ended, whosoever's.
    Bio(BioPath),
}

/// What could not be told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unclear {
    /// Bios whose completion was never seen, or that were not seen to begin.
    pub bios: u64,
    /// Operations whose beginning or end was not seen.
    pub operations: u64,
}

struct Open {
    interface: Interface,
    action: Action,
    thread: u32,
    bytes: u64,
    begin_ns: u64,
    application_ns: u64,
    direct_ns: Option<u64>,
    passed: Vec<Passed>,
    merged: u32,
    splits: u32,
    punted: bool,
    /// Bios under way.
    waits_for: u32,
    /// It ends with its last bio, as nothing else tells.
    ends_with_bios: bool,
    /// The device that it makes durable, once that is known.
    syncs: Option<Dev>,
}

/// What a thread is doing.
#[derive(Default)]
struct Thread {
    /// The system call that it is in.
    call: Option<OpId>,
    /// It submits for others: libaio's call or io_uring's.
    submits: Option<u32>,
    /// When its last call returned, ns; 0 before that.
    returned_ns: u64,
    /// The request that it submitted last, while it may still queue bios for it.
    request: Option<OpId>,
}

/// The machine.
#[derive(Default)]
pub struct Attribution {
    devices: BTreeMap<Dev, Device>,
    /// The whole device of a partition.
    wholes: BTreeMap<Dev, Dev>,
    threads: BTreeMap<u32, Thread>,
    open: BTreeMap<OpId, Open>,
    next: u64,
    /// io_uring's requests.
    requests: BTreeMap<u64, OpId>,
    /// Requests that went on in workers and have queued nothing yet, in order.
    punted: VecDeque<OpId>,
    unclear: Unclear,
}

fn action_of_call(number: u32) -> Option<Action> {
    if calls::READ.contains(&number) {
        Some(Action::Read)
    } else if calls::WRITE.contains(&number) {
        Some(Action::Write)
    } else if calls::SYNC.contains(&number) {
        Some(Action::Flush)
    } else {
        None
    }
}

/// `IORING_OP_*` (linux/io_uring.h).
fn action_of_opcode(opcode: u8) -> Option<Action> {
    match opcode {
        1 | 4 | 22 => Some(Action::Read),
        2 | 5 | 23 => Some(Action::Write),
        3 | 8 => Some(Action::Flush),
        _ => None,
    }
}

fn is_journal(comm: &Comm) -> bool {
    comm.starts_with(b"jbd2/") || comm.starts_with(b"xfs") || comm.starts_with(b"btrfs-transacti")
}

fn is_worker(comm: &Comm) -> bool {
    comm.starts_with(b"iou-wrk-")
}

impl Attribution {
    /// A machine that knows which devices are parts of which.
    pub fn new(wholes: BTreeMap<Dev, Dev>) -> Self {
        Self {
            wholes,
            ..Self::default()
        }
    }

    /// What could not be told so far.
    pub fn unclear(&self) -> Unclear {
        let abandoned: u64 = self.devices.values().map(|device| device.abandoned).sum();
        Unclear {
            bios: self.unclear.bios + abandoned,
            ..self.unclear
        }
    }

    /// Takes an event. `ours` tells whether its thread is one of the program's.
    pub fn handle(&mut self, event: &Event, ours: bool, out: &mut Vec<Finding>) {
        let (now_ns, thread) = (event.time_ns, event.thread);
        match event.what {
            What::Enter { number } => self.enter(now_ns, thread, number),
            What::Exit { number, result } => self.exit(now_ns, thread, number, result, out),
            What::DirectBegin { bytes, asynchronous } => self.direct(now_ns, thread, bytes, asynchronous),
            What::SyncBegin { dev } => {
                let dev = self.wholes.get(&dev).copied().unwrap_or(dev);
                let id = self
                    .threads
                    .get(&thread)
                    .and_then(|thread| thread.call.or(thread.request));
                if let Some(open) = id.and_then(|id| self.open.get_mut(&id)) {
                    open.syncs = Some(dev);
                }
            }
            What::Submit { request, opcode } if ours => self.submit(now_ns, thread, request, opcode),
            What::Submit { .. } => {}
            What::Punt { request } => self.punt(request),
            What::Complete { request, result } => {
                if let Some(id) = self.requests.remove(&request) {
                    self.forget_request(thread, id);
                    self.end(now_ns, id, Some(result), out);
                }
            }
            What::BioQueue { span, rw, comm } => {
                let of = self.owners(now_ns, thread, ours, &comm, span, rw);
                for id in &of {
                    if let Some(open) = self.open.get_mut(id) {
                        open.waits_for += 1;
                    }
                }
                self.device(span.dev).queue(now_ns, span, rw, of);
            }
            What::BioSplit { dev, sector, at } => self.split(dev, sector, at),
            What::BioMerge(span) => self.got_request(now_ns, span, true),
            What::GetRequest(span) => self.got_request(now_ns, span, false),
            What::Insert(span, rw) => self.device(span.dev).insert(now_ns, span, rw),
            What::Issue(span, rw) => self.device(span.dev).issue(now_ns, span, rw),
            What::Requeue(span, rw) => self.device(span.dev).requeue(span, rw),
            What::Done(span, rw) => self.done(now_ns, span, rw, out),
        }
    }

    fn device(&mut self, dev: Dev) -> &mut Device {
        self.devices.entry(dev).or_default()
    }

    fn begin(&mut self, now_ns: u64, thread: u32, interface: Interface, action: Action) -> OpId {
        if self.open.len() >= OPEN_MAX {
            self.unclear.operations += self.open.len() as u64;
            self.open.clear();
            self.requests.clear();
            self.punted.clear();
        }
        let id = OpId(self.next);
        self.next += 1;
        self.open.insert(
            id,
            Open {
                interface,
                action,
                thread,
                bytes: 0,
                begin_ns: now_ns,
                application_ns: 0,
                direct_ns: None,
                passed: Vec::new(),
                merged: 0,
                splits: 0,
                punted: false,
                waits_for: 0,
                ends_with_bios: false,
                syncs: None,
            },
        );
        id
    }

    fn enter(&mut self, now_ns: u64, thread: u32, number: u32) {
        let state = self.threads.entry(thread).or_default();
        if let Some(lost) = state.call.take() {
            self.unclear.operations += 1;
            self.open.remove(&lost);
        }
        let submits = calls::SUBMIT.contains(&number).then_some(number);
        let call = action_of_call(number).map(|action| self.begin(now_ns, thread, Interface::Call, action));
        let state = self.threads.entry(thread).or_default();
        (state.call, state.submits, state.request) = (call, submits, None);
    }

    fn exit(&mut self, now_ns: u64, thread: u32, number: u32, result: i64, out: &mut Vec<Finding>) {
        let Some(state) = self.threads.get_mut(&thread) else {
            return;
        };
        let (call, submits) = (state.call.take(), state.submits.take());
        let returned_ns = core::mem::replace(&mut state.returned_ns, now_ns);
        if let Some(request) = state.request.take()
            && submits.is_some()
        {
            self.close_if_idle(now_ns, request, out);
        }
        match call {
            Some(id) => {
                if let Some(open) = self.open.get_mut(&id)
                    && returned_ns != 0
                {
                    open.application_ns = open.begin_ns - returned_ns;
                }
                self.end(now_ns, id, Some(result), out);
            }
            // It was entered before recording began.
            None if submits.is_none() && action_of_call(number).is_some() => self.unclear.operations += 1,
            None => {}
        }
    }

    fn direct(&mut self, now_ns: u64, thread: u32, bytes: u64, asynchronous: bool) {
        let Some(state) = self.threads.get(&thread) else {
            return;
        };
        let libaio = state.submits == Some(libc::SYS_io_submit as u32);
        if libaio && asynchronous {
            let id = self.begin(now_ns, thread, Interface::Aio, Action::Other);
            if let Some(open) = self.open.get_mut(&id) {
                open.ends_with_bios = true;
                open.bytes = bytes;
            }
            self.threads.entry(thread).or_default().request = Some(id);
            return;
        }
        let id = state.call.or(state.request);
        if let Some(open) = id.and_then(|id| self.open.get_mut(&id)) {
            open.direct_ns.get_or_insert(now_ns);
        }
    }

    fn submit(&mut self, now_ns: u64, thread: u32, request: u64, opcode: u8) {
        let id = action_of_opcode(opcode).map(|action| self.begin(now_ns, thread, Interface::Uring, action));
        self.threads.entry(thread).or_default().request = id;
        let old = match id {
            Some(id) => self.requests.insert(request, id),
            None => self.requests.remove(&request),
        };
        if let Some(lost) = old {
            self.unclear.operations += 1;
            self.open.remove(&lost);
        }
    }

    fn punt(&mut self, request: u64) {
        let Some(&id) = self.requests.get(&request) else {
            return;
        };
        if let Some(open) = self.open.get_mut(&id) {
            open.punted = true;
            self.punted.push_back(id);
        }
    }

    fn forget_request(&mut self, thread: u32, id: OpId) {
        if let Some(state) = self.threads.get_mut(&thread)
            && state.request == Some(id)
        {
            state.request = None;
        }
        self.punted.retain(|punted| *punted != id);
    }

    /// Whose bio this is.
    fn owners(&mut self, now_ns: u64, thread: u32, ours: bool, comm: &Comm, span: Span, rw: Rw) -> Vec<OpId> {
        let state = self.threads.get(&thread);
        if let Some(id) = state.and_then(|state| state.call.or(state.request)) {
            if let Some(open) = self.open.get_mut(&id)
                && open.interface == Interface::Aio
            {
                open.action = rw.action;
            }
            return vec![id];
        }
        if is_worker(comm)
            && ours
            && let Some(id) = self.punted.pop_front()
        {
            // The worker is busy with it until it says that it is complete.
            self.threads.entry(thread).or_default().request = Some(id);
            return vec![id];
        }
        if is_journal(comm) {
            let waiting = self
                .open
                .iter()
                .filter(|(_, open)| open.action == Action::Flush && open.syncs == Some(span.dev));
            let waiting: Vec<OpId> = waiting.map(|(id, _)| *id).collect();
            if !waiting.is_empty() {
                return waiting;
            }
        }
        let submits = state.is_some_and(|state| state.submits == Some(libc::SYS_io_submit as u32));
        let interface = match (ours, submits) {
            (true, true) => Interface::Aio,
            (true, false) => Interface::Other,
            (false, _) => Interface::Background,
        };
        let id = self.begin(now_ns, thread, interface, rw.action);
        if let Some(open) = self.open.get_mut(&id) {
            open.ends_with_bios = true;
            open.bytes = u64::from(span.sectors) * 512;
        }
        vec![id]
    }

    fn split(&mut self, dev: Dev, sector: u64, at: u64) {
        let device = self.device(dev);
        if !device.split(sector, at) {
            self.unclear.bios += 1;
            return;
        }
        let of = device.owners_at(at);
        for id in of {
            if let Some(open) = self.open.get_mut(&id) {
                open.splits += 1;
                open.waits_for += 1;
            }
        }
    }

    fn got_request(&mut self, now_ns: u64, span: Span, merged: bool) {
        self.device(span.dev).get_request(now_ns, span, merged);
    }

    fn done(&mut self, now_ns: u64, span: Span, rw: Rw, out: &mut Vec<Finding>) {
        let device = self.device(span.dev);
        let depth = device.in_flight() as u32;
        let done = device.done(now_ns, span, rw);
        for bio in done {
            out.push(Finding::Bio(path_of(&bio, depth)));
            for id in &bio.of {
                let Some(open) = self.open.get_mut(id) else {
                    continue;
                };
                open.passed.push(Passed {
                    queued_ns: bio.queued_ns,
                    got_request_ns: bio.got_request_ns,
                    inserted_ns: bio.inserted_ns,
                    issued_ns: bio.issued_ns,
                    done_ns: bio.done_ns,
                });
                open.merged += u32::from(bio.merged);
                open.waits_for -= 1;
                self.close_if_idle(now_ns, *id, out);
            }
        }
    }

    /// Ends what ends with its last bio, unless more may come.
    fn close_if_idle(&mut self, now_ns: u64, id: OpId, out: &mut Vec<Finding>) {
        let Some(open) = self.open.get(&id) else { return };
        let is_submitting = self
            .threads
            .get(&open.thread)
            .is_some_and(|thread| thread.request == Some(id));
        if open.ends_with_bios && open.waits_for == 0 && !is_submitting {
            let end_ns = open.passed.iter().map(|bio| bio.done_ns).max().unwrap_or(now_ns);
            self.end(end_ns, id, None, out);
        }
    }

    fn end(&mut self, end_ns: u64, id: OpId, result: Option<i64>, out: &mut Vec<Finding>) {
        let Some(open) = self.open.remove(&id) else { return };
        let (layers_ns, probes) = divide(open.begin_ns, open.direct_ns, end_ns, &open.passed);
        out.push(Finding::Operation(Operation {
            interface: open.interface,
            action: open.action,
            thread: open.thread,
            bytes: match (open.action, result) {
                (Action::Flush, _) => 0,
                (_, Some(result)) => result.max(0) as u64,
                (_, None) => open.bytes,
            },
            begin_ns: open.begin_ns,
            application_ns: open.application_ns,
            total_ns: end_ns - open.begin_ns,
            layers_ns,
            probes,
            bios: open.passed.len() as u32 + open.waits_for,
            merged: open.merged,
            splits: open.splits,
            punted: open.punted,
        }));
    }
}

fn path_of(bio: &Bio, depth: u32) -> BioPath {
    let between = |from_ns: u64, to_ns: u64| {
        if from_ns == 0 || to_ns == 0 {
            0
        } else {
            to_ns.saturating_sub(from_ns)
        }
    };
    BioPath {
        dev: bio.span.dev,
        action: bio.rw.action,
        bytes: u64::from(bio.span.sectors) * 512,
        done_ns: bio.done_ns,
        q2g_ns: between(bio.queued_ns, bio.got_request_ns),
        g2i_ns: between(bio.got_request_ns, bio.inserted_ns),
        i2d_ns: between(bio.inserted_ns, bio.issued_ns),
        q2d_ns: between(bio.queued_ns, bio.issued_ns),
        d2c_ns: between(bio.issued_ns, bio.done_ns),
        merged: bio.merged,
        depth,
    }
}

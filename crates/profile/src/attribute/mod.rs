//! Attribution: events in order of time come in, operations with their layers come out. Pure: no clock, no file.
//!
//! A bio belongs to the operation in whose thread it was queued: a system call between its entry and its return, an
//! io_uring request from its submission on. From then on it is followed by its sectors, as completions run in anybody's
//! context. What a worker of io_uring queues is kept as a stint of that worker until a request completes that fits it.
//! A journal's requests belong to the threads who wait for a sync of that device. What a stacked device's worker queues
//! below it is told apart, and so is the rest, which is nobody's: background.

mod device;
mod operation;
#[cfg(test)]
mod tests;

pub use operation::{Interface, LAYERS, Layer, Operation};

use crate::collect::calls;
use crate::event::{Action, Comm, Dev, Event, Rw, Span, What};
use device::{Bio, Device};
use operation::{OpId, Passed, divide};
use std::collections::{BTreeMap, BTreeSet};

/// Operations open at once. More are events that were lost.
const OPEN_MAX: usize = 1 << 18;

/// A bio's way through the block layer. Times in ns; 0 where the step does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BioPath {
    /// The device.
    pub dev: Dev,
    /// Its work.
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

/// The result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// An operation has ended.
    Operation(Operation),
    /// A bio has ended, whosoever's.
    Bio(BioPath),
}

/// Doubts: counts of things that the attribution could not decide.
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
    bios: u32,
    merged: u32,
    splits: u32,
    punted: bool,
    /// A worker of io_uring is known to be at it.
    taken: bool,
    /// Bios under way.
    waits_for: u32,
    /// It waited for bios of operations before it: what they had read ahead.
    has_waited: bool,
    /// It ends with its last bio, as nothing else tells.
    ends_with_bios: bool,
    /// The device that it makes durable, once that is known.
    syncs: Option<Dev>,
}

/// The work of a thread.
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
    /// A worker's stint.
    stint: Option<Stint>,
}

/// The work of an io_uring worker for one request. Nothing tells which that is until it completes, unless only one is with
/// the workers.
#[derive(Clone, Copy)]
struct Stint {
    /// The request, or an operation that stands for it.
    id: OpId,
    /// The file system announces its direct I/O, so that the next announcement is another request's.
    is_announced: bool,
    /// Where its last bio ended: on a device without a file system, one that does not go on there is another request's.
    end: Option<(Dev, u64)>,
}

/// The machine.
#[derive(Default)]
pub struct Attribution {
    devices: BTreeMap<Dev, Device>,
    /// The whole device of a partition.
    wholes: BTreeMap<Dev, Dev>,
    /// Users that stand on a device.
    uppers: BTreeMap<Dev, Vec<Dev>>,
    threads: BTreeMap<u32, Thread>,
    open: BTreeMap<OpId, Open>,
    next: u64,
    /// io_uring's requests.
    requests: BTreeMap<u64, OpId>,
    /// Requests that went on in workers.
    punted: BTreeSet<OpId>,
    /// Stints whose request is not known yet.
    stints: BTreeSet<OpId>,
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
    comm.starts_with(b"jbd2/")
}

/// Some journals (xfs) are written by any kernel worker; what tells them is that somebody waits for metadata.
fn is_journal_write(comm: &Comm, rw: Rw) -> bool {
    comm.starts_with(b"kworker/") && rw.action == Action::Write && rw.meta && rw.sync
}

fn is_worker(comm: &Comm) -> bool {
    comm.starts_with(b"iou-wrk-")
}

impl Attribution {
    /// A machine that knows which devices are parts of which, and who stands on a device.
    pub fn new(wholes: BTreeMap<Dev, Dev>, uppers: BTreeMap<Dev, Vec<Dev>>) -> Self {
        Self {
            wholes,
            uppers,
            ..Self::default()
        }
    }

    /// Doubts so far. Operations that wait for a device are among it until that answers.
    pub fn unclear(&self) -> Unclear {
        let abandoned: u64 = self.devices.values().map(|device| device.abandoned).sum();
        let waiting = self
            .open
            .values()
            .filter(|open| open.interface.is_programs() && open.waits_for > 0);
        Unclear {
            bios: self.unclear.bios + abandoned,
            operations: self.unclear.operations + waiting.count() as u64,
        }
    }

    /// Takes an event. `ours` tells whether its thread is one of the program's.
    pub fn handle(&mut self, event: &Event, ours: bool, out: &mut Vec<Finding>) {
        let (now_ns, thread) = (event.time_ns, event.thread);
        match event.what {
            What::Enter { .. }
            | What::Exit { .. }
            | What::DirectBegin { .. }
            | What::SyncBegin { .. }
            | What::Submit { .. }
                if !ours => {}
            What::Enter { number } => self.enter(now_ns, thread, number),
            What::Exit { number, result } => self.exit(now_ns, thread, number, result, out),
            What::DirectBegin {
                bytes,
                asynchronous,
                continues,
            } => self.direct(now_ns, thread, bytes, asynchronous, continues),
            What::SyncBegin { dev } => self.sync(now_ns, thread, dev),
            What::Submit { request, opcode } => self.submit(now_ns, thread, request, opcode),
            What::NewThread { thread } => drop(self.threads.remove(&thread)),
            What::Gap => self.forget(),
            What::Punt { request } => self.punt(request),
            What::Complete { request, result } => {
                if let Some(id) = self.requests.remove(&request) {
                    self.forget_request(thread, id);
                    if self.punted.remove(&id) {
                        self.adopt_stint(thread, id, result);
                    }
                    self.end(now_ns, id, Some(result), out);
                }
            }
            What::BioQueue { span, rw, comm } => {
                let of = self.owners(now_ns, thread, ours, &comm, span, rw);
                for id in &of {
                    if let Some(open) = self.open.get_mut(id) {
                        open.bios += 1;
                        open.waits_for += 1;
                    }
                }
                self.device(span.dev).queue(now_ns, thread, span, rw, of);
            }
            What::BioSplit { dev, sector, at } => self.split(dev, sector, at),
            What::BioMerge(span) => self.got_request(now_ns, span, true),
            What::GetRequest(span) => self.got_request(now_ns, span, false),
            What::Insert(span, rw) => self.device(span.dev).insert(now_ns, span, rw),
            What::Issue(span, rw) => self.device(span.dev).issue(now_ns, span, rw),
            What::Requeue(span, rw) => self.device(span.dev).requeue(span, rw),
            What::Done(span, rw) => {
                let device = self.device(span.dev);
                let depth = device.in_flight() as u32;
                let bios = device.done(now_ns, span, rw);
                self.done(now_ns, bios, depth, out);
            }
            What::BioDone(span, rw) => {
                let device = self.device(span.dev);
                let depth = device.in_flight() as u32;
                let bios = device.bio_done(now_ns, span, rw);
                self.done(now_ns, bios, depth, out);
            }
        }
    }

    /// Gives up what is under way, as its end may be among the events that are lost: what came later would be taken for it.
    fn forget(&mut self) {
        let programs = self.open.values().filter(|open| open.interface.is_programs());
        self.unclear.operations += programs.count() as u64;
        self.clear_operations();
        self.threads.clear();
        self.devices.values_mut().for_each(Device::abandon);
    }

    fn clear_operations(&mut self) {
        self.open.clear();
        self.requests.clear();
        self.punted.clear();
        self.stints.clear();
    }

    fn device(&mut self, dev: Dev) -> &mut Device {
        self.devices.entry(dev).or_default()
    }

    fn begin(&mut self, now_ns: u64, thread: u32, interface: Interface, action: Action) -> OpId {
        if self.open.len() >= OPEN_MAX {
            self.unclear.operations += self.open.len() as u64;
            self.clear_operations();
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
                bios: 0,
                merged: 0,
                splits: 0,
                punted: false,
                taken: false,
                waits_for: 0,
                has_waited: false,
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
        (state.call, state.submits, state.request, state.stint) = (call, submits, None, None);
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

    fn direct(&mut self, now_ns: u64, thread: u32, bytes: u64, asynchronous: bool, continues: bool) {
        let state = self.threads.entry(thread).or_default();
        let libaio = state.submits == Some(libc::SYS_io_submit as u32);
        if libaio && asynchronous && !(continues && state.request.is_some()) {
            let id = self.begin(now_ns, thread, Interface::Aio, Action::Other);
            if let Some(open) = self.open.get_mut(&id) {
                open.ends_with_bios = true;
                open.bytes = bytes;
            }
            self.threads.entry(thread).or_default().request = Some(id);
            return;
        }
        // A worker that has not got on yet, or says so, goes on with its request: file systems try without waiting for
        // memory first.
        let (own, stint) = (state.call.or(state.request), state.stint.map(|stint| stint.id));
        let same = stint.filter(|id| {
            let is_idle = self.open.get(id).is_some_and(|open| open.bios == 0);
            self.is_under_way(*id) && (continues || is_idle)
        });
        let id = own.or(same);
        let id = id.or_else(|| self.new_stint(now_ns, thread, true));
        if let Some(open) = id.and_then(|id| self.open.get_mut(&id)) {
            open.direct_ns.get_or_insert(now_ns);
        }
    }

    /// A file system begins to make a file durable.
    fn sync(&mut self, now_ns: u64, thread: u32, dev: Dev) {
        let dev = self.wholes.get(&dev).copied().unwrap_or(dev);
        let state = self.threads.entry(thread).or_default();
        let id = state.call.or(state.request).or(state.stint.map(|stint| stint.id));
        let id = id.or_else(|| self.new_stint(now_ns, thread, false));
        if let Some(open) = id.and_then(|id| self.open.get_mut(&id)) {
            open.syncs = Some(dev);
        }
    }

    /// A worker takes its next request, if there are any for workers.
    fn new_stint(&mut self, now_ns: u64, thread: u32, is_announced: bool) -> Option<OpId> {
        if self.punted.is_empty() {
            return None;
        }
        let id = match self.punted.first() {
            Some(&only) if self.punted.len() == 1 && self.open.contains_key(&only) => only,
            _ => {
                let id = self.begin(now_ns, thread, Interface::Uring, Action::Other);
                self.stints.insert(id);
                id
            }
        };
        if let Some(open) = self.open.get_mut(&id) {
            open.taken = true;
            // Until its worker took it, it waited on the way to the file system.
            open.direct_ns.get_or_insert(now_ns);
        }
        self.threads.entry(thread).or_default().stint = Some(Stint {
            id,
            is_announced,
            end: None,
        });
        Some(id)
    }

    /// True if a stint is for a request that has not ended.
    fn is_under_way(&self, stint: OpId) -> bool {
        self.stints.contains(&stint) || self.punted.contains(&stint)
    }

    /// The stint that a worker's bio belongs to.
    fn stint_of(&mut self, now_ns: u64, thread: u32, span: Span, rw: Rw) -> Option<OpId> {
        let stint = self.threads.get(&thread).and_then(|state| state.stint);
        let goes_on = stint.filter(|stint| {
            let fits = stint.end.is_none_or(|end| end == (span.dev, span.sector)) || span.sectors == 0;
            let is_sync = self.open.get(&stint.id).is_some_and(|open| open.syncs.is_some());
            self.is_under_way(stint.id) && (stint.is_announced || is_sync || fits)
        });
        let id = match goes_on {
            Some(stint) => stint.id,
            None => self.new_stint(now_ns, thread, false)?,
        };
        if let Some(stint) = self
            .threads
            .get_mut(&thread)
            .and_then(|state| state.stint.as_mut())
        {
            stint.end = Some((span.dev, span.end()));
        }
        if self.stints.contains(&id) {
            let open = self.open.get_mut(&id)?;
            open.action = rw.action;
            open.bytes += u64::from(span.sectors) * 512;
        }
        Some(id)
    }

    /// A request of a worker is complete: finds what was done for it. A worker that says so itself speaks of its own
    /// stint; of others it is the first one that moved as much.
    fn adopt_stint(&mut self, thread: u32, id: OpId, result: i64) {
        let action = match self.open.get(&id) {
            Some(open) if !open.taken => open.action,
            _ => return,
        };
        let own = self.threads.get_mut(&thread).and_then(|state| state.stint.take());
        let own = own.map(|stint| stint.id).filter(|own| self.stints.contains(own));
        let fitting = || {
            self.stints.iter().copied().find(|stint| {
                self.open.get(stint).is_some_and(|open| {
                    let is_sync = action == Action::Flush && open.syncs.is_some();
                    let has_moved = open.action == action && open.bytes == result.max(0) as u64;
                    open.waits_for == 0 && (is_sync || has_moved)
                })
            })
        };
        let Some(stint) = own.or_else(fitting) else { return };
        self.stints.remove(&stint);
        let (Some(done), Some(open)) = (self.open.remove(&stint), self.open.get_mut(&id)) else {
            return;
        };
        open.direct_ns = open.direct_ns.or(done.direct_ns);
        open.passed.extend(done.passed);
        open.waits_for += done.waits_for;
        open.bios += done.bios;
        open.merged += done.merged;
        open.splits += done.splits;
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
            self.punted.remove(&lost);
            self.open.remove(&lost);
        }
    }

    fn punt(&mut self, request: u64) {
        let Some(&id) = self.requests.get(&request) else {
            return;
        };
        if let Some(open) = self.open.get_mut(&id) {
            open.punted = true;
            self.punted.insert(id);
        }
    }

    fn forget_request(&mut self, thread: u32, id: OpId) {
        if let Some(state) = self.threads.get_mut(&thread)
            && state.request == Some(id)
        {
            state.request = None;
        }
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
            && let Some(id) = self.stint_of(now_ns, thread, span, rw)
        {
            return vec![id];
        }
        if is_journal(comm) || is_journal_write(comm, rw) {
            let waiting = self.open.iter().filter(|(_, open)| open.syncs == Some(span.dev));
            let waiting: Vec<OpId> = waiting.map(|(id, _)| *id).collect();
            if !waiting.is_empty() {
                return waiting;
            }
        }
        let state = self.threads.get(&thread);
        let submits = state.is_some_and(|state| state.submits == Some(libc::SYS_io_submit as u32));
        let interface = match (ours, submits) {
            (true, true) => Interface::Aio,
            (true, false) => Interface::Other,
            (false, _) if self.is_below(span.dev, rw) => Interface::Below,
            (false, _) => Interface::Background,
        };
        let id = self.begin(now_ns, thread, interface, rw.action);
        if let Some(open) = self.open.get_mut(&id) {
            open.ends_with_bios = true;
            open.bytes = u64::from(span.sectors) * 512;
        }
        vec![id]
    }

    /// True if a device on top of this one has such a request with its driver. Write-back, which nobody waits for, is
    /// not its driver's doing.
    fn is_below(&self, dev: Dev, rw: Rw) -> bool {
        let uppers = self.uppers.get(&dev).into_iter().flatten();
        let mut uppers = uppers.filter_map(|upper| self.devices.get(upper));
        (rw.sync || rw.action != Action::Write) && uppers.any(|upper| upper.drives(rw.action))
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
                open.bios += 1;
                open.waits_for += 1;
            }
        }
    }

    fn got_request(&mut self, now_ns: u64, span: Span, merged: bool) {
        self.device(span.dev).get_request(now_ns, span, merged);
    }

    /// Bios are done. `depth` were in flight.
    fn done(&mut self, now_ns: u64, bios: impl IntoIterator<Item = Bio>, depth: u32, out: &mut Vec<Finding>) {
        for bio in bios {
            out.push(Finding::Bio(path_of(&bio, depth)));
            let passed = Passed {
                queued_ns: bio.queued_ns,
                got_request_ns: bio.got_request_ns,
                inserted_ns: bio.inserted_ns,
                issued_ns: bio.issued_ns,
                done_ns: bio.done_ns,
                merged: bio.merged,
            };
            self.end_wait(&bio, passed);
            for id in &bio.of {
                let Some(open) = self.open.get_mut(id) else {
                    continue;
                };
                open.passed.push(passed);
                open.merged += u32::from(bio.merged);
                open.waits_for -= 1;
                self.close_if_idle(now_ns, *id, out);
            }
        }
    }

    /// What a thread had read ahead is there: if it is in a later read by now, that has waited for it.
    fn end_wait(&mut self, bio: &Bio, passed: Passed) {
        let call = self.threads.get(&bio.thread).and_then(|state| state.call);
        if bio.rw.ahead
            && let Some(id) = call.filter(|id| !bio.of.contains(id))
            && let Some(open) = self.open.get_mut(&id)
            && open.action == Action::Read
        {
            open.has_waited = true;
            open.passed.push(passed);
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
        let Some(mut open) = self.open.remove(&id) else {
            return;
        };
        // Without requests the driver works from the bio's submission on.
        if open.passed.iter().all(|bio| bio.issued_ns == 0) {
            open.passed
                .iter_mut()
                .for_each(|bio| bio.issued_ns = bio.queued_ns);
        }
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
            bios: open.bios,
            reached_device: open.bios > 0 || open.has_waited,
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
        d2c_ns: match bio.issued_ns {
            0 => between(bio.queued_ns, bio.done_ns),
            issued_ns => between(issued_ns, bio.done_ns),
        },
        merged: bio.merged,
        depth,
    }
}

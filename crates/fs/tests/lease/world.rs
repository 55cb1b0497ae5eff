//! Processes, their daemon, and the model beside them.

use super::call::{Call, DIRECTORIES, Sight, create, inodes_of};
use crate::common::{Disks, assert_clean, make};
use crate::process::{First, write_at};
use crate::program;
use base::{Duration, Instant, Machine, Rng};
use fs::check::{Depth, check_to};
use fs::digest::{Batch, digest};
use fs::edit::Room;
use fs::files::Files;
use fs::format::{Key, Kind, Place, ROOT_INODE, Root};
use fs::grants::{Grants, Reason, Rights};
use fs::inode::{Inode, Time};
use fs::lease::{Client, Given, Input, Leases, Mode, Options, Output};
use fs::log::{Frame, Next, Reader, Ring, Writer};
use fs::media::Volume;
use fs::op::{Action, Op};
use fs::overlay::Overlay;
use fs::tree::{Tree, View};
use fs::value::{LogRecord, Run};
use std::collections::{BTreeMap, VecDeque};

/// A rule that is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    No,
    /// The driver says that a log is digested, and has not done it.
    Undigested,
    /// A digest is in one root when its lease goes on.
    OneRoot,
    /// Directories move without the lease of moves.
    Unmoved,
    /// A process gives a lease back before its log is durable.
    Undurable,
    /// A process goes on to read from memory what was digested.
    Stale,
}

#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub processes: usize,
    pub is_ordered: bool,
    pub has_deaths: bool,
    pub hold: u64,
    pub broken: Broken,
}

/// What has happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub calls: u64,
    pub handed: u64,
    pub moves: u64,
    pub closed: u64,
    pub lies: u64,
    pub lost: u64,
}

/// How many logs there are: a process that dies has a successor with another one.
const LOGS: u64 = 12;
const RING_BLOCKS: u64 = 96;
/// Nanoseconds that a holder has for its answer.
const ANSWER: u64 = 400;

#[derive(Clone, Debug)]
enum Message {
    Revoke(u64, bool),
    Granted(u64, Vec<(u64, Mode)>),
}

#[derive(Clone, Copy, Debug)]
enum State {
    Idle,
    Waiting(Call),
    Ready(Call),
    Dead,
}

struct Process {
    client: Client,
    writer: Writer,
    overlay: Overlay,
    grants: Grants,
    held: BTreeMap<u64, Mode>,
    asked: BTreeMap<u64, bool>,
    grant: u64,
    inbox: VecDeque<Message>,
    outbox: VecDeque<Input>,
    state: State,
    next_inode: u64,
    /// Frames that are in the tree.
    digested: u64,
    wanted: Option<u64>,
    is_silent: bool,
    is_closing: bool,
    is_fenced: bool,
    is_closed: bool,
    /// A call that its log has, and that was not acknowledged.
    unacknowledged: Option<Op<'static>>,
}

/// A call that was acknowledged, and where it is.
type Done = (Client, u64, Op<'static>);

pub struct World {
    setup: Setup,
    rng: Rng,
    now: Instant,
    disks: Disks,
    volume: Volume,
    tree: Tree,
    leases: Leases,
    processes: Vec<Process>,
    next_log: u64,
    history: Vec<Done>,
    files: Files,
    seconds: i64,
    /// No calls begin, and nobody dies.
    is_quiet: bool,
    pub counts: Counts,
}

fn nonce(log: u64) -> u64 {
    0x5eed_0000 + log
}

fn run_of(log: u64) -> Run {
    Run {
        place: Place::new(0, 1000 + log * RING_BLOCKS),
        blocks: RING_BLOCKS,
    }
}

fn record_of(tree: &mut Tree, disks: &Disks, log: u64) -> LogRecord {
    let value = tree.get(disks, View::Pending, Key::new(0, Kind::Log, log));
    LogRecord::parse(&value.expect("it is whole").expect("there is a log")).expect("it makes sense")
}

fn put_record(tree: &mut Tree, disks: &Disks, log: u64, record: &LogRecord) {
    tree.insert(disks, Key::new(0, Kind::Log, log), &record.emit(), Room::Normal)
        .expect("there is room");
}

fn frames_of(disks: &Disks, record: &LogRecord) -> Vec<Frame> {
    let ring = Ring::new(record.nonce, 512, &record.extents).expect("it is sound");
    let medium = First(disks);
    let mut reader = Reader::new(&ring, &medium, record.digested).expect("it is a position");
    let mut frames = Vec::new();
    while let Next::Frame(frame) = reader.next_frame().expect("the medium reads") {
        frames.push(frame);
    }
    frames
}

fn setup_ops() -> Vec<Op<'static>> {
    let time = Time::default();
    let directory = |(parent, name, inode)| Op {
        inode,
        time,
        action: create((parent, name), 0o040_755),
    };
    let all = [(1, 2, 2), (1, 3, 3), (2, 3, 4), (3, 3, 5), (4, 3, 6), (5, 3, 7)];
    all.map(directory).to_vec()
}

impl World {
    pub fn new(setup: Setup, rng: Rng) -> Self {
        let (mut disks, volume) = make(&[3000]);
        let mut tree = Tree::open(&disks, &volume, 1 << 22).expect("it was just made");
        let root = Inode {
            mode: 0o040_755,
            links: 2,
            parent: ROOT_INODE,
            ..Inode::default()
        };
        let key = Key::new(ROOT_INODE, Kind::Inode, 0);
        tree.insert(&disks, key, &root.emit(), Room::Normal)
            .expect("there is room");
        for log in 0..=LOGS {
            tree.claim(&disks, run_of(log)).expect("it is free");
            tree.keep(&disks, run_of(log)).expect("it was claimed");
            let record = LogRecord {
                nonce: nonce(log),
                sector: 512,
                extents: vec![run_of(log)],
                ..LogRecord::default()
            };
            put_record(&mut tree, &disks, log, &record);
        }
        tree.commit(&mut disks).expect("there is room");
        let options = Options {
            hold: Duration::from_nanos(setup.hold),
            answer: Duration::from_nanos(ANSWER),
            ..Options::default()
        };
        let mut world = Self {
            setup,
            rng,
            now: Instant::from_nanos(1 << 20),
            disks,
            volume,
            tree,
            leases: Leases::new(options),
            processes: Vec::new(),
            next_log: 0,
            history: Vec::new(),
            files: program::new(),
            seconds: 0,
            is_quiet: false,
            counts: Counts::default(),
        };
        world.make_directories();
        while world.processes.len() < setup.processes {
            world.join();
        }
        world
    }

    /// By the first log, whose process is then gone.
    fn make_directories(&mut self) {
        self.join();
        let mut first = self.processes.pop().expect("it has joined");
        first.grants.leases.insert(ROOT_INODE, Rights::ALL);
        let client = first.client;
        self.leases.handle(self.now, Input::Numbers(client, 2..8));
        for op in setup_ops() {
            first
                .writer
                .add(std::slice::from_ref(&op))
                .expect("there is room");
            self.files.apply(&op, &program::block).expect("it can be done");
            self.history.push((first.client, 0, op));
        }
        self.processes.push(first);
        self.write_log(0);
        let at = 0;
        self.digest(at, u64::MAX);
        self.processes.clear();
        for input in [Input::Gone(client), Input::Closed(client)] {
            self.leases.handle(self.now, input);
            while self.leases.poll().is_some() {}
        }
    }

    fn join(&mut self) {
        let log = self.next_log;
        self.next_log += 1;
        let client = Client(log);
        let ring = Ring::new(nonce(log), 512, &[run_of(log)]).expect("it is sound");
        let options = fs::log::Options {
            frame_bytes_max: 1 << 14,
            writes_in_flight_max: 1,
        };
        let numbers = 1000 * (log + 1)..1000 * (log + 2);
        let mut grants = Grants::default();
        grants.inodes = numbers.clone();
        self.processes.push(Process {
            client,
            writer: Writer::new(ring, 0, options),
            overlay: Overlay::new(self.volume.mark),
            grants,
            held: BTreeMap::new(),
            asked: BTreeMap::new(),
            grant: 0,
            inbox: VecDeque::new(),
            outbox: VecDeque::new(),
            state: State::Idle,
            next_inode: numbers.start,
            digested: 0,
            wanted: None,
            is_silent: false,
            is_closing: false,
            is_fenced: false,
            is_closed: false,
            unacknowledged: None,
        });
        self.tell(Input::Join(client));
        self.tell(Input::Numbers(client, numbers));
    }

    fn tell(&mut self, input: Input) {
        self.leases.handle(self.now, input);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(output) = self.leases.poll() {
            let of = |client: Client, processes: &Vec<Process>| {
                processes.iter().position(|process| process.client == client)
            };
            match output {
                Output::Revoke {
                    client,
                    inode,
                    may_share,
                } => {
                    let at = of(client, &self.processes).expect("it holds a lease");
                    let message = Message::Revoke(inode, may_share);
                    self.processes[at].inbox.push_back(message);
                }
                Output::Granted {
                    client,
                    grant,
                    leases,
                    fresh,
                    ..
                } => {
                    let at = of(client, &self.processes).expect("it has asked");
                    self.counts.handed += fresh.len() as u64;
                    for inode in fresh {
                        self.leases
                            .handle(self.now, Input::Admit(client, inode, Rights::ALL));
                    }
                    self.processes[at]
                        .inbox
                        .push_back(Message::Granted(grant, leases));
                }
                Output::Digest(client, position) => {
                    let at = of(client, &self.processes).expect("it has written");
                    self.processes[at].wanted = Some(position);
                }
                Output::Close(client, _) => {
                    let at = of(client, &self.processes).expect("it is known");
                    self.processes[at].is_closing = true;
                }
                Output::Refused { .. } | Output::Crowded { .. } | Output::Idle(_) => panic!("{output:?}"),
            }
        }
    }

    /// Something happens.
    pub fn step(&mut self) {
        self.now += Duration::from_nanos(1);
        let alive = self.processes.iter().filter(|process| !process.is_closed).count();
        if alive < self.setup.processes && self.next_log <= LOGS && self.rng.chance(0.1) {
            self.join();
        }
        if self.leases.deadline().is_some_and(|at| at <= self.now) {
            self.leases.tick(self.now);
            self.drain();
        }
        let is_over = |process: &Process| process.is_closed && matches!(process.state, State::Dead);
        let going: Vec<usize> = (0..self.processes.len())
            .filter(|at| !is_over(&self.processes[*at]))
            .collect();
        if going.is_empty() {
            return;
        }
        let at = going[self.rng.below(going.len() as u64) as usize];
        if self.setup.has_deaths && !self.is_quiet {
            if self.rng.chance(0.0004) && !matches!(self.processes[at].state, State::Dead) {
                self.kill(at);
            }
            self.processes[at].is_silent |= self.rng.chance(0.0002);
        }
        match self.rng.below(10) {
            0 | 1 => self.drive(at),
            2..4 => {
                if let Some(input) = self.processes[at].outbox.pop_front() {
                    self.tell(input);
                }
            }
            4 if !matches!(self.processes[at].state, State::Dead) && self.rng.chance(0.03) => {
                self.write_log(at)
            }
            5 if self.setup.broken == Broken::No && self.rng.chance(0.05) => self.lie(at),
            _ => self.go_on(at),
        }
        if self.setup.broken == Broken::No {
            for inode in DIRECTORIES {
                self.check_lease(inode);
            }
        }
    }

    /// Each call ends, or its process is closed.
    pub fn settle(&mut self) {
        self.is_quiet = true;
        // One that nobody asks for anything would sleep for ever.
        self.processes
            .iter_mut()
            .for_each(|process| process.is_silent = false);
        let waits = |process: &Process| matches!(process.state, State::Waiting(_) | State::Ready(_));
        for _ in 0..20_000 {
            self.step();
            if !self.processes.iter().any(waits) {
                return;
            }
        }
        panic!("somebody waits for ever");
    }

    fn check_lease(&self, inode: u64) {
        let clients = self.processes.iter().map(|process| process.client);
        let modes: Vec<Mode> = clients
            .filter_map(|client| self.leases.mode(client, inode))
            .collect();
        assert!(!modes.contains(&Mode::Exclusive) || modes.len() == 1, "{modes:?}");
    }

    /// The driver does what the machine wants of a process.
    fn drive(&mut self, at: usize) {
        let process = &mut self.processes[at];
        if process.is_closed {
            return;
        }
        match (process.is_closing, process.is_fenced) {
            (true, false) => process.is_fenced = true,
            (true, true) => self.close(at),
            _ => {
                let wanted = process.wanted.take();
                let some = self.rng.below(20_000);
                let is_spontaneous = self.rng.chance(0.03);
                if let Some(position) = wanted.or(is_spontaneous.then_some(some)) {
                    self.digest(at, position);
                }
            }
        }
    }

    /// Digests a log up to a position, or all that it has.
    fn digest(&mut self, at: usize, position: u64) -> Vec<Reason> {
        let client = self.processes[at].client;
        let record = record_of(&mut self.tree, &self.disks, client.0);
        let mut frames = frames_of(&self.disks, &record);
        let count = frames
            .iter()
            .take_while(|frame| frame.position < position)
            .count();
        frames.truncate(count);
        let end = frames.last().map_or(record.digested, |frame| frame.end);
        if self.setup.broken == Broken::Undigested && position != u64::MAX {
            self.tell(Input::Digested(client, end));
            return Vec::new();
        }
        let process = &mut self.processes[at];
        self.leases.refresh(client, &mut process.grants);
        let batch = Batch::new((client.0, record.nonce, record.digested), &frames);
        let report = digest(
            &mut self.tree,
            &mut self.disks,
            batch,
            (&mut process.grants, &[0]),
        );
        let report = report.expect("it is the next batch");
        process.digested += frames.len() as u64;
        if self.setup.broken != Broken::Stale {
            process.overlay.digested(process.digested);
        }
        self.commit();
        self.processes[at].writer.consumed(end);
        self.tell(Input::Digested(client, end));
        report.refused.into_iter().map(|it| it.reason).collect()
    }

    fn commit(&mut self) {
        let roots = if self.setup.broken == Broken::OneRoot {
            1
        } else {
            2
        };
        for _ in 0..roots {
            self.tree.commit(&mut self.disks).expect("there is room");
        }
    }

    fn write_log(&mut self, at: usize) {
        let process = &mut self.processes[at];
        while let Some(write) = process.writer.next_write() {
            for (offset, bytes) in write.pieces() {
                write_at(&mut self.disks, offset, bytes);
            }
            process.writer.written(write, Ok(()));
        }
    }

    /// A process takes a message, answers, or goes on with its call.
    fn go_on(&mut self, at: usize) {
        let process = &mut self.processes[at];
        if process.is_silent && !process.is_fenced || matches!(process.state, State::Dead) {
            return;
        }
        if let Some(message) = process.inbox.pop_front() {
            return self.take(at, message);
        }
        let asked = process.asked.keys().copied().find(|inode| {
            let is_pinned = matches!(process.state, State::Ready(_));
            !is_pinned || !process.held.contains_key(inode)
        });
        if let Some(inode) = asked {
            return self.answer(at, inode);
        }
        match process.state {
            State::Idle if !self.is_quiet => {
                let call = match self.setup.broken {
                    Broken::Unmoved => Call::random_move(&mut self.rng),
                    _ => Call::random(&mut self.rng),
                };
                self.begin(at, call);
            }
            State::Waiting(_) if process.is_fenced => self.die(at),
            State::Ready(call) => self.perform(at, call),
            State::Idle | State::Waiting(_) | State::Dead => {}
        }
    }

    fn take(&mut self, at: usize, message: Message) {
        let process = &mut self.processes[at];
        match message {
            Message::Revoke(inode, may_share) => {
                // Numbers of its own are its, too, until it is asked for them.
                let is_own = process.grants.inodes.contains(&inode) && inode < process.next_inode;
                let held = process
                    .held
                    .get(&inode)
                    .copied()
                    .or(is_own.then_some(Mode::Exclusive));
                if held == Some(Mode::Exclusive) || (held.is_some() && !may_share) {
                    let before = process.asked.get(&inode).copied().unwrap_or(true);
                    process.asked.insert(inode, before && may_share);
                }
            }
            Message::Granted(grant, leases) => {
                process.grant = grant;
                process.held.extend(leases);
                if let State::Waiting(call) = process.state {
                    self.begin(at, call);
                }
            }
        }
    }

    /// The process gives back what it was asked for.
    fn answer(&mut self, at: usize, inode: u64) {
        if self.setup.broken != Broken::Undurable {
            self.write_log(at);
        }
        let process = &mut self.processes[at];
        let keeps_shared = process.asked.remove(&inode).expect("it was asked");
        match keeps_shared {
            true => process.held.insert(inode, Mode::Shared),
            false => process.held.remove(&inode),
        };
        let given = Given {
            inode,
            keeps_shared,
            position: process.writer.durable_position(),
            is_open: false,
            grant: process.grant,
        };
        process.outbox.push_back(Input::Give(process.client, given));
    }

    /// Asks for what a call needs and the process lacks; or it has all.
    fn begin(&mut self, at: usize, call: Call) {
        let knows_moves = self.setup.broken != Broken::Unmoved;
        let process = &mut self.processes[at];
        let mut sight = Sight {
            overlay: &process.overlay,
            tree: &mut self.tree,
            media: &self.disks,
            held: &process.held,
        };
        let needs = sight.needs(call, knows_moves);
        let has = |(inode, mode): (&u64, &Mode)| process.held.get(inode) >= Some(mode);
        let is_asked = needs.keys().any(|inode| process.asked.contains_key(inode));
        let has_all = needs.iter().all(has);
        // What a grant has just brought is used before it is given back.
        if has_all && (!is_asked || matches!(process.state, State::Waiting(_))) {
            process.state = State::Ready(call);
            return;
        }
        process.outbox.push_back(Input::Ask {
            client: process.client,
            request: 0,
            wants: needs.into_iter().collect(),
            has_mount: false,
        });
        process.state = State::Waiting(call);
    }

    fn perform(&mut self, at: usize, call: Call) {
        let (new, data) = (self.processes[at].next_inode, self.rng.next_u64() as u8);
        let is_fenced = self.processes[at].is_fenced;
        if !is_fenced {
            self.verify_call(at, call);
        }
        let process = &mut self.processes[at];
        let mut sight = Sight {
            overlay: &process.overlay,
            tree: &mut self.tree,
            media: &self.disks,
            held: &process.held,
        };
        let action = sight.action(call, new, data);
        process.state = State::Idle;
        if let Some((inode, action)) = action {
            self.seconds += 1;
            let time = Time {
                seconds: self.seconds,
                ns: 0,
            };
            let op = Op { inode, time, action };
            self.log(at, op, is_fenced);
        }
        if is_fenced {
            self.die(at);
        }
    }

    /// What a call looks at is what the model has.
    fn verify_call(&mut self, at: usize, call: Call) {
        let process = &self.processes[at];
        let mut sight = Sight {
            overlay: &process.overlay,
            tree: &mut self.tree,
            media: &self.disks,
            held: &process.held,
        };
        for name in call.names() {
            let found = sight.lookup(name);
            let of_model = self.files.lookup(name.0, &[b'a' + name.1]).ok();
            assert_eq!(found, of_model, "{call:?}");
            for inode in [Some(name.0), found].into_iter().flatten() {
                sight.verify(&self.files, inode);
            }
        }
    }

    /// Logs a call, and acknowledges it if the log is not closed.
    fn log(&mut self, at: usize, op: Op<'static>, is_fenced: bool) {
        let ticket = loop {
            match self.processes[at].writer.add(std::slice::from_ref(&op)) {
                Ok(ticket) => break ticket.0,
                Err(_) if is_fenced => return,
                Err(_) => {
                    self.write_log(at);
                    let refused = self.digest(at, u64::MAX);
                    assert_eq!(refused, []);
                }
            }
        };
        if !self.setup.is_ordered || is_fenced {
            self.write_log(at);
        }
        if is_fenced {
            self.processes[at].unacknowledged = Some(op).filter(|_| !self.processes[at].is_closed);
            return;
        }
        let process = &mut self.processes[at];
        let mut sight = Sight {
            overlay: &Overlay::new(0),
            tree: &mut self.tree,
            media: &self.disks,
            held: &process.held,
        };
        let (_, mut below) = sight.below();
        process
            .overlay
            .apply(&mut below, &op, ticket)
            .expect("the tree is whole");
        if let Action::Create { .. } = op.action {
            process.held.insert(op.inode, Mode::Exclusive);
            process.next_inode += 1;
        }
        let is_move = matches!(&op.action, Action::Rename { from, to, .. } if from.parent != to.parent);
        self.counts.moves += u64::from(is_move && DIRECTORIES.contains(&op.inode));
        self.counts.calls += 1;
        let done = self.files.apply(&op, &program::block);
        done.expect("what a process may do can be done");
        self.history.push((process.client, ticket, op));
    }

    /// A process logs what it has no lease for. The digest refuses just that.
    fn lie(&mut self, at: usize) {
        let process = &mut self.processes[at];
        if process.is_closing || matches!(process.state, State::Dead) {
            return;
        }
        self.write_log(at);
        assert_eq!(self.digest(at, u64::MAX), []);
        let process = &mut self.processes[at];
        let mut inodes = self.files.inodes().map(|(number, _)| number);
        let foreign = inodes.find(|inode| self.leases.mode(process.client, *inode) != Some(Mode::Exclusive));
        drop(inodes);
        let Some(inode) = foreign else {
            return;
        };
        let action = match self.rng.chance(0.5) && DIRECTORIES.contains(&inode) {
            true => create((inode, 4), 0o100_644),
            false => Action::Truncate { size: 5 },
        };
        let is_create = matches!(action, Action::Create { .. });
        let reason = Reason::Unleased(inode);
        let number = match is_create {
            true => process.grants.inodes.end - 1,
            false => inode,
        };
        let time = Time::default();
        let op = Op {
            inode: number,
            time,
            action,
        };
        process.writer.add(&[op]).expect("the log is empty");
        self.write_log(at);
        assert_eq!(self.digest(at, u64::MAX), [reason]);
        self.counts.lies += 1;
    }

    fn die(&mut self, at: usize) {
        let process = &mut self.processes[at];
        process.state = State::Dead;
        process.inbox.clear();
        process.asked.clear();
    }

    fn kill(&mut self, at: usize) {
        self.die(at);
        self.forget(at);
        let process = &mut self.processes[at];
        if self.rng.chance(0.5) {
            process.outbox.clear();
        }
        process.outbox.push_back(Input::Gone(process.client));
    }

    /// What a process has not written is gone. The others' calls can be done without it.
    fn forget(&mut self, at: usize) {
        let (client, durable) = (self.processes[at].client, self.processes[at].writer.durable().0);
        let before = self.history.len();
        self.history
            .retain(|(of, ticket, _)| *of != client || *ticket <= durable);
        if self.history.len() < before {
            self.counts.lost += (before - self.history.len()) as u64;
            self.files = program::new();
            for (_, _, op) in &self.history {
                let done = self.files.apply(op, &program::block);
                done.expect("nobody has built on what was lost");
            }
        }
    }

    fn close(&mut self, at: usize) {
        self.forget(at);
        self.die_if_ordered(at);
        let client = self.processes[at].client;
        assert_eq!(self.digest(at, u64::MAX), []);
        if let Some(op) = self.processes[at].unacknowledged.take() {
            let done = self.files.apply(&op, &program::block);
            done.expect("it had its leases");
            self.history.push((client, 0, op));
        }
        let mut record = record_of(&mut self.tree, &self.disks, client.0);
        record.nonce ^= 1 << 40;
        put_record(&mut self.tree, &self.disks, client.0, &record);
        self.commit();
        self.processes[at].is_closed = true;
        self.counts.closed += 1;
        self.tell(Input::Closed(client));
    }

    /// What the process has acknowledged and not written is lost: its log is closed.
    fn die_if_ordered(&mut self, at: usize) {
        if self.setup.is_ordered {
            self.die(at);
        }
    }

    /// The machine stops. What was durable is there, whichever root counts and whichever log comes first.
    pub fn crash(&mut self) {
        for at in 0..self.processes.len() {
            self.forget(at);
            if let Some(op) = self.processes[at].unacknowledged.take() {
                self.files.apply(&op, &program::block).expect("it had its leases");
            }
        }
        for loses_root in [false, true] {
            let mut disks = self.disks.clone();
            if loses_root {
                let slot = Root::place_of(self.tree.committed().generation);
                disks.data.get_mut(&slot).expect("it was written")[100] ^= 1;
            }
            let mut tree = Tree::open(&disks, &self.volume, 1 << 20).expect("a root counts");
            let mut logs: Vec<u64> = (0..self.next_log).collect();
            while !logs.is_empty() {
                let log = logs.swap_remove(self.rng.below(logs.len() as u64) as usize);
                recover(&mut tree, &mut disks, log);
            }
            for _ in 0..2 {
                tree.commit(&mut disks).expect("there is room");
            }
            assert_clean(&check_to(&disks, Depth::Data));
            let mut sight = Sight {
                overlay: &Overlay::new(self.volume.mark),
                tree: &mut tree,
                media: &disks,
                held: &BTreeMap::new(),
            };
            for (inode, _) in self.files.inodes() {
                sight.verify(&self.files, inode);
            }
        }
    }
}

/// Digests what is left of a log.
fn recover(tree: &mut Tree, disks: &mut Disks, log: u64) {
    let record = record_of(tree, disks, log);
    let frames = frames_of(disks, &record);
    let mut grants = Grants::default();
    grants.inodes = 2..u64::MAX;
    for op in frames.iter().flat_map(Frame::ops).flatten() {
        let inodes = inodes_of(&op).into_iter();
        grants.leases.extend(inodes.map(|inode| (inode, Rights::ALL)));
    }
    let batch = Batch::new((log, record.nonce, record.digested), &frames);
    let report = digest(tree, disks, batch, (&mut grants, &[0])).expect("it is the next batch");
    assert_eq!(report.refused, [], "log {log}");
}

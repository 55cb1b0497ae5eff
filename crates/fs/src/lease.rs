//! Leases: which process may read and change which inode (Strata §3.4), as one machine of the daemon that digests logs.
//!
//! A process asks for all leases of a call at once ([`Input::Ask`]). Requests that want the same inode are granted in the order in which they came, and
//! each as a whole. A request therefore waits for older ones only, and none wait in a circle. While a process waits, it gives back the leases
//! that it is asked for. A process with a granted request makes its call before it gives anything back. So each hand-over is worth a call.
//!
//! The changes of a process go to nobody else before the digest has them, up to the position that the holder tells when it gives the lease
//! back. So of each inode only one log has records that are not in the tree, and logs may be digested in any order after a crash.
//!
//! A holder that is dead, or does not answer in time, is closed ([`Output::Close`]): all of its log is digested, and its later writes do not
//! count. Then its leases are free. So nobody waits for ever.
//!
//! A lease is of one inode. A directory's does not cover the files in it, as a file may be in several directories. Creating is cheap nevertheless:
//! the numbers that a process was given for new inodes ([`Input::Numbers`]) are its own until another process asks for one of them.
//!
//! Where many take turns, each hand-over costs more than calls by the mount would. Processes that can use it are sent there for a while ([`Crowding`]).
//!
//! [`Leases::refresh`] brings the rights of a log in the digest ([`Grants`]) up to what its process holds. Permissions are for the driver: it looks
//! when a request is granted ([`Input::Admit`]). The rules for clients and drivers are in docs/file-system-leases.md.

use crate::grants::{Grants, Rights};
use base::{Duration, Instant, Machine};
use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The lease of the file system itself: a directory that moves to another directory needs it, exclusively. Two such moves that have no inode in common could
/// make a circle.
pub const MOVES: u64 = 0;
/// Inodes of a request, at most. A rename needs five: two directories, what moves, what it replaces, and [`MOVES`].
pub const WANTS_MAX: usize = 8;
/// Inodes that are counted hand-overs of at a time: far more than processes hand over within the time that counts.
const CROWDS_MAX: usize = 4096;

/// How often a holder gets its time anew that the driver has not heard: the driver is stopped or kept busy for 10 s then.
pub const PUT_OFF_MAX: u8 = 4;

/// A process: the number of its log. A log has one process in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Client(pub u64);

/// The use of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// Reading. Several may have it.
    Shared,
    /// Reading and changing. One has it, and nobody else has any.
    Exclusive,
}

impl Mode {
    fn bears(self, other: Self) -> bool {
        self == Self::Shared && other == Self::Shared
    }
}

/// When an inode is *crowded*: processes that can make their calls by the mount are sent there, as hand-overs would cost more. While the mount
/// alone has the lease, nothing is handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Crowding {
    /// So many hand-overs,
    pub hands: u32,
    /// within this time.
    pub within: Duration,
    /// It stays so for this time.
    pub lasts: Duration,
}

impl Default for Crowding {
    /// A hand-over costs as much as ten to thirty calls of the mount. So two processes that take turns with fewer calls each are better off there. What is
    /// found out costs some hand-overs, and is worth that if it holds for a thousand times as long as one takes.
    fn default() -> Self {
        Self {
            hands: 6,
            within: Duration::from_millis(50),
            lasts: Duration::from_secs(1),
        }
    }
}

/// Limits of leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Options {
    /// A lease is not asked back so soon after it was granted: the calls of this time share the cost of the hand-over. It is the longest that a
    /// request waits for a holder that has nothing to do.
    pub hold: Duration,
    /// A holder that has not given a lease back so long after it was asked is closed.
    pub answer: Duration,
    /// Leases of a process, at most. It may give some back, and ask again.
    pub leases_max: usize,
    /// Requests of a process that wait, at most.
    pub requests_max: usize,
    /// The daemon's own client, if it has one: it always answers, however long that takes, and has no limits.
    pub own: Option<Client>,
    /// When processes are sent to it.
    pub crowding: Crowding,
}

impl Default for Options {
    /// A hand-over is a digest and two commits, about 0.5 ms on flash: holders keep what they have for twice that. A process that does not answer for 2 s is
    /// stopped, or spins in a signal handler: its calls are shorter by far.
    fn default() -> Self {
        Self {
            hold: Duration::from_millis(1),
            answer: Duration::from_secs(2),
            leases_max: 1 << 16,
            requests_max: 64,
            own: None,
            crowding: Crowding::default(),
        }
    }
}

/// News for the machine. What a process that is unknown or closed says is ignored.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// A process has a log.
    Join(Client),
    /// A process was given numbers for new inodes. It holds them exclusively. Numbers that do not follow its former ones are given when the digest has
    /// all records of the process that create inodes: it takes no other numbers from then on.
    Numbers(Client, Range<u64>),
    /// A process wants leases, all together.
    Ask {
        /// The process.
        client: Client,
        /// Its name for the request.
        request: u64,
        /// Inodes: at most [`WANTS_MAX`], and at least one.
        wants: Vec<(u64, Mode)>,
        /// It can make the call by the mount.
        has_mount: bool,
    },
    /// The driver has looked at permissions: what the holder of an exclusive lease may change with it. Until then it may change nothing.
    Admit(Client, u64, Rights),
    /// The driver has looked at permissions, or there is no such inode: the lease is taken back. Nothing was written under it.
    Deny(Client, u64),
    /// A process gives a lease back.
    Give(Client, Given),
    /// A process has closed an inode that it had open when it gave the lease back.
    Shut(Client, u64),
    /// The log is in the tree up to a position, whichever root counts after a crash: both have it.
    Digested(Client, u64),
    /// The log ends before a position that its process has told.
    Short(Client),
    /// The process is gone, or leaves.
    Gone(Client),
    /// What [`Output::Close`] wants is done.
    Closed(Client),
}

/// A lease that is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Given {
    /// The inode.
    pub inode: u64,
    /// The process goes on reading: it keeps a shared lease.
    pub keeps_shared: bool,
    /// What the process has logged of the inode is below this position of its log, and durable.
    pub position: u64,
    /// The process has the inode open.
    pub is_open: bool,
    /// The last grant that the process has taken note of. If a later one has the lease, the process has not given that back.
    pub grant: u64,
}

/// Why a process is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    /// It is gone.
    Gone,
    /// It did not give a lease back in time.
    Silent,
    /// It told a position that its log does not reach.
    Lied,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Output {
    /// Ask a holder to give a lease back, or all of it but a shared one. A process that does not hold it ignores that.
    Revoke {
        /// The holder.
        client: Client,
        /// The inode.
        inode: u64,
        /// It may keep a shared lease.
        may_share: bool,
    },
    /// Digest a log up to a position at least, so that both roots have it; then say [`Input::Digested`].
    Digest(Client, u64),
    /// All leases of a request are granted. Look at permissions, then tell the process.
    Granted {
        /// The process.
        client: Client,
        /// Its name for the request.
        request: u64,
        /// The number of the grant: they rise.
        grant: u64,
        /// What it has of each inode now, whatever it has given back before: it may be more than it asked for.
        leases: Vec<(u64, Mode)>,
        /// Inodes of which it has the exclusive lease anew: say [`Input::Admit`] or [`Input::Deny`] of each.
        fresh: Vec<u64>,
    },
    /// A request is refused: the process has too many leases or requests, or asks for none.
    Refused {
        /// The process.
        client: Client,
        /// Its name for the request.
        request: u64,
    },
    /// A request is refused: this inode is crowded, and the process can make the call by the mount.
    Crowded {
        /// The process.
        client: Client,
        /// Its name for the request.
        request: u64,
        /// The inode.
        inode: u64,
    },
    /// Tell the process that its log is closed. Then digest all of it and take it out of the tree, so that both roots have that; then say [`Input::Closed`].
    Close(Client, Why),
    /// Nobody has an inode open that had no lease of it: if it is an orphan, delete it. After a digest that is under way.
    Idle(u64),
}

/// Whether a holder is asked to give back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Recall {
    No,
    /// It will be asked then.
    Due(Instant),
    /// It was asked, and has until then.
    Asked {
        may_share: bool,
        until: Instant,
        /// How often the time was put off.
        put_off: u8,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Held {
    mode: Mode,
    /// The last grant that has the lease.
    grant: u64,
    since: Instant,
    recall: Recall,
    /// Of an exclusive lease, once the driver has looked.
    rights: Option<Rights>,
}

/// What a process has logged under a lease that it has given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Written {
    client: Client,
    position: u64,
    rights: Rights,
}

/// An inode that somebody has a lease of, or had.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Lease {
    holders: BTreeMap<Client, Held>,
    /// Not digested yet.
    written: Option<Written>,
    /// Requests that wait, the oldest one first, with what they want.
    queue: BTreeMap<u64, Mode>,
    /// Those of them that want it exclusively.
    writers: BTreeSet<u64>,
    /// Processes that have it open, and gave the lease back.
    open: BTreeSet<Client>,
}

impl Lease {
    fn is_empty(&self) -> bool {
        let is_idle = self.holders.is_empty() && self.open.is_empty();
        is_idle && self.written.is_none() && self.queue.is_empty()
    }

    /// Whether no older request is in the way of one.
    fn is_first(&self, ticket: u64, mode: Mode) -> bool {
        let first = match mode {
            Mode::Shared => self.writers.first(),
            Mode::Exclusive => self.queue.keys().next(),
        };
        first.is_none_or(|first| *first >= ticket)
    }

    /// Requests with no older one in the way: a writer, or the readers up to the next writer.
    fn first(&self) -> Vec<u64> {
        let writer = self.writers.first().copied();
        let mut queue = self.queue.keys().copied();
        match queue.next().filter(|first| Some(*first) == writer) {
            Some(writer) => vec![writer],
            None => {
                let readers = self.queue.range(..writer.unwrap_or(u64::MAX));
                readers.map(|(ticket, _)| *ticket).collect()
            }
        }
    }

    fn enter(&mut self, ticket: u64, mode: Mode) {
        self.queue.insert(ticket, mode);
        if mode == Mode::Exclusive {
            self.writers.insert(ticket);
        }
    }

    fn leave(&mut self, ticket: u64) {
        self.queue.remove(&ticket);
        self.writers.remove(&ticket);
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Process {
    is_closing: bool,
    /// Its log is in the tree up to here.
    digested: u64,
    /// A digest up to here was asked for.
    asked: u64,
    /// Inodes of which a [`Lease`] names it.
    inodes: BTreeSet<u64>,
    /// What it has given back and is not digested: position, inode.
    owes: BTreeSet<(u64, u64)>,
    requests: BTreeSet<u64>,
    /// Inodes of which its grants may have changed.
    changed: BTreeSet<u64>,
    /// Numbers that it may give to new inodes.
    numbers: Range<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Waiting {
    client: Client,
    request: u64,
    wants: Vec<(u64, Mode)>,
}

/// How often an inode was handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Crowd {
    hands: u32,
    since: Instant,
    /// It is crowded until then.
    until: Instant,
}

/// The leases of a file system.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Leases {
    options: Options,
    processes: BTreeMap<Client, Process>,
    leases: BTreeMap<u64, Lease>,
    /// Numbers for new inodes that nobody else has asked for: the first, the one behind the last, and whose they are.
    numbers: BTreeMap<u64, (u64, Client)>,
    /// Numbers that others have asked for, and whose they were. A process that lies may create the inode nevertheless, and the digest then lets it
    /// change what it has created until somebody else gets it.
    origins: BTreeMap<u64, Client>,
    waiting: BTreeMap<u64, Waiting>,
    /// Inodes that were handed over of late, at most [`CROWDS_MAX`].
    crowds: BTreeMap<u64, Crowd>,
    next_ticket: u64,
    /// How many there were.
    grants: u64,
    timers: BTreeSet<(Instant, u64, Client)>,
    /// Inodes whose requests may go on.
    work: BTreeSet<u64>,
    outputs: VecDeque<Output>,
}

impl Leases {
    /// Nobody has any.
    pub fn new(options: Options) -> Self {
        Self {
            options,
            processes: BTreeMap::new(),
            leases: BTreeMap::new(),
            numbers: BTreeMap::new(),
            origins: BTreeMap::new(),
            waiting: BTreeMap::new(),
            crowds: BTreeMap::new(),
            next_ticket: 0,
            grants: 0,
            timers: BTreeSet::new(),
            work: BTreeSet::new(),
            outputs: VecDeque::new(),
        }
    }

    /// The lease that a process has of an inode.
    pub fn mode(&self, client: Client, inode: u64) -> Option<Mode> {
        let held = self
            .leases
            .get(&inode)
            .and_then(|lease| lease.holders.get(&client));
        let own = self.owner(inode).filter(|owner| *owner == client);
        held.map(|held| held.mode).or(own.map(|_| Mode::Exclusive))
    }

    /// Brings the grants of a log up to what its process may change now: the numbers of its new inodes, what it holds exclusively, and what it has
    /// given back and is not digested. It is always the same `grants` of a log, and the digest's own changes stay in it. Call it before each batch of
    /// the log, and after [`Input::Digested`] of the batch before.
    pub fn refresh(&mut self, client: Client, grants: &mut Grants) {
        let Some(process) = self.processes.get_mut(&client) else {
            return;
        };
        grants.inodes = process.numbers.clone();
        for inode in core::mem::take(&mut process.changed) {
            match self.rights(client, inode) {
                Some(rights) => grants.leases.insert(inode, rights),
                None => grants.leases.remove(&inode),
            };
            let mut open = self.leases.get(&inode).into_iter().flat_map(|lease| &lease.open);
            match open.any(|other| *other != client) {
                true => grants.open_elsewhere.insert(inode),
                false => grants.open_elsewhere.remove(&inode),
            };
        }
    }

    /// What a process may change of an inode that is not one of its own numbers.
    fn rights(&self, client: Client, inode: u64) -> Option<Rights> {
        let lease = self.leases.get(&inode)?;
        let held = lease.holders.get(&client).and_then(|held| held.rights);
        let written = lease.written.filter(|written| written.client == client);
        held.or(written.map(|written| written.rights))
    }

    /// Who was given the number of an inode, if nobody else has asked for it.
    fn owner(&self, inode: u64) -> Option<Client> {
        let (_, (end, client)) = self.numbers.range(..=inode).next_back()?;
        (inode < *end).then_some(*client)
    }

    fn is_open(&self, client: Client) -> bool {
        self.processes
            .get(&client)
            .is_some_and(|process| !process.is_closing)
    }

    fn process(&mut self, client: Client) -> &mut Process {
        self.processes.get_mut(&client).expect("the process is known")
    }

    /// An inode's lease has changed for a process.
    fn changed(&mut self, client: Client, inode: u64) {
        if let Some(process) = self.processes.get_mut(&client) {
            process.changed.insert(inode);
        }
    }

    /// Numbers are a process's own, but for those that somebody has asked for.
    fn own(&mut self, client: Client, numbers: Range<u64>) {
        if numbers.is_empty() {
            return;
        }
        let before = &mut self.process(client).numbers;
        *before = match before.end == numbers.start {
            true => before.start..numbers.end,
            false => numbers.clone(),
        };
        let mut first = numbers.start;
        let known: Vec<u64> = self
            .leases
            .range(numbers.clone())
            .map(|(inode, _)| *inode)
            .collect();
        for inode in known.into_iter().chain([numbers.end]) {
            if first < inode {
                self.numbers.insert(first, (inode, client));
            }
            first = inode + 1;
        }
    }

    /// A number of somebody's own becomes a lease like others.
    fn disown(&mut self, inode: u64) {
        let Some(client) = self.owner(inode) else {
            return;
        };
        let first = self.numbers.range(..=inode).next_back().map(|(first, _)| *first);
        let first = first.expect("the number is in a range");
        let (end, _) = self.numbers.remove(&first).expect("it was found");
        self.origins.insert(inode, client);
        for (from, to) in [(first, inode), (inode + 1, end)] {
            if from < to {
                self.numbers.insert(from, (to, client));
            }
        }
        let held = Held {
            mode: Mode::Exclusive,
            grant: 0,
            since: Instant::ZERO,
            recall: Recall::No,
            rights: Some(Rights::ALL),
        };
        self.leases.entry(inode).or_default().holders.insert(client, held);
        let process = self.process(client);
        process.inodes.insert(inode);
        process.changed.insert(inode);
    }

    fn ask(
        &mut self,
        now: Instant,
        (client, request): (Client, u64),
        wants: &[(u64, Mode)],
        has_mount: bool,
    ) {
        let mut modes = BTreeMap::new();
        for &(inode, mode) in wants {
            let wanted = modes.entry(inode).or_insert(mode);
            *wanted = mode.max(*wanted);
        }
        let (options, process) = (self.options, self.process(client));
        let leases = process.inodes.len() + modes.len();
        let is_sound = (1..=WANTS_MAX).contains(&modes.len());
        let is_many = leases > options.leases_max || process.requests.len() >= options.requests_max;
        if !is_sound || (is_many && options.own != Some(client)) {
            self.outputs.push_back(Output::Refused { client, request });
            return;
        }
        if has_mount && let Some(inode) = self.crowded(now, client, &modes) {
            self.outputs.push_back(Output::Crowded {
                client,
                request,
                inode,
            });
            return;
        }
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.process(client).requests.insert(ticket);
        for (&inode, &mode) in &modes {
            if self.owner(inode).is_some_and(|owner| owner != client) {
                self.disown(inode);
            }
            self.leases.entry(inode).or_default().enter(ticket, mode);
        }
        let wants = modes.into_iter().collect();
        let waiting = Waiting {
            client,
            request,
            wants,
        };
        self.waiting.insert(ticket, waiting);
        self.step(now, ticket);
    }

    /// An inode that is crowded and of which a process does not have what it wants.
    fn crowded(&self, now: Instant, client: Client, wants: &BTreeMap<u64, Mode>) -> Option<u64> {
        let is_crowded = |inode: &u64| self.crowds.get(inode).is_some_and(|crowd| now < crowd.until);
        let lacks = |(inode, mode): &(&u64, &Mode)| self.mode(client, **inode) < Some(**mode);
        let crowded = wants.iter().filter(|(inode, _)| is_crowded(inode)).find(lacks);
        crowded.map(|(inode, _)| *inode)
    }

    /// A process is asked for a lease that somebody else wants.
    fn note_hand(&mut self, now: Instant, inode: u64) {
        let crowding = self.options.crowding;
        if self.options.own.is_none() || inode == MOVES {
            return;
        }
        if self.crowds.len() >= CROWDS_MAX {
            let counts = |crowd: &Crowd| now.since(crowd.since) < crowding.within || now < crowd.until;
            self.crowds.retain(|_, crowd| counts(crowd));
        }
        if self.crowds.len() >= CROWDS_MAX && !self.crowds.contains_key(&inode) {
            return;
        }
        let fresh = Crowd {
            hands: 0,
            since: now,
            until: Instant::ZERO,
        };
        let crowd = self.crowds.entry(inode).or_insert(fresh);
        if now.since(crowd.since) >= crowding.within {
            (crowd.hands, crowd.since) = (0, now);
        }
        crowd.hands += 1;
        if crowd.hands >= crowding.hands {
            (crowd.hands, crowd.until) = (0, now + crowding.lasts);
        }
    }

    /// Lets requests go on as far as they can.
    fn go_on(&mut self, now: Instant) {
        while let Some(inode) = self.work.pop_first() {
            let first = self.leases.get(&inode).map(Lease::first);
            for ticket in first.into_iter().flatten() {
                self.step(now, ticket);
            }
            if self.leases.get(&inode).is_some_and(Lease::is_empty) {
                self.leases.remove(&inode);
            }
        }
    }

    /// Grants a request, or asks for what it lacks.
    fn step(&mut self, now: Instant, ticket: u64) {
        let Some(waiting) = self.waiting.get(&ticket).cloned() else {
            return;
        };
        let mut is_ready = true;
        for &(inode, mode) in &waiting.wants {
            let lease = self.leases.get(&inode).expect("its queue has the request");
            if !lease.is_first(ticket, mode) {
                is_ready = false;
                continue;
            }
            let others = lease
                .holders
                .iter()
                .filter(|(other, _)| **other != waiting.client);
            let others = others.filter(|(_, held)| !mode.bears(held.mode));
            let others: Vec<Client> = others.map(|(other, _)| *other).collect();
            let written = lease.written.filter(|written| written.client != waiting.client);
            is_ready &= others.is_empty() && written.is_none();
            for other in others {
                self.recall(now, (other, inode), mode == Mode::Shared);
            }
            if let Some(written) = written {
                self.want_digest(written.client, written.position);
            }
        }
        if is_ready {
            self.grant(now, ticket, &waiting);
        }
    }

    fn grant(&mut self, now: Instant, ticket: u64, waiting: &Waiting) {
        let client = waiting.client;
        let (mut leases, mut fresh) = (Vec::new(), Vec::new());
        self.grants += 1;
        let grant = self.grants;
        for &(inode, mode) in &waiting.wants {
            let is_own = self.owner(inode) == Some(client);
            let lease = self.leases.get_mut(&inode).expect("its queue has the request");
            lease.leave(ticket);
            self.work.insert(inode);
            let held = lease.holders.get_mut(&client);
            if let Some(held) = held.filter(|held| held.mode >= mode) {
                held.grant = grant;
                leases.push((inode, held.mode));
                continue;
            }
            leases.push((inode, if is_own { Mode::Exclusive } else { mode }));
            if is_own {
                continue;
            }
            let held = Held {
                mode,
                grant,
                since: now,
                recall: Recall::No,
                rights: None,
            };
            lease.holders.insert(client, held);
            if mode == Mode::Exclusive {
                fresh.push(inode);
            }
            if let Some(origin) = self.origins.get(&inode).copied() {
                self.changed(origin, inode);
            }
            let process = self.process(client);
            process.inodes.insert(inode);
            process.changed.insert(inode);
        }
        self.waiting.remove(&ticket);
        self.process(client).requests.remove(&ticket);
        self.outputs.push_back(Output::Granted {
            client,
            request: waiting.request,
            grant,
            leases,
            fresh,
        });
    }

    /// A holder is to give a lease back: as soon as it has had it for a while.
    fn recall(&mut self, now: Instant, (client, inode): (Client, u64), may_share: bool) {
        if !self.is_open(client) {
            return;
        }
        let (hold, answer) = (self.options.hold, self.options.answer);
        let lease = self.leases.get_mut(&inode).expect("it has a holder");
        let held = lease.holders.get_mut(&client).expect("it holds the lease");
        let due = held.since + hold;
        if now < due {
            held.recall = Recall::Due(due);
            self.timers.insert((due, inode, client));
            return;
        }
        let (until, put_off) = match held.recall {
            Recall::Asked { may_share: false, .. } => return,
            Recall::Asked { may_share: true, .. } if may_share => return,
            // A reader was waiting, and now a writer is, too.
            Recall::Asked { until, put_off, .. } => (until, put_off),
            Recall::No | Recall::Due(_) => (now + answer, 0),
        };
        held.recall = Recall::Asked {
            may_share,
            until,
            put_off,
        };
        self.timers.insert((until, inode, client));
        self.outputs.push_back(Output::Revoke {
            client,
            inode,
            may_share,
        });
        if self.options.own != Some(client) {
            self.note_hand(now, inode);
        }
    }

    /// Before [`tick`](Machine::tick), from a driver that is late itself: processes that it has not told that they are asked, or not heard since, get their
    /// time anew. That is so [`PUT_OFF_MAX`] times, as a process may see to it that the driver is late.
    pub fn put_off(&mut self, now: Instant, is_late: impl Fn(Client) -> bool) {
        let due = self.timers.iter().take_while(|(at, _, _)| *at <= now);
        let due: Vec<(u64, Client)> = due.map(|(_, inode, client)| (*inode, *client)).collect();
        for (inode, client) in due {
            let lease = self.leases.get_mut(&inode);
            let held = lease.and_then(|lease| lease.holders.get_mut(&client));
            if let Some(Recall::Asked { until, put_off, .. }) = held.map(|held| &mut held.recall)
                && *until <= now
                && *put_off < PUT_OFF_MAX
                && is_late(client)
            {
                (*until, *put_off) = (now + self.options.answer, *put_off + 1);
                self.timers.insert((*until, inode, client));
            }
        }
    }

    fn want_digest(&mut self, client: Client, position: u64) {
        let process = self.process(client);
        if !process.is_closing && process.asked < position {
            process.asked = position;
            self.outputs.push_back(Output::Digest(client, position));
        }
    }

    fn give(&mut self, client: Client, given: Given) {
        let Given {
            inode,
            keeps_shared,
            position,
            is_open,
            grant,
        } = given;
        if self.owner(inode) == Some(client) {
            self.disown(inode);
        }
        let digested = self.process(client).digested;
        let Some(lease) = self.leases.get_mut(&inode) else {
            return;
        };
        if let Some(held) = lease.holders.get_mut(&client).filter(|held| held.grant > grant) {
            // It was granted again meanwhile. The process has it, and is asked again if need be. If it was asked, its time goes on: else old
            // news would put the deadline off for ever.
            if let Recall::Asked { may_share, .. } = held.recall {
                self.outputs.push_back(Output::Revoke {
                    client,
                    inode,
                    may_share,
                });
            } else {
                held.recall = Recall::No;
                self.work.insert(inode);
            }
            return;
        }
        let Some(held) = lease.holders.remove(&client) else {
            return;
        };
        let shared = Held {
            mode: Mode::Shared,
            recall: match held.recall {
                // A reader had asked, and has it now.
                Recall::Asked { may_share: true, .. } => Recall::No,
                recall => recall,
            },
            rights: None,
            ..held
        };
        if keeps_shared {
            lease.holders.insert(client, shared);
        }
        match is_open && !keeps_shared {
            true => lease.open.insert(client),
            false => lease.open.remove(&client),
        };
        if let Some(rights) = held.rights.filter(|_| position > digested) {
            let written = Written {
                client,
                position,
                rights,
            };
            let before = lease.written.replace(written);
            let owes = &mut self.process(client).owes;
            if let Some(before) = before {
                owes.remove(&(before.position, inode));
            }
            owes.insert((position, inode));
        }
        self.changed(client, inode);
        self.work.insert(inode);
        self.drop_name(client, inode);
    }

    /// Forgets that a process has to do with an inode, if that is so.
    fn drop_name(&mut self, client: Client, inode: u64) {
        let names = self.leases.get(&inode).is_some_and(|lease| {
            let is_written = lease.written.is_some_and(|written| written.client == client);
            is_written || lease.holders.contains_key(&client) || lease.open.contains(&client)
        });
        if !names {
            self.process(client).inodes.remove(&inode);
        }
    }

    fn shut(&mut self, client: Client, inode: u64) {
        let Some(lease) = self.leases.get_mut(&inode) else {
            return;
        };
        if lease.open.remove(&client) {
            let holders: Vec<Client> = lease.holders.keys().copied().collect();
            if lease.open.is_empty() {
                self.outputs.push_back(Output::Idle(inode));
            }
            holders.into_iter().for_each(|holder| self.changed(holder, inode));
            self.work.insert(inode);
            self.drop_name(client, inode);
        }
    }

    fn digested(&mut self, client: Client, position: u64) {
        let process = self.process(client);
        process.digested = process.digested.max(position);
        let left = process.owes.split_off(&(position.saturating_add(1), 0));
        for (_, inode) in core::mem::replace(&mut process.owes, left) {
            let lease = self
                .leases
                .get_mut(&inode)
                .expect("the process has written to it");
            lease.written = None;
            self.work.insert(inode);
            self.changed(client, inode);
            self.drop_name(client, inode);
        }
    }

    fn admit(&mut self, client: Client, inode: u64, rights: Option<Rights>) {
        let Some(lease) = self.leases.get_mut(&inode) else {
            return;
        };
        let Some(held) = lease.holders.get_mut(&client) else {
            return;
        };
        match rights {
            Some(_) if held.mode == Mode::Exclusive => held.rights = rights,
            Some(_) => return,
            None => {
                lease.holders.remove(&client);
                self.work.insert(inode);
                self.drop_name(client, inode);
            }
        }
        self.changed(client, inode);
    }

    fn close(&mut self, client: Client, why: Why) {
        let process = self.process(client);
        process.is_closing = true;
        for ticket in core::mem::take(&mut process.requests) {
            let waiting = self.waiting.remove(&ticket).expect("the request waits");
            for (inode, _) in waiting.wants {
                self.leases.entry(inode).or_default().leave(ticket);
                self.work.insert(inode);
            }
        }
        self.outputs.push_back(Output::Close(client, why));
    }

    fn closed(&mut self, client: Client) {
        let Some(process) = self.processes.remove(&client) else {
            return;
        };
        self.numbers.retain(|_, (_, owner)| *owner != client);
        self.origins.retain(|_, origin| *origin != client);
        for inode in process.inodes {
            let Some(lease) = self.leases.get_mut(&inode) else {
                continue;
            };
            lease.holders.remove(&client);
            lease.written.take_if(|written| written.client == client);
            let was_open = lease.open.remove(&client);
            if was_open && lease.open.is_empty() {
                self.outputs.push_back(Output::Idle(inode));
            }
            let holders: Vec<Client> = lease.holders.keys().copied().collect();
            holders.into_iter().for_each(|holder| self.changed(holder, inode));
            self.work.insert(inode);
        }
    }

    /// The time of a holder has come: it is asked, or has not answered.
    fn time(&mut self, now: Instant, inode: u64, client: Client) {
        let is_open = self.is_open(client);
        let is_own = self.options.own == Some(client);
        let Some(lease) = self.leases.get_mut(&inode) else {
            return;
        };
        let is_of_other = |ticket: &u64| self.waiting.get(ticket).is_some_and(|it| it.client != client);
        let is_wanted = lease.queue.keys().any(is_of_other);
        let Some(held) = lease.holders.get_mut(&client).filter(|_| is_open) else {
            return;
        };
        match held.recall {
            Recall::Due(due) if due <= now => {
                held.recall = Recall::No;
                self.work.insert(inode);
            }
            Recall::Asked { until, .. } if until <= now && is_own => {}
            Recall::Asked { until, .. } if until <= now && is_wanted => self.close(client, Why::Silent),
            Recall::Asked { until, .. } if until <= now => held.recall = Recall::No,
            _ => {}
        }
    }
}

impl Machine for Leases {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Instant, input: Input) {
        let is_open = |client: &Client| self.is_open(*client);
        match input {
            Input::Join(client) => {
                let process = Process {
                    is_closing: false,
                    digested: 0,
                    asked: 0,
                    inodes: BTreeSet::new(),
                    owes: BTreeSet::new(),
                    requests: BTreeSet::new(),
                    changed: BTreeSet::new(),
                    numbers: 0..0,
                };
                self.processes.entry(client).or_insert(process);
            }
            Input::Closed(client) => {
                let is_closing = self
                    .processes
                    .get(&client)
                    .is_some_and(|process| process.is_closing);
                if is_closing {
                    self.closed(client);
                }
            }
            Input::Numbers(client, numbers) if is_open(&client) => self.own(client, numbers),
            Input::Ask {
                client,
                request,
                wants,
                has_mount,
            } if is_open(&client) => self.ask(now, (client, request), &wants, has_mount),
            Input::Admit(client, inode, rights) if is_open(&client) => {
                self.admit(client, inode, Some(rights))
            }
            Input::Deny(client, inode) if is_open(&client) => self.admit(client, inode, None),
            Input::Give(client, given) if is_open(&client) => self.give(client, given),
            Input::Shut(client, inode) if is_open(&client) => self.shut(client, inode),
            Input::Digested(client, position) if is_open(&client) => self.digested(client, position),
            Input::Short(client) if is_open(&client) => self.close(client, Why::Lied),
            Input::Gone(client) if is_open(&client) => self.close(client, Why::Gone),
            _ => {}
        }
        self.go_on(now);
    }

    fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _, _)| *at)
    }

    fn tick(&mut self, now: Instant) {
        while let Some(&(at, inode, client)) = self.timers.first().filter(|(at, _, _)| *at <= now) {
            self.timers.remove(&(at, inode, client));
            self.time(now, inode, client);
        }
        self.go_on(now);
    }
}

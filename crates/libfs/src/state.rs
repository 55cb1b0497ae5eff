//! What the threads of a process share under one lock: its log, its leases, and what it knows of the files.

use base::sync::{Ordering, fence};
use base::{Duration, Instant};
use fs::client::Client;
use fs::errno::Errno;
use fs::format::Kind;
use fs::known::Known;
use fs::lease::{Given, Mode};
use fs::log::{Ticket, Writer};
use fs::protocol::{Answer, BLOCKS_MAX, CLOSED_AT, Closed, DURABLE_AT, Digested, HEARD_AT, Request};
use os::Mapped;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::os::fd::OwnedFd;

/// Leases that a process keeps, at most: half of what the daemon gives.
const LEASES_MAX: usize = 1 << 15;
/// Leases that are given back at once then.
const LEASES_GIVEN: usize = 1 << 12;

/// Calls go to the mount for so long when the daemon says that many want a lease. It is asked anew then.
const CROWDED_FOR: Duration = Duration::from_millis(200);

/// Frames that are dropped from memory at once when the tree has them: calls wait meanwhile, some 0.2 ms.
const FRAMES_PASSED: usize = 64;

/// Files that are given back at once then, at most.
const CREATED_GIVEN: u64 = 1024;

/// A lease.
#[derive(Clone, Copy, Debug)]
struct Held {
    mode: Mode,
    /// The last grant that has it.
    grant: u64,
}

/// What was asked for.
#[derive(Clone, Debug)]
pub(crate) enum Wish {
    Leases,
    Records(u64, Kind, Range<u64>),
    Blocks(u64, Range<u64>),
    Descriptor,
}

impl Wish {
    fn inode(&self) -> Option<u64> {
        match self {
            Self::Leases | Self::Descriptor => None,
            Self::Records(inode, ..) | Self::Blocks(inode, _) => Some(*inode),
        }
    }
}

/// What has come of it.
#[derive(Debug)]
pub(crate) enum Come {
    Not,
    /// The inodes whose leases are kept until the call ends.
    Yes(Vec<u64>),
    Descriptor(OwnedFd),
    No(Errno),
}

pub(crate) struct State {
    pub calls: Client,
    pub known: Known,
    writer: Writer,
    window: Mapped,
    leases: BTreeMap<u64, Held>,
    /// Numbers of the process's own, and those of them that were given back.
    numbers: Range<u64>,
    given: BTreeSet<u64>,
    /// Leases that are kept until calls have ended, how many these are, and whether they were asked back.
    pins: BTreeMap<u64, (u32, Option<bool>)>,
    /// Where the frames end that the tree may lack.
    ends: VecDeque<(u64, Ticket)>,
    /// Frames that the tree has, and that are still in memory above it.
    passing: VecDeque<Ticket>,
    /// Of them some were refused.
    is_refused: bool,
    requests: BTreeMap<u64, (Wish, Come)>,
    /// Of which file blocks were fetched last, and the one behind them.
    fetched: (u64, u64),
    next_request: u64,
    closed: Option<Closed>,
    /// How often the daemon has told of a digest.
    pub digests: u64,
    /// Frames that were written, or begun to be.
    pub frames: u64,
    /// The daemon was told that the log fills up.
    pub is_digest_wanted: bool,
    /// Inodes that many want, and until when calls that need their leases go to the mount.
    crowded: BTreeMap<u64, Instant>,
    /// What is to be sent, in order.
    pub outbox: VecDeque<Vec<u8>>,
}

impl State {
    pub fn new(
        (calls, known): (Client, Known),
        (writer, window): (Writer, Mapped),
        numbers: Range<u64>,
    ) -> Self {
        Self {
            calls,
            known,
            writer,
            window,
            leases: BTreeMap::new(),
            numbers,
            given: BTreeSet::new(),
            pins: BTreeMap::new(),
            ends: VecDeque::new(),
            passing: VecDeque::new(),
            is_refused: false,
            requests: BTreeMap::new(),
            fetched: (0, 0),
            next_request: 1,
            closed: None,
            digests: 0,
            frames: 0,
            is_digest_wanted: false,
            crowded: BTreeMap::new(),
            outbox: VecDeque::new(),
        }
    }

    /// The parts that a call needs at once.
    pub fn parts(&mut self) -> (&mut Client, &mut Known, Sink<'_>) {
        let sink = Sink {
            writer: &mut self.writer,
            leases: &self.leases,
            numbers: &self.numbers,
            given: &self.given,
        };
        (&mut self.calls, &mut self.known, sink)
    }

    /// Whether calls can be acknowledged. The log's closing sets the word before it reads the log for the last time.
    pub fn check_open(&mut self) -> Result<(), Errno> {
        if self.window.word(CLOSED_AT).load(Ordering::Acquire) != 0 {
            self.closed.get_or_insert(Closed::Ends);
        }
        match self.closed {
            None => Ok(()),
            Some(_) => Err(Errno::Io),
        }
    }

    /// Makes all records durable.
    pub fn flush(&mut self) -> Result<(), Errno> {
        while let Some(write) = self.writer.next_write() {
            self.frames += 1;
            let began = self.window.begin();
            let mut bytes = 0;
            let stored = write.pieces().try_for_each(|(offset, piece)| {
                bytes += piece.len();
                self.window.store(offset, piece)
            });
            self.window.pace(began, bytes);
            let ticket = write.ticket();
            let result = stored.map_err(|_| base::MediaError::Io);
            self.writer.written(write, result);
            if result.is_err() {
                return Err(Errno::Io);
            }
            let end = self.writer.durable_position();
            self.ends.push_back((end, ticket));
            self.window.word(DURABLE_AT).store(end, Ordering::Release);
        }
        // What was stored is there before the word is looked at: who closes the log sets it, and then reads.
        fence(Ordering::SeqCst);
        self.check_open()
    }

    /// Whether a lease that is wanted, and that the process does not have, is one of those that many want.
    pub fn is_crowded(&mut self, wants: &[(u64, Mode)]) -> bool {
        if self.crowded.is_empty() {
            return false;
        }
        let now = os::now();
        self.crowded.retain(|_, until| now < *until);
        let lacks = |inode: &u64, mode: &Mode| self.leases.get(inode).is_none_or(|held| held.mode < *mode);
        let mut wants = wants.iter();
        wants.any(|(inode, mode)| self.crowded.contains_key(inode) && lacks(inode, mode))
    }

    /// Notes a wish: its number.
    pub fn wish(&mut self, wish: Wish) -> u64 {
        let request = self.next_request;
        self.next_request += 1;
        self.requests.insert(request, (wish, Come::Not));
        request
    }

    /// How many blocks are fetched of a file of which some are missing: more, if that goes on where the last time ended.
    pub fn blocks_to_fetch(&mut self, inode: u64, missing: &Range<u64>) -> u64 {
        let goes_on = self.fetched == (inode, missing.start);
        let count = match goes_on {
            true => BLOCKS_MAX,
            false => (missing.end - missing.start).min(BLOCKS_MAX),
        };
        self.fetched = (inode, missing.start + count);
        count
    }

    pub fn say(&mut self, request: &Request) {
        self.outbox.push_back(request.emit());
    }

    /// What has come of a wish. It is over then.
    pub fn come(&mut self, request: u64) -> Option<Come> {
        match self.requests.get(&request) {
            Some((_, Come::Not)) if self.closed.is_none() => None,
            _ => match self.requests.remove(&request) {
                Some((_, Come::Not)) | None => Some(Come::No(Errno::Io)),
                Some((_, come)) => Some(come),
            },
        }
    }

    /// A call has ended that kept leases, or asks anew.
    pub fn unpin(&mut self, inodes: &mut Vec<u64>) {
        for inode in inodes.drain(..) {
            let Some((count, revoked)) = self.pins.get_mut(&inode) else {
                continue;
            };
            *count -= 1;
            if *count > 0 {
                continue;
            }
            let revoked = *revoked;
            self.pins.remove(&inode);
            if let Some(may_share) = revoked {
                self.give(inode, may_share);
            }
        }
    }

    /// The daemon says something, perhaps with a descriptor.
    pub fn hear(&mut self, answer: Answer, descriptor: Option<OwnedFd>) {
        match answer {
            Answer::Descriptor { request } => {
                if let Some((Wish::Descriptor, come)) = self.requests.get_mut(&request) {
                    *come = descriptor.map_or(Come::No(Errno::Io), Come::Descriptor);
                }
            }
            Answer::Welcome(_) => {}
            Answer::Granted {
                request,
                grant,
                leases,
                inodes,
            } => self.granted((request, grant), &leases, &inodes),
            Answer::Refused { request, errno } => {
                if let Some((_, come)) = self.requests.get_mut(&request) {
                    *come = Come::No(errno_of(errno));
                }
            }
            Answer::Crowded { request, inode } => {
                self.crowded.insert(inode, os::now() + CROWDED_FOR);
                self.give_created();
                if let Some((_, come)) = self.requests.get_mut(&request) {
                    *come = Come::No(Errno::CrossDevice);
                }
            }
            Answer::Revoke { inode, may_share } => match self.pins.get_mut(&inode) {
                Some((_, revoked)) => *revoked = Some(may_share && revoked.unwrap_or(true)),
                None => self.give(inode, may_share),
            },
            Answer::Records {
                request,
                until,
                records,
            } => {
                if let Some((Wish::Records(inode, kind, numbers), come)) = self.requests.get_mut(&request) {
                    let values = records.iter().map(|(number, value)| (*number, &value[..]));
                    self.known.tell(*inode, *kind, numbers.start..until, values);
                    *come = Come::Yes(Vec::new());
                }
            }
            Answer::Blocks { request, data } => {
                if let Some((Wish::Blocks(inode, blocks), come)) = self.requests.get_mut(&request) {
                    self.known.tell_blocks(*inode, blocks.start, &data);
                    *come = Come::Yes(Vec::new());
                }
            }
            Answer::Digested(digested) => self.digested(&digested),
            Answer::Closed(why) => {
                self.closed.get_or_insert(why);
            }
        }
    }

    /// The daemon is gone, or says what it should not.
    pub fn lost(&mut self) {
        self.closed.get_or_insert(Closed::Ends);
    }

    fn granted(&mut self, (request, grant): (u64, u64), leases: &[(u64, Mode)], inodes: &[(u64, Vec<u8>)]) {
        for (inode, mode) in leases {
            self.pins.entry(*inode).or_insert((0, None)).0 += 1;
            if self.known.is_own(*inode) {
                continue;
            }
            let before = self.leases.insert(*inode, Held { mode: *mode, grant });
            self.known.lease(*inode);
            // What it has been told before it has kept up to date.
            let told = inodes
                .iter()
                .filter(|(told, _)| told == inode && before.is_none());
            for (_, value) in told {
                let all = [(0, &value[..])].into_iter();
                self.known.tell(*inode, Kind::Inode, 0..u64::MAX, all);
            }
        }
        self.give_some();
        let mut inodes: Vec<u64> = leases.iter().map(|(inode, _)| *inode).collect();
        match self.requests.get_mut(&request) {
            Some((_, come)) => *come = Come::Yes(inodes),
            None => self.unpin(&mut inodes),
        }
    }

    /// Gives some leases back, if there are many. Those that are used are asked for again.
    fn give_some(&mut self) {
        if self.leases.len() <= LEASES_MAX {
            return;
        }
        let is_free = |inode: &&u64| !self.pins.contains_key(inode) && !self.calls.holds(**inode);
        let inodes: Vec<u64> = self
            .leases
            .keys()
            .filter(is_free)
            .take(LEASES_GIVEN)
            .copied()
            .collect();
        inodes.into_iter().for_each(|inode| self.give(inode, false));
    }

    /// Calls go to the mount now. It gets the files that the process has made last and has not open, so that it need not ask for each.
    fn give_created(&mut self) {
        let next = self.numbers.end - self.calls.inodes_left();
        let first = self.numbers.start.max(next.saturating_sub(CREATED_GIVEN));
        let is_free = |inode: &u64| {
            self.known.is_own(*inode) && !self.pins.contains_key(inode) && !self.calls.holds(*inode)
        };
        let inodes: Vec<u64> = (first..next).filter(is_free).collect();
        inodes.into_iter().for_each(|inode| self.give(inode, false));
    }

    /// Gives a lease back. All that was logged under it is durable: calls make it so before they let the lock go.
    fn give(&mut self, inode: u64, may_share: bool) {
        let is_own = self.known.is_own(inode);
        let held = match self.leases.get(&inode) {
            Some(held) => *held,
            None if is_own => Held {
                mode: Mode::Exclusive,
                grant: 0,
            },
            // It was given back, and the question has crossed that.
            None => return,
        };
        if is_own {
            self.given.insert(inode);
        }
        match may_share {
            true => {
                self.known.disown(inode);
                let mode = Mode::Shared;
                self.leases.insert(inode, Held { mode, ..held });
            }
            false => {
                self.leases.remove(&inode);
                self.known.give(inode);
                self.calls.let_go(inode);
                // What is under way was asked for under the lease.
                let is_of = |wish: &Wish| wish.inode() == Some(inode);
                for (wish, come) in self.requests.values_mut().filter(|(wish, _)| is_of(wish)) {
                    *wish = Wish::Leases;
                    *come = Come::Yes(Vec::new());
                }
            }
        }
        let position = self.writer.durable_position();
        self.say(&Request::Give(Given {
            inode,
            keeps_shared: may_share,
            position,
            is_open: self.calls.holds(inode),
            grant: held.grant,
        }));
    }

    /// Gives a lease back of the process's own accord, unless a call uses it: then it is asked for soon.
    pub fn release(&mut self, inode: u64) {
        if !self.pins.contains_key(&inode) {
            self.give(inode, false);
        }
    }

    /// Nobody has an inode open any more: the daemon is told, if it was told that somebody has.
    pub fn shut(&mut self, inode: u64) {
        if !self.known.is_leased(inode) && !self.calls.holds(inode) {
            self.say(&Request::Shut(inode));
        }
    }

    fn digested(&mut self, digested: &Digested) {
        let passed = self.ends.partition_point(|(end, _)| *end <= digested.tree);
        self.passing
            .extend(self.ends.drain(..passed).map(|(_, ticket)| ticket));
        if let Some(ticket) = self.passing.back() {
            self.calls.freed_to(*ticket);
        }
        self.is_refused |= digested.refused > 0;
        if digested.both <= self.writer.durable_position() {
            self.writer.consumed(digested.both);
        }
        self.calls.set_budget(digested.budget);
        // What was promised before is durable: calls make it so before they let the lock go.
        let heard = self.window.word(HEARD_AT);
        heard.store(digested.budget.generation, Ordering::Release);
        self.known.set_room(digested.blocks.0, digested.blocks.1);
        self.digests += 1;
        self.is_digest_wanted = false;
    }

    /// Drops some of what the tree has from memory above it: true if there was any. After a digest this is done until there is none, and nothing else is heard before.
    pub fn pass_some(&mut self) -> bool {
        let count = self.passing.len().min(FRAMES_PASSED);
        if let Some(ticket) = self.passing.drain(..count).next_back() {
            self.calls.digested_to(ticket, &mut self.known);
            return true;
        }
        if std::mem::take(&mut self.is_refused) {
            self.known.forget();
        }
        false
    }

    /// Whether it is time for a digest: the log fills up (Strata §3.3), or the room that was promised to this process.
    pub fn is_filling(&self, ring_bytes: u64) -> bool {
        self.writer.free() * 10 < ring_bytes * 7 || self.calls.is_half_promised()
    }
}

/// Where the records of a call go.
pub(crate) struct Sink<'s> {
    writer: &'s mut Writer,
    leases: &'s BTreeMap<u64, Held>,
    numbers: &'s Range<u64>,
    given: &'s BTreeSet<u64>,
}

impl Sink<'_> {
    pub fn add(&mut self, ops: &[fs::op::Op<'_>]) -> Result<Ticket, fs::log::AddError> {
        self.writer.add(ops)
    }

    /// Whether the process may change an inode.
    pub fn may_change(&self, inode: u64) -> bool {
        let held = self
            .leases
            .get(&inode)
            .is_some_and(|held| held.mode == Mode::Exclusive);
        held || (self.numbers.contains(&inode) && !self.given.contains(&inode))
    }
}

fn errno_of(code: i32) -> Errno {
    let all = [
        Errno::NoEntry,
        Errno::Access,
        Errno::Busy,
        Errno::Stale,
        Errno::NoSpace,
        Errno::NotPermitted,
        Errno::NotSupported,
        Errno::Invalid,
    ];
    all.into_iter()
        .find(|errno| errno.code() == code)
        .unwrap_or(Errno::Io)
}

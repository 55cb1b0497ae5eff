//! What processes say, and what they are told: under the lock of the state. Nothing that they say is taken on trust.

use super::failure::Failure;
use super::sharing::{IDLE_MAX, Link, Peer, Session, Sharing, permitted, rights};
use super::state::State;
use crate::media::Disks;
use crate::window::Window;
use base::Machine;
use fs::client::Budget;
use fs::client::access::{APPEND_ONLY, EXECUTE, IMMUTABLE, READ, WRITE};
use fs::errno::Errno;
use fs::format::{Key, Kind, ROOT_INODE};
use fs::grants::Rights;
use fs::inode::Inode;
use fs::lease::{Client, Input, MOVES, Mode, Output, Why};
use fs::names::{Attribute, Dirent};
use fs::overlay::Below;
use fs::protocol::{Answer, Closed, Digested, RECORDS_BYTES_MAX, Request};
use fs::tree::{Tree, View};
use os::sync::Arc;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

/// Inodes that a process may have come to, at most: twice as many as it may have leases of. It comes to the others again by their names.
const SEEN_MAX: usize = 1 << 17;
/// Answers that a process may have to wait for, at most: far more than it has requests, with a question of each other process for each of these.
/// A process that goes on asking meanwhile is closed.
const WAITING_MAX: usize = 1 << 13;

/// Names that a process is told beside the one that it asks for, at most: about as many as a leaf of the tree has.
const NAMES_MORE: usize = 64;

/// Numbers, and values.
type Records = Vec<(u64, Vec<u8>)>;

/// Up to where all records are told, and the records.
type Told = (u64, Records);

/// A log: its number, what the older and the newer root have of it, operations that were refused, and the room that its process is told.
type OfLog = (u64, [u64; 2], u64, Budget);

/// What is to be read for a process without the lock.
pub(crate) struct Reading {
    pub request: u64,
    pub inode: u64,
    pub blocks: Range<u64>,
}

/// What a process comes with.
pub(crate) struct Joining {
    pub log: u64,
    pub peer: Peer,
    pub link: Arc<dyn Link>,
    pub window: Window,
    pub ring_bytes: u64,
    pub numbers: Range<u64>,
}

impl State {
    /// A process has a log that both roots know.
    pub fn join(&mut self, disks: &Disks, joining: Joining, budget: Budget) {
        let client = Client(joining.log);
        let session = Session {
            peer: joining.peer,
            link: joining.link,
            window: joining.window,
            ring_bytes: joining.ring_bytes,
            numbers: joining.numbers.clone(),
            seen: BTreeMap::from([(ROOT_INODE, 0)]),
            waiting: VecDeque::new(),
            told: 0,
            tree: 0,
            both: 0,
            quiet: (0, Duration::ZERO),
            closing: None,
        };
        self.sharing.sessions.insert(joining.log, session);
        self.news(disks, Input::Join(client));
        self.news(disks, Input::Numbers(client, joining.numbers));
        self.tell_digested(joining.log, (0, 0, 0), budget);
        if self.sharing.is_ending {
            // The end began while its log was made.
            self.news(disks, Input::Gone(client));
        }
    }

    fn tell_digested(&mut self, log: u64, (tree, both, refused): (u64, u64, u64), budget: Budget) {
        let blocks = (self.blocks, self.free.iter().sum());
        if let Some(session) = self.sharing.sessions.get_mut(&log) {
            (session.tree, session.both) = (tree, both);
            let digested = Digested {
                tree,
                both,
                refused,
                budget,
                blocks,
            };
            session.link.send(Answer::Digested(digested).emit());
        }
    }

    /// A root was written: what both have of the own log; what it and the one before have of each other log, and operations that were refused.
    pub fn committed(&mut self, disks: &Disks, (own_both, logs): (u64, &[OfLog])) {
        if let Some(own) = self.sharing.own.as_ref().filter(|own| own.is_shared) {
            let client = own.client;
            self.news(disks, Input::Digested(client, own_both));
        }
        for (log, [both, tree], refused, budget) in logs {
            self.tell_digested(*log, (*tree, *both, *refused), *budget);
            self.news(disks, Input::Digested(Client(*log), *both));
        }
    }

    /// News for the machine, and what follows.
    pub fn news(&mut self, disks: &Disks, input: Input) {
        self.sharing.leases.handle(os::now(), input);
        self.drain(disks);
    }

    /// Time has passed.
    pub fn tick(&mut self, disks: &Disks) {
        let (now, sessions) = (os::now(), &self.sharing.sessions);
        // A process that was not told what it is asked for, or that has answered meanwhile, is not silent.
        self.sharing.leases.put_off(now, |client| {
            let session = sessions.get(&client.0);
            session.is_some_and(|session| !session.waiting.is_empty() || session.link.is_unheard())
        });
        self.sharing.leases.tick(now);
        self.let_through();
        self.drain(disks);
    }

    pub fn drain(&mut self, disks: &Disks) {
        loop {
            while let Some(output) = self.sharing.leases.poll() {
                self.take(output);
            }
            let logs: Vec<u64> = self.sharing.sessions.keys().copied().collect();
            let mut went_on = false;
            for log in logs {
                went_on |= self.go_on(disks, log);
            }
            if !went_on {
                return;
            }
        }
    }

    fn take(&mut self, output: Output) {
        let sharing = &mut self.sharing;
        let own = sharing.own.as_ref().map(|own| own.client);
        match output {
            Output::Granted {
                client,
                request,
                fresh,
                ..
            } if own == Some(client) => {
                self.admit_own(&fresh);
                if let Some(own) = &mut self.sharing.own {
                    own.granted(request);
                }
            }
            Output::Revoke {
                client,
                inode,
                may_share,
            } if own == Some(client) => self.recall(inode, may_share),
            Output::Digest(..) => (sharing.wants_round, sharing.wants_both) = (true, true),
            Output::Idle(inode) => {
                // A process with a lease may have it open, and deletes it when it has not.
                let mut logs = sharing.sessions.keys();
                let has = |log: &u64| sharing.leases.mode(Client(*log), inode).is_some();
                if !logs.any(has) && !self.client.holds(inode) {
                    sharing.idle.insert(inode);
                    // Otherwise with the next round, or when somebody looks.
                    sharing.wants_round |= sharing.idle.len() >= IDLE_MAX;
                }
            }
            Output::Close(client, why) => {
                (sharing.wants_round, sharing.wants_both) = (true, true);
                let Some(session) = sharing.sessions.get_mut(&client.0) else {
                    return;
                };
                session.closing = Some(why);
                // First the word, then the last look at the log: so what is acknowledged is read.
                session.window.close();
                let closed = match why {
                    Why::Gone => Closed::Ends,
                    Why::Silent => Closed::Silent,
                    Why::Lied => Closed::Lied,
                };
                session.link.send(Answer::Closed(closed).emit());
                session.link.cut();
            }
            Output::Granted { client, .. }
            | Output::Revoke { client, .. }
            | Output::Refused { client, .. }
            | Output::Crowded { client, .. } => {
                if let Some(session) = sharing.sessions.get_mut(&client.0) {
                    session.waiting.push_back(output);
                }
            }
        }
    }

    /// Tells a process what is next. True if the machine may have more then.
    fn go_on(&mut self, disks: &Disks, log: u64) -> bool {
        let mut went_on = false;
        while let Some(session) = self.sharing.sessions.get_mut(&log) {
            let is_early = matches!(&session.waiting.front(), Some(Output::Granted { fresh, .. }) if !fresh.is_empty())
                && session.both < session.told;
            if is_early {
                // What its own log has may be another permission.
                (self.sharing.wants_round, self.sharing.wants_both) = (true, true);
                return went_on;
            }
            match session.waiting.pop_front() {
                Some(Output::Granted {
                    request,
                    grant,
                    leases,
                    fresh,
                    ..
                }) => {
                    let (leases, inodes) = self.admit(disks, log, leases, &fresh);
                    self.send(
                        log,
                        &Answer::Granted {
                            request,
                            grant,
                            leases,
                            inodes,
                        },
                    );
                    went_on = true;
                }
                Some(Output::Revoke { inode, may_share, .. }) => {
                    self.send(log, &Answer::Revoke { inode, may_share });
                }
                Some(Output::Refused { request, .. }) => {
                    self.send(log, &Answer::refused(request, Errno::Busy));
                }
                Some(Output::Crowded { request, inode, .. }) => {
                    self.send(log, &Answer::Crowded { request, inode });
                }
                _ => return went_on,
            }
        }
        went_on
    }

    fn send(&self, log: u64, answer: &Answer) {
        if let Some(session) = self.sharing.sessions.get(&log) {
            session.link.send(answer.emit());
        }
    }

    /// Looks at permissions of what was granted. What is left of the leases, and their inodes.
    fn admit(
        &mut self,
        disks: &Disks,
        log: u64,
        mut leases: Vec<(u64, Mode)>,
        fresh: &[u64],
    ) -> (Vec<(u64, Mode)>, Records) {
        let mut inodes = Vec::new();
        leases.retain(|(inode, _)| {
            let found = match *inode {
                MOVES => Some(Rights::default()),
                inode => self.see(disks, log, inode).map(|(found, rights)| {
                    inodes.push((inode, found.emit().to_vec()));
                    rights
                }),
            };
            if !fresh.contains(inode) {
                return true;
            }
            let input = match found {
                Some(rights) => Input::Admit(Client(log), *inode, rights),
                None => Input::Deny(Client(log), *inode),
            };
            self.sharing.leases.handle(os::now(), input);
            found.is_some()
        });
        (leases, inodes)
    }

    /// What a process may do with an inode that it has come to: now, or when it first asked.
    fn see(&mut self, disks: &Disks, log: u64, inode: u64) -> Option<(Inode, Rights)> {
        let Self { sharing, reader, .. } = self;
        let Sharing { calls, sessions, .. } = sharing;
        let session = sessions.get_mut(&log)?;
        let caller = session.peer.caller();
        let mut below = below(reader, disks);
        let (found, mask, now) = permitted(calls, &mut below, &caller, inode).ok()??;
        let own = if session.numbers.contains(&inode) {
            READ | WRITE
        } else {
            0
        };
        let seen = session.seen.entry(inode).or_default();
        *seen |= mask | own;
        let is_free = caller.is_root() || found.flags & (IMMUTABLE | APPEND_ONLY) == 0;
        let ever = rights(*seen, now.owner, is_free);
        Some((found, ever))
    }

    /// Whether a process is heard: it is not closed, and has not too much to be told.
    fn is_heard(&mut self, disks: &Disks, log: u64) -> bool {
        let Some(session) = self.sharing.sessions.get(&log) else {
            return false;
        };
        let (is_open, waiting) = (session.closing.is_none(), session.waiting.len());
        if is_open && waiting > WAITING_MAX {
            self.news(disks, Input::Short(Client(log)));
            return false;
        }
        is_open
    }

    /// What a process says. What is left to be read for it without the lock.
    pub fn hear(&mut self, disks: &Disks, log: u64, request: Request) -> Option<Reading> {
        let client = Client(log);
        if !self.is_heard(disks, log) {
            return None;
        }
        let session = self.sharing.sessions.get_mut(&log)?;
        match request {
            Request::Hello => self.news(disks, Input::Short(client)),
            Request::Ask {
                request,
                wants,
                has_mount,
            } => self.ask(disks, log, (request, wants, has_mount)),
            Request::Give(given) => {
                let end = session.both.saturating_add(session.ring_bytes);
                if given.position > end {
                    self.news(disks, Input::Short(client));
                    return None;
                }
                session.told = session.told.max(given.position);
                self.news(disks, Input::Give(client, given));
            }
            Request::Shut(inode) => self.news(disks, Input::Shut(client, inode)),
            Request::Digest => self.sharing.wants_round = true,
            // What has the mount answers before.
            Request::Descriptor { request, .. } => {
                self.send(log, &Answer::refused(request, Errno::NotSupported));
            }
            Request::Records {
                request,
                inode,
                kind,
                numbers,
            } => {
                let told = self.records(disks, log, (inode, kind, numbers));
                self.send(
                    log,
                    &told.map_or_else(
                        |errno| Answer::refused(request, errno),
                        |(until, records)| Answer::Records {
                            request,
                            until,
                            records,
                        },
                    ),
                );
            }
            Request::Blocks {
                request,
                inode,
                first,
                count,
            } => {
                let blocks = first..first + count;
                return match self.may_read(disks, log, inode) {
                    Ok(()) => Some(Reading {
                        request,
                        inode,
                        blocks,
                    }),
                    Err(errno) => {
                        self.send(log, &Answer::refused(request, errno));
                        None
                    }
                };
            }
        }
        None
    }

    /// Whether a process may open an inode so: it has come to it, and might do that when it had a lease.
    pub fn may_open(&self, log: u64, inode: u64, mask: u32) -> Result<(), Errno> {
        let session = self.sharing.sessions.get(&log).ok_or(Errno::Stale)?;
        if session.closing.is_some() || !session.knows(inode) {
            return Err(Errno::Stale);
        }
        let own = match session.numbers.contains(&inode) {
            true => READ | WRITE,
            false => 0,
        };
        match mask & !(own | session.seen.get(&inode).copied().unwrap_or(0)) {
            0 => Ok(()),
            _ => Err(Errno::Access),
        }
    }

    fn ask(&mut self, disks: &Disks, log: u64, (request, wants, has_mount): (u64, Vec<(u64, Mode)>, bool)) {
        let client = Client(log);
        let session = self.sharing.sessions.get(&log);
        let knows = |inode: u64| inode == MOVES || session.is_some_and(|session| session.knows(inode));
        match wants.iter().all(|(inode, _)| knows(*inode)) {
            true => self.news(
                disks,
                Input::Ask {
                    client,
                    request,
                    wants,
                    has_mount,
                },
            ),
            false => self.send(log, &Answer::refused(request, Errno::Stale)),
        }
    }

    /// What a process may do with an inode of which it has a lease.
    fn leased(&mut self, disks: &Disks, log: u64, inode: u64) -> Result<(Inode, u32), Errno> {
        let has = self.sharing.leases.mode(Client(log), inode).is_some();
        let session = self.sharing.sessions.get(&log).ok_or(Errno::Stale)?;
        if !has || inode == MOVES || !session.knows(inode) {
            return Err(Errno::Stale);
        }
        let (found, _) = self.see(disks, log, inode).ok_or(Errno::NoEntry)?;
        let session = self.sharing.sessions.get(&log).ok_or(Errno::Stale)?;
        Ok((found, session.seen.get(&inode).copied().unwrap_or_default()))
    }

    fn may_read(&mut self, disks: &Disks, log: u64, inode: u64) -> Result<(), Errno> {
        let (found, mask) = self.leased(disks, log, inode)?;
        let is_link = found.mode & fs::inode::TYPE_MASK == fs::inode::TYPE_LINK;
        match is_link || mask & READ != 0 {
            true => Ok(()),
            false => Err(Errno::Access),
        }
    }

    /// Records of an inode that a process may know, and up to where they are all.
    fn records(
        &mut self,
        disks: &Disks,
        log: u64,
        (inode, kind, numbers): (u64, Kind, Range<u64>),
    ) -> Result<Told, Errno> {
        let (found, mask) = match self.leased(disks, log, inode) {
            // It is not there: so there are no records of it.
            Err(Errno::NoEntry) => return Ok((numbers.end, Vec::new())),
            result => result?,
        };
        let is_one = numbers.end - numbers.start == 1;
        let needs = match kind {
            Kind::Entry if is_one => EXECUTE,
            Kind::Entry => READ,
            Kind::Extent if mask & WRITE != 0 => WRITE,
            Kind::Extent => READ,
            _ => 0,
        };
        if mask & needs != needs {
            return Err(Errno::Access);
        }
        if kind == Kind::Inode && found.is_directory() && mask & EXECUTE != 0 {
            self.come_to(log, [found.parent])?;
        }
        let is_root = self
            .sharing
            .sessions
            .get(&log)
            .is_some_and(|session| session.peer.uid == 0);
        let (mut records, mut bytes) = (Vec::new(), 0);
        // Whoever may list a directory is told some names more: it asks for each that it makes, and a directory with few is known by one question.
        let tells_more = kind == Kind::Entry && is_one && mask & READ != 0;
        let end = if tells_more { u64::MAX } else { numbers.end };
        let keys = Key::new(inode, kind, numbers.start)..=Key::new(inode, kind, end.saturating_sub(1));
        let mut entries = self.reader.range(View::Pending, keys);
        while let Some((key, value)) = entries.next(&mut self.reader, disks).map_err(|_| Errno::Io)? {
            let is_more = tells_more && key.number >= numbers.end && records.len() >= NAMES_MORE;
            if is_more || bytes + value.len() + 16 > RECORDS_BYTES_MAX {
                return Ok((key.number, records));
            }
            let value = match kind {
                Kind::Attribute => known_attributes(&value, (mask, is_root)),
                _ => value.to_vec(),
            };
            if kind == Kind::Entry && mask & EXECUTE != 0 {
                let all = Dirent::parse_all(&value).map_err(|_| Errno::Io)?;
                let inodes: Vec<u64> = all.iter().map(|entry| entry.inode).collect();
                self.come_to(log, inodes)?;
            }
            bytes += value.len() + 16;
            records.push((key.number, value));
        }
        Ok((end, records))
    }

    /// A process has come to inodes.
    fn come_to(&mut self, log: u64, inodes: impl IntoIterator<Item = u64>) -> Result<(), Errno> {
        let Sharing { sessions, leases, .. } = &mut self.sharing;
        let session = sessions.get_mut(&log).ok_or(Errno::Stale)?;
        if session.seen.len() >= SEEN_MAX {
            // It comes to the others again, by their names.
            let has = |inode: u64| inode == ROOT_INODE || leases.mode(Client(log), inode).is_some();
            session.seen.retain(|inode, _| has(*inode));
        }
        for inode in inodes.into_iter().filter(|inode| *inode != 0) {
            session.seen.entry(inode).or_default();
        }
        Ok(())
    }

    /// Where the blocks are that a process wants; none if it has lost the lease.
    pub fn find_blocks(&mut self, disks: &Disks, log: u64, reading: &Reading) -> Result<Content, Errno> {
        self.may_read(disks, log, reading.inode)?;
        let bytes = fs::format::BLOCK_BYTES as u64;
        let Self { sharing, reader, .. } = self;
        let mut below = below(reader, disks);
        let overlay = sharing.calls.overlay();
        let (inode, blocks) = (reading.inode, &reading.blocks);
        let length = ((blocks.end - blocks.start) * bytes) as usize;
        let pieces = match blocks.start.checked_mul(bytes) {
            Some(offset) => overlay.pieces(&mut below, (inode, offset), length),
            None => Err(Errno::Invalid.into()),
        };
        match pieces {
            Ok(pieces) => Ok(Content::Pieces(pieces, length)),
            Err(_) => {
                let target = overlay.target(&mut below, inode).map_err(|_| Errno::Io)?;
                let mut data = target;
                data.resize(length, 0);
                Ok(Content::Whole(data))
            }
        }
    }

    /// Sends what was read for a process.
    pub fn tell_blocks(&mut self, log: u64, request: u64, data: Result<Vec<u8>, Errno>) {
        let answer = match data {
            Ok(data) => Answer::Blocks { request, data },
            Err(errno) => Answer::refused(request, errno),
        };
        self.send(log, &answer);
    }

    /// A log that was closed is out of both roots.
    pub fn forget_log(&mut self, disks: &Disks, log: u64) {
        self.sharing.sessions.remove(&log);
        self.news(disks, Input::Closed(Client(log)));
        if self.sharing.sessions.is_empty() {
            self.end_sharing();
        }
    }

    /// Closes all logs. False if there are none.
    pub fn close_logs(&mut self, disks: &Disks) -> bool {
        self.sharing.is_ending = true;
        let logs: Vec<u64> = self.sharing.sessions.keys().copied().collect();
        for log in &logs {
            self.news(disks, Input::Gone(Client(*log)));
        }
        !logs.is_empty()
    }

    /// Nothing changes any more: processes are told, and their logs stay for the next opening.
    pub fn abandon_logs(&mut self) {
        self.sharing.is_ending = true;
        for session in self.sharing.sessions.values() {
            session.window.close();
            session.link.send(Answer::Closed(Closed::Unable).emit());
            session.link.cut();
        }
    }

    /// Whether new processes may come.
    pub fn may_join(&self) -> Result<(), Closed> {
        match (&self.failure, self.sharing.has_room()) {
            (Some(Failure::Log | Failure::Digest | Failure::Read), _) => Err(Closed::Unable),
            (_, false) => Err(Closed::Full),
            (_, true) => Ok(()),
        }
    }
}

/// What a process reads.
pub(crate) enum Content {
    Pieces(fs::pieces::Pieces, usize),
    Whole(Vec<u8>),
}

fn below<'b>(reader: &'b mut Tree, disks: &'b Disks) -> Below<'b> {
    Below::new(reader, disks, View::Pending)
}

/// Attributes of a value that a process may know.
fn known_attributes(value: &[u8], (mask, is_root): (u32, bool)) -> Vec<u8> {
    let mut known = Vec::new();
    for attribute in Attribute::parse_all(value).unwrap_or_default() {
        let is_known = match attribute.name.split(|byte| *byte == b'.').next() {
            Some(b"user") => is_root || mask & READ != 0,
            Some(b"trusted") => is_root,
            _ => true,
        };
        if is_known {
            attribute.emit(&mut known);
        }
    }
    known
}

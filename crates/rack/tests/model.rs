//! Hermes, explored exhaustively: two replicas, one page, every order of delivery.
//!
//! Breadth-first over all states that two writes (each at either replica), one lost message, and one crash with restart
//! of either replica can lead to. A crash loses what is not durable, and either all messages on their way to the
//! replica or none. Timeouts happen when nothing is under way, as messages are faster than timers; in explorations of
//! their own, one strikes early. A message that is under way is not sent twice; doubled messages are the business of
//! `replication.rs`.
//!
//! Checked in every state: a serving replica at which the page is decided returns no version older than a completed
//! write or an earlier read. From every state the replicas must be able to come to rest, and at rest both serve, agree,
//! and have nothing undecided.

use crate::explore;
use crate::explore::{Memory, PAGE, explore};
use base::{Addr, Duration, Instant, NodeId, Version, VssdId};
use rack::cache::Store;
use rack::membership::{Incarnation, Member, Membership};
use rack::replica::{Effect, REPLAY_AFTER, RESEND_AFTER, Readiness, Replica};
use std::fmt::Write;
use wire::rack::{Code, Header, Op, Packet, flags};

const WRITES_MAX: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// A client's write, coordinated by this replica.
    Write(usize),
    /// The message at this place arrives.
    Deliver(usize),
    /// It is lost.
    Lose(usize),
    /// The replica crashes and starts again; what was on its way to it is lost or not.
    Crash { replica: usize, deaf: bool },
    /// Time passes at both.
    Pass(Duration),
}

/// Possible events, and how often.
#[derive(Clone, Copy, Debug)]
struct Budget {
    writes: usize,
    losses: u32,
    crashes: u32,
    /// Timeouts that strike while messages are under way.
    early: u32,
    /// Writes are durable before they are acknowledged.
    durable: bool,
}

struct Server {
    replica: Replica,
    store: Memory,
    boot: u32,
}

struct World {
    now: Instant,
    budget: Budget,
    servers: [Server; 2],
    wire: Vec<(usize, Packet)>,
    writes: usize,
    /// Version that each write got.
    versions: [Version; WRITES_MAX],
    /// No read may return less.
    least: Version,
    losses: u32,
    crashes: u32,
    early: u32,
}

fn addr(index: usize) -> Addr {
    Addr::new([10, 0, 0, index as u8 + 1], 1)
}

fn replica(now: Instant, index: usize, boot: u32) -> Replica {
    let peer = 1 - index;
    let member = Member {
        vssd: VssdId(peer as u32),
        node: NodeId(peer as u8 + 1),
        addr: addr(peer),
    };
    let me = Incarnation {
        vssd: VssdId(index as u32),
        node: NodeId(index as u8 + 1),
        boot,
    };
    let membership = Membership {
        generation: 0,
        peers: vec![member],
    };
    Replica::new(now, me, &membership)
}

impl explore::World for World {
    type Budget = Budget;
    type Action = Action;

    /// Two replicas that serve and hold nothing.
    fn new(budget: Budget) -> Self {
        let now = Instant::from_nanos(1_000_000_000);
        let server = |index| Server {
            replica: replica(now, index, 1),
            store: Memory::default(),
            boot: 1,
        };
        let mut world = Self {
            now,
            budget,
            servers: [server(0), server(1)],
            wire: Vec::new(),
            writes: 0,
            versions: [Version::NONE; WRITES_MAX],
            least: Version::NONE,
            losses: 0,
            crashes: 0,
            early: 0,
        };
        while !world.is_at_rest() {
            world.pass(RESEND_AFTER);
            while !world.wire.is_empty() {
                world.deliver(0);
            }
        }
        world
    }

    fn is_at_rest(&self) -> bool {
        self.wire.is_empty() && self.servers.iter().all(|s| s.replica.deadline().is_none())
    }

    fn actions(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        for index in 0..2 {
            if self.writes < self.budget.writes && self.can_serve(index) {
                actions.push(Action::Write(index));
            }
            if self.crashes < self.budget.crashes && self.servers[1 - index].replica.is_serving() {
                let crash = |deaf| Action::Crash { replica: index, deaf };
                actions.extend([crash(false), crash(true)]);
            }
        }
        for at in 0..self.wire.len() {
            actions.push(Action::Deliver(at));
            if self.losses < self.budget.losses {
                actions.push(Action::Lose(at));
            }
        }
        if !self.is_at_rest() && (self.wire.is_empty() || self.early < self.budget.early) {
            actions.extend([RESEND_AFTER, REPLAY_AFTER].map(Action::Pass));
        }
        actions
    }

    fn apply(&mut self, action: Action) {
        match action {
            Action::Write(index) => self.write(index),
            Action::Deliver(at) => self.deliver(at),
            Action::Lose(at) => {
                self.losses += 1;
                self.wire.remove(at);
            }
            Action::Crash { replica, deaf } => self.crash(replica, deaf),
            Action::Pass(time) => {
                self.early += u32::from(!self.wire.is_empty());
                self.pass(time);
            }
        }
        self.read();
    }

    fn assert_rest(&self) {
        for server in &self.servers {
            assert!(server.replica.is_serving(), "everybody serves at rest");
            assert_eq!(server.replica.active(), 0, "the page is decided at rest");
            assert_eq!(server.replica.epoch(), self.servers[0].replica.epoch());
            assert_eq!(server.store.newest(PAGE), self.servers[0].store.newest(PAGE));
        }
    }

    fn print(&self) -> String {
        let mut wire: Vec<String> = self.wire.iter().map(|message| format!("{message:?}")).collect();
        wire.sort_unstable();
        let mut text = String::new();
        for server in &self.servers {
            write!(text, "{:?}{:?}{}", server.replica, server.store, server.boot).expect("memory suffices");
        }
        write!(
            text,
            "{wire:?}{}{:?}{:?}{}{}{}",
            self.writes, self.versions, self.least, self.losses, self.crashes, self.early
        )
        .expect("memory suffices");
        text
    }

    fn now(&self) -> Instant {
        self.now
    }
}

impl World {
    fn can_serve(&self, index: usize) -> bool {
        let replica = &self.servers[index].replica;
        replica.is_serving() && replica.readiness(PAGE) == Readiness::Ready
    }

    fn write(&mut self, index: usize) {
        let header = Header {
            request: self.writes as u64,
            flags: if self.budget.durable { flags::DURABLE } else { 0 },
            ..Header::new(Op::Zero, VssdId(index as u32))
        };
        let server = &mut self.servers[index];
        server.replica.write(self.now, header, None, 0, &mut server.store);
        let version = server.store.newest(PAGE);
        assert!(version > self.least, "a write follows those that were completed");
        self.versions[self.writes] = version;
        self.writes += 1;
        self.drain(index);
    }

    fn deliver(&mut self, at: usize) {
        let (to, packet) = self.wire.remove(at);
        let server = &mut self.servers[to];
        let refused = server.replica.receive(self.now, 0, packet, &mut server.store);
        assert!(refused.is_none(), "there is always room");
        self.drain(to);
    }

    fn crash(&mut self, index: usize, deaf: bool) {
        self.crashes += 1;
        let server = &mut self.servers[index];
        server.boot += 1;
        server.store.volatile = server.store.durable.clone();
        server.replica = replica(self.now, index, server.boot);
        self.wire.retain(|(to, _)| !(deaf && *to == index));
        self.drain(index);
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        for index in 0..2 {
            let server = &mut self.servers[index];
            server.replica.tick(self.now, &server.store);
            self.drain(index);
        }
    }

    /// Reads wherever a client could.
    fn read(&mut self) {
        for index in 0..2 {
            if self.can_serve(index) {
                let version = self.servers[index].store.newest(PAGE);
                assert!(
                    version >= self.least,
                    "replica {index} returns {version:?} after {:?}",
                    self.least
                );
                self.least = version;
            }
        }
    }

    fn drain(&mut self, index: usize) {
        let server = &mut self.servers[index];
        loop {
            server.replica.catch_up_step(&server.store);
            while server.replica.wants_page() {
                server.replica.pull_page();
            }
            let Some(effect) = server.replica.poll() else {
                break;
            };
            match effect {
                Effect::Send(mut packet) => {
                    packet.header.source = addr(index);
                    packet.header.session = server.boot;
                    // One that is under way already, alike in everything, is not sent twice.
                    let alike = |(_, other): &(usize, Packet)| {
                        other.header == packet.header && other.record() == packet.record()
                    };
                    if !self.wire.iter().any(alike) {
                        self.wire.push((1 - index, packet));
                    }
                }
                Effect::Complete { header, code, .. } => {
                    assert_eq!(code, Code::SoftOrOk);
                    self.least = self.least.max(self.versions[header.request as usize]);
                }
                Effect::Event(_) => {}
                Effect::Fetch(lpn, why) => {
                    let cached = server.store.volatile.clone();
                    let data = cached.ok_or(Version::NONE);
                    server
                        .replica
                        .fetched(self.now, lpn, why, data, &mut server.store);
                }
                Effect::Persist(what) => {
                    server.store.durable = server.store.volatile.clone();
                    server.replica.persisted(&what, Code::SoftOrOk);
                }
                Effect::Resume(_) => {}
            }
        }
    }
}

/// One crash and one lost message, timers slower than messages.
const FAULTS: Budget = Budget {
    writes: WRITES_MAX,
    losses: 1,
    crashes: 1,
    early: 0,
    durable: false,
};

#[test]
fn two_writes_a_crash_and_a_lost_message_keep_reads_linearizable() {
    explore::<World>(FAULTS);
}

#[test]
fn two_durable_writes_a_crash_and_a_lost_message_keep_reads_linearizable() {
    explore::<World>(Budget {
        durable: true,
        ..FAULTS
    });
}

#[test]
fn two_writes_and_early_timeouts_keep_reads_linearizable() {
    explore::<World>(Budget {
        crashes: 0,
        early: 1,
        ..FAULTS
    });
}

#[test]
fn one_write_a_crash_and_an_early_timeout_keep_reads_linearizable() {
    explore::<World>(Budget {
        writes: 1,
        early: 1,
        losses: 0,
        ..FAULTS
    });
}

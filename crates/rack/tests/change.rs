//! A member of a replica set is replaced by another while clients go on, explored exhaustively from where all three hold
//! everything: three replicas, one page, every order of delivery.
//!
//! One of them, the coordinator or another, is deleted at any moment, then the others learn the membership without it,
//! each at any moment, the new coordinator joining again. All the while writes come, each at the coordinator of that
//! moment; each adds to what the page has there, as a gateway does that reads a page to change a part of it, and may come
//! while the one before is under way, as after a restart of the gateway. Messages are lost, timeouts happen when nothing
//! is under way, and a message that is under way is not sent twice.
//!
//! Checked in every state: a serving replica at which the page is decided has everything that was acknowledged or read
//! before. From every state the replicas must be able to come to rest, and at rest those that are left serve and agree.
//!
//! That waiting for the deletion, and joining again, are needed is shown by leaving them out.

use crate::explore;
use crate::explore::{Memory, PAGE, explore};
use base::{Addr, Duration, Instant, NodeId, Version, VssdId};
use rack::cache::Store;
use rack::membership::{Incarnation, Member, Membership};
use rack::replica::{Effect, REPLAY_AFTER, RESEND_AFTER, Readiness, Replica};
use std::collections::BTreeMap;
use std::fmt::Write;
use wire::rack::{Code, Header, Op, Packet};

const COUNT: usize = 3;
/// On the highest node, so that its writes win over those of its successor.
const OLD_PRIMARY: usize = 0;
const FOLLOWER: usize = 1;
const NEW_PRIMARY: usize = 2;

#[derive(Clone, Copy, Debug)]
struct Budget {
    /// The leaving member.
    leaves: usize,
    writes: usize,
    losses: u32,
    /// Messages overtake others between the same two.
    overtaking: bool,
    /// The others learn of a member's leaving when it is deleted.
    waits_for_deletion: bool,
    /// The new coordinator joins again.
    joins_again: bool,
    /// Nobody waits for the deletion of one that is expelled: it reads on while it has leases, and whoever learns of it
    /// completes nothing for so long.
    fences: bool,
    /// One that starts again still knows that a member was expelled.
    remembers: bool,
    /// Crashes, with a restart, of members that stay.
    crashes: u32,
}

/// How long a lease lasts, and how long those wait who have lent it. Time passes in steps of the former.
const LEASE: Duration = REPLAY_AFTER;
const LAPSES_AFTER: Duration = Duration::from_millis(REPLAY_AFTER.as_millis() as u64 * 105 / 100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// A client's write at the coordinator.
    Write,
    /// This replica learns the new membership.
    Learn(usize),
    /// The leaving one is deleted.
    Delete,
    /// The message at this place arrives.
    Deliver(usize),
    /// It is lost.
    Lose(usize),
    /// Time passes.
    Pass(Duration),
    /// This replica crashes, and starts again with nothing.
    Crash(usize),
}

struct Server {
    replica: Replica,
    store: Memory,
    generation: u32,
    boot: u32,
}

struct World {
    now: Instant,
    budget: Budget,
    /// `None` once deleted.
    servers: [Option<Server>; COUNT],
    wire: Vec<(usize, Packet)>,
    writes: usize,
    losses: u32,
    /// The writes, a bit for each, that a version of the page contains.
    contents: BTreeMap<u64, u8>,
    versions: Vec<Version>,
    /// Those that every read returns from now on.
    least: u8,
    crashes: u32,
    /// The one that leaves has its leases until then: from when the first one knows that it leaves.
    reads_until: Option<Instant>,
}

fn addr(index: usize) -> Addr {
    Addr::new([10, 0, 0, index as u8 + 1], 1)
}

fn node(index: usize) -> NodeId {
    NodeId((COUNT - index) as u8)
}

fn membership(of: usize, generation: u32, members: &[usize]) -> Membership {
    let others = members.iter().filter(|&&index| index != of);
    let member = |&index: &usize| Member {
        vssd: VssdId(index as u32),
        node: node(index),
        addr: addr(index),
    };
    Membership {
        generation,
        peers: others.map(member).collect(),
    }
}

impl World {
    fn server(now: Instant, index: usize, boot: u32, (generation, members): (u32, &[usize])) -> Server {
        let me = Incarnation {
            vssd: VssdId(index as u32),
            node: node(index),
            boot,
        };
        Server {
            replica: Replica::new(now, me, &membership(index, generation, members)),
            store: Memory::default(),
            generation,
            boot,
        }
    }

    /// The generation that the change makes, and its members.
    fn target(&self) -> (u32, Vec<usize>) {
        let stays = |index: &usize| self.budget.leaves != *index;
        (1, (0..COUNT).filter(stays).collect())
    }

    fn has_learnt(&self, index: usize) -> bool {
        let server = self.servers[index].as_ref();
        server.is_none_or(|server| server.generation == self.target().0)
    }

    /// The present target of a gateway's writes, if any.
    fn coordinator(&self) -> Option<usize> {
        if self.budget.leaves != OLD_PRIMARY {
            return Some(OLD_PRIMARY);
        }
        let members = self.target().1;
        let taken_over = members
            .iter()
            .all(|&index| self.has_learnt(index) && self.serves(index));
        match &self.servers[OLD_PRIMARY] {
            _ if taken_over => Some(NEW_PRIMARY),
            Some(_) => Some(OLD_PRIMARY),
            None => None,
        }
    }

    fn serves(&self, index: usize) -> bool {
        let server = self.servers[index].as_ref();
        server.is_some_and(|server| server.replica.is_serving())
    }

    fn can_serve(&self, index: usize) -> bool {
        let ready = |server: &Server| server.replica.readiness(PAGE) == Readiness::Ready;
        let leaves = index == self.budget.leaves && self.budget.fences;
        if leaves && self.reads_until.is_some_and(|until| self.now >= until) {
            return false;
        }
        self.serves(index) && self.servers[index].as_ref().is_some_and(ready)
    }

    /// State of the page at a replica.
    fn content(&self, index: usize) -> u8 {
        let server = self.servers[index]
            .as_ref()
            .expect("only one that is there is read");
        self.contents
            .get(&server.store.newest(PAGE).0)
            .copied()
            .unwrap_or(0)
    }

    fn write(&mut self) {
        let index = self.coordinator().expect("a write has a coordinator");
        let content = self.content(index) | 1 << self.writes;
        let header = Header {
            request: self.writes as u64,
            ..Header::new(Op::Zero, VssdId(index as u32))
        };
        let server = self.servers[index].as_mut().expect("a coordinator is there");
        server.replica.write(self.now, header, None, 0, &mut server.store);
        let version = server.store.newest(PAGE);
        let before = self.contents.insert(version.0, content);
        assert_eq!(before, None, "a version is used once");
        self.versions.push(version);
        self.writes += 1;
        self.drain(index);
    }

    fn learn(&mut self, index: usize) {
        let (generation, members) = self.target();
        let takes_over = self.budget.leaves == OLD_PRIMARY && index == NEW_PRIMARY;
        let again = takes_over && self.budget.joins_again;
        let new = membership(index, generation, &members);
        let server = self.servers[index]
            .as_mut()
            .expect("only one that is there learns");
        server.replica.change_members(self.now, &new, again);
        server.generation = generation;
        if self.budget.fences {
            server.replica.fence(self.now + LAPSES_AFTER);
            self.reads_until.get_or_insert(self.now + LEASE);
        }
        self.drain(index);
    }

    /// The coordinator of those that stay may crash when all of them serve and know of the expulsion.
    fn may_crash(&self, index: usize) -> bool {
        let members = self.target().1;
        self.crashes < self.budget.crashes
            && index == members[0]
            && members
                .iter()
                .all(|&member| self.has_learnt(member) && self.serves(member))
    }

    fn crash(&mut self, index: usize) {
        self.crashes += 1;
        let boot = self.servers[index].as_ref().expect("it stays").boot + 1;
        let (generation, members) = self.target();
        let mut server = Self::server(self.now, index, boot, (generation, &members));
        if self.budget.remembers {
            server.replica.fence(self.now + LAPSES_AFTER);
        }
        self.servers[index] = Some(server);
        self.wire.retain(|(to, _)| *to != index);
        self.drain(index);
    }

    fn delete(&mut self) {
        let index = self.budget.leaves;
        self.servers[index] = None;
        self.wire.retain(|(to, _)| *to != index);
    }

    fn deliver(&mut self, at: usize) {
        let (to, packet) = self.wire.remove(at);
        let server = self.servers[to]
            .as_mut()
            .expect("nothing is sent to one that is deleted");
        if let Some(peer) = server.replica.peer_of(&packet.header) {
            let refused = server.replica.receive(self.now, peer, packet, &mut server.store);
            assert!(refused.is_none(), "there is always room");
        }
        self.drain(to);
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        for index in 0..COUNT {
            if let Some(server) = self.servers[index].as_mut() {
                server.replica.tick(self.now, &server.store);
                self.drain(index);
            }
        }
    }

    /// Reads wherever a client could.
    fn read(&mut self) {
        for index in (0..COUNT)
            .filter(|&index| self.can_serve(index))
            .collect::<Vec<_>>()
        {
            let content = self.content(index);
            assert_eq!(content & self.least, self.least, "replica {index} lacks writes");
            self.least |= content;
        }
    }

    fn drain(&mut self, index: usize) {
        let gone = self.servers.each_ref().map(Option::is_none);
        let server = self.servers[index].as_mut().expect("only one that is there acts");
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
                    let to = (0..COUNT).find(|&to| addr(to) == packet.header.target);
                    let to = to.expect("it goes to a member");
                    let alike = |(other, known): &(usize, Packet)| {
                        *other == to && known.header == packet.header && known.record() == packet.record()
                    };
                    if !gone[to] && !self.wire.iter().any(alike) {
                        self.wire.push((to, packet));
                    }
                }
                Effect::Complete { header, code, .. } => {
                    assert_eq!(code, Code::SoftOrOk);
                    let version = self.versions[header.request as usize];
                    self.least |= self.contents[&version.0];
                }
                Effect::Event(_) => {}
                Effect::Fetch(lpn, why) => {
                    let data = server.store.volatile.clone().ok_or(Version::NONE);
                    server
                        .replica
                        .fetched(self.now, lpn, why, data, &mut server.store);
                }
                Effect::Persist(_) => unreachable!("no write is a durable one"),
                Effect::Resume(_) => {}
            }
        }
    }
}

impl explore::World for World {
    type Budget = Budget;
    type Action = Action;

    /// All three serve and hold nothing.
    fn new(budget: Budget) -> Self {
        let now = Instant::from_nanos(1_000_000_000);
        let mut world = Self {
            now,
            budget,
            servers: [0, 1, 2].map(|index| Some(Self::server(now, index, 1, (0, &[0, 1, 2])))),
            wire: Vec::new(),
            writes: 0,
            losses: 0,
            contents: BTreeMap::new(),
            versions: Vec::new(),
            least: 0,
            crashes: 0,
            reads_until: None,
        };
        while world
            .servers
            .iter()
            .flatten()
            .any(|server| server.replica.deadline().is_some())
        {
            world.pass(RESEND_AFTER);
            while !world.wire.is_empty() {
                world.deliver(0);
            }
        }
        world
    }

    fn actions(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        let can_write = self.coordinator().is_some_and(|index| self.can_serve(index));
        if self.writes < self.budget.writes && can_write {
            actions.push(Action::Write);
        }
        let index = self.budget.leaves;
        let leaving = self.servers[index].is_some().then_some(index);
        actions.extend(leaving.map(|_| Action::Delete));
        if leaving.is_none() || !self.budget.waits_for_deletion {
            let learners = (0..COUNT).filter(|&index| Some(index) != leaving && !self.has_learnt(index));
            actions.extend(learners.map(Action::Learn));
        }
        let crashes = (0..COUNT).filter(|&index| self.may_crash(index));
        actions.extend(crashes.map(Action::Crash));
        for at in 0..self.wire.len() {
            let way = |message: &(usize, Packet)| (message.1.header.source, message.0);
            let is_behind = self.wire[..at]
                .iter()
                .any(|other| way(other) == way(&self.wire[at]));
            if is_behind && !self.budget.overtaking {
                continue;
            }
            actions.push(Action::Deliver(at));
            if self.losses < self.budget.losses {
                actions.push(Action::Lose(at));
            }
        }
        let timers = self
            .servers
            .iter()
            .flatten()
            .any(|server| server.replica.deadline().is_some());
        if timers && self.wire.is_empty() {
            actions.push(Action::Pass(REPLAY_AFTER));
        }
        actions
    }

    fn apply(&mut self, action: Action) {
        match action {
            Action::Write => self.write(),
            Action::Learn(index) => self.learn(index),
            Action::Delete => self.delete(),
            Action::Deliver(at) => self.deliver(at),
            Action::Lose(at) => {
                self.losses += 1;
                self.wire.remove(at);
            }
            Action::Pass(time) => self.pass(time),
            Action::Crash(index) => self.crash(index),
        }
        self.read();
    }

    fn is_at_rest(&self) -> bool {
        let mut left = self.servers.iter().flatten();
        let (generation, members) = self.target();
        self.wire.is_empty()
            && left.clone().count() == members.len()
            && left.all(|server| server.generation == generation && server.replica.deadline().is_none())
    }

    fn assert_rest(&self) {
        let left: Vec<&Server> = self.servers.iter().flatten().collect();
        for server in &left {
            assert!(server.replica.is_serving(), "everybody serves at rest");
            assert_eq!(server.replica.active(), 0, "the page is decided at rest");
            assert_eq!(server.replica.epoch(), left[0].replica.epoch());
            assert_eq!(server.store.newest(PAGE), left[0].store.newest(PAGE));
        }
    }

    fn print(&self) -> String {
        let mut wire: Vec<String> = self.wire.iter().map(|message| format!("{message:?}")).collect();
        wire.sort_unstable();
        let mut text = String::new();
        for server in &self.servers {
            match server {
                Some(s) => write!(text, "{:?}{:?}{} {}", s.replica, s.store, s.generation, s.boot),
                None => write!(text, "deleted"),
            }
            .expect("memory suffices");
        }
        let Self {
            writes,
            losses,
            contents,
            versions,
            least,
            crashes,
            reads_until,
            ..
        } = self;
        write!(
            text,
            "{wire:?}{writes}{losses}{contents:?}{versions:?}{least}{crashes}{reads_until:?}"
        )
        .expect("memory suffices");
        text
    }

    fn now(&self) -> Instant {
        self.now
    }
}

const BUDGET: Budget = Budget {
    leaves: OLD_PRIMARY,
    writes: 2,
    losses: 0,
    overtaking: true,
    waits_for_deletion: true,
    joins_again: true,
    fences: false,
    remembers: true,
    crashes: 0,
};

/// The member is expelled: it is there, knows nothing of it, and reads while it has leases.
const EXPELS: Budget = Budget {
    waits_for_deletion: false,
    fences: true,
    ..BUDGET
};

#[test]
fn nobody_reads_too_little_at_a_follower_that_is_expelled() {
    explore::<World>(Budget {
        leaves: FOLLOWER,
        overtaking: false,
        ..EXPELS
    });
}

#[test]
fn nobody_reads_too_little_at_a_coordinator_that_is_expelled() {
    explore::<World>(Budget {
        overtaking: false,
        ..EXPELS
    });
}

const CRASHES: Budget = Budget {
    writes: 1,
    overtaking: false,
    crashes: 1,
    ..EXPELS
};

#[test]
fn a_crash_while_a_follower_is_expelled_loses_nothing() {
    explore::<World>(Budget {
        leaves: FOLLOWER,
        ..CRASHES
    });
}

#[test]
fn a_crash_while_the_coordinator_is_expelled_loses_nothing() {
    explore::<World>(CRASHES);
}

#[test]
#[should_panic = "this breaks it"]
fn a_member_that_starts_again_and_forgets_an_expulsion_breaks_promises() {
    explore::<World>(Budget {
        leaves: FOLLOWER,
        remembers: false,
        ..CRASHES
    });
}

#[test]
fn writes_while_a_follower_leaves_are_nowhere_missing() {
    explore::<World>(Budget {
        leaves: FOLLOWER,
        ..BUDGET
    });
}

#[test]
fn writes_while_the_coordinator_leaves_are_nowhere_missing() {
    explore::<World>(BUDGET);
}

#[test]
fn writes_and_a_lost_message_while_the_coordinator_leaves_are_nowhere_missing() {
    explore::<World>(Budget {
        losses: 1,
        overtaking: false,
        ..BUDGET
    });
}

#[test]
#[should_panic = "this breaks it"]
fn not_waiting_for_the_deletion_breaks_promises() {
    explore::<World>(Budget {
        waits_for_deletion: false,
        ..BUDGET
    });
}

#[test]
#[should_panic = "this breaks it"]
fn a_new_coordinator_that_does_not_join_again_breaks_promises() {
    explore::<World>(Budget {
        joins_again: false,
        ..BUDGET
    });
}

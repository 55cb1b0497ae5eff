//! The connections of a core, the lines in which they stand, and those that wait for room.
//!
//! A connection that could go on (bytes came, its stream has room, an answer waits to be sent) is *ready* and stands in the
//! line of its class. A connection that is blocked waits for pages, or for its share of the payload under way ([`Budget`]).

use super::budget::Budget;
use super::config::{Config, PASSES_MAX, REST_TIME, SPARSE_REQUESTS};
use super::holders::{Held, Holders};
use base::Instant;
use blockswitch::balance::work_of;
use blockswitch::{AppId, Class, Classifier};
use std::collections::VecDeque;

/// Where a connection stands that could go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// L with nothing under way that asks little at a time: such a connection is in nobody's way, and does not wait for
    /// those that ask much.
    Sparse,
    /// L.
    Latency,
    /// T.
    Throughput,
}

/// What the world knows of a connection after it did something with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// A turn would get it on: there may be bytes to read, there is something to send, a request, or its end.
    pub can_go_on: bool,
    /// It is to be closed with its next turn.
    pub is_over: bool,
    /// Its session waits for room: pages or a share.
    pub waits: bool,
    /// The share that its next request needs and does not have, or 0.
    pub share_wanted: u64,
    /// It does a request in parts for want of a share.
    pub is_short: bool,
    /// Requests under way.
    pub in_flight: usize,
    /// Payload of its requests under way.
    pub in_flight_bytes: u64,
    /// Its memory comes back when its client sends more, or reads.
    pub awaits_client: bool,
    /// Its client has not been sent all of its answers.
    pub has_answers: bool,
    /// Its client is sending the payload of a long write.
    pub receives_bulk: bool,
    /// Bytes that its client has sent and received, on this core.
    pub moved_bytes: u64,
}

/// Where a connection is to go, and until when it may try.
#[derive(Clone, Copy, Debug)]
struct Departure {
    to: usize,
    until: Instant,
}

/// A connection that was to leave and can, or has to stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rested {
    /// It is at rest.
    Leaves {
        /// Which.
        slot: usize,
        /// The core that it goes to.
        to: usize,
    },
    /// It was not at rest in time.
    Stays {
        /// Which.
        slot: usize,
    },
}

/// What goes along with a connection that moves to another core.
#[derive(Debug)]
pub struct Moving {
    /// As [`super::Homes`] knows it.
    pub app: Option<AppId>,
    class: Class,
    classifier: Option<Classifier>,
    work: u64,
}

/// A connection as policy sees it.
#[derive(Debug)]
pub(super) struct Connection {
    /// Tells it from others that had its slot.
    pub client: u32,
    pub app: Option<AppId>,
    /// Which line it stands in.
    class: Class,
    /// None before its first request.
    pub classifier: Option<Classifier>,
    /// All that was done for it, for application steering.
    pub work: u64,
    line: Line,
    is_ready: bool,
    /// Its last turn brought whole requests, and few.
    is_sparse: bool,
    is_blocked: bool,
    /// Turns that it passed over in a row, because it has work enough waiting.
    passed: u8,
    /// Requests of the present turn.
    pub taken: usize,
    last: Standing,
    /// Bytes that its client had moved when it stood still last.
    still_bytes: u64,
    departs: Option<Departure>,
}

impl Connection {
    fn new(client: u32, moving: Moving) -> Self {
        Self {
            client,
            app: moving.app,
            class: moving.class,
            classifier: moving.classifier,
            work: moving.work,
            line: Line::Sparse,
            is_ready: false,
            is_sparse: true,
            is_blocked: false,
            passed: 0,
            taken: 0,
            last: Standing::default(),
            still_bytes: 0,
            departs: None,
        }
    }

    /// A request of it is answered, or dropped.
    pub fn finish(&mut self, bytes: u32, class: Class) {
        if let Some(classifier) = &mut self.classifier {
            classifier.finish(bytes, class);
        }
        self.work += work_of(bytes);
    }

    /// Its line if it is ready now. A long request is bulk, whatever is known of its client.
    fn line_of_turn(&self) -> Line {
        let has_long = self.last.receives_bulk || self.last.is_short;
        match self.class {
            Class::Throughput => Line::Throughput,
            Class::Latency if has_long => Line::Throughput,
            Class::Latency if self.is_sparse && self.last.in_flight == 0 => Line::Sparse,
            Class::Latency => Line::Latency,
        }
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Lines {
    connections: Vec<Option<Connection>>,
    /// Connections that could go on, by [`Line`].
    lines: [VecDeque<usize>; 3],
    /// Connections that wait for room.
    blocked: Vec<usize>,
    /// Fewest free pages at the time that one of `blocked` stopped.
    blocked_at: usize,
    /// Payload of all requests under way.
    budget: Budget,
    /// Those that hold more than their reserve and wait for their clients.
    holders: Holders,
    /// Connections that are short of a share.
    short: usize,
    /// What was shared of it when those of `blocked` that want more were looked at last.
    shared_at: u64,
    /// Connections that are paused to move to another core.
    departing: Vec<usize>,
    /// The connection whose answers are sent next, without a turn of its own.
    pub sending: Option<usize>,
}

impl Lines {
    pub fn new(config: &Config) -> Self {
        let connections_max = config.connections_max;
        Self {
            connections: (0..connections_max).map(|_| None).collect(),
            lines: core::array::from_fn(|_| VecDeque::with_capacity(connections_max)),
            blocked: Vec::with_capacity(connections_max),
            blocked_at: usize::MAX,
            budget: Budget::new(config.payload_bytes_max(), connections_max),
            holders: Holders::new(connections_max),
            short: 0,
            shared_at: 0,
            departing: Vec::with_capacity(connections_max),
            sending: None,
        }
    }

    pub fn get(&self, slot: usize) -> Option<&Connection> {
        self.connections[slot].as_ref()
    }

    pub fn get_mut(&mut self, slot: usize) -> Option<&mut Connection> {
        self.connections[slot].as_mut()
    }

    /// All connections with their slots.
    pub fn all(&self) -> impl Iterator<Item = (usize, &Connection)> {
        let slots = self.connections.iter().enumerate();
        slots.filter_map(|(slot, connection)| Some((slot, connection.as_ref()?)))
    }

    /// A new connection.
    pub fn open(&mut self, slot: usize, client: u32, app: Option<AppId>) {
        let class = Class::Latency;
        let new = Moving {
            app,
            class,
            classifier: None,
            work: 0,
        };
        self.put(slot, client, new);
    }

    /// A connection that comes from another core, or a new one.
    pub fn put(&mut self, slot: usize, client: u32, moving: Moving) {
        let vacant = self.connections[slot].replace(Connection::new(client, moving));
        assert!(vacant.is_none(), "a slot has one connection");
    }

    /// Takes a connection out of its slot and of all lines.
    pub fn vacate(&mut self, slot: usize) -> Option<(u32, Moving)> {
        let connection = self.connections[slot].take()?;
        if connection.is_blocked {
            self.blocked.retain(|&blocked| blocked != slot);
        }
        if connection.is_ready {
            self.lines[connection.line as usize].retain(|&other| other != slot);
        }
        if connection.departs.is_some() {
            self.departing.retain(|&departing| departing != slot);
        }
        self.budget.recount(connection.last.in_flight_bytes, 0);
        self.holders.forget(slot);
        self.short -= usize::from(connection.last.is_short);
        let Connection {
            client,
            app,
            class,
            classifier,
            work,
            ..
        } = connection;
        let moving = Moving {
            app,
            class,
            classifier,
            work,
        };
        Some((client, moving))
    }

    /// Notes how a connection stands, and puts it in line if it can go on.
    pub fn stand(&mut self, now: Instant, slot: usize, standing: Standing) {
        self.note(now, slot, standing);
        if standing.can_go_on && self.sending != Some(slot) {
            self.push(slot);
        }
    }

    fn note(&mut self, now: Instant, slot: usize, standing: Standing) {
        if let Some(connection) = &mut self.connections[slot] {
            let before = connection.last.in_flight_bytes;
            self.budget.recount(before, standing.in_flight_bytes);
            let (awaits_client, bytes) = (standing.awaits_client, standing.in_flight_bytes);
            let held = match self.budget.excess(bytes) {
                _ if bytes == 0 || !awaits_client && !standing.has_answers => Held::Nothing,
                0 => Held::Reserve,
                _ => Held::Beyond,
            };
            let moved_bytes = standing.moved_bytes;
            let stood_still = self.holders.note(now, slot, held, awaits_client, moved_bytes);
            if stood_still {
                connection.still_bytes = connection.last.moved_bytes;
            }
            self.short = self.short + usize::from(standing.is_short) - usize::from(connection.last.is_short);
            connection.last = standing;
        }
    }

    /// Puts a connection in line for one turn, whether it can go on or not.
    pub fn push(&mut self, slot: usize) {
        if let Some(connection) = &mut self.connections[slot]
            && !connection.is_ready
        {
            connection.is_ready = true;
            connection.line = connection.line_of_turn();
            self.lines[connection.line as usize].push_back(slot);
        }
    }

    /// True if a connection would stand with those that ask little.
    pub fn is_sparse(&self, slot: usize) -> bool {
        let connection = self.connections[slot].as_ref();
        connection
            .is_some_and(|connection| !connection.last.waits && connection.line_of_turn() == Line::Sparse)
    }

    /// Connections of a line that could go on.
    pub fn waiting(&self, line: Line) -> usize {
        self.lines[line as usize].len()
    }

    /// True if a connection could go on.
    pub fn any(&self) -> bool {
        self.lines.iter().any(|line| !line.is_empty())
    }

    /// The next connection of a line to attend to.
    pub fn next(&mut self, line: Line) -> Option<usize> {
        let slot = self.lines[line as usize].pop_front()?;
        if let Some(connection) = &mut self.connections[slot] {
            (connection.is_ready, connection.taken) = (false, 0);
        }
        Some(slot)
    }

    /// Puts a connection that has work enough waiting back in line, so that more of its requests are read at once; false
    /// if it has passed over [`PASSES_MAX`] turns.
    pub fn pass(&mut self, slot: usize) -> bool {
        let Some(connection) = &mut self.connections[slot] else {
            return false;
        };
        let passes = connection.passed < PASSES_MAX && !connection.last.is_over;
        connection.passed = if passes { connection.passed + 1 } else { 0 };
        if passes {
            self.push(slot);
        }
        passes
    }

    /// A connection's turn brought so many requests, and bytes if it `reads`.
    pub fn note_turn(&mut self, now: Instant, slot: usize, reads: bool, requests: usize, standing: Standing) {
        self.note(now, slot, standing);
        let Some(connection) = &mut self.connections[slot] else {
            return;
        };
        connection.is_sparse = match requests {
            // Bytes that begin nothing: turns are given for requests, not for parts of them.
            0 if reads => connection.is_sparse && standing.in_flight > 0,
            0 => connection.is_sparse,
            count => count <= SPARSE_REQUESTS,
        };
        let class = connection
            .classifier
            .as_ref()
            .map_or(Class::Latency, Classifier::class);
        if connection.class != class {
            let was_ready = connection.is_ready;
            if was_ready {
                self.lines[connection.line as usize].retain(|&other| other != slot);
            }
            (connection.class, connection.is_ready) = (class, false);
            if was_ready {
                self.push(slot);
            }
        }
    }

    /// A connection has sent what it could. `has_room` says that a session that was blocked has sent something.
    pub fn sent(&mut self, now: Instant, slot: usize, standing: Standing, has_room: bool, pages_free: usize) {
        self.note(now, slot, standing);
        let Some(connection) = &mut self.connections[slot] else {
            return;
        };
        if standing.waits {
            if standing.share_wanted > 0 {
                self.shared_at = self.shared_at.max(self.budget.shared());
            } else {
                self.blocked_at = self.blocked_at.min(pages_free);
            }
            if !connection.is_blocked {
                connection.is_blocked = true;
                self.blocked.push(slot);
            }
            if has_room {
                self.push(slot);
            }
        }
        if standing.can_go_on {
            self.push(slot);
        }
    }

    /// Puts those in line that wait for pages or for their share when there is more than before.
    pub fn unblock(&mut self, now: Instant, pages_free: usize) {
        let has_pages = !self.blocked.is_empty() && pages_free > self.blocked_at;
        if !has_pages && self.budget.shared() >= self.shared_at {
            return;
        }
        self.shared_at = self.budget.shared();
        if has_pages {
            self.blocked_at = usize::MAX;
        }
        let mut blocked = core::mem::take(&mut self.blocked);
        blocked.retain(|&slot| {
            let Some(last) = self.get(slot).map(|connection| connection.last) else {
                return false;
            };
            let stays = match last.share_wanted {
                0 => !has_pages,
                wanted => wanted > self.share_of(now, slot),
            };
            let connection = self.get_mut(slot).expect("it was there a moment ago");
            connection.is_blocked = stays;
            if !stays {
                self.push(slot);
            }
            stays
        });
        self.blocked = blocked;
    }

    /// A connection whose client keeps what others wait for, and does too little about it: it is to be cut.
    pub fn next_idle(&mut self, now: Instant) -> Option<usize> {
        if !self.holders.is_due(now) || !self.wants_share() {
            return None;
        }
        if !self.others_want_share(now) {
            self.holders.defer(now);
            return None;
        }
        let (budget, connections) = (&self.budget, &self.connections);
        self.holders.next_idle(now, |slot| {
            let connection = connections[slot].as_ref().expect("a holder is open");
            let last = &connection.last;
            let is_beyond = budget.excess(last.in_flight_bytes) > 0;
            let would_be = last.share_wanted > 0 || last.is_short;
            (last.awaits_client && (is_beyond || would_be))
                .then_some((last.in_flight_bytes, last.moved_bytes))
        })
    }

    /// When [`Lines::next_idle`] is due.
    pub fn idle_deadline(&self) -> Option<Instant> {
        self.holders.deadline().filter(|_| self.wants_share())
    }

    /// True if a connection waits for a share, or would have a larger one.
    fn wants_share(&self) -> bool {
        if self.short > 0 {
            return true;
        }
        let mut blocked = self.blocked.iter().filter_map(|&slot| self.get(slot));
        blocked.any(|connection| connection.last.share_wanted > 0)
    }

    /// The same of connections whose clients do not stand still. The others may have no more than their reserve, however
    /// much memory is free.
    fn others_want_share(&self, now: Instant) -> bool {
        let mut wanting = self.all().filter(|(_, connection)| {
            let waits = connection.is_blocked && connection.last.share_wanted > 0;
            waits || connection.last.is_short
        });
        wanting.any(|(slot, _)| !self.holders.is_still(now, slot))
    }

    /// Payload that a connection may have under way.
    pub fn share_of(&self, now: Instant, slot: usize) -> u64 {
        if self.holders.is_still(now, slot) {
            return self.budget.reserve();
        }
        let Some(Connection {
            last, still_bytes, ..
        }) = self.get(slot)
        else {
            return self.budget.share_of(0, 0);
        };
        let moved_bytes = last.moved_bytes - still_bytes;
        self.budget.share_of(last.in_flight_bytes, moved_bytes)
    }

    /// A connection is to leave for core `to`; false if it already is.
    pub fn set_out(&mut self, now: Instant, slot: usize, to: usize) -> bool {
        let connection = self.connections[slot].as_mut().expect("an open connection");
        if connection.departs.is_some() {
            return false;
        }
        connection.departs = Some(Departure {
            to,
            until: now + REST_TIME,
        });
        self.departing.push(slot);
        true
    }

    /// When a connection that was to leave stays at the latest.
    pub fn rest_deadline(&self) -> Option<Instant> {
        let departing = self
            .departing
            .iter()
            .filter_map(|&slot| self.connections[slot].as_ref());
        departing
            .filter_map(|connection| Some(connection.departs?.until))
            .min()
    }

    /// The next connection that is at rest or has had its time.
    pub fn next_rested(&mut self, now: Instant, is_at_rest: impl Fn(usize) -> bool) -> Option<Rested> {
        let (at, rested) = self.departing.iter().enumerate().find_map(|(at, &slot)| {
            let Departure { to, until } = self.connections[slot].as_ref()?.departs?;
            if is_at_rest(slot) {
                return Some((at, Rested::Leaves { slot, to }));
            }
            (now >= until).then_some((at, Rested::Stays { slot }))
        })?;
        self.departing.swap_remove(at);
        Some(rested)
    }

    /// A connection that was to leave goes on here.
    pub fn go_on(&mut self, slot: usize) {
        self.departing.retain(|&departing| departing != slot);
        let connection = self.connections[slot].as_mut().expect("an open connection");
        connection.departs = None;
        // It may have bytes that nobody has looked at.
        self.push(slot);
    }

    /// A connection that was to leave.
    pub fn any_departing(&self) -> Option<usize> {
        self.departing.last().copied()
    }
}

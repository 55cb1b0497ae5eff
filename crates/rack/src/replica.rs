//! Replication of one vSSD with its peers: Hermes (ASPLOS'20), so that a read at any replica is linearizable.
//!
//! Per page: a version (Hermes' timestamp) and a state. A page that is Valid and has nobody waiting has no record here
//! at all: its version is the newest that the store knows. A record (key) exists while the page is
//!
//! - `Write`: this replica coordinates a client's write and awaits acknowledgements;
//! - `Invalid`: another replica's write is taken, its validation awaited. Reads wait;
//! - `Replay`: this replica sends somebody's write again, because its writer may be gone.
//!
//! Hermes' fifth state, Trans (a coordinator superseded by a newer write), is folded into `Replay`: the superseded
//! coordinator replays the newer write and answers its client when all have that; each of them then holds the
//! client's write or a newer one, which is all that Trans waits for.
//!
//! Of two members that keep data in memory, the one that takes an invalidation knows that both hold the write, its
//! coordinator having put it before it spoke: the page is Valid there at once, no validation is sent, and a read there
//! does not wait for one. (With more members, or with data that is to be on media first, it cannot know.)
//!
//! Membership: who the members are has a generation ([`Membership`]), and each member has incarnations. The epoch is a
//! hash of the generation and of the numbers of all members' starts; messages of another epoch are ignored, so nothing sent to or
//! by an earlier incarnation, or under an earlier membership, has an effect. A member that starts, or is new, is `Joining`
//! ([`crate::catchup`]): it takes part in writes, but serves clients only when it holds everything its peers hold. A
//! member is taken out in three steps, in this order: it is deleted, so that it serves nobody any more; the others learn
//! the membership without it ([`Replica::change_members`]); a new coordinator joins again, to know what its predecessor
//! left undecided. A member that does not answer is *expelled*: nobody waits for its deletion, but the others complete no
//! write before it has no lease any more ([`crate::lease`], [`Replica::fence`]). When it comes back, it yields to the
//! others in everything ([`Replica::yield_all`]).
//!
//! A replica whose medium has failed and whose memory is full acknowledges writes as `Latched` without taking them, so
//! that the write fails but nobody waits; from then on it is not read. A new start makes it whole again.
//!
//! Continuity: a number that changes when *no* member kept its memory. A gateway that sees it change knows that
//! acknowledged writes which were not flushed may be lost, and says so in answer to its next flush.

mod effect;
mod key;
mod peer;
mod resolve;

use crate::cache::{Cached, Store, lpn_of};
use crate::catchup::{self, Ask, CatchUp};
use crate::membership::{Incarnation, Member, Membership, epoch_of};
use base::event::Kind;
use base::limits::SECTORS_PER_PAGE;
use base::time::earliest;
use base::{Duration, Instant, Lpn, Map, NodeId, Page, Slab, Version, VssdId};
use key::{HELD_FOR, Key, State};
use peer::Peer;
use std::collections::VecDeque;
use wire::rack::{Code, Header, Op, Packet, flags};

pub use effect::{Effect, Fetch, Persist};
pub use key::{RESEND_AFTER, Readiness};

/// A page that stays Invalid this long is replayed by its follower.
pub const REPLAY_AFTER: Duration = Duration::from_millis(160);
/// A peer that answers nothing for so long is told of: far longer than any message takes.
const LOST_AFTER: Duration = Duration::from_secs(1);
/// How often unfinished pages are looked through.
const SCAN_EVERY: Duration = Duration::from_millis(20);
/// A starting member greets its peers this often, and asks for what it lacks, until it serves.
const HELLO_EVERY: Duration = Duration::from_millis(20);
/// While nothing comes it does so ever later, up to so many doublings.
const HELLO_DOUBLINGS_MAX: u8 = 3;

/// One replica.
#[derive(Debug)]
pub struct Replica {
    me: Incarnation,
    generation: u32,
    peers: Vec<Peer>,
    epoch: Option<u32>,
    continuity: u32,
    serving: bool,
    /// It has served since it started: it holds in memory what was acknowledged.
    has_served: bool,
    missed: bool,
    catch_up: CatchUp,
    /// Its pages do not count where its peers have something else, until it serves.
    yields: bool,
    /// The other member that orders the writes, unless this one does.
    coordinator: Option<VssdId>,
    /// Before this no write is complete: a member that was expelled may still read.
    fenced_until: Option<Instant>,
    keys: Slab<Key>,
    index: Map<u32, u32>,
    effects: VecDeque<Effect>,
    scan_at: Option<Instant>,
    hello_at: Option<Instant>,
    /// How often it has greeted and asked in vain since something came, as far as that matters.
    in_vain: u8,
    /// Since when it greets peers that it does not know.
    greets_since: Instant,
}

impl Replica {
    /// A replica with its peers (none for a single copy).
    pub fn new(now: Instant, me: Incarnation, membership: &Membership) -> Self {
        let mut replica = Self {
            me,
            generation: membership.generation,
            peers: membership.peers.iter().copied().map(Peer::new).collect(),
            epoch: None,
            continuity: 0,
            serving: false,
            has_served: false,
            missed: false,
            catch_up: CatchUp::new(membership.peers.len()),
            yields: false,
            coordinator: membership.peers.first().map(|member| member.vssd),
            fenced_until: None,
            keys: Slab::new(),
            index: Map::new(),
            effects: VecDeque::new(),
            scan_at: None,
            hello_at: Some(now),
            in_vain: 0,
            greets_since: now,
        };
        replica.form_epoch(now);
        if replica.peers.is_empty() {
            replica.start_serving();
        }
        replica
    }

    /// True when clients may be served.
    pub fn is_serving(&self) -> bool {
        self.serving
    }

    /// True if a write was not taken because the medium has failed: what is here may be out of date until the next
    /// start, so it is not read.
    pub fn has_missed(&self) -> bool {
        self.missed
    }

    /// Of so many pages those that it has as its peers have them, and since when it joins them, until it serves.
    pub fn copying(&self, pages: u32) -> Option<(u32, Instant)> {
        (!self.serving).then(|| (self.catch_up.pages_done(pages), self.greets_since))
    }

    /// The membership epoch, 0 while it is not known.
    pub fn epoch(&self) -> u32 {
        self.epoch.unwrap_or(0)
    }

    /// See the module's text.
    pub fn continuity(&self) -> u32 {
        self.continuity
    }

    /// Index of the peer that sent this.
    pub fn peer_of(&self, header: &Header) -> Option<usize> {
        self.peers.iter().position(|peer| {
            u64::from(peer.member.vssd.0) == header.request && peer.member.addr == header.source
        })
    }

    /// The members of a later generation take the place of those of an earlier one. With `again` this replica joins
    /// once more before it serves: what a member that is no more has left undecided is known then.
    ///
    /// # Panics
    /// If the generation is not a later one.
    pub fn change_members(&mut self, now: Instant, membership: &Membership, again: bool) {
        assert!(
            membership.generation > self.generation,
            "a membership is changed once"
        );
        self.generation = membership.generation;
        peer::replace(&mut self.peers, &membership.peers);
        self.coordinator = membership.peers.first().map(|member| member.vssd);
        self.catch_up = CatchUp::new(self.peers.len());
        self.effects.push_back(Effect::Event(Kind::MembersChanged {
            vssd: self.me.vssd,
            generation: self.generation,
            members: self.peers.len() as u32 + 1,
        }));
        self.greets_since = now;
        self.serving &= !again;
        if !self.serving {
            self.epoch = None;
        }
        (self.hello_at, self.in_vain) = (Some(now), 0);
        self.form_epoch(now);
        if self.peers.is_empty() {
            self.start_serving();
        }
    }

    /// It joins the set, perhaps with what it had before it was expelled: that counts for nothing where its peers have
    /// something else, so it gives nothing to them before it serves.
    pub fn yield_all(&mut self) {
        (self.yields, self.serving, self.has_served) = (true, false, false);
        // What it was about to write counts for nothing, and who waits for that has asked elsewhere.
        (self.keys, self.index) = (Slab::new(), Map::new());
    }

    /// Lets no write be complete before `until`.
    pub fn fence(&mut self, until: Instant) {
        self.fenced_until = self.fenced_until.max(Some(until));
    }

    /// True while no write can be complete.
    pub fn is_fenced(&self) -> bool {
        self.fenced_until.is_some()
    }

    /// The same peers, in the same order, are at other addresses.
    pub fn move_peers(&mut self, members: &[Member]) {
        // Their order here is that in which they came.
        for peer in &mut self.peers {
            let known = members.iter().find(|member| member.vssd == peer.member.vssd);
            peer.member = known.copied().unwrap_or(peer.member);
        }
    }

    /// Pages with a write or replay in progress.
    pub fn active(&self) -> usize {
        self.index.len()
    }

    fn all_peers(&self) -> u8 {
        ((1u16 << self.peers.len()) - 1) as u8
    }

    fn slot(&self, lpn: Lpn) -> Option<u32> {
        self.index.get(&lpn.0).copied()
    }

    fn insert(&mut self, key: Key) -> u32 {
        let lpn = key.lpn;
        if self.scan_at.is_none() {
            self.scan_at = Some(key.since + SCAN_EVERY);
        }
        let slot = self.keys.insert(key);
        self.index.insert(lpn.0, slot);
        slot
    }

    /// Ends a key: the page is Valid, whoever waited goes on.
    fn release(&mut self, slot: u32) {
        let key = self.keys.remove(slot);
        self.index.remove(&key.lpn.0);
        self.catch_up.touch(key.lpn);
        self.effects.extend(key.waiters.into_iter().map(Effect::Resume));
    }

    /// Whether the page can be read or written now.
    pub fn readiness(&self, lpn: Lpn) -> Readiness {
        if self.index.is_empty() || !self.index.contains_key(&lpn.0) {
            Readiness::Ready
        } else {
            Readiness::Undecided
        }
    }

    /// Keeps a request until its page is decided; a copy of one that waits already is dropped.
    ///
    /// # Panics
    /// If the page is not undecided.
    pub fn wait(&mut self, lpn: Lpn, packet: Packet) {
        let slot = self.slot(lpn).expect("only an undecided page is waited for");
        let waiters = &mut self.keys[slot].waiters;
        let name = |packet: &Packet| (packet.header.source, packet.header.session, packet.header.request);
        if waiters.iter().all(|waiting| name(waiting) != name(&packet)) {
            waiters.push_back(packet);
        }
    }

    /// Coordinates a client's write of a page that is ready and for which the store has room.
    pub fn write(
        &mut self,
        now: Instant,
        header: Header,
        data: Option<Page>,
        crc: u32,
        store: &mut impl Store,
    ) {
        let lpn = lpn_of(&header);
        let version = store.newest(lpn).next(self.me.node, self.me.boot);
        let cached = Cached {
            version,
            crc,
            page: data,
        };
        store.put(now, lpn, cached.clone());
        let durable = header.has(flags::DURABLE);
        if self.peers.is_empty() && !durable && !self.is_fenced() {
            self.effects.push_back(Effect::Complete {
                header,
                code: Code::SoftOrOk,
                since: now,
            });
            return;
        }
        if durable {
            self.effects
                .push_back(Effect::Persist(Persist::Own { lpn, version }));
        }
        let slot = self.insert(Key {
            state: State::Write,
            origin: Some(header),
            own_persisted: !durable,
            pending: self.all_peers(),
            ..Key::invalid(now, lpn, cached, durable)
        });
        self.broadcast(slot);
    }

    /// A write that is under way was sent again: its end is the answer to the last sending.
    pub fn asked_again(&mut self, header: &Header) {
        let Some(slot) = self.slot(lpn_of(header)) else {
            return;
        };
        let name = |header: &Header| (header.source, header.session, header.request);
        if let Some(origin) = &mut self.keys[slot].origin
            && name(origin) == name(header)
        {
            *origin = *header;
        }
    }

    /// Sends the key's value to every peer that has neither acknowledged it nor said that it has it.
    fn broadcast(&mut self, slot: u32) {
        let key = &self.keys[slot];
        for (index, peer) in self.peers.iter().enumerate() {
            if key.awaited() & 1 << index == 0 {
                continue;
            }
            let mut header = self.to_peer(Op::Inv, &peer.member, key.lpn);
            header.version = key.data.version;
            // The follower's queue goes by end-to-end time, too: the client's way here counts (RackBlox §3.4).
            header.lat_ns = key.origin.map_or(0, |origin| origin.lat_ns);
            header.flags |= if key.durable { flags::DURABLE } else { 0 };
            header.flags |= if key.state == State::Replay {
                flags::REPLAY
            } else {
                0
            };
            let packet = Packet::with_page(header, key.data.page.clone(), key.data.crc);
            self.effects.push_back(Effect::Send(packet));
        }
    }

    fn to_peer(&self, op: Op, member: &Member, lpn: Lpn) -> Header {
        Header {
            lba: u64::from(lpn.0) * SECTORS_PER_PAGE as u64,
            request: u64::from(self.me.vssd.0),
            epoch: self.epoch(),
            session: self.me.boot,
            target: member.addr,
            ..Header::new(op, member.vssd)
        }
    }

    /// True if a message of a peer belongs to this epoch; greets the peer if not.
    fn is_current(&mut self, peer: usize, header: &Header) -> bool {
        let known = self.epoch.is_some_and(|epoch| epoch == header.epoch)
            && self.peers[peer].boot == Some(header.session);
        if !known {
            let hello = self.hello(peer, false);
            self.effects.push_back(hello);
        }
        known
    }

    /// Takes a message of a peer. Returns the packet if the store has no room for it: the host hands it in again
    /// when there is.
    pub fn receive(
        &mut self,
        now: Instant,
        peer: usize,
        packet: Packet,
        store: &mut impl Store,
    ) -> Option<Packet> {
        let header = packet.header;
        if peer >= self.peers.len() {
            // It waited for room, and its sender is no member any more.
            return None;
        }
        if matches!(header.op, Op::Ack | Op::Held) || header.has(flags::REPLY) {
            self.peers[peer].heard_at = now;
            if self.peers[peer].lost {
                self.note_back(peer);
            }
        }
        if header.op == Op::Hello {
            self.receive_hello(now, peer, &packet);
            return None;
        }
        let lpn = lpn_of(&header);
        if !self.is_current(peer, &header) || lpn.0 >= store.pages() {
            return None;
        }
        self.catch_up.touch(lpn);
        match header.op {
            Op::Inv => return self.receive_inv(now, peer, packet, store),
            Op::Ack => self.receive_ack(peer, &header),
            Op::Held => self.receive_held(now, peer, &header),
            Op::Val => self.validate(lpn, header.version),
            Op::Digest if header.has(flags::REPLY) => self.receive_digest_reply(peer, &packet, store),
            Op::Digest => self.receive_digest(peer, &packet, store),
            Op::Pull if header.has(flags::REPLY) => self.receive_loss(peer, &header, store),
            Op::Pull if header.code == Code::Stale => self.receive_stale(peer, &header, store),
            Op::Pull if self.yields => {}
            Op::Pull => self.effects.push_back(Effect::Fetch(lpn, Fetch::Push(peer))),
            _ => {}
        }
        None
    }

    /// Rule 3: an invalidation of the current epoch is always acknowledged; a newer one is taken.
    fn receive_inv(
        &mut self,
        now: Instant,
        peer: usize,
        packet: Packet,
        store: &mut impl Store,
    ) -> Option<Packet> {
        let header = packet.header;
        let lpn = lpn_of(&header);
        if header.version > Version::PLAUSIBLE_MAX {
            return None;
        }
        let newest = store.newest(lpn);
        if header.version == newest && self.decides(&header) {
            self.validate(lpn, newest);
        }
        let repairs = header.version == newest && store.is_damaged(lpn);
        if header.version > newest || repairs {
            if !store.has_room(lpn) && store.is_latched() {
                // Nothing more can be kept here, and the others must not wait for it.
                self.missed = true;
                self.acknowledge(peer, &header, Code::Latched);
                return None;
            }
            if !store.has_room(lpn) {
                return Some(packet);
            }
            let data = Cached {
                version: header.version,
                crc: header.payload_crc,
                page: packet.page().cloned(),
            };
            store.put(now, lpn, data.clone());
            if !repairs {
                self.take(now, lpn, data, &header);
            }
        }
        if header.code == Code::Accept {
            // Pushed by a peer at which the page is Valid: nobody awaits an acknowledgement.
            return None;
        }
        if header.has(flags::DURABLE) {
            self.effects
                .push_back(Effect::Persist(Persist::Acknowledge { lpn, peer, header }));
        } else {
            self.acknowledge(peer, &header, Code::SoftOrOk);
        }
        None
    }

    /// True if every member holds what this invalidation carries, or a newer value, once it is taken here.
    fn decides(&self, header: &Header) -> bool {
        header.code == Code::Accept
            || self.peers.len() == 1 && !header.has(flags::DURABLE) && !self.is_fenced()
    }

    /// A newer value arrived: V, I, R → I, or V where that is decided; a superseded coordinator replays it.
    fn take(&mut self, now: Instant, lpn: Lpn, data: Cached, header: &Header) {
        let decided = self.decides(header);
        let Some(slot) = self.slot(lpn) else {
            if !decided {
                self.insert(Key::invalid(now, lpn, data, header.has(flags::DURABLE)));
            }
            return;
        };
        let all = self.all_peers();
        let key = &mut self.keys[slot];
        key.data = data;
        key.since = now;
        if key.origin.is_some() {
            key.state = State::Replay;
            key.restart(now, all);
            self.broadcast(slot);
        } else if decided {
            self.release(slot);
        } else {
            key.state = State::Invalid;
            key.restart(now, 0);
        }
    }

    /// A page that was pulled is damaged at the peer. A serving replica needs not care: it holds every version that was
    /// decided, and is told of others by invalidations.
    fn receive_loss(&mut self, peer: usize, header: &Header, store: &mut impl Store) {
        let (lpn, version) = (lpn_of(header), header.version);
        if !self.serving && version > store.newest(lpn) && version <= Version::PLAUSIBLE_MAX {
            store.lose(lpn, version);
            // Another peer may have it intact.
            let others = (0..self.peers.len()).filter(|other| *other != peer);
            others.for_each(|other| self.pull(other, lpn));
        }
    }

    /// A peer that yields has a version that counts for nothing: it is to get ours, as a later one. Only the coordinator is
    /// asked, so no write of a client is under way elsewhere.
    fn receive_stale(&mut self, peer: usize, header: &Header, store: &impl Store) {
        let (lpn, version) = (lpn_of(header), header.version);
        let counts = version >= store.newest(lpn) && version <= Version::PLAUSIBLE_MAX;
        if counts && self.serving && self.is_decided(lpn) && store.has_room(lpn) {
            let why = Fetch::Overrule(peer, version);
            self.effects.push_back(Effect::Fetch(lpn, why));
        }
    }

    fn overrule(
        &mut self,
        now: Instant,
        (lpn, theirs): (Lpn, Version),
        data: Cached,
        store: &mut impl Store,
    ) {
        let is_still = self.serving && self.is_decided(lpn) && data.version == store.newest(lpn);
        if !is_still || theirs < data.version || !store.has_room(lpn) {
            // It is asked again.
            return;
        }
        let version = theirs.next(self.me.node, self.me.boot);
        let data = Cached { version, ..data };
        store.put(now, lpn, data.clone());
        let slot = self.insert(Key {
            state: State::Write,
            pending: self.all_peers(),
            ..Key::invalid(now, lpn, data, false)
        });
        self.broadcast(slot);
    }

    fn acknowledge(&mut self, peer: usize, inv: &Header, code: Code) {
        let mut header = self.to_peer(Op::Ack, &self.peers[peer].member, lpn_of(inv));
        header.version = inv.version;
        header.code = code;
        self.effects.push_back(Effect::Send(Packet::bare(header)));
    }

    /// Rule 4: an acknowledgement counts only for the version last sent.
    fn receive_ack(&mut self, peer: usize, header: &Header) {
        let Some(slot) = self.slot(lpn_of(header)) else {
            return;
        };
        let key = &mut self.keys[slot];
        if key.state == State::Invalid || key.data.version != header.version {
            return;
        }
        key.pending &= !(1 << peer);
        if header.code != Code::SoftOrOk {
            key.peer_failure = Some(header.code);
        }
        self.settle(slot);
    }

    /// If this acknowledges a client's write that awaits it: whose it is, and how long after the write began.
    pub fn acknowledged(&self, now: Instant, peer: usize, header: &Header) -> Option<(NodeId, Duration)> {
        let key = &self.keys[self.slot(lpn_of(header))?];
        let awaits =
            key.origin.is_some() && key.data.version == header.version && key.pending & 1 << peer != 0;
        awaits.then(|| (self.peers[peer].member.node, now.since(key.since)))
    }

    /// A peer has the value, and no room for it yet.
    fn receive_held(&mut self, now: Instant, peer: usize, header: &Header) {
        // It need say nothing more for so long.
        self.peers[peer].heard_at = now + HELD_FOR;
        let Some(slot) = self.slot(lpn_of(header)) else {
            return;
        };
        let key = &mut self.keys[slot];
        if key.data.version == header.version {
            key.hold(now, peer);
        }
    }

    /// A value that [`receive`](Replica::receive) gave back waits for room: its sender need not send it again.
    pub fn tell_held(&mut self, peer: usize, inv: &Header) {
        if peer < self.peers.len() {
            let mut header = self.to_peer(Op::Held, &self.peers[peer].member, lpn_of(inv));
            header.version = inv.version;
            self.effects.push_back(Effect::Send(Packet::bare(header)));
        }
    }

    /// Rule 5: when all have it, validate and answer.
    fn settle(&mut self, slot: u32) {
        let key = &self.keys[slot];
        if key.pending != 0 || !key.own_persisted || self.is_fenced() {
            return;
        }
        let (lpn, version) = (key.lpn, key.data.version);
        let code = key.own_failure.or(key.peer_failure).unwrap_or(Code::SoftOrOk);
        let validates = key.durable || self.peers.len() > 1;
        if let Some(header) = key.origin {
            let since = key.since;
            self.effects.push_back(Effect::Complete { header, code, since });
        }
        let told = if validates { self.peers.len() } else { 0 };
        for index in 0..told {
            let mut header = self.to_peer(Op::Val, &self.peers[index].member, lpn);
            header.version = version;
            self.effects.push_back(Effect::Send(Packet::bare(header)));
        }
        self.release(slot);
    }

    /// Rule 6: a validation counts only for the version held.
    fn validate(&mut self, lpn: Lpn, version: Version) {
        let Some(slot) = self.slot(lpn) else { return };
        let key = &mut self.keys[slot];
        if key.state == State::Invalid && key.data.version == version {
            self.release(slot);
        }
    }

    /// The work that [`Effect::Persist`] asked for is done, or failed with `code`.
    pub fn persisted(&mut self, what: &Persist, code: Code) {
        match what {
            Persist::Own { lpn, version } => {
                let Some(slot) = self.slot(*lpn) else { return };
                let key = &mut self.keys[slot];
                // A newer version that took its place is no less durable: the older one is on the medium.
                if key.data.version >= *version {
                    key.own_persisted = true;
                    if code != Code::SoftOrOk {
                        key.own_failure = Some(code);
                    }
                    self.settle(slot);
                }
            }
            Persist::Acknowledge { peer, header, .. } => {
                if self.epoch == Some(header.epoch) {
                    self.acknowledge(*peer, header, code);
                }
            }
        }
    }

    /// A page that [`Effect::Fetch`] asked for; its version if it cannot be read here.
    pub fn fetched(
        &mut self,
        now: Instant,
        lpn: Lpn,
        why: Fetch,
        data: Result<Cached, Version>,
        store: &mut impl Store,
    ) {
        if why == Fetch::Replay {
            self.catch_up.replay_started(lpn);
        }
        self.catch_up.touch(lpn);
        match (why, data) {
            // Whoever asked is no member any more. Another one in its place gets a page that it may have already.
            (Fetch::Push(peer) | Fetch::Overrule(peer, _) | Fetch::Resolve(peer, _), _)
                if peer >= self.peers.len() => {}
            (Fetch::Push(peer), Ok(data)) => self.push_page(peer, lpn, data),
            (Fetch::Push(peer), Err(version)) => self.tell_loss(peer, lpn, version),
            (Fetch::Overrule(_, theirs) | Fetch::Resolve(_, theirs), Ok(data)) => {
                self.overrule(now, (lpn, theirs), data, store)
            }
            (Fetch::Overrule(peer, theirs), Err(version)) => {
                // Neither copy is the page: it is lost, here and there.
                let version = theirs.max(version).next(self.me.node, self.me.boot);
                store.lose(lpn, version);
                self.tell_loss(peer, lpn, version);
            }
            // A page that is damaged here is no better than the peer's.
            (Fetch::Replay | Fetch::Resolve(..), Err(_)) => {}
            (Fetch::Replay, Ok(data)) => {
                if self.slot(lpn).is_none() {
                    self.insert(Key::invalid(now, lpn, data, false));
                }
                let slot = self.slot(lpn).expect("inserted above");
                if self.keys[slot].state == State::Invalid {
                    self.replay(now, slot);
                }
            }
        }
    }

    /// A page that a peer asked for cannot be read here.
    fn tell_loss(&mut self, peer: usize, lpn: Lpn, version: Version) {
        let mut header = self.to_peer(Op::Pull, &self.peers[peer].member, lpn);
        header.version = version;
        header.code = Code::Damaged;
        header.flags |= flags::REPLY;
        self.effects.push_back(Effect::Send(Packet::bare(header)));
    }

    /// Sends a page to a peer that asked for it. `Accept` says that it is Valid here, so no validation will follow.
    fn push_page(&mut self, peer: usize, lpn: Lpn, data: Cached) {
        let mut header = self.to_peer(Op::Inv, &self.peers[peer].member, lpn);
        header.version = data.version;
        header.flags |= flags::REPLAY;
        let undecided = self.slot(lpn).map(|slot| &self.keys[slot]);
        if undecided.is_some_and(|key| key.durable) {
            // Its acknowledgement counts as one of the write.
            header.flags |= flags::DURABLE;
        }
        let decided = self.serving && !self.missed && undecided.is_none();
        let mut packet = Packet::with_page(header, data.page, data.crc);
        if decided {
            packet.header.code = Code::Accept;
        }
        self.effects.push_back(Effect::Send(packet));
    }

    /// Rule 7: sends the value in hand again as its coordinator.
    fn replay(&mut self, now: Instant, slot: u32) {
        let all = self.all_peers();
        let key = &mut self.keys[slot];
        key.state = State::Replay;
        key.restart(now, all);
        if all == 0 {
            self.settle(slot);
        } else {
            self.broadcast(slot);
        }
    }

    /// True if the newest version of a page is decided here.
    fn is_decided(&self, lpn: Lpn) -> bool {
        !self.missed && self.slot(lpn).is_none()
    }

    /// Takes every step of catching up that is due. The host calls this after each input while not serving.
    pub fn catch_up_step(&mut self, store: &impl Store) {
        if self.serving || self.epoch.is_none() {
            return;
        }
        let mut catch_up = core::mem::take(&mut self.catch_up);
        let is_done = catch_up.step(store, |lpn| self.is_decided(lpn));
        self.catch_up = catch_up;
        self.send_asks();
        if is_done {
            self.start_serving();
        }
    }

    fn send_asks(&mut self) {
        while let Some(ask) = self.catch_up.poll(self.yields) {
            self.send_ask(ask);
        }
    }

    fn send_ask(&mut self, ask: Ask) {
        match ask {
            Ask::Digest(peer, first, versions) => {
                let header = self.to_peer(Op::Digest, &self.peers[peer].member, first);
                let packet = Packet::with_record(header, versions);
                self.effects.push_back(Effect::Send(packet));
            }
            Ask::Pull(peer, lpn) if self.yields => self.pull_as(peer, lpn, Code::Background),
            Ask::Pull(peer, lpn) => self.pull(peer, lpn),
            Ask::Replay(lpn) => self.effects.push_back(Effect::Fetch(lpn, Fetch::Replay)),
            Ask::Overrule(lpn, ours) => {
                let mut peers = self.peers.iter();
                let Some(peer) = peers.find(|peer| Some(peer.member.vssd) == self.coordinator) else {
                    return;
                };
                let mut header = self.to_peer(Op::Pull, &peer.member, lpn);
                (header.code, header.version) = (Code::Stale, ours);
                self.effects.push_back(Effect::Send(Packet::bare(header)));
            }
        }
    }

    /// True if it lacks a page that it can ask for: it joins a set whose clients do not wait for it.
    pub fn wants_page(&self) -> bool {
        self.yields && !self.serving && self.catch_up.wants_pull()
    }

    /// Asks for one page more, as [`wants_page`](Replica::wants_page) says.
    pub fn pull_page(&mut self) {
        if let Some(ask) = self.catch_up.next_pull() {
            self.send_ask(ask);
        }
    }

    /// A starting peer tells what it has.
    fn receive_digest(&mut self, peer: usize, packet: &Packet, store: &impl Store) {
        let first = lpn_of(&packet.header);
        let is_decided = |lpn| self.is_decided(lpn);
        let answer = catchup::answer(first, packet.record(), store, is_decided, self.yields);
        let mut header = self.to_peer(Op::Digest, &self.peers[peer].member, first);
        header.flags |= flags::REPLY;
        // Nobody serves without an answer of every peer in its epoch: so all learn of it if one kept its memory, and
        // all tell gateways the same continuity. A greeting could be late or lost.
        self.tell_continuity(&mut header);
        self.effects
            .push_back(Effect::Send(Packet::with_record(header, answer)));
    }

    fn receive_digest_reply(&mut self, peer: usize, packet: &Packet, store: &impl Store) {
        let first = lpn_of(&packet.header);
        let (answer, yields) = (packet.record(), self.yields);
        if self.catch_up.answered(peer, first, answer, store, yields) {
            self.hear_continuity(peer, &packet.header);
            self.send_asks();
        }
    }

    /// Asks every peer for a page: ours is damaged.
    pub fn pull_from_all(&mut self, lpn: Lpn) {
        (0..self.peers.len()).for_each(|peer| self.pull(peer, lpn));
    }

    /// Asks a peer for a page.
    fn pull(&mut self, peer: usize, lpn: Lpn) {
        self.pull_as(peer, lpn, Code::SoftOrOk);
    }

    fn pull_as(&mut self, peer: usize, lpn: Lpn, code: Code) {
        let mut header = self.to_peer(Op::Pull, &self.peers[peer].member, lpn);
        header.code = code;
        self.effects.push_back(Effect::Send(Packet::bare(header)));
    }

    fn hello(&self, peer: usize, reply: bool) -> Effect {
        let mut header = self.to_peer(Op::Hello, &self.peers[peer].member, Lpn(0));
        header.flags |= if reply { flags::REPLY } else { 0 };
        self.tell_continuity(&mut header);
        Effect::Send(Packet::bare(header))
    }

    /// Says whether this replica has kept its memory since it served, and under which continuity.
    fn tell_continuity(&self, header: &mut Header) {
        header.floor = self.continuity;
        header.code = if self.has_served && !self.missed {
            Code::SoftOrOk
        } else {
            Code::Busy
        };
    }

    /// The news of a peer by [`tell_continuity`](Replica::tell_continuity). A replica that has served has done so until it
    /// starts anew, so a message that says otherwise is late.
    fn hear_continuity(&mut self, peer: usize, header: &Header) {
        if header.code == Code::SoftOrOk {
            self.peers[peer].serving = Some(header.floor);
        }
    }

    fn receive_hello(&mut self, now: Instant, peer: usize, packet: &Packet) {
        let header = &packet.header;
        let known = self.peers[peer].boot;
        if known.is_some_and(|boot| header.session < boot) {
            return;
        }
        if known != Some(header.session) {
            self.peers[peer].boot = Some(header.session);
            self.peers[peer].serving = None;
            let (vssd, peer) = (self.me.vssd, self.peers[peer].member.vssd);
            let boot = header.session;
            self.effects
                .push_back(Effect::Event(Kind::MemberGreeted { vssd, peer, boot }));
            self.form_epoch(now);
        }
        self.hear_continuity(peer, header);
        if !header.has(flags::REPLY) {
            let reply = self.hello(peer, true);
            self.effects.push_back(reply);
        }
    }

    /// Rule 8: all acknowledgements start over in the new epoch.
    fn form_epoch(&mut self, now: Instant) {
        let mut boots = vec![(self.me.vssd, self.me.boot)];
        for peer in &self.peers {
            let Some(boot) = peer.boot else { return };
            boots.push((peer.member.vssd, boot));
        }
        self.epoch = Some(epoch_of(self.generation, boots));
        if !self.serving {
            self.catch_up.restart();
        }
        let all = self.all_peers();
        for slot in 0..self.keys.bound() {
            let Some(key) = self.keys.get_mut(slot) else {
                continue;
            };
            if key.state != State::Invalid {
                key.restart(now, all);
                self.broadcast(slot);
                if all == 0 {
                    self.settle(slot);
                }
            }
        }
    }

    /// Everything the peers hold is here.
    fn start_serving(&mut self) {
        if !self.has_served {
            let kept = self.peers.iter().find_map(|peer| peer.serving);
            self.continuity = kept.unwrap_or(self.epoch());
        }
        if !self.serving {
            let (vssd, epoch) = (self.me.vssd, self.epoch());
            self.effects
                .push_back(Effect::Event(Kind::ReplicaServing { vssd, epoch }));
        }
        (self.serving, self.has_served, self.yields) = (true, true, false);
        self.hello_at = None;
    }

    /// The next effect.
    pub fn poll(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// When to [`tick`](Replica::tick).
    pub fn deadline(&self) -> Option<Instant> {
        earliest(earliest(self.scan_at, self.hello_at), self.fenced_until)
    }

    /// Lets time pass: greets, sends again, replays.
    pub fn tick(&mut self, now: Instant, store: &impl Store) {
        if self.fenced_until.take_if(|until| now >= *until).is_some() {
            for slot in 0..self.keys.bound() {
                let key = self.keys.get(slot);
                if key.is_some_and(|key| key.state != State::Invalid) {
                    self.settle(slot);
                }
            }
        }
        if self.hello_at.is_some_and(|at| now >= at) {
            for peer in 0..self.peers.len() {
                let hello = self.hello(peer, false);
                self.effects.push_back(hello);
                if self.peers[peer].boot.is_none() {
                    self.note_silence(peer, now.since(self.greets_since));
                }
            }
            let advances = !self.serving && self.epoch.is_some() && !self.catch_up.resend(store, self.yields);
            self.in_vain = match advances {
                true => 0,
                false => HELLO_DOUBLINGS_MAX.min(self.in_vain + 1),
            };
            self.hello_at = (!self.serving).then(|| now + HELLO_EVERY * (1 << (self.in_vain.max(1) - 1)));
            self.send_asks();
        }
        if self.scan_at.is_some_and(|at| now >= at) {
            self.scan(now);
            self.scan_at = (!self.index.is_empty()).then_some(now + SCAN_EVERY);
        }
    }

    /// A peer has answered nothing for this long.
    fn note_silence(&mut self, peer: usize, waited: Duration) {
        let lost = &mut self.peers[peer];
        if waited >= LOST_AFTER && !core::mem::replace(&mut lost.lost, true) {
            let (vssd, peer) = (self.me.vssd, lost.member.vssd);
            let kind = match self.serving {
                true => Kind::MemberLost { vssd, peer, waited },
                // It may be that nobody counts on what is here: its medium is from elsewhere, or was taken out of the rack.
                false => Kind::MemberUnmet { vssd, peer, waited },
            };
            self.effects.push_back(Effect::Event(kind));
        }
    }

    /// A peer that was lost speaks.
    #[cold]
    fn note_back(&mut self, peer: usize) {
        self.peers[peer].lost = false;
        let (vssd, peer) = (self.me.vssd, self.peers[peer].member.vssd);
        self.effects
            .push_back(Effect::Event(Kind::MemberBack { vssd, peer }));
    }

    fn scan(&mut self, now: Instant) {
        for slot in 0..self.keys.bound() {
            let Some(key) = self.keys.get_mut(slot) else {
                continue;
            };
            match key.state {
                State::Invalid if now.since(key.since) >= REPLAY_AFTER => self.replay(now, slot),
                State::Write | State::Replay if key.is_due(now) => {
                    let (silent, since) = (key.awaited(), key.since);
                    key.resend(now);
                    for peer in (0..self.peers.len()).filter(|peer| silent & 1 << peer != 0) {
                        let since = since.max(self.peers[peer].heard_at);
                        self.note_silence(peer, now.since(since));
                    }
                    self.broadcast(slot);
                }
                _ => {}
            }
        }
    }
}

//! The ToR switch (RackBlox §3.3, §3.5): replica table, destination table and Algorithm 1, with GC bits as leases.
//!
//! Differences from the paper, and why:
//! - a GC bit carries the time at which it lapses: a server that dies while collecting would otherwise redirect its
//!   reads for ever. A collecting server renews its bit by sending its request again;
//! - a vSSD may have up to two replicas beside itself; a soft request is delayed if either collects, a read is
//!   redirected to the first that does not;
//! - packets about collection are numbered; one that was overtaken by a later one of its vSSD is dropped, as an old
//!   `finish` would clear the bit of a later collection;
//! - a ToR that has just learnt of a vSSD does not know whether it collects, so for one lease it delays soft requests of
//!   the vSSD and of its replicas;
//! - where a rack has two ToRs, a soft request is delayed unless the vSSD and its replicas have promised to ask this one alone
//!   ([`crate::promise`]);
//! - a packet is processed as one step, so the recirculation of a soft request (line 12) is not needed, and two soft
//!   requests can never both be accepted.

mod leases;

use crate::heal::is_refused_as_stranger;
use crate::promise;
use base::event::{Collection, Kind, Obstacle};
use base::{Addr, Duration, Instant, Map, Slab, VssdId, limits::VSSDS_MAX};
use leases::Leases;
use std::collections::VecDeque;
use wire::rack::{Code, Header, Op, flags};

/// A vSSD's registration: what `create_vssd` carries (RackBlox §3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The vSSD.
    pub vssd: VssdId,
    /// Its server.
    pub server: Addr,
    /// Its replicas in this rack and their servers; unused places are `None`.
    pub replicas: [Option<(VssdId, Addr)>; 2],
}

impl Registration {
    const REPLICA_BYTES: usize = 10;

    /// The payload of a `create_vssd` packet: server IP, then for each replica its vSSD and its server's IP, as in
    /// the paper, each address followed by its UDP port.
    pub fn emit(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(26);
        push_addr(&mut bytes, self.server);
        for (vssd, server) in self.replicas.iter().flatten() {
            bytes.extend_from_slice(&vssd.0.to_be_bytes());
            push_addr(&mut bytes, *server);
        }
        bytes
    }

    /// Reads the payload of a `create_vssd` packet for `vssd`; `None` if it is malformed.
    pub fn parse(vssd: VssdId, bytes: &[u8]) -> Option<Self> {
        let (server, rest) = bytes.split_first_chunk::<6>()?;
        let mut replicas = [None; 2];
        let chunks = rest.chunks_exact(Self::REPLICA_BYTES);
        if !chunks.remainder().is_empty() || chunks.len() > replicas.len() {
            return None;
        }
        for (place, chunk) in replicas.iter_mut().zip(chunks) {
            let (id, addr) = chunk.split_first_chunk::<4>()?;
            *place = Some((VssdId(u32::from_be_bytes(*id)), addr_of(addr.first_chunk()?)));
        }
        Some(Self {
            vssd,
            server: addr_of(server),
            replicas,
        })
    }
}

fn push_addr(bytes: &mut Vec<u8>, addr: Addr) {
    bytes.extend_from_slice(&addr.ip.to_be_bytes());
    bytes.extend_from_slice(&addr.port.to_be_bytes());
}

fn addr_of(bytes: &[u8; 6]) -> Addr {
    let [a, b, c, d, p, q] = *bytes;
    Addr::new([a, b, c, d], u16::from_be_bytes([p, q]))
}

/// A GC bit that lapses. `Instant::ZERO` is clear.
#[derive(Clone, Copy, Debug, Default)]
struct Lease(Instant);

impl Lease {
    fn is_set(self, now: Instant) -> bool {
        now < self.0
    }
}

/// A ToR that started so recently may not know all vSSDs: servers register theirs once a second.
const YOUNG_FOR: Duration = Duration::from_secs(2);

/// A row of the replica table (RackBlox Figure 5a).
#[derive(Clone, Copy, Debug)]
struct ReplicaRow {
    gc: Lease,
    /// The vSSD may collect without our knowing before this.
    unknown: Lease,
    /// The vSSD asks no other ToR.
    promised: Lease,
    /// Session and number of its last packet about collection.
    gc_seen: (u32, u64),
    replicas: [Option<VssdId>; 2],
}

/// A server that registers a vSSD is believed for so long that it has the vSSD. It does so once a second.
const BELIEVED_FOR: Duration = Duration::from_secs(3);

/// A row of the destination table (RackBlox Figure 5b).
#[derive(Clone, Copy, Debug)]
struct DestinationRow {
    gc: Lease,
    server: Addr,
    /// A gateway has opened the vSSD there: no other server has it.
    is_opened: bool,
    /// The server has registered it and is believed.
    believed: Lease,
    /// The server has told a gateway that it has something else of the number. It is not believed, and has it until another one registers it.
    doubted: Lease,
    /// Another server that said to have it, as told.
    other: Addr,
}

/// One vSSD in both tables.
#[derive(Clone, Copy, Debug)]
struct Row {
    replica: ReplicaRow,
    destination: DestinationRow,
}

/// The fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Send it, as changed, to this address.
    Forward(Addr),
    /// No table knows where it goes: count it and let the sender try again.
    Unroutable,
    /// A later packet of its sender was here before.
    Overtaken,
    /// It is for the ToR and makes no sense, or a table is full; the answer, as changed, goes back.
    Refuse(Addr),
}

/// Counters of a ToR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Packets sent on.
    pub forwarded: u64,
    /// Reads sent to the replica instead.
    pub redirected: u64,
    /// Packets with no known destination.
    pub unroutable: u64,
    /// GC requests accepted, of any kind.
    pub gc_accepted: u64,
    /// Soft requests of these.
    pub gc_soft: u64,
    /// Soft GC requests delayed.
    pub gc_delayed: u64,
}

/// The switch's data plane.
#[derive(Debug)]
pub struct Tor {
    index: Map<u32, u32>,
    rows: Slab<Row>,
    gc_lease: Duration,
    vssds_max: usize,
    stats: Stats,
    leases: Leases,
    events: VecDeque<Kind>,
    /// When its first packet came.
    began: Option<Instant>,
}

impl Tor {
    /// A ToR with empty tables; GC bits lapse `gc_lease` after they were last set.
    pub fn new(gc_lease: Duration) -> Self {
        Self {
            index: Map::new(),
            rows: Slab::new(),
            gc_lease,
            vssds_max: VSSDS_MAX,
            stats: Stats::default(),
            leases: Leases::new(gc_lease),
            events: VecDeque::new(),
            began: None,
        }
    }

    /// Algorithm 1: decides about one packet and rewrites its header. `record` is the payload of a control packet.
    pub fn process(&mut self, now: Instant, header: &mut Header, record: &[u8]) -> Verdict {
        let verdict = match header.op {
            Op::Open if header.has(flags::REPLY) && header.code == Code::SoftOrOk => self.opened(header),
            _ if header.has(flags::REPLY)
                && (is_refused_as_stranger(header.code) || header.code == Code::Past) =>
            {
                self.doubt(now, header)
            }
            _ if header.has(flags::REPLY) => to_target(header),
            // For a central controller, which decides instead.
            Op::GcOp | Op::CreateVssd if !header.target.is_none() => to_target(header),
            Op::Read => self.process_read(now, header),
            Op::GcOp => self.process_gc(now, header),
            Op::CreateVssd => self.create(now, header, record),
            Op::DelVssd => self.delete(now, header),
            Op::Status if header.target.is_none() => self.greet(now, header),
            _ if !header.target.is_none() => to_target(header),
            _ => self.to_vssd(header),
        };
        match verdict {
            Verdict::Forward(_) => self.stats.forwarded += 1,
            Verdict::Unroutable => self.stats.unroutable += 1,
            Verdict::Refuse(_) | Verdict::Overtaken => {}
        }
        verdict
    }

    fn row(&self, vssd: VssdId) -> Option<&Row> {
        self.index.get(&vssd.0).map(|&row| &self.rows[row])
    }

    fn row_mut(&mut self, vssd: VssdId) -> Option<&mut Row> {
        self.index.get(&vssd.0).map(|&row| &mut self.rows[row])
    }

    /// Lines 4–9.
    fn process_read(&mut self, now: Instant, header: &mut Header) -> Verdict {
        let Some(row) = self.row(header.vssd) else {
            return Verdict::Unroutable;
        };
        if !header.has(flags::PINNED)
            && row.replica.gc.is_set(now)
            && let Some(replica) = self.idle_replica(now, header.vssd)
        {
            header.vssd = replica;
            header.flags |= flags::REDIRECTED;
            self.stats.redirected += 1;
        }
        self.to_vssd(header)
    }

    /// Lines 10–25.
    #[cold]
    fn process_gc(&mut self, now: Instant, header: &mut Header) -> Verdict {
        let Some(row) = self.row_mut(header.vssd) else {
            return Verdict::Unroutable;
        };
        let sent = (header.session, header.request);
        if sent < row.replica.gc_seen {
            return Verdict::Overtaken;
        }
        row.replica.gc_seen = sent;
        self.leases.spoke(now, header, &mut self.events);
        let answer = match header.code {
            Code::SoftOrOk => {
                if let Some(why) = self.obstacle(now, header.vssd) {
                    let vssd = header.vssd;
                    self.events.push_back(Kind::CollectionDelayed { vssd, why });
                    self.end_lease(now, vssd);
                    Code::Delay
                } else {
                    self.stats.gc_soft += 1;
                    self.lease(now, header, Collection::Soft);
                    Code::Accept
                }
            }
            Code::Regular => {
                self.lease(now, header, Collection::Regular);
                Code::Accept
            }
            Code::Background => {
                self.lease(now, header, Collection::Background);
                Code::Accept
            }
            Code::Finish => {
                self.end_lease(now, header.vssd);
                Code::Finish
            }
            _ => Code::Refused,
        };
        match answer {
            Code::Accept => self.stats.gc_accepted += 1,
            Code::Delay => self.stats.gc_delayed += 1,
            _ => {}
        }
        *header = header.reply(answer);
        to_target(header)
    }

    /// Why a vSSD's soft collection has to wait, if it has.
    fn obstacle(&self, now: Instant, vssd: VssdId) -> Option<Obstacle> {
        let row = self.row(vssd)?.replica;
        if !row.promised.is_set(now) {
            return Some(Obstacle::Elsewhere);
        }
        let mut replicas = row.replicas.into_iter().flatten();
        replicas.find_map(|replica| match self.row(replica) {
            Some(other) if other.destination.gc.is_set(now) => Some(Obstacle::Collects),
            Some(other) if other.replica.unknown.is_set(now) => Some(Obstacle::Unknown),
            Some(other) if !other.replica.promised.is_set(now) => Some(Obstacle::Elsewhere),
            Some(_) => None,
            None => Some(Obstacle::Unknown),
        })
    }

    /// Says whether it is there and knows the vSSDs.
    #[cold]
    fn greet(&mut self, now: Instant, header: &mut Header) -> Verdict {
        let began = *self.began.get_or_insert(now);
        let is_young = now.since(began) < YOUNG_FOR;
        *header = header.reply(if is_young { Code::Busy } else { Code::SoftOrOk });
        to_target(header)
    }

    /// Sets the GC bit of the vSSD that asks.
    fn lease(&mut self, now: Instant, header: &Header, collection: Collection) {
        let vssd = header.vssd;
        let server = self.set_gc(vssd, Lease(now + self.gc_lease));
        let event = match self.leases.hold(now, vssd, server, header.session) {
            true => Kind::LeaseGranted { vssd, collection },
            false => Kind::LeaseRenewed { vssd },
        };
        self.events.push_back(event);
    }

    fn end_lease(&mut self, now: Instant, vssd: VssdId) {
        self.set_gc(vssd, Lease::default());
        if let Some(held) = self.leases.release(now, vssd) {
            self.events.push_back(Kind::LeaseEnded { vssd, held });
        }
    }

    /// Both tables change in one step, so they never disagree. Returns the vSSD's server.
    fn set_gc(&mut self, vssd: VssdId, lease: Lease) -> Addr {
        let row = self.row_mut(vssd).expect("its packet named a known vSSD");
        row.replica.gc = lease;
        row.destination.gc = lease;
        row.destination.server
    }

    #[cold]
    fn create(&mut self, now: Instant, header: &mut Header, record: &[u8]) -> Verdict {
        self.began.get_or_insert(now);
        let registration = Registration::parse(header.vssd, record);
        let code = match registration {
            Some(registration) if self.is_anothers(now, &registration) => Code::Refused,
            Some(registration) if self.register(now, &registration) => {
                self.promise(now, header);
                let server = registration.server;
                self.leases
                    .registered(now, server, header.session, &mut self.events);
                Code::SoftOrOk
            }
            Some(registration) => {
                let Registration { vssd, server, .. } = registration;
                self.events.push_back(Kind::VssdUnregistered { vssd, server });
                Code::NoSpace
            }
            None => Code::Refused,
        };
        answer(header, code)
    }

    /// True if another server has the vSSD: this one has a medium from elsewhere, with a vSSD of the same number. Numbers are not given
    /// twice in a rack. Of two servers that register it, the one has it where a gateway has opened it: the gateway looks at what the vSSD
    /// is part of. Before that, the one has it that was there first and still is.
    fn is_anothers(&mut self, now: Instant, registration: &Registration) -> bool {
        let Registration { vssd, server, .. } = *registration;
        let Some(row) = self.row_mut(vssd) else {
            return false;
        };
        let known = &mut row.destination;
        if known.server == server || !known.is_opened && !known.believed.is_set(now) {
            return false;
        }
        if known.other != server {
            known.other = server;
            self.events.push_back(Kind::VssdContested { vssd, server });
        }
        true
    }

    /// A gateway has opened the vSSD at the server that answers.
    #[cold]
    fn opened(&mut self, header: &mut Header) -> Verdict {
        let server = header.source;
        if let Some(row) = self.row_mut(header.vssd) {
            if row.destination.server != server {
                row.destination.server = server;
                row.replica.replicas = [None; 2];
            }
            row.destination.is_opened = true;
            row.destination.doubted = Lease::default();
        }
        to_target(header)
    }

    /// A server has something else of the vSSD's number than a gateway asks for.
    #[cold]
    fn doubt(&mut self, now: Instant, header: &mut Header) -> Verdict {
        let server = header.source;
        if let Some(row) = self.row_mut(header.vssd)
            && row.destination.server == server
        {
            let known = &mut row.destination;
            (known.is_opened, known.believed) = (false, Lease::default());
            known.doubted = Lease(now + BELIEVED_FOR);
        }
        to_target(header)
    }

    /// Inserts or updates a vSSD; false when the tables are full. GC bits of a known vSSD stay as they are.
    pub fn register(&mut self, now: Instant, registration: &Registration) -> bool {
        let replicas = registration.replicas.map(|replica| replica.map(|(vssd, _)| vssd));
        if let Some(row) = self.row_mut(registration.vssd) {
            let known = &mut row.destination;
            if known.server != registration.server {
                (known.server, known.doubted) = (registration.server, Lease::default());
            }
            if !known.doubted.is_set(now) {
                known.believed = Lease(now + BELIEVED_FOR);
            }
            row.replica.replicas = replicas;
            return true;
        }
        if self.index.len() >= self.vssds_max {
            return false;
        }
        let replica = ReplicaRow {
            gc: Lease::default(),
            unknown: Lease(now + self.gc_lease),
            promised: Lease(Instant::FAR_FUTURE),
            gc_seen: (0, 0),
            replicas,
        };
        let destination = DestinationRow {
            gc: Lease::default(),
            server: registration.server,
            is_opened: false,
            believed: Lease(now + BELIEVED_FOR),
            doubted: Lease::default(),
            other: Addr::NONE,
        };
        let row = self.rows.insert(Row { replica, destination });
        self.index.insert(registration.vssd.0, row);
        let Registration { vssd, server, .. } = *registration;
        self.events.push_back(Kind::VssdRegistered { vssd, server });
        true
    }

    /// A vSSD says whether it asks this ToR alone.
    fn promise(&mut self, now: Instant, header: &Header) {
        let until = match header.code {
            // It knows no other.
            Code::SoftOrOk => Instant::FAR_FUTURE,
            Code::Accept => now + promise::HOLDS,
            _ => Instant::ZERO,
        };
        let row = self.row_mut(header.vssd).expect("it was registered");
        row.replica.promised = Lease(until);
    }

    #[cold]
    fn delete(&mut self, now: Instant, header: &mut Header) -> Verdict {
        let vssd = header.vssd;
        let server = self.row(vssd).map(|row| row.destination.server);
        if server.is_some_and(|server| server != header.source) {
            // It is another one of the same number.
            return answer(header, Code::SoftOrOk);
        }
        if let Some(row) = self.index.remove(&vssd.0) {
            self.rows.remove(row);
            if let Some(held) = self.leases.release(now, vssd) {
                self.events.push_back(Kind::LeaseEnded { vssd, held });
            }
        }
        answer(header, Code::SoftOrOk)
    }

    fn to_vssd(&self, header: &mut Header) -> Verdict {
        match self.row(header.vssd) {
            Some(row) => {
                header.target = row.destination.server;
                Verdict::Forward(header.target)
            }
            None => Verdict::Unroutable,
        }
    }

    /// True if the vSSD's GC bit is set.
    pub fn is_collecting(&self, now: Instant, vssd: VssdId) -> bool {
        self.row(vssd).is_some_and(|row| row.replica.gc.is_set(now))
    }

    /// The first replica of a vSSD that does not collect.
    pub fn idle_replica(&self, now: Instant, vssd: VssdId) -> Option<VssdId> {
        let replicas = self.row(vssd)?.replica.replicas;
        replicas.into_iter().flatten().find(|&replica| {
            let other = self.row(replica);
            other.is_some_and(|other| !other.destination.gc.is_set(now))
        })
    }

    /// vSSDs in the tables.
    pub fn vssds(&self) -> usize {
        self.index.len()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Kind> {
        self.events.pop_front()
    }

    /// When to [`tick`](Tor::tick).
    pub fn deadline(&self) -> Option<Instant> {
        self.leases.deadline()
    }

    /// Lets time pass: tells of leases that lapsed.
    pub fn tick(&mut self, now: Instant) {
        self.leases.tick(now, &mut self.events);
    }

    /// Counters since the start.
    pub fn stats(&self) -> Stats {
        self.stats
    }
}

fn to_target(header: &Header) -> Verdict {
    if header.target.is_none() {
        Verdict::Unroutable
    } else {
        Verdict::Forward(header.target)
    }
}

fn answer(header: &mut Header, code: Code) -> Verdict {
    *header = header.reply(code);
    if header.target.is_none() {
        Verdict::Unroutable
    } else if code == Code::SoftOrOk {
        Verdict::Forward(header.target)
    } else {
        Verdict::Refuse(header.target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: VssdId = VssdId(1);
    const B: VssdId = VssdId(2);
    const SERVER_A: Addr = Addr::new([10, 0, 0, 1], 8888);
    const SERVER_B: Addr = Addr::new([10, 0, 0, 2], 8888);
    const CLIENT: Addr = Addr::new([10, 0, 0, 9], 8888);
    const LEASE: Duration = Duration::from_millis(100);

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn after_lease(ms: u64) -> Instant {
        at(ms) + LEASE
    }

    fn tor() -> Tor {
        let mut tor = Tor::new(LEASE);
        assert!(tor.register(
            Instant::ZERO,
            &Registration {
                vssd: A,
                server: SERVER_A,
                replicas: [Some((B, SERVER_B)), None]
            }
        ));
        assert!(tor.register(
            Instant::ZERO,
            &Registration {
                vssd: B,
                server: SERVER_B,
                replicas: [Some((A, SERVER_A)), None]
            }
        ));
        tor
    }

    /// A packet about collection at a time at which the ToR knows its vSSDs; numbered by the time.
    fn gc(tor: &mut Tor, now: Instant, vssd: VssdId, code: Code) -> Code {
        let now = now + LEASE;
        let mut header = Header {
            code,
            request: now.as_nanos(),
            source: SERVER_A,
            ..Header::new(Op::GcOp, vssd)
        };
        assert_eq!(tor.process(now, &mut header, &[]), Verdict::Forward(SERVER_A));
        header.code
    }

    fn read(tor: &mut Tor, now: Instant, vssd: VssdId) -> (Verdict, VssdId) {
        let now = now + LEASE;
        let mut header = Header {
            source: CLIENT,
            ..Header::new(Op::Read, vssd)
        };
        (tor.process(now, &mut header, &[]), header.vssd)
    }

    #[test]
    fn a_read_of_a_collecting_vssd_goes_to_its_idle_replica() {
        let mut tor = tor();
        assert_eq!(read(&mut tor, at(1), A), (Verdict::Forward(SERVER_A), A));
        assert_eq!(gc(&mut tor, at(1), A, Code::SoftOrOk), Code::Accept);
        assert_eq!(read(&mut tor, at(2), A), (Verdict::Forward(SERVER_B), B));
        assert_eq!(read(&mut tor, at(2), B), (Verdict::Forward(SERVER_B), B));
        assert_eq!(gc(&mut tor, at(3), A, Code::Finish), Code::Finish);
        assert_eq!(read(&mut tor, at(3), A), (Verdict::Forward(SERVER_A), A));
    }

    fn create(tor: &mut Tor, now: Instant, vssd: VssdId, server: Addr) {
        let registration = Registration {
            vssd,
            server,
            replicas: [None; 2],
        };
        let mut header = Header {
            source: server,
            ..Header::new(Op::CreateVssd, vssd)
        };
        tor.process(now, &mut header, &registration.emit());
    }

    /// bug: one of two servers had a medium from elsewhere, so both had a vSSD of one number, and each got the reads for a second.
    /// fix: the server has it where a gateway has opened it, and before that the first one that goes on to register it.
    #[test]
    fn a_server_with_a_stranger_of_the_same_number_gets_no_packet() {
        let mut tor = tor();
        let strange = Addr::new([10, 0, 0, 3], 8888);
        let contested = Some(Kind::VssdContested {
            vssd: A,
            server: strange,
        });
        while tor.poll_event().is_some() {}
        for second in 1..10 {
            create(&mut tor, at(second * 1000), A, SERVER_A);
            create(&mut tor, at(second * 1000 + 500), A, strange);
            let (verdict, _) = read(&mut tor, at(second * 1000 + 501), A);
            assert_eq!(verdict, Verdict::Forward(SERVER_A));
        }
        assert_eq!(
            (tor.poll_event(), tor.poll_event()),
            (contested, None),
            "it is told once"
        );
        // A switch that has just started heard the stranger first: it says so when it is asked, and the next one that registers has the vSSD.
        let mut started = Tor::new(LEASE);
        create(&mut started, at(0), A, strange);
        create(&mut started, at(1), A, SERVER_A);
        let mut refused = Header {
            source: strange,
            target: CLIENT,
            ..Header::new(Op::Write, A).reply(Code::OtherSet)
        };
        assert_eq!(
            started.process(at(2), &mut refused, &[]),
            Verdict::Forward(CLIENT)
        );
        create(&mut started, at(1_000), A, strange);
        assert_eq!(
            read(&mut started, at(1_001), A).0,
            Verdict::Forward(strange),
            "there is no other"
        );
        for second in 1..10 {
            create(&mut started, at(second * 1000 + 2), A, SERVER_A);
            create(&mut started, at(second * 1000 + 500), A, strange);
            let (verdict, _) = read(&mut started, at(second * 1000 + 501), A);
            assert_eq!(verdict, Verdict::Forward(SERVER_A));
        }
        // The server has another address now, or a switch that has just started heard the stranger first.
        create(&mut tor, at(20_000), A, strange);
        assert_eq!(read(&mut tor, at(20_001), A).0, Verdict::Forward(strange));
        let mut opened = Header {
            source: SERVER_A,
            target: CLIENT,
            ..Header::new(Op::Open, A).reply(Code::SoftOrOk)
        };
        assert_eq!(
            tor.process(at(20_002), &mut opened, &[]),
            Verdict::Forward(CLIENT)
        );
        assert_eq!(read(&mut tor, at(20_003), A).0, Verdict::Forward(SERVER_A));
        // However long it is away then.
        create(&mut tor, at(60_000), A, strange);
        let mut deleted = Header {
            source: strange,
            ..Header::new(Op::DelVssd, A)
        };
        tor.process(at(60_001), &mut deleted, &[]);
        assert_eq!(read(&mut tor, at(60_002), A).0, Verdict::Forward(SERVER_A));
    }

    #[test]
    fn when_both_collect_a_read_stays() {
        let mut tor = tor();
        assert_eq!(gc(&mut tor, at(1), A, Code::SoftOrOk), Code::Accept);
        assert_eq!(gc(&mut tor, at(1), B, Code::Regular), Code::Accept);
        assert_eq!(read(&mut tor, at(2), A), (Verdict::Forward(SERVER_A), A));
    }

    #[test]
    fn two_soft_requests_are_never_both_accepted() {
        let mut tor = tor();
        assert_eq!(gc(&mut tor, at(1), A, Code::SoftOrOk), Code::Accept);
        assert_eq!(gc(&mut tor, at(1), B, Code::SoftOrOk), Code::Delay);
        assert!(
            !tor.is_collecting(after_lease(1), B),
            "a delayed request leaves no bit behind"
        );
        assert_eq!(gc(&mut tor, at(2), A, Code::Finish), Code::Finish);
        assert_eq!(gc(&mut tor, at(2), B, Code::SoftOrOk), Code::Accept);
    }

    #[test]
    fn a_dead_collectors_bit_lapses_and_a_live_ones_is_renewed() {
        let mut tor = tor();
        assert_eq!(gc(&mut tor, at(0), A, Code::Background), Code::Accept);
        assert_eq!(gc(&mut tor, at(80), A, Code::Background), Code::Accept);
        assert!(tor.is_collecting(after_lease(150), A));
        assert!(!tor.is_collecting(after_lease(180), A));
        assert_eq!(read(&mut tor, at(181), A).0, Verdict::Forward(SERVER_A));
    }

    #[test]
    fn a_finish_that_was_overtaken_does_not_clear_a_later_collection() {
        let mut tor = tor();
        assert_eq!(gc(&mut tor, at(5), A, Code::SoftOrOk), Code::Accept);
        let mut late = Header {
            code: Code::Finish,
            request: 1,
            source: SERVER_A,
            ..Header::new(Op::GcOp, A)
        };
        assert_eq!(tor.process(after_lease(6), &mut late, &[]), Verdict::Overtaken);
        assert!(tor.is_collecting(after_lease(6), A));
    }

    #[test]
    fn a_tor_that_just_started_accepts_no_soft_request() {
        let mut tor = tor();
        let mut soft = Header {
            source: SERVER_A,
            ..Header::new(Op::GcOp, A)
        };
        tor.process(at(1), &mut soft, &[]);
        assert_eq!(
            soft.code,
            Code::Delay,
            "its replica may have been collecting before"
        );
    }

    fn register(tor: &mut Tor, now: Instant, vssd: VssdId, replica: VssdId, code: Code) {
        let server = if vssd == A { SERVER_A } else { SERVER_B };
        let record = Registration {
            vssd,
            server,
            replicas: [Some((replica, SERVER_B)), None],
        };
        let mut header = Header {
            code,
            source: server,
            ..Header::new(Op::CreateVssd, vssd)
        };
        assert_eq!(
            tor.process(now + LEASE, &mut header, &record.emit()),
            Verdict::Forward(server)
        );
        assert_eq!(header.code, Code::SoftOrOk);
    }

    #[test]
    fn of_two_tors_only_the_one_that_all_replicas_have_promised_accepts_soft_requests() {
        let mut tor = tor();
        register(&mut tor, at(1), A, B, Code::Accept);
        register(&mut tor, at(1), B, A, Code::Delay);
        assert_eq!(gc(&mut tor, at(2), A, Code::SoftOrOk), Code::Delay);
        assert_eq!(gc(&mut tor, at(2), B, Code::SoftOrOk), Code::Delay);
        register(&mut tor, at(500), B, A, Code::Accept);
        assert_eq!(gc(&mut tor, at(501), B, Code::SoftOrOk), Code::Accept);
        assert_eq!(gc(&mut tor, at(502), B, Code::Finish), Code::Finish);
        assert_eq!(
            gc(&mut tor, at(2_501), A, Code::SoftOrOk),
            Code::Delay,
            "A's promise has lapsed"
        );
        assert_eq!(gc(&mut tor, at(2_502), B, Code::SoftOrOk), Code::Delay);
        assert_eq!(
            gc(&mut tor, at(2_503), B, Code::Regular),
            Code::Accept,
            "it is never denied"
        );
    }

    #[test]
    fn a_tor_says_that_it_is_there_and_whether_it_is_new() {
        let mut tor = Tor::new(LEASE);
        let mut ask = |ms| {
            let mut header = Header {
                source: CLIENT,
                ..Header::new(Op::Status, VssdId(0))
            };
            assert_eq!(tor.process(at(ms), &mut header, &[]), Verdict::Forward(CLIENT));
            header.code
        };
        assert_eq!(
            [500, 2_499, 2_500].map(&mut ask),
            [Code::Busy, Code::Busy, Code::SoftOrOk]
        );
    }

    #[test]
    fn writes_are_not_redirected() {
        let mut tor = tor();
        gc(&mut tor, at(1), A, Code::Regular);
        let mut header = Header {
            source: CLIENT,
            ..Header::new(Op::Write, A)
        };
        assert_eq!(tor.process(at(1), &mut header, &[]), Verdict::Forward(SERVER_A));
    }

    #[test]
    fn the_tables_hold_the_whole_rack_and_refuse_one_more() {
        let mut tor = Tor::new(LEASE);
        for id in 0..VSSDS_MAX as u32 {
            assert!(tor.register(
                Instant::ZERO,
                &Registration {
                    vssd: VssdId(id),
                    server: SERVER_A,
                    replicas: [None; 2]
                }
            ));
        }
        let one_more = Registration {
            vssd: VssdId(u32::MAX),
            server: SERVER_A,
            replicas: [None; 2],
        };
        assert!(!tor.register(Instant::ZERO, &one_more));
        let mut header = Header {
            source: SERVER_A,
            ..Header::new(Op::DelVssd, VssdId(7))
        };
        assert_eq!(tor.process(at(0), &mut header, &[]), Verdict::Forward(SERVER_A));
        assert!(
            tor.register(Instant::ZERO, &one_more),
            "a deleted vSSD's row is used again"
        );
    }

    #[test]
    fn registrations_survive_the_wire_and_junk_is_refused() {
        for replicas in [
            [None; 2],
            [Some((B, SERVER_B)), None],
            [Some((B, SERVER_B)), Some((A, SERVER_A))],
        ] {
            let registration = Registration {
                vssd: A,
                server: SERVER_A,
                replicas,
            };
            assert_eq!(Registration::parse(A, &registration.emit()), Some(registration));
        }
        for bytes in [0, 5, 7, 15, 27, 36] {
            assert_eq!(Registration::parse(A, &vec![0; bytes]), None, "{bytes} bytes");
        }
    }
}

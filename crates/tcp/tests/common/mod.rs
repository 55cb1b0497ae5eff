//! Two stacks, a network between them that loses, repeats, turns round, delays, damages, marks and cuts, and applications that
//! know which byte they have to read next. Nothing here is taken from the crate under test but its interface.

use base::{Duration, Instant, Rng};
use std::collections::BTreeMap;
use tcp::addr::{Endpoint, Ip, Mac, Tuple};
use tcp::api::{Call, End, Event, FlowId, Moved, News, Refused, Request, Rings};
use tcp::config::Config;
use tcp::seq::Seq;
use tcp::stack::{Buffers, Bump, Stack, copy_in, copy_out};

/// The rings of a host's flows.
#[derive(Default)]
pub struct Memory {
    pub sizes: Option<Rings>,
    pub rings: BTreeMap<FlowId, (Vec<u8>, Vec<u8>)>,
}

impl Memory {
    fn of(&mut self, flow: FlowId) -> &mut (Vec<u8>, Vec<u8>) {
        let sizes = self.sizes.expect("rings have their sizes");
        let make = || (vec![0; 1 << sizes.receive], vec![0; 1 << sizes.transmit]);
        self.rings.entry(flow).or_insert_with(make)
    }
}

impl Buffers for Memory {
    fn place(&mut self, flow: FlowId, at: Seq, bytes: &[u8]) {
        copy_in(&mut self.of(flow).0, at, bytes);
    }
    fn fetch(&mut self, flow: FlowId, at: Seq, bytes: &mut [u8]) {
        copy_out(&self.of(flow).1, at, bytes);
    }
}

/// A stream whose bytes everybody can compute: of one direction of a connection.
#[derive(Clone, Debug)]
pub struct Stream {
    seed: u64,
    pub at: u64,
}

impl Stream {
    pub fn new(from: Endpoint, to: Endpoint) -> Self {
        let seed = u64::from(from.port) << 16 | u64::from(to.port);
        Self {
            seed: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            at: 0,
        }
    }

    fn byte(&self, at: u64) -> u8 {
        let word = (self.seed ^ at).wrapping_mul(0xd6e8_feb8_6659_fd93);
        (word >> 56) as u8 ^ (word >> 24) as u8
    }

    pub fn take(&mut self, count: usize) -> Vec<u8> {
        let bytes = (0..count as u64)
            .map(|index| self.byte(self.at + index))
            .collect();
        self.at += count as u64;
        bytes
    }
}

/// What an application does with its connections.
#[derive(Clone, Copy, Debug)]
pub struct Behaviour {
    /// Bytes that it writes.
    pub total: u64,
    /// Bytes that the peer writes.
    pub expected: u64,
    pub write_max: u64,
    pub read_max: u64,
    /// Time between two reads; zero reads at once.
    pub read_gap: Duration,
    /// It resets after so many bytes read.
    pub abort_after: Option<u64>,
    /// It closes instead of ending its stream, once it has read everything.
    pub closes: bool,
    pub no_delay: bool,
}

impl Behaviour {
    pub fn sends(total: u64, expected: u64) -> Self {
        Self {
            total,
            expected,
            write_max: 1 << 20,
            read_max: 1 << 20,
            read_gap: Duration::ZERO,
            abort_after: None,
            closes: true,
            no_delay: false,
        }
    }
}

/// A connection as an application sees it.
pub struct Conn {
    pub tuple: Tuple,
    pub behaviour: Behaviour,
    pub output: Stream,
    pub input: Stream,
    read_at: Seq,
    readable_to: Seq,
    write_at: Seq,
    freed_to: Seq,
    pub is_ended: bool,
    pub is_shut: bool,
    pub is_closing: bool,
    next_read: Instant,
}

/// A host with its one application.
pub struct Host {
    pub stack: Stack,
    pub memory: Memory,
    pub conns: BTreeMap<FlowId, Conn>,
    pub behaviour: Behaviour,
    pub ends: Vec<(Tuple, End)>,
    pub events: Vec<Event>,
    pub read_total: u64,
    /// Connections that ended before they were open.
    pub unopened: usize,
    pub mac: Mac,
    pub app: u16,
}

impl Host {
    pub fn new(config: Config, sizes: Rings, behaviour: Behaviour) -> Self {
        Self {
            mac: config.mac,
            stack: Stack::new(config),
            memory: Memory {
                sizes: Some(sizes),
                rings: BTreeMap::new(),
            },
            conns: BTreeMap::new(),
            behaviour,
            ends: Vec::new(),
            events: Vec::new(),
            read_total: 0,
            unopened: 0,
            app: 0,
        }
    }

    pub fn call(&mut self, now: Instant, call: Call) {
        let request = Request {
            app: self.app,
            opaque: 7,
            call,
        };
        self.stack.request(now, &request);
    }

    /// Does what the application would do on an event.
    fn take(&mut self, now: Instant, event: Event) {
        match event.news {
            News::Open {
                flow,
                tuple,
                read_from,
                write_from,
                ..
            } => {
                let conn = Conn {
                    tuple,
                    behaviour: self.behaviour,
                    output: Stream::new(tuple.local, tuple.remote),
                    input: Stream::new(tuple.remote, tuple.local),
                    read_at: read_from,
                    readable_to: read_from,
                    write_at: write_from,
                    freed_to: write_from,
                    is_ended: false,
                    is_shut: false,
                    is_closing: false,
                    next_read: now,
                };
                // A reset can be lost.
                let keep_alive = tcp::config::KeepAlive {
                    idle: Duration::from_secs(30),
                    interval: Duration::from_secs(5),
                    probes: 100,
                };
                self.call(
                    now,
                    Call::Set(flow, tcp::api::Setting::KeepAlive(Some(keep_alive))),
                );
                if self.behaviour.no_delay {
                    let setting = tcp::api::Setting::NoDelay(true);
                    self.call(now, Call::Set(flow, setting));
                }
                assert!(self.conns.insert(flow, conn).is_none(), "a flow opens once");
                self.act(now, flow);
            }
            News::Moved(Moved {
                flow,
                readable_to,
                freed_to,
                is_ended,
            }) => {
                let conn = self.conns.get_mut(&flow).expect("news of an open flow");
                assert!(
                    !readable_to.before(conn.readable_to),
                    "received bytes stay received"
                );
                assert!(!conn.write_at.before(freed_to), "freed is what was written");
                (conn.readable_to, conn.freed_to) = (readable_to, freed_to);
                conn.is_ended |= is_ended;
                self.act(now, flow);
            }
            News::Closed { flow, end } => {
                self.drain(flow);
                self.memory.rings.remove(&flow);
                if let Some(conn) = self.conns.remove(&flow) {
                    if end == End::Done && conn.behaviour.abort_after.is_none() {
                        assert_eq!(
                            conn.input.at, conn.behaviour.expected,
                            "all was read: {:?}",
                            conn.tuple
                        );
                    }
                    self.ends.push((conn.tuple, end));
                } else {
                    // Three questions for a neighbour may be lost.
                    assert!(
                        matches!(end, End::Unreachable),
                        "a connection that never opened: {end:?}"
                    );
                    self.unopened += 1;
                }
            }
            _ => {}
        }
        self.events.push(event);
    }

    /// Reads, writes and ends as the behaviour says.
    pub fn act(&mut self, now: Instant, flow: FlowId) {
        let Some(conn) = self.conns.get_mut(&flow) else {
            return;
        };
        let sizes = self.memory.sizes.expect("rings have their sizes");
        let behaviour = conn.behaviour;
        let mut bump = Bump::default();
        let readable = u64::from(conn.readable_to.since(conn.read_at));
        if readable > 0 && now >= conn.next_read && !conn.is_closing {
            let count = readable.min(behaviour.read_max);
            let mut bytes = vec![0; count as usize];
            copy_out(&self.memory.of(flow).0, conn.read_at, &mut bytes);
            assert_eq!(
                bytes,
                conn.input.take(count as usize),
                "bytes arrive as they were sent"
            );
            assert!(conn.input.at <= behaviour.expected, "nothing is invented");
            conn.read_at += count as u32;
            conn.next_read = now + behaviour.read_gap;
            bump.read = count as u32;
            self.read_total += count;
        }
        if conn.is_ended && conn.readable_to == conn.read_at && !conn.is_closing {
            assert_eq!(
                conn.input.at, behaviour.expected,
                "the end comes after everything"
            );
        }
        let room = (1u64 << sizes.transmit) - u64::from(conn.write_at.since(conn.freed_to));
        let left = behaviour.total - conn.output.at;
        let count = room.min(left).min(behaviour.write_max);
        if count > 0 && !conn.is_shut {
            let bytes = conn.output.take(count as usize);
            copy_in(&mut self.memory.of(flow).1, conn.write_at, &bytes);
            conn.write_at += count as u32;
            bump.written = count as u32;
        }
        match self.stack.bump(self.app, flow, bump) {
            Ok(()) => self.end(now, flow),
            // The news of its end are on their way.
            Err(refused) => assert!(matches!(refused, Refused::Ended | Refused::Flow), "{refused}"),
        }
    }

    /// Reads what the stack has left in the ring of a flow that is over.
    fn drain(&mut self, flow: FlowId) {
        let Some(conn) = self.conns.get_mut(&flow).filter(|conn| !conn.is_closing) else {
            return;
        };
        let mut bytes = vec![0; conn.readable_to.since(conn.read_at) as usize];
        copy_out(&self.memory.of(flow).0, conn.read_at, &mut bytes);
        assert_eq!(
            bytes,
            conn.input.take(bytes.len()),
            "bytes arrive as they were sent"
        );
    }

    fn end(&mut self, now: Instant, flow: FlowId) {
        let conn = self.conns.get_mut(&flow).expect("the caller has it");
        let behaviour = conn.behaviour;
        if behaviour.abort_after.is_some_and(|after| conn.input.at >= after) && !conn.is_closing {
            conn.is_closing = true;
            return self.call(now, Call::Abort(flow));
        }
        let has_written = conn.output.at == behaviour.total;
        let has_read = conn.input.at == behaviour.expected;
        if has_written && !conn.is_shut && (!behaviour.closes || has_read) {
            conn.is_shut = true;
            self.call(now, Call::Shutdown(flow));
        }
        let conn = self.conns.get_mut(&flow).expect("the caller has it");
        if has_written && has_read && conn.is_shut && !conn.is_closing && behaviour.closes {
            conn.is_closing = true;
            self.call(now, Call::Close(flow));
        }
    }
}

/// What the network does to frames.
#[derive(Clone, Copy, Debug)]
pub struct Network {
    pub delay: Duration,
    /// Each frame is late by up to so much more: frames overtake each other.
    pub jitter: Duration,
    pub loss: f64,
    pub duplicate: f64,
    pub corrupt: f64,
    /// The probability of a mark on a frame that can be marked.
    pub mark: f64,
    /// The longest packet; longer ones are answered by ICMP.
    pub mtu: usize,
    /// Bytes a microsecond, both ways together; 0 is without limit.
    pub rate: u64,
    /// Bytes that may wait. With `mark_at` they are marked before.
    pub queue_bytes: u64,
    pub mark_at: u64,
}

impl Network {
    pub fn perfect(delay: Duration) -> Self {
        Self {
            delay,
            jitter: Duration::ZERO,
            loss: 0.0,
            duplicate: 0.0,
            corrupt: 0.0,
            mark: 0.0,
            mtu: 70_000,
            rate: 0,
            queue_bytes: u64::MAX,
            mark_at: u64::MAX,
        }
    }
}

/// Two hosts and the network.
pub struct World {
    pub now: Instant,
    pub hosts: [Host; 2],
    pub network: Network,
    pub rng: Rng,
    wire: BTreeMap<(Instant, u64), (usize, Vec<u8>)>,
    sent: u64,
    busy_until: [Instant; 2],
    pub frames: u64,
    pub dropped: u64,
    /// When applications look on their own.
    app_at: Instant,
    pub app_gap: Duration,
    traces: bool,
}

pub const MACS: [Mac; 2] = [Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])];

/// The address of a host.
pub fn ip(host: usize, is_v6: bool) -> Ip {
    let last = host as u8 + 1;
    match is_v6 {
        false => Ip::v4([10, 0, 0, last]),
        true => Ip::v6([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]),
    }
}

impl World {
    pub fn new(hosts: [Host; 2], network: Network, seed: u64) -> Self {
        Self {
            now: Instant::from_nanos(1_000_000_000),
            hosts,
            network,
            rng: Rng::new(seed),
            wire: BTreeMap::new(),
            sent: 0,
            busy_until: [Instant::ZERO; 2],
            frames: 0,
            dropped: 0,
            app_at: Instant::ZERO,
            app_gap: Duration::from_millis(1),
            traces: std::env::var_os("TCP_TRACE").is_some(),
        }
    }

    /// Puts a frame of `from` on the wire.
    pub fn send(&mut self, from: usize, mut frame: Vec<u8>) {
        self.frames += 1;
        let network = self.network;
        if self.traces {
            trace(self.now, from, &frame);
        }
        if self.rng.chance(network.loss) {
            self.dropped += 1;
            return;
        }
        if frame.len() - 14 > network.mtu {
            self.too_big(from, &frame);
            return;
        }
        let mut at = self.now.max(self.busy_until[from]);
        if network.rate > 0 {
            let waiting = at.nanos_since(self.now) * network.rate / 1000;
            if waiting > network.queue_bytes {
                self.dropped += 1;
                return;
            }
            if waiting > network.mark_at {
                mark(&mut frame);
            }
            at += Duration::from_nanos(frame.len() as u64 * 1000 / network.rate);
            self.busy_until[from] = at;
        }
        if self.rng.chance(network.mark) {
            mark(&mut frame);
        }
        let copies = 1 + u64::from(self.rng.chance(network.duplicate));
        for _ in 0..copies {
            let mut frame = frame.clone();
            if self.rng.chance(network.corrupt) {
                let bit = self.rng.below(frame.len() as u64 * 8) as usize;
                frame[bit / 8] ^= 1 << (bit % 8);
            }
            let late = self.rng.between(0, network.jitter.as_nanos() as u64);
            let at = at + network.delay + Duration::from_nanos(late);
            self.sent += 1;
            self.wire.insert((at, self.sent), (1 - from, frame));
        }
    }

    /// The router's report about a packet that is too long, to its sender.
    fn too_big(&mut self, from: usize, frame: &[u8]) {
        self.dropped += 1;
        let report = too_big(frame, self.network.mtu as u32);
        self.sent += 1;
        let at = self.now + self.network.delay;
        self.wire.insert((at, self.sent), (from, report));
    }

    /// Lets both hosts say and do all they want now.
    pub fn settle(&mut self) {
        let mut buffer = vec![0; 70_000];
        for from in [0, 1] {
            loop {
                let mut is_quiet = true;
                while let Some(sent) = {
                    let host = &mut self.hosts[from];
                    host.stack.transmit(self.now, &mut buffer, &mut host.memory)
                } {
                    is_quiet = false;
                    for frame in cut(&buffer[..sent.bytes], sent.segment_bytes) {
                        self.send(from, frame);
                    }
                }
                let host = &mut self.hosts[from];
                while let Some(event) = host.stack.event() {
                    is_quiet = false;
                    host.take(self.now, event);
                }
                if is_quiet {
                    break;
                }
            }
            if self.sent.is_multiple_of(16) {
                self.hosts[from].stack.check();
            }
        }
    }

    /// Goes on to the next thing that happens, if it does before `until`. False if it does not.
    pub fn step(&mut self, until: Instant) -> bool {
        let frame_at = self.wire.first_key_value().map(|((at, _), _)| *at);
        let deadlines = self.hosts.iter().filter_map(|host| host.stack.deadline());
        let busy = self.hosts.iter().any(|host| !host.conns.is_empty());
        let app_at = busy.then_some(self.app_at);
        let next = deadlines.chain(frame_at).chain(app_at).min();
        let Some(next) = next.filter(|next| *next <= until) else {
            self.now = self.now.max(until);
            return false;
        };
        self.now = self.now.max(next);
        while let Some(entry) = self.wire.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let (to, frame) = entry.remove();
            let host = &mut self.hosts[to];
            host.stack.receive(self.now, &frame, &mut host.memory);
        }
        for host in &mut self.hosts {
            host.stack.tick(self.now);
        }
        if busy && self.now >= self.app_at {
            self.app_at = self.now + self.app_gap;
            for host in &mut self.hosts {
                let flows: Vec<_> = host.conns.keys().copied().collect();
                flows.into_iter().for_each(|flow| host.act(self.now, flow));
            }
        }
        self.settle();
        true
    }

    /// Runs for a time.
    pub fn run(&mut self, time: Duration) {
        let until = self.now + time;
        self.settle();
        while self.step(until) {}
    }

    /// Runs until no application has a connection, at most for a time. False if that was not enough.
    pub fn run_to_end(&mut self, time: Duration) -> bool {
        let until = self.now + time;
        self.settle();
        loop {
            let is_open = self.hosts.iter().any(|host| !host.conns.is_empty());
            if !is_open {
                return true;
            }
            if !self.step(until) {
                return false;
            }
        }
    }
}

/// Cuts a frame as a link with segmentation does.
pub fn cut(frame: &[u8], segment_bytes: u16) -> Vec<Vec<u8>> {
    if segment_bytes == 0 {
        return vec![frame.to_vec()];
    }
    let Ok((ether, tcp::frame::Packet::Tcp(segment, payload))) = tcp::frame::parse(frame, true) else {
        panic!("only segments are cut");
    };
    let hop = tcp::frame::Hop {
        source: ether.source,
        target: ether.target,
    };
    let last = (payload.len() - 1) / usize::from(segment_bytes);
    let parts = payload.chunks(usize::from(segment_bytes)).enumerate();
    let part = |(index, bytes): (usize, &[u8])| {
        let mut part = segment;
        part.seq = segment.seq + index as u32 * u32::from(segment_bytes);
        part.payload_bytes = bytes.len() as u32;
        let only_last = if index < last { 0b1001 } else { 0 };
        let only_first = if index > 0 { 0x80 } else { 0 };
        part.flags.0 &= !(only_last | only_first);
        let start = tcp::frame::headers_bytes(&part);
        let mut frame = vec![0; start + bytes.len()];
        frame[start..].copy_from_slice(bytes);
        tcp::frame::emit(hop, &part, &mut frame, true);
        frame
    };
    parts.map(part).collect()
}

/// Prints a frame, with `TCP_TRACE` in the environment.
fn trace(now: Instant, from: usize, frame: &[u8]) {
    let at = now.as_nanos() as f64 / 1e9;
    match tcp::frame::parse(frame, false) {
        Ok((_, tcp::frame::Packet::Tcp(segment, _))) => {
            let ports = (segment.source.port, segment.target.port);
            let (seq, ack) = (segment.seq.0, segment.ack.0);
            let (bytes, window) = (segment.payload_bytes, segment.window);
            eprintln!(
                "{at:.6} {from} {ports:?} {:02x} {seq}+{bytes} ack {ack} win {window}",
                segment.flags.0
            );
        }
        other => eprintln!("{at:.6} {from} {other:?}"),
    }
}

/// Marks a frame that can be marked as congested, and mends the checksum.
fn mark(frame: &mut [u8]) {
    match frame[12..14] {
        [0x08, 0x00] if matches!(frame[15] & 3, 1 | 2) => {
            frame[15] |= 3;
            let header = &mut frame[14..34];
            header[10..12].fill(0);
            let sum = sum(header);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        [0x86, 0xdd] if matches!(frame[15] >> 4 & 3, 1 | 2) => frame[15] |= 0x30,
        _ => {}
    }
}

/// RFC 1071, plainly.
pub fn sum(bytes: &[u8]) -> u16 {
    let words = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// The ICMP error of a router about a packet that is too long.
pub fn too_big(frame: &[u8], mtu: u32) -> Vec<u8> {
    let mut report = frame[6..12].to_vec();
    report.extend_from_slice(&[2, 0, 0, 0, 0, 99]);
    report.extend_from_slice(&frame[12..14]);
    if frame[12] == 0x08 {
        let mut icmp = vec![3, 4, 0, 0, 0, 0, (mtu >> 8) as u8, mtu as u8];
        icmp.extend_from_slice(&frame[14..14 + 28]);
        let icmp_sum = sum(&icmp);
        icmp[2..4].copy_from_slice(&icmp_sum.to_be_bytes());
        let mut header = vec![
            0x45,
            0,
            0,
            20 + icmp.len() as u8,
            0,
            0,
            0,
            0,
            60,
            1,
            0,
            0,
            10,
            0,
            0,
            99,
        ];
        header.extend_from_slice(&frame[26..30]);
        let header_sum = sum(&header);
        header[10..12].copy_from_slice(&header_sum.to_be_bytes());
        report.extend(header);
        report.extend(icmp);
        return report;
    }
    let mut icmp = vec![2, 0, 0, 0, 0, 0];
    icmp.extend_from_slice(&(mtu as u16).to_be_bytes());
    icmp.extend_from_slice(&frame[14..14 + 60]);
    let mut router = [0; 16];
    (router[0], router[15]) = (0xfd, 99);
    let mut pseudo = router.to_vec();
    pseudo.extend_from_slice(&frame[22..38]);
    pseudo.extend_from_slice(&[0, 0, 0, icmp.len() as u8, 0, 0, 0, 58]);
    pseudo.extend_from_slice(&icmp);
    let icmp_sum = sum(&pseudo);
    icmp[2..4].copy_from_slice(&icmp_sum.to_be_bytes());
    report.extend_from_slice(&[0x60, 0, 0, 0, 0, icmp.len() as u8, 58, 60]);
    report.extend_from_slice(&router);
    report.extend_from_slice(&frame[22..38]);
    report.extend(icmp);
    report
}

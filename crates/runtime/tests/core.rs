//! The core's loop with real sockets and real media, driven by small hosts.

use crate::common::{ANY, Echo, Player, cast, small, spec, start_one};
use base::limits::{PAGE_BYTES, SECTOR_BYTES};
use base::{Addr, Device, Duration, Instant, Machine, MediaDone, MediaOp, Pool, VssdId};
use host::target::Config;
use host::{Input, Output};
use runtime::{CoreConfig, HostSpec, Medium, RackHost, StartError, Stopped, start_core};
use std::any::Any;
use std::collections::VecDeque;
use std::net::{SocketAddrV4, UdpSocket};
use wire::rack::{HEADER_BYTES, Header, Op, Packet, Payload};

/// A peer outside the runtime: plain sockets, plain bytes.
struct Peer {
    socket: UdpSocket,
    address: SocketAddrV4,
}

impl Peer {
    fn new() -> Self {
        let socket = UdpSocket::bind(ANY).expect("loopback is there");
        socket
            .set_read_timeout(Some(std::time::Duration::from_secs(10)))
            .expect("a plain socket");
        let std::net::SocketAddr::V4(address) = socket.local_addr().expect("bound") else {
            panic!("IPv4")
        };
        Self { socket, address }
    }

    /// A packet's bytes, with this peer as its source.
    fn bytes(&self, mut packet: Packet) -> Vec<u8> {
        packet.header.source = Addr::new(self.address.ip().octets(), self.address.port());
        let mut header = [0; HEADER_BYTES];
        packet.header.emit(&mut header);
        let mut bytes = header.to_vec();
        match &packet.payload {
            Payload::None => {}
            Payload::Page(page) => page.with(|page| bytes.extend_from_slice(page)),
            Payload::Record(record) => bytes.extend_from_slice(record),
        }
        bytes
    }

    /// Sends bytes and returns what comes back.
    fn ask(&self, to: SocketAddrV4, bytes: &[u8]) -> (Header, Vec<u8>) {
        self.socket.send_to(bytes, to).expect("loopback takes it");
        self.receive()
    }

    fn receive(&self) -> (Header, Vec<u8>) {
        let mut bytes = [0; HEADER_BYTES + PAGE_BYTES + 1];
        let count = self.socket.recv(&mut bytes).expect("an answer comes");
        let header = Header::parse(&bytes, count - HEADER_BYTES).expect("the answer is a packet");
        (header, bytes[HEADER_BYTES..count].to_vec())
    }
}

fn page_packet(pool: &Pool, mark: u32) -> Packet {
    let page = pool.alloc().expect("a page is left");
    page.with_mut(|bytes| {
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = (mark.wrapping_mul(31).wrapping_add(i as u32) >> 3) as u8;
        }
    });
    let crc = page.crc();
    Packet::with_page(Header::new(Op::Inv, VssdId(mark)), Some(page), crc)
}

#[test]
fn packets_of_every_payload_survive_the_way_there_and_back() {
    let core = start_one(small(), |_| Echo::default());
    let (peer, pool) = (Peer::new(), Pool::new(1, SECTOR_BYTES));
    for mark in 0..200 {
        let packets = [
            page_packet(&pool, mark),
            Packet::with_record(
                Header::new(Op::Status, VssdId(mark)),
                vec![mark as u8; mark as usize * 20],
            ),
            Packet::bare(Header::new(Op::Flush, VssdId(mark))),
        ];
        for packet in packets {
            let bytes = peer.bytes(packet);
            let (header, payload) = peer.ask(core.address(0), &bytes);
            assert_eq!(header.vssd, VssdId(mark));
            assert_eq!(payload, bytes[HEADER_BYTES..]);
        }
    }
    // The last answer is here, but it is counted for sure only before a later turn's call.
    core.call(0, |_, _| ()).expect("a healthy core");
    let stats = core.stats();
    assert_eq!(
        (stats.packets_in, stats.packets_out, stats.malformed.total()),
        (600, 600, 0)
    );
    core.stop().expect("a healthy core");
}

#[test]
fn malformed_datagrams_are_counted_by_reason_and_harm_nobody() {
    let core = start_one(small(), |_| Echo::default());
    let peer = Peer::new();
    let good = peer.bytes(Packet::with_record(
        Header::new(Op::Status, VssdId(1)),
        vec![7; 100],
    ));
    let mut version = good.clone();
    version[9] = 99;
    let mut flipped = good.clone();
    flipped[20] ^= 4;
    let long = [&good[..], &[0; PAGE_BYTES]].concat();
    for bytes in [
        &good[..HEADER_BYTES - 1],
        &[],
        &version,
        &flipped,
        &good[..HEADER_BYTES + 99],
        &long,
    ] {
        peer.socket
            .send_to(bytes, core.address(0))
            .expect("loopback takes it");
    }
    let (header, payload) = peer.ask(core.address(0), &good);
    assert_eq!((header.op, payload), (Op::Status, vec![7; 100]));
    let malformed = core.stats().malformed;
    assert_eq!(malformed.short, 2);
    assert_eq!(malformed.format_version, 1);
    assert_eq!(malformed.header_checksum, 1);
    assert_eq!(malformed.length, 2);
    assert_eq!(malformed.total(), 6);
}

#[test]
fn a_burst_is_answered_or_counted() {
    const BURST: u64 = 2000;
    let core = start_one(small(), |_| Echo::default());
    let (peer, pool) = (Peer::new(), Pool::new(1, SECTOR_BYTES));
    for mark in 0..BURST {
        let bytes = peer.bytes(page_packet(&pool, mark as u32));
        peer.socket
            .send_to(&bytes, core.address(0))
            .expect("loopback takes it");
    }
    // Until every datagram and every answer is accounted for.
    loop {
        core.call(0, |_, _| ()).expect("a healthy core");
        let stats = core.stats();
        let arrived = stats.packets_in + stats.packets_dropped_kernel + stats.packets_dropped_pool;
        if arrived == BURST && stats.packets_out + stats.packets_dropped_full == stats.packets_in {
            break;
        }
    }
}

#[test]
fn hosts_of_one_core_talk_over_the_loopback() {
    const ROUNDS: u64 = 5000;
    let specs = vec![
        spec(None, &[], |_| Player::new(ROUNDS)),
        spec(None, &[], |_| Echo::default()),
    ];
    let core = start_core(small(), specs).expect("loopback is there");
    let address = |host| {
        let address = core.address(host);
        Addr::new(address.ip().octets(), address.port())
    };
    let (player, echo) = (address(0), address(1));
    core.call(0, move |host, _| {
        let header = Header {
            source: player,
            target: echo,
            ..Header::new(Op::Hello, VssdId(0))
        };
        cast::<Player>(host).outputs.push_back(Output::Send {
            to: echo,
            packet: Packet::bare(header),
        });
    })
    .expect("a healthy core");
    while core
        .call(0, |host, _| cast::<Player>(host).returned)
        .expect("a healthy core")
        < ROUNDS
    {}
    assert_eq!(core.call(1, |host, _| cast::<Echo>(host).echoed), Ok(ROUNDS));
    assert_eq!(core.stats().packets_out, 2 * ROUNDS);
}

/// Writes every page of its medium, flushes, reads every page and compares.
struct Scribe {
    pool: Pool,
    outputs: VecDeque<Output>,
    pages: u64,
    written: u64,
    read: u64,
    flushed: bool,
}

impl Scribe {
    fn new(pool: &Pool, pages: u64) -> Self {
        let mut scribe = Self {
            pool: pool.clone(),
            outputs: VecDeque::new(),
            pages,
            written: 0,
            read: 0,
            flushed: false,
        };
        for id in 0..pages {
            let page = pool.alloc().expect("the pool is large enough");
            page.with_mut(|bytes| bytes.fill(id as u8));
            let op = MediaOp::write(id, id * PAGE_BYTES as u64, page);
            scribe.outputs.push_back(Output::Media(op));
        }
        scribe
    }

    fn done(&mut self, done: MediaDone) {
        assert_eq!(done.result, Ok(()));
        if self.written < self.pages {
            self.written += 1;
            if self.written == self.pages {
                self.outputs.push_back(Output::Media(MediaOp::flush(u64::MAX)));
            }
        } else if !self.flushed {
            self.flushed = true;
            for id in 0..self.pages {
                let page = self.pool.alloc_zeroed().expect("all pages are back");
                let op = MediaOp::read(id, id * PAGE_BYTES as u64, page);
                self.outputs.push_back(Output::Media(op));
            }
        } else {
            self.read += 1;
            done.pages[0].with(|bytes| assert!(bytes.iter().all(|&byte| byte == done.id as u8)));
        }
    }
}

impl Machine for Scribe {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, _now: Instant, input: Input) {
        let Input::Media(done) = input else {
            panic!("only its medium speaks to it")
        };
        self.done(done);
    }

    fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }

    fn tick(&mut self, _now: Instant) {}
}

impl RackHost for Scribe {
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

#[test]
fn a_host_reads_back_what_it_wrote_and_so_does_the_next_start() {
    const PAGES: u64 = 1000;
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("medium");
    let bytes = PAGES * PAGE_BYTES as u64;
    let file = Medium::open(&path, bytes, true).expect("a new file");
    let scribe = |site: runtime::Site<'_>| Scribe::new(site.pool, PAGES);
    let specs = vec![
        spec(Some(file), &[], scribe),
        spec(Some(Medium::memory(bytes).expect("memory")), &[], scribe),
    ];
    let core = start_core(small(), specs).expect("io_uring is there");
    for host in 0..2 {
        while core
            .call(host, |host, _| cast::<Scribe>(host).read)
            .expect("a healthy core")
            < PAGES
        {
            std::thread::yield_now();
        }
    }
    let stats = core.stats();
    assert_eq!(
        (stats.media_writes, stats.media_reads, stats.media_flushes),
        (2 * PAGES, 2 * PAGES, 2)
    );
    assert_eq!(stats.media_errors, 0);
    core.stop().expect("a healthy core");
    let medium = Medium::open(&path, 0, false).expect("the core has let it go");
    for page in 0..PAGES {
        let mut bytes = [0; PAGE_BYTES];
        medium
            .read_at(page * PAGE_BYTES as u64, &mut bytes)
            .expect("inside");
        assert!(bytes.iter().all(|&byte| byte == page as u8));
    }
}

/// Ticks at a steady period.
struct Clock {
    next: Instant,
    period: Duration,
    ticks: u64,
    early: u64,
}

impl Machine for Clock {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, _now: Instant, _input: Input) {}

    fn poll(&mut self) -> Option<Output> {
        None
    }

    fn deadline(&self) -> Option<Instant> {
        Some(self.next)
    }

    fn tick(&mut self, now: Instant) {
        self.early += u64::from(now < self.next);
        self.ticks += 1;
        self.next = now + self.period;
    }
}

impl RackHost for Clock {
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

#[test]
fn an_idle_core_sleeps_from_deadline_to_deadline() {
    const TICKS: u64 = 20;
    let period = Duration::from_millis(10);
    let clock = move |site: runtime::Site<'_>| Clock {
        next: site.now + period,
        period,
        ticks: 0,
        early: 0,
    };
    let specs = vec![spec(None, &[], |_| Echo::default()), spec(None, &[], clock)];
    let core = start_core(small(), specs).expect("loopback is there");
    // Counted by the core itself: the test does not disturb it meanwhile.
    while core.stats().ticks < 1 {
        std::thread::yield_now();
    }
    let before = core.stats();
    while core.stats().ticks < before.ticks + TICKS {
        std::thread::yield_now();
    }
    let after = core.stats();
    let turns = (after.sleeps + after.polls) - (before.sleeps + before.polls);
    assert!(turns <= 2 * TICKS, "{turns} turns for {TICKS} ticks");
    assert!(after.syscalls - before.syscalls <= 2 * TICKS);
    assert_eq!(core.call(1, |host, _| cast::<Clock>(host).early), Ok(0));
}

#[test]
fn calls_come_from_any_thread() {
    let core = start_one(small(), |_| Echo::default());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..500 {
                    core.call(0, |host, now| {
                        cast::<Echo>(host).echoed += 1;
                        assert!(now > Instant::ZERO);
                    })
                    .expect("a healthy core");
                }
            });
        }
    });
    assert_eq!(core.call(0, |host, _| cast::<Echo>(host).echoed), Ok(2000));
    assert_eq!(core.stats().calls, 2001);
    core.stop().expect("a healthy core");
}

#[test]
fn a_core_that_died_of_a_bug_says_stopped() {
    let core = start_one(small(), |_| Echo::default());
    assert_eq!(
        core.call(0, |_, _| panic!("a bug, on purpose")),
        Err::<(), _>(Stopped)
    );
    assert_eq!(core.call(0, |_, _| ()), Err(Stopped));
    assert_eq!(core.stop(), Err(Stopped));
}

#[test]
fn what_cannot_start_says_why() {
    let core = start_one(small(), |_| Echo::default());
    let mut taken = spec(None, &[], |_| Echo::default());
    taken.bind = Some(core.address(0));
    assert!(matches!(
        start_core(small(), vec![taken]),
        Err(StartError::Bind { .. })
    ));
    let failing = HostSpec {
        bind: Some(ANY),
        medium: None,
        build: Box::new(|_| Err("no such volume".into())),
        listen: Vec::new(),
    };
    let error = start_core(small(), vec![failing]).expect_err("the host refuses");
    assert_eq!(error.to_string(), "host 0 cannot start: no such volume");
    let tiny = CoreConfig {
        target: Config {
            pool_pages: 10,
            ..small().target
        },
        ..small()
    };
    let hosts = vec![spec(None, &[], |_| Echo::default())];
    assert!(matches!(
        start_core(tiny, hosts),
        Err(StartError::PoolTooSmall { .. })
    ));
    let nowhere = CoreConfig {
        cpu: Some(1023),
        ..small()
    };
    assert!(matches!(
        start_core(nowhere, Vec::new()),
        Err(StartError::Pin { cpu: 1023, .. })
    ));
    let panics = spec(None, &[], |_| -> Echo { panic!("a bug, on purpose") });
    assert!(matches!(
        start_core(small(), vec![panics]),
        Err(StartError::Panicked)
    ));
}

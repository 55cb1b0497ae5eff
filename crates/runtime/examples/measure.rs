//! The cost of the runtime, with hosts that do nothing: the floor under every rack figure.
//!
//! ```text
//! cargo run --release -p switchyard-runtime --example measure -- udp        datagram round trips, one core
//! cargo run --release -p switchyard-runtime --example measure -- media FILE pages through the ring
//! cargo run --release -p switchyard-runtime --example measure -- idle       processor time of an idle core
//! cargo run --release -p switchyard-runtime --example measure -- nbd PORT   a volume in memory, for fio
//! ```
#![allow(clippy::disallowed_methods, reason = "a measurement waits and has threads")]

#[path = "../tests/common/mod.rs"]
mod common;

use base::limits::{PAGE_BYTES, SECTOR_BYTES};
use base::{Addr, Duration, Instant, Machine, MediaKind, MediaOp, Pool, Rng, VssdId};
use common::{Echo, MemoryGateway, Player, cast, spec, start_one};
use host::{Input, Output};
use runtime::{CoreConfig, Medium, RackHost, cpu, now, start_core};
use std::any::Any;
use std::collections::VecDeque;
use std::net::UdpSocket;
use std::path::Path;
use std::sync::OnceLock;
use wire::rack::{HEADER_BYTES, Header, Op, Packet};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["udp"] => udp(),
        ["idle"] => idle(),
        ["media", path] => media(Path::new(path)),
        ["nbd", port] => nbd(port),
        _ => {
            eprintln!("usage: measure udp | idle | media FILE | nbd PORT");
            std::process::exit(2);
        }
    }
}

/// How long each case runs.
const RUN: Duration = Duration::from_secs(2);

/// Processors of this process, before any thread is pinned.
fn processors() -> &'static [usize] {
    static ALLOWED: OnceLock<Vec<usize>> = OnceLock::new();
    ALLOWED.get_or_init(cpu::allowed)
}

/// The server's processor; the client takes the other end of the list.
fn pinned() -> CoreConfig {
    CoreConfig {
        cpu: processors().first().copied(),
        ..CoreConfig::default()
    }
}

fn udp() {
    println!("server on one core, polling client on another: p50, p99, rate");
    for (name, bytes) in [("header only", 0), ("page", PAGE_BYTES)] {
        for depth in [1, 32] {
            let core = start_one(pinned(), |_| Echo::default());
            round_trips(name, bytes, depth, core.address(0));
            let stats = core.stats();
            println!(
                "    {:.2} system calls per packet",
                stats.syscalls as f64 / stats.packets_in as f64
            );
        }
    }
    println!("two hosts on one core, no other core:");
    for bytes in [0, PAGE_BYTES] {
        for depth in [1, 32] {
            ping_pong(bytes, depth);
        }
    }
}

/// An echo client with `depth` packets under way.
fn round_trips(name: &str, bytes: usize, depth: u64, server: std::net::SocketAddrV4) {
    if let Some(&last) = processors().last() {
        cpu::pin(last).expect("an allowed processor");
    }
    let socket = UdpSocket::bind(common::ANY).expect("loopback is there");
    socket.set_nonblocking(true).expect("a plain socket");
    socket.connect(server).expect("loopback is there");
    let source = Addr::new([127, 0, 0, 1], socket.local_addr().expect("bound").port());
    let pool = Pool::new(1, SECTOR_BYTES);
    let page = pool.alloc_zeroed().expect("one page");
    let mut header = Header::new(Op::Inv, VssdId(1));
    header.source = source;
    let crc = page.crc();
    let packet = Packet::with_page(header, (bytes > 0).then_some(page), crc);
    let mut datagram = vec![0; HEADER_BYTES + bytes];
    let mut head = [0; HEADER_BYTES];
    packet.header.emit(&mut head);
    datagram[..HEADER_BYTES].copy_from_slice(&head);
    let (start, mut sent, mut received) = (now(), 0, 0);
    let mut begun: VecDeque<Instant> = VecDeque::new();
    let mut latencies = Vec::with_capacity(1 << 20);
    let mut answer = vec![0; HEADER_BYTES + PAGE_BYTES];
    while now().since(start) < RUN {
        if sent - received < depth {
            begun.push_back(now());
            socket.send(&datagram).expect("loopback takes it");
            sent += 1;
        }
        while received < sent && socket.recv(&mut answer).is_ok() {
            received += 1;
            latencies.push(now().nanos_since(begun.pop_front().expect("answers come in order")));
        }
    }
    report(&format!("{name}, QD{depth}"), start, &mut latencies);
}

fn report(name: &str, start: Instant, latencies: &mut [u64]) {
    let rate = latencies.len() as f64 / now().since(start).as_secs_f64();
    latencies.sort_unstable();
    let at = |part: f64| latencies[((latencies.len() - 1) as f64 * part) as usize] as f64 / 1000.0;
    println!(
        "  {name}: p50 {:.1} µs, p99 {:.1} µs, {rate:.0}/s",
        at(0.5),
        at(0.99)
    );
}

/// Packets between two hosts that share a core.
fn ping_pong(bytes: usize, depth: u64) {
    let hosts = vec![
        spec(None, &[], |_| Player::new(u64::MAX)),
        spec(None, &[], |_| Echo::default()),
    ];
    let core = start_core(pinned(), hosts).expect("loopback is there");
    let address = |host| {
        let address = core.address(host);
        Addr::new(address.ip().octets(), address.port())
    };
    let (player, echo) = (address(0), address(1));
    let start = now();
    core.call(0, move |host, _| {
        for _ in 0..depth {
            let header = Header {
                source: player,
                target: echo,
                ..Header::new(Op::Status, VssdId(0))
            };
            let packet = if bytes > 0 {
                Packet::with_record(header, vec![0; bytes])
            } else {
                Packet::bare(header)
            };
            cast::<Player>(host)
                .outputs
                .push_back(Output::Send { to: echo, packet });
        }
    })
    .expect("a healthy core");
    std::thread::sleep(RUN);
    let rounds = core
        .call(0, |host, _| cast::<Player>(host).returned)
        .expect("a healthy core");
    let rate = rounds as f64 / now().since(start).as_secs_f64();
    let stats = core.stats();
    println!(
        "  {bytes} bytes, QD{depth}: {rate:.0} round trips/s, {:.2} system calls per packet",
        stats.syscalls as f64 / stats.packets_in as f64
    );
}

/// A host that only waits, with a heartbeat as a rack's hosts have.
struct Sleeper {
    next: Instant,
}

const HEARTBEAT: Duration = Duration::from_millis(100);

impl Machine for Sleeper {
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
        self.next = now + HEARTBEAT;
    }
}

impl RackHost for Sleeper {
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

fn idle() {
    let core = start_one(pinned(), |site| Sleeper { next: site.now });
    let (start, used) = (now(), processor_nanos());
    std::thread::sleep(std::time::Duration::from_secs(5));
    let part = (processor_nanos() - used) as f64 / now().nanos_since(start) as f64;
    println!(
        "idle for 5 s: {:.3} % of a processor, {} sleeps",
        part * 100.0,
        core.stats().sleeps
    );
}

/// Processor time of this process, in ns.
fn processor_nanos() -> u64 {
    let threads = std::fs::read_dir("/proc/self/task").expect("Linux has it");
    threads
        .flatten()
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("schedstat")).ok())
        .filter_map(|text| text.split(' ').next().and_then(|nanos| nanos.parse::<u64>().ok()))
        .sum()
}

/// Keeps `depth` random page operations under way on its medium.
struct Loader {
    pool: Pool,
    outputs: VecDeque<Output>,
    rng: Rng,
    pages: u64,
    writes: bool,
    begun: Vec<Instant>,
    latencies: Vec<u64>,
}

impl Loader {
    fn next(&mut self, id: u64, now: Instant) {
        let offset = self.rng.below(self.pages) * PAGE_BYTES as u64;
        let page = self.pool.alloc().expect("the pool is larger than the depth");
        self.begun[id as usize] = now;
        let kind = if self.writes {
            MediaKind::Write
        } else {
            MediaKind::Read
        };
        self.outputs
            .push_back(Output::Media(MediaOp::page(id, kind, offset, page)));
    }
}

impl Machine for Loader {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Instant, input: Input) {
        let Input::Media(done) = input else { return };
        done.result.expect("a healthy medium");
        drop(done.pages);
        if self.latencies.len() < self.latencies.capacity() {
            self.latencies.push(now.nanos_since(self.begun[done.id as usize]));
            self.next(done.id, now);
        }
    }

    fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }

    fn tick(&mut self, _now: Instant) {}
}

impl RackHost for Loader {
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

fn media(path: &Path) {
    const BYTES: u64 = 1 << 30;
    const COUNT: usize = 100_000;
    for (name, writes) in [("write", true), ("read", false)] {
        for depth in [1u64, 32] {
            let file = Medium::open(path, BYTES, true).unwrap_or_else(|error| {
                eprintln!("{error}");
                std::process::exit(1)
            });
            if let Some(warning) = file.warning() {
                println!("  warning: {warning}");
            }
            let build = move |site: runtime::Site<'_>| Loader {
                pool: site.pool.clone(),
                outputs: VecDeque::new(),
                rng: Rng::new(1),
                pages: BYTES / PAGE_BYTES as u64,
                writes,
                begun: vec![Instant::ZERO; depth as usize],
                latencies: Vec::with_capacity(if depth == 1 { COUNT / 4 } else { COUNT }),
            };
            let core = start_core(pinned(), vec![spec(Some(file), &[], build)]).expect("io_uring is there");
            let start = now();
            core.call(0, move |host, now| {
                (0..depth).for_each(|id| cast::<Loader>(host).next(id, now))
            })
            .expect("a healthy core");
            let mut latencies = loop {
                std::thread::sleep(std::time::Duration::from_millis(5));
                let result = core.call(0, |host, _| {
                    let loader = cast::<Loader>(host);
                    let full = loader.latencies.len() == loader.latencies.capacity();
                    full.then(|| std::mem::take(&mut loader.latencies))
                });
                if let Some(latencies) = result.expect("a healthy core") {
                    break latencies;
                }
            };
            report(&format!("{name}, QD{depth}"), start, &mut latencies);
            core.stop().expect("a healthy core");
        }
    }
}

fn nbd(port: &str) {
    const BYTES: usize = 1 << 30;
    let address = format!("127.0.0.1:{port}").parse().expect("a port number");
    let gateway = spec(None, &[address], |site| MemoryGateway::new(site.pool, BYTES));
    let core = start_core(pinned(), vec![gateway]).expect("the port is free");
    println!(
        "nbd://{} (data, frozen); end of input stops",
        core.listening(0, wire::nbd::NAME)[0]
    );
    let _ = std::io::stdin().read_line(&mut String::new());
    println!("{:#?}", core.stats());
    core.stop().expect("a healthy core");
}

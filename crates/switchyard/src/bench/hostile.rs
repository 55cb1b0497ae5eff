//! `switchyard bench hostile`: what a thousand bad clients do to a good one.
//!
//! The good client is measured alone and beside the bad ones, in interleaved rounds. Its figures are the latency of 4 KiB
//! reads at depth 1, and the bandwidth of 1 MiB reads and writes at depth 4, by both protocols. [`Kind`] lists the bad
//! clients, which come in equal shares.

use super::block::Target;
use super::compare::check;
use super::load::Mode;
use super::load::{self, Case, ClientGroup};
use super::nbd::{self, Connection};
use super::nvme;
use super::report::CompareArgs;
use super::rounds::median;
use super::servers::Server;
use super::socket::Client;
use crate::failure::within;
use crate::launch;
use crate::machine;
use anyhow::Context;
use clap::{Args, ValueEnum};
use indicatif::ProgressBar;
use rustix::net::sockopt::set_socket_recv_buffer_size;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// `switchyard bench hostile`.
#[derive(Args)]
#[command(after_help = "Example:\n  switchyard bench hostile --clients 1000 --json")]
pub struct HostileArgs {
    #[command(flatten)]
    pub compare: CompareArgs,
    /// Bad clients
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub clients: usize,
    /// Only this kind of bad clients; repeat it for several [default: every kind]
    #[arg(long, value_name = "KIND")]
    kind: Vec<Kind>,
}

/// Bad clients of a run: a few, and as many as a process has descriptors for.
const CLIENTS: RangeInclusive<usize> = 10..=10_000;
/// Bytes of a long request: what an NBD server takes at most.
const LONG_BYTES: u32 = 32 << 20;
/// Requests of a flooding client under way.
const FLOOD_DEPTH: usize = 32;

/// How a client is bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// It connects and says nothing.
    Silent,
    /// The same at the NVMe listener.
    SilentNvme,
    /// It sends half of a write and stops.
    Stalled,
    /// It announces a long write and sends one block of it.
    Announcing,
    /// It sends its requests byte by byte.
    Slow,
    /// It asks for much, with many requests, and never reads an answer.
    Deaf,
    /// The same with few long requests.
    DeafLong,
    /// It asks and reads as fast as it can.
    Flooding,
    /// An NVMe host that writes and stops: the data that the target asks for never come.
    StoppedWriter,
    /// An NVMe host that reads and stops.
    StoppedReader,
}

/// The volume, for clients of either protocol.
struct Places {
    nbd: nbd::Address,
    nvme: nvme::Address,
}

/// One bad client. Those that do nothing more are only held open.
enum Bad {
    Still(#[allow(dead_code, reason = "held open")] TcpStream),
    StillHost(#[allow(dead_code, reason = "held open")] Box<nvme::Connection>),
    Slow {
        stream: TcpStream,
        request: Vec<u8>,
        at: usize,
    },
    Flooding(TcpStream),
}

/// Receive buffer of a bad client. On a machine of its own it would be its own machine's memory; here all sockets share what
/// the kernel has for TCP.
const RECEIVE_BYTES: usize = 64 << 10;

fn shrink(stream: &TcpStream) -> std::io::Result<()> {
    Ok(set_socket_recv_buffer_size(stream, RECEIVE_BYTES)?)
}

/// Requests as bytes, through a connection's own encoder.
fn reads(connection: &mut Connection, count: usize, bytes: u32) -> Vec<u8> {
    for cookie in 0..count as u64 {
        connection.push_read(cookie, cookie * u64::from(bytes), bytes);
    }
    connection.take_queued()
}

/// The first bytes of a write of so many, as far as they are `sent`.
fn write_begun(connection: &mut Connection, bytes: u32, sent: usize) -> Vec<u8> {
    connection.queue_write(1, 0, &vec![1; bytes as usize]);
    let mut asks = connection.take_queued();
    asks.truncate(sent);
    asks
}

impl Bad {
    fn new(places: &Places, kind: Kind) -> anyhow::Result<Self> {
        match kind {
            Kind::Silent => return Ok(Self::Still(TcpStream::connect(&places.nbd.server)?)),
            Kind::SilentNvme => return Ok(Self::Still(TcpStream::connect(&places.nvme.server)?)),
            Kind::StoppedWriter | Kind::StoppedReader => {
                let mut host = nvme::Connection::open(&places.nvme, false)?;
                for cookie in 0..32 {
                    match kind {
                        Kind::StoppedWriter => host.push_write(cookie, cookie << 17, &[1; 128 << 10]),
                        _ => host.push_read(cookie, cookie << 20, 1 << 20),
                    }
                }
                shrink(host.stream())?;
                host.send()?;
                return Ok(Self::StillHost(Box::new(host)));
            }
            _ => {}
        }
        let mut connection = Connection::open(&places.nbd, false)?;
        let flood = reads(&mut connection, FLOOD_DEPTH, 4096);
        let asks = match kind {
            Kind::Stalled => write_begun(&mut connection, 128 << 10, 64 << 10),
            Kind::Announcing => write_begun(&mut connection, LONG_BYTES, 4 << 10),
            Kind::Deaf => reads(&mut connection, 128, 64 << 10),
            Kind::DeafLong => reads(&mut connection, 4, LONG_BYTES),
            Kind::Flooding => flood.clone(),
            _ => Vec::new(),
        };
        let mut stream = connection.into_stream()?;
        shrink(&stream)?;
        stream.write_all(&asks)?;
        stream.set_nonblocking(true)?;
        Ok(match kind {
            Kind::Slow => Self::Slow {
                stream,
                request: flood,
                at: 0,
            },
            Kind::Flooding => Self::Flooding(stream),
            _ => Self::Still(stream),
        })
    }

    /// Goes on being bad, without waiting.
    fn step(&mut self, ask: &[u8], buffer: &mut [u8]) {
        match self {
            Self::Still(_) | Self::StillHost(_) => {}
            Self::Slow { stream, request, at } => {
                // What it is answered it reads, a little at a time.
                let _ = stream.read(&mut buffer[..1000]);
                if stream.write(&request[*at..=*at]).is_ok() {
                    *at = (*at + 1) % request.len();
                }
            }
            Self::Flooding(stream) => {
                // A request for every answer read, about: 4 KiB and a header.
                let mut answered = 0;
                while let Ok(count @ 1..) = stream.read(buffer) {
                    answered += count;
                    if answered > buffer.len() {
                        break;
                    }
                }
                let _ = stream.write(&ask[..(answered / 4112 * 28).min(ask.len())]);
            }
        }
    }
}

/// Resident memory of a process, in bytes.
fn resident_bytes(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|rest| rest.split_ascii_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// Figures of the good client.
const FIGURES: [&str; 8] = [
    "1 MiB reads MiB/s, at first",
    "4 KiB read p50 µs",
    "4 KiB read p99 µs",
    "4 KiB read p99.9 µs",
    "1 MiB reads MiB/s, NBD",
    "1 MiB writes MiB/s, NBD",
    "1 MiB reads MiB/s, NVMe",
    "1 MiB writes MiB/s, NVMe",
];
/// The place of the p99 among them.
const P99: usize = 2;

/// Measures the good client.
fn measure(compare: &CompareArgs, targets: &[Target; 2], seed: u64) -> anyhow::Result<[f64; FIGURES.len()]> {
    let run = |mode, bs, qd, volume| {
        let case = Case {
            mode,
            bs,
            qd,
            conns: 1,
            polls: false,
            write_share: 0.0,
            time: Duration::from_secs_f64(compare.seconds),
            seed,
        };
        let good = ClientGroup {
            case,
            volume,
            cpu: Some(compare.client_cpu),
            realtime: true,
            interval: None,
        };
        let warm_up = Duration::from_secs_f64(compare.seconds / 2.0);
        let outcomes = load::run_groups(targets, &[good], warm_up, &ProgressBar::hidden())?;
        anyhow::Ok(outcomes.into_iter().next().expect("one group, one outcome"))
    };
    let bulk = |mode, volume| anyhow::Ok(run(mode, 1 << 20, 4, volume)?.iops());
    // Before any of the bad ones is cut off.
    let at_first = bulk(Mode::Randread, 0)?;
    let small = run(Mode::Randread, 4096, 1, 0)?;
    let us = |quantile| small.latency.value_at_quantile(quantile) as f64 / 1000.0;
    Ok([
        at_first,
        us(0.5),
        us(0.99),
        us(0.999),
        bulk(Mode::Randread, 0)?,
        bulk(Mode::Randwrite, 0)?,
        bulk(Mode::Randread, 1)?,
        bulk(Mode::Randwrite, 1)?,
    ])
}

/// One round: figures alone and beside, and resident memory before and at the end.
struct Round {
    alone: [f64; FIGURES.len()],
    beside: [f64; FIGURES.len()],
    resident: [u64; 2],
}

fn round(args: &HostileArgs, seed: u64) -> anyhow::Result<Round> {
    let compare = &args.compare;
    // A host has two connections, and one address has no more than most of them.
    let server = Server::crowded(compare.size.0, compare.server_cpu, 3 * args.clients + 64)?;
    let other_uri = server
        .other_uri
        .as_deref()
        .context("ours speaks both protocols")?;
    let targets = [Target::open(&server.uri, None)?, Target::open(other_uri, None)?];
    let places = Places {
        nbd: nbd::Address::parse(&server.uri).context("an NBD server has an NBD address")?,
        nvme: nvme::Address::parse(other_uri).context("an NVMe target has an NVMe address")?,
    };
    let fill = Case {
        mode: Mode::Write,
        bs: 128 << 10,
        qd: 16,
        conns: 1,
        polls: false,
        write_share: 1.0,
        time: Duration::ZERO,
        seed,
    };
    load::fill(&targets[0], &fill, ProgressBar::hidden())?;
    let alone = measure(compare, &targets, seed)?;
    let before = resident_bytes(server.pid());
    let kinds = match args.kind.is_empty() {
        true => Kind::value_variants(),
        false => &args.kind[..],
    };
    let mut bad = Vec::new();
    for index in 0..args.clients {
        let kind = kinds[index % kinds.len()];
        let client = Bad::new(&places, kind);
        bad.push(client.with_context(|| format!("bad client {index}, {kind:?}"))?);
    }
    let ask = reads(&mut Connection::open(&places.nbd, false)?, 256, 4096);
    let stop = AtomicBool::new(false);
    let beside = std::thread::scope(|scope| {
        let cpu = compare.client_cpu;
        let (stop, bad) = (&stop, &mut bad);
        let thread = scope.spawn(move || {
            // On the good one's processor, but behind it and behind the kernel's work for its packets: the server is
            // to be measured.
            let pinned = runtime::cpu::pin(cpu).and_then(|()| runtime::cpu::background());
            let mut buffer = vec![0; 256 << 10];
            while !stop.load(Ordering::Relaxed) {
                for client in bad.iter_mut() {
                    client.step(&ask, &mut buffer);
                }
            }
            pinned
        });
        let beside = measure(compare, &targets, seed);
        stop.store(true, Ordering::Relaxed);
        thread.join().expect("the bad clients do not panic")?;
        beside
    })?;
    Ok(Round {
        alone,
        beside,
        resident: [before, resident_bytes(server.pid())],
    })
}

/// Runs it.
pub fn run(args: &HostileArgs) -> anyhow::Result<()> {
    check(&args.compare)?;
    within("--clients", args.clients, CLIENTS)?;
    // Two for each connection of a client.
    launch::allow_files(4 * args.clients as u64 + 256);
    let mut rounds = Vec::new();
    for seed in 0..args.compare.rounds as u64 {
        rounds.push(round(args, seed)?);
    }
    let places = core::array::from_fn::<usize, { FIGURES.len() }, _>(|at| at);
    let alone = places.map(|at| median(rounds.iter().map(|round| round.alone[at])));
    let beside = places.map(|at| median(rounds.iter().map(|round| round.beside[at])));
    let resident = [0, 1].map(|at| median(rounds.iter().map(|round| round.resident[at] as f64)));
    let about = machine::about();
    if args.compare.json {
        let figures = places.map(|at| {
            serde_json::json!({
                "what": FIGURES[at], "alone": alone[at], "beside": beside[at],
                "ratio": beside[at] / alone[at],
            })
        });
        let value = serde_json::json!({
            "machine": about, "clients": args.clients, "rounds": args.compare.rounds,
            "figures": figures, "p99_ratio": beside[P99] / alone[P99],
            "resident_bytes": resident,
        });
        println!("{}", serde_json::to_string_pretty(&value)?);
        return Ok(());
    }
    println!(
        "one good client beside {} bad ones; medians of {} rounds; {}, Linux {}",
        args.clients, args.compare.rounds, about.processor, about.kernel
    );
    println!("{:<26} {:>9} {:>9} {:>7}", "", "alone", "beside", "ratio");
    for at in places {
        let ratio = beside[at] / alone[at];
        println!(
            "{:<26} {:>9.1} {:>9.1} {ratio:>7.2}",
            FIGURES[at], alone[at], beside[at]
        );
    }
    let mib = resident.map(|bytes| bytes / 1_048_576.0);
    println!(
        "{:<26} {:>9.0} {:>9.0}",
        "memory of the target, MiB", mib[0], mib[1]
    );
    Ok(())
}

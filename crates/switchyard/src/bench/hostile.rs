//! `switchyard bench hostile`: what a thousand bad clients do to a good one.
//!
//! Five kinds in equal shares: *silent* ones connect and say nothing; *stalled* ones send half of a write and stop;
//! *slow* ones send requests byte by byte; *deaf* ones ask for much and never read an answer; *flooding* ones ask and
//! read as fast as they can. The good one reads 4 KiB at depth 1 and is measured alone and beside them, in interleaved
//! rounds.

use super::block::Target;
use super::compare::check;
use super::load::Mode;
use super::load::{self, Case, ClientGroup};
use super::nbd::{Address, Connection};
use super::report::CompareArgs;
use super::rounds::median;
use super::servers::{Protocol, Server, System};
use super::socket::Client;
use crate::failure::within;
use crate::machine;
use anyhow::Context;
use blockswitch::Policy;
use clap::Args;
use indicatif::ProgressBar;
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
}

/// Bad clients of a run: one of each kind at least, and as many as a process has descriptors for.
const CLIENTS: RangeInclusive<usize> = 5..=10_000;
/// Bytes of a deaf client's reads.
const DEAF_BYTES: u32 = 64 << 10;
/// Requests of a flooding client under way.
const FLOOD_DEPTH: usize = 32;

/// One bad client.
enum Bad {
    Silent(#[allow(dead_code, reason = "held open")] TcpStream),
    Stalled(#[allow(dead_code, reason = "held open")] TcpStream),
    Slow {
        stream: TcpStream,
        request: Vec<u8>,
        at: usize,
    },
    Deaf(#[allow(dead_code, reason = "held open")] TcpStream),
    Flooding(TcpStream),
}

/// Requests as bytes, through a connection's own encoder.
fn reads(connection: &mut Connection, count: usize, bytes: u32) -> Vec<u8> {
    for cookie in 0..count as u64 {
        connection.push_read(cookie, cookie * u64::from(bytes), bytes);
    }
    connection.take_queued()
}

fn bad_client(address: &Address, kind: usize) -> anyhow::Result<Bad> {
    if kind == 0 {
        return Ok(Bad::Silent(TcpStream::connect(&address.server)?));
    }
    let mut connection = Connection::open(address, false)?;
    let (mut asks, asks_much) = (Vec::new(), reads(&mut connection, FLOOD_DEPTH, 4096));
    match kind {
        1 => {
            connection.queue_write(1, 0, &vec![1; 128 << 10]);
            asks = connection.take_queued();
            asks.truncate(asks.len() / 2);
        }
        3 => asks = reads(&mut connection, 128, DEAF_BYTES),
        4 => asks = asks_much.clone(),
        _ => {}
    }
    let mut stream = connection.into_stream()?;
    stream.write_all(&asks)?;
    stream.set_nonblocking(true)?;
    Ok(match kind {
        1 => Bad::Stalled(stream),
        2 => Bad::Slow {
            stream,
            request: asks_much,
            at: 0,
        },
        3 => Bad::Deaf(stream),
        _ => Bad::Flooding(stream),
    })
}

impl Bad {
    /// Goes on being bad, without waiting.
    fn step(&mut self, ask: &[u8], buffer: &mut [u8]) {
        match self {
            Self::Silent(_) | Self::Stalled(_) | Self::Deaf(_) => {}
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

/// One round: quantiles alone and beside, in µs, and resident memory before and at the end.
struct Round {
    alone: [f64; 3],
    beside: [f64; 3],
    resident: [u64; 2],
}

fn round(args: &HostileArgs, seed: u64) -> anyhow::Result<Round> {
    let compare = &args.compare;
    let system = System::Ours(Policy::Switchyard, Protocol::Nbd);
    let server = Server::start(system, compare.size.0, false, compare.server_cpu)?;
    let target = [Target::open(&server.uri, None)?];
    let address = Address::parse(&server.uri).context("an NBD server has an NBD address")?;
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
    load::fill(&target[0], &fill, ProgressBar::hidden())?;
    let good = ClientGroup {
        case: Case {
            mode: Mode::Randread,
            bs: 4096,
            qd: 1,
            time: Duration::from_secs_f64(compare.seconds),
            ..fill
        },
        volume: 0,
        cpu: Some(compare.client_cpu),
        realtime: true,
    };
    let measure =
        || -> anyhow::Result<[f64; 3]> {
            let warm_up = Duration::from_secs(1);
            let outcomes = load::run_groups(&target, &[good], warm_up, &ProgressBar::hidden())?;
            Ok([0.5, 0.99, 0.999]
                .map(|quantile| outcomes[0].latency.value_at_quantile(quantile) as f64 / 1000.0))
        };
    let alone = measure()?;
    let before = resident_bytes(server.pid());
    let mut bad = Vec::new();
    for index in 0..args.clients {
        bad.push(bad_client(&address, index % 5).with_context(|| format!("bad client {index}"))?);
    }
    let ask = reads(&mut Connection::open(&address, false)?, 256, 4096);
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
        let beside = measure();
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
    let mut rounds = Vec::new();
    for seed in 0..args.compare.rounds as u64 {
        rounds.push(round(args, seed)?);
    }
    let alone = [0, 1, 2].map(|at| median(rounds.iter().map(|round| round.alone[at])));
    let beside = [0, 1, 2].map(|at| median(rounds.iter().map(|round| round.beside[at])));
    let resident = [0, 1].map(|at| median(rounds.iter().map(|round| round.resident[at] as f64)));
    let about = machine::about();
    if args.compare.json {
        let value = serde_json::json!({
            "machine": about, "clients": args.clients, "rounds": args.compare.rounds,
            "alone_us": alone, "beside_us": beside, "p99_ratio": beside[1] / alone[1],
            "resident_bytes": resident,
        });
        println!("{}", serde_json::to_string_pretty(&value)?);
        return Ok(());
    }
    println!(
        "one good client beside {} bad ones; medians of {} rounds; {}, Linux {}",
        args.clients, args.compare.rounds, about.processor, about.kernel
    );
    println!(
        "{:<10} {:>9} {:>9} {:>9}   resident",
        "", "p50 µs", "p99 µs", "p99.9 µs"
    );
    for (name, values, bytes) in [("alone", alone, resident[0]), ("beside", beside, resident[1])] {
        println!(
            "{name:<10} {:>9.1} {:>9.1} {:>9.1}   {:.0} MiB",
            values[0],
            values[1],
            values[2],
            bytes / 1_048_576.0
        );
    }
    println!("p99 ratio {:.2}", beside[1] / alone[1]);
    Ok(())
}

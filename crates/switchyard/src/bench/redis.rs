//! `switchyard bench redis`: Redis, unmodified, with its append-only file durable by ext4 and by `switchyard run`, beside the
//! same Redis that does not wait, and beside one raw overwrite of the same device.
//!
//! Durability's cost is the p50 latency of a SET less that of `appendfsync no` on the same medium. Media: the file system
//! of `--dir`; ext4 on a loop device over memory, made here and removed at the end (root only); there also emulated NVM, for our
//! side. Sides take turns within a round, each with a new server; medians over rounds. The client waits for each answer on each
//! of its connections, and takes the time from before a request is sent to after its answer is read.
//!
//! Redis writes and syncs once for all requests that it finds, and stands still meanwhile. So the rate of `no` cannot be had: with
//! each the figure is shown that a sync for all clients at once by a single raw overwrite would leave of it.

use super::looped::Loop;
use super::rounds::{ROUNDS, SECONDS, median};
use super::store::{RAW_BYTES, Scratch, check_area, raw, scratch};
use crate::failure::within;
use crate::machine;
use crate::size::Size;
use anyhow::{Context, bail, ensure};
use clap::Args;
use hdrhistogram::Histogram;
use rustix::event::{PollFd, PollFlags, poll};
use serde::Serialize;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Latencies beyond are counted as this.
const LATENCY_NS_MAX: u64 = 60_000_000_000;
/// How long a server may take to answer at first.
const START_TIME: Duration = Duration::from_secs(20);
/// Raw overwrites are no longer.
const RAW_BYTES_MAX: u64 = 4 << 20;
/// Before what counts.
const WARM_UP: Duration = Duration::from_millis(300);
const OK: &[u8] = b"+OK\r\n";

/// `switchyard bench redis`.
#[derive(Args)]
#[command(after_help = "Needs redis-server; the loop device needs root.\n\n\
    Examples:\n  switchyard bench redis --dir /srv\n  switchyard bench redis --rounds 7 --json")]
pub struct RedisArgs {
    /// Directory on the file system to measure, for files that the command removes again
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
    /// Bytes of a value
    #[arg(long, value_name = "SIZE", default_value = "1000")]
    pub bytes: Size,
    /// Keys, set in random order
    #[arg(long, value_name = "N", default_value_t = 65_536)]
    pub keys: u64,
    /// Clients at the same time
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,50")]
    pub clients: Vec<usize>,
    /// Seconds of each case
    #[arg(long, value_name = "S", default_value_t = 1.5, allow_negative_numbers = true)]
    pub seconds: f64,
    /// Rounds; the report has medians
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub rounds: usize,
    /// Size of Switchyard's area
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    pub area: Size,
    /// Redis' port
    #[arg(long, value_name = "PORT", default_value_t = 17_379)]
    pub port: u16,
    /// Do not measure on a loop device
    #[arg(long)]
    pub no_loop: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// How a server is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Side {
    No,
    Always,
    Run,
    RunNvm,
}

impl Side {
    fn name(self) -> &'static str {
        match self {
            Self::No => "appendfsync no",
            Self::Always => "appendfsync always",
            Self::Run => "switchyard run, always",
            Self::RunNvm => "switchyard run --nvm, always",
        }
    }
}

/// Medians of one side.
#[derive(Debug, Serialize)]
struct Row {
    medium: &'static str,
    side: Side,
    clients: usize,
    per_second: f64,
    p50_us: f64,
    p99_us: f64,
    /// p50 less that of `appendfsync no`.
    cost_us: f64,
    /// Cost by that of ext4's.
    cost_by_ext4: f64,
    /// Cost by one raw overwrite.
    cost_by_raw: f64,
    /// Rate by that of `appendfsync no`.
    rate_by_no: f64,
    /// What that would be if all clients' SETs shared each sync, and it took one raw overwrite of as many bytes, slept for.
    rate_by_no_max: f64,
}

struct Medium {
    name: &'static str,
    dir: PathBuf,
    sides: &'static [Side],
}

/// Result of one server with one number of clients.
#[derive(Clone, Copy)]
struct Case {
    per_second: f64,
    p50_us: f64,
    p99_us: f64,
}

/// Runs it.
pub fn run(args: &RedisArgs) -> anyhow::Result<()> {
    for &clients in &args.clients {
        within("--clients", clients, 1..=1000)?;
    }
    check_area(args.area)?;
    within("--rounds", args.rounds, ROUNDS)?;
    within("--seconds", args.seconds, SECONDS)?;
    within("--keys", args.keys, 1..=1 << 40)?;
    let mut media = vec![Medium {
        name: "disk",
        dir: args.dir.clone(),
        sides: &[Side::No, Side::Always, Side::Run],
    }];
    let looped = if args.no_loop { None } else { Loop::in_memory() };
    if let Some(looped) = &looped {
        media.push(Medium {
            name: "loop over memory",
            dir: looped.directory.clone(),
            sides: &[Side::No, Side::Always, Side::Run, Side::RunNvm],
        });
    }
    let mut rows = Vec::new();
    let mut raws = Vec::new();
    for medium in &media {
        let (raw_us, measured) = measure(args, medium)?;
        raws.push((medium.name, raw_us));
        rows.extend(measured);
    }
    report(args, &raws, &rows)
}

fn report(args: &RedisArgs, raws: &[(&str, f64)], rows: &[Row]) -> anyhow::Result<()> {
    let about = machine::about();
    if args.json {
        let value = serde_json::json!({
            "machine": about, "bytes": args.bytes.0, "keys": args.keys, "rounds": args.rounds,
            "seconds": args.seconds, "raw_overwrite_p50_us": raws_json(raws), "rows": rows,
        });
        println!("{}", serde_json::to_string_pretty(&value)?);
        return Ok(());
    }
    println!(
        "Redis, SET of {} bytes, {} keys; medians of {} interleaved rounds of {} s",
        args.bytes.0, args.keys, args.rounds, args.seconds
    );
    print_raws(&about, raws);
    println!(
        "\n{:<17} {:<29} {:>7} {:>8} {:>8} {:>8} {:>8} {:>7} {:>7} {:>7} {:>8}",
        "medium",
        "side",
        "clients",
        "SET/s",
        "p50 µs",
        "p99 µs",
        "cost µs",
        "× ext4",
        "× raw",
        "× no",
        "at most"
    );
    for row in rows {
        println!(
            "{:<17} {:<29} {:>7} {:>8.0} {:>8.1} {:>8.1} {:>8.1} {:>7.2} {:>7.2} {:>7.2} {:>8.2}",
            row.medium,
            row.side.name(),
            row.clients,
            row.per_second,
            row.p50_us,
            row.p99_us,
            row.cost_us,
            row.cost_by_ext4,
            row.cost_by_raw,
            row.rate_by_no,
            row.rate_by_no_max
        );
    }
    Ok(())
}

/// Raw overwrites, by medium.
pub(super) fn raws_json(raws: &[(&str, f64)]) -> serde_json::Map<String, serde_json::Value> {
    let entries = raws.iter().map(|(name, us)| ((*name).into(), (*us).into()));
    entries.collect()
}

/// The machine, and raw overwrites on it.
pub(super) fn print_raws(about: &machine::About, raws: &[(&str, f64)]) {
    println!(
        "{}, Linux {}, commit {}",
        about.processor, about.kernel, about.commit
    );
    for (name, us) in raws {
        println!("raw overwrite of 4 KiB, O_DIRECT, O_DSYNC, {name}: p50 {us:.1} µs");
    }
}

/// All rounds on one medium: the raw overwrite's p50, and the rows.
fn measure(args: &RedisArgs, medium: &Medium) -> anyhow::Result<(f64, Vec<Row>)> {
    let area = scratch(&medium.dir, "redis.area");
    let mut raws = Vec::new();
    // By number of clients: a raw overwrite of what all send.
    let mut shared = vec![Vec::new(); args.clients.len()];
    // By side, by number of clients, by round.
    let mut cases: Vec<Vec<Vec<Case>>> = vec![vec![Vec::new(); args.clients.len()]; medium.sides.len()];
    for round in 0..args.rounds.max(1) {
        let raw = |bytes| raw(&medium.dir, 1, bytes, Duration::from_secs_f64(args.seconds / 2.0));
        raws.push(raw(RAW_BYTES)?.p50_us);
        for (place, &clients) in args.clients.iter().enumerate() {
            let bytes = (clients as u64 * args.bytes.0).clamp(1, RAW_BYTES_MAX) as usize;
            let bytes = bytes.next_multiple_of(RAW_BYTES);
            shared[place].push(raw(bytes)?.p50_us);
        }
        for index in 0..medium.sides.len() {
            let index = (index + round) % medium.sides.len();
            let server = Server::start(args, medium, medium.sides[index], &area)?;
            for (place, &clients) in args.clients.iter().enumerate() {
                load(args, clients, WARM_UP)?;
                let time = Duration::from_secs_f64(args.seconds);
                cases[index][place].push(load(args, clients, time)?);
            }
            server.stop()?;
        }
    }
    let raw_us = median(raws);
    let middle = |cases: &[Case], of: fn(&Case) -> f64| median(cases.iter().map(of));
    let mut rows = Vec::new();
    for (place, &clients) in args.clients.iter().enumerate() {
        let at = |side: Side| {
            medium
                .sides
                .iter()
                .position(|it| *it == side)
                .map(|at| &cases[at][place][..])
        };
        let (no, ext4) = (
            at(Side::No).unwrap_or_default(),
            at(Side::Always).unwrap_or_default(),
        );
        let p50 = |cases: &[Case]| middle(cases, |it| it.p50_us);
        let rate = |cases: &[Case]| middle(cases, |it| it.per_second);
        let batch_us = clients as f64 / rate(no) * 1e6;
        let rate_by_no_max = batch_us / (batch_us + median(shared[place].clone()));
        for &side in medium.sides {
            let own = at(side).unwrap_or_default();
            let cost_us = p50(own) - p50(no);
            rows.push(Row {
                medium: medium.name,
                side,
                clients,
                per_second: rate(own),
                p50_us: p50(own),
                p99_us: middle(own, |it| it.p99_us),
                cost_us,
                cost_by_ext4: cost_us / (p50(ext4) - p50(no)),
                cost_by_raw: cost_us / raw_us,
                rate_by_no: rate(own) / rate(no),
                rate_by_no_max: match side {
                    Side::No | Side::RunNvm => 1.0,
                    Side::Always | Side::Run => rate_by_no_max,
                },
            });
        }
    }
    Ok((raw_us, rows))
}

/// A running Redis in a directory of its own.
struct Server {
    process: Child,
    directory: PathBuf,
    port: u16,
}

impl Server {
    fn start(args: &RedisArgs, medium: &Medium, side: Side, area: &Scratch) -> anyhow::Result<Self> {
        let directory = scratch(&medium.dir, "redis").0.clone();
        fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
        let mut command = match side {
            Side::No | Side::Always => Command::new("redis-server"),
            Side::Run | Side::RunNvm => {
                let mut command = Command::new(std::env::current_exe()?);
                command.args(["run", "--quiet", "--size", &args.area.0.to_string()]);
                match side {
                    Side::RunNvm => command.arg("--nvm"),
                    _ => command.arg("--area").arg(&area.0),
                };
                command.args(["--", "redis-server"]);
                command
            }
        };
        let fsync = if side == Side::No { "no" } else { "always" };
        let process = command
            .args([
                "--port",
                &args.port.to_string(),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
            ])
            .args(["--appendonly", "yes", "--appendfsync", fsync])
            .args([
                "--auto-aof-rewrite-percentage",
                "0",
                "--daemonize",
                "no",
                "--loglevel",
                "warning",
            ])
            .arg("--dir")
            .arg(&directory)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .context("redis-server does not start (Debian: apt install redis-server)")?;
        let mut server = Self {
            process,
            directory,
            port: args.port,
        };
        server.await_answer()?;
        Ok(server)
    }

    fn await_answer(&mut self) -> anyhow::Result<()> {
        let start = Instant::now();
        while start.elapsed() < START_TIME {
            if let Some(status) = self.process.try_wait()? {
                bail!("redis-server ended: {status}");
            }
            if let Ok(mut socket) = TcpStream::connect(("127.0.0.1", self.port)) {
                socket.write_all(b"PING\r\n")?;
                let mut answer = [0; 7];
                if socket.read_exact(&mut answer).is_ok() && &answer == b"+PONG\r\n" {
                    return Ok(());
                }
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        bail!("redis-server does not answer");
    }

    fn stop(mut self) -> anyhow::Result<()> {
        let mut socket = TcpStream::connect(("127.0.0.1", self.port))?;
        socket.write_all(b"SHUTDOWN NOSAVE\r\n")?;
        let status = self.process.wait()?;
        ensure!(status.success(), "redis-server ended: {status}");
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // After a stop there is none.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// One connection and its request under way.
struct Connection {
    socket: TcpStream,
    sent: Instant,
    request: Vec<u8>,
    key_at: usize,
}

impl Connection {
    fn open(args: &RedisArgs) -> anyhow::Result<Self> {
        let socket = TcpStream::connect(("127.0.0.1", args.port))?;
        socket.set_nodelay(true)?;
        let mut request = b"*3\r\n$3\r\nSET\r\n$16\r\nkey:".to_vec();
        let key_at = request.len();
        request.extend_from_slice(format!("000000000000\r\n${}\r\n", args.bytes.0).as_bytes());
        request.resize(request.len() + args.bytes.0 as usize, b'x');
        request.extend_from_slice(b"\r\n");
        Ok(Self {
            socket,
            sent: Instant::now(),
            request,
            key_at,
        })
    }

    fn send(&mut self, key: u64) -> anyhow::Result<()> {
        self.request[self.key_at..][..12].copy_from_slice(format!("{key:012}").as_bytes());
        self.sent = Instant::now();
        self.socket.write_all(&self.request)?;
        Ok(())
    }

    fn receive(&mut self) -> anyhow::Result<()> {
        let mut answer = [0; OK.len()];
        match self.socket.read_exact(&mut answer) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                bail!("redis-server closed the connection")
            }
            result => result?,
        }
        ensure!(
            answer == *OK,
            "redis-server refuses: {}",
            String::from_utf8_lossy(&answer)
        );
        Ok(())
    }
}

/// SETs from `clients` connections for `time`.
fn load(args: &RedisArgs, clients: usize, time: Duration) -> anyhow::Result<Case> {
    let mut connections = Vec::with_capacity(clients);
    for _ in 0..clients {
        connections.push(Connection::open(args)?);
    }
    let mut latency = Histogram::<u64>::new_with_bounds(1, LATENCY_NS_MAX, 3)?;
    // Any full-period generator: this one is Numerical Recipes'.
    let mut random = 1_u64;
    let mut key = || {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % args.keys
    };
    let start = Instant::now();
    for connection in &mut connections {
        connection.send(key())?;
    }
    let mut under_way = clients;
    while under_way > 0 {
        let ready = if clients == 1 {
            vec![0]
        } else {
            ready(&connections)?
        };
        for index in ready {
            let connection = &mut connections[index];
            connection.receive()?;
            let now = Instant::now();
            latency.saturating_record((now - connection.sent).as_nanos() as u64);
            if now - start < time {
                connection.send(key())?;
            } else {
                under_way -= 1;
                // It is not asked again.
                connection.sent = start;
            }
        }
        if start.elapsed() >= time {
            connections.retain(|it| it.sent != start);
        }
    }
    let us = |quantile| latency.value_at_quantile(quantile) as f64 / 1000.0;
    Ok(Case {
        per_second: latency.len() as f64 / start.elapsed().as_secs_f64(),
        p50_us: us(0.5),
        p99_us: us(0.99),
    })
}

/// The connections that have an answer; waits for one.
fn ready(connections: &[Connection]) -> anyhow::Result<Vec<usize>> {
    let watch = |it| PollFd::new(it, PollFlags::IN);
    let mut watched: Vec<_> = connections.iter().map(|it| watch(&it.socket)).collect();
    poll(&mut watched, None)?;
    let has_answer = |it: &PollFd<'_>| !it.revents().is_empty();
    let all = watched.iter().enumerate();
    Ok(all
        .filter(|(_, it)| has_answer(it))
        .map(|(index, _)| index)
        .collect())
}

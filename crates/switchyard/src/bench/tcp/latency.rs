//! One request at a time between two threads on two processors: the time to the answer.

use super::duplex::{Duplex, Pair, Way, open};
use super::ends::RPC_BYTES;
use super::network::Network;
use crate::bench::rounds::median;
use anyhow::{Context, ensure};
use serde::Serialize;
use std::time::{Duration, Instant};

/// Ways, and whether their ends look for an answer again and again or sleep until it comes. Ours sleep only after a while.
const SIDES: [(&str, Way, bool); 8] = [
    ("shared memory", Way::Shared, true),
    ("AF_XDP in the driver", Way::Xdp, true),
    ("Linux veth, recv", Way::Veth, true),
    ("Linux veth, blocking", Way::Veth, false),
    ("Linux loopback, recv", Way::Loopback, true),
    ("Linux loopback, blocking", Way::Loopback, false),
    ("AF_UNIX, recv", Way::Unix, true),
    ("AF_UNIX, blocking", Way::Unix, false),
];
/// Requests before those that count.
const WARM_UP: u32 = 2000;
/// Longer than an answer takes.
const LIMIT: Duration = Duration::from_secs(5);
/// The first byte of the last request.
const LAST: u8 = 1;

/// Medians of the rounds.
#[derive(Debug, Serialize)]
pub struct Row {
    pub side: &'static str,
    pub p50_us: f64,
    pub p99_us: f64,
}

/// Measures all, the sides in turns.
pub fn measure(
    network: Option<&Network>,
    cpus: [usize; 2],
    rounds: usize,
    seconds: f64,
) -> anyhow::Result<Vec<Row>> {
    let mut taken: Vec<Vec<[f64; 2]>> = vec![Vec::new(); SIDES.len()];
    for round in 0..rounds {
        for ((name, way, spins), taken) in SIDES.iter().zip(&mut taken) {
            match open(*way, network, *spins) {
                Ok(pair) => taken.push(run(pair, cpus, seconds).context(*name)?),
                Err(error) if round == 0 => eprintln!("{name} is left out, because {error:#}"),
                Err(_) => {}
            }
        }
    }
    let rows = SIDES.iter().zip(&taken).filter(|(_, taken)| !taken.is_empty());
    let row = |(side, taken): (&(&'static str, Way, bool), &Vec<[f64; 2]>)| Row {
        side: side.0,
        p50_us: median(taken.iter().map(|round| round[0])),
        p99_us: median(taken.iter().map(|round| round[1])),
    };
    Ok(rows.map(row).collect())
}

/// The median and the 99th percentile of a run, in µs.
fn run(pair: Pair, cpus: [usize; 2], seconds: f64) -> anyhow::Result<[f64; 2]> {
    let [mut client, mut server] = pair;
    std::thread::scope(|threads| {
        let serving = threads.spawn(move || {
            runtime::cpu::pin(cpus[1]).context("cannot bind the thread to a processor")?;
            serve(&mut *server)
        });
        let asked = ask(&mut *client, seconds);
        // A server that waits learns thereby that nothing comes any more.
        drop(client);
        let served = serving.join().expect("the server does not panic");
        let mut nanos = asked?;
        served?;
        nanos.sort_unstable();
        let at = |part: f64| nanos[(nanos.len() as f64 * part) as usize] as f64 / 1000.0;
        Ok([at(0.5), at(0.99)])
    })
}

/// Sends requests for so long, and answers the nanoseconds of each.
fn ask(client: &mut dyn Duplex, seconds: f64) -> anyhow::Result<Vec<u32>> {
    for _ in 0..WARM_UP {
        exchange(client, &[0; RPC_BYTES])?;
    }
    let mut nanos = Vec::with_capacity(1 << 22);
    let began = Instant::now();
    let mut last = began;
    while last.duration_since(began).as_secs_f64() < seconds && nanos.len() < nanos.capacity() {
        exchange(client, &[0; RPC_BYTES])?;
        let now = Instant::now();
        nanos.push(now.duration_since(last).as_nanos() as u32);
        last = now;
    }
    exchange(client, &[LAST; RPC_BYTES])?;
    Ok(nanos)
}

fn exchange(client: &mut dyn Duplex, request: &[u8; RPC_BYTES]) -> anyhow::Result<()> {
    send_all(client, request)?;
    let mut answer = [0; RPC_BYTES];
    receive_all(client, &mut answer)?;
    ensure!(answer == *request, "the answer is not the request");
    Ok(())
}

/// Answers requests until the last one.
fn serve(server: &mut dyn Duplex) -> anyhow::Result<()> {
    let mut request = [0; RPC_BYTES];
    while request[0] != LAST {
        receive_all(server, &mut request)?;
        send_all(server, &request)?;
    }
    Ok(())
}

fn send_all(end: &mut dyn Duplex, bytes: &[u8]) -> anyhow::Result<()> {
    let mut sent = 0;
    while sent < bytes.len() {
        sent += end.send(&bytes[sent..])?;
    }
    Ok(())
}

fn receive_all(end: &mut dyn Duplex, bytes: &mut [u8]) -> anyhow::Result<()> {
    let (mut got, mut looks) = (0, 0u32);
    let mut until = None;
    while got < bytes.len() {
        got += end.receive(&mut bytes[got..])?;
        looks += 1;
        if looks.is_multiple_of(1 << 16) {
            let until = *until.get_or_insert_with(|| Instant::now() + LIMIT);
            ensure!(Instant::now() < until, "an answer takes too long");
        }
    }
    Ok(())
}

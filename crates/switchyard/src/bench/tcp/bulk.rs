//! One stream as fast as it goes, between two threads on two processors.

use super::duplex::{Duplex, Pair, Way, open};
use super::network::Network;
use crate::bench::rounds::median;
use anyhow::{Context, ensure};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::time::{Duration, Instant};

const SIDES: [(&str, Way); 5] = [
    ("shared memory", Way::Shared),
    ("AF_XDP in the driver", Way::Xdp),
    ("Linux veth", Way::Veth),
    ("Linux loopback", Way::Loopback),
    ("AF_UNIX", Way::Unix),
];
/// Bytes of a write, and of a read.
const WRITES: [usize; 2] = [64 << 10, 1 << 20];
/// The last byte of a stream.
const LAST: u8 = 1;
/// Longer than the end of a stream takes.
const LIMIT: Duration = Duration::from_secs(5);

/// Medians of the rounds.
#[derive(Debug, Serialize)]
pub struct Row {
    pub side: &'static str,
    pub write_bytes: usize,
    pub gbit_per_second: f64,
    /// Processors that the whole process has kept busy, the kernel's part included.
    pub processors: f64,
}

/// Measures all, the sides in turns.
pub fn measure(
    network: Option<&Network>,
    cpus: [usize; 2],
    rounds: usize,
    seconds: f64,
) -> anyhow::Result<Vec<Row>> {
    let cases: Vec<_> = WRITES
        .iter()
        .flat_map(|bytes| SIDES.map(|(side, way)| (side, way, *bytes)))
        .collect();
    let mut taken: Vec<Vec<[f64; 2]>> = vec![Vec::new(); cases.len()];
    for round in 0..rounds {
        for ((name, way, bytes), taken) in cases.iter().zip(&mut taken) {
            match open(*way, network, false) {
                Ok(pair) => taken.push(run(pair, cpus, *bytes, seconds).context(*name)?),
                Err(error) if round == 0 => eprintln!("{name} is left out, because {error:#}"),
                Err(_) => {}
            }
        }
    }
    let rows = cases.iter().zip(&taken).filter(|(_, taken)| !taken.is_empty());
    let row = |(case, taken): (&(&'static str, Way, usize), &Vec<[f64; 2]>)| Row {
        side: case.0,
        write_bytes: case.2,
        gbit_per_second: median(taken.iter().map(|round| round[0])),
        processors: median(taken.iter().map(|round| round[1])),
    };
    Ok(rows.map(row).collect())
}

/// Gbit/s of a run, and processors that it has kept busy.
fn run(pair: Pair, cpus: [usize; 2], bytes: usize, seconds: f64) -> anyhow::Result<[f64; 2]> {
    let [mut sender, mut receiver] = pair;
    std::thread::scope(|threads| {
        let receiving = threads.spawn(move || {
            runtime::cpu::pin(cpus[1]).context("cannot bind the thread to a processor")?;
            receive(&mut *receiver, bytes, seconds)
        });
        let (began, cpu_began) = (Instant::now(), cpu_seconds());
        let sent = send(&mut *sender, bytes, seconds);
        let (taken, cpu) = (began.elapsed().as_secs_f64(), cpu_seconds() - cpu_began);
        // A receiver that waits learns thereby that nothing comes any more.
        drop(sender);
        let received = receiving.join().expect("the receiver does not panic");
        let sent = sent?;
        ensure!(received? == sent, "all that was sent has arrived");
        Ok([sent as f64 * 8.0 / taken / 1e9, cpu / taken])
    })
}

/// Processor time of this process.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Sends for so long, and waits for the word that all has arrived. Answers the bytes.
fn send(sender: &mut dyn Duplex, bytes: usize, seconds: f64) -> anyhow::Result<u64> {
    let mut chunk = vec![0; bytes];
    let began = Instant::now();
    let mut total = 0;
    let mut is_last = false;
    while !is_last {
        is_last = began.elapsed().as_secs_f64() >= seconds;
        if is_last {
            chunk[bytes - 1] = LAST;
        }
        let mut sent = 0;
        while sent < bytes {
            sent += sender.send(&chunk[sent..])?;
        }
        total += bytes as u64;
    }
    let until = Instant::now() + LIMIT;
    let mut word = [0; 1];
    while sender.receive(&mut word)? == 0 {
        ensure!(Instant::now() < until, "the end of the stream takes too long");
    }
    Ok(total)
}

/// Receives to the last byte, and says so. Answers the bytes.
fn receive(receiver: &mut dyn Duplex, bytes: usize, seconds: f64) -> anyhow::Result<u64> {
    let mut chunk = vec![0; bytes];
    let mut total = 0;
    let until = Instant::now() + Duration::from_secs_f64(seconds) + LIMIT;
    loop {
        let count = receiver.receive(&mut chunk)?;
        ensure!(count > 0 || Instant::now() < until, "the stream has no end");
        total += count as u64;
        if count > 0 && chunk[count - 1] == LAST {
            break;
        }
    }
    while receiver.send(&[0])? == 0 {}
    Ok(total)
}

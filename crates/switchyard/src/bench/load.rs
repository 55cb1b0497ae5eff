//! One case of load: threads with a connection each, keeping a number of requests under way.

use super::block::{Aligned, Target, Way};
use super::socket::{Client, STAMP_BYTES, sleep_until};
use crate::size::Size;
use anyhow::{Context, bail};
use base::{Rng, Slab};
use clap::ValueEnum;
use hdrhistogram::Histogram;
use indicatif::ProgressBar;
use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longest latency told apart, in ns.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// Load on a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Reads at random places
    Randread,
    /// Writes at random places
    Randwrite,
    /// Reads and writes, see --write-share
    Randrw,
    /// Reads in order
    Read,
    /// Writes in order
    Write,
    /// Flushes, each after one write
    Flush,
}

impl Mode {
    /// True if it changes the target.
    pub fn writes(self) -> bool {
        !matches!(self, Self::Randread | Self::Read)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Randread => "randread",
            Self::Randwrite => "randwrite",
            Self::Randrw => "randrw",
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
        }
    }
}

/// Load and duration.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Reads, writes, flushes.
    pub mode: Mode,
    /// Bytes of a request.
    pub bs: usize,
    /// Requests under way per connection.
    pub qd: usize,
    /// Connections.
    pub conns: usize,
    /// Clients poll for answers instead of sleeping: each on a core of its own.
    pub polls: bool,
    /// Of randrw.
    pub write_share: f64,
    /// How long.
    pub time: Duration,
    /// Of the places.
    pub seed: u64,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = Size(self.bs as u64);
        write!(f, "{} {size} qd {}", self.mode.name(), self.qd)?;
        if self.conns > 1 {
            write!(f, " × {} connections", self.conns)?;
        }
        if self.polls {
            write!(f, ", polling")?;
        }
        Ok(())
    }
}

/// Its result.
#[derive(Debug)]
pub struct Outcome {
    /// Requests answered.
    pub requests: u64,
    /// Time they took together.
    pub elapsed: Duration,
    /// Of each, in ns.
    pub latency: Histogram<u64>,
}

impl Outcome {
    /// Requests a second.
    pub fn iops(&self) -> f64 {
        self.requests as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("valid bounds")
}

/// Where requests go and which they are.
struct Places {
    rng: Rng,
    case: Case,
    blocks: u64,
    next: u64,
    payload: Vec<u8>,
}

impl Places {
    fn new(case: &Case, span_bytes: u64, thread: u64) -> anyhow::Result<Self> {
        let blocks = span_bytes / case.bs as u64;
        if blocks == 0 {
            bail!(
                "the target has {}, which is less than one request of {}: lower --bs",
                Size(span_bytes),
                Size(case.bs as u64)
            );
        }
        let mut rng = Rng::new(case.seed ^ thread << 32);
        // Not zeros: servers treat those specially.
        let payload = (0..case.bs).map(|_| rng.next_u64() as u8 | 1).collect();
        let next = blocks / case.conns as u64 * thread;
        Ok(Self {
            rng,
            case: *case,
            blocks,
            next,
            payload,
        })
    }

    /// The next request: its offset, and whether it writes.
    fn draw(&mut self) -> (u64, bool) {
        let block = match self.case.mode {
            Mode::Read | Mode::Write => {
                self.next = (self.next + 1) % self.blocks;
                self.next
            }
            _ => self.rng.below(self.blocks),
        };
        let writes = match self.case.mode {
            Mode::Randread | Mode::Read => false,
            Mode::Randrw => self.rng.chance(self.case.write_share),
            Mode::Randwrite | Mode::Write | Mode::Flush => true,
        };
        (block * self.case.bs as u64, writes)
    }

    /// The data of a write at `offset`: different for each write.
    fn payload(&mut self, offset: u64) -> &[u8] {
        let stamp = self.rng.next_u64() ^ offset;
        self.payload[..STAMP_BYTES].copy_from_slice(&(stamp | 1).to_le_bytes());
        &self.payload
    }
}

/// Clients of one kind that run together with those of other kinds.
#[derive(Clone, Copy, Debug)]
pub struct ClientGroup {
    /// Their work.
    pub case: Case,
    /// Which of the volumes they use.
    pub volume: usize,
    /// Processor their threads are pinned to.
    pub cpu: Option<usize>,
    /// Their threads go before ordinary ones.
    pub realtime: bool,
    /// Time between the intended starts of two requests of a connection, from which latency counts. At most `qd` requests
    /// are under way all the same. `None` begins a request as soon as another one ends, as all clients of files do.
    pub interval: Option<Duration>,
}

impl From<Case> for ClientGroup {
    fn from(case: Case) -> Self {
        Self {
            case,
            volume: 0,
            cpu: None,
            realtime: false,
            interval: None,
        }
    }
}

/// Runs a case.
pub fn run(target: &Target, case: &Case, bar: &ProgressBar) -> anyhow::Result<Outcome> {
    let outcomes = run_groups(
        core::slice::from_ref(target),
        &[ClientGroup::from(*case)],
        Duration::ZERO,
        bar,
    )?;
    Ok(outcomes.into_iter().next().expect("one group, one outcome"))
}

/// Runs groups on volumes together, for the time of the first one; what comes in the first `warm_up` does not count.
pub fn run_groups(
    targets: &[Target],
    groups: &[ClientGroup],
    warm_up: Duration,
    bar: &ProgressBar,
) -> anyhow::Result<Vec<Outcome>> {
    let opened = open(targets, groups)?;
    let (barrier, stop, counts) = (
        Barrier::new(opened.len() + 1),
        AtomicBool::new(false),
        AtomicBool::new(warm_up.is_zero()),
    );
    std::thread::scope(|scope| {
        let threads: Vec<_> = opened
            .into_iter()
            .map(|(index, thread, way)| {
                let (barrier, phase) = (
                    &barrier,
                    Phase {
                        stop: &stop,
                        counts: &counts,
                    },
                );
                let handle = scope.spawn(move || {
                    let group = &groups[index];
                    let placed = place(group);
                    let places = Places::new(
                        &group.case,
                        targets[group.volume].span_bytes,
                        (index as u64) << 16 | thread,
                    );
                    barrier.wait();
                    placed?;
                    match way {
                        Way::Client(mut client) => drive_client(&mut *client, places?, group.interval, phase),
                        Way::File(file) => drive_file(&file, places?, phase),
                    }
                });
                (index, handle)
            })
            .collect();
        barrier.wait();
        std::thread::sleep(warm_up);
        counts.store(true, Ordering::Relaxed);
        let (start, time) = (Instant::now(), groups[0].case.time);
        while start.elapsed() < time && !threads.iter().all(|(_, thread)| thread.is_finished()) {
            let done = start.elapsed().as_secs_f64() / time.as_secs_f64();
            bar.set_position((done * 100.0) as u64);
            std::thread::sleep(Duration::from_millis(20).min(time));
        }
        stop.store(true, Ordering::Relaxed);
        let elapsed = start.elapsed();
        let mut outcomes: Vec<Outcome> = groups
            .iter()
            .map(|_| Outcome {
                requests: 0,
                elapsed,
                latency: histogram(),
            })
            .collect();
        for (index, thread) in threads {
            let latency = thread.join().expect("a load thread does not panic")?;
            outcomes[index].requests += latency.len();
            outcomes[index].latency.add(latency).expect("equal bounds");
        }
        Ok(outcomes)
    })
}

/// A way for every thread: the group's place, the thread's number in it.
fn open(targets: &[Target], groups: &[ClientGroup]) -> anyhow::Result<Vec<(usize, u64, Way)>> {
    let mut opened = Vec::new();
    for (index, group) in groups.iter().enumerate() {
        let (case, target) = (&group.case, &targets[group.volume]);
        let ways = if target.is_pipelined() {
            case.conns
        } else {
            case.conns * case.qd
        };
        for thread in 0..ways {
            let way = target.way(case.mode.writes(), case.polls)?;
            opened.push((index, thread as u64 % case.conns as u64, way));
        }
    }
    Ok(opened)
}

/// Puts the calling thread where its group belongs.
fn place(group: &ClientGroup) -> anyhow::Result<()> {
    if let Some(cpu) = group.cpu {
        runtime::cpu::pin(cpu).with_context(|| format!("cannot run on processor {cpu}"))?;
    }
    if group.realtime {
        runtime::cpu::realtime()
            .context("cannot get real-time priority: run as root, or with CAP_SYS_NICE")?;
    }
    Ok(())
}

/// State of a run, as its threads see it.
#[derive(Clone, Copy)]
struct Phase<'a> {
    stop: &'a AtomicBool,
    counts: &'a AtomicBool,
}

impl Phase<'_> {
    fn is_over(self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// True while what ends is counted.
    fn counts(self) -> bool {
        self.counts.load(Ordering::Relaxed) && !self.is_over()
    }
}

/// When a connection's requests begin.
struct Pace {
    interval: Option<Duration>,
    due: Instant,
}

impl Pace {
    fn new(interval: Option<Duration>) -> Self {
        Self {
            interval,
            due: Instant::now(),
        }
    }

    /// The intended start of the next request, if it is not later than `now`.
    fn start(&mut self, now: Instant) -> Option<Instant> {
        let Some(interval) = self.interval else {
            return Some(now);
        };
        let due = self.due;
        (due <= now).then(|| {
            self.due += interval;
            due
        })
    }
}

/// A request under way.
#[derive(Clone, Copy)]
struct Flying {
    since: Instant,
    reads: bool,
    /// The write before a measured flush.
    is_silent: bool,
}

/// Keeps `qd` requests under way, or begins one at every interval, until told to stop. A flush case alternates a silent
/// write and a measured flush.
fn drive_client(
    connection: &mut dyn Client,
    mut places: Places,
    interval: Option<Duration>,
    phase: Phase<'_>,
) -> anyhow::Result<Histogram<u64>> {
    let case = places.case;
    if case.mode == Mode::Flush && !connection.can_flush() {
        bail!("the server does not understand flushes");
    }
    let mut latency = histogram();
    let mut flying: Slab<Flying> = Slab::with_capacity(case.qd);
    let mut flush_next = vec![false; case.qd];
    let mut pace = Pace::new(interval);
    loop {
        let is_stopping = phase.is_over();
        if is_stopping && flying.is_empty() {
            return Ok(latency);
        }
        let now = Instant::now();
        while !is_stopping
            && flying.len() < case.qd
            && let Some(since) = pace.start(now)
        {
            let slot = flying.insert(Flying {
                since,
                reads: false,
                is_silent: false,
            });
            let (flight, flush_next) = (&mut flying[slot], &mut flush_next[slot as usize]);
            let flushes = case.mode == Mode::Flush && *flush_next;
            *flush_next = !*flush_next;
            flight.is_silent = case.mode == Mode::Flush && !flushes;
            if flushes {
                connection.push_flush(slot.into());
                continue;
            }
            let (offset, writes) = places.draw();
            flight.reads = !writes;
            match writes {
                true => connection.push_write(slot.into(), offset, places.payload(offset)),
                false => connection.push_read(slot.into(), offset, case.bs as u32),
            }
        }
        connection.send()?;
        let paces = interval.is_some() && !is_stopping && flying.len() < case.qd;
        if paces && !sleep_until(connection.socket(), pace.due)? {
            continue;
        }
        loop {
            let data_bytes = |cookie: u64| {
                let known = u32::try_from(cookie).ok().and_then(|slot| flying.get(slot));
                known.map_or(0, |flying| if flying.reads { case.bs } else { 0 })
            };
            let slot = u32::try_from(connection.receive(&data_bytes)?);
            let Some(slot) = slot.ok().filter(|&slot| flying.get(slot).is_some()) else {
                bail!("the server answered a request that was not sent")
            };
            let flight = flying.remove(slot);
            if !flight.is_silent && phase.counts() {
                latency.saturating_record(flight.since.elapsed().as_nanos() as u64);
            }
            if flying.is_empty() || !connection.has_reply() {
                break;
            }
        }
    }
}

/// One request at a time; the caller has as many threads as the depth asks for.
fn drive_file(file: &File, mut places: Places, phase: Phase<'_>) -> anyhow::Result<Histogram<u64>> {
    let mut latency = histogram();
    let mut buffer = Aligned::new(places.case.bs);
    while !phase.is_over() {
        let (offset, writes) = places.draw();
        if writes {
            buffer.bytes().copy_from_slice(places.payload(offset));
        }
        let mut since = Instant::now();
        match writes {
            true => file.write_all_at(buffer.bytes(), offset)?,
            false => file.read_exact_at(buffer.bytes(), offset)?,
        }
        if places.case.mode == Mode::Flush {
            since = Instant::now();
            file.sync_data()?;
        }
        if phase.counts() {
            latency.saturating_record(since.elapsed().as_nanos() as u64);
        }
    }
    Ok(latency)
}

/// Writes the whole target once, in order.
pub fn fill(target: &Target, case: &Case, bar: ProgressBar) -> anyhow::Result<()> {
    let case = Case {
        bs: case.bs.min(target.span_bytes as usize),
        ..*case
    };
    let mut places = Places::new(&case, target.span_bytes, 0)?;
    bar.set_message("filling");
    bar.set_length(places.blocks);
    let mut way = target.way(true, false)?;
    let mut buffer = Aligned::new(case.bs);
    let mut under_way = 0;
    for block in 0..places.blocks {
        let offset = block * case.bs as u64;
        match &mut way {
            Way::File(file) => {
                buffer.bytes().copy_from_slice(places.payload(offset));
                file.write_all_at(buffer.bytes(), offset)?;
            }
            Way::Client(connection) => {
                connection.push_write(block, offset, places.payload(offset));
                connection.send()?;
                under_way += 1;
                if under_way == case.qd {
                    connection.receive(&|_| 0)?;
                    under_way -= 1;
                }
            }
        }
        bar.set_position(block);
    }
    match &mut way {
        Way::File(file) => file.sync_data()?,
        Way::Client(connection) => {
            connection.push_flush(u64::MAX);
            connection.send()?;
            for _ in 0..under_way + 1 {
                connection.receive(&|_| 0)?;
            }
        }
    }
    bar.finish_and_clear();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(mode: Mode) -> Case {
        Case {
            mode,
            bs: 4096,
            qd: 4,
            conns: 1,
            polls: false,
            write_share: 0.5,
            time: Duration::from_millis(60),
            seed: 7,
        }
    }

    #[test]
    fn places_stay_inside_and_modes_keep_their_word() {
        for mode in [
            Mode::Randread,
            Mode::Randwrite,
            Mode::Randrw,
            Mode::Read,
            Mode::Write,
        ] {
            let mut places = Places::new(&case(mode), 10 * 4096 + 100, 0).unwrap();
            let drawn: Vec<_> = (0..1000).map(|_| places.draw()).collect();
            assert!(
                drawn
                    .iter()
                    .all(|(offset, _)| offset + 4096 <= 10 * 4096 && offset % 4096 == 0)
            );
            let writes = drawn.iter().filter(|(_, writes)| *writes).count();
            match mode {
                Mode::Randread | Mode::Read => assert_eq!(writes, 0),
                Mode::Randrw => assert!((400..600).contains(&writes)),
                _ => assert_eq!(writes, 1000),
            }
        }
        assert!(
            Places::new(&case(Mode::Read), 100, 0).is_err(),
            "smaller than a request"
        );
    }

    #[test]
    fn a_late_client_begins_what_it_missed_at_the_intended_times() {
        let interval = Duration::from_millis(2);
        let mut pace = Pace::new(Some(interval));
        let first = pace.due;
        let late = first + interval * 5 / 2;
        let starts: Vec<_> = std::iter::from_fn(|| pace.start(late)).collect();
        assert_eq!(starts, [first, first + interval, first + interval * 2]);
        assert_eq!(pace.due, first + interval * 3);
    }

    #[test]
    fn a_file_is_filled_and_measured() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("target");
        std::fs::write(&path, vec![0; 1 << 20]).unwrap();
        let target = Target::open(&format!("file:{}", path.display()), None).unwrap();
        assert_eq!(target.span_bytes, 1 << 20);
        fill(&target, &case(Mode::Write), ProgressBar::hidden()).unwrap();
        assert!(
            std::fs::read(&path)
                .unwrap()
                .chunks(4096)
                .all(|chunk| chunk.iter().any(|&b| b != 0))
        );
        for mode in [Mode::Randread, Mode::Randwrite, Mode::Flush] {
            let outcome = run(&target, &case(mode), &ProgressBar::hidden()).unwrap();
            assert!(outcome.requests > 0 && outcome.requests == outcome.latency.len());
        }
    }
}

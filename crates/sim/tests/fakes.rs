//! The simulator against small fake hosts: a server and a replicated pair that are right, and the same with one thing
//! broken, which the checkers must catch.

use base::device::{LIMIT, LatencyModel};
use base::event::Source;
use base::limits::SECTORS_PER_PAGE;
use base::{
    Addr, BlockOp, BlockReply, BlockRequest, Device, Instant, Machine, MediaOp, Page, Pages, Pool, VolumeId,
    VssdId,
};
use host::{Input, Output};
use sim::check::Violation;
use sim::check::memory::Set;
use sim::client::{ClientVolume, LoadSpec, Pace, Shape};
use sim::media::{MediaModel, SimMedium};
use sim::net::{Delay, LinkModel, NetFaults};
use sim::run::{Fault, Fleet, Outcome, Role, Run, RunSpec};
use sim::workload::{Mix, Pattern};
use sim::world::{Canary, Site, WorldOptions};
use std::collections::VecDeque;
use wire::rack::{Code, Header, Op, Packet};

const PAGES: u64 = 32;
const SECTOR: usize = 16;
const PAGE: usize = SECTOR * SECTORS_PER_PAGE;

/// Applies a request's data to stored pages; returns the pages touched.
fn apply(store: &[Page], pool: &Pool, request: &BlockRequest) -> Vec<(usize, Page)> {
    let first = (request.range.offset() / 512) as usize;
    let end = first + (request.range.length() / 512) as usize;
    let grid = first / SECTORS_PER_PAGE;
    let mut changed = Vec::new();
    let pages = store
        .iter()
        .enumerate()
        .take(end.div_ceil(SECTORS_PER_PAGE))
        .skip(grid);
    for (index, stored) in pages {
        let page = pool.alloc().expect("the pool is large enough");
        page.copy_sectors(stored, 0, SECTORS_PER_PAGE);
        let from = first.max(index * SECTORS_PER_PAGE) - index * SECTORS_PER_PAGE;
        let to = end.min((index + 1) * SECTORS_PER_PAGE) - index * SECTORS_PER_PAGE;
        match request.op {
            BlockOp::Write => page.copy_sectors(&request.pages[index - grid], from, to - from),
            _ => page.zero_sectors(from, to - from),
        }
        changed.push((index, page));
    }
    changed
}

fn read(store: &[Page], request: &BlockRequest) -> Pages {
    let first = request.range.offset() as usize / 4096;
    let end = (request.range.end()).div_ceil(4096) as usize;
    store[first..end].iter().cloned().collect()
}

fn stored(pool: &Pool, medium: Option<&SimMedium>) -> Vec<Page> {
    let load = |index: u64| {
        let page = pool.alloc_zeroed().expect("the pool is large enough");
        if let Some(medium) = medium {
            let offset = index * PAGE as u64;
            page.with_mut(|bytes| medium.read_at(offset, bytes))
                .expect("inside the medium");
        }
        page
    };
    (0..PAGES).map(load).collect()
}

/// Mistake of a fake.
#[derive(Clone, Copy, PartialEq)]
enum Flaw {
    None,
    AckBeforeMedium,
    FlushIsIgnored,
    ReadsLag,
    AnswersNot,
    NeverRests,
}

/// Gateway and server in one: pages in memory, written through to the medium.
struct Server {
    pool: Pool,
    store: Vec<Page>,
    lagging: Vec<Page>,
    flaw: Flaw,
    /// Requests waiting for the medium, by operation id: writes left, then a flush if asked.
    waiting: Vec<(BlockRequest, usize, bool)>,
    ids: VecDeque<(u64, usize)>,
    next_id: u64,
    reads: u64,
    out: VecDeque<Output>,
}

impl Server {
    fn answer(&mut self, request: &BlockRequest, result: Pages) {
        self.out.push_back(Output::Reply(BlockReply {
            client: request.client,
            tag: request.tag,
            result: Ok(result),
        }));
    }

    fn issue(&mut self, waiter: usize, op: impl FnOnce(u64) -> MediaOp) {
        self.next_id += 1;
        self.ids.push_back((self.next_id, waiter));
        self.out.push_back(Output::Media(op(self.next_id)));
    }

    fn request(&mut self, request: BlockRequest) {
        match request.op {
            BlockOp::Read => {
                self.reads += 1;
                if self.flaw == Flaw::AnswersNot && self.reads.is_multiple_of(50) {
                    return;
                }
                let lags = self.flaw == Flaw::ReadsLag && self.reads.is_multiple_of(20);
                let pages = read(if lags { &self.lagging } else { &self.store }, &request);
                self.answer(&request, pages);
            }
            BlockOp::Flush if self.flaw == Flaw::FlushIsIgnored => self.answer(&request, Pages::new()),
            BlockOp::Flush => {
                self.waiting.push((request, 1, false));
                self.issue(self.waiting.len() - 1, MediaOp::flush);
            }
            _ => self.write(request),
        }
    }

    fn write(&mut self, request: BlockRequest) {
        let changed = apply(&self.store, &self.pool, &request);
        if self.flaw == Flaw::AckBeforeMedium {
            self.answer(&request, Pages::new());
        }
        let waiter = self.waiting.len();
        let fua = request.fua;
        self.waiting.push((request, changed.len(), fua));
        for (index, page) in changed {
            self.lagging[index] = self.store[index].clone();
            self.store[index] = page.clone();
            let offset = (index * PAGE) as u64;
            self.issue(waiter, |id| MediaOp::write(id, offset, page));
        }
    }

    fn done(&mut self, id: u64) {
        let (expected, waiter) = self.ids.pop_front().expect("something was asked");
        if expected != id {
            // Flushes take longer than writes: find it.
            let at = self.ids.iter().position(|w| w.0 == id).expect("it was asked");
            let found = self.ids.remove(at).expect("it was found").1;
            self.ids.push_front((expected, waiter));
            return self.count(found);
        }
        self.count(waiter);
    }

    fn count(&mut self, waiter: usize) {
        self.waiting[waiter].1 -= 1;
        if self.waiting[waiter].1 > 0 {
            return;
        }
        if self.waiting[waiter].2 {
            self.waiting[waiter].2 = false;
            self.waiting[waiter].1 = 1;
            return self.issue(waiter, MediaOp::flush);
        }
        let (client, tag) = (self.waiting[waiter].0.client, self.waiting[waiter].0.tag);
        let write = !matches!(self.waiting[waiter].0.op, BlockOp::Flush);
        if write && self.flaw == Flaw::AckBeforeMedium {
            return;
        }
        let result = Ok(Pages::new());
        self.out
            .push_back(Output::Reply(BlockReply { client, tag, result }));
    }
}

/// The gateway of a replicated pair: one request at a time, a write to both replicas, reads from them by turns.
struct Gate {
    pool: Pool,
    queue: VecDeque<BlockRequest>,
    current: Option<(BlockRequest, usize, Pages)>,
    number: u64,
    out: VecDeque<Output>,
}

fn node_addr(index: usize) -> Addr {
    Addr::new([10, 0, 0, index as u8], 1)
}

impl Gate {
    fn next(&mut self) {
        while self.current.is_none() {
            let Some(request) = self.queue.pop_front() else {
                return;
            };
            let first = request.range.offset() / 4096;
            let mut left = 0;
            let count = (request.range.end()).div_ceil(4096) - first;
            for i in 0..count {
                self.number += 1;
                let mut header = Header::new(Op::Read, VssdId(1));
                header.request = self.number;
                header.lba = (first + i) * SECTORS_PER_PAGE as u64;
                header.source = node_addr(0);
                if request.op == BlockOp::Read {
                    let to = node_addr(1 + (self.number % 2) as usize);
                    header.target = to;
                    let packet = Packet::bare(header);
                    self.out.push_back(Output::Send { to, packet });
                    left += 1;
                } else {
                    header.op = Op::Inv;
                    let page = request.pages[i as usize].clone();
                    for to in [node_addr(1), node_addr(2)] {
                        header.target = to;
                        let packet = Packet::with_page(header, Some(page.clone()), page.crc());
                        self.out.push_back(Output::Send { to, packet });
                        left += 1;
                    }
                }
            }
            if left == 0 {
                self.finish(&request, Pages::new());
                continue;
            }
            let pages = (0..count)
                .map(|_| self.pool.alloc_zeroed().expect("the pool is large enough"))
                .collect();
            self.current = Some((request, left, pages));
        }
    }

    fn finish(&mut self, request: &BlockRequest, pages: Pages) {
        self.out.push_back(Output::Reply(BlockReply {
            client: request.client,
            tag: request.tag,
            result: Ok(pages),
        }));
    }

    fn packet(&mut self, packet: Packet) {
        let Some((request, left, pages)) = &mut self.current else {
            return;
        };
        if packet.header.op == Op::Read {
            let at = packet.header.lba / SECTORS_PER_PAGE as u64 - request.range.offset() / 4096;
            pages[at as usize] = packet.page().expect("a read has its page").clone();
        }
        *left -= 1;
        if *left == 0 {
            let (request, _, pages) = self.current.take().expect("it is there");
            self.finish(&request, pages);
            self.next();
        }
    }
}

/// A replica without a medium worth the name.
struct Replica {
    index: usize,
    store: Vec<Page>,
    out: VecDeque<Output>,
}

impl Replica {
    fn packet(&mut self, packet: Packet) {
        let at = packet.header.lba as usize / SECTORS_PER_PAGE;
        let mut header = packet.header.reply(Code::SoftOrOk);
        let reply = if header.op == Op::Inv {
            self.store[at] = packet.page().expect("an invalidation has its page").clone();
            header.op = Op::Ack;
            Packet::bare(header)
        } else {
            let page = self.store[at].clone();
            let crc = page.crc();
            Packet::with_page(header, Some(page), crc)
        };
        assert_eq!(reply.header.source, node_addr(self.index));
        let to = reply.header.target;
        self.out.push_back(Output::Send { to, packet: reply });
    }
}

enum Fake {
    Server(Box<Server>),
    Gate(Gate),
    Replica(Replica),
}

impl Machine for Fake {
    type Input = Input;
    type Output = Output;
    fn handle(&mut self, _now: Instant, input: Input) {
        match (self, input) {
            (Fake::Server(s), Input::Request(request)) => s.request(request),
            (Fake::Server(s), Input::Media(done)) => s.done(done.id),
            (Fake::Gate(g), Input::Request(request)) => {
                g.queue.push_back(request);
                g.next();
            }
            (Fake::Gate(g), Input::Packet(packet)) => g.packet(packet),
            (Fake::Replica(r), Input::Packet(packet)) => r.packet(packet),
            _ => panic!("no such input here"),
        }
    }
    fn poll(&mut self) -> Option<Output> {
        match self {
            Fake::Server(s) => s.out.pop_front(),
            Fake::Gate(g) => g.out.pop_front(),
            Fake::Replica(r) => r.out.pop_front(),
        }
    }
    fn deadline(&self) -> Option<Instant> {
        match self {
            Fake::Server(s) if s.flaw == Flaw::NeverRests => Some(Instant::ZERO),
            _ => None,
        }
    }
    fn tick(&mut self, _now: Instant) {}
}

#[derive(Clone, Copy)]
struct FakeFleet {
    flaw: Flaw,
    replicated: bool,
}

impl Fleet for FakeFleet {
    type Host = Fake;
    fn sites(&self) -> Vec<(Site, Role)> {
        let medium_bytes = PAGES * PAGE as u64;
        let site = |index, medium_bytes| Site {
            addr: node_addr(index),
            medium_bytes,
            source: Source::Core(index as u16),
        };
        if self.replicated {
            vec![
                (site(0, 0), Role::Gateway),
                (site(1, medium_bytes), Role::Node),
                (site(2, medium_bytes), Role::Node),
            ]
        } else {
            vec![(site(0, medium_bytes), Role::Server)]
        }
    }

    fn start(
        &mut self,
        index: usize,
        _boot: u32,
        _now: Instant,
        pool: &Pool,
        medium: Option<&mut SimMedium>,
    ) -> Result<Fake, String> {
        let out = VecDeque::new();
        Ok(match (self.replicated, index) {
            (true, 0) => Fake::Gate(Gate {
                pool: pool.clone(),
                queue: VecDeque::new(),
                current: None,
                number: 0,
                out,
            }),
            (true, _) => Fake::Replica(Replica {
                index,
                store: stored(pool, None),
                out,
            }),
            (false, _) => Fake::Server(Box::new(Server {
                store: stored(pool, medium.as_deref()),
                lagging: stored(pool, medium.as_deref()),
                pool: pool.clone(),
                flaw: self.flaw,
                waiting: Vec::new(),
                ids: VecDeque::new(),
                next_id: 0,
                reads: 0,
                out,
            })),
        })
    }

    fn sets(&self) -> Vec<Set> {
        let hosts = if self.replicated { 1..3 } else { 0..1 };
        vec![Set {
            volume: 0,
            pages: 0..PAGES,
            members: hosts.map(|host| (VssdId(host as u32), host)).collect(),
            may_change: false,
        }]
    }
}

fn spec(seed: u64, canary: Canary) -> RunSpec {
    let load = LoadSpec {
        mix: Mix {
            flush: 0.02,
            trim: 0.02,
            zeroes: 0.02,
            ..Mix::writes(0.5)
        },
        shape: Shape {
            sub_page: 0.3,
            multi_page: 0.2,
            pages_max: 4,
        },
        fua: 0.1,
        ..LoadSpec::new(0, 0, 3_000)
    };
    RunSpec {
        world: WorldOptions {
            seed,
            link: LinkModel {
                delay: Delay::FAST,
                ..LinkModel::default()
            },
            media: MediaModel {
                page_bytes: PAGE,
                sector_bytes: SECTOR,
                latency: LatencyModel {
                    io_ns: 5_000,
                    flush_ns: 20_000,
                },
                limit: LIMIT,
                volatile: true,
                loses_flushes: false,
            },
            wire_check: true,
            canary,
            cut: None,
        },
        volumes: vec![ClientVolume {
            id: VolumeId(1),
            pages: PAGES,
            check: true,
            durability: true,
            durable_writes: false,
        }],
        loads: vec![load],
        faults: Vec::new(),
        net_faults: NetFaults::default(),
        calm_ns: 0,
        answer_ns: 100_000_000,
        gc_lease_ns: u64::MAX,
        pool_pages: 4096,
        read_back: true,
        exam: false,
        probe: true,
        errors_are_violations: true,
        at_cut: Default::default(),
    }
}

fn serve(flaw: Flaw, spec: RunSpec) -> Outcome {
    let fleet = FakeFleet {
        flaw,
        replicated: false,
    };
    Run::new(fleet, spec).execute()
}

fn power_losses() -> Vec<(u64, Fault)> {
    (1..12)
        .map(|i| (i * 300_000, Fault::PowerLoss { down_ns: 20_000 }))
        .collect()
}

fn caught(flaw: Flaw, faults: &[(u64, Fault)], canary: Canary) -> Vec<Violation> {
    let mut all = Vec::new();
    for seed in 0..10 {
        let mut spec = spec(seed, canary);
        spec.faults = faults.to_vec();
        // Not a closed loop: a server that answers at once would be done before anything happens.
        spec.loads[0].pace = Pace::Open {
            per_second: 800_000.0,
            outstanding_max: 64,
        };
        all.extend(serve(flaw, spec).violations);
    }
    all
}

#[test]
fn a_right_server_passes_whatever_power_does() {
    for seed in 0..40 {
        let mut spec = spec(seed, Canary::None);
        spec.faults = power_losses();
        let outcome = serve(Flaw::None, spec);
        assert_eq!(outcome.violations, [], "seed {seed}");
        assert!(outcome.reads_judged > 1_000 && outcome.clients.abandoned > 0);
    }
}

#[test]
fn the_same_seed_is_the_same_run_and_another_seed_another() {
    let hash = |seed| {
        let mut spec = spec(seed, Canary::None);
        spec.faults = power_losses();
        serve(Flaw::None, spec).hash
    };
    assert_eq!(hash(1), hash(1));
    assert_ne!(hash(1), hash(2));
}

#[test]
fn an_early_acknowledgement_is_caught_only_if_power_is_lost() {
    // Write-through order is kept, so an early answer is harmless until the flush that follows covers too little.
    assert_eq!(caught(Flaw::AckBeforeMedium, &[], Canary::None), []);
    assert_ne!(caught(Flaw::AckBeforeMedium, &power_losses(), Canary::None), []);
}

#[test]
fn an_ignored_flush_is_caught() {
    assert_eq!(caught(Flaw::FlushIsIgnored, &[], Canary::None), []);
    assert_ne!(caught(Flaw::FlushIsIgnored, &power_losses(), Canary::None), []);
}

#[test]
fn a_medium_that_loses_flushes_is_caught() {
    assert_ne!(caught(Flaw::None, &power_losses(), Canary::LoseFlush), []);
}

#[test]
fn reads_that_lag_are_caught() {
    let violations = caught(Flaw::ReadsLag, &[], Canary::None);
    assert!(violations.iter().any(|v| matches!(v, Violation::Stale { .. })));
}

#[test]
fn requests_without_an_answer_are_caught() {
    let violations = caught(Flaw::AnswersNot, &[], Canary::None);
    assert!(violations.iter().any(|v| matches!(v, Violation::Stuck { .. })));
}

#[test]
#[should_panic(expected = "the deadline of host 0 does not advance")]
fn a_host_that_never_rests_is_caught() {
    let mut spec = spec(1, Canary::None);
    spec.loads[0].requests = 10;
    serve(Flaw::NeverRests, spec);
}

fn replicate(seed: u64, canary: Canary) -> Outcome {
    let fleet = FakeFleet {
        flaw: Flaw::None,
        replicated: true,
    };
    let mut spec = spec(seed, canary);
    spec.loads[0].mix = Mix::writes(0.5);
    spec.loads[0].shape = Shape::PAGE;
    Run::new(fleet, spec).execute()
}

#[test]
fn a_replicated_pair_passes() {
    for seed in 0..5 {
        assert_eq!(replicate(seed, Canary::None).violations, []);
    }
}

#[test]
fn forged_acknowledgements_are_caught() {
    for seed in 0..5 {
        assert_ne!(
            replicate(seed, Canary::AckWithoutApply).violations,
            [],
            "seed {seed}"
        );
    }
}

#[test]
fn stale_answers_are_caught() {
    for seed in 0..5 {
        assert_ne!(replicate(seed, Canary::StaleRead).violations, [], "seed {seed}");
    }
}

#[test]
fn an_open_loop_keeps_its_rate() {
    let mut spec = spec(1, Canary::None);
    spec.loads[0].pace = Pace::Open {
        per_second: 50_000.0,
        outstanding_max: 1000,
    };
    spec.loads[0].pattern = Pattern::Zipfian;
    let outcome = serve(Flaw::None, spec);
    let rate = outcome.clients.issued as f64 * 1e9 / outcome.clients.recorded_to_ns as f64;
    assert_eq!(outcome.violations, []);
    assert!((45_000.0..55_000.0).contains(&rate), "{rate}");
}

//! Virtual datacenters, the baseline of RackBlox §4.1 (Pulsar, OSDI'14 §4). A logically central controller knows every
//! flow's demand and allocates. Token buckets of several resources enforce the allocation where requests enter. Nothing
//! here knows of garbage collection.
//!
//! A flow is one client host's requests to one replica set. It needs the storage of each replica's server, and the
//! network of its first. A read costs the first server a read, a write costs each server a program ([`Costs`], nominal
//! device time), and the page costs bytes. Every [`Config::interval`] a client host reports the use and the waiting work
//! of its flows. The controller smooths the reports, gives each resource out max-min fair, and divides the rest evenly. So
//! no resource idles while somebody wants it. Before the first allocation nothing is held back.

use base::{Addr, Duration, Instant, VssdId};
use std::collections::{BTreeMap, VecDeque};

/// Resources of a flow: the storage of up to three replicas' servers, and the network of the first.
pub const RESOURCES: usize = 4;
const NETWORK: usize = RESOURCES - 1;
/// Tokens, or tokens a second, of each resource: storage in ns of device time, network in bytes.
pub type Tokens = [u64; RESOURCES];

const FLOW_BYTES: usize = 4 + 8 * RESOURCES;
/// Flows in one packet at most.
pub const FLOWS_MAX: usize = base::limits::PAGE_BYTES / FLOW_BYTES;

/// Costs of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Device time of a page's read.
    pub read_ns: u64,
    /// Device time of a page's program.
    pub write_ns: u64,
}

impl Costs {
    /// The tokens of a request for one page of `bytes` bytes in a set of `replicas` replicas.
    pub fn of(&self, writes: bool, bytes: u64, replicas: usize) -> Tokens {
        let mut tokens = [0; RESOURCES];
        match writes {
            true => tokens[..replicas.min(NETWORK)].fill(self.write_ns),
            false => tokens[0] = self.read_ns,
        }
        tokens[NETWORK] = bytes;
        tokens
    }
}

/// How flows are shaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Time between two reports: the controller's interval.
    pub interval: Duration,
    /// A bucket holds as many tokens as come in this time.
    pub burst: Duration,
    /// Costs of requests.
    pub costs: Costs,
}

/// Capacity of one server in a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Device time of all its planes.
    pub storage_ns: u64,
    /// Bytes of its link.
    pub network_bytes: u64,
}

/// A token bucket of several resources. It may be overdrawn by one request, so that no cost is too large.
#[derive(Clone, Debug, Default)]
pub struct Bucket {
    rate: Option<Tokens>,
    burst: Duration,
    tokens: [i128; RESOURCES],
    filled_at: Instant,
}

const NANOS: i128 = 1_000_000_000;

impl Bucket {
    /// A bucket without limits that will hold `burst` of its rate.
    pub fn new(burst: Duration) -> Self {
        Self {
            burst,
            ..Self::default()
        }
    }

    /// Sets the tokens a second. The first rate fills the bucket.
    pub fn set_rate(&mut self, now: Instant, rate: Tokens) {
        self.fill(now);
        if self.rate.replace(rate).is_none() {
            self.filled_at = now;
            self.tokens = rate.map(|rate| self.capacity(rate));
        }
    }

    fn capacity(&self, rate: u64) -> i128 {
        i128::from(rate) * self.burst.as_nanos() as i128
    }

    /// Tokens are kept in billionths, so that nothing is lost to rounding.
    fn fill(&mut self, now: Instant) {
        let Some(rate) = self.rate else { return };
        let passed = i128::from(now.nanos_since(self.filled_at));
        self.filled_at = now;
        for (tokens, rate) in self.tokens.iter_mut().zip(rate) {
            let full = i128::from(rate) * self.burst.as_nanos() as i128;
            *tokens = (*tokens + i128::from(rate) * passed).min(full);
        }
    }

    /// Takes the tokens of a request; false, and none is taken, if it has to wait.
    pub fn take(&mut self, now: Instant, cost: &Tokens) -> bool {
        self.fill(now);
        if self.rate.is_none() {
            return true;
        }
        let short = |(tokens, cost): (&i128, &u64)| *cost > 0 && *tokens < 0;
        if self.tokens.iter().zip(cost).any(short) {
            return false;
        }
        for (tokens, cost) in self.tokens.iter_mut().zip(cost) {
            *tokens -= i128::from(*cost) * NANOS;
        }
        true
    }

    /// When [`Bucket::take`] of this cost succeeds at the present rate; never, at a rate of zero.
    pub fn ready_at(&self, cost: &Tokens) -> Instant {
        let Some(rate) = self.rate else {
            return self.filled_at;
        };
        let wait = |i: usize| match (self.tokens[i], rate[i]) {
            (tokens, _) if cost[i] == 0 || tokens >= 0 => 0,
            (_, 0) => u64::MAX,
            (tokens, rate) => {
                u64::try_from((-tokens + i128::from(rate) - 1) / i128::from(rate)).unwrap_or(u64::MAX)
            }
        };
        let longest = (0..RESOURCES).map(wait).max().unwrap_or(0);
        Instant::from_nanos(self.filled_at.as_nanos().saturating_add(longest))
    }
}

/// One flow where it enters: its bucket and what waits for it, named by small items.
#[derive(Clone, Debug)]
pub struct Flow<T> {
    bucket: Bucket,
    waiting: VecDeque<(T, Tokens)>,
    used: Tokens,
}

impl<T: Copy + PartialEq> Flow<T> {
    /// A flow that nothing limits yet.
    pub fn new(config: &Config) -> Self {
        Self {
            bucket: Bucket::new(config.burst),
            waiting: VecDeque::new(),
            used: [0; RESOURCES],
        }
    }

    /// A request: true if it may go at once, else it waits behind the others.
    pub fn admit(&mut self, now: Instant, item: T, cost: Tokens) -> bool {
        if self.waiting.is_empty() && self.bucket.take(now, &cost) {
            self.charge(&cost);
            return true;
        }
        self.waiting.push_back((item, cost));
        false
    }

    fn charge(&mut self, cost: &Tokens) {
        self.used
            .iter_mut()
            .zip(cost)
            .for_each(|(used, cost)| *used += cost);
    }

    /// The next request that may go now.
    pub fn release(&mut self, now: Instant) -> Option<T> {
        let (item, cost) = *self.waiting.front()?;
        if !self.bucket.take(now, &cost) {
            return None;
        }
        self.charge(&cost);
        self.waiting.pop_front();
        Some(item)
    }

    /// Forgets a request that waits.
    pub fn forget(&mut self, item: T) {
        self.waiting.retain(|(waiting, _)| *waiting != item);
    }

    /// When to [`Flow::release`].
    pub fn deadline(&self) -> Option<Instant> {
        self.waiting.front().map(|(_, cost)| self.bucket.ready_at(cost))
    }

    /// Use since the last report, and waiting work.
    pub fn report(&mut self) -> Tokens {
        let mut demand = core::mem::take(&mut self.used);
        for (_, cost) in &self.waiting {
            demand
                .iter_mut()
                .zip(cost)
                .for_each(|(demand, cost)| *demand += cost);
        }
        demand
    }

    /// Takes an allocation, in tokens a second.
    pub fn allocate(&mut self, now: Instant, rate: Tokens) {
        self.bucket.set_rate(now, rate);
    }
}

/// A line of a report or of its answer: a flow, by its first vSSD, and tokens used or tokens a second.
pub type Line = (VssdId, Tokens);

/// The payload of a `demand` packet or of its answer; see `docs/format/rack-packet.md`.
pub fn emit(lines: &[Line]) -> Vec<u8> {
    assert!(lines.len() <= FLOWS_MAX, "a packet's flows fit a page");
    let mut bytes = Vec::with_capacity(lines.len() * FLOW_BYTES);
    for (vssd, tokens) in lines {
        bytes.extend_from_slice(&vssd.0.to_be_bytes());
        tokens
            .iter()
            .for_each(|tokens| bytes.extend_from_slice(&tokens.to_be_bytes()));
    }
    bytes
}

/// Reads what [`emit`] wrote, `None` if it is malformed.
pub fn parse(bytes: &[u8]) -> Option<Vec<Line>> {
    let chunks = bytes.chunks_exact(FLOW_BYTES);
    if !chunks.remainder().is_empty() || chunks.len() > FLOWS_MAX {
        return None;
    }
    let line = |chunk: &[u8]| {
        let (vssd, rest) = chunk.split_first_chunk::<4>()?;
        let mut tokens = [0; RESOURCES];
        for (tokens, bytes) in tokens.iter_mut().zip(rest.chunks_exact(8)) {
            *tokens = u64::from_be_bytes(*bytes.first_chunk()?);
        }
        Some((VssdId(u32::from_be_bytes(*vssd)), tokens))
    };
    chunks.map(line).collect()
}

/// Weight of the newest report in the estimate of a flow's demand.
const ALPHA: f64 = 0.5;
/// A flow that is not heard of for this many intervals has ended.
const INTERVALS_KEPT: u32 = 5;

#[derive(Clone, Debug)]
struct Known {
    servers: [Option<Addr>; NETWORK],
    /// Tokens a second.
    demand: [f64; RESOURCES],
    heard: Instant,
}

impl Known {
    /// The servers whose resource `index` of this flow is.
    fn place(&self, index: usize) -> Option<(Addr, bool)> {
        let server = self.servers[if index == NETWORK { 0 } else { index }];
        server.map(|server| (server, index == NETWORK))
    }
}

/// The controller's allocation of servers to flows.
#[derive(Debug)]
pub struct Controller {
    interval: Duration,
    capacity: Capacity,
    flows: BTreeMap<(Addr, VssdId), Known>,
}

impl Controller {
    /// A controller of servers that are all alike.
    pub fn new(interval: Duration, capacity: Capacity) -> Self {
        Self {
            interval,
            capacity,
            flows: BTreeMap::new(),
        }
    }

    /// A client host's report, and the servers of each flow. Returns the allocations of those whose servers are known.
    pub fn report(
        &mut self,
        now: Instant,
        source: Addr,
        lines: &[Line],
        servers: impl Fn(VssdId) -> [Option<Addr>; NETWORK],
    ) -> Vec<Line> {
        let kept = self.interval.saturating_mul(INTERVALS_KEPT);
        self.flows.retain(|_, known| now.since(known.heard) <= kept);
        let seconds = self.interval.as_secs_f64();
        for (vssd, used) in lines {
            let fresh = Known {
                servers: [None; NETWORK],
                demand: used.map(|used| used as f64 / seconds),
                heard: now,
            };
            let known = self.flows.entry((source, *vssd)).or_insert(fresh);
            known.servers = servers(*vssd);
            known.heard = now;
            for (demand, used) in known.demand.iter_mut().zip(used) {
                *demand += ALPHA * (*used as f64 / seconds - *demand);
            }
        }
        lines
            .iter()
            .filter(|(vssd, _)| self.flows[&(source, *vssd)].servers[0].is_some())
            .map(|(vssd, _)| (*vssd, self.allocation((source, *vssd))))
            .collect()
    }

    fn allocation(&self, flow: (Addr, VssdId)) -> Tokens {
        let known = &self.flows[&flow];
        core::array::from_fn(|index| {
            let Some(place) = known.place(index) else {
                return 0;
            };
            let capacity = match place.1 {
                true => self.capacity.network_bytes,
                false => self.capacity.storage_ns,
            };
            let demands = self.flows.values().flat_map(|other| {
                (0..RESOURCES)
                    .filter(|&i| other.place(i) == Some(place))
                    .map(|i| other.demand[i])
            });
            fair_share(known.demand[index], demands.collect(), capacity as f64) as u64
        })
    }
}

/// The max-min fair share of one that wants `mine` among `demands`, which include it, and an even part of what is left.
fn fair_share(mine: f64, mut demands: Vec<f64>, capacity: f64) -> f64 {
    demands.sort_unstable_by(f64::total_cmp);
    let count = demands.len();
    let mut left = capacity;
    for (index, demand) in demands.iter().enumerate() {
        let even = left / (count - index) as f64;
        if *demand > even {
            // This one and all that want more get the same.
            return mine.min(even);
        }
        left -= demand;
    }
    mine + left / count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * MS)
    }

    #[test]
    fn a_bucket_lets_through_its_rate_and_one_burst() {
        let mut bucket = Bucket::new(Duration::from_millis(10));
        let cost = [0, 0, 0, 100];
        assert!(bucket.take(at(0), &cost), "without a rate nothing waits");
        bucket.set_rate(at(0), [0, 0, 0, 100_000]);
        let passed = (0..100_000)
            .filter(|us| bucket.take(Instant::from_nanos(us * 1000), &cost))
            .count();
        // 100 ms at 1000 requests a second, a burst of 10, and one overdrawn.
        assert!((110..=111).contains(&passed), "{passed}");
        assert!(bucket.ready_at(&cost) > at(99), "{:?}", bucket.ready_at(&cost));
        assert!(
            bucket.take(bucket.ready_at(&cost), &cost),
            "it is ready when it says so"
        );
        assert_eq!(
            bucket.ready_at(&[5, 0, 0, 0]),
            bucket.filled_at,
            "an idle resource does not bind"
        );
    }

    #[test]
    fn the_scarcest_resource_binds_and_the_order_is_kept() {
        let config = Config {
            interval: Duration::from_millis(100),
            burst: Duration::from_millis(1),
            costs: Costs {
                read_ns: 100,
                write_ns: 1000,
            },
        };
        let mut flow = Flow::new(&config);
        flow.allocate(at(0), [100_000, 1_000_000, 0, 1_000_000_000]);
        let write = config.costs.of(true, 4096, 2);
        assert_eq!(write, [1000, 1000, 0, 4096]);
        assert!(flow.admit(at(0), 1, write));
        assert!(!flow.admit(at(0), 2, write) && !flow.admit(at(0), 3, config.costs.of(false, 4096, 2)));
        assert_eq!(
            flow.release(at(5)),
            None,
            "100 of 1000 ns of storage come in a ms"
        );
        let ready = flow.deadline().unwrap();
        assert_eq!((flow.release(ready), flow.release(ready)), (Some(2), None));
        assert_eq!(
            flow.report(),
            [2100, 2000, 0, 3 * 4096],
            "used twice, and a read that waits"
        );
    }

    #[test]
    fn shares_are_max_min_fair_and_what_is_left_is_divided() {
        for (demands, shares) in [
            ([10.0, 10.0, 10.0], [30.0; 3]),
            ([10.0, 90.0, 90.0], [10.0, 40.0, 40.0]),
        ] {
            for (mine, share) in demands.into_iter().zip(shares) {
                assert_eq!(fair_share(mine, demands.to_vec(), 90.0), share);
            }
        }
    }

    #[test]
    fn flows_that_share_a_server_share_it_and_others_do_not() {
        let capacity = Capacity {
            storage_ns: 1000,
            network_bytes: 1 << 20,
        };
        let mut controller = Controller::new(Duration::from_secs(1), capacity);
        let server = |i| Addr::new([10, 0, 1, i], 1);
        let (a, b) = (Addr::new([10, 0, 2, 1], 1), Addr::new([10, 0, 2, 2], 1));
        let servers = |vssd: VssdId| match vssd.0 {
            1 => [Some(server(1)), Some(server(2)), None],
            _ => [Some(server(2)), Some(server(3)), None],
        };
        controller.report(at(0), a, &[(VssdId(1), [900, 900, 0, 0])], servers);
        let second = controller.report(at(1), b, &[(VssdId(2), [900, 900, 0, 0])], servers);
        let first = controller.report(at(2), a, &[(VssdId(1), [900, 900, 0, 0])], servers);
        assert_eq!((first[0].1[0], first[0].1[1]), (1000, 500));
        assert_eq!((second[0].1[0], second[0].1[1]), (500, 1000));
        let later = controller.report(at(60_000), a, &[(VssdId(1), [900, 900, 0, 0])], servers);
        assert_eq!(later[0].1[1], 1000, "a flow that is not heard of has ended");
    }

    #[test]
    fn reports_survive_the_wire_and_junk_is_refused() {
        let lines = vec![(VssdId(3), [1, 2, 3, u64::MAX]), (VssdId(4), [0; RESOURCES])];
        assert_eq!(parse(&emit(&lines)), Some(lines));
        assert_eq!(parse(&[]), Some(vec![]));
        assert_eq!(parse(&[0; FLOW_BYTES - 1]), None);
    }
}

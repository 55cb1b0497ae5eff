//! The modelled network: a delay per link, and loss, duplication, reordering, corruption and partitions, all drawn
//! from the seed.
//!
//! The delay model is fitted to the published trace of 600,000 one-way delays (RackBlox §4.1):
//! segments of 1000 packets around a nearly constant level, levels uncorrelated, small residuals around the level,
//! and 2 % of the segments bursty (12 of 600 in the trace), which make the tail beyond the 99th percentile. Packets of a
//! segment, the bursty ones included, have nothing to do with each other but its level.
//!
//! Packets of one link may overtake each other, as the delays are drawn one by one; [`LinkModel::fifo`] forbids it.

use base::{Instant, Rng};

/// Packets of a segment of the trace.
const SEGMENT_PACKETS: u32 = 1000;
/// Share of bursty segments: 12 of the trace's 600.
const BURSTY_SHARE: f64 = 0.02;
/// Quantiles of the delay inside the trace's bursty segment, in µs: above a floor it falls off like an exponential, with
/// the mean 201 and the deviation 55.
const BURSTY_US: [(f64, f64); 8] = [
    (0.0, 146.0),
    (0.05, 148.0),
    (0.25, 162.0),
    (0.5, 187.0),
    (0.75, 227.0),
    (0.95, 325.0),
    (0.99, 373.0),
    (1.0, 450.0),
];
/// A near client's delay is this part of a far one's, as RackBlox's networks are to each other here.
const NEAR_PART: u64 = 4;
/// Least and greatest delay of the trace, in µs.
const TRACE_US: (f64, f64) = (90.0, 450.0);
/// Quantiles of the levels of segments that are not bursty, in µs.
const LEVELS_US: [(f64, f64); 7] = [
    (0.0, 97.0),
    (0.05, 99.0),
    (0.25, 113.0),
    (0.5, 133.0),
    (0.75, 161.0),
    (0.95, 206.0),
    (1.0, 225.5),
];
/// Quantiles of the residuals in segments that are not bursty, in µs.
const RESIDUALS_US: [(f64, f64); 7] = [
    (0.0, -30.0),
    (0.01, -20.0),
    (0.05, -11.0),
    (0.25, -3.0),
    (0.75, 4.0),
    (0.95, 13.0),
    (1.0, 30.0),
];

/// How long a link takes.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub enum Delay {
    /// No time at all.
    #[default]
    None,
    /// This many nanoseconds.
    Constant(u64),
    /// The published trace's structure, all delays multiplied by the factor.
    Trace(f64),
}

impl Delay {
    /// RackBlox's "Fast" network: a quarter of the trace. The paper names no factor; this one is ours.
    pub const FAST: Self = Self::Trace(0.25);
    /// RackBlox's "Medium" network: the trace as it is.
    pub const MEDIUM: Self = Self::Trace(1.0);
    /// RackBlox's "Slow" network: four times the trace.
    pub const SLOW: Self = Self::Trace(4.0);
}

/// Effects of a link on every packet.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct LinkModel {
    /// Propagation and queueing.
    pub delay: Delay,
    /// Nanoseconds that a kilobyte (1000 bytes) occupies the link: 80 at 100 Gb/s, 0 for no limit.
    pub ns_per_kilobyte: u32,
    /// Packets do not overtake each other.
    pub fifo: bool,
    /// Clients that share the link, each over a path of its own; whose a request is, is drawn from its number. A path's level is the same both ways
    /// (RackBlox §3.4 predicts the way back from ways here), and lasts for 1000 packets each way. With 0 and 1 there is
    /// one client, whose two ways have nothing to do with each other.
    pub paths: u32,
    /// So many of them are near: their delays are a quarter of the model's.
    pub near_paths: u32,
}

/// Random misfortunes, each a probability per packet.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct NetFaults {
    /// The packet vanishes.
    pub loss: f64,
    /// It arrives twice.
    pub duplicate: f64,
    /// It is held back by up to [`NetFaults::reorder_ns_max`].
    pub reorder: f64,
    /// Greatest extra delay of a reordered or duplicated packet, in nanoseconds.
    pub reorder_ns_max: u64,
    /// One bit of its payload flips.
    pub corrupt: f64,
}

impl NetFaults {
    /// True when nothing can happen.
    pub fn are_none(&self) -> bool {
        self.loss == 0.0 && self.duplicate == 0.0 && self.reorder == 0.0 && self.corrupt == 0.0
    }
}

/// Fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It does not arrive.
    Lost,
    /// It arrives then, damaged or not, and perhaps once more later.
    Arrives {
        /// When.
        at: Instant,
        /// One bit of the payload flips on the way.
        corrupt: bool,
        /// When its duplicate arrives.
        again: Option<Instant>,
    },
}

#[derive(Clone, Debug, Default)]
struct Link {
    model: LinkModel,
    path: Path,
    /// Where several clients share the link, theirs. Each has numbers of its own, so that the n-th packet of a path
    /// takes as long whatever happens elsewhere.
    paths: Vec<(Path, Rng)>,
    free_at: u64,
    last_at: u64,
    /// Draws of the link's own, if it has any.
    rng: Option<Rng>,
}

impl Link {
    fn new(model: LinkModel, rng: &mut Rng) -> Self {
        let clients = if model.paths > 1 { model.paths } else { 0 };
        Self {
            model,
            paths: (0..clients).map(|_| (Path::default(), rng.fork())).collect(),
            ..Self::default()
        }
    }
}

/// Place of a path in its delay's segments.
#[derive(Clone, Copy, Debug, Default)]
struct Path {
    level_us: f64,
    packets_left: u32,
    bursty: bool,
}

/// The links between all hosts.
#[derive(Debug)]
pub struct Network {
    links: Vec<Link>,
    hosts: usize,
    faults: NetFaults,
    calm: bool,
    cut_until: Vec<Cut>,
    cut_last: u64,
    rng: Rng,
}

#[derive(Clone, Copy, Debug, Default)]
struct Cut {
    inbound: u64,
    outbound: u64,
}

impl Network {
    /// A network between `hosts` hosts whose links all follow `model`.
    pub fn new(hosts: usize, model: LinkModel, mut rng: Rng) -> Self {
        Self {
            links: (0..hosts * hosts).map(|_| Link::new(model, &mut rng)).collect(),
            hosts,
            faults: NetFaults::default(),
            calm: true,
            cut_until: vec![Cut::default(); hosts],
            cut_last: 0,
            rng,
        }
    }

    /// Gives the link from `from` to `to` a model of its own.
    pub fn set_link(&mut self, from: usize, to: usize, model: LinkModel) {
        self.links[from * self.hosts + to] = Link::new(model, &mut self.rng);
    }

    /// Gives each link delays of its own, drawn from `seed`, as paths have anyway. Packets of one link then change no delay on
    /// another, and two runs that send alike on a link meet alike delays on it (common random numbers).
    pub fn separate(&mut self, seed: u64) {
        let mut rng = Rng::new(seed);
        for link in &mut self.links {
            link.rng = Some(rng.fork());
        }
    }

    /// Sets the random misfortunes, for packets sent from now on.
    pub fn set_faults(&mut self, faults: NetFaults) {
        self.calm = faults.are_none();
        self.faults = faults;
    }

    /// Cuts `host` off until then, for packets to it, from it, or both.
    pub fn partition(&mut self, host: usize, until: Instant, inbound: bool, outbound: bool) {
        let cut = &mut self.cut_until[host];
        if inbound {
            cut.inbound = until.as_nanos();
        }
        if outbound {
            cut.outbound = until.as_nanos();
        }
        self.cut_last = self.cut_last.max(until.as_nanos());
    }

    /// Fate of a packet of `bytes` bytes sent now. Requests of equal number take the same path.
    pub fn carry(&mut self, now: Instant, from: usize, to: usize, bytes: u32, request: u64) -> Fate {
        let now_ns = now.as_nanos();
        if now_ns < self.cut_last && self.is_cut(now_ns, from, to) {
            return Fate::Lost;
        }
        let link = &mut self.links[from * self.hosts + to];
        let mut at = now_ns;
        if link.model.ns_per_kilobyte > 0 {
            link.free_at =
                link.free_at.max(now_ns) + u64::from(bytes) * u64::from(link.model.ns_per_kilobyte) / 1000;
            at = link.free_at;
        }
        at += self.path_ns(from, to, request);
        let link = &mut self.links[from * self.hosts + to];
        if link.model.fifo {
            at = at.max(link.last_at);
            link.last_at = at;
        }
        if self.calm {
            return Fate::Arrives {
                at: Instant::from_nanos(at),
                corrupt: false,
                again: None,
            };
        }
        self.misfortune(at)
    }

    fn path_ns(&mut self, from: usize, to: usize, request: u64) -> u64 {
        let Link { model, path, rng, .. } = &mut self.links[from * self.hosts + to];
        if model.paths <= 1 {
            if let Delay::Constant(ns) = model.delay {
                return ns;
            }
            let rng = rng.as_mut().unwrap_or(&mut self.rng);
            return delay_ns(model.delay, SEGMENT_PACKETS, path, rng);
        }
        let model = *model;
        let both_ways = from.min(to) * self.hosts + from.max(to);
        let paths = &mut self.links[both_ways].paths;
        let path = client_of(request, paths.len());
        let part = if path < model.near_paths as usize {
            NEAR_PART
        } else {
            1
        };
        let (path, rng) = &mut paths[path];
        delay_ns(model.delay, 2 * SEGMENT_PACKETS, path, rng) / part
    }

    fn is_cut(&self, now_ns: u64, from: usize, to: usize) -> bool {
        now_ns < self.cut_until[from].outbound || now_ns < self.cut_until[to].inbound
    }

    fn misfortune(&mut self, mut at: u64) -> Fate {
        let faults = self.faults;
        if self.rng.chance(faults.loss) {
            return Fate::Lost;
        }
        if self.rng.chance(faults.reorder) {
            at += self.rng.below(faults.reorder_ns_max + 1);
        }
        let again = self
            .rng
            .chance(faults.duplicate)
            .then(|| Instant::from_nanos(at + self.rng.below(faults.reorder_ns_max + 1)));
        Fate::Arrives {
            at: Instant::from_nanos(at),
            corrupt: self.rng.chance(faults.corrupt),
            again,
        }
    }
}

/// Whose a request is. Numbers of requests name places in the gateway that are used again, the last one first: by their
/// remainders some clients would be asked for nearly everything, and policies would differ in who these are. Multiples of
/// the golden ratio are spread evenly, whatever part of them is used.
fn client_of(request: u64, clients: usize) -> usize {
    let mixed = request.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    ((u128::from(mixed) * clients as u128) >> 64) as usize
}

fn delay_ns(delay: Delay, segment_packets: u32, path: &mut Path, rng: &mut Rng) -> u64 {
    match delay {
        Delay::None => 0,
        Delay::Constant(ns) => ns,
        Delay::Trace(scale) => {
            if path.packets_left == 0 {
                path.packets_left = segment_packets;
                path.bursty = rng.chance(BURSTY_SHARE);
                path.level_us = quantile(&LEVELS_US, rng.unit());
            }
            path.packets_left -= 1;
            let us = if path.bursty {
                quantile(&BURSTY_US, rng.unit())
            } else {
                path.level_us + quantile(&RESIDUALS_US, rng.unit())
            };
            let us = us.clamp(TRACE_US.0, TRACE_US.1);
            (us * scale * 1000.0) as u64
        }
    }
}

/// The value at quantile `p` of a distribution given by points, linear between them.
fn quantile(points: &[(f64, f64)], p: f64) -> f64 {
    let upper = points
        .iter()
        .position(|&(q, _)| q >= p)
        .unwrap_or(points.len() - 1)
        .max(1);
    let (q0, v0) = points[upper - 1];
    let (q1, v1) = points[upper];
    v0 + (v1 - v0) * (p - q0) / (q1 - q0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(packets: usize) -> Vec<f64> {
        let model = LinkModel {
            delay: Delay::MEDIUM,
            ..LinkModel::default()
        };
        let mut net = Network::new(2, model, Rng::new(11));
        (0..packets)
            .map(|_| match net.carry(Instant::ZERO, 0, 1, 100, 0) {
                Fate::Arrives { at, .. } => at.as_nanos() as f64 / 1000.0,
                Fate::Lost => panic!("a calm network loses nothing"),
            })
            .collect()
    }

    #[test]
    fn delays_have_the_published_distribution() {
        let delays = trace(6_000_000);
        let mean = delays.iter().sum::<f64>() / delays.len() as f64;
        let variance = delays.iter().map(|d| (d - mean).powi(2)).sum::<f64>() / delays.len() as f64;
        // Of the sums of so many packets in a row.
        let at_sum = |count: usize, p: f64| {
            let mut sums: Vec<f64> = delays.chunks_exact(count).map(|c| c.iter().sum()).collect();
            let place = (p * sums.len() as f64) as usize;
            *sums.select_nth_unstable_by(place, f64::total_cmp).1
        };
        let at = |p| at_sum(1, p);
        // (what, published, measured, tolerated relative error)
        let table = [
            ("mean", 141.8, mean, 0.02),
            ("sd", 35.9, variance.sqrt(), 0.07),
            ("p5", 100.0, at(0.05), 0.03),
            ("p50", 133.0, at(0.5), 0.03),
            ("p95", 210.0, at(0.95), 0.03),
            ("p99", 242.0, at(0.99), 0.06),
            ("p99.9", 325.0, at(0.999), 0.08),
            ("p99.99", 384.0, at(0.9999), 0.16),
            ("p99 of two", 471.0, at_sum(2, 0.99), 0.05),
            ("p99.9 of two", 547.0, at_sum(2, 0.999), 0.05),
            ("p99 of four", 922.0, at_sum(4, 0.99), 0.05),
            ("p99.9 of four", 1020.0, at_sum(4, 0.999), 0.05),
        ];
        for (what, published, measured, tolerance) in table {
            let error = (measured / published - 1.0).abs();
            assert!(error < tolerance, "{what}: {measured} instead of {published}");
        }
        assert!(delays.iter().all(|us| (90.0..=450.0).contains(us)));
    }

    #[test]
    fn a_mean_of_100_packets_predicts_the_next_within_25_us_for_95_percent() {
        let delays = trace(600_000);
        let mut sum: f64 = delays[..100].iter().sum();
        let mut near = 0;
        for i in 100..delays.len() {
            near += usize::from((delays[i] - sum / 100.0).abs() <= 25.0);
            sum += delays[i] - delays[i - 100];
        }
        let share = near as f64 / (delays.len() - 100) as f64;
        assert!((0.93..0.97).contains(&share), "{share} instead of 0.949");
    }

    #[test]
    fn clients_that_share_a_link_have_levels_of_their_own_that_are_the_same_both_ways() {
        let model = LinkModel {
            delay: Delay::MEDIUM,
            paths: 8,
            near_paths: 1,
            ..LinkModel::default()
        };
        let mut net = Network::new(2, model, Rng::new(4));
        let mut us = |from, request| match net.carry(Instant::ZERO, from, 1 - from, 100, request) {
            Fate::Arrives { at, .. } => at.as_nanos() as f64 / 1000.0,
            Fate::Lost => panic!("a calm network loses nothing"),
        };
        let mean = |sum: f64| sum / 100.0;
        let mut levels = Vec::new();
        for path in 0..8 {
            let its = || (0..).filter(|request| client_of(*request, 8) == path).take(100);
            let there = mean(its().map(|request| us(0, request)).sum());
            let back = mean(its().map(|request| us(1, request)).sum());
            assert!((there - back).abs() < 10.0, "{there} there, {back} back");
            levels.push(there);
        }
        assert!(
            levels[0] < 65.0,
            "the near one is at most a quarter of the trace's highest level: {levels:?}"
        );
        levels[1..].sort_by(f64::total_cmp);
        assert!(levels[1] > 90.0 && levels[7] > levels[1] + 40.0, "{levels:?}");
    }

    #[test]
    fn every_client_asks_alike_whatever_places_of_the_gateway_are_used() {
        for clients in [16, 64] {
            for slot in [0, 1, 7, 500] {
                let mut counts = vec![0; clients];
                for generation in 0..6_400_u64 {
                    counts[client_of(1 << 63 | generation << 24 | slot, clients)] += 1;
                }
                let even = 6_400 / clients;
                assert!(
                    counts
                        .iter()
                        .all(|count| count * 10 > even * 9 && count * 10 < even * 11),
                    "{counts:?}"
                );
            }
        }
    }

    #[test]
    fn a_partition_cuts_one_way_or_both_until_it_ends() {
        let mut net = Network::new(2, LinkModel::default(), Rng::new(1));
        net.partition(1, Instant::from_nanos(50), true, false);
        assert_eq!(net.carry(Instant::from_nanos(49), 0, 1, 1, 0), Fate::Lost);
        assert_ne!(net.carry(Instant::from_nanos(49), 1, 0, 1, 0), Fate::Lost);
        assert_ne!(net.carry(Instant::from_nanos(50), 0, 1, 1, 0), Fate::Lost);
    }

    #[test]
    fn bandwidth_spaces_packets_out() {
        let model = LinkModel {
            ns_per_kilobyte: 80,
            ..LinkModel::default()
        };
        let mut net = Network::new(2, model, Rng::new(1));
        let mut at = |_| match net.carry(Instant::ZERO, 0, 1, 4000, 0) {
            Fate::Arrives { at, .. } => at.as_nanos(),
            Fate::Lost => 0,
        };
        assert_eq!([at(0), at(1)], [320, 640]);
    }

    #[test]
    fn misfortunes_happen_as_often_as_asked() {
        let mut net = Network::new(2, LinkModel::default(), Rng::new(3));
        net.set_faults(NetFaults {
            loss: 0.1,
            duplicate: 0.05,
            reorder: 0.0,
            reorder_ns_max: 10,
            corrupt: 0.0,
        });
        let (mut lost, mut twice) = (0, 0);
        for _ in 0..100_000 {
            match net.carry(Instant::ZERO, 0, 1, 1, 0) {
                Fate::Lost => lost += 1,
                Fate::Arrives { again, .. } => twice += u32::from(again.is_some()),
            }
        }
        assert!((9_500..10_500).contains(&lost) && (4_200..4_800).contains(&twice));
    }
}

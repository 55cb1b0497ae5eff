//! Request steering: which core works on a T request. L requests stay at home: moving one costs more than it waits.
//!
//! Published (`blk_mq_get_request`, OSDI'21): with more than 2·B T requests outstanding at home, the cores without L
//! load and with fewer than 16 T requests are candidates; the fullest pending batch wins, then fewest outstanding, then
//! home, then a coin. Without a candidate, the less loaded of two random cores, L cores included.
//!
//! Ours: a request leaves when another core has less T work by a margin, counted exactly and in bytes. A core with L
//! applications counts for [`Config::latency_core_bytes`] more than it has, so that T leaves it first. It takes T work
//! of others only when they have much, from [`Config::spill_from_bytes`] on, only up to [`Config::spill_bytes`], and none
//! when L fills it. T that waits for long gets the idle time there, in slices that L goes before. Other T leaves L
//! alone. No bulk piles up there and none comes by chance. Steering looks at three cores, the one chosen last and two
//! random ones, so the cost does not grow with the cores.

use crate::class::Class;
use crate::load::Loads;
use crate::policy::{Balancing, Config};
use base::{Instant, Rng};

/// Ours: another core must have less by at least this part of home's load. With long queues on both sides there is time
/// until one runs dry, and a request that does not move costs nothing.
const MARGIN_SHARE: u64 = 4;

/// Request steering of one core.
#[derive(Debug)]
pub struct Steering {
    config: Config,
    rng: Rng,
    home: usize,
    /// Ours.
    chosen_last: usize,
    steered: u64,
}

impl Steering {
    /// Of core `home` among `cores`.
    pub fn new(config: &Config, home: usize, cores: usize, rng: Rng) -> Self {
        assert!(home < cores, "a core's home is among the cores");
        Self {
            config: *config,
            rng,
            home,
            chosen_last: home,
            steered: 0,
        }
    }

    /// The core that works on a request which arrived now at this core. To be followed by `Loads::charge`.
    pub fn steer(&mut self, now: Instant, loads: &Loads, class: Class, bytes: u32) -> usize {
        if class == Class::Latency || loads.cores() < 2 {
            return self.home;
        }
        let core = match self.config.request_steering {
            Balancing::Off => self.home,
            Balancing::Published => self.published(loads),
            Balancing::Switchyard => self.counted(now, loads, bytes),
        };
        self.steered += u64::from(core != self.home);
        core
    }

    /// Requests sent to other cores so far.
    pub fn steered(&self) -> u64 {
        self.steered
    }

    fn published(&mut self, loads: &Loads) -> usize {
        let outstanding = |core| loads.requests(core, Class::Throughput);
        if outstanding(self.home) <= u64::from(2 * self.config.threshold_requests) {
            return self.home;
        }
        let mut best: Option<(u32, u64, usize)> = None;
        for core in 0..loads.cores() {
            let requests = outstanding(core);
            let no_candidate = loads.published_mean(core, Class::Latency) > 0
                || requests >= u64::from(self.config.candidate_requests);
            if no_candidate {
                continue;
            }
            let missing = self.config.doorbell_requests.saturating_sub(loads.batch(core));
            let better = match best {
                None => true,
                Some((least, fewest, _)) if (missing, requests) != (least, fewest) => {
                    (missing, requests) < (least, fewest)
                }
                Some((_, _, at)) => core == self.home || (at != self.home && self.rng.below(2) == 0),
            };
            if better {
                best = Some((missing, requests, core));
            }
        }
        if let Some((_, _, core)) = best {
            return core;
        }
        let cores = loads.cores() as u64;
        let first = self.rng.below(cores) as usize;
        let second = (first + 1 + self.rng.below(cores - 1) as usize) % cores as usize;
        if outstanding(first) <= outstanding(second) {
            first
        } else {
            second
        }
    }

    fn counted(&mut self, now: Instant, loads: &Loads, bytes: u32) -> usize {
        let here = self.pressure(now, loads, self.home);
        let margin = u64::from(self.config.steer_margin_bytes).max(here / MARGIN_SHARE);
        // Nothing to gain: home runs dry before another core could have begun.
        if here < margin {
            return self.home;
        }
        let (mut best, mut least) = (self.home, here - margin);
        let cores = loads.cores() as u64;
        let random = [(); 2].map(|()| self.rng.below(cores) as usize);
        // The one chosen last is looked at first and wins ties, so that requests reach a core in runs.
        for core in [self.chosen_last, random[0], random[1]] {
            if core == self.home || self.refuses(now, loads, core, bytes) {
                continue;
            }
            let there = self.pressure(now, loads, core);
            // Another than the last must be better by a request, or requests would swing between equals.
            let change = if core == self.chosen_last {
                0
            } else {
                u64::from(bytes)
            };
            if there + change < least || (best == self.home && there <= least) {
                (best, least) = (core, there);
            }
        }
        if best != self.home {
            self.chosen_last = best;
        }
        best
    }

    /// T bytes that a core counts for.
    fn pressure(&self, now: Instant, loads: &Loads, core: usize) -> u64 {
        let latency = loads.hosts_latency(now, core);
        let extra = if latency {
            self.config.latency_core_bytes
        } else {
            0
        };
        loads.bytes(core, Class::Throughput) + u64::from(extra)
    }

    /// A core with L applications takes others' T work only if that waits for long at home, up to a limit, and none
    /// when L fills it.
    fn refuses(&self, now: Instant, loads: &Loads, core: usize, bytes: u32) -> bool {
        if !loads.hosts_latency(now, core) {
            return false;
        }
        let config = &self.config;
        let there = loads.bytes(core, Class::Throughput) + u64::from(bytes);
        loads.bytes(self.home, Class::Throughput) < u64::from(config.spill_from_bytes)
            || there > u64::from(config.spill_bytes)
            || loads.latency_share_ppm(core) > config.latency_core_percent * 10_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Charge;
    use crate::policy::Policy;

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1000 + 10_000_000_000)
    }

    fn steering(policy: Policy, cores: usize) -> (Config, Loads, Steering) {
        let config = Config::of(policy);
        let steering = Steering::new(&config, 0, cores, Rng::new(3));
        (config, Loads::new(cores, &config), steering)
    }

    fn load(loads: &Loads, core: usize, class: Class, count: usize, bytes: u32) -> Vec<Charge> {
        (0..count)
            .map(|_| loads.charge(at(0), core, core, class, bytes))
            .collect()
    }

    #[test]
    fn published_steering_starts_above_two_b_and_prefers_cores_without_l() {
        let (config, loads, mut steering) = steering(Policy::BlkSwitch, 3);
        let _latency = load(&loads, 1, Class::Latency, 1, 4096);
        let _home = load(
            &loads,
            0,
            Class::Throughput,
            2 * config.threshold_requests as usize,
            65536,
        );
        assert_eq!(steering.steer(at(0), &loads, Class::Throughput, 65536), 0);
        let _one_more = load(&loads, 0, Class::Throughput, 1, 65536);
        assert_eq!(steering.steer(at(0), &loads, Class::Throughput, 65536), 2);
        assert_eq!(steering.steer(at(0), &loads, Class::Latency, 4096), 0);
        assert_eq!(steering.steered(), 1);
    }

    #[test]
    fn published_steering_falls_back_to_any_core_even_one_with_l() {
        let (_, loads, mut steering) = steering(Policy::BlkSwitch, 3);
        let _latency = load(&loads, 1, Class::Latency, 1, 4096);
        let _busy = [
            load(&loads, 0, Class::Throughput, 20, 65536),
            load(&loads, 2, Class::Throughput, 20, 65536),
        ];
        let chosen: Vec<_> = (0..50)
            .map(|_| steering.steer(at(0), &loads, Class::Throughput, 65536))
            .collect();
        assert!(chosen.contains(&1), "the weakness that ours mends");
    }

    #[test]
    fn ours_leaves_a_busy_core_for_an_idle_one_but_not_for_one_with_l() {
        let (_, loads, mut steering) = steering(Policy::Switchyard, 3);
        let _latency = load(&loads, 1, Class::Latency, 1, 4096);
        let _home = load(&loads, 0, Class::Throughput, 6, 65536);
        for i in 0..50 {
            let core = steering.steer(at(i), &loads, Class::Throughput, 65536);
            assert!(core == 0 || core == 2, "{core}");
        }
        assert!(steering.steered() > 0);
    }

    #[test]
    fn ours_gives_a_core_with_l_no_more_bulk_than_its_idle_time_needs() {
        let (config, loads, mut steering) = steering(Policy::Switchyard, 2);
        let _latency = load(&loads, 1, Class::Latency, 1, 4096);
        let _home = load(&loads, 0, Class::Throughput, 64, 65536);
        let mut spilt = Vec::new();
        for i in 0..100 {
            let core = steering.steer(at(i), &loads, Class::Throughput, 65536);
            spilt.push(loads.charge(at(i), 0, core, Class::Throughput, 65536));
        }
        assert_eq!(loads.bytes(1, Class::Throughput), u64::from(config.spill_bytes));
    }

    #[test]
    fn ours_leaves_a_core_with_l_alone_while_t_waits_little_or_l_fills_it() {
        let (config, loads, mut steering) = steering(Policy::Switchyard, 2);
        let _latency = load(&loads, 1, Class::Latency, 1, 4096);
        let few = config.spill_from_bytes / 65536;
        let mut home = load(&loads, 0, Class::Throughput, few as usize - 1, 65536);
        let mut spilt =
            |loads: &Loads| (0..50).any(|i| steering.steer(at(i), loads, Class::Throughput, 65536) == 1);
        assert!(!spilt(&loads));
        home.extend(load(&loads, 0, Class::Throughput, 1, 65536));
        assert!(spilt(&loads));
        loads.set_latency_share(1, 1_000_000);
        assert!(!spilt(&loads));
    }

    #[test]
    fn ours_takes_bulk_away_from_a_core_with_l_and_does_not_swing_between_equals() {
        let (_, loads, mut steering) = steering(Policy::Switchyard, 2);
        let _latency = load(&loads, 0, Class::Latency, 1, 4096);
        let chosen: Vec<_> = (0..40)
            .map(|i| steering.steer(at(i * 10), &loads, Class::Throughput, 65536))
            .collect();
        let left = chosen.iter().filter(|&&core| core == 1).count();
        assert!(
            left >= 30,
            "all but those that looked at no other core: {chosen:?}"
        );
        let (_, loads, mut steering) = self::steering(Policy::Switchyard, 2);
        let _both = [
            load(&loads, 0, Class::Throughput, 20, 65536),
            load(&loads, 1, Class::Throughput, 19, 65536),
        ];
        for i in 0..50 {
            assert_eq!(steering.steer(at(i), &loads, Class::Throughput, 65536), 0);
        }
    }

    #[test]
    fn policies_without_steering_stay_at_home() {
        for policy in [Policy::Linux, Policy::Spdk, Policy::SpdkPriority] {
            let (_, loads, mut steering) = steering(policy, 2);
            let _home = load(&loads, 0, Class::Throughput, 100, 65536);
            assert_eq!(steering.steer(at(0), &loads, Class::Throughput, 65536), 0);
        }
    }
}

//! Request steering: which core works on a T request. L requests stay at home: moving one costs more than it waits.
//!
//! Published (`blk_mq_get_request`, OSDI'21): with more than 2·B T requests outstanding at home, the cores without L
//! load and with fewer than 16 T requests are candidates; the fullest pending batch wins, then fewest outstanding, then
//! home, then a coin. Without a candidate, the less loaded of two random cores, L cores included.
//!
//! Ours steers no requests: docs/block-switch.md says why.

use crate::class::Class;
use crate::load::Loads;
use crate::policy::Config;
use base::Rng;

/// Request steering of one core.
#[derive(Debug)]
pub struct Steering {
    config: Config,
    rng: Rng,
    home: usize,
}

impl Steering {
    /// Of core `home` among `cores`.
    pub fn new(config: &Config, home: usize, cores: usize, rng: Rng) -> Self {
        assert!(home < cores, "a core's home is among the cores");
        Self {
            config: *config,
            rng,
            home,
        }
    }

    /// The core that works on a request which arrived now at this core. To be followed by `Loads::charge`.
    pub fn steer(&mut self, loads: &Loads, class: Class) -> usize {
        if class == Class::Latency || loads.cores() < 2 || !self.config.request_steering {
            return self.home;
        }
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Charge;
    use crate::policy::Policy;

    fn steering(policy: Policy, cores: usize) -> (Config, Loads, Steering) {
        let config = Config::of(policy);
        let steering = Steering::new(&config, 0, cores, Rng::new(3));
        (config, Loads::new(cores, &config), steering)
    }

    fn load(loads: &Loads, core: usize, class: Class, count: usize, bytes: u32) -> Vec<Charge> {
        (0..count)
            .map(|_| loads.charge(core, core, class, bytes))
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
        assert_eq!(steering.steer(&loads, Class::Throughput), 0);
        let _one_more = load(&loads, 0, Class::Throughput, 1, 65536);
        assert_eq!(steering.steer(&loads, Class::Throughput), 2);
        assert_eq!(steering.steer(&loads, Class::Latency), 0);
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
            .map(|_| steering.steer(&loads, Class::Throughput))
            .collect();
        assert!(chosen.contains(&1), "the weakness that ours mends");
    }

    #[test]
    fn policies_without_steering_stay_at_home() {
        for policy in [Policy::Linux, Policy::Spdk, Policy::SpdkPriority] {
            let (_, loads, mut steering) = steering(policy, 2);
            let _home = load(&loads, 0, Class::Throughput, 100, 65536);
            assert_eq!(steering.steer(&loads, Class::Throughput), 0);
        }
    }
}

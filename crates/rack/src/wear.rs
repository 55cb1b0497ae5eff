//! Rack-scale wear levelling (RackBlox §3.6): which places are to exchange what they hold, so that all age alike.
//!
//! A *place* wears: an SSD of a server, or a server of the rack. What is *at* it, its vSSDs, makes it wear, at a rate that
//! goes along when it moves. One [`Level`] balances the SSDs of a server, another one the servers; both are asked again
//! after [`Level::wait`]. Whoever carries an exchange out rewrites both places once.
//!
//! Differences from the paper, and why:
//! - The paper exchanges the place of the most wear with the place of the lowest rate. A worn place with a cold load stays
//!   the most worn for long. The rule chooses it again and again, gives it another cold load, and leaves fast-wearing places
//!   alone: the imbalance stays (`fig22`). [`Rule::Projected`] looks at the wear that a place will have at the next look, and
//!   exchanges as many pairs as need it.
//! - A fixed period is long for a young rack: an SSD's extra wear of twelve days is a third of all wear after a month.
//!   [`Level::age_share`] bounds the wait by a share of the rack's age.

use base::Duration;

/// A day, in which rates are counted.
pub const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Permitted imbalance γ: λ is to be at most 1 + γ (RackBlox §3.6).
pub const GAMMA: f64 = 0.1;

/// A place that wears.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    /// Mean erases of its blocks to date (φ of RackBlox §3.6).
    pub wear: f64,
    /// Erases a block and day that what is there now makes.
    pub rate: f64,
}

/// How pairs are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// RackBlox §3.6, to the letter: if λ exceeds 1 + γ, the place of the most wear and that of the lowest rate.
    Extremes,
    /// Each place that will be worn more than the mean by a quarter of γ at the next look, beginning with the worst,
    /// and the one that will be worn least, if that has the slower load.
    Projected,
}

/// A level of the hierarchy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Level {
    /// Permitted imbalance.
    pub gamma: f64,
    /// Time between two looks, at most.
    pub period: Duration,
    /// Time between two looks, at least.
    pub period_min: Duration,
    /// Share of the rack's age to wait, within these bounds; 0: always the longest.
    pub age_share: f64,
    /// How pairs are chosen.
    pub rule: Rule,
}

impl Level {
    /// RackBlox between the SSDs of a server: every 12 days.
    pub const RACKBLOX_LOCAL: Self = Self {
        gamma: GAMMA,
        period: DAY.saturating_mul(12),
        period_min: DAY.saturating_mul(12),
        age_share: 0.0,
        rule: Rule::Extremes,
    };
    /// RackBlox between servers: every 8 weeks, as this takes the network.
    pub const RACKBLOX_GLOBAL: Self = Self {
        period: DAY.saturating_mul(56),
        period_min: DAY.saturating_mul(56),
        ..Self::RACKBLOX_LOCAL
    };
    /// Ours between the SSDs of a server: as rarely as RackBlox from the second year on.
    pub const LOCAL: Self = Self {
        period_min: DAY,
        age_share: 0.03,
        rule: Rule::Projected,
        ..Self::RACKBLOX_LOCAL
    };
    /// Ours between servers: as rarely as RackBlox from the fourth year on.
    pub const GLOBAL: Self = Self {
        period: Self::RACKBLOX_GLOBAL.period,
        period_min: DAY.saturating_mul(4),
        age_share: 0.05,
        ..Self::LOCAL
    };

    /// When to look next in a rack of this age.
    pub fn wait(&self, age: Duration) -> Duration {
        let share = if self.age_share == 0.0 {
            self.period
        } else {
            age.mul_f64(self.age_share)
        };
        share.clamp(self.period_min, self.period)
    }

    /// Pairs of places that are to exchange what they hold now, in a rack of this age. No place is in two of them.
    pub fn exchanges(&self, age: Duration, places: &[Place]) -> Vec<(usize, usize)> {
        match self.rule {
            Rule::Extremes => self.extremes(places).into_iter().collect(),
            Rule::Projected => self.projected(age, places),
        }
    }

    fn extremes(&self, places: &[Place]) -> Option<(usize, usize)> {
        if imbalance(places.iter().map(|place| place.wear)) <= 1.0 + self.gamma {
            return None;
        }
        let all = || 0..places.len();
        let most = all().max_by(|&a, &b| places[a].wear.total_cmp(&places[b].wear))?;
        let slowest = all().min_by(|&a, &b| places[a].rate.total_cmp(&places[b].rate))?;
        (most != slowest).then_some((most, slowest))
    }

    fn projected(&self, age: Duration, places: &[Place]) -> Vec<(usize, usize)> {
        let days = self.wait(age).as_secs_f64() / DAY.as_secs_f64();
        let wear = |place: &Place| place.wear + place.rate * days;
        let mean = places.iter().map(wear).sum::<f64>() / places.len() as f64;
        let limit = mean * (1.0 + self.gamma / 4.0);
        let mut order: Vec<usize> = (0..places.len()).collect();
        order.sort_by(|&a, &b| wear(&places[a]).total_cmp(&wear(&places[b])));
        let mut order = std::collections::VecDeque::from(order);
        let mut pairs = Vec::new();
        while let Some(most) = order.pop_back()
            && let Some(&least) = order.front()
            && wear(&places[most]) > limit
        {
            // A worn place whose load is slow already is overtaken in time.
            if places[most].rate > places[least].rate {
                order.pop_front();
                pairs.push((most, least));
            }
        }
        pairs
    }
}

/// λ = φ_max / φ_avg (RackBlox §3.6), 1 where nothing is worn.
pub fn imbalance(wear: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut count, mut most) = (0.0, 0.0, 0.0f64);
    for one in wear {
        sum += one;
        count += 1.0;
        most = most.max(one);
    }
    if sum == 0.0 { 1.0 } else { most * count / sum }
}

/// Loads of these rates come to places of this wear together: for each place, the load that it gets. The most worn
/// place gets the slowest load.
///
/// # Panics
/// If there is not one load per place.
pub fn deal(wear: &[f64], rates: &[f64]) -> Vec<usize> {
    assert_eq!(wear.len(), rates.len(), "a place holds one load");
    let sorted = |of: &[f64]| {
        let mut order: Vec<usize> = (0..of.len()).collect();
        order.sort_by(|&a, &b| of[a].total_cmp(&of[b]));
        order
    };
    let mut loads = vec![0; wear.len()];
    for (place, load) in sorted(wear).into_iter().rev().zip(sorted(rates)) {
        loads[place] = load;
    }
    loads
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(of: &[(f64, f64)]) -> Vec<Place> {
        of.iter().map(|&(wear, rate)| Place { wear, rate }).collect()
    }

    #[test]
    fn imbalance_is_the_most_worn_over_the_mean() {
        assert_eq!(imbalance([1.0, 1.0, 4.0].into_iter()), 2.0);
        assert_eq!(imbalance([0.0, 0.0].into_iter()), 1.0);
        assert_eq!(imbalance([].into_iter()), 1.0);
    }

    #[test]
    fn rackblox_exchanges_most_wear_with_the_lowest_rate_above_the_limit() {
        let level = Level::RACKBLOX_LOCAL;
        let uneven = places(&[(80.0, 2.0), (130.0, 9.0), (90.0, 1.0)]);
        assert_eq!(level.exchanges(DAY, &uneven), [(1, 2)]);
        let even = places(&[(100.0, 2.0), (109.0, 9.0), (100.0, 1.0)]);
        assert_eq!(level.exchanges(DAY, &even), []);
        let cold = places(&[(80.0, 2.0), (130.0, 1.0), (90.0, 3.0)]);
        assert_eq!(level.exchanges(DAY, &cold), [], "it holds the slowest already");
    }

    #[test]
    fn a_projection_sees_wear_and_rate_together() {
        let level = Level {
            age_share: 0.0,
            ..Level::LOCAL
        };
        let age = DAY * 100;
        // The most worn one has the slowest load; the fast one will pass it within the period.
        let uneven = places(&[(110.0, 0.1), (100.0, 20.0), (90.0, 1.0), (100.0, 5.0)]);
        assert_eq!(level.exchanges(age, &uneven), [(1, 2)]);
        assert_eq!(
            Level::RACKBLOX_LOCAL.exchanges(age, &uneven),
            [],
            "the paper's rule waits"
        );
        assert_eq!(level.exchanges(age, &places(&[(100.0, 5.0); 4])), []);
        assert_eq!(level.exchanges(age, &[]), []);
        assert_eq!(level.exchanges(age, &places(&[(9.0, 1.0)])), []);
    }

    #[test]
    fn no_place_is_in_two_pairs_and_faster_loads_go_to_less_worn_places() {
        let mut rng = base::Rng::new(3);
        for _ in 0..1000 {
            let draw = |rng: &mut base::Rng| Place {
                wear: rng.unit() * 1000.0,
                rate: rng.unit() * 20.0,
            };
            let places: Vec<Place> = (0..16).map(|_| draw(&mut rng)).collect();
            let age = DAY * rng.below(2000) as u32;
            let pairs = Level::LOCAL.exchanges(age, &places);
            let mut used: Vec<usize> = pairs.iter().flat_map(|&(a, b)| [a, b]).collect();
            assert!(pairs.iter().all(|&(a, b)| places[a].rate > places[b].rate));
            used.sort_unstable();
            used.dedup();
            assert_eq!(used.len(), 2 * pairs.len());
        }
    }

    #[test]
    fn waits_grow_with_age_up_to_the_period() {
        assert_eq!(Level::LOCAL.wait(Duration::ZERO), DAY);
        assert_eq!(Level::GLOBAL.wait(DAY * 100), DAY * 5);
        assert_eq!(Level::LOCAL.wait(DAY * 1000), DAY * 12);
        assert_eq!(Level::RACKBLOX_GLOBAL.wait(DAY), DAY * 56);
    }

    #[test]
    fn the_most_worn_place_is_dealt_the_slowest_load() {
        assert_eq!(deal(&[5.0, 9.0, 1.0], &[3.0, 1.0, 2.0]), [2, 1, 0]);
    }
}

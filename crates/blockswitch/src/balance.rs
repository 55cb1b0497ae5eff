//! Application steering: which core is an application's home.
//!
//! Published (`blk_mq_get_request`, OSDI'21): every 10 ms the averages of outstanding bytes are sampled, and L and T
//! applications have turns alternately. An L application moves to the core with the smallest sum of L and T among those
//! that host L already and have a smaller sum than its own, if its own has T. A T application moves to the core with the
//! least T among those with less L than its own, but waits if an L application elsewhere should move first.
//!
//! Ours works on the time that cores have really spent on each class ([`Loads::spend`]), with decay:
//! - L applications share as few cores as they fill to [`Config::latency_core_percent`], and T applications the others.
//!   Fewer L cores are used only after the load has allowed it for a while; more, at once, up to
//!   [`Config::latency_cores_percent_max`].
//! - Within each group, an application moves from the busiest core to the idlest if that evens them out.
//! - Applications of one class alone are evened out over all cores, since nothing else brings work to an idle core.
//! - If L has more than [`APART_PERCENT_MAX`] of the cores to itself (one of two), T applications share these cores while
//!   the others have no room for them. So half of the machine is not idle for the sake of a few L requests.
//! - An application stays where its affinity allows, and stays for a cooldown after a move.
//! - Moves are few in an interval: each is decided on loads that show the one before.

use crate::class::Class;
use crate::egress::AppId;
use crate::load::Loads;
use crate::policy::{Balancing, Config};
use base::{Duration, Instant};

/// In percent: of more than this share of the cores T has to make use as well.
const APART_PERCENT_MAX: u64 = 40;

/// A set of cores, the first 64 of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreSet(pub u64);

impl CoreSet {
    /// Every core.
    pub const ALL: Self = Self(u64::MAX);

    /// One core.
    pub const fn one(core: usize) -> Self {
        Self(1 << core)
    }

    /// True if `core` is in it.
    pub const fn has(self, core: usize) -> bool {
        self.0 >> core & 1 == 1
    }

    /// With `core` in it.
    #[must_use]
    pub const fn with(self, core: usize) -> Self {
        Self(self.0 | 1 << core)
    }
}

/// An application as application steering sees it.
#[derive(Clone, Copy, Debug)]
pub struct AppView {
    /// Which.
    pub app: AppId,
    /// From its classifier.
    pub class: Class,
    /// Its home.
    pub core: usize,
    /// Where its owner lets it be. The published algorithm does not ask.
    pub allowed: CoreSet,
    /// All its work since it began, in any unit that grows with the time it costs: bytes plus some for each request
    /// ([`work_of`]).
    pub work: u64,
}

/// Work of a request, for [`AppView::work`].
pub const fn work_of(bytes: u32) -> u64 {
    // A request costs about as much as copying 8 KiB (2 µs at 4 GB/s).
    bytes as u64 + 8192
}

/// An application is to change its home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Which.
    pub app: AppId,
    /// To where.
    pub to: usize,
}

/// The balancer's memory of an application.
#[derive(Clone, Copy, Debug)]
struct Known {
    present: bool,
    work: u64,
    /// Decayed share of a core, in parts per million.
    load_ppm: u64,
    moved_at: Option<Instant>,
}

/// The balancer's memory of a core.
#[derive(Clone, Copy, Debug, Default)]
struct Core {
    spent_ns: [u64; 2],
    /// Decayed share of the core's time by class, in parts per million.
    load_ppm: [u64; 2],
    /// Published: the sample of the turn.
    sample: [u64; 2],
}

/// Application steering of the whole machine: run by one core.
#[derive(Debug)]
pub struct Balancer {
    config: Config,
    cores: Vec<Core>,
    known: Vec<Known>,
    /// The applications of a tick with their places, which moves change at once.
    places: Vec<AppView>,
    ticked_at: Option<Instant>,
    /// Published: whose turn it was, and when there was traffic.
    turn: Class,
    busy_at: Option<Instant>,
    /// Ours: the cores of L applications, while they are kept apart, and since when fewer would do.
    latency_cores: CoreSet,
    fewer_since: Option<Instant>,
    /// Ours: since when one of the classes has no load.
    alone_since: Option<Instant>,
    /// Ours: T applications use the L cores as well.
    shared: bool,
}

/// Loads below this share of a core are none.
const IDLE_PPM: u64 = 2_000;
/// A whole core.
const CORE_PPM: u64 = 1_000_000;
/// Ours: averages forget with this time constant.
const DECAY: Duration = Duration::from_millis(50);
/// Ours: an application moves within its group only if the busier core is then less busy by this share of a core.
const UNEVEN_PPM: u64 = 300_000;
/// Ours: for how long the load must have fitted fewer L cores before there are fewer.
const FEWER_HOLD: Duration = Duration::from_millis(200);
/// Ours: T applications use the L cores too when they fill the others to this share. It is below what a loop that never
/// rests measures, since looking for work is no work.
const CROWDED_PERCENT: u64 = 85;
/// Ours: and leave them when they would fill the others to less than this.
const ROOMY_PERCENT: u64 = 60;

impl Balancer {
    /// Of `cores` cores and applications numbered below `apps`. All memory is taken now.
    pub fn new(config: &Config, cores: usize, apps: u32) -> Self {
        let unknown = Known {
            present: false,
            work: 0,
            load_ppm: 0,
            moved_at: None,
        };
        Self {
            config: *config,
            cores: vec![Core::default(); cores],
            known: vec![unknown; apps as usize],
            places: Vec::with_capacity(apps as usize),
            ticked_at: None,
            turn: Class::Throughput,
            busy_at: None,
            latency_cores: CoreSet(0),
            fewer_since: None,
            alone_since: None,
            shared: false,
        }
    }

    /// When [`Self::tick`] is to be called next; `None` if never.
    pub fn deadline(&self) -> Option<Instant> {
        if self.config.application_steering == Balancing::Off {
            return None;
        }
        Some(
            self.ticked_at
                .map_or(Instant::ZERO, |at| at + self.config.balance_interval),
        )
    }

    /// An application has gone: its number may be used again.
    pub fn forget(&mut self, app: AppId) {
        self.known[app.0 as usize].present = false;
    }

    /// Decides which of `apps` change their homes, and adds that to `moves`. A call before the deadline does nothing.
    pub fn tick(&mut self, now: Instant, loads: &Loads, apps: &[AppView], moves: &mut Vec<Move>) {
        if self.deadline().is_none_or(|at| now < at) {
            return;
        }
        let elapsed = self.ticked_at.map_or(Duration::ZERO, |at| now.since(at));
        self.ticked_at = Some(now);
        self.places.clear();
        self.places.extend_from_slice(apps);
        match self.config.application_steering {
            Balancing::Off => {}
            Balancing::Published => self.published(now, loads, moves),
            Balancing::Switchyard => self.counted(now, elapsed, loads, moves),
        }
    }

    fn published(&mut self, now: Instant, loads: &Loads, moves: &mut Vec<Move>) {
        let mut busy = false;
        for (at, core) in self.cores.iter_mut().enumerate() {
            for class in [Class::Latency, Class::Throughput] {
                core.sample[class.index()] = loads.published_mean(at, class);
                busy |= loads.requests(at, class) > 0;
            }
        }
        if busy {
            self.busy_at = Some(now);
        } else if self
            .busy_at
            .is_some_and(|at| now.since(at) > self.config.idle_reset)
        {
            loads.reset_published();
            (self.turn, self.busy_at) = (Class::Throughput, None);
            return;
        }
        self.turn = match self.turn {
            Class::Throughput => Class::Latency,
            Class::Latency => Class::Throughput,
        };
        for at in 0..self.places.len() {
            let view = self.places[at];
            if view.class != self.turn {
                continue;
            }
            let to = match view.class {
                Class::Latency => self.published_latency(view.core),
                Class::Throughput => self.published_throughput(view.core),
            };
            if let Some(to) = to {
                loads.forget_published(view.core, view.class);
                moves.push(Move { app: view.app, to });
            }
        }
    }

    fn published_latency(&self, home: usize) -> Option<usize> {
        let [_, own_throughput] = self.cores[home].sample;
        let mut least: u64 = self.cores[home].sample.iter().sum();
        let mut found = None;
        for (at, core) in self.cores.iter().enumerate() {
            let [latency, throughput] = core.sample;
            let sum = latency + throughput;
            let fits = at != home && latency > 0 && latency <= self.config.latency_core_bytes_max;
            if fits && own_throughput > 0 && sum < least {
                (found, least) = (Some(at), sum);
            }
        }
        found
    }

    fn published_throughput(&self, home: usize) -> Option<usize> {
        let own = self.cores[home].sample[Class::Latency.index()];
        // 8 MiB, as in the code: more outstanding bytes than any core has.
        let mut least = 8 << 20;
        let mut found = None;
        for (at, core) in self.cores.iter().enumerate() {
            let [latency, throughput] = core.sample;
            if at == home || latency > self.config.latency_core_bytes_max {
                continue;
            }
            if own < latency && latency < self.config.latency_core_bytes_max {
                return None;
            }
            if own > latency && throughput < least {
                (found, least) = (Some(at), throughput);
            }
        }
        found
    }

    fn counted(&mut self, now: Instant, elapsed: Duration, loads: &Loads, moves: &mut Vec<Move>) {
        self.measure(elapsed, loads);
        let total = |class: Class| -> u64 {
            let of_class = self.cores.iter().map(|core| core.load_ppm[class.index()]);
            of_class.sum()
        };
        let (latency, throughput) = (total(Class::Latency), total(Class::Throughput));
        if elapsed.is_zero() {
            return;
        }
        if latency < IDLE_PPM || throughput < IDLE_PPM || self.cores.len() < 2 {
            let since = *self.alone_since.get_or_insert(now);
            if now.since(since) >= self.config.idle_reset {
                self.latency_cores = CoreSet(0);
            }
            if self.latency_cores != CoreSet(0) {
                return;
            }
        } else {
            self.alone_since = None;
            self.choose_latency_cores(now, latency);
        }
        let (cores, apart) = (
            self.cores.len() as u64,
            u64::from(self.latency_cores.0.count_ones()),
        );
        let too_many = apart * 100 > cores * APART_PERCENT_MAX;
        let percent = if self.shared {
            ROOMY_PERCENT
        } else {
            CROWDED_PERCENT
        };
        self.shared = too_many && throughput > (cores - apart) * percent * CORE_PPM / 100;
        let limit = moves.len() + self.config.moves_max as usize;
        self.separate(now, limit, moves);
        self.even_out(now, limit, moves);
    }

    /// The cores of a class.
    fn group(&self, class: Class) -> CoreSet {
        let all = CoreSet(u64::MAX >> (64 - self.cores.len()));
        match class {
            _ if self.latency_cores == CoreSet(0) => all,
            Class::Latency => self.latency_cores,
            Class::Throughput if self.shared => all,
            Class::Throughput => CoreSet(all.0 & !self.latency_cores.0),
        }
    }

    /// Brings the averages of cores and applications up to date.
    fn measure(&mut self, elapsed: Duration, loads: &Loads) {
        let elapsed_ns = elapsed.as_nanos() as u64;
        let mut spent_ns = [0; 2];
        for (at, core) in self.cores.iter_mut().enumerate() {
            for class in [Class::Latency, Class::Throughput] {
                let class_at = class.index();
                let all_ns = loads.spent_ns(at, class);
                let new_ns = all_ns - core.spent_ns[class_at];
                core.spent_ns[class_at] = all_ns;
                spent_ns[class_at] += new_ns;
                core.load_ppm[class_at] = decayed(core.load_ppm[class_at], new_ns, elapsed_ns);
            }
        }
        let mut work = [0; 2];
        for view in &self.places {
            let known = &self.known[view.app.0 as usize];
            if known.present {
                work[view.class.index()] += view.work.saturating_sub(known.work);
            }
        }
        for view in &self.places {
            let known = &mut self.known[view.app.0 as usize];
            if !known.present {
                *known = Known {
                    present: true,
                    work: view.work,
                    load_ppm: 0,
                    moved_at: None,
                };
                continue;
            }
            let class = view.class.index();
            let new = view.work.saturating_sub(known.work);
            known.work = view.work;
            let share_ns =
                (u128::from(spent_ns[class]) * u128::from(new)).checked_div(u128::from(work[class]));
            known.load_ppm = decayed(known.load_ppm, share_ns.unwrap_or(0) as u64, elapsed_ns);
        }
    }

    /// As many L cores as the L load needs, those kept that are used already.
    fn choose_latency_cores(&mut self, now: Instant, latency_ppm: u64) {
        let per_core = u64::from(self.config.latency_core_percent) * CORE_PPM / 100;
        let most = self.cores.len() as u64 * u64::from(self.config.latency_cores_percent_max) / 100;
        let needed = latency_ppm.div_ceil(per_core).clamp(1, most.max(1));
        let have = u64::from(self.latency_cores.0.count_ones());
        if needed < have {
            let since = *self.fewer_since.get_or_insert(now);
            if now.since(since) >= FEWER_HOLD {
                let drop = self.extreme(true, |core| core.load_ppm[0]);
                self.latency_cores.0 &= !drop.map_or(0, |core| CoreSet::one(core).0);
                self.fewer_since = None;
            }
            return;
        }
        self.fewer_since = None;
        for _ in have..needed {
            // The core that does the most for L, then the one that does the least for T: the fewest moves.
            let add = self.extreme(false, |core| {
                CORE_PPM * 2 - core.load_ppm[0].min(CORE_PPM) + core.load_ppm[1].min(CORE_PPM) / 1000
            });
            self.latency_cores.0 |= add.map_or(0, |core| CoreSet::one(core).0);
        }
    }

    /// The core with the least `key` among the L cores, or among the others; the first of equals.
    fn extreme(&self, latency: bool, key: impl Fn(&Core) -> u64) -> Option<usize> {
        let group = (0..self.cores.len()).filter(|&core| self.latency_cores.has(core) == latency);
        group.min_by_key(|&core| key(&self.cores[core]))
    }

    /// Moves applications that are not in their class's cores.
    fn separate(&mut self, now: Instant, limit: usize, moves: &mut Vec<Move>) {
        let mut sums = [Class::Latency, Class::Throughput].map(|class| self.app_loads(class));
        for at in 0..self.places.len() {
            let view = self.places[at];
            if moves.len() >= limit {
                return;
            }
            let group = self.group(view.class);
            if group.has(view.core) || !self.may_move(now, &view) {
                continue;
            }
            let allowed = CoreSet(group.0 & view.allowed.0);
            if let Some(to) = self.idlest(allowed, &sums[view.class.index()]) {
                self.relocate(now, at, to, moves);
                sums = [Class::Latency, Class::Throughput].map(|class| self.app_loads(class));
            }
        }
    }

    /// Within each group, moves one application from the busiest core to the idlest if that evens them out.
    fn even_out(&mut self, now: Instant, limit: usize, moves: &mut Vec<Move>) {
        for class in [Class::Latency, Class::Throughput] {
            if moves.len() >= limit {
                return;
            }
            let sums = self.app_loads(class);
            let group = self.group(class);
            let members = (0..self.cores.len()).filter(|&core| group.has(core));
            let Some(busiest) = members.max_by_key(|&core| (sums[core], core)) else {
                continue;
            };
            let candidates = 0..self.places.len();
            let found = candidates.filter_map(|at| {
                let view = self.places[at];
                if view.class != class || view.core != busiest || !self.may_move(now, &view) {
                    return None;
                }
                let to = self.idlest(CoreSet(group.0 & view.allowed.0), &sums)?;
                let gap = sums[busiest].saturating_sub(sums[to]);
                let load = self.known[view.app.0 as usize].load_ppm;
                // The busier of the two must end up less busy by a margin, or they would only change roles. Nobody
                // comes back to an L core for less, so to leave one is worth it without.
                let leaves = self.shared && self.latency_cores.has(busiest) && !self.latency_cores.has(to);
                let margin = if leaves && class == Class::Throughput {
                    0
                } else {
                    UNEVEN_PPM
                };
                let worth = load > 0 && load + margin <= gap;
                worth.then_some((load.abs_diff(gap / 2), at, to))
            });
            if let Some((_, at, to)) = found.min() {
                self.relocate(now, at, to, moves);
            }
        }
    }

    /// Sum of the applications' loads at each core: unlike the core's own it follows a move at once. Of a class, or of
    /// both where they share cores.
    fn app_loads(&self, class: Class) -> [u64; 64] {
        let mut sums = [0; 64];
        for view in &self.places {
            if view.class == class || self.shared {
                // One part per million each, so that applications without load yet are spread too.
                sums[view.core] += self.known[view.app.0 as usize].load_ppm + 1;
            }
        }
        sums
    }

    fn idlest(&self, allowed: CoreSet, sums: &[u64; 64]) -> Option<usize> {
        let cores = (0..self.cores.len()).filter(|&core| allowed.has(core));
        cores.min_by_key(|&core| sums[core])
    }

    fn may_move(&self, now: Instant, view: &AppView) -> bool {
        let known = &self.known[view.app.0 as usize];
        known
            .moved_at
            .is_none_or(|at| now.since(at) >= self.config.move_cooldown)
    }

    fn relocate(&mut self, now: Instant, at: usize, to: usize, moves: &mut Vec<Move>) {
        let view = &mut self.places[at];
        view.core = to;
        self.known[view.app.0 as usize].moved_at = Some(now);
        moves.push(Move { app: view.app, to });
    }
}

/// An average of a share of time after `elapsed_ns` more, of which `new_ns` were spent.
fn decayed(ppm: u64, new_ns: u64, elapsed_ns: u64) -> u64 {
    if elapsed_ns == 0 {
        return ppm;
    }
    let decay_ns = DECAY.as_nanos() as u64;
    let sample = u128::from(new_ns) * u128::from(CORE_PPM);
    // (old·τ + new·Δ) / (τ + Δ), where new = spent / Δ.
    let sum = u128::from(ppm) * u128::from(decay_ns) + sample;
    (sum / u128::from(decay_ns + elapsed_ns)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;

    /// A machine whose applications load their homes as they are told, in steps of the interval.
    struct Machine {
        loads: Loads,
        balancer: Balancer,
        apps: Vec<AppView>,
        /// Percent of a core that each application takes.
        percent: Vec<u64>,
        now: Instant,
        moves: usize,
    }

    impl Machine {
        fn new(cores: usize, apps: &[(Class, usize, u64)]) -> Self {
            let config = Config::of(Policy::Switchyard);
            let view = |(at, &(class, core, _)): (usize, &(Class, usize, u64))| AppView {
                app: AppId(at as u32),
                class,
                core,
                allowed: CoreSet::ALL,
                work: 0,
            };
            Self {
                loads: Loads::new(cores, &config),
                balancer: Balancer::new(&config, cores, 64),
                apps: apps.iter().enumerate().map(view).collect(),
                percent: apps.iter().map(|app| app.2).collect(),
                now: Instant::ZERO,
                moves: 0,
            }
        }

        fn run(&mut self, ticks: usize) {
            for _ in 0..ticks {
                self.now += Duration::from_millis(10);
                for (app, percent) in self.apps.iter_mut().zip(&self.percent) {
                    app.work += percent * 1000;
                    self.loads.spend(app.core, app.class, percent * 100_000);
                }
                let mut moves = Vec::new();
                self.balancer.tick(self.now, &self.loads, &self.apps, &mut moves);
                for one in &moves {
                    self.apps[one.app.0 as usize].core = one.to;
                }
                self.moves += moves.len();
            }
        }

        fn cores_of(&self, class: Class) -> Vec<usize> {
            let mut cores: Vec<_> = self
                .apps
                .iter()
                .filter(|a| a.class == class)
                .map(|a| a.core)
                .collect();
            cores.sort_unstable();
            cores
        }
    }

    const L: Class = Class::Latency;
    const T: Class = Class::Throughput;

    #[test]
    fn l_applications_come_together_and_t_applications_share_the_other_cores() {
        let apps: Vec<_> = (0..4).flat_map(|core| [(L, core, 8), (T, core, 60)]).collect();
        let mut machine = Machine::new(4, &apps);
        machine.run(200);
        let latency = machine.cores_of(L);
        assert!(latency.iter().all(|&core| core == latency[0]), "{latency:?}");
        let throughput = machine.cores_of(T);
        assert!(
            !throughput.contains(&latency[0]),
            "{throughput:?} beside {latency:?}"
        );
        let before = machine.moves;
        machine.run(500);
        assert_eq!(machine.moves, before, "a steady load is not moved about");
    }

    #[test]
    fn more_l_load_gets_more_cores_at_once_and_gives_them_back_later() {
        let apps: Vec<_> = (0..12).flat_map(|core| [(L, core, 5), (T, core, 50)]).collect();
        let mut machine = Machine::new(12, &apps);
        machine.run(200);
        let distinct = |machine: &Machine| {
            let mut cores = machine.cores_of(L);
            cores.dedup();
            cores.len()
        };
        assert_eq!(distinct(&machine), 1);
        (0..12).for_each(|i| machine.percent[2 * i] = 12); // 144 %: two cores at 95 %
        machine.run(60);
        assert_eq!(distinct(&machine), 2);
        (0..12).for_each(|i| machine.percent[2 * i] = 60); // more than L may have
        machine.run(60);
        assert_eq!(distinct(&machine), 2);
        (0..12).for_each(|i| machine.percent[2 * i] = 5);
        machine.run(10);
        assert_eq!(distinct(&machine), 2, "not before it has held");
        machine.run(300);
        assert_eq!(distinct(&machine), 1);
    }

    #[test]
    fn affinity_is_kept() {
        let apps: Vec<_> = (0..4).flat_map(|core| [(L, core, 8), (T, core, 60)]).collect();
        let mut machine = Machine::new(4, &apps);
        machine.apps[2].allowed = CoreSet::one(1);
        machine.apps[5].allowed = CoreSet::one(2);
        machine.run(200);
        assert_eq!((machine.apps[2].core, machine.apps[5].core), (1, 2));
        assert!(machine.moves > 0, "the others came together");
    }

    #[test]
    fn one_class_alone_is_evened_out_and_stays() {
        for class in [L, T] {
            let mut machine = Machine::new(2, &[(class, 0, 45), (class, 0, 45), (class, 1, 0)]);
            machine.run(30);
            assert_eq!((machine.apps[0].core, machine.apps[1].core), (1, 0), "{class:?}");
            machine.run(500);
            assert_eq!(machine.moves, 1, "{class:?}: once is enough");
        }
        let mut machine = Machine::new(2, &[(T, 0, 10), (T, 0, 10)]);
        machine.run(500);
        assert_eq!(machine.moves, 0, "two that leave their core idle gain nothing");
    }

    #[test]
    fn t_uses_the_l_core_only_while_the_others_are_full() {
        let mut machine = Machine::new(2, &[(L, 0, 10), (T, 0, 25), (T, 1, 25)]);
        machine.run(100);
        let home = machine.cores_of(L)[0];
        assert!(!machine.cores_of(T).contains(&home), "there is room beside L");
        // Two that would take more than what is left of a machine without the L core.
        machine.percent[1..].fill(48);
        machine.run(100);
        assert_eq!(machine.cores_of(T), [0, 1]);
        let before = machine.moves;
        machine.run(500);
        assert_eq!(machine.moves, before, "a steady load is not moved about");
        machine.percent[1..].fill(20);
        machine.run(100);
        let home = machine.cores_of(L)[0];
        assert!(!machine.cores_of(T).contains(&home), "there is room again");
        // One that fills a core has no reason to be on that of L.
        let mut machine = Machine::new(2, &[(L, 0, 10), (T, 0, 88)]);
        machine.run(100);
        assert_ne!(machine.cores_of(L), machine.cores_of(T));
        assert_eq!(machine.moves, 1);
        // Three cores can give L one.
        let mut machine = Machine::new(3, &[(L, 0, 10), (T, 0, 88), (T, 1, 95), (T, 2, 95)]);
        machine.run(100);
        let home = machine.cores_of(L)[0];
        assert!(!machine.cores_of(T).contains(&home));
    }

    #[test]
    fn the_published_algorithm_brings_l_together_and_moves_t_away_by_turns() {
        let config = Config::of(Policy::BlkSwitch);
        let (loads, mut balancer) = (Loads::new(2, &config), Balancer::new(&config, 2, 8));
        let app = |number, class, core| AppView {
            app: AppId(number),
            class,
            core,
            allowed: CoreSet::ALL,
            work: 0,
        };
        let mut apps = [app(0, L, 0), app(1, T, 0), app(2, L, 1), app(3, T, 1)];
        for (core, bytes) in [(0, 1 << 20), (1, 1 << 19)] {
            let _outstanding = loads.charge(core, core, L, 4096);
            let _outstanding = loads.charge(core, core, T, bytes);
        }
        let mut moves = Vec::new();
        let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        balancer.tick(at(10), &loads, &apps, &mut moves);
        assert_eq!(
            moves,
            [Move { app: AppId(0), to: 1 }],
            "to the smaller sum that hosts L"
        );
        apps[0].core = 1;
        balancer.tick(at(15), &loads, &apps, &mut moves);
        assert_eq!(moves.len(), 1, "not before the interval");
        balancer.tick(at(20), &loads, &apps, &mut moves);
        assert_eq!(
            moves[1..],
            [Move { app: AppId(3), to: 0 }],
            "away from the core with more L"
        );
    }
}

//! The experiments of blk-switch's artifact, every system with the same sizes and depths, and two of our own.

use super::world::{AppSpec, Medium, Outcome, Spec, World};
use crate::report::{Progress, Report};
use base::Duration;
use blockswitch::{Class, ClassHint, Policy};
use host::target::Config;

/// Bytes and depth of the T applications where a figure does not vary them.
pub const BULK_BYTES: u32 = 64 << 10;
/// See [`BULK_BYTES`].
pub const BULK_DEPTH: u32 = 32;
/// Speed of the link. The paper's cores fill 100 Gbit/s with six of them; a modelled core moves twice as much, so the
/// link is twice as fast, and as in the paper six cores are about as fast as the link.
pub const LINK_GBPS: u64 = 200;

/// Columns of a row.
pub const COLUMNS: &[&str] = &[
    "l_mean_us",
    "l_p50_us",
    "l_p99_us",
    "l_p99.9_us",
    "l_kiops",
    "t_gb_per_s",
    "t_p99_us",
    "steered_per_s",
    "moves",
    "busy_percent",
];

/// An L application: 4 KiB reads, one at a time.
pub fn latency_app(home: usize) -> AppSpec {
    AppSpec {
        class: Class::Latency,
        hint: ClassHint::Fixed(Class::Latency),
        bytes: 4096,
        depth: 1,
        read_percent: 100,
        medium: Medium::Memory,
        home,
        gap_ns: 0,
    }
}

/// Places in the queue of a paced application, so that a late answer does not keep back the next request.
const PACED_DEPTH: u32 = 64;

/// The same at a rate of its own: `per_s` requests a second, whatever answers take.
pub fn paced_app(home: usize, per_s: u64) -> AppSpec {
    AppSpec {
        depth: PACED_DEPTH,
        gap_ns: u64::from(PACED_DEPTH) * 1_000_000_000 / per_s,
        ..latency_app(home)
    }
}

/// A T application: reads.
pub fn bulk_app(home: usize, bytes: u32, depth: u32) -> AppSpec {
    AppSpec {
        class: Class::Throughput,
        hint: ClassHint::Fixed(Class::Throughput),
        bytes,
        depth,
        read_percent: 100,
        medium: Medium::Memory,
        home,
        gap_ns: 0,
    }
}

/// `latency` L and `bulk` T applications, spread over the cores one after the other, as the artifact's
/// `cpus_allowed_policy=split` does.
pub fn mixed(cores: usize, latency: usize, bulk: usize) -> Vec<AppSpec> {
    let small = (0..latency).map(|i| latency_app(i % cores));
    let large = (0..bulk).map(|i| bulk_app(i % cores, BULK_BYTES, BULK_DEPTH));
    small.chain(large).collect()
}

/// One run, on a link of [`LINK_GBPS`].
pub fn measure(seed: u64, config: Config, cores: usize, apps: Vec<AppSpec>) -> Outcome {
    measure_on(LINK_GBPS, seed, config, cores, apps)
}

/// One run, on a link of `gbps` Gbit/s.
pub fn measure_on(gbps: u64, seed: u64, config: Config, cores: usize, apps: Vec<AppSpec>) -> Outcome {
    let spec = Spec {
        config,
        cores,
        gbps,
        apps,
        seed,
        warm: Duration::from_millis(400),
        measured: Duration::from_millis(400),
    };
    World::new(spec).run()
}

fn row(outcome: &Outcome) -> Vec<f64> {
    let [latency, bulk] = &outcome.latency;
    let at = |q: f64| latency.value_at_quantile(q) as f64 / 1e3;
    vec![
        latency.mean() / 1e3,
        at(0.5),
        at(0.99),
        at(0.999),
        latency.len() as f64 / outcome.seconds / 1e3,
        outcome.bytes[1] as f64 / outcome.seconds / 1e9,
        bulk.value_at_quantile(0.99) as f64 / 1e3,
        outcome.steered as f64 / outcome.seconds,
        outcome.moves as f64,
        outcome.busy * 100.0,
    ]
}

/// The systems that most figures compare.
fn systems() -> Vec<(&'static str, Config)> {
    let system = |policy: Policy| (policy.name(), Config::published(policy));
    Policy::ALL.into_iter().map(system).collect()
}

/// The steps from Linux to blk-switch, then ours.
fn steps() -> Vec<(&'static str, Config)> {
    let step = |(name, switch)| (name, Config::around(switch));
    let mut steps: Vec<_> = blockswitch::Config::breakdown().into_iter().map(step).collect();
    steps.push(("switchyard", Config::of(Policy::Switchyard)));
    steps
}

/// A figure: every system in every case.
struct Sweep<'a> {
    name: &'static str,
    seed: u64,
    systems: Vec<(&'static str, Config)>,
    progress: Progress<'a>,
}

impl Sweep<'_> {
    /// Runs `cases`: label, cores and applications of each.
    fn run(self, cases: Vec<(String, usize, Vec<AppSpec>)>) -> Report {
        let mut report = Report::new(self.name, self.seed, COLUMNS);
        report.systems = self.systems;
        for (case, cores, apps) in cases {
            (self.progress)(&format!("{}: {case}", self.name));
            for (system, config) in report.systems.clone() {
                let outcome = measure(self.seed, config, cores, apps.clone());
                report.push(&format!("{case} {system}"), row(&outcome));
            }
        }
        report
    }
}

macro_rules! figure {
    ($(#[$doc:meta])* $function:ident, $name:literal, $systems:expr, $cases:expr) => {
        $(#[$doc])*
        pub(crate) fn $function(seed: u64, progress: Progress<'_>) -> Report {
            let sweep = Sweep {
                name: $name,
                seed,
                systems: $systems,
                progress,
            };
            sweep.run($cases)
        }
    };
}

figure!(
    /// One core, one T application, more and more L applications.
    fig2, "switch-fig2", systems(), {
        let alone = (
            "alone".to_owned(),
            1,
            vec![latency_app(0)],
        );
        let beside = [1, 2, 4].map(|count| (format!("{count}L"), 1, mixed(1, count, 1)));
        [alone].into_iter().chain(beside).collect()
    }
);

figure!(
    /// One core, one of each, by size of the T requests.
    fig3a, "switch-fig3a", systems(),
    [4, 8, 16, 32, 64, 128]
        .map(|kib| {
            let apps = vec![latency_app(0), bulk_app(0, kib << 10, BULK_DEPTH)];
            (format!("{kib}KiB"), 1, apps)
        })
        .to_vec()
);

figure!(
    /// Six cores by number of L applications.
    fig7, "switch-fig7", systems(),
    [6, 12, 24].map(|count| (format!("{count}L"), 6, mixed(6, count, 6))).to_vec()
);

figure!(
    /// Six cores by depth of the T applications.
    fig8, "switch-fig8", systems(),
    [1, 2, 4, 8, 16, 32]
        .map(|depth| {
            let mut apps = mixed(6, 6, 6);
            apps[6..].iter_mut().for_each(|app| app.depth = depth);
            (format!("QD{depth}"), 6, apps)
        })
        .to_vec()
);

figure!(
    /// One of each for each core, by number of cores.
    fig9, "switch-fig9", systems(),
    [1, 2, 4, 6, 8, 10, 16].map(|cores| (format!("{cores}C"), cores, mixed(cores, cores, cores))).to_vec()
);

figure!(
    /// L applications on flash.
    fig10, "switch-fig10", systems(),
    [6, 12, 24]
        .map(|count| {
            let mut apps = mixed(6, count, 6);
            apps[..count].iter_mut().for_each(|app| app.medium = Medium::Ssd);
            (format!("{count}L-ssd"), 6, apps)
        })
        .to_vec()
);

figure!(
    /// T applications that read and write.
    fig11, "switch-fig11", systems(),
    [0, 25, 50, 75, 100]
        .map(|percent| {
            let mut apps = mixed(6, 6, 6);
            apps[6..].iter_mut().for_each(|app| app.read_percent = percent);
            (format!("{percent}%reads"), 6, apps)
        })
        .to_vec()
);

figure!(
    /// The breakdown: one L application on core 0, T applications of different depths.
    fig13, "switch-fig13", steps(), {
        let bulk = [64, 32, 16, 8, 4, 2].into_iter().enumerate();
        let bulk = bulk.map(|(core, depth)| bulk_app(core, BULK_BYTES, depth));
        vec![("1L".to_owned(), 6, [latency_app(0)].into_iter().chain(bulk).collect())]
    }
);

figure!(
    /// T applications that write 128 KiB.
    writes, "switch-writes", systems(),
    [1, 6]
        .map(|cores| {
            let mut apps = mixed(cores, cores, cores);
            for app in &mut apps[cores..] {
                (app.bytes, app.read_percent) = (128 << 10, 0);
            }
            (format!("{cores}C"), cores, apps)
        })
        .to_vec()
);

/// Rates of L in [`paced`], in requests a second. The second is that of `bench blockswitch`.
pub const PACED_RATES: [u64; 3] = [100, 1_000, 10_000];

/// One core: an L application at a rate of its own beside two T applications that read 128 KiB.
pub fn paced_apps(per_s: u64) -> Vec<AppSpec> {
    let bulk = bulk_app(0, 128 << 10, BULK_DEPTH);
    vec![paced_app(0, per_s), bulk, bulk]
}

figure!(
    /// One core, two T applications, by rate of the L application.
    paced, "switch-paced", systems(),
    PACED_RATES.map(|per_s| (format!("{per_s}/s"), 1, paced_apps(per_s))).to_vec()
);

/// Load of [`order`]: one L and one T application on each core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrderCase {
    /// First columns of its rows.
    pub label: &'static str,
    /// Cores.
    pub cores: usize,
    /// Speed of the link in Gbit/s.
    pub gbps: u64,
    /// Depths of the T applications, over and over.
    pub depths: &'static [u32],
    /// Requests a second of an L application at a rate of its own; `None` for closed loops.
    pub latency_per_s: Option<u64>,
}

/// - `mixed`: T applications of unequal depths, as Figure 13 has them, with the depths of Figure 8. The steps of the
///   breakdown show here: a load that is the same on all cores leaves nothing to steer.
/// - `QD32`, `QD64`: equal depths, that of most figures and that of Figure 13's deepest application.
/// - `QD64-paced`: L applications ask 16,000 times a second each whatever they get. A closed loop that is served sooner
///   asks for more, and takes the processor time for it from T.
/// - `16C`: sixteen of each on sixteen cores, with a link that is faster in proportion.
pub const ORDER_CASES: [OrderCase; 5] = {
    let equal = OrderCase {
        label: "QD32",
        cores: 6,
        gbps: LINK_GBPS,
        depths: &[BULK_DEPTH],
        latency_per_s: None,
    };
    [
        OrderCase {
            label: "mixed",
            depths: &[32, 16, 8, 4, 2, 1],
            ..equal
        },
        equal,
        OrderCase {
            label: "QD64",
            depths: &[64],
            ..equal
        },
        OrderCase {
            label: "QD64-paced",
            depths: &[64],
            latency_per_s: Some(16_000),
            ..equal
        },
        OrderCase {
            label: "16C",
            cores: 16,
            gbps: LINK_GBPS * 16 / 6,
            ..equal
        },
    ]
};

impl OrderCase {
    /// Its applications.
    pub fn apps(&self) -> Vec<AppSpec> {
        let mut apps = mixed(self.cores, self.cores, self.cores);
        let (latency, bulk) = apps.split_at_mut(self.cores);
        if let Some(per_s) = self.latency_per_s {
            latency
                .iter_mut()
                .for_each(|app| *app = paced_app(app.home, per_s));
        }
        let depths = self.depths.iter().cycle();
        bulk.iter_mut()
            .zip(depths)
            .for_each(|(app, &depth)| app.depth = depth);
        apps
    }

    /// One run.
    pub fn run(&self, seed: u64, config: Config) -> Outcome {
        measure_on(self.gbps, seed, config, self.cores, self.apps())
    }
}

/// The systems of [`order`].
pub fn order_systems() -> Vec<(&'static str, Config)> {
    let mut systems = steps();
    let mut wide = Config::published(Policy::BlkSwitch);
    wide.switch.threshold_requests = 16;
    systems.push(("+P+RS+AS,B=16", wide));
    systems.extend(
        self::systems()
            .into_iter()
            .filter(|(name, _)| name.starts_with("spdk")),
    );
    systems
}

/// Six L and six T applications on six cores, and more: every step, every system, and ours with classes that nobody
/// told it.
pub(crate) fn order(seed: u64, progress: Progress<'_>) -> Report {
    let mut report = Report::new("switch-order", seed, COLUMNS);
    report.systems = order_systems();
    for case in &ORDER_CASES {
        progress(&format!("switch-order: {}", case.label));
        for (name, config) in report.systems.clone() {
            report.push(&format!("{} {name}", case.label), row(&case.run(seed, config)));
        }
        let mut apps = case.apps();
        apps.iter_mut().for_each(|app| app.hint = ClassHint::Auto);
        let ours = Config::of(Policy::Switchyard);
        let learned = measure_on(case.gbps, seed, ours, case.cores, apps);
        report.push(&format!("{} switchyard-auto", case.label), row(&learned));
    }
    report
}

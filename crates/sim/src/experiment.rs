//! Experiments: named questions to the simulator, each answered with a table. The same seed gives the same table.

use crate::client::{LoadSpec, Pace};
use crate::cuts::{self, CutsOptions};
use crate::eval::{
    self, Case, Hardware, Plan, apps, gc_tail, isolation, netsched, pairs, run_spec, schedulers, wear, ycsb,
};
use crate::rack::RackFleet;
use crate::rebuild;
use crate::report::{Progress, Report};
use crate::run::Run;
use crate::switch::figures;
use crate::workload::{Mix, Pattern};
use flash::Timing;

/// A question to the simulator.
pub struct Experiment {
    /// The name that users write.
    pub name: &'static str,
    /// Its message, in one sentence.
    pub about: &'static str,
    /// Answers it.
    pub run: fn(seed: u64, progress: Progress<'_>) -> Report,
    /// Its plan, if any: the plan must be [fair](Plan::is_fair). Figures of wear have none.
    pub plan: Option<fn() -> Plan>,
}

/// Prefix of the host block switch's experiments.
pub const SWITCH: &str = "switch-";

/// All experiments.
pub const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "gc-tail",
        about: "Tail latency beside garbage collection: uncoordinated, through the ToR, preemptible, and without any",
        run: gc_tail::gc_tail,
        plan: Some(gc_tail::plan),
    },
    Experiment {
        name: "fig9",
        about: "RackBlox Figure 9: P99.9 latency by share of writes",
        run: ycsb::fig9,
        plan: Some(ycsb::sweep),
    },
    Experiment {
        name: "fig22",
        about: "RackBlox Figure 22: wear imbalance between the SSDs of a server over five years",
        run: wear::fig22,
        plan: None,
    },
    Experiment {
        name: "fig23",
        about: "RackBlox Figure 23: wear imbalance across the rack over five years",
        run: wear::fig23,
        plan: None,
    },
    Experiment {
        name: "fig17",
        about: "RackBlox Figure 17: read latency with FIFO, Deadline and Kyber, by arrival and coordinated",
        run: schedulers::fig17,
        plan: Some(schedulers::plan),
    },
    Experiment {
        name: "predictor",
        about: "Share of packets whose latency is predicted within 25 µs (RackBlox §3.4)",
        run: schedulers::predictor,
        plan: None,
    },
    Experiment {
        name: "fig10",
        about: "RackBlox Figure 10: P99 latency by share of writes",
        run: ycsb::fig10,
        plan: Some(ycsb::sweep),
    },
    Experiment {
        name: "fig11",
        about: "RackBlox Figure 11: mean latency by share of writes",
        run: ycsb::fig11,
        plan: Some(ycsb::sweep),
    },
    Experiment {
        name: "fig12",
        about: "RackBlox Figure 12: throughput of closed loops by share of writes",
        run: ycsb::fig12,
        plan: Some(ycsb::throughput),
    },
    Experiment {
        name: "fig13",
        about: "RackBlox Figure 13: P99.9 latency of five applications",
        run: apps::fig13,
        plan: Some(apps::plan),
    },
    Experiment {
        name: "fig14",
        about: "RackBlox Figure 14: throughput of five applications",
        run: apps::fig14,
        plan: Some(apps::plan),
    },
    Experiment {
        name: "fig15",
        about: "RackBlox Figure 15: P99.9 latency in the servers and in all, with scheduling alone and with collection",
        run: ycsb::fig15,
        plan: Some(ycsb::breakdown),
    },
    Experiment {
        name: "fig16",
        about: "RackBlox Figure 16: distribution of read latency",
        run: ycsb::fig16,
        plan: Some(ycsb::distribution),
    },
    Experiment {
        name: "fig18",
        about: "RackBlox Figure 18: P99.9 latency of reads by the switch's network policy, with and without coordination",
        run: netsched::fig18,
        plan: Some(netsched::plan),
    },
    Experiment {
        name: "fig19",
        about: "RackBlox Figure 19: distribution of read latency by device and network",
        run: pairs::fig19,
        plan: Some(pairs::distributions),
    },
    Experiment {
        name: "fig20",
        about: "RackBlox Figure 20: what P99.9 of reads gains over VDC, by device and network",
        run: pairs::fig20,
        plan: Some(pairs::improvements),
    },
    Experiment {
        name: "fig21",
        about: "RackBlox Figure 21: tail latency of software- and hardware-isolated vSSDs",
        run: isolation::fig21,
        plan: Some(isolation::plan),
    },
    Experiment {
        name: "speed",
        about: "A fixed number of requests on a replicated four-node rack, to measure the simulator itself",
        run: speed,
        plan: None,
    },
    Experiment {
        name: "power-cut",
        about: "Power is lost at every single write to a medium, of the whole rack and of one node; violations must be 0",
        run: power_cut,
        plan: None,
    },
    Experiment {
        name: "rebuild",
        about: "A copy is made alone and beside clients: its rate, and what clients notice of it",
        run: rebuild::rebuild,
        plan: None,
    },
    Experiment {
        name: "switch-fig2",
        about: "Host block switch, one core: L-apps alone and beside a T-app",
        run: figures::fig2,
        plan: None,
    },
    Experiment {
        name: "switch-fig3a",
        about: "Host block switch, one core: by size of the T-app's requests",
        run: figures::fig3a,
        plan: None,
    },
    Experiment {
        name: "switch-fig7",
        about: "Host block switch, six cores: by number of L-apps",
        run: figures::fig7,
        plan: None,
    },
    Experiment {
        name: "switch-fig8",
        about: "Host block switch, six cores: by queue depth of the T-apps",
        run: figures::fig8,
        plan: None,
    },
    Experiment {
        name: "switch-fig9",
        about: "Host block switch: by number of cores, one L-app and one T-app each",
        run: figures::fig9,
        plan: None,
    },
    Experiment {
        name: "switch-fig10",
        about: "Host block switch, six cores: L-apps on flash beside T-apps in memory",
        run: figures::fig10,
        plan: None,
    },
    Experiment {
        name: "switch-fig11",
        about: "Host block switch, six cores: T-apps that read and write",
        run: figures::fig11,
        plan: None,
    },
    Experiment {
        name: "switch-fig13",
        about: "Host block switch, six cores: what each step from Linux to blk-switch and to ours gains",
        run: figures::fig13,
        plan: None,
    },
    Experiment {
        name: "switch-writes",
        about: "Host block switch: T-apps that write 128 KiB",
        run: figures::writes,
        plan: None,
    },
    Experiment {
        name: "switch-paced",
        about: "Host block switch, one core: an L-app at a rate of its own beside two T-apps",
        run: figures::paced,
        plan: None,
    },
    Experiment {
        name: "switch-order",
        about: "Host block switch, six cores, six L-apps and six T-apps: every step and system",
        run: figures::order,
        plan: None,
    },
];

/// The experiment of this name.
pub fn find(name: &str) -> Option<&'static Experiment> {
    EXPERIMENTS.iter().find(|e| e.name == name)
}

/// Requests of the speed experiment.
pub const SPEED_REQUESTS: u64 = 300_000;

fn speed(seed: u64, progress: Progress<'_>) -> Report {
    progress("speed: a replicated four-node rack");
    let mut cases = gc_tail::plan().cases.into_iter();
    let case = cases.find(|case| case.policies.name == "switchyard");
    let Case {
        hardware, policies, ..
    } = case.expect("ours is among them");
    let hardware = Hardware {
        timing: Timing::built_in("optane").expect("optane is built in"),
        ..hardware
    };
    let fleet = RackFleet::new(eval::options(&hardware, &policies));
    let pages = hardware.pages();
    let mut spec = run_spec(seed, pages);
    spec.loads = vec![LoadSpec {
        pattern: Pattern::Zipfian,
        pace: Pace::Closed { depth: 64 },
        mix: Mix::writes(0.5),
        ..LoadSpec::new(fleet.gateway(0), 0, SPEED_REQUESTS)
    }];
    let outcome = Run::new(fleet, spec).execute();
    let mut report = Report::new("speed", seed, &["requests", "events", "packets", "virtual_s"]);
    report.push(
        "four-nodes",
        vec![
            outcome.clients.answered as f64,
            outcome.world.events as f64,
            outcome.world.packets as f64,
            outcome.virtual_ns as f64 / 1e9,
        ],
    );
    report
}

fn power_cut(seed: u64, progress: Progress<'_>) -> Report {
    let options = CutsOptions {
        seed,
        ..CutsOptions::default()
    };
    let outcome = cuts::run(options, progress);
    let columns = [
        "boundaries",
        "runs",
        "violations",
        "reads_judged",
        "writes_lost",
        "gc_programs",
        "checkpoints",
    ];
    let mut report = Report::new("power-cut", seed, &columns);
    for case in &outcome.cases {
        let row = vec![
            outcome.boundaries as f64,
            case.runs as f64,
            case.violations.len() as f64,
            case.reads_judged as f64,
            case.writes_lost as f64,
            outcome.flash.gc_programs as f64,
            outcome.flash.checkpoints as f64,
        ];
        report.push(&case.label(), row);
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_every_figure_all_policies_have_the_same_hardware() {
        for Experiment {
            name: figure, plan, ..
        } in EXPERIMENTS
        {
            let Some(mut plan) = plan.map(|plan| plan()) else {
                continue;
            };
            assert!(plan.is_fair(), "{figure}");
            let mut other = plan.cases[0].clone();
            other.hardware.cache_pages += 1;
            other.policies.name.push('x');
            plan.cases.push(other);
            assert!(!plan.is_fair(), "{figure}: a difference is seen");
            let mut other = plan.cases.pop().expect("it was just added");
            other.hardware = plan.cases[0].hardware.clone();
            other.workload.measured += 1;
            plan.cases.push(other);
            assert!(!plan.is_fair(), "{figure}: a difference of the clients is seen");
        }
    }

    #[test]
    fn every_figure_but_those_of_wear_has_its_plan() {
        for experiment in EXPERIMENTS {
            let is_figure = experiment.name.starts_with("fig") || experiment.name == "gc-tail";
            let is_of_wear = ["fig22", "fig23"].contains(&experiment.name);
            assert_eq!(
                experiment.plan.is_some(),
                is_figure && !is_of_wear,
                "{}",
                experiment.name
            );
        }
    }
}

//! `switchyard bench rack`: experiments of the simulator's evaluation on a real rack, and how well the simulator
//! predicts what one policy gains over another there.
//!
//! Each row runs in the simulator and on a real rack of this process, with the same hosts, options, clients and seed
//! ([`crate::emulated`]). Rounds are interleaved, each with a seed of its own, and what is reported are medians: a
//! machine that stalls now and then does not decide. What the rack's own processor time adds is the same for all policies,
//! so it is ratios that are compared; `--slower` makes it weigh less.

use super::rounds::ROUNDS;
use super::rounds::{bar, median};
use crate::emulated;
use crate::failure::{Failure, within};
use crate::machine;
use anyhow::{Context, bail};
use clap::Args;
use serde_json::{Map, Value, json};
use sim::eval::schedulers::COORDINATED;
use sim::eval::{Case, Percentiles, Plan, Row, apps, gc_tail, isolation, netsched, schedulers, ycsb};
use std::fmt::Write;
use std::ops::RangeInclusive;

/// How far a ratio may be from the simulator's to be called alike.
const ALIKE: f64 = 0.3;
/// Policies whose tails differ by less than this in the simulator have no order.
const TIED: f64 = 0.1;

/// Requests of a run: fewer have no P99.9.
const REQUESTS: RangeInclusive<u64> = 1_000..=100_000_000;

/// An experiment that a real rack can run.
struct Experiment {
    name: &'static str,
    plan: fn() -> Plan,
    /// The default run.
    workloads: &'static [&'static str],
    /// How much slower than in the simulator's figure, unless it is said: so much that one processor has time to spare.
    slower: u32,
}

const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "gc-tail",
        plan: gc_tail::plan,
        workloads: &[],
        slower: 1,
    },
    Experiment {
        name: "fig9",
        plan: ycsb::sweep,
        workloads: &["ycsb-w50"],
        slower: 3,
    },
    Experiment {
        name: "fig13",
        plan: apps::plan,
        workloads: &["twitter"],
        slower: 3,
    },
    Experiment {
        name: "fig15",
        plan: ycsb::breakdown,
        workloads: &["ycsb-w50"],
        slower: 3,
    },
    Experiment {
        name: "fig17",
        plan: schedulers::plan,
        workloads: &["ycsb-w10"],
        slower: 5,
    },
    Experiment {
        name: "fig18",
        plan: netsched::plan,
        workloads: &["ycsb-w10"],
        slower: 8,
    },
    Experiment {
        name: "fig21",
        plan: isolation::plan,
        workloads: &[],
        slower: 1,
    },
];

/// `switchyard bench rack`.
#[derive(Args)]
#[command(
    after_help = "Policies and workloads have the names of `switchyard sim run EXPERIMENT`. The rack and its clients take one \
    processor.\n\nExamples:\n  switchyard bench rack fig9 --policy vdc,rackblox,switchyard\n  \
    switchyard bench rack fig17 --workload ycsb-w0,ycsb-w10 --rounds 5 --json"
)]
pub struct RackArgs {
    /// The experiment: gc-tail, fig9, fig13, fig15, fig17, fig18 or fig21
    #[arg(value_name = "EXPERIMENT")]
    pub experiment: String,
    /// Run only these policies [default: all of the experiment]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub policy: Vec<String>,
    /// Run only these workloads [default: one or all, by experiment]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub workload: Vec<String>,
    /// Requests measured in each run, at least 1000 [default: the experiment's]
    #[arg(long, value_name = "N")]
    pub requests: Option<u64>,
    /// Requests of each warm-up [default: the experiment's]
    #[arg(long, value_name = "N")]
    pub warm: Option<u64>,
    /// Factor by which devices, links and clients are slower [default: by experiment]
    #[arg(long, value_name = "N")]
    pub slower: Option<u32>,
    /// Interleaved rounds; the report has medians
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub rounds: usize,
    /// Seed of the first round
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Runs it.
pub fn run(args: &RackArgs) -> anyhow::Result<()> {
    let cases = cases(args)?;
    let bar = bar(args.json);
    bar.set_length((args.rounds * cases.len()) as u64);
    let mut rounds: Vec<[Vec<Row>; 2]> = vec![Default::default(); cases.len()];
    for round in 0..args.rounds {
        for (case, [simulated, real]) in cases.iter().zip(&mut rounds) {
            bar.set_message(format!("{} {}", case.policies.name, case.workload.name));
            let seed = args.seed.wrapping_add(round as u64);
            simulated.push(case.run(seed));
            let row = emulated::measure(case, seed).with_context(|| {
                let (policy, workload) = (&case.policies.name, &case.workload.name);
                format!("{policy} {workload}, seed {seed}")
            })?;
            if bar.is_hidden() {
                eprintln!("seed {seed} {}{}", row.label(), numbers(&simulated[round], &row));
            }
            real.push(row);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let compared = rounds.iter().map(|[simulated, real]| Compared {
        simulated: median_row(simulated),
        real: median_row(real),
    });
    let compared: Vec<Compared> = compared.collect();
    let ratios = ratios(&compared);
    if args.json {
        println!(
            "{}",
            serde_json::to_string_pretty(&json(args, &compared, &ratios))?
        );
    } else {
        print!("{}", text(args, &compared, &ratios));
    }
    Ok(())
}

/// The rows asked for.
fn cases(args: &RackArgs) -> anyhow::Result<Vec<Case>> {
    within("--rounds", args.rounds, ROUNDS)?;
    if let Some(requests) = args.requests {
        within("--requests", requests, REQUESTS)?;
    }
    if let Some(warm) = args.warm {
        within("--warm", warm, 0..=*REQUESTS.end())?;
    }
    let Some(experiment) = EXPERIMENTS.iter().find(|e| e.name == args.experiment) else {
        let names: Vec<_> = EXPERIMENTS.iter().map(|e| e.name).collect();
        bail!(Failure::Usage(format!(
            "experiment `{}` does not run on a real rack: choose one of {}",
            args.experiment,
            names.join(", ")
        )));
    };
    let slower = args.slower.unwrap_or(experiment.slower);
    within("--slower", slower, 1..=1000)?;
    let plan = (experiment.plan)();
    let asked: Vec<&str> = match args.workload.is_empty() {
        true => experiment.workloads.to_vec(),
        false => args.workload.iter().map(String::as_str).collect(),
    };
    let policies: Vec<&str> = args.policy.iter().map(String::as_str).collect();
    known(
        "policy",
        &policies,
        plan.cases.iter().map(|case| &case.policies.name),
    )?;
    known(
        "workload",
        &asked,
        plan.cases.iter().map(|case| &case.workload.name),
    )?;
    let is_asked = |list: &[&str], name: &str| list.is_empty() || list.contains(&name);
    let chosen = plan
        .cases
        .into_iter()
        .filter(|case| is_asked(&policies, &case.policies.name) && is_asked(&asked, &case.workload.name));
    Ok(chosen
        .map(|mut case| {
            case.workload.measured = args.requests.unwrap_or(case.workload.measured);
            case.workload.warm = args.warm.unwrap_or(case.workload.warm);
            case.slower(slower)
        })
        .collect())
}

/// Refuses names that the experiment does not have.
fn known<'a>(kind: &str, asked: &[&str], names: impl Iterator<Item = &'a String>) -> anyhow::Result<()> {
    let mut listed: Vec<&str> = Vec::new();
    for name in names {
        if !listed.contains(&name.as_str()) {
            listed.push(name);
        }
    }
    match asked.iter().find(|name| !listed.contains(name)) {
        None => Ok(()),
        Some(name) => bail!(Failure::Usage(format!(
            "the experiment has no {kind} `{name}`: choose from {}",
            listed.join(", ")
        ))),
    }
}

/// A row in both worlds.
struct Compared {
    simulated: Row,
    real: Row,
}

/// The median of every number.
fn median_row(rows: &[Row]) -> Row {
    let percentiles = |of: fn(&Row) -> &Percentiles| {
        let at = |pick: fn(&Percentiles) -> f64| median(rows.iter().map(|row| pick(of(row))));
        Percentiles {
            count: of(&rows[0]).count,
            mean_us: at(|p| p.mean_us),
            p50_us: at(|p| p.p50_us),
            p95_us: at(|p| p.p95_us),
            p99_us: at(|p| p.p99_us),
            p999_us: at(|p| p.p999_us),
            p9999_us: at(|p| p.p9999_us),
        }
    };
    let more = |(name, value): (&String, &Value)| {
        let numbers = rows.iter().map(|row| row.more.get(name).and_then(Value::as_f64));
        let numbers: Option<Vec<f64>> = numbers.collect();
        let value = numbers.map_or_else(|| value.clone(), |numbers| json!(median(numbers)));
        value.is_number().then(|| (name.clone(), value))
    };
    Row {
        read: percentiles(|row| &row.read),
        write: percentiles(|row| &row.write),
        iops: median(rows.iter().map(|row| row.iops)),
        write_amplification: median(rows.iter().map(|row| row.write_amplification)),
        more: rows[0].more.iter().filter_map(more).collect(),
        ..rows[0].clone()
    }
}

/// A number of a distribution, by name.
type Figure = (&'static str, fn(&Percentiles) -> f64);
/// Compared percentiles of reads.
const FIGURES: [Figure; 3] = [
    ("mean", |p| p.mean_us),
    ("p99", |p| p.p99_us),
    ("p99.9", |p| p.p999_us),
];

/// How often as long a reference's reads take as a policy's, in both worlds.
#[derive(Debug, PartialEq)]
struct Ratio {
    reference: String,
    policy: String,
    workload: String,
    parameters: Map<String, Value>,
    /// The policy's row, with all that tells it from others.
    label: String,
    figure: &'static str,
    simulated: f64,
    real: f64,
}

impl Ratio {
    fn of(reference: &Compared, policy: &Compared, (figure, pick): Figure) -> Self {
        let ratio = |of: fn(&Compared) -> &Row| pick(&of(reference).read) / pick(&of(policy).read);
        Self {
            reference: reference.real.policy.clone(),
            policy: policy.real.policy.clone(),
            workload: policy.real.workload.clone(),
            parameters: policy.real.parameters.clone(),
            label: policy.real.label(),
            figure,
            simulated: ratio(|compared| &compared.simulated),
            real: ratio(|compared| &compared.real),
        }
    }

    /// 1 if both worlds say the same.
    fn agreement(&self) -> f64 {
        self.real / self.simulated
    }

    fn is_alike(&self) -> bool {
        (self.agreement() - 1.0).abs() <= ALIKE
    }

    /// False if the worlds differ about who is faster, and the simulator sees a difference.
    fn has_same_order(&self) -> bool {
        let is_tied = self.simulated.max(1.0 / self.simulated) < 1.0 + TIED;
        is_tied || (self.simulated > 1.0) == (self.real > 1.0)
    }
}

/// Of all pairs of policies under the same workload.
fn ratios(compared: &[Compared]) -> Vec<Ratio> {
    let same = |a: &Row, b: &Row| a.workload == b.workload && a.parameters == b.parameters;
    let mut ratios = Vec::new();
    for (at, policy) in compared.iter().enumerate() {
        for reference in compared[..at].iter().filter(|c| same(&c.real, &policy.real)) {
            ratios.extend(FIGURES.map(|figure| Ratio::of(reference, policy, figure)));
        }
    }
    ratios
}

/// True for a policy beside its reference: the same scheduler without coordination, or the first policy.
fn is_shown(ratio: &Ratio, ratios: &[Ratio]) -> bool {
    let name = ratio.policy.strip_suffix(COORDINATED);
    let of_policy = |other: &&Ratio| {
        let same = (&other.policy, &other.workload) == (&ratio.policy, &ratio.workload);
        same && other.parameters == ratio.parameters
    };
    let mut own = ratios.iter().filter(of_policy);
    match own.clone().find(|other| Some(other.reference.as_str()) == name) {
        Some(pair) => pair.reference == ratio.reference,
        None => own.next().is_some_and(|first| first.reference == ratio.reference),
    }
}

fn summary(ratios: &[Ratio]) -> (usize, usize, usize) {
    let count = |is: fn(&Ratio) -> bool| ratios.iter().filter(|ratio| is(ratio)).count();
    (ratios.len(), count(Ratio::is_alike), count(Ratio::has_same_order))
}

/// Reads of a row in both worlds, in µs, and the real rack's share of a processor.
fn numbers(simulated: &Row, real: &Row) -> String {
    let of = |p: &Percentiles| format!("{:>9.0}{:>9.0}{:>9.0}", p.p50_us, p.p99_us, p.p999_us);
    let cpu = real.more.get("cpu_percent").and_then(Value::as_f64);
    format!(
        "{} {} {:>6.0}",
        of(&simulated.read),
        of(&real.read),
        cpu.unwrap_or(f64::NAN)
    )
}

fn text(args: &RackArgs, compared: &[Compared], ratios: &[Ratio]) -> String {
    let about = machine::about();
    let mut out = String::new();
    let mut line = |text: String| writeln!(out, "{text}").expect("a string takes everything");
    line(format!(
        "machine  {}, {} processors, Linux {}",
        about.processor, about.processors, about.kernel
    ));
    line(format!("commit   {}", about.commit));
    line(format!("rounds   {}, medians\n", args.rounds));
    let width = compared.iter().map(|c| c.real.label().len()).max().unwrap_or(0);
    line(format!(
        "{:width$} {:>27} {:>27} {:>6}",
        "reads, µs", "simulated p50, p99, p99.9", "real p50, p99, p99.9", "CPU %"
    ));
    for Compared { simulated, real } in compared {
        line(format!("{:width$} {}", real.label(), numbers(simulated, real)));
    }
    line(String::new());
    for ratio in ratios.iter().filter(|ratio| is_shown(ratio, ratios)) {
        line(format!(
            "{} / {} {:<5}  simulated {:>6.2}  real {:>6.2}  real/simulated {:.2}{}",
            ratio.reference,
            ratio.label,
            ratio.figure,
            ratio.simulated,
            ratio.real,
            ratio.agreement(),
            if ratio.has_same_order() {
                ""
            } else {
                "  OTHER ORDER"
            }
        ));
    }
    let (all, alike, ordered) = summary(ratios);
    line(format!(
        "\nof {all} ratios between policies {alike} are within {:.0} % of the simulator's; {ordered} have its order",
        ALIKE * 100.0
    ));
    out
}

fn json(args: &RackArgs, compared: &[Compared], ratios: &[Ratio]) -> Value {
    let row = |Compared { simulated, real }: &Compared| {
        json!({
            "policy": real.policy, "workload": real.workload, "parameters": real.parameters,
            "simulated": simulated.to_json(), "real": real.to_json(),
        })
    };
    let ratio = |ratio: &Ratio| {
        json!({
            "reference": ratio.reference, "policy": ratio.policy, "workload": ratio.workload,
            "parameters": ratio.parameters, "read": ratio.figure, "simulated": ratio.simulated, "real": ratio.real,
            "agreement": ratio.agreement(), "alike": ratio.is_alike(), "same_order": ratio.has_same_order(),
            "shown": is_shown(ratio, ratios),
        })
    };
    let (all, alike, ordered) = summary(ratios);
    json!({
        "experiment": args.experiment, "seed": args.seed, "rounds": args.rounds, "machine": machine::about(),
        "rows": compared.iter().map(row).collect::<Vec<_>>(),
        "ratios": ratios.iter().map(ratio).collect::<Vec<_>>(),
        "alike_percent_max": ALIKE * 100.0, "ratios_count": all, "alike_count": alike, "same_order_count": ordered,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use flash::Geometry;
    use sim::eval::{Hardware, System, Workload};

    fn args(experiment: &str) -> RackArgs {
        RackArgs {
            experiment: experiment.to_owned(),
            policy: Vec::new(),
            workload: Vec::new(),
            requests: None,
            warm: None,
            slower: None,
            rounds: 1,
            seed: 1,
            json: false,
        }
    }

    #[test]
    fn what_runs_by_default_is_in_its_experiment_and_is_fair() {
        for experiment in EXPERIMENTS {
            let args = args(experiment.name);
            let cases = cases(&args).expect("the default is known");
            assert!(cases.len() >= 3, "{}", experiment.name);
            let slower = experiment.slower > 1;
            assert!(
                cases
                    .iter()
                    .all(|case| case.parameters.contains_key("slower") == slower)
            );
            let plan = Plan {
                name: experiment.name,
                cases,
            };
            assert!(plan.is_fair(), "{}", experiment.name);
        }
    }

    #[test]
    fn names_that_an_experiment_does_not_have_are_refused_with_those_that_it_has() {
        let refusal = |change: fn(&mut RackArgs)| {
            let mut args = args("fig17");
            change(&mut args);
            cases(&args).expect_err("it is refused").to_string()
        };
        assert!(refusal(|args| args.experiment = "fig22".to_owned()).contains("fig17, fig18"));
        assert!(refusal(|args| args.policy = vec!["vdc".to_owned()]).contains("kyber+coordination"));
        assert!(refusal(|args| args.workload = vec!["ycsb".to_owned()]).contains("ycsb-w50"));
        assert!(refusal(|args| args.slower = Some(0)).contains("--slower takes 1 to 1000"));
        assert!(refusal(|args| args.rounds = 0).contains("--rounds takes 1 to 100"));
        assert!(refusal(|args| args.requests = Some(0)).contains("--requests takes 1000 to"));
    }

    /// A rack of the evaluation's shape with little flash.
    fn small(system: System) -> Case {
        let hardware = Hardware {
            pages_per_set: 512,
            geometry: Geometry {
                blocks_per_plane: 16,
                pages_per_block: 8,
                ..Hardware::default().geometry
            },
            ..Hardware::default()
        };
        Case {
            hardware,
            policies: system.policies(),
            workload: Workload {
                warm: 500,
                measured: 1_500,
                ..Workload::writes(0.5, 1_000.0)
            },
            parameters: Map::new(),
            cdf: false,
        }
    }

    /// Not how long anything takes, which is this machine's, but that every request is answered and what it costs the flash.
    #[test]
    fn a_real_rack_does_what_the_simulated_one_does() {
        for system in System::ALL {
            let case = small(system);
            let (simulated, real) = (case.run(1), emulated::measure(&case, 1).expect("it runs"));
            let counts = |row: &Row| (row.policy.clone(), row.read.count, row.write.count);
            assert_eq!(counts(&simulated), counts(&real), "equal clients");
            // Each has half of the delay of a link on its way and back, and the flash's time: less is impossible.
            assert!(real.read.p50_us > 0.5 * simulated.read.p50_us, "{real:?}");
            let wear = real.write_amplification / simulated.write_amplification;
            assert!((0.7..1.4).contains(&wear), "{simulated:?} {real:?}");
        }
    }

    fn row(policy: &str, p99_us: f64) -> Row {
        let row = small(System::Vdc);
        let figures = Percentiles {
            count: 1,
            mean_us: 1.0,
            p50_us: 1.0,
            p95_us: 1.0,
            p99_us,
            p999_us: 1.0,
            p9999_us: 1.0,
        };
        Row {
            policy: policy.to_owned(),
            workload: row.workload.name,
            parameters: Map::new(),
            made_with: Map::new(),
            read: figures,
            write: figures,
            iops: 1.0,
            write_amplification: 1.0,
            more: Map::new(),
        }
    }

    #[test]
    fn ratios_say_how_far_the_worlds_are_apart_and_whether_they_agree_who_is_faster() {
        let compared = |policy, simulated, real| Compared {
            simulated: row(policy, simulated),
            real: row(policy, real),
        };
        let of = |simulated: [f64; 2], real: [f64; 2]| {
            let rows = [
                compared("kyber", simulated[0], real[0]),
                compared("kyber+coordination", simulated[1], real[1]),
            ];
            let mut ratios = ratios(&rows);
            ratios.retain(|ratio| ratio.figure == "p99");
            assert_eq!(ratios.len(), 1);
            ratios.remove(0)
        };
        let ratio = of([20.0, 10.0], [50.0, 20.0]);
        assert_eq!((ratio.simulated, ratio.real, ratio.agreement()), (2.0, 2.5, 1.25));
        assert!(ratio.is_alike() && ratio.has_same_order());
        let ratio = of([20.0, 10.0], [10.0, 10.5]);
        assert!(!ratio.is_alike() && !ratio.has_same_order());
        // No order in the simulator, none to be missed.
        let ratio = of([10.0, 10.5], [10.0, 9.0]);
        assert!(ratio.is_alike() && ratio.has_same_order());
    }

    #[test]
    fn a_scheduler_is_shown_beside_itself_without_coordination_and_others_beside_the_first() {
        let compared: Vec<Compared> = ["fifo", "kyber", "kyber+coordination"]
            .map(|policy| Compared {
                simulated: row(policy, 1.0),
                real: row(policy, 1.0),
            })
            .into();
        let ratios = ratios(&compared);
        let shown = ratios
            .iter()
            .filter(|ratio| ratio.figure == "p99" && is_shown(ratio, &ratios));
        let shown: Vec<_> = shown.map(|ratio| (&*ratio.reference, &*ratio.policy)).collect();
        assert_eq!(shown, [("fifo", "kyber"), ("kyber", "kyber+coordination")]);
    }

    #[test]
    fn the_median_of_rows_is_that_of_every_number() {
        let mut rows = [row("vdc", 3.0), row("vdc", 1.0), row("vdc", 2.0)];
        for (row, cpu) in rows.iter_mut().zip([30, 10, 20]) {
            row.more.insert("cpu_percent".to_owned(), json!(cpu));
        }
        let median = median_row(&rows);
        assert_eq!(
            (median.read.p99_us, &median.more["cpu_percent"]),
            (2.0, &json!(20.0))
        );
    }
}

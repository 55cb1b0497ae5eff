//! The papers' numbers beside ours, and the targets of this project. All of ours
//! is computed from the tables; the papers' numbers are written down here, with where they stand.

use super::number::{exact, plain};
use super::table::{Line, Table};
use crate::eval::pairs::MATCHES;
use core::fmt;
use serde_json::{Value, json};

/// A number of a paper.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Paper {
    /// The number.
    pub value: f64,
    /// Its computation, if the paper states it.
    pub of: &'static str,
    /// Its place in the paper.
    pub source: &'static str,
}

/// Goal of a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// This or more.
    AtLeast(f64),
    /// This or less.
    AtMost(f64),
}

impl Goal {
    fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtLeast(least) => value >= least,
            Self::AtMost(most) => value <= most,
        }
    }

    /// For people.
    pub fn text(self) -> String {
        match self {
            Self::AtLeast(least) => format!("≥ {}", plain(least)),
            Self::AtMost(most) => format!("≤ {}", plain(most)),
        }
    }
}

/// A number that a figure is about.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// Its subject.
    pub what: String,
    /// Its value in this run; not a number if the run has none.
    pub ours: f64,
    /// Where in the figure, and of what numbers.
    pub place: String,
    /// Its value in the paper.
    pub paper: Option<Paper>,
    /// Its target.
    pub target: Option<Goal>,
}

impl Claim {
    fn new(what: &str, found: Found) -> Self {
        Self {
            what: what.to_owned(),
            ours: found.value,
            place: found.place,
            paper: None,
            target: None,
        }
    }

    fn paper(self, value: f64, of: &'static str, source: &'static str) -> Self {
        let paper = Some(Paper { value, of, source });
        Self { paper, ..self }
    }

    fn at_least(self, least: f64) -> Self {
        let target = Some(Goal::AtLeast(least));
        Self { target, ..self }
    }

    fn at_most(self, most: f64) -> Self {
        let target = Some(Goal::AtMost(most));
        Self { target, ..self }
    }

    /// Whether the target is met, if there is one and the run tells.
    pub fn is_met(&self) -> Option<bool> {
        let target = self.target.filter(|_| self.ours.is_finite())?;
        Some(target.is_met(self.ours))
    }

    /// For people: what became of the target.
    pub fn verdict(&self) -> &'static str {
        match self.is_met() {
            Some(true) => "met",
            Some(false) => "falls short",
            None if self.target.is_some() => "not told",
            None => "",
        }
    }

    /// Ours over the paper's, if the paper has a number.
    pub fn over_paper(&self) -> Option<f64> {
        Some(self.ours / self.paper?.value)
    }

    /// As JSON.
    pub fn to_json(&self) -> Value {
        let paper = self
            .paper
            .map(|Paper { value, of, source }| json!({ "value": value, "of": of, "source": source }));
        json!({
            "what": self.what,
            "ours": self.ours,
            "place": self.place,
            "paper": paper,
            "ours_over_paper": self.over_paper(),
            "target": self.target.map(Goal::text),
            "verdict": self.verdict(),
        })
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let target = self.target.map_or_else(String::new, Goal::text);
        write!(
            f,
            "{:<11} {:>8} {target:<7} {}",
            self.verdict(),
            exact(self.ours),
            self.what
        )?;
        if !self.place.is_empty() {
            write!(f, " ({})", self.place)?;
        }
        match self.paper {
            Some(paper) => write!(f, "; the paper: {}", plain(paper.value)),
            None => Ok(()),
        }
    }
}

/// A number, and where it was found.
struct Found {
    value: f64,
    place: String,
}

impl Found {
    const NOTHING: Self = Self {
        value: f64::NAN,
        place: String::new(),
    };
}

/// Which of several ratios is taken.
#[derive(Clone, Copy)]
enum Extreme {
    Largest,
    Smallest,
    /// The one that is farthest from 1.
    Farthest,
}

/// The most extreme ratio of a column between two policies, over all groups that `take` accepts.
fn extreme(
    table: &Table,
    column: &str,
    [above, below]: [&str; 2],
    which: Extreme,
    take: &dyn Fn(&str) -> bool,
) -> Found {
    let key = |ratio: f64| match which {
        Extreme::Largest => ratio,
        Extreme::Smallest => -ratio,
        Extreme::Farthest => (ratio - 1.0).abs(),
    };
    let ratios = table
        .ratios(column, above, below)
        .into_iter()
        .filter(|(group, _)| take(group));
    let Some((group, value)) = ratios.max_by(|a, b| key(a.1).total_cmp(&key(b.1))) else {
        return Found::NOTHING;
    };
    let number = |policy| {
        table
            .line(policy, &group)
            .map_or(f64::NAN, |line| table.value(line, column))
    };
    let (unit, divisor) = match column {
        column if table.is_of_the_switch() && column.ends_with("_us") => (" µs", 1.0),
        column if column.ends_with("_us") => (" ms", 1e3),
        _ => ("", 1.0),
    };
    let [above, below] = [number(above), number(below)].map(|number| plain(number / divisor));
    Found {
        value,
        place: format!("{group}: {above}{unit} over {below}{unit}"),
    }
}

fn largest(table: &Table, column: &str, pair: [&str; 2]) -> Found {
    extreme(table, column, pair, Extreme::Largest, &|_| true)
}

fn worst(table: &Table, what: &str, pair: [&str; 2]) -> Claim {
    Claim::new(what, extreme(table, "iops", pair, Extreme::Smallest, &|_| true))
}

fn in_group(table: &Table, column: &str, pair: [&str; 2], group: &str) -> Found {
    extreme(table, column, pair, Extreme::Largest, &|other| other == group)
}

fn best(table: &Table, what: &str, column: &str, pair: [&str; 2]) -> Claim {
    Claim::new(what, largest(table, column, pair))
}

const VDC: [&str; 2] = ["vdc", "rackblox"];
const SOFTWARE: [&str; 2] = ["rackblox-software", "rackblox"];
const IDEAL: [&str; 2] = ["switchyard", "ideal"];
const SCHEDULING: [&str; 2] = ["vdc-unshaped", "rackblox-coord-io"];
const OURS: [&str; 2] = ["switchyard", "rackblox"];

/// Claims about this table.
pub fn claims(table: &Table) -> Vec<Claim> {
    match table.name.as_str() {
        "fig9" => sweep(table),
        "fig10" => vec![
            best(table, "P99 of reads, VDC over RackBlox, best", "read_p99_us", VDC)
                .paper(2.1, "5.3 ms over 2.6 ms", "RackBlox §4.2")
                .at_least(2.1),
            best(
                table,
                "P99 of writes, VDC over RackBlox, best",
                "write_p99_us",
                VDC,
            )
            .paper(1.3, "3.7 ms over 2.8 ms", "RackBlox §4.2"),
        ],
        "fig11" => means(table),
        "fig12" => throughput(table),
        "fig13" => applications(table),
        "fig14" => vec![worst(
            table,
            "Throughput, RackBlox over VDC, worst",
            ["rackblox", "vdc"],
        )],
        "fig15" => breakdown(table),
        "fig17" => schedulers(table),
        "fig18" => networks(table),
        "fig21" => isolation(table),
        "fig22" => within_servers(table),
        "fig23" => across_servers(table),
        "predictor" => predictor(table),
        "switch-order" => order(table),
        "fig20" => matches(table),
        _ => Vec::new(),
    }
}

/// Figure 9: the rack against its baselines, and ours against the ideal.
fn sweep(table: &Table) -> Vec<Claim> {
    let up_to_95 = |group: &str| group != "100 %";
    let ideal = |column| extreme(table, column, IDEAL, Extreme::Largest, &up_to_95);
    let mut deviation = extreme(table, "write_amplification", OURS, Extreme::Farthest, &up_to_95);
    deviation.value = (deviation.value - 1.0).abs() * 100.0;
    vec![
        best(
            table,
            "P99.9 of reads, VDC over RackBlox, best",
            "read_p999_us",
            VDC,
        )
        .paper(4.4, "12.4 ms over 2.8 ms", "RackBlox §4.2")
        .at_least(4.4),
        best(
            table,
            "P99.9 of reads, RackBlox (Software) over RackBlox, best",
            "read_p999_us",
            SOFTWARE,
        )
        .paper(1.84, "5.2 ms over 2.8 ms", "RackBlox §4.2")
        .at_least(1.8),
        best(
            table,
            "P99.9 of reads, VDC over RackBlox (Software), best",
            "read_p999_us",
            ["vdc", "rackblox-software"],
        )
        .paper(2.4, "12.4 ms over 5.2 ms", "RackBlox §4.2"),
        best(
            table,
            "P99.9 of writes, VDC over RackBlox, best",
            "write_p999_us",
            VDC,
        )
        .paper(1.4, "4.3 ms over 3.0 ms", "RackBlox §4.2")
        .at_least(1.3),
        Claim::new(
            "P99.9 of reads, switchyard over ideal, 0 to 95 % writes, worst",
            ideal("read_p999_us"),
        )
        .paper(1.5, "0.97 to 1.5 on eight workloads", "IODA (SOSP'21)")
        .at_most(1.1),
        Claim::new(
            "P99.99 of reads, switchyard over ideal, 0 to 95 % writes, worst",
            ideal("read_p9999_us"),
        )
        .paper(2.0, "0.7 to 2.0 on eight workloads", "IODA (SOSP'21)")
        .at_most(2.0),
        Claim::new(
            "Write amplification, switchyard beside RackBlox, 0 to 95 % writes: difference in %, worst",
            deviation,
        )
        .at_most(5.0),
    ]
}

/// Figure 11: co-design does not cost the average.
fn means(table: &Table) -> Vec<Claim> {
    let of = |kind: &str| {
        let column = format!("{kind}_mean_us");
        let what = format!("Mean of {kind}s, RackBlox over VDC, worst");
        best(table, &what, &column, ["rackblox", "vdc"]).at_most(1.02)
    };
    vec![of("read"), of("write")]
}

/// Figure 12: nor throughput.
fn throughput(table: &Table) -> Vec<Claim> {
    let (rackblox, ours) = (
        "Throughput of closed loops, RackBlox over VDC, worst",
        "Throughput of closed loops, switchyard over RackBlox, worst",
    );
    vec![
        worst(table, rackblox, ["rackblox", "vdc"]).at_least(0.98),
        worst(table, ours, OURS).at_least(0.95),
    ]
}

/// Figure 13, and whence the gains come.
fn applications(table: &Table) -> Vec<Claim> {
    let gain = |app: &str, pair| in_group(table, "read_p999_us", pair, app);
    let split = |app: &str, scheduling_first: bool| {
        let scheduling = gain(app, SCHEDULING).value;
        let collection = gain(app, ["rackblox-coord-io", "rackblox"]).value;
        let value = match scheduling_first {
            true => scheduling / collection,
            false => collection / scheduling,
        };
        Found {
            value,
            place: format!("scheduling {scheduling:.3}×, collection in turns {collection:.3}×"),
        }
    };
    vec![
        best(
            table,
            "P99.9 of reads, VDC over RackBlox, best",
            "read_p999_us",
            VDC,
        )
        .paper(7.9, "23.8 ms over 3.0 ms", "RackBlox §4.3")
        .at_least(7.9),
        best(table, "P99 of reads, VDC over RackBlox, best", "read_p99_us", VDC).paper(
            2.9,
            "8.1 ms over 2.8 ms",
            "RackBlox §4.3",
        ),
        Claim::new(
            "TPC-H, P99.9 of reads, scheduling alone: VDC without its shares over Coord-I/O",
            gain("tpc-h", SCHEDULING),
        )
        .paper(1.23, "at most, with YCSB", "RackBlox §4.4")
        .at_least(1.05),
        Claim::new(
            "TPC-H, P99.9 of reads: scheduling's gain over that of collection",
            split("tpc-h", true),
        )
        .at_least(1.0),
        Claim::new(
            "Twitter, P99.9 of reads: collection's gain over that of scheduling",
            split("twitter", false),
        )
        .at_least(1.0),
    ]
}

/// Figure 15.
fn breakdown(table: &Table) -> Vec<Claim> {
    vec![
        Claim::new(
            "P99.9 of reads, VDC's shares: VDC over VDC without them, farthest from 1",
            extreme(
                table,
                "read_p999_us",
                ["vdc", "vdc-unshaped"],
                Extreme::Farthest,
                &|_| true,
            ),
        ),
        best(
            table,
            "P99.9 of reads, scheduling alone: VDC without its shares over Coord-I/O, best",
            "read_p999_us",
            SCHEDULING,
        )
        .paper(1.23, "3.9 ms over 3.1 ms", "RackBlox §4.4"),
        best(
            table,
            "P99.9 of writes, scheduling alone: VDC without its shares over Coord-I/O, best",
            "write_p999_us",
            SCHEDULING,
        )
        .paper(1.4, "", "RackBlox §4.4"),
        best(
            table,
            "P99.9 of reads, collection in turns: Coord-I/O over RackBlox, best",
            "read_p999_us",
            ["rackblox-coord-io", "rackblox"],
        )
        .paper(4.3, "", "RackBlox §4.4"),
    ]
}

/// Figure 17.
fn schedulers(table: &Table) -> Vec<Claim> {
    let of = |scheduler: &str, paper, least| {
        let coordinated = format!("{scheduler}+coordination");
        let found = largest(table, "read_p999_us", [scheduler, &coordinated]);
        let what = format!("P99.9 of reads, {scheduler} by arrival over coordinated, best");
        Claim::new(&what, found)
            .paper(paper, "", "RackBlox §4.5.1")
            .at_least(least)
    };
    // Where a scheduler's reads gain most, what becomes of the writes beside them.
    let writes = |scheduler: &str| {
        let coordinated = format!("{scheduler}+coordination");
        let pair = [scheduler, coordinated.as_str()];
        let beside = |group: &str| {
            let count = |line: &Line| table.value(line, "write_p999_us");
            table.line(scheduler, group).map_or(f64::NAN, count).is_finite()
        };
        let gains = table.ratios("read_p999_us", pair[0], pair[1]).into_iter();
        let best = gains
            .filter(|(group, _)| beside(group))
            .max_by(|a, b| a.1.total_cmp(&b.1));
        let found = best.map_or(Found::NOTHING, |(best, _)| {
            extreme(table, "write_p999_us", pair, Extreme::Smallest, &|group| {
                group == best
            })
        });
        Claim::new(
            &format!(
                "P99.9 of writes, {scheduler} by arrival over coordinated, where its reads gain most beside writes"
            ),
            found,
        )
    };
    vec![
        of("fifo", 1.5, 1.4),
        writes("fifo"),
        of("deadline", 1.36, 1.25),
        writes("deadline"),
        of("kyber", 1.24, 1.2),
        writes("kyber"),
    ]
}

/// Figure 18: ratios of the means over all shares of writes.
fn networks(table: &Table) -> Vec<Claim> {
    let mean = |network: &str, policy: &str| {
        let lines = table
            .lines
            .iter()
            .filter(|line| line.policy == policy && line.text("network") == Some(network));
        let values: Vec<f64> = lines
            .map(|line| table.value(line, "read_p999_us") / 1e3)
            .collect();
        values.iter().sum::<f64>() / values.len() as f64
    };
    let of = |network: &str| {
        let [fifo, coordinated] = ["fifo", "coordinated"].map(|policy| mean(network, policy));
        let found = Found {
            value: fifo / coordinated,
            place: format!("{} ms over {} ms", plain(fifo), plain(coordinated)),
        };
        let what = format!("Mean of reads' P99.9, by arrival over coordinated, network policy {network}");
        Claim::new(&what, found)
    };
    vec![
        of("fair").paper(1.21, "", "RackBlox §4.5.2").at_least(1.15),
        of("priority").paper(1.15, "", "RackBlox §4.5.2").at_least(1.15),
        of("token-bucket"),
        of("fifo"),
    ]
}

/// Figure 21.
fn isolation(table: &Table) -> Vec<Claim> {
    let of = |isolation: &str, paper, least| {
        let found = in_group(table, "read_p999_us", VDC, isolation);
        let what = format!("P99.9 of reads, {isolation}-isolated, VDC over RackBlox");
        Claim::new(&what, found)
            .paper(paper, "", "RackBlox §4.5.4")
            .at_least(least)
    };
    vec![of("software", 1.47, 1.45), of("hardware", 1.51, 1.5)]
}

/// The longest of the paper's periods: from then on all balancers have looked at the rack.
const SWAPS_BEGUN_DAY: f64 = 56.0;

/// The largest value of a balancer's column from some day on.
fn worst_after(table: &Table, policy: &str, column: &str, day: f64) -> Found {
    let days = table.lines.iter().filter(|line| line.policy == policy);
    let days = days.filter_map(|line| Some((line.parameter("day")?, table.value(line, column))));
    let worst = days
        .filter(|(at, _)| *at >= day)
        .max_by(|a, b| a.1.total_cmp(&b.1));
    worst.map_or(Found::NOTHING, |(at, value)| Found {
        value,
        place: format!("day {at:.0}"),
    })
}

fn lambda(table: &Table, policy: &str, what: &str, column: &str) -> Claim {
    let what = format!("λ {what}, {policy}, worst from day {SWAPS_BEGUN_DAY} on");
    let claim = Claim::new(&what, worst_after(table, policy, column, SWAPS_BEGUN_DAY));
    if policy == "no-swap" {
        return claim;
    }
    claim.paper(1.1, "1 + γ with γ = 0.1", "RackBlox §3.6")
}

fn lifetime(table: &Table) -> Claim {
    let found = worst_after(table, "switchyard", "lifetime_percent", 0.0);
    Claim::new(
        "Lifetime that exchanges cost the SSD in most of them, switchyard, %",
        found,
    )
    .at_most(0.6)
}

/// Figure 22.
fn within_servers(table: &Table) -> Vec<Claim> {
    let within = |policy| lambda(table, policy, "within the worst server", "lambda_within_max");
    vec![
        within("switchyard").at_most(1.1),
        within("rackblox"),
        within("no-swap"),
        lifetime(table),
    ]
}

/// Figure 23.
fn across_servers(table: &Table) -> Vec<Claim> {
    let within = |policy| lambda(table, policy, "within the worst server", "lambda_within_max");
    let across = |policy| lambda(table, policy, "across servers", "lambda_across");
    vec![
        within("switchyard").at_most(1.1),
        across("switchyard").at_most(1.1),
        across("rackblox"),
        across("no-swap"),
        lifetime(table),
    ]
}

fn predictor(table: &Table) -> Vec<Claim> {
    let of = |policy: &str, workload: &str| {
        let line = table.line(policy, workload);
        let found = Found {
            value: line.map_or(f64::NAN, |line| table.value(line, "within_25us_percent")),
            place: String::new(),
        };
        let workload = workload.replace('-', " ");
        let what = format!("Predictions within 25 µs, {policy}, {workload}, %");
        Claim::new(&what, found).paper(95.0, "", "RackBlox §3.4")
    };
    vec![
        of("switchyard", "next-packet").at_least(95.0),
        of("mean-of-100", "next-packet"),
        of("switchyard", "way-back-of-16-clients"),
        of("mean-of-100", "way-back-of-16-clients"),
    ]
}

/// Figure 20: on which network RackBlox gains most with a device, in the workload where that is least clear.
fn matches(table: &Table) -> Vec<Claim> {
    let ratios = table.ratios("read_p999_us", "vdc", "rackblox");
    let lines = || {
        ratios
            .iter()
            .filter_map(|(group, gain)| Some((table.line("vdc", group)?, *gain)))
    };
    let mut workloads: Vec<&str> = lines().map(|(line, _)| line.workload.as_str()).collect();
    workloads.sort_unstable();
    workloads.dedup();
    let gain = |workload: &str, device: &str, network: &str| {
        let is_it = |line: &Line| {
            line.workload == workload
                && line.text("device") == Some(device)
                && line.text("network") == Some(network)
        };
        let mut found = lines().filter(|(line, _)| is_it(line));
        found.next().map_or(f64::NAN, |(_, gain)| gain)
    };
    let claim = |(device, matching): (&str, &str)| {
        let lead = |workload: &&str| {
            let row = MATCHES.map(|(_, network)| (network, gain(workload, device, network)));
            let column = MATCHES.map(|(device, _)| (device, gain(workload, device, matching)));
            let others = row.iter().filter(|(network, _)| *network != matching);
            let others = others.chain(column.iter().filter(|(other, _)| *other != device));
            let best = others.map(|(_, gain)| *gain).fold(f64::NAN, f64::max);
            let texts = row.map(|(network, gain)| format!("{network} {gain:.2}×"));
            Found {
                value: gain(workload, device, matching) / best,
                place: format!("{workload}: {}", texts.join(", ")),
            }
        };
        let worst = workloads
            .iter()
            .map(lead)
            .min_by(|a, b| a.value.total_cmp(&b.value));
        let found = worst.unwrap_or(Found::NOTHING);
        Claim::new(
            &format!(
                "{device} on the {matching} network: RackBlox's gain over VDC, over that of the best other pair of either, worst workload"
            ),
            found,
        )
        .at_least(1.0)
    };
    MATCHES.into_iter().map(claim).collect()
}

/// The host block switch: what the published results say, and the order of its steps.
fn order(table: &Table) -> Vec<Claim> {
    const MIXED: &str = "mixed";
    let tail = |pair: [&str; 2]| in_group(table, "l_p99_us", pair, MIXED);
    let bulk = |pair: [&str; 2]| in_group(table, "t_gb_per_s", pair, MIXED);
    let step = |pair: [&str; 2]| {
        let what = format!("{MIXED}: P99 of L, {} over {}", pair[0], pair[1]);
        Claim::new(&what, tail(pair)).at_least(1.0)
    };
    let value = |case| {
        let line = table.line("switchyard", case);
        line.map_or(f64::NAN, |line| table.value(line, "t_gb_per_s"))
    };
    let [six, sixteen] = [value("QD32") / 6.0, value("16C") / 16.0];
    let scaled = Found {
        value: sixteen / six,
        place: format!("{} GB/s over {} GB/s a core", plain(sixteen), plain(six)),
    };
    vec![
        Claim::new(
            "mixed: P99 of L, linux over blk-switch",
            tail(["linux", "+P+RS+AS"]),
        )
        .paper(24.0, "up to", "blk-switch (OSDI'21), after secondary notes")
        .at_least(24.0),
        Claim::new(
            "mixed: throughput of T, blk-switch over linux",
            bulk(["+P+RS+AS", "linux"]),
        )
        .paper(0.84, "0.84 to 1", "blk-switch (OSDI'21), after secondary notes")
        .at_least(0.84),
        Claim::new(
            "mixed: throughput of T, switchyard over blk-switch",
            bulk(["switchyard", "+P+RS+AS"]),
        )
        .at_least(1.0),
        step(["linux", "+P"]),
        step(["+P", "+P+RS"]),
        step(["+P+RS", "+P+RS+AS"]),
        step(["+P+RS+AS", "switchyard"]),
        Claim::new("QD32, T's throughput a core, switchyard: 16 cores over 6", scaled),
        Claim::new(
            "16 cores: P99 of L, linux over switchyard",
            in_group(table, "l_p99_us", ["linux", "switchyard"], "16C"),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::table::tests::made;
    use super::*;

    #[test]
    fn a_target_is_met_or_not_or_not_told() {
        let claim = |ours| {
            Claim::new(
                "x",
                Found {
                    value: ours,
                    place: String::new(),
                },
            )
            .paper(4.0, "", "§1")
            .at_least(2.0)
        };
        assert_eq!(claim(2.0).verdict(), "met");
        assert_eq!(
            (claim(1.9).verdict(), claim(1.0).over_paper()),
            ("falls short", Some(0.25))
        );
        assert_eq!(
            (
                claim(f64::NAN).verdict(),
                claim(f64::NAN).to_json()["ours"].is_null()
            ),
            ("not told", true)
        );
        assert_eq!(claim(1.0).at_most(1.0).verdict(), "met");
    }

    #[test]
    fn claims_are_what_the_tables_rows_say() {
        let mut table = made("fig22");
        let named = |table: &Table, what: &str| -> Claim {
            let mut all = claims(table).into_iter();
            all.find(|claim| claim.what.contains(what))
                .expect("it is claimed")
        };
        assert_eq!(named(&table, "switchyard, worst").verdict(), "met");
        let at = table
            .columns
            .iter()
            .position(|column| column == "lambda_within_max")
            .unwrap();
        let late = table
            .lines
            .iter_mut()
            .find(|line| line.policy == "switchyard" && line.parameter("day") == Some(365.0));
        late.unwrap().values[at] = 1.25;
        let claim = named(&table, "switchyard, worst");
        assert_eq!(
            (claim.ours, claim.verdict(), claim.place.as_str()),
            (1.25, "falls short", "day 365")
        );
        let early = table
            .lines
            .iter_mut()
            .find(|line| line.policy == "switchyard" && line.parameter("day") == Some(12.0));
        early.unwrap().values[at] = 9.0;
        assert_eq!(
            named(&table, "switchyard, worst").ours,
            1.25,
            "before swaps begin nothing is claimed"
        );
    }

    #[test]
    fn a_device_is_matched_with_the_network_where_the_gain_is_largest() {
        let mut table = made("fig22");
        table.name = "fig20".to_owned();
        table.columns[0] = "read_p999_us".to_owned();
        let mut lines = Vec::new();
        for (device, best) in [("optane", "fast"), ("intel-dc", "medium"), ("p-ssd", "fast")] {
            for network in ["fast", "medium", "slow"] {
                for policy in ["vdc", "rackblox"] {
                    let mut line = table.lines[0].clone();
                    line.policy = policy.to_owned();
                    line.parameters = [("device", device), ("network", network)]
                        .map(|(k, v)| (k.to_owned(), v.into()))
                        .into_iter()
                        .collect();
                    line.values[0] = if policy == "vdc" && network == best {
                        3.0
                    } else {
                        1.0
                    };
                    lines.push(line);
                }
            }
        }
        table.lines = lines;
        table.regroup();
        let verdicts: Vec<_> = claims(&table)
            .iter()
            .map(|claim| (claim.ours, claim.verdict()))
            .collect();
        assert_eq!(verdicts, [(1.0, "met"), (3.0, "met"), (1.0 / 3.0, "falls short")]);
    }
}

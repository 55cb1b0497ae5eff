//! What the figures are meant to show, computed from their rows: RackBlox's gains as its paper reports them (SOSP'23 §4),
//! and ours beside the ideal. Each has the bound that we want it to meet; one that fails is told, not hidden.

use super::{Figure, Row, System, netsched, pairs, schedulers};
use serde_json::{Value, json};

/// Where a value should be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// Not below.
    AtLeast(f64),
    /// Not above.
    AtMost(f64),
}

/// A claim, and the value that it has here.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// What the value is.
    pub about: String,
    /// Computed from the rows; not a number, which fails, if they lack what it takes.
    pub value: f64,
    /// Where it should be.
    pub bound: Bound,
}

impl Check {
    fn new(about: &str, value: f64, bound: Bound) -> Self {
        Self {
            about: about.to_owned(),
            value,
            bound,
        }
    }

    /// True if the value is where it should be.
    pub fn holds(&self) -> bool {
        match self.bound {
            Bound::AtLeast(least) => self.value >= least,
            Bound::AtMost(most) => self.value <= most,
        }
    }

    /// As JSON: `check`, `value`, `at_least` or `at_most`, `holds`.
    pub fn to_json(&self) -> Value {
        let (name, bound) = match self.bound {
            Bound::AtLeast(least) => ("at_least", least),
            Bound::AtMost(most) => ("at_most", most),
        };
        json!({ "check": self.about, "value": self.value, name: bound, "holds": self.holds() })
    }
}

impl core::fmt::Display for Check {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let verdict = if self.holds() { "ok" } else { "MISSED" };
        let (sign, bound) = match self.bound {
            Bound::AtLeast(least) => (">=", least),
            Bound::AtMost(most) => ("<=", most),
        };
        write!(f, "{verdict:6}  {:.3} {sign} {bound}  {}", self.value, self.about)
    }
}

/// The checks of a plan's figure, by the plan's name; none for most.
pub(super) fn of(figure: &Figure) -> Vec<Check> {
    match figure.experiment.as_str() {
        "ycsb-sweep" => [against_vdc(figure), against_ideal(figure)].concat(),
        "fig12" => vec![throughput(figure)],
        "applications" => applications(figure),
        "fig17" => [("fifo", 1.4), ("deadline", 1.25), ("kyber", 1.2)]
            .map(|(scheduler, least)| {
                let gains: Vec<f64> = schedulers::gains(figure, scheduler)
                    .iter()
                    .map(|gain| gain.1)
                    .collect();
                let about = format!("read P99.9, {scheduler} by arrival / coordinated, best share of writes");
                Check::new(&about, most(&gains), Bound::AtLeast(least))
            })
            .to_vec(),
        "fig18" => ["fair", "priority"]
            .map(|network| {
                let about =
                    format!("read P99.9, fifo / coordinated, {network} network, mean over shares of writes");
                Check::new(&about, netsched::gain(figure, network), Bound::AtLeast(1.15))
            })
            .to_vec(),
        "fig20" => matches(figure),
        "fig21" => [("software", 1.45), ("hardware", 1.5)]
            .map(|(isolation, least)| {
                let of = |row: &Row| match row.parameters["isolation"] == isolation {
                    true => row.read.p999_us,
                    false => f64::NAN,
                };
                let about = format!("read P99.9, vdc / rackblox, {isolation}-isolated");
                Check::new(
                    &about,
                    most(&ratios(figure, System::Vdc, System::RackBlox, of)),
                    Bound::AtLeast(least),
                )
            })
            .to_vec(),
        _ => Vec::new(),
    }
}

/// Finite ratios of what two systems' rows of equal workload and parameters have.
fn ratios(figure: &Figure, over: System, under: System, of: impl Fn(&Row) -> f64) -> Vec<f64> {
    let other = |row: &Row| {
        let same = |other: &&Row| {
            other.policy == under.name()
                && other.workload == row.workload
                && other.parameters == row.parameters
        };
        figure.rows.iter().find(same)
    };
    let rows = figure.rows.iter().filter(|row| row.policy == over.name());
    rows.filter_map(|row| Some(of(row) / of(other(row)?)))
        .filter(|ratio| ratio.is_finite())
        .collect()
}

fn most(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NAN, f64::max)
}

fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NAN, f64::min)
}

fn throughput(figure: &Figure) -> Check {
    let ratios = ratios(figure, System::RackBlox, System::Vdc, |row| row.iops);
    Check::new(
        "requests a second, rackblox / vdc, worst share of writes",
        least(&ratios),
        Bound::AtLeast(0.98),
    )
}

/// Figure 13, and whence the gains of its first and last application come.
fn applications(figure: &Figure) -> Vec<Check> {
    use System::{RackBlox, RackBloxCoordIo, Vdc};
    let p999: fn(&Row) -> f64 = |row| row.read.p999_us;
    let best = most(&ratios(figure, Vdc, RackBlox, p999));
    let gain = |app: &str, over, under| {
        let of = |row: &Row| match row.workload == app {
            true => row.read.p999_us,
            false => f64::NAN,
        };
        most(&ratios(figure, over, under, of))
    };
    let scheduling = |app| gain(app, Vdc, RackBloxCoordIo);
    let collection = |app| gain(app, RackBloxCoordIo, RackBlox);
    let check = |about: &str, value, least| Check::new(about, value, Bound::AtLeast(least));
    vec![
        check("read P99.9, vdc / rackblox, best application", best, 7.9),
        check(
            "read P99.9, tpc-h, gain of scheduling alone (vdc / rackblox-coord-io)",
            scheduling("tpc-h"),
            1.05,
        ),
        check(
            "read P99.9, tpc-h, gain of scheduling / gain of collection in turns",
            scheduling("tpc-h") / collection("tpc-h"),
            1.0,
        ),
        check(
            "read P99.9, twitter, gain of collection in turns / gain of scheduling",
            collection("twitter") / scheduling("twitter"),
            1.0,
        ),
    ]
}

fn against_vdc(figure: &Figure) -> Vec<Check> {
    use System::{RackBlox, RackBloxSoftware, Vdc};
    let best = |over, under, of: fn(&Row) -> f64| most(&ratios(figure, over, under, of));
    let p999: fn(&Row) -> f64 = |row| row.read.p999_us;
    let check = |about: &str, value, bound| Check::new(about, value, bound);
    vec![
        check(
            "read P99.9, vdc / rackblox, best share of writes",
            best(Vdc, RackBlox, p999),
            Bound::AtLeast(4.4),
        ),
        check(
            "read P99.9, rackblox-software / rackblox, best share of writes",
            best(RackBloxSoftware, RackBlox, p999),
            Bound::AtLeast(1.8),
        ),
        check(
            "read P99, vdc / rackblox, best share of writes",
            best(Vdc, RackBlox, |row| row.read.p99_us),
            Bound::AtLeast(2.1),
        ),
        check(
            "write P99.9, vdc / rackblox, best share of writes",
            best(Vdc, RackBlox, |row| row.write.p999_us),
            Bound::AtLeast(1.3),
        ),
        check(
            "mean read, rackblox / vdc, worst share of writes",
            best(RackBlox, Vdc, |row| row.read.mean_us),
            Bound::AtMost(1.02),
        ),
        check(
            "mean write, rackblox / vdc, worst share of writes",
            best(RackBlox, Vdc, |row| row.write.mean_us),
            Bound::AtMost(1.02),
        ),
        throughput(figure),
    ]
}

fn against_ideal(figure: &Figure) -> Vec<Check> {
    use System::{Ideal, RackBlox, Switchyard};
    let worst = |under, of: fn(&Row) -> f64| most(&ratios(figure, Switchyard, under, of));
    let slowest = least(&ratios(figure, Switchyard, RackBlox, |row| row.iops));
    let check = |about: &str, value, bound| Check::new(about, value, bound);
    vec![
        check(
            "read P99.9, switchyard / ideal, worst share of writes",
            worst(Ideal, |row| row.read.p999_us),
            Bound::AtMost(1.1),
        ),
        check(
            "read P99.99, switchyard / ideal, worst share of writes",
            worst(Ideal, |row| row.read.p9999_us),
            Bound::AtMost(2.0),
        ),
        check(
            "write amplification, switchyard / rackblox, worst share of writes",
            worst(RackBlox, |row| row.write_amplification),
            Bound::AtMost(1.05),
        ),
        check(
            "requests a second, switchyard / rackblox, worst share of writes",
            slowest,
            Bound::AtLeast(0.95),
        ),
    ]
}

/// Each matching pair's gain over the best other pair with its device or its network, in the worst workload.
fn matches(figure: &Figure) -> Vec<Check> {
    let lead = |at: usize, letter: char| {
        let gains = pairs::gains(figure, &pairs::workload(letter)).unwrap_or([[f64::NAN; 3]; 3]);
        let others = (0..3).filter(|other| *other != at);
        let others = others.flat_map(|other| [gains[at][other], gains[other][at]]);
        gains[at][at] / most(&others.collect::<Vec<f64>>())
    };
    let of = |(at, (device, network)): (usize, (&str, &str))| {
        let about = format!(
            "gain of {device} with the {network} network / best other pair of either, worst workload"
        );
        let leads = pairs::WORKLOADS.map(|letter| lead(at, letter));
        Check::new(&about, least(&leads), Bound::AtLeast(1.0))
    };
    pairs::MATCHES.into_iter().enumerate().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::Percentiles;
    use hdrhistogram::Histogram;
    use serde_json::Map;

    fn row(system: System, percent: u32, read_us: u64, write_us: u64) -> Row {
        let of = |us: u64| {
            let mut histogram = Histogram::<u64>::new(3).expect("three digits are allowed");
            histogram.record(us * 1000).expect("it is in range");
            Percentiles::of(&histogram)
        };
        Row {
            policy: system.name().to_owned(),
            workload: "w".to_owned(),
            parameters: Map::from_iter([("write_percent".to_owned(), json!(percent))]),
            read: of(read_us),
            write: of(write_us),
            iops: 100.0,
            write_amplification: f64::NAN,
            more: Map::new(),
        }
    }

    #[test]
    fn checks_compare_rows_of_equal_parameters_and_tell_what_fails() {
        let mut figure = Figure::new("ycsb-sweep", 1);
        for (percent, vdc_us) in [(20, 9_000), (50, 4_000)] {
            figure.rows.push(row(System::Vdc, percent, vdc_us, 1_200));
            figure.rows.push(row(System::RackBlox, percent, 2_000, 1_000));
        }
        let checks = of(&figure);
        let find = |about: &str| {
            checks
                .iter()
                .find(|check| check.about.starts_with(about))
                .expect("it is checked")
        };
        let reads = find("read P99.9, vdc / rackblox");
        assert!((reads.value - 4.5).abs() < 0.01 && reads.holds(), "{reads}");
        let writes = find("write P99.9, vdc / rackblox");
        assert!((writes.value - 1.2).abs() < 0.01 && !writes.holds(), "{writes}");
        // There is no row of ours.
        let ours = find("read P99.9, switchyard / ideal");
        assert!(ours.value.is_nan() && !ours.holds());
        assert_eq!(ours.to_json()["holds"], json!(false));
    }
}

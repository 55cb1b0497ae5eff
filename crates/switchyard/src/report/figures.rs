//! Drawings of each experiment, as in the papers.

use super::chart::{Chart, Marks, Scale};
use sim::experiment::SWITCH;
use sim::report::number::plain;
use sim::report::table::{Line, Table, distinct};

/// Microseconds in a millisecond; requests in a thousand.
const THOUSAND: f64 = 1e3;

/// True of experiments that are figures, or belong to them.
pub fn is_figure(name: &str) -> bool {
    let numbered = name
        .strip_prefix("fig")
        .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    numbered || name == "predictor" || is_switch(name)
}

/// True of the host block switch's experiments.
pub fn is_switch(name: &str) -> bool {
    name.starts_with(SWITCH)
}

/// Order of figures in the report: the rack's by number, then unnumbered figures, then the block switch's.
pub fn place(name: &str) -> (bool, u32) {
    let number = |name: &str| -> Option<u32> {
        let digits: String = name.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    };
    let plain = name.strip_prefix(SWITCH).unwrap_or(name);
    let number = plain.strip_prefix("fig").and_then(number);
    (is_switch(name), number.unwrap_or(u32::MAX))
}

/// The class of a series' colour: the same system has the same one in all figures.
pub fn colour(series: &str) -> String {
    let (system, part) = series.split_once(", ").unwrap_or((series, ""));
    let colour = match system {
        "vdc" | "no-swap" => "c-red",
        "rackblox-software" | "deadline+coordination" | "spdk" => "c-orange",
        "deadline" | "spdk-priority" | "vdc-unshaped" => "c-orange-light",
        "rackblox-coord-io" | "switchyard-local-only" => "c-pink",
        "rackblox" | "fifo+coordination" | "coordinated" | "blk-switch" | "+P+RS+AS" | "slow" => "c-blue",
        "fifo" | "+P+RS" | "medium" => "c-blue-light",
        "+P" | "fast" => "c-blue-lightest",
        "+P+RS+AS,B=16" => "c-purple",
        "ideal" | "linux" | "mean-of-100" => "c-grey",
        "switchyard" | "kyber+coordination" => "c-green",
        "kyber" | "switchyard-auto" | "switchyard-12-days-8-weeks" => "c-green-light",
        _ => "c-purple",
    };
    match part {
        "server" => format!("{colour} part"),
        _ => colour.to_owned(),
    }
}

/// The column whose ratios between policies the figure is about.
pub fn main_column(table: &Table) -> String {
    let name = match table.name.as_str() {
        name if is_switch(name) => "l_p99_us",
        "fig22" => "lambda_within_max",
        "fig23" => "lambda_across",
        "fig12" | "fig14" => "iops",
        "predictor" => "within_25us_percent",
        _ => match table.parameters.get("shows").and_then(|shows| shows.as_str()) {
            Some("iops") => "iops",
            Some("p99_us") => "read_p99_us",
            Some("mean_us") => "read_mean_us",
            _ => "read_p999_us",
        },
    };
    name.to_owned()
}

/// The charts of a table.
pub fn charts(table: &Table) -> Vec<Chart> {
    let both = |percentile: &str, name: &str, paper: [&[(&str, f64)]; 2]| {
        let of = |kind: &str, said: &str, paper| {
            let column = format!("{kind}_{percentile}_us");
            referring(
                bars(table, &format!("{said}: {name}, ms"), &column, THOUSAND),
                paper,
            )
        };
        vec![of("read", "Reads", paper[0]), of("write", "Writes", paper[1])]
    };
    match table.name.as_str() {
        name if is_switch(name) => switch(table),
        "fig9" => both(
            "p999",
            "P99.9",
            [
                &[("VDC", 12.4), ("Software", 5.2), ("RackBlox", 2.8)],
                &[("VDC", 4.3), ("RackBlox", 3.0)],
            ],
        ),
        "fig10" => both(
            "p99",
            "P99",
            [
                &[("VDC", 5.3), ("RackBlox", 2.6)],
                &[("VDC", 3.7), ("RackBlox", 2.8)],
            ],
        ),
        "fig11" => both("mean", "mean", [&[], &[]]),
        "fig12" | "fig14" => vec![bars(table, "Thousand requests a second", "iops", THOUSAND)],
        "fig13" => both("p999", "P99.9", [&[("VDC", 23.8), ("RackBlox", 3.0)], &[]]),
        "fig15" => breakdown(table),
        "fig18" => by_text(table, "network"),
        "fig19" => devices(table),
        "fig20" => gains(table),
        "fig22" => vec![wear(table, "λ within the worst server", "lambda_within_max")],
        "fig23" => vec![
            wear(table, "λ across servers", "lambda_across"),
            wear(table, "λ over all SSDs", "lambda_ssds"),
        ],
        "predictor" => vec![referring(
            bars(table, "Predictions within 25 µs, %", "within_25us_percent", 1.0),
            &[("", 95.0)],
        )],
        _ => any(table),
    }
}

/// Of a figure that is not known here: what its rows have.
fn any(table: &Table) -> Vec<Chart> {
    if table.lines.iter().any(|line| !line.read_cdf.is_empty()) {
        return table
            .groups()
            .iter()
            .map(|group| distribution(table, group))
            .collect();
    }
    let text_of = |line: &Line| {
        line.parameters
            .iter()
            .find(|(_, value)| value.is_string())
            .map(|(name, _)| name.clone())
    };
    match table.lines.first().and_then(text_of) {
        Some(text) if table.lines.iter().any(|line| line.parameters.len() > 1) => by_text(table, &text),
        _ => vec![bars(table, "Reads: P99.9, ms", "read_p999_us", THOUSAND)],
    }
}

/// Grouped bars of a column, divided by `unit`.
fn bars(table: &Table, title: &str, column: &str, unit: f64) -> Chart {
    let groups = table.groups();
    let values = |policy: &String| -> Vec<f64> {
        let value = |group: &String| {
            table
                .line(policy, group)
                .map_or(f64::NAN, |line| table.value(line, column) / unit)
        };
        groups.iter().map(value).collect()
    };
    let series = table.policies().into_iter().map(|policy| {
        let values = values(&policy);
        (policy, values)
    });
    Chart {
        title: title.to_owned(),
        across: across(&table.lines),
        scale: Scale::Linear,
        marks: Marks::Bars {
            series: series.collect(),
            groups: groups.clone(),
        },
        references: Vec::new(),
        reach: 0.0,
    }
}

/// RackBlox's distributions with each device, a line for each network.
fn devices(table: &Table) -> Vec<Chart> {
    let of = |device: String| {
        let mut part = table.clone();
        part.lines.retain(|line| line.text("device") == Some(&device));
        for line in &mut part.lines {
            line.policy = line.text("network").unwrap_or_default().to_owned();
            line.group.clone_from(&device);
        }
        distribution(&part, &device)
    };
    texts(table, "device").into_iter().map(of).collect()
}

/// RackBlox's gain over VDC by device and network, a chart for each workload.
fn gains(table: &Table) -> Vec<Chart> {
    let mut charts = Vec::new();
    for workload in distinct(table.lines.iter().map(|line| line.workload.clone())) {
        let mut part = table.clone();
        part.lines.retain(|line| line.workload == workload);
        part.regroup();
        let gains = part.ratios("read_p999_us", "vdc", "rackblox");
        part.lines.retain(|line| line.policy == "rackblox");
        let at = part.column_of("gain");
        for line in &mut part.lines {
            let gain = gains.iter().find(|(group, _)| *group == line.group);
            line.values[at] = gain.map_or(f64::NAN, |(_, gain)| *gain);
            line.policy = line.text("network").unwrap_or_default().to_owned();
            line.parameters.remove("network");
        }
        part.regroup();
        charts.push(bars(
            &part,
            &format!("{workload}: P99.9 of reads, VDC over RackBlox"),
            "gain",
            1.0,
        ));
    }
    let reach = charts.iter().flat_map(Chart::heights).fold(0.0, f64::max);
    charts.iter_mut().for_each(|chart| chart.reach = reach);
    charts
}

/// Groups of these rows.
fn across(lines: &[Line]) -> String {
    let names = lines.first().map(|line| line.parameters.keys());
    let names = names.into_iter().flatten().map(|name| match name.as_str() {
        "write_percent" => "share of writes".to_owned(),
        other => other.replace('_', " "),
    });
    names.collect::<Vec<_>>().join(", ")
}

fn referring(mut chart: Chart, paper: &[(&str, f64)]) -> Chart {
    let named = |(name, value): &(&str, f64)| (format!("paper: {name} {}", plain(*value)), *value);
    chart.references = paper.iter().map(named).collect();
    chart
}

/// All values of a parameter that is a text.
fn texts(table: &Table, parameter: &str) -> Vec<String> {
    distinct(
        table
            .lines
            .iter()
            .filter_map(|line| line.text(parameter).map(str::to_owned)),
    )
}

/// P99.9 of reads, a chart for each value of a parameter, all as high.
fn by_text(table: &Table, parameter: &str) -> Vec<Chart> {
    let mut charts: Vec<Chart> = Vec::new();
    for value in texts(table, parameter) {
        let mut part = table.clone();
        part.lines.retain(|line| line.text(parameter) == Some(&value));
        for line in &mut part.lines {
            line.parameters.remove(parameter);
        }
        part.regroup();
        charts.push(bars(
            &part,
            &format!("Reads, {value}: P99.9, ms"),
            "read_p999_us",
            THOUSAND,
        ));
    }
    let reach = charts.iter().flat_map(Chart::heights).fold(0.0, f64::max);
    charts.iter_mut().for_each(|chart| chart.reach = reach);
    charts
}

/// Reads' latency in the server, beside that in all.
fn breakdown(table: &Table) -> Vec<Chart> {
    let mut reads = bars(
        table,
        "Reads: P99.9 in the server (pale) and in all, ms",
        "read_p999_us",
        THOUSAND,
    );
    let stored = bars(table, "", "storage_read_p999_us", THOUSAND);
    if let (Marks::Bars { series, .. }, Marks::Bars { series: stored, .. }) = (&mut reads.marks, stored.marks)
    {
        let pair = |(total, (name, stored)): ((String, Vec<f64>), (String, Vec<f64>))| {
            [
                (format!("{name}, server"), stored),
                (format!("{name}, all"), total.1),
            ]
        };
        *series = std::mem::take(series)
            .into_iter()
            .zip(stored)
            .flat_map(pair)
            .collect();
    }
    vec![reads, bars(table, "Writes: P99.9, ms", "write_p999_us", THOUSAND)]
}

/// The share of reads that are no slower.
fn distribution(table: &Table, group: &str) -> Chart {
    let lines = table.lines.iter().filter(|line| line.group == group);
    let series = lines.map(|line| {
        let points = line.read_cdf.iter().map(|(share, us)| (us / THOUSAND, *share));
        (line.policy.clone(), points.collect())
    });
    Chart {
        title: format!("Reads, {group}: share that is no slower"),
        across: "ms".to_owned(),
        scale: Scale::Nines,
        marks: Marks::Lines {
            scale: Scale::Logarithmic,
            series: series.collect(),
        },
        references: Vec::new(),
        reach: 0.0,
    }
}

fn wear(table: &Table, title: &str, column: &str) -> Chart {
    let series = table.policies().into_iter().map(|policy| {
        let lines = table.lines.iter().filter(|line| line.policy == policy);
        let points = lines.filter_map(|line| Some((line.parameter("day")?, table.value(line, column))));
        let points = points.collect();
        (policy, points)
    });
    Chart {
        title: title.to_owned(),
        across: "day".to_owned(),
        scale: Scale::FromOne,
        marks: Marks::Lines {
            scale: Scale::Logarithmic,
            series: series.collect(),
        },
        references: vec![("paper: 1 + γ".to_owned(), 1.1)],
        reach: 0.0,
    }
}

/// Waits of L applications, and throughput of T applications.
fn switch(table: &Table) -> Vec<Chart> {
    let latency = |title, column| Chart {
        scale: Scale::Logarithmic,
        ..bars(table, title, column, 1.0)
    };
    vec![
        latency("L: P99, µs", "l_p99_us"),
        latency("L: mean, µs", "l_mean_us"),
        bars(table, "T: GB/s", "t_gb_per_s", 1.0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use sim::experiment::EXPERIMENTS;

    /// A small result of an experiment without runs.
    fn made(name: &str) -> Table {
        let experiment = sim::experiment::find(name).expect("it is there");
        Table::new(&(experiment.run)(1, &mut |_| {}))
    }

    #[test]
    fn figures_come_by_number_and_the_block_switch_last() {
        let mut names: Vec<&str> = EXPERIMENTS
            .iter()
            .map(|e| e.name)
            .filter(|name| is_figure(name))
            .collect();
        names.sort_by_key(|name| place(name));
        assert_eq!(names[..2], ["fig9", "fig10"]);
        let at = |name| names.iter().position(|other| *other == name).unwrap();
        assert!(
            at("fig23") < at("predictor") && at("predictor") < at("switch-fig2"),
            "{names:?}"
        );
        assert!(at("switch-fig3a") < at("switch-fig7") && at("switch-fig13") < at("switch-writes"));
        assert!(
            ["gc-tail", "speed", "power-cut"]
                .iter()
                .all(|name| !is_figure(name))
        );
    }

    #[test]
    fn a_figure_that_nobody_described_is_drawn_by_what_its_rows_have() {
        let mut table = made("fig22");
        table.name = "fig99".to_owned();
        let (speeds, count) = (["fast", "slow"], table.lines.len());
        for (index, line) in table.lines.iter_mut().enumerate() {
            line.parameters
                .insert("network".to_owned(), speeds[index * 2 / count].into());
            line.values[4] = index as f64;
        }
        assert_eq!(charts(&table).len(), 2, "one for each network");
        table.lines[0].read_cdf = vec![(0.5, 1_000.0), (0.99, 9_000.0)];
        assert_eq!(charts(&table).len(), table.groups().len());
        let Marks::Lines { series, .. } = &charts(&table)[0].marks else {
            panic!("a distribution is lines")
        };
        assert_eq!(series[0].1, [(1.0, 0.5), (9.0, 0.99)]);
    }

    #[test]
    fn devices_have_a_chart_each_with_a_line_for_each_network() {
        let mut table = made("fig22");
        table.name = "fig19".to_owned();
        table.lines.truncate(4);
        for (index, line) in table.lines.iter_mut().enumerate() {
            line.policy = "rackblox".to_owned();
            line.read_cdf = vec![(0.99, 1e3 * index as f64)];
            let place = [
                ("device", ["optane", "p-ssd"][index / 2]),
                ("network", ["fast", "slow"][index % 2]),
            ];
            line.parameters = place
                .map(|(name, value)| (name.to_owned(), value.into()))
                .into_iter()
                .collect();
        }
        table.regroup();
        let charts = charts(&table);
        assert_eq!((charts.len(), charts[1].series()), (2, vec!["fast", "slow"]));
        let Marks::Lines { series, .. } = &charts[1].marks else {
            panic!("a distribution is lines")
        };
        assert_eq!(series[1].1, [(3.0, 0.99)]);
    }
}

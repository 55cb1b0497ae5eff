//! An experiment's rows in one form, whichever kind of experiment made them, and as CSV.

use super::Report;
use crate::eval::Figure;
use crate::experiment;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::fmt::Write;

/// A row.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// The policy, system or balancer.
    pub policy: String,
    /// Its workload.
    pub workload: String,
    /// Parameters that the figure varies, by name.
    pub parameters: Map<String, Value>,
    /// What it has in common with the other policies' rows beside it in a figure: its parameters, with its workload if
    /// these do not tell it from another row of its policy.
    pub group: String,
    /// One number per column of the table; not a number where there is none.
    pub values: Vec<f64>,
    /// Distribution of reads' latency: share and µs. Empty if the experiment does not tell it.
    pub read_cdf: Vec<(f64, f64)>,
}

impl Line {
    /// Its parameters for people; without any, its workload.
    fn setting(&self) -> String {
        if self.parameters.is_empty() {
            return self.workload.clone();
        }
        let text = |(name, value): (&String, &Value)| match value {
            Value::String(text) => text.clone(),
            number if name.ends_with("_percent") => format!("{number} %"),
            other => other.to_string(),
        };
        self.parameters.iter().map(text).collect::<Vec<_>>().join(" ")
    }

    /// A parameter that is a number.
    pub fn parameter(&self, name: &str) -> Option<f64> {
        self.parameters.get(name)?.as_f64()
    }

    /// A parameter that is a text.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.parameters.get(name)?.as_str()
    }
}

/// An experiment's result.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// The experiment.
    pub name: String,
    /// Its message, in one sentence.
    pub about: String,
    /// The seed.
    pub seed: u64,
    /// Values that all rows share.
    pub parameters: Map<String, Value>,
    /// Names of the numbers; a name ends with its unit.
    pub columns: Vec<String>,
    /// The rows.
    pub lines: Vec<Line>,
    /// The object that `sim run --json` prints, without claims.
    pub json: Value,
}

impl Table {
    /// Of what an experiment gave.
    pub fn new(report: &Report) -> Self {
        let experiment = experiment::find(&report.experiment);
        let mut table = Self {
            name: report.experiment.clone(),
            about: experiment.map_or_else(String::new, |experiment| experiment.about.to_owned()),
            seed: report.seed,
            parameters: Map::new(),
            columns: report.columns.clone(),
            lines: report.rows.iter().map(plain).collect(),
            json: report.rows_to_json(),
        };
        if let Some(figure) = &report.figure {
            table.describe(figure);
        }
        table.regroup();
        table
    }

    /// Names the groups, after parameters have changed.
    pub fn regroup(&mut self) {
        let settings: Vec<String> = self.lines.iter().map(Line::setting).collect();
        let mut known = BTreeSet::new();
        let mut rows = self.lines.iter().zip(&settings);
        let is_enough = rows.all(|(line, setting)| known.insert((line.policy.clone(), setting.clone())));
        for (line, setting) in self.lines.iter_mut().zip(settings) {
            line.group = match is_enough || line.parameters.is_empty() {
                true => setting,
                false => format!("{} {setting}", line.workload),
            };
        }
    }

    /// Takes in what a figure knows beyond its rows' numbers.
    fn describe(&mut self, figure: &Figure) {
        assert_eq!(
            self.lines.len(),
            figure.rows.len(),
            "{}: a figure and its table have the same rows",
            self.name
        );
        self.parameters.clone_from(&figure.parameters);
        for (index, row) in figure.rows.iter().enumerate() {
            let line = &mut self.lines[index];
            line.policy.clone_from(&row.policy);
            line.workload.clone_from(&row.workload);
            line.parameters.clone_from(&row.parameters);
            for (name, value) in &row.more {
                match value {
                    Value::Object(parts) => {
                        for (part, value) in parts {
                            self.set(index, &format!("{name}_{part}"), value);
                        }
                    }
                    Value::Array(points) if name == "read_cdf" => {
                        let point = |point: &Value| Some((point[0].as_f64()?, point[1].as_f64()?));
                        self.lines[index].read_cdf = points.iter().filter_map(point).collect();
                    }
                    value => self.set(index, name, value),
                }
            }
        }
    }

    /// True of the host block switch's experiments.
    pub fn is_of_the_switch(&self) -> bool {
        self.name.starts_with(experiment::SWITCH)
    }

    /// The place of a column, of a new one without numbers if there is none of this name.
    pub fn column_of(&mut self, name: &str) -> usize {
        self.column(name).unwrap_or_else(|| {
            self.columns.push(name.to_owned());
            let count = self.columns.len();
            self.lines
                .iter_mut()
                .for_each(|line| line.values.resize(count, f64::NAN));
            count - 1
        })
    }

    fn set(&mut self, line: usize, column: &str, value: &Value) {
        let at = self.column_of(column);
        self.lines[line].values[at] = value.as_f64().unwrap_or(f64::NAN);
    }

    fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column == name)
    }

    /// True if some row has a number in this column.
    pub fn has(&self, column: &str) -> bool {
        let has = |at: usize| self.lines.iter().any(|line| line.values[at].is_finite());
        self.column(column).is_some_and(has)
    }

    /// The number of a row of this table; not a number if it has none.
    pub fn value(&self, line: &Line, column: &str) -> f64 {
        self.column(column).map_or(f64::NAN, |at| line.values[at])
    }

    /// Policies, in the order in which they come first.
    pub fn policies(&self) -> Vec<String> {
        distinct(self.lines.iter().map(|line| line.policy.clone()))
    }

    /// Groups, see [`Line::group`], in the order in which they come first.
    pub fn groups(&self) -> Vec<String> {
        distinct(self.lines.iter().map(|line| line.group.clone()))
    }

    /// The row of a policy in a group.
    pub fn line(&self, policy: &str, group: &str) -> Option<&Line> {
        self.lines
            .iter()
            .find(|line| line.policy == policy && line.group == group)
    }

    /// Quotients of a column between two policies, for every group that has both.
    pub fn ratios(&self, column: &str, above: &str, below: &str) -> Vec<(String, f64)> {
        let ratio = |group: String| {
            let value = |policy| Some(self.value(self.line(policy, &group)?, column));
            let ratio = value(above)? / value(below)?;
            ratio.is_finite().then_some((group, ratio))
        };
        self.groups().into_iter().filter_map(ratio).collect()
    }
}

/// A row without a figure: its label is the case, then the system.
fn plain((label, values): &(String, Vec<f64>)) -> Line {
    let (workload, policy) = label.split_once(' ').unwrap_or(("", label));
    Line {
        policy: policy.to_owned(),
        workload: workload.to_owned(),
        parameters: Map::new(),
        group: String::new(),
        values: values.clone(),
        read_cdf: Vec::new(),
    }
}

/// Each once, in the order in which they come first.
pub fn distinct(all: impl Iterator<Item = String>) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    all.for_each(|one| {
        if !found.contains(&one) {
            found.push(one);
        }
    });
    found
}

/// All numbers of all tables, one in a line.
pub fn csv(tables: &[Table]) -> String {
    let mut text = "experiment,seed,policy,workload,parameters,metric,value\n".to_owned();
    for table in tables {
        for line in &table.lines {
            let parameters = match line.parameters.is_empty() {
                true => String::new(),
                false => json!(line.parameters).to_string(),
            };
            let labels = [&line.policy, &line.workload, &parameters].map(|label| quoted(label));
            for (column, value) in table.columns.iter().zip(&line.values) {
                if value.is_finite() {
                    let Table { name, seed, .. } = table;
                    writeln!(text, "{name},{seed},{},{column},{value}", labels.join(","))
                        .expect("a string takes all");
                }
            }
        }
    }
    text
}

/// A field as RFC 4180 has it.
fn quoted(field: &str) -> String {
    match field.contains([',', '"', '\n']) {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field.to_owned(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::experiment::find;

    /// A small result of an experiment without runs.
    pub(in crate::report) fn made(name: &str) -> Table {
        let experiment = find(name).expect("it is there");
        Table::new(&(experiment.run)(1, &mut |_| {}))
    }

    #[test]
    fn both_kinds_of_experiment_become_the_same_kind_of_table() {
        let mut report = Report::new("switch-fig13", 7, &["l_p99_us"]);
        report.push("1L +P+RS", vec![3.0]);
        report.push("1L linux", vec![6.0]);
        let table = Table::new(&report);
        assert_eq!(
            (table.policies(), table.groups()),
            (
                vec!["+P+RS".to_owned(), "linux".to_owned()],
                vec!["1L".to_owned()]
            )
        );
        assert_eq!(
            table.ratios("l_p99_us", "linux", "+P+RS"),
            [("1L".to_owned(), 2.0)]
        );

        let wear = made("fig22");
        let line = wear.line("no-swap", "365").unwrap();
        assert_eq!(line.parameter("day"), Some(365.0));
        assert!(wear.value(line, "lambda_across") > 1.0 && wear.value(line, "read_p99_us").is_nan());
        assert!(wear.has("lambda_across") && !wear.has("read_p99_us"));
    }

    #[test]
    fn groups_tell_all_rows_of_a_policy_apart() {
        let mut table = made("fig22");
        let groups = table.groups();
        for (index, line) in table.lines.iter_mut().enumerate() {
            line.workload = format!("w{}", index % groups.len());
            line.parameters.remove("day");
            line.parameters.insert("network".to_owned(), "fast".into());
        }
        table.regroup();
        assert_eq!(
            (table.groups().len(), table.groups()[1].as_str()),
            (groups.len(), "w1 fast")
        );
    }

    #[test]
    fn csv_has_a_line_for_every_number() {
        let table = made("fig22");
        let finite = table
            .lines
            .iter()
            .flat_map(|line| &line.values)
            .filter(|value| value.is_finite());
        let text = csv(std::slice::from_ref(&table));
        assert_eq!(text.lines().count(), 1 + finite.count());
        assert!(
            text.contains("fig22,1,no-swap,table2-mix,\"{\"\"day\"\":12}\",lambda_across,"),
            "{text}"
        );
    }
}

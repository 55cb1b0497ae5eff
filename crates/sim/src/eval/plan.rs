//! Plans: the cases of a figure, each of which becomes a row.

use super::figure::{Figure, Row, cdf};
use super::measure::measure;
use super::memo::{self, Known};
use super::setup::{Hardware, Policies, Workload};
use crate::report::Progress;
use serde_json::{Map, Value};

/// A case becomes one row.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// The rack.
    pub hardware: Hardware,
    /// Its policies.
    pub policies: Policies,
    /// Its clients.
    pub workload: Workload,
    /// Parameters that the figure varies, by name.
    pub parameters: Map<String, Value>,
    /// Show the distribution of reads' latency.
    pub cdf: bool,
}

/// A plan becomes a figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The experiment's name.
    pub name: &'static str,
    /// The rows to come.
    pub cases: Vec<Case>,
}

impl Plan {
    /// True if, for workloads of equal name and equal parameters, all policies have equal hardware and equal clients.
    pub fn is_fair(&self) -> bool {
        let beside = |a: &Case, b: &Case| a.workload.name == b.workload.name && a.parameters == b.parameters;
        let same = |a: &Case, b: &Case| a.hardware == b.hardware && a.workload == b.workload;
        let differs = |a: &Case| self.cases.iter().any(|b| beside(a, b) && !same(a, b));
        !self.cases.iter().any(differs)
    }

    /// Runs all cases, one after the other.
    ///
    /// # Panics
    /// If the plan is not fair.
    pub fn run(&self, seed: u64, progress: Progress<'_>) -> Figure {
        assert!(
            self.is_fair(),
            "{}: policies differ in hardware or clients",
            self.name
        );
        let mut figure = Figure::new(self.name, seed);
        // Where it differs, rows alone tell.
        let first = self.cases.first();
        if let Some(case) =
            first.filter(|first| self.cases.iter().all(|case| case.hardware == first.hardware))
        {
            figure
                .parameters
                .insert("hardware".to_owned(), case.hardware.to_json());
        }
        for case in &self.cases {
            progress(&format!(
                "{}: {} {}",
                self.name, case.policies.name, case.workload.name
            ));
            figure.rows.push(case.run(seed));
        }
        figure
    }
}

impl Case {
    /// Runs it, or takes the row of an equal run that was made before.
    pub fn run(&self, seed: u64) -> Row {
        let make = || {
            let (row, latencies) = measure(&self.hardware, &self.policies, &self.workload, seed);
            Known {
                row,
                read_cdf: cdf(&latencies.read),
            }
        };
        let Known { mut row, read_cdf } = memo::run(self.specification(seed), make);
        if self.cdf {
            row.more.insert("read_cdf".to_owned(), read_cdf);
        }
        self.describe(&mut row);
        row
    }

    /// All that the case's run depends on, as text. Equal text means equal runs.
    pub fn specification(&self, seed: u64) -> String {
        let Self {
            hardware,
            policies,
            workload,
            parameters: _,
            cdf: _,
        } = self;
        format!("{seed} {hardware:?} {policies:?} {workload:?}")
    }

    /// Adds to a row of this case what the figure varies, and the hardware.
    pub fn describe(&self, row: &mut Row) {
        row.parameters.extend(self.parameters.clone());
        row.made_with
            .insert("hardware".to_owned(), self.hardware.to_json());
    }
}

#[cfg(test)]
mod tests {
    use super::super::ycsb;

    #[test]
    #[should_panic(expected = "policies differ in hardware or clients")]
    fn an_unfair_plan_is_not_run() {
        let mut plan = ycsb::distribution();
        plan.cases[1].hardware.cache_pages += 1;
        plan.run(1, &mut |_| {});
    }
}

//! Running experiments on several threads. What an experiment's plan consists of is run case by case, each case once for
//! all figures that have it; experiments without a plan run as they are. Every run is a function of its seed alone, so
//! the result does not depend on the number of threads.

use indicatif::ProgressBar;
use sim::eval::Case;
use sim::experiment::Experiment;
use sim::report::table::Table;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Work of a thread at a time.
enum Work {
    /// An experiment as a whole, by its place among those chosen.
    Whole(usize),
    /// A case of a plan.
    Case(Box<Case>),
}

/// All work of these experiments, what takes longest first: experiments without a plan, as nobody knows how long they
/// take, then cases by their requests.
fn work_of(chosen: &[&Experiment], seed: u64) -> Vec<Work> {
    let mut work = Vec::new();
    let mut cases = Vec::new();
    let mut known = BTreeSet::new();
    for (index, experiment) in chosen.iter().enumerate() {
        match experiment.plan {
            Some(plan) => {
                let mut new = plan().cases;
                new.retain(|case| known.insert(case.specification(seed)));
                cases.extend(new);
            }
            None => work.push(Work::Whole(index)),
        }
    }
    cases.sort_by_key(|case| std::cmp::Reverse(case.workload.warm + case.workload.measured));
    work.extend(cases.into_iter().map(|case| Work::Case(Box::new(case))));
    work
}

/// Runs experiments on `jobs` threads. `bar` moves with the work.
///
/// # Panics
/// If a run does.
pub fn run(chosen: &[&'static Experiment], seed: u64, jobs: usize, bar: &ProgressBar) -> Vec<Table> {
    let work = work_of(chosen, seed);
    bar.set_length(work.len() as u64);
    let next = AtomicUsize::new(0);
    let done = Mutex::new(BTreeMap::new());
    let work_on = || {
        while let Some(work) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
            match work {
                Work::Whole(index) => {
                    let experiment = chosen[*index];
                    let report = (experiment.run)(seed, &mut |text| bar.set_message(text.to_owned()));
                    let table = Table::new(&report);
                    done.lock().expect("no holder panics").insert(*index, table);
                }
                Work::Case(case) => {
                    bar.set_message(format!("{} {}", case.policies.name, case.workload.name));
                    case.run(seed);
                }
            }
            bar.inc(1);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, work.len().max(1)) {
            scope.spawn(work_on);
        }
    });
    bar.finish_and_clear();
    let mut done = done.into_inner().expect("no holder panics");
    let table = |(index, experiment): (usize, &&'static Experiment)| {
        // What is not there yet consists of cases that are.
        done.remove(&index)
            .unwrap_or_else(|| Table::new(&(experiment.run)(seed, &mut |_| {})))
    };
    chosen.iter().enumerate().map(table).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sim::experiment::find;

    #[test]
    fn a_case_that_figures_share_is_run_once() {
        let count = |names: &[&str]| {
            let chosen: Vec<&Experiment> = names.iter().filter_map(|name| find(name)).collect();
            assert_eq!(chosen.len(), names.len());
            work_of(&chosen, 1).len()
        };
        let sweep = count(&["fig9"]);
        assert_eq!(count(&["fig9", "fig10", "fig11", "fig16"]), sweep);
        assert!(count(&["fig9", "fig15"]) < sweep + count(&["fig15"]));
        assert_eq!(count(&["fig13"]), count(&["fig14", "fig13"]));
        assert_eq!(count(&["fig22", "switch-fig13"]), 2, "these have no plan");
    }
}

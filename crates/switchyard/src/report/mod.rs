//! `switchyard sim report`: every figure of the simulator, run at once and put on one page, with its numbers as JSON and
//! CSV. The drawing is shared with the pages of `bench`.

pub mod chart;
pub mod escape;
mod figures;
pub mod page;
mod work;

use crate::failure::{Failure, within};
use crate::machine;
use crate::out;
use anyhow::bail;
use clap::Args;
use escape::escape;
use indicatif::{ProgressBar, ProgressStyle};
use page::Overall;
use serde_json::{Value, json};
use sim::experiment::{EXPERIMENTS, Experiment};
use sim::report::claims;
use sim::report::number::exact;
use sim::report::table::{self, Table};
use std::fmt::Write;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Threads at most: each holds the racks that it simulates.
pub const THREADS_MAX: usize = 256;
/// How long the whole report may take on two processors.
const TIME_MAX: Duration = Duration::from_secs(600);

/// `switchyard sim report`.
#[derive(Args)]
#[command(
    after_help = "Writes one HTML page that needs no network, and the same numbers as JSON and CSV beside it. The same \
    commit and seed give the same JSON, whatever --jobs is.\n\nExamples:\n  switchyard sim report\n  \
    switchyard sim report --only fig9,fig16 --out tails.html"
)]
pub struct ReportArgs {
    /// Output: a directory, or a page with a name that ends with .html
    #[arg(long, value_name = "DIR|FILE", default_value = "report")]
    out: PathBuf,
    /// Run only these experiments, see `sim list` [default: all with a figure]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// Seed of everything random
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Threads, up to 256 [default: one per processor]
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
}

/// Carries it out.
pub fn run(args: &ReportArgs) -> anyhow::Result<()> {
    let chosen = choose(&args.only)?;
    let jobs = args.jobs.unwrap_or_else(runtime::cpu::count);
    within("--jobs", jobs, 1..=THREADS_MAX)?;
    let paths = Paths::of(&args.out)?;
    let start = Instant::now();
    let tables = work::run(&chosen, args.seed, jobs, &progress());
    let made = Made {
        seed: args.seed,
        jobs,
        time: start.elapsed(),
        is_whole: args.only.is_empty(),
    };
    let json = serde_json::to_string_pretty(&to_json(&tables, args.seed)?)? + "\n";
    paths.write(&page(&tables, &made), &json, &table::csv(&tables))?;
    print_summary(&tables);
    println!(
        "{} figures in {:.0} s on {jobs} threads: {}",
        tables.len(),
        made.time.as_secs_f64(),
        paths.page.display()
    );
    Ok(())
}

/// The host block switch's figures, in the simulator.
pub fn switch_figures(seed: u64, bar: &ProgressBar) -> Vec<Table> {
    let mut chosen: Vec<_> = EXPERIMENTS
        .iter()
        .filter(|e| figures::is_switch(e.name))
        .collect();
    chosen.sort_by_key(|experiment| figures::place(experiment.name));
    work::run(&chosen, seed, runtime::cpu::count(), bar)
}

/// The experiments of these names, all with a figure if there are none, in the report's order.
fn choose(names: &[String]) -> anyhow::Result<Vec<&'static Experiment>> {
    let mut all: Vec<&Experiment> = EXPERIMENTS
        .iter()
        .filter(|e| figures::is_figure(e.name))
        .collect();
    all.sort_by_key(|experiment| figures::place(experiment.name));
    let unknown = names
        .iter()
        .find(|name| !all.iter().any(|experiment| experiment.name == **name));
    if let Some(name) = unknown {
        let known: Vec<_> = all.iter().map(|experiment| experiment.name).collect();
        bail!(Failure::Usage(format!(
            "--only {name}: this figure does not exist: choose from {}",
            known.join(", ")
        )));
    }
    all.retain(|experiment| names.is_empty() || names.iter().any(|name| name == experiment.name));
    Ok(all)
}

/// Files of a report.
struct Paths {
    page: PathBuf,
    json: PathBuf,
    csv: PathBuf,
}

impl Paths {
    /// Makes the directory, if it is not there, and refuses what cannot be written.
    fn of(out: &Path) -> anyhow::Result<Self> {
        let is_page = out.extension().is_some_and(|extension| extension == "html");
        let page = if is_page {
            out.to_owned()
        } else {
            out.join("report.html")
        };
        if let Some(dir) = page.parent().filter(|dir| !dir.as_os_str().is_empty()) {
            out::make_dir(dir)?;
        }
        let paths = Self {
            json: page.with_extension("json"),
            csv: page.with_extension("csv"),
            page,
        };
        for path in [&paths.page, &paths.json, &paths.csv] {
            out::check_file(path)?;
        }
        Ok(paths)
    }

    fn write(&self, page: &str, json: &str, csv: &str) -> anyhow::Result<()> {
        for (path, text) in [(&self.page, page), (&self.json, json), (&self.csv, csv)] {
            out::write_file(path, text)?;
        }
        Ok(())
    }
}

fn progress() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let template = "{pos}/{len} runs [{bar:40}] {elapsed}, {eta} left  {msg}";
    let style = ProgressStyle::with_template(template).expect("a valid template");
    let bar = ProgressBar::new(0).with_style(style);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// All results, and what is claimed of them: a function of commit, seed and choice.
fn to_json(tables: &[Table], seed: u64) -> anyhow::Result<Value> {
    let about = machine::about();
    let claimed = tables.iter().flat_map(|table| {
        claims::claims(table).into_iter().map(|claim| {
            let mut value = claim.to_json();
            value["experiment"] = json!(table.name);
            value
        })
    });
    Ok(json!({
        "commit": about.commit,
        "version": about.version,
        "seed": seed,
        "claims": claimed.collect::<Vec<_>>(),
        "experiments": tables.iter().map(|table| &table.json).collect::<Vec<_>>(),
    }))
}

/// How a report came about.
struct Made {
    seed: u64,
    jobs: usize,
    time: Duration,
    /// It has every figure.
    is_whole: bool,
}

fn page(tables: &[Table], made: &Made) -> String {
    let about = machine::about();
    let mut html = page::begin("the simulator's figures");
    let _ = write!(
        html,
        "<p class=note>RackBlox's evaluation (SOSP'23) and blk-switch's (OSDI'21), run in Switchyard's simulator: commit \
         {}, seed {}. All of ours is computed in this run; what the papers say is written as theirs, with where it stands. \
         Made in {:.0} s on {} threads; {}, Linux {}.</p><nav>",
        escape(about.commit),
        made.seed,
        made.time.as_secs_f64(),
        made.jobs,
        escape(&about.processor),
        escape(&about.kernel)
    );
    for table in tables {
        let _ = write!(html, "<a href='#{0}'>{0}</a>", table.name);
    }
    html.push_str("</nav><h2 id=targets>Targets</h2>");
    html.push_str(&page::targets(tables, &overall(made)));
    let parts = [
        (
            "The rack",
            "Figures of RackBlox. The paper prints few numbers; where it does, they are in the tables and, dashed, in \
             the charts. docs/simulation.md says what is modelled and where it differs.",
            false,
        ),
        (
            "The host block switch",
            "Figures of blk-switch's artifact, on modelled cores: L applications read 4 KiB one at a time, T \
             applications move bulk. Every system has the same sizes and depths.",
            true,
        ),
    ];
    for (title, note, is_switch) in parts {
        let mut sections = tables
            .iter()
            .filter(|table| figures::is_switch(&table.name) == is_switch)
            .map(page::section)
            .peekable();
        if sections.peek().is_some() {
            let _ = write!(html, "<h2>{title}</h2><p class=note>{note}</p>");
            sections.for_each(|section| html.push_str(&section));
        }
    }
    html.push_str("</html>\n");
    html
}

/// Targets that no single figure tells.
fn overall(made: &Made) -> Vec<Overall> {
    let unfair = EXPERIMENTS
        .iter()
        .filter(|experiment| experiment.plan.is_some_and(|plan| !plan().is_fair()))
        .count();
    let seconds = made.time.as_secs_f64();
    vec![
        Overall {
            what: "The same hardware for all policies of a figure: figures where it differs",
            place: "",
            ours: unfair.to_string(),
            target: "0",
            is_met: Some(unfair == 0),
        },
        Overall {
            what: "The whole report on two processors",
            place: "",
            ours: format!("{seconds:.0} s"),
            target: "≤ 600 s",
            is_met: (made.is_whole && made.jobs <= 2).then_some(made.time <= TIME_MAX),
        },
        Overall {
            what: "Write amplification beside the closed forms",
            place: "cargo test -p switchyard-flash --test all amplification",
            ours: String::new(),
            target: "within 1 %",
            is_met: None,
        },
        Overall {
            what: "Ratios on a real rack beside the simulator's",
            place: "switchyard bench",
            ours: String::new(),
            target: "within 30 %",
            is_met: None,
        },
    ]
}

fn print_summary(tables: &[Table]) {
    for table in tables {
        for claim in claims::claims(table)
            .iter()
            .filter(|claim| claim.target.is_some())
        {
            println!(
                "{:<12} {:<11} {:>8} {:<7} {}",
                table.name,
                claim.verdict(),
                exact(claim.ours),
                claim.target.map(|target| target.text()).unwrap_or_default(),
                claim.what
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sim::eval;

    /// Small experiments of every kind: with a plan, without one, and of the block switch.
    const SMALL: [&str; 4] = ["fig21", "fig22", "predictor", "switch-fig13"];

    fn made(jobs: usize) -> Vec<Table> {
        let names = SMALL.map(str::to_owned);
        work::run(&choose(&names).unwrap(), 1, jobs, &ProgressBar::hidden())
    }

    #[test]
    fn the_report_is_whole_and_the_same_for_any_number_of_threads() {
        let one = made(1);
        let text = to_json(&one, 1).unwrap().to_string();
        eval::forget();
        assert_eq!(text, to_json(&made(2), 1).unwrap().to_string());

        let how = Made {
            seed: 1,
            jobs: 2,
            time: Duration::from_secs(3),
            is_whole: false,
        };
        let page = page(&one, &how);
        assert!(!page.contains("http://") && !page.contains("https://") && !page.contains("NaN"));
        for name in SMALL {
            let table = one.iter().find(|table| table.name == name).unwrap();
            let section = page
                .split("<section>")
                .find(|part| part.contains(&format!("<h3 id={name}>")))
                .unwrap();
            let figures = section.matches("<svg").count();
            assert_eq!(figures, figures::charts(table).len());
            assert!(figures > 0 && section.matches("<rect").count() + section.matches("<circle").count() > 0);
            let rows = section.rsplit_once("<table>").unwrap().1;
            assert_eq!(rows.matches("<tr").count(), 1 + table.lines.len(), "{name}");
            for value in table.lines.iter().flat_map(|line| &line.values) {
                assert!(
                    rows.contains(&format!("<td>{}", sim::report::number::plain(*value))) || value.is_nan(),
                    "{name}: {value}"
                );
            }
        }
    }

    #[test]
    fn every_figure_is_chosen_if_none_is_named_and_an_unknown_one_is_refused_with_the_choice() {
        let all = choose(&[]).unwrap();
        let expected = EXPERIMENTS
            .iter()
            .filter(|e| e.name.contains("fig") || e.name.contains("switch-"));
        assert_eq!(all.len(), expected.count() + 1, "and the predictor");
        let names = |names: &[&str]| -> Vec<String> { names.iter().map(|name| (*name).to_owned()).collect() };
        let chosen = choose(&names(&["fig13", "fig9"])).unwrap();
        assert_eq!(
            chosen.iter().map(|e| e.name).collect::<Vec<_>>(),
            ["fig9", "fig13"]
        );
        for unknown in ["fig99", "speed", ""] {
            let Err(error) = choose(&names(&["fig9", unknown])) else {
                panic!("{unknown} is no figure")
            };
            let text = error.to_string();
            assert!(
                text.contains(&format!("--only {unknown}:")) && text.contains("fig9, fig10"),
                "{text}"
            );
        }
    }

    #[test]
    fn a_report_goes_to_a_directory_or_beside_the_page_that_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::of(&dir.path().join("a/b")).unwrap();
        paths.write("p", "j", "c").unwrap();
        assert_eq!(std::fs::read(dir.path().join("a/b/report.csv")).unwrap(), b"c");
        let paths = Paths::of(&dir.path().join("x.html")).unwrap();
        assert_eq!(
            (paths.page, paths.json),
            (dir.path().join("x.html"), dir.path().join("x.json"))
        );
    }
}

//! Output of comparisons: a table, JSON, or one HTML page that needs nothing else.

use crate::machine::{self, About};
use crate::out;
use crate::report::chart::spread;
use crate::report::escape::escape;
use crate::report::page::{begin, section};
use clap::Args;
use serde::Serialize;
use sim::report::table::Table;
use std::fmt::Write;
use std::path::PathBuf;

/// Flags of every comparison of servers.
#[derive(Args)]
pub struct CompareArgs {
    /// Interleaved rounds; the report has medians
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub rounds: usize,
    /// Seconds of each run
    #[arg(long, value_name = "S", default_value_t = 2.0, allow_negative_numbers = true)]
    pub seconds: f64,
    /// Memory of each server
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    pub size: crate::size::Size,
    /// Processor of the servers
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub server_cpu: usize,
    /// Processor of all clients
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub client_cpu: usize,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Write a report as one HTML page
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

/// One system in one scenario: medians over the rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The system.
    pub system: String,
    /// The scenario.
    pub scenario: String,
    /// Requests a second of the measured clients.
    pub iops: f64,
    /// Latency of theirs.
    pub p50_us: f64,
    /// Latency of theirs.
    pub p99_us: f64,
    /// Latency of theirs.
    pub p999_us: f64,
    /// Their throughput, or that of the bulk clients beside them.
    pub mib_s: f64,
    /// Processor time while nobody asks, in percent of one; with the first scenario only.
    pub idle_cpu_percent: Option<f64>,
}

/// Prints rows, and writes the page if asked for, with the simulator's figures behind them.
pub fn print(
    args: &CompareArgs,
    title: &str,
    bulk: &str,
    rows: &[Row],
    simulated: &[Table],
) -> anyhow::Result<()> {
    let about = machine::about();
    if args.json {
        let value = serde_json::json!({
            "title": title, "machine": about, "rounds": args.rounds, "seconds": args.seconds, "rows": rows,
        });
        println!("{}", serde_json::to_string_pretty(&value)?);
    } else {
        println!(
            "{title}; medians of {} interleaved rounds of {} s",
            args.rounds, args.seconds
        );
        println!(
            "{}, Linux {}, commit {}",
            about.processor, about.kernel, about.commit
        );
        let mut scenario = "";
        for row in rows {
            if row.scenario != scenario {
                scenario = &row.scenario;
                println!(
                    "\n{:<26} {:>10} {:>9} {:>9} {:>10} {:>9} {:>7}",
                    scenario, "IOPS", "p50 µs", "p99 µs", "p99.9 µs", bulk, "idle %"
                );
            }
            let idle = row
                .idle_cpu_percent
                .map(|idle| format!("{idle:.2}"))
                .unwrap_or_default();
            println!(
                "  {:<24} {:>10.0} {:>9.1} {:>9.1} {:>10.1} {:>9.0} {:>7}",
                row.system, row.iops, row.p50_us, row.p99_us, row.p999_us, row.mib_s, idle
            );
        }
    }
    if let Some(path) = &args.report {
        let mut page = page(args, title, bulk, &about, rows);
        if !simulated.is_empty() {
            page.push_str("<h2>Simulated, on modelled cores</h2>");
        }
        simulated.iter().for_each(|table| page.push_str(&section(table)));
        page.push_str("</html>\n");
        out::write_file(path, &page)?;
    }
    Ok(())
}

/// The page: per scenario a table with bars, on a logarithmic scale from 1 µs to 100 ms, of p50 and p99.9.
fn page(args: &CompareArgs, title: &str, bulk: &str, about: &About, rows: &[Row]) -> String {
    let mut html = begin(title);
    let _ = write!(
        html,
        "<p class=note>Medians of {} interleaved rounds of {} s. {}, Linux {}, commit {}. Servers on \
         processor {}, all clients on processor {}. Bars: p50 (dark) to p99.9 (light), 1 µs to 100 ms, logarithmic.</p>",
        args.rounds,
        args.seconds,
        escape(&about.processor),
        escape(&about.kernel),
        escape(about.commit),
        args.server_cpu,
        args.client_cpu,
    );
    let mut scenario = "";
    for row in rows {
        if row.scenario != scenario {
            if !scenario.is_empty() {
                html.push_str("</table></div>");
            }
            scenario = &row.scenario;
            let _ = write!(
                html,
                "<h2>{}</h2><div class=scroll><table><tr><th>system<th>IOPS<th>p50 µs<th>p99 µs<th>p99.9 µs<th>{}<th>idle %<th>",
                escape(scenario),
                escape(bulk)
            );
        }
        let idle = row
            .idle_cpu_percent
            .map(|idle| format!("{idle:.2}"))
            .unwrap_or_default();
        let class = if row.system.starts_with("switchyard") {
            " class=ours"
        } else {
            ""
        };
        let _ = write!(
            html,
            "<tr{class}><td>{}<td>{:.0}<td>{:.1}<td>{:.1}<td>{:.1}<td>{:.0}<td>{idle}<td class=bar>{}",
            escape(&row.system),
            row.iops,
            row.p50_us,
            row.p99_us,
            row.p999_us,
            row.mib_s,
            spread(row.p50_us, row.p999_us)
        );
    }
    html.push_str("</table></div>");
    html
}

//! What comparisons print: a table, JSON, or one HTML page that needs nothing else.

use super::compare::{CompareArgs, Row};
use super::machine::{self, About};
use crate::out;
use crate::report::chart::spread;
use crate::report::page::{begin, escape, section};
use sim::report::table::Table;
use std::fmt::Write;

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

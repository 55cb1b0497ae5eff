//! What comparisons print: a table, JSON, or one HTML page that needs nothing else.

use super::compare::{CompareArgs, Row};
use super::machine::{self, About};
use anyhow::Context;
use sim::report::Report;
use std::fmt::Write;

/// Prints rows, and writes the page if asked for, with what `simulated` says behind them.
pub fn print(
    args: &CompareArgs,
    title: &str,
    bulk: &str,
    rows: &[Row],
    simulated: &[Simulated],
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
        for figure in simulated {
            page.push_str(&simulated_figure(figure));
        }
        page.push_str("</html>\n");
        std::fs::write(path, page).with_context(|| format!("{} cannot be written", path.display()))?;
    }
    Ok(())
}

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem;color:#222}\
table{border-collapse:collapse;width:100%;margin:.5rem 0 1.5rem}th,td{text-align:right;padding:.15rem .6rem;\
border-bottom:1px solid #ddd;font-variant-numeric:tabular-nums}th:first-child,td:first-child{text-align:left}\
td.bar{width:34%}svg{display:block}.ours{font-weight:600}p.note{color:#555}";

/// The page: per scenario a table with bars, on a logarithmic scale from 1 µs to 100 ms, of p50 and p99.9.
fn page(args: &CompareArgs, title: &str, bulk: &str, about: &About, rows: &[Row]) -> String {
    let mut html = String::new();
    let title = escape(title);
    let _ = write!(
        html,
        "<!doctype html><html lang=en><meta charset=utf-8><title>Switchyard: {title}</title><style>{STYLE}</style>\
         <h1>{title}</h1><p class=note>Medians of {} interleaved rounds of {} s. {}, Linux {}, commit {}. Servers on \
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
                html.push_str("</table>");
            }
            scenario = &row.scenario;
            let _ = write!(
                html,
                "<h2>{}</h2><table><tr><th>system<th>IOPS<th>p50 µs<th>p99 µs<th>p99.9 µs<th>{}<th>idle %<th>",
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
            bars(row.p50_us, row.p999_us)
        );
    }
    html.push_str("</table>");
    html
}

/// A figure of the simulator.
pub struct Simulated {
    /// What it shows.
    pub about: &'static str,
    /// What came of it.
    pub report: Report,
}

/// A table of a figure, with bars of p50 and p99.9 of L as in the measured ones.
fn simulated_figure(Simulated { about, report }: &Simulated) -> String {
    let mut html = format!(
        "<h2>Simulated: {}</h2><p class=note>{}. Modelled cores, seed {}; the same every time.</p><table><tr><th>",
        escape(&report.experiment),
        escape(about),
        report.seed
    );
    for column in &report.columns {
        let _ = write!(html, "<th>{}", escape(column));
    }
    html.push_str("<th>");
    for (label, values) in &report.rows {
        let class = if label.ends_with("switchyard") {
            " class=ours"
        } else {
            ""
        };
        let _ = write!(html, "<tr{class}><td>{}", escape(label));
        for value in values {
            let _ = write!(html, "<td>{value:.1}");
        }
        let us = |column| report.value(label, column).unwrap_or(0.0);
        let _ = write!(html, "<td class=bar>{}", bars(us("l_p50_us"), us("l_p99.9_us")));
    }
    html.push_str("</table>");
    html
}

/// Where a latency is on the scale, 0 to 300.
fn place(us: f64) -> f64 {
    us.max(1.0).log10().min(5.0) * 60.0
}

fn bars(p50_us: f64, p999_us: f64) -> String {
    let (p50, p999) = (place(p50_us), place(p999_us));
    format!(
        "<svg width=300 height=12 role=img aria-label='p50 {p50_us:.0} µs, p99.9 {p999_us:.0} µs'>\
         <rect width={p999:.0} height=12 fill='#bcd'/><rect width={p50:.0} height=12 fill='#357'/></svg>"
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_is_logarithmic_and_ends() {
        assert_eq!((place(0.5), place(10.0), place(1e9)), (0.0, 60.0, 300.0));
        assert_eq!(escape("a<b&c"), "a&lt;b&amp;c");
    }
}

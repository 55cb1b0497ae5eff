//! What `switchyard bench fs` tells: tables, JSON, one HTML page; beside the paper's numbers, which are of another machine.

use super::args::{FilesArgs, Medium};
use super::task::{Figures, Task};
use crate::machine::About;
use crate::out;
use crate::report::escape::escape;
use crate::report::page::{begin, head};
use serde::Serialize;
use sim::report::number::plain;
use std::fmt::Write;

/// What Strata's authors report, and their successors.
const PAPERS: [&str; 4] = [
    "Strata (SOSP'17), NVDIMM of 200 ns and 20 GB/s: LevelDB with 1 KiB values 25 % faster at random writes than PMFS, 17 % at overwrites.",
    "Strata: 20 to 30 % over a file system for each layer; up to 2.8 times a cache of blocks in two layers.",
    "SplitFS (SOSP'19): a quarter of NOVA's software overhead, a seventeenth of that of ext4 with DAX.",
    "Assise (OSDI'20): writes in up to 22 times less time. KucoFS (FAST'21): calls on names up to 10 times faster.",
];

/// One side's medians of a task.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub task: Task,
    pub side: String,
    #[serde(flatten)]
    pub figures: Figures,
}

/// All rows of one medium: tasks, and of each all sides, ours first.
#[derive(Debug, Serialize)]
pub(super) struct MediumRows {
    pub medium: Medium,
    /// One overwrite of 4 KiB, O_DIRECT, O_DSYNC, of a disk.
    pub raw_overwrite_us: Option<f64>,
    pub mode: &'static str,
    /// Names, and what each is.
    pub sides: Vec<(String, String)>,
    pub rows: Vec<Row>,
}

impl MediumRows {
    fn tasks(&self) -> impl Iterator<Item = &[Row]> {
        self.rows.chunks(self.sides.len())
    }
}

/// The figure by which sides are compared.
fn figure(row: &Row) -> f64 {
    match row.task.is_told_by_mean() {
        true => row.figures.mean_us,
        false => row.figures.p50_us,
    }
}

/// A peer's figure by ours: above 1 we win.
fn ratio(ours: &Row, peer: &Row) -> f64 {
    figure(peer) / figure(ours)
}

/// Prints all, and writes the page if asked for.
pub(super) fn tell(
    args: &FilesArgs,
    about: &About,
    media: &[MediumRows],
    left_out: &[String],
) -> anyhow::Result<()> {
    if args.json {
        let value = serde_json::json!({
            "machine": about, "rounds": args.rounds, "seconds": args.seconds, "count": args.count, "bytes": args.size.0,
            "media": media, "left_out": left_out,
        });
        println!("{}", serde_json::to_string_pretty(&value)?);
    } else {
        println!("{}", title(args, about));
        media.iter().for_each(print);
        println!();
        for why in left_out {
            println!("left out: {why}");
        }
        PAPERS.iter().for_each(|line| println!("{line}"));
    }
    match &args.report {
        Some(path) => out::write_file(path, &page(args, about, media, left_out)),
        None => Ok(()),
    }
}

fn title(args: &FilesArgs, about: &About) -> String {
    format!(
        "µs of an operation; medians of {} interleaved rounds of {} s; {}, Linux {}, commit {}",
        args.rounds, args.seconds, about.processor, about.kernel, about.commit
    )
}

fn print(medium: &MediumRows) {
    println!("\n{}", medium.medium.name());
    for (name, about) in &medium.sides {
        println!("  {name}: {about}");
    }
    if let Some(us) = medium.raw_overwrite_us {
        println!("  raw overwrite of 4 KiB, O_DIRECT, O_DSYNC: p50 {us:.1} µs");
    }
    let peers = &medium.sides[1..];
    let mut line = format!("{:<36} {:<4}", "µs, and a peer's by ours", "");
    for (name, _) in &medium.sides {
        let _ = write!(line, " {name:>10}");
    }
    for (name, _) in peers {
        let _ = write!(line, " {:>7}", format!("× {name}"));
    }
    println!("{line}");
    for rows in medium.tasks() {
        let kind = if rows[0].task.is_told_by_mean() {
            "mean"
        } else {
            "p50"
        };
        let mut line = format!("{:<36} {kind:<4}", rows[0].task.text());
        for row in rows {
            let _ = write!(line, " {:>10}", plain(figure(row)));
        }
        for peer in &rows[1..] {
            let _ = write!(line, " {:>7.2}", ratio(&rows[0], peer));
        }
        println!("{line}");
    }
    let mut line = format!("{:<41}", "processor time, client + all else");
    for (name, _) in &medium.sides {
        let _ = write!(line, " {name:>15}");
    }
    println!("{line}");
    for rows in medium.tasks() {
        let mut line = format!("{:<41}", rows[0].task.text());
        for row in rows {
            let _ = write!(line, " {:>15}", times(&row.figures));
        }
        println!("{line}");
    }
}

fn times(figures: &Figures) -> String {
    format!(
        "{} + {}",
        plain(figures.client_cpu_us),
        plain(figures.rest_cpu_us)
    )
}

fn page(args: &FilesArgs, about: &About, media: &[MediumRows], left_out: &[String]) -> String {
    let mut html = begin("bench fs");
    let _ = write!(
        html,
        "<p class=note>{}. A ratio is a peer's figure by ours: below 1 the peer is faster. Processor time is the client's, and \
         that of all else on the machine. In mode sync the kernel does not ask our server for an fsync, as each call is durable.</p>",
        escape(&title(args, about))
    );
    media.iter().for_each(|medium| table(&mut html, medium));
    html.push_str("<h2>Not measured</h2><ul>");
    for why in left_out {
        let _ = write!(html, "<li>{}", escape(why));
    }
    html.push_str("</ul><h2>What the papers report, on other machines</h2><ul>");
    for line in PAPERS {
        let _ = write!(html, "<li>{}", escape(line));
    }
    html + "</ul></html>\n"
}

fn table(html: &mut String, medium: &MediumRows) {
    let _ = write!(html, "<h2>{}</h2><ul>", medium.medium.name());
    for (name, about) in &medium.sides {
        let _ = write!(html, "<li>{}: {}", escape(name), escape(about));
    }
    if let Some(us) = medium.raw_overwrite_us {
        let _ = write!(
            html,
            "<li>raw overwrite of 4 KiB, O_DIRECT, O_DSYNC: p50 {us:.1} µs"
        );
    }
    html.push_str("</ul>");
    let mut numbers = Vec::new();
    for (place, (name, _)) in medium.sides.iter().enumerate() {
        numbers.push(format!("{name} µs"));
        if place > 0 {
            numbers.push("by ours".into());
        }
        numbers.push("p99 µs".into());
        numbers.push("processor µs".into());
    }
    let numbers: Vec<_> = numbers.iter().map(String::as_str).collect();
    html.push_str(&head(&["", "figure"], &numbers));
    for rows in medium.tasks() {
        let task = rows[0].task;
        let kind = if task.is_told_by_mean() { "mean" } else { "p50" };
        let _ = write!(
            html,
            "<tr><td class=text>{}<td class=text>{kind}",
            escape(&task.text())
        );
        for (place, row) in rows.iter().enumerate() {
            let _ = write!(html, "<td>{}", plain(figure(row)));
            if place > 0 {
                let ratio = ratio(&rows[0], row);
                let class = if ratio < 1.0 { "short" } else { "met" };
                let _ = write!(html, "<td><span class='verdict {class}'>{ratio:.2}</span>");
            }
            let _ = write!(
                html,
                "<td>{}<td>{}",
                plain(row.figures.p99_us),
                escape(&times(&row.figures))
            );
        }
    }
    html.push_str("</table></div>");
}

#[cfg(test)]
mod tests {
    use super::super::workload::Workload;
    use super::*;

    fn row(task: Task, side: &str, p50_us: f64) -> Row {
        Row {
            task,
            side: side.into(),
            figures: Figures {
                count: 1,
                mean_us: 2.0 * p50_us,
                p50_us,
                p99_us: 3.0 * p50_us,
                client_cpu_us: 1.0,
                rest_cpu_us: 2.0,
            },
        }
    }

    #[test]
    fn a_loss_is_shown_as_a_loss() {
        let task = Task::Client(Workload::Stat);
        let medium = MediumRows {
            medium: Medium::Mem,
            raw_overwrite_us: None,
            mode: "sync",
            sides: vec![("switchyard".into(), "a".into()), ("ext4".into(), "b".into())],
            rows: vec![row(task, "switchyard", 4.0), row(task, "ext4", 1.0)],
        };
        let mut html = String::new();
        table(&mut html, &medium);
        assert!(html.contains("verdict short'>0.25"), "{html}");
        assert_eq!(ratio(&medium.rows[1], &medium.rows[0]), 4.0);
    }

    #[test]
    fn tasks_of_several_calls_are_compared_by_their_mean() {
        let mail = row(Task::Client(Workload::Varmail), "ext4", 1.0);
        assert_eq!(figure(&mail), 2.0);
        assert_eq!(figure(&row(Task::Client(Workload::Append), "ext4", 1.0)), 1.0);
    }
}

//! `switchyard profile diff`: two profiles side by side.

use super::load;
use super::text::title;
use clap::Args;
use profile::summary::{OperationSummary, Summary};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::PathBuf;

/// `switchyard profile diff`.
#[derive(Args)]
#[command(
    after_help = "Example:\n  switchyard profile diff before.json after.json\n\nKinds of operations are matched by \
    interface, action, size and whether the device was needed."
)]
pub struct DiffArgs {
    /// The profile before
    before: PathBuf,
    /// The profile after
    after: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Carries `switchyard profile diff` out.
pub fn run(args: &DiffArgs) -> anyhow::Result<()> {
    let (before, after) = (load(&args.before)?, load(&args.after)?);
    if args.json {
        let rows: Vec<Value> = pairs(&before, &after).into_iter().map(to_json).collect();
        println!(
            "{}",
            json!({ "before": before.target, "after": after.target, "operations": rows })
        );
    } else {
        print!("{}", render(&before, &after));
    }
    Ok(())
}

type Pair<'a> = (Option<&'a OperationSummary>, Option<&'a OperationSummary>);

fn is_same(a: &OperationSummary, b: &OperationSummary) -> bool {
    (&a.interface, &a.action, a.bytes_max, a.reached_device)
        == (&b.interface, &b.action, b.bytes_max, b.reached_device)
}

/// Kinds of operations of either, those of the first in its order.
fn pairs<'a>(before: &'a Summary, after: &'a Summary) -> Vec<Pair<'a>> {
    let old = before.operations.iter().map(|old| {
        let new = after.operations.iter().find(|new| is_same(old, new));
        (Some(old), new)
    });
    let new = after.operations.iter();
    let new = new.filter(|new| !before.operations.iter().any(|old| is_same(old, new)));
    old.chain(new.map(|new| (None, Some(new)))).collect()
}

fn to_json((before, after): Pair<'_>) -> Value {
    let row = before.or(after).expect("one of them is there");
    json!({
        "interface": row.interface, "action": row.action, "bytes_max": row.bytes_max,
        "reached_device": row.reached_device, "before": before, "after": after,
    })
}

fn render(before: &Summary, after: &Summary) -> String {
    let mut text = format!(
        "before: {} (Linux {})\nafter:  {} (Linux {})\n",
        before.target, before.kernel, after.target, after.kernel
    );
    let reached = |pair: &Pair<'_>| pair.0.or(pair.1).is_some_and(|row| row.reached_device);
    for pair in pairs(before, after).into_iter().filter(reached) {
        let row = pair.0.or(pair.1).expect("one of them is there");
        let count = |row: Option<&OperationSummary>| row.map_or(0, |row| row.count);
        let _ = writeln!(
            text,
            "\n{}: {} operations, then {}",
            title(row),
            count(pair.0),
            count(pair.1)
        );
        let (Some(old), Some(new)) = pair else {
            alone(&mut text, row, pair.0.is_some());
            continue;
        };
        let _ = writeln!(
            text,
            "  {:<14} {:>11} {:>11} {:>11} {:>8}",
            "layer", "before µs", "after µs", "change µs", ""
        );
        for (a, b) in old.layers.iter().zip(&new.layers) {
            line(&mut text, &a.name, a.times.mean_us, b.times.mean_us);
        }
        line(&mut text, "total", old.times.mean_us, new.times.mean_us);
        line(&mut text, "total p99", old.times.p99_us, new.times.p99_us);
    }
    text
}

/// A kind of operations that only one of them has, in its column.
fn alone(text: &mut String, row: &OperationSummary, is_before: bool) {
    let layers = row
        .layers
        .iter()
        .map(|layer| (layer.name.as_str(), layer.times.mean_us));
    for (name, us) in layers.chain([("total", row.times.mean_us)]) {
        let place = if is_before { 11 } else { 23 };
        let _ = writeln!(text, "  {name:<14} {us:>place$.3}");
    }
}

fn line(text: &mut String, name: &str, before_us: f64, after_us: f64) {
    let change = if before_us > 0.0 {
        format!("{:+.1} %", (after_us / before_us - 1.0) * 100.0)
    } else {
        String::new()
    };
    let _ = writeln!(
        text,
        "  {name:<14} {before_us:>11.3} {after_us:>11.3} {:>+11.3} {change:>8}",
        after_us - before_us
    );
}

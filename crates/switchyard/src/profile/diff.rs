//! `switchyard profile diff`: two profiles side by side.

use super::saved::load;
use super::text::{on, title};
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
        "before: {} ({})\nafter:  {} ({})\n",
        before.target,
        on(before),
        after.target,
        on(after)
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
        for name in names(old, new) {
            line(&mut text, name, mean_us(old, name), mean_us(new, name));
        }
        line(&mut text, "total", old.times.mean_us, new.times.mean_us);
        line(&mut text, "total p99", old.times.p99_us, new.times.p99_us);
    }
    text
}

/// The layers of either, those of the first in its order.
fn names<'a>(old: &'a OperationSummary, new: &'a OperationSummary) -> Vec<&'a str> {
    let mut names: Vec<&str> = old.layers.iter().map(|layer| layer.name.as_str()).collect();
    for layer in &new.layers {
        if !names.contains(&layer.name.as_str()) {
            names.push(&layer.name);
        }
    }
    names
}

/// Of a layer that the other one does not have: 0.
fn mean_us(row: &OperationSummary, name: &str) -> f64 {
    let layer = row.layers.iter().find(|layer| layer.name == name);
    layer.map_or(0.0, |layer| layer.times.mean_us)
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

#[cfg(test)]
mod tests {
    use super::*;
    use profile::summary::{LayerSummary, ProbeSummary, TimeSummary, VERSION};

    #[test]
    fn layers_are_matched_by_name() {
        let profile = |layers: &[(&str, f64)]| Summary {
            version: VERSION,
            target: "t".to_owned(),
            kernel: "k".to_owned(),
            seconds: 1.0,
            probes: ProbeSummary::default(),
            operations: vec![OperationSummary {
                interface: "switchyard".to_owned(),
                action: "read".to_owned(),
                reached_device: true,
                layers: layers
                    .iter()
                    .map(|(name, mean_us)| LayerSummary {
                        name: (*name).to_owned(),
                        times: TimeSummary {
                            mean_us: *mean_us,
                            ..TimeSummary::default()
                        },
                        probes_us: 0.0,
                        share: 0.0,
                    })
                    .collect(),
                ..OperationSummary::default()
            }],
            devices: Vec::new(),
            heat: Default::default(),
            stacks: None,
        };
        let before = profile(&[("gateway", 60.0), ("FTL and media", 20.0)]);
        let after = profile(&[("frontend", 2.0), ("FTL and media", 30.0)]);
        let text = render(&before, &after);
        for (name, change) in [
            ("gateway", "-60.000"),
            ("FTL and media", "+50.0 %"),
            ("frontend", "+2.000"),
        ] {
            let line = text.lines().find(|line| line.trim().starts_with(name));
            assert!(line.is_some_and(|line| line.contains(change)), "{name}: {text}");
        }
    }
}

//! A profile as text.

use crate::size::Size;
use profile::summary::{DeviceSummary, OperationSummary, StackSummary, Summary, TimeSummary};
use std::fmt::Write;

/// Kinds of operations that took less than this share of the time are counted only.
const SHARE_MIN: f64 = 0.005;
/// Functions that are listed; --json has all.
const FUNCTIONS_MAX: usize = 20;

/// The tables.
pub fn render(summary: &Summary) -> String {
    let mut text = String::new();
    let probes = &summary.probes;
    let _ = writeln!(
        text,
        "{} — {:.2} s, {}",
        summary.target,
        summary.seconds,
        on(summary)
    );
    // Switchyard's own figures need no probes.
    if probes.events > 0 {
        let _ = writeln!(
            text,
            "probes: {:.0} ns an event, {:.1} % of what was measured, taken out below; on a null workload that leaves {:+.1} %\n        \
             {} events, {} lost{}",
            probes.event_ns,
            probes.share * 100.0,
            probes.null_error * 100.0,
            probes.events,
            probes.lost,
            unclear(summary),
        );
    }
    if probes.lost > 0 {
        text.push_str("        counts are too low, and what lost its end is left out: profile one device (--device), or shorter\n");
    }
    let time = |row: &OperationSummary| row.count as f64 * row.times.mean_us;
    let reached = || summary.operations.iter().filter(|row| row.reached_device);
    let all: f64 = reached().map(time).sum();
    let (shown, few): (Vec<_>, Vec<_>) = reached().partition(|row| time(row) >= SHARE_MIN * all);
    for row in &shown {
        operation(&mut text, row);
    }
    if !few.is_empty() {
        let count: u64 = few.iter().map(|row| row.count).sum();
        let share = few.iter().map(|row| time(row)).sum::<f64>() / all * 100.0;
        let _ = writeln!(
            text,
            "\n{count} operations of {} other kinds, {share:.1} % of the time (--json has all)",
            few.len()
        );
    }
    cached(&mut text, summary);
    if !summary.devices.is_empty() {
        let _ = writeln!(
            text,
            "\n{:<10} {:<8} {:>9} {:>10} {:>7} {:>7} {:>7} {:>8} {:>8} {:>8} {:>8}   mean µs",
            "device", "", "bios", "bytes", "merged", "depth", "Q2G", "G2I", "I2D", "D2C", "D2C p99"
        );
    }
    for row in &summary.devices {
        device(&mut text, row);
    }
    if let Some(stacks) = &summary.stacks {
        functions(&mut text, stacks);
    }
    text
}

/// Its machine.
pub fn on(summary: &Summary) -> String {
    let name = if summary.probes.events > 0 {
        "Linux"
    } else {
        "Switchyard"
    };
    format!("{name} {}", summary.kernel)
}

fn functions(text: &mut String, stacks: &StackSummary) {
    let _ = writeln!(
        text,
        "\n{} samples of processor time, {} lost; % in the function with what it calls, and in itself",
        stacks.samples, stacks.lost
    );
    for row in stacks.functions.iter().take(FUNCTIONS_MAX) {
        let _ = writeln!(
            text,
            "  {:>6.2} {:>6.2}  {}",
            row.all * 100.0,
            row.own * 100.0,
            row.name
        );
    }
}

fn unclear(summary: &Summary) -> String {
    let probes = &summary.probes;
    match (probes.unclear_bios, probes.unclear_operations, probes.undecoded) {
        (0, 0, 0) => String::new(),
        (bios, operations, records) => {
            format!("; not seen whole: {operations} operations, {bios} bios, {records} records")
        }
    }
}

/// User-visible name of a kind of operation.
pub fn title(row: &OperationSummary) -> String {
    let size = match row.bytes_max {
        0 => String::new(),
        bytes => format!(" ≤ {}", Size(bytes)),
    };
    format!("{} {}{size}", row.interface, row.action)
}

fn operation(text: &mut String, row: &OperationSummary) {
    let _ = write!(
        text,
        "\n{}: {} operations, mean {:.2} µs, software {:.1} %, application {:.2} µs before each",
        title(row),
        row.count,
        row.times.mean_us,
        row.software_share * 100.0,
        row.application_us,
    );
    for (what, count) in [
        ("bios", row.bios),
        ("merged", row.merged),
        ("split", row.splits),
        ("punted", row.punted),
    ] {
        if count > 0 && !(what == "bios" && count == row.count) {
            let _ = write!(text, ", {count} {what}");
        }
    }
    let _ = writeln!(
        text,
        "\n  {:<14} {:>11} {:>7} {:>11} {:>11} {:>11} {:>9}   µs",
        "layer", "mean", "share", "p50", "p99", "p99.9", "probes"
    );
    for layer in &row.layers {
        times(text, &layer.name, &layer.times, layer.share, layer.probes_us);
    }
    let probes_us = row.layers.iter().map(|layer| layer.probes_us).sum();
    times(text, "total", &row.times, 1.0, probes_us);
}

fn times(text: &mut String, name: &str, times: &TimeSummary, share: f64, probes_us: f64) {
    let _ = writeln!(
        text,
        "  {name:<14} {:>11.3} {:>6.1}% {:>11.3} {:>11.3} {:>11.3} {:>9.3}",
        times.mean_us,
        share * 100.0,
        times.p50_us,
        times.p99_us,
        times.p999_us,
        probes_us
    );
}

/// Operations without the device, in a line each for reads, writes and syncs.
fn cached(text: &mut String, summary: &Summary) {
    for action in ["read", "write", "sync"] {
        let rows = summary.operations.iter();
        let rows = rows.filter(|row| !row.reached_device && row.action == action);
        let (mut count, mut total_us) = (0, 0.0);
        for row in rows {
            count += row.count;
            total_us += row.count as f64 * row.times.mean_us;
        }
        if count > 0 {
            let mean_us = total_us / count as f64;
            let _ = writeln!(
                text,
                "\n{count} {action} calls needed no device (page cache, or no file): mean {mean_us:.2} µs"
            );
        }
    }
}

fn device(text: &mut String, row: &DeviceSummary) {
    let mean =
        |times: &Option<TimeSummary>| times.map_or("-".to_string(), |times| format!("{:.1}", times.mean_us));
    let _ = write!(
        text,
        "{:<10} {:<8} {:>9} {:>10} {:>7} {:>7.1} {:>7.1} {:>8} {:>8} {:>8.1} {:>8.1}",
        row.device,
        row.action,
        row.count,
        Size(row.bytes).to_string(),
        row.merged,
        row.depth,
        row.q2g.mean_us,
        mean(&row.g2i),
        mean(&row.i2d),
        row.d2c.mean_us,
        row.d2c.p99_us,
    );
    let on = match &row.backed_by[..] {
        [] => String::new(),
        names => format!(" on {}", names.join(", ")),
    };
    let _ = writeln!(text, "   {}{on}", row.scheduler);
}

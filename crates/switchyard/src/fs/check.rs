//! `switchyard fs check`: a file system that is not mounted, without changing anything.

use super::common::{CheckArgs, open};
use crate::failure::Failure;
use crate::launch::Says;
use crate::size::Size;
use ::fs::check::{Depth, Meaning, Report, check_to};
use anyhow::bail;
use mount::engine::{LogState, examine_logs};
use mount::media::Access;
use serde_json::json;

/// Findings that people are told; the JSON has all.
const FINDINGS_TOLD: usize = 50;

pub(super) fn run(args: &CheckArgs) -> anyhow::Result<()> {
    let says = Says { json: args.json };
    let disks = open(&args.devices, Access::Read, &says)?;
    let depth = if args.data { Depth::Data } else { Depth::Files };
    let report = check_to(&disks, depth);
    if let [finding] = &report.findings[..]
        && let Meaning::Volume(error) = &finding.meaning
        && report.roots.is_empty()
    {
        bail!(Failure::Uncheckable(error.to_string()));
    }
    let logs = examine_logs(&disks).unwrap_or_default();
    let damaged: Vec<_> = logs.iter().filter(|log| log.is_damaged).collect();
    let problems = report.findings.len() + damaged.len();
    match args.json {
        true => tell_json(&report, &logs)?,
        false => tell(&report, &logs),
    }
    match problems {
        0 => Ok(()),
        count => bail!(Failure::Problems(count)),
    }
}

fn tell(report: &Report, logs: &[LogState]) {
    for finding in report.findings.iter().take(FINDINGS_TOLD) {
        println!("{finding}");
    }
    if report.findings.len() > FINDINGS_TOLD {
        println!(
            "and {} more: --json lists all",
            report.findings.len() - FINDINGS_TOLD
        );
    }
    for log in logs {
        let number = log.number;
        if log.is_damaged {
            println!(
                "log {number} is damaged at position {}: acknowledged calls behind it are lost",
                log.position
            );
        } else if log.operations > 0 {
            println!(
                "log {number} has {} operations that are not in the tree: the next mount brings them there",
                log.operations
            );
        }
    }
    println!(
        "{} entries in {} nodes, {} used: {}",
        report.entries,
        report.nodes,
        Size(report.used * 4096),
        if report.is_clean() { "clean" } else { "damaged" }
    );
}

fn tell_json(report: &Report, logs: &[LogState]) -> anyhow::Result<()> {
    let findings: Vec<_> = report.findings.iter().map(ToString::to_string).collect();
    let log = |log: &LogState| {
        json!({
            "number": log.number, "operations": log.operations, "damaged": log.is_damaged, "position": log.position,
        })
    };
    let value = json!({
        "clean": report.is_clean() && !logs.iter().any(|log| log.is_damaged),
        "findings": findings, "roots": report.roots, "nodes": report.nodes, "entries": report.entries,
        "used_bytes": report.used * 4096, "logs": logs.iter().map(log).collect::<Vec<_>>(),
    });
    println!("{}", serde_json::to_string_pretty(&value)?);
    Ok(())
}

//! `switchyard bench store --instructions`: what an operation costs in instructions of the library, counted by valgrind: an area
//! in memory, one thread, without the kernel's part. Two runs of different length are subtracted, so that what comes before and
//! after them cancels. Unlike times, these are the same on a busy machine.

use crate::failure::Failure;
use crate::size::Size;
use anyhow::{Context, bail, ensure};
use area::{Area, AreaOptions};
use serde::Serialize;
use std::ops::Bound;
use std::process::Command;

/// Of the area: nothing is cleaned meanwhile.
const AREA_BYTES: u64 = 64 << 20;
/// Operations of the shorter run and of the longer one.
const COUNTS: [u64; 2] = [1000, 3000];
/// Entries to read, and to pop.
const PREPARED: u64 = COUNTS[1];
/// Beyond, the area would be cleaned.
const BYTES_MAX: u64 = 4 << 10;

/// The counted operation.
const OPERATIONS: [&str; 9] = [
    "log append",
    "log read",
    "queue push",
    "queue pop, acknowledge",
    "map put",
    "map get",
    "tree put",
    "tree get",
    "tree range of 10",
];

#[derive(Debug, Serialize)]
struct Row {
    operation: &'static str,
    instructions: u64,
}

/// Counts all with values of this size, or is one of the runs that are counted: so many of an operation.
pub fn run(Size(bytes): Size, counted_run: Option<(&str, u64)>, json: bool) -> anyhow::Result<()> {
    if bytes > BYTES_MAX {
        bail!(Failure::Usage(format!(
            "--bytes takes at most {BYTES_MAX} with --instructions, not {bytes}"
        )));
    }
    if let Some((operation, count)) = counted_run {
        return perform(operation, count, bytes as usize);
    }
    let mut rows = Vec::new();
    for operation in OPERATIONS {
        let [few, many] = [
            counted(operation, COUNTS[0], bytes)?,
            counted(operation, COUNTS[1], bytes)?,
        ];
        let instructions = many.saturating_sub(few) / (COUNTS[1] - COUNTS[0]);
        rows.push(Row {
            operation,
            instructions,
        });
    }
    if json {
        println!("{}", serde_json::json!({ "bytes": bytes, "rows": rows }));
        return Ok(());
    }
    println!("instructions of the library for an operation with {bytes} bytes (valgrind)\n");
    for row in &rows {
        println!("{:<24} {:>8}", row.operation, row.instructions);
    }
    Ok(())
}

/// Instructions of a run of this program with so many operations.
fn counted(operation: &str, count: u64, bytes: u64) -> anyhow::Result<u64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(std::env::current_exe()?)
        .args(["bench", "store", "--instructions", "--operation", operation])
        .args(["--count", &count.to_string(), "--bytes", &bytes.to_string()])
        .output()
        .context("valgrind does not start (Debian: apt install valgrind)")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "valgrind failed: {}", said.trim());
    let collected = said.lines().find_map(|line| line.split_once("Collected : "));
    let count = collected.and_then(|(_, count)| count.trim().parse().ok());
    count.with_context(|| format!("valgrind counted nothing: {}", said.trim()))
}

/// `count` operations, after what they need.
fn perform(operation: &str, count: u64, bytes: usize) -> anyhow::Result<()> {
    let area = Area::memory(&AreaOptions::new(AREA_BYTES), None)?;
    let value = vec![0x5a; bytes];
    let prepared = |insert: &dyn Fn(u64) -> anyhow::Result<()>| (0..PREPARED).try_for_each(insert);
    let mut each: Box<dyn FnMut(u64) -> anyhow::Result<()>> = match operation {
        "log append" | "log read" => {
            let log = area.log("it")?;
            if operation == "log append" {
                let value = &value;
                Box::new(move |_| Ok(log.append(value).map(drop)?))
            } else {
                prepared(&|_| Ok(log.append(&value).map(drop)?))?;
                Box::new(move |at| log.read(at)?.map(drop).context("it was appended"))
            }
        }
        "queue push" | "queue pop, acknowledge" => {
            let queue = area.queue("it")?;
            if operation == "queue push" {
                let value = &value;
                Box::new(move |_| Ok(queue.push(value).map(drop)?))
            } else {
                prepared(&|_| Ok(queue.push(&value).map(drop)?))?;
                Box::new(move |_| {
                    let (position, _) = queue.pop()?.context("it was pushed")?;
                    Ok(queue.acknowledge(position)?)
                })
            }
        }
        "map put" | "map get" => {
            let map = area.map("it")?;
            if operation == "map put" {
                let value = &value;
                Box::new(move |at| Ok(map.put(&key(0, at), value)?))
            } else {
                prepared(&|at| Ok(map.put(&key(0, at), &value)?))?;
                Box::new(move |at| map.get(&key(0, at))?.map(drop).context("it was put"))
            }
        }
        _ => {
            let tree = area.tree("it")?;
            let value = &value;
            if operation == "tree put" {
                Box::new(move |at| Ok(tree.put(&key(0, at), value)?))
            } else {
                prepared(&|at| Ok(tree.put(&key(0, at), value)?))?;
                match operation {
                    "tree get" => Box::new(move |at| tree.get(&key(0, at))?.map(drop).context("it was put")),
                    _ => Box::new(move |at| {
                        let from = key(0, at);
                        let range = (Bound::Included(&from[..]), Bound::Unbounded);
                        let mut found = tree.range(range).take(10);
                        found.try_for_each(|it| Ok(it.map(drop)?))
                    }),
                }
            }
        }
    };
    (0..count).try_for_each(&mut each)
}

/// Sixteen bytes, new each time, in no order.
pub(super) fn key(thread: usize, count: u64) -> [u8; 16] {
    let mut key = [0; 16];
    let scattered = (count << 8 | thread as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    key[..8].copy_from_slice(&scattered.to_be_bytes());
    key[8..].copy_from_slice(&count.to_be_bytes());
    key
}

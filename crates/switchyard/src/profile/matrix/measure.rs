//! One cell: fio at depth 1 under the profiler.

use super::cell::{Cell, Engine, Outcome};
use super::ground::{FILE_BYTES, Ground};
use crate::control::client::Client;
use crate::profile::own::{self, requests as requests_of};
use anyhow::{Context, bail};
use profile::attribute::{Finding, LAYERS, Layer};
use profile::devices::Devices;
use profile::session::{self, Options, Profile, Target};
use profile::summary::{OperationSummary, Summary};
use runtime::SPAN_LAYERS;
use serde_json::Value;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Longest time that a cell may take beyond its load: layout, a slow last request, a sync.
const GRACE: Duration = Duration::from_secs(60);

/// Measures it.
pub fn cell(ground: &mut Ground, cell: &Cell, seconds: f64, stop: &AtomicBool) -> anyhow::Result<Outcome> {
    ground.prepare(&cell.system)?;
    let result = ground.device.with_extension("fio");
    let result = std::env::temp_dir().join(format!(
        "switchyard-{}-{}",
        std::process::id(),
        result.file_name().unwrap_or_default().to_string_lossy()
    ));
    let limit = Duration::from_secs_f64(seconds) + GRACE;
    let outcome = match cell.engine {
        Engine::Nbd => own(ground, cell, load(cell, seconds, &result), limit, &result, stop),
        _ => kernel(ground, cell, load(cell, seconds, &result), limit, stop),
    };
    let _ = std::fs::remove_file(&result);
    outcome
}

/// fio's words for a cell. The load ends when all of the file is done or its time is over.
fn load(cell: &Cell, seconds: f64, result: &Path) -> Vec<OsString> {
    let size = FILE_BYTES / cell.bytes * cell.bytes;
    let (rw, milliseconds) = (
        if cell.is_write { "write" } else { "read" },
        (seconds * 1e3).ceil(),
    );
    let engine: &[&str] = match cell.engine {
        Engine::Direct => &["--ioengine=psync", "--direct=1"],
        Engine::Uring => &["--ioengine=io_uring", "--direct=1"],
        Engine::Buffered if cell.is_write => &["--ioengine=psync", "--end_fsync=1"],
        Engine::Buffered => &["--ioengine=psync"],
        Engine::Nbd => &["--ioengine=nbd"],
    };
    let words = [
        "fio".to_owned(),
        "--name=cell".to_owned(),
        format!("--rw={rw}"),
        format!("--bs={}", cell.bytes),
        format!("--size={size}"),
        format!("--runtime={milliseconds}ms"),
        "--iodepth=1".to_owned(),
        "--fallocate=none".to_owned(),
        "--invalidate=1".to_owned(),
        "--output-format=json".to_owned(),
        format!("--output={}", result.display()),
    ];
    let words = words
        .into_iter()
        .chain(engine.iter().map(|word| (*word).to_owned()));
    words.map(OsString::from).collect()
}

/// Profiles a load, and adds up how long the device had something: what `each` bio was there for.
fn profiled(
    ground: &Ground,
    words: Vec<OsString>,
    limit: Duration,
    stop: &AtomicBool,
) -> anyhow::Result<(Profile, f64)> {
    let device = Devices::read()
        .of_path(&ground.device)
        .map_err(anyhow::Error::msg)?;
    let options = Options {
        target: Target::Command(words),
        device: Some(device),
        limit: Some(limit),
        quiet_output: true,
        stacks: false,
    };
    let mut at_work: Vec<(u64, u64)> = Vec::new();
    let found = session::run(&options, stop, |finding| {
        if let Finding::Bio(bio) = finding {
            at_work.push((bio.done_ns - bio.d2c_ns, bio.done_ns));
        }
    })?;
    match found.status {
        Some(status) if status.success() => Ok((found, union_us(at_work))),
        Some(status) => bail!("fio ended with {status}"),
        None => bail!("fio did not end"),
    }
}

/// Time that at least one of the spans covers, µs.
fn union_us(mut spans: Vec<(u64, u64)>) -> f64 {
    spans.sort_unstable();
    let (mut covered_ns, mut until_ns) = (0, 0);
    for (from_ns, to_ns) in spans {
        covered_ns += to_ns.saturating_sub(from_ns.max(until_ns));
        until_ns = until_ns.max(to_ns);
    }
    covered_ns as f64 / 1e3
}

/// Of the kernel's own path: the layers of the program's operations.
fn kernel(
    ground: &mut Ground,
    cell: &Cell,
    mut words: Vec<OsString>,
    limit: Duration,
    stop: &AtomicBool,
) -> anyhow::Result<Outcome> {
    let target = ground.target(cell.is_write, cell.is_preallocated)?;
    words.push(format!("--filename={}", target.display()).into());
    let (found, _) = profiled(ground, words, limit, stop)?;
    let summary = Summary::new(&found, cell.name())?;
    let action = if cell.is_write { "write" } else { "read" };
    let is_request = |row: &&OperationSummary| {
        row.action == action
            && row.bytes_max == cell.bytes.next_power_of_two()
            && matches!(row.interface.as_str(), "call" | "io_uring")
    };
    let is_sync = |row: &&OperationSummary| {
        cell.is_write && cell.engine == Engine::Buffered && row.action == "sync" && row.interface == "call"
    };
    let requests: u64 = summary
        .operations
        .iter()
        .filter(is_request)
        .map(|row| row.count)
        .sum();
    if requests == 0 {
        bail!("the profiler saw no request");
    }
    let rows: Vec<&OperationSummary> = summary
        .operations
        .iter()
        .filter(|row| is_request(row) || is_sync(row))
        .collect();
    let each =
        |of: &dyn Fn(&OperationSummary) -> f64| rows.iter().map(|row| of(row)).sum::<f64>() / requests as f64;
    let layers: Vec<(String, f64)> = LAYERS
        .iter()
        .enumerate()
        .map(|(index, layer)| {
            let mean = each(&|row| row.layers[index].times.mean_us * row.count as f64);
            (layer.name().to_owned(), mean)
        })
        .collect();
    let mean_us: f64 = layers.iter().map(|(_, us)| us).sum();
    Ok(Outcome {
        cell: cell.clone(),
        requests,
        mean_us,
        software_share: 1.0 - layers[Layer::Device as usize].1 / mean_us,
        layers,
        probes_share: summary.probes.share,
        bios: each(&|row| row.bios as f64),
        splits: each(&|row| row.splits as f64),
        merges: each(&|row| row.merged as f64),
        lost: summary.probes.lost,
    })
}

/// Of Switchyard's target on the bare device: what a client sees, less the time in which the device was at work.
fn own(
    ground: &Ground,
    cell: &Cell,
    mut words: Vec<OsString>,
    limit: Duration,
    result: &Path,
    stop: &AtomicBool,
) -> anyhow::Result<Outcome> {
    let target = Serving::start(&ground.device)?;
    words.push(format!("--uri={}", target.uri).into());
    let client = Client::new(&target.control);
    let before = client.status()?;
    let (found, device_us) = profiled(ground, words, limit, stop)?;
    let after = client.status()?;
    let text = std::fs::read_to_string(result).context("cannot read fio's result")?;
    let fio: Value = serde_json::from_str(&text).context("cannot read fio's result")?;
    let side = &fio["jobs"][0][if cell.is_write { "write" } else { "read" }];
    let number = |value: &Value| value.as_f64().context("fio's result lacks a number");
    let (requests, mean_us) = (
        number(&side["total_ios"])?,
        number(&side["lat_ns"]["mean"])? / 1e3,
    );
    if requests == 0.0 {
        bail!("the profiler saw no request");
    }
    let device_us = (device_us / requests).min(mean_us);
    let rows = requests_of(&before.spans, &after.spans);
    let rows = rows
        .iter()
        .filter(|row| (row.action == "write") == cell.is_write && row.bytes_max > 0);
    let layers = own_layers(&rows.collect::<Vec<_>>(), requests, mean_us, device_us);
    let bios: u64 = found.tables.devices.values().map(|row| row.d2c.len()).sum();
    Ok(Outcome {
        cell: cell.clone(),
        requests: requests as u64,
        mean_us,
        software_share: 1.0 - device_us / mean_us,
        layers,
        // They are in the share of software: what they cost the target is not told apart.
        probes_share: 0.0,
        bios: bios as f64 / requests,
        splits: 0.0,
        merges: 0.0,
        lost: found.losses.lost,
    })
}

/// What the target counted, a client's request; the rest of what the client saw is its own and the socket's. While the
/// target waits for its medium, what is not the device's is the kernel's.
fn own_layers(rows: &[&OperationSummary], requests: f64, mean_us: f64, device_us: f64) -> Vec<(String, f64)> {
    let each = |of: &dyn Fn(&OperationSummary) -> f64| {
        rows.iter().map(|row| row.count as f64 * of(row)).sum::<f64>() / requests
    };
    let mut layers = vec![(
        "client and socket".to_owned(),
        (mean_us - each(&|row| row.times.mean_us)).max(0.0),
    )];
    for (place, name) in SPAN_LAYERS.into_iter().enumerate() {
        let us = each(&|row| row.layers[place].times.mean_us);
        if name == own::MEDIA {
            layers.push((
                "system call and block layer".to_owned(),
                (us - device_us).max(0.0),
            ));
            layers.push((Layer::Device.name().to_owned(), device_us));
        } else {
            layers.push((name.to_owned(), us));
        }
    }
    layers
}

/// Our target in a process of its own.
struct Serving {
    uri: String,
    control: String,
    process: Child,
}

impl Serving {
    fn start(device: &Path) -> anyhow::Result<Self> {
        let program: PathBuf = std::env::current_exe()?;
        let mut command = Command::new(program);
        // It would hold the device for ever if we were killed.
        session::end_with_us(&mut command);
        let mut process = command
            .arg("serve")
            .arg("--media")
            .arg(device)
            .args([
                "--name",
                "disk",
                "--json",
                "--nbd",
                "127.0.0.1:0",
                "--control",
                "127.0.0.1:0",
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        let ready = process
            .stdout
            .take()
            .map(|out| BufReader::new(out).read_line(&mut line));
        let mut serving = Self {
            uri: String::new(),
            control: String::new(),
            process,
        };
        if !matches!(ready, Some(Ok(bytes)) if bytes > 0) {
            bail!("the target did not start");
        }
        let told: Value = serde_json::from_str(&line)?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        serving.uri = text(&told["volumes"][0]["nbd"][0]);
        serving.control = text(&told["control"]);
        Ok(serving)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_devices_time_is_counted_once_however_many_are_there() {
        assert_eq!(union_us(vec![]), 0.0);
        assert_eq!(
            union_us(vec![(5000, 9000), (1000, 6000), (2000, 3000), (20_000, 21_000)]),
            9.0
        );
    }
}

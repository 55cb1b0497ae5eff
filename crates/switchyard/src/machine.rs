//! The machine of a measurement, and the processor time of a process.

use serde::Serialize;
use std::time::{Duration, Instant};

/// Origin of a measurement.
#[derive(Clone, Debug, Serialize)]
pub struct About {
    /// Model of the processor.
    pub processor: String,
    /// Processors that this process may use.
    pub processors: usize,
    /// Release of the kernel.
    pub kernel: String,
    /// Commit that the program was built from, if known.
    pub commit: &'static str,
    /// Version of the program.
    pub version: &'static str,
}

/// This machine.
pub fn about() -> About {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let model = read("/proc/cpuinfo");
    let model = model.lines().find_map(|line| line.strip_prefix("model name"));
    About {
        processor: model
            .map_or("unknown processor", |text| {
                text.trim_start_matches([' ', '\t', ':'])
            })
            .to_owned(),
        processors: runtime::cpu::count(),
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        commit: option_env!("SWITCHYARD_COMMIT").unwrap_or("unknown"),
        version: env!("CARGO_PKG_VERSION"),
    }
}

/// Ticks of `/proc/PID/stat` in a second: fixed by the kernel's interface on every architecture Linux runs on here.
const TICKS_PER_SECOND: u64 = 100;

/// Processor time that a process of this machine has taken; `None` if there is no such process here.
pub fn cpu_time(pid: u32) -> Option<Duration> {
    parse_stat(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The sum of fields 14 and 15 (proc(5): `utime`, `stime`). The second field may contain spaces and parentheses.
fn parse_stat(text: &str) -> Option<Duration> {
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(Duration::from_millis((user + system) * 1000 / TICKS_PER_SECOND))
}

/// Share of one processor that a process takes during `time`, in percent.
pub fn idle_cpu_percent(pid: u32, time: Duration) -> Option<f64> {
    let (before, start) = (cpu_time(pid)?, Instant::now());
    std::thread::sleep(time);
    let used = cpu_time(pid)?.saturating_sub(before);
    Some(used.as_secs_f64() / start.elapsed().as_secs_f64() * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_read_past_any_name() {
        let text = "7 (a b) c) S 1 7 7 0 -1 4194560 1 2 3 4 150 50 0 0 20 0 1 0 1 1 1";
        assert_eq!(parse_stat(text), Some(Duration::from_secs(2)));
        assert_eq!(parse_stat(""), None);
        assert!(cpu_time(std::process::id()).is_some());
    }
}

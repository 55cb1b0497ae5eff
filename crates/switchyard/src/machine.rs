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
    parse_stat(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?, OWN)
}

/// Processor time that children of this process have taken that have ended, and for which it has waited.
pub fn children_cpu_time() -> Option<Duration> {
    parse_stat(&std::fs::read_to_string("/proc/self/stat").ok()?, CHILDREN)
}

/// Fields before `utime` and `stime`, and before those of children, behind the name (proc(5)).
const OWN: usize = 11;
const CHILDREN: usize = 13;

/// The sum of two fields. The second field of all may contain spaces and parentheses.
fn parse_stat(text: &str, before: usize) -> Option<Duration> {
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(before);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(Duration::from_millis((user + system) * 1000 / TICKS_PER_SECOND))
}

/// Processor time of the whole machine, from one look to the other.
pub struct Busy {
    begin: Instant,
    rest: Rest,
}

/// What the processors did not do, since the machine's start.
struct Rest {
    processors: u32,
    idle: Duration,
}

impl Busy {
    /// The first look; `None` if the kernel does not tell.
    pub fn begin() -> Option<Self> {
        Some(Self {
            begin: Instant::now(),
            rest: parse_rest(&std::fs::read_to_string("/proc/stat").ok()?)?,
        })
    }

    /// What all processors have done since, for whomever.
    pub fn end(&self) -> Option<Duration> {
        let now = parse_rest(&std::fs::read_to_string("/proc/stat").ok()?)?;
        let all = self.begin.elapsed() * now.processors;
        Some(all.saturating_sub(now.idle.saturating_sub(self.rest.idle)))
    }
}

/// Idle time, and what waits for devices or is given to other guests (proc(5): `idle`, `iowait`, `steal`).
fn parse_rest(text: &str) -> Option<Rest> {
    let all = text.lines().next()?.strip_prefix("cpu ")?;
    let fields: Vec<u64> = all
        .split_ascii_whitespace()
        .map_while(|field| field.parse().ok())
        .collect();
    let ticks: u64 = [3, 4, 7]
        .iter()
        .map(|at| fields.get(*at).copied())
        .sum::<Option<u64>>()?;
    let each = text.lines().skip(1).take_while(|line| line.starts_with("cpu"));
    Some(Rest {
        processors: each.count() as u32,
        idle: Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND),
    })
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
        assert_eq!(parse_stat(text, OWN), Some(Duration::from_secs(2)));
        assert_eq!(parse_stat(text, CHILDREN), Some(Duration::ZERO));
        assert_eq!(parse_stat("", OWN), None);
        assert!(cpu_time(std::process::id()).is_some());
    }
    #[test]
    fn the_rest_of_the_machine_is_what_is_idle_waits_or_is_stolen() {
        let text = "cpu  10 0 20 300 40 0 0 60 0 0\ncpu0 5 0 10 150 20 0 0 30 0 0\ncpu1 5 0 10 150 20 0 0 30 0 0\nintr 7\n";
        let rest = parse_rest(text).expect("it is what the kernel writes");
        assert_eq!((rest.processors, rest.idle), (2, Duration::from_secs(4)));
        assert!(parse_rest("intr 7").is_none());
        assert!(Busy::begin().and_then(|busy| busy.end()).is_some());
    }
}

//! An own instance of the kernel's trace buffers: other users of tracing are not disturbed, and what is left behind by a
//! killed profiler is removed by the next.

pub mod format;
pub mod ring;

use format::{Format, PageLayout};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Where tracefs is found, in order.
const MOUNTS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// Prefix of our instances' names; the process follows.
const PREFIX: &str = "switchyard-";

/// Obstacles to tracing.
#[derive(Debug, Error)]
pub enum TraceError {
    /// No tracefs.
    #[error(
        "the kernel's trace files are missing: as root, run mount -t tracefs tracefs /sys/kernel/tracing"
    )]
    NotMounted,
    /// No rights.
    #[error(
        "{path}: permission denied: profiling needs root (or CAP_SYS_ADMIN, CAP_DAC_OVERRIDE) and a kernel that is not locked down"
    )]
    Denied {
        /// The refused file.
        path: PathBuf,
    },
    /// Somebody traces functions: what that costs would count as the kernel's time.
    #[error(
        "{path}: the tracer `{tracer}` is on, and its cost would count as the kernel's own time: if nobody needs the tracer, \
         run as root: echo nop > {path}"
    )]
    Busy {
        /// The file that sets it.
        path: PathBuf,
        /// Which.
        tracer: String,
    },
    /// Anything else.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// How.
        source: io::Error,
    },
    /// The kernel describes something that this program does not understand.
    #[error("{path}: the kernel's description is not understood")]
    Description {
        /// The file that describes it.
        path: PathBuf,
    },
    /// The trace itself.
    #[error(transparent)]
    Malformed(#[from] ring::Malformed),
}

impl TraceError {
    fn at(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        move |source| match source.kind() {
            io::ErrorKind::PermissionDenied => Self::Denied {
                path: path.to_path_buf(),
            },
            _ => Self::Io {
                path: path.to_path_buf(),
                source,
            },
        }
    }
}

/// The root of tracefs.
pub fn root() -> Result<PathBuf, TraceError> {
    for mount in MOUNTS {
        let events = Path::new(mount).join("events");
        match fs::metadata(&events) {
            Ok(_) => return Ok(PathBuf::from(mount)),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(TraceError::Denied { path: events });
            }
            Err(_) => {}
        }
    }
    Err(TraceError::NotMounted)
}

/// Refuses to trace beside a tracer of functions. Other users of events are no trouble.
pub fn check_quiet(root: &Path) -> Result<(), TraceError> {
    let instances = fs::read_dir(root.join("instances"))
        .into_iter()
        .flatten()
        .flatten();
    for place in instances.map(|entry| entry.path()).chain([root.to_path_buf()]) {
        let path = place.join("current_tracer");
        // An instance may have gone meanwhile.
        let tracer = fs::read_to_string(&path).unwrap_or_default();
        if !matches!(tracer.trim(), "" | "nop") {
            return Err(TraceError::Busy {
                path,
                tracer: tracer.trim().to_owned(),
            });
        }
    }
    Ok(())
}

/// Reads a file of tracefs: some give what they hold to the first read only, however small that is.
fn read(path: &Path) -> Result<String, TraceError> {
    let read = || {
        let mut text = vec![0; 64 * 1024];
        let mut file = File::open(path)?;
        let mut bytes = 0;
        loop {
            match file.read(&mut text[bytes..])? {
                0 => break,
                more => bytes += more,
            }
        }
        text.truncate(bytes);
        String::from_utf8(text).map_err(io::Error::other)
    };
    read().map_err(TraceError::at(path))
}

/// The description of `group/name`, or `None` if this kernel has no such event.
pub fn format(root: &Path, event: &str) -> Result<Option<Format>, TraceError> {
    let path = root.join("events").join(event).join("format");
    if !path.exists() {
        return Ok(None);
    }
    match Format::parse(&read(&path)?) {
        Some(format) => Ok(Some(format)),
        None => Err(TraceError::Description { path }),
    }
}

/// The layout of the buffer's pages.
pub fn page_layout(root: &Path) -> Result<PageLayout, TraceError> {
    let path = root.join("events/header_page");
    PageLayout::parse(&read(&path)?).ok_or(TraceError::Description { path })
}

/// Trace buffers of our own, stopped until [`Instance::start`], removed when dropped.
pub struct Instance {
    path: PathBuf,
}

impl Instance {
    /// Makes buffers of `kib_per_cpu` that are stamped with CLOCK_MONOTONIC.
    pub fn create(root: &Path, name: &str, kib_per_cpu: usize) -> Result<Self, TraceError> {
        let instances = root.join("instances");
        remove_abandoned(&instances);
        let path = instances.join(format!("{PREFIX}{}-{name}", std::process::id()));
        // A killed profiler may have had our number.
        let _ = fs::remove_dir(&path);
        fs::create_dir(&path).map_err(TraceError::at(&path))?;
        let instance = Self { path };
        instance.set("tracing_on", "0")?;
        instance.set("trace_clock", "mono")?;
        instance.set("buffer_size_kb", &kib_per_cpu.to_string())?;
        Ok(instance)
    }

    fn set(&self, file: &str, value: &str) -> Result<(), TraceError> {
        let path = self.path.join(file);
        fs::write(&path, value).map_err(TraceError::at(&path))
    }

    /// Of the event `group/name` only what `filter` takes is recorded (Documentation/trace/events.rst §5).
    pub fn set_filter(&self, event: &str, filter: &str) -> Result<(), TraceError> {
        self.set(&format!("events/{event}/filter"), filter)
    }

    /// Records the event `group/name`.
    pub fn enable(&self, event: &str, filter: Option<&str>) -> Result<(), TraceError> {
        if let Some(filter) = filter {
            self.set_filter(event, filter)?;
        }
        self.set(&format!("events/{event}/enable"), "1")
    }

    /// Records no event of a kind any more.
    pub fn disable(&self, event: &str) -> Result<(), TraceError> {
        self.set(&format!("events/{event}/enable"), "0")
    }

    /// Begins to record.
    pub fn start(&self) -> Result<(), TraceError> {
        self.set("tracing_on", "1")
    }

    /// Ends recording; what was recorded can still be read.
    pub fn stop(&self) -> Result<(), TraceError> {
        self.set("tracing_on", "0")
    }

    /// A reader for each CPU.
    pub fn readers(&self) -> Result<Vec<CpuReader>, TraceError> {
        let per_cpu = self.path.join("per_cpu");
        let mut cpus: Vec<u32> = fs::read_dir(&per_cpu)
            .map_err(TraceError::at(&per_cpu))?
            .filter_map(|entry| {
                entry
                    .ok()?
                    .file_name()
                    .to_str()?
                    .strip_prefix("cpu")?
                    .parse()
                    .ok()
            })
            .collect();
        cpus.sort_unstable();
        cpus.into_iter()
            .map(|cpu| {
                let path = per_cpu.join(format!("cpu{cpu}/trace_pipe_raw"));
                let file = OpenOptions::new()
                    .read(true)
                    .custom_flags(libc::O_NONBLOCK)
                    .open(&path)
                    .map_err(TraceError::at(&path))?;
                Ok(CpuReader { cpu, path, file })
            })
            .collect()
    }

    /// Events that were overwritten or dropped because the buffers were full.
    pub fn lost(&self) -> Result<u64, TraceError> {
        let per_cpu = self.path.join("per_cpu");
        let mut lost = 0;
        for entry in fs::read_dir(&per_cpu)
            .map_err(TraceError::at(&per_cpu))?
            .flatten()
        {
            let stats = read(&entry.path().join("stats"))?;
            for line in stats.lines() {
                if let Some(("overrun" | "dropped events", count)) = line.split_once(": ") {
                    lost += count.trim().parse::<u64>().unwrap_or(0);
                }
            }
        }
        Ok(lost)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = self.stop();
        let _ = self.set("events/enable", "0");
        // Readers that are still open keep it; the next profiler removes it then.
        let _ = fs::remove_dir(&self.path);
    }
}

/// Removes the instances of profilers that are no more. The kernel refuses it for one that is read, by a profiler of
/// another PID namespace.
fn remove_abandoned(instances: &Path) {
    for entry in fs::read_dir(instances).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name
            .to_str()
            .and_then(|name| name.strip_prefix(PREFIX))
            .and_then(|rest| rest.split('-').next());
        if let Some(process) = process
            && !Path::new("/proc").join(process).exists()
        {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// Reads the buffer of one CPU page by page.
pub struct CpuReader {
    /// The CPU.
    pub cpu: u32,
    path: PathBuf,
    file: File,
}

impl CpuReader {
    /// Reads a page, a partly filled one too. False if there is nothing to read.
    pub fn read_page(&mut self, page: &mut [u8]) -> Result<bool, TraceError> {
        match self.file.read(page) {
            Ok(0) => Ok(false),
            Ok(_) => Ok(true),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                Ok(false)
            }
            Err(error) => Err(TraceError::at(&self.path)(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tracer_of_functions_is_refused_wherever_it_is_on() {
        let dir = tempfile::tempdir().expect("a directory");
        let instance = dir.path().join("instances/other");
        fs::create_dir_all(&instance).expect("a directory");
        for place in [dir.path(), &instance] {
            fs::write(place.join("current_tracer"), "nop\n").expect("a file");
        }
        check_quiet(dir.path()).expect("nobody traces functions");
        fs::write(instance.join("current_tracer"), "function\n").expect("a file");
        let refusal = check_quiet(dir.path()).expect_err("somebody does").to_string();
        assert!(
            refusal.contains("`function` is on") && refusal.contains("other/current_tracer"),
            "{refusal}"
        );
    }
}

//! What a probe costs here: a cheap system call with its two events recorded and without, in turns.
//!
//! The cost of every event is taken to be that of these: the records of system calls (24 and 64 bytes) lie around those of
//! bios and requests (48 to 64). The error that this leaves is measured too, on another null workload.

use crate::clock::now_ns;
use crate::tracefs::{self, Instance, TraceError};

const ROUNDS: usize = 15;
const CALLS: u32 = 10_000;
const BUFFER_KIB: usize = 1024;

/// What the probes cost on this machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Calibration {
    /// An event, ns.
    pub event_ns: f64,
    /// A read of nothing without probes, as the program sees it, ns.
    pub null_ns: f64,
    /// The same with probes, their cost subtracted, ns.
    pub null_corrected_ns: f64,
}

impl Calibration {
    /// What the correction leaves of a null workload, as a share of it.
    pub fn error(&self) -> f64 {
        (self.null_corrected_ns - self.null_ns) / self.null_ns
    }

    /// Measures. It takes some tens of milliseconds and leaves nothing behind.
    pub fn measure() -> Result<Self, TraceError> {
        let root = tracefs::root()?;
        let probes = Probes::new(&root, libc::SYS_getppid)?;
        let (off, on) = probes.compare(|| {
            // SAFETY: getppid has no arguments and cannot fail.
            unsafe { libc::syscall(libc::SYS_getppid) };
        })?;
        let event_ns = (on - off).max(0.0) / 2.0;
        drop(probes);
        let probes = Probes::new(&root, libc::SYS_pread64)?;
        let zero = std::fs::File::open("/dev/zero").map_err(|source| TraceError::Io {
            path: "/dev/zero".into(),
            source,
        })?;
        let mut buffer = [0; 4096];
        let (off, on) = probes.compare(|| {
            let _ = std::os::unix::fs::FileExt::read_at(&zero, &mut buffer, 0);
        })?;
        Ok(Self {
            event_ns,
            null_ns: off,
            null_corrected_ns: on - 2.0 * event_ns,
        })
    }
}

/// The two events of one system call of this thread.
struct Probes(Instance);

const EVENTS: [&str; 2] = ["raw_syscalls/sys_enter", "raw_syscalls/sys_exit"];

impl Probes {
    fn new(root: &std::path::Path, call: i64) -> Result<Self, TraceError> {
        let instance = Instance::create(root, &format!("calibrate-{call}"), BUFFER_KIB)?;
        // SAFETY: gettid has no arguments and cannot fail.
        let thread = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
        instance.follow(&[thread])?;
        for event in EVENTS {
            instance.set_filter(event, &format!("id == {call}"))?;
        }
        instance.start()?;
        Ok(Self(instance))
    }

    /// Time of a call without and with the events, ns: lower quartiles of interleaved rounds, as others on the machine
    /// only add to a round.
    fn compare(&self, mut call: impl FnMut()) -> Result<(f64, f64), TraceError> {
        let mut round = || {
            let begin_ns = now_ns();
            for _ in 0..CALLS {
                call();
            }
            (now_ns() - begin_ns) as f64 / f64::from(CALLS)
        };
        let (mut off, mut on) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            off.push(round());
            for event in EVENTS {
                self.0.enable(event, None)?;
            }
            on.push(round());
            for event in EVENTS {
                self.0.disable(event)?;
            }
        }
        Ok((lower_quartile(off), lower_quartile(on)))
    }
}

fn lower_quartile(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 4]
}

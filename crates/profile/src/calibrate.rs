//! The cost of a probe here: a cheap system call with and without its two events recorded, in turns.
//!
//! The cost of every event is taken to be that of these: the records of system calls (24 and 64 bytes) lie around those of
//! bios and requests (48 to 64). The error that this leaves is measured too, on another null workload.
//!
//! Time is this thread's own on its processor, so that what others do meanwhile does not count, in short rounds with and
//! without in turns; of the differences between neighbours the median counts, so up to half of the rounds may be disturbed.

use crate::clock::thread_ns;
use crate::tracefs::{self, Instance, TraceError};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Some 100 ms in all.
const ROUNDS: usize = 61;
const CALLS: u32 = 1000;
/// Holds the events of a round and is written over by those of the next.
const BUFFER_KIB: usize = 256;
const EVENTS: [&str; 2] = ["raw_syscalls/sys_enter", "raw_syscalls/sys_exit"];

/// How often it is measured again when the error is more than [`ERROR_MAX`].
const ATTEMPTS: usize = 5;
/// More than this of a null workload, as a share, is no correction.
pub const ERROR_MAX: f64 = 0.25;

/// Cost of the probes on this machine.
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
    /// The rest of a null workload after the correction, as a share of the workload.
    pub fn error(&self) -> f64 {
        (self.null_corrected_ns - self.null_ns) / self.null_ns
    }

    /// True if what the correction leaves is no more than [`ERROR_MAX`].
    pub fn is_sure(&self) -> bool {
        self.error().abs() <= ERROR_MAX
    }

    /// Measures, if need be several times. It takes about 100 ms and leaves nothing behind.
    pub fn measure() -> Result<Self, TraceError> {
        let mut found = Self::attempt()?;
        for _ in 1..ATTEMPTS {
            if found.is_sure() {
                break;
            }
            found = Self::attempt()?;
        }
        Ok(found)
    }

    fn attempt() -> Result<Self, TraceError> {
        let instance = Instance::create(&tracefs::root()?, "calibrate", BUFFER_KIB)?;
        for event in EVENTS {
            let filter = format!("id == {} || id == {}", libc::SYS_getppid, libc::SYS_pread64);
            instance.set_filter(event, &filter)?;
        }
        instance.start()?;
        let zero = File::open("/dev/zero").map_err(|source| TraceError::Io {
            path: "/dev/zero".into(),
            source,
        })?;
        let mut buffer = [0; 4096];
        let mut round = || {
            let empty_ns = mean_ns(|| {
                // SAFETY: getppid has no arguments and cannot fail.
                unsafe { libc::syscall(libc::SYS_getppid) };
            });
            let null_ns = mean_ns(|| {
                let _ = zero.read_at(&mut buffer, 0);
            });
            [empty_ns, null_ns]
        };
        let (mut off, mut on) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            off.push(round());
            for event in EVENTS {
                instance.enable(event, None)?;
            }
            on.push(round());
            for event in EVENTS {
                instance.disable(event)?;
            }
        }
        off.push(round());
        Ok(Self::of(&off, &on))
    }

    /// Of rounds without the events and, between any two of them, one with: the mean time of the two calls, ns.
    fn of(off: &[[f64; 2]], on: &[[f64; 2]]) -> Self {
        let added = |call: usize| {
            let between = off.windows(2).zip(on);
            median(between.map(|(off, on)| on[call] - (off[0][call] + off[1][call]) / 2.0))
        };
        let event_ns = (added(0) / 2.0).max(0.0);
        let null_ns = median(off.iter().map(|round| round[1]));
        Self {
            event_ns,
            null_ns,
            null_corrected_ns: null_ns + added(1) - 2.0 * event_ns,
        }
    }
}

fn mean_ns(mut call: impl FnMut()) -> f64 {
    let begin_ns = thread_ns();
    for _ in 0..CALLS {
        call();
    }
    (thread_ns() - begin_ns) as f64 / f64::from(CALLS)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disturbed_rounds_change_nothing_while_they_are_fewer_than_half() {
        let (mut off, mut on) = (vec![[100.0, 400.0]; 10], vec![[600.0, 930.0]; 9]);
        let calm = Calibration::of(&off, &on);
        assert_eq!(
            (calm.event_ns, calm.null_ns, calm.null_corrected_ns),
            (250.0, 400.0, 430.0)
        );
        assert_eq!(calm.error(), 0.075);
        (off[3], on[6], on[8]) = ([9e6, 9e6], [9e6, 9e6], [9e6, 9e6]);
        assert_eq!(Calibration::of(&off, &on), calm);
    }
}

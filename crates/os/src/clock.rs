//! The runtime's clock: `CLOCK_MONOTONIC`, whose epoch is the machine's boot, so that the hosts of every core and
//! process of one machine agree on the time.

use base::Instant;
use core::time::Duration;

/// Now.
pub fn now() -> Instant {
    let (seconds, ns) = read(libc::CLOCK_MONOTONIC);
    Instant::from_nanos(seconds as u64 * 1_000_000_000 + u64::from(ns))
}

/// The wall clock. Zero, if it says that it is before 1970.
pub fn since_1970() -> Duration {
    let (seconds, ns) = read(libc::CLOCK_REALTIME);
    u64::try_from(seconds).map_or(Duration::ZERO, |seconds| Duration::new(seconds, ns))
}

fn read(clock: libc::clockid_t) -> (i64, u32) {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid place for the result.
    let result = unsafe { libc::clock_gettime(clock, &mut time) };
    assert_eq!(result, 0, "every Linux has these clocks");
    (time.tv_sec, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    #[test]
    fn time_does_not_go_backwards() {
        let mut last = super::now();
        for _ in 0..10_000 {
            let now = super::now();
            assert!(now >= last);
            last = now;
        }
    }
}

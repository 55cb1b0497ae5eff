//! The runtime's clock: `CLOCK_MONOTONIC`, whose epoch is the machine's boot, so that the hosts of every core and
//! process of one machine agree on the time.

use base::Instant;

/// Now.
pub fn now() -> Instant {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid place for the result.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    assert_eq!(result, 0, "every Linux has CLOCK_MONOTONIC");
    Instant::from_nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
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

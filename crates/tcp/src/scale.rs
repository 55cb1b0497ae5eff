//! How many cores serve flows (TAS §3.4): asked every [`PERIOD`], from how idle they were.

use base::Duration;

/// How often the number of cores is looked at.
pub const PERIOD: Duration = Duration::from_millis(10);
/// With less than so many idle cores in sum there is one more.
const IDLE_LOW: f64 = 0.2;
/// With more than so many idle cores in sum there is one less.
const IDLE_HIGH: f64 = 1.25;

/// How many cores are to serve, of `active` whose idle time in sum was `idle_cores`: from 1 to `cores_max`.
pub fn cores(active: u32, idle_cores: f64, cores_max: u32) -> u32 {
    let wanted = match idle_cores {
        idle if idle < IDLE_LOW => active + 1,
        idle if idle > IDLE_HIGH => active.saturating_sub(1),
        _ => active,
    };
    wanted.clamp(1, cores_max.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_follow_the_load_without_swinging() {
        assert_eq!(cores(1, 0.1, 4), 2);
        assert_eq!(cores(4, 0.0, 4), 4);
        assert_eq!(cores(1, 1.0, 4), 1);
        assert_eq!(cores(3, 1.3, 4), 2);
        assert_eq!(cores(0, 0.5, 4), 1);
        // The load that just needed a core more leaves it: 1.9 of 2 cores, then 1.9 of 3.
        for busy in 1..40 {
            let busy = f64::from(busy) / 10.0;
            let mut active = 1;
            let mut seen = Vec::new();
            for _ in 0..20 {
                active = cores(active, (f64::from(active) - busy).max(0.0), 8);
                seen.push(active);
            }
            assert!(
                seen[10..].iter().all(|cores| *cores == seen[10]),
                "{busy}: {seen:?}"
            );
        }
    }
}

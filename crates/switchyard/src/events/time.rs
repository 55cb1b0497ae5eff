//! Times as people write them.

use base::Instant;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The wall clock's time of an instant, to the millisecond: `2026-11-22T20:18:41.123Z`.
pub fn rfc3339(at: Instant) -> String {
    let ago = runtime::now().since(at);
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    text(unix.saturating_sub(ago))
}

/// The time of a node's start, which is its number: `2026-11-22 20:18:41`. A node without a clock has a small number.
pub fn start(number: u32) -> String {
    let (date, time) = parts(u64::from(number));
    format!("{date} {time}")
}

/// So many seconds: `3 d 4 h`, `5 min 6 s`.
pub fn duration(seconds: f64) -> String {
    let whole = seconds as u64;
    match whole {
        0..60 => format!("{whole} s"),
        60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        3600..86_400 => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
        _ => format!("{} d {} h", whole / 86_400, whole % 86_400 / 3600),
    }
}

fn text(unix: Duration) -> String {
    let (date, time) = parts(unix.as_secs());
    format!("{date}T{time}.{:03}Z", unix.subsec_millis())
}

fn parts(seconds: u64) -> (String, String) {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    (
        format!("{year:04}-{month:02}-{day:02}"),
        format!("{hour:02}:{minute:02}:{second:02}"),
    )
}

/// Year, month and day, so many days after 1970-01-01 (H. Hinnant, *chrono-compatible low-level date algorithms*,
/// `civil_from_days`).
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let first = (153 * month + 2) / 5;
    let (year, month) = match month {
        0..10 => (era * 400 + year, month + 3),
        _ => (era * 400 + year + 1, month - 9),
    };
    (year, month, day - first + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_two_units() {
        assert_eq!(duration(5.9), "5 s");
        assert_eq!(duration(66.0), "1 min 6 s");
        assert_eq!(duration(3_660.0), "1 h 1 min");
        assert_eq!(duration(90_000.0), "1 d 1 h");
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00.005Z"),
            (951_782_399, "2000-02-28T23:59:59.005Z"),
            (951_782_400, "2000-02-29T00:00:00.005Z"),
            (951_868_800, "2000-03-01T00:00:00.005Z"),
            (1_798_761_599, "2026-12-31T23:59:59.005Z"),
            (4_107_542_400, "2100-03-01T00:00:00.005Z"),
        ] {
            assert_eq!(text(Duration::new(seconds, 5_000_000)), expected);
        }
    }
}

//! How long operations take, roughly and in little memory.

use hdrhistogram::Histogram;

/// Times are told apart by a sixteenth, from a microsecond to an hour: whoever compares them has a slack far above the one, and gives
/// operations up long before the other.
const NS_MIN: u64 = 1_000;
const NS_MAX: u64 = 3_600_000_000_000;
const DIGITS: u8 = 1;

/// Times.
#[derive(Clone, Debug)]
pub(crate) struct Times(Histogram<u32>);

impl Times {
    pub(crate) fn new() -> Self {
        Self(Histogram::new_with_bounds(NS_MIN, NS_MAX, DIGITS).expect("valid bounds"))
    }

    pub(crate) fn note(&mut self, took_ns: u64) {
        self.0.saturating_record(took_ns);
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }

    /// The time that this part of them is at most, in ns; none if there are none.
    pub(crate) fn quantile(&self, part: f64) -> Option<f64> {
        (!self.0.is_empty()).then(|| self.0.value_at_quantile(part) as f64)
    }

    pub(crate) fn clear(&mut self) {
        self.0.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_a_time_that_was_seen() {
        let mut times = Times::new();
        assert_eq!(times.quantile(0.95), None);
        for us in 1..=1_000 {
            times.note(us * 1_000);
        }
        let quantile = times.quantile(0.95).expect("there are operations");
        assert!((950_000.0..1_070_000.0).contains(&quantile), "{quantile}");
        times.note(u64::MAX);
        times.note(0);
        assert_eq!(times.count(), 1_002);
        times.clear();
        assert_eq!((times.count(), times.quantile(0.5)), (0, None));
    }
}

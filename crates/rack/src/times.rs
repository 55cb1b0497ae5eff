//! How long operations take, roughly and in little memory.

/// Times, by powers of two in eight steps each.
#[derive(Clone, Debug)]
pub(crate) struct Times {
    counts: [u32; Self::STEPS * 48],
    count: u32,
}

impl Times {
    const STEPS: usize = 8;

    pub(crate) fn new() -> Self {
        Self {
            counts: [0; Self::STEPS * 48],
            count: 0,
        }
    }

    pub(crate) fn note(&mut self, took_ns: u64) {
        let steps = Self::STEPS as u64;
        let took_ns = took_ns.max(steps);
        let power = took_ns.ilog2();
        // The bits behind the first one.
        let step = (took_ns >> (power - steps.ilog2())) - steps;
        let index = (power - steps.ilog2()) as usize * Self::STEPS + step as usize;
        let last = self.counts.len() - 1;
        self.counts[index.min(last)] += 1;
        self.count += 1;
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// The time that this part of them is at most, in ns; none if there are none.
    pub(crate) fn quantile(&self, part: f64) -> Option<f64> {
        let rank = (f64::from(self.count) * part).ceil() as u32;
        let mut below = 0;
        let index = self.counts.iter().position(|count| {
            below += count;
            *count > 0 && below >= rank
        })?;
        let (power, step) = (index / Self::STEPS, index % Self::STEPS);
        Some(((Self::STEPS + step + 1) as u64 * (1 << power)) as f64)
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::new();
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
    }
}

//! How much longer a core has worked for latency-bound clients than for bulk clients that waited meanwhile.
//!
//! Latency-bound work goes first, and as a rule there is little of it. Beside much of it (a thousand clients that ask little,
//! some byte by byte) bulk clients would get a slice now and then. So latency-bound work has a lead at most; once it has it,
//! both classes get the same time. Bytes do not tell this: a request cut into single bytes costs a turn for each.

use base::Duration;
use blockswitch::Class;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Lead {
    time: Duration,
    most: Duration,
}

impl Lead {
    pub fn new(most: Duration) -> Self {
        Self {
            time: Duration::ZERO,
            most,
        }
    }

    /// The core worked for a class for so long.
    pub fn spent(&mut self, class: Class, time: Duration, bulk_waits: bool) {
        match class {
            Class::Latency if bulk_waits => self.time += time,
            Class::Latency => {}
            Class::Throughput => self.time = self.time.saturating_sub(time),
        }
    }

    /// True if bulk work that waits is to go next.
    pub fn is_over(&self) -> bool {
        self.time >= self.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Duration = Duration::from_micros(500);

    #[test]
    fn beyond_its_lead_latency_bound_work_gets_as_much_time_as_bulk_work_that_waits() {
        let mut lead = Lead::new(MOST);
        let mut spent = [Duration::ZERO; 2];
        for _ in 0..10_000 {
            let (class, us) = match lead.is_over() {
                true => (Class::Throughput, 90),
                false => (Class::Latency, 3),
            };
            let time = Duration::from_micros(us);
            lead.spent(class, time, true);
            spent[usize::from(class == Class::Throughput)] += time;
        }
        let [latency, bulk] = spent;
        assert!(latency - bulk <= MOST + Duration::from_micros(3), "{spent:?}");
        assert!(bulk <= latency);
    }

    #[test]
    fn time_in_which_no_bulk_work_waits_gives_no_lead() {
        let mut lead = Lead::new(MOST);
        lead.spent(Class::Latency, MOST, false);
        assert!(!lead.is_over());
        lead.spent(Class::Throughput, MOST, true);
        lead.spent(Class::Latency, MOST, true);
        assert!(lead.is_over(), "time without latency-bound work is no debt");
    }
}

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
    ns: u64,
    most_ns: u64,
}

impl Lead {
    pub fn new(most: Duration) -> Self {
        Self {
            ns: 0,
            most_ns: most.as_nanos() as u64,
        }
    }

    /// The core worked for a class for so long.
    #[inline]
    pub fn spent(&mut self, class: Class, ns: u64, bulk_waits: bool) {
        match class {
            Class::Latency if bulk_waits => self.ns += ns,
            Class::Latency => {}
            Class::Throughput => self.ns = self.ns.saturating_sub(ns),
        }
    }

    /// True if bulk work that waits is to go next.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.ns >= self.most_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST_NS: u64 = 500_000;

    fn lead() -> Lead {
        Lead::new(Duration::from_nanos(MOST_NS))
    }

    #[test]
    fn beyond_its_lead_latency_bound_work_gets_as_much_time_as_bulk_work_that_waits() {
        let mut lead = lead();
        let mut spent = [0; 2];
        for _ in 0..10_000 {
            let (class, ns) = match lead.is_over() {
                true => (Class::Throughput, 90_000),
                false => (Class::Latency, 3_000),
            };
            lead.spent(class, ns, true);
            spent[class.index()] += ns;
        }
        let [latency, bulk] = spent;
        assert!(latency - bulk <= MOST_NS + 3_000, "{spent:?}");
        assert!(bulk <= latency);
    }

    #[test]
    fn time_in_which_no_bulk_work_waits_gives_no_lead() {
        let mut lead = lead();
        lead.spent(Class::Latency, MOST_NS, false);
        assert!(!lead.is_over());
        lead.spent(Class::Throughput, MOST_NS, true);
        lead.spent(Class::Latency, MOST_NS, true);
        assert!(lead.is_over(), "time without latency-bound work is no debt");
    }
}

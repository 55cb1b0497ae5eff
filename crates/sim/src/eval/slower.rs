//! A case in which devices, links and clients are slower by the same factor: what is compared stays comparable, and a
//! real rack's own processor time weighs that much less beside it.

use super::Case;
use crate::client::Pace;
use crate::net::{Delay, LinkModel};
use flash::Timing;
use rack::sched::{Policy, Targets};
use serde_json::json;

impl Case {
    /// The case with all device times, delays, pauses of clients and targets of schedulers so many times as long. What
    /// servers wait for by the clock stays: leases, retransmissions, the controller's interval.
    pub fn slower(mut self, factor: u32) -> Self {
        if factor == 1 {
            return self;
        }
        let Self {
            hardware,
            policies,
            workload,
            parameters,
            ..
        } = &mut self;
        hardware.timing = slowed(&hardware.timing, factor);
        hardware.server_link = link(hardware.server_link, factor);
        hardware.client_link = link(hardware.client_link, factor);
        hardware.port_ns_per_kilobyte *= factor;
        policies.scheduler = match policies.scheduler {
            Policy::Deadline(of) => Policy::Deadline(targets(of, factor)),
            Policy::Kyber(of) => Policy::Kyber(targets(of, factor)),
            without => without,
        };
        if let Pace::Open { per_second, .. } = &mut workload.pace {
            *per_second /= f64::from(factor);
        }
        let last = workload.last_burst.as_mut();
        for burst in last.into_iter().chain([&mut workload.burst]) {
            burst.period_ns *= u64::from(factor);
        }
        parameters.insert("slower".to_owned(), json!(factor));
        self
    }
}

fn slowed(of: &Timing, factor: u32) -> Timing {
    let times = |ns: u64| ns * u64::from(factor);
    Timing {
        name: format!("{} x{factor}", of.name),
        read_lower_ns: times(of.read_lower_ns),
        read_upper_ns: times(of.read_upper_ns),
        program_lower_ns: times(of.program_lower_ns),
        program_upper_ns: times(of.program_upper_ns),
        erase_ns: times(of.erase_ns),
        transfer_ns: times(of.transfer_ns),
    }
}

fn link(of: LinkModel, factor: u32) -> LinkModel {
    let delay = match of.delay {
        Delay::None => Delay::None,
        Delay::Constant(ns) => Delay::Constant(ns * u64::from(factor)),
        Delay::Trace(scale) => Delay::Trace(scale * f64::from(factor)),
    };
    LinkModel {
        delay,
        ns_per_kilobyte: of.ns_per_kilobyte * factor,
        ..of
    }
}

fn targets(of: Targets, factor: u32) -> Targets {
    Targets {
        read: of.read * factor,
        write: of.write * factor,
        ..of
    }
}

#[cfg(test)]
mod tests {
    use crate::eval::{schedulers, ycsb};

    /// The tail of a closed loop without collection is all devices, links and targets.
    #[test]
    fn a_case_that_is_slower_has_the_same_shape() {
        let mut case = schedulers::plan().cases.swap_remove(5);
        (case.workload.warm, case.workload.measured) = (5_000, 20_000);
        let (as_it_is, slower) = (case.run(1), case.slower(4).run(1));
        let ratio = slower.read.p999_us / as_it_is.read.p999_us;
        assert!((3.8..4.2).contains(&ratio), "{as_it_is:?} {slower:?}");
        let ratio = as_it_is.iops / slower.iops;
        assert!((3.8..4.2).contains(&ratio), "{as_it_is:?} {slower:?}");
    }

    #[test]
    fn a_plan_that_is_slower_is_as_fair() {
        let mut plan = ycsb::breakdown();
        plan.cases = plan.cases.into_iter().map(|case| case.slower(3)).collect();
        assert!(plan.is_fair());
        assert_eq!(plan.cases[0].parameters["slower"], 3);
    }
}

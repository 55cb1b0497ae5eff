//! A policy of your own in the simulator, beside RackBlox and a rack without coordination.
//!
//! ```text
//! cargo run --release -p switchyard-sim --example custom_policy
//! ```
//!
//! A policy is a value of [`Policies`]: it names who coordinates collection, how collection shares the flash, and how
//! waiting requests are ordered. The same hosts run on sockets, so a policy that wins here ships unchanged. An order that
//! no variant of `rack::sched::Policy` has is a new variant; docs/extending.md names its three files.

use base::Duration;
use flash::GcMode;
use host::gateway::Reads;
use rack::gc::Coordination;
use rack::port::Discipline;
use rack::sched::{Policy, Targets};
use sim::eval::{Case, Hardware, Plan, Policies, Row, Workload};

/// Half of the requests are writes, so the flash collects about a quarter of the time.
const WRITES: f64 = 0.5;
/// Requests a second over the whole rack.
const RATE: f64 = 2_000.0;
/// Requests of the warm-up, and of the measurement. Fewer leave the flash too empty to collect.
const REQUESTS: u64 = 40_000;

/// Our policy: the ToR lets replicas collect in turn. Collection moves one page at a time. A read expires after 1 ms
/// of network and waiting, a write-back after 10 ms.
fn gentle() -> Policies {
    Policies {
        name: "gentle".to_owned(),
        coordination: Coordination::Rack,
        gc_mode: GcMode::Preemptible { step_pages: 1 },
        scheduler: Policy::Deadline(Targets {
            read: Duration::from_millis(1),
            write: Duration::from_millis(10),
            coordinated: true,
        }),
        shaped: false,
        reads: Reads::Fastest,
        network: Discipline::Fifo,
    }
}

/// RackBlox: the ToR coordinates, collection holds its channel, requests go by end-to-end time.
fn rackblox() -> Policies {
    Policies {
        name: "rackblox".to_owned(),
        gc_mode: GcMode::Blocking,
        scheduler: Policy::Coordinated,
        ..gentle()
    }
}

/// The baseline: each server decides alone, and requests go in order of arrival.
fn uncoordinated() -> Policies {
    Policies {
        name: "uncoordinated".to_owned(),
        coordination: Coordination::None,
        scheduler: Policy::Fifo,
        ..rackblox()
    }
}

/// Runs every policy on the same rack under the same clients. A plan refuses to run if the hardware differs.
fn compare(seed: u64) -> Vec<Row> {
    let workload = Workload {
        warm: REQUESTS,
        measured: REQUESTS,
        ..Workload::writes(WRITES, RATE)
    };
    let case = |policies| Case {
        hardware: Hardware::default(),
        policies,
        workload: workload.clone(),
        parameters: Default::default(),
        cdf: false,
    };
    let plan = Plan {
        name: "custom-policy",
        cases: [uncoordinated(), rackblox(), gentle()].map(case).into(),
    };
    plan.run(seed, &mut |step| eprintln!("{step}")).rows
}

fn main() {
    println!(
        "{:<14} {:>10} {:>10} {:>10}",
        "policy", "p50 µs", "p99 µs", "p99.9 µs"
    );
    for row in compare(1) {
        let read = row.read;
        println!(
            "{:<14} {:>10.0} {:>10.0} {:>10.0}",
            row.policy, read.p50_us, read.p99_us, read.p999_us
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coordination_shortens_the_tail_of_reads() {
        let rows = compare(1);
        let p999 = |name: &str| {
            let row = rows.iter().find(|row| row.policy == name);
            row.expect("the plan has the policy").read.p999_us
        };
        assert!(p999("rackblox") < p999("uncoordinated"));
        assert!(p999("gentle") < p999("uncoordinated"));
    }
}

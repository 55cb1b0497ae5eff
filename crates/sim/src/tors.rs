//! Racks with two ToRs in the swarm: which have them, and what happens to one of these.

use crate::draw::pick;
use crate::rack::{RackFleet, RackOptions, Tors};
use crate::run::{Fault, RunSpec};
use base::Rng;

const MILLISECOND: u64 = 1_000_000;

/// The ToRs of a rack. A controller knows one.
pub(crate) fn draw_tors(options: &RackOptions, rng: &mut Rng) -> Tors {
    match options.controller {
        None => pick(rng, &[Tors::One, Tors::One, Tors::Two, Tors::Mixed]),
        Some(_) => Tors::One,
    }
}

/// One ToR of two crashes, is gone for ever, is cut off, or is cut off from one part only. The other one stays, so nothing may fail.
pub(crate) fn draw_tor_faults(fleet: &RackFleet, spec: &mut RunSpec, rng: &mut Rng) {
    let tors = fleet.tors();
    if tors.len() == 1 || rng.chance(0.3) {
        return;
    }
    let tor = pick(rng, &tors);
    for _ in 0..rng.between(1, 4) {
        let for_ns = pick(
            rng,
            &[
                MILLISECOND,
                60 * MILLISECOND,
                900 * MILLISECOND,
                5_000 * MILLISECOND,
            ],
        );
        let part = fleet.node(rng.below(u64::from(fleet.options().nodes + fleet.options().gateways)) as u32);
        let fault = match rng.below(6) {
            0 | 1 => Fault::Crash {
                host: tor,
                down_ns: for_ns,
            },
            2 => {
                let (inbound, outbound) = pick(rng, &[(true, true), (true, false), (false, true)]);
                Fault::Partition {
                    host: tor,
                    for_ns,
                    inbound,
                    outbound,
                }
            }
            3 => Fault::Gone { host: tor },
            _ => Fault::Cut {
                pair: [part, tor],
                for_ns,
            },
        };
        spec.faults.push((rng.below(spec.calm_ns), fault));
    }
    spec.faults.sort_by_key(|fault| fault.0);
}

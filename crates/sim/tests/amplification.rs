//! Write amplification of a whole rack whose servers collect in turns, against the closed form for greedy collection
//! (Desnoyers, SYSTOR'12). Collection begins at a threshold of free blocks, which consumes over-provisioning: of a vSSD
//! that is full to ρ, a threshold g leaves ρ / (1 − g).

use flash::{Geometry, Timing};
use sim::eval::{Hardware, System, Workload, measure};
use sim::workload::Pattern;

/// The principal branch of Lambert's W by Newton's method, for -1/e < x < 0.
fn lambert_w0(x: f64) -> f64 {
    let step = |w: f64, _| w - (w * w.exp() - x) / (w.exp() * (1.0 + w));
    (0..200).fold(-0.5, step)
}

/// Greedy collection of blocks of `b` pages at utilisation `rho`.
fn greedy(rho: f64, b: f64) -> f64 {
    let alpha = 1.0 / rho;
    let c = (1.0 + 1.0 / (2.0 * b)) * alpha;
    let x0 = 0.5 - (b / alpha) * lambert_w0(-c * (-c).exp());
    b / (b - x0 + 1.0)
}

/// One set of two vSSDs with one plane each, as the closed form knows one open block alone.
fn hardware() -> Hardware {
    let geometry = Geometry {
        channels: 1,
        chips_per_channel: 1,
        planes_per_chip: 1,
        blocks_per_plane: 2_048,
        pages_per_block: 32,
    };
    Hardware {
        nodes: 2,
        sets: 1,
        channels: 1,
        pages_per_set: geometry.blocks_per_plane * geometry.pages_per_block * 7 / 10,
        geometry,
        timing: Timing::built_in("optane").expect("optane is built in"),
        cache_pages: 128,
        gc_slice_ratio: 0.0,
        ..Hardware::default()
    }
}

#[test]
fn a_rack_s_collection_in_turns_amplifies_as_the_threshold_says() {
    let hardware = hardware();
    let pages = hardware.pages();
    // So few a second that less than a block is filled between two looks at the free blocks.
    let workload = Workload {
        pattern: Pattern::Uniform,
        warm: 20 * pages,
        measured: 4 * pages,
        ..Workload::writes(1.0, 1_500.0)
    };
    let spare = hardware.spare_ratio();
    let soft = rack::gc::Config::for_spare(spare).soft_ratio;
    let expected = greedy((1.0 - spare) / (1.0 - soft), 32.0);
    let (row, _) = measure(&hardware, &System::RackBlox.policies(), &workload, 1);
    let error = (row.write_amplification / expected - 1.0).abs();
    assert!(error < 0.01, "{} instead of {expected}", row.write_amplification);
}

//! Tests of `load.rs`, apart from it: the model checks include that file.

use crate::class::Class;
use crate::load::Loads;
use crate::policy::{Config, Policy};

#[test]
fn steered_work_counts_where_it_is_done_and_is_taken_away_there() {
    let loads = Loads::new(2, &Config::default());
    let charge = loads.charge(0, 1, Class::Throughput, 4096);
    assert_eq!((charge.core(), charge.class()), (1, Class::Throughput));
    let outstanding = || [0, 1].map(|core| loads.requests(core, Class::Throughput));
    assert_eq!(outstanding(), [0, 1]);
    loads.release(charge);
    assert_eq!(outstanding(), [0, 0]);
}

#[test]
fn the_published_figures_leave_steered_work_out_and_do_not_decay() {
    let loads = Loads::new(2, &Config::of(Policy::BlkSwitch));
    let local = loads.charge(0, 0, Class::Latency, 4096);
    assert_eq!(loads.published_mean(0, Class::Latency), 4096);
    loads.release(local);
    let steered = loads.charge(0, 1, Class::Throughput, 65536);
    assert_eq!(
        (
            loads.published_mean(0, Class::Throughput),
            loads.published_mean(1, Class::Throughput)
        ),
        (65536, 0)
    );
    assert_eq!(loads.published_bytes(0, Class::Throughput), 0);
    loads.release(steered);
    assert_eq!(loads.published_mean(0, Class::Latency), 4096);
}

#[test]
fn counts_of_many_threads_return_to_zero() {
    let loads = Loads::new(4, &Config::default());
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let loads = &loads;
            scope.spawn(move || {
                for i in 0..20_000u32 {
                    let class = [Class::Latency, Class::Throughput][i as usize % 2];
                    let core = (thread + i as usize) % 4;
                    let charge = loads.charge(thread, core, class, i);
                    loads.release(charge);
                }
            });
        }
    });
    for core in 0..4 {
        for class in [Class::Latency, Class::Throughput] {
            assert_eq!(loads.requests(core, class), 0);
        }
    }
}

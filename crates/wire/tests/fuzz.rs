//! A short run of the fuzzer (`examples/fuzz`) with a fixed seed.

#[path = "../examples/fuzz/engine/mod.rs"]
mod engine;

const EXECUTIONS: u64 = 200_000;

#[test]
fn mutated_headers_and_conversations_break_no_invariant() {
    let mut fuzzer = engine::Fuzzer::default();
    fuzzer.run(2022, 0..EXECUTIONS);
    let tally = fuzzer.tally;
    // The run is worth something: every kind of outcome was reached, often.
    for count in [
        tally.headers_refused,
        tally.headers_parsed,
        tally.handshakes,
        tally.transmissions,
    ] {
        assert!(count > EXECUTIONS / 20, "{tally:?}");
    }
    for count in [tally.served, tally.refused, tally.cut, tally.blocked] {
        assert!(count > EXECUTIONS / 20, "{tally:?}");
    }
    for count in [tally.nvme_ended, tally.nvme_refused, tally.nvme_cut] {
        assert!(count > EXECUTIONS / 20, "{tally:?}");
    }
    assert!(tally.nvme_held_back > EXECUTIONS / 100, "{tally:?}");
    assert!(tally.nvme_barred > EXECUTIONS / 200, "{tally:?}");
}

#[test]
fn a_seed_means_the_same_every_time() {
    let run = || {
        let mut fuzzer = engine::Fuzzer::default();
        fuzzer.run(7, 0..5_000);
        format!("{:?}", fuzzer.tally)
    };
    assert_eq!(run(), run());
}

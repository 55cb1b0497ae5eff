//! A copy is made as fast as the media and the wire allow while there are no clients, and clients hardly notice it.

use sim::rebuild::rebuild;

#[test]
fn a_copy_is_fast_alone_and_clients_hardly_notice_one() {
    for seed in 1..4 {
        let report = rebuild(seed, &mut |_| {});
        let value = |row: &str, column| report.value(row, column).expect("the experiment has it");
        let alone = value("copy-alone", "copy_mib_per_s");
        let most = value("client-writes", "copy_mib_per_s");
        assert!(alone >= most / 2.0, "seed {seed}: {alone} of {most} MiB/s");
        for writes in [2, 30] {
            let [usual, beside] = ["clients-alone", "copy-and-clients"].map(|row| format!("{row}-{writes}"));
            for column in ["read_p99_us", "write_p99_us"] {
                let [usual, beside] = [&usual, &beside].map(|row| value(row, column));
                assert!(
                    beside <= usual * 2.0,
                    "seed {seed}: {column} {usual} and {beside}"
                );
            }
            let rate = value(&beside, "copy_mib_per_s");
            assert!(rate > 4.0, "seed {seed}: {rate} MiB/s");
        }
    }
}

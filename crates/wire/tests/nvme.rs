//! The NVMe/TCP session as a host sees it: every command, every refusal, every limit.

mod nvme_support;

use base::BlockOp;
use nvme_support::*;
use wire::nvme::host::HostOptions;
use wire::nvme::proto::{Sqe, Status, admin, cns, feature, log, property};

fn bytes(seed: u8, count: usize) -> Vec<u8> {
    (0..count)
        .map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed))
        .collect()
}

/// Every combination of digests, flow control and alignment.
fn variants() -> impl Iterator<Item = HostOptions> {
    (0..16u8).map(|bits| HostOptions {
        header_digest: bits & 1 != 0,
        data_digest: bits & 2 != 0,
        sq_flow: bits & 4 != 0,
        alignment: if bits & 8 != 0 { 31 } else { 0 },
        ..Rig::options()
    })
}

// ---- the data path

#[test]
fn what_is_written_is_read_in_every_variant_and_size() {
    for options in variants() {
        let mut rig = Rig::new();
        let (_admin, mut io) = rig.io(options);
        for (index, &length) in [512u32, 4096, 8192, 8704, 65536, 131_072].iter().enumerate() {
            for offset in [0u64, 512, 4096, 7 * 512] {
                let data = bytes(index as u8, length as usize);
                let ended = rig.run(&mut io, Sqe::write(offset, length, false), &data);
                assert_eq!(ended.status, Status::SUCCESS);
                assert_eq!(rig.disk[offset as usize..][..length as usize], data);
                let ended = rig.run(&mut io, Sqe::read(offset, length), &[]);
                assert_eq!((ended.status, ended.data), (Status::SUCCESS, data));
            }
        }
        assert_eq!(io.session.in_flight(), 0);
        assert_eq!(io.session.in_flight_bytes(), 0);
        assert_eq!(rig.pool.available(), POOL_PAGES);
    }
}

#[test]
fn flush_reaches_the_volume() {
    let mut rig = Rig::new();
    let (_admin, mut io) = rig.io(Rig::options());
    assert_eq!(rig.run(&mut io, Sqe::flush(), &[]).status, Status::SUCCESS);
    assert_eq!(rig.seen, [(BlockOp::Flush, 0, 0, false)]);
}

#[test]
fn an_admin_queue_tells_of_itself() {
    let mut rig = Rig::new();
    let mut admin = rig.admin(Rig::options());
    let cap = rig.run(&mut admin, Sqe::get_property(property::CAP), &[]).result;
    assert_eq!(cap & 0xffff, 15, "entries, 0's based");
    assert_eq!(
        rig.run(&mut admin, Sqe::get_property(property::CSTS), &[]).result,
        1
    );
    let ended = rig.run(&mut admin, Sqe::identify(cns::CONTROLLER, 0), &[]);
    assert_eq!(ended.data.len(), 4096);
    assert_eq!(ended.data[77], 5, "128 KiB with these limits");
    let ended = rig.run(&mut admin, Sqe::identify(cns::NAMESPACE, 1), &[]);
    assert_eq!(ended.data[..8], ((DISK_BYTES / 512) as u64).to_le_bytes());
    let ended = rig.run(&mut admin, Sqe::log_page(log::SMART, 0, 512, false), &[]);
    assert_eq!(ended.status, Status::SUCCESS);
    let ended = rig.run(&mut admin, Sqe::set_feature(feature::QUEUES, 3 << 16 | 3), &[]);
    assert_eq!(ended.result, 3 << 16 | 3);
    let keep_alive = (Sqe::new(admin::KEEP_ALIVE), wire::nvme::host::Data::None);
    assert_eq!(rig.run(&mut admin, keep_alive, &[]).status, Status::SUCCESS);
}

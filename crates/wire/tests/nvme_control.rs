//! The NVMe/TCP control path as a host sees it: connecting, properties, features, logs, events, time, and limits.

use crate::nvme_support::*;
use base::{Duration, Instant, Rng, VolumeId};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use wire::Session as _;
use wire::nvme::host::{Data, HostError, HostOptions};
use wire::nvme::proto::{
    CNTLID_DYNAMIC, DISCOVERY_NQN, DataHeader, Sqe, Status, admin, cns, feature, log, property,
};
use wire::nvme::{
    Address, Allocation, AnaState, CloseReason, Family, Session, SessionLimits, Subsystem, Target,
    TargetError, TargetOptions,
};

const NAMESPACE_CHANGED: u64 = 0x04_00_02;
const ANA_CHANGED: u64 = 0x0c_03_02;
const DISCOVERY_CHANGED: u64 = 0x70_f0_02;

fn event_request() -> (Sqe, Data) {
    (Sqe::new(admin::ASYNC_EVENT), Data::None)
}

fn discovery() -> HostOptions {
    HostOptions {
        subsystem_nqn: DISCOVERY_NQN.to_string(),
        ..Rig::options()
    }
}

/// Ticks a session and lets its host hear what it says.
fn tick(rig: &mut Rig, wire: &mut Wire) {
    wire.session.tick(rig.now);
    rig.pump(wire);
}

// ---- connecting

#[test]
fn connect_is_refused_with_the_place_of_the_mistake() {
    type Spoil = fn(&mut HostOptions);
    let cases: [(&str, Spoil, Status, u32); 8] = [
        (
            "too many entries",
            |o| o.entries = 17,
            Status::CONNECT_PARAMETERS,
            44,
        ),
        (
            "no such subsystem",
            |o| o.subsystem_nqn.push('x'),
            Status::CONNECT_PARAMETERS,
            1 << 16 | 256,
        ),
        ("no host name", |o| o.host_nqn.clear(), Status::CONNECT_HOST, 0),
        (
            "no name of a host",
            |o| o.host_nqn = "nqn.a b".to_string(),
            Status::CONNECT_PARAMETERS,
            1 << 16 | 512,
        ),
        (
            "a controller of its own choice",
            |o| o.cntlid = 5,
            Status::CONNECT_PARAMETERS,
            1 << 16 | 16,
        ),
        (
            "no such controller",
            |o| (o.queue_id, o.cntlid) = (1, 5),
            Status::CONNECT_PARAMETERS,
            1 << 16 | 16,
        ),
        (
            "no controller",
            |o| o.queue_id = 1,
            Status::CONNECT_PARAMETERS,
            1 << 16 | 16,
        ),
        (
            "a host of the list only",
            |o| o.host_nqn = "nqn.other".to_string(),
            Status::CONNECT_HOST,
            0,
        ),
    ];
    for (what, spoil, status, result) in cases {
        let mut rig = Rig::new();
        let hosts = Some(vec![HOST_NQN.to_string()]);
        rig.target.borrow_mut().set_hosts(NQN, hosts).expect("the volume");
        let mut options = Rig::options();
        spoil(&mut options);
        let mut wire = rig.wire(options);
        rig.pump(&mut wire);
        let status = status.dnr();
        assert_eq!(
            wire.host.failed(),
            Some(HostError::Refused { status, result }),
            "{what}"
        );
    }
}

#[test]
fn an_io_queue_needs_its_hosts_own_enabled_controller_and_a_free_id() {
    let mut rig = Rig::new();
    let admin = rig.admin(Rig::options());
    let good = Rig::options().io(admin.host.cntlid(), 1, 16);
    let mut first = rig.wire(good.clone());
    rig.pump(&mut first);
    assert!(first.host.is_connected());
    let refused = |rig: &mut Rig, options: HostOptions| {
        let mut wire = rig.wire(options);
        rig.pump(&mut wire);
        wire.host.failed()
    };
    let sequence = Some(HostError::Refused {
        status: Status::SEQUENCE.dnr(),
        result: 0,
    });
    let at = |result| {
        Some(HostError::Refused {
            status: Status::CONNECT_PARAMETERS.dnr(),
            result,
        })
    };
    assert_eq!(refused(&mut rig, good.clone()), sequence, "the id is taken");
    let mut other = good.clone();
    other.host_id = [9; 16];
    assert_eq!(
        refused(&mut rig, other),
        at(1 << 16 | 16),
        "another host's controller"
    );
    let mut other = good.clone();
    other.queue_id = 65;
    assert_eq!(refused(&mut rig, other), at(42), "more queues than granted");
    first.session.detach();
    assert_eq!(refused(&mut rig, good.clone()), None, "the id is free again");
    let mut idle = rig.wire(Rig::options());
    rig.pump(&mut idle);
    let options = Rig::options().io(idle.host.cntlid(), 1, 16);
    assert_eq!(
        refused(&mut rig, options),
        sequence,
        "the controller is not enabled"
    );
}

#[test]
fn controllers_are_bounded_and_their_ids_go_round() {
    let mut rig = Rig::new();
    let mut target = Target::new(TargetOptions {
        cntlids: 7..=8,
        ..TargetOptions::default()
    });
    let disk = Subsystem::new("disk", VolumeId(7), DISK_BYTES as u64, [7; 16]);
    assert_eq!(target.add(disk.clone()), Ok(()));
    assert_eq!(target.add(disk), Err(TargetError::Exists));
    *rig.target.borrow_mut() = target;
    let mut first = rig.admin(Rig::options());
    let second = rig.admin(Rig::options());
    assert_eq!((first.host.cntlid(), second.host.cntlid()), (7, 8));
    let mut third = rig.wire(Rig::options());
    rig.pump(&mut third);
    let busy = HostError::Refused {
        status: Status::CONNECT_BUSY,
        result: 0,
    };
    assert_eq!(third.host.failed(), Some(busy));
    first.session.detach();
    assert_eq!(rig.admin(Rig::options()).host.cntlid(), 7);
    assert_eq!(rig.target.borrow().controllers().count(), 2);
}

#[test]
fn before_connect_and_before_enable_commands_are_out_of_sequence() {
    let mut rig = Rig::new();
    let mut session = rig.fresh();
    for early in [Sqe::flush(), Sqe::identify(1, 0), Sqe::get_property(property::VS)] {
        let sqe = command(early, 1, false);
        assert_eq!(
            rig.status(&mut session, &capsule(&sqe, &[])),
            Status::SEQUENCE.dnr()
        );
    }
    let mut wire = rig.wire(Rig::options());
    rig.pump(&mut wire);
    let ended = rig.run(&mut wire, Sqe::identify(1, 0), &[]);
    assert_eq!(ended.status, Status::SEQUENCE.dnr());
    let version = rig.run(&mut wire, Sqe::get_property(property::VS), &[]);
    assert_eq!((version.status, version.result), (Status::SUCCESS, 0x20000));
    // A page size that the controller does not have.
    rig.run(&mut wire, Sqe::set_property(property::CC, ENABLE | 1 << 7), &[]);
    assert_eq!(
        rig.run(&mut wire, Sqe::get_property(property::CSTS), &[]).result,
        2,
        "CFS"
    );
}

#[test]
fn a_reset_ends_the_io_queues_and_a_shutdown_is_told() {
    let mut rig = Rig::new();
    let (mut admin, mut io) = rig.io(Rig::options());
    rig.submit(&mut admin, event_request(), &[]);
    rig.pump(&mut admin);
    rig.run(&mut admin, Sqe::set_property(property::CC, ENABLE | 1 << 14), &[]);
    let status = rig.run(&mut admin, Sqe::get_property(property::CSTS), &[]);
    assert_eq!(status.result, 1 | 2 << 2, "shutdown is complete");
    rig.run(&mut admin, Sqe::set_property(property::CC, 0), &[]);
    assert_eq!(
        rig.run(&mut admin, Sqe::get_property(property::CSTS), &[]).result,
        0
    );
    io.session.tick(rig.now);
    assert_eq!(io.session.closed(), Some(CloseReason::ControllerReset));
    // The same ids connect again, and the old session's end does not take them away.
    rig.run(&mut admin, Sqe::set_property(property::CC, ENABLE), &[]);
    let options = Rig::options().io(admin.host.cntlid(), 1, 16);
    let mut again = rig.wire(options.clone());
    rig.pump(&mut again);
    assert!(again.host.is_connected());
    io.session.detach();
    let mut twice = rig.wire(options);
    rig.pump(&mut twice);
    assert!(twice.host.failed().is_some(), "the id is still taken");
}

#[test]
fn a_controller_goes_with_its_admin_connection_and_with_its_volume() {
    let mut rig = Rig::new();
    let (mut admin, mut io) = rig.io(Rig::options());
    admin.session.detach();
    assert_eq!(rig.target.borrow().controllers().count(), 0);
    io.session.tick(rig.now);
    assert_eq!(io.session.closed(), Some(CloseReason::ControllerGone));
    let (mut admin, mut io) = rig.io(Rig::options());
    rig.target.borrow_mut().remove(NQN).expect("the volume");
    for session in [&mut admin.session, &mut io.session] {
        session.tick(rig.now);
        assert_eq!(session.closed(), Some(CloseReason::ControllerGone));
    }
}

#[test]
fn disconnect_answers_what_is_under_way_first() {
    let mut rig = Rig::new();
    let (mut admin, mut io) = rig.io(Rig::options());
    rig.hold = true;
    let read = rig.submit(&mut io, Sqe::read(0, 512), &[]);
    let bye = rig.submit(&mut io, Sqe::disconnect(), &[]);
    rig.pump(&mut io);
    assert!(io.mail.ended.contains_key(&bye));
    assert_eq!(io.session.closed(), None);
    rig.answer_all(&mut io.session);
    rig.pump(&mut io);
    assert_eq!(
        io.mail.ended.get(&read).map(|ended| ended.status),
        Some(Status::SUCCESS)
    );
    assert_eq!(io.session.closed(), Some(CloseReason::Disconnected));
    let ended = rig.run(&mut admin, Sqe::disconnect(), &[]);
    assert_eq!(ended.status, Status::INVALID_QUEUE_TYPE.dnr());
}

// ---- admin commands

#[test]
fn every_refusal_of_an_admin_command_has_its_status() {
    let mut rig = Rig::new();
    let mut admin = rig.admin(Rig::options());
    let with = |(mut sqe, data): (Sqe, Data), dword: usize, value: u32| {
        sqe.set_dword(dword, value);
        (sqe, data)
    };
    let shorter = |(sqe, _): (Sqe, Data), bytes: u32| (sqe, Data::In(bytes));
    let saved = 1 << 31 | u32::from(feature::KEEP_ALIVE);
    let cases = [
        (
            "unknown opcode",
            (Sqe::new(0x05), Data::None),
            Status::INVALID_OPCODE,
        ),
        (
            "authenticate",
            with((Sqe::new(0x7f), Data::None), 1, 5),
            Status::INVALID_OPCODE,
        ),
        (
            "connect again",
            with((Sqe::new(0x7f), Data::None), 1, 1),
            Status::SEQUENCE,
        ),
        ("unknown CNS", Sqe::identify(0x77, 0), Status::INVALID_FIELD),
        (
            "short identify",
            shorter(Sqe::identify(1, 0), 512),
            Status::SGL_LENGTH,
        ),
        (
            "namespace 2",
            Sqe::identify(cns::NAMESPACE, 2),
            Status::INVALID_NAMESPACE,
        ),
        (
            "descriptors of 0",
            Sqe::identify(cns::DESCRIPTORS, 0),
            Status::INVALID_NAMESPACE,
        ),
        (
            "list after all",
            Sqe::identify(cns::ACTIVE_LIST, u32::MAX),
            Status::INVALID_NAMESPACE,
        ),
        (
            "unknown log",
            Sqe::log_page(0x42, 0, 512, false),
            Status::INVALID_LOG_PAGE,
        ),
        (
            "discovery log",
            Sqe::log_page(log::DISCOVERY, 0, 1024, false),
            Status::INVALID_LOG_PAGE,
        ),
        (
            "odd offset",
            Sqe::log_page(log::SMART, 2, 256, false),
            Status::INVALID_FIELD,
        ),
        (
            "offset past the end",
            Sqe::log_page(log::SMART, 516, 4, false),
            Status::INVALID_FIELD,
        ),
        (
            "log length",
            shorter(Sqe::log_page(log::SMART, 0, 512, false), 256),
            Status::SGL_LENGTH,
        ),
        (
            "log longer than MDTS",
            Sqe::log_page(log::SMART, 0, 1 << 20, false),
            Status::INVALID_FIELD,
        ),
        ("unknown feature", Sqe::get_feature(0x42), Status::INVALID_FIELD),
        (
            "set unknown feature",
            Sqe::set_feature(0x42, 0),
            Status::INVALID_FIELD,
        ),
        (
            "save a feature",
            with(Sqe::set_feature(0, 0), 10, saved),
            Status::NOT_SAVEABLE,
        ),
        (
            "no queues",
            Sqe::set_feature(feature::QUEUES, 0xffff),
            Status::INVALID_FIELD,
        ),
        (
            "another host id",
            Sqe::set_feature(feature::HOST_ID, 1),
            Status::SEQUENCE,
        ),
        (
            "events nobody has",
            Sqe::set_feature(feature::ASYNC_EVENTS, 1 << 9),
            Status::INVALID_FIELD,
        ),
        (
            "power state 1",
            Sqe::set_feature(feature::POWER, 1),
            Status::INVALID_FIELD,
        ),
        (
            "set CAP",
            Sqe::set_property(property::CAP, 0),
            Status::INVALID_FIELD,
        ),
        ("get a gap", Sqe::get_property(0x18), Status::INVALID_FIELD),
    ];
    for (what, command, status) in cases {
        let ended = rig.run(&mut admin, command, &[]);
        assert_eq!(ended.status, status.dnr(), "{what}");
        assert!(ended.data.is_empty(), "{what}");
    }
    let errors = rig.run(&mut admin, Sqe::log_page(log::ERROR, 0, 64, false), &[]);
    assert_ne!(errors.data[..8], [0; 8], "refusals are in the error log");
}

#[test]
fn identify_says_what_linux_needs() {
    let mut rig = Rig::new();
    let mut admin = rig.admin(Rig::options());
    let cntlid = admin.host.cntlid();
    let mut identify = |rig: &mut Rig, what: u8, nsid: u32| {
        let ended = rig.run(&mut admin, Sqe::identify(what, nsid), &[]);
        assert_eq!(ended.status, Status::SUCCESS, "CNS {what:#x}");
        ended.data
    };
    let data = identify(&mut rig, cns::CONTROLLER, 0);
    let u16_at = |at: usize| u16::from_le_bytes([data[at], data[at + 1]]);
    let u32_at = |at: usize| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
    assert_eq!(u16_at(78), cntlid, "CNTLID is that of Connect");
    assert!(u16_at(320) > 0, "KAS: keep-alive is mandatory over fabrics");
    assert!(u32_at(1792) >= 4 && u32_at(1796) >= 1, "capsule sizes");
    assert_eq!(u16_at(1800), 0, "ICDOFF");
    assert_eq!(u32_at(536) & 3, 1, "SGLS");
    assert!(
        u32_at(540) > 0 && u32_at(540) <= u32_at(516),
        "0 < MNAN <= NN with ANA"
    );
    assert!(u16_at(514) > 0, "MAXCMD");
    assert!(data[768..].starts_with(NQN.as_bytes()) && data[768 + NQN.len()] == 0);
    assert_eq!(data[111], 1, "an I/O controller");
    let list = identify(&mut rig, cns::ACTIVE_LIST, 0);
    assert_eq!(list[..8], [1, 0, 0, 0, 0, 0, 0, 0]);
    assert!(
        identify(&mut rig, cns::ACTIVE_LIST, 1)
            .iter()
            .all(|&byte| byte == 0)
    );
    let descriptors = identify(&mut rig, cns::DESCRIPTORS, 1);
    assert_eq!(descriptors[..2], [2, 16]);
    assert_eq!(descriptors[20..22], [3, 16]);
    assert_eq!(
        descriptors[4..20],
        descriptors[24..40],
        "NGUID and UUID are the same bytes"
    );
    assert_eq!(descriptors[40..45], [4, 1, 0, 0, 0]);
    let namespace = identify(&mut rig, cns::NAMESPACE, 1);
    assert_eq!(namespace[104..120], descriptors[4..20]);
    assert_eq!(namespace[130], 9, "blocks of 512 bytes");
    assert_eq!(namespace[16..24], namespace[..8], "NUSE, where nobody tells");
    assert_eq!(namespace[24] & 1, 0, "NSFEAT");
    for (what, nsid) in [
        (cns::CSI_NAMESPACE, 1),
        (cns::CSI_CONTROLLER, 0),
        (cns::CSI_ACTIVE_LIST, 0),
        (cns::INDEPENDENT, 1),
        (cns::ALLOCATED_LIST, 0),
        (cns::ALLOCATED, 1),
        (cns::COMMAND_SETS, 0),
    ] {
        identify(&mut rig, what, nsid);
    }
    let controllers = identify(&mut rig, cns::CONTROLLER_LIST, 0);
    assert_eq!(controllers[..2], [1, 0]);
    assert_eq!(controllers[2..4], cntlid.to_le_bytes());
}

#[test]
fn log_pages_are_read_in_pieces_and_end_with_zeros() {
    let mut rig = Rig::new();
    let (mut admin, mut io) = rig.io(Rig::options());
    rig.run(&mut io, Sqe::write(0, 4096, false), &[0; 4096]);
    rig.now += Duration::from_secs(2);
    tick(&mut rig, &mut io);
    rig.now += Duration::from_secs(2);
    tick(&mut rig, &mut io);
    let whole = rig
        .run(&mut admin, Sqe::log_page(log::SMART, 0, 512, false), &[])
        .data;
    assert_eq!(whole[80..88], 1u64.to_le_bytes(), "one write command");
    let mut pieces = Vec::new();
    for offset in (0..512).step_by(128) {
        pieces.extend(
            rig.run(&mut admin, Sqe::log_page(log::SMART, offset, 128, true), &[])
                .data,
        );
    }
    assert_eq!(pieces, whole);
    let long = rig
        .run(&mut admin, Sqe::log_page(log::SMART, 256, 16384, false), &[])
        .data;
    assert_eq!(long[..256], whole[256..]);
    assert_eq!(long[256..], [0; 16128]);
    let effects = rig
        .run(&mut admin, Sqe::log_page(log::EFFECTS, 0, 4096, false), &[])
        .data;
    assert_eq!(effects[1024 + 4], 3, "write is supported and changes data");
    assert_eq!(effects[4 * 6 + 2], 1 << 5, "Identify is about its controller");
    let ana = rig
        .run(&mut admin, Sqe::log_page(log::ANA, 0, 52, false), &[])
        .data;
    assert_eq!((ana[8], ana[16], ana[20], ana[32], ana[48]), (1, 1, 1, 1, 1));
    for page in [log::SUPPORTED, log::ERROR, log::FIRMWARE, log::CHANGED_NAMESPACES] {
        let ended = rig.run(&mut admin, Sqe::log_page(page, 0, 512, true), &[]);
        assert_eq!((ended.status, ended.data.len()), (Status::SUCCESS, 512));
    }
}

#[test]
fn a_command_that_failed_is_in_the_error_log_with_its_queue_and_block() {
    let mut rig = Rig::new();
    let (mut admin, mut io) = rig.io(Rig::options());
    let beyond = DISK_BYTES as u64 + 512;
    rig.run(&mut io, Sqe::read(beyond, 512), &[]);
    rig.run(&mut io, Sqe::write(1024, 512, false), &[7; 512]);
    rig.run(&mut io, Sqe::compare(1024, 512), &[8; 512]);
    rig.fail = Some(base::BlockError::Io);
    let cids = [
        rig.submit(&mut io, Sqe::read(4096 * 5, 8192), &[]),
        rig.submit(&mut io, Sqe::flush(), &[]),
    ];
    rig.pump(&mut io);
    assert!(cids.iter().all(|cid| io.mail.ended.remove(cid).is_some()));
    rig.fail = None;
    let log = rig.run(&mut admin, Sqe::log_page(log::ERROR, 0, 64 * 16, false), &[]);
    let expected = [
        (Status::WRITE_FAULT, 0),
        (Status::READ_ERROR, 40),
        (Status::COMPARE_FAILURE, 2),
        (Status::LBA_RANGE, beyond / 512),
    ];
    for ((entry, (status, lba)), count) in log.data.chunks_exact(64).zip(expected).zip((1..=4u64).rev()) {
        assert_eq!(entry[..8], count.to_le_bytes(), "{status:?}");
        assert_eq!(entry[8..10], 1u16.to_le_bytes(), "the first I/O queue");
        assert_eq!(entry[12..14], (status.dnr().0 << 1).to_le_bytes(), "{status:?}");
        assert_eq!(entry[14..16], [0xff; 2], "no place in the command is blamed");
        assert_eq!(entry[16..24], lba.to_le_bytes(), "{status:?}");
        assert_eq!(entry[24..28], 1u32.to_le_bytes(), "the namespace");
        assert_eq!(entry[29], 3, "TCP");
    }
    let logged = [74, 10].map(|at| u16::from_le_bytes([log.data[at], log.data[at + 1]]));
    assert!(cids[0] != cids[1] && logged == cids, "{logged:?} {cids:?}");
    assert_eq!(log.data[4 * 64..], [0; 12 * 64], "nothing else has failed");
    // The log keeps the newest, and SMART counts all.
    for _ in 0..20 {
        rig.run(&mut io, Sqe::read(beyond, 512), &[]);
    }
    let log = rig.run(&mut admin, Sqe::log_page(log::ERROR, 0, 64 * 16, false), &[]);
    assert_eq!(
        (&log.data[..8], &log.data[15 * 64..15 * 64 + 8]),
        (&24u64.to_le_bytes()[..], &9u64.to_le_bytes()[..])
    );
    let smart = rig.run(&mut admin, Sqe::log_page(log::SMART, 0, 512, false), &[]);
    assert_eq!(smart.data[176..184], 24u64.to_le_bytes());
}

#[test]
fn a_part_of_a_long_trim_that_failed_is_named_by_its_first_block() {
    let mut rig = Rig::new();
    let (mut admin, mut io) = rig.io(Rig::options());
    rig.fail = Some(base::BlockError::Io);
    let range = |first: u64, blocks: u32| [&[0; 4], &blocks.to_le_bytes()[..], &first.to_le_bytes()].concat();
    rig.run(&mut io, Sqe::deallocate(2), &[range(8, 8), range(64, 8)].concat());
    let log = rig.run(&mut admin, Sqe::log_page(log::ERROR, 0, 64, false), &[]);
    assert_eq!(log.data[16..24], 8u64.to_le_bytes());
}

#[test]
fn the_temperature_is_a_healthy_one_and_warns_beyond_a_threshold() {
    let mut rig = Rig::new();
    let mut admin = rig.admin(Rig::options());
    let mut health = |command: Option<(Sqe, wire::nvme::host::Data)>| {
        if let Some(command) = command {
            assert_eq!(rig.run(&mut admin, command, &[]).status, Status::SUCCESS);
        }
        let smart = rig
            .run(&mut admin, Sqe::log_page(log::SMART, 0, 512, false), &[])
            .data;
        (smart[0], u16::from_le_bytes([smart[1], smart[2]]))
    };
    let over = |kelvin: u32| Some(Sqe::set_feature(feature::TEMPERATURE, kelvin));
    let under = |kelvin: u32| Some(Sqe::set_feature(feature::TEMPERATURE, 1 << 20 | kelvin));
    assert_eq!(health(None), (0, 300));
    assert_eq!(health(over(300)), (2, 300));
    assert_eq!(health(over(301)), (0, 300));
    assert_eq!(health(under(310)), (2, 300));
}

// Bug: a controller said that it has version 2.0 and had not all of what 2.0 makes mandatory. This is that list.
#[test]
fn what_version_2_makes_mandatory_is_there() {
    let mut rig = Rig::new();
    let mut io = rig.admin(Rig::options());
    let mut discovery = rig.admin(HostOptions {
        subsystem_nqn: DISCOVERY_NQN.to_string(),
        ..Rig::options()
    });
    let own = [log::SMART, log::FIRMWARE, log::CHANGED_NAMESPACES, log::ANA];
    for (admin, others, is_discovery) in [
        (&mut io, &own[..], false),
        (&mut discovery, &[log::DISCOVERY], true),
    ] {
        let supported = rig
            .run(admin, Sqe::log_page(log::SUPPORTED, 0, 1024, false), &[])
            .data;
        for &page in [
            log::SUPPORTED,
            log::ERROR,
            log::EFFECTS,
            log::FEATURES,
            log::MANAGEMENT,
        ]
        .iter()
        .chain(others)
        {
            let ended = rig.run(admin, Sqe::log_page(page, 0, 64, false), &[]);
            assert_eq!(
                (ended.status, supported[4 * usize::from(page)]),
                (Status::SUCCESS, 1),
                "page {page:#x}"
            );
        }
        let features = rig
            .run(admin, Sqe::log_page(log::FEATURES, 0, 1024, false), &[])
            .data;
        for id in 0..=255u8 {
            let (mut sqe, data) = Sqe::get_feature(id);
            // The host identifier is asked for with 128 bits.
            sqe.set_dword(11, u32::from(id == feature::HOST_ID));
            let ended = rig.run(admin, (sqe, data), &[]);
            let is_there = features[4 * usize::from(id)] & 1 != 0;
            assert_eq!(ended.status.is_success(), is_there, "feature {id:#x}");
        }
        let identity = rig.run(admin, Sqe::identify(cns::CONTROLLER, 0), &[]).data;
        assert_eq!(identity[80..84], 0x0002_0000u32.to_le_bytes(), "VER");
        assert_eq!(identity[261] & 0x26, 0x26, "LPA");
        assert!(identity[262] > 0, "ELPE");
        let is_hot = u16::from_le_bytes([identity[266], identity[267]]) > 300;
        assert_eq!(is_hot, !is_discovery, "WCTEMP");
        let capabilities = rig.run(admin, Sqe::get_property(property::CAP), &[]).result;
        let ready = rig.run(admin, Sqe::get_property(property::CRTO), &[]).result;
        assert_eq!(capabilities >> 59 & 3, 1, "CRMS");
        assert_eq!(ready, capabilities >> 24 & 0xff, "CRTO and CAP.TO");
    }
    for nsid in [0, 1, u32::MAX] {
        let (mut sqe, data) = Sqe::log_page(log::SMART, 0, 512, false);
        sqe.set_dword(1, nsid);
        assert_eq!(rig.run(&mut io, (sqe, data), &[]).status, Status::SUCCESS);
    }
}

#[test]
fn a_host_says_how_it_behaves() {
    let mut rig = Rig::new();
    let mut admin = rig.admin(Rig::options());
    let mut set = |rig: &mut Rig, bytes: usize, at: usize, value: u8| {
        let mut data = vec![0; bytes];
        data[at] = value;
        let (sqe, _) = Sqe::set_feature(feature::HOST_BEHAVIOR, 0);
        let command = (sqe, Data::Out(bytes as u32));
        let status = rig.run(&mut admin, command, &data).status;
        let (sqe, _) = Sqe::get_feature(feature::HOST_BEHAVIOR);
        let got = rig.run(&mut admin, (sqe, Data::In(512)), &[]).data;
        (status, got[0])
    };
    assert_eq!(set(&mut rig, 512, 0, 1), (Status::SUCCESS, 1));
    assert_eq!(set(&mut rig, 512, 0, 2), (Status::INVALID_FIELD.dnr(), 1));
    assert_eq!(set(&mut rig, 512, 2, 1), (Status::INVALID_FIELD.dnr(), 1));
    assert_eq!(set(&mut rig, 64, 0, 1), (Status::SGL_LENGTH.dnr(), 1));
    assert_eq!(set(&mut rig, 512, 0, 0), (Status::SUCCESS, 0));
}

// Bug: `nvme ana-log` failed with "invalid field". Cause: it reads the page in parts up to the size that Identify admits
// (ANA groups and namespaces), and offsets behind the one group there is were refused. Fix: the page has that size.
#[test]
fn ana_log_is_as_long_as_identify_admits() {
    let mut rig = Rig::new();
    let mut admin = rig.admin(Rig::options());
    let identity = rig.run(&mut admin, Sqe::identify(cns::CONTROLLER, 0), &[]).data;
    let u32_at =
        |at: usize| u32::from_le_bytes([identity[at], identity[at + 1], identity[at + 2], identity[at + 3]]);
    let (groups, namespaces) = (u32_at(348), u32_at(540));
    let page_bytes = 16 + 32 * groups + 4 * namespaces;
    let mut page = Vec::new();
    while page.len() < page_bytes as usize {
        let part_bytes = (page_bytes - page.len() as u32).min(4096);
        let command = Sqe::log_page(log::ANA, page.len() as u64, part_bytes, true);
        let ended = rig.run(&mut admin, command, &[]);
        assert_eq!(ended.status, Status::SUCCESS, "from byte {} on", page.len());
        page.extend(ended.data);
    }
    assert_eq!((page[8], page[16], page[20], page[48]), (1, 1, 1, 1));
    assert!(page[52..].iter().all(|&byte| byte == 0));
}

#[test]
fn features_keep_what_they_are_given() {
    let mut rig = Rig::new();
    let mut admin = rig.admin(HostOptions {
        kato_ms: 5000,
        ..Rig::options()
    });
    for (id, before, value) in [
        (feature::ARBITRATION, 0, 3),
        (feature::TEMPERATURE, 343, 350),
        (feature::ERROR_RECOVERY, 0, 100),
        (feature::WRITE_CACHE, 1, 0),
        (feature::WRITE_ATOMICITY, 0, 1),
        (feature::ASYNC_EVENTS, 0, 1 << 8 | 1 << 11),
        (feature::KEEP_ALIVE, 5000, 9000),
    ] {
        assert_eq!(
            rig.run(&mut admin, Sqe::get_feature(id), &[]).result,
            before,
            "feature {id:#x}"
        );
        assert_eq!(
            rig.run(&mut admin, Sqe::set_feature(id, value), &[]).status,
            Status::SUCCESS
        );
        assert_eq!(
            rig.run(&mut admin, Sqe::get_feature(id), &[]).result,
            u64::from(value)
        );
        let (mut default, data) = Sqe::get_feature(id);
        default.set_dword(10, u32::from(id) | 1 << 8);
        let expected = if id == feature::KEEP_ALIVE { 0 } else { before };
        assert_eq!(rig.run(&mut admin, (default, data), &[]).result, expected);
    }
    assert_eq!(
        rig.run(
            &mut admin,
            Sqe::set_feature(feature::QUEUES, 999 << 16 | 999),
            &[]
        )
        .result,
        63 << 16 | 63
    );
    let (mut sqe, _) = Sqe::get_feature(feature::HOST_ID);
    sqe.set_dword(11, 1);
    let ended = rig.run(&mut admin, (sqe, Data::In(16)), &[]);
    assert_eq!(ended.data, Rig::options().host_id);
}

// ---- events

#[test]
fn an_event_is_told_once_until_its_log_page_is_read() {
    let mut rig = Rig::new();
    let mut admin = rig.admin(Rig::options());
    rig.run(
        &mut admin,
        Sqe::set_feature(feature::ASYNC_EVENTS, 1 << 8 | 1 << 11),
        &[],
    );
    let request = |rig: &mut Rig, admin: &mut Wire| {
        let cid = rig.submit(admin, event_request(), &[]);
        rig.pump(admin);
        cid
    };
    let first = request(&mut rig, &mut admin);
    assert!(admin.mail.ended.is_empty() && admin.session.state().in_flight == 0);
    rig.target.borrow_mut().resize(NQN, 4096).expect("the volume");
    tick(&mut rig, &mut admin);
    assert_eq!(
        admin.mail.ended.remove(&first).map(|ended| ended.result),
        Some(NAMESPACE_CHANGED)
    );
    let second = request(&mut rig, &mut admin);
    rig.target.borrow_mut().resize(NQN, 8192).expect("the volume");
    tick(&mut rig, &mut admin);
    assert!(admin.mail.ended.is_empty(), "the log page was not read");
    let changed = rig.run(
        &mut admin,
        Sqe::log_page(log::CHANGED_NAMESPACES, 0, 4096, true),
        &[],
    );
    assert_eq!(changed.data[..4], [1, 0, 0, 0]);
    tick(&mut rig, &mut admin);
    assert!(admin.mail.ended.is_empty(), "it was read with the event retained");
    rig.run(
        &mut admin,
        Sqe::log_page(log::CHANGED_NAMESPACES, 0, 4096, false),
        &[],
    );
    tick(&mut rig, &mut admin);
    assert_eq!(
        admin.mail.ended.remove(&second).map(|ended| ended.result),
        Some(NAMESPACE_CHANGED)
    );
    rig.target.borrow_mut().set_ana_state(1, AnaState::Inaccessible);
    let third = request(&mut rig, &mut admin);
    assert_eq!(
        admin.mail.ended.remove(&third).map(|ended| ended.result),
        Some(ANA_CHANGED)
    );
    let identify = rig.run(&mut admin, Sqe::identify(cns::NAMESPACE, 1), &[]);
    assert_eq!(identify.data[..8], 16u64.to_le_bytes());
}

#[test]
fn a_namespace_tells_how_much_of_it_holds_data() {
    let mut rig = Rig::new();
    let data_bytes = Arc::new(AtomicU64::new(5 * 512));
    let told = Arc::clone(&data_bytes);
    let mut target = Target::new(TargetOptions::default());
    target
        .add(Subsystem {
            allocation: Some(Allocation::new(move || told.load(Ordering::Relaxed))),
            ..Subsystem::new("disk", VolumeId(7), DISK_BYTES as u64, [7; 16])
        })
        .expect("the first volume");
    *rig.target.borrow_mut() = target;
    let mut admin = rig.admin(Rig::options());
    let blocks = DISK_BYTES as u64 / 512;
    for (bytes, used) in [(0, 0), (5 * 512, 5), (u64::MAX, blocks)] {
        data_bytes.store(bytes, Ordering::Relaxed);
        let namespace = rig.run(&mut admin, Sqe::identify(cns::NAMESPACE, 1), &[]).data;
        assert_eq!(namespace[16..24], u64::to_le_bytes(used), "NUSE");
        assert_eq!(namespace[8..16], blocks.to_le_bytes(), "NCAP");
        assert_eq!(namespace[24] & 1, 1, "NSFEAT: NUSE follows what is deallocated");
    }
}

#[test]
fn event_requests_are_bounded_and_can_be_aborted() {
    let mut rig = Rig::new();
    let mut admin = rig.admin(Rig::options());
    let cids: Vec<u16> = (0..4)
        .map(|_| rig.submit(&mut admin, event_request(), &[]))
        .collect();
    rig.pump(&mut admin);
    assert_eq!(
        rig.run(&mut admin, event_request(), &[]).status,
        Status::ASYNC_LIMIT.dnr()
    );
    let abort = |cid: u16| {
        let mut sqe = Sqe::new(admin::ABORT);
        sqe.set_dword(10, u32::from(cid) << 16);
        (sqe, Data::None)
    };
    assert_eq!(rig.run(&mut admin, abort(cids[1]), &[]).result, 0);
    let ended = admin.mail.ended.remove(&cids[1]).expect("it was aborted");
    assert_eq!(ended.status, Status::ABORT_REQUESTED);
    assert_eq!(rig.run(&mut admin, abort(cids[1]), &[]).result, 1, "it is gone");
}

// ---- discovery

fn address(host: &str, port: u16) -> Address {
    Address {
        family: Family::V4,
        host: host.to_string(),
        port,
    }
}

#[test]
fn a_wildcard_is_told_as_the_address_by_which_the_host_came() {
    for (via, family, told) in [("10.0.0.7", 1, "10.0.0.7 "), ("fd00::7", 2, "fd00::7 ")] {
        let mut rig = Rig::new();
        rig.via = Some(via.parse().expect("an address"));
        rig.target.borrow_mut().set_addresses(vec![
            address("0.0.0.0", 4420),
            address("::", 4421),
            address("10.0.0.2", 4422),
        ]);
        let mut wire = rig.admin(discovery());
        let log = Sqe::log_page(log::DISCOVERY, 0, 4096, false);
        let page = rig.run(&mut wire, log, &[]).data;
        let entry = |index: usize| &page[1024 * (index + 1)..][..1024];
        for (index, family, port, host) in [
            (0, family, "4420 ", told),
            (1, family, "4421 ", told),
            (2, 1, "4422 ", "10.0.0.2 "),
        ] {
            assert_eq!(entry(index)[1], family);
            assert!(entry(index)[32..].starts_with(port.as_bytes()));
            assert!(entry(index)[512..].starts_with(host.as_bytes()));
        }
    }
}

#[test]
fn a_host_needs_no_name_where_any_host_may_connect() {
    let mut rig = Rig::new();
    let mut options = Rig::options();
    options.host_nqn.clear();
    let mut admin = rig.admin(options);
    rig.run(&mut admin, Sqe::identify(cns::CONTROLLER, 0), &[]);
}

#[test]
fn discovery_lists_what_a_host_may_see_at_every_address() {
    let mut rig = Rig::new();
    {
        let mut target = rig.target.borrow_mut();
        let mut hidden = Subsystem::new("hidden", VolumeId(8), 4096, [8; 16]);
        hidden.hosts = Some(vec!["nqn.other".to_string()]);
        target.add(hidden).expect("a second volume");
        target.set_addresses(vec![address("10.0.0.1", 4420), address("10.0.0.2", 4421)]);
        target.set_referrals(vec![address("10.0.0.9", 8009)]);
    }
    let mut wire = rig.admin(discovery());
    let controller = rig.run(&mut wire, Sqe::identify(cns::CONTROLLER, 0), &[]);
    assert_eq!(controller.data[111], 2, "a discovery controller");
    let head = rig
        .run(&mut wire, Sqe::log_page(log::DISCOVERY, 0, 1024, true), &[])
        .data;
    assert_eq!(head[8..16], 3u64.to_le_bytes());
    let page = rig
        .run(&mut wire, Sqe::log_page(log::DISCOVERY, 0, 4096, false), &[])
        .data;
    let entry = |index: usize| &page[1024 * (index + 1)..][..1024];
    for (index, port, host) in [(0, "4420 ", "10.0.0.1 "), (1, "4421 ", "10.0.0.2 ")] {
        assert_eq!(entry(index)[..4], [3, 1, 2, 4]);
        assert_eq!(entry(index)[6..8], CNTLID_DYNAMIC.to_le_bytes());
        assert!(entry(index)[32..].starts_with(port.as_bytes()));
        assert!(entry(index)[256..].starts_with(format!("{NQN}\0").as_bytes()));
        assert!(entry(index)[512..].starts_with(host.as_bytes()));
    }
    assert_eq!(entry(2)[2], 1, "a referral");
    assert!(entry(2)[256..].starts_with(DISCOVERY_NQN.as_bytes()));
    // Changes are told, and nothing else is there.
    rig.run(&mut wire, Sqe::set_feature(feature::ASYNC_EVENTS, 1 << 31), &[]);
    let cid = rig.submit(&mut wire, event_request(), &[]);
    rig.pump(&mut wire);
    rig.target.borrow_mut().set_addresses(Vec::new());
    tick(&mut rig, &mut wire);
    assert_eq!(
        wire.mail.ended.remove(&cid).map(|ended| ended.result),
        Some(DISCOVERY_CHANGED)
    );
    for command in [
        Sqe::identify(cns::NAMESPACE, 1),
        Sqe::get_feature(feature::QUEUES),
    ] {
        assert_eq!(
            rig.run(&mut wire, command, &[]).status,
            Status::INVALID_FIELD.dnr()
        );
    }
    let smart = rig.run(&mut wire, Sqe::log_page(log::SMART, 0, 512, false), &[]);
    assert_eq!(smart.status, Status::INVALID_LOG_PAGE.dnr());
    let mut io = rig.wire(discovery().io(wire.host.cntlid(), 1, 16));
    rig.pump(&mut io);
    assert!(io.host.failed().is_some(), "no I/O queues");
}

// ---- time

#[test]
fn a_connection_without_connect_is_closed() {
    let mut rig = Rig::new();
    let mut wire = rig.wire(Rig::options());
    assert_eq!(
        wire.session.deadline(),
        Some(Instant::ZERO),
        "it wants to know the time"
    );
    wire.session.tick(rig.now);
    let due = wire.session.deadline().expect("a deadline");
    wire.session.tick(Instant::from_nanos(due.as_nanos() - 1));
    assert_eq!(wire.session.closed(), None);
    wire.session.tick(due);
    assert_eq!(wire.session.closed(), Some(CloseReason::Idle));
    rig.now = due;
}

#[test]
fn a_controller_lives_while_its_host_keeps_it_alive() {
    for (options, life) in [
        (
            HostOptions {
                kato_ms: 10_000,
                ..Rig::options()
            },
            10,
        ),
        (discovery(), 120),
    ] {
        let mut rig = Rig::new();
        let mut admin = rig.admin(options);
        for _ in 0..5 {
            rig.now += Duration::from_secs(life - 1);
            let keep_alive = (Sqe::new(admin::KEEP_ALIVE), Data::None);
            assert_eq!(rig.run(&mut admin, keep_alive, &[]).status, Status::SUCCESS);
            admin.session.tick(rig.now);
            assert_eq!(admin.session.closed(), None);
        }
        rig.now = admin.session.deadline().expect("a deadline");
        admin.session.tick(rig.now);
        assert_eq!(admin.session.closed(), Some(CloseReason::KeepAlive));
        admin.session.detach();
        assert_eq!(rig.target.borrow().controllers().count(), 0);
    }
    let mut rig = Rig::new();
    let mut admin = rig.admin(Rig::options());
    admin.session.tick(Instant::FAR_FUTURE);
    assert_eq!(
        (admin.session.closed(), admin.session.deadline()),
        (None, None),
        "no time was agreed on"
    );
}

// ---- limits

#[test]
fn a_host_with_more_commands_than_entries_is_cut_off() {
    let mut rig = Rig::new();
    let (_admin, mut io) = rig.io(Rig::options());
    rig.hold = true;
    let mut bytes = Vec::new();
    for cid in 0..16 {
        bytes.extend(capsule(&command(Sqe::read(0, 512), cid, false), &[]));
    }
    assert!(rig.tell(&mut io.session, &bytes).is_empty());
    let one_more = capsule(&command(Sqe::read(0, 512), 16, false), &[]);
    let said = rig.ask(&mut io.session, &one_more);
    assert!(matches!(said[..], [Heard::Terminated { .. }]));
    assert_eq!(io.session.closed(), Some(CloseReason::QueueOverrun));
    rig.answer_all(&mut io.session);
    assert_eq!(
        (io.session.state().in_flight, io.session.state().in_flight_bytes),
        (0, 0)
    );
    assert_eq!(rig.pool.available(), POOL_PAGES);
}

#[test]
fn what_is_over_the_share_waits_until_that_has_grown_and_a_flush_goes_on() {
    let mut rig = Rig::new();
    let (_admin, mut io) = rig.io(Rig::options());
    io.session.set_share(8192);
    let ask = |rig: &mut Rig, session: &mut Session, sqe, cid| {
        let bytes = capsule(&command(sqe, cid, false), &[]);
        !rig.ask(session, &bytes).is_empty()
    };
    assert!(ask(&mut rig, &mut io.session, Sqe::read(0, 8192), 0));
    assert_eq!(io.session.state().share_wanted, 0);
    assert!(!ask(&mut rig, &mut io.session, Sqe::read(0, 12_288), 1));
    assert!(io.session.state().is_waiting && io.session.state().share_wanted == 12_288);
    assert!(ask(&mut rig, &mut io.session, Sqe::flush(), 2));
    assert_eq!(io.session.state().share_wanted, 12_288, "a flush wants no share");
    io.session.set_share(12_288);
    assert!(!rig.tell(&mut io.session, &[]).is_empty());
    assert_eq!(
        (io.session.state().share_wanted, io.session.state().in_flight),
        (0, 0)
    );
}

#[test]
fn a_capsule_with_data_finds_room_while_data_that_was_asked_for_is_missing() {
    let limits = SessionLimits {
        asked_bytes_max: u32::MAX,
        ..limits()
    };
    let mut rig = Rig::with(limits, POOL_PAGES);
    let (_admin, mut io) = rig.io(Rig::options());
    let mut bytes = Vec::new();
    for cid in 0..8 {
        bytes.extend(capsule(&command(Sqe::write(0, 131_072, false), cid, false), &[]));
    }
    let said = rig.ask(&mut io.session, &bytes);
    let ready: Vec<DataHeader> = said
        .iter()
        .map(|heard| match heard {
            Heard::Ready(header) => *header,
            other => panic!("only R2Ts are expected: {other:?}"),
        })
        .collect();
    assert_eq!(ready.len(), 2, "as many as the limit admits");
    assert!(io.session.state().is_waiting && io.session.is_receiving() && !io.session.state().is_blocked);
    for cid in 10..14 {
        let small = capsule(&command(Sqe::write(0, 8192, false), cid, true), &[7; 8192]);
        assert_eq!(rig.status(&mut io.session, &small), Status::SUCCESS);
    }
    // When one is done the next is asked for.
    let data = h2c_data(
        DataHeader {
            length: 131_072,
            ..ready[0]
        },
        true,
        &[1; 131_072],
    );
    let said = rig.ask(&mut io.session, &data);
    assert!(
        matches!(said[..], [Heard::Response(_), Heard::Ready(_)]),
        "{said:?}"
    );
}

#[test]
fn a_session_without_pages_waits_and_goes_on() {
    let mut rig = Rig::new();
    let (_admin, mut io) = rig.io(Rig::options());
    let taken: Vec<_> = (0..POOL_PAGES - 2).map_while(|_| rig.pool.alloc()).collect();
    let small = capsule(&command(Sqe::write(0, 4096, false), 1, true), &[7; 4096]);
    let taken_bytes = io.session.receive(rig.now, &small);
    assert_eq!(taken_bytes, 72, "the header, not the data");
    assert!(io.session.state().is_blocked && io.session.state().in_flight == 0);
    assert_eq!(io.session.receive(rig.now, &[]), 0);
    assert!(io.session.state().is_blocked);
    drop(taken);
    assert_eq!(rig.status(&mut io.session, &small[72..]), Status::SUCCESS);
    assert_eq!(rig.disk[..4096], [7; 4096]);
}

#[test]
fn unread_log_pages_are_bounded() {
    let mut rig = Rig::new();
    rig.limits.in_flight_max = 256;
    let mut admin = rig.admin(Rig::options());
    let identify = capsule(&command(Sqe::identify(cns::CONTROLLER, 0), 1, false), &[]);
    let input = identify.repeat(200);
    let mut rest = &input[..];
    while !admin.session.state().is_blocked && !rest.is_empty() && admin.session.closed().is_none() {
        let taken = admin.session.receive(rig.now, rest);
        rest = &rest[taken..];
    }
    assert!(!rest.is_empty(), "the host is held back");
    assert!(admin.session.state().pending_bytes <= 80 << 10);
}

// ---- everything at once

#[derive(Clone, Debug)]
enum Step {
    Write { at: u32, blocks: u32, fua: bool },
    Read { at: u32, blocks: u32 },
    Compare { at: u32, blocks: u32 },
    Zero { at: u32, blocks: u32, deallocate: bool },
    Forget { at: u32, blocks: u32 },
    Flush,
    Answer,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let place = || (0u32..1700, prop_oneof![3 => 1u32..20, 1 => 1u32..256]);
    let step = prop_oneof![
        4 => (place(), any::<bool>()).prop_map(|((at, blocks), fua)| Step::Write { at, blocks, fua }),
        4 => place().prop_map(|(at, blocks)| Step::Read { at, blocks }),
        1 => place().prop_map(|(at, blocks)| Step::Compare { at, blocks }),
        1 => (place(), any::<bool>()).prop_map(|((at, blocks), deallocate)| Step::Zero { at, blocks, deallocate }),
        1 => place().prop_map(|(at, blocks)| Step::Forget { at, blocks }),
        1 => Just(Step::Flush),
        3 => Just(Step::Answer),
    ];
    proptest::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Commands in any number under way, bytes split anywhere, answers late: all end well, and nothing is left over.
    #[test]
    fn any_mix_of_commands_ends_well(steps in steps(), seed in any::<u64>(), bits in 0u8..16) {
        let options = HostOptions {
            header_digest: bits & 1 != 0,
            data_digest: bits & 2 != 0,
            sq_flow: bits & 4 != 0,
            alignment: if bits & 8 != 0 { 3 } else { 0 },
            ..Rig::options()
        };
        let mut rig = Rig::new();
        let (_admin, mut io) = rig.io(options);
        io.rng = Some(Rng::new(seed));
        rig.hold = true;
        let mut submitted = 0;
        for step in steps {
            let bytes = |blocks: u32| vec![blocks as u8; 512 * blocks as usize];
            let place = |at: u32, blocks: u32| (512 * u64::from(at), 512 * blocks);
            let (command, data) = match step {
                Step::Write { at, blocks, fua } => {
                    let (offset, length) = place(at, blocks);
                    (Sqe::write(offset, length, fua), bytes(blocks))
                }
                Step::Read { at, blocks } => {
                    let (offset, length) = place(at, blocks);
                    (Sqe::read(offset, length), Vec::new())
                }
                Step::Compare { at, blocks } => {
                    let (offset, length) = place(at, blocks);
                    (Sqe::compare(offset, length), bytes(blocks))
                }
                Step::Zero { at, blocks, deallocate } => {
                    let (offset, length) = place(at, blocks);
                    (Sqe::write_zeroes(offset, length, deallocate), Vec::new())
                }
                Step::Forget { at, blocks } => {
                    let mut range = [0; 16];
                    range[4..8].copy_from_slice(&blocks.to_le_bytes());
                    range[8..12].copy_from_slice(&at.to_le_bytes());
                    (Sqe::deallocate(1), range.to_vec())
                }
                Step::Flush => (Sqe::flush(), Vec::new()),
                Step::Answer => {
                    rig.pump(&mut io);
                    rig.answer_all(&mut io.session);
                    continue;
                }
            };
            if !io.host.has_room() {
                finish(&mut rig, &mut io);
            }
            let reads = matches!(command.1, Data::In(_)).then_some(command.1);
            count(&mut io);
            let cid = rig.submit(&mut io, command, &data);
            submitted += 1;
            if let Some(Data::In(length)) = reads {
                prop_assert!(length > 0 && cid < 16);
            }
        }
        finish(&mut rig, &mut io);
        prop_assert_eq!(io.host.failed(), None);
        prop_assert_eq!(io.done, submitted);
        prop_assert_eq!((io.session.state().in_flight, io.session.state().in_flight_bytes), (0, 0));
        prop_assert_eq!(rig.pool.available(), POOL_PAGES);
    }
}

/// Lets every command end; each with a success, or a compare that differs.
fn finish(rig: &mut Rig, io: &mut Wire) {
    while io.host.in_flight() > 0 {
        rig.pump(io);
        assert!(
            !rig.held.is_empty() || io.host.in_flight() == 0,
            "something moves: {:?}",
            io.host.failed()
        );
        rig.answer_all(&mut io.session);
    }
    count(io);
}

/// Counts the commands that ended, all of them well.
fn count(io: &mut Wire) {
    for ended in core::mem::take(&mut io.mail.ended).into_values() {
        io.done += 1;
        assert!(matches!(
            ended.status.code(),
            Status::SUCCESS | Status::COMPARE_FAILURE
        ));
    }
}

//! A target's volumes through real sockets: NVMe/TCP with and without digests, on two cores, on memory and a file; NVMe
//! and NBD on a vSSD that is killed, recovered and checked.

use crate::common;
use crate::common::nvme::{Queue, Work, connect, connect_as};
use crate::common::{memory_and_file, nbd};
use base::VolumeId;
use blockswitch::Class;
use flash::{Geometry, Ssd, Timing};
use host::target::{ClassRules, Config};
use host::{Disk, DiskConfig, DiskEntry};
use runtime::{
    CoreConfig, CoreHandle, ImageOpen, Listen, LocalVolume, Medium, NvmeTarget, StartError, TargetSpec,
    start_target,
};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use wire::nvme::proto::{Sqe, Status, io};
use wire::nvme::{Nvme, Subsystem, Target, TargetOptions};

const BYTES: u64 = 8 << 20;

fn start(volumes: Vec<LocalVolume>, cores: usize) -> Vec<CoreHandle> {
    start_with(volumes, cores, ClassRules::default())
}

fn start_with(volumes: Vec<LocalVolume>, cores: usize, classes: ClassRules) -> Vec<CoreHandle> {
    try_start(volumes, cores, classes).expect("a target")
}

fn try_start(
    volumes: Vec<LocalVolume>,
    cores: usize,
    classes: ClassRules,
) -> Result<Vec<CoreHandle>, StartError> {
    let mut target = Target::new(TargetOptions::default());
    for (volume, id) in volumes.iter().zip(0..) {
        let export = volume.export();
        let subsystem = Subsystem {
            reservable: true,
            ..Subsystem::new(&export.name, VolumeId(id), export.size_bytes, [id as u8 + 1; 16])
        };
        target.add(subsystem).expect("a good name");
    }
    let config = CoreConfig {
        target: Config {
            pool_pages: 4096,
            connections_max: 32,
            ..CoreConfig::default().target
        },
        classes,
        ..CoreConfig::default()
    };
    let target = NvmeTarget::new(target);
    let spec = TargetSpec {
        volumes,
        listen: vec![
            Listen::tcp(common::ANY_TCP, wire::nbd::Nbd::beside(target.clone())),
            Listen::tcp(common::ANY_TCP, Nvme::new(target)),
        ],
    };
    start_target(vec![config; cores], spec)
}

#[test]
fn what_one_queue_writes_the_other_reads_on_memory_and_a_file_with_and_without_digests() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let cores = start(memory_and_file(directory.path(), BYTES), 2);
    let address = cores[0].target_listening(wire::nvme::NAME)[0];
    for (name, digests) in [
        ("memory", false),
        ("memory", true),
        ("file", false),
        ("file", true),
    ] {
        // The queues are on different cores.
        let (_admin, mut queues) = connect(address, name, 2, digests);
        let mut random = base::Rng::new(u64::from(digests) + 1);
        let mut model = vec![0u8; BYTES as usize];
        queues[0].one(Sqe::write_zeroes(0, 4 << 20, true), Vec::new());
        queues[0].one(Sqe::write_zeroes(4 << 20, 4 << 20, false), Vec::new());
        for _ in 0..30 {
            let mut commands = Vec::new();
            let mut offset = random.below(64) * 512;
            while commands.len() < 16 {
                let length = random.between(1, 600) * 512;
                if offset + length > BYTES {
                    break;
                }
                let fill = random.next_u64() as u8;
                let data: Vec<u8> = (0..length).map(|i| fill.wrapping_add((i / 512) as u8)).collect();
                model[offset as usize..][..length as usize].copy_from_slice(&data);
                let (sqe, direction) = Sqe::write(offset, length as u32, random.chance(0.1));
                commands.push((sqe, direction, data));
                offset += length + random.below(64) * 512;
            }
            queues[0].run(commands);
        }
        queues[0].one(Sqe::flush(), Vec::new());
        for at in (0..BYTES).step_by(512 << 10) {
            let read = queues[1].one(Sqe::read(at, 512 << 10), Vec::new());
            assert!(read == model[at as usize..][..512 << 10], "{name} at {at}");
        }
    }
    for core in cores {
        core.stop().expect("a healthy core");
    }
}

#[test]
fn a_class_given_to_a_host_goes_before_that_of_its_volume() {
    let bulk = "nqn.2014-08.org.nvmexpress:uuid:b1a5e11e-0000-4000-8000-000000000001";
    let other = "nqn.2014-08.org.nvmexpress:uuid:b1a5e11e-0000-4000-8000-000000000002";
    let classes = ClassRules {
        hosts: vec![(bulk.into(), Class::Throughput)],
        volumes: vec![(VolumeId(0), Class::Latency)],
        ports: Vec::new(),
    };
    let volume = LocalVolume::memory("m", BYTES).expect("memory");
    let cores = start_with(vec![volume], 1, classes);
    let address = cores[0].target_listening(wire::nvme::NAME)[0];
    for (host_nqn, expected) in [(other, 0), (bulk, 20), (other, 20)] {
        let (_admin, mut queues) = connect_as(host_nqn, address, "m", 1, false);
        for at in 0..20 {
            queues[0].one(Sqe::read(at * 4096, 4096), Vec::new());
        }
        assert_eq!(cores[0].stats().requests_bulk, expected, "{host_nqn}");
    }
    for core in cores {
        core.stop().expect("a healthy core");
    }
}

/// Reservation Register, Acquire or Release with its keys.
fn reserve(queue: &mut Queue, opcode: u8, fields: u32, keys: [u64; 2]) -> Status {
    let mut bytes = keys.map(u64::to_le_bytes).concat();
    bytes.truncate(if opcode == io::RESERVATION_RELEASE { 8 } else { 16 });
    queue.try_one(Sqe::reservation(opcode, fields), bytes).0
}

#[test]
fn a_reserved_volume_is_its_holders_on_every_core_and_no_nbd_clients() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let cores = start(memory_and_file(directory.path(), BYTES), 2);
    let address = cores[0].target_listening(wire::nvme::NAME)[0];
    for name in ["memory", "file"] {
        let (_first, mut holder) = connect_as("nqn.2026-11.io.switchyard:a", address, name, 2, false);
        let (_second, mut other) = connect_as("nqn.2026-11.io.switchyard:b", address, name, 2, false);
        let mut nbd = nbd::Client::of(cores[0].target_listening(wire::nbd::NAME)[0], name);
        let mut expect = |barred: bool, other: &mut Vec<Queue>| {
            let (status, errno) = if barred {
                (Status::RESERVATION_CONFLICT.dnr(), 1)
            } else {
                (Status::SUCCESS, 0)
            };
            for queue in other {
                assert_eq!(queue.try_one(Sqe::read(0, 4096), Vec::new()).0, status);
                assert_eq!(queue.try_one(Sqe::write(0, 512, false), vec![7; 512]).0, status);
            }
            nbd.request(1, 1, 0, 512);
            nbd.give(&[8; 512]);
            assert_eq!(nbd.reply(), (errno, 1));
            nbd.request(0, 2, 0, 512);
            assert_eq!(nbd.reply(), (errno, 2));
            if !barred {
                nbd.take::<512>();
            }
        };
        expect(false, &mut other);
        assert_eq!(
            reserve(&mut holder[0], io::RESERVATION_REGISTER, 0, [0, 1]),
            Status::SUCCESS
        );
        expect(false, &mut other);
        assert_eq!(
            reserve(&mut holder[1], io::RESERVATION_ACQUIRE, 2 << 8, [1, 0]),
            Status::SUCCESS
        );
        expect(true, &mut other);
        for queue in &mut holder {
            queue.one(Sqe::write(0, 4096, false), vec![1; 4096]);
        }
        assert_eq!(
            reserve(&mut holder[0], io::RESERVATION_RELEASE, 2 << 8, [1, 0]),
            Status::SUCCESS
        );
        expect(false, &mut other);
        // A client that comes when it is reserved already.
        assert_eq!(
            reserve(&mut holder[0], io::RESERVATION_ACQUIRE, 1 << 8, [1, 0]),
            Status::SUCCESS
        );
        let mut late = nbd::Client::of(cores[0].target_listening(wire::nbd::NAME)[0], name);
        late.request(1, 3, 0, 512);
        late.give(&[8; 512]);
        assert_eq!(late.reply(), (1, 3));
        late.request(0, 4, 0, 512);
        assert_eq!((late.reply(), late.take::<512>()), ((0, 4), [8; 512]));
    }
    for core in cores {
        core.stop().expect("a healthy core");
    }
}

/// Once the reservation is taken with "preempt and abort", nothing of the host before reaches the volume: not what waits
/// for data or room, not what the other core has in its queues, not what is left of a connection that is closed.
#[test]
fn nothing_of_a_preempted_host_is_written_any_more() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let cores = start(memory_and_file(directory.path(), BYTES), 2);
    let address = cores[0].target_listening(wire::nvme::NAME)[0];
    for round in 0..40u8 {
        let name = ["memory", "file"][usize::from(round % 2)];
        let (_first, mut taker) = connect_as("nqn.2026-11.io.switchyard:a", address, name, 1, false);
        let (_second, mut holder) = connect_as("nqn.2026-11.io.switchyard:b", address, name, 2, false);
        let [register, acquire] = [io::RESERVATION_REGISTER, io::RESERVATION_ACQUIRE];
        assert_eq!(reserve(&mut holder[0], register, 0, [0, 2]), Status::SUCCESS);
        assert_eq!(reserve(&mut holder[1], acquire, 1 << 8, [2, 0]), Status::SUCCESS);
        assert_eq!(reserve(&mut taker[0], register, 0, [0, 1]), Status::SUCCESS);
        for queue in &mut holder {
            let mut work = Work::default();
            for at in 0..16 {
                let (sqe, data) = Sqe::write(at << 16, 64 << 10, false);
                work.next = vec![round; 64 << 10];
                queue
                    .host
                    .submit(sqe, data, &mut work)
                    .expect("the queue has room");
            }
            // Commands, perhaps the data that is asked for first, and then nothing any more: the host hangs, or is gone.
            queue
                .stream
                .write_all(queue.host.outgoing())
                .expect("an open connection");
            queue.host.sent(queue.host.outgoing().len());
            if round % 4 < 2 {
                let mut bytes = [0; 4096];
                let count = queue.stream.read(&mut bytes).expect("data is asked for");
                queue.host.receive(&bytes[..count], &mut work);
                queue
                    .stream
                    .write_all(queue.host.outgoing())
                    .expect("an open connection");
            }
        }
        if round % 3 == 0 {
            drop(holder);
        }
        assert_eq!(
            reserve(&mut taker[0], acquire, 2 | 1 << 8, [1, 2]),
            Status::SUCCESS
        );
        let ours = vec![0x80 | round; 1 << 20];
        taker[0].one(Sqe::write(0, 1 << 20, false), ours.clone());
        for _ in 0..10 {
            assert!(
                taker[0].one(Sqe::read(0, 1 << 20), Vec::new()) == ours,
                "round {round}"
            );
        }
        assert_eq!(
            reserve(&mut taker[0], io::RESERVATION_RELEASE, 1, [1, 0]),
            Status::SUCCESS
        );
    }
    for core in cores {
        core.stop().expect("a healthy core");
    }
}

#[test]
fn a_controller_that_goes_takes_its_queues_along() {
    let cores = start(vec![LocalVolume::memory("m", BYTES).expect("memory")], 2);
    let address = cores[0].target_listening(wire::nvme::NAME)[0];
    let (admin, queues) = connect(address, "m", 3, false);
    drop(admin);
    for mut queue in queues {
        let mut byte = [0];
        assert_eq!(queue.stream.read(&mut byte).expect("an orderly end"), 0);
    }
    // And nothing of it is in the way of the next one.
    let (_admin, mut queues) = connect(address, "m", 1, false);
    queues[0].one(Sqe::read(0, 4096), Vec::new());
    let closed: u64 = cores.iter().map(|core| core.stats().clients_closed).sum();
    assert!(closed >= 4, "{closed}");
}

// Bug: Linux' host waited for ever for a discard of more than 32 MiB, or of two ranges. Cause: the volume is asked about
// such a command part by part; the next part was there when the one before was answered, but a connection was attended
// to only if it had something to read or to send. Fix: a connection whose session has requests stands in line.
#[test]
fn trims_and_zeroes_in_several_parts_end() {
    const LONG: u64 = 80 << 20;
    let directory = tempfile::tempdir().expect("a temporary directory");
    let cores = start(memory_and_file(directory.path(), LONG), 1);
    let address = cores[0].target_listening(wire::nvme::NAME)[0];
    for name in ["memory", "file"] {
        let (_admin, mut queues) = connect(address, name, 1, false);
        let queue = &mut queues[0];
        let limit = Some(std::time::Duration::from_secs(60));
        queue.stream.set_read_timeout(limit).expect("a socket");
        let fill = |queue: &mut Queue| {
            for at in [0, 40 << 20, LONG - 4096] {
                queue.one(Sqe::write(at, 4096, false), vec![7; 4096]);
            }
        };
        let filled = |queue: &mut Queue| {
            [0, 40 << 20, LONG - 4096].map(|at| queue.one(Sqe::read(at, 4096), Vec::new())[0] == 7)
        };
        let ranges = |ranges: &[(u64, u64)]| -> Vec<u8> {
            let range = |&(offset, bytes): &(u64, u64)| {
                let blocks = (bytes / 512) as u32;
                [&[0; 4], &blocks.to_le_bytes()[..], &(offset / 512).to_le_bytes()].concat()
            };
            ranges.iter().flat_map(range).collect()
        };
        fill(queue);
        queue.one(Sqe::deallocate(1), ranges(&[(0, LONG)]));
        assert_eq!(filled(queue), [false; 3], "{name}: one long range");
        fill(queue);
        queue.one(Sqe::deallocate(2), ranges(&[(0, 4096), (LONG - 8192, 8192)]));
        assert_eq!(filled(queue), [false, true, false], "{name}: two ranges");
        fill(queue);
        // The longest that the command can say ends behind the first 32 MiB if it begins above zero.
        queue.one(Sqe::write_zeroes(20 << 20, 32 << 20, false), Vec::new());
        assert_eq!(filled(queue), [true, false, true], "{name}: zeroes");
    }
    for core in cores {
        core.stop().expect("a healthy core");
    }
}

/// An NBD connection that does one simple request after the other.
struct Nbd(TcpStream);

impl Nbd {
    fn open(address: SocketAddr, export: &str) -> Self {
        let mut stream = TcpStream::connect(address).expect("a listener");
        stream.read_exact(&mut [0; 18]).expect("a greeting");
        let mut hello = 3u32.to_be_bytes().to_vec();
        hello.extend(b"IHAVEOPT\0\0\0\x01");
        hello.extend((export.len() as u32).to_be_bytes());
        hello.extend(export.as_bytes());
        stream.write_all(&hello).expect("an open connection");
        stream.read_exact(&mut [0; 10]).expect("the export");
        Self(stream)
    }

    /// Kinds: 0 read, 1 write, 3 flush. Reads return `length` bytes.
    fn run(&mut self, kind: u16, fua: bool, offset: u64, length: usize, data: &[u8]) -> Vec<u8> {
        let mut request = 0x2560_9513u32.to_be_bytes().to_vec();
        request.extend(u16::from(fua).to_be_bytes());
        request.extend(kind.to_be_bytes());
        request.extend([9; 8]);
        request.extend(offset.to_be_bytes());
        request.extend((length as u32).to_be_bytes());
        request.extend(data);
        self.0.write_all(&request).expect("an open connection");
        let mut reply = [0; 16];
        self.0.read_exact(&mut reply).expect("an answer");
        assert_eq!((&reply[4..8], &reply[8..]), (&[0; 4][..], &[9; 8][..]));
        let mut found = vec![0; if kind == 0 { length } else { 0 }];
        self.0.read_exact(&mut found).expect("the data");
        found
    }
}

const GEOMETRY: Geometry = Geometry {
    channels: 4,
    chips_per_channel: 1,
    planes_per_chip: 1,
    blocks_per_plane: 64,
    pages_per_block: 16,
};

fn vssd(path: Option<&std::path::Path>, timing: &str) -> LocalVolume {
    let bytes = Ssd::bytes_needed(&GEOMETRY, 4096);
    let fresh = path.is_none_or(|path| !path.exists());
    let mut medium = match path {
        Some(path) => Medium::open(path, bytes, true).expect("a file"),
        None => Medium::memory(bytes).expect("memory"),
    };
    if fresh {
        Ssd::format(&mut medium, GEOMETRY, 4096, [1; 16]).expect("a good geometry");
    }
    let entry = DiskEntry::open(&mut medium, Some(BYTES)).expect("a disk");
    let timing = Timing::built_in(timing).expect("it is built in");
    LocalVolume::disk("v", "vSSD", medium, entry, DiskConfig::new(timing, 4))
}

/// What recovery of a core's only disk had to do: entries replayed, pages damaged; and pages collected since.
fn disk_report(core: &CoreHandle) -> (u64, usize, u64) {
    core.call(0, |host, _| {
        let disk: &Disk = host.as_any_mut().downcast_ref().expect("a disk");
        let report = disk.report();
        (
            report.entries_replayed,
            report.damaged.len(),
            disk.flash().stats().erases,
        )
    })
    .expect("a healthy core")
}

#[test]
fn a_volume_tells_how_much_of_it_holds_data() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("v");
    let sparse = std::fs::File::create(&path).expect("a file");
    sparse.set_len(BYTES).expect("a size");
    let volumes = [
        LocalVolume::memory("v", BYTES).expect("memory"),
        LocalVolume::image("v", &path, ImageOpen::Existing).expect("a file"),
        vssd(None, "none"),
    ];
    const WRITTEN: u32 = 256 << 10;
    for volume in volumes {
        let allocation = volume.allocation();
        let cores = start(vec![volume], 1);
        let (_admin, mut queues) = connect(cores[0].target_listening(wire::nvme::NAME)[0], "v", 1, false);
        queues[0].one(Sqe::flush(), Vec::new());
        assert_eq!(allocation.data_bytes(), 0);
        queues[0].one(Sqe::write(1 << 20, WRITTEN, false), vec![1; WRITTEN as usize]);
        queues[0].one(Sqe::flush(), Vec::new());
        let told = allocation.data_bytes();
        assert!((WRITTEN.into()..2 * u64::from(WRITTEN)).contains(&told), "{told}");
        queues[0].one(Sqe::write_zeroes(1 << 20, WRITTEN, true), Vec::new());
        queues[0].one(Sqe::flush(), Vec::new());
        let told = allocation.data_bytes();
        assert!(told < u64::from(WRITTEN), "{told}");
        for core in cores {
            core.stop().expect("a healthy core");
        }
    }
}

#[test]
fn a_vssd_keeps_what_was_flushed_over_nbd_and_nvme_when_it_is_killed() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (path, copy) = (directory.path().join("v"), directory.path().join("copy"));
    let cores = start(vec![vssd(Some(&path), "none")], 1);
    let (_admin, mut queues) = connect(cores[0].target_listening(wire::nvme::NAME)[0], "v", 1, false);
    let mut nbd = Nbd::open(cores[0].target_listening(wire::nbd::NAME)[0], "v");
    let mut random = base::Rng::new(11);
    let mut model = vec![0u8; BYTES as usize];
    for round in 0..3 {
        // More than the flash has spare, so that garbage is collected.
        for step in 0..200 {
            let length = random.between(1, 160) * 512;
            let offset = random.below((BYTES - length) / 512) * 512;
            let data = vec![(round * 200 + step) as u8 | 1; length as usize];
            model[offset as usize..][..length as usize].copy_from_slice(&data);
            let fua = random.chance(0.05);
            if random.chance(0.5) {
                let (sqe, direction) = Sqe::write(offset, length as u32, fua);
                queues[0].one((sqe, direction), data);
            } else {
                nbd.run(1, fua, offset, length as usize, &data);
            }
        }
        if round == 1 {
            queues[0].one(Sqe::write_zeroes(1 << 20, 3 << 20, false), Vec::new());
            model[1 << 20..4 << 20].fill(0);
        }
        // Either one's flush is for both.
        if round == 0 {
            nbd.run(3, false, 0, 0, &[]);
        } else {
            queues[0].one(Sqe::flush(), Vec::new());
        }
        // What a kill now would leave: nothing is asked of the medium while the core makes the copy.
        let places = (path.clone(), copy.clone());
        let copied = cores[0].call(0, move |_, _| std::fs::copy(places.0, places.1));
        copied.expect("a healthy core").expect("room for a copy");
        check_copy(&copy, &model);
        std::fs::remove_file(&copy).expect("just made");
    }
    let (.., erases) = disk_report(&cores[0]);
    assert!(erases > 0, "nothing was collected");
    // What is not flushed is kept by a clean stop, which leaves nothing to replay.
    nbd.run(1, false, 4096, 4096, &[0xee; 4096]);
    model[4096..8192].fill(0xee);
    for core in cores {
        core.stop().expect("a healthy core");
    }
    let cores = start(vec![vssd(Some(&path), "none")], 1);
    assert_eq!(disk_report(&cores[0]), (0, 0, 0));
    let mut nbd = Nbd::open(cores[0].target_listening(wire::nbd::NAME)[0], "v");
    for at in (0..BYTES).step_by(1 << 20) {
        assert!(
            nbd.run(0, false, at, 1 << 20, &[]) == model[at as usize..][..1 << 20],
            "at {at}"
        );
    }
}

/// The medium is sound, and a target on it has what the model has.
fn check_copy(path: &std::path::Path, model: &[u8]) {
    let medium = Medium::open(path, 0, false).expect("a file");
    let report = flash::verify(&medium, 4096, &mut |_| {}).expect("a medium of ours");
    assert_eq!(report.problems, []);
    drop(medium);
    let cores = start(vec![vssd(Some(path), "none")], 1);
    assert_eq!(disk_report(&cores[0]).1, 0);
    let (_admin, mut queues) = connect(cores[0].target_listening(wire::nvme::NAME)[0], "v", 1, false);
    for at in (0..BYTES).step_by(512 << 10) {
        let read = queues[0].one(Sqe::read(at, 512 << 10), Vec::new());
        assert!(read == model[at as usize..][..512 << 10], "at {at}");
    }
}

#[test]
fn a_vssd_in_memory_with_device_time_collects_while_it_is_read_and_written() {
    let cores = start(vec![vssd(None, "optane")], 1);
    let (_admin, mut queues) = connect(cores[0].target_listening(wire::nvme::NAME)[0], "v", 2, false);
    let mut random = base::Rng::new(5);
    let mut model = vec![0u8; (BYTES / 4096) as usize];
    for round in 0..250u8 {
        let mut pages: Vec<u64> = (0..32).map(|_| random.below(BYTES / 4096)).collect();
        pages.sort_unstable();
        pages.dedup();
        let write = |&page: &u64| {
            let (sqe, direction) = Sqe::write(page * 4096, 4096, false);
            (sqe, direction, vec![round + 1; 4096])
        };
        queues[0].run(pages.iter().map(write).collect());
        for page in pages {
            model[page as usize] = round + 1;
            assert_eq!(
                queues[1].one(Sqe::read(page * 4096, 4096), Vec::new())[0],
                round + 1
            );
        }
    }
    let (.., erases) = disk_report(&cores[0]);
    assert!(erases > 0, "nothing was collected");
    for at in 0..BYTES / 4096 {
        assert_eq!(
            queues[1].one(Sqe::read(at * 4096, 4096), Vec::new())[7],
            model[at as usize]
        );
    }
}

#[test]
fn a_vssd_on_several_cores_is_refused() {
    let refused = try_start(vec![vssd(None, "none")], 2, ClassRules::default());
    assert!(matches!(refused, Err(StartError::SeveralCores { cores: 2 })));
}

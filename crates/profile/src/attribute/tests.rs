//! Attribution on made-up events: whose bio it is, and which layer its time belongs to.

use super::*;

const DISK: Dev = Dev(8 << 20);
const LOOP: Dev = Dev(7 << 20);
const PROGRAM: u32 = 100;
const OTHER: u32 = 200;
const KERNEL: u32 = 300;
const WORKERS: [u32; 2] = [110, 111];

const READ: &[u8] = b"R";
const AHEAD: &[u8] = b"RA";
const WRITE: &[u8] = b"WS";
const JOURNAL: &[u8] = b"WSM";
const FLUSH: &[u8] = b"FWS";

/// A machine, its clock and what it found.
struct Bench {
    machine: Attribution,
    now_ns: u64,
    found: Vec<Finding>,
}

impl Bench {
    fn new() -> Self {
        let uppers = BTreeMap::from([(DISK, vec![LOOP])]);
        Self {
            machine: Attribution::new(BTreeMap::new(), uppers),
            now_ns: 1000,
            found: Vec::new(),
        }
    }

    /// 10 ns later something happens.
    fn happens(&mut self, thread: u32, what: What) -> &mut Self {
        self.now_ns += 10;
        let event = Event {
            time_ns: self.now_ns,
            thread,
            what,
        };
        let ours = thread == PROGRAM || WORKERS.contains(&thread);
        self.machine.handle(&event, ours, &mut self.found);
        self
    }

    fn enter(&mut self, thread: u32, number: i64) -> &mut Self {
        let number = number as u32;
        self.happens(thread, What::Enter { number })
    }

    fn exit(&mut self, thread: u32, number: i64, result: i64) -> &mut Self {
        let number = number as u32;
        self.happens(thread, What::Exit { number, result })
    }

    fn queue(&mut self, thread: u32, name: &[u8], span: Span, rwbs: &[u8]) -> &mut Self {
        let mut comm = [0; 16];
        comm[..name.len()].copy_from_slice(name);
        let rw = Rw::parse(rwbs);
        self.happens(thread, What::BioQueue { span, rw, comm })
    }

    /// The bio gets a request, goes to the driver and is done, in nobody's context.
    fn serve(&mut self, span: Span, rwbs: &[u8]) -> &mut Self {
        let rw = Rw::parse(rwbs);
        self.happens(0, What::GetRequest(span));
        self.happens(0, What::Issue(span, rw));
        self.happens(0, What::Done(span, rw))
    }

    /// The program reads by io_uring, and the requests go on in workers.
    fn punt(&mut self, requests: &[u64]) {
        self.enter(PROGRAM, libc::SYS_io_uring_enter);
        for &request in requests {
            self.happens(PROGRAM, What::Submit { request, opcode: 1 });
            self.happens(PROGRAM, What::Punt { request });
        }
        self.exit(PROGRAM, libc::SYS_io_uring_enter, requests.len() as i64);
    }

    fn complete(&mut self, thread: u32, request: u64, result: i64) -> &mut Self {
        self.happens(thread, What::Complete { request, result })
    }

    fn operations(&self) -> Vec<&Operation> {
        let operations = self.found.iter().filter_map(|finding| match finding {
            Finding::Operation(operation) => Some(operation),
            Finding::Bio(_) => None,
        });
        operations.collect()
    }
}

fn span(dev: Dev, sector: u64, sectors: u32) -> Span {
    Span { dev, sector, sectors }
}

#[test]
fn a_bio_is_of_the_call_in_whose_thread_it_was_queued_and_of_nobody_else() {
    let mut bench = Bench::new();
    let (mine, theirs) = (span(DISK, 0, 8), span(DISK, 8, 8));
    bench.enter(PROGRAM, libc::SYS_pread64);
    bench
        .queue(OTHER, b"other", theirs, WRITE)
        .queue(PROGRAM, b"me", mine, READ);
    bench.serve(theirs, WRITE).serve(mine, READ);
    bench.exit(PROGRAM, libc::SYS_pread64, 4096);
    let [background, read] = bench.operations()[..] else {
        panic!("{:?}", bench.found)
    };
    assert_eq!(
        (background.interface, background.action),
        (Interface::Background, Action::Write)
    );
    assert_eq!(
        (read.interface, read.bios, read.bytes),
        (Interface::Call, 1, 4096)
    );
    assert_eq!(
        read.layers_ns,
        [0, 20, 50, 0, 10, 10],
        "what the other one's bio took is not the read's"
    );
}

#[test]
fn what_was_under_way_when_events_were_lost_is_not_taken_for_what_came_later() {
    let mut bench = Bench::new();
    let here = span(DISK, 0, 8);
    let rw = Rw::parse(READ);
    bench.enter(PROGRAM, libc::SYS_pread64);
    bench
        .queue(PROGRAM, b"me", here, READ)
        .happens(PROGRAM, What::Issue(here, rw));
    let waiting = Unclear {
        bios: 0,
        operations: 1,
    };
    assert_eq!(bench.machine.unclear(), waiting, "its end has not been seen");
    // Its end and the next call's beginning are lost.
    bench.happens(0, What::Gap);
    bench.exit(PROGRAM, libc::SYS_pread64, 4096);
    bench.enter(PROGRAM, libc::SYS_pread64);
    bench.queue(PROGRAM, b"me", here, READ).serve(here, READ);
    bench.exit(PROGRAM, libc::SYS_pread64, 4096);
    let [read] = bench.operations()[..] else {
        panic!("{:?}", bench.found)
    };
    assert_eq!((read.bios, read.total_ns), (1, 50));
    let bios = bench.found.iter().filter_map(|finding| match finding {
        Finding::Bio(bio) => Some((bio.d2c_ns, bio.depth)),
        Finding::Operation(_) => None,
    });
    assert_eq!(bios.collect::<Vec<_>>(), [(10, 1)]);
    assert_eq!(
        bench.machine.unclear(),
        Unclear {
            bios: 1,
            operations: 1
        }
    );
}

#[test]
fn a_journals_bio_is_of_those_who_wait_for_a_sync_of_its_device() {
    for (name, rwbs) in [(&b"jbd2/sda-8"[..], WRITE), (b"kworker/0:1", JOURNAL)] {
        let mut bench = Bench::new();
        let log = span(DISK, 64, 8);
        bench.queue(KERNEL, name, log, rwbs).serve(log, rwbs);
        bench.enter(PROGRAM, libc::SYS_fsync);
        bench.happens(PROGRAM, What::SyncBegin { dev: DISK });
        bench.queue(KERNEL, name, log, rwbs).serve(log, rwbs);
        let elsewhere = span(LOOP, 64, 8);
        bench.queue(KERNEL, name, elsewhere, rwbs).serve(elsewhere, rwbs);
        let flush = span(DISK, 0, 0);
        bench.queue(PROGRAM, b"me", flush, FLUSH);
        bench.happens(0, What::Issue(flush, Rw::parse(b"FF")));
        bench.happens(0, What::Done(flush, Rw::parse(b"FF")));
        bench.exit(PROGRAM, libc::SYS_fsync, 0);
        let found = bench.operations();
        let kinds: Vec<_> = found.iter().map(|found| (found.interface, found.bios)).collect();
        let background = (Interface::Background, 1);
        assert_eq!(kinds, [background, background, (Interface::Call, 2)]);
        assert!(found[2].layers_ns[Layer::Device as usize] >= 20, "{:?}", found[2]);
    }
}

#[test]
fn workers_that_overtake_each_other_keep_their_requests_apart() {
    let mut bench = Bench::new();
    let spans = [span(DISK, 0, 8), span(DISK, 800, 16)];
    bench.punt(&[1, 2]);
    // The second request's worker comes first, and both say themselves when they are done.
    for (worker, span) in [(1, spans[1]), (0, spans[0])] {
        bench.queue(WORKERS[worker], b"iou-wrk-100", span, READ);
    }
    bench.serve(spans[0], READ).serve(spans[1], READ);
    for (worker, request, result) in [(0, 1, 4096), (1, 2, 8192)] {
        bench.complete(WORKERS[worker], request, result);
    }
    let found = bench.operations();
    let [first, second] = found[..] else {
        panic!("{found:?}")
    };
    assert!(first.punted && second.punted && first.bios == 1 && second.bios == 1);
    assert_eq!((first.bytes, second.bytes), (4096, 8192));
    assert_eq!(first.layers_ns[Layer::Completion as usize], 40, "{first:?}");
    assert_eq!(second.layers_ns[Layer::Completion as usize], 20, "{second:?}");
}

#[test]
fn a_worker_that_begins_its_direct_io_again_is_at_the_same_request() {
    let mut bench = Bench::new();
    let (first, rest) = (span(DISK, 0, 8), span(DISK, 8, 8));
    bench.punt(&[1]);
    let direct = |bytes, continues| What::DirectBegin {
        bytes,
        asynchronous: true,
        continues,
    };
    // Nothing of the memory is there, then half of it, then all.
    bench.happens(WORKERS[0], direct(8192, false));
    bench.happens(WORKERS[0], direct(8192, false));
    bench.queue(WORKERS[0], b"iou-wrk-100", first, READ);
    bench.happens(WORKERS[0], direct(4096, true));
    bench.queue(WORKERS[0], b"iou-wrk-100", rest, READ);
    bench.serve(first, READ).serve(rest, READ);
    bench.complete(PROGRAM, 1, 8192);
    let [read] = bench.operations()[..] else {
        panic!("{:?}", bench.found)
    };
    assert_eq!((read.bios, read.bytes, read.punted), (2, 8192, true));
}

#[test]
fn the_only_request_that_is_with_the_workers_has_all_that_they_do() {
    let mut bench = Bench::new();
    bench.enter(PROGRAM, libc::SYS_io_uring_enter);
    bench.happens(
        PROGRAM,
        What::Submit {
            request: 1,
            opcode: 1,
        },
    );
    // The first part was queued before it was punted; two workers do the rest, and not one after the other on the disk.
    let parts = [span(DISK, 0, 8), span(DISK, 800, 8), span(DISK, 80, 16)];
    bench.queue(PROGRAM, b"me", parts[0], READ);
    bench.happens(PROGRAM, What::Punt { request: 1 });
    bench.exit(PROGRAM, libc::SYS_io_uring_enter, 1);
    for (worker, part) in [(0, parts[1]), (1, parts[2])] {
        bench.queue(WORKERS[worker], b"iou-wrk-100", part, READ);
    }
    for part in parts {
        bench.serve(part, READ);
    }
    bench.complete(PROGRAM, 1, 16384);
    let [read] = bench.operations()[..] else {
        panic!("{:?}", bench.found)
    };
    assert_eq!((read.bios, read.bytes, read.punted), (3, 16384, true));
}

#[test]
fn one_worker_with_several_requests_on_their_way_keeps_them_apart_by_what_they_move() {
    let mut bench = Bench::new();
    let spans = [span(DISK, 0, 8), span(DISK, 800, 16)];
    bench.punt(&[1, 2]);
    for span in spans {
        let bytes = u64::from(span.sectors) * 512;
        bench.happens(
            WORKERS[0],
            What::DirectBegin {
                bytes,
                asynchronous: true,
                continues: false,
            },
        );
        bench.queue(WORKERS[0], b"iou-wrk-100", span, READ);
    }
    bench.serve(spans[1], READ);
    bench.complete(PROGRAM, 2, 8192);
    bench.serve(spans[0], READ);
    bench.complete(PROGRAM, 1, 4096);
    let found = bench.operations();
    let sizes: Vec<_> = found.iter().map(|found| (found.bytes, found.bios)).collect();
    assert_eq!(sizes, [(8192, 1), (4096, 1)]);
    for operation in found {
        assert_eq!(operation.layers_ns[Layer::Device as usize], 10, "{operation:?}");
        assert_eq!(
            operation.layers_ns[Layer::Completion as usize],
            10,
            "{operation:?}"
        );
    }
}

#[test]
fn what_a_loop_devices_worker_asks_of_its_file_is_below_it_and_write_back_is_not() {
    let mut bench = Bench::new();
    let (outer, inner) = (span(LOOP, 0, 8), span(DISK, 8000, 8));
    let back = span(DISK, 9000, 8);
    bench.enter(PROGRAM, libc::SYS_pwrite64);
    bench.queue(PROGRAM, b"me", outer, WRITE);
    bench.queue(KERNEL, b"kworker/u8:1", inner, WRITE); // Before the driver has anything.
    bench.serve(inner, WRITE);
    bench.happens(0, What::GetRequest(outer));
    bench.happens(0, What::Issue(outer, Rw::parse(WRITE)));
    bench
        .queue(KERNEL, b"kworker/u8:1", inner, WRITE)
        .serve(inner, WRITE);
    bench.queue(KERNEL, b"kworker/u8:2", back, b"W").serve(back, b"W");
    bench.happens(0, What::Done(outer, Rw::parse(WRITE)));
    bench.exit(PROGRAM, libc::SYS_pwrite64, 4096);
    let kinds: Vec<_> = bench
        .operations()
        .iter()
        .map(|found| (found.interface, found.bios))
        .collect();
    assert_eq!(
        kinds,
        [
            (Interface::Background, 1),
            (Interface::Below, 1),
            (Interface::Background, 1),
            (Interface::Call, 1)
        ]
    );
}

#[test]
fn a_read_that_waits_for_what_was_read_ahead_before_it_has_needed_the_device() {
    let mut bench = Bench::new();
    let ahead = span(DISK, 0, 256);
    bench.enter(PROGRAM, libc::SYS_read);
    bench.queue(PROGRAM, b"me", ahead, AHEAD);
    bench.exit(PROGRAM, libc::SYS_read, 4096);
    bench.enter(PROGRAM, libc::SYS_read);
    bench.serve(ahead, AHEAD);
    bench.exit(PROGRAM, libc::SYS_read, 4096);
    bench.enter(PROGRAM, libc::SYS_read);
    bench.exit(PROGRAM, libc::SYS_read, 4096);
    let found = bench.operations();
    let seen: Vec<_> = found
        .iter()
        .map(|found| (found.bios, found.reached_device))
        .collect();
    assert_eq!(seen, [(1, true), (0, true), (0, false)]);
    assert_eq!(found[1].layers_ns, [0, 0, 20, 0, 10, 10]);
}

#[test]
fn a_device_that_takes_bios_without_requests_is_the_device_and_one_on_top_of_another_is_not() {
    let mut bench = Bench::new();
    let read = Rw::parse(READ);
    bench.enter(PROGRAM, libc::SYS_read);
    bench.queue(PROGRAM, b"me", span(LOOP, 16, 8), READ);
    // The driver has counted the bio's sectors down.
    bench.happens(PROGRAM, What::BioDone(span(LOOP, 24, 0), read));
    bench.exit(PROGRAM, libc::SYS_read, 4096);
    bench.enter(PROGRAM, libc::SYS_read);
    bench.queue(PROGRAM, b"me", span(LOOP, 16, 8), READ);
    bench
        .queue(PROGRAM, b"me", span(DISK, 0, 8), READ)
        .serve(span(DISK, 0, 8), READ);
    bench.happens(0, What::BioDone(span(LOOP, 16, 8), read));
    bench.exit(PROGRAM, libc::SYS_read, 4096);
    let found = bench.operations();
    assert_eq!(found[0].layers_ns, [0, 10, 0, 0, 10, 10]);
    assert_eq!(found[1].layers_ns, [0, 10, 40, 0, 10, 10]);
    assert_eq!(bench.machine.unclear(), Unclear::default());
}

#[test]
fn a_split_bio_is_done_with_its_last_part_and_merged_ones_with_their_request() {
    let mut bench = Bench::new();
    bench.enter(PROGRAM, libc::SYS_pwrite64);
    bench.queue(PROGRAM, b"me", span(DISK, 0, 16), WRITE);
    bench.happens(
        PROGRAM,
        What::BioSplit {
            dev: DISK,
            sector: 0,
            at: 8,
        },
    );
    bench
        .serve(span(DISK, 0, 8), WRITE)
        .serve(span(DISK, 8, 8), WRITE);
    bench.exit(PROGRAM, libc::SYS_pwrite64, 8192);
    bench.enter(PROGRAM, libc::SYS_pwrite64);
    let (front, back) = (span(DISK, 32, 8), span(DISK, 40, 8));
    bench.queue(PROGRAM, b"me", front, WRITE);
    bench.happens(PROGRAM, What::GetRequest(front));
    bench.queue(PROGRAM, b"me", back, WRITE);
    bench.happens(PROGRAM, What::BioMerge(back));
    let both = span(DISK, 32, 16);
    bench.happens(0, What::Issue(both, Rw::parse(WRITE)));
    bench.happens(0, What::Done(both, Rw::parse(WRITE)));
    bench.exit(PROGRAM, libc::SYS_pwrite64, 8192);
    let found = bench.operations();
    let counts: Vec<_> = found
        .iter()
        .map(|found| (found.bios, found.splits, found.merged))
        .collect();
    assert_eq!(counts, [(2, 1, 0), (2, 0, 1)]);
    for operation in found {
        assert_eq!(operation.layers_ns.iter().sum::<u64>(), operation.total_ns);
    }
}

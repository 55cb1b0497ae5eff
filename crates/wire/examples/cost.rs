//! The cost of the NVMe/TCP session per command, without sockets and media.
//!
//! `cargo run --release -p switchyard-wire --example cost [-- BATCHES [read|write]]`: all kinds of queues, or one kind of
//! command on a queue with flow control, for counting instructions.
//!
//! A target's session is fed batches of 32 commands as a socket would give them, the requests are answered at once with
//! pages that are there already, and what is to be sent is visited as `sendmsg` would.
#![allow(
    clippy::disallowed_types,
    reason = "a tool measures its own speed; the session has no clock"
)]

#[path = "../tests/nvme_support/offer.rs"]
mod offer;

use offer::Offer;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant as Clock;

use base::{BlockOp, BlockReply, Instant, Pages, Pool, VolumeId};
use wire::nvme::host::{Data, Host, HostOptions, Sink};
use wire::nvme::proto::{Cqe, Sqe, property};
use wire::nvme::{Session, SessionLimits, Subsystem, Target, TargetOptions};
use wire::{Outgoing, Piece, Session as _};

const BATCH: u32 = 32;
/// Unless told otherwise.
const BATCHES: u32 = 100_000;

/// Takes whatever comes.
struct Nothing;

impl Sink for Nothing {
    fn data(&mut self, _cid: u16, _offset: u32, bytes: &[u8]) {
        black_box(bytes.len());
    }
    fn fill(&mut self, cid: u16, _offset: u32, target: &mut [u8]) {
        target.fill(cid as u8);
    }
    fn done(&mut self, _cid: u16, completion: &Cqe) {
        assert!(completion.status.is_success());
    }
}

struct Bench {
    batches: u32,
    target: Arc<Offer>,
    pool: Pool,
}

impl Bench {
    /// Lets a host and a session talk until they are silent; requests are answered at once. The host is not served
    /// if it is not given.
    fn settle(&self, session: &mut Session, host: &mut Host) {
        loop {
            let bytes = host.outgoing().to_vec();
            host.sent(bytes.len());
            assert_eq!(session.receive(Instant::from_nanos(1), &bytes), bytes.len());
            let moved = self.answer(session, &Pages::new()) > 0;
            let mut heard = Vec::new();
            session.transmit(&mut Outgoing::copy(&mut heard, usize::MAX));
            session.sent(heard.len());
            host.receive(&heard, &mut Nothing);
            if bytes.is_empty() && heard.is_empty() && !moved {
                return;
            }
        }
    }

    fn answer(&self, session: &mut Session, pages: &Pages) -> u32 {
        let mut count = 0;
        while let Some(request) = session.asks().requests.pop_front() {
            count += 1;
            let pages = match request.op {
                BlockOp::Read => pages.clone(),
                _ => Pages::new(),
            };
            session.complete(BlockReply {
                client: request.client,
                tag: request.tag,
                result: Ok(pages),
            });
        }
        count
    }

    /// A session with an I/O queue, and its host.
    fn connect(&self, options: &HostOptions) -> (Session, Host) {
        let open = |options: HostOptions| {
            let mut session = Session::new(
                1,
                self.pool.clone(),
                SessionLimits::default(),
                self.target.clone(),
            );
            let mut host = Host::new(options);
            self.settle(&mut session, &mut host);
            assert!(host.is_connected(), "{:?}", host.failed());
            (session, host)
        };
        let (mut admin_session, mut admin) = open(options.clone());
        let (sqe, data) = Sqe::set_property(property::CC, 6 << 16 | 4 << 20 | 1);
        admin.submit(sqe, data, &mut Nothing);
        self.settle(&mut admin_session, &mut admin);
        open(options.io(admin.cntlid(), 1, 128))
    }

    /// Nanoseconds per command of the session alone.
    fn measure(&self, options: &HostOptions, command: impl Fn(u32) -> (Sqe, Data), pages: usize) -> f64 {
        let (mut session, mut host) = self.connect(options);
        let pages: Pages = (0..pages)
            .map(|_| self.pool.alloc_zeroed().expect("enough pages"))
            .collect();
        for index in 0..BATCH {
            let (sqe, data) = command(index);
            host.submit(sqe, data, &mut Nothing);
        }
        let input = host.outgoing().to_vec();
        let start = Clock::now();
        for _ in 0..self.batches {
            let taken = session.receive(Instant::from_nanos(1), black_box(&input));
            assert_eq!(taken, input.len());
            assert_eq!(self.answer(&mut session, &pages), BATCH);
            let mut pieces = [Piece::EMPTY; 4 * BATCH as usize];
            let mut outgoing = Outgoing::pieces(black_box(&mut pieces), usize::MAX);
            session.transmit(&mut outgoing);
            session.sent(outgoing.bytes());
        }
        start.elapsed().as_nanos() as f64 / f64::from(BATCH * self.batches)
    }
}

fn main() {
    let mut target = Target::new(TargetOptions::default());
    target
        .add(Subsystem::new("disk", VolumeId(1), 1 << 30, [1; 16]))
        .expect("the first volume");
    let batches = std::env::args().nth(1).and_then(|count| count.parse().ok());
    let bench = Bench {
        batches: batches.unwrap_or(BATCHES),
        target: Offer::new(target),
        pool: Pool::new(4096, 512),
    };
    let plain = HostOptions::admin("nqn.2026-11.io.switchyard:disk", "nqn.2026-11.io.switchyard:cost");
    let read = |index: u32| Sqe::read(u64::from(index) * 4096, 4096);
    let write = |index: u32| Sqe::write(u64::from(index) * 4096, 4096, false);
    match std::env::args().nth(2).as_deref() {
        Some("read") => return println!("{:.1} ns", bench.measure(&plain, read, 1)),
        Some("write") => return println!("{:.1} ns", bench.measure(&plain, write, 0)),
        _ => {}
    }
    for (name, sq_flow, digests) in [
        ("flow control", true, false),
        ("no flow control", false, false),
        ("no flow control, digests", false, true),
    ] {
        let options = HostOptions {
            sq_flow,
            header_digest: digests,
            data_digest: digests,
            ..plain.clone()
        };
        let read = bench.measure(&options, read, 1);
        let write = bench.measure(&options, write, 0);
        println!("{name:26} read 4 KiB {read:6.1} ns, write 4 KiB {write:6.1} ns");
    }
}

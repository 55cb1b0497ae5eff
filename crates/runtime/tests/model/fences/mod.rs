//! Reservations over several cores: a host preempts another and aborts what it has under way, while that host's queue is on
//! another core, moves or closes. The command ends, and from then on nothing of the other host is at the volume.

use crate::check::{check, finds, finds_that};
use crate::sync::Fault;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use wire::nvme::host::{Data, Host, HostOptions, Sink};
use wire::nvme::proto::{Cqe, Sqe, Status, io, property};
use wire::nvme::{Access, Nvme, Parked, Session, SessionLimits, Subsystem, Target, TargetOptions};
use wire::{Outgoing, Session as _};

use base::{BlockReply, BlockRequest, Instant, Pages, Pool, VolumeId};

/// Schedules of a check: connecting takes most of one.
const SCHEDULES: usize = 150;
const BREACH: &str = "a request of a host that was preempted is at the volume";
const NQN: &str = "nqn.2026-11.io.switchyard:disk";
/// `CC` as Linux sets it: 64 and 16 byte entries, enabled.
const ENABLE: u32 = 6 << 16 | 4 << 20 | property::CC_ENABLE;
const POOL_PAGES: usize = 256;
/// Acquire: the action, and a type that lets all registrants write.
const ACQUIRE: u32 = 0;
const PREEMPT_AND_ABORT: u32 = 2;
const WRITE_EXCLUSIVE_REGISTRANTS: u32 = 3 << 8;

/// What the host that is preempted does meanwhile.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Victim {
    /// It writes.
    Writes,
    /// Its connection closes with writes under way.
    Closes,
    /// Its connection moves to another core.
    Moves,
}

/// The volume, as far as the host goes that is preempted.
#[derive(Default)]
struct Volume {
    under_way: AtomicUsize,
    /// The command of the preempting host has ended.
    is_fenced: AtomicBool,
}

/// Keys of reservation commands out, statuses in.
#[derive(Default)]
struct Mail {
    outgoing: Vec<u8>,
    ended: BTreeMap<u16, Status>,
}

impl Sink for Mail {
    fn data(&mut self, _: u16, _: u32, _: &[u8]) {}

    fn fill(&mut self, _: u16, offset: u32, target: &mut [u8]) {
        target.copy_from_slice(&self.outgoing[offset as usize..][..target.len()]);
    }

    fn done(&mut self, cid: u16, completion: &Cqe) {
        self.ended.insert(cid, completion.status);
    }
}

/// A host and its session on a core.
struct Wire {
    host: Host,
    session: Session,
    mail: Mail,
    to_session: Vec<u8>,
}

/// A connection between two cores.
struct Traveller {
    host: Host,
    session: Parked,
    mail: Mail,
    to_session: Vec<u8>,
}

fn limits() -> SessionLimits {
    SessionLimits {
        in_flight_max: 16,
        in_flight_bytes_max: 320 << 10,
        asked_bytes_max: 64 << 10,
        pages_reserve: 2,
        ..SessionLimits::default()
    }
}

fn pool() -> Pool {
    Pool::new(POOL_PAGES, 512)
}

fn target() -> Target {
    let mut target = Target::new(TargetOptions::default());
    let disk = Subsystem {
        reservable: true,
        ..Subsystem::new("disk", VolumeId(7), 1 << 20, [7; 16])
    };
    target.add(disk).expect("the first volume");
    target
}

/// A host of this number.
fn options(number: u8) -> HostOptions {
    HostOptions {
        host_id: [number; 16],
        entries: 16,
        ..HostOptions::admin(NQN, &format!("nqn.2014-08.org.nvmexpress:uuid:{number}"))
    }
}

fn key(number: u8) -> u64 {
    0x1000 + u64::from(number)
}

impl Wire {
    fn new(options: HostOptions, pool: &Pool, target: &Arc<dyn Access>) -> Self {
        Self {
            host: Host::new(options),
            session: Session::new(3, pool.clone(), limits(), Arc::clone(target)),
            mail: Mail::default(),
            to_session: Vec::new(),
        }
    }

    /// A connected I/O queue of an enabled controller, and its admin queue.
    fn connect(now: Instant, number: u8, pool: &Pool, target: &Arc<dyn Access>) -> (Self, Self) {
        let mut admin = Self::new(options(number), pool, target);
        admin.pump(now, &mut |_| unreachable!("an admin queue asks no volume"));
        let enable = admin.submit(Sqe::set_property(property::CC, ENABLE), &[]);
        admin.pump(now, &mut |_| unreachable!("an admin queue asks no volume"));
        assert_eq!(admin.mail.ended.remove(&enable), Some(Status::SUCCESS));
        let mut queue = Self::new(options(number).io(admin.host.cntlid(), 1, 16), pool, target);
        queue.pump(now, &mut |_| unreachable!("nothing was asked"));
        assert!(queue.host.is_connected(), "{:?}", queue.host.failed());
        let register = queue.reserve(io::RESERVATION_REGISTER, 0, [0, key(number)]);
        queue.pump(now, &mut |_| unreachable!("no volume is asked"));
        assert_eq!(queue.mail.ended.remove(&register), Some(Status::SUCCESS));
        (admin, queue)
    }

    fn submit(&mut self, (sqe, data): (Sqe, Data), bytes: &[u8]) -> u16 {
        self.mail.outgoing = bytes.to_vec();
        let cid = self.host.submit(sqe, data, &mut self.mail);
        cid.expect("there is room for the command")
    }

    fn reserve(&mut self, opcode: u8, fields: u32, keys: [u64; 2]) -> u16 {
        self.submit(
            Sqe::reservation(opcode, fields),
            &keys.map(u64::to_le_bytes).concat(),
        )
    }

    /// Moves bytes both ways until nothing moves; requests go to `volume`.
    fn pump(&mut self, now: Instant, volume: &mut dyn FnMut(BlockRequest)) {
        loop {
            let count = self.host.outgoing().len();
            self.to_session.extend_from_slice(self.host.outgoing());
            self.host.sent(count);
            let taken = self.session.receive(now, &self.to_session);
            self.to_session.drain(..taken);
            let mut has_moved = count > 0 || taken > 0;
            while let Some(request) = self.session.asks().requests.pop_front() {
                has_moved = true;
                volume(request);
            }
            let mut bytes = Vec::new();
            self.session.transmit(&mut Outgoing::copy(&mut bytes, usize::MAX));
            self.session.sent(bytes.len());
            self.host.receive(&bytes, &mut self.mail);
            if !has_moved && bytes.is_empty() {
                return;
            }
        }
    }

    fn park(self) -> Traveller {
        Traveller {
            host: self.host,
            session: self.session.park(),
            mail: self.mail,
            to_session: self.to_session,
        }
    }

    fn unpark(traveller: Traveller, pool: &Pool) -> Self {
        Self {
            host: traveller.host,
            session: Session::unpark(traveller.session, 4, pool.clone()),
            mail: traveller.mail,
            to_session: traveller.to_session,
        }
    }
}

macro_rules! scenario {
    () => {
        use super::*;
        use crate::sync::{self, Wake, mpsc};
        use nvme::{NvmeTarget, Offers};
        use shuttle::rand::{Rng, thread_rng};
        use shuttle::thread;
        use std::sync::Arc;
        use std::sync::atomic::Ordering::SeqCst;

        /// What a core has of the target.
        struct Core {
            target: Arc<NvmeTarget>,
            offers: Offers,
            wake: Arc<Wake>,
            pool: Pool,
        }

        impl Core {
            fn new(target: &Arc<NvmeTarget>, wake: &Arc<Wake>) -> Self {
                let mut offers = Offers::default();
                offers.add(Nvme::new(target.clone()), Arc::clone(wake));
                Self {
                    target: Arc::clone(target),
                    offers,
                    wake: Arc::clone(wake),
                    pool: pool(),
                }
            }

            fn access(&self) -> Arc<dyn Access> {
                self.target.clone()
            }

            /// What a turn of the loop does for its sessions.
            fn look(&mut self, wires: &mut [&mut Wire]) {
                if self.offers.have_changed() {
                    for wire in wires {
                        wire.session.tick(sync::now());
                    }
                }
            }

            /// Sleeps if there is nothing to do.
            fn wait(&self) {
                self.wake.wait();
                self.wake.clear();
            }
        }

        /// The host that preempts the other, and its core.
        fn preempts(core: &mut Core, volume: &Volume, others: &[Arc<Wake>], go: mpsc::Receiver<()>) {
            let (mut admin, mut queue) = Wire::connect(sync::now(), 1, &core.pool, &core.access());
            let none = &mut |_| unreachable!("it asks the volume for nothing");
            let acquire = ACQUIRE | WRITE_EXCLUSIVE_REGISTRANTS;
            let acquire = queue.reserve(io::RESERVATION_ACQUIRE, acquire, [key(1), 0]);
            queue.pump(sync::now(), none);
            assert_eq!(queue.mail.ended.remove(&acquire), Some(Status::SUCCESS));
            go.recv().expect("the other host comes");
            let preempt = PREEMPT_AND_ABORT | WRITE_EXCLUSIVE_REGISTRANTS;
            let preempt = queue.reserve(io::RESERVATION_ACQUIRE, preempt, [key(1), key(2)]);
            queue.pump(sync::now(), none);
            let status = loop {
                if let Some(status) = queue.mail.ended.remove(&preempt) {
                    break status;
                }
                core.wait();
                core.look(&mut [&mut admin, &mut queue]);
                queue.pump(sync::now(), none);
            };
            assert_eq!(status, Status::SUCCESS);
            volume.is_fenced.store(true, SeqCst);
            assert_eq!(volume.under_way.load(SeqCst), 0, "{BREACH}");
            others.iter().for_each(|wake| wake.wake());
        }

        /// A request reaches the volume.
        fn admit(volume: &Volume, held: &mut Vec<BlockRequest>, request: BlockRequest) {
            assert!(!volume.is_fenced.load(SeqCst), "{BREACH}");
            volume.under_way.fetch_add(1, SeqCst);
            held.push(request);
        }

        /// The host that is preempted, and its core; gives its connection away if it moves.
        fn writes(
            core: &mut Core,
            volume: &Volume,
            (admin, queue): (&mut Wire, Wire),
            writes: usize,
            victim: Victim,
        ) -> Option<Traveller> {
            let (mut queue, mut held, mut left) = (queue, Vec::new(), writes);
            loop {
                core.look(&mut [&mut *admin, &mut queue]);
                if left > 0 {
                    left -= 1;
                    queue.submit(Sqe::write(0, 512, false), &[7; 512]);
                }
                queue.pump(sync::now(), &mut |request| {
                    admit(volume, &mut held, request)
                });
                thread::yield_now();
                if victim == Victim::Closes && left == 0 {
                    close(queue, volume, held);
                    return None;
                }
                if !held.is_empty() && thread_rng().gen_range(0..2) == 0 {
                    let request = held.remove(0);
                    volume.under_way.fetch_sub(1, SeqCst);
                    answer(&mut queue.session, request);
                    queue.pump(sync::now(), &mut |request| {
                        admit(volume, &mut held, request)
                    });
                }
                if victim == Victim::Moves && left == 0 {
                    queue.session.pause();
                    if queue.session.is_at_rest() {
                        return Some(queue.park());
                    }
                }
                if volume.is_fenced.load(SeqCst) && left == 0 {
                    assert!(held.is_empty(), "{BREACH}");
                    return None;
                }
                if held.is_empty() && left == 0 {
                    core.wait();
                }
            }
        }

        fn answer(session: &mut Session, request: BlockRequest) {
            let (client, tag) = (request.client, request.tag);
            drop(request);
            let result = Ok(Pages::new());
            session.complete(BlockReply {
                client,
                tag,
                result,
            });
        }

        /// The connection closes; the volume answers what it has later.
        fn close(mut queue: Wire, volume: &Volume, held: Vec<BlockRequest>) {
            let late = queue.session.detach();
            drop(queue);
            assert_eq!(
                late.is_some(),
                !held.is_empty(),
                "what is under way is waited for"
            );
            if let Some(mut late) = late {
                for request in held {
                    thread::yield_now();
                    drop(request);
                    volume.under_way.fetch_sub(1, SeqCst);
                    late.settle(1);
                }
            }
        }

        pub(super) fn preempted(victim: Victim) {
            let target = NvmeTarget::new(target());
            let volume = Arc::new(Volume::default());
            let wakes: Vec<_> = (0..3)
                .map(|_| Arc::new(Wake::new().expect("the model has wakes")))
                .collect();
            let (ready, go) = mpsc::sync_channel(1);
            let (send, come) = mpsc::sync_channel::<Option<Traveller>>(1);
            let holder = thread::spawn({
                let (target, volume) = (Arc::clone(&target), Arc::clone(&volume));
                let (own, others) = (Arc::clone(&wakes[0]), wakes[1..].to_vec());
                move || preempts(&mut Core::new(&target, &own), &volume, &others, go)
            });
            let loser = thread::spawn({
                let (target, volume, wake) = (
                    Arc::clone(&target),
                    Arc::clone(&volume),
                    Arc::clone(&wakes[1]),
                );
                let next = Arc::clone(&wakes[2]);
                move || {
                    let mut core = Core::new(&target, &wake);
                    let (mut admin, queue) = Wire::connect(sync::now(), 2, &core.pool, &core.access());
                    ready.send(()).expect("the holder waits");
                    let traveller = writes(&mut core, &volume, (&mut admin, queue), 2, victim);
                    send.send(traveller).expect("the other core waits");
                    next.wake();
                    // The admin queue stays: with it the controller would go, and with that all its queues.
                    while !volume.is_fenced.load(SeqCst) {
                        core.wait();
                        core.look(&mut [&mut admin]);
                    }
                }
            });
            let adopter = thread::spawn({
                let (target, volume, wake) = (
                    Arc::clone(&target),
                    Arc::clone(&volume),
                    Arc::clone(&wakes[2]),
                );
                move || {
                    let mut core = Core::new(&target, &wake);
                    let Some(traveller) = come.recv().expect("the other core tells") else {
                        return;
                    };
                    let mut queue = Wire::unpark(traveller, &core.pool);
                    // As the frontend does: the target may have changed on the way.
                    queue.session.tick(sync::now());
                    let mut admin = Wire::new(options(3), &core.pool, &core.access());
                    writes(&mut core, &volume, (&mut admin, queue), 2, Victim::Writes);
                }
            });
            for core in [holder, loser, adopter] {
                core.join().expect("no panic");
            }
        }
    };
}

mod shipped;
mod stores_late;
mod wakes_first;

#[test]
fn a_fence_ends_and_nothing_of_the_preempted_host_is_left() {
    check(None, SCHEDULES, || shipped::preempted(Victim::Writes));
}

#[test]
fn a_fence_ends_with_the_connections_it_waits_for() {
    check(None, SCHEDULES, || shipped::preempted(Victim::Closes));
}

#[test]
fn a_fence_ends_though_a_connection_moves() {
    check(None, SCHEDULES, || shipped::preempted(Victim::Moves));
}

#[test]
fn a_core_that_is_not_woken_for_a_fence_is_found() {
    finds(Some(Fault::WakesNoCore), || shipped::preempted(Victim::Writes));
}

#[test]
fn a_core_that_is_woken_before_the_change_is_stored_is_found() {
    finds(None, || wakes_first::preempted(Victim::Writes));
}

#[test]
fn a_change_that_is_stored_after_the_lock_is_found() {
    // A request gets through, or an older generation is stored over a newer one and a fence stays.
    finds_that(None, "", || stores_late::preempted(Victim::Writes));
}

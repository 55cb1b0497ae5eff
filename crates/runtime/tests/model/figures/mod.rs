//! Figures that cores share: the load of each, the latch of a medium, events on their way.

use crate::check::{SCHEDULES, check, finds_that};
use crate::sync::{self, Arc, AtomicBool, Fault, Ordering};
use base::event::{Kind, Source};
use base::{Instant, MediaDone, MediaError, MediaOp, NodeId, Queue};
use blockswitch::policy::Policy;
use shuttle::thread;

mod class {
    pub(crate) use blockswitch::Class;
}
mod policy {
    pub(crate) use blockswitch::policy::{Balancing, Config};
}
#[path = "../../../src/events.rs"]
#[allow(dead_code, reason = "nothing ends here")]
mod events;
#[path = "../../../../blockswitch/src/load.rs"]
#[allow(dead_code, reason = "no check asks for all figures")]
mod load;

mod device;

/// Cores that do each other's work: what is charged is released, whoever does it.
fn loads() {
    use class::Class;
    let config = policy::Config::of(Policy::Switchyard);
    let loads = Arc::new(load::Loads::new(2, &config));
    let cores: Vec<_> = (0..3)
        .map(|home| {
            let loads = Arc::clone(&loads);
            thread::spawn(move || {
                for (at, class) in [Class::Latency, Class::Throughput].into_iter().enumerate() {
                    let charge = loads.charge(home % 2, (home + at) % 2, class, 4096);
                    assert!(
                        loads.requests(charge.core(), class) > 0,
                        "it counts while it is under way"
                    );
                    loads.release(charge);
                }
            })
        })
        .collect();
    cores.into_iter().for_each(|core| core.join().expect("no panic"));
    for core in 0..2 {
        for class in [Class::Latency, Class::Throughput] {
            let left = loads.requests(core, class);
            assert_eq!(left, 0, "what is charged is released once");
        }
    }
}

/// A medium that fails everything.
#[derive(Default)]
struct Failing(Option<MediaDone>);

impl Queue for Failing {
    fn submit(&mut self, _: Instant, op: MediaOp) {
        self.0 = Some(op.done(Err(MediaError::Io)));
    }

    fn poll(&mut self, _: Instant) -> Option<MediaDone> {
        self.0.take()
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }
}

/// Two cores with a queue each of one medium. Once a client of one of them knows of a failure, the other refuses, too.
fn latch(is_shared: bool) {
    let is_told = Arc::new(AtomicBool::new(false));
    let failed = Arc::new(AtomicBool::new(false));
    let cores: Vec<_> = (0..2)
        .map(|_| {
            let is_told = Arc::clone(&is_told);
            let failed = match is_shared {
                true => Arc::clone(&failed),
                false => Arc::new(AtomicBool::new(false)),
            };
            thread::spawn(move || {
                let mut queue = device::latch::Latch::new(Failing::default(), failed);
                for _ in 0..2 {
                    let comes_after = is_told.load(Ordering::SeqCst);
                    queue.submit(Instant::ZERO, MediaOp::flush(1));
                    let done = queue.poll(Instant::ZERO).expect("it is done at once");
                    let is_refused = done.result == Err(MediaError::Latched);
                    assert!(
                        is_refused || !comes_after,
                        "nothing is written after a failure was told"
                    );
                    is_told.store(true, Ordering::SeqCst);
                }
            })
        })
        .collect();
    cores.into_iter().for_each(|core| core.join().expect("no panic"));
}

/// Threads that tell of events on a narrow way: each event is kept or counted as lost, and the end comes last.
fn events() {
    let (teller, end) = events::Teller::new(1);
    let tellers: Vec<_> = (0..3)
        .map(|number| {
            let teller = teller.clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    let node = NodeId(number);
                    teller.tell(Source::Core(number.into()), Kind::NodeStopping { node });
                }
            })
        })
        .collect();
    let keeper = thread::spawn(move || {
        let mut kept = 0;
        while let Ok(Some(_)) = end.recv() {
            kept += 1;
        }
        kept
    });
    tellers.into_iter().for_each(|it| it.join().expect("no panic"));
    teller.end();
    let kept = keeper.join().expect("no panic");
    assert_eq!(kept + teller.lost(), 6, "an event is kept or counted");
}

#[test]
fn what_is_charged_to_a_core_is_released_once() {
    check(None, SCHEDULES, loads);
}

#[test]
fn a_charge_that_overwrites_another_is_found() {
    finds_that(Some(Fault::AddsInTwoSteps), "", loads);
}

#[test]
fn nothing_reaches_a_medium_after_its_failure_was_told() {
    check(None, SCHEDULES, || latch(true));
}

#[test]
fn a_latch_of_one_core_is_found() {
    finds_that(None, "nothing is written after a failure was told", || {
        latch(false)
    });
}

#[test]
fn each_event_is_kept_or_counted_as_lost() {
    check(None, SCHEDULES, events);
}

#[test]
fn a_loss_that_overwrites_another_is_found() {
    finds_that(Some(Fault::AddsInTwoSteps), "an event is kept or counted", events);
}

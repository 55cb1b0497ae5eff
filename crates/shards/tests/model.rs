//! Model check of lanes and bells: `shuttle` runs the shipped source under many schedules (docs/concurrency.md).

#[path = "../../os/tests/model/check.rs"]
mod check;
#[path = "../src/lane.rs"]
mod lane;
#[path = "../../os/tests/model/sync.rs"]
mod sync;

use check::{SCHEDULES, check, finds};
use lane::{Bell, Lane};
use shuttle::thread;
use sync::{Arc, Fault};

/// A step that a scenario leaves out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mistake {
    None,
    /// A thread sleeps without a look at its lanes after it has said that it sleeps.
    SleepsUnseen,
    /// A thread looks at its lanes, and says that it sleeps then.
    DozesLate,
}

/// Two threads write to a third, each its own lane. The third takes all, and sleeps where there is nothing.
fn lanes(mistake: Mistake) {
    const EACH: u8 = 3;
    let lanes = Arc::new([Lane::new(), Lane::new()]);
    let bell = Arc::new(Bell::new().expect("the model has wakes"));
    let writers = [0, 1].map(|index| {
        let (lanes, bell) = (Arc::clone(&lanes), Arc::clone(&bell));
        thread::spawn(move || {
            let mut own = Vec::new();
            for number in 0..EACH {
                own.push(number);
                lanes[index].put(&mut own);
                assert!(own.is_empty());
                bell.ring();
            }
        })
    });
    let mut next = [0; 2];
    let mut own = Vec::new();
    let has_some = || lanes.iter().any(Lane::has_some);
    while next != [EACH; 2] {
        for (lane, next) in lanes.iter().zip(&mut next) {
            if lane.has_some() {
                lane.take(&mut own);
                for number in own.drain(..) {
                    assert_eq!(number, *next, "each byte once, and in order");
                    *next += 1;
                }
            }
        }
        if next == [EACH; 2] {
            break;
        }
        let is_quiet = match mistake {
            Mistake::DozesLate => {
                let is_quiet = !has_some();
                bell.doze();
                is_quiet
            }
            Mistake::SleepsUnseen => {
                bell.doze();
                true
            }
            Mistake::None => {
                bell.doze();
                !has_some()
            }
        };
        if is_quiet {
            bell.wake().wait();
            bell.wake().clear();
        }
        bell.rise();
    }
    writers
        .into_iter()
        .for_each(|writer| writer.join().expect("no panic"));
}

#[test]
fn a_sleeper_is_woken_for_what_is_left_in_its_lanes() {
    check(None, SCHEDULES, || lanes(Mistake::None));
}

#[test]
fn a_bell_that_does_not_ring_is_found() {
    finds(Some(Fault::WakesNoCore), || lanes(Mistake::None));
}

#[test]
fn a_sleeper_that_does_not_look_again_is_found() {
    finds(None, || lanes(Mistake::SleepsUnseen));
}

#[test]
fn a_sleeper_that_looks_too_early_is_found() {
    finds(None, || lanes(Mistake::DozesLate));
}

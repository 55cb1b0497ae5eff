//! Model check of the answers that other threads leave for a ring's thread: `shuttle` runs the shipped source under many
//! schedules (docs/concurrency.md).

#[path = "../../../os/tests/model/check.rs"]
mod check;
#[allow(dead_code, reason = "one promise breaks")]
mod looks_early;
mod shipped;
#[path = "../../../os/tests/model/sync.rs"]
mod sync;

use check::{SCHEDULES, check, finds};
use sync::Fault;

/// Threads answer entries, and the ring's thread collects all of them; then it is stopped.
macro_rules! scenario {
    () => {
        use crate::sync::Wake;
        use answered::{Answered, Next};
        use shuttle::thread;
        use std::sync::Arc;

        const THREADS: u16 = 2;
        const ANSWERS: u16 = 3;

        /// The ring's thread, woken by answers only: no request comes.
        fn collect(answered: &Answered, clears_late: bool) -> Vec<u16> {
            let (mut slots, mut all) = (Vec::new(), Vec::new());
            loop {
                match answered.take(&mut slots) {
                    Next::Stop => return all,
                    Next::Submit => all.append(&mut slots),
                    Next::Sleep => {
                        // Mistaken: the wake of an answer that has come since the look is gone.
                        if clears_late {
                            answered.wake().clear();
                        }
                        answered.wake().wait();
                        answered.awake();
                        answered.wake().clear();
                    }
                }
                if all.len() == usize::from(THREADS * ANSWERS) {
                    return all;
                }
            }
        }

        fn answers(clears_late: bool) {
            let wake = Wake::new().expect("the model has wakes");
            let answered = Arc::new(Answered::new(8, wake));
            let ring = {
                let answered = Arc::clone(&answered);
                thread::spawn(move || collect(&answered, clears_late))
            };
            for thread in 0..THREADS {
                let answered = Arc::clone(&answered);
                thread::spawn(move || {
                    (0..ANSWERS).for_each(|number| answered.add(thread * ANSWERS + number))
                });
            }
            let mut all = ring.join().expect("no panic");
            for thread in 0..THREADS {
                let own = all.iter().filter(|slot| **slot / ANSWERS == thread);
                assert!(own.is_sorted(), "in the order of their thread");
            }
            all.sort_unstable();
            assert!(all.into_iter().eq(0..THREADS * ANSWERS), "each once");
        }

        pub(crate) fn all_are_collected() {
            answers(false);
        }

        pub(crate) fn the_wake_is_cleared_late() {
            answers(true);
        }

        pub(crate) fn a_stop_ends_it() {
            let wake = Wake::new().expect("the model has wakes");
            let answered = Arc::new(Answered::new(8, wake));
            let adding = Arc::clone(&answered);
            thread::spawn(move || adding.add(1));
            let stopping = Arc::clone(&answered);
            thread::spawn(move || stopping.stop());
            assert!(collect(&answered, false).len() <= 1);
        }
    };
}
pub(crate) use scenario;

#[test]
fn every_answer_is_collected_once() {
    check(None, SCHEDULES, shipped::all_are_collected);
}

#[test]
fn a_stopped_thread_ends_also_asleep() {
    check(None, SCHEDULES, shipped::a_stop_ends_it);
}

#[test]
fn a_thread_that_is_not_woken_is_found() {
    finds(Some(Fault::WakesNoCore), shipped::all_are_collected);
    finds(Some(Fault::WakesNoCore), shipped::a_stop_ends_it);
}

#[test]
fn a_wake_that_is_cleared_after_the_look_is_found() {
    finds(None, shipped::the_wake_is_cleared_late);
}

#[test]
fn an_answer_that_looks_for_sleep_before_it_is_there_is_found() {
    finds(None, looks_early::all_are_collected);
}

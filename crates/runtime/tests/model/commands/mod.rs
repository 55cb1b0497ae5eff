//! Commands of other threads to a core: each is run once, in the order of its sender, or comes back; the core wakes for it, and
//! a caller gets its answer or learns that the core has ended.

macro_rules! scenario {
    () => {
        use crate::sync::mpsc::{SyncSender, TryRecvError, sync_channel};
        use shuttle::thread;

        enum Asked {
            /// Of a caller, with its number, and where the answer goes.
            Call(usize, usize, SyncSender<()>),
            Stop,
        }

        /// The core: sleeps, opens its mailbox, empties it.
        fn core(mailbox: &mailbox::Mailbox<Asked>) -> Vec<(usize, usize)> {
            let (mut done, mut stops) = (Vec::new(), false);
            while !stops {
                mailbox.wake().wait();
                mailbox.open();
                loop {
                    match mailbox.next() {
                        Ok(Asked::Call(caller, number, answer)) => {
                            done.push((caller, number));
                            let _ = answer.send(());
                        }
                        Ok(Asked::Stop) => stops = true,
                        Err(TryRecvError::Empty) => break,
                        Err(TryRecvError::Disconnected) => return done,
                    }
                }
            }
            done
        }

        pub(crate) fn callers_and_a_stop() {
            let (mailbox, address) = mailbox::Mailbox::new().expect("the model has wakes");
            let core = thread::spawn(move || core(&mailbox));
            let callers: Vec<_> = (0..2)
                .map(|caller| {
                    let address = address.clone();
                    thread::spawn(move || {
                        let call = |number| {
                            let (answer, result) = sync_channel(1);
                            let told = address.tell(Asked::Call(caller, number, answer));
                            told.is_ok() && result.recv().is_ok()
                        };
                        (0..3).map(call).collect::<Vec<bool>>()
                    })
                })
                .collect();
            let stopper = thread::spawn(move || address.tell(Asked::Stop).is_ok());
            let answers: Vec<_> = callers
                .into_iter()
                .map(|caller| caller.join().expect("no panic"))
                .collect();
            assert!(
                stopper.join().expect("no panic"),
                "the core lives until it is stopped"
            );
            let done = core.join().expect("no panic");
            for (caller, answers) in answers.iter().enumerate() {
                let run = done.iter().filter(|(of, _)| *of == caller);
                let run: Vec<usize> = run.map(|(_, number)| *number).collect();
                let answered: Vec<usize> = (0..3).filter(|&number| answers[number]).collect();
                assert_eq!(
                    run, answered,
                    "what was answered was run, once and in order"
                );
            }
        }
    };
}

mod clears_late;
mod shipped;
mod wakes_early;

use crate::check::{SCHEDULES, check, finds};
use crate::sync::Fault;

#[test]
fn each_command_is_run_once_and_each_caller_hears_of_it() {
    check(None, SCHEDULES, shipped::callers_and_a_stop);
}

#[test]
fn a_core_that_is_not_woken_is_found() {
    finds(Some(Fault::WakesNoCore), shipped::callers_and_a_stop);
}

#[test]
fn a_mailbox_that_forgets_wakes_after_it_was_emptied_is_found() {
    finds(None, clears_late::callers_and_a_stop);
}

#[test]
fn a_wake_before_its_command_is_found() {
    finds(None, wakes_early::callers_and_a_stop);
}

//! Model check of how threads of a program sleep at one link and wake each other: `shuttle` runs the shipped source under many schedules
//! (docs/concurrency.md). The stack's lock, the link and its doorbell are played: the doorbell wakes the watch.

#[path = "../src/net/beds.rs"]
#[allow(dead_code, reason = "a program has a keeper, too")]
mod beds;
#[path = "../../os/tests/model/check.rs"]
mod check;
#[path = "../../os/tests/model/sync.rs"]
mod sync;

use beds::{Beds, On};
use check::{SCHEDULES, check, finds};
use shuttle::thread;
use sync::{Arc, Fault, Mutex, Wake};

/// Frames that each thread waits for, one after the other.
const FRAMES: u32 = 2;

/// A step that a scenario leaves out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mistake {
    None,
    /// A thread that has what it wants goes without a word to the others.
    GoesSilently,
    /// A thread lies down without a look at the link.
    ParksUnseen,
}

/// The link: frames by the file that they are for, and whom its doorbell wakes.
#[derive(Default)]
struct Link {
    frames: Vec<usize>,
    sleeper: Option<Arc<Wake>>,
}

/// What is under the stack's lock.
struct Net {
    beds: Beds,
    /// Frames of each file that nobody has read.
    news: Vec<u32>,
}

impl Net {
    fn carry(&mut self, link: &Mutex<Link>) {
        let frames = std::mem::take(&mut link.lock().expect("no panic").frames);
        for file in frames {
            self.news[file] += 1;
            self.beds.wake(|on| on == On::File(file as u32));
        }
    }
}

/// A thread that waits for frames of its file.
fn wait(net: &Mutex<Net>, link: &Mutex<Link>, me: usize, mistake: Mistake) {
    let wake = Arc::new(Wake::new().expect("the model has wakes"));
    let mut read = 0;
    while read < FRAMES {
        let place = {
            let mut net = net.lock().expect("no panic");
            net.carry(link);
            if net.news[me] > 0 {
                net.news[me] -= 1;
                read += 1;
                continue;
            }
            let own = Arc::clone(&wake);
            let park = || {
                let mut link = link.lock().expect("no panic");
                if !link.frames.is_empty() && mistake != Mistake::ParksUnseen {
                    return None;
                }
                link.sleeper = Some(own);
                Some(None)
            };
            net.beds
                .lie_down(On::File(me as u32), Arc::clone(&wake), Some(park))
        };
        let Some(place) = place else {
            continue;
        };
        wake.wait();
        if mistake == Mistake::GoesSilently && read + 1 == FRAMES {
            return;
        }
        let mut net = net.lock().expect("no panic");
        let (_, was_watch) = net.beds.get_up(place.number).expect("it sleeps");
        assert_eq!(was_watch, place.is_watch);
        if was_watch {
            link.lock().expect("no panic").sleeper = None;
        }
    }
}

fn threads(count: usize, mistake: Mistake) {
    let net = Arc::new(Mutex::new(Net {
        beds: Beds::new(),
        news: vec![0; count],
    }));
    let link = Arc::new(Mutex::new(Link::default()));
    let waiting: Vec<_> = (0..count)
        .map(|me| {
            let (net, link) = (Arc::clone(&net), Arc::clone(&link));
            thread::spawn(move || wait(&net, &link, me, mistake))
        })
        .collect();
    for number in 0..FRAMES as usize * count {
        let mut link = link.lock().expect("no panic");
        link.frames.push(number % count);
        // As a peer does: a sleeper is rung for once.
        if let Some(sleeper) = link.sleeper.take() {
            sleeper.wake();
        }
    }
    waiting
        .into_iter()
        .for_each(|waiting| waiting.join().expect("no panic"));
}

fn right() {
    threads(3, Mistake::None);
}

#[test]
fn each_thread_is_woken_for_its_frames_whoever_is_at_the_doorbell() {
    check(None, SCHEDULES, right);
}

#[test]
fn a_wake_that_does_not_come_is_found() {
    finds(Some(Fault::WakesNoCore), right);
}

#[test]
fn a_thread_that_leaves_others_in_their_beds_is_found() {
    finds(None, || threads(2, Mistake::GoesSilently));
}

#[test]
fn a_thread_that_does_not_look_before_it_sleeps_is_found() {
    finds(None, || threads(1, Mistake::ParksUnseen));
}

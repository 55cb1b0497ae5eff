//! Model check of the two ends of a lane that sleep and wake each other: `shuttle` runs the shipped source under many schedules
//! (docs/concurrency.md). Its memory is played by the checker; a doorbell is a wake.

#[path = "../../../os/tests/model/check.rs"]
mod check;
#[allow(dead_code, reason = "the checks need no room of the other kind")]
#[path = "../../src/shared/lane.rs"]
mod lane;
mod memory;
#[path = "../../src/shared/sleep.rs"]
mod sleep;
#[path = "../../../os/tests/model/sync.rs"]
mod sync;

use check::{SCHEDULES, check, finds};
use lane::{Consumer, Geometry, Producer};
use memory::Memory;
use shuttle::thread;
use sleep::{Step, rise_from_all, sleep_at_all};
use sync::{Arc, Fault, Wake};

const SMALL: Geometry = Geometry {
    descriptors: 16,
    data_bytes: 1024,
    frame_bytes_max: 64,
    frame_bytes_min: 1,
};

/// A step that a scenario leaves out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mistake {
    None,
    /// A sleeper does not heed what it has found after it has said that it sleeps.
    SleepsUnseen,
    /// The same, of an end that waits for room.
    StarvesUnseen,
    /// A sleeper at several lanes does not say so at the last one.
    SleepsAtSome,
}

/// One end sends frames, and waits for room; the other reads them, and waits for frames.
fn frames(count: u8, mistake: Mistake) {
    let memory = Arc::new(Memory::new(SMALL.bytes()));
    let mut producer = Producer::new(Arc::clone(&memory), 0, SMALL);
    let mut consumer = Consumer::new(memory, 0, SMALL);
    let wake = || Arc::new(Wake::new().expect("the model has wakes"));
    let (to_consumer, to_producer) = (wake(), wake());
    let (ring_consumer, ring_producer) = (Arc::clone(&to_consumer), Arc::clone(&to_producer));
    let sends = thread::spawn(move || {
        for number in 0..count {
            while !producer.has_room().expect("the consumer keeps the rules") {
                let starves = producer.starve().expect("the consumer keeps the rules");
                if starves || mistake == Mistake::StarvesUnseen {
                    to_producer.wait();
                    to_producer.clear();
                }
                producer.feed();
            }
            producer.put(&[number; 9], 0);
            if producer.rings() {
                ring_consumer.wake();
            }
        }
    });
    let mut frame = [0; 64];
    let mut next = 0;
    while next < count {
        let taken = consumer.take(&mut frame).expect("the producer keeps the rules");
        let Some((length, _)) = taken else {
            if consumer.sleep() || mistake == Mistake::SleepsUnseen {
                to_consumer.wait();
                to_consumer.clear();
            }
            consumer.wake();
            continue;
        };
        assert_eq!(frame[..length], [next; 9], "whole, and in order");
        next += 1;
        if consumer.release() {
            ring_producer.wake();
        }
    }
    sends.join().expect("no panic");
}

/// A port: two ends send frames, each by a lane of its own, to one that sleeps at both.
fn port(count: u8, mistake: Mistake) {
    let woken = Arc::new(Wake::new().expect("the model has wakes"));
    let mut consumers = Vec::new();
    let mut sends = Vec::new();
    for _ in 0..2 {
        let memory = Arc::new(Memory::new(SMALL.bytes()));
        let mut producer = Producer::new(Arc::clone(&memory), 0, SMALL);
        consumers.push(Consumer::new(memory, 0, SMALL));
        let bell = Arc::clone(&woken);
        sends.push(thread::spawn(move || {
            for number in 0..count {
                assert_eq!(producer.has_room(), Ok(true), "there are few");
                producer.put(&[number; 9], 0);
                if producer.rings() {
                    bell.wake();
                }
            }
        }));
    }
    let mut frame = [0; 64];
    let mut next = [0; 2];
    while next != [count; 2] {
        let mut is_idle = true;
        for (consumer, next) in consumers.iter_mut().zip(&mut next) {
            if let Some((length, _)) = consumer.take(&mut frame).expect("the producer keeps the rules") {
                assert_eq!(frame[..length], [*next; 9], "whole, and in order");
                *next += 1;
                is_idle = false;
                consumer.release();
            }
        }
        if !is_idle {
            continue;
        }
        let lanes = if mistake == Mistake::SleepsAtSome { 1 } else { 2 };
        let mut step = |lane: usize, step: Step| match step {
            Step::Sleep => consumers[lane].sleep() || mistake == Mistake::SleepsUnseen,
            Step::Rise => {
                consumers[lane].wake();
                true
            }
        };
        if sleep_at_all(lanes, &mut step) {
            woken.wait();
            woken.clear();
            rise_from_all(lanes, &mut step);
        }
    }
    sends
        .into_iter()
        .for_each(|sends| sends.join().expect("no panic"));
}

fn two() {
    port(3, Mistake::None);
}

#[test]
fn a_port_is_woken_by_each_of_its_links() {
    check(None, SCHEDULES, two);
}

#[test]
fn a_port_with_a_mistake_in_its_sleep_is_found() {
    finds(Some(Fault::WakesNoCore), two);
    finds(None, || port(3, Mistake::SleepsUnseen));
    finds(None, || port(3, Mistake::SleepsAtSome));
}

/// Fewer frames than a lane has room for.
fn few() {
    frames(3, Mistake::None);
}

/// More than it has room for.
fn many() {
    frames(20, Mistake::None);
}

#[test]
fn a_sleeper_is_woken_for_each_frame() {
    check(None, SCHEDULES, few);
}

#[test]
fn an_end_without_room_is_woken() {
    check(None, SCHEDULES, many);
}

#[test]
fn a_doorbell_that_does_not_ring_is_found() {
    finds(Some(Fault::WakesNoCore), few);
    finds(Some(Fault::WakesNoCore), many);
}

#[test]
fn a_sleeper_that_does_not_look_again_is_found() {
    finds(None, || frames(3, Mistake::SleepsUnseen));
}

#[test]
fn an_end_without_room_that_does_not_look_again_is_found() {
    finds(None, || frames(20, Mistake::StarvesUnseen));
}

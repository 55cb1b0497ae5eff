//! Each back end against the kernel: a question of ARP goes out, the kernel's answer comes in, also to a sleeper.

mod common;

use common::{enter, ip, veth};
use nic::{Frames, LinkError, Written, packet, tap, xdp};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::time::Duration;
use tcp::addr::{Ip, Mac};
use tcp::frame::arp::Arp;
use tcp::frame::{Hop, Packet, emit_arp, parse};

const OURS: Mac = Mac([2, 0, 0, 0, 9, 2]);
/// Longer than anything takes.
const LIMIT: Duration = Duration::from_secs(20);
/// After so long a question is asked again.
const PATIENCE: Duration = Duration::from_millis(200);

fn question(frame: &mut [u8]) -> Written {
    let arp = Arp {
        is_reply: false,
        sender_mac: OURS,
        sender: Ip::v4([10, 9, 0, 2]),
        target_mac: Mac::default(),
        target: Ip::v4([10, 9, 0, 1]),
    };
    let hop = Hop {
        source: OURS,
        target: Mac::BROADCAST,
    };
    let bytes = emit_arp(hop, &arp, frame);
    Written {
        bytes,
        segment_bytes: 0,
    }
}

/// Sends `count` questions.
fn ask(frames: &mut dyn Frames, count: usize) -> Result<(), LinkError> {
    let mut left = count;
    let until = os::now() + LIMIT;
    while left > 0 {
        frames.send(&mut |frame| {
            left = left.checked_sub(1)?;
            Some(question(frame))
        })?;
        frames.flush()?;
        assert!(os::now() < until, "there is room in the end");
    }
    Ok(())
}

/// Sleeps until something can be done, or a question may be lost: an interface takes a moment to come up.
fn sleep(frames: &mut dyn Frames) {
    if let Some(sleep) = frames.arm() {
        let writable = if sleep.writable {
            PollFlags::OUT
        } else {
            PollFlags::empty()
        };
        let mut fds = [PollFd::from_borrowed_fd(frames.fd(), PollFlags::IN | writable)];
        let limit = Timespec {
            tv_sec: 0,
            tv_nsec: PATIENCE.as_nanos() as i64,
        };
        poll(&mut fds, Some(&limit)).expect("it can be waited for");
    }
    frames.disarm();
}

/// Collects the kernel's answers.
fn answers(frames: &mut dyn Frames, count: usize) {
    let (mut found, until) = (0, os::now() + LIMIT);
    let mut patient_until = os::now() + PATIENCE;
    while found < count {
        assert!(os::now() < until, "{found} of {count} answers");
        if os::now() > patient_until {
            patient_until = os::now() + PATIENCE;
            ask(frames, 1).expect("the link is up");
        }
        frames
            .receive(64, &mut |frame| {
                if let Ok((ether, Packet::Arp(arp))) = parse(frame.bytes, true)
                    && arp.is_reply
                {
                    assert_eq!((ether.target, arp.sender), (OURS, Ip::v4([10, 9, 0, 1])));
                    found += 1;
                }
            })
            .expect("the link is up");
        if found < count {
            sleep(frames);
        }
    }
}

fn meets_the_kernel(frames: &mut dyn Frames) {
    for count in [1, 1, 40, 3000] {
        // Fewer than any queue on the way holds, again and again, so that rings go round.
        for part in (0..count).step_by(100) {
            let part = (count - part).min(100);
            ask(frames, part).expect("the link is up");
            answers(frames, part);
        }
    }
}

#[test]
fn tap_meets_the_kernel() {
    if !enter() {
        return;
    }
    let mut frames = match tap::open("tap9", 1) {
        Ok(frames) => frames,
        Err(error) => return eprintln!("skipped: this kernel has no TAP: {error}"),
    };
    ip("addr add 10.9.0.1/24 dev tap9");
    meets_the_kernel(&mut frames[0]);
}

#[test]
fn tap_has_several_queues() {
    if !enter() {
        return;
    }
    match tap::open("tap9", 3) {
        Ok(frames) => assert_eq!(frames.len(), 3),
        Err(error) => eprintln!("skipped: this kernel has no TAP: {error}"),
    }
}

#[test]
fn packet_meets_the_kernel() {
    if !enter() {
        return;
    }
    veth();
    let mut frames = packet::open("va", 1).expect("a socket");
    meets_the_kernel(&mut frames[0]);
}

#[test]
fn packet_spreads_flows_among_queues() {
    if !enter() {
        return;
    }
    veth();
    let mut frames = packet::open("va", 3).expect("sockets of a group");
    let (mut found, until) = (0, os::now() + LIMIT);
    let mut patient_until = os::now();
    while found == 0 {
        assert!(os::now() < until, "the answer comes to one of the queues");
        if os::now() >= patient_until {
            patient_until = os::now() + PATIENCE;
            ask(&mut frames[0], 1).expect("the link is up");
        }
        for frames in &mut frames {
            found += frames.receive(9, &mut |_| ()).expect("the link is up");
        }
    }
}

fn xdp_meets_the_kernel(mode: xdp::Mode) {
    if !enter() {
        return;
    }
    veth();
    let options = xdp::Options {
        mode,
        ..xdp::Options::default()
    };
    let mut frames = match xdp::open("va", 1, options) {
        Ok(frames) => frames,
        Err(error) => return eprintln!("skipped: this kernel has no AF_XDP in mode {mode:?}: {error}"),
    };
    assert_eq!(frames[0].is_native(), mode == xdp::Mode::Native);
    meets_the_kernel(&mut frames[0]);
    assert!(xdp::open("va", 1, options).is_err(), "the interface is taken");
    drop(frames);
    // The kernel takes a socket down after its end, a moment later.
    let until = os::now() + LIMIT;
    while let Err(error) = xdp::open("va", 1, options) {
        assert!(os::now() < until, "the interface is free again: {error}");
        std::thread::yield_now();
    }
}

#[test]
fn xdp_behind_the_driver_meets_the_kernel() {
    xdp_meets_the_kernel(xdp::Mode::Skb);
}

#[test]
fn xdp_in_the_driver_meets_the_kernel() {
    xdp_meets_the_kernel(xdp::Mode::Native);
}

//! The keeper: a thread of the library. It carries frames if no thread of the program has done so for some milliseconds. So acknowledgements, keep-alives and
//! retransmissions do not wait for a program that computes.
//!
//! While threads of the program carry frames, the keeper looks every [`TICK`] whether they still do. While one of them sleeps on the doorbell, the keeper
//! sleeps without a limit.

use super::beds::On;
use super::inherit;
use super::stack::{Bed, Net, lock};
use crate::state::IS_INSIDE;
use crate::{real, selector, signals};
use base::{Duration, Instant};
use libc::{c_ulong, pollfd};
use os::sync::{Arc, Wake, thread};
use std::os::fd::AsRawFd;
use std::{io, ptr};

/// How long a program may compute before the keeper carries frames for it. Less than a peer's least timeout.
const TICK: Duration = Duration::from_millis(4);

/// Starts it, if there is none.
pub(crate) fn start(net: &mut Net) -> io::Result<()> {
    if net.beds.has_keeper() {
        return Ok(());
    }
    let wake = Arc::new(Wake::new()?.kept(area::own::keep)?);
    let before = signals::block();
    let own = Arc::clone(&wake);
    let begun = thread::Builder::new()
        .name("switchyard-tcp".to_owned())
        .spawn(move || keep(&own));
    signals::unblock(&before);
    begun?;
    net.beds.set_keeper(wake);
    Ok(())
}

/// How the keeper sleeps.
enum Plan {
    /// Until it is woken.
    Woken,
    Tick,
    /// On the doorbell.
    Watch(Bed),
    Again,
}

fn keep(wake: &Wake) {
    IS_INSIDE.set(true);
    selector::enter();
    let mut looks = 0;
    loop {
        let (plan, ends) = {
            let mut net = lock();
            let plan = plan(&mut net, &mut looks);
            (plan, net.ends.as_ref().map_or(-1, AsRawFd::as_raw_fd))
        };
        match &plan {
            Plan::Again => {}
            Plan::Woken => sleep([wake.fd(), ends, -1, -1], None),
            Plan::Tick => sleep([wake.fd(), ends, -1, -1], Some(os::now() + TICK)),
            Plan::Watch(bed) => sleep([wake.fd(), ends, bed.wake, bed.bell], bed.deadline),
        }
        wake.clear();
        if let Plan::Watch(bed) = plan {
            lock().get_up(&bed);
        }
    }
}

fn plan(net: &mut Net, looks: &mut u64) -> Plan {
    inherit::hear(net);
    let is_stuck = net.turn_bridges();
    if !is_stuck && !net.stirred.is_empty() {
        net.carry();
        return Plan::Again;
    }
    if !net.is_up() {
        net.beds.keeper_sleeps();
        return Plan::Woken;
    }
    if is_stuck || net.looks != *looks {
        *looks = net.looks;
        return Plan::Tick;
    }
    if net.beds.has_program_watch() {
        net.beds.keeper_sleeps();
        return Plan::Woken;
    }
    net.carry();
    *looks = net.looks;
    if !net.stirred.is_empty() {
        return Plan::Again;
    }
    match net.lie_down(On::Keeper) {
        Ok(Some(bed)) if bed.bell >= 0 => Plan::Watch(bed),
        Ok(Some(bed)) => {
            net.get_up(&bed);
            Plan::Tick
        }
        Ok(None) => Plan::Again,
        Err(_) => Plan::Tick,
    }
}

fn sleep(fds: [i32; 4], until: Option<Instant>) {
    let mut fds = fds.map(|fd| pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    });
    let limit = until.map(|until| super::rest::timespec_of(until.since(os::now())));
    let limit = limit.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: all of them are there during the call. The keeper is not cancelled.
    unsafe { real::ppoll(fds.as_mut_ptr(), fds.len() as c_ulong, limit, ptr::null()) };
}

//! How a thread of the program waits: it looks for frames for a while, and sleeps then. It sleeps outside of the library, so handlers of its signals run, and
//! a cancelled thread ends.

use super::beds::On;
use super::stack::{Again, Bed, Net, with};
use crate::real;
use crate::signals::{self, Ran};
use base::{Duration, Instant, time};
use libc::{c_int, c_ulong, pollfd, sigset_t, timespec};
use std::{io, ptr};

/// Places that a list of descriptors has to have beside those of the program.
pub(crate) const SPARE: usize = 2;

/// How a rest ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// There may be something: the caller looks again.
    Again,
    /// The same, after a sleep.
    Awake,
    /// The time is over.
    Late,
    /// A handler of a signal has run; whether it restarts calls.
    Interrupted(Ran),
    /// The system lets nobody sleep.
    Failed(c_int),
}

/// The end of a thread's wait.
pub(crate) struct Wish {
    pub on: On,
    pub until: Option<Instant>,
    /// The kernel's descriptors, and behind them [`SPARE`] places.
    pub fds: *mut pollfd,
    pub count: usize,
    /// Signals that are blocked meanwhile, if the program says so.
    pub mask: *const sigset_t,
}

impl Wish {
    /// For a file alone.
    pub fn of(file: u32, until: Option<Instant>, fds: &mut [pollfd; SPARE]) -> Self {
        Self {
            on: On::File(file),
            until,
            fds: fds.as_mut_ptr(),
            count: 0,
            mask: ptr::null(),
        }
    }
}

/// Places for a rest without descriptors of the kernel's.
pub(crate) const NO_FDS: [pollfd; SPARE] = [pollfd {
    fd: -1,
    events: 0,
    revents: 0,
}; SPARE];

enum Plan {
    End(Rest),
    Spin(Again),
    Sleep(Bed, sigset_t, Option<Instant>),
}

/// Waits until there may be something, unless `is_ready` says that there is.
pub(crate) fn rest(wish: &Wish, is_ready: impl FnOnce(&mut Net) -> bool) -> Rest {
    let plan = with(|net| {
        net.carry();
        plan(net, wish, is_ready)
    });
    let ran = signals::take_ran();
    if ran != Ran::None && !matches!(plan, Plan::Sleep(..)) {
        return Rest::Interrupted(ran);
    }
    match plan {
        Plan::End(rest) => rest,
        Plan::Spin(again) => {
            match again {
                Again::Now => std::hint::spin_loop(),
                Again::AfterOthers => os::sync::thread::yield_now(),
            }
            Rest::Again
        }
        Plan::Sleep(bed, before, until) => sleep(wish, &bed, &before, until),
    }
}

fn plan(net: &mut Net, wish: &Wish, is_ready: impl FnOnce(&mut Net) -> bool) -> Plan {
    if is_ready(net) {
        return Plan::End(Rest::Again);
    }
    if wish.until.is_some_and(|until| until <= net.now) {
        return Plan::End(Rest::Late);
    }
    if let Some(again) = net.look_again() {
        return Plan::Spin(again);
    }
    let bed = match net.lie_down(wish.on) {
        Ok(Some(bed)) => bed,
        Ok(None) => return Plan::End(Rest::Again),
        Err(error) => return Plan::End(Rest::Failed(error.raw_os_error().unwrap_or(libc::ENOMEM))),
    };
    let before = signals::block();
    if signals::have_come() {
        // They come when the thread leaves the library, which gives it its mask back.
        net.get_up(&bed);
        return Plan::End(Rest::Again);
    }
    let until = time::earliest(wish.until, bed.deadline);
    Plan::Sleep(bed, before, until)
}

/// Nothing is to be dropped here: the C library may unwind a cancelled thread.
fn sleep(wish: &Wish, bed: &Bed, before: &sigset_t, until: Option<Instant>) -> Rest {
    let place = |fd| pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: the caller's list, with the places behind it.
    let count = unsafe {
        wish.fds.add(wish.count).write(place(bed.wake));
        wish.fds.add(wish.count + 1).write(place(bed.bell));
        wish.count + SPARE
    };
    let limit = until.map(|until| timespec_of(until.since(os::now())));
    let limit = limit.as_ref().map_or(ptr::null(), ptr::from_ref);
    let mask = match wish.mask.is_null() {
        true => ptr::from_ref(before),
        false => wish.mask,
    };
    // SAFETY: all of them are there during the call.
    let woken = unsafe { real::ppoll(wish.fds, count as c_ulong, limit, mask) };
    let is_interrupted = woken < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EINTR);
    with(|net| {
        net.get_up(bed);
        net.carry();
    });
    signals::unblock(before);
    match signals::take_ran() {
        Ran::None if is_interrupted => Rest::Interrupted(Ran::Restarting),
        Ran::None => Rest::Awake,
        ran => Rest::Interrupted(ran),
    }
}

/// As the kernel has it.
pub(crate) fn timespec_of(time: Duration) -> timespec {
    timespec {
        tv_sec: time.as_secs().min(i64::MAX as u64) as libc::time_t,
        tv_nsec: time.subsec_nanos().into(),
    }
}

/// Until when a call may wait, which begins to wait now: handlers of signals that have run before do not end it.
pub(crate) fn until(limit: Option<Duration>) -> Option<Instant> {
    signals::take_ran();
    limit.map(|limit| os::now() + limit)
}

//! Forks of the program, and its end. The stack stays with the parent, whom a child asks for sockets that it uses (`inherit`). A child has a stack of its own if
//! the address is free.

use super::settings::is_run;
use super::stack::{Net, lock};
use super::{inherit, known, open};
use crate::state::{IS_INSIDE, inside};
use crate::{forks, signals, tell};
use base::Duration;
use os::sync::MutexGuard;
use std::cell::UnsafeCell;
use std::os::fd::OwnedFd;

/// How long the end of a program waits until its peers have what was written.
const LINGER: Duration = Duration::from_secs(1);

/// Things that are held over a fork.
type Guarded = (MutexGuard<'static, Net>, Option<[OwnedFd; 2]>);

/// The lock, held over a fork, and what parent and child will talk by.
struct Held(UnsafeCell<Option<Guarded>>);

// SAFETY: only the thread that has the lock touches it.
unsafe impl Sync for Held {}

static HELD: Held = Held(UnsafeCell::new(None));

/// When a program starts.
extern "C" fn at_start() {
    if !is_run() {
        return;
    }
    known::own();
    tell::begin();
    forks::watch();
    // SAFETY: the functions are there as long as the process.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = at_start;

extern "C" fn before_fork() {
    // Handlers of the program's signals wait until the lock is free again.
    signals::enter();
    IS_INSIDE.set(true);
    let mut guard = lock();
    let pair = inherit::prepare(&mut guard);
    // SAFETY: this thread has the lock.
    unsafe { *HELD.0.get() = Some((guard, pair)) };
}

extern "C" fn in_parent() {
    // SAFETY: this thread has the lock.
    if let Some((mut net, Some([control, _]))) = unsafe { (*HELD.0.get()).take() } {
        inherit::remember_child(&mut net, &control);
    }
    IS_INSIDE.set(false);
    signals::leave();
}

extern "C" fn in_child() {
    // SAFETY: this is the copy of the thread that has the lock.
    let guard = unsafe { (*HELD.0.get()).take() };
    known::own();
    if let Some((mut net, pair)) = guard {
        inherit::begin_child(&mut net, pair.as_ref().map(|[_, control]| control));
    }
    IS_INSIDE.set(false);
    signals::leave();
}

/// When the process ends in an orderly way: what was written still goes.
extern "C" fn at_end() {
    if !is_run() || !known::is_here() {
        return;
    }
    open::closing_range(0, libc::c_uint::MAX);
    inside(|| {
        if let Some(link) = &mut lock().link {
            // Whoever does not answer until then gets the rest never.
            let _ = link.sockets.finish(Some(LINGER));
            link.sockets.leave();
        }
    });
}

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_END: extern "C" fn() = at_end;

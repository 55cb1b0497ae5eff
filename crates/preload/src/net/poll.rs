//! poll(2) and select(2) on served sockets, perhaps beside descriptors of the kernel's.

use super::beds::On;
use super::rest::{Rest, SPARE, Wish, rest, until};
use super::stack::{Net, with};
use super::{inherit, known};
use crate::real;
use crate::state::set_errno;
use base::{Duration, Instant};
use libc::{c_int, c_long, c_ulong, fd_set, pollfd, sigset_t, timespec, timeval};
use std::io;

/// A list of so many descriptors needs no memory.
const FEW: usize = 64;
const NOTHING: pollfd = pollfd {
    fd: -1,
    events: 0,
    revents: 0,
};

/// Whether a descriptor is served, or is a set with served ones.
fn is_served(fd: c_int) -> bool {
    known::is_any(fd)
}

/// A time of the program's; `None` waits for ever.
pub(crate) unsafe fn limit_of(time: *const timespec) -> Result<Option<Duration>, c_int> {
    // SAFETY: null, or the program's.
    match unsafe { time.as_ref() } {
        None => Ok(None),
        Some(time) if time.tv_sec < 0 || !(0..1_000_000_000).contains(&time.tv_nsec) => Err(libc::EINVAL),
        Some(time) => Ok(Some(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))),
    }
}

/// poll(2), ppoll(2). None if nothing of it is served.
pub(crate) unsafe fn poll(
    fds: *mut pollfd,
    count: c_ulong,
    limit: impl FnOnce() -> Result<Option<Duration>, c_int>,
    mask: *const sigset_t,
) -> Option<c_int> {
    let count = count as usize;
    if fds.is_null() || !known::has_any() {
        return None;
    }
    // SAFETY: the program's list.
    let fd = |index| unsafe { (*fds.add(index)).fd };
    (0..count).map(fd).for_each(inherit::take);
    if !(0..count).map(fd).any(is_served) {
        return None;
    }
    let limit = match limit() {
        Ok(limit) => limit,
        Err(code) => {
            set_errno(code);
            return Some(-1);
        }
    };
    let until = until(limit);
    // SAFETY: the list is the program's; the places are there during the call, and freed unless the thread is cancelled.
    unsafe {
        if count <= FEW {
            let mut places = [NOTHING; FEW + SPARE];
            return Some(look_and_wait((fds, count), places.as_mut_ptr(), until, mask));
        }
        let places = Box::into_raw(vec![NOTHING; count + SPARE].into_boxed_slice());
        let result = look_and_wait((fds, count), places.cast(), until, mask);
        let code = *libc::__errno_location();
        drop(Box::from_raw(places));
        set_errno(code);
        Some(result)
    }
}

unsafe fn look_and_wait(
    (fds, count): (*mut pollfd, usize),
    kernels: *mut pollfd,
    until: Option<Instant>,
    mask: *const sigset_t,
) -> c_int {
    loop {
        // SAFETY: the caller's lists.
        let found = unsafe { look((fds, count), kernels) };
        if found != 0 {
            return found;
        }
        let wish = Wish {
            on: On::Any,
            until,
            fds: kernels,
            count,
            mask,
        };
        // SAFETY: the caller's list.
        let is_ready = |net: &mut Net| unsafe { served(net, (fds, count)) > 0 };
        match rest(&wish, is_ready) {
            Rest::Again | Rest::Awake => {}
            // SAFETY: the caller's lists.
            Rest::Late => return unsafe { look((fds, count), kernels) },
            Rest::Interrupted(_) => {
                set_errno(libc::EINTR);
                return -1;
            }
            Rest::Failed(code) => {
                set_errno(code);
                return -1;
            }
        }
    }
}

/// The events of a descriptor that is served; `None` if the kernel alone has it.
pub(crate) fn events(net: &mut Net, fd: c_int) -> Option<u32> {
    if let Some(set) = net.sets.get(&fd) {
        return Some(if set.has_queued() { libc::EPOLLIN as u32 } else { 0 });
    }
    let number = known::inside(fd)?;
    Some(net.events(number))
}

/// Fills in what served sockets can do. How many can do something.
unsafe fn served(net: &mut Net, (fds, count): (*mut pollfd, usize)) -> c_int {
    let mut found = 0;
    for index in 0..count {
        // SAFETY: the program's list.
        let place = unsafe { &mut *fds.add(index) };
        let Some(events) = events(net, place.fd) else {
            continue;
        };
        let asked = place.events as u16 as u32 | (libc::EPOLLERR | libc::EPOLLHUP) as u32;
        place.revents = (events & asked) as i16;
        found += c_int::from(place.revents != 0);
    }
    found
}

/// Looks at all, and waits for nothing.
unsafe fn look((fds, count): (*mut pollfd, usize), kernels: *mut pollfd) -> c_int {
    // SAFETY: the caller's lists; the kernel's calls fill the second one.
    unsafe {
        let is_asked = with(|net| {
            net.carry();
            served(net, (fds, count));
            let mut is_asked = false;
            for index in 0..count {
                let fd = (*fds.add(index)).fd;
                let is_kernels = known::inside(fd)
                    .is_none_or(|file| net.files.get(&file).is_none_or(|file| file.is_kernels_too()));
                is_asked |= is_kernels && fd >= 0;
                kernels.add(index).write(pollfd {
                    fd: if is_kernels { fd } else { -1 },
                    revents: 0,
                    ..*fds.add(index)
                });
            }
            is_asked
        });
        if is_asked {
            let at_once = timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            let words = [kernels as c_long, count as c_long, (&raw const at_once) as c_long];
            // Not the C library's: the thread is not to be cancelled here.
            let found = real::syscall(libc::SYS_ppoll, words[0], words[1], words[2], 0, 8, 0);
            if found < 0 && io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
                return -1;
            }
        }
        let mut found = 0;
        for index in 0..count {
            let place = &mut *fds.add(index);
            let kernels = *kernels.add(index);
            if kernels.fd >= 0 {
                let served = if is_served(place.fd) { place.revents } else { 0 };
                place.revents = served | kernels.revents;
            } else if place.fd < 0 {
                place.revents = 0;
            }
            found += c_int::from(place.revents != 0);
        }
        found
    }
}

/// Descriptors of select(2): fewer than FD_SETSIZE.
const SELECTED_MAX: usize = libc::FD_SETSIZE;

/// Events that the three sets of select(2) ask for, and those that answer them (Linux' fs/select.c).
const ASKED: [i16; 3] = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
const ANSWERS: [i16; 3] = [
    libc::POLLIN | libc::POLLHUP | libc::POLLERR,
    libc::POLLOUT | libc::POLLERR,
    libc::POLLPRI,
];

/// select(2), pselect(2). None if nothing of it is served.
pub(crate) unsafe fn select(
    count: c_int,
    sets: [*mut fd_set; 3],
    limit: impl FnOnce() -> Result<Option<Duration>, c_int>,
    mask: *const sigset_t,
) -> Option<c_int> {
    if !known::has_any() || !(0..=SELECTED_MAX as c_int).contains(&count) {
        return None;
    }
    let is_in = |fd: c_int, set: *mut fd_set| {
        // SAFETY: the program's sets, which have so many bits.
        !set.is_null() && unsafe { libc::FD_ISSET(fd, set) }
    };
    let is_asked = |fd: &c_int| sets.iter().any(|set| is_in(*fd, *set));
    (0..count).filter(is_asked).for_each(inherit::take);
    if !(0..count).filter(is_asked).any(is_served) {
        return None;
    }
    let mut list = [NOTHING; SELECTED_MAX];
    let mut asked = 0;
    for fd in (0..count).filter(is_asked) {
        let wanted = sets.iter().zip(ASKED).filter(|(set, _)| is_in(fd, **set));
        list[asked] = pollfd {
            fd,
            events: wanted.fold(0, |all, (_, events)| all | events),
            revents: 0,
        };
        asked += 1;
    }
    // SAFETY: the list is there during the call.
    let found = unsafe { poll(list.as_mut_ptr(), asked as c_ulong, limit, mask) }?;
    if found < 0 {
        return Some(found);
    }
    if list[..asked].iter().any(|it| it.revents & libc::POLLNVAL != 0) {
        set_errno(libc::EBADF);
        return Some(-1);
    }
    let mut bits = 0;
    for it in &list[..asked] {
        for ((set, asked), answers) in sets.iter().zip(ASKED).zip(ANSWERS) {
            if it.events & asked == 0 {
                continue;
            }
            match it.revents & answers {
                // SAFETY: the bit was looked at.
                0 => unsafe { libc::FD_CLR(it.fd, *set) },
                _ => bits += 1,
            }
        }
    }
    Some(bits)
}

/// Tells the rest of a time, as Linux' select(2) does.
pub(crate) unsafe fn tell_rest(time: *mut timeval, until: Option<Instant>) {
    // SAFETY: null, or the program's place.
    if let (Some(time), Some(until)) = (unsafe { time.as_mut() }, until) {
        let rest = until.since(os::now());
        time.tv_sec = rest.as_secs() as libc::time_t;
        time.tv_usec = libc::suseconds_t::from(rest.subsec_micros());
    }
}

/// poll(2)'s time, in milliseconds.
pub(crate) fn limit_of_ms(wait: c_int) -> Option<Duration> {
    u64::try_from(wait).ok().map(Duration::from_millis)
}

//! epoll(7) on served sockets beside descriptors of the kernel's, which stay in the kernel's set.

use super::beds::On;
use super::open::last_code;
use super::rest::{NO_FDS, Rest, SPARE, Wish, rest, until};
use super::set::{Interest, Set};
use super::stack::{Net, with};
use super::{inherit, known};
use crate::real;
use crate::state::set_errno;
use base::Duration;
use libc::{c_int, c_long, epoll_event, sigset_t};
use std::mem;

/// While served sockets have something to tell, or a thread looks for that, the kernel's part of a set is looked at so often.
const LOOK_EVERY: Duration = Duration::from_micros(50);

/// epoll_ctl(2). None if the kernel makes the call.
pub(crate) unsafe fn control(
    set: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> Option<c_int> {
    let number = inherit::file(fd)?;
    // SAFETY: null, or the program's.
    let event = (!event.is_null()).then(|| unsafe { event.read_unaligned() });
    let result = with(|net| {
        let is_kernels_too = net.files.get(&number)?.is_kernels_too();
        let result = match operation {
            libc::EPOLL_CTL_DEL => remove(net, set, fd),
            libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD => match event {
                None => Err(libc::EFAULT),
                Some(event) => {
                    let interest = Interest::new(number, event.events, event.u64);
                    put(net, (set, operation, fd), interest, is_kernels_too)
                }
            },
            _ => Err(libc::EINVAL),
        };
        Some(result)
    })?;
    Some(match result {
        Ok(()) => 0,
        Err(code) => {
            set_errno(code);
            -1
        }
    })
}

fn put(
    net: &mut Net,
    (set, operation, fd): (c_int, c_int, c_int),
    mut interest: Interest,
    is_kernels_too: bool,
) -> Result<(), c_int> {
    let before = net.sets.get(&set).and_then(|known| known.get(fd));
    let (is_known, was_kernels) = (before.is_some(), before.is_some_and(|it| it.is_kernels_too));
    match (operation, is_known) {
        (libc::EPOLL_CTL_ADD, true) => return Err(libc::EEXIST),
        (libc::EPOLL_CTL_MOD, false) => return Err(libc::ENOENT),
        _ => {}
    }
    if is_kernels_too {
        let operation = if was_kernels {
            libc::EPOLL_CTL_MOD
        } else {
            libc::EPOLL_CTL_ADD
        };
        let mut event = epoll_event {
            events: interest.events,
            u64: interest.data,
        };
        // SAFETY: the event is there during the call.
        if unsafe { real::epoll_ctl(set, operation, fd, &mut event) } < 0 {
            return Err(last_code());
        }
        interest.is_kernels_too = true;
    } else if !is_known && !known::is_in_set(set) {
        check_set(set, fd)?;
    }
    if !known::is_in_set(set) && !known::note_set(set) {
        return Err(libc::ENOSPC);
    }
    if let Some(file) = net.files.get_mut(&interest.file) {
        if !is_known {
            file.watchers.push((set, fd));
        }
        file.is_starved = true;
    }
    let file = interest.file;
    net.sets.entry(set).or_default().put(fd, interest);
    net.tell(file);
    Ok(())
}

/// The kernel says whether a descriptor is a set: it is asked to take one out that it does not have.
fn check_set(set: c_int, fd: c_int) -> Result<(), c_int> {
    // SAFETY: no memory is involved.
    let result = unsafe { real::epoll_ctl(set, libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) };
    match (result, last_code()) {
        (0.., _) | (_, libc::ENOENT) => Ok(()),
        (_, code) => Err(code),
    }
}

fn remove(net: &mut Net, set: c_int, fd: c_int) -> Result<(), c_int> {
    let removed = net.sets.get_mut(&set).and_then(|known| known.remove(fd));
    let removed = removed.ok_or(libc::ENOENT)?;
    if let Some(file) = net.files.get_mut(&removed.file) {
        file.watchers.retain(|watcher| *watcher != (set, fd));
    }
    if removed.is_kernels_too {
        // SAFETY: no memory is involved.
        unsafe { real::epoll_ctl(set, libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) };
    }
    Ok(())
}

/// epoll_wait(2) and the like. None if the set is the kernel's alone.
pub(crate) unsafe fn wait(
    set: c_int,
    events: *mut epoll_event,
    count_max: c_int,
    limit: impl FnOnce() -> Result<Option<Duration>, c_int>,
    mask: *const sigset_t,
) -> Option<c_int> {
    if !known::is_set(set) {
        return None;
    }
    let (count_max, limit) = match (usize::try_from(count_max), limit()) {
        (Ok(count_max @ 1..), Ok(limit)) if !events.is_null() => (count_max, limit),
        (_, Err(code)) => return Some(failed(code)),
        _ => return Some(failed(libc::EINVAL)),
    };
    let is_look = limit == Some(Duration::ZERO);
    let until = until(limit);
    let mut fds = [NO_FDS[0]; 1 + SPARE];
    // A thread that waits comes to the kernel's part soon, and one that sleeps is woken by it.
    let mut asks = is_look;
    loop {
        let asks_now = mem::take(&mut asks);
        // SAFETY: the caller's place.
        let found = unsafe { look(set, events, count_max, asks_now) };
        if found != 0 || is_look {
            return Some(found);
        }
        fds[0] = libc::pollfd {
            fd: set,
            events: libc::POLLIN,
            revents: 0,
        };
        let wish = Wish {
            on: On::Set(set),
            until,
            fds: fds.as_mut_ptr(),
            count: 1,
            mask,
        };
        let is_ready = |net: &mut Net| net.sets.get(&set).is_none_or(Set::has_queued);
        match rest(&wish, is_ready) {
            Rest::Again => {}
            Rest::Awake => asks = true,
            // SAFETY: the caller's place.
            Rest::Late => return Some(unsafe { look(set, events, count_max, true) }),
            Rest::Interrupted(_) => return Some(failed(libc::EINTR)),
            Rest::Failed(code) => return Some(failed(code)),
        }
    }
}

fn failed(code: c_int) -> c_int {
    set_errno(code);
    -1
}

/// Tells what there is, and waits for nothing.
unsafe fn look(set: c_int, events: *mut epoll_event, count_max: usize, asks: bool) -> c_int {
    // SAFETY: the caller's place has room for so many.
    let tell = |at: usize, event: epoll_event| unsafe { events.add(at).write_unaligned(event) };
    let (count, asks_kernel) = with(|net| {
        net.carry();
        let count = served(net, set, count_max, tell);
        let now = net.now;
        let Some(known) = net.sets.get_mut(&set) else {
            return (count, true);
        };
        let is_late = now.since(known.looked_at) >= LOOK_EVERY;
        let asks = count < count_max && (is_late || count == 0 && asks);
        if asks {
            known.looked_at = now;
        }
        (count, asks)
    });
    if !asks_kernel {
        return count as c_int;
    }
    // SAFETY: the rest of the caller's place.
    let words = unsafe {
        [
            c_long::from(set),
            events.add(count) as c_long,
            (count_max - count) as c_long,
        ]
    };
    // Not the C library's: the thread is not to be cancelled here.
    // SAFETY: as above; no signals are given.
    let found = unsafe { real::syscall(libc::SYS_epoll_pwait, words[0], words[1], words[2], 0, 0, 8) };
    match found {
        0.. => count as c_int + found as c_int,
        _ if count > 0 => count as c_int,
        _ => -1,
    }
}

fn served(net: &mut Net, set: c_int, count_max: usize, tell: impl Fn(usize, epoll_event)) -> usize {
    // It is taken out, so that its sockets can be asked meanwhile.
    let Some(mut known) = net.sets.get_mut(&set).map(mem::take) else {
        return 0;
    };
    let look = |interest: &Interest| {
        let events = net.events(interest.file);
        let has_room = events & libc::EPOLLOUT as u32 != 0;
        let file = net.files.get_mut(&interest.file).filter(|_| has_room);
        let is_news = file.is_some_and(|file| mem::take(&mut file.is_starved));
        (events, is_news)
    };
    let mut at = 0;
    let count = known.take(count_max, look, |interest, events| {
        tell(
            at,
            epoll_event {
                events,
                u64: interest.data,
            },
        );
        at += 1;
    });
    net.sets.insert(set, known);
    count
}

//! Readiness: one epoll instance per core, plus the eventfd by which other threads wake the core.
//!
//! What is served at once when it is ready is watched by level: whoever leaves something unread is told again.
//! Connections are watched by edge: what one class has unread must not be told again and again while another is served,
//! and a thousand that wait must not fill the list of events.

use base::Duration;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration as StdDuration;

/// Events fetched by one wait. More ready sources than this are fetched by the next wait.
const EVENTS: usize = 128;

/// Set in the token of a connection; the rest is its slot. Other sources have their place in the core's list.
const CONNECTION: u64 = 1 << 63;

/// The token of the connection in a slot.
pub(crate) const fn connection_token(slot: usize) -> u64 {
    CONNECTION | slot as u64
}

/// The slot of the connection that has this token.
pub(crate) const fn connection_slot(token: u64) -> Option<usize> {
    if token & CONNECTION == 0 {
        return None;
    }
    Some((token & !CONNECTION) as usize)
}

/// How a source is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    /// Told as long as it can be read.
    Read,
    /// Told when it can be read or written anew: who is told remembers it.
    Edges,
}

impl Interest {
    fn bits(self) -> u32 {
        let bits = match self {
            Self::Read => libc::EPOLLIN | libc::EPOLLRDHUP,
            Self::Edges => libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLOUT | libc::EPOLLET,
        };
        bits as u32
    }
}

/// A source that is ready: for what it is watched, or as said here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready {
    /// What the source was registered as.
    pub token: u64,
    /// It can be read, or its peer has hung up or failed (reading will tell).
    pub read: bool,
    /// It can be written.
    pub write: bool,
    /// The peer sends nothing more.
    pub ended: bool,
    /// The connection is broken: nothing can be sent any more.
    pub broken: bool,
}

pub(crate) struct Poller {
    epoll: OwnedFd,
    events: Box<[libc::epoll_event; EVENTS]>,
    ready: usize,
    /// False when the kernel is older than 5.11 and has no `epoll_pwait2`: sleeps are then rounded up to 1 ms.
    precise: bool,
}

impl Poller {
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers; the result is checked and owned from here on.
        let epoll = unsafe {
            let fd = check(libc::epoll_create1(libc::EPOLL_CLOEXEC))?;
            OwnedFd::from_raw_fd(fd)
        };
        let events = Box::new([libc::epoll_event { events: 0, u64: 0 }; EVENTS]);
        Ok(Self {
            epoll,
            events,
            ready: 0,
            precise: true,
        })
    }

    /// Watches `fd`; [`Ready::token`] will be `token`.
    pub fn add(&self, fd: RawFd, token: u64, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, token, interest)
    }

    /// Stops watching `fd`.
    pub fn remove(&self, fd: RawFd) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd, 0, Interest::Read)
    }

    fn control(&self, operation: libc::c_int, fd: RawFd, token: u64, interest: Interest) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: interest.bits(),
            u64: token,
        };
        // SAFETY: `event` outlives the call.
        check(unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), operation, fd, &mut event) })?;
        Ok(())
    }

    /// Waits until a source is ready, a signal comes, or `timeout` is over (`None`: for ever). Returns how many
    /// sources are ready.
    pub fn wait(&mut self, timeout: Option<Duration>) -> usize {
        let result = if self.precise || timeout.is_some_and(|timeout| timeout.is_zero()) {
            self.wait_precise(timeout)
        } else {
            self.wait_coarse(timeout)
        };
        self.ready = match result {
            Ok(ready) => ready as usize,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) && self.precise => {
                self.precise = false;
                0
            }
            Err(error) => panic!("epoll refuses its own arguments: {error}"),
        };
        self.ready
    }

    fn wait_precise(&mut self, timeout: Option<Duration>) -> io::Result<libc::c_int> {
        if timeout.is_some_and(|timeout| timeout.is_zero()) {
            // SAFETY: `events` is valid for writes of EVENTS events.
            return check(unsafe {
                libc::epoll_wait(self.epoll.as_raw_fd(), self.events.as_mut_ptr(), EVENTS as i32, 0)
            });
        }
        let time = timeout.map(timespec);
        let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: `events` is valid for writes of EVENTS events, `time` is null or valid for reads, there is no
        // signal mask (its size is then ignored).
        let result = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.epoll.as_raw_fd(),
                self.events.as_mut_ptr(),
                EVENTS as i32,
                time,
                std::ptr::null::<libc::sigset_t>(),
                0usize,
            )
        };
        check(result as libc::c_int)
    }

    fn wait_coarse(&mut self, timeout: Option<Duration>) -> io::Result<libc::c_int> {
        let millis = timeout.map_or(-1, |timeout| {
            i32::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX)
        });
        // SAFETY: `events` is valid for writes of EVENTS events.
        check(unsafe {
            libc::epoll_wait(
                self.epoll.as_raw_fd(),
                self.events.as_mut_ptr(),
                EVENTS as i32,
                millis,
            )
        })
    }

    /// The `index`-th ready source of the last wait.
    pub fn ready(&self, index: usize) -> Ready {
        let event = self.events[..self.ready][index];
        let bits = event.events as i32;
        let broken = bits & (libc::EPOLLERR | libc::EPOLLHUP) != 0;
        Ready {
            token: event.u64,
            read: broken || bits & (libc::EPOLLIN | libc::EPOLLRDHUP) != 0,
            write: bits & libc::EPOLLOUT != 0,
            ended: broken || bits & libc::EPOLLRDHUP != 0,
            broken,
        }
    }
}

fn timespec(duration: StdDuration) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(duration.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}

/// The result of a system call that reports failure as -1 and `errno`.
pub(crate) fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    match result {
        -1 => Err(io::Error::last_os_error()),
        result => Ok(result),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::Wake;

    #[test]
    fn a_wake_is_seen_once_and_a_wait_without_one_times_out() {
        let mut poller = Poller::new().expect("epoll");
        let wake = Wake::new().expect("eventfd");
        poller
            .add(wake.fd(), 7, Interest::Read)
            .expect("a fresh descriptor");
        assert_eq!(poller.wait(Some(Duration::ZERO)), 0);
        wake.wake();
        wake.wake();
        assert_eq!(poller.wait(None), 1);
        assert_eq!(poller.ready(0).token, 7);
        assert!(poller.ready(0).read && !poller.ready(0).broken);
        wake.clear();
        assert_eq!(poller.wait(Some(Duration::from_micros(50))), 0);
    }
}

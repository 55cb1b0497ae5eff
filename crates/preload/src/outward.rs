//! External synchrony (`switchyard run --sync external`): a sync returns before its write is durable, and nothing that the program
//! does afterwards is seen by anybody else before it is (Nightingale et al., "Rethink the Sync", OSDI 2006). docs/external.md
//! says what counts as seen, and what does not.
//!
//! - What is sent to a connected stream socket is held, in order, and leaves when everything synced before it is durable.
//! - Every other call that somebody else may notice waits until everything is (*settles*): `passage` and the modules of files.
//! - A write to the area is made by the program's own thread when it would wait for something anyway and nothing else comes in
//!   meanwhile, as measured (the program is *alone*), and by a thread of ours otherwise (*eager*), which sends what was held, too.
//! - That thread looks once in a millisecond for what nobody came for.
//!
//! A write to the area that fails ends the process: its syncs were told to be durable, and nothing that depends on them has left.

use crate::{IS_INSIDE, inside, is_passive, present, real, set_errno};
use libc::{c_int, c_void, ssize_t};
use runtime::area::Ticket;
use runtime::files::{FileId, Hold, Journal, Outbox};
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, Ordering, fence};
use std::sync::{Condvar, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Something that was synced may not be durable yet, or something is held: calls that others notice have to settle. Read by
/// `passage`, without a lock.
pub(crate) static UNSETTLED: AtomicU8 = AtomicU8::new(0);
/// The mode is on: the area is open, and slow.
static IS_ON: AtomicBool = AtomicBool::new(false);
/// Memory is shared with others, or something else is done that cannot be held: syncs wait again, for good.
static IS_SHARED: AtomicBool = AtomicBool::new(false);
/// Threads that are about to fork.
static FORKING: AtomicU32 = AtomicU32::new(0);
/// Our thread writes at once.
static IS_EAGER: AtomicBool = AtomicBool::new(false);
/// Waits in a row during which nothing came in.
static LONELY: AtomicU32 = AtomicU32::new(0);
/// So many make a program be alone.
const LONELY_MIN: u32 = 4;

static OUTBOX: LazyLock<Outbox> = LazyLock::new(Outbox::default);
static HELPER: Helper = Helper::new();

/// How long our thread lets a program come by itself.
const TICK: Duration = Duration::from_millis(1);
/// Ticks without anything to do after which it sleeps.
const IDLE_TICKS: u32 = 32;
/// The process's exit code after a write that failed.
const FAILED: c_int = 1;

/// What is known of a descriptor.
static KINDS: [AtomicU8; crate::DESCRIPTORS_MAX] = [const { AtomicU8::new(0) }; crate::DESCRIPTORS_MAX];
const STREAM: u8 = 1;
const OTHER: u8 = 2;
/// An epoll that has our event.
const WATCHED: u8 = 3;

/// By which our thread wakes those who wait for events.
static EVENT: AtomicI32 = AtomicI32::new(-1);
/// Of these so many.
static SLEEPERS: AtomicU32 = AtomicU32::new(0);

/// The area was opened.
pub(crate) fn begin(journal: &'static Journal) -> io::Result<()> {
    if cfg!(not(target_arch = "x86_64")) || !journal.is_slow() {
        return Ok(());
    }
    // SAFETY: no memory is involved.
    let event = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if event < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is ours; those of programs are lower.
    let high = unsafe { real::fcntl(event, libc::F_DUPFD_CLOEXEC, 512) };
    EVENT.store(if high < 0 { event } else { high }, Ordering::Relaxed);
    if high >= 0 {
        // SAFETY: ours alone.
        unsafe { real::close(event) };
    }
    let run = move || HELPER.run(journal);
    std::thread::Builder::new().name("outward".into()).spawn(run)?;
    IS_ON.store(true, Ordering::Release);
    Ok(())
}

/// Something is done from now on that cannot be held.
pub(crate) fn give_up() {
    IS_SHARED.store(true, Ordering::SeqCst);
    settle();
}

pub(crate) extern "C" fn before_fork() {
    FORKING.fetch_add(1, Ordering::SeqCst);
    settle();
}

pub(crate) extern "C" fn after_fork() {
    FORKING.fetch_sub(1, Ordering::SeqCst);
}

/// In a child, which follows nothing and holds nothing.
pub(crate) fn forget() {
    IS_ON.store(false, Ordering::Relaxed);
    UNSETTLED.store(0, Ordering::Relaxed);
}

pub(crate) fn is_unsettled() -> bool {
    UNSETTLED.load(Ordering::Relaxed) != 0
}

/// Syncs a file: on return it is durable, or nobody learns of it before it is.
pub(crate) fn sync(journal: &'static Journal, file: FileId) -> io::Result<()> {
    let waits = !IS_ON.load(Ordering::Acquire)
        || IS_SHARED.load(Ordering::SeqCst)
        || FORKING.load(Ordering::SeqCst) > 0;
    if waits {
        return journal.sync(file);
    }
    let Some(ticket) = journal.sync_later(file)? else {
        return Ok(());
    };
    OUTBOX.synced(ticket, || UNSETTLED.store(1, Ordering::Release));
    HELPER.call(false);
    Ok(())
}

/// No sync that was told as done may be lost: nothing held leaves.
fn fatal(error: &io::Error) -> ! {
    eprintln!(
        "switchyard run: the area cannot be written ({error}) after a sync was answered; the program is ended, and nothing \
         that depended on it has been sent"
    );
    // SAFETY: it ends the process.
    unsafe { libc::syscall(libc::SYS_exit_group, FAILED) };
    unreachable!("the process has ended")
}

/// Waits until `ticket` is durable.
fn advance(journal: &Journal, ticket: Ticket) {
    if journal.durable() < ticket
        && let Err(error) = journal.await_durable(ticket)
    {
        fatal(&error);
    }
}

fn flush(journal: &Journal) {
    OUTBOX.flush(
        || journal.durable(),
        deliver,
        || UNSETTLED.store(0, Ordering::Release),
    );
}

/// Waits until everything that was synced is durable, and what was held is sent.
pub(crate) fn settle() {
    if !is_unsettled() || IS_INSIDE.get() {
        return;
    }
    if let Some(journal) = present() {
        // Some of those who settle tell of the last error.
        // SAFETY: this thread's own place.
        let error = unsafe { *libc::__errno_location() };
        inside(|| {
            let ticket = OUTBOX.newest();
            advance(journal, ticket);
            flush(journal);
            OUTBOX.await_sent(ticket);
        });
        set_errno(error);
    }
}

/// This thread is about to wait for something: if the program is alone, its own write is made first.
pub(crate) fn before_wait() {
    if !IS_EAGER.load(Ordering::Relaxed) {
        settle();
    }
}

/// How to wait so that our thread can wake: whether it can, and waiting, which calls what it is given when it was woken.
type Sleep<'a> = (&'a dyn Fn() -> bool, &'a dyn Fn(&dyn Fn()) -> c_int);

/// Waits for events by `wait`, which is told a timeout in ms, or to use the caller's own; by `sleep`, if there is a way, when our
/// thread is at the device, so that this one sends what that frees.
pub(crate) fn wait_for_events(
    is_poll: bool,
    wait: impl Fn(Option<c_int>) -> c_int,
    sleep: Option<Sleep<'_>>,
) -> c_int {
    let Some(journal) = present().filter(|_| is_unsettled()) else {
        return wait(None);
    };
    if !IS_INSIDE.get() && !IS_EAGER.load(Ordering::Relaxed) {
        inside(|| advance(journal, OUTBOX.newest()));
        // Before what was held is sent: afterwards its answers come in.
        let count = if is_poll { 0 } else { wait(Some(0)) };
        settle();
        if count != 0 {
            // Something came in while this thread was at the device.
            IS_EAGER.store(count > 0, Ordering::Relaxed);
            return count;
        }
        return wait(None);
    }
    let send = || inside(|| flush(journal));
    send();
    if is_poll || !is_unsettled() {
        return wait(None);
    }
    let count = wait(Some(0));
    if count != 0 {
        // While there is something to do, what our thread is about to write gets larger.
        HELPER.begin();
        return count;
    }
    HELPER.call(true);
    let ticket = inside(|| OUTBOX.newest());
    let was_durable = journal.durable() >= ticket;
    let count = match sleep.filter(|(is_watched, _)| inside(is_watched)) {
        None => wait(None),
        Some((_, sleep)) => {
            SLEEPERS.fetch_add(1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            if inside(|| OUTBOX.is_due(journal.durable())) {
                send();
            }
            let count = sleep(&send);
            SLEEPERS.fetch_sub(1, Ordering::SeqCst);
            count
        }
    };
    if count > 0 && !was_durable {
        if journal.durable() < ticket {
            LONELY.store(0, Ordering::Relaxed);
        } else if LONELY.fetch_add(1, Ordering::Relaxed) + 1 >= LONELY_MIN {
            LONELY.store(0, Ordering::Relaxed);
            IS_EAGER.store(false, Ordering::Relaxed);
        }
    }
    count
}

/// Sees to it that our thread can wake whoever waits at this epoll: one more descriptor in it, whose events
/// [`without_ours`] takes out.
pub(crate) fn watch(epoll: c_int) -> bool {
    let Some(known) = usize::try_from(epoll).ok().and_then(|fd| KINDS.get(fd)) else {
        return false;
    };
    if known.load(Ordering::Relaxed) == WATCHED {
        return true;
    }
    // By edges, so that nobody has to read it.
    let mut event = libc::epoll_event {
        events: (libc::EPOLLIN | libc::EPOLLET) as u32,
        u64: ours(),
    };
    let own = EVENT.load(Ordering::Relaxed);
    // SAFETY: the event lives through the call.
    let result = unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, own, &mut event) };
    if result == 0 {
        known.store(WATCHED, Ordering::Relaxed);
    }
    result == 0
}

pub(crate) fn is_watched(epoll: c_int) -> bool {
    let known = usize::try_from(epoll).ok().and_then(|fd| KINDS.get(fd));
    known.is_some_and(|known| known.load(Ordering::Relaxed) == WATCHED)
}

/// What our event is called: no program has anything at this address.
fn ours() -> u64 {
    (&raw const EVENT) as u64
}

/// Takes our events out; how many are left.
pub(crate) fn without_ours(events: &mut [libc::epoll_event]) -> usize {
    let mut kept = 0;
    for index in 0..events.len() {
        if events[index].u64 != ours() {
            events[kept] = events[index];
            kept += 1;
        }
    }
    kept
}

/// Sends `parts` to a descriptor by `make`, or holds them.
pub(crate) fn send(fd: c_int, parts: &[&[u8]], make: impl FnOnce() -> ssize_t) -> ssize_t {
    let Some(journal) = present().filter(|_| is_unsettled()) else {
        return make();
    };
    if kind(fd) != STREAM {
        settle();
        return make();
    }
    let hold = || inside(|| OUTBOX.hold(fd, parts, || journal.durable()));
    let mut held = hold();
    while held == Hold::Crowded {
        settle();
        held = hold();
    }
    match held {
        Hold::Held => parts.iter().map(|part| part.len() as ssize_t).sum(),
        Hold::Free | Hold::Crowded => make(),
        Hold::Full if is_drained(fd) => make(),
        Hold::Full => {
            set_errno(libc::EAGAIN);
            -1
        }
    }
}

/// What waits aside for a full descriptor is sent, if it can be; a blocking one is waited for.
fn is_drained(fd: c_int) -> bool {
    // SAFETY: no memory is involved.
    let flags = unsafe { real::fcntl(fd, libc::F_GETFL, 0) };
    let is_blocking = flags >= 0 && flags & libc::O_NONBLOCK == 0;
    inside(|| {
        loop {
            OUTBOX.retry(deliver, |_| {});
            if !OUTBOX.is_full(fd) {
                return true;
            }
            if !is_blocking {
                return false;
            }
            let mut one = libc::pollfd {
                fd,
                events: libc::POLLOUT,
                revents: 0,
            };
            // SAFETY: one descriptor.
            unsafe { real::poll(&mut one, 1, -1) };
        }
    })
}

/// Sends without waiting, and without a signal.
fn deliver(fd: RawFd, data: &[u8]) -> io::Result<usize> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    loop {
        // SAFETY: the bytes live through the call.
        let count = unsafe { real::send(fd, data.as_ptr().cast::<c_void>(), data.len(), flags) };
        if count >= 0 {
            return Ok(count as usize);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Whether what is sent to it can be held: a connected stream socket.
fn kind(fd: c_int) -> u8 {
    let Some(known) = usize::try_from(fd).ok().and_then(|fd| KINDS.get(fd)) else {
        return OTHER;
    };
    let value = known.load(Ordering::Relaxed);
    if value != 0 {
        return value;
    }
    let mut address = [0_u64; 16];
    let mut length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the place is as long as it is said to be.
    let is_connected = unsafe { libc::getpeername(fd, address.as_mut_ptr().cast(), &mut length) } == 0;
    let is_stream = option(fd, libc::SO_TYPE) == Some(libc::SOCK_STREAM)
        && matches!(
            option(fd, libc::SO_DOMAIN),
            Some(libc::AF_INET | libc::AF_INET6 | libc::AF_UNIX)
        );
    if is_stream && !is_connected {
        return OTHER;
    }
    let value = if is_stream { STREAM } else { OTHER };
    known.store(value, Ordering::Relaxed);
    value
}

fn option(fd: c_int, name: c_int) -> Option<c_int> {
    let mut value = 0;
    let mut length = size_of::<c_int>() as libc::socklen_t;
    let at = (&raw mut value).cast::<c_void>();
    // SAFETY: the place is as long as it is said to be.
    let result = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, name, at, &mut length) };
    (result == 0).then_some(value)
}

/// The descriptor has a copy: what is sent to both has one order only if none is held. An epoll's copy is the same epoll.
pub(crate) fn copied(of: c_int, copy: c_int) {
    let kind = if is_watched(of) { WATCHED } else { OTHER };
    for fd in [of, copy] {
        if let Some(known) = usize::try_from(fd).ok().and_then(|fd| KINDS.get(fd)) {
            known.store(kind, Ordering::Relaxed);
        }
    }
}

/// A descriptor is about to be closed, or taken by another file.
pub(crate) fn closes(fd: c_int) {
    settle();
    if let Some(known) = usize::try_from(fd).ok().and_then(|fd| KINDS.get(fd)) {
        known.store(0, Ordering::Relaxed);
    }
    if is_unsettled() && !is_passive() && inside(|| OUTBOX.is_full(fd)) {
        // As a socket's buffer, it outlives the descriptor.
        // SAFETY: no memory is involved.
        let own = unsafe { real::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
        if own >= 0 {
            ORPHANS.lock().unwrap_or_else(PoisonError::into_inner).push(own);
            inside(|| OUTBOX.rename(fd, own));
        }
    }
}

/// Descriptors that the program has closed, and that are full.
static ORPHANS: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());

/// Our thread.
struct Helper {
    state: Mutex<HelperState>,
    bell: Condvar,
    /// Its state, for callers that need not wake it.
    activity: AtomicU8,
}

struct HelperState {
    is_called: bool,
}

const ASLEEP: u8 = 0;
const TICKING: u8 = 1;
const BUSY: u8 = 2;

impl Helper {
    const fn new() -> Self {
        Self {
            state: Mutex::new(HelperState { is_called: false }),
            bell: Condvar::new(),
            activity: AtomicU8::new(ASLEEP),
        }
    }

    /// There is something synced that is not durable: to be written now, if `is_urgent`.
    fn call(&self, is_urgent: bool) {
        match self.activity.load(Ordering::SeqCst) {
            TICKING if !is_urgent => return,
            _ => {}
        }
        inside(|| {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.is_called |= is_urgent;
            self.bell.notify_one();
        });
    }

    /// As [`Helper::call`], unless it is at work and looks for more by itself.
    fn begin(&self) {
        if self.activity.load(Ordering::SeqCst) != BUSY {
            self.call(true);
        }
    }

    /// Lets what is about to be written grow, until the program waits, or for as long as a write takes.
    fn hold(&self, time: Duration) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !state.is_called {
            let woken = self.bell.wait_timeout(state, time.min(TICK));
            woken.unwrap_or_else(PoisonError::into_inner).0.is_called = false;
        }
    }

    fn run(&self, journal: &'static Journal) -> ! {
        IS_INSIDE.set(true);
        let mut idle = 0;
        let mut before = Ticket::default();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if !state.is_called {
                if idle < IDLE_TICKS {
                    self.activity.store(TICKING, Ordering::SeqCst);
                    let woken = self.bell.wait_timeout(state, TICK);
                    state = woken.unwrap_or_else(PoisonError::into_inner).0;
                } else {
                    self.activity.store(ASLEEP, Ordering::SeqCst);
                    state = self.bell.wait(state).unwrap_or_else(PoisonError::into_inner);
                    idle = 0;
                    before = OUTBOX.newest();
                    continue;
                }
            }
            let is_called = std::mem::take(&mut state.is_called);
            self.activity.store(BUSY, Ordering::SeqCst);
            drop(state);
            idle = if is_unsettled() { 0 } else { idle + 1 };
            if is_called {
                work(journal);
            } else if is_unsettled() {
                if journal.durable() < before {
                    // Nobody came for it.
                    IS_EAGER.store(true, Ordering::Relaxed);
                    work(journal);
                }
                retry();
                flush(journal);
            }
            before = OUTBOX.newest();
            state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Writes until there is nothing new. The program's threads send what that frees, unless none comes.
fn work(journal: &Journal) {
    loop {
        let ticket = OUTBOX.newest();
        let is_left = OUTBOX.is_due(journal.durable());
        let began = Instant::now();
        advance(journal, ticket);
        let took = began.elapsed();
        fence(Ordering::SeqCst);
        if SLEEPERS.load(Ordering::SeqCst) > 0 {
            let one = 1_u64;
            // SAFETY: eight bytes, as it takes them.
            unsafe { real::write(EVENT.load(Ordering::Relaxed), (&raw const one).cast(), 8) };
            if is_left {
                flush(journal);
            }
        } else if is_left || OUTBOX.newest() == ticket {
            flush(journal);
        }
        if OUTBOX.newest() == ticket {
            return;
        }
        if SLEEPERS.load(Ordering::SeqCst) == 0 {
            HELPER.hold(took);
        }
    }
}

fn retry() {
    let done = |fd| {
        let mut orphans = ORPHANS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = orphans.iter().position(|&orphan| orphan == fd) {
            orphans.swap_remove(index);
            // SAFETY: ours alone.
            unsafe { real::close(fd) };
        }
    };
    OUTBOX.retry(deliver, done);
}

//! Sockets that come, get an address, and connect or listen.

use super::address::{self, Family};
use super::beds::On;
use super::file::{File, Kind, code_of};
use super::rest::{NO_FDS, Rest, SPARE, Wish, rest, until};
use super::settings::{Settings, settings};
use super::stack::{Net, with};
use super::{inherit, keeper, known, names};
use crate::signals::Ran;
use crate::state::set_errno;
use crate::{real, tell};
use base::Duration;
use libc::{c_int, c_void, sockaddr, socklen_t};
use sockets::SocketError;
use std::{io, mem, ptr};
use tcp::addr::{Endpoint, Ip, Tuple};

/// Ports of sockets that are bound to the program's address without one: Linux' own range.
const PORTS: (u16, u16) = (32768, 49151);

/// Connections that may wait for a program to accept them. Linux lets peers of a full listener try again, and the stack resets them: so a short queue is made
/// longer. The longest one is Linux' own (`net.core.somaxconn`).
const BACKLOG_MIN: u32 = 128;
const BACKLOG_MAX: u32 = 4096;

/// The result for the program.
pub(crate) fn answer(result: Result<c_int, c_int>) -> c_int {
    result.unwrap_or_else(|code| {
        set_errno(code);
        -1
    })
}

pub(crate) fn last_code() -> c_int {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// The program has a new socket of the kernel's, which may be served one day.
pub(crate) fn opened(fd: c_int, domain: c_int, kind: c_int, protocol: c_int) {
    let is_stream = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) == libc::SOCK_STREAM;
    let is_tcp = is_stream && matches!(protocol, 0 | libc::IPPROTO_TCP);
    let (Some(family), false) = (Family::of(domain), fd < 0 || !known::is_here()) else {
        return;
    };
    if is_tcp && settings().is_some() {
        with(|net| {
            // The kernel has sockets beyond the most.
            if let Some(file) = net.files.add(File::new(family, kind & libc::SOCK_NONBLOCK != 0)) {
                join(net, fd, file);
            }
        });
    }
}

/// A descriptor is one more of a file.
fn join(net: &mut Net, fd: c_int, number: u32) {
    let is_noted = known::note_file(fd, number);
    let file = net.files.get_mut(&number).expect("it was looked up");
    file.numbers += u32::from(is_noted);
    if file.numbers == 0 {
        net.end(number);
    }
}

/// The kernel has a socket alone from now on.
pub(crate) fn forget(net: &mut Net, number: u32) {
    for (fd, _) in known::all().filter(|(_, other)| *other == number) {
        known::forget(fd);
    }
    net.end(number);
}

/// Sets of the kernel's lose a socket that it does not serve any more.
fn leave_kernels_sets(net: &mut Net, number: u32) {
    let Some(file) = net.files.get(&number) else {
        return;
    };
    for (set, fd) in &file.watchers {
        let is_there = net.sets.get_mut(set).is_some_and(|set| set.leave_kernel(*fd));
        if is_there {
            // SAFETY: no memory is involved. If it is not there, so be it.
            unsafe { real::epoll_ctl(*set, libc::EPOLL_CTL_DEL, *fd, ptr::null_mut()) };
        }
    }
}

/// The kernel's name of a socket.
fn kernels_name(fd: c_int, family: Family) -> Option<Endpoint> {
    // SAFETY: the places are there during the calls.
    unsafe {
        let mut room: libc::sockaddr_storage = mem::zeroed();
        let mut bytes = size_of_val(&room) as socklen_t;
        let place = (&raw mut room).cast::<sockaddr>();
        match real::getsockname(fd, place, &mut bytes) {
            0 => address::read(family, place, bytes),
            _ => None,
        }
    }
}

/// bind(2). None if the kernel is to make the call.
pub(crate) unsafe fn bind(fd: c_int, address: *const sockaddr, bytes: socklen_t) -> Option<c_int> {
    let number = inherit::file(fd)?;
    let settings = settings()?;
    with(|net| {
        let file = net.files.get(&number)?;
        // SAFETY: the caller's arguments.
        let mut local = unsafe { address::read(file.family, address, bytes) }?;
        match file.kind {
            Kind::Fresh if local.ip == settings.ip => {}
            Kind::Fresh => return None,
            _ => return Some(answer(Err(libc::EINVAL))),
        }
        match net.attach(settings) {
            Ok(()) => {}
            Err(code) if net.is_lost() => return Some(answer(Err(code))),
            // The kernel may have the address.
            Err(_) => return None,
        }
        let is_taken = |net: &Net, local: Endpoint| {
            net.files.iter().any(|(_, file)| match file.kind {
                Kind::Bound(other) => other == local,
                Kind::Listener { local: other, .. } => {
                    other.port == local.port && (other.ip == Ip::ANY || other.ip == local.ip)
                }
                _ => false,
            })
        };
        if local.port == 0 {
            let first = PORTS.0 + (os::seed() % u64::from(PORTS.1 - PORTS.0)) as u16;
            let mut all = (first..=PORTS.1).chain(PORTS.0..first);
            let free = all.find(|port| !is_taken(net, Endpoint { port: *port, ..local }));
            local.port = match free {
                Some(port) => port,
                None => return Some(answer(Err(libc::EADDRINUSE))),
            };
        } else if is_taken(net, local) {
            return Some(answer(Err(libc::EADDRINUSE)));
        }
        leave_kernels_sets(net, number);
        net.files.get_mut(&number)?.kind = Kind::Bound(local);
        Some(0)
    })
}

/// listen(2).
pub(crate) fn listen(fd: c_int, backlog: c_int) -> Option<c_int> {
    let number = inherit::file(fd)?;
    let settings = settings()?;
    with(|net| {
        let file = net.files.get(&number)?;
        let family = file.family;
        match file.kind {
            Kind::Bound(local) => Some(answer(begin_listening(net, number, (local, false), backlog))),
            // SAFETY: no memory is involved.
            Kind::Listener { is_dual: true, .. } => Some(unsafe { real::listen(fd, backlog) }),
            Kind::Listener { .. } => Some(0),
            Kind::Stream { .. } | Kind::Lost | Kind::Inherited => Some(answer(Err(libc::EINVAL))),
            Kind::Fresh => {
                // SAFETY: no memory is involved.
                let result = unsafe { real::listen(fd, backlog) };
                let name = (result == 0).then(|| kernels_name(fd, family)).flatten();
                if let Some(local) = name.filter(|name| is_served(fd, family, *name)) {
                    serve_too(net, settings, (fd, number), local, backlog);
                } else if result == 0 {
                    forget(net, number);
                }
                Some(result)
            }
        }
    })
}

/// Whether a listener of the kernel's is one at all addresses, those of the hub's network included.
fn is_served(fd: c_int, family: Family, local: Endpoint) -> bool {
    if local.ip != Ip::ANY {
        return false;
    }
    let (mut is_only, mut bytes) = (0, size_of::<c_int>() as socklen_t);
    if family == Family::V6 {
        let place = (&raw mut is_only).cast::<c_void>();
        // SAFETY: the places are there during the call.
        unsafe { real::getsockopt(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, place, &mut bytes) };
    }
    is_only == 0
}

/// The kernel listens at all of its addresses: the stack does at that of the hub's network.
fn serve_too(
    net: &mut Net,
    settings: &Settings,
    (fd, number): (c_int, u32),
    local: Endpoint,
    backlog: c_int,
) {
    let begun = net
        .attach(settings)
        .map_err(|_| None)
        .and_then(|()| begin_listening(net, number, (local, true), backlog).map_err(Some));
    if let Err(code) = begun {
        forget(net, number);
        if let Some(code) = code {
            let why = io::Error::from_raw_os_error(code);
            tell::tell!(
                "switchyard run: port {}: {why}: the kernel alone listens",
                local.port
            );
        }
        return;
    }
    // Both are asked for connections, and neither may wait.
    // SAFETY: no memory is involved.
    unsafe {
        let flags = real::fcntl(fd, libc::F_GETFL, 0);
        real::fcntl(fd, libc::F_SETFL, (flags | libc::O_NONBLOCK) as libc::c_ulong);
    }
}

fn begin_listening(
    net: &mut Net,
    number: u32,
    (local, is_dual): (Endpoint, bool),
    backlog: c_int,
) -> Result<c_int, c_int> {
    keeper::start(net).map_err(|error| error.raw_os_error().unwrap_or(libc::EAGAIN))?;
    if !net.is_up() {
        return Err(libc::ENETDOWN);
    }
    let backlog = u32::try_from(backlog)
        .unwrap_or(0)
        .clamp(BACKLOG_MIN, BACKLOG_MAX);
    let handle = net.sockets().listen(local, backlog).map_err(code_of)?;
    net.bind(handle, number);
    let file = net.files.get_mut(&number).expect("it was looked up");
    file.kind = Kind::Listener {
        handle,
        local,
        is_dual,
    };
    Ok(0)
}

/// How a step of a call ended.
enum Step<R> {
    Done(R),
    Wait,
}

/// The outcome of a look at a listener, the limit of time of whoever waits, and whether the kernel listens, too.
type Visit = (Step<Result<c_int, c_int>>, Option<Duration>, bool);

/// accept(2), accept4(2).
pub(crate) unsafe fn accept(
    fd: c_int,
    address: *mut sockaddr,
    bytes: *mut socklen_t,
    flags: c_int,
) -> Option<c_int> {
    let number = inherit::file(fd)?;
    let mut fds = [NO_FDS[0]; 1 + SPARE];
    let mut end = None;
    loop {
        // SAFETY: the caller's arguments.
        let visit = with(|net| unsafe { visit(net, (fd, number), (address, bytes), flags) });
        let (step, limit, is_dual) = visit?;
        if let Step::Done(result) = step {
            return Some(answer(result));
        }
        let end = *end.get_or_insert_with(|| until(limit));
        fds[0] = libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        let wish = Wish {
            on: On::File(number),
            until: end,
            fds: fds.as_mut_ptr(),
            count: usize::from(is_dual),
            mask: ptr::null(),
        };
        let is_ready = |net: &mut Net| net.events(number) != 0 || !net.files.contains_key(&number);
        if let Some(code) = ended(rest(&wish, is_ready), limit) {
            return Some(answer(Err(code)));
        }
    }
}

/// Takes a listener's next connection, if there is one. None if the kernel has the listener.
unsafe fn visit(
    net: &mut Net,
    (fd, number): (c_int, u32),
    (address, bytes): (*mut sockaddr, *mut socklen_t),
    flags: c_int,
) -> Option<Visit> {
    let file = net.files.get(&number)?;
    let (limit, is_nonblocking) = (file.receive_limit, file.is_nonblocking);
    let done = |result| Some((Step::Done(result), limit, false));
    let (handle, is_dual) = match file.kind {
        Kind::Listener { handle, is_dual, .. } => (handle, is_dual),
        Kind::Fresh => return None,
        Kind::Lost => return done(Err(libc::ENETDOWN)),
        _ => return done(Err(libc::EINVAL)),
    };
    if net.bridges.contains_key(&number) {
        return None;
    }
    let is_waiting =
        |net: &mut Net| net.is_up() && net.sockets().readiness(handle).is_ok_and(|it| it.readable);
    if !is_waiting(net) {
        net.carry();
    }
    if is_waiting(net) {
        // SAFETY: the caller's arguments.
        return done(unsafe { take(net, number, (address, bytes), flags) });
    }
    if is_dual {
        // SAFETY: the caller's arguments. The kernel's listener does not wait.
        let found = unsafe { real::accept4(fd, address, bytes, flags) };
        if found >= 0 || last_code() != libc::EAGAIN {
            return done(if found >= 0 { Ok(found) } else { Err(last_code()) });
        }
    } else if !net.is_up() {
        return done(Err(libc::ENETDOWN));
    }
    let step = match is_nonblocking {
        true => Step::Done(Err(libc::EAGAIN)),
        false => Step::Wait,
    };
    Some((step, limit, is_dual))
}

/// The kernel's accept4(2). A socket that stands for a served one shows the address of that.
pub(crate) unsafe fn accept_by_kernel(
    fd: c_int,
    address: *mut sockaddr,
    bytes: *mut socklen_t,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe {
        let room = bytes.as_ref().copied().unwrap_or(0);
        let made = real::accept4(fd, address, bytes, flags);
        if made >= 0 {
            names::show(made, true, address, bytes, room);
        }
        made
    }
}

/// The error of a call that has waited in vain, if it does not go on.
pub(crate) fn ended(rest: Rest, limit: Option<Duration>) -> Option<c_int> {
    match rest {
        Rest::Again | Rest::Awake => None,
        Rest::Late => Some(libc::EAGAIN),
        Rest::Interrupted(Ran::Ending) => Some(libc::EINTR),
        // With a limit of time none begins anew (signal(7)).
        Rest::Interrupted(_) => limit.map(|_| libc::EINTR),
        Rest::Failed(code) => Some(code),
    }
}

/// Gives a listener's next connection a descriptor of the kernel's, which is a socket that is not connected: whatever is not served fails there.
unsafe fn take(
    net: &mut Net,
    number: u32,
    (address, bytes): (*mut sockaddr, *mut socklen_t),
    flags: c_int,
) -> Result<c_int, c_int> {
    let listener = net.files[&number].clone();
    let Kind::Listener { handle, .. } = listener.kind else {
        return Err(libc::EINVAL);
    };
    if flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != 0 {
        return Err(libc::EINVAL);
    }
    // SAFETY: no memory is involved.
    let fd = unsafe { real::socket(listener.family.domain(), libc::SOCK_STREAM | flags, 0) };
    if fd < 0 {
        return Err(last_code());
    }
    let refuse = |code| {
        // SAFETY: just made, and not given out.
        unsafe { real::close(fd) };
        Err(code)
    };
    let stream = match net.sockets().accept(handle) {
        Ok(stream) => stream,
        Err(error) => return refuse(code_of(error)),
    };
    let tuple = net.sockets().tuple(stream).ok().flatten().unwrap_or_default();
    let kind = Kind::Stream {
        handle: stream,
        tuple,
    };
    let Some(file) = net
        .files
        .add(listener.accepted(kind, flags & libc::SOCK_NONBLOCK != 0))
    else {
        let _ = net.sockets().abort(stream);
        return refuse(libc::ENFILE);
    };
    net.bind(stream, file);
    net.settle(file);
    join(net, fd, file);
    if !net.files.contains_key(&file) {
        return refuse(libc::EMFILE);
    }
    // SAFETY: the caller's arguments.
    unsafe { address::write(listener.family, tuple.remote, address, bytes) };
    Ok(fd)
}

/// connect(2).
pub(crate) unsafe fn connect(fd: c_int, address: *const sockaddr, bytes: socklen_t) -> Option<c_int> {
    let number = inherit::file(fd)?;
    let settings = settings()?;
    let begun = with(|net| {
        let file = net.files.get(&number)?;
        let family = file.family;
        // SAFETY: the caller's arguments.
        let remote = unsafe { address::read(family, address, bytes) };
        match file.kind {
            Kind::Fresh => {
                let remote = remote.filter(|it| settings.is_near(it.ip) && it.port != 0);
                match remote {
                    Some(remote) if remote.ip == settings.ip => {
                        Some(Err(to_itself(net, (fd, number), remote)))
                    }
                    Some(remote) => Some(begin_connecting(net, settings, (fd, number), remote)),
                    None => {
                        forget(net, number);
                        None
                    }
                }
            }
            Kind::Bound(_) => match remote.filter(|it| settings.is_near(it.ip) && it.port != 0) {
                Some(remote) => Some(begin_connecting(net, settings, (fd, number), remote)),
                None => Some(Err(answer(Err(libc::ENETUNREACH)))),
            },
            Kind::Stream { handle, .. } => Some(match net.sockets().is_connecting(handle) {
                Ok(true) => Err(answer(Err(libc::EALREADY))),
                _ => match net.take_failure(number) {
                    Some(code) => {
                        reset(net, number);
                        Err(answer(Err(code)))
                    }
                    None => Err(answer(told(net, number))),
                },
            }),
            Kind::Listener { .. } => Some(Err(answer(Err(libc::EISCONN)))),
            Kind::Lost | Kind::Inherited => Some(Err(answer(Err(libc::ENETDOWN)))),
        }
    })?;
    match begun {
        Err(result) => Some(result),
        Ok(false) => Some(answer(Err(libc::EINPROGRESS))),
        Ok(true) => Some(answer(await_connected(number))),
    }
}

/// connect(2) says once that a connection is there.
fn told(net: &mut Net, number: u32) -> Result<c_int, c_int> {
    let file = net.files.get_mut(&number).ok_or(libc::EBADF)?;
    match mem::replace(&mut file.is_connect_told, true) {
        false => Ok(0),
        true => Err(libc::EISCONN),
    }
}

/// A socket whose connection is not to be may try another one.
fn reset(net: &mut Net, number: u32) {
    let Some(file) = net.files.get_mut(&number) else {
        return;
    };
    if let Some(handle) = file.handle() {
        (file.kind, file.is_told, file.is_settled) = (Kind::Fresh, false, false);
        let _ = net.sockets().close(handle);
    }
}

/// The program's own address, which the kernel lacks: a listener of the program at all addresses is the kernel's, too.
fn to_itself(net: &mut Net, (fd, number): (c_int, u32), remote: Endpoint) -> c_int {
    let family = net.files[&number].family;
    forget(net, number);
    let ip = match family {
        Family::V4 => Ip::v4([127, 0, 0, 1]),
        Family::V6 => Ip::v6(std::net::Ipv6Addr::LOCALHOST.octets()),
    };
    // SAFETY: the places are there during the calls.
    unsafe {
        let mut room: libc::sockaddr_storage = mem::zeroed();
        let mut bytes = size_of_val(&room) as socklen_t;
        let place = (&raw mut room).cast::<sockaddr>();
        address::write(family, Endpoint { ip, ..remote }, place, &mut bytes);
        real::connect(fd, place, bytes)
    }
}

/// Begins to connect. Whether to wait for the end; or the result for the program.
fn begin_connecting(
    net: &mut Net,
    settings: &Settings,
    (fd, number): (c_int, u32),
    remote: Endpoint,
) -> Result<bool, c_int> {
    if let Err(code) = net.attach(settings) {
        if net.is_lost() {
            return Err(answer(Err(code)));
        }
        forget(net, number);
        // The kernel may know a way, too: the caller asks it.
        return Err(by_kernel(fd, remote));
    }
    keeper::start(net).map_err(|error| answer(Err(error.raw_os_error().unwrap_or(libc::EAGAIN))))?;
    let file = &net.files[&number];
    let (is_nonblocking, family) = (file.is_nonblocking, file.family);
    let local = match file.kind {
        Kind::Bound(local) => local,
        _ => kernels_name(fd, family).unwrap_or_default(),
    };
    leave_kernels_sets(net, number);
    let begun = net.sockets().connect_from(remote, local.port);
    let handle = begun.map_err(|error| match error {
        SocketError::Address => answer(Err(libc::EADDRNOTAVAIL)),
        error => answer(Err(code_of(error))),
    })?;
    net.bind(handle, number);
    let own = Endpoint {
        ip: settings.ip,
        port: local.port,
    };
    let tuple = Tuple { local: own, remote };
    let file = net.files.get_mut(&number).expect("it was looked up");
    file.kind = Kind::Stream { handle, tuple };
    (file.is_told, file.is_settled, file.is_connect_told) = (false, false, false);
    net.push();
    Ok(!is_nonblocking)
}

fn by_kernel(fd: c_int, remote: Endpoint) -> c_int {
    let family = if remote.ip.is_v4() { Family::V4 } else { Family::V6 };
    // SAFETY: the places are there during the calls.
    unsafe {
        let mut room: libc::sockaddr_storage = mem::zeroed();
        let mut bytes = size_of_val(&room) as socklen_t;
        let place = (&raw mut room).cast::<sockaddr>();
        address::write(family, remote, place, &mut bytes);
        real::connect(fd, place, bytes)
    }
}

fn await_connected(number: u32) -> Result<c_int, c_int> {
    let mut fds = NO_FDS;
    let mut end = None;
    loop {
        let step = with(|net| {
            let Some(file) = net.files.get(&number) else {
                return (Step::Done(Err(libc::EBADF)), None);
            };
            let (kind, limit) = (file.kind, file.send_limit);
            let Kind::Stream { handle, .. } = kind else {
                return (Step::Done(Err(libc::EINVAL)), limit);
            };
            if let Some(code) = net.take_failure(number) {
                reset(net, number);
                return (Step::Done(Err(code)), limit);
            }
            let step = match net.sockets().is_connecting(handle) {
                Ok(true) => Step::Wait,
                _ => Step::Done(told(net, number)),
            };
            (step, limit)
        });
        let limit = match step {
            (Step::Done(result), _) => return result,
            (Step::Wait, limit) => limit,
        };
        let end = *end.get_or_insert_with(|| until(limit));
        match ended(
            rest(&Wish::of(number, end, &mut fds), |net| net.events(number) != 0),
            limit,
        ) {
            None => {}
            Some(libc::EAGAIN) => return Err(libc::EINPROGRESS),
            Some(code) => return Err(code),
        }
    }
}

/// shutdown(2).
pub(crate) fn shutdown(fd: c_int, how: c_int) -> Option<c_int> {
    let number = inherit::file(fd)?;
    with(|net| {
        let file = net.files.get_mut(&number)?;
        let handle = match file.kind {
            Kind::Fresh => return None,
            Kind::Stream { handle, .. } => handle,
            Kind::Listener { is_dual, .. } => {
                // Linux stops a listener so, and threads that wait for it get EINVAL.
                let kind = if is_dual { Kind::Fresh } else { Kind::Lost };
                let handle = file.handle();
                file.kind = kind;
                handle.map(|handle| net.sockets().close(handle));
                net.tell(number);
                return if is_dual { None } else { Some(0) };
            }
            Kind::Bound(_) | Kind::Lost | Kind::Inherited => return Some(answer(Err(libc::ENOTCONN))),
        };
        if !matches!(how, libc::SHUT_RD | libc::SHUT_WR | libc::SHUT_RDWR) {
            return Some(answer(Err(libc::EINVAL)));
        }
        file.is_deaf |= how != libc::SHUT_WR;
        let ends = how != libc::SHUT_RD && !mem::replace(&mut file.is_mute, true);
        if ends {
            let is_over = net.sockets().readiness(handle).is_ok_and(|ready| ready.is_over);
            if net.sockets().shutdown(handle).is_err() && !is_over {
                net.files.get_mut(&number)?.is_mute = false;
                return Some(answer(Err(libc::ENOTCONN)));
            }
            net.push();
        }
        net.tell(number);
        Some(0)
    })
}

/// The name of a socket, or of its peer.
pub(crate) unsafe fn name(
    fd: c_int,
    is_peer: bool,
    address: *mut sockaddr,
    bytes: *mut socklen_t,
) -> Option<c_int> {
    let number = inherit::file(fd)?;
    with(|net| {
        let file = net.files.get(&number)?;
        let family = file.family;
        let found = match file.kind {
            Kind::Fresh | Kind::Listener { is_dual: true, .. } => return None,
            Kind::Bound(local) | Kind::Listener { local, .. } => (!is_peer).then_some(local),
            Kind::Stream { tuple, handle } => match is_peer {
                false => Some(tuple.local),
                true => {
                    let is_connecting = net.sockets().is_connecting(handle) != Ok(false);
                    (!is_connecting && file_is_open(net, number)).then_some(tuple.remote)
                }
            },
            Kind::Lost | Kind::Inherited => None,
        };
        let Some(found) = found else {
            return Some(answer(Err(libc::ENOTCONN)));
        };
        // SAFETY: the caller's arguments.
        unsafe { address::write(family, found, address, bytes) };
        Some(0)
    })
}

/// Whether a connection was ever open, and was not reset.
fn file_is_open(net: &mut Net, number: u32) -> bool {
    let file = &net.files[&number];
    file.is_settled && !file.is_told
}

/// The program is about to close a descriptor.
pub(crate) fn closing(fd: c_int) {
    if !known::is_any(fd) {
        return;
    }
    let (is_set, file) = (known::is_set(fd), known::file(fd));
    with(|net| {
        known::forget(fd);
        if is_set {
            close_set(net, fd);
        }
        let Some(number) = file else {
            return;
        };
        net.release(number);
    });
}

fn close_set(net: &mut Net, fd: c_int) {
    let Some(set) = net.sets.remove(&fd) else {
        return;
    };
    for (_, interest) in set.all() {
        if let Some(file) = net.files.get_mut(&interest.file) {
            file.watchers.retain(|(set, _)| *set != fd);
        }
    }
}

/// The program is about to close all from `first` to `last`.
pub(crate) fn closing_range(first: libc::c_uint, last: libc::c_uint) {
    if settings().is_none() || !known::is_here() {
        return;
    }
    let is_in = |fd: &c_int| (first..=last).contains(&(*fd as libc::c_uint));
    let sets = with(|net| net.sets.keys().copied().filter(is_in).collect::<Vec<_>>());
    let files: Vec<_> = known::all().map(|(fd, _)| fd).filter(is_in).collect();
    sets.into_iter().chain(files).for_each(closing);
}

/// The program is about to make `to` one more descriptor of what `fd` is.
pub(crate) fn replacing(fd: c_int, to: c_int) {
    if to <= libc::STDERR_FILENO {
        // Streams use it unseen.
        let _ = inherit::leave(fd);
    }
    // SAFETY: no memory is involved.
    if known::is_any(to) && unsafe { real::fcntl(fd, libc::F_GETFD, 0) } >= 0 {
        closing(to);
    }
}

/// `made` is one more descriptor of what `fd` is.
pub(crate) fn copied(fd: c_int, made: c_int) {
    if let Some(number) = known::file(fd).filter(|_| made >= 0 && made != fd) {
        with(|net| {
            if net.files.contains_key(&number) {
                join(net, made, number);
            }
        });
    }
}

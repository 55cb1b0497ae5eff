//! Files that a forked child has from its parent, which has the stack. The child asks its parent for a file when it first uses it, and gets the end of a bridge:
//! so a child that uses none costs nothing. The parent keeps a file that it has closed for as long as a child may use it.

use super::bridge::{CLOSED, WANTED, code, message};
use super::file::{File, Kind};
use super::stack::{Child, Net, with};
use super::{known, settings};
use crate::{real, tell};
use area::own;
use libc::{c_int, epoll_event};
use os::sync::{AtomicBool, Ordering};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use std::collections::BTreeSet;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

/// How long a parent may take to answer. It is busy for milliseconds, unless it is stopped.
const ANSWER_S: u64 = 5;
/// Beside the numbers of bridges in the keeper's set.
const CHILDREN: u64 = 1 << 32;
/// Events that the keeper takes at once.
const EVENTS: usize = 64;

/// This process has files of its parent's.
static HAS_ANY: AtomicBool = AtomicBool::new(false);

/// The file of a descriptor that is served, or may be. One of the parent's is the kernel's from now on.
pub(crate) fn file(fd: c_int) -> Option<u32> {
    let number = known::file(fd)?;
    if !HAS_ANY.load(Ordering::Relaxed) {
        return Some(number);
    }
    with(|net| {
        if !is_inherited(net, number) {
            return Some(number);
        }
        adopt(net, number);
        None
    })
}

/// A descriptor of the parent's becomes the kernel's.
pub(crate) fn take(fd: c_int) {
    file(fd);
}

/// The kernel gets a served socket: something is done with it that is not served.
pub(crate) fn leave(fd: c_int) -> io::Result<()> {
    let Some(number) = file(fd) else {
        return Ok(());
    };
    with(|net| match net.files.get(&number).map(|file| file.kind) {
        Some(Kind::Stream { .. } | Kind::Listener { .. }) => net
            .bridge(number, false)
            .map(drop)
            .map_err(io::Error::from_raw_os_error),
        _ => Ok(()),
    })
}

/// Another program gets the descriptors that are not closed: those are the kernel's from now on.
pub(crate) fn before_program() {
    if !known::has_any() || settings::settings().is_none() || !known::is_here() {
        return;
    }
    let is_kept = |fd: &c_int| {
        // SAFETY: no memory is involved.
        let flags = unsafe { real::fcntl(*fd, libc::F_GETFD, 0) };
        flags >= 0 && flags & libc::FD_CLOEXEC == 0
    };
    let all: Vec<_> = known::all().map(|(fd, _)| fd).filter(is_kept).collect();
    for fd in all {
        // One that cannot be had is not connected there.
        let _ = leave(fd);
    }
}

fn is_inherited(net: &Net, number: u32) -> bool {
    net.files
        .get(&number)
        .is_some_and(|file| matches!(file.kind, Kind::Inherited))
}

/// Asks the parent for a file.
fn adopt(net: &mut Net, number: u32) {
    match ask(net, number) {
        Ok(program) => net.give_to_kernel(number, &program),
        Err(_) => {
            static IS_TOLD: AtomicBool = AtomicBool::new(false);
            if !IS_TOLD.swap(true, Ordering::Relaxed) {
                tell::tell!(
                    "switchyard run: the parent of process {}, which had its sockets, does not answer: they are lost",
                    std::process::id()
                );
            }
            for (fd, _) in known::all().filter(|(_, other)| *other == number) {
                known::forget(fd);
            }
        }
    }
    net.files.remove(&number);
}

fn ask(net: &Net, number: u32) -> Result<OwnedFd, c_int> {
    let parent = net.parent.as_ref().ok_or(libc::EBADF)?;
    rustix::net::send(parent, &message(WANTED, number), SendFlags::NOSIGNAL).map_err(code)?;
    let mut byte = [0; 1];
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut room);
    let parts = &mut [IoSliceMut::new(&mut byte)];
    // A signal waits for the end of this call.
    let flags = RecvFlags::CMSG_CLOEXEC;
    rustix::io::retry_on_intr(|| rustix::net::recvmsg(parent, parts, &mut control, flags)).map_err(code)?;
    let found = control.drain().find_map(|part| match part {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    found.ok_or(libc::EBADF)
}

/// Both ends of what a child and its parent talk by, if there will be anything to talk about.
pub(crate) fn prepare(net: &mut Net) -> Option<[OwnedFd; 2]> {
    // A child of this one has nobody to ask.
    let inherited: Vec<_> = net
        .files
        .iter()
        .map(|(number, _)| number)
        .filter(|number| is_inherited(net, *number))
        .collect();
    inherited.into_iter().for_each(|number| adopt(net, number));
    net.files.iter().any(|(_, file)| is_shared(file)).then_some(())?;
    let flags = SocketFlags::CLOEXEC;
    let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    pair.ok().map(|(one, other)| [one, other])
}

/// Whether a child needs its parent for a file.
fn is_shared(file: &File) -> bool {
    file.numbers > 0
        && matches!(
            file.kind,
            Kind::Stream { .. } | Kind::Listener { .. } | Kind::Bound(_)
        )
}

/// In the parent: the child has a part in each file.
pub(crate) fn remember_child(net: &mut Net, control: &OwnedFd) {
    let Ok(control) = own::keep(control) else {
        return;
    };
    let shared = net.files.iter_mut().filter(|(_, file)| is_shared(file));
    let mut files = BTreeSet::new();
    for (number, file) in shared {
        file.numbers += 1;
        files.insert(number);
    }
    net.children_made += 1;
    let child = net.children_made;
    let events = libc::EPOLLIN | libc::EPOLLRDHUP;
    let watched = net.watch_by_keeper(&control, events as u32, CHILDREN + u64::from(child));
    net.children.insert(child, Child { control, files });
    if watched.is_err() {
        end_child(net, child);
    }
    net.beds.wake_keeper();
}

/// In the child: what was the parent's is asked for later.
pub(crate) fn begin_child(net: &mut Net, control: Option<&OwnedFd>) {
    let mut files = mem::take(&mut net.files);
    let sets: Vec<_> = net.sets.keys().copied().collect();
    net.forget();
    sets.into_iter().for_each(known::forget);
    let mut has_any = false;
    files.retain(|number, file| {
        let is_fresh = matches!(file.kind, Kind::Fresh);
        if !is_fresh && !is_shared(file) {
            return false;
        }
        if !is_fresh {
            (has_any, file.kind) = (true, Kind::Inherited);
        }
        file.numbers = known::all().filter(|(_, other)| *other == number).count() as u32;
        file.watchers.clear();
        true
    });
    net.files = files;
    HAS_ANY.store(has_any, Ordering::Relaxed);
    let Some(low) = control else {
        return;
    };
    let limit = Some(Duration::from_secs(ANSWER_S));
    let limited = set_socket_timeout(low, Timeout::Recv, limit).map_err(io::Error::from);
    net.parent = limited.and_then(|()| own::keep(low)).ok();
}

/// The keeper hears bridges and children.
pub(crate) fn hear(net: &mut Net) {
    let Some(set) = net.ends.as_ref().map(AsRawFd::as_raw_fd) else {
        return;
    };
    let mut events = [epoll_event { events: 0, u64: 0 }; EVENTS];
    // SAFETY: the events are there during the call, which does not wait.
    let count = unsafe { real::epoll_wait(set, events.as_mut_ptr(), EVENTS as c_int, 0) };
    for event in events.iter().take(usize::try_from(count).unwrap_or(0)) {
        let word = event.u64;
        match word.checked_sub(CHILDREN) {
            None => drop(net.stirred.insert(word as u32)),
            Some(child) => hear_child(net, child as u32),
        }
    }
}

fn hear_child(net: &mut Net, child: u32) {
    loop {
        let Some(known) = net.children.get_mut(&child) else {
            return;
        };
        let mut text = [0; 8];
        let number = match rustix::net::recv(&known.control, &mut text, RecvFlags::DONTWAIT) {
            Ok((8, _)) => u32::from_ne_bytes([text[4], text[5], text[6], text[7]]),
            Err(Errno::AGAIN | Errno::INTR) => return,
            _ => return end_child(net, child),
        };
        let word = u32::from_ne_bytes([text[0], text[1], text[2], text[3]]);
        let is_its = known.files.remove(&number);
        match word {
            WANTED => {
                let program = if is_its {
                    net.bridge(number, true)
                } else {
                    Err(libc::EBADF)
                };
                hand_over(net, child, program.ok().flatten());
            }
            CLOSED => {}
            _ => return end_child(net, child),
        }
        if is_its {
            net.release(number);
        }
    }
}

fn hand_over(net: &Net, child: u32, program: Option<OwnedFd>) {
    let Some(child) = net.children.get(&child) else {
        return;
    };
    let fds = program.as_ref().map(AsFd::as_fd);
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut room);
    if let Some(fd) = &fds {
        control.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(fd)));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    // A child that has gone needs nothing.
    let _ = rustix::net::sendmsg(&child.control, &[IoSlice::new(&[0])], &mut control, flags);
}

/// A child has ended, or has another program.
fn end_child(net: &mut Net, child: u32) {
    if let Some(child) = net.children.remove(&child) {
        own::give_back(child.control);
        child.files.into_iter().for_each(|number| net.release(number));
    }
}

//! Several runs, each with an area of its own, and a file that programs of two of them write. If both logged the file, recovery of one
//! area would undo what the other one has. So neither follows the file: the run that meets it second asks, the first one gives it up.
//!
//! Each run listens at a socket that has a name and no file: one of [`RUNS_MAX`] names, so that every other run finds it. The kernel takes
//! the name back when the run ends, however that was. The asker shows a descriptor by which it may write the file. Runs of different
//! network namespaces do not find each other.
//!
//! A run that begins greets all that are there, after it listens. Of two that begin at once the later one to listen greets the other. So
//! each knows the other before its programs begin, and asks nobody else.
//!
//! Names are free to all users. So a run shows files only to root's and its own user's. A file that other users may write, too, is not
//! followed while one of them has such a name; nobody waits for the answer to a greeting there.

use crate::desk::Desk;
use crate::error::AreaError;
use crate::files::{FilesError, restore};
use crate::peer;
use crate::sync::{AtomicU64, Ordering};
use crate::table::{FileKey, Release, Table};
use os::MediaOpenError;
use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat, stat};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, recv,
    recvmsg, sendmsg, socket_with,
};
use std::ffi::OsStr;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Runs that find each other at once on a machine: a bit each. A look at a name that nobody has takes one to two microseconds.
const RUNS_MAX: u64 = 64;
/// A question is one of these and the asker's slot; the longest answer is a byte and a path.
const RELEASE: u8 = b'R';
const GREETING: u8 = b'G';
const WHO: u8 = b'W';
const QUESTION_BYTES: usize = 2;
/// The answer to who uses an area: a byte and two numbers.
const USERS_BYTES: usize = 9;
const ANSWER_BYTES_MAX: usize = 1 + libc::PATH_MAX as usize;
/// The answer to a greeting is waited for so long.
const GREETING_MAX: Duration = Duration::from_secs(1);
/// All greetings of a run's begin take so long at most.
const GREETINGS_MAX: base::Duration = base::Duration::from_secs(3);
/// Times that a run is asked that ends meanwhile, and leaves a keeper.
const ASKS_MAX: u32 = 3;
/// A run that does not answer for so long is not asked again by this process. It answers when the file is synced.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Another run that had something of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherRun {
    /// Its area.
    pub area: PathBuf,
    /// Its part in the file.
    pub had: Had,
}

/// Processes by which an area is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Users {
    /// `switchyard run`, or the keeper that it has left behind.
    pub run: u32,
    /// The process of the program that has the area; 0 if there is none.
    pub owner: u32,
    /// It is the keeper.
    pub is_keeper: bool,
}

/// The part of another run in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Had {
    /// It followed the file until now.
    Followed,
    /// Its programs write the file, and it does not follow it.
    Wrote,
    /// It follows the file, and cannot give it up.
    Stuck,
    /// It is another user's, which may write the file, and was not asked. Its area is not known.
    Unasked,
}

fn address(slot: u64) -> rustix::io::Result<SocketAddrUnix> {
    SocketAddrUnix::new_abstract_name(format!("switchyard-runs-{slot}").as_bytes())
}

fn socket() -> rustix::io::Result<OwnedFd> {
    socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
}

/// Answers other runs about the files of this one, in a thread that ends with this process. `None` if there are too many runs.
///
/// # Errors
/// If there is no socket or thread.
pub fn stand(table: &'static Table, area: PathBuf) -> io::Result<Option<Desk>> {
    let socket = socket()?;
    let mut slots = 0..RUNS_MAX;
    let slot = loop {
        let Some(slot) = slots.next() else {
            return Ok(None);
        };
        match bind(&socket, &address(slot)?) {
            Ok(()) => break slot,
            Err(Errno::ADDRINUSE) => {}
            Err(error) => return Err(error.into()),
        }
    };
    listen(&socket, 128)?;
    table.stand(slot);
    let desk = stand_at(socket, table, area)?;
    // Of two runs that begin at once each answers while it greets.
    greet_all(table, slot);
    Ok(Some(desk))
}

/// The same at the socket of a process that has ended.
///
/// # Errors
/// If there is no thread.
pub fn stand_at(socket: OwnedFd, table: &'static Table, area: PathBuf) -> io::Result<Desk> {
    Desk::open("runs", vec![socket], move |asker| {
        // An asker that is gone needs no answer.
        let _ = answer(&asker, table, &area);
    })
}

/// Greets all runs that are there.
fn greet_all(table: &Table, own: u64) {
    let (mut unused, began) = (None, os::now());
    for slot in (0..RUNS_MAX).filter(|&slot| slot != own) {
        let Ok(socket) = connected(slot, &mut unused) else {
            continue;
        };
        table.greeted(slot);
        if os::now().since(began) >= GREETINGS_MAX {
            continue;
        }
        let greet = || -> io::Result<()> {
            set_socket_timeout(&socket, Timeout::Recv, Some(GREETING_MAX))?;
            rustix::net::send(&socket, &[GREETING, own as u8], SendFlags::NOSIGNAL)?;
            if !peer::is_trusted(&socket) {
                return Ok(());
            }
            recv(&socket, &mut [0_u8; 1][..], RecvFlags::empty())?;
            Ok(())
        };
        // A run that was stopped finds the greeting when it goes on.
        let _ = greet();
    }
}

fn answer(asker: &OwnedFd, table: &Table, area: &Path) -> io::Result<()> {
    let mut question = [0; QUESTION_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut parts = RecvAncillaryBuffer::new(&mut space);
    recvmsg(
        asker,
        &mut [IoSliceMut::new(&mut question)],
        &mut parts,
        RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
    )?;
    let file = parts.drain().find_map(|part| match part {
        RecvAncillaryMessage::ScmRights(mut all) => all.next(),
        _ => None,
    });
    let may_write =
        |file: &OwnedFd| fcntl_getfl(file).is_ok_and(|flags| flags.intersects(OFlags::WRONLY | OFlags::RDWR));
    let slot = u64::from(question[1]);
    if question[0] == GREETING && slot < RUNS_MAX {
        table.greeted(slot);
        rustix::net::send(asker, &[0], SendFlags::NOSIGNAL)?;
        return Ok(());
    }
    if let Some(shown) = file.as_ref().filter(|_| question[0] == WHO) {
        return tell_users(asker, table, is_at(shown.as_fd(), area));
    }
    let file = file.filter(|file| question[0] == RELEASE && may_write(file));
    let key = file.and_then(|file| FileKey::of(file.as_raw_fd()));
    let key = key.ok_or(io::ErrorKind::PermissionDenied)?;
    let code = match release(table, key, area) {
        Release::Free => 0,
        Release::Given => 1,
        Release::Foreign => 2,
        Release::Stuck | Release::Dead(_) => 3,
    };
    let bytes = [&[code], area.as_os_str().as_bytes()].concat();
    rustix::net::send(asker, &bytes, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The answer to who uses the area that was shown. It is empty if that is another one.
fn tell_users(asker: &OwnedFd, table: &Table, is_own: bool) -> io::Result<()> {
    let owner = table.owner();
    let numbers = [std::process::id().to_le_bytes(), owner.to_le_bytes()].concat();
    let answer = [&[u8::from(table.is_kept())], &numbers[..]].concat();
    let bytes = if is_own { &answer[..] } else { &[] };
    rustix::net::send(asker, bytes, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// True if the descriptor's file, or device, is at the path.
fn is_at(file: BorrowedFd<'_>, path: &Path) -> bool {
    let place = |it: rustix::fs::Stat| match FileType::from_raw_mode(it.st_mode) {
        FileType::BlockDevice => (it.st_rdev, 0),
        _ => (it.st_dev, it.st_ino),
    };
    let both = fstat(file).and_then(|file| Ok((file, stat(path)?)));
    both.is_ok_and(|(file, found)| place(file) == place(found))
}

/// The processes of the run that has the area; `None` if nobody says so.
pub fn users(area: &Path) -> Option<Users> {
    let shown = std::fs::File::open(area).ok()?;
    let mut unused = None;
    let ask = |socket: OwnedFd| -> io::Result<Option<Users>> {
        if !peer::is_trusted(&socket) {
            return Ok(None);
        }
        set_socket_timeout(&socket, Timeout::Recv, Some(GREETING_MAX))?;
        show(&socket, WHO, shown.as_fd())?;
        let mut answer = [0; USERS_BYTES];
        let (bytes, _) = recv(&socket, &mut answer[..], RecvFlags::empty())?;
        let number = |at: usize| u32::from_le_bytes(answer[at..at + 4].try_into().expect("four bytes"));
        Ok((bytes == USERS_BYTES).then(|| Users {
            run: number(1),
            owner: number(5),
            is_keeper: answer[0] != 0,
        }))
    };
    (0..RUNS_MAX).find_map(|slot| ask(connected(slot, &mut unused).ok()?).ok().flatten())
}

/// Has the file given up. Data that a dead owner has of the file go there first.
fn release(table: &Table, key: FileKey, area: &Path) -> Release {
    loop {
        let released = table.release(key, ANSWER_MAX / 2);
        let Release::Dead(owner) = released else {
            return released;
        };
        match restore(area, 0) {
            // Another process of the run has the area, and has settled it then.
            Ok(_) | Err(FilesError::Area(AreaError::Media(MediaOpenError::InUse(_)))) => table.bury(owner),
            Err(_) if area == Path::new("nvm") => table.bury(owner),
            Err(error) => {
                eprintln!("switchyard run: {error}");
                return Release::Stuck;
            }
        }
    }
}

/// This run is about to follow the file of a descriptor that writes: the other runs that have something of it, and do not follow it from
/// now on. Runs in `deaf` are not asked; those that do not answer are put there.
pub fn others(table: &Table, file: BorrowedFd<'_>, deaf: &AtomicU64) -> Vec<OtherRun> {
    let mut found = Vec::new();
    let mut unused = None;
    let asked = table.others() & !deaf.load(Ordering::Relaxed);
    for slot in (0..RUNS_MAX).filter(|&slot| asked & 1 << slot != 0) {
        match ask_run(slot, &mut unused, file) {
            Ok(other) => found.extend(other),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                deaf.fetch_or(1 << slot, Ordering::Relaxed);
            }
            // It has just ended, or it is none.
            Err(_) => {}
        }
    }
    found
}

/// What the run of this place had of a file; `None` if nothing, or if there is no run.
fn ask_run(slot: u64, unused: &mut Option<OwnedFd>, file: BorrowedFd<'_>) -> io::Result<Option<OtherRun>> {
    for _ in 0..ASKS_MAX {
        let socket = match connected(slot, unused) {
            Ok(socket) => socket,
            Err(Errno::CONNREFUSED) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if !peer::is_trusted(&socket) {
            let unasked = OtherRun {
                area: PathBuf::new(),
                had: Had::Unasked,
            };
            return Ok(Some(unasked).filter(|_| !is_private(file)));
        }
        if let Some(answer) = ask(&socket, file)? {
            return Ok(answer);
        }
    }
    Err(io::ErrorKind::UnexpectedEof.into())
}

/// True if only this user, and root, may write the file.
fn is_private(file: BorrowedFd<'_>) -> bool {
    let own = rustix::process::geteuid().as_raw();
    // The bits of the group stand for all lists of users, too.
    fstat(file).is_ok_and(|it| [0, own].contains(&it.st_uid) && it.st_mode & 0o022 == 0)
}

/// A connection to the run of this place. A socket that was not connected is used again.
fn connected(slot: u64, unused: &mut Option<OwnedFd>) -> rustix::io::Result<OwnedFd> {
    let socket = match unused.take() {
        Some(socket) => socket,
        None => {
            let socket = socket()?;
            set_socket_timeout(&socket, Timeout::Send, Some(ANSWER_MAX))?;
            socket
        }
    };
    match connect(&socket, &address(slot)?) {
        Ok(()) => Ok(socket),
        Err(error) => {
            *unused = Some(socket);
            Err(error)
        }
    }
}

/// Asks a question about a descriptor's file.
fn show(socket: &OwnedFd, question: u8, file: BorrowedFd<'_>) -> io::Result<()> {
    let handed = [file];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut parts = SendAncillaryBuffer::new(&mut space);
    parts.push(SendAncillaryMessage::ScmRights(&handed));
    let bytes = [question, 0];
    sendmsg(socket, &[IoSlice::new(&bytes)], &mut parts, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// `None` if who is there has ended.
fn ask(socket: &OwnedFd, file: BorrowedFd<'_>) -> io::Result<Option<Option<OtherRun>>> {
    set_socket_timeout(socket, Timeout::Recv, Some(ANSWER_MAX))?;
    show(socket, RELEASE, file)?;
    let mut answer = vec![0; ANSWER_BYTES_MAX];
    let (bytes, _) = recv(socket, &mut answer[..], RecvFlags::empty())?;
    let had = match answer[..bytes].first() {
        None => return Ok(None),
        Some(1) => Had::Followed,
        Some(2) => Had::Wrote,
        Some(3) => Had::Stuck,
        Some(_) => return Ok(Some(None)),
    };
    let area = OsStr::from_bytes(&answer[1..bytes]).into();
    Ok(Some(Some(OtherRun { area, had })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_find_each_other_whichever_was_first() {
        let [first, second] = [(); 2].map(|()| Table::map(None).expect("memory"));
        let _first = stand(first, "/first.area".into())
            .expect("a socket")
            .expect("room");
        let before = first.others();
        let _second = stand(second, "/second.area".into())
            .expect("a socket")
            .expect("room");
        assert_ne!(first.others() & !before, 0, "it was greeted");
        let file = tempfile::tempfile().expect("a file");
        let key = FileKey::of(file.as_raw_fd()).expect("regular");
        let deaf = AtomicU64::new(0);
        assert_eq!(others(second, file.as_fd(), &deaf), []);
        let pid = std::process::id();
        assert!(first.follow(pid, key, 7, |_| true, |_| true));
        std::thread::Builder::new()
            .spawn(move || first.answer(pid, |_| Ok(true), || {}))
            .expect("a thread");
        for had in [Had::Followed, Had::Wrote] {
            let area = "/first.area".into();
            assert_eq!(others(second, file.as_fd(), &deaf), [OtherRun { area, had }]);
        }
        let read = std::fs::File::open("/proc/self/exe").expect("this program");
        assert_eq!(
            others(second, read.as_fd(), &deaf),
            [],
            "a reader is told nothing"
        );
    }

    /// Whichever of two is first, the later one has met it when its own beginning is over.
    #[test]
    fn runs_that_begin_at_once_know_each_other() {
        const AT_ONCE: usize = 4;
        for round in 0..8 {
            let tables = [(); AT_ONCE].map(|()| Table::map(None).expect("memory"));
            let barrier = std::sync::Barrier::new(AT_ONCE);
            std::thread::scope(|scope| {
                for (nth, table) in tables.into_iter().enumerate() {
                    let barrier = &barrier;
                    scope.spawn(move || {
                        barrier.wait();
                        assert!(
                            stand(table, format!("/{nth}.area").into())
                                .expect("a socket")
                                .is_some()
                        );
                    });
                }
            });
            // Those of the rounds before still stand.
            let others = AT_ONCE * (round + 1) - 1;
            for table in tables {
                let known = table.others().count_ones() as usize;
                assert!(known >= others, "{known} of {others} others are known");
            }
        }
    }
}

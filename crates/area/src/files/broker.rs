//! `switchyard run` opens the area for its program, hands out the table, and settles the area of an owner that is dead. The program may
//! not do so itself after it has changed its user or its root.
//!
//! The program asks over a socket that has a name and no file, so it may have another root. A program with a network of its own does not
//! reach that socket, and asks over one with a file. The program's environment has a secret, and only programs that know the secret are
//! answered.
//!
//! A program that asks for the table gets it as an opening of its own, with a lock of flock(2). The program's memory has the opening, and so
//! have its forked children. The lock ends with the last of them, so this process knows whether any of them lives.

use super::{FilesError, restore};
use crate::desk::Desk;
use crate::error::AreaError;
use crate::table::{Table, is_alive};
use crate::{own, peer};
use os::{MediaFile, MediaOpenError};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, openat};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg, sendmsg,
    socket_with,
};
use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Bytes of the secret, and of a question: the secret and what is wanted.
const SECRET_BYTES: usize = 16;
const QUESTION_BYTES: usize = SECRET_BYTES + 1;
/// Times that a program asks if who answers ends meanwhile.
const ASKS_MAX: u32 = 3;
/// A socket that nobody listens at is removed when it is older by so many seconds than one that is made.
const SWEPT_AFTER_S: i64 = 10;
/// An answer takes a recovery at most.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// Something that a program may want.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Wish {
    /// The area, settled, for itself alone.
    Area = b'A',
    /// The table of the run.
    Table = b'T',
    /// The area of a dead owner has nothing any more.
    Settled = b'S',
    /// To know whether the owner of the area lives, for who does not see it in a namespace of processes of its own: an error if not.
    Owner = b'O',
}

/// The place where a program asks.
#[derive(Clone, Debug)]
pub struct Broker {
    secret: [u8; SECRET_BYTES],
    /// The user that answers.
    user: u32,
    /// The socket with a file, if there is one.
    path: Option<PathBuf>,
}

impl Broker {
    /// The broker that an environment's text is about; `None` if that is none.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, ':');
        let secret = parts.next().filter(|it| it.len() == 2 * SECRET_BYTES)?;
        Some(Self {
            secret: u128::from_str_radix(secret, 16).ok()?.to_be_bytes(),
            user: parts.next()?.parse().ok()?,
            path: parts.next().map(PathBuf::from),
        })
    }

    /// The text.
    pub fn text(&self) -> String {
        let secret = u128::from_be_bytes(self.secret);
        let path = self.path().map(|it| format!(":{}", it.display()));
        format!("{secret:032x}:{}{}", self.user, path.unwrap_or_default())
    }

    /// The socket's file, for programs with a network of their own.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The socket's file is not there any more.
    pub fn remove(&self) {
        if let Some(path) = self.path() {
            // The next run sweeps what stays.
            let _ = fs::remove_file(path);
        }
    }

    /// The name says which broker it is, and not the secret.
    fn name(&self) -> String {
        format!("{:08x}", short(&self.secret))
    }

    fn address(&self) -> io::Result<SocketAddr> {
        SocketAddr::from_abstract_name(format!("switchyard-run-{}", self.name()))
    }

    /// `ConnectionRefused` if nobody is there.
    fn connect(&self) -> io::Result<UnixStream> {
        let by_name = UnixStream::connect_addr(&self.address()?);
        match (by_name.and_then(|it| self.checked(it)), self.path()) {
            // The directory is the run's user's alone.
            (Err(error), Some(path)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                UnixStream::connect(path).map_err(|_| error)
            }
            (result, _) => result,
        }
    }

    /// Names are of a network, and where the run is not, or not any more, anybody may have its name. No stranger learns the secret, or says who
    /// follows what.
    fn checked(&self, stream: UnixStream) -> io::Result<UnixStream> {
        match peer::is_trusted(&stream) || peer::user(&stream)? == self.user {
            true => Ok(stream),
            false => Err(io::ErrorKind::ConnectionRefused.into()),
        }
    }

    /// Asks for something; what is handed out, if it is a thing.
    ///
    /// # Errors
    /// If there is nobody, or whoever is there refuses.
    pub fn ask(&self, wish: Wish) -> io::Result<Option<OwnedFd>> {
        let mut asks = 0;
        loop {
            asks += 1;
            let answer = self.ask_once(wish);
            // Whoever was there has ended, and a keeper has taken the place.
            let is_cut = |error: &io::Error| {
                use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
                matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
            };
            if asks == ASKS_MAX || !answer.as_ref().is_err_and(is_cut) {
                return answer;
            }
        }
    }

    fn ask_once(&self, wish: Wish) -> io::Result<Option<OwnedFd>> {
        let mut stream = self.connect()?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        let mut question = self.secret.to_vec();
        question.push(wish as u8);
        stream.write_all(&question)?;
        let mut code = [0; 4];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut parts = RecvAncillaryBuffer::new(&mut space);
        let got = recvmsg(
            &stream,
            &mut [IoSliceMut::new(&mut code)],
            &mut parts,
            RecvFlags::CMSG_CLOEXEC,
        )?;
        let handed = parts.drain().find_map(|part| match part {
            RecvAncillaryMessage::ScmRights(mut all) => all.next(),
            _ => None,
        });
        match i32::from_le_bytes(code) {
            _ if got.bytes != code.len() => Err(io::ErrorKind::UnexpectedEof.into()),
            0 => Ok(handed),
            code => Err(io::Error::from_raw_os_error(code)),
        }
    }
}

/// FNV-1a of 32 bits.
fn short(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, &byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

/// Answers the programs of one run, in a thread that ends with this process. `mapped` is the table of the descriptor.
///
/// # Errors
/// If there is no socket or thread.
pub fn serve(area: PathBuf, table: OwnedFd, mapped: &'static Table) -> io::Result<(Broker, Desk)> {
    mapped.begin();
    let (high, low) = (u128::from(os::seed()), u128::from(os::seed()));
    let mut broker = Broker {
        secret: (high << 64 | low).to_be_bytes(),
        user: rustix::process::geteuid().as_raw(),
        path: None,
    };
    let mut sockets = vec![UnixListener::bind_addr(&broker.address()?)?.into()];
    if let Some((listener, path)) = directories().find_map(|it| listen_in(&it, &broker.name()).ok()) {
        broker.path = Some(path);
        sockets.push(listener.into());
    }
    let desk = serve_at(broker.clone(), sockets, area, table, mapped)?;
    Ok((broker, desk))
}

/// The same at sockets that another process of the run has made.
///
/// # Errors
/// If there is no thread.
pub fn serve_at(
    broker: Broker,
    sockets: Vec<OwnedFd>,
    area: PathBuf,
    table: OwnedFd,
    mapped: &'static Table,
) -> io::Result<Desk> {
    Desk::open("broker", sockets, move |asker| {
        // Whoever is gone needs no answer.
        let _ = answer(&broker, asker.into(), &area, table.as_fd(), mapped);
    })
}

/// Where sockets may have files. All users reach these directories, and nobody cleans them up while somebody listens.
fn directories() -> impl Iterator<Item = PathBuf> {
    let user = rustix::process::geteuid();
    let system = user.is_root().then(|| PathBuf::from("/run/switchyard-run"));
    system
        .into_iter()
        .chain([format!("/tmp/switchyard-run-{user}").into()])
}

/// A socket with a file in a directory of this user's, and its path.
fn listen_in(directory: &Path, name: &str) -> io::Result<(UnixListener, PathBuf)> {
    // Others find what they know the name of.
    match DirBuilder::new().mode(0o711).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = fs::symlink_metadata(directory)?;
    let is_own = found.uid() == rustix::process::geteuid().as_raw();
    if !found.is_dir() || !is_own || found.mode() & 0o022 != 0 {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    fs::set_permissions(directory, Permissions::from_mode(0o711))?;
    let path = directory.join(name);
    let listener = UnixListener::bind(&path)?;
    let done = fs::set_permissions(&path, Permissions::from_mode(0o666))
        .and_then(|()| sweep(directory, fs::symlink_metadata(&path)?.mtime()));
    if let Err(error) = done {
        let _ = fs::remove_file(&path);
        return Err(error);
    }
    Ok((listener, path))
}

/// Removes the sockets of runs that were killed.
fn sweep(directory: &Path, now_s: i64) -> io::Result<()> {
    for entry in fs::read_dir(directory)?.flatten() {
        // One that is younger may not listen yet.
        let made = entry.metadata().map(|it| it.mtime());
        if made.is_ok_and(|made| now_s < made + SWEPT_AFTER_S) {
            continue;
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let path = entry.path();
        if SocketAddrUnix::new(&path).and_then(|it| connect(&socket, &it)) == Err(Errno::CONNREFUSED) {
            let _ = fs::remove_file(path);
        }
    }
    Ok(())
}

/// An opening of the table for one program, with a lock.
fn opened_for_one(table: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let proc = own::proc().ok_or(io::ErrorKind::NotFound)?;
    let path = format!("self/fd/{}", table.as_raw_fd());
    let opened = openat(proc, path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    flock(&opened, FlockOperation::LockShared)?;
    Ok(opened)
}

/// True if a program lives that has the table, or a forked child of one.
pub fn is_shared(table: BorrowedFd<'_>) -> bool {
    match flock(table, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {
            // Of this process's own opening, which nobody waits for.
            let _ = flock(table, FlockOperation::Unlock);
            false
        }
        Err(_) => true,
    }
}

fn answer(
    broker: &Broker,
    mut stream: UnixStream,
    area: &Path,
    table: BorrowedFd<'_>,
    mapped: &Table,
) -> io::Result<()> {
    // Who asks says it whole, and nobody else waits for one who does not.
    stream.set_nonblocking(true)?;
    let mut question = [0; QUESTION_BYTES];
    stream.read_exact(&mut question)?;
    if question[..SECRET_BYTES] != broker.secret {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let wish = question[SECRET_BYTES];
    let (opened, opened_table);
    let (code, handed) = match wish {
        _ if wish == Wish::Table as u8 => {
            opened_table = opened_for_one(table);
            // Without /proc nobody knows whether the program lives.
            (0, Some(opened_table.as_ref().map_or(table, AsFd::as_fd)))
        }
        _ if wish == Wish::Settled as u8 => (told(restore(area, 0).map(|_| ())), None),
        _ if wish == Wish::Area as u8 => match open(area) {
            Ok(medium) => {
                opened = medium;
                (0, Some(opened.as_file().as_fd()))
            }
            Err(error) => (told(Err(error)), None),
        },
        _ if wish == Wish::Owner as u8 => match is_alive(mapped.owner()) {
            true => (0, None),
            false => (libc::ESRCH, None),
        },
        _ => (libc::EINVAL, None),
    };
    let code = code.to_le_bytes();
    let handed: Vec<_> = handed.into_iter().collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut parts = SendAncillaryBuffer::new(&mut space);
    if !handed.is_empty() {
        parts.push(SendAncillaryMessage::ScmRights(&handed));
    }
    sendmsg(&stream, &[IoSlice::new(&code)], &mut parts, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The area, which has nothing of any file. Its claim goes with the descriptor.
fn open(area: &Path) -> Result<MediaFile, FilesError> {
    restore(area, 0)?;
    Ok(MediaFile::open(area, 0, false).map_err(AreaError::from)?)
}

/// The error number, after its words.
fn told(result: Result<(), FilesError>) -> i32 {
    match result {
        Ok(()) => 0,
        Err(FilesError::Area(AreaError::Media(MediaOpenError::InUse(_)))) => Errno::BUSY.raw_os_error(),
        Err(error) => {
            eprintln!("switchyard run: {error}");
            Errno::IO.raw_os_error()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> (OwnedFd, &'static Table) {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(Table::BYTES).expect("room");
        let mapped = Table::map(Some(file.try_clone().expect("a descriptor"))).expect("memory");
        (file.into(), mapped)
    }

    #[test]
    fn whoever_has_the_table_is_known_until_its_memory_goes() {
        let (table, mapped) = table();
        let again = table.try_clone().expect("a descriptor");
        let (broker, _desk) = serve("/none".into(), again, mapped).expect("a socket");
        assert!(!is_shared(table.as_fd()));
        let own = broker.ask(Wish::Table).expect("an answer").expect("the table");
        assert!(is_shared(table.as_fd()));
        drop(own);
        // Children that other tests fork have it for a moment.
        let looks = (0..500).take_while(|_| is_shared(table.as_fd()));
        let pause = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 10_000_000,
        };
        let looks = looks.inspect(|_| _ = rustix::event::poll(&mut [], Some(&pause)));
        assert!(looks.count() < 500);
        broker.remove();
    }

    /// bug: a program with a network of its own found nobody who told it what is followed. cause: abstract sockets are the network's. fix: a
    /// second socket has a file.
    #[test]
    fn a_program_that_does_not_reach_the_name_asks_by_the_file() {
        let (table, mapped) = table();
        let (broker, _desk) = serve("/none".into(), table, mapped).expect("a socket");
        let path = broker.path().expect("there is /tmp").to_owned();
        let other_name = format!("{:032x}:{}:{}", 7, broker.user, path.display());
        let stranger = Broker::parse(&other_name).expect("sound");
        assert!(stranger.connect().is_ok());
        assert!(stranger.ask(Wish::Table).is_err(), "the secret is another one");
        broker.remove();
        let refused = stranger.connect().expect_err("nobody is there");
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn sockets_of_runs_that_were_killed_are_swept() {
        let directory = tempfile::tempdir().expect("a directory");
        let place = directory.path().join("runs");
        let (first, path) = listen_in(&place, "first").expect("a socket");
        let (_second, _) = listen_in(&place, "second").expect("a socket");
        assert!(path.exists(), "somebody listens");
        drop(first);
        let (_third, third) = listen_in(&place, "third").expect("a socket");
        assert!(path.exists(), "it may listen in a moment");
        let long_ago = rustix::fs::Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        };
        let times = rustix::fs::Timestamps {
            last_access: long_ago,
            last_modification: long_ago,
        };
        for path in [&path, &third] {
            rustix::fs::utimensat(rustix::fs::CWD, path, &times, rustix::fs::AtFlags::empty())
                .expect("it is ours");
        }
        let (_fourth, _) = listen_in(&place, "fourth").expect("a socket");
        assert!(!path.exists());
        assert!(third.exists(), "somebody listens");
        assert!(place.join("second").exists());
        fs::set_permissions(&place, Permissions::from_mode(0o777)).expect("it is ours");
        assert!(listen_in(&place, "fifth").is_err(), "others could write there");
    }
    #[test]
    fn the_text_says_the_whole_broker() {
        let text = format!("{:032x}:1000:/run/a:b", 7);
        assert_eq!(Broker::parse(&text).expect("sound").text(), text);
        let text = format!("{:032x}:0", 7);
        assert_eq!(Broker::parse(&text).expect("sound").text(), text);
        for unsound in [
            "",
            "7:0",
            "0:0:/x",
            &format!("{:032x}", 7),
            &format!("{:032x}:me", 7),
        ] {
            assert!(Broker::parse(unsound).is_none(), "{unsound}");
        }
    }

    /// bug: in another network, or after the run, anybody could take its name, and was told the secret. fix: a program asks only root, its
    /// own user, and the user of the run.
    #[test]
    fn a_stranger_with_the_name_is_not_told_the_secret() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let broker = Broker {
            secret: u128::from(os::seed()).to_be_bytes(),
            user: 0,
            path: None,
        };
        let name = format!("switchyard-run-{}", broker.name());
        let script = "import os, socket, sys; os.setuid(65534); it = socket.socket(socket.AF_UNIX); it.bind('\\0' + sys.argv[1]); \
                      it.listen(); print(flush=True); it.accept()";
        let mut stranger = std::process::Command::new("python3")
            .args(["-c", script, &name])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("python");
        let mut ready = [0; 1];
        let stdout = stranger.stdout.as_mut().expect("piped");
        stdout.read_exact(&mut ready).expect("it listens");
        let refused = broker
            .ask(Wish::Table)
            .map(|_| ())
            .expect_err("a stranger answers");
        stranger.kill().and_then(|()| stranger.wait()).expect("ours");
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }
}

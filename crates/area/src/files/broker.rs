//! `switchyard run` opens the area for its program, hands out the table, and settles the area of an owner that is dead. The program may
//! not do so itself after it has changed its user or its root.
//!
//! The program asks over a socket that has a name and no file. Its environment has a secret, and only programs that know the secret are
//! answered.

use super::{FilesError, restore};
use crate::error::AreaError;
use crate::table::{Table, is_alive};
use os::{MediaFile, MediaOpenError};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Bytes of the secret, and of a question: the secret and what is wanted.
const SECRET_BYTES: usize = 16;
const QUESTION_BYTES: usize = SECRET_BYTES + 1;
/// A program that asks and says nothing is let go.
const SILENCE_MAX: Duration = Duration::from_secs(1);
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
    secret: String,
}

impl Broker {
    /// The broker that an environment's text is about; `None` if that is none.
    pub fn parse(text: &str) -> Option<Self> {
        let is_sound = text.len() == 2 * SECRET_BYTES && text.bytes().all(|it| it.is_ascii_hexdigit());
        is_sound.then(|| Self { secret: text.into() })
    }

    /// The text.
    pub fn text(&self) -> &str {
        &self.secret
    }

    fn bytes(&self) -> [u8; SECRET_BYTES] {
        let value = u128::from_str_radix(&self.secret, 16).expect("hexadecimal, and as long as that");
        value.to_be_bytes()
    }

    /// The name says which broker it is, and not the secret.
    fn address(&self) -> io::Result<SocketAddr> {
        let name = format!("switchyard-run-{:08x}", crc(&self.bytes()));
        SocketAddr::from_abstract_name(name)
    }

    /// Asks for something; what is handed out, if it is a thing.
    ///
    /// # Errors
    /// If there is nobody, or whoever is there refuses.
    pub fn ask(&self, wish: Wish) -> io::Result<Option<OwnedFd>> {
        let mut stream = UnixStream::connect_addr(&self.address()?)?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        let mut question = self.bytes().to_vec();
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
fn crc(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, &byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

/// Answers the programs of one run, in a thread that ends with this process. `mapped` is the table of the descriptor.
///
/// # Errors
/// If there is no socket or thread.
pub fn serve(area: PathBuf, table: OwnedFd, mapped: &'static Table) -> io::Result<Broker> {
    mapped.begin();
    let secret = format!("{:016x}{:016x}", os::seed(), os::seed());
    let broker = Broker { secret };
    let listener = UnixListener::bind_addr(&broker.address()?)?;
    let own = broker.clone();
    super::program::spawn_deaf("broker", move || {
        for stream in listener.incoming().flatten() {
            // Whoever is gone needs no answer.
            let _ = answer(&own, stream, &area, table.as_fd(), mapped);
        }
    })?;
    Ok(broker)
}

fn answer(
    broker: &Broker,
    mut stream: UnixStream,
    area: &Path,
    table: BorrowedFd<'_>,
    mapped: &Table,
) -> io::Result<()> {
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    let mut question = [0; QUESTION_BYTES];
    stream.read_exact(&mut question)?;
    if question[..SECRET_BYTES] != broker.bytes() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let wish = question[SECRET_BYTES];
    let opened;
    let (code, handed) = match wish {
        _ if wish == Wish::Table as u8 => (0, Some(table)),
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

//! Asking the server of a catalog.

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;
use store::catalog::protocol::{Answer, AreaEntry, Code, ExportEntry, MESSAGE_BYTES_MAX, Request};
use thiserror::Error;

/// Default socket of root's server.
const SYSTEM_SOCKET: &str = "/run/switchyard/areas.sock";
/// A user's own, in `$XDG_RUNTIME_DIR`.
const USER_SOCKET: &str = "switchyard-areas.sock";
/// Longest wait for an answer: a new area of a disk is zeroed first.
const ANSWER_WAIT: Duration = Duration::from_secs(3600);

/// Socket of the server: `$SWITCHYARD_AREAS`, or the user's own socket if it is there (or `is_server` and no root), or the
/// system's.
pub fn default_socket(is_server: bool) -> PathBuf {
    if let Some(path) = std::env::var_os("SWITCHYARD_AREAS") {
        return path.into();
    }
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(|dir| Path::new(&dir).join(USER_SOCKET));
    // SAFETY: it cannot fail, and takes nothing.
    let is_root = unsafe { libc::geteuid() } == 0;
    let is_own = |path: &PathBuf| if is_server { !is_root } else { path.exists() };
    own.filter(is_own).unwrap_or_else(|| SYSTEM_SOCKET.into())
}

/// Why the server did not do what it was asked for.
#[derive(Debug, Error)]
pub enum ClientError {
    /// Nobody listens there.
    #[error("no server of areas answers at {}: {source}", .path.display())]
    NoServer {
        /// The socket.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It said no.
    #[error("{text}")]
    Refused {
        /// Which kind of no.
        code: Code,
        /// In words.
        text: String,
    },
    /// It went away, or does not speak like one.
    #[error("the server of areas went away, or is none: {0}")]
    Gone(io::Error),
    /// Its owner serves it.
    #[error("its owner serves it at {}", .0.display())]
    Elsewhere(PathBuf),
}

impl From<rustix::io::Errno> for ClientError {
    fn from(error: rustix::io::Errno) -> Self {
        Self::Gone(error.into())
    }
}

/// Meaning of a name.
#[derive(Debug)]
pub enum OpenedArea {
    /// An area: read and write it, or map it.
    Area {
        /// The file or device; open for writing it keeps others from that.
        file: File,
        /// Number of the area.
        number: u64,
        /// Its size.
        bytes: u64,
        /// It may be written.
        is_writable: bool,
        /// It is persistent memory, to be mapped.
        is_mapped: bool,
    },
    /// The owner answers at this socket.
    Elsewhere(PathBuf),
}

/// A connection to the server of a catalog.
#[derive(Debug)]
pub struct CatalogClient {
    socket: OwnedFd,
}

impl CatalogClient {
    /// Connects to the server at `path`.
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        let fail = |error: rustix::io::Errno| ClientError::NoServer {
            path: path.into(),
            source: error.into(),
        };
        let socket = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(fail)?;
        let address = SocketAddrUnix::new(path).map_err(fail)?;
        rustix::net::connect(&socket, &address).map_err(fail)?;
        let wait = rustix::net::sockopt::Timeout::Recv;
        rustix::net::sockopt::set_socket_timeout(&socket, wait, Some(ANSWER_WAIT)).map_err(fail)?;
        Ok(Self { socket })
    }

    /// Asks, and gives the answer with the descriptors that came along.
    fn exchange(&self, request: &Request) -> Result<(Answer, Vec<OwnedFd>), ClientError> {
        rustix::net::send(&self.socket, &request.emit(), SendFlags::NOSIGNAL)?;
        let mut packet = [0; MESSAGE_BYTES_MAX];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let mut slices = [IoSliceMut::new(&mut packet)];
            match rustix::net::recvmsg(&self.socket, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Err(rustix::io::Errno::INTR) => {}
                other => break other?,
            }
        };
        let mut files = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                files.extend(descriptors);
            }
        }
        let malformed = |_| ClientError::Gone(io::ErrorKind::InvalidData.into());
        match Answer::parse(&packet[..received.bytes]).map_err(malformed)? {
            Answer::Refused { code, text } => Err(ClientError::Refused { code, text }),
            answer => Ok((answer, files)),
        }
    }

    /// Asks for a change; `Ok` when it is durable.
    pub fn change(&self, request: &Request) -> Result<(), ClientError> {
        match self.exchange(request)?.0 {
            Answer::Done => Ok(()),
            _ => Err(unexpected()),
        }
    }

    /// Opens an area of this client, or what another exported.
    pub fn open(&self, name: &str, write: bool) -> Result<OpenedArea, ClientError> {
        let name = name.to_owned();
        let (answer, files) = self.exchange(&Request::Open { name, write })?;
        match answer {
            Answer::Elsewhere(path) => Ok(OpenedArea::Elsewhere(path.into())),
            Answer::Opened {
                number,
                bytes,
                is_writable,
                is_mapped,
            } => {
                let file = files.into_iter().next().ok_or_else(unexpected)?;
                Ok(OpenedArea::Area {
                    file: file.into(),
                    number,
                    bytes,
                    is_writable,
                    is_mapped,
                })
            }
            _ => Err(unexpected()),
        }
    }

    /// The areas that this client may know of.
    pub fn areas(&self) -> Result<Vec<AreaEntry>, ClientError> {
        let mut all: Vec<AreaEntry> = Vec::new();
        loop {
            let after = all.last().map_or(0, |entry| entry.number);
            match self.exchange(&Request::Areas { after })?.0 {
                Answer::Areas { entries, more } if more && entries.is_empty() => return Err(unexpected()),
                Answer::Areas { entries, more } => {
                    all.extend(entries);
                    if !more {
                        return Ok(all);
                    }
                }
                _ => return Err(unexpected()),
            }
        }
    }

    /// The exports that this client may know of.
    pub fn exports(&self) -> Result<Vec<ExportEntry>, ClientError> {
        let mut all: Vec<ExportEntry> = Vec::new();
        loop {
            let after = all.last().map_or(String::new(), |entry| entry.name.clone());
            match self.exchange(&Request::Exports { after })?.0 {
                Answer::Exports { entries, more } if more && entries.is_empty() => return Err(unexpected()),
                Answer::Exports { entries, more } => {
                    all.extend(entries);
                    if !more {
                        return Ok(all);
                    }
                }
                _ => return Err(unexpected()),
            }
        }
    }
}

fn unexpected() -> ClientError {
    ClientError::Gone(io::ErrorKind::InvalidData.into())
}

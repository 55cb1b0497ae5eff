//! How a process gets a virtual NIC: it asks a hub at a Unix socket, and is given the memory and the doorbells. The messages are
//! in `docs/format/vnic.md`.

use super::doorbell::Doorbell;
use super::kept::{Keep, Kept};
use super::letter::{MAGIC, VERSION};
use super::port::Port;
use super::vnic::{End, QUEUES_MAX, Shape, Vnic};
use os::PeerIdentity;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use tcp::addr::Mac;

/// Bytes of a message.
const MESSAGE_BYTES: usize = 64;
/// Bytes of a name at most.
pub const NAME_BYTES_MAX: usize = 32;
/// Bytes of an answer to [`status`] at most.
const STATUS_BYTES_MAX: usize = 128 << 10;
/// Connections that the kernel keeps for the hub.
const BACKLOG: i32 = 64;
/// How long a hub may take to answer, in seconds.
const ANSWER_S: u64 = 5;

/// Names the socket of a hub.
pub const SOCKET_VARIABLE: &str = "SWITCHYARD_TCP";
/// The system's hub, and the name of a user's own in its directory for such files.
const SYSTEM_SOCKET: &str = "/run/switchyard/tcp.sock";
const USER_SOCKET: &str = "switchyard-tcp.sock";

/// Socket of the hub: that of [`SOCKET_VARIABLE`], or the user's own if it is there (or `is_hub` and no root), or the system's.
pub fn default_socket(is_hub: bool) -> PathBuf {
    if let Some(path) = std::env::var_os(SOCKET_VARIABLE) {
        return path.into();
    }
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(|dir| Path::new(&dir).join(USER_SOCKET));
    let is_root = rustix::process::geteuid().is_root();
    let is_own = |path: &PathBuf| if is_hub { !is_root } else { path.exists() };
    own.filter(is_own).unwrap_or_else(|| SYSTEM_SOCKET.into())
}

/// The wish of a visitor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// A virtual NIC.
    Attach {
        /// Its name in the hub's status.
        name: String,
        /// Its queues.
        queues: usize,
        /// The process reads letters: the hub may introduce it to other ports.
        takes_letters: bool,
    },
    /// The hub's status.
    Status,
}

/// Why there is no virtual NIC.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// Nobody is at the socket.
    #[error("no hub answers: {0}")]
    NoHub(io::Error),
    /// The hub has as many ports as it may.
    #[error("the hub has no free port")]
    Full,
    /// The hub speaks another version, or takes no such wish.
    #[error("the hub does not take the request")]
    Refused,
    /// The answer is none of a hub.
    #[error("the answer is none of a hub")]
    Malformed,
    /// The system has no memory or descriptors left.
    #[error("the virtual NIC cannot be used: {0}")]
    Io(#[from] io::Error),
}

impl From<Errno> for AttachError {
    fn from(error: Errno) -> Self {
        Self::Io(error.into())
    }
}

/// A hub's answers.
const GRANTED: u8 = 0;
const REFUSED: u8 = 1;
const FULL: u8 = 2;

fn wish_message(wish: &Wish) -> [u8; MESSAGE_BYTES] {
    let mut message = [0; MESSAGE_BYTES];
    message[..4].copy_from_slice(&MAGIC);
    message[4..6].copy_from_slice(&VERSION.to_le_bytes());
    match wish {
        Wish::Status => message[6] = 2,
        Wish::Attach {
            name,
            queues,
            takes_letters,
        } => {
            message[6] = 1;
            message[7] = *queues as u8;
            message[8] = u8::from(*takes_letters);
            let bytes = name.len().min(NAME_BYTES_MAX);
            message[32..32 + bytes].copy_from_slice(&name.as_bytes()[..bytes]);
        }
    }
    message
}

/// Reads a visitor's message. None if it is no wish of this version.
fn parse_wish(message: &[u8]) -> Option<Wish> {
    if message.len() != MESSAGE_BYTES || message[..4] != MAGIC || message[4..6] != VERSION.to_le_bytes() {
        return None;
    }
    let queues = usize::from(message[7]);
    match message[6] {
        1 if (1..=QUEUES_MAX).contains(&queues) => {
            let name = message[32..].split(|byte| *byte == 0).next().unwrap_or_default();
            // The name goes to terminals.
            let is_plain = name.iter().all(|byte| byte.is_ascii_graphic());
            let name = String::from_utf8(name.to_vec()).ok().filter(|_| is_plain)?;
            Some(Wish::Attach {
                name,
                queues,
                takes_letters: message[8] == 1,
            })
        }
        2 => Some(Wish::Status),
        _ => None,
    }
}

/// The terms of a virtual NIC that a hub grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The sizes.
    pub shape: Shape,
    /// The address of the port, which each frame has to have as its source.
    pub mac: Mac,
    /// Bytes of the longest packet of the wire behind the hub.
    pub mtu: u16,
}

fn grant_message(grant: &Grant) -> [u8; MESSAGE_BYTES] {
    let mut message = answer_message(GRANTED);
    message[7] = grant.shape.queues as u8;
    message[8..14].copy_from_slice(&grant.mac.0);
    message[14..16].copy_from_slice(&grant.mtu.to_le_bytes());
    message[16..20].copy_from_slice(&grant.shape.descriptors.to_le_bytes());
    message[20..24].copy_from_slice(&grant.shape.data_bytes.to_le_bytes());
    message
}

fn answer_message(answer: u8) -> [u8; MESSAGE_BYTES] {
    let mut message = [0; MESSAGE_BYTES];
    message[..4].copy_from_slice(&MAGIC);
    message[4..6].copy_from_slice(&VERSION.to_le_bytes());
    message[6] = answer;
    message
}

fn parse_grant(message: &[u8]) -> Result<Grant, AttachError> {
    if message.len() != MESSAGE_BYTES || message[..4] != MAGIC {
        return Err(AttachError::Malformed);
    }
    match (message[6], &message[4..6]) {
        (FULL, _) => return Err(AttachError::Full),
        (GRANTED, version) if version == VERSION.to_le_bytes() => {}
        _ => return Err(AttachError::Refused),
    }
    let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| message[at + byte]));
    let shape = Shape {
        queues: usize::from(message[7]),
        descriptors: word(16),
        data_bytes: word(20),
    };
    let mtu = u16::from_le_bytes([message[14], message[15]]);
    if !shape.is_valid() || mtu < 576 {
        return Err(AttachError::Malformed);
    }
    let mac = Mac([0, 1, 2, 3, 4, 5].map(|at: usize| message[8 + at]));
    Ok(Grant { shape, mac, mtu })
}

/// Asks the hub at a socket for a virtual NIC, and answers its queues.
///
/// # Errors
/// There is no hub, or it does not grant one.
pub fn attach(path: &Path, name: &str, queues: usize) -> Result<Vec<Vnic>, AttachError> {
    ask(path, name, queues, None)
}

/// Asks for a port: a virtual NIC with one queue, whose frames to other ports soon go past the hub.
///
/// # Errors
/// There is no hub, or it does not grant one.
pub fn join(path: &Path, name: &str) -> Result<Port, AttachError> {
    join_kept(path, name, Keep::AS_IT_IS)
}

/// The same, with descriptors that `keep` may give other numbers.
///
/// # Errors
/// There is no hub, it does not grant a port, or `keep` fails.
pub fn join_kept(path: &Path, name: &str, keep: Keep) -> Result<Port, AttachError> {
    let mut queues = ask(path, name, 1, Some(keep))?;
    Ok(Port::new(queues.remove(0), keep)?)
}

/// A virtual NIC. It takes letters if its descriptors are kept.
fn ask(path: &Path, name: &str, queues: usize, keep: Option<Keep>) -> Result<Vec<Vnic>, AttachError> {
    if !(1..=QUEUES_MAX).contains(&queues) {
        return Err(AttachError::Refused);
    }
    let wish = Wish::Attach {
        name: name.to_owned(),
        queues,
        takes_letters: keep.is_some(),
    };
    let socket = visit(path, &wish)?;
    let mut message = [0; MESSAGE_BYTES];
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(QUEUES_MAX + 1))];
    let mut control = RecvAncillaryBuffer::new(&mut room);
    let parts = &mut [IoSliceMut::new(&mut message)];
    let received = rustix::net::recvmsg(&socket, parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut fds = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(more) = part {
            fds.extend(more);
        }
    }
    let grant = parse_grant(&message[..received.bytes])?;
    if grant.shape.queues != queues || fds.len() != queues + 1 {
        return Err(AttachError::Malformed);
    }
    let memory = fds.remove(0);
    let keep = keep.unwrap_or(Keep::AS_IT_IS);
    let bells = fds.into_iter().map(|bell| keep.keep(bell));
    let end = End::take(grant.shape, memory, bells.collect::<io::Result<Vec<Kept>>>()?)?;
    Ok(end.queues(grant.mtu, Some(grant.mac)))
}

/// Asks the hub at a socket for its status: text that the hub's owner makes.
///
/// # Errors
/// There is no hub, or it does not answer.
pub fn status(path: &Path) -> Result<String, AttachError> {
    let socket = visit(path, &Wish::Status)?;
    let mut text = vec![0; STATUS_BYTES_MAX];
    let (count, _) = rustix::net::recv(&socket, &mut *text, RecvFlags::empty())?;
    text.truncate(count);
    String::from_utf8(text).map_err(|_| AttachError::Malformed)
}

fn visit(path: &Path, wish: &Wish) -> Result<OwnedFd, AttachError> {
    let socket = socket(SocketFlags::CLOEXEC)?;
    let limit = Some(std::time::Duration::from_secs(ANSWER_S));
    let timeout = rustix::net::sockopt::Timeout::Recv;
    rustix::net::sockopt::set_socket_timeout(&socket, timeout, limit)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)
        .map_err(|error| AttachError::NoHub(error.into()))?;
    rustix::net::send(&socket, &wish_message(wish), SendFlags::NOSIGNAL)?;
    Ok(socket)
}

fn socket(flags: SocketFlags) -> Result<OwnedFd, Errno> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// The socket at which a hub hears visitors. The socket's file goes when the door does.
#[derive(Debug)]
pub struct Door {
    socket: OwnedFd,
    path: PathBuf,
}

impl Door {
    /// Opens a door for this user's processes. The file of a hub that has gone is replaced.
    ///
    /// # Errors
    /// [`io::ErrorKind::AddrInUse`] if a hub is there, or the file cannot be made.
    pub fn open(path: &Path) -> io::Result<Self> {
        let listener = socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        let address = SocketAddrUnix::new(path)?;
        match rustix::net::bind(&listener, &address) {
            Err(Errno::ADDRINUSE) => {
                let probe = socket(SocketFlags::CLOEXEC)?;
                if rustix::net::connect(&probe, &address) != Err(Errno::CONNREFUSED) {
                    return Err(io::ErrorKind::AddrInUse.into());
                }
                std::fs::remove_file(path)?;
                rustix::net::bind(&listener, &address)?;
            }
            result => result?,
        }
        let door = Self {
            socket: listener,
            path: path.to_owned(),
        };
        // Nobody can connect before it listens.
        rustix::fs::chmod(path, rustix::fs::Mode::from_raw_mode(0o600))?;
        rustix::net::listen(&door.socket, BACKLOG)?;
        Ok(door)
    }

    /// Can be read when a visitor is there.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The next visitor.
    pub fn next(&self) -> Option<Visitor> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::accept_with(&self.socket, flags).ok()?;
        let who = os::peer_identity(&socket).ok()?;
        Some(Visitor { socket, who })
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        // If it is gone already, so be it.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A process at the door.
#[derive(Debug)]
pub struct Visitor {
    socket: OwnedFd,
    /// Its process and user.
    pub who: PeerIdentity,
}

impl Visitor {
    /// Can be read when there is a wish.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Reads its wish; `None` if it has not said one yet.
    ///
    /// # Errors
    /// It has said something else, or has gone.
    pub fn wish(&self) -> Result<Option<Wish>, AttachError> {
        let mut message = [0; MESSAGE_BYTES + 1];
        match rustix::net::recv(&self.socket, &mut message, RecvFlags::DONTWAIT) {
            Ok((count, _)) => parse_wish(&message[..count.min(message.len())])
                .map(Some)
                .ok_or(AttachError::Refused),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Hands a virtual NIC over.
    ///
    /// # Errors
    /// The visitor has gone.
    pub fn grant(&self, grant: &Grant, end: &End, bells: &[Doorbell]) -> io::Result<()> {
        let fds: Vec<_> = [end.memory()]
            .into_iter()
            .chain(bells.iter().map(Doorbell::fd))
            .collect();
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(QUEUES_MAX + 1))];
        let mut control = SendAncillaryBuffer::new(&mut room);
        assert!(
            control.push(SendAncillaryMessage::ScmRights(&fds)),
            "there is room for all"
        );
        let message = grant_message(grant);
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        rustix::net::sendmsg(&self.socket, &[IoSlice::new(&message)], &mut control, flags)?;
        Ok(())
    }

    /// Says no: there is no free port, or the wish is none.
    pub fn refuse(&self, is_full: bool) {
        self.say(&answer_message(if is_full { FULL } else { REFUSED }));
    }

    /// Answers a status.
    pub fn say(&self, text: &[u8]) {
        // A visitor that does not listen is no concern of the hub.
        let _ = rustix::net::send(&self.socket, text, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_written_and_others_are_refused() {
        let wish = Wish::Attach {
            name: "redis".to_owned(),
            queues: 3,
            takes_letters: true,
        };
        let message = wish_message(&wish);
        assert_eq!(parse_wish(&message), Some(wish));
        assert_eq!(parse_wish(&wish_message(&Wish::Status)), Some(Wish::Status));
        let changed = |at: usize, to: u8| {
            let mut message = message;
            message[at] = to;
            parse_wish(&message)
        };
        for (at, to) in [(0, 0), (4, 9), (6, 9), (7, 0), (7, 17), (32, 27), (33, 0xff)] {
            assert_eq!(changed(at, to), None, "byte {at}");
        }
        assert_eq!(parse_wish(&message[..63]), None);
    }

    #[test]
    fn grants_are_read_as_they_were_written_and_others_are_refused() {
        let grant = Grant {
            shape: Shape::default(),
            mac: Mac([2, 1, 2, 3, 4, 5]),
            mtu: 1500,
        };
        let message = grant_message(&grant);
        assert_eq!(parse_grant(&message).expect("it is one"), grant);
        assert!(matches!(
            parse_grant(&answer_message(FULL)),
            Err(AttachError::Full)
        ));
        assert!(matches!(
            parse_grant(&answer_message(REFUSED)),
            Err(AttachError::Refused)
        ));
        for (at, to) in [(0, 0), (7, 0), (7, 200), (16, 3), (20, 1), (23, 0x80), (14, 0)] {
            let mut message = message;
            message[at] = to;
            if at == 14 {
                message[15] = 0;
            }
            assert!(
                matches!(parse_grant(&message), Err(AttachError::Malformed)),
                "byte {at}"
            );
        }
    }
}

//! The socket of a catalog: who connects, what they ask, and that nobody keeps others from it.
//!
//! A thread for each connection, sixteen for each user. What a client sends is one packet, read whole; who stalls is cut off
//! after ten seconds. Descriptors that clients send along are never received.

use super::keeper::{Given, Keeper, Refusal};
use anyhow::Context;
use base::event::{AreaRefusal, Kind, Source};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, sockopt,
};
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use store::catalog::protocol::{Answer, Code, MESSAGE_BYTES_MAX, MessageError, OWN, Request};
use store::catalog::{Change, Who};

use crate::events;
use crate::failure::Failure;

/// Connections of one user at once.
const USER_CONNECTIONS_MAX: usize = 16;
/// Of all users.
const CONNECTIONS_MAX: usize = 256;
/// How long a client may be silent, or not take its answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Entries of a list that are looked at for one answer.
const LIST_ENTRIES: usize = 64;
const BACKLOG: i32 = 128;

/// Listens at `path`, where nobody else does.
pub fn listen(path: &Path) -> anyhow::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path).with_context(|| format!("{}", path.display()))?;
    if area::catalog::CatalogClient::connect(path).is_ok() {
        let text = format!(
            "{}: another server of areas listens there: name another --socket",
            path.display()
        );
        return Err(Failure::InUse(text).into());
    }
    match fs::symlink_metadata(path) {
        Ok(data) if data.file_type().is_socket() => fs::remove_file(path)?,
        Ok(_) => anyhow::bail!(
            "{} exists, and is not a socket: name another path with --socket",
            path.display()
        ),
        Err(_) => {
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent).with_context(|| format!("{}", parent.display()))?;
            }
        }
    }
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    rustix::net::bind(&socket, &address).with_context(|| format!("{}", path.display()))?;
    // Everybody may ask; what they get depends on who they are.
    fs::set_permissions(path, Permissions::from_mode(0o666))?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Connections of each user.
type Users = Arc<Mutex<BTreeMap<u32, usize>>>;

/// Counts a connection as long as it lives.
struct Place(Users, u32);

impl Place {
    fn take(users: &Users, user: u32) -> Option<Self> {
        let mut all = users.lock().unwrap_or_else(PoisonError::into_inner);
        let (total, mine) = (all.values().sum::<usize>(), all.get(&user).copied().unwrap_or(0));
        if total >= CONNECTIONS_MAX || mine >= USER_CONNECTIONS_MAX {
            return None;
        }
        all.insert(user, mine + 1);
        Some(Self(Arc::clone(users), user))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match all.get_mut(&self.1) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(all.remove(&self.1)),
        }
    }
}

/// Takes connections, for ever. `admin` is the server's own user.
pub fn accept(socket: &OwnedFd, keeper: &Arc<Keeper>, admin: u32) {
    let users = Users::default();
    loop {
        let Ok(connection) = rustix::net::accept_with(socket, SocketFlags::CLOEXEC) else {
            // A client that is gone already, or no descriptor left for it.
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        let Ok(peer) = sockopt::socket_peercred(&connection) else {
            continue;
        };
        let user = peer.uid.as_raw();
        let process = peer.pid.as_raw_nonzero().get().unsigned_abs();
        let who = Who {
            user,
            group: peer.gid.as_raw(),
            is_admin: [0, admin].contains(&user),
        };
        for timeout in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
            let _ = sockopt::set_socket_timeout(&connection, timeout, Some(PATIENCE));
        }
        let refuse = |connection: &OwnedFd| {
            let text = "too many connections".to_owned();
            let code = Code::Busy;
            refused(user, code);
            let _ = answer(
                connection,
                &Answer::Refused { code, text },
                &[],
                SendFlags::DONTWAIT,
            );
        };
        let Some(place) = Place::take(&users, user) else {
            refuse(&connection);
            continue;
        };
        let keeper = Arc::clone(keeper);
        let builder = std::thread::Builder::new()
            .name("areas".into())
            .stack_size(256 << 10);
        let _ = builder.spawn(move || {
            serve(&connection, &keeper, who, process);
            drop(place);
        });
    }
}

/// One connection, to its end.
fn serve(connection: &OwnedFd, keeper: &Keeper, who: Who, process: u32) {
    let mut packet = [0; MESSAGE_BYTES_MAX + 1];
    loop {
        let length = match rustix::net::recv(connection, &mut packet, RecvFlags::TRUNC) {
            Ok((_, length @ 1..)) => length,
            Err(rustix::io::Errno::INTR) => continue,
            // Gone, or silent for too long.
            _ => return,
        };
        let request = match packet.get(..length) {
            Some(packet) => Request::parse(packet),
            None => Err(MessageError::Malformed),
        };
        let is_malformed = request.is_err();
        let answered = match request {
            Ok(request) => carry_out(keeper, request, who, process),
            Err(error) => Err(Refusal(Code::Malformed, error.to_string())),
        };
        if let Err(Refusal(code, _)) = &answered {
            refused(who.user, *code);
        }
        let (said, files) =
            answered.unwrap_or_else(|Refusal(code, text)| (Answer::Refused { code, text }, Vec::new()));
        if !answer(connection, &said, &files, SendFlags::empty()) || is_malformed {
            return;
        }
    }
}

/// Tells that a user's request was refused.
fn refused(user: u32, code: Code) {
    let why = match code {
        Code::Malformed => AreaRefusal::Malformed,
        Code::Unknown => AreaRefusal::Unknown,
        Code::Exists => AreaRefusal::Exists,
        Code::NotPermitted => AreaRefusal::NotPermitted,
        Code::Invalid => AreaRefusal::Invalid,
        Code::Quota => AreaRefusal::Quota,
        Code::NoRoom => AreaRefusal::NoRoom,
        Code::InUse => AreaRefusal::InUse,
        Code::Failed => AreaRefusal::Failed,
        Code::Busy => AreaRefusal::Busy,
    };
    events::tell(Source::Areas, Kind::AreaRefused { user, why });
}

/// Sends an answer; false if the client does not take it.
fn answer(connection: &OwnedFd, answer: &Answer, files: &[OwnedFd], flags: SendFlags) -> bool {
    let descriptors: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    let packet = answer.emit();
    let slices = [IoSlice::new(&packet)];
    rustix::net::sendmsg(connection, &slices, &mut control, flags | SendFlags::NOSIGNAL).is_ok()
}

fn carry_out(
    keeper: &Keeper,
    request: Request,
    who: Who,
    process: u32,
) -> Result<(Answer, Vec<OwnedFd>), Refusal> {
    let mut is_forced = false;
    let change = match request {
        Request::Open { name, write } => return open(keeper, &name, who, write, process),
        Request::Areas { after } => {
            let (entries, more) = keeper.areas(after, who, LIST_ENTRIES);
            return Ok((Answer::Areas { entries, more }, Vec::new()));
        }
        Request::Exports { after } => {
            let (entries, more) = keeper.exports(&after, who, LIST_ENTRIES);
            return Ok((Answer::Exports { entries, more }, Vec::new()));
        }
        Request::Create(mut area) => {
            let own = |number, own| if number == OWN { own } else { number };
            (area.owner, area.group) = (own(area.owner, who.user), own(area.group, who.group));
            // A group has rights by the mode: only one's own may be given some.
            if area.group != who.group && !who.is_admin {
                return Err(Refusal(
                    Code::NotPermitted,
                    "not permitted: it is another group".into(),
                ));
            }
            Change::Create(area)
        }
        Request::Resize { name, bytes } => Change::Resize { name, bytes },
        Request::Limit { name, rate } => Change::Limit { name, rate },
        Request::Delete { name, force } => {
            is_forced = force;
            Change::Delete { name }
        }
        Request::Export {
            name,
            area,
            readers,
            path,
        } => Change::Export {
            name,
            area,
            readers,
            path,
        },
        Request::Withdraw { name } => Change::Withdraw { name },
    };
    keeper.change(&change, who, is_forced)?;
    Ok((Answer::Done, Vec::new()))
}

fn open(
    keeper: &Keeper,
    name: &str,
    who: Who,
    write: bool,
    process: u32,
) -> Result<(Answer, Vec<OwnedFd>), Refusal> {
    match keeper.open(name, who, write, process)? {
        Given::Elsewhere(path) => Ok((Answer::Elsewhere(path), Vec::new())),
        Given::Area(id, bytes, handed_out) => {
            let (area, user) = (id.0, who.user);
            events::tell(Source::Areas, Kind::AreaClaimed { area, user, process });
            let answer = Answer::Opened {
                number: id.0,
                bytes,
                is_writable: write,
                is_mapped: handed_out.is_mapped,
            };
            Ok((answer, vec![handed_out.file.into()]))
        }
    }
}

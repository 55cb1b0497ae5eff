//! Names of the kernel's sockets that stand in for served ones (`bridge`). The names tell the addresses of the connection, to any process of `run --tcp` that
//! gets such a socket.

use super::address::{self, Family};
use super::settings::is_run;
use crate::real;
use libc::{c_int, sockaddr, sockaddr_un, socklen_t};
use os::sync::{AtomicU32, Ordering};
use rustix::net::SocketAddrUnix;
use std::mem;
use tcp::addr::{Endpoint, Ip};

const BEGIN: &str = "switchyard-tcp/";
/// Makes names differ.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// A name that nobody has.
pub(crate) fn make(family: Family, end: Endpoint) -> Result<SocketAddrUnix, c_int> {
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let ip: String = end.ip.octets().iter().map(|byte| format!("{byte:02x}")).collect();
    let domain = family.domain();
    let name = format!(
        "{BEGIN}{domain}/{ip}/{}/{}/{number}",
        end.port,
        std::process::id()
    );
    SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(rustix::io::Errno::raw_os_error)
}

fn parse(name: &[u8]) -> Option<(Family, Endpoint)> {
    let name = std::str::from_utf8(name).ok()?.strip_prefix(BEGIN)?;
    let mut parts = name.split('/');
    let family = Family::of(parts.next()?.parse().ok()?)?;
    let ip = u128::from_str_radix(parts.next()?, 16).ok()?;
    let ip = Ip::v6(ip.to_be_bytes());
    let port = parts.next()?.parse().ok()?;
    Some((family, Endpoint { ip, port }))
}

/// The address that a socket of the kernel's stands for, or that of its peer; `None` for all others.
pub(crate) fn of(fd: c_int, is_peer: bool) -> Option<(Family, Endpoint)> {
    if !is_run() {
        return None;
    }
    // SAFETY: zeros are a valid address, which the call fills.
    let (result, found, bytes) = unsafe {
        let mut found: sockaddr_un = mem::zeroed();
        let mut bytes = size_of_val(&found) as socklen_t;
        let place = (&raw mut found).cast::<sockaddr>();
        let result = match is_peer {
            false => real::getsockname(fd, place, &mut bytes),
            true => real::getpeername(fd, place, &mut bytes),
        };
        (result, found, bytes as usize)
    };
    let is_unix = result == 0 && c_int::from(found.sun_family) == libc::AF_UNIX;
    let length = bytes
        .checked_sub(size_of::<libc::sa_family_t>() + 1)
        .filter(|_| is_unix)?;
    // The name begins with a zero.
    let name: Vec<u8> = found
        .sun_path
        .iter()
        .skip(1)
        .take(length)
        .map(|byte| *byte as u8)
        .collect();
    parse(&name)
}

/// Puts the address that a socket stands for in the place of its name, as the program has got it.
pub(crate) unsafe fn show(
    fd: c_int,
    is_peer: bool,
    address: *mut sockaddr,
    bytes: *mut socklen_t,
    room: socklen_t,
) {
    // SAFETY: the program's place.
    let is_unix = !address.is_null()
        && !bytes.is_null()
        && unsafe { *bytes } >= 2
        && c_int::from(unsafe { (*address).sa_family }) == libc::AF_UNIX;
    if let Some((family, end)) = is_unix.then(|| of(fd, is_peer)).flatten() {
        // SAFETY: the program's place, which has so much room.
        unsafe {
            *bytes = room;
            address::write(family, end, address, bytes);
        }
    }
}

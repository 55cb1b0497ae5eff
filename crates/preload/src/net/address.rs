//! Addresses as the program has them (`sockaddr`), and as the stack has them.

use libc::{c_int, sockaddr, sockaddr_in, sockaddr_in6, socklen_t};
use std::mem;
use std::ptr;
use tcp::addr::{Endpoint, Ip};

/// The families of sockets that are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// AF_INET.
    V4,
    /// AF_INET6; IPv4 addresses are mapped (RFC 4291 §2.5.5.2).
    V6,
}

impl Family {
    pub fn of(domain: c_int) -> Option<Self> {
        match domain {
            libc::AF_INET => Some(Self::V4),
            libc::AF_INET6 => Some(Self::V6),
            _ => None,
        }
    }

    pub fn domain(self) -> c_int {
        match self {
            Self::V4 => libc::AF_INET,
            Self::V6 => libc::AF_INET6,
        }
    }
}

/// Reads a program's address; `None` if it is none of the family. `::` and `0.0.0.0` are [`Ip::ANY`].
pub(crate) unsafe fn read(family: Family, address: *const sockaddr, bytes: socklen_t) -> Option<Endpoint> {
    let bytes = bytes as usize;
    if address.is_null() || bytes < size_of::<libc::sa_family_t>() {
        return None;
    }
    // SAFETY: the program's address has so many bytes.
    unsafe {
        match (family, c_int::from((*address).sa_family)) {
            (Family::V4, libc::AF_INET) if bytes >= size_of::<sockaddr_in>() => {
                let address = address.cast::<sockaddr_in>().read_unaligned();
                let ip = match address.sin_addr.s_addr {
                    0 => Ip::ANY,
                    word => Ip::v4(word.to_ne_bytes()),
                };
                let port = u16::from_be(address.sin_port);
                Some(Endpoint { ip, port })
            }
            (Family::V6, libc::AF_INET6) if bytes >= size_of::<sockaddr_in6>() => {
                let address = address.cast::<sockaddr_in6>().read_unaligned();
                let ip = Ip::v6(address.sin6_addr.s6_addr);
                let port = u16::from_be(address.sin6_port);
                Some(Endpoint { ip, port })
            }
            _ => None,
        }
    }
}

/// Writes an address into the program's place, which has `*bytes`, as far as it has room.
pub(crate) unsafe fn write(family: Family, from: Endpoint, address: *mut sockaddr, bytes: *mut socklen_t) {
    if address.is_null() || bytes.is_null() {
        return;
    }
    // SAFETY: zeros are valid addresses; the program's place has as many bytes as it says.
    unsafe {
        let room = *bytes as usize;
        let (filled, length): ([u8; size_of::<sockaddr_in6>()], usize) = match family {
            Family::V4 => {
                let mut new: sockaddr_in = mem::zeroed();
                new.sin_family = libc::AF_INET as libc::sa_family_t;
                new.sin_port = from.port.to_be();
                if from.ip != Ip::ANY {
                    new.sin_addr.s_addr = u32::from_ne_bytes(from.ip.octets4());
                }
                let mut filled = [0; size_of::<sockaddr_in6>()];
                ptr::copy_nonoverlapping(
                    (&raw const new).cast::<u8>(),
                    filled.as_mut_ptr(),
                    size_of::<sockaddr_in>(),
                );
                (filled, size_of::<sockaddr_in>())
            }
            Family::V6 => {
                let mut new: sockaddr_in6 = mem::zeroed();
                new.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                new.sin6_port = from.port.to_be();
                new.sin6_addr.s6_addr = from.ip.octets();
                (
                    mem::transmute::<sockaddr_in6, [u8; size_of::<sockaddr_in6>()]>(new),
                    size_of::<sockaddr_in6>(),
                )
            }
        };
        ptr::copy_nonoverlapping(filled.as_ptr(), address.cast::<u8>(), room.min(length));
        *bytes = length as socklen_t;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_were_written() {
        let ends = [
            (Family::V4, Ip::v4([10, 9, 0, 2])),
            (Family::V4, Ip::ANY),
            (Family::V6, Ip::v4([10, 9, 0, 2])),
            (Family::V6, Ip::v6([0x20; 16])),
        ];
        for (family, ip) in ends {
            let end = Endpoint { ip, port: 6379 };
            // SAFETY: the places are there during the calls.
            unsafe {
                let mut room: libc::sockaddr_storage = mem::zeroed();
                let mut bytes = size_of_val(&room) as socklen_t;
                write(family, end, (&raw mut room).cast(), &mut bytes);
                assert_eq!(read(family, (&raw const room).cast(), bytes), Some(end));
                assert_eq!(read(family, (&raw const room).cast(), bytes - 1), None);
            }
        }
    }
}

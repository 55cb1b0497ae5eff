//! The room of a datagram on its way to another host. The kernel would cut a longer one. If a piece is lost, the receiver keeps the others
//! in memory for half a minute (`net.ipv4.ipfrag_time`).

use crate::poller::check;
use crate::sync::now;
use base::event::Kind;
use base::{Addr, Duration, Instant};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::{io, mem, ptr};
use wire::rack::{HEADER_BYTES, PAYLOAD_BYTES_MAX, Part};

/// The network's own headers: IPv4 without options, and UDP.
const NETWORK_BYTES: usize = 20 + 8;
/// Every IPv4 host takes so much in one datagram (RFC 791).
const MTU_MIN: usize = 576;
/// Payload that fits everywhere.
const ROOM_MIN: usize = MTU_MIN - NETWORK_BYTES - HEADER_BYTES;
/// A path may change: another route, or a router that told the kernel of a shorter way.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The paths to the hosts that packets with much payload go to.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    known: Vec<Path>,
    told: Option<Kind>,
}

#[derive(Debug)]
struct Path {
    ip: u32,
    mtu: usize,
    looked_at: Instant,
}

impl Paths {
    /// The parts in which a payload of `length` bytes goes to `to`.
    pub fn parts(&mut self, to: Addr, length: usize) -> impl Iterator<Item = Part> + use<> {
        let room = match length {
            ..=ROOM_MIN => ROOM_MIN,
            _ => room(self.mtu(to)),
        };
        Part::all(length, room)
    }

    /// A path that turned out to be too narrow for a page.
    pub fn next_event(&mut self) -> Option<Kind> {
        self.told.take()
    }

    fn mtu(&mut self, to: Addr) -> usize {
        let now = now();
        let place = self.known.iter().position(|path| path.ip == to.ip);
        if let Some(path) = place.map(|place| &self.known[place])
            && now.since(path.looked_at) < LOOK_EVERY
        {
            return path.mtu;
        }
        // Nowhere: the kernel refuses the packet itself.
        let mtu = look(to).unwrap_or(usize::MAX);
        let path = Path {
            ip: to.ip,
            mtu,
            looked_at: now,
        };
        let before = match place {
            Some(place) => mem::replace(&mut self.known[place], path).mtu,
            None => {
                self.known.push(path);
                usize::MAX
            }
        };
        let parts = Part::all(PAYLOAD_BYTES_MAX, room(mtu)).count();
        if parts > 1 && mtu != before {
            let (mtu, parts) = (mtu as u32, parts as u32);
            self.told = Some(Kind::PathNarrow { to, mtu, parts });
        }
        mtu
    }
}

/// Payload behind one header.
fn room(mtu: usize) -> usize {
    mtu.max(MTU_MIN) - NETWORK_BYTES - HEADER_BYTES
}

/// Asks the kernel's routes.
fn look(to: Addr) -> io::Result<usize> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect((Ipv4Addr::from(to.ip), to.port))?;
    let mut mtu: libc::c_int = 0;
    let mut size = mem::size_of_val(&mtu) as libc::socklen_t;
    // SAFETY: `mtu` is valid for writes of `size` bytes.
    let result = unsafe {
        let place = ptr::from_mut(&mut mtu).cast();
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_MTU,
            place,
            &mut size,
        )
    };
    check(result)?;
    Ok(usize::try_from(mtu).unwrap_or(MTU_MIN))
}

#[cfg(test)]
impl Paths {
    /// A path as it is to a host behind a narrower network.
    pub fn narrow(&mut self, to: Addr, mtu: usize) {
        let looked_at = now();
        self.known.push(Path {
            ip: to.ip,
            mtu,
            looked_at,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Addr = Addr::new([127, 0, 0, 1], 9);

    #[test]
    fn a_page_crosses_the_loopback_whole() {
        let mut paths = Paths::default();
        let parts: Vec<_> = paths.parts(HERE, PAYLOAD_BYTES_MAX).collect();
        assert_eq!(parts, [Part::WHOLE]);
        assert_eq!(paths.next_event(), None);
    }

    #[test]
    fn a_page_goes_in_three_over_ethernet() {
        let mut paths = Paths::default();
        paths.narrow(HERE, 1500);
        let parts: Vec<_> = paths.parts(HERE, PAYLOAD_BYTES_MAX).collect();
        assert_eq!(parts.len(), 3);
        for part in parts {
            let bytes = part.range(PAYLOAD_BYTES_MAX).len() + HEADER_BYTES + NETWORK_BYTES;
            assert!(bytes <= 1500);
        }
        assert_eq!(paths.parts(HERE, 1000).count(), 1);
    }
}

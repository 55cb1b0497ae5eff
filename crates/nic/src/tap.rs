//! A TAP device: the other end is an interface of the kernel.
//!
//! The device has virtio-net headers, so the kernel neither makes checksums nor cuts segments for us: they go through whole.

use crate::frames::{Checksums, FRAME_BYTES_MAX, Frame, Frames, Limits, LinkError, Sleep, Written};
use crate::interface::{Interface, is_gone, ptr_of, put_name};
use crate::offload;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::{io, mem};

/// Offloads of `linux/if_tun.h` that `libc` may lack.
const TUN_F_CSUM: libc::c_ulong = 1;
const TUN_F_TSO4: libc::c_ulong = 2;
const TUN_F_TSO6: libc::c_ulong = 4;
/// Longer names are none (`IFNAMSIZ`, its zero included).
const NAME_BYTES_MAX: usize = 15;

/// One queue of a TAP device. Dropping all of them removes the device, unless somebody has made it persistent.
#[derive(Debug)]
pub struct Tap {
    file: OwnedFd,
    limits: Limits,
    incoming: Box<[u8]>,
    outgoing: Box<[u8]>,
}

/// Opens, or makes, a TAP device with so many queues, and sets it up. Needs CAP_NET_ADMIN.
///
/// # Errors
/// The kernel refuses it.
pub fn open(name: &str, queues: usize) -> io::Result<Vec<Tap>> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX || queues == 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let files: io::Result<Vec<OwnedFd>> = (0..queues).map(|_| open_queue(name, queues > 1)).collect();
    let files = files?;
    let interface = Interface::open(name)?;
    interface.set_up()?;
    let limits = Limits {
        mtu: interface.mtu()?,
        segment_bytes_max: u16::MAX - 120,
        checksums: Checksums::Link,
        mac: None,
    };
    let room = offload::HEADER_BYTES + FRAME_BYTES_MAX;
    let queue = |file| Tap {
        file,
        limits,
        incoming: vec![0; room].into(),
        outgoing: vec![0; room].into(),
    };
    Ok(files.into_iter().map(queue).collect())
}

fn open_queue(name: &str, has_more: bool) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = rustix::fs::open("/dev/net/tun", flags, Mode::empty())?;
    // SAFETY: zeros are a request.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    put_name(&mut request, name);
    let more = if has_more { libc::IFF_MULTI_QUEUE } else { 0 };
    let kind = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | more;
    request.ifr_ifru.ifru_flags = kind as libc::c_short;
    // SAFETY: the request reads an `ifreq`.
    if unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, ptr_of(&mut request)) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let offloads = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6;
    // SAFETY: the request takes a number.
    if unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETOFFLOAD, offloads) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(file)
}

impl Frames for Tap {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn receive(&mut self, count_max: usize, take: &mut dyn FnMut(Frame<'_>)) -> Result<usize, LinkError> {
        let mut count = 0;
        while count < count_max {
            let length = match rustix::io::read(&self.file, &mut *self.incoming) {
                Ok(length) => length,
                Err(Errno::AGAIN) => break,
                Err(error) if is_gone(error) => return Err(LinkError::Io(error.into())),
                // The kernel cannot tell of a frame how it is to be cut, and has dropped it.
                Err(_) => {
                    count += 1;
                    continue;
                }
            };
            count += 1;
            offload::hand_on(&self.incoming[..length], take);
        }
        Ok(count)
    }

    fn send(&mut self, fill: &mut dyn FnMut(&mut [u8]) -> Option<Written>) -> Result<usize, LinkError> {
        let mut count = 0;
        while let Some(bytes) = offload::write(&mut self.outgoing, fill) {
            count += 1;
            match rustix::io::write(&self.file, &self.outgoing[..bytes]) {
                Err(error) if is_gone(error) => return Err(LinkError::Io(error.into())),
                // A frame that the kernel does not take is lost, as on a wire: the interface may be down for a while, and a frame
                // of another may be malformed.
                _ => {}
            }
        }
        Ok(count)
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        Ok(())
    }

    fn arm(&mut self) -> Option<Sleep> {
        Some(Sleep::default())
    }

    fn disarm(&mut self) {}

    fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

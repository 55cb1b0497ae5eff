//! An interface of the kernel: its number, MTU and address, and how to set it up.

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::{io, mem};
use tcp::addr::Mac;

/// An interface of this network namespace.
#[derive(Debug)]
pub struct Interface {
    /// Its number.
    pub index: u32,
    socket: OwnedFd,
    name: String,
}

impl Interface {
    /// The interface with this name.
    ///
    /// # Errors
    /// There is none.
    pub fn open(name: &str) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
        Ok(Self {
            index: netdevice::name_to_index(socket.as_fd(), name)?,
            socket,
            name: name.to_owned(),
        })
    }

    fn request(&self) -> libc::ifreq {
        // SAFETY: zeros are a request.
        let mut request: libc::ifreq = unsafe { mem::zeroed() };
        put_name(&mut request, &self.name);
        request
    }

    fn ioctl(&self, code: libc::c_ulong, request: &mut libc::ifreq) -> io::Result<()> {
        // SAFETY: the requests below read and write an `ifreq`.
        match unsafe { libc::ioctl(self.socket.as_raw_fd(), code, ptr_of(request)) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Bytes of the longest IP packet.
    ///
    /// # Errors
    /// The interface is gone.
    pub fn mtu(&self) -> io::Result<u16> {
        let mut request = self.request();
        self.ioctl(libc::SIOCGIFMTU, &mut request)?;
        // SAFETY: the kernel has filled this field.
        let mtu = unsafe { request.ifr_ifru.ifru_mtu };
        Ok(u16::try_from(mtu).unwrap_or(u16::MAX))
    }

    /// The address of the card.
    ///
    /// # Errors
    /// The interface is gone.
    pub fn mac(&self) -> io::Result<Mac> {
        let mut request = self.request();
        self.ioctl(libc::SIOCGIFHWADDR, &mut request)?;
        // SAFETY: the kernel has filled this field.
        let data = unsafe { request.ifr_ifru.ifru_hwaddr }.sa_data;
        Ok(Mac([0, 1, 2, 3, 4, 5].map(|at: usize| data[at] as u8)))
    }

    /// Lets frames through.
    ///
    /// # Errors
    /// It is not allowed.
    pub fn set_up(&self) -> io::Result<()> {
        let mut request = self.request();
        self.ioctl(libc::SIOCGIFFLAGS, &mut request)?;
        // SAFETY: the kernel has filled this field.
        let flags = unsafe { request.ifr_ifru.ifru_flags };
        request.ifr_ifru.ifru_flags = flags | libc::IFF_UP as libc::c_short;
        self.ioctl(libc::SIOCSIFFLAGS, &mut request)
    }
}

/// Whether an error says that the interface is gone for good. Any other error is about one frame, or about a while.
pub fn is_gone(error: Errno) -> bool {
    matches!(error, Errno::BADF | Errno::BADFD | Errno::NODEV | Errno::NXIO)
}

/// The pointer that an ioctl takes.
pub fn ptr_of<T>(value: &mut T) -> *mut libc::c_void {
    (&raw mut *value).cast()
}

/// Writes an interface's name, which the kernel ends with a zero.
pub fn put_name(request: &mut libc::ifreq, name: &str) {
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
}

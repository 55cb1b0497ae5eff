//! A descriptor of `/dev/fuse`, and buffers for the requests that come by it.

use super::sync::{Arc, Mutex, PoisonError};
use crate::abi::{
    InHeader, NOTIFICATION_HEAD_BYTES_MAX, Notification, OutHeader, Plain, REPLY_HEAD_BYTES_MAX, Reply,
};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{self, Updater, opcode};
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Buffers that are kept for later. More are made when more requests wait for their replies, and are given back then.
const BUFFERS_KEPT: usize = 16;
/// What a request has before its data: header, argument, and the names of an operation (fuse(4): at least the header and the
/// argument of WRITE).
const HEAD_BYTES: usize = 4096;
/// Gives a descriptor of `/dev/fuse` the connection of another one.
const CLONE: ioctl::Opcode = opcode::read::<u32>(229, 0);

/// Buffers for requests.
pub(crate) struct Buffers {
    free: Mutex<Vec<Box<[u8]>>>,
    bytes: usize,
}

impl Buffers {
    /// Buffers for requests with up to `payload_bytes` of data.
    pub fn new(payload_bytes: usize) -> Self {
        Self {
            free: Mutex::new(Vec::with_capacity(BUFFERS_KEPT)),
            bytes: HEAD_BYTES + payload_bytes,
        }
    }

    /// A buffer that was used before, or a new one.
    pub fn take(&self) -> Box<[u8]> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.pop()
            .unwrap_or_else(|| vec![0; self.bytes].into_boxed_slice())
    }

    /// A buffer is free.
    pub fn give(&self, buffer: Box<[u8]>) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < BUFFERS_KEPT {
            free.push(buffer);
        }
    }
}

/// A descriptor of the connection. A reply goes back by the descriptor by which its request came.
pub(crate) struct Channel {
    device: OwnedFd,
    /// For requests that come by this descriptor.
    pub buffers: Arc<Buffers>,
}

impl Channel {
    /// `device` is open for reading and writing; reads of it will not wait.
    pub fn new(device: OwnedFd, buffers: Arc<Buffers>) -> Result<Self, Errno> {
        let flags = rustix::fs::fcntl_getfl(&device)?;
        rustix::fs::fcntl_setfl(&device, flags | OFlags::NONBLOCK)?;
        Ok(Self { device, buffers })
    }

    /// Another descriptor of the same connection, with its own queue of requests under way (FUSE_DEV_IOC_CLONE).
    pub fn try_clone(&self) -> Result<Self, Errno> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let device = rustix::fs::open("/dev/fuse", flags, Mode::empty())?;
        let mut of = self.device.as_raw_fd() as u32;
        // SAFETY: the request reads one number of 32 bits, the descriptor of the connection.
        unsafe { ioctl::ioctl(&device, Updater::<CLONE, u32>::new(&mut of)) }?;
        Self::new(device, Arc::clone(&self.buffers))
    }

    /// Takes a request, without waiting.
    pub fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        rustix::io::read(&self.device, buffer)
    }

    /// Sends the reply to a request. That a request is gone (its connection has ended) is no error.
    pub fn reply(&self, request: &InHeader, reply: &Reply<'_>) {
        let mut head = [0; REPLY_HEAD_BYTES_MAX];
        let (bytes, data) = reply.parts(request.opcode, &mut head);
        self.send(request, 0, &head[..bytes], data);
    }

    /// Sends data as the reply.
    pub fn reply_data(&self, request: &InHeader, data: &[u8]) {
        self.send(request, 0, data, &[]);
    }

    /// Sends an error as the reply.
    pub fn reply_error(&self, request: &InHeader, errno: Errno) {
        self.send(request, -errno.raw_os_error(), &[], &[]);
    }

    fn send(&self, request: &InHeader, error: i32, head: &[u8], data: &[u8]) {
        let header = OutHeader {
            len: (OutHeader::BYTES + head.len() + data.len()) as u32,
            error,
            unique: request.unique,
        };
        let mut bytes = [0; OutHeader::BYTES];
        header.write(&mut bytes).expect("it has this length");
        let parts = [IoSlice::new(&bytes), IoSlice::new(head), IoSlice::new(data)];
        // The kernel takes all or nothing. ENOENT: nobody waits any more. A reply that is too long ends its request with EIO.
        let _ = rustix::io::writev(&self.device, &parts);
    }

    /// Sends a notification. False if the kernel has nothing of it in its caches.
    pub fn notify(&self, notification: &Notification<'_>) -> Result<bool, Errno> {
        let mut head = [0; NOTIFICATION_HEAD_BYTES_MAX];
        let (bytes, data, end) = notification.parts(&mut head);
        let parts = [
            IoSlice::new(&head[..bytes]),
            IoSlice::new(data),
            IoSlice::new(end),
        ];
        match rustix::io::writev(&self.device, &parts) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(errno),
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

//! Catalogs of storage areas: the client's side of their socket ([`CatalogClient`]), and for who serves one the medium behind it
//! ([`CatalogMedia`]). Which area is whose is decided in `store::catalog`; the bytes are on the page docs/format/areas.md.
//!
//! # What a descriptor lets its holder do
//! Whoever has a descriptor has it for good, passes it on, and asks of it whatever its kind of file allows. So:
//!
//! - A *file* is read and written, cut and extended. Its space is reserved, so nobody else's extending takes it away; what is
//!   extended is cut off again by [`CatalogMedia::tend`], which is after the fact. A *strict* catalog hands out a loop device over
//!   each file instead, whose length its holder cannot change.
//! - A *partition* is bounded by the kernel. It is deleted, and its space given away, when nobody has it open.
//! - A *loop device* obeys whoever may write it: LOOP_SET_STATUS64 moves its window over everything that lies below, without
//!   any privilege. A window on a disk is therefore no boundary, and neither is a partition of a loop device, which passes the
//!   request on. A loop device over exactly one file or partition is: nothing else lies below it.
//! - Opening `/proc/self/fd/N` again asks for the rights of the file or device node, which are its server's alone: what was
//!   handed out for reading stays so.

mod client;
mod disk;
mod loops;
mod media;
mod throttle;

pub use client::{CatalogClient, ClientError, OpenedArea, default_socket};
pub use media::{CatalogMedia, CatalogMediaError, HandedOut, WorkError};

use std::io;
use std::os::fd::AsRawFd;

/// An ioctl whose argument is a number or nothing.
fn ioctl(file: &impl AsRawFd, request: libc::c_ulong, argument: libc::c_ulong) -> io::Result<libc::c_int> {
    // SAFETY: the requests of this module take this argument by value.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), request as _, argument) };
    match result {
        0.. => Ok(result),
        _ => Err(io::Error::last_os_error()),
    }
}

/// An ioctl that reads, and may write, one `T`.
fn ioctl_with<T>(file: &impl AsRawFd, request: libc::c_ulong, argument: &mut T) -> io::Result<libc::c_int> {
    // SAFETY: the requests of this module take a pointer to such a `T`, plain integers in the kernel's layout.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), request as _, std::ptr::from_mut(argument)) };
    match result {
        0.. => Ok(result),
        _ => Err(io::Error::last_os_error()),
    }
}

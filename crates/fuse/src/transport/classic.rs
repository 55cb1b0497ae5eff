//! Requests by reads of `/dev/fuse`, replies by writes (fuse(4)).
//!
//! A library for this half would be its decoder: the rest is this file. The ring needs the decoder anyway, and two decoders
//! would be two truths about one protocol. FORGET, INTERRUPT and notifications come and go by this way with the ring, too.

use super::call::{Call, Handler};
use super::channel::Channel;
use super::end::End;
use super::sync::{Arc, Wake};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd};

/// Serves a channel until the connection ends or `stop` can be read.
pub(crate) fn serve(channel: &Arc<Channel>, stop: &Wake, handler: &Handler) -> End {
    let mut spare = None;
    let mut is_aborted = false;
    loop {
        let mut buffer = spare.take().unwrap_or_else(|| channel.buffers.take());
        match channel.read(&mut buffer) {
            Ok(bytes) => {
                if let Some(call) = Call::of_message(buffer, bytes, channel) {
                    handler(call);
                }
                continue;
            }
            Err(Errno::AGAIN) => match wait(channel, stop) {
                Ok(true) => return End::Stopped,
                Ok(false) | Err(Errno::INTR) => {}
                Err(errno) => return End::Failed(errno),
            },
            // Also the answer to a read that had taken a request when the mount went away. The next read tells which it is.
            Err(Errno::CONNABORTED) if !is_aborted => is_aborted = true,
            // ENOENT: the request's caller was interrupted before the request was read.
            Err(Errno::INTR | Errno::NOENT) => {}
            Err(errno) => return End::of(errno),
        }
        spare = Some(buffer);
    }
}

/// Waits for a request; true if the session is to stop.
fn wait(channel: &Channel, stop: &Wake) -> Result<bool, Errno> {
    // SAFETY: the session's wake, and so its descriptor, lives through the call.
    let stop = unsafe { BorrowedFd::borrow_raw(stop.fd()) };
    let mut files = [
        PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::IN),
        PollFd::from_borrowed_fd(stop, PollFlags::IN),
    ];
    poll(&mut files, None)?;
    Ok(!files[1].revents().is_empty())
}

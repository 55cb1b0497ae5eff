//! A request on its way through a server, and its reply.

use super::answered::Answered;
use super::channel::Channel;
use super::region::Slot;
use super::sync::Arc;
use crate::abi::{InHeader, Operation, OutHeader, Plain, Reply, Request, wants_reply};
use rustix::io::Errno;
use std::fmt;

/// What a server does with each call. It runs in the transport's threads: a handler that is to wait gives the call to another
/// thread and returns.
pub(crate) type Handler = Arc<dyn Fn(Call) + Send + Sync>;

/// A request and the place of its reply. Any thread may send the reply, at any time, in any order; until then the request's
/// bytes stay where the kernel put them.
///
/// A call that is dropped is answered with EIO, so that no caller waits for ever.
pub struct Call {
    header: InHeader,
    /// `None` once it was answered.
    place: Option<Place>,
}

enum Place {
    Entry(Slot, Arc<Answered>),
    Message(Box<[u8]>, usize, Arc<Channel>),
}

impl Call {
    /// The call of an entry that the kernel gave back; `None` if the request was none, and is answered.
    pub(crate) fn of_entry(slot: Slot, answered: &Arc<Answered>) -> Option<Self> {
        let header = slot.request();
        let place = Place::Entry(slot, Arc::clone(answered));
        Self {
            header,
            place: Some(place),
        }
        .checked()
    }

    /// The call of `bytes` that came by a channel; `None` if the request was none, and is answered.
    pub(crate) fn of_message(buffer: Box<[u8]>, bytes: usize, channel: &Arc<Channel>) -> Option<Self> {
        let Some(header) = buffer.get(..bytes).and_then(InHeader::read) else {
            channel.buffers.give(buffer);
            return None;
        };
        let place = Place::Message(buffer, bytes, Arc::clone(channel));
        Self {
            header,
            place: Some(place),
        }
        .checked()
    }

    fn checked(self) -> Option<Self> {
        match self.request() {
            Ok(_) => Some(self),
            Err(malformed) => {
                self.fail(malformed.errno());
                None
            }
        }
    }

    fn request(&self) -> Result<Request<'_>, crate::abi::Malformed> {
        match self.place.as_ref().expect("only an answered call has no place") {
            Place::Entry(slot, _) => {
                let (argument, payload) = slot.argument_and_payload();
                Request::of_entry(self.header, argument, payload)
            }
            Place::Message(buffer, bytes, _) => Request::parse(&buffer[..*bytes]),
        }
    }

    /// Number and inode of the request, and user, group and process of the caller.
    pub fn header(&self) -> &InHeader {
        &self.header
    }

    /// What is asked for.
    pub fn operation(&self) -> Operation<'_> {
        let request = self.request();
        request.expect("a call was read once when it came").operation
    }

    /// Answers that it is done. For a request without a reply, this only gives back its memory.
    pub fn reply(mut self, reply: &Reply<'_>) {
        let code = self.header.opcode;
        match self.place.take().expect("only an answered call has no place") {
            Place::Entry(mut slot, answered) => {
                let result = reply.encode(code, slot.reply());
                self.commit(slot, &answered, result.map_err(|_| Errno::IO));
            }
            Place::Message(buffer, _, channel) => {
                if wants_reply(code) {
                    channel.reply(&self.header, reply);
                }
                channel.buffers.give(buffer);
            }
        }
    }

    /// Answers with data that `fill` writes to where they are needed, at most `bytes_max`, which is at most the `size` of the
    /// request; `fill` returns their count. The request's own names and data are gone then.
    ///
    /// # Panics
    /// When `fill` says that it has written more than there was room for.
    pub fn reply_with(mut self, bytes_max: usize, fill: impl FnOnce(&mut [u8]) -> Result<usize, Errno>) {
        // The call keeps its place meanwhile: if `fill` panics, the call is dropped and answered.
        let place = match self.place.as_mut().expect("only an answered call has no place") {
            Place::Entry(slot, _) => slot.reply(),
            Place::Message(buffer, ..) => buffer,
        };
        let room = bytes_max.min(place.len());
        let result = fill(&mut place[..room]);
        assert!(result.is_err() || result.is_ok_and(|bytes| bytes <= room));
        match self.place.take().expect("it was there") {
            Place::Entry(slot, answered) => self.commit(slot, &answered, result),
            Place::Message(buffer, _, channel) => {
                match result {
                    Ok(bytes) => channel.reply_data(&self.header, &buffer[..bytes]),
                    Err(errno) => channel.reply_error(&self.header, errno),
                }
                channel.buffers.give(buffer);
            }
        }
    }

    /// Answers that it failed.
    pub fn fail(mut self, errno: Errno) {
        self.fail_now(errno);
    }

    fn fail_now(&mut self, errno: Errno) {
        match self.place.take() {
            None => {}
            Some(Place::Entry(slot, answered)) => self.commit(slot, &answered, Err(errno)),
            Some(Place::Message(buffer, _, channel)) => {
                if wants_reply(self.header.opcode) {
                    channel.reply_error(&self.header, errno);
                }
                channel.buffers.give(buffer);
            }
        }
    }

    /// Gives an entry with its reply to the ring's thread.
    fn commit(&self, slot: Slot, answered: &Answered, result: Result<usize, Errno>) {
        let bytes = result.unwrap_or(0);
        let reply = OutHeader {
            len: (OutHeader::BYTES + bytes) as u32,
            error: result.err().map_or(0, |errno| -errno.raw_os_error()),
            unique: self.header.unique,
        };
        answered.add(slot.answer(reply, bytes));
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.fail_now(Errno::IO);
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("header", &self.header)
            .finish_non_exhaustive()
    }
}

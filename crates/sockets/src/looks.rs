//! Looks at sockets, which change nothing.

use crate::driver::Sockets;
use crate::error::{SocketError, of_end};
use crate::handle::Handle;
use crate::socket::Phase;
use base::Instant;
use tcp::stack::copy_out;

impl Sockets {
    /// Bytes that can be read from a stream now.
    ///
    /// # Errors
    /// There is no such stream.
    pub fn readable_bytes(&mut self, handle: Handle) -> Result<usize, SocketError> {
        Ok(self.stream(handle)?.readable() as usize)
    }

    /// Copies the next bytes of a stream from the `skipped`th on, and leaves them where they are. 0 if there are none.
    ///
    /// # Errors
    /// There is no such stream.
    pub fn peek(&mut self, handle: Handle, skipped: usize, bytes: &mut [u8]) -> Result<usize, SocketError> {
        let stream = self.stream(handle)?;
        let readable = stream.readable() as usize;
        let count = bytes.len().min(readable.saturating_sub(skipped));
        if count == 0 {
            return Ok(0);
        }
        let at = stream.read_at + skipped as u32;
        let (flow, bytes) = (stream.flow, &mut bytes[..count]);
        match flow {
            Some(flow) => {
                let (_, flows, _) = self.parts();
                copy_out(&flows.pair(flow).receive, at, bytes);
            }
            None => {
                let stream = self.stream(handle)?;
                let left = stream.left.as_ref().expect("a stream that is over has its rings");
                copy_out(&left.receive, at, bytes);
            }
        }
        Ok(count)
    }

    /// Why a stream is over; `None` if it is not, or if both sides have ended it in order.
    ///
    /// # Errors
    /// There is no such stream.
    pub fn failure(&mut self, handle: Handle) -> Result<Option<SocketError>, SocketError> {
        Ok(match self.stream(handle)?.phase {
            Phase::Connecting | Phase::Open => None,
            Phase::Over(end) => of_end(end),
            Phase::Refused(error) => Some(error),
        })
    }

    /// Whether the handshake of a stream is under way.
    ///
    /// # Errors
    /// There is no such stream.
    pub fn is_connecting(&mut self, handle: Handle) -> Result<bool, SocketError> {
        Ok(self.stream(handle)?.phase == Phase::Connecting)
    }

    /// When the stack wants to be polled at the latest; never, if it is none.
    pub fn deadline(&mut self) -> Option<Instant> {
        let (stack, _, _) = self.parts();
        stack.deadline()
    }

    /// Whether the link does nothing more: the hub has ended, for instance.
    pub fn has_ended(&self) -> bool {
        self.is_down()
    }
}

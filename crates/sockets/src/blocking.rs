//! Calls that wait. All other sockets of the thread go on meanwhile; their news stay for [`Sockets::next_ready`].

use crate::driver::Sockets;
use crate::error::SocketError;
use crate::handle::Handle;
use crate::socket::Readiness;
use base::{Duration, Instant};
use tcp::addr::Endpoint;

impl Sockets {
    /// Connects, and waits until that is done.
    ///
    /// # Errors
    /// The connection is not to be, or the time is over; there is no socket then.
    pub fn wait_connect(&mut self, remote: Endpoint, limit: Option<Duration>) -> Result<Handle, SocketError> {
        let handle = self.connect(remote)?;
        let ready = self.wait_until(handle, end(limit), |ready| ready.writable);
        let result = match ready {
            Ok(ready) if ready.is_over => {
                // One that was open, and is over already, has perhaps something to read.
                let stream = self.stream(handle)?;
                match stream.tuple {
                    Some(_) => Ok(handle),
                    None => stream.nothing().and(Err(SocketError::Ended)),
                }
            }
            Ok(_) => Ok(handle),
            Err(error) => Err(error),
        };
        if result.is_err() {
            self.close(handle)?;
        }
        result
    }

    /// Waits for a listener's next connection.
    ///
    /// # Errors
    /// The time is over, or the link is down.
    pub fn wait_accept(&mut self, listener: Handle, limit: Option<Duration>) -> Result<Handle, SocketError> {
        self.wait_until(listener, end(limit), |ready| ready.readable)?;
        self.accept(listener)
    }

    /// Waits for bytes and reads them. 0 is the end of the stream.
    ///
    /// # Errors
    /// There will be none, the time is over, or the link is down.
    pub fn wait_receive(
        &mut self,
        handle: Handle,
        bytes: &mut [u8],
        limit: Option<Duration>,
    ) -> Result<usize, SocketError> {
        match self.receive(handle, bytes) {
            Err(SocketError::WouldBlock) => {}
            result => return result,
        }
        self.wait_until(handle, end(limit), |ready| ready.readable)?;
        self.receive(handle, bytes)
    }

    /// Writes all bytes, and waits for room as often as needed. They are on their way, not at the peer.
    ///
    /// # Errors
    /// The stream is over, the time is over, or the link is down. A part may be written.
    pub fn wait_send(
        &mut self,
        handle: Handle,
        mut bytes: &[u8],
        limit: Option<Duration>,
    ) -> Result<(), SocketError> {
        let until = end(limit);
        while !bytes.is_empty() {
            match self.send(handle, bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(SocketError::WouldBlock) => {
                    self.wait_until(handle, until, |ready| ready.writable)?;
                }
                Err(error) => return Err(error),
            }
        }
        self.push().map_err(|_| SocketError::Link)
    }

    /// Goes on until every connection is over, also those whose sockets were closed: before a program ends.
    ///
    /// # Errors
    /// The time is over, or the link is down.
    pub fn finish(&mut self, limit: Option<Duration>) -> Result<(), SocketError> {
        self.run(end(limit), |sockets| {
            // Nobody is there to hear them.
            while sockets.next_ready().is_some() {}
            sockets.live() == 0
        })?;
        self.push().map_err(|_| SocketError::Link)
    }

    /// Goes on until a socket can do something.
    fn wait_until(
        &mut self,
        handle: Handle,
        until: Option<Instant>,
        is_wanted: impl Fn(&Readiness) -> bool,
    ) -> Result<Readiness, SocketError> {
        let mut ready = self.readiness(handle)?;
        self.run(until, |sockets| {
            ready = sockets.readiness(handle).expect("nobody has closed it");
            is_wanted(&ready)
        })?;
        Ok(ready)
    }

    fn run(
        &mut self,
        until: Option<Instant>,
        is_done: impl FnMut(&mut Self) -> bool,
    ) -> Result<(), SocketError> {
        match self.run_until(until, is_done) {
            Ok(true) => Ok(()),
            Ok(false) => Err(SocketError::Late),
            Err(_) => Err(SocketError::Link),
        }
    }
}

fn end(limit: Option<Duration>) -> Option<Instant> {
    limit.map(|limit| os::now() + limit)
}

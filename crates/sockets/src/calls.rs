//! Calls on sockets. None of them waits.

use crate::driver::{Sockets, stream_of};
use crate::error::SocketError;
use crate::handle::Handle;
use crate::socket::{Kind, Listener, Phase, Stream};
use std::collections::VecDeque;
use tcp::addr::{Endpoint, Tuple};
use tcp::api::{Call, Setting};
use tcp::stack::{Bump, copy_in, copy_out};

/// The stack's number of the one application.
const APP: u16 = 0;

impl Sockets {
    /// Listens at an address of this host, or at [`tcp::addr::Ip::ANY`] for all of them. At most `backlog` connections wait to be
    /// accepted; more are reset.
    ///
    /// # Errors
    /// The address is taken or not of this host, or there are too many listeners.
    pub fn listen(&mut self, local: Endpoint, backlog: u32) -> Result<Handle, SocketError> {
        self.check_link()?;
        let handle = self.add(Kind::Listener(Listener {
            local,
            waiting: VecDeque::new(),
            backlog: backlog.max(1) as usize,
            refused: None,
        }));
        let call = Call::Listen {
            local,
            backlog: backlog.max(1),
            rings: self.rings(),
        };
        self.ask(handle.word(), call);
        match self.listener(handle)?.refused {
            None => Ok(handle),
            Some(error) => {
                self.remove(handle)?;
                Err(error)
            }
        }
    }

    /// The next connection of a listener.
    ///
    /// # Errors
    /// [`SocketError::WouldBlock`] if there is none.
    pub fn accept(&mut self, listener: Handle) -> Result<Handle, SocketError> {
        let next = self.listener(listener)?.waiting.pop_front();
        match next {
            Some(handle) => Ok(handle),
            None => self.check_link().and(Err(SocketError::WouldBlock)),
        }
    }

    /// Begins to connect. The socket is writable once it is connected, and over if it is not to be.
    ///
    /// # Errors
    /// No way leads there, or there are too many connections.
    pub fn connect(&mut self, remote: Endpoint) -> Result<Handle, SocketError> {
        self.connect_from(remote, 0)
    }

    /// The same from a port of this host; 0 is any.
    ///
    /// # Errors
    /// Also if the port has a connection to `remote` already.
    pub fn connect_from(&mut self, remote: Endpoint, port: u16) -> Result<Handle, SocketError> {
        self.check_link()?;
        let handle = self.add(Kind::Stream(Stream::new()));
        let rings = self.rings();
        self.ask(handle.word(), Call::Connect { remote, port, rings });
        match self.stream(handle)?.phase {
            Phase::Refused(error) => {
                self.remove(handle)?;
                Err(error)
            }
            _ => Ok(handle),
        }
    }

    /// Both ends of a stream, once it is open.
    ///
    /// # Errors
    /// There is no such stream.
    pub fn tuple(&mut self, handle: Handle) -> Result<Option<Tuple>, SocketError> {
        Ok(self.stream(handle)?.tuple)
    }

    /// Reads what there is, and as much as fits. 0 is the end of the stream.
    ///
    /// # Errors
    /// [`SocketError::WouldBlock`] if there is nothing, or why there will be nothing.
    #[inline]
    pub fn receive(&mut self, handle: Handle, bytes: &mut [u8]) -> Result<usize, SocketError> {
        let (stack, flows, sockets) = self.parts();
        let stream = stream_of(sockets, handle)?;
        let count = bytes.len().min(stream.readable() as usize);
        if count == 0 {
            if bytes.is_empty() {
                return Ok(0);
            }
            stream.nothing()?;
            return Ok(0);
        }
        let (at, flow) = (stream.read_at, stream.flow);
        stream.read_at += count as u32;
        let bytes = &mut bytes[..count];
        match flow {
            Some(flow) => {
                copy_out(&flows.pair(flow).receive, at, bytes);
                let bump = Bump {
                    read: count as u32,
                    written: 0,
                };
                // A flow whose end is not told yet needs no window.
                let _ = stack.bump(APP, flow, bump);
            }
            None => {
                let left = stream.left.as_ref().expect("a stream that is over has its rings");
                copy_out(&left.receive, at, bytes);
            }
        }
        Ok(count)
    }

    /// Writes as much as there is room for. It goes with the next [`Sockets::poll`] or [`Sockets::push`].
    ///
    /// # Errors
    /// [`SocketError::WouldBlock`] if there is no room, or why there will be none.
    #[inline]
    pub fn send(&mut self, handle: Handle, bytes: &[u8]) -> Result<usize, SocketError> {
        let ring_bytes = self.transmit_bytes();
        let (stack, flows, sockets) = self.parts();
        let stream = stream_of(sockets, handle)?;
        let room = stream.writable(ring_bytes) as usize;
        if room == 0 {
            return Err(stream.no_room());
        }
        let count = room.min(bytes.len());
        let (at, flow) = (stream.write_at, stream.flow.ok_or(SocketError::Ended)?);
        copy_in(&mut flows.pair(flow).transmit, at, &bytes[..count]);
        let bump = Bump {
            read: 0,
            written: count as u32,
        };
        stack.bump(APP, flow, bump).map_err(SocketError::from)?;
        stream.write_at += count as u32;
        Ok(count)
    }

    /// Ends what this side sends; what was written still goes.
    ///
    /// # Errors
    /// The stream is not open, or was ended.
    pub fn shutdown(&mut self, handle: Handle) -> Result<(), SocketError> {
        let stream = self.stream(handle)?;
        let (Phase::Open, false, Some(flow)) = (stream.phase, stream.is_shut, stream.flow) else {
            return Err(SocketError::Ended);
        };
        stream.is_shut = true;
        self.ask(handle.word(), Call::Shutdown(flow));
        Ok(())
    }

    /// Closes a socket. Written bytes still go, as long as this thread polls. The peer of a stream with unread bytes
    /// gets a reset. Connections that nobody has accepted end with their listener.
    ///
    /// # Errors
    /// There is no such socket.
    pub fn close(&mut self, handle: Handle) -> Result<(), SocketError> {
        self.end(handle, false)
    }

    /// Closes a stream at once: the peer gets a reset.
    ///
    /// # Errors
    /// There is no such socket.
    pub fn abort(&mut self, handle: Handle) -> Result<(), SocketError> {
        self.end(handle, true)
    }

    fn end(&mut self, handle: Handle, at_once: bool) -> Result<(), SocketError> {
        match self.remove(handle)? {
            Kind::Listener(listener) => {
                self.ask(
                    handle.word(),
                    Call::Unlisten {
                        local: listener.local,
                    },
                );
                for waiting in listener.waiting {
                    self.end(waiting, true)?;
                }
            }
            Kind::Stream(mut stream) => {
                let (_, flows, _) = self.parts();
                stream
                    .left
                    .take()
                    .into_iter()
                    .for_each(|pair| flows.recycle(pair));
                if let Some(flow) = stream.flow {
                    flows.bind(flow, None);
                    let call = if at_once {
                        Call::Abort(flow)
                    } else {
                        Call::Close(flow)
                    };
                    self.ask(handle.word(), call);
                }
            }
        }
        Ok(())
    }

    /// Ends all connections and listeners at once, also those whose sockets were closed: their peers get resets.
    pub fn leave(&mut self) {
        self.ask(0, Call::Leave);
        // A link that is down needs no more.
        let _ = self.push();
    }

    /// Whether small segments wait for acknowledgements (Nagle's rule); they do at first.
    ///
    /// # Errors
    /// The stream is not open.
    pub fn set_no_delay(&mut self, handle: Handle, on: bool) -> Result<(), SocketError> {
        self.set(handle, Setting::NoDelay(on))
    }

    /// Sets an option of an open stream.
    ///
    /// # Errors
    /// The stream is not open.
    pub fn set(&mut self, handle: Handle, setting: Setting) -> Result<(), SocketError> {
        let stream = self.stream(handle)?;
        let (Phase::Open, Some(flow)) = (stream.phase, stream.flow) else {
            return Err(SocketError::Ended);
        };
        self.ask(handle.word(), Call::Set(flow, setting));
        Ok(())
    }

    fn check_link(&self) -> Result<(), SocketError> {
        match self.is_down() {
            true => Err(SocketError::Link),
            false => Ok(()),
        }
    }
}

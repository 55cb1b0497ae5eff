//! Connections that leave for another core and arrive from one.
//!
//! A connection that is to leave is paused: its session takes nothing new, what is under way is answered, and the answers
//! are sent. When it is at rest it holds no page; then it is taken apart, since pages and pool do not leave their core, and
//! put together on the other one. What it had read and not used goes along. One that is not at rest in time stays.
//!
//! A slot is given up after the events of its turn are served, as when a connection is closed.

use super::connection::{Connection, Guard, Protocol};
use super::{Frontend, recount};
use crate::core::{Endpoint, connection_token};
use crate::counters::Counters;
use crate::nvme::NvmeTarget;
use crate::poller::{Interest, Poller};
use base::time::earliest;
use base::{Duration, Instant};
use blockswitch::{AppId, Class};
use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use wire::nbd::{self, Export};
use wire::nvme;

/// A connection that is not at rest after this long stays: a client that does not read, or sends the rest of a payload
/// slowly, would otherwise be kept from going on.
const REST_TIME: Duration = Duration::from_millis(100);

/// Where a connection is to go, and until when it may try.
#[derive(Clone, Copy, Debug)]
pub(super) struct Departure {
    to: usize,
    until: Instant,
}

/// A connection between two cores.
pub(crate) struct Traveller {
    pub app: AppId,
    /// Where it was.
    endpoint: Endpoint,
    port: u16,
    stream: TcpStream,
    session: Parked,
    held: Vec<u8>,
    class: Class,
}

enum Parked {
    Nbd {
        session: Box<nbd::Parked>,
        exports: Vec<Export>,
        guard: Option<Guard>,
    },
    Nvme {
        session: Box<nvme::Parked>,
        target: Arc<NvmeTarget>,
    },
}

/// A connection that was to leave and can, or has to stay.
pub(crate) enum Rested {
    Leaves { slot: usize, to: usize },
    Stays { slot: usize },
}

impl Frontend {
    /// The connections that application steering knows: where they are, and which applications.
    pub fn apps(&self) -> impl Iterator<Item = (usize, AppId)> {
        let slots = self.slots.iter().enumerate();
        slots.filter_map(|(slot, connection)| Some((slot, connection.as_ref()?.app?)))
    }

    /// The application of a connection.
    ///
    /// # Panics
    /// If there is no such connection, or steering does not know it.
    pub fn app(&self, slot: usize) -> AppId {
        let app = self.slots[slot].as_ref().and_then(|connection| connection.app);
        app.expect("a connection of a target")
    }

    /// Pauses a connection, which is to leave for core `to`.
    pub fn set_out(&mut self, now: Instant, slot: usize, to: usize) {
        let connection = self.slots[slot].as_mut().expect("an open connection");
        if connection.departs.is_some() {
            return;
        }
        connection.departs = Some(Departure {
            to,
            until: now + REST_TIME,
        });
        connection.protocol.pause();
        self.departing.push(slot);
    }

    /// When a connection that was to leave stays at the latest.
    pub fn rest_deadline(&self) -> Option<Instant> {
        let departing = self
            .departing
            .iter()
            .filter_map(|&slot| self.slots[slot].as_ref());
        departing
            .filter_map(|connection| Some(connection.departs?.until))
            .min()
    }

    /// The next connection that is at rest or has had its time. One that leaves is asked for with [`Frontend::take`].
    pub fn next_rested(&mut self, now: impl Fn() -> Instant) -> Option<Rested> {
        let (at, rested) = self.departing.iter().enumerate().find_map(|(at, &slot)| {
            let connection = self.slots[slot].as_ref()?;
            let Departure { to, until } = connection.departs?;
            if connection.is_at_rest() {
                return Some((at, Rested::Leaves { slot, to }));
            }
            (now() >= until).then_some((at, Rested::Stays { slot }))
        })?;
        self.departing.swap_remove(at);
        Some(rested)
    }

    /// Lets a connection that was to leave go on here.
    pub fn go_on(&mut self, slot: usize) {
        self.departing.retain(|&departing| departing != slot);
        let connection = self.slots[slot].as_mut().expect("an open connection");
        connection.departs = None;
        connection.protocol.resume();
        // It may have bytes that nobody has looked at.
        self.push_in_line(slot);
    }

    /// Every connection that was to leave goes on here.
    pub fn go_on_all(&mut self) {
        while let Some(slot) = self.departing.pop() {
            self.go_on(slot);
        }
    }

    /// Takes out a connection that is at rest.
    pub fn take(&mut self, slot: usize, poller: &Poller) -> Traveller {
        let connection = self.vacate(slot, poller);
        let app = connection.app.expect("a connection of a target");
        let (held, session) = (connection.unused(), connection.protocol);
        Traveller {
            app,
            endpoint: connection.endpoint,
            port: connection.port,
            stream: connection.stream,
            session: match session {
                Protocol::Nbd {
                    session,
                    exports,
                    guard,
                } => Parked::Nbd {
                    session: Box::new(session.park()),
                    exports,
                    guard,
                },
                Protocol::Nvme { session, target } => Parked::Nvme {
                    session: Box::new(session.park()),
                    target,
                },
            },
            held,
            class: connection.class,
        }
    }

    /// Takes in a connection from another core, or again from this one; tells its slot. One that cannot be watched is
    /// closed.
    pub fn adopt(
        &mut self,
        now: Instant,
        traveller: Traveller,
        poller: &Poller,
        counters: &Counters,
    ) -> io::Result<(usize, u32)> {
        let slot = self.free.pop().expect("its place was reserved");
        let client = self.client_number(slot);
        let pool = || self.pool.clone();
        let protocol = match traveller.session {
            Parked::Nbd {
                session,
                exports,
                guard,
            } => Protocol::Nbd {
                session: Box::new(nbd::Session::unpark(*session, client, pool())),
                exports,
                guard,
            },
            Parked::Nvme { session, target } => Protocol::Nvme {
                session: Box::new(nvme::Session::unpark(*session, client, pool())),
                target,
            },
        };
        let fd = traveller.stream.as_raw_fd();
        let mut connection = Connection::new(traveller.endpoint, client, traveller.stream, protocol);
        connection.port = traveller.port;
        connection.class = traveller.class;
        connection.app = Some(traveller.app);
        connection.keep(traveller.held);
        // What can be read or written now is told anew, as are ends.
        if let Err(error) = poller.add(fd, connection_token(slot), Interest::Edges) {
            connection.protocol.detach();
            self.leave(connection.app);
            self.retire(slot);
            counters.clients_closed.bump();
            return Err(error);
        }
        // The target may have changed on the way.
        connection.protocol.tick(now);
        self.tick_at = earliest(self.tick_at, connection.protocol.deadline());
        recount(&mut self.budget, &mut connection);
        self.slots[slot] = Some(connection);
        self.push_in_line(slot);
        Ok((slot, client))
    }
}

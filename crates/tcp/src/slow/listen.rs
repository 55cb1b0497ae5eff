//! Listeners.

use crate::addr::{Endpoint, Ip};
use crate::api::Rings;
use base::{Instant, Map};

/// A listener.
#[derive(Clone, Copy, Debug)]
pub struct Listener {
    /// The application.
    pub app: u16,
    /// The word of its request.
    pub opaque: u64,
    /// Where it listens.
    pub local: Endpoint,
    /// Handshakes that may be under way.
    pub backlog: u32,
    /// Rings of its connections.
    pub rings: Rings,
    /// Handshakes that are under way.
    pub half_open: u32,
    /// When it sent a SYN cookie last.
    pub cookie_at: Option<Instant>,
}

/// All listeners.
#[derive(Debug)]
pub struct Listeners {
    slots: Vec<Option<Listener>>,
    index: Map<Endpoint, u32>,
}

impl Listeners {
    /// Room for `listeners_max`.
    pub fn new(listeners_max: u32) -> Self {
        Self {
            slots: vec![None; listeners_max as usize],
            index: Map::with_capacity(listeners_max as usize),
        }
    }

    /// The listener of an address: its own, or that of the port.
    pub fn find(&self, local: Endpoint) -> Option<u32> {
        let any = Endpoint { ip: Ip::ANY, ..local };
        self.index.get(&local).or_else(|| self.index.get(&any)).copied()
    }

    /// A listener.
    pub fn at(&mut self, slot: u32) -> &mut Listener {
        self.slots[slot as usize]
            .as_mut()
            .expect("a listener goes after its handshakes")
    }

    /// Whether exactly this address is listened to.
    pub fn has(&self, local: Endpoint) -> bool {
        self.index.contains_key(&local)
    }

    /// Whether somebody listens to the port.
    pub fn has_port(&self, ip: Ip, port: u16) -> bool {
        self.find(Endpoint { ip, port }).is_some()
    }

    /// Adds one. False if there is no room.
    pub fn add(&mut self, listener: Listener) -> bool {
        let Some(slot) = self.slots.iter().position(Option::is_none) else {
            return false;
        };
        self.slots[slot] = Some(listener);
        self.index.insert(listener.local, slot as u32);
        true
    }

    /// The slot of an application's listener at exactly this address.
    pub fn of_app(&self, app: u16, local: Endpoint) -> Option<u32> {
        let slot = *self.index.get(&local)?;
        self.slots[slot as usize]
            .filter(|listener| listener.app == app)
            .map(|_| slot)
    }

    /// The next listener of an application.
    pub fn next_of(&self, app: u16) -> Option<u32> {
        let is_of = |listener: &Option<Listener>| listener.is_some_and(|listener| listener.app == app);
        self.slots.iter().position(is_of).map(|slot| slot as u32)
    }

    /// Takes one away.
    pub fn remove(&mut self, slot: u32) {
        let listener = self.slots[slot as usize].take().expect("it is there");
        self.index.remove(&listener.local);
    }
}

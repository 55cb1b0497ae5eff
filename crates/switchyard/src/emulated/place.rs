//! One host of an emulated rack: a host as the simulator builds it, with the simulator's clients at a gateway, behind
//! links that take the modelled time.
//!
//! A packet of the host is held back for the model's delay, and then handed to its real socket. The time held
//! is added to the packet's LAT, as every hop does (RackBlox §3.4).

use base::{Addr, BlockRequest, Instant, Machine, Pool, VolumeId, time::earliest};
use host::gateway::VolumeState;
use host::{Input, Output};
use sim::client::{ClientStats, ClientVolume, Clients, Entry, Latencies, LoadSpec};
use sim::net::{Fate, Network};
use sim::rack::RackHost;
use sim::workload::stream::Stream;
use std::any::Any;
use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::{Arc, Mutex};
use wire::rack::{HEADER_BYTES, Packet};

/// Time of a packet through the loopback, about: it is held back so much less.
const LOOPBACK_NS: u64 = 10_000;

/// The links between the hosts of a rack.
pub struct Links {
    network: Mutex<Network>,
    /// Hosts by address.
    indices: BTreeMap<Addr, usize>,
}

impl Links {
    /// Links of this network between hosts at these addresses, by index.
    pub fn new(network: Network, addrs: &[Addr]) -> Self {
        Self {
            network: Mutex::new(network),
            indices: addrs.iter().copied().zip(0..).collect(),
        }
    }

    /// Until when a packet that is sent now is held back.
    fn carry(&self, now: Instant, from: usize, to: Addr, packet: &Packet) -> Instant {
        let Some(&to) = self.indices.get(&to) else {
            return now;
        };
        let bytes = HEADER_BYTES as u32 + packet.header.length;
        let mut network = self.network.lock().expect("no holder panics");
        match network.carry(now, from, to, bytes, packet.header.request) {
            Fate::Arrives { at, .. } => {
                let held_ns = at.nanos_since(now).saturating_sub(LOOPBACK_NS);
                Instant::from_nanos(now.as_nanos() + held_ns)
            }
            Fate::Lost => unreachable!("a network without faults loses nothing"),
        }
    }
}

/// A packet on a link.
struct Held {
    until: Instant,
    /// Those that arrive at the same time keep their order.
    number: u64,
    since: Instant,
    to: Addr,
    packet: Packet,
}

impl Held {
    fn key(&self) -> (Instant, u64) {
        (self.until, self.number)
    }
}

impl PartialEq for Held {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Held {}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Held {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

/// The gateway's own door for its clients.
struct Door<'a> {
    now: Instant,
    pool: &'a Pool,
    host: &'a mut RackHost,
}

impl Entry for Door<'_> {
    fn now(&self) -> Instant {
        self.now
    }

    fn pool(&self) -> &Pool {
        self.pool
    }

    fn is_up(&self, _gateway: usize) -> bool {
        true
    }

    fn request(&mut self, _gateway: usize, request: BlockRequest) -> Result<(), BlockRequest> {
        self.host.handle(self.now, Input::Request(request));
        Ok(())
    }
}

/// A host, its clients, and what is on the links from it.
pub struct Place {
    host: RackHost,
    index: usize,
    links: Arc<Links>,
    pool: Pool,
    /// A gateway's.
    clients: Clients,
    /// When to wake which load.
    alarms: BinaryHeap<Reverse<(Instant, usize)>>,
    held: BinaryHeap<Reverse<Held>>,
    sent: u64,
    out: VecDeque<Output>,
}

impl Place {
    /// The host of this index, whose clients, if it is a gateway, know this volume.
    pub fn new(host: RackHost, index: usize, links: Arc<Links>, pool: Pool, volume: ClientVolume) -> Self {
        Self {
            host,
            index,
            links,
            pool,
            clients: Clients::new(&[volume]),
            alarms: BinaryHeap::new(),
            held: BinaryHeap::new(),
            sent: 0,
            out: VecDeque::new(),
        }
    }

    /// The host itself.
    pub fn host(&self) -> &RackHost {
        &self.host
    }

    /// How a gateway's volume is.
    pub fn volume_state(&self, volume: VolumeId) -> Option<VolumeState> {
        match &self.host {
            RackHost::Gateway(gateway) => gateway.volume_state(volume),
            _ => None,
        }
    }

    /// Starts a load of a gateway's clients.
    pub fn start(&mut self, now: Instant, load: LoadSpec, stream: Option<Box<dyn Stream>>, seed: u64) {
        let load = LoadSpec {
            volume: 0,
            start: now,
            ..load
        };
        let (index, at) = match stream {
            Some(stream) => self.clients.add_stream(load, stream, seed),
            None => self.clients.add(load, seed),
        };
        self.alarms.push(Reverse((at, index)));
        self.ring(now);
        self.drain(now);
    }

    /// True when all that clients asked for is answered.
    pub fn is_done(&self) -> bool {
        self.clients.are_done()
    }

    /// Latencies that a gateway's clients have seen so far.
    pub fn seen(&self) -> (ClientStats, Latencies) {
        (self.clients.stats(), self.clients.latencies().clone())
    }

    /// Wakes the loads that are due.
    fn ring(&mut self, now: Instant) {
        while let Some(&Reverse((at, load))) = self.alarms.peek()
            && at <= now
        {
            self.alarms.pop();
            let mut door = Door {
                now,
                pool: &self.pool,
                host: &mut self.host,
            };
            if let Some(at) = self.clients.wake(&mut door, load) {
                self.alarms.push(Reverse((at, load)));
            }
        }
    }

    /// Takes what the host has to say: answers stay here, packets go onto their links.
    fn drain(&mut self, now: Instant) {
        while let Some(output) = self.host.poll() {
            match output {
                Output::Reply(reply) => {
                    let mut door = Door {
                        now,
                        pool: &self.pool,
                        host: &mut self.host,
                    };
                    if let Some((load, at)) = self.clients.reply(&mut door, reply) {
                        self.alarms.push(Reverse((at, load)));
                    }
                }
                Output::Send { to, packet } => {
                    let until = self.links.carry(now, self.index, to, &packet);
                    self.sent += 1;
                    self.held.push(Reverse(Held {
                        until,
                        number: self.sent,
                        since: now,
                        to,
                        packet,
                    }));
                }
                other @ (Output::Media(_) | Output::Event(_)) => self.out.push_back(other),
            }
        }
        self.release(now);
    }

    /// Lets go of what has been on its link long enough.
    fn release(&mut self, now: Instant) {
        while self.held.peek().is_some_and(|Reverse(first)| first.until <= now) {
            let Some(Reverse(Held {
                since,
                to,
                mut packet,
                ..
            })) = self.held.pop()
            else {
                return;
            };
            let held_ns = u32::try_from(now.nanos_since(since)).unwrap_or(u32::MAX);
            packet.header.lat_ns = packet.header.lat_ns.saturating_add(held_ns);
            self.out.push_back(Output::Send { to, packet });
        }
    }
}

impl Machine for Place {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Instant, input: Input) {
        self.host.handle(now, input);
        self.drain(now);
    }

    fn poll(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        let alarm = self.alarms.peek().map(|Reverse((at, _))| *at);
        let held = self.held.peek().map(|Reverse(first)| first.until);
        earliest(earliest(alarm, held), self.host.deadline())
    }

    fn tick(&mut self, now: Instant) {
        if self.host.deadline().is_some_and(|at| at <= now) {
            self.host.tick(now);
        }
        self.ring(now);
        self.drain(now);
    }
}

impl runtime::RackHost for Place {
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

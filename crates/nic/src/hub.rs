//! A hub: a switch between the virtual NICs of processes, and an uplink to the kernel or the world.
//!
//! | frame | where it goes |
//! | --- | --- |
//! | to the address of a port | that port |
//! | to a group or to all | every other port, and the uplink |
//! | to the address of a port that has gone | nowhere; a peer behind the uplink gets a reset |
//! | to any other address | the uplink, unless it comes from there |
//!
//! The hub gives each port its address, and drops frames of a port that have another one as their source. It learns no addresses from
//! frames, so no port gets frames of another. A port that does not read loses frames, and nobody waits for it.
//!
//! The first frame from one port to another *introduces* the two, if both want that: each gets one end of a link between them, and
//! further frames go past the hub. When a port goes, those that it has exchanged frames with are told.

use crate::farewell::{self, Flows};
use crate::frames::{Frame, Frames, LinkError, Written};
use crate::shared::{
    AttachError, Door, Grant, LINKS_MAX, News, QUEUES_MAX, Shape, Side, Visitor, Vnic, Wish, make, parts,
};
use base::{Duration, Instant, Map, Slab};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use tcp::addr::Mac;
use tcp::frame::{ether, ip};

/// Frames of a queue that are taken before the next queue has its turn.
const BATCH: usize = 32;
/// Processes at the door that have not said what they want.
const VISITORS_MAX: usize = 16;
/// How long they have for it.
const VISIT_TIME: Duration = Duration::from_secs(5);
/// Turns with frames after which visitors are heard all the same.
const HEAR_EVERY: u64 = 256;
/// How long the hub looks for frames before it sleeps: a few times what a wake costs.
const SPIN: Duration = Duration::from_micros(50);

/// Options of a hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HubOptions {
    /// Ports at a time.
    pub ports_max: usize,
    /// Bytes of the longest packet if there is no uplink.
    pub mtu: u16,
    /// The addresses of its ports begin with three bytes of it.
    pub seed: u64,
    /// Ports are introduced to each other. Otherwise all frames go by the hub.
    pub introduces: bool,
}

/// Counters of a port, or of the uplink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Frames that came from it.
    pub frames_in: u64,
    /// Their bytes.
    pub bytes_in: u64,
    /// Frames that went to it.
    pub frames_out: u64,
    /// Their bytes.
    pub bytes_out: u64,
    /// Frames to it that were lost, as it had no room.
    pub dropped: u64,
    /// Frames from it that had another's address as their source.
    pub forged: u64,
}

/// A process's virtual NIC, from the hub's side.
struct Port {
    name: String,
    pid: u32,
    uid: u32,
    mac: Mac,
    queues: Vec<Vnic>,
    counters: PortCounters,
    takes_letters: bool,
    /// Ports that this one has exchanged frames with, by their places.
    met: Set,
    /// Those of them that it was introduced to, and how many they are.
    friends: Set,
    introduced: usize,
    /// Its connections behind the uplink.
    flows: Flows,
}

/// A set of places.
#[derive(Default)]
struct Set(Vec<u64>);

impl Set {
    fn has(&self, place: u32) -> bool {
        let word = self.0.get(place as usize / 64).copied().unwrap_or(0);
        word >> (place % 64) & 1 == 1
    }

    fn put(&mut self, place: u32, is_in: bool) {
        let index = place as usize / 64;
        if self.0.len() <= index {
            self.0.resize(index + 1, 0);
        }
        let bit = 1 << (place % 64);
        self.0[index] = self.0[index] & !bit | if is_in { bit } else { 0 };
    }
}

/// The status of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortStatus {
    /// Its name, as the process has said.
    pub name: String,
    /// The process, 0 if it is of another namespace.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// The port's address.
    pub mac: Mac,
    /// Its queues.
    pub queues: usize,
    /// Ports to which it has got a link of its own. The hub does not see the frames there.
    pub introduced: usize,
    /// Its counters.
    pub counters: PortCounters,
}

/// The status of a hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubStatus {
    /// Ports at a time.
    pub ports_max: usize,
    /// Bytes of the longest packet on the wire.
    pub mtu: u16,
    /// Counters of the uplink, if there is one.
    pub uplink: Option<PortCounters>,
    /// The ports.
    pub ports: Vec<PortStatus>,
}

/// Where frames can go.
struct Switch {
    ports: Slab<Port>,
    /// Ports by their addresses, as numbers.
    by_mac: Map<u64, u32>,
    ports_max: u32,
    uplink: Option<Box<dyn Frames>>,
    uplink_counters: PortCounters,
    /// Pairs of ports that have met in this turn.
    meetings: Vec<(u32, u32)>,
    /// The addresses of all ports begin so.
    prefix: [u8; 4],
    /// Resets that go to the uplink when that was read.
    resets: Vec<Vec<u8>>,
}

/// A hub.
pub struct Hub {
    door: Door,
    switch: Switch,
    visitors: Vec<(Visitor, Instant)>,
    options: HubOptions,
    /// Ports that there ever were: the next one's number.
    ports_ever: u16,
    turns: u64,
    busy_at: Instant,
}

/// The origin of a frame.
#[derive(Clone, Copy, PartialEq, Eq)]
enum From {
    Port(u32),
    Uplink,
}

impl Switch {
    /// Sends a frame where it belongs.
    fn forward(&mut self, from: From, frame: Frame<'_>) {
        let target: [u8; 6] = *frame.bytes.first_chunk().expect("a frame has addresses");
        if target[0] & 1 == 1 {
            for index in 0..self.ports_max {
                if From::Port(index) != from && self.ports.get(index).is_some() {
                    self.give(index, frame);
                }
            }
            if from != From::Uplink {
                self.send_up(frame);
            }
            return;
        }
        match self.by_mac.get(&number(target)).copied() {
            Some(index) if From::Port(index) != from => {
                if let From::Port(sender) = from
                    && !self.ports[index].met.has(sender)
                {
                    self.meet(sender, index);
                }
                self.give(index, frame);
            }
            Some(_) => {}
            None if target.starts_with(&self.prefix) => {
                if from == From::Uplink {
                    self.reject(frame);
                }
            }
            None => {
                if let From::Port(sender) = from {
                    self.ports[sender].flows.note(frame.bytes);
                    self.send_up(frame);
                }
            }
        }
    }

    /// Notes that two ports exchange frames.
    #[cold]
    fn meet(&mut self, one: u32, other: u32) {
        self.ports[one].met.put(other, true);
        self.ports[other].met.put(one, true);
        self.meetings.push((one, other));
    }

    /// Gives both ports of a pair an end of a link, if they want one. They have no other chance as long as both stay: so a port that
    /// breaks its links makes no work.
    fn introduce(&mut self, one: u32, other: u32) -> io::Result<()> {
        let wants = |port: Option<&Port>| {
            port.is_some_and(|port| {
                port.takes_letters && port.queues.len() == 1 && port.introduced < LINKS_MAX
            })
        };
        if !wants(self.ports.get(one)) || !wants(self.ports.get(other)) {
            return Ok(());
        }
        let shape = Shape::default();
        let (memory, bells) = parts(shape)?;
        let sides = [(one, other, Side::Maker), (other, one, Side::Taker)];
        for ((port, friend, side), bell) in sides.into_iter().zip(bells) {
            let peer = self.ports[friend].mac;
            let letter = News::Introduced { peer, side, shape }.letter();
            // If only one of them gets an end, that one finds the other's closed.
            if self.ports[port].queues[0].write_letter(&letter, &[memory.as_fd(), bell.fd()]) {
                self.ports[port].friends.put(friend, true);
                self.ports[port].introduced += 1;
            }
        }
        Ok(())
    }

    /// Answers a frame for a port that has gone.
    #[cold]
    fn reject(&mut self, received: Frame<'_>) {
        let mut frame = [0; farewell::BYTES_MAX];
        if self.resets.len() < BATCH
            && let Some(bytes) = farewell::reject(received.bytes, &mut frame)
        {
            self.resets.push(frame[..bytes].to_vec());
        }
    }

    /// Takes a port out, and tells those that it has exchanged frames with.
    fn remove(&mut self, index: u32) {
        let mut gone = self.ports.remove(index);
        let mut frame = [0; farewell::BYTES_MAX];
        while let Some(bytes) = gone.flows.ask(gone.mac, &mut frame) {
            let bytes = &frame[..bytes];
            self.send_up(Frame {
                bytes,
                segment_bytes: 0,
            });
        }
        self.by_mac.remove(&number(gone.mac.0));
        let letter = News::Gone(gone.mac).letter();
        for (place, port) in self.ports.iter_mut() {
            if gone.met.has(place) {
                port.met.put(index, false);
                if port.friends.has(index) {
                    port.friends.put(index, false);
                    port.introduced -= 1;
                }
                // A port with too much to read has keep-alives.
                if port.takes_letters {
                    port.queues[0].write_letter(&letter, &[]);
                }
            }
        }
    }

    fn give(&mut self, index: u32, frame: Frame<'_>) {
        let port = &mut self.ports[index];
        let queue = match port.queues.len() {
            1 => 0,
            count => flow_hash(frame.bytes) as usize % count,
        };
        // A queue that is being read is lent out: a port does not send to itself.
        let sent = put(&mut port.queues[queue], frame);
        port.counters.count_out(sent, frame);
    }

    fn send_up(&mut self, frame: Frame<'_>) {
        if let Some(uplink) = &mut self.uplink {
            let sent = put(&mut **uplink, frame);
            self.uplink_counters.count_out(sent, frame);
        }
    }

    /// Rings for what was forwarded.
    fn flush(&mut self) -> Result<(), LinkError> {
        for (_, port) in self.ports.iter_mut() {
            // A port that is broken is found when it is read.
            port.queues.iter_mut().for_each(|queue| drop(queue.flush()));
        }
        self.uplink.as_mut().map_or(Ok(()), |uplink| uplink.flush())
    }
}

impl PortCounters {
    fn count_out(&mut self, is_sent: bool, frame: Frame<'_>) {
        if is_sent {
            self.frames_out += 1;
            self.bytes_out += frame.bytes.len() as u64;
        } else {
            self.dropped += 1;
        }
    }
}

/// How addresses begin.
const fn prefix(seed: u64) -> [u8; 4] {
    let [a, b, c, ..] = seed.to_le_bytes();
    [2, a, b, c]
}

/// An address as a number.
const fn number([a, b, c, d, e, f]: [u8; 6]) -> u64 {
    u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
}

/// Writes a frame to a link. False if it has no room, or is broken.
fn put(link: &mut dyn Frames, frame: Frame<'_>) -> bool {
    let mut next = Some(frame);
    let sent = link.send(&mut |room| {
        let frame = next.take()?;
        let bytes = frame.bytes.len();
        room.get_mut(..bytes)?.copy_from_slice(frame.bytes);
        Some(Written {
            bytes,
            segment_bytes: frame.segment_bytes,
        })
    });
    sent.is_ok_and(|count| count == 1)
}

/// A number that both directions of a connection share.
fn flow_hash(frame: &[u8]) -> u32 {
    let fold = |bytes: &[u8]| {
        bytes.chunks(4).fold(0u32, |sum, part| {
            part.iter()
                .fold(sum, |sum, byte| sum.rotate_left(7) ^ u32::from(*byte))
        })
    };
    let kind = u16::from_be_bytes([frame[12], frame[13]]);
    let (half, addresses, ports) = match kind {
        ether::IPV4 => (
            4,
            26,
            14 + usize::from(frame.get(14).map_or(0, |byte| byte & 15)) * 4,
        ),
        ether::IPV6 => (16, 22, 14 + ip::BYTES6),
        _ => return 0,
    };
    let part = |at: usize, bytes: usize| frame.get(at..at + bytes).map_or(0, fold);
    let one = part(addresses, half).wrapping_add(part(ports, 2));
    let other = part(addresses + half, half).wrapping_add(part(ports + 2, 2));
    (one ^ other).wrapping_mul(0x9e37_79b1) >> 8
}

impl Hub {
    /// A hub at a socket. Its uplink has to leave checksums to the link.
    ///
    /// # Errors
    /// A hub is there, or the socket's file cannot be made.
    pub fn open(path: &Path, uplink: Option<Box<dyn Frames>>, options: HubOptions) -> io::Result<Self> {
        Ok(Self {
            door: Door::open(path)?,
            switch: Switch {
                ports: Slab::new(),
                by_mac: Map::default(),
                ports_max: options.ports_max as u32,
                uplink,
                uplink_counters: PortCounters::default(),
                meetings: Vec::new(),
                prefix: prefix(options.seed),
                resets: Vec::new(),
            },
            visitors: Vec::new(),
            options,
            ports_ever: 0,
            turns: 0,
            busy_at: os::now(),
        })
    }

    fn mtu(&self) -> u16 {
        let uplink = self.switch.uplink.as_ref();
        uplink.map_or(self.options.mtu, |uplink| uplink.limits().mtu)
    }

    /// The status of now.
    pub fn status(&self) -> HubStatus {
        let port = |(_, port): (u32, &Port)| PortStatus {
            name: port.name.clone(),
            pid: port.pid,
            uid: port.uid,
            mac: port.mac,
            queues: port.queues.len(),
            introduced: port.introduced,
            counters: port.counters,
        };
        HubStatus {
            ports_max: self.options.ports_max,
            mtu: self.mtu(),
            uplink: self
                .switch
                .uplink
                .is_some()
                .then_some(self.switch.uplink_counters),
            ports: self.switch.ports.iter().map(port).collect(),
        }
    }

    /// Forwards what there is, and hears visitors, without waiting. `tell` writes the status for those who ask. Answers how many
    /// frames came.
    ///
    /// # Errors
    /// The uplink does nothing more.
    pub fn turn(&mut self, tell: &dyn Fn(&HubStatus) -> String) -> Result<usize, LinkError> {
        let mut count = 0;
        for index in 0..self.switch.ports_max {
            if self.switch.ports.get(index).is_some() {
                count += self.read_port(index);
            }
        }
        count += self.read_uplink()?;
        if !self.switch.meetings.is_empty() {
            self.introduce();
        }
        if count > 0 {
            self.switch.flush()?;
            self.busy_at = os::now();
        }
        self.turns += 1;
        if count == 0 || self.turns.is_multiple_of(HEAR_EVERY) {
            self.hear(tell);
        }
        Ok(count)
    }

    #[cold]
    fn introduce(&mut self) {
        for (one, other) in std::mem::take(&mut self.switch.meetings) {
            if self.options.introduces {
                // Without memory or descriptors their frames go by the hub.
                let _ = self.switch.introduce(one, other);
            }
        }
    }

    fn read_port(&mut self, index: u32) -> usize {
        // Its queues are out while their frames are forwarded.
        let mut queues = std::mem::take(&mut self.switch.ports[index].queues);
        let (mac, mut counters) = {
            let port = &self.switch.ports[index];
            (port.mac, port.counters)
        };
        let switch = &mut self.switch;
        let (mut count, mut is_up) = (0, true);
        for queue in &mut queues {
            let received = queue.receive(BATCH, &mut |frame| {
                counters.frames_in += 1;
                counters.bytes_in += frame.bytes.len() as u64;
                if frame.bytes[6..12] == mac.0 {
                    switch.forward(From::Port(index), frame);
                } else {
                    counters.forged += 1;
                }
            });
            match received {
                Ok(received) => count += received,
                Err(_) => is_up = false,
            }
        }
        let port = &mut switch.ports[index];
        (port.queues, port.counters) = (queues, counters);
        if !is_up {
            switch.remove(index);
        }
        count
    }

    fn read_uplink(&mut self) -> Result<usize, LinkError> {
        let Some(mut uplink) = self.switch.uplink.take() else {
            return Ok(0);
        };
        let mut counters = self.switch.uplink_counters;
        let switch = &mut self.switch;
        let received = uplink.receive(BATCH, &mut |frame| {
            counters.frames_in += 1;
            counters.bytes_in += frame.bytes.len() as u64;
            if frame.bytes.len() >= crate::ETHERNET_BYTES {
                switch.forward(From::Uplink, frame);
            }
        });
        self.switch.uplink_counters = counters;
        self.switch.uplink = Some(uplink);
        for reset in std::mem::take(&mut self.switch.resets) {
            self.switch.send_up(Frame {
                bytes: &reset,
                segment_bytes: 0,
            });
        }
        received
    }

    /// Hears visitors, and lets new ones in.
    fn hear(&mut self, tell: &dyn Fn(&HubStatus) -> String) {
        let now = os::now();
        while self.visitors.len() < VISITORS_MAX
            && let Some(visitor) = self.door.next()
        {
            self.visitors.push((visitor, now + VISIT_TIME));
        }
        let visitors = std::mem::take(&mut self.visitors);
        for (visitor, until) in visitors {
            match visitor.wish() {
                Ok(None) if now < until => self.visitors.push((visitor, until)),
                Ok(Some(Wish::Status)) => visitor.say(tell(&self.status()).as_bytes()),
                Ok(Some(wish @ Wish::Attach { .. })) => {
                    // Without memory or descriptors there is no port for now.
                    if self.grant(&visitor, wish).is_err() {
                        visitor.refuse(true);
                    }
                }
                Ok(None) => {}
                Err(_) => visitor.refuse(false),
            }
        }
    }

    fn grant(&mut self, visitor: &Visitor, wish: Wish) -> Result<(), AttachError> {
        let Wish::Attach {
            name,
            queues,
            takes_letters,
        } = wish
        else {
            return Err(AttachError::Refused);
        };
        if self.switch.ports.len() >= self.options.ports_max {
            return Err(AttachError::Full);
        }
        let shape = Shape {
            queues: queues.min(QUEUES_MAX),
            ..Shape::default()
        };
        let (end, bells) = make(shape)?;
        let mac = self.next_mac();
        let grant = Grant {
            shape,
            mac,
            mtu: self.mtu(),
        };
        visitor.grant(&grant, &end, &bells)?;
        let index = self.switch.ports.insert(Port {
            name,
            pid: visitor.who.pid,
            uid: visitor.who.uid,
            mac,
            queues: end.queues(grant.mtu, Some(mac)),
            counters: PortCounters::default(),
            takes_letters,
            met: Set::default(),
            friends: Set::default(),
            introduced: 0,
            flows: Flows::default(),
        });
        self.switch.by_mac.insert(number(mac.0), index);
        Ok(())
    }

    /// An address that no port has, of those that everybody may give (IEEE 802 §8.4: the second bit).
    fn next_mac(&mut self) -> Mac {
        let [two, a, b, c] = prefix(self.options.seed);
        loop {
            self.ports_ever = self.ports_ever.wrapping_add(1);
            let [d, e] = self.ports_ever.to_be_bytes();
            let mac = [two, a, b, c, d, e];
            if self.switch.by_mac.get(&number(mac)).is_none() {
                return Mac(mac);
            }
        }
    }

    /// Sleeps until there is something to do, at most so long; not at all while frames come.
    pub fn rest(&mut self, limit: Duration) {
        if os::now().since(self.busy_at) < SPIN && !self.is_in_the_way() {
            std::hint::spin_loop();
            return;
        }
        let mut may_sleep = true;
        let mut writable = false;
        for (_, port) in self.switch.ports.iter_mut() {
            may_sleep &= port.queues.iter_mut().all(|queue| queue.arm().is_some());
        }
        if let Some(uplink) = &mut self.switch.uplink {
            let sleep = uplink.arm();
            may_sleep &= sleep.is_some();
            writable = sleep.is_some_and(|sleep| sleep.writable);
        }
        if may_sleep {
            self.sleep(limit, writable);
        }
        for (_, port) in self.switch.ports.iter_mut() {
            port.queues.iter_mut().for_each(Vnic::disarm);
        }
        if let Some(uplink) = &mut self.switch.uplink {
            uplink.disarm();
        }
    }

    /// Whether a port needs this processor.
    fn is_in_the_way(&self) -> bool {
        let mut queues = self.switch.ports.iter().flat_map(|(_, port)| &port.queues);
        queues.any(Vnic::is_in_the_way)
    }

    fn sleep(&self, limit: Duration, writable: bool) {
        let readable = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let mut fds = Vec::new();
        if self.visitors.len() < VISITORS_MAX {
            fds.push(readable(self.door.fd()));
        }
        fds.extend(self.visitors.iter().map(|(visitor, _)| readable(visitor.fd())));
        for (_, port) in self.switch.ports.iter() {
            fds.extend(port.queues.iter().map(|queue| readable(queue.fd())));
        }
        if let Some(uplink) = &self.switch.uplink {
            let more = if writable {
                PollFlags::OUT
            } else {
                PollFlags::empty()
            };
            fds.push(PollFd::from_borrowed_fd(uplink.fd(), PollFlags::IN | more));
        }
        let limit = Timespec {
            tv_sec: limit.as_secs() as i64,
            tv_nsec: i64::from(limit.subsec_nanos()),
        };
        match poll(&mut fds, Some(&limit)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => panic!("descriptors can be waited for: {error}"),
        }
    }
}

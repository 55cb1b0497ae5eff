//! Ways to peers: addresses, the next hop's card, the longest packet. Neighbours are asked for by ARP and neighbour
//! discovery; a flow whose next hop has no card yet waits.
//!
//! A neighbour is asked [`QUESTIONS`] times, a second apart (RFC 1122 §2.3.2.1, RFC 4861 §10). One that is known is asked
//! again after [`CONFIRM`] while flows use it, and is good until it has not answered. Only neighbours that flows
//! need are kept, so that strangers cannot fill the table.

use crate::addr::{Endpoint, Ip, Mac, Tuple};
use crate::timers::Timers;
use base::{Duration, Instant, Map};

/// Questions before a neighbour counts as away.
const QUESTIONS: u8 = 3;
/// The count of one that is away.
const AWAY: u8 = QUESTIONS + 1;
/// Time between questions.
const QUESTION_GAP: Duration = Duration::from_secs(1);
/// Time between questions to one that is away.
const AWAY_GAP: Duration = Duration::from_secs(10);
/// How long an answer is good (RFC 4861 §10, REACHABLE_TIME).
const CONFIRM: Duration = Duration::from_secs(30);
/// How long a shorter packet is believed to be the longest (RFC 8201 §4).
const MTU_LIFE: Duration = Duration::from_secs(600);
/// The shortest packet that is believed to be the longest: below it lies an attack (RFC 791; RFC 8200 §5).
const MTU_MIN_V4: u16 = 552;
const MTU_MIN_V6: u16 = 1280;

/// The way between two addresses.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// This host.
    pub local: Ip,
    /// The peer.
    pub remote: Ip,
    /// The next hop's card, once it is known.
    pub mac: Option<Mac>,
    /// The longest packet.
    pub mtu: u16,
    neighbour: u32,
    users: u32,
    /// Until when the MTU is that of a router's report.
    mtu_until: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Neighbour {
    ip: Ip,
    mac: Option<Mac>,
    users: u32,
    asked: u8,
}

/// What time has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// A neighbour is to be asked for.
    Ask {
        /// The neighbour.
        neighbour: Ip,
        /// The address of this host that asks.
        from: Ip,
    },
    /// A neighbour does not answer.
    Away,
}

/// All ways.
#[derive(Debug)]
pub struct Paths {
    slots: Vec<Path>,
    free: Vec<u32>,
    index: Map<(Ip, Ip), u32>,
    neighbours: Vec<Neighbour>,
    free_neighbours: Vec<u32>,
    by_ip: Map<Ip, u32>,
    timers: Timers,
    mtu: u16,
}

impl Paths {
    /// Room for `paths_max` ways over a link with packets of `mtu`.
    pub fn new(paths_max: u32, mtu: u16) -> Self {
        let capacity = paths_max as usize;
        Self {
            slots: Vec::with_capacity(capacity),
            free: Vec::with_capacity(capacity),
            index: Map::with_capacity(capacity),
            neighbours: Vec::with_capacity(capacity),
            free_neighbours: Vec::with_capacity(capacity),
            by_ip: Map::with_capacity(capacity),
            timers: Timers::new(capacity),
            mtu,
        }
    }

    /// A way.
    #[inline]
    pub fn path(&self, index: u32) -> &Path {
        &self.slots[index as usize]
    }

    /// Takes the way from `local` to `remote` by way of `hop`, for one user more. None if there is no room.
    pub fn acquire(&mut self, now: Instant, local: Ip, remote: Ip, hop: Ip) -> Option<u32> {
        if let Some(&path) = self.index.get(&(local, remote)) {
            self.refresh(now, path);
            self.slots[path as usize].users += 1;
            return Some(path);
        }
        if self.index.len() == self.slots.capacity() {
            return None;
        }
        let neighbour = self.neighbour(now, hop)?;
        let path = Path {
            local,
            remote,
            mac: self.neighbours[neighbour as usize].mac,
            mtu: self.mtu,
            neighbour,
            users: 1,
            mtu_until: None,
        };
        let slot = put(&mut self.slots, &mut self.free, path);
        self.index.insert((local, remote), slot);
        Some(slot)
    }

    fn neighbour(&mut self, now: Instant, ip: Ip) -> Option<u32> {
        if let Some(&slot) = self.by_ip.get(&ip) {
            self.neighbours[slot as usize].users += 1;
            return Some(slot);
        }
        if self.by_ip.len() == self.neighbours.capacity() {
            return None;
        }
        let fresh = Neighbour {
            ip,
            mac: None,
            users: 1,
            asked: 0,
        };
        let slot = put(&mut self.neighbours, &mut self.free_neighbours, fresh);
        self.by_ip.insert(ip, slot);
        self.timers.set(slot, now);
        Some(slot)
    }

    /// One user less. The last one's way is forgotten, its neighbour when that is to be asked next.
    pub fn release(&mut self, path: u32) {
        let slot = &mut self.slots[path as usize];
        slot.users -= 1;
        if slot.users == 0 {
            self.index.remove(&(slot.local, slot.remote));
            self.neighbours[slot.neighbour as usize].users -= 1;
            self.free.push(path);
        }
    }

    /// Notes where a neighbour is, if flows need it. Answers whether some may have waited for that.
    pub fn learn(&mut self, now: Instant, ip: Ip, mac: Mac) -> bool {
        let Some(&slot) = self.by_ip.get(&ip) else {
            return false;
        };
        if mac.is_group() {
            return false;
        }
        let neighbour = &mut self.neighbours[slot as usize];
        let was_away = neighbour.mac.is_none();
        neighbour.mac = Some(mac);
        neighbour.asked = 0;
        self.timers.set(slot, now + CONFIRM);
        self.tell(slot, Some(mac));
        was_away
    }

    /// Forgets where neighbours with a card are. They are asked for again.
    pub fn forget(&mut self, now: Instant, mac: Mac) {
        for slot in 0..self.neighbours.len() as u32 {
            let neighbour = &mut self.neighbours[slot as usize];
            if neighbour.mac == Some(mac) {
                (neighbour.mac, neighbour.asked) = (None, 0);
                self.timers.set(slot, now);
                self.tell(slot, None);
            }
        }
    }

    /// Sets the card on every way by a neighbour.
    fn tell(&mut self, neighbour: u32, mac: Option<Mac>) {
        let users = self.slots.iter_mut().filter(|path| path.neighbour == neighbour);
        users.for_each(|path| path.mac = mac);
    }

    /// The longest packet of a way is at most `mtu`, as a router says. Answers it if it is shorter than before.
    pub fn shorten(&mut self, now: Instant, path: u32, mtu: u32) -> Option<u16> {
        let path = &mut self.slots[path as usize];
        let least = if path.local.is_v4() {
            MTU_MIN_V4
        } else {
            MTU_MIN_V6
        };
        // A router of before RFC 1191 says nothing.
        let mtu = mtu.clamp(u32::from(least), u32::from(u16::MAX)) as u16;
        if mtu >= path.mtu {
            return None;
        }
        path.mtu = mtu;
        path.mtu_until = Some(now + MTU_LIFE);
        Some(mtu)
    }

    /// Tries the link's MTU again for a new flow when a router's word is old.
    fn refresh(&mut self, now: Instant, path: u32) {
        let path = &mut self.slots[path as usize];
        if path.mtu_until.is_some_and(|until| until <= now) {
            (path.mtu, path.mtu_until) = (self.mtu, None);
        }
    }

    /// When time brings something.
    #[inline]
    pub fn deadline(&self) -> Option<Instant> {
        self.timers.first()
    }

    /// The next thing that time has brought.
    pub fn due(&mut self, now: Instant) -> Option<Due> {
        while let Some(slot) = self.timers.expired(now) {
            let neighbour = &mut self.neighbours[slot as usize];
            if neighbour.users == 0 {
                self.by_ip.remove(&neighbour.ip);
                self.free_neighbours.push(slot);
                continue;
            }
            let ip = neighbour.ip;
            if neighbour.asked == QUESTIONS {
                neighbour.asked = AWAY;
                neighbour.mac = None;
                self.timers.set(slot, now + AWAY_GAP);
                self.tell(slot, None);
                return Some(Due::Away);
            }
            if neighbour.asked == AWAY {
                self.timers.set(slot, now + AWAY_GAP);
            } else {
                neighbour.asked += 1;
                self.timers.set(slot, now + QUESTION_GAP);
            }
            let path = self
                .slots
                .iter()
                .find(|path| path.users > 0 && path.neighbour == slot);
            let from = path.expect("a neighbour with users has a way").local;
            return Some(Due::Ask { neighbour: ip, from });
        }
        None
    }

    /// Whether the next hop of a way has not answered its questions.
    pub fn is_away(&self, path: u32) -> bool {
        self.neighbours[self.slots[path as usize].neighbour as usize].asked == AWAY
    }
}

/// Puts a value where one was, or behind the others.
fn put<T>(slots: &mut Vec<T>, free: &mut Vec<u32>, value: T) -> u32 {
    match free.pop() {
        Some(slot) => {
            slots[slot as usize] = value;
            slot
        }
        None => {
            slots.push(value);
            slots.len() as u32 - 1
        }
    }
}

impl Path {
    /// Both ends of a connection on this way.
    #[inline]
    pub fn tuple(&self, local_port: u16, remote_port: u16) -> Tuple {
        Tuple {
            local: Endpoint {
                ip: self.local,
                port: local_port,
            },
            remote: Endpoint {
                ip: self.remote,
                port: remote_port,
            },
        }
    }
}

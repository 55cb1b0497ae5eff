//! A port of a hub: a virtual NIC, and links of its own to other ports.
//!
//! The hub introduces two ports whose frames it has seen: each gets one end of a link of the same kind as that to the hub. From then on a frame for
//! the other's address goes by the link, and the hub sleeps. All other frames go by the hub, also if a link is broken or its peer has gone.
//!
//! # What a peer can do
//! A link is a [`Vnic`], so a peer reaches no memory but the link's, and cannot stop this end. Frames with other addresses than the peer's and
//! this port's are dropped, as the hub would. A peer that does not read holds the port's frames up once, for [`PATIENCE`]. Then its frames are
//! lost until it reads. A peer that breaks the rules, or leaves, loses the link. Only the hub's word says that it has gone for good.

use super::kept::{Keep, Kept};
use super::letter::News;
use super::sleep::{Step, rise_from_all, sleep_at_all};
use super::vnic::{End, Shape, Side, Vnic};
use crate::frames::{FRAME_BYTES_MAX, Frame, Frames, Limits, LinkError, Sleep, Written};
use base::{Duration, Instant};
use rustix::event::{Timespec, epoll};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use tcp::addr::Mac;

/// Links of a port at most: each is looked at for frames. Further peers are reached by the hub.
pub const LINKS_MAX: usize = 32;
/// Looks for frames after which letters are looked for, too. A port that sleeps is woken by a letter.
const HEAR_EVERY: u32 = 1024;
/// Frames that each link has a right to in one look.
const SHARE_MIN: usize = 4;
/// How long frames wait for one peer that does not read. Longer than a process waits for its processor on a busy machine.
const PATIENCE: Duration = Duration::from_millis(20);
/// What the epoll set calls the hub's doorbell; a link has the number of its peer's address, which is not 0.
const HUB: u64 = 0;

/// A link to another port.
#[derive(Debug)]
struct Link {
    peer: Mac,
    vnic: Vnic,
    /// It has had no room for [`PATIENCE`]: frames are dropped until it has.
    is_stuck: bool,
    /// The hub says that the peer has gone: the link ends after its last frame.
    is_left: bool,
}

/// A port of a hub, with one queue.
#[derive(Debug)]
pub struct Port {
    hub: Vnic,
    own: Mac,
    links: Vec<Link>,
    /// All doorbells.
    set: Kept,
    keep: Keep,
    /// Peers that have gone, whose last frames may be there.
    leaving: VecDeque<Mac>,
    gone: VecDeque<Mac>,
    outgoing: Box<[u8]>,
    /// The frame in `outgoing` that has no room, and since when it waits.
    waiting: Option<(Written, Instant)>,
    looks: u32,
    /// The peer of the last frame, in or out; `None` is the hub.
    partner: Option<Mac>,
}

/// An address as a number.
fn number(mac: Mac) -> u64 {
    let [a, b, c, d, e, f] = mac.0;
    u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
}

impl Port {
    /// A port whose link to the hub is `hub`.
    ///
    /// # Errors
    /// No descriptor is left, or the hub has given no address.
    pub(super) fn new(mut hub: Vnic, keep: Keep) -> io::Result<Self> {
        let own = hub.limits().mac.ok_or(io::ErrorKind::InvalidData)?;
        let set = keep.keep(epoll::create(epoll::CreateFlags::CLOEXEC)?)?;
        watch(&set, HUB, hub.fd())?;
        hub.take_letters();
        Ok(Self {
            hub,
            own,
            links: Vec::new(),
            set,
            keep,
            leaving: VecDeque::new(),
            gone: VecDeque::new(),
            outgoing: vec![0; FRAME_BYTES_MAX].into(),
            waiting: None,
            looks: 0,
            partner: None,
        })
    }

    /// Links to other ports.
    pub fn links(&self) -> usize {
        self.links.len()
    }

    /// Reads what the hub has written.
    #[cold]
    fn open_letters(&mut self) {
        for letter in self.hub.open_letters() {
            match News::parse(&letter.bytes) {
                Some(News::Introduced { peer, side, shape }) => {
                    // Without memory or descriptors there is no link: the hub goes on. The peer sees that its doorbell is closed.
                    let _ = self.befriend(peer, (side, shape), letter.fds);
                }
                Some(News::Gone(peer)) => {
                    for link in self.links.iter_mut().filter(|link| link.peer == peer) {
                        link.is_left = true;
                    }
                    self.leaving.push_back(peer);
                }
                None => {}
            }
        }
    }

    /// Takes an end of a link.
    fn befriend(&mut self, peer: Mac, (side, shape): (Side, Shape), fds: Vec<OwnedFd>) -> io::Result<()> {
        let is_known = self.links.iter().any(|link| link.peer == peer);
        if is_known || self.links.len() == LINKS_MAX || number(peer) == HUB {
            return Ok(());
        }
        let [memory, bell] = <[OwnedFd; 2]>::try_from(fds).map_err(|_| io::ErrorKind::InvalidData)?;
        let end = End::given(side, shape, memory, vec![self.keep.keep(bell)?])?;
        let mut queues = end.queues(self.hub.limits().mtu, Some(self.own));
        let vnic = queues.remove(0);
        watch(&self.set, number(peer), vnic.fd())?;
        self.links.push(Link {
            peer,
            vnic,
            is_stuck: false,
            is_left: false,
        });
        Ok(())
    }

    /// Ends a link.
    fn part(&mut self, index: usize) {
        let link = self.links.swap_remove(index);
        // A forked child may have the doorbell, too: closing it would not take it out of the set.
        let _ = epoll::delete(&self.set, link.vnic.fd());
    }

    /// Takes frames from links.
    fn receive_from_peers(&mut self, share: usize, take: &mut dyn FnMut(Frame<'_>)) -> usize {
        let (mut count, mut index) = (0, 0);
        while index < self.links.len() {
            let Link {
                peer, vnic, is_left, ..
            } = &mut self.links[index];
            let received = vnic.receive(share, &mut |frame| {
                if frame.bytes[..6] == self.own.0 && frame.bytes[6..12] == peer.0 {
                    take(frame);
                }
            });
            match received {
                Ok(0) if *is_left => self.part(index),
                Err(_) => self.part(index),
                Ok(received) => {
                    if received > 0 {
                        self.partner = Some(*peer);
                    }
                    count += received;
                    index += 1;
                }
            }
        }
        count
    }

    /// Puts the frame in `outgoing` where it belongs. False if it has to wait for room.
    #[inline]
    fn place(&mut self, written: Written) -> Result<bool, LinkError> {
        let frame = &self.outgoing[..written.bytes];
        let target = &frame[..6];
        let Some(index) = self.links.iter().position(|link| link.peer.0 == target) else {
            self.partner = None;
            return self.hub.put(frame, written.segment_bytes);
        };
        let link = &mut self.links[index];
        match link.vnic.put(frame, written.segment_bytes) {
            Ok(true) => {
                link.is_stuck = false;
                self.partner = Some(link.peer);
                Ok(true)
            }
            // It is dropped.
            Ok(false) if link.is_stuck => Ok(true),
            Ok(false) => Ok(false),
            Err(_) => {
                self.part(index);
                self.hub
                    .put(&self.outgoing[..written.bytes], written.segment_bytes)
            }
        }
    }

    /// Tries to place the frame that waits. False if it still does.
    #[cold]
    fn place_again(&mut self, (written, since): (Written, Instant)) -> Result<bool, LinkError> {
        if self.place(written)? {
            self.waiting = None;
            return Ok(true);
        }
        if os::now().since(since) < PATIENCE {
            return Ok(false);
        }
        let target = &self.outgoing[..6];
        if let Some(link) = self.links.iter_mut().find(|link| link.peer.0 == target) {
            link.is_stuck = true;
            self.waiting = None;
        }
        Ok(self.waiting.is_none())
    }

    /// Peers whose last frame was read have gone.
    #[cold]
    fn tell_gone(&mut self) {
        let links = &self.links;
        let is_read = |peer: &Mac| links.iter().all(|link| link.peer != *peer);
        self.gone.extend(self.leaving.iter().copied().filter(is_read));
        self.leaving.retain(|peer| !is_read(peer));
    }

    /// A step of a sleep at the lanes of the hub (0) and of a link.
    fn step(&mut self, lane: usize, step: Step) -> bool {
        let vnic = match lane.checked_sub(1) {
            None => &mut self.hub,
            Some(link) => &mut self.links[link].vnic,
        };
        match step {
            Step::Sleep => vnic.arm().is_some(),
            Step::Rise => {
                vnic.rise();
                true
            }
        }
    }
}

/// Adds a doorbell to a set.
fn watch(set: &Kept, name: u64, bell: BorrowedFd<'_>) -> io::Result<()> {
    Ok(epoll::add(
        set,
        bell,
        epoll::EventData::new_u64(name),
        epoll::EventFlags::IN,
    )?)
}

impl Frames for Port {
    fn limits(&self) -> Limits {
        self.hub.limits()
    }

    #[inline]
    fn receive(&mut self, count_max: usize, take: &mut dyn FnMut(Frame<'_>)) -> Result<usize, LinkError> {
        self.looks = self.looks.wrapping_add(1);
        if self.looks.is_multiple_of(HEAR_EVERY) {
            self.hub.hear();
        }
        if self.hub.has_letters() {
            self.open_letters();
        }
        // So nobody's frames keep those of others away.
        let share = (count_max / (self.links.len() + 1)).max(SHARE_MIN);
        let of_hub = self.hub.receive(share, take)?;
        let of_peers = self.receive_from_peers(share, take);
        if !self.leaving.is_empty() && of_hub < share {
            self.tell_gone();
        }
        Ok(of_hub + of_peers)
    }

    #[inline]
    fn send(&mut self, fill: &mut dyn FnMut(&mut [u8]) -> Option<Written>) -> Result<usize, LinkError> {
        if let Some(waiting) = self.waiting
            && !self.place_again(waiting)?
        {
            return Ok(0);
        }
        let mut count = 0;
        while let Some(written) = fill(&mut self.outgoing) {
            count += 1;
            if !self.place(written)? {
                self.waiting = Some((written, os::now()));
                break;
            }
        }
        Ok(count)
    }

    #[inline]
    fn flush(&mut self) -> Result<(), LinkError> {
        if let Some(waiting) = self.waiting {
            self.place_again(waiting)?;
        }
        for link in &mut self.links {
            // One that has gone is found when it is read.
            let _ = link.vnic.flush();
        }
        self.hub.flush()
    }

    fn arm(&mut self) -> Option<Sleep> {
        let has_news = self.hub.has_letters() || !self.leaving.is_empty() || !self.gone.is_empty();
        let lanes = self.links.len() + 1;
        if has_news || !sleep_at_all(lanes, |lane, step| self.step(lane, step)) {
            return None;
        }
        let until = self.waiting.map(|(_, since)| since + PATIENCE);
        Some(Sleep {
            until,
            ..Sleep::default()
        })
    }

    fn disarm(&mut self) {
        rise_from_all(self.links.len() + 1, |lane, step| self.step(lane, step));
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(HUB),
        }; LINKS_MAX + 1];
        let none = Timespec::default();
        let count = epoll::wait(&self.set, &mut events[..], Some(&none)).unwrap_or(0);
        for event in &events[..count] {
            let name = event.data.u64();
            match self.links.iter_mut().find(|link| number(link.peer) == name) {
                Some(link) => link.vnic.hear(),
                None => self.hub.hear(),
            }
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }

    fn is_in_the_way(&self) -> bool {
        let partner = self.links.iter().find(|link| Some(link.peer) == self.partner);
        let vnic = partner.map_or(&self.hub, |link| &link.vnic);
        vnic.is_peer_on(os::processor())
    }

    fn gone(&mut self) -> Option<Mac> {
        if self.gone.is_empty() {
            return None;
        }
        self.gone.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::super::doorbell::Doorbell;
    use super::super::memory::Memory;
    use super::super::vnic::{make, parts};
    use super::*;
    use base::Rng;
    use os::sync::Ordering;

    const OWN: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const PEER: Mac = Mac([2, 0, 0, 0, 0, 2]);
    const OTHER: Mac = Mac([2, 0, 0, 0, 0, 3]);
    const SMALL: Shape = Shape {
        queues: 1,
        descriptors: 16,
        data_bytes: 1 << 18,
    };

    /// A port, and the hub's end of it.
    fn port() -> (Port, Vnic) {
        let (end, bells) = make(Shape::default()).expect("there is memory");
        let memory = end.memory().try_clone_to_owned().expect("a descriptor");
        let bells = bells
            .iter()
            .map(|bell| bell.fd().try_clone_to_owned().map(Kept::from));
        let bells = bells.collect::<io::Result<_>>().expect("descriptors");
        let own = End::take(Shape::default(), memory, bells).expect("it is as told");
        let own = own.queues(1500, Some(OWN)).remove(0);
        let port = Port::new(own, Keep::AS_IT_IS).expect("it has an address");
        (port, end.queues(1500, Some(OWN)).remove(0))
    }

    /// The hub introduces the port to a peer, whose memory and doorbell are answered.
    fn introduce(port: &mut Port, hub: &Vnic, shape: Shape) -> (OwnedFd, Doorbell) {
        let (memory, [bell, other]) = parts(shape).expect("there is memory");
        let (peer, side) = (PEER, Side::Maker);
        let letter = News::Introduced { peer, side, shape }.letter();
        assert!(hub.write_letter(&letter, &[memory.as_fd(), bell.fd()]));
        port.disarm();
        assert_eq!(port.receive(64, &mut |_| ()).expect("the hub is up"), 0);
        (memory, other)
    }

    /// The peer's end.
    fn peer(memory: OwnedFd, bell: &Doorbell, shape: Shape) -> Vnic {
        let bell = bell.fd().try_clone_to_owned().expect("a descriptor").into();
        let end = End::given(Side::Taker, shape, memory, vec![bell]).expect("it is as told");
        end.queues(1500, Some(PEER)).remove(0)
    }

    fn frame(target: Mac, source: Mac, byte: u8) -> [u8; 60] {
        let mut frame = [byte; 60];
        frame[..6].copy_from_slice(&target.0);
        frame[6..12].copy_from_slice(&source.0);
        frame
    }

    /// Sends frames. How many were taken.
    fn send(link: &mut dyn Frames, frames: &[[u8; 60]]) -> usize {
        let mut frames = frames.iter();
        let sent = link.send(&mut |room| {
            room[..60].copy_from_slice(frames.next()?);
            Some(Written {
                bytes: 60,
                segment_bytes: 0,
            })
        });
        link.flush().expect("the link is up");
        sent.expect("the link is up")
    }

    fn received(link: &mut dyn Frames) -> Vec<u8> {
        let mut found = Vec::new();
        link.receive(64, &mut |frame| found.push(frame.bytes[59]))
            .expect("the link is up");
        found
    }

    #[test]
    fn frames_for_a_peer_go_past_the_hub_and_forged_ones_go_nowhere() {
        let (mut port, mut hub) = port();
        let before = [frame(PEER, OWN, 1), frame(Mac::BROADCAST, OWN, 2)];
        assert_eq!(send(&mut port, &before), 2);
        assert_eq!(received(&mut hub), [1, 2]);
        let (memory, bell) = introduce(&mut port, &hub, SMALL);
        let mut peer = peer(memory, &bell, SMALL);
        assert_eq!(port.links(), 1);
        let after = [
            frame(PEER, OWN, 3),
            frame(Mac::BROADCAST, OWN, 4),
            frame(OTHER, OWN, 5),
        ];
        assert_eq!(send(&mut port, &after), 3);
        assert_eq!((received(&mut hub), received(&mut peer)), (vec![4, 5], vec![3]));
        let back = [
            frame(OWN, PEER, 6),
            frame(OWN, OTHER, 7),
            frame(Mac::BROADCAST, PEER, 8),
            frame(OTHER, PEER, 9),
        ];
        send(&mut peer, &back);
        send(&mut hub, &[frame(OWN, OTHER, 10)]);
        let mut found = received(&mut port);
        found.sort_unstable();
        assert_eq!(found, [6, 10]);
        // A second introduction to the same peer, and one without descriptors, change nothing.
        introduce(&mut port, &hub, SMALL);
        let (peer, side, shape) = (OTHER, Side::Taker, SMALL);
        hub.write_letter(&News::Introduced { peer, side, shape }.letter(), &[]);
        port.disarm();
        assert_eq!(received(&mut port), []);
        assert_eq!(port.links(), 1);
    }

    #[test]
    fn a_sleeper_is_woken_by_the_hub_and_by_peers_and_looks_first() {
        let (mut port, mut hub) = port();
        let (memory, bell) = introduce(&mut port, &hub, SMALL);
        let mut peer = peer(memory, &bell, SMALL);
        let is_woken = |port: &Port| {
            let mut fds = [rustix::event::PollFd::from_borrowed_fd(
                port.fd(),
                rustix::event::PollFlags::IN,
            )];
            rustix::event::poll(&mut fds, Some(&Timespec::default())).expect("it can be asked") == 1
        };
        for round in 0..20u8 {
            assert_eq!(port.arm(), Some(Sleep::default()));
            assert!(!is_woken(&port));
            match round % 2 {
                0 => send(&mut peer, &[frame(OWN, PEER, round)]),
                _ => send(&mut hub, &[frame(OWN, OTHER, round)]),
            };
            assert!(is_woken(&port), "round {round}");
            assert_eq!(port.arm(), None, "there is a frame");
            port.disarm();
            assert_eq!(received(&mut port), [round]);
        }
        assert!(!is_woken(&port));
        // Nobody rings for one that is awake.
        send(&mut peer, &[frame(OWN, PEER, 1)]);
        assert!(!is_woken(&port));
    }

    #[test]
    fn a_peer_that_has_gone_is_told_after_its_last_frame_and_only_by_the_hub() {
        let (mut port, mut hub) = port();
        let (memory, bell) = introduce(&mut port, &hub, SMALL);
        let mut last = peer(memory, &bell, SMALL);
        send(&mut last, &[frame(OWN, PEER, 1)]);
        // A child of the peer's may have the doorbell for longer.
        hub.write_letter(&News::Gone(PEER).letter(), &[]);
        port.disarm();
        port.open_letters();
        assert_eq!((port.arm(), port.gone()), (None, None));
        assert_eq!((received(&mut port), port.gone()), (vec![1], None));
        assert_eq!((received(&mut port), port.links()), (vec![], 0));
        assert_eq!(
            (received(&mut port), port.gone(), port.gone()),
            (vec![], Some(PEER), None)
        );
        assert!(port.arm().is_some());
        port.disarm();
        // One that leaves the link is reached by the hub.
        let (memory, bell) = introduce(&mut port, &hub, SMALL);
        drop((peer(memory, &bell, SMALL), bell));
        port.disarm();
        received(&mut port);
        assert_eq!((port.links(), port.gone()), (0, None));
        send(&mut port, &[frame(PEER, OWN, 2)]);
        assert_eq!(received(&mut hub), [2]);
    }

    #[test]
    fn a_peer_that_does_not_read_holds_others_up_once() {
        let (mut port, mut hub) = port();
        let (memory, bell) = introduce(&mut port, &hub, SMALL);
        let mut peer = peer(memory, &bell, SMALL);
        let many = [frame(PEER, OWN, 1); 17];
        assert_eq!(send(&mut port, &many), 17, "the last one waits");
        assert_eq!(send(&mut port, &[frame(OTHER, OWN, 2)]), 0);
        let sleep = port.arm().expect("nothing can be done");
        let until = sleep.until.expect("it gets up");
        while os::now() < until {
            std::hint::spin_loop();
        }
        port.disarm();
        assert_eq!(send(&mut port, &[frame(OTHER, OWN, 3)]), 1);
        assert_eq!(send(&mut port, &many), 17, "they are dropped");
        assert_eq!(received(&mut hub), [3]);
        assert_eq!(received(&mut peer).len(), 16);
        assert_eq!(send(&mut port, &[frame(PEER, OWN, 4)]), 1);
        assert_eq!(received(&mut peer), [4], "it reads again");
        // Room that comes in time is used, and rung for.
        assert_eq!(send(&mut port, &many), 17);
        assert!(port.arm().is_some());
        received(&mut peer);
        port.disarm();
        port.flush().expect("the hub is up");
        assert_eq!(received(&mut peer), [1]);
        assert_eq!(port.arm(), Some(Sleep::default()));
    }

    #[test]
    fn a_peer_that_writes_garbage_everywhere_loses_its_link_and_nothing_else_happens() {
        let mut broken = 0;
        for seed in 0..60 {
            let mut rng = Rng::new(seed);
            let (mut port, mut hub) = port();
            let (memory, bell) = introduce(&mut port, &hub, SMALL);
            let bytes = SMALL.bytes();
            let memory = Memory::open(memory, bytes).expect("it is sealed");
            for _ in 0..2000 {
                let number = rng.below(64);
                let word = match rng.below(8) {
                    0 => rng.next_u64(),
                    // A descriptor that could be right.
                    _ => (number + 1) << 33 | rng.below(1 << 16),
                };
                let lane = rng.below(2) as usize * bytes / 2;
                let at = match rng.below(10) {
                    0 if seed % 3 == 0 => 0,
                    1 => 64,
                    2 => 128,
                    _ => 4096 + 8 * (number as usize & 15),
                };
                memory.word(lane + at).store(word, Ordering::SeqCst);
                match rng.below(4) {
                    0 => drop(port.arm()),
                    1 => drop(send(&mut port, &[frame(PEER, OWN, 1)])),
                    2 => port.disarm(),
                    _ => drop(received(&mut port)),
                }
                if port.links() == 0 {
                    broken += 1;
                    break;
                }
            }
            while !received(&mut hub).is_empty() {}
            send(&mut hub, &[frame(OWN, OTHER, 77)]);
            assert!(received(&mut port).contains(&77), "seed {seed}");
            drop(bell);
        }
        assert!(broken > 10, "{broken} links were broken");
    }
}

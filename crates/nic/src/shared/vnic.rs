//! One end of a virtual NIC: its queues, and their memory.

use super::doorbell::{Doorbell, LETTER_BYTES, Letter};
use super::kept::Kept;
use super::lane::{Broken, Consumer, Geometry, Producer};
use super::memory::Memory;
use crate::frames::{
    Checksums, ETHERNET_BYTES, FRAME_BYTES_MAX, Frame, Frames, Limits, LinkError, Sleep, Written,
};
use os::sync::Arc;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use tcp::addr::Mac;

/// Queues of a virtual NIC at most: as many doorbells fit into one message of descriptors.
pub const QUEUES_MAX: usize = 16;
/// Looks that find nothing before one asks whether the peer is still there: a fraction of a millisecond of polling.
const LOOKS_BEFORE_ASKING: u32 = 1 << 14;

/// The sizes on which both ends of a virtual NIC have to agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Queues, from 1 to [`QUEUES_MAX`].
    pub queues: usize,
    /// Descriptors of each direction of a queue; a power of two.
    pub descriptors: u32,
    /// Bytes of frames of each direction of a queue; a power of two, at least 256 KiB.
    pub data_bytes: u32,
}

impl Default for Shape {
    /// 256 KiB: both directions stay in a processor's second-level cache, and each has three of the longest frames.
    fn default() -> Self {
        Self {
            queues: 1,
            descriptors: 1024,
            data_bytes: 1 << 18,
        }
    }
}

impl Shape {
    const fn geometry(&self) -> Geometry {
        Geometry {
            descriptors: self.descriptors,
            data_bytes: self.data_bytes,
            frame_bytes_max: FRAME_BYTES_MAX as u32,
            frame_bytes_min: ETHERNET_BYTES as u32,
        }
    }

    /// Whether a virtual NIC may be so.
    pub const fn is_valid(&self) -> bool {
        self.queues >= 1 && self.queues <= QUEUES_MAX && self.geometry().is_valid()
    }

    /// Bytes of its memory.
    pub(super) const fn bytes(&self) -> usize {
        self.queues * 2 * self.geometry().bytes()
    }
}

/// An end of a virtual NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The end that has made the memory.
    Maker,
    /// The end that was given it.
    Taker,
}

/// One end without its queues: the memory, and a doorbell for each queue.
#[derive(Debug)]
pub struct End {
    memory: Arc<Memory>,
    bells: Vec<Doorbell>,
    shape: Shape,
    side: Side,
}

/// New memory, this end, and the doorbells of the other.
///
/// # Errors
/// There is no memory, or no descriptor left.
pub fn make(shape: Shape) -> io::Result<(End, Vec<Doorbell>)> {
    if !shape.is_valid() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let memory = Arc::new(Memory::new(shape.bytes())?);
    let (mut bells, mut others) = (Vec::new(), Vec::new());
    for _ in 0..shape.queues {
        let [bell, other] = Doorbell::pair()?;
        bells.push(bell);
        others.push(other);
    }
    let side = Side::Maker;
    let end = End {
        memory,
        bells,
        shape,
        side,
    };
    Ok((end, others))
}

impl End {
    /// The end of whoever was given the memory and a doorbell for each queue.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] if they are not what the shape says.
    pub fn take(shape: Shape, memory: OwnedFd, bells: Vec<Kept>) -> io::Result<Self> {
        Self::given(Side::Taker, shape, memory, bells)
    }

    /// Either end, of whoever was given the memory and the doorbells by a third party.
    ///
    /// # Errors
    /// As [`End::take`].
    pub fn given(side: Side, shape: Shape, memory: OwnedFd, bells: Vec<Kept>) -> io::Result<Self> {
        if !shape.is_valid() || bells.len() != shape.queues {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Self {
            memory: Arc::new(Memory::open(memory, shape.bytes())?),
            bells: bells.into_iter().map(Doorbell::new).collect(),
            shape,
            side,
        })
    }

    /// The descriptor of the memory.
    pub fn memory(&self) -> BorrowedFd<'_> {
        self.memory.fd()
    }

    /// The queues. `mtu` is that of the wire behind the link, if there is one.
    pub fn queues(self, mtu: u16, mac: Option<Mac>) -> Vec<Vnic> {
        let geometry = self.shape.geometry();
        let limits = Limits {
            mtu,
            // The longest packet has 60 bytes of headers of IP and of TCP each.
            segment_bytes_max: u16::MAX - 120,
            checksums: Checksums::Link,
            mac,
        };
        let side = usize::from(self.side == Side::Taker);
        let queue = |(index, bell): (usize, Doorbell)| {
            let base = |direction: usize| (index * 2 + direction) * geometry.bytes();
            Vnic {
                producer: Producer::new(Arc::clone(&self.memory), base(side), geometry),
                consumer: Consumer::new(Arc::clone(&self.memory), base(1 - side), geometry),
                bell,
                limits,
                incoming: vec![0; FRAME_BYTES_MAX].into(),
                outgoing: vec![0; FRAME_BYTES_MAX].into(),
                is_starved: false,
                is_broken: false,
                looks: 0,
            }
        };
        self.bells.into_iter().enumerate().map(queue).collect()
    }
}

/// What two processes need for a link between them: the memory, and a doorbell for each.
///
/// # Errors
/// There is no memory, or no descriptor left.
pub(crate) fn parts(shape: Shape) -> io::Result<(OwnedFd, [Doorbell; 2])> {
    Ok((Memory::sealed(shape.bytes())?, Doorbell::pair()?))
}

/// Two virtual NICs with a wire between them, of this process.
///
/// # Errors
/// There is no memory, or no descriptor left.
pub fn pair(shape: Shape, mtu: u16) -> io::Result<(Vec<Vnic>, Vec<Vnic>)> {
    let (one, bells) = make(shape)?;
    let memory = one.memory().try_clone_to_owned()?;
    let bells = bells
        .into_iter()
        .map(|bell| bell.fd().try_clone_to_owned().map(Kept::from));
    let other = End::take(shape, memory, bells.collect::<io::Result<_>>()?)?;
    Ok((one.queues(mtu, None), other.queues(mtu, None)))
}

/// One queue of a virtual NIC.
#[derive(Debug)]
pub struct Vnic {
    producer: Producer,
    consumer: Consumer,
    bell: Doorbell,
    limits: Limits,
    incoming: Box<[u8]>,
    outgoing: Box<[u8]>,
    /// Frames of the owner wait for room.
    is_starved: bool,
    is_broken: bool,
    looks: u32,
}

impl Vnic {
    fn broken(&mut self, _: Broken) -> LinkError {
        self.is_broken = true;
        LinkError::Broken
    }

    /// Nothing has come for a while: is there anybody?
    #[cold]
    fn look_for_peer(&mut self) -> Result<(), LinkError> {
        self.looks = 0;
        if !self.bell.is_closed() {
            self.bell.clear();
        }
        match self.bell.is_closed() {
            true => Err(LinkError::Closed),
            false => Ok(()),
        }
    }

    /// Sends one frame. False if there is no room.
    #[inline]
    pub(super) fn put(&mut self, frame: &[u8], segment_bytes: u16) -> Result<bool, LinkError> {
        if self.is_broken {
            return Err(LinkError::Broken);
        }
        let has_room = self.producer.has_room();
        let has_room = has_room.map_err(|broken| self.broken(broken))?;
        self.is_starved = !has_room;
        if has_room {
            self.producer.put(frame, segment_bytes);
        }
        Ok(has_room)
    }

    /// Whether the peer was seen on a processor.
    pub(super) fn is_peer_on(&self, processor: u32) -> bool {
        self.producer.is_peer_on(processor)
    }

    /// As [`Frames::disarm`], but rings stay.
    pub(super) fn rise(&mut self) {
        self.consumer.wake();
        self.producer.feed();
    }

    /// Takes a ring or a letter away.
    pub(super) fn hear(&mut self) {
        self.bell.clear_one();
    }

    /// Letters are kept from now on.
    pub(super) fn take_letters(&mut self) {
        self.bell.take_letters();
    }

    /// Whether there are letters.
    #[inline]
    pub(super) fn has_letters(&self) -> bool {
        self.bell.has_letters()
    }

    /// The letters.
    pub(super) fn open_letters(&mut self) -> Vec<Letter> {
        self.bell.open_letters()
    }

    /// Sends a letter to an end that takes letters. False if it has too much to read, or has gone.
    pub(crate) fn write_letter(&self, letter: &[u8; LETTER_BYTES], fds: &[BorrowedFd<'_>]) -> bool {
        self.bell.write(letter, fds)
    }
}

impl Frames for Vnic {
    fn limits(&self) -> Limits {
        self.limits
    }

    #[inline]
    fn receive(&mut self, count_max: usize, take: &mut dyn FnMut(Frame<'_>)) -> Result<usize, LinkError> {
        if self.is_broken {
            return Err(LinkError::Broken);
        }
        self.consumer.note_processor(os::processor());
        let mut count = 0;
        while count < count_max {
            let taken = self.consumer.take(&mut self.incoming);
            let Some((length, segment_bytes)) = taken.map_err(|broken| self.broken(broken))? else {
                break;
            };
            count += 1;
            let bytes = &self.incoming[..length];
            take(Frame { bytes, segment_bytes });
        }
        if self.consumer.release() {
            self.bell.ring();
        }
        if count > 0 {
            self.looks = 0;
            return Ok(count);
        }
        self.looks += 1;
        if self.looks > LOOKS_BEFORE_ASKING || self.bell.is_closed() {
            self.look_for_peer()?;
        }
        Ok(0)
    }

    #[inline]
    fn send(&mut self, fill: &mut dyn FnMut(&mut [u8]) -> Option<Written>) -> Result<usize, LinkError> {
        if self.is_broken {
            return Err(LinkError::Broken);
        }
        let mut count = 0;
        loop {
            let has_room = self.producer.has_room();
            self.is_starved = !has_room.map_err(|broken| self.broken(broken))?;
            if self.is_starved {
                return Ok(count);
            }
            let Some(written) = fill(&mut self.outgoing) else {
                return Ok(count);
            };
            let frame = &self.outgoing[..written.bytes];
            self.producer.put(frame, written.segment_bytes);
            count += 1;
        }
    }

    #[inline]
    fn flush(&mut self) -> Result<(), LinkError> {
        if self.producer.rings() {
            self.bell.ring();
        }
        Ok(())
    }

    fn arm(&mut self) -> Option<Sleep> {
        if self.is_broken || self.bell.is_closed() || !self.consumer.sleep() {
            return None;
        }
        if self.is_starved && self.producer.starve() != Ok(true) {
            // There is room by now. An owner that has nothing to send any more may sleep the next time.
            self.is_starved = false;
            self.consumer.wake();
            return None;
        }
        Some(Sleep::default())
    }

    fn disarm(&mut self) {
        self.consumer.wake();
        self.producer.feed();
        self.bell.clear();
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.bell.fd()
    }

    fn is_in_the_way(&self) -> bool {
        self.is_peer_on(os::processor())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Rng;
    use os::sync::Ordering;

    const SMALL: Shape = Shape {
        queues: 1,
        descriptors: 16,
        data_bytes: 1 << 18,
    };

    fn only(queues: Vec<Vnic>) -> Vnic {
        queues.into_iter().next().expect("one queue")
    }

    /// Sends one frame if there is room.
    fn send(vnic: &mut Vnic, bytes: &[u8]) -> bool {
        let mut is_done = false;
        let sent = vnic.send(&mut |frame| {
            if std::mem::replace(&mut is_done, true) {
                return None;
            }
            frame[..bytes.len()].copy_from_slice(bytes);
            Some(Written {
                bytes: bytes.len(),
                segment_bytes: 7,
            })
        });
        sent.expect("the link is up") == 1
    }

    #[test]
    fn frames_of_any_length_arrive_whole_and_in_order_around_the_ring() {
        let (one, other) = pair(SMALL, 1500).expect("there is memory");
        let (mut one, mut other) = (only(one), only(other));
        let mut rng = Rng::new(1);
        let (mut sent, mut received) = (Vec::new(), 0);
        for round in 0..4000u64 {
            let length = match rng.below(4) {
                0 => FRAME_BYTES_MAX,
                _ => rng.between(ETHERNET_BYTES as u64, 3000) as usize,
            };
            let frame: Vec<u8> = (0..length).map(|at| (at as u64 ^ round) as u8).collect();
            if send(&mut one, &frame) {
                sent.push(frame);
            }
            if rng.chance(0.5) {
                other
                    .receive(rng.below(20) as usize, &mut |frame| {
                        assert_eq!((frame.bytes, frame.segment_bytes), (&sent[received][..], 7));
                        received += 1;
                    })
                    .expect("the link is up");
            }
        }
        assert!(received > 1000, "{received} frames were not many");
    }

    #[test]
    fn a_peer_that_writes_garbage_everywhere_gets_no_further_than_an_error() {
        let (mut broken, mut garbage) = (0, 0);
        for seed in 0..60 {
            let mut rng = Rng::new(seed);
            let (one, bells) = make(SMALL).expect("there is memory");
            let memory = Arc::clone(&one.memory);
            let mut victim = only(one.queues(1500, None));
            for _ in 0..3000 {
                let number = rng.below(64);
                let word = match rng.below(8) {
                    0 => rng.next_u64(),
                    // A descriptor that could be right.
                    _ => (number + 1) << 33 | rng.below(1 << 16),
                };
                let lane = rng.below(2) as usize * SMALL.geometry().bytes();
                let at = match rng.below(10) {
                    0 if seed % 3 == 0 => 0,
                    1 => 64,
                    2 => 128,
                    _ => 4096 + 8 * (number as usize & 15),
                };
                memory.word(lane + at).store(word, Ordering::SeqCst);
                let result = match rng.below(4) {
                    0 => victim.arm().map_or(Ok(0), |_| Ok(0)),
                    1 => victim.flush().map(|()| 0),
                    2 => victim.send(&mut |frame| {
                        frame[..64].fill(1);
                        rng.chance(0.7).then_some(Written {
                            bytes: 64,
                            segment_bytes: 0,
                        })
                    }),
                    _ => victim.receive(8, &mut |frame| {
                        assert!((ETHERNET_BYTES..=FRAME_BYTES_MAX).contains(&frame.bytes.len()));
                        garbage += 1;
                    }),
                };
                if result.is_err() {
                    broken += 1;
                    assert!(victim.receive(1, &mut |_| panic!("it is broken")).is_err());
                    break;
                }
            }
            drop(bells);
        }
        assert!(
            broken > 10 && garbage > 100,
            "{broken} were broken, {garbage} frames taken"
        );
    }

    #[test]
    fn a_sleeper_is_rung_once_and_one_that_is_awake_never() {
        let (one, other) = pair(SMALL, 1500).expect("there is memory");
        let (mut one, mut other) = (only(one), only(other));
        let is_rung = |vnic: &Vnic| {
            let mut fds = [rustix::event::PollFd::from_borrowed_fd(
                vnic.bell.fd(),
                rustix::event::PollFlags::IN,
            )];
            let none = rustix::event::Timespec::default();
            rustix::event::poll(&mut fds, Some(&none)).expect("it can be asked") == 1
        };
        assert!(send(&mut one, &[1; 60]));
        one.flush().expect("the link is up");
        assert!(!is_rung(&other), "nobody sleeps");
        assert_eq!(other.arm(), None, "there is a frame");
        assert_eq!(other.receive(9, &mut |_| ()).expect("the link is up"), 1);
        assert!(other.arm().is_some());
        assert!(send(&mut one, &[1; 60]));
        assert!(!is_rung(&other), "the frame may wait for the flush");
        one.flush().expect("the link is up");
        assert!(is_rung(&other));
        other.disarm();
        assert!(!is_rung(&other));
        // Room is rung for, too.
        while send(&mut one, &[1; 60]) {}
        one.flush().expect("the link is up");
        assert!(one.arm().is_some(), "the ring is full");
        other
            .receive(SMALL.descriptors as usize / 4, &mut |_| ())
            .expect("the link is up");
        assert!(is_rung(&one));
    }

    #[test]
    fn an_owner_without_frames_sleeps_though_there_was_no_room_once() {
        let (one, other) = pair(SMALL, 1500).expect("there is memory");
        let (mut one, mut other) = (only(one), only(other));
        while send(&mut one, &[1; 60]) {}
        other.receive(64, &mut |_| ()).expect("the link is up");
        assert_eq!(one.arm(), None, "there is room for the frame that had none");
        assert!(one.arm().is_some(), "nothing was sent, and nothing waits");
    }

    #[test]
    fn the_last_frames_of_a_peer_that_has_gone_are_read_before_the_end() {
        let (one, other) = pair(SMALL, 1500).expect("there is memory");
        let (mut one, mut other) = (only(one), only(other));
        assert!(send(&mut one, &[1; 60]));
        drop(one);
        other.disarm();
        assert_eq!(other.receive(9, &mut |_| ()).expect("a frame is left"), 1);
        assert!(matches!(other.receive(9, &mut |_| ()), Err(LinkError::Closed)));
        // One that polls learns of it, too.
        let (one, other) = pair(SMALL, 1500).expect("there is memory");
        drop(one);
        let mut other = only(other);
        let looks = (0..2 * LOOKS_BEFORE_ASKING).take_while(|_| other.receive(1, &mut |_| ()).is_ok());
        assert!(looks.count() < 2 * LOOKS_BEFORE_ASKING as usize);
    }
}

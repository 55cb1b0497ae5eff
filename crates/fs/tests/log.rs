//! Crash images of the operation log: every cut gives whole frames, all that were acknowledged, and damage is told from a cut.

use base::{MediaError, Rng};
use fs::format::Place;
use fs::inode::Time;
use fs::log::{AddError, FRAME_HEADER_BYTES, Next, Options, Reader, Ring, Ticket, Write, Writer};
use fs::op::{Action, Op};
use fs::value::Run;
use std::borrow::Cow;

const BLOCK: u64 = 4096;

/// A log and its medium. What was written is durable; what is under way may be there or not, piece by piece.
struct Rig {
    ring: Ring,
    writer: Writer,
    medium: Vec<u8>,
    flying: Vec<Write>,
    /// Bytes that a cut leaves old or new.
    atomic: usize,
    /// The calls of each frame, by their numbers, and where the frame ends once it is known.
    frames: Vec<Vec<u64>>,
    /// Frames that were digested, or are before this log's writer.
    digested: usize,
    digested_position: u64,
    next_call: u64,
    rng: Rng,
}

#[derive(Debug, PartialEq)]
enum Ending {
    End,
    Damaged,
}

fn run(device: u8, number: u64, blocks: u64) -> Run {
    let place = Place::new(device, number);
    Run { place, blocks }
}

fn ring(nonce: u64, sector: u32) -> Ring {
    // Blocks 9 to 11 come before 4 and 5, so that frames cross from one extent to another.
    let extents = [run(0, 9, 3), run(0, 4, 2)];
    Ring::new(nonce, sector, &extents).expect("it is sound")
}

fn options(writes: usize) -> Options {
    Options {
        frame_bytes_max: 3000,
        writes_in_flight_max: writes,
    }
}

fn call(number: u64, bytes: usize) -> Op<'static> {
    let data = vec![number as u8 | 1; bytes.max(1)];
    Op {
        inode: number,
        time: Time::default(),
        action: Action::Write {
            offset: 0,
            data: Cow::Owned(data),
        },
    }
}

/// What a medium has of a log: the calls of each frame, where the frames end, and how the log does.
fn read(ring: &Ring, medium: &Vec<u8>, from: u64) -> (Vec<(u64, Vec<u64>)>, Ending) {
    let mut reader = Reader::new(ring, medium, from).expect("a sector begins there");
    let mut frames = Vec::new();
    loop {
        match reader.next_frame().expect("memory is read") {
            Next::Frame(frame) => {
                assert_eq!(frame.end, reader.position());
                let ops = frame.ops().map(|op| op.expect("a frame is whole"));
                let calls = ops.map(|op| {
                    let Action::Write { data, .. } = &op.action else {
                        panic!("all calls are writes")
                    };
                    assert!(
                        data.iter().all(|byte| *byte == op.inode as u8 | 1),
                        "a record is whole"
                    );
                    op.inode
                });
                frames.push((frame.end, calls.collect()));
            }
            Next::End => return (frames, Ending::End),
            Next::Damaged => return (frames, Ending::Damaged),
        }
    }
}

impl Rig {
    fn new(sector: u32, atomic: usize, writes: usize, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let ring = ring(rng.next_u64(), sector);
        let mut medium = vec![0; 12 * BLOCK as usize];
        // What was in these blocks before is anything.
        medium.iter_mut().for_each(|byte| *byte = rng.next_u64() as u8);
        Self {
            writer: Writer::new(ring.clone(), 0, options(writes)),
            ring,
            medium,
            flying: Vec::new(),
            atomic,
            frames: vec![Vec::new()],
            digested: 0,
            digested_position: 0,
            next_call: 1,
            rng,
        }
    }

    /// One call, perhaps of several records. False if the log did not take it.
    fn add(&mut self) -> Result<Ticket, AddError> {
        let records = self.rng.between(1, 3);
        let calls: Vec<_> = (0..records)
            .map(|index| {
                let bytes = if self.rng.chance(0.2) { 900 } else { 60 };
                call(self.next_call + index, self.rng.below(bytes) as usize)
            })
            .collect();
        let ticket = self.writer.add(&calls)?;
        while self.frames.len() <= ticket.0 as usize {
            self.frames.push(Vec::new());
        }
        assert_eq!(
            self.frames.len() - 1,
            ticket.0 as usize,
            "a frame after the other"
        );
        self.frames[ticket.0 as usize].extend(self.next_call..self.next_call + records);
        self.next_call += records;
        Ok(ticket)
    }

    fn issue(&mut self) {
        self.flying.extend(self.writer.next_write());
    }

    fn mark(&mut self) {
        if let Some(write) = self.writer.mark() {
            assert_eq!(
                write.ticket().0 as usize,
                self.frames.len(),
                "a frame without records"
            );
            self.frames.push(Vec::new());
            self.flying.push(write);
        }
    }

    fn complete(&mut self, index: usize) {
        let write = self.flying.swap_remove(index);
        for (offset, bytes) in write.pieces() {
            self.medium[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        }
        self.writer.written(write, Ok(()));
    }

    fn settle(&mut self) {
        self.issue();
        while !self.flying.is_empty() {
            self.complete(0);
            self.issue();
        }
    }

    /// Everything durable is in the tree, and the ring has its room again.
    fn digest(&mut self) {
        self.digested = self.writer.durable().0 as usize;
        self.digested_position = self.writer.durable_position();
        self.writer.consumed(self.digested_position);
    }

    fn step(&mut self) {
        match self.rng.below(10) {
            0..4 => match self.add() {
                Err(AddError::Full { bytes, free }) => {
                    assert!(bytes > free);
                    self.digest();
                }
                Err(AddError::Busy) => self.issue(),
                added => drop(added.expect("calls are short")),
            },
            4..6 => self.issue(),
            6..9 if !self.flying.is_empty() => {
                let index = self.rng.below(self.flying.len() as u64) as usize;
                self.complete(index);
            }
            9 if self.rng.chance(0.3) => self.digest(),
            9 => self.mark(),
            _ => {}
        }
    }

    /// Pieces of writes under way that a cut leaves old or new.
    fn pieces(&self) -> usize {
        let lengths = self
            .flying
            .iter()
            .flat_map(Write::pieces)
            .map(|(_, bytes)| bytes.len() / self.atomic);
        lengths.sum()
    }

    fn cut(&self, mut is_there: impl FnMut() -> bool) -> Vec<u8> {
        let mut medium = self.medium.clone();
        for (offset, bytes) in self.flying.iter().flat_map(Write::pieces) {
            for (index, piece) in bytes.chunks(self.atomic).enumerate() {
                if is_there() {
                    medium[offset as usize + index * self.atomic..][..piece.len()].copy_from_slice(piece);
                }
            }
        }
        medium
    }

    /// A cut with every piece by chance, or with writes that are there or not as a whole.
    fn random_cut(&mut self) -> Vec<u8> {
        let mut rng = self.rng.fork();
        let share = [0.0, 0.1, 0.5, 0.9, 0.99, 1.0][rng.below(6) as usize];
        self.cut(|| rng.chance(share))
    }

    /// A medium has a beginning of the frames, all acknowledged ones among them. How many more it has.
    fn probe(&self, medium: &Vec<u8>) -> u64 {
        let (found, ending) = read(&self.ring, medium, self.digested_position);
        assert_eq!(ending, Ending::End, "a cut is no damage");
        let written = self.digested + found.len();
        assert!(
            written >= self.writer.durable().0 as usize,
            "what was acknowledged is there"
        );
        for (calls, expected) in found.iter().zip(&self.frames[self.digested + 1..]) {
            assert_eq!(&calls.1, expected);
        }
        assert!(written < self.frames.len(), "no frame comes from nowhere");
        found.last().map_or(self.digested_position, |(end, _)| *end)
    }

    /// Goes on behind the end of what a cut has left, as a new writer.
    fn restart(&mut self, medium: Vec<u8>, nonce: u64) {
        let end = self.probe(&medium);
        let (sector, writes) = (self.ring.sector(), self.rng.between(1, 4) as usize);
        self.medium = medium;
        self.flying.clear();
        self.ring = ring(nonce, sector);
        self.writer = Writer::new(self.ring.clone(), end, options(writes));
        self.frames = vec![Vec::new()];
        (self.digested, self.digested_position) = (0, end);
    }
}

/// The sector of the log, and what its medium leaves old or new.
const MEDIA: [(u32, usize); 3] = [(512, 512), (4096, 512), (64, 8)];

#[test]
fn every_subset_of_what_is_under_way_gives_whole_frames_at_every_point() {
    let mut images = 0;
    for seed in 0..24 {
        let (sector, atomic) = MEDIA[seed as usize % 3];
        let mut rig = Rig::new(sector, atomic, 1 + seed as usize % 4, seed);
        for _ in 0..400 {
            rig.step();
            let pieces = rig.pieces();
            if (1..=8).contains(&pieces) {
                for chosen in 0..1u32 << pieces {
                    let mut index = 0;
                    let medium = rig.cut(|| {
                        index += 1;
                        chosen >> (index - 1) & 1 == 1
                    });
                    rig.probe(&medium);
                    images += 1;
                }
            }
            let medium = rig.random_cut();
            rig.probe(&medium);
        }
    }
    assert!(images > 10_000, "{images} images");
}

#[test]
fn logs_that_crash_again_and_again_go_round_and_keep_what_was_acknowledged() {
    let (mut laps, mut crossings) = (0, 0);
    for seed in 0..60 {
        let (sector, atomic) = MEDIA[seed as usize % 3];
        let mut rig = Rig::new(sector, atomic, 1 + seed as usize % 4, 100 + seed);
        for _ in 0..20 {
            for _ in 0..rig.rng.below(80) {
                rig.step();
                crossings += rig
                    .flying
                    .iter()
                    .filter(|write| write.pieces().count() > 1)
                    .count();
            }
            let (medium, nonce) = (rig.random_cut(), rig.rng.next_u64());
            rig.restart(medium, nonce);
        }
        laps += rig.digested_position / rig.ring.bytes();
    }
    assert!(
        laps > 100 && crossings > 100,
        "{laps} laps, {crossings} frames in two extents"
    );
}

/// The canary: with the nonce of the writer before, a frame that the cut left behind the end comes back.
#[test]
#[should_panic]
fn a_writer_that_keeps_the_nonce_is_noticed() {
    for seed in 0..60 {
        let mut rig = Rig::new(512, 512, 4, 200 + seed);
        let nonce = rig.rng.next_u64();
        rig.restart(rig.medium.clone(), nonce);
        for _ in 0..40 {
            for _ in 0..rig.rng.below(40) {
                rig.step();
            }
            let medium = rig.random_cut();
            rig.restart(medium, nonce);
        }
    }
}

/// The canary: were a write acknowledged that is not there, these tests would notice.
#[test]
#[should_panic(expected = "what was acknowledged is there")]
fn a_medium_that_lies_is_noticed() {
    let mut rig = Rig::new(512, 512, 1, 300);
    rig.add().expect("there is room");
    let write = rig.writer.next_write().expect("a record waits");
    rig.writer.written(write, Ok(()));
    rig.probe(&rig.medium);
}

#[test]
fn every_flipped_bit_of_an_acknowledged_frame_is_damage_and_a_mark_covers_the_last_one() {
    let mut flips = 0;
    for seed in 0..6 {
        let (sector, atomic) = MEDIA[seed as usize % 3];
        let mut rig = Rig::new(sector, atomic, 1 + seed as usize % 3, 400 + seed);
        for _ in 0..60 {
            rig.step();
        }
        rig.settle();
        rig.digest();
        for _ in 0..4 {
            rig.add().expect("there is room");
            rig.settle();
        }
        for is_marked in [false, true] {
            if is_marked {
                assert!(rig.writer.wants_mark());
                rig.mark();
                rig.settle();
                assert!(
                    !rig.writer.wants_mark() && rig.writer.mark().is_none(),
                    "one is enough"
                );
            }
            let (frames, ending) = read(&rig.ring, &rig.medium, rig.digested_position);
            assert_eq!((frames.len(), ending), (4 + usize::from(is_marked), Ending::End));
            let mut start = rig.digested_position;
            for (index, (end, _)) in frames.iter().enumerate() {
                for offset in bytes_of_frame(&rig, start, *end) {
                    let mut medium = rig.medium.clone();
                    medium[offset] ^= 1 << rig.rng.below(8);
                    let (found, ending) = read(&rig.ring, &medium, rig.digested_position);
                    let is_last = index + 1 == frames.len();
                    let expected = if is_last { Ending::End } else { Ending::Damaged };
                    assert_eq!((found.len(), ending), (index, expected), "byte {offset}");
                    flips += 1;
                }
                start = *end;
            }
        }
    }
    assert!(flips > 5000, "{flips} flips");
}

/// Where the bytes of the frame are that lies between two positions: without what was skipped, and without its padding.
fn bytes_of_frame(rig: &Rig, start: u64, end: u64) -> Vec<usize> {
    let bytes = rig.ring.bytes();
    let place = |position: u64| {
        let at = position % bytes;
        (if at < 3 * BLOCK {
            9 * BLOCK + at
        } else {
            BLOCK + at
        }) as usize
    };
    let is_frame = |at: &u64| {
        let header: Vec<u8> = (16..24).map(|field| rig.medium[place(at + field)]).collect();
        header == at.to_le_bytes()
    };
    let first = (start..end).step_by(64).find(is_frame).expect("a frame is there");
    let length: Vec<u8> = (4..8).map(|field| rig.medium[place(first + field)]).collect();
    let length = u32::from_le_bytes(length.try_into().expect("four bytes"));
    (first..first + u64::from(length)).map(place).collect()
}

/// A frame that was written beside a torn one does not pass for what follows: it says where the frame before it ended.
#[test]
fn a_frame_that_went_to_the_rings_start_does_not_hide_a_torn_one() {
    let mut met = 0;
    for seed in 0..200 {
        let mut rig = Rig::new(512, 512, 2, 500 + seed);
        for _ in 0..rig.rng.between(20, 300) {
            rig.step();
        }
        rig.settle();
        rig.digest();
        for bytes in [10, 2400] {
            rig.writer
                .add(&[call(rig.next_call, bytes)])
                .expect("there is room");
            rig.issue();
        }
        let second = rig.flying[1].pieces().next().expect("it has a place").0;
        met += u32::from(second == 9 * BLOCK);
        // The second one is there, the first one is not.
        let mut medium = rig.medium.clone();
        for (offset, bytes) in rig.flying[1].pieces() {
            medium[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        }
        assert_eq!(
            read(&rig.ring, &medium, rig.digested_position),
            (Vec::new(), Ending::End)
        );
    }
    assert!(met > 5, "{met} went to the start");
}

#[test]
fn damage_of_many_frames_in_a_row_is_told_by_any_later_one() {
    let mut rig = Rig::new(512, 512, 1, 600);
    for _ in 0..6 {
        rig.add().expect("there is room");
        rig.settle();
    }
    let (frames, _) = read(&rig.ring, &rig.medium, 0);
    let mut medium = rig.medium.clone();
    for lost in 1..6 {
        let place = 9 * BLOCK as usize;
        medium[place + frames[0].0 as usize..place + frames[lost].0 as usize].fill(0);
        let ending = if lost == 5 { Ending::End } else { Ending::Damaged };
        assert_eq!(read(&rig.ring, &medium, 0), (frames[..1].to_vec(), ending));
    }
}

#[test]
fn frames_that_somebody_makes_up_cost_no_more_than_some_reads_of_the_ring() {
    let ring = Ring::new(7, 64, &[run(0, 0, 2048)]).expect("it is sound");
    let mut medium = vec![0u8; 2048 * BLOCK as usize];
    for position in (64..ring.bytes() as usize).step_by(64) {
        let bytes = (ring.bytes() as usize - position).min(1 << 20) as u32;
        medium[position + 4..position + 8].copy_from_slice(&bytes.to_le_bytes());
        medium[position + 8..position + 16].copy_from_slice(&7u64.to_le_bytes());
        medium[position + 16..position + 24].copy_from_slice(&(position as u64).to_le_bytes());
    }
    // Without a limit this is 128 GiB of checksums.
    assert_eq!(read(&ring, &medium, 0), (Vec::new(), Ending::Damaged));
}

#[test]
fn a_write_that_fails_latches() {
    for failing in 0..4 {
        let mut rig = Rig::new(512, 512, 4, 700);
        let mut tickets = Vec::new();
        for _ in 0..4 {
            tickets.push(rig.add().expect("there is room"));
            rig.issue();
        }
        for (index, write) in core::mem::take(&mut rig.flying).into_iter().enumerate().rev() {
            rig.writer.written(
                write,
                if index == failing {
                    Err(MediaError::Io)
                } else {
                    Ok(())
                },
            );
        }
        assert!(rig.writer.is_latched());
        assert!(
            rig.writer.durable() < tickets[failing],
            "nothing from there on is acknowledged"
        );
        assert_eq!(rig.writer.add(&[call(9, 1)]), Err(AddError::Latched));
        assert!(rig.writer.next_write().is_none() && rig.writer.mark().is_none());
    }
}

#[test]
fn what_does_not_fit_is_refused_by_its_reason() {
    let mut rig = Rig::new(512, 512, 1, 800);
    let most = 3000 - FRAME_HEADER_BYTES as u64;
    let too_long = call(1, 2960 - 48 + 1);
    assert_eq!(too_long.record_bytes() as u64, most + 1);
    assert_eq!(
        rig.writer.add(&[too_long]),
        Err(AddError::TooLong {
            bytes: most + 1,
            bytes_max: most
        })
    );
    let longest = call(1, 2960 - 48);
    let mut frames = 0;
    let full = loop {
        match rig.writer.add(core::slice::from_ref(&longest)) {
            Ok(ticket) => {
                frames += 1;
                assert_eq!(ticket, Ticket(frames));
                assert_eq!(
                    rig.writer.add(&[call(2, 1)]),
                    Err(AddError::Busy),
                    "the frame is full"
                );
                let write = rig.writer.next_write().expect("a record waits");
                rig.writer.written(write, Ok(()));
            }
            Err(error) => break error,
        }
    };
    assert!(
        matches!(full, AddError::Full { bytes, free } if bytes > free),
        "{full:?}"
    );
    rig.writer.consumed(rig.writer.durable_position());
    rig.writer.add(&[longest]).expect("there is room again");
}

#[test]
fn a_ring_that_cannot_be_is_refused() {
    let sound = run(0, 4, 2);
    assert!(Ring::new(1, 512, &[sound]).is_some());
    for sector in [0, 32, 500, 8192] {
        assert!(
            Ring::new(1, sector, &[sound]).is_none(),
            "sectors of {sector} bytes"
        );
    }
    for extents in [
        &[][..],
        &[sound, run(0, 9, 0)],
        &[run(1, 4, 2)],
        &[run(0, 4, u64::MAX)],
    ] {
        assert!(Ring::new(1, 512, extents).is_none(), "{extents:?}");
    }
    let ring = Ring::new(1, 512, &[sound]).expect("it is sound");
    let medium = vec![0u8; 6 * BLOCK as usize];
    assert!(Reader::new(&ring, &medium, 100).is_none(), "no frame ends there");
    assert!(Reader::new(&ring, &medium, u64::MAX - 511).is_none());
    assert_eq!(read(&ring, &medium, 512), (Vec::new(), Ending::End));
}

#[test]
fn the_same_calls_give_the_same_bytes() {
    let media = [0, 1].map(|_| {
        let mut rig = Rig::new(64, 8, 3, 900);
        (0..500).for_each(|_| rig.step());
        rig.settle();
        rig.medium
    });
    assert!(media[0] == media[1]);
}

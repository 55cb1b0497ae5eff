//! One direction of one queue in shared memory: descriptors, data, and the words by which the two ends sleep and wake.
//! The bytes are in `docs/format/vnic.md`.
//!
//! # Why a hostile end does no harm
//! Each end keeps its own positions in memory of its own. A producer reads one word of the consumer, "descriptors read", and
//! refuses a value that is not between the last one and what it has written. A consumer reads a descriptor once, as one word, and
//! refuses a length that no frame has; where the frame lies follows from the lengths before, modulo the ring. Frames are
//! copied out before anybody looks at them.
//!
//! # Who has the processor
//! A consumer notes which processor it is on. A producer that waits for an answer asks: if its peer is on the same one, looking for frames
//! keeps the peer from sending any. The word is a hint: a wrong one costs time.
//!
//! # Why no wake is lost
//! A consumer that wants to sleep sets `sleeps` and looks for a frame after that. A producer publishes a descriptor and
//! looks at `sleeps` after that. A fence stands between the two steps on both sides, so one of them sees the other. The end that takes the
//! mark away rings.
//!
//! It is the same with `starves`, for a producer without room. But the consumer looks at `starves` only after it has read a quarter of
//! the descriptors or of the data since its last look. A producer that finds no room has more than half a ring in front of the
//! consumer, counted from the consumer's last look before that. So the consumer comes to another look, which sees the mark.

use super::memory::Memory;
use super::sync::{Arc, AtomicU64, Ordering, fence};

/// A cache line, to which frames are aligned.
const LINE_BYTES: u64 = 64;
/// Descriptors read: the consumer's word.
const READ_AT: usize = 0;
/// Not 0 while the consumer sleeps.
const SLEEPS_AT: usize = 64;
/// Not 0 while the producer waits for room.
const STARVES_AT: usize = 128;
/// The processor that the consumer is on, plus one.
const PROCESSOR_AT: usize = 192;
/// The place of the first descriptor.
const DESCRIPTORS_AT: usize = 4096;
/// Bits of a descriptor's length, and of its segments' payload; its mark has the rest.
const LENGTH_BITS: u32 = 17;
const SEGMENT_BITS: u32 = 16;
const MARK_SHIFT: u32 = LENGTH_BITS + SEGMENT_BITS;

/// The other end breaks the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// The sizes of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Descriptors; a power of two.
    pub descriptors: u32,
    /// Bytes of frames; a power of two.
    pub data_bytes: u32,
    /// Bytes of the longest frame.
    pub frame_bytes_max: u32,
    /// Bytes of the shortest frame.
    pub frame_bytes_min: u32,
}

impl Geometry {
    /// Whether a lane may be so: sizes are powers of two, and three of the longest frames fit.
    pub const fn is_valid(&self) -> bool {
        self.descriptors.is_power_of_two()
            && self.data_bytes.is_power_of_two()
            && self.descriptors >= 16
            && self.descriptors <= 1 << 16
            && self.data_bytes <= 1 << 28
            && self.frame_bytes_min >= 1
            && self.frame_bytes_min <= self.frame_bytes_max
            && self.frame_bytes_max < 1 << LENGTH_BITS
            && self.frame_bytes_max <= self.data_bytes / 3
    }

    /// Bytes of data that may lie before the longest frame.
    const fn data_room(&self) -> u64 {
        self.data_bytes as u64 - (self.frame_bytes_max as u64).next_multiple_of(LINE_BYTES)
    }

    const fn data_at(&self) -> usize {
        DESCRIPTORS_AT + (self.descriptors as usize * 8).next_multiple_of(4096)
    }

    /// Bytes of a lane.
    pub const fn bytes(&self) -> usize {
        self.data_at() + self.data_bytes as usize
    }
}

/// The part that both ends of a lane have.
#[derive(Debug)]
struct Lane {
    memory: Arc<Memory>,
    geometry: Geometry,
    /// Places in memory.
    base: usize,
    descriptors_at: usize,
    data_at: usize,
    /// Bytes of frames, less one.
    data_mask: usize,
    descriptors_mask: usize,
}

impl Lane {
    fn new(memory: Arc<Memory>, base: usize, geometry: Geometry) -> Self {
        assert!(geometry.is_valid(), "the caller has looked");
        Self {
            memory,
            geometry,
            base,
            descriptors_at: base + DESCRIPTORS_AT,
            data_at: base + geometry.data_at(),
            data_mask: geometry.data_bytes as usize - 1,
            descriptors_mask: geometry.descriptors as usize - 1,
        }
    }

    #[inline]
    fn word(&self, at: usize) -> &AtomicU64 {
        self.memory.word(self.base + at)
    }

    /// The word of the descriptor with a number.
    #[inline]
    fn descriptor(&self, number: u64) -> &AtomicU64 {
        let index = number as usize & self.descriptors_mask;
        self.memory.word(self.descriptors_at + index * 8)
    }

    /// Copies a frame to data position `at`.
    #[inline]
    fn write(&self, at: u64, frame: &[u8]) {
        let offset = at as usize & self.data_mask;
        if offset + frame.len() <= self.data_mask + 1 {
            return self.memory.write(self.data_at + offset, frame);
        }
        let (first, rest) = frame.split_at(self.data_mask + 1 - offset);
        self.memory.write(self.data_at + offset, first);
        self.memory.write(self.data_at, rest);
    }

    /// Copies a frame from data position `at`.
    #[inline]
    fn read(&self, at: u64, frame: &mut [u8]) {
        let offset = at as usize & self.data_mask;
        if offset + frame.len() <= self.data_mask + 1 {
            return self.memory.read(self.data_at + offset, frame);
        }
        let (first, rest) = frame.split_at_mut(self.data_mask + 1 - offset);
        self.memory.read(self.data_at + offset, first);
        self.memory.read(self.data_at, rest);
    }

    /// Takes a mark of a sleeping or starving end away. True if it was there: that end has to be rung for.
    #[inline]
    fn take_mark(&self, at: usize) -> bool {
        fence(Ordering::SeqCst);
        // Relaxed: the fence orders the look behind what was published.
        self.word(at).load(Ordering::Relaxed) != 0 && self.word(at).swap(0, Ordering::SeqCst) != 0
    }

    fn set_mark(&self, at: usize) {
        self.word(at).store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    fn clear_mark(&self, at: usize) {
        // Relaxed: a mark that is seen a little longer costs a ring that nobody needs.
        self.word(at).store(0, Ordering::Relaxed);
    }
}

/// The mark of a descriptor's number. An older descriptor of the same place has another one. The first one is 1: zeros are none.
#[inline]
const fn mark(number: u64) -> u64 {
    (number + 1) & ((1 << (64 - MARK_SHIFT)) - 1)
}

/// The end that writes frames.
#[derive(Debug)]
pub struct Producer {
    lane: Lane,
    /// Descriptors written.
    written: u64,
    /// Descriptors that the consumer has read, as far as is known.
    read: u64,
    /// The place of the next frame's data.
    at: u64,
    /// Below this number a descriptor has room.
    written_end: u64,
    /// At this position and before, the data of the longest frame have room.
    at_max: u64,
    /// Behind the data of each descriptor.
    ends: Box<[u64]>,
    /// Whether something was written since the consumer was looked after.
    is_told: bool,
}

impl Producer {
    /// The producer of the lane that begins at byte `base`.
    pub fn new(memory: Arc<Memory>, base: usize, geometry: Geometry) -> Self {
        let ends = vec![0; geometry.descriptors as usize].into();
        Self {
            lane: Lane::new(memory, base, geometry),
            written: 0,
            read: 0,
            at: 0,
            written_end: u64::from(geometry.descriptors),
            at_max: geometry.data_room(),
            ends,
            is_told: true,
        }
    }

    /// Whether there is room for the longest frame.
    ///
    /// # Errors
    /// The consumer has read what was not written, or unread what it had read.
    #[inline]
    pub fn has_room(&mut self) -> Result<bool, Broken> {
        if self.fits() {
            return Ok(true);
        }
        self.look_for_room()
    }

    #[inline(never)]
    fn look_for_room(&mut self) -> Result<bool, Broken> {
        // Acquire: the consumer has copied what it has read, and the room may be written to.
        let read = self.lane.word(READ_AT).load(Ordering::Acquire);
        let more = read.wrapping_sub(self.read);
        if more > self.written - self.read {
            return Err(Broken);
        }
        if more > 0 {
            self.read = read;
            let last = (read - 1) as usize & (self.ends.len() - 1);
            let freed = self.ends[last];
            self.written_end = read + u64::from(self.lane.geometry.descriptors);
            self.at_max = freed + self.lane.geometry.data_room();
        }
        Ok(self.fits())
    }

    #[inline]
    fn fits(&self) -> bool {
        self.written < self.written_end && self.at <= self.at_max
    }

    /// Writes a frame. The consumer can read it from now on.
    ///
    /// # Panics
    /// If there is no room, or the frame is longer than the longest.
    #[inline]
    pub fn put(&mut self, frame: &[u8], segment_bytes: u16) {
        assert!(self.fits(), "the caller has looked for room");
        assert!(
            frame.len() <= self.lane.geometry.frame_bytes_max as usize,
            "it is a frame"
        );
        self.lane.write(self.at, frame);
        self.at += (frame.len() as u64).next_multiple_of(LINE_BYTES);
        let index = self.written as usize & (self.ends.len() - 1);
        self.ends[index] = self.at;
        let word =
            frame.len() as u64 | u64::from(segment_bytes) << LENGTH_BITS | mark(self.written) << MARK_SHIFT;
        // Release: whoever sees the descriptor sees the frame.
        self.lane.descriptor(self.written).store(word, Ordering::Release);
        self.written += 1;
        self.is_told = false;
    }

    /// Whether the consumer has to be rung for, as it sleeps and there is something new. It counts as awake then.
    #[inline]
    pub fn rings(&mut self) -> bool {
        let is_told = self.is_told;
        self.is_told = true;
        !is_told && self.lane.take_mark(SLEEPS_AT)
    }

    /// Whether the consumer has last been seen on a processor.
    #[inline]
    pub fn is_peer_on(&self, processor: u32) -> bool {
        // Relaxed: a hint.
        self.lane.word(PROCESSOR_AT).load(Ordering::Relaxed) == u64::from(processor) + 1
    }

    /// Says that this end waits for room. False if there is room after all.
    ///
    /// # Errors
    /// As [`Producer::has_room`].
    pub fn starve(&mut self) -> Result<bool, Broken> {
        self.lane.set_mark(STARVES_AT);
        let has_room = self.has_room()?;
        if has_room {
            self.feed();
        }
        Ok(!has_room)
    }

    /// Says that this end does not wait for room.
    pub fn feed(&mut self) {
        self.lane.clear_mark(STARVES_AT);
    }
}

/// The end that reads frames.
#[derive(Debug)]
pub struct Consumer {
    lane: Lane,
    /// Descriptors read.
    read: u64,
    /// Descriptors of whose reading the producer knows.
    told: u64,
    /// The processor that was noted last.
    processor: u32,
    /// The place of the next frame's data.
    at: u64,
    /// At this number of descriptors, or at this place, the consumer looks whether the producer waits for room.
    look_read: u64,
    look_at: u64,
}

impl Consumer {
    /// The consumer of the lane that begins at byte `base`.
    pub fn new(memory: Arc<Memory>, base: usize, geometry: Geometry) -> Self {
        Self {
            lane: Lane::new(memory, base, geometry),
            read: 0,
            told: 0,
            processor: u32::MAX,
            at: 0,
            look_read: 0,
            look_at: 0,
        }
    }

    /// Copies the next frame into `frame`, which has room for the longest. Answers its length and the payload of its segments.
    ///
    /// # Errors
    /// The descriptor has a length that no frame has.
    #[inline]
    pub fn take(&mut self, frame: &mut [u8]) -> Result<Option<(usize, u16)>, Broken> {
        // Acquire: the frame was written before its descriptor.
        let word = self.lane.descriptor(self.read).load(Ordering::Acquire);
        if word >> MARK_SHIFT != mark(self.read) {
            return Ok(None);
        }
        let length = (word & ((1 << LENGTH_BITS) - 1)) as usize;
        let segment_bytes = (word >> LENGTH_BITS) as u16;
        let Geometry {
            frame_bytes_min,
            frame_bytes_max,
            ..
        } = self.lane.geometry;
        if length < frame_bytes_min as usize || length > frame_bytes_max as usize {
            return Err(Broken);
        }
        self.lane.read(self.at, &mut frame[..length]);
        self.at += (length as u64).next_multiple_of(LINE_BYTES);
        self.read += 1;
        Ok(Some((length, segment_bytes)))
    }

    /// Notes which processor this end is on.
    #[inline]
    pub fn note_processor(&mut self, processor: u32) {
        if self.processor != processor {
            self.processor = processor;
            // Relaxed: a hint.
            self.lane
                .word(PROCESSOR_AT)
                .store(u64::from(processor) + 1, Ordering::Relaxed);
        }
    }

    /// Gives the room of what was read back. True if the producer waits for it and has to be rung for.
    #[inline]
    pub fn release(&mut self) -> bool {
        if self.told == self.read {
            return false;
        }
        self.told = self.read;
        // Release: what was read is copied.
        self.lane.word(READ_AT).store(self.read, Ordering::Release);
        if self.read < self.look_read && self.at < self.look_at {
            return false;
        }
        let Geometry {
            descriptors,
            data_bytes,
            ..
        } = self.lane.geometry;
        self.look_read = self.read + u64::from(descriptors / 4);
        self.look_at = self.at + u64::from(data_bytes / 4);
        self.lane.take_mark(STARVES_AT)
    }

    /// Says that this end sleeps. False if there is a frame: it stays awake.
    pub fn sleep(&mut self) -> bool {
        self.lane.set_mark(SLEEPS_AT);
        let word = self.lane.descriptor(self.read).load(Ordering::Acquire);
        let is_empty = word >> MARK_SHIFT != mark(self.read);
        if !is_empty {
            self.wake();
        }
        is_empty
    }

    /// Says that this end is awake.
    pub fn wake(&mut self) {
        self.lane.clear_mark(SLEEPS_AT);
    }
}

//! The trait of every back end: a queue of frames in and a queue of frames out.

use base::Instant;
use std::io;
use std::os::fd::BorrowedFd;
use tcp::addr::Mac;

/// The party that makes and verifies the checksums of TCP segments and of IPv4 headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksums {
    /// The stack does. Frames are sent and handed over as they lie.
    Stack,
    /// The back end does, or frames stay in memory. The stack sends zeros and looks at none; a frame whose checksum is wrong
    /// is not handed over.
    Link,
}

/// Limits of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the longest IP packet on the wire.
    pub mtu: u16,
    /// Payload of the longest segment, which the link cuts to the wire's length; 0 if the link cuts none.
    pub segment_bytes_max: u16,
    /// The party that makes checksums.
    pub checksums: Checksums,
    /// The address that the link has for this end, if it has any.
    pub mac: Option<Mac>,
}

/// Bytes of an Ethernet header.
pub const ETHERNET_BYTES: usize = 14;
/// Bytes of the longest frame of any back end: the longest IPv4 packet and its Ethernet header.
pub const FRAME_BYTES_MAX: usize = ETHERNET_BYTES + u16::MAX as usize;

impl Limits {
    /// Bytes of the longest frame.
    pub const fn frame_bytes_max(&self) -> usize {
        match self.segment_bytes_max {
            0 => ETHERNET_BYTES + self.mtu as usize,
            _ => FRAME_BYTES_MAX,
        }
    }
}

/// A frame that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// From the Ethernet header on, without the frame check sequence.
    pub bytes: &'a [u8],
    /// Payload of each segment into which a wire has to cut the frame; 0 if the frame fits.
    pub segment_bytes: u16,
}

/// A frame that was written, to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Bytes of the frame.
    pub bytes: usize,
    /// Payload of each segment into which the link has to cut the frame; 0 if the frame goes as it is.
    pub segment_bytes: u16,
}

/// Why a link does nothing more. It stays so.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The other end is gone.
    #[error("the other end of the link is gone")]
    Closed,
    /// The other end breaks the rules of the link.
    #[error("the other end of the link breaks its rules")]
    Broken,
    /// The operating system does not let frames through.
    #[error("the link fails: {0}")]
    Io(#[from] io::Error),
}

/// Conditions that end the sleep of an owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sleep {
    /// The descriptor has to be writable, too, for frames that wait for room.
    pub writable: bool,
    /// The owner gets up no later than that; none: it may sleep for ever.
    pub until: Option<Instant>,
}

/// One queue of a link: frames in and frames out. One thread owns it.
///
/// Nothing here blocks. An owner without work calls [`Frames::arm`], sleeps on [`Frames::fd`] if it was allowed, and calls
/// [`Frames::disarm`] after its sleep.
pub trait Frames: Send {
    /// The link's limits, which never change.
    fn limits(&self) -> Limits;

    /// Hands up to `count_max` frames to `take`, each of which is valid for the call alone. Answers how many were handed over.
    ///
    /// # Errors
    /// The link does nothing more.
    fn receive(&mut self, count_max: usize, take: &mut dyn FnMut(Frame<'_>)) -> Result<usize, LinkError>;

    /// While there is room, has `fill` write a frame into memory for the longest, until `fill` has no more. Answers how many
    /// were written. They may wait for [`Frames::flush`].
    ///
    /// # Errors
    /// The link does nothing more.
    fn send(&mut self, fill: &mut dyn FnMut(&mut [u8]) -> Option<Written>) -> Result<usize, LinkError>;

    /// Sends what was written, as far as there is room, and wakes a peer that sleeps.
    ///
    /// # Errors
    /// The link does nothing more.
    fn flush(&mut self) -> Result<(), LinkError>;

    /// Says that the owner wants to sleep. None if there is something to do first.
    fn arm(&mut self) -> Option<Sleep>;

    /// Says that the owner is awake.
    fn disarm(&mut self);

    /// Can be read when a sleeping owner has something to do.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Whether looking for frames is of no use just now, as the other end needs this very processor to send any: the owner should sleep.
    fn is_in_the_way(&self) -> bool {
        false
    }

    /// An address whose owner has ended, as the link knows for certain: no frame comes from there any more. Each is told once, after
    /// its last frame.
    fn gone(&mut self) -> Option<Mac> {
        None
    }
}

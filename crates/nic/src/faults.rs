//! A link that loses, repeats, delays and reorders frames, around any other: for tests, by a seed. The kernel's own means
//! (`tc … netem`) are a module that many kernels lack.

use crate::frames::{FRAME_BYTES_MAX, Frame, Frames, Limits, LinkError, Sleep, Written};
use base::{Duration, Instant, Rng};
use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use tcp::addr::Mac;

/// Frames that are kept in each direction. A frame beyond them is lost.
const KEPT_MAX: usize = 1 << 14;

/// Faults of frames, in both directions alike.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Network {
    /// Share that is lost.
    pub loss: f64,
    /// Share that arrives twice.
    pub duplicate: f64,
    /// How late each is.
    pub delay: Duration,
    /// By how much more a frame may be late: frames overtake each other.
    pub jitter: Duration,
    /// Whether long segments are passed on whole; otherwise an owner has to cut its own.
    pub cuts: bool,
}

/// Frames under way, by the time at which they arrive.
#[derive(Debug, Default)]
struct Way {
    frames: BTreeMap<(Instant, u64), (Vec<u8>, u16)>,
    count: u64,
}

impl Way {
    fn add(&mut self, rng: &mut Rng, network: &Network, frame: Frame<'_>) {
        let copies = 1 + u64::from(rng.chance(network.duplicate));
        for _ in 0..copies {
            if rng.chance(network.loss) || self.frames.len() == KEPT_MAX {
                continue;
            }
            let jitter = Duration::from_nanos(rng.between(0, network.jitter.as_nanos() as u64));
            let at = os::now() + network.delay + jitter;
            self.count += 1;
            self.frames
                .insert((at, self.count), (frame.bytes.to_vec(), frame.segment_bytes));
        }
    }

    fn due(&mut self, now: Instant) -> Option<(Vec<u8>, u16)> {
        let first = self.frames.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }
}

/// A link with faults.
pub struct Faults {
    inner: Box<dyn Frames>,
    network: Network,
    rng: Rng,
    incoming: Way,
    outgoing: Way,
    buffer: Box<[u8]>,
}

impl Faults {
    /// Faults of a link, from a seed.
    pub fn new(inner: Box<dyn Frames>, network: Network, seed: u64) -> Self {
        Self {
            inner,
            network,
            rng: Rng::new(seed),
            incoming: Way::default(),
            outgoing: Way::default(),
            buffer: vec![0; FRAME_BYTES_MAX].into(),
        }
    }
}

impl Frames for Faults {
    fn limits(&self) -> Limits {
        let limits = self.inner.limits();
        Limits {
            segment_bytes_max: if self.network.cuts {
                limits.segment_bytes_max
            } else {
                0
            },
            ..limits
        }
    }

    fn receive(&mut self, count_max: usize, take: &mut dyn FnMut(Frame<'_>)) -> Result<usize, LinkError> {
        let Self {
            inner,
            incoming,
            rng,
            network,
            ..
        } = self;
        inner.receive(count_max, &mut |frame| incoming.add(rng, network, frame))?;
        let now = os::now();
        let mut count = 0;
        while count < count_max
            && let Some((bytes, segment_bytes)) = self.incoming.due(now)
        {
            count += 1;
            take(Frame {
                bytes: &bytes,
                segment_bytes,
            });
        }
        Ok(count)
    }

    fn send(&mut self, fill: &mut dyn FnMut(&mut [u8]) -> Option<Written>) -> Result<usize, LinkError> {
        let mut count = 0;
        while let Some(written) = fill(&mut self.buffer) {
            count += 1;
            let frame = Frame {
                bytes: &self.buffer[..written.bytes],
                segment_bytes: written.segment_bytes,
            };
            self.outgoing.add(&mut self.rng, &self.network, frame);
        }
        Ok(count)
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        let now = os::now();
        let outgoing = &mut self.outgoing;
        self.inner.send(&mut |frame| {
            let (bytes, segment_bytes) = outgoing.due(now)?;
            frame[..bytes.len()].copy_from_slice(&bytes);
            Some(Written {
                bytes: bytes.len(),
                segment_bytes,
            })
        })?;
        self.inner.flush()
    }

    /// Nobody sleeps while frames are under way.
    fn arm(&mut self) -> Option<Sleep> {
        if self.incoming.frames.is_empty() && self.outgoing.frames.is_empty() {
            return self.inner.arm();
        }
        None
    }

    fn disarm(&mut self) {
        self.inner.disarm();
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.inner.fd()
    }

    fn gone(&mut self) -> Option<Mac> {
        self.inner.gone()
    }
}

//! Congestion control once per round trip, in the slow path (TAS §3.2): a flow gets a window, a rate, or both.

mod cubic;
mod dctcp;
mod timely;

pub use cubic::Cubic;
pub use dctcp::Dctcp;
pub use sample::{Congestion, Loss, Pace, Sample};
pub use timely::Timely;

mod sample;

use base::Instant;

/// Which control a flow has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// DCTCP by rate, for data centres with marks.
    Dctcp,
    /// TIMELY, for data centres without marks.
    Timely,
    /// CUBIC, for wide networks.
    #[default]
    Cubic,
}

/// The control of one flow.
#[derive(Clone, Debug)]
pub enum Control {
    /// DCTCP by rate.
    Dctcp(Dctcp),
    /// TIMELY.
    Timely(Timely),
    /// CUBIC.
    Cubic(Cubic),
}

impl Control {
    /// The control of a new flow.
    pub fn new(kind: Kind) -> Self {
        match kind {
            Kind::Dctcp => Self::Dctcp(Dctcp::default()),
            Kind::Timely => Self::Timely(Timely::default()),
            Kind::Cubic => Self::Cubic(Cubic::default()),
        }
    }

    fn inner(&mut self) -> &mut dyn Congestion {
        match self {
            Self::Dctcp(control) => control,
            Self::Timely(control) => control,
            Self::Cubic(control) => control,
        }
    }
}

impl Congestion for Control {
    fn start(&mut self, sample: &Sample) -> Pace {
        self.inner().start(sample)
    }

    fn control(&mut self, sample: &Sample) -> Pace {
        self.inner().control(sample)
    }

    fn lost(&mut self, now: Instant, loss: Loss, sample: &Sample) -> Pace {
        self.inner().lost(now, loss, sample)
    }
}

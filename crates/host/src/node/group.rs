//! A channel group: the vSSDs that share channels, the blocks they lend, and the agent that decides for all of them.

use base::Instant;
use flash::{ChannelGroup, Isolation, VssdConfig};
use rack::bucket::Rate;
use rack::gc_group::GroupAgent;

/// Software-isolated vSSDs on the same channels.
pub(super) struct Group {
    pub channels: u64,
    pub shared: ChannelGroup,
    pub agent: GroupAgent,
    /// Indexes of units.
    pub members: Vec<usize>,
    /// A member's medium has failed.
    pub failed: bool,
}

impl Group {
    /// When to look at it.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.agent.deadline()
    }
}

/// A member's share of its channels' bandwidth: as its share of the units; without emulated time there is none to
/// speak of.
pub(super) fn rate_of(config: &VssdConfig) -> Option<Rate> {
    let Isolation::Software { count, .. } = config.isolation else {
        return None;
    };
    let channels = f64::from(config.channels.count_ones());
    let share = f64::from(count) / f64::from(config.geometry.units_per_channel());
    (config.timing.transfer_ns > 0).then(|| Rate {
        per_second: channels * share * 1e9 / config.timing.transfer_ns as f64,
        burst: (channels * BURST_PAGES).max(1.0),
    })
}

/// Pages a channel that a member may be ahead of its share: what a few turns of all planes of a channel transfer.
const BURST_PAGES: f64 = 16.0;

//! Policies and their constants: the published systems and ours are configurations of the same code.

use base::Duration;
use core::fmt;
use core::str::FromStr;
use thiserror::Error;

/// A system by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Policy {
    /// Static blk-mq mapping: one queue per core, L and T in order of arrival.
    Linux,
    /// SPDK's reactor: connections in turn, all queued requests of one before the next.
    Spdk,
    /// SPDK with L connections first, as the blk-switch paper's slides compare it.
    SpdkPriority,
    /// blk-switch as published.
    BlkSwitch,
    /// Ours.
    #[default]
    Switchyard,
}

/// The name is not one of [`Policy::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("unknown policy: choose linux, spdk, spdk-priority, blk-switch or switchyard")]
pub struct UnknownPolicy;

impl Policy {
    /// Every policy, baselines first.
    pub const ALL: [Self; 5] = [
        Self::Linux,
        Self::Spdk,
        Self::SpdkPriority,
        Self::BlkSwitch,
        Self::Switchyard,
    ];

    /// The name that users write.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Linux => "linux",
            Self::Spdk => "spdk",
            Self::SpdkPriority => "spdk-priority",
            Self::BlkSwitch => "blk-switch",
            Self::Switchyard => "switchyard",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Policy {
    type Err = UnknownPolicy;
    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        let found = Self::ALL.into_iter().find(|policy| policy.name() == text);
        found.ok_or(UnknownPolicy)
    }
}

/// The order in which an egress queue is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Arrival, whatever the class.
    Fifo,
    /// Applications in turn, all that one has queued at a time.
    RunToCompletion,
    /// The same among L applications, then among T applications; a T batch that has begun is finished.
    RunToCompletionPriority,
    /// L before T at every request; T in batches behind a doorbell.
    Strict,
    /// L before T at every slice, a share for T, weights within a class.
    Sliced,
}

/// How an application's core is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Balancing {
    /// By nobody: an application stays.
    Off,
    /// The algorithm of the published code, with its accounting.
    Published,
    /// Ours.
    Switchyard,
}

/// Everything that distinguishes one policy from another. Constants of a feature that is off are not looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Order within a core.
    pub order: Order,
    /// T requests move between cores, as published. Ours moves applications only.
    pub request_steering: bool,
    /// Steering of applications between cores.
    pub application_steering: Balancing,
    /// FLUSH, FUA and metadata requests go before T whatever their application's class, within a budget (Daredevil,
    /// EuroSys'25, promotes them; the published blk-switch leaves them in T).
    pub promotion: bool,

    /// T requests that ring the doorbell (i10's caravan, blk-switch `BLK_SWITCH_TCP_BATCH`).
    pub doorbell_requests: u32,
    /// Bytes on the wire that ring it (i10: a caravan is 64 KiB).
    pub doorbell_bytes: u32,
    /// Age of the oldest waiting T request that rings it (i10: 50 µs). Below [`DOORBELL_MIN`] batching is off.
    pub doorbell_delay: Duration,

    /// Bytes of T work between two looks at the L queue: 88 µs at the 4 GB/s of a core. Bounds the wait of an L request
    /// for T. Ours: beside bulk readers on real sockets, shorter slices cost T more than they gain L (docs/performance.md).
    pub slice_bytes: u32,
    /// Bytes of T work of one application before the next one's turn. Ours: far more than a slice, since every change
    /// wakes a client that has gone to sleep meanwhile, which costs as much as tens of kilobytes; 256 µs of a core.
    pub turn_bytes: u32,
    /// T waits no longer than this for a slice while L always has work. Ours: a slice of 88 µs is then 15 % of a core.
    pub starvation_delay: Duration,
    /// T gets a slice after this many bytes of L served while T waited. Ours: at least one byte in 17.
    pub starvation_bytes: u32,

    /// B of the published request steering: outstanding T requests above 2·B look for another core. `blk_switch_thresh_B`,
    /// 8 by default, 16 in most of the artifact's figures.
    pub threshold_requests: u32,
    /// Published: cores with as many outstanding T requests are no candidates (`BLK_SWITCH_TCP_BATCH`).
    pub candidate_requests: u32,

    /// Interval of application steering (`BLK_SWITCH_APPSTR_INTERVAL`: 10 ms).
    pub balance_interval: Duration,
    /// Published: cores above this many L bytes are no targets (`BLK_SWITCH_THRESH_L`: 96 KiB).
    pub latency_core_bytes_max: u64,
    /// Published: loads are forgotten after this long without traffic (`BLK_SWITCH_RESET_METRICS`: 1 s). Ours: the
    /// classes share all cores again after one of them has had no load for this long.
    pub idle_reset: Duration,
    /// Ours: share of a core, in percent, that L applications fill before they get another core. Closed loops with one
    /// request each do not build queues as open arrivals would, so it is high; what is above it is queueing.
    pub latency_core_percent: u32,
    /// Ours: share of the cores, in percent, that L applications get at most, one at least: T keeps the rest however
    /// many L applications there are. As much as it takes for L applications in closed loops, one for each core; with
    /// more, each core given to L is one that T loses whole.
    pub latency_cores_percent_max: u32,
    /// Ours: an application that moved stays at least this long.
    pub move_cooldown: Duration,
    /// Ours: applications moved in one interval, so that each decision sees what the one before it did.
    pub moves_max: u32,
}

/// i10 turns batching off when the doorbell's delay is below this.
pub const DOORBELL_MIN: Duration = Duration::from_micros(25);

impl Config {
    /// The configuration of a policy.
    pub const fn of(policy: Policy) -> Self {
        let mut config = Self::BASE;
        match policy {
            Policy::Linux => {}
            Policy::Spdk => config.order = Order::RunToCompletion,
            Policy::SpdkPriority => config.order = Order::RunToCompletionPriority,
            Policy::BlkSwitch => {
                config.order = Order::Strict;
                config.request_steering = true;
                config.application_steering = Balancing::Published;
            }
            Policy::Switchyard => {
                config.order = Order::Sliced;
                config.application_steering = Balancing::Switchyard;
                config.promotion = true;
            }
        }
        config
    }

    /// The steps of blk-switch's breakdown (OSDI'21 Figure 13), with the name of each.
    pub const fn breakdown() -> [(&'static str, Self); 4] {
        let mut prioritised = Self::BASE;
        prioritised.order = Order::Strict;
        let mut steered = prioritised;
        steered.request_steering = true;
        let mut moved = steered;
        moved.application_steering = Balancing::Published;
        [
            ("linux", Self::BASE),
            ("+P", prioritised),
            ("+P+RS", steered),
            ("+P+RS+AS", moved),
        ]
    }

    /// Linux: nothing but queues, with every constant in place.
    const BASE: Self = Self {
        order: Order::Fifo,
        request_steering: false,
        application_steering: Balancing::Off,
        promotion: false,
        doorbell_requests: 16,
        doorbell_bytes: 64 << 10,
        doorbell_delay: Duration::from_micros(50),
        slice_bytes: 352 << 10,
        turn_bytes: 1 << 20,
        starvation_delay: Duration::from_micros(500),
        starvation_bytes: 1 << 20,
        threshold_requests: 8,
        candidate_requests: 16,
        balance_interval: Duration::from_millis(10),
        latency_core_bytes_max: 96 << 10,
        idle_reset: Duration::from_secs(1),
        latency_core_percent: 95,
        latency_cores_percent_max: 20,
        move_cooldown: Duration::from_millis(100),
        moves_max: 4,
    };
}

impl Default for Config {
    fn default() -> Self {
        Self::of(Policy::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_read_back_and_others_are_refused() {
        for policy in Policy::ALL {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        assert_eq!("cfq".parse::<Policy>(), Err(UnknownPolicy));
    }

    #[test]
    fn the_last_step_of_the_breakdown_is_blk_switch() {
        assert_eq!(Config::breakdown()[3].1, Config::of(Policy::BlkSwitch));
        assert_eq!(Config::breakdown()[0].1, Config::of(Policy::Linux));
    }
}

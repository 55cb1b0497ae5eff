//! What a stack is told at start. Every limit is here, and its memory is reserved.

use crate::addr::{Ip, Mac};
use crate::congestion::Kind;
use base::Duration;

/// How a link takes segments that are longer than its MTU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Segmentation {
    /// It does not.
    #[default]
    None,
    /// It cuts them (TSO, GSO), or is memory that need not.
    Link {
        /// Payload of the longest segment.
        payload_bytes_max: u16,
    },
}

/// What to do with marks of congestion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EcnMode {
    /// Nothing.
    #[default]
    Off,
    /// RFC 3168: a mark slows down once per round trip.
    Classic,
    /// RFC 8257: each mark counts. Both ends have to be set so.
    Accurate,
}

/// When to ask whether a silent peer is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// Silence before the first question.
    pub idle: Duration,
    /// Time between questions.
    pub interval: Duration,
    /// Questions before the peer is given up.
    pub probes: u8,
}

/// Who may connect to whom: the first rule that fits decides. Without any that fits, everybody may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The application; none means all.
    pub app: Option<u16>,
    /// The peer's network.
    pub net: Ip,
    /// Bits of the network that count; [`Ip::ANY`] with 0 bits is both families' whole.
    pub bits: u8,
    /// Ports, from the first to the last: of the peer for a connection of ours, of this host for one of the peer's.
    pub ports: (u16, u16),
    /// Whether the connection may be.
    pub is_allowed: bool,
}

/// Limits of an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppLimits {
    /// Connections at a time, with those whose handshake is under way.
    pub flows_max: u32,
    /// Connections a second that are set up, both ways; as many may come at once. 0 means no limit.
    pub opens_per_second: u32,
}

/// The configuration of a stack.
#[derive(Clone, Debug)]
pub struct Config {
    /// The address of the link.
    pub mac: Mac,
    /// This host's addresses, each with the bits of its network.
    pub addresses: Vec<(Ip, u8)>,
    /// The next hop to other networks, one for each family.
    pub gateways: Vec<Ip>,
    /// The longest packet of the link, IP header included.
    pub mtu: u16,
    /// Longer segments.
    pub segmentation: Segmentation,
    /// Whether checksums are verified and made; false for memory.
    pub checksums: bool,
    /// Connections at a time.
    pub flows_max: u32,
    /// Pairs of addresses at a time, and neighbours.
    pub paths_max: u32,
    /// Listeners at a time.
    pub listeners_max: u32,
    /// Applications, with numbers below this one.
    pub apps_max: u16,
    /// What each application may until it is told otherwise.
    pub app_limits: AppLimits,
    /// Access control.
    pub rules: Vec<Rule>,
    /// Marks of congestion.
    pub ecn: EcnMode,
    /// Congestion control of new flows.
    pub congestion: Kind,
    /// The least time between two looks of it at a flow: it bounds what short round trips cost.
    pub control_interval_min: Duration,
    /// Whether timestamps are offered.
    pub timestamps: bool,
    /// How long an acknowledgement waits for payload to go with (RFC 9293 §3.8.6.3: below 500 ms).
    pub ack_delay: Duration,
    /// The retransmission timeout before a round trip was timed (RFC 6298 §2.1).
    pub rto_initial: Duration,
    /// The least retransmission timeout: more than a peer's delayed acknowledgement, 40 ms with Linux.
    pub rto_min: Duration,
    /// The largest retransmission timeout (RFC 6298 §2.5: at least 60 s).
    pub rto_max: Duration,
    /// How often a SYN, or its answer, is sent again.
    pub syn_retries: u8,
    /// How long data may stay unacknowledged (RFC 9293 §3.8.3, R2: at least 100 s).
    pub user_timeout: Duration,
    /// How long a closed connection keeps its addresses (RFC 9293 §3.6.1: twice the longest life of a segment).
    pub time_wait: Duration,
    /// How long an application that has closed waits for the peer's FIN.
    pub fin_wait: Duration,
    /// The least time between two answers to strange segments of a flow (RFC 5961 §7).
    pub challenge_gap: Duration,
    /// Ports of connections that are opened without one, from the first to the last (RFC 6335 §6).
    pub ephemeral: (u16, u16),
    /// What everything random begins with. Numbers that attackers must not guess depend on it.
    pub seed: u64,
}

impl Config {
    /// A host with one address on an Ethernet of 1500 bytes.
    pub fn new(mac: Mac, ip: Ip, bits: u8) -> Self {
        Self {
            mac,
            addresses: vec![(ip, bits)],
            gateways: Vec::new(),
            mtu: 1500,
            segmentation: Segmentation::None,
            checksums: true,
            flows_max: 1024,
            paths_max: 256,
            listeners_max: 64,
            apps_max: 16,
            app_limits: AppLimits {
                flows_max: 1024,
                opens_per_second: 0,
            },
            rules: Vec::new(),
            ecn: EcnMode::Off,
            congestion: Kind::Cubic,
            control_interval_min: Duration::from_micros(100),
            timestamps: true,
            ack_delay: Duration::from_micros(500),
            rto_initial: Duration::from_secs(1),
            rto_min: Duration::from_millis(50),
            rto_max: Duration::from_secs(60),
            syn_retries: 6,
            user_timeout: Duration::from_secs(120),
            time_wait: Duration::from_secs(60),
            fin_wait: Duration::from_secs(60),
            challenge_gap: Duration::from_millis(100),
            ephemeral: (49152, 65535),
            seed: 0,
        }
    }

    /// Whether `ip` is one of this host's addresses.
    pub fn is_own(&self, ip: Ip) -> bool {
        self.addresses.iter().any(|(own, _)| *own == ip)
    }

    /// Where packets to `remote` go first, if there is a way.
    pub fn next_hop(&self, remote: Ip) -> Option<Ip> {
        let is_near = |(own, bits): &(Ip, u8)| own.is_v4() == remote.is_v4() && remote.is_within(*own, *bits);
        if self.addresses.iter().any(is_near) {
            return Some(remote);
        }
        let of_family = |gateway: &&Ip| gateway.is_v4() == remote.is_v4();
        self.gateways.iter().find(of_family).copied()
    }

    /// The address from which `remote` is spoken to: one of its network, or else of its family.
    pub fn source_for(&self, remote: Ip) -> Option<Ip> {
        let of_family = || {
            self.addresses
                .iter()
                .filter(|(own, _)| own.is_v4() == remote.is_v4())
        };
        let near = of_family().find(|(own, bits)| remote.is_within(*own, *bits));
        near.or_else(|| of_family().next()).map(|(own, _)| *own)
    }
}

//! Messages of the control API, in both directions. Times are in the unit of the field's name.

use crate::size::Size;
use rack::control::NodeStatus;
use rack::level::Levels;
use serde::{Deserialize, Serialize};
use std::fmt;
use uuid::Uuid;

/// Everything there is to see of a running part.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// Version of the program.
    pub version: String,
    /// `up`, `node`, `tor` or `gateway`.
    pub role: String,
    /// Process that runs it.
    pub pid: u32,
    /// Seconds since its start.
    pub uptime_s: f64,
    /// Directory of its files, empty for none.
    pub dir: String,
    /// Name of the device timing profile.
    pub timing: String,
    /// Where NBD clients connect, if they do.
    pub nbd: Option<String>,
    /// The gateway's counters.
    pub gateway: Option<GatewayCounters>,
    /// The ToR's counters.
    pub tor: Option<TorCounters>,
    /// Why nothing in the rack can be asked, and what to do: no ToR answers, or no node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// The ToRs as this part sees them, if it knows two, or the only one does not answer or not serve.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tors: Vec<Tor>,
    /// Set while the registry does not answer: what volumes and nodes there are is as of before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registry: Option<RegistryAway>,
    /// The volumes.
    pub volumes: Vec<Volume>,
    /// The nodes.
    pub nodes: Vec<Node>,
    /// Copies move until free room is even over the nodes.
    #[serde(default)]
    pub rebalancing: bool,
    /// The rack's level, and the programs of its parts; with a gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rack: Option<Rack>,
    /// The threads.
    pub cores: Vec<Core>,
    /// Time of a target's requests by layer, for each core and kind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spans: Vec<Spans>,
}

/// Requests to a target, of one kind and size.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Spans {
    /// `read`, `write` or `sync`.
    pub action: String,
    /// Bytes each, rounded up to a power of two; 0 for syncs.
    pub bytes_max: u64,
    /// Their time in each layer, in the order in which they pass them.
    pub layers: Vec<SpanTimes>,
    /// All of it.
    pub total: SpanTimes,
}

/// A distribution of times since the start.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SpanTimes {
    /// Of what.
    pub name: String,
    /// Sum, ns.
    pub sum_ns: u64,
    /// Times, ns, and how many there were of each, the shortest first.
    pub counts: Vec<(u64, u64)>,
}

/// Counters of a gateway since its start.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct GatewayCounters {
    pub requests: u64,
    pub errors: u64,
    pub in_flight: u64,
    pub retransmissions: u64,
    pub redirected: u64,
    pub merged: u64,
    pub corrupt_packets: u64,
}

/// Counters of a ToR since its start.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct TorCounters {
    pub forwarded: u64,
    pub redirected: u64,
    pub unroutable: u64,
    pub gc_accepted: u64,
    pub gc_delayed: u64,
}

/// Begins the `Warning` header of a response that tells of before, as the registry does not answer.
pub const STALE: &str = "110 switchyard";

/// A registry that does not answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RegistryAway {
    /// For so long.
    pub seconds: f64,
    /// Why, and what to do.
    pub why: String,
}

impl fmt::Display for RegistryAway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "for {:.0} s nothing in the rack can be changed, and volumes and nodes are told as of before: {}",
            self.seconds, self.why
        )
    }
}

/// One of two ToRs, as a part of the rack sees it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Tor {
    /// Its address.
    pub addr: String,
    /// It answers.
    pub answers: bool,
    /// Requests go by it.
    pub used: bool,
    /// Why it does not serve at the rack's level, if it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// The rack's level, and the programs of its parts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rack {
    /// Its level.
    pub level: u8,
    /// The newest level that this program knows.
    pub newest: u8,
    /// Parts for which the next level waits, as far as this gateway knows.
    pub waits_for: Vec<String>,
    /// The parts that have told of their programs.
    pub parts: Vec<Program>,
}

/// The program of a part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// The part.
    pub part: String,
    /// Its version; empty if it is older than levels are.
    pub version: String,
    /// The levels that it knows.
    pub levels: Levels,
}

/// A distribution of times, in µs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Latency {
    pub name: String,
    pub count: u64,
    pub mean_us: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub max_us: f64,
}

/// The state of a volume that another gateway serves.
pub const ELSEWHERE: &str = "elsewhere";

/// A volume.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Volume {
    /// Its name.
    pub name: String,
    /// Its number.
    pub id: u32,
    /// Its size.
    pub size_bytes: u64,
    /// Its UUID, by which NVMe hosts know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<Uuid>,
    /// Where clients find it.
    pub uri: String,
    /// Name among NVMe subsystems, if the gateway serves NVMe/TCP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nqn: Option<String>,
    /// `ready`, `degraded` (served, with fewer copies than there should be), `opening`, `deleting`, `failed`, `elsewhere` (the gateway
    /// that `lead` names serves it, and tells how it is) or `closed` (this gateway stops).
    pub state: String,
    /// The gateway that serves it, where several share the rack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lead: Option<Lead>,
    /// Why it is not ready, and what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// `memory` or `media`.
    pub durability: String,
    /// Writes are refused.
    pub read_only: bool,
    /// Copies of each page.
    pub replicas: usize,
    /// Its replica sets.
    pub sets: Vec<SetPlace>,
    /// Of reads, writes and flushes, as the gateway sees them.
    pub latency: Vec<Latency>,
}

/// The gateway that serves a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lead {
    /// IPv4 address and UDP port.
    pub gateway: String,
    /// Its control API.
    pub control: String,
    /// Where NBD clients connect to it, if it has announced that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nbd: Option<String>,
    /// The session in which it serves the volume.
    pub session: u32,
}

/// One replica set of a volume.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SetPlace {
    /// Pages of 4096 bytes.
    pub pages: u32,
    /// Channels of each vSSD.
    pub channels: u32,
    /// Of each channel, the units of a software-isolated vSSD; 0 for all.
    #[serde(default)]
    pub rows: u32,
    /// Copies that lack, or do not serve.
    #[serde(default)]
    pub lacks: usize,
    /// Copies that are on their way to what the others have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub copying: Vec<Copy>,
    /// The vSSD and node of each replica, the primary first.
    pub replicas: Vec<Place>,
}

/// A copy that is on its way to what the others of its set have.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Copy {
    /// Its vSSD.
    pub vssd: u32,
    /// Its node.
    pub node: u8,
    /// Its pages.
    pub pages: u32,
    /// Pages of these that it has as the others have them.
    pub pages_done: u32,
    /// Seconds that it needs still, if it goes on as until now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<u64>,
}

/// A vSSD and its node.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Place {
    pub vssd: u32,
    pub node: u8,
}

/// A node.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Node {
    /// Its number.
    pub id: u8,
    /// Its address.
    pub addr: String,
    /// It answered the last time it was asked.
    pub answers: bool,
    /// It answers, but takes much longer than the others.
    #[serde(default)]
    pub slow: bool,
    /// It does not serve, as it does not know the rack's level: why, and what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Its answer.
    pub status: NodeStatus,
    /// Where its reads spent their time, if it runs in this process.
    pub stages: Vec<Latency>,
    /// Its vSSDs, if it runs in this process.
    pub vssds: Vec<Vssd>,
    /// Copies that it has, or had and that are not made elsewhere yet.
    #[serde(default)]
    pub copies: usize,
    /// How far it is with being drained, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<Drain>,
}

/// A node that is to have no copies any more.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Drain {
    /// It has none.
    pub done: bool,
    /// Copies that are being made elsewhere now.
    pub moving: Vec<Move>,
    /// The node that takes its place, if one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<u8>,
    /// The rack forgets it when it has none.
    #[serde(default)]
    pub removes: bool,
    /// Why nothing moves, and what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// A copy on its way from one node to another.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Move {
    /// Name of its volume.
    pub volume: String,
    /// Its place until now.
    pub from: Place,
    /// Its place to come.
    pub to: Place,
}

/// A vSSD of a node in this process.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Vssd {
    pub id: u32,
    pub serving: bool,
    pub collecting: bool,
    pub latched: bool,
    pub reads: u64,
    pub writes: u64,
    pub cache_hits: u64,
    pub duplicates: u64,
    pub dropped: u64,
    pub damaged: u64,
    pub dirty_pages: u64,
    pub free_ratio: f64,
    pub write_amplification: f64,
    pub user_programs: u64,
    pub gc_programs: u64,
    pub record_programs: u64,
    pub erases: u64,
    pub erase_count_min: u32,
    pub erase_count_max: u32,
    pub flushes: u64,
    pub checkpoints: u64,
    pub live_pages: u64,
    pub damaged_pages: u64,
}

/// Counters of a thread.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Core {
    pub packets_in: u64,
    pub packets_out: u64,
    pub packets_malformed: u64,
    pub packets_dropped: u64,
    pub syscalls: u64,
    pub polls: u64,
    pub sleeps: u64,
    pub ticks: u64,
    pub media_reads: u64,
    pub media_writes: u64,
    pub media_flushes: u64,
    pub media_errors: u64,
    pub nbd_connections: u64,
    pub nbd_refused: u64,
    pub nbd_requests: u64,
    pub nbd_bytes_in: u64,
    pub nbd_bytes_out: u64,
}

/// Asks for a volume.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Create {
    /// Its name.
    pub name: String,
    /// Its size: bytes, or text such as `1GiB`.
    pub size: Size,
    /// Copies; the rack's default if unset.
    #[serde(default)]
    pub replicas: Option<u8>,
    /// `memory` or `media`; the rack's default if unset.
    #[serde(default)]
    pub durability: Option<String>,
    /// `hardware` or `software`; the rack's default if unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<String>,
    /// Refuse writes.
    #[serde(default)]
    pub read_only: bool,
}

/// Asks for a change of a volume.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Patch {
    /// The new size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
    /// Copies from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u8>,
}

/// Asks for nodes to belong to the rack.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddNodes {
    /// The nodes.
    pub nodes: Vec<NodePlace>,
    /// Copies move there until free room is even.
    #[serde(default)]
    pub rebalance: bool,
}

/// A node's number and address.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodePlace {
    /// Its number.
    pub id: u8,
    /// IPv4 address and UDP port; may be missing for a node that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addr: Option<String>,
}

/// Asks for an exchange of the nodes of two vSSDs.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exchange {
    /// Number of the one vSSD.
    pub a: u32,
    /// Number of the other one, of another replica set and of the same size.
    pub b: u32,
}

/// An exchange that is over.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Exchanged {
    /// How long it took.
    pub seconds: f64,
}

/// Why a request was not carried out.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Problem {
    /// One sentence with its remedy.
    pub error: String,
}

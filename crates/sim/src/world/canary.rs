//! Deliberate breaks of the protocol on the wire, and what they remember.

use base::{Addr, Map, VssdId};
use wire::rack::Packet;

/// A deliberate break of the protocol, which the checkers must catch. A checker that stays silent is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Canary {
    /// None: the protocol is left alone.
    #[default]
    None,
    /// Some invalidations (Hermes' INV) never reach their replica; the world forges the answer.
    AckWithoutApply,
    /// Media acknowledge flushes without making anything durable.
    LoseFlush,
    /// Some reads are answered with the data of an earlier answer for the same page.
    StaleRead,
    /// Answers keep the first continuity that their vSSD told: no gateway learns that memory was lost.
    HideLoss,
    /// Nobody hears that a collection or a lease ends, or that a medium failed.
    HideEvents,
    /// No member hears that another one was expelled: nobody waits until that one reads no more.
    HideExpelled,
    /// No member hears that what it has counts for nothing, when it joins again.
    HideYield,
    /// Members take messages of an earlier epoch, or of an earlier start of a peer, for those of the present one.
    AnyEpoch,
    /// Some writes are executed once more, later.
    WriteTwice,
    /// A member that starts hears of no difference between what it has and what its peers have.
    HideDifferences,
    /// Writes that a member sends again, as their writer may be gone, reach nobody; the world forges the answers.
    HideReplays,
    /// ToRs take every registration for a promise to ask them alone, for ever.
    PromiseAll,
}

/// What canaries remember.
#[derive(Default)]
pub struct Sabotage {
    /// [`Canary::StaleRead`]: an earlier answer for (vSSD, first block).
    pub stale: Map<(u32, u64), Packet>,
    /// [`Canary::HideLoss`]: the first continuity of each vSSD.
    pub continuities: Map<u32, u32>,
    /// [`Canary::AnyEpoch`]: the epoch and the session of the last message that each vSSD has sent to a peer.
    pub epochs: Map<u32, (u32, u32)>,
    /// [`Canary::AckWithoutApply`]: the vSSDs of each replica set and their nodes.
    pub sets: Vec<Vec<(VssdId, Addr)>>,
}

//! Situations that a run came into: a swarm that never meets them proves nothing about them.
//!
//! They are told from outside the code under test: from faults, from the registry's records, and from events.

use base::event::{Kind, Lead, Look, Wait};

/// A situation in which promises are hard to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Situation {
    /// Two members of a set are down at once.
    TwoDown,
    /// Every member of a set has lost its memory.
    MemoryLost,
    /// A set goes on without the member that held what was not flushed.
    MemoryGivenUp,
    /// A member joins while another one of its set collects garbage.
    JoinWhileCollecting,
    /// A host goes down while two vSSDs exchange their places.
    ExchangeAndCrash,
    /// A member that was down compares more pages than fit one message.
    ManyRanges,
    /// No page was left in the pool.
    PoolEmpty,
    /// A request waited for long for room in the window of its vSSD.
    WindowFull,
    /// A gateway gave requests up that nobody answered.
    RequestGivenUp,
    /// A member was expelled.
    Expelled,
    /// A member was expelled while another one of its set did not serve.
    ExpelWhileJoining,
    /// A gateway took the lead while a set lacked copies.
    LeadWhileRebuilding,
    /// Several gateways served volumes.
    SeveralLead,
    /// A gateway gave a volume to another one.
    VolumeGiven,
    /// A gateway that led a volume heard of another one by a node.
    LeadRefused,
    /// Volumes came to one gateway, for an exchange.
    Gathered,
    /// One replica is left of a set that should have more.
    SoleSurvivor,
    /// A member that was expelled joins again, and yields.
    Yield,
    /// A host goes down while a copy is made.
    RebuildAndCrash,
    /// A copy was made.
    Rebuilt,
    /// A host goes down while a member moves.
    MoveAndCrash,
    /// A member has moved.
    Moved,
    /// A medium failed.
    MediumFailed,
    /// A host starts with another medium than before, or with an old image of it.
    OtherMedium,
    /// A page that a node found damaged by itself was repaired.
    ScrubRepaired,
    /// A node that answers was told to be slow.
    NodeSlow,
    /// A page of a copy had to wait, as copies have a pace.
    CopyPaced,
    /// A member compared pages with a peer while nothing else was to do.
    Compared,
    /// A node took the place of another one.
    NodeReplaced,
    /// A node refused to start with the medium of another one.
    StrangerRefused,
}

use Situation as S;

impl Situation {
    /// The situation that a host tells of.
    pub fn of(kind: &Kind) -> Option<Self> {
        match kind {
            Kind::RequestOverdue {
                wait: Wait::Window, ..
            } => Some(S::WindowFull),
            Kind::RequestFailed { .. } => Some(S::RequestGivenUp),
            Kind::MediumLatched { .. } => Some(S::MediumFailed),
            Kind::NodeSlow { .. } => Some(S::NodeSlow),
            Kind::VolumeLeft { why: Lead::Given, .. } => Some(S::VolumeGiven),
            Kind::VolumeLeft {
                why: Lead::Superseded,
                ..
            } => Some(S::LeadRefused),
            Kind::PageRepaired {
                found: Look::Scrub, ..
            } => Some(S::ScrubRepaired),
            _ => None,
        }
    }

    /// Every situation with the name that users read.
    pub const ALL: &[(Self, &str)] = &[
        (S::TwoDown, "two members of a set down"),
        (S::MemoryLost, "memory of a set lost"),
        (S::MemoryGivenUp, "memory of a set given up"),
        (S::JoinWhileCollecting, "join while collecting"),
        (S::ExchangeAndCrash, "exchange and crash"),
        (S::ManyRanges, "digest of several ranges"),
        (S::PoolEmpty, "page pool empty"),
        (S::WindowFull, "window full"),
        (S::RequestGivenUp, "request given up"),
        (S::Expelled, "member expelled"),
        (S::ExpelWhileJoining, "expel while joining"),
        (S::LeadWhileRebuilding, "lead change while rebuilding"),
        (S::SeveralLead, "several gateways lead"),
        (S::VolumeGiven, "volume given to another gateway"),
        (S::LeadRefused, "lead refused by a node"),
        (S::Gathered, "volumes gathered for an exchange"),
        (S::SoleSurvivor, "sole survivor"),
        (S::Yield, "expelled member yields"),
        (S::RebuildAndCrash, "rebuild and crash"),
        (S::Rebuilt, "copy rebuilt"),
        (S::MoveAndCrash, "move and crash"),
        (S::Moved, "member moved"),
        (S::MediumFailed, "medium failed"),
        (S::OtherMedium, "other or old medium"),
        (S::ScrubRepaired, "scrub found and repaired damage"),
        (S::NodeSlow, "slow node told"),
        (S::CopyPaced, "copy paced"),
        (S::Compared, "members compared"),
        (S::NodeReplaced, "node replaced"),
        (S::StrangerRefused, "medium of another node refused"),
    ];
}

/// How the members of some set change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Two vSSDs exchange their places.
    pub exchanges: bool,
    /// A copy is made.
    pub rebuilds: bool,
    /// A member moves.
    pub moves: bool,
    /// A set lacks copies.
    pub lacks: bool,
    /// One copy is left of several.
    pub is_alone: bool,
    /// Gateways that lead volumes.
    pub leads: usize,
    /// Volumes come to one gateway.
    pub gathers: bool,
}

/// How often a run came into each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached([u32; Situation::ALL.len()]);

impl Reached {
    /// The run came into this situation.
    pub fn note(&mut self, situation: Situation) {
        self.0[situation as usize] += 1;
    }

    /// As [`note`](Reached::note), if it did.
    pub fn note_if(&mut self, is_so: bool, situation: Situation) {
        self.0[situation as usize] += u32::from(is_so);
    }

    /// How often.
    pub fn count(&self, situation: Situation) -> u32 {
        self.0[situation as usize]
    }

    /// Adds a run that came into each situation of `other`, however often.
    pub fn add_run(&mut self, other: &Self) {
        for (all, one) in self.0.iter_mut().zip(other.0) {
            *all += u32::from(one > 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn situations_are_listed_in_order() {
        for (index, (situation, _)) in Situation::ALL.iter().enumerate() {
            assert_eq!(*situation as usize, index);
        }
    }
}

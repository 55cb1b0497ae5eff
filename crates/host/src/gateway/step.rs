//! The steps of a change of a set's members.

use super::control::Owner;
use base::VolumeId;
use rack::registry::{JoiningRecord, LeavingRecord, ReplicaRecord, SetRecord};

/// How far a change is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Create,
    Join,
    Flush,
    Joined,
    Secure(LeavingRecord),
    Retire(LeavingRecord),
    Settle(LeavingRecord),
}

/// A change under way.
#[derive(Debug)]
pub(super) struct Change {
    pub volume: VolumeId,
    pub set: usize,
    pub step: Step,
    /// It was begun by an earlier start: the volume is not open before it is over.
    pub resumed: bool,
}

impl Change {
    pub fn owner(&self) -> Owner {
        Owner::Change(self.volume, self.set)
    }
}

impl Step {
    /// The first step of carrying a decision out.
    pub fn decided(set: &SetRecord, leaving: LeavingRecord) -> Self {
        if leaving.was_primary && set.replicas.len() == 1 {
            Self::Secure(leaving)
        } else {
            Self::Retire(leaving)
        }
    }
}

/// The record of a set of one copy as it was before the decision.
pub(super) fn undecided(set: &SetRecord, leaving: LeavingRecord) -> SetRecord {
    let new = set.replicas[0];
    let (vssd, node) = (leaving.vssd, leaving.node);
    SetRecord {
        generation: set.generation - 1,
        replicas: vec![ReplicaRecord { vssd, node }],
        joining: Some(JoiningRecord {
            vssd: new.vssd,
            node: new.node,
            replaces: vssd,
        }),
        leaving: None,
        ..set.clone()
    }
}

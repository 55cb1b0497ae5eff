//! The steps of a change of a set's members.

use super::control::Owner;
use base::{VolumeId, VssdId};
use rack::registry::{JoiningRecord, LeavingRecord, ReplicaRecord, SetRecord};

/// How far a change is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Create,
    Join,
    Flush,
    Joined,
    Ease(LeavingRecord),
    Secure(LeavingRecord),
    Secured,
    Retire(LeavingRecord),
    Settle,
}

/// A change under way.
#[derive(Debug)]
pub(super) struct Change {
    pub volume: VolumeId,
    pub set: usize,
    pub step: Step,
    /// It was begun by an earlier start, or began while the volume was opened: the volume is not open before it is over.
    pub resumed: bool,
}

impl Change {
    pub fn owner(&self) -> Owner {
        Owner::Change(self.volume, self.set)
    }
}

impl Step {
    /// The first step of what a record asks for.
    pub fn first(set: &SetRecord) -> Self {
        match (set.joining, set.leaving) {
            (Some(_), _) => Self::Create,
            (None, Some(leaving)) if needs_others(set, leaving) => Self::Secure(leaving),
            (None, Some(leaving)) => Self::Retire(leaving),
            (None, None) => Self::Settle,
        }
    }
}

impl Step {
    /// The first step while clients go on.
    pub fn first_of_open(set: &SetRecord) -> Self {
        match Self::first(set) {
            Self::Secure(leaving) if leaving.surplus => Self::Ease(leaving),
            first => first,
        }
    }
}

/// True if a vSSD that leaves holds perhaps what the others do not: these have to flush first.
fn needs_others(set: &SetRecord, leaving: LeavingRecord) -> bool {
    set.expelling.is_none() && (leaving.may_stay() || leaving.was_primary && keeps_one_copy(set))
}

/// True if nothing is to be changed in the set before a vSSD is gone.
pub(super) fn pauses(leaving: LeavingRecord) -> bool {
    leaving.was_primary || leaving.surplus
}

/// True if the set has a single copy, and is meant to.
fn keeps_one_copy(set: &SetRecord) -> bool {
    set.replicas.len() == 1 && set.copies <= 1
}

/// The vSSDs that a record has just made no members any more.
pub(super) fn departed(set: &SetRecord) -> Vec<VssdId> {
    let leaving = set.leaving.iter().map(|leaving| leaving.vssd);
    let expelled = set.expelling.iter().flat_map(|expelling| &expelling.vssds);
    leaving.chain(expelled.copied()).map(VssdId).collect()
}

/// True if a record has just made another one the primary.
pub(super) fn has_new_primary(set: &SetRecord) -> bool {
    let leaving = set.leaving.is_some_and(|leaving| leaving.was_primary);
    let expelling = set.expelling.as_ref();
    leaving || expelling.is_some_and(|expelling| expelling.was_primary)
}

/// The record of a set as it was before the decision: of one copy, or with a copy more than it is to have.
pub(super) fn undecided(set: &SetRecord, leaving: LeavingRecord) -> SetRecord {
    let new = set.replicas[0];
    let left = ReplicaRecord::from(leaving);
    if leaving.surplus {
        let mut before = set.clone();
        before.replicas.push(left);
        (before.generation, before.leaving) = (set.generation - 1, None);
        return before;
    }
    SetRecord {
        generation: set.generation - 1,
        replicas: vec![left],
        joining: Some(JoiningRecord {
            vssd: new.vssd,
            node: new.node,
            replaces: left.vssd,
            moves: leaving.moves,
        }),
        leaving: None,
        ..set.clone()
    }
}

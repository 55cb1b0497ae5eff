//! A set whose members are lost for ever goes on with a copy that was expelled, if an operator says so.
//!
//! A member is expelled when it is lost, and the others go on without it. If these are lost before it is a member again, only what was
//! expelled is left. It lacks what was written since, also what was flushed, so nothing makes it a member by itself.

use crate::registry::{ReplicaRecord, Snapshot};
use base::{NodeId, VssdId};
use thiserror::Error;

/// Why a copy cannot be the one that a set goes on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ForceError {
    /// No set has expelled it.
    #[error(
        "vSSD {0} is no copy that a set has expelled, or that joins one: `switchyard registry show` names these. For a member on an image of the past, say so with --restored"
    )]
    NotExpelled(u32),
    /// Its volume is being deleted.
    #[error("the volume of vSSD {0} is being deleted")]
    Deleted(u32),
    /// Two vSSDs exchange their places.
    #[error("two vSSDs exchange their places: start a gateway, which undoes that, and stop it again")]
    Exchange,
}

/// A set that goes on with a copy of before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forced {
    /// Its volume's name.
    pub volume: String,
    /// Its pages in the volume: the first one, and how many.
    pub pages: (u64, u32),
    /// The node of the copy.
    pub node: NodeId,
    /// The members that are given up, and with them what only they hold.
    pub given_up: Vec<(VssdId, NodeId)>,
    /// The copy was joining: of what it had to catch up with, some pages are newer than others.
    pub is_mixed: bool,
}

impl Snapshot {
    /// Lets a set go on with a copy that it has expelled, or that joins it, as the only one. If `restored`, the copy may be a member, whose
    /// medium is an image of the past. The others count as expelled. They join again when they are back, and yield.
    ///
    /// # Errors
    /// It cannot be done, and nothing is changed.
    pub fn force_copy(&mut self, vssd: VssdId, restored: bool) -> Result<Forced, ForceError> {
        if self.exchanging().next().is_some() {
            return Err(ForceError::Exchange);
        }
        let joins = |joining: Option<ReplicaRecord>| joining.filter(|new| new.vssd == vssd.0);
        let place = self.volumes.iter().enumerate().find_map(|(at, volume)| {
            volume.sets.iter().enumerate().find_map(|(index, set)| {
                let joining = set.joining.map(|new| ReplicaRecord {
                    vssd: new.vssd,
                    node: new.node,
                });
                let members = set.replicas.iter().filter(|_| restored);
                let left = set
                    .expelled
                    .iter()
                    .chain(members)
                    .find(|left| left.vssd == vssd.0);
                let copy = joins(joining).or(left.copied())?;
                Some((at, index, copy))
            })
        });
        let (at, index, copy) = place.ok_or(ForceError::NotExpelled(vssd.0))?;
        if self.is_deleting(self.volumes[at].volume()) {
            return Err(ForceError::Deleted(vssd.0));
        }
        let volume = &mut self.volumes[at];
        let first = volume.sets[..index].iter().map(|set| u64::from(set.pages)).sum();
        let set = &mut volume.sets[index];
        let is_mixed = set.joining.is_some_and(|joining| joining.vssd == vssd.0);
        set.copies = set.wanted() as u32;
        let others: Vec<(VssdId, NodeId)> = set.vssds().filter(|(other, _)| *other != vssd).collect();
        (set.joining, set.leaving) = (None, None);
        set.expelled.retain(|left| left.vssd != vssd.0);
        set.expelled
            .extend(others.iter().map(|(vssd, node)| ReplicaRecord {
                vssd: vssd.0,
                node: node.0,
            }));
        set.replicas = vec![copy];
        set.settled = 0;
        let lost: Vec<u32> = others.iter().map(|(vssd, _)| vssd.0).collect();
        set.note_expelled(&lost, true);
        Ok(Forced {
            volume: volume.name.clone(),
            pages: (first, set.pages),
            node: NodeId(copy.node),
            given_up: others,
            is_mixed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::{JoiningRecord, SetRecord, VolumeRecord};

    fn records() -> Snapshot {
        let replica = |vssd, node| ReplicaRecord { vssd, node };
        let mut set = SetRecord {
            pages: 8,
            replicas: vec![replica(1, 1), replica(2, 2)],
            ..SetRecord::default()
        };
        set.expel(&[1]);
        set.expelling = None;
        let volume = VolumeRecord {
            id: 1,
            identity: Default::default(),
            name: "db".into(),
            size_bytes: 16 * 4096,
            durability: Default::default(),
            read_only: false,
            ready: true,
            lead: None,
            sets: vec![
                SetRecord {
                    pages: 8,
                    replicas: vec![replica(3, 3)],
                    ..SetRecord::default()
                },
                set,
            ],
        };
        Snapshot {
            volumes: vec![volume],
            ..Snapshot::default()
        }
    }

    #[test]
    fn an_expelled_copy_takes_the_place_of_all_members() {
        let mut records = records();
        let forced = records.force_copy(VssdId(1), false).expect("it is expelled");
        assert_eq!((forced.pages, forced.node), ((8, 8), NodeId(1)));
        assert_eq!(forced.given_up, [(VssdId(2), NodeId(2))]);
        assert!(!forced.is_mixed);
        let set = &records.volumes[0].sets[1];
        assert_eq!(set.replicas, [ReplicaRecord { vssd: 1, node: 1 }]);
        assert_eq!(set.expelled, [ReplicaRecord { vssd: 2, node: 2 }]);
        assert_eq!((set.generation, set.wanted()), (2, 2));
        let expelling = set.expelling.as_ref().expect("the copy learns it");
        assert!(expelling.was_primary && expelling.vssds == [2]);
    }

    #[test]
    fn a_member_on_an_image_of_the_past_goes_on_alone() {
        let mut records = records();
        records.volumes[0].sets[1].settled = 1;
        let forced = records.force_copy(VssdId(2), true).expect("it is a member");
        assert_eq!(forced.given_up, []);
        let set = &records.volumes[0].sets[1];
        assert_eq!((set.settled, set.generation), (0, 2), "it is opened as it is");
        assert_eq!(set.expelled, [ReplicaRecord { vssd: 1, node: 1 }]);
    }

    #[test]
    fn one_that_joins_is_told_to_be_mixed() {
        let mut records = records();
        let set = &mut records.volumes[0].sets[1];
        set.expelled.clear();
        set.joining = Some(JoiningRecord {
            vssd: 1,
            node: 1,
            replaces: 0,
            moves: false,
        });
        assert!(records.force_copy(VssdId(1), false).expect("it joins").is_mixed);
        assert_eq!(records.volumes[0].sets[1].joining, None);
    }

    #[test]
    fn members_and_strangers_are_refused() {
        let before = records();
        for vssd in [2, 3, 9] {
            let mut records = before.clone();
            let refused = records.force_copy(VssdId(vssd), false);
            assert_eq!(refused, Err(ForceError::NotExpelled(vssd)));
            assert_eq!(records, before);
        }
    }
}

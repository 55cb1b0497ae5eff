//! Two vSSDs exchange their nodes while clients go on (RackBlox §3.6): the records' side of it.
//!
//! For each of the two a new vSSD is made on the other one's node and joins its replica set as one member more. When both
//! hold everything, durably, one change of the registry decides for both; then the old ones are deleted. All changes go
//! through [`Snapshot`]s, which a registry stores as a whole, and every snapshot can be the last one before a crash:
//!
//! | stored | after a crash |
//! | --- | --- |
//! | [`planned`](Snapshot::plan_exchange): `joining` | [undone](Snapshot::undo_exchange): the new vSSDs leave |
//! | [`committed`](Snapshot::commit_exchange) or undone: `leaving` | what leaves is deleted, then this is finished |
//! | [finished](Snapshot::finish_exchange) | nothing is left to do |
//!
//! Each of these makes a new generation of the sets' membership, so that nothing that was sent under an earlier one has an
//! effect.
//!
//! A vSSD that joins to restore a set's redundancy, or moves by itself, is the business of [`crate::heal`], and is left
//! alone here.

use crate::registry::{JoiningRecord, LeavingRecord, SetRecord, Snapshot, VolumeRecord};
use base::{VolumeId, VssdId};
use thiserror::Error;
use wire::rack::Code;

/// Why two vSSDs cannot exchange their places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ExchangeError {
    /// No volume has it.
    #[error("no volume has a vSSD {0}: `switchyard volume show NAME` names a volume's")]
    Unknown(u32),
    /// Its volume was not made completely.
    #[error("the volume of vSSD {0} is not ready")]
    NotReady(u32),
    /// They are copies of the same data, or the same vSSD.
    #[error("vSSDs {0} and {1} are copies of the same data: choose two of different sets")]
    SameSet(u32, u32),
    /// They are on the same node, or one's data has another copy on the other's.
    #[error("a node would hold two copies of the same data, or both are on one node: choose other vSSDs")]
    Collocated,
    /// One needs more than the other.
    #[error("vSSDs {0} and {1} are not of the same size")]
    Sizes(u32, u32),
    /// Its set lacks copies, or is getting one.
    #[error("the set of vSSD {0} lacks copies: wait until it has all, `switchyard status` shows it")]
    Degraded(u32),
    /// Its channels are shared.
    #[error("vSSD {0} is software-isolated: only vSSDs with channels of their own exchange their nodes")]
    Shared(u32),
    /// One of the nodes is to have no copies any more.
    #[error("node {0} is being drained: its copies move to other nodes by themselves")]
    Drained(u8),
    /// Another exchange has not been finished.
    #[error("another exchange is not finished: some nodes do not answer, `switchyard status` shows which")]
    Unfinished,
}

/// How far a volume's sets are with what their records ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeState {
    /// Under way.
    Busy,
    /// Every joining vSSD holds everything, durably.
    Joined,
    /// Everyone but the surplus copy holds everything, durably.
    Secured,
    /// A node refused: it cannot be done.
    Failed(VssdId, Code),
    /// Nothing is under way; what was to leave is gone.
    Done,
}

fn take_joining(set: &mut SetRecord) -> Option<JoiningRecord> {
    set.joining.take_if(|joining| joining.exchanges())
}

impl Snapshot {
    fn find(&self, vssd: u32) -> Option<(usize, usize, usize)> {
        self.volumes.iter().enumerate().find_map(|(v, volume)| {
            volume.sets.iter().enumerate().find_map(|(s, set)| {
                let replica = set.replicas.iter().position(|replica| replica.vssd == vssd)?;
                Some((v, s, replica))
            })
        })
    }

    #[cfg(test)]
    fn sets(&self) -> impl Iterator<Item = &SetRecord> {
        self.volumes.iter().flat_map(|volume| &volume.sets)
    }

    fn sets_mut(&mut self) -> impl Iterator<Item = &mut SetRecord> {
        self.volumes.iter_mut().flat_map(|volume| &mut volume.sets)
    }

    /// Volumes with a vSSD that joins or leaves in an exchange.
    pub fn exchanging(&self) -> impl Iterator<Item = &VolumeRecord> {
        let changes = |set: &SetRecord| set.exchanges() || set.ends_exchange();
        self.volumes
            .iter()
            .filter(move |volume| volume.sets.iter().any(changes))
    }

    /// Notes that the data of two vSSDs are to exchange nodes.
    pub fn plan_exchange(&mut self, a: VssdId, b: VssdId) -> Result<(), ExchangeError> {
        if self.exchanging().next().is_some() {
            return Err(ExchangeError::Unfinished);
        }
        let at_a = self.find(a.0).ok_or(ExchangeError::Unknown(a.0))?;
        let at_b = self.find(b.0).ok_or(ExchangeError::Unknown(b.0))?;
        for (vssd, at) in [(a, at_a), (b, at_b)] {
            if !self.volumes[at.0].ready {
                return Err(ExchangeError::NotReady(vssd.0));
            }
            let set = &self.volumes[at.0].sets[at.1];
            if set.rows > 0 {
                return Err(ExchangeError::Shared(vssd.0));
            }
            if !set.is_whole() {
                return Err(ExchangeError::Degraded(vssd.0));
            }
        }
        let set = |at: (usize, usize, usize)| &self.volumes[at.0].sets[at.1];
        let node = |at: (usize, usize, usize)| set(at).replicas[at.2].node;
        if (at_a.0, at_a.1) == (at_b.0, at_b.1) {
            return Err(ExchangeError::SameSet(a.0, b.0));
        }
        if (set(at_a).pages, set(at_a).channels) != (set(at_b).pages, set(at_b).channels) {
            return Err(ExchangeError::Sizes(a.0, b.0));
        }
        let has = |at, node| set(at).replicas.iter().any(|replica| replica.node == node);
        if has(at_a, node(at_b)) || has(at_b, node(at_a)) {
            return Err(ExchangeError::Collocated);
        }
        let places = [(a, at_a, node(at_b)), (b, at_b, node(at_a))];
        if let Some((_, _, node)) = places.iter().find(|(_, _, node)| self.goes(*node)) {
            return Err(ExchangeError::Drained(*node));
        }
        for (vssd, at, node) in places {
            self.next_vssd += 1;
            let next = self.next_vssd;
            let set = &mut self.volumes[at.0].sets[at.1];
            set.generation += 1;
            set.joining = Some(JoiningRecord {
                vssd: next,
                node,
                replaces: vssd.0,
                moves: false,
            });
        }
        Ok(())
    }

    /// The joining vSSDs take the places that they were made for.
    pub fn commit_exchange(&mut self) {
        for set in self.sets_mut().filter(|set| set.exchanges()) {
            set.replace();
        }
    }

    /// The joining vSSDs, as far as they were made, are not wanted. True if there were any.
    pub fn undo_exchange(&mut self) -> bool {
        let mut any = false;
        for set in self.sets_mut() {
            let Some(joining) = take_joining(set) else {
                continue;
            };
            set.generation += 1;
            set.leaving = Some(LeavingRecord {
                vssd: joining.vssd,
                node: joining.node,
                was_primary: false,
                moves: false,
                surplus: false,
                secured: false,
            });
            any = true;
        }
        any
    }

    /// Leaving vSSDs of these volumes are gone.
    pub fn finish_exchange(&mut self, volumes: &[VolumeId]) {
        let finished = |volume: &&mut VolumeRecord| volumes.contains(&volume.volume());
        let volumes = self.volumes.iter_mut().filter(finished);
        for set in volumes.flat_map(|volume| &mut volume.sets) {
            set.leaving.take_if(|leaving| !leaving.moves);
        }
    }
}

/// Next step of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Look again when something has happened.
    Wait,
    /// Store the snapshot durably, then hand the volumes' records to the gateway.
    Store,
    /// Store the snapshot durably: it is over. True if the places were exchanged.
    Over(bool),
}

/// An exchange under way. The records say how far it is, so a driver that is not sure what was stored asks again with
/// what the registry has. The driver stores snapshots and hands records on, as [`Next`] says.
#[derive(Clone, Debug)]
pub struct Exchange {
    volumes: Vec<VolumeId>,
    /// The vSSDs that take the places.
    made: Vec<u32>,
}

impl Exchange {
    /// Plans an exchange; the snapshot is to be stored, and the records handed on.
    pub fn plan(snapshot: &mut Snapshot, a: VssdId, b: VssdId) -> Result<Self, ExchangeError> {
        let first = snapshot.next_vssd + 1;
        snapshot.plan_exchange(a, b)?;
        Ok(Self {
            volumes: snapshot.exchanging().map(VolumeRecord::volume).collect(),
            made: (first..=snapshot.next_vssd).collect(),
        })
    }

    /// The exchange that an earlier start has left, if any. An undecided exchange is undone: then the snapshot is changed
    /// and is to be stored before anything else, which the flag says.
    pub fn resume(snapshot: &mut Snapshot) -> Option<(Self, bool)> {
        let undone = snapshot.undo_exchange();
        let exchange = Self::resume_of(snapshot, |_| true)?;
        Some((exchange, undone))
    }

    /// The part of a decided exchange that an earlier start has left in such volumes, if any. Each goes on by itself.
    pub fn resume_of(snapshot: &Snapshot, is_own: impl Fn(VolumeId) -> bool) -> Option<Self> {
        let ends = |volume: &&VolumeRecord| volume.sets.iter().any(SetRecord::ends_exchange);
        let own = snapshot.volumes.iter().filter(ends);
        let own = own.filter(|volume| is_own(volume.volume()));
        let volumes: Vec<VolumeId> = own.clone().map(VolumeRecord::volume).collect();
        // Numbers grow: what a decision put in the place of the vSSD that leaves has a higher one than that.
        let made = own.flat_map(|volume| &volume.sets).filter_map(|set| {
            let leaving = set.leaving.filter(|leaving| !leaving.moves)?;
            let newest = set.replicas.iter().map(|replica| replica.vssd).max()?;
            (newest > leaving.vssd).then_some(newest)
        });
        let exchange = Self {
            made: made.collect(),
            volumes,
        };
        (!exchange.volumes.is_empty()).then_some(exchange)
    }

    /// The volumes that it concerns.
    pub fn volumes(&self) -> &[VolumeId] {
        &self.volumes
    }

    fn sets<'a>(&self, snapshot: &'a Snapshot) -> impl Iterator<Item = &'a SetRecord> {
        let mine = |volume: &&VolumeRecord| self.volumes.contains(&volume.volume());
        let volumes = snapshot.volumes.iter().filter(mine);
        volumes.flat_map(|volume| &volume.sets)
    }

    /// True if these records know of it.
    pub fn is_in(&self, snapshot: &Snapshot) -> bool {
        let known = |set: &SetRecord| set.vssds().any(|(vssd, _)| self.made.contains(&vssd.0));
        self.sets(snapshot).any(known)
    }

    /// True if it cannot be undone any more, or is undone.
    pub fn is_decided(&self, snapshot: &Snapshot) -> bool {
        !self.sets(snapshot).any(SetRecord::exchanges)
    }

    /// Next step, with the snapshot changed accordingly. With `hurry` it is undone if it is not decided yet.
    pub fn next(
        &self,
        snapshot: &mut Snapshot,
        hurry: bool,
        state: impl Fn(VolumeId) -> ChangeState,
    ) -> Next {
        let mut states = self.volumes.iter().map(|&volume| state(volume));
        if self.is_decided(snapshot) {
            let left = self.sets(snapshot).any(SetRecord::ends_exchange);
            if left && !states.all(|state| state == ChangeState::Done) {
                return Next::Wait;
            }
            snapshot.finish_exchange(&self.volumes);
            let replicas = self.sets(snapshot).flat_map(|set| &set.replicas);
            let mut made = replicas.filter(|replica| self.made.contains(&replica.vssd));
            return Next::Over(made.next().is_some());
        }
        let failed = |state| matches!(state, ChangeState::Failed(..));
        if hurry || states.clone().any(failed) {
            snapshot.undo_exchange();
            Next::Store
        } else if states.all(|state| state == ChangeState::Joined) {
            snapshot.commit_exchange();
            Next::Store
        } else {
            Next::Wait
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::ReplicaRecord;

    /// Two volumes of two sets of two replicas on four nodes, round robin: vSSDs 1 to 8.
    fn snapshot() -> Snapshot {
        let set = |first: u32| SetRecord {
            pages: 100,
            channels: 1,
            replicas: [first, first + 1]
                .map(|vssd| ReplicaRecord {
                    vssd,
                    node: ((vssd - 1) % 4 + 1) as u8,
                })
                .to_vec(),
            ..SetRecord::default()
        };
        let volume = |id: u32| VolumeRecord {
            id,
            identity: Default::default(),
            name: format!("v{id}"),
            size_bytes: 200 * 4096,
            durability: Default::default(),
            read_only: false,
            ready: true,
            lead: None,
            sets: vec![set(id * 4 - 3), set(id * 4 - 1)],
        };
        Snapshot {
            next_vssd: 8,
            volumes: vec![volume(1), volume(2)],
            ..Snapshot::default()
        }
    }

    fn places(snapshot: &Snapshot) -> Vec<Vec<u8>> {
        let sets = snapshot.volumes.iter().flat_map(|volume| &volume.sets);
        sets.map(|set| set.replicas.iter().map(|replica| replica.node).collect())
            .collect()
    }

    #[test]
    fn a_committed_exchange_swaps_two_nodes_and_nothing_else() {
        let mut now = snapshot();
        let exchange = Exchange::plan(&mut now, VssdId(1), VssdId(8)).unwrap();
        assert_eq!(exchange.volumes(), [VolumeId(1), VolumeId(2)]);
        assert_eq!(places(&now), places(&snapshot()), "planned is not done");
        assert_eq!(exchange.next(&mut now, false, |_| ChangeState::Busy), Next::Wait);
        assert_eq!(
            exchange.next(&mut now, false, |_| ChangeState::Joined),
            Next::Store
        );
        assert_eq!(places(&now), [[4, 2], [3, 4], [1, 2], [3, 1]]);
        let leaving: Vec<LeavingRecord> = now.sets().filter_map(|set| set.leaving).collect();
        let (one, eight) = (leaving[0], leaving[1]);
        assert_eq!((one.vssd, one.node, one.was_primary), (1, 1, true));
        assert_eq!((eight.vssd, eight.node, eight.was_primary), (8, 4, false));
        assert_eq!(exchange.next(&mut now, true, |_| ChangeState::Busy), Next::Wait);
        assert_eq!(
            exchange.next(&mut now, false, |_| ChangeState::Done),
            Next::Over(true)
        );
        assert_eq!(now.exchanging().count(), 0);
        assert_eq!(now.next_vssd, 10);
    }

    #[test]
    fn a_refusal_or_a_restart_before_the_decision_undoes_it() {
        let refuse: fn(&mut Exchange, &mut Snapshot) = |exchange, now| {
            let failed = |_| ChangeState::Failed(VssdId(9), Code::NoSpace);
            assert_eq!(exchange.next(now, false, failed), Next::Store);
        };
        let restart: fn(&mut Exchange, &mut Snapshot) = |exchange, now| {
            let (resumed, undone) = Exchange::resume(now).unwrap();
            assert!(undone);
            *exchange = resumed;
        };
        for cause in [refuse, restart] {
            let mut now = snapshot();
            let mut exchange = Exchange::plan(&mut now, VssdId(1), VssdId(8)).unwrap();
            cause(&mut exchange, &mut now);
            assert_eq!(places(&now), places(&snapshot()));
            let leaving: Vec<u32> = now.sets().filter_map(|set| set.leaving).map(|l| l.vssd).collect();
            assert_eq!(leaving, [9, 10]);
            assert_eq!(
                exchange.next(&mut now, false, |_| ChangeState::Done),
                Next::Over(false)
            );
            assert!(Exchange::resume(&mut now).is_none());
            assert!(now.sets().all(|set| set.generation == 0 || set.generation == 2));
        }
    }

    #[test]
    fn a_restart_after_the_decision_completes_it() {
        let mut now = snapshot();
        let exchange = Exchange::plan(&mut now, VssdId(1), VssdId(8)).unwrap();
        assert_eq!(
            exchange.next(&mut now, false, |_| ChangeState::Joined),
            Next::Store
        );
        let committed = places(&now);
        let (resumed, undone) = Exchange::resume(&mut now).unwrap();
        assert!(!undone && resumed.is_decided(&now));
        assert_eq!(
            resumed.next(&mut now, false, |_| ChangeState::Done),
            Next::Over(true)
        );
        assert_eq!(places(&now), committed);
    }

    /// Bug: two requests that followed exchanges finished each other's. Cause: the end of one was noted in every set.
    #[test]
    fn the_end_of_an_exchange_is_noted_for_its_own_volumes() {
        let mut now = snapshot();
        let exchange = Exchange::plan(&mut now, VssdId(1), VssdId(8)).unwrap();
        exchange.next(&mut now, false, |_| ChangeState::Joined);
        let leaving = |now: &mut Snapshot| now.sets().filter(|set| set.leaving.is_some()).count();
        assert_eq!(leaving(&mut now), 2);
        now.finish_exchange(&[VolumeId(1)]);
        assert_eq!(leaving(&mut now), 1);
        now.finish_exchange(&[VolumeId(2)]);
        assert_eq!(leaving(&mut now), 0);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let plan = |a, b| snapshot().plan_exchange(VssdId(a), VssdId(b));
        assert_eq!(plan(1, 99), Err(ExchangeError::Unknown(99)));
        assert_eq!(plan(1, 2), Err(ExchangeError::SameSet(1, 2)));
        assert_eq!(plan(1, 1), Err(ExchangeError::SameSet(1, 1)));
        assert_eq!(plan(1, 5), Err(ExchangeError::Collocated), "both are on node 1");
        assert_eq!(
            plan(1, 6),
            Err(ExchangeError::Collocated),
            "node 2 has a copy already"
        );
        let mut small = snapshot();
        small.volumes[1].sets[1].pages = 99;
        assert_eq!(
            small.plan_exchange(VssdId(1), VssdId(8)),
            Err(ExchangeError::Sizes(1, 8))
        );
        let mut shared = snapshot();
        shared.volumes[1].sets[1].rows = 1;
        assert_eq!(
            shared.plan_exchange(VssdId(1), VssdId(8)),
            Err(ExchangeError::Shared(8))
        );
        let mut unready = snapshot();
        unready.volumes[1].ready = false;
        assert_eq!(
            unready.plan_exchange(VssdId(1), VssdId(8)),
            Err(ExchangeError::NotReady(8))
        );
        let mut now = snapshot();
        now.plan_exchange(VssdId(1), VssdId(8)).unwrap();
        assert_eq!(
            now.plan_exchange(VssdId(3), VssdId(6)),
            Err(ExchangeError::Unfinished)
        );
    }
}

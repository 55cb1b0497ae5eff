//! Who holds in memory what was acknowledged, and so what is lost when hosts go down.
//!
//! A member of a replica set holds everything that was acknowledged from when it serves until its host goes down. It says
//! when it serves, and is taken at its word: from then on its peers may go, and nothing is lost. A set loses what was not
//! flushed when its last holder goes, or when a member serves though no holder is a member any more.

use super::Loss;
use base::VssdId;
use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet};

/// A replica set as the registry has it.
#[derive(Clone, Debug)]
pub struct Set {
    /// The volume, by its index.
    pub volume: usize,
    /// Its pages in the volume.
    pub pages: Range<u64>,
    /// Its replicas, each with its host.
    pub members: Vec<(VssdId, usize)>,
    /// Its members change, or can: what is found after a loss may be on the medium of one that goes.
    pub may_change: bool,
}

impl Set {
    fn key(&self) -> (usize, u64) {
        (self.volume, self.pages.start)
    }
}

/// What a set has lost.
pub type Lost = (usize, Range<u64>, Loss);

/// Watches who holds what.
#[derive(Debug)]
pub struct Memories {
    /// Members that hold everything, by host.
    holders: BTreeSet<(usize, u32)>,
    /// Hosts whose medium was damaged: for all that is known they hold nothing any more.
    damaged: Vec<bool>,
    /// The sets that are known, by volume and first page: whether somebody has held something since the last loss.
    remembered: BTreeMap<(usize, u64), bool>,
}

impl Memories {
    /// Of so many hosts, with sets of which nobody holds anything.
    pub fn new(hosts: usize, sets: &[Set]) -> Self {
        Self {
            holders: BTreeSet::new(),
            damaged: vec![false; hosts],
            remembered: sets.iter().map(|set| (set.key(), false)).collect(),
        }
    }

    /// A host went down.
    pub fn crashed(&mut self, host: usize) {
        self.holders.retain(|(of, _)| *of != host);
    }

    /// A host's medium was damaged or lost.
    pub fn damaged(&mut self, host: usize) {
        self.damaged[host] = true;
    }

    /// True if the member can be the last one that stays, and nothing is lost.
    pub fn holds(&self, host: usize, vssd: VssdId) -> bool {
        !self.damaged[host] && self.holders.contains(&(host, vssd.0))
    }

    fn is_held(&self, set: &Set) -> bool {
        let mut members = set.members.iter();
        members.any(|(vssd, host)| self.holds(*host, *vssd))
    }

    /// A member serves. Says what its set has lost by that: it may serve alone.
    pub fn serves(&mut self, host: usize, vssd: VssdId, sets: &[Set]) -> Option<Lost> {
        let here = |set: &&Set| set.members.contains(&(vssd, host));
        let lost = sets.iter().find(here).and_then(|set| {
            let was_held = self.remembered.insert(set.key(), true) == Some(true);
            let is_lost = was_held && !self.is_held(set);
            is_lost.then(|| (set.volume, set.pages.clone(), Loss::Possible))
        });
        self.holders.insert((host, vssd.0));
        lost
    }

    /// Hosts went down: what the sets have lost by that.
    pub fn judge(&mut self, sets: &[Set], is_up: impl Fn(usize) -> bool) -> Vec<Lost> {
        let mut lost = Vec::new();
        for set in sets {
            // One whose medium was damaged serves on, and what it has may be lost again and again.
            let mut members = set.members.iter();
            let is_served = members.any(|(vssd, host)| self.holders.contains(&(*host, vssd.0)));
            // A set that is new may have served before anybody asked.
            let was_held = self.remembered.insert(set.key(), is_served).unwrap_or(true);
            if self.is_held(set) || !was_held {
                continue;
            }
            let stays = set.members.iter().any(|(_, host)| is_up(*host));
            let loss = match stays || set.may_change {
                true => Loss::Possible,
                false => Loss::Certain,
            };
            lost.push((set.volume, set.pages.clone(), loss));
        }
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: (VssdId, usize) = (VssdId(7), 1);
    const B: (VssdId, usize) = (VssdId(8), 2);

    fn set(members: &[(VssdId, usize)]) -> [Set; 1] {
        [Set {
            volume: 0,
            pages: 0..4,
            members: members.to_vec(),
            may_change: false,
        }]
    }

    fn serves(memories: &mut Memories, member: (VssdId, usize), sets: &[Set]) -> Option<Loss> {
        memories.serves(member.1, member.0, sets).map(|lost| lost.2)
    }

    fn judge(memories: &mut Memories, sets: &[Set], up: &[usize]) -> Option<Loss> {
        let lost = memories.judge(sets, |host| up.contains(&host));
        lost.first().map(|lost| lost.2)
    }

    fn both() -> (Memories, [Set; 1]) {
        let sets = set(&[A, B]);
        let mut memories = Memories::new(3, &sets);
        assert_eq!(judge(&mut memories, &sets, &[1, 2]), None, "nothing was there");
        for member in [A, B] {
            assert_eq!(serves(&mut memories, member, &sets), None);
        }
        (memories, sets)
    }

    #[test]
    fn memory_is_lost_with_its_last_holder_and_a_member_holds_from_when_it_serves() {
        let (mut memories, sets) = both();
        memories.crashed(1);
        assert_eq!(judge(&mut memories, &sets, &[2]), None);
        assert_eq!(serves(&mut memories, A, &sets), None);
        memories.crashed(2);
        assert_eq!(judge(&mut memories, &sets, &[1]), None, "the first has caught up");
        memories.crashed(1);
        assert_eq!(
            judge(&mut memories, &sets, &[2]),
            Some(Loss::Possible),
            "the second has not"
        );
        memories.crashed(2);
        assert_eq!(judge(&mut memories, &sets, &[]), None, "it had nothing to lose");
        for member in [A, B] {
            assert_eq!(serves(&mut memories, member, &sets), None, "that was told");
        }
        memories.crashed(1);
        memories.crashed(2);
        assert_eq!(judge(&mut memories, &sets, &[]), Some(Loss::Certain));
    }

    #[test]
    fn memory_is_lost_when_a_member_serves_without_the_one_that_held_it() {
        let (mut memories, sets) = both();
        memories.crashed(2);
        assert_eq!(judge(&mut memories, &sets, &[1]), None);
        let alone = set(&[B]);
        assert_eq!(serves(&mut memories, B, &alone), Some(Loss::Possible));
        assert_eq!(judge(&mut memories, &alone, &[1, 2]), None);
    }

    #[test]
    fn who_has_a_damaged_medium_holds_nothing_and_may_lose_it_again() {
        let (mut memories, sets) = both();
        memories.damaged(1);
        memories.crashed(2);
        assert_eq!(judge(&mut memories, &sets, &[1]), Some(Loss::Possible));
        memories.crashed(1);
        assert_eq!(judge(&mut memories, &sets, &[]), Some(Loss::Certain));
    }
}

//! Commands to the operator of a simulated rack, and the check of what their answers promise.
//!
//! The registry is the witness: it survives everything, so what was answered must be in it from then on.

use base::{Addr, NodeId, Rng, VolumeId, VssdId};
use host::operator::{Command, Done, NewVolume, NodeChange, Refusal};
use rack::placement::Isolation;
use rack::registry::{Durability, Snapshot, VolumeRecord};
use std::collections::{BTreeMap, BTreeSet};

/// Pairs of vSSDs that are tried for one exchange: not every two can exchange places.
const TRIES: u32 = 32;

/// What is to be done; which volume or vSSDs is drawn when it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Create a volume of so many pages.
    Create {
        /// Its pages.
        pages: u64,
        /// Its copies.
        replicas: u8,
        /// Clients use it, so it is not deleted.
        used: bool,
    },
    /// Let a volume grow by so many pages.
    Grow {
        /// More pages.
        pages: u64,
    },
    /// Delete a volume that clients do not use.
    Delete,
    /// Let two vSSDs of used volumes exchange places.
    Exchange,
    /// Let a volume have so many copies.
    Copies {
        /// Its copies.
        replicas: u8,
    },
    /// Let a node have no copies any more.
    Drain(NodeId),
    /// Let it have copies again.
    StopDrain(NodeId),
    /// Let the rack forget a node.
    Remove(NodeId),
    /// Let it have a node that it was founded with, and even its room out.
    Add(NodeId),
    /// Let a node that the rack has forgotten take the place of another one.
    Replace {
        /// The node that goes.
        old: NodeId,
        /// The node that comes.
        new: NodeId,
    },
}

/// The state of a volume, as far as it is known.
#[derive(Clone, Debug, Default)]
struct Promise {
    /// It was answered that it is there.
    is_made: bool,
    /// Somebody wants it to be gone; from then on it may be.
    may_go: bool,
    /// It was answered that it is gone.
    is_gone: bool,
    size_min: u64,
    used: bool,
}

/// The ends of commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Volumes created.
    pub created: u32,
    /// Volumes grown.
    pub grown: u32,
    /// Volumes deleted.
    pub deleted: u32,
    /// Places were exchanged.
    pub exchanged: u32,
    /// They were not: undone, because of a crash, a refusal or the time.
    pub undone: u32,
    /// Nothing fitted the wish.
    pub impossible: u32,
    /// Refused for another reason.
    pub refused: u32,
    /// Not answered: the process crashed.
    pub unanswered: u32,
}

#[derive(Clone, Debug)]
struct Asked {
    wish: Wish,
    name: String,
    size_bytes: u64,
    gateway: usize,
}

/// Commands to come, those under way, and what was promised.
#[derive(Debug)]
pub struct Commands {
    /// When they begin, in ns; the last first.
    plan: Vec<(u64, Wish)>,
    rng: Rng,
    isolation: Isolation,
    asked: BTreeMap<u64, Asked>,
    next: u64,
    volumes: BTreeMap<String, Promise>,
    exchanges: Vec<(VssdId, VssdId)>,
    /// Nodes that the rack was founded with.
    nodes: Vec<(NodeId, Addr)>,
    counts: Counts,
    created: Vec<VolumeRecord>,
}

impl Commands {
    /// None yet; these volumes are there, and clients use them.
    pub fn new(records: &[VolumeRecord]) -> Self {
        let used = |record: &VolumeRecord| {
            let promise = Promise {
                size_min: record.size_bytes,
                used: true,
                ..Promise::default()
            };
            (record.name.clone(), promise)
        };
        let software = records
            .iter()
            .flat_map(|record| &record.sets)
            .any(|set| set.rows > 0);
        Self {
            plan: Vec::new(),
            rng: Rng::new(0),
            isolation: if software {
                Isolation::Software
            } else {
                Isolation::Hardware
            },
            asked: BTreeMap::new(),
            next: 0,
            volumes: records.iter().map(used).collect(),
            exchanges: Vec::new(),
            nodes: Vec::new(),
            counts: Counts::default(),
            created: Vec::new(),
        }
    }

    /// Plans commands by their times in ns, of a rack that was founded with these nodes.
    pub fn plan(&mut self, seed: u64, nodes: Vec<(NodeId, Addr)>, mut plan: Vec<(u64, Wish)>) {
        self.nodes = nodes;
        plan.sort_by_key(|(at, _)| core::cmp::Reverse(*at));
        (self.rng, self.plan) = (Rng::new(seed), plan);
    }

    /// True when all were answered, or their process is gone.
    pub fn are_over(&self) -> bool {
        self.plan.is_empty() && self.asked.is_empty()
    }

    /// When the next one begins, in ns.
    pub fn next_at(&self) -> Option<u64> {
        self.plan.last().map(|(at, _)| *at)
    }

    /// Begins no other.
    pub fn give_up(&mut self) {
        self.plan.clear();
    }

    /// Used volumes that were created since this was asked last.
    pub fn take_created(&mut self) -> Vec<VolumeRecord> {
        core::mem::take(&mut self.created)
    }

    /// The ends of all commands, at the end of a run.
    pub fn counts(&self, stored: &Snapshot) -> Counts {
        let is_whole = |&&(a, b): &&(VssdId, VssdId)| !is_replica(stored, a) && !is_replica(stored, b);
        let exchanged = self.exchanges.iter().filter(is_whole).count() as u32;
        Counts {
            exchanged,
            undone: self.exchanges.len() as u32 - exchanged,
            ..self.counts
        }
    }

    /// The command that is due, and the gateway that it goes to: the one that serves the volume, or leads the rack.
    pub fn begin(
        &mut self,
        now: u64,
        lead: usize,
        serves: impl Fn(VolumeId) -> usize,
        stored: &Snapshot,
    ) -> Option<(u64, usize, Command)> {
        let (_, wish) = self.plan.pop_if(|(at, _)| *at <= now)?;
        let Some((name, size_bytes, command)) = self.draw(wish, stored) else {
            self.counts.impossible += 1;
            return None;
        };
        let gateway = subject_of(&command, stored).map_or(lead, serves);
        self.next += 1;
        self.asked.insert(
            self.next,
            Asked {
                wish,
                name,
                size_bytes,
                gateway,
            },
        );
        Some((self.next, gateway, command))
    }

    fn draw(&mut self, wish: Wish, stored: &Snapshot) -> Option<(String, u64, Command)> {
        let candidates = |used: bool| -> Vec<&VolumeRecord> {
            let fits = |record: &&VolumeRecord| {
                let promise = self.volumes.get(&record.name);
                record.ready && promise.is_some_and(|promise| !promise.may_go && (promise.used || !used))
            };
            stored.volumes.iter().filter(fits).collect()
        };
        match wish {
            Wish::Create {
                pages,
                replicas,
                used,
            } => {
                let name = format!("c{}", self.next + 1);
                let promise = Promise {
                    used,
                    ..Promise::default()
                };
                self.volumes.insert(name.clone(), promise);
                let new = NewVolume {
                    name: name.clone(),
                    size_bytes: pages * 4096,
                    replicas,
                    durability: Durability::Memory,
                    isolation: self.isolation,
                    read_only: false,
                    nodes_within: base::Duration::ZERO,
                };
                Some((name, pages * 4096, Command::Create(new)))
            }
            Wish::Grow { pages } => {
                let found = candidates(false);
                let record = found.get(self.rng.below(found.len().max(1) as u64) as usize)?;
                let (name, size_bytes) = (record.name.clone(), record.size_bytes + pages * 4096);
                let command = Command::Resize {
                    name: name.clone(),
                    size_bytes,
                };
                Some((name, size_bytes, command))
            }
            Wish::Delete => {
                let unused = |record: &&&VolumeRecord| !self.volumes[&record.name].used;
                let name = candidates(false).iter().find(unused)?.name.clone();
                self.volumes.get_mut(&name)?.may_go = true;
                Some((name.clone(), 0, Command::Delete { name }))
            }
            Wish::Exchange => {
                let found = candidates(true);
                let sets = found.iter().flat_map(|record| &record.sets);
                let vssds: Vec<VssdId> = sets
                    .flat_map(|set| set.replicas.iter().map(|replica| VssdId(replica.vssd)))
                    .collect();
                let (a, b) = self.draw_pair(&vssds, stored)?;
                Some((String::new(), 0, Command::Exchange { a, b }))
            }
            Wish::Copies { replicas } => {
                let found = candidates(true);
                let record = found.get(self.rng.below(found.len().max(1) as u64) as usize)?;
                let name = record.name.clone();
                Some((String::new(), 0, Command::Replicate { name, replicas }))
            }
            wish => Some((String::new(), 0, Command::ChangeNodes(self.change_of(wish)?))),
        }
    }

    /// Two vSSDs that can exchange places.
    fn draw_pair(&mut self, vssds: &[VssdId], stored: &Snapshot) -> Option<(VssdId, VssdId)> {
        let count = vssds.len().max(1) as u64;
        let fits = |(a, b): &(VssdId, VssdId)| stored.clone().plan_exchange(*a, *b).is_ok();
        let mut tries = (0..TRIES).filter_map(|_| {
            let a = vssds.get(self.rng.below(count) as usize)?;
            Some((*a, *vssds.get(self.rng.below(count) as usize)?))
        });
        let pair = tries.find(fits)?;
        self.exchanges.push(pair);
        Some(pair)
    }

    fn change_of(&self, wish: Wish) -> Option<NodeChange> {
        let known = |node: NodeId| self.nodes.iter().copied().find(|(id, _)| *id == node);
        Some(match wish {
            Wish::Drain(node) => NodeChange::Drain(node),
            Wish::StopDrain(node) => NodeChange::StopDrain(node),
            Wish::Remove(node) => NodeChange::Remove(node),
            Wish::Add(node) => NodeChange::Add {
                nodes: vec![known(node)?],
                rebalances: true,
            },
            Wish::Replace { old, new } => NodeChange::Replace {
                old,
                new,
                addr: known(new).map(|(_, addr)| addr),
            },
            _ => return None,
        })
    }

    /// A gateway's process is gone, and what it was asked is not answered.
    pub fn gateway_lost(&mut self, gateway: usize) {
        let before = self.asked.len();
        self.asked.retain(|_, asked| asked.gateway != gateway);
        self.counts.unanswered += (before - self.asked.len()) as u32;
    }

    /// Takes an answer.
    pub fn answered(&mut self, id: u64, answer: Result<Done, Refusal>) {
        let Some(asked) = self.asked.remove(&id) else {
            return;
        };
        if answer.is_err() {
            self.counts.refused += u32::from(asked.wish != Wish::Exchange);
            return;
        }
        let Some(promise) = self.volumes.get_mut(&asked.name) else {
            return;
        };
        match (asked.wish, answer) {
            (Wish::Create { .. }, Ok(Done::Volume(record))) => {
                (promise.is_made, promise.size_min) = (true, asked.size_bytes);
                self.counts.created += 1;
                if promise.used {
                    self.created.push(*record);
                }
            }
            (Wish::Grow { .. }, _) => {
                promise.size_min = promise.size_min.max(asked.size_bytes);
                self.counts.grown += 1;
            }
            (Wish::Delete, _) => {
                promise.is_gone = true;
                self.counts.deleted += 1;
            }
            _ => {}
        }
    }

    /// A broken promise. Some vSSDs have left their place otherwise than in an exchange.
    pub fn broken(&self, stored: &Snapshot, moved: &BTreeSet<VssdId>) -> Option<String> {
        for (name, promise) in &self.volumes {
            let record = stored.volume(name);
            if promise.is_gone && record.is_some() {
                return Some(format!("volume {name} was deleted and is there"));
            }
            if promise.may_go {
                continue;
            }
            match record {
                None if promise.is_made => {
                    return Some(format!("volume {name} was created and is not there"));
                }
                Some(record) if promise.is_made && !record.ready => {
                    return Some(format!("volume {name} was answered to be ready and is not"));
                }
                Some(record) if record.size_bytes < promise.size_min => {
                    return Some(format!(
                        "volume {name} has {} bytes, {} were promised",
                        record.size_bytes, promise.size_min
                    ));
                }
                _ => {}
            }
        }
        self.half_exchanged(stored, moved)
    }

    /// Two vSSDs of which one alone has left its place. One of them may have been exchanged with a third, so that their
    /// own exchange was refused.
    fn half_exchanged(&self, stored: &Snapshot, moved: &BTreeSet<VssdId>) -> Option<String> {
        let is_gone = |vssd: VssdId| !is_replica(stored, vssd);
        let is_explained = |vssd: VssdId| {
            if moved.contains(&vssd) {
                return true;
            }
            let mut pairs = self.exchanges.iter();
            pairs.any(|&(a, b)| (a == vssd || b == vssd) && is_gone(a) && is_gone(b))
        };
        let mut half = self.exchanges.iter().filter(|(a, b)| is_gone(*a) != is_gone(*b));
        let (a, b) = half.find(|(a, b)| !is_explained(if is_gone(*a) { *a } else { *b }))?;
        Some(format!("vSSDs {} and {} have exchanged places by half", a.0, b.0))
    }

    /// A volume that must be there, and its least size.
    pub fn promised(&self) -> impl Iterator<Item = (&str, u64)> {
        let there = |(_, promise): &(&String, &Promise)| promise.size_min > 0 && !promise.may_go;
        let volumes = self.volumes.iter().filter(there);
        volumes.map(|(name, promise)| (name.as_str(), promise.size_min))
    }
}

/// The volume that a command is about; of an exchange, that of the first vSSD.
fn subject_of(command: &Command, stored: &Snapshot) -> Option<VolumeId> {
    let record = match command {
        Command::Resize { name, .. } | Command::Delete { name } | Command::Replicate { name, .. } => {
            stored.volume(name)
        }
        Command::Exchange { a, .. } => {
            let has = |record: &&VolumeRecord| record.vssds().any(|(vssd, ..)| vssd == *a);
            stored.volumes.iter().find(has)
        }
        _ => None,
    };
    record.map(VolumeRecord::volume)
}

fn is_replica(stored: &Snapshot, vssd: VssdId) -> bool {
    let sets = stored.volumes.iter().flat_map(|volume| &volume.sets);
    sets.flat_map(|set| &set.replicas)
        .any(|replica| replica.vssd == vssd.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rack::registry::{ReplicaRecord, SetRecord};

    fn stored(vssds: &[u32]) -> Snapshot {
        let replicas = vssds.iter().map(|&vssd| ReplicaRecord { vssd, node: 1 });
        let set = SetRecord {
            replicas: replicas.collect(),
            ..SetRecord::default()
        };
        let volume = VolumeRecord {
            id: 1,
            identity: Default::default(),
            name: "v".to_owned(),
            size_bytes: 4096,
            durability: Durability::Memory,
            read_only: false,
            ready: true,
            lead: None,
            sets: vec![set],
        };
        Snapshot {
            volumes: vec![volume],
            ..Snapshot::default()
        }
    }

    /// Bug: the checker called the exchange of vSSDs 3 and 2 half done. Cause: it was refused, since 3 was just being
    /// exchanged with 1, and the checker looked at each exchange by itself. Fix: a vSSD may have gone with another one.
    #[test]
    fn an_exchange_that_was_refused_is_not_half_done_because_another_is_done() {
        let mut commands = Commands::new(&[]);
        let pair = |a, b| (VssdId(a), VssdId(b));
        let none = BTreeSet::new();
        commands.exchanges = vec![pair(3, 2), pair(3, 1)];
        assert_eq!(commands.broken(&stored(&[1, 2, 3]), &none), None);
        assert_eq!(commands.broken(&stored(&[2, 7, 8]), &none), None);
        let counts = commands.counts(&stored(&[2, 7, 8]));
        assert_eq!((counts.exchanged, counts.undone), (1, 1));
        assert!(commands.broken(&stored(&[1, 2, 8]), &none).is_some());
        commands.exchanges = vec![pair(3, 2)];
        assert!(commands.broken(&stored(&[2, 7]), &none).is_some());
        let moved = BTreeSet::from([VssdId(3)]);
        assert_eq!(commands.broken(&stored(&[2, 7]), &moved), None);
    }
}

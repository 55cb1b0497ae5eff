//! Two vSSDs exchange their nodes while clients go on: `rack::exchange`, driven with the registry and the gateway.
//!
//! The registry is locked for each step, not for the whole, which takes as long as copying two vSSDs does. A crash at any
//! step leaves a registry from which the next start goes on ([`load_decided`], [`Plane::settle`]).

use super::volumes::{Guard, reason};
use super::{Plane, Refusal};
use crate::control::api;
use base::{VolumeId, VssdId};
use host::gateway::VolumeState;
use rack::exchange::{ChangeState, Exchange, Next};
use rack::registry::{Registry, RegistryError, Snapshot};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A copy that is not complete after this is given up.
const JOINED_WITHIN: Duration = Duration::from_secs(60 * 60);
/// Once decided it takes a moment, unless a node is away.
const OVER_WITHIN: Duration = Duration::from_secs(30);
/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The records at a start. An exchange that was not decided is undone, durably, before anybody acts on them.
pub fn load_decided(registry: &mut dyn Registry) -> Result<Snapshot, RegistryError> {
    let mut snapshot = registry.load()?;
    if let Some((_, true)) = Exchange::resume(&mut snapshot) {
        registry.store(&snapshot)?;
        return registry.load();
    }
    Ok(snapshot)
}

impl Plane {
    /// Lets two vSSDs of different replica sets exchange their nodes; returns when it is over.
    pub fn exchange(&self, vssds: api::Exchange) -> Result<api::Exchanged, Refusal> {
        let (a, b) = (VssdId(vssds.a), VssdId(vssds.b));
        let mut registry = self.registry()?;
        self.finish_exchange(&mut registry)?;
        let mut snapshot = registry.load()?;
        let exchange = Exchange::plan(&mut snapshot, a, b)?;
        for &volume in exchange.volumes() {
            if self.gateway(move |gateway, _| gateway.volume_state(volume))? != Some(VolumeState::Ready) {
                return Err(Refusal::Failed(
                    "a volume of these vSSDs is not ready: `switchyard volume list` tells which".into(),
                ));
            }
        }
        registry.store(&snapshot)?;
        // Under the same lock: a volume that grew in between would take the new record for one that is in hand.
        self.hand_on(&snapshot)?;
        drop(registry);
        self.drive(&exchange)
    }

    /// Follows an exchange to its end.
    fn drive(&self, exchange: &Exchange) -> Result<api::Exchanged, Refusal> {
        let began = Instant::now();
        let mut until = began + JOINED_WITHIN;
        let mut refused = None;
        loop {
            if self.stopping.load(Ordering::Relaxed) {
                return Err(Refusal::Failed(
                    "the rack stops; what was begun is undone or completed at its next start".into(),
                ));
            }
            if !self.gateway(|gateway, _| gateway.leads())? {
                return Err(Refusal::Failed(
                    "another gateway has taken over, and undoes or completes what was begun".into(),
                ));
            }
            let mut registry = self.registry()?;
            let mut snapshot = registry.load()?;
            let states = self.change_states(exchange.volumes(), &snapshot)?;
            let state = |volume| {
                states
                    .iter()
                    .find(|(id, _)| *id == volume)
                    .map_or(ChangeState::Done, |s| s.1)
            };
            refused = refused.or(states.iter().find_map(|(_, state)| match state {
                ChangeState::Failed(vssd, code) => Some((*vssd, *code)),
                _ => None,
            }));
            // With one of its volumes deleted an exchange makes no sense.
            let lost = states.len() < exchange.volumes().len();
            let late = Instant::now() >= until;
            if late && exchange.is_decided(&snapshot) {
                return Err(Refusal::Failed(
                    "decided, but some nodes do not answer, and writes to these vSSDs wait for them: `switchyard \
                     status` shows which; it is completed when they are back"
                        .into(),
                ));
            }
            match exchange.next(&mut snapshot, late || lost, state) {
                Next::Wait => {
                    drop(registry);
                    std::thread::sleep(LOOK_EVERY);
                }
                Next::Store => {
                    registry.store(&snapshot)?;
                    self.hand_on(&snapshot)?;
                    until = Instant::now() + OVER_WITHIN;
                }
                Next::Over(true) => {
                    registry.store(&snapshot)?;
                    let seconds = began.elapsed().as_secs_f64();
                    return Ok(api::Exchanged { seconds });
                }
                Next::Over(false) => {
                    registry.store(&snapshot)?;
                    let why = match refused {
                        Some((vssd, code)) => format!("vSSD {}: {}", vssd.0, reason(code)),
                        None if lost => "a volume was deleted".into(),
                        None => "the nodes did not copy in time".into(),
                    };
                    return Err(Refusal::Failed(format!("nothing was exchanged: {why}")));
                }
            }
        }
    }

    /// Where the changes of those volumes are that are still there.
    fn change_states(
        &self,
        volumes: &[VolumeId],
        snapshot: &Snapshot,
    ) -> Result<Vec<(VolumeId, ChangeState)>, Refusal> {
        let known = |volume: &&VolumeId| snapshot.volumes.iter().any(|record| record.volume() == **volume);
        let known: Vec<VolumeId> = volumes.iter().filter(known).copied().collect();
        self.gateway(move |gateway, _| {
            known
                .into_iter()
                .map(|volume| (volume, gateway.change_state(volume)))
                .collect()
        })
    }

    /// Hands the records of volumes that change on to the gateway.
    fn hand_on(&self, snapshot: &Snapshot) -> Result<(), Refusal> {
        let records: Vec<_> = snapshot.exchanging().cloned().collect();
        self.gateway(move |gateway, now| {
            for record in &records {
                gateway.change_sets(now, record);
            }
        })
    }

    /// Notes that an exchange which was decided before is over, if it is.
    pub(super) fn finish_exchange(&self, registry: &mut Guard<'_>) -> Result<(), Refusal> {
        let mut snapshot = registry.load()?;
        let decided = snapshot.volumes.iter().flat_map(|volume| &volume.sets);
        if decided.clone().any(|set| set.joining.is_some())
            || decided.clone().all(|set| set.leaving.is_none())
        {
            // One is being prepared by another request, or there is none.
            return Ok(());
        }
        let Some((exchange, _)) = Exchange::resume(&mut snapshot) else {
            return Ok(());
        };
        let states = self.change_states(exchange.volumes(), &snapshot)?;
        let state = |volume| {
            states
                .iter()
                .find(|(id, _)| *id == volume)
                .map_or(ChangeState::Done, |s| s.1)
        };
        if let Next::Over(_) = exchange.next(&mut snapshot, false, state) {
            registry.store(&snapshot)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::MemoryRegistry;
    use rack::registry::{ReplicaRecord, SetRecord, VolumeRecord};

    #[test]
    fn a_start_undoes_what_was_not_decided_and_keeps_what_was() {
        let volume = |id: u32| VolumeRecord {
            id,
            name: format!("v{id}"),
            size_bytes: 4096,
            durability: Default::default(),
            read_only: false,
            ready: true,
            sets: vec![SetRecord {
                pages: 1,
                channels: 1,
                replicas: vec![ReplicaRecord {
                    vssd: id,
                    node: id as u8,
                }],
                ..SetRecord::default()
            }],
        };
        let mut registry = MemoryRegistry::default();
        let mut snapshot = registry.load().unwrap();
        snapshot.volumes = vec![volume(1), volume(2)];
        snapshot.next_vssd = 2;
        let exchange = Exchange::plan(&mut snapshot, VssdId(1), VssdId(2)).unwrap();
        registry.store(&snapshot).unwrap();
        let undone = load_decided(&mut registry).unwrap();
        assert_eq!(undone, registry.load().unwrap(), "durably");
        assert_eq!(
            undone.volumes[0].sets[0].replicas,
            snapshot.volumes[0].sets[0].replicas
        );
        assert_eq!(undone.volumes[0].sets[0].leaving.unwrap().vssd, 3);

        snapshot.epoch = undone.epoch;
        assert_eq!(
            exchange.next(&mut snapshot, false, |_| ChangeState::Joined),
            Next::Store
        );
        registry.store(&snapshot).unwrap();
        let kept = load_decided(&mut registry).unwrap();
        assert_eq!(
            kept.volumes[0].sets[0].replicas[0],
            ReplicaRecord { vssd: 3, node: 2 }
        );
        assert_eq!(kept.volumes[0].sets[0].leaving.unwrap().vssd, 1);
    }
}

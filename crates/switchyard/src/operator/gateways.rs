//! Gateways that share a registry: each enters itself, has controller ids of its own, and refers NVMe/TCP hosts to the
//! others.

use crate::control::api::Lead;
use crate::failure::Failure;
use base::{Duration, VolumeId};
use host::operator::Role;
use rack::level::{Mismatch, Software};
use rack::registry::{GatewayRecord, Registry, RegistryError, Snapshot, VolumeRecord};
use runtime::Away;
use std::collections::BTreeSet;
use std::net::SocketAddr;

/// Gateways of a rack: each has controller ids of its own, of which the protocol has 65,519.
const GATEWAYS_MAX: usize = 15;
/// Controller ids of each.
const CNTLIDS: u16 = 4096;
/// A gateway that does not answer for this long is taken for gone, while the nodes answer: its volumes are served elsewhere
/// within two seconds.
pub const SILENT_AFTER: Duration = Duration::from_secs(1);
/// Between two looks at the records. Whoever changes them tells the others, which then look at once.
pub const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Between two questions whether the others are there.
pub const ASK_EVERY: Duration = Duration::from_millis(100);
/// Attempts to enter a registry in which others write, too.
const TRIES: u32 = 10;
/// After this a registry that failed is asked again.
const TRY_AFTER: std::time::Duration = std::time::Duration::from_millis(200);

/// Refuses a gateway that does not know the rack's level, before it stores anything.
pub fn check_level(snapshot: &Snapshot, software: &Software) -> anyhow::Result<()> {
    let checked = Mismatch::check(snapshot.rack_level(), software);
    checked.map_err(|mismatch| Failure::Usage(mismatch.to_string()).into())
}

/// Enters a gateway, and whatever else `note` changes; returns the records and the gateway's number.
pub fn enter(
    registry: &mut dyn Registry,
    record: &GatewayRecord,
    note: impl Fn(&mut Snapshot),
) -> anyhow::Result<(Snapshot, usize)> {
    let mut left = TRIES;
    loop {
        let mut snapshot = registry.load()?;
        if let Some(software) = &record.software {
            check_level(&snapshot, software)?;
        }
        let before = snapshot.clone();
        note(&mut snapshot);
        let known = snapshot
            .gateways
            .iter()
            .position(|known| known.addr == record.addr);
        let number = known.unwrap_or(snapshot.gateways.len());
        if number >= GATEWAYS_MAX {
            let text = format!("the registry has {GATEWAYS_MAX} gateways already, as many as there may be");
            anyhow::bail!(Failure::Usage(text));
        }
        match known {
            Some(number) => snapshot.gateways[number] = record.clone(),
            None => snapshot.gateways.push(record.clone()),
        }
        if snapshot == before {
            return Ok((snapshot, number));
        }
        match registry.store(&snapshot) {
            Ok(()) => return Ok((registry.load()?, number)),
            Err(RegistryError::Conflict) if left > 0 => left -= 1,
            // It may be stored, or may be soon: the next attempt reads again, and a store that is late conflicts with it.
            Err(RegistryError::Unavailable(_)) if left > 0 => {
                left -= 1;
                std::thread::sleep(TRY_AFTER);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// The gateway that leads a volume.
pub(super) fn lead_of(snapshot: &Snapshot, volume: &VolumeRecord) -> Option<Lead> {
    let lead = snapshot.lead_of(volume)?;
    let known = snapshot
        .gateways
        .iter()
        .find(|known| known.addr == lead.gateway)?;
    Some(Lead {
        gateway: known.addr.clone(),
        control: known.control.clone(),
        nbd: known.nbd.clone(),
        session: lead.session,
    })
}

/// The volumes that this gateway does not serve, for NBD clients that ask for one.
pub(super) fn away(snapshot: &Snapshot, serves: &BTreeSet<VolumeId>, role: Role) -> Vec<Away> {
    let Role::Shared(shared) = role else {
        return Vec::new();
    };
    let others = snapshot
        .served()
        .filter(|record| !serves.contains(&record.volume()));
    let away = |record: &VolumeRecord| {
        let lead = lead_of(snapshot, record).filter(|lead| lead.gateway != shared.me.to_string());
        Away {
            volume: record.volume(),
            name: record.name.clone(),
            is_elsewhere: lead.is_some(),
            direction: direction(&record.name, lead.as_ref()),
        }
    };
    others.map(away).collect()
}

fn direction(name: &str, lead: Option<&Lead>) -> String {
    match lead {
        None => format!("no gateway serves volume `{name}` now: one will within seconds, try again then"),
        Some(Lead { nbd: Some(nbd), .. }) => {
            format!("another gateway serves volume `{name}`: connect to nbd://{nbd}/{name}")
        }
        Some(lead) => format!(
            "the gateway at {} serves volume `{name}`: ask {} where its clients connect",
            lead.gateway, lead.control
        ),
    }
}

/// The controller ids of a gateway of this number.
pub fn cntlids(number: usize) -> core::ops::RangeInclusive<u16> {
    let first = number as u16 * CNTLIDS;
    first + 1..=first + CNTLIDS - 1
}

/// Addresses of the other gateways for NVMe/TCP hosts.
pub(super) fn others(snapshot: &Snapshot, role: Role) -> Vec<SocketAddr> {
    let Role::Shared(shared) = role else {
        return Vec::new();
    };
    let me = shared.me.to_string();
    let others = snapshot.gateways.iter().filter(|record| record.addr != me);
    others
        .filter_map(|record| record.nvme.as_ref()?.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::FileRegistry;
    use host::operator::Shared;
    use rack::level::Levels;
    use rack::registry::LeadRecord;

    fn record(port: u16) -> GatewayRecord {
        GatewayRecord {
            addr: format!("10.0.0.1:{port}"),
            nvme: Some(format!("10.0.0.1:{}", port + 1)),
            nbd: Some(format!("10.0.0.1:{}", port + 2)),
            control: "127.0.0.1:1".into(),
            software: None,
        }
    }

    fn shared(me: base::Addr) -> Shared {
        Shared {
            me,
            silent_after: SILENT_AFTER,
            lead_looks_every: LOOK_EVERY,
            others_look_every: ASK_EVERY,
            session_min: 0,
        }
    }

    #[test]
    fn gateways_keep_their_numbers_and_name_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let mut registry = FileRegistry::open(dir.path()).unwrap();
        for (port, number) in [(10, 0), (20, 1), (10, 0)] {
            assert_eq!(enter(&mut registry, &record(port), |_| {}).unwrap().1, number);
        }
        let snapshot = registry.load().unwrap();
        let role = Role::Shared(shared(base::Addr::new([10, 0, 0, 1], 10)));
        assert_eq!(others(&snapshot, role), ["10.0.0.1:21".parse().unwrap()]);
        for port in 30..43 {
            enter(&mut registry, &record(port), |_| {}).unwrap();
        }
        assert!(enter(&mut registry, &record(50), |_| {}).is_err());
    }

    #[test]
    fn a_gateway_that_does_not_know_the_level_stores_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut registry = FileRegistry::open(dir.path()).unwrap();
        let mut raised = registry.load().unwrap();
        raised.level = 2;
        registry.store(&raised).unwrap();
        let before = registry.load().unwrap();
        let held = |levels| GatewayRecord {
            software: Some(Software::own(levels)),
            ..record(10)
        };
        let error = enter(&mut registry, &held(Levels::UNTOLD), |_| {})
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("level 2") && error.contains("--level-max"),
            "{error}"
        );
        assert_eq!(registry.load().unwrap(), before);
        enter(&mut registry, &held(Levels::BUILD), |_| {}).unwrap();
    }

    #[test]
    fn clients_are_told_who_serves_a_volume_and_hung_up_only_if_another_gateway_does() {
        let me = base::Addr::new([10, 0, 0, 1], 10);
        let other = base::Addr::new([10, 0, 0, 1], 20);
        let volume = |id, lead| VolumeRecord {
            id,
            name: format!("v{id}"),
            ready: true,
            lead: Some(lead),
            ..VolumeRecord::default()
        };
        let mut given = LeadRecord::new(me, 3);
        given.give_back(Some(other));
        let (mine, others) = (LeadRecord::new(me, 1), LeadRecord::new(other, 2));
        let snapshot = Snapshot {
            gateways: vec![record(10), record(20)],
            volumes: vec![
                volume(1, mine.clone()),
                volume(2, others),
                volume(3, given),
                volume(4, mine),
            ],
            ..Snapshot::default()
        };
        let serves = [VolumeId(1)].into();
        let role = Role::Shared(shared(me));
        let away = away(&snapshot, &serves, role);
        let told: Vec<_> = away
            .iter()
            .map(|away| (away.volume.0, away.is_elsewhere))
            .collect();
        // The fourth one is only being closed, or opened.
        assert_eq!(told, [(2, true), (3, false), (4, false)]);
        assert!(
            away[0].direction.ends_with("connect to nbd://10.0.0.1:22/v2"),
            "{}",
            away[0].direction
        );
        let alone = super::away(&snapshot, &serves, Role::Alone { session: 1 });
        assert!(alone.is_empty());
    }

    #[test]
    fn controller_ids_are_apart() {
        let ranges: Vec<_> = (0..GATEWAYS_MAX).map(cntlids).collect();
        assert!(ranges.windows(2).all(|pair| pair[0].end() < pair[1].start()));
        assert!(*ranges[0].start() == 1 && *ranges[GATEWAYS_MAX - 1].end() < 0xfff0);
    }
}

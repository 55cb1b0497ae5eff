//! Gateways that share a registry: this one looks from time to time who leads, and serves the volumes or stands by
//! (`rack::lead`, `host::gateway`). Its NVMe/TCP hosts see that as the ANA state of every volume.

use super::{Plane, Refusal};
use crate::datadir;
use crate::failure::Failure;
use crate::registry::FileRegistry;
use base::{Addr, Duration};
use rack::exchange::Exchange;
use rack::lead::{Next, Watch};
use rack::registry::{GatewayRecord, Registry, RegistryError, Snapshot};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use wire::nvme::AnaState;

/// A lead that does not answer for this long is taken for gone. Longer than a ToR takes to start again.
const SILENT_AFTER: Duration = Duration::from_secs(3);
/// Gateways of a rack: each has controller ids of its own, of which the protocol has 65,519.
const GATEWAYS_MAX: usize = 15;
/// Controller ids of each.
const CNTLIDS: u16 = 4096;
/// Attempts to enter a registry in which others write, too.
const TRIES: u32 = 10;

/// What a gateway needs to look.
pub struct Follower {
    /// The shared file, written whoever leads.
    registry: FileRegistry,
    watch: Watch,
    session: Arc<AtomicU32>,
    me: String,
}

impl Follower {
    /// Of the gateway at `me`. `session` is kept at that of its lead, or at the last one.
    pub fn new(registry: FileRegistry, me: Addr, session: Arc<AtomicU32>) -> Self {
        Self {
            registry,
            watch: Watch::new(me, SILENT_AFTER),
            session,
            me: me.to_string(),
        }
    }
}

/// Enters a gateway, and whatever else `note` changes; returns the records and the gateway's number.
pub fn enter(
    registry: &mut FileRegistry,
    record: &GatewayRecord,
    note: impl Fn(&mut Snapshot),
) -> anyhow::Result<(Snapshot, usize)> {
    let mut left = TRIES;
    loop {
        let mut snapshot = registry.load()?;
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
            Err(error) => return Err(error.into()),
        }
    }
}

/// The controller ids of a gateway of this number.
pub fn cntlids(number: usize) -> core::ops::RangeInclusive<u16> {
    let first = number as u16 * CNTLIDS;
    first + 1..=first + CNTLIDS - 1
}

/// Where the other gateways serve NVMe/TCP hosts.
fn others(snapshot: &Snapshot, me: &str) -> Vec<SocketAddr> {
    let others = snapshot.gateways.iter().filter(|record| record.addr != me);
    others
        .filter_map(|record| record.nvme.as_ref()?.parse().ok())
        .collect()
}

impl Plane {
    /// Looks who leads and does what follows. True if this gateway does, or if it is the only one there can be.
    pub fn look(&self) -> Result<bool, Refusal> {
        let Some(follower) = &self.follower else {
            return Ok(true);
        };
        let mut follower = follower.lock().unwrap_or_else(PoisonError::into_inner);
        let mut snapshot = follower.registry.load()?;
        let session_min = datadir::next_session(0).unwrap_or(0);
        let mut watch = follower.watch.clone();
        let (next, watch, mut snapshot) = self.gateway(move |gateway, now| {
            let next = gateway.look(now, &mut watch, &mut snapshot, session_min);
            (next, watch, snapshot)
        })?;
        follower.watch = watch;
        let leads = match next {
            Next::Keep => true,
            Next::StandBy(_) => false,
            Next::Take(session) => {
                // As at a start: an exchange that was not decided is undone.
                let _ = Exchange::resume(&mut snapshot);
                match follower.registry.store(&snapshot) {
                    Ok(()) => {}
                    // Somebody was faster: look again.
                    Err(RegistryError::Conflict) => return Ok(false),
                    Err(error) => return Err(error.into()),
                }
                follower.session.store(session, Ordering::SeqCst);
                let records = snapshot.clone();
                self.gateway(move |gateway, now| gateway.serve(now, session, &records))?;
                true
            }
        };
        let state = if leads {
            AnaState::Optimized
        } else {
            AnaState::Inaccessible
        };
        self.nvme
            .follow(&snapshot, state, &others(&snapshot, &follower.me));
        drop(follower);
        if leads && snapshot.volumes.iter().any(|record| !record.ready) {
            // The last lead began to make it.
            self.settle()?;
        }
        Ok(leads)
    }

    /// Before a clean stop: hosts go to other paths.
    pub(super) fn send_away(&self) {
        if self.follower.is_some() {
            self.nvme.set_state(AnaState::Inaccessible);
        }
    }

    /// After a clean stop: another gateway need not wait.
    pub(super) fn give_lead_back(&self) -> Result<(), Refusal> {
        let Some(follower) = &self.follower else {
            return Ok(());
        };
        let mut follower = follower.lock().unwrap_or_else(PoisonError::into_inner);
        let mut snapshot = follower.registry.load()?;
        let me = follower.me.clone();
        if let Some(lead) = snapshot.lead.as_mut().filter(|lead| lead.gateway == me) {
            lead.gateway.clear();
            follower.registry.store(&snapshot)?;
        }
        Ok(())
    }
}

/// Where a gateway's follower is kept.
pub(super) type Kept = Option<Mutex<Follower>>;

#[cfg(test)]
mod tests {
    use super::*;

    fn record(port: u16) -> GatewayRecord {
        GatewayRecord {
            addr: format!("10.0.0.1:{port}"),
            nvme: Some(format!("10.0.0.1:{}", port + 1)),
            control: "127.0.0.1:1".into(),
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
        assert_eq!(others(&snapshot, "10.0.0.1:10"), ["10.0.0.1:21".parse().unwrap()]);
        for port in 30..43 {
            enter(&mut registry, &record(port), |_| {}).unwrap();
        }
        assert!(enter(&mut registry, &record(50), |_| {}).is_err());
    }

    #[test]
    fn controller_ids_are_apart() {
        let ranges: Vec<_> = (0..GATEWAYS_MAX).map(cntlids).collect();
        assert!(ranges.windows(2).all(|pair| pair[0].end() < pair[1].start()));
        assert!(*ranges[0].start() == 1 && *ranges[GATEWAYS_MAX - 1].end() < 0xfff0);
    }
}

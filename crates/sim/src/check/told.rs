//! Hosts tell what an operator has to know, and the whole story: every collection that begins ends, every lease that is
//! granted ends or lapses, every medium that has failed was told of. Members that compare what they have find no difference.
//!
//! A host that goes down tells no more, and what it was at is over.

use base::event::Kind;
use base::{Duration, Instant, VssdId};
use std::collections::{BTreeMap, BTreeSet};

/// A lease that nobody renews has lapsed, and was told to have, within this.
const LEASE_TOLD: Duration = Duration::from_secs(4);
/// The longest that a collection of the small flash of a simulated rack takes, whatever else goes on.
const COLLECTION_MAX: Duration = Duration::from_secs(20);

type Key = (usize, u32);

/// Watches what hosts tell.
#[derive(Debug, Default)]
pub struct ToldChecker {
    /// By host and vSSD: since when.
    collections: BTreeMap<Key, Instant>,
    /// By host and vSSD: when it was granted or renewed.
    leases: BTreeMap<Key, Instant>,
    latched: BTreeSet<Key>,
}

impl ToldChecker {
    /// A host tells of something. Says what is wrong with that, if anything is.
    pub fn told(&mut self, now: Instant, host: usize, kind: &Kind) -> Result<(), String> {
        match *kind {
            Kind::CollectionBegun { vssd, .. } => match self.collections.insert((host, vssd.0), now) {
                Some(_) => Err(format!("vSSD {} begins a collection within another", vssd.0)),
                None => Ok(()),
            },
            Kind::CollectionEnded { vssd, .. } => match self.collections.remove(&(host, vssd.0)) {
                Some(_) => Ok(()),
                None => Err(format!("vSSD {} ends a collection that never began", vssd.0)),
            },
            Kind::LeaseGranted { vssd, .. } => match self.leases.insert((host, vssd.0), now) {
                Some(_) => Err(format!("vSSD {} is granted the lease that it holds", vssd.0)),
                None => Ok(()),
            },
            Kind::LeaseRenewed { vssd } => match self.leases.get_mut(&(host, vssd.0)) {
                Some(since) => {
                    *since = now;
                    Ok(())
                }
                None => Err(format!("vSSD {} renews a lease that it does not hold", vssd.0)),
            },
            Kind::LeaseEnded { vssd, .. } | Kind::LeaseLapsed { vssd, .. } => {
                match self.leases.remove(&(host, vssd.0)) {
                    Some(_) => Ok(()),
                    None => Err(format!("a lease of vSSD {} ends that it does not hold", vssd.0)),
                }
            }
            Kind::ReplicasDiffer { vssd, peer, page, .. } => Err(format!(
                "vSSDs {} and {} have page {page} otherwise",
                vssd.0, peer.0
            )),
            Kind::MediumLatched { vssd, .. } => {
                self.latched.insert((host, vssd.0));
                Ok(())
            }
            Kind::VssdClosed { vssd } => {
                self.collections.remove(&(host, vssd.0));
                self.latched.remove(&(host, vssd.0));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// True while the vSSD of a host collects.
    pub fn collects(&self, host: usize, vssd: VssdId) -> bool {
        self.collections.contains_key(&(host, vssd.0))
    }

    /// A host went down.
    pub fn crashed(&mut self, host: usize) {
        self.collections.retain(|(of, _), _| *of != host);
        self.leases.retain(|(of, _), _| *of != host);
        self.latched.retain(|(of, _)| *of != host);
    }

    /// A host is at rest, with these vSSDs latched. Says what it has not told.
    pub fn at_rest(&self, now: Instant, host: usize, latched: &[VssdId]) -> Result<(), String> {
        let of_host = |open: &BTreeMap<Key, Instant>, within: Duration| {
            let mut late = open
                .iter()
                .filter(|((of, _), since)| *of == host && now.since(**since) > within);
            late.next().map(|((_, vssd), since)| (*vssd, *since))
        };
        if let Some((vssd, since)) = of_host(&self.leases, LEASE_TOLD) {
            let since = since.as_nanos();
            return Err(format!(
                "the lease of vSSD {vssd}, last renewed at {since} ns, neither ends nor lapses"
            ));
        }
        if let Some((vssd, since)) = of_host(&self.collections, COLLECTION_MAX)
            && !self.latched.contains(&(host, vssd))
        {
            let since = since.as_nanos();
            return Err(format!(
                "the collection of vSSD {vssd}, begun at {since} ns, does not end"
            ));
        }
        match latched
            .iter()
            .find(|vssd| !self.latched.contains(&(host, vssd.0)))
        {
            Some(vssd) => Err(format!("vSSD {} is latched and did not tell", vssd.0)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::event::{Collection, Grant, MediumOperation};

    const VSSD: VssdId = VssdId(5);
    const NODE: usize = 1;
    const TOR: usize = 0;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    fn begun() -> Kind {
        Kind::CollectionBegun {
            vssd: VSSD,
            collection: Collection::Soft,
            grant: Grant::Accepted,
        }
    }

    fn granted() -> Kind {
        Kind::LeaseGranted {
            vssd: VSSD,
            collection: Collection::Soft,
        }
    }

    #[test]
    fn what_begins_has_to_end() {
        let mut checker = ToldChecker::default();
        checker.told(at(0), NODE, &begun()).unwrap();
        checker.told(at(0), TOR, &granted()).unwrap();
        assert!(checker.told(at(1), NODE, &begun()).is_err(), "twice");
        assert!(checker.at_rest(at(100), NODE, &[]).is_err());
        assert!(checker.at_rest(at(100), TOR, &[]).is_err());
        let held = Duration::ZERO;
        checker
            .told(at(1), TOR, &Kind::LeaseEnded { vssd: VSSD, held })
            .unwrap();
        assert!(
            checker
                .told(at(1), TOR, &Kind::LeaseEnded { vssd: VSSD, held })
                .is_err()
        );
        checker.crashed(NODE);
        for host in [NODE, TOR] {
            assert_eq!(checker.at_rest(at(100), host, &[]), Ok(()));
        }
    }

    #[test]
    fn a_medium_that_failed_has_to_be_told_of() {
        let mut checker = ToldChecker::default();
        assert!(checker.at_rest(at(1), NODE, &[VSSD]).is_err());
        let operation = MediumOperation::Flush;
        let latched = Kind::MediumLatched {
            vssd: VSSD,
            operation,
        };
        checker.told(at(1), NODE, &latched).unwrap();
        assert_eq!(checker.at_rest(at(1), NODE, &[VSSD]), Ok(()));
    }
}

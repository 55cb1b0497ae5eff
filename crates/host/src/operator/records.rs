//! The registry as the operator uses it: one load or compare-and-swap at a time.
//!
//! Invariant: [`settled`](Records::settled) tells records only while they are known to be the stored ones. A store
//! whose outcome is unknown may still happen later; so the operator loads, and if the old epoch is still there it stores
//! the old records again, under a new epoch. From then on the late store conflicts.
//!
//! A registry may tell an older epoch than before: somebody has put an older copy in its place. It counts as one that does not answer, as
//! the members may be others by now.

use base::{Duration, Instant, time::earliest};
use rack::registry::{RegistryError, Snapshot};
use std::collections::VecDeque;

/// A registry that failed is asked again after this.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// A command that only looks does not wait longer for the registry's answer.
const SLOW_AFTER: Duration = Duration::from_millis(500);

/// A call of the registry.
#[derive(Clone, Debug)]
pub enum RegistryCall {
    /// Load the records.
    Load,
    /// Replace the stored records if they have the same epoch; the new ones get the next epoch.
    Store(Box<Snapshot>),
}

#[derive(Debug)]
enum Asked {
    Load,
    /// Loads, as the outcome of a store is unknown.
    Resolve(u64),
    Store(Box<Snapshot>),
    /// Stores what was loaded, to keep a late store of the same epoch from happening.
    Fence(Box<Snapshot>),
}

/// The registry's records, as far as they are known.
#[derive(Debug, Default)]
pub(super) struct Records {
    known: Option<Box<Snapshot>>,
    /// The newest epoch that it has told.
    newest: u64,
    /// Those that were known last, for who only looks while the registry does not answer.
    last: Option<Box<Snapshot>>,
    /// Since when it does not answer, and why.
    away: Option<(Instant, RegistryError)>,
    asked: Option<Asked>,
    /// When that was asked.
    asked_at: Instant,
    /// Call to make at that time, after a failure.
    again: Option<(Instant, Option<u64>)>,
    failure: Option<RegistryError>,
    calls: VecDeque<RegistryCall>,
}

impl Records {
    /// The stored records, unless the registry is at work on them.
    pub fn settled(&self) -> Option<&Snapshot> {
        let settled = self.asked.is_none() && self.again.is_none();
        self.known.as_deref().filter(|_| settled)
    }

    /// The records that were stored when the registry answered last, while it does not.
    pub fn stale(&self) -> Option<&Snapshot> {
        let last = self.last.as_deref().or(self.known.as_deref());
        self.away.as_ref().and(last)
    }

    /// The stored records, or those of before while the registry does not answer.
    pub fn seen(&self) -> Option<&Snapshot> {
        self.settled().or_else(|| self.stale())
    }

    /// Since when the registry does not answer, and why.
    pub fn away(&self) -> Option<&(Instant, RegistryError)> {
        self.away.as_ref()
    }

    /// Forgets what is known, so that it is loaded.
    pub fn refresh(&mut self) {
        if self.asked.is_none() && self.again.is_none() {
            self.forget();
        }
    }

    fn forget(&mut self) {
        if let Some(known) = self.known.take() {
            self.last = Some(known);
        }
    }

    fn learn(&mut self, snapshot: Box<Snapshot>) {
        self.newest = snapshot.epoch;
        self.known = Some(snapshot);
        (self.last, self.away) = (None, None);
    }

    /// Loads if nothing is known.
    pub fn load(&mut self, now: Instant) {
        if self.known.is_none() && self.asked.is_none() && self.again.is_none() {
            self.ask(now, Asked::Load);
        }
    }

    /// Stores new records in the place of the settled ones.
    pub fn store(&mut self, now: Instant, snapshot: Snapshot) {
        assert!(
            self.settled().is_some(),
            "one change at a time, of what is stored"
        );
        self.ask(now, Asked::Store(Box::new(snapshot)));
    }

    /// Why the registry could not be used, once.
    pub fn take_failure(&mut self) -> Option<RegistryError> {
        self.failure.take()
    }

    /// Next call of the registry.
    pub fn poll(&mut self) -> Option<RegistryCall> {
        self.calls.pop_front()
    }

    /// When to [`tick`](Records::tick).
    pub fn deadline(&self) -> Option<Instant> {
        let is_awaited = self.asked.is_some() && self.away.is_none();
        let slow = is_awaited.then(|| self.asked_at + SLOW_AFTER);
        earliest(self.again.map(|(at, _)| at), slow)
    }

    /// Asks a registry again that failed, and takes note of one that is slow to answer.
    pub fn tick(&mut self, now: Instant) {
        if self.asked.is_some() && self.away.is_none() && now >= self.asked_at + SLOW_AFTER {
            let why = "it has not answered yet: see whether it is there, and not overloaded";
            self.away = Some((self.asked_at, RegistryError::Unavailable(why.to_owned())));
        }
        if let Some((_, doubt)) = self.again.take_if(|(at, _)| now >= *at) {
            self.ask(now, doubt.map_or(Asked::Load, Asked::Resolve));
        }
    }

    fn ask(&mut self, now: Instant, asked: Asked) {
        self.asked_at = now;
        self.calls.push_back(match &asked {
            Asked::Load | Asked::Resolve(_) => RegistryCall::Load,
            Asked::Store(snapshot) | Asked::Fence(snapshot) => RegistryCall::Store(snapshot.clone()),
        });
        self.asked = Some(asked);
    }

    fn fail(&mut self, now: Instant, error: RegistryError, doubt: Option<u64>) {
        let since = self.away.as_ref().map_or(now, |(since, _)| *since);
        self.away = Some((since, error.clone()));
        self.failure = Some(error);
        self.again = Some((now + RETRY_AFTER, doubt));
    }

    /// The answer to a load.
    pub fn loaded(&mut self, now: Instant, result: Result<Box<Snapshot>, RegistryError>) {
        let doubt = match self.asked.take() {
            Some(Asked::Load) => None,
            Some(Asked::Resolve(epoch)) => Some(epoch),
            other => {
                // Nobody asked for it.
                self.asked = other;
                return;
            }
        };
        self.forget();
        match result {
            Err(error) => self.fail(now, error, doubt),
            Ok(snapshot) if snapshot.epoch < self.newest => {
                let error = RegistryError::WentBack(snapshot.epoch, self.newest);
                self.fail(now, error, doubt);
            }
            Ok(snapshot) if doubt == Some(snapshot.epoch) => self.ask(now, Asked::Fence(snapshot)),
            Ok(snapshot) => self.learn(snapshot),
        }
    }

    /// The answer to a store. [`RegistryError::Unavailable`] leaves open whether the records are stored, or will be.
    pub fn stored(&mut self, now: Instant, result: Result<(), RegistryError>) {
        let (mut snapshot, fenced) = match self.asked.take() {
            Some(Asked::Store(snapshot)) => (snapshot, false),
            Some(Asked::Fence(snapshot)) => (snapshot, true),
            other => {
                self.asked = other;
                return;
            }
        };
        self.forget();
        match result {
            Ok(()) => {
                snapshot.epoch += 1;
                self.learn(snapshot);
            }
            Err(RegistryError::Conflict) => self.ask(now, Asked::Load),
            Err(error @ RegistryError::Refused(_)) if !fenced => self.fail(now, error, None),
            Err(error) if fenced => self.fail(now, error, Some(snapshot.epoch)),
            Err(_) => self.ask(now, Asked::Resolve(snapshot.epoch)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled() -> Records {
        let mut records = Records::default();
        records.load(Instant::ZERO);
        assert!(matches!(records.poll(), Some(RegistryCall::Load)));
        records.loaded(Instant::ZERO, Ok(Box::default()));
        records
    }

    fn unknown() -> RegistryError {
        RegistryError::Unavailable("no answer".into())
    }

    fn change(records: &mut Records) -> Box<Snapshot> {
        let mut next = records.settled().unwrap().clone();
        next.next_vssd += 1;
        records.store(Instant::ZERO, next);
        match records.poll() {
            Some(RegistryCall::Store(snapshot)) => snapshot,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_unknown_store_is_loaded_again_before_anything_else() {
        let mut records = settled();
        let mut stored = change(&mut records);
        records.stored(Instant::ZERO, Err(unknown()));
        assert!(records.settled().is_none());
        assert!(matches!(records.poll(), Some(RegistryCall::Load)));
        stored.epoch += 1;
        records.loaded(Instant::ZERO, Ok(stored.clone()));
        assert_eq!(records.settled(), Some(&*stored), "it was stored");
    }

    #[test]
    fn a_store_that_may_still_happen_is_fenced_off() {
        let mut records = settled();
        let late = change(&mut records);
        records.stored(Instant::ZERO, Err(unknown()));
        records.poll();
        records.loaded(Instant::ZERO, Ok(Box::default()));
        assert!(records.settled().is_none(), "it may still be stored");
        let Some(RegistryCall::Store(fence)) = records.poll() else {
            panic!("no fence");
        };
        assert_eq!((fence.epoch, fence.next_vssd), (late.epoch, 0));
        records.stored(Instant::ZERO, Ok(()));
        assert_eq!(records.settled().map(|known| known.epoch), Some(late.epoch + 1));
    }

    #[test]
    fn records_that_the_registry_refuses_are_told_of_and_not_in_doubt() {
        let mut records = settled();
        change(&mut records);
        let refused = RegistryError::Refused("too large".into());
        records.stored(Instant::ZERO, Err(refused.clone()));
        assert_eq!(records.take_failure(), Some(refused));
        assert!(records.poll().is_none(), "it is not asked again at once");
        records.tick(records.deadline().unwrap());
        assert!(matches!(records.poll(), Some(RegistryCall::Load)));
        records.loaded(Instant::ZERO, Ok(Box::default()));
        assert!(records.settled().is_some(), "nothing is in doubt");
    }

    #[test]
    fn a_registry_that_is_away_is_asked_again_and_told_of_once() {
        let mut records = settled();
        change(&mut records);
        records.stored(Instant::ZERO, Err(unknown()));
        records.poll();
        records.loaded(Instant::ZERO, Err(unknown()));
        assert_eq!(records.take_failure(), Some(unknown()));
        assert_eq!(records.take_failure(), None);
        records.refresh();
        records.load(Instant::ZERO);
        assert!(records.poll().is_none() && records.settled().is_none());
        let at = records.deadline().unwrap();
        records.tick(at);
        assert!(matches!(records.poll(), Some(RegistryCall::Load)));
        records.loaded(at, Ok(Box::default()));
        assert!(records.settled().is_none(), "the store is still in doubt");
    }

    #[test]
    fn older_records_in_the_place_of_newer_ones_are_not_believed() {
        let mut records = settled();
        change(&mut records);
        records.stored(Instant::ZERO, Ok(()));
        records.refresh();
        records.load(Instant::ZERO);
        records.poll();
        records.loaded(Instant::ZERO, Ok(Box::default()));
        assert_eq!(records.take_failure(), Some(RegistryError::WentBack(0, 1)));
        assert!(records.settled().is_none());
        assert_eq!(records.stale().map(|known| known.epoch), Some(1));
    }

    #[test]
    fn a_registry_that_is_slow_is_away_for_who_only_looks() {
        let mut records = settled();
        records.refresh();
        let at = Instant::ZERO + Duration::from_secs(5);
        records.load(at);
        assert!(records.poll().is_some() && records.away().is_none());
        records.tick(records.deadline().unwrap());
        assert_eq!(records.away().map(|(since, _)| *since), Some(at));
        assert!(records.stale().is_some() && records.take_failure().is_none());
        assert_eq!(records.deadline(), None, "there is one call at a time");
        records.loaded(at + Duration::from_secs(9), Ok(Box::default()));
        assert!(records.away().is_none() && records.settled().is_some());
    }

    #[test]
    fn what_a_registry_said_last_is_there_while_it_is_away_and_no_longer() {
        let mut records = settled();
        let stored = change(&mut records);
        records.stored(Instant::ZERO, Ok(()));
        assert_eq!(records.stale(), None, "it answers");
        records.refresh();
        records.load(Instant::ZERO);
        records.poll();
        let at = Instant::ZERO + Duration::from_secs(5);
        records.loaded(at, Err(unknown()));
        assert_eq!(
            records.stale().map(|known| known.next_vssd),
            Some(stored.next_vssd)
        );
        records.tick(records.deadline().unwrap());
        records.poll();
        let later = at + Duration::from_secs(1);
        records.loaded(later, Err(unknown()));
        assert_eq!(records.away(), Some(&(at, unknown())), "since the first failure");
        records.tick(records.deadline().unwrap());
        records.poll();
        let told = Snapshot { epoch: 1, ..*stored };
        records.loaded(later, Ok(Box::new(told)));
        assert!(records.stale().is_none() && records.away().is_none());
    }
}

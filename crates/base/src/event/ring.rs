//! The last events of the hosts of one world.

use super::kind::{Description, Kind};
use super::value::{Level, Source};
use crate::{Duration, Instant};
use core::fmt;
use std::collections::VecDeque;

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its number among the events of its world, from 1.
    pub sequence: u64,
    /// When it happened first.
    pub at: Instant,
    /// The source of the event.
    pub source: Source,
    /// What happened.
    pub kind: Kind,
    /// How often it happened again, unchanged.
    pub repeats: u32,
    /// When it happened last.
    pub last_at: Instant,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ms, kind) = (self.at.as_nanos() / 1_000_000, self.kind);
        write!(
            f,
            "{:>6}.{:03} s {:<10} {}",
            ms / 1000,
            ms % 1000,
            self.source.to_string(),
            kind.name()
        )?;
        let mut result = Ok(());
        kind.fields(&mut |name, value| {
            if result.is_ok() {
                result = write!(f, " {name}={value}");
            }
        });
        result?;
        match self.repeats {
            0 => Ok(()),
            repeats => write!(f, " ({repeats} times more)"),
        }
    }
}

/// An event that equals an earlier one, not older than this, of the same host is counted there.
pub const COALESCE: Duration = Duration::from_secs(10);
/// Events of a host that are looked at for an equal one.
const COALESCE_AMONG: usize = 32;

/// The last events of one host: routine ones apart, so that they never displace the others.
#[derive(Debug)]
struct Ring {
    source: Source,
    routine: VecDeque<Event>,
    notable: VecDeque<Event>,
    counts: [u64; Kind::COUNT],
}

/// The last events of the hosts of one world, in the order in which they happened.
#[derive(Debug)]
pub struct Events {
    rings: Vec<Ring>,
    /// Events that each host keeps of those that are routine, and as many of the others.
    capacity: usize,
    last: u64,
}

/// Some events after another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The oldest first.
    pub events: Vec<Event>,
    /// Events between those that are gone: newer ones took their places.
    pub missed: u64,
    /// The number to go on from.
    pub next: u64,
}

impl Events {
    /// No events yet; `capacity` routine ones and as many others are kept of each host.
    ///
    /// # Panics
    /// If `capacity` is 0.
    pub fn new(capacity: usize) -> Self {
        assert!(capacity > 0, "a ring has a place");
        Self {
            rings: Vec::new(),
            capacity,
            last: 0,
        }
    }

    /// Reserves the memory of a host's events, if it has none.
    pub fn add(&mut self, source: Source) {
        if self.ring(source).is_none() {
            self.rings.push(Ring {
                source,
                routine: VecDeque::with_capacity(self.capacity),
                notable: VecDeque::with_capacity(self.capacity),
                counts: [0; Kind::COUNT],
            });
        }
    }

    fn ring(&self, source: Source) -> Option<usize> {
        self.rings.iter().position(|ring| ring.source == source)
    }

    /// Keeps an event. `None`: an equal one counts it.
    pub fn record(&mut self, at: Instant, source: Source, kind: Kind) -> Option<Event> {
        self.add(source);
        let index = self.ring(source).expect("it was just added");
        let ring = &mut self.rings[index];
        ring.counts[kind.index()] += 1;
        let kept = match kind.level() {
            Level::Debug => &mut ring.routine,
            Level::Info | Level::Warn | Level::Error => &mut ring.notable,
        };
        let mut recent = kept.iter_mut().rev().take(COALESCE_AMONG);
        if let Some(equal) = recent.find(|event| event.kind == kind && at.since(event.at) < COALESCE) {
            equal.repeats = equal.repeats.saturating_add(1);
            equal.last_at = at;
            return None;
        }
        if kept.len() == self.capacity {
            kept.pop_front();
        }
        self.last += 1;
        let event = Event {
            sequence: self.last,
            at,
            source,
            kind,
            repeats: 0,
            last_at: at,
        };
        kept.push_back(event);
        Some(event)
    }

    /// The number of the newest event, 0 for none.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// The events after number `since`, at most `count`. A number that was never given stands for 0: it was another
    /// start's.
    pub fn after(&self, since: u64, count: usize) -> Page {
        let since = if since > self.last { 0 } else { since };
        let all = self.rings.iter().flat_map(|ring| [&ring.routine, &ring.notable]);
        let mut events: Vec<Event> = all
            .flat_map(|kept| kept.iter().rev().take_while(|event| event.sequence > since))
            .copied()
            .collect();
        events.sort_unstable_by_key(|event| event.sequence);
        events.truncate(count);
        let cut = events.len() == count && count > 0;
        let next = events
            .last()
            .filter(|_| cut)
            .map_or(self.last, |event| event.sequence);
        Page {
            missed: next - since - events.len() as u64,
            events,
            next,
        }
    }

    /// How often each kind happened, by host; those that never did are left out.
    pub fn counts(&self) -> impl Iterator<Item = (Source, &'static Description, u64)> {
        self.rings.iter().flat_map(|ring| {
            let counted = Kind::ALL.iter().zip(ring.counts);
            counted
                .filter(|(_, count)| *count > 0)
                .map(|(kind, count)| (ring.source, kind, count))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Lapse, Value};
    use crate::{Addr, VssdId};

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn left(vssd: u32) -> Kind {
        Kind::VssdClosed { vssd: VssdId(vssd) }
    }

    fn renewed(vssd: u32) -> Kind {
        Kind::LeaseRenewed { vssd: VssdId(vssd) }
    }

    fn numbers(page: &Page) -> Vec<u64> {
        page.events.iter().map(|event| event.sequence).collect()
    }

    #[test]
    fn a_follower_sees_each_event_once_and_how_many_it_missed() {
        let mut events = Events::new(4);
        for vssd in 0..3 {
            events.record(at(1), Source::Tor, left(vssd));
        }
        let page = events.after(0, 100);
        assert_eq!((numbers(&page), page.missed, page.next), (vec![1, 2, 3], 0, 3));
        for vssd in 3..9 {
            events.record(at(2), Source::Tor, left(vssd));
        }
        let page = events.after(page.next, 100);
        assert_eq!((numbers(&page), page.missed, page.next), (vec![6, 7, 8, 9], 2, 9));
        let page = events.after(page.next, 100);
        assert_eq!((numbers(&page), page.missed, page.next), (vec![], 0, 9));
    }

    #[test]
    fn a_page_that_is_cut_goes_on_where_it_ended() {
        let mut events = Events::new(8);
        for vssd in 0..5 {
            events.record(at(1), Source::Tor, left(vssd));
        }
        let first = events.after(0, 2);
        assert_eq!((numbers(&first), first.missed, first.next), (vec![1, 2], 0, 2));
        let rest = events.after(first.next, 3);
        assert_eq!((numbers(&rest), rest.missed, rest.next), (vec![3, 4, 5], 0, 5));
    }

    #[test]
    fn hosts_share_the_numbers_and_none_displaces_the_events_of_another() {
        let mut events = Events::new(2);
        events.record(at(1), Source::Tor, left(1));
        for vssd in 0..9 {
            events.record(at(2), Source::Gateway(0), left(vssd));
        }
        let page = events.after(0, 100);
        assert_eq!((numbers(&page), page.missed), (vec![1, 9, 10], 7));
        assert_eq!(page.events[0].source, Source::Tor);
    }

    #[test]
    fn routine_displaces_nothing_notable() {
        let mut events = Events::new(2);
        events.record(at(1), Source::Tor, left(1));
        for vssd in 0..9 {
            events.record(at(2), Source::Tor, renewed(vssd));
        }
        assert_eq!(numbers(&events.after(0, 100)), [1, 9, 10]);
    }

    #[test]
    fn equal_events_are_one_with_a_count_for_a_while() {
        let mut events = Events::new(64);
        assert!(events.record(at(0), Source::Tor, renewed(1)).is_some());
        assert!(events.record(at(1), Source::Tor, renewed(2)).is_some());
        assert!(events.record(at(40), Source::Tor, renewed(1)).is_none());
        assert!(events.record(at(80), Source::Tor, renewed(1)).is_none());
        let page = events.after(0, 100);
        assert_eq!(numbers(&page), [1, 2]);
        assert_eq!((page.events[0].repeats, page.events[0].last_at), (2, at(80)));
        assert!(
            events.record(at(10_000), Source::Tor, renewed(1)).is_some(),
            "a follower hears of it again"
        );
        let mut counts = events.counts();
        let (source, kind, count) = counts.next().expect("one kind happened");
        assert_eq!((source, kind.name, count), (Source::Tor, "lease-renewed", 5));
        assert!(counts.next().is_none());
    }

    #[test]
    fn a_number_of_another_start_begins_anew() {
        let mut events = Events::new(4);
        events.record(at(1), Source::Tor, left(1));
        let page = events.after(77, 100);
        assert_eq!((numbers(&page), page.missed), (vec![1], 0));
    }

    #[test]
    fn names_are_unique_and_fields_are_as_described() {
        let mut names: Vec<&str> = Kind::ALL.iter().map(|kind| kind.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Kind::COUNT);
        for (index, kind) in Kind::samples().iter().enumerate() {
            let mut fields = Vec::new();
            kind.fields(&mut |name, _| fields.push(name));
            assert_eq!((kind.index(), &fields[..]), (index, Kind::ALL[index].fields));
        }
        let kind = Kind::LeaseLapsed {
            vssd: VssdId(7),
            server: Addr::new([10, 0, 0, 1], 1),
            why: Lapse::NodeSilent,
            held: Duration::from_millis(200),
        };
        let mut fields = Vec::new();
        kind.fields(&mut |name, value| fields.push((name, value)));
        let described: Vec<&str> = fields.iter().map(|field| field.0).collect();
        assert_eq!(described, Kind::ALL[kind.index()].fields);
        assert_eq!(fields[2].1, Value::Name("node-silent"));
        assert_eq!((kind.name(), kind.level()), ("lease-lapsed", Level::Warn));
        assert!(
            size_of::<Event>() <= 88,
            "a ring of a thousand is small: {}",
            size_of::<Event>()
        );
    }
}

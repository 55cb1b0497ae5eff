//! Which replica a page is read from: any may answer, so the one that is likely to answer first is asked.
//!
//! A reader's figure is its recent time to answer, multiplied by the reads under way to it and the new one. The lowest figure wins, so
//! reads spread over replicas that are equally fast, and a slow one gets few. The time of a replica that is not asked fades
//! ([`FADES`]): after some hundreds of reads it is tried again. The network may still lead a read elsewhere, if the replica collects garbage.
//!
//! A replica that leaves two reads in a row unanswered is not asked for a while. One on a node that is slow ([`rack::slow`]) gets one
//! read a second, which tells when the node is well again.

use base::{Duration, Instant, NodeId, VssdId};
use rack::slow::Slow;

/// Which replica of a set a page is read from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reads {
    /// The one that is likely to answer first.
    #[default]
    Fastest,
    /// The first one, as RackBlox's clients do: the network alone leads reads elsewhere.
    First,
}

/// The time to answer loses one part in so many with each read that goes elsewhere.
const FADES: u64 = 256;
/// A new time counts one part in so many.
const NEW_SHARE: u64 = 8;
/// A replica that left so many reads unanswered, one after the other, is avoided,
const MISSES_MAX: u32 = 2;
/// so long, or until it answers something.
const AVOIDED_FOR: Duration = Duration::from_secs(1);
/// A replica on a slow node is tried so often.
const PROBE_EVERY: Duration = Duration::from_secs(1);

/// Which replicas are asked before others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// Its node is slow, and it is tried now.
    Probed,
    Well,
    Slow,
    Silent,
}

/// The replicas of a set as a reader sees them.
#[derive(Debug, Default)]
pub struct Readers(Vec<Reader>);

#[derive(Debug)]
struct Reader {
    vssd: VssdId,
    /// Its node, as its answers say.
    node: Option<NodeId>,
    in_flight: u64,
    /// 0 before the first answer.
    took_ns: u64,
    misses: u32,
    avoided_until: Option<Instant>,
    /// If its node is slow, when it is tried next.
    probe_at: Instant,
}

impl Reader {
    fn new(vssd: VssdId) -> Self {
        Self {
            vssd,
            node: None,
            in_flight: 0,
            took_ns: 0,
            misses: 0,
            avoided_until: None,
            probe_at: Instant::ZERO,
        }
    }
}

impl Readers {
    /// Those of a set.
    pub fn new(replicas: &[VssdId]) -> Self {
        Self(replicas.iter().map(|&vssd| Reader::new(vssd)).collect())
    }

    /// The set has these replicas now.
    pub fn replace(&mut self, replicas: &[VssdId]) {
        let mut old = core::mem::take(&mut self.0);
        let kept = |&vssd: &VssdId| {
            let place = old.iter().position(|reader| reader.vssd == vssd);
            place.map_or_else(|| Reader::new(vssd), |place| old.swap_remove(place))
        };
        self.0 = replicas.iter().map(kept).collect();
    }

    /// The replica for one more read: the earlier of equals. [`Readers::end`] tells its end. True if one is
    /// silent and avoided.
    pub fn choose(&mut self, now: Instant, reads: Reads, slow: &Slow) -> (VssdId, bool) {
        let known = self
            .0
            .iter()
            .map(|reader| reader.took_ns)
            .filter(|&took| took > 0);
        // One that has not answered yet may be as good as any, and is asked before its equals.
        let least = known.min().unwrap_or(1);
        let is_silent = |reader: &Reader| reader.avoided_until.is_some_and(|until| now < until);
        let is_slow = |reader: &Reader| reader.node.is_some_and(|node| slow.is_slow(node));
        let figure = |reader: &Reader| {
            let took = if reader.took_ns == 0 {
                least
            } else {
                reader.took_ns
            };
            let rank = match (is_silent(reader), is_slow(reader)) {
                (true, _) => Rank::Silent,
                (false, true) if now >= reader.probe_at => Rank::Probed,
                (false, true) => Rank::Slow,
                (false, false) => Rank::Well,
            };
            match reads {
                Reads::Fastest => (rank, (reader.in_flight + 1) * took, reader.took_ns > 0),
                Reads::First => (rank, 0, false),
            }
        };
        let avoids = self.0.iter().any(is_silent);
        let all = self.0.iter().enumerate();
        let best = all.min_by_key(|(_, reader)| figure(reader)).map(|(nth, _)| nth);
        let best = best.expect("a set has replicas");
        for (nth, reader) in self.0.iter_mut().enumerate() {
            if nth != best {
                reader.took_ns -= reader.took_ns / FADES;
            }
        }
        let reader = &mut self.0[best];
        reader.in_flight += 1;
        reader.probe_at = now + PROBE_EVERY;
        (reader.vssd, avoids)
    }

    fn of(&mut self, vssd: VssdId) -> Option<&mut Reader> {
        self.0.iter_mut().find(|reader| reader.vssd == vssd)
    }

    /// True if a replica is avoided, as it has not answered.
    pub fn is_silent(&self, now: Instant, vssd: VssdId) -> bool {
        let reader = self.0.iter().find(|reader| reader.vssd == vssd);
        reader.is_some_and(|reader| reader.avoided_until.is_some_and(|until| now < until))
    }

    /// A read that was given to a replica is over, wherever it was answered.
    pub fn end(&mut self, chosen: VssdId) {
        if let Some(reader) = self.of(chosen) {
            // One that has left and is back has reads of its earlier time.
            reader.in_flight = reader.in_flight.saturating_sub(1);
        }
    }

    /// A replica is there.
    pub fn heard(&mut self, vssd: VssdId) {
        if let Some(reader) = self.of(vssd) {
            (reader.misses, reader.avoided_until) = (0, None);
        }
    }

    /// A replica answered a read that was sent once.
    pub fn answered(&mut self, vssd: VssdId, node: Option<NodeId>, took: Duration) {
        if let Some(reader) = self.of(vssd) {
            reader.node = node;
            let nanos = (took.as_nanos() as u64).max(1);
            reader.took_ns = match reader.took_ns {
                0 => nanos,
                known => (known * (NEW_SHARE - 1) + nanos) / NEW_SHARE,
            };
        }
    }

    /// A read has not been answered for so long. The replica's node, if that is known.
    pub fn missed(&mut self, now: Instant, vssd: VssdId, waited: Duration) -> Option<NodeId> {
        let reader = self.of(vssd)?;
        reader.took_ns = reader.took_ns.max(waited.as_nanos() as u64);
        reader.misses += 1;
        if reader.misses >= MISSES_MAX {
            reader.avoided_until = Some(now + AVOIDED_FOR);
        }
        reader.node
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rack::slow::{Answers, Rules};

    const NOW: Instant = Instant::from_nanos(1_000_000_000);

    fn readers(count: u32) -> Readers {
        Readers::new(&(1..=count).map(VssdId).collect::<Vec<_>>())
    }

    /// No node is slow.
    fn none() -> Slow {
        Slow::new(Rules::default())
    }

    /// Shares of reads, one at a time, of replicas that answer after these times, in µs.
    fn shares(readers: &mut Readers, times: &[u64], reads: usize) -> Vec<usize> {
        let mut shares = vec![0; times.len()];
        for _ in 0..reads {
            let (vssd, _) = readers.choose(NOW, Reads::Fastest, &none());
            let nth = vssd.0 as usize - 1;
            shares[nth] += 1;
            readers.answered(vssd, None, Duration::from_micros(times[nth]));
            readers.end(vssd);
        }
        shares
    }

    #[test]
    fn a_slow_replica_gets_few_reads_and_is_tried_again() {
        let mut readers = readers(3);
        let slow = shares(&mut readers, &[1000, 100, 100], 10_000);
        assert!(slow[0] < 100 && slow[0] > 3, "{slow:?}");
        let well = shares(&mut readers, &[80, 100, 100], 10_000);
        assert!(well[0] > 5_000, "{well:?}");
    }

    #[test]
    fn reads_under_way_spread() {
        let mut readers = readers(3);
        for vssd in 1..=3 {
            readers.answered(VssdId(vssd), None, Duration::from_micros(100));
        }
        let mut counts = [0; 3];
        for _ in 0..300 {
            counts[readers.choose(NOW, Reads::Fastest, &none()).0.0 as usize - 1] += 1;
        }
        assert!(
            counts.iter().all(|count| (90..=110).contains(count)),
            "{counts:?}"
        );
    }

    #[test]
    fn a_silent_replica_is_avoided_until_it_answers_or_time_has_passed() {
        let mut readers = readers(2);
        let (first, second) = (VssdId(1), VssdId(2));
        let waited = Duration::from_millis(20);
        readers.answered(second, None, Duration::from_millis(500));
        readers.missed(NOW, first, waited);
        assert_eq!(
            readers.choose(NOW, Reads::Fastest, &none()),
            (first, false),
            "once may be chance"
        );
        readers.missed(NOW, first, waited);
        assert_eq!(readers.choose(NOW, Reads::Fastest, &none()), (second, true));
        readers.heard(first);
        assert_eq!(readers.choose(NOW, Reads::Fastest, &none()), (first, false));
        readers.missed(NOW, first, waited);
        readers.missed(NOW, first, waited);
        assert_eq!(readers.choose(NOW, Reads::Fastest, &none()), (second, true));
        assert_eq!(
            readers.choose(NOW + AVOIDED_FOR, Reads::Fastest, &none()),
            (first, false)
        );
    }

    #[test]
    fn the_first_is_asked_while_it_is_there() {
        let mut readers = readers(2);
        readers.answered(VssdId(2), None, Duration::from_micros(1));
        for misses in 0..3 {
            let (chosen, avoids) = readers.choose(NOW, Reads::First, &none());
            assert_eq!(
                (chosen.0, avoids),
                if misses < 2 { (1, false) } else { (2, true) }
            );
            readers.missed(NOW, VssdId(1), Duration::from_millis(20));
        }
    }

    #[test]
    fn a_set_that_changes_keeps_what_is_known_of_those_that_stay() {
        let mut readers = readers(3);
        readers.answered(VssdId(3), None, Duration::from_micros(10));
        readers.answered(VssdId(1), None, Duration::from_micros(20));
        readers.replace(&[VssdId(3), VssdId(4)]);
        assert_eq!(
            readers.choose(NOW, Reads::Fastest, &none()).0,
            VssdId(4),
            "nothing is known of it"
        );
        readers.answered(VssdId(4), None, Duration::from_micros(100));
        readers.end(VssdId(4));
        readers.end(VssdId(1));
        assert_eq!(readers.choose(NOW, Reads::Fastest, &none()).0, VssdId(3));
    }

    /// Bug: a replica that is slow for hours was tried after some hundreds of reads, again and again, and `first` read nothing else.
    #[test]
    fn a_replica_on_a_slow_node_gets_one_read_a_second() {
        let mut slow = none();
        for second in 0..20 {
            for (node, ms) in [(1, 50), (2, 1), (3, 1)] {
                let at = Instant::from_nanos(second * 2_000_000_000);
                slow.observe(at, NodeId(node), Answers::Reads, Duration::from_millis(ms));
            }
        }
        for reads in [Reads::Fastest, Reads::First] {
            let mut readers = readers(3);
            for vssd in 1..=3 {
                readers.answered(VssdId(vssd), Some(NodeId(vssd as u8)), Duration::from_millis(1));
            }
            let mut asked = 0;
            for ms in 0..5_000 {
                let (vssd, avoids) = readers.choose(NOW + Duration::from_millis(ms), reads, &slow);
                readers.end(vssd);
                assert!(!avoids, "nobody is silent");
                asked += u32::from(vssd == VssdId(1));
            }
            assert_eq!(asked, 5, "{reads:?}");
        }
    }
}

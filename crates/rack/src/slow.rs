//! Whether a node is slow, though it answers: its medium or its network may be about to fail.
//!
//! A pure policy. How long a node's answers take is looked at window by window ([`Windows`]). The median of a window is compared with
//! those of the other nodes ([`Slow`]), never with a time that somebody has set: a rack that is slow as a whole has no slow node.
//!
//! - **Answers.** Reads are measured by the gateway. Acknowledgements of followers are measured by the primaries, as clients see
//!   only the slowest one; the nodes report them.
//! - **Slow.** A node is slow after [`Rules::windows`] windows, more or less in a row, in which its median was above [`MUCH_SLOWER`] times
//!   that of the others.
//! - **Well.** It is well again after as many windows in which it was below [`LITTLE_SLOWER`] times that.
//! - **Who says so.** What a node reports of others does not count while its own answers are suspect: its way to them may be slow.

use crate::times::Times;
use base::{Duration, Instant, NodeId};

/// Above this multiple of what is usual a window counts against a node, below that one for it. Between them lies what
/// differs among nodes that are well: their load, and the collection of garbage.
const MUCH_SLOWER: f64 = 3.0;
const LITTLE_SLOWER: f64 = 1.5;
/// A difference below this is none: a client's way to the node and back takes longer.
const SLACK_NS: f64 = 100_000.0;
/// A median older than so many windows says nothing any more.
const STALE_WINDOWS: u32 = 30;

/// How patient the policy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// A window is at least so long,
    pub window: Duration,
    /// and has so many answers.
    pub answers_min: u32,
    /// After so many windows a node is slow, or well again.
    pub windows: u8,
}

impl Rules {
    /// No node is ever slow: for baselines whose clients do not look.
    pub const NEVER: Self = Self {
        window: Duration::from_secs(3_600),
        answers_min: u32::MAX,
        windows: u8::MAX,
    };
}

impl Default for Rules {
    /// A node is told after ten seconds.
    fn default() -> Self {
        Self {
            window: Duration::from_secs(2),
            answers_min: 16,
            windows: 5,
        }
    }
}

/// The answers of nodes, window by window.
#[derive(Clone, Debug)]
pub struct Windows {
    rules: Rules,
    of: Vec<(NodeId, Window)>,
}

#[derive(Clone, Debug)]
struct Window {
    since: Instant,
    times: Times,
}

impl Windows {
    /// Nothing is known yet.
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            of: Vec::new(),
        }
    }

    /// A node's answer took so long. The median of its window, if that is over.
    pub fn note(&mut self, now: Instant, node: NodeId, took: Duration) -> Option<Duration> {
        let Rules {
            window: least,
            answers_min,
            ..
        } = self.rules;
        let place = self.of.iter().position(|(of, _)| *of == node);
        let place = place.unwrap_or_else(|| {
            let times = Times::new();
            self.of.push((node, Window { since: now, times }));
            self.of.len() - 1
        });
        let window = &mut self.of[place].1;
        let lasted = now.since(window.since);
        if lasted > least * STALE_WINDOWS {
            window.times.clear();
            window.since = now;
        }
        window.times.note(took.as_nanos() as u64);
        if lasted < least || window.times.count() < answers_min {
            return None;
        }
        let median = window.times.quantile(0.5)?;
        window.times.clear();
        window.since = now;
        Some(Duration::from_nanos(median as u64))
    }
}

/// The answers of a node that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    /// To reads.
    Reads,
    /// To a primary's writes.
    Writes,
}

/// A node's state has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Which.
    pub node: NodeId,
    /// It is slow from now on, or well.
    pub slow: bool,
    /// The answers that tell.
    pub answers: Answers,
    /// Their median.
    pub median: Duration,
    /// That of the other nodes.
    pub usual: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
struct Figure {
    median_ns: f64,
    at: Option<Instant>,
    /// Windows that count against the node, less those that count for it.
    against: u8,
}

#[derive(Clone, Debug)]
struct Known {
    node: NodeId,
    figures: [Figure; 2],
    slow: bool,
}

/// The nodes of a rack, compared with each other.
#[derive(Clone, Debug)]
pub struct Slow {
    rules: Rules,
    nodes: Vec<Known>,
}

impl Slow {
    /// Nothing is known yet.
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            nodes: Vec::new(),
        }
    }

    /// True if the node is slow.
    pub fn is_slow(&self, node: NodeId) -> bool {
        self.nodes.iter().any(|known| known.node == node && known.slow)
    }

    /// True if a window counts against the node's answers to reads: what it reports of others does not count.
    pub fn is_suspect(&self, node: NodeId) -> bool {
        let suspect = |known: &Known| known.figures[Answers::Reads as usize].against > 0;
        self.nodes
            .iter()
            .any(|known| known.node == node && suspect(known))
    }

    /// The rack has these nodes.
    pub fn retain(&mut self, is_there: impl Fn(NodeId) -> bool) {
        self.nodes.retain(|known| is_there(known.node));
    }

    /// The median of others' answers of this kind, the lower one of two in the middle; none if nothing is known of them.
    fn usual(&self, now: Instant, node: NodeId, answers: Answers) -> Option<f64> {
        let is_fresh = |at: Instant| now.since(at) <= self.rules.window * STALE_WINDOWS;
        let others = self.nodes.iter().filter(|known| known.node != node);
        let figures = others.map(|known| known.figures[answers as usize]);
        let fresh = figures.filter(|figure| figure.at.is_some_and(is_fresh));
        let mut medians: Vec<f64> = fresh.map(|figure| figure.median_ns).collect();
        medians.sort_unstable_by(f64::total_cmp);
        medians.get(medians.len().saturating_sub(1) / 2).copied()
    }

    /// A window of a node's answers is over. Several primaries report of one node: a window counts when the last one that
    /// did is half a window old.
    pub fn observe(
        &mut self,
        now: Instant,
        node: NodeId,
        answers: Answers,
        median: Duration,
    ) -> Option<Verdict> {
        let usual_ns = self.usual(now, node, answers);
        let place = self.nodes.iter().position(|known| known.node == node);
        let place = place.unwrap_or_else(|| {
            self.nodes.push(Known {
                node,
                figures: [Figure::default(); 2],
                slow: false,
            });
            self.nodes.len() - 1
        });
        let (known, most) = (&mut self.nodes[place], self.rules.windows);
        let figure = &mut known.figures[answers as usize];
        if figure.at.is_some_and(|at| now.since(at) < self.rules.window / 2) {
            return None;
        }
        let median_ns = median.as_nanos() as f64;
        (figure.at, figure.median_ns) = (Some(now), median_ns);
        let usual_ns = usual_ns?;
        let is_above = |times: f64, slack: f64| median_ns > (usual_ns * times).max(usual_ns + slack);
        if is_above(MUCH_SLOWER, SLACK_NS) {
            figure.against = most.min(figure.against + 1);
        } else if !is_above(LITTLE_SLOWER, SLACK_NS / 2.0) {
            figure.against = figure.against.saturating_sub(1);
        }
        let slow = match known.slow {
            true => known.figures.iter().any(|figure| figure.against > 0),
            false => known.figures.iter().any(|figure| figure.against == most),
        };
        (core::mem::replace(&mut known.slow, slow) != slow).then(|| Verdict {
            node,
            slow,
            answers,
            median,
            usual: Duration::from_nanos(usual_ns as u64),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Answers::{Reads, Writes};

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    fn node(node: usize) -> NodeId {
        NodeId(node as u8 + 1)
    }

    /// Windows of two seconds, in which the nodes' answers have these medians, in µs. The verdicts, with their windows.
    fn windows(
        slow: &mut Slow,
        numbers: core::ops::Range<u64>,
        medians: impl Fn(u64) -> Vec<u64>,
    ) -> Vec<(u64, u8, bool)> {
        let mut verdicts = Vec::new();
        for number in numbers {
            for (place, median) in medians(number).into_iter().enumerate() {
                let verdict = slow.observe(at(number * 2_000), node(place), Reads, us(median));
                verdicts.extend(verdict.map(|verdict| (number, verdict.node.0, verdict.slow)));
            }
        }
        verdicts
    }

    #[test]
    fn a_node_that_is_slow_for_long_is_told_once_and_again_when_it_is_well() {
        let mut slow = Slow::new(Rules::default());
        let told = windows(&mut slow, 0..20, |_| vec![200, 220, 900, 180]);
        assert_eq!(told, [(4, 3, true)]);
        assert!(slow.is_slow(NodeId(3)) && !slow.is_slow(NodeId(1)));
        let told = windows(&mut slow, 20..30, |_| vec![200, 220, 450, 180]);
        assert_eq!(told, [], "neither slow nor well");
        let told = windows(&mut slow, 30..50, |_| vec![200, 220, 250, 180]);
        assert_eq!(told, [(34, 3, false)]);
    }

    #[test]
    fn what_is_slow_for_moments_or_with_all_others_is_not_told() {
        let mut slow = Slow::new(Rules::default());
        let told = windows(&mut slow, 0..100, |nth| {
            vec![200, if nth % 5 < 2 { 5_000 } else { 200 }]
        });
        assert_eq!(told, [], "a moment");
        let told = windows(&mut slow, 100..200, |_| vec![50_000, 60_000, 45_000]);
        assert_eq!(told, [], "the rack");
        let told = windows(&mut slow, 200..300, |_| vec![20, 110]);
        assert_eq!(told, [], "times that nobody notices");
        let told = windows(&mut slow, 300..400, |_| vec![9_000]);
        assert_eq!(
            told,
            [(304, 1, true)],
            "as those of the other one are known for a while"
        );
    }

    #[test]
    fn one_that_is_alone_is_compared_with_nobody() {
        let mut slow = Slow::new(Rules::default());
        assert_eq!(windows(&mut slow, 0..50, |_| vec![9_000_000]), []);
    }

    #[test]
    fn two_kinds_of_answers_are_compared_apart_and_reports_of_one_moment_count_once() {
        let mut slow = Slow::new(Rules::default());
        let mut told = Vec::new();
        for number in 0..6 {
            let now = at(number * 2_000);
            for place in 0..3 {
                slow.observe(now, node(place), Reads, us(200));
            }
            // Reports of three primaries each.
            for (place, median) in [(0, 3_000), (1, 3_100), (2, 12_000)].repeat(3) {
                told.extend(slow.observe(now, node(place), Writes, us(median)));
            }
        }
        let [verdict] = told[..] else {
            panic!("one is told: {told:?}")
        };
        assert_eq!(
            (verdict.node, verdict.answers, verdict.usual),
            (NodeId(3), Writes, us(3_000))
        );
        assert!(!slow.is_suspect(NodeId(3)), "its reads are well");
        slow.observe(at(20_000), NodeId(1), Reads, us(5_000));
        assert!(slow.is_suspect(NodeId(1)));
        slow.retain(|node| node != NodeId(3));
        assert!(!slow.is_slow(NodeId(3)));
    }

    #[test]
    fn a_window_has_its_time_and_its_answers() {
        let mut windows = Windows::new(Rules::default());
        let mut medians = Vec::new();
        for ms in 0..10_000 {
            let took = us(if ms % 3 == 0 { 10_000 } else { 400 });
            medians.extend(windows.note(at(ms), NodeId(1), took));
        }
        assert_eq!(medians.len(), 4);
        let near = |median: &Duration| (us(390)..us(460)).contains(median);
        assert!(medians.iter().all(near), "{medians:?}");
        // Few answers make a long window, and old ones do not count.
        let slow = (0..40).map(|nth| {
            windows
                .note(at(20_000 + nth * 1_000), NodeId(2), us(900))
                .is_some()
        });
        assert_eq!(slow.filter(|over| *over).count(), 2);
        assert!(windows.note(at(500_000), NodeId(2), us(900)).is_none());
    }
}

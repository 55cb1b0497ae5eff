//! Sets of numbers as ranges: which bytes of a file are covered, which of its blocks are reserved.

use core::ops::Range;
use std::collections::BTreeMap;

/// A set of numbers. Its ranges neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Its ranges, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.0.iter().map(|(&start, &end)| start..end)
    }

    /// Numbers in it.
    pub(crate) fn count(&self) -> u64 {
        self.iter().map(|range| range.end - range.start).sum()
    }

    pub(crate) fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        while let Some((&first, &last)) = self
            .0
            .range(..=end)
            .next_back()
            .filter(|&(_, &last)| last >= start)
        {
            self.0.remove(&first);
            (start, end) = (start.min(first), end.max(last));
        }
        self.0.insert(start, end);
    }

    pub(crate) fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        while let Some((&first, &last)) = self
            .0
            .range(..range.end)
            .next_back()
            .filter(|&(_, &last)| last > range.start)
        {
            self.0.remove(&first);
            if last > range.end {
                self.0.insert(range.end, last);
            }
            if first < range.start {
                self.0.insert(first, range.start);
            }
        }
    }

    /// Takes out all that is not of a range.
    pub(crate) fn keep(&mut self, range: Range<u64>) {
        self.remove(0..range.start);
        self.remove(range.end.max(range.start)..u64::MAX);
    }

    /// Those of its ranges that have numbers of a range.
    pub(crate) fn of(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let before = self.0.range(..range.start).next_back();
        let inside = self.0.range(range.start..range.end.max(range.start));
        let found = before.into_iter().chain(inside).map(|(&start, &end)| start..end);
        found.filter(move |found| found.end > range.start)
    }

    pub(crate) fn contains(&self, range: Range<u64>) -> bool {
        let found = self.0.range(..=range.start).next_back();
        range.is_empty() || found.is_some_and(|(_, &last)| last >= range.end)
    }

    /// What of a range is not in it, in order.
    pub(crate) fn gaps(&self, range: Range<u64>) -> Vec<Range<u64>> {
        self.each_gap(range).collect()
    }

    /// The first of them.
    pub(crate) fn gap(&self, range: Range<u64>) -> Option<Range<u64>> {
        self.each_gap(range).next()
    }

    fn each_gap(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let behind = range.end..range.end;
        let there = self.of(range.clone()).chain([behind]);
        let gaps = there.scan(range.start, |at, there| {
            let gap = *at..there.start;
            *at = there.end;
            Some(gap)
        });
        gaps.filter(|gap| !gap.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_a_set() {
        let mut rng = base::Rng::new(3);
        for _ in 0..2000 {
            let (mut ranges, mut set) = (Ranges::default(), [false; 40]);
            for _ in 0..12 {
                let start = rng.below(40);
                let range = start..start + rng.below(41 - start);
                let inside = range.start as usize..range.end as usize;
                let contains = set[inside.clone()].iter().all(|is_in| *is_in);
                assert_eq!(ranges.contains(range.clone()), contains);
                let gaps: Vec<u64> = ranges.gaps(range.clone()).into_iter().flatten().collect();
                let missing: Vec<u64> = range.clone().filter(|at| !set[*at as usize]).collect();
                assert_eq!(gaps, missing);
                let is_in = rng.chance(0.6);
                match is_in {
                    true => ranges.insert(range),
                    false => ranges.remove(range),
                }
                set[inside].iter_mut().for_each(|slot| *slot = is_in);
                let all: Vec<u64> = ranges.iter().flatten().collect();
                let expected: Vec<u64> = (0..40).filter(|at| set[*at as usize]).collect();
                assert_eq!(all, expected);
                assert_eq!(ranges.count(), expected.len() as u64);
                let touch = ranges
                    .iter()
                    .zip(ranges.iter().skip(1))
                    .any(|(a, b)| a.end >= b.start);
                assert!(!touch, "{ranges:?}");
            }
        }
    }
}

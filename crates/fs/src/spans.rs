//! Values of ranges of numbers: what becomes of the blocks or bytes of a file.

use core::ops::Range;
use std::collections::BTreeMap;

/// A value of a range that can be cut in two.
pub(crate) trait Cut {
    /// Takes out what is from `at` on, counted from the beginning.
    fn cut(&mut self, at: u64) -> Self;
}

/// Ranges with values. They do not overlap.
#[derive(Clone, Debug)]
pub(crate) struct Spans<T>(BTreeMap<u64, (u64, T)>);

impl<T> Default for Spans<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Cut> Spans<T> {
    /// All of them, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Range<u64>, &T)> {
        self.0.iter().map(|(&start, (end, value))| (start..*end, value))
    }

    /// The same by value.
    pub(crate) fn into_iter(self) -> impl Iterator<Item = (Range<u64>, T)> {
        self.0
            .into_iter()
            .map(|(start, (end, value))| (start..end, value))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Those that have numbers of a range, in order.
    pub(crate) fn of(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, &T)> {
        let before = self.0.range(..range.start).next_back();
        let inside = self.0.range(range.start..range.end.max(range.start));
        let found = before.into_iter().chain(inside);
        found
            .map(|(&start, (end, value))| (start..*end, value))
            .filter(move |(found, _)| found.end > range.start)
    }

    /// The one that has a number.
    pub(crate) fn at(&self, number: u64) -> Option<(Range<u64>, &T)> {
        self.of(number..number + 1).next()
    }

    /// Makes `at` the border of ranges.
    fn split(&mut self, at: u64) {
        let Some((&start, (end, value))) = self.0.range_mut(..at).next_back() else {
            return;
        };
        if *end > at {
            let behind = (core::mem::replace(end, at), value.cut(at - start));
            self.0.insert(at, behind);
        }
    }

    /// Sets the value of a range. What was there goes to `gone`.
    pub(crate) fn set(&mut self, range: Range<u64>, value: T, mut gone: impl FnMut(T)) {
        if range.is_empty() {
            return;
        }
        self.split(range.start);
        self.split(range.end);
        let starts: Vec<u64> = self.0.range(range.clone()).map(|(start, _)| *start).collect();
        for start in starts {
            self.0
                .remove(&start)
                .into_iter()
                .for_each(|(_, value)| gone(value));
        }
        self.0.insert(range.start, (range.end, value));
    }

    /// Keeps only some.
    pub(crate) fn retain(&mut self, mut keeps: impl FnMut(Range<u64>, &T) -> bool) {
        self.0.retain(|start, (end, value)| keeps(*start..*end, value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was set, and which number of it is the first.
    #[derive(Clone, Debug, PartialEq)]
    struct Piece(u64, u64);

    impl Cut for Piece {
        fn cut(&mut self, at: u64) -> Self {
            Self(self.0, self.1 + at)
        }
    }

    #[test]
    fn spans_are_a_list_of_values() {
        let mut rng = base::Rng::new(9);
        for _ in 0..500 {
            let (mut spans, mut list) = (Spans::default(), vec![None; 50]);
            for step in 0..20 {
                let start = rng.below(50);
                let range = start..start + rng.below(51 - start);
                let inside = range.start as usize..range.end as usize;
                let mut gone = 0;
                spans.set(range.clone(), Piece(step, 0), |_| gone += 1);
                assert_eq!(gone > 0, list[inside.clone()].iter().any(Option::is_some));
                for (index, slot) in list[inside].iter_mut().enumerate() {
                    *slot = Some((step, index as u64));
                }
                let mut found = vec![None; 50];
                for (range, piece) in spans.iter() {
                    for number in range.clone() {
                        found[number as usize] = Some((piece.0, piece.1 + number - range.start));
                    }
                }
                assert_eq!(found, list);
                let number = rng.below(50);
                let at = spans
                    .at(number)
                    .map(|(range, piece)| (piece.0, piece.1 + number - range.start));
                assert_eq!(at, list[number as usize]);
                let touched: Vec<_> = spans.of(range.clone()).map(|(range, _)| range).collect();
                let all = spans.iter().map(|(range, _)| range);
                let expected: Vec<_> = all
                    .filter(|it| it.start < range.end && it.end > range.start)
                    .collect();
                assert_eq!(touched, expected);
            }
        }
    }
}

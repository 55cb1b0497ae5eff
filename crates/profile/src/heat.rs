//! How latencies go with time: counts by moment and size, in as many columns as a picture has, however long it takes. Pure.

use serde::{Deserialize, Serialize};

/// Columns at most; with more, two become one.
const COLUMNS_MAX: usize = 120;
/// Width of a column at first, ns.
const WIDTH_NS: u64 = 10_000_000;
/// Rows of each factor of two.
const ROWS_AN_OCTAVE: f64 = 2.0;

/// A heat map.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Heat {
    /// Width of a column, ms.
    pub column_ms: f64,
    /// The lower edge of each row, µs.
    pub rows_us: Vec<f64>,
    /// For each column the operations of each row that ended in it.
    pub columns: Vec<Vec<u64>>,
}

/// Collects one.
#[derive(Clone, Debug)]
pub struct HeatMap {
    begin_ns: u64,
    width_ns: u64,
    /// By column and row.
    counts: Vec<Vec<u64>>,
}

impl HeatMap {
    /// From this moment on.
    pub fn new(begin_ns: u64) -> Self {
        Self {
            begin_ns,
            width_ns: WIDTH_NS,
            counts: Vec::new(),
        }
    }

    /// An operation that took `took_ns` ended.
    pub fn add(&mut self, end_ns: u64, took_ns: u64) {
        let after_ns = end_ns.saturating_sub(self.begin_ns);
        while after_ns / self.width_ns >= COLUMNS_MAX as u64 {
            self.width_ns *= 2;
            let halved = self.counts.chunks(2).map(|pair| {
                let mut both = pair[0].clone();
                if let Some(second) = pair.get(1) {
                    both.resize(both.len().max(second.len()), 0);
                    both.iter_mut().zip(second).for_each(|(sum, more)| *sum += more);
                }
                both
            });
            self.counts = halved.collect();
        }
        let column = (after_ns / self.width_ns) as usize;
        let row = ((took_ns.max(1) as f64).log2() * ROWS_AN_OCTAVE) as usize;
        if self.counts.len() <= column {
            self.counts.resize(column + 1, Vec::new());
        }
        let rows = &mut self.counts[column];
        if rows.len() <= row {
            rows.resize(row + 1, 0);
        }
        rows[row] += 1;
    }

    /// The map, cut to the rows that have something.
    pub fn finish(&self) -> Heat {
        let first = self
            .counts
            .iter()
            .filter_map(|rows| rows.iter().position(|count| *count > 0))
            .min();
        let (first, last) = (
            first.unwrap_or(0),
            self.counts.iter().map(Vec::len).max().unwrap_or(0),
        );
        let edge = |row: usize| (row as f64 / ROWS_AN_OCTAVE).exp2() / 1e3;
        let columns = self.counts.iter().map(|rows| {
            let count = |row: usize| rows.get(row).copied().unwrap_or(0);
            (first..last).map(count).collect()
        });
        Heat {
            column_ms: self.width_ns as f64 / 1e6,
            rows_us: (first..last).map(edge).collect(),
            columns: columns.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_widen_as_time_goes_and_nothing_is_forgotten() {
        let mut map = HeatMap::new(1_000);
        for second in 0..100_u64 {
            map.add(1_000 + second * 1_000_000_000, 4_096 << (second % 2));
        }
        let heat = map.finish();
        assert!(heat.columns.len() <= COLUMNS_MAX && heat.columns.len() > COLUMNS_MAX / 3);
        assert_eq!(heat.columns.iter().flatten().sum::<u64>(), 100);
        assert_eq!(heat.rows_us, [4.096, 4.096 * core::f64::consts::SQRT_2, 8.192]);
        let of_row = |row: usize| heat.columns.iter().map(|rows| rows[row]).sum::<u64>();
        assert_eq!([of_row(0), of_row(1), of_row(2)], [50, 0, 50]);
        assert_eq!(HeatMap::new(0).finish().columns.len(), 0);
    }
}

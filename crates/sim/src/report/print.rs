//! A report as people and programs read it, with what is claimed of its rows.

use super::Report;
use super::claims::{Claim, claims};
use super::table::Table;
use core::fmt;
use host::target::Config;
use serde_json::Value;

impl Report {
    /// As JSON: experiment, seed, an object per row, and what is claimed of them, if anything is.
    pub fn to_json(&self) -> Value {
        let mut json = self.rows_to_json();
        let claims = claims(&Table::new(self));
        if !claims.is_empty() {
            json["claims"] = claims.iter().map(Claim::to_json).collect();
        }
        json
    }

    /// The configuration that ships, as `serve --show-config` prints it, and the difference of each system.
    fn write_systems(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.systems.is_empty() {
            return Ok(());
        }
        let ships = Config::default();
        writeln!(f, "configuration that ships:\n{ships}")?;
        let ships = ships.rows();
        for (name, config) in &self.systems {
            let rows = config.rows().into_iter().filter(|row| !ships.contains(row));
            let differ: Vec<_> = rows.map(|(name, value)| format!("{name} {value}")).collect();
            match differ.as_slice() {
                [] => writeln!(f, "{name}: as it ships")?,
                differ => writeln!(f, "{name}: {}", differ.join("; "))?,
            }
        }
        writeln!(f)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |v: f64| match v.abs() {
            a if a.is_nan() => "-".to_owned(),
            a if a >= 1000.0 => format!("{v:.0}"),
            a if a >= 10.0 => format!("{v:.1}"),
            _ => format!("{v:.3}"),
        };
        self.write_systems(f)?;
        let label_width = self.rows.iter().map(|r| r.0.len()).max().unwrap_or(0);
        let width = |i: usize| {
            let cells = self.rows.iter().map(|r| number(r.1[i]).len());
            cells.max().unwrap_or(0).max(self.columns[i].len())
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        write!(f, "{:label_width$}", "")?;
        for (column, width) in self.columns.iter().zip(&widths) {
            write!(f, "  {column:>width$}")?;
        }
        writeln!(f)?;
        for (label, values) in &self.rows {
            write!(f, "{label:label_width$}")?;
            for (value, width) in values.iter().zip(&widths) {
                write!(f, "  {:>width$}", number(*value))?;
            }
            writeln!(f)?;
        }
        for claim in claims(&Table::new(self)) {
            writeln!(f, "{claim}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_a_table_and_json() {
        let mut report = Report::new("x", 7, &["read_p99_us", "iops"]);
        report.push("ours", vec![12.5, 100_000.0]);
        report.push("theirs", vec![1.0, 2.0]);
        assert_eq!(report.value("ours", "iops"), Some(100_000.0));
        assert_eq!(report.to_json()["rows"][1]["read_p99_us"], 1.0);
        let text = report.to_string();
        assert_eq!(text.lines().count(), 3);
        assert!(
            text.lines()
                .all(|line| line.len() == text.lines().next().unwrap().len())
        );
    }
}

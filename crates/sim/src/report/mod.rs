//! The result of an experiment: rows of numbers, as JSON and as a text table, and what they are to show.

pub mod claims;
pub mod number;
pub mod table;

use crate::eval::Figure;
use claims::{Claim, claims};
use core::fmt;
use serde_json::{Map, Value, json};
use table::Table;

/// Rows of numbers with a label each.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Name of the experiment.
    pub experiment: String,
    /// The seed.
    pub seed: u64,
    /// What the columns hold; the name ends with the unit.
    pub columns: Vec<String>,
    /// Label and one number per column.
    pub rows: Vec<(String, Vec<f64>)>,
    /// The figure that it shows, if it shows one: its JSON is the report's.
    pub figure: Option<Figure>,
}

impl Report {
    /// A report without rows.
    pub fn new(experiment: &str, seed: u64, columns: &[&str]) -> Self {
        Self {
            experiment: experiment.to_owned(),
            seed,
            columns: columns.iter().map(|&c| c.to_owned()).collect(),
            rows: Vec::new(),
            figure: None,
        }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// If it has not one number per column.
    pub fn push(&mut self, label: &str, values: Vec<f64>) {
        assert_eq!(values.len(), self.columns.len(), "a row has a number per column");
        self.rows.push((label.to_owned(), values));
    }

    /// The number in a row and column, if both exist.
    pub fn value(&self, label: &str, column: &str) -> Option<f64> {
        let at = self.columns.iter().position(|c| c == column)?;
        let row = self.rows.iter().find(|r| r.0 == label)?;
        Some(row.1[at])
    }

    /// As JSON: experiment, seed, an object per row, and what is claimed of them, if anything is.
    pub fn to_json(&self) -> Value {
        let mut json = self.rows_to_json();
        let claims = claims(&Table::new(self));
        if !claims.is_empty() {
            json["claims"] = claims.iter().map(Claim::to_json).collect();
        }
        json
    }

    fn rows_to_json(&self) -> Value {
        if let Some(figure) = &self.figure {
            return figure.to_json();
        }
        let row = |(label, values): &(String, Vec<f64>)| {
            let mut object = Map::new();
            object.insert("row".to_owned(), json!(label));
            for (column, value) in self.columns.iter().zip(values) {
                object.insert(column.clone(), json!(value));
            }
            Value::Object(object)
        };
        json!({
            "experiment": self.experiment,
            "seed": self.seed,
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
        })
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

//! The result of an experiment: rows of numbers, as JSON and as a text table, and what they are to show.

pub mod claims;
pub mod number;
mod print;
pub mod table;

use crate::eval::{Figure, NAMES};
use host::target::Config;
use serde_json::{Map, Value, json};

/// Progress of a running experiment: a line for the user.
pub type Progress<'a> = &'a mut dyn FnMut(&str);

/// Rows of numbers with a label each.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Name of the experiment.
    pub experiment: String,
    /// The seed.
    pub seed: u64,
    /// Names of the columns; a name ends with its unit.
    pub columns: Vec<String>,
    /// Label and one number per column.
    pub rows: Vec<(String, Vec<f64>)>,
    /// The figure that it shows, if it shows one: its JSON is the report's.
    pub figure: Option<Figure>,
    /// The systems of an experiment of the block switch, with the configuration of each.
    pub systems: Vec<(&'static str, Config)>,
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
            systems: Vec::new(),
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
        let mut json = json!({
            "experiment": self.experiment,
            "seed": self.seed,
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
        });
        if !self.systems.is_empty() {
            let systems = self.systems.iter();
            json["configurations"] = systems.map(|(name, config)| (*name, config.to_json())).collect();
        }
        json
    }
}

impl From<Figure> for Report {
    /// A figure's rows as a table; its JSON stays the figure's.
    fn from(figure: Figure) -> Self {
        let kinds = ["read", "write"];
        let columns: Vec<String> = kinds
            .iter()
            .flat_map(|kind| NAMES.iter().map(move |name| format!("{kind}_{name}")))
            .collect();
        let mut names: Vec<&str> = columns.iter().map(String::as_str).collect();
        names.extend(["iops", "write_amplification"]);
        let mut report = Self::new(&figure.experiment, figure.seed, &names);
        for row in &figure.rows {
            let mut values = row.read.values().to_vec();
            values.extend(row.write.values());
            values.extend([row.iops, row.write_amplification]);
            report.push(&row.label(), values);
        }
        report.figure = Some(figure);
        report
    }
}

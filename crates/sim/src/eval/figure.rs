//! A figure's numbers: rows of latencies, as JSON and as a table.

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

/// Latencies in µs; not a number, and `null` in JSON, if there were no requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Percentiles {
    /// Requests.
    pub count: u64,
    /// Mean.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 95th percentile.
    pub p95_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// 99.99th percentile.
    pub p9999_us: f64,
}

impl Percentiles {
    /// Of a histogram of nanoseconds.
    pub fn of(histogram: &Histogram<u64>) -> Self {
        let at = |q: f64| match histogram.is_empty() {
            true => f64::NAN,
            false => histogram.value_at_quantile(q) as f64 / 1e3,
        };
        Self {
            count: histogram.len(),
            mean_us: if histogram.is_empty() {
                f64::NAN
            } else {
                histogram.mean() / 1e3
            },
            p50_us: at(0.5),
            p95_us: at(0.95),
            p99_us: at(0.99),
            p999_us: at(0.999),
            p9999_us: at(0.9999),
        }
    }

    /// In the order of the fields, without the count.
    pub(crate) fn values(&self) -> [f64; 6] {
        [
            self.mean_us,
            self.p50_us,
            self.p95_us,
            self.p99_us,
            self.p999_us,
            self.p9999_us,
        ]
    }

    /// As JSON.
    pub fn to_json(&self) -> Value {
        let mut object: Map<String, Value> = NAMES
            .iter()
            .zip(self.values())
            .map(|(name, value)| ((*name).to_owned(), json!(value)))
            .collect();
        object.insert("count".to_owned(), json!(self.count));
        Value::Object(object)
    }
}

/// Quantiles of [`cdf`].
const QUANTILES: [f64; 17] = [
    0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9999,
];

/// A distribution as pairs of share and latency in µs.
pub(super) fn cdf(histogram: &Histogram<u64>) -> Value {
    let point = |&q: &f64| json!([q, histogram.value_at_quantile(q) as f64 / 1e3]);
    QUANTILES.iter().map(point).collect()
}

/// Names of [`Percentiles::values`].
pub(crate) const NAMES: [&str; 6] = ["mean_us", "p50_us", "p95_us", "p99_us", "p999_us", "p9999_us"];

/// One system under one workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The policies' name.
    pub policy: String,
    /// The workload's.
    pub workload: String,
    /// Parameters that the figure varies, by name.
    pub parameters: Map<String, Value>,
    /// Setup of the run, by name: hardware, rate or depth, requests. JSON has it among the parameters.
    pub made_with: Map<String, Value>,
    /// Of reads.
    pub read: Percentiles,
    /// Of writes.
    pub write: Percentiles,
    /// Requests answered a second.
    pub iops: f64,
    /// Pages programmed for each that clients wrote; not a number if they wrote none.
    pub write_amplification: f64,
    /// Other results of the run in this figure, by name.
    pub more: Map<String, Value>,
}

impl Row {
    /// As JSON.
    pub fn to_json(&self) -> Value {
        let mut object = self.more.clone();
        let mut parameters = self.made_with.clone();
        parameters.extend(self.parameters.clone());
        object.insert("policy".to_owned(), json!(self.policy));
        object.insert("workload".to_owned(), json!(self.workload));
        object.insert("parameters".to_owned(), Value::Object(parameters));
        object.insert("read".to_owned(), self.read.to_json());
        object.insert("write".to_owned(), self.write.to_json());
        object.insert("iops".to_owned(), json!(self.iops));
        object.insert("write_amplification".to_owned(), json!(self.write_amplification));
        Value::Object(object)
    }

    /// Its policy, workload and parameters in a line.
    pub fn label(&self) -> String {
        let mut label = format!("{} {}", self.policy, self.workload);
        for (name, value) in &self.parameters {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            label.push_str(&format!(" {name}={value}"));
        }
        label
    }
}

/// An experiment's rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// Name of the experiment.
    pub experiment: String,
    /// The seed.
    pub seed: u64,
    /// Values that all rows share.
    pub parameters: Map<String, Value>,
    /// The rows.
    pub rows: Vec<Row>,
}

impl Figure {
    /// A figure without rows.
    pub fn new(experiment: &str, seed: u64) -> Self {
        Self {
            experiment: experiment.to_owned(),
            seed,
            parameters: Map::new(),
            rows: Vec::new(),
        }
    }

    /// As JSON.
    pub fn to_json(&self) -> Value {
        json!({
            "experiment": self.experiment,
            "seed": self.seed,
            "parameters": self.parameters,
            "rows": self.rows.iter().map(Row::to_json).collect::<Vec<_>>(),
        })
    }

    /// The row of this policy and workload, the first if there are several.
    pub fn row(&self, policy: &str, workload: &str) -> Option<&Row> {
        self.rows
            .iter()
            .find(|row| row.policy == policy && row.workload == workload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Report;

    #[test]
    fn a_figure_is_one_object_of_rows_and_a_table() {
        let mut reads = Histogram::<u64>::new(3).unwrap();
        reads.record(2_000).unwrap();
        let none = Histogram::<u64>::new(3).unwrap();
        let mut figure = Figure::new("fig0", 7);
        figure.rows.push(Row {
            policy: "vdc".to_owned(),
            workload: "reads".to_owned(),
            parameters: Map::from_iter([("write_percent".to_owned(), json!(0))]),
            made_with: Map::from_iter([("rate_per_second".to_owned(), json!(10))]),
            read: Percentiles::of(&reads),
            write: Percentiles::of(&none),
            iops: 10.0,
            write_amplification: f64::NAN,
            more: Map::from_iter([("storage".to_owned(), json!(1))]),
        });
        let report = Report::from(figure);
        let json = report.to_json();
        assert_eq!((&json["experiment"], &json["seed"]), (&json!("fig0"), &json!(7)));
        let row = &json["rows"][0];
        assert!((row["read"]["p999_us"].as_f64().unwrap() - 2.0).abs() < 0.01);
        assert!(row["write"]["p999_us"].is_null() && row["write_amplification"].is_null());
        let parameters = &row["parameters"];
        assert_eq!(
            (
                &row["storage"],
                &parameters["write_percent"],
                &parameters["rate_per_second"]
            ),
            (&json!(1), &json!(0), &json!(10))
        );
        let text = report.to_string();
        assert!(text.contains("vdc reads write_percent=0"), "{text}");
        assert!(!text.contains("NaN"), "{text}");
    }
}

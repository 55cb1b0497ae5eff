//! Common parts of comparisons: number and length of rounds, medians, and progress for people.

use std::io::IsTerminal;
use std::ops::RangeInclusive;

/// Rounds of any comparison.
pub const ROUNDS: RangeInclusive<usize> = 1..=100;
/// Seconds of a run of any comparison.
pub const SECONDS: RangeInclusive<f64> = 0.05..=600.0;

/// The median of at least one value.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Progress for a person.
pub fn bar(json: bool) -> indicatif::ProgressBar {
    if json || !std::io::stderr().is_terminal() {
        return indicatif::ProgressBar::hidden();
    }
    let style =
        indicatif::ProgressStyle::with_template("{msg:<34} [{bar:40}] {percent}%").expect("a valid template");
    indicatif::ProgressBar::new(100).with_style(style)
}

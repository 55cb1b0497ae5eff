//! How a check runs: many schedules of one scenario. Each crate with model checks includes this file.
//!
//! `SWITCHYARD_SCHEDULES` is how many schedules each check runs; the default takes seconds.
#![allow(dead_code, reason = "each crate uses a part")]

use super::sync::{FAULT, Fault};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Schedules of a check.
pub const SCHEDULES: usize = 400;
/// Schedules within which a mistake is found, with room to spare.
const SCHEDULES_TO_FIND: usize = 4000;
/// Preemptions that a schedule of the second kind has at most.
const PREEMPTIONS_MAX: usize = 4;
/// Engines and sessions need more than the checker's usual stack.
const STACK_BYTES: usize = 1 << 18;

/// Runs `scenario` under random schedules, and under those with few preemptions at the worst places.
pub fn check(fault: Option<Fault>, schedules: usize, scenario: impl Fn() + Send + Sync + Copy + 'static) {
    let asked = std::env::var("SWITCHYARD_SCHEDULES")
        .ok()
        .and_then(|count| count.parse().ok());
    let schedules = asked.unwrap_or(schedules);
    let mut config = shuttle::Config::new();
    config.stack_size = STACK_BYTES;
    config.silence_warnings = true;
    let run = move || {
        FAULT.set(fault);
        scenario();
    };
    shuttle::Runner::new(RandomScheduler::new(schedules), config.clone()).run(run);
    shuttle::Runner::new(PctScheduler::new(PREEMPTIONS_MAX, schedules), config).run(run);
}

/// The checker must find that `scenario` stops for ever.
pub fn finds(fault: Option<Fault>, scenario: impl Fn() + Send + Sync + Copy + 'static) {
    finds_that(fault, "deadlock", scenario);
}

/// The checker must find that `scenario` ends in a panic that says `what`.
pub fn finds_that(fault: Option<Fault>, what: &str, scenario: impl Fn() + Send + Sync + Copy + 'static) {
    let checked = catch_unwind(AssertUnwindSafe(|| check(fault, SCHEDULES_TO_FIND, scenario)));
    let panic = checked.expect_err("the mistake is found");
    let said = panic.downcast_ref::<String>().cloned();
    let said = said.or_else(|| panic.downcast_ref::<&str>().map(|said| (*said).to_owned()));
    let said = said.unwrap_or_default();
    assert!(said.contains(what), "{said}");
}

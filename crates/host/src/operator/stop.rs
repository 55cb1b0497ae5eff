//! Stopping: the requests in flight are answered, then another gateway may lead.

use super::command::Done;
use super::job::{SOON, Sight, Step};
use super::leadership::Leadership;
use base::{Duration, Instant};

/// Requests in flight are waited for this long.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);

/// A stop under way.
#[derive(Debug, Default)]
pub(super) struct Stop {
    until: Option<Instant>,
    clean: bool,
    is_over: bool,
}

impl Stop {
    /// How it ended, as far as is known.
    pub fn done(&self) -> Done {
        Done::Stopped { clean: self.clean }
    }

    /// Next step.
    pub fn advance(&mut self, sight: &Sight, leadership: &mut Leadership) -> Step {
        let until = *self.until.get_or_insert(sight.now + ANSWERED_WITHIN);
        if !self.is_over {
            let Some(view) = sight.view else {
                return Step::Look;
            };
            self.clean = view.in_flight == 0;
            if !self.clean && sight.now < until {
                return Step::Wait(SOON);
            }
            self.is_over = true;
        }
        match leadership.give_back(sight.records) {
            Some(next) => Step::Store(Box::new(next)),
            None => Step::Finish(Ok(self.done())),
        }
    }
}

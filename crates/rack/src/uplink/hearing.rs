//! Whether a part of a rack hears anything by its ToRs. A part that has two compares them; this is about the only one, or both.

use base::{Duration, Instant};

/// Between two looks; a part that has heard nothing since the last one asks its only ToR.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Looks in a row without a word: nothing is there. A part that was stopped itself has missed one look.
const LOOKS_MAX: u32 = 3;

/// Outcome of a look.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Something was heard.
    Well,
    /// Nothing was.
    Ask,
    /// Nothing was for so long that it is told.
    FellSilent(Duration),
}

/// The ears of a part.
#[derive(Debug, Default)]
pub(super) struct Hearing {
    look_at: Instant,
    /// Since the last look.
    heard: bool,
    /// The first of the looks in a row without a word.
    unheard_since: Option<Instant>,
    looks: u32,
    /// Something was heard ever.
    knows: bool,
    silent_since: Option<Instant>,
}

impl Hearing {
    /// Something has come. Returns how long nothing had, if that was told.
    #[inline]
    pub fn heard(&mut self, now: Instant) -> Option<Duration> {
        (self.heard, self.knows) = (true, true);
        self.silent_since.take().map(|since| now.since(since))
    }

    /// True if something comes by the ToRs, as far as is known.
    pub fn hears(&self) -> bool {
        self.knows && self.silent_since.is_none()
    }

    /// True if nothing comes, and that was told.
    pub fn is_silent(&self) -> bool {
        self.silent_since.is_some()
    }

    /// When to look.
    #[inline]
    pub fn deadline(&self) -> Instant {
        self.look_at
    }

    /// Looks.
    #[cold]
    pub fn look(&mut self, now: Instant) -> Look {
        self.look_at = now + LOOK_EVERY;
        if core::mem::take(&mut self.heard) {
            (self.looks, self.unheard_since) = (0, None);
            return Look::Well;
        }
        let since = *self.unheard_since.get_or_insert(now);
        self.looks += 1;
        if self.looks <= LOOKS_MAX || self.silent_since.is_some() {
            return Look::Ask;
        }
        self.silent_since = Some(since);
        Look::FellSilent(now.since(since))
    }
}

//! Tables that a merge could not read. Merges go around them. They are read again later: one that reads well is as before, and one whose
//! content is wrong again is damaged.

use std::collections::BTreeMap;

/// A table is read again after so many segments that the area takes into use, at most: what stays unreadable costs little.
const SEGMENTS_MAX: u64 = 1024;
/// A table that the medium does not give has been read so long in vain when it would be read again after so many.
const SEGMENTS_STAYING: u64 = 16;
/// Content that was wrong in so many reads is damaged: a single one may be the fault of the way to the medium.
const WRONG_MIN: u32 = 2;

/// The result of reading a table in vain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The medium did not give it.
    Unread,
    /// It gave something else than a table.
    Wrong,
}

struct Suspect {
    /// Of the trouble, in the area.
    offset: u64,
    /// How often its content was wrong.
    wrong: u32,
    /// It is read again when the area has taken so many segments into use; the next time after so many more.
    until: u64,
    segments: u64,
}

/// By generation.
#[derive(Default)]
pub(crate) struct Suspects(BTreeMap<u64, Suspect>);

impl Suspects {
    /// True for a table that merges go around.
    pub(crate) fn has(&self, generation: u64) -> bool {
        self.0.contains_key(&generation)
    }

    /// A table could not be read at `offset`, when the area had taken `taken` segments into use.
    pub(crate) fn note(&mut self, generation: u64, offset: u64, trouble: Trouble, taken: u64) {
        let suspect = self.0.entry(generation).or_insert(Suspect {
            offset,
            wrong: 0,
            until: 0,
            segments: 1,
        });
        suspect.offset = offset;
        suspect.wrong += u32::from(trouble == Trouble::Wrong);
        // Whether wrong content stays so is seen at once.
        suspect.until = match suspect.wrong {
            1..WRONG_MIN if trouble == Trouble::Wrong => taken,
            _ => taken + suspect.segments,
        };
        suspect.segments = (2 * suspect.segments).min(SEGMENTS_MAX);
    }

    /// A table has been read, or does not count any more.
    pub(crate) fn forget(&mut self, generation: u64) {
        self.0.remove(&generation);
    }

    /// Tables to be read again now.
    pub(crate) fn due(&self, taken: u64) -> impl Iterator<Item = u64> {
        let due = self.0.iter().filter(move |(_, it)| it.until <= taken);
        due.map(|(&generation, _)| generation)
    }

    /// True for a table that has been read again in vain: what has to go around it for good may do so.
    pub(crate) fn stays(&self, generation: u64) -> bool {
        let suspect = self.0.get(&generation);
        suspect.is_some_and(|it| it.wrong >= WRONG_MIN || it.segments >= SEGMENTS_STAYING)
    }

    /// Somebody has no room: what is not known to be damaged is read again soon.
    pub(crate) fn hurry(&mut self) {
        let unknown = self.0.values_mut().filter(|it| it.wrong < WRONG_MIN);
        unknown.for_each(|it| it.until = 0);
    }

    /// How many tables are damaged, and the place of the first damage.
    pub(crate) fn damaged(&self) -> (u32, Option<u64>) {
        let damaged = self.0.values().filter(|it| it.wrong >= WRONG_MIN);
        let offsets = damaged.map(|it| it.offset);
        (offsets.clone().count() as u32, offsets.min())
    }
}

//! A change of the catalog on its way, step by step: what its server does next.
//!
//! The server does each step and says how it went ([`Done`]), until there is an answer. It computes a step and saves the
//! table in one locked step. A crash may come between any two steps. The table is then the one that was saved last, and
//! [`Errand::resume`] undoes or completes what that table says is under way.
//!
//! # Invariants
//! - A change is answered as done only after its last table is saved.
//! - Nothing is done to the medium before a table is saved that says so.
//! - Nobody sees more of an area than a saved table gives it: whoever sees it may use it at once, and a crash would take it away.
//! - A change that was refused, or whose work failed and was undone, leaves no trace.

use super::{AreaId, Catalog, CatalogArea, CatalogRefusal, Change, NewArea, Quota, Who, Work};

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Save this table, durably: it is the table from then on.
    Save(Catalog),
    /// Put the rate of this area in force.
    Limit(AreaId),
    /// Work on the medium; one errand at a time.
    Work(Work),
    /// Let whoever has this area open see all of the range that the saved table gives it. At once, as [`Step::Limit`]. If it fails,
    /// it is done later: the change is made.
    Show(AreaId),
    /// The end.
    Answer(Answer),
}

/// How an errand ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The change is made, durably.
    Made,
    /// Nothing was done.
    Refused(CatalogRefusal),
    /// Nothing was done: somebody has the area open.
    InUse,
    /// Nothing was done: the medium has no rates.
    NoRates,
    /// A table could not be saved: the state of the medium is known after a restart.
    TableFailed,
    /// The last step failed that was not an undoing. The change is undone, or will be.
    WorkFailed,
}

/// How a step went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// It was done. Also the first call.
    Well,
    /// It failed: somebody has the area open.
    InUse,
    /// It failed for another reason.
    Failed,
}

/// The state of areas on the medium at this moment.
pub trait Facts {
    /// Somebody has it open, or may have.
    fn is_open(&self, id: AreaId, area: &CatalogArea) -> bool;
    /// It is handed out through a loop device.
    fn has_loop(&self, area: &CatalogArea) -> bool;
    /// Rates can be put in force.
    fn can_limit(&self) -> bool;
}

/// A change that somebody asks for.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The change.
    pub change: Change,
    /// By whom.
    pub who: Who,
    /// Limit of all areas of the owner.
    pub quota: Quota,
    /// Delete an area that somebody has open, too.
    pub force: bool,
}

/// How far an errand is: the step that it waits for.
#[derive(Clone, Debug)]
enum Stage {
    Asked(Asked),
    /// The table of the first step is being saved.
    Beginning(Option<AreaId>, Option<Work>),
    Limiting(Option<Work>),
    Working(Work),
    /// The work failed.
    Undoing(Work),
    Ending(Option<AreaId>, Answer),
    Showing(Answer),
    Answered(Answer),
}

/// A change on its way. See the module.
#[derive(Clone, Debug)]
pub struct Errand {
    stage: Stage,
    /// It was begun before a restart.
    is_resumed: bool,
}

impl Errand {
    /// A change that somebody asks for.
    pub fn new(asked: Asked) -> Self {
        Self {
            stage: Stage::Asked(asked),
            is_resumed: false,
        }
    }

    /// Undoes or completes what was under way: one of [`Catalog::unfinished`].
    pub fn resume(work: Work) -> Self {
        Self {
            stage: Stage::Limiting(Some(work)),
            is_resumed: true,
        }
    }

    /// The next step, where `table` is the table now, and the last step went as `done` says.
    pub fn next(&mut self, table: &Catalog, facts: &dyn Facts, done: Done) -> Step {
        let last = Stage::Answered(Answer::Made);
        let (stage, step) = match std::mem::replace(&mut self.stage, last) {
            Stage::Asked(asked) => match begin(table, facts, &asked) {
                Ok((next, limit, work)) if next != *table => {
                    (Stage::Beginning(limit, work), Step::Save(next))
                }
                Ok((_, limit, work)) => begun(limit, work),
                Err(refused) => ended(refused),
            },
            Stage::Beginning(..) | Stage::Ending(..) if done != Done::Well => ended(Answer::TableFailed),
            Stage::Beginning(limit, work) => begun(limit, work),
            Stage::Limiting(_) if done != Done::Well => ended(Answer::WorkFailed),
            Stage::Limiting(work) => begun(None, work),
            Stage::Working(work) => match done {
                Done::Well => saves_end(table, &work, Answer::Made),
                // The area is gone for everybody who has not got it open. Its space is free when the last holder closes it.
                Done::InUse if matches!(work, Work::Remove(..)) && !self.is_resumed => ended(Answer::Made),
                _ if self.is_resumed => ended(Answer::WorkFailed),
                _ => match table
                    .unfinished()
                    .into_iter()
                    .find(|undo| undo.area() == work.area())
                {
                    Some(undo) => (Stage::Undoing(undo), Step::Work(undo)),
                    None => ended(Answer::WorkFailed),
                },
            },
            Stage::Undoing(undo) if done == Done::Well => saves_end(table, &undo, Answer::WorkFailed),
            // It stays in the table, to be undone later.
            Stage::Undoing(_) => ended(Answer::WorkFailed),
            Stage::Ending(Some(id), answer) => (Stage::Showing(answer), Step::Show(id)),
            Stage::Ending(None, answer) | Stage::Showing(answer) | Stage::Answered(answer) => ended(answer),
        };
        self.stage = stage;
        step
    }
}

fn ended(answer: Answer) -> (Stage, Step) {
    (Stage::Answered(answer), Step::Answer(answer))
}

fn begun(limit: Option<AreaId>, work: Option<Work>) -> (Stage, Step) {
    match (limit, work) {
        (Some(id), work) => (Stage::Limiting(work), Step::Limit(id)),
        (None, Some(work)) => (Stage::Working(work), Step::Work(work)),
        (None, None) => ended(Answer::Made),
    }
}

fn saves_end(table: &Catalog, work: &Work, answer: Answer) -> (Stage, Step) {
    let mut next = table.clone();
    next.end(work);
    let grown = matches!(work, Work::Grow(..)).then_some(work.area());
    (Stage::Ending(grown, answer), Step::Save(next))
}

type Begun = (Catalog, Option<AreaId>, Option<Work>);

/// The table with the change in it, and what else is to be done.
fn begin(table: &Catalog, facts: &dyn Facts, asked: &Asked) -> Result<Begun, Answer> {
    let mut next = table.clone();
    let work = next.begin(&asked.change, asked.who, asked.quota);
    let work = work.map_err(Answer::Refused)?;
    let mut limit = None;
    match &asked.change {
        Change::Delete { name } => {
            let is_open = |(id, area)| facts.is_open(id, area);
            if !asked.force && table.find(name, asked.who.user).is_some_and(is_open) {
                return Err(Answer::InUse);
            }
        }
        Change::Create(NewArea { name, .. }) | Change::Limit { name, .. } => {
            let user = match &asked.change {
                Change::Create(new) => new.owner,
                _ => asked.who.user,
            };
            let (id, area) = next.find(name, user).expect("it was begun");
            if area.rate.is_limited() && !facts.can_limit() {
                return Err(Answer::NoRates);
            }
            // A holder has it open as it is without a rate, or with one.
            let was = table.area(id);
            if was.is_some_and(|was| facts.has_loop(area) != facts.has_loop(was) && facts.is_open(id, was)) {
                return Err(Answer::InUse);
            }
            limit = matches!(asked.change, Change::Limit { .. }).then_some(id);
        }
        _ => {}
    }
    Ok((next, limit, work))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{AreaState, Extent, Rate, UNIT_BYTES};
    use std::collections::BTreeMap;

    const ADMIN: Who = Who {
        user: 0,
        group: 0,
        is_admin: true,
    };
    /// More steps than a script takes.
    const STEPS_MAX: usize = 24;

    /// Nothing is open, and everything can be done.
    struct Idle;

    impl Facts for Idle {
        fn is_open(&self, _: AreaId, _: &CatalogArea) -> bool {
            false
        }
        fn has_loop(&self, _: &CatalogArea) -> bool {
            false
        }
        fn can_limit(&self) -> bool {
            true
        }
    }

    /// A server and its medium.
    struct World {
        table: Catalog,
        /// The table on the medium.
        saved: Catalog,
        /// The space that areas have on it.
        extents: BTreeMap<AreaId, Extent>,
        /// Bytes of each area that its holder has seen, and uses.
        used: BTreeMap<AreaId, u64>,
        steps: usize,
        /// Steps that fail, one bit each.
        failing: u64,
        /// The step of the crash, and whether the step is done before.
        crash: Option<(usize, bool)>,
        has_failed_table: bool,
    }

    impl World {
        /// Carries an errand out; `None` if the crash comes.
        fn carry(&mut self, mut errand: Errand) -> Option<Answer> {
            let mut done = Done::Well;
            loop {
                let step = match errand.next(&self.table, &Idle, done) {
                    Step::Answer(answer) => return Some(answer),
                    step => step,
                };
                let at = self.steps;
                self.steps += 1;
                if self.crash == Some((at, false)) {
                    return None;
                }
                done = self.make(step, self.failing >> at & 1 == 1);
                if self.crash == Some((at, true)) {
                    return None;
                }
            }
        }

        fn make(&mut self, step: Step, fails: bool) -> Done {
            self.has_failed_table |= fails && matches!(step, Step::Save(_));
            match step {
                Step::Save(_) if self.has_failed_table => return Done::Failed,
                Step::Save(next) => {
                    self.saved = next.clone();
                    self.table = next;
                }
                // What fails may have taken the space already, and has given none back.
                Step::Work(Work::Make(id, extent)) => {
                    self.extents.insert(id, extent);
                    self.used.insert(id, extent.bytes);
                }
                Step::Work(Work::Grow(id, _, extent)) => {
                    self.extents.insert(id, extent);
                }
                Step::Show(id) => {
                    self.used.insert(id, self.extents[&id].bytes);
                }
                Step::Work(Work::Shrink(id, extent, _)) if !fails => {
                    self.extents.insert(id, extent);
                }
                Step::Work(Work::Remove(id, _)) if !fails => {
                    self.extents.remove(&id);
                    self.used.remove(&id);
                }
                _ => {}
            }
            if fails { Done::Failed } else { Done::Well }
        }

        /// A new server takes over, and nothing fails any more.
        fn restart(&mut self) {
            (self.failing, self.crash, self.has_failed_table) = (0, None, false);
            self.table = self.saved.clone();
            for work in self.table.unfinished() {
                assert_eq!(self.carry(Errand::resume(work)), Some(Answer::Made));
            }
        }

        /// The areas that users see.
        fn seen(&self) -> BTreeMap<String, u64> {
            let all = self.table.areas();
            all.map(|(_, area)| (area.name.clone(), area.extent.bytes))
                .collect()
        }

        fn check(&self) {
            let areas = self.table.areas();
            let extents: BTreeMap<_, _> = areas.map(|(id, area)| (id, area.extent)).collect();
            assert_eq!(extents, self.extents, "areas have the space that the table says");
            for (id, used) in &self.used {
                assert!(*used <= extents[id].bytes, "what its holder uses stays an area's");
            }
            let mut areas = self.table.areas();
            assert!(areas.all(|(_, area)| area.state == AreaState::Ready));
        }
    }

    fn script() -> [Change; 5] {
        let create = |name: &str| {
            Change::Create(NewArea {
                name: name.into(),
                bytes: 8 * UNIT_BYTES,
                owner: 0,
                group: 0,
                mode: 0o600,
                rate: Rate::UNLIMITED,
            })
        };
        let resize = |name: &str, units| Change::Resize {
            name: name.into(),
            bytes: units * UNIT_BYTES,
        };
        // An area with another one behind it moves.
        let delete = Change::Delete { name: "a".into() };
        [create("a"), create("b"), resize("a", 16), resize("b", 9), delete]
    }

    /// The areas after a change.
    fn after(before: &BTreeMap<String, u64>, change: &Change) -> BTreeMap<String, u64> {
        let mut after = before.clone();
        match change {
            Change::Create(NewArea { name, bytes, .. }) | Change::Resize { name, bytes } => {
                after.insert(name.clone(), *bytes);
            }
            Change::Delete { name } => {
                after.remove(name);
            }
            _ => {}
        }
        after
    }

    fn play(failing: u64, crash: Option<(usize, bool)>) {
        let table = Catalog::new([1; 16], true, 64 * UNIT_BYTES);
        let mut world = World {
            saved: table.clone(),
            table,
            extents: BTreeMap::new(),
            used: BTreeMap::new(),
            steps: 0,
            failing,
            crash,
            has_failed_table: false,
        };
        for change in script() {
            let before = world.seen();
            let made = after(&before, &change);
            let asked = Asked {
                change,
                who: ADMIN,
                quota: Quota::UNLIMITED,
                force: false,
            };
            let answer = world.carry(Errand::new(asked));
            match answer {
                Some(Answer::Made) => assert_eq!(world.seen(), made, "an answer is kept"),
                Some(Answer::Refused(_)) => assert_eq!(world.seen(), before, "a refusal leaves no trace"),
                _ => {
                    world.restart();
                    let seen = world.seen();
                    assert!(
                        seen == before || seen == made,
                        "a change is whole or not there: {seen:?}"
                    );
                }
            }
        }
        world.restart();
        world.check();
        assert!(world.steps <= 2 * STEPS_MAX);
    }

    #[test]
    fn a_crash_between_any_two_steps_leaves_a_change_whole_or_undone() {
        for at in 0..STEPS_MAX {
            for is_done in [false, true] {
                play(0, Some((at, is_done)));
                (0..STEPS_MAX).for_each(|failing| play(1 << failing, Some((at, is_done))));
            }
        }
    }

    #[test]
    fn steps_that_fail_leave_a_change_whole_or_undone() {
        for first in 0..STEPS_MAX {
            (0..STEPS_MAX).for_each(|second| play(1 << first | 1 << second, None));
        }
    }
}

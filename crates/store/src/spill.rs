//! Memory's limit: maps and trees that have grown to it go to tables, and tables are merged (docs/format/store.md, "Tables").
//!
//! One job is under way at a time. What leaves memory is *frozen* first: it is looked up and counts, and does not change. When
//! the job is done, a record lists the tables, and when that record is durable the frozen part is dropped.

use crate::checkpoint::Checkpoints;
use crate::clean::Cleaning;
use crate::damage::FetchError;
use crate::index::Frozen;
use crate::layout::CLEANER_SEGMENTS;
use crate::limits::{FLUSH_SEGMENTS_MIN, MERGE_SEGMENTS, MERGED_MAX, behind, entries_in, table_count};
use crate::log::{Access, JOB_SEGMENTS_MAX, Log, Ticket, TicketState};
use crate::suspects::{Suspects, Trouble};
use crate::table::Place;
use crate::table::job::{Job, JobError, Made, Merge, Work};
use crate::table::levels::{LEVELS_MAX, Levels, Pick, Step, View};
use crate::table::reader::{ReadError, Table};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Level 0 may have so many times its limit before memory has to wait for merges.
const LAG_MAX: u64 = 3;

/// A range that looks into one table more than it has to is worth so many bytes of merges: a look costs a page, and the CPU time of
/// some more.
const LOOK_BYTES: u64 = 16 << 10;

/// The tables' state.
pub(crate) struct Spill {
    state: State,
    /// Sources of the merge that goes on, and their level.
    pass: Option<Pass>,
    /// Where in each level the last merge ended.
    cursors: [Vec<u8>; LEVELS_MAX],
    /// Tables that do not count any more, as long as readers have them.
    retired: Vec<Arc<Table>>,
    /// What was frozen and is in tables: whoever drops it takes a while.
    trash: Vec<Arc<Frozen>>,
    /// Somebody has no room.
    is_urgent: bool,
    /// What was frozen is in tables up to this key.
    flushed_to: Option<Arc<[u8]>>,
    /// How often memory was frozen.
    freezes: u64,
    /// Bytes of merges that ranges have been worth, and those of the next merge that they ask for; 0 if it is not known.
    looked_bytes: u64,
    merge_bytes: u64,
    /// A job failed when this was the log's newest segment: nothing is tried again before the next one, so that generations that failed
    /// jobs have used are soon below one that is on the medium.
    failed_in: Option<u64>,
    /// Tables that could not be read: merges go around them.
    suspects: Suspects,
    /// The place of a value that a job found wrong, in the area.
    wrong_at: Option<u64>,
}

struct Pass {
    level: usize,
    generations: BTreeSet<u64>,
}

enum State {
    Idle,
    /// Frozen; the log has it durably when this is.
    Frozen(Ticket),
    /// Of a merge the level.
    Running(Running),
    /// Done, and not listed yet: there was no room for a record.
    Made(Running, Made),
    /// Listed by a record.
    Listed {
        ticket: Ticket,
        levels: Levels,
        retired: Vec<Arc<Table>>,
        made: Made,
        is_flush: bool,
        was_sunk: bool,
    },
}

#[derive(Clone, Default)]
struct Running {
    /// Inputs of a merge, and its level; nothing for a flush.
    inputs: Vec<View>,
    level: usize,
    is_flush: bool,
    /// Instead of a merge: this damaged table of the level goes one deeper.
    sunk: Option<View>,
    /// Instead of a merge: this table is read again.
    looked_at: Option<Place>,
}

impl Default for Spill {
    fn default() -> Self {
        Self {
            state: State::Idle,
            pass: None,
            cursors: [const { Vec::new() }; LEVELS_MAX],
            retired: Vec::new(),
            trash: Vec::new(),
            is_urgent: false,
            flushed_to: None,
            failed_in: None,
            suspects: Suspects::default(),
            wrong_at: None,
            freezes: 0,
            looked_bytes: 0,
            merge_bytes: 0,
        }
    }
}

impl Spill {
    /// True if memory has so much that it is to leave.
    fn is_due(log: &Log) -> bool {
        let keyed = log.usage.keyed;
        let limit = log.limits.spill_bytes;
        limit.is_some_and(|limit| keyed.live >= limit || keyed.index >= limit)
    }

    /// True if memory has all that it may have, and nothing of it can leave: the area takes nothing more that adds. After a failure
    /// memory goes on to its last limit.
    pub(crate) fn is_full(&self, log: &Log) -> bool {
        self.is_over(log) && !self.is_busy() && self.failed_in.is_none() && !self.wants_job(log)
    }

    /// True while a submitter must wait: what has come since the job began is as much as may be.
    #[inline]
    pub(crate) fn is_behind(&self, log: &Log) -> bool {
        self.is_over(log) && (self.is_busy() || self.wants_job(log))
    }

    #[inline]
    fn is_over(&self, log: &Log) -> bool {
        let keyed = log.usage.keyed;
        let limit = log.limits.spill_bytes.map_or(u64::MAX, behind);
        keyed.live >= limit || keyed.index >= limit
    }

    /// True if a job, or what follows one, is under way: space may come back.
    pub(crate) fn is_busy(&self) -> bool {
        !matches!(self.state, State::Idle)
    }

    /// True if a job is done and its tables are not listed yet.
    pub(crate) fn has_unlisted(&self) -> bool {
        matches!(self.state, State::Made(..))
    }

    /// Somebody has no room: true if a job may give some.
    pub(crate) fn make_room(&mut self, log: &mut Log) -> bool {
        self.reclaim(log);
        if log.limits.spill_bytes.is_none() || log.is_latched() {
            return false;
        }
        self.is_urgent = true;
        let is_wanted = self.is_busy() || (self.may_try(log) && (self.wants_flush(log) || self.picks(log)));
        if !is_wanted {
            // What comes after this batch may have room.
            self.suspects.hurry();
        }
        is_wanted
    }

    /// Somebody has no room. If what is frozen cannot leave, and no merge would change that, cleaning rests for nothing: memory is as
    /// before then.
    pub(crate) fn give_up_in_vain(&mut self, log: &mut Log) {
        if log.frozen.is_some() && !self.is_busy() && !self.wants_job(log) {
            self.flushed_to = None;
            log.thaw();
        }
    }

    /// True while cleaning and checkpoints rest: the places of entries are frozen, or about to be.
    pub(crate) fn holds(&self, log: &Log) -> bool {
        log.frozen.is_some()
            || (matches!(self.state, State::Idle) && self.may_try(log) && self.wants_flush(log))
    }

    fn may_try(&self, log: &Log) -> bool {
        self.failed_in != log.space.head().map(|head| head.generation) || self.failed_in.is_none()
    }

    /// True if the log would be shorter by more segments than the tables would take.
    fn can_free(&self, log: &Log) -> bool {
        let keyed = log.usage.keyed;
        let freed = log.space.chain().count() as u32;
        keyed.live > log.layout.segment_payload_bytes() || (keyed.index > 0 && freed > self.flush_tables(log))
    }

    /// Tables that memory would become now.
    fn flush_tables(&self, log: &Log) -> u32 {
        let keyed = log.usage.keyed;
        table_count(&log.layout, keyed.live, entries_in(keyed.index))
    }

    /// True if memory may leave for so many tables, and merges can go on afterwards.
    fn has_segments(&self, log: &Log, count: u32) -> bool {
        let is_listed = log.levels.count() + FLUSH_SEGMENTS_MIN <= flushed_max(log);
        log.space.free_count() >= count + CLEANER_SEGMENTS && is_listed
    }

    /// A range begins.
    pub(crate) fn note_scan(&mut self, log: &Log) {
        let runs = log.levels.runs() as u64;
        self.looked_bytes += runs.saturating_sub(1) * LOOK_BYTES;
        if self.merge_bytes == 0 && self.looked_bytes > 0 {
            let next = log
                .levels
                .pick(log.limits.run_tables, &self.cursors, true, &self.suspects);
            self.merge_bytes = match next {
                Some(Step::Merge(pick)) => merge_bytes(log, pick.sources.len() + targets(log, &pick).len()),
                Some(Step::Sink(..)) | None => u64::MAX,
            };
        }
    }

    /// True if ranges have been worth the merge that would make them cheaper.
    pub(crate) fn is_merge_asked_for(&self) -> bool {
        self.merge_bytes > 0 && self.looked_bytes >= self.merge_bytes
    }

    fn picks(&self, log: &Log) -> bool {
        let is_listed = log.levels.count() < log.tables_listed_max();
        let has_segments = log.space.free_count() >= 2 + CLEANER_SEGMENTS;
        has_segments && is_listed && self.pick(log).is_some()
    }

    fn wants_flush(&self, log: &Log) -> bool {
        let is_wanted = Self::is_due(log) || (self.is_urgent && self.can_free(log));
        let newest = log.levels.levels.first().map_or(0, Vec::len) as u64;
        let lags = newest > LAG_MAX * Levels::tables_max(0, log.limits.run_tables);
        is_wanted
            && !(lags && self.pick(log).is_some())
            && self.has_segments(
                log,
                self.flush_tables(log).min(FLUSH_SEGMENTS_MIN) + MERGE_SEGMENTS,
            )
    }

    /// True if [`Spill::take`] may have a job, now or after the next completion.
    pub(crate) fn wants_job(&self, log: &Log) -> bool {
        if log.is_latched() || log.limits.spill_bytes.is_none() {
            return false;
        }
        if matches!(self.state, State::Idle) && self.suspect(log).is_some() {
            return true;
        }
        if !self.may_try(log) {
            return false;
        }
        match self.state {
            State::Idle if log.frozen.is_some() => {
                self.has_segments(log, 1 + MERGE_SEGMENTS) || self.picks(log)
            }
            State::Idle => self.wants_flush(log) || self.picks(log),
            State::Frozen(ticket) => log.state(ticket) == TicketState::Durable,
            _ => false,
        }
    }

    /// The next job, if there is one.
    pub(crate) fn take(
        &mut self,
        log: &mut Log,
        cleaning: &Cleaning,
        checkpoints: &Checkpoints,
    ) -> Option<Job> {
        self.reclaim(log);
        if !self.wants_job(log) {
            return None;
        }
        if let (State::Idle, Some(table)) = (&self.state, self.suspect(log)) {
            self.state = State::Running(Running {
                looked_at: Some(table.place),
                ..Running::default()
            });
            return Some(job(log, Work::Look(table), 0));
        }
        let goes_on = log.frozen.is_some() && self.has_segments(log, 1 + MERGE_SEGMENTS);
        if matches!(self.state, State::Idle) && goes_on {
            return Some(self.flush(log));
        }
        if matches!(self.state, State::Idle) && log.frozen.is_none() && self.wants_flush(log) {
            // Both have places of entries that would not change with them.
            if !cleaning.is_at_rest() || checkpoints.are_walking() {
                return None;
            }
            self.freeze(log);
        }
        match self.state {
            State::Frozen(ticket) if log.state(ticket) == TicketState::Durable => Some(self.flush(log)),
            State::Frozen(_) => None,
            _ => self.merge(log),
        }
    }

    pub(crate) fn freezes(&self) -> u64 {
        self.freezes
    }

    fn freeze(&mut self, log: &mut Log) {
        self.freezes += 1;
        let usage = core::mem::take(&mut log.usage.keyed);
        let fresh = log.present.fresh();
        let mut bodies = BTreeMap::new();
        for (&id, structure) in &mut log.structures {
            bodies.extend(structure.freeze().map(|body| (id, body)));
        }
        log.frozen = Some(Arc::new(Frozen {
            bodies,
            generations: (0..log.layout.segments)
                .map(|slot| log.space.generation_of(slot))
                .collect(),
            record: log.durable().0,
            present: core::mem::replace(&mut log.present, fresh),
            usage,
            lacks_values: core::mem::take(&mut log.lacks_values),
        }));
        log.snapshots.froze(log.frozen.as_ref().expect("just frozen"));
        // What lazy structures have shown may not be on the medium yet.
        let newest = log.newest();
        log.want(newest);
        self.state = State::Frozen(newest);
    }

    fn flush(&mut self, log: &mut Log) -> Job {
        let frozen = Arc::clone(log.frozen.as_ref().expect("it was frozen"));
        let count = table_count(&log.layout, frozen.usage.live, entries_in(frozen.usage.index));
        self.state = State::Running(Running {
            is_flush: true,
            ..Running::default()
        });
        let free = log
            .space
            .free_count()
            .saturating_sub(CLEANER_SEGMENTS + MERGE_SEGMENTS);
        let free = free.min(flushed_max(log).saturating_sub(log.levels.count()));
        let from = self.flushed_to.clone();
        job(log, Work::Flush(frozen, from), count.min(free).max(1))
    }

    /// What is to be merged next.
    fn pick(&self, log: &Log) -> Option<Step> {
        if let Some(pass) = &self.pass {
            let views = log.levels.levels.get(pass.level).into_iter().flatten();
            let is_source = |view: &&View| pass.generations.contains(&view.table.place.generation);
            let sources: Vec<View> = views.filter(is_source).cloned().collect();
            if !sources.is_empty() {
                let level = pass.level;
                return Some(Step::Merge(Pick { level, sources }));
            }
        }
        let everything = self.is_urgent || self.is_merge_asked_for();
        log.levels
            .pick(log.limits.run_tables, &self.cursors, everything, &self.suspects)
    }

    fn merge(&mut self, log: &mut Log) -> Option<Job> {
        let pick = match self.pick(log) {
            Some(Step::Merge(pick)) => pick,
            Some(Step::Sink(level, view)) => {
                let running = Running {
                    level,
                    sunk: Some(view),
                    ..Running::default()
                };
                self.pass = None;
                self.state = State::Made(running, Made::default());
                return None;
            }
            None => {
                self.is_urgent = false;
                return None;
            }
        };
        let targets = targets(log, &pick);
        let Pick { level, sources } = pick;
        let generations = sources.iter().map(|view| view.table.place.generation).collect();
        self.pass = Some(Pass { level, generations });
        let all = || sources.iter().chain(&targets);
        let bytes = merge_bytes(log, all().count());
        self.looked_bytes = self.looked_bytes.saturating_sub(bytes);
        self.merge_bytes = 0;
        let low = all().map(View::first).min()?.to_vec();
        let high = all().map(View::last).max()?.to_vec();
        let merge = Merge {
            is_bottom: log.levels.is_bottom(level + 1, &low, &high),
            sources: sources.clone(),
            targets: targets.clone(),
        };
        let free = log.space.free_count().saturating_sub(CLEANER_SEGMENTS);
        let listed = log.tables_listed_max().saturating_sub(log.levels.count());
        let count = (all().count() as u32 + 1).min(MERGED_MAX).min(free).min(listed);
        self.state = State::Running(Running {
            inputs: sources.into_iter().chain(targets).collect(),
            level,
            ..Running::default()
        });
        Some(job(log, Work::Merge(merge), count))
    }

    /// A job has ended.
    pub(crate) fn end(
        &mut self,
        log: &mut Log,
        cleaning: &mut Cleaning,
        checkpoints: &mut Checkpoints,
        job: Job,
        result: Result<(), JobError>,
    ) {
        let State::Running(running) = core::mem::replace(&mut self.state, State::Idle) else {
            panic!("no job was under way");
        };
        if let Some(place) = running.looked_at {
            self.looked(log, place, result);
            return;
        }
        let mut made = job.made;
        drop(job.work);
        job.places
            .into_iter()
            .for_each(|place| log.space.give_back(place.slot));
        if result.is_err() || log.is_latched() {
            made.tables
                .drain(..)
                .for_each(|table| log.space.give_back(table.place.slot));
            match result {
                // What the medium has of other writes is not known either.
                Err(JobError::Write(_)) => log.latch(),
                Err(JobError::Read(ReadError::Fetch(FetchError::Damaged { offset }))) => {
                    self.note_trouble(log, &running, offset, Trouble::Wrong);
                }
                Err(JobError::Unread { offset }) => {
                    self.note_trouble(log, &running, offset, Trouble::Unread);
                }
                _ => {}
            }
            self.fail(log, &running);
            return;
        }
        self.state = State::Made(running, made);
        self.step(log, cleaning, checkpoints);
    }

    /// A job could not read what is at `offset`. Merges go around a table from now on. A value is told as damaged if it was wrong before.
    fn note_trouble(&mut self, log: &mut Log, running: &Running, offset: u64, trouble: Trouble) {
        let slot = log.layout.slot_at(offset);
        let mut inputs = running.inputs.iter().map(|view| view.table.place);
        match inputs.find(|place| place.slot == slot) {
            Some(place) => {
                let taken = log.space.taken();
                self.suspects.note(place.generation, offset, trouble, taken);
                self.tell_damage(log);
            }
            None if self.wrong_at == Some(offset) => log.stats.damaged_at = Some(offset),
            None => self.wrong_at = Some(offset),
        }
    }

    fn tell_damage(&self, log: &mut Log) {
        let stats = &mut log.stats;
        (stats.tables_damaged, stats.table_damaged_at) = self.suspects.damaged();
    }

    /// The next table to be read again, if it is time for that.
    fn suspect(&self, log: &Log) -> Option<Arc<Table>> {
        let mut due = self.suspects.due(log.space.taken());
        due.find_map(|generation| {
            let mut tables = log.levels.all().map(|(_, view)| &view.table);
            tables.find(|it| it.place.generation == generation).cloned()
        })
    }

    /// A table has been read again.
    fn looked(&mut self, log: &mut Log, place: Place, result: Result<(), JobError>) {
        let offset = log.layout.segment_offset(place.slot);
        let found = match result {
            Ok(()) => None,
            Err(JobError::Read(ReadError::Fetch(FetchError::Damaged { offset }))) => {
                Some((offset, Trouble::Wrong))
            }
            Err(_) => Some((offset, Trouble::Unread)),
        };
        match found {
            Some((offset, trouble)) => {
                let taken = log.space.taken();
                self.suspects.note(place.generation, offset, trouble, taken);
            }
            None => self.suspects.forget(place.generation),
        }
        self.tell_damage(log);
    }

    /// Nothing of a job counts: what was frozen is as before.
    fn fail(&mut self, log: &mut Log, running: &Running) {
        self.failed_in = log.space.head().map(|head| head.generation);
        self.flushed_to = None;
        self.pass = None;
        log.stats.jobs_failed += 1;
        if running.is_flush {
            log.thaw();
        }
    }

    /// Lists the tables of a job, if there is room for the record.
    pub(crate) fn step(&mut self, log: &mut Log, cleaning: &mut Cleaning, checkpoints: &mut Checkpoints) {
        if !self.has_unlisted() || log.is_latched() {
            return;
        }
        self.reclaim(log);
        let State::Made(running, made) = &mut self.state else {
            return;
        };
        let (levels, retired) = levels_after(log, running, made);
        let list = levels.emit();
        if !log.fits_list(list.len()) {
            let running = running.clone();
            made.tables
                .drain(..)
                .for_each(|table| log.space.give_back(table.place.slot));
            self.state = State::Idle;
            self.fail(log, &running);
            return;
        }
        let bytes = crate::entry::entry_bytes(0, list.len());
        let room = cleaning.make_room(log, checkpoints, bytes, Access::Cleaner);
        if room.is_err() {
            return;
        }
        let was_sunk = running.sunk.is_some();
        if let (Some(bound), false) = (&made.bound, running.is_flush) {
            self.cursors[running.level] = bound.to_vec();
        } else if let Some(last) = running.inputs.first() {
            self.cursors[running.level] = last.last().to_vec();
        }
        let (made, running) = (core::mem::take(made), core::mem::take(running));
        let ticket = log.list(list);
        self.state = State::Listed {
            ticket,
            levels,
            retired,
            made,
            is_flush: running.is_flush,
            was_sunk,
        };
    }

    /// Something has become durable: the new tables count if their list is.
    pub(crate) fn settle(&mut self, log: &mut Log) {
        let State::Listed { ticket, .. } = &self.state else {
            return;
        };
        if log.state(*ticket) != TicketState::Durable {
            return;
        }
        if let State::Listed {
            levels,
            retired,
            made,
            is_flush,
            was_sunk,
            ..
        } = core::mem::replace(&mut self.state, State::Idle)
        {
            log.levels = Arc::new(levels);
            self.merge_bytes = 0;
            self.reclaim_from(log, retired);
            if was_sunk {
                return;
            }
            if !is_flush {
                log.stats.merges += 1;
            } else if made.bound.is_some() {
                self.flushed_to = made.bound;
            } else {
                self.flushed_to = None;
                if let Some(frozen) = log.frozen.take() {
                    log.snapshots.flushed(&frozen, &log.levels);
                    self.trash.push(frozen);
                }
                log.usage.give_back(made.usage, &made.freed);
                let wrong = self.wrong_at.take();
                log.stats.damaged_at = log.stats.damaged_at.filter(|_| log.stats.damaged_at != wrong);
                log.stats.flushes += 1;
            }
            self.is_urgent = false;
            self.failed_in = None;
        }
    }

    /// Memory that is not needed any more.
    pub(crate) fn trash(&mut self) -> Vec<Arc<Frozen>> {
        core::mem::take(&mut self.trash)
    }

    fn reclaim_from(&mut self, log: &mut Log, retired: Vec<Arc<Table>>) {
        self.retired.extend(retired);
        self.reclaim(log);
    }

    /// True if tables that do not count any more are read, or kept by snapshots.
    pub(crate) fn has_retired(&self) -> bool {
        !self.retired.is_empty()
    }

    /// Generations of these.
    pub(crate) fn retired(&self) -> BTreeSet<u64> {
        self.retired.iter().map(|table| table.place.generation).collect()
    }

    /// Gives segments back that nobody reads any more.
    pub(crate) fn reclaim(&mut self, log: &mut Log) {
        self.retired.retain_mut(|table| !is_alone(log, table));
    }
}

/// Gives the segment of a table back if nobody reads it.
fn is_alone(log: &mut Log, table: &mut Arc<Table>) -> bool {
    let is_alone = Arc::get_mut(table).is_some();
    if is_alone {
        log.space.give_back(table.place.slot);
    }
    is_alone
}

/// The tables that those of a pick are merged into.
fn targets(log: &Log, pick: &Pick) -> Vec<View> {
    let first = pick.sources.iter().map(View::first).min().unwrap_or_default();
    let last = pick.sources.iter().map(View::last).max().unwrap_or_default();
    log.levels.overlapping(pick.level + 1, first, last)
}

/// Bytes that a merge of so many tables reads, about.
fn merge_bytes(log: &Log, tables: usize) -> u64 {
    tables as u64 * u64::from(log.layout.segment_bytes)
}

fn job(log: &mut Log, work: Work, count: u32) -> Job {
    let count = count.min(JOB_SEGMENTS_MAX as u32);
    let places: VecDeque<_> = (0..count)
        .map_while(|_| log.space.take_place(CLEANER_SEGMENTS))
        .collect();
    Job {
        layout: log.layout,
        work,
        places,
        structures: log.structures.keys().copied().collect(),
        made: Made::default(),
    }
}

/// Tables that there may be when memory leaves. A list has room for some more, as merges make tables before others go.
fn flushed_max(log: &Log) -> u32 {
    let max = log.tables_listed_max();
    max - MERGE_SEGMENTS.min(max / 4)
}

/// The tables that count when a job's do, and those that do not then.
fn levels_after(log: &Log, running: &Running, made: &Made) -> (Levels, Vec<Arc<Table>>) {
    if let Some(view) = &running.sunk {
        let sunk = log.levels.sunk(running.level, view);
        return (sunk.expect("there was a level for it"), Vec::new());
    }
    let mut levels = (*log.levels).clone();
    let mut retired = Vec::new();
    // A part of what is frozen changes nothing for the log.
    if running.is_flush && made.bound.is_none() {
        levels.flushed = log.frozen.as_ref().map_or(levels.flushed, |frozen| frozen.record);
    }
    let inputs: BTreeSet<u64> = running
        .inputs
        .iter()
        .map(|view| view.table.place.generation)
        .collect();
    let is_input = |view: &View| inputs.contains(&view.table.place.generation);
    for views in &mut levels.levels {
        views.retain_mut(|view| {
            if !is_input(view) {
                return true;
            }
            match &made.bound {
                Some(bound) if view.last() >= &**bound => {
                    if view.first() < &**bound {
                        view.from = Some(Arc::clone(bound));
                    }
                    true
                }
                _ => {
                    retired.push(Arc::clone(&view.table));
                    false
                }
            }
        });
    }
    let level = if running.is_flush { 0 } else { running.level + 1 };
    for table in &made.tables {
        let table = Arc::new(table.clone());
        levels.insert(level, View { table, from: None });
    }
    (levels, retired)
}

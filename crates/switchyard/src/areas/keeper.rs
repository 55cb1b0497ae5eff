//! The catalog and its medium together: changes as `store::catalog::errand` decides them, and descriptors.
//!
//! The table's lock is held for moments, so that opening an area never waits for another's zeros; work on the medium is done by
//! one thread at a time.

use crate::events;
use crate::size::Size;
use area::catalog::{CatalogMedia, HandedOut, WorkError};
use base::event::{Kind, Source};
use runtime::MediaFile;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use store::catalog::errand::{Answer, Asked, Done, Errand, Step};
use store::catalog::protocol::{AreaEntry, Code, ExportEntry};
use store::catalog::{
    AreaId, AreaState, Catalog, CatalogArea, CatalogRefusal, Change, Export, NewArea, Opened, Quota, Rate,
    Who,
};

/// Quota of users for one resource.
#[derive(Clone, Debug, Default)]
pub struct Shares {
    /// Those that are not named; no limit if there is none. Root and the server's own user have no limit.
    pub others: Option<u64>,
    /// Those that are.
    pub users: BTreeMap<u32, u64>,
}

impl Shares {
    /// The quotas in words, each value as `told`; no word if there are none.
    fn words(&self, told: impl Fn(u64) -> String) -> Vec<String> {
        let named = self
            .users
            .iter()
            .map(|(user, share)| format!("{} for user {user}", told(*share)));
        let others = self.others.map(|share| format!("{} for each user", told(share)));
        others.into_iter().chain(named).collect()
    }

    fn of(&self, user: u32, is_admin: bool) -> Option<u64> {
        let default = if is_admin { None } else { self.others };
        self.users.get(&user).copied().or(default)
    }
}

/// Quotas of users.
#[derive(Clone, Debug)]
pub struct Quotas {
    /// Bytes of areas.
    pub bytes: Shares,
    /// Operations a second, by reading and writing each.
    pub operations: Shares,
    /// Bytes a second, by reading and writing each.
    pub bandwidth: Shares,
    /// The server's user.
    pub server: u32,
}

impl Quotas {
    /// For the operator, at the start: quotas are those of the command line, and end with the server.
    pub fn words(&self) -> String {
        let all = [
            self.bytes.words(|bytes| Size(bytes).to_string()),
            self.operations.words(|count| format!("{count} operations/s")),
            self.bandwidth.words(|bytes| format!("{}/s", Size(bytes))),
        ]
        .concat();
        match all.is_empty() {
            true => "quotas: none, each user may have all that is free".into(),
            false => format!("quotas: {}", all.join(", ")),
        }
    }

    fn of(&self, user: u32) -> Quota {
        let is_admin = [0, self.server].contains(&user);
        let operations = self.operations.of(user, is_admin).unwrap_or(0);
        Quota {
            bytes: self.bytes.of(user, is_admin).unwrap_or(u64::MAX),
            rate: Rate {
                operations: operations.try_into().unwrap_or(u32::MAX),
                bytes: self.bandwidth.of(user, is_admin).unwrap_or(0),
            },
        }
    }
}

/// Why something was refused: for the client.
pub struct Refusal(pub Code, pub String);

impl From<CatalogRefusal> for Refusal {
    fn from(refusal: CatalogRefusal) -> Self {
        let code = match refusal {
            CatalogRefusal::Unknown => Code::Unknown,
            CatalogRefusal::Exists => Code::Exists,
            CatalogRefusal::NotPermitted => Code::NotPermitted,
            CatalogRefusal::Name | CatalogRefusal::Size | CatalogRefusal::Mode | CatalogRefusal::Path => {
                Code::Invalid
            }
            CatalogRefusal::Quota => Code::Quota,
            CatalogRefusal::NoRoom => Code::NoRoom,
            CatalogRefusal::Busy => Code::InUse,
        };
        Self(code, refusal.to_string())
    }
}

impl From<WorkError> for Refusal {
    fn from(error: WorkError) -> Self {
        let code = match error {
            WorkError::InUse => Code::InUse,
            WorkError::NoSpace => Code::NoRoom,
            WorkError::OutOfReach => Code::NotPermitted,
            WorkError::NoRates | WorkError::Os(_) => Code::Failed,
        };
        Self(code, error.to_string())
    }
}

/// Result of opening a name.
pub enum Given {
    /// An area.
    Area(AreaId, u64, HandedOut),
    /// The owner's socket.
    Elsewhere(String),
}

struct State {
    catalog: Catalog,
    table: MediaFile,
    /// The table was not written: what is on the medium is not known until the next start.
    is_failed: bool,
    /// Areas whose change is being made.
    active: BTreeSet<AreaId>,
}

impl State {
    /// Makes `next` the table, durably; false if that failed, now or before.
    fn save(&mut self, mut next: Catalog) -> bool {
        if !self.is_failed && next.save(&mut self.table).is_err() {
            self.is_failed = true;
            events::tell(Source::Areas, Kind::TableLatched {});
        }
        if !self.is_failed {
            self.catalog = next;
        }
        !self.is_failed
    }
}

/// What the client of an errand is told.
fn answered(answer: Answer, failure: Option<WorkError>) -> Result<(), Refusal> {
    let text = "the table could not be written: restart the server when its medium is sound";
    Err(match answer {
        Answer::Made => return Ok(()),
        Answer::Refused(refusal) => refusal.into(),
        Answer::InUse => WorkError::InUse.into(),
        Answer::NoRates => WorkError::NoRates.into(),
        Answer::TableFailed => Refusal(Code::Failed, text.into()),
        Answer::WorkFailed => failure.expect("a step failed").into(),
    })
}

/// The area that a change by `who` names, if there is one now.
fn id_of(catalog: &Catalog, change: &Change, who: Who) -> Option<AreaId> {
    let found = match change {
        Change::Create(new) => catalog.find(&new.name, new.owner),
        Change::Resize { name, .. } | Change::Delete { name } => catalog.find(name, who.user),
        _ => None,
    };
    found.map(|(id, _)| id)
}

/// The name by which `who` calls an area.
fn name_for(area: &CatalogArea, who: Who) -> String {
    match area.owner == who.user {
        true => area.name.clone(),
        false => format!("{}/{}", area.owner, area.name),
    }
}

/// The event of a change of `area` that `user` made.
fn changed(change: &Change, area: u64, user: u32) -> Option<Kind> {
    match *change {
        Change::Create(NewArea { bytes, .. }) => Some(Kind::AreaCreated { area, user, bytes }),
        Change::Resize { bytes, .. } => Some(Kind::AreaResized { area, user, bytes }),
        Change::Delete { .. } => Some(Kind::AreaDeleted { area, user }),
        _ => None,
    }
}

/// A catalog that is served.
pub struct Keeper {
    media: CatalogMedia,
    quotas: Quotas,
    state: Mutex<State>,
    /// Held while the medium is worked on.
    working: Mutex<()>,
}

impl Keeper {
    /// Takes over from whoever served it before: what was under way is undone or completed, as far as it goes. Also says how
    /// many changes that were.
    pub fn start(media: CatalogMedia, table: MediaFile, catalog: Catalog, quotas: Quotas) -> (Self, usize) {
        let cut = catalog.unfinished().len();
        let keeper = Self {
            media,
            quotas,
            state: Mutex::new(State {
                catalog,
                table,
                is_failed: false,
                active: BTreeSet::new(),
            }),
            working: Mutex::new(()),
        };
        keeper.tend();
        let limited = |(_, area): &(AreaId, &CatalogArea)| area.rate.is_limited();
        for (id, area) in keeper.lock().catalog.areas().filter(limited) {
            if let Err(error) = keeper.media.limit(id, area) {
                eprintln!("switchyard: cannot limit the rate of area {}: {error}", area.name);
            }
        }
        (keeper, cut)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for work under way, and lets none begin.
    pub fn stop(&self) -> MutexGuard<'_, ()> {
        self.working.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes in use and in all, and how many areas.
    pub fn usage(&self) -> (u64, u64, usize) {
        let state = self.lock();
        let catalog = &state.catalog;
        (
            catalog.used_bytes(),
            catalog.capacity_bytes(),
            catalog.areas().count(),
        )
    }

    /// Makes a change: durable when it returns.
    pub fn change(&self, change: &Change, who: Who, force: bool) -> Result<(), Refusal> {
        let state = self.lock();
        let owner = match change {
            Change::Create(area) => Some(area.owner),
            Change::Resize { name, .. } | Change::Limit { name, .. } => {
                state.catalog.find(name, who.user).map(|(_, area)| area.owner)
            }
            _ => None,
        };
        let asked = Asked {
            change: change.clone(),
            who,
            quota: owner.map_or(Quota::UNLIMITED, |owner| self.quotas.of(owner)),
            force,
        };
        let before = id_of(&state.catalog, change, who);
        self.carry(state, Errand::new(asked))?;
        let area = before.or_else(|| id_of(&self.lock().catalog, change, who));
        if let Some(kind) = area.and_then(|AreaId(area)| changed(change, area, who.user)) {
            events::tell(Source::Areas, kind);
        }
        Ok(())
    }

    /// Does the steps of an errand. Others change the table while this one works on the medium.
    fn carry<'a>(&'a self, mut state: MutexGuard<'a, State>, mut errand: Errand) -> Result<(), Refusal> {
        let (mut failure, mut working, mut active) = (None, None, None);
        let mut done = Done::Well;
        loop {
            let result = match errand.next(&state.catalog, &self.media, done) {
                Step::Answer(answer) => {
                    if let Some(id) = active {
                        state.active.remove(&id);
                    }
                    return answered(answer, failure);
                }
                Step::Save(next) => {
                    done = if state.save(next) {
                        Done::Well
                    } else {
                        Done::Failed
                    };
                    continue;
                }
                Step::Limit(id) => {
                    let area = state.catalog.area(id).expect("its rate was just changed");
                    self.media.limit(id, area)
                }
                Step::Show(id) => {
                    let area = state.catalog.area(id).expect("it has just grown");
                    // What cannot be done now is tended later.
                    self.media
                        .tend(id, area.extent)
                        .map(drop)
                        .map_err(WorkError::from)
                }
                Step::Work(work) => {
                    active = Some(work.area());
                    state.active.insert(work.area());
                    drop(state);
                    working.get_or_insert_with(|| self.stop());
                    let result = self.media.work(&work);
                    state = self.lock();
                    result
                }
            };
            done = match &result {
                Ok(()) => Done::Well,
                Err(WorkError::InUse) => Done::InUse,
                Err(_) => Done::Failed,
            };
            failure = failure.or(result.err());
        }
    }

    /// Repeated work: changes that could not be completed, and areas with sizes that their holders changed.
    pub fn tend(&self) {
        if let Err(error) = self.media.tend_rates() {
            eprintln!("switchyard: rates of areas: {error}");
        }
        let unfinished = self.lock().catalog.unfinished();
        for work in unfinished {
            let state = self.lock();
            let is_left = state.catalog.unfinished().contains(&work);
            if is_left && !state.active.contains(&work.area()) && !state.is_failed {
                // If somebody still has it open, or it fails again, it is left for the next time.
                let _ = self.carry(state, Errand::resume(work));
            }
        }
        let _working = self.stop();
        let state = self.lock();
        let ready = |area: &CatalogArea| area.state == AreaState::Ready;
        for (id, area) in state.catalog.areas().filter(|(_, area)| ready(area)) {
            match self.media.tend(id, area.extent) {
                Ok(true) => {
                    let (area, user) = (id.0, area.owner);
                    events::tell(Source::Areas, Kind::AreaMended { area, user });
                }
                Ok(false) => {}
                Err(error) => {
                    eprintln!("switchyard: area {} is not sound: {error}", area.name);
                    events::tell(Source::Areas, Kind::AreaDamaged { area: id.0 });
                }
            }
        }
    }

    /// Opens a name for `who`, which is this process.
    pub fn open(&self, name: &str, who: Who, write: bool, process: u32) -> Result<Given, Refusal> {
        let mut has_waited = false;
        loop {
            let state = self.lock();
            let (id, extent) = match state.catalog.open(name, who, write)? {
                Opened::Elsewhere(path) => return Ok(Given::Elsewhere(path.to_owned())),
                Opened::Area(id, extent) => (id, extent),
            };
            let area = state.catalog.area(id).expect("it was found");
            match self.media.hand_out(id, area, write, process) {
                // We have it open for writing ourselves while we make it larger.
                Err(WorkError::InUse) if area.state != AreaState::Ready && !has_waited => {
                    drop(state);
                    drop(self.stop());
                    has_waited = true;
                }
                handed_out => return Ok(Given::Area(id, extent.bytes, handed_out?)),
            }
        }
    }

    /// The areas with higher numbers than `after` that `who` may know of, at most `count`, and whether there are more.
    pub fn areas(&self, after: u64, who: Who, count: usize) -> (Vec<AreaEntry>, bool) {
        let state = self.lock();
        let is_known = |area: &CatalogArea| area.permits(who, false) || area.owner == who.user;
        let later = state.catalog.areas().filter(|(id, _)| id.0 > after);
        let mut known = later.filter(|(_, area)| is_known(area));
        let entry = |(id, area): (AreaId, &CatalogArea)| AreaEntry {
            number: id.0,
            bytes: area.extent.bytes,
            owner: area.owner,
            group: area.group,
            mode: area.mode,
            state: match area.state {
                AreaState::Making => 1,
                AreaState::Ready => 2,
                AreaState::Growing(_) => 3,
                AreaState::Leaving => 4,
            },
            is_open: area.state == AreaState::Ready && self.media.is_open(id, area),
            rate: area.rate,
            name: area.name.clone(),
        };
        let entries = known.by_ref().take(count).map(entry).collect();
        (entries, known.next().is_some())
    }

    /// The exports with names above `after` that `who` may know of, at most `count`, and whether there are more.
    pub fn exports(&self, after: &str, who: Who, count: usize) -> (Vec<ExportEntry>, bool) {
        let state = self.lock();
        let is_known = |export: &Export| {
            let is_reader = export.readers.have(who.user, who.group);
            let area = state.catalog.area(export.area);
            is_reader || who.is_admin || area.is_some_and(|area| area.owner == who.user)
        };
        let later = state.catalog.exports().filter(|(name, _)| *name > after);
        let mut known = later.filter(|(_, export)| is_known(export));
        let entry = |(name, export): (&str, &Export)| ExportEntry {
            readers: export.readers,
            name: name.to_owned(),
            area: state
                .catalog
                .area(export.area)
                .map_or_else(String::new, |area| name_for(area, who)),
            path: export.path.clone(),
        };
        let entries = known.by_ref().take(count).map(entry).collect();
        (entries, known.next().is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, OpenOptions};

    const WHO: Who = Who {
        user: 0,
        group: 0,
        is_admin: true,
    };

    /// Bug: a start without `--quota` lifted the quotas of the start before, and said nothing.
    #[test]
    fn the_quotas_of_a_start_are_told_and_so_is_that_there_are_none() {
        let mut quotas = Quotas {
            bytes: Shares::default(),
            operations: Shares::default(),
            bandwidth: Shares::default(),
            server: 0,
        };
        assert_eq!(
            quotas.words(),
            "quotas: none, each user may have all that is free"
        );
        quotas.bytes.others = Some(4 << 30);
        quotas.bytes.users.insert(1000, 8 << 30);
        quotas.operations.others = Some(500);
        let told = "quotas: 4 GiB for each user, 8 GiB for user 1000, 500 operations/s for each user";
        assert_eq!(quotas.words(), told);
    }

    /// A catalog in `path` with one area.
    fn keeper_of(path: &std::path::Path) -> Keeper {
        let (_, mut table) = CatalogMedia::open(path, false).expect("a new directory");
        let mut catalog = Catalog::new([1; 16], false, 64 << 20);
        catalog.format(&mut table).expect("a healthy medium");
        drop(table);
        let keeper = start(path);
        let create = Change::Create(NewArea {
            name: "area".into(),
            bytes: 16 << 20,
            owner: 0,
            group: 0,
            mode: 0o600,
            rate: Rate::UNLIMITED,
        });
        assert!(keeper.change(&create, WHO, false).is_ok());
        keeper
    }

    /// A server of the catalog that is in `path`.
    fn start(path: &std::path::Path) -> Keeper {
        let (media, mut table) = CatalogMedia::open(path, false).expect("the one before has ended");
        let (catalog, _) = Catalog::load(&mut table).expect("there is a table");
        let quotas = Quotas {
            bytes: Shares::default(),
            operations: Shares::default(),
            bandwidth: Shares::default(),
            server: 0,
        };
        Keeper::start(media, table, catalog, quotas).0
    }

    fn area_of(path: &std::path::Path) -> std::path::PathBuf {
        let areas = fs::read_dir(path)
            .expect("a directory")
            .map(|it| it.expect("an entry"));
        let mut paths = areas.map(|it| it.path());
        let area = paths.find(|it| it.file_name().is_some_and(|name| name != "table"));
        area.expect("the area's file")
    }

    /// bug: an area was in use while it grew; cause: the server has its file open for writing then; fix: who opens it waits.
    #[test]
    fn who_opens_an_area_that_grows_waits_for_that_and_for_nobody_else() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("catalog");
        let keeper = keeper_of(&path);
        let open = || keeper.open("area", WHO, true, std::process::id());
        let working = keeper.stop();
        let mut next = keeper.lock().catalog.clone();
        let grow = Change::Resize {
            name: "area".into(),
            bytes: 32 << 20,
        };
        assert!(matches!(next.begin(&grow, WHO, Quota::UNLIMITED), Ok(Some(_))));
        assert!(keeper.lock().save(next));
        let file = OpenOptions::new().write(true).open(area_of(&path));
        let opened = std::thread::scope(|scope| {
            let opener = scope.spawn(open);
            // It comes across the file.
            std::thread::sleep(std::time::Duration::from_millis(100));
            drop(file.expect("it is there"));
            drop(working);
            opener.join().expect("no panic")
        });
        assert!(matches!(opened, Ok(Given::Area(_, _, _))));
        assert!(matches!(open(), Err(Refusal(Code::InUse, _))), "it is handed out");
    }

    /// Bug: an area used a range that the catalog then gave to another one. Cause: who had it open saw it grow before the table had
    /// the new range, and a server that died in between took the range back. Fix: the table comes first.
    #[test]
    fn nobody_sees_an_area_grow_before_its_table_says_so_for_good() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("catalog");
        let grow = Change::Resize {
            name: "area".into(),
            bytes: 32 << 20,
        };
        let mut keeper = keeper_of(&path);
        let length = || area_of(&path).metadata().expect("it is there").len();
        // The server dies after each step.
        for steps in 0..3 {
            let mut next = keeper.lock().catalog.clone();
            let work = next.begin(&grow, WHO, Quota::UNLIMITED);
            let work = work.expect("there is room").expect("it takes work");
            assert!(keeper.lock().save(next.clone()));
            if steps > 0 {
                assert!(keeper.media.work(&work).is_ok());
            }
            assert_eq!(length(), 16 << 20, "nobody sees it yet");
            if steps > 1 {
                next.end(&work);
                assert!(keeper.lock().save(next));
            }
            drop(keeper);
            keeper = start(&path);
            let bytes = if steps > 1 { 32 << 20 } else { 16 << 20 };
            assert_eq!(
                (length(), keeper.usage().0),
                (bytes, bytes),
                "after {steps} steps"
            );
        }
        let grow = Change::Resize {
            name: "area".into(),
            bytes: 48 << 20,
        };
        assert!(keeper.change(&grow, WHO, false).is_ok());
        assert_eq!(length(), 48 << 20, "whoever has it open sees it");
    }

    #[test]
    fn an_area_of_which_it_is_not_known_whether_it_is_open_is_not_deleted() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("catalog");
        let keeper = keeper_of(&path);
        let (area, elsewhere) = (area_of(&path), directory.path().join("elsewhere"));
        fs::rename(&area, &elsewhere).expect("it is there");
        std::os::unix::fs::symlink(&elsewhere, &area).expect("a link");
        let delete = Change::Delete { name: "area".into() };
        let refused = keeper.change(&delete, WHO, false);
        assert!(matches!(refused, Err(Refusal(Code::InUse, _))));
        fs::rename(&elsewhere, &area).expect("it was moved");
        assert!(keeper.change(&delete, WHO, false).is_ok());
        assert!(!area.exists());
    }
}

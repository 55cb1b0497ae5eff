//! The state that the journal's threads share, and its checkpoints.

use super::identity::{self, Name};
use super::lease::Lease;
use super::opened::{Opened, Syncing, open_directory, sync_file};
use super::root;
use crate::area::Area;
use crate::own::{self, Own};
use crate::structures::Log;
use crate::sync::{Arc, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, PoisonError};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use store::files::{Change, Claim, FileId, Files, Round, Settled};
use store::{Op, StructureId};

/// The thread looks so often whether something is left in the area. If nothing changed between two looks, or if files were closed,
/// it makes a checkpoint.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Operations of a batch that is not one change.
pub(super) const OPS_MAX: usize = 1000;

pub(super) fn failed() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}

pub(super) struct State {
    pub files: Files,
    /// Of each file of which the area has something, unless it is removed and closed.
    pub opened: BTreeMap<FileId, Arc<Opened>>,
    /// Of files that are open with O_SYNC or O_DSYNC: a descriptor without these flags.
    pub plain: BTreeMap<FileId, Arc<Own>>,
    /// Directories of files that are known. A thread of ours that opened one later would take a number that the program expects.
    pub directories: BTreeMap<PathBuf, Arc<Own>>,
    /// Held whenever a file changes.
    pub lease: Lease,
    /// A file could not be synced, or the area not written.
    pub has_failed: bool,
    pub is_closing: bool,
}

/// The directory of a path.
pub(super) fn directory_of(path: &[u8]) -> Option<&Path> {
    Path::new(OsStr::from_bytes(path)).parent()
}

impl State {
    /// Keeps the directory of a file that becomes known, or gets another name.
    pub fn keep_directory(&mut self, path: &[u8]) {
        let Some(path) = directory_of(path) else {
            return;
        };
        let inode = |own: &Arc<Own>| identity::inode(&**own).ok();
        let here = || Some(identity::look_up(path).ok()??.identity.inode);
        // Somebody may have replaced it.
        let is_known = self.directories.get(path).is_some_and(|own| inode(own) == here());
        if !is_known {
            match open_directory(path) {
                Some(own) => drop(self.directories.insert(path.to_owned(), own)),
                None => drop(self.directories.remove(path)),
            }
        }
    }

    /// Closes our descriptors of what nothing is known of, and of removed files that nobody has open: their space is free then.
    fn close_unneeded(&mut self) {
        let files = &self.files;
        let is_needed = |id| {
            files
                .opens(id)
                .is_some_and(|opens| opens > 0 || !files.is_removed(id))
        };
        self.opened.retain(|&id, _| is_needed(id));
        self.plain
            .retain(|&id, _| files.opens(id).is_some_and(|opens| opens > 0));
        let used: BTreeSet<_> = files
            .all()
            .filter_map(|id| directory_of(files.path(id)))
            .collect();
        self.directories.retain(|path, _| used.contains(&**path));
    }

    /// The same for one file.
    pub fn close_if_unneeded(&mut self, id: FileId) {
        let opens = self.files.opens(id);
        if opens.is_none_or(|opens| opens == 0) {
            self.plain.remove(&id);
            if opens.is_none() || self.files.is_removed(id) {
                self.opened.remove(&id);
            }
        }
    }
}

pub(super) struct Shared {
    pub area: Area,
    pub map: StructureId,
    pub writes: Log,
    pub batch_bytes_max: usize,
    /// One checkpoint at a time.
    pub rounds: Mutex<()>,
    /// Held while names change, and while a file is looked at for the first time: a file that is followed has the name that it is known
    /// by.
    pub names: Mutex<()>,
    /// Directories that are durable ([`super::opened::keep_directories`]).
    pub directories: Mutex<BTreeSet<(u64, u64)>>,
    pub state: Mutex<State>,
    /// Until when the claim is, as [`Lease::until_ns`]: to look without the lock.
    pub until_ns: AtomicU64,
    /// The thread sleeps here.
    pub due: Condvar,
}

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn names(&self) -> MutexGuard<'_, ()> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `f` while nobody else changes the file, and it may change. `None` if we have no descriptor of the file any more.
    pub fn change<R>(&self, id: FileId, f: impl FnOnce(&Opened) -> R) -> Option<R> {
        loop {
            // The claim may take a checkpoint, which waits for other files: so it comes first. Without it every sync fails.
            let is_held = self.hold().is_ok();
            let opened = self.opened(id)?;
            let _changing = opened.changing.lock().unwrap_or_else(PoisonError::into_inner);
            if !is_held || Lease::is_held(self.until_ns.load(Ordering::Relaxed)) {
                return Some(f(&opened));
            }
        }
    }

    /// Our descriptors of the file.
    pub fn opened(&self, id: FileId) -> Option<Arc<Opened>> {
        self.lock().opened.get(&id).map(Arc::clone)
    }

    /// Files may change from here on. If the area cannot be written, every sync fails from now on.
    pub fn hold(&self) -> io::Result<()> {
        if Lease::is_held(self.until_ns.load(Ordering::Relaxed)) {
            return Ok(());
        }
        let mut state = self.lock();
        if state.has_failed {
            return Err(failed());
        }
        if state.lease.hold(&self.area).is_err() {
            // Perhaps the area is full, which a checkpoint ends.
            drop(state);
            self.checkpoint()?;
            state = self.lock();
            let held = state.lease.hold(&self.area);
            state.has_failed |= held.is_err();
            held.map_err(|_| failed())?;
        }
        self.until_ns.store(state.lease.until_ns(), Ordering::Relaxed);
        Ok(())
    }

    /// After the last checkpoint: the area has nothing any more, and claims nothing.
    pub fn end_claim(&self) -> io::Result<()> {
        let key = Claim::PLACE.key();
        let map = self.map;
        let done = self.area.enter(&[Op::Remove { map, key: &key }]);
        done.and_then(|_| self.area.sync()).map_err(|_| failed())
    }

    /// Logs a change, if the log follows the file, with its data.
    pub fn log(
        &self,
        state: &mut State,
        id: FileId,
        change: Option<(Option<Vec<u8>>, Change)>,
        data: &[&[u8]],
    ) {
        let Some((description, change)) = change else {
            return;
        };
        let (key, header, log) = (change.file.key(), change.emit(), self.writes.id());
        let mut ops = Vec::with_capacity(2 + data.len());
        let mut bytes = 0;
        if let Some(description) = &description {
            ops.push(Op::Put {
                map: self.map,
                key: &key,
                data: description,
            });
        }
        ops.push(Op::Append { log, data: &header });
        ops.extend(data.iter().map(|data| Op::Append { log, data }));
        for op in &ops {
            bytes += op.bytes();
        }
        let is_logged = bytes <= self.batch_bytes_max && self.area.enter(&ops).is_ok();
        if is_logged {
            state.files.logged(id, bytes as u64);
        } else {
            state.files.missed(id);
        }
    }

    /// The file has this size now.
    pub fn resized(&self, id: FileId, size: u64) {
        let mut state = self.lock();
        // Another thread may have closed its last descriptor meanwhile.
        if state.files.opens(id).is_some() {
            let change = state.files.resize(id, size);
            self.log(&mut state, id, change, &[]);
        }
    }

    /// Syncs what the log is about, and empties the log up to where it was at the beginning. Files change meanwhile.
    pub fn checkpoint(&self) -> io::Result<()> {
        let _round = self.rounds.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.lock();
        if state.has_failed {
            return Err(failed());
        }
        let end = self.writes.positions().map_err(|_| failed())?.end;
        let round = self.begin_checkpoint(&mut state);
        let syncs: Vec<_> = round
            .files
            .iter()
            .map(|&(id, with_directory)| (id, self.syncing(&state, id, with_directory)))
            .collect();
        drop(state);
        let mut since_ns = BTreeMap::new();
        for (id, sync) in syncs {
            since_ns.insert(id, sync.run().inspect_err(|_| self.fail(id))?);
        }
        self.settle_round(&round, &since_ns, end)
            .inspect_err(|_| self.lock().has_failed = true)
    }

    /// Begins a checkpoint, in which every file goes by the name that it has now: others may have renamed or removed it.
    fn begin_checkpoint(&self, state: &mut State) -> Round {
        for (&id, own) in &state.opened {
            name(&mut state.files, id, own);
        }
        state.files.begin_checkpoint()
    }

    /// All files of the checkpoint are durable, as they were last changed at these times.
    fn settle_round(&self, round: &Round, since_ns: &BTreeMap<FileId, u64>, end: u64) -> io::Result<()> {
        let (map, log) = (self.map, self.writes.id());
        let mut state = self.lock();
        let mut puts = Vec::new();
        let mut forgotten = Vec::new();
        for settled in state.files.end_checkpoint(round, since_ns) {
            match settled {
                Settled::Put(number, description) => puts.push((number, number.key(), description)),
                Settled::Forget(number) => forgotten.push(number.key()),
            }
        }
        let trim = Op::Trim { log, floor: end };
        let mut last: Vec<_> = forgotten.iter().map(|key| Op::Remove { map, key }).collect();
        last.push(trim);
        let as_put = |(_, key, data)| Op::Put { map, key, data };
        let mut ops: Vec<_> = puts.iter().map(|(a, b, c)| as_put((a, b, c))).collect();
        ops.extend(last.iter().cloned());
        if self.area.enter(&ops).is_err() {
            // The area is so full that it takes no longer description, or the batch is too long. The log is trimmed after all of them.
            drop(state);
            for (number, key, data) in &puts {
                if self.area.enter(&[Op::Put { map, key, data }]).is_ok() {
                    continue;
                }
                // A file that the area forgets needs none.
                let id = self.lock().files.numbered(*number);
                id.map_or(Ok(()), |id| self.settle(id))?;
            }
            for ops in last.chunks(OPS_MAX) {
                self.area.enter(ops).map_err(|_| failed())?;
            }
            state = self.lock();
        }
        state.close_unneeded();
        drop(state);
        self.area.sync().map_err(|_| failed())
    }

    fn syncing(&self, state: &State, id: FileId, with_directory: bool) -> Syncing {
        let path = Path::new(OsStr::from_bytes(state.files.path(id)));
        let directory = path.parent().filter(|_| with_directory);
        let own = |path| state.directories.get(path).map(Arc::clone);
        Syncing {
            file: state.opened.get(&id).map(Arc::clone),
            directory: directory.map(|path| (path.to_owned(), own(path))),
        }
    }

    /// Makes the file durable by the file system, and has the area forget what it has of the file. The caller has the file's
    /// [`Opened::changing`], or nobody changes the file for another reason.
    pub fn settle_held(&self, id: FileId) -> io::Result<()> {
        let syncing = {
            let mut state = self.lock();
            if state.has_failed {
                return Err(failed());
            }
            if let Some(own) = state.opened.get(&id).map(Arc::clone) {
                name(&mut state.files, id, &own);
            }
            match state.files.unsettled(id) {
                Some(with_directory) => self.syncing(&state, id, with_directory),
                None => return Ok(()),
            }
        };
        let since_ns = syncing.run().inspect_err(|_| self.fail(id))?;
        let mut state = self.lock();
        let Some(number) = state.files.settle(id, since_ns) else {
            state.close_if_unneeded(id);
            return Ok(());
        };
        let forget = Op::Remove {
            map: self.map,
            key: &number.key(),
        };
        let done = self.area.enter(&[forget]);
        state.has_failed |= done.is_err();
        state.close_if_unneeded(id);
        drop(state);
        let done = done.and_then(|_| self.area.sync());
        done.inspect_err(|_| self.lock().has_failed = true)
            .map_err(|_| failed())
    }

    /// The same for a file that may change.
    pub fn settle(&self, id: FileId) -> io::Result<()> {
        let opened = self.opened(id);
        let _changing = opened
            .as_ref()
            .map(|it| it.changing.lock().unwrap_or_else(PoisonError::into_inner));
        self.settle_held(id)
    }

    /// The file could not be synced: no sync succeeds from now on. The kernel may have given up its pages, and called them clean. So
    /// recovery must not trust the page cache for this file, and makes the log's changes again.
    pub fn fail(&self, id: FileId) {
        let mut state = self.lock();
        state.has_failed = true;
        let Some((number, description)) = state.files.distrust(id) else {
            return;
        };
        let put = Op::Put {
            map: self.map,
            key: &number.key(),
            data: &description,
        };
        // If the area has failed, too, nobody can be told.
        let _ = self.area.enter(&[put]).and_then(|_| self.area.sync());
    }

    /// Makes the directories of fresh files durable, and dates these by them: so recovery knows a directory that is older. Nobody waits for
    /// that, and without it there is no date.
    fn date(&self) {
        let directories: BTreeMap<PathBuf, Arc<Own>> = {
            let state = self.lock();
            let paths = state.files.undated().map(|id| state.files.path(id));
            let known = |path: &[u8]| state.directories.get_key_value(directory_of(path)?);
            let all = paths.filter_map(known);
            all.map(|(path, own)| (path.clone(), Arc::clone(own))).collect()
        };
        for (directory, own) in directories {
            let since_ns = identity::changed_ns(&*own);
            if since_ns == 0 || sync_file(&*own).is_err() {
                continue;
            }
            let mut state = self.lock();
            let undated: Vec<_> = state.files.undated().collect();
            for id in undated {
                if directory_of(state.files.path(id)) == Some(&directory)
                    && let Some((number, data)) = state.files.dated(id, since_ns)
                {
                    let (map, key) = (self.map, number.key());
                    let put = Op::Put {
                        map,
                        key: &key,
                        data: &data,
                    };
                    // The next sync of the log makes it durable. An area that is full has no date.
                    let _ = self.area.enter(&[put]);
                }
            }
        }
    }

    /// The thread: checkpoints when they are due.
    pub fn run(&self) {
        let mut state = self.lock();
        let mut seen = 0;
        while !state.is_closing {
            let closed = state.files.closed();
            if (state.files.is_checkpoint_due() || closed > own::spare()) && !state.has_failed {
                drop(state);
                // A failure is kept, and told to whoever syncs next.
                let _ = self.checkpoint();
                state = self.lock();
                continue;
            }
            let (next, wait) = self
                .due
                .wait_timeout(state, LOOK_EVERY)
                .unwrap_or_else(PoisonError::into_inner);
            state = next;
            if !wait.timed_out() || state.is_closing || state.has_failed {
                continue;
            }
            drop(state);
            self.date();
            state = self.lock();
            let logged = state.files.logged_bytes();
            // Those that were closed since, and what others have removed, would keep descriptors and space.
            if state.files.is_unsettled() && (logged == seen || closed > 0) {
                drop(state);
                let _ = self.checkpoint();
                state = self.lock();
            }
            seen = state.files.logged_bytes();
        }
    }

    /// A file was closed. If the journal keeps the descriptors of too many such files, a checkpoint is due; true if whoever closes the
    /// file has to make it.
    pub fn is_crowded(&self, closed: usize) -> bool {
        let spare = own::spare();
        if closed > spare {
            self.due.notify_one();
        }
        closed > 2 * spare
    }
}

/// The file goes by the name that it has now.
fn name(files: &mut Files, id: FileId, own: &Opened) {
    match identity::name(own) {
        Name::Path(path) => {
            let path = root::whole(&path);
            files.moved(id, path.as_os_str().as_bytes(), || identity::place_of(own));
        }
        Name::None => files.vanished(id),
        Name::Unknown => {}
    }
}

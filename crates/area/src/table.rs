//! The processes of one run share a table. It says which process owns the area, and which files that process follows there.
//! Another process asks the owner to give a file up before it changes the file.
//!
//! The table lies in memory that all of them have. A place is taken for a file (device and inode), and goes through these states:
//!
//! | state | set by | from |
//! | --- | --- | --- |
//! | free | the owner, or whoever settled the area of a dead one | any |
//! | filled | whoever takes the place | free |
//! | followed | the owner | filled |
//! | asked | another process, which waits | followed, released |
//! | released | another run (`runs`), which waits | followed |
//! | foreign | the owner, which has given the file up; or another process that opens it first | asked, released, filled, followed |
//!
//! Each wait has a limit, after which the waiter looks whether the owner lives.

use crate::own;
use crate::sync::{AtomicU64, Ordering, SharedFutex, now};
use base::Duration;
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;

/// Files that are followed, or that other processes write, at once. A file without a place is not followed.
const PLACES: usize = 1024;
/// Processes that have files open for writing, at once. If there are more, nothing more is followed.
const WRITERS: usize = 256;
/// Processes that are about to become other programs, at once. Of more the run may not know that they live.
const STARTS: usize = 64;
/// Between two looks whether the owner lives.
const LOOK_EVERY_NS: u64 = 50_000_000;
/// An owner that does not answer for so long is stuck: the change fails.
const ANSWER_MAX: Duration = Duration::from_secs(30);

const FREE: u32 = 0;
const FILLED: u32 = 1;
const FOLLOWED: u32 = 2;
const ASKED: u32 = 3;
const FOREIGN: u32 = 4;
const RELEASED: u32 = 5;

/// A file among those of all file systems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileKey {
    /// Of its file system.
    pub device: u64,
    /// Its inode.
    pub inode: u64,
    /// When that was made, in ns, as its number is used again; 0 if the file system does not tell.
    pub born_ns: u64,
}

impl FileKey {
    /// The regular file of a descriptor; `None` for anything else.
    pub fn of(fd: RawFd) -> Option<Self> {
        Self::at(fd, c"", libc::AT_EMPTY_PATH)
    }

    /// The regular file that a path leads to, from a directory's descriptor and with the flags of statx(2). No times of changes are asked
    /// for (`files::identity`).
    pub fn at(directory: RawFd, path: &CStr, flags: libc::c_int) -> Option<Self> {
        let mask = libc::STATX_TYPE | libc::STATX_INO | libc::STATX_BTIME;
        // SAFETY: zeros are a valid `statx`.
        let mut found: libc::statx = unsafe { mem::zeroed() };
        // SAFETY: the path ends with a zero; the kernel fills `found`.
        let result = unsafe { libc::statx(directory, path.as_ptr(), flags, mask, &mut found) };
        let is_regular = u32::from(found.stx_mode) & libc::S_IFMT == libc::S_IFREG;
        let born = found.stx_btime;
        (result == 0 && is_regular).then(|| Self {
            device: u64::from(found.stx_dev_major) << 32 | u64::from(found.stx_dev_minor),
            inode: found.stx_ino,
            born_ns: born.tv_sec as u64 * 1_000_000_000 + u64::from(born.tv_nsec),
        })
    }
}

#[repr(C)]
struct Place {
    state: SharedFutex,
    owner: SharedFutex,
    device: AtomicU64,
    inode: AtomicU64,
    born_ns: AtomicU64,
    file: AtomicU64,
}

impl Place {
    fn key(&self) -> FileKey {
        FileKey {
            device: self.device.load(Ordering::Relaxed),
            inode: self.inode.load(Ordering::Relaxed),
            born_ns: self.born_ns.load(Ordering::Relaxed),
        }
    }

    /// The owner calls the file by this number from now on; true if nobody has asked for it. A later question gets the new number. For the
    /// owner stores it before it looks at the state here, and [`Table::answer`] looks at the state before it takes the number.
    fn call(&self, file: u64) -> bool {
        self.file.store(file, Ordering::SeqCst);
        self.state.load() == FOLLOWED
    }
}

/// The table. Zeros are an empty one.
#[repr(C)]
pub struct Table {
    owner: SharedFutex,
    /// Changes with each question.
    questions: SharedFutex,
    /// Files that were followed so far.
    followed: AtomicU64,
    /// Where other runs ask this one ([`Table::stand`]), and 1; 0: nowhere.
    slot: AtomicU64,
    /// A bit for each slot of another run that was there since this one began. Bits stay: a slot may be another run's now.
    others: AtomicU64,
    /// The run's namespace of processes, whose numbers are those of owners; 0: not known.
    namespace: AtomicU64,
    /// Not 0 if somebody writes files of which nobody can know: nothing more is followed.
    crowded: AtomicU64,
    /// Processes that have, or have had, files open for writing: a file may be open there by a name that is not chosen. 0: none.
    writers: [AtomicU64; WRITERS],
    /// The process that the others ask: `run`, or its keeper; 0: not known.
    desk: AtomicU64,
    /// Not 0 once a keeper has taken the run's place.
    kept: AtomicU64,
    /// Processes that are about to become other programs, and do not have the table meanwhile. 0: none.
    starts: [AtomicU64; STARTS],
    places: [Place; PLACES],
}

/// How a file of another process stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nobody follows it.
    Free,
    /// Its owner is dead: the area has to be settled, and then [`Table::bury`] told.
    Dead(u32),
    /// Its owner does not answer.
    Stuck,
}

/// The part of a run in a file that another run wants to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// Nothing.
    Free,
    /// It followed the file, and has given it up for good: its programs have it open.
    Given,
    /// Its programs write the file, and it does not follow it.
    Foreign,
    /// Its owner is dead, as of [`Answer::Dead`].
    Dead(u32),
    /// Its owner does not answer.
    Stuck,
}

impl Table {
    /// The bytes of a table.
    pub const BYTES: u64 = size_of::<Self>() as u64;

    /// The table in a file of [`Table::BYTES`], or one of this process and its children if there is none. It is never unmapped.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn map(file: Option<File>) -> io::Result<&'static Self> {
        if let Some(file) = &file
            && file.metadata()?.len() < Self::BYTES
        {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let (fd, kind) = file
            .as_ref()
            .map_or((-1, libc::MAP_ANONYMOUS), |file| (file.as_raw_fd(), 0));
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: new memory.
        let memory = unsafe {
            libc::mmap(
                ptr::null_mut(),
                size_of::<Self>(),
                protection,
                libc::MAP_SHARED | kind,
                fd,
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: so large, aligned to a page, and never unmapped; any bytes are a `Table`.
        Ok(unsafe { &*memory.cast::<Self>() })
    }

    /// Numbers of processes are those of this process's namespace.
    pub fn begin(&self) {
        self.namespace.store(own::namespace(), Ordering::Relaxed);
    }

    /// True if numbers of this namespace of processes say nothing here: a process there can own nothing.
    pub fn is_strange(&self, namespace: u64) -> bool {
        let own = self.namespace.load(Ordering::Relaxed);
        own != 0 && namespace != 0 && namespace != own
    }

    /// This process owns the area from now on; false if another one does that lives.
    pub fn own(&self, pid: u32) -> bool {
        let before = self.owner.load();
        before == pid || ((before == 0 || !is_alive(before)) && self.owner.replace(before, pid))
    }

    /// The process that owns the area; 0 if there is none.
    pub fn owner(&self) -> u32 {
        self.owner.load()
    }

    /// This process owns nothing any more.
    pub fn disown(&self, pid: u32) {
        self.bury(pid);
        self.owner.replace(pid, 0);
    }

    /// The area has nothing of the files of this process, which is dead, or has given all up.
    pub fn bury(&self, pid: u32) {
        for place in &self.places {
            let state = place.state.load();
            if place.owner.load() == pid && matches!(state, FOLLOWED | ASKED | RELEASED) {
                place.state.replace(state, FREE);
            }
        }
    }

    /// This process opens files for writing from now on. Told before it opens the first one: an owner that follows a file looks for
    /// writers afterwards, so one of both sees the other.
    pub fn writes(&self, pid: u32) {
        let pid = u64::from(pid);
        let take = |is_free: fn(u64) -> bool| {
            let mut all = self.writers.iter();
            all.any(|it| {
                let before = it.load(Ordering::SeqCst);
                let taken = || it.compare_exchange(before, pid, Ordering::SeqCst, Ordering::SeqCst);
                before == pid || (is_free(before) && taken().is_ok())
            })
        };
        if !take(|it| it == 0) && !take(|it| !is_alive(it as u32)) {
            self.crowded.store(1, Ordering::SeqCst);
        }
    }

    /// This process is about to become another program.
    pub fn starts(&self, pid: u32) {
        let pid = u64::from(pid);
        let take = |is_free: fn(u64) -> bool| {
            self.starts.iter().any(|it| {
                let before = it.load(Ordering::SeqCst);
                let taken = || it.compare_exchange(before, pid, Ordering::SeqCst, Ordering::SeqCst);
                before == pid || (is_free(before) && taken().is_ok())
            })
        };
        let _ = take(|it| it == 0) || take(|it| !is_alive(it as u32));
    }

    /// It is the other program now, and has the table.
    pub fn started(&self, pid: u32) {
        for it in &self.starts {
            let _ = it.compare_exchange(u64::from(pid), 0, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// True if a process lives that is about to become another program, or has become one that does not know the table.
    pub fn has_starts(&self) -> bool {
        let mut all = self.starts.iter().map(|it| it.load(Ordering::SeqCst) as u32);
        all.any(|it| it != 0 && is_alive(it))
    }

    /// Processes ask this one from now on.
    pub fn ask_at(&self, pid: u32) {
        self.desk.store(u64::from(pid), Ordering::SeqCst);
    }

    /// True if the process that others ask was killed, also if its parent has not asked for its end yet. Programs that start from now on cannot
    /// know what is followed.
    pub fn is_deserted(&self) -> bool {
        let desk = self.desk.load(Ordering::SeqCst) as libc::pid_t;
        desk != 0 && !has_memory(desk)
    }

    /// A keeper has taken the place of the run.
    pub fn keep(&self) {
        self.kept.store(1, Ordering::Relaxed);
    }

    /// True if one has.
    pub fn is_kept(&self) -> bool {
        self.kept.load(Ordering::Relaxed) != 0
    }

    /// Processes other than `pid` that may have files open for writing.
    pub fn writers(&self, pid: u32) -> impl Iterator<Item = u32> {
        let all = self.writers.iter().map(|it| it.load(Ordering::SeqCst) as u32);
        all.filter(move |&it| it != 0 && it != pid)
    }

    /// The place in which the file is followed.
    fn find(&self, key: FileKey) -> Option<&Place> {
        let is_it = |it: &&Place| matches!(it.state.load(), FOLLOWED | ASKED | RELEASED) && it.key() == key;
        self.places.iter().find(is_it)
    }

    fn is_foreign(&self, key: FileKey) -> bool {
        let is_it = |it: &Place| it.state.load() == FOREIGN && it.key() == key;
        self.places.iter().any(is_it)
    }

    fn fill(&self, pid: u32, key: FileKey, file: u64, state: u32) -> Option<&Place> {
        let is_taken = |it: &&Place| it.state.load() == FREE && it.state.replace(FREE, FILLED);
        let place = self.places.iter().find(is_taken)?;
        place.owner.set(pid);
        place.device.store(key.device, Ordering::Relaxed);
        place.inode.store(key.inode, Ordering::Relaxed);
        place.born_ns.store(key.born_ns, Ordering::Relaxed);
        place.file.store(file, Ordering::Relaxed);
        place.state.set(state);
        Some(place)
    }

    /// Fills a place as followed. Another process may have begun to write the file at the same time: both look at the other's place
    /// after they have filled their own.
    fn fill_followed(&self, pid: u32, key: FileKey, file: u64) -> Option<bool> {
        let place = self.fill(pid, key, file, FOLLOWED)?;
        let is_foreign = self.is_foreign(key);
        if is_foreign {
            place.state.set(FREE);
        } else {
            self.followed.fetch_add(1, Ordering::Relaxed);
        }
        Some(!is_foreign)
    }

    /// The owner follows a file; false if it must not, as other processes write the file, or as there is no place. Places of files
    /// that are not `known` any more are given to others, and of others' that are not `written` any more.
    pub fn follow(
        &self,
        pid: u32,
        key: FileKey,
        file: u64,
        known: impl Fn(u64) -> bool,
        written: impl Fn(FileKey) -> bool,
    ) -> bool {
        if let Some(place) = self.find(key) {
            // The inode may be another file's now, as the one before was removed.
            return place.owner.load() == pid && place.call(file);
        }
        if self.is_foreign(key) || self.crowded.load(Ordering::SeqCst) != 0 {
            return false;
        }
        if let Some(follows) = self.fill_followed(pid, key, file) {
            return follows;
        }
        for place in &self.places {
            let is_own = place.owner.load() == pid && place.state.load() == FOLLOWED;
            if is_own && !known(place.file.load(Ordering::Relaxed)) {
                place.state.replace(FOLLOWED, FREE);
            }
            // What others write in another namespace of processes nobody can see.
            let is_seen = place.state.load() == FOREIGN && place.owner.load() != 0;
            if is_seen && !written(place.key()) {
                place.state.replace(FOREIGN, FREE);
            }
        }
        self.fill_followed(pid, key, file).unwrap_or(false)
    }

    /// True if this process follows the file already, and nobody has asked for it. It calls the file by `file` from now on: what was closed
    /// gets another number when it is opened again.
    pub fn follows(&self, pid: u32, key: FileKey, file: u64) -> bool {
        let is_it = |it: &Place| it.owner.load() == pid && it.call(file);
        self.find(key).is_some_and(is_it)
    }

    /// The owner has given a file up by itself, for good: another run writes it.
    pub fn leave(&self, pid: u32, key: FileKey) {
        if let Some(place) = self.find(key).filter(|it| it.owner.load() == pid) {
            place.state.replace(FOLLOWED, FOREIGN);
        }
    }

    /// Other runs ask this one at this place.
    pub fn stand(&self, slot: u64) {
        self.slot.store(slot + 1, Ordering::Relaxed);
    }

    /// There is, or was, a run at this slot.
    pub fn greeted(&self, slot: u64) {
        self.others.fetch_or(1 << slot, Ordering::SeqCst);
    }

    /// A bit for each slot at which another run may be. A table without a slot knows nothing.
    pub fn others(&self) -> u64 {
        match self.slot.load(Ordering::Relaxed).checked_sub(1) {
            Some(own) => self.others.load(Ordering::SeqCst) & !(1 << own),
            None => u64::MAX,
        }
    }

    /// Files that were followed so far.
    pub fn count(&self) -> u64 {
        self.followed.load(Ordering::Relaxed)
    }

    /// The owner's thread: gives up what others ask for, for ever. `give_up` says whether the program has the file open. `look` is
    /// called once a second at least.
    pub fn answer(&self, pid: u32, give_up: impl Fn(u64) -> io::Result<bool>, look: impl Fn()) -> ! {
        loop {
            let questions = self.questions.load();
            for place in &self.places {
                let state = place.state.load();
                if !matches!(state, ASKED | RELEASED) || place.owner.load() != pid {
                    continue;
                }
                // A failure leaves the question: the journal fails from then on, and so do its files.
                match (state, give_up(place.file.load(Ordering::SeqCst))) {
                    // Another run has a file that nobody here writes. If it is opened here again, that run is asked.
                    (RELEASED, Ok(false)) => drop(place.state.replace(RELEASED, FREE)),
                    (_, Ok(_)) => drop(place.state.replace(state, FOREIGN)),
                    (_, Err(_)) => {}
                }
            }
            look();
            self.questions.wait(questions, LOOK_EVERY_NS * 20);
        }
    }

    /// True if another process than `pid` follows a file.
    pub fn has_followed(&self, pid: u32) -> bool {
        self.followed(pid).next().is_some()
    }

    /// The files that other processes than `pid` follow.
    pub fn followed(&self, pid: u32) -> impl Iterator<Item = FileKey> {
        let is_followed = move |it: &&Place| {
            matches!(it.state.load(), FOLLOWED | ASKED | RELEASED) && it.owner.load() != pid
        };
        self.places.iter().filter(is_followed).map(Place::key)
    }

    /// True if the file is followed by another process than `pid`.
    pub fn is_followed(&self, pid: u32, key: FileKey) -> bool {
        self.find(key).is_some_and(|it| it.owner.load() != pid)
    }

    /// A process that is not the owner changes a file from now on: waits until nobody follows it. `keeps` the owner from following it
    /// later. `lives` tells whether an owner does.
    pub fn ask(&self, pid: u32, key: FileKey, keeps: bool, lives: impl Fn(u32) -> bool) -> Answer {
        let began = now();
        loop {
            let Some(place) = self.find(key) else {
                if !keeps || self.is_foreign(key) {
                    return Answer::Free;
                }
                if self.fill(pid, key, 0, FOREIGN).is_some() {
                    continue;
                }
                if pid == 0 {
                    // Nobody sees what it writes.
                    self.crowded.store(1, Ordering::SeqCst);
                }
                return Answer::Free;
            };
            let (state, owner) = (place.state.load(), place.owner.load());
            match state {
                FOLLOWED | ASKED | RELEASED if !lives(owner) => return Answer::Dead(owner),
                FOLLOWED | RELEASED if place.state.replace(state, ASKED) => self.questions.change(),
                ASKED if now().since(began) > ANSWER_MAX => return Answer::Stuck,
                ASKED => place.state.wait(ASKED, LOOK_EVERY_NS),
                _ => {}
            }
        }
    }

    /// Another run is about to follow the file: waits until nobody of this one does, for `limit` at most.
    pub fn release(&self, key: FileKey, limit: std::time::Duration) -> Release {
        let (began, limit) = (now(), Duration::from_nanos(limit.as_nanos() as u64));
        let mut is_given = false;
        loop {
            let Some(place) = self.find(key) else {
                return match (self.is_foreign(key), is_given) {
                    (false, _) => Release::Free,
                    (true, true) => Release::Given,
                    (true, false) => Release::Foreign,
                };
            };
            let (state, owner) = (place.state.load(), place.owner.load());
            match state {
                FOLLOWED | ASKED | RELEASED if !is_alive(owner) => return Release::Dead(owner),
                FOLLOWED if place.state.replace(FOLLOWED, RELEASED) => {
                    is_given = true;
                    self.questions.change();
                }
                ASKED | RELEASED if now().since(began) > limit => return Release::Stuck,
                ASKED | RELEASED => place.state.wait(state, LOOK_EVERY_NS),
                _ => {}
            }
        }
    }
}

/// True if there is such a process, and it has not ended. The look takes no descriptor, as the program could get another number for its own
/// meanwhile. A process that has ended, and whose parent has not asked for that, can be sent signals, but has no memory to read.
fn has_memory(pid: libc::pid_t) -> bool {
    let mut byte = 0_u8;
    let to = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    let from = libc::iovec {
        iov_base: ptr::null_mut(),
        iov_len: 1,
    };
    let is_there =
        |result: isize| result >= 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH);
    // SAFETY: no memory is involved, and no signal is sent; at most one byte is written, to `byte`.
    unsafe {
        is_there(libc::kill(pid, 0) as isize) && is_there(libc::process_vm_readv(pid, &to, 1, &from, 1, 0))
    }
}

/// True if there is such a process, and it has not ended.
pub fn is_alive(pid: u32) -> bool {
    let Ok(stat) = own::read_proc(&format!("{pid}/stat")) else {
        // SAFETY: no memory is involved, and no signal is sent.
        let result = unsafe { libc::kill(pid as libc::pid_t, 0) };
        // Some /proc hide other users' processes.
        return result == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH);
    };
    let state = stat
        .rsplit(')')
        .next()
        .and_then(|rest| rest.trim_start().chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::Futex;
    use std::process::Command;

    const KEY: FileKey = FileKey {
        device: 1,
        inode: 2,
        born_ns: 3,
    };

    #[test]
    fn a_file_that_others_write_is_not_followed() {
        let table = Table::map(None).expect("memory");
        let own = std::process::id();
        assert!(table.own(own) && table.own(own));
        assert!(table.follow(own, KEY, 7, |_| true, |_| true));
        // Nobody has this number.
        let dead = u32::MAX / 2;
        assert_eq!(
            table.ask(own + 1, FileKey { device: 9, ..KEY }, true, is_alive),
            Answer::Free
        );
        assert!(!table.follow(own, FileKey { device: 9, ..KEY }, 8, |_| true, |_| true));
        table.bury(own);
        assert!(table.follow(dead, KEY, 7, |_| true, |_| true));
        assert_eq!(table.ask(own, KEY, false, is_alive), Answer::Dead(dead));
        table.bury(dead);
        assert_eq!(table.ask(own, KEY, false, is_alive), Answer::Free);
        table.disown(own);
        assert_eq!(table.owner(), 0);
    }

    #[test]
    fn whoever_asks_gets_an_answer() {
        let table = Table::map(None).expect("memory");
        let own = std::process::id();
        assert!(table.follow(own, KEY, 7, |_| true, |_| true));
        std::thread::scope(|scope| {
            let ask = scope.spawn(|| table.ask(own + 1, KEY, false, is_alive));
            std::thread::Builder::new()
                .spawn(move || {
                    let give_up = |file| {
                        if file == 7 {
                            Ok(true)
                        } else {
                            Err(io::ErrorKind::Other.into())
                        }
                    };
                    table.answer(own, give_up, || {})
                })
                .expect("a thread");
            assert_eq!(ask.join().expect("no panic"), Answer::Free);
        });
        assert!(
            !table.follow(own, KEY, 8, |_| true, |_| true),
            "it is the others'"
        );
    }

    /// bug: what a child wrote to a file that its parent had closed and opened again was undone by recovery. cause: the file had its first
    /// number in the table, by which the journal knew nothing to give up. fix: the table has the number of the last opening.
    #[test]
    fn a_file_that_was_opened_again_is_given_up_by_its_new_number() {
        let table = Table::map(None).expect("memory");
        let own = std::process::id();
        assert!(!table.follows(own, KEY, 7));
        assert!(table.follow(own, KEY, 7, |_| true, |_| true));
        assert!(table.follows(own, KEY, 8));
        let answer = move || {
            let give_up = |file| match file {
                8 => Ok(true),
                _ => Err(io::ErrorKind::Other.into()),
            };
            table.answer(own, give_up, || {})
        };
        std::thread::Builder::new().spawn(answer).expect("a thread");
        assert_eq!(table.ask(own + 1, KEY, false, is_alive), Answer::Free);
        assert!(!table.follows(own, KEY, 9), "it is the others'");
    }

    /// bug: programs of two runs logged one file, each in its own area. fix: the second one asks the first one's table.
    #[test]
    fn another_run_gets_a_file_that_nobody_writes_here() {
        let table = Table::map(None).expect("memory");
        let own = std::process::id();
        let other = FileKey { born_ns: 9, ..KEY };
        let limit = std::time::Duration::from_secs(10);
        assert_eq!(table.release(KEY, limit), Release::Free);
        assert!(
            table.follow(own, KEY, 7, |_| true, |_| true) && table.follow(own, other, 8, |_| true, |_| true)
        );
        assert!(table.follows(own, KEY, 7));
        let answer = move || table.answer(own, |file| Ok(file == 7), || {});
        std::thread::Builder::new().spawn(answer).expect("a thread");
        assert_eq!(table.release(KEY, limit), Release::Given, "it is open here");
        assert_eq!(table.release(KEY, limit), Release::Foreign);
        assert_eq!(table.release(other, limit), Release::Free, "it was closed");
        assert!(
            !table.follow(own, KEY, 7, |_| true, |_| true) && table.follow(own, other, 8, |_| true, |_| true)
        );
        table.leave(own, other);
        assert_eq!(table.release(other, limit), Release::Foreign);
    }

    /// bug: two processes took each other for themselves, and one lost the other's files. cause: each was process 1 of a namespace of its
    /// own. fix: only processes of the run's namespace own anything.
    #[test]
    fn numbers_of_another_namespace_say_nothing() {
        let table = Table::map(None).expect("memory");
        assert!(!table.is_strange(own::namespace()) && !table.is_strange(7));
        table.begin();
        assert!(!table.is_strange(own::namespace()) && !table.is_strange(0));
        assert!(table.is_strange(7));
    }

    /// bug: after so many files of other processes as the table has places, each further change of one failed with EIO. fix: places of what
    /// nobody writes any more are used again, and a full table is no failure.
    #[test]
    fn places_of_files_that_nobody_writes_are_used_again() {
        let table = Table::map(None).expect("memory");
        let own = std::process::id();
        let of = |inode| FileKey { inode, ..KEY };
        for inode in 0..2 * PLACES as u64 {
            assert_eq!(table.ask(own + 1, of(inode), true, is_alive), Answer::Free);
        }
        let written = |key: FileKey| key.inode == 5;
        assert!(table.follow(own, of(3 * PLACES as u64), 7, |_| true, written));
        assert!(!table.follow(own, of(5), 8, |_| true, written), "it is written");
        assert!(table.follow(own, of(6), 9, |_| true, written));
    }

    /// bug: after `run` was killed, nobody told a new program what a daemon follows. fix: the owner sees it, and gives everything up.
    #[test]
    fn it_is_seen_that_nobody_can_be_asked() {
        let table = Table::map(None).expect("memory");
        assert!(!table.is_deserted(), "nobody was there");
        table.ask_at(std::process::id());
        assert!(!table.is_deserted());
        // Nobody has this number.
        table.ask_at(u32::MAX / 2);
        assert!(table.is_deserted());
    }

    /// bug: a `run` that was killed, and whose parent did not ask for that, was taken for one that answers.
    #[test]
    fn it_is_seen_of_a_process_whose_parent_does_not_ask() {
        let table = Table::map(None).expect("memory");
        let mut child = Command::new("sleep").arg("60").spawn().expect("sleep");
        table.ask_at(child.id());
        assert!(!table.is_deserted());
        child.kill().expect("it runs");
        let looks = (0..500).take_while(|_| !table.is_deserted());
        assert!(looks.inspect(|_| Futex::new().wait(0, Some(10_000_000))).count() < 500);
        child.wait().expect("it is still to be asked for");
    }

    #[test]
    fn a_process_between_two_programs_is_known() {
        let table = Table::map(None).expect("memory");
        let own = std::process::id();
        // Nobody has this number.
        table.starts(u32::MAX / 2);
        assert!(!table.has_starts());
        table.starts(own);
        table.starts(own);
        assert!(table.has_starts());
        table.started(own);
        assert!(!table.has_starts());
        for it in &table.starts {
            it.store(u64::from(u32::MAX / 2), Ordering::SeqCst);
        }
        table.starts(own);
        assert!(table.has_starts(), "it takes the place of a dead one");
    }

    #[test]
    fn too_many_writers_end_following() {
        let table = Table::map(None).expect("memory");
        let own = std::process::id();
        // Nobody has these numbers.
        let dead = u32::MAX / 2;
        for nth in 0..2 * WRITERS as u32 {
            table.writes(dead + nth);
        }
        table.writes(own);
        assert!(table.writers(0).any(|it| it == own) && !table.writers(own).any(|it| it == own));
        assert!(table.follow(own, KEY, 7, |_| true, |_| true));
        for it in &table.writers {
            it.store(u64::from(own), Ordering::SeqCst);
        }
        table.writes(1);
        assert!(!table.follow(own, FileKey { inode: 9, ..KEY }, 8, |_| true, |_| true));
    }

    #[test]
    fn places_of_files_that_are_gone_are_used_again() {
        let table = Table::map(None).expect("memory");
        for inode in 0..3 * PLACES as u64 {
            assert!(table.follow(
                1,
                FileKey { inode, ..KEY },
                inode,
                |file| file + 10 > inode,
                |_| true
            ));
        }
    }
}

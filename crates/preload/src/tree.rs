//! The other processes of a run: one of them owns the area. The others ask it to give a file up before they change the file.

use crate::state::{
    FOLLOWED, IS_INSIDE, IS_PASSIVE, JOURNAL, Settings, inside, is_owner, is_sealed, place, present, settings,
};
use crate::tell::{self, tell};
use crate::{forks, over, real};
use area::AreaError;
use area::MediaOpenError;
use area::files::{Broker, FileId, FilesError, Journal, Source, Wish, prepare, restore};
use area::own::{descriptors, is_own, link, namespace};
use area::runs::{Had, OtherRun, others};
use area::table::{Answer, FileKey, Table, is_alive};
use area::writers::is_written_by;
use libc::{c_char, c_int};
use std::ffi::CStr;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Once, OnceLock};
use std::time::Duration;
use std::{io, thread};

/// Where `switchyard run` hands out the table and the area.
const BROKER: &str = "SWITCHYARD_BROKER";
/// Looks whether the area of a dead owner is free, and the time between two.
const LOOKS: u32 = 600;
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// In the place of a descriptor: its file is another process's.
const FOREIGN: u64 = 1 << 1;

static MAPPED: OnceLock<Option<&'static Table>> = OnceLock::new();
/// The run and its keeper were killed, or this process reaches neither: the table is nobody else's.
static IS_ALONE: AtomicBool = AtomicBool::new(false);

/// The table; none where it cannot be reached, or nothing is followed.
fn table() -> Option<&'static Table> {
    let map = || {
        settings()?;
        match broker()?.ask(Wish::Table) {
            Ok(Some(file)) => Table::map(Some(file.into())).ok(),
            _ => {
                IS_ALONE.store(true, Ordering::Relaxed);
                Table::map(None).ok()
            }
        }
    };
    *MAPPED.get_or_init(|| inside(map))
}

fn broker() -> Option<Broker> {
    std::env::var(BROKER).ok().and_then(|it| Broker::parse(&it))
}

/// The area's file as `switchyard run` opens it: with its rights, and in its root. `None` without a run.
pub fn hand_out() -> Option<io::Result<File>> {
    let handed = broker()?.ask(Wish::Area).transpose()?;
    Some(handed.map(File::from))
}

fn failed() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}

/// The regular file of a descriptor.
pub fn key_of(fd: c_int) -> Option<FileKey> {
    FileKey::of(fd)
}

/// True if others cannot know what this process follows, nor it what they do: it follows nothing. It is in another namespace of processes than
/// the run, or has no table of the run's.
fn is_stranger(table: &Table) -> bool {
    if IS_ALONE.load(Ordering::Relaxed) {
        return true;
    }
    /// Twice the process that has looked, and 1 if it is a stranger.
    static SEEN: AtomicU64 = AtomicU64::new(0);
    let pid = u64::from(std::process::id());
    let seen = SEEN.load(Ordering::Relaxed);
    if seen / 2 == pid {
        return seen % 2 == 1;
    }
    let is_stranger = inside(|| table.is_strange(namespace()));
    SEEN.store(2 * pid + u64::from(is_stranger), Ordering::Relaxed);
    is_stranger
}

/// This process's number in the table; 0 for a stranger.
fn number(table: &Table) -> u32 {
    match is_stranger(table) {
        true => 0,
        false => std::process::id(),
    }
}

/// True if the owner lives. A stranger does not see it, and has the run look.
fn lives(table: &Table, owner: u32) -> bool {
    if !is_stranger(table) {
        return is_alive(owner);
    }
    let is_dead = |error: io::Error| error.raw_os_error() == Some(libc::ESRCH);
    owner == table.owner() && !broker().is_some_and(|it| it.ask(Wish::Owner).is_err_and(is_dead))
}

/// True if this process does not own the area, and another one does or did: a forked child, or a program that another one of the run
/// has started. A stranger never owns it.
pub fn is_another() -> bool {
    if IS_INSIDE.get() || is_sealed() {
        return false;
    }
    if let Some(Some(_)) = JOURNAL.get() {
        return !is_owner();
    }
    table().is_some_and(|table| {
        let owner = table.owner();
        is_stranger(table) || (owner != 0 && owner != std::process::id() && is_alive(owner))
    })
}

/// This process owns the area; false if another one does.
pub fn own() -> bool {
    table().is_none_or(|table| table.own(std::process::id()))
}

/// It does not after all, or not any more.
pub fn disown() {
    if let Some(table) = table() {
        table.disown(std::process::id());
    }
}

/// The journal is open: others may ask from now on, and nothing that was inherited is anybody else's.
pub fn opened(journal: &'static Journal) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let Some(table) = table() else {
            return;
        };
        forget_inherited();
        let pid = std::process::id();
        let answer = move || {
            IS_INSIDE.set(true);
            let give_up = |file| {
                let is_open = journal.opens(FileId(file)) > 0;
                journal.give_up(FileId(file)).map(|()| is_open)
            };
            let look = || {
                if !is_sealed() && table.is_deserted() {
                    // A failure is kept, and told to whoever syncs next.
                    let _ = over::end(Some(journal), "`switchyard run`, or its keeper, was killed");
                }
            };
            table.answer(pid, give_up, look)
        };
        let thread = thread::Builder::new().name("asked".into());
        if thread.spawn(answer).is_err() {
            // Nobody could be answered: nothing is followed.
            IS_PASSIVE.store(true, Ordering::Relaxed);
        }
    });
}

/// The owner follows a file; false if others write it, of this run or of another one.
pub fn follow(journal: &Journal, fd: c_int, file: FileId) -> bool {
    let Some((table, key)) = table().zip(key_of(fd)) else {
        return true;
    };
    let pid = std::process::id();
    if table.follows(pid, key, file.0) {
        // Another run would have asked.
        return true;
    }
    let written = |key| table.writers(pid).any(|it| is_written_by(it, key));
    let follows = table.follow(pid, key, file.0, |file| journal.is_known(FileId(file)), written);
    // A process of this run may have it open by a name that is not chosen. Other runs give it up in any case.
    if others_write(table, fd, follows) || (follows && written(key)) {
        table.leave(pid, key);
        return false;
    }
    follows
}

/// True if programs of another run write the file, which that run does not follow from now on. It is said once: by whoever has had it
/// given up, or would have followed it.
fn others_write(table: &Table, fd: c_int, follows: bool) -> bool {
    /// Runs that do not answer.
    static DEAF: AtomicU64 = AtomicU64::new(0);
    // SAFETY: the program's descriptor, open during the call.
    let others = others(table, unsafe { BorrowedFd::borrow_raw(fd) }, &DEAF);
    for OtherRun { area, had } in &others {
        let file = link(fd).unwrap_or_default();
        let (file, area) = (file.display(), area.display());
        match had {
            Had::Stuck => tell!(
                "switchyard run: {file} is followed by the run of area {area}, which does not give it up: a crash of the machine may \
                 undo what is written here. End that run first"
            ),
            Had::Unasked => tell!(
                "switchyard run: {file} may be written by another user, whose run is not asked: its syncs go to the file system"
            ),
            Had::Followed | Had::Wrote if *had == Had::Followed || follows => tell!(
                "switchyard run: {file} is written by the run of area {area}, too: its syncs go to the file system in both. Start \
                 both programs by one `switchyard run`, or one after the other"
            ),
            _ => {}
        }
    }
    !others.is_empty()
}

/// The file is the file system's from now on. `keeps`: the owner does not follow it later, either.
fn ask(key: FileKey, keeps: bool) -> io::Result<()> {
    let Some(table) = table() else {
        return Ok(());
    };
    loop {
        match inside(|| table.ask(number(table), key, keeps, |owner| lives(table, owner))) {
            Answer::Free => return Ok(()),
            Answer::Stuck => return Err(failed()),
            Answer::Dead(owner) => inside(|| bury(table, owner))?,
        }
    }
}

/// Settles the area; false if somebody has it.
fn is_settled(path: &Path) -> io::Result<bool> {
    match broker().map(|it| it.ask(Wish::Settled)) {
        Some(Ok(_)) => return Ok(true),
        Some(Err(error)) if error.raw_os_error() == Some(libc::EBUSY) => return Ok(false),
        Some(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {}
        Some(Err(_)) => return Err(failed()),
        None => {}
    }
    match restore(path, 0) {
        Ok(_) => Ok(true),
        Err(FilesError::Area(AreaError::Media(MediaOpenError::InUse(_)))) => Ok(false),
        Err(error) => {
            tell!("switchyard run: {error}");
            Err(failed())
        }
    }
}

/// Settles the area of an owner that is dead, unless somebody else does.
fn bury(table: &Table, owner: u32) -> io::Result<()> {
    let Some(Settings {
        source: Source::Path(path, _),
        ..
    }) = settings()
    else {
        table.bury(owner);
        return Ok(());
    };
    for _ in 0..LOOKS {
        if is_settled(path)? {
            table.bury(owner);
            return Ok(());
        }
        let next = table.owner();
        if next != owner && next != 0 && lives(table, next) {
            // It has settled the area when it opened it, or will before it answers anybody.
            table.bury(owner);
            return Ok(());
        }
        thread::sleep(LOOK_EVERY);
    }
    Err(failed())
}

/// This process is about to change the file of a descriptor that another one may follow.
pub fn change(fd: c_int) -> io::Result<()> {
    if let Some(key) = key_of(fd) {
        ask(key, false)?;
    }
    // A child of vfork has its parent's memory.
    let is_own_memory = IS_PASSIVE.load(Ordering::Relaxed) || JOURNAL.get().is_none();
    if let Some(place) = place(fd).filter(|_| is_own_memory) {
        place.store(0, Ordering::Relaxed);
    }
    Ok(())
}

/// The same for all files that others follow.
pub fn change_all() -> io::Result<()> {
    ask_all(false)
}

/// The same for good: this process does not ask again.
pub fn leave_all() -> io::Result<()> {
    ask_all(true)?;
    forget_inherited();
    Ok(())
}

fn ask_all(keeps: bool) -> io::Result<()> {
    let Some(table) = table().filter(|_| is_another()) else {
        return Ok(());
    };
    let mut keys = table.followed(number(table));
    keys.try_for_each(|key| ask(key, keeps))
}

/// The same for what a path leads to, if `follows` through a link.
pub fn change_path(directory: c_int, path: *const c_char, follows: bool) -> io::Result<()> {
    if present().is_some() || path.is_null() || !is_another() {
        return Ok(());
    }
    let flags = if follows { 0 } else { libc::AT_SYMLINK_NOFOLLOW };
    // SAFETY: the caller's path ends with a zero.
    let key = FileKey::at(directory, unsafe { CStr::from_ptr(path) }, flags);
    key.map_or(Ok(()), |key| ask(key, false))
}

/// The process that has told the table that it writes; 0: none.
static WRITER: AtomicU32 = AtomicU32::new(0);

/// This process is about to open a file for writing.
pub fn writes() {
    if IS_INSIDE.get() || is_sealed() {
        return;
    }
    let pid = std::process::id();
    if WRITER.load(Ordering::Relaxed) == pid {
        return;
    }
    if let Some(table) = table().filter(|it| !is_stranger(it)) {
        inside(|| table.writes(pid));
    }
    WRITER.store(pid, Ordering::Relaxed);
}

/// In a forked child, which has its parent's descriptors.
extern "C" fn forked() {
    if WRITER.load(Ordering::Relaxed) != 0 {
        writes();
    }
}

/// This process is about to become another program. If that fails, nothing has changed: this process still has the table.
pub fn starts() {
    if IS_INSIDE.get() || is_sealed() {
        return;
    }
    if let Some(table) = table().filter(|it| !is_stranger(it)) {
        inside(|| table.starts(std::process::id()));
    }
}

/// This process has opened a file for writing, and does not own the area.
pub fn change_opened(fd: c_int, is_chosen: bool) -> io::Result<()> {
    let Some(key) = key_of(fd) else {
        return Ok(());
    };
    ask(key, is_chosen)?;
    if let Some(table) = table().filter(|_| is_chosen) {
        if is_stranger(table) {
            static ONCE: Once = Once::new();
            ONCE.call_once(|| match IS_ALONE.load(Ordering::Relaxed) {
                true => tell!(
                    "switchyard run: neither the run of this program nor a keeper of it answers (was it killed?): syncs go to the file \
                     system. Start the program by a new `switchyard run`"
                ),
                false => tell!(
                    "switchyard run: this program is in a namespace of processes of its own (as of bwrap, firejail or unshare): its \
                     syncs go to the file system. Start `switchyard run` inside of it"
                ),
            });
        }
        inside(|| others_write(table, fd, false));
    }
    Ok(())
}

/// When a program starts: what it has inherited may be followed by another process, or have been by the program that was here before.
extern "C" fn at_start() {
    if std::env::var_os(BROKER).is_none() {
        return;
    }
    tell::begin();
    forks::watch();
    // After what `forks` does in the child.
    // SAFETY: the function is there as long as the process.
    unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    // Later there may be another root, or another user.
    inside(prepare);
    let Some(table) = table() else {
        return;
    };
    let own = number(table);
    if own != 0 {
        table.started(own);
    }
    if own != 0 && table.owner() == own {
        // A failure is told; the next change asks again.
        let _ = inside(|| bury(table, own));
        table.disown(own);
    }
    let writes_file = |fd| can_write(fd) && key_of(fd).is_some();
    if inside(|| descriptors().unwrap_or_default().into_iter().any(writes_file)) {
        writes();
    }
    if table.has_followed(own) {
        inside(|| mark_inherited(table, own));
    }
}

fn forget_inherited() {
    FOLLOWED
        .iter()
        .for_each(|place| place.store(0, Ordering::Relaxed));
}

/// True if the descriptor can write.
pub fn can_write(fd: c_int) -> bool {
    // SAFETY: no memory is involved.
    let flags = unsafe { real::fcntl(fd, libc::F_GETFL, 0) };
    flags >= 0 && flags & libc::O_ACCMODE != libc::O_RDONLY && flags & libc::O_PATH == 0
}

fn mark_inherited(table: &Table, own: u32) {
    for fd in descriptors().unwrap_or_default() {
        let is_followed = |fd| key_of(fd).is_some_and(|key| table.is_followed(own, key));
        if let Some(place) = place(fd).filter(|_| !is_own(fd) && is_followed(fd)) {
            place.store(FOREIGN, Ordering::Relaxed);
        }
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = at_start;

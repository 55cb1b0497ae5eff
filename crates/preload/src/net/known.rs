//! Which descriptors are served. Others cost one look into this table.

use crate::fs::children;
use crate::state::{DESCRIPTORS_MAX, IS_INSIDE};
use libc::c_int;
use os::sync::{AtomicU32, Ordering};

/// By descriptor: 0 if it is not served, the number of its file, or [`SET`].
static NUMBERS: [AtomicU32; DESCRIPTORS_MAX] = [const { AtomicU32::new(0) }; DESCRIPTORS_MAX];
/// How many descriptors are not 0 there.
static COUNT: AtomicU32 = AtomicU32::new(0);
/// A set of epoll(7) that has served descriptors.
const SET: u32 = u32::MAX;
/// The process whose descriptors these are: a child of vfork has its parent's memory.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Files have numbers below.
pub(crate) const FILES_END: u32 = SET;

/// This process has the table from now on.
pub(crate) fn own() {
    OWNER.store(std::process::id(), Ordering::Relaxed);
}

fn look(fd: c_int) -> u32 {
    let place = usize::try_from(fd).ok().and_then(|fd| NUMBERS.get(fd));
    place.map_or(0, |place| place.load(Ordering::Relaxed))
}

/// The thread is the program's, in the process that has the table.
pub(crate) fn is_here() -> bool {
    !IS_INSIDE.get() && children::is_process(OWNER.load(Ordering::Relaxed))
}

/// The file of a descriptor that is served, or may be.
pub(crate) fn file(fd: c_int) -> Option<u32> {
    let number = look(fd);
    (number != 0 && number != SET && is_here()).then_some(number)
}

/// The same for a thread that is in the library, in the process that has the table.
pub(crate) fn inside(fd: c_int) -> Option<u32> {
    let number = look(fd);
    (number != 0 && number != SET).then_some(number)
}

/// Whether a descriptor is a set that has served ones.
pub(crate) fn is_set(fd: c_int) -> bool {
    look(fd) == SET && is_here()
}

/// The same for a thread that is in the library.
pub(crate) fn is_in_set(fd: c_int) -> bool {
    look(fd) == SET
}

/// Whether a descriptor is one of both.
pub(crate) fn is_any(fd: c_int) -> bool {
    look(fd) != 0 && is_here()
}

/// Whether anything is served.
pub(crate) fn has_any() -> bool {
    COUNT.load(Ordering::Relaxed) > 0
}

fn store(fd: c_int, number: u32) -> bool {
    match usize::try_from(fd).ok().and_then(|fd| NUMBERS.get(fd)) {
        Some(place) => {
            let before = place.swap(number, Ordering::Relaxed);
            if before == 0 && number != 0 {
                COUNT.fetch_add(1, Ordering::Relaxed);
            } else if before != 0 && number == 0 {
                COUNT.fetch_sub(1, Ordering::Relaxed);
            }
            true
        }
        None => false,
    }
}

/// A descriptor is one of a file. False if its number is too high to be served.
pub(crate) fn note_file(fd: c_int, file: u32) -> bool {
    store(fd, file)
}

/// A descriptor is a set. False if its number is too high.
pub(crate) fn note_set(fd: c_int) -> bool {
    store(fd, SET)
}

/// A descriptor is not served any more.
pub(crate) fn forget(fd: c_int) {
    store(fd, 0);
}

/// All descriptors of files.
pub(crate) fn all() -> impl Iterator<Item = (c_int, u32)> {
    let numbers = NUMBERS
        .iter()
        .map(|place| place.load(Ordering::Relaxed))
        .enumerate();
    numbers
        .filter(|(_, number)| *number != 0 && *number != SET)
        .map(|(fd, number)| (fd as c_int, number))
}

//! Model checks of the journal of `switchyard run`: the shipped sources, whose locks and thread are the checker's, over real
//! files and a real area.
//!
//! The area's own threads are real and unknown to the checker: a call into the area is one step. Its own checks are in
//! `tests/model`.

#[path = "../../src/beneath.rs"]
mod beneath;
#[path = "../../../os/tests/model/check.rs"]
mod check;
#[path = "../../src/deaf.rs"]
#[allow(dead_code, reason = "the checks need a part")]
mod deaf;
#[path = "../../src/files/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the checks need a part")]
mod files;
#[path = "../../src/peer.rs"]
mod peer;
#[path = "../../src/renewed.rs"]
#[allow(dead_code, reason = "the checks need a part")]
mod renewed;
#[path = "../../../os/tests/model/sync.rs"]
mod sync;

/// Names that the sources take from their crate.
mod area {
    pub(crate) use ::area::{Area, AreaOptions};
}
mod awake {
    pub(crate) fn never() {}
}
mod backend {
    pub(crate) use ::area::NvmTiming;
}
mod desk {
    pub(crate) use ::area::desk::Desk;
}
mod error {
    pub(crate) use ::area::AreaError;
}
mod follow {
    pub(crate) use ::area::{FollowOptions, Follower};
}
mod own {
    use rustix::fs::OFlags;
    use std::fs::File;
    use std::io;
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
    use std::path::PathBuf;
    use std::sync::OnceLock;

    pub(crate) fn duplicate(fd: RawFd) -> io::Result<OwnedFd> {
        // SAFETY: the caller's descriptor is open during the call.
        unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned()
    }

    pub(crate) fn reopen(fd: RawFd, _: OFlags) -> io::Result<Own> {
        duplicate(fd).map(Own)
    }

    pub(crate) fn link(fd: RawFd) -> io::Result<PathBuf> {
        std::fs::read_link(format!("/proc/self/fd/{fd}"))
    }

    pub(crate) fn proc() -> Option<BorrowedFd<'static>> {
        static PROC: OnceLock<Option<File>> = OnceLock::new();
        let proc = PROC.get_or_init(|| File::open("/proc").ok());
        proc.as_ref().map(AsFd::as_fd)
    }

    /// As in a root without one.
    pub(crate) fn sys() -> Option<BorrowedFd<'static>> {
        None
    }

    pub(crate) fn spare() -> usize {
        64
    }

    pub(crate) struct Own(OwnedFd);

    impl Own {
        pub(crate) fn new(fd: OwnedFd) -> Self {
            Self(fd)
        }
    }

    impl AsFd for Own {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }
    }

    pub(crate) fn mark(_: i32) {}
    pub(crate) fn unmark(_: i32) {}
}
mod structures {
    pub(crate) use ::area::Log;
}
mod table {
    pub(crate) use ::area::table::{Table, is_alive};
}

use ::area::{Area, AreaOptions};
use check::{check, finds};
use files::{At, FileId, Journal, Renaming, Source};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use sync::{Fault, thread};

/// Schedules of a check: each has an area and files of its own.
const SCHEDULES: usize = 60;
/// So small that the log of a few writes makes a checkpoint due.
const AREA_BYTES: u64 = 16 << 20;
const WRITE_BYTES: usize = 700_000;
const WRITES: usize = 4;

fn write(journal: &Journal, file: &File, id: FileId, data: &[u8]) {
    let fd = file.as_raw_fd();
    let make = || {
        // SAFETY: the bytes are there during the call.
        unsafe { libc::write(fd, data.as_ptr().cast(), data.len()) }
    };
    assert_eq!(
        journal.write(fd, id, At::Cursor, &[data], make),
        data.len() as isize
    );
}

/// Threads that write and sync files of their own, one that syncs all, one that renames, and the journal's own that makes
/// checkpoints; then the end.
fn writers_and_an_end() {
    // A file system in memory: what its syncs do is not what is checked.
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let directory = fs::canonicalize(directory.path()).expect("it is there");
    let area = directory.join("area");
    let (journal, _) = Journal::open(&Source::Path(area.clone(), AREA_BYTES)).expect("a new area");
    let journal = Arc::new(journal);
    let writers: Vec<_> = (0..2)
        .map(|number| {
            let (journal, path) = (Arc::clone(&journal), directory.join(format!("{number}-wal")));
            thread::spawn(move || {
                let file = File::create(&path).expect("a file");
                let id = journal.open_file(file.as_raw_fd(), true);
                let id = id.expect("it opens").expect("it is regular");
                for round in 0..WRITES {
                    write(&journal, &file, id, &vec![round as u8; WRITE_BYTES]);
                    journal.sync(id).expect("durable");
                }
                journal.close_file(id);
            })
        })
        .collect();
    let others: Vec<_> = [true, false]
        .map(|renames| {
            let (journal, directory) = (Arc::clone(&journal), directory.clone());
            thread::spawn(move || {
                if !renames {
                    return journal.sync_all().expect("durable");
                }
                let (from, to) = (directory.join("0-wal"), directory.join("2-wal"));
                let make = || i32::from(fs::rename(&from, &to).is_err());
                let renaming = Renaming {
                    from: &from,
                    to: &to,
                    swaps: false,
                    is_chosen: true,
                };
                journal.rename(&renaming, make).expect("named");
            })
        })
        .into();
    for thread in writers.into_iter().chain(others) {
        thread.join().expect("no panic");
    }
    journal.close().expect("all is synced");
    drop(journal);
    let area = Area::open(&area, &AreaOptions::new(0)).expect("nobody has it");
    let entries: u64 = area.structures().iter().map(|it| it.4).sum();
    assert_eq!(entries, 0, "the area has nothing that the files lack");
}

#[test]
fn every_sync_returns_and_the_journal_ends() {
    check(None, SCHEDULES, writers_and_an_end);
}

#[test]
fn a_journal_that_does_not_call_its_thread_is_found() {
    finds(Some(Fault::NotifiesNone), writers_and_an_end);
}

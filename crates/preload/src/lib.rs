//! `switchyard run` loads this library into a program (LD_PRELOAD). Its functions replace the C library's that write, sync,
//! name and close files. Chosen files become durable through the program's storage area (docs/format/files.md).
//!
//! | module | functions |
//! | --- | --- |
//! | `open` | open, creat, fopen, and their variants |
//! | `write` | write, pwrite, writev, pwritev, truncation, allocation, mapping |
//! | `sync` | fsync, fdatasync, sync_file_range, sync, syncfs |
//! | `attributes` | times and extended attributes |
//! | `names`, `paths` | rename, link, unlink, remove, chroot; which paths are chosen |
//! | `descriptors` | close, dup, fcntl |
//! | `numbers` | sockets, pipes and others: the program gets the numbers that it needs |
//! | `filters` | prctl: before a filter of system calls everything is given up |
//! | `exec` | execve and its variants: the area has nothing of any file before |
//! | `streams`, `hidden` | streams, asynchronous I/O, clones, system calls: the file is given up before |
//! | `forks` | fork: the child gets our locks anew |
//! | `rings` | a look for an io_uring of the program, which writes unseen |
//! | `handlers`, `signals` | sigaction, signal and others: with `run --fs` handlers wait for a thread that is in the library |
//! | `trap`, `selector` | with `run --fs`: system calls that the program makes itself |
//! | `fs` | with `run --fs`: all calls on files below a mount point |
//! | `net`, `behind` | with `run --tcp`: TCP sockets; functions that `fs` goes on to |
//!
//! Everything else goes to the kernel as ever, as the files themselves are what the program believes: reads, locks, stat,
//! directories. A descriptor that is not followed costs one look into a table.
//!
//! Functions that are cancellation points of threads may be unwound: they have nothing to drop while they call the C library's, and are
//! not cancelled while they have a lock. The library's memory is its own (`memory`), as a signal may have interrupted the program's
//! malloc.
//!
//! A forked child follows nothing: its calls reach the files alone, and before it changes a file that its parent follows, the parent
//! gives the file up (`tree`). The area is opened when the first file is to be followed, so that a program that puts itself into
//! the background before that keeps it.
#![warn(clippy::undocumented_unsafe_blocks)]
// Each function's contract is that of the C library's function of its name.
#![allow(clippy::missing_safety_doc, missing_docs)]
// The edge: nothing of the pure crates is here.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

mod attributes;
mod behind;
mod descriptors;
mod exec;
mod filters;
mod forks;
mod fs;
mod handlers;
mod hidden;
mod memory;
mod names;
mod net;
mod numbers;
mod open;
mod over;
mod paths;
mod real;
mod rings;
mod selector;
mod signals;
mod state;
mod streams;
mod sync;
mod tell;
#[cfg(target_arch = "x86_64")]
mod trap;
mod tree;
mod write;

use area::files::{FileId, FilesError, Journal, Source};
use libc::{c_int, pid_t};
use state::{Followed, IS_INSIDE, IS_PASSIVE, JOURNAL, OWNER, SYNCS, Settings, answer, followed};
use state::{inside, is_passive, place, present, pthread_testcancel, set_errno, settings};
use std::io;
use std::sync::atomic::Ordering;
use tell::tell;

/// The program's own may be held by the very thread that a signal has interrupted.
#[global_allocator]
static MEMORY: memory::Memory = memory::Memory;

/// The journal, which is opened now if it was not. `None` if it cannot be: then the file system has all files alone.
fn journal(settings: &Settings) -> Option<&'static Journal> {
    let open = || {
        // Another process of the run may have been faster: it has the area.
        if !tree::own() {
            return None;
        }
        let journal = open_journal(settings);
        if journal.is_none() {
            tree::disown();
        }
        journal
    };
    if JOURNAL.get().is_none() && tree::is_another() {
        return None;
    }
    if JOURNAL.get().is_none() {
        forks::watch();
        inside(|| {
            forks::without(|| {
                if let Some(journal) = JOURNAL.get_or_init(open).as_ref() {
                    tree::opened(journal);
                }
            });
        });
    }
    JOURNAL.get()?.as_ref()
}

fn open_journal(settings: &Settings) -> Option<Journal> {
    let handed = || match &settings.source {
        Source::Path(path, _) => tree::hand_out().map(|result| (path, result)),
        Source::Nvm(..) => None,
    };
    let opened = match handed() {
        Some((_, Ok(area))) => Journal::open_file_of_area(area),
        Some((path, Err(source))) => Err(FilesError::File {
            path: path.clone(),
            source,
        }),
        None => Journal::open(&settings.source),
    };
    match opened {
        Ok((journal, _)) => {
            OWNER.store(std::process::id() as pid_t, Ordering::Relaxed);
            Some(journal)
        }
        Err(error) => {
            tell!("switchyard run: {error}: syncs of this program go to the file system");
            None
        }
    }
}

/// The same before a change: if another process follows the file, that gives it up first.
fn to_change(fd: c_int) -> io::Result<Option<Followed>> {
    if place(fd).is_none_or(|place| place.load(Ordering::Relaxed) == 0) {
        return Ok(None);
    }
    // SAFETY: nothing is dropped on the way, and the callers are cancellation points.
    unsafe { pthread_testcancel() };
    let known = followed(fd);
    if known.is_none() && !IS_INSIDE.get() {
        tree::change(fd)?;
    }
    Ok(known)
}

/// The descriptor is not followed any more.
fn unfollow(fd: c_int) {
    state::unlocking(fd);
    if followed(fd).is_none() {
        // What is there is another process's; a child of vfork has its parent's memory.
        if IS_PASSIVE.load(Ordering::Relaxed) || JOURNAL.get().is_none() {
            place(fd).inspect(|place| place.store(0, Ordering::Relaxed));
        }
        return;
    }
    let value = place(fd).map_or(0, |place| place.swap(0, Ordering::Relaxed));
    if let Some(journal) = present().filter(|_| value != 0) {
        inside(|| journal.close_file(FileId(value >> 1)));
    }
}

/// When the process ends in an orderly way: nothing stays in the area.
extern "C" fn at_end() {
    if let Some(journal) = present() {
        if let Err(error) = inside(|| journal.close()) {
            tell!(
                "switchyard run: the files could not be synced at the end ({error}); the area has what they lack"
            );
        }
        IS_PASSIVE.store(true, Ordering::Relaxed);
        tree::disown();
    }
}

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_END: extern "C" fn() = at_end;

//! Files that an area makes durable: what a journal leaves, and what is brought back after a machine's crash.

use runtime::area::{Area, AreaOptions, Durability, Kind, Op};
use runtime::files::{At, FilesError, Journal, Recovered, Source, export, restore};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use store::files::{Change, Description, FILES_NAME, FileId, Identity, WRITES_NAME};

const AREA_BYTES: u64 = 16 << 20;

fn write(journal: &Journal, file: &File, id: FileId, data: &[u8]) {
    let fd = file.as_raw_fd();
    let make = || {
        // SAFETY: the bytes are there during the call.
        unsafe { libc::write(fd, data.as_ptr().cast(), data.len()) }
    };
    let written = journal.write(fd, id, At::Cursor, &[data], make);
    assert_eq!(written, data.len() as isize);
}

#[test]
fn a_journal_that_is_closed_leaves_everything_to_the_files() {
    let directory = tempfile::tempdir().expect("a directory");
    let directory = fs::canonicalize(directory.path()).expect("it is there");
    let (area, old, new) = (
        directory.join("area"),
        directory.join("a-wal"),
        directory.join("b-wal"),
    );
    let (journal, recovered) = Journal::open(&Source::Path(area.clone(), AREA_BYTES)).expect("a new area");
    assert_eq!(recovered, Recovered::default());
    let file = File::create(&old).expect("a file");
    let id = journal
        .open_file(file.as_raw_fd(), true)
        .expect("open")
        .expect("regular");
    for round in 0..50 {
        write(&journal, &file, id, format!("round {round};").as_bytes());
        journal.sync(id).expect("durable");
    }
    // More than the log follows without a sync.
    write(&journal, &file, id, &vec![b'x'; 3 << 20]);
    journal.sync(id).expect("durable by a checkpoint");
    let size = 300;
    let shorten = || i32::from(file.set_len(size).is_err());
    assert_eq!(journal.resize(id, size, shorten).expect("resized"), 0);
    let make = || i32::from(fs::rename(&old, &new).is_err());
    assert_eq!(journal.rename(&old, &new, false, make).expect("renamed"), 0);
    assert_eq!((journal.find(&old), journal.find(&new)), (None, Some(id)));
    write(&journal, &file, id, b"after");
    journal.sync(id).expect("durable under its new name");
    journal.close_file(id);
    journal.close().expect("all is synced");
    drop(journal);
    assert!(fs::metadata(&new).expect("it is there").len() > 300);
    let area = Area::open(&area, &AreaOptions::new(0)).expect("nobody has it");
    let entries: u64 = area.structures().iter().map(|it| it.4).sum();
    assert_eq!(entries, 0);
}

/// An area as a crash of the machine leaves it: one description, and two changes.
fn crashed(area: &Path, path: &Path, is_fresh: bool, identity: Identity) {
    let area = Area::open(area, &AreaOptions::new(AREA_BYTES)).expect("a new area");
    let map = area
        .create(FILES_NAME, Kind::Map, Durability::Lazy)
        .expect("room");
    let log = area
        .create(WRITES_NAME, Kind::Log, Durability::Lazy)
        .expect("room");
    let description = Description {
        path: path.as_os_str().as_bytes().to_vec(),
        identity,
        owner: [0o100_640, 0, 0],
        is_fresh,
        is_removed: false,
    };
    let change = |offset, size| {
        let file = FileId(1);
        Change {
            file,
            pieces: Some(1),
            offset,
            size,
        }
        .emit()
    };
    let ops = [
        Op::Put {
            map,
            key: &FileId(1).key(),
            data: &description.emit(),
        },
        Op::Append {
            log,
            data: &change(0, 5),
        },
        Op::Append { log, data: b"12345" },
        Op::Append {
            log,
            data: &change(3, 7),
        },
        Op::Append { log, data: b"abcd" },
    ];
    area.enter(&ops).expect("room");
    area.sync().expect("durable");
}

#[test]
fn a_machine_that_crashed_gets_its_files_back() {
    let directory = tempfile::tempdir().expect("a directory");
    let (area, path) = (directory.path().join("area"), directory.path().join("it"));
    crashed(&area, &path, true, Identity::default());
    let copies = export(&area, &directory.path().join("copies")).expect("copied");
    assert_eq!(fs::read(&copies[0]).expect("the copy"), b"123abcd");
    assert!(!path.exists(), "copying changes nothing");
    let recovered = restore(&area, 0).expect("restored");
    assert_eq!((recovered.replayed, recovered.bytes), (1, 9));
    assert_eq!(fs::read(&path).expect("made again"), b"123abcd");
    assert_eq!(fs::metadata(&path).expect("made again").mode() & 0o777, 0o640);
    assert_eq!(restore(&area, 0).expect("once is enough"), Recovered::default());
}

#[test]
fn changes_are_not_made_to_another_file_than_theirs() {
    let directory = tempfile::tempdir().expect("a directory");
    let (area, path) = (directory.path().join("area"), directory.path().join("it"));
    fs::write(&path, b"somebody's").expect("a file");
    crashed(&area, &path, false, Identity::default());
    assert!(matches!(restore(&area, 0), Err(FilesError::Refused(_))));
    assert_eq!(fs::read(&path).expect("as it was"), b"somebody's");
    let copies = export(&area, &directory.path().join("copies")).expect("copied");
    assert_eq!(fs::read(&copies[0]).expect("the copy"), b"123abcd");
    // The file itself, with unsynced bytes of which the area knows nothing.
    fs::remove_file(&area).expect("there");
    let found = fs::metadata(&path).expect("there");
    let born = found.created().expect("the file system tells");
    let born = born.duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    let identity = Identity {
        inode: found.ino(),
        born_ns: born.as_nanos() as u64,
        cache: 0,
    };
    crashed(&area, &path, false, identity);
    restore(&area, 0).expect("restored");
    assert_eq!(fs::read(&path).expect("there"), b"123abcd");
}

#[test]
fn two_journals_do_not_share_an_area() {
    let directory = tempfile::tempdir().expect("a directory");
    let source = Source::Path(directory.path().join("area"), AREA_BYTES);
    let (journal, _) = Journal::open(&source).expect("a new area");
    assert!(Journal::open(&source).is_err());
    journal.close().expect("nothing to sync");
    drop(journal);
    Journal::open(&source).expect("it is free");
}

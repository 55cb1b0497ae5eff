//! Files that an area makes durable: what a journal leaves, and what is brought back after a machine's crash.

use area::files::{At, FilesError, Journal, Recovered, Renaming, Source, export, forget, restore};
use area::{Area, AreaOptions, Durability, Kind, Op};
use std::fs::{self, File, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use store::files::{Change, Claim, Description, FILES_NAME, FileId, Identity, WRITES_NAME};

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
    assert_eq!(journal.rename(&renaming(&old, &new), make).expect("renamed"), 0);
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

const FOR_EVER: Claim = Claim { until_ns: u64::MAX };

/// An area as a crash of the machine leaves it: one description, and two changes.
fn crashed(area: &Path, path: &Path, is_fresh: bool, identity: Identity, claim: Claim) {
    let area = Area::open(area, &AreaOptions::new(AREA_BYTES)).expect("a new area");
    let map = area
        .create(FILES_NAME, Kind::Map, Durability::Lazy)
        .expect("room");
    let log = area
        .create(WRITES_NAME, Kind::Log, Durability::Lazy)
        .expect("room");
    let description = Description {
        path: path.as_os_str().as_bytes().to_vec(),
        handle: Vec::new(),
        identity,
        place: None,
        since_ns: 0,
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
            key: &Claim::PLACE.key(),
            data: &claim.emit(),
        },
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
    crashed(&area, &path, true, Identity::default(), FOR_EVER);
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
    crashed(&area, &path, false, Identity::default(), FOR_EVER);
    assert!(matches!(restore(&area, 0), Err(FilesError::Refused(_))));
    assert_eq!(fs::read(&path).expect("as it was"), b"somebody's");
    let copies = export(&area, &directory.path().join("copies")).expect("copied");
    assert_eq!(fs::read(&copies[0]).expect("the copy"), b"123abcd");
    // The file itself, with unsynced bytes of which the area knows nothing.
    fs::remove_file(&area).expect("there");
    crashed(&area, &path, false, identity_of(&path), FOR_EVER);
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

/// Files as the area would bring them back after a crash now.
fn after_a_crash(area: &Path, image: &Path) -> Recovered {
    lose_the_cache(area, image);
    restore(image, 0).expect("restored")
}

/// A copy of the area, in which the page cache is another one than the present.
fn lose_the_cache(area: &Path, image: &Path) {
    fs::copy(area, image).expect("copied");
    {
        let area = Area::open(image, &AreaOptions::new(0)).expect("as after a crash");
        let map = area.map(FILES_NAME).expect("it is there");
        for key in map.keys().expect("sound") {
            if *key == Claim::PLACE.key() {
                continue;
            }
            let value = map.get(&key).expect("sound").expect("just listed");
            let mut description = Description::parse(&value).expect("sound");
            description.identity.cache ^= 1;
            map.put(&key, &description.emit()).expect("room");
        }
        area.sync().expect("durable");
    }
}

fn renaming<'a>(from: &'a Path, to: &'a Path) -> Renaming<'a> {
    Renaming {
        from,
        to,
        swaps: false,
        is_chosen: true,
    }
}

/// A file that is followed, with what was synced in it.
fn followed(journal: &Journal, path: &Path, data: &[u8]) -> (File, FileId) {
    let file = File::create(path).expect("a file");
    let id = journal.open_file(file.as_raw_fd(), true);
    let id = id.expect("open").expect("regular");
    write(journal, &file, id, data);
    journal.sync(id).expect("durable");
    (file, id)
}

#[test]
fn a_removal_that_fails_is_taken_back_from_the_area() {
    let directory = tempfile::tempdir().expect("a directory");
    let directory = fs::canonicalize(directory.path()).expect("it is there");
    let [area, meanwhile, image, path] =
        ["area", "meanwhile", "image", "a-wal"].map(|name| directory.join(name));
    let (journal, _) = Journal::open(&Source::Path(area.clone(), AREA_BYTES)).expect("a new area");
    let (file, id) = followed(&journal, &path, b"before;");
    let fails = || {
        fs::copy(&area, &meanwhile).expect("copied");
        // SAFETY: a path that nobody has.
        unsafe { libc::unlink(c"/nowhere/at/all".as_ptr()) }
    };
    let failure = journal.remove(id, fails).expect_err("it fails");
    assert_eq!(failure.raw_os_error(), Some(libc::ENOENT));
    assert_eq!(
        after_a_crash(&area, &image),
        Recovered::default(),
        "the area says nothing of it"
    );
    assert_eq!(fs::read(&path).expect("it is there"), b"before;");
    assert_eq!(journal.find(&path), Some(id), "it is followed as before");
    drop(file);
    journal.close_file(id);
    journal.close().expect("all is synced");
    // While it was tried the area had the removal: a crash then would have completed it.
    assert_eq!(after_a_crash(&meanwhile, &image).removed, 1);
    assert!(!path.exists());
}

#[test]
fn a_file_whose_removal_failed_is_made_durable_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let directory = fs::canonicalize(directory.path()).expect("it is there");
    let [area, image, path] = ["area", "image", "a-wal"].map(|name| directory.join(name));
    let (journal, _) = Journal::open(&Source::Path(area.clone(), AREA_BYTES)).expect("a new area");
    let (file, id) = followed(&journal, &path, b"before;");
    // SAFETY: a path that nobody has.
    let fails = || unsafe { libc::unlink(c"/nowhere/at/all".as_ptr()) };
    journal.remove(id, fails).expect_err("it fails");
    write(&journal, &file, id, b"after");
    journal.sync(id).expect("durable");
    // What the crash took of it is brought back.
    file.set_len(7).expect("shorter");
    let recovered = after_a_crash(&area, &image);
    assert_eq!(
        (recovered.removed, recovered.replayed, recovered.bytes),
        (0, 1, 5)
    );
    assert_eq!(fs::read(&path).expect("it is there"), b"before;after");
    let removes = || i32::from(fs::remove_file(&path).is_err());
    assert_eq!(journal.remove(id, removes).expect("removed"), 0);
    assert_eq!(journal.find(&path), None);
}

/// The file had two names, so the area was emptied before one of them went, and with it what was known of a file that nobody has
/// open; the removal then looked for it. Now it does without.
#[test]
fn a_closed_file_with_two_names_loses_one_of_them() {
    let directory = tempfile::tempdir().expect("a directory");
    let directory = fs::canonicalize(directory.path()).expect("it is there");
    let [area, path, other] = ["area", "a-wal", "b-wal"].map(|name| directory.join(name));
    let (journal, _) = Journal::open(&Source::Path(area, AREA_BYTES)).expect("a new area");
    for fails in [true, false] {
        let _ = fs::remove_file(&other);
        let (file, id) = followed(&journal, &path, b"data");
        drop(file);
        journal.close_file(id);
        assert_eq!(journal.find(&path), Some(id), "the area has changes of it");
        fs::hard_link(&path, &other).expect("another name");
        let make = || {
            if fails {
                -1
            } else {
                i32::from(fs::remove_file(&path).is_err())
            }
        };
        assert_eq!(journal.remove(id, make).is_err(), fails);
        assert_eq!(journal.find(&path), None);
    }
    assert_eq!(fs::read(&other).expect("the other name"), b"data");
    journal.close().expect("all is synced");
}

/// bug: a file that was renamed, or linked, to the name of a removed one was removed by recovery. cause: recovery took it for an older state
/// of the removed one. fix: the area forgets the removed one before, and the older file's time of change tells when it came there.
#[test]
fn a_file_with_the_name_of_a_removed_one_stays() {
    let directory = tempfile::tempdir().expect("a directory");
    let directory = fs::canonicalize(directory.path()).expect("it is there");
    let [area, image, path, old] = ["area", "image", "a-wal", "old"].map(|name| directory.join(name));
    for links in [false, true] {
        fs::write(&old, b"older").expect("a file");
        let (journal, _) = Journal::open(&Source::Path(area.clone(), AREA_BYTES)).expect("an area");
        let (file, id) = followed(&journal, &path, b"data");
        let remove = || i32::from(fs::remove_file(&path).is_err());
        assert_eq!(journal.remove(id, remove).expect("removed"), 0);
        let done = if links {
            journal.link(&path, true, || i32::from(fs::hard_link(&old, &path).is_err()))
        } else {
            journal.rename(&renaming(&old, &path), || {
                i32::from(fs::rename(&old, &path).is_err())
            })
        };
        assert_eq!(done.expect("done"), 0);
        assert_eq!(after_a_crash(&area, &image), Recovered::default());
        assert_eq!(fs::read(&path).expect("it is there"), b"older");
        drop(file);
        journal.close_file(id);
        journal.close().expect("all is synced");
        drop(journal);
        fs::remove_file(&path).expect("removed");
    }
}

/// The file system makes the other name durable, so it syncs the file itself, and the area has nothing of it.
#[test]
fn a_file_with_two_names_is_synced_with_both() {
    let directory = tempfile::tempdir().expect("a directory");
    let directory = fs::canonicalize(directory.path()).expect("it is there");
    let [area, image, path, other] = ["area", "image", "a-wal", "other"].map(|name| directory.join(name));
    let (journal, _) = Journal::open(&Source::Path(area.clone(), AREA_BYTES)).expect("a new area");
    let (file, id) = followed(&journal, &path, b"before;");
    fs::hard_link(&path, &other).expect("another name");
    write(&journal, &file, id, b"after");
    journal.sync(id).expect("durable");
    assert_eq!(after_a_crash(&area, &image), Recovered::default());
    fs::remove_file(&other).expect("one name again");
    for recovered in [0, 1] {
        write(&journal, &file, id, b"later");
        journal.sync(id).expect("durable");
        let found = after_a_crash(&area, &image);
        assert_eq!((found.replayed, found.complete), (0, recovered));
    }
    journal.close().expect("all is synced");
}

/// bug: after a power cut while an area was made, the file was refused for ever. cause: a file of zeros was taken for a damaged area.
/// fix: it has nothing, and becomes an area with the next size.
#[test]
fn an_area_that_was_not_finished_has_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    for bytes in [0, AREA_BYTES] {
        let path = directory.path().join("area");
        File::create(&path)
            .and_then(|it| it.set_len(bytes))
            .expect("room");
        assert_eq!(restore(&path, 0).expect("nothing is in it"), Recovered::default());
        let copies = export(&path, &directory.path().join("copies"));
        assert!(copies.expect("nothing is in it").is_empty());
        assert_eq!(restore(&path, AREA_BYTES).expect("made"), Recovered::default());
        Area::open(&path, &AreaOptions::new(0)).expect("it is an area");
        fs::remove_file(&path).expect("there");
    }
}

/// bug: `export` said that all files were complete, and lost what was behind the superblocks. cause: it looked at these alone. fix: it
/// looks as `run` does, for which a file with data is not nobody's.
#[test]
fn an_area_without_its_superblocks_is_not_one_that_was_not_finished() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("area");
    for (bytes, data) in [(AREA_BYTES, &b"data"[..]), (1000, &[])] {
        let file = File::create(&path).expect("a file");
        file.set_len(bytes).expect("room");
        file.write_all_at(data, bytes / 2).expect("room");
        restore(&path, 0).expect_err("something may be in it");
        export(&path, &directory.path().join("copies")).expect_err("something may be in it");
        restore(&path, AREA_BYTES).expect_err("it is not made anew");
    }
}

/// bug: a sync that failed was made again at the end, and succeeded: the kernel had called the pages clean. fix: the log's changes are
/// made again.
#[test]
fn a_file_that_could_not_be_synced_is_written_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let directory = fs::canonicalize(directory.path()).expect("it is there");
    let [area, path] = ["area", "a-wal"].map(|name| directory.join(name));
    let (journal, _) = Journal::open(&Source::Path(area.clone(), AREA_BYTES)).expect("a new area");
    let (file, id) = followed(&journal, &path, b"0123456789");
    journal.sync_failed(id);
    assert!(journal.sync(id).is_err(), "no sync succeeds after that");
    // What the kernel has lost.
    file.set_len(0).expect("shorter");
    journal.close().expect_err("it keeps what it has");
    drop(journal);
    assert_eq!(restore(&area, 0).expect("restored").replayed, 1);
    assert_eq!(fs::read(&path).expect("there"), b"0123456789");
}

/// A write that the file system takes a part of.
#[test]
fn a_short_write_is_logged_as_far_as_it_went() {
    let directory = tempfile::tempdir().expect("a directory");
    let directory = fs::canonicalize(directory.path()).expect("it is there");
    let [area, image, path] = ["area", "image", "a-wal"].map(|name| directory.join(name));
    let (journal, _) = Journal::open(&Source::Path(area.clone(), AREA_BYTES)).expect("a new area");
    let (file, id) = followed(&journal, &path, b"0123");
    let fd = file.as_raw_fd();
    // SAFETY: the bytes are there during the call.
    let make = || unsafe { libc::write(fd, b"45".as_ptr().cast(), 2) };
    assert_eq!(journal.write(fd, id, At::Cursor, &[b"4", b"5678"], make), 2);
    journal.sync(id).expect("durable");
    file.set_len(0).expect("what the crash took of it");
    after_a_crash(&area, &image);
    assert_eq!(fs::read(&path).expect("there"), b"012345");
}

/// bug: a new directory that the crash had taken kept its files from coming back, for ever. fix: recovery makes it, if nobody has
/// changed the directory above since.
#[test]
fn a_directory_that_the_crash_has_taken_is_made_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let directory = fs::canonicalize(directory.path()).expect("it is there");
    let [area, image, new] = ["area", "image", "new"].map(|name| directory.join(name));
    fs::create_dir(&new).expect("room");
    let path = new.join("deep-wal");
    let (journal, _) = Journal::open(&Source::Path(area.clone(), AREA_BYTES)).expect("a new area");
    let (_file, _) = followed(&journal, &path, b"data");
    lose_the_cache(&area, &image);
    fs::remove_dir_all(&new).expect("there");
    assert_eq!(restore(&image, 0).expect("restored").replayed, 1);
    assert_eq!(fs::read(&path).expect("there"), b"data");
}

/// Lets the claim of an area run out.
fn end_claim(area: &Path) {
    let area = Area::open(area, &AreaOptions::new(0)).expect("nobody has it");
    let map = area.map(FILES_NAME).expect("it is there");
    let claim = Claim { until_ns: 1 };
    map.put(&Claim::PLACE.key(), &claim.emit()).expect("room");
    area.sync().expect("durable");
}

fn refusal(area: &Path) -> String {
    match restore(area, 0) {
        Err(FilesError::Refused(text)) => text,
        other => panic!("{other:?}"),
    }
}

/// bug: SQLite lost 1,975 of 2,025 rows. cause: the program was used without `run`, and recovery made old changes to its files.
/// fix: a file that changed after the area's claim is left alone.
#[test]
fn a_file_that_went_on_without_the_area_is_left_alone() {
    let directory = tempfile::tempdir().expect("a directory");
    let directory = fs::canonicalize(directory.path()).expect("it is there");
    let [area, image, path, other] = ["area", "image", "a-wal", "b-wal"].map(|name| directory.join(name));
    let (journal, _) = Journal::open(&Source::Path(area.clone(), AREA_BYTES)).expect("a new area");
    let (_file, _) = followed(&journal, &path, b"old");
    let (_other, _) = followed(&journal, &other, b"other");
    lose_the_cache(&area, &image);
    drop(journal);
    end_claim(&image);
    fs::write(&path, b"newer data").expect("it is there");
    assert!(refusal(&image).contains("a-wal was changed after"));
    assert_eq!(fs::read(&path).expect("there"), b"newer data");
    let copies = export(&image, &directory.join("copies")).expect("copied");
    assert_eq!(fs::read(&copies[0]).expect("the copy"), b"old");
    assert!(forget(&image, &path).expect("forgotten"));
    assert!(!forget(&image, &path).expect("only once"));
    // It was the second file's turn.
    assert!(refusal(&image).contains("b-wal"));
    assert!(forget(&image, &other).expect("forgotten"));
    assert_eq!(restore(&image, 0).expect("nothing is left"), Recovered::default());
    assert_eq!(fs::read(&path).expect("there"), b"newer data");
}

/// bug: a database was damaged by an older `-wal` beside it. cause: a file that somebody had removed was made again. fix: it is
/// not if its directory changed after the claim.
#[test]
fn a_file_that_somebody_removed_does_not_come_back() {
    let directory = tempfile::tempdir().expect("a directory");
    let directory = fs::canonicalize(directory.path()).expect("it is there");
    let [area, image, path] = ["area", "image", "a-wal"].map(|name| directory.join(name));
    let (journal, _) = Journal::open(&Source::Path(area.clone(), AREA_BYTES)).expect("a new area");
    let (file, _) = followed(&journal, &path, b"old");
    lose_the_cache(&area, &image);
    drop((journal, file));
    end_claim(&image);
    fs::remove_file(&path).expect("there");
    assert!(refusal(&image).contains("is missing, and its directory was changed"));
    assert!(!path.exists());
}

/// An area of version 1 says nothing of its claim, and proves nothing.
#[test]
fn an_area_without_a_claim_changes_no_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let (area, path) = (directory.path().join("area"), directory.path().join("it"));
    crashed(&area, &path, true, Identity::default(), Claim::default());
    refusal(&area);
    assert!(!path.exists());
}

/// bug: a file that logrotate had renamed was empty after a crash. cause: recovery looked for it at its old path alone. fix: it finds
/// the file by its handle, or by its inode's number in the directory.
#[test]
fn changes_are_made_to_a_file_that_somebody_renamed() {
    let directory = tempfile::tempdir().expect("a directory");
    let directory = fs::canonicalize(directory.path()).expect("it is there");
    let [area, image, path] = ["area", "image", "a-wal"].map(|name| directory.join(name));
    fs::create_dir(directory.join("old")).expect("a directory");
    for renamed in [directory.join("a-wal.1"), directory.join("old/a-wal")] {
        let (journal, _) = Journal::open(&Source::Path(area.clone(), AREA_BYTES)).expect("an area");
        let (file, id) = followed(&journal, &path, b"before;");
        fs::rename(&path, &renamed).expect("renamed");
        fs::write(&path, b"another").expect("a new file");
        write(&journal, &file, id, b"after");
        journal.sync(id).expect("durable");
        file.set_len(3).expect("what the crash took of it");
        let recovered = after_a_crash(&area, &image);
        assert_eq!((recovered.replayed, recovered.bytes), (1, 12));
        assert_eq!(fs::read(&renamed).expect("it is there"), b"before;after");
        assert_eq!(fs::read(&path).expect("it is there"), b"another");
        // A checkpoint finds the new name.
        journal.sync_all().expect("synced");
        assert_eq!((journal.find(&path), journal.find(&renamed)), (None, Some(id)));
        fs::remove_file(&renamed).expect("removed by somebody");
        write(&journal, &file, id, b"more");
        journal.sync(id).expect("durable for whoever has it open");
        journal.sync_all().expect("synced");
        assert_eq!(after_a_crash(&area, &image), Recovered::default());
        fs::remove_file(&path).expect("there");
        journal.close_file(id);
        journal.close().expect("all is synced");
    }
}

/// bug: recovery gave files the mode that they had when they were opened. fix: only a file that recovery makes gets one.
#[test]
fn a_file_that_is_there_keeps_its_mode() {
    let directory = tempfile::tempdir().expect("a directory");
    let directory = fs::canonicalize(directory.path()).expect("it is there");
    let [area, image, path] = ["area", "image", "a-wal"].map(|name| directory.join(name));
    let (journal, _) = Journal::open(&Source::Path(area.clone(), AREA_BYTES)).expect("a new area");
    let (file, _) = followed(&journal, &path, b"data");
    fs::set_permissions(&path, Permissions::from_mode(0o604)).expect("ours");
    file.set_len(1).expect("what the crash took of it");
    assert_eq!(after_a_crash(&area, &image).replayed, 1);
    assert_eq!(fs::read(&path).expect("it is there"), b"data");
    assert_eq!(fs::metadata(&path).expect("there").mode() & 0o777, 0o604);
}

/// Without `CAP_DAC_READ_SEARCH` only the directory can be searched; a description of version 1 has no handle, either.
#[test]
fn a_renamed_file_without_a_handle_is_found_in_its_directory() {
    let directory = tempfile::tempdir().expect("a directory");
    let [area, path, renamed] = ["area", "it", "renamed"].map(|name| directory.path().join(name));
    fs::write(&renamed, b"abc").expect("a file");
    crashed(&area, &path, false, identity_of(&renamed), FOR_EVER);
    assert_eq!(restore(&area, 0).expect("restored").replayed, 1);
    assert_eq!(fs::read(&renamed).expect("there"), b"123abcd");
    assert!(!path.exists());
}

/// Bug: a file that was moved to another directory before a crash lost its synced changes, and a new file with them appeared at its old
/// path, if recovery might not use handles. Fix: it looks for the inode's names on the whole mount.
#[test]
fn a_moved_file_without_a_handle_is_found_in_another_directory() {
    let directory = tempfile::tempdir().expect("a directory");
    let [area, path] = ["area", "a/it"].map(|name| directory.path().join(name));
    fs::create_dir_all(directory.path().join("a/b/c")).expect("directories");
    let moved = directory.path().join("a/b/c/moved");
    fs::write(&moved, b"abc").expect("a file");
    crashed(&area, &path, true, identity_of(&moved), FOR_EVER);
    assert_eq!(restore(&area, 0).expect("restored").replayed, 1);
    assert_eq!(fs::read(&moved).expect("there"), b"123abcd");
    assert!(!path.exists());
}

/// Bug: `run` and its program were killed, and the file system was unmounted in order. Recovery took that for a crash, and cut off what the
/// program had not synced. Fix: a file that has all that the log has stays as it is.
#[test]
fn a_file_that_has_everything_keeps_what_it_has_besides() {
    for (content, is_fresh, is_whole) in [
        (&b"123abcd"[..], true, true),
        // It may have been emptied, and the crash has undone that.
        (b"123abcd and older", true, false),
        (b"123abcd and more", false, true),
        (b"123abcd", false, true),
        (b"123abcx and more", false, false),
        (b"123abc", true, false),
    ] {
        let directory = tempfile::tempdir().expect("a directory");
        let [area, path] = ["area", "it"].map(|name| directory.path().join(name));
        fs::write(&path, content).expect("a file");
        crashed(&area, &path, is_fresh, identity_of(&path), FOR_EVER);
        let recovered = restore(&area, 0).expect("restored");
        assert_eq!(
            (recovered.complete, recovered.replayed),
            (is_whole.into(), (!is_whole).into())
        );
        let expected = if is_whole { content } else { b"123abcd" };
        assert_eq!(fs::read(&path).expect("there"), expected);
    }
}

/// bug: a file was cut, which is durable on return, and had its old bytes after a crash. cause: the log had nothing but the new size, so
/// the longer file passed for one that has everything. fix: if the log begins with a size, the file may have been longer.
#[test]
fn a_file_that_was_cut_first_of_all_is_cut_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let [area, image, path] = ["area", "image", "it"].map(|name| directory.path().join(name));
    let (journal, _) = Journal::open(&Source::Path(area.clone(), AREA_BYTES)).expect("an area");
    let (file, id) = followed(&journal, &path, &[1; 1000]);
    journal.sync_all().expect("a checkpoint");
    let cut = || file.set_len(0).map_or(-1, |()| 0);
    assert_eq!(journal.resize(id, 0, cut).expect("durable"), 0);
    fs::write(&path, [1; 1000]).expect("as a crash leaves it");
    let recovered = after_a_crash(&area, &image);
    assert_eq!((recovered.complete, recovered.replayed), (0, 1));
    assert_eq!(fs::read(&path).expect("there"), b"");
}

/// A file as the area describes it, of another page cache.
fn identity_of(path: &Path) -> Identity {
    let found = fs::metadata(path).expect("there");
    let born = found.created().expect("the file system tells");
    let born = born.duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    Identity {
        inode: found.ino(),
        born_ns: born.as_nanos() as u64,
        ..Identity::default()
    }
}

/// Bug: `export AREA DIR` followed `..` of stored paths, and links below DIR, and wrote outside. Fix: nothing leaves DIR.
#[test]
fn copies_stay_below_their_directory() {
    for stored in ["/../victim", "/a/../../victim", "/link/victim"] {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (area_path, copies) = (directory.path().join("it.area"), directory.path().join("copies"));
        let victim = directory.path().join("victim");
        fs::write(&victim, "kept").expect("room");
        fs::create_dir(&copies).expect("room");
        std::os::unix::fs::symlink(directory.path(), copies.join("link")).expect("a link");
        let area = Area::open(&area_path, &AreaOptions::new(AREA_BYTES)).expect("a new area");
        let map = area
            .create(FILES_NAME, Kind::Map, Durability::Lazy)
            .expect("room");
        let log = area
            .create(WRITES_NAME, Kind::Log, Durability::Lazy)
            .expect("room");
        let description = Description {
            path: stored.as_bytes().to_vec(),
            handle: Vec::new(),
            identity: Identity::default(),
            place: None,
            since_ns: 0,
            owner: [0o600, 0, 0],
            is_fresh: true,
            is_removed: false,
        };
        let change = Change {
            file: FileId(7),
            pieces: Some(1),
            offset: 0,
            size: 3,
        };
        let ops = [
            Op::Put {
                map,
                key: &FileId(7).key(),
                data: &description.emit(),
            },
            Op::Append {
                log,
                data: &change.emit(),
            },
            Op::Append { log, data: b"new" },
        ];
        area.enter(&ops).expect("room");
        area.sync().expect("a healthy medium");
        drop(area);
        let exported = export(&area_path, &copies);
        assert!(exported.is_err(), "{stored}: {exported:?}");
        assert_eq!(fs::read(&victim).expect("it is there"), b"kept", "{stored}");
        let mode = area_path.metadata().expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}

/// bug: truncate(2) of a closed file failed with EIO. cause: the file was settled before, and nothing was known of it then. fix: there is
/// nothing to sync of such a file.
#[test]
fn a_closed_file_that_is_behind_is_cut_by_its_name() {
    let directory = tempfile::tempdir().expect("a directory");
    let directory = fs::canonicalize(directory.path()).expect("it is there");
    let [area, path] = ["area", "a-wal"].map(|name| directory.join(name));
    let (journal, _) = Journal::open(&Source::Path(area, AREA_BYTES)).expect("a new area");
    let (file, id) = followed(&journal, &path, b"data");
    journal.touched(id);
    journal.close_file(id);
    assert_eq!(journal.find(&path), Some(id), "the area has something of it");
    let cut = || i32::from(file.set_len(1).is_err());
    assert_eq!(journal.resize(id, 1, cut).expect("cut"), 0);
    assert_eq!(fs::read(&path).expect("it is there"), b"d");
}

/// Bug: `export AREA /` removed the files themselves, before it read them. Fix: it refuses names that are an original's.
#[test]
fn copies_do_not_replace_the_files_themselves() {
    let directory = tempfile::tempdir().expect("a directory");
    let directory = fs::canonicalize(directory.path()).expect("it is there");
    let [area, image, path, root] = ["area", "image", "a-wal", "root"].map(|name| directory.join(name));
    let (journal, _) = Journal::open(&Source::Path(area.clone(), AREA_BYTES)).expect("a new area");
    fs::write(&path, b"long before").expect("a file");
    let file = File::options().write(true).open(&path).expect("a file");
    let id = journal.open_file(file.as_raw_fd(), false);
    let id = id.expect("open").expect("regular");
    journal.sync(id).expect("durable");
    write(&journal, &file, id, b"news;");
    journal.sync(id).expect("durable");
    lose_the_cache(&area, &image);
    std::os::unix::fs::symlink("/", &root).expect("a link");
    // While the program runs, and after a crash.
    for from in [&area, &image] {
        for to in [Path::new("/"), &root] {
            // After a checkpoint the area has nothing of a file, until it changes.
            let make = || file.write_at(b"news;", 0).map_or(-1, |it| it as isize);
            assert_eq!(
                journal.write(file.as_raw_fd(), id, At::Offset(0), &[b"news;"], make),
                5
            );
            journal.sync(id).expect("durable");
            let refused = export(from, to).expect_err("the file would be lost");
            assert!(matches!(refused, FilesError::Original(..)), "{refused}");
            assert_eq!(fs::read(&path).expect("it is there"), b"news;before");
        }
    }
    let copies = export(&image, &directory.join("copies")).expect("room");
    assert_eq!(fs::read(&copies[0]).expect("it is there"), b"news;before");
}

/// Bug: an area whose file system was not mounted made a fresh file below the empty mount point, and was emptied. Cause: nothing told a
/// directory that a crash has taken from one that is not mounted. Fix: the area knows the mount, and refuses all if it is away.
#[test]
fn an_area_waits_for_a_file_system_that_is_not_mounted() {
    let directory = tempfile::tempdir().expect("a directory");
    let directory = fs::canonicalize(directory.path()).expect("it is there");
    let (area, image, path) = (
        directory.join("area"),
        directory.join("image"),
        directory.join("a-wal"),
    );
    let (journal, _) = Journal::open(&Source::Path(area.clone(), AREA_BYTES)).expect("a new area");
    let (file, id) = followed(&journal, &path, b"synced");
    lose_the_cache(&area, &image);
    // As with another file system in its place: the root of the mount is another directory.
    {
        let area = Area::open(&image, &AreaOptions::new(0)).expect("as after a crash");
        let map = area.map(FILES_NAME).expect("it is there");
        for key in map.keys().expect("sound") {
            let value = map.get(&key).expect("sound").expect("just listed");
            if let Some(mut description) = Description::parse(&value) {
                let place = description
                    .place
                    .as_mut()
                    .expect("the directories can be looked at");
                assert!(
                    path.as_os_str()
                        .as_bytes()
                        .starts_with(&description.path[..usize::from(place.mount_bytes)])
                );
                place.inode ^= 1;
                map.put(&key, &description.emit()).expect("room");
            }
        }
        area.sync().expect("durable");
    }
    fs::remove_file(&path).expect("there");
    for _ in 0..2 {
        let refused = restore(&image, 0).expect_err("nobody knows what became of the file");
        assert!(matches!(refused, FilesError::Away { .. }), "{refused}");
        assert!(refused.to_string().contains("a-wal"), "{refused}");
    }
    assert!(!path.exists(), "nothing is made in its place");
    let copies = export(&image, &directory.join("copies")).expect("copied");
    assert_eq!(fs::read(&copies[0]).expect("the copy"), b"synced");
    assert!(forget(&image, &path).expect("given up"));
    assert_eq!(restore(&image, 0).expect("nothing is left"), Recovered::default());
    journal.close_file(id);
    drop(file);
}

/// Ends a thread when it is dropped, so that a failure is told.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Bug: copies of a running program's files were refused, as it has the area. Fix: the area is followed, and what changes while the
/// files are copied comes from its log.
#[test]
fn files_of_a_running_program_are_copied_as_they_were_at_one_moment() {
    const BLOCK: usize = 512;
    const BLOCKS: u64 = 2048;
    let directory = tempfile::tempdir().expect("a directory");
    let directory = fs::canonicalize(directory.path()).expect("it is there");
    let [area, old, new, copies] = ["area", "old", "new", "copies"].map(|name| directory.join(name));
    let (journal, _) = Journal::open(&Source::Path(area.clone(), 4 * AREA_BYTES)).expect("a new area");
    // The log has some of the one, and all of the other.
    fs::write(&old, vec![0; BLOCK * BLOCKS as usize]).expect("room");
    let old = File::options().write(true).open(old).expect("it is there");
    let new = File::create(new).expect("a file");
    let ids = [&old, &new].map(|file| {
        let id = journal.open_file(file.as_raw_fd(), true);
        id.expect("open").expect("regular")
    });
    let (is_over, is_slow) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Each round is in the old file before it is in the new one.
            for round in 1.. {
                let data = [round; BLOCK / 8].map(u64::to_le_bytes).concat();
                let at = At::Offset(round % BLOCKS * BLOCK as u64);
                let make = || {
                    old.write_at(&data, round % BLOCKS * BLOCK as u64)
                        .map_or(-1, |it| it as isize)
                };
                assert_eq!(
                    journal.write(old.as_raw_fd(), ids[0], at, &[&data], make),
                    BLOCK as isize
                );
                journal.sync(ids[0]).expect("durable");
                write(&journal, &new, ids[1], &round.to_le_bytes());
                journal.sync(ids[1]).expect("durable");
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                if is_slow.load(Ordering::Relaxed) {
                    std::thread::park_timeout(std::time::Duration::from_millis(1));
                }
            }
        });
        let _end = End(&is_over);
        let numbers = |path: &Path| -> Vec<u64> {
            let bytes = fs::read(path).unwrap_or_default();
            let all = bytes.chunks_exact(8);
            all.map(|it| u64::from_le_bytes(it.try_into().expect("eight bytes")))
                .collect()
        };
        let (mut seen, mut last) = (0, 0);
        for _ in 0..10 {
            let exported = export(&area, &copies);
            // On a busy machine the program may be too fast for a copy: it writes less then, as the error says.
            if matches!(exported, Err(FilesError::Changing)) {
                is_slow.store(true, Ordering::Relaxed);
                continue;
            }
            let [old, new] = ["old", "new"].map(|it| {
                copies
                    .join(directory.strip_prefix("/").expect("absolute"))
                    .join(it)
            });
            let (blocks, rounds) = (numbers(&old), numbers(&new));
            let exported = exported.expect("copied");
            assert!(exported.iter().all(|path| path.exists()));
            // After a checkpoint the area has nothing of a file, until it changes.
            let (Some(round), Some(&newest)) = (rounds.last(), blocks.iter().max()) else {
                continue;
            };
            assert!(*round <= newest && newest <= round + 1, "{round} after {newest}");
            assert!(
                rounds.iter().zip(1..).all(|(round, at)| *round == at),
                "all rounds, in order"
            );
            for (at, value) in blocks.iter().enumerate() {
                let block = (at / (BLOCK / 8)) as u64;
                let rounds_ago = (newest + BLOCKS - block) % BLOCKS;
                assert_eq!(*value, newest.saturating_sub(rounds_ago));
            }
            assert!(last <= *round, "time goes on");
            (seen, last) = (seen + 1, *round);
            if seen == 2 {
                break;
            }
        }
        assert!(seen > 0, "the area had both files once");
    });
}

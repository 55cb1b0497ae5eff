//! Files of programs: descriptions and changes, and what becomes of a file after a crash. `sim::files` runs them over a model of a file
//! system.

use std::collections::BTreeMap;
use store::files::{
    Change, Claim, Description, Evidence, Fate, FileId, FileLimits, Files, Identity, Malformed, NO_UUID,
    Place, Present, SyncBy, least_sizes, outcomes, replay,
};

/// The low part of the number is the inode, the high one the birth.
fn identity(inode: u64, cache: u64) -> Identity {
    Identity {
        inode: inode % 4,
        born_ns: inode / 4,
        cache,
        device: 0,
    }
}

#[test]
fn what_is_in_the_area_is_parsed_as_it_was_emitted() {
    let description = Description {
        path: b"/d/a".to_vec(),
        handle: b"\x01\0\0\0handle".to_vec(),
        identity: identity(77, 5),
        place: None,
        since_ns: 0,
        owner: [0o100_644, 3, 4],
        is_fresh: true,
        is_removed: false,
    };
    let bytes = description.emit();
    assert_eq!(Description::parse(&bytes), Some(description.clone()));
    assert_eq!(Description::parse(&bytes[..50]), None);
    let place = |mount_bytes| Place {
        mount_bytes,
        inode: 2,
        born_ns: 3,
        uuid: *b"0123456789abcdef",
    };
    let placed = |mount_bytes| Description {
        place: Some(place(mount_bytes)),
        ..description.clone()
    };
    assert_eq!(Description::parse(&placed(2).emit()), Some(placed(2)));
    assert_eq!(place(2).mount(b"/d/a"), Some(&b"/d"[..]));
    assert_eq!(Description::parse(&placed(2).emit()[..60]), None);
    assert_eq!(Description::parse(&placed(5).emit()), None, "the path is shorter");
    let dated = Description {
        since_ns: 1 << 60,
        ..placed(2)
    };
    assert_eq!(Description::parse(&dated.emit()), Some(dated.clone()));
    assert_eq!(Description::parse(&dated.emit()[..75]), None);
    let claim = Claim { until_ns: 77 };
    assert_eq!(Claim::parse(&claim.emit()), Some(claim));
    let write = Change {
        file: FileId(9),
        pieces: Some(2),
        offset: 100,
        size: 300,
    };
    let resize = Change {
        pieces: None,
        offset: 0,
        ..write
    };
    for change in [write, resize] {
        assert_eq!(Change::parse(&change.emit()), Some(change));
    }
    let mut bytes = resize.emit();
    bytes[0] = 1;
    assert_eq!(Change::parse(&bytes), None, "a write has data");
}

/// bug: files that went on without the area were rolled back. cause: recovery took whatever was at the path for what the program had
/// left. fix: the area says until when the program may have changed it.
#[test]
fn what_changed_after_the_claim_is_refused() {
    let claim = Claim { until_ns: 100 };
    let description = |is_fresh, is_removed| Description {
        path: b"/d/a".to_vec(),
        identity: identity(8, 1),
        is_fresh,
        is_removed,
        ..Description::default()
    };
    let fate = |description: Description, present, changed_ns, directory_changed_ns| {
        let evidence = Evidence {
            present,
            cache: Some(2),
            is_mounted: true,
            changed_ns,
            directory_changed_ns,
        };
        description.fate(&evidence, claim)
    };
    let (same, older) = (Present::File(identity(8, 2)), Present::File(identity(5, 2)));
    for (is_fresh, is_removed, expected) in [
        (false, false, Fate::Replay),
        (true, false, Fate::Rewrite),
        (false, true, Fate::Remove),
    ] {
        let description = description(is_fresh, is_removed);
        assert_eq!(fate(description.clone(), same, 100, 500), expected);
        let late = fate(description, same, 101, 100);
        assert!(matches!(late, Fate::Refuse(_)), "{late:?}");
    }
    let fresh = || description(true, false);
    assert_eq!(fate(fresh(), Present::Nothing, 0, 100), Fate::Rewrite);
    assert_eq!(fate(fresh(), older, 2, 100), Fate::Rewrite);
    for (present, changed_ns, names_ns) in [
        (Present::Nothing, 0, 101),
        (older, 101, 100),
        (older, 2, 101),
        // It changed after the fresh one was born, so it was not there before.
        (older, 3, 100),
    ] {
        let late = fate(fresh(), present, changed_ns, names_ns);
        assert!(matches!(late, Fate::Refuse(_)), "{late:?}");
    }
    assert_eq!(fate(description(true, true), older, 2, 100), Fate::Remove);
    for changed_ns in [3, 101] {
        assert_eq!(fate(description(true, true), older, changed_ns, 100), Fate::Gone);
    }
}

/// bug: a backup was brought back after a crash, and recovery made the newer changes of some files to it. cause: a file that is older than
/// the program left it was taken for one that the crash has set back. fix: the area knows what the file system has had durably.
#[test]
fn what_is_older_than_it_was_durably_is_refused() {
    let claim = Claim { until_ns: 100 };
    let same = Present::File(identity(8, 2));
    for (is_fresh, is_removed, present) in [
        (false, false, same),
        (true, false, same),
        (true, false, Present::Nothing),
        (true, false, Present::File(identity(5, 2))),
        (false, true, same),
        (true, true, same),
    ] {
        let description = Description {
            path: b"/d/a".to_vec(),
            identity: identity(8, 1),
            since_ns: 50,
            is_fresh,
            is_removed,
            ..Description::default()
        };
        // A fresh file is dated by its directory.
        let fate = |file_ns, directory_ns| {
            let evidence = Evidence {
                present,
                cache: Some(2),
                is_mounted: true,
                changed_ns: if is_fresh { 2 } else { file_ns },
                directory_changed_ns: directory_ns,
            };
            description.fate(&evidence, claim)
        };
        let is_refused = |fate| matches!(fate, Fate::Refuse(why) if why.contains("backup"));
        assert!(is_refused(fate(49, 49)), "{description:?}, {present:?}");
        assert!(!is_refused(fate(50, 50)), "{description:?}, {present:?}");
    }
}

/// bug: `run` said that a log which SQLite had removed was older than before, as in a backup. cause: no file has the change time 0, which is
/// before every date. fix: only what is there is compared with its date.
#[test]
fn a_file_that_is_missing_is_not_called_older() {
    let description = Description {
        path: b"/d/a".to_vec(),
        identity: identity(8, 1),
        since_ns: 50,
        ..Description::default()
    };
    let evidence = Evidence {
        present: Present::Nothing,
        cache: Some(2),
        is_mounted: true,
        changed_ns: 0,
        directory_changed_ns: 200,
    };
    let fate = description.fate(&evidence, Claim { until_ns: 100 });
    assert!(
        matches!(fate, Fate::Refuse(why) if why.contains("missing")),
        "{fate:?}"
    );
}

#[test]
fn a_file_whose_birth_nobody_tells_is_not_emptied_or_removed() {
    let evidence = Evidence {
        present: Present::File(identity(1, 2)),
        cache: Some(2),
        is_mounted: true,
        changed_ns: 1,
        directory_changed_ns: 1,
    };
    for (is_fresh, is_removed) in [(true, false), (false, true), (true, true)] {
        let description = Description {
            path: b"/d/a".to_vec(),
            identity: identity(1, 1),
            is_fresh,
            is_removed,
            ..Description::default()
        };
        let fate = description.fate(&evidence, Claim { until_ns: 100 });
        assert!(matches!(fate, Fate::Refuse(_)), "{fate:?}");
    }
}

/// What the log leaves of a file is what its changes, made in their order, leave.
#[test]
fn each_byte_is_of_its_last_change() {
    let mut rng = base::Rng::new(1);
    for _ in 0..300 {
        let mut entries: Vec<Vec<u8>> = Vec::new();
        let (mut content, mut is_cut, mut begins_by_size) = (Vec::<u8>::new(), false, false);
        for _ in 0..rng.below(12) {
            let resize = rng.below(8) == 0;
            let offset = rng.below(content.len() as u64 + 1);
            let data: Vec<u8> = (0..1 + rng.below(20)).map(|_| rng.below(256) as u8).collect();
            let before = content.len() as u64;
            // bug: a file that had been longer, and was cut before anything else was logged, passed for complete.
            begins_by_size |= resize && entries.is_empty();
            let size = match resize {
                true => rng.below(40),
                false => before.max(offset + data.len() as u64),
            };
            is_cut |= size < before;
            content.resize(size as usize, 0);
            let change = Change {
                file: FileId(7),
                pieces: (!resize).then_some(1),
                offset: if resize { 0 } else { offset },
                size,
            };
            entries.push(change.emit().to_vec());
            if !resize {
                content[offset as usize..][..data.len()].copy_from_slice(&data);
                entries.push(data);
            }
        }
        let read = |position: u64| Ok::<_, Malformed>(entries.get(position as usize).cloned());
        let all = 0..entries.len() as u64;
        let outcomes = outcomes(all.clone(), read).expect("sound");
        let Some(outcome) = outcomes.get(&FileId(7)) else {
            assert!(entries.is_empty());
            continue;
        };
        assert_eq!((outcome.size, outcome.is_cut), (content.len() as u64, is_cut));
        assert_eq!(outcome.may_be_cut, begins_by_size);
        if is_cut {
            continue;
        }
        let (mut nth, mut seen) = (0, vec![0; content.len()]);
        replay(all, read, |_, offset, data, _| {
            for part in outcome.last_of(nth, offset..offset + data.len() as u64) {
                for at in part {
                    seen[at as usize] += 1;
                    assert_eq!(content[at as usize], data[(at - offset) as usize]);
                }
            }
            nth += 1;
            Ok::<_, Malformed>(())
        })
        .expect("sound");
        let written = seen.iter().filter(|&&count| count > 0).count();
        assert!(seen.iter().all(|&count| count < 2) && written <= content.len());
    }
}

/// bug: a file system was not mounted when an area recovered. Fresh files were made below the empty mount point, and removed ones counted
/// as gone. Then the area was emptied. cause: nothing told that file system from one that has lost the files. fix: the area knows the mount.
#[test]
fn a_file_on_a_file_system_that_is_away_is_nobodys_to_judge() {
    let place = Place {
        mount_bytes: 2,
        inode: 2,
        born_ns: 3,
        uuid: [1; 16],
    };
    let of = |born_ns, uuid| Place {
        born_ns,
        uuid,
        ..place
    };
    assert!(place.is_same(&place) && place.is_same(&of(3, NO_UUID)));
    assert!(
        !place.is_same(&of(3, [2; 16])),
        "another one was made in the same second"
    );
    assert!(!place.is_same(&of(4, [1; 16])) && !place.is_same(&of(4, NO_UUID)));
    let claim = Claim { until_ns: 100 };
    for (is_fresh, is_removed) in [(true, false), (false, false), (true, true), (false, true)] {
        let description = Description {
            path: b"/d/a".to_vec(),
            identity: identity(8, 1),
            place: Some(place),
            is_fresh,
            is_removed,
            ..Description::default()
        };
        for present in [Present::Nothing, Present::Other, Present::File(identity(5, 2))] {
            let mut evidence = Evidence {
                present,
                cache: Some(2),
                is_mounted: false,
                changed_ns: 0,
                directory_changed_ns: 0,
            };
            assert_eq!(description.fate(&evidence, claim), Fate::Away);
            evidence.is_mounted = true;
            assert_ne!(description.fate(&evidence, claim), Fate::Away);
        }
    }
}

#[test]
fn a_mount_is_found_after_renames_above_it() {
    let limits = FileLimits {
        unsynced_bytes_max: 100,
        checkpoint_bytes: 100,
    };
    for (from, to, mount) in [
        ("/a/m/f", "/a/m/gg", "/a/m"),
        ("/a", "/other", "/other/m"),
        ("/a/m", "/b", "/b"),
    ] {
        let mut files = Files::new(limits, FileId(1));
        let place = Place {
            mount_bytes: 4,
            inode: 2,
            born_ns: 3,
            uuid: NO_UUID,
        };
        let description = Description {
            path: b"/a/m/f".to_vec(),
            place: Some(place),
            ..Description::default()
        };
        let (id, _) = files.open(description, 0);
        files.renamed(id, from.as_bytes(), to.as_bytes());
        let (description, _) = files.write(id, 0, 1, 1).expect("followed");
        let description = Description::parse(&description.expect("the first")).expect("sound");
        let place = description.place.expect("known");
        assert_eq!(place.mount(&description.path), Some(mount.as_bytes()));
    }
}

#[test]
fn a_file_is_never_shorter_than_its_log_says() {
    let change = |file, pieces, offset, size| Change {
        file: FileId(file),
        pieces,
        offset,
        size,
    };
    let mut log = Vec::new();
    for change in [
        change(1, Some(2), 100, 300),
        change(2, Some(1), 50, 60),
        change(1, None, 0, 90),
        change(1, Some(1), 90, 95),
        change(2, Some(1), 60, 70),
    ] {
        log.push(change.emit().to_vec());
        log.extend(vec![vec![1]; change.pieces.unwrap_or(0) as usize]);
    }
    let read = |position| Ok::<_, Malformed>(log.get(position as usize).cloned());
    let least = least_sizes(0..log.len() as u64, read).expect("it makes sense");
    assert_eq!(least, BTreeMap::from([(FileId(1), 90), (FileId(2), 50)]));
}

#[test]
fn a_write_behind_the_end_is_not_logged() {
    let limits = FileLimits {
        unsynced_bytes_max: 1000,
        checkpoint_bytes: 1000,
    };
    let mut files = Files::new(limits, FileId(1));
    let (id, _) = files.open(Description::default(), 0);
    assert!(files.write(id, 0, 10, 1).is_some());
    // Somebody else has made it longer.
    assert!(files.write(id, 20, 10, 1).is_none());
    assert_eq!(files.sync(id, true), SyncBy::Settle);
}

/// bug: what another way than the log's had written was lost after a sync. fix: a sync that follows no logged change is a real one.
#[test]
fn a_sync_without_news_is_left_to_a_checkpoint() {
    let limits = FileLimits {
        unsynced_bytes_max: 1000,
        checkpoint_bytes: 1000,
    };
    let mut files = Files::new(limits, FileId(1));
    let (id, _) = files.open(Description::default(), 0);
    assert!(files.write(id, 0, 10, 1).is_some());
    files.logged(id, 100);
    assert_eq!(files.sync(id, false), SyncBy::Log);
    // Another thread's sync has taken its change along.
    assert_eq!(files.sync(id, true), SyncBy::Log);
    assert_eq!(files.sync(id, false), SyncBy::Settle);
}

/// bug: a second name that a file got was lost after a sync. cause: the log knows one name. fix: the file system syncs a file with others,
/// and one that had others.
#[test]
fn a_file_with_two_names_is_synced_by_the_file_system() {
    let limits = FileLimits {
        unsynced_bytes_max: 1000,
        checkpoint_bytes: 1000,
    };
    let mut files = Files::new(limits, FileId(1));
    let (id, _) = files.open(Description::default(), 0);
    for (links, by) in [
        (1, SyncBy::Log),
        (2, SyncBy::Settle),
        (2, SyncBy::Settle),
        (1, SyncBy::Settle),
        (1, SyncBy::Log),
    ] {
        if files.write(id, 0, 10, 1).is_some() {
            files.logged(id, 100);
        }
        files.has_links(id, links);
        assert_eq!(files.sync(id, true), by, "{links} names");
        if by == SyncBy::Settle {
            files.settle(id, 1);
        }
    }
}

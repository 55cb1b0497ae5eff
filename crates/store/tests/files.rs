//! Files of programs: descriptions and changes, and what becomes of a file after a crash. `sim::files` runs them over a model of a file
//! system.

use std::collections::BTreeMap;
use store::files::{
    Change, Claim, Description, Evidence, Fate, FileId, FileLimits, Files, Identity, Malformed, NO_UUID,
    Place, Present, SyncBy, least_sizes,
};

/// The low part of the number is the inode, the high one the birth.
fn identity(inode: u64, cache: u64) -> Identity {
    Identity {
        inode: inode % 4,
        born_ns: inode / 4,
        cache,
    }
}

#[test]
fn what_is_in_the_area_is_parsed_as_it_was_emitted() {
    let description = Description {
        path: b"/d/a".to_vec(),
        handle: b"\x01\0\0\0handle".to_vec(),
        identity: identity(77, 5),
        place: None,
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
    assert_eq!(fate(fresh(), older, 100, 100), Fate::Rewrite);
    for (present, changed_ns, names_ns) in [(Present::Nothing, 0, 101), (older, 101, 100), (older, 100, 101)]
    {
        let late = fate(fresh(), present, changed_ns, names_ns);
        assert!(matches!(late, Fate::Refuse(_)), "{late:?}");
    }
    assert_eq!(fate(description(true, true), older, 101, 100), Fate::Gone);
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
            files.settle(id);
        }
    }
}

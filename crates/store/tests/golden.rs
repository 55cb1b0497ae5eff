//! Media of each format version, as programs of that version leave them: they open, and hold what was written. An image is its
//! length, and a line for each 64 bytes that are not zero: where they lie, and the bytes.
#![allow(clippy::unwrap_used, reason = "a test program")]

use crate::common::{Owned, Rig, State, contents, options, tiny};
use base::Device;
use std::fmt::Write;
use store::catalog::{Catalog, Change, NewArea, Quota, Rate, Readers, TABLE_BYTES, UNIT_BYTES, Who};
use store::files::{Change as FileChange, Claim, Description, FileId, Identity, Place};
use store::{Engine, Layout};

const LINE_BYTES: usize = 64;

fn emit(medium: &[u8]) -> String {
    let mut text = format!("{}\n", medium.len());
    for (at, line) in medium.chunks(LINE_BYTES).enumerate() {
        if line.iter().any(|&byte| byte != 0) {
            let bytes: String = line.iter().map(|byte| format!("{byte:02x}")).collect();
            writeln!(text, "{} {bytes}", at * LINE_BYTES).unwrap();
        }
    }
    text
}

fn bytes_of(hex: &str) -> Vec<u8> {
    let digits = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(digits).collect()
}

fn parse(text: &str) -> Vec<u8> {
    let mut lines = text.lines();
    let mut medium = vec![0; lines.next().unwrap().parse().unwrap()];
    for line in lines {
        let (at, hex) = line.split_once(' ').unwrap();
        medium.write_at(at.parse().unwrap(), &bytes_of(hex)).unwrap();
    }
    medium
}

/// Panics with the first line that differs, as the whole images are long.
fn assert_same(written: &str, golden: &str) {
    let differs = |(ours, golden): &(&str, &str)| ours != golden;
    let first = written.lines().zip(golden.lines()).find(differs);
    assert!(first.is_none() && written.len() == golden.len(), "{first:?}");
}

/// Maps and trees leave memory from this many bytes on in version 2, which has tables; in version 1 they never do.
const SPILLS: [(u64, &str); 2] = [
    (u64::MAX, include_str!("golden/area-1.txt")),
    (200, include_str!("golden/area-2.txt")),
];

/// The content of the images: an area with a structure of each kind, in which this was done.
fn written_area(spill_bytes: u64) -> State {
    let layout = match spill_bytes {
        u64::MAX => tiny(1),
        _ => Layout {
            segment_bytes: 4096,
            segments: 96,
            record_bytes_max: 1024,
            ..tiny(1)
        },
    };
    let mut rig = Rig::new(layout, options(1, spill_bytes), 0);
    rig.furnish();
    let ids: Vec<_> = rig.engine.structures().map(|(_, id, ..)| id).collect();
    for round in 0..6u8 {
        let value = |length: u8| vec![round + 1; usize::from(length)];
        let key = |who: u8| vec![b'k', who, round / 2];
        for op in [
            Owned::Append(ids[0], 0, value(20)),
            Owned::Push(ids[1], 0, value(9)),
            Owned::Put(ids[2], key(0), value(40)),
            Owned::Put(ids[3], key(1), value(30)),
            Owned::Put(ids[4], key(2), value(10)),
        ] {
            rig.submit(vec![op]).unwrap();
        }
        rig.settle();
    }
    rig.submit(vec![Owned::Trim(ids[0], 2)]).unwrap();
    rig.submit(vec![Owned::Remove(ids[2], vec![b'k', 0, 1])]).unwrap();
    rig.settle();
    assert_eq!(rig.engine.stats().tables > 0, spill_bytes < u64::MAX, "tables");
    rig.base
}

#[test]
fn areas_of_every_version_open_and_hold_what_was_written() {
    for (spill_bytes, golden) in SPILLS {
        let expected = written_area(spill_bytes);
        for opened_with in SPILLS.map(|(bytes, _)| bytes) {
            let mut image = parse(golden);
            let (engine, _) = Engine::open(&mut image, options(1, opened_with)).unwrap();
            assert_eq!(contents(&engine, &image), expected);
        }
    }
}

/// A catalog whose areas have names of their own (version 1), or two areas of two users with one name (version 2).
fn catalog(second_name: &str) -> Catalog {
    let user = |user| Who {
        user,
        group: user,
        is_admin: false,
    };
    let mut catalog = Catalog::new([3; 16], true, 64 * UNIT_BYTES);
    for (who, name) in [(1, "db"), (2, second_name)] {
        let create = Change::Create(NewArea {
            name: name.into(),
            bytes: 8 * UNIT_BYTES,
            owner: who,
            group: who,
            mode: 0o640,
            rate: Rate {
                operations: 9,
                bytes: 1 << 40,
            },
        });
        let work = catalog
            .begin(&create, user(who), Quota::UNLIMITED)
            .unwrap()
            .unwrap();
        catalog.end(&work);
    }
    let export = Change::Export {
        name: "public".into(),
        area: "db".into(),
        readers: Readers::User(2),
        path: "/run/db.sock".into(),
    };
    assert_eq!(catalog.begin(&export, user(1), Quota::UNLIMITED), Ok(None));
    catalog
}

const CATALOGS: [(&str, &str); 2] = [
    ("log", include_str!("golden/catalog-1.txt")),
    ("db", include_str!("golden/catalog-2.txt")),
];

#[test]
fn catalogs_of_both_versions_are_read_and_written() {
    for (second_name, golden) in CATALOGS {
        let mut catalog = catalog(second_name);
        let mut table = vec![0; TABLE_BYTES as usize];
        catalog.save(&mut table).unwrap();
        assert_same(&emit(&table), golden);
        assert_eq!(Catalog::read(&parse(golden)), Ok((catalog, 0)));
    }
}

/// The records of a program's files: of version 1 without handle and claim, of version 2 without place, of version 3 without date.
fn files() -> (Vec<(&'static str, Description)>, Claim, [FileChange; 2]) {
    let identity = Identity {
        inode: 77,
        born_ns: 1_700_000_000_000_000_000,
        cache: 5,
        device: 0,
    };
    let first = Description {
        path: b"/d/a".to_vec(),
        handle: Vec::new(),
        identity,
        place: None,
        since_ns: 0,
        owner: [0o100_644, 3, 4],
        is_fresh: true,
        is_removed: false,
    };
    let second = Description {
        handle: b"\x01\0\0\0handle".to_vec(),
        is_removed: true,
        ..first.clone()
    };
    let third = Description {
        place: Some(Place {
            mount_bytes: 2,
            inode: 2,
            born_ns: 3,
            uuid: *b"0123456789abcdef",
        }),
        is_fresh: false,
        ..second.clone()
    };
    let fourth = Description {
        since_ns: 1_700_000_000_000_000_001,
        ..third.clone()
    };
    let write = FileChange {
        file: FileId(9),
        pieces: Some(2),
        offset: 100,
        size: 300,
    };
    let resize = FileChange {
        pieces: None,
        offset: 0,
        ..write
    };
    let descriptions = vec![
        ("description-1", first),
        ("description-2", second),
        ("description-3", third),
        ("description-4", fourth),
    ];
    (descriptions, Claim { until_ns: 77 }, [write, resize])
}

#[test]
fn records_of_files_of_every_version_are_read_and_written() {
    let (descriptions, claim, changes) = files();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut written = String::new();
    for (name, description) in &descriptions {
        writeln!(written, "{name} {}", hex(&description.emit())).unwrap();
    }
    writeln!(written, "claim {}", hex(&claim.emit())).unwrap();
    for change in changes {
        writeln!(written, "change {}", hex(&change.emit())).unwrap();
    }
    let golden = include_str!("golden/files.txt");
    assert_same(&written, golden);
    for (line, (_, description)) in golden.lines().zip(descriptions) {
        let bytes = bytes_of(line.split_once(' ').unwrap().1);
        assert_eq!(Description::parse(&bytes), Some(description));
    }
    let rest: Vec<Vec<u8>> = golden
        .lines()
        .skip(4)
        .map(|line| bytes_of(line.split_once(' ').unwrap().1))
        .collect();
    assert_eq!(Claim::parse(&rest[0]), Some(claim));
    assert_eq!(
        rest[1..]
            .iter()
            .map(|bytes| FileChange::parse(bytes))
            .collect::<Vec<_>>(),
        changes.map(Some)
    );
}

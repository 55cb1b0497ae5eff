//! Records: their bytes, what is refused, and that nothing else is read than what was written.

use fs::format::Place;
use fs::inode::Time;
use fs::log::{Next, Reader, Ring};
use fs::op::{Action, Allocation, Changes, Entry, Fate, Malformed, Op, Target, blocks_of};
use fs::value::Run;
use proptest::prelude::*;
use std::borrow::Cow;

const GOLDEN: &str = include_str!("golden/records.txt");

/// Bytes of the file of golden records: made from the page by a script that does not know the crate.
fn golden(name: &str) -> Vec<u8> {
    let line = GOLDEN
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{name} ")));
    let digits = line.expect("it is there").as_bytes();
    let byte = |pair: &[u8]| u8::from_str_radix(core::str::from_utf8(pair).expect("text"), 16).expect("hex");
    digits.chunks(2).map(byte).collect()
}

fn entry(parent: u64, name: &str) -> Entry<'_> {
    Entry::new(parent, name.as_bytes())
}

fn create<'a>(entry: Entry<'a>, mode: u32, ids: (u32, u32), device: u32, target: &'a str) -> Action<'a> {
    let target = Cow::Borrowed(target.as_bytes());
    Action::Create {
        entry,
        mode,
        uid: ids.0,
        gid: ids.1,
        device,
        target,
    }
}

fn rename(to: Entry<'static>, target: Target) -> Action<'static> {
    let from = if target == (Target::Exchanged { inode: 12 }) {
        "a"
    } else {
        "from"
    };
    Action::Rename {
        from: entry(1, from),
        to,
        target,
    }
}

fn attribute(value: Option<&[u8]>) -> Action<'_> {
    Action::Attribute {
        name: Cow::Borrowed(b"user.a"),
        value: value.map(Cow::Borrowed),
    }
}

/// One of each kind, as the script has them.
fn samples() -> Vec<(&'static str, u64, Action<'static>)> {
    let to = || entry(2, "to");
    let range = |offset, bytes, what, keeps_size| Action::Allocate {
        offset,
        bytes,
        what,
        keeps_size,
    };
    let unlink = |name, is_directory, fate| Action::Unlink {
        entry: entry(3, name),
        is_directory,
        fate,
    };
    let set = Changes {
        mode: Some(0o4755),
        uid: Some(5),
        mtime: Some(Time { seconds: -5, ns: 7 }),
        tier: Some(2),
        ..Changes::default()
    };
    let atime = Changes {
        atime: Some(Time { seconds: 3, ns: 4 }),
        keeps_ctime: true,
        ..Changes::default()
    };
    let sums = Cow::Borrowed(&[0xdead_beef, 1][..]);
    vec![
        (
            "create",
            0x1122_3344_5566_7788,
            create(entry(1, "new"), 0o100_644, (1000, 100), 0, ""),
        ),
        (
            "device",
            7,
            create(entry(1, "sda1"), 0o060_600, (0, 0), 0x801, ""),
        ),
        (
            "symlink",
            8,
            create(entry(2, "l"), 0o120_777, (0, 0), 0, "../there"),
        ),
        (
            "link",
            9,
            Action::Link {
                entry: Entry::new(3, &b"\xff\xfe"[..]),
            },
        ),
        ("unlink", 9, unlink("gone", false, Fate::Deleted)),
        ("rmdir", 10, unlink("dir", true, Fate::Orphaned)),
        ("rename", 11, rename(to(), Target::Free)),
        (
            "replace",
            11,
            rename(
                to(),
                Target::Replaced {
                    inode: 12,
                    fate: Fate::Deleted,
                },
            ),
        ),
        (
            "exchange",
            11,
            rename(entry(1, "b"), Target::Exchanged { inode: 12 }),
        ),
        ("set", 13, Action::Set(set)),
        ("atime", 13, Action::Set(atime)),
        (
            "truncate",
            14,
            Action::Truncate {
                size: i64::MAX as u64,
            },
        ),
        ("attribute", 15, attribute(Some(b"xyz"))),
        ("remove", 15, attribute(None)),
        (
            "write",
            16,
            Action::Write {
                offset: 4095,
                data: Cow::Borrowed(b"hello"),
            },
        ),
        (
            "place",
            17,
            Action::Place {
                offset: 8192,
                bytes: 4097,
                place: Place::new(1, 77),
                sums,
            },
        ),
        ("hole", 18, range(4096, 8192, Allocation::Hole, true)),
        ("reserve", 18, range(0, 1, Allocation::Reserve, false)),
        ("release", 19, Action::Release),
    ]
}

#[test]
fn a_record_of_each_kind_has_the_bytes_of_the_page() {
    for (name, inode, action) in samples() {
        let seconds = if name == "symlink" { -1 } else { 1_700_000_000 };
        let ns = if name == "symlink" { 0 } else { 999_999_999 };
        let op = Op {
            inode,
            time: Time { seconds, ns },
            action,
        };
        let mut bytes = Vec::new();
        op.emit(&mut bytes);
        assert_eq!(bytes, golden(name), "{name}");
        assert_eq!(Op::parse(&bytes), Ok((op, bytes.len())), "{name}");
    }
    assert_eq!(GOLDEN.lines().count(), samples().len() + 1, "and the frame");
}

#[test]
fn a_frame_has_the_bytes_of_the_page() {
    let extent = Run {
        place: Place::new(0, 4),
        blocks: 3,
    };
    let ring = Ring::new(0x0123_4567_89ab_cdef, 512, &[extent]).expect("it is sound");
    let mut medium = vec![0u8; 7 * 4096];
    // The position is the ring's first byte in the second lap, and 512 bytes were skipped in front of it.
    medium[4 * 4096..][..golden("frame").len()].copy_from_slice(&golden("frame"));
    let mut reader = Reader::new(&ring, &medium, 11_776).expect("a sector begins there");
    let Ok(Next::Frame(frame)) = reader.next_frame() else {
        panic!("there is a frame")
    };
    assert_eq!((frame.position, frame.end), (12_288, 12_800));
    let ops: Vec<_> = frame.ops().map(|op| op.expect("it is sound").inode).collect();
    assert_eq!(ops, [9, 19]);
    assert_eq!(reader.next_frame(), Ok(Next::End));
}

/// Changes bytes of a golden record, and says why it is refused.
fn refused(name: &str, change: impl FnOnce(&mut Vec<u8>)) -> Malformed {
    let mut bytes = golden(name);
    change(&mut bytes);
    Op::parse(&bytes).expect_err("it is malformed")
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

#[test]
fn what_is_malformed_is_refused_by_its_reason() {
    use Malformed as M;
    for (at, byte) in [(60, b'/'), (61, 0)] {
        assert_eq!(
            refused("create", |it| it[at] = byte),
            M::Name,
            "a byte that no name has"
        );
    }
    for name in [".", "..", ""] {
        let why = refused("link", |it| {
            it.truncate(42);
            it.extend(name.as_bytes());
            (it[0], it[40]) = (42 + name.len() as u8, name.len() as u8);
        });
        assert_eq!(why, M::Name, "{name:?}");
    }
    let long = |it: &mut Vec<u8>| {
        it.truncate(42);
        it.resize(42 + 256, b'n');
        put(it, 0, &298u32.to_le_bytes());
        put(it, 40, &256u16.to_le_bytes());
    };
    assert_eq!(refused("link", long), M::Name);
    assert_eq!(refused("create", |it| it[0] += 1), M::Length);
    assert_eq!(refused("create", |it| it[0] = 31), M::Length);
    assert_eq!(refused("create", |it| it[56] -= 1), M::Length);
    assert_eq!(refused("create", |it| it[4] = 12), M::Kind);
    assert_eq!(refused("create", |it| it[5] = 1), M::Flags);
    assert_eq!(refused("create", |it| it[6] = 1), M::Padding);
    assert_eq!(refused("create", |it| it[28] = 1), M::Padding);
    assert_eq!(refused("create", |it| it[8..16].fill(0)), M::Inode);
    assert_eq!(refused("create", |it| it[32] = 0), M::Inode);
    assert_eq!(
        refused("create", |it| put(it, 24, &1_000_000_000u32.to_le_bytes())),
        M::Time
    );
    assert_eq!(
        refused("create", |it| put(it, 40, &0o170_644u32.to_le_bytes())),
        M::Mode
    );
    assert_eq!(
        refused("create", |it| put(it, 40, &0o300_644u32.to_le_bytes())),
        M::Mode
    );
    assert_eq!(refused("create", |it| it[52] = 1), M::Mode, "a file is no device");
    assert_eq!(refused("symlink", |it| it[65] = 0), M::Target);
    assert_eq!(
        refused("symlink", |it| put(it, 40, &0o100_777u32.to_le_bytes())),
        M::Target
    );
    for flags in [6, 8, 1] {
        assert_eq!(refused("unlink", |it| it[5] = flags), M::Flags, "flags {flags}");
    }
    assert_eq!(
        refused("rename", |it| it[5] = 1),
        M::Flags,
        "nothing to exchange with"
    );
    assert_eq!(refused("exchange", |it| it[5] = 3), M::Flags);
    assert_eq!(refused("replace", |it| it[48] = 11), M::Inode, "itself");
    assert_eq!(refused("exchange", |it| it[61] = b'a'), M::Name, "to where it is");
    assert_eq!(refused("set", |it| it[32] |= 128), M::Flags);
    assert_eq!(
        refused("set", |it| it[5] = 1),
        M::Flags,
        "the ctime stays with the atime alone"
    );
    assert_eq!(
        refused("set", |it| it[44] = 1),
        M::Padding,
        "a group that is not set"
    );
    assert_eq!(refused("set", |it| it[37] = 0x10), M::Mode);
    assert_eq!(refused("set", |it| it[80] = 4), M::Place);
    assert_eq!(refused("set", |it| put(it, 68, &u32::MAX.to_le_bytes())), M::Time);
    assert_eq!(
        refused("truncate", |it| put(it, 32, &(1u64 << 63).to_le_bytes())),
        M::Range
    );
    assert_eq!(refused("attribute", |it| it[33] = 2), M::Attribute);
    assert_eq!(
        refused("attribute", |it| it[33] = 0),
        M::Attribute,
        "a value to remove"
    );
    assert_eq!(refused("attribute", |it| it[38] = 0), M::Attribute);
    assert_eq!(
        refused("write", |it| put(it, 32, &(i64::MAX - 4).to_le_bytes())),
        M::Range
    );
    assert_eq!(refused("write", |it| it[44] = 1), M::Padding);
    let empty = |it: &mut Vec<u8>| {
        it.truncate(48);
        (it[0], it[40]) = (48, 0);
    };
    assert_eq!(refused("write", empty), M::Range);
    assert_eq!(refused("place", |it| it[32] = 1), M::Range, "inside of a block");
    assert_eq!(refused("place", |it| it[54] = 8), M::Place, "no such device");
    assert_eq!(refused("place", |it| it[55] = 1), M::Place);
    assert_eq!(refused("place", |it| it[48] = 3), M::Place, "a root's");
    assert_eq!(refused("hole", |it| it[5] = 2), M::Flags, "a hole keeps the size");
    assert_eq!(refused("hole", |it| it[5] = 7), M::Flags);
    assert_eq!(
        refused("hole", |it| put(it, 40, &i64::MAX.to_le_bytes())),
        M::Range
    );
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    let byte = any::<u8>().prop_filter("no name has it", |byte| !matches!(byte, 0 | b'/'));
    prop::collection::vec(byte, 1..=255)
        .prop_filter("directories have these", |name| name != b"." && name != b"..")
}

fn any_entry() -> impl Strategy<Value = Entry<'static>> {
    (1..=u64::MAX, name()).prop_map(|(parent, name)| Entry::new(parent, name))
}

fn time() -> impl Strategy<Value = Time> {
    (any::<i64>(), 0..1_000_000_000u32).prop_map(|(seconds, ns)| Time { seconds, ns })
}

fn fate() -> impl Strategy<Value = Fate> {
    prop::sample::select(vec![Fate::Named, Fate::Orphaned, Fate::Deleted])
}

fn changes() -> impl Strategy<Value = Changes> {
    let ids = (
        prop::option::of(0..=0o7777u32),
        prop::option::of(any::<u32>()),
        prop::option::of(any::<u32>()),
    );
    let times = (prop::option::of(time()), prop::option::of(time()));
    let rest = (prop::option::of(any::<u64>()), prop::option::of(0..=3u8));
    let some = (ids, times, rest).prop_map(|((mode, uid, gid), (atime, mtime), (flags, tier))| Changes {
        mode,
        uid,
        gid,
        atime,
        mtime,
        flags,
        tier,
        keeps_ctime: false,
    });
    let read = time().prop_map(|time| Changes {
        atime: Some(time),
        keeps_ctime: true,
        ..Changes::default()
    });
    prop_oneof![some, read]
}

fn data_action() -> impl Strategy<Value = Action<'static>> {
    let half = 1u64 << 62;
    let write =
        (0..half, prop::collection::vec(any::<u8>(), 1..5000)).prop_map(|(offset, data)| Action::Write {
            offset,
            data: data.into(),
        });
    let place = (0..1u64 << 40, 1..600_000u32, 0..8u8, 4..1u64 << 40, any::<u32>()).prop_map(
        |(block, bytes, device, number, sum)| Action::Place {
            offset: block * 4096,
            bytes,
            place: Place::new(device, number),
            sums: (0..blocks_of(bytes.into()) as u32)
                .map(|index| sum ^ index)
                .collect(),
        },
    );
    let whats = prop::sample::select(vec![Allocation::Reserve, Allocation::Hole, Allocation::Zeros]);
    let allocate =
        (0..half, 1..half, whats, any::<bool>()).prop_map(|(offset, bytes, what, keeps)| Action::Allocate {
            offset,
            bytes,
            what,
            keeps_size: keeps || what == Allocation::Hole,
        });
    prop_oneof![
        write,
        place,
        allocate,
        (0..=i64::MAX as u64).prop_map(|size| Action::Truncate { size })
    ]
}

fn name_action() -> impl Strategy<Value = Action<'static>> {
    let modes = prop::sample::select(vec![
        0o100_000u32,
        0o040_000,
        0o010_000,
        0o140_000,
        0o020_000,
        0o060_000,
    ]);
    let made = (any_entry(), modes, 0..=0o7777u32, any::<u32>(), any::<u32>()).prop_map(
        |(entry, kind, bits, uid, device)| Action::Create {
            entry,
            mode: kind | bits,
            uid,
            gid: !uid,
            device: if matches!(kind, 0o020_000 | 0o060_000) {
                device
            } else {
                0
            },
            target: Cow::Borrowed(b""),
        },
    );
    let symlink = (any_entry(), prop::collection::vec(1..=u8::MAX, 1..=4095)).prop_map(|(entry, target)| {
        Action::Create {
            entry,
            mode: 0o120_777,
            uid: 1,
            gid: 2,
            device: 0,
            target: target.into(),
        }
    });
    let unlink = (any_entry(), any::<bool>(), fate()).prop_map(|(entry, is_directory, fate)| {
        let is_directory = is_directory && fate != Fate::Named;
        Action::Unlink {
            entry,
            is_directory,
            fate,
        }
    });
    let target = prop_oneof![
        Just(Target::Free),
        (1u64 << 32..=u64::MAX).prop_map(|inode| Target::Exchanged { inode }),
        (1u64 << 32..=u64::MAX, fate()).prop_map(|(inode, fate)| Target::Replaced { inode, fate }),
    ];
    let rename = (any_entry(), any_entry(), target)
        .prop_filter("it goes somewhere", |(from, to, _)| from != to)
        .prop_map(|(from, to, target)| Action::Rename { from, to, target });
    prop_oneof![
        made,
        symlink,
        any_entry().prop_map(|entry| Action::Link { entry }),
        unlink,
        rename
    ]
}

fn any_op() -> impl Strategy<Value = Op<'static>> {
    let bytes = |most| prop::collection::vec(1..=u8::MAX, 1..most);
    let attribute = (bytes(256), prop::option::of(bytes(766))).prop_map(|(name, value)| Action::Attribute {
        name: name.into(),
        value: value.map(Cow::Owned),
    });
    let action = prop_oneof![
        4 => name_action(),
        3 => data_action(),
        1 => changes().prop_map(Action::Set),
        1 => attribute,
        1 => Just(Action::Release),
    ];
    (1..1u64 << 32, time(), action).prop_map(|(inode, time, action)| Op { inode, time, action })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn what_is_emitted_is_parsed_as_it_was(op in any_op(), behind in prop::collection::vec(any::<u8>(), 0..40)) {
        let mut bytes = Vec::new();
        op.emit(&mut bytes);
        let length = bytes.len();
        prop_assert_eq!(length, op.record_bytes());
        bytes.extend(behind);
        prop_assert_eq!(Op::parse(&bytes), Ok((op.clone(), length)));
        for shorter in [0, 4, 31, length - 1] {
            prop_assert_eq!(Op::parse(&bytes[..shorter]), Err(Malformed::Length));
        }
        prop_assert_eq!(op.clone().into_owned(), op);
    }
}

/// Whatever is read would be written as the very same bytes, so no byte of a record means nothing.
#[test]
fn mutated_records_are_refused_or_mean_what_they_say() {
    let mut rng = base::Rng::new(1);
    let records: Vec<_> = samples().iter().map(|(name, ..)| golden(name)).collect();
    let (mut refused, mut read) = (0, 0);
    for _ in 0..400_000 {
        let mut bytes = records[rng.below(records.len() as u64) as usize].clone();
        for _ in 0..rng.between(1, 3) {
            let at = rng.below(bytes.len() as u64) as usize;
            match rng.below(6) {
                0 => bytes[at] = rng.next_u64() as u8,
                1 => bytes[at] ^= 1 << rng.below(8),
                2 => bytes[at] = [0, 1, 2, 4, 127, 128, 254, 255][rng.below(8) as usize],
                3 => bytes.truncate(at.max(1)),
                4 => bytes.insert(at, rng.next_u64() as u8),
                _ => bytes[0] = bytes.len() as u8,
            }
        }
        match Op::parse(&bytes) {
            Ok((op, length)) => {
                let mut again = Vec::new();
                op.emit(&mut again);
                assert_eq!(again, bytes[..length]);
                read += 1;
            }
            Err(_) => refused += 1,
        }
    }
    assert!(
        refused > 50_000 && read > 50_000,
        "{refused} refused, {read} read"
    );
}

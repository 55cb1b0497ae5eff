//! An area gets more room while programs write it and follow it.

use area::{Area, AreaError, AreaOptions, FollowOptions, Follower, SubmitError};

const VALUE_BYTES: usize = 3000;

fn key(index: u32) -> [u8; 4] {
    index.wrapping_mul(0x9e37_79b1).to_be_bytes()
}

/// Puts until the area is full: how many it took.
fn fill(map: &area::Map, from: u32) -> u32 {
    let mut next = from;
    loop {
        match map.put(&key(next), &vec![next as u8; VALUE_BYTES]) {
            Ok(()) => next += 1,
            Err(AreaError::Refused(SubmitError::NoSpace)) => return next,
            Err(error) => panic!("{error}"),
        }
    }
}

fn grows(bytes: u64, more: u64) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("area");
    let options = AreaOptions {
        spill_bytes: 1 << 20,
        ..AreaOptions::new(bytes)
    };
    let area = Area::open(&path, &options).expect("a new area");
    let (map, other) = (area.map("map").expect("room"), area.map("other").expect("room"));
    let follower = Follower::open(&path, FollowOptions::default()).expect("an area");
    let (id, _) = follower.structure("map").expect("it is there");
    let first = fill(&map, 0);
    assert!(first > 1000, "{first}");
    // Others overwrite and read meanwhile.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for index in 0..200 {
                map.put(&key(index), &vec![index as u8; VALUE_BYTES])
                    .expect("it replaces as much");
                assert!(map.get(&key(first - 1 - index)).expect("readable").is_some());
            }
        });
        let has = area.grow(bytes + more).expect("the file system has room");
        assert!(has >= bytes + more, "{has}");
    });
    let second = fill(&map, first);
    assert!(
        u64::from(second - first) * VALUE_BYTES as u64 > more / 2,
        "{first} {second}"
    );
    assert!(matches!(
        other.put(b"key", &[0; 4 * VALUE_BYTES]),
        Err(AreaError::Refused(_))
    ));
    follower.refresh().expect("it follows");
    let check = |get: &dyn Fn(u32) -> Option<Vec<u8>>| {
        for index in (0..second).step_by(7) {
            assert_eq!(
                get(index),
                Some(vec![index as u8; VALUE_BYTES]),
                "{index} of {second}"
            );
        }
    };
    check(&|index| follower.get(id, &key(index)).expect("readable"));
    check(&|index| map.get(&key(index)).expect("readable"));
    drop((map, other, area));
    let area = Area::open(&path, &AreaOptions::new(0)).expect("it is sound");
    let map = area.map("map").expect("it is there");
    check(&|index| map.get(&key(index)).expect("readable"));
    assert_eq!(map.get(&key(second)).expect("readable"), None);
}

#[test]
fn an_area_without_tables_grows_while_it_is_used() {
    grows(16 << 20, 20 << 20);
}

#[test]
fn an_area_with_tables_grows_while_it_is_used() {
    grows(104 << 20, 32 << 20);
}

#[test]
fn what_cannot_grow_says_so() {
    let area = Area::memory(&AreaOptions::new(16 << 20), None).expect("memory");
    assert!(matches!(area.grow(32 << 20), Err(AreaError::Grow(_))));
    let directory = tempfile::tempdir().expect("a temporary directory");
    let area = Area::open(&directory.path().join("area"), &AreaOptions::new(16 << 20)).expect("a new area");
    let has = area.grow(0).expect("it has what it has");
    assert!(matches!(area.grow(1 << 60), Err(AreaError::Create(_))));
    assert!(matches!(
        area.grow(200 << 40 >> 2),
        Err(AreaError::Create(_) | AreaError::Grow(_))
    ));
    assert_eq!(area.grow(0).expect("it has what it has"), has);
    area.map("map")
        .and_then(|map| map.put(b"key", b"value"))
        .expect("it goes on");
}

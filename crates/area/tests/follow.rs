//! A follower of an area in another process, which writes as fast as it can, and is killed.

use area::{Area, AreaError, AreaOptions, Batch, FollowOptions, Follower, Kind};
use base::Duration;
use os::now;
use std::io::{BufRead, BufReader, Write};
use std::ops::Bound;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Keys of the tree and the map that are written in turn.
const KEYS: u64 = 1500;
/// Entries that the log keeps.
const KEPT: u64 = 200;

/// The value of round `round`: its number, and bytes that follow from it.
fn value(round: u64) -> Vec<u8> {
    let length = 8 + round % 7 * 700;
    let mut bytes: Vec<u8> = (0..length).map(|at| (round + at) as u8).collect();
    bytes[..8].copy_from_slice(&round.to_le_bytes());
    bytes
}

fn round_of(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"))
}

/// The owner, in a process of its own: each round is one batch, and told when it is durable.
#[test]
#[ignore = "the other tests start it"]
fn owner() {
    let path = std::env::var_os("FOLLOWED_AREA").expect("the other tests say which");
    let bytes = std::env::var("FOLLOWED_BYTES").expect("the other tests say it");
    let options = AreaOptions {
        spill_bytes: 256 << 10,
        ..AreaOptions::new(bytes.parse().expect("a number"))
    };
    let area = Area::open(path.as_ref(), &options).expect("an area");
    let (tree, map) = (
        area.tree("tree").expect("a tree"),
        area.map("map").expect("a map"),
    );
    let (log, queue) = (
        area.log("log").expect("a log"),
        area.queue("queue").expect("a queue"),
    );
    let mut round = tree
        .get(b"round")
        .expect("sound")
        .map_or(0, |bytes| round_of(&bytes));
    loop {
        round += 1;
        let (key, data) = ((round % KEYS).to_be_bytes(), value(round));
        let number = round.to_le_bytes();
        let mut batch = Batch::new()
            .put(&tree, &[b"k", &key[..]].concat(), &data)
            .put(&tree, b"round", &number)
            .put(&map, &key, &number)
            .append(&log, &data)
            .push(&queue, &number);
        if round > KEPT {
            batch = batch
                .trim(&log, round - KEPT)
                .acknowledge(&queue, round - KEPT - 1);
        }
        batch.commit(&area).expect("room");
        println!("acknowledged {round}");
        std::io::stdout().flush().expect("somebody reads");
    }
}

/// Starts the owner; `acknowledged` is the last round that it told of.
fn start(path: &Path, bytes: u64, acknowledged: &Arc<AtomicU64>) -> Child {
    let mut child = Command::new(std::env::current_exe().expect("this test"))
        .args(["--ignored", "--exact", "follow::owner", "--nocapture"])
        .env("FOLLOWED_AREA", path)
        .env("FOLLOWED_BYTES", bytes.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process");
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let acknowledged = Arc::clone(acknowledged);
    std::thread::Builder::new()
        .spawn(move || {
            for line in lines.map_while(Result::ok) {
                let round = line.strip_prefix("acknowledged ").and_then(|it| it.parse().ok());
                acknowledged.fetch_max(round.unwrap_or(0), Ordering::SeqCst);
            }
        })
        .expect("a thread");
    child
}

/// Checks everything that a steady follower shows: it is the area after one round, no older than `least`.
fn check(follower: &Follower, least: u64) -> Result<(), AreaError> {
    let id = |name: &str, kind: Kind| {
        let (id, found) = follower.structure(name).expect("it is there");
        assert_eq!(found, kind);
        id
    };
    let (tree, map) = (id("tree", Kind::Tree), id("map", Kind::Map));
    let (log, queue) = (id("log", Kind::Log), id("queue", Kind::Queue));
    let round = round_of(&follower.get(tree, b"round")?.expect("a round was made"));
    assert!(round >= least, "round {round} is older than {least}");
    let newest = |key: u64| round - (round + KEYS - key) % KEYS;
    let floor = round.saturating_sub(KEPT);
    assert_eq!(follower.positions(log), floor..round);
    assert_eq!(follower.positions(queue), floor..round);
    for (nth, entry) in (floor + 1..).zip(follower.read_many(log, floor..round)?) {
        assert_eq!(entry, Some(value(nth)), "entry of round {nth}");
    }
    let keys: Vec<[u8; 8]> = (0..KEYS).step_by(37).map(u64::to_be_bytes).collect();
    let wanted: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    for (key, found) in keys.iter().zip(follower.get_many(map, &wanted)?) {
        let nth = newest(u64::from_be_bytes(*key));
        assert_eq!(
            found.map(|it| round_of(&it)),
            Some(nth).filter(|&it| it > 0 && it <= round)
        );
    }
    let mut count = 0;
    for entry in follower.range(tree, (Bound::Unbounded, Bound::Excluded(&b"round"[..]))) {
        let (key, found) = entry?;
        let nth = newest(u64::from_be_bytes(key[1..].try_into().expect("a number")));
        assert_eq!(found, value(nth), "key {key:?} in round {round}");
        count += 1;
    }
    assert_eq!(count, KEYS.min(round));
    assert_eq!(follower.keys(map)?.len() as u64, KEYS.min(round));
    Ok(())
}

/// Checks that ranges have the same from their ends, while nobody writes.
fn check_backwards(follower: &Follower) {
    let (tree, _) = follower.structure("tree").expect("it is there");
    let bounds = (Bound::Excluded(&b"k"[..]), Bound::Unbounded);
    let all = |entries: &mut dyn Iterator<Item = _>| entries.collect::<Result<Vec<_>, AreaError>>();
    let reverse = all(&mut follower.range_rev(tree, bounds)).expect("sound");
    let mut forward = all(&mut follower.range(tree, bounds)).expect("sound");
    forward.reverse();
    assert!(reverse == forward);
    assert_eq!(reverse.len() as u64, KEYS + 1);
}

/// Follows an owner of an area of so many bytes, and kills it four times; how many moments were whole, and how many were gone before
/// all of them was read.
fn follow(bytes: u64) -> (u32, u32) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("followed.area");
    let acknowledged = Arc::new(AtomicU64::new(0));
    let mut owner = start(&path, bytes, &acknowledged);
    while acknowledged.load(Ordering::SeqCst) < KEYS + KEPT {
        assert_eq!(owner.try_wait().expect("our child"), None, "it goes on");
        std::thread::yield_now();
    }
    let steady = FollowOptions {
        is_steady: true,
        ..FollowOptions::default()
    };
    let follower = Follower::open(&path, steady).expect("it is there");
    let eager = Follower::open(&path, FollowOptions::default()).expect("it is there");
    let (mut whole, mut gone) = (0, 0);
    for _ in 0..4 {
        let began = now();
        while now().since(began) < Duration::from_millis(1200) {
            let least = acknowledged.load(Ordering::SeqCst);
            follower.refresh().expect("it is sound");
            for _ in 0..3 {
                match check(&follower, least) {
                    Ok(()) => whole += 1,
                    Err(AreaError::SnapshotGone) => gone += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            let (tree, _) = eager.structure("tree").expect("it is there");
            for key in (0..KEYS).step_by(101) {
                let key = [&b"k"[..], &key.to_be_bytes()].concat();
                let found = eager.get(tree, &key).expect("sound");
                let found = found.expect("each key was written");
                assert_eq!(found, value(round_of(&found)), "a value that never was");
            }
        }
        owner.kill().expect("it runs");
        owner.wait().expect("it ends");
        let least = acknowledged.load(Ordering::SeqCst);
        follower.refresh().expect("it is sound");
        check(&follower, least).expect("nobody writes");
        check_backwards(&follower);
        owner = start(&path, bytes, &acknowledged);
    }
    owner.kill().expect("it runs");
    owner.wait().expect("it ends");
    eprintln!("{whole} whole moments, {gone} gone, {:?}", follower.stats());
    (whole, gone)
}

#[test]
fn an_owner_whose_keys_leave_memory_is_followed_through_kills() {
    let (whole, _) = follow(112 << 20);
    assert!(whole > 5, "{whole} whole");
}

#[test]
fn an_owner_that_cleans_all_the_time_is_followed_through_kills() {
    let (whole, _) = follow(12 << 20);
    assert!(whole > 5, "{whole} whole");
}

/// The owner keeps more free while a steady follower is there: by a lock that ends with the follower's process, however that ends.
#[test]
fn a_steady_follower_is_noticed_until_it_ends() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("noticed.area");
    let area = Area::open(&path, &AreaOptions::new(16 << 20)).expect("an area");
    area.map("map")
        .expect("a map")
        .put(b"key", b"value")
        .expect("room");
    let look = |path: &Path| {
        os::MediaFile::open_to_follow(path)
            .expect("it is there")
            .has_follower()
    };
    assert!(!look(&path));
    let steady = FollowOptions {
        is_steady: true,
        ..FollowOptions::default()
    };
    let eager = Follower::open(&path, FollowOptions::default()).expect("it is there");
    assert!(!look(&path), "one that refreshes by itself keeps nothing");
    let follower = Follower::open(&path, steady).expect("it is there");
    assert!(look(&path));
    let other = Follower::open(&path, steady).expect("it is there");
    drop(follower);
    assert!(look(&path), "another one is there");
    drop((other, eager));
    assert!(!look(&path));
    // The owner's own lock, and its writes, are as they were.
    area.map("map")
        .expect("a map")
        .put(b"key", b"later")
        .expect("room");
    assert!(matches!(
        Area::open(&path, &AreaOptions::new(0)),
        Err(AreaError::Media(_))
    ));
}

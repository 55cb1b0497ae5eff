//! An area gets more room while programs write it and follow it.

use area::catalog::CatalogClient;
use area::{Area, AreaError, AreaOptions, FollowOptions, Follower, SubmitError};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use std::fs::File;
use std::io::{ErrorKind, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use store::catalog::protocol::{Answer, MESSAGE_BYTES_MAX};

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
    let error = area.grow(1 << 60).expect_err("no area is so large");
    assert!(error.to_string().contains("bytes at most"), "{error}");
    assert!(matches!(
        area.grow(200 << 40 >> 2),
        Err(AreaError::Create(_) | AreaError::Grow(_))
    ));
    assert_eq!(area.grow(0).expect("it has what it has"), has);
    area.map("map")
        .and_then(|map| map.put(b"key", b"value"))
        .expect("it goes on");
}

/// Gives the first client an area of a directory, as the server of a catalog does.
fn serve_one(socket: &OwnedFd, file: &File, bytes: u64) {
    let client = rustix::net::accept(socket).expect("a client");
    let mut request = [0; MESSAGE_BYTES_MAX];
    rustix::net::recv(&client, &mut request[..], RecvFlags::empty()).expect("a request");
    let answer = Answer::Opened {
        number: 1,
        bytes,
        is_writable: true,
        is_mapped: false,
    };
    let handed = [file.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&handed)));
    let packet = answer.emit();
    rustix::net::sendmsg(
        &client,
        &[IoSlice::new(&packet)],
        &mut control,
        SendFlags::NOSIGNAL,
    )
    .expect("sent");
}

/// Bug: an area of a catalog's directory that was grown by its program did not open any more. Cause: it extended its file, whose size is
/// the catalog's: the server cuts it off. Fix: it takes what the catalog gave it, and no more.
#[test]
fn an_area_of_a_catalog_grows_when_the_catalog_lets_it() {
    const BYTES: u64 = 16 << 20;
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (path, server) = (directory.path().join("1"), directory.path().join("server"));
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .expect("a file");
    file.set_len(BYTES).expect("room");
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .expect("a socket");
    rustix::net::bind(&socket, &SocketAddrUnix::new(&server).expect("short")).expect("its name is free");
    rustix::net::listen(&socket, 1).expect("it listens");
    let area = std::thread::scope(|scope| {
        scope.spawn(|| serve_one(&socket, &file, BYTES));
        let catalog = CatalogClient::connect(&server).expect("it is there");
        Area::open_in_catalog(&catalog, "mine", &AreaOptions::new(0)).expect("a new area")
    });
    let has = area.grow(0).expect("it has what it has");
    assert!(
        matches!(area.grow(2 * BYTES), Err(AreaError::Grow(error)) if error.kind() == ErrorKind::StorageFull)
    );
    assert_eq!(file.metadata().expect("open").len(), BYTES);
    assert_eq!(area.grow(0).expect("it has what it has"), has);
    // `switchyard areas grow`.
    file.set_len(2 * BYTES).expect("room");
    assert!(area.grow(2 * BYTES - (1 << 20)).expect("there is room") > has);
    assert_eq!(file.metadata().expect("open").len(), 2 * BYTES);
}

//! The decoder under bytes that no kernel sends: it refuses, and never panics.

use fuse::abi::{Forgets, InHeader, Malformed, Operation, Plain, Request, argument_bytes, opcode};
use proptest::prelude::*;

/// Every operation that is served, and some numbers that are none.
fn codes() -> Vec<u32> {
    (0..60).chain([4096, u32::MAX, u32::from_be(26)]).collect()
}

/// A request whose header says how long it is.
fn message(code: u32, extension: u16, rest: &[u8]) -> Vec<u8> {
    let header = InHeader {
        len: (InHeader::BYTES + rest.len()) as u32,
        opcode: code,
        unique: 2,
        nodeid: 1,
        total_extlen: extension,
        ..InHeader::default()
    };
    let mut bytes = vec![0; InHeader::BYTES];
    header.write(&mut bytes).expect("it has this length");
    bytes.extend(rest);
    bytes
}

/// A request that the kernel could send.
fn valid(code: u32) -> Option<Vec<u8>> {
    let mut rest = vec![0; argument_bytes(code)?];
    let size_at = match code {
        opcode::WRITE | opcode::IOCTL => Some(if code == opcode::WRITE { 16 } else { 24 }),
        opcode::SETXATTR | opcode::BATCH_FORGET => Some(0),
        opcode::NOTIFY_REPLY => Some(16),
        _ => None,
    };
    match code {
        opcode::LOOKUP | opcode::MKNOD | opcode::MKDIR | opcode::UNLINK | opcode::RMDIR | opcode::LINK => {
            rest.extend(b"name\0")
        }
        opcode::CREATE | opcode::TMPFILE | opcode::GETXATTR | opcode::REMOVEXATTR => {
            rest.extend(b"user.name\0")
        }
        opcode::SYMLINK | opcode::RENAME | opcode::RENAME2 => rest.extend(b"one\0another\0"),
        opcode::SETXATTR => rest.extend(b"user.name\0value..."),
        opcode::WRITE | opcode::IOCTL | opcode::NOTIFY_REPLY => rest.extend(b"value..."),
        opcode::BATCH_FORGET => rest.extend([1; 32]),
        _ => {}
    }
    if let Some(at) = size_at {
        let size: u32 = if code == opcode::BATCH_FORGET { 2 } else { 8 };
        size.write(&mut rest[at..]).expect("it is inside");
    }
    Some(message(code, 0, &rest))
}

/// Reads a request in every way there is, and everything of it.
fn read(bytes: &[u8]) -> Result<(), Malformed> {
    let result = Request::parse(bytes);
    if let Ok(Request {
        operation: Operation::BatchForget(forgets),
        ..
    }) = result
    {
        assert!(Forgets::count(forgets) <= bytes.len() / 16);
    }
    // A ring has the argument in a place of its own.
    if let Some(header) = InHeader::read(bytes) {
        let rest = &bytes[InHeader::BYTES..];
        let at = argument_bytes(header.opcode).unwrap_or(0).min(rest.len());
        let mut place = [0; 128];
        place[..at].copy_from_slice(&rest[..at]);
        let of_entry = Request::of_entry(header, &place, &rest[at..]);
        if result.is_ok() {
            assert_eq!(of_entry, result, "both transports read the same");
        }
        assert!(of_entry.is_err() || header.len as usize != bytes.len() || result.is_ok());
    }
    result.map(drop)
}

#[test]
fn every_operation_is_read() {
    let served = codes().into_iter().filter(|code| argument_bytes(*code).is_some());
    let mut count = 0;
    for code in served {
        let bytes = valid(code).expect("it is served");
        assert_eq!(read(&bytes), Ok(()), "operation {code}");
        count += 1;
    }
    // All of the kernel's but BMAP, and DAX' two.
    assert_eq!(count, 48);
    let unknown = codes().into_iter().filter(|code| argument_bytes(*code).is_none());
    for code in unknown {
        assert_eq!(read(&message(code, 0, &[0; 64])), Err(Malformed::Unknown(code)));
    }
}

#[test]
fn a_request_that_is_cut_or_goes_on_is_refused() {
    for bytes in codes().into_iter().filter_map(valid) {
        for end in 0..bytes.len() {
            // As it is, and with a header that agrees.
            assert!(read(&bytes[..end]).is_err());
            let mut cut = bytes[..end].to_vec();
            if end >= InHeader::BYTES {
                (end as u32).write(&mut cut).expect("there is a header");
                // Shorter data of READ's like are no part of a request, so nothing that is cut is whole.
                assert!(read(&cut).is_err(), "{cut:?}");
            }
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert_eq!(read(&longer), Err(Malformed::Length));
        (longer.len() as u32)
            .write(&mut longer)
            .expect("there is a header");
        assert!(read(&longer).is_err(), "{longer:?}");
    }
}

#[test]
fn names_that_are_none_are_refused() {
    for name in [&b"\0"[..], b"a/b\0", b"/\0", b"name", b"a\0b\0", b""] {
        let found = read(&message(opcode::LOOKUP, 0, name));
        assert!(
            matches!(found, Err(Malformed::Name(_) | Malformed::Data(_))),
            "{name:?}: {found:?}"
        );
    }
    // A target may be a path, and a name of an attribute has its own rules.
    assert_eq!(read(&message(opcode::SYMLINK, 0, b"a\0b/c\0")), Ok(()));
    assert_eq!(read(&message(opcode::REMOVEXATTR, 0, b"user.a/b\0")), Ok(()));
    assert!(read(&message(opcode::SYMLINK, 0, b"a/b\0c\0")).is_err());
}

#[test]
fn extensions_are_left_aside() {
    assert_eq!(read(&message(opcode::LOOKUP, 1, b"name\0extended")), Ok(()));
    assert!(read(&message(opcode::LOOKUP, 2, b"name\0extended")).is_err());
    assert_eq!(
        read(&message(opcode::LOOKUP, u16::MAX, b"name\0extended")),
        Err(Malformed::Length)
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = read(&bytes);
    }

    #[test]
    fn any_bytes_behind_a_header_are_read_or_refused(
        code in proptest::sample::select(codes()),
        extension in prop_oneof![Just(0u16), any::<u16>()],
        rest in proptest::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 0..200),
    ) {
        let _ = read(&message(code, extension, &rest));
    }

    #[test]
    fn valid_requests_with_other_bytes_in_them_are_read_or_refused(
        mut bytes in proptest::sample::select(codes().into_iter().filter_map(valid).collect::<Vec<_>>()),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let _ = read(&bytes);
    }
}

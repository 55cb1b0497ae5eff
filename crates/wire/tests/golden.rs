//! Packets of each format version, byte for byte: what a part of an earlier release sends is read, and what this one sends an earlier one
//! reads.

use base::{Addr, Version, VssdId};
use std::collections::BTreeSet;
use wire::rack::{Code, HEADER_BYTES, Header, Op, PAYLOAD_BYTES_MAX, Part, flags};

const VERSION_1: &str = include_str!("golden/rack-packet-1.txt");
const PARTS: &str = include_str!("golden/rack-packet-1-parts.txt");

fn bytes_of(hex: &str) -> Vec<u8> {
    let digits = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal digits");
    (0..hex.len()).step_by(2).map(digits).collect()
}

/// The operation's name in the documentation.
fn name(op: Op) -> &'static str {
    match op {
        Op::Read => "read",
        Op::Write => "write",
        Op::GcOp => "gc_op",
        Op::CreateVssd => "create_vssd",
        Op::DelVssd => "del_vssd",
        Op::Flush => "flush",
        Op::Zero => "zero",
        Op::Ask => "ask",
        Op::Inv => "inv",
        Op::Ack => "ack",
        Op::Val => "val",
        Op::Hello => "hello",
        Op::Digest => "digest",
        Op::Pull => "pull",
        Op::Lease => "lease",
        Op::Held => "held",
        Op::Open => "open",
        Op::Delete => "delete",
        Op::Status => "status",
        Op::Demand => "demand",
        Op::List => "list",
    }
}

#[test]
fn packets_of_version_1_are_read_and_written() {
    let (mut ops, mut codes, mut seen) = (BTreeSet::new(), BTreeSet::new(), 0);
    for line in VERSION_1.lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| fields[at].parse::<u32>().expect("a number");
        let n = number(3);
        let bytes = bytes_of(fields[5]);
        let header =
            Header::parse(&bytes, number(4) as usize).unwrap_or_else(|error| panic!("{line}: {error}"));
        assert_eq!(
            (name(header.op), header.code as u32),
            (fields[0], number(1)),
            "{line}"
        );
        assert_eq!(
            (u32::from(header.flags), header.length),
            (number(2), number(4)),
            "{line}"
        );
        let expected = Header {
            vssd: VssdId(0x0102_0300 + n),
            lat_ns: 0x1111_1100 + n,
            request: 0x2000_0000_0000_0000 + u64::from(n),
            lba: 8 * u64::from(n),
            version: Version(u64::from(n) << 8 | 3),
            epoch: 0x4444_4400 + n,
            session: 0x5555_5500 + n,
            floor: n,
            source: Addr::new([10, 0, 0, n as u8], 7000 + n as u16),
            target: match header.target.is_none() {
                true => Addr::NONE,
                false => Addr::new([10, 0, 1, n as u8], 8000 + n as u16),
            },
            ..header
        };
        assert_eq!(header, expected, "{line}");
        let mut written = [0; HEADER_BYTES];
        header.emit(&mut written);
        assert_eq!(written.as_slice(), bytes, "{line}");
        ops.insert(header.op);
        codes.insert(header.code);
        seen |= header.flags;
    }
    assert!(ops.iter().eq(Op::ALL), "each operation has a packet: {ops:?}");
    assert!(codes.iter().eq(Code::ALL), "each code has a packet: {codes:?}");
    assert_eq!(seen, flags::ALL, "each flag has a packet");
}

#[test]
fn parts_of_version_1_are_read_and_written() {
    let lines: Vec<Vec<&str>> = PARTS
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split(' ').collect())
        .collect();
    // What a path with frames of 1,500 bytes takes behind a header.
    let parts: Vec<Part> = Part::all(PAYLOAD_BYTES_MAX, 1400).collect();
    assert_eq!(lines.len(), parts.len());
    for (fields, part) in lines.iter().zip(parts) {
        let number = |at: usize| fields[at].parse::<usize>().expect("a number");
        let bytes = bytes_of(fields[3]);
        let (header, read) = Header::parse_part(&bytes, number(2)).expect("a part of a packet");
        assert_eq!(
            (read, usize::from(read.number()), usize::from(read.further())),
            (part, number(0), number(1))
        );
        assert_eq!(
            (header.op, header.length as usize),
            (Op::Write, PAYLOAD_BYTES_MAX)
        );
        let mut written = [0; HEADER_BYTES];
        header.emit_part(part, &mut written);
        assert_eq!(written.as_slice(), bytes);
    }
}

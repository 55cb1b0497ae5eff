//! The NBD session as a client sees it: handshake and transmission byte by byte, every error, every limit.

use crate::support::*;
use base::{BlockError, BlockOp, BlockReply, Duration, Instant, Pages, Pool, VolumeId};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use wire::nbd::proto::{
    Errno, chunk, command, command_flags as flag, info, option as opt, option_reply as rep,
};
use wire::nbd::proto::{OPTION_MAGIC, transmission_flags as tf};
use wire::nbd::{CloseReason, Session, Whereabouts};
use wire::{Limits, Opening, Session as _};

const ALLOCATION: &str = "base:allocation";

fn kinds(replies: &[OptionReply]) -> Vec<u32> {
    replies.iter().map(|reply| reply.kind).collect()
}

fn ok(cookie: u64) -> Reply {
    Reply::Simple { cookie, error: 0 }
}

fn failed(cookie: u64, errno: Errno) -> Reply {
    Reply::Simple {
        cookie,
        error: errno as u32,
    }
}

fn data_chunk(cookie: u64, offset: u64, bytes: &[u8]) -> Reply {
    let mut data = offset.to_be_bytes().to_vec();
    data.extend(bytes);
    Reply::Chunk {
        cookie,
        flags: chunk::DONE,
        kind: chunk::OFFSET_DATA,
        data,
    }
}

fn error_of(reply: &Reply) -> u32 {
    match reply {
        Reply::Simple { error, .. } => *error,
        Reply::Chunk {
            flags, kind, data, ..
        }
        | Reply::Extended {
            flags, kind, data, ..
        } => {
            assert_eq!((*flags, *kind), (chunk::DONE, chunk::ERROR));
            let text = usize::from(u16::from_be_bytes([data[4], data[5]]));
            assert_eq!(data.len(), 6 + text);
            u32::from_be_bytes([data[0], data[1], data[2], data[3]])
        }
    }
}

// ---- handshake

#[test]
fn the_greeting_is_fixed_newstyle_without_zeroes() {
    let mut server = Server::new(limits());
    server.send(usize::MAX);
    assert_eq!(server.heard(), b"NBDMAGICIHAVEOPT\x00\x03");
}

#[test]
fn unknown_client_flags_end_the_connection() {
    let mut server = Server::new(limits());
    server.feed(&4u32.to_be_bytes());
    assert_eq!(server.session.closed(), Some(CloseReason::ClientFlags));
}

#[test]
fn export_name_pads_unless_no_zeroes_was_agreed() {
    for (flags, padding) in [(1u32, 124), (3, 0)] {
        let mut server = Server::new(limits());
        server.feed(&flags.to_be_bytes());
        server.heard();
        server.feed(&option(opt::EXPORT_NAME, b"disk"));
        let heard = server.heard();
        assert_eq!(heard.len(), 10 + padding);
        assert_eq!(heard[..8], (1u64 << 17).to_be_bytes());
        let expected = tf::HAS_FLAGS
            | tf::SEND_FLUSH
            | tf::SEND_FUA
            | tf::SEND_TRIM
            | tf::SEND_WRITE_ZEROES
            | tf::CAN_MULTI_CONN
            | tf::SEND_FAST_ZERO;
        assert_eq!(heard[8..10], expected.to_be_bytes());
        assert!(heard[10..].iter().all(|&byte| byte == 0));
        assert_eq!(server.tell(&request(0, command::FLUSH, 1, 0, 0)), [ok(1)]);
    }
}

#[test]
fn export_name_of_an_unknown_export_closes() {
    for data in [b"nothing".to_vec(), vec![b'x'; 70_000]] {
        let mut server = Server::greeted(limits());
        server.feed(&option(opt::EXPORT_NAME, &data));
        assert_eq!(server.session.closed(), Some(CloseReason::UnknownExport));
        assert!(server.heard().is_empty());
    }
}

#[test]
fn abort_is_acknowledged_and_then_closes() {
    let mut server = Server::greeted(limits());
    server.session.receive(Instant::ZERO, &option(opt::ABORT, &[]));
    assert_eq!(
        server.session.closed(),
        None,
        "the acknowledgement is still to be sent"
    );
    server.send(usize::MAX);
    assert_eq!(server.session.closed(), Some(CloseReason::Aborted));
    assert_eq!(server.heard().len(), 20);
}

#[test]
fn list_names_every_export_with_its_description() {
    let mut server = Server::greeted(limits());
    let replies = server.ask(opt::LIST, &[]);
    assert_eq!(kinds(&replies), [rep::SERVER, rep::SERVER, rep::SERVER, rep::ACK]);
    assert_eq!(replies[0].data, b"\x00\x00\x00\x04diskthe volume disk");
    assert_eq!(kinds(&server.ask(opt::LIST, b"x")), [rep::ERR_INVALID]);
}

#[test]
fn info_tells_sizes_always_and_texts_when_asked() {
    let mut server = Server::greeted(limits());
    let replies = server.ask(
        opt::INFO,
        &info_data("disk", &[info::NAME, info::DESCRIPTION, 77]),
    );
    assert_eq!(
        kinds(&replies),
        [rep::INFO, rep::INFO, rep::INFO, rep::INFO, rep::ACK]
    );
    assert_eq!(
        replies[0].data[..10],
        *b"\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00"
    );
    assert_eq!(replies[1].data, b"\x00\x01disk");
    assert_eq!(replies[2].data, b"\x00\x02the volume disk");
    assert_eq!(
        replies[3].data,
        [0, 3, 0, 0, 2, 0, 0, 0, 0x10, 0, 0, 1, 0, 0],
        "512, 4096, 64 KiB"
    );
    assert_eq!(
        kinds(&server.ask(opt::INFO, &info_data("disk", &[]))),
        [rep::INFO, rep::INFO, rep::ACK]
    );
}

#[test]
fn the_empty_name_is_the_first_export() {
    let mut server = Server::greeted(limits());
    let replies = server.ask(opt::GO, &info_data("", &[info::NAME]));
    assert_eq!(replies[1].data, b"\x00\x01disk");
    assert_eq!(server.session.volume(), Some(base::VolumeId(7)));
}

#[test]
fn a_refused_go_can_be_tried_again() {
    let mut server = Server::greeted(limits());
    assert_eq!(
        kinds(&server.ask(opt::GO, &info_data("nothing", &[]))),
        [rep::ERR_UNKNOWN]
    );
    assert_eq!(
        kinds(&server.ask(opt::GO, b"\x00\x00\x00\x09disk\x00\x00")),
        [rep::ERR_INVALID]
    );
    assert_eq!(
        kinds(&server.ask(opt::GO, b"\x00\x00\x00\x04disk\x00\x01")),
        [rep::ERR_INVALID]
    );
    assert_eq!(kinds(&server.ask(opt::GO, b"\x00")), [rep::ERR_INVALID]);
    assert_eq!(
        kinds(&server.ask(opt::GO, &info_data("disk", &[]))),
        [rep::INFO, rep::INFO, rep::ACK]
    );
}

#[test]
fn unknown_options_are_unsupported_and_big_ones_too_big() {
    let mut server = Server::greeted(limits());
    for unknown in [4, 5, 12, 13, 99] {
        assert_eq!(kinds(&server.ask(unknown, b"data")), [rep::ERR_UNSUP]);
    }
    assert_eq!(
        kinds(&server.ask(opt::LIST, &vec![0; 20_000])),
        [rep::ERR_TOO_BIG]
    );
    assert_eq!(
        kinds(&server.ask(opt::STRUCTURED_REPLY, b"x")),
        [rep::ERR_INVALID]
    );
    assert_eq!(kinds(&server.ask(opt::STRUCTURED_REPLY, b"")), [rep::ACK]);
}

#[test]
fn a_client_that_opens_nothing_in_time_is_closed() {
    let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
    let mut silent = Server::new(limits());
    assert_eq!(silent.session.deadline(), Some(at(30)));
    silent.session.tick(at(29));
    assert_eq!(silent.session.closed(), None);
    silent.session.tick(at(30));
    assert_eq!(silent.session.closed(), Some(CloseReason::Idle));
    let mut busy = Server::started("disk", true);
    assert_eq!(busy.session.deadline(), None);
    busy.session.tick(at(1000));
    assert_eq!(busy.session.closed(), None);
}

#[test]
fn an_option_without_its_magic_closes() {
    let mut server = Server::greeted(limits());
    server.feed(&[0; 16]);
    assert_eq!(server.session.closed(), Some(CloseReason::Magic));
}

#[test]
fn dont_fragment_is_offered_with_structured_replies_only() {
    let mut server = Server::greeted(limits());
    let flags = |replies: Vec<OptionReply>| u16::from_be_bytes([replies[0].data[10], replies[0].data[11]]);
    assert_eq!(
        flags(server.ask(opt::INFO, &info_data("disk", &[]))) & tf::SEND_DF,
        0
    );
    server.ask(opt::STRUCTURED_REPLY, &[]);
    assert_ne!(
        flags(server.ask(opt::INFO, &info_data("disk", &[]))) & tf::SEND_DF,
        0
    );
    let view = flags(server.ask(opt::INFO, &info_data("view", &[])));
    assert_eq!(
        view,
        tf::HAS_FLAGS | tf::READ_ONLY | tf::SEND_FLUSH | tf::SEND_DF | tf::CAN_MULTI_CONN
    );
}

#[test]
fn meta_contexts_are_listed_by_wildcard_and_set_by_name() {
    let mut server = Server::greeted(limits());
    let mut ask = |option, name, queries: &[&str]| {
        let replies = server.ask(option, &meta_data(name, queries));
        replies
            .into_iter()
            .map(|reply| (reply.kind, reply.data))
            .collect::<Vec<_>>()
    };
    let kinds = |replies: &[(u32, Vec<u8>)]| replies.iter().map(|reply| reply.0).collect::<Vec<_>>();
    assert_eq!(
        kinds(&ask(opt::LIST_META_CONTEXT, "disk", &[])),
        [rep::ERR_INVALID],
        "not structured"
    );
    assert_eq!(kinds(&ask(opt::STRUCTURED_REPLY, "", &[])), [rep::ERR_INVALID]);
    server.ask(opt::STRUCTURED_REPLY, &[]);
    let mut ask = |option, name, queries: &[&str]| {
        let replies = server.ask(option, &meta_data(name, queries));
        replies
            .into_iter()
            .map(|reply| (reply.kind, reply.data))
            .collect::<Vec<_>>()
    };
    for queries in [&[][..], &["base:"], &[ALLOCATION], &["qemu:x", ALLOCATION]] {
        let replies = ask(opt::LIST_META_CONTEXT, "disk", queries);
        assert_eq!(kinds(&replies), [rep::META_CONTEXT, rep::ACK]);
        assert_eq!(replies[0].1, b"\x00\x00\x00\x00base:allocation");
    }
    assert_eq!(
        kinds(&ask(opt::LIST_META_CONTEXT, "disk", &["qemu:dirty"])),
        [rep::ACK]
    );
    assert_eq!(
        kinds(&ask(opt::LIST_META_CONTEXT, "disk", &["nocolon"])),
        [rep::ERR_INVALID]
    );
    assert_eq!(
        kinds(&ask(opt::LIST_META_CONTEXT, "none", &[])),
        [rep::ERR_UNKNOWN]
    );
    assert_eq!(kinds(&ask(opt::SET_META_CONTEXT, "disk", &[])), [rep::ACK]);
    assert_eq!(kinds(&ask(opt::SET_META_CONTEXT, "disk", &["base:"])), [rep::ACK]);
    let replies = ask(opt::SET_META_CONTEXT, "disk", &[ALLOCATION]);
    assert_eq!(
        replies[0],
        (rep::META_CONTEXT, b"\x00\x00\x00\x01base:allocation".to_vec())
    );
}

#[test]
fn a_context_counts_only_for_the_export_it_was_set_for() {
    let mut server = Server::greeted(limits());
    server.ask(opt::STRUCTURED_REPLY, &[]);
    server.ask(opt::SET_META_CONTEXT, &meta_data("huge", &[ALLOCATION]));
    server.ask(opt::GO, &info_data("disk", &[]));
    let replies = server.tell(&request(0, command::BLOCK_STATUS, 1, 0, 4096));
    assert_eq!(error_of(&replies[0]), Errno::Inval as u32);
}

#[test]
fn a_stopping_server_refuses_options_and_requests() {
    let mut server = Server::started("disk", false);
    server.session.shut_down();
    let mut both = request(0, command::READ, 1, 0, 512);
    both.extend(write(0, 2, 0, &[1; 512]));
    assert_eq!(
        server.tell(&both),
        [failed(1, Errno::Shutdown), failed(2, Errno::Shutdown)]
    );

    let mut server = Server::greeted(limits());
    server.session.shut_down();
    assert_eq!(kinds(&server.ask(opt::LIST, &[])), [rep::ERR_SHUTDOWN]);
    assert_eq!(
        kinds(&server.ask(opt::GO, &info_data("disk", &[]))),
        [rep::ERR_SHUTDOWN]
    );
    server.feed(&option(opt::EXPORT_NAME, b"disk"));
    assert!(server.session.state().is_over);
}

#[test]
fn a_client_that_does_not_read_is_not_listened_to() {
    let mut server = Server::greeted(limits());
    let many = option(opt::LIST, &[]).repeat(10_000);
    let taken = server.session.receive(Instant::ZERO, &many);
    assert!(server.session.state().is_blocked && taken < many.len());
    assert!(server.session.state().pending_bytes < 66 << 10);
    assert!(server.feed(&many[taken..]).is_empty());
    assert!(!server.session.state().is_blocked);
}

// ---- transmission

#[test]
fn reads_are_simple_or_structured_as_agreed() {
    let mut server = Server::started("disk", false);
    server.feed(&request(0, command::READ, 0xc00c1e, 1024, 8192));
    let heard = server.heard();
    assert_eq!(
        heard[..16],
        *b"\x67\x44\x66\x98\x00\x00\x00\x00\x00\x00\x00\x00\x00\xc0\x0c\x1e"
    );
    assert_eq!(heard[16..], server.disk[1024..1024 + 8192]);

    let mut server = Server::started("disk", true);
    for flags in [0, flag::DF, flag::FUA] {
        let replies = server.tell(&request(flags, command::READ, 5, 3584, 1024));
        assert_eq!(replies, [data_chunk(5, 3584, &server.disk[3584..4608])]);
    }
}

#[test]
fn writes_land_where_they_belong_and_carry_fua() {
    for (offset, length) in [
        (0, 512),
        (512, 4096),
        (3584, 1024),
        (4096, 8192),
        (7 * 512, 20 * 512),
    ] {
        let mut server = Server::started("disk", true);
        let mut expected = server.disk.clone();
        let data: Vec<u8> = (0..length).map(|at| (at * 31 + 5) as u8).collect();
        expected[offset..offset + length].copy_from_slice(&data);
        assert_eq!(server.tell(&write(flag::FUA, 9, offset as u64, &data)), [ok(9)]);
        assert!(server.disk == expected);
        assert_eq!(
            server.seen,
            [(BlockOp::Write, offset as u64, length as u32, true)]
        );
        assert_eq!(server.pool.available(), server.pool.capacity());
        assert_eq!(server.session.state().in_flight_bytes, 0);
    }
}

#[test]
fn flush_trim_and_zeroes_reach_the_gateway() {
    let mut server = Server::started("disk", true);
    let mut bytes = request(0, command::FLUSH, 1, 0, 0);
    bytes.extend(request(flag::FUA, command::TRIM, 2, 512, 1024));
    bytes.extend(request(flag::NO_HOLE, command::WRITE_ZEROES, 3, 4096, 4096));
    bytes.extend(request(flag::FAST_ZERO, command::WRITE_ZEROES, 4, 8192, 4096));
    assert_eq!(server.tell(&bytes), [ok(1), ok(2), ok(3), ok(4)]);
    let expected = [
        (BlockOp::Flush, 0, 0, false),
        (BlockOp::Trim, 512, 1024, true),
        (BlockOp::WriteZeroes, 4096, 4096, false),
        (BlockOp::WriteZeroes, 8192, 4096, false),
    ];
    assert_eq!(server.seen, expected);
    let slow = server.tell(&request(flag::FAST_ZERO, command::WRITE_ZEROES, 5, 512, 4096));
    assert_eq!(slow, [failed(5, Errno::NotSup)]);
}

#[test]
fn long_trims_are_asked_for_in_aligned_parts_and_answered_once() {
    const MIB: u64 = 1 << 20;
    let mut server = Server::started("huge", false);
    assert_eq!(
        server.tell(&request(0, command::TRIM, 8, 30 * MIB, (40 * MIB) as u32)),
        [ok(8)]
    );
    let parts: Vec<_> = server
        .seen
        .iter()
        .map(|seen| (seen.1 / MIB, u64::from(seen.2) / MIB))
        .collect();
    assert_eq!(parts, [(30, 2), (32, 32), (64, 6)]);
    let whole = server.tell(&request(0, command::WRITE_ZEROES, 9, 0, u32::MAX / 512 * 512));
    assert_eq!(whole, [ok(9)]);
    server.fail = Some(BlockError::Io);
    server.seen.clear();
    assert_eq!(
        server.tell(&request(0, command::TRIM, 10, 0, (40 * MIB) as u32)),
        [failed(10, Errno::Io)]
    );
    assert_eq!(server.seen.len(), 1, "the first failure ends it");
}

#[test]
fn block_status_tells_holes_from_data() {
    let mut server = Server::started("disk", true);
    server.disk[4096..8192].fill(0);
    server.disk[65536..66560].fill(0);
    let extents: [(u32, u32); 4] = [(3584, 0), (4096, 3), (57344, 0), (512, 3)];
    for (flags, count) in [(0, 4), (flag::REQ_ONE, 1)] {
        let replies = server.tell(&request(flags, command::BLOCK_STATUS, 6, 512, 65536));
        let told = extents[..count]
            .iter()
            .flat_map(|(length, state)| [length, state]);
        let numbers = [&1].into_iter().chain(told);
        assert_eq!(
            replies,
            [Reply::Chunk {
                cookie: 6,
                flags: 1,
                kind: chunk::BLOCK_STATUS,
                data: numbers.flat_map(|number| number.to_be_bytes()).collect(),
            }]
        );
    }
    assert_eq!(server.seen[0], (BlockOp::Status, 512, 65536, false));
    assert_eq!(server.session.state().in_flight_bytes, 0);
}

#[test]
fn a_block_status_that_fails_is_an_error_chunk_and_holds_no_page() {
    let mut server = Server::started("disk", true);
    server.fail = Some(BlockError::Io);
    let replies = server.tell(&request(0, command::BLOCK_STATUS, 6, 0, 4096));
    assert!(matches!(
        replies[..],
        [Reply::Chunk {
            kind: chunk::ERROR,
            ..
        }]
    ));
    assert_eq!(
        (server.pool.available(), server.session.state().in_flight_bytes),
        (64, 0)
    );
}

#[test]
fn a_block_status_waits_for_a_page() {
    let mut server = Server::started("disk", true);
    let mut taken: Vec<_> = (0..63).map_while(|_| server.pool.alloc()).collect();
    assert!(
        server
            .tell(&request(0, command::BLOCK_STATUS, 6, 0, 4096))
            .is_empty()
    );
    assert!(server.session.state().is_blocked, "one page is left to others");
    taken.pop();
    assert_eq!(server.tell(&[]).len(), 1);
}

fn ended(cookie: u64, offset: u64) -> Reply {
    Reply::Extended {
        cookie,
        offset,
        flags: 1,
        kind: chunk::NONE,
        data: Vec::new(),
    }
}

#[test]
fn extended_headers_are_agreed_on_once_and_for_all() {
    let mut server = Server::greeted(limits());
    assert_eq!(
        kinds(&server.ask(opt::EXTENDED_HEADERS, &[1])),
        [rep::ERR_INVALID]
    );
    assert_eq!(kinds(&server.ask(opt::STRUCTURED_REPLY, &[])), [rep::ACK]);
    assert_eq!(kinds(&server.ask(opt::EXTENDED_HEADERS, &[])), [rep::ACK]);
    assert_eq!(
        kinds(&server.ask(opt::STRUCTURED_REPLY, &[])),
        [rep::ERR_EXT_HEADER_REQD]
    );
    let context = server.ask(opt::SET_META_CONTEXT, &meta_data("disk", &[ALLOCATION]));
    assert_eq!(kinds(&context), [rep::META_CONTEXT, rep::ACK]);
    server.feed(&option(opt::EXPORT_NAME, b"disk"));
    assert_eq!(server.session.closed(), Some(CloseReason::UnknownExport));
}

#[test]
fn with_extended_headers_every_reply_is_extended() {
    let mut server = Server::started_after("disk", Some(opt::EXTENDED_HEADERS));
    let mut writing = extended(0, command::WRITE, 1, 512, 1024);
    writing.extend([0xab; 1024]);
    assert_eq!(server.tell(&writing), [ended(1, 512)]);
    assert_eq!(server.disk[512..1536], [0xab; 1024]);
    let replies = server.tell(&extended(flag::DF, command::READ, 2, 1024, 512));
    let mut data = 1024u64.to_be_bytes().to_vec();
    data.extend([0xab; 512]);
    let read = Reply::Extended {
        cookie: 2,
        offset: 1024,
        flags: 1,
        kind: chunk::OFFSET_DATA,
        data,
    };
    assert_eq!(replies, [read]);
    assert_eq!(server.tell(&extended(0, command::FLUSH, 3, 0, 0)), [ended(3, 0)]);
    for (asked, errno) in [
        (extended(0, command::READ, 4, 3, 512), Errno::Inval),
        (
            extended(0, command::WRITE_ZEROES, 4, 1 << 17, 512),
            Errno::NoSpace,
        ),
        (extended(0, command::TRIM, 4, 0, 1 << 40), Errno::Inval),
        (
            extended(flag::PAYLOAD_LEN, command::TRIM, 4, 0, 512),
            Errno::Inval,
        ),
    ] {
        let mut asked = asked;
        if asked[5] & 32 != 0 {
            asked.extend([0; 512]);
        }
        let replies = server.tell(&asked);
        assert!(matches!(replies[..], [Reply::Extended { cookie: 4, .. }]));
        assert_eq!(error_of(&replies[0]), errno as u32);
    }
    let mut bare = extended(0, command::WRITE, 5, 0, 512);
    bare[5] &= !32;
    let replies = server.tell(&bare);
    assert_eq!(
        replies.len(),
        1,
        "a write without its payload flag has no payload"
    );
    assert_eq!(error_of(&replies[0]), Errno::Inval as u32);
    server.feed(&extended(flag::PAYLOAD_LEN, command::TRIM, 6, 0, 1 << 32));
    assert_eq!(server.session.closed(), Some(CloseReason::Payload));
}

#[test]
fn a_compact_header_after_extended_ones_were_agreed_on_is_out_of_step() {
    let mut server = Server::started_after("disk", Some(opt::EXTENDED_HEADERS));
    let mut compact = request(0, command::FLUSH, 1, 0, 0);
    compact.extend([0; 4]);
    server.feed(&compact);
    assert_eq!(server.session.closed(), Some(CloseReason::Magic));
}

#[test]
fn extended_lengths_go_beyond_four_gibibytes() {
    let mut server = Server::started_after("huge", Some(opt::EXTENDED_HEADERS));
    let length = (5 << 30) + 512;
    for command in [command::TRIM, command::WRITE_ZEROES] {
        server.seen.clear();
        assert_eq!(
            server.tell(&extended(0, command, 7, 512, length)),
            [ended(7, 512)]
        );
        let asked: u64 = server
            .seen
            .iter()
            .map(|(_, _, length, _)| u64::from(*length))
            .sum();
        let (_, last, bytes, _) = server.seen.last().expect("parts of it");
        assert_eq!((asked, last + u64::from(*bytes)), (length, 512 + length));
    }
    let replies = server.tell(&extended(flag::REQ_ONE, command::BLOCK_STATUS, 8, 512, length));
    let mut data = [1u32.to_be_bytes(), 1u32.to_be_bytes()].concat();
    data.extend([length, 3].iter().flat_map(|number| number.to_be_bytes()));
    let status = Reply::Extended {
        cookie: 8,
        offset: 512,
        flags: 1,
        kind: chunk::BLOCK_STATUS_EXT,
        data,
    };
    assert_eq!(replies, [status]);
    server.fail = Some(BlockError::Io);
    let replies = server.tell(&extended(0, command::TRIM, 9, 512, length));
    assert_eq!(error_of(&replies[0]), Errno::Io as u32);
}

#[test]
fn every_bad_request_gets_its_exact_error() {
    let end = 1 << 17;
    let cases = [
        (0, command::READ, 1, 512, Errno::Inval),
        (0, command::READ, 0, 100, Errno::Inval),
        (0, command::READ, 0, 0, Errno::Inval),
        (0, command::READ, end, 512, Errno::Inval),
        (0, command::READ, end - 512, 1024, Errno::Inval),
        (0, command::READ, u64::MAX - 511, 512, Errno::Inval),
        (0, command::READ, 0, (64 << 10) + 512, Errno::Inval),
        (flag::NO_HOLE, command::READ, 0, 512, Errno::Inval),
        (1 << 5, command::READ, 0, 512, Errno::Inval),
        (0, command::FLUSH, 512, 0, Errno::Inval),
        (0, command::FLUSH, 0, 512, Errno::Inval),
        (flag::DF, command::FLUSH, 0, 0, Errno::Inval),
        (0, command::TRIM, end, 512, Errno::Inval),
        (0, command::TRIM, 3, 512, Errno::Inval),
        (flag::NO_HOLE, command::TRIM, 0, 512, Errno::Inval),
        (0, command::WRITE_ZEROES, end, 512, Errno::NoSpace),
        (0, command::WRITE_ZEROES, u64::MAX - 511, 512, Errno::NoSpace),
        (0, command::WRITE_ZEROES, 0, 513, Errno::Inval),
        (0, command::BLOCK_STATUS, end, 512, Errno::Inval),
        (0, command::BLOCK_STATUS, 0, 0, Errno::Inval),
        (0, 5, 0, 512, Errno::Inval),
        (0, 8, 0, 512, Errno::Inval),
        (0, 999, 0, 512, Errno::Inval),
    ];
    for structured in [false, true] {
        let mut server = Server::started("disk", structured);
        for (flags, command, offset, length, errno) in cases {
            let replies = server.tell(&request(flags, command, 4, offset, length));
            assert_eq!(replies.len(), 1);
            assert_eq!(
                error_of(&replies[0]),
                errno as u32,
                "{command} at {offset}+{length}, flags {flags}"
            );
            let chunked = structured && matches!(command, command::READ | command::BLOCK_STATUS);
            assert_eq!(matches!(replies[0], Reply::Chunk { .. }), chunked);
        }
        assert!(server.seen.is_empty());
    }
    let mut server = Server::started("disk", false);
    let replies = server.tell(&request(flag::DF, command::READ, 4, 0, 512));
    assert_eq!(
        error_of(&replies[0]),
        Errno::Inval as u32,
        "no chunks, no fragments"
    );
}

#[test]
fn the_payload_of_a_refused_write_is_drained() {
    let end = 1 << 17;
    let cases = [
        (0, 1, 512, Errno::Inval),
        (0, 0, 100, Errno::Inval),
        (0, 0, 0, Errno::Inval),
        (0, 0, 100_000, Errno::Inval),
        (flag::DF, 0, 512, Errno::Inval),
        (0, end, 512, Errno::NoSpace),
        (0, end - 512, 1024, Errno::NoSpace),
    ];
    let mut server = Server::started("disk", true);
    for (flags, offset, length, errno) in cases {
        let mut bytes = write(flags, 1, offset, &vec![0x25; length]);
        bytes.extend(request(0, command::FLUSH, 2, 0, 0));
        assert_eq!(server.tell(&bytes), [failed(1, errno), ok(2)]);
    }
}

#[test]
fn a_read_only_export_refuses_changes() {
    let mut server = Server::started("view", true);
    let mut bytes = write(0, 1, 0, &[1; 512]);
    bytes.extend(request(0, command::TRIM, 2, 0, 512));
    bytes.extend(request(0, command::WRITE_ZEROES, 3, 0, 512));
    bytes.extend(request(0, command::FLUSH, 4, 0, 0));
    let perm = |cookie| failed(cookie, Errno::Perm);
    assert_eq!(server.tell(&bytes), [perm(1), perm(2), perm(3), ok(4)]);
}

#[test]
fn errors_of_the_gateway_become_the_protocols_own() {
    let cases = [
        (BlockError::Invalid, Errno::Inval),
        (BlockError::NoVolume, Errno::Shutdown),
        (BlockError::ReadOnly, Errno::Perm),
        (BlockError::Reserved, Errno::Perm),
        (BlockError::NoSpace, Errno::NoSpace),
        (BlockError::Io, Errno::Io),
        (BlockError::Shutdown, Errno::Shutdown),
        (BlockError::Elsewhere, Errno::Shutdown),
    ];
    for (error, errno) in cases {
        for structured in [false, true] {
            let mut server = Server::started("disk", structured);
            server.fail = Some(error);
            let mut bytes = request(0, command::READ, 1, 0, 512);
            bytes.extend(write(0, 2, 0, &[1; 512]));
            let replies = server.tell(&bytes);
            assert_eq!(
                replies.iter().map(error_of).collect::<Vec<_>>(),
                [errno as u32; 2]
            );
            assert_eq!(server.session.state().in_flight_bytes, 0);
        }
    }
}

#[test]
fn replies_may_come_in_any_order_and_cookies_may_repeat() {
    let mut server = Server::started("disk", true);
    server.hold = true;
    let mut bytes = request(0, command::READ, 7, 0, 512);
    bytes.extend(request(0, command::READ, 7, 512, 512));
    bytes.extend(request(0, command::FLUSH, 7, 0, 0));
    server.feed(&bytes);
    while let Some(request) = server.held.pop() {
        server.answer(request);
    }
    server.send(usize::MAX);
    let (first, second) = (
        data_chunk(7, 0, &server.disk[..512]),
        data_chunk(7, 512, &server.disk[512..1024]),
    );
    assert_eq!(server.replies(), [ok(7), second, first]);
}

#[test]
fn the_request_limit_pushes_back_until_replies_are_sent() {
    let mut server = Server::started("disk", true);
    server.hold = true;
    let bytes = request(0, command::FLUSH, 1, 0, 0).repeat(20);
    let rest = server.feed(&bytes);
    assert_eq!((server.held.len(), server.session.state().in_flight), (16, 16));
    assert!(
        server.session.state().is_blocked && rest.len() == 3 * 28,
        "one header is parked"
    );
    let request = server.held.remove(0);
    server.answer(request);
    assert_eq!(
        server.session.receive(Instant::ZERO, rest),
        0,
        "the reply is not sent yet"
    );
    server.hold = false;
    server.send(usize::MAX);
    assert!(server.feed(rest).len() < rest.len());
}

#[test]
fn unsent_reads_count_against_the_byte_limit() {
    let mut server = Server::started("disk", true);
    let bytes = request(0, command::READ, 1, 0, 32 << 10).repeat(3);
    server.session.receive(Instant::ZERO, &bytes);
    for _ in 0..2 {
        let Some(request) = server.session.asks().requests.pop_front() else {
            panic!("two reads fit");
        };
        server.answer(request);
    }
    assert!(server.session.asks().requests.pop_front().is_none());
    assert_eq!(server.session.state().in_flight_bytes, 64 << 10);
    server.session.receive(Instant::ZERO, &[]);
    assert!(server.session.state().is_blocked && server.session.asks().requests.pop_front().is_none());
    server.send(28 + (32 << 10));
    server.session.receive(Instant::ZERO, &[]);
    assert!(!server.session.state().is_blocked && server.session.asks().requests.pop_front().is_some());
}

#[test]
fn a_request_counts_the_pages_that_it_holds() {
    let mut server = Server::started("disk", true);
    server.feed(&request(0, command::WRITE, 1, 512, 512));
    assert_eq!(server.session.state().in_flight_bytes, 4096);
    server.feed(&[9; 512]);
    assert_eq!(server.session.state().in_flight_bytes, 0);
    server.session.set_share(16 << 10);
    let bytes = request(0, command::READ, 1, 3584, 1024).repeat(3);
    server.session.receive(Instant::ZERO, &bytes);
    for _ in 0..2 {
        let read = server.session.asks().requests.pop_front().expect("two fit");
        server.answer(read);
    }
    server.session.receive(Instant::ZERO, &[]);
    assert!(server.session.asks().requests.is_empty());
    let state = server.session.state();
    let with_a_part = (16 << 10) + 4096;
    assert_eq!(
        (state.in_flight_bytes, state.share_wanted),
        (16 << 10, with_a_part)
    );
    server.feed(&[]);
    assert_eq!(server.session.state().in_flight_bytes, 0);
}

// Bug: a client made the target cut off others for ever, with nothing of its own to lose. Cause: a long write that had failed
// still counted as short of memory while its client did not send the rest. Fix: only a request with parts to come counts.
#[test]
fn a_failed_write_is_not_short_of_memory() {
    let mut server = Server::started("disk", true);
    server.session.set_share(8 << 10);
    let bytes = write(0, 1, 0, &[9; 32 << 10]);
    let (first, rest) = bytes.split_at(28 + 6000);
    server.feed(first);
    assert!(server.session.state().is_short);
    server.fail = Some(BlockError::NoSpace);
    // The rest of the second part, the third, and some of the fourth, for which there is no share.
    let (second, rest) = rest.split_at(2 * 4096 + 4096 - 6000 + 100);
    server.feed(second);
    let state = server.session.state();
    assert_eq!((state.in_flight, state.in_flight_bytes), (1, 0));
    assert!(!state.is_short, "the rest is drained");
    assert_eq!(server.tell(rest), [failed(1, Errno::NoSpace)]);
}

#[test]
fn a_write_waits_for_all_its_pages_and_takes_them_at_once() {
    let mut server = Server::started("disk", true);
    let held: Vec<_> = (0..60)
        .map(|_| server.pool.alloc().expect("a fresh pool"))
        .collect();
    let bytes = write(0, 1, 512, &[9; 4 * 4096]);
    let rest = server.feed(&bytes);
    assert!(
        server.session.state().is_blocked,
        "five pages and the reserve are more than four"
    );
    assert_eq!((rest.len(), server.pool.available()), (4 * 4096, 4));
    drop(held);
    assert!(server.feed(rest).is_empty());
    assert_eq!(server.replies(), [ok(1)]);
}

#[test]
fn a_small_pool_lowers_the_announced_maximum() {
    let of = |pool_pages| {
        let limits = Limits {
            bytes_max: 64 << 20,
            ..limits()
        };
        let (pool, exports) = (Pool::new(pool_pages, 512), Vec::new());
        Session::new(Opening {
            client: 0,
            pool,
            limits,
            via: None,
            now: Instant::ZERO,
            exports,
        })
    };
    let session = of(limits().pages_reserve + 5);
    assert_eq!(session.request_bytes_max(), 4 * 4096);
    let session = of(10_000);
    assert_eq!(session.request_bytes_max(), 32 << 20);
}

#[test]
fn disconnect_answers_what_is_under_way_and_ignores_the_rest() {
    let mut server = Server::started("disk", true);
    server.hold = true;
    let mut bytes = request(0, command::READ, 1, 0, 512);
    bytes.extend(request(0, command::DISC, 2, 0, 0));
    bytes.extend([0xff; 100]);
    assert!(server.feed(&bytes).is_empty());
    assert_eq!(server.session.closed(), None);
    let request = server.held.remove(0);
    server.answer(request);
    assert_eq!(server.session.closed(), None, "the reply is not sent yet");
    server.send(usize::MAX);
    assert_eq!(server.session.closed(), Some(CloseReason::Disconnected));
    assert_eq!(server.replies(), [data_chunk(1, 0, &server.disk[..512])]);
}

/// bug: a gateway that leads no more answered ESHUTDOWN for ever, and the client never came to the one that leads. fix: it answers what is
/// under way, and hangs up.
#[test]
fn a_server_that_serves_the_volume_no_more_hangs_up() {
    let mut server = Server::started("disk", true);
    server.fail = Some(BlockError::Elsewhere);
    let mut bytes = request(0, command::READ, 1, 0, 512);
    bytes.extend(request(0, command::FLUSH, 2, 0, 0));
    let errors: Vec<u32> = server.tell(&bytes).iter().map(error_of).collect();
    assert_eq!(errors, [Errno::Shutdown as u32; 2]);
    assert_eq!(server.session.closed(), Some(CloseReason::Elsewhere));
}

/// Another server takes `disk` when it is told to.
#[derive(Default)]
struct Others(AtomicU64);

impl Whereabouts for Others {
    fn generation(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn watch(&self, _wake: Box<dyn Fn() + Send + Sync>) {}

    fn is_elsewhere(&self, volume: VolumeId) -> bool {
        self.generation() >= 2 && volume == exports(0)[0].volume
    }

    fn direction(&self, name: &str) -> Option<String> {
        (name == "moved").then(|| "volume `moved` is at nbd://10.0.0.2:10809/moved".to_owned())
    }
}

fn among_others(server: Server) -> (Server, Arc<Others>) {
    let others = Arc::new(Others::default());
    let session = server.session.among(Arc::clone(&others) as Arc<dyn Whereabouts>);
    (Server { session, ..server }, others)
}

/// bug: a client of a volume that had moved was told "no such export", whoever served it.
#[test]
fn a_client_that_asks_for_a_volume_of_another_server_is_told_of_that() {
    let (mut server, others) = among_others(Server::greeted(limits()));
    let text = b"volume `moved` is at nbd://10.0.0.2:10809/moved".as_slice();
    for (name, text) in [("moved", text), ("nothing", b"no such export")] {
        for option in [opt::INFO, opt::GO] {
            let replies = server.ask(option, &info_data(name, &[]));
            assert_eq!(kinds(&replies), [rep::ERR_UNKNOWN]);
            assert_eq!(replies[0].data, text);
        }
    }
    // One that leaves after the client has come cannot be opened any more.
    others.0.store(2, Ordering::Relaxed);
    let replies = server.ask(opt::GO, &info_data("disk", &[]));
    assert_eq!(kinds(&replies), [rep::ERR_UNKNOWN]);
    assert_eq!(server.session.closed(), None, "it may ask for another one");
}

/// bug: an idle client of a volume that had moved was hung up at its next request, and its reconnecting began only then.
#[test]
fn an_idle_client_of_a_volume_that_has_moved_is_hung_up_at_once() {
    for under_way in [false, true] {
        let (mut server, others) = among_others(Server::started("disk", true));
        server.hold = under_way;
        server.feed(&request(0, command::READ, 1, 0, 512));
        server.heard();
        others.0.store(1, Ordering::Relaxed);
        server.session.tick(Instant::ZERO);
        assert_eq!(server.session.closed(), None, "another volume has moved");
        others.0.store(2, Ordering::Relaxed);
        server.session.tick(Instant::ZERO);
        if under_way {
            assert_eq!(server.session.closed(), None, "a request is under way");
            let request = server.held.remove(0);
            server.answer(request);
            server.send(usize::MAX);
        }
        assert_eq!(server.session.closed(), Some(CloseReason::Elsewhere));
    }
}

/// A write whose data are on their way is refused by the volume, and its answer ends the session.
#[test]
fn a_client_in_the_middle_of_a_write_is_hung_up_with_its_answer() {
    let (mut server, others) = among_others(Server::started("disk", true));
    let bytes = write(0, 7, 0, &[1; 4096]);
    server.feed(&bytes[..1000]);
    others.0.store(2, Ordering::Relaxed);
    server.session.tick(Instant::ZERO);
    assert_eq!(server.session.closed(), None);
    server.fail = Some(BlockError::Elsewhere);
    assert_eq!(server.tell(&bytes[1000..]), [failed(7, Errno::Shutdown)]);
    assert_eq!(server.session.closed(), Some(CloseReason::Elsewhere));
}

#[test]
fn a_request_without_its_magic_cuts_the_connection() {
    let mut server = Server::started("disk", true);
    server.hold = true;
    server.feed(&request(0, command::READ, 1, 0, 512));
    server.feed(&OPTION_MAGIC.to_be_bytes().repeat(4));
    assert_eq!(server.session.closed(), Some(CloseReason::Magic));
    let request = server.held.remove(0);
    server.answer(request);
    assert!(!server.send(usize::MAX), "nothing is sent any more");
    drop(server.session);
    assert_eq!(server.pool.available(), server.pool.capacity());
}

#[test]
#[should_panic(expected = "a request is answered once")]
fn answering_twice_is_a_bug() {
    let mut server = Server::started("disk", true);
    server.hold = true;
    server.feed(&request(0, command::FLUSH, 1, 0, 0));
    let request = server.held.remove(0);
    for _ in 0..2 {
        let (client, tag) = (request.client, request.tag);
        server.session.complete(BlockReply {
            client,
            tag,
            result: Ok(Pages::new()),
        });
    }
}

fn conversation(structured: bool, picks: &[(u8, u8, u8)]) -> Vec<u8> {
    let mut bytes = MODERN.to_be_bytes().to_vec();
    bytes.extend(option(opt::LIST, &[]));
    bytes.extend(option(77, b"what"));
    if structured {
        bytes.extend(option(opt::STRUCTURED_REPLY, &[]));
        bytes.extend(option(opt::SET_META_CONTEXT, &meta_data("disk", &[ALLOCATION])));
    }
    bytes.extend(option(opt::GO, &info_data("disk", &[info::NAME])));
    for (cookie, &(what, at, count)) in picks.iter().enumerate() {
        let (cookie, offset, length) = (cookie as u64, u64::from(at) * 512, u32::from(count % 32) * 512);
        match what % 6 {
            0 | 1 => bytes.extend(write(0, cookie, offset, &vec![what; length as usize])),
            2 => bytes.extend(request(0, command::TRIM, cookie, offset, length)),
            3 => bytes.extend(request(0, command::BLOCK_STATUS, cookie, offset, length)),
            _ => bytes.extend(request(0, command::READ, cookie, offset, length)),
        }
    }
    bytes.extend(request(0, command::DISC, 0, 0, 0));
    bytes
}

/// Cookie, reply, and the data behind a simple reply.
type Answer = (u64, Reply, Vec<u8>);

/// Sent bytes, as the handshake and the replies by cookie: replies may overtake one another.
fn by_cookie(out: &[u8], picks: &[(u8, u8, u8)]) -> (Vec<OptionReply>, Vec<Answer>) {
    let mut rest = &out[GREETING_BYTES..];
    let options = core::iter::from_fn(|| parse_option_reply(&mut rest)).collect();
    let mut replies: Vec<_> = core::iter::from_fn(|| {
        let reply = parse_reply(&mut rest)?;
        let (cookie, data_bytes) = match reply {
            Reply::Simple { cookie, error } => {
                let (what, _, count) = picks[cookie as usize];
                (
                    cookie,
                    if error == 0 && what % 6 > 3 {
                        usize::from(count % 32) * 512
                    } else {
                        0
                    },
                )
            }
            Reply::Chunk { cookie, .. } | Reply::Extended { cookie, .. } => (cookie, 0),
        };
        Some((cookie, reply, rest.split_off(..data_bytes)?.to_vec()))
    })
    .collect();
    assert!(rest.is_empty());
    replies.sort_by_key(|reply| reply.0);
    (options, replies)
}

/// Feeds a stream as a world does that reads payload straight into its pages, `piece_max` bytes at a time; returns how
/// many bytes went that way.
fn feed_straight(server: &mut Server, stream: &[u8], piece_max: usize) -> usize {
    let (mut rest, mut straight) = (stream, 0);
    while !rest.is_empty() {
        let piece = &rest[..rest.len().min(piece_max)];
        let mut filled = 0;
        server.session.payload_room(&mut |page, range| {
            let count = range.len().min(piece.len() - filled);
            page.with_mut(|page| {
                page[range.start..range.start + count].copy_from_slice(&piece[filled..filled + count])
            });
            filled += count;
            filled < piece.len()
        });
        server.session.payload_filled(filled);
        straight += filled;
        let left = server.feed(&piece[filled..]).len();
        rest = &rest[piece.len() - left..];
    }
    straight
}

#[test]
fn payload_may_be_read_straight_into_its_pages() {
    for piece_max in [28, 700, 5000, usize::MAX] {
        let mut server = Server::started("disk", false);
        for (offset, length) in [(512u64, 8192u32), (7 * 512, 12_288), (0, 4096)] {
            let data: Vec<u8> = (0..length).map(|at| (at * 31 + length) as u8).collect();
            let mut stream = request(0, command::WRITE, 5, offset, length);
            feed_straight(&mut server, &stream, piece_max);
            stream = [data.clone(), request(0, command::FLUSH, 6, 0, 0)].concat();
            let straight = feed_straight(&mut server, &stream, piece_max);
            assert_eq!(straight, length as usize, "all of it, and nothing of the flush");
            assert_eq!(server.replies(), [ok(5), ok(6)]);
            assert_eq!(server.disk[offset as usize..][..length as usize], data);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_chunking_of_input_and_output_gives_the_same_replies(
        structured: bool,
        picks in prop::collection::vec(any::<(u8, u8, u8)>(), 0..20),
        cuts in prop::collection::vec(1usize..3000, 1..50),
    ) {
        let bytes = conversation(structured, &picks);
        let mut whole = Server::new(limits());
        prop_assert!(whole.feed(&bytes).is_empty());
        prop_assert_eq!(whole.session.closed(), Some(CloseReason::Disconnected));

        let mut cut = Server::new(limits());
        let mut rest = &bytes[..];
        let mut sizes = cuts.iter().cycle();
        while !cut.session.state().is_over {
            let size = *sizes.next().expect("a cycle has no end");
            let taken = cut.session.receive(Instant::ZERO, &rest[..rest.len().min(size)]);
            rest = &rest[taken..];
            while let Some(request) = cut.session.asks().requests.pop_front() {
                cut.answer(request);
            }
            cut.send(size);
        }
        prop_assert!(whole.disk == cut.disk);
        prop_assert!(by_cookie(&whole.out, &picks) == by_cookie(&cut.out, &picks));
        prop_assert_eq!(cut.pool.available(), cut.pool.capacity());
    }
}

//! Frames against what Linux 6.18 sent over a veth pair with checksums in software, and against noise.

use base::Rng;
use tcp::addr::{Ip, Mac, Tuple};
use tcp::frame::icmp::Trouble;
use tcp::frame::{self, Flags, Hop, Malformed, Packet, Stamps};
use tcp::seq::Seq;

const SYN4: &str = "02000000000b02000000000a08004500003c52f340004006d3b40a0900010a09000294f81b5865d87e4700000000a002faf07be80000020405b40402080aaeb379eb000000000103030a";
const SYN_ACK4: &str = "02000000000a02000000000b08004500003c00004000400626a80a0900020a0900011b5894f83fb40e6a65d87e48a012fe889d290000020405b40402080ade26aed0aeb379eb0103030a";
const DATA4: &str = "02000000000b02000000000a08004500003f52f540004006d3af0a0900010a09000294f81b5865d87e483fb40e6b8018003f974600000101080aaeb379ecde26aed068656c6c6f2c2077697265";
const FIN4: &str = "02000000000a02000000000b080045000034c8c9400040065de60a0900020a0900011b5894f83fb40e7165d87e5380110040ca2d00000101080ade26aed1aeb379ec";
const RST4: &str = "02000000000a02000000000b08004500002800004000400626bc0a0900020a0900011b59ab5800000000724bb05050140000b26e0000";
const SYN6: &str = "02000000000b02000000000a86dd600d618500280640fd090000000000000000000000000001fd090000000000000000000000000002b1661b583609a45f00000000a002fd20b4810000020405a00402080af79efd91000000000103030a";
const DATA6: &str = "02000000000b02000000000a86dd600d6185002b0640fd090000000000000000000000000001fd090000000000000000000000000002b1661b583609a460e32dd1d880180040fd6c00000101080af79efd91443bb66368656c6c6f2c2077697265";
const ARP_REQUEST: &str =
    "ffffffffffff02000000000a0806000108000604000102000000000a0a0900010000000000000a090002";
const ARP_REPLY: &str =
    "02000000000a02000000000b0806000108000604000202000000000b0a09000202000000000a0a090001";
const SOLICITATION: &str = "3333ff00000202000000000a86dd6000000000203afffd090000000000000000000000000001ff0200000000000000000001ff00000287007d7c00000000fd090000000000000000000000000002010102000000000a";
const ADVERTISEMENT: &str = "02000000000a02000000000b86dd6000000000203afffd090000000000000000000000000002fd09000000000000000000000000000188001c7660000000fd090000000000000000000000000002020102000000000b";

const A4: Ip = Ip::v4([10, 9, 0, 1]);
const B4: Ip = Ip::v4([10, 9, 0, 2]);
const MAC_A: Mac = Mac([2, 0, 0, 0, 0, 10]);
const MAC_B: Mac = Mac([2, 0, 0, 0, 0, 11]);

fn bytes(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().chunks(2);
    let byte =
        |pair: &[u8]| u8::from_str_radix(core::str::from_utf8(pair).expect("digits"), 16).expect("a byte");
    digits.map(byte).collect()
}

fn b6() -> Ip {
    let mut octets = [0; 16];
    octets[..2].copy_from_slice(&[0xfd, 0x09]);
    octets[15] = 2;
    Ip::v6(octets)
}

#[test]
fn a_syn_of_linux_is_read() {
    let frame = bytes(SYN4);
    let (ether, packet) = frame::parse(&frame, true).unwrap();
    assert_eq!((ether.source, ether.target), (MAC_A, MAC_B));
    let Packet::Tcp(segment, payload) = packet else {
        panic!("{packet:?}")
    };
    assert_eq!((segment.source.ip, segment.target.ip), (A4, B4));
    assert_eq!((segment.source.port, segment.target.port), (0x94f8, 7000));
    assert_eq!((segment.seq, segment.flags), (Seq(0x65d8_7e47), Flags::SYN));
    assert_eq!((segment.window, payload.len()), (64240, 0));
    assert_eq!(
        (segment.options.mss, segment.options.scale),
        (Some(1460), Some(10))
    );
    let stamps = Stamps {
        value: 0xaeb3_79eb,
        echo: 0,
    };
    assert_eq!(segment.options.stamps, Some(stamps));
    assert!(!segment.plain, "a SYN has more than timestamps");
}

#[test]
fn payload_and_flags_of_linux_are_read() {
    for (hex, text) in [(DATA4, "hello, wire"), (DATA6, "hello, wire"), (FIN4, "")] {
        let frame = bytes(hex);
        let Packet::Tcp(segment, payload) = frame::parse(&frame, true).unwrap().1 else {
            panic!("{hex}")
        };
        assert_eq!(payload, text.as_bytes());
        assert!(segment.plain && segment.options.stamps.is_some());
        assert_eq!(segment.flags.any(Flags::FIN), text.is_empty());
    }
    let frame = bytes(RST4);
    let Packet::Tcp(segment, _) = frame::parse(&frame, true).unwrap().1 else {
        panic!("a reset")
    };
    assert_eq!(segment.flags, Flags::RST | Flags::ACK);
}

/// The identification and the checksum of an IPv4 header, and the flow label of an IPv6 header, are the sender's choice.
fn without_choices(mut frame: Vec<u8>) -> Vec<u8> {
    match frame[12] {
        0x08 => [18, 19, 24, 25].map(|at| frame[at] = 0),
        _ => [15, 16, 17, 17].map(|at| frame[at] = 0),
    };
    frame
}

#[test]
fn segments_are_made_as_linux_makes_them() {
    for hex in [DATA4, DATA6, FIN4, RST4] {
        let frame = bytes(hex);
        let (ether, packet) = frame::parse(&frame, true).unwrap();
        let Packet::Tcp(segment, payload) = packet else {
            panic!("{packet:?}")
        };
        let mut made = vec![0xaa; 2000];
        let start = frame::headers_bytes(&segment);
        made[start..start + payload.len()].copy_from_slice(payload);
        let hop = Hop {
            source: ether.source,
            target: ether.target,
        };
        let length = frame::emit(hop, &segment, &mut made, true);
        made.truncate(length);
        assert!(frame::parse(&made, true).is_ok(), "its checksums are right");
        assert_eq!(without_choices(made), without_choices(frame), "{hex}");
    }
}

#[test]
fn neighbours_of_linux_are_read_and_made() {
    for (hex, is_reply) in [(ARP_REQUEST, false), (ARP_REPLY, true)] {
        let frame = bytes(hex);
        let (ether, Packet::Arp(arp)) = frame::parse(&frame, true).unwrap() else {
            panic!("{hex}")
        };
        assert_eq!(arp.is_reply, is_reply);
        assert_eq!(
            (arp.sender, arp.target),
            if is_reply { (B4, A4) } else { (A4, B4) }
        );
        let hop = Hop {
            source: ether.source,
            target: ether.target,
        };
        let mut made = [0; 100];
        let length = frame::emit_arp(hop, &arp, &mut made);
        assert_eq!(made[..length], frame);
    }
    for (hex, is_reply) in [(SOLICITATION, false), (ADVERTISEMENT, true)] {
        let frame = bytes(hex);
        let (ether, Packet::Neighbour(neighbour)) = frame::parse(&frame, true).unwrap() else {
            panic!("{hex}")
        };
        assert_eq!((neighbour.is_reply, neighbour.target), (is_reply, b6()));
        assert_eq!(neighbour.mac, Some(ether.source));
        let hop = Hop {
            source: ether.source,
            target: ether.target,
        };
        let to = if is_reply {
            ether.target
        } else {
            Mac::of_group(b6().solicited())
        };
        assert_eq!(to, ether.target);
        let mut made = [0; 100];
        let target = Ip::v6(core::array::from_fn(|at| frame[38 + at]));
        let length = frame::emit_neighbour(hop, &neighbour, target, &mut made);
        assert_eq!(made[..length], frame, "{hex}");
    }
}

/// Destination unreachable, fragmentation needed, about DATA4; its checksum is that of RFC 1071, summed by hand below.
#[test]
fn a_router_that_wants_shorter_packets_is_understood() {
    let about = &bytes(DATA4)[14..14 + 28];
    let mut icmp = vec![3, 4, 0, 0, 0, 0, 0x05, 0x14];
    icmp.extend_from_slice(about);
    let words = icmp
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
    let sum: u32 = words.sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut frame = bytes(SYN4)[..34].to_vec();
    frame[16..18].copy_from_slice(&(20 + icmp.len() as u16).to_be_bytes());
    frame[23] = 1;
    frame.extend_from_slice(&icmp);
    assert_eq!(
        frame::parse(&frame, true),
        Err(Malformed::Checksum),
        "of the IPv4 header"
    );
    let header: u32 = (0..10)
        .filter(|word| *word != 5)
        .map(|word| u32::from(frame[14 + 2 * word]) << 8 | u32::from(frame[15 + 2 * word]))
        .sum();
    let header = !((header & 0xffff) + (header >> 16)) as u16;
    frame[24..26].copy_from_slice(&header.to_be_bytes());
    let Packet::Report(report) = frame::parse(&frame, true).unwrap().1 else {
        panic!("a report")
    };
    assert_eq!(report.trouble, Trouble::TooBig { mtu: 1300 });
    assert_eq!(report.seq, Seq(0x65d8_7e48));
    let Tuple { local, remote } = report.tuple;
    assert_eq!(
        (local.ip, local.port, remote.ip, remote.port),
        (A4, 0x94f8, B4, 7000)
    );
}

const ALL: [&str; 11] = [
    SYN4,
    SYN_ACK4,
    DATA4,
    FIN4,
    RST4,
    SYN6,
    DATA6,
    ARP_REQUEST,
    ARP_REPLY,
    SOLICITATION,
    ADVERTISEMENT,
];

#[test]
fn a_flipped_bit_behind_ethernet_is_found() {
    for hex in &ALL[..7] {
        let whole = bytes(hex);
        // IPv6 covers neither class, flow label nor hop limit with a checksum.
        let covered = |bit: usize| whole[12] == 0x08 || !(14 * 8 + 4..18 * 8).contains(&bit) && bit / 8 != 21;
        for bit in (14 * 8..whole.len() * 8).filter(|bit| covered(*bit)) {
            let mut frame = whole.clone();
            frame[bit / 8] ^= 1 << (7 - bit % 8);
            assert!(frame::parse(&frame, true).is_err(), "bit {bit} of {hex}");
        }
    }
}

#[test]
fn a_frame_that_is_cut_off_is_refused() {
    for hex in ALL {
        let whole = bytes(hex);
        for length in 0..whole.len() {
            assert!(
                frame::parse(&whole[..length], true).is_err(),
                "{length} bytes of {hex}"
            );
        }
        let mut padded = whole.clone();
        padded.resize(whole.len() + 20, 0);
        assert_eq!(
            frame::parse(&padded, true),
            frame::parse(&whole, true),
            "padding is no payload"
        );
    }
}

#[test]
fn fragments_and_strange_options_are_refused() {
    let mut fragment = bytes(DATA4);
    fragment[20] = 0x20;
    assert_eq!(frame::parse(&fragment, false), Err(Malformed::Unsupported));
    let mut option = bytes(SYN4);
    // The length of the MSS option: nothing, too much, and another than its own.
    for (length, expected) in [(0, true), (1, true), (21, true), (3, true), (4, false)] {
        option[55] = length;
        assert_eq!(frame::parse(&option, false).is_err(), expected, "{length}");
    }
}

#[test]
fn no_noise_makes_the_parser_panic_and_what_it_reads_can_be_made() {
    let mut rng = Rng::new(42);
    let mut read = 0;
    for _ in 0..300_000 {
        let mut frame = bytes(ALL[rng.below(ALL.len() as u64) as usize]);
        for _ in 0..rng.below(6) {
            let at = rng.below(frame.len() as u64) as usize;
            frame[at] = rng.next_u64() as u8;
        }
        frame.truncate(rng.between(0, frame.len() as u64) as usize);
        let extra = rng.below(8);
        frame.extend((0..extra).map(|_| 7));
        let Ok((_, Packet::Tcp(segment, payload))) = frame::parse(&frame, false) else {
            continue;
        };
        read += 1;
        let mut made = vec![0; 4000];
        let start = frame::headers_bytes(&segment);
        made[start..start + payload.len()].copy_from_slice(payload);
        let length = frame::emit(Hop::default(), &segment, &mut made, true);
        let Ok((_, Packet::Tcp(again, _))) = frame::parse(&made[..length], true) else {
            panic!("{segment:?}")
        };
        let plain = again.plain;
        assert_eq!(frame::segment::Segment { plain, ..segment }, again);
    }
    assert!(read > 3000, "{read} segments were read");
}

//! Rack headers: valid ones, mutated, parsed; what parses is emitted again to the very same bytes.

use base::{Addr, Rng, Version, VssdId};
use wire::rack::{Code, HEADER_BYTES, Header, Op, PAYLOAD_BYTES_MAX, Part, flags};

/// One execution; true if the mutated header was accepted.
pub fn execute(rng: &mut Rng, input: &mut Vec<u8>) -> bool {
    let mut payload_bytes = compose(rng, input);
    mutate(rng, input, &mut payload_bytes);
    let Ok((header, part)) = Header::parse_part(input, payload_bytes) else {
        return false;
    };
    let mut again = [0; HEADER_BYTES];
    header.emit_part(part, &mut again);
    assert_eq!(
        input[..HEADER_BYTES],
        again,
        "what parses is emitted to the same bytes"
    );
    let length = header.length as usize;
    assert_eq!(part.range(length).len(), payload_bytes);
    assert_eq!(Header::parse(input, payload_bytes).is_ok(), part == Part::WHOLE);
    assert!(length <= PAYLOAD_BYTES_MAX);
    assert!(!header.carries_page() || length == 0 || length == PAYLOAD_BYTES_MAX);
    assert!(header.flags & !flags::ALL == 0);
    let reply = header.reply(Code::SoftOrOk);
    assert!(reply.has(flags::REPLY) && reply.request == header.request && reply.target == header.source);
    true
}

/// A valid header in `input`, of a packet or of a part of it; returns the length of what follows it.
fn compose(rng: &mut Rng, input: &mut Vec<u8>) -> usize {
    let op = Op::ALL[rng.below(Op::ALL.len() as u64) as usize];
    let mut header = Header {
        code: Code::ALL[rng.below(Code::ALL.len() as u64) as usize],
        flags: rng.below(u64::from(flags::ALL) + 1) as u8,
        lat_ns: rng.next_u64() as u32,
        request: rng.next_u64(),
        lba: rng.next_u64(),
        version: Version(rng.next_u64()),
        epoch: rng.next_u64() as u32,
        session: rng.next_u64() as u32,
        floor: rng.next_u64() as u32,
        source: Addr {
            ip: rng.next_u64() as u32,
            port: rng.next_u64() as u16,
        },
        target: Addr {
            ip: rng.next_u64() as u32,
            port: rng.next_u64() as u16,
        },
        payload_crc: rng.next_u64() as u32,
        ..Header::new(op, VssdId(rng.next_u64() as u32))
    };
    header.length = if !header.carries_page() {
        rng.below(PAYLOAD_BYTES_MAX as u64 + 1) as u32
    } else if header.code == Code::SoftOrOk && !header.has(flags::ZERO) {
        PAYLOAD_BYTES_MAX as u32
    } else {
        0
    };
    let length = header.length as usize;
    let room = rng.between(300, 2 * PAYLOAD_BYTES_MAX as u64) as usize;
    let parts: Vec<Part> = Part::all(length, room).collect();
    let part = parts[rng.below(parts.len() as u64) as usize];
    let mut bytes = [0; HEADER_BYTES];
    header.emit_part(part, &mut bytes);
    input.clear();
    input.extend(bytes);
    part.range(length).len()
}

/// Up to three changes; half of the time the checksum is made right again, so that what lies behind it is reached.
fn mutate(rng: &mut Rng, input: &mut Vec<u8>, payload_bytes: &mut usize) {
    for _ in 0..rng.below(4) {
        let at = rng.below(HEADER_BYTES as u64) as usize;
        match rng.below(6) {
            0 | 1 => input[at] ^= 1 << rng.below(8),
            2 => input[at] = rng.next_u64() as u8,
            3 => *payload_bytes = rng.below(2 * PAYLOAD_BYTES_MAX as u64) as usize,
            4 => {
                let lie = rng.below(2 * PAYLOAD_BYTES_MAX as u64) as u32;
                input[12..16].copy_from_slice(&lie.to_be_bytes());
                if rng.chance(0.5) {
                    *payload_bytes = lie as usize;
                }
            }
            _ => input[9..12].copy_from_slice(&[1, rng.below(32) as u8, rng.below(80) as u8]),
        }
    }
    if rng.chance(0.5) {
        let crc = crc32c::crc32c(&input[..HEADER_BYTES - 4]);
        input[HEADER_BYTES - 4..].copy_from_slice(&crc.to_be_bytes());
    }
    if rng.chance(0.05) {
        input.truncate(rng.below(HEADER_BYTES as u64) as usize);
    }
}

//! The bytes of a registry: one line with a checksum, then the records as JSON. Layout: `docs/format/registry.md`.
//!
//! Invariant: bytes whose checksum does not match are refused, never repaired silently.

use rack::level::{self, Levels, Mismatch, Software};
use rack::registry::Snapshot;
use serde::Deserialize;
use thiserror::Error;

/// First word of the file.
const MAGIC: &str = "switchyard-registry";
/// Version of the layout while the rack is at level 1. Programs that know no levels read and write it.
const FORMAT_VERSION: &str = "1";
/// From level 2 on. The records are the same: the number keeps programs out that would store them without the level.
const FORMAT_VERSION_LEVELS: &str = "2";

/// Why a registry's bytes are refused.
#[derive(Debug, Error)]
pub enum FileError {
    /// The first line is not a registry's.
    #[error("this is not a registry: its first line is another")]
    NotARegistry,
    /// A version that this program does not know.
    #[error(
        "the registry has format version {0}, and this program knows {FORMAT_VERSION} and {FORMAT_VERSION_LEVELS}: use a \
         newer program"
    )]
    Version(String),
    /// The rack is at a level that this program does not know.
    #[error(transparent)]
    Level(#[from] Mismatch),
    /// The checksum does not match.
    #[error(
        "the registry is damaged, because its checksum does not match: restore it from a backup with `switchyard registry restore`"
    )]
    Checksum,
    /// The checksum matches but the records make no sense.
    #[error("the records are malformed: {0}")]
    Records(#[from] serde_json::Error),
}

/// The bytes of a registry file.
pub fn emit(snapshot: &Snapshot) -> Vec<u8> {
    let body = serde_json::to_vec_pretty(snapshot).expect("plain records serialize");
    with_line(snapshot, body)
}

/// The same without white space: half the bytes.
pub fn emit_compact(snapshot: &Snapshot) -> Vec<u8> {
    let body = serde_json::to_vec(snapshot).expect("plain records serialize");
    with_line(snapshot, body)
}

fn with_line(snapshot: &Snapshot, mut body: Vec<u8>) -> Vec<u8> {
    body.push(b'\n');
    let crc = crc32c::crc32c(&body);
    let version = match snapshot.rack_level() > level::FIRST {
        true => FORMAT_VERSION_LEVELS,
        false => FORMAT_VERSION,
    };
    let mut bytes = format!("{MAGIC} {version} crc32c={crc:08x}\n").into_bytes();
    bytes.extend_from_slice(&body);
    bytes
}

/// Reads the bytes of a registry.
pub fn parse(bytes: &[u8]) -> Result<Snapshot, FileError> {
    let end = bytes
        .iter()
        .position(|&b| b == b'\n')
        .ok_or(FileError::NotARegistry)?;
    let line = std::str::from_utf8(&bytes[..end]).map_err(|_| FileError::NotARegistry)?;
    let mut words = line.split(' ');
    if words.next() != Some(MAGIC) {
        return Err(FileError::NotARegistry);
    }
    match words.next() {
        Some(FORMAT_VERSION | FORMAT_VERSION_LEVELS) => {}
        Some(other) => return Err(FileError::Version(other.to_owned())),
        None => return Err(FileError::NotARegistry),
    }
    let stated = words
        .next()
        .and_then(|word| word.strip_prefix("crc32c="))
        .and_then(|hex| u32::from_str_radix(hex, 16).ok())
        .ok_or(FileError::NotARegistry)?;
    let body = &bytes[end + 1..];
    if crc32c::crc32c(body) != stated {
        return Err(FileError::Checksum);
    }
    // The records of a level that this program does not know may have another shape.
    let found: Found = serde_json::from_slice(body)?;
    Mismatch::check(found.level.max(level::FIRST), &Software::own(Levels::BUILD))?;
    Ok(serde_json::from_slice(body)?)
}

/// The part of the records that stays in every level.
#[derive(Deserialize)]
struct Found {
    #[serde(default)]
    level: u8,
}

/// Records for tests.
#[cfg(test)]
pub fn sample() -> Snapshot {
    use rack::registry::NodeRecord;
    Snapshot {
        epoch: 3,
        next_vssd: 9,
        nodes: vec![NodeRecord {
            id: 1,
            addr: "127.0.0.1:8890".into(),
        }],
        ..Snapshot::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rack::registry::{
        Durability, ExpellingRecord, GatewayRecord, JoiningRecord, LeadRecord, LeftRecord, ReplicaRecord,
        SetRecord, VolumeRecord,
    };
    use uuid::Uuid;

    /// Records with each field that a registry has had since version 1, and identities or not.
    fn full(identity: Uuid) -> Snapshot {
        let replica = |vssd, node| ReplicaRecord { vssd, node };
        let set = SetRecord {
            identity,
            pages: 512,
            channels: 2,
            rows: 1,
            replicas: vec![replica(3, 1), replica(4, 2)],
            generation: 5,
            joining: Some(JoiningRecord {
                vssd: 7,
                node: 3,
                replaces: 4,
                moves: true,
            }),
            expelling: Some(ExpellingRecord {
                vssds: vec![6],
                was_primary: true,
            }),
            copies: 3,
            expelled: vec![replica(6, 3)],
            ..SetRecord::default()
        };
        Snapshot {
            rack: Uuid::from_u128(1),
            next_volume: 2,
            gateways: vec![GatewayRecord {
                addr: "10.0.0.9:8888".into(),
                nvme: Some("10.0.0.9:4420".into()),
                nbd: None,
                control: "10.0.0.9:10800".into(),
                software: None,
            }],
            lead: Some(LeadRecord {
                to: String::new(),
                gateway: "10.0.0.9:8888".into(),
                session: 8,
            }),
            volumes: vec![VolumeRecord {
                id: 2,
                identity,
                name: "db".into(),
                size_bytes: 1 << 21,
                durability: Durability::Media,
                read_only: false,
                ready: true,
                lead: None,
                sets: vec![set],
            }],
            boots: [(1, 100)].into(),
            leftovers: vec![LeftRecord {
                vssd: 9,
                node: 2,
                set: Uuid::nil(),
            }],
            removed: vec![4],
            deleting: vec![1],
            ..sample()
        }
    }

    #[test]
    fn registries_of_earlier_programs_are_read_and_written() {
        let before = include_str!("golden/registry-1.json");
        let with_identities = include_str!("golden/registry-1-identities.json");
        for (identity, golden) in [(Uuid::nil(), before), (Uuid::from_u128(2), with_identities)] {
            assert_eq!(String::from_utf8(emit(&full(identity))).unwrap(), golden);
            assert_eq!(parse(golden.as_bytes()).unwrap(), full(identity));
        }
    }

    #[test]
    fn registries_of_several_leads_are_read_and_written() {
        let golden = include_str!("golden/registry-1-leads.json");
        let mut led = full(Uuid::from_u128(2));
        let mut lead = LeadRecord {
            session: 12,
            ..LeadRecord::default()
        };
        lead.give_back(Some(base::Addr::new([10, 0, 0, 9], 8888)));
        led.volumes[0].lead = Some(lead);
        led.last_session = 12;
        led.gathering = Some(rack::registry::GatheringRecord {
            gateway: "10.0.0.9:8888".into(),
            volumes: vec![2, 1],
        });
        assert_eq!(String::from_utf8(emit(&led)).unwrap(), golden);
        assert_eq!(parse(golden.as_bytes()).unwrap(), led);
    }

    #[test]
    fn registries_of_a_rack_with_a_level_are_read_and_written() {
        let golden = include_str!("golden/registry-2.json");
        let mut levelled = full(Uuid::from_u128(2));
        levelled.level = 2;
        levelled.gateways[0].software = Some(Software {
            version: "0.1.0".into(),
            levels: Levels { min: 1, max: 2 },
        });
        assert_eq!(String::from_utf8(emit(&levelled)).unwrap(), golden);
        assert_eq!(parse(golden.as_bytes()).unwrap(), levelled);
    }

    /// A program that knows no levels ends with its words for another version of the format.
    #[test]
    fn a_raised_level_keeps_programs_out_that_know_none() {
        let first_words = |level| {
            let bytes = emit(&Snapshot { level, ..sample() });
            String::from_utf8(bytes[..21].to_vec()).unwrap()
        };
        assert_eq!([0, 1].map(first_words), ["switchyard-registry 1"; 2]);
        assert_eq!(first_words(2), "switchyard-registry 2");
    }

    #[test]
    fn a_level_that_is_newer_than_the_program_is_refused_whatever_the_records_look_like() {
        let mut body = br#"{ "level": 9, "volumes": "of another shape" }"#.to_vec();
        body.push(b'\n');
        let crc = crc32c::crc32c(&body);
        let mut bytes = format!("switchyard-registry 2 crc32c={crc:08x}\n").into_bytes();
        bytes.extend(body);
        let error = parse(&bytes).unwrap_err().to_string();
        for part in ["level 9", env!("CARGO_PKG_VERSION"), "newer version"] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn records_survive_the_file_and_every_flipped_bit_is_refused() {
        let bytes = emit(&sample());
        assert_eq!(parse(&bytes).unwrap(), sample());
        assert_eq!(parse(&emit_compact(&sample())).unwrap(), sample());
        for place in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[place] ^= 1 << bit;
                // A letter case of the checksum's own hexadecimal digits may change: the same number.
                if let Ok(read) = parse(&damaged) {
                    assert_eq!(read, sample(), "byte {place} bit {bit}");
                }
            }
        }
        assert!(parse(&bytes[..bytes.len() - 1]).is_err(), "a cut file is refused");
        assert!(parse(b"").is_err() && parse(b"{}\n").is_err());
        assert!(matches!(
            parse(b"switchyard-registry 3 crc32c=0\n"),
            Err(FileError::Version(_))
        ));
    }
}

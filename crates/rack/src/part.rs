//! Which part of which volume a vSSD has a copy of. A gateway tells it with each opening, and the node's superblock keeps it: so
//! a node notices a stranger's copy, and a registry that was lost can be made again ([`crate::rebuild`]).

use crate::registry::{Durability, NAME_BYTES_MAX, SetRecord, VolumeRecord};
use base::{Version, VssdId};
use uuid::Uuid;
use wire::rack::Code;

/// A copy's part of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The volume's random identity.
    pub volume: Uuid,
    /// The set's random identity.
    pub set: Uuid,
    /// The volume's number.
    pub number: u32,
    /// The volume's name.
    pub name: String,
    /// The volume's size when this was told.
    pub size_bytes: u64,
    /// When writes are acknowledged.
    pub durability: Durability,
    /// Writes are refused.
    pub read_only: bool,
    /// Place of the set in the volume.
    pub index: u16,
    /// Place among the replicas, of which the first is the primary; `None` for a vSSD that joins or leaves.
    pub place: Option<u8>,
    /// Replicas that there should be.
    pub copies: u8,
}

const UUID_BYTES: usize = 16;
/// Bytes without the name.
const FIXED_BYTES: usize = 2 * UUID_BYTES + 18;
/// Of a vSSD that is no replica.
const NO_PLACE: u8 = u8::MAX;
const MEDIA: u8 = 1;
const READ_ONLY: u8 = 2;

/// Names a set in the packets to its vSSDs, 0 for one without an identity: the upper half of the version field is this, plus the generation
/// that every replica knows.
pub fn mark_of(set: Uuid) -> u32 {
    let (high, low) = set.as_u64_pair();
    let half = high ^ low;
    match set.is_nil() {
        true => 0,
        false => ((half >> 32) as u32 ^ half as u32).max(1),
    }
}

/// Names a set of which every replica knows this generation; 0 for a set without an identity.
pub fn mark_since(set: Uuid, settled: u32) -> u32 {
    match mark_of(set) {
        0 => 0,
        mark => mark.wrapping_add(settled),
    }
}

/// A version field with a mark in its upper half: no page's version is meant.
pub fn marked(mark: u32, low: u32) -> Version {
    Version(u64::from(mark) << 32 | u64::from(low))
}

/// Marks that differ by less are taken for those of one set.
const GENERATIONS_MAX: u32 = 1 << 20;

/// Why a vSSD with this mark, which knows this generation, is not the one that a version field names. A field of earlier
/// versions names none. The vSSD is on a medium from elsewhere, or on an image of the past: what it has is not what is asked for.
pub fn refusal(version: Version, mark: u32, generation: u32) -> Option<Code> {
    let named = (version.0 >> 32) as u32;
    let settled = named.wrapping_sub(mark);
    match settled {
        _ if named == 0 || mark == 0 || settled <= generation => None,
        1..GENERATIONS_MAX => Some(Code::Past),
        _ => Some(Code::OtherSet),
    }
}

impl Part {
    /// Of a vSSD of this set of a volume; `None` if these have no identities yet.
    pub fn of(volume: &VolumeRecord, index: usize, set: &SetRecord, vssd: VssdId) -> Option<Self> {
        if volume.identity.is_nil() || set.identity.is_nil() {
            return None;
        }
        let place = set.replicas.iter().position(|replica| replica.vssd == vssd.0);
        Some(Self {
            volume: volume.identity,
            set: set.identity,
            number: volume.id,
            name: volume.name.clone(),
            size_bytes: volume.size_bytes,
            durability: volume.durability,
            read_only: volume.read_only,
            index: u16::try_from(index).ok()?,
            place: place.map(|place| place as u8),
            copies: set.wanted() as u8,
        })
    }

    /// True if both are of one set.
    pub fn is_of_same_set(&self, other: &Self) -> bool {
        (self.volume, self.set) == (other.volume, other.set)
    }

    /// Its bytes, at most 178.
    pub fn emit(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(FIXED_BYTES + self.name.len());
        bytes.extend_from_slice(self.volume.as_bytes());
        bytes.extend_from_slice(self.set.as_bytes());
        bytes.extend_from_slice(&self.number.to_be_bytes());
        bytes.extend_from_slice(&self.size_bytes.to_be_bytes());
        bytes.extend_from_slice(&self.index.to_be_bytes());
        let media = if self.durability == Durability::Media {
            MEDIA
        } else {
            0
        };
        let read_only = if self.read_only { READ_ONLY } else { 0 };
        bytes.extend([self.place.unwrap_or(NO_PLACE), self.copies, media | read_only]);
        bytes.push(self.name.len() as u8);
        bytes.extend_from_slice(self.name.as_bytes());
        bytes
    }

    /// Reads what [`emit`](Part::emit) wrote, and what follows; `None` if it is malformed.
    pub fn take(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (volume, rest) = bytes.split_first_chunk::<UUID_BYTES>()?;
        let (set, rest) = rest.split_first_chunk::<UUID_BYTES>()?;
        let (number, rest) = rest.split_first_chunk()?;
        let (size_bytes, rest) = rest.split_first_chunk()?;
        let (index, rest) = rest.split_first_chunk()?;
        let ([place, copies, flags, length], rest) = rest.split_first_chunk()?;
        let (name, rest) = rest.split_at_checked(usize::from(*length))?;
        let is_known = flags & !(MEDIA | READ_ONLY) == 0 && name.len() <= NAME_BYTES_MAX;
        is_known.then_some((
            Self {
                volume: Uuid::from_bytes(*volume),
                set: Uuid::from_bytes(*set),
                number: u32::from_be_bytes(*number),
                name: str::from_utf8(name).ok()?.to_owned(),
                size_bytes: u64::from_be_bytes(*size_bytes),
                durability: match flags & MEDIA {
                    0 => Durability::Memory,
                    _ => Durability::Media,
                },
                read_only: flags & READ_ONLY != 0,
                index: u16::from_be_bytes(*index),
                place: (*place != NO_PLACE).then_some(*place),
                copies: *copies,
            },
            rest,
        ))
    }
}

//! The members of a replica set.

use base::limits::REPLICAS_MAX;
use base::{Addr, NodeId, VssdId};

/// Another replica of the same data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its vSSD.
    pub vssd: VssdId,
    /// Its node.
    pub node: NodeId,
    /// Its node's address.
    pub addr: Addr,
}

/// The other members, beside the replica itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// Grows with each change of the members.
    pub generation: u32,
    /// The others, at most [`PEERS_MAX`].
    pub peers: Vec<Member>,
}

/// Other members of a replica set: one more than its other replicas while one of these is being replaced.
pub const PEERS_MAX: usize = REPLICAS_MAX;

/// A start of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incarnation {
    /// Its vSSD.
    pub vssd: VssdId,
    /// Its node.
    pub node: NodeId,
    /// The number of its node's start.
    pub boot: u32,
}

/// The epoch in which members of a generation are in these starts. No epoch is 0.
pub(crate) fn epoch_of(generation: u32, mut boots: Vec<(VssdId, u32)>) -> u32 {
    boots.sort_unstable();
    let seed = 0x5357_5944 ^ u64::from(generation) << 32;
    let epoch = boots.iter().fold(seed, |hash, (vssd, boot)| {
        (hash ^ u64::from(vssd.0) << 32 ^ u64::from(*boot))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29)
    });
    ((epoch >> 32) as u32).max(1)
}

/// Bytes of a member in a record.
pub(crate) const MEMBER_BYTES: usize = 11;
/// Bytes of a generation in a record.
pub(crate) const GENERATION_BYTES: usize = 4;

impl Membership {
    /// As the `open` record carries it and a node's superblock keeps it: the peers, and before them the generation, if
    /// there was a change since the set was made.
    pub fn emit(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(GENERATION_BYTES + self.peers.len() * MEMBER_BYTES);
        if self.generation > 0 {
            bytes.extend_from_slice(&self.generation.to_be_bytes());
        }
        for member in &self.peers {
            bytes.extend_from_slice(&member.vssd.0.to_be_bytes());
            bytes.push(member.node.0);
            bytes.extend_from_slice(&member.addr.ip.to_be_bytes());
            bytes.extend_from_slice(&member.addr.port.to_be_bytes());
        }
        bytes
    }

    /// Reads what [`emit`](Membership::emit) wrote, `None` if it is malformed.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (generation, members) = match bytes.len() % MEMBER_BYTES {
            0 => (0, bytes),
            GENERATION_BYTES => {
                let (generation, rest) = bytes.split_first_chunk()?;
                (u32::from_be_bytes(*generation), rest)
            }
            _ => return None,
        };
        let chunks = members.chunks_exact(MEMBER_BYTES);
        if chunks.len() > PEERS_MAX {
            return None;
        }
        let member = |chunk: &[u8]| Member {
            vssd: VssdId(u32::from_be_bytes([chunk[0], chunk[1], chunk[2], chunk[3]])),
            node: NodeId(chunk[4]),
            addr: Addr::new(
                [chunk[5], chunk[6], chunk[7], chunk[8]],
                u16::from_be_bytes([chunk[9], chunk[10]]),
            ),
        };
        Some(Self {
            generation,
            peers: chunks.map(member).collect(),
        })
    }
}

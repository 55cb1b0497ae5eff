//! Control records between gateway and node. Layouts: `docs/format/rack-packet.md`.

use crate::replica::Member;
use base::{Addr, NodeId, VssdId, limits::REPLICAS_MAX};
use serde::{Deserialize, Serialize};

/// What an `open` packet carries: make sure that the vSSD exists, with these peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// Create it if it does not exist; else a missing vSSD is an error, as its data is gone.
    pub create: bool,
    /// Pages that it exposes.
    pub pages: u32,
    /// Channels that it takes.
    pub channels: u32,
    /// Rows of units that it takes of a channel group of so many channels, 0 for channels of its own; below 2¹⁶.
    pub rows: u32,
    /// The other replicas.
    pub peers: Vec<Member>,
}

const MEMBER_BYTES: usize = 11;
/// Where the rows are in the number of channels: a node that knows nothing of them has too few channels.
const ROWS_SHIFT: u32 = 16;

impl Open {
    /// The record's bytes.
    pub fn emit(&self) -> Vec<u8> {
        let mut bytes = vec![u8::from(self.create)];
        bytes.extend_from_slice(&self.pages.to_be_bytes());
        let channels = self.rows << ROWS_SHIFT | self.channels;
        bytes.extend_from_slice(&channels.to_be_bytes());
        bytes.extend_from_slice(&emit_members(&self.peers));
        bytes
    }

    /// Reads a record, `None` if it is malformed.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (create, rest) = bytes.split_first()?;
        let (pages, rest) = rest.split_first_chunk()?;
        let (channels, rest) = rest.split_first_chunk()?;
        let peers = parse_members(rest)?;
        let create = match create {
            0 => false,
            1 => true,
            _ => return None,
        };
        Some(Self {
            create,
            pages: u32::from_be_bytes(*pages),
            channels: u32::from_be_bytes(*channels) & ((1 << ROWS_SHIFT) - 1),
            rows: u32::from_be_bytes(*channels) >> ROWS_SHIFT,
            peers,
        })
    }
}

/// A vSSD's peers as the node's superblock keeps them.
pub fn emit_members(members: &[Member]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(members.len() * MEMBER_BYTES);
    for member in members {
        bytes.extend_from_slice(&member.vssd.0.to_be_bytes());
        bytes.push(member.node.0);
        bytes.extend_from_slice(&member.addr.ip.to_be_bytes());
        bytes.extend_from_slice(&member.addr.port.to_be_bytes());
    }
    bytes
}

/// Reads what [`emit_members`] wrote, `None` if it is malformed.
pub fn parse_members(bytes: &[u8]) -> Option<Vec<Member>> {
    let chunks = bytes.chunks_exact(MEMBER_BYTES);
    if !chunks.remainder().is_empty() || chunks.len() >= REPLICAS_MAX {
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
    Some(chunks.map(member).collect())
}

/// A node's answer to a `status` packet, as JSON: it is for people and the placement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// The node's number.
    pub node: u8,
    /// Starts of the node.
    pub boot: u32,
    /// Channels of its SSD.
    pub channels: u32,
    /// Channels that no vSSD has.
    pub free_channels: u32,
    /// Pages that a vSSD may expose for each of its channels.
    pub pages_per_channel: u32,
    /// Neighbouring rows of units that are free where software-isolated vSSDs share all channels.
    #[serde(default)]
    pub free_rows: u32,
    /// Pages that such a vSSD may expose for each of its rows.
    #[serde(default)]
    pub pages_per_row: u32,
    /// vSSDs here.
    pub vssds: u32,
    /// Of these, how many serve clients.
    pub serving: u32,
    /// Of these, how many collect garbage now.
    pub collecting: u32,
    /// Of these, how many refuse writes after a media failure.
    pub latched: u32,
    /// Reads answered.
    pub reads: u64,
    /// Writes answered as coordinator.
    pub writes: u64,
    /// Pages in the write caches.
    pub dirty_pages: u64,
    /// Pages programmed, by clients' writes and by collection.
    pub programs: u64,
    /// Pages programmed for clients' writes alone.
    pub user_programs: u64,
    /// Blocks erased.
    pub erases: u64,
    /// Pages found damaged.
    pub damaged_pages: u64,
    /// The lowest share of free blocks of any vSSD here.
    pub free_ratio_min: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_survive_the_wire_and_junk_is_refused() {
        let peer = Member {
            vssd: VssdId(7),
            node: NodeId(2),
            addr: Addr::new([10, 0, 0, 2], 8888),
        };
        for peers in [vec![], vec![peer], vec![peer, peer]] {
            let open = Open {
                create: true,
                pages: 77,
                channels: 3,
                rows: 5,
                peers,
            };
            assert_eq!(Open::parse(&open.emit()), Some(open));
        }
        assert_eq!(Open::parse(&[]), None);
        assert_eq!(Open::parse(&[2, 0, 0, 0, 1, 0, 0, 0, 1]), None);
        assert_eq!(parse_members(&[0; 10]), None);
        assert_eq!(parse_members(&[0; 33]), None, "more peers than a set has");
    }
}

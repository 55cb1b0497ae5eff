//! A node tells in records which vSSDs its medium has, in the order of their numbers. A registry that was lost is made again from
//! these records ([`crate::rebuild`]). The layout is in `docs/format/rack-packet.md`.

use base::{NodeId, VssdId};

/// A record has at most so many bytes, so that it goes in one datagram on any path that is common.
pub const RECORD_BYTES_MAX: usize = 1200;

/// One vSSD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its number.
    pub vssd: VssdId,
    /// Pages that it exposes.
    pub pages: u32,
    /// Channels that it has, or shares.
    pub channels: u16,
    /// Rows of units that it has of shared channels, else 0.
    pub rows: u16,
    /// It cannot be read, and is not served.
    pub is_unreadable: bool,
    /// The superblock's facts about it ([`crate::control::Config`]).
    pub config: Vec<u8>,
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inventory {
    /// The node.
    pub node: NodeId,
    /// The number of its start.
    pub boot: u32,
    /// More vSSDs follow from this number on; 0 for none.
    pub next: u32,
    /// The vSSDs.
    pub vssds: Vec<Listed>,
}

/// Bytes of a vSSD beside its config.
const LISTED_BYTES: usize = 15;

impl Inventory {
    /// The record that begins with `vssds`, as far as it has room.
    pub fn fitting(node: NodeId, boot: u32, vssds: impl IntoIterator<Item = Listed>) -> Self {
        let mut inventory = Self {
            node,
            boot,
            next: 0,
            vssds: Vec::new(),
        };
        let mut bytes = inventory.emit().len();
        for listed in vssds {
            bytes += LISTED_BYTES + listed.config.len();
            if bytes > RECORD_BYTES_MAX && !inventory.vssds.is_empty() {
                inventory.next = listed.vssd.0;
                break;
            }
            inventory.vssds.push(listed);
        }
        inventory
    }

    /// Its bytes.
    pub fn emit(&self) -> Vec<u8> {
        let mut bytes = vec![self.node.0];
        bytes.extend_from_slice(&self.boot.to_be_bytes());
        bytes.extend_from_slice(&self.next.to_be_bytes());
        for listed in &self.vssds {
            bytes.extend_from_slice(&listed.vssd.0.to_be_bytes());
            bytes.extend_from_slice(&listed.pages.to_be_bytes());
            bytes.extend_from_slice(&listed.channels.to_be_bytes());
            bytes.extend_from_slice(&listed.rows.to_be_bytes());
            bytes.push(u8::from(listed.is_unreadable));
            bytes.extend_from_slice(&(listed.config.len() as u16).to_be_bytes());
            bytes.extend_from_slice(&listed.config);
        }
        bytes
    }

    /// Reads what [`emit`](Inventory::emit) wrote, `None` if it is malformed.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let ([node], rest) = bytes.split_first_chunk()?;
        let (boot, rest) = rest.split_first_chunk()?;
        let (next, mut rest) = rest.split_first_chunk()?;
        let mut vssds = Vec::new();
        while !rest.is_empty() {
            let (vssd, tail) = rest.split_first_chunk()?;
            let (pages, tail) = tail.split_first_chunk()?;
            let (channels, tail) = tail.split_first_chunk()?;
            let (rows, tail) = tail.split_first_chunk()?;
            let ([flag], tail) = tail.split_first_chunk()?;
            let (length, tail) = tail.split_first_chunk()?;
            let (config, tail) = tail.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
            if *flag > 1 {
                return None;
            }
            rest = tail;
            vssds.push(Listed {
                vssd: VssdId(u32::from_be_bytes(*vssd)),
                pages: u32::from_be_bytes(*pages),
                channels: u16::from_be_bytes(*channels),
                rows: u16::from_be_bytes(*rows),
                is_unreadable: *flag == 1,
                config: config.to_vec(),
            });
        }
        Some(Self {
            node: NodeId(*node),
            boot: u32::from_be_bytes(*boot),
            next: u32::from_be_bytes(*next),
            vssds,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_have_what_fits_and_say_where_the_next_begins() {
        let listed = |vssd: u32| Listed {
            vssd: VssdId(vssd),
            pages: 77,
            channels: 64,
            rows: 1024,
            is_unreadable: vssd == 2,
            config: vec![vssd as u8; 256],
        };
        let inventory = Inventory::fitting(NodeId(3), 9, (1..8).map(listed));
        assert_eq!((inventory.vssds.len(), inventory.next), (4, 5));
        let bytes = inventory.emit();
        assert!(bytes.len() <= RECORD_BYTES_MAX);
        assert_eq!(Inventory::parse(&bytes), Some(inventory));
        for cut in 0..bytes.len() {
            let parsed = Inventory::parse(&bytes[..cut]);
            assert!(parsed.is_none_or(|parsed| parsed.vssds.len() < 4), "{cut}");
        }
        let last = Inventory::fitting(NodeId(3), 9, (5..8).map(listed));
        assert_eq!((last.vssds.len(), last.next), (3, 0));
        assert_eq!(Inventory::parse(&[]), None);
    }
}

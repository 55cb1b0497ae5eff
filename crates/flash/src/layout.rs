//! Where everything lies on the medium, in bytes, for any page size. The picture is in `docs/format/flash.md`.
//!
//! Areas in order: two superblock slots, checkpoints, out-of-band entries, data. The three later areas are ordered by
//! channel, so that a vSSD's share is where its channels are.

use crate::geometry::{Geometry, Isolation};
use core::ops::Range;

/// Bytes of a superblock slot at the front of the medium, whatever the page size.
pub(crate) const SUPER_BYTES: usize = 20_480;
/// Bytes of one out-of-band entry.
pub(crate) const ENTRY_BYTES: usize = 64;
/// Bytes at the front of each checkpoint page.
pub(crate) const PIECE_HEADER_BYTES: usize = 32;
/// Bytes of a logical page in a checkpoint: version, physical page, checksum.
pub(crate) const MAPPED_BYTES: usize = 16;
/// Bytes of a block in a checkpoint: erase count, fill.
pub(crate) const BLOCK_BYTES: usize = 8;

/// Reads a little-endian number at a fixed offset.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// Reads a little-endian number at a fixed offset.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Writes a little-endian number at a fixed offset.
pub(crate) fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// Writes a little-endian number at a fixed offset.
pub(crate) fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

impl Geometry {
    /// [`Geometry::logical_pages_max`] of a software-isolated vSSD that has `rows` rows of a channel group of `channels`
    /// channels. The room for its checkpoints counts, too.
    pub fn logical_pages_max_shared(&self, channels: u32, rows: u32, page_bytes: usize) -> u32 {
        Layout::new(self, page_bytes).logical_pages_max(channels, rows)
    }
}

/// The areas of a whole SSD.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) geometry: Geometry,
    pub(crate) page_bytes: usize,
    /// Pages of one channel's share of one checkpoint slot.
    pub(crate) share_pages: u32,
    /// Out-of-band pages of one block; the last may be partly unused, so that none belongs to two blocks.
    pub(crate) oob_pages_per_block: u32,
}

impl Layout {
    pub(crate) fn new(geometry: &Geometry, page_bytes: usize) -> Self {
        assert!(page_bytes.is_power_of_two() && (128..=4096).contains(&page_bytes));
        let room = page_bytes - PIECE_HEADER_BYTES;
        let map_pages = geometry
            .pages_per_channel()
            .div_ceil((room / MAPPED_BYTES) as u32);
        let block_pages = geometry
            .blocks_per_channel()
            .div_ceil((room / BLOCK_BYTES) as u32);
        let per_page = (page_bytes / ENTRY_BYTES) as u32;
        Self {
            geometry: *geometry,
            page_bytes,
            share_pages: 1 + map_pages + block_pages,
            oob_pages_per_block: geometry.pages_per_block.div_ceil(per_page),
        }
    }

    pub(crate) fn super_offset(slot: u32) -> u64 {
        u64::from(slot) * SUPER_BYTES as u64
    }

    fn checkpoint_start(&self) -> u64 {
        2 * SUPER_BYTES as u64
    }

    /// First byte of the out-of-band area.
    pub(crate) fn oob_start(&self) -> u64 {
        let pages = 2 * u64::from(self.geometry.channels) * u64::from(self.share_pages);
        self.checkpoint_start() + pages * self.page_bytes as u64
    }

    fn blocks(&self) -> u64 {
        u64::from(self.geometry.channels) * u64::from(self.geometry.blocks_per_channel())
    }

    /// First byte of the data area.
    pub(crate) fn data_start(&self) -> u64 {
        self.oob_start() + self.blocks() * u64::from(self.oob_pages_per_block) * self.page_bytes as u64
    }

    /// Which pages of a checkpoint slot of `channels` channels belong to these rows: in proportion.
    fn checkpoint_pages(&self, channels: u32, rows: &Range<u32>) -> Range<u32> {
        let (pages, all) = (
            u64::from(channels * self.share_pages),
            self.geometry.units_per_channel(),
        );
        let at = |row: u32| (pages * u64::from(row) / u64::from(all)) as u32;
        at(rows.start)..at(rows.end)
    }

    /// The most logical pages of a vSSD of so many rows on `channels` channels: what collection can serve, and what a
    /// checkpoint has room for.
    pub(crate) fn logical_pages_max(&self, channels: u32, rows: u32) -> u32 {
        let served = self.geometry.logical_pages_max_of_units(channels * rows);
        let room = self.page_bytes - PIECE_HEADER_BYTES;
        let blocks = channels * self.geometry.blocks_per_channel();
        let table = blocks.div_ceil((room / BLOCK_BYTES) as u32);
        let pages = self.checkpoint_pages(channels, &(0..rows));
        let map = (pages.end - pages.start).saturating_sub(1 + table);
        served.min(map.saturating_mul((room / MAPPED_BYTES) as u32))
    }

    /// Bytes of the whole SSD.
    pub(crate) fn total_bytes(&self) -> u64 {
        self.data_start() + u64::from(self.geometry.pages()) * self.page_bytes as u64
    }
}

/// The parts of the areas that one vSSD owns.
///
/// Its blocks are numbered unit by unit, and its units so that neighbours are on different channels, then on
/// different chips: striping over units in order uses every channel first. A software-isolated vSSD numbers the blocks of
/// its whole group so, and owns some of them.
#[derive(Clone, Debug)]
pub(crate) struct Share {
    layout: Layout,
    channels: Vec<u32>,
    rows: Range<u32>,
    /// Its pages of a checkpoint slot.
    checkpoint: Range<u32>,
    global_block: Box<[u32]>,
}

impl Share {
    pub(crate) fn new(geometry: &Geometry, page_bytes: usize, channels: u64, isolation: Isolation) -> Self {
        let layout = Layout::new(geometry, page_bytes);
        let channels: Vec<u32> = (0..geometry.channels)
            .filter(|c| channels >> c & 1 == 1)
            .collect();
        assert!(!channels.is_empty(), "a vSSD has a channel");
        let units = channels.len() as u32 * geometry.units_per_channel();
        let mut global_block = Vec::with_capacity((units * geometry.blocks_per_plane) as usize);
        for unit in 0..units {
            let channel = channels[unit as usize % channels.len()];
            // Chips vary faster than planes: plane p of every chip comes before plane p + 1 of any.
            let within = unit / channels.len() as u32;
            let (plane, chip) = (
                within / geometry.chips_per_channel,
                within % geometry.chips_per_channel,
            );
            let plane_index =
                (channel * geometry.chips_per_channel + chip) * geometry.planes_per_chip + plane;
            global_block
                .extend((0..geometry.blocks_per_plane).map(|b| plane_index * geometry.blocks_per_plane + b));
        }
        let rows = isolation.rows(geometry.units_per_channel());
        assert!(
            rows.start < rows.end && rows.end <= geometry.units_per_channel(),
            "a vSSD has rows of its channels"
        );
        Self {
            checkpoint: layout.checkpoint_pages(channels.len() as u32, &rows),
            layout,
            rows,
            channels,
            global_block: global_block.into(),
        }
    }

    pub(crate) fn page_bytes(&self) -> usize {
        self.layout.page_bytes
    }

    pub(crate) fn channels(&self) -> u32 {
        self.channels.len() as u32
    }

    /// The rows of units that are this vSSD's own.
    pub(crate) fn rows(&self) -> Range<u32> {
        self.rows.clone()
    }

    /// Units of all its channels.
    pub(crate) fn units(&self) -> u32 {
        self.channels() * self.layout.geometry.units_per_channel()
    }

    pub(crate) fn blocks(&self) -> u32 {
        self.global_block.len() as u32
    }

    pub(crate) fn pages_per_block(&self) -> u32 {
        self.layout.geometry.pages_per_block
    }

    pub(crate) fn blocks_per_unit(&self) -> u32 {
        self.layout.geometry.blocks_per_plane
    }

    pub(crate) fn entries_per_page(&self) -> u32 {
        (self.layout.page_bytes / ENTRY_BYTES) as u32
    }

    pub(crate) fn oob_pages_per_block(&self) -> u32 {
        self.layout.oob_pages_per_block
    }

    /// True when an out-of-band entry is larger than a sector, so that a cut write may tear one entry.
    pub(crate) fn entries_tear(&self) -> bool {
        self.layout.page_bytes / base::limits::SECTORS_PER_PAGE < ENTRY_BYTES
    }

    /// The SSD-wide number of one of this vSSD's pages.
    pub(crate) fn global_page(&self, ppn: u32) -> u32 {
        let per_block = self.pages_per_block();
        self.global_block[(ppn / per_block) as usize] * per_block + ppn % per_block
    }

    pub(crate) fn data_offset(&self, ppn: u32) -> u64 {
        self.layout.data_start() + u64::from(self.global_page(ppn)) * self.layout.page_bytes as u64
    }

    pub(crate) fn oob_offset(&self, block: u32, index: u32) -> u64 {
        let page = u64::from(self.global_block[block as usize]) * u64::from(self.layout.oob_pages_per_block);
        self.layout.oob_start() + (page + u64::from(index)) * self.layout.page_bytes as u64
    }

    /// How many blocks from `block` on, at most `count_max`, have their out-of-band pages one behind the other.
    pub(crate) fn oob_run(&self, block: u32, count_max: u32) -> u32 {
        let next = |pair: &&[u32]| pair[1] == pair[0] + 1;
        let pairs = self.global_block[block as usize..].windows(2);
        1 + pairs.take(count_max as usize - 1).take_while(next).count() as u32
    }

    pub(crate) fn entry_offset(&self, ppn: u32) -> u64 {
        let (block, page) = (ppn / self.pages_per_block(), ppn % self.pages_per_block());
        let per_page = self.entries_per_page();
        self.oob_offset(block, page / per_page) + u64::from(page % per_page) * ENTRY_BYTES as u64
    }

    /// Where page `piece` of checkpoint slot `slot` lies.
    pub(crate) fn piece_offset(&self, slot: u32, piece: u32) -> u64 {
        let share = self.layout.share_pages;
        let piece = self.checkpoint.start + piece;
        let channel = self.channels[(piece / share) as usize];
        let page = u64::from(channel * 2 + slot) * u64::from(share) + u64::from(piece % share);
        self.layout.checkpoint_start() + page * self.layout.page_bytes as u64
    }

    /// Logical pages in one checkpoint page.
    pub(crate) fn mapped_per_piece(&self) -> u32 {
        ((self.layout.page_bytes - PIECE_HEADER_BYTES) / MAPPED_BYTES) as u32
    }

    /// Blocks in one checkpoint page.
    pub(crate) fn blocks_per_piece(&self) -> u32 {
        ((self.layout.page_bytes - PIECE_HEADER_BYTES) / BLOCK_BYTES) as u32
    }

    /// Pages of a checkpoint: (of the map, of the block table); the header comes before them.
    pub(crate) fn pieces(&self, logical_pages: u32) -> (u32, u32) {
        let map = logical_pages.div_ceil(self.mapped_per_piece());
        let blocks = self.blocks().div_ceil(self.blocks_per_piece());
        assert!(
            1 + map + blocks <= self.checkpoint.end - self.checkpoint.start,
            "a checkpoint fits its area"
        );
        (map, blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_pages_of_two_vssds_overlap_and_all_fit() {
        for page_bytes in [128, 512, 4096] {
            let geometry = Geometry {
                channels: 4,
                chips_per_channel: 2,
                planes_per_chip: 2,
                blocks_per_plane: 3,
                pages_per_block: 5,
            };
            let layout = Layout::new(&geometry, page_bytes);
            let mut seen = std::collections::BTreeSet::new();
            for channels in [0b0101, 0b0010, 0b1000] {
                let share = Share::new(&geometry, page_bytes, channels, Isolation::Hardware);
                for piece in 0..layout.share_pages * share.channels() {
                    assert!(seen.insert(share.piece_offset(0, piece)));
                    assert!(seen.insert(share.piece_offset(1, piece)));
                }
                for block in 0..share.blocks() {
                    for index in 0..share.oob_pages_per_block() {
                        assert!(seen.insert(share.oob_offset(block, index)));
                    }
                    for page in 0..5 {
                        assert!(seen.insert(share.data_offset(block * 5 + page)));
                    }
                }
            }
            let last = seen.last().expect("not empty") + page_bytes as u64;
            assert_eq!(last, layout.total_bytes());
            let held = (layout.total_bytes() - 2 * SUPER_BYTES as u64) / page_bytes as u64;
            assert_eq!(held, seen.len() as u64, "no page is unused");
        }
    }

    #[test]
    fn checkpoints_of_a_group_share_its_pages_without_overlap() {
        let geometry = Geometry {
            channels: 2,
            chips_per_channel: 3,
            planes_per_chip: 1,
            blocks_per_plane: 9,
            pages_per_block: 7,
        };
        let layout = Layout::new(&geometry, 128);
        let mut seen = std::collections::BTreeSet::new();
        for (first, count) in [(0, 1), (1, 2)] {
            let isolation = Isolation::Software { first, count };
            let share = Share::new(&geometry, 128, 0b11, isolation);
            let logical = layout.logical_pages_max(2, count);
            assert!(logical > 0);
            let (map, blocks) = share.pieces(logical);
            for piece in 0..1 + map + blocks {
                assert!(seen.insert(share.piece_offset(0, piece)));
                assert!(seen.insert(share.piece_offset(1, piece)));
            }
        }
        assert!(seen.iter().all(|&at| at < layout.oob_start()));
    }
}

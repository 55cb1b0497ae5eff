//! The shape of an SSD: channels, chips, planes, blocks, pages.
//!
//! A *unit* is one plane of one chip of one channel: what can program or erase independently. A vSSD owns whole
//! channels (hardware isolation, RackBlox §3.2), hence all units of them, or rows of units of a *channel group* that it
//! shares with others (software isolation). A *row* is one unit of each channel: the same plane of the same chip.

use base::limits::CHANNELS_MAX;
use thiserror::Error;

/// Blocks that users never take: garbage collection can always finish one victim with them, even when a crash cut
/// the collection before and left its destination partly written.
pub(crate) const RESERVE_BLOCKS: u32 = 3;
/// Blocks' worth of live trim records before checkpoints must retire some.
pub(crate) const RECORD_BLOCKS: u32 = 2;

/// The shape of an SSD. Page size is not part of it: it is the pool's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Independent buses; at most [`CHANNELS_MAX`].
    pub channels: u32,
    /// Flash chips (LUNs) behind one channel.
    pub chips_per_channel: u32,
    /// Planes of a chip.
    pub planes_per_chip: u32,
    /// Erase blocks of a plane.
    pub blocks_per_plane: u32,
    /// Pages of an erase block.
    pub pages_per_block: u32,
}

/// Which units of its channels a vSSD owns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// All: nobody else is on its channels.
    #[default]
    Hardware,
    /// `count` rows from row `first` on. Others own the remaining rows, share the channels, and lend blocks.
    Software {
        /// The first row.
        first: u32,
        /// Rows; not 0.
        count: u32,
    },
}

impl Isolation {
    /// The rows among the `rows` that there are.
    pub(crate) fn rows(self, rows: u32) -> core::ops::Range<u32> {
        match self {
            Self::Hardware => 0..rows,
            Self::Software { first, count } => first..first + count,
        }
    }
}

/// Why a geometry cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum GeometryError {
    /// A dimension is zero.
    #[error("a dimension of the geometry is zero")]
    Zero,
    /// More channels than a channel set holds.
    #[error("more channels than {CHANNELS_MAX}")]
    Channels,
    /// More physical pages than a 32-bit page number names, or blocks of more than 65,535 pages.
    #[error("more pages than can be numbered")]
    Pages,
}

impl Geometry {
    /// Checks the limits.
    pub fn validate(&self) -> Result<(), GeometryError> {
        let dimensions = [
            self.channels,
            self.chips_per_channel,
            self.planes_per_chip,
            self.blocks_per_plane,
            self.pages_per_block,
        ];
        if dimensions.contains(&0) {
            return Err(GeometryError::Zero);
        }
        if self.channels as usize > CHANNELS_MAX {
            return Err(GeometryError::Channels);
        }
        let pages = dimensions
            .iter()
            .try_fold(1u64, |product, &d| product.checked_mul(u64::from(d)));
        // The two top bits of a page number mark special owners.
        if pages.is_none_or(|pages| pages >= 1 << 30) || self.pages_per_block > 65_535 {
            return Err(GeometryError::Pages);
        }
        Ok(())
    }

    /// All channels, one bit each.
    pub(crate) fn channel_bits(&self) -> u64 {
        u64::MAX >> (CHANNELS_MAX as u32 - self.channels)
    }

    /// Units (planes) of one channel.
    pub fn units_per_channel(&self) -> u32 {
        self.chips_per_channel * self.planes_per_chip
    }

    /// Blocks of one channel.
    pub fn blocks_per_channel(&self) -> u32 {
        self.units_per_channel() * self.blocks_per_plane
    }

    /// Pages of one channel.
    pub fn pages_per_channel(&self) -> u32 {
        self.blocks_per_channel() * self.pages_per_block
    }

    /// Physical pages of the SSD.
    pub fn pages(&self) -> u32 {
        self.channels * self.pages_per_channel()
    }

    /// The most logical pages a vSSD of `channels` channels may have: what is left when every unit has an open user
    /// block and an open collection block, the reserve is kept, trim records are at their limit, and one closed
    /// block must still have something to gain.
    pub fn logical_pages_max(&self, channels: u32) -> u32 {
        self.logical_pages_max_of_units(channels * self.units_per_channel())
    }

    pub(crate) fn logical_pages_max_of_units(&self, units: u32) -> u32 {
        let blocks = units * self.blocks_per_plane;
        let kept = 2 * units + RESERVE_BLOCKS + RECORD_BLOCKS + 1;
        blocks.saturating_sub(kept) * self.pages_per_block
    }
}

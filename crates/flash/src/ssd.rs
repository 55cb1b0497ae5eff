//! The SSD as a whole.
use crate::geometry::{Geometry, GeometryError};
use base::{MediaError, Medium, VssdId};
use thiserror::Error;

/// Why an SSD cannot be formatted or opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum OpenError {
    /// The geometry is impossible.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// Page size is not a power of two between 128 and 4096 bytes.
    #[error("pages of {0} bytes are not supported")]
    PageBytes(usize),
    /// The medium is smaller than the geometry needs.
    #[error("the medium has {have} bytes, the geometry needs {need}")]
    TooSmall {
        /// Bytes of the medium.
        have: u64,
        /// Bytes needed.
        need: u64,
    },
    /// The medium carries a valid superblock; formatting would destroy it.
    #[error("the medium is already formatted")]
    AlreadyFormatted,
    /// No valid superblock.
    #[error("the medium is not formatted, or both superblocks are damaged")]
    NotFormatted,
    /// Formatted with another page size.
    #[error("the medium was formatted with pages of {0} bytes")]
    OtherPageBytes(u32),
    /// The medium failed.
    #[error(transparent)]
    Media(#[from] MediaError),
}

/// Why a vSSD cannot be created, changed or deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CreateError {
    /// The id is taken.
    #[error("the vSSD exists")]
    Exists,
    /// There is no such vSSD.
    #[error("no such vSSD")]
    Unknown,
    /// Fewer free channels than asked for, or none asked for.
    #[error("{free} channels are free")]
    Channels {
        /// Free channels.
        free: u32,
    },
    /// More logical pages than the channels can hold beside what collection needs.
    #[error("at most {max} logical pages fit")]
    LogicalPages {
        /// The most that fit.
        max: u32,
    },
    /// The config blob is longer than 256 bytes.
    #[error("the config is longer than 256 bytes")]
    ConfigBytes,
}

/// One vSSD of the superblock's table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VssdEntry {
    /// Unique in the rack.
    pub id: VssdId,
    /// Unique on this SSD and never reused, so that a deleted vSSD's remains are not taken for a new one's.
    pub instance: u32,
    /// Channels, bit i for channel i.
    pub channels: u64,
    /// Pages users see.
    pub logical_pages: u32,
    /// The owner's opaque bytes, at most 256.
    pub config: Vec<u8>,
}

/// An opened SSD: its superblock.
#[derive(Clone, Debug)]
pub struct Ssd {
    geometry: Geometry,
    uuid: [u8; 16],
    boot: u32,
    vssds: Vec<VssdEntry>,
}

#[allow(unused_variables)]
impl Ssd {
    /// Bytes of medium that the geometry needs.
    pub fn bytes_needed(geometry: &Geometry, page_bytes: usize) -> u64 {
        todo!()
    }
    /// Writes an empty superblock.
    pub fn format(
        medium: &mut dyn Medium,
        geometry: Geometry,
        page_bytes: usize,
        uuid: [u8; 16],
    ) -> Result<(), OpenError> {
        todo!()
    }
    /// Opens and increments the boot count durably.
    pub fn open(medium: &mut dyn Medium, page_bytes: usize) -> Result<Ssd, OpenError> {
        todo!()
    }
    /// The shape.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }
    /// Identity given at format.
    pub fn uuid(&self) -> [u8; 16] {
        self.uuid
    }
    /// How often it was opened.
    pub fn boot(&self) -> u32 {
        self.boot
    }
    /// The vSSDs, in order of creation.
    pub fn vssds(&self) -> &[VssdEntry] {
        &self.vssds
    }
    /// Channels that no vSSD owns.
    pub fn free_channels(&self) -> u32 {
        todo!()
    }
    /// Adds a vSSD in memory; persist with [`Ssd::superblock_pages`].
    pub fn create(
        &mut self,
        id: VssdId,
        channels: u32,
        logical_pages: u32,
        config: Vec<u8>,
    ) -> Result<&VssdEntry, CreateError> {
        todo!()
    }
    /// Removes a vSSD in memory; persist with [`Ssd::superblock_pages`].
    pub fn delete(&mut self, id: VssdId) -> Result<(), CreateError> {
        todo!()
    }
    /// Replaces a vSSD's opaque bytes in memory; persist with [`Ssd::superblock_pages`].
    pub fn set_config(&mut self, id: VssdId, config: Vec<u8>) -> Result<(), CreateError> {
        todo!()
    }
    /// The next generation of the superblock as (offset, page) writes: carry them out in order, then flush.
    pub fn superblock_pages(&mut self) -> Vec<(u64, Vec<u8>)> {
        todo!()
    }
}

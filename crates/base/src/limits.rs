//! Limits and units of the whole product. Each says what happens when it is reached.

/// Bytes of a page: the unit of replication, of the FTL and of a rack packet's payload.
pub const PAGE_BYTES: usize = 4096;
/// Bytes of a logical block as clients see it; smaller or unaligned requests are refused with EINVAL.
pub const SECTOR_BYTES: usize = 512;
/// Sectors of a page.
pub const SECTORS_PER_PAGE: usize = PAGE_BYTES / SECTOR_BYTES;
/// Largest client request, in bytes; larger ones are refused with EINVAL (NBD's default maximum payload).
pub const REQUEST_BYTES_MAX: u32 = 32 << 20;
/// vSSDs of a rack: 64 servers × 16 SSDs × 128 (RackBlox §3.3); creating one more is refused.
pub const VSSDS_MAX: usize = 131_072;
/// Replicas of a replica set.
pub const REPLICAS_MAX: usize = 3;
/// Channels of one SSD: a vSSD's channels are a 64-bit set.
pub const CHANNELS_MAX: usize = 64;
/// UDP port of the rack (RackBlox's artifact).
pub const RACK_PORT: u16 = 8888;

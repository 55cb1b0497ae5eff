//! Limits of a session, and what it announces of them.

use base::limits::PAGE_BYTES;

/// Largest transfer announced by default (`MDTS`), in bytes; longer reads and writes are refused.
pub const TRANSFER_BYTES_MAX: u32 = 1 << 20;
/// Data of a capsule that every session takes: what an admin queue has to take (TCP §3.1).
pub const IN_CAPSULE_BYTES_MIN: u32 = 8192;

/// Limits of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionLimits {
    /// Entries of a queue, 2 to 65,535: commands that a host may have under way. Hosts are told; one that has more is
    /// cut off. Linux takes no fewer than 32 for its admin queue.
    pub in_flight_max: usize,
    /// Payload bytes of those commands; at the limit reads wait, and data is not asked for. Also bounds the largest
    /// transfer announced.
    pub in_flight_bytes_max: u64,
    /// A read or a write that is beyond the connection's share goes on in parts of so much; a multiple of a page.
    pub part_bytes: u64,
    /// Data that is asked for at once (R2T), if more than one command's: what lies in the socket for long has left the
    /// processor's caches, and comes before other commands.
    pub asked_bytes_max: u32,
    /// Free pages of the pool that writes leave to others (reads and packets under way).
    pub pages_reserve: usize,
    /// Data that a command capsule may carry, at least [`IN_CAPSULE_BYTES_MIN`], a multiple of 16.
    pub in_capsule_bytes: u32,
    /// The largest transfer, if the other limits admit it.
    pub transfer_bytes_max: u32,
}

impl Default for SessionLimits {
    /// 128 commands (what Linux asks for), 8 MiB, of which 512 KiB are asked for at once, 64 pages left to others.
    fn default() -> Self {
        Self {
            in_flight_max: 128,
            in_flight_bytes_max: 8 << 20,
            part_bytes: 32 << 10,
            asked_bytes_max: 512 << 10,
            pages_reserve: 64,
            in_capsule_bytes: IN_CAPSULE_BYTES_MIN,
            transfer_bytes_max: TRANSFER_BYTES_MAX,
        }
    }
}

/// Announcements of a session, derived from its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// `MDTS` in bytes, a power of two and at least a page.
    pub request_bytes_max: u32,
    pub in_capsule_bytes: u32,
    /// Entries of a queue (`MQES` + 1, `MAXCMD`).
    pub entries_max: u16,
}

impl SessionLimits {
    /// Pages of one capsule's data, unaligned: they are left for it when data is asked for.
    pub(super) fn capsule_pages(&self) -> usize {
        self.in_capsule_bytes as usize / PAGE_BYTES + 1
    }

    /// Footprint of one capsule's data: a compare counts twice, for what it was sent and for what is read.
    pub(super) fn capsule_bytes(&self) -> u64 {
        2 * (self.capsule_pages() * PAGE_BYTES) as u64
    }

    /// # Panics
    /// If the limits do not admit a transfer of one page.
    pub(super) fn shape(&self, pool_pages: usize) -> Shape {
        assert!((2..=usize::from(u16::MAX)).contains(&self.in_flight_max));
        assert!(self.in_capsule_bytes >= IN_CAPSULE_BYTES_MIN && self.in_capsule_bytes.is_multiple_of(16));
        // An unaligned transfer touches one page more than its length says.
        let pages = pool_pages.saturating_sub(self.pages_reserve + self.capsule_pages() + 1);
        let bytes = self.in_flight_bytes_max.saturating_sub(self.capsule_bytes()) / 2;
        let bytes = bytes.saturating_sub(PAGE_BYTES as u64);
        let bytes = (pages as u64 * PAGE_BYTES as u64)
            .min(bytes)
            .min(u64::from(self.transfer_bytes_max));
        assert!(
            bytes >= PAGE_BYTES as u64,
            "the limits admit a transfer of one page"
        );
        Shape {
            request_bytes_max: 1 << bytes.ilog2(),
            in_capsule_bytes: self.in_capsule_bytes,
            entries_max: self.in_flight_max as u16,
        }
    }
}

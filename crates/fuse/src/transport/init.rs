//! What kernel and server agree on: INIT. Pure.

use crate::abi::{InitIn, InitOut, init, protocol};

/// The oldest protocol that this crate speaks: from here on `flags2` exists.
pub const MINOR_MIN: u32 = 36;
/// A page; `max_pages` counts these.
const PAGE_BYTES: u32 = 4096;
/// What every server of this crate has: these flags say how requests look.
const ALWAYS: u64 = init::BIG_WRITES | init::MAX_PAGES | init::INIT_EXT | init::SETXATTR_EXT;

/// What a server wants of the kernel. The kernel may give less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wishes {
    /// Bits of [`init`]. OVER_IO_URING is the transport's matter.
    pub flags: u64,
    /// The largest READ and WRITE: a multiple of 4 KiB, at least 4 KiB. The kernel stops at `fs.fuse.max_pages_limit`,
    /// 1 MiB unless changed.
    pub write_bytes_max: u32,
    /// The kernel reads ahead so much.
    pub readahead_bytes_max: u32,
    /// Requests that nobody waits for (reading ahead, RELEASE) under way at once; 0: the kernel's own limit.
    pub background_max: u16,
    /// The step of times; 1 for nanoseconds. A power of ten.
    pub time_step_ns: u32,
}

impl Wishes {
    /// For a server that answers ENOSYS to OPEN, OPENDIR and CREATE, so that the kernel opens without asking. `O_TRUNC` comes as a
    /// SETATTR then: with ATOMIC_O_TRUNC the kernel would leave it to an OPEN that it does not send.
    pub fn without_opens() -> Self {
        let mut wishes = Self::default();
        wishes.flags &= !init::ATOMIC_O_TRUNC;
        wishes
    }
}

impl Default for Wishes {
    fn default() -> Self {
        let flags = [
            init::ASYNC_READ,
            init::ATOMIC_O_TRUNC,
            init::DO_READDIRPLUS,
            init::READDIRPLUS_AUTO,
            init::ASYNC_DIO,
            init::NO_OPEN_SUPPORT,
            init::PARALLEL_DIROPS,
            init::ABORT_ERROR,
            init::CACHE_SYMLINKS,
            init::NO_OPENDIR_SUPPORT,
            init::HANDLE_KILLPRIV_V2,
        ];
        Self {
            flags: flags.iter().fold(0, |all, flag| all | flag),
            write_bytes_max: 1 << 20,
            readahead_bytes_max: 1 << 20,
            background_max: 0,
            time_step_ns: 1,
        }
    }
}

/// What kernel and server have agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// The kernel's minor version of protocol 7.
    pub minor: u32,
    /// Bits of [`init`] that both have.
    pub flags: u64,
    /// The largest READ and WRITE.
    pub write_bytes_max: u32,
}

/// Flags of INIT in one number.
pub fn offered(kernel: &InitIn) -> u64 {
    let high = match u64::from(kernel.flags) & init::INIT_EXT {
        0 => 0,
        _ => u64::from(kernel.flags2) << 32,
    };
    u64::from(kernel.flags) | high
}

/// The agreement, and the reply that tells the kernel of it.
pub fn agree(kernel: &InitIn, wishes: &Wishes, is_ring: bool) -> (Agreement, InitOut) {
    let pages = wishes.write_bytes_max / PAGE_BYTES;
    let pages = u16::try_from(pages.max(1)).unwrap_or(u16::MAX);
    let ring = if is_ring { init::OVER_IO_URING } else { 0 };
    let wanted = wishes.flags & !init::OVER_IO_URING | ALWAYS | ring;
    let agreement = Agreement {
        minor: kernel.minor,
        flags: wanted & offered(kernel),
        write_bytes_max: u32::from(pages) * PAGE_BYTES,
    };
    let reply = InitOut {
        major: protocol::KERNEL_VERSION,
        minor: protocol::KERNEL_MINOR_VERSION,
        max_readahead: wishes.readahead_bytes_max.min(kernel.max_readahead),
        flags: agreement.flags as u32,
        flags2: (agreement.flags >> 32) as u32,
        max_background: wishes.background_max,
        // The kernel's own proportion.
        congestion_threshold: (u32::from(wishes.background_max) * 3 / 4) as u16,
        max_write: agreement.write_bytes_max,
        time_gran: wishes.time_step_ns,
        max_pages: pages,
        ..InitOut::default()
    };
    (agreement, reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_both_have_is_agreed_on() {
        let offer = init::ASYNC_READ | init::INIT_EXT | init::MAX_PAGES;
        let kernel = InitIn {
            major: 7,
            minor: 45,
            max_readahead: 65536,
            flags: offer as u32,
            flags2: (init::OVER_IO_URING >> 32) as u32,
            ..InitIn::default()
        };
        let (agreement, reply) = agree(&kernel, &Wishes::default(), true);
        assert_eq!(agreement.flags, offer | init::OVER_IO_URING);
        assert_eq!(u64::from(reply.flags2) << 32, init::OVER_IO_URING);
        assert_eq!(
            (reply.max_pages, reply.max_write, reply.max_readahead),
            (256, 1 << 20, 65536)
        );
        let (agreement, reply) = agree(&kernel, &Wishes::default(), false);
        assert_eq!((agreement.flags, reply.flags2), (offer, 0));
    }

    #[test]
    fn a_kernel_without_more_flags_offers_none() {
        let kernel = InitIn {
            flags2: u32::MAX,
            ..InitIn::default()
        };
        assert_eq!(offered(&kernel), 0);
    }

    #[test]
    fn odd_wishes_become_pages() {
        for (bytes, pages) in [(0, 1), (5000, 1), (u32::MAX, u16::MAX)] {
            let wishes = Wishes {
                write_bytes_max: bytes,
                ..Wishes::default()
            };
            let (agreement, reply) = agree(&InitIn::default(), &wishes, false);
            assert_eq!(reply.max_pages, pages);
            assert_eq!(agreement.write_bytes_max, u32::from(pages) * PAGE_BYTES);
        }
    }
}

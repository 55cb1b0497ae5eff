//! Work of a vSSD that waits for its medium.

use base::{Instant, Lpn, Version};
use rack::replica::{Fetch, Persist};
use wire::rack::{Header, Packet};

/// A read of the flash.
#[derive(Debug)]
pub(super) enum Reading {
    Client {
        packet: Packet,
        version: Version,
        arrived: Instant,
        issued: Instant,
        predicted_ns: u64,
    },
    Fetch {
        lpn: Lpn,
        why: Fetch,
        version: Version,
    },
    /// To see whether the page is intact.
    Scrub {
        lpn: Lpn,
        version: Version,
    },
}

/// Work that waits for the medium.
#[derive(Debug)]
pub(super) enum Then {
    Flushed(Header),
    Persisted(Persist),
}

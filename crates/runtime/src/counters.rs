//! Counters of a core. The core is the only writer; any thread may read at any time, without a lock and without
//! slowing the core. The counters of one snapshot are read one after another: their sums may be off by what happened
//! meanwhile.

use super::sync::{AtomicU64, Ordering::Relaxed};
use wire::rack::Malformed;

/// A counter with one writer.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds `count`. Only the core's own thread may call this: it is a load and a store, not one atomic step.
    pub fn add(&self, count: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(count), Relaxed);
    }

    /// Adds one.
    pub fn bump(&self) {
        self.add(1);
    }

    /// Replaces it.
    pub fn set(&self, count: u64) {
        self.0.store(count, Relaxed);
    }

    /// The count so far.
    pub fn read(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Datagrams that were not rack packets, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MalformedStats {
    /// Shorter than a header.
    pub short: u64,
    /// Another format version.
    pub format_version: u64,
    /// The header's checksum does not match.
    pub header_checksum: u64,
    /// The payload's checksum does not match. Hosts check it, not the runtime: always 0 here.
    pub payload_checksum: u64,
    /// Unknown operation, code or flag.
    pub unknown: u64,
    /// The stated length is not the payload's, or not one the operation allows.
    pub length: u64,
}

impl MalformedStats {
    /// All reasons together.
    pub fn total(&self) -> u64 {
        self.short
            + self.format_version
            + self.header_checksum
            + self.payload_checksum
            + self.unknown
            + self.length
    }
}

#[derive(Debug, Default)]
pub(crate) struct MalformedCounters {
    short: Counter,
    format_version: Counter,
    header_checksum: Counter,
    payload_checksum: Counter,
    unknown: Counter,
    length: Counter,
}

impl MalformedCounters {
    /// Counts one datagram that was refused for `reason`.
    pub fn bump(&self, reason: Malformed) {
        match reason {
            Malformed::Short => &self.short,
            Malformed::FormatVersion => &self.format_version,
            Malformed::HeaderChecksum => &self.header_checksum,
            Malformed::PayloadChecksum => &self.payload_checksum,
            Malformed::Unknown => &self.unknown,
            Malformed::Length => &self.length,
        }
        .bump();
    }

    fn read(&self) -> MalformedStats {
        MalformedStats {
            short: self.short.read(),
            format_version: self.format_version.read(),
            header_checksum: self.header_checksum.read(),
            payload_checksum: self.payload_checksum.read(),
            unknown: self.unknown.read(),
            length: self.length.read(),
        }
    }
}

macro_rules! counters {
    ($($(#[$meta:meta])* $name:ident,)+) => {
        /// A core's counters since its start, as read at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[$meta])* pub $name: u64,)+
            /// Datagrams that were not rack packets.
            pub malformed: MalformedStats,
            /// Datagrams that the kernel dropped because a socket's receive buffer was full.
            pub packets_dropped_kernel: u64,
        }

        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub $name: Counter,)+
            pub malformed: MalformedCounters,
        }

        impl Counters {
            /// All counters but those the kernel keeps.
            pub fn read(&self) -> Stats {
                Stats {
                    $($name: self.$name.read(),)+
                    malformed: self.malformed.read(),
                    packets_dropped_kernel: 0,
                }
            }
        }
    };
}

counters! {
    /// Rack packets that arrived and were handed to a host.
    packets_in,
    /// Datagrams with rack packets, or with parts of them, that the kernel took for sending.
    packets_out,
    /// Packets that arrived while the pool had no free page to hold their payload.
    packets_dropped_pool,
    /// Packets of which a part did not come.
    packets_incomplete,
    /// Packets that could not be sent because the send buffer was full or no buffer memory was left.
    packets_dropped_full,
    /// Packets that could not be sent because of their address: nowhere, unreachable, or too long for the way there.
    packets_dropped_unsendable,
    /// System calls of the loop: waiting, receiving, sending, submitting.
    syscalls,
    /// Turns of the loop that did not wait.
    polls,
    /// Turns of the loop that slept until something happened or a deadline came.
    sleeps,
    /// Deadlines that came due.
    ticks,
    /// Closures run for [`crate::CoreHandle::call`].
    calls,
    /// Pages read from media.
    media_reads,
    /// Pages written to media.
    media_writes,
    /// Flushes of media.
    media_flushes,
    /// Operations that a medium refused or failed.
    media_errors,
    /// Those of them that the medium did not answer in time.
    media_timeouts,
    /// Requests handed to the kernel for media, each for one or several adjacent pages.
    media_submissions,
    /// Connections of clients taken.
    clients_accepted,
    /// Connections of clients closed at once: no connection is left for them.
    clients_refused,
    /// Connections of clients cut off: they kept memory for which others waited.
    clients_cut,
    /// Connections of clients that have ended.
    clients_closed,
    /// Connections of clients that moved to another core.
    clients_moved_out,
    /// Connections of clients that came from another core.
    clients_moved_in,
    /// Connections that were to move to another core and could not, in time or at all.
    moves_given_up,
    /// Requests of clients taken.
    requests,
    /// Those of them that were taken as throughput-bound.
    requests_bulk,
    /// Answers to requests of clients.
    replies,
    /// Answers whose connection had ended.
    replies_late,
    /// Bytes received from clients.
    client_bytes_in,
    /// Bytes sent to clients.
    client_bytes_out,
    /// Pages of the pool in use when the core last went to sleep. Not a count: it falls too.
    pages_held,
}

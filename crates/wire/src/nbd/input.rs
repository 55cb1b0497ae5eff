//! Verdicts of a session's parts on the bytes that come in, and the gathering of headers.

use base::VolumeId;
use thiserror::Error;

/// Why a connection is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Error)]
pub enum CloseReason {
    /// The client ended the negotiation (`NBD_OPT_ABORT`).
    #[error("the client ended the negotiation")]
    Aborted,
    /// The client said good-bye (`NBD_CMD_DISC`).
    #[error("the client disconnected")]
    Disconnected,
    /// Another server serves the volume. The client is to connect anew, which may lead it there.
    #[error("another server serves the volume")]
    Elsewhere,
    /// Client flags that were not offered.
    #[error("the client set unknown handshake flags")]
    ClientFlags,
    /// An option or a request that does not start with its magic: the stream is out of step.
    #[error("wrong magic number")]
    Magic,
    /// `NBD_OPT_EXPORT_NAME` for an export that does not exist or may not be used now; the option has no other no.
    #[error("the client chose an export that does not exist")]
    UnknownExport,
    /// The volume failed in the middle of a read whose first part was sent: a simple reply has no way to say so.
    #[error("a read failed after its first part was sent")]
    ReadFailed,
    /// A payload of 4 GiB or more: nobody waits for its end (proto.md "Request message").
    #[error("a payload is longer than 4 GiB")]
    Payload,
    /// The client chose no export in time.
    #[error("the client did not complete the negotiation in time")]
    Idle,
}

impl CloseReason {
    /// True if what is under way is still answered before closing.
    pub(super) const fn is_orderly(self) -> bool {
        matches!(self, Self::Aborted | Self::Disconnected | Self::Elsewhere)
    }
}

/// How a step with the bytes at hand went on.
#[derive(Clone, Copy, Debug)]
pub(super) enum Flow {
    /// There may be more to do with the bytes at hand.
    Again,
    /// More bytes are needed.
    Starved,
    /// Room is needed.
    Blocked,
    /// The conversation is over.
    Close(CloseReason),
}

/// The form of requests and replies that was agreed on (proto.md "Transmission").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Compact requests, simple replies.
    Simple,
    /// Compact requests, structured replies where there is payload.
    Structured,
    /// Extended requests, extended replies only.
    Extended,
}

/// The request that a reply answers, as far as the reply tells of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub cookie: u64,
    pub offset: u64,
    pub form: Form,
}

/// The export a connection works on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opened {
    pub volume: VolumeId,
    pub size_bytes: u64,
    pub read_only: bool,
    pub form: Form,
    /// `base:allocation` was chosen for it.
    pub status: bool,
}

/// A header of at most `N` bytes that comes in piece by piece.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gather<const N: usize> {
    bytes: [u8; N],
    filled: usize,
}

impl<const N: usize> Gather<N> {
    pub const fn new() -> Self {
        Self {
            bytes: [0; N],
            filled: 0,
        }
    }

    pub const fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// Takes bytes until there are `want`; returns how many it took, and the header once it is whole.
    pub fn fill(&mut self, bytes: &[u8], want: usize) -> (usize, Option<[u8; N]>) {
        let step = bytes.len().min(want - self.filled);
        self.bytes[self.filled..][..step].copy_from_slice(&bytes[..step]);
        self.filled += step;
        (step, (self.filled == want).then_some(self.bytes))
    }

    /// The header was acted on. Until then it stays: what acts on it may be blocked.
    pub fn clear(&mut self) {
        self.filled = 0;
    }
}

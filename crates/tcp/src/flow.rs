//! The state of a flow that the fast path needs: two cache lines. Names are those of RFC 9293; the invariants are in
//! `docs/format/tcp.md`.

use crate::seq::Seq;
use base::Instant;

/// What is on, or waits, for a flow: bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Marks(pub u32);

impl Marks {
    /// The handshake is done: the fast path may have segments of it.
    pub const OPEN: Self = Self(1);
    /// Both ends send timestamps.
    pub const STAMPS: Self = Self(1 << 1);
    /// Small segments do not wait for acknowledgements (TCP_NODELAY).
    pub const NO_DELAY: Self = Self(1 << 2);
    /// Both ends do explicit congestion notification.
    pub const ECN: Self = Self(1 << 3);
    /// Each acknowledgement says whether its own segments were marked (DCTCP, RFC 8257), not only that some were.
    pub const ACCURATE: Self = Self(1 << 4);
    /// The next acknowledgement carries ECE.
    pub const ECHO: Self = Self(1 << 5);
    /// The next payload carries CWR: the window was reduced.
    pub const REDUCED: Self = Self(1 << 6);
    /// An acknowledgement is to be sent now.
    pub const ACK_NOW: Self = Self(1 << 7);
    /// An acknowledgement is to be sent at [`Flow::ack_due`], unless payload carries it before.
    pub const ACK_LATER: Self = Self(1 << 8);
    /// The application sends no more; a FIN follows `snd_end`.
    pub const FIN: Self = Self(1 << 9);
    /// The FIN was sent, perhaps before `snd_nxt` went back.
    pub const FIN_SENT: Self = Self(1 << 10);
    /// The FIN is acknowledged.
    pub const FIN_ACKED: Self = Self(1 << 11);
    /// The peer's FIN is in, and counted in `rcv_nxt`.
    pub const FIN_RECEIVED: Self = Self(1 << 12);
    /// The application reads no more: more payload resets the connection (RFC 1122 §4.2.2.13).
    pub const DEAF: Self = Self(1 << 13);
    /// One byte may be sent beyond the peer's window, to ask for it (RFC 9293 §3.8.6.1).
    pub const PROBE: Self = Self(1 << 14);
    /// The segment before `timed_seq` is being timed.
    pub const TIMED: Self = Self(1 << 15);
    /// The slow path looks at the flow each round trip.
    pub const WATCHED: Self = Self(1 << 16);
    /// It is in the queue of flows that may send.
    pub const READY: Self = Self(1 << 17);
    /// It is in the queue of delayed acknowledgements.
    pub const DELAYED: Self = Self(1 << 18);
    /// It is in the queue of flows with news for their application.
    pub const NEWS: Self = Self(1 << 19);
    /// The SYN or the answer to it is to be sent.
    pub const SYN: Self = Self(1 << 20);
    /// An empty segment below the window is to be sent, to ask whether the peer is there (RFC 9293 §3.8.4).
    pub const ASK: Self = Self(1 << 21);
    /// Both ends scale windows.
    pub const SCALED: Self = Self(1 << 22);

    /// Whether any of `marks` is set.
    #[inline]
    pub const fn any(self, marks: Self) -> bool {
        self.0 & marks.0 != 0
    }

    /// Whether all of `marks` are set.
    #[inline]
    pub const fn all(self, marks: Self) -> bool {
        self.0 & marks.0 == marks.0
    }

    /// Sets `marks`.
    #[inline]
    pub const fn set(&mut self, marks: Self) {
        self.0 |= marks.0;
    }

    /// Clears `marks`.
    #[inline]
    pub const fn clear(&mut self, marks: Self) {
        self.0 &= !marks.0;
    }

    /// Sets or clears `marks`.
    #[inline]
    pub const fn put(&mut self, marks: Self, on: bool) {
        if on { self.set(marks) } else { self.clear(marks) }
    }

    /// Either's marks.
    pub const fn with(self, marks: Self) -> Self {
        Self(self.0 | marks.0)
    }
}

/// The state of a flow.
#[derive(Clone, Debug, Default)]
#[repr(C, align(64))]
pub struct Flow {
    /// The next byte that the peer has to send.
    pub rcv_nxt: Seq,
    /// The next byte that the application has to read.
    pub rcv_read: Seq,
    /// Where the window ends that the peer was told.
    pub rcv_edge: Seq,
    /// The last acknowledgement that was sent.
    pub rcv_acked: Seq,
    /// Where the out-of-order interval begins.
    pub early: Seq,
    /// Bytes of the out-of-order interval; 0 if there is none.
    pub early_bytes: u32,
    /// The timestamp to be echoed (RFC 7323 §4.3).
    pub ts_recent: u32,
    /// When the peer was heard last, in milliseconds of the stack's clock.
    pub heard_ms: u32,

    /// The first byte that the peer has not acknowledged.
    pub snd_una: Seq,
    /// The next byte to be sent; it goes back when something is lost.
    pub snd_nxt: Seq,
    /// Behind the last byte that was ever sent.
    pub snd_max: Seq,
    /// Behind the last byte that the application has written.
    pub snd_end: Seq,
    /// The peer's window, in bytes.
    pub snd_wnd: u32,
    /// The number of the segment that told the window.
    pub snd_wl1: Seq,
    /// What is on.
    pub marks: Marks,
    /// Payload of the longest segment.
    pub mss: u16,
    /// Acknowledgements that repeated `snd_una`.
    pub dup_acks: u8,
    /// The peer's window scale.
    pub snd_scale: u8,

    /// Losses before this byte are known: they do not count again.
    pub recover: Seq,
    /// Bytes that congestion lets be in flight.
    pub window: u32,
    /// Bytes a millisecond that congestion lets be sent; 0 if only the window counts.
    pub rate: u32,
    /// Behind the segment that is being timed.
    pub timed_seq: Seq,
    /// When that segment was sent.
    pub timed_at: Instant,
    /// Not before may the next payload be sent.
    pub paced_at: Instant,
    /// A round trip in nanoseconds, at most 4.3 s, which was timed since the slow path looked; 0 if none was.
    pub rtt_ns: u32,
    /// Bytes that were acknowledged since the slow path looked.
    pub acked_bytes: u32,
    /// Those of them that came with a mark of congestion.
    pub marked_bytes: u32,
    /// When a delayed acknowledgement is due, in ticks of 2¹⁶ ns.
    pub ack_due: u32,
    /// Index of the addresses.
    pub path: u32,
    /// This host's port.
    pub local_port: u16,
    /// The peer's port.
    pub remote_port: u16,
    /// The application.
    pub app: u16,
    /// The receive ring has 2 to this power of bytes.
    pub rcv_ring: u8,
    /// The transmit ring has 2 to this power of bytes.
    pub snd_ring: u8,
    /// Our window scale.
    pub rcv_scale: u8,
}

const _: () = assert!(size_of::<Flow>() == 128 && align_of::<Flow>() == 64);

impl Flow {
    /// Bytes that the receive ring has room for behind `rcv_nxt`. None behind the peer's FIN.
    #[inline]
    pub const fn rcv_room(&self) -> u32 {
        if self.marks.any(Marks::FIN_RECEIVED) {
            return 0;
        }
        (1u32 << self.rcv_ring) - self.rcv_nxt.since(self.rcv_read)
    }

    /// Bytes that the application can read, the FIN aside.
    #[inline]
    pub const fn readable(&self) -> u32 {
        self.rcv_nxt.since(self.rcv_read) - self.marks.any(Marks::FIN_RECEIVED) as u32
    }

    /// Bytes that the application can write.
    #[inline]
    pub const fn writable(&self) -> u32 {
        if self.marks.any(Marks::FIN_ACKED) {
            return 1 << self.snd_ring;
        }
        (1u32 << self.snd_ring) - self.snd_end.since(self.snd_una)
    }

    /// Bytes in flight, the FIN included.
    #[inline]
    pub const fn in_flight(&self) -> u32 {
        self.snd_max.since(self.snd_una)
    }

    /// Whether something waits to be sent, or sent again.
    #[inline]
    pub fn has_unsent(&self) -> bool {
        let fin = self.marks.any(Marks::FIN) as u32;
        !self.marks.any(Marks::FIN_ACKED) && self.snd_nxt != self.snd_end + fin
    }

    /// Payload of each segment into which one with so much is to be cut; 0 if it goes as it is.
    #[inline]
    pub fn cut(&self, payload_bytes: u32) -> u16 {
        if payload_bytes > u32::from(self.mss) {
            self.mss
        } else {
            0
        }
    }

    /// Everything from `snd_una` on is to be sent again.
    pub const fn go_back(&mut self) {
        self.recover = self.snd_max;
        self.snd_nxt = self.snd_una;
        self.dup_acks = 0;
        self.marks.clear(Marks::TIMED);
    }

    /// Whether both directions have ended, and the peer knows.
    #[inline]
    pub const fn is_over(&self) -> bool {
        self.marks.all(Marks::FIN_ACKED.with(Marks::FIN_RECEIVED))
    }

    /// Checks the invariants of `docs/format/tcp.md`.
    pub fn check(&self) {
        let fin = self.marks.any(Marks::FIN_SENT) as u32;
        let sent = self.snd_end.since(self.snd_una) as i32;
        assert!(!self.snd_nxt.before(self.snd_una), "snd_una ≤ snd_nxt");
        assert!(!self.snd_max.before(self.snd_nxt), "snd_nxt ≤ snd_max");
        assert!(
            !(self.snd_end + fin).before(self.snd_max),
            "snd_max ≤ snd_end + 1"
        );
        assert!(
            sent <= 1 << self.snd_ring,
            "what is unacknowledged is in the ring"
        );
        let fin = self.marks.any(Marks::FIN_RECEIVED) as u32;
        let unread = self.rcv_nxt.since(self.rcv_read) - fin;
        assert!(unread <= 1 << self.rcv_ring, "what is unread is in the ring");
        if self.early_bytes > 0 {
            assert!(self.rcv_nxt.before(self.early), "the early interval is early");
            let end = (self.early + self.early_bytes).since(self.rcv_read);
            assert!(end <= 1 << self.rcv_ring, "the early interval is in the ring");
        }
    }
}

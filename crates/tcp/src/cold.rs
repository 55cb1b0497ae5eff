//! What the slow path knows of a flow beyond [`crate::flow::Flow`].

use crate::addr::Tuple;
use crate::config::KeepAlive;
use crate::congestion::Control;
use crate::rto::Rtt;
use crate::seq::Seq;
use base::{Duration, Instant};

/// How far a flow is. What follows the handshake is in the flow's marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The slot has no flow.
    Free,
    /// A SYN is sent.
    SynSent,
    /// The peer's SYN is answered.
    SynReceived,
    /// The handshake is done.
    Open,
    /// Everything is done; the addresses stay taken.
    TimeWait,
}

/// The slow path's state of a flow.
#[derive(Clone, Debug)]
pub struct Cold {
    /// How far it is.
    pub stage: Stage,
    /// Both ends.
    pub tuple: Tuple,
    /// The word of the connect or listen.
    pub opaque: u64,
    /// The listener whose backlog it is in.
    pub listener: Option<u32>,
    /// The number of our SYN.
    pub iss: Seq,
    /// The number of the peer's SYN.
    pub irs: Seq,
    /// Whether the peer has opened it, by a listener.
    pub is_accepted: bool,
    /// Whether the peer has ended first: then we need not wait in the end.
    pub is_passive_close: bool,
    /// Round trips.
    pub rtt: Rtt,
    /// How often the timeout was doubled.
    pub backoff: u8,
    /// `snd_una` when it was looked at last.
    pub seen_una: Seq,
    /// When `snd_una` had moved, or the first byte was sent.
    pub progress_at: Instant,
    /// When to send again, or to ask for a window.
    pub resend_at: Instant,
    /// The congestion control.
    pub control: Control,
    /// When the control was asked last.
    pub controlled_at: Instant,
    /// When it is asked next.
    pub control_at: Instant,
    /// When to ask a silent peer.
    pub keep_alive: Option<KeepAlive>,
    /// Questions that the silent peer has not answered.
    pub asked: u8,
    /// How long data may stay unacknowledged.
    pub user_timeout: Duration,
    /// When a strange segment was answered last.
    pub challenged_at: Option<Instant>,
    /// When the application has closed and the peer's FIN is waited for no longer.
    pub fin_until: Option<Instant>,
}

impl Cold {
    /// Of a flow that is about to send its SYN.
    pub fn new(tuple: Tuple, iss: Seq, now: Instant, control: Control) -> Self {
        Self {
            stage: Stage::SynSent,
            tuple,
            opaque: 0,
            listener: None,
            iss,
            irs: Seq(0),
            is_accepted: false,
            is_passive_close: false,
            rtt: Rtt::default(),
            backoff: 0,
            seen_una: iss,
            progress_at: now,
            resend_at: now,
            control,
            controlled_at: now,
            control_at: now,
            keep_alive: None,
            asked: 0,
            user_timeout: Duration::MAX,
            challenged_at: None,
            fin_until: None,
        }
    }
}

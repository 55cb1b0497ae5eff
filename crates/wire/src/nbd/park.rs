//! A session on its way to another core: paused until nothing of it is under way, and then without pages and pool.

use std::collections::VecDeque;

use base::{Pool, VolumeId};

use super::output::Output;
use super::transmission::Slot;
use super::{Opened, Phase, Session, SessionLimits, proto};

/// A session without requests under way and without its pool, which can be sent to another core.
pub struct Parked {
    limits: SessionLimits,
    pool_pages: usize,
    request_bytes_max: u32,
    phase: Phase,
    scratch: [u8; proto::REQUEST_BYTES],
    scratch_bytes: usize,
    option_data: Vec<u8>,
    no_zeroes: bool,
    structured: bool,
    context: Option<VolumeId>,
    opened: Option<Opened>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    stopping: bool,
}

impl Session {
    /// Takes no more bytes, the payload of a write that has begun aside: the session is blocked until
    /// [`Session::resume`]. Requests under way go on.
    pub fn pause(&mut self) {
        self.paused = true;
        self.blocked |= !self.is_receiving();
    }

    /// Ends a pause. Call [`Session::receive`] with what it has not taken.
    pub fn resume(&mut self) {
        self.paused = false;
    }

    /// True if a paused session has nothing under way and nothing to send.
    pub fn is_at_rest(&self) -> bool {
        let open = !matches!(self.phase, Phase::Payload | Phase::Closing(_));
        self.paused && open && self.in_flight() == 0 && self.events.is_empty() && self.pending_bytes() == 0
    }

    /// Takes the session out of its core.
    ///
    /// # Panics
    /// If it is not at rest.
    pub fn park(self) -> Parked {
        assert!(self.is_at_rest(), "nothing is under way");
        Parked {
            limits: self.limits,
            pool_pages: self.pool.capacity(),
            request_bytes_max: self.request_bytes_max,
            phase: self.phase,
            scratch: self.scratch,
            scratch_bytes: self.scratch_bytes,
            option_data: self.option_data,
            no_zeroes: self.no_zeroes,
            structured: self.structured,
            context: self.context,
            opened: self.opened,
            slots: self.slots,
            free: self.free,
            stopping: self.stopping,
        }
    }

    /// Goes on with a session on the core of `pool`, under a new client number. It is blocked until it is given what it
    /// had not taken.
    ///
    /// # Panics
    /// If the pool is not as large as the one before: what was announced would not hold.
    pub fn unpark(parked: Parked, client: u32, pool: Pool) -> Self {
        assert_eq!(pool.capacity(), parked.pool_pages, "pools are of one size");
        let requests = parked.limits.in_flight_max;
        Self {
            client,
            pool,
            limits: parked.limits,
            request_bytes_max: parked.request_bytes_max,
            phase: parked.phase,
            scratch: parked.scratch,
            scratch_bytes: parked.scratch_bytes,
            option_data: parked.option_data,
            no_zeroes: parked.no_zeroes,
            structured: parked.structured,
            context: parked.context,
            opened: parked.opened,
            slots: parked.slots,
            free: parked.free,
            bytes_in_flight: 0,
            share_bytes: u64::MAX,
            share_wanted: 0,
            write: None,
            events: VecDeque::with_capacity(requests),
            output: Output::new(requests),
            blocked: true,
            paused: false,
            stopping: parked.stopping,
        }
    }
}

//! The slow path as a machine: everything but the common case. It owns the flows of a core; the fast path borrows them.
//!
//! | part | what it does |
//! | --- | --- |
//! | `open` | handshakes from either side and both, SYN cookies |
//! | `close` | half close, close, TIME-WAIT |
//! | `odd` | segments that the fast path did not take |
//! | `watch` | congestion control, retransmission, probes, keep-alive, giving up |
//! | `report` | ICMP errors, path MTU |
//! | `resolve` | ARP and neighbour discovery |
//! | `access` | access control, limits of applications |
//!
//! Where the choice is ours: a listener whose backlog is full sends SYN cookies; a stack that is full forgets the connection
//! that has been in TIME-WAIT for longest; an application that is at its limit has its peers' SYNs dropped.

mod access;
mod close;
mod cookie;
mod listen;
mod odd;
mod open;
mod report;
mod resolve;
mod state;
mod watch;

use crate::addr::{Ip, Mac};
use crate::api::{Call, End, Event, FlowId, News, Refused, Request, Setting};
use crate::cold::Stage;
use crate::flow::Marks;
use crate::frame::arp::Arp;
use crate::frame::icmp::{Neighbour, Report};
use crate::frame::segment::Segment;
use crate::frame::{Flags, Hop};
use base::{Instant, Machine, time};
use listen::Listener;

pub use open::handshake;
pub use state::{Counters, Reply, State, segment_of};

/// News for the slow path.
#[derive(Clone, Copy, Debug)]
pub enum Input {
    /// A segment that the fast path did not take, and the cards of its frame.
    Segment(Hop, Segment),
    /// A flow has lost something, as duplicate acknowledgements say.
    Loss(u32),
    /// A flow's FIN was acknowledged, or the peer's was received.
    Fin(u32),
    /// A flow has begun to wait for its peer.
    Watch(u32),
    /// An ARP packet.
    Arp(Arp),
    /// A packet of neighbour discovery.
    Neighbour(Neighbour),
    /// An ICMP error.
    Report(Report),
    /// Nobody has this card any more, as the link knows for certain.
    Gone(Mac),
    /// A request of an application.
    Request(Request),
}

/// What the slow path wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// A frame is to be sent.
    Reply(Reply),
    /// An application is to be told.
    Event(Event),
}

/// The slow path of a core.
#[derive(Debug)]
pub struct Slow {
    /// What its parts, and the fast path, work on.
    pub state: State,
}

impl Machine for Slow {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Instant, input: Input) {
        let state = &mut self.state;
        match input {
            Input::Segment(hop, segment) => self.segment(now, hop, &segment),
            Input::Loss(slot) => watch::lost(state, now, slot),
            Input::Fin(slot) => close::progress(state, now, slot),
            Input::Watch(slot) => state.watch(now, slot),
            Input::Arp(packet) => resolve::arp(state, now, &packet),
            Input::Neighbour(packet) => resolve::neighbour(state, now, &packet),
            Input::Report(report) => report::take(state, now, &report),
            Input::Gone(mac) => resolve::gone(state, now, mac),
            Input::Request(request) => self.request(now, &request),
        }
        // A new way has a question at once.
        resolve::due(&mut self.state, now);
    }

    fn poll(&mut self) -> Option<Output> {
        let state = &mut self.state;
        let reply = state.replies.pop_front().map(Output::Reply);
        reply.or_else(|| state.events.pop_front().map(Output::Event))
    }

    fn deadline(&self) -> Option<Instant> {
        time::earliest(self.state.timers.first(), self.state.table.paths.deadline())
    }

    fn tick(&mut self, now: Instant) {
        while let Some(slot) = self.state.timers.expired(now) {
            watch::look(&mut self.state, now, slot);
        }
        resolve::due(&mut self.state, now);
    }
}

impl Slow {
    /// A slow path without flows.
    pub fn new(state: State) -> Self {
        Self { state }
    }

    /// Takes a segment to where its flow is.
    fn segment(&mut self, now: Instant, hop: Hop, segment: &Segment) {
        let state = &mut self.state;
        state.counters.slow += 1;
        let Some(slot) = state.table.find(&segment.tuple()) else {
            return open::listen(state, now, hop, segment);
        };
        match state.table.stage(slot) {
            Stage::Free => {}
            Stage::SynSent => open::syn_sent(state, now, hop, slot, segment),
            Stage::SynReceived => open::syn_received(state, now, hop, slot, segment),
            Stage::Open => odd::take(state, now, slot, segment),
            Stage::TimeWait => {
                if close::time_wait(state, now, slot, segment) {
                    open::listen(state, now, hop, segment);
                }
            }
        }
    }

    /// Carries a request out, or refuses it.
    fn request(&mut self, now: Instant, request: &Request) {
        let done = match self.call(now, request) {
            Ok(is_told) if is_told => return,
            Ok(_) => News::Done,
            Err(refused) => {
                self.state.counters.refused += 1;
                News::Refused(refused)
            }
        };
        self.state.events.push_back(Event {
            app: request.app,
            opaque: request.opaque,
            news: done,
        });
    }

    /// Carries a request out. Answers whether the application was told already, or need not be.
    fn call(&mut self, now: Instant, request: &Request) -> Result<bool, Refused> {
        let Request { app, opaque, call } = *request;
        let state = &mut self.state;
        if !state.access.has(app) {
            return Err(Refused::Denied);
        }
        let slot = |state: &State, flow: FlowId| state.table.of_app(app, flow).ok_or(Refused::Flow);
        match call {
            Call::Listen {
                local,
                backlog,
                rings,
            } => {
                let listener = Listener {
                    app,
                    opaque,
                    local,
                    backlog,
                    rings,
                    half_open: 0,
                    cookie_at: None,
                };
                self.listen(listener).map(|()| false)
            }
            Call::Unlisten { local } => {
                let listener = state.listeners.of_app(app, local).ok_or(Refused::Address)?;
                self.unlisten(now, listener);
                Ok(false)
            }
            Call::Connect { remote, port, rings } => {
                open::connect(state, now, app, opaque, (remote, port, rings)).map(|()| true)
            }
            Call::Shutdown(flow) => close::shutdown(state, now, slot(state, flow)?).map(|()| true),
            Call::Close(flow) => close::close(state, now, slot(state, flow)?).map(|()| true),
            Call::Abort(flow) => {
                let slot = slot(state, flow)?;
                if state.table.stage(slot) == Stage::TimeWait {
                    return Err(Refused::Ended);
                }
                state.abort(now, slot, End::Aborted);
                Ok(true)
            }
            Call::Set(flow, setting) => {
                let slot = slot(state, flow)?;
                self.set(now, slot, setting)?;
                Ok(true)
            }
            Call::Leave => {
                self.leave(now, app);
                Ok(false)
            }
        }
    }

    fn listen(&mut self, listener: Listener) -> Result<(), Refused> {
        let state = &mut self.state;
        let Listener { local, rings, .. } = listener;
        if !open::is_ring(rings) {
            return Err(Refused::Ring);
        }
        if local.port == 0 || local.ip != Ip::ANY && !state.config.is_own(local.ip) {
            return Err(Refused::Address);
        }
        if state.listeners.has(local) {
            return Err(Refused::InUse);
        }
        if state.listeners.add(listener) {
            Ok(())
        } else {
            Err(Refused::Full)
        }
    }

    /// Ends a listener and its handshakes.
    fn unlisten(&mut self, now: Instant, listener: u32) {
        let state = &mut self.state;
        for slot in 0..state.config.flows_max {
            let is_of = state.table.stage(slot) == Stage::SynReceived;
            if is_of && state.table.cold(slot).listener == Some(listener) {
                state.reset_quietly(now, slot);
            }
        }
        state.listeners.remove(listener);
    }

    fn set(&mut self, now: Instant, slot: u32, setting: Setting) -> Result<(), Refused> {
        let state = &mut self.state;
        let (flow, cold) = state.table.both(slot);
        if cold.stage != Stage::Open {
            return Err(Refused::Ended);
        }
        match setting {
            Setting::NoDelay(on) => {
                flow.marks.put(Marks::NO_DELAY, on);
                state.ready(slot);
            }
            Setting::KeepAlive(rule) => {
                cold.keep_alive = rule;
                cold.asked = 0;
                watch::arm(state, now, slot);
            }
            Setting::UserTimeout(timeout) => cold.user_timeout = timeout,
        }
        Ok(())
    }

    /// Ends everything of an application.
    fn leave(&mut self, now: Instant, app: u16) {
        while let Some(listener) = self.state.listeners.next_of(app) {
            self.unlisten(now, listener);
        }
        let state = &mut self.state;
        for slot in 0..state.config.flows_max {
            let stage = state.table.stage(slot);
            let is_live = !matches!(stage, Stage::Free | Stage::TimeWait);
            if is_live && state.table.flow(slot).app == app {
                state.abort(now, slot, End::Aborted);
            }
        }
    }

    /// An empty segment below the window: the peer answers it if it is there (RFC 9293 §3.8.4).
    pub fn question(&mut self, now: Instant, slot: u32) -> Segment {
        let mut plan = crate::fast::transmit::acknowledgement(self.state.table.flow(slot));
        plan.seq = self.state.table.flow(slot).snd_una - 1;
        plan.flags = Flags::ACK;
        self.state.segment(now, slot, &plan)
    }
}

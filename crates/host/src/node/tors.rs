//! A node and its ToRs: it registers its vSSDs at each, and sends by the one that answers.

use super::units::Units;
use crate::Output;
use base::{Addr, Duration, Instant};
use rack::uplink::{Act, Uplink};
use std::collections::VecDeque;
use wire::rack::{Header, Op, Packet};

/// How often a node registers its vSSDs at the ToRs, so that a restarted ToR fills its tables again.
const REGISTER_EVERY: Duration = Duration::from_secs(1);
/// Before the first answer of a ToR it tries faster.
const REGISTER_FIRST: Duration = Duration::from_millis(50);

/// The ToRs of a node.
pub(super) struct Tors {
    me: Addr,
    pub(super) uplink: Uplink,
    /// Of the last call of the node.
    pub(super) now: Instant,
    /// A ToR has answered since the vSSDs or their peers changed.
    registered: bool,
    pub(super) register_at: Instant,
}

impl Tors {
    /// Of the node at `me`: the first ToR is the preferred one.
    pub(super) fn new(now: Instant, me: Addr, tors: &[Addr]) -> Self {
        Self {
            me,
            uplink: Uplink::new(me, tors),
            now,
            registered: false,
            register_at: now,
        }
    }

    /// A ToR answered a registration.
    pub(super) fn answered(&mut self) {
        self.registered = true;
    }

    /// The ToRs may know other facts than the node has.
    pub(super) fn doubt(&mut self) {
        self.registered = false;
    }

    /// The vSSDs are others, or their peers: they are registered now.
    pub(super) fn changed(&mut self, now: Instant) {
        self.registered = false;
        self.register_at = now;
    }

    /// Tells the ToRs of every vSSD (RackBlox §3.3), and which ToR it asks before it collects. Again and again, so that a
    /// restarted ToR learns them, and a promise lasts.
    #[cold]
    pub(super) fn register(&mut self, now: Instant, boot: u32, controller: Option<Addr>, units: &mut Units) {
        let pause = match self.registered {
            true => REGISTER_EVERY,
            false => REGISTER_FIRST,
        };
        self.register_at = now + pause;
        let decider = self.uplink.decider();
        for slot in units.slots.iter_mut().flatten() {
            let registration = slot.unit.identity().registration();
            // By the start of the node the ToR tells one that was away from another one.
            let header = Header {
                source: self.me,
                session: boot,
                ..Header::new(Op::CreateVssd, registration.vssd)
            };
            let mut send = |to, header| {
                let packet = Packet::with_record(header, registration.emit());
                units.out.push_back(Output::Send { to, packet });
            };
            for (tor, code) in slot.unit.promise(now, decider) {
                send(tor, Header { code, ..header });
            }
            if let Some(target) = controller {
                send(Addr::NONE, Header { target, ..header });
            }
        }
    }

    /// The next output; a packet that has no ToR yet gets one.
    #[inline]
    pub(super) fn poll(&mut self, out: &mut VecDeque<Output>) -> Option<Output> {
        let Some(mut output) = out.pop_front() else {
            return self.poll_uplink();
        };
        if let Output::Send { to, packet } = &mut output {
            match *to {
                Addr::NONE => *to = self.uplink.send(self.now, &mut packet.header),
                tor => self.uplink.send_by(self.now, tor, &mut packet.header),
            }
        }
        Some(output)
    }

    #[inline]
    fn poll_uplink(&mut self) -> Option<Output> {
        Some(match self.uplink.poll()? {
            Act::Tell(kind) => Output::Event(kind),
            Act::Ask(to, header) => {
                let packet = Packet::bare(header);
                Output::Send { to, packet }
            }
        })
    }
}

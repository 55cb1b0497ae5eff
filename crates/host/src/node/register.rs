//! A node and the ToRs: it registers its vSSDs, and sends by the ToR that answers.

use super::Node;
use crate::Output;
use base::{Addr, Duration, Instant};
use rack::uplink::Act;
use wire::rack::{Code, Header, Op, Packet};

/// How often a node registers its vSSDs at the ToR, so that a restarted ToR fills its tables again.
const REGISTER_EVERY: Duration = Duration::from_secs(1);
/// Before the first answer of the ToR it tries faster.
const REGISTER_FIRST: Duration = Duration::from_millis(50);

impl Node {
    /// Tells the ToRs of every vSSD (RackBlox §3.3), and which ToR it asks before it collects. Again and again, so that a
    /// restarted ToR learns them, and a promise lasts.
    #[cold]
    pub(super) fn register(&mut self, now: Instant) {
        self.register_at = now
            + if self.registered {
                REGISTER_EVERY
            } else {
                REGISTER_FIRST
            };
        let (decider, boot) = (self.uplink.decider(), self.ssd.boot());
        for index in 0..self.units.slots.len() {
            let Some(slot) = self.units.slots[index].as_mut() else {
                continue;
            };
            let registration = slot.unit.registration();
            // By the start of the node the ToR tells one that was away from another one.
            let header = Header {
                session: boot,
                ..Header::new(Op::CreateVssd, registration.vssd)
            };
            let tors: Vec<(Addr, Code)> = slot.unit.promise(now, decider).collect();
            for (tor, code) in tors {
                let header = Header { code, ..header };
                self.send_by(tor, Packet::with_record(header, registration.emit()));
            }
            if let Some(target) = self.config.controller {
                let header = Header { target, ..header };
                self.send(Packet::with_record(header, registration.emit()));
            }
        }
    }

    /// The next output; what has no ToR yet gets one.
    pub(super) fn poll_output(&mut self) -> Option<Output> {
        let Some(mut output) = self.units.out.pop_front() else {
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

    /// The next act of the uplink.
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

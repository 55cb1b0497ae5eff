//! A vSSD and the ToRs: it tells where it is, which ToR it asks before it collects, and when it collects.

use super::Unit;
use crate::Output;
use base::{Addr, Instant};
use rack::gc::Coordination;
use rack::tor::Registration;
use std::collections::VecDeque;
use wire::rack::{Code, Header, Op, Packet};

impl Unit {
    /// The facts that ToRs need.
    pub(in crate::node) fn registration(&self) -> Registration {
        let identity = &self.identity;
        let mut replicas = [None; 2];
        for (place, peer) in replicas.iter_mut().zip(&identity.config.membership.peers) {
            *place = Some((peer.vssd, peer.addr));
        }
        Registration {
            vssd: identity.vssd,
            server: identity.addr,
            replicas,
        }
    }

    /// The ToRs, and what it promises each of them.
    pub(in crate::node) fn promise(
        &mut self,
        now: Instant,
        decider: usize,
    ) -> impl Iterator<Item = (Addr, Code)> {
        let collects = self.agent.is_collecting();
        let (promise, tors) = (&mut self.promise, self.identity.tors.iter().enumerate());
        tors.map(move |(nth, &tor)| (tor, promise.renew(now, nth, decider, collects)))
    }

    /// Asks whether it may collect, or tells that it does or does not. Before a soft collection it asks one ToR alone.
    #[cold]
    pub(super) fn speak_of_collection(&mut self, now: Instant, code: Code, out: &mut VecDeque<Output>) {
        self.gc_asked += 1;
        let header = Header {
            code,
            request: self.gc_asked,
            session: self.identity.boot,
            target: self.arbiter().unwrap_or(Addr::NONE),
            ..Header::new(Op::GcOp, self.identity.vssd)
        };
        if !header.target.is_none() {
            return self.send(Packet::bare(header), out);
        }
        let asked = self.promise.asks(now);
        for (nth, &tor) in self.identity.tors.iter().enumerate() {
            if code != Code::SoftOrOk || asked == Some(nth) {
                self.send_by(tor, Packet::bare(header), out);
            }
        }
    }

    /// Decider of collection instead of the ToR.
    pub(super) fn arbiter(&self) -> Option<Addr> {
        let decides = self.config.gc.coordination == Coordination::Controller;
        self.identity.controller.filter(|_| decides)
    }
}

//! Holders of GC bits, the time of each grant, and the reason of each lapse.
//!
//! The tables hold the bits themselves. A bit that lapses means that its node neither renewed it nor said that it is
//! done. Why shows only after a while: a node that lives says something within [`HEARD_WITHIN`].

use base::event::{Kind, Lapse};
use base::{Addr, Duration, Instant, VssdId, time::earliest};
use std::collections::VecDeque;
use wire::rack::{Code, Header};

/// A node that lives registers its vSSDs within this: once a second, and a packet may be lost.
const HEARD_WITHIN: Duration = Duration::from_millis(2500);

#[derive(Clone, Copy, Debug)]
struct Held {
    vssd: VssdId,
    server: Addr,
    /// The start of the node.
    session: u32,
    since: Instant,
    until: Instant,
    /// When it is said why it lapsed, if it did.
    verdict_at: Option<Instant>,
    /// The node has registered since.
    heard: bool,
}

impl Held {
    fn lapsed(&self, why: Lapse) -> Kind {
        Kind::LeaseLapsed {
            vssd: self.vssd,
            server: self.server,
            why,
            held: self.until.since(self.since),
        }
    }

    fn deadline(&self) -> Instant {
        self.verdict_at.unwrap_or(self.until)
    }
}

/// The bits that are set, and those that lapsed a moment ago.
#[derive(Debug)]
pub(super) struct Leases {
    term: Duration,
    held: Vec<Held>,
    /// No later than what is due first; early after a renewal.
    due_at: Option<Instant>,
}

impl Leases {
    pub(super) fn new(term: Duration) -> Self {
        Self {
            term,
            held: Vec::new(),
            due_at: None,
        }
    }

    fn place(&self, vssd: VssdId) -> Option<usize> {
        self.held.iter().position(|held| held.vssd == vssd)
    }

    /// The bit is set from now on. False if it was set before.
    pub(super) fn hold(&mut self, now: Instant, vssd: VssdId, server: Addr, session: u32) -> bool {
        let until = now + self.term;
        if let Some(place) = self.place(vssd) {
            let held = &mut self.held[place];
            (held.server, held.session, held.until) = (server, session, until);
            return false;
        }
        self.due_at = earliest(self.due_at, Some(until));
        self.held.push(Held {
            vssd,
            server,
            session,
            since: now,
            until,
            verdict_at: None,
            heard: false,
        });
        true
    }

    /// The bit is clear from now on; how long it was set, if it was.
    pub(super) fn release(&mut self, now: Instant, vssd: VssdId) -> Option<Duration> {
        let held = self.held.swap_remove(self.place(vssd)?);
        Some(now.since(held.since))
    }

    /// A vSSD speaks of collection, before anything is done about it.
    pub(super) fn spoke(&mut self, now: Instant, header: &Header, events: &mut VecDeque<Kind>) {
        let Some(place) = self.place(header.vssd) else {
            return;
        };
        let held = self.held[place];
        if now < held.until {
            return;
        }
        let why = match header.code {
            _ if header.session != held.session => Lapse::NodeRestarted,
            Code::Finish => Lapse::FinishLate,
            // A collection begins with a soft request, and is renewed with the others.
            Code::SoftOrOk => Lapse::FinishLost,
            _ => Lapse::RenewalLate,
        };
        self.held.swap_remove(place);
        events.push_back(held.lapsed(why));
    }

    /// A node has registered a vSSD.
    pub(super) fn registered(
        &mut self,
        now: Instant,
        server: Addr,
        session: u32,
        events: &mut VecDeque<Kind>,
    ) {
        let lapsed = |held: &&mut Held| held.server == server && held.verdict_at.is_some();
        for held in self.held.iter_mut().filter(lapsed) {
            // A node that was away has its say about collection first.
            if !held.heard {
                held.heard = true;
                held.verdict_at = Some(now + self.term);
                self.due_at = earliest(self.due_at, held.verdict_at);
            }
        }
        self.held.retain(|held| {
            let restarted = held.server == server && held.verdict_at.is_some() && held.session != session;
            if restarted {
                events.push_back(held.lapsed(Lapse::NodeRestarted));
            }
            !restarted
        });
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.due_at
    }

    /// Lets time pass.
    pub(super) fn tick(&mut self, now: Instant, events: &mut VecDeque<Kind>) {
        if self.due_at.is_none_or(|at| now < at) {
            return;
        }
        self.held.retain_mut(|held| {
            if now < held.deadline() {
                return true;
            }
            if held.verdict_at.is_none() {
                held.verdict_at = Some(held.until + HEARD_WITHIN);
                return true;
            }
            let why = match held.heard {
                true => Lapse::FinishLost,
                false => Lapse::NodeSilent,
            };
            events.push_back(held.lapsed(why));
            false
        });
        self.due_at = self.held.iter().map(Held::deadline).min();
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Registration, Tor};
    use super::*;
    use base::event::Collection;
    use wire::rack::Op;

    const TERM: Duration = Duration::from_millis(200);
    const VSSD: VssdId = VssdId(7);
    const SERVER: Addr = Addr::new([10, 0, 0, 1], 8888);
    const BOOT: u32 = 3;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    /// A ToR at whose vSSD a collection began at 1000 ms.
    fn collecting() -> Tor {
        let mut tor = Tor::new(TERM);
        register(&mut tor, 0, BOOT);
        let server = SERVER;
        assert_eq!(events(&mut tor), [Kind::VssdRegistered { vssd: VSSD, server }]);
        say(&mut tor, 1000, Code::Regular, BOOT);
        let collection = Collection::Regular;
        assert_eq!(
            events(&mut tor),
            [Kind::LeaseGranted {
                vssd: VSSD,
                collection
            }]
        );
        tor
    }

    fn register(tor: &mut Tor, ms: u64, session: u32) {
        let registration = Registration {
            vssd: VSSD,
            server: SERVER,
            replicas: [None; 2],
        };
        let mut header = Header {
            source: SERVER,
            session,
            ..Header::new(Op::CreateVssd, VSSD)
        };
        tor.process(at(ms), &mut header, &registration.emit());
    }

    fn say(tor: &mut Tor, ms: u64, code: Code, session: u32) {
        let mut header = Header {
            code,
            source: SERVER,
            session,
            request: ms,
            ..Header::new(Op::GcOp, VSSD)
        };
        tor.process(at(ms), &mut header, &[]);
    }

    /// Lets time pass as a world does.
    fn wait(tor: &mut Tor, ms: u64) {
        while let Some(due) = tor.deadline().filter(|due| *due <= at(ms)) {
            tor.tick(due);
        }
    }

    fn events(tor: &mut Tor) -> Vec<Kind> {
        core::iter::from_fn(|| tor.poll_event()).collect()
    }

    fn lapsed(why: Lapse, held_ms: u64) -> Kind {
        Kind::LeaseLapsed {
            vssd: VSSD,
            server: SERVER,
            why,
            held: Duration::from_millis(held_ms),
        }
    }

    #[test]
    fn a_lease_that_is_renewed_and_ended_does_not_lapse() {
        let mut tor = collecting();
        for ms in [1100, 1250] {
            wait(&mut tor, ms);
            say(&mut tor, ms, Code::Regular, BOOT);
            assert_eq!(events(&mut tor), [Kind::LeaseRenewed { vssd: VSSD }]);
        }
        wait(&mut tor, 1400);
        say(&mut tor, 1400, Code::Finish, BOOT);
        let held = Duration::from_millis(400);
        assert_eq!(events(&mut tor), [Kind::LeaseEnded { vssd: VSSD, held }]);
        wait(&mut tor, 60_000);
        assert_eq!(events(&mut tor), []);
        assert_eq!(tor.deadline(), None);
    }

    #[test]
    fn a_node_that_says_nothing_is_silent() {
        let mut tor = collecting();
        wait(&mut tor, 3699);
        assert_eq!(events(&mut tor), []);
        wait(&mut tor, 3700);
        assert_eq!(events(&mut tor), [lapsed(Lapse::NodeSilent, 200)]);
        assert_eq!(tor.deadline(), None);
    }

    #[test]
    fn a_node_that_registers_and_does_not_renew_has_finished() {
        let mut tor = collecting();
        wait(&mut tor, 1500);
        register(&mut tor, 1500, BOOT);
        wait(&mut tor, 1699);
        assert_eq!(events(&mut tor), [], "a node that was away registers first");
        wait(&mut tor, 1700);
        assert_eq!(events(&mut tor), [lapsed(Lapse::FinishLost, 200)]);
    }

    #[test]
    fn a_node_that_registers_under_another_number_has_restarted() {
        let mut tor = collecting();
        wait(&mut tor, 1500);
        register(&mut tor, 1500, BOOT + 1);
        assert_eq!(events(&mut tor), [lapsed(Lapse::NodeRestarted, 200)]);
    }

    #[test]
    fn a_late_word_of_the_vssd_says_why() {
        let grant = |collection| Kind::LeaseGranted {
            vssd: VSSD,
            collection,
        };
        for (code, session, why, then) in [
            (Code::Finish, BOOT, Lapse::FinishLate, None),
            (Code::Regular, BOOT, Lapse::RenewalLate, Some(Collection::Regular)),
            (Code::SoftOrOk, BOOT, Lapse::FinishLost, Some(Collection::Soft)),
            (
                Code::SoftOrOk,
                BOOT + 1,
                Lapse::NodeRestarted,
                Some(Collection::Soft),
            ),
        ] {
            let mut tor = collecting();
            // Not ticked: the packet comes at the moment at which the lease lapses.
            say(&mut tor, 1200, code, session);
            let expected: Vec<Kind> = [lapsed(why, 200)].into_iter().chain(then.map(grant)).collect();
            assert_eq!(events(&mut tor), expected);
            wait(&mut tor, 1200);
        }
    }

    #[test]
    fn the_lease_of_a_vssd_that_is_deleted_ends() {
        let mut tor = collecting();
        let mut header = Header {
            source: SERVER,
            ..Header::new(Op::DelVssd, VSSD)
        };
        tor.process(at(1100), &mut header, &[]);
        wait(&mut tor, 60_000);
        let (vssd, held) = (VSSD, Duration::from_millis(100));
        assert_eq!(events(&mut tor), [Kind::LeaseEnded { vssd, held }]);
    }
}

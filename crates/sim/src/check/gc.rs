//! At most one replica of a set collects by *soft* request at a time (RackBlox §3.5.1, Algorithm 1 lines 10–22).
//!
//! The checker watches the GC packets on the simulated wire. A replica collects by soft request from the arrival of
//! the ToR's accept until it sends its finish, its lease at that ToR ends, or it crashes. A ToR that restarts knows nothing of
//! collections under way that it accepted, so these are forgiven. Regular and background collections are never denied, and not
//! counted.

use super::Violation;
use base::{Instant, Map, VssdId};
use wire::rack::{Code, Header, flags};

/// Watches who collects.
#[derive(Debug, Default)]
pub struct GcChecker {
    set_of: Map<u32, u32>,
    /// The last request of each vSSD, to match an accept with it.
    asked: Map<u32, Asked>,
    /// Session and number of each vSSD's last finish.
    finished: Map<u32, (u32, u64)>,
    collectors: Vec<Collector>,
    lease_ns: u64,
    accepted: u64,
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    soft: bool,
    /// Session and number of the packet: its sender takes no other answer.
    number: (u32, u64),
    /// When a ToR got it, and which.
    at: Instant,
    tor: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
struct Collector {
    vssd: VssdId,
    set: u32,
    host: usize,
    /// When the ToR that accepted last set the bit, and which it is.
    since: Instant,
    tor: Option<usize>,
}

impl GcChecker {
    /// Watches replica sets. A collection that the ToR heard of longer than `lease_ns` ago no longer counts
    /// (`u64::MAX`: no leases).
    pub fn new<'a>(
        sets: impl IntoIterator<Item = impl IntoIterator<Item = &'a VssdId>>,
        lease_ns: u64,
    ) -> Self {
        let mut set_of = Map::new();
        for (set, vssds) in sets.into_iter().enumerate() {
            for vssd in vssds {
                set_of.insert(vssd.0, set as u32);
            }
        }
        Self {
            set_of,
            lease_ns,
            ..Self::default()
        }
    }

    /// A vSSD is no member of its set any more.
    pub fn left(&mut self, vssd: VssdId) {
        self.set_of.remove(&vssd.0);
        self.collectors.retain(|collector| collector.vssd != vssd);
    }

    /// Soft requests that were accepted so far.
    pub fn accepted(&self) -> u64 {
        self.accepted
    }

    /// A host asks, or says that it is done.
    pub fn sent(&mut self, now: Instant, header: &Header) {
        if header.has(flags::REPLY) {
            return;
        }
        let soft = header.code == Code::SoftOrOk;
        let number = (header.session, header.request);
        match header.code {
            // It has not waited for an answer that is still on its way, and takes none.
            Code::Finish => {
                self.collectors.retain(|c| c.vssd != header.vssd);
                self.asked.remove(&header.vssd.0);
                self.finished.insert(header.vssd.0, number);
            }
            // A copy of a request of before that a switch passes on: whoever asked takes no answer to it any more.
            _ if self.is_over(header.vssd, number) => {}
            // A regular request in the midst of a soft collection is its renewal, and does not end it.
            Code::SoftOrOk | Code::Regular | Code::Background => {
                self.asked.insert(
                    header.vssd.0,
                    Asked {
                        soft,
                        number,
                        at: now,
                        tor: None,
                    },
                );
            }
            _ => {}
        }
    }

    fn is_over(&self, vssd: VssdId, (session, request): (u32, u64)) -> bool {
        let finished = self.finished.get(&vssd.0).copied();
        finished.is_some_and(|(last, finish)| last == session && request < finish)
    }

    /// A request reaches a ToR, or its answer a node: `host`.
    pub fn arrived(&mut self, now: Instant, host: usize, header: &Header) -> Result<(), Violation> {
        if !header.has(flags::REPLY) {
            self.reached_tor(now, host, header);
            return Ok(());
        }
        if header.code != Code::Accept {
            return Ok(());
        }
        let number = (header.session, header.request);
        let asked = self.asked.get(&header.vssd.0).copied();
        let (Some(asked), Some(&set)) = (asked, self.set_of.get(&header.vssd.0)) else {
            return Ok(());
        };
        if asked.number != number {
            return Ok(());
        }
        self.asked.remove(&header.vssd.0);
        if !asked.soft {
            return Ok(());
        }
        self.accepted += 1;
        let lease_ns = self.lease_ns;
        self.collectors
            .retain(|c| c.vssd != header.vssd && now.nanos_since(c.since) < lease_ns);
        let other = self.collectors.iter().find(|c| c.set == set).copied();
        self.collectors.push(Collector {
            vssd: header.vssd,
            set,
            host,
            since: asked.at,
            tor: asked.tor,
        });
        match other {
            Some(other) => Err(Violation::BothCollect {
                first: other.vssd,
                second: header.vssd,
                at_ns: now.as_nanos(),
            }),
            None => Ok(()),
        }
    }

    fn reached_tor(&mut self, now: Instant, tor: usize, header: &Header) {
        if header.code == Code::Finish {
            return;
        }
        let number = (header.session, header.request);
        if let Some(asked) = self.asked.get_mut(&header.vssd.0)
            && asked.number == number
        {
            (asked.at, asked.tor) = (now, Some(tor));
        }
        let is_it = |c: &&mut Collector| c.vssd == header.vssd && c.tor.is_none_or(|known| known == tor);
        if let Some(collector) = self.collectors.iter_mut().find(is_it) {
            collector.since = now;
        }
    }

    /// A host crashed: it no longer collects.
    pub fn crashed(&mut self, host: usize) {
        self.collectors.retain(|c| c.host != host);
    }

    /// A ToR restarted: collections under way that it accepted are forgiven.
    pub fn tor_restarted(&mut self, tor: usize) {
        let is_of = |known: Option<usize>| known.is_none_or(|known| known == tor);
        self.collectors.retain(|collector| !is_of(collector.tor));
        for vssd in self.asked.sorted_keys() {
            if self.asked.get(&vssd).is_some_and(|asked| is_of(asked.tor)) {
                self.asked.remove(&vssd);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Addr;
    use wire::rack::Op;

    fn ask(vssd: u32, request: u64, code: Code) -> Header {
        Header {
            code,
            request,
            source: Addr::new([10, 0, 0, vssd as u8], 1),
            ..Header::new(Op::GcOp, VssdId(vssd))
        }
    }

    fn answer(header: &Header, code: Code) -> Header {
        header.reply(code)
    }

    #[test]
    fn two_soft_collections_of_one_set_are_caught() {
        let mut checker = GcChecker::new([&[VssdId(1), VssdId(2)]], u64::MAX);
        let (a, b) = (ask(1, 7, Code::SoftOrOk), ask(2, 9, Code::SoftOrOk));
        checker.sent(Instant::ZERO, &a);
        checker.sent(Instant::ZERO, &b);
        assert_eq!(
            checker.arrived(Instant::ZERO, 1, &answer(&a, Code::Accept)),
            Ok(())
        );
        assert!(
            checker
                .arrived(Instant::ZERO, 2, &answer(&b, Code::Accept))
                .is_err()
        );
    }

    #[test]
    fn finished_crashed_and_expired_collections_do_not_count() {
        let clear: [fn(&mut GcChecker); 3] = [
            |c| c.sent(Instant::ZERO, &ask(1, 8, Code::Finish)),
            |c| c.crashed(1),
            |c| c.lease_ns = 10,
        ];
        for clear in clear {
            let mut checker = GcChecker::new([&[VssdId(1), VssdId(2)]], u64::MAX);
            let (a, b) = (ask(1, 7, Code::SoftOrOk), ask(2, 9, Code::SoftOrOk));
            checker.sent(Instant::ZERO, &a);
            checker.sent(Instant::ZERO, &b);
            checker
                .arrived(Instant::ZERO, 1, &answer(&a, Code::Accept))
                .unwrap();
            clear(&mut checker);
            let later = Instant::from_nanos(20);
            assert_eq!(checker.arrived(later, 2, &answer(&b, Code::Accept)), Ok(()));
        }
    }

    /// Bug: the checker saw a vSSD collect that had sent its finish before the accept reached it.
    #[test]
    fn who_has_finished_before_the_accept_arrives_does_not_collect() {
        let mut checker = GcChecker::new([&[VssdId(1), VssdId(2)]], u64::MAX);
        let (a, b) = (ask(1, 7, Code::SoftOrOk), ask(2, 9, Code::SoftOrOk));
        checker.sent(Instant::ZERO, &a);
        checker.sent(Instant::ZERO, &ask(1, 8, Code::Finish));
        checker.sent(Instant::ZERO, &b);
        for asked in [&a, &b] {
            let accept = answer(asked, Code::Accept);
            assert_eq!(checker.arrived(Instant::ZERO, 1, &accept), Ok(()));
        }
    }

    /// Bug: a switch passed on a copy of the request after the finish, and the checker took a copy of the accept for another collection.
    #[test]
    fn who_has_finished_does_not_collect_by_late_copies() {
        let mut checker = GcChecker::new([&[VssdId(1), VssdId(2)]], u64::MAX);
        let (a, b) = (ask(1, 7, Code::SoftOrOk), ask(2, 9, Code::SoftOrOk));
        let accepts =
            |checker: &mut GcChecker, asked| checker.arrived(Instant::ZERO, 1, &answer(asked, Code::Accept));
        checker.sent(Instant::ZERO, &a);
        assert_eq!(accepts(&mut checker, &a), Ok(()));
        checker.sent(Instant::ZERO, &ask(1, 8, Code::Finish));
        checker.sent(Instant::ZERO, &a);
        assert_eq!(accepts(&mut checker, &a), Ok(()));
        checker.sent(Instant::ZERO, &b);
        assert_eq!(accepts(&mut checker, &b), Ok(()));
    }

    #[test]
    fn a_renewed_collection_goes_on() {
        let mut checker = GcChecker::new([&[VssdId(1), VssdId(2)]], 100);
        let at = Instant::from_nanos;
        let (a, b) = (ask(1, 0, Code::SoftOrOk), ask(2, 0, Code::SoftOrOk));
        checker.sent(at(0), &a);
        checker.arrived(at(10), 1, &answer(&a, Code::Accept)).unwrap();
        let renewal = ask(1, 0, Code::Regular);
        checker.sent(at(80), &renewal);
        checker.arrived(at(90), 0, &renewal).unwrap();
        checker
            .arrived(at(95), 1, &answer(&renewal, Code::Accept))
            .unwrap();
        checker.sent(at(150), &b);
        assert!(checker.arrived(at(160), 2, &answer(&b, Code::Accept)).is_err());
    }

    #[test]
    fn soft_collections_that_two_tors_accepted_are_caught() {
        let (near, far) = (7, 8);
        let mut checker = GcChecker::new([&[VssdId(1), VssdId(2)]], 100);
        let at = Instant::from_nanos;
        let (a, b) = (ask(1, 0, Code::SoftOrOk), ask(2, 0, Code::SoftOrOk));
        for (header, tor) in [(&a, near), (&b, far)] {
            checker.sent(at(0), header);
            checker.arrived(at(1), tor, header).unwrap();
        }
        checker.arrived(at(2), 1, &answer(&a, Code::Accept)).unwrap();
        checker.tor_restarted(9);
        assert!(checker.arrived(at(3), 2, &answer(&b, Code::Accept)).is_err());
        checker.crashed(2);
        checker.tor_restarted(near);
        checker.sent(at(4), &b);
        checker.arrived(at(5), far, &b).unwrap();
        assert_eq!(
            checker.arrived(at(6), 2, &answer(&b, Code::Accept)),
            Ok(()),
            "forgiven"
        );
    }

    #[test]
    fn a_renewal_at_the_other_tor_keeps_no_lease() {
        let (near, far) = (7, 8);
        let mut checker = GcChecker::new([&[VssdId(1), VssdId(2)]], 100);
        let at = Instant::from_nanos;
        let (a, b) = (ask(1, 0, Code::SoftOrOk), ask(2, 0, Code::SoftOrOk));
        checker.sent(at(0), &a);
        checker.arrived(at(1), near, &a).unwrap();
        checker.arrived(at(2), 1, &answer(&a, Code::Accept)).unwrap();
        let renewal = ask(1, 0, Code::Regular);
        checker.sent(at(80), &renewal);
        checker.arrived(at(90), far, &renewal).unwrap();
        checker.sent(at(110), &b);
        checker.arrived(at(111), near, &b).unwrap();
        assert_eq!(checker.arrived(at(112), 2, &answer(&b, Code::Accept)), Ok(()));
    }

    #[test]
    fn a_delay_is_no_collection() {
        let mut checker = GcChecker::new([&[VssdId(1), VssdId(2)]], u64::MAX);
        let (a, b) = (ask(1, 7, Code::SoftOrOk), ask(2, 9, Code::SoftOrOk));
        checker.sent(Instant::ZERO, &a);
        checker.sent(Instant::ZERO, &b);
        checker
            .arrived(Instant::ZERO, 1, &answer(&a, Code::Accept))
            .unwrap();
        assert_eq!(
            checker.arrived(Instant::ZERO, 2, &answer(&b, Code::Delay)),
            Ok(())
        );
        assert_eq!(checker.accepted(), 1);
    }
}

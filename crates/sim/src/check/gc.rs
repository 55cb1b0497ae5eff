//! At most one replica of a set collects by *soft* request at a time (RackBlox §3.5.1, Algorithm 1 lines 10–22).
//!
//! The checker watches the GC packets on the simulated wire. A replica collects by soft request from the arrival of
//! the ToR's accept until it sends its finish, its lease ends, or it crashes. A ToR that restarts knows nothing of
//! collections under way, so these are forgiven. Regular and background collections are never denied, and not counted.

use super::Violation;
use base::{Addr, Instant, Map, VssdId};
use wire::rack::{Code, Header, flags};

/// Watches who collects.
#[derive(Debug, Default)]
pub struct GcChecker {
    set_of: Map<u32, u32>,
    /// (requester, request) of soft requests sent, to tell what an accept is for.
    asked: Map<(Addr, u64), u32>,
    collectors: Vec<Collector>,
    lease_ns: u64,
    accepted: u64,
}

#[derive(Clone, Copy, Debug)]
struct Collector {
    vssd: VssdId,
    set: u32,
    host: usize,
    since: Instant,
}

impl GcChecker {
    /// Watches replica sets. A collection older than `lease_ns` no longer counts (`u64::MAX`: no leases).
    pub fn new(sets: &[Vec<VssdId>], lease_ns: u64) -> Self {
        let mut set_of = Map::new();
        for (set, vssds) in sets.iter().enumerate() {
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

    /// Soft requests that were accepted so far.
    pub fn accepted(&self) -> u64 {
        self.accepted
    }

    /// A host asks, or says that it is done.
    pub fn sent(&mut self, header: &Header) {
        if header.has(flags::REPLY) {
            return;
        }
        match header.code {
            Code::SoftOrOk => {
                self.asked.insert((header.source, header.request), header.vssd.0);
            }
            Code::Finish => self.collectors.retain(|c| c.vssd != header.vssd),
            // A collection that goes on as a regular or background one is no longer a soft one.
            Code::Regular | Code::Background => self.collectors.retain(|c| c.vssd != header.vssd),
            _ => {}
        }
    }

    /// The ToR's answer arrives at `host`.
    pub fn arrived(&mut self, now: Instant, host: usize, header: &Header) -> Result<(), Violation> {
        if !header.has(flags::REPLY) || !matches!(header.code, Code::Accept | Code::Delay) {
            return Ok(());
        }
        let soft = self.asked.remove(&(header.target, header.request));
        if header.code != Code::Accept || soft != Some(header.vssd.0) {
            return Ok(());
        }
        let Some(&set) = self.set_of.get(&header.vssd.0) else {
            return Ok(());
        };
        self.accepted += 1;
        let lease_ns = self.lease_ns;
        self.collectors
            .retain(|c| c.vssd != header.vssd && now.nanos_since(c.since) < lease_ns);
        let other = self.collectors.iter().find(|c| c.set == set).copied();
        self.collectors.push(Collector {
            vssd: header.vssd,
            set,
            host,
            since: now,
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

    /// A host crashed: it no longer collects.
    pub fn crashed(&mut self, host: usize) {
        self.collectors.retain(|c| c.host != host);
    }

    /// The ToR restarted: collections under way are forgiven.
    pub fn tor_restarted(&mut self) {
        self.collectors.clear();
        self.asked.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let mut checker = GcChecker::new(&[vec![VssdId(1), VssdId(2)]], u64::MAX);
        let (a, b) = (ask(1, 7, Code::SoftOrOk), ask(2, 9, Code::SoftOrOk));
        checker.sent(&a);
        checker.sent(&b);
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
    fn finished_regular_crashed_and_expired_collections_do_not_count() {
        let clear: [fn(&mut GcChecker); 4] = [
            |c| c.sent(&ask(1, 8, Code::Finish)),
            |c| c.sent(&ask(1, 8, Code::Regular)),
            |c| c.crashed(1),
            |c| c.lease_ns = 10,
        ];
        for clear in clear {
            let mut checker = GcChecker::new(&[vec![VssdId(1), VssdId(2)]], u64::MAX);
            let (a, b) = (ask(1, 7, Code::SoftOrOk), ask(2, 9, Code::SoftOrOk));
            checker.sent(&a);
            checker.sent(&b);
            checker
                .arrived(Instant::ZERO, 1, &answer(&a, Code::Accept))
                .unwrap();
            clear(&mut checker);
            let later = Instant::from_nanos(20);
            assert_eq!(checker.arrived(later, 2, &answer(&b, Code::Accept)), Ok(()));
        }
    }

    #[test]
    fn a_delay_is_no_collection() {
        let mut checker = GcChecker::new(&[vec![VssdId(1), VssdId(2)]], u64::MAX);
        let (a, b) = (ask(1, 7, Code::SoftOrOk), ask(2, 9, Code::SoftOrOk));
        checker.sent(&a);
        checker.sent(&b);
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

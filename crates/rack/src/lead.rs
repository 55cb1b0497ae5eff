//! Which of several gateways serves the volumes of a rack: the *lead*. The registry says it, and gives each lead a session
//! higher than any before; nodes then refuse what is sent in a lower one (`dedup`). So it does not matter for what clients
//! read how well a gateway judges that another one is gone: judged wrongly, the lead moves in vain.
//!
//! Every gateway looks from time to time, and asks the lead through the rack's switch whether it is there. One that stands
//! by takes the lead when there is none, or when the lead has been silent for long while it can itself reach the rack.

use crate::registry::{LeadRecord, Snapshot};
use base::{Addr, Duration, Instant};

/// A gateway's knowledge when it looks.
#[derive(Clone, Copy, Debug)]
pub struct Sight {
    /// It serves in this session.
    pub session: Option<u32>,
    /// When the lead answered it last.
    pub heard: Option<Instant>,
    /// At least half of the nodes have answered it lately.
    pub reaches_rack: bool,
}

/// Its next action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Go on serving.
    Keep,
    /// Serve in this session, once the changed snapshot is stored. If somebody else stored first, look again.
    Take(u32),
    /// Stand by, and ask this gateway whether it is there.
    StandBy(Addr),
}

/// One gateway's view of the lead.
#[derive(Clone, Debug)]
pub struct Watch {
    me: Addr,
    silent_after: Duration,
    /// Since when the lead could have been heard.
    since: Option<(LeadRecord, Instant)>,
}

impl Watch {
    /// Of the gateway at `me`. A lead that has not answered for `silent_after` is taken for gone.
    pub fn new(me: Addr, silent_after: Duration) -> Self {
        Self {
            me,
            silent_after,
            since: None,
        }
    }

    /// Whose this is.
    pub fn me(&self) -> Addr {
        self.me
    }

    /// How long a lead may be silent.
    pub fn silent_after(&self) -> Duration {
        self.silent_after
    }

    /// Decides. `Take` has changed the snapshot; sessions are not below `session_min`.
    pub fn look(&mut self, now: Instant, snapshot: &mut Snapshot, sight: Sight, session_min: u32) -> Next {
        let last = snapshot.lead.clone();
        let addr = last.as_ref().and_then(|lead| lead.addr());
        if let (Some(lead), Some(addr)) = (&last, addr) {
            if addr == self.me && sight.session == Some(lead.session) {
                return Next::Keep;
            }
            if addr != self.me && !self.is_silent(now, lead, sight) {
                return Next::StandBy(addr);
            }
        }
        let session = last
            .map_or(0, |lead| lead.session)
            .saturating_add(1)
            .max(session_min);
        snapshot.lead = Some(LeadRecord {
            gateway: self.me.to_string(),
            session,
        });
        Next::Take(session)
    }

    fn is_silent(&mut self, now: Instant, lead: &LeadRecord, sight: Sight) -> bool {
        let since = match &self.since {
            Some((known, since)) if known == lead => *since,
            _ => now,
        };
        // While the rack is out of reach, silence says nothing.
        let heard = sight.heard.map_or(since, |heard| heard.max(since));
        let since = if sight.reaches_rack { heard } else { now };
        self.since = Some((lead.clone(), since));
        now.since(since) >= self.silent_after
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Addr = Addr::new([10, 0, 2, 1], 8888);
    const B: Addr = Addr::new([10, 0, 2, 2], 8888);
    const SILENT: Duration = Duration::from_millis(100);

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn sight(session: Option<u32>, heard: Option<u64>, reaches_rack: bool) -> Sight {
        Sight {
            session,
            heard: heard.map(at),
            reaches_rack,
        }
    }

    fn led_by_a() -> Snapshot {
        let mut snapshot = Snapshot::default();
        let mut a = Watch::new(A, SILENT);
        assert_eq!(
            a.look(at(0), &mut snapshot, sight(None, None, true), 7),
            Next::Take(7)
        );
        assert_eq!(
            a.look(at(1), &mut snapshot, sight(Some(7), None, true), 7),
            Next::Keep
        );
        snapshot
    }

    #[test]
    fn a_lead_that_answers_stays_and_one_that_is_silent_is_replaced() {
        let mut snapshot = led_by_a();
        let (mut a, mut b) = (Watch::new(A, SILENT), Watch::new(B, SILENT));
        let mut look = |now, heard| b.look(at(now), &mut snapshot, sight(None, heard, true), 0);
        assert_eq!(
            look(1000, None),
            Next::StandBy(A),
            "its silence begins when it is looked at"
        );
        assert_eq!(look(1090, Some(1080)), Next::StandBy(A));
        assert_eq!(look(1170, Some(1080)), Next::StandBy(A));
        assert_eq!(look(1180, Some(1080)), Next::Take(8));
        assert_eq!(
            a.look(at(1181), &mut snapshot, sight(Some(7), None, true), 0),
            Next::StandBy(B)
        );
    }

    #[test]
    fn one_that_is_cut_off_itself_takes_no_lead() {
        let mut snapshot = led_by_a();
        let mut b = Watch::new(B, SILENT);
        for now in [0, 500, 1000] {
            let next = b.look(at(now), &mut snapshot, sight(None, None, false), 0);
            assert_eq!(next, Next::StandBy(A));
        }
        // Back again, it gives the lead the whole time to answer.
        let mut look = |now| b.look(at(now), &mut snapshot, sight(None, None, true), 0);
        assert_eq!((look(1050), look(1100)), (Next::StandBy(A), Next::Take(8)));
    }

    #[test]
    fn a_restart_and_a_lead_given_back_wait_for_nobody() {
        let mut snapshot = led_by_a();
        let mut a = Watch::new(A, SILENT);
        assert_eq!(
            a.look(at(9), &mut snapshot, sight(None, None, false), 0),
            Next::Take(8)
        );
        snapshot.lead.as_mut().expect("taken").gateway.clear();
        let mut b = Watch::new(B, SILENT);
        assert_eq!(
            b.look(at(9), &mut snapshot, sight(None, None, false), 0),
            Next::Take(9)
        );
    }
}

//! Whether this gateway serves the volumes: alone it does, and one of several does while it leads (`rack::lead`).

use super::call::{Call, View};
use super::job::{Sight, Step};
use base::{Addr, Duration, Instant};
use rack::control::LeadSeen;
use rack::lead::{Next, Watch};
use rack::registry::{LeadRecord, Snapshot};

/// How a gateway comes to serve the volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// No other gateway uses the registry.
    Alone {
        /// Larger after each start of this gateway.
        session: u32,
    },
    /// Other gateways use it, too.
    Shared(Shared),
}

/// A gateway that shares its registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shared {
    /// Its own address.
    pub me: Addr,
    /// A lead that is silent for so long is replaced.
    pub silent_after: Duration,
    /// Between two looks of the lead at who leads: one that was replaced may not know it for so long.
    pub lead_looks_every: Duration,
    /// Between two looks of a gateway that stands by.
    pub others_look_every: Duration,
    /// Its sessions are not lower than this.
    pub session_min: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It has just started.
    Undecided,
    StandsBy,
    /// The registry is to have it as lead in this session.
    Taking(u32),
    Serves(u32),
}

/// A gateway's view of who serves.
#[derive(Debug)]
pub(super) struct Leadership {
    role: Role,
    watch: Option<Watch>,
    state: State,
    /// It is to look who leads.
    looks: bool,
    look_at: Option<Instant>,
}

impl Leadership {
    /// Of a gateway that starts.
    pub fn new(role: Role) -> Self {
        let watch = match role {
            Role::Alone { .. } => None,
            Role::Shared(shared) => Some(Watch::new(shared.me, shared.silent_after)),
        };
        Self {
            role,
            watch,
            state: State::Undecided,
            looks: true,
            look_at: None,
        }
    }

    /// True if it serves the volumes, as far as it knows.
    pub fn serves(&self) -> bool {
        matches!(self.state, State::Serves(_))
    }

    /// True if other gateways can serve, too.
    pub fn is_shared(&self) -> bool {
        matches!(self.role, Role::Shared(_))
    }

    /// True while it is not known who leads.
    pub fn is_undecided(&self) -> bool {
        matches!(self.state, State::Undecided | State::Taking(_))
    }

    /// True if it has to look who leads.
    pub fn looks(&self) -> bool {
        self.looks
    }

    /// When it looks next.
    pub fn deadline(&self) -> Option<Instant> {
        self.look_at.filter(|_| !self.looks)
    }

    /// Looks if it is time; true if the records and the gateway are to be looked at anew.
    pub fn tick(&mut self, now: Instant) -> bool {
        let due = self.deadline().is_some_and(|at| now >= at);
        self.looks |= due;
        due
    }

    /// Notices that another one has taken the lead; true if it has.
    pub fn is_lost(&mut self, records: &Snapshot, view: Option<&View>) -> bool {
        let (Role::Shared(shared), State::Serves(session)) = (self.role, self.state) else {
            return false;
        };
        let replaced = records.lead != Some(lead(shared.me, session))
            || view.is_some_and(|view| view.session != Some(session));
        if replaced {
            (self.state, self.looks) = (State::Undecided, true);
        }
        replaced
    }

    /// What to do next, `None` if nothing.
    pub fn advance(&mut self, sight: &Sight) -> Option<Step> {
        let shared = match self.role {
            Role::Alone { .. } if self.serves() => return None,
            Role::Alone { session } => return Some(self.serve_alone(sight, session)),
            Role::Shared(shared) => shared,
        };
        if let State::Taking(session) = self.state
            && sight.records.lead == Some(lead(shared.me, session))
        {
            return Some(self.serve(sight, session));
        }
        if !self.looks {
            return None;
        }
        let Some(view) = sight.view else {
            return Some(Step::Look);
        };
        let mut next = sight.records.clone();
        let seen = sees(sight.now, &next, view, shared.silent_after);
        let watch = self.watch.as_mut().expect("it shares the registry");
        match watch.look(sight.now, &mut next, seen, shared.session_min) {
            Next::Keep => {
                self.state = view.session.map_or(self.state, State::Serves);
                self.look_again(sight.now);
                None
            }
            Next::StandBy(peer) => {
                self.state = State::StandsBy;
                self.look_again(sight.now);
                Some(Step::Call(Call::StandBy(peer)))
            }
            Next::Take(session) => {
                // As at a start: an exchange that was not decided is undone.
                next.undo_exchange();
                self.state = State::Taking(session);
                Some(Step::Store(Box::new(next)))
            }
        }
    }

    fn look_again(&mut self, now: Instant) {
        let Role::Shared(shared) = self.role else { return };
        let every = if self.serves() {
            shared.lead_looks_every
        } else {
            shared.others_look_every
        };
        self.looks = false;
        self.look_at = Some(now + every);
    }

    /// Stores before anybody acts on the records: that undoes what an earlier start has not decided, and a store of that
    /// start which is still on its way conflicts.
    fn serve_alone(&mut self, sight: &Sight, session: u32) -> Step {
        let mut next = sight.records.clone();
        if !next.undo_exchange() && self.state == State::Taking(session) {
            return self.serve(sight, session);
        }
        self.state = State::Taking(session);
        Step::Store(Box::new(next))
    }

    fn serve(&mut self, sight: &Sight, session: u32) -> Step {
        self.state = State::Serves(session);
        self.look_again(sight.now);
        Step::Call(Call::Serve {
            session,
            records: Box::new(sight.records.clone()),
        })
    }

    /// It stops: the records in which it does not lead any more, if it led.
    pub fn give_back(&mut self, records: &Snapshot) -> Option<Snapshot> {
        let Role::Shared(shared) = self.role else {
            return None;
        };
        let me = shared.me.to_string();
        let mut next = records.clone();
        let lead = next.lead.as_mut().filter(|lead| lead.gateway == me)?;
        lead.gateway.clear();
        Some(next)
    }
}

fn lead(me: Addr, session: u32) -> LeadRecord {
    LeadRecord {
        gateway: me.to_string(),
        session,
    }
}

fn sees(now: Instant, records: &Snapshot, view: &View, silent_after: Duration) -> rack::lead::Sight {
    let lead = records.lead.as_ref().and_then(LeadRecord::addr);
    let peer = view.peer.filter(|(peer, _)| Some(*peer) == lead);
    let fresh = view.heard.iter().flatten();
    let fresh = fresh.filter(|at| now.since(**at) < silent_after).count();
    // A lead that nodes hear is there, though it may not hear this gateway.
    let is_lead = |seen: &LeadSeen| {
        let lead = records.lead.as_ref();
        lead.is_some_and(|lead| (&lead.gateway, lead.session) == (&seen.gateway, seen.session))
    };
    let seen = view.nodes.iter().filter_map(|node| {
        let (at, status) = node.last.as_ref()?;
        let lead = status.lead.as_ref().filter(|lead| is_lead(lead))?;
        let ago = Duration::from_millis(lead.ago_ms).as_nanos() as u64;
        Some(Instant::from_nanos(at.as_nanos().saturating_sub(ago)))
    });
    rack::lead::Sight {
        session: view.session,
        heard: seen.chain(peer.and_then(|(_, heard)| heard)).max(),
        reaches_rack: 2 * fresh >= view.heard.len(),
    }
}

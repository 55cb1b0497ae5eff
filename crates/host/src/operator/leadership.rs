//! Which volumes this gateway serves, and whether it leads the rack: alone it does all of it, and one of several what the
//! registry has for it (`rack::lead`).
//!
//! The records come first: what they name this start the lead of is served, in the session that they name, and what they
//! do not is left. A volume that is given to another gateway is closed and flushed before the records say so.

use super::call::{Call, View};
use super::command::LeadPlace;
use super::job::{Leading, SOON, Sight, Step};
use crate::gateway::Charge;
use base::event::Lead;
use base::time::earliest;
use base::{Addr, Duration, Instant, VolumeId};
use rack::control::LeadSeen;
use rack::lead::{Seen, Watch};
use rack::registry::{Snapshot, parse_addr};
use std::collections::{BTreeMap, BTreeSet};

/// Requests for a volume that is given away are waited for so long.
const RETIRED_WITHIN: Duration = Duration::from_secs(1);

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
    /// A gateway that is silent for so long loses what it leads.
    pub silent_after: Duration,
    /// Between two looks at the registry while this gateway leads something: one that was replaced may not know it for so
    /// long.
    pub lead_looks_every: Duration,
    /// Between two looks while it leads nothing, and between two questions whether the others are there.
    pub others_look_every: Duration,
    /// Its sessions are not lower than this.
    pub session_min: u32,
}

/// How far a gateway is that is alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It has just started.
    Undecided,
    /// The registry is to have its start.
    Taking,
    Serves,
}

/// A volume that another gateway is to have.
#[derive(Clone, Copy, Debug)]
struct Gift {
    to: Addr,
    /// It is closed by then.
    until: Option<Instant>,
}

/// A gateway's view of what it leads.
#[derive(Debug)]
pub(super) struct Leadership {
    role: Role,
    watch: Option<Watch>,
    state: State,
    /// As the gateway was told: the session in which it leads the rack, and that of each volume.
    rack: Option<u32>,
    told: BTreeMap<VolumeId, u32>,
    /// Those of them that it serves.
    serves: BTreeMap<VolumeId, u32>,
    gifts: BTreeMap<VolumeId, Gift>,
    /// Epoch of the records that it was told of.
    followed: Option<u64>,
    /// The newest epoch that others have told of.
    epoch_told: u64,
    /// It is to look at the records, or only at the other gateways.
    looks: bool,
    asks: bool,
    look_at: Option<Instant>,
    ask_at: Option<Instant>,
}

impl Leading for Leadership {
    fn me(&self) -> Option<Addr> {
        self.watch.as_ref().map(Watch::me)
    }

    fn leads_rack(&self) -> bool {
        self.rack.is_some()
    }

    fn leads(&self, id: VolumeId) -> bool {
        match self.role {
            Role::Alone { .. } => self.rack.is_some(),
            Role::Shared(_) => self.serves.contains_key(&id),
        }
    }
}

impl Leadership {
    /// Of a gateway that starts.
    pub fn new(role: Role) -> Self {
        let watch = match role {
            Role::Alone { .. } => None,
            Role::Shared(shared) => Some(Watch::new(shared.me, shared.silent_after, shared.session_min)),
        };
        Self {
            role,
            watch,
            state: State::Undecided,
            rack: None,
            told: BTreeMap::new(),
            serves: BTreeMap::new(),
            gifts: BTreeMap::new(),
            followed: None,
            epoch_told: 0,
            looks: true,
            asks: false,
            look_at: None,
            ask_at: None,
        }
    }

    /// True if it leads anything.
    pub fn leads_any(&self) -> bool {
        self.rack.is_some() || !self.serves.is_empty()
    }

    /// True if other gateways can serve, too.
    pub fn is_shared(&self) -> bool {
        matches!(self.role, Role::Shared(_))
    }

    /// True while it is not known who leads.
    pub fn is_undecided(&self) -> bool {
        self.state != State::Serves
    }

    /// True if it has to see the gateway.
    pub fn looks(&self) -> bool {
        self.looks || self.asks || !self.gifts.is_empty()
    }

    /// When it looks next.
    pub fn deadline(&self) -> Option<Instant> {
        let look = self.look_at.filter(|_| !self.looks);
        earliest(look, self.ask_at.filter(|_| !self.asks && !self.looks))
    }

    /// Looks if it is time. The gateway is to be looked at anew then, and, if the answer says so, the records are.
    pub fn tick(&mut self, now: Instant) -> Option<bool> {
        if self.deadline().is_none_or(|at| now < at) {
            return None;
        }
        let is_due = |at: Option<Instant>| at.is_some_and(|at| now >= at);
        self.looks |= is_due(self.look_at);
        self.asks |= is_due(self.ask_at);
        Some(self.looks)
    }

    /// What to do next, `None` if nothing. Volumes that are `busy` stay where they are.
    pub fn advance(&mut self, sight: &Sight, busy: &BTreeSet<VolumeId>) -> Option<Step> {
        let shared = match self.role {
            Role::Alone { .. } if self.state == State::Serves => return None,
            Role::Alone { session } => return Some(self.serve_alone(sight, session)),
            Role::Shared(shared) => shared,
        };
        if let Some(view) = sight.view {
            self.note_losses(view);
        }
        if let Some(call) = self.follow(sight.records) {
            return Some(Step::Call(call));
        }
        match self.looks || self.asks {
            true => self.look(sight, shared, busy),
            false => self.hand_over(sight),
        }
    }

    /// Others have told of newer records: they are to be looked at.
    pub fn is_behind(&mut self, records: &Snapshot, view: Option<&View>) -> bool {
        let told = view.map_or(0, |view| view.epoch_told);
        if told <= records.epoch.max(self.epoch_told) {
            return false;
        }
        (self.epoch_told, self.looks) = (told, true);
        true
    }

    /// The gateway may have been told by a node that another one has a volume.
    fn note_losses(&mut self, view: &View) {
        self.serves
            .retain(|id, session| view.leads.get(id) == Some(session));
    }

    /// What the records change for this gateway.
    fn follow(&mut self, records: &Snapshot) -> Option<Call> {
        let watch = self.watch.as_ref().expect("it shares the registry");
        if self.followed == Some(records.epoch) {
            return None;
        }
        let session = watch.rack_session(records);
        if session != self.rack {
            let was = core::mem::replace(&mut self.rack, session);
            let rack = records.rack;
            return Some(Call::LeadRack { rack, session, was });
        }
        let led = records.volumes.iter();
        let led = led.filter_map(|volume| Some((volume.volume(), watch.session(volume)?)));
        let led: BTreeMap<VolumeId, u32> = led.collect();
        let is_over = |id: &VolumeId, session: &u32| led.get(id) != Some(session);
        let over = self.told.iter().filter(|(id, session)| is_over(id, session));
        let over: Vec<VolumeId> = over.map(|(id, _)| *id).collect();
        self.told.retain(|id, session| !is_over(id, session));
        if !over.is_empty() {
            let why = |id: VolumeId| match self.gifts.remove(&id) {
                Some(_) => (id, Lead::Given),
                None => (id, Lead::Named),
            };
            let over: Vec<(VolumeId, Lead)> = over.into_iter().map(why).collect();
            self.serves.retain(|id, _| self.told.contains_key(id));
            return Some(Call::Leave(over));
        }
        let new = led.iter().filter(|(id, _)| !self.told.contains_key(id));
        let charge = |(&id, &session): (&VolumeId, &u32)| Charge {
            record: records.volume_of(id).expect("it is led").clone(),
            session,
            opens: !records.is_deleting(id),
        };
        let new: Vec<Charge> = new.map(charge).collect();
        if !new.is_empty() {
            let sessions = new.iter().map(|charge| (charge.record.volume(), charge.session));
            self.told.extend(sessions.clone());
            self.serves.extend(sessions);
            return Some(Call::Lead {
                rack: records.rack,
                volumes: new,
            });
        }
        self.followed = Some(records.epoch);
        None
    }

    fn look(&mut self, sight: &Sight, shared: Shared, busy: &BTreeSet<VolumeId>) -> Option<Step> {
        let Some(view) = sight.view else {
            return Some(Step::Look);
        };
        let (now, watch) = (sight.now, self.watch.as_mut().expect("it shares the registry"));
        let busy: BTreeSet<VolumeId> = busy.iter().chain(self.gifts.keys()).copied().collect();
        let peers = peers(now, view);
        let fresh = view.heard.iter().flatten();
        let fresh = fresh
            .filter(|at| now.since(**at) < shared.silent_after / 2)
            .count();
        let seen = rack::lead::Sight {
            serves: &self.serves,
            busy: &busy,
            peers: &peers,
            reaches_rack: 2 * fresh >= view.heard.len(),
        };
        // One that has fallen silent is not waited for.
        if watch.hear(now, sight.records, &seen) || self.looks {
            let mut next = sight.records.clone();
            let plan = watch.look(now, &mut next, &seen);
            if plan.store {
                self.looks = true;
                return Some(Step::Store(Box::new(next)));
            }
            // One after the other: what is on its way is not counted yet.
            if self.gifts.is_empty() {
                let gifts = plan.give.into_iter();
                self.gifts
                    .extend(gifts.map(|(id, to)| (id, Gift { to, until: None })));
            }
            self.state = State::Serves;
            let leads = (self.rack.is_some() || !self.told.is_empty()) && !plan.is_unled;
            self.look_at = Some(
                now + match leads {
                    true => shared.lead_looks_every,
                    false => shared.others_look_every,
                },
            );
        }
        (self.looks, self.asks) = (false, false);
        self.ask_at = Some(now + shared.others_look_every);
        let watch = self.watch.as_ref().expect("it shares the registry");
        let peers = watch.peers(sight.records).into_iter().collect();
        Some(Step::Call(Call::Watch {
            peers,
            epoch: sight.records.epoch,
        }))
    }

    /// Closes what another gateway is to have, and lets the records say so.
    fn hand_over(&mut self, sight: &Sight) -> Option<Step> {
        if self.gifts.is_empty() {
            return None;
        }
        self.gifts.retain(|id, _| self.told.contains_key(id));
        let new = self.gifts.iter_mut().filter(|(_, gift)| gift.until.is_none());
        let mut closed = Vec::new();
        for (id, gift) in new {
            gift.until = Some(sight.now + RETIRED_WITHIN);
            self.serves.remove(id);
            closed.push(*id);
        }
        if !closed.is_empty() {
            return Some(Step::Call(Call::Retire(closed)));
        }
        let Some(view) = sight.view else {
            return Some(Step::Look);
        };
        let is_late = |gift: &Gift| gift.until.is_some_and(|until| sight.now >= until);
        let is_closed = |(id, gift): &(&VolumeId, &Gift)| !view.retiring.contains(id) || is_late(gift);
        let mut next = sight.records.clone();
        for (id, gift) in self.gifts.iter().filter(is_closed) {
            let lead = next.volume_mut(*id).and_then(|volume| volume.lead.as_mut());
            if let Some(lead) = lead {
                lead.give_back(Some(gift.to));
            }
        }
        Some(match next == *sight.records {
            true => Step::Wait(SOON),
            false => Step::Store(Box::new(next)),
        })
    }

    /// Stores before anybody acts on the records: that undoes what an earlier start has not decided, and a store of that
    /// start which is still on its way conflicts.
    fn serve_alone(&mut self, sight: &Sight, session: u32) -> Step {
        let mut next = sight.records.clone();
        // Of gateways that shared this registry before.
        let is_led = next.volumes.iter().any(|volume| volume.lead.is_some());
        next.volumes.iter_mut().for_each(|volume| volume.lead = None);
        let is_settled = !next.undo_exchange() && !is_led && next.gathering.take().is_none();
        if is_settled && self.state == State::Taking {
            (self.state, self.rack, self.looks) = (State::Serves, Some(session), false);
            return Step::Call(Call::Serve {
                session,
                records: Box::new(sight.records.clone()),
            });
        }
        self.state = State::Taking;
        Step::Store(Box::new(next))
    }

    /// Names this gateway the lead of volumes that are new.
    pub fn name_new(&mut self, next: &mut Snapshot) {
        let Some(watch) = &mut self.watch else { return };
        let new = next
            .volumes
            .iter()
            .filter(|volume| volume.lead.is_none() && !volume.ready);
        let new: Vec<VolumeId> = new.map(|volume| volume.volume()).collect();
        for id in new {
            let lead = watch.name(next, id);
            if let Some(volume) = next.volume_mut(id) {
                volume.lead = Some(lead);
            }
        }
    }

    /// It stops: the records in which it does not lead any more, if it led.
    pub fn give_back(&mut self, records: &Snapshot) -> Option<Snapshot> {
        let me = self.me()?;
        let mut next = records.clone();
        let leads = next.volumes.iter_mut().filter_map(|volume| volume.lead.as_mut());
        for lead in leads.chain(&mut next.lead).filter(|lead| lead.is_of(me)) {
            lead.give_back(None);
        }
        (next != *records).then_some(next)
    }
}

/// The other gateways, as they have answered. One that nodes hear is there, though it may not hear this gateway.
fn peers(now: Instant, view: &View) -> Vec<Seen> {
    let told = |seen: &LeadSeen, at: Instant| {
        let ago = Duration::from_millis(seen.ago_ms).as_nanos() as u64;
        let heard = Instant::from_nanos(at.as_nanos().saturating_sub(ago));
        Some((parse_addr(&seen.gateway)?, heard))
    };
    let nodes = view.nodes.iter().filter_map(|node| node.last.as_ref());
    let told: Vec<(Addr, Instant)> = nodes
        .flat_map(|(at, status)| status.gateways.iter().filter_map(move |seen| told(seen, *at)))
        .collect();
    let heard = |peer: &Seen| {
        let by_nodes = told.iter().filter(|(addr, _)| *addr == peer.addr);
        by_nodes.map(|(_, at)| (*at).min(now)).chain(peer.heard).max()
    };
    let peer = |peer: &Seen| Seen {
        heard: heard(peer),
        ..*peer
    };
    view.peers.iter().map(peer).collect()
}

/// The gateway that leads a volume, or the rack, if one does.
pub(super) fn place_of_lead(
    records: &Snapshot,
    volume: Option<VolumeId>,
    asked: Option<Addr>,
) -> Option<LeadPlace> {
    let volume = volume.and_then(|id| records.volume_of(id));
    let lead = match volume {
        Some(volume) => records.lead_of(volume),
        None => records.lead.as_ref(),
    };
    let lead = lead.filter(|lead| !lead.gateway.is_empty())?;
    let mut gateways = records.gateways.iter();
    let known = gateways.find(|known| known.addr == lead.gateway);
    Some(LeadPlace {
        rack: records.rack,
        asked: asked.map_or_else(String::new, |addr| addr.to_string()),
        gateway: lead.gateway.clone(),
        control: known.map_or_else(String::new, |known| known.control.clone()),
    })
}

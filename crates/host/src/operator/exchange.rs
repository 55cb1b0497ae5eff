//! Two vSSDs exchange their nodes while clients go on (`rack::exchange`). A start undoes what was not decided, and
//! completes what was.

use super::call::{Call, VolumeView};
use super::command::{Done, NotExchanged, Refusal};
use super::job::{BACKGROUND, LATER, Leading, Sight, Step};
use crate::gateway::VolumeState;
use base::{Addr, Duration, Instant, VolumeId, VssdId};
use rack::exchange::{ChangeState, Exchange, ExchangeError, Next};
use rack::registry::{GatheringRecord, SetRecord, Snapshot, VolumeRecord, parse_addr};

/// Another gateway gives a volume away in this time.
const GATHERED_WITHIN: Duration = Duration::from_secs(10);
/// A copy that is not complete after this is given up.
const JOINED_WITHIN: Duration = Duration::from_secs(60 * 60);
/// Once decided it takes a moment, unless a node is away.
const OVER_WITHIN: Duration = Duration::from_secs(30);

/// Two vSSDs that exchange their nodes.
#[derive(Debug)]
pub(super) struct Swap {
    /// Which, if it was not begun by an earlier start.
    pair: Option<(VssdId, VssdId)>,
    exchange: Option<Exchange>,
    /// The records know of it.
    is_planned: bool,
    is_decided: bool,
    /// The epoch of the records that the gateway has.
    handed_on: u64,
    began: Option<Instant>,
    until: Option<Instant>,
    /// How long copying may take.
    joined_within: Duration,
    refused: Option<NotExchanged>,
    /// The volumes come to this gateway, until then.
    gathers_until: Option<Instant>,
    /// It does not begin.
    failed: Option<Refusal>,
}

/// True if volumes come to this gateway for an exchange.
pub(super) fn gathers(records: &Snapshot, me: Option<Addr>) -> bool {
    let gathering = records.gathering.as_ref();
    gathering.is_some_and(|gathering| parse_addr(&gathering.gateway) == me)
}

impl Swap {
    /// Two vSSDs that are to exchange their nodes.
    pub fn new(a: VssdId, b: VssdId, joined_within: Option<Duration>) -> Self {
        Self {
            pair: Some((a, b)),
            exchange: None,
            is_planned: false,
            is_decided: false,
            handed_on: 0,
            began: None,
            until: None,
            joined_within: joined_within.unwrap_or(JOINED_WITHIN),
            refused: None,
            gathers_until: None,
            failed: None,
        }
    }

    /// A decided exchange that an earlier start has left.
    pub fn resume(exchange: Exchange) -> Self {
        Self {
            pair: None,
            exchange: Some(exchange),
            is_planned: true,
            ..Self::new(VssdId(0), VssdId(0), None)
        }
    }

    /// Nothing is to be exchanged any more of what was gathered.
    pub fn end_gathering() -> Self {
        Self {
            pair: None,
            failed: Some(Refusal::Replaced),
            ..Self::new(VssdId(0), VssdId(0), None)
        }
    }

    /// The volumes that this gateway leads meanwhile. Before it is planned, the other one may still come here.
    pub fn subjects(&self, records: &Snapshot) -> Vec<VolumeId> {
        match self.pair {
            _ if self.is_planned => self.volumes().to_vec(),
            Some((first, _)) => volume_of(records, first).into_iter().collect(),
            None => Vec::new(),
        }
    }

    /// The volumes that it concerns.
    pub fn volumes(&self) -> &[VolumeId] {
        self.exchange.as_ref().map_or(&[], Exchange::volumes)
    }

    /// Next step.
    pub fn advance(&mut self, sight: &Sight) -> Step {
        let began = *self.began.get_or_insert(sight.now);
        self.is_planned |= self
            .exchange
            .as_ref()
            .is_some_and(|exchange| exchange.is_in(sight.records));
        if !self.is_planned {
            let step = match self.failed.clone() {
                Some(refusal) => Step::Finish(Err(refusal)),
                None => self.plan(sight).unwrap_or_else(|step| step),
            };
            return self.end(sight, step);
        }
        let exchange = self.exchange.as_ref().expect("it is planned");
        let until = *self.until.get_or_insert(sight.now + self.joined_within);
        if exchange.is_decided(sight.records) && !self.is_decided {
            self.is_decided = true;
            self.until = Some(sight.now + OVER_WITHIN);
        }
        if self.handed_on != sight.records.epoch {
            self.handed_on = sight.records.epoch;
            let known = exchange.volumes().iter();
            let records = known.filter_map(|&id| sight.records.volume_of(id).cloned());
            return Step::Call(Call::Change(records.collect()));
        }
        self.follow(sight, began, until)
    }

    /// It ends before it has begun: nothing is gathered for it any more.
    fn end(&mut self, sight: &Sight, step: Step) -> Step {
        let Step::Finish(Err(refusal)) = &step else {
            return step;
        };
        let me = sight.leadership.and_then(Leading::me);
        if me.is_none() || !gathers(sight.records, me) {
            return step;
        }
        self.failed = Some(refusal.clone());
        sight.change(|next| next.gathering = None)
    }

    /// Has both volumes come to this gateway. True if they are here.
    fn gather(&mut self, sight: &Sight, (a, b): (VssdId, VssdId)) -> Result<(), Step> {
        let Some((leadership, me)) = sight.leadership.and_then(|known| Some((known, known.me()?))) else {
            return Ok(());
        };
        let volumes = [a, b]
            .into_iter()
            .filter_map(|vssd| volume_of(sight.records, vssd));
        let volumes: Vec<VolumeId> = volumes.collect();
        let mine = gathers(sight.records, Some(me));
        if sight.records.gathering.is_some() && !mine {
            return Err(Step::Finish(Err(Refusal::Exchange(ExchangeError::Unfinished))));
        }
        if volumes.iter().all(|id| leadership.leads(*id)) {
            return Ok(());
        }
        // What cannot be exchanged is not gathered.
        let mut tried = sight.records.clone();
        Exchange::plan(&mut tried, a, b).map_err(|error| Step::Finish(Err(Refusal::Exchange(error))))?;
        if !mine {
            self.gathers_until = Some(sight.now + GATHERED_WITHIN);
            return Err(sight.change(|next| {
                next.gathering = Some(GatheringRecord {
                    gateway: me.to_string(),
                    volumes: volumes.iter().map(|id| id.0).collect(),
                });
            }));
        }
        let until = *self.gathers_until.get_or_insert(sight.now + GATHERED_WITHIN);
        Err(match sight.now >= until {
            true => Step::Finish(Err(Refusal::ExchangeNotReady)),
            false => Step::Wait(LATER),
        })
    }

    /// Stores what is to be made.
    fn plan(&mut self, sight: &Sight) -> Result<Step, Step> {
        let (a, b) = self.pair.expect("it has just begun");
        if !sight.is_awaited {
            return Err(Step::Finish(Err(Refusal::Replaced)));
        }
        self.gather(sight, (a, b))?;
        let mut next = sight.records.clone();
        next.gathering = None;
        let exchange =
            Exchange::plan(&mut next, a, b).map_err(|error| Step::Finish(Err(Refusal::Exchange(error))))?;
        let volumes = exchange.volumes().to_vec();
        self.exchange = Some(exchange);
        for id in volumes {
            let seen = sight.volume(id).ok_or(Step::Look)?;
            // One that has just come is being opened.
            let opens = matches!(seen.state, Some(VolumeState::Opening) | None);
            if opens && self.gathers_until.is_some_and(|until| sight.now < until) {
                return Err(Step::Wait(LATER));
            }
            if seen.state != Some(VolumeState::Ready) || sight.records.is_deleting(id) {
                return Err(Step::Finish(Err(Refusal::ExchangeNotReady)));
            }
        }
        Ok(Step::Store(Box::new(next)))
    }

    /// Goes on when all vSSDs are as far.
    fn follow(&mut self, sight: &Sight, began: Instant, until: Instant) -> Step {
        let exchange = self.exchange.as_ref().expect("it is planned");
        let mut states = Vec::new();
        // With one of its volumes deleted an exchange makes no sense.
        let mut is_lost = false;
        for &id in exchange.volumes() {
            if sight.records.volume_of(id).is_none() || sight.records.is_deleting(id) {
                is_lost = true;
                continue;
            }
            let Some(seen) = sight.volume(id) else {
                return Step::Look;
            };
            let record = sight.records.volume_of(id).expect("asked above");
            states.push((id, exchange_state(record, seen)));
        }
        let is_late = sight.now >= until;
        let decided = exchange.is_decided(sight.records);
        if !decided && self.refused.is_none() {
            self.refused = states.iter().find_map(|(_, state)| match state {
                ChangeState::Failed(vssd, code) => Some(NotExchanged::Refused(*vssd, *code)),
                _ if is_lost => Some(NotExchanged::Deleted),
                _ if is_late => Some(NotExchanged::Late),
                _ => None,
            });
        }
        let state = |id| {
            let known = states.iter().find(|(volume, _)| *volume == id);
            known.map_or(ChangeState::Done, |(_, state)| *state)
        };
        let mut next = sight.records.clone();
        let hurry = is_late || is_lost || !sight.is_awaited;
        match exchange.next(&mut next, hurry, state) {
            Next::Wait if decided && is_late && sight.is_awaited => Step::Answer(Refusal::ExchangeUnfinished),
            Next::Wait if sight.is_awaited => Step::Wait(LATER),
            Next::Wait => Step::Wait(BACKGROUND),
            Next::Over(exchanged) if next == *sight.records => Step::Finish(if exchanged {
                Ok(Done::Exchanged(sight.now.since(began)))
            } else {
                let why = self.refused.take().unwrap_or(NotExchanged::Late);
                Err(Refusal::NotExchanged(why))
            }),
            Next::Store | Next::Over(_) => Step::Store(Box::new(next)),
        }
    }
}

/// The volume that has a replica.
fn volume_of(records: &Snapshot, vssd: VssdId) -> Option<VolumeId> {
    let has = |set: &SetRecord| set.replicas.iter().any(|replica| replica.vssd == vssd.0);
    let mut volumes = records.volumes.iter();
    let found = volumes.find(|volume| volume.sets.iter().any(has));
    found.map(VolumeRecord::volume)
}

/// How far the sets of a volume are that exchange places.
fn exchange_state(record: &VolumeRecord, seen: &VolumeView) -> ChangeState {
    let changes = |set: &SetRecord| set.exchanges() || set.ends_exchange();
    let places = (0..record.sets.len()).filter(|&place| changes(&record.sets[place]));
    let mut whole = None;
    for place in places {
        // A volume that is not open tells nothing yet.
        let state = seen.changes.get(place).copied().unwrap_or(ChangeState::Busy);
        whole = match (whole, state) {
            (Some(ChangeState::Failed(..)), _) => whole,
            (_, ChangeState::Failed(..)) | (None, _) => Some(state),
            (Some(known), state) if known == state => whole,
            _ => Some(ChangeState::Busy),
        };
    }
    whole.unwrap_or(ChangeState::Done)
}

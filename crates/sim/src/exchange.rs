//! Exchanges of vSSDs in a simulated rack: the part that the control plane has in a real one. It keeps the registry, which
//! survives everything, and drives `rack::exchange` through the gateways.

use base::{Instant, Rng, VolumeId, VssdId};
use rack::exchange::{ChangeState, Exchange, Next};
use rack::registry::{Snapshot, VolumeRecord};

/// Between two looks at an exchange under way, in ns.
const LOOK_EVERY_NS: u64 = 200_000;
/// An exchange that is not over so long after all else is well has lost its way, in ns.
const OVER_WITHIN_NS: u64 = 300_000_000_000;
/// So long after it should have been decided an exchange is left unfinished, if a node may refuse for ever, in ns.
const GIVES_UP_WITHIN_NS: u64 = 5_000_000_000;
/// Pairs of vSSDs that are tried for one exchange: not every two can exchange places.
const TRIES: u32 = 32;

/// Exchanges to come, and what became of them.
#[derive(Debug)]
pub struct Operator {
    /// The registry.
    pub snapshot: Snapshot,
    /// When exchanges begin, and for how long they may take before they are undone, in ns; the last first.
    plan: Vec<(u64, u64)>,
    rng: Rng,
    current: Option<Exchange>,
    /// When the one under way is undone if it is not decided, and when it is to be over.
    hurry_at: u64,
    over_by: u64,
    /// The snapshot was stored and is to be handed on.
    stored: bool,
    /// A node may refuse its part for ever: an exchange that does not end is left as it is.
    gives_up: bool,
    counts: Counts,
}

/// What became of exchanges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Places were exchanged.
    pub exchanged: u32,
    /// They were not: undone, because of a crash, a refusal or the time.
    pub undone: u32,
    /// No two vSSDs could have exchanged places.
    pub impossible: u32,
    /// Left unfinished, as a node refuses its part.
    pub unfinished: u32,
}

/// A gateway as the operator sees it; `None` for one that is down.
pub trait Gateways {
    /// Every vSSD of a volume serves.
    fn is_ready(&self, volume: VolumeId) -> bool;
    /// How far a volume's changes are.
    fn state(&self, volume: VolumeId) -> Option<ChangeState>;
    /// Hands a volume's record on.
    fn change(&mut self, record: &VolumeRecord);
}

impl Operator {
    /// Without exchanges.
    pub fn new(snapshot: Snapshot) -> Self {
        Self {
            snapshot,
            plan: Vec::new(),
            rng: Rng::new(0),
            current: None,
            hurry_at: 0,
            over_by: 0,
            stored: false,
            gives_up: false,
            counts: Counts::default(),
        }
    }

    /// Plans exchanges of vSSDs that are drawn from a seed: (begin, limit) in ns, in order of time.
    pub fn plan(&mut self, seed: u64, plan: &[(u64, u64)]) {
        self.rng = Rng::new(seed);
        self.plan = plan.iter().rev().copied().collect();
    }

    /// A node whose medium failed refuses its part until it starts again, and none starts it: the operator leaves an
    /// exchange that waits for it, and begins no other.
    pub fn give_up(&mut self) {
        self.gives_up = true;
    }

    /// What became of the exchanges so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// When to [`attend`](Operator::attend) next; `None` when nothing is left to do.
    pub fn attend_at(&self, now: Instant) -> Option<Instant> {
        if self.current.is_some() {
            return Some(Instant::from_nanos(now.as_nanos() + LOOK_EVERY_NS));
        }
        let next = self.plan.last()?;
        let again = now.as_nanos() + LOOK_EVERY_NS;
        Some(Instant::from_nanos(if next.0 > now.as_nanos() {
            next.0
        } else {
            again
        }))
    }

    /// A gateway starts, and the operator with it: what was not decided is undone.
    pub fn restart(&mut self) {
        if let Some((exchange, _)) = Exchange::resume(&mut self.snapshot) {
            self.current = Some(exchange);
            self.stored = true;
        }
    }

    /// Does what is due. Storing and handing on are two steps, so that a crash can come in between.
    ///
    /// # Panics
    /// If an exchange does not come to an end, and it does not [give up](Operator::give_up).
    pub fn attend(&mut self, now: Instant, gateways: &mut impl Gateways) {
        let now = now.as_nanos();
        if core::mem::take(&mut self.stored) {
            for record in self.snapshot.exchanging() {
                gateways.change(record);
            }
            return;
        }
        let Some(exchange) = &mut self.current else {
            return self.begin(now, gateways);
        };
        if self.gives_up && now >= self.hurry_at + GIVES_UP_WITHIN_NS {
            self.counts.unfinished += 1;
            self.current = None;
            return self.plan.clear();
        }
        assert!(now < self.over_by, "an exchange does not end: {exchange:?}");
        let state = |volume| gateways.state(volume).unwrap_or(ChangeState::Busy);
        match exchange.next(&mut self.snapshot, now >= self.hurry_at, state) {
            Next::Wait => {}
            Next::Store => self.stored = true,
            Next::Over(exchanged) => {
                self.current = None;
                self.counts.exchanged += u32::from(exchanged);
                self.counts.undone += u32::from(!exchanged);
            }
        }
    }

    /// Begins an exchange when every volume is made.
    fn begin(&mut self, now: u64, gateways: &impl Gateways) {
        let Some(&(at, limit)) = self.plan.last().filter(|(at, _)| now >= *at) else {
            return;
        };
        for volume in &mut self.snapshot.volumes {
            volume.ready |= gateways.is_ready(volume.volume());
        }
        if self.snapshot.volumes.iter().any(|volume| !volume.ready) {
            return;
        }
        self.plan.pop();
        let replicas = self.snapshot.volumes.iter().flat_map(|volume| &volume.sets);
        let vssds: Vec<u32> = replicas
            .flat_map(|set| set.replicas.iter().map(|replica| replica.vssd))
            .collect();
        let mut draw = || VssdId(vssds[self.rng.below(vssds.len() as u64) as usize]);
        let tries: Vec<_> = (0..TRIES).map(|_| (draw(), draw())).collect();
        let planned = tries
            .into_iter()
            .find_map(|(a, b)| Exchange::plan(&mut self.snapshot, a, b).ok());
        match planned {
            Some(exchange) => {
                self.current = Some(exchange);
                self.stored = true;
                self.hurry_at = at + limit;
                self.over_by = at + limit + OVER_WITHIN_NS;
            }
            None => self.counts.impossible += 1,
        }
    }
}

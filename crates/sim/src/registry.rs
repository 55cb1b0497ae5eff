//! A registry that is slow, fails, keeps its answers to itself, and has other writers. What it stored survives everything.

use base::{Addr, Instant, NodeId, Rng};
use host::operator::{Input, RegistryCall};
use rack::registry::{GatewayRecord, NodeRecord, RegistryError, Snapshot};

/// A late store happens so much after the answer that leaves it open, in ns.
const LATE_NS_MAX: u64 = 30_000_000;

/// How a registry behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RegistryModel {
    /// A call takes up to this, in ns; without, it is answered at once.
    pub latency_ns_max: u64,
    /// Share of calls that fail without effect. The operator cannot tell a store of these from the next kind.
    pub failing: f64,
    /// Share of stores whose outcome is unknown: they have happened, or will, or never do.
    pub unknown: f64,
    /// Share of stores before which somebody else stores something.
    pub conflicting: f64,
    /// It does not answer from then, until then, in ns.
    pub away_ns: (u64, u64),
    /// The gateway of this index does not reach it from then on, in ns.
    pub cut_off: Option<(usize, u64)>,
}

/// A deliberate break of the control plane, which the checkers must catch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ControlCanary {
    /// None.
    #[default]
    None,
    /// Stores are answered that did not happen, as if the operator answered commands before them.
    ForgetStores,
    /// The operator takes a store for done whose outcome is unknown.
    TrustUnknown,
    /// Clients see a volume's new size before the registry has it.
    ShowEarly,
    /// Of the two halves of an exchange's decision one is stored.
    HalfDecision,
    /// Nodes are not asked to delete what is deleted.
    KeepDeleted,
}

/// Share of stores that [`ControlCanary::ForgetStores`] forgets.
const FORGOTTEN: f64 = 0.3;

/// The asker: the gateway's index, and which start of it.
pub type Asker = (usize, u32);

#[derive(Debug)]
struct Pending {
    at: u64,
    asker: Asker,
    call: RegistryCall,
}

/// The registry of a simulated rack.
#[derive(Debug)]
pub struct SimRegistry {
    stored: Snapshot,
    model: RegistryModel,
    canary: ControlCanary,
    rng: Rng,
    pending: Vec<Pending>,
    /// Stores that nobody waits for any more.
    late: Vec<(u64, Box<Snapshot>)>,
    sabotaged: u64,
}

impl SimRegistry {
    /// One that is quick and sound.
    pub fn new(stored: Snapshot) -> Self {
        Self {
            stored,
            model: RegistryModel::default(),
            canary: ControlCanary::None,
            rng: Rng::new(0),
            pending: Vec::new(),
            late: Vec::new(),
            sabotaged: 0,
        }
    }

    /// Gives it this behaviour.
    pub fn behave(&mut self, model: RegistryModel, canary: ControlCanary, seed: u64) {
        (self.model, self.canary, self.rng) = (model, canary, Rng::new(seed));
    }

    /// The rack has these nodes.
    pub fn found(&mut self, nodes: &[(NodeId, Addr)]) {
        let record = |(id, addr): &(NodeId, Addr)| NodeRecord {
            id: id.0,
            addr: addr.to_string(),
        };
        self.stored.nodes = nodes.iter().map(record).collect();
    }

    /// It has these gateways, if there are several.
    pub fn enter(&mut self, gateways: &[Addr]) {
        let record = |addr: &Addr| GatewayRecord {
            addr: addr.to_string(),
            ..GatewayRecord::default()
        };
        self.stored.gateways = gateways.iter().map(record).collect();
    }

    /// From now on it is as slow as before, and otherwise sound.
    pub fn calm(&mut self) {
        self.model = RegistryModel {
            latency_ns_max: self.model.latency_ns_max,
            ..RegistryModel::default()
        };
    }

    /// The stored record.
    pub fn stored(&self) -> &Snapshot {
        &self.stored
    }

    /// The number of things that the canary broke.
    pub fn sabotaged(&self) -> u64 {
        self.sabotaged
    }

    /// Takes a call; the answer if it comes at once.
    pub fn ask(&mut self, now: Instant, asker: Asker, call: RegistryCall) -> Option<Input> {
        if self.model.latency_ns_max == 0 {
            return Some(self.answer(now.as_nanos(), asker, call));
        }
        let at = now.as_nanos() + 1 + self.rng.below(self.model.latency_ns_max);
        self.pending.push(Pending { at, asker, call });
        None
    }

    /// When it does something next.
    pub fn deadline(&self) -> Option<Instant> {
        let calls = self.pending.iter().map(|pending| pending.at);
        let stores = self.late.iter().map(|(at, _)| *at);
        calls.chain(stores).min().map(Instant::from_nanos)
    }

    /// An answer that is due.
    pub fn due(&mut self, now: Instant) -> Option<(Asker, Input)> {
        let now = now.as_nanos();
        while let Some(at) = self.late.iter().position(|(at, _)| *at <= now) {
            let (_, snapshot) = self.late.remove(at);
            // Too late, if others have stored meanwhile.
            let _ = self.keep(&snapshot);
        }
        let at = self.pending.iter().position(|pending| pending.at <= now)?;
        let pending = self.pending.remove(at);
        Some((pending.asker, self.answer(now, pending.asker, pending.call)))
    }

    fn answer(&mut self, now: u64, asker: Asker, call: RegistryCall) -> Input {
        let (from, until) = self.model.away_ns;
        let cut_off = self.model.cut_off;
        let is_away =
            (from..until).contains(&now) || cut_off.is_some_and(|(whom, at)| whom == asker.0 && now >= at);
        let fails = is_away || self.rng.chance(self.model.failing);
        let away = || RegistryError::Unavailable("no answer".into());
        let snapshot = match call {
            RegistryCall::Load if fails => return Input::Loaded(Err(away())),
            RegistryCall::Load => return Input::Loaded(Ok(Box::new(self.stored.clone()))),
            RegistryCall::Store(_) if fails => return Input::Stored(Err(away())),
            RegistryCall::Store(snapshot) => snapshot,
        };
        if self.canary == ControlCanary::ForgetStores && self.rng.chance(FORGOTTEN) {
            self.sabotaged += 1;
            return Input::Stored(Ok(()));
        }
        if self.rng.chance(self.model.conflicting) {
            self.stored.epoch += 1;
        }
        if self.rng.chance(self.model.unknown) {
            match self.rng.below(3) {
                0 => drop(self.keep(&snapshot)),
                1 => self.late.push((now + self.rng.below(LATE_NS_MAX), snapshot)),
                _ => {}
            }
            if self.canary == ControlCanary::TrustUnknown {
                self.sabotaged += 1;
                return Input::Stored(Ok(()));
            }
            return Input::Stored(Err(away()));
        }
        Input::Stored(self.keep(&snapshot))
    }

    fn keep(&mut self, snapshot: &Snapshot) -> Result<(), RegistryError> {
        if self.stored.epoch != snapshot.epoch {
            return Err(RegistryError::Conflict);
        }
        let decides = |old: &Snapshot| {
            old.volumes
                .iter()
                .flat_map(|volume| &volume.sets)
                .any(|set| set.joining.is_some())
        };
        let before = self.stored.clone();
        self.stored = snapshot.clone();
        self.stored.epoch += 1;
        if self.canary == ControlCanary::HalfDecision
            && decides(&before)
            && let Some(first) = before.exchanging().next()
            && let Some(record) = self.stored.volume_mut(first.volume())
        {
            self.sabotaged += 1;
            *record = first.clone();
        }
        Ok(())
    }
}

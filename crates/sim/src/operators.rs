//! The operators of a simulated rack: the real ones (`host::operator`), each beside its gateway, with a modelled registry
//! and commands. A gateway that crashes takes its operator along.

use crate::commands::{Commands, Counts, Wish};
use crate::reached::Changes;
use crate::registry::{Asker, ControlCanary, RegistryModel, SimRegistry};
use crate::world::World;
use base::event::Kind;
use base::time::earliest;
use base::{Addr, Duration, Instant, Machine, NodeId, VolumeId, VssdId};
use host::operator::{
    Call, Input as Told, Operator, OperatorConfig, Output as Asks, RegistryCall, Role, carry_out,
};
use host::{Gateway, Input, Output};
use rack::control::NodeStatus;
use rack::heal::Rules;
use rack::level::Levels;
use rack::registry::{
    DrainRecord, JoiningRecord, LeavingRecord, ReplicaRecord, SetRecord, Snapshot, VolumeRecord,
};
use rack::room::{Rooms, Site};
use std::collections::{BTreeMap, BTreeSet};
use uuid::Uuid;

/// A command that finds no gateway that serves is tried again after this, in ns.
const AGAIN_NS: u64 = 1_000_000;
/// Everything is over so long after the last command, in ns, or it never will be.
const OVER_WITHIN_NS: u64 = 400_000_000_000;
/// So long after the last exchange should have been decided, a run with failed media is left as it is, in ns.
const LEAVES_AFTER_NS: u64 = 5_000_000_000;

/// A host that may be a gateway.
pub trait MaybeGateway: Machine<Input = Input, Output = Output> {
    /// The gateway, if it is one.
    fn gateway(&self) -> Option<&Gateway>;
    /// As [`gateway`](MaybeGateway::gateway).
    fn gateway_mut(&mut self) -> Option<&mut Gateway>;
    /// How it is, if it is a node.
    fn status(&self, now: Instant) -> Option<NodeStatus>;
}

/// How the control plane of a rack behaves.
#[derive(Clone, Copy, Debug)]
pub struct Control {
    /// An exchange whose copies are not complete after this is undone.
    pub exchange_within: Duration,
    /// The registry, until `calm_ns`; then it is sound.
    pub registry: RegistryModel,
    /// When faults end, in ns.
    pub calm_ns: u64,
    /// The deliberate break.
    pub canary: ControlCanary,
    /// The process crashes before the output of this number.
    pub crash_at: Option<u64>,
    /// A node may refuse its part for ever: what does not end is left as it is.
    pub leaves: bool,
    /// How sets that lack copies are healed, if they are.
    pub heal: Option<Rules>,
    /// Of the registry and of which volumes are meant.
    pub seed: u64,
}

impl Control {
    /// A registry that is quick and sound.
    pub fn sound(seed: u64, exchange_within: Duration) -> Self {
        Self {
            exchange_within,
            registry: RegistryModel::default(),
            calm_ns: 0,
            canary: ControlCanary::None,
            crash_at: None,
            leaves: false,
            heal: None,
            seed,
        }
    }
}

/// News for the driver of a run.
#[derive(Debug, Default)]
pub struct Attention {
    /// Volumes that another gateway, or another start of it, serves from now on.
    pub led_anew: Vec<VolumeId>,
    /// This host's process crashes now.
    pub crash: Option<usize>,
    /// Volumes that were created for clients.
    pub created: Vec<VolumeRecord>,
    /// Members that were expelled from their sets.
    pub expelled: Vec<VssdId>,
    /// Copies that are made of what was expelled.
    pub joins_again: u32,
    /// Copies that are made.
    pub joined: u32,
    /// Members that have moved.
    pub moved: u32,
    /// Nodes whose place another one has taken.
    pub replaced: u32,
    /// A promise is broken.
    pub broken: Option<String>,
}

#[derive(Debug)]
struct Running {
    boot: u32,
    is_fresh: bool,
    operator: Operator,
}

/// The operators and what they work on.
#[derive(Debug)]
pub struct Operators {
    registry: SimRegistry,
    commands: Commands,
    control: Option<Control>,
    /// Host index of the first gateway.
    first: usize,
    running: Vec<Option<Running>>,
    /// The deliberate break: gateways get the same sessions as each other.
    one_session: bool,
    outputs: u64,
    takeovers: u32,
    /// The deliberate break: the sessions that operators have named, and how often each gateway came to lead a volume.
    named: BTreeMap<(usize, VolumeId), (u32, u32)>,
    sabotaged: u64,
    /// A set had fewer copies than it should have had, and than before.
    lost_copies: bool,
    /// Copies of each set, as they were stored last.
    copies: Vec<usize>,
    moved: u32,
    /// Members that were ever expelled.
    expelled: BTreeSet<VssdId>,
    /// Members that are none any more, other than by an exchange.
    moved_away: BTreeSet<VssdId>,
    over_by: u64,
    /// Nodes whose place another one takes.
    replaced: BTreeSet<u8>,
    /// How nodes are, while sets lack copies or nodes are drained.
    statuses: BTreeMap<u8, NodeStatus>,
    /// Nodes that are gone for ever.
    pub gone: BTreeSet<u8>,
}

impl Operators {
    /// None: the records are all that gateways need.
    pub fn new(stored: Snapshot, first: usize, gateways: usize) -> Self {
        Self {
            commands: Commands::new(&stored.volumes),
            registry: SimRegistry::new(stored),
            control: None,
            first,
            running: (0..gateways).map(|_| None).collect(),
            one_session: false,
            outputs: 0,
            takeovers: 0,
            named: BTreeMap::new(),
            sabotaged: 0,
            lost_copies: false,
            copies: Vec::new(),
            moved: 0,
            expelled: BTreeSet::new(),
            moved_away: BTreeSet::new(),
            replaced: BTreeSet::new(),
            statuses: BTreeMap::new(),
            over_by: u64::MAX,
            gone: BTreeSet::new(),
        }
    }

    /// Lets operators run a rack of these nodes and gateways, with commands by their times in ns.
    pub fn run(
        &mut self,
        control: Control,
        (nodes, gateways): (Vec<(NodeId, Addr)>, Vec<Addr>),
        plan: Vec<(u64, Wish)>,
        one_session: bool,
    ) {
        self.registry.enter(&gateways);
        let last = plan.iter().map(|(at, _)| *at).max().unwrap_or(0);
        self.over_by = if control.leaves {
            last + control.exchange_within.as_nanos() as u64 + LEAVES_AFTER_NS
        } else {
            last.max(control.calm_ns) + OVER_WITHIN_NS
        };
        // Without healing nothing moves, and the nodes stay those of the configuration.
        if control.heal.is_some() {
            self.registry.found(&nodes);
        }
        self.commands.plan(control.seed, nodes, plan);
        self.registry
            .behave(control.registry, control.canary, !control.seed);
        self.control = Some(control);
        self.one_session = one_session;
    }

    /// True if operators run; else gateways serve their volumes by themselves.
    pub fn are_running(&self) -> bool {
        self.control.is_some()
    }

    /// How the control plane behaves, if there is one.
    pub fn control(&self) -> Option<Control> {
        self.control
    }

    /// True if members that are lost are expelled.
    pub fn heal(&self) -> bool {
        self.control.is_some_and(|control| control.heal.is_some())
    }

    /// The content of the registry.
    pub fn stored(&self) -> &Snapshot {
        self.registry.stored()
    }

    /// The ends of the commands.
    pub fn counts(&self) -> Counts {
        self.commands.counts(self.stored())
    }

    /// Times that a gateway began to lead a volume.
    pub fn takeovers(&self) -> u32 {
        self.takeovers
    }

    /// True if a set ever had fewer copies than before, and than it should have had. Volumes must not be deleted meanwhile.
    pub fn have_lost_copies(&self) -> bool {
        self.lost_copies
    }

    /// Members that have moved.
    pub fn moved(&self) -> u32 {
        self.moved
    }

    /// The number of things that the canary broke.
    pub fn sabotaged(&self) -> u64 {
        self.sabotaged + self.registry.sabotaged()
    }

    /// A gateway starts, and its operator with it.
    pub fn started(&mut self, gateway: usize, boot: u32, now: Instant, (role, levels): (Role, Levels)) {
        let Some(control) = self.control else { return };
        self.commands.gateway_lost(gateway);
        let config = OperatorConfig {
            role,
            exchange_within: Some(control.exchange_within),
            heal: control.heal,
            levels,
            nonce: Uuid::from_u64_pair(gateway as u64 + 1, u64::from(boot) + 1),
        };
        self.running[gateway] = Some(Running {
            boot,
            is_fresh: true,
            operator: Operator::new(now, config),
        });
    }

    /// True when nothing is left to do.
    pub fn are_done(&self, now: Instant) -> bool {
        let Some(control) = self.control else { return true };
        let stored = self.stored();
        let is_whole = || {
            stored.exchanging().next().is_none()
                && (control.heal.is_none() || sets_of(stored).all(|set| self.is_settled(set)))
                && self.moves_are_over()
                && stored.growing.is_empty()
                && stored.deleting.is_empty()
                && stored.volumes.iter().all(|volume| volume.ready)
        };
        self.are_idle() && is_whole() || control.leaves && now.as_nanos() >= self.over_by
    }

    /// True if no command and no operator has anything to do.
    fn are_idle(&self) -> bool {
        let mut operators = self.running.iter().flatten();
        self.commands.are_over() && operators.all(|running| running.operator.is_idle())
    }

    /// True if a node has room for a copy of a set, or what was expelled there, or will have room.
    fn may_have_room(&self, set: &SetRecord, node: u8) -> bool {
        let stored = self.stored();
        if stored.goes(node) || self.gone.contains(&node) {
            return false;
        }
        let Some(status) = self.statuses.get(&node) else {
            return true;
        };
        let roll = status.roll.clone().unwrap_or_default();
        let is_here = |(on, vssd): (u8, u32)| on == node && roll.here.contains(&vssd);
        let may_return =
            |left: &ReplicaRecord| is_here((left.node, left.vssd)) && !roll.failed.contains(&left.vssd);
        let site = Site::new(node, status, stored.rack, true);
        let mut leftovers = stored.leftovers.iter();
        leftovers.any(|left| is_here((left.node, left.vssd)))
            || set.expelled.iter().any(may_return)
            || Rooms::new([site]).fits(stored, set, node)
    }

    /// True if every node that had a copy of some set is gone: the first one was expelled just before the others were.
    pub fn have_lost_set(&self) -> bool {
        sets_of(self.stored()).any(|set| self.is_gone(set))
    }

    fn is_gone(&self, set: &SetRecord) -> bool {
        let kept = set.leaving.filter(LeavingRecord::may_stay);
        let mut nodes = set.replicas.iter().map(|replica| replica.node);
        nodes.all(|node| self.gone.contains(&node)) && kept.is_none_or(|kept| self.gone.contains(&kept.node))
    }

    /// True if a set has all its copies, or every node that is left and has room has one, or no copy is left.
    fn is_settled(&self, set: &SetRecord) -> bool {
        let stored = self.stored();
        if self.is_gone(set) {
            return true;
        }
        let has_copy = |node: u8| set.replicas.iter().any(|replica| replica.node == node);
        let may_take = |node: u8| !has_copy(node) && self.may_have_room(set, node);
        let is_spread = || !stored.nodes.iter().any(|node| may_take(node.id));
        set.is_whole() || !set.is_changing() && is_spread()
    }

    /// True if nothing is left to move, or can.
    fn moves_are_over(&self) -> bool {
        let stored = self.stored();
        let has_copy = |set: &SetRecord, node: u8| set.replicas.iter().any(|replica| replica.node == node);
        let may_take = |set: &SetRecord, node: u8| !has_copy(set, node) && self.may_have_room(set, node);
        let nodes = || stored.nodes.iter().map(|node| node.id);
        let is_stuck = |drain: &DrainRecord| {
            let mut left = sets_of(stored).filter(|set| has_copy(set, drain.node));
            left.all(|set| !set.is_changing() && !nodes().any(|node| may_take(set, node)))
        };
        let is_over = |drain: &DrainRecord| match stored.members_on(drain.node) {
            0 => !drain.removes,
            _ => is_stuck(drain),
        };
        // Room is evened out when nodes are empty that are to be.
        let waits = stored
            .drains
            .iter()
            .any(|drain| stored.members_on(drain.node) > 0);
        (stored.rebalance_moves == 0 || waits)
            && stored.drains.iter().all(is_over)
            && !sets_of(stored).any(SetRecord::has_surplus)
    }

    /// When to [`attend`](Operators::attend) next.
    pub fn attend_at(&self, now: Instant) -> Option<Instant> {
        self.control?;
        let running = || self.running.iter().flatten();
        if running().any(|running| running.is_fresh) {
            return Some(now);
        }
        let command = self.commands.next_at().map(|at| match at <= now.as_nanos() {
            true => now.as_nanos() + AGAIN_NS,
            false => at,
        });
        let operators = running().filter_map(|running| running.operator.deadline()).min();
        let at = earliest(operators, command.map(Instant::from_nanos));
        earliest(at, self.registry.deadline())
    }

    /// Lets everything happen that is due.
    pub fn attend<H: MaybeGateway>(&mut self, world: &mut World<H>) -> Attention {
        let Some(control) = self.control else {
            return Attention::default();
        };
        let now = world.now();
        if now.as_nanos() >= control.calm_ns {
            self.registry.calm();
        }
        for gateway in 0..self.running.len() {
            if !world.is_up(self.first + gateway) && self.running[gateway].take().is_some() {
                self.commands.gateway_lost(gateway);
            }
        }
        while let Some(((gateway, boot), answer)) = self.registry.due(now) {
            let asker = self.running[gateway].as_mut();
            if let Some(asker) = asker.filter(|asker| asker.boot == boot) {
                asker.operator.handle(now, answer);
            }
        }
        for running in self.running.iter_mut().flatten() {
            running.is_fresh = false;
            running.operator.tick(now);
        }
        self.command(now);
        let mut attention = self.pump(world, control);
        self.count_copies();
        self.note_moves();
        self.note_statuses(world);
        attention.created = self.commands.take_created();
        attention.broken = self.broken(now, world, control);
        attention
    }

    /// Notes whose place was taken otherwise than in an exchange.
    fn note_moves(&mut self) {
        let replaced = self.registry.stored().drains.iter().filter(|drain| drain.to > 0);
        self.replaced.extend(replaced.map(|drain| drain.node));
        for set in sets_of(self.registry.stored()) {
            let leaving = set.leaving.filter(|leaving| leaving.moves || leaving.surplus);
            self.moved_away
                .extend(leaving.map(|leaving| VssdId(leaving.vssd)));
            self.moved_away
                .extend(set.expelled.iter().map(|left| VssdId(left.vssd)));
        }
    }

    fn note_statuses<H: MaybeGateway>(&mut self, world: &World<H>) {
        self.statuses.clear();
        let stored = self.registry.stored();
        if self.are_idle() && (!stored.drains.is_empty() || sets_of(stored).any(SetRecord::lacks_copies)) {
            let now = world.now();
            let status = |id: u8| Some((id, world.host(usize::from(id))?.status(now)?));
            self.statuses
                .extend(stored.nodes.iter().filter_map(|node| status(node.id)));
        }
    }

    fn count_copies(&mut self) {
        let sets = sets_of(self.registry.stored());
        let copies: Vec<(usize, usize)> = sets.map(|set| (set.replicas.len(), set.wanted())).collect();
        let mut known = self.copies.iter().zip(&copies);
        self.lost_copies |= known.any(|(had, (has, wanted))| has < had && has < wanted);
        self.copies = copies.into_iter().map(|(has, _)| has).collect();
    }

    fn command(&mut self, now: Instant) {
        while self.commands.next_at().is_some_and(|at| at <= now.as_nanos()) {
            let leads = |running: &Option<Running>| running.as_ref().is_some_and(|r| r.operator.leads_rack());
            let Some(lead) = self.running.iter().position(leads) else {
                return;
            };
            let stored = self.registry.stored();
            let serves = |id: VolumeId| {
                let serves = |running: &Option<Running>| {
                    running.as_ref().is_some_and(|running| running.operator.leads(id))
                };
                self.running.iter().position(serves).unwrap_or(lead)
            };
            if let Some((id, gateway, command)) = self.commands.begin(now.as_nanos(), lead, serves, stored) {
                let running = self.running[gateway].as_mut().expect("it runs");
                running.operator.handle(now, Told::Command(id, command));
            }
        }
    }

    /// Carries out what operators ask, until they wait.
    fn pump<H: MaybeGateway>(&mut self, world: &mut World<H>, control: Control) -> Attention {
        let mut attention = Attention::default();
        for gateway in 0..self.running.len() {
            while let Some(running) = &mut self.running[gateway]
                && let Some(output) = running.operator.poll()
            {
                self.outputs += 1;
                if control.crash_at == Some(self.outputs) {
                    attention.crash = Some(self.first + gateway);
                    return attention;
                }
                let asker = (gateway, running.boot);
                match &output {
                    Asks::Gateway(Call::Serve { records, .. }) => {
                        let volumes = records.volumes.iter();
                        attention.led_anew.extend(volumes.map(VolumeRecord::volume));
                    }
                    Asks::Gateway(Call::Lead { volumes, .. }) => {
                        let volumes = volumes.iter().map(|charge| charge.record.volume());
                        attention.led_anew.extend(volumes);
                    }
                    _ => {}
                }
                if let Asks::Event(kind) = output {
                    world.note(self.first + gateway, kind);
                    self.hear(kind, &mut attention);
                }
                if let Some(answer) = self.carry(world, control, asker, output)
                    && let Some(running) = &mut self.running[gateway]
                {
                    running.operator.handle(world.now(), answer);
                }
            }
        }
        self.takeovers += attention.led_anew.len() as u32;
        attention
    }

    fn hear(&mut self, kind: Kind, attention: &mut Attention) {
        match kind {
            Kind::MemberExpelled { vssd, .. } => {
                self.expelled.insert(vssd);
                attention.expelled.push(vssd);
            }
            Kind::CopyBegun { vssd, .. } => attention.joins_again += u32::from(self.expelled.contains(&vssd)),
            Kind::CopyJoined { .. } => attention.joined += 1,
            Kind::MemberMoved { .. } => {
                self.moved += 1;
                attention.moved += 1;
            }
            Kind::NodeRemoved { node } => {
                attention.replaced += u32::from(self.replaced.remove(&node.0));
            }
            _ => {}
        }
    }

    /// How members of sets change.
    pub fn changes(&self) -> Changes {
        let sets = || sets_of(self.stored());
        let joins =
            |test: fn(&JoiningRecord) -> bool| sets().any(|set| set.joining.as_ref().is_some_and(test));
        let volumes = self.stored().volumes.iter();
        let leads = volumes.filter_map(|volume| volume.lead.as_ref()?.addr());
        let leads: BTreeSet<Addr> = leads.collect();
        Changes {
            exchanges: sets().any(|set| set.exchanges() || set.ends_exchange()),
            rebuilds: joins(JoiningRecord::heals),
            moves: joins(|joining| joining.moves)
                || sets().any(|set| set.leaving.is_some_and(|left| left.moves)),
            lacks: sets().any(SetRecord::lacks_copies),
            is_alone: sets().any(|set| set.replicas.len() == 1 && set.lacks_copies()),
            leads: leads.len(),
            gathers: self.stored().gathering.is_some(),
        }
    }

    fn carry<H: MaybeGateway>(
        &mut self,
        world: &mut World<H>,
        control: Control,
        asker: Asker,
        output: Asks,
    ) -> Option<Told> {
        match output {
            Asks::Registry(mut call) => {
                if let RegistryCall::Store(snapshot) = &mut call {
                    self.sabotage_store(world, control, asker.0, snapshot);
                }
                self.registry.ask(world.now(), asker, call)
            }
            Asks::Gateway(call) => {
                let call = self.sabotage_call(control, asker.0, call);
                let view = world.call(self.first + asker.0, |host, now| {
                    let gateway = host.gateway_mut().expect("an operator is beside a gateway");
                    match call {
                        Sabotaged::Call(call) => carry_out(gateway, now, call),
                        Sabotaged::Close(record) => {
                            gateway.close_volume(record.volume());
                            None
                        }
                    }
                });
                let mut view = view.flatten()?;
                for (id, session) in view.leads.iter_mut().filter(|_| self.one_session) {
                    let named = self.named.get(&(asker.0, *id));
                    *session = named.map_or(*session, |(named, _)| *named);
                }
                Some(Told::Seen(Box::new(view)))
            }
            Asks::Offer { .. } | Asks::Failed(_) | Asks::Event(_) => None,
            Asks::Reply(id, answer) => {
                self.commands.answered(id, answer);
                None
            }
        }
    }

    fn sabotage_store<H: MaybeGateway>(
        &mut self,
        world: &mut World<H>,
        control: Control,
        gateway: usize,
        snapshot: &mut Snapshot,
    ) {
        if control.canary != ControlCanary::ShowEarly {
            return;
        }
        for record in &snapshot.volumes {
            let known = self.registry.stored().volume_of(record.volume());
            if known.is_some_and(|known| known.size_bytes < record.size_bytes) {
                self.sabotaged += 1;
                world.call(self.first + gateway, |host, now| {
                    let gateway = host.gateway_mut().expect("an operator is beside a gateway");
                    gateway.grow_volume(now, record.clone());
                });
            }
        }
    }

    fn sabotage_call(&mut self, control: Control, gateway: usize, call: Call) -> Sabotaged {
        match call {
            Call::Lead { rack, mut volumes } if self.one_session => {
                for charge in &mut volumes {
                    let at = (gateway, charge.record.volume());
                    let times = self.named.get(&at).map_or(0, |(_, times)| *times) + 1;
                    self.named.insert(at, (charge.session, times));
                    charge.session = times;
                }
                Sabotaged::Call(Call::Lead { rack, volumes })
            }
            Call::Delete(record) if control.canary == ControlCanary::KeepDeleted => {
                self.sabotaged += 1;
                Sabotaged::Close(*record)
            }
            call => Sabotaged::Call(call),
        }
    }

    fn broken<H: MaybeGateway>(&self, now: Instant, world: &World<H>, control: Control) -> Option<String> {
        if !control.leaves && now.as_nanos() >= self.over_by && !self.are_done(now) {
            return Some(format!(
                "the control plane does not come to rest: {:?}",
                self.stored()
            ));
        }
        let hosts = (0..self.running.len()).filter_map(|gateway| world.host(self.first + gateway));
        for export in hosts.filter_map(MaybeGateway::gateway).flat_map(Gateway::exports) {
            let stored = self.stored().volume_of(export.volume);
            if stored.is_some_and(|record| record.size_bytes < export.size_bytes) {
                return Some(format!("clients see {export:?}, the registry has {stored:?}"));
            }
        }
        self.commands.broken(self.stored(), &self.moved_away)
    }

    /// At rest: what was promised is served, with its size.
    pub fn check_served<'a>(&self, gateways: impl Iterator<Item = &'a Gateway>) -> Result<(), String> {
        let leading: Vec<&Gateway> = gateways.filter(|gateway| gateway.leads()).collect();
        if leading.is_empty() || self.control.is_none_or(|control| control.leaves) {
            return Ok(());
        }
        let exports: Vec<_> = leading.iter().flat_map(|gateway| gateway.exports()).collect();
        for (name, size_min) in self.commands.promised() {
            let export = exports.iter().find(|export| export.name == name);
            let record = self.stored().volume(name);
            let sizes = (
                export.map(|export| export.size_bytes),
                record.map(|record| record.size_bytes),
            );
            if sizes.0.is_none_or(|size| size < size_min) || sizes.0 != sizes.1 {
                return Err(format!(
                    "volume {name} is to have {size_min} bytes; shown and stored: {sizes:?}"
                ));
            }
        }
        Ok(())
    }
}

enum Sabotaged {
    Call(Call),
    /// Instead of deleting it.
    Close(VolumeRecord),
}

/// Every set of every volume.
fn sets_of(records: &Snapshot) -> impl Iterator<Item = &SetRecord> {
    records.volumes.iter().flat_map(|record| &record.sets)
}

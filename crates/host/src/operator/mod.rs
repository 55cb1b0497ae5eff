//! The control plane of a rack: creating, growing, deleting and exchanging volumes, and deciding which of several
//! gateways serves them. One machine beside each gateway.
//!
//! A world carries its outputs out: it asks the registry, calls the gateway on the same machine ([`carry_out`]), tells
//! frontends what there is to offer, and answers commands. Nothing here blocks; a registry that does not answer delays
//! what needs it, and no more: who only looks is answered by what it said last.
//!
//! Invariants:
//! - Every step is noted in the registry before nodes and clients see it, and the registry alone says how far a change
//!   is. So a crash between any two steps leaves records from which the next start goes on, and a store whose outcome
//!   is unknown is settled by loading again.
//! - A command is answered with success when the registry has all of it, and clients can see it.
//! - Creating, growing and deleting go on one after the other in the order of the commands; an exchange goes on beside
//!   them, and so does what waits for nodes that are away.
//!
//! | command | steps | after a crash |
//! | --- | --- | --- |
//! | create | record, not ready · vSSDs made · ready | completed |
//! | resize | sets noted as growing · vSSDs made · record has them and the size · shown to clients | undone before the size is stored |
//! | delete | noted as deleting · vSSDs deleted · record removed | completed |
//! | exchange | [`rack::exchange`] | undone before the decision, then completed |
//! | nodes, copies | noted · done by the healing, move by move ([`rack::moves`]) | goes on |

mod call;
mod census;
mod command;
mod create;
mod delete;
mod exchange;
mod healing;
mod job;
mod leadership;
mod level;
mod nodes;
mod records;
mod replicate;
mod resize;
mod stop;

pub use call::{Call, View, VolumeView, carry_out};
pub use command::{
    Command, Done, Ills, LeadPlace, NewVolume, NodeChange, NotExchanged, Refusal, RegistryAway, VssdProblem,
};
pub use leadership::{Role, Shared};
pub use records::RegistryCall;

use base::event::Kind;
use base::{Duration, Instant, Machine, NodeId, VolumeId, time::earliest};
use census::Census;
use create::Create;
use delete::Delete;
use exchange::Swap;
use healing::Healing;
use job::{Leading, Sight, Step};
use leadership::{Leadership, place_of_lead};
use level::Level;
use nodes::Nodes;
use rack::exchange::Exchange;
use rack::heal::Rules;
use rack::level::{Levels, Part};
use rack::registry::{NodeRecord, RegistryError, Snapshot, parse_addr};
use records::Records;
use replicate::Replicate;
use resize::Resize;
use std::collections::{BTreeSet, VecDeque};
use stop::Stop;
use uuid::Uuid;

/// How an operator is set up.
#[derive(Clone, Copy, Debug)]
pub struct OperatorConfig {
    /// How its gateway comes to serve.
    pub role: Role,
    /// An exchange whose copies are not complete after this is undone; an hour if unset.
    pub exchange_within: Option<Duration>,
    /// How sets that lack copies are healed; not at all if unset.
    pub heal: Option<Rules>,
    /// The levels of the rack that the gateway knows.
    pub levels: Levels,
    /// Random, and this start's alone: volumes and sets get their identities from it.
    pub nonce: Uuid,
}

/// What a world tells an operator.
#[derive(Debug)]
pub enum Input {
    /// A command, with a number by which it is answered.
    Command(u64, Command),
    /// The answer to [`RegistryCall::Load`].
    Loaded(Result<Box<Snapshot>, RegistryError>),
    /// The answer to [`RegistryCall::Store`]. [`RegistryError::Unavailable`] leaves open whether it is stored, or will be.
    Stored(Result<(), RegistryError>),
    /// The answer to [`Call::Look`].
    Seen(Box<View>),
}

/// What an operator asks of its world.
#[derive(Debug)]
pub enum Output {
    /// Ask the registry. The next call comes after the answer.
    Registry(RegistryCall),
    /// Call the gateway.
    Gateway(Call),
    /// Offer clients what these records serve: what this gateway serves here, and the rest elsewhere.
    Offer {
        /// The stored records.
        records: Box<Snapshot>,
        /// The volumes that this gateway serves.
        serves: BTreeSet<VolumeId>,
    },
    /// The registry cannot be used, and is asked again: somebody should be told.
    Failed(RegistryError),
    /// Tell whoever watches.
    Event(Kind),
    /// Answer a command.
    Reply(u64, Result<Done, Refusal>),
}

#[derive(Debug)]
enum Work {
    Create(Create),
    Resize(Resize),
    Delete(Delete),
    Exchange(Swap),
    Replicate(Replicate),
    ChangeNodes(Nodes),
    Records,
    Nodes(Census),
    Stop(Stop),
}

/// The operator's knowledge beside the [`Sight`] of a job.
struct Beside<'a> {
    healing: Option<&'a Healing>,
    waits_for: &'a [Part],
    away: Option<Box<RegistryAway>>,
}

#[derive(Debug)]
struct Job {
    /// The command that waits for it.
    command: Option<u64>,
    work: Work,
    /// It was this gateway's to do, and has begun.
    begun: bool,
}

impl Work {
    fn new(command: Command, config: &OperatorConfig) -> Self {
        match command {
            Command::Create(new) => Self::Create(Create::new(new)),
            Command::Resize { name, size_bytes } => Self::Resize(Resize::new(name, size_bytes)),
            Command::Delete { name } => Self::Delete(Delete::new(name)),
            Command::Exchange { a, b } => Self::Exchange(Swap::new(a, b, config.exchange_within)),
            Command::Replicate { name, replicas } => Self::Replicate(Replicate::new(name, replicas)),
            Command::ChangeNodes(change) => Self::ChangeNodes(Nodes::new(change)),
            Command::Records => Self::Records,
            Command::Nodes => Self::Nodes(Census::default()),
            Command::Stop => Self::Stop(Stop::default()),
        }
    }

    /// True for what only a gateway that serves may do.
    fn changes(&self) -> bool {
        !self.looks() && !matches!(self, Self::Stop(_))
    }

    /// True for what changes nothing, and is answered by what is known while the registry does not answer.
    fn looks(&self) -> bool {
        matches!(self, Self::Records | Self::Nodes(_))
    }

    /// True for what goes on one after the other.
    fn takes_turns(&self) -> bool {
        matches!(self, Self::Create(_) | Self::Resize(_) | Self::Delete(_))
    }

    fn volumes(&self) -> Vec<VolumeId> {
        match self {
            Self::Create(create) => create.volume().into_iter().collect(),
            Self::Resize(resize) => resize.volume().into_iter().collect(),
            Self::Delete(delete) => delete.volume().into_iter().collect(),
            Self::Exchange(swap) => swap.volumes().to_vec(),
            Self::Replicate(_) | Self::ChangeNodes(_) | Self::Records | Self::Nodes(_) | Self::Stop(_) => {
                Vec::new()
            }
        }
    }

    /// What there is to tell of its end.
    fn told(&self, result: &Result<Done, Refusal>) -> Option<Kind> {
        let volumes = self.volumes();
        match (self, result.as_ref().ok()?) {
            (Self::ChangeNodes(nodes), _) => nodes.told(),
            (Self::Create(_), Done::Volume(record)) => Some(Kind::VolumeCreated {
                volume: record.volume(),
                bytes: record.size_bytes,
            }),
            (Self::Resize(_), Done::Volume(record)) => Some(Kind::VolumeResized {
                volume: record.volume(),
                bytes: record.size_bytes,
            }),
            (Self::Delete(_), Done::Deleted) => Some(Kind::VolumeDeleted {
                volume: *volumes.first()?,
            }),
            (Self::Exchange(_), Done::Exchanged(took)) => Some(Kind::VssdsExchanged {
                volume: *volumes.first()?,
                other: *volumes.last()?,
                took: *took,
            }),
            _ => None,
        }
    }

    /// The volumes that a gateway must lead to do this, as far as they are known; `None` if it must lead the rack.
    fn subjects(&self, records: &Snapshot) -> Option<Vec<VolumeId>> {
        let named = |name: &str| records.volume(name).map(|record| record.volume());
        let subjects = match self {
            Self::Create(create) => vec![create.volume()?],
            Self::Resize(resize) => resize
                .volume()
                .or_else(|| named(resize.name()))
                .into_iter()
                .collect(),
            Self::Delete(delete) => {
                let name = delete.name().and_then(named);
                delete.volume().or(name).into_iter().collect()
            }
            Self::Replicate(replicate) => named(replicate.name()).into_iter().collect(),
            Self::Exchange(swap) => swap.subjects(records),
            Self::ChangeNodes(_) => return None,
            Self::Records | Self::Nodes(_) | Self::Stop(_) => Vec::new(),
        };
        let is_there = |id: &VolumeId| records.volume_of(*id).is_some();
        Some(subjects.into_iter().filter(is_there).collect())
    }

    fn wants_nodes(&self) -> bool {
        matches!(
            self,
            Self::Create(_) | Self::Resize(_) | Self::ChangeNodes(_) | Self::Nodes(_)
        )
    }

    fn advance(&mut self, sight: &Sight, beside: &Beside) -> Step {
        match self {
            Self::Create(create) => create.advance(sight),
            Self::Resize(resize) => resize.advance(sight),
            Self::Delete(delete) => delete.advance(sight),
            Self::Exchange(swap) => swap.advance(sight),
            Self::Replicate(replicate) => replicate.advance(sight),
            Self::ChangeNodes(nodes) => nodes.advance(sight),
            Self::Records => Step::Finish(Ok(Done::Records {
                records: Box::new(sight.records.clone()),
                away: beside.away.clone(),
                serves: sight.leadership.is_some_and(Leading::leads_rack),
                ills: Box::new(
                    beside
                        .healing
                        .map_or_else(Ills::default, |healing| healing.ills(sight.now)),
                ),
                waits_for: beside.waits_for.to_vec(),
            })),
            Self::Nodes(census) => match census.ask(sight) {
                Ok(nodes) => Step::Finish(Ok(Done::Nodes(nodes))),
                Err(step) => step,
            },
            Self::Stop(_) => unreachable!("it changes who leads"),
        }
    }
}

/// The control plane beside a gateway.
#[derive(Debug)]
pub struct Operator {
    config: OperatorConfig,
    records: Records,
    leadership: Leadership,
    level: Level,
    healing: Option<Healing>,
    jobs: Vec<Job>,
    /// Changes of volumes that wait for their turn.
    waiting: VecDeque<(u64, Command)>,
    /// The gateway as it is since the last change and the last call.
    view: Option<Box<View>>,
    looks: u64,
    /// A look is under way.
    is_looking: bool,
    look_at: Option<Instant>,
    /// The nodes that the gateway knows.
    nodes: Vec<NodeRecord>,
    /// Epoch of the records that were offered last, and what this gateway served then.
    offered: Option<(u64, BTreeSet<VolumeId>)>,
    stops: bool,
    out: VecDeque<Output>,
}

impl Operator {
    /// Beside a gateway that has just started and stands by.
    pub fn new(now: Instant, config: OperatorConfig) -> Self {
        let mut this = Self {
            config,
            records: Records::default(),
            leadership: Leadership::new(config.role),
            level: Level::new(config.levels, matches!(config.role, Role::Shared(_))),
            healing: None,
            jobs: Vec::new(),
            waiting: VecDeque::new(),
            view: None,
            looks: 0,
            is_looking: false,
            look_at: None,
            nodes: Vec::new(),
            offered: None,
            stops: false,
            out: VecDeque::new(),
        };
        this.go_on(now);
        this
    }

    /// True if its gateway leads the rack, as far as it knows.
    pub fn leads_rack(&self) -> bool {
        self.leadership.leads_rack()
    }

    /// True if its gateway serves a volume, as far as it knows.
    pub fn leads(&self, id: VolumeId) -> bool {
        self.leadership.leads(id)
    }

    /// True when nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.jobs.is_empty() && self.waiting.is_empty()
    }

    fn command(&mut self, id: u64, command: Command) {
        if self.stops {
            return self.reply(id, Err(Refusal::Stops));
        }
        if matches!(command, Command::Stop) {
            self.stops = true;
            self.abandon(|| Refusal::Stops);
            // Hosts go to other paths first.
            self.offer();
            self.out.push_back(Output::Gateway(Call::Close));
        }
        self.records.refresh();
        let work = Work::new(command.clone(), &self.config);
        match work.looks() && self.records.stale().is_some() {
            true => self.begin(id, work),
            false => self.waiting.push_back((id, command)),
        }
    }

    fn begin(&mut self, id: u64, work: Work) {
        self.jobs.push(Job {
            command: Some(id),
            work,
            begun: false,
        });
    }

    /// Begins commands whose turn it is.
    fn admit(&mut self) {
        let mut later = VecDeque::new();
        let mut busy = self
            .jobs
            .iter()
            .any(|job| job.command.is_some() && job.work.takes_turns());
        for (id, command) in core::mem::take(&mut self.waiting) {
            let work = Work::new(command.clone(), &self.config);
            let undecided = !self.stops && self.leadership.is_undecided();
            if undecided || work.takes_turns() && busy {
                later.push_back((id, command));
                continue;
            }
            busy |= work.takes_turns();
            self.begin(id, work);
        }
        self.waiting = later;
    }

    fn reply(&mut self, id: u64, result: Result<Done, Refusal>) {
        self.out.push_back(Output::Reply(id, result));
    }

    /// Answers what changes volumes, and forgets it: the registry tells whoever serves next.
    fn abandon(&mut self, why: impl Fn() -> Refusal) {
        let (left, stay): (Vec<Job>, Vec<Job>) = core::mem::take(&mut self.jobs)
            .into_iter()
            .partition(|job| job.work.changes());
        self.jobs = stay;
        let waiting = core::mem::take(&mut self.waiting).into_iter().map(|(id, _)| id);
        for id in left.into_iter().filter_map(|job| job.command).chain(waiting) {
            self.reply(id, Err(why()));
        }
    }

    /// The registry cannot be used: everybody who waits for it is told.
    fn tell_failure(&mut self) {
        let Some(error) = self.records.take_failure() else {
            return;
        };
        self.out.push_back(Output::Failed(error.clone()));
        // What has not begun is answered, too.
        for (id, command) in core::mem::take(&mut self.waiting) {
            let work = Work::new(command, &self.config);
            self.begin(id, work);
        }
        let is_known = self.records.stale().is_some();
        for at in 0..self.jobs.len() {
            if is_known && self.jobs[at].work.looks() {
                continue;
            }
            if let Some(id) = self.jobs[at].command.take() {
                let answer = match &self.jobs[at].work {
                    Work::Stop(stop) => Ok(stop.done()),
                    _ => Err(Refusal::Registry(error.clone())),
                };
                self.reply(id, answer);
            }
        }
        self.jobs
            .retain(|job| job.work.changes() || job.command.is_some());
    }

    /// Goes on as far as it can without another answer.
    fn go_on(&mut self, now: Instant) {
        self.records.load(now);
        self.tell_failure();
        while self.records.settled().is_some() && self.turn(now) {}
        self.look_back(now);
        self.records.load(now);
        self.look();
        self.offer();
        while let Some(call) = self.records.poll() {
            self.out.push_back(Output::Registry(call));
        }
    }

    /// One step of whoever can take one; false if nobody can.
    fn turn(&mut self, now: Instant) -> bool {
        if let Some(call) = self.name_nodes().or_else(|| self.name_level()) {
            return self.take(now, None, call);
        }
        let records = self.records.settled().expect("no step was taken");
        if !self.stops && self.leadership.is_behind(records, self.view.as_deref()) {
            self.records.refresh();
            self.view = None;
            return true;
        }
        let sight = Sight {
            now,
            records,
            view: self.view.as_deref(),
            is_awaited: false,
            leadership: None,
        };
        let busy = self.jobs.iter().map(|job| &job.work);
        let busy = busy.flat_map(|work| [work.volumes(), work.subjects(records).unwrap_or_default()]);
        let busy: BTreeSet<VolumeId> = busy.flatten().collect();
        if !self.stops
            && let Some(step) = self.leadership.advance(&sight, &busy)
            && self.take(now, None, step)
        {
            return true;
        }
        if !self.stops && self.leadership.is_undecided() {
            return false;
        }
        if let Some(step) = self.rise(now)
            && self.take(now, None, step)
        {
            return true;
        }
        if let Some(step) = self.heal(now)
            && self.take(now, None, step)
        {
            return true;
        }
        self.adopt();
        self.admit();
        for at in 0..self.jobs.len() {
            let records = self.records.settled().expect("no step was taken");
            let job = &mut self.jobs[at];
            if let Some(refusal) = not_led(job, records, &self.leadership) {
                return self.take(now, Some(at), Step::Finish(Err(refusal)));
            }
            job.begun = true;
            let step = self.step(now, at);
            if self.take(now, Some(at), step) {
                return true;
            }
        }
        false
    }

    /// Next step of a job, by the stored records, or those of before while the registry does not answer.
    fn step(&mut self, now: Instant, at: usize) -> Step {
        let records = self.records.seen();
        let job = &mut self.jobs[at];
        let sight = Sight {
            now,
            records: records.expect("the caller has seen them"),
            view: self.view.as_deref(),
            is_awaited: job.command.is_some(),
            leadership: None,
        };
        match &mut job.work {
            Work::Stop(stop) => stop.advance(&sight, &mut self.leadership),
            work => {
                let leadership: Option<&dyn Leading> = Some(&self.leadership);
                let away = self.records.away();
                let beside = Beside {
                    healing: self.healing.as_ref(),
                    waits_for: self.level.waits_for(),
                    away: away.map(|(since, why)| {
                        let (lasts, why) = (now.since(*since), why.clone());
                        Box::new(RegistryAway { lasts, why })
                    }),
                };
                work.advance(&Sight { leadership, ..sight }, &beside)
            }
        }
    }

    /// While the registry does not answer, what only looks goes on with what it said last.
    fn look_back(&mut self, now: Instant) {
        if self.records.stale().is_none() {
            return;
        }
        while let Some(step) = self.watch(now)
            && self.take(now, None, step)
        {}
        let mut at = 0;
        while at < self.jobs.len() {
            let looks = self.jobs[at].work.looks();
            let step = looks.then(|| self.step(now, at));
            if !step.is_some_and(|step| self.take(now, Some(at), step)) {
                at += 1;
            }
        }
    }

    /// Lets the healing see who is there, while it can change nothing.
    fn watch(&mut self, now: Instant) -> Option<Step> {
        let sight = Sight {
            now,
            records: self.records.stale()?,
            view: self.view.as_deref(),
            is_awaited: false,
            leadership: None,
        };
        Some(self.healing.as_mut()?.watch(&sight))
    }

    /// Tells the gateway which nodes there are, if that has changed. One that stands by is told, too.
    fn name_nodes(&mut self) -> Option<Step> {
        let nodes = &self.records.settled()?.nodes;
        if nodes.is_empty() || *nodes == self.nodes {
            return None;
        }
        let before = core::mem::replace(&mut self.nodes, nodes.clone());
        self.tell_nodes(&before);
        let place = |node: &NodeRecord| Some((NodeId(node.id), parse_addr(&node.addr)?));
        let nodes = self.nodes.iter().filter_map(place).collect();
        Some(Step::Call(Call::Nodes(nodes)))
    }

    /// Tells the gateway the rack's level, if that has changed.
    fn name_level(&mut self) -> Option<Step> {
        let (level, is_raised) = self.level.news(self.records.settled()?)?;
        if is_raised {
            let to = level.into();
            self.out.push_back(Output::Event(Kind::LevelRaised { to }));
        }
        Some(Step::Call(Call::Level(level)))
    }

    /// Raises the rack's level when all its parts know a higher one.
    fn rise(&mut self, now: Instant) -> Option<Step> {
        let (records, view) = (self.records.settled()?, self.view.as_deref()?);
        if self.stops {
            return None;
        }
        if let Some(next) = self.level.enter(records, view) {
            return Some(Step::Store(Box::new(next)));
        }
        let level = self.level.look(now, records, view)?;
        self.leadership.leads_rack().then(|| {
            let mut next = records.clone();
            next.level = level;
            Step::Store(Box::new(next))
        })
    }

    /// Tells which nodes have come and gone.
    fn tell_nodes(&mut self, before: &[NodeRecord]) {
        if before.is_empty() {
            return;
        }
        let is_in = |nodes: &[NodeRecord], node: &NodeRecord| nodes.iter().any(|known| known.id == node.id);
        let added = self.nodes.iter().filter(|node| !is_in(before, node));
        let added = added.map(|node| Kind::NodeAdded {
            node: NodeId(node.id),
        });
        let removed = before.iter().filter(|node| !is_in(&self.nodes, node));
        let removed = removed.map(|node| Kind::NodeRemoved {
            node: NodeId(node.id),
        });
        self.out.extend(added.chain(removed).map(Output::Event));
    }

    /// Next step of the healing, while the gateway serves.
    fn heal(&mut self, now: Instant) -> Option<Step> {
        if !self.leadership.leads_any() || self.stops {
            self.healing = None;
            return None;
        }
        let (rules, records) = (self.config.heal?, self.records.settled()?);
        let healing = self
            .healing
            .get_or_insert_with(|| Healing::new(now, rules, records));
        let sight = Sight {
            now,
            records,
            view: self.view.as_deref(),
            is_awaited: false,
            leadership: None,
        };
        let charge = rack::charge::Charge {
            rack: self.leadership.leads_rack(),
            leads: &|id| self.leadership.leads(id),
        };
        let step = healing.advance(&sight, charge);
        while let Some(kind) = healing.poll_told() {
            self.out.push_back(Output::Event(kind));
        }
        Some(step)
    }

    /// Takes a step; false if it was only to look.
    fn take(&mut self, now: Instant, job: Option<usize>, step: Step) -> bool {
        match step {
            Step::Look => {
                self.view = None;
                return false;
            }
            Step::Wait(after) => {
                self.look_at = earliest(self.look_at, Some(now + after));
                return false;
            }
            Step::Store(mut snapshot) => {
                self.view = None;
                snapshot.identify(self.config.nonce);
                self.leadership.name_new(&mut snapshot);
                self.records.store(now, *snapshot);
            }
            Step::Call(call) => {
                self.view = None;
                self.is_looking = false;
                self.out.push_back(Output::Gateway(call));
            }
            Step::Answer(refusal) => {
                let job = &mut self.jobs[job.expect("a job is answered")];
                if let Some(id) = job.command.take() {
                    self.reply(id, Err(refusal));
                }
            }
            Step::Finish(result) => {
                let job = self.jobs.remove(job.expect("a job is over"));
                self.out.extend(job.work.told(&result).map(Output::Event));
                if let Some(id) = job.command {
                    self.reply(id, result);
                }
            }
            Step::GiveUp(id, refusal) => {
                let job = &mut self.jobs[job.expect("a job is given up")];
                job.work = Work::Delete(Delete::undo(id, refusal));
            }
        }
        true
    }

    /// Goes on with what the records say and nobody is at: an earlier start has left it.
    fn adopt(&mut self) {
        let Some(records) = self.records.settled().filter(|_| !self.stops) else {
            return;
        };
        let is_at = |id: VolumeId| {
            let mut turns = self.jobs.iter().filter(|job| job.work.takes_turns());
            !self.leadership.leads(id) || turns.any(|job| job.work.volumes().contains(&id))
        };
        let begun = records.volumes.iter().filter(|volume| !volume.ready);
        let created = begun
            .map(|volume| volume.volume())
            .filter(|&id| !records.is_deleting(id) && !is_at(id))
            .map(|id| Work::Create(Create::resume(id)));
        let deleted = records.deleting.iter().map(|&id| VolumeId(id));
        let deleted = deleted
            .filter(|&id| !is_at(id))
            .map(|id| Work::Delete(Delete::resume(id)));
        let grown = records.growing.iter().map(|growth| VolumeId(growth.volume));
        let grown = grown
            .filter(|&id| !records.is_deleting(id) && !is_at(id))
            .map(|id| Work::Resize(Resize::undo(id)));
        let mut found: Vec<Work> = created.chain(deleted).chain(grown).collect();
        let mut works = self.jobs.iter().map(|job| &job.work);
        if !works.any(|work| matches!(work, Work::Exchange(_))) {
            let own = Exchange::resume_of(records, |id| self.leadership.leads(id));
            found.extend(own.map(|exchange| Work::Exchange(Swap::resume(exchange))));
            if found.is_empty() && exchange::gathers(records, self.leadership.me()) {
                found.push(Work::Exchange(Swap::end_gathering()));
            }
        }
        let job = |work| Job {
            command: None,
            work,
            begun: true,
        };
        self.jobs.extend(found.into_iter().map(job));
    }

    /// Looks at the gateway if somebody has to see it.
    fn look(&mut self) {
        let heals = self.healing.is_some();
        let wanted = self.leadership.looks() || !self.jobs.is_empty() || heals;
        let Some(records) = self.records.seen() else {
            return;
        };
        if self.is_looking || self.view.is_some() || !wanted {
            return;
        }
        let healed: Vec<VolumeId> = match heals {
            true => Healing::volumes(records).collect(),
            false => Vec::new(),
        };
        self.looks += 1;
        self.is_looking = true;
        self.look_at = None;
        let works = || self.jobs.iter().map(|job| &job.work);
        self.out.push_back(Output::Gateway(Call::Look {
            number: self.looks,
            volumes: works().flat_map(Work::volumes).chain(healed).collect(),
            nodes: heals || self.leadership.is_shared() || works().any(Work::wants_nodes),
        }));
    }

    /// Offers what is stored now, if that is news.
    fn offer(&mut self) {
        let Some(records) = self.records.settled() else {
            return;
        };
        let stops = self.stops && self.leadership.is_shared();
        let served = records.served().map(|record| record.volume());
        let serves: BTreeSet<VolumeId> = served.filter(|id| !stops && self.leadership.leads(*id)).collect();
        let is_news = self
            .offered
            .as_ref()
            .is_none_or(|known| *known != (records.epoch, serves.clone()));
        if self.leadership.is_undecided() || !is_news {
            return;
        }
        self.offered = Some((records.epoch, serves.clone()));
        let records = Box::new(records.clone());
        self.out.push_back(Output::Offer { records, serves });
    }
}

/// The refusal of a gateway that does not lead what a job is about, or not any more.
fn not_led(job: &Job, records: &Snapshot, leadership: &Leadership) -> Option<Refusal> {
    if !job.work.changes() {
        return None;
    }
    let volume = match job.work.subjects(records) {
        None if leadership.leads_rack() => return None,
        None => None,
        Some(volumes) => Some(volumes.into_iter().find(|id| !leadership.leads(*id))?),
    };
    if job.begun {
        return Some(Refusal::Replaced);
    }
    let lead = place_of_lead(records, volume, leadership.me());
    // Records that name this gateway are newer than what it knows of itself: it begins soon.
    let lead = lead.filter(|lead| lead.gateway != lead.asked);
    Some(lead.map_or(Refusal::Unled, |lead| Refusal::Elsewhere(Box::new(lead))))
}

impl Machine for Operator {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Instant, input: Input) {
        match input {
            Input::Command(id, command) => self.command(id, command),
            Input::Loaded(result) => {
                if result.is_ok() && self.records.away().is_some() {
                    // What was seen meanwhile is not what the next step is about.
                    (self.view, self.is_looking) = (None, false);
                }
                self.records.loaded(now, result);
            }
            Input::Stored(result) => self.records.stored(now, result),
            Input::Seen(view) => {
                if self.is_looking && view.number == self.looks {
                    self.is_looking = false;
                    self.view = Some(view);
                }
            }
        }
        self.go_on(now);
    }

    fn poll(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        let looks = earliest(self.look_at, self.leadership.deadline());
        earliest(looks, self.records.deadline())
    }

    fn tick(&mut self, now: Instant) {
        if self.deadline().is_none_or(|at| now < at) {
            return;
        }
        self.records.tick(now);
        if self.look_at.take_if(|at| now >= *at).is_some() {
            self.view = None;
        }
        if let Some(reads) = self.leadership.tick(now) {
            if reads {
                self.records.refresh();
            }
            self.view = None;
            self.is_looking = false;
        }
        self.go_on(now);
    }
}

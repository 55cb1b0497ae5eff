//! The operator's two threads. One carries out what the machine asks of the gateway and the frontends, and hands commands to it. The
//! other one has the registry, and alone waits for it.

use super::cores::{At, Cores};
use super::gateways::{away, others};
use super::nvme::Offer;
use super::refusal::Refusal;
use crate::events;
use anyhow::Context;
use base::event::{Kind, RegistryTrouble, Source};
use base::{Duration, Instant, Machine, VolumeId};
use host::Gateway;
use host::operator::{
    Command, Done, Input, Operator, OperatorConfig, Output, Refusal as Refused, RegistryCall, Role, carry_out,
};
use rack::heal::Rules;
use rack::level::Levels;
use rack::registry::{Registry, RegistryError};
use runtime::Stopped;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use uuid::Uuid;

type Answer = Result<Done, Refused>;

/// What reaches the operator's thread.
enum Posted {
    /// A command, and where its answer goes.
    Command(Command, SyncSender<Answer>),
    /// An answer of the registry.
    Registry(Input),
    /// Nobody posts commands any more.
    End,
}

/// The running operator; dropping it ends its threads.
#[derive(Debug)]
pub struct Driver {
    posts: Sender<Posted>,
    threads: Vec<JoinHandle<()>>,
}

impl Driver {
    /// Starts the operator.
    pub(super) fn start(world: World, registry: Box<dyn Registry + Send>) -> anyhow::Result<Self> {
        let (posts, posted) = channel();
        let (calls, called) = channel();
        let answers = posts.clone();
        let keeper = std::thread::Builder::new().name("registry".into());
        let keeper = keeper
            .spawn(move || keep(registry, &called, &answers))
            .context("no thread for the registry")?;
        let thread = std::thread::Builder::new().name("operator".into());
        let thread = thread
            .spawn(move || drive(world, &calls, &posted))
            .context("no thread for the operator")?;
        Ok(Self {
            posts,
            threads: vec![thread, keeper],
        })
    }

    /// Posts a command, and waits for its answer.
    pub fn ask(&self, command: Command) -> Result<Done, Refusal> {
        let (sender, answer) = sync_channel(1);
        self.posts
            .send(Posted::Command(command, sender))
            .map_err(|_| Stopped)?;
        Ok(answer.recv().map_err(|_| Stopped)??)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.posts.send(Posted::End);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Carries calls of the registry out, which may take long; ends when nobody calls any more.
fn keep(mut registry: Box<dyn Registry + Send>, called: &Receiver<RegistryCall>, answers: &Sender<Posted>) {
    for call in called {
        let answer = match call {
            RegistryCall::Load => Input::Loaded(registry.load().map(Box::new)),
            RegistryCall::Store(snapshot) => Input::Stored(registry.store(&snapshot)),
        };
        if answers.send(Posted::Registry(answer)).is_err() {
            return;
        }
    }
}

/// Ends when nobody can post commands any more, or the gateway's core has died.
fn drive(mut world: World, calls: &Sender<RegistryCall>, posted: &Receiver<Posted>) {
    let config = OperatorConfig {
        role: world.role,
        exchange_within: None,
        heal: Some(world.heal),
        levels: world.levels,
        nonce: Uuid::new_v4(),
    };
    let mut operator = Operator::new(runtime::now(), config);
    let mut waiting = BTreeMap::new();
    for id in 0.. {
        while let Some(output) = operator.poll() {
            match output {
                Output::Reply(id, answer) => {
                    let sender: Option<SyncSender<Answer>> = waiting.remove(&id);
                    // A client that is gone misses nothing.
                    sender.map(|sender| sender.send(answer));
                }
                // Its thread lives as long as this one.
                Output::Registry(call) => _ = calls.send(call),
                output => match world.carry(output) {
                    Ok(Some(input)) => operator.handle(runtime::now(), input),
                    Ok(None) => {}
                    Err(Stopped) => return,
                },
            }
        }
        let pause = operator.deadline().map(|at| at.since(runtime::now()));
        let posted = match pause {
            Some(pause) => posted.recv_timeout(pause),
            None => posted.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match posted {
            Ok(Posted::Command(command, sender)) => {
                waiting.insert(id, sender);
                operator.handle(runtime::now(), Input::Command(id, command));
            }
            Ok(Posted::Registry(answer)) => {
                world.note(&answer);
                operator.handle(runtime::now(), answer);
            }
            Err(RecvTimeoutError::Timeout) => operator.tick(runtime::now()),
            Ok(Posted::End) | Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// What the operator acts on.
pub(super) struct World {
    role: Role,
    heal: Rules,
    levels: Levels,
    cores: Cores,
    gateway: At,
    offer: Offer,
    /// The volumes that the gateway served when that was told last.
    served: Option<BTreeSet<VolumeId>>,
    /// Complaints of the registry that were said.
    complaints: Complaints,
}

/// A line that was said is not said again within this (docs/events.md).
const REPEATS_AFTER: Duration = Duration::from_secs(10);
/// Lines that are remembered: texts of failures are few.
const COMPLAINTS_MAX: usize = 8;

/// Complaints of the registry, lately.
#[derive(Debug, Default)]
struct Complaints {
    said: Vec<(String, Instant)>,
    /// It has answered since the last one.
    has_answered: bool,
}

impl Complaints {
    /// The registry has answered.
    fn end(&mut self) {
        self.has_answered = true;
    }

    /// True if a line is to be said now: it was not lately, and is no more of the same.
    fn is_due(&mut self, now: Instant, text: &str) -> bool {
        let is_more = !self.has_answered && self.said.last().is_some_and(|(last, _)| last == text);
        self.has_answered = false;
        let lately = |said: &(String, Instant)| now.since(said.1) < REPEATS_AFTER;
        if is_more || self.said.iter().any(|said| said.0 == text && lately(said)) {
            return false;
        }
        self.said.retain(|said| said.0 != text && lately(said));
        if self.said.len() == COMPLAINTS_MAX {
            self.said.remove(0);
        }
        self.said.push((text.to_owned(), now));
        true
    }
}

impl World {
    /// Of the gateway at this place.
    pub fn new(
        (role, heal, levels): (Role, Rules, Levels),
        (cores, gateway): (Cores, At),
        offer: Offer,
    ) -> Self {
        Self {
            role,
            heal,
            levels,
            cores,
            gateway,
            offer,
            served: None,
            complaints: Complaints::default(),
        }
    }

    /// Takes note of how the registry is.
    fn note(&mut self, answer: &Input) {
        match answer {
            Input::Loaded(Ok(_)) => self.complaints.end(),
            Input::Stored(Err(RegistryError::Conflict)) => {
                let why = RegistryTrouble::Conflict;
                events::tell(Source::Operator, Kind::RegistryFailed { why });
            }
            _ => {}
        }
    }

    fn carry(&mut self, output: Output) -> Result<Option<Input>, Stopped> {
        Ok(match output {
            Output::Gateway(call) => {
                let carry = |gateway: &mut Gateway, now| carry_out(gateway, now, call);
                let view = self.cores.call(self.gateway, carry)?;
                view.map(|view| Input::Seen(Box::new(view)))
            }
            Output::Offer { records, serves } => {
                let others = others(&records, self.role);
                let away = away(&records, &serves, self.role);
                self.offer.follow(&records, &serves, (&others, away));
                if matches!(self.role, Role::Shared(_))
                    && self.served.as_ref().is_some_and(|known| *known != serves)
                {
                    say(&match serves.len() {
                        0 => "stands by".to_owned(),
                        count => format!("serves {count} of {} volumes", records.served().count()),
                    });
                }
                self.served = Some(serves);
                None
            }
            Output::Event(kind) => {
                events::tell(Source::Operator, kind);
                None
            }
            Output::Failed(error) => {
                let why = RegistryTrouble::Unreachable;
                events::tell(Source::Operator, Kind::RegistryFailed { why });
                let complaint = format!("the operator waits: {error}");
                if self.complaints.is_due(runtime::now(), &complaint) {
                    say(&complaint);
                }
                None
            }
            Output::Reply(..) | Output::Registry(_) => unreachable!("the loop sends them on"),
        })
    }
}

fn say(text: &str) {
    eprintln!("switchyard: {text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// bug: with its file system full the registry was loaded and not stored again and again, and each time a line said so.
    #[test]
    fn a_registry_that_answers_in_between_is_complained_of_once_in_ten_seconds() {
        let mut complaints = Complaints::default();
        let at = |ms| Instant::ZERO + Duration::from_millis(ms);
        let said = (0..300).filter(|nth| {
            complaints.end();
            complaints.is_due(at(nth * 100), if nth % 2 == 0 { "full" } else { "late" })
        });
        assert_eq!(said.count(), 6);
    }

    #[test]
    fn a_registry_that_stays_away_is_complained_of_once() {
        let mut complaints = Complaints::default();
        let at = |s| Instant::ZERO + Duration::from_secs(s);
        assert!(complaints.is_due(at(0), "away"));
        assert!(!complaints.is_due(at(60), "away"));
        assert!(complaints.is_due(at(61), "full"));
        complaints.end();
        assert!(complaints.is_due(at(80), "full"));
    }
}

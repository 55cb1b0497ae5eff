//! The thread of the operator: it carries out what the machine asks of the registry, the gateway and the frontends, and
//! hands commands to it. Only this thread waits for the registry's file.

use super::cores::{At, Cores};
use super::gateways::{away, others};
use super::nvme::Offer;
use super::refusal::Refusal;
use crate::events;
use anyhow::Context;
use base::event::{Kind, RegistryTrouble, Source};
use base::{Machine, VolumeId};
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

/// The running operator; dropping it ends its thread.
#[derive(Debug)]
pub struct Driver {
    commands: Option<Sender<(Command, SyncSender<Answer>)>>,
    thread: Option<JoinHandle<()>>,
}

impl Driver {
    /// Starts the operator.
    pub(super) fn start(world: World) -> anyhow::Result<Self> {
        let (commands, posted) = channel();
        let thread = std::thread::Builder::new().name("operator".into());
        let thread = thread
            .spawn(move || drive(world, &posted))
            .context("no thread for the operator")?;
        Ok(Self {
            commands: Some(commands),
            thread: Some(thread),
        })
    }

    /// Posts a command, and waits for its answer.
    pub fn ask(&self, command: Command) -> Result<Done, Refusal> {
        let (sender, answer) = sync_channel(1);
        let commands = self.commands.as_ref().ok_or(Stopped)?;
        commands.send((command, sender)).map_err(|_| Stopped)?;
        Ok(answer.recv().map_err(|_| Stopped)??)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Ends when nobody can post commands any more, or the gateway's core has died.
fn drive(mut world: World, posted: &Receiver<(Command, SyncSender<Answer>)>) {
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
            if let Output::Reply(id, answer) = output {
                let sender: Option<SyncSender<Answer>> = waiting.remove(&id);
                // A client that is gone misses nothing.
                sender.map(|sender| sender.send(answer));
                continue;
            }
            match world.carry(output) {
                Ok(Some(input)) => operator.handle(runtime::now(), input),
                Ok(None) => {}
                Err(Stopped) => return,
            }
        }
        let pause = operator.deadline().map(|at| at.since(runtime::now()));
        let posted = match pause {
            Some(pause) => posted.recv_timeout(pause),
            None => posted.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match posted {
            Ok((command, sender)) => {
                waiting.insert(id, sender);
                operator.handle(runtime::now(), Input::Command(id, command));
            }
            Err(RecvTimeoutError::Timeout) => operator.tick(runtime::now()),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// What the operator acts on.
pub(super) struct World {
    role: Role,
    heal: Rules,
    levels: Levels,
    registry: Box<dyn Registry + Send>,
    cores: Cores,
    gateway: At,
    offer: Offer,
    /// The volumes that the gateway served when that was told last.
    served: Option<BTreeSet<VolumeId>>,
    /// What was said last of the registry.
    complaint: Option<String>,
}

impl World {
    /// Of the gateway at this place.
    pub fn new(
        (role, heal, levels): (Role, Rules, Levels),
        registry: Box<dyn Registry + Send>,
        (cores, gateway): (Cores, At),
        offer: Offer,
    ) -> Self {
        Self {
            role,
            heal,
            levels,
            registry,
            cores,
            gateway,
            offer,
            served: None,
            complaint: None,
        }
    }

    fn carry(&mut self, output: Output) -> Result<Option<Input>, Stopped> {
        Ok(match output {
            Output::Registry(RegistryCall::Load) => {
                let loaded = self.registry.load().map(Box::new);
                if loaded.is_ok() {
                    self.complaint = None;
                }
                Some(Input::Loaded(loaded))
            }
            Output::Registry(RegistryCall::Store(snapshot)) => {
                let stored = self.registry.store(&snapshot);
                if let Err(RegistryError::Conflict) = stored {
                    let why = RegistryTrouble::Conflict;
                    events::tell(Source::Operator, Kind::RegistryFailed { why });
                }
                Some(Input::Stored(stored))
            }
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
                if self.complaint.as_ref() != Some(&complaint) {
                    say(&complaint);
                }
                self.complaint = Some(complaint);
                None
            }
            Output::Reply(..) => unreachable!("replies are sent by the loop"),
        })
    }
}

fn say(text: &str) {
    eprintln!("switchyard: {text}");
}

//! What this gateway knows of the rack at one moment.

use super::part::Part;
use super::refusal::Refusal;
use crate::control::api;
use host::operator::{Command, Done, Ills};
use rack::control::Copying;
use rack::level::Part as Named;
use rack::registry::Snapshot;
use std::collections::BTreeMap;

/// What is known of the rack.
pub(super) struct Seen {
    /// The registry's records.
    pub records: Box<Snapshot>,
    /// What is wrong with the sets in them.
    pub ills: Box<Ills>,
    /// Copies that are being made, by vSSD, as their nodes told last.
    pub copying: BTreeMap<u32, Copying>,
    /// Parts for which the rack's next level waits.
    pub waits_for: Vec<Named>,
    /// This gateway serves.
    pub serves: bool,
    /// The records are those of before, as the registry does not answer.
    pub away: Option<api::RegistryAway>,
}

/// What is told, and whether it is what the registry says now.
pub struct Told<T> {
    /// This.
    pub what: T,
    /// It is of before, as the registry does not answer.
    pub away: Option<api::RegistryAway>,
}

impl Part {
    /// Tells something of what is known now.
    pub(super) fn tell<T>(&self, of: impl FnOnce(&Seen) -> Result<T, Refusal>) -> Result<Told<T>, Refusal> {
        let seen = self.look()?;
        let what = of(&seen)?;
        Ok(Told {
            what,
            away: seen.away,
        })
    }

    /// What is known now.
    pub(super) fn look(&self) -> Result<Seen, Refusal> {
        let Done::Records {
            records,
            away,
            serves,
            ills,
            waits_for,
        } = self.ask(Command::Records)?
        else {
            unreachable!("the operator answers what was asked")
        };
        let copying = self.gateway(|gateway, _| {
            let told = gateway.nodes().iter().filter_map(|node| node.last.as_ref());
            let copying = told.flat_map(|(_, status)| &status.copying);
            copying.map(|copying| (copying.vssd, *copying)).collect()
        })?;
        Ok(Seen {
            records,
            ills,
            copying,
            waits_for,
            serves,
            away: away.map(|away| api::RegistryAway {
                seconds: away.lasts.as_nanos() as f64 / 1e9,
                why: away.why.to_string(),
            }),
        })
    }
}

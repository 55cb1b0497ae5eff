//! What a run came into.

use super::{Fleet, Run};
use crate::check::memory::Set;
use crate::operators::Attention;
use crate::reached::{Changes, Situation};
use base::VssdId;
use base::event::{Kind, Wait};

/// A digest of more pages than this takes several messages ([`rack::catchup`]).
const RANGE_PAGES: u64 = 512;

impl<F: Fleet> Run<F> {
    /// A host is about to go down.
    pub(super) fn note_crash(&mut self, host: usize) {
        let is_down = |of: usize| of == host || !self.world.is_up(of);
        let down = |set: &Set| set.members.iter().filter(|(_, of)| is_down(*of)).count();
        let sets = self.fleet.sets();
        let mut here = sets
            .iter()
            .filter(|set| set.members.iter().any(|(_, of)| *of == host));
        let are_two = here.any(|set| down(set) > 1);
        self.reached.note_if(are_two, Situation::TwoDown);
        let Changes {
            exchanges,
            rebuilds,
            moves,
            ..
        } = self.fleet.changes();
        self.reached.note_if(exchanges, Situation::ExchangeAndCrash);
        self.reached.note_if(rebuilds, Situation::RebuildAndCrash);
        self.reached.note_if(moves, Situation::MoveAndCrash);
    }

    /// A member serves.
    pub(super) fn note_serving(&mut self, host: usize, vssd: VssdId, sets: &[Set]) {
        let Some(set) = sets.iter().find(|set| set.members.contains(&(vssd, host))) else {
            return;
        };
        let mut others = set.members.iter().filter(|(other, _)| *other != vssd);
        let collects = others.any(|(other, of)| self.told.collects(*of, *other));
        self.reached.note_if(collects, Situation::JoinWhileCollecting);
        let is_long = set.pages.end - set.pages.start > RANGE_PAGES && set.members.len() > 1;
        self.reached
            .note_if(is_long && self.boots[host] > 1, Situation::ManyRanges);
    }

    /// A host tells of something.
    pub(super) fn note_event(&mut self, kind: &Kind) {
        match kind {
            Kind::RequestOverdue {
                wait: Wait::Window, ..
            } => self.reached.note(Situation::WindowFull),
            Kind::RequestFailed { .. } => self.reached.note(Situation::RequestGivenUp),
            Kind::MediumLatched { .. } => self.reached.note(Situation::MediumFailed),
            _ => {}
        }
    }

    /// The control plane has done something.
    pub(super) fn note_attention(&mut self, attention: &Attention) {
        let changes = self.fleet.changes();
        let takes_over = attention.took_lead && changes.lacks;
        self.reached.note_if(takes_over, Situation::LeadWhileRebuilding);
        self.reached.note_if(changes.is_alone, Situation::SoleSurvivor);
        self.reached
            .note_if(!attention.expelled.is_empty(), Situation::Expelled);
        if !attention.expelled.is_empty() {
            let joins = |(vssd, host): &(VssdId, usize)| {
                self.world.is_up(*host) && !self.memories.holds(*host, *vssd)
            };
            let sets = self.fleet.sets();
            let joins = changes.rebuilds || sets.iter().flat_map(|set| &set.members).any(joins);
            self.reached.note_if(joins, Situation::ExpelWhileJoining);
        }
        self.reached.note_if(attention.joins_again > 0, Situation::Yield);
        self.reached.note_if(attention.joined > 0, Situation::Rebuilt);
        self.reached.note_if(attention.moved > 0, Situation::Moved);
    }
}

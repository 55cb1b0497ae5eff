//! What the parts of the operator's work have in common: they look at the stored records and at the gateway, and say
//! what to do next. The records tell how far the work is, so that each part goes on wherever a crash, a conflict or an
//! earlier start has left it.

use super::call::{Call, View, VolumeView};
use super::command::{Done, Refusal};
use base::{Addr, Duration, Instant, VolumeId};
use core::fmt::Debug;
use rack::registry::Snapshot;

/// Between two looks at what takes a moment.
pub(super) const SOON: Duration = Duration::from_millis(1);
/// Between two looks at what takes long.
pub(super) const LATER: Duration = Duration::from_millis(5);
/// Between two looks at what waits for a node that is away.
pub(super) const BACKGROUND: Duration = Duration::from_millis(100);

/// What a gateway leads.
pub(super) trait Leading: Debug {
    /// The gateway itself, if others share its registry.
    fn me(&self) -> Option<Addr>;
    /// True if it leads the rack.
    fn leads_rack(&self) -> bool;
    /// True if it leads a volume that has a record.
    fn leads(&self, id: VolumeId) -> bool;
}

/// View of a job.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sight<'a> {
    /// Now.
    pub now: Instant,
    /// The stored records.
    pub records: &'a Snapshot,
    /// The gateway, if it was looked at since the last change and the last call.
    pub view: Option<&'a View>,
    /// Somebody waits for the job's answer.
    pub is_awaited: bool,
    /// What this gateway leads, for jobs.
    pub leadership: Option<&'a dyn Leading>,
}

impl Sight<'_> {
    /// A volume of the gateway, if it was looked at.
    pub fn volume(&self, id: VolumeId) -> Option<&VolumeView> {
        self.view?.volumes.iter().find(|volume| volume.id == id)
    }

    /// The records with a change.
    pub fn change(&self, change: impl FnOnce(&mut Snapshot)) -> Step {
        let mut snapshot = self.records.clone();
        change(&mut snapshot);
        Step::Store(Box::new(snapshot))
    }
}

/// Next step of a job.
#[derive(Debug)]
pub(super) enum Step {
    /// Look at the gateway now.
    Look,
    /// Look at the gateway after this.
    Wait(Duration),
    /// Store these records.
    Store(Box<Snapshot>),
    /// Make this call.
    Call(Call),
    /// Answer the command, and go on.
    Answer(Refusal),
    /// Answer the command, if it is not answered; the job is over.
    Finish(Result<Done, Refusal>),
    /// It cannot be done: the volume is deleted again, then this is the answer.
    GiveUp(VolumeId, Refusal),
}

//! The run-time machine of one vSSD.
use crate::api::*;
use base::{Instant, Lpn, MediaDone, Medium, Pool, Version};

/// One vSSD: flash translation, garbage collection, NAND timing.
pub struct Vssd {}

#[allow(unused_variables)]
impl Vssd {
    /// The machine of an entry just created.
    pub fn create(config: VssdConfig, pool: Pool) -> Vssd {
        todo!()
    }
    /// The machine of an entry with a history.
    pub fn recover(
        config: VssdConfig,
        pool: Pool,
        medium: &dyn Medium,
    ) -> Result<(Vssd, RecoveryReport), RecoverError> {
        todo!()
    }
    /// Takes a request.
    pub fn submit(&mut self, now: Instant, request: Request) {
        todo!()
    }
    /// The medium is done with an operation.
    pub fn media_done(&mut self, now: Instant, done: MediaDone) {
        todo!()
    }
    /// The next event.
    pub fn poll(&mut self) -> Option<Event> {
        todo!()
    }
    /// When it wants to be ticked.
    pub fn deadline(&self) -> Option<Instant> {
        todo!()
    }
    /// Lets time pass.
    pub fn tick(&mut self, now: Instant) {
        todo!()
    }
    /// Newest version accepted, [`Version::NONE`] if never written or out of range.
    pub fn version(&self, lpn: Lpn) -> Version {
        todo!()
    }
    /// Pages users see.
    pub fn logical_pages(&self) -> u32 {
        todo!()
    }
    /// Free blocks over all blocks.
    pub fn free_ratio(&self) -> f64 {
        todo!()
    }
    /// Begins collecting until the ratio is reached.
    pub fn start_gc(&mut self, now: Instant, until_free_ratio: f64) {
        todo!()
    }
    /// True while collecting.
    pub fn gc_active(&self) -> bool {
        todo!()
    }
    /// The timing model's estimate of when the work now queued is finished.
    pub fn busy_until(&self) -> Instant {
        todo!()
    }
    /// Counters and state.
    pub fn stats(&self) -> VssdStats {
        todo!()
    }
    /// True after a failed media write or flush.
    pub fn latched(&self) -> bool {
        todo!()
    }
    /// Begins a checkpoint, for a clean shutdown; `Event::Done` with the tag when it is durable.
    pub fn checkpoint(&mut self, now: Instant, tag: u64) {
        todo!()
    }
}

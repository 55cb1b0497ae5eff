//! Rights of NBD clients at a volume that NVMe hosts can reserve.

use std::sync::Arc;

use base::VolumeId;

use crate::nvme::{Access, Rights};

/// Keeps a connection, which has one volume, to what its client may do.
pub(super) struct Guard {
    target: Arc<dyn Access>,
    /// The target's generation that `rights` are up to date with.
    generation: Option<u64>,
    rights: Rights,
}

impl Guard {
    pub fn new(target: Arc<dyn Access>) -> Self {
        Self {
            target,
            generation: None,
            rights: Rights::ALL,
        }
    }

    /// Rights of the client now.
    #[inline]
    pub fn rights(&mut self, volume: VolumeId) -> Rights {
        let generation = self.target.generation();
        if self.generation != Some(generation) {
            self.generation = Some(generation);
            let rights = &mut self.rights;
            self.target
                .with(&mut |target| *rights = target.rights_of_others(volume));
        }
        self.rights
    }
}

//! The hosts of a run: a rack, or a disk of its own.

use crate::check::Violation;
use crate::check::memory::Set;
use crate::fault::Metadata;
use crate::media::SimMedium;
use crate::net::LinkModel;
use crate::operators::Attention;
use crate::reached::{Changes, Situation};
use crate::world::{Site, World};
use base::{Addr, Instant, Machine, Pool, VssdId};
use host::{Input, Output};

/// Role of a host, as far as faults and checks differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The rack's switch.
    Tor,
    /// A storage server.
    Node,
    /// Where clients enter.
    Gateway,
    /// Gateway and server in one.
    Server,
}

/// The hosts under test, and what the checkers need to know of them.
pub trait Fleet {
    /// A host.
    type Host: Machine<Input = Input, Output = Output>;
    /// Places and roles, in order of index.
    fn sites(&self) -> Vec<(Site, Role)>;
    /// Makes a host, for the first time (`boot` 0) or again after a crash, from what its medium holds.
    fn start(
        &mut self,
        index: usize,
        boot: u32,
        now: Instant,
        pool: &Pool,
        medium: Option<&mut SimMedium>,
    ) -> Result<Self::Host, String>;
    /// Links that differ from the world's: from, to, model.
    fn links(&self) -> Vec<(usize, usize, LinkModel)> {
        Vec::new()
    }
    /// Replica sets with the members' nodes; at most one member of each may collect by soft request.
    fn replica_sets(&self) -> Vec<Vec<(VssdId, Addr)>> {
        Vec::new()
    }
    /// The replica sets of the volumes, as they are now.
    fn sets(&self) -> Vec<Set>;
    /// Its hosts tell when a member of a set serves; else one does when its host starts.
    fn tells_who_serves(&self) -> bool {
        false
    }
    /// How the members of sets change just now.
    fn changes(&self) -> Changes {
        Changes::default()
    }
    /// The control plane has something left to do.
    fn is_busy(&self, _now: Instant) -> bool {
        false
    }
    /// A host is gone for ever.
    fn gone(&mut self, _host: usize) {}
    /// No copy of some set is left, on hosts that are not gone: nobody can serve its clients.
    fn is_beyond_repair(&self) -> bool {
        false
    }
    /// When the control plane does something next, if ever.
    fn attend_at(&self, _now: Instant) -> Option<Instant> {
        None
    }
    /// The control plane does what is due.
    fn attend(&mut self, _world: &mut World<Self::Host>) -> Attention {
        Attention::default()
    }
    /// vSSDs that were members and are expelled: some may not know it.
    fn expelled(&self) -> Vec<VssdId> {
        Vec::new()
    }
    /// The gateways, where each can serve every volume: clients try the next when one does not.
    fn paths(&self) -> Vec<usize> {
        Vec::new()
    }
    /// Bytes of the host's medium in which a flipped bit must be survived.
    fn corruptible(&self, _index: usize) -> core::ops::Range<u64> {
        0..0
    }
    /// Bytes of the host's medium that describe its data, in which a flipped bit must be survived.
    fn metadata(&self, _index: usize, _part: Metadata) -> core::ops::Range<u64> {
        0..0
    }
    /// Makes a medium say that it is that of a host.
    fn forge_identity(&self, _index: usize, _medium: &mut SimMedium) {}
    /// Checks a host's accounts (conservation of blocks).
    fn probe(&self, _index: usize, _host: &Self::Host) -> Result<(), String> {
        Ok(())
    }
    /// Situations that a host came into since it started, and tells nobody.
    fn situations(&self, _host: &Self::Host) -> Vec<Situation> {
        Vec::new()
    }
    /// The vSSDs of a host whose medium has failed.
    fn latched(&self, _host: &Self::Host) -> Vec<VssdId> {
        Vec::new()
    }
    /// Checks what the hosts must agree on when they have come to rest. `hosts` has `None`
    /// where one is down.
    fn agree(&self, _hosts: &[Option<&Self::Host>]) -> Result<(), Violation> {
        Ok(())
    }
    /// Checks what a medium alone holds, where nothing has damaged it.
    fn check_medium(&self, _medium: &SimMedium) -> Result<(), String> {
        Ok(())
    }
    /// Checks that the media alone agree, where all that was written is durable. Each of `hosts` has just been started
    /// from its medium and has not spoken yet; `None` has none.
    fn media_agree(&self, _hosts: &[Option<Self::Host>]) -> Result<(), Violation> {
        Ok(())
    }
}

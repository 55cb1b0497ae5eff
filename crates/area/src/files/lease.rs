//! The claim that an area holds: until when its files may change by its program (docs/format/files.md, "Claim").

use super::identity::clock_ns;
use crate::area::Area;
use crate::error::AreaError;
use store::files::Claim;
use store::{Op, StructureId};

/// A claim is for so long. A change by somebody else that comes sooner after the program's end is not noticed.
const LEASE_NS: u64 = 2_000_000_000;
/// A change begins with so much of the claim left: its call has to end in this time.
const LEFT_NS_MIN: u64 = 500_000_000;
/// A sync extends a claim of which less is left, in the batch that it writes anyway.
const RENEWED_NS: u64 = 1_500_000_000;

/// The claim of an area that is open.
pub(super) struct Lease {
    map: StructureId,
    durable: Claim,
    /// Entered, and perhaps durable.
    entered: Claim,
}

impl Lease {
    /// The area's claim has this end, durably.
    pub fn new(map: StructureId, durable: Claim) -> Self {
        Self {
            map,
            durable,
            entered: durable,
        }
    }

    /// The end of the claim that is durable.
    pub fn until_ns(&self) -> u64 {
        self.durable.until_ns
    }

    /// True if files may change now under a claim that ends then.
    pub fn is_held(until_ns: u64) -> bool {
        clock_ns() + LEFT_NS_MIN <= until_ns
    }

    fn enter(&mut self, area: &Area) -> Result<Claim, AreaError> {
        let claim = Claim {
            until_ns: (clock_ns() + LEASE_NS).max(self.entered.until_ns),
        };
        area.enter(&[Op::Put {
            map: self.map,
            key: &Claim::PLACE.key(),
            data: &claim.emit(),
        }])?;
        self.entered = claim;
        Ok(claim)
    }

    /// Extends the claim, durably, if it runs out.
    pub fn hold(&mut self, area: &Area) -> Result<(), AreaError> {
        if Self::is_held(self.until_ns()) {
            return Ok(());
        }
        let claim = self.enter(area)?;
        area.sync()?;
        self.is_durable(claim);
        Ok(())
    }

    /// Extends the claim with the sync that follows, if it runs out: what becomes durable.
    pub fn renew(&mut self, area: &Area) -> Option<Claim> {
        let is_early = clock_ns() + RENEWED_NS <= self.entered.until_ns;
        // If the area refuses, a later change holds the claim.
        if is_early { None } else { self.enter(area).ok() }
    }

    /// The sync that came after has ended.
    pub fn is_durable(&mut self, claim: Claim) {
        self.durable = self.durable.max(claim);
    }
}

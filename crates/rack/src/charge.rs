//! Which volumes one of several gateways heals and moves.

use base::VolumeId;

/// What one of several gateways heals.
#[derive(Clone, Copy)]
pub struct Charge<'a> {
    /// It leads the rack: what is no volume's is its own, too.
    pub rack: bool,
    /// True for the volumes that it leads.
    pub leads: &'a dyn Fn(VolumeId) -> bool,
}

impl Charge<'_> {
    /// Of a gateway that is alone.
    pub const ALL: Self = Self {
        rack: true,
        leads: &|_| true,
    };
}

//! The terms on which a vSSD is a member of its replica set, and the leases under which it reads.

use base::Instant;
use rack::control::Config;
use rack::lease::{LAPSES_AFTER, Leases};
use rack::membership::Incarnation;
use rack::replica::Replica;

/// A member that starts, on the terms on which it took its membership.
pub(super) fn start(now: Instant, me: Incarnation, config: &Config) -> (Leases, Replica) {
    let membership = &config.membership;
    let mut replica = Replica::new(now, me, membership);
    if config.terms.yields && !membership.peers.is_empty() {
        replica.yield_all();
    }
    if config.terms.expels {
        // When it lent something last is not known any more.
        replica.fence(now + LAPSES_AFTER);
    }
    (Leases::new(now, me, membership), replica)
}

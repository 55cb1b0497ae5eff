//! The rack's level, and the programs of its parts, as the control API tells of them.

use super::part::Part;
use super::refusal::Refusal;
use super::seen::Seen;
use crate::control::api;
use base::Addr;
use host::Gateway;
use rack::level::{self, Mismatch, Part as Named, Software};
use rack::registry::parse_addr;

impl Part {
    /// The rack's level, and what its parts tell of their programs.
    pub(super) fn rack_of(&self, seen: &Seen) -> Result<api::Rack, Refusal> {
        let records = &*seen.records;
        let (me, mut told) = self.gateway(|gateway, _| (gateway.addr(), told(gateway)))?;
        let gateways = records.gateways.iter().filter(|_| self.is_shared());
        let gateways = gateways.filter_map(|known| {
            let addr = parse_addr(&known.addr).filter(|addr| *addr != me)?;
            let software = known.software.clone().unwrap_or_else(Software::untold);
            Some((Named::Gateway(addr), software))
        });
        told.extend(gateways);
        told.push((Named::Gateway(me), Software::own(self.about.levels)));
        told.sort_by_key(|(part, _)| *part);
        let program = |(part, software): (Named, Software)| api::Program {
            part: part.to_string(),
            version: software.version,
            levels: software.levels,
        };
        Ok(api::Rack {
            level: records.rack_level(),
            newest: level::NEWEST,
            waits_for: seen.waits_for.iter().map(ToString::to_string).collect(),
            parts: told.into_iter().map(program).collect(),
        })
    }

    /// The ToRs that do not know the rack's level, and what to do.
    pub(super) fn refused_tors(&self, level: u8) -> Result<Vec<(Addr, String)>, Refusal> {
        let refused = self.gateway(|gateway, _| {
            let refused = gateway.tors().iter().filter(|tor| tor.is_refused);
            let refused = refused.filter_map(|tor| Some((tor.addr, tor.last.clone()?.1)));
            refused.collect::<Vec<_>>()
        })?;
        let why = |(addr, software)| Some((addr, Mismatch::check(level, &software).err()?.to_string()));
        Ok(refused.into_iter().filter_map(why).collect())
    }
}

/// The programs of nodes and ToRs, as they have told.
fn told(gateway: &Gateway) -> Vec<(Named, Software)> {
    let nodes = gateway.nodes().iter();
    let nodes = nodes.filter_map(|node| Some((Named::Node(node.node), node.software()?.1)));
    let tors = gateway.tors().iter();
    let tors = tors.filter_map(|tor| Some((Named::Tor(tor.addr), tor.last.clone()?.1)));
    nodes.chain(tors).collect()
}

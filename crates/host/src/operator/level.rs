//! The rack's level beside one gateway: what the parts know, and when the level rises (`rack::level`).

use super::call::View;
use base::{Duration, Instant};
use rack::level::{Levels, Part, Rise, Rules, Seen, Software, holding_back};
use rack::registry::{Snapshot, parse_addr};

/// An answer that is older tells nothing: a ToR is asked once a second, and a node oftener.
const FRESH_FOR: Duration = Duration::from_secs(2);

/// A gateway's view of the level.
#[derive(Debug)]
pub(super) struct Level {
    /// The levels that the gateway knows.
    own: Levels,
    /// Other gateways share the registry.
    is_shared: bool,
    rise: Rise,
    waits_for: Vec<Part>,
    /// The level that the gateway was told.
    told: Option<u8>,
}

impl Level {
    /// Of a gateway that starts.
    pub fn new(own: Levels, is_shared: bool) -> Self {
        Self {
            own,
            is_shared,
            rise: Rise::new(Rules::default()),
            waits_for: Vec::new(),
            told: None,
        }
    }

    /// The rack's level, if the gateway is to be told, and whether it was raised meanwhile.
    pub fn news(&mut self, records: &Snapshot) -> Option<(u8, bool)> {
        let level = records.rack_level();
        let before = self.told.replace(level);
        (before != Some(level)).then_some((level, before.is_some()))
    }

    /// The parts for which the next level waited at the last look.
    pub fn waits_for(&self) -> &[Part] {
        &self.waits_for
    }

    /// The records with what this gateway tells of itself, if an older gateway has stored them without.
    pub fn enter(&self, records: &Snapshot, view: &View) -> Option<Snapshot> {
        let (me, own) = (view.me.to_string(), Some(Software::own(self.own)));
        let place = records.gateways.iter().position(|known| known.addr == me);
        let place = place.filter(|&place| self.is_shared && records.gateways[place].software != own)?;
        let mut next = records.clone();
        next.gateways[place].software = own;
        Some(next)
    }

    /// Looks at the parts; the level to store, if it is time. Only the rack's lead stores it.
    pub fn look(&mut self, now: Instant, records: &Snapshot, view: &View) -> Option<u8> {
        // A look that did not ask for the nodes shows none.
        if view.nodes.is_empty() {
            return None;
        }
        let mut parts = self.parts(now, records, view);
        self.rise.counted(now, &mut parts);
        let level = records.rack_level();
        self.waits_for = holding_back(level, &parts).collect();
        self.rise.look(now, level, &parts)
    }

    fn parts(&self, now: Instant, records: &Snapshot, view: &View) -> Vec<Seen> {
        let seen = |part, told: Option<(Instant, Software)>| {
            let fresh = told.filter(|(at, _)| now.since(*at) < FRESH_FOR);
            Seen {
                part,
                levels: fresh.map(|(_, software)| software.levels),
                heard: None,
            }
        };
        let me = Seen {
            part: Part::Gateway(view.me),
            levels: Some(self.own),
            heard: Some(now),
        };
        let nodes = view.nodes.iter();
        let nodes = nodes.map(|node| seen(Part::Node(node.node), node.software()));
        let tors = view.tors.iter();
        let tors = tors.map(|tor| seen(Part::Tor(tor.addr), tor.last.clone()));
        let gateways = records.gateways.iter().filter(|_| self.is_shared);
        let gateways = gateways.filter_map(|known| {
            let addr = parse_addr(&known.addr).filter(|addr| *addr != view.me)?;
            let peer = view.peers.iter().find(|peer| peer.addr == addr);
            Some(Seen {
                part: Part::Gateway(addr),
                levels: known.software.as_ref().map(|software| software.levels),
                heard: peer.and_then(|peer| peer.heard),
            })
        });
        core::iter::once(me)
            .chain(nodes)
            .chain(tors)
            .chain(gateways)
            .collect()
    }
}

//! Asking the nodes how they are, and what they have room for.

use super::call::Call;
use super::command::Refusal;
use super::job::{SOON, Sight, Step};
use crate::gateway::{NodeAnswer, TorAnswer};
use base::{Duration, Instant, NodeId};
use rack::control::NodeStatus;
use rack::placement::{Isolation, Offer, PlacementError, place, place_rows};
use rack::registry::{SetRecord, Snapshot};
use rack::room::{Rooms, Site};

/// Nodes that have not answered after this are silent.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// A ToR that answers has done so at that time before the nodes were asked, or later.
const TOR_ANSWERED_WITHIN: Duration = Duration::from_millis(1500);

/// Nodes that are being asked.
#[derive(Debug, Default)]
pub(super) struct Census {
    asked: Option<Instant>,
    /// One that was left out for its medium.
    foreign: Option<NodeId>,
    /// Nobody has answered.
    unheard: Option<Refusal>,
}

/// Why no node at all has answered of those that were asked at a time; nothing if one has.
fn unheard(asked: Instant, nodes: &[NodeAnswer], tors: &[TorAnswer]) -> Option<Refusal> {
    let is_heard = |node: &NodeAnswer| node.last.is_some() || node.refused.is_some();
    if nodes.is_empty() || nodes.iter().any(is_heard) {
        return None;
    }
    // ToRs are asked each second, and the nodes were given one.
    let answers = |tor: &TorAnswer| {
        let last = tor.last.as_ref();
        last.is_some_and(|(at, _)| *at + TOR_ANSWERED_WITHIN >= asked)
    };
    Some(match tors.iter().any(answers) {
        true => Refusal::NoNode(nodes.len()),
        false => Refusal::NoTor(tors.iter().map(|tor| tor.addr).collect()),
    })
}

impl Census {
    /// The nodes' answers when all have answered or the time is up; before that, what to do. A node that is silent has
    /// no last answer, and one that does not know the rack's level has a refused one.
    pub fn ask(&mut self, sight: &Sight) -> Result<Vec<NodeAnswer>, Step> {
        let Some(asked) = self.asked else {
            self.asked = Some(sight.now);
            return Err(Step::Call(Call::AskNodes));
        };
        let view = sight.view.ok_or(Step::Look)?;
        let is_fresh = |node: &NodeAnswer| node.last.as_ref().is_some_and(|(at, _)| *at >= asked);
        let is_refused = |node: &NodeAnswer| node.refused.as_ref().is_some_and(|(at, _)| *at >= asked);
        let has_answered = |node: &NodeAnswer| is_fresh(node) || is_refused(node);
        if !view.nodes.iter().all(has_answered) && sight.now < asked + ANSWER_WITHIN {
            return Err(Step::Wait(SOON));
        }
        let mut nodes = view.nodes.clone();
        for node in &mut nodes {
            node.last.take_if(|(at, _)| *at < asked);
            node.refused.take_if(|(at, _)| *at < asked);
        }
        self.unheard = unheard(asked, &nodes, &view.tors);
        Ok(nodes)
    }

    /// Why nobody has answered, if that is so.
    pub fn unheard(&self) -> Option<Refusal> {
        self.unheard.clone()
    }

    /// The same, to place vSSDs: without the nodes that are being drained, and those with vSSDs of another rack. The switch knows vSSDs by
    /// their numbers, which each rack gives by itself.
    pub fn ask_to_place(&mut self, sight: &Sight) -> Result<Vec<NodeAnswer>, Step> {
        let nodes = self.ask(sight)?;
        let own = sight.records.rack;
        let is_foreign = |node: &NodeAnswer| {
            let racks = node.last.iter().flat_map(|(_, status)| &status.racks);
            !own.is_nil() && racks.into_iter().any(|&rack| rack != own)
        };
        self.foreign = nodes.iter().find(|node| is_foreign(node)).map(|node| node.node);
        let takes = |node: &NodeAnswer| !sight.records.goes(node.node.0) && !is_foreign(node);
        Ok(nodes.into_iter().filter(takes).collect())
    }

    /// Asks anew.
    pub fn again(&mut self) {
        self.asked = None;
    }
}

/// A part of a volume to place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Space {
    /// Isolation of its vSSDs.
    pub isolation: Isolation,
    /// Pages that clients see.
    pub pages: u64,
    /// Copies.
    pub replicas: usize,
}

/// The room of the nodes that have answered, less that of vSSDs that the records promise and they have not made yet.
pub(super) fn rooms(nodes: &[NodeAnswer], records: &Snapshot) -> Rooms {
    let status = |node: &NodeAnswer| Some((node.node.0, node.last.as_ref()?.1.clone()));
    let answers: Vec<(u8, NodeStatus)> = nodes.iter().filter_map(status).collect();
    let sites = answers.iter();
    let mut rooms = Rooms::new(sites.map(|(node, status)| Site::new(*node, status, records.rack, true)));
    rooms.give_promised(records, |replica| {
        let roll = answers.iter().find(|(node, _)| *node == replica.node);
        let roll = roll.and_then(|(_, status)| status.roll.as_ref());
        roll.is_none_or(|roll| roll.here.contains(&replica.vssd))
    });
    rooms
}

/// Places replica sets on the nodes that have answered.
fn place_on(
    nodes: &[NodeAnswer],
    space: Space,
    next: &mut Snapshot,
) -> Result<Vec<SetRecord>, PlacementError> {
    let rooms = rooms(nodes, next);
    let next_vssd = &mut next.next_vssd;
    if space.isolation == Isolation::Hardware {
        let offer = |site: &Site| Offer {
            node: site.node,
            free_channels: site.free_channels,
            pages_per_channel: site.pages_per_channel,
        };
        let offers: Vec<Offer> = rooms.sites().map(offer).collect();
        return place(&offers, space.pages, space.replicas, next_vssd);
    }
    // Replicas have the same shape: SSDs of other shapes than the first are left out.
    let channels = rooms.sites().next().map_or(0, |site| site.channels);
    let offer = |site: &Site| Offer {
        node: site.node,
        free_channels: site.free_rows,
        pages_per_channel: site.pages_per_row,
    };
    let alike = rooms.sites().filter(|site| site.channels == channels);
    let offers: Vec<Offer> = alike.map(offer).collect();
    place_rows(&offers, channels, space.pages, space.replicas, next_vssd)
}

/// Places replica sets; too few nodes may be there a moment later, if there is time.
pub(super) fn place_within(
    census: &mut Census,
    nodes: &[NodeAnswer],
    space: Space,
    next: &mut Snapshot,
    has_time: bool,
) -> Result<Vec<SetRecord>, Step> {
    place_on(nodes, space, next).map_err(|error| match (error, census.foreign) {
        (_, Some(node)) => Step::Finish(Err(Refusal::ForeignNode(node))),
        (_, None) if census.unheard.is_some() && !has_time => {
            Step::Finish(Err(census.unheard.take().expect("asked for above")))
        }
        (PlacementError::TooFewNodes { .. }, None) if has_time => {
            census.again();
            Step::Wait(super::job::LATER)
        }
        (error, None) => Step::Finish(Err(Refusal::NoRoom(error))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Addr;
    use rack::control::Roll;
    use rack::registry::{ReplicaRecord, VolumeRecord};

    /// A node with one free row, which has these vSSDs.
    fn node(here: &[u32]) -> NodeAnswer {
        let status = NodeStatus {
            channels: 4,
            free_rows: 1,
            pages_per_row: 64,
            roll: Some(Roll {
                here: here.to_vec(),
                ..Roll::default()
            }),
            ..NodeStatus::default()
        };
        let mut node = NodeAnswer::unheard(NodeId(1), Addr::NONE);
        node.last = Some((Instant::ZERO, status));
        node
    }

    /// bug: with its only ToR dead a rack asked for more nodes, or fewer volumes, though nobody had been asked.
    #[test]
    fn a_rack_whose_tor_is_dead_is_told_of_the_tor_and_not_of_room() {
        let asked = Instant::ZERO + Duration::from_secs(60);
        let addr = Addr::new([10, 0, 0, 1], 8888);
        let tor = |last: Option<u64>| TorAnswer {
            addr,
            last: last.map(|ms| {
                let at = Instant::ZERO + Duration::from_millis(ms);
                (at, rack::level::Software::untold())
            }),
            is_refused: false,
        };
        let silent = [NodeAnswer::unheard(NodeId(1), Addr::NONE)];
        for dead in [tor(None), tor(Some(58_000))] {
            let refusal = unheard(asked, &silent, &[dead]).unwrap();
            assert_eq!(refusal, Refusal::NoTor(vec![addr]));
            assert!(refusal.to_string().contains("10.0.0.1:8888"), "{refusal}");
        }
        let told = unheard(asked, &silent, &[tor(Some(59_500))]);
        assert_eq!(told, Some(Refusal::NoNode(1)));
        assert_eq!(unheard(asked, &[node(&[])], &[tor(None)]), None);
        let mut census = Census {
            unheard: told.clone(),
            ..Census::default()
        };
        let space = Space {
            isolation: Isolation::Software,
            pages: 64,
            replicas: 1,
        };
        let step = place_within(&mut census, &silent, space, &mut Snapshot::default(), false).unwrap_err();
        assert!(matches!(step, Step::Finish(Err(Refusal::NoNode(1)))), "{step:?}");
    }

    /// bug: a volume took the room of another one that was in the records, and whose vSSDs were not made yet. That one never opened.
    /// fix: what the records promise is not free.
    #[test]
    fn room_that_is_promised_is_not_given_again() {
        let set = SetRecord {
            pages: 64,
            channels: 4,
            rows: 1,
            replicas: vec![ReplicaRecord { vssd: 7, node: 1 }],
            ..SetRecord::default()
        };
        let mut records = Snapshot::default();
        let space = Space {
            isolation: Isolation::Software,
            pages: 64,
            replicas: 1,
        };
        assert!(place_on(&[node(&[])], space, &mut records).is_ok(), "it is free");
        records.volumes.push(VolumeRecord {
            sets: vec![set],
            ..VolumeRecord::default()
        });
        assert!(place_on(&[node(&[])], space, &mut records).is_err());
        let mut roomy = node(&[]);
        roomy.last.as_mut().expect("it has answered").1.free_rows = 8;
        assert!(place_on(&[roomy.clone()], space, &mut records).is_ok());
        records.volumes[0].sets[0].channels = 1;
        assert!(
            place_on(&[roomy], space, &mut records).is_err(),
            "rows of one channel will be there"
        );
        assert!(
            place_on(&[node(&[7])], space, &mut records).is_ok(),
            "what it answers is without it"
        );
    }
}

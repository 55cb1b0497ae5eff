//! The places of a volume's replica sets: on the servers with the most free channels, replicas of a set on different
//! servers, primaries spread.

use crate::registry::{ReplicaRecord, SetRecord};
use thiserror::Error;

/// Free channels and space of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The node.
    pub node: u8,
    /// Channels that no vSSD has.
    pub free_channels: u32,
    /// Pages that a vSSD may expose for each of its channels, over-provisioning taken off.
    pub pages_per_channel: u32,
}

/// Isolation of a volume's vSSDs (RackBlox §3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// Nothing: each has channels of its own.
    #[default]
    Hardware,
    /// The channels of a group, of whose planes each has some.
    Software,
}

/// Why a volume cannot be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PlacementError {
    /// Too few servers answer.
    #[error(
        "{replicas} replicas need as many nodes, and {nodes} answer: start or add nodes, or ask for fewer replicas"
    )]
    TooFewNodes {
        /// Replicas asked for.
        replicas: usize,
        /// Nodes there.
        nodes: usize,
    },
    /// Too little flash is free.
    #[error("no room: {missing_bytes} bytes short; ask for less, or add nodes")]
    NoRoom {
        /// Bytes of the volume that found no place.
        missing_bytes: u64,
    },
}

/// Places `pages` pages with `replicas` copies each. Sets are spread evenly over as many servers as have room, so a volume
/// has the bandwidth of all of them. A volume that fits a few channels is not split into more sets than these channels.
/// `next_vssd` numbers the vSSDs. If room is too short for even sets, each set takes all that its channels hold.
pub fn place(
    offers: &[Offer],
    pages: u64,
    replicas: usize,
    next_vssd: &mut u32,
) -> Result<Vec<SetRecord>, PlacementError> {
    let offers: Vec<Offer> = offers
        .iter()
        .copied()
        .filter(|offer| offer.pages_per_channel > 0)
        .collect();
    if offers.len() < replicas {
        return Err(PlacementError::TooFewNodes {
            replicas,
            nodes: offers.len(),
        });
    }
    let with_room = offers.iter().filter(|offer| offer.free_channels > 0);
    let (mut nodes, mut smallest) = (0u32, u32::MAX);
    for offer in with_room {
        nodes += 1;
        smallest = smallest.min(offer.pages_per_channel);
    }
    let count = pages
        .div_ceil(u64::from(smallest))
        .clamp(1, u64::from(nodes.max(1)));
    let share = pages.div_ceil(count);
    let first_vssd = *next_vssd;
    split(offers.clone(), pages, share, share, replicas, next_vssd).or_else(|_| {
        *next_vssd = first_vssd;
        split(offers, pages, share, u64::MAX, replicas, next_vssd)
    })
}

/// As [`place`], for software-isolated vSSDs on SSDs of `channels` channels: what is offered and taken are rows of units
/// instead of channels.
pub fn place_rows(
    offers: &[Offer],
    channels: u32,
    pages: u64,
    replicas: usize,
    next_vssd: &mut u32,
) -> Result<Vec<SetRecord>, PlacementError> {
    let mut sets = place(offers, pages, replicas, next_vssd)?;
    for set in &mut sets {
        (set.channels, set.rows) = (channels, set.channels);
    }
    Ok(sets)
}

/// Sets of channels for `share` pages, of which each takes `taken_max` pages if it holds as many.
fn split(
    mut offers: Vec<Offer>,
    pages: u64,
    share: u64,
    taken_max: u64,
    replicas: usize,
    next_vssd: &mut u32,
) -> Result<Vec<SetRecord>, PlacementError> {
    let mut sets = Vec::new();
    let mut primaries = vec![0u32; offers.len()];
    let mut left = pages;
    while left > 0 {
        let Some(order) = choose(&offers, &primaries, replicas) else {
            return Err(PlacementError::NoRoom {
                missing_bytes: left * base::limits::PAGE_BYTES as u64,
            });
        };
        let chosen = || order.iter().map(|&i| offers[i]);
        let smallest = chosen().map(|offer| offer.pages_per_channel).min();
        let smallest = smallest.expect("replicas is not 0");
        let room = chosen().map(|offer| offer.free_channels).min();
        let room = room.expect("replicas is not 0");
        let channels = share
            .min(left)
            .div_ceil(u64::from(smallest))
            .clamp(1, u64::from(room)) as u32;
        let taken = (u64::from(channels) * u64::from(smallest))
            .min(left)
            .min(taken_max) as u32;
        primaries[order[0]] += 1;
        let replicas = order
            .iter()
            .map(|&i| {
                offers[i].free_channels -= channels;
                *next_vssd += 1;
                ReplicaRecord {
                    vssd: *next_vssd,
                    node: offers[i].node,
                }
            })
            .collect();
        sets.push(SetRecord {
            pages: taken,
            channels,
            rows: 0,
            replicas,
            ..SetRecord::default()
        });
        left -= u64::from(taken);
    }
    Ok(sets)
}

/// The nodes of the next set: the one with the fewest primaries first, then those with the most room.
fn choose(offers: &[Offer], primaries: &[u32], replicas: usize) -> Option<Vec<usize>> {
    let mut order: Vec<usize> = (0..offers.len())
        .filter(|&i| offers[i].free_channels > 0)
        .collect();
    let room = |i: usize| core::cmp::Reverse(offers[i].free_channels);
    let primary = order
        .iter()
        .copied()
        .min_by_key(|&i| (primaries[i], room(i), offers[i].node))?;
    order.sort_by_key(|&i| (i != primary, room(i), offers[i].node));
    order.truncate(replicas);
    (order.len() == replicas).then_some(order)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offers(nodes: u8, free_channels: u32) -> Vec<Offer> {
        (1..=nodes)
            .map(|node| Offer {
                node,
                free_channels,
                pages_per_channel: 1000,
            })
            .collect()
    }

    #[test]
    fn a_volume_spreads_over_all_nodes_with_each_replica_elsewhere() {
        let sets = place(&offers(4, 16), 4000, 2, &mut 0).unwrap();
        assert_eq!(sets.iter().map(|set| u64::from(set.pages)).sum::<u64>(), 4000);
        let mut primaries = [0; 5];
        for set in &sets {
            assert_ne!(set.replicas[0].node, set.replicas[1].node);
            primaries[set.replicas[0].node as usize] += 1;
        }
        assert_eq!(primaries, [0, 1, 1, 1, 1]);
    }

    #[test]
    fn the_default_demo_has_one_even_set_per_node() {
        let offers: Vec<Offer> = (1..=4)
            .map(|node| Offer {
                node,
                free_channels: 16,
                pages_per_channel: 48_000,
            })
            .collect();
        let sets = place(&offers, (1 << 30) / 4096, 2, &mut 0).unwrap();
        let mut channels = [0; 5];
        let mut primaries = [0; 5];
        for set in &sets {
            assert_eq!((set.pages, set.channels), (65_536, 2));
            primaries[set.replicas[0].node as usize] += 1;
            for replica in &set.replicas {
                channels[replica.node as usize] += set.channels;
            }
        }
        assert_eq!(primaries, [0, 1, 1, 1, 1]);
        assert_eq!(channels, [0, 4, 4, 4, 4], "copies are spread evenly, too");
    }

    #[test]
    fn software_isolated_sets_take_rows_of_all_channels() {
        let sets = place_rows(&offers(4, 8), 16, 4000, 2, &mut 0).unwrap();
        assert_eq!(sets.len(), 4);
        assert!(sets.iter().all(|set| (set.channels, set.rows) == (16, 1)));
    }

    #[test]
    fn a_small_volume_takes_one_channel_per_copy() {
        let sets = place(&offers(4, 16), 1000, 2, &mut 0).unwrap();
        assert_eq!((sets.len(), sets[0].channels, sets[0].pages), (1, 1, 1000));
    }

    #[test]
    fn when_room_is_short_sets_use_all_that_their_channels_hold() {
        // Even sets of 1267 pages would take two channels each, and there is one pair of nodes with three left.
        let mut next = 7;
        let sets = place(&offers(3, 3), 3800, 2, &mut next).unwrap();
        assert_eq!(sets.iter().map(|set| u64::from(set.pages)).sum::<u64>(), 3800);
        let vssds: Vec<u32> = sets
            .iter()
            .flat_map(|set| &set.replicas)
            .map(|r| r.vssd)
            .collect();
        assert_eq!(
            vssds,
            (8..=next).collect::<Vec<_>>(),
            "numbers are given out once"
        );
    }

    #[test]
    fn what_does_not_fit_is_refused_with_what_is_missing() {
        assert_eq!(
            place(&offers(1, 16), 10, 2, &mut 0),
            Err(PlacementError::TooFewNodes {
                replicas: 2,
                nodes: 1
            })
        );
        assert!(matches!(
            place(&offers(2, 2), 5000, 2, &mut 0),
            Err(PlacementError::NoRoom { .. })
        ));
        assert!(place(&offers(2, 5), 5000, 2, &mut 0).is_ok(), "exactly full");
    }
}

//! Who may connect when connections run short: a share of the limit for each listener, and for each client's address.
//!
//! - A listener has a quarter of the limit divided among all listeners for itself: the others leave so many connections free
//!   as it has not taken of these. So clients of one protocol never keep those of another out.
//! - The last eighth of what a listener can still take goes to addresses with few connections only. So one address, with as
//!   many connections as it likes, never keeps the others out. An IPv6 client counts by its /64, of which it may have every
//!   address.
//!
//! Invariant: a connection is counted from [`Seats::take`] to [`Seats::give_back`], at one listener and one address.

use core::net::{IpAddr, Ipv6Addr};
use std::collections::BTreeMap;

/// A connection as it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    listener: usize,
    network: IpAddr,
}

/// The connections of all cores that a listener's clients are shared out among.
#[derive(Debug)]
pub struct Seats {
    limit: usize,
    /// Connections of each listener.
    listeners: Vec<usize>,
    /// Connections of each network.
    networks: BTreeMap<IpAddr, usize>,
}

impl Seats {
    /// Of so many connections.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            listeners: Vec::new(),
            networks: BTreeMap::new(),
        }
    }

    /// One more listener; returns its number.
    pub fn listen(&mut self) -> usize {
        self.listeners.push(0);
        self.listeners.len() - 1
    }

    /// Counts a client of a listener, if there is a connection for it.
    pub fn take(&mut self, listener: usize, client: IpAddr) -> Option<Seat> {
        let network = network_of(client);
        let own = self.networks.get(&network).copied().unwrap_or(0);
        let left = self.left_to(listener);
        let is_scarce = left <= self.limit / 8;
        if left == 0 || is_scarce && own >= self.few() && self.limit >= 8 {
            return None;
        }
        self.listeners[listener] += 1;
        self.networks.insert(network, own + 1);
        Some(Seat { listener, network })
    }

    /// A connection has ended.
    ///
    /// # Panics
    /// If it was not counted.
    pub fn give_back(&mut self, seat: Seat) {
        self.listeners[seat.listener] -= 1;
        let own = self.networks.get_mut(&seat.network).expect("it was counted");
        *own -= 1;
        if *own == 0 {
            self.networks.remove(&seat.network);
        }
    }

    /// Connections that an address has at most where they run short.
    fn few(&self) -> usize {
        (self.limit / 64).max(1)
    }

    /// Connections that a listener can still take: all that are free but those that the others have for themselves.
    fn left_to(&self, listener: usize) -> usize {
        let guaranteed = self.limit / 4 / self.listeners.len();
        let others = self
            .listeners
            .iter()
            .enumerate()
            .filter(|&(other, _)| other != listener);
        let lacking: usize = others.map(|(_, &taken)| guaranteed.saturating_sub(taken)).sum();
        let taken: usize = self.listeners.iter().sum();
        self.limit.saturating_sub(taken + lacking)
    }
}

fn network_of(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & !(u128::MAX >> 64)).into(),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    /// Takes as many as there are; returns how many.
    fn fill(seats: &mut Seats, listener: usize, client: IpAddr) -> usize {
        (0..)
            .take_while(|_| seats.take(listener, client).is_some())
            .count()
    }

    #[test]
    fn one_address_keeps_nobody_out() {
        let mut seats = Seats::new(1024);
        let (nbd, nvme) = (seats.listen(), seats.listen());
        assert_eq!(
            fill(&mut seats, nbd, v4(1)),
            1024 - 128 - 128,
            "the rest is not for it here"
        );
        assert_eq!(fill(&mut seats, nbd, v4(2)), 16, "few for another address");
        assert_eq!(
            fill(&mut seats, nvme, v4(1)),
            112,
            "a listener's own part is free: all but its last eighth"
        );
        assert_eq!(fill(&mut seats, nvme, v4(3)), 16);
        for last in 4..=9 {
            assert_eq!(fill(&mut seats, nbd, v4(last)), 16, "and for every other address");
        }
    }

    #[test]
    fn many_addresses_of_one_listener_leave_the_others_their_part() {
        let mut seats = Seats::new(64);
        let (nbd, nvme) = (seats.listen(), seats.listen());
        let taken: usize = (0..=255).map(|last| fill(&mut seats, nbd, v4(last))).sum();
        assert_eq!(taken, 64 - 8);
        let taken: usize = (0..=255).map(|last| fill(&mut seats, nvme, v4(last))).sum();
        assert_eq!(taken, 8);
    }

    #[test]
    fn a_connection_that_ended_is_free_again() {
        let mut seats = Seats::new(1);
        let listener = seats.listen();
        let seat = seats.take(listener, v4(1)).expect("the only one");
        assert_eq!(seats.take(listener, v4(2)), None);
        seats.give_back(seat);
        assert!(seats.take(listener, v4(2)).is_some());
        assert_eq!(seats.networks.len(), 1, "who has no connection is forgotten");
    }

    #[test]
    fn a_client_does_not_count_by_its_many_ipv6_addresses() {
        let mut seats = Seats::new(64);
        let listener = seats.listen();
        let address = |host: u16| IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, 0, host]);
        let taken: usize = (0..100)
            .map(|host| fill(&mut seats, listener, address(host)))
            .sum();
        assert_eq!(taken, 56);
        let mapped = IpAddr::from([0, 0, 0, 0, 0, 0xffff, 0x0a00, 1]);
        assert_eq!(
            network_of(mapped),
            v4(1),
            "an IPv4 client of an IPv6 listener counts by its own address"
        );
    }
}

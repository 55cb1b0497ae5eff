//! Application steering between the cores of a target: deciding, sending connections away, and taking them in.

use super::{Command, Core, Endpoint, Phase};
use crate::frontend::{Rested, Traveller};
use crate::homes::{Homes, Order, Report};
use crate::switch::App;
use base::Instant;
use os::now;
use std::mem::take;
use std::sync::Arc;
use std::sync::mpsc::SendError;

/// A connection between two cores, and what the switch knows of it.
pub(crate) struct Arrival {
    traveller: Traveller,
    app: Option<App>,
}

/// A target's core as one that connections move from and to.
pub(super) struct Steering {
    homes: Arc<Homes>,
    /// Which core this is.
    core: usize,
    /// When it next says what its connections do; `None` if the policy does not ask.
    balance_at: Option<Instant>,
    orders: Vec<Order>,
}

impl Steering {
    pub fn new(homes: Arc<Homes>, core: usize) -> Self {
        Self {
            balance_at: homes.interval().map(|_| Instant::ZERO),
            homes,
            core,
            orders: Vec::new(),
        }
    }
}

impl Core {
    /// Once in a turn: moves connections as the policy says, and those that are at rest.
    pub(super) fn steer(&mut self) {
        let Some(steering) = &self.steering else {
            return;
        };
        // A session that was told to stop refuses everything: it would do so elsewhere too.
        if self.phase != Phase::Running {
            return;
        }
        if steering.balance_at.is_some_and(|at| now() >= at) {
            self.balance(now());
        }
        while let Some(rested) = self.frontend.next_rested(now) {
            match rested {
                Rested::Leaves { slot, to } => self.send_away(slot, to),
                Rested::Stays { slot } => self.keep(slot),
            }
        }
    }

    /// Says what the connections here do; whoever comes first after the interval also decides which move, for all.
    fn balance(&mut self, now: Instant) {
        let steering = self.steering.as_mut().expect("a core of a target");
        let (frontend, switch) = (&self.frontend, &self.switch);
        let reports = frontend.apps().filter_map(|(slot, app)| {
            let (class, work) = switch.work_of(slot)?;
            Some(Report { app, class, work })
        });
        let mut orders = take(&mut steering.orders);
        if steering.homes.balance(now, switch.loads(), reports, &mut orders) {
            steering.balance_at = steering.homes.interval().map(|interval| now + interval);
        }
        let here = steering.core;
        for order in orders.drain(..) {
            if order.from == here {
                self.set_out(order);
            } else {
                let sibling = &self.siblings[order.from];
                // A core that has died of a bug moves nobody.
                let _ = sibling.commands.send(Command::Move(order));
                sibling.wake.wake();
            }
        }
        if let Some(steering) = &mut self.steering {
            steering.orders = orders;
        }
    }

    /// A connection of this core is to move, if it is still here.
    pub(super) fn set_out(&mut self, order: Order) {
        let slot = self.frontend.apps().find(|&(_, app)| app == order.app);
        if let Some((slot, _)) = slot {
            self.frontend.set_out(now(), slot, order.to);
        }
    }

    /// Every connection of this core is to move.
    pub(super) fn set_out_all(&mut self, to: usize) {
        let Some(steering) = &self.steering else {
            return;
        };
        let leaving = |&(_, app): &(usize, _)| steering.homes.send_away(app, to);
        let slots: Vec<_> = self.frontend.apps().filter(leaving).collect();
        for (slot, _) in slots {
            self.frontend.set_out(now(), slot, to);
        }
    }

    /// Sends a connection that is at rest to another core, if that takes it.
    fn send_away(&mut self, slot: usize, to: usize) {
        let steering = self.steering.as_ref().expect("a core of a target");
        let (homes, here) = (Arc::clone(&steering.homes), steering.core);
        let mut returned = None;
        let (mut was_taken, sibling) = (false, &self.siblings[to]);
        let sent = homes.depart(here, to, || {
            was_taken = true;
            let arrival = Arrival {
                traveller: self.frontend.take(slot, &self.poller),
                app: self.switch.take(slot),
            };
            let Err(SendError(command)) = sibling.commands.send(Command::Arrive(Box::new(arrival))) else {
                return true;
            };
            returned = Some(command);
            false
        });
        if sent {
            sibling.wake.wake();
            return self.counters.clients_moved_out.bump();
        }
        if !was_taken {
            return self.keep(slot);
        }
        // The other core has died of a bug.
        let Some(Command::Arrive(arrival)) = returned else {
            unreachable!("what is not sent comes back");
        };
        let app = arrival.traveller.app;
        self.counters.moves_given_up.bump();
        if self.settle(*arrival) {
            homes.stay(now(), app);
        }
    }

    /// A connection that was to leave stays.
    fn keep(&mut self, slot: usize) {
        self.frontend.go_on(slot);
        if let Some(steering) = &self.steering {
            steering.homes.stay(now(), self.frontend.app(slot));
        }
        self.counters.moves_given_up.bump();
    }

    /// A connection has come from another core.
    pub(super) fn arrive(&mut self, arrival: Arrival) {
        let app = arrival.traveller.app;
        self.counters.clients_moved_in.bump();
        if self.settle(arrival)
            && let Some(steering) = &self.steering
        {
            steering.homes.arrive(steering.core, app);
        }
    }

    /// True if it lives here now.
    fn settle(&mut self, arrival: Arrival) -> bool {
        let Arrival { traveller, app } = arrival;
        let adopted = self
            .frontend
            .adopt(now(), traveller, &self.poller, &self.counters);
        let Ok((slot, client)) = adopted else {
            return false;
        };
        self.switch.put(slot, client, app);
        true
    }

    /// Takes nobody from other cores any more; those on their way are in the line of commands already.
    pub(super) fn stop_arrivals(&self) {
        if let Some(steering) = &self.steering {
            steering.homes.close(steering.core);
        }
    }

    /// The next core to give a client to that has come.
    pub(super) fn next_place(&mut self, endpoint: Endpoint) -> Option<usize> {
        let here = self.steering.as_ref().map(|steering| steering.core)?;
        if endpoint != Endpoint::Local {
            return None;
        }
        let place = self.next_core % self.siblings.len();
        self.next_core += 1;
        (place != here).then_some(place)
    }
}

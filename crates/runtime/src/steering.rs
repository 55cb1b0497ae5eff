//! Connections that move between the cores of a target: who sends them away, and who takes them in.
//!
//! The cores share [`Homes`], behind a lock, and leave each other commands. A connection is handed over with the lock held:
//! its core takes it apart and leaves it in the other core's mailbox, and only then counts it there. A core that stops closes
//! its home first and empties its mailbox after that. So each connection that was sent is found, and none is sent later.
//!
//! Invariants:
//! - A connection is at one core, or in the mailbox of one.
//! - Each core counts in [`Homes`] the connections that it has, and those in its mailbox.

use super::command::{Arrival, Command};
use super::counters::Counters;
use super::frontend::Traveller;
use super::mailbox::Address;
use super::sync::mpsc::SendError;
use super::sync::{Arc, Mutex, MutexGuard, PoisonError};
use base::{Duration, Instant};
use blockswitch::AppId;
use host::target::{Dispatcher, Homes, Relocation, Rested, Standing};
use std::io;
use std::mem::take;

/// A target's core as one that connections move from and to.
pub(crate) struct Steering {
    homes: Arc<Mutex<Homes>>,
    /// Which core this is.
    pub core: usize,
    /// All cores of the target, this one included.
    siblings: Vec<Address<Command>>,
    orders: Vec<Relocation>,
}

/// Connections of a core, as far as moves go.
pub(crate) trait Clients {
    /// A connection that is to leave takes nothing new.
    fn pause(&mut self, slot: usize);
    /// A connection that was paused goes on.
    fn resume(&mut self, slot: usize);
    /// True if a paused connection can be taken out.
    fn is_at_rest(&self, slot: usize) -> bool;
    /// Takes out a connection that is at rest.
    fn take(&mut self, slot: usize) -> Traveller;
    /// Takes a connection in: its slot and number. A connection that cannot be taken in is closed.
    fn adopt(&mut self, traveller: Traveller) -> io::Result<(usize, u32)>;
    /// How a connection stands.
    fn standing(&self, slot: usize) -> Standing;
}

/// The core's own side of a move.
pub(crate) struct Here<'a, C> {
    pub dispatcher: &'a mut Dispatcher,
    pub clients: C,
    pub counters: &'a Counters,
}

impl Steering {
    pub fn new(homes: Arc<Mutex<Homes>>, core: usize, siblings: Vec<Address<Command>>) -> Self {
        Self {
            homes,
            core,
            siblings,
            orders: Vec::new(),
        }
    }

    /// The homes, behind their lock.
    fn homes(&self) -> MutexGuard<'_, Homes> {
        // A panic of another core in here is a bug that ends the process; until then the others go on.
        self.homes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often the core says what its connections do.
    pub fn interval(&self) -> Option<Duration> {
        self.homes().interval()
    }

    /// The core of a client that has just come, if that is another one.
    pub fn next_place(&self) -> Option<&Address<Command>> {
        let place = self.homes().next_place();
        (place != self.core).then(|| &self.siblings[place])
    }

    /// A connection comes to this core, if it has room.
    pub fn enter(&self) -> Option<AppId> {
        self.homes().join(self.core)
    }

    /// A connection of this core has ended.
    pub fn leave(&self, app: AppId) {
        self.homes().leave(self.core, app);
    }

    /// Takes nobody from other cores any more; those on their way are in the mailbox already.
    pub fn close(&self) {
        self.homes().close(self.core);
    }

    /// Once in a turn: moves connections as the policy says, and those that are at rest.
    pub fn steer<C: Clients>(&mut self, now: Instant, here: &mut Here<'_, C>) {
        if here.dispatcher.reports_now(now) {
            self.report(now, here);
        }
        while let Some(rested) = here.next_rested(now) {
            match rested {
                Rested::Leaves { slot, to } => self.send_away(now, slot, to, here),
                Rested::Stays { slot } => self.keep(now, slot, here),
            }
        }
    }

    /// Says what the connections here do. Whoever comes first after the interval also decides which move, for all; the
    /// core does not wait for another that does so just now.
    fn report<C: Clients>(&mut self, now: Instant, here: &mut Here<'_, C>) {
        let mut orders = take(&mut self.orders);
        if let Ok(mut homes) = self.homes.try_lock() {
            let dispatcher = &mut *here.dispatcher;
            homes.balance(now, dispatcher.reports(), &mut orders);
            dispatcher.reported(now);
        }
        for order in orders.drain(..) {
            if order.from == self.core {
                self.set_out(now, order, here);
            } else {
                // A core that has died of a bug moves nobody.
                let _ = self.siblings[order.from].tell(Command::Move(order));
            }
        }
        self.orders = orders;
    }

    /// A connection of this core is to move, if it is still here.
    pub fn set_out<C: Clients>(&self, now: Instant, order: Relocation, here: &mut Here<'_, C>) {
        let slot = here.dispatcher.apps().find(|&(_, app)| app == order.app);
        if let Some((slot, _)) = slot {
            here.pause(now, slot, order.to);
        }
    }

    /// Every connection of this core is to move.
    pub fn set_out_all<C: Clients>(&self, now: Instant, to: usize, here: &mut Here<'_, C>) {
        let leaving = |&(_, app): &(usize, AppId)| self.homes().send_away(app, to);
        let slots: Vec<_> = here.dispatcher.apps().filter(leaving).collect();
        for (slot, _) in slots {
            here.pause(now, slot, to);
        }
    }

    /// Sends a connection that is at rest to another core, if that takes it.
    fn send_away<C: Clients>(&self, now: Instant, slot: usize, to: usize, here: &mut Here<'_, C>) {
        let (mut was_taken, mut returned) = (false, None);
        let sent = self.homes().depart(self.core, to, || {
            was_taken = true;
            let arrival = Arrival {
                traveller: here.clients.take(slot),
                moving: here.dispatcher.take(slot),
            };
            let told = self.siblings[to].tell(Command::Arrive(Box::new(arrival)));
            let Err(SendError(command)) = told else {
                return true;
            };
            returned = Some(command);
            false
        });
        if sent {
            return here.counters.clients_moved_out.bump();
        }
        if !was_taken {
            return self.keep(now, slot, here);
        }
        // The other core has died of a bug.
        let Some(Command::Arrive(arrival)) = returned else {
            unreachable!("what is not sent comes back");
        };
        here.counters.moves_given_up.bump();
        if let Some(app) = self.settle(*arrival, here) {
            self.homes().stay(now, app);
        }
    }

    /// A connection that was to leave stays.
    fn keep<C: Clients>(&self, now: Instant, slot: usize, here: &mut Here<'_, C>) {
        here.go_on(slot);
        if let Some(app) = here.dispatcher.app(slot) {
            self.homes().stay(now, app);
        }
        here.counters.moves_given_up.bump();
    }

    /// A connection has come from another core.
    pub fn arrive<C: Clients>(&self, arrival: Arrival, here: &mut Here<'_, C>) {
        here.counters.clients_moved_in.bump();
        if let Some(app) = self.settle(arrival, here) {
            self.homes().arrive(self.core, app);
        }
    }

    /// The application that lives here now, if it could be taken in.
    fn settle<C: Clients>(&self, arrival: Arrival, here: &mut Here<'_, C>) -> Option<AppId> {
        let Arrival { traveller, moving } = arrival;
        let app = moving.app.expect("a connection of a target");
        let Ok((slot, client)) = here.clients.adopt(traveller) else {
            self.leave(app);
            return None;
        };
        here.dispatcher.put(slot, client, moving);
        here.dispatcher.stand(slot, here.clients.standing(slot));
        Some(app)
    }
}

impl<C: Clients> Here<'_, C> {
    fn pause(&mut self, now: Instant, slot: usize, to: usize) {
        if self.dispatcher.set_out(now, slot, to) {
            self.clients.pause(slot);
        }
    }

    fn next_rested(&mut self, now: Instant) -> Option<Rested> {
        let clients = &self.clients;
        self.dispatcher.next_rested(now, |slot| clients.is_at_rest(slot))
    }

    /// A connection that was to leave goes on here.
    fn go_on(&mut self, slot: usize) {
        self.clients.resume(slot);
        self.dispatcher.go_on(slot);
    }

    /// Nobody leaves any more.
    pub fn stay(&mut self) {
        while let Some(slot) = self.dispatcher.any_departing() {
            self.go_on(slot);
        }
    }
}

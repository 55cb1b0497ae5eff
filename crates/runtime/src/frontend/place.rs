//! Places for clients: [`Seats`] behind a lock. The core with the listeners takes places, and each core gives back those of
//! the connections that end there. No core takes the lock between a request and its answer.

use crate::sync::{Arc, Mutex, MutexGuard, PoisonError};
use host::target::{Seat, Seats};
use std::net::IpAddr;

/// The places of a core's listeners.
pub(super) struct Places(Arc<Mutex<Seats>>);

/// A client's place: free again when it is dropped, on whatever core.
pub(crate) struct Place {
    seats: Arc<Mutex<Seats>>,
    seat: Seat,
    client: IpAddr,
}

impl Places {
    /// Of so many connections.
    pub fn new(limit: usize) -> Self {
        Self(Arc::new(Mutex::new(Seats::new(limit))))
    }

    /// One more listener; returns its number.
    pub fn listen(&self) -> usize {
        hold(&self.0).listen()
    }

    /// A place for a client of a listener, if it may have one.
    pub fn take(&self, listener: usize, client: IpAddr) -> Option<Place> {
        let seat = hold(&self.0).take(listener, client)?;
        let seats = Arc::clone(&self.0);
        Some(Place { seats, seat, client })
    }
}

impl Place {
    /// Whose it is.
    pub fn client(&self) -> IpAddr {
        self.client
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        hold(&self.seats).give_back(self.seat);
    }
}

fn hold(seats: &Mutex<Seats>) -> MutexGuard<'_, Seats> {
    // A panic in here is a bug that ends the core; until the process ends the others go on.
    seats.lock().unwrap_or_else(PoisonError::into_inner)
}

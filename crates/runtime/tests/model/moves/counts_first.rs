//! A core that counts a connection at its new home, and sends it after it has let go of the lock: the other core may stop in
//! between.

files!();
#[allow(dead_code, reason = "no host is called")]
#[path = "../../../src/command.rs"]
mod command;
#[allow(dead_code, reason = "no check reads all counters")]
#[path = "../../../src/counters.rs"]
mod counters;
#[path = "../../../src/mailbox.rs"]
mod mailbox;
#[allow(dead_code, reason = "one step is replaced")]
#[path = "../../../src/steering.rs"]
mod shipped;

mod steering {
    use super::command::Arrival;
    pub(super) use super::shipped::{Clients, Here};
    use super::{Address, Command, Homes, Mutex, shipped};
    use base::Instant;
    use host::target::Rested;
    use std::ops::{Deref, DerefMut};
    use std::sync::Arc;

    pub(super) struct Steering {
        shipped: shipped::Steering,
        homes: Arc<Mutex<Homes>>,
        siblings: Vec<Address<Command>>,
    }

    impl Steering {
        pub fn new(homes: Arc<Mutex<Homes>>, core: usize, siblings: Vec<Address<Command>>) -> Self {
            let shipped = shipped::Steering::new(Arc::clone(&homes), core, siblings.clone());
            Self {
                shipped,
                homes,
                siblings,
            }
        }

        pub fn steer<C: Clients>(&mut self, now: Instant, here: &mut Here<'_, C>) {
            loop {
                let clients = &here.clients;
                let rested = here.dispatcher.next_rested(now, |slot| clients.is_at_rest(slot));
                match rested {
                    None => return,
                    Some(Rested::Leaves { slot, to }) => {
                        let is_counted = self
                            .homes
                            .lock()
                            .expect("no panic")
                            .depart(self.core, to, || true);
                        if is_counted {
                            here.counters.clients_moved_out.bump();
                            let arrival = Arrival {
                                traveller: here.clients.take(slot),
                                moving: here.dispatcher.take(slot),
                            };
                            let _ = self.siblings[to].tell(Command::Arrive(Box::new(arrival)));
                        } else {
                            here.clients.resume(slot);
                            here.dispatcher.go_on(slot);
                        }
                    }
                    Some(Rested::Stays { slot }) => {
                        here.clients.resume(slot);
                        here.dispatcher.go_on(slot);
                    }
                }
            }
        }
    }

    impl Deref for Steering {
        type Target = shipped::Steering;

        fn deref(&self) -> &shipped::Steering {
            &self.shipped
        }
    }

    impl DerefMut for Steering {
        fn deref_mut(&mut self) -> &mut shipped::Steering {
            &mut self.shipped
        }
    }
}

scenario!();

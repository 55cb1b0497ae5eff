//! Connections that move between cores, as cores are told to and as the policy says, while clients come and go and the cores
//! stop: none is lost, none is at two places, and nothing of any is left.

use crate::check::{SCHEDULES, check, finds, finds_that};
use crate::sync::Fault;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What a check says that misses a connection.
const LOST: &str = "a connection is lost";

/// Connections in the whole check.
#[derive(Default)]
struct Register {
    opened: AtomicUsize,
    closed: AtomicUsize,
    refused: AtomicUsize,
}

/// A client's connection. It is counted where it ends in an orderly way.
struct Token(Arc<Register>);

impl Token {
    fn new(register: &Arc<Register>) -> Self {
        register.opened.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(register))
    }

    fn close(self) {
        self.0.closed.fetch_add(1, Ordering::Relaxed);
    }
}

/// What the files take from their crate, and their users.
macro_rules! files {
    () => {
        mod frontend {
            use super::super::{Busy, Token};

            /// A client that no core has: its connection closes if nobody takes it.
            pub(crate) struct Client(pub Option<Token>);
            pub(crate) struct Traveller(pub Token, pub Busy);

            impl Drop for Client {
                fn drop(&mut self) {
                    if let Some(token) = self.0.take() {
                        token
                            .0
                            .refused
                            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    }
                }
            }
        }
        mod hosts {
            pub(crate) trait RackHost {}
        }
    };
}

/// What a connection has under way: turns until its request is answered, its tag, and its payload.
#[derive(Clone, Copy, Default)]
struct Busy {
    turns: u32,
    tag: Option<u32>,
    bytes: u64,
}

macro_rules! scenario {
    () => {
        use super::{Busy, Register, Token};
        use crate::sync::{self, Mutex, mpsc::TryRecvError};
        use blockswitch::{Class, ClassHint, Kind, Loads, Policy};
        use command::Command;
        use counters::Counters;
        use frontend::{Client, Traveller};
        use host::target::{Ask, Config, Dispatcher, Homes, Standing};
        use mailbox::{Address, Mailbox};
        use shuttle::rand::{Rng, thread_rng};
        use shuttle::thread;
        use std::io;
        use std::sync::Arc;
        use std::sync::atomic::Ordering;
        use steering::{Clients, Here, Steering};

        /// A few connections a core: cores are full at times.
        const CONNECTIONS_MAX: usize = 3;
        const BYTES: u32 = 64 << 10;
        /// A turn takes so long, of the balance interval of 10 ms.
        const TURN_NS: u64 = 3_000_000;

        struct Table {
            slots: Vec<Option<(Token, Busy, bool)>>,
            next_client: u32,
        }

        impl Table {
            fn entry(&self, slot: usize) -> &(Token, Busy, bool) {
                self.slots[slot].as_ref().expect("an open connection")
            }

            fn place(&mut self, token: Token, busy: Busy) -> (usize, u32) {
                let free = self.slots.iter().position(Option::is_none);
                let slot = free.expect("a core has room for what it counts");
                self.slots[slot] = Some((token, busy, false));
                self.next_client += 1;
                (slot, self.next_client)
            }
        }

        impl Clients for &mut Table {
            fn pause(&mut self, slot: usize) {
                self.slots[slot].as_mut().expect("an open connection").2 = true;
            }

            fn resume(&mut self, slot: usize) {
                self.slots[slot].as_mut().expect("an open connection").2 = false;
            }

            fn is_at_rest(&self, slot: usize) -> bool {
                let (_, busy, is_paused) = self.entry(slot);
                *is_paused && busy.tag.is_none()
            }

            fn take(&mut self, slot: usize) -> Traveller {
                let (token, busy, is_paused) = self.slots[slot].take().expect("an open connection");
                assert!(is_paused && busy.tag.is_none(), "what leaves is at rest");
                Traveller(token, busy)
            }

            fn adopt(&mut self, Traveller(token, busy): Traveller) -> io::Result<(usize, u32)> {
                // Now and then the system refuses to watch one more descriptor.
                if thread_rng().gen_range(0..16) == 0 {
                    token.close();
                    return Err(io::ErrorKind::Other.into());
                }
                Ok(self.place(token, busy))
            }

            fn standing(&self, slot: usize) -> Standing {
                let in_flight_bytes = self.entry(slot).1.bytes;
                Standing {
                    in_flight: usize::from(in_flight_bytes > 0),
                    in_flight_bytes,
                    ..Standing::default()
                }
            }
        }

        /// What the loop of a core does, sockets aside.
        struct Core {
            steering: Steering,
            dispatcher: Dispatcher,
            table: Table,
            counters: Counters,
            stops: bool,
        }

        impl Core {
            fn here(&mut self) -> (&mut Steering, Here<'_, &mut Table>) {
                let here = Here {
                    dispatcher: &mut self.dispatcher,
                    clients: &mut self.table,
                    counters: &self.counters,
                };
                (&mut self.steering, here)
            }

            fn run(mut self, mailbox: &Mailbox<Command>) -> (u64, u64) {
                loop {
                    // A core with something to do asks who is ready and does not wait.
                    if !self.stops
                        && self
                            .table
                            .slots
                            .iter()
                            .flatten()
                            .all(|(_, busy, _)| busy.tag.is_none())
                    {
                        mailbox.wake().wait();
                    }
                    self.obey(mailbox);
                    if self.stops {
                        return self.end();
                    }
                    sync::pass(TURN_NS);
                    self.work();
                    let (steering, mut here) = self.here();
                    steering.steer(sync::now(), &mut here);
                }
            }

            fn obey(&mut self, mailbox: &Mailbox<Command>) {
                mailbox.open();
                loop {
                    match mailbox.next() {
                        Ok(Command::Adopt(client)) => self.open(client),
                        Ok(Command::Arrive(arrival)) => {
                            let (steering, mut here) = self.here();
                            steering.arrive(*arrival, &mut here);
                        }
                        Ok(Command::Move(order)) => {
                            let (steering, mut here) = self.here();
                            steering.set_out(sync::now(), order, &mut here);
                        }
                        Ok(Command::MoveAll { to }) => {
                            let (steering, mut here) = self.here();
                            steering.set_out_all(sync::now(), to, &mut here);
                        }
                        Ok(Command::Stop) => {
                            self.steering.close();
                            self.stops = true;
                        }
                        Ok(Command::Call { .. }) => unreachable!("no host is called"),
                        Err(TryRecvError::Empty) => break,
                        Err(TryRecvError::Disconnected) => unreachable!("the core knows its own address"),
                    }
                }
            }

            fn open(&mut self, mut client: Client) {
                let Some(app) = self.steering.enter() else {
                    return;
                };
                let token = client.0.take().expect("a client comes once");
                let (slot, number) = self.table.place(token, Busy::default());
                self.dispatcher.open(slot, number, Some(app));
                self.begin(slot);
            }

            /// A request of the connection arrives.
            fn begin(&mut self, slot: usize) {
                let ask = Ask {
                    kind: Kind::Read,
                    bytes: BYTES,
                    urgent: false,
                };
                let (tag, _) = self
                    .dispatcher
                    .arrive(sync::now(), slot, ask, || ClassHint::Auto);
                let entry = self.table.slots[slot].as_mut().expect("just opened");
                entry.1 = Busy {
                    turns: thread_rng().gen_range(1..3),
                    tag: Some(tag),
                    bytes: u64::from(BYTES),
                };
                self.dispatcher
                    .stand(slot, (&mut self.table).standing(slot));
            }

            /// Answers what is due; then clients ask anew, or leave, or are silent.
            fn work(&mut self) {
                for slot in 0..CONNECTIONS_MAX {
                    let Some((_, busy, is_paused)) = &mut self.table.slots[slot] else {
                        continue;
                    };
                    let Some(tag) = busy.tag else { continue };
                    busy.turns -= 1;
                    if busy.turns > 0 {
                        continue;
                    }
                    *busy = Busy::default();
                    let is_paused = *is_paused;
                    self.dispatcher.answered(tag);
                    self.dispatcher
                        .stand(slot, (&mut self.table).standing(slot));
                    match thread_rng().gen_range(0..4) {
                        0 => self.close(slot),
                        1 if !is_paused => self.begin(slot),
                        _ => {}
                    }
                }
            }

            fn close(&mut self, slot: usize) {
                if let Some(app) = self.dispatcher.app(slot) {
                    self.steering.leave(app);
                }
                let (token, ..) = self.table.slots[slot].take().expect("an open connection");
                token.close();
                self.dispatcher.close(slot, |_| {});
            }

            /// Connections stay and end; nothing of them is left.
            fn end(mut self) -> (u64, u64) {
                self.here().1.stay();
                for slot in 0..CONNECTIONS_MAX {
                    if self.table.slots[slot].is_some() {
                        self.close(slot);
                    }
                }
                let all = share(&mut self.dispatcher);
                let mut fresh = dispatcher(0, &Arc::new(Loads::new(2, &config().switch)));
                assert_eq!(
                    all,
                    share(&mut fresh),
                    "a connection that is gone has no part of the budget"
                );
                let stats = self.counters.read();
                (stats.clients_moved_out, stats.clients_moved_in)
            }
        }

        /// What a new connection may have under way.
        fn share(dispatcher: &mut Dispatcher) -> u64 {
            dispatcher.open(0, u32::MAX, None);
            dispatcher.share_of(0)
        }

        fn config() -> Config {
            Config {
                connections_max: CONNECTIONS_MAX,
                requests_max: 4,
                pool_pages: 64,
                ..Config::of(Policy::Switchyard)
            }
        }

        fn dispatcher(core: usize, loads: &Arc<Loads>) -> Dispatcher {
            Dispatcher::new(sync::now(), &config(), Arc::clone(loads), core)
        }

        pub(crate) fn clients_and_moves() {
            let register = Arc::new(Register::default());
            let loads = Arc::new(Loads::new(2, &config().switch));
            let homes = Arc::new(Mutex::new(Homes::new(&config(), 2)));
            let mut mailboxes = Vec::new();
            let mut addresses: Vec<Address<Command>> = Vec::new();
            for _ in 0..2 {
                let (mailbox, address) = Mailbox::new().expect("the model has wakes");
                mailboxes.push(mailbox);
                addresses.push(address);
            }
            let cores: Vec<_> = mailboxes
                .into_iter()
                .enumerate()
                .map(|(number, mailbox)| {
                    let steering = Steering::new(Arc::clone(&homes), number, addresses.clone());
                    let loads = Arc::clone(&loads);
                    thread::spawn(move || {
                        let mut dispatcher = dispatcher(number, &loads);
                        dispatcher.join(steering.interval());
                        let core = Core {
                            steering,
                            dispatcher,
                            table: Table {
                                slots: (0..CONNECTIONS_MAX).map(|_| None).collect(),
                                next_client: 0,
                            },
                            counters: Counters::default(),
                            stops: false,
                        };
                        core.run(&mailbox)
                    })
                })
                .collect();
            let orders = addresses.clone();
            let mover = thread::spawn(move || {
                for (number, address) in orders.iter().enumerate().chain(orders.iter().enumerate()) {
                    let _ = address.tell(Command::MoveAll { to: 1 - number });
                }
            });
            for at in 0..4 {
                let client = Client(Some(Token::new(&register)));
                let _ = addresses[at % 2].tell(Command::Adopt(client));
            }
            let stops = addresses.clone();
            let stopper = thread::spawn(move || {
                for address in stops {
                    let _ = address.tell(Command::Stop);
                }
            });
            drop(addresses);
            mover.join().expect("no panic");
            stopper.join().expect("no panic");
            let moved: Vec<_> = cores
                .into_iter()
                .map(|core| core.join().expect("no panic"))
                .collect();
            let out: u64 = moved.iter().map(|(out, _)| out).sum();
            let arrived: u64 = moved.iter().map(|(_, arrived)| arrived).sum();
            assert_eq!(out, arrived, "{}: what left has arrived", super::LOST);
            let count = |of: &std::sync::atomic::AtomicUsize| of.load(Ordering::Relaxed);
            let ended = count(&register.closed) + count(&register.refused);
            assert_eq!(count(&register.opened), ended, "{}", super::LOST);
            let mut homes = homes.lock().expect("no panic");
            for core in 0..2 {
                let room = (0..CONNECTIONS_MAX)
                    .filter(|_| homes.join(core).is_some())
                    .count();
                assert_eq!(room, CONNECTIONS_MAX, "a home counts nobody who is gone");
            }
            for core in 0..2 {
                for class in [Class::Latency, Class::Throughput] {
                    let left = loads.requests(core, class);
                    assert_eq!(left, 0, "a request that ended weighs nothing");
                }
            }
        }
    };
}

mod counts_first;
mod shipped;
mod stays_open;

#[test]
fn a_connection_is_at_one_core_and_ends_there() {
    check(None, SCHEDULES, shipped::clients_and_moves);
}

#[test]
fn a_core_that_is_not_woken_for_a_connection_is_found() {
    finds(Some(Fault::WakesNoCore), shipped::clients_and_moves);
}

#[test]
fn a_core_that_stops_with_an_open_home_is_found() {
    finds_that(None, LOST, stays_open::clients_and_moves);
}

#[test]
fn a_departure_that_is_counted_before_it_is_sent_is_found() {
    finds_that(None, LOST, counts_first::clients_and_moves);
}

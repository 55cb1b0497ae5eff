//! The serve loop of a target's cores: whose turn it is, for how much, and when a core looks for what has come.
//!
//! Each core has a [`Dispatcher`], and obeys what [`Dispatcher::next`] says: look for arrivals, read from a connection and
//! take its requests, work on a request, send a connection's answers. The core tells the dispatcher what came of each. The
//! runtime obeys with epoll, sockets and media; the simulator obeys with modelled connections and costs. [`Homes`] says for
//! all cores together which core a connection lives on.
//!
//! [`Config`] has one constructor, so that both worlds have one configuration.
//!
//! # The order of a turn
//! A turn looks for arrivals. Then it takes in what connections sent: all that ask little at a time, one of the others
//! that are latency-bound, and one bulk connection. Then it works until one slice of bulk work is done. Policies that do
//! not prioritise take in all connections, and work until nothing waits.
//!
//! Between two slices a turn first tries the connection that asked for little last, which as a rule is the next one to
//! ask. A right guess saves the core the question who is ready, which costs as much as a small read. The core does not guess
//! while several connections ask little: it would hear of one of them only.
//!
//! # Invariants
//! - A connection stands in one line at most, and a line has only open connections.
//! - Every request that arrived is answered, or dropped when its connection closes before the request has begun.
//! - The dispatcher allocates nothing after its start, and takes no lock; cores share [`blockswitch::Loads`] alone.

mod budget;
mod config;
mod dispatcher;
mod holders;
mod homes;
mod lead;
mod lines;
mod seats;
mod spin;

pub use budget::PROOF_BYTES;
pub use config::{ClassRules, Config, READ_BYTES};
pub use dispatcher::{Act, Ask, Dispatcher, Passage, Step, Wait};
pub use holders::{HOLD_TIME, STILL_TIME};
pub use homes::{Homes, Relocation, Report};
pub use lines::{Moving, Rested, Standing};
pub use seats::{Seat, Seats};

//! Events at the edge: kept for `/v1/events` and `/metrics`, told in sentences, written to the log.
//!
//! A process has one journal. Cores reach it through a [`Teller`] and never wait for it; everything else calls [`tell`].

mod api;
mod command;
mod journal;
mod serve;
mod text;
pub mod time;

pub use command::{EventsArgs, run};
pub use journal::{counts, end, lost, tell, teller};
pub use serve::routes;

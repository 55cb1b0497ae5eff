//! Areas as programs use them.

mod files;
mod follow;
mod grow;
mod reads;
mod snapshot;
mod transactions;

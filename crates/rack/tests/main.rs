//! The rack's policies and protocols, by example and by exploring what may happen.

mod change;
mod explore;
mod golden;
mod model;
mod moves;
mod rebuild;
mod replication;

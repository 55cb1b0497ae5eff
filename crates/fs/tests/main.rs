//! A file system on media that cuts, damage and other processes come upon.

mod ace;
mod callers;
mod client;
mod coalesce;
mod common;
mod crash;
mod crash_calls;
mod damage;
mod digest;
mod figures;
mod follow;
mod full;
mod lease;
mod lease_explore;
mod lease_machine;
mod lease_swarm;
mod linux;
mod log;
mod migrate;
mod model;
mod op;
mod overlay;
mod process;
mod program;
mod served;
mod tier;

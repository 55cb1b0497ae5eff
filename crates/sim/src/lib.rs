//! Deterministic simulation of a whole rack: virtual time, a modelled network and media, faults, clients, and checkers
//! outside the code under test.
//!
//! [`world`] drives hosts (crate `host`) through their inputs and outputs only, so that what it exercises is what the
//! runtime ships. [`net`] and [`media`] are the models and their misfortunes; [`client`] and [`workload`] make the
//! load, [`trace`] reads recorded ones; [`check`] holds the checkers; [`run`] puts one run together. [`rack`] puts the
//! real hosts in; [`swarm`] draws whole runs from seeds, [`operators`] runs the control plane on a modelled
//! [`registry`] with [`commands`], [`threads`] runs many; [`cuts`] takes the power away at every write boundary; [`experiment`] holds the named
//! measurements, [`eval`] those of the rack's paper.
//!
//! A run is a function of its seed: the same seed gives the same event log hash, in any process.
#![forbid(unsafe_code)]

pub mod check;
pub mod client;
pub mod commands;
pub mod cuts;
pub mod disk;
mod draw;
pub mod eval;
pub mod experiment;
pub mod fault;
pub mod files;
pub mod fleet;
pub mod media;
pub mod net;
pub mod operators;
pub mod queue;
pub mod rack;
pub mod reached;
pub mod rebuild;
pub mod registry;
pub mod report;
pub mod run;
mod scripts;
pub mod small;
pub mod storage;
pub mod swarm;
pub mod switch;
pub mod threads;
mod tors;
pub mod trace;
pub mod workload;
pub mod world;

//! An area on media that cuts, damage and lack of room come upon.

mod amplification;
mod catalog;
mod common;
mod crash;
mod expect;
mod files;
mod follow;
mod full;
mod golden;
mod grow;
mod held;
mod repair;
mod snapshot;
mod spill;

//! The rack's policy, pure: ToR tables and workflow, server workflow, I/O schedulers, predictor, write cache,
//! replication, duplicate suppression, placement, wear levelling and the registry's records.
//!
//! Nothing here sends, waits or stores: crate `host` composes these into machines.
#![forbid(unsafe_code)]

pub mod bucket;
pub mod cache;
mod catchup;
pub mod charge;
pub mod compare;
pub mod control;
pub mod dedup;
pub mod exchange;
pub mod force;
pub mod gc;
pub mod gc_group;
pub mod heal;
pub mod inventory;
pub mod lead;
pub mod lease;
pub mod level;
pub mod membership;
pub mod moves;
pub mod nodes;
pub mod pace;
pub mod part;
pub mod placement;
pub mod port;
pub mod predictor;
pub mod promise;
pub mod rebuild;
pub mod registry;
pub mod replica;
pub mod room;
pub mod sched;
pub mod scrub;
pub mod slow;
mod times;
pub mod tor;
pub mod uplink;
pub mod vdc;
pub mod wear;

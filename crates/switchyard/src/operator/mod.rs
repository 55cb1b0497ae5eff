//! One process's part of the rack: the cores that run here, which hosts they have, and the operator beside a gateway
//! (`host::operator`). Everything the control API and the metrics know comes from here.
//!
//! Invariants: a host is only touched on its own core, through [`runtime::CoreHandle::call`]; the registry and the
//! operator are only touched on the operator's thread ([`driver`]), to which commands are posted.

mod cores;
mod driver;
mod gateways;
mod level;
mod nodes;
mod nvme;
mod observe;
mod part;
mod ready;
mod refusal;
mod seen;
mod volumes;

pub use cores::At;
pub use gateways::{ASK_EVERY, LOOK_EVERY, SILENT_AFTER, check_level, cntlids, enter};
pub use nvme::Offer;
pub use observe::{core as core_counters, stages_of};
pub use part::{About, Part, Pieces};
pub use refusal::Refusal;
pub use seen::Told;

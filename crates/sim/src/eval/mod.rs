//! The evaluation of RackBlox (SOSP'23 §4), figure by figure: the published systems, an ideal without garbage
//! collection and ours, on one modelled rack.
//!
//! A figure is a [`Plan`]: cases of hardware, policies and workload, each of which becomes a [`Row`]. Within a plan all
//! policies meet the same [`Hardware`] for the same workload, which [`Plan::is_fair`] tells. A run fills the volumes,
//! warms the flash up until collection is steady, and measures.
pub mod apps;
mod figure;
pub mod gc_tail;
pub mod isolation;
mod measure;
mod memo;
pub mod netsched;
pub mod pairs;
mod plan;
pub mod replay;
pub mod schedulers;
mod setup;
mod slower;
pub mod wear;
pub mod ycsb;

pub(crate) use figure::NAMES;
pub use figure::{Figure, Percentiles, Row};
pub use measure::{Counted, measure, network, options, phases, row, run, run_spec};
pub use memo::forget;
pub use plan::{Case, Plan};
pub use setup::{Hardware, Policies, System, Workload};

//! Events: what an operator has to know of a host, in small typed values.
//!
//! A host puts an event out like a packet; it keeps none. Each world keeps the last events of each of its hosts in
//! [`Events`], a ring of fixed size. Sentences for people are made at the edge. `docs/events.md` describes every kind.
//!
//! No event is made for a request. Equal events of one host within [`COALESCE`] are one event with a count.

mod kind;
mod ring;
mod value;

pub use kind::{
    Answers, AreaRefusal, Collection, Description, Grant, Kind, Lapse, Lead, Look, MediumOperation, Metadata,
    Obstacle, Refusal, RegistryTrouble, Wait,
};
pub use ring::{COALESCE, Event, Events, Page};
pub use value::{Level, Source, Value};

//! The fast path: the common case of a segment received and a segment sent, over one flow. Pure functions without clock,
//! allocation or lock. What is not common is left to the slow path.

pub mod receive;
pub mod transmit;

pub use receive::{Actions, Received, receive, receive_next};
pub use transmit::{Next, Plan, transmit, transmit_next};

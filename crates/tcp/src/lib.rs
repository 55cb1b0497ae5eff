//! TCP as a service, pure (TAS, EuroSys'19).
#![forbid(unsafe_code)]

pub mod addr;
pub mod congestion;
pub mod fast;
pub mod flow;
pub mod frame;
pub mod scale;
pub mod seq;
pub mod siphash;
pub mod timers;

//! TCP as a service, pure (TAS, EuroSys'19).
#![forbid(unsafe_code)]

pub mod addr;
pub mod frame;
pub mod seq;

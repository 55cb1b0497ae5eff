//! Why the control API refuses.

use host::operator;
use runtime::Stopped;
use thiserror::Error;

/// Why a request was not carried out.
#[derive(Debug, Error)]
pub enum Refusal {
    /// The request makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// The operator refused.
    #[error(transparent)]
    Operator(#[from] operator::Refusal),
    /// The process is stopping, or a core has died.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// This process has no gateway.
    #[error("this part of the rack has no gateway: ask the one that has, with --control")]
    NoGateway,
}

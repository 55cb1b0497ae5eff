//! Exit codes: what a script can tell apart. Everything else about a failure is one sentence on standard error.

use thiserror::Error;

/// Something was done and failed, or a check found problems.
pub const FAILED: u8 = 1;
/// Wrong usage or configuration; `verify`: it cannot be checked.
pub const USAGE: u8 = 2;
/// No rack answers at the control address, or no server of areas at its socket.
pub const NO_RACK: u8 = 3;
/// A directory, medium or address is in use by somebody else.
pub const IN_USE: u8 = 4;

/// A failure with an exit code of its own; all others end with [`FAILED`].
#[derive(Debug, Error)]
pub enum Failure {
    /// Wrong usage or configuration.
    #[error("{0}")]
    Usage(String),
    /// It cannot be checked: not there, not ours, or in use.
    #[error("{0}")]
    Uncheckable(String),
    /// No rack answers.
    #[error("no rack answers at {0}: start one with `switchyard up`, or name another with --control")]
    NoRack(String),
    /// No server of areas answers.
    #[error("{0}: start one with `switchyard areas serve`, or name another with --socket")]
    NoAreas(String),
    /// Somebody else has it.
    #[error("{0}")]
    InUse(String),
    /// A check found problems, which are already printed.
    #[error("{0} problems found")]
    Problems(usize),
}

impl Failure {
    /// The process's exit code.
    pub fn code(&self) -> u8 {
        match self {
            Self::Usage(_) | Self::Uncheckable(_) => USAGE,
            Self::NoRack(_) | Self::NoAreas(_) => NO_RACK,
            Self::InUse(_) => IN_USE,
            Self::Problems(_) => FAILED,
        }
    }
}

/// The exit code of an error: that of the first [`Failure`] in its chain.
pub fn code_of(error: &anyhow::Error) -> u8 {
    error
        .chain()
        .find_map(|cause| cause.downcast_ref::<Failure>())
        .map_or(FAILED, Failure::code)
}

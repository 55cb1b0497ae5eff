//! Exit codes tell scripts what failed. One sentence on standard error tells people.

use std::ffi::OsString;
use std::fmt::Display;
use std::io;
use std::ops::RangeInclusive;
use thiserror::Error;

/// The command failed, or a check found problems.
pub const FAILED: u8 = 1;
/// Wrong usage or configuration; `verify` cannot check the medium.
pub const USAGE: u8 = 2;
/// No rack answers at the control address, or not in time, or no server of areas or hub at its socket.
pub const NO_RACK: u8 = 3;
/// A directory, medium or address is in use by somebody else.
pub const IN_USE: u8 = 4;

/// The program of `run` cannot be executed, as shells say it.
const NOT_EXECUTABLE: u8 = 126;
/// There is no such program.
const NO_PROGRAM: u8 = 127;

/// A failure with an exit code of its own; all others end with [`FAILED`].
#[derive(Debug, Error)]
pub enum Failure {
    /// Wrong usage or configuration.
    #[error("{0}")]
    Usage(String),
    /// The command cannot check it: missing, not ours, or in use.
    #[error("{0}")]
    Uncheckable(String),
    /// No rack answers.
    #[error("no rack answers at {0}: start one with `switchyard up`, or name another with --control")]
    NoRack(String),
    /// Somebody is there who does not answer.
    #[error("{0}")]
    Silent(String),
    /// The gateway that was to change something does not answer any more.
    #[error(
        "{0}. Whether the change is done is not known: look with `switchyard status` before you ask for it again"
    )]
    Unknown(String),
    /// No server of areas answers.
    #[error("{0}: start one with `switchyard areas serve`, or name another with --socket")]
    NoAreas(String),
    /// No hub of virtual NICs answers.
    #[error("no hub answers at {path}: start one with `switchyard tcp serve`, or name another with {option}")]
    NoHub {
        /// Its socket.
        path: String,
        /// The option that names it.
        option: &'static str,
    },
    /// Somebody else has it.
    #[error("{0}")]
    InUse(String),
    /// The program of `run` does not start.
    #[error("{} does not start: {source}", .program.to_string_lossy())]
    NotStarted {
        /// Its name.
        program: OsString,
        /// Why.
        source: io::Error,
    },
    /// A check found problems, which are already printed.
    #[error("{0} problems found")]
    Problems(usize),
}

impl Failure {
    /// The process's exit code.
    pub fn code(&self) -> u8 {
        match self {
            Self::Usage(_) | Self::Uncheckable(_) => USAGE,
            Self::NoRack(_) | Self::Silent(_) | Self::Unknown(_) | Self::NoAreas(_) | Self::NoHub { .. } => {
                NO_RACK
            }
            Self::InUse(_) => IN_USE,
            Self::NotStarted { source, .. } => match source.kind() {
                io::ErrorKind::NotFound => NO_PROGRAM,
                _ => NOT_EXECUTABLE,
            },
            Self::Problems(_) => FAILED,
        }
    }
}

/// Refuses the value of a flag outside its range. NaN is outside every range.
pub fn within<T: PartialOrd + Display>(
    flag: &str,
    value: T,
    range: RangeInclusive<T>,
) -> Result<(), Failure> {
    match range.contains(&value) {
        true => Ok(()),
        false => Err(Failure::Usage(format!(
            "{flag} takes {} to {}, not {value}",
            range.start(),
            range.end()
        ))),
    }
}

/// An error with its causes, without those that the text before them names already.
pub fn told(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.ends_with(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

/// The exit code of an error: that of the first [`Failure`] in its chain.
pub fn code_of(error: &anyhow::Error) -> u8 {
    error
        .chain()
        .find_map(|cause| cause.downcast_ref::<Failure>())
        .map_or(FAILED, Failure::code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Error, ErrorKind};

    #[derive(Debug, Error)]
    #[error("a is refused: {0}")]
    struct Refused(#[from] Error);

    #[test]
    fn a_cause_that_is_told_already_is_not_told_twice() {
        let error = anyhow::Error::from(Refused(ErrorKind::NotFound.into())).context("b");
        assert_eq!(told(&error), "b: a is refused: entity not found");
    }

    #[test]
    fn a_number_out_of_its_range_or_none_at_all_is_refused_with_the_range() {
        assert!(within("--seconds", 0.05, 0.05..=600.0).is_ok());
        for (value, shown) in [
            (0.0, "0"),
            (-1.0, "-1"),
            (f64::NAN, "NaN"),
            (f64::INFINITY, "inf"),
        ] {
            let error = within("--seconds", value, 0.05..=600.0).unwrap_err().to_string();
            assert_eq!(error, format!("--seconds takes 0.05 to 600, not {shown}"));
        }
    }
}

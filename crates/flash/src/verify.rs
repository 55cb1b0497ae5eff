//! Offline verification.
use crate::ssd::OpenError;
use base::{Lpn, Medium, VssdId};

/// How far a verification is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Pages checked.
    pub done: u64,
    /// Pages to check, as far as known.
    pub total: u64,
}

/// Where a problem is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Where {
    /// Which vSSD, if it belongs to one.
    pub vssd: Option<VssdId>,
    /// Which logical page, if known.
    pub lpn: Option<Lpn>,
    /// Which physical page of the SSD, if it is one.
    pub ppn: Option<u32>,
    /// Byte offset on the medium.
    pub offset: u64,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What is wrong.
    pub what: &'static str,
    /// Where.
    pub place: Where,
    /// What to do about it.
    pub remedy: &'static str,
}

/// Result of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// vSSDs checked.
    pub vssds: u32,
    /// Live pages whose data was checked.
    pub live_pages: u64,
    /// What is wrong, empty when nothing is.
    pub problems: Vec<Problem>,
}

/// Checks superblocks, checkpoints, out-of-band entries and the data of every live page; changes nothing.
#[allow(unused_variables)]
pub fn verify(
    medium: &dyn Medium,
    page_bytes: usize,
    progress: &mut dyn FnMut(Progress),
) -> Result<VerifyReport, OpenError> {
    todo!()
}

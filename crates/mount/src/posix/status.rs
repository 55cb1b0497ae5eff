//! What a mount tells of itself, as JSON: the value of an attribute of the root directory ([`STATUS`]).

use crate::engine::{Mode, Status};
use fuse::transport::Transport;
use std::fmt::Write;

/// The attribute of the root directory by which `switchyard fs status` learns what the engine has to tell.
pub const STATUS: &str = "switchyard.status";

/// The status as JSON.
pub(crate) fn json(status: &Status, transport: Transport) -> String {
    let mode = match status.mode {
        Mode::Sync => "sync",
        Mode::Ordered => "ordered",
    };
    let transport = match transport {
        Transport::Ring => "io_uring",
        Transport::Classic => "/dev/fuse",
    };
    let mut devices = String::new();
    for (number, (bytes, free)) in status.devices.iter().enumerate() {
        let comma = if number > 0 { "," } else { "" };
        let _ = write!(devices, r#"{comma}{{"bytes":{bytes},"free_bytes":{free}}}"#);
    }
    // The texts of failures have neither quotes nor backslashes.
    let failure = match &status.failure {
        Some(failure) => format!("\"{failure}\""),
        None => "null".into(),
    };
    let counts = &status.digest;
    format!(
        r#"{{"mode":"{mode}","transport":"{transport}","devices":[{devices}],"log_bytes":{},"log_used_bytes":{},"frames":{},"commits":{},"operations_digested":{},"operations_applied":{},"operations_refused":{},"failure":{failure}}}"#,
        status.log_bytes,
        status.log_used_bytes,
        status.frames,
        counts.commits,
        counts.read,
        counts.applied,
        counts.refused,
    )
}

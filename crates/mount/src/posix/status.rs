//! What a mount tells of itself, as JSON: the value of an attribute of the root directory ([`STATUS`]).

use crate::engine::{Migration, Mode, Status, tier_name};
use fs::format::BLOCK_BYTES;
use fuse::transport::Transport;
use std::fmt::Write;
use std::path::Path;

/// The attribute of the root directory by which `switchyard fs status` learns what the engine has to tell.
pub const STATUS: &str = "switchyard.status";
/// The attribute of the root directory that has the path of the socket of programs with logs of their own.
pub const CONTROL: &str = "switchyard.control";

/// A text as JSON.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for one in text.chars() {
        match one {
            '"' | '\\' => quoted.extend(['\\', one]),
            one if one.is_control() => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(one));
            }
            one => quoted.push(one),
        }
    }
    quoted.push('"');
    quoted
}

/// What has moved between tiers, as JSON.
fn migration_json(of: &Migration) -> String {
    let bytes = |blocks: u64| blocks * BLOCK_BYTES as u64;
    let mut tiers = String::new();
    for (number, tier) in of.tiers.iter().enumerate() {
        let comma = if number > 0 { "," } else { "" };
        let _ = write!(
            tiers,
            r#"{comma}{{"tier":"{}","bytes":{},"used_bytes":{},"stuck":{}}}"#,
            tier_name(tier.tier),
            bytes(tier.usage.total),
            bytes(tier.usage.used),
            tier.is_stuck
        );
    }
    let moved = bytes(of.down_blocks + of.up_blocks);
    let rate = (moved as f64 / of.time.as_secs_f64().max(1e-9)) as u64;
    let failed = of
        .failed
        .map_or("null".into(), |tier| format!("\"{}\"", tier_name(tier)));
    format!(
        r#"{{"tiers":[{tiers}],"moved_down_bytes":{},"moved_up_bytes":{},"moves":{},"bytes_per_second":{},"waiting_bytes":{},"dropped_bytes":{},"damaged_blocks":{},"failed":{failed},"stopped":{}}}"#,
        bytes(of.down_blocks),
        bytes(of.up_blocks),
        of.moves,
        if of.moves > 0 { rate } else { 0 },
        bytes(of.waiting_blocks),
        bytes(of.dropped_blocks),
        of.damaged_blocks,
        of.is_stopped,
    )
}

/// The status as JSON.
pub(crate) fn json(status: &Status, transport: Transport, control: Option<(&Path, usize)>) -> String {
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
    let migration = status.migration.as_ref().map_or("null".into(), migration_json);
    let control = control.map_or("null".into(), |(path, processes)| {
        let path = quoted(&path.to_string_lossy());
        format!(r#"{{"socket":{path},"processes":{processes}}}"#)
    });
    let counts = &status.digest;
    format!(
        r#"{{"mode":"{mode}","transport":"{transport}","devices":[{devices}],"log_bytes":{},"log_used_bytes":{},"frames":{},"commits":{},"operations_digested":{},"operations_applied":{},"operations_refused":{},"migration":{migration},"control":{control},"failure":{failure}}}"#,
        status.log_bytes,
        status.log_used_bytes,
        status.frames,
        counts.commits,
        counts.read,
        counts.applied,
        counts.refused,
    )
}

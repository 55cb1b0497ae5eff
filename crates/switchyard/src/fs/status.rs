//! `switchyard fs status`: what a mount does, or what the devices of a file system say.

use super::common::{StatusArgs, devices_of, open};
use crate::failure::Failure;
use crate::launch::Says;
use crate::size::Size;
use ::fs::media::Volume;
use anyhow::bail;
use mount::engine::{examine_logs, tier_name};
use mount::media::Access;
use mount::posix::STATUS;
use serde_json::{Value, json};
use std::path::Path;

/// The status is no longer than this.
const BYTES_MAX: usize = 1 << 14;

pub(super) fn run(args: &StatusArgs) -> anyhow::Result<()> {
    match &args.places[..] {
        [place] if Path::new(place).is_dir() => of_mount(Path::new(place), args.json),
        places => of_devices(places, args.json),
    }
}

fn of_mount(dir: &Path, as_json: bool) -> anyhow::Result<()> {
    let shown = dir.display();
    let mut bytes = vec![0; BYTES_MAX];
    let count = rustix::fs::getxattr(dir, STATUS, &mut bytes[..]).map_err(|errno| {
        Failure::Uncheckable(format!(
            "{shown} is no mount of `switchyard fs mount` ({errno}): name the directory that was mounted on"
        ))
    })?;
    let text = String::from_utf8_lossy(&bytes[..count]);
    let value: Value = serde_json::from_str(&text)?;
    if as_json {
        println!("{}", serde_json::to_string_pretty(&value)?);
        return Ok(());
    }
    let number = |name: &str| value[name].as_u64().unwrap_or_default();
    let word = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
    println!("{shown}: mode {}, by {}", word("mode"), word("transport"));
    for (at, device) in value["devices"].as_array().into_iter().flatten().enumerate() {
        let of = |name: &str| Size(device[name].as_u64().unwrap_or_default());
        println!("  device {at}: {}, {} free", of("bytes"), of("free_bytes"));
    }
    println!(
        "  log: {} of {} used, {} frames written",
        Size(number("log_used_bytes")),
        Size(number("log_bytes")),
        number("frames")
    );
    println!(
        "  digest: {} commits, {} operations, {} of them went into the tree",
        number("commits"),
        number("operations_digested"),
        number("operations_applied")
    );
    if number("operations_refused") > 0 {
        println!(
            "  {} operations were refused by the digest: please report it",
            number("operations_refused")
        );
    }
    if let Some(socket) = value["control"]["socket"].as_str() {
        println!(
            "  programs with logs: {} of them, at {socket}",
            value["control"]["processes"]
        );
    }
    tell_migration(&value["migration"]);
    match value["failure"].as_str() {
        Some(failure) => bail!("{shown}: {failure}"),
        None => Ok(()),
    }
}

/// What has moved between tiers, if there are several.
fn tell_migration(value: &Value) {
    let size = |of: &Value, name: &str| Size(of[name].as_u64().unwrap_or_default());
    let Some(tiers) = value["tiers"].as_array() else {
        return;
    };
    for tier in tiers {
        let name = tier["tier"].as_str().unwrap_or_default();
        let stuck = match tier["stuck"].as_bool() {
            Some(true) => ": too full, and nothing can leave it: lower tiers are full, or the rest is pinned",
            _ => "",
        };
        println!(
            "  tier {name}: {} of {} used{stuck}",
            size(tier, "used_bytes"),
            size(tier, "bytes")
        );
    }
    println!(
        "  moved: {} down, {} up, in {} moves at {}/s; {} wait",
        size(value, "moved_down_bytes"),
        size(value, "moved_up_bytes"),
        value["moves"].as_u64().unwrap_or_default(),
        size(value, "bytes_per_second"),
        size(value, "waiting_bytes")
    );
    if value["damaged_blocks"].as_u64().unwrap_or_default() > 0 {
        println!("  {} damaged blocks stay where they are", value["damaged_blocks"]);
    }
    if value["stopped"].as_bool() == Some(true) {
        println!("  nothing moves any more: the tree could not be read; run `switchyard fs check`");
    }
    if let Some(tier) = value["failed"].as_str() {
        println!("  nothing moves to {tier} any more: a write has failed");
    }
}

fn of_devices(places: &[String], as_json: bool) -> anyhow::Result<()> {
    let devices = devices_of(places)?;
    let disks = open(&devices, Access::Read, &Says { json: as_json })?;
    let volume = Volume::read(&disks).map_err(|error| Failure::Uncheckable(error.to_string()))?;
    let logs = examine_logs(&disks).map_err(|error| Failure::Uncheckable(error.to_string()))?;
    let operations: u64 = logs.iter().map(|log| log.operations).sum();
    let uuid = volume.devices[0].uuid;
    if as_json {
        let device = |of: &::fs::format::Superblock| json!({ "tier": tier_name(of.tier), "bytes": of.blocks * 4096, "uuid": of.device_uuid });
        let all: Vec<_> = volume.devices.iter().map(device).collect();
        let value = json!({ "uuid": uuid, "devices": all, "operations_in_logs": operations });
        println!("{}", serde_json::to_string_pretty(&value)?);
        return Ok(());
    }
    println!("a file system that is not mounted, {uuid}");
    for (given, of) in devices.iter().zip(&volume.devices) {
        println!(
            "  {}: {}, {}",
            given.text,
            tier_name(of.tier),
            Size(of.blocks * 4096)
        );
    }
    if operations > 0 {
        println!("  {operations} operations are in its logs: the next mount brings them into the tree");
    }
    Ok(())
}

//! Areas that a program has open, and what they have at a moment.

use super::medium::{judged, text};
use crate::failure::Failure;
use anyhow::{Context, bail};
use area::catalog::{CatalogClient, default_socket};
use area::{AreaError, FollowError, FollowOptions, FollowedFile, Follower, Kind, StructureId};
use serde_json::{Value, json};
use std::io::Write;
use std::ops::Bound;
use std::path::Path;
use store::{DumpEntry, VerifyReport};

/// Positions, or keys, whose entries are read at once.
const STEP: usize = 256;

/// The file of an area that could not be opened for `error`: because a program has it open.
fn follow(path: &Path, error: anyhow::Error) -> anyhow::Result<FollowedFile> {
    match error.downcast_ref() {
        Some(Failure::InUse(_)) => {
            FollowedFile::open(path, false).map_err(|error| Failure::Uncheckable(error.to_string()).into())
        }
        _ => Err(error),
    }
}

fn told(path: &Path, error: FollowError) -> anyhow::Error {
    match error {
        FollowError::Open(error) => judged(path, error),
        error @ FollowError::TooFast => anyhow::Error::msg(format!("{}: {error}", path.display())),
    }
}

/// Checks an area that a program has open.
pub(super) fn verify(path: &Path, error: anyhow::Error) -> anyhow::Result<VerifyReport> {
    let medium = follow(path, error)?;
    store::while_written(&medium, store::verify).map_err(|error| told(path, error))
}

/// All entries of the log of an area that a program has open, as of a moment, which the error output tells.
pub(super) fn dump(path: &Path, error: anyhow::Error) -> anyhow::Result<Vec<DumpEntry>> {
    let medium = follow(path, error)?;
    let found = store::while_written(&medium, |device| {
        let mut all = Vec::new();
        store::dump(device, |entry| all.push(entry))?;
        Ok(all)
    });
    let all = found.map_err(|error| told(path, error))?;
    let record = all.last().map_or(0, |entry| entry.record);
    eprintln!("{}: a program has it open; as of record {record}", path.display());
    Ok(all)
}

fn open(area: &Path, is_in_catalog: bool) -> anyhow::Result<Follower> {
    let options = FollowOptions {
        is_steady: true,
        ..FollowOptions::default()
    };
    let opened = if is_in_catalog {
        let name = area.to_str().context("names of areas are text")?;
        CatalogClient::connect(&default_socket(false))
            .map_err(AreaError::from)
            .and_then(|catalog| Follower::open_in_catalog(&catalog, name, options))
    } else {
        Follower::open(area, options)
    };
    opened.map_err(|error| match error {
        AreaError::Follow(error) => told(area, error),
        AreaError::Media(error) => Failure::Uncheckable(error.to_string()).into(),
        error => anyhow::Error::new(error).context(area.display().to_string()),
    })
}

/// Lists structures, or the entries of one.
pub(super) fn read(
    area: &Path,
    is_in_catalog: bool,
    structure: Option<&str>,
    as_json: bool,
) -> anyhow::Result<()> {
    let follower = open(area, is_in_catalog)?;
    let moment = follower.moment();
    let Some(name) = structure else {
        return list(area, &follower, as_json);
    };
    let found = follower.structure(name);
    let (id, kind) = found.with_context(|| format!("{} has no structure `{name}`", area.display()))?;
    eprintln!(
        "{}: as of record {} of epoch {}",
        area.display(),
        moment.record,
        moment.epoch
    );
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut written = Ok(());
    let mut print = |key: Value, value: &[u8]| {
        if written.is_ok() {
            written = writeln!(out, "{}", json!({ "key": key, "value": text(value) }));
        }
        written.is_ok()
    };
    let result = entries(&follower, id, kind, &mut print);
    crate::out::keep(written.and_then(|()| out.flush()));
    match result {
        Err(AreaError::SnapshotGone) => bail!(
            "{}: the program has used space anew that this moment was in, so the list ends here: try again when it writes less",
            area.display()
        ),
        result => result.with_context(|| area.display().to_string()),
    }
}

fn list(area: &Path, follower: &Follower, as_json: bool) -> anyhow::Result<()> {
    let (moment, structures) = (follower.moment(), follower.structures());
    if as_json {
        let structures: Vec<_> = structures
            .iter()
            .map(|(name, _, kind, _, entries)| json!({ "name": name, "kind": format!("{kind:?}"), "entries": entries }))
            .collect();
        let value = json!({
            "epoch": moment.epoch, "record": moment.record, "structures": structures,
        });
        println!("{}", serde_json::to_string_pretty(&value)?);
        return Ok(());
    }
    println!(
        "{}: as of record {} of epoch {}",
        area.display(),
        moment.record,
        moment.epoch
    );
    for (name, _, kind, _, entries) in structures {
        println!("  {name}: {kind:?}, {entries} entries");
    }
    Ok(())
}

/// Hands the entries of a structure to `print`, until it wants no more.
fn entries(
    follower: &Follower,
    id: StructureId,
    kind: Kind,
    print: &mut dyn FnMut(Value, &[u8]) -> bool,
) -> Result<(), AreaError> {
    match kind {
        Kind::Log | Kind::Queue => {
            let positions = follower.positions(id);
            for first in positions.clone().step_by(STEP) {
                let some = first..positions.end.min(first + STEP as u64);
                for (position, value) in some.clone().zip(follower.read_many(id, some)?) {
                    if value.is_some_and(|value| !print(json!(position), &value)) {
                        return Ok(());
                    }
                }
            }
        }
        Kind::Map => {
            for some in follower.keys(id)?.chunks(STEP) {
                let keys: Vec<&[u8]> = some.iter().map(|key| &**key).collect();
                for (key, value) in some.iter().zip(follower.get_many(id, &keys)?) {
                    if value.is_some_and(|value| !print(text(key), &value)) {
                        return Ok(());
                    }
                }
            }
        }
        Kind::Tree => {
            for entry in follower.range(id, (Bound::Unbounded, Bound::Unbounded)) {
                let (key, value) = entry?;
                if !print(text(&key), &value) {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

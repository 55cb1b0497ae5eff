//! `switchyard store`: storage areas checked, listed, read, and repaired. A program may have an area open, unless it is repaired.

mod live;
mod medium;
mod repair;

use crate::failure::Failure;
use crate::foreign;
use crate::size::Size;
use anyhow::{Context, bail, ensure};
use area::{Area, AreaError, AreaOptions};
use base::Device;
use clap::Args;
use clap::Subcommand;
use medium::{hole_at_end, judged, keys, open, pages, tell_pages, text};
use runtime::{MediaFile, MediaOpenError};
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use store::files::{Change, Description, FILES_NAME, FileId, WRITES_NAME};
use store::{DumpEntry, OpenError, VerifyReport};

/// `switchyard store`.
#[derive(Args)]
#[command(
    after_help = "Exit codes: 0 sound or repaired, 1 damaged, 2 not an area, 4 the file is in use.\n\n\
    Examples:\n  switchyard store verify app.area\n  switchyard store dump app.area --structure jobs\n  \
    switchyard store read app.area --structure users      what it has now, while its program runs\n  \
    switchyard store format /dev/sdb --size 64GiB\n  \
    switchyard store grow app.area --size 4GiB\n  \
    switchyard store repair app.area                      what a copy would keep, and what is lost\n  \
    switchyard store repair app.area --yes --to new.area  writes the copy"
)]
pub struct StoreArgs {
    #[command(subcommand)]
    pub command: StoreCommand,
}

/// Commands for an area.
#[derive(Subcommand)]
pub enum StoreCommand {
    /// Check everything that an open relies on; changes nothing
    Verify {
        /// File or block device
        file: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List the entries of the log, dead entries included, as JSON lines; changes nothing
    Dump {
        /// File or block device
        file: PathBuf,
        /// List only this structure
        #[arg(long, value_name = "NAME")]
        structure: Option<String>,
    },
    /// List the structures of an area at a moment, or the entries of one; its program may have it open
    Read {
        /// File or block device; with --catalog, name of the area or export
        area: PathBuf,
        /// The name is one of `switchyard areas serve`
        #[arg(long)]
        catalog: bool,
        /// List the entries of this structure, as JSON lines
        #[arg(long, value_name = "NAME")]
        structure: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Make a block device, or a file, a storage area
    Format {
        /// Block device or existing file
        file: PathBuf,
        /// Size of the area [default: all of it]
        #[arg(long, value_name = "SIZE")]
        size: Option<Size>,
        /// Make it an area also if it holds this, which is DESTROYED
        #[arg(long, value_name = "NAME")]
        erase: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Give an area more room; a program that has it open grows it itself
    Grow {
        /// File, which becomes larger, or block device, which is larger by now
        file: PathBuf,
        /// Size of the area then [default: all that there is]
        #[arg(long, value_name = "SIZE")]
        size: Option<Size>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Write a repaired copy of a damaged area, whether or not it opens; the area itself stays as it is
    Repair {
        /// File or block device
        file: PathBuf,
        /// Write the copy, instead of only telling what it would keep and what is lost
        #[arg(long)]
        yes: bool,
        /// New file for the copy [default: FILE.repaired]
        #[arg(long, value_name = "COPY")]
        to: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// Does it.
pub fn run(args: &StoreArgs) -> anyhow::Result<()> {
    match &args.command {
        StoreCommand::Verify { file, json } => verify(file, *json),
        StoreCommand::Dump { file, structure } => dump(file, structure.as_deref()),
        StoreCommand::Read {
            area,
            catalog,
            structure,
            json,
        } => live::read(area, *catalog, structure.as_deref(), *json),
        StoreCommand::Format {
            file,
            size,
            erase,
            json,
        } => format(file, *size, erase.as_deref(), *json),
        StoreCommand::Grow { file, size, json } => grow(file, *size, *json),
        StoreCommand::Repair { file, yes, to, json } => repair::run(file, *yes, to.as_deref(), *json),
    }
}

fn format(path: &Path, size: Option<Size>, erase: Option<&str>, as_json: bool) -> anyhow::Result<()> {
    let mut medium = MediaFile::open(path, 0, false).map_err(|error| match error {
        MediaOpenError::InUse(_) => Failure::InUse(error.to_string()),
        error => Failure::Usage(error.to_string()),
    })?;
    let bytes = size.map_or(0, |size| size.0);
    ensure!(
        bytes <= medium.capacity_bytes(),
        Failure::Usage(format!(
            "{} has {}, and not {}: make it larger, or give a smaller --size",
            path.display(),
            Size(medium.capacity_bytes()),
            Size(bytes)
        ))
    );
    foreign::permit(path, &mut medium, erase)?;
    drop(medium);
    Area::format(path, &AreaOptions::new(bytes)).with_context(|| path.display().to_string())?;
    match as_json {
        true => println!("{}", json!({ "formatted": path })),
        false => println!("{}: a storage area, and empty", path.display()),
    }
    Ok(())
}

fn grow(path: &Path, size: Option<Size>, as_json: bool) -> anyhow::Result<()> {
    let area = Area::open(path, &AreaOptions::new(0)).map_err(|error| match error {
        AreaError::Media(MediaOpenError::InUse(_)) => Failure::InUse(format!(
            "{error}: end its program first, or let the program grow it"
        )),
        // These name the file.
        AreaError::Media(_) | AreaError::HoldsData { .. } => Failure::Usage(error.to_string()),
        error => Failure::Usage(format!("{}: {error}", path.display())),
    })?;
    let layout = area.layout();
    let has = layout.capacity_bytes();
    // An area has whole segments, so it may have somewhat more than it was asked to grow to.
    if let Some(size) = size.filter(|size| size.0 + u64::from(layout.segment_bytes) <= has) {
        bail!(Failure::Usage(format!(
            "{} has {} ({has} bytes), and an area does not become smaller: give a larger --size than {size}",
            path.display(),
            Size(has),
        )));
    }
    let grown = area.grow(size.map_or(0, |size| size.0));
    let bytes = grown.with_context(|| path.display().to_string())?;
    match as_json {
        true => println!("{}", json!({ "area": path, "bytes": bytes })),
        false => println!("{}: has {} now", path.display(), Size(bytes)),
    }
    Ok(())
}

fn verify(path: &Path, as_json: bool) -> anyhow::Result<()> {
    let medium = match open(path) {
        Ok(medium) => medium,
        Err(error) => return print(path, &live::verify(path, error)?, true, as_json),
    };
    match store::verify(&medium) {
        Ok(report) => {
            print(path, &report, false, as_json)?;
            if let Some(bytes) = hole_at_end(medium.as_file(), report.area_bytes) {
                eprintln!(
                    "{}: the last {bytes} bytes of the file are a hole, which no area has: if the file was cut off and grown again, the \
                     end of the log may be lost, and nothing in the area tells; compare with a backup",
                    path.display()
                );
            }
            Ok(())
        }
        Err(error) => damaged(path, &medium, error, as_json),
    }
}

/// Tells of a sound area. If it `is_live`, its program has it open.
fn print(path: &Path, report: &VerifyReport, is_live: bool, as_json: bool) -> anyhow::Result<()> {
    let (used, all) = report.segments;
    let uuid: String = report.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    if as_json {
        let structures: Vec<_> = report
            .structures
            .iter()
            .map(
                |(name, kind, entries)| json!({ "name": name, "kind": format!("{kind:?}"), "entries": entries }),
            )
            .collect();
        let value = json!({
            "sound": true, "live": is_live, "uuid": uuid, "epoch": report.epoch, "segments_used": used, "segments": all,
            "records": report.records, "entries": report.entries, "live_bytes": report.live_bytes,
            "cut": report.is_torn, "superblocks_damaged": report.superblocks_damaged,
            "headers_damaged": report.headers_damaged, "structures": structures,
        });
        println!("{}", serde_json::to_string_pretty(&value)?);
        return Ok(());
    }
    println!(
        "{}: sound; area {uuid}, opened {} times",
        path.display(),
        report.epoch
    );
    println!(
        "  {used} of {all} segments, {} records, {} entries, {} bytes of them live",
        report.records, report.entries, report.live_bytes
    );
    if is_live {
        println!("  a program has it open: this is what it had at one moment");
    }
    if report.is_torn && !is_live {
        println!("  a write was cut at the end; it was not acknowledged, and opening erases it");
    }
    if report.superblocks_damaged > 0 {
        println!("  one superblock is damaged; opening writes it anew");
    }
    if report.headers_damaged > 0 {
        let count = report.headers_damaged;
        println!("  {count} headers of segments that the log does not need are damaged; opening erases them");
    }
    for (name, kind, entries) in &report.structures {
        println!("  {name}: {kind:?}, {entries} entries");
    }
    Ok(())
}

/// Tells of an area with a damaged log whether programs open it.
fn damaged(path: &Path, medium: &MediaFile, damage: OpenError, as_json: bool) -> anyhow::Result<()> {
    let error = judged(path, damage);
    if error.is::<Failure>() {
        return Err(error);
    }
    let found = store::examine(medium);
    if as_json {
        let unreadable = found.as_ref().map(|found| keys(&found.unreadable));
        let lost = found.as_ref().map(|found| pages(&found.pages_unreadable));
        let value = json!({
            "sound": false, "damage": damage.to_string(), "opens": found.is_ok(),
            "unreadable": unreadable.unwrap_or_default(), "pages_unreadable": lost.unwrap_or_default(),
        });
        println!("{}", serde_json::to_string_pretty(&value)?);
    }
    match found {
        Ok(found) if !found.pages_unreadable.is_empty() => {
            if !as_json {
                tell_pages(
                    &found.pages_unreadable,
                    "cannot be read: overwrite or remove them, or use a repaired copy",
                );
            }
            bail!(
                "{error}; programs open the area, and read everything else: {} entries. `switchyard store repair {}` tells \
                 what a repaired copy would keep",
                found.entries - found.unreadable.len() as u64,
                path.display()
            )
        }
        Ok(found) => bail!(
            "{error}; programs open the area by a checkpoint of its index, and read {} of {} entries, until that is \
             damaged, too: `switchyard store repair {} --yes` writes a sound copy of them",
            found.entries - found.unreadable.len() as u64,
            found.entries,
            path.display()
        ),
        Err(_) => bail!(
            "{error}; programs cannot open the area: `switchyard store repair {}` tells what a repaired copy would keep",
            path.display()
        ),
    }
}

fn dump(path: &Path, structure: Option<&str>) -> anyhow::Result<()> {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut lines = Lines::default();
    let mut result = Ok(());
    match open(path) {
        Ok(medium) => {
            let id = structure.map(|name| number_of(path, &medium, name)).transpose()?;
            let found = store::dump(&medium, |entry| {
                if result.is_ok() {
                    result = lines.print(&entry, id, &mut out);
                }
            });
            found.map_err(|error| judged(path, error))?;
        }
        Err(error) => {
            let all = live::dump(path, error)?;
            let id = structure.map(|name| number_in(path, &all, name)).transpose()?;
            result = all.iter().try_for_each(|entry| lines.print(entry, id, &mut out));
        }
    }
    crate::out::keep(result.and_then(|()| out.flush()));
    Ok(())
}

/// Entries of a log as lines of JSON.
#[derive(Default)]
struct Lines {
    files: FileEntries,
}

impl Lines {
    /// Prints an entry, if it is of the structure `id`.
    fn print(&mut self, entry: &DumpEntry, id: Option<u32>, out: &mut impl Write) -> std::io::Result<()> {
        let of_file = self.files.value(entry);
        if id.is_some_and(|id| id != entry.structure.0) {
            return Ok(());
        }
        let key = match (entry.kind, <[u8; 8]>::try_from(&entry.key[..])) {
            ("append" | "push" | "trim" | "acknowledge" | "lost", Ok(position)) => {
                json!(u64::from_le_bytes(position))
            }
            _ => text(&entry.key),
        };
        let line = json!({
            "record": entry.record, "structure": entry.structure.0, "kind": entry.kind, "key": key,
            "value": of_file.unwrap_or_else(|| text(&entry.value)),
        });
        writeln!(out, "{line}")
    }
}

/// Tells the entries of `switchyard run` (docs/format/files.md) from a program's own.
#[derive(Default)]
struct FileEntries {
    files: Option<u32>,
    writes: Option<u32>,
    /// Pieces of data that follow a change.
    pieces: u32,
}

impl FileEntries {
    /// The entry's value in words, if it describes a file or a change of one.
    fn value(&mut self, entry: &DumpEntry) -> Option<Value> {
        let id = entry.structure.0;
        match entry.kind {
            "describe" if entry.key == FILES_NAME.as_bytes() => self.files = Some(id),
            "describe" if entry.key == WRITES_NAME.as_bytes() => self.writes = Some(id),
            "put" if self.files == Some(id) => {
                let it = Description::parse(&entry.value)?;
                let path = String::from_utf8_lossy(&it.path);
                return Some(json!({
                    "file": FileId::parse(&entry.key)?.0, "path": path, "inode": it.identity.inode,
                    "fresh": it.is_fresh, "removed": it.is_removed,
                }));
            }
            "append" if self.writes == Some(id) && self.pieces > 0 => self.pieces -= 1,
            "append" if self.writes == Some(id) => {
                let it = Change::parse(&entry.value)?;
                self.pieces = it.pieces.unwrap_or(0);
                let kind = if it.pieces.is_some() { "write" } else { "resize" };
                return Some(
                    json!({ "file": it.file.0, "change": kind, "offset": it.offset, "size": it.size }),
                );
            }
            _ => {}
        }
        None
    }
}

/// The number of the structure that was last called `name`.
fn number_of(path: &Path, medium: &dyn Device, name: &str) -> anyhow::Result<u32> {
    let mut found = None;
    store::dump(medium, |entry| {
        if entry.kind == "describe" && entry.key == name.as_bytes() {
            found = Some(entry.structure.0);
        }
    })
    .map_err(|error| judged(path, error))?;
    found.with_context(|| format!("{} has no structure `{name}`", path.display()))
}

/// The same among all entries.
fn number_in(path: &Path, all: &[DumpEntry], name: &str) -> anyhow::Result<u32> {
    let is_it = |entry: &&DumpEntry| entry.kind == "describe" && entry.key == name.as_bytes();
    let found = all.iter().rev().find(is_it);
    let number = found.map(|entry| entry.structure.0);
    number.with_context(|| format!("{} has no structure `{name}`", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An area that was cut off and grown back looks sound, and nothing was said.
    #[test]
    fn a_file_that_ends_with_a_hole_is_told_from_one_that_was_made_as_an_area() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("app.area");
        drop(Area::open(&path, &AreaOptions::new(16 << 20)).unwrap());
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        let bytes = store::verify(&open(&path).unwrap()).unwrap().area_bytes;
        file.sync_all().unwrap();
        assert_eq!(hole_at_end(&file, bytes), None);
        file.set_len(10 << 20).unwrap();
        file.set_len(16 << 20).unwrap();
        assert_eq!(hole_at_end(&file, bytes), Some(bytes - (10 << 20)));
        verify(&path, false).unwrap();
    }

    /// Bug: a smaller size was taken, and nothing done. Cause: growing takes "at least" so many bytes.
    #[test]
    fn an_area_is_not_grown_to_less_than_it_has() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("app.area");
        let area = Area::open(&path, &AreaOptions::new(16 << 20)).unwrap();
        let has = area.layout().capacity_bytes();
        drop(area);
        let error = grow(&path, Some(Size(8 << 20)), false).unwrap_err();
        assert!(error.to_string().contains(&has.to_string()), "{error}");
        assert_eq!(error.downcast_ref::<Failure>().map(Failure::code), Some(2));
        grow(&path, Some(Size(has)), false).unwrap();
        let now = store::verify(&open(&path).unwrap()).unwrap().area_bytes;
        assert_eq!(now, has);
    }

    /// It said that an offset is outside the medium.
    #[test]
    fn a_file_too_short_for_superblocks_is_told_to_be_no_area() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = verify(file.path(), false).unwrap_err();
        assert!(error.to_string().contains("this is no storage area"), "{error}");
        assert!(
            error
                .downcast_ref::<Failure>()
                .is_some_and(|failure| failure.code() == 2)
        );
    }
}

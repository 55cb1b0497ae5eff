//! `switchyard store repair`: decides, tells, and then writes a copy. The damaged area is only read. An area that opens although it is
//! damaged gets a copy, too: nothing else makes it sound.

use super::medium::{judged, key, keys, open, pages, tell_pages};
use crate::failure::Failure;
use anyhow::{Context, bail};
use base::Device;
use runtime::MediaFile;
use serde_json::json;
use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use store::{Examination, OpenError, Salvage, SalvageReport};

/// Keys that are told of each structure; the JSON has all.
const KEYS_TOLD: usize = 10;

pub(super) fn run(path: &Path, yes: bool, to: Option<&Path>, as_json: bool) -> anyhow::Result<()> {
    let medium = open(path)?;
    let examined = store::examine(&medium);
    let damage = match (store::verify(&medium), &examined) {
        (Ok(_), Ok(found)) => return opens(path, found, as_json),
        (Err(damage), _) | (Ok(_), &Err(damage)) => damage,
    };
    let opened = examined.ok();
    let error = judged(path, damage);
    if error.is::<Failure>() && !matches!(damage, OpenError::TooSmall { .. }) {
        return Err(error);
    }
    let salvage = store::salvage(&medium).map_err(|error| judged(path, error))?;
    let copy = copy_path(path, to)?;
    if !yes {
        tell(path, damage, opened.as_ref(), salvage.report(), None, as_json)?;
        bail!(
            "{} is damaged and stays as it is; --yes writes the copy {}",
            path.display(),
            copy.display()
        );
    }
    write(path, &medium, &salvage, &copy)?;
    tell(
        path,
        damage,
        opened.as_ref(),
        salvage.report(),
        Some(&copy),
        as_json,
    )
}

/// A sound area is left alone. A copy that was repaired before may lack positions.
fn opens(path: &Path, found: &store::Examination, as_json: bool) -> anyhow::Result<()> {
    let unreadable = found.unreadable.len();
    if as_json {
        let value = json!({
            "opens": true, "entries": found.entries, "unreadable": keys(&found.unreadable),
        });
        println!("{}", serde_json::to_string_pretty(&value)?);
    } else {
        println!("{}: sound, nothing to repair", path.display());
        println!(
            "  {} of {} entries can be read",
            found.entries - unreadable as u64,
            found.entries
        );
        for (name, it) in found.unreadable.iter().take(KEYS_TOLD) {
            println!("  {name}: {} is lost: trim the log beyond it", key(it));
        }
    }
    match unreadable {
        0 => Ok(()),
        count => Err(Failure::Problems(count).into()),
    }
}

fn tell(
    path: &Path,
    damage: OpenError,
    opened: Option<&Examination>,
    report: &SalvageReport,
    copy: Option<&Path>,
    as_json: bool,
) -> anyhow::Result<()> {
    if as_json {
        let structures: Vec<_> = report
            .structures
            .iter()
            .map(|it| {
                json!({
                    "name": it.name, "kind": format!("{:?}", it.kind), "nameless": it.is_nameless, "kept": it.kept,
                    "lost": it.lost.iter().map(key).collect::<Vec<_>>(), "left_out": it.left_out,
                })
            })
            .collect();
        let value = json!({
            "opens": opened.is_some(), "damage": damage.to_string(), "copy": copy, "checkpoint": report.checkpoint,
            "bytes_cut_off": report.bytes_cut_off, "records": report.records,
            "records_damaged": report.records_damaged, "records_lost": report.records_lost,
            "records_unnamed": report.records_unnamed, "structures": structures,
            "list_lost": report.is_list_lost, "tables_damaged": report.tables_damaged,
            "pages_lost": pages(&report.pages_lost),
        });
        println!("{}", serde_json::to_string_pretty(&value)?);
        return Ok(());
    }
    tell_damage(path, damage, opened, report);
    match copy {
        Some(copy) => println!("  the copy {} is sound:", copy.display()),
        None => println!("  a copy would have:"),
    }
    for it in &report.structures {
        println!(
            "  {}: {:?}, {} entries kept, {} lost",
            it.name,
            it.kind,
            it.kept,
            it.lost.len()
        );
        for lost in it.lost.iter().take(KEYS_TOLD) {
            println!("    lost: {}", key(lost));
        }
        if it.lost.len() > KEYS_TOLD {
            println!("    and {} more: --json lists all", it.lost.len() - KEYS_TOLD);
        }
        if it.left_out > 0 {
            println!(
                "    {} changes of files after the lost one are left out",
                it.left_out
            );
        }
        if it.is_nameless {
            println!("    the record with its name is lost");
        }
    }
    let unnamed = report.records_lost + report.records_unnamed;
    if unnamed > 0 {
        println!(
            "  {unnamed} of {} records do not tell what they changed: keys that they changed are missing, or have older values",
            report.records + report.records_damaged + report.records_lost
        );
    }
    tell_tables(report);
    Ok(())
}

/// Tells what is wrong with the area, and what programs have of it.
fn tell_damage(path: &Path, damage: OpenError, opened: Option<&Examination>, report: &SalvageReport) {
    println!("{}: {damage}", path.display());
    if let Some(found) = opened {
        println!(
            "  programs open it all the same, and read {} of {} entries",
            found.entries - found.unreadable.len() as u64,
            found.entries
        );
    }
    if report.bytes_cut_off > 0 {
        println!(
            "  the last {} bytes are cut off: what was written last may be lost without a trace",
            report.bytes_cut_off
        );
    }
}

/// Tells what is lost of tables.
fn tell_tables(report: &SalvageReport) {
    if report.is_list_lost {
        println!(
            "  the newest list of tables is lost: keys that were removed or overwritten may have an older value"
        );
    }
    if report.tables_damaged > 0 {
        println!(
            "  {} tables do not tell what they have: all of them that can be read is kept",
            report.tables_damaged
        );
    }
    tell_pages(&report.pages_lost, "have an older value, or none");
}

fn copy_path(path: &Path, to: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(to) = to {
        return Ok(to.to_owned());
    }
    if path
        .metadata()
        .is_ok_and(|data| data.file_type().is_block_device())
    {
        bail!(Failure::Usage(format!(
            "{} is a block device: name a new file for the copy with --to",
            path.display()
        )));
    }
    let mut name = path.as_os_str().to_owned();
    name.push(".repaired");
    Ok(name.into())
}

/// Writes the copy beside its name, and gives it the name when it is sound: a crash leaves no half of an area there.
fn write(path: &Path, medium: &MediaFile, salvage: &Salvage, copy: &Path) -> anyhow::Result<()> {
    let exists = |path: &Path| {
        Failure::Usage(format!(
            "{} exists: name a new file for the copy with --to, or remove it",
            path.display()
        ))
    };
    if fs::symlink_metadata(copy).is_ok() {
        bail!(exists(copy));
    }
    let mut partial = copy.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let made = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&partial);
    match made {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => bail!(exists(&partial)),
        other => drop(other.with_context(|| partial.display().to_string())?),
    }
    let written = fill(path, medium, salvage, &partial).and_then(|()| {
        let flags = rustix::fs::RenameFlags::NOREPLACE;
        rustix::fs::renameat_with(rustix::fs::CWD, &partial, rustix::fs::CWD, copy, flags)
            .with_context(|| copy.display().to_string())?;
        let parent = copy.parent().filter(|it| !it.as_os_str().is_empty());
        File::open(parent.unwrap_or(Path::new(".")))?.sync_all()?;
        Ok(())
    });
    if written.is_err() {
        // What the copy failed with is more to the point.
        let _ = fs::remove_file(&partial);
    }
    written
}

fn fill(path: &Path, medium: &MediaFile, salvage: &Salvage, partial: &Path) -> anyhow::Result<()> {
    let mut file = MediaFile::open(partial, salvage.layout().capacity_bytes(), true)?;
    salvage
        .write(medium, &mut file)
        .with_context(|| format!("{}: cannot write the copy", path.display()))?;
    // Its owner and rights are those of the area, as its data are.
    let data = medium.as_file().metadata()?;
    if data.is_file() {
        // Only root may give files away; to others the copy belongs already.
        let _ = chown(partial, Some(data.uid()), Some(data.gid()));
        fs::set_permissions(partial, Permissions::from_mode(data.mode() & 0o666))?;
    }
    file.flush().context("the copy cannot be flushed")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use area::{Area, AreaOptions};

    /// An area with a damaged record: its path, and the key that the record set.
    fn damaged(directory: &Path) -> PathBuf {
        let path = directory.join("app.area");
        let area = Area::open(&path, &AreaOptions::new(16 << 20)).expect("a new area");
        let map = area.map("settings").expect("there is room");
        for key in 0..50u8 {
            map.put(&[b'k', key], &[key; 2000]).expect("there is room");
        }
        drop((map, area));
        let mut bytes = fs::read(&path).expect("it is there");
        let at = bytes.windows(2000).position(|part| part == [33; 2000]);
        // The value lies in pieces of 504 bytes.
        let at = at
            .or_else(|| bytes.windows(400).position(|part| part == [33; 400]))
            .expect("it is there");
        bytes[at + 100] ^= 4;
        fs::write(&path, bytes).expect("it is ours");
        path
    }

    /// Bug: `repair` wrote in place, and cut off everything behind the damage. Fix: it writes a copy.
    #[test]
    fn a_repair_writes_a_copy_and_leaves_the_area_as_it_is() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = damaged(directory.path());
        let before = fs::read(&path).expect("it is there");
        let error = run(&path, false, None, false).expect_err("it is damaged");
        assert!(error.to_string().contains("--yes writes the copy"), "{error}");
        let copy = directory.path().join("app.area.repaired");
        assert!(!copy.exists());
        run(&path, true, None, true).expect("there is room");
        assert_eq!(fs::read(&path).expect("it is there"), before);
        let area = Area::open(&copy, &AreaOptions::new(0)).expect("a copy is sound");
        let map = area.map("settings").expect("it is there");
        for key in (0..50u8).filter(|key| *key != 33) {
            assert_eq!(map.get(&[b'k', key]).expect("readable"), Some(vec![key; 2000]));
        }
        assert_eq!(
            (map.len().expect("there"), map.get(b"k!").expect("readable")),
            (49, None)
        );
        drop((map, area));
        let error = run(&path, true, None, false).expect_err("there is a copy");
        assert!(error.to_string().contains("exists"), "{error}");
        assert_eq!(fs::read_dir(directory.path()).expect("ours").count(), 2);
    }

    /// Bug: an area that opened by its checkpoint only had "nothing to repair", and `problems found`. Cause: `repair` asked whether the
    /// area opens. Fix: it asks whether the area is sound.
    #[test]
    fn an_area_that_opens_by_its_checkpoint_only_gets_a_sound_copy() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("app.area");
        let area = Area::open(&path, &AreaOptions::new(16 << 20)).expect("a new area");
        let map = area.map("settings").expect("there is room");
        let value = |key: u16| [&key.to_le_bytes()[..], &[7; 3000]].concat();
        let put = |key: u16| map.put(&key.to_le_bytes(), &value(key)).expect("there is room");
        (0..2000).for_each(put);
        while area.stats().checkpoints == 0 {
            std::thread::yield_now();
        }
        drop((map, area));
        let mut bytes = fs::read(&path).expect("it is there");
        bytes[8192 + 40_000..][..40_000].fill(0xe3);
        fs::write(&path, &bytes).expect("it is ours");
        let found = store::examine(&open(&path).expect("a file")).expect("it opens");
        assert!(found.needs_checkpoint && !found.unreadable.is_empty());
        let error = super::super::verify(&path, true).expect_err("it is damaged");
        assert!(error.to_string().contains("store repair"), "{error}");
        let error = run(&path, false, None, true).expect_err("it is damaged");
        assert!(error.to_string().contains("--yes writes the copy"), "{error}");
        run(&path, true, None, true).expect("there is room");
        assert_eq!(fs::read(&path).expect("it is there"), bytes);
        let copy = directory.path().join("app.area.repaired");
        super::super::verify(&copy, true).expect("the copy is sound");
        let area = Area::open(&copy, &AreaOptions::new(0)).expect("the copy is sound");
        let map = area.map("settings").expect("it is there");
        assert_eq!(
            map.len().expect("there"),
            found.entries - found.unreadable.len() as u64
        );
    }

    /// It told how many bytes there are, and no way out.
    #[test]
    fn an_area_whose_end_is_cut_off_gets_a_copy_of_what_is_left() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("app.area");
        let area = Area::open(&path, &AreaOptions::new(16 << 20)).expect("a new area");
        let map = area.map("settings").expect("there is room");
        (0..50u8).for_each(|key| map.put(&[key], &[key; 2000]).expect("there is room"));
        drop((map, area));
        let file = OpenOptions::new().write(true).open(&path).expect("it is ours");
        file.set_len(10 << 20).expect("it is ours");
        let error = super::super::verify(&path, true).expect_err("it is cut off");
        assert!(error.to_string().contains("store repair"), "{error}");
        run(&path, true, None, true).expect("there is room");
        let copy = directory.path().join("app.area.repaired");
        let area = Area::open(&copy, &AreaOptions::new(0)).expect("the copy is sound");
        assert_eq!(area.map("settings").expect("there").len().expect("there"), 50);
    }

    #[test]
    fn an_area_that_opens_is_left_alone() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("app.area");
        drop(Area::open(&path, &AreaOptions::new(16 << 20)).expect("a new area"));
        let before = fs::read(&path).expect("it is there");
        run(&path, true, None, true).expect("nothing to repair");
        assert_eq!(fs::read(&path).expect("it is there"), before);
        assert_eq!(fs::read_dir(directory.path()).expect("ours").count(), 1);
    }
}

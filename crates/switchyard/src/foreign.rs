//! Before a medium is formatted: whose data would that destroy? The one place for areas, catalogs and vSSDs.
//!
//! Zeros decide ([`MediaFile::find_data`]), so a format that nobody here knows is safe as well. `blkid` only names it.

use crate::failure::Failure;
use anyhow::{Context, bail};
use base::Device;
use runtime::MediaFile;
use std::path::Path;
use std::process::{Command, Stdio};

/// Our own formats: the first bytes, and what `--erase` calls it.
const OWN: [(&[u8; 8], &str); 3] = [
    (b"SWYAREA1", "area"),
    (b"SWYPOOL1", "catalog"),
    (b"SWYDSSD1", "vssd"),
];
/// A file system's superblock has its magic behind a checksum (docs/format/fs.md).
const FILE_SYSTEM: (&[u8; 4], &str) = (b"FSSB", "fs");
/// Content without a name.
const DATA: &str = "data";
/// Bytes that are zeroed at either end of an erased device: signatures are there.
const EDGE_BYTES: u64 = 1 << 20;

/// How a user asks for a medium to be formatted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Consent {
    /// It may be formatted if it holds nothing.
    pub format: bool,
    /// And if it holds this.
    pub erase: Option<String>,
}

/// Lets a medium be formatted that holds nothing, or only what `erase` names: that is erased. Refuses any other with the name
/// of what is there.
pub fn permit(path: &Path, medium: &mut MediaFile, erase: Option<&str>) -> anyhow::Result<()> {
    let Some(offset) = medium
        .find_data()
        .with_context(|| format!("{}: cannot tell what it holds", path.display()))?
    else {
        return Ok(());
    };
    let name = name(path, medium);
    if erase != Some(&name) {
        let shown = path.display();
        bail!(Failure::Usage(format!(
            "{shown} holds {name}, with data at byte {offset}: name another medium, or destroy it with `--erase {name}`"
        )));
    }
    wipe(medium).with_context(|| format!("{}: cannot be erased", path.display()))
}

/// The name of what a medium holds.
fn name(path: &Path, medium: &MediaFile) -> String {
    own(medium).map_or_else(|| by_blkid(path).unwrap_or_else(|| DATA.into()), Into::into)
}

/// The name of our own format on a medium.
pub fn own(medium: &MediaFile) -> Option<&'static str> {
    let mut first = [0; 8];
    // A flash's superblock has a second copy, and an area's, too: either tells.
    [0, 4096].into_iter().find_map(|at| {
        medium.read_at(at, &mut first).ok()?;
        if first[4..] == FILE_SYSTEM.0[..] {
            return Some(FILE_SYSTEM.1);
        }
        OWN.iter()
            .find(|(magic, _)| **magic == first)
            .map(|(_, name)| *name)
    })
}

/// The name that `blkid` of util-linux gives, if it is installed and knows one.
fn by_blkid(path: &Path) -> Option<String> {
    let places = std::env::var("PATH").unwrap_or_default();
    let output = Command::new("blkid")
        .args(["--probe", "--output", "export"])
        .arg(path)
        .env("PATH", format!("{places}:/usr/sbin:/sbin"))
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    value("TYPE=").or_else(|| value("PTTYPE=")).map(str::to_owned)
}

fn wipe(medium: &mut MediaFile) -> Result<(), base::MediaError> {
    let capacity = medium.capacity_bytes();
    let zeros = vec![0; EDGE_BYTES.min(capacity) as usize];
    medium.write_at(0, &zeros)?;
    medium.write_at(capacity - zeros.len() as u64, &zeros)?;
    medium.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_medium_with_data_is_refused_by_name_until_the_name_is_given() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        let file = File::create(&path).unwrap();
        file.set_len(32 << 20).unwrap();
        let mut medium = MediaFile::open(&path, 0, false).unwrap();
        permit(&path, &mut medium, None).unwrap();
        file.write_all_at(b"SWYPOOL1", 0).unwrap();
        let error = permit(&path, &mut medium, Some("area")).unwrap_err().to_string();
        assert!(
            error.contains("holds catalog") && error.contains("--erase catalog"),
            "{error}"
        );
        permit(&path, &mut medium, Some("catalog")).unwrap();
        file.write_all_at(b"a diary", 16 << 20).unwrap();
        let error = permit(&path, &mut medium, None).unwrap_err().to_string();
        assert!(
            error.contains("holds data") && error.contains("16777216"),
            "{error}"
        );
    }
}

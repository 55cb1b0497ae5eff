//! Profiles in files.

use crate::out;
use anyhow::{Context, bail};
use profile::summary::{Summary, VERSION};
use std::path::Path;

/// A profile as JSON.
pub fn to_json(summary: &Summary) -> String {
    serde_json::to_string_pretty(summary).expect("plain numbers and strings serialize")
}

/// Writes a profile for [`load`].
pub fn save(path: &Path, summary: &Summary) -> anyhow::Result<()> {
    out::write_file(path, &(to_json(summary) + "\n"))
}

/// Reads a profile that `--save` wrote.
pub fn load(path: &Path) -> anyhow::Result<Summary> {
    /// What all versions have.
    #[derive(serde::Deserialize)]
    struct Versioned {
        version: u32,
    }
    let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
    let foreign = || {
        format!(
            "{}: not a profile that `--save` or `--json` wrote",
            path.display()
        )
    };
    let Versioned { version } = serde_json::from_slice(&bytes).with_context(foreign)?;
    if version != VERSION {
        bail!(
            "{} is a profile of version {version}: this program reads version {VERSION}",
            path.display()
        );
    }
    serde_json::from_slice(&bytes).with_context(foreign)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_profile_of_ours_is_refused_by_its_name_and_a_newer_one_by_its_version() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        for (bytes, why) in [
            (&b""[..], "not a profile"),
            (b"\xff\xfe", "not a profile"),
            (b"[1]", "not a profile"),
            (br#"{"version": 1, "target": "t"}"#, "not a profile"),
            (br#"{"version": 2, "layers": []}"#, "version 2"),
        ] {
            std::fs::write(&path, bytes).unwrap();
            let refused = load(&path).unwrap_err().to_string();
            assert!(refused.contains(why) && refused.contains("a.json"), "{refused}");
        }
    }
}

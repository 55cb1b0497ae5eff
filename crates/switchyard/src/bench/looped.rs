//! A file system of the kernel on a loop device, made for a comparison and removed at its end. It takes root.

use super::store::{Scratch, scratch};
use anyhow::{Context, ensure};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Bytes of the file system on the loop device over memory.
const BYTES: u64 = 4 << 30;
/// Files here are in memory.
pub(super) const MEMORY: &str = "/dev/shm";

/// A file system and its device.
pub(super) struct Loop {
    image: Scratch,
    device: Option<String>,
    pub(super) directory: PathBuf,
    is_mounted: bool,
}

impl Loop {
    /// ext4 over memory; says why not.
    pub(super) fn in_memory() -> Option<Self> {
        Self::make("ext4", Path::new(MEMORY), BYTES)
            .inspect_err(|error| eprintln!("the loop device is left out, because {error:#}"))
            .ok()
    }

    /// A file system of this kind on a file in `dir`. On a disk the device passes the page cache of that file.
    pub(super) fn make(kind: &str, dir: &Path, bytes: u64) -> anyhow::Result<Self> {
        let image = scratch(dir, kind);
        let mut looped = Self {
            directory: scratch(&std::env::temp_dir(), &format!("{kind}-mount")).0.clone(),
            device: None,
            is_mounted: false,
            image,
        };
        let path = looped.image.0.clone();
        fill(&path, bytes)?;
        fs::create_dir(&looped.directory)?;
        let mut make = Command::new(format!("mkfs.{kind}"));
        match kind {
            "ext4" => make.args(["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"]),
            _ => make.args(["-q", "-f"]),
        };
        tool(make.arg(&path))?;
        let direct = if dir == Path::new(MEMORY) { "off" } else { "on" };
        let made = tool(
            Command::new("losetup")
                .args(["--find", "--show", &format!("--direct-io={direct}")])
                .arg(&path),
        )?;
        let device = made.trim().to_owned();
        looped.device = Some(device.clone());
        tool(Command::new("mount").arg(device).arg(&looped.directory))?;
        looped.is_mounted = true;
        Ok(looped)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        if self.is_mounted
            && let Err(error) = tool(Command::new("umount").arg(&self.directory))
        {
            eprintln!("{error:#}");
        }
        if let Some(device) = &self.device
            && let Err(error) = tool(Command::new("losetup").args(["--detach", device]))
        {
            eprintln!("{error:#}");
        }
        // It may not have come to be.
        let _ = fs::remove_dir(&self.directory);
    }
}

/// Makes a file that stands for a device. On a disk its blocks are written, as otherwise the file system around it would have to note each
/// first write of a block.
pub(super) fn fill(path: &Path, bytes: u64) -> anyhow::Result<()> {
    let mut file = fs::File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
    if path.parent() == Some(Path::new(MEMORY)) {
        return Ok(file.set_len(bytes)?);
    }
    let zeros = vec![0; 1 << 20];
    let mut left = bytes;
    while left > 0 {
        let count = left.min(zeros.len() as u64);
        file.write_all(&zeros[..count as usize])?;
        left -= count;
    }
    Ok(file.sync_all()?)
}

/// What a program says that succeeds.
pub(super) fn tool(command: &mut Command) -> anyhow::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("{name} does not run"))?;
    ensure!(
        output.status.success(),
        "{name}: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

//! The device that is measured: a loop device on a file, or one that the user names; what is made on it is undone again.

use super::cell::OWN;
use crate::failure::Failure;
use crate::size::Size;
use anyhow::{Context, bail};
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Bytes of the file that is read and written: two of the largest requests at least.
pub const FILE_BYTES: u64 = 256 << 20;
/// Bytes of the loop device: the file, and what file systems want beside it.
const DEVICE_BYTES: u64 = 1 << 30;

/// A device, and what is on it now.
pub struct Ground {
    /// Description for people.
    pub about: String,
    /// `/dev/…`.
    pub device: PathBuf,
    /// The loop device's file, which goes with it.
    image: Option<PathBuf>,
    mount: PathBuf,
    is_mounted: bool,
    /// Reads of the bare device read written data.
    has_data: bool,
    /// The system on it.
    system: String,
    /// The file that is on it: whether it was preallocated, and whether it has data.
    file: Option<(bool, bool)>,
}

/// Runs a command, and gives what it prints.
pub fn command(words: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(words[0])
        .args(&words[1..])
        .stdin(Stdio::null())
        .output();
    let output = output.with_context(|| format!("{} is missing: install it", words[0]))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!(
            "{}: {}",
            words.join(" "),
            said.trim().lines().last().unwrap_or("failed")
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Undoes what a run that was killed has left: its mount and its loop devices. Nobody else uses them: the directory is
/// locked.
fn clear_leftovers(image: &Path, mount: &Path, named: Option<&Path>) -> anyhow::Result<()> {
    let place = mount.canonicalize()?.display().to_string();
    let mounts = std::fs::read_to_string("/proc/self/mounts")?;
    // The last one there is on top. What is not ours stays, and is in the way.
    let mut there = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mounted = there.rfind(|words| words.get(1) == Some(&escaped(&place).as_str()));
    let source = mounted.map(|words| PathBuf::from(words[0]));
    let is_there = |device: &Path| {
        let source = source.as_deref();
        source == Some(device) || device.canonicalize().is_ok_and(|device| source == Some(&device))
    };
    if named.is_some_and(is_there) {
        command(&["umount", &place])?;
    }
    if !image.exists() {
        return Ok(());
    }
    let devices = command(&[
        "losetup",
        "--noheadings",
        "--output",
        "NAME",
        "--associated",
        &image.display().to_string(),
    ])?;
    for device in devices.lines() {
        if is_there(Path::new(device)) {
            command(&["umount", &place])?;
        }
        command(&["losetup", "--detach", device])?;
    }
    Ok(())
}

/// A path as /proc/self/mounts writes it (getmntent(3)).
fn escaped(path: &str) -> String {
    let octal = [('\\', "\\134"), (' ', "\\040"), ('\t', "\\011"), ('\n', "\\012")];
    octal
        .into_iter()
        .fold(path.to_owned(), |path, (from, to)| path.replace(from, to))
}

impl Ground {
    /// A loop device in `dir`, or `named`, if nobody uses it.
    pub fn new(dir: &Path, named: Option<&Path>) -> anyhow::Result<Self> {
        command(&["fio", "--version"])?;
        let mount = dir.join("mount");
        std::fs::create_dir_all(&mount).with_context(|| mount.display().to_string())?;
        let mut ground = Self {
            about: String::new(),
            device: PathBuf::new(),
            image: None,
            mount,
            is_mounted: false,
            has_data: false,
            system: String::new(),
            file: None,
        };
        let image = dir.join("matrix.img");
        clear_leftovers(&image, &ground.mount, named)?;
        if let Some(device) = named {
            // The kernel refuses this while the device is mounted or part of another.
            let is_free = std::os::unix::fs::OpenOptionsExt::custom_flags(
                File::options().read(true).write(true),
                libc::O_EXCL,
            )
            .open(device);
            is_free.map_err(|error| Failure::InUse(format!("{}: {error}", device.display())))?;
            ground.device = device.to_owned();
            ground.about = device.display().to_string();
            return Ok(ground);
        }
        let path = image.display().to_string();
        ground.image = Some(image);
        command(&["fallocate", "-l", &DEVICE_BYTES.to_string(), &path])
            .with_context(|| format!("cannot prepare {} for the loop device's file", Size(DEVICE_BYTES)))?;
        let (device, how) = match command(&["losetup", "--find", "--show", "--direct-io=on", &path]) {
            Ok(device) => (device, "direct"),
            Err(_) => (
                command(&["losetup", "--find", "--show", &path])?,
                "through the page cache",
            ),
        };
        ground.device = PathBuf::from(device);
        ground.about = format!("a loop device of {} on a file, {how}", Size(DEVICE_BYTES));
        ground.fill(&ground.device, DEVICE_BYTES)?;
        ground.has_data = true;
        Ok(ground)
    }

    /// Puts `system` on the device, if it is not there already.
    pub fn prepare(&mut self, system: &str) -> anyhow::Result<()> {
        if self.system == system {
            return Ok(());
        }
        self.clear()?;
        let device = self.device.display().to_string();
        let mount = self.mount.display().to_string();
        if system != "raw" && system != OWN {
            // What file systems discard is answered without the medium, to those that come after them as well.
            let (make, mounting) = match system {
                "ext4" => (&["-F", "-E", "nodiscard"][..], "defaults"),
                "btrfs" => (&["-f", "-K"][..], "nodiscard"),
                _ => (&["-f", "-K"][..], "defaults"),
            };
            let program = format!("mkfs.{system}");
            command(&[&[program.as_str(), "-q"], make, &[device.as_str()]].concat())?;
            command(&["mount", "-t", system, "-o", mounting, &device, &mount])?;
            self.is_mounted = true;
        } else if !self.has_data {
            let end = File::open(&self.device)?.seek(SeekFrom::End(0))?;
            self.fill(&self.device, end.min(FILE_BYTES))?;
            self.has_data = true;
        }
        self.system = system.to_owned();
        Ok(())
    }

    /// Place to read or write: a file in the wanted state, or the device.
    pub fn target(&mut self, is_write: bool, is_preallocated: bool) -> anyhow::Result<PathBuf> {
        if !self.is_mounted {
            return Ok(self.device.clone());
        }
        let path = self.mount.join("file");
        let has_data = !is_write;
        if has_data && self.file == Some((is_preallocated, true)) {
            return Ok(path);
        }
        let _ = std::fs::remove_file(&path);
        self.file = None;
        if is_preallocated {
            command(&[
                "fallocate",
                "-l",
                &FILE_BYTES.to_string(),
                &path.display().to_string(),
            ])?;
        }
        if has_data {
            self.fill(&path, FILE_BYTES)?;
        }
        command(&["sync", "-f", &self.mount.display().to_string()])?;
        self.file = Some((is_preallocated, has_data));
        Ok(path)
    }

    /// Writes data that no layer can shorten. Blocks that were never written are answered without the medium.
    fn fill(&self, path: &Path, bytes: u64) -> anyhow::Result<()> {
        let mut block = vec![0_u8; 1 << 20];
        let mut state = 1_u64;
        for word in block.chunks_exact_mut(8) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            word.copy_from_slice(&state.to_le_bytes());
        }
        let write = || {
            let mut file = File::options()
                .write(true)
                .create(true)
                .truncate(false)
                .open(path)?;
            for _ in 0..bytes / block.len() as u64 {
                file.write_all(&block)?;
            }
            file.sync_all()
        };
        write().with_context(|| path.display().to_string())
    }

    fn clear(&mut self) -> anyhow::Result<()> {
        self.file = None;
        self.system.clear();
        if self.is_mounted {
            command(&["umount", &self.mount.display().to_string()])?;
            self.is_mounted = false;
        }
        Ok(())
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        if let Err(error) = self.clear() {
            eprintln!("switchyard: {error:#}");
        }
        if let Some(image) = &self.image {
            if self.device.as_os_str().is_empty() {
                let _ = std::fs::remove_file(image);
            } else {
                let detached = command(&["losetup", "--detach", &self.device.display().to_string()]);
                match detached.and_then(|_| Ok(std::fs::remove_file(image)?)) {
                    Ok(()) => {}
                    Err(error) => eprintln!("switchyard: {}: {error:#}", self.device.display()),
                }
            }
        }
        let _ = std::fs::remove_dir(&self.mount);
    }
}

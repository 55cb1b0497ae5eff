//! Block devices of this machine: names, partitions, schedulers, what they are stacked on (sysfs).

use crate::event::Dev;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A whole device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its name, such as `vda`.
    pub name: String,
    /// The scheduler in use, `none` if there is none.
    pub scheduler: String,
    /// The base of the device: other devices, or the file of a loop device.
    pub backed_by: Vec<String>,
}

/// All devices as they are now.
#[derive(Clone, Debug, Default)]
pub struct Devices {
    /// Whole devices.
    pub all: BTreeMap<Dev, DeviceInfo>,
    /// The whole device of a partition.
    pub wholes: BTreeMap<Dev, Dev>,
    /// Whole devices that stand on a whole device, themselves or with their file.
    pub uppers: BTreeMap<Dev, Vec<Dev>>,
}

fn dev_at(path: &Path) -> Option<Dev> {
    let text = fs::read_to_string(path.join("dev")).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some(Dev::new(major.parse().ok()?, minor.parse().ok()?))
}

fn names_in(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort_unstable();
    names
}

/// The scheduler in brackets of `none [mq-deadline] kyber`.
fn chosen(text: &str) -> String {
    let inner = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    inner.map_or("none", |(name, _)| name).to_string()
}

impl Devices {
    /// Reads sysfs. Unreadable entries count as missing.
    pub fn read() -> Self {
        let mut devices = Self::default();
        let root = Path::new("/sys/block");
        for name in names_in(root) {
            let path = root.join(&name);
            let Some(dev) = dev_at(&path) else { continue };
            for part in names_in(&path) {
                if let Some(part) = path
                    .join(&part)
                    .join("partition")
                    .exists()
                    .then(|| dev_at(&path.join(&part)))
                    .flatten()
                {
                    devices.wholes.insert(part, dev);
                }
            }
            let scheduler = fs::read_to_string(path.join("queue/scheduler")).unwrap_or_default();
            let mut backed_by = names_in(&path.join("slaves"));
            backed_by.extend(
                fs::read_to_string(path.join("loop/backing_file")).map(|file| file.trim_end().to_string()),
            );
            devices.all.insert(
                dev,
                DeviceInfo {
                    name,
                    scheduler: chosen(&scheduler),
                    backed_by,
                },
            );
        }
        devices.stack();
        devices
    }

    /// Finds who stands on whom. Files of file systems with a number of their own (btrfs, overlayfs) are on no device.
    fn stack(&mut self) {
        for (dev, info) in &self.all {
            for below in &info.backed_by {
                if let Ok(below) = self.of_path(Path::new(below)) {
                    self.uppers.entry(below).or_default().push(*dev);
                }
            }
        }
    }

    /// The name of a device.
    pub fn name(&self, dev: Dev) -> String {
        match self.all.get(&dev) {
            Some(info) => info.name.clone(),
            None => format!("{}:{}", dev.major(), dev.minor()),
        }
    }

    /// The whole device that `path` is, or that its file system is on.
    pub fn of_path(&self, path: &Path) -> Result<Dev, String> {
        let bare = Path::new("/dev").join(path);
        let path: PathBuf = if path.exists() { path.to_path_buf() } else { bare };
        let metadata = fs::metadata(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let number = if metadata.file_type().is_block_device() {
            metadata.rdev()
        } else {
            metadata.dev()
        };
        let dev = Dev::new(libc::major(number), libc::minor(number));
        let whole = self.wholes.get(&dev).copied().unwrap_or(dev);
        if self.all.contains_key(&whole) {
            return Ok(whole);
        }
        let known: Vec<&str> = self.all.values().map(|info| info.name.as_str()).collect();
        Err(format!(
            "{}: not a block device, and on none; devices here: {}",
            path.display(),
            known.join(", ")
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheduler_in_use_is_in_brackets() {
        assert_eq!(chosen("none [mq-deadline] kyber\n"), "mq-deadline");
        assert_eq!(chosen("none\n"), "none");
        assert_eq!(chosen(""), "none");
    }
}

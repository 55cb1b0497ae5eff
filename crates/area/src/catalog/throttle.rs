//! Rates of loop devices, kept by the kernel: `io.max` of control groups version 2, `blkio.throttle` of version 1.
//!
//! The kernel counts by device and control group, so every group gets the rate of a device. A process with the descriptor has
//! its group's rate for this device and no more, however it came by the descriptor. A group of version 2 includes the groups
//! below it, so the top groups are enough. A process in none of them is not reached. [`Throttle::tend`] finds later groups.
//!
//! A device begins with a tenth of a second's worth. So the server keeps the device of an area open: otherwise a holder would
//! get that worth again with each open.

use base::Rate;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};
use store::catalog::AreaId;

/// A hierarchy of control groups that has what is needed.
#[derive(Debug)]
enum Groups {
    /// Version 1, with `blkio` at this place: every group counts for itself, the root too.
    One(PathBuf),
    /// Version 2, with `io`.
    Two(PathBuf),
}

/// A device with a rate.
#[derive(Debug)]
struct Device {
    device: File,
    rate: Rate,
    /// The groups that have it, by inode.
    groups: BTreeSet<u64>,
}

/// Devices with rates.
#[derive(Debug)]
pub(super) struct Throttle {
    groups: Groups,
    devices: BTreeMap<AreaId, Device>,
}

impl Throttle {
    /// `None` if the kernel, the way it is set up, or the rights of this process do not allow it.
    pub(super) fn find() -> Option<Self> {
        let groups = Groups::find(&fs::read_to_string("/proc/self/mountinfo").ok()?)?;
        let probe = match &groups {
            Groups::One(root) => root.join("blkio.throttle.write_bps_device"),
            Groups::Two(root) => {
                let control = root.join("cgroup.subtree_control");
                say(&control, "+io").ok()?;
                control
            }
        };
        OpenOptions::new().write(true).open(probe).ok()?;
        Some(Self {
            groups,
            devices: BTreeMap::new(),
        })
    }

    /// False if the rates of devices do not hold for this process: it is in the root group of version 2.
    pub(super) fn reaches(&self, process: u32) -> bool {
        let is_root = || {
            let group = fs::read_to_string(format!("/proc/{process}/cgroup")).unwrap_or_default();
            group.lines().any(|line| line == "0::/")
        };
        matches!(self.groups, Groups::One(_)) || !is_root()
    }

    /// Gives the device of an area its rate, or another one. `device` is kept open.
    pub(super) fn limit(&mut self, id: AreaId, device: File, rate: Rate) -> io::Result<()> {
        let is_known = |held: &Device| match (held.device.metadata(), device.metadata()) {
            (Ok(held), Ok(new)) => held.rdev() == new.rdev(),
            _ => false,
        };
        // The same again would begin its time anew.
        let held = self.devices.remove(&id).filter(is_known);
        let mut held = held.unwrap_or(Device {
            device,
            rate,
            groups: BTreeSet::new(),
        });
        if held.rate != rate {
            (held.rate, held.groups) = (rate, BTreeSet::new());
        }
        let done = self.groups.apply(&mut held);
        self.devices.insert(id, held);
        done
    }

    /// Lets go of the device of an area.
    pub(super) fn release(&mut self, id: AreaId) {
        self.devices.remove(&id);
    }

    /// Groups that are new get the rates.
    pub(super) fn tend(&mut self) -> io::Result<()> {
        self.devices
            .values_mut()
            .try_for_each(|held| self.groups.apply(held))
    }
}

impl Groups {
    /// In the lines of `/proc/self/mountinfo`: where it is mounted is the fifth word, and what it is comes after a dash.
    fn find(mounts: &str) -> Option<Self> {
        let found = |line: &str| {
            let (place, what) = line.split_once(" - ")?;
            let root = PathBuf::from(place.split(' ').nth(4)?);
            let mut what = what.split(' ');
            match (what.next()?, what.nth(1)?) {
                ("cgroup", options) if options.split(',').any(|it| it == "blkio") => Some(Self::One(root)),
                ("cgroup2", _) => {
                    let controllers = fs::read_to_string(root.join("cgroup.controllers")).ok()?;
                    let has_io = controllers.split_whitespace().any(|it| it == "io");
                    has_io.then_some(Self::Two(root))
                }
                _ => None,
            }
        };
        mounts.lines().find_map(found)
    }

    /// Every group that has not got the rate of this device gets it.
    fn apply(&self, held: &mut Device) -> io::Result<()> {
        let mut groups = Vec::new();
        let root = match self {
            Self::One(root) => {
                groups.push((root.metadata()?.ino(), root.clone()));
                root
            }
            Self::Two(root) => root,
        };
        collect(root, matches!(self, Self::One(_)), &mut groups)?;
        let all: BTreeSet<u64> = groups.iter().map(|(inode, _)| *inode).collect();
        held.groups.retain(|inode| all.contains(inode));
        let number = held.device.metadata()?.rdev();
        let number = format!("{}:{}", libc::major(number), libc::minor(number));
        for (inode, path) in groups {
            if held.groups.contains(&inode) {
                continue;
            }
            match self.write(&path, &number, held.rate) {
                // It went away meanwhile.
                Err(_) if !path.exists() => {}
                done => {
                    done?;
                    held.groups.insert(inode);
                }
            }
        }
        Ok(())
    }

    fn write(&self, group: &Path, device: &str, rate: Rate) -> io::Result<()> {
        let (bytes, operations) = (rate.bytes, rate.operations);
        if matches!(self, Self::Two(_)) {
            let or_max = |value: u64| match value {
                0 => "max".to_owned(),
                value => value.to_string(),
            };
            let (bytes, operations) = (or_max(bytes), or_max(operations.into()));
            let limits = format!("rbps={bytes} wbps={bytes} riops={operations} wiops={operations}");
            return say(&group.join("io.max"), &format!("{device} {limits}"));
        }
        for way in ["read", "write"] {
            let file = |of: &str| group.join(format!("blkio.throttle.{way}_{of}_device"));
            say(&file("bps"), &format!("{device} {bytes}"))?;
            say(&file("iops"), &format!("{device} {operations}"))?;
        }
        Ok(())
    }
}

/// The groups below `root`, with their inodes.
fn collect(root: &Path, is_deep: bool, groups: &mut Vec<(u64, PathBuf)>) -> io::Result<()> {
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        if !entry.file_type()?.is_dir() {
            continue;
        }
        groups.push((entry.ino(), entry.path()));
        if is_deep {
            match collect(&entry.path(), true, groups) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
    }
    Ok(())
}

/// Writes to a file of the kernel's: one call.
fn say(path: &Path, words: &str) -> io::Result<()> {
    OpenOptions::new()
        .write(true)
        .open(path)?
        .write_all(words.as_bytes())
}
